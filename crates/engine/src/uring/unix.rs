//! Unix-domain stream sockets of the kernel.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Mode, OFlags, chmod, fchmod, fstat, open};
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
        remove_stale(path).map_err(told)?;
        let socket = stream_socket(SocketFlags::empty())?;
        // The file is made with these permissions, less the umask: at no moment with more than were asked for.
        fchmod(socket.as_fd(), Mode::from_raw_mode(mode))?;
        net::bind(&socket, &address).map_err(|error| told(error.into()))?;
        let listener = Listener { acceptor: Acceptor::listen(socket)?, path: path.to_owned() };
        // What the umask has taken away is given, to what was made here.
        permit(path, Mode::from_raw_mode(mode)).map_err(told)?;
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

/// Gives the socket at `path` these permissions. By a path alone a link that somebody has put in its place would be followed.
fn permit(path: &Path, mode: Mode) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = open(path, flags, Mode::empty())?;
    let found = fstat(&place)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "somebody has put another file in the socket's place",
        ));
    }
    if Mode::from_raw_mode(found.st_mode) != mode {
        // A descriptor of a path takes no fchmod; this name is of the very file it stands for.
        chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), mode)?;
    }
    Ok(())
}

/// Removes the socket of a process that has ended. Of one that still answers, and of any other file, nothing is touched.
/// Any other error than that nobody listens there says nothing of the kind: no right to connect, or a socket of another type.
pub(crate) fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file, and it is no socket"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let (socket, address) = (stream_socket(SocketFlags::NONBLOCK)?, SocketAddrUnix::new(path)?);
    match net::connect(&socket, &address) {
        Err(rustix::io::Errno::CONNREFUSED) => std::fs::remove_file(path),
        // Its queue being full, it listens all the same.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"))
        }
        Err(error) => Err(error.into()),
    }
}

/// See [`crate::net::listen_privately`].
pub(crate) fn listen_privately(path: &Path, waiting_max: i32) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = stream_socket(SocketFlags::empty())?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, waiting_max)?;
    Ok(socket.into())
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn permissions_are_not_given_through_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let [socket, link] = ["socket", "link"].map(|name| folder.path().join(name));
        let _listener = UnixListener::bind(&socket).expect("bound");
        let mode = |path: &Path| std::fs::symlink_metadata(path).expect("there").mode() & 0o777;
        permit(&socket, Mode::from_raw_mode(0o600)).expect("changed");
        assert_eq!(mode(&socket), 0o600);
        symlink(&socket, &link).expect("linked");
        assert!(permit(&link, Mode::from_raw_mode(0o666)).is_err());
        assert_eq!(mode(&socket), 0o600);
        permit(&socket, Mode::from_raw_mode(0o666)).expect("changed");
        assert_eq!(mode(&socket), 0o666);
    }

    #[test]
    fn a_private_socket_is_its_owners_from_the_first_moment_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let [socket, file, link] = ["socket", "file", "link"].map(|name| folder.path().join(name));
        let _listener = listen_privately(&socket, 1).expect("bound");
        let mode = |path: &Path| std::fs::symlink_metadata(path).expect("there").mode() & 0o777;
        assert_eq!(mode(&socket), 0o600);
        std::fs::write(&file, "somebody's").expect("written");
        fchmod(std::fs::File::open(&file).expect("there"), Mode::from_raw_mode(0o644)).expect("changed");
        symlink(&file, &link).expect("linked");
        assert_eq!(listen_privately(&link, 1).expect_err("there is one").kind(), io::ErrorKind::AddrInUse);
        assert_eq!(mode(&file), 0o644);
    }

    #[test]
    fn only_a_socket_that_nobody_listens_at_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let [stale, other, none] = ["stale", "other", "none"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&stale).expect("bound");
        assert_eq!(remove_stale(&stale).expect_err("in use").kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        // It is no stream: connecting fails, though it is in use.
        let _log = UnixDatagram::bind(&other).expect("bound");
        assert!(remove_stale(&other).is_err() && other.exists());
        assert!(remove_stale(&stale).is_ok() && !stale.exists() && remove_stale(&none).is_ok());
    }
}
