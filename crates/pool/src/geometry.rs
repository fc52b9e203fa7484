//! How a member's bytes are laid out, and the arithmetic from page numbers to block addresses.
//!
//! ```text
//!  bytes        0  superblock, copy A                   (one block, at least 4 KiB)
//!          64 KiB  map body, slot 0     512 KiB         two slots: a new map never overwrites the one in force
//!         576 KiB  map body, slot 1     512 KiB
//!        1088 KiB  superblock, copy B
//!        1152 KiB  table: T pages
//!               …  heap: G groups of 1 allocation page + 240 data pages
//! ```
//!
//! The places before the table do not depend on the page size: whoever has lost copy A does not know it. All are multiples
//! of 64 KiB, the largest block, so that no two of them ever share a block.

use device::{Lba, NamespaceInfo};

/// Where superblock copies A and B lie, in bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 1088 << 10];
/// Where the two slots for the map's body lie, in bytes.
pub const MAP_OFFSETS: [u64; 2] = [64 << 10, 576 << 10];
/// Bytes of such a slot.
pub const MAP_SLOT_BYTES: usize = 512 << 10;
/// Where the table starts, in bytes.
pub const TABLE_OFFSET: u64 = 1152 << 10;
/// Smallest table page in bytes.
pub const PAGE_SIZE_MIN: u32 = 4096;
/// Largest table page in bytes: the largest block a namespace may have.
pub const PAGE_SIZE_MAX: u32 = 65_536;
/// Data pages of a heap group: 240 records of 16 bytes and a header fill a 4 KiB allocation page.
pub const GROUP_DATA_PAGES: u32 = 240;
/// Pages of a heap group with its allocation page.
pub const GROUP_PAGES: u32 = GROUP_DATA_PAGES + 1;
/// A member smaller than this many table pages is refused: hashing over a handful of pages fills some of them at once.
pub const TABLE_PAGES_MIN: u32 = 64;

const _: () = assert!(MAP_OFFSETS[1] == MAP_OFFSETS[0] + MAP_SLOT_BYTES as u64);
const _: () = assert!(SUPERBLOCK_OFFSETS[1] == MAP_OFFSETS[1] + MAP_SLOT_BYTES as u64);
const _: () = assert!(TABLE_OFFSET == SUPERBLOCK_OFFSETS[1] + PAGE_SIZE_MAX as u64);

/// A page of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TablePage(pub u32);

/// A group of the heap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeapGroup(pub u32);

/// A data page of the heap, counted over all groups: `group × 240 + slot`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeapPage(pub u64);

impl HeapPage {
    /// The data page in `slot` (below 240) of `group`.
    pub fn new(group: HeapGroup, slot: u32) -> HeapPage {
        debug_assert!(slot < GROUP_DATA_PAGES);
        HeapPage(u64::from(group.0) * u64::from(GROUP_DATA_PAGES) + u64::from(slot))
    }

    /// The group it lies in.
    pub fn group(self) -> HeapGroup {
        HeapGroup((self.0 / u64::from(GROUP_DATA_PAGES)) as u32)
    }

    /// Its slot within the group.
    pub fn slot(self) -> u32 {
        (self.0 % u64::from(GROUP_DATA_PAGES)) as u32
    }
}

/// How a member is divided. Counts are fixed when the member is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a page.
    pub page_size: u32,
    /// Pages of the table.
    pub table_pages: u32,
    /// Groups of the heap.
    pub heap_groups: u32,
}

impl Geometry {
    /// Divides a member of `bytes`: `table_share` thousandths of what lies behind the superblocks becomes table, the rest
    /// whole heap groups (what is left over goes to the table). `None` if the member is too small.
    pub fn divide(bytes: u64, page_size: u32, table_share: u32) -> Option<Geometry> {
        let pages = bytes.checked_sub(TABLE_OFFSET)? / u64::from(page_size);
        let heap_pages = pages / 1000 * u64::from(1000 - table_share.min(1000))
            + pages % 1000 * u64::from(1000 - table_share.min(1000)) / 1000;
        // Whatever the share, the table gets its minimum first: without one there is no member.
        let heap_pages = heap_pages.min(pages.saturating_sub(u64::from(TABLE_PAGES_MIN)));
        let heap_groups = (heap_pages / u64::from(GROUP_PAGES)).min(u64::from(u32::MAX / GROUP_PAGES));
        let table_pages = (pages - heap_groups * u64::from(GROUP_PAGES)).min(u64::from(u32::MAX));
        let geometry = Geometry { page_size, table_pages: table_pages as u32, heap_groups: heap_groups as u32 };
        (geometry.table_pages >= TABLE_PAGES_MIN).then_some(geometry)
    }

    /// Bytes of a member that this division needs.
    pub fn bytes(&self) -> u64 {
        let pages = u64::from(self.table_pages) + u64::from(self.heap_groups) * u64::from(GROUP_PAGES);
        TABLE_OFFSET + pages * u64::from(self.page_size)
    }

    /// Data pages of the heap.
    pub fn heap_pages(&self) -> u64 {
        u64::from(self.heap_groups) * u64::from(GROUP_DATA_PAGES)
    }

    /// The home page of a hash: monotone in the hash, so that a walk over the table is a walk in hash order.
    pub fn home(&self, hash: u64) -> TablePage {
        TablePage(((u128::from(hash) * u128::from(self.table_pages)) >> 64) as u32)
    }

