//! Volumes: made and deleted by operations, attached and detached at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::catalogue::{Change, Condition, Value};

use super::drives::Look;
use super::error::Error;
use super::keys;
use super::name::{Address, Name, Nqn};
use super::placement::{self, Candidate, Placement, Wanted};
use super::provisioner::{List, PAGE_RECORDS_MAX, Provisioner, place_of};
use super::records::{
    Attachment, Drive, DriveState, Holder, HolderKind, Level, Namespace, Node, Operation, OperationKind,
    OperationState, Pool, Tenant, Volume, VolumeState,
};
use super::store::{Plan, Planning, Request, Stored, now, put};

/// A volume's size is a multiple of this. Derived: the largest block that drives commonly have.
pub const VOLUME_ALIGN: u64 = 4096;
/// Bytes of a volume, at most. Chosen: the largest for which a region of the mirror's log is still small (4 MiB).
pub const VOLUME_BYTES_MAX: u64 = 64 << 40;
/// Operations of a tenant that have not ended, at most. Chosen: as many as a script makes in a burst.
pub const PENDING_MAX: u32 = 64;
/// Replicas of a volume, at most. Derived: the mirror's.
pub const REPLICAS_MAX: u8 = 3;
/// Drives that are looked at at a time. Chosen: a connection each.
const LOOKS_MAX: usize = 32;

/// Whose volumes are meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The tenant's name.
    pub name: Name,
    /// The tenant's id, where the caller is the tenant.
    pub id: Option<Uuid>,
}

fn replicas() -> u8 {
    REPLICAS_MAX
}

/// A volume that is to be made.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The name that it gets.
    pub name: Name,
    /// Its size: a multiple of 4,096.
    pub bytes: u64,
    /// Copies of the data, 1 to 3; beside two there is a witness of a few blocks. Unless said: 3.
    #[serde(default = "replicas")]
    pub replicas: u8,
    /// How far apart its holders stand. Unless said: on different nodes.
    #[serde(default)]
    pub level: Level,
    /// Whether a narrower level will do where that can't be had.
    #[serde(default)]
    pub relax: bool,
}

/// A holder, with how it is reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HolderView {
    /// What it holds.
    pub kind: HolderKind,
    /// Its drive.
    pub drive: Name,
    /// Where the drive's target listens.
    pub address: Address,
    /// The drive's subsystem.
    pub nqn: Nqn,
    /// The namespace, while there is one.
    pub namespace: Option<Namespace>,
}

/// A volume, with all that a host needs to attach it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// What its holders know it by.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: Name,
    /// Its name.
    pub name: Name,
    /// Its size.
    pub bytes: u64,
    /// How far it is.
    pub state: VolumeState,
    /// How far apart its holders stand.
    pub level: Level,
    /// Its holders, by slot.
    pub holders: Vec<HolderView>,
    /// Who is meant to use it.
    pub attachment: Option<Attachment>,
    /// The operation that is under way.
    pub operation: Option<Uuid>,
    /// Since when it is there, in seconds of the Unix epoch.
    pub created: u64,
}

impl NewVolume {
    fn check(&self) -> Result<(), Error> {
        let NewVolume { bytes, replicas, .. } = *self;
        if bytes == 0 || bytes > VOLUME_BYTES_MAX {
            return Err(Error::Impossible(format!("a volume of {bytes} bytes: it has 4096 to {VOLUME_BYTES_MAX}")));
        }
        if !bytes.is_multiple_of(VOLUME_ALIGN) {
            let more = bytes.next_multiple_of(VOLUME_ALIGN);
            return Err(Error::Impossible(format!(
                "a volume of {bytes} bytes: the size is a multiple of {VOLUME_ALIGN}, say {more}"
            )));
        }
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            return Err(Error::Impossible(format!("a volume of {replicas} replicas: it has 1 to {REPLICAS_MAX}")));
        }
        Ok(())
    }
}

impl Owner {
    async fn record(&self, provisioner: &Provisioner) -> Result<Stored<Tenant>, Error> {
        let tenant = provisioner.store.need::<Tenant>(keys::tenant(&self.name), &self.name).await?;
        // The token was looked at a moment ago, and the tenant may have gone since and another have come.
        if self.id.is_some_and(|id| id != tenant.record.id) { Err(Error::Unauthenticated) } else { Ok(tenant) }
    }
}

/// What is read for a placement.
struct Inventory {
    pool: Option<Stored<Pool>>,
    nodes: Vec<Stored<Node>>,
    drives: Vec<Stored<Drive>>,
}

