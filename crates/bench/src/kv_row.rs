//! `yagura bench kv`: row B4. Gets, puts and YCSB mixes against a pool of memory targets, beside memcached as shipped under the
//! same harness, and beside bare sockets that exchange the messages of an inline get and put in the same pattern.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use engine::{Buf, Reactor, ReactorConfig, View};
use fabric::host::{Options as HostOptions, RemoteNamespace};
use kv::{Store, Value};
use pool::{CreateOptions, Domain, Map, NewMember};

use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::floor::{self, COMPARE_AND_WRITE_4K, READ_4K};
use crate::load::{Outcome, closed_loops};
use crate::machine;
use crate::memcached::Client;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::workload::{Mix, Operation, Random, Zipfian, key_bytes};

/// Bytes of each member. Chosen: larger than the caches, loaded in a second.
const MEMBER_BYTES: u64 = 256 << 20;
const NQN: &str = "nqn.2026-11.io.yagura:bench-kv";
/// Clients of the mixes.
const CLIENTS: usize = 16;
/// Memory for memcached: everything that is loaded, many times over.
const MEMCACHED_MEGABYTES: usize = 1024;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Replicas of each key, as many members; one row for each.
    pub replicas: Vec<u8>,
    /// Bytes of a value: 3,900 (YCSB's ten fields, fits a page) and 4,096 (does not); one row for each.
    pub values: Vec<usize>,
    /// Rounds, each of which runs every side once.
    pub rounds: usize,
    /// Length of one side of a round.
    pub time: Duration,
}

/// What the clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    Gets,
    Puts,
    Mix(Mix),
}

impl Pattern {
    fn pick(self, random: &mut Random) -> Operation {
        match self {
            Pattern::Gets => Operation::Read,
            Pattern::Puts => Operation::Update,
            Pattern::Mix(mix) => mix.pick(random),
        }
    }

    fn clients(self) -> usize {
        if matches!(self, Pattern::Mix(_)) { CLIENTS } else { 1 }
    }

    fn name(self) -> String {
        match self {
            Pattern::Gets => "get, 1 client".to_owned(),
            Pattern::Puts => "put, 1 client".to_owned(),
            Pattern::Mix(mix) => format!("YCSB {mix:?}, {CLIENTS} clients"),
        }
    }
}

/// The two systems that hold the same records.
struct Contest {
    pool: Pool,
    memcached: Server,
    value: usize,
    records: u64,
    host_core: usize,
}

/// Memory targets and the pool on them.
struct Pool {
    servers: Vec<Server>,
    map: Map,
}

/// Runs one row for each count of replicas and each size of value; needs two cores.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    let cores = machine::cores()?;
    let &[host_core, server_core, ..] = cores.as_slice() else {
        anyhow::bail!("the kv rows need two cores, this process may use {}", cores.len());
    };
    let mut rows = Vec::new();
    for &replicas in &options.replicas {
        for &value in &options.values {
            let contest = Contest::new(replicas, value, host_core, server_core, progress)?;
            rows.push(contest.row(options, usize::from(replicas), server_core, progress)?);
        }
    }
    Ok(rows)
}

impl Contest {
    fn new(
        replicas: u8,
        value: usize,
        host_core: usize,
        server_core: usize,
        progress: &Progress,
    ) -> anyhow::Result<Contest> {
        let pool = Pool::create(replicas, server_core)?;
        let memcached = process::memcached(server_core, MEMCACHED_MEGABYTES)?;
        // Half of the table's pages, or half of the heap where a value takes a page of its own there.
        let records = u64::from(pool.map.geometry(0).table_pages) / 2;
        let contest = Contest { pool, memcached, value, records, host_core };
        progress.begin("loading both sides", 2);
        contest.load_store()?;
        progress.step();
        contest.load_memcached()?;
        progress.step();
        Ok(contest)
    }

