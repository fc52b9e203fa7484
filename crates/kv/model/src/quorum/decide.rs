//! What a host does once a majority has answered its read or its prepare.

use super::host::answered;
use super::{
    ABSENT, Attempt, Ballot, Config, Entry, Host, Kind, Operation, Phase, Reply, Request, State, Status, fast_ballot,
    round, slow_ballot,
};

/// What a quorum said.
pub(super) struct Answers {
    /// The members asked that make the quorum.
    members: u8,
    /// Their newest entry.
    pub(super) newest: Entry,
    /// All of them hold it.
    pub(super) equal: bool,
    /// The promise of the first of them.
    promised: Ballot,
    /// The highest promise.
    promised_max: Ballot,
    /// All of them made the same promise.
    promised_alike: bool,
    /// The newest was written by a ballot, and one of them has promised a higher one without holding it.
    passed_over: bool,
}

impl Answers {
    fn of(config: &Config, state: &State, host: usize, members: u8) -> Answers {
        let epoch = state.hosts[host].epoch;
        let replies: Vec<(Entry, Ballot)> = (0..state.members.len())
            .filter(|&k| members >> k & 1 == 1)
            .map(|k| match state.members[k].replies[host] {
                Reply::Done(entry, promised, _) => (config.normalised(entry, epoch), promised),
                other => unreachable!("reads and prepares are answered or refused, not {other:?}"),
            })
            .collect();
        let newest = replies.iter().map(|r| r.0).max_by_key(Entry::timestamp).expect("a quorum is not empty");
        Answers {
            members,
            newest,
            equal: replies.iter().all(|r| r.0.timestamp() == newest.timestamp()),
            promised: replies[0].1,
            promised_max: replies.iter().map(|r| r.1).max().unwrap_or(0),
            promised_alike: replies.iter().all(|r| r.1 == replies[0].1),
            passed_over: newest.ballot != 0
                && replies.iter().any(|r| r.0.timestamp() < newest.timestamp() && r.1 > newest.ballot),
        }
    }
}

impl Config {
    /// Tries every quorum among the replies that includes the latest one.
    pub(super) fn decide(&self, state: &State, host: usize, latest: usize, after: &mut Vec<State>) {
        let good = answered(state, host);
        let (operation, ..) = self.current(state, host);
        let epoch = state.hosts[host].epoch;
        let lost = state.members.iter().enumerate().filter(|(_, m)| m.voteless != 0).map(|(k, _)| 1u8 << k).sum();
        for members in 1..1u8 << state.members.len() {
            let known = members >> latest & 1 == 1 && members & good == members;
            let enough = match (operation, state.hosts[host].phase) {
                (Operation::Rebuild, Phase::Prepare) => self.quorum(epoch, members),
                _ => self.enough_read(operation, epoch, members, lost),
            };
            if !known || !enough {
                continue;
            }
            self.spare_write_back(state, host, members, after);
            let answers = Answers::of(self, state, host, members);
            let mut next = state.clone();
            match state.hosts[host].phase {
                Phase::Read => self.have_read(&mut next, host, &answers),
                _ => self.have_prepared(&mut next, host, &answers),
            }
            after.push(next);
        }
    }

    fn have_read(&self, state: &mut State, host: usize, answers: &Answers) {
        match self.current(state, host).0 {
            Operation::Put(value) => self.write(state, host, answers, value),
            Operation::Delete => self.write(state, host, answers, ABSENT),
            Operation::GetExpired(value) if answers.newest.value == value => self.start_prepare(state, host),
            Operation::Get | Operation::GetExpired(_) | Operation::Migrate(_) | Operation::Sweep(_) => {
                self.return_or_write_back(state, host, answers);
            }
            Operation::Increment | Operation::CompareAndSet(..) => self.try_without_prepare(state, host, answers),
            Operation::DropHeld(_) => self.drop_held(state, host, answers),
            Operation::Rebuild => {
                // Only what was read after this very loss may restore: older replies may miss a write that the lost
                // copy had completed.
                let loss = state.hosts[host].request.loss;
                if state.members.iter().all(|m| m.voteless != loss) {
                    return self.complete(state, host, Status::Done, 0);
                }
                if answers.passed_over && !self.rules.rebuild_past_promise {
                    return self.start_prepare(state, host);
                }
                let (entry, promise) = (answers.newest, answers.promised_max);
                let request = Request { kind: Kind::Restore, entry, promise, loss, ..Request::default() };
                self.begin(state, host, Phase::Store, request);
            }
            other => unreachable!("{other:?} begins without a read"),
        }
    }

