//! Receives that the reactor itself looks after: asked for directly while it spins, handed to the ring before it sleeps.
//!
//! A peer that answers within a spin is then taken from with one system call, and its own send finds nobody to wake. By the
//! ring the same receive costs two, the second only to run what the first has left behind.
//!
//! Invariants:
//! - A receive is here or known to the kernel, never both. Were it both, two system calls would fill one buffer.
//! - Its slot owns buffer and descriptor until it is completed, as with the kernel.
//! - At most [`POLLED_MAX`] are asked for directly: what many connections bring is cheaper by the ring, all at once.

use std::{cell::RefCell, io, os::fd::RawFd};

use io_uring::{opcode, squeue, types};

/// Receives that are asked for directly at a time. Each costs a system call in every look. Guessed: two associations' worth.
pub(super) const POLLED_MAX: usize = 4;
/// Turns in which others got something and a receive did not, until it is left to the ring: an idle connection (that of an
/// admin queue) must not slow down the looks at a busy one. Guessed.
const PASSED_OVER_MAX: u32 = 16;

/// A receive that the kernel does not know.
struct Waiting {
    key: usize,
    socket: RawFd,
    place: *mut u8,
    room: u32,
    passed_over: u32,
}

impl Waiting {
    /// What the socket has now: bytes, or the negative error; `None`: nothing.
    fn ask(&self) -> Option<i32> {
        // Not by `libc::recv`: a thread of a process with several pays for making that a cancellation point, at every look.
        // SAFETY: the slot of `key` owns the descriptor and the buffer that `place` points into (`room` bytes of it), and the
        // kernel does not know this receive: nobody else touches them. Null: nobody asks for the peer's address.
        let count = unsafe {
            let nobody = std::ptr::null_mut::<libc::c_void>();
            let (socket, room) = (libc::c_long::from(self.socket), self.room as usize);
            libc::syscall(
                libc::SYS_recvfrom,
                socket,
                self.place,
                room,
                libc::c_long::from(libc::MSG_DONTWAIT),
                nobody,
                nobody,
            )
        };
        if count >= 0 {
            return Some(i32::try_from(count).unwrap_or(i32::MAX)); // a buffer is shorter than that
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => None,
            _ => Some(-error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    fn entry(&self) -> squeue::Entry {
        opcode::Recv::new(types::Fd(self.socket), self.place, self.room).build().user_data(self.key as u64)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Receives {
    waiting: RefCell<Vec<Waiting>>,
}

impl Receives {
    /// Adds the receive of slot `key`, which owns the `room` bytes at `place`, from a socket that the slot owns as well.
    pub(super) fn add(&self, key: usize, socket: RawFd, place: *mut u8, room: u32) {
        self.waiting.borrow_mut().push(Waiting { key, socket, place, room, passed_over: 0 });
    }

    /// Whether there are more than should be asked for directly.
    pub(super) fn are_many(&self) -> bool {
        self.waiting.borrow().len() > POLLED_MAX
    }

    /// Asks for each once, until one has something: its key and result.
    pub(super) fn look(&self) -> Option<(usize, i32)> {
        let mut waiting = self.waiting.borrow_mut();
        let found = waiting.iter().enumerate().find_map(|(place, receive)| receive.ask().map(|result| (place, result)));
        let (place, result) = found?;
        // The order stays: who waits longest is asked first.
        Some((waiting.remove(place).key, result))
    }

    /// Notes that somebody got something, and hands those that were passed over too often to `hand_over`.
    pub(super) fn pass_over(&self, mut hand_over: impl FnMut(squeue::Entry)) {
        self.waiting.borrow_mut().retain_mut(|receive| {
            receive.passed_over += 1;
            let stays = receive.passed_over <= PASSED_OVER_MAX;
            if !stays {
                hand_over(receive.entry());
            }
            stays
        });
    }

    /// Hands all of them to `hand_over`.
    pub(super) fn leave(&self, hand_over: impl FnMut(squeue::Entry)) {
        self.waiting.borrow_mut().drain(..).map(|receive| receive.entry()).for_each(hand_over);
    }

    /// Takes the receive of slot `key` off the list; false if it is not there.
    pub(super) fn cancel(&self, key: usize) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.len();
        waiting.retain(|receive| receive.key != key);
        waiting.len() < before
    }

    /// Takes any receive off the list: its key.
    pub(super) fn cancel_any(&self) -> Option<usize> {
        self.waiting.borrow_mut().pop().map(|receive| receive.key)
    }
}
