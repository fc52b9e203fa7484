//! Bytes over blocks: an export is a namespace as clients of the protocol see it.
//!
//! Invariants:
//! - What is acknowledged with FUA is stable, and so is everything acknowledged before a flush, on whatever connection.
//! - A write that begins or ends within a block changes its own bytes alone, also beside others who write the same block, here or
//!   over another path: the block is replaced by compare-and-write.

use std::cell::OnceCell;

use device::{AnyNamespace, Durability, Error, Lba, Namespace, TRANSFER_BYTES_MAX, Writability};
use engine::{Buf, View};

use crate::wire::{Errno, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, transmission};

/// How often a block is read anew because others write to it. Guessed: each failure is a write of somebody else that succeeded.
const MERGES_MAX: usize = 1000;

/// Why a command failed: what the protocol has a number for, and words for those who take them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    pub errno: Errno,
    pub reason: String,
}

impl Failed {
    pub fn new(errno: Errno, reason: impl Into<String>) -> Failed {
        Failed { errno, reason: reason.into() }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        let errno = match &error {
            Error::OutOfRange { .. } | Error::InvalidLength { .. } => Errno::Invalid,
            Error::ReadOnly(_) | Error::Reserved(_) => Errno::NotPermitted,
            Error::Unsupported(_) => Errno::NotSupported,
            Error::OutOfSpace => Errno::NoSpace,
            _ => Errno::Io,
        };
        Failed::new(errno, error.to_string())
    }
}

/// A part of a range of bytes: whole blocks, or bytes within one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub offset: u64,
    pub bytes: usize,
}

/// A namespace under a name.
pub struct Export {
    name: String,
    description: String,
    namespace: AnyNamespace,
    read_only: bool,
    /// As many as one part has, made when they are first needed.
    zeroes: OnceCell<View>,
}

impl Export {
    /// Exports `namespace` as `name` (empty: clients need not give one).
    ///
    /// # Panics
    /// If a text has more than [`NAME_BYTES_MAX`] bytes.
    pub fn new(name: &str, description: &str, namespace: AnyNamespace, read_only: bool) -> Export {
        assert!(name.len() <= NAME_BYTES_MAX && description.len() <= NAME_BYTES_MAX, "a text of the protocol is short");
        Export { name: name.into(), description: description.into(), namespace, read_only, zeroes: OnceCell::new() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.namespace.info().bytes()
    }

    fn is_read_only(&self) -> bool {
        self.read_only || self.namespace.writability() != Writability::Writable
    }

    /// The transmission flags.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        use transmission as flag;
        // A flush is one of the namespace, so of all connections.
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        match self.is_read_only() {
            true => flags |= flag::READ_ONLY,
            false => flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES,
        }
        // A reply is one chunk in any case.
        flags | if structured { flag::SEND_DF } else { 0 }
    }

    /// Least, preferred and largest size of what clients ask for, bytes.
    pub(crate) fn block_sizes(&self) -> [u32; 3] {
        let info = self.namespace.info();
        let preferred = info.block_size.saturating_mul(info.preferred_write_blocks).clamp(4096, PAYLOAD_BYTES_MAX);
        [info.block_size, preferred.next_power_of_two(), PAYLOAD_BYTES_MAX]
    }

    /// The parts of a range, in order: as few as there can be.
    pub(crate) fn parts(&self, mut offset: u64, mut bytes: u64) -> impl Iterator<Item = Part> + use<> {
        let info = self.namespace.info();
        let block = u64::from(info.block_size);
        let most = (TRANSFER_BYTES_MAX as u64 / block).min(info.transfer_blocks_max.into()) * block;
        std::iter::from_fn(move || {
            let into = offset % block;
            let take =
                if into > 0 || bytes < block { bytes.min(block - into) } else { (bytes / block * block).min(most) };
            let part = Part { offset, bytes: take as usize };
            (offset, bytes) = (offset + take, bytes - take);
            (take > 0).then_some(part)
        })
    }

    fn is_whole(&self, part: Part) -> bool {
        let block = u64::from(self.namespace.info().block_size);
        part.offset.is_multiple_of(block) && (part.bytes as u64).is_multiple_of(block)
    }

    fn lba(&self, offset: u64) -> Lba {
        Lba(offset / u64::from(self.namespace.info().block_size))
    }

    /// Whether a range is there.
    pub(crate) fn check(&self, offset: u64, bytes: u64) -> Result<(), Failed> {
        let end = self.bytes();
        match offset.checked_add(bytes) {
            Some(last) if last <= end => Ok(()),
            _ => Err(Failed::new(Errno::Invalid, format!("{bytes} bytes from {offset} lie beyond the end at {end}"))),
        }
    }

