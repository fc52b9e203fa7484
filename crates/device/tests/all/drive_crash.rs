//! Power is lost at every write and every flush of a drive's life, one run for each: the drive is consistent, everything that
//! was acknowledged as stable is there, and what was not is old or new, block by block.
//!
//! A scripted life runs once to its end in the simulated world, and its trace says when each operation on the disk began and
//! ended. The same seed is the same run, so each of these moments can be had again: a run of its own goes there, the power
//! fails, the drive is opened anew and held against what the script had been told. What the crash does to the writes that were
//! not stable (kept, lost, torn, each by itself) follows from the seed, and differs between the runs to one moment. In some of
//! them the power fails again while the drive is being opened.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::drive_model::{BAD, Faults, Life, Model, PATH, pattern};
use device::{Drive, DriveNamespace, DriveOptions, Durability, FormatOptions, Lba, Namespace, NamespaceSpec};
use engine::Buf;
use engine::sim::{DiskConfig, SimConfig, World};

const BYTES: u64 = 5 << 20;
/// A disk of which nothing is kept: what is thrown there makes a crash come out otherwise.
const DICE: &str = "/dice";

/// A kind of disk, and what may then be found in a block that was being written.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Bytes under one checksum.
    unit: u32,
    /// Bytes of a namespace's block.
    block: u32,
    torn: bool,
    volatile_cache: bool,
}

const KINDS: [Kind; 5] = [
    // Sectors are written whole, and a block is one.
    Kind { unit: 512, block: 512, torn: true, volatile_cache: true },
    // Writes are kept or lost as a whole.
    Kind { unit: 4096, block: 4096, torn: false, volatile_cache: true },
    // A block of eight sectors can be torn: it is then a fault, and never a mixture.
    Kind { unit: 4096, block: 4096, torn: true, volatile_cache: true },
    Kind { unit: 512, block: 512, torn: true, volatile_cache: false },
    // The same where each sector has a checksum of its own, and matches it in both halves of a torn block.
    Kind { unit: 512, block: 4096, torn: true, volatile_cache: true },
];

fn world(seed: u64, kind: Kind) -> (World, engine::sim::NodeId) {
    let world = World::new(seed, SimConfig { complete_trace: true, ..SimConfig::default() });
    let node = world.node("n");
    let config = DiskConfig { torn: kind.torn, volatile_cache: kind.volatile_cache, ..DiskConfig::default() };
    world.disk(node, PATH, BYTES, config);
    world.disk(node, DICE, 4096, DiskConfig::default());
    (world, node)
}

async fn formatted(model: &Model, kind: Kind) -> Drive {
    let journal_bytes = Some(512 << 10);
    let format = FormatOptions { extent_bytes: 64 << 10, unit: kind.unit, journal_bytes, ..FormatOptions::default() };
    let drive = Drive::format(Path::new(PATH), &format).await.expect("formatted");
    model.formatted();
    drive
}

/// The script. What it is told goes into the model as it goes along.
async fn live(model: Rc<Model>, kind: Kind) {
    let drive = formatted(&model, kind).await;
    let life = Rc::new(Life { drive, model, block_size: kind.block });
    let a = life.create("a", 384).await;
    life.write(a, 0, 4, 1, Durability::Stable).await;
    life.write(a, 2, 4, 2, Durability::Cached).await;
    life.write(a, 2, 2, 3, Durability::Cached).await;
    life.write(a, 3, 1, 4, Durability::Cached).await;
    life.flush(a).await;
    life.write(a, 3, 1, 5, Durability::Stable).await;
    life.batch(a, 40, 6).await;
    life.attribute(a, "one", b"first").await;
    let s = life.share(a, "s", true).await;
    life.write(a, 4, 1, 7, Durability::Cached).await;
    life.write(a, 5, 2, 8, Durability::Stable).await;
    life.zero(a, 0, 2).await;
    life.batch(a, 40, 9).await;
    life.mark(a, 7, 1).await;
    let c = life.share(s, "c", false).await;
    life.write(c, 1, 3, 10, Durability::Stable).await;
    life.checkpoint().await;
    life.write(c, 1, 3, 11, Durability::Cached).await;
    life.write(c, 2, 1, 12, Durability::Stable).await;
    life.zero(a, 0, 384).await;
    life.write(a, 130, 8, 13, Durability::Cached).await;
    life.grow(a, 512).await;
    life.write(a, 500, 4, 14, Durability::Stable).await;
    life.attribute(a, "one", b"second").await;
    life.swap(a, 500, 14, 15).await;
    life.delete(s).await;
    // Extents that came free are taken again: they hold what their old owners wrote.
    let d = life.create("d", 640).await;
    life.batch(d, 600, 16).await;
    life.delete(c).await;
    life.write(d, 0, 20, 17, Durability::Cached).await;
    life.attribute(a, "one", b"").await;
    life.flush(d).await;
    life.write(d, 0, 2, 18, Durability::Cached).await;
    life.drive.checkpoint().await.expect("a checkpoint");
    life.write(d, 1, 2, 19, Durability::Cached).await;
}

