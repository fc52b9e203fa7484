//! [`Memory`]: a namespace whose medium is this process's memory.
//!
//! Invariants:
//! - A command locks every stripe it touches, in ascending order, before it touches the first, and copies without awaiting:
//!   so it is atomic towards every other command, from any thread, and no cycle of waiters can form.
//!   (Write zeroes and deallocate go stripe by stripe where they are longer than the atomic size.)
//! - A stripe that was never written, or was deallocated whole, owns no memory and reads as zeroes.
//!
//! The copy under a stripe's lock is the one copy of the payload: this memory is the medium.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use engine::buf::ALIGN;
use engine::{Buf, View};

use crate::attributes::Volatile;
use crate::limits::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, COMPARE_AND_WRITE_BYTES_MAX, TRANSFER_BYTES_MAX, check_halves, check_length,
    check_range,
};
use crate::uncorrectable::Uncorrectable;
use crate::{Durability, Error, Lba, Namespace, NamespaceInfo};

/// Bytes per stripe. Guessed: long enough that usual commands touch one, short enough that two threads seldom meet in one.
const STRIPE_BYTES: usize = 256 << 10;
/// Stripes that one atomic command can touch.
const STRIPES_PER_COMMAND_MAX: usize = TRANSFER_BYTES_MAX / STRIPE_BYTES + 1;
/// The largest memory namespace: its table of empty stripes then takes about 40 MiB. Derived from that.
pub const MEMORY_BYTES_MAX: u64 = 256 << 30;

const _: () = assert!(STRIPE_BYTES.is_multiple_of(BLOCK_SIZE_MAX as usize), "a block lies in one stripe");
const _: () = assert!(TRANSFER_BYTES_MAX.is_multiple_of(STRIPE_BYTES), "or one more stripe could be touched");

/// Bytes of one stripe; none: all zeroes.
type Stripe = Option<Content>;

/// [`STRIPE_BYTES`] of memory, aligned as a [`Buf`] is, zeroed by the page when it is first touched.
///
/// On some processors (AMD's Zen 3 is one) a copy whose target lies up to 63 bytes behind its source, modulo a page, takes five
/// times as long as any other; and the allocator puts its own 16 bytes in front of what it hands out.
#[derive(Debug)]
struct Content {
    /// The bytes, and room to align them: never touched, so it takes no memory.
    memory: Box<[u8]>,
    begin: usize,
}

impl Content {
    fn zeroed() -> Content {
        let memory = vec![0; STRIPE_BYTES + ALIGN].into_boxed_slice();
        let begin = memory.as_ptr().addr().wrapping_neg() % ALIGN;
        Content { memory, begin }
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.begin..][..STRIPE_BYTES]
    }
}

impl DerefMut for Content {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..][..STRIPE_BYTES]
    }
}

/// A namespace in memory; share it between threads by `Arc`.
#[derive(Debug)]
pub struct Memory {
    stripes: Vec<RwLock<Stripe>>,
    info: NamespaceInfo,
    /// Looked at and changed under the locks of the stripes concerned.
    uncorrectable: Uncorrectable,
    attributes: Volatile,
}

/// Why a memory namespace could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// The block size is none that exists.
    #[error("block size {0}: must be a power of two from {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX}")]
    BlockSize(u32),
    /// The size is zero, too large or no multiple of the block size.
    #[error(
        "memory namespace of {bytes} bytes: must be a multiple of {block_size}, from one block to {MEMORY_BYTES_MAX} bytes"
    )]
    Size {
        /// Bytes asked for.
        bytes: u64,
        /// Block size asked for.
        block_size: u32,
    },
}

/// Where a part of a command lies: bytes `within` of stripe `stripe`, bytes `at` of the payload.
struct Piece {
    stripe: usize,
    within: std::ops::Range<usize>,
    at: std::ops::Range<usize>,
}

impl Memory {
    /// A namespace of `bytes` zeroes. `nguid` is its identity: fresh for a fresh namespace ([`crate::random_nguid`]), since
    /// with the same one a host would take it for the old content come back.
    pub fn new(bytes: u64, block_size: u32, nguid: [u8; 16]) -> Result<Memory, MemoryError> {
        if !block_size.is_power_of_two() || !(BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&block_size) {
            return Err(MemoryError::BlockSize(block_size));
        }
        if bytes == 0 || bytes > MEMORY_BYTES_MAX || !bytes.is_multiple_of(u64::from(block_size)) {
            return Err(MemoryError::Size { bytes, block_size });
        }
        let count = bytes.div_ceil(STRIPE_BYTES as u64) as usize;
        let transfer_blocks_max = TRANSFER_BYTES_MAX as u32 / block_size;
        let info = NamespaceInfo {
            block_size,
            blocks: bytes / u64::from(block_size),
            atomic_blocks: transfer_blocks_max,
            compare_and_write_blocks_max: COMPARE_AND_WRITE_BYTES_MAX as u32 / block_size,
            transfer_blocks_max,
            volatile_cache: false,
            volatile_medium: true,
            deallocated_reads_zero: true,
            thin: true,
            preferred_write_blocks: 1,
            preferred_deallocate_blocks: (STRIPE_BYTES as u32 / block_size).max(1),
            write_uncorrectable: true,
            persists_attributes: false,
            nguid,
        };
        Ok(Memory {
            stripes: std::iter::repeat_with(RwLock::default).take(count).collect(),
            info,
            uncorrectable: Uncorrectable::default(),
            attributes: Volatile::default(),
        })
    }

