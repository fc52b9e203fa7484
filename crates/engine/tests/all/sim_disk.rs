//! The disks' model: what a crash keeps, loses and tears; what overlaps; what fails.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use engine::file::{File, OpenOptions};
use engine::sim::{DiskConfig, NodeId, SimConfig, World};
use engine::{Buf, View, task, time};

const SECTOR: usize = 512;
const PAGE: usize = 8 * SECTOR;
const DISK: &str = "/disk";
const US: Duration = Duration::from_micros(1);

fn world(seed: u64, disk: DiskConfig) -> (World, NodeId) {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    world.disk(node, DISK, 1 << 20, disk);
    (world, node)
}

fn open() -> File {
    File::open(Path::new(DISK), &OpenOptions::default()).expect("nobody else holds it")
}

fn filled(value: u8, len: usize) -> View {
    let mut buf = Buf::with_len(len);
    buf.fill(value);
    buf.freeze()
}

/// The values of the sectors of a range; panics if one is not uniform.
fn sectors(world: &World, node: NodeId, offset: u64, count: usize) -> Vec<u8> {
    let bytes = world.peek(node, DISK, offset, count * SECTOR);
    let value = |sector: &[u8]| {
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn inside");
        sector[0]
    };
    bytes.chunks(SECTOR).map(value).collect()
}

/// Runs `body` on the node to its end.
fn run<F: Future<Output: 'static> + 'static>(world: &World, node: NodeId, body: F) -> F::Output {
    let task = world.spawn_on(node, body);
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"))
}

#[test]
fn a_crash_keeps_what_is_stable_and_keeps_loses_or_tears_the_rest() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..300 {
        let (world, node) = world(seed, DiskConfig::default());
        run(&world, node, async {
            let file = open();
            file.write_at(0, filled(1, PAGE), false).await.expect("written");
            file.sync_data().await.expect("flushed");
            file.write_at(PAGE as u64, filled(2, PAGE), true).await.expect("written");
            file.write_at(2 * PAGE as u64, filled(3, PAGE), false).await.expect("written");
            file.write_at(0, filled(4, PAGE), false).await.expect("written");
        });
        assert_eq!(sectors(&world, node, 2 * PAGE as u64, 8), [3; 8], "a reader sees what was written");
        world.crash(node);
        assert_eq!(sectors(&world, node, PAGE as u64, 8), [2; 8], "seed {seed}: a durable write is lost");
        let overwritten = sectors(&world, node, 0, 8);
        assert!(overwritten.iter().all(|value| [1, 4].contains(value)), "seed {seed}: flushed data is lost");
        let unsynced = sectors(&world, node, 2 * PAGE as u64, 8);
        match unsynced.iter().filter(|value| **value == 3).count() {
            0 => lost += 1,
            8 => kept += 1,
            _ => torn += 1,
        }
        assert!(unsynced.iter().all(|value| [0, 3].contains(value)));
        // What the crash has left is what there is, for good.
        let after = sectors(&world, node, 0, 24);
        world.restart(node);
        world.crash(node);
        assert_eq!(sectors(&world, node, 0, 24), after);
    }
    assert!(kept > 50 && lost > 50 && torn > 50, "kept {kept}, lost {lost}, torn {torn} of 300");
}

#[test]
fn a_disk_that_does_not_tear_keeps_or_loses_whole_writes() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let (world, node) = world(seed, DiskConfig { torn: false, ..DiskConfig::default() });
        let writes = async {
            let file = open();
            for i in 0..4 {
                file.write_at(i * PAGE as u64, filled(1, PAGE), false).await.expect("written");
            }
        };
        world.spawn_on(node, writes).detach();
        // In the middle of some write.
        world.run_for(US * (seed as u32 * 5)).expect("no stall");
        world.crash(node);
        for page in sectors(&world, node, 0, 32).chunks(8) {
            assert!(page == [0; 8] || page == [1; 8], "seed {seed}: torn: {page:?}");
            outcomes.insert(page[0]);
        }
    }
    assert_eq!(outcomes.len(), 2);
}

