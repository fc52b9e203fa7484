//! An index that is filled with many entries before anybody looks for one: that of a restart.
//!
//! Entries are appended to their tables as they come, one store each; at the end every table is put in order, once. To insert them
//! one by one costs a search and a hundred words that move, in a table that has left the processor's caches since it was last used.

use crate::memory::Pool;

use super::{BLOCK_TABLES, Full, Index, Location, MEAN_ENTRIES, entry::Entry, table::Table};

/// An index on its way.
#[derive(Debug)]
pub struct Filling {
    index: Index,
}

impl Filling {
    /// Of an empty index, with as many tables as about `entries` need.
    pub fn new(index: Index, entries: usize) -> Filling {
        debug_assert!(index.is_empty());
        let mut filling = Filling { index };
        while entries > filling.index.tables * MEAN_ENTRIES && filling.index.may_split() {
            filling.index.add_upper(Table::default());
        }
        filling
    }

    /// Adds an entry. Of those that are one to the index the last stays.
    ///
    /// # Errors
    /// Its table is as long as they get, or the pool is empty: nothing has changed.
    pub fn append(&mut self, hash: u64, location: Location, pool: &Pool) -> Result<(), Full> {
        let index = &mut self.index;
        let (number, remainder) = index.address(hash);
        let table = &mut index.blocks[number / BLOCK_TABLES][number % BLOCK_TABLES];
        table.append(&mut index.arena, Entry::new(remainder, location), pool)?;
        index.entries += 1;
        Ok(())
    }

    /// The index, with every entry in its place; `displaced` is told where those led that are not in it.
    pub fn settle(self, pool: &Pool, mut displaced: impl FnMut(Location)) -> Index {
        let (mut index, mut spare) = (self.index, Vec::new());
        for number in 0..index.tables {
            let table = &mut index.blocks[number / BLOCK_TABLES][number % BLOCK_TABLES];
            let mut lost = 0;
            table.settle(&mut index.arena, pool, &mut spare, &mut |entry| {
                lost += 1;
                displaced(entry.location());
            });
            index.entries -= lost;
        }
        index
    }
}

