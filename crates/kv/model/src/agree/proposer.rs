//! What a proposer does with the answers, and a member with its requests.

use super::map::{highest, length};
use super::{
    Accept, Ballot, Change, Config, Fault, HOSTS_MAX, Host, MEMBERS, Map, Member, Phase, Reply, SEIZED_MAX, State,
    round_of,
};

impl Config {
    /// Begins the host's next operation.
    pub(super) fn begin(&self, state: &mut State, host: usize) {
        let Some(change) = self.change(state, host) else { return };
        if let Change::Renew(member) = change {
            if state.members[member].life != 0 {
                return self.end(state, host); // nothing is wrong with it
            }
            // Formatted, under a life that no map names, by compare-and-write from what had no vote.
            state.lives += 1;
            let known = state.hosts[host].known;
            state.members[member] = Member { life: state.lives, map: known, ..Member::default() };
            state.hosts[host].life = state.lives;
        }
        let floor = newest(state);
        let current = &mut state.hosts[host];
        (current.floor, current.asked) = (floor, current.known.voters());
        match change {
            Change::Open => (current.phase, current.pending) = (Phase::Read, (1 << MEMBERS) - 1),
            Change::Seize(lost) => {
                current.asked = current.known.left_without(lost);
                self.prepare(state, host, 1);
            }
            _ => self.prepare(state, host, 1),
        }
    }

    /// The operation is over.
    pub(super) fn end(&self, state: &mut State, host: usize) {
        self.leave_accepts(state, host);
        let Host { next, known, .. } = state.hosts[host];
        state.hosts[host] = Host { next: next + 1, known, marks: known.marks, ..Host::default() };
    }

    /// Accepts that have not landed yet may do so without their host.
    fn leave_accepts(&self, state: &mut State, host: usize) {
        if state.hosts[host].phase == Phase::Accept {
            let pending = (0..MEMBERS).filter(|&member| state.hosts[host].pending >> member & 1 == 1);
            let accepts: Vec<Accept> = pending.map(|member| self.accept_of(state, host, member)).collect();
            state.late.extend(accepts);
        }
    }

    fn ballot(&self, state: &State, host: usize) -> Ballot {
        state.hosts[host].round * HOSTS_MAX + host as u8 + 1
    }

    pub(super) fn prepare(&self, state: &mut State, host: usize, round: u8) {
        self.leave_accepts(state, host);
        let current = &mut state.hosts[host];
        if current.ballots_used >= self.ballots_max {
            current.phase = Phase::Idle;
            return self.end(state, host);
        }
        current.ballots_used += 1;
        (current.phase, current.round, current.pending) = (Phase::Prepare, round, current.asked);
        current.replies = Default::default();
    }

    /// The host's request reaches a member.
    pub(super) fn deliver(&self, state: &mut State, host: usize, index: usize) {
        let ballot = self.ballot(state, host);
        state.hosts[host].pending &= !(1 << index);
        let (known, mark) = (state.hosts[host].known, state.hosts[host].marks[index]);
        let member = &mut state.members[index];
        let reply = match state.hosts[host].phase {
            Phase::Prepare => {
                let expected = known.lives[index];
                match expected == 0 || expected == member.life || self.rules.any_life {
                    _ if member.life == 0 || member.mark < mark => Reply::NoVote,
                    false => Reply::NoVote,
                    true => promise(member, ballot),
                }
            }
            Phase::Read if member.life == 0 => Reply::NoVote,
            Phase::Read => Reply::Shown(*member),
            _ => {
                let accept = self.accept_of(state, host, index);
                match self.land(state, &accept) {
                    true => Reply::Accepted,
                    false => Reply::Refused(state.members[index].promised),
                }
            }
        };
        state.hosts[host].replies[index] = reply;
    }

    /// The accept for this member: on its promise, or with one to be asked for.
    fn accept_of(&self, state: &State, host: usize, member: usize) -> Accept {
        let current = &state.hosts[host];
        let named = [current.proposed.lives[member], current.base.lives[member]];
        let life = named.into_iter().find(|&life| life != 0).unwrap_or(0);
        let mark = current.marks[member].max(current.proposed.marks[member]);
        // The replies of the accept phase overwrite those of the promise, one by one.
        let before = match current.replies[member] {
            Reply::Shown(shown) => Some(shown.accepted),
            _ => None,
        };
        let mark = if self.rules.marks_of_known { 0 } else { mark };
        Accept { member: member as u8, life, mark, ballot: self.ballot(state, host), before, map: current.proposed }
    }

    /// Carries an accept out; `false`: refused.
    pub(super) fn land(&self, state: &mut State, accept: &Accept) -> bool {
        let member = &mut state.members[usize::from(accept.member)];
        let may = self.may_land(member, accept);
        if may {
            let promised = member.promised.max(accept.ballot);
            *member = Member { promised, accepted: accept.ballot, map: accept.map, torn: false, ..*member };
        }
        may
    }

