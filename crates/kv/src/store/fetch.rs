//! Fetching values that do not stand in their home pages.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::sync::{Notify, Permit};
use engine::time;

use super::Inner;
use super::member::{Member, MemberError, UnderWay};
use crate::table::{Content, Fetched, Found, TableError};
use crate::types::Key;
use crate::value::Value;

/// How long one replica's copy is waited for before another is asked as well. Guessed: well above a fetch of 128 KiB.
const HEDGE: Duration = Duration::from_millis(20);

impl Inner {
    /// Gets a value from one member, if it still holds the one that was found.
    pub(super) async fn fetch_from(
        self: &Rc<Self>,
        member: &Rc<Member>,
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
                match error {
                    TableError::CopyDamaged { .. } => {
                        tracing::warn!(member = member.index, ?key, %error, "a damaged replica");
                    }
                    // Its page: what else was there is not known.
                    TableError::Page { .. } => {
                        tracing::warn!(member = member.index, ?key, %error, "a damaged replica");
                        self.mark_stale(member);
                    }
                    _ => {}
                }
                Err(error.into())
            }
        }
    }
}

/// None of the members asked has the value any more.
pub(super) struct Gone;

/// A value at hand.
pub(super) struct Held {
    pub(super) value: Option<Value>,
    /// Its bytes among those under way, where it was fetched: for as long as the operation goes on with it.
    pub(super) bytes: Option<Permit>,
}

impl Held {
    fn without_bytes(value: Option<Value>) -> Held {
        Held { value, bytes: None }
    }
}

/// Attempts to fetch one value, under way.
struct Fetches {
    value: RefCell<Option<Value>>,
    failed: Cell<usize>,
    changed: Notify,
}

/// The fetches that an operation has begun; those that are still under way when it ends count as stragglers.
struct Begun {
    under_way: Vec<Rc<UnderWay>>,
    length: usize,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.under_way.iter().for_each(|under_way| under_way.straggle(self.length));
    }
}

/// Gets the value that all of `found`, which have the same timestamp, speak of: at once where it is inline, else from one
/// after the other, without waiting long for any.
pub(super) async fn fetch(inner: &Rc<Inner>, key: &Key, found: Vec<(Rc<Member>, Found)>) -> Result<Held, Gone> {
    let length = found.first().and_then(|(_, found)| found.content.value_len()).unwrap_or(0);
    for (_, found) in &found {
        match &found.content {
            Content::Nothing => return Ok(Held::without_bytes(None)),
            Content::Inline(view) => return Ok(Held::without_bytes(Some(view.clone().into()))),
            Content::Elsewhere(..) => {}
        }
    }
    let bytes = inner.value_bytes.acquire(length).await;
    let fetches = Rc::new(Fetches { value: RefCell::default(), failed: Cell::new(0), changed: Notify::new() });
    let count = found.len();
    let mut begun = Begun { under_way: Vec::with_capacity(1), length };
    for (started, (member, found)) in found.into_iter().enumerate() {
        // At the bound, or away: as good as failed.
        let Ok(under_way) = member.begin() else {
            fetches.failed.set(fetches.failed.get() + 1);
            continue;
        };
        let under_way = Rc::new(under_way);
        begun.under_way.push(under_way.clone());
        let (inner, key, shared) = (inner.clone(), key.clone(), fetches.clone());
        engine::task::spawn(async move {
            match inner.fetch_from(&member, &key, &found).await {
                Ok(Some(value)) => *shared.value.borrow_mut() = Some(value),
                Err(MemberError::Table(TableError::CopyDamaged { .. })) => {
                    inner.repair.note(&key);
                    shared.failed.set(shared.failed.get() + 1);
                }
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
            return Ok(Held { value: Some(value), bytes: Some(bytes) });
        }
        if fetches.failed.get() == count {
            return Err(Gone);
        }
        fetches.changed.notified().await;
    }
}
