//! The faults, in the order and at the times of the seed. Each has an end.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::sim::{DiskConfig, NodeId, World};
use engine::time::{self, Instant};

use crate::cluster::{Cluster, DISK, disk};
use crate::sim::scenario::{Rng, Scenario, VICTIM};

/// Connections that are reset, per call of send.
const RESET_PPM: u32 = 300;

#[derive(Clone, Copy)]
enum Kind {
    Reset,
    SlowLink,
    Partition,
    OneWay,
    HostCrash,
    NodeCrash,
    Pause,
    SlowDisk,
    Loss,
}

enum End {
    RestartStorage(usize),
    RestartHost(usize),
    Resume(NodeId),
    Heal(NodeId, NodeId),
    UsualDelay(NodeId, NodeId),
    UsualDisk(usize),
}

/// What happens to the system while the load runs.
pub struct Chaos<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    scenario: &'a Scenario,
    rng: Rng,
    ends: BTreeMap<(Instant, u64), End>,
    count: u64,
    /// The storage node that is gone for good.
    pub lost: Option<usize>,
}

impl<'a> Chaos<'a> {
    pub fn new(world: &'a World, cluster: &'a Cluster, scenario: &'a Scenario) -> Chaos<'a> {
        let rng = Rng::new(scenario.seed, 2);
        let chaos = Chaos { world, cluster, scenario, rng, ends: BTreeMap::new(), count: 0, lost: None };
        chaos.usual_disk(VICTIM);
        world.set_connection_reset_ppm(if scenario.faults.resets { RESET_PPM } else { 0 });
        chaos
    }

    fn usual_disk(&self, index: usize) {
        let fails = self.scenario.faults.write_errors && index == VICTIM;
        let config = DiskConfig { write_error_ppm: if fails { 3_000 } else { 0 }, ..disk() };
        self.world.set_disk_config(self.cluster.nodes[index], DISK, config);
    }

    pub fn pause(&mut self) -> Duration {
        self.rng.millis(5, 400)
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
                End::RestartStorage(index) if self.lost == Some(index) => {}
                End::RestartStorage(index) => self.cluster.restart(self.world, index),
                End::RestartHost(index) => hosts.push(index),
                End::Resume(node) => self.world.resume(node),
                End::Heal(a, b) => self.world.heal(a, b),
                End::UsualDelay(a, b) => {
                    self.world.set_link_delay(a, b, self.scenario.world().link_delay);
                }
                End::UsualDisk(index) => self.usual_disk(index),
            }
        }
        hosts
    }

    /// One fault of a kind that this seed has. `hosts`: those that may be struck.
    pub fn strike(&mut self, hosts: &[(usize, NodeId)]) {
        let kinds = self.kinds();
        if kinds.is_empty() || hosts.is_empty() {
            return;
        }
        let storage = self.rng.index(self.cluster.nodes.len());
        let node = self.cluster.nodes[storage];
        let (index, host) = hosts[self.rng.index(hosts.len())];
        match kinds[self.rng.index(kinds.len())] {
            Kind::Reset => self.world.reset_connections(host, node),
            Kind::SlowLink => {
                let slow = self.rng.millis(1, 120);
                self.world.set_link_delay(host, node, slow / 4..slow);
                self.later(20, 3_000, End::UsualDelay(host, node));
            }
            Kind::Partition => {
                self.world.partition(host, node);
                self.later(5, 5_000, End::Heal(host, node));
            }
            Kind::OneWay => {
                let (from, to) = if self.rng.one_in(2) { (host, node) } else { (node, host) };
                self.world.partition_one_way(from, to);
                self.later(5, 6_000, End::Heal(host, node));
            }
            Kind::HostCrash => {
                self.world.crash(host);
                self.later(1, 2_000, End::RestartHost(index));
            }
            Kind::NodeCrash => {
                self.world.crash(node);
                self.later(1, 4_000, End::RestartStorage(storage));
            }
            Kind::Pause => {
                let paused = if self.rng.one_in(2) { host } else { node };
                self.world.pause(paused);
                let long = self.rng.one_in(3);
                self.later(5, if long { 12_000 } else { 800 }, End::Resume(paused));
            }
            Kind::SlowDisk => {
                let slow = DiskConfig { delay: Duration::from_millis(1)..Duration::from_millis(80), ..disk() };
                self.world.set_disk_config(node, DISK, slow);
                self.later(100, 4_000, End::UsualDisk(storage));
            }
            Kind::Loss if self.lost.is_some() => {}
            Kind::Loss => {
                // One of the replicas: what replaces it is a spare.
                let storage = self.rng.index(usize::from(self.scenario.replicas));
                self.world.crash(self.cluster.nodes[storage]);
                self.lost = Some(storage);
            }
        }
    }

    fn kinds(&mut self) -> Vec<Kind> {
        let faults = self.scenario.faults;
        let all = [
            (faults.resets, Kind::Reset),
            (faults.slow_links, Kind::SlowLink),
            (faults.partitions, Kind::Partition),
            (faults.one_way, Kind::OneWay),
            (faults.host_crashes, Kind::HostCrash),
            (faults.node_crashes, Kind::NodeCrash),
            (faults.pauses, Kind::Pause),
            (faults.slow_disks, Kind::SlowDisk),
            (faults.loss, Kind::Loss),
        ];
        all.into_iter().filter(|(present, _)| *present).map(|(_, kind)| kind).collect()
    }
}
