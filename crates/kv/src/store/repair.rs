//! Repair: the newest of every key, stored wherever it is missing, older or damaged.
//!
//! Storing the newest is always safe: it is what a get does before it returns. A damaged page is another matter (`rebuild`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::sync::Semaphore;
use engine::task::LocalFuture;
use engine::time;

use super::change::STRETCH_PAUSE;
use super::fetch::{Gone, fetch};
use super::heap::repair_heap;
use super::member::{Member, MemberError};
use super::rebuild::{fail_left, rebuild_pages};
use super::scan::{DamagedPages, PageOfLife, Seen, Stretch};
use super::topology::Topology;
use super::work::{Look, Work};
use super::{Inner, Store, count};
use crate::page::Reference;
use crate::table::{Content, Known, Outcome, Request, TableError};
use crate::types::{Key, Timestamp};
use engine::job::{Job, ShowProgress};

/// Keys repaired at once.
const REPAIRS_MAX: usize = 16;
/// Looks at a key that is written each time before its copies are read. Guessed.
const LOOKS_MAX: usize = 5;
/// Damaged pages dealt with in one pass; more wait for the next.
const DAMAGED_PAGES_MAX: usize = 4096;
/// Keys with damaged copies that are remembered. Guessed: more than a few are a damaged medium, and a matter for the scrub.
const DAMAGED_KEYS_MAX: usize = 1024;
/// Looks at a member that is to store what the others have been asked to accept. Guessed: it is under way already.
const SPREAD_LOOKS_MAX: usize = 10;
/// How often homes are made equal where that fails. Guessed: a mishap of the moment is over by the second time.
const EQUAL_TRIES: usize = 3;
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
    /// Rebuild damaged pages also where half of a key's homes may be all that know what was stored last, and none of those is good:
    /// what such a page alone knew is gone then, and what was before may be read again.
    pub accept_stale: bool,
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
    /// Their bytes.
    #[serde(skip)]
    pub(super) stored_bytes: u64,
    /// Damaged copies replaced.
    pub copies_replaced: u64,
    /// Keys deleted whose value had ended.
    pub expired: u64,
    /// Damaged pages rebuilt.
    pub pages_rebuilt: u64,
    /// Those of them that may lack what they alone knew ([`RepairOptions::accept_stale`]).
    pub pages_stale: u64,
    /// Damaged allocation pages rebuilt.
    pub groups_rebuilt: u64,
    /// Extents that were referred to and not claimed, claimed again.
    pub extents_claimed: u64,
    /// What could not be repaired now.
    pub failed: u64,
    /// Pages that could not be rebuilt: they count as one failure each, however often they are met.
    #[serde(skip)]
    pub(super) pages_failed: BTreeSet<PageOfLife>,
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

impl RepairState {
    /// Keys that wait to be repaired by themselves.
    pub(super) fn backlog(&self) -> usize {
        self.damaged.borrow().len()
    }

    /// A copy of the value of `key` is damaged. What is beyond the bound is left to the scrub.
    pub(super) fn note(&self, key: &Key) {
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() < DAMAGED_KEYS_MAX {
            damaged.insert(key.bytes().to_vec());
        }
    }

    pub(super) fn has_damaged(&self) -> bool {
        !self.damaged.borrow().is_empty()
    }
}

impl Store {
    /// Repairs the keys of which operations have met damaged copies; `None`: there are none.
    pub(super) async fn repair_noted(&self, options: &RepairOptions) -> Option<RepairReport> {
        let (inner, mut work) = (&self.inner, Vec::new());
        let keys = inner.repair.damaged.take();
        if keys.is_empty() {
            return None;
        }
        let mut report = RepairReport { keys: keys.len() as u64, ..RepairReport::default() };
        let topology = inner.topology();
        for key in keys {
            let Ok(key) = inner.key(&key) else { continue };
            work.extend(Look::at(&topology, key, &[]).await.work(&topology, true, inner.settled_millis()));
        }
        carry_out(inner, work, &inner.stats.jobs.begin("repair", options.bytes_per_second, None), &mut report).await;
        Some(report)
    }

    /// Walks over all keys and repairs what it can. Traffic goes on.
    pub fn repair<'a>(&'a self, options: &'a RepairOptions) -> LocalFuture<'a, RepairReport> {
        Box::pin(async move {
            let mut report = RepairReport::default();
            let job = self.inner.stats.jobs.begin("repair", options.bytes_per_second, options.progress.clone());
            self.inner.note_clock().await;
            job.begin("repair");
            let damaged = self.walk(options.check_values, &job, &mut report).await.first;
            if !damaged.is_empty() {
                rebuild_pages(&self.inner, damaged, options.accept_stale, &job, &mut report).await;
                // What they hold was held against nothing, whoever has put them right since: another host knows what that one
                // has seen, and a page that was read badly once is what it was, older or not. One that was rebuilt here may have
                // held guests, whose homes are elsewhere: then every copy is looked at.
                report.keys = 0;
                job.begin("repair what the damaged pages held");
                let check_values = options.check_values || report.pages_rebuilt > 0;
                let left = self.walk(check_values, &job, &mut report).await;
                fail_left(left, &mut report);
            }
            if options.check_heap {
                job.begin("repair the heaps");
                for member in &self.inner.topology().members {
                    repair_heap(member, &job, &mut report).await;
                }
            }
            job.end().await;
            report
        })
    }

