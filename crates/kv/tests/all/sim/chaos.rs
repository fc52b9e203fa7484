//! The faults, in the order and at the times of the seed. Each has an end: what begins here is also undone here, or by
//! [`World::calm`] when the load is over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::sim::{NodeId, World};
use engine::time::{self, Instant};

use crate::sim::cluster::{Cluster, DISK, Directory};
use crate::sim::rollback::Rollback;
use crate::sim::scenario::{CLOCK_JUMP_MAX, Rng, Scenario, VICTIM};

/// How much seldomer things happen where a run is drawn out.
const DRAWN_OUT: u32 = 200;
/// The same where clients are hungry, and wait for seconds.
const HUNGRY: u32 = 8;
/// The longest that a host is suspended, in milliseconds; and where the run is drawn out, longer than the age at which a collector
/// takes what nobody refers to.
const SUSPENDED_MS_MAX: [u64; 2] = [60_000, 2_700_000];

/// When the only voter dies, at most, in milliseconds of the load.
const LOSS_MS_MAX: u64 = 6_000;

/// A kind of fault.
#[derive(Clone, Copy)]
enum Kind {
    Reset,
    SlowLink,
    Partition,
    OneWay,
    Flapping,
    ClockJump,
    HostCrash,
    NodeCrash,
    VictimCrash,
    Pause,
    Suspension,
    Corruption,
}

/// The end of a fault.
enum End {
    RestartStorage(usize),
    RestartHost(usize),
    Resume(NodeId),
    Heal(NodeId, NodeId),
    /// So many more times, the link goes down (or up, if it is down).
    Flap(NodeId, NodeId, u64),
    JumpBack(NodeId, i64),
    UsualDelay(NodeId, NodeId),
}

/// What happens to the system while the load runs.
pub struct Chaos<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    scenario: &'a Scenario,
    rng: Rng,
    ends: BTreeMap<(Instant, u64), End>,
    count: u64,
    /// Nodes whose calendar clocks have jumped.
    jumped: BTreeSet<NodeId>,
    rollback: Option<Rollback<'a>>,
    directory: &'a Directory,
    /// When the only voter dies.
    loss: Option<Instant>,
    dead: Option<usize>,
}

