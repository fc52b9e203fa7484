//! `yagura bench kv`: row B4. Gets, puts and YCSB mixes against a pool, beside memcached and Redis as shipped under the same
//! harness, and beside bare sockets that exchange the messages of a get and a put in the same pattern.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use engine::rng::SplitMix;
use engine::{Reactor, ReactorConfig};

use crate::figures::{Aim, Ratio, Row, Sample, Side as Figures};
use crate::floor::{self, Answering, Exchange};
use crate::kv_sides::{Client, Nodes, PoolShape, Side, filler};
use crate::load::closed_loops;
use crate::machine;
use crate::progress::Progress;
use crate::workload::{Mix, Operation, Zipfian, key_bytes};

/// Clients of the mixes.
const CLIENTS: usize = 16;
/// Bytes of a page that are not for key and value: the page's header and the entry's (docs/kv.md).
const PAGE_OVERHEAD: u32 = 64 + 32;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Replicas of each key, as many members; one row for each.
    pub replicas: Vec<u8>,
    /// Records; one row for each.
    pub records: Vec<Record>,
    /// Members lie in files of this folder; without it in memory.
    pub folder: Option<PathBuf>,
    /// Rounds, each of which runs every side once.
    pub rounds: usize,
    /// Length of one side of a round.
    pub time: Duration,
}

/// A value's size, and that of the pages it goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Bytes of a value: 3,900 (YCSB's ten fields) fits a page of 4 KiB, 4,096 does not.
    pub value: usize,
    /// Bytes of a page.
    pub page_size: u32,
}

impl Record {
    fn is_inline(self) -> bool {
        self.value + key_bytes(0).len() + PAGE_OVERHEAD as usize <= self.page_size as usize
    }

    /// The messages of a get and of a put, in their round trips, on every replica (NVMe/TCP: capsules of 72 bytes, data PDU
    /// headers and responses of 24). A value out of line costs a get one more read, of one replica alone, and a put a write
    /// beside its first read.
    fn messages(self) -> [Vec<Exchange>; 2] {
        let page = self.page_size as usize;
        let read = Exchange { request: 72, reply: 24 + page };
        let swap = Exchange { request: 2 * (72 + page), reply: 2 * 24 };
        if self.is_inline() {
            return [vec![read], vec![read, swap]];
        }
        let data = self.value.next_multiple_of(4096);
        let fetch = Exchange { request: 72, reply: 24 + data };
        let read_and_write = Exchange { request: 72 + 72 + data, reply: 24 + page + 24 };
        [vec![read, fetch], vec![read_and_write, swap]]
    }
}

/// What the clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    Gets,
    Puts,
    Mix(Mix),
}

impl Pattern {
    fn all() -> Vec<Pattern> {
        [Pattern::Gets, Pattern::Puts].into_iter().chain(Mix::ALL.into_iter().map(Pattern::Mix)).collect()
    }

