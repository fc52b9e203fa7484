//! Stream sockets of the current world: TCP, and in the kernel's world also Unix-domain ones.
//!
//! Invariants:
//! - An operation owns its buffers until the world is done with them, also when its future is dropped.
//! - One receive and one send at a time per stream; they may be outstanding together, from two tasks.

use std::{io, net::SocketAddr, time::Duration};

use crate::{
    Buf,
    runtime::{self, Context},
    sim, uring,
};

mod batch;
pub mod peers;
pub mod serving;
mod unix;

pub use batch::{HEAD_BYTES_MAX, SEGMENTS_MAX, SendBatch};
pub use unix::{UnixListener, UnixStream, listen_privately, remove_stale_socket};

/// Such a receive would end with a zero, which looks like the peer's end.
fn no_spare_capacity() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "receive into a buffer without spare capacity")
}

/// A socket that accepts connections.
pub struct TcpListener {
    inner: ListenerKind,
}

enum ListenerKind {
    Uring(uring::net::Listener),
    Sim(sim::net::Listener),
}

impl TcpListener {
    /// Listens on `addr` (port 0: any free one), with `SO_REUSEADDR`.
    ///
    /// # Errors
    /// What the system says; in particular `AddrInUse`.
    ///
    /// # Panics
    /// Outside a world.
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        let inner = match runtime::current() {
            Context::Uring(_) => ListenerKind::Uring(uring::net::Listener::bind(addr)?),
            Context::Sim(driver) => ListenerKind::Sim(sim::net::Listener::bind(&driver, addr)?),
        };
        Ok(TcpListener { inner })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.inner {
            ListenerKind::Uring(listener) => listener.local_addr(),
            ListenerKind::Sim(listener) => listener.local_addr(),
        }
    }

    /// Waits for a connection. Dropping the future loses none.
    ///
    /// # Errors
    /// What the system says; the listener can go on after errors of one connection and after a pause when descriptors ran out.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (inner, peer) = match &self.inner {
            ListenerKind::Uring(listener) => {
                let (stream, peer) = listener.accept().await?;
                (StreamKind::Uring(stream), peer)
            }
            ListenerKind::Sim(listener) => {
                let (stream, peer) = listener.accept().await?;
                (StreamKind::Sim(stream), peer)
            }
        };
        Ok((TcpStream { inner }, peer))
    }
}

/// A connection, with `TCP_NODELAY`. Dropping it closes it.
pub struct TcpStream {
    inner: StreamKind,
}

enum StreamKind {
    Uring(uring::net::Stream),
    Sim(sim::net::Stream),
}

impl TcpStream {
    /// Connects to `addr`.
    ///
    /// # Errors
    /// What the system says: `ConnectionRefused`, `TimedOut`, ...
    pub async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
        let inner = match runtime::current() {
            Context::Uring(_) => StreamKind::Uring(uring::net::Stream::connect(addr).await?),
            Context::Sim(driver) => StreamKind::Sim(sim::net::Stream::connect(driver, addr).await?),
        };
        Ok(TcpStream { inner })
    }

    /// Receives at least one byte into the spare capacity of `buf` and makes it content; `Ok(0)`: the peer has closed its side.
    /// The buffer comes back in every case. Of a dropped receive the bytes it may have taken are lost.
    ///
    /// # Errors
    /// What the system says. `InvalidInput` if the buffer has no spare capacity: a zero would look like the peer's end.
    pub async fn recv(&self, buf: Buf) -> (io::Result<usize>, Buf) {
        if buf.len() == buf.capacity() {
            return (Err(no_spare_capacity()), buf);
        }
        match &self.inner {
            StreamKind::Uring(stream) => stream.connection.recv(buf).await,
            StreamKind::Sim(stream) => stream.recv(buf).await,
        }
    }

    /// Waits until a receive would not wait: for bytes, the peer's end, or an error. Of many connections that rest each holds no
    /// buffer meanwhile. Dropping the future loses nothing.
    ///
    /// # Errors
    /// What the system says.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.inner {
            StreamKind::Uring(stream) => stream.connection.readable().await,
            StreamKind::Sim(stream) => stream.readable().await,
        }
    }

    /// Sends all of `batch`, which comes back cleared, for reuse. After an error or a dropped send an unknown part was sent:
    /// the connection is good for nothing more.
    ///
    /// # Errors
    /// What the system says: `BrokenPipe`, `ConnectionReset`, ...
    pub async fn send(&self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        let (result, mut batch) = match &self.inner {
            StreamKind::Uring(stream) => stream.connection.send(batch).await,
            StreamKind::Sim(stream) => stream.send(batch).await,
        };
        batch.clear();
        (result, batch)
    }

    /// Lets the connection fail when the peer's system has not answered for `limit`, also while nothing is said, or has taken none
    /// of what it was sent for as long.
    ///
    /// # Errors
    /// What the system says, where it has no such options.
    pub fn expect_peer(&self, limit: Duration) -> io::Result<()> {
        match &self.inner {
            StreamKind::Uring(stream) => stream.expect_peer(limit),
            StreamKind::Sim(_) => Ok(()), // its peers are gone when the test says so
        }
    }

    /// Ends both directions. A pending receive ends with `Ok(0)` or an error, a pending send with an error.
    pub fn shutdown(&self) {
        match &self.inner {
            StreamKind::Uring(stream) => stream.connection.shutdown(),
            StreamKind::Sim(stream) => stream.shutdown(),
        }
    }

    /// Gives the connection up at once: what waits to be sent is dropped, and the peer is told by a reset. What waits on either
    /// direction ends with an error.
    pub fn abort(&self) {
        match &self.inner {
            StreamKind::Uring(stream) => stream.connection.abort(),
            StreamKind::Sim(stream) => stream.abort(),
        }
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> SocketAddr {
        match &self.inner {
            StreamKind::Uring(stream) => stream.peer_addr(),
            StreamKind::Sim(stream) => stream.peer_addr(),
        }
    }

    /// This side's address.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.inner {
            StreamKind::Uring(stream) => stream.local_addr(),
            StreamKind::Sim(stream) => stream.local_addr(),
        }
    }

    /// Takes the connection off this thread, to be attached on another. No operation may be outstanding.
    pub fn detach(self) -> DetachedStream {
        let inner = match self.inner {
            StreamKind::Uring(stream) => DetachedKind::Uring(stream),
            StreamKind::Sim(stream) => DetachedKind::Sim(stream.detach()),
        };
        DetachedStream { inner }
    }
}

/// A connection between two threads; see [`TcpStream::detach`].
pub struct DetachedStream {
    inner: DetachedKind,
}

enum DetachedKind {
    Uring(uring::net::Stream),
    Sim(sim::net::Detached),
}

impl DetachedStream {
    /// The other side's address.
    pub fn peer_addr(&self) -> SocketAddr {
        match &self.inner {
            DetachedKind::Uring(detached) => detached.peer_addr(),
            DetachedKind::Sim(detached) => detached.peer_addr(),
        }
    }

    /// Makes it a connection of the current thread's world.
    ///
    /// # Panics
    /// Outside the kind of world it was detached from.
    pub fn attach(self) -> TcpStream {
        let inner = match (self.inner, runtime::current()) {
            (DetachedKind::Uring(detached), Context::Uring(_)) => StreamKind::Uring(detached),
            (DetachedKind::Sim(detached), Context::Sim(driver)) => StreamKind::Sim(detached.attach(&driver)),
            _ => panic!("a stream of the kernel was attached in a simulation, or the other way round"),
        };
        TcpStream { inner }
    }
}
