//! The NVMe/TCP target: subsystems of namespaces, served to any host that speaks the standard.
//!
//! ```text
//!   Target ── subsystems, namespaces, controllers (shared, behind a lock off the I/O path)
//!     │ serve: accept ─► here, or handed to another reactor
//!     ▼
//!   one task per connection: socket ◄─► connection core (no I/O) ◄─► command slots ─► device::Namespace
//! ```
//! A connection is one queue. The discovery subsystem is always there and names every subsystem at every address served.
//!
//! Invariants:
//! - A bad PDU, a slow host, an expired keep alive end that connection or association; no other notices.
//! - A command that was answered with success did take effect; a write with FUA, or with the cache switched off, is stable.
//! - After an association has ended none of its commands begins.

use std::convert::Infallible;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use device::Namespace;
use engine::net::{DetachedStream, TcpListener, TcpStream};
use engine::sync::{MailReceiver, MailSender, TrySendError};
use engine::task::{self, Task};
use engine::time;
use nvme::Nqn;

mod admin;
mod commands;
mod connection;
mod controller;
mod driver;
mod end;
mod features;
mod identify;
mod io;
mod limits;
mod logs;
mod session;
mod shared;
mod slots;
mod stats;

pub use limits::{
    CONNECTIONS_MAX, IN_CAPSULE_BYTES_MAX, IO_QUEUE_ENTRIES_MAX, IO_QUEUES_MAX, NSID_MAX, TRANSFER_BYTES_MAX,
};
pub(crate) use session::Session;
use shared::{Attached, Shared};
pub use stats::{CommandKind, Histogram, Stats};

/// How long [`listen`] tries while the port is busy: a killed process's sockets may take a moment to go.
const LISTEN_TIME_MAX: Duration = Duration::from_secs(5);
const LISTEN_PAUSE: Duration = Duration::from_millis(50);
/// Pause after an accept that failed, mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Options of a target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Connections at a time; more are closed at once. At most [`CONNECTIONS_MAX`].
    pub connections_max: usize,
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig { connections_max: CONNECTIONS_MAX }
    }
}

/// Why a target can not be set up as asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The name is taken, or is the discovery subsystem's.
    #[error("the subsystem {0} exists already; give each subsystem a name of its own")]
    SubsystemExists(Nqn),
    /// The serial number does not fit its field.
    #[error("the serial number {0:?} must have 1 to 20 printable ASCII characters without blanks")]
    Serial(String),
    /// Over the bound.
    #[error("a target has at most {} subsystems", limits::SUBSYSTEMS_MAX)]
    TooManySubsystems,
    /// No such subsystem.
    #[error("there is no subsystem {0}")]
    NoSubsystem(Nqn),
    /// Not from 1 to [`NSID_MAX`].
    #[error("the namespace identifier {0} is not from 1 to {NSID_MAX}")]
    NamespaceId(u32),
    /// Taken.
    #[error("the subsystem has a namespace {0} already")]
    NamespaceExists(u32),
    /// No such namespace.
    #[error("the subsystem has no namespace {0}")]
    NoNamespace(u32),
}

/// A target. Clones are the same target; it may be served from several reactors if `N` is `Send + Sync`.
pub struct Target<N> {
    shared: Arc<Shared<N>>,
}

impl<N> Clone for Target<N> {
    fn clone(&self) -> Target<N> {
        Target { shared: self.shared.clone() }
    }
}

impl<N: Namespace> Default for Target<N> {
    fn default() -> Target<N> {
        Target::new(TargetConfig::default())
    }
}

impl<N: Namespace> Target<N> {
    /// A target without subsystems.
    pub fn new(config: TargetConfig) -> Target<N> {
        Target { shared: Arc::new(Shared::new(config)) }
    }

    /// Adds an empty subsystem. `serial`: 1 to 20 printable characters, stable over restarts.
    ///
    /// # Errors
    /// The name is taken or reserved, the serial number does not fit, or there are too many.
    pub fn add_subsystem(&self, nqn: Nqn, serial: &str) -> Result<(), ConfigError> {
        self.shared.add_subsystem(nqn, serial.to_owned())
    }

    /// Adds a namespace to a subsystem, under `nsid` from 1 to [`NSID_MAX`]. Connected hosts are told.
    ///
    /// # Errors
    /// No such subsystem; the identifier is taken or out of range.
    pub fn add_namespace(&self, nqn: &Nqn, nsid: u32, namespace: impl Into<Arc<N>>) -> Result<(), ConfigError> {
        let namespace = namespace.into();
        self.shared.put_namespace(nqn, Attached { nsid, info: namespace.info(), namespace }, false)
    }

