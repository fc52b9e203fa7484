//! Blocks: where the memory of buffers comes from, and the pool in which a thread keeps them for reuse.
//!
//! Large blocks are mapped by themselves: `malloc` would keep some of them when they are freed (see [`crate::pages`]).

use std::{
    alloc::{self, Layout},
    cell::{Cell, RefCell},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
};

use crate::pages;

/// Address and length granularity of every buffer: what O_DIRECT needs on any medium.
pub const ALIGN: usize = 4096;
/// The largest buffer: a 1 MiB payload and one block of headers.
pub const BUF_BYTES_MAX: usize = (1 << 20) + ALIGN;
/// What one thread's pool keeps for reuse. Guessed: 64 commands of 1 MiB.
pub const POOL_BYTES_MAX: usize = 64 << 20;

/// Classes of 4 KiB to 1 MiB by powers of two, and one for [`BUF_BYTES_MAX`].
const CLASS_COUNT: usize = 10;
/// Room for the [`Tail`] behind the data: one cache line, so that counting never shares a line with data.
const TAIL: usize = 64;

/// From this size on a block is mapped by itself. Derived: where `malloc` does so at first.
const MAPPED_BYTES_MIN: usize = 128 << 10;

/// What stands behind a block's data.
struct Tail {
    references: AtomicU32,
    /// The next block of the same class in the pool; meaningful only to the pool, while it owns the block.
    next: Cell<Option<Block>>,
}

const _: () = assert!(size_of::<Tail>() <= TAIL);

const _: () =
    assert!(class_size(CLASS_COUNT as u8 - 1) == BUF_BYTES_MAX && class_size(CLASS_COUNT as u8 - 2) == 1 << 20);

const fn class_size(class: u8) -> usize {
    if class as usize == CLASS_COUNT - 1 { BUF_BYTES_MAX } else { ALIGN << class }
}

pub(super) fn class_of(capacity: usize) -> u8 {
    assert!(capacity <= BUF_BYTES_MAX, "a buffer of {capacity} bytes was asked for; the largest is {BUF_BYTES_MAX}");
    if capacity > 1 << 20 {
        return CLASS_COUNT as u8 - 1;
    }
    let pages = capacity.div_ceil(ALIGN).next_power_of_two();
    pages.trailing_zeros() as u8
}

/// One allocation. Copyable handle; who owns it is said by `Buf` and `View`.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) data: NonNull<u8>,
    class: u8,
}

impl Block {
    fn layout(class: u8) -> Layout {
        Layout::from_size_align(class_size(class) + TAIL, ALIGN).expect("sizes are constants far below isize::MAX")
    }

    /// What a block of the class takes from the system: whole pages, the last one for the tail.
    pub(super) fn system_size(class: u8) -> usize {
        class_size(class) + ALIGN
    }

    /// Zeroed memory.
    fn allocate(class: u8) -> NonNull<u8> {
        SYSTEM_BYTES.fetch_add(Block::system_size(class), Ordering::Relaxed);
        let layout = Block::layout(class);
        let data = if class_size(class) >= MAPPED_BYTES_MIN {
            pages::map(Block::system_size(class)).ok()
        } else {
            // SAFETY: the layout has a size above zero.
            NonNull::new(unsafe { alloc::alloc_zeroed(layout) })
        };
        let Some(data) = data else { alloc::handle_alloc_error(layout) };
        data
    }

    /// # Safety
    /// The caller is the last owner.
    unsafe fn free(self) {
        SYSTEM_BYTES.fetch_sub(Block::system_size(self.class), Ordering::Relaxed);
        if class_size(self.class) >= MAPPED_BYTES_MIN {
            // SAFETY: mapped by `allocate` with this size, and nobody uses it any more.
            unsafe { pages::unmap(self.data, Block::system_size(self.class)) };
        } else {
            // SAFETY: allocated by `allocate` with this layout, and nobody uses it any more.
            unsafe { alloc::dealloc(self.data.as_ptr(), Block::layout(self.class)) };
        }
    }

    /// A block with reference count 1, from the pool or, zeroed, from the system.
    #[inline]
    pub(super) fn obtain(class: u8) -> Block {
        if let Some(block) = POOL.try_with(|pool| pool.borrow_mut().take(class)).ok().flatten() {
            return block;
        }
        let block = Block { data: Block::allocate(class), class };
        // SAFETY: the tail's place is inside the new allocation, aligned to 4096, and nobody else has it yet.
        unsafe { block.tail_place().write(Tail { references: AtomicU32::new(1), next: Cell::new(None) }) };
        block
    }

