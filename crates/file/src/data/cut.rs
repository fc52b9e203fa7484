//! Making files shorter, longer, and holes.

use std::ops::Range;
use std::rc::Rc;

use engine::time;

use super::content::{Content, INLINE_BYTES_MAX, Inode, Spans, State};
use super::file::{Contents, TRIES_MAX, before_try};
use super::funds::Hold;
use super::map::{FILE_BYTES_MAX, Map};
use super::pending::{Few, TOGETHER};
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
        self.set_size(inode, size, false).await
    }

    /// Makes a file so long if it is shorter; one that is longer, by whomever, stays.
    ///
    /// # Errors
    /// As [`Contents::write`].
    pub async fn grow(self: &Rc<Self>, inode: &dyn Inode, size: u64) -> Result<(), Error> {
        self.set_size(inode, size, true).await
    }

    async fn set_size(self: &Rc<Self>, inode: &dyn Inode, size: u64, only_grows: bool) -> Result<(), Error> {
        if size > FILE_BYTES_MAX {
            return Err(Error::TooLong(FILE_BYTES_MAX));
        }
        let hold = inode.funds().hold().await?;
        let (mut behind, mut has_shrunk) = (Behind::default(), false);
        for attempt in 0..TRIES_MAX {
            before_try(attempt).await;
            // What this client has seen before says neither how long the file is nor where its bytes are.
            let (state, version) = inode.load(true).await?;
            if only_grows && state.size >= size {
                return Ok(());
            }
            let Content::Spans(spans) = &state.content else {
                if has_shrunk || self.truncate_short(inode, (&state, version), size, &hold).await? {
                    self.space.tend().await;
                    return Ok(());
                }
                continue;
            };
            if spans.cut.is_some() {
                self.finish_cut(inode, &state, version, *spans).await?;
                continue;
            }
            if has_shrunk {
                self.space.tend().await;
                return Ok(());
            }
            if size < state.size {
                has_shrunk = self.begin_cut(inode, &state, version, *spans, size).await?;
            } else if size > state.size && state.size < spans.reach && !behind.is_nothing(spans) {
                self.begin_cut(inode, &state, version, *spans, state.size).await?;
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
        (state, version): (&State, Version),
        size: u64,
        hold: &Hold,
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
        let sent = time::now();
        let is_done = inode.store(version, State { content, size }).await?;
        if is_done {
            self.free_since(&gone, sent, hold);
        }
        Ok(is_done)
    }

    /// Notes in the inode that spans are to be emptied from `size` on, which is its size from now on. False: the inode has changed.
    pub(crate) async fn begin_cut(
        &self,
        inode: &dyn Inode,
        state: &State,
        version: Version,
        spans: Spans,
        size: u64,
    ) -> Result<bool, Error> {
        debug_assert!(size <= state.size, "a cut raises no size");
        let cuts = spans.cuts.checked_add(1).ok_or(Error::Invalid("a file was cut too often: copy it"))?;
        let content = Content::Spans(Spans { cuts, cut: Some(size.min(spans.reach)), ..spans });
        inode.store(version, State { content, size }).await
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
        let hold = Rc::new(inode.funds().hold().await?);
        self.each_span(inode.number(), spans.map, &(from..spans.reach), move |contents, id| {
            let hold = Rc::clone(&hold);
            async move { contents.empty_span(id, spans.cuts, from, &hold).await }
        })
        .await?;
        let content = match state.size {
            0 => Content::empty(),
            _ => Content::Spans(Spans { cut: None, ..spans }),
        };
        // Where it has changed, another has done it.
        inode.store(version, State { content, size: state.size }).await.map(drop)
    }

    /// Does it with every span that may be there. One that comes while this is under way may be passed over: a writer that puts
    /// one there looks at the inode after that, and finds the cut that was there before this began, or the map gone.
    async fn each_span<'a, F: Future<Output = Result<(), Error>> + 'a>(
        self: &Rc<Self>,
        inode: u64,
        map: u64,
        range: &Range<u64>,
        operation: impl Fn(Rc<Contents>, SpanId) -> F,
    ) -> Result<(), Error> {
        let (mut pending, mut cursor) = (Few::new(), 0);
        loop {
            let (numbers, next) = self.spans.numbers(inode, map, &touched(range), cursor).await?;
            for span in numbers {
                pending.push((), operation(Rc::clone(self), SpanId { inode, map, span }));
                if pending.keys().count() >= TOGETHER
                    && let Some(((), done)) = pending.next().await
                {
                    done?;
                }
            }
            while let Some(((), done)) = pending.next().await {
                done?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Empties a span from a place on, unless this or a later cut has passed there before.
    async fn empty_span(&self, id: SpanId, cuts: u32, from: u64, hold: &Hold) -> Result<(), Error> {
        let sent = time::now();
        let emptied = self.spans.ensure(id, |span| {
            let Some(mut span) = span.filter(|span| span.cuts < cuts) else { return Ok((None, Vec::new())) };
            let gone = span.map.truncate(from);
            Ok((Some(Span { cuts, map: span.map }), gone))
        });
        let gone: Vec<Rc<Stripe>> = emptied.await?;
        self.free_since(&gone, sent, hold);
        Ok(())
    }

    /// Empties a span of a map that no inode names.
    pub(crate) async fn drop_span(&self, id: SpanId, hold: &Hold) -> Result<(), Error> {
        self.empty_span(id, u32::MAX, 0, hold).await
    }

    /// Makes a range of a file a hole; its size stays.
    ///
    /// # Errors
    /// As [`Contents::write`].
    pub async fn punch(self: &Rc<Self>, inode: &dyn Inode, range: Range<u64>) -> Result<(), Error> {
        let hold = inode.funds().hold().await?;
        // The long map in which it is a hole, since which cut.
        let mut punched: Option<(u64, u32)> = None;
        for attempt in 0..TRIES_MAX {
            before_try(attempt).await;
            let (state, version) = inode.load(true).await?;
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
                Content::Spans(spans) if punched != Some((spans.map, spans.cuts)) => {
                    self.punch_spans(inode, *spans, range).await?;
                    punched = Some((spans.map, spans.cuts));
                    // Another map, or what was written after a cut, may be the file's by now.
                    continue;
                }
                // Of a long file the inode notes the time alone.
                Content::Spans(_) => (state.content.clone(), Vec::new()),
            };
            let sent = time::now();
            if inode.store(version, State { content, size: state.size }).await? {
                self.free_since(&gone, sent, &hold);
                self.space.tend().await;
                return Ok(());
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    async fn punch_spans(self: &Rc<Self>, inode: &dyn Inode, spans: Spans, range: Range<u64>) -> Result<(), Error> {
        let range = range.start..range.end.min(spans.reach);
        self.each_span(inode.number(), spans.map, &range.clone(), move |contents, id| {
            let range = range.start.max(id.range().start)..range.end.min(id.range().end);
            async move { contents.punch_span(inode, id, spans.cuts, range).await }
        })
        .await
    }

    async fn punch_span(
        self: &Rc<Self>,
        inode: &dyn Inode,
        id: SpanId,
        cuts: u32,
        range: Range<u64>,
    ) -> Result<(), Error> {
        let may = || inode.may_change();
        let hold = inode.funds().hold().await?;
        for _ in 0..TRIES_MAX {
            let sent = time::now();
            let punched = self.spans.ensure_while(id, &may, |span| {
                // A later cut has emptied it, and what came there since is newer than this: the inode will tell.
                let Some(mut span) = span.filter(|span| span.cuts <= cuts) else {
                    return Ok((None, Some(Vec::new())));
                };
                let gone = span.map.punch(range.clone());
                Ok(if span.is_full(id) { (None, None) } else { (Some(span), Some(gone)) })
            });
            match punched.await? {
                Some(gone) => {
                    self.free_since(&gone, sent, &hold);
                    return Ok(());
                }
                None => self.shorten(&inode.funds(), id).await?,
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// Frees all that a file had outside of its inode. Called once, by whoever alone has made the inode go: nobody can tell of
    /// another's freeing how far it came, and rows that are freed twice are somebody else's the second time.
    ///
    /// # Errors
    /// What the store says: the rest is left to `fsck`.
    pub async fn remove(self: &Rc<Self>, inode: u64, content: &Content, hold: &Hold) -> Result<(), Error> {
        match content {
            Content::Inline(_) => {}
            Content::Extents(map) => self.free(&map.stripes(), hold),
            Content::Spans(Spans { map, reach, .. }) => {
                let drop_span = |contents: Rc<Contents>, id| async move { contents.drop_span(id, hold).await };
                self.each_span(inode, *map, &(0..*reach), drop_span).await?;
            }
        }
        self.space.tend().await;
        Ok(())
    }
}

/// Whether anything may lie behind a file's end that is not to come into the file: what a writer has left that died before this
/// operation began. A cut that was begun since, whoever's it is, has taken that; what came after it is of others at the same time.
#[derive(Default)]
pub(crate) struct Behind {
    /// The map and the number of cuts when the operation first looked.
    first: Option<(u64, u32)>,
}

impl Behind {
    /// As the inode says now: not as it was seen before the operation.
    pub(crate) fn is_nothing(&mut self, spans: &Spans) -> bool {
        let now = (spans.map, spans.cuts);
        *self.first.get_or_insert(now) != now
    }
}
