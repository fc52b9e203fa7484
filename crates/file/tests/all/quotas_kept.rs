//! Quotas when clients die, are silent, or come back: nothing counts too little, and `fsck` finds what counts too much.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::task::LocalFuture;
use engine::{task, time};
use file::meta::{Death, KeyPage, MemoryClient, MemoryMeta, Meta, Seen, Swapped, Version};
use file::record::Record;
use file::record::quota::QuotaRecord;
use file::{Amount, Error, Files, Left, Limits, ROOT};

use crate::audit::{Leaks, count};
use crate::data::bed::rope;
use crate::fsck::{MINUTE, assert_clean, check, mended};
use crate::opened::Place;
use crate::quotas::{MIB, ROW, assert_covered, assert_exact, counted, make_in, with_quota};
use crate::world::{HEAD, client, create, file, fresh, kind_of, mkdir, run_long};

/// Puts another record in the place of a quota's.
async fn tamper(meta: &MemoryMeta, dir: u64, change: impl FnOnce(&mut QuotaRecord)) {
    let key = meta
        .dump()
        .into_iter()
        .map(|(key, _)| key)
        .find(|key| kind_of(key) == Some(&b'q') && key[HEAD + 1..] == dir.to_be_bytes());
    let (key, client) = (key.unwrap(), meta.client());
    let seen = client.get(&key).await.unwrap().unwrap();
    let mut record = QuotaRecord::decode(&seen.value).unwrap();
    change(&mut record);
    let swapped = client.swap(&key, Some(seen.version), Some(record.encode())).await.unwrap();
    assert!(matches!(swapped, Swapped::Done(_)));
}

/// All ways in which something comes to count, or not to any more.
async fn use_all(files: Rc<Files>, dir: u64) {
    let names = files.names();
    let sub = names.mkdir(dir, b"sub", 0o755, 0, 0).await.unwrap().ino;
    let (short, long) = (make_in(&files, dir, "short").await.unwrap(), make_in(&files, sub, "long").await.unwrap());
    short.write(0, &[1; 1000]).await.unwrap();
    short.flush().await.unwrap();
    short.write(1000, &[2; 20_000]).await.unwrap();
    short.flush().await.unwrap();
    short.write_through(0, rope(&[3; 30_000])).await.unwrap();
    short.append(&[4; 5000]).await.unwrap();
    for piece in 0..90 {
        long.write(piece * 9000, &[5; 5000]).await.unwrap();
        long.flush().await.unwrap();
    }
    long.punch(20_000, 60_000).await.unwrap();
    names.settle_quotas().await;
    long.truncate(100_000).await.unwrap();
    names.link(long.ino(), dir, b"second").await.unwrap();
    names.unlink(sub, b"long").await.unwrap();
    names.unlink(dir, b"short").await.unwrap();
    files.close_file(&short).await.unwrap();
    let over = make_in(&files, dir, "over").await.unwrap();
    files.close_file(&over).await.unwrap();
    names.rename((dir, b"over"), (dir, b"second"), file::RenameFlags::default()).await.unwrap();
    files.close_file(&long).await.unwrap();
    names.rmdir(dir, b"sub").await.unwrap();
    files.close().await.unwrap();
}

async fn dies(death: Death) -> bool {
    let place = Place::new().await;
    let first = place.client().await;
    let dir = with_quota(first.names(), ROOT, "dir", Some(8 * MIB), Some(50)).await;
    first.close().await.unwrap();
    let dying = place.meta.client();
    let files = place.client_over(dying.clone()).await;
    dying.die_at(Some(death));
    let using = task::spawn(use_all(files, dir));
    while !using.is_finished() && !dying.is_dead() {
        time::sleep(Duration::from_millis(100)).await;
    }
    drop(using);
    assert_covered(&place.meta);
    let report = mended(&place.meta).await;
    assert!(!report.is_damaged() && (report.left(), report.uncounted) == (0, 0), "{death:?}: {report:?}");
    assert_clean(&place.meta).await;
    assert_eq!(count(&place.meta), Leaks::default(), "{death:?}");
    assert_exact(&place.meta);
    dying.is_dead()
}

#[test]
fn after_every_death_of_who_uses_a_quota_it_says_what_is_there() {
    for takes_effect in [false, true] {
        let mut swaps = 0;
        while run_long(swaps, dies(Death { swaps, takes_effect })) {
            swaps += if swaps < 60 { 1 } else { 3 };
        }
        assert!(swaps > 120, "{swaps}");
    }
}

