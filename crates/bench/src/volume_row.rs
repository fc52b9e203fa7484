//! `yagura bench volume`: row B9. A volume mirrored over three targets, beside one namespace over one target, and beside bare
//! sockets that exchange the same messages with three peers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use device::{Durability, Lba, Namespace};
use engine::{Buf, Reactor, ReactorConfig};
use fabric::host::{HostIdentity, Options as HostOptions, RemoteNamespace};
use nvme::Nqn;
use volume::{FormatOptions, NvmeReach, Reach, Volume};

use crate::access::{Access, random_access};
use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::floor::{self, Answering, Exchange, Peers, READ_4K};
use crate::floor_depth::WRITE_4K;
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::wire_row::{ACCESS_BYTES, two_cores};

const REPLICAS: usize = 3;
/// Bytes of the volume: a thousand regions of a megabyte.
const VOLUME_BYTES: u64 = 1 << 30;
/// Bytes of each namespace: those of the volume, and what a replica has beside them.
const NAMESPACE_BYTES: u64 = VOLUME_BYTES + (64 << 20);
const NQN: &str = "nqn.2026-11.io.yagura:bench-volume";
/// Files in memory: a volume's replicas keep reservations, which a namespace in memory does not.
pub(crate) const MEMORY: &str = "/dev/shm";
/// From here on a medium is slow, and the wire no longer what counts (row B9), microseconds.
const SLOW_US: f64 = 100.0;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the replicas' files are; without it in memory.
    pub folder: Option<PathBuf>,
    /// Rounds, each of which runs every side once.
    pub rounds: usize,
    /// Length of one side of a round.
    pub time: Duration,
}

/// What is measured on both the volume and the plain namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pattern {
    write: bool,
    depth: usize,
    /// Every region's intent stands before the clock runs; otherwise the first write of each waits for the log.
    warm: bool,
}

const PATTERNS: [Pattern; 5] = [
    Pattern { write: false, depth: 1, warm: true },
    Pattern { write: false, depth: 32, warm: true },
    Pattern { write: true, depth: 1, warm: true },
    Pattern { write: true, depth: 32, warm: true },
    Pattern { write: true, depth: 32, warm: false },
];

impl Pattern {
    fn name(self) -> String {
        let regions = if self.warm { "" } else { ", to regions that were idle" };
        format!("{}, depth {}{regions}", if self.write { "write" } else { "read" }, self.depth)
    }

    fn access(self) -> Access {
        // Of the volume every write is stable.
        if self.write { Access::StableWrite } else { Access::Read }
    }
}

/// Targets and where to run.
struct Bench {
    servers: Vec<Server>,
    plain: Server,
    host: Nqn,
    host_core: usize,
    target_core: usize,
}

/// Runs the row; needs two cores.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let (host_core, target_core) = two_cores()?;
    let place = options.folder.as_deref().unwrap_or(Path::new(MEMORY));
    let folder = tempfile::tempdir_in(place).context("cannot make a folder for the replicas")?;
    let target = |name: &str| {
        let file = folder.path().join(name);
        process::target(target_core, &nqn(name), &format!("file={},size={NAMESPACE_BYTES}", file.display()))
    };
    let servers = (0..REPLICAS).map(|slot| target(&slot.to_string())).collect::<anyhow::Result<Vec<_>>>()?;
    let host = HostIdentity::random().nqn;
    let bench = Bench { servers, plain: target("plain")?, host, host_core, target_core };
    progress.begin("filling the volume and the plain namespace", 2);
    bench.fill(progress)?;
    let named = |who: &str| PATTERNS.map(|pattern| Side::new(format!("{}: {who}", pattern.name())));
    let (mut ours, mut theirs) = (named("volume"), named("one namespace"));
    let mut floors = [Side::new("read: bare sockets, one peer (F)"), Side::new("write: bare sockets, three peers (F)")];
    progress.begin("measuring", options.rounds * (2 + 2 * PATTERNS.len()));
    for _ in 0..options.rounds {
        for (side, exchange, count) in [(0, READ_4K, 1), (1, WRITE_4K, REPLICAS)] {
            floors[side].rounds.push(bench.floor(exchange, count, options.time)?);
            progress.step()?;
        }
        for (place, &pattern) in PATTERNS.iter().enumerate() {
            ours[place].rounds.push(bench.volume(pattern, options.time)?);
            progress.step()?;
            theirs[place].rounds.push(bench.namespace(pattern, options.time)?);
            progress.step()?;
        }
    }
    progress.end();
    let ratios = ratios(&floors, &ours, &theirs);
    Ok(Row {
        row: if options.folder.is_some() { "B9-file" } else { "B9" }.to_owned(),
        title: "a volume over three targets, beside one namespace and bare sockets".to_owned(),
        conditions: vec![
            machine::describe(),
            format!("4 KiB random access to 1 GiB; files in {}, every write stable", place.display()),
            format!("host (one thread) on core {host_core}; each target a process on core {target_core}"),
            format!("bare sockets: {}", Answering::ThreadEach.name()),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ],
        sides: floors
            .into_iter()
            .chain(ours.into_iter().zip(theirs).flat_map(|(ours, theirs)| [ours, theirs]))
            .collect(),
        ratios,
        curves: Vec::new(),
    })
}