    fn load_store(&self) -> anyhow::Result<()> {
        let (value, records) = (filler(self.value), self.records);
        let (servers, map) = (self.pool.addresses(), self.pool.map.clone());
        Reactor::run(ReactorConfig::default(), async move {
            let store = Rc::new(connect(&servers, map).await?);
            let next = Rc::new(RefCell::new(0..records));
            let loaders: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let (store, next, value) = (Rc::clone(&store), Rc::clone(&next), value.clone());
                    engine::task::spawn(async move {
                        loop {
                            let Some(number) = next.borrow_mut().next() else { return anyhow::Ok(()) };
                            store.put(&key_bytes(number), Value::new(vec![value.clone()])).await?;
                        }
                    })
                })
                .collect();
            for loader in loaders {
                loader.await?;
            }
            store.settle().await;
            Ok(())
        })?
    }

    fn load_memcached(&self) -> anyhow::Result<()> {
        let (value, records, address) = (filler(self.value), self.records, self.memcached.address);
        Reactor::run(ReactorConfig::default(), async move {
            let client = Client::connect(address).await?;
            for number in 0..records {
                client.set(&key_bytes(number), &value).await?;
            }
            Ok(())
        })?
    }

    fn row(&self, options: &Options, replicas: usize, server_core: usize, progress: &Progress) -> anyhow::Result<Row> {
        let patterns: Vec<Pattern> =
            [Pattern::Gets, Pattern::Puts].into_iter().chain(Mix::ALL.into_iter().map(Pattern::Mix)).collect();
        let mut floors = [Side::new("get, bare sockets"), Side::new("put, bare sockets")];
        let side = |who: &str| patterns.iter().map(|p| Side::new(format!("{}: {who}", p.name()))).collect::<Vec<_>>();
        let (mut ours, mut theirs) = (side("Yagura"), side("memcached"));
        progress.begin("measuring", options.rounds * (2 + 2 * patterns.len()));
        for _ in 0..options.rounds {
            let phases: [&[floor::Exchange]; 2] = [&[READ_4K], &[READ_4K, COMPARE_AND_WRITE_4K]];
            for (side, phases) in floors.iter_mut().zip(phases) {
                let majority = replicas / 2 + 1;
                side.rounds.push(floor::round(phases, replicas, majority, self.host_core, server_core, options.time)?);
                progress.step();
            }
            for (&pattern, (ours, theirs)) in patterns.iter().zip(ours.iter_mut().zip(&mut theirs)) {
                ours.rounds.push(self.round_of_store(pattern, options.time)?);
                progress.step();
                theirs.rounds.push(self.round_of_memcached(pattern, options.time)?);
                progress.step();
            }
        }
        progress.end();
        let ratios = ratios(&floors, &ours, &theirs);
        Ok(Row {
            row: format!("B4-{replicas}x{}", self.value),
            title: format!("key-value store, {replicas} replica(s), values of {} bytes", self.value),
            conditions: vec![
                machine::describe(),
                format!("memory namespaces, NVMe/TCP over loopback; one client thread on core {}", self.host_core),
                format!(
                    "{replicas} storage node(s), memcached and the bare sockets' answering thread on core {server_core}"
                ),
                format!("{} records, table half full, Zipfian keys of 16 bytes", self.records),
                format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
            ],
            sides: floors.into_iter().chain(ours.into_iter().zip(theirs).flat_map(|(a, b)| [a, b])).collect(),
            ratios,
        })
    }

    fn round_of_store(&self, pattern: Pattern, time: Duration) -> anyhow::Result<Sample> {
        let (addresses, map, records) = (self.pool.addresses(), self.pool.map.clone(), self.records);
        let value = Value::new(vec![filler(self.value)]);
        let size = self.value;
        let drive = async move {
            let store = connect(&addresses, map).await?;
            let choice = Choice::new(pattern, records);
            let outcome = closed_loops(pattern.clients(), 1, time, async move |_| {
                let (operation, key) = choice.next();
                if operation != Operation::Update {
                    let found = store.get(&key).await?.context("a loaded key is missing")?;
                    anyhow::ensure!(found.len() == size, "a value of {} bytes, {size} were stored", found.len());
                }
                if operation != Operation::Read {
                    store.put(&key, value.clone()).await?;
                }
                Ok(0)
            });
            outcome.await
        };
        self.sample(drive, || self.pool.servers.iter().map(Server::cpu_time).sum())
    }

    fn round_of_memcached(&self, pattern: Pattern, time: Duration) -> anyhow::Result<Sample> {
        let (address, records, value) = (self.memcached.address, self.records, filler(self.value));
        let drive = async move {
            let mut clients = Vec::new();
            for _ in 0..pattern.clients() {
                clients.push(Client::connect(address).await?);
            }
            let choice = Choice::new(pattern, records);
            closed_loops(pattern.clients(), 1, time, async move |client| {
                let (operation, key) = choice.next();
                if operation != Operation::Update {
                    anyhow::ensure!(clients[client].get(&key).await?, "memcached has lost a loaded key");
                }
                if operation != Operation::Read {
                    clients[client].set(&key, &value).await?;
                }
                Ok(0)
            })
            .await
        };
        self.sample(drive, || self.memcached.cpu_time())
    }

    /// Runs one round on a reactor pinned to the host's core.
    fn sample(
        &self,
        drive: impl Future<Output = anyhow::Result<Outcome>>,
        server_cpu: impl Fn() -> anyhow::Result<Duration>,
    ) -> anyhow::Result<Sample> {
        let config = ReactorConfig { core: Some(self.host_core), ..ReactorConfig::default() };
        let before = (machine::cpu_time(std::process::id())?, server_cpu()?);
        let outcome = machine::pinned(self.host_core, || Reactor::run(config, drive))???;
        let used = machine::cpu_time(std::process::id())?.saturating_sub(before.0);
        Ok(Sample::new(&outcome.all(), outcome.wall, used, Some(server_cpu()?.saturating_sub(before.1))))
    }
}

