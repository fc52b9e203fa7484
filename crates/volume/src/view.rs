//! [`SnapshotView`]: a snapshot of a volume, as a [`Namespace`] that takes no writes.
//!
//! Invariants:
//! - Read is what the record names: a copy of the tag at a holder that has it, with the life that the record says.
//! - All copies have the same bytes, so a read is answered by any of them, and goes on to the next one where one fails.
//! - The size is that of the moment: the copy's own record, as a part of it, says so.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use device::{Durability, Error as DeviceError, Lba, Link, Namespace, NamespaceInfo, Writability};
use engine::task::LocalFuture;
use engine::{Buf, View};
use fabric::host::{AnyRemote, CopyTag};

use crate::blocks::{read_block, read_label};
use crate::error::Error;
use crate::label::{Life, RECORD_BLOCK, REPLICAS_MAX};
use crate::origin::Origin;
use crate::reach::Reach;
use crate::record::{Record, RecordBlock, Set, Snapshot};
use crate::snapshot_name::{SnapshotId, SnapshotName};

const READ_ONLY: DeviceError = DeviceError::ReadOnly("it is a snapshot");

/// One copy.
#[derive(Clone)]
struct Opened {
    namespace: AnyRemote,
    data_first: u64,
    blocks: u64,
    /// Of what the volume was a copy at that moment.
    origin: Option<Origin>,
}

