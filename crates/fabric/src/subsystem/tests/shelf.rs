//! Copies of what stands on a shelf.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::drive::Differences;
use device::{AnyNamespace, Durability, Error, Lba, Memory, Namespace, Writability};
use engine::task::LocalFuture;
use engine::{Buf, View};
use nvme::extension::CopyKind;

use super::BLOCK;
use super::changes::{Slow, released};
use super::management::Shelf;
use crate::subsystem::{ATTACHMENT_ATTRIBUTE, CopyStore, NewCopy, StoreError};

/// A snapshot on the shelf.
struct ReadOnly(Arc<Memory>);

const READ_ONLY: Error = Error::ReadOnly("a snapshot");

impl Namespace for ReadOnly {
    device::delegate_namespace!(this => { ReadOnly(memory) => memory };
        info, read, flush, compare, verify, hint_lifetime, used_blocks, link, attribute, set_attribute, zones);

    async fn write(&self, _: Lba, _: View, _: Durability) -> Result<(), Error> {
        Err(READ_ONLY)
    }

    async fn compare_and_write(&self, _: Lba, _: View, _: View, _: Durability) -> Result<(), Error> {
        Err(READ_ONLY)
    }

    async fn write_zeroes(&self, _: Lba, _: u64, _: Durability) -> Result<(), Error> {
        Err(READ_ONLY)
    }

    async fn deallocate(&self, _: Lba, _: u64) -> Result<(), Error> {
        Err(READ_ONLY)
    }

    async fn write_uncorrectable(&self, _: Lba, _: u64) -> Result<(), Error> {
        Err(READ_ONLY)
    }

    fn writability(&self) -> Writability {
        Writability::ReadOnly
    }
}

impl Shelf {
    fn find(&self, nguid: [u8; 16]) -> Result<Arc<Memory>, StoreError> {
        let all = self.namespaces.lock().unwrap();
        all.iter().find(|one| one.info().nguid == nguid).cloned().ok_or(StoreError::Unknown)
    }
}

async fn content(memory: &Memory) -> View {
    let bytes = memory.info().bytes() as usize;
    let (read, buf) = memory.read(Lba(0), Buf::with_len(bytes)).await;
    read.expect("memory can be read");
    buf.freeze()
}

impl CopyStore for Shelf {
    fn copy<'a>(&'a self, wanted: NewCopy<'a>) -> LocalFuture<'a, Result<AnyNamespace, StoreError>> {
        Box::pin(async move {
            released(&self.held).await;
            self.check()?;
            let source = self.find(wanted.source)?;
            let info = source.info();
            let nguid = (u128::from(self.copied.fetch_add(1, Ordering::Relaxed)) + (1 << 64)).to_be_bytes();
            let made = Arc::new(Memory::new(info.bytes(), info.block_size, nguid).expect("as its source"));
            made.write(Lba(0), content(&source).await, Durability::Stable).await?;
            made.set_attribute(ATTACHMENT_ATTRIBUTE, wanted.record).await?;
            self.namespaces.lock().unwrap().push(made.clone());
            Ok(match wanted.kind {
                CopyKind::Snapshot => AnyNamespace::other(Arc::new(ReadOnly(made))),
                CopyKind::Clone => AnyNamespace::other(Arc::new(Slow { memory: made, held: self.held.clone() })),
            })
        })
    }

    fn grow<'a>(&'a self, _: [u8; 16], _: u64) -> LocalFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { Err(StoreError::NoRoom("memory does not grow".into())) })
    }

    /// Block by block, and two of them at a look.
    fn differences(
        &self,
        newer: [u8; 16],
        base: Option<[u8; 16]>,
        from: u64,
        _: usize,
    ) -> Result<Differences, StoreError> {
        let of =
            |nguid| self.find(nguid).map(|found| crate::fuzz::poll_once(content(&found)).expect("memory never waits"));
        let newer = of(newer)?;
        let base = base.map_or(Ok(Buf::zeroed(newer.len()).freeze()), of)?;
        let differ =
            (from as usize..newer.len()).step_by(BLOCK).filter(|&at| newer[at..at + BLOCK] != base[at..at + BLOCK]);
        let mut ranges: Vec<_> = differ.map(|at| at as u64..(at + BLOCK) as u64).collect();
        let next = ranges.get(2).map(|range| range.start);
        ranges.truncate(2);
        Ok(Differences { ranges, next })
    }
}