/// A full drive, on which one takes at once what another gives back.
async fn exchange(model: Rc<Model>, kind: Kind) {
    let drive = formatted(&model, kind).await;
    let per_extent = (64 << 10) / u64::from(kind.block);
    let extents = drive.usage().bytes / (64 << 10);
    let life = Rc::new(Life { drive, model, block_size: kind.block });
    let a = life.create("a", (extents - 3) * per_extent).await;
    for extent in 0..extents - 3 {
        life.write(a, extent * per_extent, 1, 1 + extent, Durability::Stable).await;
    }
    let b = life.create("b", 3 * per_extent).await;
    for extent in 0..3 {
        life.write(b, extent * per_extent, per_extent, 100 + extent, Durability::Stable).await;
    }
    let c = life.create("c", 3 * per_extent).await;
    let gives = Rc::clone(&life);
    let giving = engine::task::spawn(async move { gives.delete(b).await });
    // As soon as the deletion has been recorded, stable or not, somebody may come for the room.
    let mut taken = 0;
    while taken < 3 {
        match life.try_write(c, taken * per_extent, per_extent, 200 + taken, Durability::Stable).await {
            Ok(()) => taken += 1,
            Err(_) => engine::time::sleep(Duration::from_micros(20)).await,
        }
    }
    giving.await;
}

/// Checkpoints, snapshots, copies on write, deallocation and writes, all at once.
async fn beside(model: Rc<Model>, kind: Kind) {
    let drive = formatted(&model, kind).await;
    let life = Rc::new(Life { drive, model, block_size: kind.block });
    let a = life.create("a", 320).await;
    let b = life.create("b", 320).await;
    life.write(a, 0, 64, 1, Durability::Stable).await;
    life.write(b, 0, 64, 2, Durability::Stable).await;
    for round in 0..3 {
        let stamp = 10 * (round + 1);
        let [writes, copies, zeroes, checkpoints] = [(); 4].map(|()| Rc::clone(&life));
        let writing = engine::task::spawn(async move { writes.batch(a, 64, stamp).await });
        let copying = engine::task::spawn(async move {
            let snapshot = copies.share(b, &format!("s{round}"), true).await;
            copies.write(b, round * 8, 4, stamp + 1, Durability::Cached).await;
            let clone = copies.share(snapshot, &format!("c{round}"), false).await;
            copies.write(clone, round * 8 + 2, 4, stamp + 2, Durability::Stable).await;
            copies.zero(b, 48, 8).await;
            copies.write(b, 50, 4, stamp + 3, Durability::Stable).await;
            copies.delete(snapshot).await;
        });
        let zeroing = engine::task::spawn(async move {
            zeroes.write(a, 128, 160, stamp + 4, Durability::Cached).await;
            zeroes.zero(a, 130, 150).await;
            zeroes.write(a, 140, 2, stamp + 5, Durability::Stable).await;
        });
        // Not the model's checkpoint: what it makes stable of what is under way is not known.
        let making = engine::task::spawn(async move {
            checkpoints.drive.checkpoint().await.expect("a checkpoint");
            engine::time::sleep(Duration::from_micros(300)).await;
            checkpoints.drive.checkpoint().await.expect("a checkpoint");
        });
        for task in [writing, copying, zeroing, making] {
            task.await;
        }
        life.flush(a).await;
    }
}

/// So many records that the journal's ring is gone round, and begun again over frames that checkpoints have made dispensable.
async fn ring(model: Rc<Model>, kind: Kind) {
    let drive = formatted(&model, kind).await;
    let life = Rc::new(Life { drive, model, block_size: kind.block });
    let a = life.create("a", 64).await;
    life.write(a, 0, 64, 1, Durability::Stable).await;
    for step in 0..170 {
        let durability = if step % 3 == 0 { Durability::Stable } else { Durability::Cached };
        life.write(a, step * 7 % 62, 2, 2 + step, durability).await;
    }
}

/// What the node does until its power fails.
#[derive(Clone, Copy)]
enum Script {
    Live,
    Exchange,
    Beside,
    Ring,
}

async fn act(script: Script, model: Rc<Model>, kind: Kind) {
    match script {
        Script::Live => live(model, kind).await,
        Script::Exchange => exchange(model, kind).await,
        Script::Beside => beside(model, kind).await,
        Script::Ring => ring(model, kind).await,
    }
}

