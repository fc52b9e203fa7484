//! [`Pending`]: an answer that is on its way from a reactor thread, for whoever waits: a thread, or a task of any executor.
//!
//! Invariant: every request that was taken on is answered exactly once; an [`Answer`] that is dropped unused (its thread has
//! ended) answers so itself. Otherwise a caller would wait for ever.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use engine::sync::Closed;

use crate::error::Error;

/// What became of a request; outermost: the panic of a caller's own closure, which goes on in the caller's thread.
type Outcome<T> = Result<Result<T, Error>, Box<dyn Any + Send>>;
/// A request that waits for room in the queue.
pub(crate) type Sending = Pin<Box<dyn Future<Output = Result<(), Closed>> + Send>>;

enum State<T> {
    Waiting(Option<Waker>),
    Answered(Outcome<T>),
    /// The answer was given, or nobody wants it.
    Over,
}

struct Slot<T>(Mutex<State<T>>);

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while the lock is held; the state is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reactor's side.
pub(crate) struct Answer<T> {
    slot: Arc<Slot<T>>,
    /// Whether the request changes something.
    changes: bool,
    begun: bool,
}

/// A request's two sides.
pub(crate) fn pending<T>(changes: bool) -> (Answer<T>, Pending<T>) {
    let slot = Arc::new(Slot(Mutex::new(State::Waiting(None))));
    (Answer { slot: slot.clone(), changes, begun: false }, Pending { slot, sending: None })
}

impl<T> Answer<T> {
    /// From now on the request may take effect.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// Whether a failure now leaves it open if the request takes effect.
    pub fn unknown(&self) -> bool {
        self.changes && self.begun
    }

    pub fn send(self, result: Result<T, Error>) {
        self.give(Ok(result));
    }

    /// The caller's closure has panicked.
    pub fn panicked(self, payload: Box<dyn Any + Send>) {
        self.give(Err(payload));
    }

    fn give(&self, outcome: Outcome<T>) {
        let mut state = self.slot.lock();
        if !matches!(*state, State::Waiting(_)) {
            return;
        }
        let before = std::mem::replace(&mut *state, State::Answered(outcome));
        drop(state);
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.give(Ok(Err(Error::Closed { outcome_unknown: self.unknown() })));
    }
}

/// A request that was made: a future of its result, on any executor, or [`Pending::wait`] without one.
///
/// It begins at once if there is room in the client's queue, else when it is awaited and there is: a caller may make many
/// requests and then wait for them one after another. Dropping it gives up the result; a request that has begun goes on, and a
/// change may take effect.
#[must_use = "await it, or call `wait()`: without its result nobody knows whether the request did anything"]
pub struct Pending<T> {
    slot: Arc<Slot<T>>,
    sending: Option<Sending>,
}

impl<T> Pending<T> {
    /// One that has its result already.
    pub(crate) fn done(result: Result<T, Error>) -> Pending<T> {
        let slot = Arc::new(Slot(Mutex::new(State::Answered(Ok(result)))));
        Pending { slot, sending: None }
    }

    /// One that has failed already.
    pub(crate) fn failed(error: Error) -> Pending<T> {
        Pending::done(Err(error))
    }

    /// There was no room; `sending` waits for it.
    pub(crate) fn behind(mut self, sending: Sending) -> Pending<T> {
        self.sending = Some(sending);
        self
    }

