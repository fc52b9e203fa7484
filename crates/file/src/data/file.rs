//! [`Contents`]: bytes of files, read and written.
//!
//! A write puts its bytes into stripes of their own, then changes the map that names them: of a short file in its inode, by one
//! compare-and-set with the size; of a long one in the records of its spans, and then the inode. What a map no longer names is
//! freed behind that.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use engine::task;

use super::content::{Content, EXTENTS_BYTES_MAX, INLINE_BYTES_MAX, Inode, REACH_STEP, Spans, State};
use super::map::{FILE_BYTES_MAX, Map, SPAN_BYTES};
use super::member::{Layout, Members};
use super::pending::Pending;
use super::record::Failed;
use super::rope::Rope;
use super::shape::COLUMN_ROWS_MAX;
use super::space::{Space, Taken};
use super::span::{Span, SpanId, SpanRecords, touched};
use super::stripe::Stripe;
use super::write::Stripes;
use crate::error::Error;
use crate::meta::{Meta, Version};

/// Tries of a stripe on other members, where some fail.
const WRITES_TRIED: usize = 4;
/// Stripes, spans or pieces that one operation has under way at once.
pub(crate) const TOGETHER: usize = 16;
/// Times that an operation begins anew because others change the same file. Chosen: each time another one has made its change.
pub(crate) const TRIES_MAX: usize = 100;

/// See the module.
pub struct Contents {
    pub(crate) space: Rc<Space>,
    pub(crate) stripes: Stripes,
    pub(crate) spans: SpanRecords,
    pub(crate) figures: Figures,
}

/// What was done, for whoever watches.
#[derive(Debug, Default)]
pub struct Figures {
    /// Stripes written, and those of them with a column missing.
    pub stripes_written: Cell<u64>,
    /// Of these, stripes with a column missing.
    pub stripes_short: Cell<u64>,
    /// Spans that were put together out of many pieces.
    pub compactions: Cell<u64>,
}

/// Bytes in a stripe that no map names yet.
pub(crate) struct Written {
    pub(crate) at: u64,
    pub(crate) stripe: Rc<Stripe>,
    /// Of what a map names already: none.
    pub(crate) taken: Option<Taken>,
}

impl Drop for Written {
    fn drop(&mut self) {
        // All commands have ended; but those of columns that failed may come late.
        if let Some(taken) = self.taken.take_if(|_| self.stripe.missing == 0) {
            taken.give_back();
        }
    }
}

/// A map is changed to name these from now on.
pub(crate) fn offer<'a>(written: impl Iterator<Item = &'a mut Written>) -> Result<(), Error> {
    written.filter_map(|written| written.taken.as_mut()).try_for_each(Taken::offer)
}

/// No map names them, and none will.
pub(crate) fn recall<'a>(written: impl Iterator<Item = &'a mut Written>) {
    written.filter_map(|written| written.taken.as_mut()).for_each(Taken::recall);
}

/// How an attempt has ended.
pub(crate) enum Step {
    Done,
    /// The inode has changed, or something had to be done first.
    Again,
    /// What was written may be gone from the map, or free: it is written again.
    Anew,
}

/// What became of a span.
enum Applied {
    Made,
    /// And its map is so long that a part of it should be put together.
    MadeLong,
    /// It knows a later cut.
    Late,
}

/// What a write keeps between its attempts.
pub(crate) struct Write {
    pub(crate) at: u64,
    pub(crate) data: Rope,
    pub(crate) written: Option<Vec<Written>>,
    /// A cut of ours after which the bytes from this size on are known to be zeroes.
    pub(crate) cut: Option<(u64, u32, u64)>,
}

impl Write {
    fn end(&self) -> u64 {
        self.at + self.data.len() as u64
    }
}

impl Contents {
    /// Contents of files over these members.
    ///
    /// # Errors
    /// There is no such code.
    pub fn new(meta: Rc<dyn Meta>, members: Rc<Members>, space: Rc<Space>) -> Result<Rc<Contents>, Error> {
        let Layout { fs, shape, .. } = *members.layout();
        let stripes = Stripes::new(members)?;
        let spans = SpanRecords::new(meta, fs, shape);
        Ok(Rc::new(Contents { space, stripes, spans, figures: Figures::default() }))
    }

