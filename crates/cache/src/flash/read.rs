//! Items are read back.

use std::sync::atomic::Ordering;

use device::{Error, Lba};
use engine::{Buf, View};

use super::FlashLog;
use super::counters::count;
use super::item;
use super::medium::Medium;
use super::options::Geometry;
use super::page;
use super::place::{PAGE_BYTES, Place, SLOT_KINDS};
use crate::WHOLE_BYTES_MAX;
use crate::item::{Meta, Value};

/// An item that was read. It counts only if the index, looked at again, still has its place, and
/// [`FlashLog::is_current`].
#[derive(Clone, Debug)]
pub struct Fetched {
    place: Place,
    life: u64,
    meta: Meta,
    /// The pages it lies in; the first begins with the page of its head.
    pages: Vec<View>,
    key: std::ops::Range<usize>,
    value: Vec<View>,
}

impl Fetched {
    /// Where it was read.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The life of its segment.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// What is kept with it. Times before this server's clock began are told as its first second.
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// Its key.
    pub fn key(&self) -> &[u8] {
        self.pages.first().and_then(|page| page.get(self.key.clone())).unwrap_or_default()
    }

    /// Its value, in order; no piece is empty, and up to [`WHOLE_BYTES_MAX`] it is in one at most.
    pub fn value(&self) -> &[View] {
        &self.value
    }

    /// Its value, as an item has it.
    pub fn as_value(&self) -> Value<'_> {
        match &*self.value {
            [] => Value::Whole(&[]),
            [whole] if whole.len() <= WHOLE_BYTES_MAX => Value::Whole(whole),
            chunks => Value::Chunks(chunks),
        }
    }

    /// Bytes of its value.
    pub fn value_len(&self) -> usize {
        self.value.iter().map(|piece| piece.len()).sum()
    }
}

/// What is at a place.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The item.
    Found(Fetched),
    /// Another key's item: the index's bits of both hashes are the same.
    Other,
    /// Nothing that can be read: the segment has begun another life, or the device has failed or lied. The place should
    /// leave the index; it was invalidated.
    Lost,
    /// It was not read: the target is away, or there was no memory for it. The item is where it was.
    Unread,
}

/// Which item of a page is meant.
#[derive(Clone, Copy)]
pub(crate) enum Which<'a> {
    /// The one with this key.
    Key(&'a [u8]),
    /// The one in this slot.
    Slot(usize),
}

/// What was found in bytes.
pub(crate) enum Parsed {
    Found(Fetched),
    Other,
    /// The item goes on for so many bytes from its beginning.
    Longer(usize),
    Damaged,
}

/// A target that is away, or does not answer, says nothing of its medium; whether it stays away is found out by writes.
pub(crate) fn is_away(error: &Error) -> bool {
    matches!(error, Error::NotConnected(_) | Error::Disconnected(_) | Error::Aborted)
}

/// The parts of `pages` in `range`.
fn cut(pages: &[View], range: std::ops::Range<usize>) -> Vec<View> {
    let mut at = 0;
    let mut parts = Vec::with_capacity(1);
    for page in pages {
        let (from, to) = (range.start.max(at), range.end.min(at + page.len()));
        if from < to {
            parts.push(page.slice(from - at..to - at));
        }
        at += page.len();
    }
    parts
}

/// Finds the item at `place` in `pages`, what was read from its page on, of a segment of this `life`.
pub(crate) fn parse(place: Place, which: Which<'_>, life: u64, pages: Vec<View>, origin: item::Origin) -> Parsed {
    let Some(first) = pages.first().cloned() else { return Parsed::Damaged };
    let (begin, decoded) = if place.is_shared() {
        let Some(items) = page::items(&first, place.page(), life, origin) else { return Parsed::Damaged };
        let kind = usize::from(place.kind());
        let is_it = |slot: usize, key: &[u8]| match which {
            Which::Key(wanted) => slot % usize::from(SLOT_KINDS) == kind && key == wanted,
            Which::Slot(wanted) => slot == wanted,
        };
        match items.enumerate().find(|(slot, (_, item))| is_it(*slot, item.key)) {
            Some((_, found)) => found,
            None => return Parsed::Other,
        }
    } else {
        let Some(alone) = item::decode(&first, origin).filter(|alone| alone.life == life) else {
            return Parsed::Damaged;
        };
        if matches!(which, Which::Key(wanted) if wanted != alone.item.key) {
            return Parsed::Other;
        }
        let read: usize = pages.iter().map(|page| page.len()).sum();
        if alone.item.len() > read {
            return Parsed::Longer(alone.item.len());
        }
        let is_sound = alone.is_sound(place.page(), &first, pages[1..].iter().map(|page| &**page));
        if !is_sound {
            return Parsed::Damaged;
        }
        (0, alone.item)
    };
    let value_at = begin + decoded.value_at;
    let mut value = cut(&pages, value_at..begin + decoded.len());
    if value.len() > 1 && decoded.value_len <= WHOLE_BYTES_MAX {
        // It lies on both sides of a chunk's end.
        let mut whole = Buf::with_capacity(decoded.value_len);
        value.iter().for_each(|piece| whole.extend_from_slice(piece));
        value = vec![whole.freeze()];
    }
    Parsed::Found(Fetched {
        place,
        life,
        meta: decoded.meta,
        key: value_at - decoded.key.len()..value_at,
        value,
        pages,
    })
}