    pub(super) fn may_land(&self, member: &Member, accept: &Accept) -> bool {
        let lives = member.life != 0 && (member.life == accept.life || self.rules.any_life);
        let lives = lives && member.mark >= accept.mark;
        let promised = match accept.before {
            Some(before) => member.promised == accept.ballot && member.accepted == before,
            None => {
                let follows = member.map.seized <= accept.map.seized || self.rules.seized_handed_over;
                member.promised < accept.ballot && follows
            }
        };
        let ignored = self.rules.promise_ignored && member.accepted < accept.ballot;
        lives && (promised || ignored)
    }

    /// What the host makes of the answers it has; `None`: nothing yet.
    pub(super) fn decide(&self, state: &State, host: usize) -> Option<State> {
        match (state.hosts[host].phase, self.change(state, host)?) {
            (Phase::Prepare, Change::Seize(lost)) => self.decide_seize(state, host, lost),
            (Phase::Accept, Change::Seize(lost)) if state.hosts[host].proposed != state.hosts[host].base => {
                self.decide_seized(state, host, lost)
            }
            (phase, _) => self.decide_by_quorum(state, host, phase),
        }
    }

    fn decide_by_quorum(&self, state: &State, host: usize, phase: Phase) -> Option<State> {
        match phase {
            Phase::Prepare => self.decide_promises(state, host),
            Phase::Accept => self.decide_accepts(state, host),
            Phase::Read => self.decide_open(state, host),
            Phase::Idle => None,
        }
    }

    fn decide_promises(&self, state: &State, host: usize) -> Option<State> {
        let current = &state.hosts[host];
        let shown = current.replies.iter().filter_map(|reply| match reply {
            Reply::Shown(member) if !member.torn => Some(*member),
            _ => None,
        });
        let order = |member: &Member| member.map.order(&self.rules, member.accepted);
        let Some(newest) = shown.max_by_key(order) else { return self.outbid(state, host) };
        let base = newest.map;
        let base = if self.rules.builds_on_known { current.known } else { base };
        let mut next = state.clone();
        if base.voters() & !current.asked != 0 && !self.rules.quorum_of_known {
            let round = current.round + 1;
            (next.hosts[host].asked, next.hosts[host].known) = (current.asked | base.voters(), base);
            self.prepare(&mut next, host, round);
            return Some(next);
        }
        if let Some(next) = self.judged_anew(state, host, &base) {
            return Some(next);
        }
        let promised = self.agreeing(current, |member, shown| {
            (!shown.torn || self.rules.torn_counts) && (shown.life == base.lives[member] || self.rules.any_life)
        });
        let of = if self.rules.quorum_of_known { &current.known } else { &base };
        if !of.has_quorum(&self.rules, promised) {
            return self.outbid(state, host);
        }
        let (change, token) = (self.change(state, host)?, self.token(state, host));
        let carrying = self.agreeing(current, |member, shown| {
            shown.accepted == newest.accepted && shown.map == base && !shown.torn && shown.life == base.lives[member]
        });
        let in_force = base.has_quorum(&self.rules, carrying) || self.rules.builds_on_unsettled;
        match base.changed(&self.rules, change, token, current.life) {
            Some(changed) => {
                let settles = !in_force && changed != base;
                let proposed = if settles { base } else { changed };
                let current = &mut next.hosts[host];
                (current.base, current.proposed, current.phase) = (base, proposed, Phase::Accept);
                current.settles = settles;
                current.pending = base.voters() | proposed.voters();
            }
            None => self.end(&mut next, host),
        }
        Some(next)
    }

    /// The answers name other marks, or a later map's other lives, than the proposer knew, by which a voter is judged otherwise:
    /// it begins again.
    fn judged_anew(&self, state: &State, host: usize, base: &Map) -> Option<State> {
        let current = &state.hosts[host];
        let mut marks = current.marks;
        for reply in &current.replies {
            if let Reply::Shown(member) = reply
                && !member.torn
            {
                marks = highest(&marks, &member.map.marks);
            }
        }
        let is_later = base.length() >= current.known.length();
        let anew = |member: &usize| match current.replies[*member] {
            Reply::Shown(shown) => shown.mark < marks[*member],
            _ => {
                marks[*member] != current.marks[*member]
                    || is_later && base.lives[*member] != current.known.lives[*member]
            }
        };
        let voters = (0..MEMBERS).filter(|member| base.voters() >> member & 1 == 1);
        if self.rules.marks_of_known || !voters.clone().any(|member| anew(&member)) {
            return None;
        }
        let mut next = state.clone();
        let again = &mut next.hosts[host];
        again.marks = marks;
        again.known = if is_later { *base } else { again.known };
        again.ballots_used -= u8::from(!again.restarted);
        again.restarted = true;
        self.prepare(&mut next, host, current.round + 1);
        Some(next)
    }

    fn agreeing(&self, current: &Host, counts: impl Fn(usize, &Member) -> bool) -> u8 {
        let shown = current.replies.iter().enumerate().filter_map(|(member, reply)| match reply {
            Reply::Shown(shown) => Some((member, shown)),
            _ => None,
        });
        shown.filter(|(member, shown)| counts(*member, shown)).map(|(member, _)| 1 << member).sum()
    }

