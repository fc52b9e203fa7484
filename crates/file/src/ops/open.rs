//! Open files: what is open keeps its inode when its last name goes, as long as this client lives. Another client's removal ends
//! it.
//!
//! **Whoever takes a name away from what it has open is in the inode's keepers before**, and an inode goes only when it has neither
//! links nor keepers. A client's record lists what it keeps, so that others find it when the client is no more; it lists an inode
//! before that has the keeper, and until it has it no longer.

use engine::task::LocalFuture;

use super::turns::{Turn, Turns};
use crate::access::{Held, Tries};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::inode::{Inode, KEEPERS_MAX};
use crate::record::small::ClientRecord;

impl FileSystem {
    /// Opens an inode, once more if it is open: each takes a [`FileSystem::release`].
    pub fn open_inode(&self, ino: u64) -> LocalFuture<'_, Result<Inode, Error>> {
        Box::pin(async move { Ok(self.open_held(ino, false).await?.record) })
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
                self.locks.forgive(ino);
            }
        }
    }

    /// Closes an inode; with the last close goes one that has no name any more.
    pub fn release(&self, ino: u64) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.uncount(ino);
            // A removal that runs and found it open has it among the orphans already.
            if self.is_open(ino) || !self.orphans.borrow().contains(&ino) {
                return Ok(());
            }
            self.let_go(ino).await
        })
    }

    /// Keeps an inode no more that is open here no more.
    async fn let_go(&self, ino: u64) -> Result<(), Error> {
        let turn = self.turns.alone(ino).await;
        // Opened again meanwhile: that one's close does it. Or it is done.
        if self.is_open(ino) || !self.orphans.borrow().contains(&ino) {
            return Ok(());
        }
        let _named = self.named().await?;
        self.drop_keeper(ino, self.client.get()).await?;
        self.unlist(&turn).await
    }

    /// The same of all that were closed when that could not be done: nobody closes them once more.
    pub(crate) async fn let_go_of_closed(&self) {
        let closed: Vec<u64> = self.orphans.borrow().iter().copied().filter(|ino| !self.is_open(*ino)).collect();
        for ino in closed {
            if let Err(error) = self.let_go(ino).await {
                tracing::debug!(ino, %error, "what was closed without a name is let go of later");
            }
        }
    }

    /// Whether this client has it open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.opened.borrow().contains_key(&ino)
    }

    /// Before a name of it goes: an inode that is open here gets this client as a keeper.
    pub(crate) async fn keep(&self, turn: &Turn<'_>) -> Result<(), Error> {
        let mut tries = Tries::new();
        while self.is_open(turn.ino()) && !self.keep_named(turn).await? {
            tries.again("others take this client for dead").await?;
        }
        Ok(())
    }

    /// The same under the number that this client has; `false`: it is to have another.
    async fn keep_named(&self, turn: &Turn<'_>) -> Result<bool, Error> {
        let ino = turn.ino();
        // First: the last close may come while this waits.
        let is_new = self.orphans.borrow_mut().insert(ino);
        let _named = self.named().await?;
        let client = self.client.get();
        match self.list(ino, true).await {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                // It is surely in no list, and would take the place of one that is.
                if is_new && matches!(error, Error::NoSpace(_)) {
                    self.orphans.borrow_mut().remove(&ino);
                }
                return Err(error);
            }
        }
        let kept = self.change_inode(ino, |inode| {
            inode.add_keeper(client);
            match inode.keepers.len() > KEEPERS_MAX {
                true => Err(Error::NoSpace(format!("too many clients keep inode {ino}, which they have open"))),
                false => Ok(()),
            }
        });
        match kept.await {
            // Another client was faster; or it can't be read, and is left to fsck.
            Err(Error::Stale | Error::Damaged(_)) => self.unlist(turn).await.map(|()| true),
            kept => kept.map(|_| self.is_standing()),
        }
    }

    /// Takes an inode that has not this client as a keeper, or is gone, out of its list.
    async fn unlist(&self, turn: &Turn<'_>) -> Result<(), Error> {
        let ino = turn.ino();
        // Where others have removed the record, it is in no list.
        self.list(ino, false).await?;
        self.orphans.borrow_mut().remove(&ino);
        Ok(())
    }

    /// Ends this client: notes times, frees what it had open without a name, removes its record.
    pub fn close(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.note_all_times().await;
            self.opened.borrow_mut().clear();
            self.open_dirs.borrow_mut().clear();
            let _named = self.turns.alone(Turns::NAMING).await;
            if self.locks.has_any_failed() {
                // What could not be stored under locks may yet come: others have these when the record was silent for long
                // enough, and collect it as that of one who died.
                self.quotas.settle(true).await;
                return Ok(());
            }
            let let_go = self.let_go_all().await;
            self.quotas.settle(true).await;
            let_go?;
            self.collect_client(self.client.get()).await
        })
    }

    /// Keeps nothing any more: before what is used of quotas is told for the last time.
    async fn let_go_all(&self) -> Result<(), Error> {
        let kept: Vec<u64> = self.orphans.borrow().iter().copied().collect();
        for ino in kept {
            self.drop_keeper(ino, self.client.get()).await?;
        }
        Ok(())
    }

    /// Frees what a client that is no more had open without a name, and removes its record.
    pub fn collect_client(&self, client: u64) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
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
        })
    }
}
