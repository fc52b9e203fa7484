//! Holders that are to be replaced: where the new one goes, and the operation that does it.

use std::collections::BTreeMap;

use tokio::sync::OnceCell;
use uuid::Uuid;

use super::drives::Look;
use super::error::Error;
use super::name::Name;
use super::placement::{self, Wanted};
use super::plan::{Inventory, Owner, begin_on, count, operation, promise};
use super::provisioner::Provisioner;
use super::records::{Beside, Drive, DriveState, Holder, HolderKind, Operation, OperationKind, Volume};
use super::store::{Plan, Planning, Request, Stored};

/// Looks at drives, made once for all attempts.
pub(super) type Looks = OnceCell<BTreeMap<Name, Result<Look, String>>>;

impl Provisioner {
    /// Begins to replace the holder that a volume has on a drive by one on another drive, as far apart from the others as the
    /// volume was placed; the answer is the operation's id. The room is promised at once.
    pub async fn replace_holder(
        &self,
        request: &Request,
        owner: &Owner,
        volume: &Name,
        drive: &Name,
    ) -> Result<Uuid, Error> {
        let looks = Looks::new();
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let inventory = self.inventory().await?;
                self.replacement(owner, (volume, drive), &inventory, &looks, false).await
            })
        };
        self.operate(request, plan).await
    }

    /// The same for a drive that is to be empty.
    pub(super) async fn drain_holder(
        &self,
        owner: &Owner,
        volume: &Name,
        drive: &Name,
        looks: &Looks,
    ) -> Result<Uuid, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let inventory = self.inventory().await?;
                self.replacement(owner, (volume, drive), &inventory, looks, true).await
            })
        };
        self.operate(&Request::unnamed(), plan).await
    }

    pub(super) async fn replacement(
        &self,
        owner: &Owner,
        (name, drive): (&Name, &Name),
        inventory: &Inventory,
        looks: &Looks,
        drains: bool,
    ) -> Result<Plan<Uuid>, Error> {
        let mut tenant = owner.record(self).await?;
        let mut volume: Stored<Volume> = self.idle(owner, name).await?;
        let missing = || Error::NotFound { kind: "holder", name: format!("of volume {name} on drive {drive}") };
        let slot = volume.record.holders.iter().position(|holder| holder.drive == *drive).ok_or_else(missing)?;
        let state = inventory.drive(drive).map_or(DriveState::Out, |drive| drive.record.state);
        check(&volume.record, slot, state)?;
        // Nobody's own wish: it is counted, and not refused.
        match drains {
            true => tenant.record.pending += 1,
            false => count(&mut tenant)?,
        }
        let in_use = |drive: &&Stored<Drive>| drive.record.state == DriveState::InUse;
        let looks = looks.get_or_init(|| self.look_at(inventory.drives.iter().filter(in_use))).await;
        let Holder { kind, bytes, .. } = volume.record.holders[slot];
        let wanted = wanted(&volume.record, slot, inventory.overcommit_percent());
        let placed = placement::place(&inventory.candidates(looks), &wanted)?;
        let new = placed.drives.into_iter().next().ok_or_else(missing)?;
        // It is made, it is in sync, and what had the slot goes.
        let former = volume.record.beside.iter().filter(|beside| beside.slot == slot).count() as u32;
        let made = operation(OperationKind::Replace, &tenant.record, name, 3 + former);
        let made = Operation { slot: Some(slot), drains, ..made };
        volume.record.beside.push(Beside { slot, is_new: true, holder: Holder::new(kind, new.clone(), bytes) });
        volume.record.operation = Some(made.id);
        let mut plan = begin_on(&made, &tenant, &volume)?;
        promise(&mut plan, inventory, std::iter::once((new, bytes)), 1)?;
        Ok(plan)
    }
}

/// Whether a holder can be replaced without the loss of what only it has. What is on a drive that is out is lost already.
fn check(volume: &Volume, slot: usize, state: DriveState) -> Result<(), Error> {
    let Holder { kind, drive, .. } = &volume.holders[slot];
    let replicas = volume.holders.iter().filter(|holder| holder.kind == HolderKind::Replica).count();
    if *kind == HolderKind::Replica && replicas == 1 {
        return Err(Error::Impossible(format!(
            "volume {} has one replica, and no other from which a new one could be filled: make a volume of a snapshot of it, which \
             is on the same drive, or copy it to a volume with more replicas, and delete this one",
            volume.name
        )));
    }
    if state == DriveState::Out {
        return Ok(());
    }
    for snapshot in &volume.snapshots {
        let by = match snapshot.clones.first() {
            Some(clone) => format!("operation {clone}, which makes a volume of it"),
            None if snapshot.moment.slots == 1 << slot => format!("drive {drive}, which has the only copy of it"),
            None => continue,
        };
        return Err(Error::InUse { kind: "snapshot", name: snapshot.name.clone(), by });
    }
    Ok(())
}

fn wanted(volume: &Volume, slot: usize, overcommit_percent: u32) -> Wanted {
    let Holder { kind, drive, bytes, .. } = &volume.holders[slot];
    let others = volume.holders.iter().enumerate().filter(|(other, _)| *other != slot);
    let former = volume.beside.iter().map(|beside| beside.holder.drive.clone());
    Wanted {
        holders: vec![(*kind, *bytes)],
        beside: others.map(|(_, holder)| holder.drive.clone()).collect(),
        without: former.chain([drive.clone()]).collect(),
        level: volume.level,
        relax: false,
        overcommit_percent,
    }
}