/// Sorts entries by their remainders; of equal ones the order stays. `spare` is scratch.
///
/// Dealt out by the top bits, whose values come about equally often, two or three of each, entries are nearly in their places: a
/// quarter of the time of a sort that compares (20 ns an entry, where tables have two thousand).
pub(super) fn sort(entries: &mut Vec<u64>, spare: &mut Vec<u64>) {
    const DEALT: usize = 1024;
    let top = |word: u64| (word >> (u64::BITS - DEALT.trailing_zeros())) as usize;
    let mut ends = [0_u16; DEALT];
    const { assert!(super::TABLE_ENTRIES_MAX <= u16::MAX as usize) };
    entries.iter().for_each(|&word| ends[top(word)] += 1);
    let mut begin = 0;
    for end in &mut ends {
        begin += std::mem::replace(end, begin);
    }
    spare.clear();
    spare.resize(entries.len(), 0);
    for &word in &*entries {
        let at = &mut ends[top(word)];
        spare[usize::from(*at)] = word;
        *at += 1;
    }
    std::mem::swap(entries, spare);
    for end in 1..entries.len() {
        let word = entries[end];
        let mut at = end;
        while at > 0 && Entry(entries[at - 1]).remainder() > Entry(word).remainder() {
            entries[at] = entries[at - 1];
            at -= 1;
        }
        entries[at] = word;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use super::super::{FlashPlace, TABLE_ENTRIES_MAX};
    use super::*;
    use crate::hash::Hasher;
    use crate::memory::Budget;

    fn place(number: u32) -> Location {
        Location::Flash(FlashPlace { page: number, slot: 3 }, 0)
    }

    fn pool(segments: usize) -> Pool {
        let pool = Pool::new(Arc::new(Budget::new(1 << 40)), 0);
        while pool.free() < segments {
            assert!(pool.grow());
        }
        pool
    }

    /// The same entries inserted one by one, each taking the place of what is one with it: what a filled index has to be.
    fn one_by_one(hashes: &[u64], pool: &Pool) -> (Index, BTreeSet<u32>) {
        let (mut index, mut displaced) = (Index::new(1, 1), BTreeSet::new());
        for (number, &hash) in hashes.iter().enumerate() {
            if let Some((spot, older)) = index.find(hash, |_| true) {
                displaced.insert(page(older.location()));
                index.remove(spot);
            }
            index.insert(hash, place(number as u32), pool).expect("memory");
        }
        (index, displaced)
    }

    fn page(location: Location) -> u32 {
        let Location::Flash(FlashPlace { page, slot: 3 }, 0) = location else { panic!("{location:?}") };
        page
    }

    #[test]
    fn it_is_the_index_that_inserts_would_have_made() {
        let hasher = Hasher::new([5, 6]);
        for (entries, expected) in [(0, 0), (1, 1), (255, 0), (3000, 1), (40_000, 40_000), (40_000, 80_000)] {
            // Every seventh comes twice.
            let hashes: Vec<u64> = (0..entries)
                .map(|number: u64| if number % 7 == 6 { number / 2 } else { number })
                .map(|number| hasher.hash(&number.to_le_bytes()) >> 1)
                .collect();
            let pool = pool(8);
            let mut filling = Filling::new(Index::new(1, 1), expected);
            for (number, &hash) in hashes.iter().enumerate() {
                filling.append(hash, place(number as u32), &pool).expect("memory");
            }
            let mut displaced = BTreeSet::new();
            let mut index = filling.settle(&pool, |location| assert!(displaced.insert(page(location))));
            assert_eq!(index.len() + displaced.len(), hashes.len());
            // The tables are as many as were foretold, so that remainders may be one that are not in the other.
            let (reference, replaced) = one_by_one(&hashes, &pool);
            assert!(displaced.len().abs_diff(replaced.len()) <= 20, "{} {}", displaced.len(), replaced.len());
            assert!(index.len().abs_diff(reference.len()) <= 20);
            for (number, &hash) in hashes.iter().enumerate() {
                let is = |entry: Entry| page(entry.location()) == number as u32;
                assert_ne!(index.find(hash, is).is_some(), displaced.contains(&(number as u32)), "{number}");
            }
            // Of one hash the last stays.
            let last: BTreeMap<u64, u32> = hashes.iter().copied().zip(0..).collect();
            let lost = displaced.iter().filter(|&&number| last[&hashes[number as usize]] == number).count();
            assert!(lost <= 20, "{lost} of {entries}");
            // It goes on as any other.
            for (number, &hash) in hashes.iter().enumerate() {
                if let Some((spot, _)) = index.find(hash, |entry| page(entry.location()) == number as u32) {
                    index.remove(spot);
                }
            }
            assert!(index.is_empty());
            index.insert(1, place(1), &pool).expect("memory");
        }
    }

    #[test]
    fn sorted_by_their_remainders_equal_ones_stay_in_order() {
        let hasher = Hasher::new([7, 8]);
        for bits in [0, 4, 12, 24] {
            let remainder = |number: u32| (hasher.hash(&number.to_le_bytes()) >> 40) as u32 >> (24 - bits);
            let mut entries: Vec<u64> =
                (0..3000).map(|number| Entry::new(remainder(number), place(number)).0).collect();
            let mut expected = entries.clone();
            expected.sort_by_key(|&word| Entry(word).remainder());
            sort(&mut entries, &mut vec![1, 2, 3]);
            assert!(entries == expected, "{bits} bits");
        }
    }

    #[test]
    fn what_it_has_no_memory_for_is_refused_and_the_rest_stands() {
        let hasher = Hasher::new([5, 6]);
        let pool = pool(1);
        let mut filling = Filling::new(Index::new(0, 0), 100_000);
        let hash = |number: u32| hasher.hash(&number.to_le_bytes());
        let appended = (0..).take_while(|&number| filling.append(hash(number), place(number), &pool).is_ok()).count();
        assert!((150_000..262_144).contains(&appended), "{appended}");
        let mut displaced = 0;
        let index = filling.settle(&pool, |_| displaced += 1);
        assert_eq!(index.len() + displaced, appended);
        let found = (0..appended as u32).filter(|&number| index.find(hash(number), |_| true).is_some()).count();
        assert!(found >= index.len());
        assert!(displaced < appended / 20, "only those that stood behind the end: {displaced}");
    }

    #[test]
    fn a_table_as_long_as_they_get_refuses() {
        let pool = pool(2);
        let mut filling = Filling::new(Index::new(0, 0), 1);
        let appended = (0..).take_while(|&n: &u32| filling.append(u64::from(n) << 48, place(n), &pool).is_ok()).count();
        assert!((TABLE_ENTRIES_MAX * 9 / 10..TABLE_ENTRIES_MAX).contains(&appended), "{appended}");
        // All remainders are near the lowest: most stand behind their homes, and some would behind the end.
        let mut displaced = 0;
        assert_eq!(filling.settle(&pool, |_| displaced += 1).len() + displaced, appended);
    }
}
