use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use super::{Closed, Notify};

/// A bounded queue between tasks of one thread. At the bound the producer waits; nothing is dropped.
///
/// After [`Queue::close`] pushes fail; what is inside can still be popped.
pub struct Queue<T> {
    shared: Rc<Shared<T>>,
}

struct Shared<T> {
    state: RefCell<State<T>>,
    room: Notify,
    items: Notify,
}

struct State<T> {
    items: VecDeque<T>,
    capacity: usize,
    closed: bool,
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Queue<T> {
        Queue { shared: self.shared.clone() }
    }
}

impl<T> Queue<T> {
    /// A queue for `capacity` items, at least one.
    pub fn new(capacity: usize) -> Queue<T> {
        let capacity = capacity.max(1);
        let state = State { items: VecDeque::with_capacity(capacity), capacity, closed: false };
        Queue { shared: Rc::new(Shared { state: RefCell::new(state), room: Notify::new(), items: Notify::new() }) }
    }

    /// Items inside.
    pub fn len(&self) -> usize {
        self.shared.state.borrow().items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for room and pushes.
    ///
    /// # Errors
    /// [`Closed`] if the queue is closed; the item is dropped.
    pub async fn push(&self, item: T) -> Result<(), Closed> {
        let mut item = item;
        loop {
            match self.try_push(item) {
                Ok(()) => return Ok(()),
                Err(_) if self.is_closed() => {
                    self.shared.room.notify_one(); // the next one who waits must see it too
                    return Err(Closed);
                }
                Err(back) => item = back,
            }
            self.shared.room.notified().await;
        }
    }

    /// Pushes if there is room.
    ///
    /// # Errors
    /// The item back, if the queue is full or closed.
    pub fn try_push(&self, item: T) -> Result<(), T> {
        let mut state = self.shared.state.borrow_mut();
        if state.closed || state.items.len() == state.capacity {
            return Err(item);
        }
        state.items.push_back(item);
        let room = state.items.len() < state.capacity;
        drop(state);
        self.shared.items.notify_one();
        if room {
            self.shared.room.notify_one(); // pops may have left one notification for two places
        }
        Ok(())
    }

    /// Waits for an item. `None` when the queue is closed and empty.
    pub async fn pop(&self) -> Option<T> {
        loop {
            if let Some(item) = self.try_pop() {
                return Some(item);
            }
            if self.shared.state.borrow().closed {
                self.shared.items.notify_one(); // the next one who waits must see it too
                return None;
            }
            self.shared.items.notified().await;
        }
    }

    /// Takes the first item, if there is one.
    pub fn try_pop(&self) -> Option<T> {
        let mut state = self.shared.state.borrow_mut();
        let item = state.items.pop_front()?;
        let more = !state.items.is_empty();
        drop(state);
        self.shared.room.notify_one();
        if more {
            self.shared.items.notify_one(); // pushes may have left one notification for two items
        }
        Some(item)
    }

    /// No more pushes; what is inside can still be popped.
    pub fn close(&self) {
        self.shared.state.borrow_mut().closed = true;
        self.shared.items.notify_all();
        self.shared.room.notify_all();
        self.shared.items.notify_one();
    }

    /// Whether [`Queue::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.shared.state.borrow().closed
    }
}
