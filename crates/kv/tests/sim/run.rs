//! One run: load under faults, then calm, repair, and the verdict.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use check::Summary;
use engine::sim::{NodeId, World};
use engine::task::Task;
use engine::{task, time};
use kv::store::{RepairOptions, RepairerOptions, ScrubOptions};

use crate::chaos::Chaos;
use crate::cluster::{Cluster, Directory, HostStore};
use crate::load::{self, Book};
use crate::scenario::{Scenario, VICTIM};

/// Repairs until the replicas must be equal. Guessed: the first may meet connections that are not up yet.
const REPAIRS_MAX: usize = 6;
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
    /// Equal for two runs exactly if they were the same run.
    pub trace_hash: u64,
    virtual_time: Duration,
}

impl Verdict {
    /// One line for whoever watches.
    pub fn print(&self) {
        let Verdict { seed, history, failed, trace_hash, virtual_time } = self;
        let Summary { operations, unknown, .. } = history;
        println!(
            "seed {seed}: {operations} operations on {} keys, {unknown} of unknown outcome, {failed} failed, \
             {:.1} s of its time, trace {trace_hash:016x}",
            history.keys,
            virtual_time.as_secs_f32()
        );
    }
}

/// Says which seed it was, should the run panic.
struct Announce(u64);

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("\nthe failing run is that of: SEED={}\n", self.0);
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
    let _announce = Announce(scenario.seed);
    let world = World::new(scenario.seed, scenario.world());
    let book = Book::default();
    let ended = world.run_until(whole(&world, scenario, &book));
    if let Err(stalled) = ended {
        panic!("{scenario:?}\n{stalled:?}");
    }
    let history = book.recorder.history();
    match check::check(&history) {
        Ok(summary) => Verdict {
            seed: scenario.seed,
            history: summary,
            failed: book.recorder.failures(),
            trace_hash: world.trace_hash(),
            virtual_time: world.now().duration_since(engine::time::Instant::default()),
        },
        Err(fault) => panic!("{scenario:?}\n{fault}"),
    }
}

async fn whole(world: &World, scenario: &Scenario, book: &Book) {
    let cluster = Cluster::start(world, scenario);
    let directory = cluster.create_pool(scenario).await;
    cluster.begin_faults(world, scenario);
    let keys = Rc::new(load::keys(scenario, &directory.map));
    let under = Under { world, scenario, book, directory: &directory, keys: &keys };
    under.load(&cluster).await;
    world.calm();
    // A drive that has failed stays read-only until its node is started again.
    if scenario.faults.disk_errors {
        world.crash(cluster.nodes[VICTIM]);
    }
    (0..scenario.storage).for_each(|index| cluster.restart(world, index));
    under.repair_and_judge().await;
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
        let mut hosts: Vec<Host> = (0..self.scenario.hosts)
            .map(|index| {
                let node = self.world.node(&format!("host{index}"));
                self.start_host(index, node, 0)
            })
            .collect();
        let mut chaos = Chaos::new(self.world, cluster, self.scenario);
        loop {
            time::sleep(chaos.pause()).await;
            for index in chaos.end_due() {
                let Host { node, life, .. } = hosts[index];
                self.world.restart(node);
                hosts[index] = self.start_host(index, node, life + 1);
            }
            let working = |host: &Host| !host.done.get() || !self.world.is_up(host.node);
            if !hosts.iter().any(working) {
                return;
            }
            let up = hosts.iter().enumerate().filter(|(_, host)| self.world.is_up(host.node));
            let mortal: Vec<(usize, NodeId)> =
                up.filter(|(_, host)| host.life < LIVES_MAX).map(|(index, host)| (index, host.node)).collect();
            chaos.strike(&mortal);
        }
    }

    /// A host's process in its `life`-th life.
    fn start_host(&self, index: usize, node: NodeId, life: u32) -> Host {
        let done = Rc::new(Cell::new(false));
        let scenario = Scenario { operations: self.scenario.operations >> life, ..self.scenario.clone() };
        let first = (life * self.scenario.hosts as u32 + index as u32) * self.scenario.clients as u32;
        let repairs = self.scenario.repairer && index == 0;
        let (directory, book, keys, finished) =
            (self.directory.clone(), self.book.clone(), self.keys.clone(), done.clone());
        let process = async move {
            let store = directory.connect();
            let _repairer = repairs.then(|| store.start_repairer(RepairerOptions::default()));
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

    /// With all nodes up and no faults any more: repairs, and looks at everything once more.
    async fn repair_and_judge(&self) {
        let store = self.directory.connect();
        // Late commands of the load land or die; a put that still counts on an old acknowledgement ends.
        time::sleep(Duration::from_secs(15)).await;
        let options = RepairOptions { check_values: true, ..RepairOptions::default() };
        let mut report = store.repair(&options).await;
        for _ in 1..REPAIRS_MAX {
            if report.is_complete() {
                break;
            }
            time::sleep(Duration::from_secs(2)).await;
            report = store.repair(&options).await;
        }
        assert!(report.is_complete(), "repair did not end: {report:?}");
        let equal = store.scrub(&ScrubOptions { check_values: true, ..ScrubOptions::default() }).await;
        assert!(equal.is_equal(), "replicas differ after repair: {equal:?}");
        self.read_everything(&store).await;
        // Again, so that a value that only some replica had the first time shows.
        self.read_everything(&self.directory.connect()).await;
    }

    async fn read_everything(&self, store: &HostStore) {
        for key in self.keys.iter() {
            assert!(load::get(store, self.book, key, u32::MAX).await, "{key} cannot be read though all is well again");
        }
        let mut listed = load::list_all(store).await.expect("a list succeeds when all is well");
        listed.sort();
        let mut there = Vec::new();
        for key in self.keys.iter() {
            if store.get(key.as_bytes()).await.is_ok_and(|value| value.is_some()) {
                there.push(key.clone());
            }
        }
        there.sort();
        assert_eq!(listed, there, "the list is not what is there");
    }
}
