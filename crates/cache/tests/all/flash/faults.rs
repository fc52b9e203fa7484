//! A device that fails, fills up, hangs or lies: values are right or missing, and what cannot be used is given up.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cache::flash::{FlashLog, Lookup, Reason, Refused};
use cache::item::Meta;
use device::{Durability, Error, Fault, FaultConfig, Lba, Memory, Namespace};
use engine::sim::{SimConfig, World};
use engine::{Buf, View, task};

use crate::flash::owner::{Owner, SEGMENT_BYTES, Truth, journal, options};

/// What goes wrong, in events per hundred commands.
#[derive(Clone, Copy, Default)]
struct Lies {
    /// Writes that are acknowledged and never done.
    lost_writes: u64,
    /// Writes that go to another place.
    misdirected_writes: u64,
    /// Reads in which a bit is wrong.
    flipped_reads: u64,
    /// Reads of another place.
    misdirected_reads: u64,
    /// Writes that find no room.
    full: u64,
}

/// A namespace that lies about what it does.
struct Liar {
    inner: Memory,
    lies: Lies,
    /// From this block on; a log cannot be opened on a lie.
    from: u64,
}

fn happens(percent: u64) -> bool {
    task::random_u64() % 100 < percent
}

impl Liar {
    fn elsewhere(&self, lba: Lba, blocks: u64) -> Lba {
        let room = self.inner.info().blocks - self.from - blocks;
        if lba.0 < self.from { lba } else { Lba(self.from + task::random_u64() % room) }
    }
}

impl Namespace for Liar {
    device::delegate_namespace!(this => { Liar { inner, .. } => inner };
        info, flush, compare, compare_and_write, write_zeroes, deallocate, verify, write_uncorrectable, hint_lifetime,
        writability, used_blocks, link, attribute, set_attribute, zones);

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let blocks = (buf.len() / 4096) as u64;
        let lba = if happens(self.lies.misdirected_reads) { self.elsewhere(lba, blocks) } else { lba };
        let (result, mut buf) = self.inner.read(lba, buf).await;
        if lba.0 >= self.from && happens(self.lies.flipped_reads) {
            let at = task::random_u64() as usize % buf.len();
            buf[at] ^= 1 << (task::random_u64() % 8);
        }
        (result, buf)
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        if lba.0 >= self.from && happens(self.lies.full) {
            return Err(Error::OutOfSpace);
        }
        if lba.0 >= self.from && happens(self.lies.lost_writes) {
            return Ok(());
        }
        let blocks = (data.len() / 4096) as u64;
        let lba = if happens(self.lies.misdirected_writes) { self.elsewhere(lba, blocks) } else { lba };
        self.inner.write(lba, data, durability).await
    }
}

fn memory() -> Memory {
    Memory::new(12 * SEGMENT_BYTES as u64, 4096, [1; 16]).expect("a namespace")
}

/// Two lives with random commands, every answer judged. Hits, checksum errors and whether the first has failed.
fn lives<N: Namespace + Send + Sync>(seed: u64, namespace: impl FnOnce() -> N) -> (u64, u64, bool) {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    let (namespace, truth) = (Arc::new(namespace()), Rc::new(Truth::default()));
    let counts = Rc::clone(&truth);
    let task = world.spawn_on(node, async move {
        let journal = journal(&*namespace, &options());
        let (mut wrong, mut failed) = (0, false);
        for _ in 0..2 {
            let owner =
                Owner::open(Arc::clone(&namespace), &journal, &options(), &truth, u32::MAX).await.expect("opened");
            let owner = Rc::new(owner);
            for _ in 0..30 {
                owner.live_together(2, 25, 60).await;
                if owner.log.failure().is_some() {
                    break;
                }
            }
            owner.verify(60).await;
            // In memory alone: what changes now can no longer be marked.
            owner.live(200, 60).await;
            failed |= owner.log.failure().is_some();
            wrong += owner.log.stats().checksum_errors;
        }
        (wrong, failed)
    });
    let (wrong, failed) = world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
    (counts.hits_on_flash.get(), wrong, failed)
}

#[test]
fn lies_are_misses() {
    let lies = [
        Lies { lost_writes: 10, ..Lies::default() },
        Lies { misdirected_writes: 10, ..Lies::default() },
        Lies { flipped_reads: 3, ..Lies::default() },
        Lies { misdirected_reads: 3, ..Lies::default() },
        Lies { lost_writes: 5, misdirected_writes: 5, flipped_reads: 2, misdirected_reads: 2, full: 0 },
    ];
    for (number, lies) in lies.into_iter().enumerate() {
        let (mut hits, mut wrong) = (0, 0);
        for seed in 0..8 {
            let seen = lives(seed, || Liar { inner: memory(), lies, from: 16 });
            (hits, wrong) = (hits + seen.0, wrong + seen.1);
        }
        assert!(hits > 100 && wrong > 10, "lies {number}: {hits} hits, {wrong} wrong");
    }
}

#[test]
fn a_full_device_ends_the_log_at_once_and_nothing_old_comes_back() {
    let lies = Lies { full: 5, ..Lies::default() };
    let failed = (0..20).filter(|&seed| lives(seed, || Liar { inner: memory(), lies, from: 16 }).2);
    assert!(failed.count() >= 15);
}

