//! get, put, delete.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::sync::Notify;
use engine::time::{self, Instant};

use super::error::StoreError;
use super::link::Link;
use super::member::{Member, MemberError};
use super::round::{Majority, Round, is_value};
use super::topology::Topology;
use super::value::{PutOptions, Versioned};
use super::{Inner, OPERATION_TIME_MAX, Store, count};
use crate::table::{Content, Fetched, Found, Record, TableError};
use crate::types::{Ballot, Key, Timestamp, VALUE_BYTES_MAX};
use crate::value::Value;

/// How long one replica's copy is waited for before another is asked as well. Guessed: well above a fetch of 128 KiB.
const HEDGE: Duration = Duration::from_millis(20);
/// First pause before a get begins anew because what it was about to fetch is gone; doubles: if no holder's copy verifies it
/// is not gone, and every further look is in vain until repair has been there.
const RESTART_FIRST: Duration = Duration::from_micros(200);
/// Longest pause.
const RESTART_PAUSE_MAX: Duration = Duration::from_millis(50);

impl<N: Link> Store<N> {
    /// The value of `key`; `None`: there is none. Linearizable.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        Ok(self.get_versioned(key).await?.map(|found| found.value))
    }

    /// The value of `key` with its version, expiry and tag; `None`: there is none. Linearizable.
    pub async fn get_versioned(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        let inner = &self.inner;
        let key = inner.key(key)?;
        let _permit = inner.operations.acquire(1).await;
        let (start, round) = (time::now(), RefCell::new(None));
        let result =
            inner.within(start, &round, inner.on_newest(async |pool| get(inner, &pool, &key, &round).await)).await;
        inner.finish(&result, &inner.stats.gets, &inner.stats.get_time, start);
        result
    }

    /// Sets `key` to `value`, which never ends. Linearizable; an error says whether the put may have taken effect.
    pub async fn put(&self, key: &[u8], value: impl Into<Value>) -> Result<(), StoreError> {
        self.put_with(key, value, PutOptions::default()).await
    }

    /// Sets `key` to `value` with its expiry and tag, whatever was there. Linearizable; an error says whether the put may
    /// have taken effect.
    pub async fn put_with(&self, key: &[u8], value: impl Into<Value>, options: PutOptions) -> Result<(), StoreError> {
        let inner = &self.inner;
        let key = inner.key(key)?;
        let value = value.into();
        if value.len() > VALUE_BYTES_MAX {
            return Err(StoreError::Value { length: value.len() });
        }
        let _bytes = inner.value_bytes.acquire(value.len()).await;
        let _permit = inner.operations.acquire(1).await;
        let (start, round) = (time::now(), RefCell::new(None));
        let operation = inner.on_newest(async |pool| put(inner, &pool, &key, value.clone(), options, &round).await);
        let result = inner.within(start, &round, operation).await;
        inner.finish(&result, &inner.stats.puts, &inner.stats.put_time, start);
        result
    }

    /// Removes `key`. Linearizable; an error says whether the delete may have taken effect. Returns whether the key was there
    /// when the delete looked: of two deletes at once both may have seen it.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        let inner = &self.inner;
        let key = inner.key(key)?;
        let _permit = inner.operations.acquire(1).await;
        let (start, round) = (time::now(), RefCell::new(None));
        let result =
            inner.within(start, &round, inner.on_newest(async |pool| delete(inner, &pool, &key, &round).await)).await;
        inner.finish(&result, &inner.stats.deletes, &inner.stats.put_time, start);
        result
    }
}

/// The round an operation is in, for the error when its time is up.
type Current<N> = RefCell<Option<Rc<Round<N>>>>;

fn begin<N: Link>(inner: &Rc<Inner<N>>, pool: &Rc<Topology<N>>, key: &Key, current: &Current<N>) -> Rc<Round<N>> {
    let round = Rc::new(Round::start(inner, pool, key));
    *current.borrow_mut() = Some(round.clone());
    round
}

