//! Repair: the newest of every key, stored wherever it is missing, older or damaged.
//!
//! Storing the newest is always safe: it is what a get does before it returns. A damaged *page* is another matter. It may
//! have held what an acknowledged put counted on, so it may only come back holding that again:
//! - its entries are gathered from so many other members (N - majority + 1) that every majority it was part of is met;
//! - they are gathered no sooner than [`OPERATION_TIME_MAX`] after the damage was seen. A put that this member had answered
//!   before may still have been under way elsewhere; by then it has been acknowledged, and is found, or has failed;
//! - the page becomes good in one compare-and-write (`table::rebuild`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::sync::Semaphore;
use engine::time;

use super::fetch::fetch;
use super::heap::repair_heap;
use super::link::Link;
use super::member::{Member, MemberError};
use super::pace::{Pace, ShowProgress};
use super::scan::DamagedPage;
use super::topology::Topology;
use super::{Inner, OPERATION_TIME_MAX, Store, count};
use crate::page::Reference;
use crate::table::{Content, Found, Known, Outcome, Request, TableError};
use crate::types::{Ballot, Key, Timestamp};

/// Keys repaired at once.
const REPAIRS_MAX: usize = 16;
/// Damaged pages dealt with in one pass; more wait for the next.
const DAMAGED_PAGES_MAX: usize = 4096;
/// What clocks of hosts may differ by over [`OPERATION_TIME_MAX`]. Guessed: 10 % is far beyond any clock's drift.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);
/// Looks at a member that is to store what the others have been asked to accept. Guessed: it is under way already.
const SPREAD_LOOKS_MAX: usize = 10;
/// Pause between them.
const SPREAD_PAUSE: Duration = Duration::from_millis(20);
/// Reasons that are listed; all are counted.
pub(super) const REASONS_MAX: usize = 20;

/// How to repair.
#[derive(Clone, Default)]
pub struct RepairOptions {
    /// Read and check values that do not stand in their home page, too.
    pub check_values: bool,
    /// Hold allocation pages against references, and rebuild those that are damaged: reads every table once or twice more.
    pub check_heap: bool,
    /// Bytes read a second, over all members; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Called after every stretch.
    pub progress: Option<ShowProgress>,
}

/// What was repaired.
#[derive(Clone, PartialEq, Eq, serde::Serialize, Debug, Default)]
pub struct RepairReport {
    /// Keys seen.
    pub keys: u64,
    /// Replicas stored because they were missing or older.
    pub stored: u64,
    /// Damaged copies replaced.
    pub copies_replaced: u64,
    /// Damaged pages rebuilt.
    pub pages_rebuilt: u64,
    /// Damaged allocation pages rebuilt.
    pub groups_rebuilt: u64,
    /// Extents that were referred to and not claimed, claimed again.
    pub extents_claimed: u64,
    /// What could not be repaired now.
    pub failed: u64,
    /// The first reasons.
    pub reasons: Vec<String>,
    /// Members that did not answer throughout; what they lack is not known.
    pub unreachable: Vec<usize>,
}

impl RepairReport {
    /// Whether nothing is left to do.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.unreachable.is_empty()
    }

    pub(super) fn fail(&mut self, reason: String) {
        self.failed += 1;
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(reason);
        }
    }
}

impl<N: Link> Store<N> {
    /// Walks over all keys and repairs what it can. Traffic goes on.
    pub async fn repair(&self, options: &RepairOptions) -> RepairReport {
        let mut report = RepairReport::default();
        let mut pace = Pace::new(options.bytes_per_second, options.progress.clone());
        pace.begin("repair");
        let damaged = self.walk(options.check_values, &mut pace, &mut report).await;
        if let Some(seen) = damaged.iter().map(|page| page.seen).max() {
            time::sleep_until(seen + OPERATION_TIME_MAX + CLOCK_MARGIN).await;
            for page in damaged {
                match rebuild_page(&self.inner, &page).await {
                    Ok(()) => report.pages_rebuilt += 1,
                    Err(reason) => report.fail(format!("page {} of member {}: {reason}", page.page.0, page.member)),
                }
            }
            if report.pages_rebuilt > 0 {
                // The pages may have held guests, whose homes are elsewhere: every copy is looked at.
                report.keys = 0;
                pace.begin("repair what the damaged pages held");
                for page in self.walk(true, &mut pace, &mut report).await {
                    report.fail(format!("page {} of member {}: {}", page.page.0, page.member, page.error));
                }
            }
        }
        if options.check_heap {
            pace.begin("repair the heaps");
            for member in &self.inner.topology().members {
                repair_heap(member, &mut pace, &mut report).await;
            }
        }
        report
    }

