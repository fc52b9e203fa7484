//! [`Stripe`]: what a map knows of bytes that were written at once: where they lie, and how they are known again.
//!
//! ```text
//!  chunk     u32
//!  row       varint   the first of its rows, in each of the chunk's regions
//!  length    varint   bytes of data; with the shape they tell rows, columns and granules
//!  write     u32      drawn for this write
//!  missing   varint   a bit for each column that was not written
//!  sums      u32 …    of the granules of all data columns that hold data, column by column
//! ```
//! A checksum is 32 bits of XXH3-64 of a granule under a seed of file system, chunk, row, write, column and granule: what lay there
//! before, comes later, or belongs elsewhere does not verify. Parity has none: what is made with it is verified itself.

use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::shape::{Cut, Shape};
use crate::bytes::{Reader, put_varint, varint_len};
use crate::error::Error;

/// Rows of a region. Derived: a chunk's marks take 2 KiB then, and its record stays within a page of the store.
pub const REGION_ROWS_MAX: u32 = 16_384;

/// Tells a write from every other one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StripeId {
    /// The chunk.
    pub chunk: u32,
    /// First row.
    pub row: u32,
    /// The write's number.
    pub write: u32,
}

/// A stripe, and the first place of its file that lies in it.
pub type Lain = (u64, Rc<Stripe>);

/// See the module. Never changes: what is written anew is another stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stripe {
    /// Where it lies, and by which write.
    pub id: StripeId,
    /// Bytes of data.
    pub length: u32,
    /// A bit for each column that was not written.
    pub missing: u32,
    /// Checksums of the granules of its data columns.
    pub sums: Box<[u32]>,
}

impl Stripe {
    /// How its data lies in its columns.
    pub fn cut(&self, shape: Shape) -> Cut {
        shape.cut(self.length as usize)
    }

    /// Rows that it takes in each region of its chunk.
    pub fn rows(&self, shape: Shape) -> u32 {
        self.cut(shape).rows() as u32
    }

    /// Whether a column was not written.
    pub fn is_missing(&self, column: usize) -> bool {
        self.missing >> column & 1 == 1
    }

    pub(crate) fn encoded_len(&self) -> usize {
        let numbers = [self.id.row, self.length, self.missing].map(|number| varint_len(number.into()));
        8 + numbers.iter().sum::<usize>() + 4 * self.sums.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.id.chunk.to_le_bytes());
        put_varint(out, self.id.row.into());
        put_varint(out, self.length.into());
        out.extend(self.id.write.to_le_bytes());
        put_varint(out, self.missing.into());
        out.extend(self.sums.iter().flat_map(|sum| sum.to_le_bytes()));
    }

    pub(crate) fn decode(reader: &mut Reader<'_>, shape: Shape) -> Result<Stripe, Error> {
        let chunk = reader.u32()?;
        reader.check(chunk != 0, "a stripe in no chunk")?;
        let row = reader.varint_to(u64::from(REGION_ROWS_MAX - 1), "a stripe's row")? as u32;
        let length = reader.varint_to(shape.stripe_bytes_max() as u64, "a stripe's length")? as u32;
        reader.check(length != 0, "a stripe without bytes")?;
        let write = reader.u32()?;
        let missing = reader.varint_to((1 << shape.columns()) - 1, "columns that no stripe has")? as u32;
        reader.check(missing.count_ones() as usize <= shape.parity(), "more columns missing than can be made again")?;
        let cut = shape.cut(length as usize);
        reader.check(row + cut.rows() as u32 <= REGION_ROWS_MAX, "a stripe behind the end of its chunk")?;
        let sums = reader.raw(4 * cut.sums())?;
        let sums = sums.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        Ok(Stripe { id: StripeId { chunk, row, write }, length, missing, sums })
    }
}

/// What makes the checksums of a file system its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SumSeed(pub u64);

impl SumSeed {
    /// The checksum of a granule of a data column.
    pub fn sum(self, id: StripeId, column: usize, granule: usize, bytes: &[u8]) -> u32 {
        let mut place = [0; 16];
        let words = [id.chunk, id.row, id.write, (column as u32) << 16 | granule as u32];
        place.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        xxh3_64_with_seed(bytes, xxh3_64_with_seed(&place, self.0)) as u32
    }
}