async fn given(death: Death) -> bool {
    let meta = fresh().await;
    let (_, first) = client(&meta).await;
    let dir = mkdir(&first, ROOT, "dir").await;
    first.close().await.unwrap();
    let (dying, fs) = client(&meta).await;
    dying.die_at(Some(death));
    let acting = task::spawn(async move {
        fs.set_quota(dir, Limits { bytes: None, files: Some(9) }).await.unwrap();
        let inner = fs.mkdir(dir, b"inner", 0o755, 0, 0).await.unwrap().ino;
        fs.set_quota(inner, Limits { bytes: None, files: Some(1) }).await.unwrap();
        fs.create(inner, b"file", &file(), true).await.unwrap();
        fs.unlink(inner, b"file").await.unwrap();
        fs.rmdir(dir, b"inner").await.unwrap();
        fs.rmdir(ROOT, b"dir").await.unwrap();
        fs.close().await.unwrap();
    });
    while !acting.is_finished() && !dying.is_dead() {
        time::sleep(Duration::from_millis(10)).await;
    }
    drop(acting);
    // Before anything is mended: a quota without a record is given one without limits.
    let report = check(meta.client(), false).await;
    let lacks_record = report.damage.iter().any(|damage| damage.what.contains("quota"));
    assert!(!lacks_record, "{death:?}: {report:?}");
    let report = mended(&meta).await;
    assert!(!report.is_damaged() && (report.left(), report.uncounted) == (0, 0), "{death:?}: {report:?}");
    assert_exact(&meta);
    // Whoever died, the same can be done again, and then nothing is left.
    let (_, last) = client(&meta).await;
    if let Ok(found) = last.lookup(ROOT, b"dir").await {
        if let Ok(inner) = last.lookup(found.ino, b"inner").await {
            let _gone = last.unlink(inner.ino, b"file").await;
            last.rmdir(found.ino, b"inner").await.unwrap();
        }
        last.rmdir(ROOT, b"dir").await.unwrap();
    }
    last.close().await.unwrap();
    let report = mended(&meta).await;
    assert!(!report.is_damaged() && report.left() == 0, "{death:?}: {report:?}");
    assert!(counted(&meta).is_empty(), "{death:?}: the record of a directory that is gone is left");
    dying.is_dead()
}

#[test]
fn whoever_dies_giving_quotas_leaves_none_of_no_directory() {
    for takes_effect in [false, true] {
        let mut swaps = 0;
        while run_long(swaps, given(Death { swaps, takes_effect })) {
            swaps += 1;
        }
        assert!(swaps > 20, "{swaps}");
    }
}

