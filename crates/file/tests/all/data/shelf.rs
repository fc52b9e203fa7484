//! Members of the tests' file systems, as clients reach them that stop at any step. The fault model is that of `bed`.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::{Durability, Lba, Link, Memory, Namespace};
use engine::rng::SplitMix;
use engine::{Buf, View, task, time};

/// Where a client stops: at its so many-th step, before it or after it.
#[derive(Default)]
pub struct Gate {
    pub steps: Cell<u64>,
    pub stop_at: Cell<Option<u64>>,
    has_stopped: Cell<bool>,
}

impl Gate {
    pub fn at(step: Option<u64>) -> Rc<Gate> {
        Rc::new(Gate { stop_at: Cell::new(step), ..Gate::default() })
    }

    pub async fn pass(&self) {
        let step = self.steps.get();
        self.steps.set(step + 1);
        if self.stop_at.get() == Some(step) {
            self.has_stopped.set(true);
        }
        self.look().await;
    }

    /// Nothing happens in a client that has stopped, until it goes on.
    pub async fn look(&self) {
        while self.has_stopped.get() {
            time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// It stops at its next step.
    pub fn stop_next(&self) {
        self.stop_at.set(Some(self.steps.get()));
    }

    /// A client that has stopped goes on.
    pub fn go_on(&self) {
        self.has_stopped.set(false);
    }
}

/// A member's medium, and how it is reached.
pub struct Shelf {
    pub memory: Arc<Memory>,
    pub is_down: Cell<bool>,
    pub is_unreadable: Cell<bool>,
    /// Of a million writes, those that nobody learns the outcome of.
    pub late_ppm: Cell<u64>,
    draws: RefCell<SplitMix>,
    pub hangs: Cell<bool>,
    pub delay: Cell<Duration>,
    pub reads: Cell<u64>,
    pub writes: Cell<u64>,
    /// Over which connection it is reached.
    pub epoch: Cell<u64>,
}

/// A shelf as one client sees it.
pub struct Reached {
    shelf: Rc<Shelf>,
    gate: Rc<Gate>,
}

impl Shelf {
    pub fn new(memory: Memory) -> Rc<Shelf> {
        Rc::new(Shelf {
            memory: Arc::new(memory),
            is_down: Cell::default(),
            is_unreadable: Cell::default(),
            late_ppm: Cell::default(),
            draws: RefCell::new(SplitMix(1)),
            hangs: Cell::default(),
            delay: Cell::default(),
            reads: Cell::default(),
            writes: Cell::default(),
            epoch: Cell::default(),
        })
    }

    /// A write comes many minutes later, or a part of it, or nothing.
    fn write_late(&self, lba: Lba, data: View) {
        let mut draws = self.draws.borrow_mut();
        let blocks = draws.index(data.len() / 4096 + 1);
        let (memory, delay) = (Arc::clone(&self.memory), Duration::from_secs(draws.below(29 * 60)));
        task::spawn(async move {
            time::sleep(delay).await;
            if blocks > 0 {
                memory.write(lba, data.slice(..blocks * 4096), Durability::Stable).await.unwrap();
            }
        })
        .detach();
    }

    /// As a client reaches it that stops at this gate.
    pub fn reached(self: &Rc<Self>, gate: &Rc<Gate>) -> Rc<dyn device::ErasedMethods> {
        Rc::new(Reached { shelf: Rc::clone(self), gate: Rc::clone(gate) })
    }
}

impl Reached {
    async fn begin(&self) -> Result<(), device::Error> {
        self.gate.look().await;
        if !self.shelf.delay.get().is_zero() {
            time::sleep(self.shelf.delay.get()).await;
        }
        if self.shelf.hangs.get() {
            pending::<()>().await;
        }
        if self.shelf.is_down.get() { Err(device::Error::NotConnected("a shelf".into())) } else { Ok(()) }
    }
}

impl Namespace for Reached {
    device::delegate_namespace!(this => { Reached { shelf, .. } => shelf.memory };
        info, flush, compare, compare_and_write, write_zeroes, deallocate, verify, write_uncorrectable, hint_lifetime,
        writability, used_blocks, attribute, set_attribute, zones);

    fn link(&self) -> Link {
        Link { epoch: self.shelf.epoch.get(), ..Link::LASTING }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), device::Error>, Buf) {
        self.shelf.reads.set(self.shelf.reads.get() + 1);
        match self.begin().await {
            Ok(()) if self.shelf.is_unreadable.get() => (Err(device::Error::ReadFault("a shelf".into())), buf),
            Ok(()) => self.shelf.memory.read(lba, buf).await,
            Err(error) => (Err(error), buf),
        }
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), device::Error> {
        self.shelf.writes.set(self.shelf.writes.get() + 1);
        self.gate.pass().await;
        self.begin().await?;
        let draw = self.shelf.draws.borrow_mut().below(1_000_000);
        if draw < self.shelf.late_ppm.get() {
            self.shelf.write_late(lba, data);
            return Err(device::Error::Aborted);
        }
        let result = self.shelf.memory.write(lba, data, durability).await;
        self.gate.pass().await;
        result
    }
}
