//! Records of spans: the map of 8 MiB of a long file, and the number of the last cut that it knows.
//!
//! ```text
//!  cuts  varint
//!  map   as `map` says, from the span's first byte on
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::content::Spans;
use super::key::{self, FsId};
use super::map::{MAP_BYTES_MAX, Map, SPAN_BYTES};
use super::record::{self, Failed, Next};
use super::shape::Shape;
use crate::bytes::{Reader, put_varint};
use crate::error::Error;
use crate::meta::{Meta, Version};

/// From so many bytes of a span's map on, the part of it that is in most pieces is put together. Chosen: what is written by the
/// megabyte stays far below it (and within a page of the store), and small writes at random share one such copy by the dozen.
const LONG_BYTES: usize = 12 << 10;
/// Bytes of a record besides its map, at most.
const CUTS_BYTES_MAX: usize = 5;
/// Records that are remembered.
const KEPT: usize = 512;
/// So many spans are asked for one by one; of more, the store is asked which are there. Chosen: half a TiB of a file; to list the
/// keys of a store takes as long as thousands of gets, however few of them are those of the file.
const ASKED_MAX: u64 = 1 << 16;
/// Keys that are listed at once.
const LISTED: usize = 1024;

/// A span's record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub(crate) cuts: u32,
    pub(crate) map: Map,
}

impl Span {
    /// Whether its map is to be made shorter.
    pub(crate) fn is_long(&self, id: SpanId) -> bool {
        self.map.encoded_len(id.range().start) > LONG_BYTES
    }

    /// Whether its map is too long for a record.
    pub(crate) fn is_full(&self, id: SpanId) -> bool {
        self.map.encoded_len(id.range().start) + CUTS_BYTES_MAX > MAP_BYTES_MAX
    }
}

/// A change was not made, as the span's map would have been too long.
pub(crate) fn too_many_pieces() -> Error {
    Error::Unavailable("a part of the file is in too many pieces, and can't be put together now".into())
}

/// Which one: the file, its map, and the span's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SpanId {
    pub(crate) inode: u64,
    pub(crate) map: u64,
    pub(crate) span: u64,
}

impl SpanId {
    /// The part of the file that it maps.
    pub(crate) fn range(self) -> Range<u64> {
        self.span * SPAN_BYTES..(self.span + 1) * SPAN_BYTES
    }
}

/// The numbers of the spans that a range touches.
pub(crate) fn touched(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() { 0..0 } else { range.start / SPAN_BYTES..range.end.div_ceil(SPAN_BYTES) }
}

/// What becomes of a span; `None`: it stays.
pub(crate) type Edit<T> = (Option<Span>, T);

/// A span as it stood, and the version that said so; `None` in both: there was none.
pub(crate) type Stood = (Option<Span>, Option<Version>);

/// A span as it was seen, and by which state of the inode.
struct Kept {
    stood: Rc<Stood>,
    cuts: u32,
    /// What lies in the span behind this was no part of the file.
    size: u64,
    /// The map was still the file's, and without a later cut, after the span was seen.
    is_sure: bool,
}

/// What was found of a span, by a state of the inode.
pub(crate) struct Look {
    pub(crate) stood: Rc<Stood>,
    /// A later cut may have passed, or the map be gone: then what was found, or not found, was never the file's. The inode tells.
    pub(crate) is_doubtful: bool,
}

/// The records of spans of a file system.
pub(crate) struct SpanRecords {
    meta: Rc<dyn Meta>,
    fs: FsId,
    shape: Shape,
    kept: RefCell<BTreeMap<SpanId, Kept>>,
    /// Counts what was forgotten: what was read before that is not remembered.
    forgotten: Cell<u64>,
}

impl SpanRecords {
    pub(crate) fn new(meta: Rc<dyn Meta>, fs: FsId, shape: Shape) -> SpanRecords {
        SpanRecords { meta, fs, shape, kept: RefCell::default(), forgotten: Cell::new(0) }
    }

    fn key(&self, id: SpanId) -> Vec<u8> {
        key::span(&self.fs, id.inode, id.map, id.span)
    }

    fn decode(&self, id: SpanId, body: &[u8]) -> Result<Span, Error> {
        let mut reader = Reader::new("a span of a file", body);
        let cuts = reader.varint_to(u32::MAX.into(), "its cuts")? as u32;
        let map = Map::decode(reader.raw(reader.rest())?, self.shape, id.range())?;
        Ok(Span { cuts, map })
    }

    /// A span's record.
    pub(crate) async fn load(&self, id: SpanId) -> Result<Rc<Stood>, Error> {
        let found = record::load(&*self.meta, &self.key(id)).await?;
        let span = found.as_ref().map(|found| self.decode(id, &found.body)).transpose()?;
        Ok(Rc::new((span, found.map(|found| found.version))))
    }

    /// A span's record as whoever reads up to `end` needs it, by an inode of this size. Without `fresh` it may be as it was seen
    /// before, but not from before a cut, nor from when the file did not go so far: of what lay behind its end then, the span knew
    /// nothing, and that is no hole.
    pub(crate) async fn look(
        &self,
        id: SpanId,
        spans: &Spans,
        size: u64,
        end: u64,
        fresh: bool,
    ) -> Result<Look, Error> {
        if !fresh
            && let Some(kept) = self.kept.borrow().get(&id)
            && kept.cuts == spans.cuts
            && end <= kept.size
        {
            return Ok(Look { stood: Rc::clone(&kept.stood), is_doubtful: !kept.is_sure });
        }
        let forgotten = self.forgotten.get();
        let stood = self.load(id).await?;
        let is_sure = stood.0.as_ref().is_some_and(|span| span.cuts <= spans.cuts);
        // It may be from before a change of ours that has ended since.
        if self.forgotten.get() == forgotten {
            let mut kept = self.kept.borrow_mut();
            if kept.len() >= KEPT {
                kept.clear();
            }
            kept.insert(id, Kept { stood: Rc::clone(&stood), cuts: spans.cuts, size, is_sure });
        }
        Ok(Look { stood, is_doubtful: !is_sure })
    }

