//! A store that takes the time of its operations.

use std::cell::RefCell;

use engine::time;
use hdrhistogram::Histogram;
use kv::resp::reply::Reply;
use kv::resp::{Backend, Change, Entry, Failure, Look, Room, ScanPage};
use serde::Serialize;

/// Longest time that is told apart: an hour, in microseconds.
const LATENCY_US_MAX: u64 = 3_600_000_000;

/// See the module.
#[derive(Debug)]
pub struct Timed<B> {
    inner: B,
    gets: RefCell<Histogram<u64>>,
    puts: RefCell<Histogram<u64>>,
}

/// Percentiles of one kind of operation, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Latency {
    /// Operations.
    pub count: u64,
    /// Half were this fast or faster.
    pub p50_us: u64,
    /// 99 of 100.
    pub p99_us: u64,
    /// 999 of 1000.
    pub p999_us: u64,
    /// The slowest.
    pub max_us: u64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Latency {
        Latency {
            count: histogram.len(),
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let Latency { count, p50_us, p99_us, p999_us, max_us } = self;
        format!("{count} operations, p50 {p50_us} us, p99 {p99_us} us, p99.9 {p999_us} us, slowest {max_us} us")
    }
}

impl<B> Timed<B> {
    /// Takes the time of what `inner` does.
    pub fn new(inner: B) -> Timed<B> {
        let histogram = || {
            let empty = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
            RefCell::new(empty.expect("invariant: the bounds and 3 digits are what the library takes"))
        };
        Timed { inner, gets: histogram(), puts: histogram() }
    }

    /// The store itself.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Times of gets so far.
    pub fn gets(&self) -> Latency {
        Latency::of(&self.gets.borrow())
    }

    /// Times of puts so far.
    pub fn puts(&self) -> Latency {
        Latency::of(&self.puts.borrow())
    }
}

fn record(histogram: &RefCell<Histogram<u64>>, since: time::Instant) {
    let us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
    histogram.borrow_mut().saturating_record(us.max(1));
}

impl<B: Backend> Backend for Timed<B> {
    async fn entry(&self, key: &[u8], room: Room) -> Result<Option<Entry>, Failure> {
        let since = time::now();
        let result = self.inner.entry(key, room).await;
        record(&self.gets, since);
        result
    }

    async fn look(&self, key: &[u8]) -> Result<Option<Look>, Failure> {
        self.inner.look(key).await
    }

    async fn put_entry(&self, key: &[u8], entry: Entry) -> Result<(), Failure> {
        let since = time::now();
        let result = self.inner.put_entry(key, entry).await;
        record(&self.puts, since);
        result
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, Failure> {
        self.inner.delete(key).await
    }

    async fn update(
        &self,
        key: &[u8],
        room: Room,
        decide: impl FnMut(Option<&Entry>) -> Change,
    ) -> Result<Reply, Failure> {
        self.inner.update(key, room, decide).await
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
