//! Operations, step by step. Each step looks at what is there before it does anything, so that it may be done again after a crash
//! at any point; the page of this crate (`README.md`) has the states.
//!
//! ```text
//! create: for each slot: take the drive, write down what it has, create, write down what is new, let go
//!         format, then ready. If a drive refuses: undo, which is a delete
//! clone:  of a volume as it is: wait for the operation that takes the snapshot. Then the same, where a holder that is beside a
//!         copy of the snapshot is made of that copy, and the clones are adopted. Then hosts may have the volume, and a snapshot
//!         that was taken for that is deleted
//! delete: by force: wait for the end of what was under way. Otherwise ask the holders whether a host has the volume attached, or
//!         one of them is another volume's by now. If so nothing is done
//!         for each slot: take the drive, delete, see that it is gone, write that down, let go
//!         then the record goes and its room is given back
//! ```

use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use crate::catalogue::Change;

use super::asked::Work;
use super::copy;
use super::drive::{Made, drive, give_up, is_out};
use super::drives::{Blank, DriveError, Usage};
use super::ending::{close, failed, give_back, leave, ready, superseded, turn_back};
use super::keys;
use super::namespace::{make, remove, unmake};
use super::reason::Reason;
use super::records::{Operation, OperationKind, OperationState, VolumeState};
use super::replace;
use super::restore;
use super::step::{Stop, Task};
use super::take;
use super::temporary;
use super::widen;
use super::work::{self, ANOTHERS, usage};

/// Pause before it is asked again for a volume that is spared. Chosen: to ask takes its holders from a host for a moment.
const SPARED_PAUSE: Duration = Duration::from_secs(60);

/// Goes on with the operation until it ends.
pub(super) async fn advance(task: &mut Task) -> Result<(), Stop> {
    if task.volume.record.operation != Some(task.operation.record.id) {
        return superseded(task).await;
    }
    match task.operation.record.kind {
        OperationKind::Create | OperationKind::Clone => create(task).await,
        OperationKind::Delete => delete_all(task).await,
        OperationKind::Grow => widen::advance(task).await,
        OperationKind::Snapshot => take::take(task).await,
        OperationKind::Forget => take::forget(task).await,
        OperationKind::Replace => replace::advance(task).await,
        OperationKind::Restore => restore::advance(task).await,
    }
}

async fn delete_all(task: &mut Task) -> Result<(), Stop> {
    // Whoever is at that one ends it: nothing that it has sent to a drive or to the holders comes later than that.
    if let Some(former) = task.operation.record.instead_of
        && let Some(found) = task.provisioner.store.get::<Operation>(keys::operation(former)).await?
        && found.record.ended.is_none()
    {
        return Err(task.wait(format!("operation {former} is under way on the volume, and is to end")).await);
    }
    if let Some(why) = in_the_way(task).await? {
        return failed(task, why).await;
    }
    remove_all(task).await
}

async fn create(task: &mut Task) -> Result<(), Stop> {
    if task.operation.record.undo.is_none() {
        match made(task).await? {
            Ok(()) => {
                temporary::dropped(task).await?;
                return ready(task, OperationState::Done).await;
            }
            Err(reason) => turn_back(task, reason).await?,
        }
    }
    if let Some(at) = task.operation.record.at.clone()
        && task.volume.record.holders[at.slot].namespace.is_none()
    {
        match task.volume.record.holders[at.slot].copy_of {
            Some(_) => copy::uncopy(task, at.slot).await?,
            None => unmake(task, at.slot, at.before).await?,
        }
    }
    // What this control plane has attached for the operation itself no host has used.
    let of = copy::origin(task).await?;
    if !task.volume.record.held {
        match usage(task, of).await? {
            Ok(Usage::Never) => {}
            Ok(Usage::Before | Usage::Now | Usage::Another) => return spare(task).await,
            Err(_) if leave_foreign(task, of).await? => {}
            Err(_) => return spare(task).await,
        }
    }
    remove_all(task).await
}

/// What another program has reserved of a volume that is being undone stays on its drive, where it is seen as unrecorded: it is not
/// waited for, and the operation says so. False: of what is left something was used by hosts.
async fn leave_foreign(task: &mut Task, of: Option<Uuid>) -> Result<bool, Stop> {
    let Some(foreign) = work::foreign(task, of).await? else { return Ok(false) };
    for (slot, why) in foreign {
        let Some(namespace) = task.volume.record.holder_mut(slot).namespace.take() else { continue };
        let left = format!("; namespace {} of {} is left there: {why}", namespace.nsid, drive(task, slot));
        task.operation.record.undo.get_or_insert_default().push_str(&left);
        task.operation.record.reason = Some(Reason::Foreign);
    }
    task.operation.record.waits = None;
    task.record(Vec::new(), Vec::new()).await?;
    Ok(true)
}

/// The volume is made. One that hosts may have already is not looked at: that would take the volume from them.
async fn made(task: &mut Task) -> Result<Made, Stop> {
    if task.volume.record.state == VolumeState::Ready {
        return Ok(Ok(()));
    }
    match copy::snapshot_taken(task).await? {
        Ok(()) => build(task).await,
        refused => Ok(refused),
    }
}

async fn remove_all(task: &mut Task) -> Result<(), Stop> {
    for slot in (0..task.volume.record.everywhere().count()).rev() {
        if let Some(namespace) = task.volume.record.holder(slot).namespace {
            remove(task, slot, namespace).await?;
        }
    }
    end(task).await
}