/// See the module.
pub struct SnapshotView {
    reaches: Vec<Rc<dyn Reach>>,
    /// Who has it.
    slots: Set,
    id: SnapshotId,
    tag: CopyTag,
    /// The lives of the holders, where a record says them.
    lives: Option<[Life; REPLICAS_MAX]>,
    info: NamespaceInfo,
    part: Option<Origin>,
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
        let snapshot = Snapshot { name, slots: record.snapshot(name) };
        let opened = SnapshotView::open_of(reaches, volume, snapshot, Some(record.lives));
        // The record that says that an import is at its end comes with the own snapshot, which has the one from before.
        let is_own = record.origin.and_then(|origin| origin.own()) == Some(name);
        Box::pin(async move {
            let opened = opened.await?;
            Ok(SnapshotView { part: opened.part.filter(|_| !is_own), ..opened })
        })
    }

    /// The snapshot of a volume that a catalogue has written down: which replicas have it. (A tag is given once, so that a copy
    /// with the tag is the one that was named, in whatever life the replica was.)
    ///
    /// # Errors
    /// As [`SnapshotView::open`].
    pub fn noted(
        reaches: Vec<Rc<dyn Reach>>,
        volume: u128,
        snapshot: Snapshot,
    ) -> LocalFuture<'static, Result<SnapshotView, Error>> {
        SnapshotView::open_of(reaches, volume, snapshot, None)
    }

    fn open_of(
        reaches: Vec<Rc<dyn Reach>>,
        volume: u128,
        Snapshot { name, slots }: Snapshot,
        lives: Option<[Life; REPLICAS_MAX]>,
    ) -> LocalFuture<'static, Result<SnapshotView, Error>> {
        Box::pin(async move {
            let unknown = || Error::NoSuchSnapshot { holder: format!("volume {volume:032x}") };
            let tag = name.tag(volume).ok_or_else(unknown)?;
            let mut last = unknown();
            for slot in slots.iter().filter(|&slot| slot < reaches.len()) {
                match open(&*reaches[slot], slot, (volume, lives.map(|lives| lives[slot])), tag).await {
                    Ok(copy) => {
                        let info = info(&copy, tag);
                        let copies = std::array::from_fn(|at| (at == slot).then(|| copy.clone()));
                        let open = RefCell::new(copies);
                        let id = SnapshotId { volume, name };
                        let part = copy.origin.filter(|origin| matches!(origin, Origin::InPart { .. }));
                        return Ok(SnapshotView { reaches, slots, id, tag, lives, info, part, open });
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        })
    }

    /// See [`crate::Volume::has_lost`].
    pub(crate) async fn is_lost(
        reaches: Vec<Rc<dyn Reach>>,
        volume: u128,
        record: &Record,
        (name, gone): (SnapshotName, Set),
    ) -> bool {
        let Some(tag) = name.tag(volume) else { return false };
        for slot in record.snapshot(name).without(gone).iter().filter(|&slot| slot < reaches.len()) {
            match open(&*reaches[slot], slot, (volume, Some(record.lives[slot])), tag).await {
                Err(Error::NoSuchSnapshot { .. } | Error::OtherVolume { .. }) => {}
                _ => return false,
            }
        }
        true
    }

    /// Which snapshot it is.
    pub fn id(&self) -> SnapshotId {
        self.id
    }

    /// Of what the volume was a part when the snapshot was taken; `None`: it was no part.
    pub(crate) fn part(&self) -> Option<Origin> {
        self.part
    }

    /// Ranges of blocks in which the snapshot may differ from another one of the same volume (`None`: from zeroes), ascending, as a
    /// target says that has both; elsewhere they are the same. `None`: no target that is reached has both and can tell.
    pub fn differences<'a>(&'a self, base: Option<&'a SnapshotView>) -> LocalFuture<'a, Option<Vec<Range<u64>>>> {
        Box::pin(async move {
            for slot in self.slots.iter() {
                let Ok(newer) = self.copy(slot).await else { continue };
                let found = match told(&newer.namespace, newer.data_first, base, slot).await {
                    Ok(found) => self.check_still(slot, &newer).await.map(|()| found),
                    Err(error) => Err(error),
                };
                match found {
                    Ok(found) => return Some(within(found, newer.data_first, self.info.blocks)),
                    Err(error) => tracing::debug!(slot, %error, "a target can't tell where two snapshots differ"),
                }
            }
            None
        })
    }

    /// The copy of a slot.
    async fn copy(&self, slot: usize) -> Result<Opened, DeviceError> {
        let known = self.open.borrow()[slot].clone();
        if let Some(copy) = known.filter(|copy| copy.namespace.link().is_up) {
            return Ok(copy);
        }
        let holder = (self.id.volume, self.lives.map(|lives| lives[slot]));
        let opened = open(&*self.reaches[slot], slot, holder, self.tag).await;
        let copy = opened.map_err(|error| DeviceError::NotConnected(error.to_string()))?;
        if copy.blocks != self.info.blocks {
            return Err(DeviceError::ReadFault(format!("{} has another size", self.reaches[slot].name())));
        }
        self.open.borrow_mut()[slot] = Some(copy.clone());
        Ok(copy)
    }

    /// A number is given again when its copy is deleted: what was said is of this copy if that is there still.
    async fn check_still(&self, slot: usize, asked: &Opened) -> Result<(), DeviceError> {
        self.open.borrow_mut()[slot] = None;
        match self.copy(slot).await?.namespace.info().nguid == asked.namespace.info().nguid {
            true => Ok(()),
            false => Err(DeviceError::NotConnected("the copy that was asked".to_owned())),
        }
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

async fn open(
    reach: &dyn Reach,
    slot: usize,
    (volume, life): (u128, Option<Life>),
    tag: CopyTag,
) -> Result<Opened, Error> {
    let holder = reach.name();
    let namespace = reach.look_at_snapshot(tag).await?;
    let label = read_label(&namespace, &holder).await?;
    if label.shape.volume != volume || usize::from(label.slot) != slot || life.is_some_and(|life| label.life != life) {
        return Err(Error::OtherVolume { holder, volume: label.shape.volume, slot: label.slot });
    }
    let bytes = read_block(&namespace, RECORD_BLOCK).await;
    let bytes = bytes.map_err(|source| Error::Device { holder: holder.clone(), source })?;
    let record = RecordBlock::decode(&bytes, label.life);
    let record = record.map_err(|source| Error::Record { holder, source })?.accepted;
    let (data_first, blocks) = (label.data_first, record.size(label.shape.blocks));
    Ok(Opened { namespace, data_first, blocks, origin: record.origin })
}

/// Where a namespace of a slot's target may differ from the slot's copy of a snapshot, in blocks of the namespace.
pub(crate) async fn told(
    newer: &AnyRemote,
    data_first: u64,
    base: Option<&SnapshotView>,
    slot: usize,
) -> Result<Vec<Range<u64>>, DeviceError> {
    let Some(base) = base else { return newer.differences(None).await };
    if !base.slots.has(slot) {
        return Err(DeviceError::Unsupported("differences from a snapshot that the replica has not"));
    }
    let before = base.copy(slot).await?;
    if before.data_first != data_first {
        return Err(DeviceError::Unsupported("differences of namespaces that were formatted anew in between"));
    }
    let found = newer.differences(Some(&before.namespace)).await?;
    base.check_still(slot, &before).await.map(|()| found)
}

/// What of ranges of a namespace is the volume's, in blocks of the volume.
pub(crate) fn within(ranges: Vec<Range<u64>>, data_first: u64, blocks: u64) -> Vec<Range<u64>> {
    let of_volume = |lba: u64| lba.saturating_sub(data_first).min(blocks);
    let ranges = ranges.into_iter().map(|range| of_volume(range.start)..of_volume(range.end));
    ranges.filter(|range| !range.is_empty()).collect()
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
    device::namespace_without!(used_blocks, attributes, zones);

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
