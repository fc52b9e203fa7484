//! The one trait. What it promises holds for every engine, and one test suite asks it of each.

use std::pin::Pin;

use super::error::Error;
use super::types::{Commit, Key, Lease, LeaseId, Outcome, Page, Prefix, Range, Reading, Revision, Transaction, Ttl};

/// What an operation comes to. It may be dropped at any time: a change that was begun then is applied or not, as with
/// [`Error::OutcomeUnknown`].
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Ordered keys, compare-and-commit transactions, watches, leases.
///
/// Transactions are strictly serializable: each takes effect between its call and its answer, in the order of revisions, and a read
/// without a revision sees all that was acknowledged before the read began. Every operation ends within the engine's time limit.
pub trait Catalogue: Send + Sync {
    /// What tells this catalogue from every other, for as long as it lives.
    fn identity(&self) -> Answer<'_, String>;

    /// One key, as it is now.
    fn get(&self, key: Key) -> Answer<'_, Reading>;

    /// A page of entries of one moment. Errors: [`Error::Compacted`] and [`Error::NotYet`] of a revision that is asked for.
    fn range(&self, range: Range) -> Answer<'_, Page>;

    /// Applies all changes if all conditions hold, and none of them otherwise. Never sent twice: when the answer is lost, the
    /// answer is [`Error::OutcomeUnknown`]. Errors: [`Error::LeaseGone`] and [`Error::LeaseFull`] of a lease that a change
    /// binds a key to.
    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome>;

    /// Every commit after `after` that changes what `prefix` covers: each once, in the order of revisions, over restarts of
    /// members. Pass the revision of a [`Page`] or [`Reading`] to go on from there.
    fn watch(&self, prefix: Prefix, after: Revision) -> Box<dyn Watch>;

    /// Forgets the history up to and including `through`: no read can ask for an earlier state, and no watch begin earlier. What is
    /// stored now stays. Forgetting what is forgotten is no error. Errors: [`Error::NotYet`].
    fn compact(&self, through: Revision) -> Answer<'_, ()>;

    /// A new lease. When the answer is lost, or there is no room any more, a lease that nobody knows may be left, and ends by
    /// itself.
    fn grant(&self, ttl: Ttl) -> Answer<'_, Lease>;

    /// Begins the lease's time anew, and tells how long it is. Errors: [`Error::LeaseGone`].
    fn keep_alive(&self, id: LeaseId) -> Answer<'_, Lease>;

    /// Ends the lease, and deletes the keys bound to it, in one transaction. That it has ended already is no error.
    fn revoke(&self, id: LeaseId) -> Answer<'_, ()>;
}

/// A watcher's side of a watch.
pub trait Watch: Send {
    /// The next commit. May be dropped and asked again: nothing is lost by that. A member that is not there is no error; the watch
    /// waits for others. After an error the watch is over, and says [`Error::Closed`] from then on. Errors: [`Error::Compacted`]
    /// where the watcher was too slow or began too early, [`Error::NotYet`] and [`Error::PutBack`] where the catalogue has gone
    /// back, [`Error::AnotherCluster`], [`Error::Refused`].
    fn next(&mut self) -> Answer<'_, Commit>;
}