    /// The smallest hash whose home is `page`; `None` behind the last page.
    pub fn first_hash(&self, page: TablePage) -> Option<u64> {
        if page.0 >= self.table_pages {
            return None;
        }
        // At most 2^64 - 1, as page < pages.
        let pages = u128::from(self.table_pages);
        Some((u128::from(page.0) << 64).div_ceil(pages) as u64)
    }
}

/// A division bound to a namespace's block size: page numbers to block addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The division.
    pub geometry: Geometry,
    block_size: u32,
}

impl Layout {
    /// `block_size` must divide the page size (checked when a member is created or opened).
    pub fn new(geometry: Geometry, block_size: u32) -> Layout {
        debug_assert!(block_size > 0 && geometry.page_size.is_multiple_of(block_size));
        Layout { geometry, block_size }
    }

    /// First block of a table page.
    pub fn table(&self, page: TablePage) -> Lba {
        debug_assert!(page.0 < self.geometry.table_pages);
        self.lba(u64::from(page.0))
    }

    /// First block of a group's allocation page.
    pub fn allocation(&self, group: HeapGroup) -> Lba {
        debug_assert!(group.0 < self.geometry.heap_groups);
        self.lba(u64::from(self.geometry.table_pages) + u64::from(group.0) * u64::from(GROUP_PAGES))
    }

    /// First block of a data page; the pages that follow it in its group follow it on the member.
    pub fn data(&self, page: HeapPage) -> Lba {
        debug_assert!(page.0 < self.geometry.heap_pages());
        let pages_before = u64::from(page.group().0) * u64::from(GROUP_PAGES) + 1 + u64::from(page.slot());
        self.lba(u64::from(self.geometry.table_pages) + pages_before)
    }

    /// Blocks of a page.
    pub fn page_blocks(&self) -> u32 {
        self.geometry.page_size / self.block_size
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.geometry.page_size as usize
    }

    fn lba(&self, page: u64) -> Lba {
        Lba((TABLE_OFFSET + page * u64::from(self.geometry.page_size)) / u64::from(self.block_size))
    }
}

/// Bytes that a member has at least.
pub fn member_bytes_min(page_size: u32) -> u64 {
    TABLE_OFFSET + u64::from(TABLE_PAGES_MIN) * u64::from(page_size)
}

/// Whether pages of this size can be read and replaced atomically on a namespace.
pub(crate) fn page_fits(info: &NamespaceInfo, page_size: u32) -> Result<(), String> {
    if !info.block_size.is_power_of_two() || info.block_size > page_size {
        return Err(format!("its blocks have {} bytes, more than a page of {page_size}", info.block_size));
    }
    let blocks = page_size / info.block_size;
    if info.compare_and_write_blocks_max < blocks {
        let bytes = u64::from(info.compare_and_write_blocks_max) * u64::from(info.block_size);
        return Err(format!(
            "its atomic compare-and-write takes {bytes} bytes, a page of {page_size} bytes needs it whole"
        ));
    }
    if info.atomic_blocks < blocks {
        return Err(format!(
            "its reads and writes are atomic up to {} blocks, a page has {blocks}",
            info.atomic_blocks
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn too_small_members_are_refused() {
        assert_eq!(Geometry::divide(TABLE_OFFSET, 4096, 500), None);
        assert_eq!(Geometry::divide(100, 4096, 500), None);
        assert!(Geometry::divide(TABLE_OFFSET + 64 * 4096, 4096, 500).is_some());
    }

    proptest! {
        #[test]
        fn pages_fill_the_member_and_never_overlap(
            bytes in TABLE_OFFSET + 64 * 65_536 .. 1u64 << 44, share in 0u32..=1000, shift in 12u32..=16
        ) {
            let geometry = Geometry::divide(bytes, 1 << shift, share).unwrap();
            prop_assert!(geometry.bytes() <= bytes);
            prop_assert!(bytes - geometry.bytes() < 2 << shift || geometry.table_pages == u32::MAX);
            let layout = Layout::new(geometry, 512);
            let last_table = layout.table(TablePage(geometry.table_pages - 1)).0;
            if geometry.heap_groups > 0 {
                let first = layout.allocation(HeapGroup(0)).0;
                prop_assert_eq!(first, last_table + u64::from(layout.page_blocks()));
                prop_assert_eq!(layout.data(HeapPage(0)).0, first + u64::from(layout.page_blocks()));
                let last = layout.data(HeapPage(geometry.heap_pages() - 1)).0 + u64::from(layout.page_blocks());
                prop_assert_eq!(last * 512, geometry.bytes());
            }
        }

        #[test]
        fn home_and_first_hash_agree(pages in TABLE_PAGES_MIN..u32::MAX, hash in any::<u64>()) {
            let geometry = Geometry { page_size: 4096, table_pages: pages, heap_groups: 0 };
            let home = geometry.home(hash);
            prop_assert!(home.0 < pages);
            let first = geometry.first_hash(home).unwrap();
            prop_assert!(first <= hash);
            prop_assert_eq!(geometry.home(first), home);
            if let Some(next) = geometry.first_hash(TablePage(home.0 + 1)) {
                prop_assert!(hash < next);
            }
        }
    }
}
