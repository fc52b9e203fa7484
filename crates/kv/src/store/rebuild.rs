//! Rebuilding a damaged page of one member from what the others hold.
//!
//! It may have held what an acknowledged put counted on, so it may only come back holding that again:
//! - its entries are gathered from so many other members (N - majority + 1) that every majority it was part of is met; while the
//!   pool changes from so many of each set of homes, as of the old one no more than that have to know of an operation, but with
//!   a majority of the new one (`Placement::know_what_was_held`). Where half of the homes may be all that know, from a majority;
//!   or from fewer by an operator's word that what the page alone knew may be gone (`RepairOptions::accept_stale`);
//! - they are gathered no sooner than [`super::OPERATION_TIME_MAX`] after the damage was seen. A put that this member had
//!   answered before may still have been under way elsewhere; by then it has been acknowledged, and is found, or has failed.
//!   That is so for the very damage that was seen: what has been put right meanwhile and is damaged anew has to wait again;
//! - whoever rebuilds it has learnt the pool's newest map since the damage was seen. What the page was sealed for is lost with it,
//!   but the map of that epoch was in force by then: so the page comes back under no earlier seal, however few its other homes
//!   are that could tell (one of two). The voters are asked for it; and as others may have gone on without those, by force, the
//!   page's own member is looked at too, each time that the page is: one that carries a later map than this host goes by is
//!   rebuilt by no older one. Where nobody knows that one to be in force, whoever was agreeing on it is gone, or the voters have
//!   lost it: it is agreed on anew, and what the member has accepted counts;
//! - where they are gathered from fewer than all others, a sweep (`forget`) may have held the page against all of them before it
//!   was damaged, and would count on what the others that are silent have told it. So the epoch is raised first, by which every
//!   sweep up to then counts for nothing; one of the new epoch seals the page before it looks at it, and one that is sealed so is
//!   not rebuilt. (From all others: what a sweep counts on one look has shown at the page and at all of them: `work::Look`);
//! - where an operator's word is needed behind a change that was taken back, the map notes first that it ends `unequal`: whoever
//!   makes homes equal for it may have held the page, as it was, against the others;
//! - what a conditional operation wrote comes back only where no higher ballot may have been told that it is not there (by the page
//!   itself, say, before it was damaged, and by one of those asked, which has promised that ballot and does not hold it): one that
//!   goes by a majority of such answers builds on what was before. Brought back under the promise, and not by it, the entry would
//!   have a majority where it was refused, be read, and be gone with the next. So it is decided anew first, above every promise
//!   (`Inner::confirm`), as a migration does;
//! - the page becomes good in one compare-and-write (`table::rebuild`).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use engine::backoff::jittered;
use engine::time;
use pool::{State, TablePage};

use super::collect::collect_of;
use super::fetch::fetch;
use super::member::{Life, Member, MemberError};
use super::quorum::HalfMayKnow;
use super::repair::RepairReport;
use super::scan::{DamagedPage, DamagedPages, Seen};
use super::topology::Topology;
use super::{Inner, OPERATION_TIME_MAX};
use crate::table::{AGE_MIN, DamageMark, Damaged, Rebuilding, TableError};
use crate::types::{Ballot, Key};
use engine::job::Job;

/// What clocks of hosts may differ by over [`OPERATION_TIME_MAX`]. Guessed: 10 % is far beyond any clock's drift.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);
/// What whoever agrees on a map is left at most before somebody else does. Guessed: some steps of an agreement.
const AGREEING_TIME: Duration = Duration::from_secs(2);
/// Looks at a page of which something is undecided each time. Guessed: hosts that contend for a key leave it so for a round trip.
const LOOKS_MAX: usize = 10;

/// The pages that are still damaged, each with what is damaged of it.
async fn marked(
    inner: &Rc<Inner>,
    damaged: Vec<DamagedPage>,
    ahead: &mut Ahead,
    report: &mut RepairReport,
) -> Vec<(DamagedPage, DamageMark)> {
    let mut marked = Vec::new();
    for page in damaged {
        if ahead.fails(&page, report) {
            continue;
        }
        match mark_of(inner, &page).await {
            Ok(Some(mark)) => marked.push((page, mark)),
            Ok(None) => {} // Somebody else was faster.
            Err(error) => ahead.note(&page, Unable::of(error), report),
        }
    }
    marked
}

/// Members that carry a map which can't be learnt, and why: to ask all anew for each of a thousand pages takes a day where some are
/// silent.
#[derive(Default)]
struct Ahead(BTreeMap<Life, String>);

