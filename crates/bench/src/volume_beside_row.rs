//! `yagura bench volume`, its second row: what a snapshot and a resync cost whoever uses the volume meanwhile. Three replicas, each
//! a namespace of a drive, as drives alone have snapshots.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use device::{Durability, Lba, Namespace};
use engine::rng::SplitMix;
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::host::HostIdentity;
use nvme::Nqn;
use volume::{Reach, Volume};

use crate::access::{Access, random_access};
use crate::figures::{Aim, Ratio, Row, Sample, Side, histogram, record};
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::volume_row::{MEMORY, Options, make_filled, reaches, touch_regions};
use crate::wire_row::{ACCESS_BYTES, two_cores};

const REPLICAS: usize = 3;
const VOLUME_BYTES: u64 = 512 << 20;
/// Bytes of a drive: a replica, what snapshots keep beside it, and what a drive has of its own.
const DRIVE_BYTES: u64 = 3 * VOLUME_BYTES;
const NQN: &str = "nqn.2026-11.io.yagura:bench-beside";
/// Name of the namespace on each drive.
const NAME: &str = "replica";
/// Operations under way.
const DEPTH: usize = 8;
/// Between two snapshots.
const PAUSE: Duration = Duration::from_millis(30);
/// How long a snapshot may hold writes, microseconds (DESIGN: 10 ms).
const HOLD_US_MAX: f64 = 10_000.0;
/// How long the replica that comes back may take until it is resynchronised again, and until that has ended.
const RESYNC_TIME_MAX: Duration = Duration::from_secs(60);

/// Runs the row; needs two cores.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let (host_core, target_core) = two_cores()?;
    let place = options.folder.as_deref().unwrap_or(Path::new(MEMORY));
    let folder = tempfile::tempdir_in(place).context("cannot make a folder for the drives")?;
    let bench = Bench::start(folder.path(), (host_core, target_core))?;
    progress.begin("filling a volume on drives", 1);
    make_filled(bench.reaches()?, VOLUME_BYTES)?;
    progress.step()?;
    let mut writes = ["writes", "writes beside snapshots", "longest write while a snapshot is taken"].map(Side::new);
    let mut resync = ["reads", "reads beside a resync", "writes, all in sync", "writes beside a resync"].map(Side::new);
    let mut holds = Vec::new();
    progress.begin("measuring", 2 * options.rounds);
    for _ in 0..options.rounds {
        let snapshots = bench.snapshots(options.time)?;
        holds.push(snapshots[2].p99_us / HOLD_US_MAX);
        for (side, sample) in writes.iter_mut().zip(snapshots) {
            side.rounds.push(sample);
        }
        progress.step()?;
        for (side, sample) in resync.iter_mut().zip(bench.resync(options.time)?) {
            side.rounds.push(sample);
        }
        progress.step()?;
    }
    progress.end();
    let p99 = |what: &str, of: &[Side]| Ratio::new(what, &of[1], &of[0], |s| s.p99_us);
    let ratios = vec![
        Ratio::of("p99 of what a snapshot holds a write / 10 ms", &holds).aim(Aim::AtMost, 1.0),
        p99("write: p99, beside snapshots / without", &writes[..2]),
        p99("read: p99, beside a resync / without", &resync[..2]).aim(Aim::AtMost, 1.5),
        p99("write: p99, beside a resync / without", &resync[2..]).aim(Aim::AtMost, 1.5),
    ];
    Ok(Row {
        row: if options.folder.is_some() { "B9-beside-file" } else { "B9-beside" }.to_owned(),
        title: "what a snapshot and a resync cost who uses the volume".to_owned(),
        conditions: vec![
            machine::describe(),
            format!("three replicas on drives in {}; 4 KiB random access to 512 MiB, depth {DEPTH}", place.display()),
            format!("host (one thread) on core {host_core}; each target a process on core {target_core}"),
            format!("snapshots taken and deleted one after the other, {PAUSE:?} between"),
            "resync: of every region, at the rate that a volume has by itself".to_owned(),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ],
        sides: writes.into_iter().chain(resync).collect(),
        ratios,
        curves: Vec::new(),
    })
}

/// Three targets, one of which comes and goes.
struct Bench {
    servers: RefCell<Vec<Option<Server>>>,
    addresses: Vec<SocketAddr>,
    drives: Vec<String>,
    host: Nqn,
    host_core: usize,
    target_core: usize,
}

impl Bench {
    fn start(folder: &Path, (host_core, target_core): (usize, usize)) -> anyhow::Result<Bench> {
        let mut bench = Bench {
            servers: RefCell::default(),
            addresses: Vec::new(),
            drives: Vec::new(),
            host: HostIdentity::random().nqn,
            host_core,
            target_core,
        };
        // Beside the volume, what a replica keeps of it.
        let size = (VOLUME_BYTES + (64 << 20)).to_string();
        for slot in 0..REPLICAS {
            let drive = folder.join(format!("drive{slot}")).display().to_string();
            process::once(&["drive", "format", &drive, "--size", &DRIVE_BYTES.to_string()])?;
            process::once(&["drive", "create", &drive, NAME, "--size", &size])?;
            let server = bench.serve(&drive, SocketAddr::from(([127, 0, 0, 1], 0)))?;
            bench.addresses.push(server.address);
            bench.drives.push(drive);
            bench.servers.borrow_mut().push(Some(server));
        }
        Ok(bench)
    }

