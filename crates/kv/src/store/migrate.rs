//! Migration: in the joint epoch, every key comes to its new homes.
//!
//! Invariant: what is stored on the new homes of a key is the newest of so many of its old homes that they meet every
//! majority, *read from pages that were sealed before*. Whatever an operation of an older epoch has shown or stored at a
//! majority of old homes, it did at one of these members before the seal; so it is among what is read here. To count a page
//! that is not sealed would lose a put whose last store lands there after it was read.
//!
//! Operations of the joint epoch need no care: each meets a majority of the new homes by itself.
//!
//! Ballots: one that is left half done on an old home must not come to light behind a conditional operation that the new
//! homes alone know of. Three rules see to it:
//! - rounds of a newer epoch are higher, so that what is decided after the change outranks what was left before it;
//! - what has a ballot is brought to new homes by that ballot, where it could have been decided by it: at a majority of the
//!   old homes, or where none of those asked has promised a higher one (of two operations on the same entry the higher
//!   ballot would win, and the lower one, carried over alone, had been seen);
//! - else it is decided anew, at a majority of both sets, above every promise (`Inner::confirm`).

use std::rc::Rc;
use std::sync::atomic::Ordering;

use engine::sync::Semaphore;
use engine::time::{self, Instant};
use pool::TablePage;

use super::change::{OVERTAKEN, STRETCH_PAUSE, STRETCH_TRIES};
use super::fetch::fetch;
use super::member::{Member, MemberError};
use super::quorum::Sets;
use super::scan::{Seen, Stretch};
use super::topology::Topology;
use super::{Inner, OPERATION_TIME_MAX, count};
use crate::page::Entry;
use crate::table::{Found, Known, Outcome, PageImage, Reply, Request, TableError};
use crate::types::{Ballot, Key, Timestamp};

/// Keys carried over at once.
const KEYS_AT_ONCE: usize = 16;
/// Looks at one key before the migration gives up.
const LOOKS_MAX: usize = 50;

/// Seals a stretch of the old homes and carries its keys to their new ones.
pub(super) async fn migrate(inner: &Rc<Inner>, topology: &Rc<Topology>, stretch: Stretch) -> Result<(), String> {
    let mut tries = 0;
    let (start, seen) = loop {
        let start = time::now();
        let seen = see_sealed(inner, topology, stretch).await?;
        // Every key, seen or not: one that nobody shows may be a put that a page out of reach has taken.
        if topology.placement.meets_old_everywhere(|member| seen.is_whole(member)) {
            break (start, seen);
        }
        tries += 1;
        if tries == STRETCH_TRIES {
            return Err(topology.missing(&seen));
        }
        time::sleep(STRETCH_PAUSE).await;
    };
    let turns = Semaphore::new(KEYS_AT_ONCE);
    let mut tasks = Vec::new();
    for ((_, bytes), found) in &seen.keys {
        let Ok(key) = inner.key(bytes) else { continue };
        let homes = topology.homes(&key);
        if homes.iter().all(|home| home.sets.meets(Sets::OLD)) {
            continue;
        }
        let of = |member: usize| found.iter().find(|(index, _)| *index == member).map(|(_, found)| found.clone());
        let members = homes.iter().map(|home| usize::from(home.member)).filter(|&member| seen.is_whole(member));
        let known: Vec<_> = members.map(|member| (member, of(member).unwrap_or(Found::NOTHING))).collect();
        let turn = turns.acquire(1).await;
        let (inner, topology) = (inner.clone(), topology.clone());
        tasks.push(engine::task::spawn(async move {
            let carried = carry(&inner, &topology, &key, start, known).await;
            drop(turn);
            carried
        }));
    }
    for task in tasks {
        task.await?;
    }
    Ok(())
}

/// Why a key was not carried over: look again.
enum NotYet {
    Overtaken,
    Reason(String),
}

