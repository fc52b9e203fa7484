//! The walk that migration and cleaning share: every page of every member in hash order, a stretch at a time, sealed on the
//! way, at a bounded rate, and noted in the map from time to time.

use std::time::Duration;

use engine::time::{self, Instant};
use pool::change::Phase;

use super::change::{Agreement, ChangeError, ChangeOptions, ChangeProgress, ChangeReport, Step};

/// Between two notes in the map. Chosen: what is lost by a crash is done again in about this time.
const NOTE_PERIOD: Duration = Duration::from_secs(5);
/// Pause before a stretch is tried again on members that did not answer.
pub(super) const STRETCH_PAUSE: Duration = Duration::from_millis(200);
/// How long a stretch is tried before the walk gives up.
pub(super) const STRETCH_TRIES: usize = 50;

/// A walk under way.
pub(super) struct Walk<'a> {
    phase: Phase,
    epoch: u64,
    agreement: &'a dyn Agreement,
    options: &'a ChangeOptions,
    start: Instant,
    noted: Instant,
    noted_bytes: u64,
    /// Bytes read and copied before this walk.
    before: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        phase: Phase,
        epoch: u64,
        agreement: &'a dyn Agreement,
        options: &'a ChangeOptions,
        report: &ChangeReport,
    ) -> Walk<'a> {
        let start = time::now();
        let (noted_bytes, before) = (report.copied_bytes, report.read_bytes + report.copied_bytes);
        Walk { phase, epoch, agreement, options, start, noted: start, noted_bytes, before }
    }

    /// A stretch is done, and the next begins at `next`.
    pub(super) async fn advance(&mut self, next: Option<u64>, report: &ChangeReport) -> Result<(), ChangeError> {
        let done = next.map_or(1.0, |next| next as f64 / 2f64.powi(64));
        if let Some(show) = &self.options.progress {
            show(&ChangeProgress { phase: self.phase, done, report: *report });
        }
        if let Some(cursor) = next
            && self.noted.elapsed() >= NOTE_PERIOD
        {
            let moved_bytes = report.copied_bytes - self.noted_bytes;
            let step = Step::Note { phase: self.phase, cursor, done: (done * 1000.0) as u16, moved_bytes };
            self.agreement.agree(self.epoch, step).await.map_err(ChangeError::Map)?;
            (self.noted, self.noted_bytes) = (time::now(), report.copied_bytes);
        }
        if let Some(rate) = self.options.bytes_per_second {
            let bytes = report.read_bytes + report.copied_bytes - self.before;
            time::sleep_until(self.start + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)).await;
        }
        Ok(())
    }
}
