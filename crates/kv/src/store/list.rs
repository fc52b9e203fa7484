//! Listing keys in hash order.

use engine::time;

use super::error::StoreError;
use super::link::Link;
use super::scan::Seen;
use super::{OPERATION_TIME_MAX, Store};
use crate::table::Found;
use crate::types::Timestamp;

/// Most entries of one page of a list.
pub const LIST_ENTRIES_MAX: usize = 10_000;
/// Stretches of 128 KiB read for one page of a list: a rare prefix answers with fewer entries than asked for, and a cursor,
/// rather than late. Guessed.
const STRETCHES_MAX: usize = 64;
/// Time after which a page of a list ends with a cursor, however few its entries: a member that is slow without being away
/// takes up to two seconds of each stretch. Guessed.
const PAGE_TIME: std::time::Duration = std::time::Duration::from_secs(1);
/// Pause before members that did not answer are asked again.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// A key that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// The key.
    pub key: Vec<u8>,
    /// Bytes of its value.
    pub value_len: usize,
    /// When it was written.
    pub timestamp: Timestamp,
}

/// A part of a list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListPage {
    /// Keys in hash order.
    pub entries: Vec<ListEntry>,
    /// Where to go on; `None`: that was all.
    pub next: Option<u64>,
}

impl<N: Link> Store<N> {
    /// Keys that begin with `prefix`, about `limit` of them, from `cursor` on (0: from the start).
    ///
    /// Not a snapshot: each key is taken as the newest that a majority of its members shows when its turn comes. A key that
    /// is there throughout is listed exactly once. A value whose put is still under way may be listed before a get returns it.
    pub async fn list(&self, prefix: &[u8], cursor: u64, limit: usize) -> Result<ListPage, StoreError> {
        let inner = &self.inner;
        let limit = limit.clamp(1, LIST_ENTRIES_MAX);
        let start = time::now();
        let mut page = ListPage { entries: Vec::new(), next: Some(cursor) };
        for _ in 0..STRETCHES_MAX {
            let Some(from) = page.next else { return Ok(page) };
            let stretch = inner.stretch(from);
            let seen = loop {
                let seen = inner.see(stretch, |_| true).await;
                if inner.ring.majority_everywhere(|member| seen.is_whole(member)) {
                    break seen;
                }
                if start.elapsed() > OPERATION_TIME_MAX {
                    return Err(self.list_failed(&seen));
                }
                time::sleep(RETRY_PAUSE).await;
            };
            page.next = stretch.to;
            for ((hash, key), found) in seen.keys {
                if page.entries.len() >= limit
                    && page.entries.last().is_some_and(|last| inner.home_hash(&last.key) != hash)
                {
                    page.next = Some(hash);
                    return Ok(page);
                }
                if key.starts_with(prefix) {
                    page.entries.extend(newest(key, &found));
                }
            }
            if page.entries.len() >= limit || start.elapsed() > PAGE_TIME {
                return Ok(page);
            }
        }
        Ok(page)
    }

    fn list_failed(&self, seen: &Seen) -> StoreError {
        let members = 0..self.inner.members.len();
        let missing: Vec<_> = members.filter(|&member| !seen.is_whole(member)).map(|m| m.to_string()).collect();
        StoreError::Unavailable {
            answered: self.inner.members.len() - missing.len(),
            replicas: self.inner.members.len(),
            needed: self.inner.members.len() - (self.inner.ring.replicas() - self.inner.ring.majority()),
            outcome_unknown: false,
            reasons: format!("members {} did not answer or hold damaged pages", missing.join(", ")),
        }
    }
}

impl<N: Link> super::Inner<N> {
    fn home_hash(&self, key: &[u8]) -> u64 {
        pool::KeyHash::new(key, self.map.hash_seed).home
    }
}

/// The entry, unless the newest is a tombstone.
fn newest(key: Vec<u8>, found: &[(usize, Found)]) -> Option<ListEntry> {
    let (_, newest) = found.iter().max_by_key(|(_, found)| found.timestamp)?;
    let value_len = newest.content.value_len()?;
    Some(ListEntry { key, value_len, timestamp: newest.timestamp })
}
