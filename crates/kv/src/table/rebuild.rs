//! Rebuilding a damaged table page from what the other replicas hold.
//!
//! The page becomes good in one compare-and-write with all its entries: a page that was first emptied and then filled would
//! vote "never written" in between, and an acknowledged value would be lost to a majority that includes it. It comes back
//! under the seal of its rebuilder's epoch, for it may have been closed to older ones, with nothing that is not at home there. When
//! and from whom the entries may be gathered is the caller's part (`store::repair`); it knows the damage that it has waited for
//! again by its mark.
//!
//! A page whose bundle is lost has no vote on what was in it. It is whole but for that: what it says of all other keys, and the
//! guests that lie in it, stay, and the keys that it does not hold any more are gathered as those of a damaged page. So does its
//! seal: a page that is sealed for an epoch has been rid of what is not at home there (`seal`), and this one may still hold some.

use std::collections::BTreeSet;
use std::rc::Rc;

use engine::View;
use pool::TablePage;
use xxhash_rust::xxh3::xxh3_64;

use super::bundle::Bundles;
use super::plan::{Placed, Plan, Put, plan, unused};
use super::{ATTEMPTS_MAX, Record, Table, TableError, bump};
use crate::page::{Draft, Forward, Identity, Kind, PageError, Reference, TablePageView, is_left_of};
use crate::types::{Ballot, Key, OpId, Timestamp};
use crate::value::Value;

/// A damaged page.
#[derive(Clone)]
pub(crate) struct Damaged {
    bytes: View,
    /// The bytes are no page's image, but what a medium shows: it may show them again after the page was rebuilt.
    may_repeat: bool,
    /// It is a page; these bundles of its are lost.
    lost: Option<Vec<LostBundle>>,
}

/// A bundle that is lost, with what the page says of it: one that this host can't read another may have at hand, and delete
/// keys that are in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LostBundle {
    reference: Reference,
    deletions: u64,
}

/// By what damage is known again. A page that was put right and is damaged anew has another mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DamageMark {
    /// The page itself, by a checksum of its bytes.
    Page(u64),
    /// These bundles, and what had been deleted of them. (What is stored of a key in them is in the page from then on.)
    Bundles(Vec<LostBundle>),
}

impl DamageMark {
    /// That of a page of these bytes.
    pub(crate) fn of_page(bytes: &[u8]) -> DamageMark {
        DamageMark::Page(xxh3_64(bytes))
    }
}

impl Damaged {
    /// The mark of this damage.
    pub(crate) fn mark(&self) -> DamageMark {
        match &self.lost {
            Some(lost) => DamageMark::Bundles(lost.clone()),
            None => DamageMark::of_page(&self.bytes),
        }
    }

    /// Whether the page may be lost for a second time and look the same. (What is left of an image does not: its version, or its
    /// salt, is used once.)
    pub(crate) fn may_repeat(&self) -> bool {
        self.may_repeat
    }

    /// Whether nothing is damaged but what had been when this mark was taken. (Writes to a page go on beside a lost bundle.)
    pub(crate) fn is_within(&self, mark: &DamageMark) -> bool {
        match (mark, self.mark()) {
            (DamageMark::Bundles(before), DamageMark::Bundles(now)) => now.iter().all(|lost| before.contains(lost)),
            (before, now) => *before == now,
        }
    }
}

impl Table {
    /// A page, if it is damaged; `None` if it is good (again). A page of a newer format is an error: it is not damaged,
    /// and what a newer version wrote would be lost by a rebuild.
    pub(crate) async fn damaged_page(&self, page: TablePage) -> Result<Option<Damaged>, TableError> {
        let mut bytes = self.read_raw(page).await?;
        for _ in 0..ATTEMPTS_MAX {
            let view = match self.decode(page, &bytes) {
                Ok(view) => view,
                Err(TableError::Page { error, .. }) if error.is_damage() => {
                    // One of another life is none that was ever here in this one; and it may be a stranger's.
                    let is_image = matches!(error, PageError::Incarnation { .. });
                    let may_repeat = !is_image && !is_left_of(&bytes, self.identity(page));
                    return Ok(Some(Damaged { bytes, may_repeat, lost: None }));
                }
                Err(error) => return Err(error),
            };
            let mut lost = Vec::new();
            for forward in view.forwards() {
                if self.fetch_bundle(page, &forward).await?.is_none() {
                    lost.push(LostBundle { reference: forward.reference, deletions: forward.deletions_mark() });
                }
            }
            if lost.is_empty() {
                return Ok(None);
            }
            // What was in them must come from elsewhere, unless the page has ceased to refer to them.
            let now = self.read_raw(page).await?;
            if now[..] == bytes[..] {
                return Ok(Some(Damaged { bytes, may_repeat: false, lost: Some(lost) }));
            }
            bytes = now;
        }
        Err(TableError::Contended)
    }