#[test]
fn commands_that_are_lost_late_or_fail_are_misses() {
    for seed in 0..10 {
        let config = FaultConfig {
            seed,
            lost_command_ppm: 10_000,
            late_command_ppm: 50_000,
            lost_reply_ppm: 20_000,
            read_error_ppm: 10_000,
            write_error_ppm: 10_000,
            delay: Duration::ZERO..Duration::from_millis(2),
        };
        let inner = Arc::new(memory());
        let world = World::new(seed, SimConfig::default());
        let node = world.node("n");
        let task = world.spawn_on(node, async move {
            let truth = Rc::new(Truth::default());
            let journal = journal(&*inner, &options());
            for _ in 0..3 {
                let owner = loop {
                    let config = FaultConfig { seed: task::random_u64(), ..config.clone() };
                    let fault = Arc::new(Fault::new(Arc::clone(&inner), config));
                    if let Ok(owner) = Owner::open(fault, &journal, &options(), &truth, u32::MAX).await {
                        break owner;
                    }
                };
                let owner = Rc::new(owner);
                for _ in 0..30 {
                    owner.live_together(3, 17, 60).await;
                    if owner.log.failure().is_some() {
                        break;
                    }
                }
                owner.verify(60).await;
            }
            truth.hits_on_flash.get()
        });
        let hits = world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        assert!(hits > 20, "seed {seed}: {hits} hits");
    }
}

#[test]
fn a_device_that_fails_reads_is_given_up_and_says_why() {
    let failing = || {
        let config = FaultConfig { read_error_ppm: 300_000, ..FaultConfig::default() };
        let (_, _, failed) = lives_of_reads(config);
        failed
    };
    assert!(failing().is_some_and(|why| why.contains("too many reads have failed")));
}

/// Items that are read again and again from a device with these faults. Hits, misses, and why the log has ended.
fn lives_of_reads(config: FaultConfig) -> (u32, u32, Option<String>) {
    let world = World::new(1, SimConfig::default());
    let node = world.node("n");
    let task = world.spawn_on(node, async move {
        let inner = Arc::new(memory());
        let journal = journal(&*inner, &options());
        // The superblock is not there yet: what cannot be read cannot be opened.
        let log = loop {
            let fault =
                Arc::new(Fault::new(Arc::clone(&inner), FaultConfig { seed: task::random_u64(), ..config.clone() }));
            if let Ok((log, _)) = FlashLog::open(fault, Arc::clone(&journal), &options(), ()).await {
                break Arc::new(log);
            }
        };
        let _writer = task::spawn(Arc::clone(&log).run());
        let place = log.append(1, b"key", &Meta::default(), &[&[7; 100]], Reason::Admitted).expect("room");
        log.close().await.expect("closed");
        let (mut hits, mut misses) = (0, 0);
        for _ in 0..1000 {
            match log.read(place, b"key").await {
                Lookup::Found(_) => hits += 1,
                Lookup::Lost | Lookup::Other | Lookup::Unread => misses += 1,
            }
        }
        let refused = log.append(1, b"key", &Meta::default(), &[], Reason::Admitted);
        assert_eq!(refused, Err(Refused::Ended));
        (hits, misses, log.failure())
    });
    world.run_until(task).expect("it ends")
}

#[test]
fn a_few_bad_blocks_are_borne() {
    let config = FaultConfig { read_error_ppm: 20_000, ..FaultConfig::default() };
    let (hits, misses, failed) = lives_of_reads(config);
    assert_eq!((hits + misses, failed), (1000, None));
    assert!(hits > 900 && misses > 3, "{hits} {misses}");
}

/// Nothing is written: what waits is bounded, and who comes then is told at once.
#[test]
fn a_device_that_hangs_costs_bounded_memory() {
    let world = World::new(1, SimConfig::default());
    let node = world.node("n");
    let task = world.spawn_on(node, async {
        let inner = Arc::new(memory());
        let journal = journal(&*inner, &options());
        let hang = FaultConfig { delay: Duration::from_secs(100)..Duration::from_secs(101), ..FaultConfig::default() };
        let (log, _) =
            FlashLog::open(Arc::new(Fault::new(inner, hang)), journal, &options(), ()).await.expect("opened");
        let log = Arc::new(log);
        let _writer = task::spawn(Arc::clone(&log).run());
        let mut taken = 0;
        let refused = loop {
            match log.append(taken, b"key", &Meta::default(), &[&[7; 980]], Reason::Admitted) {
                Ok(_) => taken += 1,
                Err(refused) => break refused,
            }
            task::yield_now().await;
        };
        assert_eq!(refused, Refused::Full);
        let bytes = taken as usize * 980;
        let bound = options().buffer_bytes;
        assert!(bytes < bound && bytes > bound * 8 / 10, "{bytes} of {bound}");
        assert_eq!(log.stats().refused_items, 1);
        log.room(Reason::Admitted).await;
        assert!(log.append(1, b"key", &Meta::default(), &[&[7; 980]], Reason::Admitted).is_ok(), "later there is room");
    });
    world.run_until(task).expect("it ends");
}
