//! One member's table: the atomic per-key register that quorums join (`store if newer` and `read`), on plain pages.
//!
//! The home page is the only linearization point of a key here. Whatever else belongs to it (a guest in another page,
//! extents in the heap) is immutable, written before the home page refers to it and freed after the home page has ceased to.
//!
//! Rules (`crates/kv/README.md`), and where they are kept:
//! 1. images of a page never repeat: `page`; so a compare-and-write whose outcome is unknown may be issued again, and is
//!    dead for sure once the page is seen with other bytes: `store`;
//! 2. an extent is written by one command, never sent again; if in doubt the extent is abandoned: `extent`;
//! 3. a place is freed only after the acknowledged removal of its last reference, and only by its tag: `store`, `heap`;
//! 4. a reader whose reference does not verify reads the home page again: [`Table::fetch`].

mod bundle;
mod choose;
mod cleared;
mod collect;
mod error;
mod extent;
mod found;
mod group;
mod guest;
mod heap;
mod home;
mod inspect;
mod ledger;
mod leftover;
mod locks;
mod orphans;
mod plan;
mod read;
mod rebuild;
mod register;
mod seal;
mod search;
mod slots;
mod stock;
mod store;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use device::{Durability, Lba, Namespace};
use engine::sync::Semaphore;
use engine::{Buf, View};
use fabric::host::AnyRemote;
use pool::{Layout, TablePage};

use crate::page::{Entry, HEADER_BYTES, PlaceKind, Reference, TablePageView};
use crate::types::{ChecksumKey, Key, OpId};
use crate::value::Value;

use bundle::Bundles;
pub use collect::{AGE_MIN, Collected};
use error::uncertain;
pub use error::{ATTEMPTS_MAX, TableError};
pub(crate) use extent::both;
pub use found::{Content, Forgets, Found, Record};
pub(crate) use inspect::{Heap, Marks, Owner};
use ledger::{HeapFull, Leftover, Stock};
pub(crate) use locks::Locks;
pub use orphans::Orphans;
pub(crate) use rebuild::{DamageMark, Damaged, Rebuilding};
pub use register::{Outcome, Request};
pub use seal::Sealed;
use slots::Requests;
pub use store::{Early, Known, Reply};

/// Copies being freed in the background; beyond it the operation that caused the next one frees it itself.
pub const FREES_MAX: usize = 64;
/// Values on their way home at once. Chosen: few, so that a slow member has its time for what is waited for.
pub(super) const MOVES_MAX: usize = 8;
/// Bytes of one sequential read by lists and repair. Chosen: DESIGN's 128 KiB, the largest atomic unit by default.
pub const SCAN_BYTES: usize = 128 << 10;

/// A table page as read, and decoded once.
#[derive(Clone, Debug)]
pub struct PageImage {
    page: TablePage,
    bytes: View,
    /// Of its bundles those that were needed.
    bundles: Bundles,
}

/// What became of a value that was fetched.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// Here it is, verified.
    Value(Value),
    /// The key has been written since: its home page says this now.
    Changed(Found),
}

/// Counts of what a table did beyond its namespace's commands.
#[derive(Clone, Default, Debug)]
pub struct TableStats {
    /// Compare-and-writes that found another image.
    pub misses: Cell<u64>,
    /// Values placed as guests.
    pub guests: Cell<u64>,
    /// Extents claimed.
    pub extents: Cell<u64>,
    /// Copies left behind for good because the fate of a data write was in doubt, or because freeing them failed for good.
    pub abandoned: Cell<u64>,
}

