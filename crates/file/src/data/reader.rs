//! Reading a file's bytes.

use std::ops::Range;
use std::rc::Rc;

use engine::View;

use super::content::{Content, Inode};
use super::file::{Contents, TOGETHER, TRIES_MAX};
use super::map::{Extent, Piece};
use super::pending::Pending;
use super::rope::Rope;
use super::span::{SpanId, touched};
use crate::error::Error;
use crate::meta::Version;

/// What a range of a file was found to be, and by which versions of the inode and of spans.
struct Found {
    pieces: Vec<Piece>,
    inline: Option<View>,
    basis: Vec<Option<Version>>,
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
            let (state, version) = inode.load(fresh).await?;
            let range = range.start.min(state.size)..range.end.min(state.size);
            let found = self.find(inode.number(), &state.content, version, &range, fresh).await?;
            if let Some(view) = found.inline {
                return Ok(view.into());
            }
            match self.fetch(found.pieces).await {
                Ok(rope) => return Ok(rope),
                // What lies there may be somebody else's by now: then the map has changed.
                Err((extent, reason)) => {
                    if fresh && last.as_ref() == Some(&found.basis) {
                        let (from, to) = (extent.at, extent.end());
                        return Err(Error::Lost { inode: inode.number(), from, to, reason });
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
        let (state, version) = inode.load(true).await?;
        let range = range.start.min(state.size)..range.end.min(state.size);
        Ok(self.find(inode.number(), &state.content, version, &range, true).await?.pieces)
    }

    async fn find(
        &self,
        inode: u64,
        content: &Content,
        version: Version,
        range: &Range<u64>,
        fresh: bool,
    ) -> Result<Found, Error> {
        let mut found = Found { pieces: Vec::new(), inline: None, basis: vec![Some(version)] };
        match content {
            Content::Inline(bytes) => {
                let bytes = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
                found.inline = Some(engine::Buf::copy_from(bytes).freeze());
            }
            Content::Extents(map) => found.pieces = map.lookup(range.clone()),
            Content::Spans(spans) => {
                let mapped = range.start..range.end.min(spans.reach);
                for span in touched(&mapped) {
                    let id = SpanId { inode, map: spans.map, span };
                    let stood = self.spans.load(id, fresh).await?;
                    let part = mapped.start.max(id.range().start)..mapped.end.min(id.range().end);
                    match &stood.0 {
                        Some(span) => found.pieces.extend(span.map.lookup(part)),
                        None => found.pieces.push(Piece::Hole(part)),
                    }
                    found.basis.push(stood.1);
                }
                if range.end > mapped.end.max(range.start) {
                    found.pieces.push(Piece::Hole(mapped.end.max(range.start)..range.end));
                }
            }
        }
        Ok(found)
    }

    /// The bytes of pieces, one after the other.
    async fn fetch(self: &Rc<Self>, pieces: Vec<Piece>) -> Result<Rope, (Extent, String)> {
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

    pub(crate) async fn read_extent(&self, extent: &Extent) -> Result<Rope, String> {
        let place = self.space.place(extent.stripe.id.chunk).await.map_err(|error| error.to_string())?;
        let place = place.ok_or_else(|| format!("there is no chunk {}", extent.stripe.id.chunk))?;
        let (from, to) = (extent.from as usize, (extent.from + extent.length) as usize);
        self.stripes.read(&extent.stripe, &place, from, to).await
    }
}
