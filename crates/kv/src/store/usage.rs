//! How full a pool is, and how many keys it holds: a sample of each member's pages, since nobody keeps count.
//!
//! Keys are spread over the pages by a hash, so pages at equal distances are a fair sample: with k keys in it the count is
//! off by about 1/sqrt(k), so by 1 % with 10,000.

use std::time::Duration;

use engine::task::LocalFuture;
use engine::time;
use pool::{HeapGroup, TablePage};

use super::Store;
use crate::page::{AllocationPage, SLOTS};
use crate::table::{Table, TableError};

/// Reads of table pages per member (128 KiB each) for a sample; a smaller table is counted whole.
const TABLE_READS_MAX: u32 = 64;
/// Allocation pages read per member for a sample.
const GROUPS_MAX: u32 = 256;

/// Reads of table pages per member for an estimate.
const ESTIMATE_READS_MAX: u32 = 32;

/// How long a member may take for its part of an estimate.
const ESTIMATE_TIME_MAX: Duration = Duration::from_secs(2);

/// About what a pool holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Estimate {
    /// Keys with a value.
    pub keys: u64,
    /// Deleted keys that are remembered.
    pub tombstones: u64,
    /// Bytes of all values, once.
    pub value_bytes: u64,
    /// Table pages that were read, over all members.
    pub pages_read: u64,
    /// Table pages there are.
    pub pages: u64,
    /// Members that did not answer; they count as filled as the others.
    pub unreachable: Vec<usize>,
}

impl Estimate {
    /// Whether everything was looked at (but not at one moment).
    pub fn is_exact(&self) -> bool {
        self.pages_read == self.pages && self.unreachable.is_empty()
    }
}

/// How full one member is. Counts are scaled up from what could be read of the sample.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    /// Pages of the table.
    pub table_pages: u64,
    /// Keys with their tombstones.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Bytes of the values of its keys.
    pub value_bytes: u64,
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
    /// Everything was read, nothing scaled.
    pub exact: bool,
}

impl Store {
    /// Looks how full member `index` is. An error where nothing tells, also as all that was looked at is damaged.
    pub fn usage(&self, index: usize) -> LocalFuture<'_, Result<Usage, TableError>> {
        Box::pin(async move {
            match self.table(index) {
                Some(table) => table.usage().await,
                None => Err(device::Error::NotConnected(format!("member {index}")).into()),
            }
        })
    }

    /// About how many keys there are: reads at most 4 MiB of each member. Small tables are counted whole.
    pub fn estimate(&self) -> LocalFuture<'_, Estimate> {
        Box::pin(async move {
            let topology = self.inner.topology();
            let looks = topology.members.iter().map(|member| {
                let member = member.clone();
                engine::task::spawn(async move {
                    let (table, epoch) = member.voting().await?;
                    let sample = table.sample(ESTIMATE_READS_MAX).await?;
                    member.counts(epoch).map(|()| sample)
                })
            });
            let looks: Vec<_> = looks.collect();
            let (mut estimate, mut weight, mut answered) = (Estimate::default(), 0, 0);
            let (mut keys, mut tombstones, mut value_bytes) = (0, 0, 0);
            for (index, look) in looks.into_iter().enumerate() {
                let own = u64::from(topology.map.members[index].weight);
                weight += own;
                estimate.pages += u64::from(topology.map.geometry(index).table_pages);
                let Ok(Ok(sample)) = time::timeout(ESTIMATE_TIME_MAX, look).await else {
                    estimate.unreachable.push(index);
                    continue;
                };
                answered += own;
                estimate.pages_read += sample.good();
                keys += sample.scaled(sample.entries - sample.tombstones);
                tombstones += sample.scaled(sample.tombstones);
                value_bytes += sample.scaled(sample.value_bytes);
            }
            // Every key is counted once on each of its members; what is there of the weight stands for all of it.
            let all = |count: u64| scaled(count, weight, answered * topology.placement.replicas() as u64);
            (estimate.keys, estimate.tombstones, estimate.value_bytes) = (all(keys), all(tombstones), all(value_bytes));
            estimate
        })
    }
}

