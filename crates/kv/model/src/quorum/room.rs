//! Gets where members are full: the write-back is refused for want of space by so many that no majority is left.
//!
//! The get then reads all homes again and answers without a write-back where that is right:
//! - a majority holds exactly the same: as ever;
//! - all homes have answered: what the majority-th newest shows is held, or something newer, by a majority. Of three homes or
//!   more it must be a put's: an accept that nobody chose may stand there. (Two homes are their own majority: whoever prepared
//!   above it has seen it.)
//! - between two sets of homes: a majority of the old ones holds exactly the same, on pages that were still open to older
//!   epochs: the migrator reads them after it has sealed them, and so carries this, or something newer.

use super::Operation::{CompareAndSet, Delete, Get, Increment, Put};
use super::{Config, Entry, Map, Operation, Phase, Reply, Request, State, Status};

const INC: Operation = Increment;
const CAS1: Operation = CompareAndSet(0, 1);
const CAS2: Operation = CompareAndSet(0, 2);

/// Configurations with members that may be full.
pub(super) fn sound(group: &str) -> Vec<Config> {
    match group {
        "full-small" => vec![
            new("put|get,get full", &[&[Put(10)], &[Get, Get]]),
            new("put|inc,get full", &[&[Put(10)], &[INC, Get]]),
            new("inc|get,get full", &[&[INC], &[Get, Get]]),
            new("cas,get|cas full, 1 ballot", &[&[CAS1, Get], &[CAS2]]).with(|c| c.ballots_max = 1),
            new("put,del|put,get full", &[&[Put(10), Delete], &[Put(20), Get]]),
            two("put|get,get full, two homes", &[&[Put(10)], &[Get, Get]]),
            two("put|inc,get full, two homes", &[&[Put(10)], &[INC, Get]]),
            two("cas,get|cas full, two homes", &[&[CAS1, Get], &[CAS2]]),
            two("put|put|get,get full, two homes", &[&[Put(10)], &[Put(20)], &[Get, Get]]),
        ],
        "full" => vec![
            new("put|inc|get full", &[&[Put(10)], &[INC], &[Get]]),
            new("put|put|get,get full", &[&[Put(10)], &[Put(20)], &[Get, Get]]),
            new("put|put,get|inc full", &[&[Put(10)], &[Put(20), Get], &[INC]]),
            new("put,put|get,get full, give up", &[&[Put(10), Put(20)], &[Get, Get]]).under(|r| r.give_up = true),
            two("put|inc|get,get full, two homes", &[&[Put(10)], &[INC], &[Get, Get]]),
            two("inc|inc|get,get full, two homes, 1 ballot", &[&[INC], &[INC], &[Get, Get]])
                .with(|c| c.ballots_max = 1),
            two("cas|cas|get,get full, two homes, 1 ballot", &[&[CAS1], &[CAS2], &[Get, Get]])
                .with(|c| c.ballots_max = 1),
        ],
        "full-large" => vec![
            new("put|inc,get|get full", &[&[Put(10)], &[INC, Get], &[Get]]),
            new("put,put|inc|get full", &[&[Put(10), Put(20)], &[INC], &[Get]]),
            new("cas|cas|get,get full, 1 ballot", &[&[CAS1], &[CAS2], &[Get, Get]]).with(|c| c.ballots_max = 1),
            two("inc|inc|get,get full, two homes", &[&[INC], &[INC], &[Get, Get]]),
        ],
        _ => Vec::new(),
    }
}

/// Each rule broken.
pub(super) fn broken() -> Vec<Config> {
    vec![
        new("full: of three homes the second newest though nobody may have chosen it", &[&[CAS1], &[CAS2], &[Get]])
            .with(|c| c.ballots_max = 1)
            .under(|r| r.full_conditional = true),
        new("full: what a majority holds or outdoes, of those that have answered", &[&[Put(10), Get], &[Put(20)]])
            .under(|r| r.full_majority = true),
    ]
}

fn new(name: &'static str, hosts: &[&[Operation]]) -> Config {
    Config::new(name, hosts).under(|r| r.full = true)
}

fn two(name: &'static str, hosts: &[&[Operation]]) -> Config {
    new(name, hosts).with(|c| c.maps = vec![Map::stable(0b011)])
}

impl Config {
    /// The get's present request is refused by full members: it reads again; what it has sent may still land.
    pub(super) fn full_member_refuses(&self, state: &State, host: usize) -> Option<State> {
        let waits = matches!(state.hosts[host].phase, Phase::Store | Phase::Prepare | Phase::Accept);
        let refused = self.rules.full && waits && self.current(state, host).0 == Operation::Get;
        refused.then(|| {
            let mut next = state.clone();
            self.begin(&mut next, host, Phase::Read, Request::default());
            next
        })
    }

    /// The state after the get of a host has answered without a write-back on the replies of these members, if it may.
    pub(super) fn spare_write_back(&self, state: &State, host: usize, members: u8, after: &mut Vec<State>) {
        let reads = state.hosts[host].phase == Phase::Read && self.current(state, host).0 == Operation::Get;
        if !self.rules.full || !reads {
            return;
        }
        if let Some(entry) = self.readable_as_it_is(state, host, members) {
            let mut next = state.clone();
            self.complete(&mut next, host, Status::Done, entry.value);
            after.push(next);
        }
    }

    fn readable_as_it_is(&self, state: &State, host: usize, members: u8) -> Option<Entry> {
        let epoch = state.hosts[host].epoch;
        let (old, new) = self.homes(epoch);
        let shown = |set: u8| {
            let of = (0..state.members.len()).filter(move |k| (members & set) >> k & 1 == 1);
            of.filter_map(|k| match state.members[k].replies[host] {
                Reply::Done(entry, _, open) => Some((self.normalised(entry, epoch), open)),
                _ => None,
            })
        };
        let majority = |set: u8| set.count_ones() as usize / 2 + 1;
        if old != new {
            let counts = |open: bool| open || self.rules.full_sealed;
            let same = |entry: &Entry| shown(old).filter(|(other, open)| other == entry && counts(*open)).count();
            return shown(old).map(|(entry, _)| entry).find(|entry| same(entry) >= majority(old));
        }
        let mut entries: Vec<Entry> = shown(new).map(|(entry, _)| entry).collect();
        if entries.len() < new.count_ones() as usize && !self.rules.full_majority {
            return None;
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.timestamp()));
        let entry = entries.into_iter().nth(majority(new) - 1)?;
        (new.count_ones() <= 2 || entry.ballot == 0 || self.rules.full_conditional).then_some(entry)
    }
}
