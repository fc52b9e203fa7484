//! Drives that are draining or out are emptied: each holder on them is replaced elsewhere, by an operation of its own. Nothing is
//! kept of that beside the drives' states: so it goes on after a crash, and ends when a drive is in use again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;
use uuid::Uuid;

use super::error::Error;
use super::keys;
use super::name::Name;
use super::plan::Owner;
use super::provisioner::{PAGE_RECORDS_MAX, Provisioner};
use super::records::{Drive, DriveState, HolderKind, Operation, OperationKind, Volume, VolumeState};
use super::replacement::Looks;
use super::store::Stored;

/// Replacements at a time, off drives that are out and off others apart: what is lost does not wait for those that can't go on.
/// Chosen: hosts fill so many replicas at once, beside what they do.
const AT_A_TIME_MAX: usize = 4;
/// Before another try for the same holder. Chosen: room is made, or a replica in sync again, within minutes; and a try may make a
/// namespace in vain.
const AGAIN_PAUSE: Duration = Duration::from_secs(60);

/// A holder that a volume has on a drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HolderOn {
    /// Whose volume.
    pub tenant: Name,
    /// Which volume.
    pub volume: Name,
    /// The slot.
    pub slot: usize,
    /// What it holds.
    pub kind: HolderKind,
    /// Its bytes.
    pub bytes: u64,
    /// Whether another holder has taken its place, so that it is there until that one is in sync.
    pub is_former: bool,
    /// The operation that is under way on the volume.
    pub operation: Option<Uuid>,
    /// Of a drive that is to be empty: why the holder is there still.
    pub waits: Option<String>,
}

impl Provisioner {
    /// The holders on a drive, a page of them at most.
    pub async fn holders_on(&self, name: &Name) -> Result<Vec<HolderOn>, Error> {
        let drive = self.store.need::<Drive>(keys::drive(name), name).await?.record;
        // What is on a drive in use is to go nowhere.
        let inventory = match drive.state {
            DriveState::InUse => None,
            DriveState::Draining | DriveState::Out => Some(self.inventory().await?),
        };
        let (looks, mut found) = (Looks::new(), Vec::new());
        for Stored { record: volume, .. } in self.store.all::<Volume>(keys::all("volume")).await? {
            let count = volume.holders.len();
            let here = volume.everywhere().enumerate().filter(|(_, holder)| holder.drive == *name);
            for (at, holder) in here {
                if found.len() == PAGE_RECORDS_MAX {
                    return Ok(found);
                }
                let beside = at.checked_sub(count).map(|index| &volume.beside[index]);
                let waits = match (volume.operation, &inventory) {
                    (Some(id), _) => {
                        self.store.get::<Operation>(keys::operation(id)).await?.and_then(|it| it.record.waits)
                    }
                    (None, None) => None,
                    (None, _) if beside.is_some() => {
                        Some("another holder has its place, and is not in sync yet".into())
                    }
                    (None, Some(inventory)) => {
                        let owner = Owner { name: volume.tenant.clone(), id: None };
                        let planned = self.replacement(&owner, (&volume.name, name), inventory, &looks, true).await;
                        planned.err().map(|error| error.to_string())
                    }
                };
                found.push(HolderOn {
                    tenant: volume.tenant.clone(),
                    volume: volume.name.clone(),
                    slot: beside.map_or(at, |beside| beside.slot),
                    kind: holder.kind,
                    bytes: holder.bytes,
                    is_former: beside.is_some_and(|beside| !beside.is_new),
                    operation: volume.operation,
                    waits,
                });
            }
        }
        Ok(found)
    }
}

/// Begins what can be begun. `tried`: when each holder that was tried may be tried again.
pub(super) async fn round(
    provisioner: &Provisioner,
    tried: &mut BTreeMap<(Name, Name, usize), Instant>,
) -> Result<(), Error> {
    let store = &provisioner.store;
    let mut drives = store.all::<Drive>(keys::all("drive")).await?;
    let is_lost = |drive: &&Stored<Drive>| drive.record.state == DriveState::Out;
    let lost: BTreeSet<Name> = drives.iter().filter(is_lost).map(|drive| drive.record.name.clone()).collect();
    drives.retain(|drive| drive.record.state != DriveState::InUse && drive.record.holders > 0);
    if drives.is_empty() {
        return Ok(());
    }
    // What is lost comes first: its volumes have a copy fewer.
    drives.sort_by_key(|drive| drive.record.state != DriveState::Out);
    let volumes = store.all::<Volume>(keys::all("volume")).await?;
    // Off drives that are not out, and off those that are.
    let mut at_work = [0; 2];
    for volume in volumes.iter().map(|volume| &volume.record).filter(|volume| !volume.beside.is_empty()) {
        let Some(id) = volume.operation else { continue };
        let pending = store.get::<Operation>(keys::operation(id)).await?.map(|pending| pending.record);
        if let Some(Operation { kind: OperationKind::Replace, slot: Some(slot), .. }) = pending {
            let beside = volume.beside.iter().filter(|beside| beside.slot == slot).map(|beside| &beside.holder);
            let is_lost = beside.chain(volume.holders.get(slot)).any(|holder| lost.contains(&holder.drive));
            at_work[usize::from(is_lost)] += 1;
        }
    }
    let (looks, now) = (Looks::new(), Instant::now());
    tried.retain(|_, again| *again > now);
    let is_idle = |volume: &Volume| volume.state == VolumeState::Ready && volume.operation.is_none();
    for Drive { name, .. } in drives.iter().map(|drive| &drive.record) {
        for volume in volumes.iter().map(|volume| &volume.record).filter(|volume| is_idle(volume)) {
            let Some(slot) = volume.holders.iter().position(|holder| holder.drive == *name) else { continue };
            let which = (volume.tenant.clone(), volume.name.clone(), slot);
            let at_work = &mut at_work[usize::from(lost.contains(name))];
            if *at_work >= AT_A_TIME_MAX || tried.contains_key(&which) {
                continue;
            }
            let owner = Owner { name: volume.tenant.clone(), id: None };
            match provisioner.drain_holder(&owner, &volume.name, name, &looks).await {
                Ok(_) => *at_work += 1,
                // Another worker was quicker, or the volume's owner.
                Err(Error::Busy { .. } | Error::NotFound { .. }) => continue,
                Err(error @ Error::Catalogue(_)) => return Err(error),
                Err(why) => {
                    let Volume { name: volume, tenant, .. } = volume;
                    tracing::warn!(%tenant, %volume, slot, drive = %name, "a holder is not replaced yet: {why}");
                }
            }
            tried.insert(which, now + AGAIN_PAUSE);
        }
    }
    Ok(())
}
