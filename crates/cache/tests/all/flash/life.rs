//! Items come, are read, kept and given up; the log is closed and opened.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use cache::flash::{FlashLog, Fresh, Lookup, OpenError, Options, Place, Reason, Records, Refused, Restore};
use cache::item::Meta;
use device::{Durability, FileNamespace, FileOptions, Lba, Memory, Namespace};
use engine::sim::{SimConfig, World};
use engine::{Buf, Mapped, Reactor, ReactorConfig, task};

use crate::flash::owner::{BOOT, Owner, SEGMENT_BYTES, Truth, journal, options};

fn memory(segments: u64) -> Arc<Memory> {
    Arc::new(Memory::new((segments + 1) * SEGMENT_BYTES as u64, 4096, [1; 16]).expect("a namespace"))
}

fn run<T: 'static>(seed: u64, future: impl Future<Output = T> + 'static) -> T {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    let task = world.spawn_on(node, future);
    world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"))
}

/// Every answer is the latest value or a miss, while segments are collected and begin again all the time; some keys are
/// taken for one another. Closed and opened, all that was in the index is there again.
#[test]
fn random_lives_against_the_truth() {
    for seed in 0..12 {
        run(seed, async move {
            let hashes = if seed % 3 == 0 { 60 } else { u32::MAX };
            let (namespace, truth) = (memory(12), Rc::new(Truth::default()));
            let journal = journal(&*namespace, &options());
            for life in 0..4_u32 {
                let owner =
                    Owner::open(Arc::clone(&namespace), &journal, &options(), &truth, hashes).await.expect("opened");
                assert_eq!(owner.recovery.fresh, (life == 0).then_some(Fresh::Formatted));
                let owner = Rc::new(owner);
                owner.verify(100).await;
                owner.live_together(1 + life, 1500 / (1 + life), 100).await;
                if life == 2 {
                    owner.flush();
                    owner.live(50, 100).await;
                }
                let (before, found) = (owner.indexed(), owner.verify(100).await);
                owner.log.close().await.expect("closed");
                assert_eq!(owner.verify(100).await, found, "what is closed can be read");
                let again =
                    Owner::open(Arc::clone(&namespace), &journal, &options(), &truth, hashes).await.expect("opened");
                // Nothing but items in slots whose mark was another's is missing.
                assert!(
                    again.indexed() <= before && again.indexed() * 4 >= before * 3,
                    "{} of {before}",
                    again.indexed()
                );
                again.log.close().await.expect("closed");
            }
            assert!(truth.hits_on_flash.get() > 500, "only {} hits", truth.hits_on_flash.get());
        });
    }
}

/// What was admitted has filled the segment that was kept back: who collects must not wait for a segment, the only one
/// that comes being its own. (Three threads and a collector stood still for ever, one run in three on a busy machine.)
#[test]
fn who_collects_does_not_wait_for_itself() {
    run(1, async {
        // Long segments: little goes into summaries, and something may be kept.
        let options = Options { segment_bytes: 1 << 20, buffer_bytes: 4 << 20, ..options() };
        let namespace = Arc::new(Memory::new(9 << 20, 4096, [1; 16]).expect("a namespace"));
        let journal = journal(&*namespace, &options);
        let (log, _) = FlashLog::open(namespace, journal, &options, ()).await.expect("opened");
        let log = Arc::new(log);
        let writer = task::spawn(Arc::clone(&log).run());
        let append = |reason| log.append(7 << 40, b"key", &Meta::default(), &[&[0; 3950]], reason);
        let free = |wanted: u64| log.stats().free_segments == wanted;
        while !free(1) {
            assert!(append(Reason::Admitted).is_ok() || log.room(Reason::Admitted).await);
        }
        while append(Reason::Admitted).is_ok() {}
        let collection = log.collect().await.expect("there is none free but the last");
        while let Err(refused) = append(Reason::Kept) {
            assert!(refused == Refused::Full && log.room(Reason::Kept).await, "one is kept back: {refused}");
        }
        while append(Reason::Admitted).is_ok() {}
        assert!(free(0) && !log.room(Reason::Kept).await);
        assert_eq!(append(Reason::Kept), Err(Refused::Full));
        collection.finish();
        assert!(log.room(Reason::Kept).await);
        log.close().await.expect("closed");
        writer.await;
    });
}

