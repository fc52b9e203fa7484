//! `yagura bench hot-node`: row B13. Four clients read two files of 2 + 1 columns over four nodes of bounded bandwidth, in
//! virtual time: file 1 has its data on nodes 0 and 1 and its parity on 2, file 2 on 1, 2 and 3, so that node 1 is hot. Beside
//! plain reads of the same columns, and beside the same where no node is hot.
//!
//! The nodes' arrangement and the published figures are those of figures 7 to 11 of the article behind S4: without parity all
//! clients lose about a third to the hot node; reading parity instead gave clients 0 and 1 29 % more, and clients 2 and 3 14 %.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use device::{Durability, Error, Lba, Memory, Namespace};
use engine::rng::SplitMix;
use engine::sim::{SimConfig, World};
use engine::time::{self, Instant};
use engine::{Buf, View};
use file::meta::MemoryMeta;
use file::record::Kind;
use file::record::root::{MemberRecord, MemberState};
use file::{CreateOptions, FileSystem, Files, New, OpenFile, ROOT, layout_of};

use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::load::{Outcome, closed_loops};
use crate::progress::Progress;

/// Bytes a second of a node. Chosen: ten gigabits.
const NODE_RATE: u64 = 1_250_000_000;
/// Of that, what a client's link takes: with it a hot node costs its clients a third, as published.
const CLIENT_RATE: u64 = NODE_RATE / 4 * 3;
/// One way between a client and a node. Chosen: a switched network.
const ONE_WAY: Duration = Duration::from_micros(20);
/// Columns: two of data, one of parity.
const COLUMNS: usize = 3;
/// Bytes of a file: one chunk, so that all of it lies on the same members.
const FILE_BYTES: u64 = 16 << 20;
const REGION_BYTES: u64 = 32 << 20;
/// Bytes of a read: half of them from each of two nodes.
const READ_BYTES: u64 = 1 << 20;
/// Reads that a client has under way.
const DEPTH: usize = 4;
const CLIENTS: usize = 4;
/// How long clients read before it counts.
const LEARNT_IN: Duration = Duration::from_millis(500);
/// Of a file system.
const NAME: &str = "hot-node";
/// What each file system's columns lie on: nodes, by column; the last one is the parity's.
const HOT: [[usize; COLUMNS]; 2] = [[0, 1, 2], [1, 2, 3]];
/// The same without a node that both files have data on.
const EVEN: [[usize; COLUMNS]; 2] = [[0, 1, 2], [2, 3, 0]];

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Worlds, each with a seed of its own.
    pub rounds: usize,
    /// Virtual time of each.
    pub time: Duration,
}

/// Something that passes so many bytes a second, one command after the other.
struct Link {
    rate: u64,
    free_at: Cell<Instant>,
}

impl Link {
    fn new(rate: u64) -> Rc<Link> {
        Rc::new(Link { rate, free_at: Cell::new(time::now()) })
    }

    async fn pass(&self, bytes: usize) {
        let took = Duration::from_nanos(bytes as u64 * 1_000_000_000 / self.rate);
        self.free_at.set(self.free_at.get().max(time::now()) + took);
        time::sleep_until(self.free_at.get()).await;
    }
}

/// A member of a file system; which node it is on is said when its columns are known.
struct Column {
    memory: Memory,
    node: RefCell<Rc<Link>>,
    reads: Cell<u64>,
}

/// A column as one client reaches it.
struct Reached {
    column: Rc<Column>,
    client: Rc<Link>,
}

impl Reached {
    async fn send(&self, bytes: usize) {
        time::sleep(ONE_WAY).await;
        let node = Rc::clone(&self.column.node.borrow());
        node.pass(bytes).await;
        self.client.pass(bytes).await;
        time::sleep(ONE_WAY).await;
    }
}

impl Namespace for Reached {
    device::delegate_namespace!(this => { Reached { column, .. } => column.memory };
        info, flush, compare, compare_and_write, write_zeroes, deallocate, write_uncorrectable, hint_lifetime, writability,
        used_blocks, link, attribute, set_attribute);
    device::namespace_without!(verify, zones);

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        self.column.reads.set(self.column.reads.get() + 1);
        self.send(buf.len()).await;
        self.column.memory.read(lba, buf).await
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.send(data.len()).await;
        self.column.memory.write(lba, data, durability).await
    }
}

/// A file, its members, and what tells where its data is.
struct Tree {
    meta: MemoryMeta,
    ino: u64,
    /// By column.
    columns: Vec<Rc<Column>>,
    /// By the member's index in the file system.
    members: Vec<Rc<Column>>,
}

