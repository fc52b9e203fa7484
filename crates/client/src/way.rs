//! Who connects to targets, and what that needs.

use std::net::SocketAddr;
use std::time::Duration;

use fabric::host::{Discovered, Discovery, HostIdentity, Options, Security};
use nvme::Nqn;

use crate::error::Error;
use crate::security::SecurityOptions;

/// Time to connect to one member, and to ask it for what it serves. Chosen: several tries of a lost SYN.
pub const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Who connects to members, and what that needs: flags read, key files too, once.
#[derive(Clone)]
pub struct Way {
    pub(crate) host: HostIdentity,
    security: Security,
}

impl Way {
    /// With these names and keys; their files are read here.
    ///
    /// # Errors
    /// A name is none, or a key file can't be used.
    pub fn new(security: &SecurityOptions) -> Result<Way, Error> {
        // Where it leads is filled in for each connection.
        let mut options = Options::discovery(SocketAddr::from(([127, 0, 0, 1], 0)));
        security.apply(&mut options)?;
        Ok(Way { host: options.host, security: options.security })
    }

    /// By a random name and without keys.
    pub fn plain() -> Way {
        Way { host: HostIdentity::random(), security: Security::default() }
    }

    /// Options for a namespace.
    pub(crate) fn options(&self, address: SocketAddr, nqn: Nqn, nsid: u32) -> Options {
        let (host, security) = (self.host.clone(), self.security.clone());
        Options { connect_timeout: CONNECT_TIME, host, security, ..Options::new(address, nqn, nsid) }
    }

    /// What the discovery service at `address` offers.
    async fn discover(&self, address: SocketAddr) -> Result<Vec<Discovered>, Error> {
        let options = self.options(address, Nqn::discovery(), 0);
        let options = Options { command_timeout: CONNECT_TIME, keep_alive: Duration::ZERO, ..options };
        let discovery = Discovery::connect(&options).await.map_err(unavailable)?;
        let log = discovery.log().await.map_err(unavailable);
        discovery.leave().await;
        Ok(log?.entries)
    }

    /// Names of the subsystems that are discovered at `address`.
    pub(crate) async fn subsystems(&self, address: SocketAddr) -> Result<Vec<Nqn>, Error> {
        let entries = self.discover(address).await?;
        let is_subsystem = |entry: &Discovered| !entry.subsystem.is_discovery() && entry.socket_address().is_some();
        let mut found: Vec<_> = entries.into_iter().filter(is_subsystem).map(|entry| entry.subsystem).collect();
        found.sort();
        found.dedup();
        Ok(found)
    }
}

pub(crate) fn unavailable(error: impl std::fmt::Display) -> Error {
    Error::Unavailable(error.to_string())
}
