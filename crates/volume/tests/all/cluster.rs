//! Storage nodes that serve a file over NVMe/TCP, as they would be deployed, and hosts that reach them.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use device::{FileNamespace, FileOptions};
use engine::sim::{DiskConfig, NodeId, SimConfig, World};
use engine::time;
use fabric::host::{HostIdentity, Options as FabricOptions};
use fabric::subsystem::{Target, TargetConfig, listen};
use volume::{DATA_ALIGN, FormatOptions, NvmeReach, Options, Reach, Shape, Volume};

/// Where the namespace lies on each storage node.
pub const DISK: &str = "/replica";
/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Blocks of the volume.
pub const BLOCKS: u64 = 128;
/// Bytes of a region.
pub const REGION_BYTES: u64 = 4 * BLOCK as u64;
const DISK_BYTES: u64 = 8 << 20;
const PORT: u16 = 4420;
const NSID: u32 = 1;

/// Storage nodes: the holders of the volume by slot, and behind them spares.
pub struct Cluster {
    pub nodes: Vec<NodeId>,
    addresses: Vec<SocketAddr>,
    /// Which node is in which slot. What a catalogue would say.
    pub places: Places,
}

/// See [`Cluster::places`]; a clone is the same.
#[derive(Clone)]
pub struct Places {
    slots: Rc<RefCell<Vec<usize>>>,
    addresses: Vec<SocketAddr>,
}

impl Places {
    /// How the host `name` reaches the holders.
    pub fn reaches(&self, name: &str) -> Vec<Rc<dyn Reach>> {
        self.slots.borrow().iter().map(|&node| self.reach(node, name)).collect()
    }

    /// How it reaches a node.
    pub fn reach(&self, node: usize, name: &str) -> Rc<dyn Reach> {
        let subsystem = format!("nqn.2026-01.example.sim:node{node}").parse().expect("the form is an NQN");
        let nqn = format!("nqn.2026-01.example.sim:{name}").parse().expect("the form is an NQN");
        let options = FabricOptions {
            host: HostIdentity { nqn, id: [1; 16] },
            connect_timeout: Duration::from_millis(800),
            command_timeout: Duration::from_secs(2),
            keep_alive: Duration::from_secs(2),
            ..FabricOptions::new(self.addresses[node], subsystem, NSID)
        };
        Rc::new(NvmeReach::new(options))
    }

    /// Which node is in each slot.
    pub fn nodes(&self) -> Vec<usize> {
        self.slots.borrow().clone()
    }

    /// Another node is in the slot from now on.
    pub fn replace(&self, slot: usize, node: usize) {
        self.slots.borrow_mut()[slot] = node;
    }
}

/// The namespaces that a volume of so many replicas needs.
pub fn holders(replicas: u8) -> usize {
    if replicas == 1 { 1 } else { 3 }
}

impl Cluster {
    /// Starts them, with honest disks whose caches lose what was not flushed.
    pub fn start(world: &World, replicas: u8, spares: usize) -> Cluster {
        let slots: Vec<usize> = (0..holders(replicas)).collect();
        let count = slots.len() + spares;
        let nodes: Vec<NodeId> = (0..count).map(|index| world.node(&format!("storage{index}"))).collect();
        let addresses: Vec<_> = nodes.iter().map(|node| SocketAddr::new(world.addr(*node), PORT)).collect();
        let places = Places { slots: Rc::new(RefCell::new(slots)), addresses: addresses.clone() };
        let cluster = Cluster { nodes, addresses, places };
        for index in 0..count {
            world.disk(cluster.nodes[index], DISK, DISK_BYTES, disk());
            cluster.spawn(world, index);
        }
        cluster
    }

    fn spawn(&self, world: &World, index: usize) {
        world.spawn_on(self.nodes[index], serve(self.addresses[index], index)).detach();
    }

    /// Power comes back.
    pub fn restart(&self, world: &World, index: usize) {
        if !world.is_up(self.nodes[index]) {
            world.restart(self.nodes[index]);
            self.spawn(world, index);
        }
    }

