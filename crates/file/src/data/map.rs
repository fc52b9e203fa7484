//! [`Map`]: which bytes of a file lie in which stripes; of a whole file or of one of its spans.
//!
//! Invariants: extents are sorted and do not overlap; those of one stripe do not overlap in the stripe either, and are in the same
//! order there; no stripe lies in two spans, so that whether a stripe is named is known from one map alone. What lies between
//! extents is a hole, and reads as zeroes.
//!
//! ```text
//!  stripes   varint, then each stripe            in the order in which extents name them first
//!  extents   varint, then of each:
//!     gap    varint   from the end of the one before, or from the map's begin
//!     length varint
//!     stripe varint   its number above
//!     from   varint   where in the stripe
//! ```

use std::mem;
use std::ops::Range;
use std::rc::Rc;

use super::shape::Shape;
use super::stripe::{Stripe, StripeId};
use crate::bytes::{Reader, put_varint, varint_len};
use crate::error::Error;

/// Bytes of a span: the part of a long file that one record of the store maps.
pub const SPAN_BYTES: u64 = 8 << 20;
/// The longest file. Chosen: more than members hold, and its spans can be counted in a u64 with room.
pub const FILE_BYTES_MAX: u64 = 1 << 56;
/// Bytes of a map's encoding. Chosen: what a map may grow to before whoever changes it makes it smaller, several times over.
pub const MAP_BYTES_MAX: usize = 64 << 10;

/// Bytes of a file that lie in a stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Where in the file.
    pub at: u64,
    /// How many.
    pub length: u32,
    /// Where in the stripe.
    pub from: u32,
    /// The stripe.
    pub stripe: Rc<Stripe>,
}

impl Extent {
    /// Behind its last byte.
    pub fn end(&self) -> u64 {
        self.at + u64::from(self.length)
    }

    /// The part of it that lies in `range`, if there is one.
    fn within(&self, range: &Range<u64>) -> Option<Extent> {
        let (at, end) = (self.at.max(range.start), self.end().min(range.end));
        (at < end).then(|| {
            let from = self.from + (at - self.at) as u32;
            Extent { at, length: (end - at) as u32, from, stripe: Rc::clone(&self.stripe) }
        })
    }

    /// What of it lies outside of a part of its stripe.
    pub(crate) fn outside(&self, part: &Range<usize>) -> impl Iterator<Item = Extent> + use<> {
        let at = |place: usize| self.at + (place as u64).saturating_sub(self.from.into());
        let before = self.within(&(0..at(part.start)));
        before.into_iter().chain(self.within(&(at(part.end)..u64::MAX)))
    }
}

/// A part of a range that was looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// In a stripe.
    Data(Extent),
    /// Nowhere: zeroes.
    Hole(Range<u64>),
}

/// A part of a stripe that was written again: from where, how long, and where it is in the new stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Where it was in the old stripe.
    pub from: u32,
    /// Bytes.
    pub length: u32,
    /// Where it is in the new one.
    pub to: u32,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Map {
    extents: Vec<Extent>,
}

impl Map {
    /// All extents, in their order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Whether all of it is a hole.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Behind the last byte that lies somewhere.
    pub fn end(&self) -> u64 {
        self.extents.last().map_or(0, Extent::end)
    }

    /// Every stripe that is named, once.
    pub fn stripes(&self) -> Vec<Rc<Stripe>> {
        let mut stripes: Vec<Rc<Stripe>> = Vec::new();
        for extent in &self.extents {
            if !stripes.iter().any(|stripe| stripe.id == extent.stripe.id) {
                stripes.push(Rc::clone(&extent.stripe));
            }
        }
        stripes
    }

    /// Whether an extent names the stripe.
    pub fn names(&self, id: StripeId) -> bool {
        self.extents.iter().any(|extent| extent.stripe.id == id)
    }

    /// The extents that touch a range, by number.
    fn touched(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.extents.partition_point(|extent| extent.end() <= range.start);
        let last = self.extents.partition_point(|extent| extent.at < range.end);
        first..last.max(first)
    }

