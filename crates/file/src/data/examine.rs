//! Looking at all of a stripe: each column is read, also those that no reader needs.
//!
//! Data verifies by its checksums. Parity has none: it is made anew of the data, once that verifies, and compared; so of a stripe
//! whose data can't all be had nothing is said of parity.

use std::ops::Range;

use device::Error as DeviceError;
use engine::time;

use super::gather::Gather;
use super::pending::Pending;
use super::rows::ChunkPlace;
use super::stripe::Stripe;
use super::write::{PATIENCE, Stripes, columns_of};

/// What was found of a stripe's columns, as bits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Examined {
    /// Their bytes are not those that were written, or the medium can't give them back.
    pub(crate) rotten: u32,
    /// Their members did not answer: nothing is known of them.
    pub(crate) unread: u32,
    /// Parts of the data that can't be had, whoever answers yet.
    pub(crate) lost: Vec<Range<usize>>,
    /// Parts that can be had if those answer that did not.
    pub(crate) unknown: Vec<Range<usize>>,
}

impl Stripes {
    /// Reads all columns that were written.
    pub(crate) async fn examine(&self, stripe: &Stripe, place: &ChunkPlace) -> Examined {
        let layout = self.members.layout();
        let cut = stripe.cut(layout.shape);
        let mut gather = Gather::new(stripe, cut, layout.seed, &self.code, 0, cut.length());
        let mut pending = Pending::new();
        for (column, region) in place.columns.iter().enumerate().filter(|(column, _)| !stripe.is_missing(*column)) {
            if let Some((from, length)) = gather.bytes(column, u64::MAX) {
                pending.push(column, self.read_column(stripe, *region, from, length));
            }
        }
        let mut found = Examined::default();
        let deadline = time::now() + PATIENCE;
        while let Some((column, result)) = pending.next_until(deadline).await {
            let is_unread = matches!(&result, Err(error) if !matches!(error, DeviceError::ReadFault(_)));
            gather.absorb(column, 0, result);
            match (is_unread, gather.is_usable(column)) {
                (true, _) => found.unread |= 1 << column,
                (false, true) => {}
                (false, false) => found.rotten |= 1 << column,
            }
        }
        pending.keys().for_each(|column| found.unread |= 1 << column);
        gather.solve();
        // Of a member that is said to be lost nothing is hoped.
        let hoped = found.unread & !self.members.lost_of(&place.columns);
        (found.lost, found.unknown) = gather.lost(hoped);
        if found.lost.is_empty() && found.unknown.is_empty() {
            let data = gather.give(0, cut.length());
            let made = columns_of(&data, &cut, &self.code, layout.seed, stripe.id).columns;
            let parity = (layout.shape.data()..layout.shape.columns()).zip(&made[layout.shape.data()..]);
            for (column, made) in parity {
                if gather.column(column).is_some_and(|read| **read != **made) {
                    found.rotten |= 1 << column;
                }
            }
        }
        found
    }
}
