//! Computations that would keep a reactor from its sockets for too long: done by a few threads of lower priority beside the
//! reactors. In a simulation, and outside of every world, they are done where they are asked for: a run stays one run.
//!
//! Invariants:
//! - However many computations are asked for, reactors lose no more than the threads' share of the cores.
//! - What waits is bounded by [`OFFLOADED_MAX`]; who comes later is told.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use crate::runtime::{self, Context};
use crate::sync::{Closed, mailbox};

/// Computations that wait. Guessed: some seconds' worth of the longest there are; who waits longer gives up anyway.
pub const OFFLOADED_MAX: usize = 1024;
/// Threads at most, and the share of the cores that they are. Chosen: reactors keep the most of the machine.
const THREADS_MAX: usize = 4;
const CORES_PER_THREAD: usize = 4;
/// How much lower their priority is (nice value).
const NICENESS: i32 = 10;

type Work = Box<dyn FnOnce() + Send>;

/// Too many computations wait; the work was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{OFFLOADED_MAX} computations are waiting already")]
pub struct Busy;

#[derive(Default)]
struct Pool {
    waiting: Mutex<VecDeque<Work>>,
    came: Condvar,
}

impl Pool {
    fn add(&self, work: Work) -> Result<(), Busy> {
        // Nothing panics while the lock is held but an allocation; the queue is whole then.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= OFFLOADED_MAX {
            return Err(Busy);
        }
        waiting.push_back(work);
        drop(waiting);
        self.came.notify_one();
        Ok(())
    }

    fn run(&self) {
        // On Linux this is the calling thread's own. Without it the threads are neighbours like any other.
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::debug!(%error, "computations run at normal priority");
        }
        loop {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let empty = |waiting: &mut VecDeque<Work>| waiting.is_empty();
            let waiting = self.came.wait_while(waiting, empty);
            let work = waiting.unwrap_or_else(PoisonError::into_inner).pop_front();
            // Its panic is told by the hook, and its result never comes: whoever waits for that sees it.
            if let Some(work) = work
                && catch_unwind(AssertUnwindSafe(work)).is_err()
            {
                tracing::error!("a computation has panicked");
            }
        }
    }
}

/// The threads, started when they are first needed; `None`: they could not be, or are another process's (a fork copies none).
fn pool() -> Option<&'static Pool> {
    static POOL: OnceLock<(u32, Option<&'static Pool>)> = OnceLock::new();
    let (process, pool) = *POOL.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool: &'static Pool = Box::leak(Box::default());
        let spawned = (0..(cores / CORES_PER_THREAD).clamp(1, THREADS_MAX)).filter(|index| {
            let thread = std::thread::Builder::new().name(format!("compute-{index}"));
            thread.spawn(|| pool.run()).is_ok()
        });
        (std::process::id(), (spawned.count() > 0).then_some(pool))
    });
    pool.filter(|_| process == std::process::id())
}

/// Has `work` done by another thread, or right here where there is no reactor to spare.
///
/// # Errors
/// Too much is waiting.
pub fn offload(work: impl FnOnce() + Send + 'static) -> Result<(), Busy> {
    let on_reactor = runtime::with_current(|current| matches!(current, Some(Context::Uring(_))));
    match pool().filter(|_| on_reactor) {
        Some(pool) => pool.add(Box::new(work)),
        None => {
            work();
            Ok(())
        }
    }
}

/// The result of `work`, which is done as [`offload`] says; right here if too much is waiting.
///
/// # Errors
/// It has panicked.
pub async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Closed> {
    let (sender, receiver) = mailbox(1);
    let work = std::sync::Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<_>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let later = work.clone();
    let offloaded = offload(move || {
        if let Some(work) = take(&later) {
            // Whoever asked may have gone.
            let _ = sender.try_send(work());
        }
    });
    match offloaded {
        Ok(()) => receiver.recv().await.ok_or(Closed),
        Err(Busy) => take(&work).map(|work| work()).ok_or(Closed),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::sim::{SimConfig, World};
    use crate::{Reactor, ReactorConfig};

    #[test]
    fn a_reactor_is_spared_and_a_simulation_is_not() {
        let here = thread::current().id();
        let there = Reactor::run(ReactorConfig::default(), compute(|| thread::current().id())).expect("a reactor");
        assert_ne!(there, Ok(here));
        let world = World::new(1, SimConfig::default());
        assert_eq!(world.run_until(compute(|| thread::current().id())).expect("it ends"), Ok(here));
    }

    #[test]
    fn what_waits_is_bounded_and_done_in_order() {
        let pool = Arc::new(Pool::default());
        let (done, results) = channel();
        for number in 0..OFFLOADED_MAX {
            let done = done.clone();
            pool.add(Box::new(move || done.send(number).expect("waited for"))).expect("room");
        }
        assert_eq!(pool.add(Box::new(|| ())), Err(Busy));
        let worker = pool.clone();
        thread::spawn(move || worker.run());
        let all: Vec<usize> = results.iter().take(OFFLOADED_MAX).collect();
        assert!(all.is_sorted());
    }

    #[test]
    fn a_panic_is_its_own_and_the_next_is_served() {
        let results = Reactor::run(ReactorConfig::default(), async {
            (compute(|| -> u32 { panic!("on purpose") }).await, compute(|| 7).await)
        });
        assert_eq!(results.expect("a reactor"), (Err(Closed), Ok(7)));
    }
}
