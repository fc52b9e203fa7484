//! What must hold in every state.

use std::cell::RefCell;
use std::collections::HashMap;

use check::explore::{Model, Visit};

use crate::config::{Broken, Config};
use crate::state::{CALLS, Call, HOSTS, INTENT, ROLLBACKS, Record, Set, State, has};

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
        let config = &self.config;
        if !*judged.entry(after.calls).or_insert_with(|| config.is_linearizable(&after.calls, after.rollbacks)) {
            return Err("not linearizable".into());
        }
        if config.compares {
            let records = config.records_yielded(after);
            if !records.iter().all(|record| config.copies_agree(after, record)) {
                return Err("in-sync replicas differ, and neither is marked".into());
            }
            records.iter().try_for_each(|record| config.snapshots_hold(after, record))?;
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
    /// Every record that a majority could still yield.
    fn records_yielded(&self, state: &State) -> Vec<Record> {
        let all = 1u8 << self.holders();
        let of_majority = |some: Set| {
            let of = |i: usize| has(some, i).then(|| state.holders[i].accepted);
            let record = (0..self.holders()).filter_map(of).max()?;
            let alive = |lives: u8| {
                let counts = |i: usize| has(some, i) && state.holders[i].life == lives >> i & 1;
                (0..self.holders()).filter(|&i| counts(i)).count() >= self.majority as usize
            };
            (record.ballot != 0 && alive(record.lives) && alive(record.lives_before)).then_some(record)
        };
        let mut records: Vec<Record> =
            (0..all).filter(|some| some.count_ones() >= self.majority).filter_map(of_majority).collect();
        records.dedup();
        records
    }

    /// Copies of replicas in sync are equal where no mark says otherwise.
    fn copies_agree(&self, state: &State, record: &Record) -> bool {
        let alive = self.replicas_where(|i| has(record.in_sync, i) && self.is_alive(state, record, i));
        let in_sync = if alive == 0 { self.replicas_where(|i| self.may_follow(state, record, i)) } else { alive };
        let has_room = |i: usize| !has(in_sync, i) || state.holders[i].grown;
        let have_room = !self.grows || !record.grown || (0..self.replicas).all(has_room);
        have_room && (0..self.regions_of(record)).all(|region| self.region_agrees(state, in_sync, region))
    }

    fn is_alive(&self, state: &State, record: &Record, i: usize) -> bool {
        let holder = &state.holders[i];
        let is_ignored = self.breaks(Broken::PowerLossIgnored) || !self.counted;
        holder.life == record.lives >> i & 1 && (is_ignored || holder.power_losses == record.losses(i))
    }

    /// Where all in sync have lost power: whether an attach goes back to the copy of `i`, among others.
    fn may_follow(&self, state: &State, record: &Record, i: usize) -> bool {
        self.loses_all && has(record.in_sync, i) && state.holders[i].life == record.lives >> i & 1
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
            let follows = |i: usize| !has(newest.in_sync, i) || self.may_follow(state, &newest, i);
            let must = reached == all && state.returns == 0 && state.replacements < 2;
            let may = (0..self.replicas).any(is_there) || (0..self.replicas).all(follows);
            if !could && must && may && usize::from(state.rollbacks) < ROLLBACKS {
                return Err("all is healed, one host alone, and it cannot attach, settle and write".into());
            }
        }
        Ok(())
    }
}
