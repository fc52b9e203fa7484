//! A member as this host sees it: its table, whether it may vote, and how much is under way there.
//!
//! A member votes only on a connection on which its superblock was read and found to be the same life of the same member.
//! What answers after a reconnect may be an empty or rolled-back medium: its zero pages would say "never written".

use std::cell::Cell;
use std::rc::Rc;

use pool::Map;

use super::link::Link;
use super::{MemberStatus, STRAGGLERS_MAX};
use crate::page::Reference;
use crate::table::{Found, Outcome, PageImage, Record, Table, TableError};
use crate::types::Key;

/// A member of the pool.
pub(super) struct Member<N: Link> {
    pub(super) index: usize,
    table: Option<Rc<Table<N>>>,
    /// The connection on which the superblock was found good.
    checked: Cell<Option<u64>>,
    /// It has missed a write, or was away while others may have written.
    pub(super) stale: Cell<bool>,
    stragglers: Cell<usize>,
}

/// Why a member did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MemberError {
    /// Not given, not connected, or just reconnected.
    #[error("not connected")]
    Away,
    /// Too much is under way there.
    #[error("passed over: {STRAGGLERS_MAX} commands are still under way")]
    Busy,
    /// Its superblock is not the one in the map.
    #[error("no vote: {0}")]
    NoVote(String),
    /// Its table.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl MemberError {
    /// Whether the same may work soon.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            MemberError::Away | MemberError::Busy => true,
            MemberError::NoVote(_) => false,
            MemberError::Table(TableError::Contended) => true,
            MemberError::Table(TableError::Device(error)) => {
                error.outcome_unknown() || matches!(error, device::Error::NotConnected(_))
            }
            MemberError::Table(_) => false,
        }
    }

    pub(super) fn is_out_of_space(&self) -> bool {
        let MemberError::Table(error) = self else { return false };
        matches!(error, TableError::OutOfSpace(_) | TableError::Device(device::Error::OutOfSpace))
    }
}

/// A command under way, until dropped.
pub(super) struct UnderWay<N: Link> {
    member: Rc<Member<N>>,
    straggles: Cell<bool>,
}

impl<N: Link> UnderWay<N> {
    /// Its operation has ended without it.
    pub(super) fn straggle(&self) {
        if !self.straggles.replace(true) {
            self.member.stragglers.set(self.member.stragglers.get() + 1);
        }
    }
}

impl<N: Link> Drop for UnderWay<N> {
    fn drop(&mut self) {
        if self.straggles.get() {
            self.member.stragglers.set(self.member.stragglers.get() - 1);
        }
    }
}

impl<N: Link> Member<N> {
    pub(super) fn new(index: usize, namespace: Option<N>, map: &Map) -> Member<N> {
        Member {
            index,
            table: namespace.map(|namespace| Table::new(namespace, map, index)),
            checked: Cell::new(None),
            stale: Cell::new(false),
            stragglers: Cell::new(0),
        }
    }

    pub(super) fn table(&self) -> Option<&Rc<Table<N>>> {
        self.table.as_ref()
    }

    pub(super) fn status(&self) -> MemberStatus {
        let link = self.table.as_ref().map(|table| table.namespace());
        MemberStatus {
            index: self.index,
            connected: link.is_some_and(N::is_connected),
            votes: link.is_some_and(|link| link.is_connected() && self.checked.get() == Some(link.epoch())),
            stale: self.stale.get(),
            stragglers: self.stragglers.get(),
        }
    }

    /// Begins a command; refused at once if it could only fail or wait.
    pub(super) fn begin(self: &Rc<Self>) -> Result<UnderWay<N>, MemberError> {
        if !self.table.as_ref().is_some_and(|table| table.namespace().is_connected()) {
            return Err(MemberError::Away);
        }
        if self.stragglers.get() >= STRAGGLERS_MAX {
            return Err(MemberError::Busy);
        }
        Ok(UnderWay { member: self.clone(), straggles: Cell::new(false) })
    }

    /// The table, if this connection's superblock is good; with the connection, for [`Member::counts`].
    pub(super) async fn voting(&self, map: &Map) -> Result<(&Rc<Table<N>>, u64), MemberError> {
        let table = self.table.as_ref().ok_or(MemberError::Away)?;
        let epoch = table.namespace().epoch();
        if self.checked.get() != Some(epoch) {
            match pool::check_member(table.namespace(), map, self.index).await {
                Ok(()) => {}
                Err(pool::Error::Device { source, .. }) => return Err(TableError::Device(source).into()),
                Err(error) => {
                    tracing::warn!(member = self.index, %error, "a member has no vote");
                    return Err(MemberError::NoVote(error.to_string()));
                }
            }
            self.counts(epoch)?;
            if self.checked.replace(Some(epoch)).is_some() {
                // It was away, and others may have written meanwhile.
                self.stale.set(true);
            }
        }
        Ok((table, epoch))
    }

    /// Whether what was just answered came over the connection that was checked.
    pub(super) fn counts(&self, epoch: u64) -> Result<(), MemberError> {
        let now = self.table.as_ref().map(|table| table.namespace().epoch());
        if now == Some(epoch) { Ok(()) } else { Err(MemberError::Away) }
    }

    /// Reads a key's home page.
    pub(super) async fn read(&self, map: &Map, key: &Key) -> Result<(PageImage, Found), MemberError> {
        let (table, epoch) = self.voting(map).await?;
        let image = table.read_page(table.home(key)).await?;
        let found = table.find(&image, key)?;
        self.counts(epoch)?;
        Ok((image, found))
    }

    /// Stores a record if it is newer.
    pub(super) async fn store(
        &self,
        map: &Map,
        key: &Key,
        record: &Record,
        image: Option<PageImage>,
        damaged: Option<Reference>,
    ) -> Result<Outcome, MemberError> {
        let (table, epoch) = self.voting(map).await?;
        let outcome = table.store_if_newer(key, record, image, damaged).await?;
        self.counts(epoch)?;
        Ok(outcome)
    }
}
