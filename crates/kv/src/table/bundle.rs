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
use pool::TablePage;

use super::{ATTEMPTS_MAX, PageImage, Table, TableError};
use crate::page::{Entry, Forward, PlaceKind, TablePageView, decode_bundle};
use crate::types::{OpId, value_checksum};

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

    fn get(&self, copy: u64) -> Option<&View> {
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

impl Table {
    /// A page with the bundles that may hold `key` (`None`: with all). `bytes`: the page as it was just read.
    pub(super) async fn complete(
        &self,
        page: TablePage,
        mut bytes: View,
        key: Option<&[u8]>,
    ) -> Result<PageImage, TableError> {
        let mut bundles = Bundles::default();
        for _ in 0..ATTEMPTS_MAX {
            if self.fetch_bundles(page, &self.decode(page, &bytes)?, key, &mut bundles).await? {
                return Ok(PageImage { page, bytes, bundles });
            }
            // Rule 4: only if the page still refers to it is it damaged.
            let now = self.read_raw(page).await?;
            if now[..] == bytes[..] {
                return Err(TableError::CopyDamaged { op: OpId::default() });
            }
            bytes = now;
        }
        Err(TableError::Contended)
    }

    /// The places of a page's bundles, for tests that look from outside.
    #[cfg(test)]
    pub(crate) async fn bundles_of(&self, page: TablePage) -> Vec<crate::page::Reference> {
        let image = self.read_page(page).await.unwrap();
        self.decode_again(&image).unwrap().forwards().map(|forward| forward.reference).collect()
    }

    /// Reads the bundles that may hold `key` (`None`: all) and are not there yet; `false`: one is not where the page says.
    pub(super) async fn fetch_bundles(
        &self,
        page: TablePage,
        view: &TablePageView<'_>,
        key: Option<&[u8]>,
        bundles: &mut Bundles,
    ) -> Result<bool, TableError> {
        if view.header().forwards == 0 || key.is_some_and(|key| view.entry(key).is_some()) {
            return Ok(true);
        }
        for forward in view.forwards() {
            let copy = forward.reference.copy;
            if bundles.get(copy).is_some() || key.is_some_and(|key| !forward.may_hold(key)) {
                continue;
            }
            match self.fetch_bundle(page, &forward).await? {
                Some(bytes) => bundles.add(copy, bytes),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The bundle of a page that `forward` speaks of; `None`: what is there is not it.
    pub(super) async fn fetch_bundle(
        &self,
        page: TablePage,
        forward: &Forward<'_>,
    ) -> Result<Option<View>, TableError> {
        let reference = &forward.reference;
        let fetched = match reference.kind {
            PlaceKind::Guest => self.fetch_guest(reference, page).await,
            PlaceKind::Extent | PlaceKind::Index => {
                self.fetch_extents(reference, reference.length as usize, OpId::default()).await
            }
        };
        let bytes = match fetched {
            Ok(Some(value)) => value.contiguous(),
            Ok(None) | Err(TableError::Page { .. } | TableError::Device(device::Error::ReadFault(_))) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let whole = value_checksum(self.checksums.of(OpId::default()), &bytes) == reference.checksum;
        let good = whole && decode_bundle(&bytes).is_ok_and(|entries| entries.len() == forward.len());
        Ok(good.then_some(bytes))
    }
}
