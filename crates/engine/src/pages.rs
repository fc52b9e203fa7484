//! Memory taken from the system by the page and given back to it when it is dropped, whatever else the allocator keeps.
//!
//! For what is large, lives long and is counted against a limit: `malloc` keeps freed memory for itself, and from the first
//! freed block of a size on it no longer asks the system for blocks of that size, so what is resident could not be told.
//!
//! Invariant: a [`Pages`] is the only owner of a private mapping of exactly `bytes` bytes.

use std::{
    ffi::c_void,
    io,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A page of memory, the granule of what is asked for.
pub const PAGE: usize = 4096;
/// A large page of the processor: what is mapped by whole ones costs it fewer translations.
pub const LARGE_PAGE: usize = 2 << 20;

/// Has `malloc` give back to the system what it keeps of freed memory, as far as whole pages of it are free. It looks at all that
/// it has, and whoever allocates meanwhile waits: not for a reactor.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, from any thread; no memory that is in use is touched.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A mapping of `bytes` zeroes, aligned to a page.
pub(crate) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    debug_assert!(bytes > 0 && bytes.is_multiple_of(PAGE));
    // SAFETY: a new private mapping at a place of the kernel's choice touches no memory that exists.
    let start =
        unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
    NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// # Safety
/// `start` is a page boundary inside what [`map`] gave, and nobody uses the `bytes` from there any more.
pub(crate) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: by the caller's word.
    let unmapped = unsafe { munmap(start.as_ptr().cast::<c_void>(), bytes) };
    // Splitting a mapping may be refused where the process has too many of them: the memory stays mapped, which is a leak only.
    debug_assert!(unmapped.is_ok(), "{unmapped:?}");
}

/// Memory of its own, zeroed when it is new.
pub struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the only owner of plain memory (invariant at the top), which has no affinity to a thread.
unsafe impl Send for Pages {}
// SAFETY: through a shared reference it can only be read.
unsafe impl Sync for Pages {}

impl Pages {
    /// `bytes` zeroes.
    ///
    /// # Errors
    /// The system has no more memory, or the process too many mappings.
    ///
    /// # Panics
    /// `bytes` is 0, or not of whole pages.
    pub fn zeroed(bytes: usize) -> io::Result<Pages> {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE), "{bytes} bytes are not whole pages");
        Ok(Pages { start: map(bytes)?, bytes })
    }

    /// A [`LARGE_PAGE`] of zeroes in pieces of `bytes`, in one page of the processor where it has one free. All of it is resident
    /// when this returns. Each piece is given back by itself.
    ///
    /// # Errors
    /// As [`Pages::zeroed`].
    ///
    /// # Panics
    /// `bytes` is not a power of two from a page to a large page.
    pub fn large(bytes: usize) -> io::Result<Vec<Pages>> {
        assert!(
            bytes.is_power_of_two() && (PAGE..=LARGE_PAGE).contains(&bytes),
            "{bytes} bytes do not divide a large page"
        );
        let whole = map(2 * LARGE_PAGE)?;
        let before = whole.as_ptr().align_offset(LARGE_PAGE);
        let after = LARGE_PAGE - before;
        // SAFETY: `before` is at most a large page less one byte, inside of the mapping.
        let start = unsafe { whole.add(before) };
        if before > 0 {
            // SAFETY: the part before the aligned page, of whole pages, is nobody's.
            unsafe { unmap(whole, before) };
        }
        // SAFETY: so is the part behind it.
        unsafe { unmap(start.add(LARGE_PAGE), after) };
        // SAFETY: advice about a mapping of ours changes none of its bytes.
        let advised = unsafe { madvise(start.as_ptr().cast(), LARGE_PAGE, Advice::LinuxHugepage) };
        if let Err(error) = advised {
            tracing::debug!(%error, "no large pages: small ones are used");
        }
        let piece = |index: usize| {
            // SAFETY: the pieces lie one after another inside of the large page; each is owned once.
            Pages { start: unsafe { start.add(index * bytes) }, bytes }
        };
        let mut pieces: Vec<Pages> = (0..LARGE_PAGE / bytes).map(piece).collect();
        for page in pieces.iter_mut().flat_map(|piece| piece.chunks_mut(PAGE)) {
            page[0] = 0; // where it is one large page, the first makes all of it resident
        }
        Ok(pieces)
    }

    /// The memory as words of 8 bytes, in the processor's byte order.
    pub fn words(&self) -> &[u64] {
        // SAFETY: page-aligned and of whole pages, so of whole aligned words; any bytes are a word; borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / 8) }
    }

    /// As [`Pages::words`], to be written.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / 8) }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has `bytes` initialised bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the only owner is gone.
        unsafe { unmap(self.start, self.bytes) };
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pages({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_words_are_the_same_memory() {
        let mut pages = Pages::zeroed(2 * PAGE).unwrap();
        assert!(pages.iter().all(|&byte| byte == 0));
        pages.words_mut()[1] = 0x0102_0304_0506_0708;
        assert_eq!(pages[8..16], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        assert_eq!((pages.len(), pages.words().len()), (2 * PAGE, PAGE / 4));
    }

    #[test]
    fn pieces_of_a_large_page_are_apart_and_go_one_by_one() {
        let mut pieces = Pages::large(LARGE_PAGE / 8).unwrap();
        assert_eq!(pieces.len(), 8);
        assert_eq!(pieces[0].as_ptr() as usize % LARGE_PAGE, 0);
        for (number, piece) in pieces.iter_mut().enumerate() {
            piece.fill(number as u8);
        }
        pieces.remove(3);
        assert!(
            [0, 1, 2, 4, 5, 6, 7].iter().zip(&pieces).all(|(&number, piece)| piece.iter().all(|&byte| byte == number))
        );
    }
}
