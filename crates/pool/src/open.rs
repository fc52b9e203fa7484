//! Opening a pool: reading its members' superblocks and agreeing on the map.
//!
//! The map is the one of the highest ballot (where members have gone on without the voters: of the latest such step,
//! [`Map::seized`]) by which a quorum of *its own* voters has accepted it ([`crate::agree`]). A map seen
//! on fewer may never be agreed on, and using it could split the pool; one that was in force and no longer is does no harm,
//! as the pages of the members tell hosts with an old map to look for the new one. A member counts only in the newest life and
//! from the highest mark on that any map names which was read ([`crate::lives`]). Members that are absent, damaged or formatted
//! again do not stop a pool that has its majority; they are named, and the caller gives them no vote.

use std::time::Duration;

use device::Namespace;
use engine::time::timeout;

use crate::error::Error;
use crate::geometry::{MAP_OFFSETS, SUPERBLOCK_OFFSETS, page_fits};
use crate::lives::Lives;
use crate::map::{Map, MapError, Member, MemberId};
use crate::slot::{MAP_BYTES_MAX, read, read_body};
use crate::superblock::{SUPERBLOCK_BYTES, Superblock, SuperblockError};
use crate::together::together;

/// A namespace to open, and what to call it in messages.
pub trait Label {
    /// The namespace's kind.
    type Namespace: Namespace;
    /// The namespace.
    fn namespace(&self) -> &Self::Namespace;
    /// Its name for people: an address or a path.
    fn label(&self) -> String;
}

impl<N: Namespace> Label for (String, N) {
    type Namespace = N;

    fn namespace(&self) -> &N {
        &self.1
    }

    fn label(&self) -> String {
        self.0.clone()
    }
}

/// What one namespace says of itself.
#[derive(Clone, Debug)]
pub struct Report {
    /// The good superblock that counts: of two of one life the newer, else copy A.
    pub superblock: Superblock,
    /// The map it names.
    pub map: Map,
    /// Why a copy was passed over, by copy (A, B).
    pub copies: [Option<SuperblockError>; 2],
    /// Whether what it says would survive the loss of a copy: the other one, if it is good as well, is the same. A step of the
    /// agreement that has reached one copy alone does not count yet.
    pub whole: bool,
}

/// How a member of the map was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It is the namespace of this index among those given, and has a vote.
    Present(usize),
    /// It was given, but has no vote; why.
    Refused(usize, String),
    /// None of the namespaces given is it.
    Absent,
}

/// How long one member may take to tell the map. Chosen: below the lease of hosts, which a member that hangs must not use up.
const INSPECT_TIME_MAX: Duration = Duration::from_secs(2);

/// How often a map is read that is written meanwhile. Guessed: one step takes several round trips.
const INSPECTIONS_MAX: usize = 8;

/// An opened pool.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The map a majority of its voters agrees on.
    pub map: Map,
    /// For each member of the map, in its order, what became of it.
    pub members: Vec<Presence>,
    /// A newer map that was seen on too few voters: it is being agreed on, or whoever proposed it was stopped.
    pub unsettled: Option<Map>,
}

