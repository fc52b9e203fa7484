//! A volume becomes larger: first the namespaces, each on its drive, then the volume's own record on them. No namespace becomes
//! smaller again: where the volume can't follow, what has grown keeps its room, and the operation says so.

use tokio::time::sleep;

use super::asked::Work;
use super::drive::{Made, drive, give_up, look, said, taken};
use super::drives::DriveError;
use super::ending::{close, leave, ready, turn_back};
use super::keys;
use super::records::{Drive, HolderKind, OperationState};
use super::step::{Stop, Task};
use super::work;

/// How often a growth is sent to a drive whose answers are lost each time. Chosen: who fails so often fails.
const ATTEMPTS_MAX: u32 = 3;

/// Goes on with a growth until it ends.
pub(super) async fn advance(task: &mut Task) -> Result<(), Stop> {
    if task.operation.record.undo.is_none() {
        match grow(task).await? {
            Ok(()) => return ready(task, OperationState::Done).await,
            Err(reason) => turn_back(task, reason).await?,
        }
    }
    undo(task).await
}

async fn grow(task: &mut Task) -> Result<Made, Stop> {
    if let Err(reason) = widen(task).await? {
        return Ok(Err(reason));
    }
    let bytes = task.operation.record.bytes.unwrap_or(task.volume.record.bytes);
    Ok(work::done(task, Work::Grow { bytes }).await?.map(|_| task.volume.record.bytes = bytes))
}

/// Makes every namespace as large as its holder is to be.
pub(super) async fn widen(task: &mut Task) -> Result<Made, Stop> {
    for slot in 0..task.volume.record.holders.len() {
        if let Err(reason) = widen_one(task, slot).await? {
            return Ok(Err(reason));
        }
    }
    Ok(Ok(()))
}

async fn widen_one(task: &mut Task, slot: usize) -> Result<Made, Stop> {
    let holder = task.volume.record.holders[slot].clone();
    let Some(namespace) = holder.namespace.filter(|namespace| namespace.bytes < holder.bytes) else {
        return Ok(Ok(()));
    };
    // One that is gone for good is to be replaced, by one that has the room.
    let Some(place) = task.place(slot).await? else { return Ok(Ok(())) };
    if let Some(by) = task.claim(slot).await? {
        return give_up(task, taken(task, slot, by)).await;
    }
    // From now on it may have grown, whatever is known of it.
    if let Some(at) = task.operation.record.at.as_mut().filter(|at| at.before.is_none()) {
        at.before = Some(Vec::new());
        task.record(Vec::new(), Vec::new()).await?;
    }
    for _ in 0..ATTEMPTS_MAX {
        let seen = match look(task, &place).await {
            Ok(look) => look.namespaces.into_iter().find(|found| found.uid == namespace.uid),
            Err(error) => return give_up(task, said(task, slot, &error)).await,
        };
        let Some(seen) = seen else {
            return Ok(Err(format!("{} shows no namespace of the volume", drive(task, slot))));
        };
        if seen.bytes >= holder.bytes {
            task.volume.record.holders[slot].namespace = Some(seen);
            task.operation.record.done += 1;
            task.release().await?;
            return Ok(Ok(()));
        }
        match task.provisioner.drives.grow(&place, seen, holder.bytes, task.until()?).await {
            Ok(()) => {}
            Err(error @ DriveError::Unreachable(_)) => return give_up(task, said(task, slot, &error)).await,
            Err(error @ (DriveError::Refused(_) | DriveError::Foreign(_))) => return Ok(Err(said(task, slot, &error))),
            Err(DriveError::Unknown(_)) => sleep(task.provisioner.drives.late()).await,
        }
    }
    Ok(Err(format!("{} does not show {} bytes after it was to grow", drive(task, slot), holder.bytes)))
}

/// The volume stays as large as it was; the room that no namespace has taken is given back.
async fn undo(task: &mut Task) -> Result<(), Stop> {
    if let Some(at) = task.operation.record.at.clone() {
        if let (Some(_), Some(place)) = (at.before, task.place(at.slot).await?) {
            let seen = match look(task, &place).await {
                Ok(look) => look.namespaces,
                Err(error) => return Err(task.wait(said(task, at.slot, &error)).await),
            };
            let own = &mut task.volume.record.holders[at.slot].namespace;
            let uid = own.map(|namespace| namespace.uid);
            *own = seen.into_iter().find(|found| Some(found.uid) == uid).or(*own);
        }
        task.release().await?;
    }
    let mut kept = Vec::new();
    let mut spare = Vec::new();
    let old = task.provisioner.drives.holder_bytes(HolderKind::Replica, task.volume.record.bytes);
    for holder in task.volume.record.holders.iter_mut().filter(|holder| holder.kind == HolderKind::Replica) {
        let has = holder.namespace.map_or(0, |namespace| namespace.bytes);
        if has > old {
            kept.push(holder.drive.to_string());
        }
        spare.push((holder.drive.clone(), holder.bytes.saturating_sub(has)));
        holder.bytes = has;
    }
    if !kept.is_empty() {
        let left = format!("; no namespace shrinks: those on drives {} keep the room", kept.join(", "));
        task.operation.record.undo.get_or_insert_default().push_str(&left);
    }
    let more = task.operation.record.bytes.unwrap_or(0).saturating_sub(task.volume.record.bytes);
    close(task, OperationState::Failed);
    (task.volume.record.operation, task.volume.record.held) = (None, false);
    loop {
        let (mut conditions, mut changes) = leave(task, more, 0).await?;
        for (name, bytes) in &spare {
            let mut drive = task.provisioner.store.need::<Drive>(keys::drive(name), name).await?;
            drive.record.promised = drive.record.promised.saturating_sub(*bytes);
            conditions.push(drive.unchanged());
            changes.push(drive.put()?);
        }
        if task.record(conditions, changes).await? {
            return Ok(());
        }
    }
}