impl Ahead {
    /// Whether a page's member is one of them: it is not asked again.
    fn fails(&self, page: &DamagedPage, report: &mut RepairReport) -> bool {
        let reason = self.0.get(&page.life);
        reason.inspect(|reason| fail(report, page, (*reason).clone())).is_some()
    }

    /// Tells why a page could not be rebuilt, and notes its member if that is why.
    fn note(&mut self, page: &DamagedPage, unable: Unable, report: &mut RepairReport) {
        let reason = match unable {
            Unable::Ahead(reason) => {
                self.0.insert(page.life, reason.clone());
                reason
            }
            Unable::Full(reason) | Unable::Other(reason) => reason,
        };
        fail(report, page, reason);
    }
}

/// What is damaged of a page now. Damage that a medium may show again (zeroes, say) is cleared first: else the compare of one
/// rebuilding, late, were met by a later loss, with what the page held before that; and the time of the one waited for the other.
pub(super) async fn mark_of(inner: &Rc<Inner>, damaged: &DamagedPage) -> Result<Option<DamageMark>, MemberError> {
    for _ in 0..LOOKS_MAX {
        let Some(sight) = look(inner, damaged).await? else { return Ok(None) };
        let mark = sight.image.mark();
        if !sight.image.may_repeat() {
            return Ok(Some(mark));
        }
        clear(inner, damaged, &mark).await?;
    }
    Err(TableError::Contended.into())
}

/// A damaged page as it was seen.
struct Sight {
    topology: Rc<Topology>,
    /// Its member, there.
    index: usize,
    /// The connection on which that has a vote.
    connection: u64,
    image: Damaged,
}

/// A page as it is, if it is damaged, by a map that is no older than its member's own.
async fn look(inner: &Rc<Inner>, damaged: &DamagedPage) -> Result<Option<Sight>, MemberError> {
    let mut looks = 0;
    loop {
        let topology = inner.topology();
        let Some(index) = damaged.index_in(&topology) else { return Ok(None) };
        let member = &topology.members[index];
        let (_, connection) = member.voting().await?;
        let Some((image, carried)) = look_at(inner, member, damaged.page).await? else { return Ok(None) };
        if carried <= topology.map.epoch {
            return Ok(Some(Sight { topology, index, connection, image }));
        }
        let is_known = || inner.topology().map.epoch > topology.map.epoch;
        let mut asked = inner.refresh(|_| is_known()).await;
        if !is_known() && looks == 0 {
            // The voters that this host knows may have been left behind; or this map is just being agreed on.
            asked = inner.refresh_of_all().await;
        }
        if is_known() {
            continue;
        }
        looks += 1;
        match (looks, asked) {
            (1, Ok(())) => time::sleep(jittered(AGREEING_TIME)).await,
            (2, Ok(())) => settle(inner, member, carried).await?,
            (_, asked) => {
                let reason = asked.err().unwrap_or_else(|| "it is not known to be in force".into());
                return Err(MemberError::Ahead { carried, reason });
            }
        }
    }
}

/// Has the map agreed on anew that a member carries.
async fn settle(inner: &Rc<Inner>, member: &Member, carried: u64) -> Result<(), MemberError> {
    let ahead = |reason| MemberError::Ahead { carried, reason };
    let (table, _) = member.voting().await?;
    let shown = pool::inspect(table.namespace(), "its member").await.map_err(|error| match error {
        pool::Error::Device { source, .. } => TableError::Device(source).into(),
        error => ahead(error.to_string()),
    })?;
    inner.settle_carried(&shown.map, member.life().0).await.map_err(ahead)
}

/// A page as it is, if it is damaged, and the epoch of the map that its member carries. One of another life of the member is, too,
/// unless it is this host that has slept: a member begins a new life with its superblock, so one that is read after the page tells.
/// Then the newest map is learned.
async fn look_at(inner: &Rc<Inner>, member: &Member, page: TablePage) -> Result<Option<(Damaged, u64)>, MemberError> {
    let (table, _) = member.voting().await?;
    let Some(image) = table.damaged_page(page).await? else { return Ok(None) };
    match member.check_again().await {
        Ok(carried) => Ok(Some((image, carried))),
        Err(error) => {
            inner.look_for_newer_map().await;
            Err(error)
        }
    }
}

/// Why a page could not be rebuilt.
#[derive(Debug)]
pub(super) enum Unable {
    /// The member has no room for its values.
    Full(String),
    /// The member carries a later map than can be learnt.
    Ahead(String),
    /// Something else.
    Other(String),
}

