//! What is known not to have happened: a change that every member asked has refused, for the sake of a higher ballot or by a
//! seal. A conditional operation forgets such an attempt, and does not end as unknown when a put comes between it and the next;
//! a put or an attempt refused by seals alone begins anew on the newer map. (That a member has refused means here that it never
//! did it before: its answer to the one request that it was sent.) Nor did it happen where those that have not refused were never
//! sent it (they were away, say), as nobody gets a request any more when the host has gone on to another. (At the end of an
//! operation that is not so: then they may yet.)

use super::Operation::{Delete, Get, Increment, Put};
use super::change_configs::change_of_one;
use super::{Attempt, Config, Operation, Reply, State};

const INC: Operation = Increment;

/// Sound configurations.
pub fn sound() -> Vec<Config> {
    let new = Config::new;
    let all = vec![
        new("inc|inc,put struck", &[&[INC], &[INC, Put(10)]]),
        new("inc,get|inc,put struck", &[&[INC, Get], &[INC, Put(10)]]),
        change_of_one("put,get|get + change of 1, struck", &[&[Put(10), Get], &[Get]]),
        change_of_one("put,del|put,get + change of 1, struck", &[&[Put(10), Delete], &[Put(20), Get]]),
        change_of_one("put|inc,get + change of 1, struck", &[&[Put(10)], &[INC, Get]]),
    ];
    let all = all.into_iter().map(|config| config.under(|rules| rules.strike = true));
    let unsent = new("inc|inc,put struck where unsent", &[&[INC], &[INC, Put(10)]]);
    all.chain([unsent.under(|rules| (rules.strike, rules.strike_unsent) = (true, true))]).collect()
}

/// The same after one refusal: another member may have accepted, or may yet. And where a member gets yet what it was not sent.
pub fn broken() -> Vec<Config> {
    let new = |name| Config::new(name, &[&[INC], &[INC, Put(10)]]);
    let one = new("an attempt that one has refused is struck");
    let later = new("an attempt that may yet be sent is struck");
    vec![
        one.under(|rules| (rules.strike, rules.strike_at_one) = (true, true)),
        later.under(|rules| (rules.strike, rules.strike_unsent, rules.unsent_comes_later) = (true, true, true)),
    ]
}

impl Config {
    /// Whether all members have refused the host's request; under the broken rule, one of them.
    pub(super) fn is_refused_by_all(&self, state: &State, host: usize) -> bool {
        let (operation, ..) = self.current(state, host);
        let targets = self.targets(operation, state.hosts[host].epoch);
        let asked = || state.members.iter().enumerate().filter(|(index, _)| targets >> index & 1 == 1);
        let mut refused = asked().map(|(_, member)| is_refused(member.replies[host]));
        self.rules.strike && if self.rules.strike_at_one { refused.any(|one| one) } else { refused.all(|one| one) }
    }

    /// The host goes on where the members that have not answered were never sent its request, and the others have refused it.
    pub(super) fn without_unsent(&self, state: &State, host: usize) -> Option<State> {
        let mut members = state.members.iter();
        if !self.rules.strike_unsent || members.any(|member| !member.pending[host] && !is_refused(member.replies[host]))
        {
            return None;
        }
        let mut next = state.clone();
        if !self.rules.unsent_comes_later {
            next.members.iter_mut().for_each(|member| member.pending[host] = false);
        }
        forget_attempt(&mut next, host);
        self.start_prepare(&mut next, host);
        Some(next)
    }

    /// Forgets the attempt under way if all have refused it.
    pub(super) fn strike(&self, state: &mut State, host: usize) {
        if self.is_refused_by_all(state, host) {
            forget_attempt(state, host);
        }
    }
}

fn is_refused(reply: Reply) -> bool {
    matches!(reply, Reply::Refused(_) | Reply::Sealed(_))
}

fn forget_attempt(state: &mut State, host: usize) {
    let sender = &mut state.hosts[host];
    let last = usize::from(sender.attempt_count);
    if last > 0 && sender.attempts[last - 1].ballot == sender.request.ballot {
        sender.attempts[last - 1] = Attempt::default();
        sender.attempt_count -= 1;
    }
}