    fn serve(&self, drive: &str, at: SocketAddr) -> anyhow::Result<Server> {
        process::drive(at, self.target_core, NQN, drive)
    }

    fn reaches(&self) -> anyhow::Result<Vec<Rc<dyn Reach>>> {
        reaches(self.addresses.iter().map(|&at| (at, NQN.to_owned())), &self.host)
    }

    /// With the volume attached, on the host's core.
    fn attached<T>(&self, work: impl AsyncFnOnce(Rc<Volume>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let reaches = self.reaches()?;
        let config = ReactorConfig { core: Some(self.host_core), ..ReactorConfig::default() };
        let run = async move {
            // Who is gone is given up soon: the round is short.
            let give_up_after = Duration::from_millis(200);
            let options = volume::Options { give_up_after, ..volume::Options::default() };
            let volume = Rc::new(volume::attach(reaches, options).await?);
            touch_regions(&volume).await?;
            let done = work(volume.clone()).await;
            volume.detach().await?;
            done
        };
        machine::pinned(self.host_core, || Reactor::run(config, run))??
    }

    /// Writes alone; writes beside snapshots; and of each snapshot the longest write that was under way meanwhile.
    fn snapshots(&self, time: Duration) -> anyhow::Result<[Sample; 3]> {
        self.attached(async move |volume| {
            let alone = access(&volume, Access::StableWrite, time).await?;
            let longest = Rc::new(Cell::new(Duration::ZERO));
            let is_over = Rc::new(Cell::new(false));
            let taken = task::spawn(take_snapshots(volume.clone(), longest.clone(), is_over.clone()));
            let beside = watched_writes(&volume, &longest, time).await;
            is_over.set(true);
            let holds = taken.await?;
            let held = Sample::new(&holds, time, Duration::ZERO, None);
            Ok([alone, beside?, held])
        })
    }

    /// Reads and writes with all in sync, and beside a resync: reads, reads beside, writes, writes beside.
    fn resync(&self, time: Duration) -> anyhow::Result<[Sample; 4]> {
        self.attached(async move |volume| {
            until(&volume, "the volume is whole", |volume| volume.is_whole()).await?;
            let reads = access(&volume, Access::Read, time).await?;
            let writes = access(&volume, Access::StableWrite, time).await?;
            let last = REPLICAS - 1;
            let server = self.servers.borrow_mut()[last].take();
            server.context("invariant: it is served between rounds")?.end()?;
            until(&volume, "a replica is given up", |volume| !volume.in_sync().has(last)).await?;
            touch_regions(&volume).await?;
            let server = self.serve(&self.drives[last], self.addresses[last])?;
            self.servers.borrow_mut()[last] = Some(server);
            let is_resynced = |volume: &Volume| volume.figures().jobs().list().iter().any(|job| job.kind == "resync");
            until(&volume, "the replica is resynchronised", is_resynced).await?;
            let reads_beside = access(&volume, Access::Read, time).await?;
            let writes_beside = access(&volume, Access::StableWrite, time).await?;
            anyhow::ensure!(is_resynced(&volume), "the resync ended before the round did: shorten it by --time");
            until(&volume, "the volume is whole", |volume| volume.is_whole()).await?;
            Ok([reads, reads_beside, writes, writes_beside])
        })
    }
}

/// Waits until something is so.
async fn until(volume: &Volume, what: &str, is_so: impl Fn(&Volume) -> bool) -> anyhow::Result<()> {
    let began = time::now();
    while !is_so(volume) {
        anyhow::ensure!(time::now() - began < RESYNC_TIME_MAX, "this never came true: {what}");
        time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn access(volume: &Rc<Volume>, access: Access, time: Duration) -> anyhow::Result<Sample> {
    let outcome = random_access(volume.clone(), access, ACCESS_BYTES, DEPTH, time).await?;
    Ok(Sample::new(&outcome.all(), outcome.wall, Duration::ZERO, None))
}

/// Random writes that tell of the longest one.
async fn watched_writes(volume: &Rc<Volume>, longest: &Rc<Cell<Duration>>, time: Duration) -> anyhow::Result<Sample> {
    let (volume, longest) = (volume.clone(), longest.clone());
    let random = RefCell::new(SplitMix(1));
    let data = Buf::zeroed(ACCESS_BYTES).freeze();
    let blocks = (ACCESS_BYTES / volume.info().block_size as usize) as u64;
    let outcome = crate::load::closed_loops(DEPTH, 1, time, async move |_| {
        let lba = Lba(random.borrow_mut().below(VOLUME_BYTES / ACCESS_BYTES as u64) * blocks);
        let began = time::now();
        volume.write(lba, data.clone(), Durability::Stable).await?;
        longest.set(longest.get().max(time::now() - began));
        Ok(0)
    })
    .await?;
    Ok(Sample::new(&outcome.all(), outcome.wall, Duration::ZERO, None))
}

/// Takes and deletes snapshots until it is over; returns the longest write beside each that was taken.
async fn take_snapshots(
    volume: Rc<Volume>,
    longest: Rc<Cell<Duration>>,
    is_over: Rc<Cell<bool>>,
) -> anyhow::Result<hdrhistogram::Histogram<u64>> {
    let mut holds = histogram();
    while !is_over.get() {
        longest.set(Duration::ZERO);
        let name = volume.snapshot().await?;
        // What was held has ended by then.
        time::sleep(PAUSE).await;
        record(&mut holds, longest.get());
        volume.delete_snapshot(name).await?;
        time::sleep(PAUSE).await;
    }
    Ok(holds)
}
