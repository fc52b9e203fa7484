//! What requests about volumes have in common: whose they are, what there is to place them on, and what every operation begins
//! with.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::catalogue::{Change, Condition, Value};

use super::drives::Look;
use super::error::Error;
use super::keys;
use super::name::Name;
use super::placement::Candidate;
use super::provisioner::{Provisioner, place_of};
use super::records::{Drive, Node, Operation, OperationKind, OperationState, Pool, Tenant, Volume};
use super::store::{Plan, Planning, Request, Stored, now, put};

/// Operations of a tenant that have not ended, at most. Chosen: as many as a script makes in a burst.
pub const PENDING_MAX: u32 = 64;
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

impl Owner {
    pub(super) async fn record(&self, provisioner: &Provisioner) -> Result<Stored<Tenant>, Error> {
        let tenant = provisioner.store.need::<Tenant>(keys::tenant(&self.name), &self.name).await?;
        // The token was looked at a moment ago, and the tenant may have gone since and another have come.
        if self.id.is_some_and(|id| id != tenant.record.id) { Err(Error::Unauthenticated) } else { Ok(tenant) }
    }
}

/// What is read for a placement.
pub(super) struct Inventory {
    pub(super) pool: Option<Stored<Pool>>,
    nodes: Vec<Stored<Node>>,
    pub(super) drives: Vec<Stored<Drive>>,
}

impl Inventory {
    /// How much of a thin drive's room may be promised, in percent of it.
    pub(super) fn overcommit_percent(&self) -> u32 {
        self.pool.as_ref().map_or_else(Pool::default, |pool| pool.record.clone()).overcommit_percent
    }

    pub(super) fn drive(&self, name: &Name) -> Option<&Stored<Drive>> {
        self.drives.iter().find(|drive| drive.record.name == *name)
    }

    fn node(&self, name: &Name) -> Option<&Stored<Node>> {
        self.nodes.iter().find(|node| node.record.name == *name)
    }

    pub(super) fn candidates(&self, looks: &BTreeMap<Name, Result<Look, String>>) -> Vec<Candidate> {
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
    pub(super) async fn inventory(&self) -> Result<Inventory, Error> {
        Ok(Inventory {
            pool: self.store.get(keys::pool()).await?,
            nodes: self.store.all(keys::all("node")).await?,
            drives: self.store.all(keys::all("drive")).await?,
        })
    }

    /// Writes down an operation, and wakes who goes on with it; the answer is the operation's id.
    pub(super) async fn operate<'a>(
        &self,
        request: &Request,
        plan: impl Fn() -> Planning<'a, Uuid>,
    ) -> Result<Uuid, Error> {
        let id = self.store.once(request, plan).await?;
        self.wake.notify_waiters();
        Ok(id)
    }

    /// What these drives say of themselves, all asked at the same time.
    pub(super) async fn look_at(
        &self,
        drives: impl Iterator<Item = &Stored<Drive>>,
    ) -> BTreeMap<Name, Result<Look, String>> {
        let (mut asked, places) = (JoinSet::new(), Arc::new(Semaphore::new(LOOKS_MAX)));
        for drive in drives {
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
}

/// The tenant with so many bytes and volumes more, if its limits allow that.
pub(super) fn admit(tenant: &mut Stored<Tenant>, bytes: u64, volumes: u32) -> Result<(), Error> {
    count(tenant)?;
    let record = &mut tenant.record;
    record.bytes = record.bytes.saturating_add(bytes);
    record.volumes = record.volumes.saturating_add(volumes);
    let (bytes, volumes) = (record.bytes, u64::from(record.volumes));
    let limits = [("bytes", record.quota_bytes, bytes), ("volumes", record.quota_volumes.map(u64::from), volumes)];
    for (unit, limit, wanted) in limits {
        if let Some(limit) = limit.filter(|limit| wanted > *limit) {
            return Err(Error::Quota { tenant: record.name.clone(), unit, limit, wanted });
        }
    }
    Ok(())
}

/// One more operation of the tenant.
pub(super) fn count(tenant: &mut Stored<Tenant>) -> Result<(), Error> {
    let Tenant { name, pending, .. } = &mut tenant.record;
    if *pending >= PENDING_MAX {
        return Err(Error::TooMany { tenant: name.clone(), pending: *pending });
    }
    *pending += 1;
    Ok(())
}

pub(super) fn operation(kind: OperationKind, tenant: &Tenant, volume: &Name, steps: u32) -> Operation {
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
        reason: None,
        waits: None,
        force: false,
        instead_of: None,
        bytes: None,
        snapshot: None,
        from: None,
        with: None,
        slot: None,
        drains: false,
        life: None,
        done: 0,
        steps,
        began: now(),
        ended: None,
    }
}

/// What every operation begins with.
pub(super) fn begin(operation: &Operation, tenant: &Stored<Tenant>) -> Result<Plan<Uuid>, Error> {
    let mut changes = Vec::from(beginning(operation)?);
    changes.push(tenant.put()?);
    Ok(Plan { conditions: vec![tenant.unchanged()], changes, answer: operation.id })
}

/// What an operation is begun by: its record, and that there is something to be done.
pub(super) fn beginning(operation: &Operation) -> Result<[Change; 2], Error> {
    let todo = Change::put(keys::todo(operation.id), Value::default());
    Ok([put(keys::operation(operation.id), operation)?, todo])
}

/// The same for a volume that is there, as it is written down with the operation.
pub(super) fn begin_on(
    operation: &Operation,
    tenant: &Stored<Tenant>,
    volume: &Stored<Volume>,
) -> Result<Plan<Uuid>, Error> {
    let mut plan = begin(operation, tenant)?;
    plan.conditions.push(volume.unchanged());
    plan.changes.push(volume.put()?);
    Ok(plan)
}

/// Promises more room on drives, if drives, nodes and policy are as they were read; and that many holders.
pub(super) fn promise<T>(
    plan: &mut Plan<T>,
    inventory: &Inventory,
    wanted: impl Iterator<Item = (Name, u64)>,
    holders: u32,
) -> Result<(), Error> {
    let policy = inventory.pool.as_ref();
    plan.conditions.push(policy.map_or_else(|| Condition::absent(keys::pool()), Stored::unchanged));
    for (name, bytes) in wanted {
        let Some(drive) = inventory.drive(&name) else { continue };
        let mut drive = drive.clone();
        drive.record.promised = drive.record.promised.saturating_add(bytes);
        drive.record.holders += holders;
        plan.conditions.push(drive.unchanged());
        plan.changes.push(drive.put()?);
        plan.conditions.extend(inventory.node(&drive.record.node).map(Stored::unchanged));
    }
    Ok(())
}
