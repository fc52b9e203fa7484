//! How a volume behaves at a host.

use std::time::Duration;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The volume that is meant: holders of another one are refused. `None`: whichever the holders are of.
    pub volume: Option<u128>,
    /// How long a replica that is lost may take to come back before the others go on without it.
    pub give_up_after: Duration,
    /// How long a command waits where no replica can be reached that it needs. Then it fails; what was sent goes on.
    pub wait_max: Duration,
    /// How long attaching may take, beside the wait for older leases.
    pub attach_timeout: Duration,
    /// After how long without a write the intent of a region is cleared, at least; longer where regions are written again soon
    /// after.
    pub clear_after: Duration,
    /// Bytes that are compared a second in regions that may differ, in the background; `None`: as fast as it goes.
    pub settle_bytes_per_second: Option<u64>,
    /// Bytes that are copied a second to a replica that is behind; `None`: as fast as it goes.
    pub resync_bytes_per_second: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            volume: None,
            give_up_after: Duration::from_secs(1),
            wait_max: Duration::from_secs(30),
            attach_timeout: Duration::from_secs(30),
            clear_after: Duration::from_secs(5),
            settle_bytes_per_second: None,
            resync_bytes_per_second: Some(256 << 20),
        }
    }
}
