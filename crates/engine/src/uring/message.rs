//! What the operations of sockets point the kernel to: addresses, and messages that are sent.

use std::{
    cell::RefCell,
    io,
    net::{SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsRawFd, OwnedFd},
};

use io_uring::{opcode, types};

use crate::net::SendBatch;

/// Pieces of one sendmsg: the kernel's bound (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Send states kept for reuse; one per send that is outstanding at the same time.
const SEND_STATES_MAX: usize = 64;

/// A socket address as the kernel wants it.
pub(super) enum Address {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Address {
    pub(super) fn as_raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        match self {
            Address::V4(addr) => (std::ptr::from_ref(addr).cast(), size_of_val(addr) as libc::socklen_t),
            Address::V6(addr) => (std::ptr::from_ref(addr).cast(), size_of_val(addr) as libc::socklen_t),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Address {
        match addr {
            SocketAddr::V4(addr) => Address::V4(address_v4(addr)),
            SocketAddr::V6(addr) => Address::V6(address_v6(addr)),
        }
    }
}

fn address_v4(addr: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
        sin_zero: [0; 8],
    }
}

fn address_v6(addr: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: addr.port().to_be(),
        sin6_flowinfo: addr.flowinfo(),
        sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
        sin6_scope_id: addr.scope_id(),
    }
}

/// What one send needs beside the batch; kept by the reactor and reused.
///
/// Invariant: `header` and `pieces` are rebuilt by `entry` for every system call and only read by the kernel between that and
/// the completion; the batch is not touched in between.
pub(super) struct SendState {
    batch: Option<SendBatch>,
    /// Bytes of the batch that were sent.
    sent: usize,
    pieces: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Default for SendState {
    fn default() -> SendState {
        // SAFETY: all-zero bytes are a valid msghdr: null pointers and zero lengths.
        let header = unsafe { std::mem::zeroed() };
        SendState { batch: None, sent: 0, pieces: Vec::with_capacity(crate::net::SEGMENTS_MAX), header }
    }
}

impl SendState {
    pub(super) fn load(&mut self, batch: SendBatch) {
        self.batch = Some(batch);
        self.sent = 0;
    }

    /// Lets go of the batch.
    pub(super) fn forget_batch(&mut self) -> Option<SendBatch> {
        self.pieces.clear();
        self.batch.take()
    }

    pub(super) fn is_sent(&self) -> bool {
        self.batch.as_ref().is_none_or(|batch| self.sent >= batch.len())
    }

    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
    }

    /// Sends what is left as far as the socket has room for it now.
    pub(super) fn send_now(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        self.gather();
        // Not by `libc::sendmsg`, for the reason that receives have (`receive.rs`).
        let socket = libc::c_long::from(socket.as_raw_fd());
        let flags = libc::c_long::from(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        let count = if let [piece] = self.pieces[..] {
            let nobody = std::ptr::null::<libc::c_void>();
            // SAFETY: the piece points into the batch, which `self` owns and which is only read.
            unsafe { libc::syscall(libc::SYS_sendto, socket, piece.iov_base, piece.iov_len, flags, nobody, 0usize) }
        } else {
            let header =
                libc::msghdr { msg_iov: self.pieces.as_mut_ptr(), msg_iovlen: self.pieces.len(), ..self.header };
            // SAFETY: the header and the pieces it points to live through the call; the pieces point into the batch, which
            // `self` owns and which is only read.
            unsafe { libc::syscall(libc::SYS_sendmsg, socket, &raw const header, flags) }
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Points `pieces` at what is left, as far as one system call takes it.
    fn gather(&mut self) {
        self.pieces.clear();
        let mut skip = self.sent;
        for slice in self.batch.iter().flat_map(SendBatch::slices) {
            if skip >= slice.len() {
                skip -= slice.len();
                continue;
            }
            let rest = &slice[skip..];
            skip = 0;
            self.pieces.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() });
            if self.pieces.len() == PIECES_MAX {
                break;
            }
        }
    }

    /// The entry that sends what is left, as far as one system call takes it.
    pub(super) fn entry(&mut self, socket: types::Fd) -> io_uring::squeue::Entry {
        self.gather();
        if let [piece] = self.pieces[..] {
            let length = piece.iov_len.min(i32::MAX as usize) as u32;
            return opcode::Send::new(socket, piece.iov_base.cast(), length).flags(libc::MSG_NOSIGNAL).build();
        }
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = self.pieces.len() as _;
        opcode::SendMsg::new(socket, &self.header).flags(libc::MSG_NOSIGNAL as u32).build()
    }
}

/// Send states that wait for the next send.
#[derive(Default)]
pub(super) struct SendStates(
    #[expect(clippy::vec_box, reason = "the kernel has been told their addresses")] RefCell<Vec<Box<SendState>>>,
);

impl SendStates {
    pub(super) fn take(&self) -> Box<SendState> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    pub(super) fn give(&self, mut state: Box<SendState>) {
        let mut states = self.0.borrow_mut();
        if states.len() < SEND_STATES_MAX {
            state.forget_batch();
            states.push(state);
        }
    }
}
