//! A segment on its way to the medium: where its items go, and their bytes until they are there. No I/O.
//!
//! Invariants:
//! - An item that fits in a page lies in one page. A longer one begins at the beginning of a page and goes on without a
//!   gap; what its last page has left is shared.
//! - Two items that the index may take for one another are in one page never in slots of the same kind: a place, in one life of
//!   its segment, means one item. Else a reader that was told of the first and looks again when the second has taken its
//!   place in the index would take one for the other.
//! - An open page is in a chunk that may still change, and gets what describes it, and its checksum, when it is closed: so it
//!   has them before its chunk can be written. Who reads it earlier reads a copy that was finished in the same way.
//! - Room for the summary of all items is kept at the segment's end.
//! - All bytes stay here until the summary is on the medium: so no item is ever half here and half there.

use engine::{Buf, View};

use super::item::{self, Origin};
use super::page::{self, ROOM_BYTES, Trailer};
use super::place::{PAGE_BYTES, Place, SLOT_KINDS};
use super::shared::{self, Base};
use super::summary;
use crate::item::Meta;

/// Pages that are filled at the same time; each new item goes where the least will be left. Measured on sizes as ETC has
/// them: four write 1.0801 bytes per byte of key and value, eight and more 1.0798; without ETC's tiny values, which fill
/// any gap, four 1.0564, eight 1.0553, sixteen 1.0550, thirty-two 1.0549 (docs/cache.md).
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
    /// The base is that of the first item, once that is there.
    trailer: Trailer,
    /// Hashes of the items, in order of their slots.
    hashes: Vec<u64>,
}

impl OpenPage {
    /// A page whose items begin at `start`.
    fn new(page: u32, start: u16, life: u64) -> OpenPage {
        OpenPage { page, trailer: Trailer { start, end: start, base: Base::default(), life }, hashes: Vec::new() }
    }

    fn left(&self) -> usize {
        ROOM_BYTES - usize::from(self.trailer.end)
    }

    /// What the item's differences would be from.
    fn base_for(&self, head: &shared::Head) -> Base {
        if self.hashes.is_empty() { head.base() } else { self.trailer.base }
    }

    /// What the page would have left with the item in it; none if it has not so much.
    fn left_with(&self, head: &shared::Head, rest: usize) -> Option<usize> {
        self.left().checked_sub(head.len(&self.base_for(head)) + rest)
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

/// What is before an item's key.
enum Head {
    Shared(shared::Head),
    Alone(item::Head),
}

/// An item's key and value.
#[derive(Clone, Copy)]
struct Content<'a> {
    key: &'a [u8],
    value: &'a [&'a [u8]],
    /// Bytes of both.
    len: usize,
}

impl<'a> Content<'a> {
    /// What `head` and this come to, in pieces.
    fn behind(self, head: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        [head, self.key].into_iter().chain(self.value.iter().copied())
    }
}

/// An item to be put into a segment.
pub(crate) struct NewItem<'a> {
    hash: u64,
    head: Head,
    content: Content<'a>,
    /// Bytes of the whole item, where they are least.
    pub(crate) len: usize,
}

