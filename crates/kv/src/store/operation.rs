//! get, put, delete, and what all operations have in common.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::backoff::Backoff;
use engine::histogram::Histogram;
use engine::sync::Permit;
use engine::task::LocalFuture;
use engine::time::{self, Instant};

use super::ballots::{Ballots, Effect, Purpose};
use super::error::StoreError;
use super::fetch::{Gone, Held};
use super::member::Member;
use super::reserve::Reserve;
use super::room::get_as_it_is;
use super::round::{Answer, Majority, Round, is_value};
use super::topology::Topology;
use super::value::{Change, PutOptions, Shown, Versioned};
use super::{Inner, OPERATION_TIME_MAX, Store, count};
use crate::table::{Found, Record, Request};
use crate::types::{Ballot, Key, OpId, Timestamp, VALUE_BYTES_MAX};
use crate::value::Value;

/// First pause before a get begins anew because what it was about to fetch is gone; doubles: if no holder's copy verifies it
/// is not gone, and every further look is in vain until repair has been there.
const RESTART_FIRST: Duration = Duration::from_micros(200);
/// Shorter values fit every page, and need not be placed before it is read. Derived: the smallest page and the longest key.
pub(super) const EARLY_BYTES_MIN: usize = pool::geometry::PAGE_SIZE_MIN as usize - crate::types::KEY_BYTES_MAX - 128;
/// Longest pause.
const RESTART_PAUSE_MAX: Duration = Duration::from_millis(50);

impl Store {
    /// The value of `key`; `None`: there is none. Linearizable.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        Ok(self.get_versioned(key).await?.map(|found| found.value))
    }

    /// The value of `key` with its version, expiry and tag; `None`: there is none. Linearizable.
    ///
    /// A value that has ended by this host's clock is deleted first. So clocks, right or wrong, decide when a key ends, and
    /// no two readers ever disagree on whether it has.
    pub fn get_versioned<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Versioned>, StoreError>> {
        self.get_reserving(key, None)
    }

    /// The same where `room` is asked before the value is read.
    pub fn get_reserving<'a>(
        &'a self,
        key: &'a [u8],
        room: Option<Rc<dyn Reserve>>,
    ) -> LocalFuture<'a, Result<Option<Versioned>, StoreError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let key = inner.key(key)?;
            let course = Course::reserving(room);
            course.take_place(inner).await;
            let start = time::now();
            let operation = inner.on_newest(async |pool| get(inner, &pool, &key, &course).await);
            let result = inner.within(start, &course, operation).await;
            inner.finish(&result, &inner.stats.gets, &inner.stats.get_time, start);
            result
        })
    }

    /// What `key` holds, without its bytes: they are read only where a majority does not agree on them. Linearizable.
    pub fn look<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Shown>, StoreError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let key = inner.key(key)?;
            let _permit = inner.operations.acquire(1).await;
            let (start, course) = (time::now(), Course::default());
            let operation = inner.on_newest(async |pool| look(inner, &pool, &key, &course).await);
            let result = inner.within(start, &course, operation).await;
            inner.finish(&result, &inner.stats.gets, &inner.stats.get_time, start);
            result
        })
    }

    /// Sets `key` to `value`, which never ends. Linearizable; an error says whether the put may have taken effect.
    pub async fn put(&self, key: &[u8], value: impl Into<Value>) -> Result<(), StoreError> {
        self.put_with(key, value, PutOptions::default()).await
    }

    /// Sets `key` to `value` with its expiry and tag, whatever was there. Linearizable; an error says whether the put may
    /// have taken effect.
    pub async fn put_with(&self, key: &[u8], value: impl Into<Value>, options: PutOptions) -> Result<(), StoreError> {
        self.put_value(key, value.into(), options).await
    }

    fn put_value<'a>(
        &'a self,
        key: &'a [u8],
        value: Value,
        options: PutOptions,
    ) -> LocalFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let key = inner.key(key)?;
            if value.len() > VALUE_BYTES_MAX {
                return Err(StoreError::Value { length: value.len() });
            }
            let _permit = inner.operations.acquire(1).await;
            // In this order, as gets have it: else gets that wait for bytes and puts that hold them wait for each other.
            let _bytes = inner.value_bytes.acquire(value.len()).await;
            let (start, course) = (time::now(), Course::default());
            let operation =
                inner.on_newest(async |pool| put(inner, &pool, &key, value.clone(), options, &course).await);
            let result = inner.within(start, &course, operation).await;
            inner.finish(&result, &inner.stats.puts, &inner.stats.put_time, start);
            result
        })
    }

    /// Removes `key`. Linearizable; an error says whether the delete may have taken effect. Returns whether the key was there
    /// when the delete looked: of two deletes at once both may have seen it ([`Store::take`] tells for sure).
    pub fn delete<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let key = inner.key(key)?;
            let _permit = inner.operations.acquire(1).await;
            let (start, course) = (time::now(), Course::default());
            let operation = inner.on_newest(async |pool| delete(inner, &pool, &key, &course).await);
            let result = inner.within(start, &course, operation).await;
            inner.finish(&result, &inner.stats.deletes, &inner.stats.put_time, start);
            result
        })
    }
}

