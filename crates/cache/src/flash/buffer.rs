//! A segment on its way to the medium: where its items go, and their bytes until they are there. No I/O.
//!
//! Invariants:
//! - An item that fits in a page lies in one page. A longer one begins at the beginning of a page and goes on without a
//!   gap; what its last page has left is shared.
//! - Two items that the index may take for one another are in one page never in slots of the same kind: a place, in one life of
//!   its segment, means one item. Else a reader that was told of the first and looks again when the second has taken its
//!   place in the index would take one for the other.
//! - Room for the summary of all items is kept at the segment's end.
//! - All bytes stay here until the summary is on the medium: so no item is ever half here and half there.

use engine::{Buf, View};

use super::item::{self, Head, Origin};
use super::page::{ROOM_BYTES, trailer};
use super::place::{PAGE_BYTES, Place, SLOT_KINDS};
use super::summary;

/// Pages that are filled at the same time; each new item goes where the least is left. Measured on sizes as ETC has
/// them: four write 1.0868 bytes per byte of key and value, eight 1.0856, sixteen and thirty-two 1.0854
/// (docs/cache.md).
pub(crate) const OPEN_PAGES_MAX: usize = 8;
/// Hashes without so many low bits are equal of all that the index may take for one another: it keeps 24 bits, and the table's and
/// the shard's beside.
const TOLD_APART_SHIFT: u32 = 64 - 24;
/// Less than this at the end of a longer item is not worth a trailer. Guessed: a short item.
const SHARED_TAIL_BYTES_MIN: usize = 64;

/// A page that takes more items.
struct OpenPage {
    /// Within the segment.
    page: u32,
    start: u16,
    end: u16,
    /// Hashes of the items, in order of their slots.
    hashes: Vec<u64>,
}

impl OpenPage {
    fn left(&self) -> usize {
        ROOM_BYTES - usize::from(self.end)
    }

    /// The kind of its next slot is no other's with this hash.
    fn tells_apart(&self, hash: u64) -> bool {
        let kinds = usize::from(SLOT_KINDS);
        let same_kind = self.hashes.iter().skip(self.hashes.len() % kinds).step_by(kinds);
        !same_kind.copied().any(|other| other >> TOLD_APART_SHIFT == hash >> TOLD_APART_SHIFT)
    }
}

enum Chunk {
    /// Nothing was put there yet.
    Empty,
    Filling(Buf),
    /// No byte of it will change.
    Full {
        view: View,
        is_given: bool,
    },
}

/// A part of a segment that is to be written.
pub(crate) struct Part {
    /// First page, in the namespace.
    pub(crate) page: u64,
    pub(crate) bytes: View,
}

/// A segment that is not on the medium as a whole.
pub(crate) struct SegmentBuffer {
    pub(crate) segment: u32,
    pub(crate) life: u64,
    /// Number of its first page in the namespace.
    first: u32,
    pages: u32,
    chunk_pages: u32,
    /// The first page that nothing was given.
    cursor: u32,
    chunks: Vec<Chunk>,
    open: Vec<OpenPage>,
    records: Vec<u64>,
    is_sealed: bool,
    parts_written: usize,
    is_summary_given: bool,
}

/// An item to be put into a segment.
pub(crate) struct NewItem<'a> {
    pub(crate) hash: u64,
    pub(crate) head: Head,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [&'a [u8]],
    pub(crate) len: usize,
}

impl NewItem<'_> {
    /// Whether it gets pages for itself.
    pub(crate) fn is_alone(len: usize) -> bool {
        len > ROOM_BYTES
    }
}

