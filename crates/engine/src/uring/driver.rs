//! The state of one reactor and its turn.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    io,
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
    sync::Arc,
    task::Waker,
    time::Duration,
};

use async_task::Runnable;
use io_uring::{cqueue, opcode, squeue, types};
use slab::Slab;

use super::{
    message::SendStates,
    receive::Receives,
    remote::Remote,
    ring::{Ring, Wait},
    slots::{Completed, Held, Kind, Slots},
    spin::{Spin, Waited},
};
use crate::{
    Buf,
    time::{self, Instant},
    timers::Timers,
};

/// Tasks run in one turn before the kernel is asked again. Guessed: long enough to batch what a chain of wakes prepares,
/// short enough that completions do not wait.
const TASKS_PER_TURN_MAX: usize = 256;
/// Entries that are handed over in the middle of a turn, and of a task: one task may bring a connection's whole queue. A medium
/// that got all it is to do at the turn's end would stand idle while tasks run: the kernel passes on what one call brings only
/// when it has prepared all of it. Measured with 32 random accesses of 4 KiB under way, in paired rounds on a busy machine:
/// medians of five series between 1.01 and 1.22 times the rate, at the same CPU time for each. 1 costs more CPU time; 8 gains less.
const HANDOVER: usize = 4;
/// Operations and runnable tasks that there is room for from the start; beyond, the room grows once. Guessed.
const OPERATIONS_USUAL: usize = 256;
/// How long the end of a reactor waits for cancelled operations. Cancelling is immediate for sockets; a file operation that
/// is under way must end by itself.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);
/// Memory reads between two looks at the clock while spinning.
const LOOKS_PER_CLOCK: u32 = 8;

/// User data of what has no slot: the wake descriptor's poll and cancellations.
const WAKE_KEY: u64 = u64::MAX;
const CANCEL_KEY: u64 = u64::MAX - 1;

pub(crate) struct Driver {
    ring: Ring,
    slots: RefCell<Slots>,
    receives: Receives,
    timers: RefCell<Timers>,
    runnable: RefCell<VecDeque<Runnable>>,
    /// A waker per live task, so that the end of the reactor reaches every one of them.
    tasks: RefCell<Slab<Waker>>,
    spin: RefCell<Spin>,
    waited: Waited,
    send_states: SendStates,
    remote: Arc<Remote>,
}

impl Driver {
    pub(super) fn new(ring_entries: u32, spin_max: Duration) -> io::Result<Driver> {
        let driver = Driver {
            ring: Ring::new(ring_entries)?,
            slots: RefCell::new(Slots::with_capacity(OPERATIONS_USUAL)),
            receives: Receives::default(),
            timers: RefCell::default(),
            runnable: RefCell::new(VecDeque::with_capacity(OPERATIONS_USUAL)),
            tasks: RefCell::default(),
            spin: RefCell::new(Spin::new(spin_max)),
            waited: Waited::new(),
            send_states: SendStates::default(),
            remote: Arc::new(Remote::new()?),
        };
        driver.watch_wakes();
        Ok(driver)
    }

    pub(super) fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    pub(super) fn slots(&self) -> &RefCell<Slots> {
        &self.slots
    }

    pub(super) fn send_states(&self) -> &SendStates {
        &self.send_states
    }

    pub(crate) fn timer_add(&self, deadline: Instant, waker: &Waker) -> usize {
        self.timers.borrow_mut().add(deadline, waker)
    }

    pub(crate) fn timer_rearm(&self, key: usize, waker: &Waker) {
        self.timers.borrow_mut().rearm(key, waker);
    }

    pub(crate) fn timer_remove(&self, key: usize) {
        let waker = self.timers.borrow_mut().remove(key);
        drop(waker); // after the borrow: it may be a task's last handle
    }

