//! What a volume tells of itself: per replica the operations, bytes, latency, queue and state. Read from atomics.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use engine::figures;
use engine::histogram::Histogram;
use engine::job::{self, Jobs};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::record::HOLDERS_MAX;

/// Where a replica stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// There is no connection.
    Away = 0,
    /// It is connected and not in sync.
    Behind = 1,
    /// It is being resynchronised.
    Joining = 2,
    /// It has every acknowledged write. A witness: it is connected.
    InSync = 3,
}

/// Of one replica.
#[derive(Debug, Default)]
pub struct ReplicaFigures {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) log_writes: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) queue: AtomicU64,
    pub(crate) state: AtomicU64,
    pub(crate) latency: Histogram,
}

impl ReplicaFigures {
    /// Commands under way.
    pub fn queue(&self) -> u64 {
        self.queue.load(Relaxed)
    }

    /// Writes of log blocks.
    pub fn log_writes(&self) -> u64 {
        self.log_writes.load(Relaxed)
    }

    /// Reads and writes of data that were answered.
    pub fn operations(&self) -> (u64, u64) {
        (self.reads.load(Relaxed), self.writes.load(Relaxed))
    }

    pub(crate) fn answered(&self, is_read: bool, bytes: u64, took: Duration) {
        let (count, sum) = if is_read { (&self.reads, &self.bytes_read) } else { (&self.writes, &self.bytes_written) };
        count.fetch_add(1, Relaxed);
        sum.fetch_add(bytes, Relaxed);
        self.latency.record(took);
    }
}

/// Of one volume; a clone is the same figures, on any thread.
#[derive(Clone, Debug, Default)]
pub struct Figures(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    replicas: [ReplicaFigures; HOLDERS_MAX],
    jobs: Jobs,
    stuck: AtomicU64,
    /// How many holders the volume has.
    holders: AtomicUsize,
}

impl Figures {
    /// Those of the replica in a slot.
    pub fn replica(&self, slot: usize) -> &ReplicaFigures {
        &self.0.replicas[slot]
    }

    /// Regions that can't be settled, or copied to a replica that lacks them: no replica in sync can read a block of theirs.
    pub fn regions_stuck(&self) -> u64 {
        self.0.stuck.load(Relaxed)
    }

    pub(crate) fn stuck(&self, regions: usize) {
        self.0.stuck.store(regions as u64, Relaxed);
    }

    pub(crate) fn has_holders(&self, holders: usize) {
        self.0.holders.store(holders, Relaxed);
    }

    /// What goes on in the background.
    pub fn jobs(&self) -> &Jobs {
        &self.0.jobs
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&ReplicaFigures) -> u64;
        let all: [(&str, &str, Value); 7] = [
            ("yagura_volume_replica_reads", "Reads that a replica has answered.", |of| of.reads.load(Relaxed)),
            ("yagura_volume_replica_writes", "Writes that a replica has answered.", |of| of.writes.load(Relaxed)),
            ("yagura_volume_replica_read_bytes", "Bytes read from a replica.", |of| of.bytes_read.load(Relaxed)),
            ("yagura_volume_replica_written_bytes", "Bytes written to one.", |of| of.bytes_written.load(Relaxed)),
            ("yagura_volume_replica_log_writes", "Writes of its intent log.", |of| of.log_writes.load(Relaxed)),
            ("yagura_volume_replica_connections", "Connections made to it.", |of| of.connections.load(Relaxed)),
            ("yagura_volume_replica_queue", "Commands under way at it.", |of| of.queue.load(Relaxed)),
        ];
        let slots = || self.0.replicas.iter().zip(["0", "1", "2"]).take(self.0.holders.load(Relaxed));
        for (name, help, value) in all {
            let values = slots().map(|(replica, slot)| ([("slot", slot)], value(replica)));
            figures::gauges(&mut encoder, (name, help), values)?;
        }
        let help =
            "Whether a replica is away (0), behind (1), joining (2) or in sync (3); a witness is away or there (3).";
        let states = slots().map(|(replica, slot)| ([("slot", slot)], replica.state.load(Relaxed)));
        figures::gauges(&mut encoder, ("yagura_volume_replica_state", help), states)?;
        let help = "Regions that can't be settled or copied, since no replica in sync can read all of their blocks.";
        figures::gauge(&mut encoder, "yagura_volume_regions_stuck", help, self.regions_stuck())?;
        let latencies = self.0.replicas.iter().map(|replica| &replica.latency);
        let help = "Latency of the commands of a volume at its replicas, in seconds.";
        figures::merged(&mut encoder, "yagura_volume_latency_seconds", help, latencies)?;
        job::tell(&mut encoder, self.0.jobs.list())
    }
}
