//! What goes wrong at the wrong moment: a flush that fails when nobody waits for it, a read that fails while the drive is
//! opened, a caller that goes away before a flush, a superblock that is lost on a medium that has grown.

use std::path::Path;
use std::time::Duration;

use crate::drive_model::PATH;
use device::{
    Drive, DriveError, DriveNamespace, DriveOptions, Durability, FormatOptions, Lba, Namespace, NamespaceSpec,
};
use engine::sim::{DiskConfig, NodeId, SimConfig, World};
use engine::{Buf, View, task};

const BYTES: u64 = 5 << 20;

fn world(seed: u64) -> (World, NodeId) {
    let world = World::new(seed, SimConfig { complete_trace: true, ..SimConfig::default() });
    let node = world.node("n");
    world.disk(node, PATH, BYTES, calm());
    (world, node)
}

fn calm() -> DiskConfig {
    DiskConfig { torn: false, volatile_cache: false, ..DiskConfig::default() }
}

fn run<T: 'static>(world: &World, node: NodeId, future: impl Future<Output = T> + 'static) -> T {
    let task = world.spawn_on(node, future);
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"))
}

fn filled(with: u8) -> View {
    let mut buf = Buf::with_len(4096);
    buf.fill(with);
    buf.freeze()
}

fn format() -> FormatOptions {
    FormatOptions { extent_bytes: 64 << 10, journal_bytes: Some(512 << 10), ..FormatOptions::default() }
}

/// A drive with a namespace of which one block is written.
async fn furnished() -> (Drive, DriveNamespace) {
    let drive = Drive::format(Path::new(PATH), &format()).await.expect("formatted");
    let spec = NamespaceSpec { name: "a".into(), bytes: 1 << 20, block_size: 4096 };
    let a = drive.create(&spec).await.expect("created");
    a.write(Lba(0), filled(1), Durability::Stable).await.expect("written");
    (drive, a)
}

async fn open() -> Result<(Drive, DriveNamespace), DriveError> {
    let drive = Drive::open(Path::new(PATH), &DriveOptions::default()).await?;
    let a = drive.namespace(drive.find("a")?)?;
    Ok((drive, a))
}

async fn byte_at(namespace: &DriveNamespace, lba: u64) -> u8 {
    let (result, found) = namespace.read(Lba(lba), Buf::with_len(4096)).await;
    result.unwrap_or_else(|error| panic!("block {lba}: {error}"));
    found[0]
}

/// The flush of a checkpoint failed after the caller of the checkpoint had gone. Nobody was told, and the next flush, which went
/// well, was taken to have made stable what this one had lost.
#[test]
fn a_failed_flush_of_a_checkpoint_latches_though_its_caller_is_gone() {
    let mut failed = 0;
    for after in (0..2_000).step_by(25) {
        let (world, node) = world(after);
        let (drive, a) = run(&world, node, furnished());
        let going = drive.clone();
        let caller = world.spawn_on(node, async move { going.checkpoint().await });
        world.run_for(Duration::from_micros(after)).unwrap_or_else(|stalled| panic!("{stalled}"));
        // From now on what is begun fails; the caller is gone before it ends.
        world.set_disk_config(node, PATH, DiskConfig { write_error_ppm: 1_000_000, ..calm() });
        let before = world.trace().len();
        world.run_for(Duration::from_micros(150)).unwrap_or_else(|stalled| panic!("{stalled}"));
        let syncing = world.trace()[before..].contains(" sync");
        drop(caller);
        world.run_for(Duration::from_millis(5)).unwrap_or_else(|stalled| panic!("{stalled}"));
        let trace = world.trace();
        world.set_disk_config(node, PATH, calm());
        let lost = trace[before..].contains("EIO");
        run(&world, node, async move {
            assert_eq!(drive.usage().fault.is_some(), lost, "after {after} us: a failure is told, and nothing else is");
            drop(a);
        });
        failed += u64::from(lost && syncing);
    }
    assert!(failed > 2, "only {failed} flushes failed");
}

