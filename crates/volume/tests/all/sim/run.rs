//! One run: load under faults, then calm, resynchronisation, and the verdict.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use check::{Action, History, Summary};
use device::{Lba, Namespace};
use engine::sim::{NodeId, World};
use engine::task::Task;
use engine::{Buf, task, time};
use volume::{Shape, Volume};

use crate::cluster::{BLOCK, Cluster, Places, attach, format, options, whole};
use crate::sim::chaos::Chaos;
use crate::sim::keeper::{Ledger, of_one_moment};
use crate::sim::load::{Book, Client, Shown, shown};
use crate::sim::scenario::{Rng, Scenario, VICTIM};

/// After this time a load that has not ended is over: all who could do it may be dead.
const LOAD_TIME_MAX: Duration = Duration::from_secs(300);
/// What late commands have to land or die.
const CALM: Duration = Duration::from_secs(15);
/// How long a holder has to come back by itself.
const MENDED_AFTER: Duration = Duration::from_secs(60);
/// How long a slot is not in sync before it is replaced, where its node is lost.
const REPLACE_AFTER: Duration = Duration::from_secs(2);

/// What a run came to.
#[derive(Debug, Default)]
pub struct Verdict {
    pub history: Summary,
    pub failed: usize,
    /// Commands that were answered with what they were to do.
    pub answered: u64,
    /// Attachments.
    pub attached: u64,
    pub trace_hash: u64,
    pub virtual_time: Duration,
}

/// Says which seed it was, should the run panic.
struct Announce<'a>(&'a Scenario);

impl Drop for Announce<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("\nthe failing run is that of: SEED={}\n{:?}\n", self.0.seed, self.0);
        }
    }
}

/// What every part of a run needs.
#[derive(Clone)]
struct Under {
    scenario: Scenario,
    places: Places,
    shape: Shape,
    book: Book,
    attached: Rc<Cell<u64>>,
    /// The slot whose node is lost, as an operator would know, and the node that is to take its place.
    lost: Rc<Cell<Option<(usize, usize)>>>,
    ledger: Ledger,
}

struct Host {
    node: NodeId,
    life: u32,
    left: Vec<Rc<Cell<u64>>>,
    _process: Task<()>,
}

/// Runs the scenario; panics where a promise is broken.
pub fn run(scenario: &Scenario) -> Verdict {
    let _announce = Announce(scenario);
    let world = World::new(scenario.seed, scenario.world());
    let book = Book::default();
    let spares = usize::from(scenario.faults.loss);
    let cluster = Cluster::start(&world, scenario.replicas, spares);
    let attached = world.run_until(whole_run(&world, &cluster, scenario, &book));
    let attached = attached.unwrap_or_else(|stalled| panic!("{scenario:?}\n{stalled}"));
    let mut verdict = Verdict {
        failed: book.recorder.failures(),
        answered: book.answered.get(),
        attached,
        trace_hash: world.trace_hash(),
        virtual_time: world.now().duration_since(time::Instant::default()),
        ..Verdict::default()
    };
    if let Err(fault) = of_one_moment(&book.recorder.history()) {
        panic!("{scenario:?}\n{fault}");
    }
    for history in by_key(book.recorder.history()) {
        match check::check(&history) {
            Ok(summary) => verdict.history = sum(verdict.history, summary),
            Err(fault) => panic!("{scenario:?}\n{fault}"),
        }
    }
    verdict
}

fn by_key(history: History) -> Vec<History> {
    let mut keys: BTreeMap<String, History> = BTreeMap::new();
    for operation in history.operations {
        keys.entry(operation.key.clone()).or_default().operations.push(operation);
    }
    keys.into_values().collect()
}

fn sum(one: Summary, other: Summary) -> Summary {
    Summary {
        keys: one.keys + other.keys,
        operations: one.operations + other.operations,
        unknown: one.unknown + other.unknown,
        steps: one.steps + other.steps,
    }
}

async fn whole_run(world: &World, cluster: &Cluster, scenario: &Scenario, book: &Book) -> u64 {
    let shape = format(&cluster.places, scenario.replicas).await;
    let under = Under {
        scenario: scenario.clone(),
        places: cluster.places.clone(),
        shape,
        book: book.clone(),
        attached: Rc::default(),
        lost: Rc::default(),
        ledger: Ledger::default(),
    };
    let lost = load(world, cluster, &under).await;
    world.calm();
    // A medium that has failed takes no writes until it is opened anew.
    if scenario.faults.write_errors {
        world.crash(cluster.nodes[VICTIM]);
    }
    let is_away = |index: usize| lost == Some(index) && !cluster.places.nodes().contains(&index);
    (0..cluster.nodes.len()).filter(|&index| !is_away(index)).for_each(|index| cluster.restart(world, index));
    time::sleep(CALM).await;
    judge(world, cluster, &under).await;
    under.attached.get()
}

