//! Open files: what is open keeps its inode when its last name goes, as long as this client lives. Another client's removal ends
//! it.

use crate::access::Tries;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::inode::Inode;
use crate::record::small::{ClientRecord, ORPHANS_MAX};
use crate::record::{Stamps, Time};

impl FileSystem {
    /// Which client this is.
    pub fn client(&self) -> u64 {
        self.client.get()
    }

    /// Opens an inode, once more if it is open: each takes a [`FileSystem::release`].
    pub async fn open_inode(&self, ino: u64) -> Result<Inode, Error> {
        // First, so that a removal that runs meanwhile knows.
        *self.opened.borrow_mut().entry(ino).or_default() += 1;
        let opened = self.get_inode(ino).await;
        if opened.is_err() {
            self.release(ino).await?;
        }
        opened
    }

    /// Closes an inode; with the last close goes one that has no name any more.
    pub async fn release(&self, ino: u64) -> Result<(), Error> {
        {
            let mut opened = self.opened.borrow_mut();
            let Some(count) = opened.get_mut(&ino) else { return Ok(()) };
            *count -= 1;
            if *count > 0 {
                return Ok(());
            }
            opened.remove(&ino);
        }
        if !self.orphans.borrow().contains(&ino) {
            return Ok(());
        }
        self.reap(ino).await?;
        // Also one that still has a link: a removal that runs sees that it is not open any more, and ends it.
        self.change_client(|record| {
            record.orphans.retain(|&orphan| orphan != ino);
            Ok(())
        })
        .await?;
        self.orphans.borrow_mut().remove(&ino);
        Ok(())
    }

    /// Whether this client has it open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.opened.borrow().contains_key(&ino)
    }

    /// Whether a client that had the inode open when a name of it went still keeps it.
    pub(crate) async fn keeps(&self, keeper: u64, ino: u64) -> Result<bool, Error> {
        if keeper == self.client.get() {
            return Ok(self.is_open(ino));
        }
        let held = self.access.get::<ClientRecord>(&self.access.keys.client(keeper)).await?;
        Ok(held.is_some_and(|held| held.record.orphans.binary_search(&ino).is_ok()))
    }

    /// Before the last name may go: lists an inode that is open as an orphan. The keeper: this client, or 0 for nobody.
    pub(crate) async fn keep(&self, ino: u64) -> Result<u64, Error> {
        if !self.is_open(ino) {
            return Ok(0);
        }
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
        self.orphans.borrow_mut().insert(ino);
        Ok(self.client.get())
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
                None => self.put_client(ClientRecord::default()).await?,
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
        self.collect_client(self.client.get()).await
    }

    /// Frees what a client that is no more had open without a name, and removes its record.
    pub async fn collect_client(&self, client: u64) -> Result<(), Error> {
        let key = self.access.keys.client(client);
        let mut tries = Tries::new();
        while let Some(held) = self.access.get::<ClientRecord>(&key).await? {
            for &ino in &held.record.orphans {
                self.reap(ino).await?;
            }
            if self.access.remove(&key, &held).await? {
                // Those whose last link went since: whoever took it out found the client's record still there.
                for &ino in &held.record.orphans {
                    self.reap(ino).await?;
                }
                break;
            }
            tries.again("the client's record changes").await?;
        }
        Ok(())
    }
}
