//! Pages that hold nothing, in a life of a member.
//!
//! ```text
//!  every 4 KiB of a page
//!   0  magic "YGBLANK\0"     8 B
//!   8  incarnation           u64   little endian: of the life that the page was made for
//!  16  zero                  … 4096
//! ```
//! Every 4 KiB, so that a host that knows the member with smaller pages does not see zeroes either.
//!
//! Two invariants rest on them:
//! - Nothing in the table is ever zero, nor is a group's allocation page. A medium that shows zeroes there has lost the page, which
//!   is damage as any other: it has no vote, where an empty page votes "never written" and can outvote a value.
//! - No page of a member reads the same in two of its lives, as long as its table has the same places. Hosts asleep since the
//!   life before may be connected to it all the time; such a host would take an empty page for an answer of the life that it
//!   knows, which may lack the seal that was to shut it out, and a write of its own that compares with what it has read would
//!   succeed and count.
//!
//! So whoever begins a life writes these pages over what is there; table and allocation pages are not zero in between either.

use device::{Durability, Lba, Namespace};
use engine::Buf;

use crate::geometry::{GROUP_DATA_PAGES, Geometry, HeapGroup, HeapPage, Layout, PAGE_SIZE_MIN, TablePage};

const MAGIC: [u8; 8] = *b"YGBLANK\0";
/// Bytes of the magic and the incarnation.
const HEAD_BYTES: usize = 16;
/// Bytes of one write. Chosen: what costs little more than its transfer on any medium.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Blocks zeroed by one command: what a 16-bit count of 0's based blocks can say (NVM Command Set 1.0 §3.2.8).
const ZERO_BLOCKS_MAX: u64 = 65_536;
/// Zeroes written by one call where there is no such command. Chosen: a megabyte keeps a link busy.
const ZERO_BYTES: u32 = 1 << 20;

/// The life that a blank page was made for; `None` if it is no blank page.
pub fn incarnation_of(page: &[u8]) -> Option<u64> {
    let head = page.first_chunk::<HEAD_BYTES>()?;
    let (magic, incarnation) = head.split_last_chunk::<8>()?;
    // Words are compared by many at a time.
    let is_zero = |part: &[u8]| {
        let (words, rest) = part.as_chunks::<64>();
        words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|&byte| byte == 0)
    };
    let is_blank = |part: &[u8]| part.strip_prefix(head).is_some_and(is_zero);
    let all_blank = *magic == MAGIC && page.chunks(PAGE_SIZE_MIN as usize).all(is_blank);
    all_blank.then(|| u64::from_le_bytes(*incarnation))
}

/// Writes blank pages for this life into `pages`.
pub fn write(pages: &mut [u8], incarnation: u64) {
    pages.fill(0);
    for part in pages.chunks_mut(PAGE_SIZE_MIN as usize) {
        part[..MAGIC.len()].copy_from_slice(&MAGIC);
        part[MAGIC.len()..HEAD_BYTES].copy_from_slice(&incarnation.to_le_bytes());
    }
}

/// Empties table and heap for a life that begins; stable after the next flush. `may_go_on` is asked before each write, with the
/// share that is done: false ends it there, since the member is somebody else's by now.
pub(crate) async fn begin_life<N: Namespace>(
    namespace: &N,
    geometry: Geometry,
    incarnation: u64,
    may_go_on: impl AsyncFn(f64) -> Result<bool, device::Error>,
) -> Result<bool, device::Error> {
    let info = namespace.info();
    let layout = Layout::new(geometry, info.block_size);
    let page_bytes = layout.page_bytes();
    let at_once = (info.transfer_blocks_max as usize * info.block_size as usize).min(WRITE_BYTES_MAX) / page_bytes;
    let at_once = at_once.max(1);
    let mut pages = Buf::zeroed(at_once * page_bytes);
    write(&mut pages, incarnation);
    let pages = pages.freeze();
    // The table first, and over what is there. It is what takes time.
    for first in (0..geometry.table_pages).step_by(at_once) {
        if !may_go_on(f64::from(first) / f64::from(geometry.table_pages)).await? {
            return Ok(false);
        }
        let count = at_once.min((geometry.table_pages - first) as usize);
        let lba = layout.table(TablePage(first));
        namespace.write(lba, pages.slice(..count * page_bytes), Durability::Cached).await?;
    }
    // Nothing refers to the heap any more.
    for group in (0..geometry.heap_groups).map(HeapGroup) {
        if !may_go_on(1.0).await? {
            return Ok(false);
        }
        namespace.write(layout.allocation(group), pages.slice(..page_bytes), Durability::Cached).await?;
        let data = layout.data(HeapPage::new(group, 0)).0 * u64::from(info.block_size);
        zero(namespace, data, data + u64::from(GROUP_DATA_PAGES) * page_bytes as u64).await?;
    }
    Ok(true)
}

