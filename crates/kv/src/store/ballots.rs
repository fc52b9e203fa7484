//! Conditional operations: what becomes of a key depends on what is there, and happens once.
//!
//! Rules (`kv/model` searched them; the numbers are those of `resolve`):
//! - Under a ballot of its own the operation asks a majority to promise, takes the newest entry E they show, and asks them to
//!   accept what follows from it. A refusal: again, under a higher ballot.
//! 1. E remembers this operation: an earlier attempt took effect, and its result is the result, once E is held by a majority.
//! 2. An earlier attempt belongs to another era (put) than E, or E has forgotten operations as old as it: whether it took
//!    effect before it was replaced cannot be seen. Unknown. To try again would apply it twice. (An attempt that every member
//!    has refused, with none in doubt, is none: it can't have taken effect, and can't any more. Nor has a member taken it that was
//!    not sent it, nor will it once the operation has gone on.)
//! 3. Nothing is to be changed: that is the result at once if nothing was ever sent to be accepted and a majority shows E;
//!    else E has to be held by a majority first.
//! 4. Else the new entry, on top of E, which remembers this operation, is to be accepted.
//! - With an accept the member promises the host's *next* ballot. If a majority still shows that promise when the same host's
//!   next operation reads, its read is its prepare: two round trips instead of three. A reserved ballot is used once: two
//!   operations under one would be two values under one timestamp.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::sync::Permit;
use engine::time;

use super::error::StoreError;
use super::fetch::Held;
use super::operation::Course;
use super::round::{Answer, Majority, Round};
use super::value::{Change, PutOptions, Versioned};
use super::{Inner, count};
use crate::table::{Found, Record, Request};
use crate::types::{Applied, Ballot, Key, OpId, Timestamp, VALUE_BYTES_MAX, Version};
use crate::value::Value;

/// Attempts of one conditional operation against others of the same key. Guessed: with random pauses far beyond any
/// contention that still makes progress.
pub const ATTEMPTS_MAX: u32 = 128;
/// Doublings of the pause after a refusal. The first is as long as the attempt that was refused, for pauses shorter than what
/// they are to keep apart part nobody; each is shortened at random, so that hosts do not refuse each other for ever. (Measured anew
/// each time: an `engine::backoff::Backoff` doubles the pause that it began with.)
const BACKOFF_DOUBLINGS_MAX: u32 = 6;
/// Longest pause. Chosen: a twentieth of an operation's time.
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Bytes of values that results of attempts whose outcome is open hold on to, if not that of one of them alone: who has counted
/// what an operation takes has counted that. Chosen: values of 8 KiB fit as often as there are attempts, those of 100 KB ten
/// times, and of 1,024 operations all of which are refused again and again they are a gigabyte.
const KEPT_BYTES_FREE: usize = 1 << 20;
/// Ballots a host keeps in mind for its next operations; of more the oldest is forgotten, which costs that key's next one a
/// round trip. Guessed.
pub const RESERVATIONS_MAX: usize = 1024;

/// What an operation came to.
pub(super) struct Effect<R> {
    pub(super) result: R,
    /// Of the entry that it wrote or confirmed.
    pub(super) timestamp: Timestamp,
    pub(super) version: Version,
}

/// What an operation returns, and an attempt of it keeps.
pub(super) trait Told: Clone {
    /// Bytes of values that it holds on to.
    fn bytes(&self) -> usize;
}

impl Told for Option<Versioned> {
    fn bytes(&self) -> usize {
        self.as_ref().map_or(0, |found| found.value.len())
    }
}

/// What an operation is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// To change the key, alone among its host's operations.
    Change,
    /// To see what is there.
    Read,
    /// To have what is there accepted anew by all that can be reached, even if a majority shows it.
    Spread,
}

/// An entry that was sent to be accepted, and what the operation returns if it was.
struct Attempt<R> {
    ballot: Ballot,
    era: (u64, OpId),
    result: R,
    /// Of the entry that was sent: others may have changed it since, and what they wrote is not what the operation returns.
    version: Version,
}

