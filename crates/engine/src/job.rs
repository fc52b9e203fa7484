//! Long work, in the background or at somebody's request: what it is, how far it has come, and how fast it may go.
//!
//! A [`Job`] belongs to the thread that does it, and is in the list of its [`Jobs`] until it is dropped; whoever tells of the
//! process reads that list from any thread. What is to end a job drops its future, as with any other task here; what is to go on
//! later begins with the place that was kept (a change's cursor in the pool's map).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::figures::gauges;
use crate::pace::Pace;
use crate::time::{self, Instant};

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
    of: String,
    number: u32,
    began: Instant,
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
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// What it is, in a word.
    pub kind: &'static str,
    /// Of what; empty where that goes without saying.
    pub of: String,
    /// Of those of one kind and of the same, from 1: no two that are under way have one number.
    pub number: u32,
    /// How long it has been under way, whatever is done to the clock on the wall.
    pub lasted: Duration,
    /// Share of its present part, 0 to 1.
    pub done: f64,
    /// Bytes read since it began.
    pub bytes: u64,
    /// Bytes that it may read a second; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
}

impl Jobs {
    /// A job of this kind begins. It reads at most so many bytes a second (`None` or 0: as fast as it goes), and shows how far it
    /// has come.
    pub fn begin(&self, kind: &'static str, bytes_per_second: Option<u64>, show: Option<ShowProgress>) -> Rc<Job> {
        self.begin_of(kind, "", bytes_per_second, show)
    }

    /// The same of one of several things for which there may be such jobs at once.
    pub fn begin_of(
        &self,
        kind: &'static str,
        of: impl Into<String>,
        bytes_per_second: Option<u64>,
        show: Option<ShowProgress>,
    ) -> Rc<Job> {
        let (of, began, mut under_way) = (of.into(), time::now(), self.lock());
        let bytes_per_second = bytes_per_second.filter(|&rate| rate > 0);
        let like = |number| under_way.iter().any(|told| (told.kind, &told.of, told.number) == (kind, &of, number));
        let number = (1..).find(|&number| !like(number)).unwrap_or(u32::MAX);
        let (done, bytes) = (AtomicU64::default(), AtomicU64::default());
        let told = Arc::new(Told { kind, of, number, began, bytes_per_second, done, bytes });
        under_way.push(told.clone());
        Rc::new(Job { told, jobs: self.clone(), pace: Pace::default(), show, what: Cell::default() })
    }

    /// Those under way, in the order in which they began.
    pub fn list(&self) -> Vec<Status> {
        self.lock().iter().map(|told| told.status()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Told>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn status(&self) -> Status {
        Status {
            kind: self.kind,
            of: self.of.clone(),
            number: self.number,
            lasted: self.began.elapsed(),
            done: f64::from_bits(self.done.load(Relaxed)),
            bytes: self.bytes.load(Relaxed),
            bytes_per_second: self.bytes_per_second,
        }
    }
}

impl Collector for Jobs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        tell(&mut encoder, self.list())
    }
}

/// Tells of jobs, for Prometheus: each by its kind, by what it is of, and by its number where that is not the first.
pub fn tell(encoder: &mut DescriptorEncoder<'_>, mut jobs: Vec<Status>) -> fmt::Result {
    // Those of several lists may have one number: what is told twice under one name Prometheus takes for one, or for none.
    let mut told = BTreeSet::new();
    for job in &mut jobs {
        while !told.insert((job.kind, job.of.clone(), job.number)) {
            job.number += 1;
        }
    }
    let help = "How much of its present part a job under way has done.";
    gauges(encoder, ("yagura_job_done_ratio", help), jobs.iter().map(|job| (job.labels(), job.done)))?;
    let read = jobs.iter().map(|job| (job.labels(), job.bytes));
    gauges(encoder, ("yagura_job_read_bytes", "Bytes that a job under way has read."), read)
}

impl Status {
    fn labels(&self) -> Vec<(&'static str, String)> {
        let mut labels = vec![("job", self.kind.to_owned())];
        if !self.of.is_empty() {
            labels.push(("of", self.of.clone()));
        }
        if self.number > 1 {
            labels.push(("number", self.number.to_string()));
        }
        labels
    }
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
    /// A job that is in nobody's list: its caller alone is told of it.
    pub fn unlisted(bytes_per_second: Option<u64>, show: Option<ShowProgress>) -> Rc<Job> {
        Jobs::default().begin("", bytes_per_second, show)
    }

    /// Another part of the job begins.
    pub fn begin(&self, what: &'static str) {
        self.what.set(what);
        self.told.done.store(0f64.to_bits(), Relaxed);
    }

    /// Waits until what was read before is paid for. For who learns how much a command reads only under a lock, which others must
    /// not find held by somebody who waits: what is taken right behind this has its turn at once.
    pub async fn turn(&self) {
        self.take(0).await;
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

    /// How far it has come.
    pub fn status(&self) -> Status {
        self.told.status()
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
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;
    use crate::sim::{SimConfig, World};

    fn text_of(jobs: &Jobs) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(jobs.clone()));
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

    /// A rate of 0 was one byte a second here and no limit there.
    #[test]
    fn a_rate_of_0_is_none() {
        World::new(1, SimConfig::default())
            .run_until(async {
                let (job, began) = (Job::unlisted(Some(0), None), time::now());
                for _ in 0..3 {
                    job.take(1 << 30).await;
                }
                assert_eq!((job.end().await, began.elapsed()), (3 << 30, Duration::ZERO));
                assert_eq!(job.status().bytes_per_second, None);
                time::sleep(Duration::from_secs(7)).await;
                assert_eq!(job.status().lasted, Duration::from_secs(7));
            })
            .expect("it ends");
    }

    /// Of two drives that were scrubbed at once one was told of, the last; of two stores as well.
    #[test]
    fn jobs_of_one_kind_are_told_apart() {
        let (jobs, others) = (Jobs::default(), Jobs::default());
        World::new(1, SimConfig::default())
            .run_until(async move {
                let begin = |jobs: &Jobs, of: &str| jobs.begin_of("scrub", of, None, None);
                let all = [begin(&jobs, "/a"), begin(&jobs, "/b"), begin(&jobs, "/b"), begin(&others, "/a")];
                for (job, bytes) in all.iter().zip(1..) {
                    job.take(bytes).await;
                }
                let told = |jobs: &Jobs| {
                    let read = |line: &str| Some(line.strip_prefix("yagura_job_read_bytes{job=\"scrub\"")?.to_owned());
                    text_of(jobs).lines().filter_map(read).collect::<Vec<_>>()
                };
                let of_one = [",of=\"/a\"} 1", ",of=\"/b\"} 2", ",of=\"/b\",number=\"2\"} 3"];
                assert_eq!(told(&jobs), of_one);
                let both =
                    Jobs(Arc::new(Mutex::new([&jobs, &others].iter().flat_map(|of| of.lock().clone()).collect())));
                assert_eq!(told(&both)[3], ",of=\"/a\",number=\"2\"} 4", "each list counts by itself");
                // The number of one stays when another ends, and is had again.
                let [a, b, second, _] = all;
                drop((a, b));
                assert_eq!(told(&jobs), [",of=\"/b\",number=\"2\"} 3"]);
                let _third = begin(&jobs, "/b");
                assert_eq!(told(&jobs), [",of=\"/b\",number=\"2\"} 3", ",of=\"/b\"} 0"]);
                assert_eq!(second.status().number, 2);
            })
            .expect("it ends");
    }
}
