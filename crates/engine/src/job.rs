//! Long work, in the background or at somebody's request: what it is, how far it has come, and how fast it may go.
//!
//! A [`Job`] belongs to the thread that does it, and is in the list of its [`Jobs`] until it is dropped; whoever tells of the
//! process reads that list from any thread. What is to end a job drops its future, as with any other task here; what is to go on
//! later begins with the place that was kept (a change's cursor in the pool's map).

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::DescriptorEncoder;

use crate::figures::gauges;
use crate::pace::Pace;
use crate::time;

/// How far a job has come.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Progress {
    /// What is being done, in a few words.
    pub what: &'static str,
    /// Share of this part of the job, 0 to 1.
    pub done: f64,
    /// Bytes read since the job began.
    pub bytes: u64,
}

/// Called with how far a job has come.
pub type ShowProgress = Rc<dyn Fn(&Progress)>;

/// What a job tells other threads.
#[derive(Debug)]
struct Told {
    kind: &'static str,
    bytes_per_second: Option<u64>,
    /// The bits of [`Progress::done`].
    done: AtomicU64,
    bytes: AtomicU64,
}

/// The jobs of a process, or of a part of it that is told of by itself. A clone is the same list.
#[derive(Clone, Default)]
pub struct Jobs(Arc<Mutex<Vec<Arc<Told>>>>);

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

/// A job that is under way, as other threads see it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Status {
    /// What it is, in a word.
    pub kind: &'static str,
    /// Share of its present part, 0 to 1.
    pub done: f64,
    /// Bytes read since it began.
    pub bytes: u64,
    /// Bytes that it may read a second; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
}

impl Jobs {
    /// A job of this kind begins. It reads at most so many bytes a second, and shows how far it has come.
    pub fn begin(&self, kind: &'static str, bytes_per_second: Option<u64>, show: Option<ShowProgress>) -> Rc<Job> {
        let told = Told { kind, bytes_per_second, done: AtomicU64::default(), bytes: AtomicU64::default() };
        let told = Arc::new(told);
        self.lock().push(told.clone());
        Rc::new(Job { told, jobs: self.clone(), pace: Pace::default(), show, what: Cell::default() })
    }

    /// Those under way, in the order in which they began.
    pub fn list(&self) -> Vec<Status> {
        let status = |told: &Arc<Told>| Status {
            kind: told.kind,
            done: f64::from_bits(told.done.load(Relaxed)),
            bytes: told.bytes.load(Relaxed),
            bytes_per_second: told.bytes_per_second,
        };
        self.lock().iter().map(status).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Told>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells of jobs, for Prometheus; of two of one kind that one which began last.
pub fn tell(encoder: &mut DescriptorEncoder<'_>, mut jobs: Vec<Status>) -> fmt::Result {
    jobs.reverse();
    jobs.sort_by_key(|job| job.kind);
    jobs.dedup_by_key(|job| job.kind);
    let help = "How much of its present part a job under way has done.";
    let done = jobs.iter().map(|job| (job.kind, job.done));
    gauges(encoder, ("yagura_job_done_ratio", help), "job", done)?;
    let read = jobs.iter().map(|job| (job.kind, i64::try_from(job.bytes).unwrap_or(i64::MAX)));
    gauges(encoder, ("yagura_job_read_bytes", "Bytes that a job under way has read."), "job", read)
}

/// A job's progress and its limit.
///
/// Every command has its turn: it begins when what was read before it is paid for by time. So the rate holds over any span,
/// but for one command (a stretch of one member, or one value), and what was not used is not saved up.
pub struct Job {
    told: Arc<Told>,
    jobs: Jobs,
    /// When the next command may begin.
    pace: Pace,
    show: Option<ShowProgress>,
    /// See [`Progress::what`].
    what: Cell<&'static str>,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.jobs.lock().retain(|told| !Arc::ptr_eq(told, &self.told));
    }
}

impl Job {
    /// Another part of the job begins.
    pub fn begin(&self, what: &'static str) {
        self.what.set(what);
        self.told.done.store(0f64.to_bits(), Relaxed);
    }

    /// Waits for the turn of a command that reads `bytes`.
    pub async fn take(&self, bytes: u64) {
        self.told.bytes.fetch_add(bytes, Relaxed);
        let Some(rate) = self.told.bytes_per_second else { return };
        time::sleep_until(self.pace.turn(bytes, rate, Duration::ZERO)).await;
    }

    /// The job has come to hash `next` (`None`: its end).
    pub fn reached_hash(&self, next: Option<u64>) {
        self.reached(next.map_or(1.0, |next| next as f64 / 2f64.powi(64)));
    }

    /// The job has come so far.
    pub fn reached(&self, done: f64) {
        self.told.done.store(done.to_bits(), Relaxed);
        if let Some(show) = &self.show {
            show(&Progress { what: self.what.get(), done, bytes: self.told.bytes.load(Relaxed) });
        }
    }

    /// The job is over when its last command is paid for, too. Returns the bytes read.
    pub async fn end(&self) -> u64 {
        if self.told.bytes_per_second.is_some() {
            time::sleep_until(self.pace.paid()).await;
        }
        self.told.bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{collector::Collector, encoding::text::encode, registry::Registry};

    use super::*;
    use crate::sim::{SimConfig, World};

    #[derive(Debug)]
    struct Listed(Jobs);

    impl Collector for Listed {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            tell(&mut encoder, self.0.list())
        }
    }

    fn text_of(jobs: &Jobs) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(Listed(jobs.clone())));
        encode(&mut text, &registry).expect("a String takes all");
        text
    }

    #[test]
    fn a_job_keeps_to_its_rate_and_is_told_of_while_it_lasts() {
        let jobs = Jobs::default();
        let listed = jobs.clone();
        World::new(1, SimConfig::default())
            .run_until(async move {
                let shown = Rc::new(Cell::new(0.0));
                let show = shown.clone();
                let began = time::now();
                let scrub = jobs.begin("scrub", Some(1000), Some(Rc::new(move |progress| show.set(progress.done))));
                let repair = jobs.begin("repair", None, None);
                scrub.begin("compare");
                for part in 1..=4 {
                    scrub.take(500).await;
                    scrub.reached(f64::from(part) / 4.0);
                }
                assert_eq!((began.elapsed(), shown.get()), (Duration::from_millis(1500), 1.0), "the first has no debt");
                let kinds: Vec<_> = jobs.list().iter().map(|job| (job.kind, job.bytes)).collect();
                assert_eq!(kinds, [("scrub", 2000), ("repair", 0)]);
                let text = text_of(&jobs);
                assert!(text.contains("yagura_job_done_ratio{job=\"scrub\"} 1.0\n"), "{text}");
                assert!(text.contains("yagura_job_read_bytes{job=\"repair\"} 0\n"), "{text}");
                assert_eq!(scrub.end().await, 2000);
                assert_eq!(began.elapsed(), Duration::from_secs(2), "the last is paid for");
                drop((scrub, repair));
            })
            .expect("it ends");
        assert_eq!(listed.list(), []);
    }
}
