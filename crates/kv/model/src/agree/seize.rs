//! Agreement without the majority of the voters, which is lost for good by an operator's word; as `pool::seize` does it. Those
//! who are lost may be there all the while, and be asked by whoever knows no other map.

use super::proposer::tell;
use super::{Config, Fault, MEMBERS, Phase, Reply, State};

impl Config {
    /// All members but the lost ones have promised: the newest map that any of them carries is the base.
    pub(super) fn decide_seize(&self, state: &State, host: usize, lost: u8) -> Option<State> {
        let current = &state.hosts[host];
        let shown = current.replies.iter().filter_map(|reply| match reply {
            Reply::Shown(member) if !member.torn => Some(*member),
            _ => None,
        });
        let base = shown.max_by_key(|member| member.map.order(&self.rules, member.accepted))?.map;
        let left = base.left_without(lost);
        let promised =
            |member: usize| matches!(current.replies[member], Reply::Shown(shown) if shown.life == base.lives[member]);
        if !self.are_enough_left(left | current.asked, promised) {
            return self.outbid(state, host);
        }
        let mut next = state.clone();
        if left & !current.asked != 0 {
            (next.hosts[host].asked, next.hosts[host].known) = (current.asked | left, base);
            self.prepare(&mut next, host, current.round + 1);
            return Some(next);
        }
        let (change, token) = (self.change(state, host)?, self.token(state, host));
        // One that needs none of the lost ones is agreed on as any other, by its voters.
        let needless = base.has_quorum(&self.rules, left);
        let changed = base.changed(&self.rules, change, token, 0);
        let proposed = if needless { base } else { changed? };
        let current = &mut next.hosts[host];
        (current.base, current.proposed, current.phase) = (base, proposed, Phase::Accept);
        current.pending = if needless { base.voters() } else { left };
        Some(next)
    }

    /// All of them have accepted.
    pub(super) fn decide_seized(&self, state: &State, host: usize, lost: u8) -> Option<State> {
        let current = &state.hosts[host];
        let proposed = current.proposed;
        let left = current.base.left_without(lost);
        if !self.are_enough_left(left, |member| current.replies[member] == Reply::Accepted) {
            return self.outbid(state, host);
        }
        let mut next = state.clone();
        tell(&mut next, &proposed);
        let (seized, floor) = current.floor;
        if proposed.seized < seized || proposed.seized == seized && proposed.length() < floor {
            next.fault = next.fault.or(Some(Fault::Older(proposed.changes, floor)));
        }
        next.hosts[host].known = proposed;
        self.end(&mut next, host);
        Some(next)
    }

    /// All that are left, that is; under the broken rule, one.
    fn are_enough_left(&self, left: u8, answers: impl Fn(usize) -> bool) -> bool {
        let mut asked = (0..MEMBERS).filter(|member| left >> member & 1 == 1).map(answers);
        if self.rules.seized_by_some { asked.any(|one| one) } else { asked.all(|one| one) }
    }

    /// The host hands its map to a member that has promised it nothing, and has gone on without the voters of that map: their map
    /// counts, so it is asked from now on, and so are the voters of that, who need not carry it yet.
    /// `reached`: the members that it may meet (set).
    pub(super) fn meet_seized(&self, state: &State, host: usize, reached: u8) -> Option<State> {
        let current = &state.hosts[host];
        let proposed = current.proposed;
        let has_promised = |member: usize| matches!(current.replies[member], Reply::Shown(_) | Reply::Accepted);
        let gone_on = |member: &usize| {
            let map = &state.members[*member].map;
            proposed.lives[*member] != 0 && !has_promised(*member) && map.seized > proposed.seized
        };
        if current.phase != Phase::Accept || self.rules.seized_handed_over {
            return None;
        }
        let member = (0..MEMBERS).filter(|member| reached >> member & 1 == 1).find(gone_on)?;
        let asks_member = if self.rules.seized_met_by_voters { 0 } else { 1 << member };
        let mut next = state.clone();
        let again = &mut next.hosts[host];
        again.asked |= state.members[member].map.voters() | asks_member;
        again.settles = false;
        again.ballots_used -= u8::from(!again.restarted);
        again.restarted = true;
        self.prepare(&mut next, host, current.round + 1);
        Some(next)
    }
}
