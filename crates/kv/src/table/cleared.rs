//! Damaged pages that are cleared for their rebuilding.
//!
//! What a damaged page referred to is nobody's, but its bytes may be all that is left of its keys, and a page may only seem to
//! be damaged, so nothing is freed on its account. Once repair has seen on other members all that the page may have held, and
//! finds no room to rebuild it, it *clears* the page: in its place, by compare-and-write, come the bytes of an empty page with a
//! wrong checksum. For all others it is as damaged as before, without a vote; but it is known to refer to nothing, and what was
//! at home there can be collected and given to its rebuilding.
//!
//! A page of which nothing is left, as its bytes are none that were ever written there (zeroes, say), is cleared before anybody has
//! looked elsewhere: so that its next loss is known from this one.
//!
//! A cleared page has no next version. To bump it is to clear it again, under another salt: a rebuild that began from the bytes
//! before fails at its compare, and one that begins from these places its copies after that.

use engine::{Buf, View};
use pool::TablePage;

use super::rebuild::DamageMark;
use super::{Table, TableError, bump};
use crate::page::{CHECKSUM_BYTE, Draft, PageError, TablePageView};

impl Table {
    /// The bytes of a cleared page, never the same twice.
    pub(super) fn cleared(&self, page: TablePage) -> View {
        let draft = Draft::rebuild(self.identity(page), self.layout.page_bytes(), engine::task::random_u64());
        let mut bytes = draft.encode().expect("invariant: nothing fits a page");
        bytes[CHECKSUM_BYTE] ^= 0xff;
        bytes.freeze()
    }

    /// Whether these bytes of a page are those of a cleared one, of this life of the member.
    pub(super) fn is_cleared(&self, page: TablePage, bytes: &[u8]) -> bool {
        let mut bytes = Buf::copy_from(bytes);
        bytes[CHECKSUM_BYTE] ^= 0xff;
        let empty = |view: TablePageView<'_>| {
            view.entries().next().is_none() && view.forwards().next().is_none() && view.guests().next().is_none()
        };
        TablePageView::decode(&bytes, page.0, self.incarnation).is_ok_and(empty)
    }

    /// Clears a page whose damage has this mark; `false`: it is good, or damaged otherwise. For who has seen on other members, for
    /// this very damage, what the page may have held; or where it may repeat.
    pub(crate) async fn clear_page(&self, page: TablePage, mark: &DamageMark) -> Result<bool, TableError> {
        let lock = self.locks.lock(u64::from(page.0)).await;
        let bytes = self.read_raw(page).await?;
        match self.decode(page, &bytes) {
            Ok(_) => return Ok(false),
            // The member began anew since this host has looked: it is a stranger's page.
            Err(error @ TableError::Page { error: PageError::Incarnation { .. } | PageError::Newer(_), .. }) => {
                return Err(error);
            }
            Err(_) if self.is_cleared(page, &bytes) => return Ok(true),
            Err(_) if *mark != DamageMark::of_page(&bytes) => return Ok(false),
            Err(_) => {}
        }
        lock.set_image(None);
        match self.replace(self.layout.table(page), bytes, self.cleared(page)).await {
            Ok(()) => Ok(true),
            Err(device::Error::CompareFailure) => {
                bump(&self.stats.misses);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}