fn ratios(floors: &[Side; 2], ours: &[Side], theirs: &[Side]) -> Vec<Ratio> {
    let p50 = |name: &str, a: &Side, b: &Side| Ratio::new(name, a, b, |s| s.p50_us);
    let mut ratios = vec![
        p50("get: p50 / bare sockets", &ours[0], &floors[0]).aim(Aim::AtMost, 1.6),
        p50("put: p50 / bare sockets", &ours[1], &floors[1]).aim(Aim::AtMost, 1.6),
        p50("get: p50 / memcached", &ours[0], &theirs[0]),
        p50("put: p50 / memcached", &ours[1], &theirs[1]),
    ];
    ratios.extend(
        Mix::ALL
            .iter()
            .zip(ours[2..].iter().zip(&theirs[2..]))
            .map(|(mix, (a, b))| Ratio::new(format!("YCSB {mix:?}: rate / memcached"), a, b, |s| s.rate)),
    );
    ratios
}

/// Which operation on which key comes next; one sequence for all clients.
struct Choice {
    pattern: Pattern,
    state: RefCell<Random>,
    zipfian: Zipfian,
}

impl Choice {
    fn new(pattern: Pattern, records: u64) -> Choice {
        Choice { pattern, state: RefCell::new(Random::new(records)), zipfian: Zipfian::new(records) }
    }

    fn next(&self) -> (Operation, [u8; 16]) {
        let mut random = self.state.borrow_mut();
        (self.pattern.pick(&mut random), key_bytes(self.zipfian.key(&mut random)))
    }
}

impl Pool {
    fn create(replicas: u8, core: usize) -> anyhow::Result<Pool> {
        let namespace = format!("memory={MEMBER_BYTES}");
        let servers: Vec<Server> =
            (0..replicas).map(|_| process::target(core, NQN, &namespace)).collect::<Result<_, _>>()?;
        let addresses: Vec<SocketAddr> = servers.iter().map(|s| s.address).collect();
        let map = Reactor::run(ReactorConfig::default(), async move {
            let mut members = Vec::new();
            for address in addresses {
                members.push(NewMember {
                    namespace: remote(address).await?,
                    nqn: NQN.to_owned(),
                    nsid: 1,
                    addresses: vec![address.to_string()],
                    weight: None,
                    domain: Domain::default(),
                });
            }
            let options = CreateOptions { replicas, ..CreateOptions::default() };
            anyhow::Ok(pool::create(&members, &options).await?)
        })??;
        Ok(Pool { servers, map })
    }

    /// In the order of the map's members.
    fn addresses(&self) -> Vec<SocketAddr> {
        let address = |member: &pool::Member| member.addresses.first().and_then(|a| a.parse().ok());
        self.map.members.iter().filter_map(address).collect()
    }
}

async fn remote(address: SocketAddr) -> anyhow::Result<Rc<RemoteNamespace>> {
    let nqn = NQN.parse().map_err(|error| anyhow::anyhow!("{NQN}: {error}"))?;
    Ok(Rc::new(RemoteNamespace::connect(HostOptions::new(address, nqn, 1)).await?))
}

async fn connect(addresses: &[SocketAddr], map: Map) -> anyhow::Result<Store<Rc<RemoteNamespace>>> {
    let mut members = Vec::new();
    for &address in addresses {
        members.push(Some(remote(address).await?));
    }
    Ok(Store::new(map, members))
}

/// Bytes that do not compress and are the same on both sides.
fn filler(size: usize) -> View {
    let mut random = Random::new(size as u64);
    let mut bytes = Buf::with_len(size);
    bytes.fill_with(|| random.next_u64() as u8);
    bytes.freeze()
}
