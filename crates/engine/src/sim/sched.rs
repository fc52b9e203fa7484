//! The tasks of all nodes, and which of them can run.
//!
//! Invariants:
//! - A task is tagged by its node and the node's incarnation when it was spawned. A tag that is no longer current means that
//!   the task's node has crashed since: it is dropped where it stands, never polled again.
//! - No waker and no task is dropped while the lock is held: both may schedule a task, which takes the lock.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use async_task::Runnable;

use super::id::NodeId;
use super::rng::Rng;

/// Whose life a task is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag {
    pub(super) node: NodeId,
    pub(super) incarnation: u32,
}

/// A task that can run.
pub(super) struct Entry {
    pub(super) tag: Tag,
    pub(super) number: u64,
    pub(super) runnable: Runnable,
}

/// What comes next.
pub(super) enum Next {
    /// The future given to `run_until`.
    Main,
    Task(Entry),
}

#[derive(Default)]
struct Inner {
    main: bool,
    ready: Vec<Entry>,
    /// Runnable tasks of paused nodes.
    parked: Vec<Entry>,
    /// Every task that has not ended.
    tasks: BTreeMap<u64, (Tag, Waker)>,
    sequence: u64,
}

/// Shared with the wakers, which may be anywhere.
#[derive(Default)]
pub(super) struct Scheduler {
    inner: Mutex<Inner>,
}

/// Takes the task off the list when its future is dropped, at its end or before.
struct Registered {
    scheduler: Arc<Scheduler>,
    number: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let task = self.scheduler.lock().tasks.remove(&self.number);
        drop(task);
    }
}

impl Wake for Scheduler {
    fn wake(self: Arc<Self>) {
        self.lock().main = true;
    }
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of a task leaves the lists whole: nothing here panics half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a task of `future`, runnable at once.
    pub(super) fn spawn<T: 'static>(
        self: &Arc<Self>,
        tag: Tag,
        future: impl Future<Output = T> + 'static,
    ) -> async_task::Task<T> {
        let number = {
            let mut inner = self.lock();
            inner.sequence += 1;
            inner.sequence
        };
        let registered = Registered { scheduler: self.clone(), number };
        let scheduler = self.clone();
        let schedule = move |runnable| scheduler.lock().ready.push(Entry { tag, number, runnable });
        let future = async move {
            let _registered = registered;
            future.await
        };
        let (runnable, task) = async_task::spawn_local(future, schedule);
        let waker = runnable.waker();
        self.lock().tasks.insert(number, (tag, waker));
        runnable.schedule();
        task
    }

    /// Makes the main future runnable.
    pub(super) fn wake_main(&self) {
        self.lock().main = true;
    }

    /// Any of what can run, chosen by `rng`.
    pub(super) fn take(&self, rng: &mut Rng) -> Option<Next> {
        let mut inner = self.lock();
        let count = inner.ready.len() + usize::from(inner.main);
        if count == 0 {
            return None;
        }
        let index = if count == 1 { 0 } else { rng.index(count) };
        if index == inner.ready.len() {
            inner.main = false;
            return Some(Next::Main);
        }
        Some(Next::Task(inner.ready.swap_remove(index)))
    }

    /// Sets a task of a paused node aside.
    pub(super) fn park(&self, entry: Entry) {
        self.lock().parked.push(entry);
    }

    /// The tasks of `node` that were set aside can run again.
    pub(super) fn unpark(&self, node: NodeId) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.ready.extend(inner.parked.extract_if(.., |entry| entry.tag.node == node));
    }

    /// Every task of `tag` that is not being polled right now, to be dropped by the caller; empty when none is left.
    pub(super) fn reap(&self, tag: Tag) -> Vec<Entry> {
        let wakers: Vec<Waker> =
            self.lock().tasks.values().filter(|(owner, _)| *owner == tag).map(|(_, waker)| waker.clone()).collect();
        // A woken task is in a list, from which it can be taken.
        wakers.into_iter().for_each(Waker::wake);
        let mut inner = self.lock();
        let inner = &mut *inner;
        let of_tag = |entry: &mut Entry| entry.tag == tag;
        let mut reaped: Vec<Entry> = inner.ready.extract_if(.., of_tag).collect();
        reaped.extend(inner.parked.extract_if(.., of_tag));
        reaped
    }

    /// Tasks that have not ended.
    pub(super) fn tasks(&self) -> usize {
        self.lock().tasks.len()
    }
}
