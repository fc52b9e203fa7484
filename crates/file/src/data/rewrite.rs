//! Writing again what is there: repair, rebuild, and putting together what lies in too many pieces.

use std::ops::Range;
use std::rc::Rc;

use super::content::{Content, EXTENTS_BYTES_MAX, Inode, State};
use super::file::{Contents, TRIES_MAX, Written, offer, recall, tell_named};
use super::funds::{Funds, Hold};
use super::map::{Extent, Map, Moved, Piece};
use super::record::Failed;
use super::rope::Rope;
use super::span::{Span, SpanId, too_many_pieces, touched};
use super::stripe::{Lain, Stripe, StripeId};
use crate::error::Error;
use crate::meta::Version;

/// Bytes of a file that are put together at once.
const WINDOW_BYTES: u64 = 1 << 20;
/// Holes up to here are filled with zeroes when what lies around them is put together: pieces have a length that way.
const FILLED_BYTES: u64 = 4096;

/// A part of a file's map, as it stands.
struct Looked {
    size: u64,
    version: Version,
    /// `None`: it is in the inode.
    span: Option<SpanId>,
    map: Map,
}

impl Looked {
    fn extents_in(&self, stripe: StripeId) -> Vec<Extent> {
        self.map.extents().iter().filter(|extent| extent.stripe.id == stripe).cloned().collect()
    }
}

