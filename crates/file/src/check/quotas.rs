//! Records of quotas as a look has met them, and shares of those that are no more.

use std::collections::BTreeMap;

use super::unless_damaged;
use crate::access::{Held, Tries};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::meta::Version;
use crate::record::quota::QuotaRecord;

/// Keys that are listed at once.
const LISTED: usize = 1024;

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
        let (prefix, mut cursor, mut seen) = (names.access.keys.quotas(), 0, QuotasSeen::default());
        loop {
            let (keys, next) = names.meta().list(&prefix, cursor, LISTED).await?;
            let number = |key: &Vec<u8>| Some(u64::from_be_bytes(key.strip_prefix(&*prefix)?.try_into().ok()?));
            for dir in keys.iter().filter_map(number) {
                match record(names, dir).await {
                    Ok(Some(held)) => drop(seen.records.insert(dir, held.version())),
                    Ok(None) => {}
                    Err(Error::Damaged(why)) => drop(seen.damaged.insert(dir, why)),
                    Err(error) => return Err(error),
                }
            }
            if next == 0 {
                return Ok(seen);
            }
            cursor = next;
        }
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
        for quota in self.quotas().await? {
            let mut tries = Tries::new();
            while let Some(held) = unless_damaged(record(self, quota.dir).await)?.flatten()
                && held.record.share(client).is_some()
                && !fold(self, &held, quota.dir, client).await?
            {
                tries.again("other clients change the quota").await?;
            }
        }
        Ok(())
    }
}
