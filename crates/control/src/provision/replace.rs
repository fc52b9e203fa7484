//! A holder is replaced by a new one on another drive, step by step.
//!
//! ```text
//! make the namespace, format it as a replacement
//! ask whoever has the volume attached whether it can do without the former holder; up to here all is undone if something fails
//! the new holder takes the former one's place in the volume's record: who attaches the volume from now on reaches the new one
//! whoever has the volume attached is told to use the new one, and fills it, until it is in sync
//! delete the former one, if its drive is there, and give its room back
//! ```
//!
//! Invariants:
//! - The former holder gives its place only while every other replica is in sync, or while it is not in sync itself and another one
//!   is: what was acknowledged stands on a replica that stays. And only while the holders that stay are a majority: by one the
//!   volume's own record changes.
//! - The former holder is deleted when the new one is in sync, and not before; and not where somebody uses it.
//! - No host is told of the new holder before it has the place in the record. From then on nothing is undone, for who has
//!   attached the volume since may have taken the new one in, but where the volume's own record shows that nobody has ([`former`]).

use std::time::Duration;

use super::asked::{Progress, Replacement};
use super::drive::{Made, drive, give_up, is_out, look, said};
use super::drives::{Blank, DriveError, Place, Usage};
use super::ending::{end_beside as end, failed, turn_back};
use super::former;
use super::keys;
use super::moment::Moment;
use super::namespace::{make, remove, unmake};
use super::provisioner::place_of;
use super::records::{Drive, DriveState, Holder, HolderKind, Volume};
use super::step::{Stop, Task};
use super::work::{self, note_copies};

/// Between two looks at how far the new holder is. Chosen: what lies between two questions of a host.
const FILL_PAUSE: Duration = Duration::from_secs(2);

/// Goes on with a replacement until it ends.
pub(super) async fn advance(task: &mut Task) -> Result<(), Stop> {
    let Some(slot) = task.operation.record.slot else {
        return failed(task, "invariant: the operation names no slot".to_owned()).await;
    };
    let Some(at) = new_one(&task.volume.record) else { return fill(task, slot).await };
    if task.operation.record.undo.is_none() {
        match prepare(task, slot, at).await? {
            Ok(()) => {
                exchange(task, slot, at).await?;
                return fill(task, slot).await;
            }
            Err(reason) => turn_back(task, reason).await?,
        }
    }
    undo(task, slot, at).await
}

/// The place of the holder that is to take another one's place; none: it has.
fn new_one(volume: &Volume) -> Option<usize> {
    Some(volume.holders.len() + volume.beside.iter().position(|beside| beside.is_new)?)
}

async fn state_of(task: &Task, at: usize) -> Result<DriveState, Stop> {
    let name = &task.volume.record.holder(at).drive;
    Ok(task.provisioner.store.need::<Drive>(keys::drive(name), name).await?.record.state)
}

/// Makes the new holder, and sees that the volume can do without the former one.
async fn prepare(task: &mut Task, slot: usize, at: usize) -> Result<Made, Stop> {
    if task.operation.record.drains && state_of(task, slot).await? == DriveState::InUse {
        return Ok(Err(format!("{} is in use again", drive(task, slot))));
    }
    if task.volume.record.holder(at).namespace.is_none()
        && let Err(reason) = make(task, at).await?
    {
        return Ok(Err(reason));
    }
    if task.operation.record.life.is_none()
        && let Err(reason) = format(task, slot, at).await?
    {
        return Ok(Err(reason));
    }
    let Some(replacement) = replacement(task, slot, at, false).await? else { return Ok(Err(is_out(task, at))) };
    match work::progress(task, &replacement).await? {
        Ok((progress, _)) => match dispensable(&task.volume.record, slot, &progress) {
            Ok(()) => Ok(Ok(())),
            Err(why) => give_up(task, why).await,
        },
        Err(why) => Ok(Err(why)),
    }
}

/// Whether the volume can do without the holder of a slot.
fn dispensable(volume: &Volume, slot: usize, progress: &Progress) -> Result<(), String> {
    let others = || volume.holders.iter().enumerate().filter(|(other, _)| *other != slot);
    let (hold, away): (Vec<_>, Vec<_>) = others().partition(|(other, _)| progress.holds(*other));
    let replicas = others().filter(|(_, holder)| holder.kind == HolderKind::Replica);
    let (in_sync, behind): (Vec<_>, Vec<_>) = replicas.partition(|(other, _)| progress.has(*other));
    let named = |holders: &[(usize, &Holder)]| {
        let names: Vec<_> =
            holders.iter().map(|(slot, holder)| format!("slot {slot} (drive {})", holder.drive)).collect();
        names.join(", ")
    };
    // A holder is changed for another by a majority of those that stay and those that were there before, and the former one is
    // reached by nobody then.
    if hold.len() <= volume.holders.len() / 2 {
        return Err(format!("{} is away: without slot {slot} too few holders are left", named(&away)));
    }
    if volume.holders[slot].kind == HolderKind::Witness {
        return Ok(());
    }
    match (progress.has(slot), &in_sync[..], &behind[..]) {
        (true, _, [_, ..]) => Err(format!("{} is not in sync: slot {slot} is needed until then", named(&behind))),
        (false, [], _) => Err("no other replica of the volume is in sync".to_owned()),
        _ => Ok(()),
    }
}