impl Unable {
    fn of(error: impl Into<MemberError>) -> Unable {
        let error = error.into();
        let reason = error.to_string();
        match error {
            MemberError::Ahead { .. } => Unable::Ahead(reason),
            _ if error.is_out_of_space() => Unable::Full(reason),
            _ => Unable::Other(reason),
        }
    }
}

/// Rebuilds pages that were seen damaged just now.
pub(super) async fn rebuild_pages(
    inner: &Rc<Inner>,
    mut damaged: Vec<DamagedPage>,
    accept_stale: bool,
    job: &Rc<Job>,
    report: &mut RepairReport,
) {
    let mut ahead = Ahead::default();
    for last in [false, true] {
        let pages = marked(inner, std::mem::take(&mut damaged), &mut ahead, report).await;
        if pages.is_empty() {
            return;
        }
        if let Err(reason) = inner.refresh(|_| false).await {
            let reason = format!("the pool's newest map can't be learnt: {reason}");
            pages.iter().for_each(|(page, _)| fail(report, page, reason.clone()));
            return;
        }
        let terms = Terms { since: inner.topology().map.epoch, accept_stale };
        time::sleep(OPERATION_TIME_MAX + CLOCK_MARGIN).await;
        let mut cleared = Cleared::new();
        for (page, mark) in pages {
            if ahead.fails(&page, report) {
                continue;
            }
            match rebuild_page(inner, &page, &mark, terms, job).await {
                Ok(None) => {} // Likewise.
                Ok(Some(stale)) => {
                    report.pages_rebuilt += 1;
                    report.pages_stale += u64::from(stale);
                    if stale {
                        let (page, member) = (page.page.0, page.member);
                        tracing::warn!(
                            member,
                            page,
                            "what this page alone knew is gone: what was before may be read again"
                        );
                    }
                }
                Err(Unable::Full(reason)) if !last => match clear(inner, &page, &mark).await {
                    Ok(true) => cleared.entry(page.life).or_default().push((page, reason)),
                    Ok(false) => damaged.push(page),
                    Err(error) => fail(report, &page, format!("{reason}; {error}")),
                },
                Err(unable) => ahead.note(&page, unable, report),
            }
        }
        damaged.extend(make_room(inner, cleared, job, report).await);
    }
}

/// Pages that were cleared, member by member, and why they found no room.
type Cleared = BTreeMap<Life, Vec<(DamagedPage, String)>>;

fn fail(report: &mut RepairReport, page: &DamagedPage, reason: String) {
    report.pages_failed.insert(page.id());
    report.fail(format!("page {} of member {}: {reason}", page.page.0, page.member));
}

/// Tells of pages that are damaged still.
pub(super) fn fail_left(left: DamagedPages, report: &mut RepairReport) {
    left.first.iter().for_each(|page| fail(report, page, page.error.to_string()));
    if left.more > 0 {
        report.failed += left.more - 1;
        report.fail(format!("{} more damaged pages: repair again", left.more));
    }
}

/// Clears a page; `false`: this damage is no more. All that the page may have held was seen elsewhere, for the damage of this mark,
/// or nothing is left of it.
async fn clear(inner: &Rc<Inner>, damaged: &DamagedPage, mark: &DamageMark) -> Result<bool, MemberError> {
    let topology = inner.topology();
    let Some(index) = damaged.index_in(&topology) else { return Ok(false) };
    let (table, _) = topology.members[index].voting().await?;
    Ok(table.clear_page(damaged.page, mark).await?)
}

/// Frees what pages referred to before they were cleared, which may be what fills the heap. Returns those of members where
/// something was freed: what one has made room for another may need.
async fn make_room(inner: &Rc<Inner>, cleared: Cleared, job: &Rc<Job>, report: &mut RepairReport) -> Vec<DamagedPage> {
    let (topology, mut again) = (inner.topology(), Vec::new());
    for pages in cleared.into_values() {
        let Some(index) = pages.first().and_then(|(page, _)| page.index_in(&topology)) else { continue };
        let homes: BTreeSet<TablePage> = pages.iter().map(|(page, _)| page.page).collect();
        let (freed, error) = collect_of(&topology.members[index], &homes, job).await;
        if freed > 0 {
            again.extend(pages.into_iter().map(|(page, _)| page));
            continue;
        }
        let young = || {
            format!(
                "what the page held before can be collected in {} minutes: `yagura kv scrub --collect --wait`, then repair again",
                AGE_MIN.as_secs() / 60
            )
        };
        let hint = error.unwrap_or_else(young);
        pages.into_iter().for_each(|(page, reason)| fail(report, &page, format!("{reason}; {hint}")));
    }
    again
}

