//! [`Standing`]: since when a client is who it is, and which of its locks are its own. No I/O.

use std::cell::Cell;
use std::time::Duration;

use engine::time::{self, Instant};

use crate::data::RENEWED_WITHIN;

/// How often a client that has locks says that it lives.
pub(crate) const LEASE_RENEWED_EVERY: Duration = Duration::from_secs(10);
/// A renewal that was sent so long ago is too old to take a lock by. Chosen: what keeps a client that takes and frees locks all the
/// time from renewing with each.
const LEASE_TAKEN_WITHIN: Duration = Duration::from_secs(20);
/// How long after the last renewal was sent a client has its locks. Others wait for [`SILENT_MAX`] from when they have
/// seen that renewal: what is between is for clocks that differ in speed, and for what is under way.
pub(crate) const LEASE: Duration = Duration::from_secs(40);

/// Until a change has come that was sent right before a lease ended. Derived: it, and what the store sends again for it (ten
/// seconds each), also where a member keeps a write waiting for half a minute.
pub(crate) const SETTLED_WITHIN: Duration = Duration::from_secs(50);
/// How long a client is silent whose locks others take.
pub(crate) const SILENT_MAX: Duration = Duration::from_secs(LEASE.as_secs() + SETTLED_WITHIN.as_secs());

/// Since when this client is who it is.
pub(crate) struct Standing {
    /// When the last renewal that has succeeded was sent; `None`: others have removed the record.
    renewed: Cell<Option<Instant>>,
    /// Which locks are its own, and which the record says.
    term: Cell<u32>,
    told_term: Cell<u32>,
    /// When the time of locks was over that were lost last.
    lost: Cell<Option<Instant>>,
    /// Renewals that have failed, for whoever watches.
    pub(crate) failed: Cell<u64>,
}

impl Standing {
    pub(crate) fn new(sent: Instant) -> Standing {
        Standing {
            renewed: Cell::new(Some(sent)),
            term: Cell::default(),
            told_term: Cell::default(),
            lost: Cell::default(),
            failed: Cell::default(),
        }
    }

    /// When the last renewal was sent.
    pub(crate) fn renewed(&self) -> Option<Instant> {
        self.renewed.get()
    }

    /// A renewal has succeeded that was sent then, and said this term.
    pub(crate) fn renew(&self, sent: Instant, term: u32) {
        if self.renewed.get().is_none_or(|last| last <= sent) {
            self.told_term.set(term);
            self.renewed.set(Some(sent));
        }
    }

    /// Others have removed the record.
    pub(crate) fn end(&self) {
        self.renewed.set(None);
    }

    /// Which locks are its own.
    pub(crate) fn term(&self) -> u32 {
        self.term.get()
    }

    /// Locks of before are nobody's once the record says so; others that see them take no notice then.
    pub(crate) fn end_term(&self) {
        self.term.set(self.told_term.get().wrapping_add(1));
        self.lost.set(Some(self.renewed.get().map_or_else(time::now, |sent| sent + LEASE)));
    }

    /// Which term the record is to say: that of locks which were lost, until what was under way under them has come. So others wait
    /// for it no less than where this client is silent.
    pub(crate) fn term_to_tell(&self) -> u32 {
        let is_over = self.lost.get().is_none_or(|lost| lost.elapsed() >= SETTLED_WITHIN);
        if is_over { self.term.get() } else { self.told_term.get() }
    }

    fn is_within(&self, time: Duration) -> bool {
        self.renewed.get().is_some_and(|sent| sent.elapsed() < time)
    }

    /// Whether locks that this client has are its own yet.
    pub(crate) fn has_lease(&self) -> bool {
        self.is_within(LEASE)
    }

    /// For how long they are, unless it is renewed; `None`: they are not.
    pub(crate) fn lease_left(&self) -> Option<Duration> {
        LEASE.checked_sub(self.renewed.get()?.elapsed()).filter(|left| !left.is_zero())
    }

    /// Whether others do not take the client for dead.
    pub(crate) fn is_young(&self) -> bool {
        self.is_within(RENEWED_WITHIN)
    }

    /// Whether the record says which locks are its own.
    pub(crate) fn is_told(&self) -> bool {
        self.term == self.told_term
    }

    /// Whether it may take a lock.
    pub(crate) fn can_lock(&self) -> bool {
        self.is_within(LEASE_TAKEN_WITHIN) && self.is_told()
    }
}