/// Opens the pool that `namespaces` are members of; all must belong to `pool` if that is given, else to the same one.
/// Not all members need be among them: a majority of the voters is enough.
pub async fn open<L: Label>(namespaces: &[L], pool: Option<uuid::Uuid>) -> Result<Opened, Error> {
    let reports = together(namespaces.iter().map(|given| inspect_of(pool, given))).await;
    let reasons = |lives: &Lives| {
        let told = |(given, report): (&L, &Result<Report, Error>)| match report {
            // Device, superblock and map errors begin with the member's name.
            Err(error) => error.to_string(),
            Ok(report) => format!("{}: {}", given.label(), told(report, lives)),
        };
        namespaces.iter().zip(&reports).map(told).collect::<Vec<_>>().join("; ")
    };
    let good: Vec<_> =
        reports.iter().enumerate().filter_map(|(index, report)| Some((index, report.as_ref().ok()?))).collect();
    let Some((_, first)) = good.first() else {
        let reasons = reasons(&Lives::default());
        let strange =
            reports.into_iter().filter_map(Result::err).find(|error| matches!(error, Error::OtherPool { .. }));
        return Err(strange.unwrap_or(Error::NoMembers { reasons }));
    };
    let expected = first.superblock.pool;
    if let Some((index, other)) = good.iter().find(|(_, report)| report.superblock.pool != expected) {
        return Err(Error::OtherPool { member: namespaces[*index].label(), found: other.superblock.pool, expected });
    }
    // From the newest down: the first that a quorum of its own voters has accepted, by one ballot, is in force. Equal maps of
    // several ballots are not enough: between them another may have been built on what was there before.
    let mut candidates: Vec<&Report> = good.iter().map(|(_, report)| *report).collect();
    candidates.sort_by_key(|report| std::cmp::Reverse(report.map.order(report.superblock.accepted)));
    let mut lives = Lives::default();
    candidates.iter().rev().for_each(|report| lives.learn(&report.map));
    let carries = |this: &Report, member: &Member| {
        let is_it = |found: &Superblock| found.member == member.id && lives.counts(member, found);
        let same = |report: &Report| report.superblock.accepted == this.superblock.accepted && report.map == this.map;
        good.iter().any(|(_, report)| is_it(&report.superblock) && report.whole && same(report))
    };
    let newest = candidates.first().map_or(*first, |report| report);
    // What others have gone on from without the voters is none, even if nobody here tells whether their map is in force.
    let has_gone_on = |report: &Report| report.map.seized < newest.map.seized;
    let is_in_force =
        |report: &&&Report| !has_gone_on(report) && report.map.has_quorum(|member| carries(report, member));
    let Some(in_force) = candidates.iter().find(is_in_force) else {
        let voters: Vec<&Member> = newest.map.voter_indices().map(|index| &newest.map.members[index]).collect();
        let agreeing = voters.iter().filter(|member| carries(newest, member)).count();
        let (claimed, needed) = (claimed(namespaces, &reports, &voters), voters.len() / 2 + 1);
        let (voters, epoch, map) = (voters.len(), newest.map.epoch, Box::new(newest.map.clone()));
        let (reasons, half_made) = (reasons(&lives), voters - claimed < needed);
        return Err(Error::NoQuorum { agreeing, voters, needed, epoch, reasons, map, half_made });
    };
    let map = in_force.map.clone();
    let unsettled = (newest.map != map).then(|| newest.map.clone());
    let life_of = |member: &Member| match lives.of(member.id) {
        Some((incarnation, mark)) if incarnation == member.incarnation => (incarnation, mark),
        _ => (member.incarnation, member.mark),
    };
    let find = |member: &Member| {
        let matches = |given: &L| given.namespace().info().nguid == member.id.0;
        let Some(index) = namespaces.iter().position(matches) else { return Presence::Absent };
        match &reports[index] {
            Err(error) => Presence::Refused(index, told_of_member(error)),
            Ok(report) => {
                match vote(&map, (member, life_of(member)), namespaces[index].namespace(), &report.superblock) {
                    Ok(()) => Presence::Present(index),
                    Err(reason) => Presence::Refused(index, format!("{}: {reason}", namespaces[index].label())),
                }
            }
        }
    };
    let members = map.members.iter().map(find).collect();
    Ok(Opened { map, members, unsettled })
}

/// How many of the members are claimed only, as far as they were given.
fn claimed<L: Label>(namespaces: &[L], reports: &[Result<Report, Error>], members: &[&Member]) -> usize {
    let is_claimed = |(_, report): &(&L, &Result<Report, Error>)| matches!(report, Err(Error::Claimed { .. }));
    let claimed = namespaces.iter().zip(reports).filter(is_claimed);
    claimed.filter(|(given, _)| members.iter().any(|member| member.id.0 == given.namespace().info().nguid)).count()
}

