//! Unix-domain stream sockets: for processes of one machine. The simulated world has none: its nodes share no file system.

use std::{io, path::Path};

use super::SendBatch;
use crate::{
    Buf,
    runtime::{self, Context},
    uring,
};

fn kernel_only() -> io::Result<()> {
    match runtime::current() {
        Context::Uring(_) => Ok(()),
        Context::Sim(_) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "there are no Unix-domain sockets in a simulation"))
        }
    }
}

/// Removes what a process that has ended has left at `path`: a socket at which nobody listens.
///
/// # Errors
/// `AddrInUse` if a process listens there, `AlreadyExists` if the file is no socket, and what else the system says: then nothing
/// was touched.
pub fn remove_stale_socket(path: &Path) -> io::Result<()> {
    uring::unix::remove_stale(path)
}

/// Listens at `path`, where there must be nothing, for a server that another runtime drives. Only the owner may connect, from the
/// first moment on: the file gets its permissions from the socket, which has them before there is a file. Set afterwards, by the
/// path, they would come late, and be those of whatever a link there leads to.
///
/// # Errors
/// What the system says.
pub fn listen_privately(path: &Path, waiting_max: i32) -> io::Result<std::os::unix::net::UnixListener> {
    uring::unix::listen_privately(path, waiting_max)
}

/// Accepts connections at a path. Dropping it removes the path.
pub struct UnixListener {
    inner: uring::unix::Listener,
}

impl UnixListener {
    /// Listens at `path`, whose file gets the permissions `mode` (octal as in `chmod`). What a process that has ended left there
    /// is replaced.
    ///
    /// # Errors
    /// What the system says; `AddrInUse` if another process listens there, `AlreadyExists` if the file is no socket,
    /// `Unsupported` in a simulation.
    ///
    /// # Panics
    /// Outside a world.
    pub fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
        kernel_only()?;
        Ok(UnixListener { inner: uring::unix::Listener::bind(path, mode)? })
    }

    /// Waits for a connection. Dropping the future loses none.
    ///
    /// # Errors
    /// As [`super::TcpListener::accept`].
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixStream { inner: self.inner.accept().await? })
    }
}

/// A connection. Dropping it closes it. While no operation is outstanding it may be sent to another reactor's thread.
pub struct UnixStream {
    inner: uring::net::Connection,
}

impl UnixStream {
    /// Connects to the process that listens at `path`, at once.
    ///
    /// # Errors
    /// What the system says: `NotFound`, `ConnectionRefused`, `WouldBlock` (as many as it lets wait do so already), ...;
    /// `Unsupported` in a simulation.
    pub fn connect(path: &Path) -> io::Result<UnixStream> {
        kernel_only()?;
        Ok(UnixStream { inner: uring::unix::connect(path)? })
    }

    /// As [`super::TcpStream::recv`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv(&self, buf: Buf) -> (io::Result<usize>, Buf) {
        if buf.len() == buf.capacity() {
            return (Err(super::no_spare_capacity()), buf);
        }
        self.inner.recv(buf).await
    }

    /// As [`super::TcpStream::readable`].
    ///
    /// # Errors
    /// As there.
    pub async fn readable(&self) -> io::Result<()> {
        self.inner.readable().await
    }

    /// As [`super::TcpStream::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        let (result, mut batch) = self.inner.send(batch).await;
        batch.clear();
        (result, batch)
    }

    /// As [`super::TcpStream::shutdown`].
    pub fn shutdown(&self) {
        self.inner.shutdown();
    }
}
