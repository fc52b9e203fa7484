//! What memcached's commands mean, as plain functions over the slot of a key. The protocols read requests into these and write
//! their outcome.

pub mod arithmetic;
pub mod store;

pub use arithmetic::{Counted, Delta};
pub use store::{Mode, Outcome, StoreCommand, Stored};

use crate::item::{Cas, Item, Seconds};
use crate::slot::Slot;

/// Reads the item: `found` is shown it as it was before this access. True if there is one.
pub fn get(slot: &mut impl Slot, found: impl FnOnce(&Item<'_>)) -> bool {
    let Some(item) = slot.item() else { return false };
    found(&item);
    slot.note_access();
    true
}

/// Reads the item as [`get`] does and changes when it expires.
pub fn get_and_touch(slot: &mut impl Slot, expires: Seconds, found: impl FnOnce(&Item<'_>)) -> bool {
    let is_found = get(slot, found);
    if is_found {
        slot.set_meta(|meta| meta.expires = expires);
    }
    is_found
}

/// What became of an item that was to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deleted {
    /// It is gone, or stale.
    Deleted,
    /// Its cas is another.
    Exists,
    /// There is none.
    NotFound,
}

/// What is to become of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delete {
    /// It goes.
    Remove,
    /// It stays, as stale, with the next cas; and expires then, if that is said.
    MarkStale(Option<Seconds>),
}

/// Deletes the item, or marks it as stale; where a cas is given, only if it is the item's.
pub fn delete(slot: &mut impl Slot, cas: Option<Cas>, delete: Delete) -> Deleted {
    let Some(item) = slot.item() else {
        // What could not be read must not come back either.
        slot.remove();
        return Deleted::NotFound;
    };
    if cas.is_some_and(|cas| cas != item.meta.cas) {
        return Deleted::Exists;
    }
    match delete {
        Delete::Remove => slot.remove(),
        Delete::MarkStale(expires) => {
            slot.set_meta(|meta| {
                meta.expires = expires.unwrap_or(meta.expires);
                meta.stale = true;
                // The next client to look wins anew.
                meta.won = false;
            });
            slot.renew_cas();
        }
    }
    Deleted::Deleted
}