pub(crate) fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// One member's table, as hosts of one epoch use it. Share it by `Rc`.
pub struct Table {
    namespace: AnyRemote,
    layout: Layout,
    checksums: ChecksumKey,
    incarnation: u64,
    epoch: u64,
    locks: Locks,
    group_locks: Locks,
    requests: Requests,
    /// The allocation page that was changed last, as it was then. A hint: any image is right.
    last_group: RefCell<Option<(pool::HeapGroup, View)>>,
    stock: RefCell<Stock>,
    /// Heap group to look at first. A hint: any value is right.
    group_next: Cell<u32>,
    heap_full: Cell<Option<HeapFull>>,
    heap_tight: Cell<Option<engine::time::Instant>>,
    frees: Semaphore,
    /// Values on their way home, and the pages that they come to.
    moves: Semaphore,
    coming_home: RefCell<BTreeSet<u32>>,
    leftovers: RefCell<VecDeque<Leftover>>,
    /// A task tries the leftovers again.
    sweeping: Cell<bool>,
    me: Weak<Table>,
    /// What it did.
    pub stats: TableStats,
}

impl Table {
    /// The table of member `index` of `map`, on its namespace.
    pub fn new(namespace: impl Into<AnyRemote>, map: &pool::Map, index: usize) -> Rc<Table> {
        Table::over(namespace.into(), map, index)
    }

    /// The same member's table in another map. What is under way here goes on as an operation of the older epoch.
    pub(crate) fn successor(&self, map: &pool::Map, index: usize) -> Rc<Table> {
        Table::over(self.namespace.clone(), map, index)
    }

    fn over(namespace: AnyRemote, map: &pool::Map, index: usize) -> Rc<Table> {
        let layout = Layout::new(map.geometry(index), namespace.info().block_size);
        let groups = u64::from(layout.geometry.heap_groups.max(1));
        Rc::new_cyclic(|me| Table {
            namespace,
            layout,
            checksums: ChecksumKey::new(map.hash_seed),
            incarnation: map.members[index].incarnation,
            epoch: map.epoch,
            locks: Default::default(),
            group_locks: Default::default(),
            requests: Default::default(),
            last_group: Default::default(),
            stock: Default::default(),
            // Hosts start in different groups, so that they seldom meet in one.
            group_next: Cell::new((engine::task::random_u64() % groups) as u32),
            heap_full: Cell::new(None),
            heap_tight: Cell::new(None),
            frees: Semaphore::new(FREES_MAX),
            moves: Semaphore::new(MOVES_MAX),
            coming_home: Default::default(),
            leftovers: RefCell::default(),
            sweeping: Cell::new(false),
            me: me.clone(),
            stats: TableStats::default(),
        })
    }

    /// The member's namespace.
    pub fn namespace(&self) -> &AnyRemote {
        &self.namespace
    }

    /// How the member is divided.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Bytes for records in an empty page.
    fn room(&self) -> usize {
        self.layout.page_bytes() - HEADER_BYTES
    }

    /// The page at which `key` is at home.
    pub fn home(&self, key: &Key) -> TablePage {
        self.layout.geometry.home(key.hash().home)
    }

    /// What a page, read for this key or whole, says of a key.
    pub fn find(&self, image: &PageImage, key: &Key) -> Result<Found, TableError> {
        let view = self.decode_again(image)?;
        self.check_seal(image.page, view.header().seal)?;
        Ok(found::find(&view, &image.bytes, &image.bundles, key.bytes()))
    }

    /// Refuses a page that is sealed for a later epoch.
    pub(crate) fn check(&self, image: &PageImage) -> Result<(), TableError> {
        self.check_seal(image.page, self.decode_again(image)?.header().seal)
    }

    /// Reads what the member says of `key`.
    pub async fn read(&self, key: &Key) -> Result<Found, TableError> {
        let image = self.read_home(key).await?;
        self.find(&image, key)
    }

