//! Locks of files between clients: a record a file, changed by compare-and-set, in which each client has those of its own users.
//!
//! Invariants:
//! - A client has its locks as long as its last renewal was sent no longer than [`LEASE`] ago, and knows by its own clock when that
//!   is over. **Others take them when its record was seen unchanged for [`SILENT_MAX`] by their own clocks**, which began
//!   after that renewal took effect. So a client has lost its locks, and knows it, before another has them.
//! - Locks that were lost do not come back, whatever of their making comes late: the client's next renewal says another term.
//! - Of what is lost every use fails until all that have the file open here have closed it.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::backoff::{Backoff, jittered};
use engine::time;

use super::stakes::{Back, Debt, LockRequest, Stake};
use super::standing::{LEASE, SILENT_MAX};
use crate::access::{Held, Tries};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::inode::Inode;
use crate::record::lock::{Holder, LOCKS_MAX, Lock, LockKind, LockRecord};
use crate::record::small::ClientRecord;

/// Between two looks of who waits, at first and at most. Chosen: a lock goes from host to host within a tenth of a second, for ten
/// reads a second of each that waits.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long one that waits leaves looking to another, who may wait for somebody else: nobody but itself asks whether those live who
/// are in its way. Chosen: little beside the time that they have to be silent for.
const LEFT_TO_ANOTHER: Duration = Duration::from_secs(10);

