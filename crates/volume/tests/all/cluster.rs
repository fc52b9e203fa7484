//! Storage nodes that serve a file over NVMe/TCP, as they would be deployed, and hosts that reach them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use device::{AnyNamespace, FileNamespace, FileOptions, Namespace, NamespaceInfo};
use engine::sim::{DiskConfig, NodeId, SimConfig, World};
use engine::{task, time};
use fabric::host::{HostIdentity, Options as FabricOptions};
use fabric::subsystem::{Target, TargetConfig, listen};
use volume::{DATA_ALIGN, FormatOptions, NvmeReach, Options, Reach, Shape, Volume};

use crate::shelf::Shelf;

/// Where the namespace lies on each storage node.
pub const DISK: &str = "/replica";
/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Blocks of the volume.
pub const BLOCKS: u64 = 128;
/// Bytes of a region.
pub const REGION_BYTES: u64 = 4 * BLOCK as u64;
pub const DISK_BYTES: u64 = 8 << 20;
const PORT: u16 = 4420;
const NSID: u32 = 1;

/// Storage nodes: the holders of the volume by slot, and behind them spares.
pub struct Cluster {
    pub nodes: Vec<NodeId>,
    addresses: Vec<SocketAddr>,
    /// Which node is in which slot. What a catalogue would say.
    pub places: Places,
    targets: Targets,
    /// Bytes of each node's namespace.
    sizes: Vec<Arc<AtomicU64>>,
}

/// What each node serves, while it is up.
type Targets = Rc<RefCell<BTreeMap<usize, Target>>>;

/// A namespace of which a part is there, until it grows.
struct Part {
    inner: AnyNamespace,
    bytes: Arc<AtomicU64>,
}

impl Namespace for Part {
    device::delegate_namespace!(this => { Part { inner, .. } => inner }; read, write, flush, compare, compare_and_write,
        write_zeroes, deallocate, verify, write_uncorrectable, hint_lifetime, writability, used_blocks, link, attribute,
        set_attribute, zones);

    fn info(&self) -> NamespaceInfo {
        let info = self.inner.info();
        NamespaceInfo { blocks: self.bytes.load(Relaxed) / u64::from(info.block_size), ..info }
    }
}

/// See [`Cluster::places`]; a clone is the same.
#[derive(Clone)]
pub struct Places {
    slots: Rc<RefCell<Vec<usize>>>,
    addresses: Vec<SocketAddr>,
    /// The snapshots of the nodes' namespaces.
    pub shelf: Shelf,
}

impl Places {
    /// How the host `name` reaches the holders.
    pub fn reaches(&self, name: &str) -> Vec<Rc<dyn Reach>> {
        self.slots.borrow().iter().map(|&node| self.reach(node, name)).collect()
    }

    /// How it reaches a node.
    pub fn reach(&self, node: usize, name: &str) -> Rc<dyn Reach> {
        self.shelf.reach(Rc::new(self.bare_reach(node, name)), node)
    }

    /// Nobody has the reservation of a node's namespace any more.
    pub async fn release(&self, node: usize) {
        self.bare_reach(node, "control").release().await.expect("it is up");
    }

    fn bare_reach(&self, node: usize, name: &str) -> NvmeReach {
        let subsystem = nqn_of(node);
        let nqn = format!("nqn.2026-01.example.sim:{name}").parse().expect("the form is an NQN");
        let options = FabricOptions {
            host: HostIdentity { nqn, id: [1; 16] },
            connect_timeout: Duration::from_millis(800),
            command_timeout: Duration::from_secs(2),
            keep_alive: Duration::from_secs(2),
            ..FabricOptions::new(self.addresses[node], subsystem, NSID)
        };
        NvmeReach::new(options)
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.addresses.len()
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
        Cluster::start_sized(world, replicas, spares, |_| DISK_BYTES)
    }

    /// The same, with namespaces of these bytes.
    pub fn start_sized(world: &World, replicas: u8, spares: usize, bytes: impl Fn(usize) -> u64) -> Cluster {
        let slots: Vec<usize> = (0..holders(replicas)).collect();
        let count = slots.len() + spares;
        let nodes: Vec<NodeId> = (0..count).map(|index| world.node(&format!("storage{index}"))).collect();
        let addresses: Vec<_> = nodes.iter().map(|node| SocketAddr::new(world.addr(*node), PORT)).collect();
        let (slots, shelf) = (Rc::new(RefCell::new(slots)), Shelf::new(count));
        let places = Places { slots, addresses: addresses.clone(), shelf };
        let sizes = (0..count).map(|index| Arc::new(AtomicU64::new(bytes(index)))).collect();
        let cluster = Cluster { nodes, addresses, places, targets: Targets::default(), sizes };
        for index in 0..count {
            world.disk(cluster.nodes[index], DISK, DISK_BYTES.max(bytes(index)), disk());
            cluster.spawn(world, index);
        }
        cluster
    }

    fn spawn(&self, world: &World, index: usize) {
        let (targets, shelf) = (Rc::clone(&self.targets), self.places.shelf.clone());
        let part = Arc::clone(&self.sizes[index]);
        world.spawn_on(self.nodes[index], serve(self.addresses[index], index, (part, targets, shelf))).detach();
    }

    /// The namespace of a node grows.
    pub async fn grow(&self, world: &World, index: usize, bytes: u64) {
        self.sizes[index].store(bytes, Relaxed);
        let target = self.targets.borrow()[&index].clone();
        let told = async move { target.refresh_namespace(&nqn_of(index), NSID).expect("the only one") };
        world.spawn_on(self.nodes[index], told).await;
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
        self.data_of(world, slot, BLOCKS)
    }

    /// The same of a volume of so many blocks.
    pub fn data_of(&self, world: &World, slot: usize, blocks: u64) -> Vec<u8> {
        let node = self.nodes[self.places.nodes()[slot]];
        let label = volume::Label::decode(&world.peek(node, DISK, 0, BLOCK)).expect("a holder has a label");
        assert_eq!(label.data_first * BLOCK as u64 % DATA_ALIGN, 0);
        world.peek(node, DISK, label.data_first * BLOCK as u64, blocks as usize * BLOCK)
    }
}

fn nqn_of(index: usize) -> nvme::Nqn {
    format!("nqn.2026-01.example.sim:node{index}").parse().expect("the form is an NQN")
}

/// A storage node's process: serves its namespace until the node dies.
async fn serve(address: SocketAddr, index: usize, (bytes, targets, shelf): (Arc<AtomicU64>, Targets, Shelf)) {
    let opened = FileNamespace::open(Path::new(DISK), &FileOptions::default()).await;
    let namespace = opened.expect("the disk is there and ours");
    let target = Target::new(TargetConfig::default());
    let nqn = nqn_of(index);
    target.add_subsystem(nqn.clone(), &format!("SIM{index}")).expect("the first subsystem");
    let part = AnyNamespace::other(Part { inner: namespace.into(), bytes });
    target.add_namespace(&nqn, NSID, part).expect("the first namespace");
    targets.borrow_mut().insert(index, target.clone());
    task::spawn(shelf.serve(index, target.namespace(&nqn, NSID).expect("it was added"))).detach();
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
