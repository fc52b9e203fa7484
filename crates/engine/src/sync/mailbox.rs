//! The bounded queue between threads. The lock is held for a push or pop only, never while waking or waiting.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use super::{Closed, waiters::Waiters};

struct State<T> {
    items: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receiver_gone: bool,
    receiver: Option<Waker>,
    waiting: Waiters,
}

type Shared<T> = Arc<Mutex<State<T>>>;

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, State<T>> {
    // A panic while the lock is held can only come from an allocation in `push_back`; the queue is whole then.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bounded queue of `capacity` items (at least one) that crosses threads; a send wakes the receiver's reactor.
pub fn mailbox<T>(capacity: usize) -> (MailSender<T>, MailReceiver<T>) {
    let capacity = capacity.max(1);
    let state = State {
        items: VecDeque::with_capacity(capacity),
        capacity,
        senders: 1,
        receiver_gone: false,
        receiver: None,
        waiting: Waiters::new(),
    };
    let shared = Arc::new(Mutex::new(state));
    (MailSender { shared: shared.clone() }, MailReceiver { shared })
}

/// Why [`MailSender::try_send`] gave the item back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// No room.
    #[error("the mailbox is full")]
    Full(T),
    /// The receiver is gone.
    #[error("the mailbox is closed: its receiver is gone")]
    Closed(T),
}

/// The sending side; may be cloned and used from any thread, also outside every reactor ([`MailSender::try_send`]).
pub struct MailSender<T> {
    shared: Shared<T>,
}

impl<T> MailSender<T> {
    /// Sends if there is room.
    ///
    /// # Errors
    /// The item back, and why.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        let mut state = lock(&self.shared);
        if state.receiver_gone {
            return Err(TrySendError::Closed(item));
        }
        if state.items.len() == state.capacity {
            return Err(TrySendError::Full(item));
        }
        state.items.push_back(item);
        let waker = state.receiver.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Waits for room and sends.
    ///
    /// # Errors
    /// [`Closed`] if the receiver is gone; the item is dropped.
    pub async fn send(&self, item: T) -> Result<(), Closed> {
        let mut item = item;
        loop {
            match self.try_send(item) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(Closed),
                Err(TrySendError::Full(back)) => item = back,
            }
            Room { shared: &self.shared, ticket: None }.await;
        }
    }
}

impl<T> Clone for MailSender<T> {
    fn clone(&self) -> MailSender<T> {
        lock(&self.shared).senders += 1;
        MailSender { shared: self.shared.clone() }
    }
}

impl<T> Drop for MailSender<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.senders -= 1;
        let waker = if state.senders == 0 { state.receiver.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Ends when there may be room.
struct Room<'a, T> {
    shared: &'a Shared<T>,
    ticket: Option<u64>,
}

impl<T> Future for Room<'_, T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(self.shared);
        let room = state.receiver_gone || state.items.len() < state.capacity;
        match self.ticket {
            // Looked again under the lock: the receiver may have made room since the failed attempt.
            None if room => Poll::Ready(()),
            None => {
                self.ticket = Some(state.waiting.add(cx.waker(), ()));
                Poll::Pending
            }
            Some(ticket) if state.waiting.rearm(ticket, cx.waker()) => Poll::Pending,
            Some(_) => {
                self.ticket = None;
                Poll::Ready(())
            }
        }
    }
}

impl<T> Drop for Room<'_, T> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = lock(self.shared);
        let served = !state.waiting.remove(ticket);
        let next = if served { state.waiting.pop() } else { None };
        drop(state);
        if let Some(waker) = next {
            waker.wake(); // served but never noticed: the room is the next one's
        }
    }
}

/// The receiving side.
pub struct MailReceiver<T> {
    shared: Shared<T>,
}

impl<T> MailReceiver<T> {
    /// Waits for an item. `None` when every sender is gone and nothing is left.
    pub async fn recv(&self) -> Option<T> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Takes the first item, if there is one.
    pub fn try_recv(&self) -> Option<T> {
        let mut state = lock(&self.shared);
        let item = state.items.pop_front()?;
        let waker = state.waiting.pop();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(item)
    }

    /// As [`MailReceiver::recv`], for hand-written futures. One task at a time.
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(item) = self.try_recv() {
            return Poll::Ready(Some(item));
        }
        let mut state = lock(&self.shared);
        if state.items.is_empty() && state.senders > 0 {
            state.receiver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        Poll::Ready(self.try_recv())
    }
}

impl<T> Drop for MailReceiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.receiver_gone = true;
        let items = std::mem::take(&mut state.items);
        drop(state);
        drop(items);
        loop {
            let Some(waker) = lock(&self.shared).waiting.pop() else { break };
            waker.wake();
        }
    }
}
