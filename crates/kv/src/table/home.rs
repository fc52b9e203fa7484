//! Values come home again: what had to leave a page that was full, and for which there is room by now.
//!
//! Where keys are written over with values of other lengths, pages are full and roomy in turn. Without this each would keep
//! outside whatever had to leave it once, 48 bytes and a read a get for each; and the others' spare room would be in ever
//! smaller pieces. So a write that leaves room for something of its page brings that back, in the background.
//!
//! One compare-and-write of the home page, from the very image that refers to the copy, to one that has the same entries in
//! itself: to a reader nothing has changed. The copy is freed after it, by its tag (rule 3); a host that ends in between leaves
//! an orphan for the collector.

use std::rc::Rc;

use device::Namespace;
use engine::View;
use pool::TablePage;

use super::bundle::Bundles;
use super::leftover::Leftover;
use super::store::Copy;
use super::{Table, TableError, bump, uncertain};
use crate::page::{Draft, Entry, Forward, REFERENCE_BYTES, Reference, Stored};
use crate::types::OpId;

/// Part of a page's room (one in so many) that is to stay free when something comes back: else the next write would drive it
/// out again. Measured: with four times as much, 90 % of a table of mixed lengths cannot be written over for long.
const SLACK_SHARE: usize = 64;

/// What a page has room for.
pub(super) enum Back<'a> {
    Value(Entry<'a>, u32, Reference),
    Bundle(Forward<'a>),
}

/// The longest of what has left the page of `draft`, that fits it again.
pub(super) fn comes_back<'a>(draft: &Draft<'a>) -> Option<Back<'a>> {
    let spare = (draft.room() - draft.room() / SLACK_SHARE).checked_sub(draft.committed())?;
    let gains = |forward: &Forward<'_>| forward.encoded_len() + forward.reserved();
    let fits = |forward: &&Forward<'_>| forward.reference.length as usize <= spare + gains(forward);
    if let Some(forward) = draft.forwards().iter().filter(fits).max_by_key(|forward| forward.reference.length) {
        return Some(Back::Bundle(forward.clone()));
    }
    let value = |entry: &Entry<'a>| match entry.stored {
        Stored::Reference(length, reference) if length as usize <= spare + REFERENCE_BYTES => {
            Some((*entry, length, reference))
        }
        _ => None,
    };
    let longest = draft.entries().iter().filter_map(value).max_by_key(|(_, length, _)| *length)?;
    Some(Back::Value(longest.0, longest.1, longest.2))
}

impl<N: Namespace> Table<N> {
    /// Brings something of `page`, just written as `image`, back to it, if there is time for that.
    pub(super) fn bring_home_later(self: &Rc<Self>, page: TablePage, image: View) {
        let Some(permit) = self.frees.try_acquire(1) else { return };
        let table = self.clone();
        engine::task::spawn(async move {
            if let Err(error) = table.bring_home(page, image).await {
                tracing::debug!(page = page.0, %error, "a copy stays outside its page");
            }
            drop(permit);
        })
        .detach();
    }

    async fn bring_home(self: &Rc<Self>, page: TablePage, image: View) -> Result<(), TableError> {
        let view = self.decode(page, &image)?;
        let mut draft = Draft::new(&view);
        let mut bundles = Bundles::default();
        let (value, copy): (View, Copy) = match comes_back(&draft) {
            None => return Ok(()),
            Some(Back::Value(entry, length, reference)) => {
                let op = entry.timestamp.op;
                let Some(value) = self.fetch_copy(page, &reference, length as usize, op).await? else { return Ok(()) };
                (value.contiguous(), (reference, op))
            }
            Some(Back::Bundle(forward)) => {
                let Some(bytes) = self.fetch_bundle(page, &forward).await? else { return Ok(()) };
                bundles.add(forward.reference.copy, bytes.clone());
                (bytes, (forward.reference, OpId::default()))
            }
        };
        match comes_back(&draft) {
            Some(Back::Value(entry, ..)) => draft.put(Entry { stored: Stored::Inline(&value), ..entry }),
            Some(Back::Bundle(forward)) => {
                for bundled in bundles.of(&forward) {
                    draft.put(bundled.entry);
                }
                draft.remove_forward(forward.reference.copy);
            }
            None => return Ok(()),
        }
        let new = draft.encode().expect("invariant: what comes back fits").freeze();
        let lock = self.locks.lock(u64::from(page.0)).await;
        // Whoever has written it since will see for himself.
        if lock.image().is_some_and(|now| now[..] != image[..]) {
            return Ok(());
        }
        lock.set_image(None);
        match self.replace(self.layout.table(page), image.clone(), new.clone()).await {
            Ok(()) => {
                lock.set_image(Some(new));
                drop(lock);
                self.free_later(page, copy.0, copy.1).await;
            }
            Err(device::Error::CompareFailure) => bump(&self.stats.misses),
            Err(error) => {
                if uncertain(&error) {
                    self.keep(Leftover::Undecided(page, copy, Some(*view.header())));
                }
                return Err(error.into());
            }
        }
        Ok(())
    }
}
