//! How far a walk over a pool has come, and how fast it may go.

use std::cell::Cell;
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
///
/// Every command has its turn: it begins when what was read before it is paid for by time. So the rate holds over any span,
/// but for one command (a stretch of one member, or one value), and what was not used is not saved up.
pub(super) struct Pace {
    bytes_per_second: Option<u64>,
    /// When the next command may begin.
    next: Cell<Instant>,
    show: Option<ShowProgress>,
    progress: Cell<Progress>,
}

impl Pace {
    pub(super) fn new(bytes_per_second: Option<u64>, show: Option<ShowProgress>) -> Rc<Pace> {
        let (next, progress) = (Cell::new(time::now()), Cell::default());
        Rc::new(Pace { bytes_per_second, next, show, progress })
    }

    /// Another part of the walk begins.
    pub(super) fn begin(&self, what: &'static str) {
        self.progress.set(Progress { what, done: 0.0, ..self.progress.get() });
    }

    /// Waits for the turn of a command that reads `bytes`.
    pub(super) async fn take(&self, bytes: u64) {
        let progress = self.progress.get();
        self.progress.set(Progress { bytes: progress.bytes + bytes, ..progress });
        let Some(rate) = self.bytes_per_second else { return };
        let turn = self.next.get().max(time::now());
        self.next.set(turn + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
        time::sleep_until(turn).await;
    }

    /// The walk has come to hash `next` (`None`: its end), and seen `keys`.
    pub(super) fn reached_hash(&self, next: Option<u64>, keys: u64) {
        self.progress.set(Progress { keys, ..self.progress.get() });
        self.reached(next.map_or(1.0, |next| next as f64 / 2f64.powi(64)));
    }

    /// The walk has come so far.
    pub(super) fn reached(&self, done: f64) {
        self.progress.set(Progress { done, ..self.progress.get() });
        if let Some(show) = &self.show {
            show(&self.progress.get());
        }
    }

    /// The walk is over when its last command is paid for, too. Returns the bytes read.
    pub(super) async fn end(&self) -> u64 {
        if self.bytes_per_second.is_some() {
            time::sleep_until(self.next.get()).await;
        }
        self.progress.get().bytes
    }
}
