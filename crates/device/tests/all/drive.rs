//! Namespaces of a drive: the checks of every kind, and what only a drive has.

use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use device::{
    AnyNamespace, Drive, DriveError, DriveOptions, Durability, Error, FormatOptions, Lba, Namespace, NamespaceSpec,
    Writability, conformance,
};
use engine::sim::{SimConfig, World};
use engine::{Buf, Reactor, ReactorConfig, View, time};

const PATH: &str = "/drive";
const BYTES: u64 = 24 << 20;
const EXTENT: u64 = 64 << 10;

/// Runs `main` on the real reactor; a test that hangs fails.
fn real<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

fn simulated<T: 'static>(seed: u64, main: impl Future<Output = T> + 'static) -> T {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    let task = world.spawn_on(node, main);
    world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"))
}

fn options(unit: u32) -> FormatOptions {
    FormatOptions { create: Some(BYTES), extent_bytes: 64 << 10, unit, ..FormatOptions::default() }
}

fn spec(name: &str, bytes: u64, block_size: u32) -> NamespaceSpec {
    NamespaceSpec { name: name.into(), bytes, block_size }
}

fn filled(byte: u8, blocks: usize) -> View {
    let mut buf = Buf::with_len(4096 * blocks);
    buf.fill(byte);
    buf.freeze()
}

async fn byte_at(namespace: &impl Namespace, lba: u64) -> Result<u8, Error> {
    let (result, buf) = namespace.read(Lba(lba), Buf::with_len(4096)).await;
    result?;
    assert!(buf.iter().all(|&byte| byte == buf[0]), "block {lba} is torn");
    Ok(buf[0])
}

async fn sound(drive: &Drive) {
    let report = drive.check(|_, _| {}).await.expect("a check");
    assert_eq!(report.faults, Vec::<String>::new());
}

/// Snapshots took the last entries of the maps, and every write that needed an extent was refused beside free ones.
#[test]
fn snapshots_leave_room_to_write_to_every_free_extent() {
    simulated(1, async {
        let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
        let extents = drive.usage().bytes / EXTENT;
        let source = drive.create(&spec("source", extents * EXTENT, 4096)).await.expect("made");
        let half = extents / 2;
        for extent in 0..half {
            source.write(Lba(extent * 16), filled(1, 1), Durability::Cached).await.expect("written");
        }
        let number = drive.namespaces()[0].number;
        let mut taken = 0;
        let refused = loop {
            match drive.snapshot(number, &format!("copy-{taken}")).await {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, DriveError::MetadataFull { .. }) && taken > 2, "{taken} taken: {refused}");
        // First where a snapshot has an extent too, then what nobody has: all that is free.
        for extent in (0..half / 2).chain(half..extents - half / 2) {
            source.write(Lba(extent * 16), filled(2, 1), Durability::Stable).await.expect("room for every free extent");
        }
        let more = source.write(Lba((extents - 1) * 16), filled(2, 1), Durability::Stable).await;
        assert!(matches!(more, Err(Error::OutOfSpace)), "{more:?}");
        sound(&drive).await;
    });
}

#[test]
fn keeps_every_promise_in_both_worlds() {
    for (unit, block_size) in [(4096, 4096), (512, 512), (512, 4096)] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("drive");
        real(async {
            let drive = Drive::format(&path, &options(unit)).await.expect("formatted");
            let namespace = drive.create(&spec("a", 4 << 20, block_size)).await.expect("created");
            conformance::check_all(Rc::new(AnyNamespace::from(namespace)), 1).await;
            sound(&drive).await;
        });
        for seed in 0..6 {
            simulated(seed, async move {
                let drive = Drive::format(Path::new(PATH), &options(unit)).await.expect("formatted");
                let namespace = drive.create(&spec("a", 4 << 20, block_size)).await.expect("created");
                conformance::check_all(Rc::new(namespace), seed).await;
                sound(&drive).await;
            });
        }
    }
}

