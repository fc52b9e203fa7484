//! [`Attention`]: what others leave for a connection, and how they call its task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::abort::AbortRequest;
use super::drain::DrainRequest;

/// How a connection's task is called from elsewhere: another connection, another thread.
#[derive(Default)]
pub(super) struct Attention {
    raised: AtomicBool,
    waker: Mutex<Option<Waker>>,
    mail: Mutex<Mail>,
}

/// What is left for a connection beside the call. Bounded: no more than ABORTS_MAX of one association are under way, and one
/// change of reservations and one of attachments per namespace.
#[derive(Default)]
struct Mail {
    /// For an I/O queue.
    requests: Vec<AbortRequest>,
    /// For an admin queue: number of the Abort, and whether the command was aborted.
    outcomes: Vec<(u64, bool)>,
    /// For an I/O queue: namespaces to drain.
    drains: Vec<DrainRequest>,
}

impl Attention {
    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner) // lists, each changed by one push or take
    }

    pub fn ask_to_abort(&self, request: AbortRequest) {
        self.mail().requests.push(request);
        self.raise();
    }

    pub fn take_requests(&self) -> Vec<AbortRequest> {
        std::mem::take(&mut self.mail().requests)
    }

    pub fn tell_abort(&self, number: u64, aborted: bool) {
        self.mail().outcomes.push((number, aborted));
        self.raise();
    }

    pub fn take_outcomes(&self) -> Vec<(u64, bool)> {
        std::mem::take(&mut self.mail().outcomes)
    }

    pub fn ask_to_drain(&self, request: DrainRequest) {
        self.mail().drains.push(request);
        self.raise();
    }

    pub fn take_drains(&self) -> Vec<DrainRequest> {
        std::mem::take(&mut self.mail().drains)
    }

    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether somebody called since the last look.
    pub fn take(&self) -> bool {
        self.raised.load(Ordering::Relaxed) && self.raised.swap(false, Ordering::AcqRel)
    }

    pub fn set_waker(&self, waker: &Waker) {
        let mut place = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *place = Some(waker.clone());
        }
    }
}
