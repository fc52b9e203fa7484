//! Sockets of the kernel.
//!
//! Sockets are blocking ones: on a non-blocking socket `io_uring` reports EAGAIN instead of waiting.

use std::{
    cell::RefCell,
    future::Future,
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use io_uring::{opcode, types};
use rustix::net::{self, AddressFamily, Shutdown, SocketFlags, SocketType, ipproto, sockopt};

use super::{
    Driver,
    message::Address,
    op::Op,
    slots::{Held, Kind, own},
};
use crate::{
    Buf,
    net::SendBatch,
    runtime::{self, Context},
    sync::Semaphore,
};

/// Connections the kernel keeps for us until they are accepted. The kernel's own default bound (net.core.somaxconn).
const BACKLOG_MAX: i32 = 4096;
/// How often a silent peer is asked whether it is there before it is given up. Chosen: no loss of a single packet counts.
const PROBES: u32 = 4;

fn driver() -> Rc<Driver> {
    match runtime::current() {
        Context::Uring(driver) => driver,
        Context::Sim(_) => panic!("a socket of the kernel was used in a simulation"),
    }
}

/// A socket that listens.
///
/// Invariant: at most one accept is known to the kernel, and it outlives the futures that wait for it. The kernel wakes
/// accepts exclusively: a connection that woke one on its way to cancellation would not wake the next.
pub(super) struct Acceptor {
    socket: Arc<OwnedFd>,
    turn: Semaphore,
    pending: RefCell<Option<Op>>,
}

impl Acceptor {
    pub(super) fn listen(socket: OwnedFd) -> io::Result<Acceptor> {
        net::listen(&socket, BACKLOG_MAX)?;
        Ok(Acceptor { socket: Arc::new(socket), turn: Semaphore::new(1), pending: RefCell::default() })
    }

    pub(super) async fn accept(&self) -> io::Result<OwnedFd> {
        let _turn = self.turn.acquire(1).await;
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&self, cx: &mut TaskContext<'_>) -> Poll<io::Result<OwnedFd>> {
        let mut pending = self.pending.borrow_mut();
        let op = pending.get_or_insert_with(|| self.start_accept());
        let Poll::Ready((result, _)) = Pin::new(op).poll(cx) else { return Poll::Pending };
        *pending = None;
        Poll::Ready(result.map(|descriptor| own(descriptor as i32)))
    }

    fn start_accept(&self) -> Op {
        let descriptor = types::Fd(self.socket.as_raw_fd());
        let entry = opcode::Accept::new(descriptor, std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build();
        // SAFETY: the entry points to nothing and names the listening socket.
        unsafe { Op::start(driver(), entry, Held::Accept, &self.socket, Kind::Accept) }
    }
}

pub(crate) struct Listener {
    acceptor: Acceptor,
    local: SocketAddr,
}

impl Listener {
    pub(crate) fn bind(addr: SocketAddr) -> io::Result<Listener> {
        let socket = socket_for(addr)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &addr)
            .map_err(|error| io::Error::new(io::Error::from(error).kind(), format!("binding {addr}: {error}")))?;
        let local = address_of(net::getsockname(&socket)?)?;
        Ok(Listener { acceptor: Acceptor::listen(socket)?, local })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            match Stream::new(self.acceptor.accept().await?) {
                Ok(stream) => {
                    let peer = stream.peer;
                    return Ok((stream, peer));
                }
                // It was reset before we looked.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
    }
}

pub(crate) struct Stream {
    pub(crate) connection: Connection,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Stream {
    fn new(socket: OwnedFd) -> io::Result<Stream> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        let local = address_of(net::getsockname(&socket)?)?;
        let peer = net::getpeername(&socket)?.ok_or(rustix::io::Errno::NOTCONN)?;
        Ok(Stream { connection: Connection::new(socket), local, peer: address_of(peer)? })
    }

    pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        let socket = Arc::new(socket_for(addr)?);
        let address = Box::new(Address::from(addr));
        let (pointer, length) = address.as_raw();
        let entry = opcode::Connect::new(types::Fd(socket.as_raw_fd()), pointer, length).build();
        // SAFETY: the entry points to the boxed address, which the slot holds, and names the socket.
        let op = unsafe { Op::start(driver(), entry, Held::Address(address), &socket, Kind::Socket) };
        let (result, _) = op.await;
        result?;
        let socket = Arc::into_inner(socket).expect("the operation has ended and its slot is free: no other holder");
        Stream::new(socket)
    }

    pub(crate) fn expect_peer(&self, limit: Duration) -> io::Result<()> {
        let socket = &*self.connection.socket;
        sockopt::set_tcp_keepidle(socket, limit / 2)?;
        sockopt::set_tcp_keepintvl(socket, limit / (2 * PROBES))?;
        sockopt::set_tcp_keepcnt(socket, PROBES)?;
        sockopt::set_socket_keepalive(socket, true)?;
        // For what was sent and not acknowledged, which else is sent again for a quarter of an hour.
        Ok(sockopt::set_tcp_user_timeout(socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?)
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// A connected socket. It belongs to no reactor in particular: the one that runs serves it.
pub(crate) struct Connection {
    socket: Arc<OwnedFd>,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Connection {
        Connection { socket: Arc::new(socket) }
    }

    pub(crate) async fn recv(&self, mut buf: Buf) -> (io::Result<usize>, Buf) {
        loop {
            let spare = buf.spare_mut();
            let (place, room) = (spare.as_mut_ptr(), spare.len() as u32);
            // SAFETY: the place lies in the buffer's block, which does not move with it.
            let op = unsafe { Op::receive(driver(), place, room, buf, &self.socket) };
            let (result, held) = op.await;
            let Held::Buf(back) = held else { unreachable!("an operation gives back what it was given") };
            buf = back;
            match result {
                Ok(count) => {
                    buf.set_len(buf.len() + count);
                    return (Ok(count), buf);
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), buf),
            }
        }
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        loop {
            // The peer's end and errors are told whether they are asked for or not.
            let entry = opcode::PollAdd::new(types::Fd(self.socket.as_raw_fd()), libc::POLLIN as u32).build();
            // SAFETY: the entry points to nothing and names the socket.
            let op = unsafe { Op::start(driver(), entry, Held::Nothing, &self.socket, Kind::Socket) };
            match op.await.0 {
                Ok(_) => return Ok(()),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) async fn send(&self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        let driver = driver();
        let mut state = driver.send_states().take();
        state.load(batch);
        // The kernel is asked directly first. A socket nearly always has room, and then the bytes are on their way at once, not
        // at the end of the turn, and no completion has to come back for them. The ring waits where there is no room.
        let result = loop {
            if state.is_sent() {
                break Ok(());
            }
            match state.send_now(&self.socket) {
                Ok(count) => {
                    state.advance(count);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if is_transient(&error) => continue,
                Err(error) => break Err(error),
            }
            let entry = state.entry(types::Fd(self.socket.as_raw_fd()));
            // SAFETY: the entry points into the boxed state and to the batch's bytes, which it owns: both are held by the
            // slot, unchanged. The entry names the socket.
            let op = unsafe { Op::start(driver.clone(), entry, Held::Send(state), &self.socket, Kind::Socket) };
            let (result, held) = op.await;
            let Held::Send(back) = held else { unreachable!("an operation gives back what it was given") };
            state = back;
            match result {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => state.advance(count),
                Err(error) if is_transient(&error) => {}
                Err(error) => break Err(error),
            }
        };
        let batch = state.forget_batch().expect("loaded above and never taken");
        driver.send_states().give(state);
        (result, batch)
    }

    pub(crate) fn shutdown(&self) {
        // NotConnected: the peer was faster. There is nothing else that could go wrong with a connected socket.
        let _ = net::shutdown(&self.socket, Shutdown::Both);
    }

    pub(crate) fn abort(&self) {
        // Whoever holds the connection may do so for long, so it is not left to the close; where the kernel refuses, that
        // resets it. Either can fail only because there is no connection any more.
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        if net::connect_unspec(&self.socket).is_err() {
            self.shutdown();
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn socket_for(addr: SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?)
}

fn address_of(addr: net::SocketAddrAny) -> io::Result<SocketAddr> {
    SocketAddr::try_from(addr).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, "a TCP socket with an address that is neither IPv4 nor IPv6")
    })
}