/// A block was being written over when the power failed, and could not be read when the drive was opened. It was given up for
/// what the journal said last, for good, though the old content was there, acknowledged and stable.
#[test]
fn a_read_error_while_opening_gives_nothing_up() {
    let (mut refused, mut old) = (0, 0);
    for moment in (0..600).step_by(12) {
        let (world, node) = world(moment);
        let (drive, a) = run(&world, node, furnished());
        let writer = world.spawn_on(node, async move { a.write(Lba(0), filled(2), Durability::Stable).await });
        world.run_for(Duration::from_micros(moment)).unwrap_or_else(|stalled| panic!("{stalled}"));
        world.crash(node);
        drop((writer, drive));
        world.restart(node);
        let flaky = DiskConfig { read_error_ppm: 100_000, ..calm() };
        for attempt in 0.. {
            assert!(attempt < 1000, "it never opens");
            world.set_disk_config(node, PATH, flaky.clone());
            let opened = run(&world, node, open());
            world.set_disk_config(node, PATH, calm());
            match opened {
                Err(error) => refused += u64::from(matches!(error, DriveError::Undecided { .. })),
                Ok((_drive, a)) => {
                    old += u64::from(run(&world, node, async move { byte_at(&a, 0).await }) == 1);
                    break;
                }
            }
        }
    }
    assert!(refused > 0 && old > 5, "refused {refused}, old {old}: nothing was tested");
}

/// A block was written for the first time, and its writer went away while the record that says so waited for the frame before
/// it. Others read the block, and flushed; after a crash it was zeroes.
#[test]
fn what_can_be_read_before_a_flush_is_there_after_a_crash() {
    let mut read = 0;
    for after in (0..900).step_by(3) {
        let (world, node) = world(after);
        let (drive, a) = run(&world, node, furnished());
        let other = a.clone();
        // Writes of another's keep the journal busy.
        let others = world.spawn_on(node, async move {
            for step in 0..8 {
                other.write(Lba(32 + step), filled(3), Durability::Stable).await.expect("written");
            }
        });
        let found = run(&world, node, async move {
            let writer = a.clone();
            let writer = task::spawn(async move { writer.write(Lba(1), filled(2), Durability::Stable).await });
            engine::time::sleep(Duration::from_micros(after)).await;
            writer.cancel().await;
            let found = byte_at(&a, 1).await;
            a.flush().await.expect("flushed");
            found
        });
        world.crash(node);
        drop((others, drive));
        world.restart(node);
        run(&world, node, async move {
            let (_drive, a) = open().await.expect("opened");
            assert!(byte_at(&a, 1).await >= found, "after {after} us: what was read is gone");
        });
        read += u64::from(found);
    }
    assert!(read > 20, "only {read}: nothing was tested");
}

/// The first superblock was damaged, and the medium had grown, so the second one was not at its end: the drive was none, and
/// `format` took the medium without being forced.
#[test]
fn a_drive_is_found_on_a_medium_that_has_grown() {
    for (at, len) in [(0, 8), (0, 4096), (100, 1)] {
        let (world, node) = world(1);
        drop(run(&world, node, furnished()));
        world.crash(node);
        world.restart(node);
        world.corrupt(node, PATH, at, len);
        world.disk(node, PATH, BYTES + (3 << 20), calm());
        run(&world, node, async {
            let formatted = Drive::format(Path::new(PATH), &format()).await;
            assert!(matches!(formatted, Err(DriveError::IsADrive { .. })), "{formatted:?}");
            let (drive, a) = open().await.expect("opened");
            assert_eq!(byte_at(&a, 0).await, 1);
            let report = drive.check(|_, _| {}).await.expect("a check");
            assert_eq!(report.faults, Vec::<String>::new(), "the first superblock is mended");
        });
    }
}