/// A key whose items come into one page again and again: places that the index could take for one another never meet.
#[test]
fn a_place_means_one_item_of_a_key() {
    run(1, async {
        let namespace = memory(8);
        let journal = journal(&*namespace, &options());
        let (log, _) = FlashLog::open(namespace, journal, &options(), ()).await.expect("opened");
        let mut seen: BTreeMap<Place, u32> = BTreeMap::new();
        for number in 0..200_u32 {
            let meta = Meta { flags: number, ..Meta::default() };
            // The log keeps more bits of a hash than the index does: in those these differ.
            let hash = 7 << 40 | u64::from(number) << 16;
            let place = log.append(hash, b"key", &meta, &[&[0; 30]], Reason::Admitted).expect("room");
            assert_eq!(seen.insert(place, number), None, "the place of item {number} was another's");
        }
        for (place, number) in seen {
            let Lookup::Found(fetched) = log.read(place, b"key").await else {
                panic!("item {number} is not at its place")
            };
            assert_eq!(fetched.meta().flags, number);
        }
    });
}

/// The lengths at which something changes: nothing, a page's room, one byte more, what ends just before a page does,
/// several transfers, all of a segment, more.
#[test]
fn every_length_is_read_as_it_was_written() {
    run(1, async {
        let namespace = Arc::new(Memory::new(64 << 20, 512, [1; 16]).expect("a namespace"));
        let options = Options { segment_bytes: 4 << 20, buffer_bytes: 12 << 20, ..options() };
        let journal = journal(&*namespace, &options);
        let (log, _) = FlashLog::open(namespace, journal, &options, ()).await.expect("opened");
        let log = Arc::new(log);
        let _writer = task::spawn(Arc::clone(&log).run());
        let around = |len: usize| (len - 60)..(len + 3);
        let lengths = (0..3).chain(around(4096)).chain(around(8192)).chain([70_000, 1 << 20, 2_500_000, 4_000_000]);
        let mut items = Vec::new();
        for (number, len) in lengths.enumerate() {
            let value = vec![number as u8; len];
            let key = format!("{number}");
            let mut put = log.append(0, key.as_bytes(), &Meta::default(), &[&value], Reason::Admitted);
            while put == Err(Refused::Full) {
                log.room(Reason::Admitted).await;
                put = log.append(0, key.as_bytes(), &Meta::default(), &[&value], Reason::Admitted);
            }
            items.push((put.expect("room"), key, value));
            let (place, key, value) = &items[number];
            check(&log, *place, key, value).await;
        }
        let too_long = log.append(0, b"k", &Meta::default(), &[&vec![0; 4 << 20]], Reason::Admitted);
        assert!(matches!(too_long, Err(Refused::TooLong(_))), "{too_long:?}");
        log.close().await.expect("closed");
        let before = log.stats();
        for (place, key, value) in &items {
            check(&log, *place, key, value).await;
        }
        let after = log.stats();
        assert_eq!(after.buffer_reads, before.buffer_reads, "all was read from the device");
        let short = items.iter().filter(|(place, ..)| place.is_shared()).count() as u64;
        assert!(
            after.device_reads - before.device_reads <= 2 * items.len() as u64 + 1 + 2 + 3,
            "one read each but for the longest"
        );
        assert!(short >= 3 + 20);
    });
}

async fn check(log: &FlashLog, place: Place, key: &str, value: &[u8]) {
    let Lookup::Found(fetched) = log.read(place, key.as_bytes()).await else {
        panic!("{} bytes are not there", value.len())
    };
    assert_eq!(fetched.value_len(), value.len());
    assert!(fetched.value().iter().all(|piece| piece.iter().all(|byte| Some(byte) == value.first())));
    assert!(matches!(log.read(place, b"another").await, Lookup::Other));
}