impl<N: Link> Inner<N> {
    /// Ends an operation that has not ended in time. Also one that has, but is looked at too late (the process was
    /// stopped): what it counted on may have been lost and repaired away since.
    async fn within<T>(
        &self,
        start: Instant,
        current: &Current<N>,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = time::timeout(OPERATION_TIME_MAX, operation).await;
        match result {
            Ok(result) if start.elapsed() <= OPERATION_TIME_MAX || result.is_err() => result,
            _ => Err(match &*current.borrow() {
                Some(round) => round.unavailable(round.is_storing()),
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

    fn finish<T>(
        &self,
        result: &Result<T, StoreError>,
        counter: &std::sync::atomic::AtomicU64,
        times: &super::Latencies,
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
}

async fn get<N: Link>(
    inner: &Rc<Inner<N>>,
    pool: &Rc<Topology<N>>,
    key: &Key,
    current: &Current<N>,
) -> Result<Option<Versioned>, StoreError> {
    let mut pause = RESTART_FIRST;
    loop {
        let round = begin(inner, pool, key, current);
        match round.majority().await? {
            Majority::Agreed(slots) => {
                let found = round.found(&slots);
                let shown = found.first().map(|(_, found)| found.clone()).unwrap_or(Found::NOTHING);
                if let Ok(value) = fetch(inner, key, found).await {
                    return Ok(value.map(|value| Versioned::new(&shown, value)));
                }
            }
            // The write-back of a conditional operation's value must go by ballot; no host of this version writes one.
            Majority::Split(newest, _) if newest.ballot != Ballot::NONE => return Err(round.unavailable(false)),
            Majority::Split(_, slots) => {
                let found = round.found(&slots);
                let shown = found.first().map(|(_, found)| found.clone()).unwrap_or(Found::NOTHING);
                if let Ok(value) = fetch(inner, key, found).await {
                    count(&inner.stats.write_backs);
                    round.write_back(shown.record(value.clone())).await?;
                    return Ok(value.map(|value| Versioned::new(&shown, value)));
                }
            }
        }
        // What was to be fetched has been replaced, or its holders fail: look again.
        time::sleep(pause).await;
        pause = (pause * 2).min(RESTART_PAUSE_MAX);
    }
}

async fn put<N: Link>(
    inner: &Rc<Inner<N>>,
    pool: &Rc<Topology<N>>,
    key: &Key,
    value: Value,
    options: PutOptions,
    current: &Current<N>,
) -> Result<(), StoreError> {
    let round = begin(inner, pool, key, current);
    round.majority().await?;
    let (timestamp, expiry, tag) = (inner.next_timestamp(&round), options.stored_expiry(), options.tag);
    round.store(Record { timestamp, value: Some(value), expiry, tag, ops: Vec::new() }).await
}

async fn delete<N: Link>(
    inner: &Rc<Inner<N>>,
    pool: &Rc<Topology<N>>,
    key: &Key,
    current: &Current<N>,
) -> Result<bool, StoreError> {
    let round = begin(inner, pool, key, current);
    let existed = match round.majority().await? {
        Majority::Agreed(slots) => {
            let existed = round.found(&slots).iter().any(|(_, found)| is_value(&found.content));
            if !existed {
                // A get that returned nothing: no tombstone for a key that is not there.
                return Ok(false);
            }
            existed
        }
        Majority::Split(_, slots) => round.found(&slots).iter().any(|(_, found)| is_value(&found.content)),
    };
    round.store(Record { timestamp: inner.next_timestamp(&round), ..Record::default() }).await?;
    Ok(existed)
}

impl<N: Link> Inner<N> {
    fn next_timestamp(&self, round: &Round<N>) -> Timestamp {
        let counter = round.counter_max().saturating_add(1);
        Timestamp { counter, op: self.next_op(), ballot: Ballot::NONE }
    }

    /// Gets a value from one member, if it still holds the one that was found.
    pub(super) async fn fetch_from(
        self: &Rc<Self>,
        member: &Rc<Member<N>>,
        key: &Key,
        found: &Found,
    ) -> Result<Option<Value>, MemberError> {
        let (table, epoch) = member.voting().await?;
        let fetched = table.fetch(key, found).await;
        member.counts(epoch)?;
        match fetched {
            Ok(Fetched::Value(value)) => Ok(Some(value)),
            Ok(Fetched::Changed(_)) => Ok(None),
            Err(error) => {
                if matches!(error, TableError::CopyDamaged { .. } | TableError::Page { .. }) {
                    tracing::warn!(member = member.index, ?key, %error, "a damaged replica");
                    self.mark_stale(member);
                }
                Err(error.into())
            }
        }
    }
}

/// None of the members asked has the value any more.
pub(super) struct Gone;

/// Attempts to fetch one value, under way.
struct Fetches {
    value: RefCell<Option<Value>>,
    failed: Cell<usize>,
    changed: Notify,
}

/// Gets the value that all of `found`, which have the same timestamp, speak of: at once where it is inline, else from one
/// after the other, without waiting long for any.
pub(super) async fn fetch<N: Link>(
    inner: &Rc<Inner<N>>,
    key: &Key,
    found: Vec<(Rc<Member<N>>, Found)>,
) -> Result<Option<Value>, Gone> {
    let length = found.first().and_then(|(_, found)| found.content.value_len()).unwrap_or(0);
    for (_, found) in &found {
        match &found.content {
            Content::Nothing => return Ok(None),
            Content::Inline(view) => return Ok(Some(view.clone().into())),
            Content::Elsewhere(..) => {}
        }
    }
    let _bytes = inner.value_bytes.acquire(length).await;
    let fetches = Rc::new(Fetches { value: RefCell::default(), failed: Cell::new(0), changed: Notify::new() });
    let count = found.len();
    for (started, (member, found)) in found.into_iter().enumerate() {
        // At the bound, or away: as good as failed.
        let Ok(under_way) = member.begin() else {
            fetches.failed.set(fetches.failed.get() + 1);
            continue;
        };
        let (inner, key, shared) = (inner.clone(), key.clone(), fetches.clone());
        engine::task::spawn(async move {
            match inner.fetch_from(&member, &key, &found).await {
                Ok(Some(value)) => *shared.value.borrow_mut() = Some(value),
                Ok(None) | Err(_) => shared.failed.set(shared.failed.get() + 1),
            }
            shared.changed.notify_one();
            drop(under_way);
        })
        .detach();
        let wait = async {
            while fetches.value.borrow().is_none() && fetches.failed.get() <= started {
                fetches.changed.notified().await;
            }
        };
        // Too long, or failed: the next one is asked.
        let _elapsed = time::timeout(HEDGE, wait).await;
        if fetches.value.borrow().is_some() {
            break;
        }
    }
    loop {
        if let Some(value) = fetches.value.take() {
            return Ok(Some(value));
        }
        if fetches.failed.get() == count {
            return Err(Gone);
        }
        fetches.changed.notified().await;
    }
}
