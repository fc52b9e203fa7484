//! The pool: its policy, its nodes and its drives.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use utoipa::ToSchema;

use crate::catalogue::{Change, Condition, Value};

use super::drives::{Look, Place};
use super::error::Error;
use super::keys;
use super::name::{Address, Name, Nqn};
use super::provisioner::{List, PAGE_RECORDS_MAX, Provisioner, drive_failed, place_of};
use super::records::{Drive, DriveState, Namespace, Node, Pool, Volume, VolumeState};
use super::store::{Plan, Planning, Request, put};

/// Drives, at most. Chosen: a placement reads and looks at all of them.
pub const DRIVES_MAX: usize = 1000;
/// Nodes, at most. Derived: no more than drives are of use.
pub const NODES_MAX: usize = DRIVES_MAX;
/// Drives of a node that are set at once. Derived: they are changed in one transaction.
const NODE_DRIVES_MAX: usize = 90;
/// The most that may be promised of a thin drive, in percent. Chosen: a hundred times what there is, which bounds nothing any more.
pub const OVERCOMMIT_PERCENT_MAX: u32 = 10_000;

/// Where a node stands.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodePlace {
    /// The rack.
    pub rack: Option<Name>,
    /// The zone that the rack is in.
    pub zone: Option<Name>,
}

/// A drive that is to be registered.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDrive {
    /// The name that it gets.
    pub name: Name,
    /// The machine that it is in.
    pub node: Name,
    /// Where its target listens.
    pub address: Address,
    /// The subsystem.
    pub nqn: Nqn,
    /// Takes a drive that has namespaces, and leaves these alone.
    #[serde(default)]
    pub keep_foreign: bool,
}

/// A drive with what it says of itself.
#[derive(Clone, Debug)]
pub struct DriveStatus {
    /// Its record.
    pub drive: Drive,
    /// What it says, or why it says nothing.
    pub look: Result<Look, String>,
    /// Namespaces that are there and in no record. They are left alone: nobody but an operator can say what they are.
    pub unrecorded: Vec<Namespace>,
}

impl Provisioner {
    /// What holds for all drives.
    pub async fn pool(&self) -> Result<Pool, Error> {
        Ok(self.store.get(keys::pool()).await?.map(|stored| stored.record).unwrap_or_default())
    }