/// Carries one key over, on what was `known` from `start` on, and if that does not do, on new looks.
async fn carry(
    inner: &Rc<Inner>,
    topology: &Rc<Topology>,
    key: &Key,
    mut start: Instant,
    mut known: Vec<(usize, Found)>,
) -> Result<(), String> {
    count(&inner.stats.moved_keys);
    let mut reason = String::new();
    for _ in 0..LOOKS_MAX {
        match carry_known(inner, topology, key, &known).await {
            // Later, what it counts on may have been lost and repaired away: as for any operation.
            Ok(()) if start.elapsed() <= OPERATION_TIME_MAX => return Ok(()),
            Ok(()) => reason = "too slow".into(),
            Err(NotYet::Overtaken) => return Err(OVERTAKEN.into()),
            Err(NotYet::Reason(why)) => reason = why,
        }
        time::sleep(STRETCH_PAUSE).await;
        start = time::now();
        known = look(topology, key).await;
    }
    Err(format!("{key:?}: {reason}"))
}

/// What the homes hold now: the new ones, and those of the old ones whose page is sealed.
async fn look(topology: &Rc<Topology>, key: &Key) -> Vec<(usize, Found)> {
    let mut known = Vec::new();
    for home in topology.homes(key).iter() {
        let member = &topology.members[usize::from(home.member)];
        if let Ok((image, found)) = member.read(key).await
            && (!home.sets.meets(Sets::OLD) || image.seal() >= topology.map.epoch)
        {
            known.push((member.index, found));
        }
    }
    known
}

