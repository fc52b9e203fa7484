//! What was written to a file and is not in its stripes yet: gathered in blocks of [`BLOCK_BYTES`], so that many small writes
//! become a few stripes. No I/O.
//!
//! Invariants:
//! - A read that asks for [`Dirty::pieces`] before it asks the stripes, and lays them over what these hold, sees every write that
//!   came before it, in order.
//! - Of a block at most one form is on its way to the stripes: a later one waits, so that the later bytes are the later stripe.
//! - Blocks that leave together are neighbours among what is dirty or on its way: what one of them leaves open is not being written
//!   by another.
//! - What failed on its way is dirty again, below what was written since.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use engine::{Buf, View};

use crate::data::{Rope, counted};

/// Bytes of a block, at multiples of itself. Chosen: what one stripe takes, and one buffer.
pub const BLOCK_BYTES: usize = 1 << 20;

/// Parts that are one write. Chosen: what names them is a tenth of what a map may be.
pub const PARTS_MAX: usize = 256;

/// Written ranges within a block: ascending, apart from one another.
#[derive(Clone, Default, Debug)]
struct Ranges(Vec<Range<usize>>);

#[derive(Debug)]
struct Block {
    /// As long as the furthest byte written; what lies between ranges is zeroes that nobody reads.
    buf: Buf,
    dirty: Ranges,
}

/// A block on its way.
#[derive(Clone, Debug)]
struct Leaving {
    view: View,
    dirty: Ranges,
}

/// A part of a file to be written: where, and what.
#[derive(Clone, Debug)]
pub struct Piece {
    /// First byte in the file.
    pub at: u64,
    /// The bytes.
    pub view: View,
}

/// What leaves together: blocks, ascending, and what is dirty of each.
pub type Batch = Vec<(u64, Vec<Piece>)>;

/// The dirty bytes of one file.
#[derive(Default, Debug)]
pub struct Dirty {
    blocks: BTreeMap<u64, Block>,
    leaving: BTreeMap<u64, Leaving>,
}

impl Ranges {
    fn add(&mut self, new: Range<usize>) {
        // Appending to the last one is what sequential writers do.
        if let Some(last) = self.0.last_mut()
            && last.end == new.start
        {
            last.end = new.end;
            return;
        }
        let from = self.0.partition_point(|old| old.end < new.start);
        let to = self.0.partition_point(|old| old.start <= new.end);
        let merged = match self.0.get(from..to) {
            Some([]) | None => new,
            Some([first, .., last]) => first.start.min(new.start)..last.end.max(new.end),
            Some([only]) => only.start.min(new.start)..only.end.max(new.end),
        };
        self.0.splice(from..to, [merged]);
    }

    /// What they count for a quota, each as a stripe of its own.
    fn counted(&self) -> u64 {
        self.0.iter().map(|range| counted(range.len() as u64)).sum()
    }

    /// By how much that grows with one more.
    fn growth(&self, new: &Range<usize>) -> i64 {
        let from = self.0.partition_point(|old| old.end < new.start);
        let to = self.0.partition_point(|old| old.start <= new.end).max(from);
        let met = &self.0[from..to];
        let start = met.first().map_or(new.start, |first| first.start.min(new.start));
        let end = met.last().map_or(new.end, |last| last.end.max(new.end));
        let before: u64 = met.iter().map(|range| counted(range.len() as u64)).sum();
        counted((end - start) as u64) as i64 - before as i64
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    fn is_whole(&self) -> bool {
        matches!(self.0.as_slice(), [only] if *only == (0..BLOCK_BYTES))
    }

    /// The parts of `wanted` that were written.
    fn within(&self, wanted: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let first = self.0.partition_point(|range| range.end <= wanted.start);
        let met = self.0[first..].iter().take_while(move |range| range.start < wanted.end);
        met.map(move |range| range.start.max(wanted.start)..range.end.min(wanted.end))
    }
}

/// The parts of a range by block: its number, the range within it.
fn blocks_of(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let size = BLOCK_BYTES as u64;
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let (number, from) = (at / size, at % size);
            let to = (from + (range.end - at)).min(size);
            at += to - from;
            (number, from as usize..to as usize)
        })
    })
}

