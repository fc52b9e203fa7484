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
/// Records that are remembered.
const KEPT: usize = 512;

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

/// The records of spans of a file system.
pub(crate) struct SpanRecords {
    meta: Rc<dyn Meta>,
    fs: FsId,
    shape: Shape,
    kept: RefCell<BTreeMap<SpanId, Rc<Stood>>>,
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

    /// A span's record; without `fresh` it may be as it was seen before.
    pub(crate) async fn load(&self, id: SpanId, fresh: bool) -> Result<Rc<Stood>, Error> {
        if !fresh && let Some(kept) = self.kept.borrow().get(&id) {
            return Ok(Rc::clone(kept));
        }
        let forgotten = self.forgotten.get();
        let found = record::load(&*self.meta, &self.key(id)).await?;
        let span = found.as_ref().map(|found| self.decode(id, &found.body)).transpose()?;
        let stood = Rc::new((span, found.map(|found| found.version)));
        // It may be from before a change of ours that has ended since.
        if self.forgotten.get() == forgotten {
            let mut kept = self.kept.borrow_mut();
            if kept.len() >= KEPT {
                kept.clear();
            }
            kept.insert(id, Rc::clone(&stood));
        }
        Ok(stood)
    }

    /// What is remembered of a file's spans goes: others may have changed them.
    pub(crate) fn forget(&self, inode: u64) {
        self.forgotten.set(self.forgotten.get().wrapping_add(1));
        self.kept.borrow_mut().retain(|id, _| id.inode != inode);
    }

    /// Changes a span as `edit` says. One without extents goes: what it knew of cuts only a late writer would need, whom the
    /// inode tells.
    pub(crate) async fn edit<T>(
        &self,
        id: SpanId,
        mut edit: impl FnMut(Option<Span>) -> Result<Edit<T>, Error>,
    ) -> Result<T, Failed> {
        let key = self.key(id);
        let edited = record::change(&*self.meta, &key, |body| {
            let (new, outcome) = edit(body.map(|body| self.decode(id, body)).transpose()?)?;
            let Some(Span { cuts, map }) = new else { return Ok(Next::Keep(outcome)) };
            if map.is_empty() {
                return Ok(if body.is_some() { Next::Remove(outcome) } else { Next::Keep(outcome) });
            }
            let mut body = Vec::new();
            put_varint(&mut body, cuts.into());
            map.encode(id.range().start, &mut body);
            if body.len() > MAP_BYTES_MAX {
                return Err(Error::Unavailable("a part of the file is in too many pieces: try again".into()));
            }
            Ok(Next::Put(body, outcome))
        });
        let edited = edited.await;
        self.forgotten.set(self.forgotten.get().wrapping_add(1));
        self.kept.borrow_mut().remove(&id);
        edited
    }
}
