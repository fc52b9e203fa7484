//! [`SnapshotView`]: a snapshot of a volume, as a [`Namespace`] that takes no writes.
//!
//! Invariants:
//! - Read is what the record names: a copy of the tag at a holder that has it, with the life that the record says.
//! - All copies have the same bytes, so a read is answered by any of them, and goes on to the next one where one fails.
//! - The size is that of the moment: the copy's own record, as a part of it, says so.

use std::cell::RefCell;
use std::rc::Rc;

use device::{Durability, Error as DeviceError, Lba, Link, Namespace, NamespaceInfo, Writability};
use engine::task::LocalFuture;
use engine::{Buf, View};
use fabric::host::{AnyRemote, CopyTag};

use crate::blocks::{read_block, read_label};
use crate::error::Error;
use crate::label::{Life, RECORD_BLOCK, REPLICAS_MAX};
use crate::reach::Reach;
use crate::record::{Record, RecordBlock, Set};
use crate::snapshot_name::SnapshotName;

const READ_ONLY: DeviceError = DeviceError::ReadOnly("it is a snapshot");

/// One copy.
#[derive(Clone)]
struct Opened {
    namespace: AnyRemote,
    data_first: u64,
    blocks: u64,
}

/// See the module.
pub struct SnapshotView {
    reaches: Vec<Rc<dyn Reach>>,
    /// Who has it.
    slots: Set,
    volume: u128,
    tag: CopyTag,
    lives: [Life; REPLICAS_MAX],
    info: NamespaceInfo,
    open: RefCell<[Option<Opened>; REPLICAS_MAX]>,
}