impl Inventory {
    fn drive(&self, name: &Name) -> Option<&Stored<Drive>> {
        self.drives.iter().find(|drive| drive.record.name == *name)
    }

    fn node(&self, name: &Name) -> Option<&Stored<Node>> {
        self.nodes.iter().find(|node| node.record.name == *name)
    }

    fn candidates(&self, looks: &BTreeMap<Name, Result<Look, String>>) -> Vec<Candidate> {
        let of = |drive: &Stored<Drive>| {
            let node = self.node(&drive.record.node)?.record.clone();
            let unseen = || Err("it was registered a moment ago".to_owned());
            let look = looks.get(&drive.record.name).cloned().unwrap_or_else(unseen);
            Some(Candidate { drive: drive.record.clone(), node, look })
        };
        self.drives.iter().filter_map(of).collect()
    }
}

impl Provisioner {
    /// Begins to make a volume; the answer is the operation's id. The volume is there at once, and its room is promised.
    pub async fn create_volume(&self, request: &Request, owner: &Owner, new: &NewVolume) -> Result<Uuid, Error> {
        new.check()?;
        let looks = OnceCell::new();
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let tenant = owner.record(self).await?;
                let key = keys::volume(&owner.name, &new.name);
                if self.store.get::<Volume>(key.clone()).await?.is_some() {
                    return Err(Error::Exists { kind: "volume", name: new.name.to_string() });
                }
                let tenant = admit(tenant, new)?;
                let inventory = self.inventory().await?;
                let looks = looks.get_or_init(|| self.look_at(&inventory.drives)).await;
                let wanted = self.wanted(new, inventory.pool.as_ref());
                let placement = placement::place(&inventory.candidates(looks), &wanted)?;
                let (volume, operation) = make(new, &tenant.record, &wanted, &placement);
                let mut plan = begin(&operation, &tenant)?;
                plan.conditions.push(Condition::absent(key.clone()));
                plan.changes.push(put(key, &volume)?);
                promise(&mut plan, &inventory, &volume)?;
                Ok(plan)
            })
        };
        let id = self.store.once(request, plan).await?;
        self.wake.notify_waiters();
        Ok(id)
    }

    /// Begins to delete a volume; the answer is the operation's id. By force also one that a host is meant to use, or uses.
    pub async fn delete_volume(
        &self,
        request: &Request,
        owner: &Owner,
        name: &Name,
        force: bool,
    ) -> Result<Uuid, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let mut tenant = owner.record(self).await?;
                let mut volume = self.idle(owner, name).await?;
                if let Some(attachment) = volume.record.attachment.take().filter(|_| !force) {
                    return Err(Error::Attached { volume: name.clone(), host: attachment.host });
                }
                count(&mut tenant)?;
                let steps = volume.record.holders.len() as u32;
                let operation = Operation { force, ..operation(OperationKind::Delete, &tenant.record, name, steps) };
                (volume.record.state, volume.record.operation) = (VolumeState::Deleting, Some(operation.id));
                let mut plan = begin(&operation, &tenant)?;
                plan.conditions.push(volume.unchanged());
                plan.changes.push(volume.put()?);
                Ok(plan)
            })
        };
        let id = self.store.once(request, plan).await?;
        self.wake.notify_waiters();
        Ok(id)
    }

    /// Writes down that a host is meant to use the volume, and answers with what the host needs. By force also where another one
    /// is; where the same host is the new attachment is in the place of the former one.
    pub async fn attach(
        &self,
        request: &Request,
        owner: &Owner,
        name: &Name,
        host: &Nqn,
        force: bool,
    ) -> Result<VolumeView, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                owner.record(self).await?;
                let mut volume = self.idle(owner, name).await?;
                let instead_of = volume.record.attachment.take().map(|present| present.host);
                if let Some(present) = instead_of.clone().filter(|present| present != host && !force) {
                    return Err(Error::Attached { volume: name.clone(), host: present });
                }
                let id = Uuid::new_v4();
                volume.record.attachment = Some(Attachment { id, host: host.clone(), since: now(), instead_of });
                Ok(Plan { conditions: vec![volume.unchanged()], changes: vec![volume.put()?], answer: id })
            })
        };
        let id = self.store.once(request, plan).await?;
        // Not as it was when the request was first made: its holders may be others by now.
        let volume = self.volume(owner, name).await?;
        match &volume.attachment {
            Some(attachment) if attachment.id == id => Ok(volume),
            _ => Err(Error::NotAttached { volume: name.clone() }),
        }
    }

    /// Writes down that the host of this attachment, or whoever it is by force, does not use the volume any more.
    pub async fn detach(
        &self,
        request: &Request,
        owner: &Owner,
        name: &Name,
        attachment: Option<Uuid>,
        force: bool,
    ) -> Result<VolumeView, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                owner.record(self).await?;
                let mut volume = self.idle(owner, name).await?;
                match (volume.record.attachment.take(), attachment) {
                    (Some(present), Some(id)) if present.id != id && !force => {
                        return Err(Error::NotAttached { volume: name.clone() });
                    }
                    (Some(present), None) if !force => {
                        return Err(Error::Attached { volume: name.clone(), host: present.host });
                    }
                    _ => {}
                }
                Ok(Plan { conditions: vec![volume.unchanged()], changes: vec![volume.put()?], answer: () })
            })
        };
        self.store.once(request, plan).await?;
        self.volume(owner, name).await
    }

    /// One volume.
    pub async fn volume(&self, owner: &Owner, name: &Name) -> Result<VolumeView, Error> {
        owner.record(self).await?;
        let volume = self.store.need::<Volume>(keys::volume(&owner.name, name), name).await?;
        self.view(volume.record, &mut BTreeMap::new()).await
    }

    /// The owner's volumes behind one of that name.
    pub async fn volumes(&self, owner: &Owner, after: Option<&Name>) -> Result<List<VolumeView>, Error> {
        owner.record(self).await?;
        let after = after.map(|name| keys::volume(&owner.name, name));
        let (found, more) =
            self.store.page::<Volume>(keys::below("volume", &owner.name), after, PAGE_RECORDS_MAX).await?;
        let (mut known, mut items) = (BTreeMap::new(), Vec::new());
        for volume in found {
            items.push(self.view(volume.record, &mut known).await?);
        }
        Ok(List { items, more })
    }

    /// An operation; a tenant's only if it is that tenant's own.
    pub async fn operation(&self, tenant: Option<Uuid>, id: Uuid) -> Result<Operation, Error> {
        let operation = self.store.need::<Operation>(keys::operation(id), id).await?.record;
        if tenant.is_some_and(|tenant| tenant != operation.tenant_id) {
            return Err(Error::NotFound { kind: "operation", name: id.to_string() });
        }
        Ok(operation)
    }

    /// The volume, on which nothing is under way.
    async fn idle(&self, owner: &Owner, name: &Name) -> Result<Stored<Volume>, Error> {
        let volume = self.store.need::<Volume>(keys::volume(&owner.name, name), name).await?;
        match volume.record.operation {
            Some(operation) => Err(Error::Busy { volume: name.clone(), state: volume.record.state, operation }),
            None => Ok(volume),
        }
    }

    async fn view(&self, volume: Volume, known: &mut BTreeMap<Name, Drive>) -> Result<VolumeView, Error> {
        let mut holders = Vec::new();
        for Holder { kind, drive, namespace, .. } in volume.holders {
            if !known.contains_key(&drive) {
                let record = self.store.need::<Drive>(keys::drive(&drive), &drive).await?.record;
                known.insert(drive.clone(), record);
            }
            let Drive { address, nqn, .. } = known[&drive].clone();
            holders.push(HolderView { kind, drive, address, nqn, namespace });
        }
        let Volume { id, tenant, name, bytes, state, level, attachment, operation, created, .. } = volume;
        Ok(VolumeView { id, tenant, name, bytes, state, level, holders, attachment, operation, created })
    }

    async fn inventory(&self) -> Result<Inventory, Error> {
        Ok(Inventory {
            pool: self.store.get(keys::pool()).await?,
            nodes: self.store.all(keys::all("node")).await?,
            drives: self.store.all(keys::all("drive")).await?,
        })
    }

    /// What the drives in use say of themselves, all asked at the same time.
    async fn look_at(&self, drives: &[Stored<Drive>]) -> BTreeMap<Name, Result<Look, String>> {
        let (mut asked, places) = (JoinSet::new(), Arc::new(Semaphore::new(LOOKS_MAX)));
        for drive in drives.iter().filter(|drive| drive.record.state == DriveState::InUse) {
            let (provisioner, places) = (self.clone(), places.clone());
            let (name, place) = (drive.record.name.clone(), place_of(&drive.record));
            asked.spawn(async move {
                // Nobody closes it.
                let _turn = places.acquire().await;
                (name, provisioner.look(&place).await.map_err(|error| error.to_string()))
            });
        }
        asked.join_all().await.into_iter().collect()
    }

    fn wanted(&self, new: &NewVolume, pool: Option<&Stored<Pool>>) -> Wanted {
        let bytes = |kind| (kind, self.drives.holder_bytes(kind, new.bytes));
        let mut holders = vec![bytes(HolderKind::Replica); usize::from(new.replicas)];
        // Of two neither could say alone that the other is behind.
        if new.replicas == 2 {
            holders.push(bytes(HolderKind::Witness));
        }
        let overcommit_percent = pool.map_or_else(Pool::default, |pool| pool.record.clone()).overcommit_percent;
        Wanted { holders, level: new.level, relax: new.relax, overcommit_percent }
    }
}