    /// The inode has the same map, and no later cut, now that these were seen.
    pub(crate) fn confirm(&self, seen: &[(SpanId, Rc<Stood>)]) {
        let mut all = self.kept.borrow_mut();
        for (id, stood) in seen {
            if let Some(kept) = all.get_mut(id).filter(|kept| Rc::ptr_eq(&kept.stood, stood)) {
                kept.is_sure = true;
            }
        }
    }

    /// Numbers of spans of a map in a range of them, some at a time, from `cursor` on (0: from the start), and where to go on (0:
    /// that was all): each that is there throughout comes, and others that are not there may.
    pub(crate) async fn numbers(
        &self,
        inode: u64,
        map: u64,
        range: &Range<u64>,
        cursor: u64,
    ) -> Result<(Vec<u64>, u64), Error> {
        if range.end.saturating_sub(range.start) <= ASKED_MAX {
            return Ok((range.clone().collect(), 0));
        }
        let prefix = key::spans(&self.fs, inode, map);
        let (keys, next) = self.meta.list(&prefix, cursor, LISTED).await?;
        let number = |key: &Vec<u8>| Some(u64::from_be_bytes(key.strip_prefix(&*prefix)?.try_into().ok()?));
        let numbers: Option<Vec<u64>> = keys.iter().map(number).collect();
        let mut numbers = numbers.ok_or_else(|| Error::Damaged("the key of a span".into()))?;
        numbers.retain(|number| range.contains(number));
        Ok((numbers, next))
    }

    /// What is remembered of a file's spans goes: others may have changed them.
    pub(crate) fn forget(&self, inode: u64) {
        self.forgotten.set(self.forgotten.get().wrapping_add(1));
        self.kept.borrow_mut().retain(|id, _| id.inode != inode);
    }

    /// Changes a span as `edit` says, as long as that may be done, which is asked right before each try. One without extents goes:
    /// what it knew of cuts only a late writer would need, whom the inode tells.
    pub(crate) async fn edit_while<T>(
        &self,
        id: SpanId,
        may: &dyn Fn() -> Result<(), Error>,
        mut edit: impl FnMut(Option<Span>) -> Result<Edit<T>, Error>,
    ) -> Result<T, Failed> {
        let _forgetting = Forgetting { records: self, id };
        record::change_while(&*self.meta, &self.key(id), may, |body| self.next(id, body, &mut edit)).await
    }

    /// As [`SpanRecords::edit_while`] without a bound, by [`record::ensure`].
    pub(crate) async fn ensure<T>(
        &self,
        id: SpanId,
        mut edit: impl FnMut(Option<Span>) -> Result<Edit<T>, Error>,
    ) -> Result<T, Error> {
        self.ensure_while(id, &|| Ok(()), &mut edit).await
    }

    /// The same as long as it may be done, which is asked right before each try.
    pub(crate) async fn ensure_while<T>(
        &self,
        id: SpanId,
        may: &dyn Fn() -> Result<(), Error>,
        mut edit: impl FnMut(Option<Span>) -> Result<Edit<T>, Error>,
    ) -> Result<T, Error> {
        let _forgetting = Forgetting { records: self, id };
        record::ensure_while(&*self.meta, &self.key(id), may, |body| self.next(id, body, &mut edit)).await
    }

    /// Removes a span that no inode names, as it stands at this version, and frees nothing: its stripes may be those of the map
    /// that the inode has. False: it does not.
    pub(crate) async fn remove_at(&self, id: SpanId, version: Version) -> Result<bool, Error> {
        let _forgetting = Forgetting { records: self, id };
        let removed = record::change_at(&*self.meta, &self.key(id), version, |_| Ok(Next::Remove(()))).await;
        removed.map(|removed| removed.is_some()).map_err(|failed| failed.error)
    }

    fn next<T>(
        &self,
        id: SpanId,
        body: Option<&[u8]>,
        edit: &mut impl FnMut(Option<Span>) -> Result<Edit<T>, Error>,
    ) -> Result<Next<T>, Error> {
        let (new, outcome) = edit(body.map(|body| self.decode(id, body)).transpose()?)?;
        let Some(span) = new else { return Ok(Next::Keep(outcome)) };
        if span.map.is_empty() {
            return Ok(if body.is_some() { Next::Remove(outcome) } else { Next::Keep(outcome) });
        }
        if span.is_full(id) {
            return Err(too_many_pieces());
        }
        let mut body = Vec::new();
        put_varint(&mut body, span.cuts.into());
        span.map.encode(id.range().start, &mut body);
        Ok(Next::Put(body, outcome))
    }
}

/// What is known of a span goes with the end of a change of it, however that ends: also where nobody waits for it any more.
struct Forgetting<'a> {
    records: &'a SpanRecords,
    id: SpanId,
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.records.forgotten.set(self.records.forgotten.get().wrapping_add(1));
        self.records.kept.borrow_mut().remove(&self.id);
    }
}