    /// Returns the damaged pages.
    async fn walk(&self, check_values: bool, pace: &mut Pace, report: &mut RepairReport) -> Vec<DamagedPage> {
        let inner = &self.inner;
        let mut damaged = Vec::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let topology = inner.topology();
            let stretch = topology.stretch(from);
            let seen = topology.see(stretch, |_| true).await;
            let mut work = Vec::new();
            for (member, answered) in seen.answered.iter().enumerate() {
                if !answered && !report.unreachable.contains(&member) {
                    report.unreachable.push(member);
                }
            }
            report.keys += seen.keys.len() as u64;
            for ((_, key), found) in &seen.keys {
                let Ok(key) = inner.key(key) else { continue };
                let whole = |member: usize| seen.is_whole(member);
                work.extend(Work::plan(&topology, key, found, whole, check_values));
            }
            let read: u64 = work.iter().map(Work::bytes_to_read).sum();
            carry_out(inner, work, report).await;
            let more = (damaged.len() + seen.damaged.len()).saturating_sub(DAMAGED_PAGES_MAX);
            if more > 0 {
                report.failed += more as u64 - 1;
                report.fail(format!("{more} more damaged pages: repair again"));
            }
            damaged.extend(seen.damaged);
            damaged.truncate(DAMAGED_PAGES_MAX);
            next = stretch.to;
            pace.progress.keys = report.keys;
            pace.step(next, seen.bytes + read).await;
        }
        damaged
    }
}

/// What one key may need.
struct Work<N: Link> {
    key: Key,
    timestamp: Timestamp,
    /// Members that show the newest.
    holders: Vec<(Rc<Member<N>>, Found)>,
    /// Members that lack it.
    lacking: Vec<Rc<Member<N>>>,
    check_values: bool,
}

impl<N: Link> Work<N> {
    /// Bytes of values that are read for it.
    fn bytes_to_read(&self) -> u64 {
        let long = |(_, found): &(Rc<Member<N>>, Found)| match &found.content {
            Content::Elsewhere(length, _) => u64::from(*length),
            Content::Inline(_) | Content::Nothing => 0,
        };
        let copies = if self.check_values { self.holders.len() } else { 1 };
        self.holders.iter().take(copies).map(long).sum()
    }

    fn plan(
        topology: &Rc<Topology<N>>,
        key: Key,
        found: &[(usize, Found)],
        whole: impl Fn(usize) -> bool,
        check_values: bool,
    ) -> Option<Work<N>> {
        let timestamp = found.iter().map(|(_, found)| found.timestamp).max()?;
        let (mut holders, mut lacking) = (Vec::new(), Vec::new());
        for home in topology.homes(&key).iter() {
            let member = topology.members[usize::from(home.member)].clone();
            match found.iter().find(|(index, _)| *index == member.index) {
                Some((_, found)) if found.timestamp == timestamp => holders.push((member, found.clone())),
                Some(_) => lacking.push(member),
                None if whole(member.index) => lacking.push(member),
                // It may hold it on a page that could not be read.
                None => {}
            }
        }
        let elsewhere = holders.iter().any(|(_, found)| matches!(found.content, Content::Elsewhere(..)));
        let needed = !lacking.is_empty() || (check_values && elsewhere);
        needed.then_some(Work { key, timestamp, holders, lacking, check_values })
    }
}

async fn carry_out<N: Link>(inner: &Rc<Inner<N>>, work: Vec<Work<N>>, report: &mut RepairReport) {
    let turns = Semaphore::new(REPAIRS_MAX);
    let mut tasks = Vec::new();
    for work in work {
        let turn = turns.acquire(1).await;
        let inner = inner.clone();
        tasks.push(engine::task::spawn(async move {
            let mut own = RepairReport::default();
            repair_key(&inner, &work, &mut own).await;
            drop(turn);
            own
        }));
    }
    for task in tasks {
        let own = task.await;
        report.stored += own.stored;
        report.copies_replaced += own.copies_replaced;
        report.failed += own.failed;
        let room = REASONS_MAX.saturating_sub(report.reasons.len());
        report.reasons.extend(own.reasons.into_iter().take(room));
    }
}