    /// Where rows come from.
    pub fn space(&self) -> &Rc<Space> {
        &self.space
    }

    /// What others have changed of a file's long map since is seen by reads from now on.
    pub(crate) fn forget(&self, inode: u64) {
        self.spans.forget(inode);
    }

    /// The members.
    pub fn members(&self) -> &Rc<Members> {
        &self.stripes.members
    }

    /// What was done.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Writes bytes of a file; when it returns they are stable, and all clients see them.
    ///
    /// # Errors
    /// After [`Error::Unavailable`] nobody knows whether they were written, or which part of them.
    pub async fn write(self: &Rc<Self>, inode: &dyn Inode, at: u64, data: Rope) -> Result<(), Error> {
        if at.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Error::TooLong(FILE_BYTES_MAX));
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut write = Write { at, data, written: None, cut: None };
        for attempt in 0..TRIES_MAX {
            let (state, version) = inode.load(attempt > 0).await?;
            let step = match &state.content {
                Content::Inline(bytes) => self.write_inline(inode, &state, version, bytes, &mut write).await?,
                Content::Extents(map) => self.write_extents(inode, &state, version, map, &mut write).await?,
                Content::Spans(spans) => self.write_spans(inode, &state, version, *spans, &mut write).await?,
            };
            match step {
                Step::Done => {
                    self.space.tend().await;
                    return Ok(());
                }
                Step::Again => {}
                Step::Anew => write.written = None,
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    pub(crate) async fn write_inline(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        bytes: &[u8],
        write: &mut Write,
    ) -> Result<Step, Error> {
        if state.size.max(write.end()) <= INLINE_BYTES_MAX as u64 {
            let (at, end) = (write.at as usize, write.end() as usize);
            let mut bytes = bytes.to_vec();
            bytes.resize(bytes.len().max(end), 0);
            write.data.copy_to(&mut bytes[at..end]);
            let size = bytes.len() as u64;
            let is_done = inode.store(version, State { content: Content::Inline(bytes), size }).await?;
            return Ok(if is_done { Step::Done } else { Step::Again });
        }
        if state.size > 0 {
            self.leave_inode(inode, state, version, bytes).await?;
            return Ok(Step::Again);
        }
        self.write_extents(inode, state, version, &Map::default(), write).await
    }

    /// Puts bytes that lie in an inode into stripes.
    pub(crate) async fn leave_inode(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let mut map = Map::default();
        let written = self.put(0, &Rope::from(engine::Buf::copy_from(bytes).freeze())).await?;
        written.iter().for_each(|written| drop(map.write(written.at, Rc::clone(&written.stripe))));
        let new = State { content: Content::Extents(map), size: state.size };
        self.store_written(inode, version, new, written).await.map(drop)
    }

    /// Stores a state that names what was written; what it does not name in the end can be used again.
    async fn store_written(
        &self,
        inode: &dyn Inode,
        version: Version,
        new: State,
        mut written: Vec<Written>,
    ) -> Result<Option<Vec<Written>>, Error> {
        offer(written.iter_mut())?;
        // An error leaves it open: then nobody uses these rows again but after `fsck`.
        if inode.store(version, new).await? {
            return Ok(None);
        }
        recall(written.iter_mut());
        Ok(Some(written))
    }

    pub(crate) async fn write_extents(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        map: &Map,
        write: &mut Write,
    ) -> Result<Step, Error> {
        let written = match write.written.take() {
            Some(written) => written,
            None => self.put(write.at, &write.data).await?,
        };
        let (mut new, mut gone) = (map.clone(), Vec::new());
        written.iter().for_each(|written| gone.extend(new.write(written.at, Rc::clone(&written.stripe))));
        let size = state.size.max(write.end());
        if new.encoded_len(0) > EXTENTS_BYTES_MAX {
            write.written = Some(written);
            self.leave_extents(inode, state, version, map).await?;
            return Ok(Step::Again);
        }
        write.written =
            self.store_written(inode, version, State { content: Content::Extents(new), size }, written).await?;
        if write.written.is_some() {
            return Ok(Step::Again);
        }
        self.space.free(&gone);
        Ok(Step::Done)
    }

    /// Puts a map that lies in an inode into records of spans.
    async fn leave_extents(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        map: &Map,
    ) -> Result<(), Error> {
        let drawn = task::random_u64();
        let end = map.end().max(state.size);
        for span in touched(&(0..map.end())) {
            let id = SpanId { inode: inode.number(), map: drawn, span };
            let part = map.part(id.range());
            let made = self.spans.edit(id, |_| Ok((Some(Span { cuts: 0, map: part.clone() }), ())));
            made.await.map_err(|failed| failed.error)?;
        }
        let reach = end.next_multiple_of(REACH_STEP);
        let content = Content::Spans(Spans { map: drawn, reach, cuts: 0, cut: None });
        if !inode.store(version, State { content, size: state.size }).await? {
            for span in touched(&(0..map.end())) {
                // Its stripes are those of the map that stands: they are not freed.
                let id = SpanId { inode: inode.number(), map: drawn, span };
                let gone = self.spans.edit(id, |_| Ok((Some(Span::default()), ())));
                gone.await.map_err(|failed| failed.error)?;
            }
        }
        Ok(())
    }

    async fn write_spans(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        spans: Spans,
        write: &mut Write,
    ) -> Result<Step, Error> {
        if spans.cut.is_some() {
            self.finish_cut(inode, state, version, spans).await?;
            return Ok(Step::Again);
        }
        if write.at > state.size && state.size < spans.reach && write.cut != Some((spans.map, spans.cuts, state.size)) {
            write.cut = self.begin_cut(inode, state, version, spans, state.size).await?;
            return Ok(Step::Again);
        }
        if write.end() > spans.reach {
            let spans = Spans { reach: write.end().next_multiple_of(REACH_STEP), ..spans };
            inode.store(version, State { content: Content::Spans(spans), size: state.size }).await?;
            return Ok(Step::Again);
        }
        let written = match &mut write.written {
            Some(written) => written,
            none => none.insert(self.put(write.at, &write.data).await?),
        };
        let mut long = Vec::new();
        for span in touched(&(write.at..write.at + write.data.len() as u64)) {
            let id = SpanId { inode: inode.number(), map: spans.map, span };
            match self.apply(id, spans.cuts, written).await? {
                Applied::Late => return Ok(Step::Anew),
                Applied::Made => {}
                Applied::MadeLong => long.push(id),
            }
        }
        let range = write.at..write.end();
        let step = self.store_size(inode, state, version, spans, &range).await?;
        if matches!(step, Step::Done) {
            for id in long {
                self.compact(id).await;
            }
        }
        Ok(step)
    }

    /// Changes a span's map for what was written.
    async fn apply(&self, id: SpanId, cuts: u32, written: &mut [Written]) -> Result<Applied, Error> {
        let is_here = |written: &&mut Written| written.at / SPAN_BYTES == id.span;
        let here: Vec<(u64, Rc<Stripe>)> =
            written.iter_mut().filter(is_here).map(|written| (written.at, Rc::clone(&written.stripe))).collect();
        offer(written.iter_mut().filter(is_here))?;
        let edited = self.spans.edit(id, |span| {
            let mut span = span.unwrap_or_default();
            if span.cuts > cuts {
                return Ok((None, None));
            }
            span.cuts = cuts;
            let mut gone = Vec::new();
            here.iter().for_each(|(at, stripe)| gone.extend(span.map.write(*at, Rc::clone(stripe))));
            // Of what is written again after it was seen there, nothing is gone.
            gone.retain(|stripe| here.iter().all(|(_, written)| written.id != stripe.id));
            let is_long = span.is_long(id);
            Ok((Some(span), Some((gone, is_long))))
        });
        let edited = edited.await;
        if matches!(&edited, Ok(None) | Err(Failed { may_be_done: false, .. })) {
            recall(written.iter_mut().filter(is_here));
        }
        let Some((gone, is_long)) = edited.map_err(|failed| failed.error)? else { return Ok(Applied::Late) };
        self.space.free(&gone);
        Ok(if is_long { Applied::MadeLong } else { Applied::Made })
    }

    /// Stores size and times after spans were changed, unless a cut was made meanwhile.
    async fn store_size(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        spans: Spans,
        range: &Range<u64>,
    ) -> Result<Step, Error> {
        let (mut state, mut version) = (Rc::new(state.clone()), version);
        for _ in 0..TRIES_MAX {
            let now = match &state.content {
                Content::Spans(now) if now.map == spans.map => *now,
                // That map is gone for good, and what was put into it since is nobody's.
                _ => {
                    for span in touched(range) {
                        let id = SpanId { inode: inode.number(), map: spans.map, span };
                        self.drop_span(id).await?;
                    }
                    return Ok(Step::Anew);
                }
            };
            if now.cuts != spans.cuts {
                return Ok(Step::Anew);
            }
            let new = State { content: state.content.clone(), size: state.size.max(range.end) };
            if inode.store(version, new).await? {
                return Ok(Step::Done);
            }
            (state, version) = inode.load(true).await?;
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// Puts data into stripes, none of which lies in two spans.
    pub(crate) async fn put(self: &Rc<Self>, at: u64, data: &Rope) -> Result<Vec<Written>, Error> {
        let layout = self.members().layout();
        let rows_max = COLUMN_ROWS_MAX.min(layout.region_rows() as usize);
        let (mut pending, mut written, mut from) = (Pending::new(), Vec::new(), 0);
        let mut fault = None;
        while from < data.len() || !pending.is_empty() {
            if from < data.len() && fault.is_none() && pending.keys().count() < TOGETHER {
                let place = at + from as u64;
                let in_span = SPAN_BYTES - place % SPAN_BYTES;
                let length = layout.shape.bytes_of(rows_max).min(data.len() - from).min(in_span as usize);
                let (contents, part) = (Rc::clone(self), data.slice(from, from + length));
                pending.push((), async move { contents.put_part(place, part).await });
                from += length;
                continue;
            }
            match pending.next().await {
                Some(((), Ok(parts))) => written.extend(parts),
                Some(((), Err(error))) => fault = Some(error),
                None => break,
            }
        }
        match fault {
            Some(error) => Err(error),
            None => Ok(written),
        }
    }

    /// Puts data into one stripe, or into several where no rows lie side by side for that.
    async fn put_part(&self, at: u64, data: Rope) -> Result<Vec<Written>, Error> {
        let shape = self.members().layout().shape;
        let (mut written, mut open) = (Vec::new(), vec![(at, data)]);
        while let Some((at, data)) = open.pop() {
            let rows = shape.cut(data.len()).rows();
            match self.put_stripe(at, &data).await {
                Ok(part) => written.push(part),
                Err(Error::NoSpace(_)) if rows > 1 => {
                    let half = shape.bytes_of(rows / 2);
                    open.push((at + half as u64, data.slice(half, data.len())));
                    open.push((at, data.slice(0, half)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    /// Puts data into one stripe.
    pub(crate) async fn put_stripe(&self, at: u64, data: &Rope) -> Result<Written, Error> {
        let rows = self.members().layout().shape.cut(data.len()).rows() as u32;
        let mut tried = 0;
        loop {
            let taken = self.space.take(rows).await?;
            let written = self.stripes.write(data, &taken.place, taken.row(), task::random_u64() as u32).await;
            match written {
                Ok(stripe) => {
                    self.figures.stripes_written.set(self.figures.stripes_written.get() + 1);
                    let short = u64::from(stripe.missing != 0);
                    self.figures.stripes_short.set(self.figures.stripes_short.get() + short);
                    return Ok(Written { at, stripe: Rc::new(stripe), taken: Some(taken) });
                }
                Err(failed) => {
                    if !failed.is_late {
                        taken.give_back();
                    }
                    tried += 1;
                    if tried == WRITES_TRIED || matches!(failed.error, Error::NoSpace(_)) {
                        return Err(failed.error);
                    }
                }
            }
        }
    }
}
