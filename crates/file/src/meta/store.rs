//! [`StoreMeta`]: the key-value store as [`Meta`].

use std::rc::Rc;

use engine::task::LocalFuture;
use kv::store::{CasOutcome, Change, PutOptions};
use kv::{Store, StoreError, Timestamp, Value};

use super::{KeyPage, Meta, Seen, Swapped, Version};
use crate::error::Error;

/// What values of files are to the store, so that other faces of it don't take them for plain bytes.
const TAG: u32 = u32::from_le_bytes(*b"yaFS");

/// The key-value store of a pool.
pub struct StoreMeta(Rc<Store>);

impl StoreMeta {
    /// Over this store.
    pub fn new(store: Rc<Store>) -> StoreMeta {
        StoreMeta(store)
    }
}

impl Meta for StoreMeta {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            let found = self.0.get_versioned(key).await.map_err(error)?;
            Ok(found.map(|found| Seen { value: found.value.to_vec(), version: found.version }))
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            let swapped = swap(&self.0, key, expected, new).await;
            match swapped {
                Err(error) if error.outcome_unknown() => Ok(Swapped::Unknown),
                swapped => swapped.map_err(error),
            }
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        Box::pin(async move {
            let page = self.0.list(prefix, cursor, limit).await.map_err(error)?;
            Ok((page.entries.into_iter().map(|entry| entry.key).collect(), page.next.unwrap_or(0)))
        })
    }
}

async fn swap(
    store: &Store,
    key: &[u8],
    expected: Option<Version>,
    new: Option<Vec<u8>>,
) -> Result<Swapped, StoreError> {
    let options = PutOptions { expiry: None, tag: TAG };
    let version = match (expected, new) {
        (None, Some(new)) => store.add_versioned(key, Value::copy_from(&new), options).await?,
        (Some(expected), Some(new)) => {
            match store.compare_and_set(key, expected, Value::copy_from(&new), options).await? {
                CasOutcome::Stored(version) => Some(version),
                CasOutcome::Changed(_) => None,
            }
        }
        (expected, None) => {
            store
                .update(key, |found| match found.map(|found| found.version) {
                    found if found != expected => Change::Keep(None),
                    Some(version) => Change::Delete(Some(version)),
                    None => Change::Keep(Some(Version::new(Timestamp::ZERO, &[]))),
                })
                .await?
        }
    };
    Ok(version.map_or(Swapped::Changed, Swapped::Done))
}

fn error(error: StoreError) -> Error {
    match error {
        StoreError::OutOfSpace { .. } => Error::NoSpace(error.to_string()),
        _ => Error::Unavailable(error.to_string()),
    }
}
