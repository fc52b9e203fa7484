//! `yagura pool status`.

use std::time::Duration;

use pool::balance::loads;
use pool::{Map, Ring, Side, State};
use serde::Serialize;

use crate::cli::PoolStatusArgs;
use crate::exit::Failure;
use crate::size::Size;
use crate::{client, output};

/// A pool, as it is shown.
#[derive(Serialize, Debug)]
pub struct PoolReport {
    pool: String,
    epoch: u64,
    /// `stable`, `joint` or `unclean`.
    state: String,
    /// The change under way.
    change: Option<ChangeReport>,
    replicas: u8,
    spread: String,
    page_size: u32,
    members: Vec<MemberReport>,
    /// What did not answer, or could not be used.
    troubles: Vec<String>,
}

/// A change under way.
#[derive(Serialize, Debug)]
pub struct ChangeReport {
    kind: String,
    /// It was taken back: what was before it is being restored.
    taken_back: bool,
    phase: String,
    /// How much of the phase is done.
    percent: f64,
    moved_bytes: u64,
    /// How long ago progress was last noted; none was yet: absent.
    noted_seconds_ago: Option<u64>,
}

#[derive(Serialize, Debug)]
struct MemberReport {
    nguid: String,
    address: String,
    nqn: String,
    nsid: u32,
    bytes: u64,
    weight: u32,
    /// Its share of all replicas of keys, in percent.
    percent: f64,
    zone: String,
    rack: String,
    machine: String,
    drive: String,
    /// `in use`, `joining`, `leaving`, `drained`, `renewed` (begun anew and being filled) or `lost` (given up).
    part: String,
    /// Whether it votes on the pool's map.
    voter: bool,
    connected: bool,
    /// Whether it counts in quorums.
    votes: bool,
}

pub async fn run(args: &PoolStatusArgs) -> Result<(), Failure> {
    let reached = client::reach(&client::way(&args.address.host)?, &args.address).await?;
    let store = reached.store();
    let waited = engine::time::timeout(crate::nvme::CONNECT_TIME, store.list(b"", 0, 1)).await;
    if !matches!(waited, Ok(Ok(_))) {
        tracing::warn!("no majority of the members answers");
    }
    let members = store.ask_members(crate::nvme::CONNECT_TIME).await;
    let state = |index: usize| members.get(index).map_or((false, false), |member| (member.connected, member.votes));
    let mut report = report(&reached.map, state, reached.troubles.clone());
    for (member, found) in report.members.iter_mut().zip(&reached.members) {
        if let Some(found) = found {
            member.address = found.address.clone();
        }
    }
    output::report(args.common.json, &report, describe)?;
    match report.members.iter().all(|member| member.votes) {
        true => Ok(()),
        false => Err(Failure::check("not every member has a vote")),
    }
}

/// What is shown of a map; `state` tells of a member whether it is connected, and has a vote.
pub fn report(map: &Map, state: impl Fn(usize) -> (bool, bool), troubles: Vec<String>) -> PoolReport {
    let loads = loads(map, &Ring::new(map));
    let member = |(index, member): (usize, &pool::Member)| {
        let (connected, votes) = state(index);
        let pool::Domain { zone, rack, machine, drive } = member.domain.clone();
        let part = match (member.seat(Side::Old), member.seat(Side::New)) {
            (None, Some(_)) if map.state == State::Joint => "joining",
            _ if member.lost => "lost",
            _ if member.renewed => "renewed",
            (_, None) => "leaving",
            (_, Some(seat)) if seat.weight == 0 => "drained",
            _ => "in use",
        };
        MemberReport {
            nguid: member.id.to_string(),
            address: member.addresses.first().cloned().unwrap_or_default(),
            nqn: member.nqn.clone(),
            nsid: member.nsid,
            bytes: member.size,
            weight: member.weight,
            percent: loads[index] * 100.0,
            zone,
            rack,
            machine,
            drive,
            part: part.into(),
            voter: map.voter_indices().any(|voter| voter == index),
            connected,
            votes,
        }
    };
    PoolReport {
        pool: map.pool.to_string(),
        epoch: map.epoch,
        state: map.state.to_string(),
        change: map.change.as_ref().map(report_change),
        replicas: map.replicas,
        spread: map.spread.to_string(),
        page_size: map.page_size,
        members: map.members.iter().enumerate().map(member).collect(),
        troubles,
    }
}

fn report_change(change: &pool::Change) -> ChangeReport {
    let noted = (change.noted_ms > 0).then(|| Duration::from_millis(change.noted_ms));
    ChangeReport {
        kind: change.kind.to_string(),
        taken_back: change.taken_back,
        phase: change.phase.to_string(),
        percent: f64::from(change.done) / 10.0,
        moved_bytes: change.moved_bytes,
        noted_seconds_ago: noted.map(|noted| engine::time::unix_time().saturating_sub(noted).as_secs()),
    }
}

/// The same in words.
pub fn describe(report: &PoolReport) -> String {
    let PoolReport { pool, epoch, state, replicas, spread, page_size, members, troubles, change } = report;
    let mut text = format!(
        "pool {pool}, epoch {epoch}, {state}: {replicas} replicas on different {spread}s, pages of {page_size}\n"
    );
    if let Some(ChangeReport { kind, taken_back, phase, percent, moved_bytes, noted_seconds_ago }) = change {
        let noted = noted_seconds_ago.map_or("no progress noted yet".into(), |ago| format!("noted {ago} s ago"));
        let back = if *taken_back { " taken back" } else { "" };
        text += &format!(
            "change: {kind}{back}, {phase} {percent:.1} % done, {} moved, {noted}; if nobody works on it: `yagura pool rebalance`\n",
            Size(*moved_bytes)
        );
    }
    for member in members {
        let MemberReport { nguid, address, nqn, nsid, bytes, weight, part, percent, .. } = member;
        let state = match (member.connected, member.votes) {
            (true, true) => part,
            _ if part == "lost" => "given up as lost: replace or remove it",
            (true, false) => "connected, without a vote",
            (false, _) => "not connected",
        };
        let voter = if member.voter { ", votes on the map" } else { "" };
        text += &format!(
            "member {nguid} at {address}: {state}; {}, weight {weight}, {percent:.1} % of the keys{voter}, {nqn} namespace {nsid}\n",
            Size(*bytes)
        );
    }
    for trouble in troubles {
        text += &format!("  {trouble}\n");
    }
    text
}
