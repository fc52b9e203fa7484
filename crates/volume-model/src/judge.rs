//! What must hold in every state.

use std::cell::RefCell;
use std::collections::HashMap;

use check::explore::{Model, Visit};

use crate::config::{Broken, Config, Op};
use crate::state::{CALLS, Call, Called, HOLDERS, HOSTS, Holder, INTENT, Link, Record, State, Work, has};

/// A configuration that is searched.
pub struct Search {
    config: Config,
    /// Which histories are linearizable: there are few of them.
    judged: RefCell<HashMap<[Call; CALLS], bool>>,
    /// A fresh host is tried in every state, not in a share of them.
    probes_all: bool,
}

impl Search {
    /// See the type.
    pub fn new(config: Config) -> Search {
        Search { config, judged: RefCell::default(), probes_all: false }
    }

    /// For what is expected to fail: in every state a fresh host is tried.
    pub fn thorough(config: Config) -> Search {
        Search { probes_all: true, ..Search::new(config) }
    }
}

impl Model for Search {
    type State = State;

    fn initial(&self) -> State {
        self.config.first()
    }

    fn successors(&self, state: &State, visit: &mut Visit<'_, State>) {
        self.config.steps(state, &mut |mut next, words| {
            self.config.tidy(&mut next);
            visit(next, words);
        });
    }

    fn canonicalise(&self, state: &mut State) {
        self.config.canonicalise(state);
    }

    fn check(&self, _: &State, after: &State) -> Result<(), String> {
        if after.fouled {
            return Err("a superseded host has changed an in-sync replica of the newer one".into());
        }
        let mut judged = self.judged.borrow_mut();
        if !*judged.entry(after.calls).or_insert_with(|| self.config.is_linearizable(after)) {
            return Err("not linearizable".into());
        }
        if self.config.compares && !self.config.copies_agree(after) {
            return Err("in-sync replicas differ, and neither is marked".into());
        }
        if self.probes_all { self.config.check_fresh_hosts(after) } else { Ok(()) }
    }

    fn check_sampled(&self, state: &State) -> Result<(), String> {
        self.config.check_fresh_hosts(state)
    }

    fn describe(&self, state: &State) -> String {
        let holder = |i: usize| {
            let holder = &state.holders[i];
            let Record { ballot, version, in_sync, .. } = holder.accepted;
            let (regions, life) = (self.config.regions, if holder.life == 1 { "new, " } else { "" });
            let (data, log) = (&holder.data[..regions], &holder.log[..regions]);
            let (promised, reserved) = (holder.promised, i32::from(holder.reserved) - 1);
            format!(
                "[{life}of {reserved}, promised {promised}, {ballot}.{version} S={in_sync:03b}, {data:?} log {log:?}]"
            )
        };
        (0..self.config.holders()).map(holder).collect::<Vec<_>>().join(" ")
    }
}

impl Config {
    /// For every record that a majority could still yield: copies of replicas in sync are equal where no mark says otherwise.
    fn copies_agree(&self, state: &State) -> bool {
        let all = 1u8 << self.holders();
        (0..all).filter(|some| some.count_ones() >= self.majority).all(|some| {
            let of = |i: usize| has(some, i).then(|| state.holders[i]);
            let Some(record) = (0..self.holders()).filter_map(of).map(|holder| holder.accepted).max() else {
                return true;
            };
            let alive = |lives: u8| {
                let counts = |i: usize| has(some, i) && state.holders[i].life == lives >> i & 1;
                (0..self.holders()).filter(|&i| counts(i)).count() >= self.majority as usize
            };
            if record.ballot == 0 || !alive(record.lives) || !alive(record.lives_before) {
                return true;
            }
            let in_sync = self.replicas_where(|i| has(record.in_sync, i) && self.is_alive(state, &record, i));
            (0..self.regions).all(|region| self.region_agrees(state, in_sync, region))
        })
    }

    fn is_alive(&self, state: &State, record: &Record, i: usize) -> bool {
        let holder = &state.holders[i];
        let power = self.breaks(Broken::PowerLossIgnored) || holder.power_losses == record.power_losses >> i & 1;
        holder.life == record.lives >> i & 1 && power
    }

    fn region_agrees(&self, state: &State, in_sync: u8, region: usize) -> bool {
        let unmarked_pair = |(i, j): (usize, usize)| {
            let (a, b) = (&state.holders[i], &state.holders[j]);
            a.data[region] != b.data[region] && a.log[region] != INTENT && b.log[region] != INTENT
        };
        let members = (0..self.replicas).filter(|&i| has(in_sync, i));
        let mut pairs = members.clone().flat_map(|i| members.clone().map(move |j| (i, j)));
        !pairs.any(unmarked_pair)
    }

