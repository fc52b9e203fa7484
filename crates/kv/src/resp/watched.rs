//! A [`Backend`] whose operations somebody watches: to take their time, or, in tests, to come in between.

use std::time::Duration;

use engine::time;

use super::backend::{Backend, Change, Entry, Failure, Look, Room, ScanPage};
use super::reply::Reply;
use crate::value::Value;

/// What is done with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// It is read.
    Get,
    /// It is put, whatever was there.
    Put,
    /// It is removed, whatever was there.
    Delete,
    /// It is changed by what is there.
    Update,
}

/// Who watches.
#[allow(async_fn_in_trait)] // local futures by design: one reactor per thread
pub trait Watch: 'static {
    /// An operation on this key is about to begin.
    async fn begins(&self, _operation: Operation, _key: &[u8]) {}

    /// One has ended after so long.
    fn ended(&self, _operation: Operation, _took: Duration) {}
}

/// See the module.
#[derive(Debug)]
pub struct Watched<B, W> {
    /// What does the work.
    pub inner: B,
    /// Who watches it.
    pub watch: W,
}

impl<B: Backend, W: Watch> Watched<B, W> {
    async fn watched<T>(&self, operation: Operation, key: &[u8], work: impl Future<Output = T>) -> T {
        self.watch.begins(operation, key).await;
        let since = time::now();
        let result = work.await;
        self.watch.ended(operation, since.elapsed());
        result
    }
}

impl<B: Backend, W: Watch> Backend for Watched<B, W> {
    async fn entry(&self, key: &[u8], room: Room) -> Result<Option<Entry>, Failure> {
        self.watched(Operation::Get, key, self.inner.entry(key, room)).await
    }

    async fn look(&self, key: &[u8]) -> Result<Option<Look>, Failure> {
        self.inner.look(key).await
    }

    async fn put_entry(&self, key: &[u8], entry: Entry) -> Result<(), Failure> {
        self.watched(Operation::Put, key, self.inner.put_entry(key, entry)).await
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, Failure> {
        self.watched(Operation::Delete, key, self.inner.delete(key)).await
    }

    async fn update(
        &self,
        key: &[u8],
        room: Room,
        decide: impl FnMut(Option<&Entry>) -> Change,
    ) -> Result<Reply, Failure> {
        self.watched(Operation::Update, key, self.inner.update(key, room, decide)).await
    }

    async fn put_entries(&self, puts: Vec<(&[u8], Entry)>) -> Vec<Result<(), Failure>> {
        for (key, _) in &puts {
            self.watch.begins(Operation::Put, key).await;
        }
        let since = time::now();
        let results = self.inner.put_entries(puts).await;
        results.iter().for_each(|_| self.watch.ended(Operation::Put, since.elapsed()));
        results
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure> {
        self.watched(Operation::Get, key, self.inner.get(key)).await
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.watched(Operation::Put, key, self.inner.put(key, value)).await
    }

    async fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Failure> {
        self.inner.scan(cursor, count).await
    }

    fn random_cursor(&self) -> u64 {
        self.inner.random_cursor()
    }

    async fn estimate_keys(&self) -> Result<u64, Failure> {
        self.inner.estimate_keys().await
    }

    fn further_copies(&self) -> u64 {
        self.inner.further_copies()
    }

    fn info(&self) -> Vec<(String, String)> {
        self.inner.info()
    }
}
