//! Reading pages with their bundles: one by one, or many at once.

use engine::View;
use engine::task::TaskSet;
use pool::TablePage;

use super::bundle::Bundles;
use super::{ATTEMPTS_MAX, PageImage, SCAN_BYTES, Table, TableError};
use crate::page::{AllocationPage, Forward, PlaceKind, TablePageView, decode_bundle};
use crate::types::{Key, OpId, value_checksum};

/// Bundles of neighbouring pages that are read at once. Guessed: enough to hide a round trip, few enough for one member.
const BUNDLES_AT_ONCE_MAX: usize = 8;

impl Table {
    /// Reads one page and its bundles; [`TableError::Page`] if it has no vote.
    pub async fn read_page(&self, page: TablePage) -> Result<PageImage, TableError> {
        let bytes = self.read_raw(page).await?;
        self.complete(page, bytes, None).await
    }

    /// Reads the home page of `key`, and the bundle that may hold it.
    pub async fn read_home(&self, key: &Key) -> Result<PageImage, TableError> {
        let page = self.home(key);
        let bytes = self.read_raw(page).await?;
        self.complete(page, bytes, Some(key.bytes())).await
    }

    /// Reads one page without looking at it.
    pub(crate) async fn read_raw(&self, page: TablePage) -> Result<View, TableError> {
        Ok(self.read_at(self.layout.table(page), self.layout.page_bytes()).await?)
    }

    /// Pages that [`Table::read_pages`] reads at most.
    pub(crate) fn pages_per_read(&self) -> u32 {
        (SCAN_BYTES / self.layout.page_bytes()).max(1) as u32
    }

    /// Reads the allocation page of a heap group.
    pub(crate) async fn read_allocation(&self, group: pool::HeapGroup) -> Result<AllocationPage, TableError> {
        let bytes = self.read_at(self.layout.allocation(group), self.layout.page_bytes()).await?;
        let decoded = AllocationPage::decode(&bytes, group.0, self.incarnation);
        decoded.map_err(|error| TableError::Allocation { group: group.0, error })
    }

    /// Reads up to [`SCAN_BYTES`] of pages from `first` on in one command; each page is good or damaged by itself.
    pub async fn read_pages(&self, first: TablePage) -> Result<Vec<Result<PageImage, TableError>>, TableError> {
        let count = self.pages_per_read().min(self.layout.geometry.table_pages.saturating_sub(first.0));
        let size = self.layout.page_bytes();
        let bytes = match self.read_at(self.layout.table(first), count as usize * size).await {
            Err(device::Error::ReadFault(_)) => return self.read_one_by_one(first, count).await,
            result => result?,
        };
        let mut images: Vec<_> = (0..count).map(|_| None).collect();
        let (mut under_way, mut waiting) = (TaskSet::new(BUNDLES_AT_ONCE_MAX), 0..count);
        loop {
            while !under_way.is_full() {
                let Some(index) = waiting.next() else { break };
                let bytes = bytes.slice(index as usize * size..(index as usize + 1) * size);
                let complete = async move { (index, self.complete(TablePage(first.0 + index), bytes, None).await) };
                let pushed = under_way.push(complete).is_ok();
                debug_assert!(pushed, "invariant: it is not full");
            }
            match under_way.next().await {
                Some((_, (index, image))) => images[index as usize] = Some(of_the_page(image)?),
                None => return Ok(images.into_iter().flatten().collect()),
            }
        }
    }

    /// One page that the medium cannot give back must not hide its neighbours.
    async fn read_one_by_one(
        &self,
        first: TablePage,
        count: u32,
    ) -> Result<Vec<Result<PageImage, TableError>>, TableError> {
        let mut images = Vec::with_capacity(count as usize);
        for page in first.0..first.0 + count {
            images.push(of_the_page(self.read_page(TablePage(page)).await)?);
        }
        Ok(images)
    }

    /// A page with the bundles that may hold `key` (`None`: with all). `bytes`: the page as it was just read.
    pub(super) async fn complete(
        &self,
        page: TablePage,
        mut bytes: View,
        key: Option<&[u8]>,
    ) -> Result<PageImage, TableError> {
        let mut bundles = Bundles::default();
        for _ in 0..ATTEMPTS_MAX {
            if self.fetch_bundles(page, &self.decode(page, &bytes)?, key, &mut bundles).await? {
                return Ok(PageImage { page, bytes, bundles });
            }
            // Rule 4: only if the page still refers to it is it damaged.
            let now = self.read_raw(page).await?;
            if now[..] == bytes[..] {
                return Err(TableError::CopyDamaged { op: OpId::default() });
            }
            bytes = now;
        }
        Err(TableError::Contended)
    }

    /// The places of a page's bundles, for tests that look from outside.
    #[cfg(test)]
    pub(crate) async fn bundles_of(&self, page: TablePage) -> Vec<crate::page::Reference> {
        let image = self.read_page(page).await.unwrap();
        self.decode_again(&image).unwrap().forwards().map(|forward| forward.reference).collect()
    }

    /// Reads the bundles that may hold `key` (`None`: all) and are not there yet; `false`: one is not where the page says.
    pub(super) async fn fetch_bundles(
        &self,
        page: TablePage,
        view: &TablePageView<'_>,
        key: Option<&[u8]>,
        bundles: &mut Bundles,
    ) -> Result<bool, TableError> {
        if view.header().forwards == 0 || key.is_some_and(|key| view.entry(key).is_some()) {
            return Ok(true);
        }
        for forward in view.forwards() {
            let copy = forward.reference.copy;
            if bundles.get(copy).is_some() || key.is_some_and(|key| !forward.may_hold(key)) {
                continue;
            }
            match self.fetch_bundle(page, &forward).await? {
                Some(bytes) => bundles.add(copy, bytes),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The bundle of a page that `forward` speaks of; `None`: what is there is not it.
    pub(super) async fn fetch_bundle(
        &self,
        page: TablePage,
        forward: &Forward<'_>,
    ) -> Result<Option<View>, TableError> {
        let reference = &forward.reference;
        let fetched = match reference.kind {
            PlaceKind::Guest => self.fetch_guest(reference, page).await,
            PlaceKind::Extent | PlaceKind::Index => {
                self.fetch_extents(reference, reference.length as usize, OpId::default()).await
            }
        };
        let bytes = match fetched {
            Ok(Some(value)) => value.contiguous(),
            Ok(None) | Err(TableError::Page { .. } | TableError::Device(device::Error::ReadFault(_))) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let whole = value_checksum(self.checksums.of(OpId::default()), &bytes) == reference.checksum;
        let good = whole && decode_bundle(&bytes).is_ok_and(|entries| entries.len() == forward.len());
        Ok(good.then_some(bytes))
    }
}

/// Tells a fault of the page itself, or of a bundle of its, from one of the member as a whole.
fn of_the_page(image: Result<PageImage, TableError>) -> Result<Result<PageImage, TableError>, TableError> {
    match image {
        Ok(image) => Ok(Ok(image)),
        Err(
            error @ (TableError::Page { .. }
            | TableError::CopyDamaged { .. }
            | TableError::Device(device::Error::ReadFault(_))),
        ) => Ok(Err(error)),
        Err(error) => Err(error),
    }
}
