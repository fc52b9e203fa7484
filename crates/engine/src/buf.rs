//! Aligned, pooled buffers that are passed by ownership.
//!
//! A [`Buf`] has one owner who may write; [`Buf::freeze`] turns it into a [`View`] that may be cloned, sliced and sent,
//! and that returns the memory to the pool of the thread that drops the last of them. Memory is zeroed when it is first
//! obtained from the system and is initialised ever after, so exposing a recycled buffer's old bytes is never undefined
//! behaviour; whoever sends a buffer must have written all of it.
//!
//! Bounds: the pool keeps at most [`POOL_BYTES_MAX`] per thread (less after [`limit_pools`]) and frees the rest. How much may be
//! *in use* is bounded by the owners (queue depth x transfer size), not here.
//!
//! One allocation (a *block*), size classes `ALIGN << class`, with what describes it behind the data so that data starts
//! aligned. The pool is a list through the blocks themselves: keeping one never allocates.
//!
//! ```text
//!  0                          class size                                        + TAIL
//!  | data, 4096-aligned       | references: u32 | next in the pool: pointer     |
//! ```
//!
//! Invariants:
//! - A `Buf` that owns a block is its only owner: its reference count is 1 and nobody else reads or writes the block. Were
//!   it shared, a write would change bytes that the kernel is sending.
//! - `len <= capacity <= class size`; capacity is exactly what was asked for, so that a receive into the buffer can not
//!   take bytes of the stream that belong to the next one.

mod block;

use std::{
    fmt,
    ops::{Bound, Deref, DerefMut, RangeBounds},
    sync::atomic::{Ordering, fence},
};

pub use block::{ALIGN, BUF_BYTES_MAX, POOL_BYTES_MAX, left_to_kernel, limit_pools, pooled_bytes, system_bytes};
use block::{Block, class_of};
pub(crate) use block::{back_from_kernel, leave_to_kernel};

/// A buffer with one owner: `len` bytes of content in `capacity` bytes of memory that starts at a multiple of [`ALIGN`].
#[derive(Default)]
pub struct Buf {
    block: Option<Block>,
    len: u32,
    capacity: u32,
}

// SAFETY: a `Buf` is the only owner of its block (invariant at the top), and a block is plain memory without thread affinity.
unsafe impl Send for Buf {}
// SAFETY: through a shared reference a `Buf` can only be read.
unsafe impl Sync for Buf {}

impl Buf {
    /// An empty buffer that can grow to exactly `capacity` bytes.
    ///
    /// # Panics
    /// Over [`BUF_BYTES_MAX`]; lengths that come from outside must be checked before.
    #[inline]
    pub fn with_capacity(capacity: usize) -> Buf {
        if capacity == 0 {
            return Buf::default();
        }
        let block = Block::obtain(class_of(capacity));
        Buf { block: Some(block), len: 0, capacity: capacity as u32 }
    }

    /// Bytes of memory that a buffer of this capacity takes from the system, where it is not one that was kept for reuse.
    ///
    /// # Panics
    /// As [`Buf::with_capacity`].
    pub fn system_size(capacity: usize) -> usize {
        if capacity == 0 { 0 } else { Block::system_size(class_of(capacity)) }
    }

    /// A buffer of `len` bytes whose content is unspecified (old bytes of this process), though initialised.
    ///
    /// # Panics
    /// As [`Buf::with_capacity`].
    #[inline]
    pub fn with_len(len: usize) -> Buf {
        let mut buf = Buf::with_capacity(len);
        buf.len = len as u32;
        buf
    }

    /// A buffer of `len` zeroes.
    ///
    /// # Panics
    /// As [`Buf::with_capacity`].
    pub fn zeroed(len: usize) -> Buf {
        let mut buf = Buf::with_len(len);
        buf.fill(0);
        buf
    }

    /// A buffer with a copy of `bytes`.
    ///
    /// # Panics
    /// As [`Buf::with_capacity`].
    pub fn copy_from(bytes: &[u8]) -> Buf {
        let mut buf = Buf::with_len(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Bytes the buffer can hold: exactly what it was made for.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Bytes of content.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no content.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes the content `len` bytes long; bytes that were not content before are unspecified, though initialised.
    ///
    /// # Panics
    /// Over the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} over the buffer's capacity {}", self.capacity);
        self.len = len as u32;
    }

    /// Appends a copy of `bytes`.
    ///
    /// # Panics
    /// If they do not fit the capacity.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let spare = self.spare_mut();
        assert!(bytes.len() <= spare.len(), "{} bytes appended to a buffer with room for {}", bytes.len(), spare.len());
        spare[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u32;
    }

    /// The memory behind the content, up to the capacity.
    #[inline]
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let (len, capacity) = (self.len(), self.capacity());
        // SAFETY: as in `deref_mut`; `len <= capacity`.
        unsafe { std::slice::from_raw_parts_mut(self.base().add(len), capacity - len) }
    }

    /// Gives up writing, so that the content can be shared. No copy, no allocation.
    #[inline]
    pub fn freeze(mut self) -> View {
        let view = View { block: self.block.take(), start: 0, len: self.len, capacity: self.capacity };
        self.capacity = 0;
        self.len = 0;
        view
    }

    /// The start of the memory, for the kernel; dangling (but aligned) if there is none.
    pub(crate) fn base(&self) -> *mut u8 {
        base_of(self.block)
    }
}

fn base_of(block: Option<Block>) -> *mut u8 {
    block.map_or(std::ptr::without_provenance_mut(ALIGN), |block| block.data.as_ptr())
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            block.give_back();
        }
    }
}

impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from the base are inside the block (or the length is 0), initialised since `obtain`, and
        // not written while this borrow of the only owner lasts.
        unsafe { std::slice::from_raw_parts(self.base(), self.len()) }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the mutable borrow of the only owner excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.len()) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} of {} bytes)", self.len, self.capacity)
    }
}

/// A shared, read-only part of a buffer. Cloning and slicing count references; they neither copy nor allocate.
#[derive(Default)]
pub struct View {
    block: Option<Block>,
    start: u32,
    len: u32,
    /// Of the buffer this was frozen from, to give it back by [`View::try_into_buf`].
    capacity: u32,
}

// SAFETY: the bytes are never written while a `View` exists, and the reference count is atomic.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// A part of this view.
    ///
    /// # Panics
    /// If the range is not inside `0..len`.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> View {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last + 1,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        assert!(start <= end && end <= self.len(), "slice {start}..{end} of a view of {} bytes", self.len);
        let mut part = self.clone();
        part.start += start as u32;
        part.len = (end - start) as u32;
        part
    }

    /// Bytes in this view.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffer back, for writing, if this is the only view of it and shows it from its first byte.
    ///
    /// # Errors
    /// The view itself, unchanged, if it is not.
    pub fn try_into_buf(mut self) -> Result<Buf, View> {
        // Acquire: pairs with the release in `drop` of the last other view, so that its reads came before our writes.
        let alone = self.block.is_none_or(|block| block.references().load(Ordering::Acquire) == 1);
        if !alone || self.start != 0 {
            return Err(self);
        }
        Ok(Buf { block: self.block.take(), len: self.len, capacity: self.capacity })
    }
}

impl Clone for View {
    #[inline]
    fn clone(&self) -> View {
        if let Some(block) = self.block {
            let before = block.references().fetch_add(1, Ordering::Relaxed);
            // A count that wrapped would free memory in use. 2^31 views fit no machine's memory: this is a leak.
            assert!(before < u32::MAX / 2, "more than 2^31 views of one buffer");
        }
        View { ..*self }
    }
}

impl Drop for View {
    #[inline]
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        if block.references().fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire); // every other view's reads came before the reuse of the memory
            block.references().store(1, Ordering::Relaxed);
            block.give_back();
        }
    }
}

impl Deref for View {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: start + len lie inside the block (checked by `slice`), initialised, and never written while views exist.
        unsafe { std::slice::from_raw_parts(base_of(self.block).add(self.start as usize), self.len()) }
    }
}

impl From<Buf> for View {
    fn from(buf: Buf) -> View {
        buf.freeze()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_exact_and_data_aligned_in_every_class() {
        for capacity in [1, 4096, 4097, 65_536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, BUF_BYTES_MAX] {
            let mut buf = Buf::with_capacity(capacity);
            assert_eq!((buf.len(), buf.capacity()), (0, capacity));
            assert_eq!(buf.base() as usize % ALIGN, 0);
            buf.spare_mut().fill(7);
            buf.set_len(capacity);
            assert!(buf.iter().all(|&byte| byte == 7));
        }
        assert_eq!(Buf::default().freeze().len(), 0);
    }

    #[test]
    fn a_block_is_reused_only_after_its_last_view() {
        let buf = Buf::copy_from(b"hello");
        let place = buf.base();
        let view = buf.freeze();
        let part = view.slice(1..=3);
        assert_eq!(&*part, b"ell");
        drop(view);
        assert_ne!(Buf::with_len(5).base(), place, "recycled while a view was alive");
        let part = part.try_into_buf().expect_err("a part must not become a buffer");
        drop(part);
        assert_eq!(Buf::with_len(5).base(), place);
    }

    #[test]
    fn a_view_becomes_a_buffer_again_only_when_alone() {
        let view = Buf::copy_from(b"abc").freeze();
        let other = view.clone();
        let view = view.try_into_buf().expect_err("shared");
        drop(other);
        let mut buf = view.try_into_buf().expect("alone");
        buf[0] = b'x';
        assert_eq!(&*buf, b"xbc");
    }

    #[test]
    fn the_pool_keeps_no_more_than_its_bound() {
        let buffers: Vec<Buf> = (0..100).map(|_| Buf::with_len(1 << 20)).collect();
        drop(buffers);
        assert!(pooled_bytes() <= POOL_BYTES_MAX && pooled_bytes() > POOL_BYTES_MAX / 2);
    }

    /// A thread of its own: its pool is empty, and what other tests do to the count does not come near this much.
    #[test]
    fn what_is_held_from_the_system_is_counted() {
        std::thread::spawn(|| {
            const MUCH: usize = 1 << 30;
            let before = system_bytes();
            let buffers: Vec<Buf> = (0..(2 * MUCH) >> 20).map(|_| Buf::with_capacity(1 << 20)).collect();
            assert!(system_bytes() > before + MUCH);
            drop(buffers);
            assert!(system_bytes() < before + MUCH, "given back, but for what the pool keeps");
        })
        .join()
        .expect("no assertion failed");
    }

    #[test]
    fn views_cross_threads() {
        let view = Buf::copy_from(&[9; 4096]).freeze();
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let part = view.slice(i * 1000..i * 1000 + 96);
                std::thread::spawn(move || assert!(part.iter().all(|&byte| byte == 9)))
            })
            .collect();
        drop(view);
        for thread in threads {
            thread.join().expect("no assertion failed");
        }
    }

    #[test]
    #[should_panic(expected = "largest")]
    fn over_the_largest_size_panics() {
        let _ = Buf::with_capacity(BUF_BYTES_MAX + 1);
    }
}
