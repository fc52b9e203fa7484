//! What a host does: the phases of an operation, and what ends each of them.
//!
//! Invariants: an operation is in one phase, with one request to all its members; what was sent in an earlier phase is
//! still under way ([`super::Member::late`]); a put never sends a second timestamp.

use super::{
    Ballot, Config, HOSTS_MAX, Host, Kind, OPERATIONS_MAX, Operation, Phase, Reply, Request, State, Status, round,
    slow_ballot,
};

impl Config {
    /// Leaves the phase: requests not yet landed go on without their sender, except reads, which change nothing.
    fn end_phase(&self, state: &mut State, host: usize) {
        let request = state.hosts[host].request;
        for member in &mut state.members {
            if std::mem::take(&mut member.pending[host]) && request.kind != Kind::Read {
                member.late.push(request);
            }
            member.replies[host] = Reply::None;
        }
    }

    pub(super) fn begin(&self, state: &mut State, host: usize, phase: Phase, request: Request) {
        self.end_phase(state, host);
        let (operation, ..) = self.current(state, host);
        let epoch = state.hosts[host].epoch;
        state.hosts[host].phase = phase;
        state.hosts[host].request = Request { epoch, ..request };
        let targets = self.targets(operation, epoch);
        for (index, member) in state.members.iter_mut().enumerate() {
            member.pending[host] = targets >> index & 1 == 1;
        }
    }

    /// Returns from the operation.
    pub(super) fn complete(&self, state: &mut State, host: usize, status: Status, result: u8) {
        self.end_phase(state, host);
        let (operation, index, _) = self.current(state, host);
        if !operation.is_upkeep() {
            state.history[index].status = status;
            state.history[index].result = if status == Status::Done { result } else { 0 };
        }
        let Host { next, epoch, .. } = state.hosts[host];
        state.hosts[host] = Host { next: next + 1, epoch, ..Host::default() };
    }

    /// Starts over with a ballot above every one in sight, or gives up: then a conditional operation is unknown, and a
    /// get stops for good.
    pub(super) fn start_prepare(&self, state: &mut State, host: usize) {
        let (operation, index, _) = self.current(state, host);
        if state.hosts[host].ballots_used >= self.ballots_max {
            if operation.is_conditional() {
                return self.complete(state, host, Status::Unknown, 0);
            }
            self.end_phase(state, host);
            let Host { next, epoch, .. } = state.hosts[host];
            state.hosts[host] = Host { next, epoch, phase: Phase::Dead, ..Host::default() };
            return;
        }
        state.hosts[host].ballots_used += 1;
        let flat_counter = |counter: u8| if self.rules.flat { counter.into() } else { 0 };
        let seen = state.members.iter().map(|m| m.promised.max(m.entry.ballot).max(flat_counter(m.entry.counter)));
        let highest = match self.ballots_as_met {
            true => state.hosts[host].round_met,
            false => round(seen.max().expect("there are members")),
        };
        let ballot = slow_ballot(highest.max(Self::round_base(state.hosts[host].epoch)) + 1, 1 + index as u8);
        state.hosts[host].round_met = if self.ballots_as_met { round(ballot) } else { 0 };
        self.begin(state, host, Phase::Prepare, Request { kind: Kind::Prepare, ballot, ..Request::default() });
    }

    /// The ballot that an accept promises for the host's next operation ([`super::Rules::reserve`]); 0: none.
    pub(super) fn reserved_ballot(&self, state: &State, host: usize, ballot: Ballot) -> Ballot {
        let next = usize::from(state.hosts[host].next) + 1;
        match self.hosts[host].get(next) {
            Some(operation) if operation.is_conditional() && self.rules.reserve => {
                slow_ballot(round(ballot) + 1, 1 + self.operation_index(host, next) as u8)
            }
            _ => 0,
        }
    }

    /// Begins the next operation; `false`: it must wait.
    pub(super) fn invoke(&self, state: &mut State, host: usize) -> bool {
        let (operation, index, _) = self.current(state, host);
        if !self.may_begin(state, operation) {
            return false;
        }
        if let Operation::Publish(epoch) = operation {
            state.map = state.map.max(epoch);
            self.complete(state, host, Status::Done, 0);
            return true;
        }
        if !operation.is_upkeep() {
            state.history[index].status = Status::Pending;
            let returned = (0..OPERATIONS_MAX).filter(|&k| state.history[k].status == Status::Done);
            state.history[index].preceding = returned.map(|k| 1 << k).sum();
        }
        self.start(state, host);
        true
    }

    /// Sends the operation's first requests; again after it has met a seal.
    pub(super) fn start(&self, state: &mut State, host: usize) {
        let (operation, ..) = self.current(state, host);
        if self.begin_upkeep(state, host, operation) {
            return;
        }
        let reads_first = matches!(operation, Operation::GetExpired(_)) || self.rules.fast;
        let repeats = self.rules.reserve && state.hosts[host].next > 0;
        if operation.is_conditional() && !reads_first && !repeats {
            self.start_prepare(state, host);
        } else {
            let loss = if operation == Operation::Rebuild { lost(state) } else { 0 };
            self.begin(state, host, Phase::Read, Request { loss, ..Request::default() });
        }
    }