/// A damaged page, and what the others hold of it.
struct Around {
    sight: Sight,
    seen: Seen,
    /// Whether every other home of its keys has told all it holds.
    all: bool,
    /// Whether none of them may know what it knew, and that is accepted.
    stale: bool,
}

/// Looks at a damaged page, and at what the others hold; `None`: it is good (again), or gone.
async fn look_around(
    inner: &Rc<Inner>,
    damaged: &DamagedPage,
    mark: &DamageMark,
    accept_stale: bool,
    job: &Rc<Job>,
) -> Result<Option<Around>, Unable> {
    let Some(sight) = look(inner, damaged).await.map_err(Unable::of)? else { return Ok(None) };
    let (topology, index) = (&sight.topology, sight.index);
    let Some(stretch) = topology.stretch_of(index, damaged.page) else { return Ok(None) };
    if !sight.image.is_within(mark) {
        return Err(Unable::Other("it has been damaged anew meanwhile: repair again".into()));
    }
    let seen = topology.see(stretch, |other| other != index, job).await;
    let whole = |member: usize| seen.is_whole(member);
    let knows = |half| topology.placement.know_what_was_held(index, whole, half);
    let half = HalfMayKnow::of(&topology.map);
    let (all, stale) = match (knows(half), knows(HalfMayKnow::default())) {
        (Ok(all), _) => (all, false),
        // Not all: what a sweep may have read of the page, nobody else need have.
        (Err(_), Ok(_)) if accept_stale => (false, true),
        (Err(needed), Err(_)) => {
            let reason = format!("{needed} other good replicas are needed to rebuild it, and are not there");
            return Err(Unable::Other(reason));
        }
        (Err(needed), Ok(_)) => {
            let reason = format!(
                "{needed} other good replicas are needed to rebuild it, and are not there: since a change was taken back, or lost \
                 members were taken in again, half of a key's replicas may be all that know what was stored last. If no more come \
                 back, and what this page alone knew may be gone: `yagura kv repair --accept-stale`"
            );
            return Err(Unable::Other(reason));
        }
    };
    Ok(Some(Around { sight, seen, all, stale }))
}

/// On what terms a page is rebuilt.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// The newest map was learnt since the mark of the damage was taken: that of this epoch, or a later one.
    pub(super) since: u64,
    /// Also where half of its keys' homes may be all that know of an operation, and it may be of that half.
    pub(super) accept_stale: bool,
}

/// Rebuilds one damaged page; the time of the damage of this mark has come. Returns whether what it alone knew may be gone; `None`:
/// it is good (again), or gone.
pub(super) async fn rebuild_page(
    inner: &Rc<Inner>,
    damaged: &DamagedPage,
    mark: &DamageMark,
    terms: Terms,
    job: &Rc<Job>,
) -> Result<Option<bool>, Unable> {
    for _ in 0..LOOKS_MAX {
        let Some((around, unsealed)) = look_unswept(inner, damaged, mark, terms, job).await? else { return Ok(None) };
        let Around { sight: Sight { topology, index, connection, image }, seen, stale, .. } = around;
        let member = &topology.members[index];
        let table = member.table().ok_or(Unable::of(MemberError::Away))?;
        let rebuilding = table.begin_rebuild(damaged.page, image, unsealed).await.map_err(Unable::of)?;
        let undecided = seen.undecided().filter_map(|(key, holders)| {
            let key = inner.key(key).ok()?;
            let homes = topology.homes(&key);
            // No ballot has gone by such as are no quorum without those that hold it.
            let may_be_passed = homes.is_quorum(|member| !holders.contains(&member));
            // A majority to decide may be what is missing where what was before is accepted.
            let can_decide = !stale || homes.is_quorum(|member| member != index && seen.is_whole(member));
            let is_wanted = homes.contains(index) && !rebuilding.holds(&key) && may_be_passed && can_decide;
            is_wanted.then_some(key)
        });
        let undecided: Vec<Key> = undecided.collect();
        for key in &undecided {
            let decided = inner.confirm(key).await;
            decided.map_err(|error| Unable::Other(format!("{key:?}: what was begun can't be decided: {error}")))?;
        }
        if !undecided.is_empty() {
            continue;
        }
        return match gather(inner, &topology, index, seen, rebuilding, job).await? {
            rebuilding if member.counts(connection).is_ok() => {
                rebuilding.finish().await.map_err(Unable::of).map(|()| Some(stale))
            }
            rebuilding => {
                rebuilding.give_up().await;
                Err(Unable::of(MemberError::Away))
            }
        };
    }
    Err(Unable::Other("operations on its keys were under way each time: repair again".into()))
}

