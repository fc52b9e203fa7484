//! A member as a row of figures in virtual time has it: so far away, so many commands a second, and every command counted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Memory, Namespace};
use engine::time::{self, Instant};
use engine::{Buf, View};

/// A memory namespace behind a network and with a bounded rate.
pub struct Metered {
    memory: Memory,
    one_way: Duration,
    /// Time that the member needs for one command; commands are served one after the other.
    service: Duration,
    free_at: RefCell<Instant>,
    commands: Cell<u64>,
}

impl Metered {
    /// Over `memory`, in a simulated world.
    pub fn new(memory: Memory, one_way: Duration, service: Duration) -> Rc<Metered> {
        Rc::new(Metered { memory, one_way, service, free_at: RefCell::new(time::now()), commands: Cell::new(0) })
    }

    /// Commands so far; a fused pair counts as one. Each is a message there and one back.
    pub fn commands(&self) -> u64 {
        self.commands.get()
    }

    async fn there(&self) {
        self.commands.set(self.commands.get() + 1);
        time::sleep(self.one_way).await;
        let done = {
            let mut free_at = self.free_at.borrow_mut();
            *free_at = (*free_at).max(time::now()) + self.service;
            *free_at
        };
        time::sleep_until(done).await;
    }

    async fn back<T>(&self, answer: T) -> T {
        time::sleep(self.one_way).await;
        answer
    }
}

impl Namespace for Metered {
    device::delegate_namespace!(this => { Metered { memory, .. } => memory };
        info, write_uncorrectable, hint_lifetime, writability, used_blocks, link, attribute, set_attribute);
    device::namespace_without!(verify, zones);

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        self.there().await;
        self.back(self.memory.read(lba, buf).await).await
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.there().await;
        self.back(self.memory.write(lba, data, durability).await).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.there().await;
        self.back(self.memory.flush().await).await
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.there().await;
        self.back(self.memory.compare(lba, expected).await).await
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        self.there().await;
        self.back(self.memory.compare_and_write(lba, expected, new, how).await).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.there().await;
        self.back(self.memory.write_zeroes(lba, blocks, durability).await).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.there().await;
        self.back(self.memory.deallocate(lba, blocks).await).await
    }
}