/// A conditional operation that has read.
pub(super) struct Ballots<'a, R, D> {
    inner: &'a Rc<Inner>,
    key: &'a Key,
    round: &'a Rc<Round>,
    course: &'a Course,
    op: OpId,
    purpose: Purpose,
    decide: D,
    attempts: Vec<Attempt<R>>,
    /// The last of them was refused by a member, and nothing was asked since.
    refused: bool,
    /// The largest round of a ballot in sight.
    largest: u64,
    /// Bytes of the value that the attempt goes on with, until it makes another.
    bytes: Option<Permit>,
}

/// What to ask for once promised.
enum Resolution<R> {
    /// Nothing.
    Is(Effect<R>),
    /// That a majority holds what is there.
    Confirm(Effect<R>, Record),
    /// A change.
    Write(Effect<R>, Record),
    /// What is there could not be fetched: it was replaced meanwhile.
    Gone,
}

fn era(timestamp: Timestamp) -> (u64, OpId) {
    (timestamp.counter, timestamp.op)
}

impl<'a, R: Told, D: FnMut(Option<&Versioned>) -> Change<R>> Ballots<'a, R, D> {
    /// Operation `op`, whose round has read the members.
    pub(super) fn new(
        inner: &'a Rc<Inner>,
        key: &'a Key,
        round: &'a Rc<Round>,
        course: &'a Course,
        op: OpId,
        purpose: Purpose,
        decide: D,
    ) -> Self {
        let (_, largest) = round.largest();
        Ballots {
            inner,
            key,
            round,
            course,
            op,
            purpose,
            decide,
            attempts: Vec::new(),
            refused: false,
            largest,
            bytes: None,
        }
    }

