//! The transition system: which steps a state offers, which states are alike, and whether a host alone makes progress.

use std::cell::RefCell;
use std::collections::HashMap;

use super::{Config, Kind, Member, OPERATIONS_MAX, Operation, Phase, Record, Reply, State, Status};
use crate::explore::{Model, Visit};

/// A configuration with the verdicts on the histories met so far: there are few histories and many states.
pub struct Search {
    config: Config,
    verdicts: RefCell<HashMap<[Record; OPERATIONS_MAX], bool>>,
}

impl Search {
    /// A fresh search of the configuration.
    pub fn new(config: Config) -> Search {
        Search { config, verdicts: RefCell::default() }
    }
}

/// Steps a host alone needs at most to finish an operation: derived (5 ballots, two phases each, two members), with room.
const SOLO_STEPS_MAX: usize = 60;

impl Model for Search {
    type State = State;

    fn initial(&self) -> State {
        let fresh = |k| Member { homes: self.config.epochs_at_home(k), ..Member::default() };
        State {
            members: (0..self.config.member_count()).map(fresh).collect(),
            hosts: Default::default(),
            history: Default::default(),
            map: 0,
            losses_left: self.config.losses,
        }
    }

    fn successors(&self, state: &State, visit: &mut Visit<'_, State>) {
        let config = &self.config;
        let hosts = 0..config.hosts.len();
        let clients = hosts.clone().filter(|&host| !config.hosts[host][0].is_upkeep());
        let stopped = |host| config.finished(state, host) || state.hosts[host].phase == Phase::Dead;
        if clients.into_iter().all(stopped) {
            return; // nothing can be returned any more
        }
        for host in hosts {
            self.host_steps(state, host, visit);
        }
        self.late_steps(state, visit);
        if state.losses_left > 0 && state.members.iter().all(|m| m.voteless == 0) {
            self.loss_steps(state, visit);
        }
    }

    fn canonicalise(&self, state: &mut State) {
        for member in &mut state.members {
            let mut late = std::mem::take(&mut member.late);
            late.retain(|request| !self.config.without_effect(member, request));
            late.sort();
            late.dedup();
            member.late = late;
        }
        // Members that are homes in the same maps are interchangeable.
        let mut first = 0;
        while first < state.members.len() {
            let end = (first..state.members.len()).find(|&k| !self.config.alike(first, k));
            let end = end.unwrap_or(state.members.len());
            state.members[first..end].sort();
            first = end;
        }
    }

    fn check(&self, before: &State, after: &State) -> Result<(), String> {
        if before.history == after.history {
            return Ok(());
        }
        let mut verdicts = self.verdicts.borrow_mut();
        if *verdicts.entry(after.history).or_insert_with(|| self.config.linearizable(&after.history)) {
            return Ok(());
        }
        Err(format!("not linearizable: {}", self.describe(after)))
    }

    fn check_sampled(&self, state: &State) -> Result<(), String> {
        let rules = &self.config.rules;
        if rules.flat || self.config.losses > 0 {
            return Ok(());
        }
        let all = (1u8 << state.members.len()) - 1;
        for host in 0..self.config.hosts.len() {
            let starts_phase = state.members.iter().all(|member| member.replies[host] == Reply::None);
            if self.config.finished(state, host) || state.hosts[host].phase == Phase::Dead || !starts_phase {
                continue;
            }
            let upkeep = self.config.current(state, host).0.is_upkeep();
            let quorum = |members: u8| self.config.quorum(state.map, members);
            let smallest = |members: u8| (0..8).all(|k| members >> k & 1 == 0 || !quorum(members & !(1 << k)));
            let enough = |&members: &u8| if upkeep { members == all } else { quorum(members) && smallest(members) };
            if let Some(members) = (1..=all).filter(enough).find(|&m| !self.finishes_alone(state, host, m)) {
                return Err(format!("host {host} alone with members {members:04b} does not finish"));
            }
        }
        Ok(())
    }

    fn describe(&self, state: &State) -> String {
        let members: Vec<String> = state
            .members
            .iter()
            .map(|m| {
                let lost = if m.voteless > 0 { " lost" } else { "" };
                let seal = if m.seal > 0 { format!(" seal{}", m.seal) } else { String::new() };
                format!("[{:?} v{} pb{}{seal}{lost}]", m.entry.timestamp(), m.entry.value, m.promised)
            })
            .collect();
        let operations = self.config.hosts.iter().flatten().filter(|operation| !operation.is_upkeep());
        let operations = operations.zip(&state.history);
        let history: Vec<String> = operations
            .filter_map(|(operation, record)| match record.status {
                Status::Never => None,
                Status::Pending => Some(format!("{operation:?}…")),
                Status::Done => Some(format!("{operation:?}={}", record.result)),
                Status::Unknown => Some(format!("{operation:?}=?")),
            })
            .collect();
        format!("{} | {}", members.join(" "), history.join(" "))
    }
}

