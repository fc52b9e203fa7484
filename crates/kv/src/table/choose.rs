//! Which values have to leave a full page, for what there is a place for. Pure.

use super::search::Wanted;
use crate::page::{DELETION_BYTES, Draft, Entry, FORWARD_FIXED_BYTES, REFERENCE_BYTES, Stored, encode_bundle};
use crate::value::Value;

/// Part of a page's room (one in so many) that a bundle has, and that a value must free to be worth a move into the heap, or
/// where one does not suffice. Chosen: short enough to find room in one page of ten at 90 % fill.
const BUNDLE_SHARE: usize = 8;
/// What a value must free to be worth a move of its own where that suffices. Measured: with more, mixed lengths fill less;
/// a move takes 48 bytes for reference and guest.
const SAVING_MIN: usize = 64;
/// What it must free where nothing else is left.
const SAVING_LEAST: usize = 16;

/// What has to go.
pub(super) enum Choice<'a> {
    /// The value of this entry.
    Value(Entry<'a>),
    /// Some entries, whole.
    Bundle(Value),
}

/// What of a page is not to leave it as other entries do.
pub(super) struct Stays<'a, F> {
    /// The key that is being put, the warmest: it goes in a bundle only where all else does not make the room. Where guests
    /// fill the page it may be all that can go.
    pub(super) put: Option<&'a [u8]>,
    /// Whether the value of a key is on the move itself.
    pub(super) moves: F,
}

/// Chooses what is to leave a page that is too full by `excess` bytes; `None`: there is nothing as it is wanted. The entries of a
/// bundle are those from the `from`th on (modulo their number), without those that stay.
pub(super) fn choose<'a>(
    draft: &Draft<'a>,
    excess: usize,
    wanted: Wanted,
    from: usize,
    stays: Stays<'_, impl Fn(&[u8]) -> bool>,
) -> Option<Choice<'a>> {
    let worth = draft.room() / BUNDLE_SHARE;
    let (most, least) = match wanted {
        Wanted::Page(most) => (most, worth.min((most / 2).max(SAVING_MIN))),
        Wanted::Heap => (usize::MAX, worth),
    };
    let values = || {
        let short = |entry: &&Entry<'a>| entry.inline().is_some_and(|value| value.len() <= most);
        draft.entries().iter().filter(short)
    };
    let suffices = |entry: &&Entry<'a>| saving(entry) >= excess.max(SAVING_MIN);
    if wanted != Wanted::Heap
        && let Some(entry) = values().filter(suffices).min_by_key(|entry| saving(entry))
    {
        return Some(Choice::Value(*entry));
    }
    let longest = values().max_by_key(|entry| saving(entry)).map(|entry| (saving(entry), *entry));
    let of_value = |least| longest.filter(|(saving, _)| *saving >= least).map(|(_, entry)| Choice::Value(entry));
    // A value that is elsewhere already would be a read further away.
    let is_put = |entry: &Entry<'_>| stays.put == Some(entry.key);
    let goes = |entry: &Entry<'_>| !is_put(entry) && !(stays.moves)(entry.key);
    let whole = |entry: &Entry<'_>| goes(entry) && !matches!(entry.stored, Stored::Reference(..));
    let saves = longest.map_or(0, |(saving, _)| saving);
    let bundle_of =
        |least, goes: &dyn Fn(&Entry<'_>) -> bool| bundle(draft, (worth, most), least, from, goes).map(Choice::Bundle);
    of_value(least)
        .or_else(|| bundle_of(saves, &whole))
        .or_else(|| of_value(SAVING_LEAST))
        .or_else(|| bundle_of(0, &goes))
        .or_else(|| bundle_of(excess.saturating_sub(1), &is_put))
        .or_else(|| bundle_of(0, &|entry| goes(entry) || is_put(entry)))
}

/// Bytes the page gains when the value of an entry moves out.
fn saving(entry: &Entry<'_>) -> usize {
    entry.inline().map_or(0, |value| value.len().saturating_sub(REFERENCE_BYTES))
}

/// A bundle of `worth` bytes of entries or, where the last does not end there, more; of all there are, where they are fewer; never
/// longer than `most`. Only of those that may go. `None` if that saves no more than `least`.
fn bundle(
    draft: &Draft<'_>,
    (worth, most): (usize, usize),
    least: usize,
    from: usize,
    goes: &dyn Fn(&Entry<'_>) -> bool,
) -> Option<Value> {
    let (later, earlier) = draft.entries().split_at(from % draft.entries().len().max(1));
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for entry in earlier.iter().chain(later).filter(|entry| goes(entry)) {
        if bytes >= worth {
            break;
        }
        if bytes + entry.encoded_len() <= most {
            bytes += entry.encoded_len();
            taken.push(*entry);
        }
    }
    taken.sort_unstable_by_key(|entry| entry.key);
    let saves = bytes > least + FORWARD_FIXED_BYTES + taken.len() * (1 + DELETION_BYTES);
    saves.then(|| Value::from(encode_bundle(&taken).freeze()))
}
