//! Scrub: every replica of every key compared, every checksum verified, and every allocation page held against what the
//! pages refer to. It changes nothing; `repair` does.
//!
//! Traffic goes on meanwhile, so replicas may differ for a moment: what differs is looked at again, key by key, before it
//! is reported. A key that is written without a pause is never seen equal; there a replica is in order if it holds at
//! least what was the newest one look earlier. One that has missed a write falls behind that, and stays there.

use std::rc::Rc;
use std::time::Duration;

use engine::task::TaskSet;
use engine::time;

use super::heap::scrub_heap;
use super::link::Link;
use super::pace::{Pace, ShowProgress};
use super::scan::Keys;
use super::topology::Topology;
use super::{Inner, Store};
use crate::table::{Content, Found};
use crate::types::{Key, Timestamp};

/// Differences that are listed one by one; all are counted.
pub const DIFFERENCES_MAX: usize = 100;
/// Looks at a key before its replicas are called different.
const LOOKS: usize = 5;
/// Between two looks: longer than a put takes.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Keys looked at together.
const KEYS_AT_ONCE_MAX: usize = 16;

/// What to scrub.
#[derive(Clone, Default)]
pub struct ScrubOptions {
    /// Read and check values that do not stand in their home page, too, on every replica.
    pub check_values: bool,
    /// Compare allocation pages with references: reads every table once more.
    pub check_heap: bool,
    /// Bytes read a second, over all members; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Called after every stretch.
    pub progress: Option<ShowProgress>,
}

/// A key whose replicas are not equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The key.
    pub key: Vec<u8>,
    /// Who holds what.
    pub what: String,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Keys that have a value.
    pub keys: u64,
    /// Deleted keys that are remembered.
    pub tombstones: u64,
    /// Bytes of all values, once.
    pub value_bytes: u64,
    /// Replicas compared.
    pub replicas: u64,
    /// Keys whose replicas differ or are damaged.
    pub differing: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
    /// Damaged pages: member, page and what is wrong.
    pub damaged_pages: Vec<(usize, u32, String)>,
    /// Damaged allocation pages, and those that contradict the references: member, group and what is wrong.
    pub damaged_groups: Vec<(usize, u32, String)>,
    /// Extents that are referred to, over all members.
    pub extents: u64,
    /// Data pages of the heaps that are claimed.
    pub heap_pages_claimed: u64,
    /// Those of them that nothing refers to: on the way to their page, or left behind by a host that ended too early.
    pub heap_pages_unreferenced: u64,
    /// Those of them that the rebuilding of an allocation page has set aside.
    pub heap_pages_lost: u64,
    /// Guests that nothing refers to, likewise.
    pub guests_unreferenced: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Members that did not answer throughout.
    pub unreachable: Vec<usize>,
}

impl ScrubReport {
    /// Whether all replicas of all keys are there and equal.
    pub fn is_equal(&self) -> bool {
        self.differing == 0 && self.damaged_pages.is_empty() && self.unreachable.is_empty()
    }

    /// Whether nothing at all was found that repair should see to.
    pub fn is_clean(&self) -> bool {
        self.is_equal() && self.damaged_groups.is_empty()
    }

    pub(super) fn missed(&mut self, member: usize, reason: &dyn std::fmt::Display) {
        tracing::debug!(member, %reason, "a member was not scrubbed throughout");
        if !self.unreachable.contains(&member) {
            self.unreachable.push(member);
        }
    }
}

impl<N: Link> Store<N> {
    /// Compares all replicas of all keys, and what else `options` say.
    pub async fn scrub(&self, options: &ScrubOptions) -> ScrubReport {
        let mut report = ScrubReport::default();
        let mut pace = Pace::new(options.bytes_per_second, options.progress.clone());
        pace.begin("compare replicas");
        let mut next = Some(0);
        while let Some(from) = next {
            let topology = self.inner.topology();
            let stretch = topology.stretch(from);
            let seen = topology.see(stretch, |_| true).await;
            for member in (0..seen.answered.len()).filter(|&member| !seen.answered[member]) {
                report.missed(member, &"no answer");
            }
            for page in &seen.damaged {
                report.damaged_pages.push((page.member, page.page.0, page.error.to_string()));
            }
            let values = scrub_keys(&self.inner, &topology, seen.keys, options.check_values, &mut report).await;
            next = stretch.to;
            pace.progress.keys = report.keys;
            pace.step(next, seen.bytes + values).await;
        }
        if options.check_heap {
            pace.begin("check the heaps");
            for member in &self.inner.topology().members {
                scrub_heap(member, &mut pace, &mut report).await;
            }
        }
        report.bytes = pace.progress.bytes;
        report
    }
}