/// A clone of something that holds data keeps every promise too: each command may have to copy first.
#[test]
fn clones_keep_every_promise() {
    for seed in 0..4 {
        simulated(seed, async move {
            let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
            let namespace = drive.create(&spec("a", 4 << 20, 4096)).await.expect("created");
            for lba in (0..1024).step_by(16) {
                namespace.write(Lba(lba), filled(9, 16), Durability::Cached).await.expect("written");
            }
            let before = drive.snapshot(namespace.number(), "s").await.expect("a snapshot");
            let states = (namespace.writability(), before.writability());
            assert_eq!(states, (Writability::Writable, Writability::ReadOnly));
            let clone = drive.clone_of(before.number(), "c").await.expect("a clone");
            conformance::check_all(Rc::new(clone), seed).await;
            for lba in 0..1024 {
                assert_eq!(byte_at(&before, lba).await, Ok(9), "the snapshot has changed at {lba}");
                assert_eq!(byte_at(&namespace, lba).await, Ok(9), "the origin has changed at {lba}");
            }
            sound(&drive).await;
        });
    }
}

#[test]
fn reactors_share_a_drive() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("drive");
    let (drive, namespace) = real(async {
        let drive = Drive::format(&path, &options(512)).await.expect("formatted");
        let namespace = drive.create(&spec("a", 4 << 20, 512)).await.expect("created");
        (drive, AnyNamespace::from(namespace))
    });
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let namespace = namespace.clone();
            std::thread::spawn(move || real(conformance::increments(Rc::new(namespace), 4, 25)))
        })
        .collect();
    let added: u64 = threads.into_iter().map(|thread| thread.join().expect("no promise was broken")).sum();
    assert_eq!(real(conformance::counter(&namespace)), added, "a compare-and-write lost another thread's increment");
    real(sound(&drive));
}

#[test]
fn room_is_taken_when_written_and_given_back() {
    simulated(1, async {
        let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
        let namespace = drive.create(&spec("thin", 1 << 40, 4096)).await.expect("more than there is");
        assert_eq!((namespace.used_blocks(), drive.usage().used_bytes), (0, 0));
        namespace.write(Lba(1 << 20), filled(1, 1), Durability::Stable).await.expect("written");
        assert_eq!((namespace.used_blocks(), drive.usage().used_bytes), (16, 64 << 10));
        namespace.deallocate(Lba((1 << 20) + 1), 15).await.expect("deallocated");
        assert_eq!(namespace.used_blocks(), 16, "a part of an extent gives nothing back");
        namespace.deallocate(Lba(0), 1 << 28).await.expect("deallocated");
        assert_eq!((namespace.used_blocks(), drive.usage().used_bytes), (0, 0));
        sound(&drive).await;
    });
}

#[test]
fn a_full_drive_is_out_of_space_and_stays_in_service() {
    simulated(1, async {
        let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
        let namespace = drive.create(&spec("thin", 1 << 30, 4096)).await.expect("created");
        let extents = drive.usage().bytes / (64 << 10);
        for extent in 0..extents {
            namespace.write(Lba(extent * 16), filled(3, 1), Durability::Stable).await.expect("there is room");
        }
        let beyond = Lba(extents * 16);
        // One block of the last extent and one of the next: nothing of it may be written.
        let full = namespace.write(Lba(beyond.0 - 1), filled(4, 2), Durability::Stable).await;
        assert_eq!(full, Err(Error::OutOfSpace));
        assert_eq!(byte_at(&namespace, beyond.0 - 1).await, Ok(0));
        assert_eq!(namespace.write_uncorrectable(beyond, 1).await, Err(Error::OutOfSpace));
        let snapshot = drive.snapshot(namespace.number(), "s").await.expect("takes no room");
        assert_eq!(namespace.write(Lba(0), filled(5, 1), Durability::Stable).await, Err(Error::OutOfSpace));
        assert_eq!(byte_at(&namespace, 0).await, Ok(3));
        drive.delete(snapshot.number()).await.expect("deleted");
        namespace.write(Lba(0), filled(5, 1), Durability::Stable).await.expect("its own again");
        namespace.deallocate(Lba(16), 16).await.expect("deallocated");
        namespace.write(beyond, filled(6, 1), Durability::Stable).await.expect("there is room again");
        assert_eq!(byte_at(&namespace, beyond.0).await, Ok(6));
        assert_eq!(drive.usage().fault, None);
        sound(&drive).await;
    });
}