async fn repair_key<N: Link>(inner: &Rc<Inner<N>>, work: &Work<N>, report: &mut RepairReport) {
    let mut damaged: Vec<(Rc<Member<N>>, Reference)> = Vec::new();
    let mut good = work.holders.clone();
    if work.check_values {
        good.clear();
        for (member, found) in &work.holders {
            match (inner.fetch_from(member, &work.key, found).await, &found.content) {
                (Ok(_), _) => good.push((member.clone(), found.clone())),
                (Err(MemberError::Table(error)), Content::Elsewhere(_, reference)) if is_damage(&error) => {
                    damaged.push((member.clone(), *reference));
                }
                (Err(error), _) => report.fail(format!("{:?} on member {}: {error}", work.key, member.index)),
            }
        }
    }
    if work.lacking.is_empty() && damaged.is_empty() {
        return;
    }
    let Ok(value) = fetch(inner, &work.key, good).await else {
        // Replaced meanwhile is no failure, but only the next pass can tell.
        return report.fail(format!("{:?}: no good copy of the value of {}", work.key, work.timestamp));
    };
    let Some((_, newest)) = work.holders.first() else { return };
    let newest = Request::write_back(newest.record(value));
    for member in &work.lacking {
        let reply = match member.apply(&work.key, &newest, Known::default()).await.map(|reply| reply.outcome) {
            // A conditional operation is under way, or its host is gone: it goes by a ballot above that one.
            Ok(Outcome::Refused(_)) => spread(inner, member, &work.key).await,
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        match reply {
            Ok(()) => {
                report.stored += 1;
                count(&inner.stats.repaired);
            }
            Err(error) => report.fail(format!("{:?} on member {}: {error}", work.key, member.index)),
        }
    }
    for (member, reference) in damaged {
        let known = Known { damaged: Some(reference), ..Known::default() };
        match member.apply(&work.key, &newest, known).await.map(|reply| reply.outcome) {
            Ok(Outcome::Refused(_)) => {
                report.fail(format!("{:?} on member {}: confirmed meanwhile", work.key, member.index));
            }
            Ok(_) => report.copies_replaced += 1,
            Err(error) => report.fail(format!("{:?} on member {}: {error}", work.key, member.index)),
        }
    }
}

/// Has the newest of a key decided anew, and waits until `member` holds it.
async fn spread<N: Link>(inner: &Rc<Inner<N>>, member: &Rc<Member<N>>, key: &Key) -> Result<(), String> {
    let decided = inner.confirm(key).await.map_err(|error| error.to_string())?;
    for _ in 0..SPREAD_LOOKS_MAX {
        let (_, found) = member.read(key).await.map_err(|error| error.to_string())?;
        if found.timestamp >= decided {
            return Ok(());
        }
        time::sleep(SPREAD_PAUSE).await;
    }
    Err("it has not stored what was confirmed".into())
}

fn is_damage(error: &TableError) -> bool {
    matches!(
        error,
        TableError::CopyDamaged { .. } | TableError::Page { .. } | TableError::Device(device::Error::ReadFault(_))
    )
}

/// Rebuilds one damaged page; its time has come.
pub(super) async fn rebuild_page<N: Link>(inner: &Rc<Inner<N>>, damaged: &DamagedPage) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let topology = inner.topology();
    // Indices shift when members come and go, and a member that was formatted again has lost the page.
    let same = |member: &pool::Member| (member.id, member.incarnation) == damaged.life;
    let Some(index) = topology.map.members.iter().position(same) else { return Ok(()) };
    let member = &topology.members[index];
    let (table, epoch) = member.voting().await.map_err(|error| words(&error))?;
    let image = table.damaged_image(damaged.page).await.map_err(|error| words(&error))?;
    let (Some(image), Some(stretch)) = (image, topology.stretch_of(index, damaged.page)) else {
        return Ok(()); // Somebody else was faster.
    };
    let seen = topology.see(stretch, |other| other != index).await;
    // Of every set of homes it is in: while the pool changes there are two.
    let needed = topology.placement.replicas() - topology.placement.majority() + 1;
    let gathered = |(ring, void): (&pool::Ring, &[u16])| {
        let whole = |home: &&u16| !void.contains(home) && seen.is_whole(usize::from(**home));
        let is_here = |home: &u16| usize::from(*home) == index && !void.contains(home);
        let mut sets = ring.all_homes().filter(|homes| homes.iter().any(is_here));
        sets.all(|homes| homes.iter().filter(whole).count() >= needed)
    };
    if !topology.placement.rings().all(gathered) {
        return Err(format!("{needed} other good replicas are needed to rebuild it, and are not there"));
    }
    let mut records = Vec::new();
    for ((_, key), found) in seen.keys {
        let Ok(key) = inner.key(&key) else { continue };
        let homes = topology.homes(&key);
        let Some(timestamp) = found.iter().map(|(_, found)| found.timestamp).max() else { continue };
        if !homes.contains(index) {
            continue;
        }
        // What it had promised, a majority had, and one of those asked knows: a lower ballot must find it again.
        let promise = found.iter().map(|(_, found)| found.promise).max().unwrap_or(Ballot::NONE);
        let holders = found.into_iter().filter(|(_, found)| found.timestamp == timestamp);
        let holders: Vec<_> = holders.map(|(index, found)| (topology.members[index].clone(), found)).collect();
        let Some(newest) = holders.first().map(|(_, found)| found.clone()) else { continue };
        let value = fetch(inner, &key, holders).await;
        let value = value.map_err(|_| format!("no good copy of the value of {key:?}"))?;
        records.push((key, newest.record(value), promise));
    }
    member.counts(epoch).map_err(|error| words(&error))?;
    table.rebuild(damaged.page, image, &records).await.map_err(|error| words(&error))
}

/// What the background repairer last did; see [`super::background`].
#[derive(Default)]
pub(super) struct RepairState {
    pub(super) running: Cell<bool>,
    pub(super) last: RefCell<Option<RepairReport>>,
}
