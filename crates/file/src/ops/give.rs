//! Locks given back. What can't be is tried again with the next renewals.
//!
//! **Nothing is given back for an owner that has it anew**: whoever asks for a lock settles in the same change what it could not
//! give back before, and what is given back later is looked up again in its turn.

use engine::time;

use super::stakes::{Back, Debt, LockRequest, Stake};
use super::standing::SETTLED_WITHIN;
use crate::access::Tries;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::lock::LockKind;

impl FileSystem {
    /// Gives something back. Others that wait here go on at once. With `keeps` what fails is tried again later.
    pub(super) async fn give(&self, stake: &Stake, ino: u64, debt: Debt, keeps: bool) -> Result<(), Error> {
        let giving = stake.giving();
        let turn = stake.turn.acquire(1).await;
        drop(giving);
        let done = self.pay(stake, ino, debt).await;
        match done {
            Ok(()) => stake.strike(&[debt]),
            Err(_) if keeps => stake.owe(debt),
            Err(_) => {}
        }
        drop(turn);
        stake.tell();
        done
    }

    /// In a turn.
    async fn pay(&self, stake: &Stake, ino: u64, debt: Debt) -> Result<(), Error> {
        if debt.back != Back::Claim {
            self.await_late(stake, ino).await?;
        }
        let mut tries = Tries::new();
        while stake.owners.borrow().contains(&debt.what.owner) {
            let (held, _) = self.load_locks(stake, ino).await?;
            let lock = self.lock_of(&debt.what);
            let mut new = held.as_ref().map(|held| held.record.clone()).unwrap_or_default();
            debt.pay(&mut new, &lock);
            let is_known = new.knows(&lock.holder);
            if self.swap_locks(stake, ino, held, new).await? {
                if !is_known {
                    stake.owners.borrow_mut().remove(&debt.what.owner);
                    // There is nothing left that it could have to give back.
                    stake.strike(&stake.debts_of(debt.what.owner));
                }
                return Ok(());
            }
            tries.again("other clients lock the file").await?;
        }
        Ok(())
    }

    /// Where bytes could not be stored, a change of the file may be under way still: others have its locks when that has come, or
    /// can't come any more. An inode is changed for that; for spans it takes its time.
    pub(super) async fn await_late(&self, stake: &Stake, ino: u64) -> Result<(), Error> {
        let Some(failed) = stake.failed.get() else { return Ok(()) };
        if failed.elapsed() < SETTLED_WITHIN {
            return Err(Error::Unavailable("bytes that could not be stored may yet come".into()));
        }
        match self.touch(ino).await {
            // What can't be read is stored by nobody.
            Ok(_) | Err(Error::Stale | Error::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        if stake.failed.get() == Some(failed) {
            stake.failed.set(None);
        }
        Ok(())
    }

    /// Bytes of a file could not be stored: its locks are given back when nothing of that can come any more.
    pub(crate) fn note_failure(&self, ino: u64) {
        if self.locks.has_any(ino) {
            self.locks.stake(ino).failed.set(Some(time::now()));
        }
    }

    async fn give_of(&self, ino: u64, what: LockRequest, back: Back, keeps: bool) -> Result<(), Error> {
        if !self.locks.has(ino, what.owner) {
            return Ok(());
        }
        let stake = self.locks.stake(ino);
        let done = self.give(&stake, ino, Debt { what, back }, keeps).await;
        self.locks.settle(ino, &stake);
        done
    }

    /// Gives a range back; where that fails its owner has it.
    pub(crate) async fn give_back(&self, ino: u64, freed: &LockRequest) -> Result<(), Error> {
        self.give_of(ino, *freed, Back::Range, false).await
    }

    /// Gives a range back of which its owner is told that it has not got it.
    pub(crate) async fn disown(&self, ino: u64, freed: &LockRequest) -> Result<(), Error> {
        self.give_of(ino, *freed, Back::Range, true).await
    }

    /// Gives back all that an owner has, who is gone.
    pub(crate) async fn give_back_all(&self, ino: u64, owner: u64) -> Result<(), Error> {
        self.give_of(ino, LockRequest::all(owner, LockKind::Either), Back::All, true).await
    }

    /// Gives back what could not be given back before.
    pub(crate) async fn pay_debts(&self) {
        for (ino, stake, debt) in self.locks.debts() {
            let turn = stake.turn.acquire(1).await;
            // Its owner may have come back meanwhile, and have it by right.
            if stake.debts.borrow().contains(&debt) {
                match self.pay(&stake, ino, debt).await {
                    Ok(()) => stake.strike(&[debt]),
                    Err(error) => tracing::warn!(%error, ino, "locks of a file are not given back yet"),
                }
            }
            drop(turn);
            stake.tell();
            self.locks.settle(ino, &stake);
        }
    }
}