#[test]
fn namespaces_come_grow_and_go() {
    simulated(1, async {
        let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
        let a = drive.create(&spec("a", 1 << 20, 4096)).await.expect("created");
        a.write(Lba(255), filled(1, 1), Durability::Stable).await.expect("written");
        drive.grow(a.number(), 2 << 20).await.expect("grown");
        assert_eq!((a.info().blocks, byte_at(&a, 255).await, byte_at(&a, 256).await), (512, Ok(1), Ok(0)));
        let snapshot = drive.snapshot(a.number(), "s").await.expect("a snapshot");
        assert_ne!(snapshot.info().nguid, a.info().nguid);
        let refused = snapshot.write(Lba(0), filled(1, 1), Durability::Stable).await;
        assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
        a.write(Lba(255), filled(2, 1), Durability::Stable).await.expect("written");
        drive.delete(a.number()).await.expect("deleted");
        assert!(matches!(byte_at(&a, 255).await, Err(Error::OutOfRange { .. })));
        let late = a.write(Lba(0), filled(3, 1), Durability::Stable).await;
        assert!(matches!(late, Err(Error::OutOfRange { .. })), "{late:?}");
        assert_eq!(byte_at(&snapshot, 255).await, Ok(1));
        assert!(matches!(drive.delete(a.number()).await, Err(DriveError::NoNamespace(_))));
        let again = drive.create(&spec("a", 1 << 20, 4096)).await.expect("the name is free");
        assert!(again.number() > snapshot.number(), "a number is never used again");
        let usage: Vec<_> =
            drive.namespaces().into_iter().map(|one| (one.name, one.read_only, one.own_bytes)).collect();
        assert_eq!(usage, [("s".to_owned(), true, 64 << 10), ("a".to_owned(), false, 0)]);
        sound(&drive).await;
    });
}

#[test]
fn what_can_not_be_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("drive");
    real(async {
        let bad = FormatOptions { extent_bytes: 100_000, ..options(4096) };
        assert!(matches!(Drive::format(&path, &bad).await, Err(DriveError::ExtentSize(100_000))));
        let bad = FormatOptions { unit: 1024, ..options(4096) };
        assert!(matches!(Drive::format(&path, &bad).await, Err(DriveError::Options(_))));
        let bad = FormatOptions { journal_bytes: Some(4096), ..options(4096) };
        assert!(matches!(Drive::format(&path, &bad).await, Err(DriveError::Options(_))));
        let small = directory.path().join("small");
        let bad = FormatOptions { create: Some(1 << 20), ..options(4096) };
        match Drive::format(&small, &bad).await {
            Err(DriveError::TooSmall { bytes_min, .. }) => {
                std::fs::remove_file(&small).expect("removed");
                let enough = FormatOptions { create: Some(bytes_min), ..options(4096) };
                Drive::format(&small, &enough).await.expect("what is said to be enough is");
            }
            other => panic!("a small drive: {other:?}"),
        }
        std::fs::write(directory.path().join("other"), vec![7; 8 << 20]).expect("a file");
        let other = Drive::open(&directory.path().join("other"), &DriveOptions::default()).await;
        assert!(matches!(other, Err(DriveError::NotADrive { .. })), "{other:?}");

        let drive = Drive::format(&path, &options(4096)).await.expect("formatted");
        let second = Drive::open(&path, &DriveOptions::default()).await;
        assert!(matches!(second, Err(DriveError::Busy { .. })), "{second:?}");
        for name in ["", "a/b", "-a", "ä", &"x".repeat(65)] {
            assert!(matches!(drive.create(&spec(name, 4096, 4096)).await, Err(DriveError::Name(_))), "{name:?}");
        }
        assert!(matches!(drive.create(&spec("a", 5000, 4096)).await, Err(DriveError::Size { .. })));
        assert!(matches!(drive.create(&spec("a", 4096, 512)).await, Err(DriveError::BlockSize { .. })));
        let a = drive.create(&spec("a", 8192, 4096)).await.expect("created");
        assert!(matches!(drive.create(&spec("a", 8192, 4096)).await, Err(DriveError::NameTaken(_))));
        assert!(matches!(drive.grow(a.number(), 4096).await, Err(DriveError::Shrink { .. })));
        let snapshot = drive.snapshot(a.number(), "s").await.expect("a snapshot");
        assert!(matches!(drive.grow(snapshot.number(), 1 << 20).await, Err(DriveError::Snapshot(_))));
        drop((drive, a, snapshot));
        assert!(matches!(Drive::format(&path, &options(4096)).await, Err(DriveError::IsADrive { .. })));
        let look = DriveOptions { read_only: true, ..DriveOptions::default() };
        let drive = Drive::open(&path, &look).await.expect("opened to look");
        assert!(matches!(drive.delete(1).await, Err(DriveError::ReadOnly(_))));
        let a = drive.namespace(drive.find("a").expect("it is there")).expect("opened");
        let refused = a.write(Lba(0), filled(1, 1), Durability::Cached).await;
        assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
        assert_eq!(a.flush().await, Ok(()));
        let words = drive.dump().await.expect("a dump");
        for word in ["drive ", "checkpoint slot 1", "snapshot 2 \"s\"", "journal 0", "Create {"] {
            assert!(words.contains(word), "the dump should say {word:?}:\n{words}");
        }
    });
}