impl Tree {
    /// A file system with one file in it, on nodes that nobody else uses yet.
    async fn new() -> anyhow::Result<Tree> {
        let bytes = 4 * REGION_BYTES;
        let member = |index: usize| MemberRecord {
            place: String::new(),
            bytes,
            state: MemberState::Active,
            domain: format!("node {index}"),
        };
        let options = CreateOptions {
            data: COLUMNS as u8 - 1,
            parity: 1,
            region_bytes: REGION_BYTES,
            members: (0..COLUMNS).map(member).collect(),
            mode: 0o755,
            uid: 0,
            gid: 0,
        };
        let (meta, root) = (MemoryMeta::new(), FileSystem::draw_root(&options));
        let layout = layout_of(&root)?;
        let mut members = Vec::new();
        for index in 0..COLUMNS {
            let memory = Memory::new(bytes, 4096, [index as u8 + 1; 16])?;
            layout.label(index as u16, bytes).format(&memory, false).await?;
            let node = RefCell::new(Link::new(NODE_RATE));
            members.push(Rc::new(Column { memory, node, reads: Cell::new(0) }));
        }
        FileSystem::create_with(meta.client(), NAME, &options, root).await?;
        let mut tree = Tree { meta, ino: 0, columns: Vec::new(), members };
        let files = tree.client(&Link::new(CLIENT_RATE)).await?;
        let (told, file) = files.create_file(ROOT, b"file", &New::of(Kind::File, 0o644, 0, 0)).await?;
        let block: Vec<u8> = (0..READ_BYTES).map(|at| (at % 251) as u8).collect();
        for at in (0..FILE_BYTES).step_by(READ_BYTES as usize) {
            file.write(at, &block).await?;
        }
        file.flush().await?;
        tree.ino = told.ino;
        tree.columns = tree.find_columns(&file).await?;
        files.close_file(&file).await?;
        files.close().await?;
        Ok(tree)
    }

    /// Which member has which column: a little of each half of a stripe is read, and who was asked is looked at.
    async fn find_columns(&self, file: &OpenFile) -> anyhow::Result<Vec<Rc<Column>>> {
        let mut columns: Vec<Rc<Column>> = Vec::new();
        for column in 0..COLUMNS as u64 - 1 {
            time::sleep(Duration::from_secs(10)).await; // whatever was learnt of members by writing wears off
            let before: Vec<u64> = self.members.iter().map(|member| member.reads.get()).collect();
            file.read(column * READ_BYTES / 2, 4096).await?;
            let asked = self.members.iter().zip(before).find(|(member, before)| member.reads.get() > *before);
            columns.push(Rc::clone(asked.context("a read asks somebody")?.0));
        }
        let parity = self.members.iter().find(|member| columns.iter().all(|column| !Rc::ptr_eq(column, member)));
        columns.push(Rc::clone(parity.context("two columns of data lie on two members")?));
        Ok(columns)
    }

    /// A client with a link of its own.
    async fn client(&self, link: &Rc<Link>) -> anyhow::Result<Rc<Files>> {
        let files = Files::open(self.meta.client(), NAME, "bench").await?;
        for (index, column) in self.members.iter().enumerate() {
            let reached = Reached { column: Rc::clone(column), client: Rc::clone(link) };
            files.members().connect(index as u16, Some(Rc::new(reached)));
        }
        Ok(files)
    }
}

/// How a client reads.
enum Reader {
    /// As files are read.
    Balanced { _files: Rc<Files>, file: Rc<OpenFile> },
    /// The columns of data, as they lie.
    Plain([Reached; COLUMNS - 1]),
}

impl Reader {
    async fn read(&self, at: u64) -> anyhow::Result<()> {
        match self {
            Reader::Balanced { file, .. } => {
                let read = file.read(at, READ_BYTES as usize).await?;
                anyhow::ensure!(read.len() as u64 == READ_BYTES, "a read of {} bytes", read.len());
            }
            Reader::Plain([left, right]) => {
                let half = (READ_BYTES / 2) as usize;
                let place = Lba((1 << 20) / 4096); // any will do: all of a column lies on one node
                let halves = [left, right].map(|column| {
                    let buf = Buf::with_len(half);
                    Box::pin(column.read(place, buf))
                });
                for (result, _) in pool::together(halves.into_iter()).await {
                    result?;
                }
            }
        }
        Ok(())
    }
}

/// One run: the rate of each client in reads a second, and all latencies.
async fn measure(
    nodes: [[usize; COLUMNS]; 2],
    is_balanced: bool,
    seed: u64,
    time: Duration,
) -> anyhow::Result<(Sample, Vec<f64>)> {
    let trees = [Tree::new().await?, Tree::new().await?];
    let links: Vec<Rc<Link>> = (0..4).map(|_| Link::new(NODE_RATE)).collect();
    let mut readers = Vec::new();
    for client in 0..CLIENTS {
        let tree = &trees[client / 2];
        for (column, node) in tree.columns.iter().zip(nodes[client / 2]) {
            *column.node.borrow_mut() = Rc::clone(&links[node]);
        }
        let link = Link::new(CLIENT_RATE);
        readers.push(if is_balanced {
            let files = tree.client(&link).await?;
            let file = files.open_file(tree.ino).await?;
            Reader::Balanced { _files: files, file }
        } else {
            Reader::Plain([0, 1].map(|column| {
                let column = Rc::clone(&tree.columns[column]);
                Reached { column, client: Rc::clone(&link) }
            }))
        });
    }
    let (readers, random) = (Rc::new(readers), Rc::new(RefCell::new(SplitMix(seed))));
    // What members do under load is learnt first.
    load(&readers, &random, LEARNT_IN).await?;
    let outcome = load(&readers, &random, time).await?;
    let rates = outcome.by_kind.iter().map(|of| of.len() as f64 / outcome.wall.as_secs_f64()).collect();
    Ok((Sample::new(&outcome.all(), outcome.wall, Duration::ZERO, None), rates))
}