impl SnapshotView {
    /// The snapshot of a volume that its record names. One copy has to be reached; another one is looked for when that fails.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]: the record does not name it. Else what the last one says of those that have it.
    pub fn open(
        reaches: Vec<Rc<dyn Reach>>,
        volume: u128,
        record: &Record,
        name: SnapshotName,
    ) -> LocalFuture<'static, Result<SnapshotView, Error>> {
        let (slots, lives) = (record.snapshot(name), record.lives);
        Box::pin(async move {
            let unknown = || Error::NoSuchSnapshot { holder: format!("volume {volume:032x}") };
            let tag = name.tag(volume).ok_or_else(unknown)?;
            let mut last = unknown();
            for slot in slots.iter().filter(|&slot| slot < reaches.len()) {
                match open(&*reaches[slot], slot, (volume, lives[slot]), tag).await {
                    Ok(copy) => {
                        let info = info(&copy, tag);
                        let copies = std::array::from_fn(|at| (at == slot).then(|| copy.clone()));
                        let open = RefCell::new(copies);
                        return Ok(SnapshotView { reaches, slots, volume, tag, lives, info, open });
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        })
    }

    /// The copy of a slot.
    async fn copy(&self, slot: usize) -> Result<Opened, DeviceError> {
        let known = self.open.borrow()[slot].clone();
        if let Some(copy) = known.filter(|copy| copy.namespace.link().is_up) {
            return Ok(copy);
        }
        let holder = (self.volume, self.lives[slot]);
        let opened = open(&*self.reaches[slot], slot, holder, self.tag).await;
        let copy = opened.map_err(|error| DeviceError::NotConnected(error.to_string()))?;
        if copy.blocks != self.info.blocks {
            return Err(DeviceError::ReadFault(format!("{} has another size", self.reaches[slot].name())));
        }
        self.open.borrow_mut()[slot] = Some(copy.clone());
        Ok(copy)
    }

    /// Has one copy after the other try, those first that are there already.
    async fn try_each<T>(&self, mut with: impl AsyncFnMut(Opened) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let there = Set::of(REPLICAS_MAX, |slot| {
            self.open.borrow()[slot].as_ref().is_some_and(|copy| copy.namespace.link().is_up)
        });
        let mut last = DeviceError::NotConnected("any copy of the snapshot".to_owned());
        for slot in there.iter().chain(self.slots.without(there).iter()) {
            let done = match self.copy(slot).await {
                Ok(copy) => with(copy).await,
                Err(error) => Err(error),
            };
            match done {
                Ok(done) => return Ok(done),
                Err(error) => {
                    tracing::warn!(slot, %error, "a copy of a snapshot can't be read: another one is asked");
                    last = error;
                }
            }
        }
        Err(last)
    }

    fn check_range(&self, lba: Lba, blocks: u64) -> Result<(), DeviceError> {
        let end = self.info.blocks;
        match lba.0.checked_add(blocks) {
            Some(last) if last <= end => Ok(()),
            _ => Err(DeviceError::OutOfRange { lba, blocks, end }),
        }
    }

    fn check_length(&self, lba: Lba, bytes: usize) -> Result<(), DeviceError> {
        let block_size = self.info.block_size;
        let bytes_max = self.info.transfer_blocks_max as usize * block_size as usize;
        if bytes == 0 || !bytes.is_multiple_of(block_size as usize) || bytes > bytes_max {
            return Err(DeviceError::InvalidLength { bytes, block_size, bytes_max });
        }
        self.check_range(lba, (bytes / block_size as usize) as u64)
    }

    async fn read_checked(&self, lba: Lba, bytes: usize) -> Result<Buf, DeviceError> {
        self.try_each(async |copy| {
            let (read, buf) = copy.namespace.read(Lba(copy.data_first + lba.0), Buf::with_len(bytes)).await;
            read.map(|()| buf)
        })
        .await
    }
}

async fn open(reach: &dyn Reach, slot: usize, (volume, life): (u128, Life), tag: CopyTag) -> Result<Opened, Error> {
    let holder = reach.name();
    let namespace = reach.look_at_snapshot(tag).await?;
    let label = read_label(&namespace, &holder).await?;
    if label.shape.volume != volume || usize::from(label.slot) != slot || label.life != life {
        return Err(Error::OtherVolume { holder, volume: label.shape.volume, slot: label.slot });
    }
    let bytes = read_block(&namespace, RECORD_BLOCK).await;
    let bytes = bytes.map_err(|source| Error::Device { holder: holder.clone(), source })?;
    let record = RecordBlock::decode(&bytes, label.life);
    let record = record.map_err(|source| Error::Record { holder, source })?.accepted;
    Ok(Opened { namespace, data_first: label.data_first, blocks: record.size(label.shape.blocks) })
}

/// What it is, over a copy: identified by the part of the tag that is the name.
fn info(copy: &Opened, tag: CopyTag) -> NamespaceInfo {
    let mut nguid = [0; 16];
    nguid.copy_from_slice(&tag.0[16..]);
    NamespaceInfo {
        blocks: copy.blocks,
        compare_and_write_blocks_max: 0,
        volatile_cache: false,
        write_uncorrectable: false,
        persists_attributes: false,
        nguid,
        ..copy.namespace.info()
    }
}

impl Namespace for SnapshotView {
    device::namespace_without!(used_blocks, attributes);

    fn info(&self) -> NamespaceInfo {
        self.info.clone()
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), DeviceError>, Buf) {
        if let Err(error) = self.check_length(lba, buf.len()) {
            return (Err(error), buf);
        }
        match self.read_checked(lba, buf.len()).await {
            Ok(read) => (Ok(()), read),
            Err(error) => (Err(error), buf),
        }
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), DeviceError> {
        self.check_length(lba, expected.len())?;
        let found = self.read_checked(lba, expected.len()).await?;
        if found[..] == expected[..] { Ok(()) } else { Err(DeviceError::CompareFailure) }
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), DeviceError> {
        self.check_range(lba, blocks)?;
        self.try_each(async |copy| copy.namespace.verify(Lba(copy.data_first + lba.0), blocks).await).await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn write(&self, _lba: Lba, _data: View, _durability: Durability) -> Result<(), DeviceError> {
        Err(READ_ONLY)
    }

    async fn compare_and_write(
        &self,
        _lba: Lba,
        _expected: View,
        _new: View,
        _durability: Durability,
    ) -> Result<(), DeviceError> {
        Err(READ_ONLY)
    }

    async fn write_zeroes(&self, _lba: Lba, _blocks: u64, _durability: Durability) -> Result<(), DeviceError> {
        Err(READ_ONLY)
    }

    async fn deallocate(&self, _lba: Lba, _blocks: u64) -> Result<(), DeviceError> {
        Err(READ_ONLY)
    }

    async fn write_uncorrectable(&self, _lba: Lba, _blocks: u64) -> Result<(), DeviceError> {
        Err(READ_ONLY)
    }

    async fn hint_lifetime(&self, _lifetime: engine::file::Lifetime) -> bool {
        false
    }

    fn writability(&self) -> Writability {
        Writability::ReadOnly
    }

    fn link(&self) -> Link {
        Link::LASTING
    }
}