/// A file system that was named by mistake was gone without a question.
#[test]
fn what_is_not_blank_is_formatted_by_force_alone() {
    real(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        for place in [1080, BYTES as usize - 4096] {
            let mut bytes = vec![0; BYTES as usize];
            bytes[place] = 7;
            std::fs::write(&path, &bytes).expect("there is room");
            let refused = Drive::format(&path, &options(4096)).await;
            assert!(matches!(refused, Err(DriveError::InUse { .. })), "{refused:?}");
            assert!(std::fs::read(&path).expect("it is there") == bytes, "it was changed");
            let forced = FormatOptions { force: true, ..options(4096) };
            drop(Drive::format(&path, &forced).await.expect("it was said so"));
        }
    });
}

/// A checksum cache smaller than what is in use: pages go and come, and carry what they had.
#[test]
fn a_small_cache_forgets_nothing() {
    simulated(3, async {
        let format =
            FormatOptions { create: Some(96 << 20), extent_bytes: 1 << 20, unit: 512, ..FormatOptions::default() };
        drop(Drive::format(Path::new(PATH), &format).await.expect("formatted"));
        let small = DriveOptions { cache_bytes: 0, ..DriveOptions::default() };
        let drive = Drive::open(Path::new(PATH), &small).await.expect("opened");
        let namespace = drive.create(&spec("a", 64 << 20, 4096)).await.expect("created");
        // A page of checksums is 256 KiB of data here: 240 of them pass through a cache of 64.
        for round in 0..3_u64 {
            for lba in (0..15_360).step_by(64) {
                let byte = (lba / 64 + round) as u8;
                namespace.write(Lba(lba + round), filled(byte, 1), Durability::Cached).await.expect("written");
            }
        }
        drop(namespace);
        drive.close().await.expect("closed");
        let drive = Drive::open(Path::new(PATH), &small).await.expect("opened again");
        let namespace = drive.namespace(drive.find("a").expect("it is there")).expect("opened");
        for round in (0..3_u64).rev() {
            for lba in (0..15_360).step_by(64) {
                assert_eq!(
                    byte_at(&namespace, lba + round).await,
                    Ok((lba / 64 + round) as u8),
                    "block {lba}, round {round}"
                );
            }
        }
        sound(&drive).await;
    });
}

/// A write whose future is dropped (its connection died) at any of its steps: the block is old or new, for good, and a flush
/// that follows does not make recovery expect what was never written.
#[test]
fn a_dropped_write_leaves_the_old_or_the_new() {
    let mut seen = [0; 2];
    for seed in 0..120 {
        let world = World::new(seed, SimConfig::default());
        let node = world.node("n");
        let task = world.spawn_on(node, async move {
            let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
            let namespace = drive.create(&spec("a", 1 << 20, 4096)).await.expect("created");
            namespace.write(Lba(0), filled(1, 3), Durability::Stable).await.expect("written");
            let first = namespace.write(Lba(1), filled(2, 1), Durability::Cached);
            let _dropped = time::timeout(Duration::from_micros(seed * 3), first).await;
            let found = byte_at(&namespace, 1).await.expect("old or new");
            // What was issued has ended by now, for the read waited for its range; what was not never will be.
            namespace.flush().await.expect("flushed");
            // One more frame tells recovery what the flush has proved.
            namespace.write(Lba(200), filled(3, 1), Durability::Stable).await.expect("written");
            found
        });
        let found = world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        world.crash(node);
        world.restart(node);
        let task = world.spawn_on(node, async move {
            let drive = Drive::open(Path::new(PATH), &DriveOptions::default()).await.expect("opened");
            let namespace = drive.namespace(drive.find("a").expect("it is there")).expect("opened");
            assert_eq!(byte_at(&namespace, 1).await, Ok(found), "what was read before the crash is there after it");
            sound(&drive).await;
        });
        world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        seen[usize::from(found - 1)] += 1;
    }
    assert!(seen[0] > 10 && seen[1] > 10, "old in {} runs, new in {}: nothing was tested", seen[0], seen[1]);
}