/// All clients read for so long.
async fn load(readers: &Rc<Vec<Reader>>, random: &Rc<RefCell<SplitMix>>, time: Duration) -> anyhow::Result<Outcome> {
    let (readers, random) = (Rc::clone(readers), Rc::clone(random));
    let step = async move |number: usize| {
        let at = random.borrow_mut().below(FILE_BYTES / READ_BYTES) * READ_BYTES;
        readers[number % CLIENTS].read(at).await?;
        Ok(number % CLIENTS)
    };
    closed_loops(CLIENTS * DEPTH, CLIENTS, time, step).await
}

/// Runs the row.
pub fn run(options: Options, progress: &Progress) -> anyhow::Result<Row> {
    let runs = [
        ("plain reads, no hot node", EVEN, false),
        ("plain reads, node 1 is hot", HOT, false),
        ("balanced reads, node 1 is hot", HOT, true),
        ("balanced reads, no hot node", EVEN, true),
    ];
    let mut sides: Vec<Side> = runs.iter().map(|(name, ..)| Side::new(*name)).collect();
    let mut rates: Vec<Vec<Vec<f64>>> = vec![Vec::new(); runs.len()];
    progress.begin("simulating", options.rounds * runs.len());
    for round in 0..options.rounds {
        for (index, (_, nodes, is_balanced)) in runs.into_iter().enumerate() {
            let seed = round as u64 + 1;
            let world = World::new(seed, SimConfig::default());
            let ended = world.run_until(measure(nodes, is_balanced, seed, options.time));
            let (sample, by_client) = ended.map_err(|stalled| anyhow::anyhow!("{stalled:?}"))??;
            sides[index].rounds.push(sample);
            rates[index].push(by_client);
            progress.step()?;
        }
    }
    progress.end();
    let over = |ours: usize, theirs: usize, clients: [usize; 2]| -> Vec<f64> {
        let of = |by_client: &Vec<f64>| clients.iter().map(|client| by_client[*client]).sum::<f64>();
        rates[ours].iter().zip(&rates[theirs]).map(|(ours, theirs)| of(ours) / of(theirs)).collect()
    };
    let mut ratios = Vec::new();
    for (clients, published) in [([0, 1], "1.29"), ([2, 3], "1.14")] {
        let [a, b] = clients;
        ratios.extend([
            Ratio::of(
                format!("clients {a}, {b}: plain reads, hot node / none (published about 0.67)"),
                &over(1, 0, clients),
            ),
            Ratio::of(
                format!("clients {a}, {b}: balanced / plain, hot node (published {published})"),
                &over(2, 1, clients),
            ),
            Ratio::of(format!("clients {a}, {b}: balanced with a hot node / plain without"), &over(2, 0, clients))
                .aim(Aim::AtLeast, 0.95),
            Ratio::of(format!("clients {a}, {b}: balanced / plain, no hot node"), &over(3, 0, clients))
                .aim(Aim::AtLeast, 0.99),
        ]);
    }
    Ok(Row {
        row: "B13".into(),
        title: "reads around a hot node, virtual time".into(),
        conditions: conditions(options),
        sides,
        ratios,
        curves: Vec::new(),
    })
}

fn conditions(options: Options) -> Vec<String> {
    vec![
        "file 1: data on nodes 0 and 1, parity on 2, read by clients 0 and 1; file 2: 1, 2 and 3, read by clients 2 and 3; without \
         a hot node file 2: 2, 3 and 0"
            .into(),
        format!("nodes of {} MB/s, clients' links of {} MB/s, {ONE_WAY:?} each way", NODE_RATE / 1_000_000, CLIENT_RATE / 1_000_000),
        format!("reads of {} KiB at random places, {DEPTH} under way at each client", READ_BYTES >> 10),
        format!("{} worlds of {:?} each, after {LEARNT_IN:?}; latencies are virtual, CPU time is not taken", options.rounds, options.time),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_node_is_read_around() {
        let rate = |nodes, is_balanced| {
            let world = World::new(1, SimConfig::default());
            let ended = world.run_until(measure(nodes, is_balanced, 1, Duration::from_millis(200)));
            ended.expect("it ends").expect("no fault").0.rate
        };
        let [even, hot, balanced] = [rate(EVEN, false), rate(HOT, false), rate(HOT, true)];
        // What is asked of node 1 is four thirds of what it has.
        assert!((0.6..0.7).contains(&(hot / even)), "{hot} of {even} reads a second by plain reads");
        assert!(balanced > 1.2 * hot, "{balanced} reads a second, {hot} by plain reads");
    }
}
