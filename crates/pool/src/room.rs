//! What fits a pool: how much of a member is to be table for the values that are stored, and about how many bytes of them it takes.
//!
//! A value that is shorter than a page lies in the table; what the table has no room for, and all longer ones, lie in the heap, of
//! which each takes whole pages. The figures are measured on tables that were filled to the first refusal (`kv`, `fill_tests`): the
//! table is full to nine tenths by then, and of the heap's pages each holds about an eighth of a page of short ones.

use crate::balance::loads;
use crate::geometry::{GROUP_DATA_PAGES, Geometry};
use crate::map::Map;
use crate::ring::Ring;

/// Bytes that an entry takes beside its value, with a key of common length; a reference to a value that lies elsewhere included.
const ENTRY_BYTES: u64 = 96;
/// Bytes of one extent: longer values lie in several.
const EXTENT_BYTES: u64 = 128 << 10;
/// Part of a table's bytes that holds something when it is full, in tenths.
const TABLE_TENTHS: u64 = 9;
/// Thousandths of table where values are so short that the heap is no place for them; what is left takes the odd long one.
const SHARE_OF_SHORT: u32 = 950;
/// Thousandths of table where values of about a page lie in either.
const SHARE_OF_PAGES: u32 = 500;

/// Thousandths of each member that are to be table where values of about `value` bytes are stored.
pub fn table_share_for(value: u64, page_size: u32) -> u32 {
    let page = u64::from(page_size);
    if value <= page / 2 {
        return SHARE_OF_SHORT;
    }
    if value <= page {
        return SHARE_OF_PAGES;
    }
    // Twice what entries need: pages fill unevenly, and shorter values than expected come as well.
    let entry = ENTRY_BYTES * 2;
    let share = entry * 1000 / (entry + heap_pages(value, page) * page);
    // Pages of a handful of entries would be full at once.
    share.max(20) as u32
}

/// Heap pages of one value.
fn heap_pages(value: u64, page: u64) -> u64 {
    let (whole, rest) = (value / EXTENT_BYTES, value % EXTENT_BYTES);
    let index = u64::from(whole > 0 && value > EXTENT_BYTES);
    whole * (EXTENT_BYTES / page) + rest.div_ceil(page) + index
}

impl Geometry {
    /// About how many bytes of values of `value` bytes each a member of this division takes.
    pub fn room_for(&self, value: u64) -> u64 {
        let page = u64::from(self.page_size);
        let entries = u64::from(self.table_pages) * page * TABLE_TENTHS / 10 / (ENTRY_BYTES + value.min(page));
        if value > page - ENTRY_BYTES {
            let extent = EXTENT_BYTES.min(value).div_ceil(page).max(1);
            // Extents lie within a group.
            let fit = u64::from(GROUP_DATA_PAGES) / extent * extent;
            let in_heap = u64::from(self.heap_groups) * fit / heap_pages(value, page);
            let references = u64::from(self.table_pages) * page * TABLE_TENTHS / 10 / ENTRY_BYTES;
            return in_heap.min(references) * value;
        }
        let in_heap = self.heap_pages() * (page / 8 / (ENTRY_BYTES + value)).max(1);
        (entries + in_heap) * value
    }
}

impl Map {
    /// About how many bytes of values of `value` bytes each the pool takes, until the first member is full.
    pub fn room_for(&self, value: u64) -> u64 {
        let loads = loads(self, &Ring::new(self));
        let full = loads.iter().enumerate().filter(|(_, load)| **load > 0.0);
        let until = full.map(|(index, load)| self.geometry(index).room_for(value) as f64 / load);
        until.reduce(f64::min).map_or(0, |all| (all / f64::from(self.replicas)) as u64)
    }
}