/// Writes zeroes as data, where there is no command for it.
async fn write_zeroes<N: Namespace>(namespace: &N, mut lba: u64, blocks: u64) -> Result<(), device::Error> {
    let info = namespace.info();
    let most = (ZERO_BYTES / info.block_size).clamp(1, info.transfer_blocks_max.max(1));
    let zeroes = Buf::zeroed((most * info.block_size) as usize).freeze();
    let end = lba + blocks;
    while lba < end {
        let count = (end - lba).min(u64::from(most));
        let part = zeroes.slice(..(count * u64::from(info.block_size)) as usize);
        namespace.write(Lba(lba), part, Durability::Cached).await?;
        lba += count;
    }
    Ok(())
}

/// Makes bytes `from..to` read as zeroes; stable after the next flush.
async fn zero<N: Namespace>(namespace: &N, from: u64, to: u64) -> Result<(), device::Error> {
    let block_size = u64::from(namespace.info().block_size);
    let (mut lba, end) = (from / block_size, to / block_size);
    while lba < end {
        let blocks = (end - lba).min(ZERO_BLOCKS_MAX);
        match namespace.write_zeroes(Lba(lba), blocks, Durability::Cached).await {
            Err(device::Error::Unsupported(_)) => {
                write_zeroes(namespace, lba, blocks).await?;
            }
            result => result?,
        }
        lba += blocks;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use engine::sim::{SimConfig, World};

    use super::*;
    use crate::geometry::TABLE_OFFSET;
    use crate::testing::{Plain, new_member, plain_pool, renew_under};
    use crate::{Map, admit, candidate};

    /// All pages that the store reads before anything refers to them.
    fn pages(namespace: &Plain, geometry: Geometry) -> Vec<Option<u64>> {
        let layout = Layout::new(geometry, 4096);
        let tables = (0..geometry.table_pages).map(|page| layout.table(TablePage(page)));
        let allocations = (0..geometry.heap_groups).map(|group| layout.allocation(HeapGroup(group)));
        let bytes = namespace.0.bytes.borrow();
        let at = |lba: device::Lba| &bytes[lba.0 as usize * 4096..][..layout.page_bytes()];
        tables.chain(allocations).map(|lba| incarnation_of(at(lba))).collect()
    }

    /// Seed 59195384144809 of the simulation: a namespace left a pool and came back while a host of the time before had a write
    /// of a page under way that it had found empty. The page was empty again, so the write succeeded.
    #[test]
    fn no_member_has_a_page_of_zeroes_in_any_of_its_lives() {
        World::new(1, SimConfig::default())
            .run_until(async {
                let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, 4 << 20, 4096)).collect();
                let map = plain_pool(&namespaces[..3], 3).await;
                let geometry = |map: &Map, index| map.geometry(index);
                for (index, member) in map.members.iter().enumerate() {
                    let blank = pages(&namespaces[index], geometry(&map, index));
                    assert!(
                        blank.len() > 200 && blank.iter().all(|life| *life == Some(member.incarnation)),
                        "{blank:?}"
                    );
                }
                let new = new_member(&namespaces[3]);
                let mut lives = Vec::new();
                for _ in 0..2 {
                    namespaces[3].0.bytes.borrow_mut()[TABLE_OFFSET as usize..].fill(0);
                    let member = candidate(&new, &map, None, false).await.unwrap();
                    admit(&new, &map, &member, false, async || Ok(map.clone())).await.unwrap();
                    let mut with = map.clone();
                    with.members.push(member.clone());
                    let blank = pages(&namespaces[3], geometry(&with, 3));
                    assert!(blank.iter().all(|life| *life == Some(member.incarnation)), "{blank:?}");
                    lives.push(member.incarnation);
                }
                assert_ne!(lives[0], lives[1]);
                namespaces[1].0.bytes.borrow_mut().fill(0);
                let member = renew_under(&namespaces[1], &map).await.unwrap();
                let blank = pages(&namespaces[1], geometry(&map, 1));
                assert!(blank.iter().all(|life| *life == Some(member.incarnation)), "{blank:?}");
            })
            .expect("the test's tasks are never all asleep for good");
    }

    #[test]
    fn a_blank_page_tells_its_life_and_nothing_else_does() {
        let mut page = vec![7; 8192];
        write(&mut page, 0x0123_4567_89ab_cdef);
        assert_eq!(incarnation_of(&page), Some(0x0123_4567_89ab_cdef));
        for at in [0, 7, 16, 4095, 4096, 4104, 8191] {
            let mut other = page.clone();
            other[at] ^= 1;
            assert_eq!(incarnation_of(&other), None, "byte {at}");
        }
        assert_eq!((incarnation_of(&[0; 4096]), incarnation_of(&page[..15])), (None, None));
    }
}
