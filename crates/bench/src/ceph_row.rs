//! `yagura bench ceph`: row B8. Volumes of three replicas on drives, beside Ceph's block images of three replicas and beside the
//! disk that both keep everything on, against the depth.
//!
//! Ours and Ceph's are measured as their users have them: a replica is a process with a file (ours a drive, Ceph's BlueStore, each
//! with checksums), each client has a volume of its own, and every write is stable on all three before it is acknowledged.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::rc::Rc;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::Context as _;
use engine::{Reactor, ReactorConfig};
use fabric::host::HostIdentity;
use nvme::Nqn;
use volume::Reach;

use crate::access::{Access, random_access};
use crate::ceph::Cluster;
use crate::figures::{Aim, Curve, Ratio, Row, Sample, Side, histogram};
use crate::fio;
use crate::load::Outcome;
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::volume_row::{make_filled, reaches, touch_regions};
use crate::wire_row::ACCESS_BYTES;

const REPLICAS: usize = 3;
const CLIENTS: usize = 4;
const NQN: &str = "nqn.2026-11.io.yagura:bench-ceph";
/// Accesses that a disk is given at a time, at most. Chosen: more than disks have queues for.
const DISK_DEPTH_MAX: usize = 256;
/// Bytes of Ceph's files and of our drives for each of a volume's.
const ROOM: u64 = 2;
const ROOM_LEAST: u64 = 8 << 30;
/// How long a client of Ceph may take beside what it was told to, to begin and to end. Chosen: ten times what it takes where
/// processors are busy.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes a second that an image is filled with, at least. Chosen: a twentieth of what a disk took.
const FILL_BYTES_LEAST: u64 = 4 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where all files are.
    pub folder: PathBuf,
    /// Bytes of each client's volume.
    pub bytes: u64,
    /// Accesses that each client has under way.
    pub depths: Vec<usize>,
    /// Rounds, each of which runs every side once.
    pub rounds: usize,
    /// Length of one side of a round.
    pub time: Duration,
}

/// The three sides at one depth.
struct Point {
    write: bool,
    depth: usize,
    ours: Side,
    ceph: Side,
    disk: Side,
}

fn verb(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}

/// Runs the row.
pub fn run(options: &Options, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let folder = tempfile::tempdir_in(&options.folder).context("cannot make a folder for the replicas")?;
    let mut bench = Bench::start(folder.path(), options, progress)?;
    bench.fill(progress)?;
    let mut points = Vec::new();
    for write in [false, true] {
        for &depth in &options.depths {
            let side = |who: &str| Side::new(format!("{}, depth {CLIENTS} × {depth}: {who}", verb(write)));
            let (ours, ceph) = (side("volumes"), side("Ceph"));
            points.push(Point { write, depth, ours, ceph, disk: side("the disk itself") });
        }
    }
    progress.begin("measuring", options.rounds * points.len() * 3);
    for _ in 0..options.rounds {
        for point in &mut points {
            let (write, depth) = (point.write, point.depth);
            point.ours.rounds.push(bench.ours(write, depth)?);
            progress.step()?;
            point.ceph.rounds.push(bench.ceph(write, depth)?);
            progress.step()?;
            point.disk.rounds.push(bench.disk(write, depth)?);
            progress.step()?;
        }
    }
    progress.end();
    let conditions = vec![
        machine::describe(),
        format!(
            "{CLIENTS} clients, each with {} MiB of its own, 4 KiB random access; every write stable",
            options.bytes >> 20
        ),
        "three replicas, each a process with a file on one disk: ours drives, Ceph's BlueStore (1 GiB of memory each)"
            .to_owned(),
        "our clients: threads of one process; Ceph's: fio with its rbd engine, without rbd's cache".to_owned(),
        "CPU: of all threads of all daemons, and of all clients (Ceph's without what fio takes to begin and to end)"
            .to_owned(),
        format!(
            "the disk: fio with io_uring on one of the files, all accesses of all clients (at most {DISK_DEPTH_MAX}) under way"
        ),
        format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
    ];
    // Who always has as many under way waits that long on average (Little's law).
    let mean = |point: &Point, sample: &Sample| (CLIENTS * point.depth) as f64 / sample.rate * 1e3;
    rows.push(latencies("mean", &points, conditions.clone(), mean));
    rows.push(latencies("p99", &points, conditions.clone(), |_, sample| sample.p99_us / 1e3));
    rows.push(rates(points, conditions));
    Ok(())
}

