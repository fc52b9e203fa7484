//! A holder behind NVMe over Fabrics.
//!
//! Each connection has a host identifier of its own; the host's name stays, by which targets let it in. A change of the key alone
//! would not do: the commands under way of a host that registers anew are not ended by that (NVMe Base 2.0 §8.19). To preempt and
//! abort the former identity, ours like any other's, does end them before it is answered.
//!
//! Two hosts that preempt each other pause by chance between tries, so that one of them gets through.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use fabric::host::{AnyRemote, HostIdentity, Options, RemoteNamespace};
use nvme::Nqn;
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, RegisteredController, ReservationCommand,
    ReservationType,
};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::reach::{Reach, Taken};

/// Tries to preempt over one connection. Guessed: each fails only if another host was quicker.
const TRIES_MAX: u32 = 8;
/// The longest pause between two, by chance. Guessed: some round trips.
const PAUSE: Duration = Duration::from_millis(20);
/// Registrants of connections that are gone, beyond which they are cleared away. Chosen: well below the 64 that targets take.
const STALE_MAX: usize = 8;
/// How long a replica may take for a command, usually. Chosen: a hundred times what a busy drive takes, and less than applications
/// wait.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(3);
const EXCLUSIVE: ReservationType = ReservationType::ExclusiveAccess;

/// See the module.
pub struct NvmeReach {
    options: Options,
}

impl NvmeReach {
    /// The namespace that `options` lead to. Of its host identity the name is used. Its time limit for a command is what a slow
    /// replica has until it counts as lost.
    pub fn new(options: Options) -> NvmeReach {
        NvmeReach { options }
    }

    /// Namespace `nsid` of `subsystem` at `address`, for the host of this name, with the usual behaviour.
    pub fn at(address: SocketAddr, subsystem: Nqn, nsid: u32, host: Nqn) -> NvmeReach {
        let usual = Options::new(address, subsystem, nsid);
        let host = HostIdentity { nqn: host, ..usual.host };
        NvmeReach::new(Options { host, command_timeout: COMMAND_TIME_MAX, ..usual })
    }

    async fn connect(&self) -> Result<RemoteNamespace, Error> {
        let mut options = self.options.clone();
        options.host.id = identifier();
        let connected = RemoteNamespace::connect(options).await;
        connected.map_err(|error| Error::Unreachable { holder: self.name(), reason: error.to_string() })
    }

    fn failed(&self, source: device::Error) -> Error {
        Error::Device { holder: self.name(), source }
    }

    async fn preempt(&self, remote: &RemoteNamespace, key: u64) -> Result<(), Error> {
        let persist = PersistChange::Set;
        let register = ReservationCommand::Register { action: RegisterAction::Register, ignore_key: false, persist };
        let keys = RegisterKeys { current: 0.into(), new: key.into() };
        remote.reserve(register, keys.as_bytes()).await.map_err(|error| match error {
            device::Error::Unsupported(_) | device::Error::Status(_) => {
                Error::Lacks { holder: self.name(), what: "reservations that survive power loss" }
            }
            error => self.failed(error),
        })?;
        let mut last = device::Error::Aborted;
        for _ in 0..TRIES_MAX {
            let (_, registrants) = remote.reservation_report().await.map_err(|error| self.failed(error))?;
            let holder = registrants.iter().find(|entry| entry.status & 1 == 1).map(|entry| entry.key.get());
            match acquire(remote, key, holder).await {
                Ok(()) => {
                    clear_away(remote, key, &registrants, holder).await;
                    return Ok(());
                }
                Err(error @ device::Error::Reserved(_)) => last = error,
                Err(error) => return Err(self.failed(error)),
            }
            time::sleep_within(PAUSE).await;
        }
        Err(self.failed(last))
    }
}

impl Reach for NvmeReach {
    fn name(&self) -> String {
        format!("{} namespace {} at {}", self.options.subsystem, self.options.nsid, self.options.address)
    }

    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, Error>> {
        Box::pin(async move { Ok(self.connect().await?.into()) })
    }

    fn take(&self) -> LocalFuture<'_, Result<Taken, Error>> {
        Box::pin(async move {
            let remote = Rc::new(self.connect().await?);
            // Before the first command: what changes it from now on is another connection.
            let epoch = remote.epoch();
            self.preempt(&remote, key()).await?;
            let taken = Taken { namespace: AnyRemote::Remote(remote), epoch };
            if !taken.is_up() {
                let reason = "the connection ended while its reservation was taken".to_owned();
                return Err(Error::Unreachable { holder: self.name(), reason });
            }
            Ok(taken)
        })
    }
}

/// Takes the reservation, from the holder of this key if there is one.
async fn acquire(remote: &RemoteNamespace, key: u64, holder: Option<u64>) -> Result<(), device::Error> {
    let action = if holder.is_some() { AcquireAction::PreemptAndAbort } else { AcquireAction::Acquire };
    let keys = AcquireKeys { current: key.into(), preempt: holder.unwrap_or(0).into() };
    remote.reserve(ReservationCommand::Acquire { action, rtype: EXCLUSIVE }, keys.as_bytes()).await
}

/// Connections that registered and never came to hold the reservation leave their keys behind. A host that is just about to take
/// it loses its key, too, and begins anew.
async fn clear_away(remote: &RemoteNamespace, key: u64, registrants: &[RegisteredController], holder: Option<u64>) {
    let others = registrants.iter().map(|entry| entry.key.get());
    let others: Vec<u64> = others.filter(|&other| other != key && Some(other) != holder).collect();
    if others.len() <= STALE_MAX {
        return;
    }
    for other in others {
        let action = ReservationCommand::Acquire { action: AcquireAction::Preempt, rtype: EXCLUSIVE };
        let keys = AcquireKeys { current: key.into(), preempt: other.into() };
        if let Err(error) = remote.reserve(action, keys.as_bytes()).await {
            tracing::debug!(%error, "the key of a connection that is gone stays registered");
            return;
        }
    }
}

/// Of a connection: never used before.
fn identifier() -> [u8; 16] {
    device::random_nguid()
}

/// 0 means that there is no key.
fn key() -> u64 {
    task::random_u64() | 1
}
