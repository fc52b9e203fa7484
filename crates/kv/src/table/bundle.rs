//! Bundles: entries that had to leave a full home page, as one immutable copy elsewhere, with one forward record behind.
//!
//! A value can leave its home page alone (a guest); a small entry gains nothing by that. So some of them go together, whole:
//! key, timestamp, promise and all. The home page stays the only linearization point: a bundle is written before the page
//! refers to it and never changed; an entry of it counts as long as its byte in the filter is not zero; and whoever changes
//! the key takes the entry back into the page and puts the zero there in the same compare-and-write.
//!
//! A delete must work on a full member, where a page may have no room for what comes back. So beside the filter a forward
//! record has *deletions*: which entry is a tombstone by now, and by which operation. A page keeps the room for one of each
//! entry in its bundles (`Draft::committed`), whatever else is added; so the room for a key's deletion is set aside before
//! the key leaves the page, and is given back when it returns.
//!
//! The filter keeps a miss at one read: a key that is not in a bundle looks as if it were once in 255 times per entry.

use engine::View;

use crate::page::{Entry, Forward, TablePageView, decode_bundle};

/// Bundles that were read, by copy id: immutable, so they may be kept as long as one likes.
#[derive(Clone, Debug, Default)]
pub(super) struct Bundles(Vec<(u64, View)>);

/// An entry of a bundle, as its home page has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bundled<'a> {
    /// The bundle's copy id.
    pub(super) copy: u64,
    /// Its place in the bundle.
    pub(super) index: usize,
    pub(super) entry: Entry<'a>,
    /// The bundle, of which the entry is a part.
    pub(super) bytes: &'a View,
}

impl Bundles {
    pub(super) fn add(&mut self, copy: u64, bytes: View) {
        self.0.push((copy, bytes));
    }

    pub(super) fn get(&self, copy: u64) -> Option<&View> {
        self.0.iter().find(|(held, _)| *held == copy).map(|(_, bytes)| bytes)
    }

    /// The entry of `key`, if it has none in the page itself.
    pub(super) fn entry<'a>(&'a self, view: &TablePageView<'_>, key: &[u8]) -> Option<Bundled<'a>> {
        if view.header().forwards == 0 || view.entry(key).is_some() {
            return None;
        }
        let mut candidates = view.forwards().filter(|forward| forward.may_hold(key));
        candidates.find_map(|forward| self.of(&forward).into_iter().find(|bundled| bundled.entry.key == key))
    }

    /// Every entry in a bundle of the page that counts.
    pub(super) fn entries<'a>(&'a self, view: &TablePageView<'_>) -> Vec<Bundled<'a>> {
        view.forwards().flat_map(|forward| self.of(&forward)).collect()
    }

    /// The entries of one bundle that count.
    pub(super) fn of<'a>(&'a self, forward: &Forward<'_>) -> Vec<Bundled<'a>> {
        let copy = forward.reference.copy;
        let Some(bytes) = self.get(copy) else { return Vec::new() };
        // Checked when it was read.
        let entries = decode_bundle(bytes).unwrap_or_default().into_iter().enumerate();
        let counting = |(index, entry)| {
            let entry = forward.entry(index, entry)?;
            Some(Bundled { copy, index, entry, bytes })
        };
        entries.filter_map(counting).collect()
    }
}