    pub(crate) fn spawn<T: 'static>(self: &Rc<Self>, future: impl Future<Output = T> + 'static) -> async_task::Task<T> {
        let entry = self.tasks.borrow_mut().insert(Waker::noop().clone());
        let listed = Listed { driver: self.clone(), entry };
        let future = async move {
            let _listed = listed;
            future.await
        };
        let remote = self.remote.clone();
        let schedule = move |task: Runnable| {
            // tidy: circle: a wake asks which world runs on its thread, and that world may be this one.
            let here = crate::runtime::with_current(|current| match current {
                Some(crate::runtime::Context::Uring(driver)) if Arc::ptr_eq(&driver.remote, &remote) => {
                    Some(driver.clone())
                }
                _ => None,
            });
            match here {
                Some(driver) => driver.runnable.borrow_mut().push_back(task),
                None => remote.schedule(task),
            }
        };
        // SAFETY: the future and its output are 'static and so is `schedule`, which is Send + Sync as well. The future is not
        // Send: its Runnable goes either into this thread's queue or into the remote's, which this thread alone empties.
        let (runnable, task) = unsafe { async_task::spawn_unchecked(future, schedule) };
        self.tasks.borrow_mut()[entry] = runnable.waker();
        runnable.schedule();
        task
    }

    /// Runs what is runnable, and what that makes runnable, up to a bound.
    pub(super) fn run_tasks(&self) {
        for _ in 0..TASKS_PER_TURN_MAX {
            let Some(task) = self.runnable.borrow_mut().pop_front() else { break };
            task.run();
        }
    }

    /// Exchanges with the kernel, and waits if neither a task nor the main future is runnable.
    ///
    /// `main_is_woken` is asked after `pending` was taken: a wake from another thread between the two questions, asked the
    /// other way round, would be forgotten and the reactor sleep through it.
    pub(super) fn turn(&self, main_is_woken: impl Fn() -> bool) -> io::Result<()> {
        self.remote.take(&mut self.runnable.borrow_mut());
        let now = time::monotonic();
        let deadline = self.fire_timers(now);
        let budget = if self.slots.borrow().reward_spinning() {
            self.spin.borrow_mut().budget(now.as_nanos(), || self.waited.time())
        } else {
            0
        };
        if budget == 0 || self.receives.are_many() {
            self.leave_receives();
        }
        if self.receive() || main_is_woken() || !self.runnable.borrow().is_empty() {
            if self.ring.has_entries() || self.ring.needs_enter() {
                self.ring.enter(Wait::No)?;
            }
        } else {
            self.wait(now, budget, deadline)?;
        }
        self.take_completions();
        Ok(())
    }

    fn fire_timers(&self, now: Instant) -> Option<Instant> {
        self.timers.borrow().next()?;
        loop {
            let waker = self.timers.borrow_mut().fire(now);
            match waker {
                Some(waker) => waker.wake(),
                None => return self.timers.borrow().next(),
            }
        }
    }

    /// Spins if that pays, then sleeps, until a completion, a wake from elsewhere or the deadline.
    fn wait(&self, now: Instant, budget: u64, deadline: Option<Instant>) -> io::Result<()> {
        if budget > 0 {
            if self.ring.has_entries() {
                self.ring.enter(Wait::No)?;
            }
            if self.spin(now, budget, deadline)? {
                return Ok(());
            }
            self.leave_receives();
        }
        if self.ring.has_completions() || !self.remote.prepare_sleep() {
            return Ok(());
        }
        let began = time::monotonic();
        let wait = deadline.map_or(Wait::Forever, |deadline| Wait::For(deadline.duration_since(began)));
        let result = self.ring.enter(wait);
        self.remote.end_sleep();
        self.spin.borrow_mut().slept(began.elapsed_monotonic());
        result
    }

    /// Looks out for something to do from `began` (a moment ago) on. False: the budget is used up.
    fn spin(&self, began: Instant, budget: u64, deadline: Option<Instant>) -> io::Result<bool> {
        // What is there already is no merit of spinning.
        if self.ring.has_completions() {
            return Ok(true);
        }
        if self.ring.needs_enter() {
            return self.ring.enter(Wait::No).map(|()| true);
        }
        let until = Instant::from_nanos(began.as_nanos() + budget);
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                let needs_enter = self.ring.needs_enter();
                if needs_enter || self.ring.has_completions() || self.remote.is_pending() || self.receive() {
                    self.spin.borrow_mut().succeeded(budget, began.elapsed_monotonic());
                    if needs_enter {
                        self.ring.enter(Wait::No)?;
                    }
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            let now = time::monotonic();
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.spin.borrow_mut().cut_short(began.elapsed_monotonic());
                return Ok(true);
            }
            if now >= until {
                self.spin.borrow_mut().failed(budget);
                return Ok(false);
            }
        }
    }

    /// Asks for what the receives wait for that the kernel does not know; true if one of them has ended.
    fn receive(&self) -> bool {
        let Some((key, result)) = self.receives.look() else { return false };
        self.complete(key, result);
        self.pass_over_receives();
        true
    }

    fn pass_over_receives(&self) {
        // SAFETY: the entries' slots own what they point to until their completions.
        self.receives.pass_over(|entry| unsafe { self.ring.push(entry) });
    }

    /// Leaves all receives to the kernel.
    fn leave_receives(&self) {
        // SAFETY: as above.
        self.receives.leave(|entry| unsafe { self.ring.push(entry) });
    }

    fn complete(&self, key: usize, result: i32) {
        let completed = self.slots.borrow_mut().complete(key, result);
        match completed {
            Completed::Wake(waker) => waker.wake(),
            Completed::Forgotten(forgotten, result) => forgotten.settle(result, &self.send_states),
            Completed::Kept => {}
        }
    }

    fn take_completions(&self) {
        let mut taken = false;
        while let Some((key, result, flags)) = self.ring.take() {
            match key {
                CANCEL_KEY => {}
                WAKE_KEY => {
                    if !cqueue::more(flags) {
                        self.watch_wakes();
                    }
                }
                key => {
                    taken = true;
                    self.complete(key as usize, result);
                }
            }
        }
        if taken {
            self.pass_over_receives();
        }
    }

    /// See [`super::op::Op::start`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn start(&self, entry: squeue::Entry, held: Held, descriptor: Arc<OwnedFd>, kind: Kind) -> usize {
        let key = self.slots.borrow_mut().add(held, descriptor, kind);
        let entry = entry.user_data(key as u64);
        // SAFETY: what the entry refers to is owned by the slot until its completion.
        unsafe { self.ring.push(entry) };
        if self.ring.entries() >= HANDOVER {
            self.ring.submit();
        }
        key
    }

    /// See [`super::op::Op::receive`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn start_receive(&self, place: *mut u8, room: u32, buf: Buf, socket: Arc<OwnedFd>) -> usize {
        let descriptor = socket.as_raw_fd();
        let key = self.slots.borrow_mut().add(Held::Buf(buf), socket, Kind::Socket);
        self.receives.add(key, descriptor, place, room);
        key
    }

    /// Asks the kernel to end an operation early, if it knows it; its completion comes in any case.
    pub(super) fn cancel(&self, key: usize) {
        if self.receives.cancel(key) {
            return self.complete(key, -libc::ECANCELED);
        }
        let entry = opcode::AsyncCancel::new(key as u64).build().user_data(CANCEL_KEY);
        // SAFETY: the entry points to nothing.
        unsafe { self.ring.push(entry) };
    }

    fn watch_wakes(&self) {
        // Multishot polls are edge-triggered: the descriptor is never read, each write to it is one completion.
        let descriptor = types::Fd(self.remote.eventfd().as_raw_fd());
        let entry = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).multi(true).build().user_data(WAKE_KEY);
        // SAFETY: the entry points to nothing; the descriptor lives as long as the ring, both belong to `self`.
        unsafe { self.ring.push(entry) };
    }

    /// Drops every task, then waits until the kernel is done with what they left.
    pub(super) fn shut_down(&self) {
        loop {
            let wakers: Vec<Waker> = self.tasks.borrow().iter().map(|(_, waker)| waker.clone()).collect();
            if wakers.is_empty() {
                break;
            }
            wakers.into_iter().for_each(Waker::wake);
            self.remote.take(&mut self.runnable.borrow_mut());
            loop {
                let task = self.runnable.borrow_mut().pop_front();
                let Some(task) = task else { break };
                drop(task); // cancels it: its future is dropped here
            }
            if !self.tasks.borrow().is_empty() {
                std::thread::yield_now(); // another thread is about to hand in a task that it woke
            }
        }
        self.remote.close();
        if let Err(error) = self.drain() {
            tracing::warn!(%error, "the ring failed while operations were being cancelled; their buffers are leaked");
        }
        if !self.slots.borrow().is_quiet() {
            tracing::warn!("operations did not end in time; their buffers are leaked");
        }
    }

    fn drain(&self) -> io::Result<()> {
        while let Some(key) = self.receives.cancel_any() {
            self.complete(key, -libc::ECANCELED);
        }
        let end = time::monotonic() + SHUTDOWN_MAX;
        // File operations end by themselves: a write that was called back would count as failed, and its medium as broken.
        let keys = self.slots.borrow().to_cancel();
        keys.into_iter().for_each(|key| self.cancel(key));
        while !self.slots.borrow().is_quiet() && time::monotonic() < end {
            self.ring.enter(Wait::For(Duration::from_millis(10)))?;
            self.take_completions();
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The kernel may still write to what the slots hold: leaked rather than reused.
        let slots = self.slots.take();
        if !slots.is_quiet() {
            std::mem::forget(slots);
        }
    }
}

/// Takes a task off the list when its future is dropped.
struct Listed {
    driver: Rc<Driver>,
    entry: usize,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let waker = self.driver.tasks.borrow_mut().try_remove(self.entry);
        drop(waker);
    }
}

impl Instant {
    /// Nanoseconds since by the machine's clock, without looking up the world.
    fn elapsed_monotonic(self) -> u64 {
        time::monotonic().as_nanos().saturating_sub(self.as_nanos())
    }
}
