//! In which order the jobs of one connection take room, and how much of the short part it holds (`memory`).
//!
//! Replies leave in the order of the commands, so what a later one holds comes free only when all before it have had theirs. What a
//! job took before its turn had come is therefore not held against those before it: they would wait for what waits for them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use engine::sync::{Notify, Permit};

use super::SHORT_VALUE_BYTES_MAX;

/// The jobs of one connection that run.
#[derive(Clone, Default)]
pub struct Order(Rc<State>);

#[derive(Default)]
struct State {
    last: Cell<u64>,
    /// From the first that may need room, or more of it.
    jobs: RefCell<VecDeque<Job>>,
    moved: Notify,
    /// What the connection holds of the short part, replies that are not sent included.
    held: Cell<usize>,
    freed: Notify,
}

struct Job {
    number: u64,
    /// What it took of the short part.
    short: usize,
    /// It has its room, or needs none any more.
    is_settled: bool,
}

/// Room that was taken, until dropped.
pub struct Taken {
    permit: Permit,
    /// Whose share of the short part it is.
    order: Option<Order>,
}

impl From<Permit> for Taken {
    fn from(permit: Permit) -> Taken {
        Taken { permit, order: None }
    }
}

impl Taken {
    /// Bytes of it.
    pub fn count(&self) -> usize {
        self.permit.count()
    }

    /// Parts with `count` of them.
    pub(super) fn split(&mut self, count: usize) -> Taken {
        Taken { permit: self.permit.split(count), order: self.order.clone() }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(Order(state)) = &self.order {
            state.held.set(state.held.get() - self.permit.count());
            state.freed.notify_one();
        }
    }
}

/// A job's place among them, until dropped.
pub struct Turn {
    order: Order,
    number: u64,
    is_settled: Cell<bool>,
}

impl Order {
    /// A job that begins after all before it.
    pub fn turn(&self) -> Rc<Turn> {
        let number = self.0.last.get() + 1;
        self.0.last.set(number);
        self.0.jobs.borrow_mut().push_back(Job { number, short: 0, is_settled: false });
        Rc::new(Turn { order: self.clone(), number, is_settled: Cell::new(false) })
    }

    /// What the connection holds of the short part.
    pub(super) fn held(&self) -> usize {
        self.0.held.get()
    }
}

impl Turn {
    /// Whether all before it have their room.
    pub(super) fn has_come(&self) -> bool {
        self.order.0.jobs.borrow().front().is_none_or(|first| first.number >= self.number)
    }

    /// Waits until all before it have their room.
    pub(super) async fn come(&self) {
        while !self.has_come() {
            self.order.0.moved.notified().await;
        }
    }

    /// Whether it may take so much of the short part where its connection may hold `share` of it: within that, with room left for
    /// who comes before it; at its turn also where all that is held waits for it.
    pub(super) fn fits(&self, bytes: usize, share: usize) -> bool {
        let held = self.order.held();
        if !self.has_come() {
            return held + bytes + SHORT_VALUE_BYTES_MAX <= share;
        }
        let early: usize = self.order.0.jobs.borrow().iter().map(|job| job.short).sum();
        held + bytes <= share || held <= early
    }

    /// Waits until it may, at its turn. Not where it has had its turn and needs more: those behind it may hold the share since.
    pub(super) async fn await_share(&self, bytes: usize, share: impl Fn() -> usize) {
        while !self.is_settled.get() && !self.fits(bytes, share()) {
            self.order.0.freed.notified().await;
        }
    }

    /// It has this room, which is all that it needs.
    pub(super) fn took(&self, permit: Permit, is_short: bool) -> Taken {
        let taken = self.took_part(permit, is_short);
        self.settle();
        taken
    }

    /// It has this room, and may need more: those behind it still leave it some.
    pub(super) fn took_part(&self, permit: Permit, is_short: bool) -> Taken {
        let Order(state) = &self.order;
        if is_short {
            state.held.set(state.held.get() + permit.count());
            if let Some(job) = state.jobs.borrow_mut().iter_mut().find(|job| job.number == self.number) {
                job.short += permit.count();
            }
        }
        Taken { permit, order: is_short.then(|| self.order.clone()) }
    }

    /// It has its room, or needs none any more.
    pub(super) fn settle(&self) {
        self.is_settled.set(true);
        let mut jobs = self.order.0.jobs.borrow_mut();
        let Some(job) = jobs.iter_mut().find(|job| job.number == self.number) else { return };
        job.is_settled = true;
        let before = jobs.len();
        while jobs.pop_front_if(|job| job.is_settled).is_some() {}
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