async fn build(task: &mut Task) -> Result<Made, Stop> {
    for slot in 0..task.volume.record.holders.len() {
        let holder = &task.volume.record.holders[slot];
        let made = match (holder.namespace, holder.copy_of) {
            (Some(_), _) => Ok(()),
            (None, Some(source)) => copy::copy(task, slot, source).await?,
            (None, None) => make(task, slot).await?,
        };
        if made.is_err() {
            return Ok(made);
        }
    }
    match format(task).await? {
        Ok(()) => enlarge(task).await,
        refused => Ok(refused),
    }
}

/// A clone that is to be larger than the snapshot.
async fn enlarge(task: &mut Task) -> Result<Made, Stop> {
    let Some(bytes) = task.operation.record.bytes.filter(|bytes| *bytes > task.volume.record.bytes) else {
        return Ok(Ok(()));
    };
    if let Err(reason) = widen::widen(task).await? {
        return Ok(Err(reason));
    }
    Ok(work::done(task, Work::Grow { bytes }).await?.map(|_| task.volume.record.bytes = bytes))
}

/// Why a delete, of which nothing is done yet, is not: it was not forced, and would take the volume from a host that uses it. The
/// catalogue alone can't tell: hosts come to a volume past it, and an attachment is ended in it by whoever says so.
async fn in_the_way(task: &mut Task) -> Result<Option<String>, Stop> {
    let is_begun =
        task.operation.record.at.is_some() || task.volume.record.everywhere().any(|holder| holder.namespace.is_none());
    if task.operation.record.force || is_begun {
        return Ok(None);
    }
    Ok(match usage(task, None).await? {
        Ok(Usage::Now) => Some("a host has the volume attached: detach it there, or say force (--force)".to_owned()),
        Ok(Usage::Another) => Some(ANOTHERS.to_owned()),
        Ok(Usage::Never | Usage::Before) => None,
        Err(why) => {
            task.operation.record.reason = Some(Reason::Foreign);
            Some(format!("{why}: by force (--force) it is deleted all the same"))
        }
    })
}

/// An undo of what hosts have used, which was whole then: the catalogue was put back to an older copy. If all holders are known the
/// create is done; otherwise nothing can be done about it here.
async fn spare(task: &mut Task) -> Result<(), Stop> {
    match format(task).await? {
        Ok(()) => {
            task.operation.record.undo = None;
            ready(task, OperationState::Done).await
        }
        Err(why) => {
            let put_back = "a host has used the volume, of which this catalogue does not know all holders: it was put back to \
                            an older copy";
            task.wait(format!("{put_back} ({why})")).await;
            Err(Stop::Later(SPARED_PAUSE))
        }
    }
}

async fn format(task: &mut Task) -> Result<Made, Stop> {
    let mut blanks = Vec::new();
    for (slot, holder) in task.volume.record.holders.clone().into_iter().enumerate() {
        let Some(place) = task.place(slot).await? else { return Ok(Err(is_out(task, slot))) };
        let Some(namespace) = holder.namespace else { return Ok(Err(format!("{} is not made", drive(task, slot)))) };
        blanks.push(Blank { kind: holder.kind, place, namespace });
    }
    let (id, bytes) = (task.volume.record.id, task.volume.record.bytes);
    let is_copy: Vec<bool> = task.volume.record.holders.iter().map(|holder| holder.copy_of.is_some()).collect();
    let origin = copy::origin(task).await?.filter(|_| is_copy.contains(&true));
    let (drives, until) = (&task.provisioner.drives, task.right.moving());
    let formatted = match origin {
        Some(origin) => drives.adopt(id, origin, &blanks, &is_copy, until).await,
        None => drives.format(id, bytes, &blanks, until).await.map(|()| bytes),
    };
    match formatted {
        Ok(has) if has == bytes => Ok(Ok(())),
        // The tenant has the room of what the catalogue says.
        Ok(has) => Ok(Err(format!("the snapshot has {has} bytes, and {bytes} by the catalogue: take another one"))),
        Err(DriveError::Refused(why) | DriveError::Foreign(why)) => {
            Ok(Err(format!("the volume can't be formatted: {why}")))
        }
        Err(error) => {
            if matches!(error, DriveError::Unknown(_)) {
                sleep(task.provisioner.drives.late()).await;
            }
            give_up(task, format!("the volume is not formatted yet: {error}")).await
        }
    }
}

/// Nothing of the volume is there any more: its record goes, and all that was counted for it is given back.
async fn end(task: &mut Task) -> Result<(), Stop> {
    let is_undone = task.operation.record.undo.is_some();
    close(task, if is_undone { OperationState::Failed } else { OperationState::Done });
    loop {
        // Of a clone that is undone: as large as it was to be.
        let bytes = task.operation.record.bytes.unwrap_or(task.volume.record.bytes);
        let (mut conditions, mut changes) = leave(task, bytes, 1).await?;
        let holders: Vec<_> = task.volume.record.everywhere().cloned().collect();
        give_back(task, &holders, (&mut conditions, &mut changes)).await?;
        let gone = Change::delete(keys::volume(&task.volume.record.tenant, &task.volume.record.name));
        if task.commit(conditions, changes, gone).await? {
            return Ok(());
        }
    }
}
