//! Connections: so many at a time, each for so long, with TLS or from this machine alone.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use engine::net::peers::Peers;
use engine::net::serving::ACCEPT_PAUSE;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use openssl::ssl::Ssl;
use tls::{CertificateContext, CertificateFiles, TlsError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_openssl::SslStream;

use crate::provision::Provisioner;

use super::api::{self, REQUEST_TIME};

/// Connections at a time. Chosen: more than the programs of a large site keep open; beyond it the kernel's queue holds them.
const CONNECTIONS_MAX: usize = 512;
/// Of these, connections of one address, and of one network of IPv6, which a machine is often given whole. Chosen: an eighth, so
/// that nobody takes all places by himself.
const CONNECTIONS_OF_ONE_MAX: usize = 64;
/// After how long a connection takes no more requests. Chosen: many fit in, and who reads nothing gives up his place.
const CONNECTION_TIME: Duration = Duration::from_secs(600);
/// How long a request's head, or the next request, is waited for, and a handshake. Chosen: a slow link's round trips, many times
/// over.
const HEAD_TIME: Duration = Duration::from_secs(20);
/// Bytes of a request's head. Chosen: hyper's least is 8 KiB.
const HEAD_BYTES: usize = 16 << 10;

/// How the interface is served.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Certificate and key, and whose certificates clients must have; none: plain text.
    pub tls: Option<CertificateFiles>,
    /// Plain text also where others than this machine listen in, and read the tokens.
    pub plain_text_anywhere: bool,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The certificate or its key is no good.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Tokens would go over a network in plain text.
    #[error(
        "{0} is reached from other machines, and tokens would go over the network in plain text: give a certificate, listen on \
         127.0.0.1, or say that plain text is meant"
    )]
    PlainText(SocketAddr),
    /// The listener is no good.
    #[error("the listener can't be used: {0}")]
    Listener(#[from] io::Error),
}

/// Serves a provisioner.
pub struct Server {
    router: Router,
    tls: Option<CertificateContext>,
    plain_text_anywhere: bool,
}

impl Server {
    /// With the certificate that is in its files now.
    pub fn new(provisioner: &Provisioner, options: &ServerOptions) -> Result<Server, ServerError> {
        let tls = options.tls.as_ref().map(CertificateContext::new).transpose()?;
        let router = api::router(provisioner.clone());
        Ok(Server { router, tls, plain_text_anywhere: options.plain_text_anywhere })
    }

    /// Serves until the future is dropped; connections end with it.
    pub fn serve(self, listener: TcpListener) -> Pin<Box<dyn Future<Output = ServerError> + Send>> {
        Box::pin(async move {
            let address = match listener.local_addr() {
                Ok(address) => address,
                Err(error) => return error.into(),
            };
            if self.tls.is_none() && !self.plain_text_anywhere && !address.ip().is_loopback() {
                return ServerError::PlainText(address);
            }
            self.accept(listener).await
        })
    }

    async fn accept(self, listener: TcpListener) -> ! {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let callers = callers();
        let mut connections = JoinSet::new();
        loop {
            // Nobody closes the semaphore.
            let place = places.clone().acquire_owned().await;
            match listener.accept().await {
                Ok((stream, address)) => {
                    // Who has too many already is not answered: whoever is to be served would wait for the answer.
                    if let Some(caller) = callers.count(address.ip()) {
                        let (router, tls) = (self.router.clone(), self.tls.clone());
                        connections.spawn(async move {
                            // Who does not speak HTTP, or leaves, is nobody's concern; a request's failure is in its answer.
                            let _ended = converse(stream, tls, router).await;
                            drop((place, caller));
                        });
                    }
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

/// Who has how many connections.
fn callers() -> Peers {
    Peers::new(CONNECTIONS_OF_ONE_MAX, CONNECTIONS_OF_ONE_MAX)
}

async fn converse(stream: TcpStream, tls: Option<CertificateContext>, router: Router) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return answer(stream, router).await };
    let ssl = Ssl::new(tls.context())?;
    let mut stream = SslStream::new(ssl, stream)?;
    let handshake = timeout(HEAD_TIME, Pin::new(&mut stream).accept()).await;
    handshake.map_err(|_| io::ErrorKind::TimedOut)?.map_err(io::Error::other)?;
    answer(stream, router).await
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) -> io::Result<()> {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(io::Error::other),
        () = sleep(CONNECTION_TIME) => connection.as_mut().graceful_shutdown(),
    }
    // The request that is under way is answered; who does not read the answer has had his time.
    timeout(REQUEST_TIME, connection).await?.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight addresses of one machine's network took all places, and every host's question waited.
    #[test]
    fn a_machine_with_a_network_of_addresses_has_the_places_of_one() {
        let callers = callers();
        let address = |host: usize| format!("2001:db8:0:1::{host:x}").parse().expect("an address");
        let held: Vec<_> = (0..=CONNECTIONS_OF_ONE_MAX).map_while(|host| callers.count(address(host))).collect();
        assert_eq!(held.len(), CONNECTIONS_OF_ONE_MAX);
        assert!(callers.count("2001:db8:0:2::1".parse().expect("an address")).is_some(), "others have theirs");
        let mapped: Vec<_> =
            ["192.0.2.1", "::ffff:192.0.2.1"].iter().cycle().take(CONNECTIONS_OF_ONE_MAX + 1).collect();
        let held: Vec<_> = mapped.iter().map_while(|peer| callers.count(peer.parse().expect("an address"))).collect();
        assert_eq!(held.len(), CONNECTIONS_OF_ONE_MAX, "the same one");
    }
}