/// What an operation has done so far, for its error: the round it is in, and whether it has asked for a change of its own.
pub(super) struct Course {
    round: RefCell<Option<Rc<Round>>>,
    /// The latest request is for a change.
    changing: Cell<bool>,
    /// An earlier one was, and its outcome is open.
    changed: Cell<bool>,
    /// Who is asked before a value is read.
    room: Option<Rc<dyn Reserve>>,
    /// Its place among the operations: not while it waits for room, or readers of long values who are slow would be all there are.
    place: RefCell<Option<Permit>>,
}

impl Default for Course {
    fn default() -> Course {
        Course::reserving(None)
    }
}

impl Course {
    /// The course of an operation that asks `room` before it reads a value.
    pub(super) fn reserving(room: Option<Rc<dyn Reserve>>) -> Course {
        let place = RefCell::default();
        Course { round: RefCell::new(None), changing: Cell::new(false), changed: Cell::new(false), room, place }
    }

    /// Waits for a place among the operations, and has it until it has ended. All take what they need in one order: their turn at
    /// the key, room, a place, bytes.
    pub(super) async fn take_place(&self, inner: &Inner) {
        let place = inner.operations.acquire(1).await;
        *self.place.borrow_mut() = Some(place);
    }

    /// The value that `holders` speak of, once there is room for it.
    pub(super) async fn fetch(&self, round: &Round, holders: Vec<(Rc<Member>, Found)>) -> Result<Held, Gone> {
        let length = holders.first().and_then(|(_, found)| found.content.value_len()).unwrap_or(0);
        if let Some(wait) = self.room.as_ref().and_then(|room| room.reserve(length)) {
            // What waits for others must hold nothing that they may wait for.
            round.let_go();
            let place = self.place.take();
            let had_place = place.is_some();
            drop(place);
            wait.await;
            if had_place {
                self.take_place(&round.shared.store).await;
            }
        }
        round.fetch(holders).await
    }

    /// Begins a round; that of an earlier try ends.
    pub(super) fn begin(&self, inner: &Rc<Inner>, pool: &Rc<Topology>, key: &Key) -> Rc<Round> {
        self.begin_put(inner, pool, key, None)
    }

    /// The same for a put whose value may be placed meanwhile.
    fn begin_put(&self, inner: &Rc<Inner>, pool: &Rc<Topology>, key: &Key, early: Option<(OpId, Value)>) -> Rc<Round> {
        let round = Rc::new(Round::start(inner, pool, key, early));
        *self.round.borrow_mut() = Some(round.clone());
        round
    }

