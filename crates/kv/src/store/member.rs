//! A member as this host sees it: its table, whether it may vote, and how much is under way there.
//!
//! A member votes only on a connection on which its superblock was read and found to be the same life of the same member.
//! What answers after a reconnect may be an empty or rolled-back medium: its zero pages would say "never written". By what a
//! member that was rolled back is known stands in the newest map, which this host need not know yet: so it asks for that, once
//! on every connection, before the member counts.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use device::Namespace;
use engine::time::{self, Instant};

use fabric::host::AnyRemote;
use pool::Map;

use super::topology::epoch_start;
use super::{Inner, MemberStatus, STRAGGLER_BYTES_MAX, STRAGGLERS_MAX};
use crate::table::{Early, Found, Known, Orphans, PageImage, Reply, Request, Table, TableError};
use crate::types::{Key, OpId};
use crate::value::Value;

/// A member by its id and its incarnation: indices shift when members come and go, and one that was formatted again is another.
pub(super) type Life = (pool::MemberId, u64);

/// A member of the pool.
pub(super) struct Member {
    /// The map that it is a member of.
    map: Rc<Map>,
    /// Its index there.
    pub(super) index: usize,
    table: Option<Rc<Table>>,
    /// The connection on which the superblock was found good under this map.
    checked: Cell<Option<u64>>,
    /// Why the superblock on this connection was refused, and when it was last read.
    refused: RefCell<Option<Refusal>>,
    /// What is true of the member under every map.
    health: Rc<Health>,
}

#[derive(Default)]
struct Health {
    /// It has missed a write, or was away while others may have written.
    stale: Cell<bool>,
    /// The last connection on which it was found good.
    connection: Cell<Option<u64>>,
    /// The connection that was last known to be lost, and since when that is known.
    lost: Cell<Option<(u64, Instant)>>,
    /// The connection on which it was last looked at, and when that was first.
    seen: Cell<Option<(u64, Instant)>>,
    /// The store that learns newer maps, if it follows them.
    store: RefCell<Weak<Inner>>,
    stragglers: Cell<usize>,
    straggler_bytes: Cell<usize>,
    orphans: Orphans,
}

struct Refusal {
    epoch: u64,
    reason: String,
    seen: Instant,
}

/// How long a refusal is believed: an operator may have put the member right, but not within every operation.
const REFUSAL_BELIEVED: Duration = Duration::from_secs(1);

/// Why a member did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MemberError {
    /// Not given, not connected, or just reconnected.
    #[error("not connected")]
    Away,
    /// Too much is under way there.
    #[error("passed over: too many commands are still under way")]
    Busy,
    /// No answer in time.
    #[error("no answer in time")]
    Slow,
    /// Its superblock is not the one in the map.
    #[error("no vote: {0}")]
    NoVote(String),
    /// Its superblock is of a later map than this host goes by.
    #[error("it carries the map of epoch {carried}, and that can't be learnt now: {reason}; repair again")]
    Ahead { carried: u64, reason: String },
    /// Its table.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl MemberError {
    /// Whether the same may work soon.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            MemberError::Away | MemberError::Busy | MemberError::Slow => true,
            MemberError::NoVote(_) | MemberError::Ahead { .. } => false,
            MemberError::Table(TableError::Contended) => true,
            MemberError::Table(TableError::Device(error)) => {
                error.outcome_unknown() || matches!(error, device::Error::NotConnected(_))
            }
            MemberError::Table(_) => false,
        }
    }

    /// The later epoch that a page is sealed for.
    pub(super) fn sealed(&self) -> Option<u64> {
        match self {
            MemberError::Table(TableError::Sealed { seal, .. }) => Some(*seal),
            _ => None,
        }
    }

    /// Whether a page of the member is damaged, or what it refers to as a part of itself: repair rebuilds that. (Not so a block
    /// that can't be read, which stays so whatever is walked over.)
    pub(super) fn is_damage(&self) -> bool {
        match self {
            MemberError::Table(TableError::Page { error, .. }) => error.is_damage(),
            MemberError::Table(error) => matches!(error, TableError::CopyDamaged { .. }),
            _ => false,
        }
    }

    /// Whether the member has not done what it was asked, and never will: it is full, or its page is sealed.
    pub(super) fn is_refusal(&self) -> bool {
        self.is_out_of_space() || self.sealed().is_some()
    }

    pub(super) fn is_out_of_space(&self) -> bool {
        let MemberError::Table(error) = self else { return false };
        matches!(error, TableError::OutOfSpace(_) | TableError::Device(device::Error::OutOfSpace))
    }
}