    /// Returns the damaged pages, but for those of which the report tells that they could not be rebuilt.
    async fn walk(&self, check_values: bool, job: &Rc<Job>, report: &mut RepairReport) -> DamagedPages {
        let (mut next, mut damaged) = (Some(0), DamagedPages::default());
        while let Some(from) = next {
            let topology = self.inner.topology();
            let stretch = topology.stretch(from);
            let seen = equalise(&self.inner, &topology, stretch, check_values, job, report).await;
            damaged.keep(seen.damaged, &report.pages_failed, DAMAGED_PAGES_MAX);
            next = stretch.to;
            job.reached_hash(next);
        }
        damaged
    }
}

/// Makes all homes of the keys of a stretch hold the newest, as far as the members answer. Returns what they held.
async fn equalise(
    inner: &Rc<Inner>,
    topology: &Rc<Topology>,
    stretch: Stretch,
    check_values: bool,
    job: &Rc<Job>,
    report: &mut RepairReport,
) -> Seen {
    let seen = topology.see(stretch, |_| true, job).await;
    equalise_seen(inner, topology, &seen, check_values, job, report).await;
    seen
}

/// The same, of what was seen a moment ago.
async fn equalise_seen(
    inner: &Rc<Inner>,
    topology: &Rc<Topology>,
    seen: &Seen,
    check_values: bool,
    job: &Rc<Job>,
    report: &mut RepairReport,
) {
    let (mut work, now) = (Vec::new(), inner.settled_millis());
    for (member, answered) in seen.answered.iter().enumerate() {
        // Nobody asks what was given up for good, whatever it holds.
        let waited_for = !answered && !topology.map.members[member].lost;
        if waited_for && !report.unreachable.contains(&member) {
            report.unreachable.push(member);
        }
    }
    report.keys += seen.keys.len() as u64;
    for ((_, key), found) in &seen.keys {
        let Ok(key) = inner.key(key) else { continue };
        let whole = |member: usize| seen.is_whole(member);
        work.extend(Work::plan(topology, key, found, whole, check_values, now));
    }
    carry_out(inner, work, job, report).await;
}

/// Has all homes of the keys of a stretch hold the newest, on every member that was not given up, of what was `seen` when they were
/// cleaned, if that was one look; whether they do. That is wanted where so few homes of a key may know of an operation that the
/// next change need not ask any of them: of an even number, after a joint map that was taken back, half. Where a home is full,
/// say, or a value has no good copy left, the map remembers it, and the next change asks more of them.
pub(super) async fn make_equal(
    inner: &Rc<Inner>,
    topology: &Rc<Topology>,
    stretch: Stretch,
    seen: Option<Seen>,
) -> bool {
    let job = inner.stats.jobs.begin("move", None, None);
    let mut seen = match seen {
        Some(seen) => seen,
        None => topology.see(stretch, |_| true, &job).await,
    };
    let mut report = RepairReport::default();
    for left in (0..EQUAL_TRIES).rev() {
        report = RepairReport::default();
        equalise_seen(inner, topology, &seen, false, &job, &mut report).await;
        // The rate that the change keeps to is one of what it has stored.
        inner.stats.moved_bytes.fetch_add(report.stored_bytes, Ordering::Relaxed);
        let missing = |member: &usize| !topology.map.members[*member].lost && !seen.is_whole(*member);
        if report.failed == 0 && !(0..topology.members.len()).any(|member| missing(&member)) {
            return true;
        }
        if left > 0 {
            time::sleep(STRETCH_PAUSE).await;
            seen = topology.see(stretch, |_| true, &job).await;
        }
    }
    tracing::warn!(
        "homes of {} keys could not be made equal ({}): until `yagura kv scrub --collect` has swept them, a change of the pool \
         needs a majority of the replicas of each key from before it",
        report.failed,
        report.reasons.join("; ")
    );
    false
}

async fn carry_out(inner: &Rc<Inner>, work: Vec<Work>, job: &Rc<Job>, report: &mut RepairReport) {
    let turns = Semaphore::new(REPAIRS_MAX);
    let mut tasks = Vec::new();
    for work in work {
        let turn = turns.acquire(1).await;
        let (inner, job) = (inner.clone(), job.clone());
        tasks.push(engine::task::spawn(async move {
            let mut own = RepairReport::default();
            repair_key(&inner, work, &job, &mut own).await;
            drop(turn);
            own
        }));
    }
    for task in tasks {
        let own = task.await;
        report.stored += own.stored;
        report.stored_bytes += own.stored_bytes;
        report.copies_replaced += own.copies_replaced;
        report.expired += own.expired;
        report.failed += own.failed;
        let room = REASONS_MAX.saturating_sub(report.reasons.len());
        report.reasons.extend(own.reasons.into_iter().take(room));
    }
}