    /// Gets the value that `found` (not [`Content::Nothing`]) speaks of. Rule 4: a copy that does not verify may have been
    /// replaced meanwhile, or have come home; only if the home page still refers to it is it damaged.
    pub async fn fetch(&self, key: &Key, found: &Found) -> Result<Fetched, TableError> {
        let mut moved = None;
        for _ in 0..ATTEMPTS_MAX {
            let found = moved.as_ref().unwrap_or(found);
            let (length, reference) = match &found.content {
                Content::Nothing => return Ok(Fetched::Value(Value::default())),
                Content::Inline(view) => return Ok(Fetched::Value(view.clone().into())),
                Content::Elsewhere(length, reference) => (*length as usize, *reference),
            };
            let op = found.timestamp.op;
            let doubt = match self.fetch_copy(self.home(key), &reference, length, op).await {
                Ok(Some(value)) => return Ok(Fetched::Value(value)),
                Ok(_) => TableError::CopyDamaged { op },
                // A place that cannot be read may be a stranger's by now.
                Err(error @ (TableError::Page { .. } | TableError::Device(device::Error::ReadFault(_)))) => error,
                Err(error) => return Err(error),
            };
            let now = self.read(key).await?;
            if now.timestamp != found.timestamp {
                return Ok(Fetched::Changed(now));
            }
            if matches!(&now.content, Content::Elsewhere(_, same) if *same == reference) {
                return Err(doubt);
            }
            moved = Some(now);
        }
        Err(TableError::Contended)
    }

    /// The copy of a value that `op` wrote of a key at home in `home`; `None`: what is there is not it.
    async fn fetch_copy(
        &self,
        home: TablePage,
        reference: &Reference,
        length: usize,
        op: OpId,
    ) -> Result<Option<Value>, TableError> {
        match reference.kind {
            PlaceKind::Guest => {
                let good = |value: &Value| {
                    value.len() == length && value.checksum(self.checksums.of(op)) == reference.checksum
                };
                Ok(self.fetch_guest(reference, home).await?.filter(good))
            }
            PlaceKind::Extent | PlaceKind::Index => self.fetch_extents(reference, length, op).await,
        }
    }

    fn decode<'a>(&self, page: TablePage, bytes: &'a [u8]) -> Result<TablePageView<'a>, TableError> {
        TablePageView::decode(bytes, page.0, self.incarnation).map_err(|error| TableError::Page { page: page.0, error })
    }

    /// A page image was decoded when it was read.
    fn decode_again<'a>(&self, image: &'a PageImage) -> Result<TablePageView<'a>, TableError> {
        let page = image.page.0;
        TablePageView::decode_again(&image.bytes, page, self.incarnation)
            .map_err(|error| TableError::Page { page, error })
    }

    async fn read_at(&self, lba: Lba, bytes: usize) -> Result<View, device::Error> {
        let (result, buf) = self.namespace.read(lba, Buf::with_len(bytes)).await;
        result.map(|()| buf.freeze())
    }

    /// Rule 5: stable when acknowledged, or it does not count.
    async fn replace(&self, lba: Lba, expected: View, new: View) -> Result<(), device::Error> {
        self.namespace.compare_and_write(lba, expected, new, Durability::Stable).await
    }
}

impl PageImage {
    /// Which page it is.
    pub fn page(&self) -> TablePage {
        self.page
    }

    /// The epoch that it is sealed for; 0: none.
    pub fn seal(&self) -> u64 {
        crate::page::seal_of(&self.bytes)
    }

    /// Every entry of a page that was read whole: key, timestamp and content.
    pub fn entries(&self, table: &Table) -> Result<Vec<(Vec<u8>, Found)>, TableError> {
        let view = table.decode_again(self)?;
        let found = |entry: &Entry<'_>, bytes: &View| (entry.key.to_vec(), Found::of(entry, bytes));
        let mut entries: Vec<_> = view.entries().map(|entry| found(&entry, &self.bytes)).collect();
        entries.extend(self.bundles.entries(&view).into_iter().map(|bundled| found(&bundled.entry, bundled.bytes)));
        Ok(entries)
    }

    /// Bytes of records, and bytes there is room for.
    pub fn fill(&self, table: &Table) -> Result<(usize, usize), TableError> {
        let view = table.decode_again(self)?;
        Ok((view.header().used as usize, view.header().used as usize + view.free()))
    }
}

#[cfg(test)]
mod bundle_tests;
#[cfg(test)]
mod collect_tests;
#[cfg(test)]
mod fill_tests;
#[cfg(test)]
mod home_tests;
#[cfg(test)]
mod seal_tests;
#[cfg(test)]
mod tests;