/// A command under way, until dropped.
pub(super) struct UnderWay {
    member: Rc<Member>,
    /// Bytes it holds on to, once its operation has ended without it.
    straggles: Cell<Option<usize>>,
}

impl UnderWay {
    /// Its operation has ended without it; it holds on to so many bytes.
    pub(super) fn straggle(&self, bytes: usize) {
        if self.straggles.replace(Some(bytes)).is_none() {
            let health = &self.member.health;
            health.stragglers.set(health.stragglers.get() + 1);
            health.straggler_bytes.set(health.straggler_bytes.get() + bytes);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(bytes) = self.straggles.get() {
            let health = &self.member.health;
            health.stragglers.set(health.stragglers.get() - 1);
            health.straggler_bytes.set(health.straggler_bytes.get() - bytes);
        }
    }
}

impl Member {
    pub(super) fn new(index: usize, namespace: Option<AnyRemote>, map: &Rc<Map>) -> Member {
        let table = namespace.map(|namespace| Table::new(namespace, map, index));
        Member::with(index, table, map, Rc::default())
    }

    /// The same member in another map.
    pub(super) fn successor(&self, index: usize, map: &Rc<Map>) -> Member {
        let table = self.table.as_ref().map(|table| table.successor(map, index));
        Member::with(index, table, map, self.health.clone())
    }

    fn with(index: usize, table: Option<Rc<Table>>, map: &Rc<Map>, health: Rc<Health>) -> Member {
        let (checked, refused) = (Cell::new(None), RefCell::new(None));
        Member { map: map.clone(), index, table, checked, refused, health }
    }

    /// Goes by the newest map that this store can learn.
    pub(super) fn follow(&self, store: &Rc<Inner>) {
        *self.health.store.borrow_mut() = Rc::downgrade(store);
    }

    /// Whether it has missed a write, or was away while others may have written.
    pub(super) fn is_stale(&self) -> bool {
        self.health.stale.get()
    }

    /// Says so, or not; returns what was said before.
    pub(super) fn set_stale(&self, stale: bool) -> bool {
        self.health.stale.replace(stale)
    }

    pub(super) fn table(&self) -> Option<&Rc<Table>> {
        self.table.as_ref()
    }

    /// What was seen there that nobody referred to.
    pub(super) fn orphans(&self) -> &Orphans {
        &self.health.orphans
    }

    pub(super) fn status(&self) -> MemberStatus {
        let link = self.table.as_ref().map(|table| table.namespace().link());
        MemberStatus {
            index: self.index,
            connected: link.is_some_and(|link| link.is_up),
            votes: link.is_some_and(|link| link.is_up && self.checked.get() == Some(link.epoch)),
            stale: self.is_stale(),
            stragglers: self.health.stragglers.get(),
        }
    }

    /// For how long it has been known to have no connection, if it has none now. What was never there is as good as lost for ever.
    pub(super) fn away_for(&self) -> Option<Duration> {
        let Some(table) = &self.table else { return Some(Duration::MAX) };
        let link = table.namespace().link();
        if link.is_up {
            return None;
        }
        let (connection, lost) = (link.epoch, &self.health.lost);
        let known = lost.get().filter(|(lost, _)| *lost == connection);
        let (_, since) = known.unwrap_or((connection, time::now()));
        lost.set(Some((connection, since)));
        Some(since.elapsed())
    }

    /// Begins a command; refused at once if it could only fail or wait.
    pub(super) fn begin(self: &Rc<Self>) -> Result<UnderWay, MemberError> {
        if self.away_for().is_some() {
            return Err(MemberError::Away);
        }
        if self.health.stragglers.get() >= STRAGGLERS_MAX || self.health.straggler_bytes.get() >= STRAGGLER_BYTES_MAX {
            return Err(MemberError::Busy);
        }
        Ok(UnderWay { member: self.clone(), straggles: Cell::new(None) })
    }

    /// The table, if this connection's superblock is good; with the connection, for [`Member::counts`].
    pub(super) async fn voting(&self) -> Result<(&Rc<Table>, u64), MemberError> {
        let table = self.table.as_ref().ok_or(MemberError::Away)?;
        let epoch = table.namespace().link().epoch;
        if self.checked.get() != Some(epoch) {
            self.check(table, epoch).await?;
        }
        Ok((table, epoch))
    }

    /// The connection on which it has a vote.
    pub(super) async fn vote(&self) -> Result<u64, MemberError> {
        self.voting().await.map(|(_, epoch)| epoch)
    }

    /// Reads the superblock again, though it was good on this connection: others may have begun the member anew meanwhile. Returns
    /// the epoch of the map that it names, whoever else has learnt of that. (Who votes may carry a later one than this host knows:
    /// else none would have a vote while a map is on its way to it.)
    pub(super) async fn check_again(&self) -> Result<u64, MemberError> {
        let table = self.table.as_ref().ok_or(MemberError::Away)?;
        self.checked.set(None);
        self.check(table, table.namespace().link().epoch).await
    }

