//! Rebuilding a damaged table page from what the other replicas hold.
//!
//! The page becomes good in one compare-and-write with all its entries: a page that was first emptied and then filled would
//! vote "never written" in between, and an acknowledged value would be lost to a majority that includes it. It comes back
//! under the seal of its rebuilder's epoch, for it may have been closed to older ones. When and from whom the entries may be
//! gathered is the caller's part (`store::repair`).
//!
//! A page whose bundle is lost has no vote on what was in it. It is whole but for that: what it says of all other keys, and the
//! guests that lie in it, stay, and the keys that it does not hold any more are gathered as those of a damaged page.

use std::collections::BTreeSet;
use std::rc::Rc;

use device::Namespace;
use engine::View;
use pool::TablePage;

use super::bundle::Bundles;
use super::plan::{BUNDLE_SHARE, BUNDLE_SHARE_MAX, Placed, Plan, Put, plan};
use super::{ATTEMPTS_MAX, Record, Table, TableError};
use crate::page::{Draft, Identity, Kind, PageError, Reference};
use crate::types::{Ballot, Key, OpId, Timestamp};
use crate::value::Value;

impl<N: Namespace> Table<N> {
    /// The bytes of a damaged page; `None` if it is good (again). A page of a newer format is an error: it is not damaged,
    /// and what a newer version wrote would be lost by a rebuild.
    pub(crate) async fn damaged_image(&self, page: TablePage) -> Result<Option<View>, TableError> {
        let bytes = self.read_raw(page).await?;
        match self.decode(page, &bytes) {
            Ok(_) => match self.complete(page, bytes.clone(), None).await {
                Ok(_) => Ok(None),
                // A bundle is lost: what was in it must come from elsewhere.
                Err(TableError::CopyDamaged { .. }) => Ok(Some(bytes)),
                Err(error) => Err(error),
            },
            Err(error @ TableError::Page { error: PageError::Newer(_), .. }) => Err(error),
            Err(_) => Ok(Some(bytes)),
        }
    }

    /// Begins to rebuild `page`, whose bytes are `damaged`, or one of whose bundles is.
    pub(crate) async fn begin_rebuild(
        self: &Rc<Self>,
        page: TablePage,
        damaged: View,
    ) -> Result<Rebuilding<N>, TableError> {
        let (mut there, mut lost) = (BTreeSet::new(), Vec::new());
        if let Ok(view) = self.decode(page, &damaged) {
            self.check_seal(page, view.header().seal)?;
            let mut good = Bundles::default();
            for forward in view.forwards() {
                match self.fetch_bundle(page, &forward).await? {
                    Some(bytes) => good.add(forward.reference.copy, bytes),
                    None => lost.push(forward.reference),
                }
            }
            there.extend(view.entries().map(|entry| entry.key.to_vec()));
            there.extend(good.entries(&view).into_iter().map(|bundled| bundled.entry.key.to_vec()));
        }
        let (records, placed) = (Vec::new(), Vec::new());
        Ok(Rebuilding { table: self.clone(), page, damaged, there, lost, records, placed, inline: 0 })
    }
}

/// A page that is being rebuilt, record by record. It holds no more values than fit a page: others are placed at once.
pub(crate) struct Rebuilding<N: Namespace> {
    table: Rc<Table<N>>,
    page: TablePage,
    damaged: View,
    /// Keys of a good page that are not lost: what it says of them stays.
    there: BTreeSet<Vec<u8>>,
    /// The bundles of a good page that are lost.
    lost: Vec<Reference>,
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

impl<N: Namespace> Rebuilding<N> {
    fn room(&self) -> usize {
        self.table.layout.page_bytes() - crate::page::HEADER_BYTES
    }

    /// The page is to hold this, under the promise beside it.
    pub(crate) async fn add(&mut self, key: &Key, mut record: Record, promise: Ballot) -> Result<(), TableError> {
        if self.there.contains(key.bytes()) {
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
                early: false,
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
        let mut puts = Vec::with_capacity(records.len());
        for Gathered { key, record, promise, elsewhere } in &records {
            let mut put = match record.timestamp {
                Timestamp::ZERO => Put::promise(key.bytes()),
                _ => Put::new(key.bytes(), record, self.room()).placed(*elsewhere),
            };
            put.promise = *promise;
            puts.push(put);
        }
        let result = self.write(&puts).await;
        if result.is_ok() {
            for &bundle in &self.lost {
                self.table.free_later(self.page, bundle, OpId::default()).await;
            }
        }
        if result.as_ref().is_err_and(|error| !error.outcome_unknown()) {
            self.give_up().await;
        }
        result
    }

    async fn write(&mut self, puts: &[Put<'_>]) -> Result<(), TableError> {
        let (table, page, since) = (self.table.clone(), self.page, engine::time::now());
        let identity = Identity { kind: Kind::Table, page: page.0, incarnation: table.incarnation };
        let (damaged, salt) = (self.damaged.clone(), engine::task::random_u64());
        let mut base = match table.decode(page, &damaged) {
            Ok(view) => Draft::new(&view),
            Err(_) => Draft::rebuild(identity, table.layout.page_bytes(), salt),
        };
        self.lost.iter().for_each(|bundle| base.remove_forward(bundle.copy));
        // A damaged one may have been sealed, for no later epoch: its neighbours would have said so.
        base.seal(table.epoch);
        let mut share = BUNDLE_SHARE;
        for _ in 0..ATTEMPTS_MAX {
            match plan(base.clone(), puts, &self.placed, share)? {
                Plan::Place { key, timestamp, value } => match table.place(page, timestamp.op, &value).await {
                    Ok(reference) => self.placed.push(Placed::new(key, timestamp, &value, reference, since)),
                    // A shorter bundle may find a place.
                    Err(TableError::OutOfSpace(_)) if key.is_empty() && share < BUNDLE_SHARE_MAX => share *= 2,
                    Err(error) => return Err(error),
                },
                Plan::Write(new) => {
                    let lock = table.locks.lock(u64::from(page.0)).await;
                    lock.set_image(None);
                    return Ok(table.replace(table.layout.table(page), damaged.clone(), new).await?);
                }
            }
        }
        Err(TableError::Contended)
    }

    /// Frees the copies that were placed: the page will not refer to them.
    pub(crate) async fn give_up(self) {
        for copy in self.placed {
            self.table.free_later(self.page, copy.reference, copy.timestamp.op).await;
        }
    }
}