    /// Asks all members for `request`. `changes`: it is a change of this operation's own, which it must own up to.
    pub(super) async fn ask(&self, round: &Round, request: Request, changes: bool) -> Result<Answer, StoreError> {
        if self.changing.replace(changes) {
            self.changed.set(true);
        }
        let error = match round.ask(request).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if self.may_have_changed() {
            if changes
                && !self.changed.get()
                && let Some(map_changed) = round.map_changed()
            {
                round.hear_all(|slot| slot.outcome.is_some()).await;
                if round.is_refused_by_all() {
                    self.withdraw();
                    return Err(map_changed);
                }
            }
            let unknown = self.changed.get() || error.outcome_unknown();
            return Err(error.with_outcome(unknown));
        }
        // Nobody's own: refused by a seal it may be asked again on the newer map.
        Err(round.map_changed().unwrap_or(error.with_outcome(false)))
    }

    /// The latest request was refused by all: it is as if it had not been sent.
    pub(super) fn withdraw(&self) {
        self.changing.set(false);
    }

    fn may_have_changed(&self) -> bool {
        self.changing.get() || self.changed.get()
    }
}

impl Inner {
    /// Ends an operation that has not ended in time. Also one that has, but is looked at too late (the process was
    /// stopped): what it counted on may have been lost and repaired away since.
    pub(super) async fn within<T>(
        &self,
        start: Instant,
        course: &Course,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = time::timeout(OPERATION_TIME_MAX, operation).await;
        match result {
            Ok(result) if start.elapsed() <= OPERATION_TIME_MAX || result.is_err() => result,
            _ => Err(match &*course.round.borrow() {
                Some(round) => round.unavailable(course.may_have_changed()),
                None => StoreError::Unavailable {
                    answered: 0,
                    replicas: self.topology().placement.replicas(),
                    needed: self.topology().placement.majority(),
                    outcome_unknown: false,
                    reasons: "no time".into(),
                },
            }),
        }
    }

    pub(super) fn finish<T>(
        &self,
        result: &Result<T, StoreError>,
        counter: &std::sync::atomic::AtomicU64,
        times: &Histogram,
        start: Instant,
    ) {
        match result {
            Ok(_) => {
                count(counter);
                times.record(start.elapsed());
            }
            Err(_) => count(&self.stats.failures),
        }
    }

    /// Of a put by `op`.
    fn next_timestamp(&self, round: &Round, op: OpId) -> Timestamp {
        let (counter, _) = round.largest();
        Timestamp { counter: counter.saturating_add(1), op, ballot: Ballot::NONE }
    }
}

async fn get(
    inner: &Rc<Inner>,
    pool: &Rc<Topology>,
    key: &Key,
    course: &Course,
) -> Result<Option<Versioned>, StoreError> {
    match get_settled(inner, pool, key, course).await {
        Err(full @ StoreError::OutOfSpace { .. }) => get_as_it_is(inner, pool, key, course, full).await,
        result => result,
    }
}

/// A get that wants no bytes.
async fn look(inner: &Rc<Inner>, pool: &Rc<Topology>, key: &Key, course: &Course) -> Result<Option<Shown>, StoreError> {
    let round = course.begin(inner, pool, key);
    let majority = round.majority().await?;
    if let (Majority::Agreed(slots), now) = (&majority, inner.unix_millis())
        && let Some((_, shown)) = round.found(slots).first()
        && !shown.is_expired(now)
    {
        return Ok(Shown::new(shown));
    }
    drop(round);
    let found = get(inner, pool, key, course).await?;
    Ok(found.map(|found| Shown { length: found.value.len(), expiry: found.expiry, tag: found.tag }))
}