    /// Puts `new` in place of whatever lies in the range, and gives the stripes that nothing names any more.
    fn put(&mut self, range: Range<u64>, new: Option<Extent>) -> Vec<Rc<Stripe>> {
        if range.is_empty() {
            return Vec::new();
        }
        let touched = self.touched(&range);
        let old = &self.extents[touched.clone()];
        // Of the first one its front may stay, of the last one its back; both may be one.
        let front = old.first().and_then(|extent| extent.within(&(0..range.start)));
        let back = old.last().and_then(|extent| extent.within(&(range.end..u64::MAX)));
        let new = front.into_iter().chain(new).chain(back);
        let removed: Vec<Extent> = self.extents.splice(touched, new).collect();
        self.gone(removed)
    }

    /// The stripes of what was taken out that nothing names any more, each once.
    fn gone(&self, removed: Vec<Extent>) -> Vec<Rc<Stripe>> {
        let mut gone: Vec<Rc<Stripe>> = Vec::new();
        for Extent { stripe, .. } in removed {
            if !self.names(stripe.id) && !gone.iter().any(|other| other.id == stripe.id) {
                gone.push(stripe);
            }
        }
        gone
    }

    /// The bytes from `at` on are those of `stripe`, all of it. Gives the stripes that nothing names any more.
    pub fn write(&mut self, at: u64, stripe: Rc<Stripe>) -> Vec<Rc<Stripe>> {
        let extent = Extent { at, length: stripe.length, from: 0, stripe };
        self.put(at..extent.end(), Some(extent))
    }

    /// Makes a range a hole, likewise.
    pub fn punch(&mut self, range: Range<u64>) -> Vec<Rc<Stripe>> {
        self.put(range, None)
    }

    /// Makes everything from `size` on a hole, likewise.
    pub fn truncate(&mut self, size: u64) -> Vec<Rc<Stripe>> {
        self.punch(size..u64::MAX)
    }

    /// What lies in these stripes is a hole. Whether anything did.
    pub fn take_out(&mut self, stripes: &[StripeId]) -> bool {
        let count = self.extents.len();
        self.extents.retain(|extent| !stripes.contains(&extent.stripe.id));
        self.extents.len() < count
    }

    /// What lies in a range, in its order and without gaps.
    pub fn lookup(&self, range: Range<u64>) -> Vec<Piece> {
        let (mut pieces, mut at) = (Vec::new(), range.start);
        for extent in &self.extents[self.touched(&range)] {
            let Some(part) = extent.within(&range) else { continue };
            if part.at > at {
                pieces.push(Piece::Hole(at..part.at));
            }
            at = part.end();
            pieces.push(Piece::Data(part));
        }
        if at < range.end {
            pieces.push(Piece::Hole(at..range.end));
        }
        pieces
    }

    /// What still names these parts of the stripe `old` names `new` from now on. Gives the stripes that nothing names any more:
    /// `old`, where all of it was moved, or `new` where nothing named what was.
    pub fn replace(&mut self, old: &Rc<Stripe>, new: &Rc<Stripe>, moved: &[Moved]) -> Vec<Rc<Stripe>> {
        let extents: Vec<Extent> = self.extents.iter().filter(|extent| extent.stripe.id == old.id).cloned().collect();
        for extent in extents {
            for part in moved {
                let from = extent.from.max(part.from);
                let end = (extent.from + extent.length).min(part.from + part.length);
                if from < end {
                    let (at, length) = (extent.at + u64::from(from - extent.from), end - from);
                    let put = Extent { at, length, from: part.to + (from - part.from), stripe: Rc::clone(new) };
                    self.put(at..put.end(), Some(put));
                }
            }
        }
        [old, new].into_iter().filter(|stripe| !self.names(stripe.id)).cloned().collect()
    }

    /// The extents of a part of the map, as a map of their own.
    pub fn part(&self, range: Range<u64>) -> Map {
        let touched = &self.extents[self.touched(&range)];
        Map { extents: touched.iter().filter_map(|extent| extent.within(&range)).collect() }
    }