    fn is_linearizable(&self, state: &State) -> bool {
        (0..self.regions).all(|region| self.explains(state, region, None))
    }

    /// Whether a read after everything that has returned may give `value`.
    pub(crate) fn fits(&self, state: &State, region: usize, value: u8) -> bool {
        self.explains(state, region, Some(value))
    }

    /// Operations that have not returned may have taken effect, or not.
    fn explains(&self, state: &State, region: usize, last: Option<u8>) -> bool {
        let of_region = |(id, op): (usize, Op)| match op {
            Op::Write(at) if at == region && state.calls[id].called != Called::No => Some((id, true, 1 + id as u8)),
            Op::Read(at) if at == region && state.calls[id].called == Called::Answered => {
                Some((id, false, state.calls[id].result))
            }
            _ => None,
        };
        let operations: Vec<(usize, bool, u8)> = self.calls().filter_map(of_region).collect();
        has_order(&operations, &state.calls, 0, 0, last)
    }

    /// In every state that is sampled, for every subset of the holders.
    fn check_fresh_hosts(&self, state: &State) -> Result<(), String> {
        if !self.probes || self.clients.len() >= HOSTS {
            return Ok(());
        }
        let all = (1u8 << self.holders()) - 1;
        for reached in 1..=all {
            let could = self.try_fresh_host(state, reached)?;
            let newest = state.holders.iter().map(|holder| holder.accepted).max().unwrap_or_default();
            let is_there = |i: usize| has(newest.in_sync, i) && self.is_alive(state, &newest, i);
            let must = reached == all && state.returns == 0 && state.replacements < 2;
            if !could && must && (0..self.replicas).any(is_there) {
                return Err("all is healed, one host alone, and it cannot attach, settle and write".into());
            }
        }
        Ok(())
    }
}

/// Whether the operations of `(id, writes, value)` have an order that explains what was seen, those in `done` first.
fn has_order(operations: &[(usize, bool, u8)], calls: &[Call; CALLS], done: u8, value: u8, last: Option<u8>) -> bool {
    let is_open = |id: usize| calls[id].called == Called::Answered && !has(done, id);
    if !operations.iter().any(|&(id, ..)| is_open(id)) && last.is_none_or(|last| last == value) {
        return true;
    }
    let ours: u8 = operations.iter().map(|&(id, ..)| 1 << id).sum();
    operations.iter().any(|&(id, writes, operand)| {
        let may_be_next = !has(done, id) && calls[id].before & ours & !done == 0 && (writes || operand == value);
        may_be_next && has_order(operations, calls, done | 1 << id, if writes { operand } else { value }, last)
    })
}

/// Where each holder goes.
type Places = [usize; HOLDERS];

impl Config {
    /// Replicas are alike: of states that differ by their order alone the least stands for all.
    fn canonicalise(&self, state: &mut State) {
        let others: &[Places] = match self.replicas {
            0 | 1 => &[],
            2 => &[[1, 0, 2]],
            _ => &[[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
        };
        if let Some(least) = others.iter().map(|to| permuted(state, to)).min().filter(|least| *least < *state) {
            *state = least;
        }
    }
}

fn permuted(state: &State, to: &Places) -> State {
    let set = |old: u8| (0..HOLDERS).filter(|&i| has(old, i)).map(|i| 1u8 << to[i]).sum::<u8>();
    let record = |old: Record| Record {
        in_sync: set(old.in_sync),
        lives: set(old.lives),
        lives_before: set(old.lives_before),
        power_losses: set(old.power_losses),
        ..old
    };
    let mut next = state.clone();
    for (old, &place) in state.holders.iter().zip(to) {
        next.holders[place] = Holder { accepted: record(old.accepted), ..*old };
    }
    next.stash.accepted = record(state.stash.accepted);
    if state.stash_at != 0 {
        next.stash_at = 1 + to[usize::from(state.stash_at) - 1] as u8;
    }
    for (old, host) in state.hosts.iter().zip(&mut next.hosts) {
        for (i, &place) in to.iter().enumerate() {
            host.links[place] = Link { record: record(old.links[i].record), ..old.links[i] };
            host.lacks[place] = old.lacks[i];
        }
        (host.read, host.current, host.stable) = (record(old.read), record(old.current), record(old.stable));
        (host.need, host.readable, host.joining) = (set(old.need), set(old.readable), set(old.joining));
        host.confirmed = set(old.confirmed);
        host.flushed = old.flushed.map(set);
        for (old, job) in old.jobs.iter().zip(&mut host.jobs) {
            job.done = set(old.done);
            if old.work == Work::Copy {
                job.target = to[usize::from(old.target)] as u8;
            }
        }
        for (old, thread) in old.threads.iter().zip(&mut host.threads) {
            thread.from = old.from.map(|from| to[usize::from(from)] as u8);
        }
    }
    next
}