/// A restart reads the summaries, and no item.
#[test]
fn a_restart_reads_summaries_alone() {
    run(3, async {
        let namespace = Arc::new(Memory::new(256 << 20, 4096, [1; 16]).expect("a namespace"));
        let options = Options { segment_bytes: 4 << 20, buffer_bytes: 16 << 20, ..options() };
        let journal = journal(&*namespace, &options);
        let opened = FlashLog::open(Arc::clone(&namespace), Arc::clone(&journal), &options, ()).await;
        let log = Arc::new(opened.expect("opened").0);
        let _writer = task::spawn(Arc::clone(&log).run());
        let mut count = 0_u64;
        // 365 bytes of key and value are what ETC has on average.
        while log.stats().free_segments > 2 {
            let key = format!("{count:036}");
            let hash = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            match log.append(hash, key.as_bytes(), &Meta::default(), &[&[0; 329]], Reason::Admitted) {
                Ok(_) => count += 1,
                Err(Refused::Full) => assert!(log.room(Reason::Admitted).await),
                Err(refused) => panic!("{refused}"),
            }
        }
        log.close().await.expect("closed");
        let mut told = 0_u64;
        let opened = FlashLog::open(namespace, journal, &options, |items: Records, _: &mut Vec<Place>| {
            told += items.len() as u64;
        });
        let (log, recovery) = opened.await.expect("opened");
        assert_eq!((told, recovery.items, recovery.segments_lost), (count, count, 0));
        let segments = u64::from(recovery.segments) * (4 << 20);
        let per_10_gib = recovery.bytes_read as f64 / segments as f64 * 10240.0;
        println!("a restart reads {per_10_gib:.0} MiB per 10 GiB of items of 365 bytes ({count} items here)");
        assert!(recovery.bytes_read * 45 <= segments, "{} bytes for {segments}", recovery.bytes_read);
        assert_eq!(log.stats().device_reads, 0, "no item was read");
    });
}

#[test]
fn namespaces_that_are_not_ours_are_refused_or_begun_anew() {
    run(1, async {
        let truth = Rc::new(Truth::default());
        let namespace = memory(8);
        let journal = journal(&*namespace, &options());
        let open = async |options: &Options, journal: &Arc<Mapped>| {
            let owner = Owner::open(Arc::clone(&namespace), journal, options, &truth, u32::MAX).await?;
            owner.set(5);
            owner.demote(5).expect("room");
            let fresh = owner.recovery.fresh;
            owner.log.close().await.expect("closed");
            Ok::<_, OpenError>(fresh)
        };
        namespace.write(Lba(0), Buf::copy_from(&[7; 4096]).freeze(), Durability::Stable).await.expect("written");
        let refused = open(&options(), &journal).await.expect_err("foreign");
        assert!(refused.to_string().contains("begins with [07, 07"), "{refused}");
        let overwrite = Options { overwrite: true, ..options() };
        assert_eq!(open(&overwrite, &journal).await.expect("opened"), Some(Fresh::Formatted));
        assert_eq!(open(&overwrite, &journal).await.expect("opened"), None, "ours is not overwritten");
        let larger = Options { segment_bytes: 2 * SEGMENT_BYTES, ..options() };
        let too_small = open(&larger, &journal).await.expect_err("eight and one of them do not fit");
        assert!(matches!(too_small, OpenError::TooSmall { .. }), "{too_small}");
        let other = Arc::new(Mapped::memory(journal.words().len()));
        assert_eq!(open(&options(), &other).await.expect("opened"), Some(Fresh::NoJournal));
        assert_eq!(
            open(&options(), &journal).await.expect("opened"),
            Some(Fresh::NoJournal),
            "the first is not its any more"
        );
        let short = Arc::new(Mapped::memory(journal.words().len() - 1));
        assert!(matches!(open(&options(), &short).await, Err(OpenError::Journal { .. })));
        let mut page = Buf::with_len(4096);
        (_, page) = namespace.read(Lba(0), page).await;
        page[8] = 200;
        namespace.write(Lba(0), page.freeze(), Durability::Stable).await.expect("written");
        assert!(matches!(open(&overwrite, &journal).await, Err(OpenError::Newer { found: 200 })));
    });
}

