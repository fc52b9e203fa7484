//! The store: a key lives on N members, as N independent registers joined by quorums. No leader, no locks, no failure
//! detector: a minority of dead or slow members changes nothing but speed.
//!
//! Rules (proven by `kv/model`; numbers are those of a put and a get there):
//! - put: read the home pages of a majority, timestamp = (largest counter + 1, own operation id, no ballot), store if newer
//!   on all, done at a majority. It is never tried again with another timestamp: the first may be in force already, and the
//!   second would undo what came between.
//! - get: read all, return when a majority agrees; else store the newest at a majority first (a value that only a minority
//!   holds may be gone for the next reader).
//! - An operation is acknowledged within [`OPERATION_TIME_MAX`] of its start or not at all: the rebuilding of damaged pages
//!   counts on it (`repair`).
//! - A reply counts only if the member's connection is the one on which its superblock was checked (`member`).

mod background;
mod ballots;
mod change;
mod clean;
mod clock;
mod collect;
mod error;
mod fetch;
mod figures;
mod follow;
mod forget;
mod heap;
mod list;
mod many;
mod member;
mod migrate;
mod operation;
mod part;
mod pool_figures;
mod quorum;
mod rebuild;
mod repair;
mod reserve;
mod room;
mod round;
mod scan;
mod scrub;
mod topology;
mod update;
mod usage;
mod value;
mod work;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::histogram::Histogram;
use engine::job::Jobs;
use engine::sync::{Notify, Semaphore};
use engine::task::LocalFuture;
use pool::Map;

use crate::table::Locks;
use crate::types::{Key, OpId};
use fabric::host::AnyRemote;
use member::Member;
use topology::Topology;

pub use background::{RepairerOptions, ScrubberOptions};
pub use ballots::{ATTEMPTS_MAX, RESERVATIONS_MAX};
pub use collect::{CollectOptions, CollectReport};
pub use error::StoreError;
pub use figures::StoreMetrics;
pub use follow::{LEASE_DEFAULT, MapSource};
pub use forget::{ForgetOptions, ForgetReport};
pub use list::{CURSOR_BITS, LIST_ENTRIES_MAX, ListEntry, ListPage, ScanStep};
pub use many::KEYS_AT_ONCE_MAX;
pub use pool_figures::PoolMetrics;
pub use repair::{RepairOptions, RepairReport};
pub use reserve::Reserve;
pub use scrub::{Difference, Findings, ScrubOptions, ScrubReport};
pub use usage::{Estimate, Usage};
pub use value::{CasOutcome, Change, Increment, PutOptions, Shown, Versioned};

/// Within this time an operation is acknowledged or fails. Chosen: longer than a reconnect, shorter than a user's patience.
pub const OPERATION_TIME_MAX: Duration = Duration::from_secs(10);
/// Operations of one store under way at once; more wait. Derived: each holds a page of 4 KiB per replica.
pub const OPERATIONS_MAX: usize = 1024;
/// Commands that outlive their operation on one member; a member with more is passed over until it has caught up. Derived:
/// twice what may be under way, so that a burst alone, acknowledged by the others a moment earlier, never gets there.
pub const STRAGGLERS_MAX: usize = 2 * OPERATIONS_MAX;
/// Bytes of values that such commands may hold on to on one member. Guessed. A
/// single value of the largest size is let through.
pub const STRAGGLER_BYTES_MAX: usize = 64 << 20;

/// Bytes of values that one store reads and writes at once; more wait. Chosen: four of the longest, so that one does not keep
/// the others waiting.
pub const VALUE_BYTES_AT_ONCE_MAX: usize = 4 * crate::types::VALUE_BYTES_MAX;

/// Bytes of values that scrub, repair and migration hold at once, beyond those. Derived: one of the longest, or as many of the
/// usual ones as they look at together.
pub const BACKGROUND_BYTES_MAX: usize = crate::types::VALUE_BYTES_MAX;

/// What a host keeps of a pool: its map, a connection to each member, nothing of what is stored. Cheap to clone; belongs to
/// the thread that made it.
pub struct Store {
    inner: Rc<Inner>,
}

struct Inner {
    /// The pool's, which no change alters.
    hash_seed: u64,
    /// Of the newest map this host knows; an operation keeps the one it began with.
    topology: RefCell<Rc<Topology>>,
    follow: follow::Follow,
    /// This host's life: random, so that no operation id is ever used twice.
    incarnation: u64,
    sequence: Cell<u64>,
    operations: Semaphore,
    /// How long operations wait for members that are known to have no connection.
    patience: Cell<Duration>,
    /// Keys, by hash, at which a conditional operation is under way.
    turns: Locks,
    reservations: ballots::Reservations,
    /// Milliseconds that this host's clock is wrong by.
    #[cfg(test)]
    clock_error: Cell<i64>,
    /// The machine that it is on, if not the world's only one.
    #[cfg(test)]
    machine: Cell<Option<u64>>,
    /// Bytes of values under way.
    value_bytes: Semaphore,
    /// Those of scrub, repair and migration, who hold them longer than it takes to read them.
    background_bytes: Semaphore,
    /// Something may need repair.
    stale: Notify,
    stats: Arc<StoreStats>,
    repair: repair::RepairState,
    /// Members' parts of operations that are not done, begun or not.
    parts: Cell<usize>,
    part_done: Notify,
}

