//! What a world may do to the code that runs in it. The defaults do nothing but take a little time.

use std::ops::Range;
use std::time::Duration;

/// The dials of a world. `Default` is a world without faults: small delays, split and merged segments, honest disks.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// One-way delay of a segment, drawn for each; order within a connection is kept.
    pub link_delay: Range<Duration>,
    /// Bytes per second of each direction of a connection; `None`: no limit.
    pub link_bandwidth: Option<u64>,
    /// Bytes that may be under way or unread in one direction before `send` waits.
    pub link_window: usize,
    /// Chance of a connection being reset, per call of `send` (parts per million).
    pub connection_reset_ppm: u32,
    /// How long a request for a connection, or bytes held by a partition, go unanswered before the sender gives up.
    pub connection_timeout: Duration,
    /// The disks that `File::open` creates; [`World::disk`](super::World::disk) takes its own.
    pub disk: DiskConfig,
    /// Wall clocks of the nodes are off by up to this much.
    pub clock_offset_max: Duration,
    /// Wall clocks of the nodes run fast or slow by up to this many parts per million.
    pub clock_drift_ppm_max: u32,
    /// Monotonic clocks of the nodes, and so their timers, run fast or slow by up to this much.
    pub monotonic_drift_ppm_max: u32,
    /// A run that has not ended by then is reported as [`Stalled`](super::Stalled).
    pub virtual_time_max: Duration,
    /// Polls of tasks without any progress of time before a run is reported as stalled: tasks that spin.
    pub polls_per_instant_max: u64,
    /// Keeps the text of the complete trace, not only its tail.
    pub complete_trace: bool,
}

impl Default for SimConfig {
    fn default() -> SimConfig {
        SimConfig {
            link_delay: Duration::from_micros(10)..Duration::from_micros(60),
            link_bandwidth: None,
            link_window: 256 * 1024,
            connection_reset_ppm: 0,
            connection_timeout: Duration::from_secs(10),
            disk: DiskConfig::default(),
            clock_offset_max: Duration::ZERO,
            clock_drift_ppm_max: 0,
            monotonic_drift_ppm_max: 0,
            virtual_time_max: Duration::from_secs(3600),
            polls_per_instant_max: 1_000_000,
            complete_trace: false,
        }
    }
}

/// The dials of one disk. `Default` has a volatile cache, tears writes at a crash, and never fails.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// How long a read, write or flush takes, drawn for each.
    pub delay: Range<Duration>,
    /// Chance of a read failing with EIO (parts per million).
    pub read_error_ppm: u32,
    /// Chance of a read giving other bytes than are there, once (parts per million).
    pub misread_ppm: u32,
    /// Chance of a write, zeroing or flush failing with EIO; a failed write may have changed any of its sectors.
    pub write_error_ppm: u32,
    /// At a crash a write may survive in part, sector by sector; otherwise as a whole or not at all.
    pub torn: bool,
    /// Writes may be lost at a crash until they are flushed; otherwise every acknowledged write is stable.
    pub volatile_cache: bool,
}

impl Default for DiskConfig {
    fn default() -> DiskConfig {
        DiskConfig {
            delay: Duration::from_micros(20)..Duration::from_micros(200),
            read_error_ppm: 0,
            misread_ppm: 0,
            write_error_ppm: 0,
            torn: true,
            volatile_cache: true,
        }
    }
}