    /// Whether a range may be written.
    pub(crate) fn check_write(&self, offset: u64, bytes: u64) -> Result<(), Failed> {
        if self.is_read_only() {
            return Err(Failed::new(Errno::NotPermitted, "the export is read-only"));
        }
        // As the protocol wants it: what lies beyond the end is room that is not there.
        self.check(offset, bytes).map_err(|failed| Failed { errno: Errno::NoSpace, ..failed })
    }

    /// Reads a range, which is there.
    pub(crate) async fn read(&self, offset: u64, bytes: u64) -> Result<Vec<View>, Failed> {
        let mut views = Vec::new();
        for part in self.parts(offset, bytes) {
            views.push(self.read_part(part).await?);
        }
        Ok(views)
    }

    async fn read_part(&self, part: Part) -> Result<View, Failed> {
        let block = self.namespace.info().block_size as usize;
        let into = (part.offset % block as u64) as usize;
        let buf = Buf::with_len(part.bytes.next_multiple_of(block));
        let (result, buf) = self.namespace.read(self.lba(part.offset), buf).await;
        result?;
        Ok(buf.freeze().slice(into..into + part.bytes))
    }

    /// Writes a part, which may be written.
    pub(crate) async fn write(&self, part: Part, data: View, durability: Durability) -> Result<(), Failed> {
        if self.is_whole(part) {
            return Ok(self.namespace.write(self.lba(part.offset), data, durability).await?);
        }
        self.merge(part, &data, durability).await
    }

    /// Replaces bytes within a block.
    async fn merge(&self, part: Part, data: &[u8], durability: Durability) -> Result<(), Failed> {
        let info = self.namespace.info();
        if info.compare_and_write_blocks_max == 0 {
            let reason = format!("the export takes whole blocks of {} bytes alone", info.block_size);
            return Err(Failed::new(Errno::Invalid, reason));
        }
        let (block, lba) = (info.block_size as usize, self.lba(part.offset));
        let into = (part.offset % block as u64) as usize;
        for _ in 0..MERGES_MAX {
            let (result, old) = self.namespace.read(lba, Buf::with_len(block)).await;
            result?;
            let mut new = Buf::copy_from(&old);
            new[into..into + part.bytes].copy_from_slice(data);
            match self.namespace.compare_and_write(lba, old.freeze(), new.freeze(), durability).await {
                Err(Error::CompareFailure) => {}
                written => return Ok(written?),
            }
        }
        Err(Failed::new(Errno::Io, "others write to the same block all the time"))
    }

    /// Makes a range read as zeroes; `allocated`: writes to it later must find room.
    pub(crate) async fn zero(
        &self,
        offset: u64,
        bytes: u64,
        allocated: bool,
        durability: Durability,
    ) -> Result<(), Failed> {
        let info = self.namespace.info();
        let block = u64::from(info.block_size);
        let (first, last) = self.whole_blocks(offset, bytes);
        if allocated && info.thin || first == last {
            return self.write_zeroes_as_data(offset, bytes, durability).await;
        }
        self.write_zeroes_as_data(offset, first * block - offset, durability).await?;
        self.namespace.write_zeroes(Lba(first), last - first, durability).await?;
        self.write_zeroes_as_data(last * block, offset + bytes - last * block, durability).await
    }

    async fn write_zeroes_as_data(&self, offset: u64, bytes: u64, durability: Durability) -> Result<(), Failed> {
        let zeroes = self.zeroes.get_or_init(|| Buf::zeroed(TRANSFER_BYTES_MAX).freeze());
        for part in self.parts(offset, bytes) {
            self.write(part, zeroes.slice(..part.bytes), durability).await?;
        }
        Ok(())
    }

    /// Says that a range's content is no longer needed: of the blocks that lie in it whole.
    pub(crate) async fn trim(&self, offset: u64, bytes: u64, durability: Durability) -> Result<(), Failed> {
        let (first, last) = self.whole_blocks(offset, bytes);
        if first < last {
            self.namespace.deallocate(Lba(first), last - first).await?;
        }
        // A deallocation has no flag of its own for that.
        if durability == Durability::Stable { self.flush().await } else { Ok(()) }
    }

    /// The blocks that lie in a range whole; first and last are equal where there are none.
    fn whole_blocks(&self, offset: u64, bytes: u64) -> (u64, u64) {
        let block = u64::from(self.namespace.info().block_size);
        let (first, last) = (offset.div_ceil(block), (offset + bytes) / block);
        (first, last.max(first))
    }

    /// Makes all that was acknowledged stable.
    pub(crate) async fn flush(&self) -> Result<(), Failed> {
        Ok(self.namespace.flush().await?)
    }
}