/// Counters that other threads may read.
#[derive(Default, Debug)]
pub struct StoreStats {
    /// What is done to all of the pool, in the background or because somebody asked.
    pub jobs: Jobs,
    /// Gets that were answered.
    pub gets: AtomicU64,
    /// Puts that were acknowledged.
    pub puts: AtomicU64,
    /// Deletes that were acknowledged.
    pub deletes: AtomicU64,
    /// Conditional operations that were answered.
    pub updates: AtomicU64,
    /// Attempts of conditional operations that others made vain.
    pub conflicts: AtomicU64,
    /// Operations that failed.
    pub failures: AtomicU64,
    /// Gets that had to store the newest value first.
    pub write_backs: AtomicU64,
    /// Keys stored on a member by repair.
    pub repaired: AtomicU64,
    /// Times a member was passed over because too much was under way there.
    pub skips: AtomicU64,
    /// Pages sealed by changes of the pool.
    pub sealed_pages: AtomicU64,
    /// Keys that changes of the pool had to bring to members new to them.
    pub moved_keys: AtomicU64,
    /// Copies stored for that.
    pub moved_copies: AtomicU64,
    /// Bytes of keys and values in them.
    pub moved_bytes: AtomicU64,
    /// Entries dropped by changes of the pool where they were no longer at home.
    pub dropped: AtomicU64,
    /// How long gets took.
    pub get_time: Histogram,
    /// How long puts and deletes took.
    pub put_time: Histogram,
    /// How long conditional operations took.
    pub update_time: Histogram,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// How a member stands with this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberStatus {
    /// Its index in the map.
    pub index: usize,
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether its superblock was checked on this connection: it has a vote.
    pub votes: bool,
    /// Whether it has missed something and waits for repair.
    pub stale: bool,
    /// Commands that outlive their operation.
    pub stragglers: usize,
}

impl Clone for Store {
    fn clone(&self) -> Self {
        Store { inner: self.inner.clone() }
    }
}

impl Store {
    /// A store over the members of `map`, in its order; `None`: not reachable for good (it counts as down).
    ///
    /// A member that is down may be given as what it will be when it is back (`fabric`'s `RemoteNamespace::expecting`); its
    /// superblock is checked before it is first counted.
    pub fn new(map: Map, members: Vec<Option<impl Into<AnyRemote>>>) -> Store {
        Store::over(map, members.into_iter().map(|member| member.map(Into::into)).collect())
    }

    fn over(map: Map, members: Vec<Option<AnyRemote>>) -> Store {
        Store {
            inner: Rc::new(Inner {
                hash_seed: map.hash_seed,
                topology: RefCell::new(Rc::new(Topology::new(map, members))),
                follow: follow::Follow::nothing(),
                incarnation: engine::task::random_u64(),
                sequence: Cell::new(0),
                operations: Semaphore::new(OPERATIONS_MAX),
                patience: Cell::new(Duration::MAX),
                turns: Locks::default(),
                reservations: ballots::Reservations::default(),
                #[cfg(test)]
                clock_error: Cell::new(0),
                #[cfg(test)]
                machine: Cell::new(None),
                value_bytes: Semaphore::new(VALUE_BYTES_AT_ONCE_MAX),
                background_bytes: Semaphore::new(BACKGROUND_BYTES_MAX),
                stale: Notify::new(),
                stats: Arc::default(),
                repair: repair::RepairState::default(),
                parts: Cell::new(0),
                part_done: Notify::new(),
            }),
        }
    }

    /// The pool's map: the newest this host knows.
    pub fn map(&self) -> Rc<Map> {
        self.inner.topology().map.clone()
    }

    /// From now on an operation waits no longer than this for the members that it needs and that are known to have no connection.
    /// By default it waits as long as it may take.
    pub fn set_patience(&self, patience: Duration) {
        self.inner.patience.set(patience);
    }

    /// Keys that are known to be in need of repair and wait for it, beside those of members that have missed something.
    pub fn repair_backlog(&self) -> usize {
        self.inner.repair.backlog()
    }

    /// What keeps every operation from being done, if that is known: most of the pool's voters are not connected, or of no key
    /// so many homes as it needs. Costs a walk over the ring.
    pub fn out_of_reach(&self) -> Option<StoreError> {
        self.inner.out_of_reach(Duration::ZERO).or_else(|| self.inner.serves_nothing())
    }

    /// Counters; readable from any thread.
    pub fn stats(&self) -> Arc<StoreStats> {
        self.inner.stats.clone()
    }