/// It was silent for two hours: others have collected it, counted its share as used, and counted anew.
#[test]
fn who_was_taken_for_dead_uses_nothing_of_its_old_share() {
    run_long(1, async {
        let place = Place::new().await;
        let sleeper = place.client().await;
        let dir = with_quota(sleeper.names(), ROOT, "dir", Some(16 * MIB), Some(100)).await;
        let file = make_in(&sleeper, dir, "file").await.unwrap();
        file.write(0, &vec![1; MIB as usize]).await.unwrap();
        file.flush().await.unwrap();
        // Gathered, and room is set aside for it.
        file.write(2 * MIB, &vec![2; 300_000]).await.unwrap();
        assert_eq!(counted(&place.meta)[&dir].1.shares.len(), 1);
        // It does nothing for that long, as if its host were suspended.
        let report = mended(&place.meta).await;
        assert!(!report.is_damaged() && report.left() == 0, "{report:?}");
        assert_exact(&place.meta);
        // And goes on.
        sleeper.names().create(dir, b"more", &self::file(), true).await.unwrap();
        file.flush().await.unwrap();
        file.truncate(100).await.unwrap();
        assert_covered(&place.meta);
        assert_eq!(counted(&place.meta)[&dir].0, Amount { bytes: MIB as i64, files: 2 });
        file.truncate(0).await.unwrap();
        sleeper.close_file(&file).await.unwrap();
        sleeper.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

/// A client that takes another number while it has room set aside, and is not taken for dead.
#[test]
fn a_share_goes_with_its_client_under_another_number() {
    run_long(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(16 * MIB), Some(100)).await;
        let file = make_in(&files, dir, "file").await.unwrap();
        file.write(0, &vec![2; 300_000]).await.unwrap();
        let old = files.names().client();
        time::sleep(15 * MINUTE).await;
        files.names().renew().await.unwrap();
        assert_ne!(files.names().client(), old);
        file.flush().await.unwrap();
        file.write(0, &vec![3; 100_000]).await.unwrap();
        file.flush().await.unwrap();
        let (_, record) = counted(&place.meta)[&dir].clone();
        let clients: Vec<u64> = record.shares.iter().map(|share| share.client).collect();
        assert_eq!(clients, [files.names().client()]);
        files.close_file(&file).await.unwrap();
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

#[test]
fn a_share_of_a_client_that_is_no_more_is_taken_for_used_by_those_that_live() {
    run_long(1, async {
        let place = Place::new().await;
        let (dead, living) = (place.client().await, place.client().await);
        let dir = with_quota(living.names(), ROOT, "dir", Some(64 * MIB), Some(100)).await;
        let file = make_in(&dead, dir, "file").await.unwrap();
        file.write(0, &vec![1; 300_000]).await.unwrap();
        file.flush().await.unwrap();
        let held = counted(&place.meta)[&dir].1.taken();
        drop((file, dead));
        let _alive = living.keep_alive();
        time::sleep(85 * MINUTE).await;
        let (truth, record) = counted(&place.meta)[&dir].clone();
        assert_eq!((record.shares.len(), record.used), (0, held), "all of it");
        assert!(truth.bytes < held.bytes);
        let report = check(place.meta.client(), true).await;
        assert_eq!(report.left[&Left::Used].mended, 1, "{report:?}");
        assert_exact(&place.meta);
    });
}

/// As one quota could not be read, nobody who had died was collected, and `df` told nothing.
#[test]
fn a_quota_that_does_not_parse_keeps_no_client_that_is_no_more() {
    run_long(1, async {
        let place = Place::new().await;
        let living = place.client().await;
        let good = with_quota(living.names(), ROOT, "good", Some(64 * MIB), Some(100)).await;
        let bad = with_quota(living.names(), ROOT, "bad", None, None).await;
        for name in ["one", "two"] {
            let dead = place.client().await;
            let file = make_in(&dead, good, name).await.unwrap();
            file.write(0, &[1; 5000]).await.unwrap();
            file.flush().await.unwrap();
        }
        let is_bad = |key: &Vec<u8>| kind_of(key) == Some(&b'q') && key[HEAD + 1..] == bad.to_be_bytes();
        let key = place.meta.dump().into_iter().map(|(key, _)| key).find(is_bad).unwrap();
        let other = place.meta.client();
        let seen = other.get(&key).await.unwrap().unwrap();
        other.swap(&key, Some(seen.version), Some(vec![0xff; 9])).await.unwrap();
        let shown: Vec<u64> = living.names().quotas().await.unwrap().iter().map(|quota| quota.dir).collect();
        assert_eq!(shown, [good]);
        let clients = || place.meta.dump().iter().filter(|(key, _)| kind_of(key) == Some(&b'c')).count();
        assert_eq!(clients(), 3);
        let _alive = living.keep_alive();
        time::sleep(85 * MINUTE).await;
        assert_eq!(clients(), 1);
        other.swap(&key, other.get(&key).await.unwrap().map(|seen| seen.version), Some(seen.value)).await.unwrap();
        assert_eq!(counted(&place.meta)[&good].1.shares, Vec::new());
        assert_covered(&place.meta);
    });
}

#[test]
fn what_a_quota_says_wrongly_is_counted_when_nobody_uses_it() {
    run_long(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(64 * MIB), Some(100)).await;
        let file = make_in(&files, dir, "file").await.unwrap();
        file.write(0, &vec![1; 300_000]).await.unwrap();
        file.flush().await.unwrap();
        for wrong in [5 * ROW as i64, -3 * ROW as i64] {
            tamper(&place.meta, dir, |record| record.used.bytes += wrong).await;
            // This client has a share: what of it is used it alone knows.
            let _alive = files.keep_itself_alive();
            let report = look(&place.meta, true).await;
            assert_eq!((report.uncounted, report.left.get(&Left::Used)), (1, None), "{report:?}");
            time::sleep(MINUTE).await;
            let report = look(&place.meta, false).await;
            assert_eq!((report.uncounted, report.left[&Left::Used].left), (0, 1), "{report:?}");
            let report = look(&place.meta, true).await;
            assert_eq!(report.left[&Left::Used].mended, 1, "{report:?}");
            assert_exact(&place.meta);
            file.write(0, &[1; 5000]).await.unwrap();
            file.flush().await.unwrap();
        }
        files.close_file(&file).await.unwrap();
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

/// One look, and no waiting.
pub async fn look(meta: &MemoryMeta, repairs: bool) -> file::Report {
    let files = Files::open(meta.client(), "test", "fsck").await.unwrap();
    let report = file::Fsck::new(&files, repairs, None).run(false).await.unwrap();
    files.close().await.unwrap();
    report
}

#[test]
fn a_quota_without_a_record_is_damage_and_gets_one_without_limits() {
    run_long(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let dir = with_quota(&fs, ROOT, "dir", None, Some(10)).await;
        create(&fs, dir, "file").await;
        fs.settle_quotas().await;
        fs.close().await.unwrap();
        let key = meta.dump().into_iter().map(|(key, _)| key).find(|key| kind_of(key) == Some(&b'q')).unwrap();
        let other = meta.client();
        let seen = other.get(&key).await.unwrap().unwrap();
        other.swap(&key, Some(seen.version), None).await.unwrap();
        let (_, fs) = client(&meta).await;
        assert!(matches!(fs.create(dir, b"more", &file(), true).await, Err(Error::Damaged(_))));
        fs.unlink(dir, b"file").await.unwrap();
        fs.rename((ROOT, b"dir"), (ROOT, b"other"), file::RenameFlags::default()).await.unwrap();
        fs.close().await.unwrap();
        let report = check(meta.client(), true).await;
        assert!(!report.is_damaged() && report.damage.len() == 1, "{report:?}");
        assert!(report.damage[0].what.contains("has no limits now"), "{report:?}");
        let (_, fs) = client(&meta).await;
        create(&fs, dir, "more").await;
        fs.close().await.unwrap();
        assert_exact(&meta);
    });
}

/// A client of whose next change of an inode nobody learns the outcome: it comes twenty minutes later.
struct Late {
    inner: Rc<MemoryClient>,
    meta: MemoryMeta,
    is_armed: Cell<bool>,
    is_silent: Cell<bool>,
}

const LATE: Duration = Duration::from_secs(20 * 60);

impl Meta for Late {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            match self.is_silent.get() && kind_of(key) == Some(&b'i') {
                true => Err(Error::Unavailable("a test's store".into())),
                false => self.inner.get(key).await,
            }
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        if kind_of(key) != Some(&b'i') || !self.is_armed.replace(false) {
            return self.inner.swap(key, expected, new);
        }
        self.is_silent.set(true);
        let (later, key) = (self.meta.client(), key.to_vec());
        task::spawn(async move {
            time::sleep(LATE).await;
            assert!(matches!(later.swap(&key, expected, new).await, Ok(Swapped::Done(_))), "nothing has changed it");
        })
        .detach();
        Box::pin(async { Ok(Swapped::Unknown) })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// A writer, or who makes a file, was told "unknown", and ends: its change may come for half an hour yet. Until then nobody counts
/// without it.
#[test]
fn what_may_yet_come_is_counted_by_nobody() {
    for makes in [false, true] {
        run_long(1, async move {
            let place = Place::new().await;
            let (is_armed, is_silent) = (Cell::new(false), Cell::new(false));
            let late = Rc::new(Late { inner: place.meta.client(), meta: place.meta.clone(), is_armed, is_silent });
            let files = place.client_over(late.clone()).await;
            let dir = with_quota(files.names(), ROOT, "dir", Some(64 * MIB), Some(100)).await;
            let written = make_in(&files, dir, "file").await.unwrap();
            written.append(&[1; 5000]).await.unwrap();
            late.is_armed.set(true);
            let failed = match makes {
                true => files.names().create(dir, b"made", &file(), true).await.map(drop),
                false => written.append(&[1; 20_000]).await.map(drop),
            };
            assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
            late.is_silent.set(false);
            files.close_file(&written).await.unwrap();
            files.close().await.unwrap();
            drop((written, files));
            let report = look(&place.meta, true).await;
            assert_eq!(report.uncounted, 1, "{report:?}");
            time::sleep(2 * LATE).await;
            assert_covered(&place.meta);
            let truth = counted(&place.meta)[&dir].0;
            assert_eq!(
                truth,
                if makes { Amount { bytes: 8192, files: 2 } } else { Amount { bytes: 28_672, files: 1 } }
            );
            let report = mended(&place.meta).await;
            assert_eq!((report.uncounted, report.left[&Left::Share].mended), (0, 1), "{report:?}");
            assert_exact(&place.meta);
        });
    }
}
