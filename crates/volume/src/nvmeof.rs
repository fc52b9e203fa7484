//! A holder behind NVMe over Fabrics.
//!
//! Each connection has a host identifier of its own; the host's name stays, by which targets let it in. A change of the key alone
//! would not do: the commands under way of a host that registers anew are not ended by that (NVMe Base 2.0 §8.19). To preempt and
//! abort the former identity, ours like any other's, does end them before it is answered.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use device::Namespace;
use engine::task::LocalFuture;
use fabric::host::{AnyRemote, ConnectError, CopyTag, HostIdentity, Options, RemoteNamespace};
use nvme::Nqn;

use crate::blocks::read_label;
use crate::error::Error;
use crate::reach::{Copies, Reach, Taken, Takes};
use crate::reserve;

/// How long a replica may take for a command. Chosen: a hundred times what a busy drive takes, and less than applications
/// wait.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(3);

/// See the module.
pub struct NvmeReach {
    options: Options,
}

impl NvmeReach {
    /// The namespace that `options` lead to. Of its host identity the name is used. Its time limit for a command is what a slow
    /// replica has until it counts as lost: three seconds at most.
    pub fn new(mut options: Options) -> NvmeReach {
        options.command_timeout = options.command_timeout.min(COMMAND_TIME_MAX);
        NvmeReach { options }
    }

    /// Namespace `nsid` of `subsystem` at `address`, for the host of this name, with the usual behaviour.
    pub fn at(address: SocketAddr, subsystem: Nqn, nsid: u32, host: Nqn) -> NvmeReach {
        let usual = Options::new(address, subsystem, nsid);
        let host = HostIdentity { nqn: host, ..usual.host };
        NvmeReach::new(Options { host, ..usual })
    }

    async fn connect(&self) -> Result<RemoteNamespace, Error> {
        let mut options = self.options.clone();
        options.host.id = identifier();
        RemoteNamespace::connect(options).await.map_err(|error| failed(&error, self.name()))
    }
}

impl NvmeReach {
    /// Takes the namespace from whoever has it and leaves it without any reservation: others may delete it then.
    ///
    /// # Errors
    /// The namespace can't be reached or taken.
    pub fn release(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let (remote, key) = (self.connect().await?, reserve::key());
            reserve::take(&remote, key, &self.name(), true).await?;
            let cleared = reserve::clear(&remote, key).await;
            cleared.map_err(|source| Error::Device { holder: self.name(), source })
        })
    }
}

impl Reach for NvmeReach {
    fn name(&self) -> String {
        format!("{} namespace {} at {}", self.options.subsystem, self.options.nsid, self.options.address)
    }

    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, Error>> {
        Box::pin(async move { Ok(self.connect().await?.into()) })
    }

    fn take(&self, takes: Takes) -> LocalFuture<'_, Result<Taken, Error>> {
        Box::pin(async move {
            let remote = Rc::new(self.connect().await?);
            // Before the first command: what changes it from now on is another connection.
            let epoch = remote.epoch();
            if takes == Takes::Holder {
                match read_label(&*remote, &self.name()).await {
                    // What it is the key of the reservation says.
                    Ok(_) | Err(Error::Device { source: device::Error::Reserved(_), .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            reserve::take(&*remote, reserve::key(), &self.name(), takes == Takes::Anything).await?;
            let copies = remote.extension().copies.then(|| Rc::clone(&remote) as Rc<dyn Copies>);
            let taken = Taken { namespace: AnyRemote::Remote(remote), epoch, copies };
            if !taken.is_up() {
                let reason = "the connection ended while its reservation was taken".to_owned();
                return Err(Error::Unreachable { holder: self.name(), reason });
            }
            Ok(taken)
        })
    }

    fn look_at_snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<AnyRemote, Error>> {
        Box::pin(async move {
            let remote = self.connect().await?;
            if !remote.extension().copies {
                return Err(Error::Lacks { holder: self.name(), what: "snapshots" });
            }
            let copies = remote.copies().await;
            let copies = copies.map_err(|source| Error::Device { holder: self.name(), source })?;
            let copy = copies.iter().find(|copy| copy.tag == tag && !copy.writable);
            let copy = copy.ok_or_else(|| Error::NoSuchSnapshot { holder: self.name() })?;
            let found = remote.sibling(copy.nsid).await.map_err(|error| failed(&error, self.name()))?;
            // The number is used again when the copy was deleted in between.
            if found.info().nguid != copy.nguid {
                return Err(Error::NoSuchSnapshot { holder: self.name() });
            }
            Ok(found.into())
        })
    }
}

fn failed(error: &ConnectError, holder: String) -> Error {
    Error::Unreachable { holder, reason: error.to_string() }
}

/// Of a connection: never used before.
fn identifier() -> [u8; 16] {
    device::random_nguid()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command line's holders had the host's ten seconds.
    #[test]
    fn no_replica_has_longer_than_three_seconds() {
        let nqn: Nqn = "nqn.2026-01.example.sim:a".parse().expect("the form is an NQN");
        let usual = Options::new(SocketAddr::from(([127, 0, 0, 1], 4420)), nqn, 1);
        let time = |options: Options| NvmeReach::new(options).options.command_timeout;
        assert_eq!(time(usual.clone()), COMMAND_TIME_MAX);
        assert_eq!(time(Options { command_timeout: Duration::from_secs(2), ..usual }), Duration::from_secs(2));
    }
}