fn nqn(name: &str) -> String {
    format!("{NQN}-{name}")
}

fn ratios(floors: &[Side; 2], ours: &[Side], theirs: &[Side]) -> Vec<Ratio> {
    let place = |write: bool, depth: usize, warm: bool| {
        let wanted = Pattern { write, depth, warm };
        PATTERNS.iter().position(|&pattern| pattern == wanted).expect("it is among the constants above")
    };
    let is_slow = theirs[place(true, 1, true)].median(|s| s.p50_us) > SLOW_US;
    let mut ratios = Vec::new();
    for (write, floor) in [(false, &floors[0]), (true, &floors[1])] {
        let (verb, at) = (if write { "write" } else { "read" }, place(write, 1, true));
        let of_floor = Ratio::new(format!("{verb}, depth 1: p50, volume / F"), &ours[at], floor, |s| s.p50_us);
        let of_one =
            Ratio::new(format!("{verb}, depth 1: p50, volume / one namespace"), &ours[at], &theirs[at], |s| s.p50_us);
        ratios.push(if is_slow { of_floor } else { of_floor.aim(Aim::AtMost, 1.3) });
        ratios.push(if is_slow && write { of_one.aim(Aim::AtMost, 1.3) } else { of_one });
        let at = place(write, 32, true);
        let rate =
            Ratio::new(format!("{verb}, depth 32: rate, volume / one namespace"), &ours[at], &theirs[at], |s| s.rate);
        ratios.push(if write { rate } else { rate.aim(Aim::AtLeast, 0.95) });
    }
    let (idle, warm) = (&ours[place(true, 32, false)], &ours[place(true, 32, true)]);
    let name = "write, depth 32: rate, regions that were idle / regions whose intent stands";
    ratios.push(Ratio::new(name, idle, warm, |s| s.rate).aim(Aim::AtLeast, 0.95));
    ratios
}

impl Bench {
    fn reaches(&self) -> anyhow::Result<Vec<Rc<dyn Reach>>> {
        let holder = |(slot, server): (usize, &Server)| (server.address, nqn(&slot.to_string()));
        reaches(self.servers.iter().enumerate().map(holder), &self.host)
    }

    /// Makes the volume, and has every block of it and of the plain namespace written: no access is to meet a hole.
    fn fill(&self, progress: &Progress) -> anyhow::Result<()> {
        make_filled(self.reaches()?, VOLUME_BYTES)?;
        progress.step()?;
        let address = self.plain.address;
        Reactor::run(ReactorConfig::default(), async move {
            let plain = plain(address).await?;
            write_through(&plain, VOLUME_BYTES).await
        })??;
        progress.step()
    }

    fn floor(&self, exchange: Exchange, count: usize, time: Duration) -> anyhow::Result<Sample> {
        let peers = Peers { count, majority: count, answering: Answering::ThreadEach, core: self.target_core };
        floor::round(&[exchange], peers, self.host_core, time)
    }

