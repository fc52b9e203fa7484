//! One table: entries in the order of their remainders, with gaps.
//!
//! Ordered linear probing: an entry's home is where its remainder would stand if remainders were spread evenly; it stands there or
//! behind, with no gap in between. The last slots are nobody's home, so that nothing wraps around and the order has no exception.
//!
//! Invariants:
//! - From start to end, gaps left out, remainders do not decrease.
//! - Between an entry and its home there is no gap: a search that meets a gap, or a greater remainder, is over.

use crate::memory::Pool;

use super::{
    Full,
    arena::{Arena, CHUNK_ENTRIES},
    entry::Entry,
};

/// Bits of the hash that an entry keeps.
pub(super) const REMAINDER_BITS: u32 = 24;
/// The most chunks of a table: with its counts they fill a cache line.
pub(super) const CHUNKS_MAX: usize = 14;
/// The most entries of a table. Derived.
pub const TABLE_ENTRIES_MAX: usize = CHUNKS_MAX * CHUNK_ENTRIES;
/// Slots at the end that are nobody's home. Chosen: at the highest load one table in twenty has an entry farther from its home than
/// that; it grows a little earlier.
const TAIL: usize = 32;

/// How many entries fit into so many chunks. Chosen, 61/64 of the homes: eleven slots are then looked at for an entry on the mean,
/// one cache line or two.
pub(super) const fn room(chunks: usize) -> usize {
    if chunks == 0 { 0 } else { (chunks * CHUNK_ENTRIES - TAIL) * 61 / 64 }
}

/// A table: its chunks in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    count: u16,
    chunks: u16,
    ids: [u32; CHUNKS_MAX],
}

const _: () = assert!(size_of::<Table>() <= 64);

impl Table {
    /// The first entry of this remainder that `is` accepts.
    pub(super) fn find(
        &self,
        arena: &Arena,
        remainder: u32,
        is: &mut impl FnMut(Entry) -> bool,
    ) -> Option<(u16, Entry)> {
        let mut at = self.home(remainder);
        for &id in &self.ids[at / CHUNK_ENTRIES..self.chunks as usize] {
            for &word in &arena.chunk(id)[at % CHUNK_ENTRIES..] {
                let entry = Entry(word);
                if word == 0 || entry.remainder() > remainder {
                    return None;
                }
                if entry.remainder() == remainder && is(entry) {
                    return Some((at as u16, entry));
                }
                at += 1;
            }
        }
        None
    }

    /// Tells all entries.
    pub(super) fn each(&self, arena: &Arena, tell: &mut impl FnMut(Entry)) {
        let words = self.ids[..self.chunks as usize].iter().flat_map(|&id| arena.chunk(id));
        words.filter(|&&word| word != 0).for_each(|&word| tell(Entry(word)));
    }

