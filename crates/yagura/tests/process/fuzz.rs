//! Every fuzz target (`fuzz/fuzz_targets`) without its fuzzer: stored seeds, and some thousand inputs made of them or at random.
//! It is what the gate has time for; `make fuzz` looks for new paths.

use std::path::{Path, PathBuf};

use engine::rng::SplitMix;

/// Inputs of each target beside the seeds.
const INPUTS: u64 = 3000;
/// Bytes of an input made at random. What is longer is seldom further.
const INPUT_BYTES_MAX: usize = 600;
/// Places that are changed in a stored seed.
const CHANGES_MAX: usize = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The stored inputs of a target, in the order of their names.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let Ok(folder) = folder().join("seeds").join(target).read_dir() else { return Vec::new() };
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.expect("a stored seed").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a stored seed")).collect()
}

fn bytes(random: &mut SplitMix) -> Vec<u8> {
    let length = random.index(INPUT_BYTES_MAX + 1);
    (0..length).map(|_| random.draw() as u8).collect()
}

/// A seed with some places changed or its end cut off; or, where there is none, any bytes.
fn input(seeds: &[Vec<u8>], random: &mut SplitMix) -> Vec<u8> {
    if seeds.is_empty() || random.below(4) == 0 {
        return bytes(random);
    }
    let mut bytes = seeds[random.index(seeds.len())].clone();
    for _ in 0..random.index(CHANGES_MAX) + 1 {
        if bytes.is_empty() {
            break;
        }
        let at = random.index(bytes.len());
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 127, 128, 255][random.index(5)],
            2 => bytes.truncate(at),
            _ => bytes.insert(at, random.draw() as u8),
        }
    }
    bytes
}

fn replay(name: &str, target: fn(&[u8])) {
    let seeds = seeds(name);
    seeds.iter().for_each(|seed| target(seed));
    for number in 0..INPUTS {
        let bytes = input(&seeds, &mut SplitMix(number));
        // What it panics on is found again by its number.
        if std::panic::catch_unwind(|| target(&bytes)).is_err() {
            panic!("{name}: input {number}: {}", bytes.escape_ascii());
        }
    }
}

macro_rules! targets {
    ($($name:ident: $path:path,)*) => {
        const TARGETS: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() {
            replay(stringify!($name), |bytes| $path(bytes));
        })*
    };
}

targets! {
    cache_flash: cache::flash::fuzz::flash_decode,
    cache_session: cache::fuzz::session,
    drive_open: device::drive::fuzz::drive_open,
    erasure_losses: erasure::fuzz::losses,
    file_map: file::fuzz::file_map,
    file_records: file::fuzz::records,
    flash_open: flash::fuzz::flash_open,
    host_session: fabric::host::fuzz_session,
    map_decode: pool::fuzz::map_decode,
    nbd_options: nbd::fuzz::negotiation,
    page_decode: kv::fuzz::page_decode,
    pdu_decode: fabric::fuzz::pdu_decode,
    resp_hash: kv::fuzz::resp_hash,
    resp_session: kv::fuzz::resp_session,
    superblock_decode: pool::fuzz::superblock_decode,
    target_authentication: fabric::fuzz::target_authentication,
    target_session: fabric::fuzz::target_session,
    volume_blocks: volume::fuzz::blocks_decode,
    volume_stream: volume::fuzz::stream_decode,
}

#[test]
fn every_fuzz_target_is_here() {
    let targets = folder().join("fuzz_targets").read_dir().expect("the targets");
    let mut names: Vec<String> = targets
        .map(|entry| entry.expect("a target").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, TARGETS);
}
