//! The scrub of a drive that is served: a job that goes on beside the hosts until it is through, or is told to stop.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::{Rc, Weak};

use device::Drive;
use device::drive::Scrub;
use engine::job::{Job, Jobs};
use engine::task::{self, Task};
use serde::{Deserialize, Serialize};

use super::jobs::JobReport;
use crate::drive::Scrubbed;

/// Bytes that a scrub reads a second where nothing else is said. Guessed: a third of what a disk that turns gives, an eighth of an
/// SSD at SATA; a terabyte takes four and a half hours.
pub const BYTES_PER_SECOND: u64 = 64 << 20;

/// The scrub of one drive, one at a time.
pub struct DriveScrub {
    jobs: Jobs,
    last: RefCell<Option<Last>>,
}

/// The scrub that was begun last.
struct Last {
    /// Gone when it is over.
    job: Weak<Job>,
    found: Rc<RefCell<Scrub>>,
    /// Why it has failed.
    failed: Rc<RefCell<Option<String>>>,
    /// How much of it was done when it failed, or was told to stop.
    stopped_at: Rc<Cell<Option<f64>>>,
    /// To drop it is to end the scrub. None: it was told to stop.
    task: Option<Task<()>>,
}

/// How a drive's last scrub stands.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct ScrubState {
    /// While it is under way. A target that does not say this is too old to be watched: of its scrub nothing would be known.
    #[serde(deserialize_with = "Option::deserialize")]
    pub job: Option<JobReport>,
    /// What it has found, once it is over.
    pub found: Option<Scrubbed>,
    /// Why it has failed.
    pub error: Option<String>,
}

impl DriveScrub {
    /// None was begun yet; those to come are told of in this list.
    pub fn new(jobs: Jobs) -> DriveScrub {
        DriveScrub { jobs, last: RefCell::default() }
    }

    /// Begins one at this rate (0: as fast as it goes; none, as programs from before scrubs had rates ask: the usual), which is
    /// returned. `None`: one is under way, and goes on at its own.
    pub fn begin(&self, drive: &Drive, path: &Path, bytes_per_second: Option<u64>) -> Option<u64> {
        if self.last.borrow().as_ref().is_some_and(|last| last.job.strong_count() > 0) {
            return None;
        }
        let rate = bytes_per_second.unwrap_or(BYTES_PER_SECOND);
        let job = self.jobs.begin_of("scrub", path.display().to_string(), Some(rate), None);
        let (found, failed) = (Rc::<RefCell<Scrub>>::default(), Rc::<RefCell<Option<String>>>::default());
        let (weak, stopped_at) = (Rc::downgrade(&job), Rc::<Cell<Option<f64>>>::default());
        let (drive, into, told, at) = (drive.clone(), found.clone(), failed.clone(), stopped_at.clone());
        let task = task::spawn(async move {
            if let Err(error) = drive.scrub_into(&job, &into).await {
                *told.borrow_mut() = Some(error.to_string());
                at.set(Some(job.status().done));
            }
        });
        *self.last.borrow_mut() = Some(Last { job: weak, found, failed, stopped_at, task: Some(task) });
        Some(rate)
    }

    /// Ends the one that is under way: what it found, and how far it came. `None`: none is.
    pub async fn stop(&self) -> Option<Scrubbed> {
        let (task, found, stopped_at) = {
            let mut last = self.last.borrow_mut();
            let last = last.as_mut()?;
            last.stopped_at.set(Some(last.job.upgrade()?.status().done));
            (last.task.take()?, last.found.clone(), last.stopped_at.get())
        };
        task.cancel().await;
        let found = found.borrow().clone();
        Some(Scrubbed { stopped_at, ..found.into() })
    }

