//! What the server counts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::figures::{counters, gauge};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

/// Counters of a server, read from any thread.
#[derive(Default, Debug)]
pub struct Figures {
    pub(crate) connections: AtomicU64,
    pub(crate) connections_total: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// A server's figures for Prometheus.
#[derive(Debug)]
pub struct NbdMetrics(pub Arc<Figures>);

impl Collector for NbdMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Figures { connections, connections_total, refused, requests, failed, read_bytes, written_bytes } = &*self.0;
        gauge(&mut encoder, "yagura_nbd_connections", "Clients that are connected.", load(connections))?;
        let all = [
            ("connections", "Clients that have connected.", load(connections_total)),
            ("connections_refused", "Those of them for whom there was no place.", load(refused)),
            ("requests", "Requests answered.", load(requests)),
            ("requests_failed", "Those of them that were answered with an error.", load(failed)),
            ("read_bytes", "Bytes that clients have read.", load(read_bytes)),
            ("written_bytes", "Bytes that clients have written.", load(written_bytes)),
        ];
        counters(&mut encoder, "yagura_nbd_", &all)
    }
}
