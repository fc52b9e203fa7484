//! Conditional operations as callers have them: all are updates.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::task::LocalFuture;
use engine::time;

use super::ballots::{Ballots, Effect, Purpose, Told};
use super::error::StoreError;
use super::operation::Course;
use super::reserve::Reserve;
use super::round::Majority;
use super::topology::Topology;
use super::value::{CasOutcome, Change, Increment, PutOptions, Versioned};
use super::{Inner, Store};
use crate::types::{Key, VALUE_BYTES_MAX, Version};
use crate::value::Value;

impl Store {
    /// Changes `key` by what `decide` makes of what is there, at once: nothing comes between. Linearizable.
    ///
    /// `decide` may run several times, once per attempt; the result is that of the attempt that took effect. An error says
    /// whether a change may have taken effect ([`StoreError::outcome_unknown`]); it is never applied twice.
    ///
    /// Two round trips if this host was the last to update the key, else three; one if `decide` keeps what a majority shows.
    pub async fn update<R>(
        &self,
        key: &[u8],
        decide: impl FnMut(Option<&Versioned>) -> Change<R>,
    ) -> Result<R, StoreError> {
        Ok(self.update_versioned(key, decide).await?.result)
    }

    /// The same where `room` is asked before the value is read of which `decide` makes another. Of a result that holds on to
    /// bytes of that value, as many as `holds` tells, two are not kept where a third may be needed: then the outcome is unknown.
    pub async fn update_reserving<R>(
        &self,
        key: &[u8],
        room: Option<Rc<dyn Reserve>>,
        holds: impl Fn(&R) -> usize,
        decide: impl FnMut(Option<&Versioned>) -> Change<R>,
    ) -> Result<R, StoreError> {
        Ok(self.update_holding(key, room, |result, _| holds(result), decide).await?.result)
    }

    async fn update_versioned<R>(
        &self,
        key: &[u8],
        decide: impl FnMut(Option<&Versioned>) -> Change<R>,
    ) -> Result<Effect<R>, StoreError> {
        // It may hold on to what it was made from, unless it holds on to nothing.
        let holds = |_: &R, shown: usize| if std::mem::needs_drop::<R>() { shown } else { 0 };
        self.update_holding(key, None, holds, decide).await
    }

    /// `holds`: bytes of values that a result holds on to which was made from one of this length.
    async fn update_holding<R>(
        &self,
        key: &[u8],
        room: Option<Rc<dyn Reserve>>,
        holds: impl Fn(&R, usize) -> usize,
        mut decide: impl FnMut(Option<&Versioned>) -> Change<R>,
    ) -> Result<Effect<R>, StoreError> {
        // Below, an attempt has but the ticket of its result, so that all of that is compiled once.
        let results = Results::default();
        let mut ticketed = |found: Option<&Versioned>| {
            let shown = found.map_or(0, |found| found.value.len());
            decide(found).map(|result| {
                let bytes = holds(&result, shown);
                results.keep(result, bytes)
            })
        };
        let Effect { result: ticket, version, timestamp } = self.update_ticketed(key, room, &mut ticketed).await?;
        Ok(Effect { result: results.take(&ticket), version, timestamp })
    }