/// Lets all hosts work off their load while faults strike. Returns the node that was lost.
async fn load(world: &World, cluster: &Cluster, under: &Under) -> Option<usize> {
    let scenario = &under.scenario;
    let start = |index: usize| {
        let left = (0..scenario.clients).map(|_| Rc::new(Cell::new(scenario.operations))).collect();
        start(world, under, index, world.node(&format!("host{index}")), 0, left)
    };
    let mut hosts: Vec<Host> = (0..scenario.hosts).map(start).collect();
    let mut chaos = Chaos::new(world, cluster, scenario);
    let begin = time::now();
    loop {
        time::sleep(chaos.pause()).await;
        for index in chaos.end_due() {
            let Host { node, life, left, .. } = &hosts[index];
            world.restart(*node);
            hosts[index] = self::start(world, under, index, *node, life + 1, left.clone());
        }
        let is_done = |host: &Host| host.left.iter().all(|left| left.get() == 0);
        if hosts.iter().all(is_done) || begin.elapsed() > LOAD_TIME_MAX {
            return chaos.lost;
        }
        let up: Vec<(usize, NodeId)> = hosts
            .iter()
            .enumerate()
            .filter(|(_, host)| world.is_up(host.node))
            .map(|(i, host)| (i, host.node))
            .collect();
        chaos.strike(&up);
        if let Some(node) = chaos.lost
            && let Some(slot) = under.places.nodes().iter().position(|&at| at == node)
        {
            under.lost.set(Some((slot, cluster.nodes.len() - 1)));
        }
    }
}

/// A host's process: it attaches, works, and after a while attaches again.
fn start(world: &World, under: &Under, index: usize, node: NodeId, life: u32, left: Vec<Rc<Cell<u64>>>) -> Host {
    let (under, lefts) = (under.clone(), left.clone());
    let process = async move {
        let mut rng = Rng::new(under.scenario.seed, 100 + 10 * index as u64 + u64::from(life));
        time::sleep(rng.millis(0, 500)).await;
        let mut kept: Vec<Rc<Volume>> = Vec::new();
        while lefts.iter().any(|left| left.get() > 0) {
            let attached = volume::attach(under.places.reaches(&format!("host{index}")), under.scenario.options).await;
            let Ok(volume) = attached else {
                time::sleep(rng.millis(10, 1_500)).await;
                continue;
            };
            under.attached.set(under.attached.get() + 1);
            let volume = Rc::new(volume);
            tenure(&under, &volume, index, &lefts, &mut rng).await;
            // Dropped, given up in order, or kept by a process that does not know that it has lost it.
            match rng.within(0, 3) {
                0 => drop(time::timeout(Duration::from_secs(5), volume.detach()).await),
                1 => kept.push(volume),
                _ => drop(volume),
            }
            kept.truncate(1);
            time::sleep(rng.millis(0, 1_000)).await;
        }
    };
    Host { node, life, left, _process: world.spawn_on(node, process) }
}

/// The clients work, as long as the volume is this host's and its time lasts.
async fn tenure(under: &Under, volume: &Rc<Volume>, index: usize, lefts: &[Rc<Cell<u64>>], rng: &mut Rng) {
    let client = |(number, left): (usize, &Rc<Cell<u64>>)| {
        let id = (index * under.scenario.clients + number) as u32;
        let rng = Rng::new(under.scenario.seed, 1_000 + u64::from(id) + left.get() * 100);
        let client = Client::new(volume.clone(), under.book.clone(), id, rng, left.clone());
        task::spawn(client.work(under.scenario.clone()))
    };
    let clients: Vec<Task<()>> = lefts.iter().enumerate().map(client).collect();
    let keeper = |number: u64| {
        let rng = Rng::new(under.scenario.seed, 50_000 + 100 * index as u64 + 25_000 * number + under.attached.get());
        let (ledger, scenario) = (under.ledger.clone(), under.scenario.clone());
        task::spawn(ledger.keep(volume.clone(), under.places.clone(), under.book.clone(), rng, scenario))
    };
    // Two, so that there is one thing beside another.
    let _keepers = [0, 1].map(keeper);
    let until = time::now() + under.scenario.tenure + rng.millis(0, 2_000);
    let mut behind_since = None;
    while time::now() < until && volume.link().is_up && !clients.iter().all(Task::is_finished) {
        time::sleep(Duration::from_millis(50)).await;
        behind_since = replace(under, volume, behind_since).await;
    }
    // Commands under way are dropped with their clients.
}

