//! Listing keys in hash order: `list`, for people and programs that want all of them; `scan`, for those that hold no more
//! than a cursor and want their answer soon (the gateway's SCAN).
//!
//! Both walk the hash space. A key's place in it never changes, whatever happens to the pool's map: one that is there
//! throughout is met when the walk comes by, since a majority of its members is read at that moment.

use std::rc::Rc;

use engine::task::LocalFuture;
use engine::time;

use super::error::StoreError;
use super::scan::{Seen, Stretch};
use super::topology::Topology;
use super::{OPERATION_TIME_MAX, Store};
use crate::table::Found;
use crate::types::Timestamp;

/// Most entries of one page of a list.
pub const LIST_ENTRIES_MAX: usize = 10_000;
/// Stretches of 128 KiB read for one page of a list: a rare prefix answers with fewer entries than asked for, and a cursor,
/// rather than late. Guessed.
const STRETCHES_MAX: usize = 64;
/// Time after which a page of a list ends with a cursor, however few its entries. Guessed.
const PAGE_TIME: std::time::Duration = std::time::Duration::from_secs(1);
/// Pause before members that did not answer are asked again.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Pages of each member that one step of a scan reads at most: a sparse table answers with few keys and a cursor, rather
/// than late. Guessed.
const SCAN_PAGES_MAX: u32 = 4096;
/// Pages of each member read at once by a scan, at most.
const SCAN_STRETCH_PAGES_MAX: u32 = 32;
/// Keys that a page is expected to hold when a scan chooses how many to begin with. Guessed; it doubles from there.
const SCAN_KEYS_PER_PAGE: usize = 16;
/// Time after which a step of a scan ends with what it has. Guessed.
const SCAN_TIME: std::time::Duration = std::time::Duration::from_millis(100);
/// Cursors of a scan are hashes without their last bits: some clients keep them as floating point numbers.
const CURSOR_UNIT: u64 = 1 << (64 - CURSOR_BITS);
/// Cursors of a scan have so many bits.
pub const CURSOR_BITS: u32 = 53;

/// A key that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// The key.
    pub key: Vec<u8>,
    /// Bytes of its value.
    pub value_len: usize,
    /// When it was written.
    pub timestamp: Timestamp,
    /// What the value is, for whoever stored it.
    pub tag: u32,
}

/// A part of a list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListPage {
    /// Keys in hash order.
    pub entries: Vec<ListEntry>,
    /// Where to go on; `None`: that was all.
    pub next: Option<u64>,
}

/// One step of a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanStep {
    /// Keys in hash order.
    pub entries: Vec<ListEntry>,
    /// The cursor to go on with; 0: the scan is complete.
    pub next: u64,
}

