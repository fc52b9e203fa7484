//! Verify: for every key, all N replicas hold the same timestamp and the same value.
//!
//! Traffic goes on meanwhile, so replicas may differ for a moment: what differs is looked at again, key by key, before it
//! is reported. A key that is written without a pause is never seen equal; there a replica is in order if it holds at
//! least what was the newest one look earlier. One that has missed a write falls behind that, and stays there.

use std::rc::Rc;
use std::time::Duration;

use engine::time;

use super::link::Link;
use super::repair::{Progress, ShowProgress};
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

/// What to verify.
#[derive(Clone, Default)]
pub struct VerifyOptions {
    /// Read values that do not stand in their home page, too, on every replica.
    pub check_values: bool,
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
pub struct VerifyReport {
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
    /// Members that did not answer throughout.
    pub unreachable: Vec<usize>,
}

impl VerifyReport {
    /// Whether all replicas of all keys are there and equal.
    pub fn is_equal(&self) -> bool {
        self.differing == 0 && self.damaged_pages.is_empty() && self.unreachable.is_empty()
    }
}

impl<N: Link> Store<N> {
    /// Compares all replicas of all keys.
    pub async fn verify(&self, options: &VerifyOptions) -> VerifyReport {
        let inner = &self.inner;
        let mut report = VerifyReport::default();
        let mut progress = Progress::default();
        let mut next = Some(0);
        while let Some(from) = next {
            let topology = inner.topology();
            let stretch = topology.stretch(from);
            let seen = topology.see(stretch, |_| true).await;
            for (member, answered) in seen.answered.iter().enumerate() {
                if !answered && !report.unreachable.contains(&member) {
                    report.unreachable.push(member);
                }
            }
            for page in &seen.damaged {
                report.damaged_pages.push((page.member, page.page.0, page.error.to_string()));
            }
            for ((_, key), found) in seen.keys {
                let Ok(key) = inner.key(&key) else { continue };
                verify_key(inner, &topology, &key, found, options.check_values, &mut report).await;
            }
            next = stretch.to;
            progress.advance(next, seen.bytes, report.keys);
            if let Some(show) = &options.progress {
                show(&progress);
            }
        }
        report
    }
}

async fn verify_key<N: Link>(
    inner: &Rc<Inner<N>>,
    topology: &Topology<N>,
    key: &Key,
    mut found: Vec<(usize, Found)>,
    check_values: bool,
    report: &mut VerifyReport,
) {
    // While the pool changes, those after the change need not have everything yet.
    let homes = topology.homes(key).settled();
    let homes = homes.as_slice();
    report.replicas += homes.len() as u64;
    let (mut difference, mut floor) = (None, None);
    for look in 0..LOOKS {
        if look > 0 {
            floor = newest_of(&found);
            time::sleep(LOOK_PAUSE).await;
            found = look_again(topology, key, homes).await;
        }
        difference = compare(homes, &found, floor);
        if difference.is_none() && check_values {
            difference = damaged_copy(inner, topology, key, &found).await;
        }
        if difference.is_none() {
            break;
        }
    }
    let newest = found.iter().map(|(_, found)| found).max_by_key(|found| found.timestamp);
    match newest.and_then(|newest| newest.content.value_len()) {
        Some(length) => {
            report.keys += 1;
            report.value_bytes += length as u64;
        }
        None => report.tombstones += 1,
    }
    if let Some(what) = difference {
        report.differing += 1;
        if report.differences.len() < DIFFERENCES_MAX {
            report.differences.push(Difference { key: key.bytes().to_vec(), what });
        }
    }
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
) -> Option<String> {
    for (member, found) in found.iter().filter(|(_, found)| matches!(found.content, Content::Elsewhere(..))) {
        match inner.fetch_from(&topology.members[*member], key, found).await {
            // It verifies, or was replaced meanwhile: the newer one was written by a host that had it whole.
            Ok(Some(_) | None) => {}
            Err(error) => return Some(format!("member {member}: {error}")),
        }
    }
    None
}
