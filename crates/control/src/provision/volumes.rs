//! Volumes: made and deleted by operations, attached and detached at once.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::catalogue::Transaction;

use super::error::Error;
use super::keys;
use super::level::Level;
use super::moment::{Limits, Snapshot, Source};
use super::name::{Address, Name, Nqn};
use super::plan::{Owner, begin_on, count, operation};
use super::provisioner::{List, PAGE_RECORDS_MAX, Provisioner};
use super::records::{Attachment, Drive, Holder, HolderKind, Namespace, Operation, OperationKind, Volume, VolumeState};
use super::snapshots::is_whole;
use super::store::{Plan, Planning, Request, Stored, now};

/// How long a host waits until the control plane lets go of a volume that it has attached itself, to fill a new holder. Chosen: a
/// few times what is done there at a time.
const HELD_TIME: Duration = Duration::from_secs(30);
/// Between two looks at that.
const HELD_PAUSE: Duration = Duration::from_millis(200);

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
    /// How much it may be used.
    pub limits: Limits,
    /// The snapshot of which it has a part, and no copy is left: hosts get it by force alone. None: it is whole.
    #[serde(default)]
    pub part: Option<Name>,
    /// The names of its snapshots.
    pub snapshots: Vec<Name>,
    /// The snapshot that it was made of, which may be gone; none: it was made empty, or that is unknown, since records of versions
    /// before 4 did not say so.
    #[serde(default)]
    pub from: Option<Source>,
    /// Since when it is there, in seconds of the Unix epoch.
    pub created: u64,
}

