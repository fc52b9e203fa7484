//! One run: load under faults, then calm, repair, and the verdict.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use check::{History, Summary};
use engine::sim::{NodeId, World};
use engine::task::Task;
use engine::{task, time};
use kv::store::{RepairerOptions, ScrubberOptions};

use crate::sim::audit;
use crate::sim::book::{Book, Kind, Room};
use crate::sim::chaos::Chaos;
use crate::sim::cluster::{Cluster, Directory, HostStore};
use crate::sim::hungry;
use crate::sim::load;
use crate::sim::operator::Operator;
use crate::sim::scenario::{Rng, Scenario, VICTIM};

/// Tries until a change under way must have come to its end.
const FINISH_TRIES_MAX: usize = 20;
/// Looks at what repair leaves until putting the keys must have ended it: the first put may be the older one.
const PUTS_MAX: usize = 3;
/// Between two scrubs.
const SCRUB_PAUSE: Duration = Duration::from_secs(2);
/// The same where a run is drawn out. Chosen: some walks see what nobody refers to before it is old enough.
const SCRUB_PAUSE_DRAWN_OUT: Duration = Duration::from_secs(200);
/// Lives of a host, at most: each crash begins another.
const LIVES_MAX: u32 = 4;

/// What a run came to.
#[derive(Debug)]
pub struct Verdict {
    seed: u64,
    /// The history in numbers.
    pub history: Summary,
    /// Operations that failed and certainly had no effect.
    pub failed: usize,
    /// Operations refused for lack of room.
    pub full: u64,
    /// What was seen of the gateways' room.
    pub room: Room,
    /// Epochs of the pool's map after the first: two a change, one or two whenever deleted keys are forgotten.
    pub epochs: u64,
    /// Whether a member's medium was put back to what it was.
    pub rolled_back: bool,
    /// Equal for two runs exactly if they were the same run.
    pub trace_hash: u64,
    virtual_time: Duration,
}

impl Verdict {
    /// One line for whoever watches.
    pub fn print(&self) {
        let Verdict { seed, history, failed, full, room, epochs, rolled_back, trace_hash, virtual_time } = self;
        let rolled_back = if *rolled_back { ", a member rolled back" } else { "" };
        let Summary { operations, unknown, .. } = history;
        println!(
            "seed {seed}: {operations} operations on {} keys, {unknown} of unknown outcome, {failed} failed, {full} \
             without room, {epochs} epochs of the map{rolled_back}, {} commands refused for want of a gateway's room, {:.1} s of \
             its time, trace {trace_hash:016x}",
            history.keys,
            room.refused,
            virtual_time.as_secs_f32()
        );
    }
}

/// What many runs came to: also shows that what should happen did.
#[derive(Default)]
pub struct Total {
    /// Runs.
    pub runs: u64,
    operations: usize,
    unknown: usize,
    failed: usize,
    full: u64,
    refused: u64,
    epochs: u64,
    rolled_back: u64,
    virtual_time: Duration,
}

