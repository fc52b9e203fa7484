//! What this crate's tests share: pools in memory, a simulated world to run in, namespaces that count.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use device::{Durability, Error, Lba, Link, Memory, Namespace};
use engine::sim::{SimConfig, World};
use engine::sync::Semaphore;
use engine::{Buf, View};
use pool::{CreateOptions, Map, NewMember};

/// Runs a future in a simulated world of this seed.
pub fn run<T>(seed: u64, future: impl Future<Output = T>) -> T {
    match World::new(seed, SimConfig::default()).run_until(future) {
        Ok(output) => output,
        Err(stalled) => panic!("seed {seed}: {stalled:?}"),
    }
}

/// Members in memory, each of `bytes`.
pub fn memories(count: usize, bytes: u64) -> Vec<Arc<Memory>> {
    let memory = |index: usize| Arc::new(Memory::new(bytes, 4096, [index as u8 + 1; 16]).unwrap());
    (0..count).map(memory).collect()
}

/// A pool of `members`.
pub async fn create<N: Namespace + Clone>(members: &[N], replicas: u8, table_share: u32) -> Map {
    let new =
        |namespace: &N| NewMember::at(namespace.clone(), "nqn.2026-01.example:test", 1, vec!["127.0.0.1:1".into()]);
    let new: Vec<_> = members.iter().map(new).collect();
    let options = CreateOptions { replicas, table_share, force: true, ..CreateOptions::default() };
    pool::create(&new, &options, |_| ()).await.unwrap()
}

/// A namespace that counts commands and can be switched off.
pub struct Counting<N> {
    pub inner: N,
    pub reads: Cell<u64>,
    pub bytes_read: Cell<u64>,
    pub writes: Cell<u64>,
    pub swaps: Cell<u64>,
    /// Writes and compare-and-writes that were not asked to be stable.
    pub cached: Cell<u64>,
    pub down: Rc<Cell<bool>>,
    /// Commands wait this long before they take effect.
    pub slow: Cell<std::time::Duration>,
    /// Plain writes are kept back, and their callers told that the outcome is unknown.
    pub hold: Cell<bool>,
    /// Reads that touch this block fail.
    pub bad_block: Cell<Option<Lba>>,
    /// The next read that touches this block gives other bytes than are there; those after it are good.
    pub garbled: Cell<Option<Lba>>,
    /// After so many more compare-and-writes the connection is lost at one, before (`false`) or after it took effect.
    pub cut: Cell<Option<(u64, bool)>>,
    pub held: RefCell<Vec<(Lba, View)>>,
    /// The same for compare-and-writes.
    pub hold_swaps: Cell<bool>,
    pub held_swaps: RefCell<Vec<(Lba, View, View)>>,
    /// Compare-and-writes find no room.
    pub full: Cell<bool>,
    /// Slots of its queue: a command takes one while it is [`Counting::slow`], and whoever is first in line keeps the others
    /// waiting.
    pub queue: Semaphore,
    /// Counts reconnections, as the test plays them.
    pub epoch: Cell<u64>,
}

/// Slots of the queue of a [`Counting`].
pub const QUEUE_SLOTS: usize = 1 << 16;

impl<N> Counting<N> {
    pub fn new(inner: N) -> Rc<Counting<N>> {
        Rc::new(Counting {
            inner,
            reads: Cell::new(0),
            bytes_read: Cell::new(0),
            writes: Cell::new(0),
            swaps: Cell::new(0),
            cached: Cell::new(0),
            down: Rc::default(),
            slow: Cell::default(),
            hold: Cell::default(),
            bad_block: Cell::default(),
            garbled: Cell::default(),
            cut: Cell::default(),
            held: RefCell::default(),
            hold_swaps: Cell::default(),
            held_swaps: RefCell::default(),
            full: Cell::default(),
            queue: Semaphore::new(QUEUE_SLOTS),
            epoch: Cell::default(),
        })
    }

    /// Lets every write that was kept back land now, and every compare-and-write that still finds what it expects.
    pub async fn land(&self)
    where
        N: Namespace,
    {
        for (lba, data) in self.held.take() {
            self.inner.write(lba, data, Durability::Stable).await.unwrap();
        }
        for (lba, expected, new) in self.held_swaps.take() {
            match self.inner.compare_and_write(lba, expected, new, Durability::Stable).await {
                Ok(()) | Err(Error::CompareFailure) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// (reads, writes, compare-and-writes) since the last call.
    pub fn take(&self) -> (u64, u64, u64) {
        (self.reads.take(), self.writes.take(), self.swaps.take())
    }

    fn note(&self, durability: Durability) {
        self.cached.set(self.cached.get() + u64::from(durability == Durability::Cached));
    }

    async fn up(&self) -> Result<(), Error> {
        let _slot = self.queue.acquire(1).await;
        if !self.slow.get().is_zero() {
            engine::time::sleep(self.slow.get()).await;
        }
        if self.down.get() { Err(Error::NotConnected("test".into())) } else { Ok(()) }
    }
}

impl<N: Namespace> Namespace for Counting<N> {
    device::delegate_namespace!(this => { Counting { inner, .. } => inner };
        info, write_uncorrectable, hint_lifetime, writability, used_blocks, attribute, set_attribute);
    device::namespace_without!(verify, zones);

    fn link(&self) -> Link {
        Link { is_up: !self.down.get(), epoch: self.epoch.get() }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        self.reads.set(self.reads.get() + 1);
        self.bytes_read.set(self.bytes_read.get() + buf.len() as u64);
        let blocks = buf.len() as u64 / u64::from(self.info().block_size);
        if self.bad_block.get().is_some_and(|bad| (lba.0..lba.0 + blocks).contains(&bad.0)) {
            return (Err(Error::ReadFault("test".into())), buf);
        }
        if let Err(error) = self.up().await {
            return (Err(error), buf);
        }
        let (result, mut buf) = self.inner.read(lba, buf).await;
        if let Some(garbled) = self.garbled.get().filter(|garbled| (lba.0..lba.0 + blocks).contains(&garbled.0)) {
            self.garbled.set(None);
            let middle =
                (garbled.0 - lba.0) as usize * self.info().block_size as usize + self.info().block_size as usize / 2;
            buf[middle] ^= 1;
        }
        (result, buf)
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.writes.set(self.writes.get() + 1);
        self.note(durability);
        self.up().await?;
        if self.hold.get() {
            self.held.borrow_mut().push((lba, data));
            return Err(Error::Disconnected("test".into()));
        }
        self.inner.write(lba, data, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.up().await?;
        self.inner.flush().await
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.up().await?;
        self.inner.compare(lba, expected).await
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        self.swaps.set(self.swaps.get() + 1);
        self.note(how);
        self.up().await?;
        if self.hold_swaps.get() {
            self.held_swaps.borrow_mut().push((lba, expected, new));
            return Err(Error::Disconnected("test".into()));
        }
        if let Some((left, takes_effect)) = self.cut.get() {
            self.cut.set(left.checked_sub(1).map(|left| (left, takes_effect)));
            if left == 0 {
                self.down.set(true);
                if takes_effect {
                    self.inner.compare_and_write(lba, expected, new, how).await?;
                }
                return Err(Error::Disconnected("test".into()));
            }
        }
        if self.full.get() {
            return Err(Error::OutOfSpace);
        }
        self.inner.compare_and_write(lba, expected, new, how).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.up().await?;
        self.inner.write_zeroes(lba, blocks, durability).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.up().await?;
        self.inner.deallocate(lba, blocks).await
    }
}
