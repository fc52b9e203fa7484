//! Where items are: entries of eight bytes, without keys.
//!
//! ```text
//! hash of a key, from the top:   | shard | prefix: which table | remainder: 24 bits | ...
//! ```
//!
//! **Linear hashing over tables that grow.** A table is chosen by the hash's prefix of `level` bits, or of one more bit where that
//! table has been split already; tables are split one by one in the order of their prefixes, one at most per insert. Within a
//! table entries stand in the order of their remainders (`table`), so neither growing nor splitting one needs a key.
//!
//! A table that is split gives one bit of its remainders to the prefix, and the bit that would follow at the other end is not
//! known: remainders are compared without as many low bits as there were splits since the index began. It begins with as many
//! tables as make three splits the most that its server's memory has room for (`IndexOptions`).
//!
//! Invariants:
//! - Entries of equal remainder are candidates: whoever asks compares the key. No key has two entries.
//! - One insert moves at most [`MOVED_MAX`] entries: a table is grown, and one is split. There is no other work that grows with
//!   the number of items but the vector of blocks of tables: 16 bytes for a hundred thousand items.
//!
//! Linear rather than extendible hashing: there is no directory to double, and splits come evenly; under extendible hashing all
//! tables of a random hash would be full at nearly the same time.

mod arena;
mod entry;
mod filling;
mod table;
#[cfg(test)]
mod tests;

use crate::memory::{Pool, SEGMENT_BYTES};
use arena::Arena;
pub use entry::{Entry, FlashPlace, Location, POSITION_BITS, Position};
pub use filling::Filling;
pub use table::TABLE_ENTRIES_MAX;
use table::{REMAINDER_BITS, Table};

/// Tables in one block of them.
const BLOCK_TABLES: usize = 64;
/// Entries per table at which the next table is split. Tables that are not split yet then have up to twice as many, those that
/// are have half as many at least. Derived: twice as many and five standard deviations more (270) fit a table.
const MEAN_ENTRIES: usize = 1500;
/// The most entries that one insert moves: one table is written anew, and one is split.
pub const MOVED_MAX: usize = 2 * TABLE_ENTRIES_MAX;
/// The most bits of a hash that choose shard and table. Derived: with the remainder they are all that outlives a restart on flash.
const PREFIX_BITS_MAX: u32 = crate::flash::HASH_BITS - REMAINDER_BITS;

const _: () = assert!(2 * MEAN_ENTRIES + 270 <= table::room(table::CHUNKS_MAX));
const _: () = assert!(PREFIX_BITS_MAX + 1 + REMAINDER_BITS <= 64);

/// An entry's place, until the index is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    table: u32,
    at: u16,
}

/// The table that an entry would go to has no room, and none could be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The index of one shard.
#[derive(Debug)]
pub struct Index {
    #[expect(clippy::vec_box, reason = "what a growing vector moves is pointers to blocks, not the blocks")]
    blocks: Vec<Box<[Table; BLOCK_TABLES]>>,
    tables: usize,
    /// Bits of the hash that chose the shard.
    shard_bits: u32,
    /// Bits of the prefix of tables that are not split yet.
    level: u32,
    /// Those it began with.
    first_level: u32,
    /// Tables of this level that are split: those with the lowest prefixes.
    split: usize,
    entries: usize,
    arena: Arena,
    /// The most entries that one insert has moved.
    moved_most: usize,
}

impl Index {
    /// An empty index for the shard chosen by the hash's top `shard_bits`, that begins with 2^`level` tables.
    pub fn new(shard_bits: u32, level: u32) -> Index {
        let mut index = Index {
            blocks: Vec::new(),
            tables: 0,
            shard_bits,
            level,
            first_level: level,
            split: 0,
            entries: 0,
            arena: Arena::default(),
            moved_most: 0,
        };
        (0..1 << level).for_each(|_| index.push_table(Table::default()));
        index
    }