impl Total {
    /// Adds one.
    pub fn add(&mut self, verdict: &Verdict) {
        self.runs += 1;
        self.operations += verdict.history.operations;
        self.unknown += verdict.history.unknown;
        self.failed += verdict.failed;
        self.full += verdict.full;
        self.refused += verdict.room.refused;
        self.epochs += verdict.epochs;
        self.rolled_back += u64::from(verdict.rolled_back);
        self.virtual_time += verdict.virtual_time;
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Total { runs, operations, unknown, failed, full, refused, epochs, rolled_back, virtual_time } = self;
        write!(
            f,
            "{runs} runs: {operations} operations, {unknown} of unknown outcome, {failed} failed, {full} without room, \
             {epochs} epochs of the map, {rolled_back} members rolled back, {refused} commands refused for want of a \
             gateway's room, {} s of their time",
            virtual_time.as_secs()
        )
    }
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

/// A host, through its lives.
struct Host {
    node: NodeId,
    life: u32,
    done: Rc<Cell<bool>>,
    _process: Task<()>,
}

/// Runs the scenario; panics where a promise is broken.
pub fn run(scenario: &Scenario) -> Verdict {
    let _announce = Announce(scenario);
    let world = World::new(scenario.seed, scenario.world());
    let book = Book::new(Rc::new(world.calendar()), scenario.clock_error_max());
    let ended = world.run_until(whole(&world, scenario, &book));
    let rolled_back = match ended {
        Ok(rolled_back) => rolled_back,
        Err(stalled) => panic!("{scenario:?}\n{stalled:?}"),
    };
    let mut verdict = Verdict {
        seed: scenario.seed,
        history: Summary::default(),
        failed: book.recorder.failures(),
        full: book.full(),
        room: book.room(),
        epochs: book.epochs(),
        rolled_back,
        trace_hash: world.trace_hash(),
        virtual_time: world.now().duration_since(engine::time::Instant::default()),
    };
    for history in by_key(book.recorder.history()) {
        match check::check(&history) {
            Ok(summary) => verdict.history = sum(verdict.history, summary),
            Err(fault) => panic!("{scenario:?}\n{fault}"),
        }
    }
    verdict
}

/// One history for each key.
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

/// Whether a member was rolled back.
async fn whole(world: &World, scenario: &Scenario, book: &Book) -> bool {
    let cluster = Cluster::start(world, scenario);
    let directory = cluster.create_pool(scenario).await;
    let keys = Rc::new(load::keys(scenario, &directory.map));
    load::put_fixed(&directory.connect(scenario.lease).store).await;
    cluster.begin_faults(world, scenario);
    let under = Under { world, scenario, book, directory: &directory, keys: &keys };
    under.load(&cluster).await;
    world.calm();
    // A drive that has failed stays read-only until its node is started again.
    if scenario.faults.disk_errors {
        world.crash(cluster.nodes[VICTIM]);
    }
    let alive = (0..scenario.nodes()).filter(|&index| directory.dead() != Some(index));
    alive.for_each(|index| cluster.restart(world, index));
    under.judge(&cluster).await;
    directory.was_rolled_back()
}

/// What every part of a run needs.
struct Under<'a> {
    world: &'a World,
    scenario: &'a Scenario,
    book: &'a Book,
    directory: &'a Directory,
    keys: &'a Rc<Vec<String>>,
}

