//! What all requests have in common.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::catalogue::Catalogue;

use super::drives::{DriveError, Drives, Look, Place, Reply};
use super::error::Error;
use super::records::{Drive, Namespace, Record};
use super::store::{Store, Stored};

/// How long a drive is waited for that is only looked at. Chosen: a caller waits for the slowest of all.
const LOOK_TIME: Duration = Duration::from_secs(5);
/// Records of a page. Derived: the catalogue's page.
pub const PAGE_RECORDS_MAX: usize = crate::catalogue::PAGE_ENTRIES_MAX;

/// What callers ask. Any number of them may work on one catalogue, in one process or in several.
#[derive(Clone)]
pub struct Provisioner {
    pub(super) store: Store,
    pub(super) drives: Arc<dyn Drives>,
    /// Told when there is a new operation.
    pub(super) wake: Arc<Notify>,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct List<T> {
    /// In the order of their names.
    pub items: Vec<T>,
    /// Whether there are more behind these.
    pub more: bool,
}

impl<T> List<T> {
    pub(super) fn of<R: Record>((found, more): (Vec<Stored<R>>, bool), view: impl Fn(R) -> T) -> List<T> {
        List { items: found.into_iter().map(|stored| view(stored.record)).collect(), more }
    }
}

impl Provisioner {
    /// Over this catalogue and these drives. Operations wait until somebody runs a [`Worker`](super::Worker).
    pub fn new(catalogue: Arc<dyn Catalogue>, drives: Arc<dyn Drives>) -> Provisioner {
        Provisioner { store: Store::new(catalogue), drives, wake: Arc::new(Notify::new()) }
    }

    /// What a drive says of itself, in bounded time.
    pub(super) async fn look(&self, place: &Place) -> Result<Look, DriveError> {
        in_time(self.drives.look(place)).await
    }

    /// Whether nothing was written to a namespace, in bounded time.
    pub(super) async fn is_blank(&self, place: &Place, namespace: Namespace) -> Result<bool, DriveError> {
        in_time(self.drives.is_blank(place, namespace)).await
    }
}

/// What changes nothing may be given up.
async fn in_time<T>(reply: Reply<'_, T>) -> Result<T, DriveError> {
    let late = || DriveError::Unreachable(format!("no answer within {LOOK_TIME:?}"));
    timeout(LOOK_TIME, reply).await.unwrap_or_else(|_| Err(late()))
}

/// How a drive is reached.
pub(super) fn place_of(drive: &Drive) -> Place {
    Place { address: drive.address.clone(), nqn: drive.nqn.clone() }
}

pub(super) fn drive_failed(place: &Place, source: DriveError) -> Error {
    Error::Drive { address: place.address.to_string(), source }
}
