//! Writing again what is there: repair, rebuild, and putting together what lies in too many pieces.

use std::ops::Range;
use std::rc::Rc;

use super::content::{Content, Inode, State};
use super::file::{Contents, TRIES_MAX, Written, offer, recall};
use super::map::{Extent, Map, Moved, Piece};
use super::record::Failed;
use super::rope::Rope;
use super::span::{SpanId, touched};
use super::stripe::{Stripe, StripeId};
use crate::error::Error;

/// Bytes of a file that are put together at once.
const WINDOW_BYTES: u64 = 1 << 20;
/// Holes up to here are filled with zeroes when what lies around them is put together: pieces have a length that way.
const FILLED_BYTES: u64 = 4096;

impl Contents {
    /// Every stripe of a file, each with the first place of the file that lies in it.
    ///
    /// # Errors
    /// What inode or store say.
    pub async fn stripes_of(&self, inode: &dyn Inode) -> Result<Vec<(u64, Rc<Stripe>)>, Error> {
        let (state, _) = inode.load(true).await?;
        let mut found: Vec<(u64, Rc<Stripe>)> = Vec::new();
        let mut add = |map: &Map| {
            let first = |stripe: &Rc<Stripe>| map.extents().iter().find(|extent| extent.stripe.id == stripe.id);
            found.extend(map.stripes().into_iter().filter_map(|stripe| Some((first(&stripe)?.at, stripe))));
        };
        match &state.content {
            Content::Inline(_) => {}
            Content::Extents(map) => add(map),
            Content::Spans(spans) => {
                for span in touched(&(0..spans.reach)) {
                    let id = SpanId { inode: inode.number(), map: spans.map, span };
                    if let (Some(span), _) = &*self.spans.load(id, true).await? {
                        add(&span.map);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Writes what a file has in a stripe to another place, and lets the map name that: for a column that is missing or does not
    /// verify, for a member that goes. `at` is a place of the file that lies in the stripe, or did. False: the file has nothing
    /// in it any more.
    ///
    /// # Errors
    /// [`Error::Lost`] where it can't be read; nothing is changed then.
    pub async fn rewrite(self: &Rc<Self>, inode: &dyn Inode, at: u64, stripe: StripeId) -> Result<bool, Error> {
        let mut written: Option<(Rc<Stripe>, Vec<Moved>, Written)> = None;
        for _ in 0..TRIES_MAX {
            let (state, version) = inode.load(true).await?;
            let span = match &state.content {
                Content::Spans(spans) => {
                    Some(SpanId { inode: inode.number(), map: spans.map, span: touched(&(at..at + 1)).start })
                }
                _ => None,
            };
            let map = match (&state.content, span) {
                (Content::Extents(map), _) => map.clone(),
                (Content::Spans(_), Some(id)) => self.spans.load(id, true).await?.0.clone().unwrap_or_default().map,
                _ => Map::default(),
            };
            let named: Vec<Extent> =
                map.extents().iter().filter(|extent| extent.stripe.id == stripe).cloned().collect();
            let Some(first) = named.first() else { return Ok(false) };
            let (old, moved, mut new) = match written.take() {
                Some(written) => written,
                None => {
                    let (moved, data) = self.read_all(inode.number(), &named).await?;
                    (Rc::clone(&first.stripe), moved, self.put_stripe(first.at, &data).await?)
                }
            };
            offer([&mut new].into_iter())?;
            let outcome = match span {
                None => {
                    let mut map = map;
                    let gone = map.replace(&old, &new.stripe, &moved)?;
                    let state = State { content: Content::Extents(map), size: state.size };
                    inode.store(version, state).await?.then_some(gone)
                }
                Some(id) => self.replace(id, &old, &new, &moved).await?,
            };
            match outcome {
                Some(gone) if gone.iter().all(|stripe| stripe.id != new.stripe.id) => {
                    self.space.free(&gone);
                    self.space.tend().await;
                    return Ok(true);
                }
                outcome => {
                    recall([&mut new].into_iter());
                    // Nothing named the old one any more, or the inode has changed.
                    if outcome.is_some() {
                        return Ok(false);
                    }
                    written = Some((old, moved, new));
                }
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// What nothing names after a span's map names the new stripe.
    async fn replace(
        &self,
        id: SpanId,
        old: &Rc<Stripe>,
        new: &Written,
        moved: &[Moved],
    ) -> Result<Option<Vec<Rc<Stripe>>>, Error> {
        let edited = self.spans.edit(id, |span| {
            let Some(mut span) = span.filter(|span| span.map.names(old.id)) else {
                return Ok((None, vec![Rc::clone(&new.stripe)]));
            };
            let gone = span.map.replace(old, &new.stripe, moved)?;
            Ok((Some(span), gone))
        });
        edited.await.map(Some).map_err(|failed| failed.error)
    }

    /// The bytes of extents of one stripe, one behind the other, and where each comes to be.
    async fn read_all(&self, inode: u64, extents: &[Extent]) -> Result<(Vec<Moved>, Rope), Error> {
        let (mut moved, mut data) = (Vec::new(), Rope::default());
        for extent in extents {
            moved.push(Moved { from: extent.from, length: extent.length, to: data.len() as u32 });
            let lost = |reason| Error::Lost { inode, from: extent.at, to: extent.end(), reason };
            let read = self.read_extent(extent).await.map_err(lost)?;
            read.parts().iter().for_each(|part| data.push(part.clone()));
        }
        Ok((moved, data))
    }

    /// Puts a part of a span together, where its map has grown too long. What fails is tried again with the next write.
    pub(crate) async fn compact(self: &Rc<Self>, id: SpanId) {
        match self.try_compact(id).await {
            Ok(false) => {}
            Ok(true) => self.figures.compactions.set(self.figures.compactions.get() + 1),
            Err(error) => tracing::debug!(inode = id.inode, span = id.span, %error, "a span stays in many pieces"),
        }
    }

    async fn try_compact(self: &Rc<Self>, id: SpanId) -> Result<bool, Error> {
        let stood = self.spans.load(id, false).await?;
        let Some(span) = &stood.0 else { return Ok(false) };
        if !span.is_long(id) {
            return Ok(false);
        }
        let shape = self.members().layout().shape;
        let saved = |window: &Range<u64>| {
            let part = span.map.part(window.clone());
            let after = |run: &Range<u64>| 24 + 4 * shape.cut((run.end - run.start) as usize).sums();
            part.encoded_len(window.start) as i64 - runs(&part).iter().map(after).sum::<usize>() as i64
        };
        let size = WINDOW_BYTES.min(shape.stripe_bytes_max() as u64);
        let windows = id.range().step_by(size as usize).map(|from| from..(from + size).min(id.range().end));
        let best = windows.map(|window| (saved(&window), window)).max_by_key(|(saved, window)| (*saved, window.start));
        let Some((saved, window)) = best else { return Ok(false) };
        if saved <= 0 {
            return Ok(false);
        }
        let mut written = Vec::new();
        for run in runs(&span.map.part(window)) {
            let mut data = Rope::default();
            for piece in span.map.lookup(run.clone()) {
                match piece {
                    Piece::Hole(range) => data.push_zeroes((range.end - range.start) as usize),
                    Piece::Data(extent) => {
                        let read = self.read_extent(&extent).await.map_err(Error::Unavailable)?;
                        read.parts().iter().for_each(|part| data.push(part.clone()));
                    }
                }
            }
            written.extend(self.put(run.start, &data).await?);
        }
        offer(written.iter_mut())?;
        let edited = self.spans.edit(id, |now| {
            // Bytes that others have written since must not become what they were.
            let Some(mut now) = now.filter(|now| now == span) else { return Ok((None, None)) };
            let mut gone = Vec::new();
            written.iter().for_each(|part| gone.extend(now.map.write(part.at, Rc::clone(&part.stripe))));
            Ok((Some(now), Some(gone)))
        });
        let edited = edited.await;
        if matches!(&edited, Ok(None) | Err(Failed { may_be_done: false, .. })) {
            recall(written.iter_mut());
        }
        let gone = edited.map_err(|failed| failed.error)?;
        gone.iter().for_each(|gone| self.space.free(gone));
        Ok(gone.is_some())
    }
}

/// The ranges of a map that lie somewhere, over holes that are filled.
fn runs(map: &Map) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for extent in map.extents() {
        match runs.last_mut().filter(|run| extent.at - run.end <= FILLED_BYTES) {
            Some(run) => run.end = extent.end(),
            None => runs.push(extent.at..extent.end()),
        }
    }
    runs
}