    /// Bytes of memory in use for content.
    pub fn allocated_bytes(&self) -> u64 {
        let allocated = self.stripes.iter().filter(|stripe| read(stripe).is_some()).count();
        (allocated * STRIPE_BYTES) as u64
    }

    /// The pieces of `len` bytes at `lba`, ascending.
    fn pieces(&self, lba: Lba, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let start = lba.0 * u64::from(self.info.block_size);
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = len - done;
            let (stripe, offset) =
                ((start + done) / STRIPE_BYTES as u64, ((start + done) % STRIPE_BYTES as u64) as usize);
            let take = left.min((STRIPE_BYTES - offset) as u64) as usize;
            let at = done as usize..done as usize + take;
            done += take as u64;
            (take > 0).then(|| Piece { stripe: stripe as usize, within: offset..offset + take, at })
        })
    }

    /// The stripes of an atomic command, all locked for reading.
    fn lock_shared(
        &self,
        lba: Lba,
        len: usize,
    ) -> [Option<(Piece, RwLockReadGuard<'_, Stripe>)>; STRIPES_PER_COMMAND_MAX] {
        let mut pieces = self.pieces(lba, len as u64);
        std::array::from_fn(|_| {
            let piece = pieces.next()?;
            let stripe = read(&self.stripes[piece.stripe]);
            Some((piece, stripe))
        })
    }

    /// The stripes of an atomic command, all locked for writing.
    fn lock_exclusive(
        &self,
        lba: Lba,
        len: usize,
    ) -> [Option<(Piece, RwLockWriteGuard<'_, Stripe>)>; STRIPES_PER_COMMAND_MAX] {
        let mut pieces = self.pieces(lba, len as u64);
        std::array::from_fn(|_| {
            let piece = pieces.next()?;
            let stripe = write(&self.stripes[piece.stripe]);
            Some((piece, stripe))
        })
    }

    fn zero(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        check_range(&self.info, lba, blocks)?;
        let len = blocks * u64::from(self.info.block_size);
        if len <= TRANSFER_BYTES_MAX as u64 {
            let mut locked = self.lock_exclusive(lba, len as usize);
            for (piece, stripe) in locked.iter_mut().flatten() {
                clear(stripe, piece);
            }
            return self.unmark(lba, blocks);
        }
        for piece in self.pieces(lba, len) {
            let mut stripe = write(&self.stripes[piece.stripe]);
            clear(&mut stripe, &piece);
            let block_size = u64::from(self.info.block_size);
            self.unmark(Lba(lba.0 + piece.at.start as u64 / block_size), piece.at.len() as u64 / block_size)?;
        }
        Ok(())
    }

    /// What was written can be read again. The range's stripes are locked for writing.
    fn unmark(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        if self.uncorrectable.touches(lba, blocks) {
            self.uncorrectable.update(|marks| Ok(marks.without(lba, blocks)))?;
        }
        Ok(())
    }
}

impl Namespace for Memory {
    crate::namespace_without!(hint_lifetime, writability, link, zones);

    fn info(&self) -> NamespaceInfo {
        self.info.clone()
    }

    async fn read(&self, lba: Lba, mut buf: Buf) -> (Result<(), Error>, Buf) {
        let blocks = match check_length(&self.info, lba, buf.len(), self.info.transfer_blocks_max) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buf),
        };
        let locked = self.lock_shared(lba, buf.len());
        if let Err(error) = self.uncorrectable.check(lba, blocks) {
            drop(locked);
            return (Err(error), buf);
        }
        for (piece, stripe) in locked.iter().flatten() {
            match &**stripe {
                Some(bytes) => buf[piece.at.clone()].copy_from_slice(&bytes[piece.within.clone()]),
                None => buf[piece.at.clone()].fill(0),
            }
        }
        (Ok(()), buf)
    }

    async fn write(&self, lba: Lba, data: View, _durability: Durability) -> Result<(), Error> {
        let blocks = check_length(&self.info, lba, data.len(), self.info.transfer_blocks_max)?;
        let mut locked = self.lock_exclusive(lba, data.len());
        for (piece, stripe) in locked.iter_mut().flatten() {
            store(stripe, piece, &data);
        }
        self.unmark(lba, blocks)
    }

    async fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let blocks = check_length(&self.info, lba, expected.len(), self.info.transfer_blocks_max)?;
        let locked = self.lock_shared(lba, expected.len());
        self.uncorrectable.check(lba, blocks)?;
        let equal = locked.iter().flatten().all(|(piece, stripe)| holds(stripe, piece, &expected));
        if equal { Ok(()) } else { Err(Error::CompareFailure) }
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, _: Durability) -> Result<(), Error> {
        let blocks = check_halves(&self.info, lba, expected.len(), new.len())?;
        let mut locked = self.lock_exclusive(lba, new.len());
        self.uncorrectable.check(lba, blocks)?;
        if !locked.iter().flatten().all(|(piece, stripe)| holds(stripe, piece, &expected)) {
            return Err(Error::CompareFailure);
        }
        for (piece, stripe) in locked.iter_mut().flatten() {
            store(stripe, piece, &new);
        }
        Ok(())
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, _durability: Durability) -> Result<(), Error> {
        self.zero(lba, blocks)
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.zero(lba, blocks)
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        check_range(&self.info, lba, blocks)?;
        // Memory can not fail to be read: what there is to find are marks. One lock of theirs sees all of them at once.
        self.uncorrectable.check(lba, blocks)
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let bytes = blocks.saturating_mul(u64::from(self.info.block_size)).min(usize::MAX as u64) as usize;
        check_length(&self.info, lba, bytes, self.info.transfer_blocks_max)?;
        let _locked = self.lock_exclusive(lba, bytes);
        self.uncorrectable.update(|marks| marks.with(lba, blocks))
    }

    fn used_blocks(&self) -> u64 {
        (self.allocated_bytes() / u64::from(self.info.block_size)).min(self.info.blocks)
    }

    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.attributes.get(key))
    }

    async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        self.attributes.set(key, value)
    }
}