    pub(super) fn identity(&self, page: TablePage) -> Identity {
        Identity { kind: Kind::Table, page: page.0, incarnation: self.incarnation }
    }

    /// Begins to rebuild a page that is damaged, or whose bundles are. One more that is lost by now is an error: what others
    /// held was looked for before that. `unsealed`: it must not have been sealed for this epoch when it comes back.
    pub(crate) async fn begin_rebuild(
        self: &Rc<Self>,
        page: TablePage,
        damaged: Damaged,
        unsealed: bool,
    ) -> Result<Rebuilding, TableError> {
        // Its values may need all the room that they had.
        self.save_room();
        let good = match damaged.lost {
            Some(lost) => self.look_again(page, &lost, unsealed).await?.ok_or(TableError::Contended)?,
            None => Good { bytes: damaged.bytes, lost: Vec::new(), there: BTreeSet::new() },
        };
        Ok(Rebuilding { table: self.clone(), page, good, unsealed, records: Vec::new(), placed: Vec::new(), inline: 0 })
    }

    /// What is good of a page now of whose bundles some, or all, of `before` are lost; `None`: nothing of it is damaged any
    /// more. It is an error if more is.
    async fn look_again(
        &self,
        page: TablePage,
        before: &[LostBundle],
        unsealed: bool,
    ) -> Result<Option<Good>, TableError> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(Damaged { bytes, lost, .. }) = self.damaged_page(page).await? else { return Ok(None) };
            let lost = lost.filter(|lost| lost.iter().all(|bundle| before.contains(bundle)));
            let lost = lost.ok_or(TableError::Contended)?;
            let view = self.decode(page, &bytes)?;
            let seal = view.header().seal;
            self.check_seal(page, seal)?;
            if unsealed && seal == self.epoch {
                return Err(TableError::Contended);
            }
            if let Some(there) = self.keys_there(page, &view, &lost).await? {
                return Ok(Some(Good { bytes, lost, there }));
            }
        }
        Err(TableError::Contended)
    }

    /// The keys that a page holds, beside those of its bundles that are lost; `None`: one more is not there by now.
    async fn keys_there(
        &self,
        page: TablePage,
        view: &TablePageView<'_>,
        lost: &[LostBundle],
    ) -> Result<Option<BTreeSet<Vec<u8>>>, TableError> {
        let mut good = Bundles::default();
        let is_lost = |forward: &Forward<'_>| lost.iter().any(|bundle| bundle.reference == forward.reference);
        for forward in view.forwards().filter(|forward| !is_lost(forward)) {
            let Some(bytes) = self.fetch_bundle(page, &forward).await? else { return Ok(None) };
            good.add(forward.reference.copy, bytes);
        }
        let mut there: BTreeSet<_> = view.entries().map(|entry| entry.key.to_vec()).collect();
        there.extend(good.entries(view).into_iter().map(|bundled| bundled.entry.key.to_vec()));
        Ok(Some(there))
    }
}

/// What of a page stays when it is rebuilt: nothing if it is damaged itself.
struct Good {
    /// The page as it is.
    bytes: View,
    /// Its bundles that are lost.
    lost: Vec<LostBundle>,
    /// Its keys that are not.
    there: BTreeSet<Vec<u8>>,
}

/// A page that is being rebuilt, record by record. It holds no more values than fit a page: others are placed at once.
pub(crate) struct Rebuilding {
    table: Rc<Table>,
    page: TablePage,
    good: Good,
    unsealed: bool,
    records: Vec<Gathered>,
    placed: Vec<Placed>,
    /// Bytes of values in `records`.
    inline: usize,
}

struct Gathered {
    key: Key,
    record: Record,
    promise: Ballot,
    /// Bytes of the value, if it was placed.
    elsewhere: Option<u32>,
}

impl Rebuilding {
    fn room(&self) -> usize {
        self.table.room()
    }

    /// Whether the page is good and holds this key: what it says of it stays.
    pub(crate) fn holds(&self, key: &Key) -> bool {
        self.good.there.contains(key.bytes())
    }

