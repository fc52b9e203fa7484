//! How full a pool is: a sample of each member's pages, since nobody keeps count.

use device::Namespace;
use pool::{HeapGroup, TablePage};

use super::Store;
use super::link::Link;
use crate::page::{AllocationPage, SLOTS};
use crate::table::{Table, TableError};

/// Reads of table pages per member (128 KiB each) for a sample; a smaller table is counted whole.
const TABLE_READS_MAX: u32 = 64;
/// Allocation pages read per member for a sample.
const GROUPS_MAX: u32 = 256;

/// How full one member is. Counts are scaled up from the sample.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    /// Pages of the table.
    pub table_pages: u64,
    /// Keys with their tombstones.
    pub entries: u64,
    /// Bytes of records in table pages.
    pub table_bytes_used: u64,
    /// Bytes for records in table pages.
    pub table_bytes: u64,
    /// Data pages of the heap.
    pub heap_pages: u64,
    /// Data pages that are claimed.
    pub heap_pages_used: u64,
    /// Damaged pages among those looked at.
    pub damaged_pages: u64,
    /// Everything was looked at, nothing scaled.
    pub exact: bool,
}

impl<N: Link> Store<N> {
    /// Looks how full member `index` is.
    pub async fn usage(&self, index: usize) -> Result<Usage, TableError> {
        match self.table(index) {
            Some(table) => table.usage().await,
            None => Err(device::Error::NotConnected(format!("member {index}")).into()),
        }
    }
}

impl<N: Namespace> Table<N> {
    /// Looks how full the member is.
    pub async fn usage(&self) -> Result<Usage, TableError> {
        let geometry = self.layout().geometry;
        let mut usage = Usage {
            table_pages: geometry.table_pages.into(),
            heap_pages: geometry.heap_pages(),
            exact: true,
            ..Usage::default()
        };
        self.sample_table(&mut usage).await?;
        self.sample_heap(&mut usage).await?;
        Ok(usage)
    }

    async fn sample_table(&self, usage: &mut Usage) -> Result<(), TableError> {
        let pages = self.layout().geometry.table_pages;
        let per_read = self.pages_per_read();
        let reads = pages.div_ceil(per_read);
        let step = reads.div_ceil(TABLE_READS_MAX).max(1);
        let (mut looked, mut entries, mut used, mut room) = (0u64, 0u64, 0u64, 0u64);
        for read in (0..reads).step_by(step as usize) {
            for image in self.read_pages(TablePage(read * per_read)).await? {
                looked += 1;
                let Ok(image) = image else {
                    usage.damaged_pages += 1;
                    continue;
                };
                let (bytes, all) = image.fill(self)?;
                entries += image.entries(self)?.len() as u64;
                used += bytes as u64;
                room += all as u64;
            }
        }
        let scale = |count: u64| scaled(count, usage.table_pages, looked);
        (usage.entries, usage.table_bytes_used, usage.table_bytes) = (scale(entries), scale(used), scale(room));
        usage.exact &= looked == usage.table_pages;
        Ok(())
    }

    async fn sample_heap(&self, usage: &mut Usage) -> Result<(), TableError> {
        let groups = self.layout().geometry.heap_groups;
        let step = groups.div_ceil(GROUPS_MAX).max(1);
        let (mut looked, mut used) = (0u64, 0u64);
        for group in (0..groups).step_by(step as usize) {
            looked += 1;
            match self.read_allocation(HeapGroup(group)).await {
                Ok(allocation) => used += (SLOTS - AllocationPage::free(&allocation)) as u64,
                Err(TableError::Allocation { .. }) => usage.damaged_pages += 1,
                Err(error) => return Err(error),
            }
        }
        usage.heap_pages_used = scaled(used, groups.into(), looked);
        usage.exact &= looked == u64::from(groups);
        Ok(())
    }
}

fn scaled(count: u64, all: u64, looked: u64) -> u64 {
    if looked == 0 { 0 } else { (u128::from(count) * u128::from(all) / u128::from(looked)) as u64 }
}