    /// Blocks the thread until the result is there.
    ///
    /// # Errors
    /// Those of the request. Also [`Error::Usage`] on a reactor thread (as in a callback): it would wait for itself.
    pub fn wait(mut self) -> Result<T, Error> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// The same for `limit` at most: `None` is no result yet, and it may be waited for again.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait_for(&mut self, limit: Duration) -> Option<Result<T, Error>> {
        if engine::task::in_world() {
            let sentence = "a blocking call on a reactor thread would never end: await it there";
            return Some(Err(Error::Usage(sentence.to_owned())));
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let start = Instant::now();
        loop {
            if let Poll::Ready(result) = Pin::new(&mut *self).poll(&mut context) {
                return Some(result);
            }
            match limit.checked_sub(start.elapsed()) {
                Some(left) if !left.is_zero() => thread::park_timeout(left),
                _ => return None,
            }
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(sending) = &mut self.sending {
            match sending.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                // A closed queue has dropped the request, and with it the `Answer`, which has said so.
                Poll::Ready(_) => self.sending = None,
            }
        }
        let mut state = self.slot.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(Ok(result)) => Poll::Ready(result),
            State::Answered(Err(payload)) => {
                drop(state);
                resume_unwind(payload)
            }
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Over => {
                drop(state);
                panic!("a `Pending` was polled again after it had given its result")
            }
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *self.slot.lock(), State::Over);
        drop(state); // outside the lock: what it holds may be the caller's
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Blocks the thread until the request is in the client's queue, for those who must not have more under way than that
    /// holds. Does nothing on a reactor thread, which has to make that room.
    pub fn wait_for_room(&mut self) {
        if engine::task::in_world() {
            return;
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        while let Some(sending) = &mut self.sending {
            match sending.as_mut().poll(&mut context) {
                Poll::Ready(_) => self.sending = None,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Has `done` called with the result, exactly once: on a reactor thread, which it must not block, or right here if the
    /// result is there already.
    pub fn on_done(self, done: impl FnOnce(Result<T, Error>) + Send + 'static) {
        let call = Call(Mutex::new(Some((self, Box::new(done)))));
        Arc::new(call).step();
    }
}

type Done<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// A result that somebody wants to be called with: polled by whoever wakes it, so that it needs no thread of its own.
struct Call<T>(Mutex<Option<(Pending<T>, Done<T>)>>);

impl<T: Send + 'static> Call<T> {
    fn step(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        // Held while polling: a wake that comes meanwhile looks again afterwards, so that none is lost. Nothing that is polled
        // wakes its own waker on the same thread.
        let mut call = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((pending, _)) = call.as_mut() else { return };
        // The panic of an update's closure has been told by the hook; on a reactor thread it must not go on.
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(pending).poll(&mut Context::from_waker(&waker))));
        let result = match polled {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(result)) => result,
            Err(_) => Err(Error::Usage("the closure of the update has panicked".to_owned())),
        };
        let taken = call.take();
        drop(call);
        if let Some((_, done)) = taken {
            done(result);
        }
    }
}

impl<T: Send + 'static> Wake for Call<T> {
    fn wake(self: Arc<Self>) {
        self.step();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_dropped_says_whether_it_had_begun() {
        for (changes, begins, unknown) in [(true, true, true), (true, false, false), (false, true, false)] {
            let (mut answer, pending) = pending::<()>(changes);
            if begins {
                answer.begin();
            }
            drop(answer);
            assert_eq!(pending.wait(), Err(Error::Closed { outcome_unknown: unknown }));
        }
    }

    #[test]
    fn whoever_wants_to_be_called_is_called_once() {
        let (called, calls) = std::sync::mpsc::channel();
        let (answer, waited) = pending(false);
        let later = called.clone();
        waited.on_done(move |result| later.send(result).expect("waited for"));
        assert!(calls.try_recv().is_err());
        answer.send(Ok(7));
        assert_eq!(calls.recv(), Ok(Ok(7)));
        Pending::failed(Error::Closed { outcome_unknown: false })
            .on_done(move |result| called.send(result).expect("so"));
        assert_eq!(calls.iter().collect::<Vec<_>>(), [Err(Error::Closed { outcome_unknown: false })]);
    }

    #[test]
    fn whoever_waits_for_a_while_may_wait_again() {
        let (answer, mut waited) = pending(false);
        assert_eq!(waited.wait_for(Duration::from_millis(1)), None);
        answer.send(Ok(7));
        assert_eq!(waited.wait_for(Duration::ZERO), Some(Ok(7)));
    }

    #[test]
    fn it_wakes_a_thread_that_waits_and_carries_a_panic_there() {
        let (answer, waited) = pending(false);
        let waiter = thread::spawn(move || waited.wait());
        answer.send(Ok(7));
        assert_eq!(waiter.join().expect("no panic"), Ok(7));
        let (answer, waited) = pending::<u32>(false);
        let waiter = thread::spawn(move || waited.wait());
        answer.panicked(Box::new("on purpose"));
        assert!(waiter.join().is_err());
    }
}
