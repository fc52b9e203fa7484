//! The plainest namespace, for this crate's tests: a vector, whole commands, one switch for failure.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use device::{Durability, Error, Lba, Namespace, NamespaceInfo};
use engine::{Buf, View};

use crate::{CreateOptions, Map, Member, NewMember, create};

#[derive(Clone)]
pub struct Plain(pub Rc<Inner>);

pub struct Inner {
    pub info: RefCell<NamespaceInfo>,
    pub bytes: RefCell<Vec<u8>>,
    pub down: Cell<bool>,
    /// Where a byte can't be read, nor compared with.
    pub unreadable: Cell<Option<usize>>,
    /// The next read of this byte comes with it changed.
    pub misread: Cell<Option<usize>>,
    /// Before the next read of this byte all of it has become this.
    pub overtaken: RefCell<Option<(usize, Vec<u8>)>>,
    /// After so many compare-and-writes one takes a minute.
    pub slow_after: Cell<Option<u32>>,
    pub writes: Cell<u32>,
    /// Writes after this many fail.
    pub writes_max: Cell<u32>,
    /// Writes that whoever uses this and others may still do, together.
    pub budget: RefCell<Rc<Cell<u32>>>,
}

impl Plain {
    pub fn new(id: u8, size: usize, block_size: u32) -> Plain {
        let info = NamespaceInfo {
            block_size,
            blocks: size as u64 / u64::from(block_size),
            atomic_blocks: 131_072 / block_size,
            compare_and_write_blocks_max: 131_072 / block_size,
            transfer_blocks_max: 1_048_576 / block_size,
            volatile_cache: false,
            volatile_medium: true,
            deallocated_reads_zero: true,
            thin: false,
            preferred_write_blocks: 1,
            preferred_deallocate_blocks: 1,
            write_uncorrectable: false,
            persists_attributes: false,
            nguid: [id; 16],
        };
        Plain(Rc::new(Inner {
            info: RefCell::new(info),
            bytes: RefCell::new(vec![0; size]),
            down: Cell::new(false),
            unreadable: Cell::new(None),
            misread: Cell::new(None),
            overtaken: RefCell::default(),
            slow_after: Cell::new(None),
            writes: Cell::new(0),
            writes_max: Cell::new(u32::MAX),
            budget: RefCell::new(Rc::new(Cell::new(u32::MAX))),
        }))
    }

    fn range(&self, lba: Lba, bytes: usize) -> std::ops::Range<usize> {
        let start = lba.0 as usize * self.0.info.borrow().block_size as usize;
        start..start + bytes
    }

    fn up(&self) -> Result<(), Error> {
        if self.0.down.get() { Err(Error::NotConnected("test".into())) } else { Ok(()) }
    }

    fn readable(&self, range: &std::ops::Range<usize>) -> Result<(), Error> {
        self.up()?;
        let fault = self.0.unreadable.get().is_some_and(|at| range.contains(&at));
        if fault { Err(Error::ReadFault("test".into())) } else { Ok(()) }
    }
}

impl Namespace for Plain {
    device::namespace_without!(
        verify,
        write_uncorrectable,
        hint_lifetime,
        writability,
        used_blocks,
        link,
        attributes,
        zones
    );

    fn info(&self) -> NamespaceInfo {
        self.0.info.borrow().clone()
    }

    async fn read(&self, lba: Lba, mut buf: Buf) -> (Result<(), Error>, Buf) {
        let range = self.range(lba, buf.len());
        if let Err(error) = self.readable(&range) {
            return (Err(error), buf);
        }
        if let Some((_, bytes)) = self.0.overtaken.borrow_mut().take_if(|(at, _)| range.contains(at)) {
            self.0.bytes.replace(bytes);
        }
        buf.copy_from_slice(&self.0.bytes.borrow()[range.clone()]);
        if let Some(at) = self.0.misread.get().filter(|at| range.contains(at)) {
            self.0.misread.set(None);
            buf[at - range.start] ^= 1;
        }
        (Ok(()), buf)
    }

    async fn write(&self, lba: Lba, data: View, _: Durability) -> Result<(), Error> {
        self.up()?;
        self.0.writes.set(self.0.writes.get() + 1);
        let budget = self.0.budget.borrow();
        let Some(left) = budget.get().checked_sub(1) else { return Err(Error::NotConnected("test".into())) };
        budget.set(left);
        if self.0.writes.get() > self.0.writes_max.get() {
            return Err(Error::WriteFault("test".into()));
        }
        let range = self.range(lba, data.len());
        self.0.bytes.borrow_mut()[range].copy_from_slice(&data);
        Ok(())
    }

    async fn flush(&self) -> Result<(), Error> {
        self.up()
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let range = self.range(lba, expected.len());
        self.readable(&range)?;
        if self.0.bytes.borrow()[range] == *expected { Ok(()) } else { Err(Error::CompareFailure) }
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        if let Some(left) = self.0.slow_after.get() {
            self.0.slow_after.set(left.checked_sub(1));
            if left == 0 {
                engine::time::sleep(std::time::Duration::from_secs(60)).await;
            }
        }
        self.compare(lba, expected).await?;
        self.write(lba, new, how).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, _: Durability) -> Result<(), Error> {
        self.up()?;
        let range = self.range(lba, (blocks * u64::from(self.info().block_size)) as usize);
        self.0.bytes.borrow_mut()[range].fill(0);
        Ok(())
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.write_zeroes(lba, blocks, Durability::Cached).await
    }
}

/// What stands for a namespace when a pool is made.
pub fn new_member<N: Clone>(namespace: &N) -> NewMember<N> {
    NewMember::at(namespace.clone(), "nqn.2026-01.example:m", 1, Vec::new())
}

/// A pool of these namespaces.
pub async fn plain_pool<N: Namespace + Clone>(namespaces: &[N], replicas: u8) -> Map {
    let members: Vec<_> = namespaces.iter().map(new_member).collect();
    create(&members, &CreateOptions { replicas, ..CreateOptions::default() }, |_| ()).await.unwrap()
}

/// Begins a member anew under a map that is in force.
pub async fn renew_under(namespace: &Plain, map: &Map) -> Result<Member, crate::Error> {
    let renewed = crate::renew(namespace, "m", async |_carried| Ok(map.clone())).await;
    Ok(renewed?.expect("a member without a vote"))
}

/// Runs a future that never has to wait.
pub fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("a plain namespace never waits"),
    }
}

#[path = "scenarios_tests.rs"]
mod scenarios;