/// With extents of 64 KiB a namespace of 2^49 bytes has more of them than 32 bits can number. The number was cut: what was
/// written at 2^48 was found at 0.
#[test]
fn a_namespace_has_no_more_extents_than_their_numbers_can_tell() {
    simulated(4, async {
        let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
        let bytes_max = (u64::from(u32::MAX) - 1) * (64 << 10);
        for bytes in [bytes_max + 4096, 1 << 49] {
            let refused = drive.create(&spec("large", bytes, 4096)).await;
            assert!(
                matches!(refused, Err(DriveError::Size { bytes_max: most, .. }) if most == bytes_max),
                "{refused:?}"
            );
        }
        let namespace = drive.create(&spec("a", bytes_max, 4096)).await.expect("created");
        let grown = namespace.grow(bytes_max + 4096).await.expect_err("too large").to_string();
        assert!(grown.contains("larger extents"), "{grown}");
        let last = namespace.info().blocks - 1;
        namespace.write(Lba(0), filled(1, 1), Durability::Stable).await.expect("written");
        namespace.write(Lba(last), filled(2, 1), Durability::Stable).await.expect("written");
        drop(namespace);
        drive.close().await.expect("closed");
        let drive = Drive::open(Path::new(PATH), &DriveOptions::default()).await.expect("opened again");
        let namespace = drive.namespace(drive.find("a").expect("it is there")).expect("opened");
        assert_eq!((byte_at(&namespace, 0).await, byte_at(&namespace, last).await), (Ok(1), Ok(2)));
        sound(&drive).await;
    });
}

/// A namespace that is no multiple of extents never gave its last one back: no range covers what lies behind its end.
#[test]
fn the_last_extent_comes_free_though_the_namespace_ends_within_it() {
    simulated(5, async {
        let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
        let a = drive.create(&spec("a", 40 * 4096, 4096)).await.expect("created");
        a.write(Lba(0), filled(1, 40), Durability::Stable).await.expect("written");
        assert_eq!(a.allocated_bytes(), 3 * (64 << 10));
        a.deallocate(Lba(32), 7).await.expect("deallocated");
        assert_eq!((a.allocated_bytes(), byte_at(&a, 39).await), (3 * (64 << 10), Ok(1)), "a block of it is left");
        a.deallocate(Lba(17), 23).await.expect("deallocated");
        assert_eq!((a.allocated_bytes(), byte_at(&a, 16).await), (2 * (64 << 10), Ok(1)));
        a.write(Lba(39), filled(2, 1), Durability::Stable).await.expect("written");
        let snapshot = drive.snapshot(a.number(), "s").await.expect("a snapshot");
        a.grow(48 * 4096).await.expect("grown");
        a.deallocate(Lba(32), 8).await.expect("deallocated");
        assert_eq!((byte_at(&a, 39).await, byte_at(&snapshot, 39).await), (Ok(0), Ok(2)));
        a.deallocate(Lba(0), 48).await.expect("deallocated");
        assert_eq!(a.allocated_bytes(), 0);
        sound(&drive).await;
    });
}