    /// Changes that. What was promised stays promised.
    pub async fn set_pool(&self, request: &Request, pool: Pool) -> Result<Pool, Error> {
        if !(100..=OVERCOMMIT_PERCENT_MAX).contains(&pool.overcommit_percent) {
            let given = pool.overcommit_percent;
            return Err(Error::Impossible(format!(
                "overcommit_percent is {given}: it is 100 (nothing is promised twice) to {OVERCOMMIT_PERCENT_MAX}"
            )));
        }
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let changes = vec![put(keys::pool(), &pool)?];
                Ok(Plan { conditions: Vec::new(), changes, answer: pool.clone() })
            })
        };
        self.store.once(request, plan).await
    }

    /// Makes a node, or says anew where it stands; volumes that are placed already stay where they are.
    pub async fn put_node(&self, request: &Request, name: &Name, place: &NodePlace) -> Result<Node, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let key = keys::node(name);
                let known = self.store.get::<Node>(key.clone()).await?;
                if known.is_none() && self.store.all::<Node>(keys::all("node")).await?.len() >= NODES_MAX {
                    return Err(Error::Limit { kind: "nodes", limit: NODES_MAX });
                }
                let drives = known.as_ref().map_or(0, |known| known.record.drives);
                let node = Node { name: name.clone(), rack: place.rack.clone(), zone: place.zone.clone(), drives };
                let condition = known.map_or_else(|| Condition::absent(key.clone()), |known| known.unchanged());
                Ok(Plan { conditions: vec![condition], changes: vec![put(key.clone(), &node)?], answer: node })
            })
        };
        self.store.once(request, plan).await
    }

    /// One node.
    pub async fn node(&self, name: &Name) -> Result<Node, Error> {
        Ok(self.store.need(keys::node(name), name).await?.record)
    }

    /// The nodes behind one of that name, each with how many holders are on its drives.
    pub async fn nodes(&self, after: Option<&Name>) -> Result<List<(Node, u32)>, Error> {
        let page = self.store.page(keys::all("node"), after.map(keys::node), PAGE_RECORDS_MAX).await?;
        let mut holders: BTreeMap<Name, u32> = BTreeMap::new();
        for drive in self.store.all::<Drive>(keys::all("drive")).await? {
            *holders.entry(drive.record.node).or_default() += drive.record.holders;
        }
        Ok(List::of(page, |node: Node| {
            let there = holders.get(&node.name).copied().unwrap_or_default();
            (node, there)
        }))
    }

    /// Forgets a node that has no drives.
    pub async fn remove_node(&self, request: &Request, name: &Name) -> Result<(), Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let node = self.store.need::<Node>(keys::node(name), name).await?;
                if node.record.drives > 0 {
                    let by = format!("{} drives", node.record.drives);
                    return Err(Error::InUse { kind: "node", name: name.clone(), by });
                }
                Ok(Plan {
                    conditions: vec![node.unchanged()],
                    changes: vec![Change::delete(keys::node(name))],
                    answer: (),
                })
            })
        };
        self.store.once(request, plan).await
    }

    /// Registers a drive: from now on only this catalogue makes namespaces there.
    pub async fn register_drive(&self, request: &Request, new: &NewDrive) -> Result<Drive, Error> {
        let place = Place { address: new.address.clone(), nqn: new.nqn.clone() };
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let mut node = self.store.need::<Node>(keys::node(&new.node), &new.node).await?;
                let (key, subsystem) = (keys::drive(&new.name), keys::subsystem(&new.nqn));
                if self.store.get::<Drive>(key.clone()).await?.is_some() {
                    return Err(Error::Exists { kind: "drive", name: new.name.to_string() });
                }
                if let Some(entry) = self.store.catalogue.get(subsystem.clone()).await?.entry {
                    let drive = Name::new(String::from_utf8_lossy(entry.value.as_bytes()))?;
                    return Err(Error::Registered { nqn: new.nqn.clone(), drive });
                }
                if self.store.all::<Drive>(keys::all("drive")).await?.len() >= DRIVES_MAX {
                    return Err(Error::Limit { kind: "drives", limit: DRIVES_MAX });
                }
                let look = self.look(&place).await.map_err(|source| drive_failed(&place, source))?;
                if !look.namespaces.is_empty() && !new.keep_foreign {
                    let namespaces = look.namespaces.len();
                    return Err(Error::HasNamespaces { nqn: new.nqn.clone(), namespaces });
                }
                let drive = record(new, &look);
                node.record.drives += 1;
                let conditions =
                    vec![node.unchanged(), Condition::absent(key.clone()), Condition::absent(subsystem.clone())];
                let named = Change::put(subsystem, Value::new(new.name.as_str())?);
                Ok(Plan { conditions, changes: vec![node.put()?, put(key, &drive)?, named], answer: drive })
            })
        };
        self.store.once(request, plan).await
    }

    /// The drives behind one of that name, as they are recorded.
    pub async fn drives(&self, after: Option<&Name>) -> Result<List<Drive>, Error> {
        let page = self.store.page(keys::all("drive"), after.map(keys::drive), PAGE_RECORDS_MAX).await?;
        Ok(List::of(page, |drive| drive))
    }

    /// A drive with what it says of itself.
    pub async fn drive(&self, name: &Name) -> Result<DriveStatus, Error> {
        let drive = self.store.need::<Drive>(keys::drive(name), name).await?.record;
        let look = match drive.state {
            DriveState::Out => Err("it is out, and not asked".into()),
            _ => self.look(&place_of(&drive)).await.map_err(|error| error.to_string()),
        };
        let mut known: BTreeSet<_> = drive.foreign.iter().map(|namespace| namespace.uid).collect();
        // Looked at first: what is made meanwhile is recorded, and not seen.
        for volume in self.store.all::<Volume>(keys::all("volume")).await? {
            known.extend(volume.record.everywhere().filter_map(|holder| Some(holder.namespace?.uid)));
        }
        let seen = look.iter().flat_map(|look| &look.namespaces);
        let unrecorded = seen.filter(|namespace| !known.contains(&namespace.uid)).copied().collect();
        Ok(DriveStatus { drive, look, unrecorded })
    }

    /// Says what is wanted of a drive. One that is draining or out is emptied: its holders are replaced elsewhere.
    pub async fn set_drive_state(&self, request: &Request, name: &Name, state: DriveState) -> Result<Drive, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let mut drive = self.store.need::<Drive>(keys::drive(name), name).await?;
                drive.record.state = state;
                Ok(Plan { conditions: vec![drive.unchanged()], changes: vec![drive.put()?], answer: drive.record })
            })
        };
        self.store.once(request, plan).await
    }

    /// Says the same of all drives of a node at once, but for those that are out: these are set one by one.
    pub async fn set_node_state(&self, request: &Request, name: &Name, state: DriveState) -> Result<Vec<Drive>, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let node = self.store.need::<Node>(keys::node(name), name).await?;
                let drives = self.store.all::<Drive>(keys::all("drive")).await?;
                let is_meant = |drive: &Drive| drive.node == *name && drive.state != DriveState::Out;
                let (mut conditions, mut changes, mut answer) = (vec![node.unchanged()], Vec::new(), Vec::new());
                for mut drive in drives.into_iter().filter(|drive| is_meant(&drive.record)) {
                    drive.record.state = state;
                    conditions.push(drive.unchanged());
                    changes.push(drive.put()?);
                    answer.push(drive.record);
                }
                if answer.len() > NODE_DRIVES_MAX {
                    let why = format!("node {name} has {} drives: set them one by one", answer.len());
                    return Err(Error::Impossible(why));
                }
                Ok(Plan { conditions, changes, answer })
            })
        };
        self.store.once(request, plan).await
    }

    /// Says where the target of a drive listens by now. Refused where what listens there lacks what volumes have on the drive:
    /// then the subsystem is another drive by the same name, and namespaces would be made, and looked for, on the wrong one.
    pub async fn move_drive(&self, request: &Request, name: &Name, address: &Address) -> Result<Drive, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let mut drive = self.store.need::<Drive>(keys::drive(name), name).await?;
                drive.record.address = address.clone();
                let volumes = self.store.all::<Volume>(keys::all("volume")).await?;
                let place = place_of(&drive.record);
                let look = self.look(&place).await.map_err(|source| drive_failed(&place, source))?;
                let there: BTreeSet<_> = look.namespaces.iter().map(|namespace| namespace.uid).collect();
                for volume in volumes.iter().map(|stored| &stored.record) {
                    // What is being made or deleted may be there or not.
                    let mut here = volume.everywhere().filter(|holder| holder.drive == *name);
                    let lost = |namespace: Namespace| !there.contains(&namespace.uid);
                    if volume.state == VolumeState::Ready && here.any(|holder| holder.namespace.is_some_and(lost)) {
                        let what =
                            format!("what volume {} of tenant {} has on drive {name}", volume.name, volume.tenant);
                        let why = format!("{} at {address} has not {what}: it is another drive", place.nqn);
                        return Err(Error::Impossible(why));
                    }
                }
                Ok(Plan { conditions: vec![drive.unchanged()], changes: vec![drive.put()?], answer: drive.record })
            })
        };
        self.store.once(request, plan).await
    }

    /// Forgets a drive that has no holders. Its foreign namespaces stay there.
    pub async fn remove_drive(&self, request: &Request, name: &Name) -> Result<(), Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let drive = self.store.need::<Drive>(keys::drive(name), name).await?;
                if drive.record.holders > 0 {
                    let by = format!("{} holders of volumes", drive.record.holders);
                    return Err(Error::InUse { kind: "drive", name: name.clone(), by });
                }
                let mut node = self.store.need::<Node>(keys::node(&drive.record.node), &drive.record.node).await?;
                node.record.drives = node.record.drives.saturating_sub(1);
                let gone = [keys::drive(name), keys::subsystem(&drive.record.nqn)].map(Change::delete);
                let changes = gone.into_iter().chain([node.put()?]).collect();
                Ok(Plan { conditions: vec![drive.unchanged(), node.unchanged()], changes, answer: () })
            })
        };
        self.store.once(request, plan).await
    }
}

fn record(new: &NewDrive, look: &Look) -> Drive {
    Drive {
        name: new.name.clone(),
        node: new.node.clone(),
        address: new.address.clone(),
        nqn: new.nqn.clone(),
        state: DriveState::InUse,
        total: look.total,
        thin: look.thin,
        foreign: look.namespaces.clone(),
        promised: 0,
        holders: 0,
    }
}
