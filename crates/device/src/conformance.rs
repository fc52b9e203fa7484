//! What every kind of namespace must do, as checks that run over any of them in either world.
//!
//! Each check panics with a sentence that says which promise of [`Namespace`] was broken. They overwrite the namespace, and
//! they assume that it injects no faults.
//!
//! tidy: proof: it runs in the tests of every kind, here and in other crates, and panics to say what it found.

pub mod zones;

use std::rc::Rc;

use engine::rng::SplitMix;
use engine::{Buf, task};

use crate::{ATTRIBUTE_BYTES_MAX, Durability, Error, Lba, Namespace, NamespaceInfo};

/// Blocks at each end of the namespace that the comparison with the model covers.
const WINDOW_BLOCKS: u64 = 48;

/// Every check, one after the other. The namespace must have at least 128 blocks.
pub async fn check_all<N: Namespace>(namespace: Rc<N>, seed: u64) {
    info_is_sound(&namespace.info());
    refuses_what_is_out_of_bounds(&*namespace).await;
    behaves_like_a_vector(&*namespace, seed, 300).await;
    reads_are_never_torn(Rc::clone(&namespace), seed, 4, 20).await;
    marked_blocks_are_unreadable_until_written(&*namespace).await;
    attributes_are_kept(&*namespace).await;
    reset_counter(&*namespace).await;
    let added = increments(Rc::clone(&namespace), 6, 15).await;
    assert_eq!(counter(&*namespace).await, added, "a compare-and-write lost another's increment");
}

fn info_is_sound(info: &NamespaceInfo) {
    assert!(info.block_size.is_power_of_two() && info.block_size >= 512, "block size {}", info.block_size);
    assert!(info.blocks >= 128, "the checks need 128 blocks, there are {}", info.blocks);
    assert!(info.transfer_blocks_max >= 2, "a transfer limit of {} blocks", info.transfer_blocks_max);
    assert!(info.compare_and_write_blocks_max <= info.transfer_blocks_max, "a compare-and-write is a transfer");
    assert_ne!(info.nguid, [0; 16], "an identity of zeroes says that there is none");
}

fn pattern(bytes: usize, stamp: u64) -> Buf {
    let mut buf = Buf::with_len(bytes);
    buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    buf
}

async fn read<N: Namespace>(namespace: &N, lba: u64, blocks: u64) -> Buf {
    let bytes = (blocks * u64::from(namespace.info().block_size)) as usize;
    let (result, buf) = namespace.read(Lba(lba), Buf::with_len(bytes)).await;
    result.expect("a read within the namespace succeeds");
    assert_eq!(buf.len(), bytes, "a read gives the buffer back at its length");
    buf
}

/// Lengths that are no blocks and ranges beyond the end are refused, and say which limit was passed.
pub async fn refuses_what_is_out_of_bounds<N: Namespace>(namespace: &N) {
    let info = namespace.info();
    let block = info.block_size as usize;
    let (result, _) = namespace.read(Lba(info.blocks), Buf::with_len(block)).await;
    assert!(matches!(result, Err(Error::OutOfRange { .. })), "read at the end: {result:?}");
    let (result, _) = namespace.read(Lba(0), Buf::with_len(block / 2)).await;
    assert!(matches!(result, Err(Error::InvalidLength { .. })), "read of half a block: {result:?}");
    let (result, _) = namespace.read(Lba(0), Buf::default()).await;
    assert!(matches!(result, Err(Error::InvalidLength { .. })), "read of nothing: {result:?}");
    let beyond = [(info.blocks - 1, 2u64), (info.blocks, 1), (u64::MAX - 1, 2), (u64::MAX, 1)];
    for (lba, blocks) in beyond {
        let data = pattern(block * blocks as usize, 7).freeze();
        let write = namespace.write(Lba(lba), data.clone(), Durability::Cached).await;
        let compare = namespace.compare(Lba(lba), data).await;
        let zeroes = namespace.write_zeroes(Lba(lba), blocks, Durability::Cached).await;
        let deallocate = namespace.deallocate(Lba(lba), blocks).await;
        for (what, result) in [("write", write), ("compare", compare), ("zeroes", zeroes), ("deallocate", deallocate)] {
            assert!(matches!(result, Err(Error::OutOfRange { .. })), "{what} at {lba}+{blocks}: {result:?}");
        }
    }
    if info.compare_and_write_blocks_max > 0 {
        let (one, two) = (pattern(block, 0).freeze(), pattern(2 * block, 0).freeze());
        let result = namespace.compare_and_write(Lba(0), one, two, Durability::Cached).await;
        assert!(matches!(result, Err(Error::InvalidLength { .. })), "halves of different length: {result:?}");
    }
}

