//! A drive on a medium that fails or forgets: never wrong data, and an error that says what is the matter.

use std::path::Path;
use std::rc::Rc;

use crate::drive_model::{Faults, Life, Model, PATH};
use device::{Drive, DriveError, DriveOptions, Durability, Error, FormatOptions, Lba, Namespace, NamespaceSpec};
use engine::Buf;
use engine::job::Job;
use engine::sim::{DiskConfig, NodeId, SimConfig, World};

const BYTES: u64 = 5 << 20;

fn world(seed: u64) -> (World, NodeId) {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    world.disk(node, PATH, BYTES, DiskConfig { volatile_cache: false, ..DiskConfig::default() });
    (world, node)
}

fn format() -> FormatOptions {
    FormatOptions { extent_bytes: 64 << 10, journal_bytes: Some(512 << 10), ..FormatOptions::default() }
}

/// A drive with something in every structure; most of it in a checkpoint, some in the journal.
async fn furnish(model: Rc<Model>) {
    let drive = Drive::format(Path::new(PATH), &format()).await.expect("formatted");
    let life = Life { drive, model, block_size: 4096 };
    let a = life.create("a", 64).await;
    life.write(a, 0, 20, 1, Durability::Stable).await;
    life.attribute(a, "one", b"value").await;
    let s = life.share(a, "s", true).await;
    life.write(a, 3, 2, 2, Durability::Stable).await;
    life.checkpoint().await;
    life.write(a, 4, 2, 3, Durability::Stable).await;
    life.write(a, 40, 2, 4, Durability::Stable).await;
    life.zero(a, 0, 1).await;
    let c = life.share(s, "c", false).await;
    life.write(c, 0, 1, 5, Durability::Stable).await;
    life.write(a, 4, 1, 6, Durability::Stable).await;
}

/// Furnishes a drive, cuts its power, damages the byte, and says what opening it gives.
fn damaged_at(offset: Option<u64>) -> (Result<u64, String>, Vec<u8>) {
    let (world, node) = world(7);
    let model = Rc::new(Model::default());
    let task = world.spawn_on(node, furnish(Rc::clone(&model)));
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
    world.crash(node);
    world.restart(node);
    if let Some(offset) = offset {
        world.corrupt(node, PATH, offset, 1);
    }
    let medium = world.peek(node, PATH, 0, BYTES as usize);
    let task = world.spawn_on(node, async move {
        let drive = match Drive::open(Path::new(PATH), &DriveOptions::default()).await {
            Ok(drive) => drive,
            Err(error @ (DriveError::Damaged { .. } | DriveError::Device(Error::ReadFault(_)))) => {
                return Err(error.to_string());
            }
            Err(other) => panic!("damage at {offset:?}: {other}"),
        };
        let scrub = drive.scrub(&Job::unlisted(None, None)).await;
        let differs = model.differs(&drive, Faults::Any).await;
        assert_eq!(differs, None, "damage at {offset:?} was taken for data");
        match scrub {
            Ok(scrub) => Ok(scrub.damaged),
            Err(error) => Err(error.to_string()),
        }
    });
    (world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}")), medium)
}

/// One byte is changed in every sector that holds anything, one sector per run: superblocks, checkpoints, checksum pages,
/// journal, data.
#[test]
fn a_flipped_byte_anywhere_is_never_wrong_data() {
    let (clean, medium) = damaged_at(None);
    assert_eq!(clean, Ok(0));
    let (mut refused, mut faults, mut harmless) = (0, 0, 0);
    for (sector, bytes) in medium.chunks_exact(512).enumerate() {
        let Some(first) = bytes.iter().position(|&byte| byte != 0) else { continue };
        let last = bytes.iter().rposition(|&byte| byte != 0).expect("there is a first one");
        for place in [first, (first + last) / 2] {
            match damaged_at(Some((sector * 512 + place) as u64)).0 {
                Err(_) => refused += 1,
                Ok(0) => harmless += 1,
                Ok(_) => faults += 1,
            }
        }
    }
    // Data is found by the scrub, metadata without a second copy refuses to open, and the rest has a copy or is out of date.
    assert!(refused > 30 && faults > 100 && harmless > 10, "refused {refused}, faults {faults}, harmless {harmless}");
}