    /// The level at which an index begins, for a shard that has `bytes` of memory: its tables take a sixty-fourth of it when each
    /// has its first entry; were all of the memory index, each would be split three times.
    pub fn first_level(bytes: usize) -> u32 {
        let tables = bytes / 64 / (arena::CHUNK_ENTRIES * 8 + size_of::<Table>());
        tables.max(1).ilog2()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Segments of memory that the index holds.
    pub fn segments(&self) -> usize {
        self.arena.segments()
    }

    /// Bytes beside its segments.
    pub fn bytes_beside(&self) -> usize {
        self.blocks.len() * (size_of::<[Table; BLOCK_TABLES]>() + 16) + self.arena.bytes_beside()
    }

    /// Bytes of segments that are in use, and beside them.
    pub fn bytes(&self) -> usize {
        self.arena.bytes_used() + self.bytes_beside()
    }

    /// The most entries that one insert has moved so far.
    pub fn moved_most(&self) -> usize {
        self.moved_most
    }

    /// The entry of `hash` that `is` accepts, of those that may be it.
    pub fn find(&self, hash: u64, mut is: impl FnMut(Entry) -> bool) -> Option<(Spot, Entry)> {
        let (table, remainder) = self.address(hash);
        let (at, entry) = self.table(table).find(&self.arena, remainder, &mut is)?;
        Some((Spot { table: table as u32, at }, entry))
    }

    /// Makes the entry at `spot` lead to another place.
    pub fn replace(&mut self, spot: Spot, location: Location) {
        let table = &self.blocks[spot.table as usize / BLOCK_TABLES][spot.table as usize % BLOCK_TABLES];
        let slot = table.slot_mut(&mut self.arena, spot.at);
        *slot = Entry::new(Entry(*slot).remainder(), location).0;
    }

    /// Adds an entry; there must be none for the same key.
    ///
    /// # Errors
    /// There is no room in its table and no memory for more: nothing has changed.
    pub fn insert(&mut self, hash: u64, location: Location, pool: &Pool) -> Result<(), Full> {
        let mut moved = 0;
        let (number, remainder) = self.address(hash);
        let entry = Entry::new(remainder, location);
        let table = &mut self.blocks[number / BLOCK_TABLES][number % BLOCK_TABLES];
        if table.insert(&mut self.arena, entry).is_err() {
            match table.grow(&mut self.arena, pool) {
                Ok(entries) => {
                    moved += entries;
                    table.insert(&mut self.arena, entry)?;
                }
                Err(Full) => moved += self.split_for(hash, location, pool)?,
            }
        }
        self.entries += 1;
        if self.entries > self.tables * MEAN_ENTRIES {
            moved += self.split_next(pool);
        }
        self.moved_most = self.moved_most.max(moved);
        Ok(())
    }

    /// Adds an entry to a table that cannot grow: where hashes came unevenly, one may be as long as they get before its turn to be
    /// split. Who comes again until there is room splits one after another.
    fn split_for(&mut self, hash: u64, location: Location, pool: &Pool) -> Result<usize, Full> {
        let moved = self.split_next(pool);
        let (number, remainder) = self.address(hash);
        let table = &mut self.blocks[number / BLOCK_TABLES][number % BLOCK_TABLES];
        table.insert(&mut self.arena, Entry::new(remainder, location))?;
        Ok(moved)
    }

    /// Takes the entry at `spot` out.
    pub fn remove(&mut self, spot: Spot) {
        let number = spot.table as usize;
        let table = &mut self.blocks[number / BLOCK_TABLES][number % BLOCK_TABLES];
        table.remove(&mut self.arena, spot.at);
        self.entries -= 1;
    }

    /// Tells all entries, in no order.
    pub fn each(&self, mut tell: impl FnMut(Entry)) {
        (0..self.tables).for_each(|number| self.table(number).each(&self.arena, &mut tell));
    }

    /// Forgets all entries. The memory goes back to the pool.
    pub fn clear(&mut self, pool: &Pool) {
        let cleared = Index::new(self.shard_bits, self.first_level);
        std::mem::replace(self, cleared).give(pool);
    }

    /// Splits the next table in two. Without memory for it, or bits of the hash, it waits: tables can take more than their mean.
    fn split_next(&mut self, pool: &Pool) -> usize {
        if !self.may_split() {
            return 0;
        }
        let number = place_of(self.split, self.level);
        let table = &mut self.blocks[number / BLOCK_TABLES][number % BLOCK_TABLES];
        let Ok((upper, moved)) = table.split(&mut self.arena, pool) else { return 0 };
        self.add_upper(upper);
        moved
    }

    /// Whether hashes have bits for another split.
    fn may_split(&self) -> bool {
        self.shard_bits + self.level < PREFIX_BITS_MAX
    }

    /// The next table has been split: this is its upper half.
    fn add_upper(&mut self, upper: Table) {
        self.push_table(upper);
        self.split += 1;
        if self.split == 1 << self.level {
            self.split = 0;
            self.level += 1;
        }
    }

    /// Gives its memory back to the pool.
    pub fn give(self, pool: &Pool) {
        self.arena.give(pool);
    }

    /// The table of a hash, and its remainder there.
    fn address(&self, hash: u64) -> (usize, u32) {
        let rest = hash << self.shard_bits;
        let longer = (rest >> (63 - self.level)) as usize;
        let (level, prefix) =
            if longer >> 1 < self.split { (self.level + 1, longer) } else { (self.level, longer >> 1) };
        let remainder = (rest << level) >> (64 - REMAINDER_BITS);
        let unknown = level - self.first_level;
        (place_of(prefix, level), (remainder >> unknown << unknown) as u32)
    }

    fn table(&self, number: usize) -> &Table {
        &self.blocks[number / BLOCK_TABLES][number % BLOCK_TABLES]
    }

    fn push_table(&mut self, table: Table) {
        if self.tables.is_multiple_of(BLOCK_TABLES) {
            self.blocks.push(Box::new(std::array::from_fn(|_| Table::default())));
        }
        self.blocks[self.tables / BLOCK_TABLES][self.tables % BLOCK_TABLES] = table;
        self.tables += 1;
    }
}

/// The number of the table of a prefix of `level` bits: the table of a prefix is that of the same prefix without its last bit if
/// that is 0; if it is 1 it is the one that was added when that one was split.
fn place_of(prefix: usize, level: u32) -> usize {
    if prefix == 0 {
        return 0;
    }
    let zeros = prefix.trailing_zeros();
    (1 << (level - zeros - 1)) + (prefix >> (zeros + 1))
}

const _: () = assert!(SEGMENT_BYTES.is_multiple_of(arena::CHUNK_ENTRIES * 8));