impl Dirty {
    /// Notes bytes that were written at `at`.
    pub fn write(&mut self, at: u64, mut bytes: &[u8]) {
        for (number, range) in blocks_of(at..at + bytes.len() as u64) {
            let (now, rest) = bytes.split_at(range.len());
            bytes = rest;
            let block = self
                .blocks
                .entry(number)
                .or_insert_with(|| Block { buf: Buf::with_capacity(BLOCK_BYTES), dirty: Ranges::default() });
            let len = block.buf.len();
            if len == range.start {
                block.buf.extend_from_slice(now);
            } else {
                if len < range.end {
                    block.buf.set_len(range.end);
                    // What was in the buffer before is nobody's business.
                    block.buf[len..].fill(0);
                }
                block.buf[range.clone()].copy_from_slice(now);
            }
            block.dirty.add(range);
        }
    }

    /// What is dirty in a range, the later over the earlier; bytes that are not on their way are copied, as they may change.
    pub fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (number, wanted) in blocks_of(range) {
            let at = |part: &Range<usize>| number * BLOCK_BYTES as u64 + part.start as u64;
            if let Some(Leaving { view, dirty }) = self.leaving.get(&number) {
                pieces.extend(dirty.within(wanted.clone()).map(|part| Piece { at: at(&part), view: view.slice(part) }));
            }
            if let Some(Block { buf, dirty }) = self.blocks.get(&number) {
                let copy = |part: Range<usize>| Piece { at: at(&part), view: Buf::copy_from(&buf[part]).freeze() };
                pieces.extend(dirty.within(wanted).map(copy));
            }
        }
        pieces
    }

    /// The end of the last dirty byte, if any is.
    pub fn end(&self) -> Option<u64> {
        let end = |number: &u64, dirty: &Ranges| Some(number * BLOCK_BYTES as u64 + dirty.0.last()?.end as u64);
        let leaving = self.leaving.last_key_value().and_then(|(number, leaving)| end(number, &leaving.dirty));
        let block = self.blocks.last_key_value().and_then(|(number, block)| end(number, &block.dirty));
        leaving.max(block)
    }

    /// What all of it counts for a quota when it lies in stripes, also what is on its way.
    pub fn counted(&self) -> u64 {
        let dirty = self.blocks.values().map(|block| &block.dirty);
        dirty.chain(self.leaving.values().map(|leaving| &leaving.dirty)).map(Ranges::counted).sum()
    }

    /// By how much that grows with a write within one block.
    pub fn growth(&self, at: u64, length: usize) -> i64 {
        let from = (at % BLOCK_BYTES as u64) as usize;
        let range = from..from + length;
        match self.blocks.get(&(at / BLOCK_BYTES as u64)) {
            Some(block) => block.dirty.growth(&range),
            None => Ranges::default().growth(&range),
        }
    }

    /// Whether nothing is dirty, nor on its way.
    pub fn is_clean(&self) -> bool {
        self.blocks.is_empty() && self.leaving.is_empty()
    }

    /// Whether a write at `at` needs no more memory than is held.
    pub fn has_room(&self, at: u64) -> bool {
        self.blocks.contains_key(&(at / BLOCK_BYTES as u64))
    }

    /// Bytes of memory that are held.
    pub fn held(&self) -> usize {
        (self.blocks.len() + self.leaving.len()) * BLOCK_BYTES
    }

    /// The numbers of blocks that are dirty, whether an older form of them is on its way or not.
    pub fn numbers(&self) -> BTreeSet<u64> {
        self.blocks.keys().copied().collect()
    }

    /// Whether a block is on its way.
    pub fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// What may leave: a whole block, or with `all` the first that there is, with those behind it that go with it.
    pub fn take(&mut self, all: bool) -> Option<Batch> {
        self.take_first(|_, block| all || block.dirty.is_whole())
    }

    /// The same of these blocks; those that are not dirty any more are struck out, as are those that leave.
    pub fn take_of(&mut self, due: &mut BTreeSet<u64>) -> Option<Batch> {
        due.retain(|number| self.blocks.contains_key(number));
        if due.is_empty() {
            return None;
        }
        let batch = self.take_first(|number, _| due.contains(&number))?;
        due.retain(|number| batch.iter().all(|(other, _)| other != number));
        Some(batch)
    }

    /// Takes the first block that may leave. A whole one leaves alone; of others as many as are one write, up to the first that
    /// may not.
    fn take_first(&mut self, may: impl Fn(u64, &Block) -> bool) -> Option<Batch> {
        let may = |(number, block): &(&u64, &Block)| !self.leaving.contains_key(number) && may(**number, block);
        let first = *self.blocks.iter().find(may)?.0;
        let (mut numbers, mut parts, mut bytes) = (Vec::new(), 0, 0);
        for (number, block) in self.blocks.range(first..).take_while(may) {
            (parts, bytes) = (parts + block.dirty.0.len(), bytes + block.dirty.bytes());
            // Between the two, one is on its way.
            let is_past = |last: &u64| self.leaving.range(*last..*number).next().is_some();
            if !numbers.is_empty() && (parts > PARTS_MAX || bytes > BLOCK_BYTES || numbers.last().is_some_and(is_past))
            {
                break;
            }
            numbers.push(*number);
        }
        Some(numbers.into_iter().map(|number| (number, self.leave(number))).collect())
    }

    /// Takes out what was written from `size` on, and gives it; what is on its way stays.
    pub fn cut(&mut self, size: u64) -> Vec<Piece> {
        let (number, within) = (size / BLOCK_BYTES as u64, (size % BLOCK_BYTES as u64) as usize);
        let mut taken = Vec::new();
        for (at, block) in self.blocks.split_off(&number) {
            let base = at * BLOCK_BYTES as u64;
            let within = if at == number { within } else { 0 };
            let Block { buf, dirty } = block;
            let view = buf.freeze();
            let behind = dirty.within(within..BLOCK_BYTES);
            taken.extend(behind.map(|range| Piece { at: base + range.start as u64, view: view.slice(range) }));
            for range in dirty.within(0..within) {
                self.write(base + range.start as u64, &view[range]);
            }
        }
        taken
    }

    fn leave(&mut self, number: u64) -> Vec<Piece> {
        let Some(Block { buf, dirty }) = self.blocks.remove(&number) else { return Vec::new() };
        let view = buf.freeze();
        let base = number * BLOCK_BYTES as u64;
        let piece = |range: &Range<usize>| Piece { at: base + range.start as u64, view: view.slice(range.clone()) };
        let pieces = dirty.0.iter().map(piece).collect();
        self.leaving.insert(number, Leaving { view, dirty });
        pieces
    }

    /// Block `number` has arrived in the stripes.
    pub fn arrived(&mut self, number: u64) {
        self.leaving.remove(&number);
    }

    /// Block `number` has not: it is dirty again.
    pub fn failed(&mut self, number: u64) {
        let Some(Leaving { view, dirty }) = self.leaving.remove(&number) else { return };
        let newer = self.blocks.remove(&number);
        let base = number * BLOCK_BYTES as u64;
        for range in dirty.0 {
            self.write(base + range.start as u64, &view[range]);
        }
        if let Some(Block { buf, dirty }) = newer {
            for range in dirty.0 {
                self.write(base + range.start as u64, &buf[range]);
            }
        }
    }
}