/// The first of the source's two figures, and what it comes to.
fn rates(points: Vec<Point>, conditions: Vec<String>) -> Row {
    let ratios = points.iter().flat_map(ratios).collect();
    let curves = curves(&points, |_, sample| sample.rate / 1e3, "thousands a second");
    let sides = points.into_iter().flat_map(|point| [point.ours, point.ceph, point.disk]).collect();
    let title = "volumes beside Ceph: operations a second against depth".to_owned();
    Row { row: "B8".to_owned(), title, conditions, sides, ratios, curves }
}

/// The second one, and the same of the slowest: milliseconds.
fn latencies(
    which: &str,
    points: &[Point],
    conditions: Vec<String>,
    latency: impl Fn(&Point, &Sample) -> f64 + Copy,
) -> Row {
    let of_point = |point: &Point| {
        let name = format!("{}, depth {CLIENTS} × {}: {which} latency, Ceph / volumes", verb(point.write), point.depth);
        Ratio::new(name, &point.ceph, &point.ours, |sample| latency(point, sample))
    };
    let title = format!("volumes beside Ceph: {which} latency against depth");
    let ratios = points.iter().map(of_point).collect();
    let curves = curves(points, latency, "ms");
    Row { row: format!("B8-{which}"), title, conditions, sides: Vec::new(), ratios, curves }
}

fn curves(points: &[Point], figure: impl Fn(&Point, &Sample) -> f64, unit: &str) -> Vec<Curve> {
    let mut curves = Vec::new();
    for write in [false, true] {
        for (index, who) in ["volumes", "Ceph", "the disk"].into_iter().enumerate() {
            let at = |point: &Point| {
                let side = [&point.ours, &point.ceph, &point.disk][index];
                (point.depth as f64, side.median(|sample| figure(point, sample)))
            };
            let points = points.iter().filter(|point| point.write == write).map(at).collect();
            curves.push(Curve { name: format!("{who}: {}, {unit}", verb(write)), points });
        }
    }
    curves
}

fn ratios(point: &Point) -> [Ratio; 4] {
    let Point { write, depth, ours, ceph, disk } = point;
    let what = format!("{}, depth {CLIENTS} × {depth}", verb(*write));
    let cpu = |sample: &Sample| sample.client_cpu_us + sample.server_cpu_us.unwrap_or(0.0);
    // A write is written three times.
    let (allowed, aim, of) = if *write { (3.0, 0.9, "a third of the disk's") } else { (1.0, 0.95, "the disk's") };
    let of_disk = Ratio::mixed(format!("{what}: rate, volumes / {of}"), ours, |s| s.rate, disk, |s| s.rate / allowed);
    [
        Ratio::new(format!("{what}: rate, volumes / Ceph"), ours, ceph, |s| s.rate),
        Ratio::new(format!("{what}: p99, Ceph / volumes"), ceph, ours, |s| s.p99_us),
        Ratio::new(format!("{what}: CPU an operation, all sides, Ceph / volumes"), ceph, ours, cpu)
            .aim(Aim::AtLeast, 15.0),
        of_disk.aim(Aim::AtLeast, aim),
    ]
}

/// Both of the systems, and the disk.
struct Bench<'a> {
    options: &'a Options,
    cluster: Cluster,
    targets: Vec<Server>,
    host: Nqn,
    /// CPU time of Ceph's clients where they end as soon as they have begun.
    beginning: Duration,
    /// A file as large as all volumes together.
    file: PathBuf,
}

