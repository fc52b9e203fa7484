//! Scrub: every replica of every key compared, every checksum verified, and every allocation page held against what the
//! pages refer to. It changes nothing; `repair` does.
//!
//! Traffic goes on meanwhile, so replicas may differ for a moment: what differs is looked at again, key by key, before it
//! is reported. A key that is written without a pause is never seen equal; there a replica is in order if it holds at
//! least what was the newest one look earlier. One that has missed a write falls behind that, and stays there.
//!
//! A replica on a member that does not answer, or on a damaged page, is not compared: that the member is away, or the page
//! damaged, is reported once, and not again for each of its keys.

use std::rc::Rc;
use std::time::Duration;

use engine::task::{LocalFuture, TaskSet};
use engine::time;

use super::heap::scrub_heap;
use super::scan::{DamagedPages, Seen};
use super::topology::{Topology, forgets};
use super::{Inner, Store};
use crate::table::{Content, Found};
use crate::types::{ChecksumKey, Key, Timestamp};
use engine::job::{Job, ShowProgress};

/// Findings of a kind that are listed one by one; all are counted.
pub const FINDINGS_MAX: usize = 100;
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
#[derive(Clone, PartialEq, Eq, serde::Serialize, Debug)]
pub struct Difference {
    /// The key, as text.
    pub key: String,
    /// Who holds what.
    pub what: String,
}

/// What was found of one kind.
#[derive(Clone, PartialEq, Eq, serde::Serialize, Debug)]
pub struct Findings<T> {
    /// How much.
    pub count: u64,
    /// The first [`FINDINGS_MAX`].
    pub first: Vec<T>,
}

impl<T> Default for Findings<T> {
    fn default() -> Findings<T> {
        Findings { count: 0, first: Vec::new() }
    }
}

impl<T> Findings<T> {
    pub(super) fn add(&mut self, finding: impl FnOnce() -> T) {
        self.count += 1;
        if self.first.len() < FINDINGS_MAX {
            self.first.push(finding());
        }
    }
}

/// What was found.
#[derive(Clone, PartialEq, Eq, serde::Serialize, Debug, Default)]
pub struct ScrubReport {
    /// Keys that have a value.
    pub keys: u64,
    /// Deleted keys that are remembered.
    pub tombstones: u64,
    /// Keys whose value has ended, and that nobody has looked at since: repair deletes them.
    pub expired: u64,
    /// Bytes of all values, once.
    pub value_bytes: u64,
    /// Replicas compared.
    pub replicas: u64,
    /// Keys whose replicas differ or are damaged.
    pub differing: Findings<Difference>,
    /// Damaged pages: member, page and what is wrong.
    pub damaged_pages: Findings<(usize, u32, String)>,
    /// Damaged allocation pages, and those that contradict the references: member, group and what is wrong.
    pub damaged_groups: Findings<(usize, u32, String)>,
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
        self.differing.count == 0 && self.damaged_pages.count == 0 && self.unreachable.is_empty()
    }

    /// Whether nothing at all was found that repair should see to.
    pub fn is_clean(&self) -> bool {
        self.is_equal() && self.damaged_groups.count == 0
    }

    pub(super) fn missed(&mut self, member: usize, reason: &dyn std::fmt::Display) {
        tracing::debug!(member, %reason, "a member was not scrubbed throughout");
        if !self.unreachable.contains(&member) {
            self.unreachable.push(member);
        }
    }
}