impl SegmentBuffer {
    pub(crate) fn new(segment: u32, life: u64, pages: u32, chunk_pages: u32) -> SegmentBuffer {
        let chunks = std::iter::repeat_with(|| Chunk::Empty).take((pages / chunk_pages) as usize).collect();
        SegmentBuffer {
            segment,
            life,
            first: segment * pages,
            pages,
            chunk_pages,
            cursor: 0,
            chunks,
            open: Vec::with_capacity(OPEN_PAGES_MAX),
            records: Vec::new(),
            is_sealed: false,
            parts_written: 0,
            is_summary_given: false,
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The items that are in it, as its summary will list them.
    pub(crate) fn into_records(self) -> Vec<u64> {
        self.records
    }

    /// Puts an item in. `None`: there is no room; nothing has changed. `spare` gives zeroed memory for a chunk.
    pub(crate) fn put(&mut self, item: &mut NewItem<'_>, mut spare: impl FnMut() -> Buf) -> Option<Place> {
        // Room for one more record is there, or can be had.
        let data_pages = self.pages.checked_sub(summary::pages(self.records.len() + 1))?;
        if self.is_sealed || self.cursor > data_pages {
            return None;
        }
        if NewItem::is_alone(item.len) {
            return self.put_alone(item, data_pages, spare);
        }
        let fitting = self.open.iter_mut().filter(|page| page.left() >= item.len && page.tells_apart(item.hash));
        let index = match fitting.map(|page| page.left()).min() {
            Some(least) => {
                let is_it = |page: &OpenPage| page.left() == least && page.tells_apart(item.hash);
                self.open.iter().position(is_it)?
            }
            None if self.cursor < data_pages => {
                let page = self.cursor;
                self.advance(1, &mut spare);
                self.open_page(OpenPage { page, start: 0, end: 0, hashes: Vec::new() })
            }
            None => return None,
        };
        let page = &mut self.open[index];
        let (number, slot, at) = (page.page, page.hashes.len() as u32, usize::from(page.end));
        page.hashes.push(item.hash);
        page.end += item.len as u16;
        let trailer = trailer(self.first + number, page.start, page.end, self.life);
        let place = Place::shared(self.first + number, slot);
        self.write(number, at, item);
        self.write_bytes(number as usize * PAGE_BYTES + ROOM_BYTES, &trailer);
        self.records.push(summary::record(item.hash, place, self.first));
        Some(place)
    }

    fn put_alone(&mut self, item: &mut NewItem<'_>, data_pages: u32, mut spare: impl FnMut() -> Buf) -> Option<Place> {
        let pages = item.len.div_ceil(PAGE_BYTES) as u32;
        if pages > data_pages - self.cursor {
            return None;
        }
        let page = self.cursor;
        self.advance(pages, &mut spare);
        item.head.set_life(self.life);
        self.write(page, 0, item);
        let place = Place::alone(self.first + page, pages);
        self.records.push(summary::record(item.hash, place, self.first));
        let end = item.len - (pages as usize - 1) * PAGE_BYTES;
        if end + SHARED_TAIL_BYTES_MIN <= ROOM_BYTES {
            let (last, end) = (page + pages - 1, end as u16);
            let trailer = trailer(self.first + last, end, end, self.life);
            self.write_bytes(last as usize * PAGE_BYTES + ROOM_BYTES, &trailer);
            self.open_page(OpenPage { page: last, start: end, end, hashes: Vec::new() });
        }
        Some(place)
    }

    /// Takes one more page among the open ones; where there are too many the fullest is closed. Where it is.
    fn open_page(&mut self, page: OpenPage) -> usize {
        if self.open.len() >= OPEN_PAGES_MAX {
            let fullest = (0..self.open.len()).min_by_key(|&index| self.open[index].left());
            fullest.map(|index| self.open.swap_remove(index));
        }
        self.open.push(page);
        self.open.len() - 1
    }

    /// Gives out the next `pages`.
    fn advance(&mut self, pages: u32, spare: &mut impl FnMut() -> Buf) {
        self.cursor += pages;
        let chunks = self.cursor.div_ceil(self.chunk_pages) as usize;
        for chunk in self.chunks[..chunks].iter_mut().rev().take_while(|chunk| matches!(chunk, Chunk::Empty)) {
            *chunk = Chunk::Filling(spare());
        }
    }

    fn write(&mut self, page: u32, at: usize, item: &NewItem<'_>) {
        let mut at = page as usize * PAGE_BYTES + at;
        for bytes in [item.head.bytes(), item.key].into_iter().chain(item.value.iter().copied()) {
            self.write_bytes(at, bytes);
            at += bytes.len();
        }
    }

    /// Copies `bytes` to byte `at` of the segment, over as many chunks as it takes.
    fn write_bytes(&mut self, mut at: usize, mut bytes: &[u8]) {
        let chunk_bytes = self.chunk_pages as usize * PAGE_BYTES;
        while !bytes.is_empty() {
            let (chunk, within) = (at / chunk_bytes, at % chunk_bytes);
            let (now, rest) = bytes.split_at(bytes.len().min(chunk_bytes - within));
            match &mut self.chunks[chunk] {
                Chunk::Filling(buf) => buf[within..within + now.len()].copy_from_slice(now),
                Chunk::Empty | Chunk::Full { .. } => {
                    unreachable!("invariant: pages that were given out and may change")
                }
            }
            at += now.len();
            bytes = rest;
        }
    }

    /// Nothing more is put in.
    pub(crate) fn seal(&mut self) {
        self.is_sealed = true;
        self.open.clear();
    }

    /// Whether no byte of chunk `index` will change any more.
    fn is_settled(&self, index: usize) -> bool {
        let pages = index as u32 * self.chunk_pages..(index as u32 + 1) * self.chunk_pages;
        self.is_sealed || (self.cursor >= pages.end && !self.open.iter().any(|open| pages.contains(&open.page)))
    }

    /// Whether something can be written: a chunk, or the summary.
    pub(crate) fn has_work(&self) -> bool {
        let next = self.chunks.iter().position(|chunk| !matches!(chunk, Chunk::Full { is_given: true, .. }));
        match next.map(|index| (index, &self.chunks[index])) {
            Some((index, Chunk::Filling(_))) => self.is_settled(index),
            Some((_, Chunk::Full { .. })) => true,
            Some((_, Chunk::Empty)) | None => self.ready_records().is_some(),
        }
    }

    /// The next chunk that can be written: no byte of it will change any more.
    pub(crate) fn next_part(&mut self) -> Option<Part> {
        for index in 0..self.chunks.len() {
            let is_settled = self.is_settled(index);
            let first = index as u32 * self.chunk_pages;
            let pages = self.cursor.saturating_sub(first).min(self.chunk_pages);
            let chunk = &mut self.chunks[index];
            if let Chunk::Filling(buf) = chunk
                && is_settled
            {
                let mut buf = std::mem::take(buf);
                buf.set_len(pages as usize * PAGE_BYTES);
                *chunk = Chunk::Full { view: buf.freeze(), is_given: false };
            }
            match chunk {
                Chunk::Full { is_given: true, .. } => {}
                Chunk::Full { view, is_given } => {
                    *is_given = true;
                    return Some(Part { page: u64::from(self.first + first), bytes: view.clone() });
                }
                Chunk::Empty | Chunk::Filling(_) => return None,
            }
        }
        None
    }

    /// One more part is on the medium.
    pub(crate) fn note_written(&mut self) {
        self.parts_written += 1;
    }

    /// The records, when all else is on the medium and the summary can follow, and was not taken yet.
    fn ready_records(&self) -> Option<&[u64]> {
        let parts = self.chunks.iter().filter(|chunk| !matches!(chunk, Chunk::Empty)).count();
        (self.is_sealed && self.parts_written == parts && !self.is_summary_given).then_some(&self.records)
    }

    /// The records of the summary, once, when it is time to write it.
    pub(crate) fn take_records(&mut self) -> Option<Vec<u64>> {
        let records = self.ready_records()?.to_vec();
        self.is_summary_given = true;
        Some(records)
    }

    /// Bytes that are still to be written, as things stand.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        let given = self.chunks.iter().filter(|chunk| matches!(chunk, Chunk::Full { is_given: true, .. })).count();
        let summary = if self.is_summary_given { 0 } else { summary::pages(self.records.len()) };
        let data = self.cursor.saturating_sub(given as u32 * self.chunk_pages);
        (data + summary) as usize * PAGE_BYTES
    }

    /// The first page of the summary, in the namespace.
    pub(crate) fn summary_page(&self) -> u64 {
        u64::from(self.first + self.pages - summary::pages(self.records.len()))
    }

    /// The chunks' memory back, as far as nobody reads from it any more.
    pub(crate) fn into_memory(self) -> impl Iterator<Item = Buf> {
        self.chunks.into_iter().filter_map(|chunk| match chunk {
            Chunk::Filling(buf) => Some(buf),
            Chunk::Full { view, .. } => view.try_into_buf().ok(),
            Chunk::Empty => None,
        })
    }

    /// The bytes at `place`, from the beginning of its page on: a page, or as much as the item that is there says it
    /// has.
    pub(crate) fn bytes(&self, place: Place, origin: Origin) -> Vec<View> {
        let Some(page) = place.page().checked_sub(self.first).filter(|&page| page < self.cursor) else {
            return Vec::new();
        };
        let first = self.copy(page, page + 1);
        if place.is_shared() {
            return first;
        }
        let len = first.first().and_then(|bytes| item::decode(bytes, origin)).map_or(0, |item| item.len());
        let pages = len.div_ceil(PAGE_BYTES).min(self.pages as usize) as u32;
        self.copy(page, (page + pages).min(self.cursor))
    }

    /// The pages `from..to` of the segment: copies of what may still change around them, views of what may not.
    fn copy(&self, from: u32, to: u32) -> Vec<View> {
        let mut views = Vec::new();
        let mut page = from;
        while page < to {
            let (chunk, within) = (page / self.chunk_pages, (page % self.chunk_pages) as usize * PAGE_BYTES);
            let end = to.min((chunk + 1) * self.chunk_pages);
            let range = within..within + (end - page) as usize * PAGE_BYTES;
            match &self.chunks[chunk as usize] {
                Chunk::Filling(buf) => views.push(Buf::copy_from(&buf[range]).freeze()),
                Chunk::Full { view, .. } => views.push(view.slice(range)),
                Chunk::Empty => break,
            }
            page = end;
        }
        views
    }
}
