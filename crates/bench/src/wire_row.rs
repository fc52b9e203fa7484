//! `yagura bench wire`: rows B1, B2, B2a and B2b. A 4 KiB access to a memory namespace behind our target, from our host,
//! beside bare sockets that exchange the same bytes, one at a time (F) and as many under way.

use std::time::Duration;

use engine::{Reactor, ReactorConfig};
use fabric::host::{Options as HostOptions, RemoteNamespace};

use crate::access::{Access, random_access};
use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::floor::{self, READ_4K};
use crate::floor_depth::{self, WRITE_4K};
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;

/// Bytes of every access.
pub(crate) const ACCESS_BYTES: usize = 4096;
/// The namespace; smaller than the machine's memory, larger than its caches.
pub(crate) const NAMESPACE_BYTES: u64 = 256 << 20;
pub(crate) const NQN: &str = "nqn.2026-11.io.yagura:bench";
/// The sides of row B2, which have a floor each.
const LOADED: std::ops::Range<usize> = 1..5;
/// Commands that a queue of the host takes at a time where nothing else is said.
const SLOTS: u16 = 128;
/// How long the idle target is watched.
const IDLE_TIME: Duration = Duration::from_secs(2);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds, each of which runs every side once.
    pub rounds: usize,
    /// Length of one side of a round.
    pub time: Duration,
}

/// Runs all four rows; needs two cores.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    let (host_core, target_core) = two_cores()?;
    let namespace = namespace();
    let apart = process::target(target_core, NQN, &namespace)?;
    let shared = process::target(host_core, NQN, &namespace)?;
    let idle = idle_share(&shared, progress)?;
    let sides = [
        Ours::new(Access::Read, 1, &apart, "read, depth 1"),
        Ours::new(Access::Read, 32, &apart, "read, depth 32"),
        Ours::new(Access::Read, 128, &apart, "read, depth 128"),
        Ours::new(Access::Write, 32, &apart, "write, depth 32"),
        Ours::new(Access::Write, 128, &apart, "write, depth 128"),
        Ours::new(Access::CompareAndWrite, 1, &apart, "compare-and-write, depth 1"),
        Ours::new(Access::Read, 1, &shared, "read, depth 1, one shared core"),
        Ours::new(Access::Read, 32, &shared, "read, depth 32, one shared core"),
        Ours { slots: 127, ..Ours::new(Access::Read, 128, &apart, "read, depth 128, a queue of 128 entries") },
    ];
    let (floors, ours) = measure(options, &sides, (host_core, target_core), progress)?;
    Ok(rows(options, &floors, &ours, idle, (host_core, target_core)))
}

/// One of our sides.
struct Ours<'a> {
    access: Access,
    /// How many at a time.
    depth: usize,
    /// How many of them the queue takes: one less than it has entries.
    slots: u16,
    server: &'a Server,
    name: &'static str,
}

impl<'a> Ours<'a> {
    fn new(access: Access, depth: usize, server: &'a Server, name: &'static str) -> Ours<'a> {
        Ours { access, depth, slots: SLOTS, server, name }
    }
}

