//! The part of a namespace that a command works on, cut along extents.

use super::layout::{EXTENT_BYTES_MIN, Layout};
use super::map::NONE;
use crate::limits::TRANSFER_BYTES_MAX;

/// Extents that one transfer can touch. Derived.
const EXTENTS_PER_COMMAND_MAX: usize = TRANSFER_BYTES_MAX / EXTENT_BYTES_MIN as usize + 1;

/// Neighbouring units of a namespace, at most a transfer.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// The first unit, counted from the namespace's start.
    pub(super) first: u64,
    pub(super) units: u32,
    extent_units: u32,
    extents: [u32; EXTENTS_PER_COMMAND_MAX],
}

/// What of a span lies in one extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Number of the extent in the namespace.
    pub(super) index: u32,
    /// The extent, or [`NONE`].
    pub(super) extent: u32,
    /// The first unit, counted from the extent's start.
    pub(super) first: u32,
    pub(super) units: u32,
    /// The first unit, counted from the span's start.
    pub(super) at: u32,
}

impl Span {
    pub(super) fn new(layout: &Layout, first: u64, units: u32) -> Span {
        Span { first, units, extent_units: layout.extent_units(), extents: [NONE; EXTENTS_PER_COMMAND_MAX] }
    }

    /// The pieces, ascending.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let (extent_units, mut at) = (u64::from(self.extent_units), 0);
        let first_index = self.first / extent_units;
        std::iter::from_fn(move || {
            let unit = self.first + u64::from(at);
            let (index, first) = (unit / extent_units, unit % extent_units);
            let units = (extent_units - first).min(u64::from(self.units - at)) as u32;
            let extent = *self.extents.get((index - first_index) as usize)?;
            let piece = Piece { index: index as u32, extent, first: first as u32, units, at };
            at += units;
            (units > 0).then_some(piece)
        })
    }

    /// Looks every extent up again.
    pub(super) fn look_up(&mut self, map: impl Fn(u32) -> u32) {
        let first = self.first / u64::from(self.extent_units);
        let last = (self.first + u64::from(self.units) - 1) / u64::from(self.extent_units);
        for (place, index) in self.extents.iter_mut().zip(first..=last) {
            *place = map(index as u32);
        }
    }

    /// The unit of the drive at which the span begins, if all of it lies there in one piece.
    pub(super) fn contiguous(&self) -> Option<u64> {
        let extent_units = u64::from(self.extent_units);
        let mut pieces = self.pieces();
        let head = pieces.next().filter(|piece| piece.extent != NONE)?;
        let follow = pieces.zip(1..).all(|(piece, step)| piece.extent.checked_sub(step) == Some(head.extent));
        follow.then(|| u64::from(head.extent) * extent_units + u64::from(head.first))
    }
}

impl Piece {
    /// The unit of the drive at which the piece begins.
    pub(super) fn unit(&self, extent_units: u32) -> u64 {
        u64::from(self.extent) * u64::from(extent_units) + u64::from(self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_at_extents() {
        let layout = Layout::new([1; 16], 64 << 20, 4096, EXTENT_BYTES_MIN, None).unwrap();
        let mut span = Span::new(&layout, 16 + 14, 20);
        let cut = |span: &Span| -> Vec<_> { span.pieces().map(|p| (p.index, p.first, p.units, p.at)).collect() };
        assert_eq!(cut(&span), [(1, 14, 2, 0), (2, 0, 16, 2), (3, 0, 2, 18)]);
        assert_eq!(span.contiguous(), None, "nothing is mapped");
        span.look_up(|index| index + 4);
        assert_eq!(span.contiguous(), Some(5 * 16 + 14));
        span.look_up(|index| 9 - index);
        assert_eq!(span.contiguous(), None);
        let whole = Span::new(&layout, 15, 256);
        assert_eq!(whole.pieces().count(), EXTENTS_PER_COMMAND_MAX, "the longest transfer at the worst place");
    }
}
