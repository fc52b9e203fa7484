//! Links whose names are gone: their inodes hear of it, and go with the last one.

use crate::access::Tries;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::Time;
use crate::record::inode::{Content, Inode};
use crate::record::node::Gone;

impl FileSystem {
    /// Tells inodes that links are gone. Those that could not be told stay.
    pub(crate) async fn finish_gone(&self, gone: &[Gone]) -> Vec<Gone> {
        let mut left = Vec::new();
        for &gone in gone {
            if self.drop_link(gone.ino, gone.link, gone.keeper).await.is_err() {
                left.push(gone);
            }
        }
        left
    }

    /// Takes a link out of an inode, which goes with its last one unless `keeper` has it open.
    pub(crate) async fn drop_link(&self, ino: u64, link: u64, keeper: u64) -> Result<(), Error> {
        if self.known.borrow().is_told(ino, link) {
            return Ok(());
        }
        let key = self.access.keys.inode(ino);
        let mut tries = Tries::new();
        loop {
            let Some(held) = self.inode(ino).await? else { break };
            let mut new = held.record.clone();
            let had_it = new.has_link(link);
            new.remove_link(link);
            new.changed = Time::now();
            // Without links it may be somebody's orphan: it goes only with the link that was its last.
            let goes = had_it && new.links.is_empty() && keeper == 0;
            let is_done = match goes {
                true if is_inline(&new) => self.access.remove(&key, &held).await?,
                _ if had_it => self.access.put(&key, Some(&held), new).await?.is_some(),
                _ => true,
            };
            if is_done && goes && !is_inline(&held.record) {
                self.reap(ino).await?;
            }
            if is_done {
                break;
            }
            tries.again("other clients change the inode").await?;
        }
        // Closed meanwhile, when it still had this link; or collected by others.
        if keeper != 0 && !self.keeps(keeper, ino).await? {
            self.reap(ino).await?;
        }
        self.known.borrow_mut().tell(ino, link);
        Ok(())
    }

    /// Frees an inode without links, and its content. One that has some stays.
    pub(crate) async fn reap(&self, ino: u64) -> Result<(), Error> {
        let key = self.access.keys.inode(ino);
        let mut tries = Tries::new();
        loop {
            let Some(held) = self.inode(ino).await?.filter(|held| held.record.links.is_empty()) else { return Ok(()) };
            if !is_inline(&held.record) {
                self.reap_content(ino, &held.record).await?;
            }
            if self.access.remove(&key, &held).await? {
                return Ok(());
            }
            tries.again("other clients change the inode").await?;
        }
    }
}

fn is_inline(inode: &Inode) -> bool {
    matches!(inode.content, Content::Inline(_))
}