/// What stripes hold of a range, which may end earlier, with what is dirty laid over it.
pub fn laid_over(stored: &Rope, dirty: &[Piece], range: Range<u64>) -> Rope {
    let (mut rope, length) = (Rope::default(), (range.end - range.start) as usize);
    for from in (0..length).step_by(BLOCK_BYTES) {
        let to = length.min(from + BLOCK_BYTES);
        let mut buf = Buf::zeroed(to - from);
        stored.slice(from.min(stored.len()), to.min(stored.len())).copy_to(&mut buf);
        let here = range.start + from as u64..range.start + to as u64;
        for Piece { at, view } in dirty {
            let (first, end) = ((*at).max(here.start), (at + view.len() as u64).min(here.end));
            if first < end {
                let part = (first - at) as usize..(end - at) as usize;
                buf[(first - here.start) as usize..(end - here.start) as usize].copy_from_slice(&view[part]);
            }
        }
        rope.push(buf.freeze());
    }
    rope
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = BLOCK_BYTES as u64;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize, u8),
        Take(bool),
        Arrive,
        Fail,
        Cut(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = prop_oneof![0..64u64, MIB - 32..MIB + 32, 2 * MIB - 32..2 * MIB + 32];
        prop_oneof![
            6 => (at, 1..64usize, any::<u8>()).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
            2 => any::<bool>().prop_map(Step::Take),
            1 => Just(Step::Arrive),
            1 => Just(Step::Fail),
            1 => (0..2 * MIB + 64).prop_map(Step::Cut),
        ]
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(steps in prop::collection::vec(step(), 1..40)) {
            let size = 3 * MIB as usize;
            let (mut stripes, mut expected) = (vec![0; size], vec![0; size]);
            let (mut dirty, mut under_way) = (Dirty::default(), Vec::new());
            for step in steps {
                match step {
                    Step::Write(at, len, byte) => {
                        dirty.write(at, &vec![byte; len]);
                        expected[at as usize..at as usize + len].fill(byte);
                    }
                    Step::Take(all) => under_way.extend(dirty.take(all)),
                    Step::Arrive => arrive(&mut under_way, &mut dirty, &mut stripes),
                    // As a truncation does it: what is on its way is waited for, and then cut out of the stripes.
                    Step::Cut(size) => {
                        dirty.cut(size);
                        arrive(&mut under_way, &mut dirty, &mut stripes);
                        stripes[size as usize..].fill(0);
                        expected[size as usize..].fill(0);
                    }
                    Step::Fail => {
                        under_way.drain(..).flatten().for_each(|(number, _)| dirty.failed(number));
                    }
                }
                let mut read = stripes.clone();
                for Piece { at, view } in dirty.pieces(0..size as u64) {
                    read[at as usize..at as usize + view.len()].copy_from_slice(&view);
                }
                prop_assert!(read == expected);
                prop_assert!(dirty.end().is_none_or(|end| end <= size as u64));
            }
            while let Some(batch) = dirty.take(true) {
                batch.into_iter().for_each(|(number, _)| dirty.arrived(number));
            }
            prop_assert!(dirty.is_clean() == under_way.is_empty());
        }
    }

    fn numbers(batch: Batch) -> Vec<u64> {
        batch.into_iter().map(|(number, _)| number).collect()
    }

    /// What is on its way comes into the stripes.
    fn arrive(under_way: &mut Vec<Batch>, dirty: &mut Dirty, stripes: &mut [u8]) {
        for (number, pieces) in under_way.drain(..).flatten() {
            assert!(pieces.is_sorted_by(|one, next| one.at + (one.view.len() as u64) < next.at));
            for Piece { at, view } in pieces {
                stripes[at as usize..at as usize + view.len()].copy_from_slice(&view);
            }
            dirty.arrived(number);
        }
    }

    #[test]
    fn parts_of_several_blocks_leave_together_as_far_as_they_are_one_write() {
        let mut dirty = Dirty::default();
        for block in [0, 1, 3, 4, 6] {
            dirty.write(block * MIB + 7, &[1; 5]);
        }
        dirty.write(4 * MIB, &vec![2; BLOCK_BYTES]);
        let batch = dirty.take(true).expect("they are dirty");
        let places: Vec<u64> = batch.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.at).collect();
        assert_eq!((numbers(batch), places), (vec![0, 1, 3], vec![7, MIB + 7, 3 * MIB + 7]), "the fourth leaves alone");
        // What lies between two parts is not another's write that is on its way.
        dirty.write(0, &[3]);
        dirty.write(2 * MIB, &[3]);
        assert_eq!(dirty.take(true).map(numbers), Some(vec![2]));
        assert_eq!(dirty.take(false).map(numbers), Some(vec![4]));
        assert_eq!(dirty.take(true).map(numbers), Some(vec![6]));
        assert!(dirty.take(true).is_none(), "of the first an older form is on its way");
        [0, 1, 3].into_iter().for_each(|number| dirty.failed(number));
        assert_eq!(dirty.take(true).map(numbers), Some(vec![0, 1]), "behind them another is on its way");
    }

    #[test]
    fn no_more_parts_leave_together_than_maps_have_room_for() {
        let mut dirty = Dirty::default();
        for block in 0..3 {
            (0..PARTS_MAX as u64 / 2).for_each(|part| dirty.write(block * MIB + 2 * part, &[1]));
        }
        assert_eq!(dirty.take(true).map(numbers), Some(vec![0, 1]));
        assert_eq!(dirty.take(true).map(numbers), Some(vec![2]));
    }

    #[test]
    fn of_what_is_due_alone_leaves() {
        let mut dirty = Dirty::default();
        (0..3).for_each(|block| dirty.write(block * MIB, &[1]));
        let mut due = BTreeSet::from([0, 2, 5]);
        assert_eq!(dirty.take_of(&mut due).map(numbers), Some(vec![0]));
        assert_eq!(due, BTreeSet::from([2]));
        assert_eq!(dirty.take_of(&mut due).map(numbers), Some(vec![2]));
        assert!(dirty.take_of(&mut due).is_none() && due.is_empty());
    }

    #[test]
    fn what_a_write_adds_to_what_counts_is_told_before() {
        let mut rng = engine::rng::SplitMix(3);
        let mut dirty = Dirty::default();
        for step in 0..400 {
            let (at, length) = (rng.below(200_000), 1 + rng.index(9000));
            let (before, growth) = (dirty.counted(), dirty.growth(at, length));
            dirty.write(at, &vec![1; length]);
            assert_eq!(before.saturating_add_signed(growth), dirty.counted(), "{step}");
            if step % 50 == 49 {
                drop(dirty.take(true));
            }
        }
    }

    #[test]
    fn a_whole_block_leaves_alone() {
        let mut dirty = Dirty::default();
        dirty.write(0, &vec![7; BLOCK_BYTES + 1]);
        let batch = dirty.take(false).expect("the first is whole");
        assert!(matches!(&batch[..], [(0, pieces)] if pieces.len() == 1 && pieces[0].view.len() == BLOCK_BYTES));
        assert!(dirty.take(false).is_none(), "the second holds one byte");
        assert_eq!((dirty.end(), dirty.held()), (Some(MIB + 1), 2 * BLOCK_BYTES));
    }

    #[test]
    fn of_a_block_one_form_is_on_its_way() {
        let mut dirty = Dirty::default();
        dirty.write(0, &[1; 10]);
        assert!(dirty.take(true).is_some());
        dirty.write(5, &[2; 10]);
        assert!(dirty.take(true).is_none(), "the earlier bytes have not arrived");
        dirty.failed(0);
        let batch = dirty.take(true).expect("both are dirty");
        assert_eq!(batch[0].1[0].view.as_ref(), [[1; 5].as_slice(), &[2; 10]].concat());
    }
}