impl Store {
    /// Compares all replicas of all keys, and what else `options` say.
    pub fn scrub<'a>(&'a self, options: &'a ScrubOptions) -> LocalFuture<'a, ScrubReport> {
        Box::pin(async move {
            let mut report = ScrubReport::default();
            let job = self.inner.stats.jobs.begin("scrub", options.bytes_per_second, options.progress.clone());
            job.begin("compare replicas");
            let (mut next, mut damaged) = (Some(0), DamagedPages::default());
            while let Some(from) = next {
                let topology = self.inner.topology();
                let stretch = topology.stretch(from);
                let seen = topology.see(stretch, |_| true, &job).await;
                for member in (0..seen.answered.len()).filter(|&member| !seen.answered[member]) {
                    report.missed(member, &"no answer");
                }
                for page in seen.damaged.iter().filter(|page| damaged.is_new(page)) {
                    report.damaged_pages.add(|| (page.member, page.page.0, page.error.to_string()));
                }
                let walk =
                    Walk { inner: &self.inner, topology: &topology, job: &job, check_values: options.check_values };
                scrub_keys(&walk, seen, &mut report).await;
                next = stretch.to;
                job.reached_hash(next);
            }
            if options.check_heap {
                job.begin("check the heaps");
                for member in &self.inner.topology().members {
                    scrub_heap(member, &job, &mut report).await;
                }
            }
            report.bytes = job.end().await;
            report
        })
    }
}

/// What the looks at keys have in common.
struct Walk<'a> {
    inner: &'a Rc<Inner>,
    topology: &'a Topology,
    job: &'a Job,
    check_values: bool,
}

/// Compares the keys of a stretch, some at once.
async fn scrub_keys(walk: &Walk<'_>, mut seen: Seen, report: &mut ScrubReport) {
    let mut keys = std::mem::take(&mut seen.keys).into_iter();
    let mut under_way = TaskSet::new(KEYS_AT_ONCE_MAX);
    let now = walk.inner.unix_millis();
    loop {
        while !under_way.is_full() {
            let Some(((_, key), found)) = keys.next() else { break };
            let Ok(key) = walk.inner.key(&key) else { continue };
            let checksums = ChecksumKey::new(walk.topology.map.hash_seed);
            let look = Look { checksums, replicas: compared(walk.topology, &seen, &key), found, missed: Vec::new() };
            let pushed = under_way.push(scrub_key(walk, key, look)).is_ok();
            debug_assert!(pushed, "invariant: it is not full");
        }
        let Some((_, scrubbed)) = under_way.next().await else { return };
        report.replicas += scrubbed.replicas;
        match scrubbed.value_len {
            _ if scrubbed.expiry != 0 && scrubbed.expiry <= now => report.expired += 1,
            Some(length) => {
                report.keys += 1;
                report.value_bytes += length as u64;
            }
            None => report.tombstones += u64::from(!scrubbed.is_absent),
        }
        scrubbed.missed.into_iter().for_each(|member| report.missed(member, &"no answer"));
        if let Some(what) = scrubbed.difference {
            report
                .differing
                .add(|| Difference { key: String::from_utf8_lossy(scrubbed.key.bytes()).into_owned(), what });
        }
    }
}

/// The members whose replicas of a key are compared. While the pool changes, those after the change need not have
/// everything yet.
fn compared(topology: &Topology, seen: &Seen, key: &Key) -> Vec<u16> {
    let damaged = |member: usize| {
        let home = topology.map.geometry(member).home(key.hash().home);
        seen.damaged.iter().any(|page| page.member == member && page.page == home)
    };
    let tells = |home: &u16| seen.answered[usize::from(*home)] && !damaged(usize::from(*home));
    topology.homes(key).settled().into_iter().filter(tells).collect()
}

/// What was seen of one key.
struct Look {
    checksums: ChecksumKey,
    /// Members whose replicas are compared.
    replicas: Vec<u16>,
    found: Vec<(usize, Found)>,
    /// Members that were to be compared, and did not answer.
    missed: Vec<usize>,
}

impl Look {
    async fn again(&mut self, topology: &Topology, key: &Key) {
        self.found.clear();
        for home in std::mem::take(&mut self.replicas) {
            let index = usize::from(home);
            match topology.members[index].read(key).await {
                Ok((_, found)) => {
                    self.found.push((index, found));
                    self.replicas.push(home);
                }
                Err(_) => self.missed.push(index),
            }
        }
    }

    fn newest(&self) -> Option<&Found> {
        self.found.iter().map(|(_, found)| found).max_by_key(|found| found.timestamp)
    }