/// One of format 2 was not damaged, and is no error: it is begun anew, and that is said.
#[test]
fn a_log_of_an_earlier_version_is_begun_anew() {
    run(1, async {
        let (namespace, truth) = (memory(8), Rc::new(Truth::default()));
        let journal = journal(&*namespace, &options());
        let open = async || Owner::open(Arc::clone(&namespace), &journal, &options(), &truth, u32::MAX).await;
        let owner = open().await.expect("opened");
        owner.set(5);
        owner.demote(5).expect("room");
        owner.log.close().await.expect("closed");
        let mut page = Buf::with_len(4096);
        (_, page) = namespace.read(Lba(0), page).await;
        page[8..12].copy_from_slice(&2_u32.to_le_bytes());
        page[16..24].fill(0);
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &page);
        page[16..24].copy_from_slice(&sum.to_le_bytes());
        namespace.write(Lba(0), page.freeze(), Durability::Stable).await.expect("written");
        let owner = open().await.expect("opened");
        assert_eq!((owner.recovery.fresh, owner.recovery.items), (Some(Fresh::Older), 0));
        assert_eq!(Fresh::Older.to_string(), "begun anew, an earlier version made it");
        assert_eq!(owner.verify(10).await, 0);
        owner.set(6);
        owner.demote(6).expect("room");
        owner.log.close().await.expect("closed");
        let owner = open().await.expect("opened");
        assert_eq!((owner.recovery.fresh, owner.verify(10).await), (None, 1));
    });
}

/// Keeps the last item it was told of, and says so at once or at the end.
struct Last<'a> {
    told: &'a mut Vec<Place>,
    at_end: bool,
}

impl Restore for Last<'_> {
    fn begin(&mut self, items: u64) {
        assert!(self.told.is_empty() && items >= 1);
    }

    fn found(&mut self, items: Records, displaced: &mut Vec<Place>) {
        self.told.extend(items.iter().map(|(_, place)| place));
        if !self.at_end {
            self.displace(displaced);
        }
    }

    fn end(&mut self, displaced: &mut Vec<Place>) {
        if self.at_end {
            self.displace(displaced);
        }
    }
}

impl Last<'_> {
    fn displace(&self, displaced: &mut Vec<Place>) {
        displaced.extend(self.told.iter().rev().skip(1));
    }
}

/// Whose place is not in the index cannot be invalidated by whoever changes its key: it is told of no more.
#[test]
fn what_the_index_has_no_room_for_is_not_found_again() {
    run(1, async {
        for at_end in [false, true] {
            let namespace = memory(8);
            let journal = journal(&*namespace, &options());
            let opened = FlashLog::open(Arc::clone(&namespace), Arc::clone(&journal), &options(), ()).await;
            let log = Arc::new(opened.expect("opened").0);
            let _writer = task::spawn(Arc::clone(&log).run());
            let append = |key: &[u8]| log.append(7 << 40, key, &Meta::default(), &[b"value"], Reason::Admitted);
            let places = [append(b"a"), append(b"b"), append(b"c")].map(|place| place.expect("room"));
            log.close().await.expect("closed");
            // Oldest first; the last stays in the index.
            for expected in [&places[..], &places[2..]] {
                let mut told = Vec::new();
                let last = Last { told: &mut told, at_end };
                FlashLog::open(Arc::clone(&namespace), Arc::clone(&journal), &options(), last).await.expect("opened");
                assert_eq!(told, expected);
            }
        }
    });
}

/// Closed, a log is believed after power loss; not any more when something was changed after that.
#[test]
fn what_is_changed_after_the_end_is_not_believed_after_power_loss() {
    run(1, async {
        for changed in [false, true] {
            let (namespace, truth) = (memory(8), Rc::new(Truth::default()));
            let journal = journal(&*namespace, &options());
            let owner =
                Owner::open(Arc::clone(&namespace), &journal, &options(), &truth, u32::MAX).await.expect("opened");
            owner.set(5);
            owner.demote(5).expect("room");
            owner.log.close().await.expect("closed");
            if changed {
                owner.delete(5);
            }
            let another_boot = Options { boot: cache::flash::Boot([7, 7]), ..options() };
            let owner = Owner::open(namespace, &journal, &another_boot, &truth, u32::MAX).await.expect("opened");
            assert_eq!(owner.recovery.fresh, changed.then_some(Fresh::PowerLost));
            assert_eq!(owner.verify(10).await, u32::from(!changed));
        }
    });
}