/// Looks at a damaged page, and at what the others hold: where those are not all, in an epoch in which no sweep has read the page
/// before. Returns also whether none of this epoch must have sealed it.
async fn look_unswept(
    inner: &Rc<Inner>,
    damaged: &DamagedPage,
    mark: &DamageMark,
    Terms { since, accept_stale }: Terms,
    job: &Rc<Job>,
) -> Result<Option<(Around, bool)>, Unable> {
    let Some(mut around) = look_around(inner, damaged, mark, accept_stale, job).await? else { return Ok(None) };
    // Who follows no map sweeps nothing, and no sweep goes on while the pool changes.
    let source = inner.source().ok();
    let source = source.filter(|_| !around.all && around.sight.topology.map.state == State::Stable);
    if let Some(source) = source.as_ref().filter(|_| around.sight.topology.map.epoch <= since) {
        let raised = source.raise_epoch(around.sight.topology.map.epoch).await.map_err(Unable::Other)?;
        inner.adopt(raised).await;
        let Some(again) = look_around(inner, damaged, mark, accept_stale, job).await? else { return Ok(None) };
        if again.sight.topology.map.epoch <= since || again.sight.topology.map.state != State::Stable {
            return Err(Unable::Other("the pool's map changes: repair again".into()));
        }
        around = again;
    }
    if around.stale && around.sight.topology.map.state == State::Unclean {
        void_equalising(inner, around.sight.topology.map.epoch).await.map_err(Unable::Other)?;
    }
    Ok(Some((around, source.is_some())))
}

/// Has the change that cleans up in `epoch` end `unequal`: who has made homes equal may have read the page before.
async fn void_equalising(inner: &Rc<Inner>, epoch: u64) -> Result<(), String> {
    let noted = inner.source()?.note_unequal(epoch).await?;
    let is_noted = noted.epoch == epoch && noted.state == State::Unclean;
    inner.adopt(noted).await;
    if is_noted { Ok(()) } else { Err("the pool's map changes: repair again".into()) }
}

/// Adds what the page of member `index` is to hold, one value after the other. Where there is no room for one, the others are
/// read all the same: the page is cleared only if there is a good copy of each.
async fn gather(
    inner: &Rc<Inner>,
    topology: &Rc<Topology>,
    index: usize,
    seen: Seen,
    mut rebuilding: Rebuilding,
    job: &Job,
) -> Result<Rebuilding, Unable> {
    let mut full = None;
    for ((_, key), found) in seen.keys {
        let Ok(key) = inner.key(&key) else { continue };
        let homes = topology.homes(&key);
        let Some(timestamp) = found.iter().map(|(_, found)| found.timestamp).max() else { continue };
        if !homes.contains(index) || rebuilding.holds(&key) {
            continue;
        }
        // What it had promised, a majority had, and one of those asked knows: a lower ballot must find it again.
        let promise = found.iter().map(|(_, found)| found.promise).max().unwrap_or(Ballot::NONE);
        let holders = found.into_iter().filter(|(_, found)| found.timestamp == timestamp);
        let holders: Vec<_> = holders.map(|(index, found)| (topology.members[index].clone(), found)).collect();
        let Some(newest) = holders.first().map(|(_, found)| found.clone()) else { continue };
        let length = newest.content.value_len().unwrap_or(0);
        let bytes = inner.background_bytes.acquire(length).await;
        job.take(length as u64).await;
        let added = match fetch(inner, &key, holders).await {
            Ok(_) if full.is_some() => Ok(()),
            Ok(held) => rebuilding.add(&key, newest.record(held.value), promise).await.map_err(Unable::of),
            Err(_gone) => Err(Unable::Other(format!("no good copy of the value of {key:?}"))),
        };
        drop(bytes);
        match added {
            Ok(()) => {}
            Err(Unable::Full(reason)) => full = Some(reason),
            Err(unable) => {
                rebuilding.give_up().await;
                return Err(unable);
            }
        }
    }
    if let Some(reason) = full {
        rebuilding.give_up().await;
        return Err(Unable::Full(reason));
    }
    Ok(rebuilding)
}