/// A write over two extents that a snapshot shares, with room for one copy: the first one was changed before the second one was
/// refused.
#[test]
fn a_write_without_room_for_all_copies_changes_nothing() {
    simulated(6, async {
        let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
        let a = drive.create(&spec("a", 32 * 4096, 4096)).await.expect("created");
        a.write(Lba(0), filled(1, 32), Durability::Stable).await.expect("written");
        drive.snapshot(a.number(), "s").await.expect("a snapshot");
        let free = (drive.usage().bytes - drive.usage().used_bytes) / (64 << 10);
        let b = drive.create(&spec("b", free * (64 << 10), 4096)).await.expect("created");
        for extent in 0..free - 1 {
            b.write(Lba(extent * 16), filled(3, 1), Durability::Stable).await.expect("there is room");
        }
        assert_eq!(a.write(Lba(10), filled(2, 12), Durability::Stable).await, Err(Error::OutOfSpace));
        for lba in 0..32 {
            assert_eq!(byte_at(&a, lba).await, Ok(1), "block {lba} of a write that was refused");
        }
        b.deallocate(Lba(0), 16).await.expect("gives room back");
        a.write(Lba(10), filled(2, 12), Durability::Stable).await.expect("there is room for both");
        assert_eq!((byte_at(&a, 9).await, byte_at(&a, 10).await, byte_at(&a, 21).await), (Ok(1), Ok(2), Ok(2)));
        sound(&drive).await;
    });
}

/// What a copy and its source do not share, in looks of any size, beside their bytes.
#[test]
fn differences_name_all_that_was_written_since() {
    simulated(1, async {
        let drive = Drive::format(Path::new(PATH), &options(4096)).await.expect("formatted");
        let a = drive.create(&spec("a", (1 << 20) + 4096, 4096)).await.expect("created");
        for lba in [0, 20, 100, 256] {
            a.write(Lba(lba), filled(1, 1), Durability::Stable).await.expect("written");
        }
        let all = |newer: u32, base: Option<u32>, most: usize| {
            let (mut found, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let looked = drive.differences(newer, base, at, most).expect("they are there");
                assert!(looked.ranges.len() <= most && looked.next.is_none_or(|next| next > at));
                found.extend(looked.ranges);
                from = looked.next;
            }
            found
        };
        const EXTENT: u64 = 64 << 10;
        let blocks = (1 << 20) + 4096;
        // The last extent is told up to the end of the namespace.
        let allocated = [0..EXTENT, EXTENT..2 * EXTENT, 6 * EXTENT..7 * EXTENT, 16 * EXTENT..blocks];
        let joined = [0..2 * EXTENT, allocated[2].clone(), allocated[3].clone()];
        assert_eq!((all(a.number(), None, 1), all(a.number(), None, 255)), (joined.to_vec(), joined.to_vec()));
        let s = drive.snapshot(a.number(), "s").await.expect("a snapshot");
        assert_eq!(all(a.number(), Some(s.number()), 255), []);
        a.write(Lba(21), filled(2, 1), Durability::Stable).await.expect("written");
        a.write(Lba(40), filled(2, 1), Durability::Stable).await.expect("written");
        a.deallocate(Lba(96), 16).await.expect("deallocated");
        let changed = [EXTENT..3 * EXTENT, 6 * EXTENT..7 * EXTENT];
        assert_eq!(all(a.number(), Some(s.number()), 255), changed);
        assert_eq!(all(s.number(), Some(a.number()), 1), changed, "the other way round");
        for lba in 0..=256 {
            let told = changed.iter().any(|range| range.contains(&(lba * 4096)));
            assert!(told || byte_at(&a, lba).await == byte_at(&s, lba).await, "block {lba} differs untold");
        }
        drive.grow(a.number(), 2 << 20).await.expect("grown");
        a.write(Lba(511), filled(3, 1), Durability::Stable).await.expect("written");
        let grown = [changed[0].clone(), changed[1].clone(), 31 * EXTENT..32 * EXTENT];
        assert_eq!(all(a.number(), Some(s.number()), 255), grown);
        let middle = drive.differences(a.number(), Some(s.number()), 2 * EXTENT + 4096, 255).expect("they are there");
        assert_eq!(middle.ranges[0], 2 * EXTENT + 4096..3 * EXTENT, "from where it was asked");
        let beyond = drive.differences(s.number(), None, 1 << 40, 255).expect("it is there");
        assert_eq!((beyond.ranges, beyond.next), (vec![], None));
        assert!(matches!(drive.differences(a.number(), Some(99), 0, 1), Err(DriveError::NoNamespace(_))));
    });
}
