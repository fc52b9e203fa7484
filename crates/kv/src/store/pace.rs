//! How far a walk over a pool has come, and how fast it may go.

use std::rc::Rc;
use std::time::Duration;

use engine::time::{self, Instant};

/// How far a walk has come.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Progress {
    /// What is being done, in a few words.
    pub what: &'static str,
    /// Share of this part of the walk, 0 to 1.
    pub done: f64,
    /// Bytes read since the walk began.
    pub bytes: u64,
    /// Keys seen.
    pub keys: u64,
}

/// Called with how far a walk has come.
pub type ShowProgress = Rc<dyn Fn(&Progress)>;

/// A walk's progress and its limit.
pub(super) struct Pace {
    start: Instant,
    bytes_per_second: Option<u64>,
    show: Option<ShowProgress>,
    pub(super) progress: Progress,
}

impl Pace {
    pub(super) fn new(bytes_per_second: Option<u64>, show: Option<ShowProgress>) -> Pace {
        Pace { start: time::now(), bytes_per_second, show, progress: Progress::default() }
    }

    /// Another part of the walk begins.
    pub(super) fn begin(&mut self, what: &'static str) {
        (self.progress.what, self.progress.done) = (what, 0.0);
    }

    /// The walk has come to hash `next` (`None`: its end), and read `bytes` more.
    pub(super) async fn step(&mut self, next: Option<u64>, bytes: u64) {
        self.step_to(next.map_or(1.0, |next| next as f64 / 2f64.powi(64)), bytes).await;
    }

    /// The walk has come so far, and read `bytes` more.
    pub(super) async fn step_to(&mut self, done: f64, bytes: u64) {
        self.progress.done = done;
        self.progress.bytes += bytes;
        if let Some(show) = &self.show {
            show(&self.progress);
        }
        if let Some(rate) = self.bytes_per_second {
            let due = Duration::from_secs_f64(self.progress.bytes as f64 / rate.max(1) as f64);
            time::sleep_until(self.start + due).await;
        }
    }
}