    #[inline]
    fn tail_place(self) -> *mut Tail {
        // SAFETY: `class_size` is within the allocation, which goes on for `TAIL` bytes behind it.
        unsafe { self.data.as_ptr().add(class_size(self.class)).cast() }
    }

    #[inline]
    pub(super) fn references(&self) -> &AtomicU32 {
        // SAFETY: the tail was initialised by `obtain` and lives as long as the block, which the holder of this handle owns.
        // Only the count is borrowed: `next` may be touched by nobody but the pool.
        unsafe { &(*self.tail_place()).references }
    }

    /// # Safety
    /// Only for the pool that owns the block.
    unsafe fn next(&self) -> &Cell<Option<Block>> {
        // SAFETY: as in `references`; the pool is the only owner, on one thread.
        unsafe { &(*self.tail_place()).next }
    }

    /// Ends the last ownership: the count must be 1 and nobody else may hold the block.
    #[inline]
    pub(super) fn give_back(self) {
        debug_assert_eq!(self.references().load(Ordering::Relaxed), 1);
        let kept = POOL.try_with(|pool| pool.borrow_mut().put(self)).unwrap_or(false);
        if !kept {
            // SAFETY: the caller was the last owner.
            unsafe { self.free() };
        }
    }
}

/// Bytes of all blocks of all threads, in use and in pools.
static SYSTEM_BYTES: AtomicUsize = AtomicUsize::new(0);
/// See [`left_to_kernel`].
static LEFT_TO_KERNEL: AtomicUsize = AtomicUsize::new(0);
/// What a pool keeps.
static POOL_LIMIT: AtomicUsize = AtomicUsize::new(POOL_BYTES_MAX);

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { free: [None; CLASS_COUNT], bytes: 0 }) };
}

/// The blocks a thread keeps for reuse. Each has reference count 1 and no other owner.
struct Pool {
    /// The first of each class; the others follow by `next`.
    free: [Option<Block>; CLASS_COUNT],
    bytes: usize,
}

impl Pool {
    fn take(&mut self, class: u8) -> Option<Block> {
        let first = &mut self.free[class as usize];
        let block = (*first)?;
        // SAFETY: the pool owns what its lists lead to.
        *first = unsafe { block.next() }.take();
        self.bytes -= class_size(class);
        Some(block)
    }

    /// False if the pool is full; the block is then the caller's to free.
    fn put(&mut self, block: Block) -> bool {
        let bytes = self.bytes + class_size(block.class);
        if bytes > POOL_LIMIT.load(Ordering::Relaxed) {
            return false;
        }
        self.bytes = bytes;
        let first = &mut self.free[block.class as usize];
        // SAFETY: the block has just become the pool's.
        unsafe { block.next() }.set(first.replace(block));
        true
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for class in 0..CLASS_COUNT as u8 {
            while let Some(block) = self.take(class) {
                // SAFETY: the pool is the only owner of what it keeps.
                unsafe { block.free() };
            }
        }
    }
}

/// Bytes of memory that the buffers of all threads hold from the system, in use or kept for reuse.
pub fn system_bytes() -> usize {
    SYSTEM_BYTES.load(Ordering::Relaxed)
}

/// Bytes that operations hold which nobody waits for any more, and which the kernel has not done with: of a medium that hangs, or
/// is slow, to which a host comes back again and again. Whoever bounds what its peers hold counts them.
pub fn left_to_kernel() -> usize {
    LEFT_TO_KERNEL.load(Ordering::Relaxed)
}

pub(crate) fn leave_to_kernel(bytes: usize) {
    LEFT_TO_KERNEL.fetch_add(bytes, Ordering::Relaxed);
}

pub(crate) fn back_from_kernel(bytes: usize) {
    LEFT_TO_KERNEL.fetch_sub(bytes, Ordering::Relaxed);
}

/// From now on no thread's pool takes a block that would make it keep more than `bytes`, or [`POOL_BYTES_MAX`]: for a program
/// that has a limit on its memory. What pools keep already stays.
pub fn limit_pools(bytes: usize) {
    POOL_LIMIT.store(bytes.min(POOL_BYTES_MAX), Ordering::Relaxed);
}

/// Bytes that this thread's pool keeps for reuse at the moment; never over [`POOL_BYTES_MAX`].
pub fn pooled_bytes() -> usize {
    POOL.try_with(|pool| pool.borrow().bytes).unwrap_or(0)
}
