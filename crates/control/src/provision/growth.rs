//! What is changed of a volume that is there: its size, and how much it may be used.

use tokio::sync::OnceCell;
use uuid::Uuid;

use super::create::{check_bytes, check_limits, check_most};
use super::error::Error;
use super::moment::Limits;
use super::name::Name;
use super::placement;
use super::plan::{Inventory, Owner, admit, begin_on, operation, promise};
use super::provisioner::Provisioner;
use super::records::{HolderKind, OperationKind, Volume};
use super::store::{Plan, Planning, Request};
use super::volumes::VolumeView;

impl Provisioner {
    /// Begins to make a volume larger, also while a host has it attached; the answer is the operation's id. The room is promised at
    /// once.
    pub async fn grow_volume(&self, request: &Request, owner: &Owner, name: &Name, bytes: u64) -> Result<Uuid, Error> {
        check_bytes(bytes)?;
        let looks = OnceCell::new();
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let mut tenant = owner.record(self).await?;
                let mut volume = self.idle(owner, name).await?;
                check_growth(&volume.record, bytes)?;
                admit(&mut tenant, bytes - volume.record.bytes, 0)?;
                let inventory = self.inventory().await?;
                let own = inventory
                    .drives
                    .iter()
                    .filter(|drive| volume.record.holders.iter().any(|holder| holder.drive == drive.record.name));
                let looks = looks.get_or_init(|| self.look_at(own)).await;
                let wanted = self.widened(&mut volume.record, bytes);
                check_room(&volume.record, &inventory, &inventory.candidates(looks), &wanted)?;
                let mut operation = operation(OperationKind::Grow, &tenant.record, name, wanted.len() as u32 + 1);
                operation.bytes = Some(bytes);
                volume.record.operation = Some(operation.id);
                let mut plan = begin_on(&operation, &tenant, &volume)?;
                promise(&mut plan, &inventory, wanted.into_iter(), 0)?;
                Ok(plan)
            })
        };
        self.operate(request, plan).await
    }

    /// Says what each replica is to have, and what that is more on each drive.
    fn widened(&self, volume: &mut Volume, bytes: u64) -> Vec<(Name, u64)> {
        let mut wanted = Vec::new();
        for holder in volume.holders.iter_mut().filter(|holder| holder.kind == HolderKind::Replica) {
            let more = self.drives.holder_bytes(HolderKind::Replica, bytes).saturating_sub(holder.bytes);
            if more > 0 {
                holder.bytes += more;
                wanted.push((holder.drive.clone(), more));
            }
        }
        wanted
    }

    /// Says anew how much a volume may be used. The host that has it attached is told when it asks next.
    pub async fn set_limits(
        &self,
        request: &Request,
        owner: &Owner,
        name: &Name,
        limits: Limits,
    ) -> Result<VolumeView, Error> {
        check_limits(&limits)?;
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                owner.record(self).await?;
                let mut volume = self.there(owner, name).await?;
                volume.record.limits = limits;
                Ok(Plan { conditions: vec![volume.unchanged()], changes: vec![volume.put()?], answer: () })
            })
        };
        self.store.once(request, plan).await?;
        self.volume(owner, name).await
    }
}

fn check_growth(volume: &Volume, bytes: u64) -> Result<(), Error> {
    if bytes < volume.bytes {
        let why = format!("volume {} has {} bytes, and does not shrink to {bytes}", volume.name, volume.bytes);
        return Err(Error::Impossible(why));
    }
    check_most(volume, bytes)
}

/// Whether each drive has the room; one that is gone for good needs none.
fn check_room(
    volume: &Volume,
    inventory: &Inventory,
    candidates: &[placement::Candidate],
    wanted: &[(Name, u64)],
) -> Result<(), Error> {
    let percent = inventory.overcommit_percent();
    let mut lacks = Vec::new();
    for (drive, more) in wanted {
        let Some(candidate) = candidates.iter().find(|candidate| candidate.drive.name == *drive) else { continue };
        match placement::check_growth(candidate, *more, percent) {
            Ok(()) | Err(placement::Rule::Out) => {}
            Err(rule) => lacks.push((drive.clone(), rule)),
        }
    }
    if lacks.is_empty() { Ok(()) } else { Err(Error::NoRoomToGrow { volume: volume.name.clone(), drives: lacks }) }
}
