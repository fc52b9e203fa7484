//! `yagura pool status`.

use std::collections::BTreeSet;
use std::time::Duration;

use kv::Store;
use kv::resp::execute::together;
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
    /// What errors, `kv scrub` and `kv repair` call it.
    number: usize,
    nguid: String,
    address: String,
    nqn: String,
    nsid: u32,
    bytes: u64,
    /// About how many of them hold something; absent where it does not answer, or nothing of it can be read.
    used_bytes: Option<u64>,
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
    let used = together((0..reached.members.len()).map(|index| used_bytes(&store, &reached.map, index))).await;
    for ((member, found), used) in report.members.iter_mut().zip(&reached.members).zip(used) {
        if let Some(found) = found {
            member.address = found.address.clone();
        }
        member.used_bytes = used;
    }
    output::report(args.common.json, &report, describe)?;
    match report.members.iter().all(|member| member.votes) {
        true => Ok(()),
        false => Err(Failure::check("not every member has a vote")),
    }
}

/// About what a member holds, from a sample of its pages; `None`: it does not say so in time, or none can be read.
async fn used_bytes(store: &Store, map: &Map, index: usize) -> Option<u64> {
    let usage = engine::time::timeout(crate::nvme::CONNECT_TIME, store.usage(index)).await.ok()?.ok()?;
    Some(usage.table_bytes_used + usage.heap_pages_used * u64::from(map.page_size))
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
            number: index,
            nguid: member.id.to_string(),
            address: member.addresses.first().cloned().unwrap_or_default(),
            nqn: member.nqn.clone(),
            nsid: member.nsid,
            bytes: member.size,
            used_bytes: None,
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
        "pool {pool}, epoch {epoch}, {state}\n{} on different {spread}s (as the members were given), pages of {page_size}\n",
        output::many(u64::from(*replicas), "replica")
    );
    if let Some(ChangeReport { kind, taken_back, phase, percent, moved_bytes, noted_seconds_ago }) = change {
        let noted = noted_seconds_ago.map_or("no progress noted yet".into(), |ago| format!("noted {ago} s ago"));
        let back = if *taken_back { " taken back" } else { "" };
        text += &format!(
            "change: {kind}{back}, {phase} {percent:.1} % done, {} moved, {noted};\n\
             if nobody works on it: `yagura pool rebalance`\n",
            Size(*moved_bytes)
        );
    }
    text += &table(members);
    for trouble in troubles {
        text += &format!("  {trouble}\n");
    }
    text
}

/// The members in lines of 80 columns, where their addresses are those of IPv4; `*`: it votes on the map.
fn table(members: &[MemberReport]) -> String {
    let weights: BTreeSet<u32> = members.iter().map(|member| member.weight).collect();
    // As many digits as tell them apart, as commands take them.
    let digits = (8..32).find(|&digits| {
        let beginnings: BTreeSet<&str> = members.iter().map(|member| &member.nguid[..digits]).collect();
        beginnings.len() == members.len()
    });
    let mut rows = vec![["#", "member", "address", "state", "size", "used", "keys", "weight"].map(str::to_owned)];
    for member in members {
        let state = match (member.connected, member.votes) {
            (true, true) => &member.part,
            _ if member.part == "lost" => "lost",
            (true, false) => "no vote",
            (false, _) => "away",
        };
        rows.push([
            format!("{}{}", member.number, if member.voter { "*" } else { " " }),
            member.nguid[..digits.unwrap_or(32)].to_owned(),
            member.address.clone(),
            state.to_owned(),
            Size(member.bytes).to_string(),
            member.used_bytes.map_or("?".to_owned(), |bytes| Size(bytes).to_string()),
            format!("{:.1} %", member.percent),
            member.weight.to_string(),
        ]);
    }
    let columns = if weights.len() > 1 { 8 } else { 7 };
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |row: &[String; 8]| {
        let cell = |(column, text): (usize, &String)| match column {
            1..=3 => format!("{text:<0$}", width(column)),
            _ => format!("{text:>0$}", width(column)),
        };
        let cells: Vec<String> = row.iter().take(columns).enumerate().map(cell).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let mut text: String = rows.iter().map(line).collect();
    text += "*: votes on the map\n";
    let hints = [
        (
            "lost",
            "lost: given up; if it is back with all that it held, `yagura pool rebalance\n  --returned` takes it in again; otherwise \
             replace or remove it, or `yagura kv\n  repair` begins it anew\n",
        ),
        ("no vote", "no vote: connected, but not as the map knows it; the reasons are below\n"),
        ("away", "away: not connected\n"),
    ];
    for (_, hint) in hints.iter().filter(|(state, _)| rows.iter().any(|row| row[3] == *state)) {
        text += hint;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: usize, weight: u32) -> MemberReport {
        let text = String::new;
        MemberReport {
            number,
            nguid: format!("{:032x}", (0xAB00_0000_u128 + number as u128) << 96),
            address: format!("255.255.255.{number}:65535"),
            nqn: text(),
            nsid: 1,
            bytes: (3 << 40) / 7,
            used_bytes: (number > 0).then_some(7_777_777),
            weight,
            percent: 33.3,
            zone: text(),
            rack: text(),
            machine: text(),
            drive: text(),
            part: "leaving".into(),
            voter: number == 1,
            connected: number > 0,
            votes: number > 0,
        }
    }

    #[test]
    fn members_stand_in_a_table_of_eighty_columns_by_their_numbers() {
        let members: Vec<MemberReport> = (0..12).map(|number| member(number, 100)).collect();
        let table = table(&members);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{table}");
        assert!(lines[2].starts_with(" 1*") && lines[2].contains("7.4 MiB"), "{table}");
        assert!(
            lines[1].contains("away") && lines[1].contains('?') && table.contains("away: not connected"),
            "{table}"
        );
        let told: BTreeSet<&str> = lines[1..13].iter().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(told.len(), 12, "their beginnings tell them apart");
    }

    #[test]
    fn of_a_lost_member_it_is_said_first_how_it_comes_back() {
        let lost = MemberReport { part: "lost".into(), ..member(1, 100) };
        let table = table(&[member(0, 100), lost]);
        let place = |what: &str| table.find(what).unwrap_or_else(|| panic!("no {what} in {table}"));
        assert!(place("--returned") < place("replace or remove") && place("--returned") < place("begins it anew"));
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn weights_are_shown_where_they_differ() {
        assert!(!table(&[member(0, 100), member(1, 100)]).contains("weight"));
        assert!(table(&[member(0, 100), member(1, 50)]).contains("weight"));
    }
}