impl Provisioner {
    /// Begins to delete a volume; the answer is the operation's id. By force also one that a host is meant to use, or uses, with
    /// its snapshots, and in the place of what is under way on the volume.
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
                let mut volume = self.known(owner, name).await?;
                let instead_of = self.giving_way(&volume.record, force).await?;
                // What is being made of a snapshot needs it, whoever says force.
                let is_needed = |snapshot: &&Snapshot| !(force || snapshot.temporary) || !snapshot.clones.is_empty();
                let needed = volume.record.snapshots.iter().filter(is_needed);
                let needed: Vec<_> = needed.map(|snapshot| snapshot.name.as_str()).collect();
                if !needed.is_empty() {
                    let by = format!("its snapshots: {}", needed.join(", "));
                    return Err(Error::InUse { kind: "volume", name: name.clone(), by });
                }
                if let Some(attachment) = volume.record.attachment.take().filter(|_| !force) {
                    return Err(Error::Attached { volume: name.clone(), host: attachment.host });
                }
                count(&mut tenant)?;
                let steps = volume.record.holders.len() as u32;
                let operation = operation(OperationKind::Delete, &tenant.record, name, steps);
                let operation = Operation { force, instead_of, ..operation };
                (volume.record.state, volume.record.operation) = (VolumeState::Deleting, Some(operation.id));
                begin_on(&operation, &tenant, &volume)
            })
        };
        self.operate(request, plan).await
    }

    /// Writes down that a host is meant to use the volume, and answers with what the host needs. By force also where another one
    /// is, and where the volume is a part of a snapshot that is lost. Where the same host is, the new attachment is in the place of
    /// the former one.
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
                let mut volume = self.usable(owner, name).await?;
                let present = volume.record.attachment.take();
                let instead_of = present.as_ref().map(|present| present.host.clone());
                if let Some(present) = instead_of.clone().filter(|present| present != host && !force) {
                    return Err(Error::Attached { volume: name.clone(), host: present });
                }
                if !force {
                    is_whole(&volume.record)?;
                }
                let id = Uuid::new_v4();
                // A record that was written before there were tenures has none.
                let own = present.filter(|present| present.host == *host && !present.tenure.is_nil());
                let tenure = own.map_or(id, |own| own.tenure);
                let (host, since) = (host.clone(), now());
                volume.record.attachment = Some(Attachment { id, host, since, instead_of, tenure });
                Ok(Plan { conditions: vec![volume.unchanged()], changes: vec![volume.put()?], answer: id })
            })
        };
        let until = Instant::now() + HELD_TIME;
        let id = loop {
            let attached = self.store.once(request, plan).await;
            if let Err(Error::Busy { operation, .. }) = &attached
                && Instant::now() < until
                && self.awaits(owner, name, *operation).await?
            {
                sleep(HELD_PAUSE).await;
                continue;
            }
            break attached?;
        };
        // Not as it was when the request was first made: its holders may be others by now.
        let volume = self.volume(owner, name).await?;
        match &volume.attachment {
            Some(attachment) if attachment.id == id => Ok(volume),
            _ => Err(Error::NotAttached { volume: name.clone() }),
        }
    }

    /// Whether the volume is held for what can be put off, which is told that a host waits.
    async fn awaits(&self, owner: &Owner, name: &Name, operation: Uuid) -> Result<bool, Error> {
        let pending = self.store.need::<Operation>(keys::operation(operation), operation).await?.record;
        let mut volume = self.known(owner, name).await?;
        if pending.kind == OperationKind::Replace && volume.record.held && !volume.record.awaited {
            let unchanged = volume.unchanged();
            volume.record.awaited = true;
            // Whoever was quicker has changed what is looked at again.
            let _ = self.store.catalogue.commit(Transaction::new(vec![unchanged], vec![volume.put()?])?).await?;
        }
        Ok(pending.kind == OperationKind::Replace)
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
                let mut volume = self.there(owner, name).await?;
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
        let volume = self.known(owner, name).await?;
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

    /// Operations behind that id; a tenant's only if they are that tenant's own.
    pub async fn operations(&self, tenant: Option<Uuid>, after: Option<Uuid>) -> Result<List<Operation>, Error> {
        let mut after = after.map(keys::operation);
        loop {
            let (found, more) = self.store.page::<Operation>(keys::all("operation"), after, PAGE_RECORDS_MAX).await?;
            after = found.last().map(|last| keys::operation(last.record.id));
            let is_own = |operation: &Operation| tenant.is_none_or(|tenant| tenant == operation.tenant_id);
            let items: Vec<_> = found.into_iter().map(|stored| stored.record).filter(is_own).collect();
            // A page of others alone says nothing of where to go on.
            if !items.is_empty() || !more {
                return Ok(List { items, more });
            }
        }
    }

    /// The volume, whatever is done to it.
    pub(super) async fn known(&self, owner: &Owner, name: &Name) -> Result<Stored<Volume>, Error> {
        self.store.need::<Volume>(keys::volume(&owner.name, name), name).await
    }

    /// The volume, which hosts know: it is neither being made nor being deleted.
    pub(super) async fn there(&self, owner: &Owner, name: &Name) -> Result<Stored<Volume>, Error> {
        let volume = self.known(owner, name).await?;
        match (volume.record.state, volume.record.operation) {
            (state, Some(operation)) if state != VolumeState::Ready => Err(busy(&volume.record, operation)),
            _ => Ok(volume),
        }
    }

    /// The same, and the control plane does not have it attached itself.
    async fn usable(&self, owner: &Owner, name: &Name) -> Result<Stored<Volume>, Error> {
        let volume = self.there(owner, name).await?;
        match (volume.record.held, volume.record.operation) {
            (true, Some(operation)) => Err(busy(&volume.record, operation)),
            _ => Ok(volume),
        }
    }

    /// The volume, on which nothing is under way.
    pub(super) async fn idle(&self, owner: &Owner, name: &Name) -> Result<Stored<Volume>, Error> {
        let volume = self.known(owner, name).await?;
        match volume.record.operation {
            Some(operation) => Err(busy(&volume.record, operation)),
            None => Ok(volume),
        }
    }

    /// What is under way on a volume that is to be deleted, and gives way to that: by force all that may wait for ever for holders
    /// that are lost.
    async fn giving_way(&self, volume: &Volume, force: bool) -> Result<Option<Uuid>, Error> {
        use OperationKind::{Clone, Create, Delete, Forget, Grow, Replace, Restore, Snapshot};
        let Some(id) = volume.operation else { return Ok(None) };
        let pending = self.store.need::<Operation>(keys::operation(id), id).await?.record;
        match pending.kind {
            Grow | Snapshot | Forget | Replace | Restore | Delete if force && !pending.force => Ok(Some(id)),
            Grow | Snapshot | Forget | Replace | Restore | Delete | Create | Clone => Err(busy(volume, id)),
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
        let Volume {
            id, tenant, name, bytes, state, level, attachment, operation, created, limits, from, part, ..
        } = volume;
        let snapshots = volume.snapshots.into_iter().map(|snapshot| snapshot.name).collect();
        Ok(VolumeView {
            id,
            tenant,
            name,
            bytes,
            state,
            level,
            holders,
            attachment,
            operation,
            limits,
            part,
            snapshots,
            from,
            created,
        })
    }
}

/// That the operation is under way on the volume.
pub(super) fn busy(volume: &Volume, operation: Uuid) -> Error {
    Error::Busy { volume: volume.name.clone(), state: volume.state, operation }
}