    fn update_ticketed<'a, 'r: 'a>(
        &'a self,
        key: &'a [u8],
        room: Option<Rc<dyn Reserve>>,
        decide: &'a mut (dyn FnMut(Option<&Versioned>) -> Change<Rc<Ticket<'r>>> + 'a),
    ) -> LocalFuture<'a, Result<Effect<Rc<Ticket<'r>>>, StoreError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let key = inner.key(key)?;
            let (start, course) = (time::now(), Course::reserving(room));
            let operation = async {
                // One at a time of this host: they would only refuse each other. (By hash: strangers that share one wait, too.)
                let _turn = inner.turns.lock(key.hash().home).await;
                // After its turn: else those who wait for one that waits for room would have all places.
                course.take_place(inner).await;
                inner.on_newest(async |pool| update(inner, &pool, &key, &course, &mut *decide).await).await
            };
            let result = inner.within(start, &course, operation).await;
            inner.finish(&result, &inner.stats.updates, &inner.stats.update_time, start);
            result
        })
    }

    /// Sets `key` if there is none; whether it did.
    pub async fn add(&self, key: &[u8], value: impl Into<Value>, options: PutOptions) -> Result<bool, StoreError> {
        Ok(self.add_versioned(key, value, options).await?.is_some())
    }

    /// Sets `key` if there is none; the version that it has then, if it did.
    pub async fn add_versioned(
        &self,
        key: &[u8],
        value: impl Into<Value>,
        options: PutOptions,
    ) -> Result<Option<Version>, StoreError> {
        let value = fitting(value)?;
        let decide = |found: Option<&Versioned>| match found {
            Some(_) => Change::Keep(false),
            None => Change::Put { value: value.clone(), options, result: true },
        };
        let effect = self.update_versioned(key, decide).await?;
        Ok(effect.result.then_some(effect.version))
    }

    /// Sets `key` if there is one; whether it did.
    pub async fn replace(&self, key: &[u8], value: impl Into<Value>, options: PutOptions) -> Result<bool, StoreError> {
        let value = fitting(value)?;
        let decide = |found: Option<&Versioned>| match found {
            Some(_) => Change::Put { value: value.clone(), options, result: true },
            None => Change::Keep(false),
        };
        self.update(key, decide).await
    }

    /// Sets `key` if its value is still the one that a versioned get has shown as `version`.
    pub async fn compare_and_set(
        &self,
        key: &[u8],
        version: Version,
        value: impl Into<Value>,
        options: PutOptions,
    ) -> Result<CasOutcome, StoreError> {
        let value = fitting(value)?;
        let decide = |found: Option<&Versioned>| match found {
            Some(found) if found.version == version => Change::Put { value: value.clone(), options, result: None },
            other => Change::Keep(Some(other.map(|other| other.version))),
        };
        let effect = self.update_versioned(key, decide).await?;
        Ok(match effect.result {
            None => CasOutcome::Stored(effect.version),
            Some(other) => CasOutcome::Changed(other),
        })
    }

    /// Adds `delta` to the decimal number that `key` holds and stores the sum; expiry stays. A key that is not there counts
    /// as `initial`, if that is given.
    pub async fn increment(&self, key: &[u8], delta: i64, initial: Option<i64>) -> Result<Increment, StoreError> {
        let decide = |found: Option<&Versioned>| {
            let number = match found {
                Some(found) => number_of(found).ok_or(Increment::NotANumber),
                None => initial.ok_or(Increment::Missing),
            };
            match number.and_then(|number| number.checked_add(delta).ok_or(Increment::Overflow)) {
                Ok(sum) => {
                    let value = Value::copy_from(sum.to_string().as_bytes());
                    Change::Put { value, options: options_of(found), result: Increment::Value(sum) }
                }
                Err(refused) => Change::Keep(refused),
            }
        };
        self.update(key, decide).await
    }

    /// Puts `bytes` behind the value of `key`, whose expiry and tag stay, or sets it; the length of the whole.
    pub async fn append(&self, key: &[u8], bytes: &[u8]) -> Result<usize, StoreError> {
        let piece = fitting(Value::copy_from(bytes))?;
        let decide = |found: Option<&Versioned>| {
            let before = found.map_or(&[][..], |found| found.value.segments());
            let value = Value::new(before.iter().chain(piece.segments()).cloned().collect());
            let result = value.len();
            Change::Put { value, options: options_of(found), result }
        };
        self.update(key, decide).await
    }

    /// Removes `key` and returns what was there: of several at once, one gets it.
    pub async fn take(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        let decide = |found: Option<&Versioned>| match found {
            Some(found) => Change::Delete(Some(found.clone())),
            None => Change::Keep(None),
        };
        self.update(key, decide).await
    }
}