    /// A put: one above everything a majority knows, under this operation's own id.
    fn write(&self, state: &mut State, host: usize, answers: &Answers, value: u8) {
        let (_, _, id) = self.current(state, host);
        let operation = if self.rules.reuse_operation_id { 1 } else { id };
        let entry = if self.rules.flat {
            let highest = round(answers.promised.max(answers.newest.counter.into()));
            Entry { counter: flat(slow_ballot(highest + 1, operation)), value, ..Entry::default() }
        } else {
            let highest = answers.newest.counter.max(self.counter_base(state.hosts[host].epoch));
            Entry { counter: highest + 1, operation, value, ..Entry::default() }
        };
        self.begin(state, host, Phase::Store, Request { kind: Kind::Store, entry, ..Request::default() });
    }

    /// A get: what a majority holds can be returned; anything else must first be made to be held by one.
    fn return_or_write_back(&self, state: &mut State, host: usize, answers: &Answers) {
        let (operation, ..) = self.current(state, host);
        let newest = answers.newest;
        state.hosts[host].result = newest.value;
        let all = self.targets(operation, state.hosts[host].epoch);
        let readable = !newest.is_fast() || answers.members == all || self.rules.fast_majority_read;
        let suffices = answers.equal && !matches!(operation, Operation::Migrate(_));
        if (suffices && readable) || self.rules.no_write_back {
            self.complete(state, host, Status::Done, newest.value);
        } else if newest.is_fast() && !self.rules.fast_majority_read {
            self.start_prepare(state, host);
        } else {
            let of_put = self.rules.flat || newest.ballot == 0 || self.rules.write_back_ignores_promise;
            let kind = if of_put { Kind::Store } else { Kind::Accept };
            let request = Request { kind, ballot: newest.ballot, entry: newest, ..Request::default() };
            self.begin(state, host, Phase::Store, request);
        }
    }

    /// A conditional operation that may do without a prepare: by a ballot reserved before, or because all agree.
    fn try_without_prepare(&self, state: &mut State, host: usize, answers: &Answers) {
        let (operation, _, id) = self.current(state, host);
        let newest = self.based(answers.newest, state.hosts[host].epoch);
        let Some(value) = new_value(operation, newest.value) else { return self.start_prepare(state, host) };
        if self.rules.reserve {
            let ballot = answers.promised;
            if !answers.promised_alike || ballot & 31 != super::SLOW | Ballot::from(id) {
                return self.start_prepare(state, host);
            }
            let entry = self.build_on(state, host, newest, value, ballot);
            let promise = self.reserved_ballot(state, host, ballot);
            self.begin(
                state,
                host,
                Phase::Accept,
                Request { kind: Kind::Accept, ballot, entry, promise, ..Request::default() },
            );
            return;
        }
        let undisturbed =
            answers.promised_alike && (self.rules.fast_ignores_promise || answers.promised == newest.ballot);
        let needed = if self.rules.fast_majority { 2 } else { 3 };
        if !(answers.equal && undisturbed && answers.members.count_ones() >= needed) {
            return self.start_prepare(state, host);
        }
        let ballot = fast_ballot(round(answers.promised) + 1, id);
        let entry = self.build_on(state, host, newest, value, ballot);
        let (expected, promise) = (newest.timestamp(), answers.promised);
        let request = Request { kind: Kind::FastAccept, ballot, entry, expected, promise, ..Request::default() };
        self.begin(state, host, Phase::FastAccept, request);
    }

    /// The entry of a conditional operation on top of `base`; the attempt and its result are kept, for an old attempt
    /// can be revived by another host's recovery.
    fn build_on(&self, state: &mut State, host: usize, base: Entry, value: u8, ballot: Ballot) -> Entry {
        let (operation, _, id) = self.current(state, host);
        let mut entry = base;
        if self.rules.flat {
            entry.counter = flat(ballot)
        } else {
            entry.ballot = ballot
        }
        entry.value = value;
        if !self.rules.no_operation_id {
            entry.apply(id, ballot);
        }
        let result = match operation {
            Operation::Increment | Operation::GetExpired(_) => value,
            _ => 1,
        };
        let sender = &mut state.hosts[host];
        sender.attempts[usize::from(sender.attempt_count)] = Attempt { ballot, era: base.era(), result };
        sender.attempt_count += 1;
        sender.result = result;
        entry
    }