    fn may_begin(&self, state: &State, operation: Operation) -> bool {
        match operation {
            Operation::Rebuild => {
                // An acknowledgement from before the loss that still counts would let a put end with one copy fewer
                // than its majority: the rebuild waits until such operations are over (their deadline has passed).
                let forgotten = |k: usize, m: &super::Member| m.replies[k] == Reply::None || self.rules.rebuild_at_once;
                let lost = state.members.iter().find(|m| m.voteless != 0);
                lost.is_some_and(|m| (0..HOSTS_MAX).all(|k| forgotten(k, m)))
            }
            // Whoever cleans goes by a map of that epoch.
            Operation::Clean(epoch) => state.map >= epoch,
            _ => true,
        }
    }

    /// Lets the host's request land at a member, and reports each state that may follow: the host may go on waiting, or
    /// decide on the replies it has.
    pub(super) fn deliver(&self, before: &State, host: usize, index: usize, after: &mut Vec<State>) {
        let mut state = before.clone();
        state.members[index].pending[host] = false;
        let request = state.hosts[host].request;
        let reply = self.apply(&mut state.members[index], &request);
        state.members[index].replies[host] = reply;
        if self.ballots_as_met {
            let met = match reply {
                Reply::Done(entry, promised, _) => promised.max(entry.ballot),
                Reply::Superseded(promised) | Reply::Refused(promised) => promised,
                _ => 0,
            };
            let highest = &mut state.hosts[host].round_met;
            *highest = round(met).max(*highest);
        }
        if state.members.iter().any(|member| member.pending[host]) {
            after.push(state.clone());
        }
        match reply {
            Reply::Refused(_) => return self.refused(state, host, after),
            Reply::Sealed(seal) => return self.met_seal(&state, host, seal, after),
            _ => {}
        }
        match state.hosts[host].phase {
            Phase::Read | Phase::Prepare => self.decide(&state, host, index, after),
            Phase::Store | Phase::Accept => self.stored(state, host, reply, after),
            Phase::FastAccept => self.fast_accepted(state, host, after),
            Phase::Idle | Phase::Dead => unreachable!("such a host waits for nothing"),
        }
    }

    /// A promise stood in the way: a higher ballot is needed. A put never gets here except under the flat rules.
    fn refused(&self, mut state: State, host: usize, after: &mut Vec<State>) {
        let is_put = matches!(self.current(&state, host).0, Operation::Put(_) | Operation::Delete);
        match state.hosts[host].phase {
            Phase::Store if state.hosts[host].request.kind == Kind::Restore => return, // only the lost member takes it
            Phase::Store if is_put => {
                state.hosts[host].ballots_used += 1;
                if !self.rules.flat_put_retries || state.hosts[host].ballots_used >= self.ballots_max {
                    return;
                }
                self.begin(&mut state, host, Phase::Read, Request::default());
            }
            Phase::Prepare | Phase::Accept | Phase::FastAccept | Phase::Store => {
                after.extend(self.without_unsent(&state, host));
                self.strike(&mut state, host);
                self.start_prepare(&mut state, host);
            }
            _ => return,
        }
        after.push(state);
    }

    fn stored(&self, mut state: State, host: usize, reply: Reply, after: &mut Vec<State>) {
        let once = self.rules.superseded_once_is_done && matches!(reply, Reply::Superseded(_));
        let (operation, ..) = self.current(&state, host);
        if operation == Operation::Rebuild && state.hosts[host].phase == Phase::Accept {
            // Decided anew: it looks again.
            if self.quorum(state.hosts[host].epoch, answered(&state, host)) {
                self.start(&mut state, host);
                after.push(state);
            }
        } else if once || self.enough_stored(operation, state.hosts[host].epoch, answered(&state, host)) {
            let result = state.hosts[host].result;
            self.complete(&mut state, host, Status::Done, result);
            after.push(state);
        }
    }

    fn fast_accepted(&self, mut state: State, host: usize, after: &mut Vec<State>) {
        let needed = if self.rules.fast_majority { 2 } else { 3 };
        if answered(&state, host).count_ones() >= needed {
            let result = state.hosts[host].result;
            self.complete(&mut state, host, Status::Done, result);
        } else {
            self.start_prepare(&mut state, host); // waiting for the rest timed out
        }
        after.push(state);
    }
}

/// Number of the loss not yet repaired; 0: none.
fn lost(state: &State) -> u8 {
    state.members.iter().map(|m| m.voteless).max().unwrap_or(0)
}

/// Set of members that answered the current request favourably.
pub(super) fn answered(state: &State, host: usize) -> u8 {
    let favourable = |reply| matches!(reply, Reply::Done(..) | Reply::Superseded(_));
    state.members.iter().enumerate().filter(|(_, m)| favourable(m.replies[host])).map(|(k, _)| 1u8 << k).sum()
}
