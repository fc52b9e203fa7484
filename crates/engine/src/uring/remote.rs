//! What other threads may do to a reactor: hand it a task that they woke, and wake it up.
//!
//! Invariants:
//! - A task's future is `!Send`: whoever wakes it from elsewhere only puts it into `woken`; it is run and dropped by the owner.
//! - No wake is lost: the waker sets `pending` and then looks at `sleeping`, the reactor sets `sleeping` and then looks at
//!   `pending`, all in one total order (SeqCst); so one of them sees the other.
//! - After `close` nothing runnable can arrive, because every task is gone; should it all the same, it is leaked rather than
//!   dropped on a foreign thread.

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_task::Runnable;
use rustix::event::{EventfdFlags, eventfd};

pub(super) struct Remote {
    woken: Mutex<Woken>,
    pending: AtomicBool,
    sleeping: AtomicBool,
    eventfd: OwnedFd,
}

struct Woken {
    tasks: VecDeque<Runnable>,
    closed: bool,
}

impl Remote {
    pub(super) fn new() -> io::Result<Remote> {
        Ok(Remote {
            woken: Mutex::new(Woken { tasks: VecDeque::new(), closed: false }),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Any thread: gives a woken task to its reactor.
    pub(super) fn schedule(&self, task: Runnable) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        if woken.closed {
            std::mem::forget(task);
            return;
        }
        woken.tasks.push_back(task);
        drop(woken);
        self.notify();
    }

    /// Any thread: makes the reactor look around.
    pub(super) fn notify(&self) {
        self.pending.store(true, Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // The only failure is a counter at its maximum; the reactor is then woken by what is already there.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// The descriptor that becomes readable when a sleeping reactor is notified.
    pub(super) fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Owner: whether somebody notified since [`Remote::take`].
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Owner: moves the woken tasks to `queue`.
    pub(super) fn take(&self, queue: &mut VecDeque<Runnable>) {
        // The plain load first: this runs every turn, and nearly always finds nothing.
        if self.is_pending() && self.pending.swap(false, Ordering::SeqCst) {
            let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
            queue.append(&mut woken.tasks);
        }
    }

    /// Owner: says that it will sleep. False: somebody has notified meanwhile, do not.
    pub(super) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let quiet = !self.pending.load(Ordering::SeqCst);
        if !quiet {
            self.end_sleep();
        }
        quiet
    }

    /// Owner: it is awake.
    pub(super) fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Owner, at the end, when no task is left.
    /// The reactor has ended, or is about to: no task runs any more.
    pub(super) fn is_closed(&self) -> bool {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).closed
    }

    pub(super) fn close(&self) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }
}