    /// The numbers of an encoding: of each extent its gap and its stripe's number; and the stripes.
    fn numbered(&self, base: u64) -> (Vec<(u64, usize)>, Vec<&Rc<Stripe>>) {
        let (mut stripes, mut end) = (Vec::<&Rc<Stripe>>::new(), base);
        let mut numbers = Vec::with_capacity(self.extents.len());
        for extent in &self.extents {
            let found = stripes.iter().position(|stripe| stripe.id == extent.stripe.id).unwrap_or(stripes.len());
            if found == stripes.len() {
                stripes.push(&extent.stripe);
            }
            numbers.push((extent.at.saturating_sub(end), found));
            end = extent.end();
        }
        (numbers, stripes)
    }

    /// Bytes of the encoding of a map that begins at `base`.
    pub fn encoded_len(&self, base: u64) -> usize {
        let (numbers, stripes) = self.numbered(base);
        let of_extent = |(extent, (gap, number)): (&Extent, &(u64, usize))| {
            [*gap, extent.length.into(), *number as u64, extent.from.into()].map(varint_len).iter().sum::<usize>()
        };
        varint_len(stripes.len() as u64)
            + stripes.iter().map(|stripe| stripe.encoded_len()).sum::<usize>()
            + varint_len(numbers.len() as u64)
            + self.extents.iter().zip(&numbers).map(of_extent).sum::<usize>()
    }

    /// Appends the map, which begins at `base`.
    pub fn encode(&self, base: u64, out: &mut Vec<u8>) {
        let (numbers, stripes) = self.numbered(base);
        put_varint(out, stripes.len() as u64);
        stripes.iter().for_each(|stripe| stripe.encode(out));
        put_varint(out, numbers.len() as u64);
        for (extent, (gap, number)) in self.extents.iter().zip(numbers) {
            put_varint(out, gap);
            put_varint(out, extent.length.into());
            put_varint(out, number as u64);
            put_varint(out, extent.from.into());
        }
    }

    /// The map that these bytes are, within a range of the file; nothing is left of them.
    ///
    /// # Errors
    /// [`Error::Damaged`]: they are none that [`Map::encode`] has made.
    pub fn decode(bytes: &[u8], shape: Shape, range: Range<u64>) -> Result<Map, Error> {
        let mut reader = Reader::new("a map of a file", bytes);
        reader.check(bytes.len() <= MAP_BYTES_MAX, "it is too long")?;
        // Each stripe and extent takes a byte at least: what is asked of memory is bounded by what is there.
        let count = reader.varint_to(reader.rest() as u64, "the number of stripes")?;
        let mut stripes = Vec::new();
        for _ in 0..count {
            stripes.push(Rc::new(Stripe::decode(&mut reader, shape)?));
        }
        let count = reader.varint_to(reader.rest() as u64, "the number of extents")?;
        let (mut extents, mut end, mut named) = (Vec::new(), range.start, 0);
        // Of each stripe, where its next extent may begin.
        let mut free = vec![0; stripes.len()];
        for _ in 0..count {
            let gap = reader.varint_to(range.end - end, "an extent behind the map's end")?;
            let at = end + gap;
            let length = reader.varint_to(range.end - at, "an extent's length")?;
            let number = reader.varint_to(named as u64, "a stripe out of its order")? as usize;
            let stripe = stripes.get(number).ok_or_else(|| reader.damaged("a stripe that is not there"))?;
            let from = reader.varint_to(stripe.length.into(), "a place in a stripe")?;
            reader.check(length != 0 && from + length <= stripe.length.into(), "an extent behind its stripe's end")?;
            reader.check(from >= mem::replace(&mut free[number], from + length), "bytes of a stripe in two extents")?;
            reader.check(at / SPAN_BYTES == (at + length - 1) / SPAN_BYTES, "an extent in two spans")?;
            named = named.max(number + 1);
            end = at + length;
            extents.push(Extent { at, length: length as u32, from: from as u32, stripe: Rc::clone(stripe) });
        }
        reader.check(named == stripes.len(), "a stripe that nothing names")?;
        let mut ids: Vec<StripeId> = stripes.iter().map(|stripe| stripe.id).collect();
        ids.sort_unstable();
        reader.check(ids.is_sorted_by(|left, right| left < right), "a stripe that is there twice")?;
        reader.end()?;
        Ok(Map { extents })
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
