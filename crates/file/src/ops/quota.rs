//! Quotas of directories: given, shown, and heeded where inodes are made. What counts, and how, is in the README of this crate.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::task::LocalFuture;
use engine::time;

use super::shown;
use crate::access::Tries;
use crate::amount::Amount;
use crate::data::{Charge, Few};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::quota::{Limits, QuotaRecord};
use crate::record::{Kind, Stamps};

/// For so long clients go by what they have read of a directory's inode, and a moment more.
const HEARD_AFTER: Duration = Duration::from_millis(1200);
/// Names of a directory that are looked at. Chosen: one that was empty a moment ago has no more.
const NAMES_LOOKED_AT: usize = 1000;
/// Records that are read at once, and keys listed.
const TOGETHER: usize = 32;
const LISTED: usize = 1024;

/// A directory's quota, and what is used of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// The directory.
    pub dir: u64,
    /// What may be used.
    pub limits: Limits,
    /// What is used, with what other clients have set aside.
    pub used: Amount,
    /// Of that, what clients have set aside: as much, or less, is used of it.
    pub set_aside: Amount,
}

impl FileSystem {
    /// The quota for which counts what is made in a directory; 0: none.
    pub(super) async fn quota_within(&self, dir: u64) -> Result<u64, Error> {
        let inode = match self.guess_inode(dir) {
            Some(held) => held.record,
            None => self.inode(dir).await?.ok_or_else(|| Error::NotFound(format!("directory {dir}")))?.record,
        };
        Ok(inode.quota_within(dir))
    }

    /// Takes one inode of a quota, as a client that others do not take for dead.
    pub(super) async fn count_file(&self, quota: u64, is_forced: bool) -> Result<Charge, Error> {
        if quota != 0 && !self.is_standing() {
            drop(self.named().await?);
        }
        self.quotas.count_file(quota, is_forced).await
    }

    /// Gives a directory a quota, or other limits. Without any, what counts for it is counted as before.
    ///
    /// # Errors
    /// [`Error::HasNames`]: it has none yet, and has names. What others made there at the same moment does not count for it, and is
    /// named ([`Error::Across`]).
    pub fn set_quota(&self, dir: u64, limits: Limits) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let inode = self.get_inode(dir).await?;
            if inode.kind != Kind::Directory {
                return Err(Error::NotDirectory(format!("inode {dir}")));
            }
            if !inode.has_quota && !self.readdir(dir, 0, 3).await?.iter().all(|entry| is_dots(&entry.name)) {
                return Err(Error::HasNames(format!("directory {dir}")));
            }
            // First: a directory that has one has a record. **That of one that has none yet is put anew, whatever it says**: else
            // it is as old as whoever died here before, and who is about to remove it as left over does, once the directory has a
            // quota.
            self.put_limits(dir, limits, !inode.has_quota).await?;
            if inode.has_quota {
                return Ok(());
            }
            self.change_inode(dir, |inode| {
                inode.has_quota = true;
                Ok(())
            })
            .await?;
            // Whoever came so late with this that the record was taken for left over puts it once more.
            self.put_limits(dir, limits, false).await?;
            time::sleep(HEARD_AFTER).await;
            for entry in self.readdir(dir, 0, NAMES_LOOKED_AT).await? {
                let counts =
                    is_dots(&entry.name) || self.inode(entry.ino).await?.is_none_or(|held| held.record.quota == dir);
                if !counts {
                    return Err(Error::Across(format!(
                        "the quota is set; {}, which was made meanwhile,",
                        shown(&entry.name)
                    )));
                }
            }
            Ok(())
        })
    }

    async fn put_limits(&self, dir: u64, limits: Limits, is_anew: bool) -> Result<(), Error> {
        let (access, mut tries) = (self.quotas.access(), Tries::new());
        let key = access.keys.quota(dir);
        loop {
            let held = access.get::<QuotaRecord>(&key).await?;
            let new = match &held {
                Some(held) if held.record.limits == limits && !is_anew => return Ok(()),
                Some(held) => QuotaRecord { limits, ..held.record.clone() },
                None => QuotaRecord { stamps: Stamps::default(), limits, ..QuotaRecord::default() },
            };
            if access.put(&key, held.as_ref(), new).await?.is_some() {
                return Ok(());
            }
            tries.again("other clients change the quota").await?;
        }
    }

    /// The quota of a directory, or the one that a file counts for; `None`: there is none.
    ///
    /// # Errors
    /// What the store says; its record is not there.
    pub fn quota_of(&self, ino: u64) -> LocalFuture<'_, Result<Option<Quota>, Error>> {
        Box::pin(async move {
            let inode = self.get_inode(ino).await?;
            match inode.quota_within(ino) {
                0 => Ok(None),
                dir => {
                    let quota = self.quota(dir).await?;
                    quota.map(Some).ok_or_else(|| Error::Damaged(format!("the quota of directory {dir} is not there")))
                }
            }
        })
    }

    async fn quota(&self, dir: u64) -> Result<Option<Quota>, Error> {
        let access = self.quotas.access();
        let Some(held) = access.get::<QuotaRecord>(&access.keys.quota(dir)).await? else { return Ok(None) };
        let record = held.record;
        // What this client has and does not use, it knows.
        let own = self.quotas.unused(dir);
        let shares = record.shares.iter().fold(Amount::ZERO, |all, share| all + share.held);
        let used = (record.taken() - own).max(Amount::ZERO);
        Ok(Some(Quota { dir, limits: record.limits, used, set_aside: (shares - own).max(Amount::ZERO).min(used) }))
    }

    /// Tells what this client has used of quotas, and gives back what it does not want. Whoever mounts calls this about every ten
    /// seconds.
    pub fn settle_quotas(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            self.quotas.settle(false).await;
        })
    }

    /// All quotas of the file system whose records can be read; of the others the log is told.
    ///
    /// # Errors
    /// What the store says.
    pub fn quotas(&self) -> LocalFuture<'_, Result<Vec<Quota>, Error>> {
        Box::pin(async move {
            let mut numbers = self.quota_numbers().await?.into_iter();
            let (mut few, mut found) = (Few::new(), Vec::new());
            loop {
                while few.keys().count() < TOGETHER
                    && let Some(dir) = numbers.next()
                {
                    few.push(dir, self.quota(dir));
                }
                match few.next().await {
                    None => break,
                    Some((dir, Err(error @ Error::Damaged(_)))) => {
                        tracing::warn!(dir, %error, "a quota is passed over, as its record can't be read");
                    }
                    Some((_, quota)) => found.extend(quota?),
                }
            }
            found.sort_by_key(|quota: &Quota| quota.dir);
            Ok(found)
        })
    }

    /// The directories of which there are records of quotas, whatever these say.
    pub(crate) async fn quota_numbers(&self) -> Result<BTreeSet<u64>, Error> {
        let prefix = self.access.keys.quotas();
        let (mut cursor, mut found) = (0, BTreeSet::new());
        loop {
            let (keys, next) = self.access.meta.list(&prefix, cursor, LISTED).await?;
            let number = |key: &Vec<u8>| Some(u64::from_be_bytes(key.strip_prefix(&*prefix)?.try_into().ok()?));
            found.extend(keys.iter().filter_map(number));
            if next == 0 {
                return Ok(found);
            }
            cursor = next;
        }
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
