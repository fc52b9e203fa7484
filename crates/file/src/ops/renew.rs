//! Who this client is: a number that no other client ever had, and a record under it that it renews. One that could not for too
//! long, as others may take it for dead by then, goes on under another number. Time is that of a clock that goes on while the
//! machine is suspended.
//!
//! **What is kept under the old number is kept under the new one before the old one is given up**, where it is still there.
//! Whoever uses the number has a turn, and a client gets another one in a turn alone.
//!
//! A client that has locks renews its record more often: they are a lease, and end before others may take them (`lock`).

use std::cell::Cell;

use engine::task::LocalFuture;
use engine::time::{self, Instant};

use super::turns::{Turn, Turns};
use crate::access::{Tries, draw};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::inode::KEEPERS_MAX;
use crate::record::small::{ClientRecord, ORPHANS_MAX};
use crate::record::{Stamps, Time};

impl FileSystem {
    /// Which client this is.
    pub fn client(&self) -> u64 {
        self.client.get()
    }

    /// Which client this is, and when its last renewal was sent.
    pub(crate) fn standing(&self) -> Option<(u64, Instant)> {
        Some((self.client.get(), self.standing.renewed()?))
    }

    /// Whether others do not take this client for dead.
    pub(crate) fn is_standing(&self) -> bool {
        self.standing.is_young()
    }

    /// As long as it is held this client has its number, which is one that others do not take for dead.
    pub(crate) async fn named(&self) -> Result<Turn<'_>, Error> {
        loop {
            let turn = self.turns.share(Turns::NAMING).await;
            if self.is_standing() {
                return Ok(turn);
            }
            drop(turn);
            self.begin_anew().await?;
        }
    }

    /// Says that this client is there; about every minute, and every ten seconds while it has locks. One that could not for too
    /// long gets another number.
    pub fn renew(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let named = self.named().await?;
            let (sent, term) = (Cell::new(time::now()), Cell::new(0));
            let is_there = self.change_client(|record| {
                sent.set(time::now());
                // With each try: of two renewals the one that comes later must not bring an older term back.
                term.set(self.standing.term_to_tell());
                (record.renewed, record.term) = (Time::now(), term.get());
                Ok(())
            });
            if !is_there.await? {
                drop(named);
                return self.begin_anew().await;
            }
            // What was lost before this came is lost.
            self.notice_loss();
            self.standing.renew(sent.get(), term.get());
            Ok(())
        })
    }

    /// Before a lock is taken: the record is young enough, and says which of this client's locks count.
    pub(super) async fn prepare_lock(&self) -> Result<(), Error> {
        self.notice_loss();
        // Twice where the first renewal came too late for locks of other files: they belong to a term that is over.
        for _ in 0..2 {
            if self.standing.can_lock() {
                return Ok(());
            }
            // Where the record is young, and says the old term for a while yet, no renewal helps.
            if !self.is_standing() || self.standing.term_to_tell() == self.standing.term() {
                self.renew().await?;
            }
        }
        match self.standing.can_lock() {
            true => Ok(()),
            false => Err(Error::Unavailable(
                "this client's record is not renewed in time for a lock, or locks were lost less than a minute ago"
                    .to_owned(),
            )),
        }
    }

    /// Goes on under another number, unless another has seen to that.
    async fn begin_anew(&self) -> Result<(), Error> {
        let _turn = self.turns.alone(Turns::NAMING).await;
        if self.is_standing() {
            return Ok(());
        }
        self.lose_locks();
        let (old, new, sent, term) = (self.client.get(), draw(), time::now(), self.standing.term());
        let orphans: Vec<u64> = self.orphans.borrow().iter().take(ORPHANS_MAX).copied().collect();
        self.put_client(new, ClientRecord { orphans: orphans.clone(), ..ClientRecord::default() }).await?;
        let mut gone = Vec::new();
        for ino in orphans {
            if !self.hand_over(ino, old, new).await? {
                gone.push(ino);
            }
        }
        self.client.set(new);
        self.quotas.set_client(new);
        self.standing.renew(sent, term);
        tracing::warn!("this client could not say for too long that it lives, and goes on under another number");
        self.orphans.borrow_mut().retain(|ino| !gone.contains(ino));
        let listed = self.change_client(|record| {
            record.orphans.retain(|ino| !gone.contains(ino));
            Ok(())
        });
        if let Err(error) = listed.await.and(self.collect_client(old).await) {
            tracing::warn!(%error, "the record under the old number is left to fsck");
        }
        Ok(())
    }

    /// Keeps an inode under a new number, and no more under the old one; `false`: it is gone, or can't be kept.
    async fn hand_over(&self, ino: u64, old: u64, new: u64) -> Result<bool, Error> {
        let handed = self.change_inode(ino, |inode| {
            inode.remove_keeper(old);
            inode.add_keeper(new);
            match inode.keepers.len() > KEEPERS_MAX {
                true => Err(Error::Stale),
                false => Ok(()),
            }
        });
        match handed.await {
            Err(Error::Stale | Error::Damaged(_)) => Ok(false),
            handed => handed.map(|_| true),
        }
    }

    /// Puts the record of a client, which is not there.
    pub(crate) async fn put_client(&self, client: u64, record: ClientRecord) -> Result<(), Error> {
        let (stamps, host, term) = (Stamps::default(), self.host.clone(), self.standing.term());
        let record = ClientRecord { stamps, host, term, renewed: Time::now(), ..record };
        self.access.put(&self.access.keys.client(client), None, record).await.map(drop)
    }

    /// Changes this client's record; `false`: others took it for dead and removed it.
    pub(super) async fn change_client(
        &self,
        change: impl Fn(&mut ClientRecord) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let _turn = self.turns.alone(Turns::RECORD).await;
        self.change_client_in_turn(change).await
    }

    /// The same for who has the turn of this client's record.
    pub(super) async fn change_client_in_turn(
        &self,
        change: impl Fn(&mut ClientRecord) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let key = self.access.keys.client(self.client.get());
        let mut tries = Tries::new();
        loop {
            let Some(held) = self.access.get::<ClientRecord>(&key).await? else {
                self.standing.end();
                return Ok(false);
            };
            let mut new = held.record.clone();
            change(&mut new)?;
            if new == held.record || self.access.put(&key, Some(&held), new).await?.is_some() {
                return Ok(true);
            }
            tries.again("others change this client's record").await?;
        }
    }
}
