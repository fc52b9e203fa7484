//! gRPC over a socket of this machine: so many connections and calls at a time.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use engine::net::serving::ACCEPT_PAUSE;
use engine::net::{listen_privately, remove_stale_socket};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::host::Host;
use crate::node::Machine;
use crate::service::Services;

/// Connections served at a time. Chosen: an orchestrator's parts have one each.
const CONNECTIONS_MAX: usize = 32;
/// Calls of a connection at a time. Derived: fewer than there are places in all, so that none takes them all.
const STREAMS_MAX: u32 = 64;
/// Bytes of a call's words beside the message.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// How often a silent connection is asked whether it is there, and how long that may take. Chosen: both are on this machine.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections that wait to be accepted. Chosen: as many as are served.
const WAITING_MAX: i32 = CONNECTIONS_MAX as i32;

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// It names no socket.
    #[error("endpoint {0:?}: write unix:///PATH")]
    Malformed(String),
    /// Something else is there.
    #[error("{0} is there, and is no socket: choose another endpoint, or remove it")]
    Foreign(PathBuf),
    /// Another process answers there.
    #[error("{0}: another process serves this endpoint")]
    InUse(PathBuf),
    /// It can't be made.
    #[error("{path}: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
}

/// A socket that is listened at; the file goes with it.
pub struct Endpoint {
    listener: UnixListener,
    path: PathBuf,
}

impl Endpoint {
    /// `unix:///PATH`: a socket that its owner alone may use. One that a process has left is replaced.
    pub fn bind(endpoint: &str) -> Result<Endpoint, EndpointError> {
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
        if !path.starts_with('/') {
            return Err(EndpointError::Malformed(endpoint.to_owned()));
        }
        let path = PathBuf::from(path);
        let failed = |source| EndpointError::Io { path: path.clone(), source };
        match remove_stale_socket(&path).map_err(|error| (error.kind(), error)) {
            Err((io::ErrorKind::AlreadyExists, _)) => return Err(EndpointError::Foreign(path)),
            Err((io::ErrorKind::AddrInUse, _)) => return Err(EndpointError::InUse(path)),
            removed => removed.map_err(|(_, error)| failed(error))?,
        }
        let listener = listen_privately(&path, WAITING_MAX).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        Ok(Endpoint { listener, path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// [`Endpoint::serve`] on a real machine. The future is boxed, so that all that it calls, each method's messages among it, is
    /// compiled here and not once more where it is served.
    pub fn serve_host(self, services: Services<Host>) -> Pin<Box<dyn Future<Output = io::Error> + Send>> {
        Box::pin(self.serve(services))
    }

    /// Serves until the future is dropped; connections end with it.
    pub async fn serve<M: Machine>(self, services: Services<M>) -> io::Error {
        let (services, places) = (Arc::new(services), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        let mut connections = JoinSet::new();
        loop {
            // Nobody closes the semaphore.
            let place = places.clone().acquire_owned().await;
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let services = services.clone();
                    connections.spawn(async move {
                        // Who does not speak HTTP, or leaves, is nobody's concern; a call's failure is in its answer.
                        let _ended = converse(stream, services).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the endpoint's socket is left behind");
        }
    }
}

async fn converse<M: Machine>(stream: UnixStream, services: Arc<Services<M>>) -> hyper::Result<()> {
    let answer = service_fn(move |request| {
        let services = services.clone();
        async move { Ok::<_, std::convert::Infallible>(services.answer(request).await) }
    });
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A place for a socket, as long as its folder is there, and how it is said.
    fn place() -> (tempfile::TempDir, PathBuf, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let endpoint = format!("unix://{}", path.display());
        (folder, path, endpoint)
    }

    /// The driver's start hung for as long as the other one took nobody in.
    #[test]
    fn a_driver_that_is_busy_is_there_still_and_a_socket_is_its_owners_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        let (_folder, path, endpoint) = place();
        let bound = Endpoint::bind(&endpoint).expect("bound");
        let mode = std::fs::symlink_metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(bound);
        let busy = listen_privately(&path, 1).expect("bound");
        let waiting: Vec<_> =
            (0..2).map(|_| std::os::unix::net::UnixStream::connect(&path).expect("it waits")).collect();
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(matches!(Endpoint::bind(&endpoint), Err(EndpointError::InUse(_)))));
        assert_eq!(heard.recv_timeout(Duration::from_secs(10)), Ok(true), "it does not wait for its turn");
        drop((waiting, busy));
    }

    #[test]
    fn an_endpoint_that_was_left_is_replaced_and_nothing_else_is() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        let (_folder, path, endpoint) = place();
        let bound = Endpoint::bind(&endpoint).expect("bound");
        assert!(matches!(Endpoint::bind(&endpoint), Err(EndpointError::InUse(_))));
        drop(bound);
        assert!(!path.exists());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        drop(Endpoint::bind(&endpoint).expect("one that was left"));
        // In use, though no stream: that connecting fails says nothing else of it.
        let log = std::os::unix::net::UnixDatagram::bind(&path).expect("bound");
        assert!(matches!(Endpoint::bind(&endpoint), Err(EndpointError::Io { .. })) && path.exists());
        drop(log);
        std::fs::remove_file(&path).expect("there");
        std::fs::write(&path, "somebody's").expect("written");
        assert!(matches!(Endpoint::bind(&endpoint), Err(EndpointError::Foreign(_))));
        for wrong in ["tcp://127.0.0.1:1", "unix://socket", ""] {
            assert!(matches!(Endpoint::bind(wrong), Err(EndpointError::Malformed(_))), "{wrong}");
        }
    }
}
