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
use super::{Record, Table, TableError, uncertain};
use crate::page::{Draft, Identity, Kind, PageError};
use crate::types::{Ballot, Key, Timestamp};

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

    /// Replaces `page`, whose bytes are `damaged`, by one that holds exactly `records`, each under the promise beside it.
    pub(crate) async fn rebuild(
        self: &Rc<Self>,
        page: TablePage,
        damaged: View,
        records: &[(Key, Record, Ballot)],
    ) -> Result<(), TableError> {
        let identity = Identity { kind: Kind::Table, page: page.0, incarnation: self.incarnation };
        let (size, salt) = (self.layout.page_bytes(), engine::task::random_u64());
        let room = size - crate::page::HEADER_BYTES;
        let mut puts = Vec::with_capacity(records.len());
        for (key, record, promise) in records {
            let mut put = match record.timestamp {
                Timestamp::ZERO => Put::promise(key.bytes()),
                _ => Put::new(key.bytes(), record, room),
            };
            put.promise = *promise;
            puts.push(put);
        }
        let (mut placed, since) = (Vec::<Placed>::new(), engine::time::now());
        // Every turn but the last places one value.
        for _ in 0..=puts.len() {
            let mut draft = Draft::rebuild(identity, size, salt);
            // The damaged one may have been sealed, for no later epoch: its neighbours would have said so.
            draft.seal(self.epoch);
            match plan(draft, &damaged, &puts, &placed)? {
                Plan::Place { key, timestamp, value } => match self.place(page, timestamp.op, &value).await {
                    Ok(reference) => placed.push(Placed { key, timestamp, reference, since, early: false }),
                    Err(error) => {
                        self.discard(page, placed).await;
                        return Err(error);
                    }
                },
                Plan::Write(new) => {
                    let lock = self.locks.lock(u64::from(page.0)).await;
                    lock.set_image(None);
                    let result = self.replace(self.layout.table(page), damaged, new).await;
                    drop(lock);
                    if matches!(&result, Err(error) if !uncertain(error)) {
                        self.discard(page, placed).await;
                    }
                    return Ok(result?);
                }
            }
        }
        Err(TableError::Contended)
    }

    /// Frees copies that were never published.
    async fn discard(self: &Rc<Self>, page: TablePage, placed: Vec<Placed>) {
        for copy in placed {
            self.free_later(page, copy.reference, copy.timestamp.op).await;
        }
    }
}
