//! What the server counts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::figures::counters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

/// Counters of a server, read from any thread.
#[derive(Default, Debug)]
pub struct Figures {
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
pub struct UblkMetrics(pub Arc<Figures>);

impl Collector for UblkMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Figures { requests, failed, read_bytes, written_bytes } = &*self.0;
        let all = [
            ("requests", "Requests of the kernel that were answered.", load(requests)),
            ("requests_failed", "Those of them that were answered with an error.", load(failed)),
            ("read_bytes", "Bytes that the kernel has read.", load(read_bytes)),
            ("written_bytes", "Bytes that the kernel has written.", load(written_bytes)),
        ];
        counters(&mut encoder, "yagura_ublk_", &all)
    }
}
