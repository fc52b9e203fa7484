//! In which order the jobs of one connection take room: replies leave in the order of the commands, so what a later one holds comes
//! free only when all before it have had theirs.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use engine::sync::Notify;

/// The jobs of one connection that run.
#[derive(Clone, Default)]
pub struct Order(Rc<State>);

#[derive(Default)]
struct State {
    last: Cell<u64>,
    /// Which have room, or need none any more, from the first that has not.
    jobs: RefCell<VecDeque<(u64, bool)>>,
    moved: Notify,
}

/// A job's place among them, until dropped.
pub struct Turn {
    order: Order,
    number: u64,
}

impl Order {
    /// A job that begins after all before it.
    pub fn turn(&self) -> Rc<Turn> {
        let number = self.0.last.get() + 1;
        self.0.last.set(number);
        self.0.jobs.borrow_mut().push_back((number, false));
        Rc::new(Turn { order: self.clone(), number })
    }
}

impl Turn {
    /// Whether all before it have their room.
    pub(super) fn has_come(&self) -> bool {
        self.order.0.jobs.borrow().front().is_none_or(|(first, _)| *first >= self.number)
    }

    /// Waits until all before it have their room.
    pub(super) async fn come(&self) {
        while !self.has_come() {
            self.order.0.moved.notified().await;
        }
    }

    /// It has its room.
    pub(super) fn settle(&self) {
        let mut jobs = self.order.0.jobs.borrow_mut();
        let Some((_, is_settled)) = jobs.iter_mut().find(|(number, _)| *number == self.number) else { return };
        *is_settled = true;
        let before = jobs.len();
        while jobs.pop_front_if(|(_, is_settled)| *is_settled).is_some() {}
        if jobs.len() < before {
            self.order.0.moved.notify_all();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.settle();
    }
}