    /// Looks again at a namespace that has changed (grown). Connected hosts are told.
    ///
    /// # Errors
    /// No such subsystem or namespace.
    pub fn refresh_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let namespace = self.shared.namespace(nqn, nsid).ok_or(ConfigError::NoNamespace(nsid))?;
        self.shared.put_namespace(nqn, Attached { nsid, info: namespace.info(), namespace }, true)
    }

    /// Takes a namespace away; commands already under way run to their end. Connected hosts are told.
    ///
    /// # Errors
    /// No such subsystem or namespace.
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<Arc<N>, ConfigError> {
        self.shared.remove_namespace(nqn, nsid)
    }

    /// Names an address in the discovery log, in place of those that are served; may be called for several. An unspecified
    /// IP address (0.0.0.0) stands for the one at which the asking host has reached us.
    pub fn advertise(&self, address: SocketAddr) {
        self.shared.add_advertised(address);
    }

    /// What was counted since the start; may be read on any thread.
    pub fn stats(&self) -> Arc<Stats> {
        self.shared.stats.clone()
    }

    /// Serves connections from `listener` until dropped, which ends those served on this reactor. With `reactors`,
    /// connections go to them and this one in turn; at the other end of each mailbox runs [`Target::serve_handed`].
    pub async fn serve(&self, listener: TcpListener, reactors: Vec<MailSender<DetachedStream>>) -> Infallible {
        self.shared.add_served(listener.local_addr());
        let mut tasks: Vec<Task<()>> = Vec::new();
        let mut turn = 0;
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(ticket) = Ticket::take(&self.shared) else {
                tracing::warn!(%peer, "connection refused: {} are open", self.shared.config.connections_max);
                continue;
            };
            turn = (turn + 1) % (reactors.len() + 1);
            let stream = match reactors.get(turn) {
                Some(reactor) => match reactor.try_send(stream.detach()) {
                    Ok(()) => {
                        ticket.hand_over();
                        continue;
                    }
                    // Full or gone: serve it here rather than let the host wait.
                    Err(TrySendError::Full(stream) | TrySendError::Closed(stream)) => stream.attach(),
                },
                None => stream,
            };
            tasks.retain(|task| !task.is_finished());
            tasks.push(task::spawn(driver::drive(self.shared.clone(), stream, ticket)));
        }
    }

    /// Serves the connections that [`Target::serve`] on another reactor hands over, until that one is gone.
    pub async fn serve_handed(&self, connections: MailReceiver<DetachedStream>) {
        let mut tasks: Vec<Task<()>> = Vec::new();
        while let Some(stream) = connections.recv().await {
            let ticket = Ticket::of_handed_over(&self.shared);
            tasks.retain(|task| !task.is_finished());
            tasks.push(task::spawn(driver::drive(self.shared.clone(), stream.attach(), ticket)));
        }
    }

    /// Serves one connection that was made elsewhere, until it ends.
    pub async fn serve_connection(&self, stream: TcpStream) {
        match Ticket::take(&self.shared) {
            Some(ticket) => driver::drive(self.shared.clone(), stream, ticket).await,
            None => tracing::warn!(peer = %stream.peer_addr(), "connection refused: too many are open"),
        }
    }
}

/// Listens on `address`, waiting up to five seconds for its port to become free.
///
/// # Errors
/// What the system says; `AddrInUse` when the port stayed busy.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let deadline = time::now() + LISTEN_TIME_MAX;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && time::now() < deadline => {
                time::sleep(LISTEN_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// One of the connections that may be open at a time; dropping it makes room for the next.
struct Ticket {
    stats: Option<Arc<Stats>>,
}

impl Ticket {
    fn take<N>(shared: &Shared<N>) -> Option<Ticket> {
        let stats = &shared.stats;
        let open = stats.connections.fetch_add(1, Relaxed);
        if open >= shared.config.connections_max.min(CONNECTIONS_MAX) as u64 {
            stats.connections.fetch_sub(1, Relaxed);
            stats.refused.fetch_add(1, Relaxed);
            return None;
        }
        stats.accepted.fetch_add(1, Relaxed);
        Some(Ticket { stats: Some(stats.clone()) })
    }

    /// The connection goes to another reactor, which takes it up by [`Ticket::of_handed_over`].
    fn hand_over(mut self) {
        self.stats = None;
    }

    fn of_handed_over<N>(shared: &Shared<N>) -> Ticket {
        Ticket { stats: Some(shared.stats.clone()) }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(stats) = &self.stats {
            stats.connections.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