/// The tenant with the volume, if its limits allow that.
fn admit(mut tenant: Stored<Tenant>, new: &NewVolume) -> Result<Stored<Tenant>, Error> {
    count(&mut tenant)?;
    let record = &mut tenant.record;
    record.bytes = record.bytes.saturating_add(new.bytes);
    record.volumes = record.volumes.saturating_add(1);
    let (bytes, volumes) = (record.bytes, u64::from(record.volumes));
    let limits = [("bytes", record.quota_bytes, bytes), ("volumes", record.quota_volumes.map(u64::from), volumes)];
    for (unit, limit, wanted) in limits {
        if let Some(limit) = limit.filter(|limit| wanted > *limit) {
            return Err(Error::Quota { tenant: record.name.clone(), unit, limit, wanted });
        }
    }
    Ok(tenant)
}

/// One more operation of the tenant.
fn count(tenant: &mut Stored<Tenant>) -> Result<(), Error> {
    let Tenant { name, pending, .. } = &mut tenant.record;
    if *pending >= PENDING_MAX {
        return Err(Error::TooMany { tenant: name.clone(), pending: *pending });
    }
    *pending += 1;
    Ok(())
}

fn operation(kind: OperationKind, tenant: &Tenant, volume: &Name, steps: u32) -> Operation {
    Operation {
        id: Uuid::new_v4(),
        kind,
        tenant: tenant.name.clone(),
        tenant_id: tenant.id,
        volume: volume.clone(),
        state: OperationState::Pending,
        worker: None,
        at: None,
        undo: None,
        waits: None,
        force: false,
        done: 0,
        steps,
        began: now(),
        ended: None,
    }
}