    /// A refusal leads to a higher ballot; without one the host waits, or gives up.
    pub(super) fn outbid(&self, state: &State, host: usize) -> Option<State> {
        let current = &state.hosts[host];
        let refused = current.replies.iter().filter_map(|reply| match reply {
            Reply::Refused(ballot) => Some(round_of(*ballot)),
            _ => None,
        });
        let round = refused.max()?.max(current.round) + 1;
        let mut next = state.clone();
        self.prepare(&mut next, host, round);
        Some(next)
    }

    fn decide_accepts(&self, state: &State, host: usize) -> Option<State> {
        let current = &state.hosts[host];
        let (base, proposed) = (current.base, current.proposed);
        let done = |map: &Map| -> u8 {
            let asked = |member: usize| [proposed, base].iter().map(|map| map.lives[member]).find(|&life| life != 0);
            let counts = |member: &usize| {
                let same = asked(*member) == Some(map.lives[*member]) || self.rules.any_life;
                current.replies[*member] == Reply::Accepted && same
            };
            (0..MEMBERS).filter(counts).map(|member| 1 << member).sum()
        };
        if !base.has_quorum(&self.rules, done(&base)) || !proposed.has_quorum(&self.rules, done(&proposed)) {
            return self.outbid(state, host);
        }
        let mut next = state.clone();
        let floor = current.floor;
        tell(&mut next, &proposed);
        if current.settles {
            let settling = &mut next.hosts[host];
            settling.ballots_used -= u8::from(!settling.settled);
            (settling.settles, settling.settled, settling.known) = (false, true, proposed);
            settling.marks = highest(&settling.marks, &proposed.marks);
            self.prepare(&mut next, host, current.round + 1);
            return Some(next);
        }
        if proposed.seized == floor.0 && proposed.length() < floor.1 {
            next.fault = next.fault.or(Some(Fault::Older(proposed.changes, floor.1)));
        }
        // All others learn of it.
        let learners = (0..MEMBERS).filter(|member| (base.voters() | proposed.voters()) >> member & 1 == 0);
        for member in learners.filter(|&member| proposed.lives[member] != 0) {
            let accept = Accept { before: None, ..self.accept_of(&next, host, member) };
            next.late.push(accept);
        }
        next.hosts[host].known = proposed;
        self.end(&mut next, host);
        Some(next)
    }

    /// The map of the highest ballot that a quorum of its own voters has accepted by that ballot.
    fn decide_open(&self, state: &State, host: usize) -> Option<State> {
        let current = &state.hosts[host];
        let mut seen: Vec<Member> = Vec::new();
        for reply in &current.replies {
            if let Reply::Shown(member) = reply
                && !member.torn
            {
                seen.push(*member);
            }
        }
        seen.sort_by_key(|member| std::cmp::Reverse(member.map.order(&self.rules, member.accepted)));
        let marks = seen.iter().fold([0; MEMBERS], |marks, shown| highest(&marks, &shown.map.marks));
        let in_force = seen.iter().find(|newest| {
            let carrying = self.agreeing(current, |member, shown| {
                let same = shown.accepted == newest.accepted || self.rules.opens_any_ballot;
                let current = shown.life == newest.map.lives[member] && shown.mark >= marks[member];
                same && shown.map == newest.map && !shown.torn && current
            });
            self.rules.opens_newest || newest.map.has_quorum(&self.rules, carrying)
        });
        let in_force = in_force?.map;
        let mut next = state.clone();
        tell(&mut next, &in_force);
        next.hosts[host].known = in_force;
        self.end(&mut next, host);
        Some(next)
    }
}

fn promise(member: &mut Member, ballot: Ballot) -> Reply {
    if member.promised >= ballot {
        return Reply::Refused(member.promised);
    }
    member.promised = ballot;
    Reply::Shown(*member)
}

/// How often the newest map that anybody was told of was seized, and its changes.
pub(super) fn newest(state: &State) -> (u8, u8) {
    let told = (0..=SEIZED_MAX).rev().map(|seized| (seized as u8, length(&state.chains[seized])));
    told.into_iter().find(|(_, length)| *length > 0).unwrap_or((0, 0))
}

/// Somebody is told that this map is in force.
pub(super) fn tell(state: &mut State, map: &Map) {
    let (changes, chain) = (map.changes, state.chains[usize::from(map.seized)]);
    let (longer, shorter) = if length(&changes) >= length(&chain) { (changes, chain) } else { (chain, changes) };
    let common = usize::from(length(&shorter));
    if longer[..common] != shorter[..common] {
        state.fault = state.fault.or(Some(Fault::Forked(longer, shorter)));
    }
    let twice = longer.iter().enumerate().find(|(index, token)| **token != 0 && longer[..*index].contains(token));
    if let Some((_, token)) = twice {
        state.fault = state.fault.or(Some(Fault::Twice(*token)));
    }
    state.chains[usize::from(map.seized)] = longer;
}
