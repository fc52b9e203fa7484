use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use super::waiters::Waiters;

/// Wakes tasks that wait for something to change. One notification is kept if nobody waits ([`Notify::notify_one`]).
#[derive(Clone)]
pub struct Notify {
    state: Rc<RefCell<State>>,
}

struct State {
    waiters: Waiters,
    kept: bool,
}

impl Default for Notify {
    fn default() -> Notify {
        Notify { state: Rc::new(RefCell::new(State { waiters: Waiters::new(), kept: false })) }
    }
}

impl Notify {
    /// Nobody waits, nothing is kept.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes the first waiter, or lets the next one through at once.
    pub fn notify_one(&self) {
        let mut state = self.state.borrow_mut();
        let first = state.waiters.pop();
        state.kept |= first.is_none();
        drop(state);
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Wakes everybody who waits now; nothing is kept for later.
    pub fn notify_all(&self) {
        loop {
            let first = self.state.borrow_mut().waiters.pop();
            let Some(waker) = first else { break };
            waker.wake();
        }
    }

    /// Ends with the next notification. It counts as waiting from its first poll on.
    pub fn notified(&self) -> Notified {
        Notified { notify: self.clone(), stage: Stage::New }
    }
}

/// See [`Notify::notified`].
pub struct Notified {
    notify: Notify,
    stage: Stage,
}

enum Stage {
    New,
    Waiting(u64),
    Done,
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.notify.state.borrow_mut();
        match this.stage {
            Stage::New if state.kept => state.kept = false,
            Stage::New => {
                this.stage = Stage::Waiting(state.waiters.add(cx.waker(), ()));
                return Poll::Pending;
            }
            Stage::Waiting(ticket) if state.waiters.rearm(ticket, cx.waker()) => return Poll::Pending,
            Stage::Waiting(_) | Stage::Done => {}
        }
        this.stage = Stage::Done;
        Poll::Ready(())
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        if let Stage::Waiting(ticket) = self.stage {
            let waited = self.notify.state.borrow_mut().waiters.remove(ticket);
            if !waited {
                self.notify.notify_one(); // served but never noticed: the next one's
            }
        }
    }
}