async fn carry_known(
    inner: &Rc<Inner>,
    topology: &Rc<Topology>,
    key: &Key,
    known: &[(usize, Found)],
) -> Result<(), NotYet> {
    let homes = topology.homes(key);
    let sets_of = |member: usize| homes.iter().find(|home| usize::from(home.member) == member).map(|home| home.sets);
    let answered = known.iter().filter_map(|(member, _)| sets_of(*member));
    if !homes.quorum().is_met_in(Sets::OLD, answered) {
        return Err(NotYet::Reason("a majority of its old homes is out of reach".into()));
    }
    let newest = known.iter().map(|(_, found)| found).max_by_key(|found| found.timestamp);
    let Some(newest) = newest.filter(|found| found.timestamp != Found::NOTHING.timestamp) else { return Ok(()) };
    let at = |member: usize| topology.members[member].clone();
    let holds = |found: &Found| found.timestamp == newest.timestamp;
    let holders = known.iter().filter(|(_, found)| holds(found));
    let length = newest.content.value_len().unwrap_or(0);
    let _bytes = inner.background_bytes.acquire(length).await;
    let value = fetch(inner, key, holders.map(|(member, found)| (at(*member), found.clone())).collect()).await;
    let value = value.map_err(|_gone| NotYet::Reason("no good copy of its value".into()))?.value;
    let record = newest.record(value);
    let bytes = (key.bytes().len() + record.value.as_ref().map_or(0, crate::Value::len)) as u64;
    let sets_holding = || known.iter().filter(|(_, found)| holds(found)).filter_map(|(member, _)| sets_of(*member));
    let outranked = known.iter().any(|(_, found)| found.promise > newest.timestamp.ballot);
    let undecided = newest.timestamp.ballot != Ballot::NONE && outranked;
    if undecided && !homes.quorum().is_majority_of_old(sets_holding()) {
        return confirm(inner, key, newest.timestamp).await;
    }
    let write_back = Request::write_back(record);
    let mut done: Vec<Sets> = Vec::new();
    let mut failures = Vec::new();
    for home in homes.iter().filter(|home| home.sets.meets(Sets::NEW)) {
        let member = at(home.member.into());
        if known.iter().any(|(index, found)| *index == member.index && holds(found)) {
            done.push(home.sets);
            continue;
        }
        match member.apply(key, &write_back, Known::default()).await {
            // A conditional operation of this epoch is under way, or was left half done.
            Ok(Reply { outcome: Outcome::Refused(_), .. }) => return confirm(inner, key, newest.timestamp).await,
            Ok(_) => {
                done.push(home.sets);
                if !home.sets.meets(Sets::OLD) {
                    count(&inner.stats.moved_copies);
                    inner.stats.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
            }
            Err(error) if error.sealed().is_some() => return Err(NotYet::Overtaken),
            Err(error) => {
                inner.mark_stale(&member);
                failures.push(format!("member {}: {error}", member.index));
            }
        }
    }
    if homes.quorum().is_met_in(Sets::NEW, done.into_iter()) {
        return Ok(());
    }
    Err(NotYet::Reason(failures.join("; ")))
}

/// Has a key decided anew. Its own look may count an old home that was not sealed when those were that showed `seen`, and miss
/// what they know: then another look is due.
async fn confirm(inner: &Rc<Inner>, key: &Key, seen: Timestamp) -> Result<(), NotYet> {
    match inner.confirm(key).await {
        Ok(decided) if decided >= seen => Ok(()),
        Ok(_) => Err(NotYet::Reason("written meanwhile".into())),
        Err(error) => Err(NotYet::Reason(error.to_string())),
    }
}

/// Reads a stretch on all members, and seals it on those of the old placement. A member is whole only if all its pages of
/// the stretch are good, and sealed if they have to be.
async fn see_sealed(inner: &Rc<Inner>, topology: &Rc<Topology>, stretch: Stretch) -> Result<Seen, String> {
    let mut tasks = Vec::new();
    for member in &topology.members {
        let seals = topology.map.members[member.index].old.is_some();
        let (inner, member) = (inner.clone(), member.clone());
        tasks.push(engine::task::spawn(async move {
            let epoch = member.vote().await?;
            let mut pages = member.pages(stretch).await?;
            if seals {
                member.seal(&inner, &mut pages, |_| true).await?;
            }
            member.counts(epoch)?;
            Ok(pages)
        }));
    }
    let mut seen = Seen::nothing(topology.members.len());
    for (index, task) in tasks.into_iter().enumerate() {
        match task.await {
            Ok(pages) => topology.gather(index, stretch, pages, &mut seen),
            Err(error) if MemberError::sealed(&error).is_some() => return Err(OVERTAKEN.into()),
            Err(error) => tracing::debug!(member = index, %error, "a member was passed over"),
        }
    }
    Ok(seen)
}

impl Member {
    /// Seals pages that were just read, each in place of its older image, and drops what does not stay. Damaged ones stay
    /// as they are.
    pub(super) async fn seal(
        &self,
        inner: &Inner,
        pages: &mut [(TablePage, Result<PageImage, TableError>)],
        stays: impl Fn(&Entry<'_>) -> bool + Clone + 'static,
    ) -> Result<(), MemberError> {
        let table = self.table().ok_or(MemberError::Away)?;
        let seal = |(page, image): &(TablePage, Result<PageImage, TableError>)| {
            let image = image.as_ref().ok()?.clone();
            let (table, page, stays) = (table.clone(), *page, stays.clone());
            Some(engine::task::spawn(async move { table.seal_and_drop(page, Some(image), stays).await }))
        };
        let tasks: Vec<_> = pages.iter().map(seal).collect();
        for ((_, image), task) in pages.iter_mut().zip(tasks) {
            let Some(task) = task else { continue };
            match task.await {
                Ok(sealed) => {
                    inner.stats.sealed_pages.fetch_add(sealed.written.into(), Ordering::Relaxed);
                    inner.stats.dropped.fetch_add(sealed.dropped as u64, Ordering::Relaxed);
                    *image = Ok(sealed.image);
                }
                // Damaged meanwhile.
                Err(error @ (TableError::Page { .. } | TableError::CopyDamaged { .. })) => *image = Err(error),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
