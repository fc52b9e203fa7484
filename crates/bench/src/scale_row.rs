//! `yagura bench scale`: what placement costs and how even it is, with ten members and with a thousand.
//!
//! Balance and what a change moves are worked out exactly, on the rings; only the lookups are timed.

use std::hint::black_box;
use std::time::Instant;

use pool::balance::{imbalance, moved};
use pool::map::MAP_FORMAT;
use pool::{Domain, KeyHash, Level, Map, Member, MemberId, Request, Ring, Side, State};

use crate::figures::{Aim, Ratio, Row};
use crate::machine;
use crate::progress::Progress;

/// Lookups of a round. A few tens of ms: long against the clock's resolution.
const LOOKUPS: usize = 1_000_000;
/// What a lookup of a key's members may take.
const LOOKUP_NS_ALLOWED: f64 = 100.0;
/// What may move, over the least possible.
const MOVED_ALLOWED: f64 = 1.1;
/// Replicas of each key.
const REPLICAS: u8 = 3;
/// Machines in a rack, where there are racks.
const RACK: usize = 10;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of members.
    pub members: Vec<usize>,
    /// Rounds; each has another pool, with other ids and another seed.
    pub rounds: usize,
}

/// Runs the row.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let mut ratios = Vec::new();
    for &members in &options.members {
        progress.begin("pools", options.rounds);
        let mut rounds = Vec::new();
        for round in 0..options.rounds {
            rounds.push(measure(members, round as u64)?);
            progress.step()?;
        }
        progress.end();
        let of = |name: &str, figure: fn(&Figures) -> f64| {
            Ratio::of(format!("{members} members: {name}"), &rounds.iter().map(figure).collect::<Vec<_>>())
        };
        ratios.extend([
            of("keys on the fullest member / mean", |f| f.imbalance),
            of("moved by add / least", |f| f.added).aim(Aim::AtMost, MOVED_ALLOWED),
            of("moved by remove / least", |f| f.removed).aim(Aim::AtMost, MOVED_ALLOWED),
            of("moved by replace / least", |f| f.replaced).aim(Aim::AtMost, MOVED_ALLOWED),
            of("moved by set-weight / least", |f| f.weighed).aim(Aim::AtMost, MOVED_ALLOWED),
            of("keys on the added member / its fair share", |f| f.fair),
            of("bytes of the map", |f| f.map_bytes),
            of("bytes of the ring in memory", |f| f.ring_bytes),
            of("ns per lookup", |f| f.lookup_ns).aim(Aim::AtMost, LOOKUP_NS_ALLOWED),
            of("ns per lookup with the hash of a key of 16 bytes", |f| f.hashed_ns).aim(Aim::AtMost, LOOKUP_NS_ALLOWED),
        ]);
    }
    Ok(Row {
        row: "scale".to_owned(),
        title: "placement: balance, data moved, sizes, lookups".to_owned(),
        conditions: vec![
            machine::describe(),
            format!("{REPLICAS} replicas; members of equal weight, {RACK} to a rack, replicas on different machines"),
            "balance and what moves are exact; least: the sum of what members gain, which any placement with these loads moves"
                .to_owned(),
            format!("{} rounds, another pool in each; {LOOKUPS} lookups of random keys", options.rounds),
        ],
        sides: Vec::new(),
        ratios, curves: Vec::new() })
}

struct Figures {
    imbalance: f64,
    added: f64,
    removed: f64,
    replaced: f64,
    weighed: f64,
    fair: f64,
    map_bytes: f64,
    ring_bytes: f64,
    lookup_ns: f64,
    hashed_ns: f64,
}