    /// How each member stands as far as this host knows: one that was not asked for anything yet has no vote.
    pub fn members(&self) -> Vec<MemberStatus> {
        self.inner.topology().members.iter().map(|member| member.status()).collect()
    }

    /// How each member stands, after all that are connected and have no vote yet were asked for it: who has not answered within
    /// `wait` has none.
    pub fn ask_members(&self, wait: Duration) -> LocalFuture<'_, Vec<MemberStatus>> {
        Box::pin(async move {
            let topology = self.inner.topology();
            let connected = topology.members.iter().filter(|member| member.status().connected);
            let ask = |member: &Rc<Member>| {
                let member = member.clone();
                // Why it has no vote, it has written to the log.
                engine::task::spawn(async move { member.voting().await.is_ok() })
            };
            let asked: Vec<_> = connected.map(ask).collect();
            let all = async {
                for answer in asked {
                    answer.await;
                }
            };
            if engine::time::timeout(wait, all).await.is_err() {
                tracing::warn!(?wait, "not every member has answered");
            }
            topology.members.iter().map(|member| member.status()).collect()
        })
    }

    /// A member's table, for statistics and tools; `None` if it was not given.
    pub fn table(&self, index: usize) -> Option<Rc<crate::table::Table>> {
        self.inner.topology().members.get(index)?.table().cloned()
    }

    /// Waits until what outlives its operation is done: late stores on slow members, space being freed. A host that ends
    /// without it loses no data, but may leave a replica behind and space claimed.
    pub fn settle(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            while self.inner.parts.get() > 0 {
                self.inner.part_done.notified().await;
            }
            for member in &self.inner.topology().members {
                if let Some(table) = member.table() {
                    table.quiesce().await;
                }
            }
        })
    }
}

impl Inner {
    /// The pool as this host knows it now.
    fn topology(&self) -> Rc<Topology> {
        self.topology.borrow().clone()
    }

    fn key(&self, bytes: &[u8]) -> Result<Key, StoreError> {
        Key::new(bytes, self.hash_seed).ok_or(StoreError::Key { length: bytes.len() })
    }

    /// The calendar clock of this host; 0 before 1970.
    fn unix_millis(&self) -> u64 {
        let now = engine::time::unix_time().as_millis() as u64;
        #[cfg(test)]
        let now = now.saturating_add_signed(self.clock_error.get());
        now
    }

    fn next_op(&self) -> OpId {
        self.sequence.set(self.sequence.get() + 1);
        OpId { host: self.incarnation, sequence: self.sequence.get() }
    }

    /// The error of what needs the pool's map confirmed, if too few of its voters have been connected for `patience`.
    fn out_of_reach(&self, patience: Duration) -> Option<StoreError> {
        if patience == Duration::MAX {
            return None;
        }
        let topology = self.topology();
        let is_away = |&index: &usize| topology.members[index].away_for().is_some_and(|away| away >= patience);
        let voters: Vec<usize> = topology.map.voter_indices().collect();
        let away: Vec<usize> = voters.iter().copied().filter(is_away).collect();
        let (connected, needed) = (voters.len() - away.len(), voters.len() / 2 + 1);
        (connected < needed).then(|| {
            let reasons: Vec<String> = away.iter().map(|index| format!("member {index}: not connected")).collect();
            StoreError::OutOfReach { connected, voters: voters.len(), needed, reasons: reasons.join("; ") }
        })
    }

    /// The error of every key, where of none enough homes are connected and have a vote.
    fn serves_nothing(&self) -> Option<StoreError> {
        let topology = self.topology();
        if topology.placement.quorum_anywhere(|member| topology.why_without(member).is_none()) {
            return None;
        }
        let members = topology.members.len();
        let why = |member| topology.why_without(member).map(|why| format!("member {member}: {why}"));
        let missing: Vec<String> = (0..members).filter_map(why).collect();
        Some(StoreError::Unavailable {
            answered: members - missing.len(),
            replicas: members,
            needed: topology.placement.majority(),
            outcome_unknown: false,
            reasons: missing.join("; "),
        })
    }

    /// Notes that a member has missed something.
    fn mark_stale(&self, member: &Member) {
        if !member.set_stale(true) {
            tracing::debug!(member = member.index, "a member waits for repair");
            self.stale.notify_one();
        }
    }
}

#[cfg(test)]
mod actor;
#[cfg(test)]
mod adverse_tests;
#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod clock_tests;
#[cfg(test)]
mod conditional_tests;
#[cfg(test)]
mod forget_tests;
#[cfg(test)]
mod linear_tests;
#[cfg(test)]
mod liveness_tests;
#[cfg(test)]
mod long_tests;
#[cfg(test)]
mod lost_tests;
#[cfg(test)]
mod outcome_tests;
#[cfg(test)]
mod reach_tests;
#[cfg(test)]
mod rebuild_tests;
#[cfg(test)]
mod repair_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod scrub_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod voters;
#[cfg(test)]
mod withdrawn_tests;
