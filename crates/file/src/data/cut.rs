//! Making files shorter, longer, and holes.

use std::ops::Range;
use std::rc::Rc;

use super::content::{Content, INLINE_BYTES_MAX, Inode, Spans, State};
use super::file::{Contents, TOGETHER, TRIES_MAX};
use super::map::{FILE_BYTES_MAX, Map};
use super::pending::Pending;
use super::span::{Span, SpanId, touched};
use super::stripe::Stripe;
use crate::error::Error;
use crate::meta::Version;

impl Contents {
    /// Makes a file so long: what it gains is a hole.
    ///
    /// # Errors
    /// As [`Contents::write`].
    pub async fn truncate(self: &Rc<Self>, inode: &dyn Inode, size: u64) -> Result<(), Error> {
        if size > FILE_BYTES_MAX {
            return Err(Error::TooLong(FILE_BYTES_MAX));
        }
        // The cut of ours, after which bytes from this size on are zeroes.
        let mut cut: Option<(u64, u32, u64)> = None;
        let mut has_shrunk = false;
        for attempt in 0..TRIES_MAX {
            let (state, version) = inode.load(attempt > 0).await?;
            let Content::Spans(spans) = &state.content else {
                if has_shrunk || self.truncate_short(inode, &state, version, size).await? {
                    self.space.tend().await;
                    return Ok(());
                }
                continue;
            };
            if spans.cut.is_some() {
                self.finish_cut(inode, &state, version, *spans).await?;
                continue;
            }
            if has_shrunk || size == state.size {
                self.space.tend().await;
                return Ok(());
            }
            if size < state.size {
                has_shrunk = self.begin_cut(inode, &state, version, *spans, size).await?.is_some();
            } else if state.size < spans.reach && cut != Some((spans.map, spans.cuts, state.size)) {
                cut = self.begin_cut(inode, &state, version, *spans, state.size).await?;
            } else if inode.store(version, State { size, ..(*state).clone() }).await? {
                return Ok(());
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// The same of a file whose map is in its inode. False: not yet.
    async fn truncate_short(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        size: u64,
    ) -> Result<bool, Error> {
        let mut gone = Vec::new();
        let content = match &state.content {
            Content::Inline(bytes) if size <= INLINE_BYTES_MAX as u64 => {
                let mut bytes = bytes.clone();
                bytes.resize(size as usize, 0);
                Content::Inline(bytes)
            }
            Content::Inline(bytes) if bytes.is_empty() => Content::Extents(Map::default()),
            Content::Inline(bytes) => {
                self.leave_inode(inode, state, version, bytes).await?;
                return Ok(false);
            }
            Content::Extents(map) => {
                let mut map = map.clone();
                gone = map.truncate(size);
                if size == 0 { Content::empty() } else { Content::Extents(map) }
            }
            Content::Spans(_) => return Ok(false),
        };
        let is_done = inode.store(version, State { content, size }).await?;
        if is_done {
            self.space.free(&gone);
        }
        Ok(is_done)
    }

    /// Notes in the inode that spans are to be emptied from `size` on, which is its size from now on. The cut's map, number and
    /// place; `None`: the inode has changed.
    pub(crate) async fn begin_cut(
        &self,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        spans: Spans,
        size: u64,
    ) -> Result<Option<(u64, u32, u64)>, Error> {
        debug_assert!(size <= state.size, "a cut raises no size");
        let cuts = spans.cuts.checked_add(1).ok_or(Error::Invalid("a file was cut too often: copy it"))?;
        let content = Content::Spans(Spans { cuts, cut: Some(size.min(spans.reach)), ..spans });
        let is_done = inode.store(version, State { content, size }).await?;
        Ok(is_done.then_some((spans.map, cuts, size)))
    }

    /// Empties spans behind a cut, and takes the cut out of the inode.
    pub(crate) async fn finish_cut(
        self: &Rc<Self>,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        spans: Spans,
    ) -> Result<(), Error> {
        let Some(from) = spans.cut else { return Ok(()) };
        let number = inode.number();
        self.each_span(&(from..spans.reach), move |contents, span| async move {
            let id = SpanId { inode: number, map: spans.map, span };
            contents.empty_span(id, spans.cuts, from).await
        })
        .await?;
        let content = match state.size {
            0 => Content::empty(),
            _ => Content::Spans(Spans { cut: None, ..spans }),
        };
        // Where it has changed, another has done it.
        inode.store(version, State { content, size: state.size }).await.map(drop)
    }

    async fn each_span<F: Future<Output = Result<(), Error>> + 'static>(
        self: &Rc<Self>,
        range: &Range<u64>,
        operation: impl Fn(Rc<Contents>, u64) -> F,
    ) -> Result<(), Error> {
        let mut pending = Pending::new();
        for span in touched(range) {
            pending.push((), operation(Rc::clone(self), span));
            if pending.keys().count() >= TOGETHER
                && let Some(((), done)) = pending.next().await
            {
                done?;
            }
        }
        while let Some(((), done)) = pending.next().await {
            done?;
        }
        Ok(())
    }

    /// Empties a span from a place on, unless this or a later cut has passed there before.
    async fn empty_span(&self, id: SpanId, cuts: u32, from: u64) -> Result<(), Error> {
        let edited = self.spans.edit(id, |span| {
            let Some(mut span) = span.filter(|span| span.cuts < cuts) else { return Ok((None, Vec::new())) };
            let gone = span.map.truncate(from);
            Ok((Some(Span { cuts, map: span.map }), gone))
        });
        let gone: Vec<Rc<Stripe>> = edited.await.map_err(|failed| failed.error)?;
        self.space.free(&gone);
        Ok(())
    }

    /// Empties a span of a map that no inode names.
    pub(crate) async fn drop_span(&self, id: SpanId) -> Result<(), Error> {
        self.empty_span(id, u32::MAX, 0).await
    }

    /// Makes a range of a file a hole; its size stays.
    ///
    /// # Errors
    /// As [`Contents::write`].
    pub async fn punch(self: &Rc<Self>, inode: &dyn Inode, range: Range<u64>) -> Result<(), Error> {
        for attempt in 0..TRIES_MAX {
            let (state, version) = inode.load(attempt > 0).await?;
            let range = range.start.min(state.size)..range.end.min(state.size);
            if range.is_empty() {
                return Ok(());
            }
            let (content, gone) = match &state.content {
                Content::Inline(bytes) => {
                    let mut bytes = bytes.clone();
                    bytes[range.start as usize..range.end as usize].fill(0);
                    (Content::Inline(bytes), Vec::new())
                }
                Content::Extents(map) => {
                    let mut map = map.clone();
                    let gone = map.punch(range);
                    (Content::Extents(map), gone)
                }
                Content::Spans(spans) if spans.cut.is_some() => {
                    self.finish_cut(inode, &state, version, *spans).await?;
                    continue;
                }
                Content::Spans(spans) => {
                    self.punch_spans(inode.number(), *spans, range).await?;
                    (state.content.clone(), Vec::new())
                }
            };
            // Of a long file the store notes the time alone; had it been cut meanwhile, it was emptied there as well.
            let is_long = matches!(content, Content::Spans(_));
            if inode.store(version, State { content, size: state.size }).await? || is_long {
                self.space.free(&gone);
                self.space.tend().await;
                return Ok(());
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    async fn punch_spans(self: &Rc<Self>, inode: u64, spans: Spans, range: Range<u64>) -> Result<(), Error> {
        let range = range.start..range.end.min(spans.reach);
        self.each_span(&range.clone(), move |contents, span| {
            let range = range.clone();
            async move {
                let id = SpanId { inode, map: spans.map, span };
                let edited = contents.spans.edit(id, |span| {
                    // A later cut has emptied it, and what came there since is newer than this.
                    let Some(mut span) = span.filter(|span| span.cuts <= spans.cuts) else {
                        return Ok((None, Vec::new()));
                    };
                    let gone = span.map.punch(range.start.max(id.range().start)..range.end.min(id.range().end));
                    Ok((Some(span), gone))
                });
                let gone = edited.await.map_err(|failed| failed.error)?;
                contents.space.free(&gone);
                Ok(())
            }
        })
        .await
    }

    /// Frees all that a file has, after its inode is gone, or is known to go for good.
    ///
    /// # Errors
    /// What the store says: the rest is left to `fsck`, or to whoever calls again.
    pub async fn remove(self: &Rc<Self>, inode: u64, content: &Content) -> Result<(), Error> {
        match content {
            Content::Inline(_) => {}
            Content::Extents(map) => self.space.free(&map.stripes()),
            Content::Spans(spans) => {
                let spans = *spans;
                self.each_span(&(0..spans.reach), move |contents, span| async move {
                    contents.drop_span(SpanId { inode, map: spans.map, span }).await
                })
                .await?;
            }
        }
        self.space.tend().await;
        Ok(())
    }
}
