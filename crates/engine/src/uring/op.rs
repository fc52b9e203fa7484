//! An operation as whoever waits for it holds it; what the kernel may touch meanwhile is in its slot (`slots`).

use std::{
    future::Future,
    io,
    os::fd::OwnedFd,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use io_uring::squeue;

use super::{
    Driver,
    slots::{Abandoned, Heir, Held, Kind, outcome},
};
use crate::Buf;

/// An operation in flight: a future of its result and what it held. Dropping it cancels the operation, or not: see [`Kind`].
pub(super) struct Op {
    driver: Rc<Driver>,
    key: usize,
    ended: bool,
}

impl Op {
    /// Hands `entry` over with the next turn.
    ///
    /// # Safety
    /// `entry` may point only to what `held` owns (at places that do not move with it) and name only `descriptor`.
    pub(super) unsafe fn start(
        driver: Rc<Driver>,
        entry: squeue::Entry,
        held: Held,
        descriptor: &Arc<OwnedFd>,
        kind: Kind,
    ) -> Op {
        // SAFETY: the slot owns both until the completion was taken.
        let key = unsafe { driver.start(entry, held, descriptor.clone(), kind) };
        Op { driver, key, ended: false }
    }
}

impl Op {
    /// Receives up to `room` bytes at `place`.
    ///
    /// # Safety
    /// The bytes lie in `buf`, which moves without them, and `socket` is one.
    pub(super) unsafe fn receive(driver: Rc<Driver>, place: *mut u8, room: u32, buf: Buf, socket: &Arc<OwnedFd>) -> Op {
        // SAFETY: the slot owns buffer and socket until the receive has ended.
        let key = unsafe { driver.start_receive(place, room, buf, socket.clone()) };
        Op { driver, key, ended: false }
    }

    /// Drops the future of an operation that has not ended; `heir` is told when the kernel is done.
    pub(super) fn leave(self, heir: Heir) {
        self.driver.slots().borrow_mut().entrust(self.key, heir);
    }
}

impl Future for Op {
    type Output = (io::Result<usize>, Held);

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        assert!(!self.ended, "an operation was polled after it had ended");
        let (result, held) = match self.driver.slots().borrow_mut().poll(self.key, cx.waker()) {
            Poll::Ready(ended) => ended,
            Poll::Pending => return Poll::Pending,
        };
        self.ended = true;
        Poll::Ready((outcome(result), held))
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let left = self.driver.slots().borrow_mut().abandon(self.key);
        match left {
            Abandoned::Ended(forgotten, result) => forgotten.settle(result, self.driver.send_states()),
            Abandoned::GoesOn => {}
            Abandoned::ToCancel => self.driver.cancel(self.key),
        }
    }
}
