//! Callers that go away, and damage that another copy makes good: what a drive must survive besides a loss of power.

use std::path::Path;
use std::time::Duration;

use crate::drive_model::PATH;
use device::{
    Drive, DriveError, DriveNamespace, DriveOptions, Durability, FormatOptions, Lba, Namespace, NamespaceSpec,
};
use engine::job::Job;
use engine::sim::{DiskConfig, NodeId, SimConfig, World};
use engine::{Buf, View, task, time};

fn world(seed: u64, bytes: u64) -> (World, NodeId) {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    world.disk(node, PATH, bytes, DiskConfig { volatile_cache: false, ..DiskConfig::default() });
    (world, node)
}

fn format(unit: u32, journal_bytes: u64) -> FormatOptions {
    FormatOptions { extent_bytes: 64 << 10, unit, journal_bytes: Some(journal_bytes), ..FormatOptions::default() }
}

fn filled(bytes: usize, with: u8) -> View {
    let mut buf = Buf::with_len(bytes);
    buf.fill(with);
    buf.freeze()
}

async fn reopen() -> Drive {
    Drive::open(Path::new(PATH), &DriveOptions::default()).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn create(drive: &Drive, name: &str, bytes: u64, block_size: u32) -> DriveNamespace {
    drive.create(&NamespaceSpec { name: name.into(), bytes, block_size }).await.expect("created")
}

async fn holds(namespace: &DriveNamespace, lba: u64, bytes: usize, with: u8) -> bool {
    let (result, found) = namespace.read(Lba(lba), Buf::with_len(bytes)).await;
    result.unwrap_or_else(|error| panic!("block {lba}: {error}"));
    found.iter().all(|&byte| byte == with)
}

fn run<T: 'static>(world: &World, node: NodeId, future: impl Future<Output = T> + 'static) -> T {
    let task = world.spawn_on(node, future);
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"))
}

/// Writers that are dropped while they wait leave records behind that nobody has reserved room for any more: hundreds of them,
/// gone within one write of the journal, used to run over frames that a crash still needed.
#[test]
fn records_of_dropped_writers_do_not_overrun_the_journal() {
    const BYTES: usize = 64 << 10;
    for seed in 0..2 {
        let (world, node) = world(seed, 16 << 20);
        run(&world, node, async {
            let drive = Drive::format(Path::new(PATH), &format(512, 512 << 10)).await.expect("formatted");
            let a = create(&drive, "a", 8 << 20, 512).await;
            for lba in 0..64 {
                a.write(Lba(lba * 128), filled(BYTES, 1), Durability::Stable).await.expect("written");
            }
            drive.checkpoint().await.expect("a checkpoint");
            a.write(Lba(0), filled(BYTES, 2), Durability::Stable).await.expect("written");
            for round in 0..24 {
                let writers: Vec<_> = (1..64)
                    .map(|lba| {
                        let a = a.clone();
                        task::spawn(async move { a.write(Lba(lba * 128), filled(BYTES, 9), Durability::Stable).await })
                    })
                    .collect();
                time::sleep(Duration::from_nanos(1 + round)).await;
                for writer in writers {
                    writer.cancel().await;
                }
            }
            a.write(Lba(128), filled(BYTES, 3), Durability::Stable).await.expect("written");
        });
        world.crash(node);
        world.restart(node);
        run(&world, node, async {
            let drive = reopen().await;
            let a = drive.namespace(drive.find("a").expect("it is there")).expect("opened");
            assert!(holds(&a, 0, BYTES, 2).await && holds(&a, 128, BYTES, 3).await);
            for lba in 2..64 {
                assert!(holds(&a, lba * 128, BYTES, 1).await || holds(&a, lba * 128, BYTES, 9).await);
            }
        });
    }
}

/// A checkpoint whose caller went away may become valid all the same. The drive used not to know, and its next checkpoint
/// overwrote what the valid one referred to.
#[test]
fn a_checkpoint_whose_caller_goes_away_is_no_trap() {
    for after in (20..1500).step_by(20) {
        let (world, node) = world(after, 5 << 20);
        run(&world, node, async move {
            let drive = Drive::format(Path::new(PATH), &format(4096, 512 << 10)).await.expect("formatted");
            let a = create(&drive, "a", 2 << 20, 4096).await;
            a.write(Lba(0), filled(4096, 1), Durability::Stable).await.expect("written");
            let going = drive.clone();
            let going = task::spawn(async move { going.checkpoint().await });
            time::sleep(Duration::from_micros(after)).await;
            going.cancel().await;
            time::sleep(Duration::from_millis(20)).await;
            a.write(Lba(1), filled(4096, 2), Durability::Stable).await.expect("written");
            let next = drive.clone();
            task::spawn(async move { next.checkpoint().await }).detach();
            time::sleep(Duration::from_micros(after % 400)).await;
        });
        world.crash(node);
        world.restart(node);
        run(&world, node, async {
            let drive = reopen().await;
            let a = drive.namespace(drive.find("a").expect("it is there")).expect("opened");
            assert!(holds(&a, 0, 4096, 1).await && holds(&a, 1, 4096, 2).await);
        });
    }
}

