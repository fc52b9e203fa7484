//! Accepting connections, and handing them to the reactors that serve them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use engine::net::serving::accept_next;
use engine::net::{DetachedStream, TcpListener, TcpStream};
use engine::sync::{MailReceiver, MailSender, TrySendError};
use engine::task::{self, LocalFuture, Task};
use engine::time;

use super::balance::Load;
use super::config::{ConfigError, PortId};
use super::limits::CONNECTIONS_MAX;
use super::newcomers::Connecting;
use super::shared::Shared;
use super::stats::Stats;
use super::{Target, driver};

/// How long [`listen`] tries while the port is busy: a killed process's sockets may take a moment to go.
const LISTEN_TIME_MAX: Duration = Duration::from_secs(5);
/// Until it is said that it is waited for. Guessed: a restart is quicker.
const LISTEN_SILENCE_MAX: Duration = Duration::from_millis(500);
const LISTEN_PAUSE: Duration = Duration::from_millis(50);
/// The port of listeners beyond the ports that there can be: served, but not in the discovery log.
const PORT_UNLISTED: PortId = PortId(0);

/// A connection on its way to the reactor that serves it.
pub struct Handed {
    stream: DetachedStream,
    place: Place,
}

/// What a connection holds and where it came in.
pub(super) struct Place {
    pub port: PortId,
    pub load: Load,
    pub ticket: Ticket,
}

impl Target {
    /// Serves connections from `listener`, as a port of its own, until dropped, which ends those served on this reactor.
    /// With `reactors`, connections go to them and this one, each to the one with the fewest I/O queues; at the other end of
    /// each mailbox runs [`Target::serve_handed`]. The order of `reactors` must be the same for every listener.
    pub fn serve(&self, listener: TcpListener, reactors: Vec<MailSender<Handed>>) -> LocalFuture<'_, Infallible> {
        Box::pin(async move {
            let port = self.shared.serve_at(None, listener.local_addr()).unwrap_or_else(|error| {
                tracing::warn!(%error, "a listener is not in the discovery log");
                PORT_UNLISTED
            });
            self.accept(port, listener, reactors).await
        })
    }

    /// The same for a port that [`Target::add_port`] has made.
    ///
    /// # Errors
    /// There is no such port.
    pub fn serve_port(
        &self,
        port: PortId,
        listener: TcpListener,
        reactors: Vec<MailSender<Handed>>,
    ) -> LocalFuture<'_, Result<Infallible, ConfigError>> {
        Box::pin(async move {
            self.shared.serve_at(Some(port), listener.local_addr())?;
            Ok(self.accept(port, listener, reactors).await)
        })
    }

    async fn accept(&self, port: PortId, listener: TcpListener, reactors: Vec<MailSender<Handed>>) -> Infallible {
        let mut tasks: Vec<Task<()>> = Vec::new();
        let mut last = 0;
        loop {
            let (stream, peer) = accept_next(|| listener.accept(), || ()).await;
            let ticket = match Ticket::take(&self.shared, peer) {
                Ok(ticket) => ticket,
                Err(reason) => {
                    self.refuse(peer, &reason);
                    continue;
                }
            };
            let load = Load::place(&self.shared.loads, reactors.len() + 1, last);
            last = load.reactor();
            let mut place = Place { port, load, ticket };
            let stream = match last.checked_sub(1).and_then(|other| reactors.get(other)) {
                Some(reactor) => match reactor.try_send(Handed { stream: stream.detach(), place }) {
                    Ok(()) => continue,
                    // Full or gone: serve it here rather than let the host wait.
                    Err(TrySendError::Full(handed) | TrySendError::Closed(handed)) => {
                        place = Place { load: Load::on(&self.shared.loads, 0), ..handed.place };
                        handed.stream.attach()
                    }
                },
                None => stream,
            };
            tasks.retain(|task| !task.is_finished());
            tasks.push(task::spawn_boxed(self.connection(stream, place)));
        }
    }

    fn refuse(&self, peer: SocketAddr, reason: &str) {
        self.shared.stats.refused.fetch_add(1, Relaxed);
        self.shared.complaints.tell(time::now(), &peer, "connection refused", &reason);
    }

    /// Serves the connections that [`Target::serve`] on another reactor hands over, until that one is gone.
    pub fn serve_handed(&self, connections: MailReceiver<Handed>) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            let mut tasks: Vec<Task<()>> = Vec::new();
            while let Some(Handed { stream, place }) = connections.recv().await {
                tasks.retain(|task| !task.is_finished());
                tasks.push(task::spawn_boxed(self.connection(stream.attach(), place)));
            }
        })
    }

    /// Serves one connection that was made elsewhere, until it ends.
    pub async fn serve_connection(&self, stream: TcpStream) {
        let ticket = match Ticket::take(&self.shared, stream.peer_addr()) {
            Ok(ticket) => ticket,
            Err(reason) => return self.refuse(stream.peer_addr(), &reason),
        };
        let place = Place { port: PORT_UNLISTED, load: Load::on(&self.shared.loads, 0), ticket };
        self.connection(stream, place).await;
    }

    /// All that is done for a connection, in a box: so that it is compiled here, and by nobody who serves a target.
    fn connection(&self, stream: TcpStream, place: Place) -> LocalFuture<'static, ()> {
        Box::pin(driver::drive(self.shared.clone(), stream, place))
    }
}

/// Listens on `address`, waiting up to five seconds for its port to become free.
///
/// # Errors
/// What the system says; `AddrInUse` when the port stayed busy.
pub fn listen(address: SocketAddr) -> LocalFuture<'static, std::io::Result<TcpListener>> {
    Box::pin(async move {
        let (begun, mut said) = (time::now(), false);
        loop {
            match TcpListener::bind(address) {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && begun.elapsed() < LISTEN_TIME_MAX => {
                    if !said && begun.elapsed() > LISTEN_SILENCE_MAX {
                        tracing::warn!(%address, "the port is in use: waiting up to {} s for it", LISTEN_TIME_MAX.as_secs());
                        said = true;
                    }
                    time::sleep(LISTEN_PAUSE).await;
                }
                result => return result,
            }
        }
    })
}

/// One of the connections that may be open at a time; dropping it makes room for the next.
pub(super) struct Ticket {
    stats: Arc<Stats>,
    /// Taken by whoever sees the connection through its Connect.
    pub connecting: Option<Connecting>,
}

impl Ticket {
    /// The error says why there is none.
    fn take(shared: &Shared, peer: SocketAddr) -> Result<Ticket, String> {
        let many = "too many connections of its address have not sent their Connect yet";
        let connecting = shared.newcomers.connect(peer.ip()).ok_or(many)?;
        let stats = &shared.stats;
        let open = stats.connections.fetch_add(1, Relaxed);
        if open >= shared.config.connections_max.min(CONNECTIONS_MAX) as u64 {
            stats.connections.fetch_sub(1, Relaxed);
            return Err(format!("{} are open", shared.config.connections_max));
        }
        stats.accepted.fetch_add(1, Relaxed);
        Ok(Ticket { stats: stats.clone(), connecting: Some(connecting) })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.stats.connections.fetch_sub(1, Relaxed);
    }
}