/// The medium fails at some write or flush: that is told, the drive takes no more writes, and reads go on. Opened anew it is
/// consistent, and everything is old or new.
#[test]
fn an_error_of_the_medium_latches_and_loses_nothing() {
    let mut latched = 0;
    for seed in 0..60 {
        let (world, node) = world(seed);
        let model = Rc::new(Model::default());
        let config = DiskConfig { write_error_ppm: 30_000, volatile_cache: false, ..DiskConfig::default() };
        let task = world.spawn_on(node, furnish(Rc::clone(&model)));
        world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
        world.set_disk_config(node, PATH, config);
        let shared = Rc::clone(&model);
        let task = world.spawn_on(node, async move {
            let Ok(drive) = Drive::open(Path::new(PATH), &DriveOptions::default()).await else { return false };
            let a = drive.find("a").expect("it is there");
            let life = Life { drive, model: shared, block_size: 4096 };
            for step in 0..40 {
                let (lba, stamp) = (step * 7 % 60, 100 + step);
                let Err(error) = life.try_write(a, lba, 2, stamp, Durability::Stable).await else { continue };
                assert!(matches!(error, Error::WriteFault(_) | Error::ReadOnly(_)), "seed {seed}: {error}");
                assert!(life.drive.usage().fault.is_some(), "seed {seed}: {error} did not latch");
                let namespace = life.drive.namespace(a).expect("it is there");
                let again = namespace.write(Lba(0), Buf::zeroed(4096).freeze(), Durability::Stable).await;
                assert!(matches!(again, Err(Error::ReadOnly(_))), "seed {seed}: {again:?}");
                let refused =
                    life.drive.create(&NamespaceSpec { name: "x".into(), bytes: 4096, block_size: 4096 }).await;
                assert!(matches!(refused, Err(DriveError::ReadOnly(_))), "seed {seed}: {refused:?}");
                let elsewhere = (lba + 30) % 60;
                let (read, _) = namespace.read(Lba(elsewhere), Buf::with_len(4096)).await;
                assert!(matches!(read, Ok(()) | Err(Error::ReadFault(_))), "seed {seed}: {read:?}");
                return true;
            }
            false
        });
        latched += u64::from(world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}")));
        world.calm();
        world.crash(node);
        world.restart(node);
        let task = world.spawn_on(node, async move {
            let drive = Drive::open(Path::new(PATH), &DriveOptions::default()).await.expect("opened");
            model.verify(&drive, Faults::Torn).await;
            model.go_on(&drive, 4096).await;
            model.verify(&drive, Faults::None).await;
        });
        world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
    }
    assert!(latched > 20, "only {latched} runs met an error");
}

/// Damage in what a snapshot shares is not copied as if it were data: the clone's block is as unreadable as the original's.
#[test]
fn copy_on_write_keeps_damage_damaged() {
    let (world, node) = world(1);
    let task = world.spawn_on(node, async {
        let drive = Drive::format(Path::new(PATH), &format()).await.expect("formatted");
        let a =
            drive.create(&NamespaceSpec { name: "a".into(), bytes: 1 << 20, block_size: 4096 }).await.expect("created");
        let mut marked = Buf::with_len(3 * 4096);
        marked.fill(0xA7);
        a.write(Lba(0), marked.freeze(), Durability::Stable).await.expect("written");
        a.write_uncorrectable(Lba(2), 1).await.expect("marked");
        let clone = drive.clone_of(a.number(), "c").await.expect("a clone");
        (drive, clone)
    });
    let (drive, clone) = world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
    let medium = world.peek(node, PATH, 0, BYTES as usize);
    let at =
        medium.chunks_exact(4096).position(|block| block.iter().all(|&byte| byte == 0xA7)).expect("it was written");
    world.corrupt(node, PATH, at as u64 * 4096 + 77, 1);
    let task = world.spawn_on(node, async move {
        clone.write(Lba(5), Buf::zeroed(4096).freeze(), Durability::Stable).await.expect("copied and written");
        for (lba, readable) in [(0, false), (1, true), (2, false), (3, true), (5, true)] {
            let (read, _) = clone.read(Lba(lba), Buf::with_len(4096)).await;
            assert_eq!(read.is_ok(), readable, "block {lba}: {read:?}");
        }
        assert_eq!(drive.usage().mismatches, 1);
        let scrub = drive.scrub(&Job::unlisted(None, None)).await.expect("scrubbed");
        let found: Vec<_> = scrub.damage.iter().map(|damage| (damage.namespace.as_str(), damage.lba.0)).collect();
        assert_eq!(
            (found, scrub.uncorrectable),
            (vec![("a", 0)], 3),
            "the original's damage is data's, the copy's is marked"
        );
    });
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
}