/// Compares the keys of a stretch, some at once. Returns the bytes of values read.
async fn scrub_keys<N: Link>(
    inner: &Rc<Inner<N>>,
    topology: &Topology<N>,
    keys: Keys,
    check_values: bool,
    report: &mut ScrubReport,
) -> u64 {
    let mut keys = keys.into_iter();
    let mut under_way = TaskSet::new(KEYS_AT_ONCE_MAX);
    let mut bytes = 0;
    loop {
        while !under_way.is_full() {
            let Some(((_, key), found)) = keys.next() else { break };
            let Ok(key) = inner.key(&key) else { continue };
            let scrubbed = scrub_key(inner, topology, key, found, check_values);
            let pushed = under_way.push(scrubbed).is_ok();
            debug_assert!(pushed, "invariant: it is not full");
        }
        let Some((_, scrubbed)) = under_way.next().await else { return bytes };
        report.replicas += scrubbed.replicas;
        bytes += scrubbed.bytes_read;
        match scrubbed.value_len {
            Some(length) => {
                report.keys += 1;
                report.value_bytes += length as u64;
            }
            None => report.tombstones += 1,
        }
        if let Some(what) = scrubbed.difference {
            report.differing += 1;
            if report.differences.len() < DIFFERENCES_MAX {
                report.differences.push(Difference { key: scrubbed.key.bytes().to_vec(), what });
            }
        }
    }
}

/// What was found of one key.
struct Scrubbed {
    key: Key,
    replicas: u64,
    /// Bytes of its value; `None`: it was deleted.
    value_len: Option<usize>,
    bytes_read: u64,
    difference: Option<String>,
}

async fn scrub_key<N: Link>(
    inner: &Rc<Inner<N>>,
    topology: &Topology<N>,
    key: Key,
    mut found: Vec<(usize, Found)>,
    check_values: bool,
) -> Scrubbed {
    // While the pool changes, those after the change need not have everything yet.
    let homes = topology.homes(&key).settled();
    let homes = homes.as_slice();
    let (mut difference, mut floor, mut bytes_read) = (None, None, 0);
    for look in 0..LOOKS {
        if look > 0 {
            floor = newest_of(&found);
            time::sleep(LOOK_PAUSE).await;
            found = look_again(topology, &key, homes).await;
        }
        difference = compare(homes, &found, floor);
        if difference.is_none() && check_values {
            difference = damaged_copy(inner, topology, &key, &found, &mut bytes_read).await;
        }
        if difference.is_none() {
            break;
        }
    }
    let newest = found.iter().map(|(_, found)| found).max_by_key(|found| found.timestamp);
    let value_len = newest.and_then(|newest| newest.content.value_len());
    Scrubbed { replicas: homes.len() as u64, key, value_len, bytes_read, difference }
}

async fn look_again<N: Link>(topology: &Topology<N>, key: &Key, homes: &[u16]) -> Vec<(usize, Found)> {
    let mut found = Vec::new();
    for &home in homes {
        let member = &topology.members[usize::from(home)];
        // A member that does not answer counts as one that has nothing.
        if let Ok((_, seen)) = member.read(key).await {
            found.push((usize::from(home), seen));
        }
    }
    found
}

fn newest_of(found: &[(usize, Found)]) -> Option<Timestamp> {
    found.iter().map(|(_, found)| found.timestamp).max()
}

/// How the replicas differ, if they do: one is older than `floor` (`None`: than the newest of them), or two that were
/// written by the same operation hold something else.
fn compare(homes: &[u16], found: &[(usize, Found)], floor: Option<Timestamp>) -> Option<String> {
    let held = |home: &u16| found.iter().find(|(member, _)| *member == usize::from(*home)).map(|(_, found)| found);
    let facts = |home: &u16| {
        held(home).map_or((Timestamp::ZERO, None, None), |found| {
            (found.timestamp, found.content.value_len(), found.content.checksum(found.timestamp.op))
        })
    };
    let floor = floor.or(newest_of(found)).unwrap_or(Timestamp::ZERO);
    let agree = |one: &u16, other: &u16| facts(one).0 != facts(other).0 || facts(one) == facts(other);
    if homes.iter().all(|one| facts(one).0 >= floor && homes.iter().all(|other| agree(one, other))) {
        return None;
    }
    let words = |home: &u16| match facts(home) {
        (Timestamp::ZERO, ..) => format!("member {home}: nothing"),
        (timestamp, None, _) => format!("member {home}: deleted at {timestamp}"),
        (timestamp, Some(length), checksum) => {
            format!("member {home}: {length} bytes of {timestamp}, checksum {:016x}", checksum.unwrap_or(0))
        }
    };
    Some(homes.iter().map(words).collect::<Vec<_>>().join("; "))
}

async fn damaged_copy<N: Link>(
    inner: &Rc<Inner<N>>,
    topology: &Topology<N>,
    key: &Key,
    found: &[(usize, Found)],
    bytes_read: &mut u64,
) -> Option<String> {
    for (member, found) in found.iter().filter(|(_, found)| matches!(found.content, Content::Elsewhere(..))) {
        *bytes_read += found.content.value_len().unwrap_or(0) as u64;
        match inner.fetch_from(&topology.members[*member], key, found).await {
            // It verifies, or was replaced meanwhile: the newer one was written by a host that had it whole.
            Ok(Some(_) | None) => {}
            Err(error) => return Some(format!("member {member}: {error}")),
        }
    }
    None
}
