//! A pool of simulated drives with a catalogue in memory, and what must be true of it at rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use control::catalogue::{Catalogue, Embedded, EmbeddedOptions, Prefix, Range};
use control::provision::{
    Level, Limits, Moment, Name, NewDrive, NewVolume, NodePlace, Operation, OperationState, Owner, Provisioner, Quota,
    Request, VolumeState, VolumeView, Worker, WorkerOptions,
};
use tokio::time::sleep;
use uuid::Uuid;

use super::drives::{GIB, SimDrive, SimDrives};
use super::faults::{Faults, Faulty};
use crate::words::read_all;

pub const TENANT: &str = "acme";

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn owner() -> Owner {
    Owner { name: name(TENANT), id: None }
}

pub fn nqn(drive: &str) -> String {
    format!("nqn.2026-11.io.yagura:{drive}")
}

pub fn new_volume(volume: &str, gib: u64, replicas: u8) -> NewVolume {
    NewVolume {
        name: name(volume),
        bytes: Some(gib * GIB),
        replicas: Some(replicas),
        level: Level::Node,
        relax: false,
        limits: Limits::default(),
        from: None,
    }
}

pub struct World {
    pub catalogue: Arc<dyn Catalogue>,
    pub faults: Arc<Faults>,
    pub drives: Arc<SimDrives>,
    pub provisioner: Provisioner,
    /// What lives in this world ends with it: a test makes hundreds of worlds, and each would go on beside the next ones.
    pub here: Arc<()>,
}

impl World {
    /// Nodes with a drive each, of so many GiB, and a tenant.
    pub async fn new(sizes: &[u64]) -> World {
        let memory = redb::backends::InMemoryBackend::new();
        World::on(Arc::new(Embedded::on(memory, EmbeddedOptions::default()).await.expect("a catalogue")), sizes).await
    }

    /// The same in that catalogue.
    pub async fn on(catalogue: Arc<dyn Catalogue>, sizes: &[u64]) -> World {
        let faults = Arc::new(Faults::default());
        let drives = Arc::new(SimDrives::new(faults.clone()));
        let faulty = Arc::new(Faulty::new(&catalogue, &faults));
        let provisioner = Provisioner::new(faulty, drives.clone());
        let world = World { catalogue, faults, drives, provisioner, here: Arc::default() };
        for (index, gib) in sizes.iter().enumerate() {
            world.add_drive(&format!("d{index}"), &format!("n{index}"), SimDrive::new(*gib)).await;
        }
        let quota = Quota::default();
        world.provisioner.put_tenant(&Request::unnamed(), &name(TENANT), &quota).await.expect("a tenant");
        world
    }

    pub async fn add_drive(&self, drive: &str, node: &str, sim: SimDrive) {
        self.drives.add(&nqn(drive), sim);
        self.add_known(drive, node).await;
    }

    /// Registers a drive that is there.
    pub async fn add_known(&self, drive: &str, node: &str) {
        let place = NodePlace { rack: None, zone: None };
        self.provisioner.put_node(&Request::unnamed(), &name(node), &place).await.expect("a node");
        self.provisioner.register_drive(&Request::unnamed(), &new_drive(drive, node)).await.expect("a drive");
    }

    pub fn worker(&self) -> tokio::task::JoinHandle<()> {
        let options = WorkerOptions { give_up: Duration::from_secs(60), ..WorkerOptions::default() };
        tokio::spawn(Worker::new(&self.provisioner, options).run())
    }

    /// Waits for the end of an operation; a process that dies meanwhile is followed by another.
    pub async fn end(&self, id: Uuid) -> Operation {
        self.end_all(&[id], 1).await.pop().expect("one")
    }

    /// Waits for the end of operations that so many workers go on with; when the process dies, another follows.
    pub async fn end_all(&self, ids: &[Uuid], workers: usize) -> Vec<Operation> {
        let begin = || -> Vec<_> { (0..workers).map(|_| self.worker()).collect() };
        let mut at_work = begin();
        for _ in 0..600 {
            tokio::select! {
                () = self.faults.struck.notified(), if !self.faults.is_dead() => {}
                () = sleep(Duration::from_secs(1)) => {}
            }
            if self.faults.is_dead() {
                for worker in at_work {
                    worker.abort();
                    assert!(worker.await.is_err_and(|error| error.is_cancelled()));
                }
                self.faults.clear();
                at_work = begin();
            }
            let mut ended = Vec::new();
            for id in ids {
                ended.push(self.provisioner.operation(None, *id).await.expect("an operation"));
            }
            if ended.iter().all(|operation| operation.ended.is_some()) {
                at_work.iter().for_each(tokio::task::JoinHandle::abort);
                return ended;
            }
        }
        let id = ids.first().expect("one at least");
        panic!("operations do not end: {:?}", self.provisioner.operation(None, *id).await);
    }

