//! What a gateway counts, readable from any thread, and the list of its connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the latency histogram, in microseconds: powers of two from 16 us to 8.4 s.
pub const LATENCY_BOUNDS_US: [u64; 20] = {
    let mut bounds = [16; 20];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] * 2;
        index += 1;
    }
    bounds
};

/// A histogram of latencies in fixed buckets; cheap enough for every command.
#[derive(Default, Debug)]
pub struct LatencyHistogram {
    /// One count per bound, and one for what is longer; not cumulative.
    buckets: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl LatencyHistogram {
    /// Counts one operation.
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let index = LATENCY_BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[index].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Counts per bucket (not cumulative; the last is above all bounds), and the sum in microseconds.
    pub fn snapshot(&self) -> ([u64; LATENCY_BOUNDS_US.len() + 1], u64) {
        (std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed)), self.sum_us.load(Ordering::Relaxed))
    }
}

/// Counters of a gateway, over all its connections and threads.
#[derive(Default, Debug)]
pub struct GatewayStats {
    /// Connections accepted.
    pub connections_total: AtomicU64,
    /// Connections open.
    pub connections: AtomicU64,
    /// Connections refused at the limit.
    pub connections_refused: AtomicU64,
    /// Commands answered, errors included.
    pub commands: AtomicU64,
    /// Commands answered by an error.
    pub errors: AtomicU64,
    /// Connections ended by a protocol error.
    pub protocol_errors: AtomicU64,
    /// Reads that found their key.
    pub hits: AtomicU64,
    /// Reads that found nothing.
    pub misses: AtomicU64,
    /// Bytes received.
    pub bytes_received: AtomicU64,
    /// Bytes sent.
    pub bytes_sent: AtomicU64,
    /// From the command's decoding to its reply, of commands that read.
    pub read_latency: LatencyHistogram,
    /// From the command's decoding to its reply, of commands that write.
    pub write_latency: LatencyHistogram,
}

impl GatewayStats {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Reads a counter.
    pub fn load(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// What all connections of a gateway share. Off the data path but for the atomics.
#[derive(Default, Debug)]
pub struct Shared {
    /// Counters.
    pub stats: GatewayStats,
    /// One line per connection for `CLIENT LIST`, by id.
    clients: Mutex<BTreeMap<u64, String>>,
    last_id: AtomicU64,
}

impl Shared {
    /// An id that no connection of this gateway had before.
    pub fn next_client_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sets or replaces a connection's line.
    pub fn set_client(&self, id: u64, line: String) {
        self.lock().insert(id, line);
    }

    /// Forgets a connection.
    pub fn remove_client(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// All lines, by id.
    pub fn client_list(&self) -> String {
        self.lock().values().map(|line| format!("{line}\n")).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, String>> {
        // A panic elsewhere leaves whole lines behind: each change is one map operation.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_first_bucket_that_holds_it() {
        let histogram = LatencyHistogram::default();
        for us in [0, 16, 17, 32, 1 << 40] {
            histogram.record(Duration::from_micros(us));
        }
        let (buckets, sum) = histogram.snapshot();
        assert_eq!((buckets[0], buckets[1], buckets[LATENCY_BOUNDS_US.len()]), (2, 2, 1));
        assert_eq!(sum, 65 + (1 << 40));
    }
}
