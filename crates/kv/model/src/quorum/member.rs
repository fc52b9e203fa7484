//! What a member does with a request: one atomic step, as its page's compare-and-write makes it.
//!
//! Invariants: timestamp and promise never decrease; a put is never refused; whatever is answered is stable.

use super::change::upkeep;
use super::{ABSENT, Ballot, Config, Entry, Kind, Member, Operation, Reply, Request};

impl Config {
    /// Applies the request and returns the answer.
    pub fn apply(&self, member: &mut Member, request: &Request) -> Reply {
        if member.seal > request.epoch && !self.rules.seal_ignored {
            return Reply::Sealed(member.seal);
        }
        match request.kind {
            Kind::Read => Reply::Done(member.entry, member.promised, self.rules.full && member.seal < request.epoch),
            Kind::Prepare => self.prepare(member, request),
            Kind::Store => self.store(member, request),
            Kind::Accept => self.accept(member, request),
            Kind::FastAccept => fast_accept(member, request),
            Kind::Seal | Kind::Clean | Kind::Drop | Kind::DropExact => upkeep(self, member, request),
            Kind::Restore => self.restore(member, request),
        }
    }

    fn prepare(&self, member: &mut Member, request: &Request) -> Reply {
        if request.ballot <= member.promised
            || (self.rules.flat && request.ballot <= Ballot::from(member.entry.counter))
        {
            return Reply::Refused(member.promised.max(member.entry.ballot));
        }
        member.promised = request.ballot;
        holds(member)
    }

    fn store(&self, member: &mut Member, request: &Request) -> Reply {
        let rules = &self.rules;
        let newer = request.entry.timestamp() > member.entry.timestamp();
        let promised_away =
            rules.flat && !rules.flat_put_ignores_promise && Ballot::from(request.entry.counter) < member.promised;
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
            return Reply::Refused(member.entry.counter.into());
        }
        member.promised = request.ballot.max(request.promise);
        store_if_newer(member, &request.entry)
    }

    /// Whether the request would change nothing, now or ever.
    pub(super) fn without_effect(&self, member: &Member, request: &Request) -> bool {
        if self.losses > 0 || self.rules.delete_forgets {
            return false;
        }
        if member.seal > request.epoch && !self.rules.seal_ignored {
            return true; // seals only grow
        }
        if self.entries_are_forgotten() && request.kind != Kind::Seal {
            return false;
        }
        let Member { entry, promised, seal, homes, .. } = *member;
        let mut after = Member { entry, promised, seal, homes, ..Member::default() };
        self.apply(&mut after, request);
        after.entry == entry && after.promised == promised && after.seal == seal
    }

    /// Otherwise a message without effect now has none later.
    fn entries_are_forgotten(&self) -> bool {
        let forgets = |operation: &Operation| {
            matches!(operation, Operation::Clean(_) | Operation::Drop(_) | Operation::DropHeld(_))
        };
        self.hosts.iter().flatten().any(forgets)
    }

    /// Only on the very damage the rebuild has seen: a late one must not bring an old entry into a later loss.
    fn restore(&self, member: &mut Member, request: &Request) -> Reply {
        if member.voteless == 0 || member.voteless != request.loss {
            return Reply::Refused(member.promised);
        }
        (member.voteless, member.lost_at) = (0, 0);
        member.entry = request.entry;
        if !self.rules.rebuild_forgets_promises {
            member.promised = request.promise;
        }
        if !self.rules.rebuild_unsealed {
            member.seal = request.epoch;
        }
        holds(member)
    }
}

pub(super) fn holds(member: &Member) -> Reply {
    Reply::Done(member.entry, member.promised, false)
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
