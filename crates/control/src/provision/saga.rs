//! Operations, step by step. Each step looks at what is there before it does anything, so that it may be done again after a crash
//! at any point; the page of this crate (`README.md`) has the states.
//!
//! ```text
//! create: for each slot: take the drive, write down what it has, create, write down what is new, let go
//!         format, then ready. If a drive refuses: undo, which is a delete
//! clone:  the same, where a holder that is beside a copy of the snapshot is made of that copy, and the clones are adopted
//! delete: by force: wait for the end of what was under way. Otherwise ask the holders whether a host has the volume attached, or
//!         one of them is another volume's by now. If so nothing is done
//!         for each slot: take the drive, delete, see that it is gone, write that down, let go
//!         then the record goes and its room is given back
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use crate::catalogue::Change;

use super::asked::Work;
use super::copy;
use super::drive::{Made, delete, drive, give_up, is_out, look, said, still_there, taken};
use super::drives::{Blank, DriveError, Place, Usage};
use super::ending::{close, failed, leave, ready, superseded, turn_back};
use super::keys;
use super::name::Name;
use super::records::{Drive, Namespace, Operation, OperationKind, OperationState};
use super::step::{Stop, Task};
use super::store::Stored;
use super::take;
use super::widen;
use super::work::{self, ANOTHERS, usage};

/// How often a create is sent to a drive whose answers are lost each time. Chosen: who fails so often fails.
const CREATES_MAX: u32 = 3;

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
        return failed(task, why.to_owned()).await;
    }
    remove_all(task).await
}

async fn create(task: &mut Task) -> Result<(), Stop> {
    if task.operation.record.undo.is_none() {
        match build(task).await? {
            Ok(()) => return ready(task, OperationState::Done).await,
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
    if !task.volume.record.held && usage(task, of).await? != Usage::Never {
        return spare(task).await;
    }
    remove_all(task).await
}

async fn remove_all(task: &mut Task) -> Result<(), Stop> {
    for slot in (0..task.volume.record.holders.len()).rev() {
        if let Some(namespace) = task.volume.record.holders[slot].namespace {
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
async fn in_the_way(task: &mut Task) -> Result<Option<&'static str>, Stop> {
    let is_begun = task.operation.record.at.is_some()
        || task.volume.record.holders.iter().any(|holder| holder.namespace.is_none());
    if task.operation.record.force || is_begun {
        return Ok(None);
    }
    Ok(match usage(task, None).await? {
        Usage::Now => Some("a host has the volume attached: detach it there, or say force"),
        Usage::Another => Some(ANOTHERS),
        Usage::Never | Usage::Before => None,
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

/// The namespace of a slot.
async fn make(task: &mut Task, slot: usize) -> Result<Made, Stop> {
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
    let bytes = task.volume.record.holders[slot].bytes;
    for _ in 0..CREATES_MAX {
        match found(task, slot, &place, &before).await? {
            Err(error) => return give_up(task, said(task, slot, &error)).await,
            Ok(true) => return Ok(Ok(())),
            Ok(false) => {}
        }
        match task.provisioner.drives.create(&place, bytes, task.until()?).await {
            Ok(()) => {}
            Err(error @ DriveError::Unreachable(_)) => return give_up(task, said(task, slot, &error)).await,
            Err(error @ DriveError::Refused(_)) => return Ok(Err(said(task, slot, &error))),
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

/// Whether the slot's namespace is there; then it is written down.
async fn found(task: &mut Task, slot: usize, place: &Place, before: &[Uuid]) -> Result<Result<bool, DriveError>, Stop> {
    match own(task, place, before, task.volume.record.holders[slot].bytes).await {
        Ok(Some(namespace)) => task.volume.record.holders[slot].namespace = Some(namespace),
        Ok(None) => return Ok(Ok(false)),
        Err(error) => return Ok(Err(error)),
    }
    task.operation.record.done += 1;
    task.release().await?;
    Ok(Ok(true))
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
        Err(DriveError::Refused(why)) => Ok(Err(format!("the volume can't be formatted: {why}"))),
        Err(error) => {
            if matches!(error, DriveError::Unknown(_)) {
                sleep(task.provisioner.drives.late()).await;
            }
            give_up(task, format!("the volume is not formatted yet: {error}")).await
        }
    }
}

/// Deletes what a create has made and not written down.
async fn unmake(task: &mut Task, slot: usize, before: Option<Vec<Uuid>>) -> Result<(), Stop> {
    if let (Some(place), Some(before)) = (task.place(slot).await?, before) {
        let bytes = task.volume.record.holders[slot].bytes;
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

/// Deletes the namespace of a slot, and writes down that it is gone.
async fn remove(task: &mut Task, slot: usize, namespace: Namespace) -> Result<(), Stop> {
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
    task.volume.record.holders[slot].namespace = None;
    if task.operation.record.undo.is_none() {
        task.operation.record.done += 1;
    }
    task.release().await
}

/// Nothing of the volume is there any more: its record goes, and all that was counted for it is given back.
async fn end(task: &mut Task) -> Result<(), Stop> {
    let is_undone = task.operation.record.undo.is_some();
    close(task, if is_undone { OperationState::Failed } else { OperationState::Done });
    loop {
        // Of a clone that is undone: as large as it was to be.
        let bytes = task.operation.record.bytes.unwrap_or(task.volume.record.bytes);
        let (mut conditions, mut changes) = leave(task, bytes, 1).await?;
        let mut drives: BTreeMap<Name, Stored<Drive>> = BTreeMap::new();
        for holder in &task.volume.record.holders {
            let (store, name) = (&task.provisioner.store, &holder.drive);
            let mut drive = store.need::<Drive>(keys::drive(name), name).await?;
            drive.record.promised = drive.record.promised.saturating_sub(holder.bytes);
            drive.record.holders = drive.record.holders.saturating_sub(1);
            drives.insert(name.clone(), drive);
        }
        for drive in drives.values() {
            conditions.push(drive.unchanged());
            changes.push(drive.put()?);
        }
        let gone = Change::delete(keys::volume(&task.volume.record.tenant, &task.volume.record.name));
        if task.commit(conditions, changes, gone).await? {
            return Ok(());
        }
    }
}
