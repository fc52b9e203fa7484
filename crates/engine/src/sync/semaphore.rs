use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use super::waiters::Waiters;

/// Counts permits; those who ask wait in line, so that a large request is not starved by small ones.
///
/// Permits are handed to those who wait by whoever gives them back. Were they only woken, one after the other by its
/// predecessor, then the work of a burst of ends would begin one by one, and what is gathered from it (the commands of one
/// send) would fall into small pieces.
#[derive(Clone)]
pub struct Semaphore {
    state: Rc<RefCell<State>>,
}

struct State {
    free: usize,
    /// Who waits, and for how many.
    waiters: Waiters<usize>,
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
    #[inline]
    pub fn try_acquire(&self, count: usize) -> Option<Permit> {
        let mut state = self.state.borrow_mut();
        if state.free < count || !state.waiters.is_empty() {
            return None;
        }
        state.free -= count;
        Some(Permit { semaphore: self.clone(), count })
    }

    /// Hands what is free to those in line, as far as it goes.
    fn serve(&self) {
        loop {
            // Waking may run what comes back here: nothing is borrowed meanwhile.
            let first = self.state.borrow_mut().serve_first();
            match first {
                Some(waker) => waker.wake(),
                None => return,
            }
        }
    }
}

impl State {
    /// Takes the permits of the first in line, who is out of it then, if there are as many.
    fn serve_first(&mut self) -> Option<Waker> {
        let wanted = *self.waiters.first()?;
        self.free = self.free.checked_sub(wanted)?;
        self.waiters.pop()
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
        let served = match this.ticket {
            None if state.waiters.is_empty() && state.free >= this.count => {
                state.free -= this.count;
                true
            }
            None => {
                this.ticket = Some(state.waiters.add(cx.waker(), this.count));
                false
            }
            Some(ticket) => !state.waiters.rearm(ticket, cx.waker()),
        };
        if !served {
            return Poll::Pending;
        }
        this.ticket = None;
        drop(state);
        Poll::Ready(Permit { semaphore: this.semaphore.clone(), count: this.count })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut state = self.semaphore.state.borrow_mut();
        if !state.waiters.remove(ticket) {
            // It was served and never heard of it.
            state.free += self.count;
        }
        drop(state);
        self.semaphore.serve();
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
        self.semaphore.serve();
    }
}
