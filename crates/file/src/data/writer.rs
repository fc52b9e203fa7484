//! Writing a file's bytes.
//!
//! A write puts its bytes into stripes of their own, then changes the map that names them: of a short file in its inode, by one
//! compare-and-set with the size; of a long one in the records of its spans, and then the inode. What a map no longer names is
//! freed behind that. Bytes that lie apart from one another may be one write: each span is changed once for all that lies in it,
//! and the inode once for all of them.
//!
//! Invariant: a stripe that a map has named, or may have, is named again only by a change of a map that names it at that moment: of
//! no other it is known that nobody has freed it.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::{iter, mem};

use super::content::{Content, EXTENTS_BYTES_MAX, INLINE_BYTES_MAX, Inode, REACH_STEP, Spans, State};
use super::cut::Behind;
use super::file::{Contents, TRIES_MAX, Written, before_try, offer, recall, tell_named};
use super::funds::Hold;
use super::map::{FILE_BYTES_MAX, Map, SPAN_BYTES};
use super::overdue::ids;
use super::pending::{Few, TOGETHER};
use super::record::Failed;
use super::rope::Rope;
use super::space::expired;
use super::span::{Span, SpanId, touched};
use super::stripe::{Lain, Stripe};
use crate::error::Error;
use crate::meta::Version;

/// How an attempt has ended.
pub(crate) enum Step {
    Done,
    /// The inode has changed, or something had to be done first.
    Again,
    /// What a map has named may be gone from it, or free: it is written again.
    Anew,
}

/// What became of a span.
enum Applied {
    Made {
        gone: Vec<Rc<Stripe>>,
        is_long: bool,
    },
    /// It knows a later cut.
    Late,
    /// It names no more what it has named.
    Gone,
    /// Its map would be too long.
    Full,
}

/// Bytes of a file, and where they are.
pub(crate) type Part = (u64, Rope);

/// What a write keeps between its attempts.
pub(crate) struct Write {
    /// What is written, ascending, each apart from the others.
    parts: Vec<Part>,
    written: Vec<Written>,
    /// What of it is in no stripe.
    missing: Vec<Part>,
    /// The long map that was changed.
    map: Option<u64>,
    behind: Behind,
    /// Whether those before it that were under way were waited for.
    has_waited: bool,
    /// What maps name no more goes back by this.
    hold: Hold,
}

impl Write {
    /// Of parts none of which is empty, ascending, each apart from the others.
    pub(crate) fn new(parts: Vec<Part>) -> Write {
        let (missing, behind) = (parts.clone(), Behind::default());
        Write { parts, written: Vec::new(), missing, map: None, behind, has_waited: false, hold: Hold::none() }
    }

    fn at(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.0)
    }

    fn end(&self) -> u64 {
        self.parts.last().map_or(0, end_of)
    }

    /// The spans that it touches.
    fn spans(&self) -> BTreeSet<u64> {
        self.parts.iter().flat_map(|part| touched(&(part.0..end_of(part)))).collect()
    }

    /// Whether something that nobody writes comes into a file that has this size.
    fn leaves_gap(&self, size: u64) -> bool {
        let ends = iter::once(size).chain(self.parts.iter().map(end_of));
        self.parts.iter().zip(ends).any(|(part, end_before)| part.0 > size.max(end_before))
    }

    /// What a map has named, or may have, is written again.
    fn begin_anew(&mut self) {
        for written in mem::take(&mut self.written) {
            if written.is_ours() {
                self.written.push(written);
                continue;
            }
            // A stripe holds bytes of one part.
            let of = self.parts.iter().rfind(|part| part.0 <= written.at);
            self.missing.extend(of.map(|(at, data)| {
                let from = (written.at - at) as usize;
                (written.at, data.slice(from, from + written.stripe.length as usize))
            }));
        }
    }
}

/// Behind its last byte.
fn end_of((at, data): &Part) -> u64 {
    at + data.len() as u64
}

impl Contents {
    /// Writes bytes of a file; when it returns they are stable, and all clients see them.
    ///
    /// # Errors
    /// After [`Error::Unavailable`] nobody knows whether they were written, or which part of them.
    pub async fn write(self: &Rc<Self>, inode: &dyn Inode, at: u64, data: Rope) -> Result<(), Error> {
        self.write_parts(inode, vec![(at, data)]).await
    }

