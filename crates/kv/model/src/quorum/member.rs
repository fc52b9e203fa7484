//! What a member does with a request: one atomic step, as its page's compare-and-write makes it.
//!
//! Invariants: timestamp and promise never decrease; a put is never refused; whatever is answered is stable.

use super::{ABSENT, Config, Entry, Kind, Member, Operation, Reply, Request};

impl Config {
    /// Applies the request and returns the answer.
    pub fn apply(&self, member: &mut Member, request: &Request) -> Reply {
        match request.kind {
            Kind::Read => holds(member),
            Kind::Prepare => self.prepare(member, request),
            Kind::Store => self.store(member, request),
            Kind::Accept => self.accept(member, request),
            Kind::FastAccept => fast_accept(member, request),
            Kind::Drop if member.entry.timestamp() == request.expected => {
                member.entry = Entry::default();
                holds(member)
            }
            Kind::Drop => Reply::Refused(member.promised),
            Kind::Restore => restore(member, request),
        }
    }

    fn prepare(&self, member: &mut Member, request: &Request) -> Reply {
        if request.ballot <= member.promised || (self.rules.flat && request.ballot <= member.entry.counter) {
            return Reply::Refused(member.promised.max(member.entry.ballot));
        }
        member.promised = request.ballot;
        holds(member)
    }

    fn store(&self, member: &mut Member, request: &Request) -> Reply {
        let rules = &self.rules;
        let newer = request.entry.timestamp() > member.entry.timestamp();
        let promised_away = rules.flat && !rules.flat_put_ignores_promise && request.entry.counter < member.promised;
        if promised_away && (newer || !rules.flat_superseded_first) {
            return Reply::Refused(member.promised);
        }
        if newer && rules.delete_forgets && request.entry.value == ABSENT {
            member.entry = Entry::default();
            return holds(member);
        }
        store_if_newer(member, &request.entry)
    }

    fn accept(&self, member: &mut Member, request: &Request) -> Reply {
        let superseded = request.entry.timestamp() < member.entry.timestamp();
        if self.rules.superseded_before_promise && superseded {
            return Reply::Superseded(member.promised);
        }
        if request.entry.timestamp() == member.entry.timestamp() {
            member.promised = member.promised.max(request.promise);
            return holds(member);
        }
        // The promise before "superseded": an attempt that a recovery has passed over must not count this member.
        if member.promised > request.ballot {
            return Reply::Refused(member.promised);
        }
        if self.rules.flat && request.entry.counter < member.entry.counter {
            return Reply::Refused(member.entry.counter);
        }
        member.promised = request.ballot.max(request.promise);
        store_if_newer(member, &request.entry)
    }

    /// Whether the request would change nothing; for ever so where [`Config::entries_only_grow`].
    pub(super) fn without_effect(&self, member: &Member, request: &Request) -> bool {
        let mut after = Member { entry: member.entry, promised: member.promised, ..Member::default() };
        self.apply(&mut after, request);
        after.entry == member.entry && after.promised == member.promised
    }

    /// Nothing takes an entry back: a message without effect now has none later.
    pub(super) fn entries_only_grow(&self) -> bool {
        let drops = self.hosts.iter().flatten().any(|operation| *operation == Operation::Collect);
        !drops && !self.rules.delete_forgets && self.losses == 0
    }
}

fn holds(member: &Member) -> Reply {
    Reply::Done(member.entry, member.promised)
}

fn store_if_newer(member: &mut Member, entry: &Entry) -> Reply {
    if entry.timestamp() < member.entry.timestamp() {
        return Reply::Superseded(member.promised);
    }
    if entry.timestamp() > member.entry.timestamp() {
        member.entry = *entry;
    }
    holds(member)
}

fn fast_accept(member: &mut Member, request: &Request) -> Reply {
    if member.promised != request.promise {
        return Reply::Refused(member.promised);
    }
    if member.entry.timestamp() == request.expected {
        member.entry = request.entry;
        member.promised = request.ballot;
        holds(member)
    } else if member.entry.timestamp() > request.entry.timestamp() {
        member.promised = request.ballot;
        Reply::Superseded(member.promised)
    } else {
        Reply::Refused(member.promised)
    }
}

/// Only on the very damage the rebuild has seen: a late one must not bring an old entry into a later loss.
fn restore(member: &mut Member, request: &Request) -> Reply {
    if member.voteless == 0 || member.voteless != request.promise {
        return Reply::Refused(member.promised);
    }
    member.voteless = 0;
    member.entry = request.entry;
    holds(member)
}
