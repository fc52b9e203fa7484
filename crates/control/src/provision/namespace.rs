//! Namespaces of holders: made, and deleted. Each is done on a drive that the operation has to itself, and each may be done again
//! after a crash at any point.

use tokio::time::sleep;
use uuid::Uuid;

use super::drive::{Made, delete, drive, give_up, is_out, look, said, still_there, taken};
use super::drives::{DriveError, Place};
use super::records::Namespace;
use super::step::{Stop, Task};

/// How often a create is sent to a drive whose answers are lost each time. Chosen: who fails so often fails.
const CREATES_MAX: u32 = 3;

/// Makes the namespace of a holder.
pub(super) async fn make(task: &mut Task, slot: usize) -> Result<Made, Stop> {
    let Some(place) = task.place(slot).await? else { return Ok(Err(is_out(task, slot))) };
    if let Some(by) = task.claim(slot).await? {
        return give_up(task, taken(task, slot, by)).await;
    }
    let before = match task.operation.record.at.as_ref().and_then(|at| at.before.clone()) {
        Some(before) => before,
        None => {
            let look = match look(task, &place).await {
                Ok(look) => look,
                Err(error) => return give_up(task, said(task, slot, &error)).await,
            };
            let before: Vec<Uuid> = look.namespaces.iter().map(|namespace| namespace.uid).collect();
            if let Some(at) = &mut task.operation.record.at {
                at.before = Some(before.clone());
            }
            task.record(Vec::new(), Vec::new()).await?;
            before
        }
    };
    let bytes = task.volume.record.holder(slot).bytes;
    for _ in 0..CREATES_MAX {
        match found(task, slot, &place, &before).await? {
            Err(error) => return give_up(task, said(task, slot, &error)).await,
            Ok(true) => return Ok(Ok(())),
            Ok(false) => {}
        }
        match task.provisioner.drives.create(&place, bytes, task.until()?).await {
            Ok(()) => {}
            Err(error @ DriveError::Unreachable(_)) => return give_up(task, said(task, slot, &error)).await,
            Err(error @ (DriveError::Refused(_) | DriveError::Foreign(_))) => return Ok(Err(said(task, slot, &error))),
            Err(DriveError::Unknown(_)) => sleep(task.provisioner.drives.late()).await,
        }
    }
    match found(task, slot, &place, &before).await? {
        Ok(true) => Ok(Ok(())),
        Ok(false) => Ok(Err(format!("{} shows no namespace of {bytes} bytes that it was to make", drive(task, slot)))),
        Err(error) => give_up(task, said(task, slot, &error)).await,
    }
}

/// What this operation has made on the drive that it has to itself: new, exactly of its size, and blank, for it is formatted only
/// when it is written down. Without the last of these a catalogue that was put back to an older copy would take what was made
/// since.
async fn own(task: &Task, place: &Place, before: &[Uuid], bytes: u64) -> Result<Option<Namespace>, DriveError> {
    let is_new = |namespace: &Namespace| !before.contains(&namespace.uid) && namespace.bytes == bytes;
    for namespace in look(task, place).await?.namespaces.into_iter().filter(is_new) {
        if task.provisioner.is_blank(place, namespace).await? {
            return Ok(Some(namespace));
        }
    }
    Ok(None)
}

/// Whether the holder's namespace is there; then it is written down.
async fn found(task: &mut Task, slot: usize, place: &Place, before: &[Uuid]) -> Result<Result<bool, DriveError>, Stop> {
    match own(task, place, before, task.volume.record.holder(slot).bytes).await {
        Ok(Some(namespace)) => task.volume.record.holder_mut(slot).namespace = Some(namespace),
        Ok(None) => return Ok(Ok(false)),
        Err(error) => return Ok(Err(error)),
    }
    task.operation.record.done += 1;
    task.release().await?;
    Ok(Ok(true))
}

/// Deletes what [`make`] has made and not written down.
pub(super) async fn unmake(task: &mut Task, slot: usize, before: Option<Vec<Uuid>>) -> Result<(), Stop> {
    if let (Some(place), Some(before)) = (task.place(slot).await?, before) {
        let bytes = task.volume.record.holder(slot).bytes;
        let mut is_asked = false;
        loop {
            let namespace = match own(task, &place, &before, bytes).await {
                Ok(Some(_)) if is_asked => return Err(still_there(task, slot).await),
                Ok(Some(namespace)) => namespace,
                Ok(None) => break,
                // Nobody else gets the drive while this goes on, so that it has an end: what is left is seen as unrecorded.
                Err(error @ DriveError::Refused(_))
                    if task.right.failing_for(task.operation.record.id) >= task.give_up =>
                {
                    let left = format!("; what was made may be left there: {}", said(task, slot, &error));
                    task.operation.record.undo.get_or_insert_default().push_str(&left);
                    break;
                }
                Err(error) => return Err(task.wait(said(task, slot, &error)).await),
            };
            if let Err(error) = delete(task, &place, namespace).await? {
                return Err(task.wait(said(task, slot, &error)).await);
            }
            is_asked = true;
        }
    }
    task.release().await
}

/// Deletes the namespace of a holder, and writes down that it is gone.
pub(super) async fn remove(task: &mut Task, slot: usize, namespace: Namespace) -> Result<(), Stop> {
    if let Some(place) = task.place(slot).await? {
        if let Some(by) = task.claim(slot).await? {
            return Err(task.wait(taken(task, slot, by)).await);
        }
        let mut is_asked = false;
        loop {
            // By its identifier: its number may be another's by now, and it may have another one, or another size.
            let seen = match look(task, &place).await {
                Ok(look) => look.namespaces.into_iter().find(|found| found.uid == namespace.uid),
                Err(error) => return Err(task.wait(said(task, slot, &error)).await),
            };
            let Some(seen) = seen else { break };
            if is_asked {
                return Err(still_there(task, slot).await);
            }
            if let Err(error) = delete(task, &place, seen).await? {
                return Err(task.wait(said(task, slot, &error)).await);
            }
            is_asked = true;
        }
    }
    task.volume.record.holder_mut(slot).namespace = None;
    if task.operation.record.undo.is_none() {
        task.operation.record.done += 1;
    }
    task.release().await
}