/// A change in the midst of the end: that it had ended was on the medium, and the change was not.
#[test]
fn what_is_changed_during_the_end_is_not_believed_after_power_loss() {
    run(1, async {
        let (namespace, truth) = (memory(8), Rc::new(Truth::default()));
        let journal = journal(&*namespace, &options());
        let owner = Owner::open(Arc::clone(&namespace), &journal, &options(), &truth, u32::MAX).await.expect("opened");
        owner.set(5);
        let place = owner.demote(5).expect("room").expect("it is there");
        let (syncs, changing) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(None)));
        journal.on_sync({
            let (log, journal) = (Arc::downgrade(&owner.log), Arc::downgrade(&journal));
            let (syncs, changing) = (Arc::clone(&syncs), Arc::clone(&changing));
            move || {
                let (Some(log), Some(journal)) = (log.upgrade(), journal.upgrade()) else { return };
                // The second one says that it is closed.
                if syncs.fetch_add(1, Ordering::Relaxed) != 1 {
                    return;
                }
                let sum = || journal.words().iter().fold(0, |sum: u64, word| sum ^ word.load(Ordering::SeqCst));
                let before = sum();
                *changing.lock().expect("no panic") = Some(std::thread::spawn(move || log.invalidate(place)));
                while sum() == before {
                    std::thread::yield_now();
                }
            }
        });
        owner.log.close().await.expect("closed");
        let changing = changing.lock().expect("no panic").take().expect("it was begun");
        changing.join().expect("it is acknowledged");
        let left = Arc::new(journal.after_power_loss().expect("memory"));
        let another_boot = Options { boot: cache::flash::Boot([7, 7]), ..options() };
        let owner = Owner::open(namespace, &left, &another_boot, &truth, u32::MAX).await.expect("opened");
        assert_eq!(owner.recovery.fresh, Some(Fresh::PowerLost));
    });
}

/// A flush that is to come, comes while nothing runs.
#[test]
fn a_flush_that_came_due_is_done_by_the_restart() {
    run(1, async {
        let (namespace, truth) = (memory(8), Rc::new(Truth::default()));
        let journal = journal(&*namespace, &options());
        let now = engine::time::unix_time().as_secs();
        for (at, found) in [(0, 0), (now + 1000, 1), (now + 1000, 1)] {
            let owner =
                Owner::open(Arc::clone(&namespace), &journal, &options(), &truth, u32::MAX).await.expect("opened");
            assert_eq!(owner.verify(10).await, found);
            owner.set(5);
            owner.demote(5).expect("room");
            owner.log.reserve_cas(500);
            owner.log.flush_at(at);
            owner.log.close().await.expect("closed");
        }
        engine::time::sleep(std::time::Duration::from_secs(2000)).await;
        let owner = Owner::open(namespace, &journal, &options(), &truth, u32::MAX).await.expect("opened");
        let recovery = &owner.recovery;
        assert_eq!((recovery.items, recovery.flush_at, recovery.cas_floor, recovery.cas_reserved), (0, 0, 501, 500));
    });
}

/// On the kernel, in a file, with a mapped journal; a second log may not have either.
#[test]
fn in_a_file_with_a_mapped_journal() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_path_buf();
    let lived = Reactor::run(ReactorConfig::default(), async move {
        let truth = Rc::new(Truth::default());
        for life in 0..3 {
            let create = Some(20 * SEGMENT_BYTES as u64);
            let file = FileOptions { create, nguid: Some([1; 16]), ..FileOptions::default() };
            let namespace = Arc::new(FileNamespace::open(&place.join("log"), &file).await.expect("a namespace"));
            let options = Options { boot: BOOT, ..options() };
            let words = options.journal_words(&namespace.info()).expect("it holds a log");
            let journal = Arc::new(Mapped::open(&place.join("journal"), words).expect("mapped"));
            assert!(Mapped::open(&place.join("journal"), words).is_err(), "one owner");
            let owner = Owner::open(namespace, &journal, &options, &truth, u32::MAX).await.expect("opened");
            assert_eq!(owner.recovery.fresh.is_some(), life == 0);
            assert!(owner.verify(100).await > 0 || life == 0);
            owner.live(3000, 100).await;
            // The second life ends without a word, as a process that is killed.
            if life != 1 {
                owner.log.close().await.expect("closed");
            }
            let log = Arc::clone(&owner.log);
            drop(owner);
            while Arc::strong_count(&log) > 1 {
                engine::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        truth.hits_on_flash.get()
    });
    assert!(lived.expect("a reactor") > 500);
}