impl Search {
    /// The host begins its next operation if idle, and one of its requests lands.
    fn host_steps(&self, state: &State, host: usize, visit: &mut Visit<'_, State>) {
        let config = &self.config;
        if state.hosts[host].phase == Phase::Dead || config.finished(state, host) {
            return;
        }
        if state.hosts[host].phase != Phase::Idle {
            return self.deliveries(state, host, "", visit);
        }
        // A host read its map at any time since its last operation.
        let operation = config.current(state, host).0;
        for epoch in config.first_epoch(state, host)..=state.map {
            let mut before = state.clone();
            before.hosts[host].epoch = epoch;
            if !config.invoke(&mut before, host) {
                return;
            }
            if before.hosts[host].next != state.hosts[host].next {
                visit(before, &|| format!("host{host} {operation:?}"));
                return;
            }
            self.deliveries(&before, host, &format!("INVOKE in epoch {epoch} "), visit);
            if operation.is_upkeep() && operation != Operation::Rebuild {
                return; // its epoch is given
            }
        }
    }

    /// One of the host's requests lands, or it gives up.
    fn deliveries(&self, before: &State, host: usize, invokes: &str, visit: &mut Visit<'_, State>) {
        let config = &self.config;
        let (operation, ..) = config.current(before, host);
        let (phase, request) = (before.hosts[host].phase, before.hosts[host].request);
        let mut after = Vec::new();
        for index in 0..before.members.len() {
            if !config.may_land(before, host, index) {
                continue;
            }
            config.deliver(before, host, index, &mut after);
            for next in after.drain(..) {
                visit(next, &|| {
                    let (kind, ballot, timestamp) = (request.kind, request.ballot, request.entry.timestamp());
                    format!(
                        "host{host} {operation:?} {phase:?} {invokes}member{index}: {kind:?} b={ballot} e={timestamp:?}"
                    )
                });
            }
        }
        if let Some(next) = config.full_member_refuses(before, host).filter(|_| invokes.is_empty()) {
            visit(next, &|| format!("host{host} {operation:?} is refused for want of space, and looks again"));
        }
        if config.rules.give_up && invokes.is_empty() && !operation.is_upkeep() {
            let mut next = before.clone();
            config.complete(&mut next, host, Status::Unknown, 0);
            visit(next, &|| format!("host{host} gives up"));
        }
    }

    fn late_steps(&self, state: &State, visit: &mut Visit<'_, State>) {
        for index in 0..state.members.len() {
            for position in 0..state.members[index].late.len() {
                let mut next = state.clone();
                let request = next.members[index].late.remove(position);
                if next.members[index].voteless != 0 && request.kind != Kind::Restore {
                    continue;
                }
                self.config.apply(&mut next.members[index], &request);
                visit(next, &|| {
                    let (kind, ballot, entry) = (request.kind, request.ballot, request.entry);
                    format!(
                        "LATE {kind:?} b={ballot} e={:?} v={} lands at member{index}",
                        entry.timestamp(),
                        entry.value
                    )
                });
            }
        }
    }

    fn loss_steps(&self, state: &State, visit: &mut Visit<'_, State>) {
        for index in 0..state.members.len() {
            let mut next = state.clone();
            next.losses_left -= 1;
            let member = &mut next.members[index];
            member.entry = Default::default();
            member.promised = 0;
            member.seal = 0;
            if !self.config.rules.lost_member_votes {
                (member.voteless, member.lost_at) = (self.config.losses - next.losses_left, next.map);
            }
            visit(next, &|| format!("member{index} loses its data"));
        }
    }

    /// Whether the host, running alone with only these members answering, ends its operation.
    fn finishes_alone(&self, state: &State, host: usize, members: u8) -> bool {
        let config = Config { ballots_max: 5, ..self.config.clone() };
        let mut state = state.clone();
        let operation = state.hosts[host].next;
        let mut after = Vec::new();
        for _ in 0..SOLO_STEPS_MAX {
            if state.hosts[host].next > operation {
                return true;
            }
            if state.hosts[host].phase == Phase::Idle {
                if !config.invoke(&mut state, host) {
                    return true;
                }
                continue;
            }
            let awaited = (0..state.members.len()).find(|&k| members >> k & 1 == 1 && config.may_land(&state, host, k));
            after.clear();
            if let Some(index) = awaited {
                config.deliver(&state, host, index, &mut after);
            } else if state.hosts[host].epoch < state.map {
                config.met_seal(&state, host, state.map, &mut after); // its lease ended: it reads the map again
            }
            let Some(decision) = after.pop() else { return false }; // the last one decides where it can
            state = decision;
        }
        false
    }
}
