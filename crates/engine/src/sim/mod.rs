//! The simulated world. The driver's face towards the dispatch in `net`, `file`, `time` and `task`.

use std::{future::Future, rc::Rc, task::Waker, time::Duration};

use crate::time::Instant;

pub(crate) mod file;
pub(crate) mod net;

/// What a running simulation offers to the dispatch.
pub(crate) struct Driver {}

impl Driver {
    pub(crate) fn now(&self) -> Instant {
        panic!("simulation")
    }
    pub(crate) fn unix_time(&self) -> Duration {
        panic!("simulation")
    }
    pub(crate) fn random_u64(&self) -> u64 {
        panic!("simulation")
    }
    pub(crate) fn timer_add(&self, _deadline: Instant, _waker: &Waker) -> usize {
        panic!("simulation")
    }
    pub(crate) fn timer_rearm(&self, _key: usize, _waker: &Waker) {
        panic!("simulation")
    }
    pub(crate) fn timer_remove(&self, _key: usize) {
        panic!("simulation")
    }
    pub(crate) fn spawn<T: 'static>(
        self: &Rc<Self>,
        _future: impl Future<Output = T> + 'static,
    ) -> async_task::Task<T> {
        panic!("simulation")
    }
}
