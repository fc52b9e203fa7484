//! [`Contents`]: bytes of files, in stripes that maps name.

use std::cell::Cell;
use std::iter;
use std::rc::Rc;
use std::time::Duration;

use engine::backoff::jittered;
use engine::task;
use engine::time::{self, Instant};

use super::balance::Way;
use super::funds::{Funds, Hold, counted};
use super::map::SPAN_BYTES;
use super::member::{Layout, Members};
use super::pending::{Pending, TOGETHER};
use super::rope::Rope;
use super::rows::ChunkPlace;
use super::shape::COLUMN_ROWS_MAX;
use super::space::{RENEWED_WITHIN, Space, Taken};
use super::span::SpanRecords;
use super::stripe::Stripe;
use super::under_way::UnderWay;
use super::write::Stripes;
use crate::amount::Amount;
use crate::error::Error;
use crate::meta::Meta;

/// Tries of a stripe on other members, where some fail.
const WRITES_TRIED: usize = 4;
/// Times that an operation begins anew because others change the same file. Chosen: each time another one has made its change.
pub(crate) const TRIES_MAX: usize = 100;
/// Tries without a pause between them, and pauses after these. Chosen: what an operation has to do first takes a few, and a pause
/// is as long as calls to the store take, wherever that is.
const TRIED_AT_ONCE: usize = 4;
const PAUSE_FIRST: Duration = Duration::from_micros(250);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// A change of a map that has ended so long after the rows were taken that it names may have come when these were another's.
/// Derived: what was sent within the first ten minutes takes effect within half an hour, and others take rows for lost an hour
/// after the last renewal of before.
const NAMED_WITHIN: Duration = Duration::from_secs(40 * 60);
const _: () = assert!(NAMED_WITHIN.as_secs() >= RENEWED_WITHIN.as_secs() + 30 * 60);
const _: () = assert!(NAMED_WITHIN.as_secs() + RENEWED_WITHIN.as_secs() < 60 * 60);
/// How often it is said that columns are missing. Chosen: a log that stays readable.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// See the module.
pub struct Contents {
    pub(crate) space: Rc<Space>,
    pub(crate) stripes: Stripes,
    pub(crate) spans: SpanRecords,
    pub(crate) under_way: Rc<UnderWay>,
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
    /// Bytes that users have read.
    pub bytes_read: Cell<u64>,
    /// Bytes that users have written, whether they are in stripes yet or not.
    pub bytes_written: Cell<u64>,
    /// Blocks of those that could not go out, and are kept.
    pub blocks_failed: Cell<u64>,
    /// Blocks of those that never will: their users are told.
    pub blocks_dropped: Cell<u64>,
    /// When it was last said that columns are missing.
    said: Cell<Option<Instant>>,
}

impl Figures {
    /// A user has written so many bytes.
    pub(crate) fn add_written(&self, bytes: usize) {
        self.bytes_written.update(|sum| sum + bytes as u64);
    }

    /// So many blocks will never be stored.
    pub(crate) fn add_dropped(&self, blocks: usize) {
        self.blocks_dropped.update(|sum| sum + blocks as u64);
    }

    /// A stripe was written without these columns.
    fn add_short(&self, missing: u32, place: &ChunkPlace) {
        self.stripes_short.set(self.stripes_short.get() + 1);
        if self.said.get().is_some_and(|said| said.elapsed() < SAID_EVERY) {
            return;
        }
        self.said.set(Some(time::now()));
        let columns = (0..).zip(&place.columns).filter(|(column, _): &(u32, _)| missing >> column & 1 == 1);
        let members: Vec<u16> = columns.map(|(_, region)| region.member).collect();
        tracing::warn!(
            ?members,
            so_far = self.stripes_short.get(),
            "what is written lacks a column on members that do not take it: `yagura file rebuild` gives it back"
        );
    }
}

/// Bytes in a stripe that no map names yet.
pub(crate) struct Written {
    pub(crate) at: u64,
    pub(crate) stripe: Rc<Stripe>,
    /// Its rows.
    pub(crate) taken: Option<Taken>,
}

impl Written {
    /// No map names it, or ever did.
    pub(crate) fn is_ours(&self) -> bool {
        self.taken.as_ref().is_some_and(Taken::is_ours)
    }

    /// Whether a map may name it: asked right before each try, which may come long after the one before.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.taken.as_ref().map_or(Ok(()), Taken::check)
    }

    /// Whether it was this client's when a map came to name it, which is done; else it may be another's.
    pub(crate) fn is_timely(&self) -> bool {
        self.taken.as_ref().is_none_or(|taken| taken.at.elapsed() < NAMED_WITHIN)
    }

    /// Behind its last byte in the file.
    pub(crate) fn end(&self) -> u64 {
        self.at + u64::from(self.stripe.length)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // All commands have ended; but those of columns that failed may come late.
        if let Some(taken) = self.taken.take_if(|_| self.stripe.missing == 0) {
            taken.give_back();
        }
    }
}

/// Before the so many-th try of an operation, from 0 on, that others' changes of the file have undone. **Those who read and change
/// it in step with others lose to the same ones each time**: they fall out of step.
pub(crate) async fn before_try(attempt: usize) {
    if let Some(paused) = attempt.checked_sub(TRIED_AT_ONCE) {
        time::sleep(jittered(PAUSE_MAX.min(PAUSE_FIRST * (1 << paused.min(8))))).await;
    }
}