impl<'a> Bench<'a> {
    fn start(folder: &Path, options: &'a Options, progress: &Progress) -> anyhow::Result<Bench<'a>> {
        let room = (options.bytes * CLIENTS as u64 * ROOM).max(ROOM_LEAST);
        let cluster = Cluster::start(&folder.join("ceph"), REPLICAS, room, progress)?;
        for client in 0..CLIENTS {
            cluster.image(&image(client), options.bytes)?;
        }
        let target = |slot: usize| {
            let drive = folder.join(format!("drive{slot}")).display().to_string();
            process::once(&["drive", "format", &drive, "--size", &room.to_string()])?;
            let mut subsystems = Vec::new();
            for client in 0..CLIENTS {
                let name = image(client);
                // Beside the volume, what a replica keeps of it.
                let size = (options.bytes + (64 << 20)).to_string();
                process::once(&["drive", "create", &drive, &name, "--size", &size])?;
                subsystems.push((nqn(client), format!("drive={drive},name={name}")));
            }
            process::targets(None, &subsystems)
        };
        let targets = (0..REPLICAS).map(target).collect::<anyhow::Result<Vec<_>>>()?;
        let host = HostIdentity::random().nqn;
        Ok(Bench { options, cluster, targets, host, beginning: Duration::ZERO, file: folder.join("disk") })
    }

    /// Has every block written: no access is to meet a hole.
    fn fill(&mut self, progress: &Progress) -> anyhow::Result<()> {
        progress.begin("filling the volumes, the images and a file", 2 * CLIENTS + 1);
        for client in 0..CLIENTS {
            make_filled(reaches_of(client, &self.addresses(), &self.host)?, self.options.bytes)?;
            progress.step()?;
        }
        for client in 0..CLIENTS {
            let limit = CLIENT_TIME_MAX + Duration::from_secs(self.options.bytes / FILL_BYTES_LEAST);
            let mut fio = self.cluster.fio(&image(client), limit);
            fio.args(["--name=fill", "--rw=write", "--bs=4m", "--iodepth=8"]);
            let output = fio.output().context("cannot start fio")?;
            anyhow::ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
            progress.step()?;
        }
        let block = vec![0x5a; 4 << 20];
        let mut file = fs::File::create(&self.file)?;
        for _ in 0..(self.options.bytes * CLIENTS as u64).div_ceil(block.len() as u64) {
            std::io::Write::write_all(&mut file, &block)?;
            progress.stop.check()?;
        }
        file.sync_all()?;
        self.beginning = self.clients_of_ceph(false, 1, Duration::from_millis(1))?.1;
        progress.step()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.targets.iter().map(|target| target.address).collect()
    }

    /// All clients at once, each on a thread with a volume of its own.
    fn ours(&self, write: bool, depth: usize) -> anyhow::Result<Sample> {
        let (addresses, time) = (self.addresses(), self.options.time);
        let ready = Barrier::new(CLIENTS + 1);
        let (outcomes, before) = std::thread::scope(|scope| {
            let client = |client: usize| {
                let (addresses, host, ready) = (addresses.clone(), self.host.clone(), &ready);
                let load = async move || {
                    let attached = async {
                        let volume =
                            volume::attach(reaches_of(client, &addresses, &host)?, volume::Options::default()).await?;
                        if write {
                            touch_regions(&volume).await?;
                        }
                        anyhow::Ok(Rc::new(volume))
                    };
                    let attached = attached.await;
                    // Whoever fails is waited for, too; and the row, which looks at what was used so far.
                    ready.wait();
                    ready.wait();
                    let volume = attached?;
                    let access = if write { Access::StableWrite } else { Access::Read };
                    let outcome = random_access(volume.clone(), access, ACCESS_BYTES, depth, time).await;
                    volume.detach().await?;
                    outcome
                };
                scope.spawn(move || Reactor::run(ReactorConfig::default(), load()))
            };
            let threads: Vec<_> = (0..CLIENTS).map(client).collect();
            ready.wait();
            let before = self.our_cpu();
            ready.wait();
            let join =
                |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("a client's thread panicked");
            (threads.into_iter().map(join).collect::<Vec<_>>(), before)
        });
        let (before, after) = (before?, self.our_cpu()?);
        let outcomes = outcomes.into_iter().map(|outcome| outcome?).collect::<anyhow::Result<Vec<Outcome>>>()?;
        let mut all = histogram();
        for outcome in &outcomes {
            all.add(outcome.all()).expect("all histograms have the same bounds");
        }
        let wall = outcomes.iter().map(|outcome| outcome.wall).max().unwrap_or_default();
        let servers = after.1.saturating_sub(before.1);
        Ok(Sample::new(&all, wall, after.0.saturating_sub(before.0), Some(servers)))
    }

    fn our_cpu(&self) -> anyhow::Result<(Duration, Duration)> {
        let targets = self.targets.iter().map(Server::cpu_time).sum::<anyhow::Result<Duration>>()?;
        Ok((machine::own_cpu_time(), targets))
    }

    fn ceph(&self, write: bool, depth: usize) -> anyhow::Result<Sample> {
        let (outputs, asking, servers) = self.clients_of_ceph(write, depth, self.options.time)?;
        let parse = |output: &Output| fio::parse(&output.stdout, write);
        let samples = outputs.iter().map(parse).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(together(&samples, asking.saturating_sub(self.beginning), servers))
    }

    /// All clients at once, each a process of fio: what they say, and the CPU time of all of them and of all daemons.
    fn clients_of_ceph(
        &self,
        write: bool,
        depth: usize,
        time: Duration,
    ) -> anyhow::Result<(Vec<Output>, Duration, Duration)> {
        let before = (machine::ended_cpu_time()?, self.cluster.cpu_time()?);
        let start = |client: usize| {
            let mut fio = self.cluster.fio(&image(client), time + CLIENT_TIME_MAX);
            fio::random(&mut fio, write, depth, time);
            fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot start fio")
        };
        let clients: Vec<_> = (0..CLIENTS).map(start).collect();
        // All are waited for, also where one has failed.
        let end = |client: anyhow::Result<Child>| anyhow::Ok(client?.wait_with_output()?);
        let outputs: Vec<_> = clients.into_iter().map(end).collect();
        let after = (machine::ended_cpu_time()?, self.cluster.cpu_time()?);
        let outputs = outputs.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let failed = outputs.iter().find(|output| !output.status.success());
        let why = failed.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stderr).into_owned());
        anyhow::ensure!(failed.is_none(), "fio: {why}");
        Ok((outputs, after.0.saturating_sub(before.0), after.1.saturating_sub(before.1)))
    }

    fn disk(&self, write: bool, depth: usize) -> anyhow::Result<Sample> {
        let accesses = CLIENTS * depth * if write { REPLICAS } else { 1 };
        let (size, depth) = (self.options.bytes * CLIENTS as u64, accesses.min(DISK_DEPTH_MAX));
        fio::run(fio::Job { file: &self.file, size, depth, write, stable: true, time: self.options.time })
    }
}

