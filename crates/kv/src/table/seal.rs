//! Sealing a page for an epoch, and dropping what is no longer at home in it, by one compare-and-write.
//!
//! A sealed page takes no stores from hosts of older epochs, and shows them nothing: what they had under way fails at its
//! compare, since the seal has made the page another. Pages that were never written are sealed as well, or a store that
//! finds them empty would pass.

use std::rc::Rc;

use pool::TablePage;

use super::bundle::{Bundled, Bundles};
use super::ledger::{Copy, Leftover};
use super::{ATTEMPTS_MAX, PageImage, Table, TableError, bump, uncertain};
use crate::page::{Draft, Entry, Header, Stored};
use crate::types::OpId;

/// What sealing a page has done.
#[derive(Debug)]
pub struct Sealed {
    /// The page, sealed: as it was just written, or as it was read.
    pub image: PageImage,
    /// Entries that were dropped.
    pub dropped: usize,
    /// Whether the page was written.
    pub written: bool,
}

/// Copies that attempts have unlinked, or would have, and the header of the image that the last attempt in doubt expected.
#[derive(Default)]
struct Unlinked {
    copies: Vec<Copy>,
    doubt: Option<Header>,
}

impl Table {
    /// Seals a page for this table's epoch. `image`: the page if it was read just now. Done means stable.
    pub async fn seal(self: &Rc<Self>, page: TablePage, image: Option<PageImage>) -> Result<Sealed, TableError> {
        self.seal_and_drop(page, image, |_| true).await
    }

    /// Seals a page for this table's epoch, and in the same stroke drops the entries that do not `stay`. One that has the seal
    /// already is left as it is: whoever sealed it has dropped them, and what has come since may be of a later epoch, whose homes
    /// are others. To drop that would be to lose what was acknowledged.
    pub async fn seal_and_drop(
        self: &Rc<Self>,
        page: TablePage,
        image: Option<PageImage>,
        stays: impl Fn(&Entry<'_>) -> bool,
    ) -> Result<Sealed, TableError> {
        let mut unlinked = Unlinked::default();
        let result = self.replace_sealed(page, image, stays, &mut unlinked).await;
        let still_used = |copy: &Copy| match &result {
            // Somebody else may have put the entry in a bundle since.
            Ok(sealed) => self.references(&sealed.image).is_ok_and(|references| references.contains(copy)),
            Err(_) => false,
        };
        for copy in unlinked.copies.iter().filter(|copy| !still_used(copy)) {
            match (&result, unlinked.doubt) {
                (Ok(_), _) => self.free_later(page, copy.0, copy.1).await,
                // The attempt may have taken effect, or may yet: the page itself will tell.
                (Err(_), Some(expected)) => self.keep(Leftover::Undecided(page, *copy, Some(expected))),
                (Err(_), None) => {}
            }
        }
        result
    }

    async fn replace_sealed(
        &self,
        page: TablePage,
        image: Option<PageImage>,
        stays: impl Fn(&Entry<'_>) -> bool,
        unlinked: &mut Unlinked,
    ) -> Result<Sealed, TableError> {
        let lock = self.locks.lock(u64::from(page.0)).await;
        let mut given = image.map(|image| image.bytes);
        for _ in 0..ATTEMPTS_MAX {
            let expected = match lock.image().or(given.take()) {
                Some(image) => image,
                None => self.read_raw(page).await?,
            };
            let view = self.decode(page, &expected)?;
            self.check_seal(page, view.header().seal)?;
            let mut bundles = Bundles::default();
            if !self.fetch_bundles(page, &view, None, &mut bundles).await? {
                // The page has changed, or a read of it for its own sake will tell that it is damaged.
                lock.set_image(None);
                bundles = self.read_page(page).await?.bundles;
                if !self.fetch_bundles(page, &view, None, &mut bundles).await? {
                    continue;
                }
            }
            if view.header().seal == self.epoch {
                return Ok(Sealed { image: PageImage { page, bytes: expected, bundles }, dropped: 0, written: false });
            }
            let leaving: Vec<_> = view.entries().filter(|entry| !stays(entry)).collect();
            let mut bundled = bundles.entries(&view);
            bundled.retain(|bundled| !stays(&bundled.entry));
            let mut draft = Draft::new(&view);
            draft.seal(self.epoch);
            for entry in &leaving {
                draft.remove(entry.key);
                if let Stored::Reference(_, reference) = entry.stored {
                    unlinked.copies.push((reference, entry.timestamp.op));
                }
            }
            for Bundled { copy, index, entry, .. } in &bundled {
                unlinked.copies.extend(draft.take_back(*copy, *index).map(|bundle| (bundle, OpId::default())));
                if let Stored::Reference(_, reference) = entry.stored {
                    unlinked.copies.push((reference, entry.timestamp.op));
                }
            }
            let (dropped, header) = (leaving.len() + bundled.len(), *view.header());
            let new = draft.encode().expect("invariant: no longer than it was").freeze();
            lock.set_image(None);
            match self.replace(self.layout.table(page), expected.clone(), new.clone()).await {
                Ok(()) => {
                    lock.set_image(Some(new.clone()));
                    return Ok(Sealed { image: PageImage { page, bytes: new, bundles }, dropped, written: true });
                }
                Err(device::Error::CompareFailure) => bump(&self.stats.misses),
                // Seen with other bytes it has happened or never will; with the same, the same is issued again. It is the last
                // one that may yet land.
                Err(error) if uncertain(&error) => {
                    if unlinked.doubt.replace(header).is_some() {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Contended)
    }
}