// Nothing under these locks can panic half way, so a poisoned lock guards sound bytes.

fn read(stripe: &RwLock<Stripe>) -> RwLockReadGuard<'_, Stripe> {
    stripe.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(stripe: &RwLock<Stripe>) -> RwLockWriteGuard<'_, Stripe> {
    stripe.write().unwrap_or_else(PoisonError::into_inner)
}

fn holds(stripe: &Stripe, piece: &Piece, expected: &[u8]) -> bool {
    let expected = &expected[piece.at.clone()];
    match stripe {
        Some(bytes) => bytes[piece.within.clone()] == *expected,
        None => expected.iter().all(|&byte| byte == 0),
    }
}

fn store(stripe: &mut Stripe, piece: &Piece, data: &[u8]) {
    let bytes = stripe.get_or_insert_with(Content::zeroed);
    bytes[piece.within.clone()].copy_from_slice(&data[piece.at.clone()]);
}

fn clear(stripe: &mut Stripe, piece: &Piece) {
    if piece.within.len() == STRIPE_BYTES {
        *stripe = None;
    } else if let Some(bytes) = stripe {
        bytes[piece.within.clone()].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content began 16 bytes behind a page, and a write of 4 KiB took 2.0 us instead of 0.4.
    #[test]
    fn content_begins_where_a_buffer_does() {
        for content in std::iter::repeat_with(Content::zeroed).take(9).collect::<Vec<_>>() {
            let buffer = Buf::zeroed(4096);
            assert_eq!((content.as_ptr().addr() % ALIGN, buffer.as_ptr().addr() % ALIGN), (0, 0));
            assert_eq!((content.len(), content.iter().all(|&byte| byte == 0)), (STRIPE_BYTES, true));
        }
    }

    /// Zeroing once went stripe by stripe whatever its length: a reader of both stripes could find one old and one zeroed.
    #[test]
    fn zeroing_within_the_atomic_size_locks_all_its_stripes_at_once() {
        let memory = Memory::new(4 << 20, 4096, [1; 16]).expect("a memory namespace");
        let [first, second] = [0, 1].map(|index| &memory.stripes[index]);
        for stripe in [first, second] {
            write(stripe).get_or_insert_with(Content::zeroed).fill(1);
        }
        let blocks = (STRIPE_BYTES / 4096) as u64;
        std::thread::scope(|scope| {
            let reader = read(second);
            scope.spawn(|| memory.zero(Lba(blocks - 1), 2));
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
            // Until the zeroing has come as far as it can.
            while let Ok(stripe) = first.try_read() {
                assert!(stripe.as_ref().is_some_and(|bytes| bytes[STRIPE_BYTES - 1] == 1), "half of it is done");
                assert!(std::time::Instant::now() < deadline, "it never began");
            }
            drop(reader);
        });
        assert!([first, second].iter().all(|stripe| read(stripe).as_ref().is_some_and(|bytes| bytes.contains(&0))));
    }
}
