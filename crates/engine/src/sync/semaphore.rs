use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use super::waiters::Waiters;

/// Counts permits; those who ask wait in line, so that a large request is not starved by small ones.
#[derive(Clone)]
pub struct Semaphore {
    state: Rc<RefCell<State>>,
}

struct State {
    free: usize,
    waiters: Waiters,
}

impl Semaphore {
    /// A semaphore with `permits` free.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore { state: Rc::new(RefCell::new(State { free: permits, waiters: Waiters::new() })) }
    }

    /// Permits that are free now.
    pub fn available(&self) -> usize {
        self.state.borrow().free
    }

    /// Waits for `count` permits. Asking for more than there ever are waits for ever.
    pub fn acquire(&self, count: usize) -> Acquire {
        Acquire { semaphore: self.clone(), count, ticket: None }
    }

    /// `count` permits, if they are free and nobody waits.
    pub fn try_acquire(&self, count: usize) -> Option<Permit> {
        let mut state = self.state.borrow_mut();
        if state.free < count || !state.waiters.is_empty() {
            return None;
        }
        state.free -= count;
        Some(Permit { semaphore: self.clone(), count })
    }

    /// Wakes the first in line, who takes what it needs or stays first.
    fn wake_first(&self) {
        let state = self.state.borrow();
        let first = if state.free > 0 { state.waiters.peek() } else { None };
        drop(state);
        if let Some(waker) = first {
            waker.wake();
        }
    }
}

/// See [`Semaphore::acquire`].
pub struct Acquire {
    semaphore: Semaphore,
    count: usize,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let mut state = this.semaphore.state.borrow_mut();
        let turn = match this.ticket {
            None => state.waiters.is_empty(),
            ticket => state.waiters.first() == ticket,
        };
        if turn && state.free >= this.count {
            state.free -= this.count;
            if let Some(ticket) = this.ticket.take() {
                state.waiters.remove(ticket);
            }
            drop(state);
            this.semaphore.wake_first();
            return Poll::Ready(Permit { semaphore: this.semaphore.clone(), count: this.count });
        }
        match this.ticket {
            None => this.ticket = Some(state.waiters.add(cx.waker())),
            Some(ticket) => {
                state.waiters.rearm(ticket, cx.waker());
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.semaphore.state.borrow_mut().waiters.remove(ticket);
            self.semaphore.wake_first();
        }
    }
}

/// Permits held; they go back when it is dropped.
pub struct Permit {
    semaphore: Semaphore,
    count: usize,
}

impl Permit {
    /// Permits held here.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Parts with `count` of them, so that they can go back at another time.
    ///
    /// # Panics
    /// If it holds fewer.
    pub fn split(&mut self, count: usize) -> Permit {
        assert!(count <= self.count, "{count} permits of {}", self.count);
        self.count -= count;
        Permit { semaphore: self.semaphore.clone(), count }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.state.borrow_mut().free += self.count;
        self.semaphore.wake_first();
    }
}
