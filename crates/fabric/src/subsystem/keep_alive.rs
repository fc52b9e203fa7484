//! The keep alive timer (NVMe Base 2.0c §3.9), and the time that a controller may be idle.
//!
//! The timer runs while the controller is enabled, ready and not shut down. Outside that the host owes us no keep alive; it
//! has [`IDLE_TIME_MAX`] to enable the controller or to go, or half-made associations would pile up.

use std::time::Duration;

use engine::time::Instant;

use super::limits::{IDLE_TIME_MAX, KEEP_ALIVE_GRANULARITY_100MS};

/// See the module.
#[derive(Debug)]
pub(super) struct KeepAlive {
    timeout: Duration,
    /// The longest timeout that may be set.
    timeout_ms_max: u32,
    /// How long a controller without a timeout may go unused while it is enabled.
    unused_max: Option<Duration>,
    running: bool,
    deadline: Option<Instant>,
}

impl KeepAlive {
    /// Of a controller that is not enabled yet; its idle time begins with [`KeepAlive::set`].
    pub fn new(timeout_ms_max: u32, unused_max: Option<Duration>) -> KeepAlive {
        KeepAlive { timeout: Duration::ZERO, timeout_ms_max, unused_max, running: false, deadline: None }
    }

    /// Sets the timeout, rounded up to the granularity; 0 switches it off. False if it is over the bound.
    pub fn set(&mut self, timeout_ms: u32, now: Instant) -> bool {
        if timeout_ms > self.timeout_ms_max {
            return false;
        }
        let step = u32::from(KEEP_ALIVE_GRANULARITY_100MS) * 100;
        self.timeout = Duration::from_millis(u64::from(timeout_ms.next_multiple_of(step)));
        self.restart(now);
        true
    }

    pub fn timeout_ms(&self) -> u32 {
        self.timeout.as_millis() as u32
    }

    /// A Keep Alive command came.
    pub fn heard(&mut self, now: Instant) {
        if self.running {
            self.restart(now);
        }
    }

    /// A command came.
    pub fn used(&mut self, now: Instant) {
        if self.running && self.timeout.is_zero() {
            self.restart(now);
        }
    }

    /// CC or CSTS has changed: whether the timer is to run.
    pub fn run(&mut self, running: bool, now: Instant) {
        if running != self.running {
            self.running = running;
            self.restart(now);
        }
    }

    fn restart(&mut self, now: Instant) {
        self.deadline = match self.running {
            true if self.timeout.is_zero() => self.unused_max.map(|time| now + time),
            true => Some(now + self.timeout),
            false => Some(now + IDLE_TIME_MAX),
        };
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}
