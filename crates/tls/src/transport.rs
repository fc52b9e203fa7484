//! A connection, over whatever it came: what servers and hosts receive from and send to.

use std::io;
use std::time::Duration;

use engine::net::serving::ACCEPT_PAUSE;
use engine::net::{SendBatch, TcpStream, UnixStream};
use engine::sync::Semaphore;
use engine::{Buf, task, time};

use crate::error::TlsError;
use crate::stream::TlsStream;
use crate::tunnel::CertificateContext;

/// How long a TLS handshake may take. Guessed: many round trips to the other end of the world.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Peers without a place that are told so at once, of one thread; more are just disconnected. Guessed.
pub const REFUSALS_MAX: usize = 16;

/// A connected stream of bytes. An enum, not a trait object: the plain path costs one `match` per operation. One receive and one
/// send may be outstanding at a time, together.
pub enum Transport {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(TlsStream),
    /// A socket of this machine.
    Unix(UnixStream),
}

impl Transport {
    /// A TCP connection, after its handshake if `tls` is given.
    ///
    /// # Errors
    /// The handshake failed, or took longer than [`HANDSHAKE_TIME_MAX`].
    pub async fn accept(stream: TcpStream, tls: Option<&CertificateContext>) -> Result<Transport, TlsError> {
        let Some(tls) = tls else { return Ok(Transport::Plain(stream)) };
        match time::timeout(HANDSHAKE_TIME_MAX, TlsStream::accept_certified(stream, tls)).await {
            Ok(accepted) => accepted.map(Transport::Tls),
            Err(_) => Err(TlsError::Socket(format!("no handshake within {HANDSHAKE_TIME_MAX:?}"))),
        }
    }

    /// [`Transport::refuse`] in a task that takes one of `places`. Who is told holds a descriptor: where no place is left the
    /// connection is just closed.
    pub fn refuse_apart(self, places: &Semaphore, over_tls: bool, why: &'static [u8]) {
        let Some(place) = places.try_acquire(1) else { return };
        let told = async move {
            self.refuse(over_tls, why).await;
            drop(place);
        };
        task::spawn(told).detach();
    }

    /// Tells the peer why it is not served; not at a TLS port, where TLS would have to be begun for that.
    pub async fn refuse(self, over_tls: bool, why: &[u8]) {
        if over_tls && matches!(self, Transport::Plain(_)) {
            return;
        }
        let mut batch = SendBatch::new();
        batch.head(why);
        // The peer may be gone already; there is nobody else to tell.
        let _ = time::timeout(ACCEPT_PAUSE, self.send(batch)).await;
    }

    /// As [`TcpStream::recv`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv(&self, buf: Buf) -> (io::Result<usize>, Buf) {
        match self {
            Transport::Plain(stream) => stream.recv(buf).await,
            Transport::Tls(stream) => stream.recv(buf).await,
            Transport::Unix(stream) => stream.recv(buf).await,
        }
    }

    /// As [`TcpStream::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        match self {
            Transport::Plain(stream) => stream.send(batch).await,
            Transport::Tls(stream) => stream.send(batch).await,
            Transport::Unix(stream) => stream.send(batch).await,
        }
    }

    /// Ends both directions; what waits on them ends.
    pub fn shutdown(&self) {
        match self {
            Transport::Plain(stream) => stream.shutdown(),
            Transport::Tls(stream) => stream.shutdown(),
            Transport::Unix(stream) => stream.shutdown(),
        }
    }

    /// Gives the connection up: what waits to be sent is dropped, and the peer is told by a reset. TLS has no word for that, and
    /// a socket of this machine no reset.
    pub fn abort(&self) {
        match self {
            Transport::Plain(stream) => stream.abort(),
            Transport::Tls(stream) => stream.socket().abort(),
            Transport::Unix(stream) => stream.shutdown(),
        }
    }
}