/// The results of those attempts that may still be what the operation returns. A result may be a view of the value that it was made
/// from, of which each attempt has read a copy: so it goes with the last that has its ticket.
struct Results<R> {
    by_number: RefCell<BTreeMap<usize, R>>,
    next: Cell<usize>,
}

impl<R> Default for Results<R> {
    fn default() -> Results<R> {
        Results { by_number: RefCell::default(), next: Cell::default() }
    }
}

impl<R> Results<R> {
    fn keep(&self, result: R, bytes: usize) -> Rc<Ticket<'_>> {
        let number = self.next.get();
        self.next.set(number + 1);
        self.by_number.borrow_mut().insert(number, result);
        Rc::new(Ticket { number, bytes, kept: self })
    }

    fn take(&self, ticket: &Ticket<'_>) -> R {
        self.by_number.borrow_mut().remove(&ticket.number).expect("invariant: it is kept for as long as its ticket")
    }
}

/// Whatever results are kept.
trait Kept {
    fn forget(&self, number: usize);
}

impl<R> Kept for Results<R> {
    fn forget(&self, number: usize) {
        let forgotten = self.by_number.borrow_mut().remove(&number);
        drop(forgotten);
    }
}

/// Stands for a result.
struct Ticket<'r> {
    number: usize,
    /// What the result holds on to.
    bytes: usize,
    kept: &'r dyn Kept,
}

impl Told for Rc<Ticket<'_>> {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.kept.forget(self.number);
    }
}

fn fitting(value: impl Into<Value>) -> Result<Value, StoreError> {
    let value = value.into();
    if value.len() > VALUE_BYTES_MAX { Err(StoreError::Value { length: value.len() }) } else { Ok(value) }
}

fn options_of(found: Option<&Versioned>) -> PutOptions {
    found.map_or(PutOptions::default(), |found| PutOptions { expiry: found.expiry, tag: found.tag })
}

/// Digits of the longest number.
const NUMBER_BYTES_MAX: usize = "-9223372036854775808".len();

/// The number that plain bytes are in the one way it is written.
fn number_of(found: &Versioned) -> Option<i64> {
    if found.tag != 0 || found.value.len() > NUMBER_BYTES_MAX {
        return None;
    }
    let text = String::from_utf8(found.value.to_vec()).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

async fn update<R: Told>(
    inner: &Rc<Inner>,
    pool: &Rc<Topology>,
    key: &Key,
    course: &Course,
    mut decide: impl FnMut(Option<&Versioned>) -> Change<R>,
) -> Result<Effect<R>, StoreError> {
    let round = course.begin(inner, pool, key);
    let majority = round.majority().await?;
    if let Some(ballot) = inner.reservations.take(key, round.epoch_start())
        && let Some(majority) = round.promised(ballot)
    {
        let ballots = Ballots::new(inner, key, &round, course, ballot.op, Purpose::Change, decide);
        return ballots.run(Some((ballot, majority))).await;
    }
    if let Majority::Agreed(slots) = &majority {
        // What a get would return, at the price of one.
        let found = round.found(slots);
        if let Some((_, shown)) = found.first().cloned()
            && !shown.is_expired(inner.unix_millis())
            && let Ok(held) = course.fetch(&round, found).await
        {
            let versioned = held.value.map(|value| Versioned::new(&shown, value));
            match (decide(versioned.as_ref()), &versioned) {
                (Change::Keep(result), _) | (Change::Delete(result), None) => {
                    return Ok(Effect { result, timestamp: shown.timestamp, version: shown.version() });
                }
                (Change::Put { .. } | Change::Delete(_), _) => {}
            }
        }
    }
    Ballots::new(inner, key, &round, course, inner.next_op(), Purpose::Change, decide).run(None).await
}