    /// Which member it is, under any map.
    pub(super) fn life(&self) -> Life {
        let member = &self.map.members[self.index];
        (member.id, member.incarnation)
    }

    /// Reads the superblock on this connection, and returns the epoch of the map that it names if it is good.
    async fn check(&self, table: &Table, epoch: u64) -> Result<u64, MemberError> {
        if let Some(refusal) = &*self.refused.borrow()
            && refusal.epoch == epoch
            && refusal.seen.elapsed() < REFUSAL_BELIEVED
        {
            return Err(MemberError::NoVote(refusal.reason.clone()));
        }
        let newest = self.newest_since(epoch).await?;
        let member = &self.map.members[self.index];
        let same = newest.index_of(member.id).filter(|&index| newest.members[index].incarnation == member.incarnation);
        let (map, index) = same.map_or((&self.map, self.index), |index| (&newest, index));
        let carried = match pool::check_member(table.namespace(), map, index).await {
            Ok(carried) => carried,
            Err(pool::Error::Device { source, .. }) => return Err(TableError::Device(source).into()),
            Err(error) => {
                let reason = error.to_string();
                let before = self.refused.replace(Some(Refusal { epoch, reason: reason.clone(), seen: time::now() }));
                if before.is_none_or(|before| before.reason != reason) {
                    tracing::warn!(member = self.index, %reason, "a member has no vote");
                }
                return Err(MemberError::NoVote(reason));
            }
        };
        self.counts(epoch)?;
        *self.refused.borrow_mut() = None;
        self.checked.set(Some(epoch));
        if self.health.connection.replace(Some(epoch)).is_some_and(|before| before != epoch) {
            // It was away, and others may have written meanwhile.
            self.set_stale(true);
        }
        Ok(carried)
    }

    /// The newest map that this host knows, which it has asked for since it has this connection.
    async fn newest_since(&self, epoch: u64) -> Result<Rc<Map>, MemberError> {
        let seen = &self.health.seen;
        let (_, since) = seen.get().filter(|(seen, _)| *seen == epoch).unwrap_or((epoch, time::now()));
        seen.set(Some((epoch, since)));
        let Some(store) = self.health.store.borrow().upgrade() else { return Ok(self.map.clone()) };
        let asked = store.refresh(|inner| inner.is_confirmed_since(since)).await;
        asked.map_err(|reason| {
            tracing::debug!(member = self.index, %reason, "whether a member was rolled back can't be known yet");
            MemberError::Away
        })?;
        Ok(store.topology().map.clone())
    }

    /// Whether what was just answered came over the connection that was checked.
    pub(super) fn counts(&self, epoch: u64) -> Result<(), MemberError> {
        let now = self.table.as_ref().map(|table| table.namespace().link().epoch);
        if now == Some(epoch) { Ok(()) } else { Err(MemberError::Away) }
    }

    /// Reads a key's home page.
    pub(super) async fn read(&self, key: &Key) -> Result<(PageImage, Found), MemberError> {
        let (table, epoch) = self.voting().await?;
        let image = table.read_home(key).await?;
        let found = table.find(&image, key)?;
        self.counts(epoch)?;
        Ok((image, found))
    }

    /// Asks for a change of a key's register.
    pub(super) async fn apply(&self, key: &Key, request: &Request, known: Known) -> Result<Reply, MemberError> {
        let (table, epoch) = self.voting().await?;
        let reply = table.apply(key, request, known).await?;
        self.counts(epoch)?;
        Ok(reply)
    }

    /// Places the value of a put to come; `None`: it may stand in its home page.
    pub(super) async fn place(&self, key: &Key, op: OpId, value: &Value) -> Result<Option<Early>, MemberError> {
        let (table, _) = self.voting().await?;
        Ok(table.place_early(key, op, value).await?)
    }

    /// Frees what was placed for a put that did not come.
    pub(super) async fn discard(&self, key: &Key, placed: Early) {
        if let Some(table) = &self.table {
            table.discard_early(key, placed).await;
        }
    }

    /// What a reply's page says of the key.
    pub(super) fn found(&self, reply: &Reply, key: &Key) -> Result<Found, MemberError> {
        let table = self.table.as_ref().ok_or(MemberError::Away)?;
        Ok(table.find(&reply.image, key)?)
    }

    /// Counters and ballots' rounds that its map's epoch makes are above this.
    pub(super) fn epoch_start(&self) -> u64 {
        epoch_start(&self.map)
    }
}
