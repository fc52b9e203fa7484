//! All clients of one reactor thread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::net::peers::{Peer, Peers};
use engine::net::serving::{accept_next, all_closed};
use engine::net::{TcpListener, UnixListener};
use engine::sync::{Notify, Semaphore};
use engine::task;
use tls::{CertificateContext, Transport};

use crate::connection::{Common, serve};
use crate::export::Export;
use crate::figures::{Figures, add};

/// Clients at a time. Guessed: Linux's client opens one connection for each core.
pub const CONNECTIONS_MAX: usize = 256;
/// After how long a client whose machine says nothing counts as gone. Chosen: as for hosts of a target.
const SILENT_PEER_TIME_MAX: Duration = Duration::from_secs(60);
/// Data of all requests under way, KiB: 256 MiB.
const ROOM_KIB: usize = 256 << 10;

/// Why there is no server.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    /// Two exports have one name.
    #[error("two exports are named {0:?}; give each a name of its own")]
    Name(String),
}

/// Serves exports to clients, on the thread that made it.
pub struct Server {
    pub(crate) common: Rc<Common>,
    tls: Option<CertificateContext>,
    connections: Rc<Cell<usize>>,
    /// Those over TCP that have not chosen an export.
    newcomers: Peers,
    ended: Notify,
}

impl Server {
    /// Serves `exports`; over TCP by TLS alone, where `tls` is given.
    ///
    /// # Errors
    /// Two exports have one name.
    pub fn new(exports: Vec<Export>, tls: Option<CertificateContext>) -> Result<Server, ServerError> {
        let exports: Vec<Rc<Export>> = exports.into_iter().map(Rc::new).collect();
        for (index, export) in exports.iter().enumerate() {
            if exports[..index].iter().any(|other| other.name() == export.name()) {
                return Err(ServerError::Name(export.name().into()));
            }
        }
        let common = Common {
            exports,
            figures: Arc::default(),
            room: Semaphore::new(ROOM_KIB),
            stopping: Cell::new(false),
            stop: Notify::new(),
        };
        let (newcomers, ended) = (Peers::newcomers(CONNECTIONS_MAX), Notify::new());
        Ok(Server { common: Rc::new(common), tls, connections: Rc::default(), newcomers, ended })
    }

    /// What it counts.
    pub fn figures(&self) -> Arc<Figures> {
        self.common.figures.clone()
    }

    /// Accepts over TCP until the future is dropped.
    pub async fn accept(&self, listener: &TcpListener) {
        loop {
            let (stream, _) = accept_next(|| listener.accept(), || ()).await;
            if let Err(error) = stream.expect_peer(SILENT_PEER_TIME_MAX) {
                tracing::debug!(%error, "whether a client is still there is not looked at");
            }
            match self.newcomers.count(stream.peer_addr().ip()) {
                Some(newcomer) => self.adopt(Transport::Plain(stream), self.tls.clone(), Some(newcomer)),
                None => self.refuse("its address has many that have not chosen an export"),
            }
        }
    }

    /// Accepts on a socket of this machine, whose file says who may use it, until the future is dropped.
    pub async fn accept_local(&self, listener: &UnixListener) {
        loop {
            let stream = accept_next(|| listener.accept(), || ()).await;
            self.adopt(Transport::Unix(stream), None, None);
        }
    }

    /// Serves one client in a task of its own.
    fn adopt(&self, stream: Transport, tls: Option<CertificateContext>, newcomer: Option<Peer>) {
        if self.connections.get() >= CONNECTIONS_MAX {
            return self.refuse("there are as many as there may be");
        }
        add(&self.common.figures.connections_total, 1);
        let open = Open::new(self);
        let common = self.common.clone();
        let served = async move {
            let _open = open;
            if let Err(error) = serve(common, stream, tls, newcomer).await {
                tracing::info!(%error, "a client's connection ended");
            }
        };
        task::spawn(served).detach();
    }

    /// The protocol has no word for that before the client has chosen an export.
    fn refuse(&self, why: &str) {
        add(&self.common.figures.connections_total, 1);
        add(&self.common.figures.refused, 1);
        tracing::debug!(why, "a client is not served");
    }

    /// Answers what was received, then closes all connections; waits a bounded time.
    pub async fn stop(&self) {
        self.common.stopping.set(true);
        self.common.stop.notify_all();
        all_closed(|| self.connections.get(), &self.ended).await;
    }
}

/// Counts one open connection, whatever way its task ends.
struct Open {
    connections: Rc<Cell<usize>>,
    figures: Arc<Figures>,
    ended: Notify,
}

impl Open {
    fn new(server: &Server) -> Open {
        let (connections, figures) = (server.connections.clone(), server.common.figures.clone());
        connections.set(connections.get() + 1);
        add(&figures.connections, 1);
        Open { connections, figures, ended: server.ended.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.set(self.connections.get() - 1);
        self.figures.connections.fetch_sub(1, Ordering::Relaxed);
        self.ended.notify_all();
    }
}
