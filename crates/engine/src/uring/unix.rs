//! Unix-domain stream sockets of the kernel.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, fchmod};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::net::{Acceptor, Connection};

/// Listens at a path, which goes when the listener does.
pub(crate) struct Listener {
    acceptor: Acceptor,
    path: PathBuf,
}

impl Listener {
    /// `mode`: the permissions of the socket's file; who may write to it may connect.
    pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<Listener> {
        let told = |error: io::Error| io::Error::new(error.kind(), format!("binding {}: {error}", path.display()));
        let address = SocketAddrUnix::new(path).map_err(|error| told(error.into()))?;
        remove_stale(path, &address).map_err(told)?;
        let socket = stream_socket(SocketFlags::empty())?;
        // The file is made with these permissions, less the umask: at no moment with more than were asked for.
        fchmod(socket.as_fd(), Mode::from_raw_mode(mode))?;
        net::bind(&socket, &address).map_err(|error| told(error.into()))?;
        let listener = Listener { acceptor: Acceptor::listen(socket)?, path: path.to_owned() };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(told)?;
        Ok(listener)
    }

    pub(crate) async fn accept(&self) -> io::Result<Connection> {
        self.acceptor.accept().await.map(Connection::new)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody may have removed it, or the directory; then there is nothing left to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the socket of a process that has ended. Of one that still answers, and of any other file, nothing is touched.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file, and it is no socket"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let socket = stream_socket(SocketFlags::NONBLOCK)?;
    match net::connect(&socket, address) {
        Err(rustix::io::Errno::CONNREFUSED) => std::fs::remove_file(path),
        // Its queue being full, it listens all the same.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Connects to `path`, at once: the connection is made, or refused, or the listener's queue is full (`WouldBlock`).
pub(crate) fn connect(path: &Path) -> io::Result<Connection> {
    let told = |error: io::Error| io::Error::new(error.kind(), format!("connecting to {}: {error}", path.display()));
    let address = SocketAddrUnix::new(path).map_err(|error| told(error.into()))?;
    let socket = stream_socket(SocketFlags::NONBLOCK)?;
    net::connect(&socket, &address).map_err(|error| told(error.into()))?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(Connection::new(socket))
}

fn stream_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | flags, None)?)
}
