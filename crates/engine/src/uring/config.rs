//! The dials of a reactor.

use std::time::Duration;

/// How a reactor runs.
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// The core to pin the thread to.
    pub core: Option<usize>,
    /// The longest time to spin before sleeping while operations are in flight; zero: never spin.
    pub spin_max: Duration,
    /// Submission queue entries: operations handed over per system call. Rounded up to a power of two by the kernel.
    pub ring_entries: u32,
}

impl Default for ReactorConfig {
    /// Not pinned, spinning up to 200 us: several round trips over loopback where cores are far apart, and some latencies of a
    /// read from flash. Only waits of this order ever spin so long.
    fn default() -> ReactorConfig {
        ReactorConfig { core: None, spin_max: Duration::from_micros(200), ring_entries: 256 }
    }
}