/// Random commands against the plainest model there is: a vector of bytes.
pub async fn behaves_like_a_vector<N: Namespace>(namespace: &N, seed: u64, steps: u32) {
    let info = namespace.info();
    let mut rng = SplitMix(seed);
    for base in [0, info.blocks - WINDOW_BLOCKS] {
        let mut window = Window { namespace, base, block: info.block_size as usize, model: Vec::new() };
        for lba in 0..WINDOW_BLOCKS {
            window.model.extend_from_slice(&read(namespace, base + lba, 1).await);
        }
        for _ in 0..steps {
            window.step(&info, &mut rng).await;
        }
        for lba in 0..WINDOW_BLOCKS {
            let at = lba as usize * window.block;
            let same = *read(namespace, base + lba, 1).await == window.model[at..at + window.block];
            assert!(same, "block {} differs from the model at the end", base + lba);
        }
    }
}

struct Window<'a, N> {
    namespace: &'a N,
    base: u64,
    block: usize,
    model: Vec<u8>,
}

impl<N: Namespace> Window<'_, N> {
    async fn step(&mut self, info: &NamespaceInfo, rng: &mut SplitMix) {
        let first = rng.below(WINDOW_BLOCKS);
        let blocks = 1 + rng.below((WINDOW_BLOCKS - first).min(u64::from(info.transfer_blocks_max)).min(12));
        let lba = Lba(self.base + first);
        let at = first as usize * self.block..(first + blocks) as usize * self.block;
        let durability = if rng.below(2) == 0 { Durability::Cached } else { Durability::Stable };
        // Few stamps, so that compares are often equal and often not.
        let data = pattern(at.len(), rng.below(3)).freeze();
        match rng.below(8) {
            0 | 1 => {
                let found = read(self.namespace, lba.0, blocks).await;
                assert!(*found == self.model[at], "read of {lba}+{blocks} differs from the model");
            }
            2 | 3 => {
                self.namespace.write(lba, data.clone(), durability).await.expect("a write in range succeeds");
                self.model[at].copy_from_slice(&data);
            }
            4 => {
                let result = self.namespace.compare(lba, data.clone()).await;
                // A remote namespace may do without; it then has no compare-and-write either.
                let offered = info.compare_and_write_blocks_max > 0 || !matches!(result, Err(Error::Unsupported(_)));
                assert!(!offered || result == self.compared(&data, at), "compare of {lba}+{blocks}: {result:?}");
            }
            5 if info.compare_and_write_blocks_max > 0 => {
                let blocks = blocks.min(u64::from(info.compare_and_write_blocks_max)) as usize;
                let at = at.start..at.start + blocks * self.block;
                let expected = if rng.below(2) == 0 { Buf::copy_from(&self.model[at.clone()]).freeze() } else { data };
                let expected = expected.slice(..at.len());
                let new = pattern(at.len(), rng.below(3)).freeze();
                let result = self.namespace.compare_and_write(lba, expected.clone(), new.clone(), durability).await;
                assert_eq!(result, self.compared(&expected, at.clone()), "compare-and-write of {lba}+{blocks}");
                if result.is_ok() {
                    self.model[at].copy_from_slice(&new);
                }
            }
            6 => {
                self.namespace.write_zeroes(lba, blocks, durability).await.expect("write zeroes in range succeeds");
                self.model[at].fill(0);
            }
            7 if info.deallocated_reads_zero => {
                self.namespace.deallocate(lba, blocks).await.expect("deallocate in range succeeds");
                self.model[at].fill(0);
            }
            _ => self.namespace.flush().await.expect("flush succeeds"),
        }
    }

    fn compared(&self, expected: &[u8], at: std::ops::Range<usize>) -> Result<(), Error> {
        if self.model[at] == *expected { Ok(()) } else { Err(Error::CompareFailure) }
    }
}

