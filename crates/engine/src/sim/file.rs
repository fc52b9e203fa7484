//! Simulated files, as the dispatch in `file` holds them.

use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::disk::{Abandoned, Command, DiskId, SECTOR};
use super::driver::Driver;
use super::id::{NodeId, OpId};
use crate::{
    Buf, View,
    file::{Late, OpenOptions},
};

/// `Clone + Send + Sync`: holds ids, no `Rc`.
#[derive(Clone)]
pub(crate) struct File {
    world: u64,
    node: NodeId,
    disk: DiskId,
    size: u64,
    direct: bool,
    read_only: bool,
    /// The disk holds a weak reference: the exclusive opener's claim ends with the last clone, wherever that is dropped.
    _lock: Arc<()>,
}

/// An operation under way; dropping it lets a write go on, as the kernel does, and with it what the writer holds.
struct Operation<G: 'static> {
    driver: Rc<Driver>,
    id: OpId,
    held: Option<G>,
    late: Late<G>,
}

impl<G: 'static> Drop for Operation<G> {
    fn drop(&mut self) {
        let (id, late) = (self.id, self.late);
        let left = self.driver.step(|state| state.disks.abandon(id));
        let Some(held) = self.held.take() else { return };
        match left {
            Abandoned::GoesOn => {
                let heir = Box::new(move |result| late(held, result));
                self.driver.step(|state| state.disks.entrust(id, heir));
            }
            Abandoned::Ended(result) => late(held, result),
            Abandoned::Gone => drop(held),
        }
    }
}

impl File {
    pub(crate) fn open(driver: &Rc<Driver>, path: &Path, options: &OpenOptions) -> io::Result<File> {
        let node = driver.node()?;
        let lock = Arc::new(());
        driver.step(|state| {
            let disk = match (state.disks.find(node, path), options.create) {
                (Some(disk), _) => disk,
                (None, Some(size)) => state.disks.create(node, path, size, state.core.config.disk.clone())?,
                (None, None) => {
                    let message = format!("{}: no such file on this node", path.display());
                    return Err(io::Error::new(io::ErrorKind::NotFound, message));
                }
            };
            if options.exclusive {
                state.disks.lock(disk, Arc::downgrade(&lock))?;
            }
            let size = state.disks.size(disk);
            let OpenOptions { direct, read_only, .. } = *options;
            Ok(File { world: driver.world, node, disk, size, direct, read_only, _lock: lock })
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn logical_block_size(&self) -> u32 {
        SECTOR as u32
    }

    pub(crate) fn is_block_device(&self) -> bool {
        false
    }

    pub(crate) async fn read_at(&self, driver: Rc<Driver>, offset: u64, buf: Buf) -> (io::Result<()>, Buf) {
        let len = buf.len() as u64;
        let size = driver.step(|state| state.disks.size(self.disk));
        if let Err(error) = self.check(&driver, offset, len) {
            return (Err(error), buf);
        }
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let message = format!("read of {len} bytes at {offset} beyond the end at {size}");
            return (Err(io::Error::new(io::ErrorKind::UnexpectedEof, message)), buf);
        }
        let capacity = buf.capacity();
        let (result, buf, ()) = self.run(driver, Command::Read { offset, buf }, (), |(), _| {}).await;
        // A crash ends the operation and its buffer; the task that waits is about to be dropped as well.
        (result, buf.unwrap_or_else(|| Buf::with_capacity(capacity)))
    }

    pub(crate) async fn write_at(&self, driver: Rc<Driver>, offset: u64, data: View, durable: bool) -> io::Result<()> {
        self.write_at_holding(driver, offset, data, durable, (), |(), _| {}).await.0
    }

    pub(crate) async fn write_at_holding<G: 'static>(
        &self,
        driver: Rc<Driver>,
        offset: u64,
        data: View,
        durable: bool,
        held: G,
        late: Late<G>,
    ) -> (io::Result<()>, G) {
        let checked = self.check(&driver, offset, data.len() as u64).and_then(|()| self.check_writable());
        if let Err(error) = checked {
            return (Err(error), held);
        }
        let (result, _, held) = self.run(driver, Command::Write { offset, data, durable }, held, late).await;
        (result, held)
    }

    pub(crate) async fn sync_data_holding<G: 'static>(
        &self,
        driver: Rc<Driver>,
        held: G,
        late: Late<G>,
    ) -> (io::Result<()>, G) {
        if let Err(error) = self.check(&driver, 0, 0) {
            return (Err(error), held);
        }
        let (result, _, held) = self.run(driver, Command::Sync, held, late).await;
        (result, held)
    }

    pub(crate) async fn punch_hole(&self, driver: Rc<Driver>, offset: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(driver, offset, len).await
    }

    pub(crate) async fn write_zeroes(&self, driver: Rc<Driver>, offset: u64, len: u64) -> io::Result<()> {
        self.check(&driver, 0, 0)?;
        self.check_writable()?;
        self.run(driver, Command::Zero { offset, len }, (), |(), _| {}).await.0
    }

    /// What the kernel refuses: misaligned direct access (EINVAL). And what no test should do: use another node's file.
    fn check(&self, driver: &Driver, offset: u64, len: u64) -> io::Result<()> {
        assert_eq!(self.world, driver.world, "a file of one simulated world was used in another");
        if driver.node()? != self.node {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file belongs to another node"));
        }
        if self.direct && !(offset | len).is_multiple_of(SECTOR as u64) {
            let message = format!("direct access to {len} bytes at {offset}: not multiples of {SECTOR}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(())
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(())
    }

    async fn run<G: 'static>(
        &self,
        driver: Rc<Driver>,
        command: Command,
        held: G,
        late: Late<G>,
    ) -> (io::Result<()>, Option<Buf>, G) {
        let submitted = driver.step(|state| state.disks.submit(&mut state.core, self.disk, command));
        let mut operation = match submitted {
            Ok(id) => Operation { driver, id, held: Some(held), late },
            Err(error) => return (Err(error), None, held),
        };
        let ended = poll_fn(|cx| operation.driver.step(|state| state.disks.poll(operation.id, cx.waker())));
        let (result, buf) = ended.await;
        let held = operation.held.take().expect("invariant: only here and in drop, which comes later");
        (result, buf, held)
    }
}