/// Makes the namespace what is to replace the holder of the slot.
async fn format(task: &mut Task, slot: usize, at: usize) -> Result<Made, Stop> {
    let Some(with) = blank(task, at).await? else { return Ok(Err(is_out(task, at))) };
    let (there, away) = work::there(task).await?;
    let beside: Vec<Blank> = there.into_iter().filter(|(of, _)| *of != slot).map(|(_, holder)| holder).collect();
    if beside.is_empty() {
        let why = away.unwrap_or_else(|| "no other holder of the volume is there".to_owned());
        return give_up(task, why).await;
    }
    let (id, drives) = (task.volume.record.id, &task.provisioner.drives);
    match drives.replace(id, slot, &beside, &with, task.right.moving()).await {
        Ok(life) => {
            task.operation.record.life = Some(life);
            task.operation.record.waits = None;
            task.record(Vec::new(), Vec::new()).await?;
            task.right.forget(task.operation.record.id);
            Ok(Ok(()))
        }
        Err(DriveError::Refused(why) | DriveError::Foreign(why)) => {
            Ok(Err(format!("the new holder can't be formatted: {why}")))
        }
        Err(error) => {
            if matches!(error, DriveError::Unknown(_)) {
                tokio::time::sleep(task.provisioner.drives.late()).await;
            }
            give_up(task, format!("the new holder is not formatted yet: {error}")).await
        }
    }
}

/// A holder that has its namespace; none: its drive is gone for good, or the namespace is.
async fn blank(task: &Task, at: usize) -> Result<Option<Blank>, Stop> {
    let holder = task.volume.record.holder(at).clone();
    let there = task.place(at).await?.zip(holder.namespace);
    Ok(there.map(|(place, namespace)| Blank { kind: holder.kind, place, namespace }))
}

/// The new holder, as it is told; none: its drive is gone for good.
async fn replacement(task: &Task, slot: usize, at: usize, go: bool) -> Result<Option<Replacement>, Stop> {
    let (Some(Blank { kind, place, namespace }), Some(life)) = (blank(task, at).await?, task.operation.record.life)
    else {
        return Ok(None);
    };
    Ok(Some(Replacement { slot, kind, life, address: place.address, nqn: place.nqn, namespace, go }))
}

/// The new holder takes the place of the former one.
async fn exchange(task: &mut Task, slot: usize, at: usize) -> Result<(), Stop> {
    let Volume { holders, beside, snapshots, .. } = &mut task.volume.record;
    let other = &mut beside[at - holders.len()];
    std::mem::swap(&mut holders[slot], &mut other.holder);
    other.is_new = false;
    // No volume is to be made of copies that go.
    snapshots.iter_mut().for_each(|snapshot| snapshot.moment.slots &= !(1 << slot));
    task.operation.record.waits = None;
    task.record(Vec::new(), Vec::new()).await?;
    task.right.forget(task.operation.record.id);
    Ok(())
}

/// Waits until the new holder is in sync; then the former one goes.
async fn fill(task: &mut Task, slot: usize) -> Result<(), Stop> {
    let Some(replacement) = replacement(task, slot, slot, true).await? else { return lost(task, slot).await };
    match work::progress(task, &replacement).await? {
        Ok((progress, snapshots)) if progress.is_whole(&replacement) => finish(task, slot, &snapshots).await,
        Ok((Progress { is_taken, left, .. }, _)) => {
            let what = match is_taken {
                true => format!("slot {slot} is filled on {}: {left} bytes may be left", drive(task, slot)),
                false => format!("{} is to be used for slot {slot}", drive(task, slot)),
            };
            match task.wait(what).await {
                // This control plane has waited already.
                Stop::Later(_) if task.volume.record.held => Err(Stop::Later(Duration::ZERO)),
                Stop::Later(_) => Err(Stop::Later(FILL_PAUSE)),
                stop => Err(stop),
            }
        }
        Err(why) if former::gives_back(task, &replacement, &why).await? => Ok(()),
        Err(why) => Err(task.wait(why).await),
    }
}