/// The moments at which an operation on the disk began or ended, from the trace of a whole life.
fn moments(seed: u64, script: Script, kind: Kind) -> Vec<Duration> {
    let (world, node) = world(seed, kind);
    let model = Rc::new(Model::default());
    let task = world.spawn_on(node, act(script, model, kind));
    world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
    let trace = world.trace();
    let mut moments: Vec<Duration> = Vec::new();
    let mut writes = std::collections::BTreeSet::new();
    for line in trace.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(operation) = words.get(2).filter(|word| word.starts_with('d')) else { continue };
        let changes = matches!(words.get(4), Some(&"write" | &"sync" | &"zero"));
        if changes {
            writes.insert(operation.to_string());
        }
        if changes || (words.get(3) == Some(&"ok") && writes.contains(*operation)) {
            let seconds: f64 = words[0].parse().expect("a trace line begins with its time");
            moments.push(Duration::from_nanos((seconds * 1e9).round() as u64));
        }
    }
    moments.dedup();
    assert!(moments.len() > 90, "only {} moments in the life of {kind:?}", moments.len());
    moments
}

/// One life up to `moment`, the crash, and what is there afterwards. Of two crashes with different throws each comes out in its
/// own way; every other throw lets the power fail once more, at some moment of the opening.
fn crash_at(seed: u64, script: Script, kind: Kind, moment: Duration, throw: u64) {
    let (world, node) = world(seed, kind);
    let model = Rc::new(Model::default());
    let task = world.spawn_on(node, act(script, Rc::clone(&model), kind));
    world.run_for(moment).unwrap_or_else(|stalled| panic!("{stalled}"));
    world.corrupt(node, DICE, 0, throw);
    world.crash(node);
    drop(task);
    world.restart(node);
    if throw % 2 == 1 {
        let opening = world.spawn_on(node, async {
            let _opened = Drive::open(Path::new(PATH), &DriveOptions::default()).await;
        });
        // An opening takes one to three milliseconds; the moments are spread over them.
        let after = Duration::from_nanos((moment.as_nanos() as u64).wrapping_mul(2_654_435_761) % 3_000_000);
        world.run_for(after).unwrap_or_else(|stalled| panic!("{stalled}"));
        world.crash(node);
        drop(opening);
        world.restart(node);
    }
    let faults = if kind.torn && kind.block > 512 { Faults::Torn } else { Faults::None };
    let after = world.spawn_on(node, async move {
        let drive = match Drive::open(Path::new(PATH), &DriveOptions::default()).await {
            Ok(drive) => drive,
            Err(error) if !model.is_formatted() => return Some(error.to_string()),
            Err(error) => panic!("the drive does not open: {error}"),
        };
        model.verify(&drive, faults).await;
        // Life goes on, and another opening, now without a crash, finds what was found and what was added.
        model.go_on(&drive, kind.block).await;
        drive.close().await.expect("closed");
        let drive = Drive::open(Path::new(PATH), &DriveOptions::default()).await.expect("opened again");
        model.verify(&drive, faults).await;
        None
    });
    world.run_until(after).unwrap_or_else(|stalled| panic!("{kind:?} at {moment:?}: {stalled}"));
}

fn crash_everywhere(script: Script, kind: Kind, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        for moment in moments(seed, script, kind) {
            // At the moment and just after it: an operation that has begun, one that has ended.
            for (throw, moment) in [(0, moment), (1, moment + Duration::from_nanos(1)), (2, moment)] {
                crash_at(seed, script, kind, moment, throw);
            }
        }
    }
}

/// The same at every so many-th moment, each seed at others: for scripts that are long.
fn crash_here_and_there(script: Script, kind: Kind, seeds: std::ops::Range<u64>, every: usize) {
    for seed in seeds {
        for moment in moments(seed, script, kind).into_iter().skip(seed as usize % every).step_by(every) {
            for throw in 0..2 {
                crash_at(seed, script, kind, moment + Duration::from_nanos(1), throw);
            }
        }
    }
}

#[test]
fn sectors_survive_a_crash_at_every_write_and_flush() {
    crash_everywhere(Script::Live, KINDS[0], 0..2);
}

#[test]
fn whole_writes_survive_a_crash_at_every_write_and_flush() {
    crash_everywhere(Script::Live, KINDS[1], 2..4);
}

#[test]
fn torn_blocks_are_faults_and_nothing_else_is() {
    crash_everywhere(Script::Live, KINDS[2], 4..6);
}

#[test]
fn a_disk_without_a_cache_loses_nothing_acknowledged() {
    crash_everywhere(Script::Live, KINDS[3], 6..7);
}

/// A block of 4096 bytes over eight checksums was taken for what each sector by itself said: three new ones and five old ones
/// read as a good block, though one block is what a namespace promises to write wholly or not at all.
#[test]
fn a_block_of_several_sectors_is_never_a_mixture() {
    crash_everywhere(Script::Live, KINDS[4], 17..19);
}