    /// Carries it out. `promised`: the ballot reserved for it, and what a majority that still promises it has shown.
    pub(super) async fn run(mut self, mut promised: Option<(Ballot, Majority)>) -> Result<Effect<R>, StoreError> {
        let mut took = Duration::ZERO;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                count(&self.inner.stats.conflicts);
                // Who pauses needs none, and who waits for some must hold none.
                self.round.withdraw();
                self.bytes = None;
                back_off(attempt, took).await;
                self.strike(true);
                if self.keeps_too_much() {
                    return Err(StoreError::Contended { attempts: attempt, outcome_unknown: true });
                }
            }
            let began = time::now();
            let prepared = match promised.take() {
                Some(promised) => Some(promised),
                None => self.prepare().await?,
            };
            if let Some((ballot, majority)) = prepared
                && let Some(effect) = self.accept(ballot, &majority).await?
            {
                return Ok(effect);
            }
            took = began.elapsed();
        }
        self.strike(false);
        Err(StoreError::Contended { attempts: ATTEMPTS_MAX, outcome_unknown: !self.attempts.is_empty() })
    }

    /// Forgets the last attempt if no member has taken it, nor ever will; `goes_on`: the next thing is that all are asked anew.
    fn strike(&mut self, goes_on: bool) {
        if std::mem::take(&mut self.refused)
            && if goes_on { self.round.is_taken_by_none() } else { self.round.is_refused_by_all() }
        {
            self.attempts.pop();
            self.course.withdraw();
        }
    }

    /// Whether the results of attempts that may have taken effect hold on to more than one value: each is a copy of its own, and
    /// the next attempt would read another.
    fn keeps_too_much(&self) -> bool {
        let kept = || self.attempts.iter().map(|attempt| attempt.result.bytes());
        kept().sum::<usize>() > kept().max().unwrap_or(0).max(KEPT_BYTES_FREE)
    }

    /// `None`: refused.
    async fn prepare(&mut self) -> Result<Option<(Ballot, Majority)>, StoreError> {
        self.largest += 1;
        let ballot = Ballot { round: self.largest, op: self.op };
        match self.course.ask(self.round, Request::Prepare(ballot), false).await? {
            Answer::Done => Ok(self.round.judge().map(|majority| (ballot, majority))),
            Answer::Refused(higher) => {
                self.largest = self.largest.max(higher.round);
                Ok(None)
            }
        }
    }

    /// `None`: refused, or gone.
    async fn accept(&mut self, ballot: Ballot, majority: &Majority) -> Result<Option<Effect<R>>, StoreError> {
        let (effect, record, changes) = match self.resolve(ballot, majority).await? {
            Resolution::Is(effect) => {
                // Nothing was sent under this ballot: its promises are good for the next operation.
                self.inner.reservations.keep(self.key, ballot);
                return Ok(Some(effect));
            }
            Resolution::Confirm(effect, record) => (effect, record, false),
            Resolution::Write(effect, record) => {
                // Held until all is over, and taken in the order that puts have: a place among the operations, then bytes.
                self.bytes = None;
                self.bytes = Some(self.bytes_for(&record).await);
                let sent = !self.attempts.is_empty();
                self.round.place(&record).await.map_err(|error| error.with_outcome(sent))?;
                let era = era(record.timestamp);
                self.attempts.push(Attempt { ballot, era, result: effect.result.clone(), version: effect.version });
                (effect, record, true)
            }
            Resolution::Gone => return Ok(None),
        };
        // A reader that confirms has no next operation in view.
        let next = match changes {
            true => Ballot { round: ballot.round + 1, op: self.inner.next_op() },
            false => ballot,
        };
        match self.course.ask(self.round, Request::Accept { ballot, next, record }, changes).await? {
            Answer::Done => {
                if next != ballot {
                    self.inner.reservations.keep(self.key, next);
                }
                Ok(Some(effect))
            }
            Answer::Refused(higher) => {
                self.refused = changes;
                self.largest = self.largest.max(higher.round);
                Ok(None)
            }
        }
    }

    async fn bytes_for(&self, record: &Record) -> Permit {
        let (bytes, length) = (&self.inner.value_bytes, record.value.as_ref().map_or(0, Value::len));
        match bytes.try_acquire(length) {
            Some(permit) => permit,
            None => {
                // What waits for others must hold nothing that they may wait for.
                self.round.let_go();
                bytes.acquire(length).await
            }
        }
    }

    /// What to do under `ballot`, which a majority has promised.
    async fn resolve(&mut self, ballot: Ballot, majority: &Majority) -> Result<Resolution<R>, StoreError> {
        let holders = self.round.found(majority.slots());
        let Some((_, newest)) = holders.first().cloned() else { return Ok(Resolution::Gone) };
        let base = newest.base(self.round.forgets().below);
        let applied = base.ops.iter().find(|applied| applied.op == self.op).map(Applied::ballot);
        if applied.is_none() && self.is_undecidable(&base) {
            return Err(StoreError::OutcomeUnknown);
        }
        let fetched = self.course.fetch(self.round, holders).await;
        let Ok(Held { value, bytes }) = fetched else { return Ok(Resolution::Gone) };
        self.bytes = bytes;
        let confirmed_as = |result, version| {
            let timestamp = Timestamp { ballot, ..base.timestamp };
            let record = Record { timestamp, ..base.record(value.clone()) };
            Resolution::Confirm(Effect { result, timestamp, version }, record)
        };
        let confirmed = |result| confirmed_as(result, base.version());
        if let Some(applied) = applied {
            let attempt = self.attempts.iter().find(|attempt| attempt.ballot == applied);
            // Rule 1. Nobody else has this operation's id, so there is one.
            let confirmed = |attempt: &Attempt<R>| confirmed_as(attempt.result.clone(), attempt.version);
            return attempt.map(confirmed).ok_or(StoreError::OutcomeUnknown);
        }
        let shown = value.clone().map(|value| Versioned::new(&base, value));
        // What nobody has asked for is not ended by one calendar.
        let now = if self.purpose == Purpose::Spread { self.inner.settled_millis() } else { self.inner.unix_millis() };
        let expired = base.is_expired(now);
        let nothing = shown.is_none();
        let (result, value, options) = match (self.decide)(shown.as_ref().filter(|_| !expired)) {
            Change::Put { value, .. } if value.len() > VALUE_BYTES_MAX => {
                return Err(StoreError::Value { length: value.len() }.with_outcome(!self.attempts.is_empty()));
            }
            Change::Put { value, options, result } => (result, Some(value), options),
            Change::Keep(result) if !expired => return Ok(self.unchanged(result, &base, majority, confirmed)),
            Change::Delete(result) if nothing => return Ok(self.unchanged(result, &base, majority, confirmed)),
            // What has ended is deleted, whatever else was asked.
            Change::Keep(result) | Change::Delete(result) => (result, None, PutOptions::default()),
        };
        Ok(self.changed(result, &base, ballot, value, options))
    }

    /// Rule 2.
    fn is_undecidable(&self, base: &Found) -> bool {
        let cut = base.ops.first().filter(|first| first.op == OpId::default()).map_or(0, |cut| cut.round);
        self.attempts.iter().any(|attempt| attempt.era != era(base.timestamp) || attempt.ballot.round <= cut)
    }

    /// Rule 3.
    fn unchanged(
        &self,
        result: R,
        base: &Found,
        majority: &Majority,
        confirmed: impl Fn(R) -> Resolution<R>,
    ) -> Resolution<R> {
        match majority {
            Majority::Agreed(_) if self.attempts.is_empty() && self.purpose != Purpose::Spread => {
                Resolution::Is(Effect { result, timestamp: base.timestamp, version: base.version() })
            }
            _ => confirmed(result),
        }
    }

    /// Rule 4. If no other operation of this host is at the key, its earlier ones are done, whatever came of them: nobody will
    /// look for them.
    fn changed(
        &self,
        result: R,
        base: &Found,
        ballot: Ballot,
        value: Option<Value>,
        options: PutOptions,
    ) -> Resolution<R> {
        let is_done = |applied: &Applied| self.purpose == Purpose::Change && applied.op.host == self.op.host;
        let others = base.ops.iter().filter(|applied| !is_done(applied)).copied();
        let ops: Vec<Applied> = others.chain([Applied { op: self.op, round: ballot.round }]).collect();
        let timestamp = Timestamp { ballot, ..base.timestamp };
        let version = Version::new(timestamp, &ops);
        let record = Record { timestamp, value, expiry: options.stored_expiry(), tag: options.tag, ops };
        Resolution::Write(Effect { result, timestamp, version }, record)
    }
}

