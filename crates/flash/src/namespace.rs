//! [`FlashNamespace`]: a namespace on a flash device, by its media manager.
//!
//! Invariants:
//! - A command holds the lock of its range from before it looks until its content is in the buffer, and one that is to be stable
//!   until it is: so every command is atomic towards every other, and the media manager never sees two writers of one sector.
//! - Attributes and marks of unreadable blocks are stable when they are acknowledged.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use device::limits::{COMPARE_AND_WRITE_BYTES_MAX, TRANSFER_BYTES_MAX, check_halves, check_length, check_range};
use device::{Durability, Error, Lba, Mailed, Mode, Namespace, NamespaceInfo, RangeGuard, RangeLocks, Writability};
use engine::file::Lifetime;
use engine::{Buf, View};

use crate::geometry::SECTOR_BYTES;
use crate::manager::{Heat, Manager};

/// Blocks of a transfer.
const TRANSFER_BLOCKS_MAX: u32 = (TRANSFER_BYTES_MAX / SECTOR_BYTES) as u32;

/// See the module. It belongs to one thread; `device::Mailed` makes it usable by all.
pub struct FlashNamespace {
    manager: Manager,
    locks: Arc<RangeLocks>,
    info: NamespaceInfo,
    heat: Cell<Heat>,
}

impl FlashNamespace {
    /// The namespace of an open media manager.
    pub fn new(manager: Manager) -> FlashNamespace {
        let info = NamespaceInfo {
            block_size: SECTOR_BYTES as u32,
            blocks: u64::from(manager.capacity()),
            atomic_blocks: TRANSFER_BLOCKS_MAX,
            compare_and_write_blocks_max: (COMPARE_AND_WRITE_BYTES_MAX / SECTOR_BYTES) as u32,
            transfer_blocks_max: TRANSFER_BLOCKS_MAX,
            volatile_cache: true,
            volatile_medium: false,
            deallocated_reads_zero: true,
            thin: true,
            preferred_write_blocks: manager.unit_sectors(),
            preferred_deallocate_blocks: 1,
            write_uncorrectable: true,
            persists_attributes: true,
            nguid: manager.identity(),
        };
        FlashNamespace { manager, locks: Arc::new(RangeLocks::new(8)), info, heat: Cell::default() }
    }

    /// The media manager below.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Ends the media manager behind all commands that have begun; those that come later fail. Nothing has to be looked for when
    /// the device is opened next.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn close(&self) -> Result<(), Error> {
        let _lock = self.lock(Lba(0), self.info.blocks, Mode::Exclusive).await;
        self.manager.end().await
    }

    /// For all threads of this process. Whoever mails it itself compiles all of a media manager.
    #[inline(never)]
    pub fn mailed(self: &Rc<Self>) -> Mailed {
        Mailed::new(self.clone())
    }

    /// The media manager back, to be closed.
    pub fn into_manager(self) -> Manager {
        self.manager
    }

    async fn lock(&self, lba: Lba, blocks: u64, mode: Mode) -> RangeGuard {
        self.locks.lock(lba.0, blocks, mode).await
    }

    async fn stable(&self, ticket: u64, durability: Durability) -> Result<(), Error> {
        match durability {
            Durability::Cached => Ok(()),
            Durability::Stable => self.manager.flush_to(ticket).await,
        }
    }

    /// The caller has the lock.
    async fn holds(&self, lba: Lba, expected: &[u8]) -> Result<(), Error> {
        let mut found = Buf::with_len(expected.len());
        self.manager.read(lba.0 as u32, &mut found).await?;
        if *found == *expected { Ok(()) } else { Err(Error::CompareFailure) }
    }

    async fn deallocate_range(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        check_range(&self.info, lba, blocks)?;
        if blocks == 0 {
            return Ok(());
        }
        let _lock = self.lock(lba, blocks, Mode::Exclusive).await;
        let ticket = self.manager.deallocate(lba.0 as u32, blocks as u32, false).await?;
        self.stable(ticket, durability).await
    }
}

impl Namespace for FlashNamespace {
    device::namespace_without!(verify, link, zones);

    fn info(&self) -> NamespaceInfo {
        self.info.clone()
    }

    async fn read(&self, lba: Lba, mut buf: Buf) -> (Result<(), Error>, Buf) {
        let blocks = match check_length(&self.info, lba, buf.len(), TRANSFER_BLOCKS_MAX) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buf),
        };
        let _lock = self.lock(lba, blocks, Mode::Shared).await;
        (self.manager.read(lba.0 as u32, &mut buf).await, buf)
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let blocks = check_length(&self.info, lba, data.len(), TRANSFER_BLOCKS_MAX)?;
        let _lock = self.lock(lba, blocks, Mode::Exclusive).await;
        let ticket = self.manager.write(lba.0 as u32, data, self.heat.get()).await?;
        self.stable(ticket, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.manager.flush().await
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let blocks = check_length(&self.info, lba, expected.len(), TRANSFER_BLOCKS_MAX)?;
        let _lock = self.lock(lba, blocks, Mode::Shared).await;
        self.holds(lba, &expected).await
    }

    async fn compare_and_write(
        &self,
        lba: Lba,
        expected: View,
        new: View,
        durability: Durability,
    ) -> Result<(), Error> {
        let blocks = check_halves(&self.info, lba, expected.len(), new.len())?;
        let _lock = self.lock(lba, blocks, Mode::Exclusive).await;
        self.holds(lba, &expected).await?;
        let ticket = self.manager.write(lba.0 as u32, new, self.heat.get()).await?;
        self.stable(ticket, durability).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.deallocate_range(lba, blocks, durability).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.deallocate_range(lba, blocks, Durability::Cached).await
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let bytes = blocks.saturating_mul(SECTOR_BYTES as u64).min(usize::MAX as u64) as usize;
        check_length(&self.info, lba, bytes, TRANSFER_BLOCKS_MAX)?;
        let _lock = self.lock(lba, blocks, Mode::Exclusive).await;
        let ticket = self.manager.deallocate(lba.0 as u32, blocks as u32, true).await?;
        self.manager.flush_to(ticket).await
    }

    async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
        self.heat.set(match lifetime {
            Lifetime::Short => Heat::Hot,
            Lifetime::Medium | Lifetime::Long => Heat::Cold,
        });
        true
    }

    fn writability(&self) -> Writability {
        let has_failed = self.manager.failure().is_some() || self.manager.figures().is_read_only;
        if has_failed { Writability::Failed } else { Writability::Writable }
    }

    fn used_blocks(&self) -> u64 {
        self.manager.used()
    }

    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.manager.attribute(key))
    }

    async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        self.manager.set_attribute(key, value).await
    }
}
