//! [`Medium`]: what a log is on, the same type for every kind, so that the log is compiled once.

use std::sync::Arc;
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Namespace, NamespaceInfo};
use engine::file::Lifetime;
use engine::{Buf, View, time};
use fabric::host::PerThread;

/// How long a write waits for a target that is away before it fails; a few segments that fail so end the flash tier. Guessed: a
/// restart of the target, a path that fails over.
const AWAY_TIME: Duration = Duration::from_secs(10);

/// A namespace for all threads. A clone is the same one.
#[derive(Clone)]
pub enum Medium {
    /// Of this process; any thread uses it as it is.
    Local(AnyNamespace),
    /// Over NVMe/TCP, with a queue for each thread that uses it.
    Remote(PerThread),
}

impl From<AnyNamespace> for Medium {
    fn from(namespace: AnyNamespace) -> Medium {
        Medium::Local(namespace)
    }
}

impl From<PerThread> for Medium {
    fn from(remote: PerThread) -> Medium {
        Medium::Remote(remote)
    }
}

/// Of a kind that a server has no use for; it costs a box per command.
impl<N: Namespace + Send + Sync> From<Arc<N>> for Medium {
    fn from(namespace: Arc<N>) -> Medium {
        Medium::Local(AnyNamespace::other(namespace))
    }
}

impl Medium {
    /// What it is; one that is remote may grow meanwhile.
    pub fn info(&self) -> NamespaceInfo {
        match self {
            Medium::Local(local) => local.info(),
            Medium::Remote(remote) => remote.info(),
        }
    }

    pub(super) async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        match self {
            Medium::Local(local) => local.read(lba, buf).await,
            Medium::Remote(remote) => remote.read(lba, buf).await,
        }
    }

    pub(super) async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let remote = match self {
            Medium::Local(local) => return local.write(lba, data, durability).await,
            Medium::Remote(remote) => remote.here(),
        };
        match remote.write(lba, data.clone(), durability).await {
            // The same bytes at the same place: whether the first write took effect makes no difference.
            Err(Error::NotConnected(_) | Error::Disconnected(_) | Error::Aborted) => {
                // Where it stays away, the second try says so.
                let _ = time::timeout(AWAY_TIME, remote.connected()).await;
                remote.write(lba, data, durability).await
            }
            result => result,
        }
    }

    pub(super) async fn flush(&self) -> Result<(), Error> {
        match self {
            Medium::Local(local) => local.flush().await,
            Medium::Remote(remote) => remote.flush().await,
        }
    }

    /// Says how long what is written stays; false: nothing is made of it.
    pub(super) async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
        match self {
            Medium::Local(local) => local.hint_lifetime(lifetime).await,
            Medium::Remote(remote) => remote.hint_lifetime(lifetime).await,
        }
    }
}
