//! Rebuilding a damaged table page from what the other replicas hold.
//!
//! The page becomes good in one compare-and-write with all its entries: a page that was first emptied and then filled would
//! vote "never written" in between, and an acknowledged value would be lost to a majority that includes it. It comes back
//! under the seal of its rebuilder's epoch, for it may have been closed to older ones. When and from whom the entries may be
//! gathered is the caller's part (`store::repair`).

use std::rc::Rc;

use device::Namespace;
use engine::View;
use pool::TablePage;

use super::plan::{Placed, Plan, Put, plan};
use super::{Record, Table, TableError};
use crate::page::{Draft, Identity, Kind, PageError};
use crate::types::{Ballot, Key, Timestamp};
use crate::value::Value;

impl<N: Namespace> Table<N> {
    /// The bytes of a damaged page; `None` if it is good (again). A page of a newer format is an error: it is not damaged,
    /// and what a newer version wrote would be lost by a rebuild.
    pub(crate) async fn damaged_image(&self, page: TablePage) -> Result<Option<View>, TableError> {
        let bytes = self.read_raw(page).await?;
        match self.decode(page, &bytes) {
            Ok(_) => Ok(None),
            Err(error @ TableError::Page { error: PageError::Newer(_), .. }) => Err(error),
            Err(_) => Ok(Some(bytes)),
        }
    }

    /// Begins to rebuild `page`, whose bytes are `damaged`.
    pub(crate) fn begin_rebuild(self: &Rc<Self>, page: TablePage, damaged: View) -> Rebuilding<N> {
        Rebuilding { table: self.clone(), page, damaged, records: Vec::new(), placed: Vec::new(), inline: 0 }
    }
}

/// A page that is being rebuilt, record by record. It holds no more values than fit a page: others are placed at once.
pub(crate) struct Rebuilding<N: Namespace> {
    table: Rc<Table<N>>,
    page: TablePage,
    damaged: View,
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
        let length = record.value.as_ref().map_or(0, Value::len);
        let mut elsewhere = None;
        if self.inline + length <= self.room() {
            self.inline += length;
        } else if let Some(value) = record.value.take() {
            let (timestamp, since) = (record.timestamp, engine::time::now());
            let reference = self.table.place(self.page, timestamp.op, &value).await?;
            self.placed.push(Placed { key: key.bytes().to_vec(), timestamp, reference, since, early: false });
            elsewhere = Some(length as u32);
        }
        self.records.push(Gathered { key: key.clone(), record, promise, elsewhere });
        Ok(())
    }

    /// Replaces the page by one that holds exactly what was added.
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
        if result.as_ref().is_err_and(|error| !error.outcome_unknown()) {
            self.give_up().await;
        }
        result
    }

    async fn write(&mut self, puts: &[Put<'_>]) -> Result<(), TableError> {
        let (table, page, since) = (self.table.clone(), self.page, engine::time::now());
        let identity = Identity { kind: Kind::Table, page: page.0, incarnation: table.incarnation };
        let salt = engine::task::random_u64();
        // Every turn but the last places one value.
        for _ in 0..=puts.len() {
            let mut draft = Draft::rebuild(identity, table.layout.page_bytes(), salt);
            // The damaged one may have been sealed, for no later epoch: its neighbours would have said so.
            draft.seal(table.epoch);
            match plan(draft, &self.damaged, puts, &self.placed)? {
                Plan::Place { key, timestamp, value } => {
                    let reference = table.place(page, timestamp.op, &value).await?;
                    self.placed.push(Placed { key, timestamp, reference, since, early: false });
                }
                Plan::Write(new) => {
                    let lock = table.locks.lock(u64::from(page.0)).await;
                    lock.set_image(None);
                    return Ok(table.replace(table.layout.table(page), self.damaged.clone(), new).await?);
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