/// Reads a member of `pool`, if that is known: then one that has gone to another pool is as good as away.
async fn inspect_of<L: Label>(pool: Option<uuid::Uuid>, given: &L) -> Result<Report, Error> {
    let label = given.label();
    let inspected = timeout(INSPECT_TIME_MAX, inspect(given.namespace(), &label)).await;
    let late = || device::Error::NotConnected(format!("no answer within {} s", INSPECT_TIME_MAX.as_secs()));
    let report = inspected.unwrap_or_else(|_| Err(Error::device(label.clone(), late())))?;
    match pool.filter(|expected| report.superblock.pool != *expected) {
        Some(expected) => Err(Error::OtherPool { member: label, found: report.superblock.pool, expected }),
        None => Ok(report),
    }
}

/// What is wrong with a namespace that is known to be a member.
fn told_of_member(error: &Error) -> String {
    match error {
        Error::Superblock { source, .. } => format!("{error}{}", source.way_out()),
        _ => error.to_string(),
    }
}

/// What a voter that can be read says, and what hinders it from being counted.
fn told(report: &Report, lives: &Lives) -> String {
    let Report { superblock, map, whole, .. } = report;
    let forgotten = lives.of(superblock.member).map(|life| superblock.is_in_life(life));
    match forgotten {
        Some(Err(error)) => format!("epoch {}, but {error}", map.epoch),
        _ if !whole => format!("epoch {}, but the copies of its superblock differ: it is being written", map.epoch),
        _ => format!("epoch {}", map.epoch),
    }
}

/// Whether a member of `map` that was away may vote again: still the same life of the same member of the same pool. Returns the
/// epoch of the map that its superblock names.
pub async fn check_member<N: Namespace>(namespace: &N, map: &Map, index: usize) -> Result<u64, Error> {
    let member = &map.members[index];
    let label = format!("member {}", member.id);
    let newest = newest_copy(namespace, &label).await;
    let (superblock, ..) = newest.map_err(|error| match error {
        Error::Superblock { member, source } if source.is_of_others() => {
            Error::Unfit { member, reason: format!("{source}{}", source.way_out()) }
        }
        other => other,
    })?;
    if superblock.pool != map.pool {
        return Err(Error::OtherPool { member: label, found: superblock.pool, expected: map.pool });
    }
    vote(map, (member, (member.incarnation, member.mark)), namespace, &superblock)
        .map_err(|reason| Error::Unfit { member: label, reason })?;
    Ok(superblock.epoch)
}

/// Whether a member that was given up as lost is back with what it held.
pub async fn check_returned<N: Namespace>(namespace: &N, map: &Map, index: usize) -> Result<(), Error> {
    let mut with = map.clone();
    with.members[index].lost = false;
    check_member(namespace, &with, index).await.map(|_epoch| ())
}

/// Reads a namespace's superblock and the map it names. `label` names it in errors.
///
/// Steps of the agreement may come between the two, and write where the map was: then the superblock is another one as well, and
/// both are read again.
pub async fn inspect<N: Namespace>(namespace: &N, label: &str) -> Result<Report, Error> {
    let mut found = newest_copy(namespace, label).await?;
    for _ in 0..INSPECTIONS_MAX {
        let error = match map_of(namespace, label, &found.0).await {
            Ok(map) => return Ok(Report { superblock: found.0, map, copies: found.1, whole: found.2 }),
            Err(error @ Error::Map { .. }) => error,
            Err(error) => return Err(error),
        };
        let before = std::mem::replace(&mut found, newest_copy(namespace, label).await?);
        if found.0 == before.0 {
            return Err(error);
        }
    }
    let source = device::Error::NotConnected("its map changes all the time; try again".into());
    Err(Error::device(label, source))
}

/// Reads the map that a superblock names.
async fn map_of<N: Namespace>(namespace: &N, label: &str, superblock: &Superblock) -> Result<Map, Error> {
    // What a creation leaves that is under way or was killed (`claim`): no map has no bytes.
    if superblock.map_length == 0 {
        return Err(Error::Claimed { member: label.to_owned(), pool: superblock.pool });
    }
    let map_error = |source| Error::Map { member: label.to_owned(), source };
    let (offset, length) = (superblock.map_offset, superblock.map_length);
    if !MAP_OFFSETS.contains(&offset) || length as usize > MAP_BYTES_MAX {
        return Err(map_error(MapError::Place { offset, length }));
    }
    let body = read_body(namespace, offset, length as usize).await.map_err(|source| Error::device(label, source))?;
    let map = Map::decode(&body, superblock.map_checksum).map_err(map_error)?;
    if map.pool != superblock.pool || map.epoch != superblock.epoch || map.page_size != superblock.page_size {
        let text = "it contradicts its superblock (pool, epoch or page size)";
        return Err(map_error(MapError::Invalid(text.into())));
    }
    Ok(map)
}