impl<'a> Chaos<'a> {
    /// Nothing has happened yet.
    pub fn new(world: &'a World, cluster: &'a Cluster, directory: &'a Directory, scenario: &'a Scenario) -> Chaos<'a> {
        let rng = Rng::new(scenario.seed, 2);
        let (ends, jumped) = (BTreeMap::new(), BTreeSet::new());
        let loss = Rng::new(scenario.seed, 6).millis(0, LOSS_MS_MAX);
        let loss = scenario.faults.loss.then(|| time::now() + loss);
        let rollback = Rollback::new(world, cluster, directory, scenario);
        Chaos { world, cluster, scenario, rng, ends, count: 0, jumped, rollback, directory, loss, dead: None }
    }

    /// How long until the next fault.
    pub fn pause(&mut self) -> Duration {
        let longer = match self.scenario {
            Scenario { drawn_out: true, .. } => DRAWN_OUT,
            Scenario { hungry: true, .. } => HUNGRY,
            _ => 1,
        };
        self.rng.millis(2, 80) * longer
    }

    fn later(&mut self, low_ms: u64, high_ms: u64, end: End) {
        self.count += 1;
        let at = time::now() + self.rng.millis(low_ms, high_ms);
        self.ends.insert((at, self.count), end);
    }

    /// Ends what is due. Hosts to be started again are returned.
    pub fn end_due(&mut self) -> Vec<usize> {
        let mut hosts = Vec::new();
        while let Some(entry) = self.ends.first_entry() {
            if entry.key().0 > time::now() {
                break;
            }
            match entry.remove() {
                End::RestartStorage(index) if self.directory.dead() == Some(index) => {}
                End::RestartStorage(index) => self.cluster.restart(self.world, index),
                End::RestartHost(index) => hosts.push(index),
                End::Resume(node) => self.world.resume(node),
                End::Heal(a, b) => self.world.heal(a, b),
                End::Flap(a, b, left) => self.flap(a, b, left),
                End::JumpBack(node, millis) => {
                    self.jumped.remove(&node);
                    self.world.jump_clock(node, -millis);
                }
                End::UsualDelay(a, b) => self.world.set_link_delay(a, b, self.scenario.world().link_delay),
            }
        }
        hosts
    }

    /// The worst that there is, once, where this seed has it: the victim's medium is put back, or the only voter is dead.
    pub fn strike_once(&mut self) {
        if self.loss.is_some_and(|at| at <= time::now()) {
            self.loss = None;
            self.dead = self.directory.map.voter_indices().next();
            self.dead.iter().for_each(|&voter| self.world.crash(self.cluster.nodes[voter]));
            self.directory.set_dead(self.dead);
        }
        if let Some(needed) = self.dead.take_if(|_| self.directory.dead().is_none()) {
            self.cluster.restart(self.world, needed);
        }
        if self.rollback.as_mut().is_some_and(Rollback::is_due) {
            self.crash(VICTIM);
            self.rollback.iter_mut().for_each(Rollback::put_back);
        }
    }

    /// One fault of a kind that this seed has. `hosts`: those that may be struck.
    pub fn strike(&mut self, hosts: &[(usize, NodeId)]) {
        let kinds = self.kinds();
        if kinds.is_empty() || hosts.is_empty() {
            return;
        }
        let storage = self.rng.within(0, self.cluster.nodes.len() as u64 - 1) as usize;
        let node = self.cluster.nodes[storage];
        let (index, host) = hosts[self.rng.next() as usize % hosts.len()];
        match kinds[self.rng.next() as usize % kinds.len()] {
            Kind::Reset => self.world.reset_connections(host, node),
            Kind::SlowLink => {
                let slow = self.rng.millis(1, 30);
                self.world.set_link_delay(host, node, slow / 4..slow);
                self.later(20, 2_000, End::UsualDelay(host, node));
            }
            Kind::Partition => {
                self.world.partition(host, node);
                self.later(5, 3_000, End::Heal(host, node));
            }
            Kind::OneWay => {
                let (from, to) = if self.rng.one_in(2) { (host, node) } else { (node, host) };
                self.world.partition_one_way(from, to);
                self.later(5, 6_000, End::Heal(host, node));
            }
            Kind::Flapping => {
                let times = self.rng.within(2, 12);
                self.flap(host, node, times);
            }
            // One at a time: jumps add up.
            Kind::ClockJump if !self.jumped.insert(host) => {}
            Kind::ClockJump => {
                let millis = self.rng.within(1, CLOCK_JUMP_MAX.as_millis() as u64) as i64;
                let millis = if self.rng.one_in(2) { millis } else { -millis };
                self.world.jump_clock(host, millis);
                self.later(1, 5_000, End::JumpBack(host, millis));
            }
            Kind::HostCrash => {
                self.world.crash(host);
                self.later(1, 500, End::RestartHost(index));
            }
            Kind::NodeCrash => self.crash(storage),
            Kind::VictimCrash => self.crash(VICTIM),
            Kind::Pause => {
                let paused = if self.rng.one_in(2) { host } else { node };
                self.world.pause(paused);
                let long = self.rng.one_in(6);
                self.later(5, if long { 14_000 } else { 800 }, End::Resume(paused));
            }
            Kind::Suspension => {
                self.world.suspend(host);
                let longest = SUSPENDED_MS_MAX[usize::from(self.scenario.drawn_out && self.rng.one_in(2))];
                self.later(1_000, longest, End::Resume(host));
            }
            Kind::Corruption => {
                let page = self.rng.within(1, self.scenario.member_bytes / 4096 - 1);
                self.world.corrupt(self.cluster.nodes[VICTIM], DISK, page * 4096 + self.rng.within(0, 4000), 16);
            }
        }
    }

    /// The link goes down, at an even count, or up.
    fn flap(&mut self, host: NodeId, node: NodeId, left: u64) {
        if left.is_multiple_of(2) && left > 0 {
            self.world.partition(host, node);
        } else {
            self.world.heal(host, node);
        }
        if left > 0 {
            self.later(1, 120, End::Flap(host, node, left - 1));
        }
    }

    fn crash(&mut self, storage: usize) {
        self.world.crash(self.cluster.nodes[storage]);
        self.later(1, 1_500, End::RestartStorage(storage));
    }

    /// The kinds of this seed. Those that touch no data strike often, the others seldom enough for work to get done.
    fn kinds(&mut self) -> Vec<Kind> {
        let faults = self.scenario.faults;
        let often = [
            (faults.resets, Kind::Reset),
            (faults.slow_links, Kind::SlowLink),
            (faults.partitions, Kind::Partition),
            (faults.one_way, Kind::OneWay),
            (faults.flapping, Kind::Flapping),
            (faults.clock_jumps, Kind::ClockJump),
        ];
        let seldom = [
            (faults.host_crashes, Kind::HostCrash),
            (faults.node_crashes, Kind::NodeCrash),
            (faults.torn, Kind::VictimCrash),
            (faults.pauses, Kind::Pause),
            (faults.suspensions, Kind::Suspension),
            (faults.corruption, Kind::Corruption),
        ];
        let rare = self.rng.one_in(3);
        let seldom = seldom.into_iter().filter(|_| rare);
        often.into_iter().chain(seldom).filter(|(present, _)| *present).map(|(_, kind)| kind).collect()
    }
}