/// A map is changed to name these from now on.
pub(crate) fn offer<'a>(written: impl Iterator<Item = &'a mut Written>) -> Result<(), Error> {
    written.filter_map(|written| written.taken.as_mut()).try_for_each(Taken::offer)
}

/// A map names them, by a change that is known to have been made.
pub(crate) fn tell_named<'a>(written: impl Iterator<Item = &'a mut Written>) {
    written.filter_map(|written| written.taken.as_mut()).for_each(Taken::named);
}

/// No map names them, and none will.
pub(crate) fn recall<'a>(written: impl Iterator<Item = &'a mut Written>) {
    written.filter_map(|written| written.taken.as_mut()).for_each(Taken::recall);
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
        Ok(Rc::new(Contents { space, stripes, spans, under_way: Rc::default(), figures: Figures::default() }))
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

    /// Reads of stripes, by the number of their [`Way`].
    pub fn reads(&self) -> [u64; Way::LABELS.len()] {
        self.stripes.reads.each_ref().map(Cell::get)
    }

    /// No map names these stripes any more, and they count no more: by a change that this client has made, just now.
    pub(crate) fn free(&self, stripes: &[Rc<Stripe>], hold: &Hold) {
        self.free_since(stripes, time::now(), hold);
    }

    /// The same by a change that was sent then.
    pub(crate) fn free_since(&self, stripes: &[Rc<Stripe>], sent: Instant, hold: &Hold) {
        if self.space.free_since(stripes, sent) {
            let bytes = stripes.iter().map(|stripe| counted(stripe.length.into())).sum();
            hold.refund(Amount::of_bytes(bytes));
        }
    }

    /// Puts parts of a file into stripes, none of which lies in two spans, nor holds bytes of two parts.
    pub(crate) async fn put(self: &Rc<Self>, funds: &Funds, parts: &[(u64, Rope)]) -> Result<Vec<Written>, Error> {
        let mut open = parts.iter().flat_map(|(at, data)| self.stripes_for(*at, data));
        let (mut pending, mut written, mut fault) = (Pending::new(), Vec::new(), None);
        loop {
            while pending.keys().count() < TOGETHER
                && fault.is_none()
                && let Some((at, data)) = open.next()
            {
                let (contents, funds) = (Rc::clone(self), funds.clone());
                pending.push((), async move { contents.put_part(&funds, at, data).await });
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

    /// Data cut into what goes into one stripe each.
    fn stripes_for<'a>(&self, at: u64, data: &'a Rope) -> impl Iterator<Item = (u64, Rope)> + use<'a> {
        let layout = self.members().layout();
        let length_max = layout.shape.bytes_of(COLUMN_ROWS_MAX.min(layout.region_rows() as usize));
        let mut from = 0;
        iter::from_fn(move || {
            let place = at + from as u64;
            let in_span = (SPAN_BYTES - place % SPAN_BYTES) as usize;
            let length = length_max.min(data.len() - from).min(in_span);
            from += length;
            (length > 0).then(|| (place, data.slice(from - length, from)))
        })
    }

    /// Puts data into one stripe, or into several where no rows lie side by side for that.
    async fn put_part(&self, funds: &Funds, at: u64, data: Rope) -> Result<Vec<Written>, Error> {
        let shape = self.members().layout().shape;
        let (mut written, mut open) = (Vec::new(), vec![(at, data)]);
        while let Some((at, data)) = open.pop() {
            let rows = shape.cut(data.len()).rows();
            match self.put_stripe(funds, at, &data, false).await {
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

    /// Puts data into one stripe; with `well` only on members all of which are well and stay.
    pub(crate) async fn put_stripe(&self, funds: &Funds, at: u64, data: &Rope, well: bool) -> Result<Written, Error> {
        let rows = self.members().layout().shape.cut(data.len()).rows() as u32;
        let mut tried = 0;
        loop {
            let mut taken = self.space.take(rows, well).await?;
            // After that: it finds out whether this client is taken for dead.
            match funds.draw(counted(data.len() as u64)).await {
                Ok(charge) => taken.pay(charge),
                Err(error) => {
                    taken.give_back();
                    return Err(error);
                }
            }
            // A chunk whose record came an hour late may be in regions that are another's by now.
            taken.begin()?;
            let written = self.stripes.write(data, &taken.place, taken.row(), task::random_u64() as u32).await;
            match written {
                Ok(stripe) => {
                    self.figures.stripes_written.set(self.figures.stripes_written.get() + 1);
                    if stripe.missing != 0 {
                        self.figures.add_short(stripe.missing, &taken.place);
                    }
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

    /// Puts data into one stripe that lacks no more columns than this: all others are there, on members that stay.
    pub(crate) async fn put_better(
        &self,
        funds: &Funds,
        at: u64,
        data: &Rope,
        may_lack: u32,
    ) -> Result<Written, Error> {
        let written = self.put_stripe(funds, at, data, may_lack == 0).await?;
        let out = written.taken.as_ref().map_or(0, |taken| self.members().out_of(&taken.place.columns));
        // What is no better would be written again for ever; what is worse bears less than the old one.
        if (written.stripe.missing | out).count_ones() > may_lack {
            return Err(Error::Unavailable("members fail while a stripe is written anew".into()));
        }
        Ok(written)
    }
}
