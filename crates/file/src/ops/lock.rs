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

use super::stakes::{LockRequest, Stake};
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

/// What became of a request.
enum Tried {
    Granted,
    /// Granted, and others were taken for dead for it.
    Inherited,
    Blocked,
}

impl FileSystem {
    /// Takes a lock. With `goes_on` it waits for it as long as that says so, else it is told that there is one in the way. Whether
    /// it was taken from a client that is no more.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Interrupted`], [`Error::NoLocks`]; the pool does not answer.
    pub(crate) async fn take_lock(
        &self,
        ino: u64,
        wanted: &LockRequest,
        goes_on: Option<&dyn Fn() -> bool>,
    ) -> Result<bool, Error> {
        let stake = self.locks.stake(ino);
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let taken = loop {
            // First: what is given back from here on is not missed.
            let freed = stake.freed.notified();
            match self.try_lock(&stake, ino, wanted, goes_on.is_some()).await {
                Ok(Tried::Blocked) => {}
                Ok(tried) => break Ok(matches!(tried, Tried::Inherited)),
                Err(error) => break Err(error),
            }
            match goes_on {
                None => break Err(Error::Locked),
                Some(goes_on) if !goes_on() => break Err(Error::Interrupted),
                Some(_) => {}
            }
            let _whichever = time::timeout(jittered(backoff.pause()), freed).await;
        };
        if goes_on.is_some() && taken.is_err() {
            let given_up = self.change_own(&stake, ino, wanted, |record, lock| record.give_up(lock)).await;
            if let Err(error) = given_up {
                tracing::warn!(%error, ino, "a claim to a lock stays until the file is closed");
            }
            stake.freed.notify_all();
        }
        self.locks.settle(ino, &stake);
        taken
    }

    fn lock_of(&self, wanted: &LockRequest) -> Lock {
        let LockRequest { owner, kind, start, end, is_exclusive, pid } = *wanted;
        let holder = Holder { client: self.client.get(), term: self.standing.term(), owner };
        Lock { holder, kind, start, end, is_exclusive, pid }
    }

    /// A file's locks as this client has left them, or, where it does not know that, as they are.
    async fn load_locks(&self, stake: &Stake, ino: u64) -> Result<(Option<Held<LockRecord>>, bool), Error> {
        let known = stake.known.take();
        match known {
            Some(held) => Ok((Some(held), true)),
            None => Ok((self.access.get(&self.access.keys.locks(ino)).await?, false)),
        }
    }

    /// Puts a file's locks in the place of what was found; `false`: something else is there.
    async fn swap_locks(
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
        let held = match held {
            Some(held) if is_empty && !is_in_doubt => Some(held),
            // Where a change of before may come late it is an empty record that keeps it out.
            held => {
                let put = self.access.put(&key, held.as_ref(), new).await?;
                is_done = put.is_some();
                put
            }
        };
        match held {
            Some(held) if is_empty => is_done = self.access.remove(&key, &held).await?,
            held => *stake.known.borrow_mut() = held,
        }
        stake.is_in_doubt.set(false);
        Ok(is_done)
    }

    async fn try_lock(&self, stake: &Stake, ino: u64, wanted: &LockRequest, waits: bool) -> Result<Tried, Error> {
        let _turn = stake.turn.acquire(1).await;
        let mut tries = Tries::new();
        loop {
            self.prepare_lock().await?;
            self.check_locks(ino)?;
            let (held, is_known) = self.load_locks(stake, ino).await?;
            let lock = self.lock_of(wanted);
            let Holder { client, term, .. } = lock.holder;
            let mut new = held.as_ref().map(|held| held.record.clone()).unwrap_or_default();
            new.drop_holders(|holder| holder.client == client && holder.term != term);
            let mut in_the_way = new.in_the_way(&lock);
            if is_known && !in_the_way.is_empty() {
                continue; // others may have changed it: as it is now
            }
            let dead = self.dead_among(&in_the_way).await?;
            if !dead.is_empty() {
                new.drop_holders(|holder| dead.contains(&(holder.client, holder.term)));
                in_the_way = new.in_the_way(&lock);
            }
            let is_free = in_the_way.is_empty();
            match is_free {
                true => new.grant(lock),
                false if !waits => return Ok(Tried::Blocked),
                false => {
                    if wanted.kind == LockKind::Flock {
                        // As `flock` has it: two that have it shared and want it alone would wait for one another.
                        new.clear(&lock);
                    }
                    new.claim(lock);
                }
            }
            if lock.holder == self.lock_of(wanted).holder {
                // First: from now on it may be there.
                stake.owners.borrow_mut().insert(wanted.owner);
                let is_done = self.swap_locks(stake, ino, held, new).await?;
                self.check_locks(ino)?;
                if is_done && lock.holder == self.lock_of(wanted).holder {
                    return Ok(match is_free {
                        false => Tried::Blocked,
                        true if dead.is_empty() => Tried::Granted,
                        true => Tried::Inherited,
                    });
                }
            }
            tries.again("other clients lock the file").await?;
        }
    }

