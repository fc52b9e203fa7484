//! Links whose names are gone: their inodes hear of it, and go with the last one, unless somebody keeps them.

use engine::time::{self, Instant};

use crate::access::{Held, Tries};
use crate::amount::Amount;
use crate::data::{Hold, may_clear};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::meta::Version;
use crate::record::inode::{Content, Inode};
use crate::record::node::Gone;
use crate::record::{Record as _, Time};

impl FileSystem {
    /// Tells inodes that links are gone. Those that could not be told stay.
    pub(crate) async fn finish_gone(&self, gone: &[Gone]) -> Vec<Gone> {
        let mut left = Vec::new();
        for &gone in gone {
            if self.drop_link(gone.ino, gone.link).await.is_err() {
                left.push(gone);
            }
        }
        left
    }

    /// Takes a link out of an inode that may not have it any more.
    pub(crate) async fn drop_link(&self, ino: u64, link: u64) -> Result<(), Error> {
        if self.known.borrow().is_told(ino, link) {
            return Ok(());
        }
        self.take_out(ino, |inode| inode.remove_link(link)).await?;
        self.known.borrow_mut().tell(ino, link);
        Ok(())
    }

    /// Takes a keeper out of an inode that may not have it any more.
    pub(crate) async fn drop_keeper(&self, ino: u64, client: u64) -> Result<(), Error> {
        self.take_out(ino, |inode| inode.remove_keeper(client)).await
    }

    /// Takes a link or a keeper out of an inode, which goes with the last of both. **One change makes it going, and whoever made
    /// that frees its content**: nobody can tell of another's freeing how far it came.
    async fn take_out(&self, ino: u64, take: impl Fn(&mut Inode) -> bool) -> Result<(), Error> {
        let mut tries = Tries::new();
        let mut guess = self.guess_inode(ino);
        loop {
            let is_guess = guess.is_some();
            let held = match guess.take() {
                Some(held) => held,
                None => match spared(self.inode(ino).await, ino)?.flatten() {
                    Some(held) => held,
                    None => return Ok(()),
                },
            };
            let mut new = held.record.clone();
            if !take(&mut new) {
                if is_guess {
                    continue;
                }
                return Ok(());
            }
            if self.put_without(ino, &held, new).await? {
                return Ok(());
            }
            if !is_guess {
                tries.again("other clients change the inode").await?;
            }
        }
    }

    /// The same with links and a keeper that `fsck` has found to be nobody's, if the inode is at this version still. False: it is
    /// not.
    pub(crate) async fn take_out_at(
        &self,
        ino: u64,
        version: Version,
        links: &[u64],
        keeper: Option<u64>,
    ) -> Result<bool, Error> {
        let Some(held) = self.inode(ino).await?.filter(|held| held.version() == version) else { return Ok(false) };
        let mut new = held.record.clone();
        new.links.retain(|link| !links.contains(link));
        new.keepers.retain(|other| Some(*other) != keeper);
        self.put_without(ino, &held, new).await
    }

    /// Puts an inode that has lost a link or a keeper. False: others have changed it.
    async fn put_without(&self, ino: u64, held: &Held<Inode>, mut new: Inode) -> Result<bool, Error> {
        let key = self.access.keys.inode(ino);
        new.changed = Time::now();
        let (goes, quota) = (new.is_going(), new.quota);
        // A removal does not say whose it was: of what counts, one change tells who is to say that it does not any more.
        if goes && matches!(new.content, Content::Inline(_)) && quota == 0 {
            return self.access.remove(&key, held).await;
        }
        let hold = self.quotas.hold(if goes { quota } else { 0 }).await?;
        let sent = time::now();
        let Some(held) = self.access.put(&key, Some(held), new).await? else { return Ok(false) };
        if goes {
            self.bury_file(ino, &held, sent, &hold).await;
        }
        Ok(true)
    }

    /// Removes an inode that is going, and frees nothing: nobody can tell how far whoever made it so came with that.
    pub(crate) async fn remove_going(&self, ino: u64) -> Result<bool, Error> {
        let key = self.access.keys.inode(ino);
        let held = self.access.get::<Inode>(&key).await?.filter(|held| held.record.is_going());
        match held {
            Some(held) => self.access.remove(&key, &held).await,
            None => Ok(false),
        }
    }

    /// Frees the content of an inode that this client made going by a change that was sent then, and removes it.
    async fn bury_file(&self, ino: u64, held: &Held<Inode>, sent: Instant, hold: &Hold) {
        if !may_clear(sent, time::now()) {
            // Others have removed it by now, perhaps, and what it had is somebody's.
            tracing::warn!(ino, "the content of a file that is gone is left to fsck, as it came too late that it is");
            return;
        }
        hold.refund(Amount::FILE);
        let buried = async {
            self.reap_content(ino, &held.record, hold).await?;
            self.access.remove(&self.access.keys.inode(ino), held).await
        };
        if let Err(error) = buried.await {
            tracing::warn!(%error, ino, "the content of a file that is gone is left to fsck");
        }
    }
}

/// What can't be read is left to `fsck` (`None`): whoever is to remove it, or comes by a name of it, does not wait for that.
pub(crate) fn spared<T>(done: Result<T, Error>, ino: u64) -> Result<Option<T>, Error> {
    match done {
        Err(error @ Error::Damaged(_)) => {
            tracing::warn!(%error, ino, "what is damaged is left to fsck");
            Ok(None)
        }
        done => done.map(Some),
    }
}