/// A namespace that is grown while it is deleted stays deleted.
#[test]
fn growing_does_not_revive_what_is_deleted() {
    let (world, node) = world(1, 5 << 20);
    run(&world, node, async {
        let drive = Drive::format(Path::new(PATH), &format(4096, 512 << 10)).await.expect("formatted");
        let a = create(&drive, "a", 1 << 20, 4096).await;
        let (grower, deleter, number) = (drive.clone(), drive.clone(), a.number());
        let growing = task::spawn(async move { grower.grow(number, 2 << 20).await });
        let deleting = task::spawn(async move { deleter.delete(number).await });
        let (grown, deleted) = (growing.await, deleting.await);
        assert!(matches!(grown, Ok(()) | Err(DriveError::NoNamespace(_))), "{grown:?}");
        deleted.expect("deleted");
        assert_eq!(a.info().blocks, 0, "a namespace that is gone has no blocks");
    });
}

/// Both headers of one checkpoint slot are gone. Where the other slot and the journal still tell everything the drive opens;
/// where the journal says that it goes on behind what is lost, it refuses.
#[test]
fn a_damaged_checkpoint_slot_is_made_good_by_the_other() {
    const BYTES: u64 = 5 << 20;
    let (mut opened, mut refused) = (0, 0);
    for (lost, written_after) in [(0_u64, false), (1, false), (0, true), (1, true)] {
        let (world, node) = world(9, BYTES);
        run(&world, node, async move {
            let drive = Drive::format(Path::new(PATH), &format(4096, 512 << 10)).await.expect("formatted");
            let a = create(&drive, "a", 1 << 20, 4096).await;
            a.write(Lba(0), filled(4096, 1), Durability::Stable).await.expect("written");
            drive.checkpoint().await.expect("a checkpoint");
            a.write(Lba(1), filled(4096, 2), Durability::Stable).await.expect("written");
            a.write(Lba(0), filled(4096, 3), Durability::Stable).await.expect("written");
            drive.checkpoint().await.expect("a checkpoint");
            if written_after {
                a.write(Lba(2), filled(4096, 4), Durability::Stable).await.expect("written");
            }
        });
        world.crash(node);
        world.restart(node);
        let medium = world.peek(node, PATH, 0, BYTES as usize);
        let heads: Vec<usize> = medium
            .chunks_exact(4096)
            .enumerate()
            .filter(|(_, page)| page.starts_with(b"YGCHECK1"))
            .map(|(at, _)| at)
            .collect();
        assert_eq!(heads.len(), 4, "two slots with two headers each");
        for head in &heads[lost as usize * 2..][..2] {
            world.corrupt(node, PATH, *head as u64 * 4096 + 20, 1);
        }
        let opens = run(&world, node, async move {
            match Drive::open(Path::new(PATH), &DriveOptions::default()).await {
                Ok(drive) => {
                    let a = drive.namespace(drive.find("a").expect("it is there")).expect("opened");
                    assert!(holds(&a, 0, 4096, 3).await && holds(&a, 1, 4096, 2).await);
                    assert!(holds(&a, 2, 4096, if written_after { 4 } else { 0 }).await);
                    let report = drive.check(|_, _| {}).await.expect("a check");
                    assert_eq!(report.faults, Vec::<String>::new(), "the checkpoint at the opening has mended it");
                    true
                }
                Err(DriveError::Damaged { .. }) => false,
                Err(other) => panic!("{other}"),
            }
        });
        (opened, refused) = (opened + usize::from(opens), refused + usize::from(!opens));
    }
    assert_eq!((opened, refused), (3, 1), "only what was written behind the lost checkpoint is reason to refuse");
}

/// A checksum page is damaged: scrub and check say whose blocks are lost, and go on to the others.
#[test]
fn a_damaged_checksum_page_is_told_with_those_it_concerns() {
    let (world, node) = world(3, 16 << 20);
    let dump = run(&world, node, async {
        let drive = Drive::format(Path::new(PATH), &format(4096, 512 << 10)).await.expect("formatted");
        for name in ["a", "b"] {
            let namespace = create(&drive, name, 2 << 20, 4096).await;
            for part in 0..2 {
                let data = filled(1 << 20, 1);
                namespace.write(Lba(part * 256), data, Durability::Stable).await.expect("written");
            }
        }
        drive.checkpoint().await.expect("a checkpoint");
        drive.dump().await.expect("a dump")
    });
    // The first page has the checksums of 512 blocks, which are those of "a".
    let at = dump.lines().find_map(|line| line.trim().strip_prefix("pages")).expect("the dump says where");
    let at: u64 = at.split_whitespace().next().and_then(|at| at.parse().ok()).expect("a number");
    let copy = u64::from(dump.contains("checksum page 0: copy 1"));
    world.corrupt(node, PATH, at + copy * 4096 + 100, 1);
    run(&world, node, async {
        let options = DriveOptions { read_only: true, ..DriveOptions::default() };
        let drive = Drive::open(Path::new(PATH), &options).await.expect("opened");
        let report = drive.check(|_, _| {}).await.expect("a check");
        assert_eq!(report.faults.len(), 1, "{:?}", report.faults);
        assert!(report.faults[0].ends_with("unreadable: 2097152 bytes of a"), "{}", report.faults[0]);
        let scrub = drive.scrub(&Job::unlisted(None, None)).await.expect("scrubbed");
        assert_eq!((scrub.damaged, scrub.bytes), (512, 2 << 20));
        assert!(scrub.damage.iter().all(|damage| damage.namespace == "a"), "{:?}", scrub.damage);
    });
}
