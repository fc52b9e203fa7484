//! The world behind the dispatch of `net`, `file`, `time` and `task`.
//!
//! Invariants:
//! - `state` is never borrowed while foreign code runs: no future is polled or dropped, and no waker woken or dropped, under
//!   the borrow. [`Driver::step`] collects them and does so afterwards.
//! - `current` names the task that is being polled or dropped; what it opens belongs to its node.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use super::config::SimConfig;
use super::core::Core;
use super::disk::Disks;
use super::event::Event;
use super::id::{HARNESS, NodeId};
use super::network::Net;
use super::sched::{Entry, Scheduler, Tag};
use crate::time::Instant;
use crate::timers::Timers;

/// The calendar of every world begins here: 2026-01-01 00:00 UTC.
pub(super) const UNIX_EPOCH_OFFSET: Duration = Duration::from_secs(1_767_225_600);

/// Tells the worlds of one process apart. It never reaches a trace.
static WORLDS: AtomicU64 = AtomicU64::new(0);

/// The machines of the world.
pub(super) struct State {
    pub(super) core: Core,
    pub(super) net: Net,
    pub(super) disks: Disks,
    pub(super) timers: Timers,
}

/// What a running simulation offers to the dispatch.
pub(crate) struct Driver {
    pub(super) world: u64,
    pub(super) seed: u64,
    pub(super) state: RefCell<State>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) current: Cell<Tag>,
}

impl Driver {
    pub(super) fn new(seed: u64, config: SimConfig) -> Driver {
        let state = State {
            core: Core::new(seed, config),
            net: Net::default(),
            disks: Disks::default(),
            timers: Timers::default(),
        };
        Driver {
            world: WORLDS.fetch_add(1, Ordering::Relaxed),
            seed,
            state: RefCell::new(state),
            scheduler: Arc::default(),
            current: Cell::new(Tag { node: HARNESS, incarnation: 0 }),
        }
    }

    /// Runs `change` on the state, then does and wakes what it left behind.
    pub(super) fn step<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, wakes, later) = {
            let mut state = self.state.borrow_mut();
            let result = change(&mut state);
            (result, std::mem::take(&mut state.core.wakes), std::mem::take(&mut state.core.later))
        };
        later.into_iter().for_each(|done| done());
        wakes.into_iter().for_each(Waker::wake);
        result
    }

    /// The current task's node.
    ///
    /// # Errors
    /// If the node has crashed since: what a dying task still tries has no effect.
    pub(super) fn node(&self) -> io::Result<NodeId> {
        let tag = self.current.get();
        if self.state.borrow().alive(tag) {
            Ok(tag.node)
        } else {
            Err(io::Error::new(io::ErrorKind::NotConnected, "the task's node has crashed"))
        }
    }

    /// Drops a task in the name of its node.
    pub(super) fn drop_task(&self, entry: Entry) {
        let before = self.current.replace(entry.tag);
        drop(entry.runnable);
        self.current.set(before);
    }

    /// Drops every task of `tag`, also those that their destructors spawn.
    pub(super) fn drop_tasks(&self, tag: Tag) {
        loop {
            let entries = self.scheduler.reap(tag);
            if entries.is_empty() {
                return;
            }
            entries.into_iter().for_each(|entry| self.drop_task(entry));
        }
    }

    pub(crate) fn now(&self) -> Instant {
        let state = self.state.borrow();
        let node = state.core.node(self.current.get().node);
        Instant::from_nanos(node.monotonic(state.core.now))
    }

    pub(crate) fn machine(&self) -> u64 {
        u64::from(self.current.get().node.0)
    }

    pub(crate) fn unix_time(&self) -> Duration {
        let state = self.state.borrow();
        let node = state.core.node(self.current.get().node);
        let now = i128::from(state.core.now);
        let error = i128::from(node.clock_offset) + now * i128::from(node.clock_drift_ppm) / 1_000_000;
        let nanos = UNIX_EPOCH_OFFSET.as_nanos() as i128 + now + error;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.state.borrow_mut().core.rngs.tasks.next()
    }

    pub(crate) fn timer_add(&self, deadline: Instant, waker: &Waker) -> usize {
        let mut state = self.state.borrow_mut();
        let deadline = state.core.node(self.current.get().node).world_time(deadline.as_nanos());
        state.timers.add(Instant::from_nanos(deadline), waker)
    }

    pub(crate) fn timer_rearm(&self, key: usize, deadline: Instant, waker: &Waker) {
        let mut state = self.state.borrow_mut();
        state.timers.rearm(key, waker);
        let deadline = state.core.node(self.current.get().node).world_time(deadline.as_nanos());
        state.timers.again(key, Instant::from_nanos(deadline));
    }

    pub(crate) fn timer_remove(&self, key: usize) {
        let waker = self.state.borrow_mut().timers.remove(key);
        drop(waker);
    }

    pub(crate) fn spawn<T: 'static>(self: &Rc<Self>, future: impl Future<Output = T> + 'static) -> async_task::Task<T> {
        self.scheduler.spawn(self.current.get(), future)
    }
}

impl State {
    /// Whether the tag's node still lives the life that the tag names.
    pub(super) fn alive(&self, tag: Tag) -> bool {
        let node = self.core.node(tag.node);
        node.up && node.incarnation == tag.incarnation
    }

    /// When the next thing happens.
    pub(super) fn next_at(&self) -> Option<u64> {
        let timer = self.timers.next().map(Instant::as_nanos);
        self.core.events.next_at().into_iter().chain(timer).min()
    }

    /// Lets everything happen that is due now. Timers come last, so that a reply beats the timeout of the same instant.
    pub(super) fn happen(&mut self) {
        let State { core, net, disks, timers } = self;
        while let Some(event) = core.events.pop_due(core.now) {
            match event {
                Event::Arrive { conn, to } => net.arrive(core, conn, to),
                Event::Credit { conn, side } => net.credit(core, conn, side),
                Event::Stalled { conn, side, stall } => net.stalled(core, conn, side, stall),
                Event::Severed { conn, side } => net.severed(core, conn, side),
                Event::Syn(connect) => net.syn(core, connect),
                Event::SynAnswer { connect, conn } => net.syn_answer(core, connect, conn),
                Event::ConnectTimeout(connect) => net.connect_timeout(core, connect),
                Event::DiskPart { op, part } => disks.part(core, op, part),
                Event::DiskDone(op) => disks.done(core, op),
            }
        }
        while let Some(waker) = timers.fire(Instant::from_nanos(core.now)) {
            core.wakes.push(waker);
        }
    }
}