impl<'a> NewItem<'a> {
    /// It shares a page if it fits into an empty one, where its head is shortest: so there is always a page for it. Else it
    /// gets pages for itself.
    pub(crate) fn new(hash: u64, key: &'a [u8], meta: &Meta, value: &'a [&'a [u8]], origin: Origin) -> NewItem<'a> {
        let value_len = value.iter().map(|piece| piece.len()).sum();
        let content = Content { key, value, len: key.len() + value_len };
        let head = shared::Head::new(key.len(), meta, value_len, origin);
        let mut len = head.len(&head.base()) + content.len;
        let mut head = Head::Shared(head);
        if len > ROOM_BYTES {
            let alone = item::Head::new(key.len(), meta, value_len, origin);
            len = alone.len() + content.len;
            head = Head::Alone(alone);
        }
        NewItem { hash: hash & summary::HASH_MASK, head, content, len }
    }

    /// Takes the checksum, if it has one of its own.
    pub(crate) fn seal(&mut self) {
        if let Head::Alone(head) = &mut self.head {
            head.seal(self.content.key, self.content.value);
        }
    }

    /// Bytes of key and value.
    pub(crate) fn content_len(&self) -> usize {
        self.content.len
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
    pub(crate) fn put(&mut self, item: &mut NewItem<'_>, spare: impl FnMut() -> Buf) -> Option<Place> {
        // Room for one more record is there, or can be had.
        let data_pages = self.pages.checked_sub(summary::pages(self.records.len() + 1))?;
        if self.is_sealed || self.cursor > data_pages {
            return None;
        }
        let place = match &mut item.head {
            Head::Shared(head) => self.put_shared(item.hash, head, item.content, data_pages, spare),
            Head::Alone(head) => self.put_alone(head, item.content, data_pages, spare),
        }?;
        self.records.push(summary::record(item.hash, place, self.first));
        Some(place)
    }

    fn put_shared(
        &mut self,
        hash: u64,
        head: &shared::Head,
        content: Content<'_>,
        data_pages: u32,
        mut spare: impl FnMut() -> Buf,
    ) -> Option<Place> {
        let left = |page: &OpenPage| page.left_with(head, content.len).filter(|_| page.tells_apart(hash));
        let fitting = self.open.iter().enumerate().filter_map(|(index, page)| Some((left(page)?, index)));
        let index = match fitting.min() {
            Some((_, index)) => index,
            None if self.cursor < data_pages => {
                let page = self.cursor;
                self.advance(1, &mut spare);
                self.open_page(OpenPage::new(page, 0, self.life))
            }
            None => return None,
        };
        let open = &mut self.open[index];
        let base = open.base_for(head);
        let head = head.to_bytes(&base);
        let (number, slot, mut at) = (open.page, open.hashes.len() as u32, usize::from(open.trailer.end));
        open.hashes.push(hash);
        open.trailer.base = base;
        open.trailer.end += (head.len() + content.len) as u16;
        let bytes = self.page_mut(number);
        for piece in content.behind(head.bytes()) {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Some(Place::shared(self.first + number, slot))
    }

    fn put_alone(
        &mut self,
        head: &mut item::Head,
        content: Content<'_>,
        data_pages: u32,
        mut spare: impl FnMut() -> Buf,
    ) -> Option<Place> {
        let len = head.len() + content.len;
        let pages = len.div_ceil(PAGE_BYTES) as u32;
        if pages > data_pages - self.cursor {
            return None;
        }
        let page = self.cursor;
        self.advance(pages, &mut spare);
        head.set_place(self.first + page, self.life);
        let mut at = page as usize * PAGE_BYTES;
        for piece in content.behind(head.bytes()) {
            self.write_bytes(at, piece);
            at += piece.len();
        }
        let end = len - (pages as usize - 1) * PAGE_BYTES;
        if end + SHARED_TAIL_BYTES_MIN <= ROOM_BYTES {
            self.open_page(OpenPage::new(page + pages - 1, end as u16, self.life));
        }
        Some(Place::alone(self.first + page, pages))
    }

    /// Takes one more page among the open ones; where there are too many the fullest is closed. Where it is.
    fn open_page(&mut self, page: OpenPage) -> usize {
        if self.open.len() >= OPEN_PAGES_MAX
            && let Some(fullest) = (0..self.open.len()).min_by_key(|&index| self.open[index].left())
        {
            let closed = self.open.swap_remove(fullest);
            self.finish(&closed);
        }
        self.open.push(page);
        self.open.len() - 1
    }

    /// A page is open no more.
    fn finish(&mut self, open: &OpenPage) {
        let number = self.first + open.page;
        page::finish(self.page_mut(open.page), number, &open.trailer);
    }

    /// Gives out the next `pages`.
    fn advance(&mut self, pages: u32, spare: &mut impl FnMut() -> Buf) {
        self.cursor += pages;
        let chunks = self.cursor.div_ceil(self.chunk_pages) as usize;
        for chunk in self.chunks[..chunks].iter_mut().rev().take_while(|chunk| matches!(chunk, Chunk::Empty)) {
            *chunk = Chunk::Filling(spare());
        }
    }

    /// The bytes of chunk `index`, in which pages were given out that may change.
    fn filling(&mut self, index: usize) -> &mut Buf {
        match &mut self.chunks[index] {
            Chunk::Filling(buf) => buf,
            Chunk::Empty | Chunk::Full { .. } => unreachable!("invariant: pages that were given out and may change"),
        }
    }

    /// The bytes of a page that was given out and may change.
    fn page_mut(&mut self, page: u32) -> &mut [u8; PAGE_BYTES] {
        let within = (page % self.chunk_pages) as usize;
        &mut self.filling((page / self.chunk_pages) as usize).as_chunks_mut().0[within]
    }

    /// Copies `bytes` to byte `at` of the segment, over as many chunks as it takes.
    fn write_bytes(&mut self, mut at: usize, mut bytes: &[u8]) {
        let chunk_bytes = self.chunk_pages as usize * PAGE_BYTES;
        while !bytes.is_empty() {
            let (chunk, within) = (at / chunk_bytes, at % chunk_bytes);
            let (now, rest) = bytes.split_at(bytes.len().min(chunk_bytes - within));
            self.filling(chunk)[within..within + now.len()].copy_from_slice(now);
            at += now.len();
            bytes = rest;
        }
    }

    /// Nothing more is put in.
    pub(crate) fn seal(&mut self) {
        std::mem::take(&mut self.open).iter().for_each(|open| self.finish(open));
        self.is_sealed = true;
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
        let open = self.open.iter().find(|open| open.page == page);
        if let Some(open) = open.filter(|_| place.is_shared()) {
            return self.copy_open(open).into_iter().collect();
        }
        let first = self.copy(page, page + 1);
        if place.is_shared() {
            return first;
        }
        let len = first.first().and_then(|bytes| item::decode(bytes, origin)).map_or(0, |alone| alone.item.len());
        let pages = len.div_ceil(PAGE_BYTES).min(self.pages as usize) as u32;
        self.copy(page, (page + pages).min(self.cursor))
    }

    /// An open page as it would be if it were closed now.
    fn copy_open(&self, open: &OpenPage) -> Option<View> {
        let within = (open.page % self.chunk_pages) as usize * PAGE_BYTES;
        let Chunk::Filling(buf) = &self.chunks[(open.page / self.chunk_pages) as usize] else { return None };
        let mut copy = Buf::copy_from(&buf[within..within + PAGE_BYTES]);
        page::finish(copy.first_chunk_mut()?, self.first + open.page, &open.trailer);
        Some(copy.freeze())
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
