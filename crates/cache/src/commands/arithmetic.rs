//! Counting: a value that is a decimal number of 64 bits.

use crate::item::{Cas, Meta, NewValue, Value};
use crate::protocol::number::{Decimal, unsigned};
use crate::slot::{NoRoom, Slot};

/// How to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delta {
    /// Down, to 0 at the least; else up, around 2^64.
    pub down: bool,
    /// By how much.
    pub by: u64,
    /// The cas that the item has to have.
    pub cas: Option<Cas>,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// The number is now this, and this its item.
    Done {
        /// The number.
        number: u64,
        /// What is kept with it.
        meta: Meta,
    },
    /// The value is no number.
    NonNumeric,
    /// The item's cas is another.
    Exists,
    /// There is no item.
    NotFound,
}

/// Counts.
///
/// # Errors
/// There is no room for one more digit.
pub fn add_delta(slot: &mut impl Slot, delta: Delta) -> Result<Counted, NoRoom> {
    let Some(item) = slot.item() else { return Ok(Counted::NotFound) };
    if item.value.is_empty() {
        return Ok(Counted::NonNumeric);
    }
    if delta.cas.is_some_and(|cas| cas != item.meta.cas) {
        return Ok(Counted::Exists);
    }
    // A long one is none, though memcached takes one of up to 512 KiB that is blank behind its digits.
    let Value::Whole(bytes) = item.value else { return Ok(Counted::NonNumeric) };
    let Some(number) = unsigned(bytes) else { return Ok(Counted::NonNumeric) };
    let number = if delta.down { number.saturating_sub(delta.by) } else { number.wrapping_add(delta.by) };
    let (length, mut meta) = (bytes.len(), Meta { cas: Cas(0), ..item.meta });
    let text = Decimal::new(number);
    meta.cas = match length.checked_sub(text.bytes().len()) {
        // As in memcached: a number that fits the place of the old one is written there, and the place keeps its length.
        Some(spare) => {
            let blanks = vec![b' '; spare];
            slot.put(meta, NewValue::Pieces(&[text.bytes(), &blanks]))?
        }
        None => {
            // A new item: what memcached keeps in flags of its own is not taken over.
            meta = Meta { flags: meta.flags, expires: meta.expires, ..Meta::default() };
            slot.put(meta, NewValue::Pieces(&[text.bytes()]))?
        }
    };
    Ok(Counted::Done { number, meta })
}
