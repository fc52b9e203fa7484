//! Reading a file's bytes.

use std::ops::Range;
use std::rc::Rc;

use engine::View;

use super::content::{Content, Inode, Spans, State};
use super::file::{Contents, TRIES_MAX};
use super::map::{Extent, Piece};
use super::pending::{Pending, TOGETHER};
use super::rope::Rope;
use super::span::{SpanId, Stood, touched};
use crate::error::Error;
use crate::meta::Version;

/// What a range of a file was found to be, and by which versions of the inode and of spans.
struct Found {
    pieces: Vec<Piece>,
    inline: Option<View>,
    basis: Vec<Option<Version>>,
    /// Spans that say nothing unless the inode still has this map, and no later cut.
    doubtful: Vec<(SpanId, Rc<Stood>)>,
}

/// Why bytes were not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// They can't be had from the members: which columns failed, and how.
    Lost(String),
    /// Nobody knows where they are, as the store says.
    Unplaced(Error),
}

impl Unread {
    /// As whoever asked for an extent of a file is told.
    pub(crate) fn told(self, inode: u64, extent: &Extent) -> Error {
        match self {
            Unread::Lost(reason) => Error::Lost { inode, from: extent.at, to: extent.end(), reason },
            Unread::Unplaced(error) => error,
        }
    }
}

impl Contents {
    /// Bytes of a file, as far as it goes; holes are zeroes. Without `fresh` they may be as this client has seen the file before,
    /// but for what it has written itself since.
    ///
    /// # Errors
    /// [`Error::Lost`] where too many columns are, and whatever the inode says.
    pub async fn read(self: &Rc<Self>, inode: &dyn Inode, range: Range<u64>, fresh: bool) -> Result<Rope, Error> {
        let mut last: Option<Vec<Option<Version>>> = None;
        for attempt in 0..TRIES_MAX {
            let fresh = fresh || attempt > 0;
            let Some(found) = self.find(inode, &range, fresh).await? else { continue };
            if let Some(view) = found.inline {
                return Ok(view.into());
            }
            match self.fetch(found.pieces).await {
                Ok(rope) => return Ok(rope),
                Err((_, Unread::Unplaced(error))) => return Err(error),
                // What lies there may be somebody else's by now: then the map has changed.
                Err((extent, reason)) => {
                    if fresh && last.as_ref() == Some(&found.basis) {
                        return Err(reason.told(inode.number(), &extent));
                    }
                    self.space.forget_place(extent.stripe.id.chunk);
                    last = fresh.then_some(found.basis);
                }
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// Where a range lies. For whoever looks for data and holes.
    ///
    /// # Errors
    /// What inode or store say.
    pub async fn pieces(&self, inode: &dyn Inode, range: Range<u64>) -> Result<Vec<Piece>, Error> {
        for _ in 0..TRIES_MAX {
            if let Some(found) = self.find(inode, &range, true).await? {
                return Ok(found.pieces);
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// Where a range lies; `None`: the file was cut, or got another map, while it was looked for.
    async fn find(&self, inode: &dyn Inode, range: &Range<u64>, fresh: bool) -> Result<Option<Found>, Error> {
        let (state, version) = inode.load(fresh).await?;
        let range = range.start.min(state.size)..range.end.min(state.size);
        let (pieces, basis) = (Vec::new(), vec![Some(version)]);
        let mut found = Found { pieces, inline: None, basis, doubtful: Vec::new() };
        match &state.content {
            Content::Inline(bytes) => {
                let bytes = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
                found.inline = Some(engine::Buf::copy_from(bytes).freeze());
            }
            Content::Extents(map) => found.pieces = map.lookup(range.clone()),
            Content::Spans(spans) => {
                self.find_in_spans(inode.number(), &state, spans, &range, fresh, &mut found).await?
            }
        }
        if found.doubtful.is_empty() {
            return Ok(Some(found));
        }
        // Zeroes that nobody wrote are read from spans that are gone with their map, or have been emptied by a cut.
        let (now, _) = inode.load(true).await?;
        let (Content::Spans(now), Content::Spans(then)) = (&now.content, &state.content) else { return Ok(None) };
        if (now.map, now.cuts) != (then.map, then.cuts) {
            return Ok(None);
        }
        self.spans.confirm(&found.doubtful);
        Ok(Some(found))
    }

    async fn find_in_spans(
        &self,
        inode: u64,
        state: &State,
        spans: &Spans,
        range: &Range<u64>,
        fresh: bool,
        found: &mut Found,
    ) -> Result<(), Error> {
        let mapped = range.start..range.end.min(spans.reach);
        let mut at = range.start;
        for span in self.numbers(inode, spans.map, &touched(&mapped)).await? {
            let id = SpanId { inode, map: spans.map, span };
            let part = mapped.start.max(id.range().start)..mapped.end.min(id.range().end);
            let look = self.spans.look(id, spans, state.size, part.end, fresh).await?;
            if part.start > at {
                found.pieces.push(Piece::Hole(at..part.start));
            }
            at = part.end;
            match &look.stood.0 {
                Some(span) => found.pieces.extend(span.map.lookup(part)),
                None => found.pieces.push(Piece::Hole(part)),
            }
            found.basis.push(look.stood.1);
            if look.is_doubtful {
                found.doubtful.push((id, look.stood));
            }
        }
        if range.end > at {
            found.pieces.push(Piece::Hole(at..range.end));
        }
        Ok(())
    }

    /// Numbers of all spans of a map that may be there, in a range of them, in their order.
    pub(crate) async fn numbers(&self, inode: u64, map: u64, range: &Range<u64>) -> Result<Vec<u64>, Error> {
        let (mut all, mut cursor) = (Vec::new(), 0);
        loop {
            let (numbers, next) = self.spans.numbers(inode, map, range, cursor).await?;
            all.extend(numbers);
            if next == 0 {
                all.sort_unstable();
                all.dedup();
                return Ok(all);
            }
            cursor = next;
        }
    }

    /// The bytes of pieces, one after the other.
    async fn fetch(self: &Rc<Self>, pieces: Vec<Piece>) -> Result<Rope, (Extent, Unread)> {
        let mut ropes: Vec<Rope> = Vec::with_capacity(pieces.len());
        let mut pending = Pending::new();
        for (number, piece) in pieces.into_iter().enumerate() {
            let mut rope = Rope::default();
            match piece {
                Piece::Hole(range) => rope.push_zeroes((range.end - range.start) as usize),
                Piece::Data(extent) => {
                    let contents = Rc::clone(self);
                    pending.push(number, async move {
                        let read = contents.read_extent(&extent).await;
                        read.map_err(|reason| (extent, reason))
                    });
                }
            }
            ropes.push(rope);
            if pending.keys().count() >= TOGETHER
                && let Some((number, read)) = pending.next().await
            {
                ropes[number] = read?;
            }
        }
        while let Some((number, read)) = pending.next().await {
            ropes[number] = read?;
        }
        let mut whole = Rope::default();
        ropes.iter().flat_map(Rope::parts).for_each(|part| whole.push(part.clone()));
        Ok(whole)
    }

    pub(crate) async fn read_extent(&self, extent: &Extent) -> Result<Rope, Unread> {
        let place = self.space.place(extent.stripe.id.chunk).await.map_err(Unread::Unplaced)?;
        let place = place.ok_or_else(|| Unread::Lost(format!("there is no chunk {}", extent.stripe.id.chunk)))?;
        let (from, to) = (extent.from as usize, (extent.from + extent.length) as usize);
        self.stripes.read(&extent.stripe, &place, from, to).await.map_err(Unread::Lost)
    }
}