    fn pick(self, random: &mut SplitMix) -> Operation {
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

/// The systems that hold the same records; ours is the first.
struct Contest {
    sides: Vec<Side>,
    record: Record,
    /// Records that each side holds before and after each round.
    loaded: u64,
    host_core: usize,
}

/// Runs one row for each count of replicas and each record; needs two cores.
pub fn run(options: &Options, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let cores = machine::cores()?;
    let &[host_core, server_core, ..] = cores.as_slice() else {
        anyhow::bail!("the kv rows need two cores, this process may use {}", cores.len());
    };
    for &replicas in &options.replicas {
        for &record in &options.records {
            let several = [Nodes::Each, Nodes::One];
            for &nodes in if replicas == 1 { &several[..1] } else { &several[..] } {
                // Each pool has files of its own: those of the last one are a pool's members, which another may not take.
                let folder = options.folder.as_ref().map(tempfile::tempdir_in);
                let folder = folder.transpose().context("cannot make a folder for the members")?;
                let folder = folder.as_ref().map(tempfile::TempDir::path);
                let shape = PoolShape { replicas, page_size: record.page_size, folder, nodes };
                let contest = Contest::new(shape, record, host_core, server_core, progress)?;
                rows.push(contest.row(options, shape, server_core, progress)?);
            }
        }
    }
    Ok(())
}

impl Contest {
    fn new(
        shape: PoolShape<'_>,
        record: Record,
        host_core: usize,
        server_core: usize,
        progress: &Progress,
    ) -> anyhow::Result<Contest> {
        let ours = Side::yagura(shape, server_core)?;
        let Side::Yagura(pool) = &ours else { anyhow::bail!("a pool is not a pool") };
        // Half of the table's pages, or half of the heap where a value takes a page of its own there.
        let loaded = u64::from(pool.map.geometry(0).table_pages) / 2;
        let sides = vec![ours, Side::memcached(server_core)?, Side::redis(server_core)?];
        let contest = Contest { sides, record, loaded, host_core };
        progress.begin("loading all sides", contest.sides.len());
        for side in &contest.sides {
            let value = filler(record.value);
            for_each(side, 0..loaded, async move |client, key| client.set(key, &value).await)?;
            progress.step()?;
        }
        Ok(contest)
    }

    fn row(
        &self,
        options: &Options,
        shape: PoolShape<'_>,
        server_core: usize,
        progress: &Progress,
    ) -> anyhow::Result<Row> {
        let replicas = usize::from(shape.replicas);
        let (together, answering, nodes) = match shape.nodes {
            Nodes::Each if replicas == 1 => ("", Answering::OneThread, "one storage node".to_owned()),
            Nodes::Each => ("", Answering::ThreadEach, format!("{replicas} storage nodes")),
            Nodes::One => ("-together", Answering::OneThread, format!("one storage node with {replicas} members")),
        };
        let patterns = Pattern::all();
        let mut floors = [Figures::new("get, bare sockets"), Figures::new("put, bare sockets")];
        let named = |side: &Side| -> Vec<Figures> {
            patterns.iter().map(|p| Figures::new(format!("{}: {}", p.name(), side.name()))).collect()
        };
        let mut figures: Vec<Vec<Figures>> = self.sides.iter().map(named).collect();
        progress.begin("measuring", options.rounds * (2 + self.sides.len() * patterns.len()));
        for _ in 0..options.rounds {
            for (side, phases) in floors.iter_mut().zip(self.record.messages()) {
                let majority = replicas / 2 + 1;
                let peers = floor::Peers { count: replicas, majority, answering, core: server_core };
                side.rounds.push(floor::round(&phases, peers, self.host_core, options.time)?);
                progress.step()?;
            }
            for (place, &pattern) in patterns.iter().enumerate() {
                for (side, figures) in figures.iter_mut().enumerate() {
                    figures[place].rounds.push(self.round(side, pattern, options.time)?);
                    progress.step()?;
                }
            }
        }
        progress.end();
        let ratios = ratios(&floors, &figures, self.sides.iter().map(Side::name).collect());
        let Record { value, page_size } = self.record;
        let (medium, place) = match options.folder {
            Some(_) => ("-file", "files, O_DIRECT, every write stable"),
            None => ("", "memory namespaces"),
        };
        let pages = if page_size == 4096 { String::new() } else { format!("@{page_size}") };
        let inline = if self.record.is_inline() { "in the page" } else { "out of line" };
        Ok(Row {
            row: format!("B4-{replicas}x{value}{pages}{medium}{together}"),
            title: format!(
                "key-value store, {replicas} replica(s), {nodes}, values of {value} bytes, pages of {page_size}"
            ),
            conditions: vec![
                machine::describe(),
                format!("{place}, NVMe/TCP over loopback; one client thread on core {}", self.host_core),
                format!("{nodes}, memcached, Redis and the bare sockets' answering side on core {server_core}"),
                format!("bare sockets: {}", answering.name()),
                format!("{} records, table half full, Zipfian keys of 16 bytes (D: the latest)", self.loaded),
                format!("values {inline}; the bare sockets exchange the same messages in the same round trips"),
                format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
            ],
            sides: floors.into_iter().chain(figures.into_iter().flatten()).collect(),
            ratios,
            curves: Vec::new(),
        })
    }

    fn round(&self, side: usize, pattern: Pattern, time: Duration) -> anyhow::Result<Sample> {
        let (way, value, size) = (self.sides[side].way(), filler(self.record.value), self.record.value);
        let choice = Rc::new(Choice::new(pattern, self.loaded));
        let drive = {
            let choice = Rc::clone(&choice);
            async move {
                let clients = Rc::new(way.clients(pattern.clients()).await?);
                let used = Rc::clone(&clients);
                let outcome = closed_loops(pattern.clients(), 1, time, async move |client| {
                    let client = &used[client];
                    let (operation, number) = choice.next();
                    let key = key_bytes(number);
                    if matches!(operation, Operation::Read | Operation::ReadModifyWrite) {
                        client.get(&key, size).await?;
                    }
                    if operation != Operation::Read {
                        client.set(&key, &value).await?;
                        choice.done(number);
                    }
                    Ok(0)
                });
                let outcome = outcome.await;
                settle(&clients).await;
                outcome
            }
        };
        // A reactor pinned to the host's core.
        let config = ReactorConfig { core: Some(self.host_core), ..ReactorConfig::default() };
        let before = (machine::own_cpu_time(), self.sides[side].cpu_time()?);
        let outcome = machine::pinned(self.host_core, || Reactor::run(config, drive))???;
        let used = machine::own_cpu_time().saturating_sub(before.0);
        let answering = self.sides[side].cpu_time()?.saturating_sub(before.1);
        // All rounds begin alike, and as many as may be asked for find room.
        for_each(&self.sides[side], self.loaded..choice.keys(), async |client, key| client.delete(key).await)?;
        Ok(Sample::new(&outcome.all(), outcome.wall, used, Some(answering)))
    }
}

/// Has the clients of a side do `step` with each record once, in any order.
fn for_each<F>(side: &Side, numbers: Range<u64>, step: F) -> anyhow::Result<()>
where
    F: AsyncFn(&Client, &[u8]) -> anyhow::Result<()> + 'static,
{
    let way = side.way();
    Reactor::run(ReactorConfig::default(), async move {
        let clients = Rc::new(way.clients(CLIENTS).await?);
        let (next, step) = (Rc::new(RefCell::new(numbers)), Rc::new(step));
        let work = (0..CLIENTS).map(|client| {
            let (clients, next, step) = (Rc::clone(&clients), Rc::clone(&next), Rc::clone(&step));
            engine::task::spawn(async move {
                loop {
                    let Some(number) = next.borrow_mut().next() else { break anyhow::Ok(()) };
                    step(&clients[client], &key_bytes(number)).await?;
                }
            })
        });
        for part in work.collect::<Vec<_>>() {
            part.await?;
        }
        settle(&clients).await;
        Ok(())
    })?
}

/// Waits for what outlives the clients' operations, so that nothing of them is left behind.
async fn settle(clients: &[Client]) {
    for client in clients {
        client.settle().await;
    }
}

/// `figures` are those of `names`, by pattern.
fn ratios(floors: &[Figures; 2], figures: &[Vec<Figures>], names: Vec<&str>) -> Vec<Ratio> {
    let p50 = |name: String, a: &Figures, b: &Figures| Ratio::new(name, a, b, |s| s.p50_us);
    let ours = &figures[0];
    let mut ratios = vec![
        p50("get: p50 / bare sockets".into(), &ours[0], &floors[0]).aim(Aim::AtMost, 1.6),
        p50("put: p50 / bare sockets".into(), &ours[1], &floors[1]).aim(Aim::AtMost, 1.6),
    ];
    for (theirs, peer) in figures.iter().zip(names).skip(1) {
        ratios.push(p50(format!("get: p50 / {peer}"), &ours[0], &theirs[0]));
        ratios.push(p50(format!("put: p50 / {peer}"), &ours[1], &theirs[1]));
        for (mix, (a, b)) in Mix::ALL.iter().zip(ours[2..].iter().zip(&theirs[2..])) {
            ratios.push(Ratio::new(format!("YCSB {mix:?}: rate / {peer}"), a, b, |s| s.rate));
        }
    }
    ratios
}

/// Which operation on which key comes next; one sequence for all clients of a side.
struct Choice {
    pattern: Pattern,
    state: RefCell<SplitMix>,
    zipfian: Zipfian,
    /// The next key to insert, and those that are being inserted: what is older than all of them can be read.
    next: Cell<u64>,
    inserting: RefCell<BTreeSet<u64>>,
}

impl Choice {
    /// Over `loaded` records; for workload D the newest of them and of those that it inserts.
    fn new(pattern: Pattern, loaded: u64) -> Choice {
        Choice {
            pattern,
            state: RefCell::new(SplitMix(loaded)),
            zipfian: Zipfian::new(loaded),
            next: Cell::new(loaded),
            inserting: RefCell::default(),
        }
    }

    fn next(&self) -> (Operation, u64) {
        let mut random = self.state.borrow_mut();
        let operation = self.pattern.pick(&mut random);
        if operation == Operation::Insert {
            let number = self.next.replace(self.next.get() + 1);
            self.inserting.borrow_mut().insert(number);
            return (operation, number);
        }
        if self.pattern == Pattern::Mix(Mix::D) {
            let end = self.inserting.borrow().first().copied().unwrap_or(self.next.get());
            return (operation, end - 1 - self.zipfian.rank(&mut random));
        }
        (operation, self.zipfian.key(&mut random))
    }

    /// A write is acknowledged.
    fn done(&self, number: u64) {
        self.inserting.borrow_mut().remove(&number);
    }

    /// Keys that there are now, one after the other.
    fn keys(&self) -> u64 {
        self.inserting.borrow().first().copied().unwrap_or(self.next.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_keys_are_read_once_they_are_acknowledged() {
        let choice = Choice::new(Pattern::Mix(Mix::D), 100);
        let mut inserted = Vec::new();
        for _ in 0..1000 {
            match choice.next() {
                (Operation::Insert, number) => inserted.push(number),
                (_, number) => assert!(number < 100, "{number} is not there yet"),
            }
        }
        assert_eq!(inserted, (100..100 + inserted.len() as u64).collect::<Vec<_>>());
        assert_eq!(choice.keys(), 100);
        inserted.iter().for_each(|&number| choice.done(number));
        assert_eq!(choice.keys(), 100 + inserted.len() as u64);
        let newest = choice.keys() - 1;
        assert!((0..1000).any(|_| choice.next() == (Operation::Read, newest)));
    }

    #[test]
    fn messages_are_those_of_the_place() {
        let [get, put] = Record { value: 3900, page_size: 4096 }.messages();
        assert_eq!((get, put), (vec![floor::READ_4K], vec![floor::READ_4K, floor::COMPARE_AND_WRITE_4K]));
        assert!(Record { value: 4096, page_size: 8192 }.is_inline());
        assert_eq!(Record { value: 4096, page_size: 4096 }.messages()[0].len(), 2);
    }
}
