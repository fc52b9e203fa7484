//! The reactor on the kernel's `io_uring`.

use std::{future::Future, io, rc::Rc, task::Waker, time::Duration};

use crate::time::Instant;

pub(crate) mod file;
pub(crate) mod net;

/// How a reactor runs.
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// The core to pin the thread to.
    pub core: Option<usize>,
    /// The longest time to spin before sleeping while operations are in flight; zero: never spin.
    pub spin_max: Duration,
    /// Submission queue entries, a power of two.
    pub ring_entries: u32,
}

impl Default for ReactorConfig {
    fn default() -> ReactorConfig {
        ReactorConfig { core: None, spin_max: Duration::from_micros(50), ring_entries: 256 }
    }
}

/// The reactor of one thread.
pub struct Reactor;

impl Reactor {
    /// Runs `main` and the tasks it spawns on the calling thread until `main` ends; what is left of the tasks is then dropped.
    ///
    /// # Errors
    /// If the kernel lacks what the reactor needs, or the ring fails.
    pub fn run<T>(_config: ReactorConfig, _main: impl Future<Output = T>) -> io::Result<T> {
        panic!("reactor")
    }
}

pub(crate) struct Driver {}

impl Driver {
    pub(crate) fn timer_add(&self, _deadline: Instant, _waker: &Waker) -> usize {
        panic!("reactor")
    }
    pub(crate) fn timer_rearm(&self, _key: usize, _waker: &Waker) {
        panic!("reactor")
    }
    pub(crate) fn timer_remove(&self, _key: usize) {
        panic!("reactor")
    }
    pub(crate) fn spawn<T: 'static>(
        self: &Rc<Self>,
        _future: impl Future<Output = T> + 'static,
    ) -> async_task::Task<T> {
        panic!("reactor")
    }
}
