//! What is known not to have happened: a change that every member asked has refused, for the sake of a higher ballot or by a
//! seal. A conditional operation forgets such an attempt, and does not end as unknown when a put comes between it and the next;
//! a put or an attempt refused by seals alone begins anew on the newer map. (That a member has refused means here that it never
//! did it before: its answer to the one request that it was sent.)

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
    all.into_iter().map(|config| config.under(|rules| rules.strike = true)).collect()
}

/// The same after one refusal: another member may have accepted, or may yet.
pub fn broken() -> Vec<Config> {
    let one = Config::new("an attempt that one has refused is struck", &[&[INC], &[INC, Put(10)]]);
    vec![one.under(|rules| (rules.strike, rules.strike_at_one) = (true, true))]
}

impl Config {
    /// Whether all members have refused the host's request; under the broken rule, one of them.
    pub(super) fn is_refused_by_all(&self, state: &State, host: usize) -> bool {
        let (operation, ..) = self.current(state, host);
        let targets = self.targets(operation, state.hosts[host].epoch);
        let asked = || state.members.iter().enumerate().filter(|(index, _)| targets >> index & 1 == 1);
        let mut refused =
            asked().map(|(_, member)| matches!(member.replies[host], Reply::Refused(_) | Reply::Sealed(_)));
        self.rules.strike && if self.rules.strike_at_one { refused.any(|one| one) } else { refused.all(|one| one) }
    }

    /// Forgets the attempt under way if all have refused it.
    pub(super) fn strike(&self, state: &mut State, host: usize) {
        if !self.is_refused_by_all(state, host) {
            return;
        }
        let sender = &mut state.hosts[host];
        let last = usize::from(sender.attempt_count);
        if last > 0 && sender.attempts[last - 1].ballot == sender.request.ballot {
            sender.attempts[last - 1] = Attempt::default();
            sender.attempt_count -= 1;
        }
    }
}