    /// Whether there is nothing to compare: to every reader the key is not there, dropped on all members or not on all yet.
    fn is_absent(&self, topology: &Topology) -> bool {
        let forgets = forgets(&topology.map);
        self.found.iter().all(|(_, found)| found.is_absent(forgets))
    }

    /// How the replicas differ, if they do: one is older than `floor` (`None`: than the newest of them), or two that were
    /// written by the same operation hold something else.
    fn difference(&self, floor: Option<Timestamp>) -> Option<String> {
        let facts: Vec<(u16, Facts)> = self.replicas.iter().map(|&home| (home, self.facts(home))).collect();
        let floor = floor.or(self.newest().map(|found| found.timestamp)).unwrap_or(Timestamp::ZERO);
        let agree = |one: &Facts, other: &Facts| one.timestamp != other.timestamp || one == other;
        let in_order =
            |(_, one): &(u16, Facts)| one.timestamp >= floor && facts.iter().all(|(_, other)| agree(one, other));
        if facts.iter().all(in_order) {
            return None;
        }
        Some(facts.iter().map(|(home, facts)| format!("member {home}: {facts}")).collect::<Vec<_>>().join("; "))
    }

    fn facts(&self, home: u16) -> Facts {
        let found = self.found.iter().find(|(member, _)| *member == usize::from(home)).map(|(_, found)| found);
        found.map_or(Facts::default(), |found| Facts {
            timestamp: found.timestamp,
            value: found.content.value_len().zip(found.content.checksum(self.checksums.of(found.timestamp.op))),
            expiry: found.expiry,
            tag: found.tag,
        })
    }
}

/// What must be equal where the timestamp is.
#[derive(Clone, PartialEq, Eq, Default)]
struct Facts {
    timestamp: Timestamp,
    /// Length and checksum.
    value: Option<(usize, u64)>,
    expiry: u64,
    tag: u32,
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Facts { timestamp, value, expiry, tag } = self;
        match value {
            _ if *timestamp == Timestamp::ZERO => write!(f, "nothing"),
            None => write!(f, "deleted at {timestamp}"),
            Some((length, checksum)) => {
                write!(f, "{length} bytes of {timestamp}, checksum {checksum:016x}, expiry {expiry}, tag {tag}")
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
    /// It was never written, or was deleted so long ago that nobody need know.
    is_absent: bool,
    expiry: u64,
    difference: Option<String>,
    missed: Vec<usize>,
}

async fn scrub_key(walk: &Walk<'_>, key: Key, mut look: Look) -> Scrubbed {
    let (mut difference, mut floor) = (None, None);
    for turn in 0..LOOKS {
        if turn > 0 {
            floor = look.newest().map(|found| found.timestamp);
            time::sleep(LOOK_PAUSE).await;
            walk.job.take(look.replicas.len() as u64 * u64::from(walk.topology.map.page_size)).await;
            look.again(walk.topology, &key).await;
        }
        difference = look.difference(floor).filter(|_| !look.is_absent(walk.topology));
        if difference.is_none() && walk.check_values {
            difference = damaged_copy(walk, &key, &look).await;
        }
        if difference.is_none() {
            break;
        }
    }
    let value_len = look.newest().and_then(|newest| newest.content.value_len());
    let expiry = look.newest().map_or(0, |newest| newest.expiry);
    let (is_absent, replicas) = (look.is_absent(walk.topology), look.replicas.len() as u64);
    Scrubbed { replicas, key, value_len, is_absent, expiry, difference, missed: look.missed }
}

async fn damaged_copy(walk: &Walk<'_>, key: &Key, look: &Look) -> Option<String> {
    for (member, found) in &look.found {
        let Content::Elsewhere(length, _) = found.content else { continue };
        let _bytes = walk.inner.background_bytes.acquire(length as usize).await;
        walk.job.take(length.into()).await;
        match walk.inner.fetch_from(&walk.topology.members[*member], key, found).await {
            // It verifies, or was replaced meanwhile: the newer one was written by a host that had it whole.
            Ok(Some(_) | None) => {}
            Err(error) => return Some(format!("member {member}: {error}")),
        }
    }
    None
}