impl Store {
    /// About `count` keys from `cursor` on, 0 being the start: whole pages, so possibly more, and where the table is sparse
    /// fewer or none before the end. Nothing is kept between two steps; any number of hosts may go on with a cursor.
    ///
    /// As Redis's SCAN: a key that is there from the first step to the last appears at least once (also while the pool's
    /// map changes), one that never was does not appear. A cursor is below 2^53; one that no step gave is a place as well.
    pub fn scan(&self, cursor: u64, count: usize) -> LocalFuture<'_, Result<ScanStep, StoreError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let topology = inner.topology();
            let count = count.clamp(1, LIST_ENTRIES_MAX);
            let (start, mut step) = (time::now(), ScanStep::default());
            let mut from = cursor.saturating_mul(CURSOR_UNIT);
            let mut pages = (count / SCAN_KEYS_PER_PAGE).clamp(1, SCAN_STRETCH_PAGES_MAX as usize) as u32;
            let mut left = SCAN_PAGES_MAX;
            loop {
                let stretch = topology.stretch_between(from, pages.min(left), CURSOR_UNIT);
                for ((_, key), found) in see_majority(inner, stretch, start).await?.keys {
                    step.entries.extend(newest(key, &found, inner.unix_millis()));
                }
                step.next = stretch.to.map_or(0, |to| to / CURSOR_UNIT);
                left = left.saturating_sub(pages);
                if step.next == 0 || step.entries.len() >= count || left == 0 || start.elapsed() > SCAN_TIME {
                    return Ok(step);
                }
                from = step.next * CURSOR_UNIT;
                pages = (pages * 2).min(SCAN_STRETCH_PAGES_MAX);
            }
        })
    }

    /// Keys that begin with `prefix`, about `limit` of them, from `cursor` on (0: from the start).
    ///
    /// Not a snapshot: each key is taken as the newest that a majority of its members shows when its turn comes. A key that
    /// is there throughout is listed exactly once. A value whose put is still under way may be listed before a get returns it.
    pub fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        cursor: u64,
        limit: usize,
    ) -> LocalFuture<'a, Result<ListPage, StoreError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let topology = inner.topology();
            let limit = limit.clamp(1, LIST_ENTRIES_MAX);
            let start = time::now();
            let mut page = ListPage { entries: Vec::new(), next: Some(cursor) };
            for _ in 0..STRETCHES_MAX {
                let Some(from) = page.next else { return Ok(page) };
                let stretch = topology.stretch(from);
                let seen = see_majority(inner, stretch, start).await?;
                page.next = stretch.to;
                for ((hash, key), found) in seen.keys {
                    if page.entries.len() >= limit
                        && page.entries.last().is_some_and(|last| inner.home_hash(&last.key) != hash)
                    {
                        page.next = Some(hash);
                        return Ok(page);
                    }
                    if key.starts_with(prefix) {
                        page.entries.extend(newest(key, &found, inner.unix_millis()));
                    }
                }
                if page.entries.len() >= limit || start.elapsed() > PAGE_TIME {
                    return Ok(page);
                }
            }
            Ok(page)
        })
    }
}

/// What the members hold in a stretch, as soon as a majority of the homes of every key in it has told. Each look is by the
/// map of its time: pages that were sealed meanwhile show nothing to an older one, and a stretch is the same on any.
async fn see_majority(inner: &Rc<super::Inner>, stretch: Stretch, start: time::Instant) -> Result<Seen, StoreError> {
    loop {
        let topology = inner.topology();
        let seen = topology.see_enough(stretch).await;
        if topology.is_enough(&seen) {
            return Ok(seen);
        }
        // Members that are known to be away are not waited for by whoever does not want to.
        let patience = inner.patience.get();
        let may_come = |member: usize| topology.members[member].away_for().is_none_or(|away| away <= patience);
        let could = topology.placement.quorum_everywhere(|member| seen.is_whole(member) || may_come(member));
        if start.elapsed() > OPERATION_TIME_MAX {
            return Err(list_failed(&topology, &seen));
        }
        if could {
            time::sleep(RETRY_PAUSE).await;
        }
        inner.look_for_newer_map().await;
        // By a newer map the pool may do without them.
        if !could && Rc::ptr_eq(&topology, &inner.topology()) {
            return Err(list_failed(&topology, &seen));
        }
    }
}

fn list_failed(topology: &Topology, seen: &Seen) -> StoreError {
    let members = topology.members.len();
    let why = |member: usize| {
        let why = topology.why_without(member).unwrap_or("did not answer, or holds damaged pages");
        format!("member {member}: {why}")
    };
    let missing: Vec<_> = (0..members).filter(|&member| !seen.is_whole(member)).map(why).collect();
    StoreError::Unavailable {
        answered: members - missing.len(),
        replicas: members,
        needed: members - (topology.placement.replicas() - topology.placement.majority()),
        outcome_unknown: false,
        reasons: missing.join("; "),
    }
}

impl super::Inner {
    fn home_hash(&self, key: &[u8]) -> u64 {
        pool::KeyHash::new(key, self.hash_seed).home
    }
}

/// The entry, unless the newest is a tombstone or has ended by this host's clock.
fn newest(key: Vec<u8>, found: &[(usize, Found)], now: u64) -> Option<ListEntry> {
    let (_, newest) = found.iter().max_by_key(|(_, found)| found.timestamp)?;
    if newest.is_expired(now) {
        return None;
    }
    let value_len = newest.content.value_len()?;
    Some(ListEntry { key, value_len, timestamp: newest.timestamp, tag: newest.tag })
}
