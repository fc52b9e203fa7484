//! Values come home again: what had to leave a page that was full, and for which there is room by now.
//!
//! Where keys are written over with values of other lengths, pages are full and roomy in turn. Without this each would keep
//! outside whatever had to leave it once, 48 bytes and a read a get for each; and the others' spare room would be in ever
//! smaller pieces. So a write that leaves room for something of its page brings that back, in the background.
//!
//! One compare-and-write of the home page, from an image that refers to the copy, to one that has the same entries in itself:
//! to a reader nothing has changed. The copy is freed after it, by its tag (rule 3); a host that ends in between leaves an
//! orphan for the collector.
//!
//! Which of those that fit comes first is left to chance: one that cannot be read would else be in the way of the others at
//! each write.

use std::rc::Rc;

use engine::View;
use pool::TablePage;

use super::bundle::Bundles;
use super::ledger::{Copy, Leftover};
use super::plan::roomy;
use super::{Table, TableError, bump, uncertain};
use crate::page::{Draft, Entry, Forward, REFERENCE_BYTES, Stored, TablePageView};
use crate::types::OpId;

/// Compare-and-writes for one of them: another host's write and a doubt are outlived; the next write of the page tries again.
const TRIES_MAX: usize = 3;

/// What has left a page.
enum Away<'a> {
    /// The value of this entry, of so many bytes.
    Value(Entry<'a>, u32),
    Bundle(Forward<'a>),
}

/// One of those that have left the page and fit it again.
fn comes_back(view: &TablePageView<'_>) -> Option<Copy> {
    let draft = Draft::new(view);
    let spare = roomy(&draft).checked_sub(draft.committed())?;
    let bundle = |forward: &Forward<'_>| {
        let fits = forward.reference.length as usize <= spare + forward.encoded_len() + forward.reserved();
        fits.then(|| (forward.reference, OpId::default()))
    };
    let value = |entry: &Entry<'_>| match entry.stored {
        Stored::Reference(length, reference) if length as usize <= spare + REFERENCE_BYTES => {
            Some((reference, entry.timestamp.op))
        }
        _ => None,
    };
    let bundles = draft.forwards().iter().filter_map(bundle);
    let mut fitting: Vec<Copy> = bundles.chain(draft.entries().iter().filter_map(value)).collect();
    let chosen = (engine::task::random_u64() as usize).checked_rem(fitting.len())?;
    Some(fitting.swap_remove(chosen))
}

/// What `copy` is to the page; `None`: it refers to it no longer.
fn away<'a>(view: &TablePageView<'a>, copy: &Copy) -> Option<Away<'a>> {
    let value = |entry: Entry<'a>| match entry.stored {
        Stored::Reference(length, reference) if (reference, entry.timestamp.op) == *copy => {
            Some(Away::Value(entry, length))
        }
        _ => None,
    };
    let bundle = view.forwards().find(|forward| forward.reference == copy.0);
    bundle.map(Away::Bundle).or_else(|| view.entries().find_map(value))
}

/// The page with what `bytes` are a copy of in itself; `None`: it refers to the copy no longer, or has no room.
fn with_back(view: &TablePageView<'_>, copy: &Copy, bytes: &View) -> Option<View> {
    let mut draft = Draft::new(view);
    let mut bundles = Bundles::default();
    match away(view, copy)? {
        Away::Value(entry, _) => draft.put(Entry { stored: Stored::Inline(bytes), ..entry }),
        Away::Bundle(forward) => {
            bundles.add(copy.0.copy, bytes.clone());
            draft.remove_forward(copy.0.copy);
            bundles.of(&forward).iter().for_each(|bundled| draft.put(bundled.entry));
        }
    }
    let fits = draft.committed() <= roomy(&draft);
    fits.then(|| draft.encode().expect("invariant: what is committed is no less than what is used").freeze())
}

impl Table {
    /// Brings something of `page`, just written as `image`, back to it, if it has room, and there is time for that.
    pub(super) fn bring_home_later(self: &Rc<Self>, page: TablePage, image: &View) {
        if self.coming_home.borrow().contains(&page.0) {
            return;
        }
        let Some(permit) = self.moves.try_acquire(1) else { return };
        let view = TablePageView::decode_again(image, page.0, self.incarnation);
        let Some(copy) = view.ok().and_then(|view| comes_back(&view)) else { return };
        self.coming_home.borrow_mut().insert(page.0);
        let (table, image) = (self.clone(), image.clone());
        engine::task::spawn(async move {
            if let Err(error) = table.bring_home(page, image, copy).await {
                tracing::debug!(page = page.0, %error, "a copy stays outside its page");
            }
            table.coming_home.borrow_mut().remove(&page.0);
            drop(permit);
        })
        .detach();
    }

    async fn bring_home(self: &Rc<Self>, page: TablePage, image: View, copy: Copy) -> Result<(), TableError> {
        let bytes = match away(&self.decode(page, &image)?, &copy) {
            Some(Away::Value(_, length)) => {
                let value = self.fetch_copy(page, &copy.0, length as usize, copy.1).await?;
                value.map(|value| value.contiguous())
            }
            Some(Away::Bundle(forward)) => self.fetch_bundle(page, &forward).await?,
            None => None,
        };
        let Some(bytes) = bytes else { return Ok(()) };
        let mut doubt = None;
        let result = self.put_back(page, image, &copy, &bytes, &mut doubt).await;
        match (&result, doubt) {
            (Ok(true), _) => self.free_later(page, copy.0, copy.1).await,
            // It may have happened, or may yet: the page itself will tell.
            (_, Some(expected)) => {
                let expected = *self.decode(page, &expected)?.header();
                self.keep(Leftover::Undecided(page, copy, Some(expected)));
            }
            (_, None) => {}
        }
        result.map(|_done| ())
    }

    /// Puts what `bytes` are a copy of back into the page, which was `image`. Whether it was done; `doubt`: what the page was
    /// when an attempt to do it ended in doubt.
    async fn put_back(
        &self,
        page: TablePage,
        image: View,
        copy: &Copy,
        bytes: &View,
        doubt: &mut Option<View>,
    ) -> Result<bool, TableError> {
        let lock = self.locks.lock(u64::from(page.0)).await;
        let mut given = Some(image);
        for _ in 0..TRIES_MAX {
            let expected = match lock.image().or(given.take()) {
                Some(image) => image,
                None => self.read_raw(page).await?,
            };
            let view = self.decode(page, &expected)?;
            self.check_seal(page, view.header().seal)?;
            // Seen with other bytes it has happened or never will; with the same, the same is issued again.
            if doubt.as_ref().is_some_and(|doubt| doubt[..] != expected[..]) {
                return Ok(false);
            }
            let Some(new) = with_back(&view, copy, bytes) else { return Ok(false) };
            lock.set_image(None);
            match self.replace(self.layout.table(page), expected.clone(), new.clone()).await {
                Ok(()) => {
                    lock.set_image(Some(new));
                    return Ok(true);
                }
                Err(device::Error::CompareFailure) => bump(&self.stats.misses),
                Err(error) if uncertain(&error) && doubt.is_none() => *doubt = Some(expected),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }
}