/// Carries out what one key needs. It may have been written while it waited for its turn: then what it needs now. And a home that
/// had shown the newest may be back without, rebuilt from what the others held before they were given it: so what was stored here
/// is done when one look shows it, or something newer, at all homes but those that are known not to have been heard.
async fn repair_key(inner: &Rc<Inner>, mut work: Work, job: &Job, report: &mut RepairReport) {
    for _ in 0..LOOKS_MAX {
        let stored = repair_as_planned(inner, &work, job, report).await;
        // What has failed has been told, and is not tried again.
        if let Ok(stored) = &stored
            && (!stored || report.failed > 0)
        {
            return work.silent.into_iter().for_each(|reason| report.fail(reason));
        }
        let topology = inner.topology();
        job.take(topology.homes(&work.key).len() as u64 * u64::from(topology.map.page_size)).await;
        let look = Look::at(&topology, work.key.clone(), &work.unheard).await;
        if stored.is_ok() && look.is_held(work.timestamp) {
            return work.silent.into_iter().for_each(|reason| report.fail(reason));
        }
        // Its copies have been read.
        let check_values = work.check_values && stored.is_err();
        let Some(newer) = look.work(&topology, check_values, inner.settled_millis()) else { return };
        let before = std::mem::replace(&mut work, newer).timestamp;
        if stored.is_err() && work.timestamp == before {
            // A put that does not hear of it may be the older of the two by chance; the next is newer.
            let mend = "put the key, and again should it be named again";
            return report.fail(format!("{:?}: no good copy is left of the value of {before}: {mend}", work.key));
        }
    }
    report.fail(format!("{:?}: its replicas differed anew each time: repair again", work.key));
}

/// Returns whether something was stored that all homes are to show.
async fn repair_as_planned(inner: &Rc<Inner>, work: &Work, job: &Job, report: &mut RepairReport) -> Result<bool, Gone> {
    // A majority has decided that: it is as any operation that was acknowledged.
    if work.expired && end(inner, work, report).await {
        return Ok(false);
    }
    let length = work.length_elsewhere();
    let _bytes = inner.background_bytes.acquire(length).await;
    let mut damaged: Vec<(Rc<Member>, Reference)> = Vec::new();
    let mut good = work.holders.clone();
    if work.check_values {
        good.clear();
        for (member, found) in &work.holders {
            job.take(length as u64).await;
            match (inner.fetch_from(member, &work.key, found).await, &found.content) {
                (Ok(_), _) => good.push((member.clone(), found.clone())),
                (Err(MemberError::Table(error)), Content::Elsewhere(_, reference)) if is_damage(&error) => {
                    damaged.push((member.clone(), *reference));
                }
                (Err(error), _) => report.fail(format!("{:?} on member {}: {error}", work.key, member.index)),
            }
        }
    }
    if work.lacking.is_empty() && damaged.is_empty() && !work.expired {
        return Ok(false);
    }
    job.take(length as u64).await;
    let value = fetch(inner, &work.key, good).await?.value;
    let Some((_, newest)) = work.holders.first() else { return Ok(false) };
    let bytes = work.key.bytes().len() + value.as_ref().map_or(0, crate::Value::len);
    let newest = Request::write_back(newest.record(value));
    for member in &work.lacking {
        let reply = match member.apply(&work.key, &newest, Known::default()).await.map(|reply| reply.outcome) {
            // A conditional operation is under way, or its host is gone: it goes by a ballot above that one.
            Ok(Outcome::Refused(_)) => spread(inner, member, &work.key, work.timestamp).await,
            // Written meanwhile.
            Ok(Outcome::Superseded) => continue,
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        match reply {
            Ok(()) => {
                report.stored += 1;
                report.stored_bytes += bytes as u64;
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
    if work.expired && !end(inner, work, report).await {
        report.fail(format!("{:?}: it has ended, and a minority holds it still", work.key));
    }
    Ok(!work.lacking.is_empty() && !work.expired)
}

/// Deletes what has ended; `false`: the majority that was asked had not heard of it, and has to first.
async fn end(inner: &Rc<Inner>, work: &Work, report: &mut RepairReport) -> bool {
    // To look at it is to delete it, unless it has been written since.
    match inner.confirm(&work.key).await {
        Ok(decided) => {
            report.expired += u64::from(decided > work.timestamp);
            decided >= work.timestamp
        }
        Err(error) => {
            report.fail(format!("{:?}: {error}", work.key));
            true
        }
    }
}

/// Has the newest of a key decided anew, and waits until `member` holds it.
async fn spread(inner: &Rc<Inner>, member: &Rc<Member>, key: &Key, newest: Timestamp) -> Result<(), String> {
    let decided = inner.confirm(key).await.map_err(|error| error.to_string())?;
    if decided < newest {
        return Err("the majority that was asked has not heard of the newest: repair again".into());
    }
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

/// What the background repairer last did, and is to do; see [`super::background`].
#[derive(Default)]
pub(super) struct RepairState {
    /// Keys of which an operation has met a damaged copy: they are repaired by themselves, without a walk over all.
    damaged: RefCell<BTreeSet<Vec<u8>>>,
    pub(super) running: Cell<bool>,
    pub(super) last: RefCell<Option<RepairReport>>,
}
