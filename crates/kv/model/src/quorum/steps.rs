//! The transition system: which steps a state offers, which states are alike, and whether a host alone makes progress.

use std::cell::RefCell;
use std::collections::HashMap;

use super::{Config, Kind, OPERATIONS_MAX, Phase, Record, Reply, State, Status};
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
        let count = if self.config.rules.epochs { 4 } else { 3 };
        State {
            members: vec![Default::default(); count],
            hosts: Default::default(),
            history: Default::default(),
            settled: false,
            losses_left: self.config.losses,
        }
    }

    fn successors(&self, state: &State, visit: &mut Visit<'_, State>) {
        let config = &self.config;
        let hosts = 0..config.hosts.len();
        if hosts.clone().all(|host| config.finished(state, host) || state.hosts[host].phase == Phase::Dead) {
            return;
        }
        for host in hosts.clone() {
            self.host_steps(state, host, visit);
        }
        self.late_steps(state, visit);
        if config.rules.epochs {
            hosts.for_each(|host| self.epoch_steps(state, host, visit));
        }
        if state.losses_left > 0 && state.members.iter().all(|m| m.voteless == 0) {
            self.loss_steps(state, visit);
        }
    }

    fn canonicalise(&self, state: &mut State) {
        let prune = self.config.entries_only_grow();
        for member in &mut state.members {
            let mut late = std::mem::take(&mut member.late);
            if prune {
                late.retain(|request| !self.config.without_effect(member, request));
            }
            late.sort();
            late.dedup();
            member.late = late;
        }
        // Members in the same sets of homes are interchangeable.
        let alike = if self.config.rules.epochs { &mut state.members[1..3] } else { &mut state.members[..] };
        alike.sort();
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
        if rules.flat || rules.epochs || rules.drop_after_drain || self.config.losses > 0 {
            return Ok(());
        }
        for host in 0..self.config.hosts.len() {
            let starts_phase = state.members.iter().all(|member| member.replies[host] == Reply::None);
            if self.config.finished(state, host) || state.hosts[host].phase == Phase::Dead || !starts_phase {
                continue;
            }
            if let Some(members) = [0b011, 0b101, 0b110].into_iter().find(|&m| !self.finishes_alone(state, host, m)) {
                return Err(format!("host {host} alone with members {members:03b} does not finish"));
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
                format!("[{:?} v{} pb{}{lost}]", m.entry.timestamp(), m.entry.value, m.promised)
            })
            .collect();
        let operations = self.config.hosts.iter().flatten().zip(&state.history);
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
        let idle = state.hosts[host].phase == Phase::Idle;
        let mut before = state.clone();
        if idle && !config.invoke(&mut before, host) {
            return;
        }
        let (operation, ..) = config.current(&before, host);
        let mut after = Vec::new();
        for index in 0..before.members.len() {
            let kind = before.hosts[host].request.kind;
            let answers = before.members[index].voteless == 0 || kind == Kind::Restore;
            if !before.members[index].pending[host] || !answers {
                continue;
            }
            config.deliver(&before, host, index, &mut after);
            for next in after.drain(..) {
                visit(next, &|| {
                    let (phase, request) = (before.hosts[host].phase, before.hosts[host].request);
                    let invokes = if idle { "INVOKE " } else { "" };
                    let (ballot, timestamp) = (request.ballot, request.entry.timestamp());
                    format!(
                        "host{host} {operation:?} {phase:?} {invokes}member{index}: {kind:?} b={ballot} e={timestamp:?}"
                    )
                });
            }
        }
        if config.rules.give_up && !idle {
            config.complete(&mut before, host, Status::Unknown, 0);
            visit(before, &|| format!("host{host} gives up"));
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

    fn epoch_steps(&self, state: &State, host: usize, visit: &mut Visit<'_, State>) {
        if state.hosts[host].phase != Phase::Idle {
            return;
        }
        let rules = &self.config.rules;
        let oldest = state.hosts.iter().take(self.config.hosts.len()).map(|h| h.epoch).min();
        let all_joint = oldest.is_some_and(|epoch| epoch >= 1) || rules.new_epoch_early;
        let may_enter = match state.hosts[host].epoch {
            0 => true,
            1 => all_joint && (state.settled || rules.new_epoch_before_migration),
            _ => false,
        };
        if may_enter {
            let mut next = state.clone();
            next.hosts[host].epoch += 1;
            let epoch = next.hosts[host].epoch;
            visit(next, &|| {
                format!("host{host} enters {}", if epoch == 1 { "the joint epoch" } else { "the new epoch" })
            });
        }
    }

    fn loss_steps(&self, state: &State, visit: &mut Visit<'_, State>) {
        for index in 0..state.members.len() {
            let mut next = state.clone();
            next.losses_left -= 1;
            let member = &mut next.members[index];
            member.entry = Default::default();
            member.promised = 0;
            member.voteless =
                if self.config.rules.lost_member_votes { 0 } else { self.config.losses - next.losses_left };
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
            if state.hosts[host].phase == Phase::Idle && !config.invoke(&mut state, host) {
                return true;
            }
            let awaited = (0..state.members.len()).find(|&k| members >> k & 1 == 1 && state.members[k].pending[host]);
            let Some(index) = awaited else { return false };
            after.clear();
            config.deliver(&state, host, index, &mut after);
            let Some(decision) = after.pop() else { return false }; // the last one decides where it can
            state = decision;
        }
        false
    }
}