    /// What the replica of a slot has of the volume.
    pub fn data(&self, world: &World, slot: usize) -> Vec<u8> {
        let node = self.nodes[self.places.nodes()[slot]];
        let label = volume::Label::decode(&world.peek(node, DISK, 0, BLOCK)).expect("a holder has a label");
        assert_eq!(label.data_first * BLOCK as u64 % DATA_ALIGN, 0);
        world.peek(node, DISK, label.data_first * BLOCK as u64, BLOCKS as usize * BLOCK)
    }
}

/// A storage node's process: serves its namespace until the node dies.
async fn serve(address: SocketAddr, index: usize) {
    let opened = FileNamespace::open(Path::new(DISK), &FileOptions::default()).await;
    let namespace = opened.expect("the disk is there and ours");
    let target = Target::new(TargetConfig::default());
    let nqn: nvme::Nqn = format!("nqn.2026-01.example.sim:node{index}").parse().expect("the form is an NQN");
    target.add_subsystem(nqn.clone(), &format!("SIM{index}")).expect("the first subsystem");
    target.add_namespace(&nqn, NSID, namespace).expect("the first namespace");
    let listener = listen(address).await.expect("the port of a process that is gone becomes free");
    target.serve(listener, Vec::new()).await;
}

/// An honest disk whose cache loses what was not flushed. A block is written whole or not at all, as NVMe has it (AWUPF).
pub fn disk() -> DiskConfig {
    DiskConfig { torn: false, ..DiskConfig::default() }
}

/// How the volumes of tests are made.
pub fn format_options(replicas: u8) -> FormatOptions {
    FormatOptions {
        replicas,
        bytes: Some(BLOCKS * BLOCK as u64),
        region_bytes: Some(REGION_BYTES),
        lease: Duration::from_secs(3),
        volume: None,
        force: false,
    }
}

/// How they behave.
pub fn options() -> Options {
    Options {
        give_up_after: Duration::from_millis(500),
        wait_max: Duration::from_secs(20),
        attach_timeout: Duration::from_secs(10),
        clear_after: Duration::from_millis(300),
        ..Options::default()
    }
}

/// Makes the volume of the cluster; the nodes may still be starting.
pub async fn format(places: &Places, replicas: u8) -> Shape {
    for _ in 0..100 {
        match volume::format(places.reaches("operator"), format_options(replicas)).await {
            Ok(shape) => return shape,
            Err(volume::Error::Unreachable { .. }) => time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("nothing fails yet: {error}"),
        }
    }
    panic!("the nodes do not start");
}

/// Attaches, as often as it takes.
pub async fn attach(places: &Places, host: &str) -> Volume {
    let mut last = None;
    for _ in 0..100 {
        match volume::attach(places.reaches(host), options()).await {
            Ok(volume) => return volume,
            Err(error) => {
                assert!(error.may_pass(), "{host} can't attach: {error}");
                last = Some(error);
            }
        }
        time::sleep_within(Duration::from_millis(200)).await;
    }
    panic!("{host} does not get to attach: {last:?}");
}

/// Waits until every replica is in sync.
pub async fn whole(volume: &Volume) {
    let waited = time::timeout(Duration::from_secs(120), async {
        while !volume.is_whole() {
            let changed = volume.changed();
            if volume.is_whole() {
                return;
            }
            changed.await;
        }
    });
    assert!(waited.await.is_ok(), "the volume does not become whole: {:?}, {:?}", volume.record(), volume.in_sync());
}

/// Runs a scenario in a world of its own, with storage nodes; it plays the outside.
pub fn run<T>(seed: u64, replicas: u8, spares: usize, scenario: impl AsyncFnOnce(&World, &Cluster) -> T) -> T {
    let world = World::new(seed, SimConfig::default());
    let cluster = Cluster::start(&world, replicas, spares);
    run_in(&world, scenario(&world, &cluster))
}

/// Runs it to its end.
pub fn run_in<T>(world: &World, future: impl Future<Output = T>) -> T {
    world.run_until(future).unwrap_or_else(|stalled| panic!("{stalled}"))
}