/// Blocks marked unreadable stay so for everybody until each is written, zeroed or deallocated; their neighbours are as ever.
pub async fn marked_blocks_are_unreadable_until_written<N: Namespace>(namespace: &N) {
    let info = namespace.info();
    let block = info.block_size as usize;
    let beyond = namespace.verify(Lba(info.blocks - 1), 2).await;
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "verify beyond the end: {beyond:?}");
    assert_eq!(namespace.verify(Lba(0), info.blocks).await, Ok(()), "a sound namespace verifies");
    let marked = namespace.write_uncorrectable(Lba(10), 4).await;
    if !info.write_uncorrectable {
        assert!(matches!(marked, Err(Error::Unsupported(_))), "not offered: {marked:?}");
        return;
    }
    assert_eq!(marked, Ok(()), "write uncorrectable in range succeeds");
    let beyond = namespace.write_uncorrectable(Lba(info.blocks), 1).await;
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "write uncorrectable beyond the end: {beyond:?}");
    let unreadable = async |lba: u64, blocks: u64| {
        let bytes = blocks as usize * block;
        let (read, _) = namespace.read(Lba(lba), Buf::with_len(bytes)).await;
        let compare = namespace.compare(Lba(lba), pattern(bytes, 1).freeze()).await;
        let verify = namespace.verify(Lba(lba), blocks).await;
        let all = [read, compare, verify].map(|result| matches!(result, Err(Error::ReadFault(_))));
        assert!(all == [true; 3] || all == [false; 3], "read, compare and verify of {lba}+{blocks} differ: {all:?}");
        all[0]
    };
    assert!(unreadable(10, 1).await && unreadable(8, 3).await && unreadable(13, 2).await, "marked blocks");
    assert!(!unreadable(8, 2).await && !unreadable(14, 1).await, "their neighbours");
    if info.compare_and_write_blocks_max > 0 {
        let (expected, new) = (pattern(block, 0).freeze(), pattern(block, 1).freeze());
        let swap = namespace.compare_and_write(Lba(10), expected, new, Durability::Cached).await;
        assert!(matches!(swap, Err(Error::ReadFault(_))), "compare-and-write of a marked block: {swap:?}");
    }
    namespace.write(Lba(9), pattern(2 * block, 5).freeze(), Durability::Cached).await.expect("a write succeeds");
    assert!(!unreadable(9, 2).await && unreadable(11, 1).await, "only what was written can be read again");
    assert_eq!(read(namespace, 10, 1).await[..8], 5u64.to_le_bytes(), "it holds what was written");
    namespace.write_zeroes(Lba(11), 1, Durability::Cached).await.expect("write zeroes succeeds");
    namespace.deallocate(Lba(12), 1).await.expect("deallocate succeeds");
    assert!(!unreadable(11, 2).await && unreadable(13, 1).await, "zeroed and deallocated blocks can be read");
    namespace.write_zeroes(Lba(8), 8, Durability::Stable).await.expect("write zeroes succeeds");
    assert!(!unreadable(8, 8).await, "nothing is marked any more");
}

/// What was set is read back, replaced whole, and removed; the bounds hold.
pub async fn attributes_are_kept<N: Namespace>(namespace: &N) {
    let first = namespace.set_attribute("conformance", &[1; ATTRIBUTE_BYTES_MAX]).await;
    if matches!(first, Err(Error::Unsupported(_))) {
        assert!(!namespace.info().persists_attributes, "what is not offered is not persistent");
        assert_eq!(namespace.attribute("conformance"), Ok(None));
        return;
    }
    assert_eq!(first, Ok(()), "an attribute can be set");
    assert_eq!(namespace.attribute("conformance"), Ok(Some(vec![1; ATTRIBUTE_BYTES_MAX])));
    assert_eq!(namespace.set_attribute("conformance", &[2]).await, Ok(()), "and replaced");
    let long = namespace.set_attribute("conformance", &[3; ATTRIBUTE_BYTES_MAX + 1]).await;
    assert_eq!(long, Err(Error::OutOfSpace), "too long a value");
    assert_eq!(namespace.attribute("conformance"), Ok(Some(vec![2])), "a refused value changes nothing");
    assert_eq!(namespace.set_attribute("conformance", &[]).await, Ok(()), "and removed");
    assert_eq!(namespace.attribute("conformance"), Ok(None));
}