/// Replaces the lost node where the volume does without it.
async fn replace(under: &Under, volume: &Volume, since: Option<time::Instant>) -> Option<time::Instant> {
    let (slot, spare) = under.lost.get()?;
    let (record, is_stable) = volume.record();
    if !is_stable || record.in_sync.has(slot) || under.places.nodes()[slot] == spare {
        return None;
    }
    let since = since.unwrap_or_else(time::now);
    if since.elapsed() < REPLACE_AFTER {
        return Some(since);
    }
    let reach = under.places.reach(spare, "operator");
    // Another host may be at it, and whoever was before has left it half done.
    let made = volume::format_replacement(reach.clone(), under.shape, slot, true);
    if let Ok(Ok(_)) = time::timeout(Duration::from_secs(5), made).await
        && under.places.nodes()[slot] != spare
    {
        under.places.replace(slot, spare);
        volume.set_reach(slot, reach);
    }
    None
}

/// With all nodes up and no faults any more.
async fn judge(world: &World, cluster: &Cluster, under: &Under) {
    if under.scenario.faults.write_errors && is_lost(under).await {
        return;
    }
    let volume = attach(&under.places, "judge").await;
    read_all(under, &volume).await;
    if under.scenario.faults.write_errors {
        mend(under, &volume).await;
    }
    whole(&volume).await;
    let verified = volume.verify(None).await.expect("all is well again");
    assert!(verified.is_clean(), "{verified:?}");
    let replaced = under.lost.get().map(|(slot, _)| slot);
    under.ledger.judge(cluster, &volume, replaced, &under.scenario).await;
    let (seen, blocks) = (read_all(under, &volume).await, volume.info().blocks);
    volume.detach().await.expect("it is attached");
    for slot in 0..usize::from(under.scenario.replicas) {
        let data = cluster.data_of(world, slot, blocks);
        for (lba, block) in data.chunks_exact(BLOCK).enumerate() {
            assert_eq!(shown(block, &under.scenario), seen[lba], "block {lba} of the replica in slot {slot}");
        }
    }
    let again = attach(&under.places, "judge").await;
    assert_eq!(again.regions_marked(), 0, "it was detached in order");
    assert_eq!(read_all(under, &again).await, seen);
}

/// The failing disk was the last one in sync, and has damaged its own record: that takes an operator who says what is lost.
async fn is_lost(under: &Under) -> bool {
    let attached = volume::attach(under.places.reaches("judge"), options()).await;
    matches!(attached, Err(volume::Error::NoneInSync { reasons, .. }) if reasons.contains("record block is damaged"))
}

/// A write that failed may have left a record that is neither the old nor the new one. Such a holder has no vote, and is replaced
/// by itself, as an operator would.
async fn mend(under: &Under, volume: &Volume) {
    let waited = time::timeout(MENDED_AFTER, async {
        while !volume.is_whole() {
            time::sleep(Duration::from_millis(100)).await;
        }
    });
    if waited.await.is_err() && !volume.in_sync().has(VICTIM) {
        let reach = under.places.reach(under.places.nodes()[VICTIM], "operator");
        let made = volume::format_replacement(reach.clone(), under.shape, VICTIM, true).await;
        made.expect("all is well again");
        volume.set_reach(VICTIM, reach);
    }
}

async fn read_all(under: &Under, volume: &Volume) -> Vec<Shown> {
    let mut seen = Vec::new();
    for lba in 0..volume.info().blocks {
        let recorder = &under.book.recorder;
        let token = recorder.invoked(u32::MAX, &format!("{lba:03}"), Action::Get, None);
        let (result, buf) = volume.read(Lba(lba), Buf::with_len(BLOCK)).await;
        result.unwrap_or_else(|error| panic!("block {lba} can't be read though all is well again: {error}"));
        seen.push(shown(&buf, &under.scenario));
        under.book.seen(token, shown(&buf, &under.scenario));
    }
    seen
}