impl Under<'_> {
    /// Lets all hosts work off their load while faults strike.
    async fn load(&self, cluster: &Cluster) {
        let start = |index: usize| {
            let operates = index >= self.scenario.hosts;
            let node = self.world.node(&format!("{}{index}", if operates { "operator" } else { "host" }));
            self.start(index, node, 0)
        };
        let mut hosts: Vec<Host> = (0..self.scenario.hosts + self.scenario.operators).map(start).collect();
        let mut chaos = Chaos::new(self.world, cluster, self.directory, self.scenario);
        loop {
            time::sleep(chaos.pause()).await;
            chaos.strike_once();
            for index in chaos.end_due() {
                let Host { node, life, .. } = hosts[index];
                self.world.restart(node);
                hosts[index] = self.start(index, node, life + 1);
            }
            let working = |host: &Host| !host.done.get() || !self.world.is_up(host.node);
            if !hosts.iter().take(self.scenario.hosts).any(working) {
                return;
            }
            let up = hosts.iter().enumerate().filter(|(_, host)| self.world.is_up(host.node));
            let mortal: Vec<(usize, NodeId)> =
                up.filter(|(_, host)| host.life < LIVES_MAX).map(|(index, host)| (index, host.node)).collect();
            chaos.strike(&mortal);
        }
    }

    /// A host's or operator's process in its `life`-th life.
    fn start(&self, index: usize, node: NodeId, life: u32) -> Host {
        match index.checked_sub(self.scenario.hosts) {
            None => self.start_host(index, node, life),
            Some(number) => {
                let operator = (self.directory.clone(), self.scenario.clone());
                let process = async move {
                    Operator::new(&operator.0, &operator.1, number, life).work(number == 0, life).await;
                };
                Host { node, life, done: Rc::default(), _process: self.world.spawn_on(node, process) }
            }
        }
    }

    /// A host's process in its `life`-th life.
    fn start_host(&self, index: usize, node: NodeId, life: u32) -> Host {
        let done = Rc::new(Cell::new(false));
        let scenario = Scenario { operations: self.scenario.operations >> life, ..self.scenario.clone() };
        let first = (life * self.scenario.hosts as u32 + index as u32) * self.scenario.clients as u32;
        let repairs = self.scenario.repairer && index == 0;
        let scrubs = self.scenario.scrubber && index == 1;
        let (directory, book, keys, finished) =
            (self.directory.clone(), self.book.clone(), self.keys.clone(), done.clone());
        let process = async move {
            let host = directory.connect(scenario.lease);
            let store = &host.store;
            let options = ScrubberOptions {
                pause: if scenario.drawn_out { SCRUB_PAUSE_DRAWN_OUT } else { SCRUB_PAUSE },
                ..ScrubberOptions::default()
            };
            let _scrubber = scrubs.then(|| store.start_scrubber(options));
            let _repairer = repairs.then(|| store.start_repairer(RepairerOptions::default()));
            if scenario.hungry {
                hungry::serve(store.clone(), book, scenario, keys, first).await;
                return finished.set(true);
            }
            let client = |number| {
                let (store, book, scenario, keys) = (store.clone(), book.clone(), scenario.clone(), keys.clone());
                task::spawn(load::client(store, book, scenario, keys, number))
            };
            let clients: Vec<Task<()>> = (first..first + scenario.clients as u32).map(client).collect();
            for client in clients {
                client.await;
            }
            finished.set(true);
        };
        Host { node, life, done, _process: self.world.spawn_on(node, process) }
    }

    /// With all nodes up and no faults any more: what is under way ends, and everything is looked at once more.
    async fn judge(&self, cluster: &Cluster) {
        // Late commands of the load land or die; a put that still counts on an old acknowledgement ends.
        time::sleep(Duration::from_secs(15)).await;
        // What has no vote can't be looked at.
        self.operator().mend_all(FINISH_TRIES_MAX).await;
        // It may have been needed after all.
        (0..self.scenario.nodes()).filter(|&index| self.directory.dead() != Some(index)).for_each(|index| {
            cluster.restart(self.world, index);
        });
        let host = self.directory.connect(self.scenario.lease);
        let store = &host.store;
        audit::collect(store).await;
        if self.scenario.is_nearly_full() {
            // Neither repair nor a change need succeed where there is no room. A key can be read and deleted all the same.
            self.read_keys(store).await;
            load::delete_keys(store, self.book, self.keys).await;
        }
        let map = self.operator().finish(FINISH_TRIES_MAX).await;
        self.book.changed(map.epoch);
        audit::collect(store).await;
        self.repair(store).await;
        audit::nothing_is_amiss(store).await;
        self.read_everything(store).await;
        // Again, so that a value that only some replica had the first time shows.
        self.read_everything(&self.directory.connect(self.scenario.lease).store).await;
        // Now nothing is in doubt any more that could come into force after a delete.
        load::delete_keys(store, self.book, self.keys).await;
        load::delete_fixed(store).await;
        assert!(audit::repair(store).await, "no key has a value that could be lost");
        audit::nothing_is_claimed(store).await;
        audit::forget(store).await;
    }

    fn operator(&self) -> Operator {
        Operator::new(self.directory, self.scenario, self.scenario.operators, 0)
    }

    /// Repairs all. What was never acknowledged may be corrupt on the only member that has it: every key can be read all the
    /// same, and to put it as often as repair names it ends that.
    async fn repair(&self, store: &HostStore) {
        let mut rng = Rng::new(self.scenario.seed, 999);
        for _ in 0..PUTS_MAX {
            if audit::repair(store).await {
                return;
            }
            self.read_keys(store).await;
            load::put_keys(store, self.book, &mut rng, self.keys).await;
            store.settle().await;
        }
        panic!("a key that was put has a value that is lost");
    }

    async fn read_keys(&self, store: &HostStore) {
        for key in self.keys.iter() {
            assert!(load::get(store, self.book, key, u32::MAX).await, "{key} cannot be read though all is well again");
        }
    }

    async fn read_everything(&self, store: &HostStore) {
        self.read_keys(store).await;
        let mut listed = load::list_all(store).await.expect("a list succeeds when all is well");
        listed.sort();
        // What ends may have ended since.
        listed.retain(|key| Kind::of(key) != Kind::Ending);
        let mut there = load::fixed_keys();
        for key in self.keys.iter().filter(|key| Kind::of(key) != Kind::Ending) {
            if store.get(key.as_bytes()).await.is_ok_and(|value| value.is_some()) {
                there.push(key.clone());
            }
        }
        there.sort();
        assert_eq!(listed, there, "the list is not what is there");
    }
}