    /// The slot at `at`, to be given another entry of the same remainder.
    pub(super) fn slot_mut<'a>(&self, arena: &'a mut Arena, at: u16) -> &'a mut u64 {
        &mut arena.chunk_mut(self.ids[at as usize / CHUNK_ENTRIES])[at as usize % CHUNK_ENTRIES]
    }

    pub(super) fn insert(&mut self, arena: &mut Arena, entry: Entry) -> Result<(), Full> {
        if self.count as usize >= room(self.chunks as usize) {
            return Err(Full);
        }
        let remainder = entry.remainder();
        let is_behind = |word: u64| word == 0 || Entry(word).remainder() > remainder;
        let at = self.first(arena, self.home(remainder), is_behind).ok_or(Full)?;
        let gap = self.first(arena, at, |word| word == 0).ok_or(Full)?;
        self.push(arena, at, gap);
        self.set(arena, at, entry.0);
        self.count += 1;
        Ok(())
    }

    /// Adds an entry behind those that came before: in no order, and nothing is found until [`Table::settle`].
    pub(super) fn append(&mut self, arena: &mut Arena, entry: Entry, pool: &Pool) -> Result<(), Full> {
        let (count, chunks) = (self.count as usize, self.chunks as usize);
        if count == room(chunks) {
            if chunks == CHUNKS_MAX {
                return Err(Full);
            }
            self.ids[chunks] = arena.take(pool).ok_or(Full)?;
            self.chunks += 1;
        }
        self.set(arena, count, entry.0);
        self.count += 1;
        Ok(())
    }

    /// Puts in order what was appended. Of equal remainders the last one stays; `displaced` is told of the others, and of those
    /// for which there is no room in the end. `spare` is scratch.
    pub(super) fn settle(
        &mut self,
        arena: &mut Arena,
        pool: &Pool,
        spare: &mut Vec<u64>,
        displaced: &mut impl FnMut(Entry),
    ) {
        self.unload(arena);
        let mut entries = std::mem::take(&mut arena.scratch);
        super::filling::sort(&mut entries, spare);
        let mut kept = 0;
        for at in 0..entries.len() {
            let word = entries[at];
            if entries.get(at + 1).is_some_and(|&next| Entry(next).remainder() == Entry(word).remainder()) {
                displaced(Entry(word));
            } else {
                entries[kept] = word;
                kept += 1;
            }
        }
        entries.truncate(kept);
        while self.chunks > 1 && room(self.chunks as usize - 1) >= kept {
            self.chunks -= 1;
            arena.give_chunk(self.ids[self.chunks as usize]);
        }
        // One in twenty wants one chunk more: its last entries would stand behind the end.
        while self.load(arena, &entries).is_err() {
            let more = if (self.chunks as usize) < CHUNKS_MAX { arena.take(pool) } else { None };
            match more {
                Some(chunk) => {
                    self.ids[self.chunks as usize] = chunk;
                    self.chunks += 1;
                }
                None => entries.pop().into_iter().for_each(|word| displaced(Entry(word))),
            }
        }
        arena.scratch = entries;
    }

    /// The first slot from `from` on whose word `is` accepts.
    fn first(&self, arena: &Arena, from: usize, is: impl Fn(u64) -> bool) -> Option<usize> {
        let mut within = from % CHUNK_ENTRIES;
        for (number, &id) in self.ids[..self.chunks as usize].iter().enumerate().skip(from / CHUNK_ENTRIES) {
            if let Some(found) = arena.chunk(id)[within..].iter().position(|&word| is(word)) {
                return Some(number * CHUNK_ENTRIES + within + found);
            }
            within = 0;
        }
        None
    }

    /// Moves what stands from `at` up to `gap` one slot on, chunk by chunk from the last: a hundred words in a table that is full.
    fn push(&self, arena: &mut Arena, at: usize, mut gap: usize) {
        loop {
            let number = gap / CHUNK_ENTRIES;
            let begin = number * CHUNK_ENTRIES;
            let words = arena.chunk_mut(self.ids[number]);
            if at >= begin {
                return words.copy_within(at - begin..gap - begin, at - begin + 1);
            }
            words.copy_within(0..gap - begin, 1);
            gap = begin - 1;
            let last = self.get(arena, gap);
            self.set(arena, begin, last);
        }
    }

    /// Takes out what is at `at`; what it had pushed behind its home moves back.
    pub(super) fn remove(&mut self, arena: &mut Arena, at: u16) {
        let mut gap = at as usize;
        for from in gap + 1..self.slots() {
            let word = self.get(arena, from);
            if word == 0 || self.home(Entry(word).remainder()) > gap {
                break;
            }
            self.set(arena, gap, word);
            gap = from;
        }
        self.set(arena, gap, 0);
        self.count -= 1;
        self.shrink(arena);
    }

    /// One chunk more. The answer is how many entries were moved.
    pub(super) fn grow(&mut self, arena: &mut Arena, pool: &Pool) -> Result<usize, Full> {
        if self.chunks as usize == CHUNKS_MAX {
            return Err(Full);
        }
        let chunk = arena.take(pool).ok_or(Full)?;
        self.unload(arena);
        self.ids[self.chunks as usize] = chunk;
        self.chunks += 1;
        let entries = std::mem::take(&mut arena.scratch);
        // Homes have moved apart by as much as there are more of them, so that all entries fit as they did.
        let spread = self.load(arena, &entries);
        debug_assert!(spread.is_ok());
        let moved = entries.len();
        arena.scratch = entries;
        Ok(moved)
    }

    /// Gives chunks back that are no longer needed: at three quarters of what one chunk less has room for, so that the same few
    /// entries that come and go do not have it grow and shrink.
    fn shrink(&mut self, arena: &mut Arena) {
        let chunks = self.chunks as usize;
        if self.count == 0 {
            self.ids[..chunks].iter().for_each(|&id| arena.give_chunk(id));
            self.chunks = 0;
            return;
        }
        if chunks < 2 || self.count as usize >= room(chunks - 1) * 3 / 4 {
            return;
        }
        self.unload(arena);
        let entries = std::mem::take(&mut arena.scratch);
        self.chunks -= 1;
        if self.load(arena, &entries).is_ok() {
            arena.give_chunk(self.ids[chunks - 1]);
        } else {
            self.chunks += 1;
            let back = self.load(arena, &entries);
            debug_assert!(back.is_ok(), "they have stood there before");
        }
        arena.scratch = entries;
    }

    /// Splits by the top bit of the remainders: those with a 1 go to the table that is returned, with the number of moved entries.
    /// All remainders lose that bit and get a 0 at their end.
    pub(super) fn split(&mut self, arena: &mut Arena, pool: &Pool) -> Result<(Table, usize), Full> {
        let mut upper = Table::default();
        let lower_count = self.lower_count(arena);
        let upper_count = self.count as usize - lower_count;
        let chunks_for = |count: usize| (0..=CHUNKS_MAX).find(|&chunks| room(chunks) >= count).unwrap_or(CHUNKS_MAX);
        let needed = chunks_for(lower_count) + chunks_for(upper_count);
        let mut spare = Vec::new();
        // One more than needed for each: entries may stand farther from their homes than the tail is long.
        while self.chunks as usize + spare.len() < needed + 2 {
            let Some(chunk) = arena.take(pool) else { break };
            spare.push(chunk);
        }
        if self.chunks as usize + spare.len() < needed {
            spare.into_iter().for_each(|chunk| arena.give_chunk(chunk));
            return Err(Full);
        }
        let before = self.clone();
        self.unload(arena);
        let entries = std::mem::take(&mut arena.scratch);
        let shifted = |half: &[u64]| half.iter().map(|&word| Entry(word).shifted().0).collect::<Vec<_>>();
        let halves = [shifted(&entries[..lower_count]), shifted(&entries[lower_count..])];
        spare.extend_from_slice(&before.ids[..before.chunks as usize]);
        let loaded = self
            .fill(arena, &halves[0], chunks_for(lower_count), &mut spare)
            .and_then(|()| upper.fill(arena, &halves[1], chunks_for(upper_count), &mut spare));
        if loaded.is_err() {
            // Back to how it was: the old chunks, and the others are free.
            let mut all: Vec<u32> = spare;
            all.extend_from_slice(&self.ids[..self.chunks as usize]);
            all.extend_from_slice(&upper.ids[..upper.chunks as usize]);
            all.retain(|id| !before.ids[..before.chunks as usize].contains(id));
            *self = before;
            let back = self.load(arena, &entries);
            debug_assert!(back.is_ok(), "they have stood there before");
            spare = all;
        }
        spare.into_iter().for_each(|chunk| arena.give_chunk(chunk));
        let moved = entries.len();
        arena.scratch = entries;
        loaded.map(|()| (upper, moved))
    }

    /// Becomes a table of these entries in so many chunks of `spare`, or in one more.
    fn fill(&mut self, arena: &mut Arena, entries: &[u64], chunks: usize, spare: &mut Vec<u32>) -> Result<(), Full> {
        self.chunks = 0;
        self.count = 0;
        for _ in 0..chunks {
            self.add(spare)?;
        }
        if self.load(arena, entries).is_ok() {
            return Ok(());
        }
        self.add(spare)?;
        self.load(arena, entries)
    }

    fn add(&mut self, spare: &mut Vec<u32>) -> Result<(), Full> {
        if self.chunks as usize == CHUNKS_MAX {
            return Err(Full);
        }
        self.ids[self.chunks as usize] = spare.pop().ok_or(Full)?;
        self.chunks += 1;
        Ok(())
    }

    /// How many entries have a remainder whose top bit is 0.
    fn lower_count(&self, arena: &Arena) -> usize {
        let words = (0..self.slots()).map(|at| self.get(arena, at)).filter(|&word| word != 0);
        words.take_while(|&word| word >> 63 == 0).count()
    }

    /// All entries, in order, into the scratch. They stay in their chunks until these are loaded anew.
    fn unload(&self, arena: &mut Arena) {
        let mut scratch = std::mem::take(&mut arena.scratch);
        scratch.clear();
        scratch.reserve_exact(TABLE_ENTRIES_MAX);
        for &id in &self.ids[..self.chunks as usize] {
            scratch.extend(arena.chunk(id).iter().filter(|&&word| word != 0));
        }
        arena.scratch = scratch;
    }

    /// Writes `entries`, which are in order, into the chunks. Fails where the last ones would stand behind the end.
    fn load(&mut self, arena: &mut Arena, entries: &[u64]) -> Result<(), Full> {
        for &id in &self.ids[..self.chunks as usize] {
            arena.chunk_mut(id).fill(0);
        }
        let mut next = 0;
        for &word in entries {
            let at = self.home(Entry(word).remainder()).max(next);
            if at >= self.slots() {
                return Err(Full);
            }
            self.set(arena, at, word);
            next = at + 1;
        }
        self.count = entries.len() as u16;
        Ok(())
    }

    fn home(&self, remainder: u32) -> usize {
        let homes = self.slots().saturating_sub(TAIL);
        ((u64::from(remainder) * homes as u64) >> REMAINDER_BITS) as usize
    }

    fn slots(&self) -> usize {
        self.chunks as usize * CHUNK_ENTRIES
    }

    fn get(&self, arena: &Arena, at: usize) -> u64 {
        arena.chunk(self.ids[at / CHUNK_ENTRIES])[at % CHUNK_ENTRIES]
    }

    fn set(&self, arena: &mut Arena, at: usize, word: u64) {
        arena.chunk_mut(self.ids[at / CHUNK_ENTRIES])[at % CHUNK_ENTRIES] = word;
    }
}