/// Where the concurrent checks work.
const ARENA: Lba = Lba(64);

/// Bytes of a run of blocks that is written and read in one piece.
fn run_bytes(info: &NamespaceInfo, blocks_max: u32) -> usize {
    blocks_max.clamp(1, 4) as usize * info.block_size as usize
}

/// The one stamp that fills `run`.
fn stamp_of(run: &[u8]) -> u64 {
    let mut words = run.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8 bytes")));
    let stamp = words.next().expect("a run is not empty");
    assert!(words.all(|word| word == stamp), "a torn read: two writes are seen in one atomic run of blocks");
    stamp
}

/// Concurrent writers of runs of equal blocks; no reader may see two stamps in one run.
pub async fn reads_are_never_torn<N: Namespace>(namespace: Rc<N>, seed: u64, writers: u64, rounds: u64) {
    let info = namespace.info();
    let bytes = run_bytes(&info, info.atomic_blocks);
    namespace.write(ARENA, pattern(bytes, 1).freeze(), Durability::Cached).await.expect("a write succeeds");
    let mut tasks = Vec::new();
    for writer in 0..writers {
        let mut rng = SplitMix(seed ^ writer);
        let to = Rc::clone(&namespace);
        tasks.push(task::spawn(async move {
            for _ in 0..rounds {
                let data = pattern(bytes, rng.draw()).freeze();
                to.write(ARENA, data, Durability::Cached).await.expect("a write succeeds");
            }
        }));
        let from = Rc::clone(&namespace);
        tasks.push(task::spawn(async move {
            for _ in 0..rounds {
                let (result, run) = from.read(ARENA, Buf::with_len(bytes)).await;
                result.expect("a read succeeds");
                stamp_of(&run);
            }
        }));
    }
    for task in tasks {
        task.await;
    }
}

/// Sets the counter to zero.
pub async fn reset_counter<N: Namespace>(namespace: &N) {
    let info = namespace.info();
    let blocks = u64::from(info.transfer_blocks_max.min(4));
    namespace.write_zeroes(ARENA, blocks, Durability::Cached).await.expect("write zeroes succeeds");
}

/// The counter that [`increments`] counts up. A namespace without compare-and-write counts nothing.
pub async fn counter<N: Namespace>(namespace: &N) -> u64 {
    let info = namespace.info();
    let bytes = run_bytes(&info, info.compare_and_write_blocks_max);
    let (result, run) = namespace.read(ARENA, Buf::with_len(bytes)).await;
    result.expect("a read succeeds");
    if info.compare_and_write_blocks_max == 0 { 0 } else { stamp_of(&run) }
}

/// `tasks` tasks, each of which adds one to a shared counter `rounds` times by compare-and-write; returns their sum.
/// The counter fills a run of blocks, so a torn or non-atomic compare-and-write is seen, too. May run on many threads at once.
pub async fn increments<N: Namespace>(namespace: Rc<N>, tasks: u64, rounds: u64) -> u64 {
    let info = namespace.info();
    if info.compare_and_write_blocks_max == 0 {
        return 0;
    }
    let bytes = run_bytes(&info, info.compare_and_write_blocks_max);
    let mut running = Vec::new();
    for _ in 0..tasks {
        let namespace = Rc::clone(&namespace);
        running.push(task::spawn(async move {
            for _ in 0..rounds {
                increment(&*namespace, bytes).await;
            }
        }));
    }
    for task in running {
        task.await;
    }
    tasks * rounds
}

async fn increment<N: Namespace>(namespace: &N, bytes: usize) {
    let mut value = counter(namespace).await;
    loop {
        let (expected, new) = (pattern(bytes, value).freeze(), pattern(bytes, value + 1).freeze());
        match namespace.compare_and_write(ARENA, expected, new, Durability::Cached).await {
            Ok(()) => return,
            Err(Error::CompareFailure) => {
                let found = counter(namespace).await;
                assert!(found > value, "a compare failed although the counter had not changed from {value}");
                value = found;
            }
            Err(other) => panic!("compare-and-write: {other}"),
        }
    }
}