/// Reads `pages` pages from `page` on, which one transfer can hold.
pub(crate) async fn read_pages(namespace: &Medium, geometry: &Geometry, page: u64, pages: u32) -> Result<Buf, Error> {
    let buf = Buf::with_len(pages as usize * PAGE_BYTES);
    let (result, buf) = namespace.read(Lba(page * geometry.blocks_per_page), buf).await;
    result.map(|()| buf)
}

impl FlashLog {
    /// Reads the item with this key at `place`: one read of a page, or of the place's size class, where it is not still
    /// in memory.
    pub async fn read(&self, place: Place, key: &[u8]) -> Lookup {
        self.look_up(place, Which::Key(key)).await
    }

    pub(crate) async fn look_up(&self, place: Place, which: Which<'_>) -> Lookup {
        let Some(life) = self.life_of(place) else { return Lookup::Lost };
        let parsed = match self.buffered(place, life) {
            Some(pages) => {
                count(&self.counters.buffer_reads, 1);
                parse(place, which, life, pages, self.origin)
            }
            None => match self.read_device(place, which, life).await {
                Ok(parsed) => parsed,
                Err(error) => {
                    count(&self.counters.read_errors, 1);
                    if is_away(&error) {
                        return Lookup::Unread;
                    }
                    return self.lost(place, life, format!("page {} cannot be read: {error}", place.page()));
                }
            },
        };
        match parsed {
            Parsed::Found(fetched) => {
                self.note_trouble(None);
                Lookup::Found(fetched)
            }
            Parsed::Other => {
                count(&self.counters.other_key_reads, 1);
                Lookup::Other
            }
            // The segment may have begun another life while it was read: nothing is wrong then.
            Parsed::Damaged | Parsed::Longer(_) if self.life_of(place) != Some(life) => Lookup::Lost,
            Parsed::Damaged | Parsed::Longer(_) => {
                count(&self.counters.checksum_errors, 1);
                self.lost(place, life, format!("page {} holds something else than what was written", place.page()))
            }
        }
    }

    /// What was at `place` is gone; `what` is wrong with the medium.
    fn lost(&self, place: Place, life: u64, what: String) -> Lookup {
        if self.life_of(place) == Some(life) {
            self.invalidate(place);
            self.note_trouble(Some(what));
        }
        Lookup::Lost
    }

    /// What is at `place`, if its segment is still in memory.
    fn buffered(&self, place: Place, life: u64) -> Option<Vec<View>> {
        let segment = place.page() / self.geometry.segment_pages;
        let may_be = self.buffered.get(segment as usize)?.load(Ordering::Acquire);
        let state = may_be.then(|| self.lock())?;
        let buffer = state.buffers.iter().find(|buffer| buffer.segment == segment && buffer.life == life)?;
        Some(buffer.bytes(place, self.origin))
    }

    async fn read_device(&self, place: Place, which: Which<'_>, life: u64) -> Result<Parsed, Error> {
        let segment = place.page() / self.geometry.segment_pages;
        let end = self.geometry.first_page(segment) + self.geometry.segment_pages;
        let mut next = place.page();
        let mut wanted = place.pages().min(end - next);
        let mut read = Vec::with_capacity(1);
        loop {
            while wanted > 0 {
                let now = wanted.min(self.geometry.chunk_pages);
                count(&self.counters.device_reads, 1);
                count(&self.counters.device_read_bytes, now as usize * PAGE_BYTES);
                let buf = read_pages(&self.namespace, &self.geometry, u64::from(next), now).await?;
                read.push(buf.freeze());
                next += now;
                wanted -= now;
                // The first piece tells how much there is.
                if read.len() == 1 && wanted > 0 {
                    break;
                }
            }
            let is_first = read.len() == 1;
            match parse(place, which, life, read.clone(), self.origin) {
                Parsed::Longer(bytes) if is_first => {
                    let pages = bytes.div_ceil(PAGE_BYTES).min(self.geometry.segment_pages as usize) as u32;
                    wanted = (place.page() + pages).min(end).saturating_sub(next);
                    if wanted == 0 {
                        return Ok(Parsed::Damaged);
                    }
                }
                parsed => return Ok(parsed),
            }
        }
    }
}