fn measure(members: usize, round: u64) -> anyhow::Result<Figures> {
    let map = map(members, round);
    let ring = Ring::new(&map);
    let new = member(members, round);
    let (old, heavy) = (map.members[members / 2].id, map.members[members / 3].id);
    let fair = members as f64 + 1.0;
    let (added, share) = cost(&map, &Request::Add(vec![new.clone()]))?;
    let (lookup_ns, hashed_ns) = time(&ring, &map);
    Ok(Figures {
        imbalance: imbalance(&map, &ring, Side::New),
        added,
        removed: cost(&map, &Request::Remove(vec![old]))?.0,
        replaced: cost(&map, &Request::Replace { old, new: Box::new(new) })?.0,
        weighed: cost(&map, &Request::SetWeight(vec![(heavy, 200)]))?.0,
        fair: share * fair,
        map_bytes: map.encode()?.len() as f64,
        ring_bytes: ring.bytes() as f64,
        lookup_ns,
        hashed_ns,
    })
}

/// What a change moves over the least possible, and the share of all that it moves.
fn cost(map: &Map, request: &Request) -> anyhow::Result<(f64, f64)> {
    let joint = map.begin(request, 1)?;
    let placements = joint.placements();
    let old = placements.old.unwrap_or_else(|| Ring::new(map));
    let moved = moved(&joint, &old, &placements.new);
    Ok((moved.share / moved.least, moved.share))
}

/// Nanoseconds of a lookup, without and with hashing the key.
fn time(ring: &Ring, map: &Map) -> (f64, f64) {
    let key = |number: usize| (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes();
    let hashes: Vec<KeyHash> = (0..LOOKUPS).map(|number| KeyHash::new(&key(number), map.hash_seed)).collect();
    let per_lookup = |begun: Instant| begun.elapsed().as_secs_f64() * 1e9 / LOOKUPS as f64;
    let begun = Instant::now();
    for &hash in &hashes {
        black_box(ring.homes(black_box(hash)));
    }
    let lookup = per_lookup(begun);
    let begun = Instant::now();
    for number in 0..LOOKUPS {
        black_box(ring.homes(KeyHash::new(black_box(&key(number)), map.hash_seed)));
    }
    (lookup, per_lookup(begun))
}

fn map(members: usize, round: u64) -> Map {
    Map {
        format: MAP_FORMAT,
        pool: Default::default(),
        epoch: 1,
        revision: 0,
        state: State::Stable,
        replicas: REPLICAS,
        spread: Level::Machine,
        page_size: 4096,
        hash_seed: round.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        floor: 0,
        swept: 0,
        clock: Default::default(),
        seized: 0,
        unequal: false,
        change: None,
        members: (0..members).map(|index| member(index, round)).collect(),
    }
}

fn member(index: usize, round: u64) -> Member {
    let id = u128::from(round) << 64 | (index as u128 + 1);
    Member {
        id: MemberId(id.to_be_bytes()),
        nqn: format!("nqn.2026-01.example:storage:node-{index}"),
        nsid: 1,
        addresses: vec![format!("10.0.{}.{}:4420", index / 250, index % 250)],
        size: 1 << 40,
        block_size: 4096,
        weight: 100,
        voter: index == 0,
        points: None,
        leaving: false,
        incarnation: 1 + index as u64,
        mark: 1,
        table_pages: 1 << 27,
        heap_groups: 1 << 19,
        domain: Domain {
            rack: format!("rack-{}", index / RACK),
            machine: format!("machine-{index}"),
            drive: format!("drive-{index}"),
            ..Domain::default()
        },
        old: None,
        lost: false,
        left_behind: false,
        written_off: false,
        renewed: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_change_moves_a_tenth_more_than_it_must() {
        for members in [10, 100] {
            let figures = measure(members, 1).expect("such pools can be changed");
            for ratio in [figures.added, figures.removed, figures.replaced, figures.weighed] {
                assert!((0.999..=MOVED_ALLOWED).contains(&ratio), "{members} members: {ratio}");
            }
            assert!((1.0..1.5).contains(&figures.imbalance) && figures.map_bytes > 0.0);
        }
    }
}