/// All rounds of all sides, each load right behind its floor.
fn measure(
    options: &Options,
    sides: &[Ours<'_>],
    (host_core, target_core): (usize, usize),
    progress: &Progress,
) -> anyhow::Result<(Floors, Vec<Side>)> {
    let mut floor = Side::new("bare sockets, polled (F)");
    let mut ours: Vec<Side> = sides.iter().map(|side| Side::new(side.name)).collect();
    let mut deep: Vec<Side> =
        sides[LOADED].iter().map(|side| Side::new(format!("bare sockets, {}", side.name))).collect();
    progress.begin("measuring", options.rounds * (1 + sides.len() + deep.len()));
    for _ in 0..options.rounds {
        floor.rounds.push(floor::ping_pong(READ_4K, host_core, target_core, options.time)?);
        progress.step()?;
        for (index, (what, side)) in sides.iter().zip(&mut ours).enumerate() {
            if LOADED.contains(&index) {
                let exchange = if what.access == Access::Write { WRITE_4K } else { READ_4K };
                let sample = floor_depth::round(exchange, what.depth, host_core, target_core, options.time)?;
                deep[index - LOADED.start].rounds.push(sample);
                progress.step()?;
            }
            side.rounds.push(round(what, host_core, options.time)?);
            progress.step()?;
        }
    }
    progress.end();
    Ok((Floors { one: floor, deep }, ours))
}

/// What bare sockets do.
struct Floors {
    /// One exchange at a time.
    one: Side,
    /// As many as each of the [`LOADED`] sides has under way.
    deep: Vec<Side>,
}

/// The cores of the host and of the target.
pub(crate) fn two_cores() -> anyhow::Result<(usize, usize)> {
    match machine::cores()?.as_slice() {
        &[host, target, ..] => Ok((host, target)),
        cores => anyhow::bail!("this row needs two cores, this process may use {}", cores.len()),
    }
}

/// The argument that makes a target serve the namespace.
pub(crate) fn namespace() -> String {
    format!("memory={NAMESPACE_BYTES}")
}

/// The share of a core that a target takes while a host is connected and asks nothing.
fn idle_share(server: &Server, progress: &Progress) -> anyhow::Result<f64> {
    progress.begin("watching an idle target", 1);
    let address = server.address;
    Reactor::run(ReactorConfig::default(), async move {
        let _connected = RemoteNamespace::connect(host_options(address)?).await?;
        engine::time::sleep(Duration::from_millis(200)).await;
        let (begin, before) = (engine::time::now(), server.cpu_time()?);
        engine::time::sleep(IDLE_TIME).await;
        let wall = engine::time::now().duration_since(begin);
        Ok((server.cpu_time()? - before).as_secs_f64() / wall.as_secs_f64())
    })?
}

pub(crate) fn host_options(address: std::net::SocketAddr) -> anyhow::Result<HostOptions> {
    let nqn = NQN.parse().map_err(|error| anyhow::anyhow!("{NQN}: {error}"))?;
    Ok(HostOptions { depth: SLOTS, ..HostOptions::new(address, nqn, 1) })
}

fn round(what: &Ours<'_>, core: usize, time: Duration) -> anyhow::Result<Sample> {
    let (server, access, depth) = (what.server, what.access, what.depth);
    let host = HostOptions { depth: what.slots, ..host_options(server.address)? };
    let config = ReactorConfig { core: Some(core), ..ReactorConfig::default() };
    let before = (machine::own_cpu_time(), server.cpu_time()?);
    let load =
        async move { random_access(RemoteNamespace::connect(host).await?, access, ACCESS_BYTES, depth, time).await };
    let outcome = machine::pinned(core, || Reactor::run(config, load))???;
    let used = machine::own_cpu_time().saturating_sub(before.0);
    Ok(Sample::new(&outcome.all(), outcome.wall, used, Some(server.cpu_time()?.saturating_sub(before.1))))
}

fn rows(
    options: &Options,
    floors: &Floors,
    ours: &[Side],
    idle: f64,
    (host_core, target_core): (usize, usize),
) -> Vec<Row> {
    let floor = &floors.one;
    let conditions = |more: &str| {
        vec![
            machine::describe(),
            format!(
                "memory namespace, NVMe/TCP over loopback, one I/O queue, no digests, {ACCESS_BYTES} bytes a command"
            ),
            format!("host (one thread) on core {host_core}; {more}"),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ]
    };
    let of_f = |side: &Side, name: &str| Ratio::new(format!("{name}: p50 / F"), side, floor, |s| s.p50_us);
    let apart = format!("target (one thread) on core {target_core}");
    let row = |row: &str, title: &str, more: &str, sides: Vec<&Side>, ratios: Vec<Ratio>| Row {
        row: row.to_owned(),
        title: title.to_owned(),
        conditions: conditions(more),
        sides: sides.into_iter().cloned().collect(),
        ratios,
        curves: Vec::new(),
    };
    let shared_ratio = |name: &str, shared: &Side, two: &Side, aim: f64| {
        Ratio::new(name, shared, two, |s| s.rate).aim(Aim::AtLeast, aim)
    };
    let loaded = &ours[LOADED];
    let idle = format!("target on the same core; idle target: {:.2} % of a core (aim < 1 %)", idle * 100.0);
    vec![
        row(
            "B1",
            "wire floor: 4 KiB read at depth 1",
            &apart,
            vec![floor, &ours[0]],
            vec![of_f(&ours[0], "read").aim(Aim::AtMost, 1.3)],
        ),
        row(
            "B2",
            "wire load: 4 KiB random reads and writes",
            &apart,
            std::iter::once(floor).chain(&floors.deep).chain(loaded).chain([&ours[8]]).collect(),
            load_ratios(floors, loaded, &ours[8]),
        ),
        row(
            "B2a",
            "4 KiB compare-and-write at depth 1",
            &apart,
            vec![floor, &ours[5]],
            vec![of_f(&ours[5], "compare-and-write").aim(Aim::AtMost, 2.0)],
        ),
        row(
            "B2b",
            "host and target on one shared core",
            &idle,
            vec![&ours[0], &ours[6], &ours[1], &ours[7]],
            vec![
                shared_ratio("depth 1: shared core / two cores", &ours[6], &ours[0], 0.8),
                shared_ratio("depth 32: shared core / two cores", &ours[7], &ours[1], 0.4),
            ],
        ),
    ]
}

/// Each load over four times what one exchange at a time comes to, and over bare sockets with as many under way; one that finds
/// every slot taken over one that does not.
fn load_ratios(floors: &Floors, loaded: &[Side], crowded: &Side) -> Vec<Ratio> {
    let times_f = |side: &Side| {
        let name = format!("{}: rate x F", side.name);
        Ratio::mixed(name, side, |s| s.rate, &floors.one, |s| 1e6 / s.p50_us).aim(Aim::AtLeast, 4.0)
    };
    let of_deep = |(side, deep): (&Side, &Side)| {
        Ratio::new(format!("{}: rate / bare sockets' at that depth", side.name), side, deep, |s| s.rate)
    };
    let of_roomy = Ratio::new(format!("{}: rate / with room for all", crowded.name), crowded, &loaded[1], |s| s.rate);
    let loads = loaded.iter().map(times_f).chain(loaded.iter().zip(&floors.deep).map(of_deep));
    loads.chain([of_roomy.aim(Aim::AtLeast, 0.95)]).collect()
}
