//! The queue of waiters behind every primitive here.
//!
//! Invariant: tickets increase along the queue, so that a waiter is found by binary search. A served waiter has left the
//! queue; its ticket is then absent, which is how it learns that it was served.

use std::{collections::VecDeque, task::Waker};

/// Waiters in the order they came, each with what it waits for.
pub(super) struct Waiters<T = ()> {
    queue: VecDeque<(u64, Waker, T)>,
    next: u64,
}

impl<T> Waiters<T> {
    pub(super) const fn new() -> Waiters<T> {
        Waiters { queue: VecDeque::new(), next: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a waiter at the end and returns its ticket.
    pub(super) fn add(&mut self, waker: &Waker, wanted: T) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.queue.push_back((ticket, waker.clone(), wanted));
        ticket
    }

    /// Whether the ticket still waits; if so its waker is replaced.
    pub(super) fn rearm(&mut self, ticket: u64, waker: &Waker) -> bool {
        match self.queue.binary_search_by_key(&ticket, |entry| entry.0) {
            Ok(place) => {
                self.queue[place].1.clone_from(waker);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes a waiter out; whether it still waited.
    pub(super) fn remove(&mut self, ticket: u64) -> bool {
        match self.queue.binary_search_by_key(&ticket, |entry| entry.0) {
            Ok(place) => self.queue.remove(place).is_some(),
            Err(_) => false,
        }
    }

    /// Takes the first waiter out, to be woken once no borrow is held.
    pub(super) fn pop(&mut self) -> Option<Waker> {
        self.queue.pop_front().map(|entry| entry.1)
    }

    /// What the first waiter waits for.
    pub(super) fn first(&self) -> Option<&T> {
        self.queue.front().map(|entry| &entry.2)
    }
}
