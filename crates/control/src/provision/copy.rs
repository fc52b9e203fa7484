//! A holder that is a clone of a snapshot's copy on the same drive. The drive knows the clone by a tag that is the operation's and
//! slot's own, so that to ask again makes no second one.

use tokio::time::sleep;
use uuid::Uuid;

use super::drive::{Made, delete, give_up, is_out, said, still_there, taken};
use super::drives::{DriveError, Replica};
use super::keys;
use super::moment::Moment;
use super::records::{Namespace, Operation, Volume};
use super::step::{Stop, Task};
use super::temporary::LOOK_PAUSE;

/// How often a clone is asked for whose answers are lost each time. Chosen: who fails so often fails.
const ATTEMPTS_MAX: u32 = 3;

/// What a drive knows the clone by: never the same for two slots, or two operations.
fn tag(task: &Task, slot: usize) -> Uuid {
    Uuid::from_u128(task.operation.record.id.as_u128() ^ slot as u128)
}

/// The volume that a clone is made of, as its holders know it.
pub(super) async fn origin(task: &Task) -> Result<Option<Uuid>, Stop> {
    let Operation { from, tenant, .. } = &task.operation.record;
    let Some(from) = from else { return Ok(None) };
    let volume = task.provisioner.store.get::<Volume>(keys::volume(tenant, from)).await?;
    Ok(volume.map(|volume| volume.record.id))
}

/// The snapshot that the volume is made of, with the volume that it is of.
async fn snapshot(task: &Task) -> Result<Option<(Uuid, Moment)>, Stop> {
    let Operation { from, tenant, snapshot, .. } = &task.operation.record;
    let Some(from) = from else { return Ok(None) };
    let Some(volume) = task.provisioner.store.get::<Volume>(keys::volume(tenant, from)).await? else { return Ok(None) };
    let found = volume.record.snapshots.iter().find(|found| Some(&found.name) == snapshot.as_ref());
    Ok(found.map(|found| (volume.record.id, found.moment)))
}

/// The copy that the slot is made of; none: its drive, or the snapshot, is gone.
async fn source(task: &Task, slot: usize, namespace: Namespace) -> Result<Option<Replica>, Stop> {
    let Some((volume, moment)) = snapshot(task).await? else { return Ok(None) };
    Ok(task.place(slot).await?.map(|place| Replica { place, namespace, volume, moment }))
}

/// The snapshot that was to be taken for the clone is there, and it is known which replicas have a copy: a holder that was to be
/// beside a replica that has none is made blank. Nothing of the clone is made, or undone, before that.
pub(super) async fn snapshot_taken(task: &mut Task) -> Result<Made, Stop> {
    let Some(take) = task.operation.record.with else { return Ok(Ok(())) };
    // First this, then the volume: with its end the snapshot is there.
    let take = task.provisioner.store.get::<Operation>(keys::operation(take)).await?.map(|take| take.record);
    if let Some(Operation { ended: None, id, waits, .. }) = take {
        let why = waits.map(|why| format!(": {why}")).unwrap_or_default();
        let what = format!("operation {id} takes a snapshot of the volume that it is made of{why}");
        return match task.wait(what).await {
            Stop::Later(_) => Err(Stop::Later(LOOK_PAUSE)),
            stop => Err(stop),
        };
    }
    let Some(moment) = snapshot(task).await?.map(|(_, moment)| moment) else {
        let why = take.and_then(|take| take.undo).unwrap_or_else(|| "it is gone already".to_owned());
        return Ok(Err(format!("the snapshot that it was to be made of was not taken: {why}")));
    };
    let holders = task.volume.record.holders.iter_mut().enumerate();
    holders.filter(|(slot, _)| !moment.has(*slot)).for_each(|(_, holder)| holder.copy_of = None);
    if task.volume.record.holders.iter().all(|holder| holder.copy_of.is_none()) {
        return Ok(Err("no replica beside which it was to be made has a copy of the snapshot".to_owned()));
    }
    (task.operation.record.with, task.operation.record.waits) = (None, None);
    task.record(Vec::new(), Vec::new()).await?;
    Ok(Ok(()))
}

/// Makes the clone, and writes down which namespace it is.
pub(super) async fn copy(task: &mut Task, slot: usize, namespace: Namespace) -> Result<Made, Stop> {
    let Some(replica) = source(task, slot, namespace).await? else { return Ok(Err(is_out(task, slot))) };
    if let Some(by) = task.claim(slot).await? {
        return give_up(task, taken(task, slot, by)).await;
    }
    let tag = tag(task, slot);
    for _ in 0..ATTEMPTS_MAX {
        match task.provisioner.drives.copy(&replica, tag, task.until()?).await {
            Ok(made) => {
                let holder = &mut task.volume.record.holders[slot];
                holder.namespace = Some(made);
                task.operation.record.done += 1;
                task.release().await?;
                return Ok(Ok(()));
            }
            Err(error @ DriveError::Unreachable(_)) => return give_up(task, said(task, slot, &error)).await,
            Err(error @ (DriveError::Refused(_) | DriveError::Foreign(_))) => return Ok(Err(said(task, slot, &error))),
            Err(DriveError::Unknown(_)) => sleep(task.provisioner.drives.late()).await,
        }
    }
    give_up(task, format!("{} does not say what came of a clone", super::drive::drive(task, slot))).await
}

/// Deletes the clone that was made and not written down.
pub(super) async fn uncopy(task: &mut Task, slot: usize) -> Result<(), Stop> {
    if let Some(place) = task.place(slot).await? {
        let mut is_asked = false;
        loop {
            match task.provisioner.drives.copied(&place, tag(task, slot)).await {
                Ok(None) => break,
                Ok(Some(_)) if is_asked => return Err(still_there(task, slot).await),
                Ok(Some(made)) => {
                    if let Err(error) = delete(task, &place, made).await? {
                        return Err(task.wait(said(task, slot, &error)).await);
                    }
                    is_asked = true;
                }
                Err(error) => return Err(task.wait(said(task, slot, &error)).await),
            }
        }
    }
    task.release().await
}
