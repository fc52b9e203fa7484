//! How operations end: all that was counted for them is settled in the transaction that ends them.

use std::collections::BTreeMap;

use crate::catalogue::{Change, Condition};

use super::keys;
use super::name::Name;
use super::namespace::unmake;
use super::records::{Drive, Holder, OperationKind, OperationState, Tenant, VolumeState};
use super::step::{Stop, Task};
use super::store::{Stored, now};
use super::temporary;

/// The volume is there, after a create, or after a delete that is not done.
pub(super) async fn ready(task: &mut Task, state: OperationState) -> Result<(), Stop> {
    task.volume.record.state = VolumeState::Ready;
    task.volume.record.operation = None;
    task.volume.record.held = false;
    close(task, state);
    loop {
        let (conditions, changes) = leave(task, 0, 0).await?;
        if task.record(conditions, changes).await? {
            return Ok(());
        }
    }
}

/// Nothing was done, and the volume is as it was.
pub(super) async fn failed(task: &mut Task, why: String) -> Result<(), Stop> {
    task.operation.record.undo = Some(why);
    ready(task, OperationState::Failed).await
}

/// From here on what was done is undone; the reason is written down first.
pub(super) async fn turn_back(task: &mut Task, reason: String) -> Result<(), Stop> {
    task.operation.record.undo = Some(reason);
    task.operation.record.waits = None;
    // Nothing is asked of the volume any more: hosts may have it. None gets one that is being made, of which is to be known still
    // that this control plane alone has had it.
    let volume = &mut task.volume.record;
    if volume.state == VolumeState::Ready {
        (volume.held, volume.awaited) = (false, false);
    }
    task.record(Vec::new(), Vec::new()).await.map(drop)
}

/// A delete by force has the volume by now. This operation ends as it is, and lets go of its drive: what it has sent to that was
/// waited for when the operation was taken.
pub(super) async fn superseded(task: &mut Task) -> Result<(), Stop> {
    // What a replacement has made and not written down nobody else would find.
    if task.operation.record.kind == OperationKind::Replace
        && let Some(at) = task.operation.record.at.clone()
        && task.volume.record.holder(at.slot).namespace.is_none()
    {
        unmake(task, at.slot, at.before).await?;
    }
    let at = task.operation.record.at.take();
    let free = at.map(|at| Change::delete(keys::busy(&task.volume.record.holder(at.slot).drive)));
    let operation = &mut task.operation.record;
    operation.undo = Some("the volume is deleted by force".to_owned());
    // The room on the drives is given back with that of the volume.
    let is_growth = operation.kind == OperationKind::Grow;
    let more = operation.bytes.filter(|_| is_growth).unwrap_or(0).saturating_sub(task.volume.record.bytes);
    close(task, OperationState::Failed);
    loop {
        let (conditions, mut changes) = leave(task, more, 0).await?;
        changes.extend(free.clone());
        if task.record(conditions, changes).await? {
            return Ok(());
        }
    }
}

/// The operation has ended.
pub(super) fn close(task: &mut Task, state: OperationState) {
    let operation = &mut task.operation.record;
    (operation.state, operation.ended, operation.waits) = (state, Some(now()), None);
    if state == OperationState::Done {
        operation.done = operation.steps;
    }
}

/// What every operation ends with; the tenant has so many bytes and volumes less.
pub(super) async fn leave(task: &Task, bytes: u64, volumes: u32) -> Result<(Vec<Condition>, Vec<Change>), Stop> {
    let (id, name) = (task.operation.record.id, &task.operation.record.tenant);
    let mut tenant = task.provisioner.store.need::<Tenant>(keys::tenant(name), name).await?;
    let record = &mut tenant.record;
    record.pending = record.pending.saturating_sub(1);
    record.bytes = record.bytes.saturating_sub(bytes);
    record.volumes = record.volumes.saturating_sub(volumes);
    let mut conditions = vec![tenant.unchanged()];
    let mut changes: Vec<Change> = [keys::todo(id), keys::taken(id), keys::work(id)].map(Change::delete).into();
    temporary::let_go(task, &mut tenant, (&mut conditions, &mut changes)).await?;
    changes.push(tenant.put()?);
    Ok((conditions, changes))
}

/// The room of these holders, which are gone, is given back.
pub(super) async fn give_back(
    task: &Task,
    holders: &[Holder],
    (conditions, changes): (&mut Vec<Condition>, &mut Vec<Change>),
) -> Result<(), Stop> {
    let mut drives: BTreeMap<Name, Stored<Drive>> = BTreeMap::new();
    for Holder { drive: name, bytes, .. } in holders {
        let mut drive = match drives.remove(name) {
            Some(drive) => drive,
            None => task.provisioner.store.need::<Drive>(keys::drive(name), name).await?,
        };
        drive.record.promised = drive.record.promised.saturating_sub(*bytes);
        drive.record.holders = drive.record.holders.saturating_sub(1);
        drives.insert(name.clone(), drive);
    }
    for drive in drives.values() {
        conditions.push(drive.unchanged());
        changes.push(drive.put()?);
    }
    Ok(())
}

/// A replacement ends; of those beside the holders these are gone.
pub(super) async fn end_beside(task: &mut Task, gone: &[usize]) -> Result<(), Stop> {
    let is_done = task.operation.record.undo.is_none();
    close(task, if is_done { OperationState::Done } else { OperationState::Failed });
    let volume = &mut task.volume.record;
    (volume.operation, volume.held, volume.awaited) = (None, false, false);
    let all = std::mem::take(&mut volume.beside);
    let (gone, stay): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(index, _)| gone.contains(index));
    volume.beside = stay.into_iter().map(|(_, beside)| beside).collect();
    let gone: Vec<Holder> = gone.into_iter().map(|(_, beside)| beside.holder).collect();
    loop {
        let (mut conditions, mut changes) = leave(task, 0, 0).await?;
        give_back(task, &gone, (&mut conditions, &mut changes)).await?;
        if task.record(conditions, changes).await? {
            return Ok(());
        }
    }
}
