//! The system under test, as it would be deployed: storage nodes that serve a file over NVMe/TCP, hosts that connect to
//! them. Nothing here is a stand-in but the kernel below and the network between.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use device::{FileNamespace, FileOptions, Namespace, NamespaceInfo};
use engine::sim::{DiskConfig, NodeId, World};
use engine::task::Task;
use engine::time;
use fabric::host::{Options, RemoteNamespace};
use fabric::subsystem::{Target, TargetConfig, listen};
use kv::store::Store;
use pool::{CreateOptions, Map, NewMember};

use crate::sim::scenario::Scenario;
use crate::sim::voters::Voters;

/// Where the member lies on each storage node.
pub const DISK: &str = "/member";
const PORT: u16 = 4420;
const NSID: u32 = 1;
/// Least table share: few table pages, and so keys that share them.
const TABLE_SHARE: u32 = 10;

/// A host's connection to a storage node's namespace.
pub type Remote = Rc<RemoteNamespace>;

/// The store as a host of the simulation has it.
pub type HostStore = Store;

/// What a host must know to reach the pool: what a configuration file would tell it.
#[derive(Clone)]
pub struct Directory {
    /// The pool's map when it was made; hosts that start later learn of a newer one.
    pub map: Map,
    nodes: Vec<(SocketAddr, NamespaceInfo)>,
    /// The lives that are over of a member whose medium was put back to them.
    rolled_back: Rc<RefCell<Option<Vec<u64>>>>,
    /// The storage node that is dead.
    dead: Rc<Cell<Option<usize>>>,
}

/// What one host has of the pool.
pub struct Host {
    /// The store, which follows the pool's map.
    pub store: HostStore,
    /// Where its maps come from.
    pub voters: Rc<Voters>,
    _follow: Task<()>,
}

impl Directory {
    /// A host's own connections to all storage nodes, made in the background, and the store over them.
    pub fn connect(&self, lease: Duration) -> Host {
        let remote = |(index, (address, info)): (usize, &(SocketAddr, NamespaceInfo))| {
            Rc::new(RemoteNamespace::expecting(options(*address, index), info.clone()))
        };
        let namespaces: Vec<Remote> = self.nodes.iter().enumerate().map(remote).collect();
        let voters = Rc::new(Voters::new(self.map.clone(), namespaces));
        let members = (0..self.map.members.len()).map(|index| voters.namespace(&self.map, index)).collect();
        let store = Store::new(self.map.clone(), members);
        let follow = store.follow(voters.clone(), lease);
        Host { store, voters, _follow: follow }
    }

    /// The victim's medium has been put back to what it was in these lives, which are over.
    pub fn rolled_back(&self, lives: Vec<u64>) {
        *self.rolled_back.borrow_mut() = Some(lives);
    }

    /// Whether that has happened.
    pub fn was_rolled_back(&self) -> bool {
        self.rolled_back.borrow().is_some()
    }

    /// Whether the victim was put back to this life, which has been over since.
    pub fn is_over(&self, life: u64) -> bool {
        self.rolled_back.borrow().iter().flatten().any(|over| *over == life)
    }

    /// The storage node that is dead, and comes back only where the pool can't go on without it.
    pub fn dead(&self) -> Option<usize> {
        self.dead.get()
    }

    /// Says so.
    pub fn set_dead(&self, index: Option<usize>) {
        self.dead.set(index);
    }

    /// The identity of storage node `index`'s namespace.
    pub fn nguid(&self, index: usize) -> [u8; 16] {
        self.nodes[index].1.nguid
    }

    /// What stands for the namespace of storage node `index`, which is to join the pool through `namespace`.
    pub fn new_member<N>(&self, index: usize, namespace: N) -> NewMember<N> {
        new_member(index, self.nodes[index].0, namespace)
    }
}

fn new_member<N>(index: usize, address: SocketAddr, namespace: N) -> NewMember<N> {
    NewMember::at(namespace, nqn(index), NSID, vec![address.to_string()])
}

fn nqn(index: usize) -> String {
    format!("nqn.2026-01.example.sim:node{index}")
}

fn options(address: SocketAddr, index: usize) -> Options {
    Options {
        connect_timeout: Duration::from_secs(2),
        command_timeout: Duration::from_secs(4),
        keep_alive: Duration::from_secs(2),
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(200),
        ..Options::new(address, nqn(index).parse().expect("the form is an NQN"), NSID)
    }
}

/// A storage node's process: serves its member until the node dies.
pub async fn serve(address: SocketAddr, index: usize) {
    let file = FileOptions { nguid: Some([index as u8 + 1; 16]), ..FileOptions::default() };
    let namespace = FileNamespace::open(Path::new(DISK), &file).await.expect("the disk is there and ours");
    let target = Target::new(TargetConfig::default());
    let nqn = nqn(index).parse().expect("the form is an NQN");
    target.add_subsystem(nqn, &format!("SIM{index}")).expect("the first subsystem");
    let nqn = self::nqn(index).parse().expect("the form is an NQN");
    target.add_namespace(&nqn, NSID, namespace).expect("the first namespace");
    let listener = listen(address).await.expect("the port of a process that is gone becomes free");
    target.serve(listener, Vec::new()).await;
}

/// The storage nodes.
pub struct Cluster {
    /// In the order of the map's members.
    pub nodes: Vec<NodeId>,
    addresses: Vec<SocketAddr>,
}

impl Cluster {
    /// Starts the storage nodes of the scenario.
    pub fn start(world: &World, scenario: &Scenario) -> Cluster {
        let nodes: Vec<NodeId> = (0..scenario.nodes()).map(|index| world.node(&format!("storage{index}"))).collect();
        let addresses = nodes.iter().map(|node| SocketAddr::new(world.addr(*node), PORT)).collect();
        let cluster = Cluster { nodes, addresses };
        for index in 0..scenario.nodes() {
            world.disk(cluster.nodes[index], DISK, scenario.member_bytes, DiskConfig::default());
            cluster.spawn(world, index);
        }
        cluster
    }

    /// From now on disks and connections fail as the scenario says.
    pub fn begin_faults(&self, world: &World, scenario: &Scenario) {
        for (index, node) in self.nodes.iter().enumerate() {
            world.set_disk_config(*node, DISK, scenario.disk(index));
        }
        world.set_connection_reset_ppm(scenario.reset_ppm());
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

    /// Makes the pool of all storage nodes but the spares.
    pub async fn create_pool(&self, scenario: &Scenario) -> Directory {
        let mut members = Vec::new();
        let mut infos = Vec::new();
        for (index, address) in self.addresses.iter().enumerate() {
            let namespace = loop {
                match RemoteNamespace::connect(options(*address, index)).await {
                    Ok(namespace) => break namespace,
                    Err(_) => time::sleep(Duration::from_millis(10)).await, // it is still starting
                }
            };
            infos.push((*address, namespace.info()));
            if index < scenario.storage {
                members.push(new_member(index, *address, namespace));
            }
        }
        let options = CreateOptions {
            replicas: scenario.replicas,
            table_share: TABLE_SHARE,
            force: true,
            ..CreateOptions::default()
        };
        let map = pool::create(&members, &options, |_| ()).await.expect("nothing fails yet");
        Directory { map, nodes: infos, rolled_back: Rc::default(), dead: Rc::default() }
    }
}