/// Whether a member that is in this `life` of the map's has a vote.
fn vote<N: Namespace>(
    map: &Map,
    (member, life): (&Member, (u64, u64)),
    namespace: &N,
    found: &Superblock,
) -> Result<(), String> {
    if member.lost {
        let back = match member.left_behind {
            true => "",
            false => {
                "if it is back with all that it held, `yagura pool rebalance --returned` takes it in again; otherwise "
            }
        };
        return Err(format!(
            "it was given up as lost: {back}`yagura pool replace` or `remove` takes it out, `yagura kv repair` begins it anew"
        ));
    }
    found.is_in_life(life).map_err(|error| error.to_string())?;
    still_fits(map, member, namespace)
}

/// Whether a namespace is still as large as the member was made.
pub(crate) fn still_fits<N: Namespace>(map: &Map, member: &Member, namespace: &N) -> Result<(), String> {
    let info = namespace.info();
    if info.bytes() < member.size {
        return Err(format!("it has shrunk from {} to {} bytes", member.size, info.bytes()));
    }
    if info.block_size != member.block_size {
        return Err(format!("its blocks have {} bytes, no longer {}", info.block_size, member.block_size));
    }
    page_fits(&info, map.page_size)
}

/// The copy that counts ([`Superblock::better`]), and whether the other, if it is good, is the same. An error of copy A unless only
/// B says more than blank.
///
/// Copy A is written first, so it is read last: if it is then what copy B was before, both are.
pub(crate) async fn newest_copy<N: Namespace>(
    namespace: &N,
    label: &str,
) -> Result<(Superblock, [Option<SuperblockError>; 2], bool), Error> {
    let mut good = [None, None];
    let mut copies = [None, None];
    for copy in [1, 0] {
        match superblock_copy(namespace, SUPERBLOCK_OFFSETS[copy]).await {
            Ok(Ok(found)) => good[copy] = Some(found),
            Ok(Err(error)) => copies[copy] = Some(error),
            // One copy on a bad block must not hide the other; a namespace that does not answer has neither.
            Err(device::Error::ReadFault(text)) => copies[copy] = Some(SuperblockError::Damaged(text)),
            Err(source) => return Err(Error::device(label, source)),
        }
    }
    // A newer version's superblock is in force even where the other copy is still ours: it was written first.
    let newer = copies.iter().flatten().find(|error| matches!(error, SuperblockError::Newer { .. }));
    // What stands at its start says whose it is now, whatever has stayed of the other copy.
    let others = copies[0].iter().find(|error| error.is_of_others());
    if let Some(source) = newer.or(others) {
        return Err(Error::Superblock { member: label.into(), source: source.clone() });
    }
    let [first, second] = good;
    let whole = first.is_none() || second.is_none() || first == second;
    match Superblock::better(first, second) {
        Some(best) => Ok((best, copies, whole)),
        None => {
            let [first, second] = copies;
            let first = first.filter(|error| *error != SuperblockError::Blank);
            let source = first.or(second).unwrap_or(SuperblockError::Blank);
            Err(Error::Superblock { member: label.into(), source })
        }
    }
}

/// Reads one copy of the superblock: what the namespace said, then what the bytes say. One transfer alone is no proof that
/// they are somebody else's.
async fn superblock_copy<N: Namespace>(
    namespace: &N,
    offset: u64,
) -> Result<Result<Superblock, SuperblockError>, device::Error> {
    let read = async || {
        let bytes = read(namespace, offset, SUPERBLOCK_BYTES).await?;
        Ok(Superblock::decode(&bytes, MemberId(namespace.info().nguid)))
    };
    match read().await? {
        Err(error) if error.is_of_others() => read().await,
        decoded => Ok(decoded),
    }
}