impl Contents {
    /// Every stripe of a file, each with the first place of the file that lies in it.
    ///
    /// # Errors
    /// What inode or store say.
    pub async fn stripes_of(&self, inode: &dyn Inode) -> Result<Vec<Lain>, Error> {
        'anew: for _ in 0..TRIES_MAX {
            let mut found = Vec::new();
            for part in self.parts_of(inode).await? {
                match self.stripes_at(inode, part).await? {
                    Some(stripes) => found.extend(stripes),
                    None => continue 'anew,
                }
            }
            return Ok(found);
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// The parts of a file's map, each of which is read at once: whoever goes over all stripes of a long file holds no more.
    pub(crate) async fn parts_of(&self, inode: &dyn Inode) -> Result<Vec<Option<SpanId>>, Error> {
        let (state, _) = inode.load(true).await?;
        let Content::Spans(spans) = &state.content else { return Ok(vec![None]) };
        let numbers = self.numbers(inode.number(), spans.map, &touched(&(0..spans.reach))).await?;
        let id = |span| Some(SpanId { inode: inode.number(), map: spans.map, span });
        Ok(numbers.into_iter().map(id).collect())
    }

    /// The stripes of a part, each with the first place of the file that lies in it. `None`: the file has another map by now,
    /// whose parts are others.
    pub(crate) async fn stripes_at(&self, inode: &dyn Inode, part: Option<SpanId>) -> Result<Option<Vec<Lain>>, Error> {
        let map = match part {
            Some(id) => match &self.spans.load(id).await?.0 {
                Some(span) => span.map.clone(),
                None => match &inode.load(true).await?.0.content {
                    Content::Spans(spans) if spans.map == id.map => Map::default(),
                    _ => return Ok(None),
                },
            },
            None => match &inode.load(true).await?.0.content {
                Content::Extents(map) => map.clone(),
                Content::Inline(_) => Map::default(),
                Content::Spans(_) => return Ok(None),
            },
        };
        let first = |stripe: &Rc<Stripe>| map.extents().iter().find(|extent| extent.stripe.id == stripe.id);
        Ok(Some(map.stripes().into_iter().filter_map(|stripe| Some((first(&stripe)?.at, stripe))).collect()))
    }

    /// What the map says now of a place of the file, and of all that lies in the same part.
    async fn look_up(&self, inode: &dyn Inode, at: u64) -> Result<Looked, Error> {
        let (state, version) = inode.load(true).await?;
        let (span, map) = match &state.content {
            Content::Spans(spans) => {
                let id = SpanId { inode: inode.number(), map: spans.map, span: touched(&(at..at + 1)).start };
                (Some(id), self.spans.load(id).await?.0.clone().unwrap_or_default().map)
            }
            Content::Extents(map) => (None, map.clone()),
            Content::Inline(_) => (None, Map::default()),
        };
        Ok(Looked { size: state.size, version, span, map })
    }

    /// What of a file lies in a stripe now; `at` is a place of the file that did.
    pub(crate) async fn extents_in(&self, inode: &dyn Inode, at: u64, stripe: StripeId) -> Result<Vec<Extent>, Error> {
        Ok(self.look_up(inode, at).await?.extents_in(stripe))
    }

    /// Writes what a file has in a stripe to another place, and lets the map name that: for a column that is missing or does not
    /// verify, for a member that goes. `at` is a place of the file that lies in the stripe, or did. False: the file has nothing
    /// in it any more.
    ///
    /// # Errors
    /// [`Error::Lost`] where it can't be read; nothing is changed then.
    pub async fn rewrite(self: &Rc<Self>, inode: &dyn Inode, at: u64, stripe: StripeId) -> Result<bool, Error> {
        self.rewrite_better(inode, at, stripe, None, &[]).await
    }

    /// The same; where it is said how many columns the new one may lack, it lacks no more, or nothing is changed. Without these
    /// parts of the stripe, which can't be read: they stay where they are.
    pub(crate) async fn rewrite_better(
        self: &Rc<Self>,
        inode: &dyn Inode,
        at: u64,
        stripe: StripeId,
        may_lack: Option<u32>,
        without: &[Range<usize>],
    ) -> Result<bool, Error> {
        let funds = inode.funds();
        let hold = funds.hold().await?;
        let mut written: Option<(Rc<Stripe>, Vec<Moved>, Written)> = None;
        let (mut stripe, mut without, mut doubtful) = (stripe, without, Vec::new());
        for _ in 0..TRIES_MAX {
            let looked = self.look_up(inode, at).await?;
            let named = looked.extents_in(stripe);
            let named = outside(named, without);
            let Some(first) = named.first() else { return Ok(false) };
            let (old, moved, mut new) = match written.take() {
                Some(written) => written,
                None => {
                    let (moved, data) = self.read_all(inode.number(), &named).await?;
                    let new = match may_lack {
                        Some(may_lack) => self.put_better(&funds, first.at, &data, may_lack).await?,
                        None => self.put_stripe(&funds, first.at, &data, false).await?,
                    };
                    (Rc::clone(&first.stripe), moved, new)
                }
            };
            let outcome = match looked.span {
                None => {
                    let mut map = looked.map.clone();
                    let gone = map.replace(&old, &new.stripe, &moved);
                    if map.encoded_len(0) > EXTENTS_BYTES_MAX {
                        written = Some((old, moved, new));
                        self.leave_extents(inode, looked.size, looked.version, &looked.map).await?;
                        continue;
                    }
                    offer([&mut new].into_iter())?;
                    let state = State { content: Content::Extents(map), size: looked.size };
                    inode.store_while(looked.version, state, &|| new.check()).await?.then_some(gone)
                }
                Some(id) => Some(self.replace(id, &old, &mut new, &moved).await?),
            };
            match outcome {
                Some(gone) if gone.iter().all(|stripe| stripe.id != new.stripe.id) => {
                    tell_named([&mut new].into_iter());
                    if !new.is_timely() {
                        // It was named too late, and may be another's, as the old one may by now: both are left to `fsck`. What
                        // can be read there goes to another place.
                        (stripe, without) = (new.stripe.id, &[]);
                        doubtful.push(stripe);
                        continue;
                    }
                    let gone: Vec<_> = gone.into_iter().filter(|stripe| !doubtful.contains(&stripe.id)).collect();
                    self.free(&gone, &hold);
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
        new: &mut Written,
        moved: &[Moved],
    ) -> Result<Vec<Rc<Stripe>>, Error> {
        offer([&mut *new].into_iter())?;
        let may = || new.check();
        let edited = self.spans.edit_while(id, &may, |span| {
            let Some(mut span) = span.filter(|span| span.map.names(old.id)) else {
                return Ok((None, vec![Rc::clone(&new.stripe)]));
            };
            let gone = span.map.replace(old, &new.stripe, moved);
            Ok((Some(span), gone))
        });
        let edited = edited.await;
        if matches!(&edited, Err(Failed { may_be_done: false, .. })) {
            recall([new].into_iter());
        }
        edited.map_err(|failed| failed.error)
    }

    /// The bytes of extents of one stripe, one behind the other, and where each comes to be.
    async fn read_all(&self, inode: u64, extents: &[Extent]) -> Result<(Vec<Moved>, Rope), Error> {
        let (mut moved, mut data) = (Vec::new(), Rope::default());
        for extent in extents {
            moved.push(Moved { from: extent.from, length: extent.length, to: data.len() as u32 });
            let read = self.read_extent(extent).await.map_err(|unread| unread.told(inode, extent))?;
            read.parts().iter().for_each(|part| data.push(part.clone()));
        }
        Ok((moved, data))
    }

    /// Puts a part of a span together, where its map has grown too long. What fails is tried again with the next write.
    pub(crate) async fn compact(self: &Rc<Self>, funds: &Funds, id: SpanId) {
        if let Err(error) = self.try_compact(funds, id).await {
            tracing::debug!(inode = id.inode, span = id.span, %error, "a span stays in many pieces");
        }
    }

    /// Puts a part of a span together whose map is full.
    ///
    /// # Errors
    /// There is none that could be.
    pub(crate) async fn shorten(self: &Rc<Self>, funds: &Funds, id: SpanId) -> Result<(), Error> {
        match self.try_compact(funds, id).await? {
            Compacted::Made | Compacted::Overtaken => Ok(()),
            Compacted::Nothing => Err(too_many_pieces()),
        }
    }

    async fn try_compact(self: &Rc<Self>, funds: &Funds, id: SpanId) -> Result<Compacted, Error> {
        let hold = funds.hold().await?;
        let stood = self.spans.load(id).await?;
        let Some(span) = stood.0.as_ref().filter(|span| span.is_long(id)) else { return Ok(Compacted::Overtaken) };
        for window in self.windows(id, span) {
            let written = match self.put_together(funds, &span.map, window.clone()).await {
                Ok(written) => written,
                // Another part can be read, perhaps.
                Err(Error::Lost { reason, .. }) => {
                    tracing::debug!(inode = id.inode, from = window.start, reason, "a part can't be put together");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let is_made = self.name_together((funds, &hold), id, span, written).await?;
            let made = self.figures.compactions.get() + u64::from(is_made);
            self.figures.compactions.set(made);
            return Ok(if is_made { Compacted::Made } else { Compacted::Overtaken });
        }
        Ok(Compacted::Nothing)
    }

    /// Parts of a span whose maps are shorter when they are put together, the one that saves most first.
    fn windows(&self, id: SpanId, span: &Span) -> Vec<Range<u64>> {
        let shape = self.members().layout().shape;
        let saved = |window: &Range<u64>| {
            let part = span.map.part(window.clone());
            let after = |run: &Range<u64>| 24 + 4 * shape.cut((run.end - run.start) as usize).sums();
            part.encoded_len(window.start) as i64 - runs(&part).iter().map(after).sum::<usize>() as i64
        };
        let size = WINDOW_BYTES.min(shape.stripe_bytes_max() as u64);
        let windows = id.range().step_by(size as usize).map(|from| from..(from + size).min(id.range().end));
        let mut windows: Vec<(i64, Range<u64>)> = windows.map(|window| (saved(&window), window)).collect();
        windows.retain(|(saved, _)| *saved > 0);
        windows.sort_by_key(|(saved, window)| (-saved, window.start));
        windows.into_iter().map(|(_, window)| window).collect()
    }

    /// Reads what lies in a part of a span, and puts it into stripes.
    async fn put_together(
        self: &Rc<Self>,
        funds: &Funds,
        map: &Map,
        window: Range<u64>,
    ) -> Result<Vec<Written>, Error> {
        let mut written = Vec::new();
        for run in runs(&map.part(window)) {
            let mut data = Rope::default();
            for piece in map.lookup(run.clone()) {
                match piece {
                    Piece::Hole(range) => data.push_zeroes((range.end - range.start) as usize),
                    Piece::Data(extent) => {
                        let read = self.read_extent(&extent).await.map_err(|unread| unread.told(0, &extent))?;
                        read.parts().iter().for_each(|part| data.push(part.clone()));
                    }
                }
            }
            written.extend(self.put(funds, &[(run.start, data)]).await?);
        }
        Ok(written)
    }

    /// Lets a span's map name what was put together, if it is still the one that it was made of.
    async fn name_together(
        &self,
        (funds, hold): (&Funds, &Hold),
        id: SpanId,
        span: &Span,
        mut written: Vec<Written>,
    ) -> Result<bool, Error> {
        offer(written.iter_mut())?;
        let may = || written.iter().try_for_each(Written::check);
        let edited = self.spans.edit_while(id, &may, |now| {
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
        if gone.is_some() {
            tell_named(written.iter_mut());
        }
        match gone.as_ref() {
            Some(gone) if written.iter().all(Written::is_timely) => self.free(gone, hold),
            // It may be another's, and so may what it was made of: they are left to `fsck`.
            Some(_) => {
                for late in &written {
                    self.put_elsewhere(funds, id, late).await?;
                }
            }
            None => {}
        }
        Ok(gone.is_some())
    }

    /// What a span came to name too late goes to another place, if it can be read there. Nothing is freed.
    async fn put_elsewhere(&self, funds: &Funds, id: SpanId, late: &Written) -> Result<(), Error> {
        let stripe = Rc::clone(&late.stripe);
        let all = Extent { at: late.at, length: stripe.length, from: 0, stripe };
        let (moved, data) = self.read_all(id.inode, &[all]).await?;
        let mut new = self.put_stripe(funds, late.at, &data, false).await?;
        let gone = self.replace(id, &late.stripe, &mut new, &moved).await?;
        match gone.iter().any(|stripe| stripe.id == new.stripe.id) {
            true => recall([&mut new].into_iter()),
            false => tell_named([&mut new].into_iter()),
        }
        Ok(())
    }
}

/// Extents of a stripe without these parts of it.
fn outside(extents: Vec<Extent>, without: &[Range<usize>]) -> Vec<Extent> {
    without.iter().fold(extents, |extents, without| extents.iter().flat_map(|extent| extent.outside(without)).collect())
}

/// What became of an attempt to put a part of a span together.
enum Compacted {
    Made,
    /// Others have changed the span, or made it short.
    Overtaken,
    /// Nothing can be read, or would be shorter.
    Nothing,
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