    /// The page is to hold this, under the promise beside it.
    pub(crate) async fn add(&mut self, key: &Key, mut record: Record, promise: Ballot) -> Result<(), TableError> {
        if self.holds(key) {
            return Ok(());
        }
        let length = record.value.as_ref().map_or(0, Value::len);
        let mut elsewhere = None;
        if self.inline + length <= self.room() {
            self.inline += length;
        } else if let Some(value) = record.value.take() {
            let (timestamp, since) = (record.timestamp, engine::time::now());
            let reference = self.table.place(self.page, timestamp.op, &value).await?;
            self.placed.push(Placed {
                key: key.bytes().to_vec(),
                timestamp,
                reference,
                since,
                early: None,
                bundle: None,
            });
            elsewhere = Some(length as u32);
        }
        self.records.push(Gathered { key: key.clone(), record, promise, elsewhere });
        Ok(())
    }

    /// Replaces the page by one that holds what was added; no more, unless it was good.
    pub(crate) async fn finish(mut self) -> Result<(), TableError> {
        let records = std::mem::take(&mut self.records);
        let result = self.write(&records).await;
        if result == Ok(true) {
            for bundle in &self.good.lost {
                self.table.free_later(self.page, bundle.reference, OpId::default()).await;
            }
        }
        if !result.as_ref().is_err_and(TableError::outcome_unknown) {
            // What the page does not refer to.
            self.give_up().await;
        }
        result.map(|_written| ())
    }

    /// Puts what was gathered into the page; `false`: somebody else has, or it is another by now.
    ///
    /// A page that is good but for a lost bundle may be written meanwhile: what it says by then of other keys stays as well. Of
    /// those that are lost it takes no store.
    async fn write(&mut self, records: &[Gathered]) -> Result<bool, TableError> {
        let (table, page) = (self.table.clone(), self.page);
        for _ in 0..ATTEMPTS_MAX {
            match self.write_over(records).await {
                Err(TableError::Device(device::Error::CompareFailure)) => bump(&table.stats.misses),
                result => return result.map(|()| true),
            }
            let Some(good) = table.look_again(page, &self.good.lost, self.unsealed).await? else { return Ok(false) };
            // This image is younger than the copies: a collector may have condemned them since.
            for copy in &self.placed {
                if !table.is_whole(page, &copy.reference, copy.timestamp.op).await? {
                    return Err(TableError::Contended);
                }
            }
            self.good = good;
        }
        Err(TableError::Contended)
    }

    /// One compare-and-write of the page as it was seen last.
    async fn write_over(&mut self, records: &[Gathered]) -> Result<(), TableError> {
        let mut puts = Vec::with_capacity(records.len());
        for Gathered { key, record, promise, elsewhere } in records.iter().filter(|gathered| !self.holds(&gathered.key))
        {
            let mut put = match record.timestamp {
                Timestamp::ZERO => Put::promise(key.bytes()),
                _ => Put::new(key.bytes(), record, self.room()).placed(*elsewhere),
            };
            put.promise = *promise;
            puts.push(put);
        }
        let (table, page, since) = (self.table.clone(), self.page, engine::time::now());
        let identity = table.identity(page);
        let (damaged, salt) = (self.good.bytes.clone(), engine::task::random_u64());
        let mut base = match table.decode(page, &damaged) {
            Ok(view) => Draft::new(&view),
            Err(_) => {
                let mut base = Draft::rebuild(identity, table.layout.page_bytes(), salt);
                // It may have been sealed, for no later epoch: who rebuilds it has learnt the newest since.
                base.seal(table.epoch);
                base
            }
        };
        self.good.lost.iter().for_each(|bundle| base.remove_forward(bundle.reference.copy));
        let mut search = table.search();
        for _ in 0..ATTEMPTS_MAX {
            match plan(base.clone(), &puts, &self.placed, search.wanted()) {
                Ok(Plan::Place { key, timestamp, value }) => {
                    let placed = table.place_wanted(page, timestamp.op, &value, &mut search).await?;
                    let copy = placed.map(|reference| Placed::new(key, timestamp, &value, reference, since));
                    self.placed.extend(copy);
                }
                Ok(Plan::Write(new)) => {
                    let lock = table.locks.lock(u64::from(page.0)).await;
                    lock.set_image(None);
                    table.replace(table.layout.table(page), damaged, new.clone()).await?;
                    drop(lock);
                    let view = table.decode(page, &new)?;
                    self.placed = unused(&view, std::mem::take(&mut self.placed));
                    return Ok(());
                }
                Err(TableError::OutOfSpace(_)) if search.refused() => {}
                Err(error) => return Err(error),
            }
        }
        Err(TableError::Contended)
    }

    /// Frees the copies that were placed and to which the page does not, and will not, refer.
    pub(crate) async fn give_up(self) {
        for copy in self.placed {
            self.table.free_later(self.page, copy.reference, copy.timestamp.op).await;
        }
    }
}