    /// The same of several parts, ascending, each apart from the others: by one change of each span that they lie in, and one of
    /// the inode.
    pub async fn write_parts(self: &Rc<Self>, inode: &dyn Inode, mut parts: Vec<Part>) -> Result<(), Error> {
        if parts.iter().any(|(at, data)| at.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX)) {
            return Err(Error::TooLong(FILE_BYTES_MAX));
        }
        debug_assert!(parts.is_sorted_by(|before, next| end_of(before) <= next.0), "parts are in order, and apart");
        parts.retain(|(_, data)| !data.is_empty());
        if parts.is_empty() {
            return Ok(());
        }
        self.write_out(inode, Write::new(parts)).await
    }

    /// Carries a write out, some of which may be in stripes already.
    pub(crate) async fn write_out(self: &Rc<Self>, inode: &dyn Inode, mut write: Write) -> Result<(), Error> {
        let _under_way = self.under_way.begin(inode.number(), write.at());
        for attempt in 0..TRIES_MAX {
            before_try(attempt).await;
            let (state, version) = inode.load(attempt > 0).await?;
            self.leave_map(inode.number(), &state, &mut write).await?;
            let step = match &state.content {
                Content::Inline(bytes) => self.write_inline(inode, &state, version, bytes, &mut write).await?,
                Content::Extents(map) => self.write_extents(inode, &state, version, map, &mut write).await?,
                Content::Spans(spans) => {
                    self.write_spans(inode, &state, version, *spans, &mut write, attempt > 0).await?
                }
            };
            match step {
                Step::Done => {
                    self.space.tend().await;
                    return Ok(());
                }
                Step::Again => {}
                Step::Anew => write.begin_anew(),
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// A long map that the inode does not have any more is gone for good, and what was put into it since is nobody's.
    async fn leave_map(&self, inode: u64, state: &State, write: &mut Write) -> Result<(), Error> {
        let is_there = |map: &u64| matches!(&state.content, Content::Spans(spans) if spans.map == *map);
        let Some(map) = write.map.filter(|map| !is_there(map)) else { return Ok(()) };
        for span in write.spans() {
            self.drop_span(SpanId { inode, map, span }, &write.hold).await?;
        }
        write.map = None;
        write.begin_anew();
        Ok(())
    }

    /// Puts into stripes what is in none.
    pub(crate) async fn put_missing(self: &Rc<Self>, inode: &dyn Inode, write: &mut Write) -> Result<(), Error> {
        let funds = inode.funds();
        if !write.hold.is_of(&funds) {
            write.hold = funds.hold().await?;
        }
        write.written.extend(self.put(&funds, &write.missing).await?);
        write.missing.clear();
        Ok(())
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
            let mut bytes = bytes.to_vec();
            bytes.resize(bytes.len().max(write.end() as usize), 0);
            for (at, data) in &write.parts {
                data.copy_to(&mut bytes[*at as usize..*at as usize + data.len()]);
            }
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
        let data = Rope::from(engine::Buf::copy_from(bytes).freeze());
        let mut written = self.put(&inode.funds(), &[(0, data)]).await?;
        written.iter().for_each(|written| drop(map.write(written.at, Rc::clone(&written.stripe))));
        let new = State { content: Content::Extents(map), size: state.size };
        self.store_written(inode, state, version, new, &mut written).await.map(drop)
    }

    /// Stores a state that names what was written; false: what was written can be used again.
    async fn store_written(
        self: &Rc<Self>,
        inode: &dyn Inode,
        before: &State,
        version: Version,
        new: State,
        written: &mut [Written],
    ) -> Result<bool, Error> {
        offer(written.iter_mut())?;
        let may = || written.iter().try_for_each(Written::check);
        // An error leaves it open: then nobody uses these rows again but after `fsck`.
        let is_done = inode.store_while(version, new.clone(), &may).await?;
        if !is_done {
            recall(written.iter_mut());
            return Ok(false);
        }
        tell_named(written.iter_mut());
        if !written.iter().all(Written::is_timely) {
            self.take_out(inode, (before, &new), written).await?;
            return Err(expired());
        }
        Ok(is_done)
    }

    pub(crate) async fn write_extents(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        map: &Map,
        write: &mut Write,
    ) -> Result<Step, Error> {
        self.put_missing(inode, write).await?;
        let (mut new, mut gone) = (map.clone(), Vec::new());
        write.written.iter().for_each(|written| gone.extend(new.write(written.at, Rc::clone(&written.stripe))));
        let size = state.size.max(write.end());
        if new.encoded_len(0) > EXTENTS_BYTES_MAX {
            self.leave_extents(inode, state.size, version, map).await?;
            return Ok(Step::Again);
        }
        let new = State { content: Content::Extents(new), size };
        if !self.store_written(inode, state, version, new, &mut write.written).await? {
            return Ok(Step::Again);
        }
        self.free(&gone, &write.hold);
        Ok(Step::Done)
    }

    /// Puts a map that lies in an inode into records of spans.
    pub(crate) async fn leave_extents(
        self: &Rc<Self>,
        inode: &dyn Inode,
        size: u64,
        version: Version,
        map: &Map,
    ) -> Result<(), Error> {
        let drawn = engine::task::random_u64();
        let end = map.end().max(size);
        // Only those that have something: there may be worlds between two of them.
        let mut numbers: Vec<u64> = map.extents().iter().map(|extent| extent.at / SPAN_BYTES).collect();
        numbers.dedup();
        let part = |span: u64| {
            let id = SpanId { inode: inode.number(), map: drawn, span };
            (id, map.part(id.range()))
        };
        let parts: Vec<(SpanId, Map)> = numbers.into_iter().map(part).collect();
        for (id, part) in &parts {
            // Nobody else knows the map yet.
            self.spans.ensure(*id, |_| Ok((Some(Span { cuts: 0, map: part.clone() }), ()))).await?;
        }
        let reach = end.next_multiple_of(REACH_STEP);
        let content = Content::Spans(Spans { map: drawn, reach, cuts: 0, cut: None });
        if !inode.store(version, State { content, size }).await? {
            for (id, _) in &parts {
                // Its stripes are those of the map that stands: they are not freed.
                self.spans.ensure(*id, |_| Ok((Some(Span::default()), ()))).await?;
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
        is_fresh: bool,
    ) -> Result<Step, Error> {
        self.put_missing(inode, write).await?;
        if spans.cut.is_some() {
            self.finish_cut(inode, state, version, spans).await?;
            return Ok(Step::Again);
        }
        if write.leaves_gap(state.size) && state.size < spans.reach {
            if !write.has_waited {
                write.has_waited = true;
                let before = self.under_way.before(inode.number(), write.at());
                self.under_way.wait_for(&before).await;
                return Ok(Step::Again);
            }
            if !is_fresh {
                return Ok(Step::Again);
            }
            if !write.behind.is_nothing(&spans) {
                self.begin_cut(inode, state, version, spans, state.size).await?;
                return Ok(Step::Again);
            }
        }
        if write.end() > spans.reach {
            let spans = Spans { reach: write.end().next_multiple_of(REACH_STEP), ..spans };
            inode.store(version, State { content: Content::Spans(spans), size: state.size }).await?;
            return Ok(Step::Again);
        }
        let (long, open) = self.apply_all(inode, spans, write).await?;
        if let Some(step) = open {
            return Ok(step);
        }
        let step = self.store_size(inode, state, version, spans, write.end()).await?;
        if matches!(step, Step::Done) {
            for id in long {
                self.compact(&inode.funds(), id).await;
            }
        }
        Ok(step)
    }

    /// Changes the maps of all spans for what was written there, several at once. Those that have grown long; and what is to be
    /// done first where not all were changed.
    async fn apply_all(
        self: &Rc<Self>,
        inode: &dyn Inode,
        spans: Spans,
        write: &mut Write,
    ) -> Result<(Vec<SpanId>, Option<Step>), Error> {
        write.map = Some(spans.map);
        write.written.sort_unstable_by_key(|written| written.at);
        let in_one = |one: &Written, next: &Written| one.at / SPAN_BYTES == next.at / SPAN_BYTES;
        let mut parts = write.written.chunk_by_mut(in_one);
        let (mut pending, mut long, mut full) = (Few::new(), Vec::new(), Vec::new());
        let (mut open, mut fault) = (None, None);
        loop {
            while pending.keys().count() < TOGETHER
                && fault.is_none()
                && let Some(here) = parts.next()
            {
                let id = SpanId { inode: inode.number(), map: spans.map, span: here[0].at / SPAN_BYTES };
                pending.push(id, self.apply(inode, id, spans.cuts, here));
            }
            // Also where one has failed: nobody knows of a change that is given up on its way.
            let Some((id, applied)) = pending.next().await else { break };
            match applied {
                Ok(Some(Applied::Made { gone, is_long })) => {
                    self.free(&gone, &write.hold);
                    long.extend(is_long.then_some(id));
                }
                Ok(Some(Applied::Full)) => full.push(id),
                Ok(Some(Applied::Gone)) => open = Some(Step::Anew),
                Ok(None | Some(Applied::Late)) => open = open.or(Some(Step::Again)),
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        for id in full {
            self.shorten(&inode.funds(), id).await?;
            open = open.or(Some(Step::Again));
        }
        Ok((long, open))
    }

    /// Changes a span's map for what was written there. `None`: nobody knows whether it was made.
    async fn apply(
        &self,
        inode: &dyn Inode,
        id: SpanId,
        cuts: u32,
        here: &mut [Written],
    ) -> Result<Option<Applied>, Error> {
        let (ours, named): (Vec<_>, Vec<_>) = here.iter().partition(|written| written.is_ours());
        let named: Vec<_> = named.into_iter().map(|written| written.stripe.id).collect();
        let ours: Vec<_> = ours.into_iter().map(|written| written.stripe.id).collect();
        let stripes: Vec<Lain> = here.iter().map(|written| (written.at, Rc::clone(&written.stripe))).collect();
        offer(here.iter_mut())?;
        let may = || inode.may_change().and_then(|()| here.iter().try_for_each(|written| written.check()));
        let edited = self.spans.edit_while(id, &may, |span| {
            let mut span = span.unwrap_or_default();
            if span.cuts > cuts {
                return Ok((None, Applied::Late));
            }
            if !named.iter().all(|id| span.map.names(*id)) {
                return Ok((None, Applied::Gone));
            }
            span.cuts = cuts;
            let mut gone = Vec::new();
            stripes.iter().for_each(|(at, stripe)| gone.extend(span.map.write(*at, Rc::clone(stripe))));
            // Of what is written again after it was seen there, nothing is gone.
            gone.retain(|stripe| stripes.iter().all(|(_, written)| written.id != stripe.id));
            if span.is_full(id) {
                return Ok((None, Applied::Full));
            }
            let is_long = span.is_long(id);
            Ok((Some(span), Applied::Made { gone, is_long }))
        });
        let edited = edited.await;
        let is_not_made = match &edited {
            Ok(applied) => !matches!(applied, Applied::Made { .. }),
            Err(failed) => !failed.may_be_done,
        };
        if is_not_made {
            recall(here.iter_mut().filter(|written| ours.contains(&written.stripe.id)));
        }
        if edited.is_ok() && !is_not_made {
            tell_named(here.iter_mut());
        }
        match edited {
            Ok(Applied::Made { .. }) if !here.iter().all(Written::is_timely) => {
                self.take_out_of_span(id, &ids(here.iter())).await?;
                Err(expired())
            }
            Ok(applied) => Ok(Some(applied)),
            // What it has named may be free by now; the span says, and else it is written again.
            Err(Failed { is_past: true, .. }) => Ok(None),
            Err(failed) => Err(failed.error),
        }
    }

    /// Stores size and times after spans were changed, unless a cut was begun meanwhile: then they are changed again, as the cut
    /// may have passed there before or after.
    async fn store_size(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        spans: Spans,
        end: u64,
    ) -> Result<Step, Error> {
        let (mut state, mut version) = (Rc::new(state.clone()), version);
        for attempt in 0..TRIES_MAX {
            let is_same = |now: &Spans| (now.map, now.cuts) == (spans.map, spans.cuts);
            if !matches!(&state.content, Content::Spans(now) if is_same(now)) {
                return Ok(Step::Again);
            }
            let new = State { content: state.content.clone(), size: state.size.max(end) };
            if inode.store(version, new).await? {
                return Ok(Step::Done);
            }
            before_try(attempt + 1).await;
            (state, version) = inode.load(true).await?;
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }
}
