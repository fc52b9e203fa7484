//! How to reach a namespace, and how to behave.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use engine::backoff::Backoff;
use nvme::Nqn;

use super::identity::HostIdentity;
use crate::auth::HostKeys;
use crate::psk::TlsKey;

/// How to reach a namespace, and how to behave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The target's address.
    pub address: SocketAddr,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The namespace.
    pub nsid: u32,
    /// Who connects.
    pub host: HostIdentity,
    /// Commands under way at a time on a queue, 2 to [`super::QUEUE_DEPTH_MAX`]; further callers wait. Less if the controller
    /// takes less.
    pub depth: u16,
    /// I/O queues on the reactor that connects, 1 to [`super::QUEUES_MAX`]; fewer if the controller has fewer.
    pub queues: u16,
    /// Further I/O queues, for other reactors that join ([`super::RemoteNamespace::joiner`]); with `queues` at most
    /// [`super::QUEUES_MAX`].
    pub queues_elsewhere: u16,
    /// Protect headers by a digest.
    pub header_digest: bool,
    /// Protect data by a digest.
    pub data_digest: bool,
    /// What keeps strangers out of the connections.
    pub security: Security,
    /// How long connecting may take, and each step after it.
    pub connect_timeout: Duration,
    /// How long a command may take. Then it is aborted, and if that does not end it the association is.
    pub command_timeout: Duration,
    /// After how long without a sign of life the controller drops us (KATO); a sign is given twice within. Zero: never.
    pub keep_alive: Duration,
    /// The first pause before connecting anew.
    pub backoff_min: Duration,
    /// The longest pause before connecting anew; pauses double up to it.
    pub backoff_max: Duration,
}

impl Options {
    /// Namespace `nsid` of `subsystem` at `address`, with the usual behaviour and a random host identity.
    pub fn new(address: SocketAddr, subsystem: Nqn, nsid: u32) -> Options {
        Options {
            address,
            subsystem,
            nsid,
            host: HostIdentity::random(),
            depth: 128,
            queues: 1,
            queues_elsewhere: 0,
            header_digest: false,
            data_digest: false,
            security: Security::default(),
            connect_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(5),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(2),
        }
    }

    /// The pauses between tries to connect.
    pub(super) fn backoff(&self) -> Backoff {
        Backoff::new(self.backoff_min, self.backoff_max)
    }

    /// KATO as Connect says it, in milliseconds: rounded up, as zero would mean that there is none.
    pub(super) fn keep_alive_ms(&self) -> u32 {
        self.keep_alive.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u32::MAX)
    }

    /// The discovery service at `address`.
    pub fn discovery(address: SocketAddr) -> Options {
        Options::new(address, Nqn::discovery(), 0)
    }
}

/// What keeps strangers out of the connections. The default is a plain connection without authentication.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// The keys for DH-HMAC-CHAP, for targets that ask for it. With a controller key the target has to ask, and to
    /// authenticate itself.
    pub dhchap: Option<HostKeys>,
    /// Connect over TLS, with this key; it must be one of [`Options::host`]'s.
    pub tls: Option<TlsKey>,
    /// Have the authentication make the key for TLS (secure channel concatenation, NVMe Base 2.0c §8.13.5.9): with `dhchap`,
    /// and in place of `tls`. Each association gets a key of its own.
    pub concatenation: bool,
}

/// Says what is used, and never a key.
impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dhchap, tls) = (self.dhchap.is_some(), self.tls.is_some());
        f.debug_struct("Security")
            .field("dhchap", &dhchap)
            .field("tls", &tls)
            .field("concatenation", &self.concatenation)
            .finish()
    }
}
