//! The background repairer: when a member that has missed something can be reached, everything is walked over once.
//!
//! A member is marked when a write did not reach it, when an operation found no majority as a page of it is damaged (nothing of
//! the page's keys is served until that is rebuilt), when it is away as the host starts, and when it comes back from being
//! away, since other hosts may have written meanwhile. The mark is taken off before the walk, so that what is missed during it
//! is not forgotten.
//!
//! A copy that an operation has found damaged is replaced by itself: a walk would not even look at it.
//!
//! Beside it the background scrub: once in a while everything is read and checked, gently, what is damaged put right, what
//! crashed hosts left behind freed, and deleted keys forgotten where there are many. Several hosts may do so at once; it costs
//! them time and harms nothing.

use std::time::Duration;

use engine::backoff::Backoff;
use engine::task::Task;
use engine::time;

use super::Store;
use super::collect::CollectOptions;
use super::forget::ForgetOptions;
use super::repair::{RepairOptions, RepairReport};
use crate::table::AGE_MIN;

/// How often connections are looked at. Chosen: soon enough for people, and nothing for the processor.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// After a repair that could not finish, the first pause; doubles.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Deleted keys are forgotten when there is one of them to so many keys: to do so all pages are written. Guessed.
const TOMBSTONES_PER_KEY: u64 = 20;

/// How the background repairer works.
#[derive(Clone)]
pub struct RepairerOptions {
    /// Walk once at the start: what earlier hosts left behind is not known.
    pub at_start: bool,
    /// Bytes read a second, over all members; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
}

impl Default for RepairerOptions {
    /// 256 MiB/s: a quarter of what a fast network or drive carries. Guessed.
    fn default() -> RepairerOptions {
        RepairerOptions { at_start: true, bytes_per_second: Some(256 << 20) }
    }
}

/// How the background scrub works.
#[derive(Clone)]
pub struct ScrubberOptions {
    /// From the end of one scrub to the begin of the next; the first begins after a random part of it, so that hosts that
    /// were started together do not scrub together.
    pub pause: Duration,
    /// Bytes read a second, over all members; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// How long nobody must have referred to a copy that is taken for left behind ([`CollectOptions::age_min`]).
    pub age_min: Duration,
}

impl Default for ScrubberOptions {
    /// A day, at 32 MiB/s: a few percent of what a drive carries. Guessed.
    fn default() -> ScrubberOptions {
        ScrubberOptions { pause: Duration::from_secs(86_400), bytes_per_second: Some(32 << 20), age_min: AGE_MIN }
    }
}

impl Store {
    /// Starts the background scrub; it ends when the task is dropped.
    pub fn start_scrubber(&self, options: ScrubberOptions) -> Task<()> {
        let store = self.clone();
        engine::task::spawn(async move {
            time::sleep_within(options.pause).await;
            loop {
                let bytes_per_second = options.bytes_per_second;
                let repair = RepairOptions {
                    check_values: true,
                    check_heap: true,
                    bytes_per_second,
                    ..RepairOptions::default()
                };
                let repaired = store.repair(&repair).await;
                let collect = CollectOptions { bytes_per_second, progress: None, age_min: options.age_min };
                let collected = store.collect(&collect).await;
                tracing::info!(?repaired, ?collected, "scrub");
                let found = store.estimate().await;
                if found.tombstones > 0 && found.tombstones * TOMBSTONES_PER_KEY >= found.keys {
                    let forget = ForgetOptions { bytes_per_second, ..ForgetOptions::default() };
                    tracing::info!(forgotten = ?store.forget(&forget).await, "scrub");
                }
                time::sleep(options.pause).await;
            }
        })
    }

    /// Starts the background repairer; it ends when the task is dropped.
    pub fn start_repairer(&self, options: RepairerOptions) -> Task<()> {
        let store = self.clone();
        engine::task::spawn(async move { store.keep_repaired(options).await })
    }

    /// Whether every member is reached, has missed nothing that this host knows of, and no repair is under way.
    pub fn is_repaired(&self) -> bool {
        let reached = self.members().iter().all(|member| member.votes && !member.stale);
        reached && !self.inner.repair.running.get() && !self.inner.repair.has_damaged()
    }

    /// What the last finished repair of the background repairer did.
    pub fn last_repair(&self) -> Option<RepairReport> {
        self.inner.repair.last.borrow().clone()
    }

    async fn keep_repaired(self, options: RepairerOptions) {
        let inner = &self.inner;
        let repair = RepairOptions { bytes_per_second: options.bytes_per_second, ..RepairOptions::default() };
        let (mut wanted, mut first) = (options.at_start, true);
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_PAUSE_MAX);
        loop {
            let topology = inner.topology();
            for member in &topology.members {
                let status = member.status();
                // Others write while it is away, and those that did may have ended.
                let away = !(status.votes || status.connected && member.voting().await.is_ok());
                if away && first {
                    member.set_stale(true);
                }
            }
            first = false;
            let reached: Vec<_> = topology.members.iter().filter(|member| member.status().votes).collect();
            if wanted || reached.iter().any(|member| member.is_stale()) {
                inner.repair.running.set(true);
                let marked: Vec<_> = reached.iter().filter(|member| member.set_stale(false)).collect();
                let report = self.repair(&repair).await;
                let complete = report.failed == 0 && reached.iter().all(|m| !report.unreachable.contains(&m.index));
                if !complete {
                    for member in marked {
                        member.set_stale(true);
                    }
                }
                tracing::info!(?report, "repair");
                *inner.repair.last.borrow_mut() = Some(report);
                inner.repair.running.set(false);
                wanted &= !complete;
                if complete {
                    backoff.reset();
                } else {
                    time::sleep(backoff.pause()).await;
                }
            }
            if let Some(report) = self.repair_noted(&repair).await {
                tracing::info!(?report, "repair of damaged copies");
            }
            // Either way it is time to look.
            let _elapsed = time::timeout(LOOK_PERIOD, inner.stale.notified()).await;
        }
    }
}