async fn back_off(attempt: u32, took: Duration) {
    time::sleep_within((took * (1 << attempt.min(BACKOFF_DOUBLINGS_MAX))).min(BACKOFF_MAX)).await;
}

/// Ballots that members have promised to this host's next operation on a key. Hints: whoever finds one of no use prepares.
#[derive(Default)]
pub(super) struct Reservations {
    by_key: RefCell<BTreeMap<Vec<u8>, (Ballot, u64)>>,
    by_age: RefCell<BTreeMap<u64, Vec<u8>>>,
    count: Cell<u64>,
}

impl Reservations {
    /// The ballot for the next operation on `key`, in an epoch whose rounds are above `start`. It is given once.
    pub(super) fn take(&self, key: &Key, start: u64) -> Option<Ballot> {
        let (ballot, age) = self.by_key.borrow_mut().remove(key.bytes())?;
        self.by_age.borrow_mut().remove(&age);
        // Of an older epoch: the promise may have been dropped with a tombstone, or not have been carried over.
        (ballot.round > start).then_some(ballot)
    }

    fn keep(&self, key: &Key, ballot: Ballot) {
        let (mut by_key, mut by_age) = (self.by_key.borrow_mut(), self.by_age.borrow_mut());
        let age = self.count.get() + 1;
        self.count.set(age);
        if let Some((_, before)) = by_key.insert(key.bytes().to_vec(), (ballot, age)) {
            by_age.remove(&before);
        }
        by_age.insert(age, key.bytes().to_vec());
        if by_age.len() > RESERVATIONS_MAX
            && let Some((_, oldest)) = by_age.pop_first()
        {
            by_key.remove(&oldest);
        }
    }
}