    /// Those whose locks do not count any more: with this very record, and with no later one.
    async fn dead_among(&self, locks: &[Lock]) -> Result<BTreeSet<(u64, u32)>, Error> {
        let others = locks.iter().map(|lock| (lock.holder.client, lock.holder.term));
        let others: BTreeSet<(u64, u32)> = others.filter(|(client, _)| *client != self.client.get()).collect();
        let mut dead = BTreeSet::new();
        for (client, term) in others {
            if self.is_dead(client, term).await? {
                dead.insert((client, term));
            }
        }
        Ok(dead)
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

    /// Changes what an owner here has of a file's locks.
    async fn change_own(
        &self,
        stake: &Stake,
        ino: u64,
        wanted: &LockRequest,
        change: impl Fn(&mut LockRecord, &Lock),
    ) -> Result<(), Error> {
        let _turn = stake.turn.acquire(1).await;
        let mut tries = Tries::new();
        while stake.owners.borrow().contains(&wanted.owner) {
            let (held, _) = self.load_locks(stake, ino).await?;
            let lock = self.lock_of(wanted);
            let mut new = held.as_ref().map(|held| held.record.clone()).unwrap_or_default();
            change(&mut new, &lock);
            let is_known = new.knows(&lock.holder);
            if self.swap_locks(stake, ino, held, new).await? {
                if !is_known {
                    stake.owners.borrow_mut().remove(&wanted.owner);
                }
                return Ok(());
            }
            tries.again("other clients lock the file").await?;
        }
        Ok(())
    }

    /// Gives a range back. Others that wait here go on at once.
    pub(crate) async fn give_back(&self, ino: u64, freed: &LockRequest) -> Result<(), Error> {
        if !self.locks.has(ino, freed.owner) {
            return Ok(());
        }
        let stake = self.locks.stake(ino);
        let done = self.change_own(&stake, ino, freed, |record, lock| record.clear(lock)).await;
        stake.freed.notify_all();
        self.locks.settle(ino, &stake);
        done
    }

    /// Gives back all that an owner has, who is gone. What fails is tried again with the next renewals.
    pub(crate) async fn give_back_all(&self, ino: u64, owner: u64) -> Result<(), Error> {
        if !self.locks.has(ino, owner) {
            return Ok(());
        }
        let stake = self.locks.stake(ino);
        let all = LockRequest::all(owner, LockKind::Either);
        let done =
            self.change_own(&stake, ino, &all, |record, lock| record.drop_holders(|holder| *holder == lock.holder));
        let done = done.await;
        match done {
            Ok(()) => drop(stake.abandoned.borrow_mut().remove(&owner)),
            Err(_) => drop(stake.abandoned.borrow_mut().insert(owner)),
        }
        stake.freed.notify_all();
        self.locks.settle(ino, &stake);
        done
    }

    /// Gives back what could not be given back before.
    pub(crate) async fn give_back_abandoned(&self) {
        for (ino, owner) in self.locks.abandoned() {
            if let Err(error) = self.give_back_all(ino, owner).await {
                tracing::warn!(%error, ino, "locks of a file that was closed are not given back yet");
            }
        }
    }

    /// A lock that is in the way of this one.
    pub(crate) async fn test_lock(&self, ino: u64, wanted: &LockRequest) -> Result<Option<Lock>, Error> {
        let Some(held) = self.access.get::<LockRecord>(&self.access.keys.locks(ino)).await? else { return Ok(None) };
        let lock = self.lock_of(wanted);
        let Holder { client, term, .. } = lock.holder;
        let mut record = held.record;
        record.drop_holders(|holder| holder.client == client && holder.term != term);
        while let Some(found) = record.held_against(&lock).copied() {
            let dead = self.dead_among(&[found]).await?;
            if dead.is_empty() {
                return Ok(Some(found));
            }
            record.drop_holders(|holder| dead.contains(&(holder.client, holder.term)));
        }
        Ok(None)
    }

    /// Notices when the time of this client's locks is over.
    pub(crate) fn notice_loss(&self) {
        if !self.locks.is_empty() && !self.standing.has_lease() {
            self.lose_locks();
        }
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