/// What clients at the same time come to: of each percentile the mean, as theirs were alike. fio itself counts the CPU of the
/// thread that asks, and most of the work is done by others of its process.
fn together(clients: &[Sample], asking: Duration, servers: Duration) -> Sample {
    let operations: u64 = clients.iter().map(|client| client.operations).sum();
    let per_operation = |cpu: Duration| cpu.as_secs_f64() * 1e6 / operations.max(1) as f64;
    let mean = |figure: fn(&Sample) -> f64| clients.iter().map(figure).sum::<f64>() / clients.len().max(1) as f64;
    Sample {
        operations,
        seconds: mean(|s| s.seconds),
        rate: clients.iter().map(|client| client.rate).sum(),
        p50_us: mean(|s| s.p50_us),
        p99_us: mean(|s| s.p99_us),
        p999_us: mean(|s| s.p999_us),
        max_us: clients.iter().map(|client| client.max_us).fold(0.0, f64::max),
        client_cpu_us: per_operation(asking),
        server_cpu_us: Some(per_operation(servers)),
    }
}

fn image(client: usize) -> String {
    format!("client{client}")
}

fn nqn(client: usize) -> String {
    format!("{NQN}-{client}")
}

fn reaches_of(client: usize, targets: &[SocketAddr], host: &Nqn) -> anyhow::Result<Vec<Rc<dyn Reach>>> {
    reaches(targets.iter().map(|&address| (address, nqn(client))), host)
}
