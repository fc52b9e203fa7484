//! Random commands on a drive, its snapshots and clones, against the plainest model there is: a vector of stamps for each.

use std::path::Path;

use device::{Drive, DriveNamespace, DriveOptions, Durability, FormatOptions, Lba, Namespace, NamespaceSpec};
use engine::sim::{SimConfig, World};
use engine::{Buf, View};

const PATH: &str = "/drive";
const BLOCKS: u64 = 96;

struct One {
    handle: DriveNamespace,
    model: Vec<u8>,
    read_only: bool,
}

fn stamped(stamp: u8, blocks: u64, block_size: u32) -> View {
    let mut buf = Buf::with_len((blocks * u64::from(block_size)) as usize);
    buf.fill(stamp);
    buf.freeze()
}

fn below(end: u64) -> u64 {
    engine::task::random_u64() % end
}

async fn compare(one: &One, block_size: u32) {
    let (result, buf) = one.handle.read(Lba(0), Buf::with_len(one.model.len() * block_size as usize)).await;
    result.expect("a read in range");
    for (lba, block) in buf.chunks_exact(block_size as usize).enumerate() {
        let expected = one.model[lba];
        assert!(
            block.iter().all(|&byte| byte == expected),
            "{} block {lba}: {} is not {expected}",
            one.handle.name(),
            block[0]
        );
    }
}

async fn step(drive: &Drive, all: &mut Vec<One>, number: u64, block_size: u32) {
    let which = below(all.len() as u64) as usize;
    let lba = below(BLOCKS);
    let blocks = 1 + below((BLOCKS - lba).min(40));
    let stamp = 1 + below(250) as u8;
    let durability = if below(2) == 0 { Durability::Cached } else { Durability::Stable };
    let count = all.len();
    let one = &mut all[which];
    let range = lba as usize..(lba + blocks) as usize;
    match below(16) {
        0..=6 if !one.read_only => {
            let data = stamped(stamp, blocks, block_size);
            one.handle.write(Lba(lba), data, durability).await.expect("written");
            one.model[range].fill(stamp);
        }
        7 | 8 if !one.read_only => {
            one.handle.deallocate(Lba(lba), blocks).await.expect("deallocated");
            one.model[range].fill(0);
        }
        9 if !one.read_only => {
            let old = one.model[lba as usize];
            let (expected, new) = (stamped(old, 1, block_size), stamped(stamp, 1, block_size));
            one.handle.compare_and_write(Lba(lba), expected, new, durability).await.expect("swapped");
            one.model[lba as usize] = stamp;
        }
        10 if count < 6 => {
            let (source, read_only) = (one.handle.number(), below(2) == 0);
            let (model, name) = (one.model.clone(), format!("n{number}"));
            let made = match read_only {
                true => drive.snapshot(source, &name).await,
                false => drive.clone_of(source, &name).await,
            };
            all.push(One { handle: made.expect("made"), model, read_only });
        }
        11 if count > 2 => {
            let gone = all.remove(which);
            drive.delete(gone.handle.number()).await.expect("deleted");
        }
        12 => drive.checkpoint().await.expect("a checkpoint"),
        13 => one.handle.flush().await.expect("flushed"),
        _ => compare(one, block_size).await,
    }
}

async fn life(unit: u32, block_size: u32, extent_bytes: u32) {
    let format = FormatOptions {
        create: Some(64 << 20),
        extent_bytes,
        unit,
        journal_bytes: Some(512 << 10),
        ..FormatOptions::default()
    };
    let mut drive = Drive::format(Path::new(PATH), &format).await.expect("formatted");
    let mut all = Vec::new();
    for name in ["a", "b"] {
        let spec = NamespaceSpec { name: name.into(), bytes: BLOCKS * u64::from(block_size), block_size };
        let handle = drive.create(&spec).await.expect("created");
        all.push(One { handle, model: vec![0; BLOCKS as usize], read_only: false });
    }
    for round in 0..4 {
        for number in 0..120 {
            step(&drive, &mut all, round * 1000 + number, block_size).await;
        }
        let report = drive.check(|_, _| {}).await.expect("a check");
        assert_eq!(report.faults, Vec::<String>::new());
        let kept: Vec<_> = all.drain(..).map(|one| (one.handle.name().to_owned(), one.model, one.read_only)).collect();
        drive.close().await.expect("closed");
        drive = Drive::open(Path::new(PATH), &DriveOptions::default()).await.expect("opened");
        for (name, model, read_only) in kept {
            let handle = drive.namespace(drive.find(&name).expect("it is there")).expect("opened");
            all.push(One { handle, model, read_only });
        }
        for one in &all {
            compare(one, block_size).await;
        }
    }
}

#[test]
fn a_drive_is_what_a_vector_is() {
    for seed in 0..12 {
        for (unit, block_size, extent_bytes) in [(4096, 4096, 64 << 10), (512, 512, 64 << 10), (512, 4096, 128 << 10)] {
            let world = World::new(seed, SimConfig::default());
            let node = world.node("n");
            let task = world.spawn_on(node, life(unit, block_size, extent_bytes));
            world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        }
    }
}
