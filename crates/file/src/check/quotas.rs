//! Records of quotas as a look has met them, and shares of those that are no more.

use std::collections::BTreeMap;

use super::unless_damaged;
use crate::access::{Held, Tries};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::meta::Version;
use crate::record::quota::QuotaRecord;

/// Records of quotas as they stood.
#[derive(Default)]
pub(crate) struct QuotasSeen {
    pub(super) records: BTreeMap<u64, Version>,
    /// Those that do not parse, and why.
    pub(super) damaged: BTreeMap<u64, String>,
}

pub(super) async fn record(names: &FileSystem, dir: u64) -> Result<Option<Held<QuotaRecord>>, Error> {
    names.quotas.access().get(&names.access.keys.quota(dir)).await
}

impl QuotasSeen {
    /// All of them; before keys of anything else are listed.
    pub(crate) async fn read(names: &FileSystem) -> Result<QuotasSeen, Error> {
        // What this client has used itself, as it mended before.
        names.quotas.settle(true).await;
        let mut seen = QuotasSeen::default();
        for dir in names.quota_numbers().await? {
            match record(names, dir).await {
                Ok(Some(held)) => drop(seen.records.insert(dir, held.version())),
                Ok(None) => {}
                Err(Error::Damaged(why)) => drop(seen.damaged.insert(dir, why)),
                Err(error) => return Err(error),
            }
        }
        Ok(seen)
    }
}

/// Takes a share for used. False: there is none, or others have changed the record.
pub(super) async fn fold(names: &FileSystem, held: &Held<QuotaRecord>, dir: u64, client: u64) -> Result<bool, Error> {
    let mut new = held.record.clone();
    if !new.fold_share(client) {
        return Ok(false);
    }
    Ok(names.quotas.access().put(&names.access.keys.quota(dir), Some(held), new).await?.is_some())
}

impl FileSystem {
    /// Takes all shares of a client that is no more for used: by the change after which what is of it counts no more.
    ///
    /// # Errors
    /// The store does not answer, or others change a quota all the time: it is to be done again.
    pub(crate) async fn fold_shares(&self, client: u64) -> Result<(), Error> {
        // One that does not parse hinders nobody: nothing of it is changed, and `fsck` tells of it.
        for dir in self.quota_numbers().await? {
            let mut tries = Tries::new();
            while let Some(held) = unless_damaged(record(self, dir).await)?.flatten()
                && held.record.share(client).is_some()
                && !fold(self, &held, dir, client).await?
            {
                tries.again("other clients change the quota").await?;
            }
        }
        Ok(())
    }
}
