//! A scrub beside hosts: it keeps to its rate, is told of while it lasts, holds nobody up, and may be ended half-way.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::drive_model::PATH;
use device::drive::Scrub;
use device::{Drive, DriveNamespace, Durability, FormatOptions, Lba, Namespace, NamespaceSpec};
use engine::job::Jobs;
use engine::sim::{DiskConfig, SimConfig, World};
use engine::{Buf, task, time};

/// Written, and so to be verified.
const BYTES: u64 = 4 << 20;
const RATE: u64 = 1 << 20;

async fn written() -> (Drive, DriveNamespace) {
    let options = FormatOptions { extent_bytes: 256 << 10, journal_bytes: Some(512 << 10), ..FormatOptions::default() };
    let drive = Drive::format(Path::new(PATH), &options).await.expect("formatted");
    let spec = NamespaceSpec { name: "a".into(), bytes: BYTES, block_size: 4096 };
    let namespace = drive.create(&spec).await.expect("created");
    for part in 0..BYTES >> 20 {
        let mut data = Buf::with_len(1 << 20);
        data.fill(0xA5);
        namespace.write(Lba(part * 256), data.freeze(), Durability::Stable).await.expect("written");
    }
    (drive, namespace)
}

fn run(future: impl Future<Output = ()> + 'static) {
    let world = World::new(1, SimConfig::default());
    let node = world.node("n");
    world.disk(node, PATH, 16 << 20, DiskConfig { volatile_cache: false, ..DiskConfig::default() });
    let task = world.spawn_on(node, future);
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
}

/// It read as fast as the medium gave, beside hosts, and was in nobody's list.
#[test]
fn a_scrub_keeps_to_its_rate_and_is_listed_meanwhile() {
    run(async {
        let (drive, namespace) = written().await;
        let (jobs, began) = (Jobs::default(), time::now());
        let job = jobs.begin_of("scrub", PATH, Some(RATE), None);
        let scrubbed = task::spawn({
            let drive = drive.clone();
            async move { drive.scrub(&job).await.map(|found| found.bytes) }
        });
        time::sleep(Duration::from_millis(2100)).await;
        let listed = jobs.list();
        let [job] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!((job.kind, job.of.as_str(), job.bytes_per_second), ("scrub", PATH, Some(RATE)));
        assert!((0.4..0.7).contains(&job.done) && job.bytes >= 2 << 20, "{job:?}");
        // It waits for its turn with no lock in hand: nobody who writes waits along.
        for lba in (0..BYTES / 4096).step_by(16) {
            let asked = time::now();
            namespace.write(Lba(lba), Buf::zeroed(4096).freeze(), Durability::Cached).await.expect("written");
            assert!(asked.elapsed() < Duration::from_millis(100), "block {lba} took {:?}", asked.elapsed());
        }
        assert_eq!(scrubbed.await.expect("scrubbed"), BYTES);
        let (took, due) = (began.elapsed().as_secs_f64(), (BYTES / RATE) as f64);
        assert!((due..due + 0.5).contains(&took), "{took} s of {due} s");
        assert_eq!(jobs.list(), []);
    });
}

/// What ends it drops it: what was found until then is there still, and the job in no list any more.
#[test]
fn a_scrub_that_is_dropped_has_said_what_it_found() {
    run(async {
        let (drive, namespace) = written().await;
        namespace.write_uncorrectable(Lba(1), 2).await.expect("marked");
        let (jobs, found) = (Jobs::default(), Rc::new(RefCell::new(Scrub::default())));
        let job = jobs.begin("scrub", Some(RATE), None);
        let scrub = task::spawn({
            let (drive, found) = (drive.clone(), found.clone());
            async move { drive.scrub_into(&job, &found).await }
        });
        time::sleep(Duration::from_millis(1600)).await;
        assert!(scrub.cancel().await.is_none(), "it is not through");
        assert_eq!(jobs.list(), []);
        let Scrub { bytes, uncorrectable, damaged, .. } = *found.borrow();
        assert!((1 << 20..3 << 20).contains(&bytes), "{bytes} bytes");
        assert_eq!((uncorrectable, damaged), (2, 0));
        assert_eq!(drive.scrub(&jobs.begin("scrub", None, None)).await.expect("scrubbed").bytes, BYTES - 8192);
    });
}