    fn volume(&self, pattern: Pattern, time: Duration) -> anyhow::Result<Sample> {
        let reaches = self.reaches()?;
        let servers = self.servers.iter().collect();
        self.on_core(servers, async move |clock: &Clock<'_>| {
            let volume = Rc::new(volume::attach(reaches, volume::Options::default()).await?);
            if pattern.write && pattern.warm {
                touch_regions(&volume).await?;
            }
            let sample = clock.run(volume.clone(), pattern, time).await;
            volume.detach().await?;
            sample
        })
    }

    fn namespace(&self, pattern: Pattern, time: Duration) -> anyhow::Result<Sample> {
        let address = self.plain.address;
        self.on_core(vec![&self.plain], async move |clock: &Clock<'_>| {
            clock.run(plain(address).await?, pattern, time).await
        })
    }

    /// Runs on the host's core, with what it takes to tell the CPU time of both sides.
    fn on_core(
        &self,
        servers: Vec<&Server>,
        run: impl AsyncFnOnce(&Clock<'_>) -> anyhow::Result<Sample>,
    ) -> anyhow::Result<Sample> {
        let config = ReactorConfig { core: Some(self.host_core), ..ReactorConfig::default() };
        let clock = Clock { servers };
        machine::pinned(self.host_core, || Reactor::run(config, run(&clock)))??
    }
}

/// The processes whose CPU time counts.
struct Clock<'a> {
    servers: Vec<&'a Server>,
}

impl Clock<'_> {
    fn cpu(&self) -> anyhow::Result<(Duration, Duration)> {
        let servers = self.servers.iter().map(|server| server.cpu_time()).sum::<anyhow::Result<Duration>>()?;
        Ok((machine::own_cpu_time(), servers))
    }

    async fn run<N: Namespace>(&self, namespace: N, pattern: Pattern, time: Duration) -> anyhow::Result<Sample> {
        let before = self.cpu()?;
        let outcome = random_access(namespace, pattern.access(), ACCESS_BYTES, pattern.depth, time).await?;
        let after = self.cpu()?;
        let servers = after.1.saturating_sub(before.1);
        Ok(Sample::new(&outcome.all(), outcome.wall, after.0.saturating_sub(before.0), Some(servers)))
    }
}

async fn plain(address: SocketAddr) -> anyhow::Result<RemoteNamespace> {
    let subsystem = nqn("plain").parse().context("a name of this row")?;
    Ok(RemoteNamespace::connect(HostOptions::new(address, subsystem, 1)).await?)
}

/// How holders of a volume are reached, each namespace 1 of a subsystem at an address.
pub(crate) fn reaches(
    holders: impl IntoIterator<Item = (SocketAddr, String)>,
    host: &Nqn,
) -> anyhow::Result<Vec<Rc<dyn Reach>>> {
    let reach = |(address, subsystem): (SocketAddr, String)| {
        let subsystem: Nqn = subsystem.parse().context("a name of this row")?;
        Ok(Rc::new(NvmeReach::at(address, subsystem, 1, host.clone())) as Rc<dyn Reach>)
    };
    holders.into_iter().map(reach).collect()
}

/// Makes a volume of these replicas, and has every block of it written.
pub(crate) fn make_filled(reaches: Vec<Rc<dyn Reach>>, bytes: u64) -> anyhow::Result<()> {
    let options = FormatOptions { replicas: reaches.len() as u8, bytes: Some(bytes), ..FormatOptions::default() };
    Reactor::run(ReactorConfig::default(), async move {
        volume::format(reaches.clone(), options).await?;
        let volume = volume::attach(reaches, volume::Options::default()).await?;
        write_through(&volume, bytes).await?;
        Ok::<_, anyhow::Error>(volume.detach().await?)
    })?
}

async fn write_through<N: Namespace>(namespace: &N, bytes: u64) -> anyhow::Result<()> {
    let info = namespace.info();
    let data = Buf::zeroed((info.transfer_blocks_max * info.block_size) as usize).freeze();
    for lba in (0..bytes / u64::from(info.block_size)).step_by(info.transfer_blocks_max as usize) {
        namespace.write(Lba(lba), data.clone(), Durability::Cached).await?;
    }
    Ok(namespace.flush().await?)
}

/// Writes a block of every region.
pub(crate) async fn touch_regions(volume: &Volume) -> anyhow::Result<()> {
    let (info, region) = (volume.info(), volume.shape().region_blocks);
    let block = Buf::zeroed(info.block_size as usize).freeze();
    for lba in (0..info.blocks).step_by(region as usize) {
        volume.write(Lba(lba), block.clone(), Durability::Cached).await?;
    }
    Ok(())
}
