use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use super::Closed;

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
    receiver_gone: bool,
}

/// One value from one task to another.
pub fn oneshot<T>() -> (OneSender<T>, OneReceiver<T>) {
    let state = Rc::new(RefCell::new(State { value: None, waker: None, sender_gone: false, receiver_gone: false }));
    (OneSender { state: state.clone() }, OneReceiver { state })
}

/// See [`oneshot`].
pub struct OneSender<T> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> OneSender<T> {
    /// Gives the value to the receiver.
    ///
    /// # Errors
    /// The value back, if the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = self.state.borrow_mut();
        if state.receiver_gone {
            return Err(value);
        }
        state.value = Some(value);
        Ok(()) // dropping `self` wakes the receiver
    }

    /// Whether nobody will take the value any more.
    pub fn is_closed(&self) -> bool {
        self.state.borrow().receiver_gone
    }
}

impl<T> Drop for OneSender<T> {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        state.sender_gone = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A future of the value; [`Closed`] if the sender was dropped without sending.
pub struct OneReceiver<T> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Future for OneReceiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        if let Some(value) = state.value.take() {
            return Poll::Ready(Ok(value));
        }
        if state.sender_gone {
            return Poll::Ready(Err(Closed));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for OneReceiver<T> {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        state.receiver_gone = true;
        let left = (state.value.take(), state.waker.take());
        drop(state);
        drop(left);
    }
}
