//! Open files: what is open keeps its inode when its last name goes, as long as this client lives. Another client's removal ends
//! it.
//!
//! **Whoever takes a name away from what it has open is in the inode's keepers before**, and an inode goes only when it has neither
//! links nor keepers. A client's record lists what it keeps, so that others find it when the client is no more; it lists an inode
//! before that has the keeper, and until it has it no longer.

use super::turns::Turn;
use crate::access::{Held, Tries};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::inode::{Inode, KEEPERS_MAX};
use crate::record::small::{ClientRecord, ORPHANS_MAX};
use crate::record::{Stamps, Time};

impl FileSystem {
    /// Which client this is.
    pub fn client(&self) -> u64 {
        self.client.get()
    }

    /// Opens an inode, once more if it is open: each takes a [`FileSystem::release`].
    pub async fn open_inode(&self, ino: u64) -> Result<Inode, Error> {
        Ok(self.open_held(ino, false).await?.record)
    }

    /// The same, for who is to change it. Of what this client has just made (`is_new`) it is told what that was then: nobody else
    /// can have closed it before.
    pub(crate) async fn open_held(&self, ino: u64, is_new: bool) -> Result<Held<Inode>, Error> {
        let _turn = self.turns.share(ino).await;
        *self.opened.borrow_mut().entry(ino).or_default() += 1;
        let opened = match self.guess_inode(ino).filter(|_| is_new) {
            Some(held) => Ok(held),
            None => self.inode(ino).await.and_then(|held| held.ok_or(Error::Stale)),
        };
        if opened.is_err() {
            self.uncount(ino);
        }
        opened
    }

    fn uncount(&self, ino: u64) {
        let mut opened = self.opened.borrow_mut();
        if let Some(count) = opened.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                opened.remove(&ino);
            }
        }
    }

    /// Closes an inode; with the last close goes one that has no name any more.
    pub async fn release(&self, ino: u64) -> Result<(), Error> {
        self.uncount(ino);
        // A removal that runs and found it open has it among the orphans already.
        if self.is_open(ino) || !self.orphans.borrow().contains(&ino) {
            return Ok(());
        }
        let turn = self.turns.alone(ino).await;
        // Opened again meanwhile: that one's close does it. Or it is done.
        if self.is_open(ino) || !self.orphans.borrow().contains(&ino) {
            return Ok(());
        }
        self.drop_keeper(ino, self.client.get()).await?;
        self.unlist(&turn).await
    }

    /// Whether this client has it open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.opened.borrow().contains_key(&ino)
    }

    /// Before a name of it goes: an inode that is open here gets this client as a keeper.
    pub(crate) async fn keep(&self, turn: &Turn<'_>) -> Result<(), Error> {
        let (ino, client) = (turn.ino(), self.client.get());
        if !self.is_open(ino) {
            return Ok(());
        }
        self.orphans.borrow_mut().insert(ino);
        self.change_client(|record| {
            if let Err(at) = record.orphans.binary_search(&ino) {
                if record.orphans.len() >= ORPHANS_MAX {
                    return Err(Error::NoSpace("too many files are open that have no name".to_owned()));
                }
                record.orphans.insert(at, ino);
            }
            Ok(())
        })
        .await?;
        let kept = self.change_inode(ino, |inode| {
            inode.add_keeper(client);
            match inode.keepers.len() > KEEPERS_MAX {
                true => Err(Error::NoSpace(format!("too many clients keep inode {ino}, which they have open"))),
                false => Ok(()),
            }
        });
        match kept.await {
            // Another client was faster; or it can't be read, and is left to fsck.
            Err(Error::Stale | Error::Damaged(_)) => self.unlist(turn).await,
            kept => kept.map(drop),
        }
    }

    /// Takes an inode that has not this client as a keeper, or is gone, out of its list.
    async fn unlist(&self, turn: &Turn<'_>) -> Result<(), Error> {
        let ino = turn.ino();
        self.change_client(|record| {
            record.orphans.retain(|&orphan| orphan != ino);
            Ok(())
        })
        .await?;
        self.orphans.borrow_mut().remove(&ino);
        Ok(())
    }

    /// Puts this client's record, which is not there.
    pub(crate) async fn put_client(&self, record: ClientRecord) -> Result<(), Error> {
        let key = self.access.keys.client(self.client.get());
        let record =
            ClientRecord { stamps: Stamps::default(), host: self.host.clone(), renewed: Time::now(), ..record };
        self.access.put(&key, None, record).await?;
        Ok(())
    }

    async fn change_client(&self, change: impl Fn(&mut ClientRecord) -> Result<(), Error>) -> Result<(), Error> {
        let key = self.access.keys.client(self.client.get());
        let mut tries = Tries::new();
        loop {
            match self.access.get::<ClientRecord>(&key).await? {
                Some(held) => {
                    let mut new = held.record.clone();
                    change(&mut new)?;
                    if new == held.record || self.access.put(&key, Some(&held), new).await?.is_some() {
                        return Ok(());
                    }
                }
                // Others took it for dead and removed it.
                None => {
                    let orphans = self.orphans.borrow().iter().take(ORPHANS_MAX).copied().collect();
                    self.put_client(ClientRecord { orphans, ..ClientRecord::default() }).await?;
                }
            }
            tries.again("others change this client's record").await?;
        }
    }

    /// Says that this client is there; about every minute.
    pub async fn renew(&self) -> Result<(), Error> {
        let now = Time::now();
        self.change_client(|record| {
            record.renewed = now;
            Ok(())
        })
        .await
    }

    /// Ends this client: notes times, frees what it had open without a name, removes its record.
    pub async fn close(&self) -> Result<(), Error> {
        self.note_all_times().await;
        self.opened.borrow_mut().clear();
        self.open_dirs.borrow_mut().clear();
        self.collect_client(self.client.get()).await
    }

    /// Frees what a client that is no more had open without a name, and removes its record.
    pub async fn collect_client(&self, client: u64) -> Result<(), Error> {
        let key = self.access.keys.client(client);
        let mut tries = Tries::new();
        while let Some(held) = self.access.get::<ClientRecord>(&key).await? {
            for &ino in &held.record.orphans {
                self.drop_keeper(ino, client).await?;
            }
            if self.access.remove(&key, &held).await? {
                break;
            }
            tries.again("the client's record changes").await?;
        }
        Ok(())
    }
}