/// What was found in some pages of a table.
#[derive(Clone, Copy, Default)]
struct Sample {
    /// Pages of the table.
    pages: u64,
    looked: u64,
    damaged: u64,
    entries: u64,
    tombstones: u64,
    value_bytes: u64,
    used: u64,
    room: u64,
}

impl Sample {
    /// Pages that could be read.
    fn good(&self) -> u64 {
        self.looked - self.damaged
    }

    fn scaled(&self, count: u64) -> u64 {
        scaled(count, self.pages, self.good())
    }
}

impl Table {
    /// Looks how full the member is.
    pub async fn usage(&self) -> Result<Usage, TableError> {
        let geometry = self.layout().geometry;
        let mut usage =
            Usage { table_pages: geometry.table_pages.into(), heap_pages: geometry.heap_pages(), ..Usage::default() };
        let sample = self.sample(TABLE_READS_MAX).await?;
        usage.entries = sample.scaled(sample.entries);
        usage.tombstones = sample.scaled(sample.tombstones);
        usage.value_bytes = sample.scaled(sample.value_bytes);
        (usage.table_bytes_used, usage.table_bytes) = (sample.scaled(sample.used), sample.scaled(sample.room));
        usage.damaged_pages = sample.damaged;
        usage.exact = sample.good() == sample.pages;
        self.sample_heap(&mut usage).await?;
        Ok(usage)
    }

    /// Looks at pages at equal distances, in so many reads at most.
    async fn sample(&self, reads_max: u32) -> Result<Sample, TableError> {
        let pages = self.layout().geometry.table_pages;
        let per_read = self.pages_per_read();
        let reads = pages.div_ceil(per_read);
        let step = reads.div_ceil(reads_max).max(1);
        let (mut sample, mut unread) = (Sample { pages: pages.into(), ..Sample::default() }, None);
        for read in (0..reads).step_by(step as usize) {
            for image in self.read_pages(TablePage(read * per_read)).await? {
                sample.looked += 1;
                let image = match image {
                    Ok(image) => image,
                    Err(error) => {
                        sample.damaged += 1;
                        unread = Some(error);
                        continue;
                    }
                };
                let (bytes, all) = image.fill(self)?;
                for (_, found) in image.entries(self)? {
                    sample.entries += 1;
                    match found.content.value_len() {
                        Some(length) => sample.value_bytes += length as u64,
                        None => sample.tombstones += 1,
                    }
                }
                sample.used += bytes as u64;
                sample.room += all as u64;
            }
        }
        match unread {
            // Of none it is known what it holds.
            Some(error) if sample.good() == 0 => Err(error),
            _ => Ok(sample),
        }
    }

    async fn sample_heap(&self, usage: &mut Usage) -> Result<(), TableError> {
        let groups = self.layout().geometry.heap_groups;
        let step = groups.div_ceil(GROUPS_MAX).max(1);
        let (mut good, mut used, mut unread) = (0u64, 0u64, None);
        for group in (0..groups).step_by(step as usize) {
            match self.read_allocation(HeapGroup(group)).await {
                Ok(allocation) => {
                    good += 1;
                    used += (SLOTS - AllocationPage::free(&allocation)) as u64;
                }
                Err(error @ TableError::Allocation { .. }) => {
                    usage.damaged_pages += 1;
                    unread = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        usage.heap_pages_used = scaled(used, groups.into(), good);
        usage.exact &= good == u64::from(groups);
        match unread {
            Some(error) if good == 0 => Err(error),
            _ => Ok(()),
        }
    }
}

fn scaled(count: u64, all: u64, read: u64) -> u64 {
    if read == 0 { 0 } else { (u128::from(count) * u128::from(all) / u128::from(read)) as u64 }
}
