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

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsRawFd, sync::mpsc, time::Duration};

    use io_uring::{opcode, types};

    use super::*;
    use crate::{
        Reactor, ReactorConfig,
        runtime::{self, Context},
    };

    /// One of the reactors that share a drive ended while a write that was begun there waited for a worker of the kernel: the write
    /// was called back, counted as failed, and the drive took none any more. (A pipe stands for the file that takes long.)
    #[test]
    fn the_end_of_a_reactor_calls_no_file_operation_back() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let (tell, told) = mpsc::channel();
        let main = async move {
            let Context::Uring(driver) = runtime::current() else { unreachable!("a reactor of the kernel") };
            let mut buf = Buf::with_capacity(crate::buf::ALIGN);
            let pipe = Arc::new(OwnedFd::from(reader));
            let entry = opcode::Read::new(types::Fd(pipe.as_raw_fd()), buf.spare_mut().as_mut_ptr(), 8).build();
            // SAFETY: the entry points into the buffer, which the slot holds, and names the pipe.
            let op = unsafe { Op::start(driver, entry, Held::Buf(buf), &pipe, Kind::File) };
            op.leave(Box::new(move |result| tell.send(result.is_ok()).expect("the test waits")));
        };
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            writer.write_all(b"12345678")
        });
        Reactor::run(ReactorConfig::default(), main).expect("a reactor");
        assert_eq!(told.try_recv(), Ok(true), "called back, or not waited for");
        late.join().expect("no panic").expect("the reader is there");
    }
}