fn make(new: &NewVolume, tenant: &Tenant, wanted: &Wanted, placement: &Placement) -> (Volume, Operation) {
    // Beside the namespaces: to format them.
    let operation = operation(OperationKind::Create, tenant, &new.name, placement.drives.len() as u32 + 1);
    let chosen = wanted.holders.iter().zip(&placement.drives);
    let holder = |(&(kind, bytes), drive): (&(HolderKind, u64), &Name)| Holder {
        kind,
        drive: drive.clone(),
        bytes,
        namespace: None,
    };
    let volume = Volume {
        id: Uuid::new_v4(),
        tenant: tenant.name.clone(),
        name: new.name.clone(),
        bytes: new.bytes,
        state: VolumeState::Creating,
        level: placement.level,
        holders: chosen.map(holder).collect(),
        attachment: None,
        operation: Some(operation.id),
        created: now(),
    };
    (volume, operation)
}

/// What every operation begins with.
fn begin(operation: &Operation, tenant: &Stored<Tenant>) -> Result<Plan<Uuid>, Error> {
    let todo = Change::put(keys::todo(operation.id), Value::default());
    let changes = vec![put(keys::operation(operation.id), operation)?, todo, tenant.put()?];
    Ok(Plan { conditions: vec![tenant.unchanged()], changes, answer: operation.id })
}

/// Promises the volume's room on its drives, if drives, nodes and policy are as they were read.
fn promise(plan: &mut Plan<Uuid>, inventory: &Inventory, volume: &Volume) -> Result<(), Error> {
    let policy = inventory.pool.as_ref();
    plan.conditions.push(policy.map_or_else(|| Condition::absent(keys::pool()), Stored::unchanged));
    for holder in &volume.holders {
        let Some(drive) = inventory.drive(&holder.drive) else { continue };
        let mut drive = drive.clone();
        drive.record.promised = drive.record.promised.saturating_add(holder.bytes);
        drive.record.holders += 1;
        plan.conditions.push(drive.unchanged());
        plan.changes.push(drive.put()?);
        plan.conditions.extend(inventory.node(&drive.record.node).map(Stored::unchanged));
    }
    Ok(())
}