impl FileSystem {
    /// Takes a lock. With `goes_on` it waits for it as long as that says so, else it is told that there is one in the way.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Interrupted`], [`Error::NoLocks`]; the pool does not answer.
    pub(crate) async fn take_lock(
        &self,
        ino: u64,
        wanted: &LockRequest,
        goes_on: Option<&dyn Fn() -> bool>,
    ) -> Result<(), Error> {
        let stake = self.locks.stake(ino);
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let mut looking = None;
        let taken = loop {
            // First: what changes from here on is not missed.
            let known = stake.changes.get();
            match self.try_lock(&stake, ino, wanted, goes_on.is_some()).await {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
            let Some(goes_on) = goes_on else { break Err(Error::Locked) };
            // One of those that wait here for locks of the file looks at the record; the others are told when it is another.
            let left = time::now();
            loop {
                if !goes_on() {
                    break;
                }
                looking = looking.or_else(|| stake.looking.try_acquire(1));
                let pause = if looking.is_some() { backoff.pause() } else { PAUSE_MAX };
                let freed = stake.freed.notified();
                if stake.changes.get() == known {
                    let _whichever = time::timeout(jittered(pause), freed).await;
                }
                if looking.is_some() || stake.changes.get() != known || left.elapsed() >= LEFT_TO_ANOTHER {
                    break;
                }
            }
            if !goes_on() {
                break Err(Error::Interrupted);
            }
        };
        drop(looking);
        if goes_on.is_some() && taken.is_err() {
            // Others wait for it as long as it is there: what fails is tried again.
            let given_up = self.give(&stake, ino, Debt { what: *wanted, back: Back::Claim }, true).await;
            if let Err(error) = given_up {
                tracing::warn!(%error, ino, "a claim to a lock is not given up yet");
            }
        }
        self.locks.settle(ino, &stake);
        taken
    }

    pub(super) fn lock_of(&self, wanted: &LockRequest) -> Lock {
        let LockRequest { owner, kind, start, end, is_exclusive, pid } = *wanted;
        let holder = Holder { client: self.client.get(), term: self.standing.term(), owner };
        Lock { holder, kind, start, end, is_exclusive, pid }
    }

    /// A file's locks as this client has left them, or, where it does not know that, as they are.
    pub(super) async fn load_locks(&self, stake: &Stake, ino: u64) -> Result<(Option<Held<LockRecord>>, bool), Error> {
        let known = stake.known.take();
        match known {
            Some(held) => Ok((Some(held), true)),
            None => {
                let held: Option<Held<LockRecord>> = self.access.get(&self.access.keys.locks(ino)).await?;
                let version = held.as_ref().map(Held::version);
                if stake.version.replace(version) != version {
                    stake.tell();
                }
                Ok((held, false))
            }
        }
    }

    /// Puts a file's locks in the place of what was found; `false`: something else is there.
    pub(super) async fn swap_locks(
        &self,
        stake: &Stake,
        ino: u64,
        held: Option<Held<LockRecord>>,
        new: LockRecord,
    ) -> Result<bool, Error> {
        if new.count() > LOCKS_MAX {
            return Err(Error::NoLocks);
        }
        let key = self.access.keys.locks(ino);
        let is_same = held.as_ref().map_or(new.count() == 0, |held| held.record == new);
        if is_same && !stake.is_in_doubt.get() {
            *stake.known.borrow_mut() = held;
            return Ok(true);
        }
        let is_empty = new.count() == 0;
        let is_in_doubt = stake.is_in_doubt.replace(true);
        let mut is_done = true;
        let left = match held {
            Some(held) if is_empty && !is_in_doubt => Some(held),
            // Where a change of before may come late it is an empty record that keeps it out.
            held => {
                let put = self.access.put(&key, held.as_ref(), new).await?;
                is_done = put.is_some();
                // Of a change that was made before it could be told others' are found, too: locks that are theirs.
                match put {
                    Some(put) if put.record.count() == 0 => Some(put),
                    put => {
                        stake.version.set(put.as_ref().map(Held::version));
                        *stake.known.borrow_mut() = put;
                        None
                    }
                }
            }
        };
        if let Some(left) = left {
            is_done = self.access.remove(&key, &left).await?;
        }
        stake.is_in_doubt.set(false);
        Ok(is_done)
    }

    /// Takes a lock, or, where it waits and something is in the way, has a claim: whether it has the lock.
    async fn try_lock(&self, stake: &Stake, ino: u64, wanted: &LockRequest, waits: bool) -> Result<bool, Error> {
        let mut turn = stake.turn.acquire(1).await;
        while stake.is_giving() {
            // What is given back is what others wait for, here and elsewhere.
            drop(turn);
            turn = stake.turn.acquire(1).await;
        }
        let _turn = turn;
        let mut tries = Tries::new();
        loop {
            self.prepare_lock().await?;
            self.check_locks(ino)?;
            let (held, is_known) = self.load_locks(stake, ino).await?;
            if !self.standing.can_lock() {
                // What it had was lost meanwhile: of a term that its record does not say yet nothing counts.
                tries.again("locks are lost").await?;
                continue;
            }
            let lock = self.lock_of(wanted);
            let is_own = || lock.holder == self.lock_of(wanted).holder && self.standing.is_told();
            let Holder { client, term, .. } = lock.holder;
            let mut new = held.as_ref().map(|held| held.record.clone()).unwrap_or_default();
            // What it could not give back before is not what it asks for now, and must not take that along later.
            let debts = stake.debts_of(wanted.owner);
            if debts.iter().any(|debt| debt.back != Back::Claim) {
                self.await_late(stake, ino).await?;
            }
            debts.iter().for_each(|debt| debt.pay(&mut new, &self.lock_of(&debt.what)));
            let mut is_inherited = new.drop_holders(|holder| holder.client == client && holder.term != term);
            let mut in_the_way = new.in_the_way(&lock);
            if is_known && !in_the_way.is_empty() {
                continue; // others may have changed it: as it is now
            }
            is_inherited |= self.drop_dead(&mut new, &in_the_way).await?;
            stake.drop_idle(&mut new, &in_the_way);
            in_the_way = new.in_the_way(&lock);
            let is_free = in_the_way.is_empty();
            match is_free {
                true => new.grant(lock),
                false if !waits => return Ok(false),
                false => {
                    if wanted.kind == LockKind::Flock {
                        // As `flock` has it: two that have it shared and want it alone would wait for one another.
                        new.clear(&lock);
                    }
                    new.claim(lock);
                }
            }
            if new.count() > LOCKS_MAX {
                let all: Vec<Lock> = new.locks.iter().chain(&new.claims).copied().collect();
                is_inherited |= self.drop_dead(&mut new, &all).await?;
            }
            if is_inherited {
                // First: once the record does not say any more that they had it, nobody would think of what they had under way.
                self.touch(ino).await?;
            }
            if is_own() {
                // First: from now on it may be there.
                stake.owners.borrow_mut().insert(wanted.owner);
                let is_done = self.swap_locks(stake, ino, held, new).await?;
                self.check_locks(ino)?;
                if is_done && is_own() {
                    stake.strike(&debts);
                    return Ok(is_free);
                }
            }
            tries.again("other clients lock the file").await?;
        }
    }

    /// Takes those of these out of a record whose locks do not count any more: with this very record, and with no later one.
    /// Whether there were any.
    async fn drop_dead(&self, record: &mut LockRecord, locks: &[Lock]) -> Result<bool, Error> {
        let others = locks.iter().map(|lock| (lock.holder.client, lock.holder.term));
        let others: BTreeSet<(u64, u32)> = others.filter(|(client, _)| *client != self.client.get()).collect();
        let mut is_any = false;
        for (client, term) in others {
            if self.is_dead(client, term).await? {
                is_any |= record.drop_holders(|holder| (holder.client, holder.term) == (client, term));
            }
        }
        Ok(is_any)
    }

    /// Whether a client's locks of a term do not count any more.
    async fn is_dead(&self, client: u64, term: u32) -> Result<bool, Error> {
        let asked = time::now();
        if self.locks.was_looked_at(client, asked) {
            return Ok(false);
        }
        let found = self.access.get::<ClientRecord>(&self.access.keys.client(client)).await?;
        let Some(held) = found.filter(|held| held.record.term == term) else { return Ok(true) };
        Ok(self.locks.silence(client, held.version(), asked) >= SILENT_MAX)
    }

    /// Changes an inode, and nothing in it: what others had under way for it can't come any more.
    pub(crate) async fn touch(&self, ino: u64) -> Result<Held<Inode>, Error> {
        let mut tries = Tries::new();
        loop {
            let held = self.inode(ino).await?.ok_or(Error::Stale)?;
            if let Some(put) = self.access.put(&self.access.keys.inode(ino), Some(&held), held.record.clone()).await? {
                return Ok(put);
            }
            tries.again("other clients change the inode").await?;
        }
    }

    /// A lock that is in the way of this one.
    pub(crate) async fn test_lock(&self, ino: u64, wanted: &LockRequest) -> Result<Option<Lock>, Error> {
        let Some(held) = self.access.get::<LockRecord>(&self.access.keys.locks(ino)).await? else { return Ok(None) };
        let lock = self.lock_of(wanted);
        let Holder { client, term, .. } = lock.holder;
        let mut record = held.record;
        let _lost = record.drop_holders(|holder| holder.client == client && holder.term != term);
        while let Some(found) = record.held_against(&lock).copied() {
            if !self.drop_dead(&mut record, &[found]).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Notices when the time of this client's locks is over.
    pub(crate) fn notice_loss(&self) {
        if !self.locks.is_empty() && !self.standing.has_lease() {
            self.lose_locks();
        }
    }

    /// For how long this client has the locks that it has, unless it says that it lives.
    pub(crate) fn lease_left(&self) -> Option<Duration> {
        self.standing.lease_left()
    }

    /// All locks of this client are lost, and others may have them.
    pub(super) fn lose_locks(&self) {
        if self.locks.lose(|ino| self.is_open(ino)) {
            self.standing.end_term();
            tracing::warn!("locks are lost, as this client could not say for {LEASE:?} that it lives");
            self.locks.told.notify_all();
        }
    }

    /// # Errors
    /// [`Error::LostLock`]: locks on the file were lost, and not all have closed it since.
    pub(crate) fn check_locks(&self, ino: u64) -> Result<(), Error> {
        self.notice_loss();
        if self.locks.lost.borrow().contains(&ino) { Err(Error::LostLock) } else { Ok(()) }
    }

    /// Waits until locks on a file are lost: which.
    pub(crate) async fn next_lost(&self) -> u64 {
        loop {
            let told = self.locks.told.notified();
            if let Some(ino) = self.locks.untold.borrow_mut().pop_front() {
                return ino;
            }
            told.await;
        }
    }
}