/// What is taken again while its giving back is not stable: after a crash its old owner is there, and wants its bytes.
#[test]
fn a_freed_extent_is_not_used_before_its_record_is_stable() {
    let kind = KINDS[1];
    for seed in 7..17 {
        let all = moments(seed, Script::Exchange, kind);
        // The end of it, from the last writes that fill the drive on.
        for moment in &all[all.len() - 16..] {
            crash_at(seed, Script::Exchange, kind, *moment + Duration::from_nanos(1), 0);
        }
    }
}

#[test]
fn what_goes_on_beside_a_checkpoint_survives_a_crash() {
    crash_here_and_there(Script::Beside, KINDS[0], 20..22, 4);
    crash_here_and_there(Script::Beside, KINDS[2], 22..24, 4);
}

#[test]
fn a_journal_that_has_gone_round_survives_a_crash() {
    crash_here_and_there(Script::Ring, KINDS[4], 24..26, 8);
    crash_here_and_there(Script::Ring, KINDS[1], 26..28, 8);
}

/// What was written between the first flush of a snapshot and the moment it is of is in it too: a power loss at its acknowledgement
/// finds the bytes that were read in it just before.
#[test]
fn what_was_written_while_a_snapshot_was_taken_is_stable_in_it() {
    const BLOCKS: u64 = 64;
    let kind = KINDS[1];
    for seed in 30..38 {
        let (world, node) = world(seed, kind);
        let taken = world.spawn_on(node, async move {
            let drive = formatted(&Model::default(), kind).await;
            let bytes = BLOCKS * u64::from(kind.block);
            let spec = NamespaceSpec { name: "a".into(), bytes, block_size: kind.block };
            let a = drive.create(&spec).await.expect("created");
            let stamped = |stamp: u64| pattern(kind.block, &vec![stamp; BLOCKS as usize]);
            a.write(Lba(0), stamped(1), Durability::Stable).await.expect("written");
            let writers: Vec<_> = (0..BLOCKS)
                .map(|lba| {
                    let a = a.clone();
                    engine::task::spawn(async move {
                        for stamp in 2.. {
                            let data = pattern(kind.block, &[stamp]);
                            a.write(Lba(lba), data, Durability::Cached).await.expect("written");
                        }
                    })
                })
                .collect();
            engine::time::sleep(Duration::from_millis(1)).await;
            let snapshot = drive.snapshot(a.number(), "s").await.expect("a snapshot");
            drop(writers);
            stamps(&snapshot).await
        });
        let taken = world.run_until(taken).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        assert!(taken.iter().any(|&stamp| stamp > 1), "seed {seed}: nobody wrote before the snapshot");
        world.crash(node);
        world.restart(node);
        let found = world.spawn_on(node, async move {
            let drive = Drive::open(Path::new(PATH), &DriveOptions::default()).await.expect("opened");
            stamps(&drive.namespace(drive.find("s").expect("it was acknowledged")).expect("opened")).await
        });
        let found = world.run_until(found).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        assert_eq!(found, taken, "seed {seed}: a snapshot changed in a power loss");
    }
}

/// The stamp of each block.
async fn stamps(namespace: &DriveNamespace) -> Vec<u64> {
    let info = namespace.info();
    let mut stamps = Vec::new();
    for lba in 0..info.blocks {
        let (result, buf) = namespace.read(Lba(lba), Buf::with_len(info.block_size as usize)).await;
        result.unwrap_or_else(|error| panic!("block {lba}: {error}"));
        stamps.push(u64::from_le_bytes(buf[..8].try_into().expect("eight bytes")));
    }
    stamps
}

/// The model is worth something: a drive that lost a block is noticed.
#[test]
fn the_model_notices_a_lost_block() {
    let (world, node) = world(1, KINDS[1]);
    let model = Rc::new(Model::default());
    let task = world.spawn_on(node, async move {
        live(Rc::clone(&model), KINDS[1]).await;
        let drive = Drive::open(Path::new(PATH), &DriveOptions::default()).await.expect("opened");
        let d = drive.namespace(drive.find("d").expect("it lives")).expect("opened");
        device::Namespace::deallocate(&d, device::Lba(10), 1).await.expect("deallocated");
        assert_eq!(model.differs(&drive, Faults::None).await, Some(("d".to_owned(), 10)));
        device::Namespace::write_uncorrectable(&d, device::Lba(10), 1).await.expect("marked");
        assert_eq!(model.differs(&drive, Faults::None).await, Some(("d".to_owned(), 10)));
        const { assert!(BAD > 1 << 32, "no stamp of the script is the mark of an unreadable block") };
    });
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
}