    /// How the last one stands.
    pub fn state(&self) -> ScrubState {
        let last = self.last.borrow();
        let Some(last) = last.as_ref() else { return ScrubState::default() };
        let job = last.job.upgrade().map(|job| JobReport::from(job.status()));
        let found = || Scrubbed { stopped_at: last.stopped_at.get(), ..last.found.borrow().clone().into() };
        ScrubState { found: job.is_none().then(found), job, error: last.failed.borrow().clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use device::{Durability, FormatOptions, Lba, Namespace, NamespaceSpec};
    use engine::Buf;
    use engine::sim::{DiskConfig, SimConfig, World};
    use engine::time;

    use super::*;

    async fn written(path: &str) -> Drive {
        let options =
            FormatOptions { extent_bytes: 256 << 10, journal_bytes: Some(512 << 10), ..FormatOptions::default() };
        let drive = Drive::format(Path::new(path), &options).await.expect("formatted");
        let spec = NamespaceSpec { name: "a".into(), bytes: 1 << 20, block_size: 4096 };
        let namespace = drive.create(&spec).await.expect("created");
        let mut data = Buf::with_len(1 << 20);
        data.fill(0xA5);
        namespace.write(Lba(0), data.freeze(), Durability::Stable).await.expect("written");
        drive
    }

    /// The state of a drive's scrub was a list of its own: no status, no metrics told of it, and nothing ended it.
    #[test]
    fn two_drives_are_scrubbed_at_once_and_one_is_told_to_stop() {
        let world = World::new(1, SimConfig::default());
        let node = world.node("n");
        for path in ["/a", "/b"] {
            world.disk(node, path, 16 << 20, DiskConfig { volatile_cache: false, ..DiskConfig::default() });
        }
        let task = world.spawn_on(node, async {
            let jobs = Jobs::default();
            let [a, b] = [(); 2].map(|()| DriveScrub::new(jobs.clone()));
            let (first, second) = (written("/a").await, written("/b").await);
            assert!(a.stop().await.is_none() && a.state().found.is_none(), "none was begun");
            assert_eq!(a.begin(&first, Path::new("/a"), Some(100 << 10)), Some(100 << 10));
            assert_eq!(b.begin(&second, Path::new("/b"), Some(200 << 10)), Some(200 << 10));
            // Who comes later watches the one that is under way.
            assert_eq!(a.begin(&first, Path::new("/a"), Some(0)), None);
            time::sleep(Duration::from_millis(2600)).await;
            let listed: Vec<JobReport> = jobs.list().into_iter().map(JobReport::from).collect();
            let told: Vec<_> = listed.iter().map(|job| (&*job.of, job.done, job.bytes_per_second)).collect();
            assert_eq!(told, [("/a", 0.5, Some(100 << 10)), ("/b", 0.75, Some(200 << 10))]);
            assert_eq!(listed[0].begun_seconds_ago, 2);
            let stopped = a.stop().await.expect("it is under way");
            assert_eq!((stopped.stopped_at, stopped.bytes), (Some(0.5), 512 << 10));
            let ended = a.state();
            assert_eq!((ended.job, ended.error), (None, None));
            assert_eq!(ended.found.expect("what it found").stopped_at, Some(0.5), "its watcher is told as well");
            assert!(a.stop().await.is_none());
            assert_eq!(jobs.list().len(), 1, "the other goes on");
            time::sleep(Duration::from_secs(3)).await;
            let ended = b.state();
            assert_eq!((ended.job, ended.error), (None, None));
            let found = ended.found.expect("what it found");
            assert_eq!((found.bytes, found.stopped_at), (1 << 20, None));
            assert_eq!(a.begin(&first, Path::new("/a"), Some(0)), Some(0));
            time::sleep(Duration::from_secs(1)).await;
            let found = a.state().found.expect("as fast as it goes");
            assert_eq!((found.bytes, found.stopped_at), (1 << 20, None));
            assert_eq!(a.begin(&first, Path::new("/a"), None), Some(64 << 20));
            assert_eq!(jobs.list()[0].bytes_per_second, Some(64 << 20), "it leaves hosts room");
        });
        world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
}
