//! The byte stream under a queue: what the drivers of both roles receive from and send to.
//!
//! An enum, not a trait object: the plain path costs one `match` per operation.

use std::io;
use std::net::SocketAddr;

use engine::Buf;
use engine::net::{SendBatch, TcpStream};

/// A connected stream of bytes. One receive and one send may be outstanding at a time, together.
pub(crate) enum Transport {
    /// The socket itself.
    Plain(TcpStream),
}

impl Transport {
    /// As [`TcpStream::recv`].
    pub async fn recv(&self, buf: Buf) -> (io::Result<usize>, Buf) {
        match self {
            Transport::Plain(stream) => stream.recv(buf).await,
        }
    }

    /// As [`TcpStream::send`].
    pub async fn send(&self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        match self {
            Transport::Plain(stream) => stream.send(batch).await,
        }
    }

    /// Ends both directions; what waits on them ends.
    pub fn shutdown(&self) {
        match self {
            Transport::Plain(stream) => stream.shutdown(),
        }
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> SocketAddr {
        match self {
            Transport::Plain(stream) => stream.peer_addr(),
        }
    }

    /// This side's address.
    pub fn local_addr(&self) -> SocketAddr {
        match self {
            Transport::Plain(stream) => stream.local_addr(),
        }
    }
}

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Transport {
        Transport::Plain(stream)
    }
}