/// The new holder's drive is gone for good before the slot was in sync. What had the place before stays until the slot is in sync
/// by another one: nobody knows whether it is needed.
async fn lost(task: &mut Task, slot: usize) -> Result<(), Stop> {
    let out = is_out(task, slot);
    if let Some(replacement) = gone(task, slot).await?
        && !former::formers(task, slot).is_empty()
    {
        let has_it = match work::progress(task, &replacement).await? {
            Ok((progress, _)) if !task.volume.record.held => former::stays(task, slot, &progress, &out).await?,
            Ok(_) | Err(_) => former::gives_back(task, &replacement, &out).await?,
        };
        if has_it {
            return Ok(());
        }
    }
    if task.operation.record.at.is_some() {
        task.release().await?;
    }
    task.operation.record.undo = Some(format!("{out} before slot {slot} was in sync there: it is replaced again"));
    end(task, &[]).await
}

/// The new holder whose drive is out: nobody is to use it any more.
async fn gone(task: &Task, slot: usize) -> Result<Option<Replacement>, Stop> {
    let Holder { kind, drive: name, namespace, .. } = task.volume.record.holder(slot).clone();
    let drive = task.provisioner.store.need::<Drive>(keys::drive(&name), &name).await?.record;
    let (Place { address, nqn }, known) = (place_of(&drive), namespace.zip(task.operation.record.life));
    Ok(known.map(|(namespace, life)| Replacement { slot, kind, life, address, nqn, namespace, go: false }))
}

/// Deletes what had the slot before.
async fn finish(task: &mut Task, slot: usize, snapshots: &[Moment]) -> Result<(), Stop> {
    if let Some(clone) = task.volume.record.snapshots.iter().find_map(|snapshot| snapshot.clones.first()) {
        let what =
            format!("operation {clone} makes a volume of a snapshot, which may be of a copy on the former holder");
        return Err(task.wait(what).await);
    }
    note_copies(task, snapshots);
    let beside = task.volume.record.beside.iter().enumerate();
    let places: Vec<usize> = beside.filter(|(_, beside)| beside.slot == slot).map(|(index, _)| index).collect();
    for index in &places {
        let at = task.volume.record.holders.len() + index;
        if let Some(namespace) = task.volume.record.holder(at).namespace {
            if let Some(why) = used(task, at).await? {
                return Err(task.wait(why).await);
            }
            remove(task, at, namespace).await?;
        }
    }
    end(task, &places).await
}

/// Why what had the slot before stays on its drive.
async fn used(task: &mut Task, at: usize) -> Result<Option<String>, Stop> {
    Ok(match asked(task, at).await? {
        Ok(Some(Usage::Now)) => Some(format!("a host uses the former holder on {}: detach it there", drive(task, at))),
        Ok(Some(Usage::Another)) => Some(anothers(task, at)),
        Ok(None | Some(Usage::Never | Usage::Before)) => None,
        Err(why) => Some(why),
    })
}

/// That what stands beside the holders is not the volume's any more.
fn anothers(task: &Task, at: usize) -> String {
    let drive = drive(task, at);
    format!("a namespace on {drive} belongs to another volume by now: set the drive to out, or delete that volume")
}

/// Whether hosts use, or have used, what stands beside the holders; none: its drive is gone for good, or shows it no more.
async fn asked(task: &mut Task, at: usize) -> Result<Result<Option<Usage>, String>, Stop> {
    let Some(holder) = blank(task, at).await? else { return Ok(Ok(None)) };
    let there = match look(task, &holder.place).await {
        Ok(look) => look.namespaces.into_iter().find(|found| found.uid == holder.namespace.uid),
        Err(error) => return Ok(Err(said(task, at, &error))),
    };
    let Some(namespace) = there else { return Ok(Ok(None)) };
    let (id, drives) = (task.volume.record.id, &task.provisioner.drives);
    let usage = drives.usage(id, None, &[Blank { namespace, ..holder }], task.until()?).await;
    Ok(usage.map(Some).map_err(|error| said(task, at, &error)))
}

/// What was made goes again, and the volume is as it was.
async fn undo(task: &mut Task, slot: usize, at: usize) -> Result<(), Stop> {
    if let Some(taken) = task.operation.record.at.clone()
        && task.volume.record.holder(taken.slot).namespace.is_none()
    {
        unmake(task, taken.slot, taken.before).await?;
    }
    if let Some(namespace) = task.volume.record.holder(at).namespace {
        match asked(task, at).await? {
            // The catalogue was put back to an older copy: in truth the new one has the place, and is needed.
            Ok(Some(Usage::Before | Usage::Now)) => {
                task.operation.record.undo = None;
                exchange(task, slot, at).await?;
                return fill(task, slot).await;
            }
            Ok(Some(Usage::Another)) => {
                let what = anothers(task, at);
                return Err(task.wait(what).await);
            }
            Ok(None | Some(Usage::Never)) => remove(task, at, namespace).await?,
            Err(why) => return Err(task.wait(why).await),
        }
    }
    let index = at - task.volume.record.holders.len();
    end(task, &[index]).await
}