    fn have_prepared(&self, state: &mut State, host: usize, answers: &Answers) {
        let ballot = state.hosts[host].request.ballot;
        let promise = self.reserved_ballot(state, host, ballot);
        let newest = self.based(answers.newest, state.hosts[host].epoch);
        let (operation, ..) = self.current(state, host);
        let mut entry = newest;
        if self.rules.flat {
            entry.counter = flat(ballot)
        } else {
            entry.ballot = ballot
        }
        let spreads = matches!(operation, Operation::Migrate(_) | Operation::Sweep(_) | Operation::Rebuild);
        if spreads || operation == Operation::Get {
            state.hosts[host].result = newest.value;
            if answers.equal && !newest.is_fast() && operation == Operation::Get {
                return self.complete(state, host, Status::Done, newest.value);
            }
        } else {
            match self.resolve(state, host, answers) {
                Resolution::Unknown => return self.complete(state, host, Status::Unknown, 0),
                Resolution::Failed(result) => return self.complete(state, host, Status::Done, result),
                Resolution::Confirm(result) => state.hosts[host].result = result,
                Resolution::Write(value) => entry = self.build_on(state, host, newest, value, ballot),
            }
        }
        self.begin(
            state,
            host,
            Phase::Accept,
            Request { kind: Kind::Accept, ballot, entry, promise, ..Request::default() },
        );
    }

    /// What became of this conditional operation's earlier attempts, and what to do now.
    fn resolve(&self, state: &State, host: usize, answers: &Answers) -> Resolution {
        let (operation, _, id) = self.current(state, host);
        let Host { attempts, attempt_count, .. } = &state.hosts[host];
        let attempts = &attempts[..usize::from(*attempt_count)];
        let newest = self.based(answers.newest, state.hosts[host].epoch);
        let applied = if self.rules.no_operation_id { None } else { newest.ballot_of(id) };
        if let Some(ballot) = applied {
            let attempt = attempts.iter().find(|a| a.ballot == ballot);
            let may_be_forgotten = self.rules.strike_at_one || self.rules.unsent_comes_later;
            assert!(attempt.is_some() || may_be_forgotten, "only this host uses its operation ids");
            return attempt.map_or(Resolution::Unknown, |attempt| Resolution::Confirm(attempt.result));
        }
        let sees_all = self.rules.flat || self.rules.no_operation_id || self.rules.retry_across_era;
        if !sees_all && attempts.iter().any(|a| a.era != newest.era()) {
            return Resolution::Unknown; // a put came between: whether the attempt took effect before it cannot be seen
        }
        let rejected = if matches!(operation, Operation::GetExpired(_)) { newest.value } else { 0 };
        match new_value(operation, newest.value) {
            Some(value) => Resolution::Write(value),
            None if answers.equal && !newest.is_fast() && attempts.is_empty() => Resolution::Failed(rejected),
            None if self.rules.fail_without_write_back => Resolution::Failed(rejected),
            None => Resolution::Confirm(rejected),
        }
    }
}

/// How a conditional operation goes on after a prepare.
enum Resolution {
    /// Stop: it may or may not have taken effect.
    Unknown,
    /// The condition does not hold, and a majority agrees.
    Failed(u8),
    /// Make the entry as it is be held by a majority, then return this.
    Confirm(u8),
    /// Write this value on top of it.
    Write(u8),
}

/// What a conditional operation makes of a value; `None`: its condition does not hold.
fn new_value(operation: Operation, value: u8) -> Option<u8> {
    match operation {
        Operation::Increment => Some(value + 1),
        Operation::CompareAndSet(expected, new) if value == expected => Some(new),
        Operation::GetExpired(expired) if value == expired => Some(ABSENT),
        _ => None,
    }
}

/// The one number of a flat timestamp: only small ballots are drawn under those rules.
fn flat(ballot: Ballot) -> u8 {
    u8::try_from(ballot).expect("a flat configuration draws few ballots")
}
