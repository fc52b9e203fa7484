//! The byte stream under a queue: what the drivers of both roles receive from and send to.
//!
//! An enum, not a trait object: the plain path costs one `match` per operation.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use engine::net::{SendBatch, TcpStream};
use engine::{Buf, time};
use tls::{ServerContext, TlsError, TlsStream};

use crate::psk::{Keyring, TlsPsk};

/// What the first byte of a TLS connection is (RFC 8446 §5.1: a handshake record). A plain one begins with the type of
/// ICReq, 00h (NVMe/TCP 1.0c §3.6.2.2).
const TLS_HANDSHAKE: u8 = 0x16;
/// What is received to tell which of the two it is. Chosen: a ClientHello or an ICReq and the capsule behind it.
const FIRST_BYTES: usize = 4 << 10;

/// A connected stream of bytes. One receive and one send may be outstanding at a time, together.
pub(crate) enum Transport {
    /// The socket itself.
    Plain(TcpStream),
    /// TLS on it.
    Tls(TlsStream),
}

/// What a connection that was accepted turned out to be.
pub(crate) enum Accepted {
    /// A plain one, and what was received of it.
    Plain(Transport, Buf),
    /// A secure one, and the key that it was made with.
    Secure(Transport, Arc<TlsPsk>),
    /// The peer closed it without a word.
    Closed,
}

impl Transport {
    /// Tells from a connection's first byte what it is, and makes the TLS handshake if it is that, with a key of `keyring`, which
    /// `server` has. The caller bounds the time.
    pub async fn accept(stream: TcpStream, server: &ServerContext, keyring: &Keyring) -> Result<Accepted, TlsError> {
        let (result, first) = stream.recv(Buf::with_capacity(FIRST_BYTES)).await;
        match result {
            Ok(0) => Ok(Accepted::Closed),
            Ok(_) if first[0] == TLS_HANDSHAKE => {
                keyring.expire(time::now());
                let stream = TlsStream::accept(stream, server, first).await?;
                let psk = stream.psk().and_then(TlsPsk::shown).ok_or(TlsError::KeyNotTaken)?;
                Ok(Accepted::Secure(Transport::Tls(stream), Arc::new(psk)))
            }
            Ok(_) => Ok(Accepted::Plain(Transport::Plain(stream), first)),
            Err(error) => Err(TlsError::Socket(error.to_string())),
        }
    }

    /// Makes a TLS connection of one that this side has made. The caller bounds the time.
    pub async fn secure(stream: TcpStream, psk: &TlsPsk) -> Result<Transport, TlsError> {
        TlsStream::connect(stream, psk.psk().clone()).await.map(Transport::Tls)
    }

    /// As [`TcpStream::recv`].
    pub async fn recv(&self, buf: Buf) -> (io::Result<usize>, Buf) {
        match self {
            Transport::Plain(stream) => stream.recv(buf).await,
            Transport::Tls(stream) => stream.recv(buf).await,
        }
    }

    /// As [`TcpStream::send`].
    pub async fn send(&self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        match self {
            Transport::Plain(stream) => stream.send(batch).await,
            Transport::Tls(stream) => stream.send(batch).await,
        }
    }

    /// Ends both directions; what waits on them ends.
    pub fn shutdown(&self) {
        match self {
            Transport::Plain(stream) => stream.shutdown(),
            Transport::Tls(stream) => stream.shutdown(),
        }
    }

    /// Gives the connection up: what waits to be sent is dropped, and the peer is told by a reset. TLS has no word for that.
    pub fn abort(&self) {
        match self {
            Transport::Plain(stream) => stream.abort(),
            Transport::Tls(stream) => stream.socket().abort(),
        }
    }

    /// This side's address.
    pub fn local_addr(&self) -> SocketAddr {
        match self {
            Transport::Plain(stream) => stream.local_addr(),
            Transport::Tls(stream) => stream.socket().local_addr(),
        }
    }
}

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Transport {
        Transport::Plain(stream)
    }
}