#[test]
fn without_a_cache_every_acknowledged_write_is_stable() {
    for seed in 0..50 {
        let (world, node) = world(seed, DiskConfig { volatile_cache: false, ..DiskConfig::default() });
        run(&world, node, async {
            let file = open();
            file.write_at(0, filled(1, PAGE), false).await.expect("written");
            file.write_zeroes(512, 512).await.expect("zeroed");
        });
        world.crash(node);
        assert_eq!(sectors(&world, node, 0, 8), [1, 0, 1, 1, 1, 1, 1, 1]);
    }
}

/// A log that appends stable records and then moves a stable head; killed at every step of time and at many seeds: the
/// head never names a record that is not there whole.
#[test]
fn a_crash_at_any_time_respects_the_order_of_stable_writes() {
    let mut heads = BTreeSet::new();
    for step in 0..150 {
        let (world, node) = world(step, DiskConfig::default());
        world
            .spawn_on(node, async {
                let file = open();
                for record in 1..=5_u8 {
                    let offset = u64::from(record) * PAGE as u64;
                    if record % 2 == 0 {
                        file.write_at(offset, filled(record, PAGE), true).await.expect("written");
                    } else {
                        file.write_at(offset, filled(record, PAGE), false).await.expect("written");
                        file.sync_data().await.expect("flushed");
                    }
                    file.write_at(0, filled(record, SECTOR), true).await.expect("written");
                }
            })
            .detach();
        world.run_for(US * 12 * step as u32).expect("no stall");
        world.crash(node);
        let head = sectors(&world, node, 0, 1)[0];
        for record in 1..=head {
            assert_eq!(sectors(&world, node, u64::from(record) * PAGE as u64, 8), [record; 8], "step {step}");
        }
        heads.insert(head);
    }
    assert_eq!(heads.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_flush_covers_only_what_had_ended_before_it_began() {
    let mut lost = false;
    for seed in 0..60 {
        let (world, node) = world(seed, DiskConfig::default());
        let ended_during_the_flush = run(&world, node, async {
            let file = open();
            let other = file.clone();
            let ended = Rc::new(Cell::new(false));
            let ends = Rc::clone(&ended);
            let write = task::spawn(async move {
                other.write_at(0, filled(1, SECTOR), false).await.expect("written");
                ends.set(true);
            });
            time::sleep(US).await; // The write is under way.
            file.sync_data().await.expect("flushed");
            let ended = ended.get();
            write.await;
            ended
        });
        world.crash(node);
        lost |= ended_during_the_flush && sectors(&world, node, 0, 1) == [0];
    }
    assert!(lost, "a write that ended during the flush was stable in all of 60 seeds");
}

#[test]
fn overlapping_operations_mix_by_sectors_only() {
    let (mut read_mixes, mut write_mixes) = (0, 0);
    for seed in 0..100 {
        let (world, node) = world(seed, DiskConfig::default());
        let read = run(&world, node, async {
            let file = open();
            file.write_at(0, filled(1, PAGE), true).await.expect("written");
            let writers = [2, 3].map(|value| {
                let file = file.clone();
                task::spawn(async move { file.write_at(0, filled(value, PAGE), false).await })
            });
            let (result, buf) = file.read_at(0, Buf::with_len(PAGE)).await;
            result.expect("read");
            for writer in writers {
                writer.await.expect("written");
            }
            buf.to_vec()
        });
        let values: BTreeSet<u8> = read
            .chunks(SECTOR)
            .map(|sector| {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a read tears a sector");
                sector[0]
            })
            .collect();
        assert!(values.iter().all(|value| (1..=3).contains(value)));
        read_mixes += usize::from(values.len() > 1);
        let last: BTreeSet<u8> = sectors(&world, node, 0, 8).into_iter().collect();
        assert!(!last.contains(&1));
        write_mixes += usize::from(last.len() > 1);
    }
    assert!(read_mixes > 5 && write_mixes > 5, "{read_mixes} mixed reads, {write_mixes} mixed writes");
}

#[test]
fn errors_come_by_the_dial_and_a_failed_flush_makes_nothing_stable() {
    let failing =
        |read_error_ppm, write_error_ppm| DiskConfig { read_error_ppm, write_error_ppm, ..DiskConfig::default() };
    let (mut changed, mut unchanged, mut lost) = (false, false, false);
    for seed in 0..60 {
        let (world, node) = world(seed, failing(1_000_000, 0));
        run(&world, node, async {
            let file = open();
            file.write_at(0, filled(1, PAGE), false).await.expect("written");
            let (result, buf) = file.read_at(0, Buf::with_len(PAGE)).await;
            assert_eq!(result.expect_err("the dial says so").raw_os_error(), Some(5));
            assert_eq!(buf.len(), PAGE);
        });
        world.set_disk_config(node, DISK, failing(0, 1_000_000));
        run(&world, node, async {
            let file = open();
            assert_eq!(file.sync_data().await.expect_err("the dial says so").raw_os_error(), Some(5));
            assert!(file.write_at(PAGE as u64, filled(2, PAGE), true).await.is_err());
        });
        for value in sectors(&world, node, PAGE as u64, 8) {
            changed |= value == 2;
            unchanged |= value == 0;
        }
        world.crash(node);
        lost |= sectors(&world, node, 0, 8).contains(&0);
        world.restart(node);
        world.calm();
        run(&world, node, async {
            let file = open();
            file.write_at(0, filled(9, PAGE), true).await.expect("calm");
        });
    }
    assert!(changed && unchanged, "a failed write changed something: {changed}, left something: {unchanged}");
    assert!(lost, "a failed flush made everything stable");
}

#[test]
fn a_misread_is_silent_and_the_next_read_is_good() {
    let (world, node) = world(1, DiskConfig { misread_ppm: 200_000, ..DiskConfig::default() });
    run(&world, node, async { open().write_at(0, filled(7, PAGE), true).await.expect("written") });
    let mut wrong = 0;
    for _ in 0..100 {
        let read = run(&world, node, async {
            let (result, buf) = open().read_at(0, Buf::with_len(PAGE)).await;
            result.expect("silently");
            buf.to_vec()
        });
        wrong += usize::from(read.iter().any(|byte| *byte != 7));
    }
    assert!((5..50).contains(&wrong), "{wrong} of 100");
    assert!(world.peek(node, DISK, 0, PAGE).iter().all(|byte| *byte == 7));
}

#[test]
fn corruption_is_silent_and_lasts_until_overwritten() {
    let (world, node) = world(1, DiskConfig::default());
    let write = || async { open().write_at(0, filled(7, PAGE), true).await.expect("written") };
    run(&world, node, write());
    world.corrupt(node, DISK, 100, 3);
    world.crash(node);
    world.restart(node);
    let read = run(&world, node, async {
        let (result, buf) = open().read_at(0, Buf::with_len(PAGE)).await;
        result.expect("silently");
        buf.to_vec()
    });
    let damaged: Vec<usize> = (0..PAGE).filter(|at| read[*at] != 7).collect();
    assert_eq!(damaged, [100, 101, 102]);
    run(&world, node, write());
    assert_eq!(world.peek(node, DISK, 0, PAGE), [7; PAGE]);
}

#[test]
fn an_exclusive_opener_is_alone_until_it_closes_or_dies() {
    let (world, node) = world(1, DiskConfig::default());
    let path = Path::new(DISK);
    run(&world, node, async move {
        let first = open();
        let clone = first.clone();
        drop(first);
        let busy = File::open(path, &OpenOptions::default()).err().expect("held by the clone");
        assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
        assert!(busy.to_string().contains(DISK), "{busy}");
        let shared = OpenOptions { exclusive: false, read_only: true, ..OpenOptions::default() };
        let reader = File::open(path, &shared).expect("shared openers do not mind");
        assert!(reader.write_at(0, filled(1, SECTOR), false).await.is_err(), "read-only");
        drop(clone);
        open();
    });
    let outlives = run(&world, node, async { open() });
    let again = run(&world, node, async { File::open(Path::new(DISK), &OpenOptions::default()).is_ok() });
    assert!(!again, "a handle that left its task still holds the lock");
    world.crash(node);
    world.restart(node);
    assert!(run(&world, node, async { File::open(Path::new(DISK), &OpenOptions::default()).is_ok() }));
    drop(outlives);
}

#[test]
fn wrong_calls_get_the_kernels_answers() {
    let (world, node) = world(1, DiskConfig::default());
    run(&world, node, async {
        let missing = File::open(Path::new("/missing"), &OpenOptions::default()).err().expect("not there");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let create = OpenOptions { create: Some(4096), ..OpenOptions::default() };
        let made = File::open(Path::new("/made"), &create).expect("created");
        assert_eq!((made.size(), made.is_block_device(), made.logical_block_size()), (4096, false, 512));
        let file = open();
        assert_eq!(file.size(), 1 << 20);
        let misaligned = file.write_at(100, filled(1, SECTOR), false).await.expect_err("direct");
        assert_eq!(misaligned.kind(), ErrorKind::InvalidInput);
        let (beyond, buf) = file.read_at((1 << 20) - SECTOR as u64, Buf::with_len(PAGE)).await;
        assert_eq!(beyond.expect_err("the end").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buf.len(), PAGE, "the buffer comes back");
        assert!(file.read_at(u64::MAX - 511, Buf::with_len(SECTOR)).await.0.is_err());
        assert!(file.write_at(u64::MAX - 511, filled(1, SECTOR), false).await.is_err());
    });
    let other = world.node("other");
    let file = run(&world, node, async { open() });
    let error = run(&world, other, async move { file.sync_data().await.expect_err("not this node's file") });
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Sets its flag when it is dropped.
struct Held(Rc<Cell<bool>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn a_dropped_write_goes_on_and_holds_what_it_was_given() {
    let slow = DiskConfig { delay: US * 1000..US * 1001, ..DiskConfig::default() };
    let (world, node) = world(1, slow);
    let released = Rc::new(Cell::new(false));
    let held = released.clone();
    run(&world, node, async move {
        let file = open();
        let write = file.write_at_holding(0, filled(5, PAGE), true, Held(held.clone()), |held, _| drop(held));
        assert!(time::timeout(US * 10, write).await.is_err());
        assert!(!held.get(), "the bytes may still change");
        time::sleep(US * 2000).await;
        assert!(held.get(), "the write has ended");
    });
    assert_eq!(sectors(&world, node, 0, 8), [5; 8]);
    released.set(false);
    let (held, order) = (Held(released.clone()), Rc::new(RefCell::new(vec![])));
    let log = order.clone();
    world
        .spawn_on(node, async move {
            let (result, _held) = open().write_at_holding(0, filled(6, PAGE), true, held, |held, _| drop(held)).await;
            log.borrow_mut().push(result.is_ok());
        })
        .detach();
    world.run_for(US * 10).expect("no stall");
    world.crash(node);
    assert!(released.get(), "power is off: nothing changes any more");
    assert!(order.borrow().is_empty(), "and nobody heard of an end");
}

#[test]
fn zeroing_and_holes_read_as_zeroes_and_are_writes() {
    let mut survived = BTreeSet::new();
    for seed in 0..40 {
        let (world, node) = world(seed, DiskConfig::default());
        run(&world, node, async {
            let file = open();
            file.write_at(0, filled(1, 2 * PAGE), true).await.expect("written");
            file.punch_hole(SECTOR as u64, SECTOR as u64).await.expect("punched");
            file.write_zeroes(PAGE as u64, 1 << 40).await.expect("clipped to the end");
        });
        assert_eq!(sectors(&world, node, 0, 3), [1, 0, 1]);
        assert_eq!(sectors(&world, node, PAGE as u64, 8), [0; 8]);
        world.crash(node);
        survived.insert(sectors(&world, node, SECTOR as u64, 1)[0]);
    }
    assert_eq!(survived.into_iter().collect::<Vec<_>>(), [0, 1], "an unsynced hole is kept or lost");
}