    pub async fn create(&self, new: &NewVolume) -> Operation {
        let id = self.provisioner.create_volume(&Request::unnamed(), &owner(), new).await.expect("begun");
        self.end(id).await
    }

    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        let (_, found) = read_all(&*self.catalogue, Range::of(Prefix::new(prefix).unwrap())).await.expect("entries");
        found.iter().map(|entry| entry.key.to_string()).collect()
    }

    /// The volumes of all tenants.
    pub async fn volumes(&self) -> Vec<VolumeView> {
        let mut found = Vec::new();
        for tenant in self.provisioner.tenants(None).await.expect("a list").items {
            let owner = Owner { name: tenant.name, id: Some(tenant.id) };
            found.extend(self.provisioner.volumes(&owner, None).await.expect("a list").items);
        }
        found
    }

    /// The volume's size and snapshots are those that stand on the holders, but for what a broken-off attempt has left there.
    async fn as_its_holders_say(&self, volume: &VolumeView) {
        let mirror = self.drives.mirrors.lock().unwrap()[&volume.id].clone();
        assert_eq!(volume.bytes, mirror.bytes, "{volume:?}");
        let entry = self.keys_and_values(&format!("/volume/{}/{}", volume.tenant, volume.name)).await;
        let record: serde_json::Value = serde_json::from_str(&entry[0].1).unwrap();
        assert_eq!(record["held"], false, "nobody keeps hosts from the volume");
        assert_eq!(mirror.back, None, "it is whole");
        for snapshot in record["snapshots"].as_array().unwrap() {
            let moment: Moment = serde_json::from_value(snapshot["moment"].clone()).unwrap();
            assert!(mirror.moments.iter().any(|found| found.is(&moment)), "{snapshot} is on no replica");
            assert_eq!(snapshot["clones"], serde_json::json!([]), "nothing keeps the snapshot any more");
            assert_eq!(snapshot["temporary"], false, "it has gone with what it was taken for");
        }
    }

    pub async fn keys_and_values(&self, prefix: &str) -> Vec<(String, String)> {
        let (_, found) = read_all(&*self.catalogue, Range::of(Prefix::new(prefix).unwrap())).await.expect("entries");
        let text = |entry: &control::catalogue::Entry| String::from_utf8_lossy(entry.value.as_bytes()).into_owned();
        found.iter().map(|entry| (entry.key.to_string(), text(entry))).collect()
    }

    /// What is true whenever nothing is under way: each namespace is in exactly one record or somebody else's, each record's is
    /// there and formatted, what is promised is what holders may take, and nothing is left of operations.
    pub async fn at_rest(&self) {
        let (volumes, namespaces) = (self.volumes().await, self.drives.namespaces());
        let mut recorded: BTreeSet<Uuid> = self.drives.sacred.lock().unwrap().clone();
        let mut promised: BTreeMap<String, (u64, u32)> = BTreeMap::new();
        for volume in &volumes {
            assert_eq!((volume.state, volume.operation), (VolumeState::Ready, None));
            self.as_its_holders_say(volume).await;
            for (slot, holder) in volume.holders.iter().enumerate() {
                let namespace = holder.namespace.expect("a ready volume has its namespaces");
                let (nqn, found, label) = namespaces.get(&namespace.uid).expect("what is recorded is there");
                assert_eq!((nqn.as_str(), *found), (holder.nqn.as_str(), namespace));
                assert_eq!(*label, Some((volume.id, slot)), "the holder is formatted");
                assert!(recorded.insert(namespace.uid), "a namespace is in two records");
                let of_drive = promised.entry(holder.drive.to_string()).or_default();
                (of_drive.0, of_drive.1) = (of_drive.0 + namespace.bytes, of_drive.1 + 1);
            }
        }
        let there: BTreeSet<Uuid> = namespaces.keys().copied().collect();
        assert_eq!(there, recorded, "namespaces that are there, and those that are known");
        for drive in self.provisioner.drives(None).await.expect("a list").items {
            let expected = promised.remove(drive.name.as_str()).unwrap_or_default();
            assert_eq!((drive.promised, drive.holders), expected, "drive {}", drive.name);
        }
        for tenant in self.provisioner.tenants(None).await.expect("a list").items {
            let own: Vec<_> = volumes.iter().filter(|volume| volume.tenant == tenant.name).collect();
            let bytes: u64 = own.iter().map(|volume| volume.bytes).sum();
            assert_eq!((tenant.bytes, tenant.volumes, tenant.pending), (bytes, own.len() as u32, 0));
        }
        for left in ["/todo/", "/taken/", "/busy/", "/wanted/"] {
            assert_eq!(self.keys(left).await, Vec::<String>::new());
        }
    }
}

pub fn new_drive(drive: &str, node: &str) -> NewDrive {
    NewDrive {
        name: name(drive),
        node: name(node),
        address: control::provision::Address::new("127.0.0.1:4420").unwrap(),
        nqn: control::provision::Nqn::new(nqn(drive)).unwrap(),
        keep_foreign: true,
    }
}

/// That it ended well.
pub fn done(operation: &Operation) {
    assert_eq!(operation.state, OperationState::Done, "{operation:?}");
    assert_eq!((operation.done, operation.undo.clone(), operation.waits.clone()), (operation.steps, None, None));
}