/// A get that has a majority hold what it returns.
async fn get_settled(
    inner: &Rc<Inner>,
    pool: &Rc<Topology>,
    key: &Key,
    course: &Course,
) -> Result<Option<Versioned>, StoreError> {
    let mut backoff = Backoff::new(RESTART_FIRST, RESTART_PAUSE_MAX);
    loop {
        let round = course.begin(inner, pool, key);
        let majority = round.majority().await?;
        let found = round.found(majority.slots());
        let shown = found.first().map_or(Found::NOTHING, |(_, found)| found.clone());
        if shown.is_expired(inner.unix_millis()) {
            return Ok(confirm(inner, key, &round, course, Purpose::Read).await?.result);
        }
        if shown.is_absent(round.forgets()) {
            // Where it was dropped and where it was not, it says the same.
            return Ok(None);
        }
        if let Ok(Held { value, bytes }) = course.fetch(&round, found).await {
            let versioned = value.clone().map(|value| Versioned::new(&shown, value));
            if matches!(majority, Majority::Agreed(_)) {
                return Ok(versioned);
            }
            count(&inner.stats.write_backs);
            let write_back = Request::write_back(shown.record(value));
            match course.ask(&round, write_back, false).await? {
                Answer::Done => return Ok(versioned),
                // A conditional operation is under way, or was left half done.
                Answer::Refused(_) => {}
            }
            // First: it reads the value anew, and what waits for bytes must hold none.
            drop((versioned, bytes));
            return Ok(confirm(inner, key, &round, course, Purpose::Read).await?.result);
        }
        // What was to be fetched has been replaced, or its holders fail: look again.
        time::sleep(backoff.pause()).await;
    }
}

/// Makes a majority hold what is there, under a ballot of its own, and returns it: a conditional operation that changes
/// nothing, but for a value that has ended, which it deletes.
async fn confirm(
    inner: &Rc<Inner>,
    key: &Key,
    round: &Rc<Round>,
    course: &Course,
    purpose: Purpose,
) -> Result<Effect<Option<Versioned>>, StoreError> {
    let keep = |found: Option<&Versioned>| Change::Keep(found.cloned());
    Ballots::new(inner, key, round, course, inner.next_op(), purpose, keep).run(None).await
}

impl Inner {
    /// Brings the newest of a key to a majority of its members, and in the background to the others, where promises stand
    /// against merely storing it. Returns the timestamp under which they hold it.
    pub(super) async fn confirm(self: &Rc<Self>, key: &Key) -> Result<Timestamp, StoreError> {
        let (start, course) = (time::now(), Course::default());
        let operation = self.on_newest(async |pool| {
            let round = course.begin(self, &pool, key);
            round.majority().await?;
            confirm(self, key, &round, &course, Purpose::Spread).await
        });
        self.within(start, &course, operation).await.map(|effect| effect.timestamp)
    }
}

async fn put(
    inner: &Rc<Inner>,
    pool: &Rc<Topology>,
    key: &Key,
    value: Value,
    options: PutOptions,
    course: &Course,
) -> Result<(), StoreError> {
    let op = inner.next_op();
    let early = (value.len() >= EARLY_BYTES_MIN).then(|| (op, value.clone()));
    let round = course.begin_put(inner, pool, key, early);
    round.majority().await?;
    round.has_room().await?;
    let (timestamp, expiry, tag) = (inner.next_timestamp(&round, op), options.stored_expiry(), options.tag);
    let record = Record { timestamp, value: Some(value), expiry, tag, ops: Vec::new() };
    course.ask(&round, Request::Store(record), true).await.map(|_never_refused| ())
}

async fn delete(inner: &Rc<Inner>, pool: &Rc<Topology>, key: &Key, course: &Course) -> Result<bool, StoreError> {
    let round = course.begin(inner, pool, key);
    let majority = round.majority().await?;
    let (found, now) = (round.found(majority.slots()), inner.unix_millis());
    let is_there = found.iter().any(|(_, found)| is_value(&found.content));
    if matches!(majority, Majority::Agreed(_)) && !is_there {
        // A get that returned nothing: no tombstone for a key that is not there.
        return Ok(false);
    }
    let existed = is_there && !found.iter().any(|(_, found)| found.is_expired(now));
    let record = Record { timestamp: inner.next_timestamp(&round, inner.next_op()), ..Record::default() };
    course.ask(&round, Request::Store(record), true).await?;
    Ok(existed)
}
