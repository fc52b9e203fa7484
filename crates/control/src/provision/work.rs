//! What only somebody can do who has the volume attached: the host that has it, or this control plane where nobody has.
//!
//! Invariants:
//! - This control plane attaches a volume only when it is written down that it does (`held`), which keeps hosts from attaching it,
//!   and only where the holders' reservations show that no host uses it, whatever the catalogue says.
//! - What a host may be at is not taken back, nor what another host may have done that is gone: its outcome is waited for. Whether
//!   anybody may be at it is known by what the replicas knew before (`Asked::before`), which is written down first.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use crate::catalogue::{Change, Condition};

use super::asked::{Asked, Done, Heard, Outcome, Progress, Replacement, Work};
use super::drive::{give_up, look, said};
use super::drives::{Blank, DriveError, Usage};
use super::keys;
use super::moment::Moment;
use super::name::Nqn;
use super::reason::Reason;
use super::records::{Attachment, OperationKind};
use super::room;
use super::step::{Stop, Task};
use super::store::{Stored, now, put};

/// How long a host is waited for that has the volume attached by the catalogue's word and does not ask. Chosen: a few times what
/// lies between two questions.
const HOST_TIME: Duration = Duration::from_secs(10);
/// After how long it is looked whether a host lives that is to be at it. Chosen: many times what it takes, for the host loses its
/// connections for a moment.
const WORK_TIME: Duration = Duration::from_secs(120);
/// Between two looks at what a host has done.
const HOST_PAUSE: Duration = Duration::from_millis(300);

/// That a holder of the volume is not the volume's any more.
pub(super) const ANOTHERS: &str = "a namespace of the volume belongs to another volume by now, as after `yagura volume recover`: \
                                   if nobody needs that one, delete this volume by force";

/// Holders of the volume, and what had their places, that can be asked, each with its slot; and why others can't be. One whose
/// drive is gone for good, or shows no such namespace, is used by nobody.
pub(super) async fn there(task: &Task) -> Result<(Vec<(usize, Blank)>, Option<String>), Stop> {
    let (mut there, mut away) = (Vec::new(), None);
    let (volume, count) = (&task.volume.record, task.volume.record.holders.len());
    for (at, holder) in volume.everywhere().enumerate() {
        let (Some(namespace), Some(place)) = (holder.namespace, task.place(at).await?) else { continue };
        let slot = match at.checked_sub(count).map(|index| &volume.beside[index]) {
            None => at,
            Some(beside) if beside.is_new => continue,
            Some(beside) => beside.slot,
        };
        match look(task, &place).await {
            Ok(look) => {
                let found = look.namespaces.into_iter().find(|found| found.uid == namespace.uid);
                there.extend(found.map(|namespace| (slot, Blank { kind: holder.kind, place, namespace })));
            }
            Err(error) => away = Some(said(task, at, &error)),
        }
    }
    Ok((there, away))
}

async fn ask(task: &Task, of: Option<Uuid>, there: Vec<(usize, Blank)>) -> Result<Result<Usage, DriveError>, Stop> {
    if there.is_empty() {
        return Ok(Ok(Usage::Never));
    }
    let holders: Vec<Blank> = there.into_iter().map(|(_, holder)| holder).collect();
    Ok(task.provisioner.drives.usage(task.volume.record.id, of, &holders, task.until()?).await)
}

/// Whether hosts use the volume, or have used it, by all of its holders that are not lost, and all that had a place. `of`: the
/// volume that they may be clones of still. `Err`: another program has one of them.
pub(super) async fn usage(task: &mut Task, of: Option<Uuid>) -> Result<Result<Usage, String>, Stop> {
    let (holders, away) = there(task).await?;
    let why = match away {
        Some(why) => why,
        None => match ask(task, of, holders).await? {
            Ok(usage) => return Ok(Ok(usage)),
            Err(error @ DriveError::Foreign(_)) => return Ok(Err(error.to_string())),
            Err(error) => error.to_string(),
        },
    };
    Err(task.wait(format!("whether a host uses the volume is not known: {why}")).await)
}

/// The same of each holder by itself: the slots of those that another program has, and why. `None`: of another one it is not so
/// that no host has used it.
pub(super) async fn foreign(task: &mut Task, of: Option<Uuid>) -> Result<Option<Vec<(usize, String)>>, Stop> {
    let mut found = Vec::new();
    for (slot, holder) in there(task).await?.0 {
        match ask(task, of, vec![(slot, holder)]).await? {
            Ok(Usage::Never) => {}
            Ok(Usage::Before | Usage::Now | Usage::Another) => return Ok(None),
            Err(error @ DriveError::Foreign(_)) => found.push((slot, error.to_string())),
            Err(error) => return Err(task.wait(said(task, slot, &error)).await),
        }
    }
    Ok(Some(found))
}

/// The same before the volume is attached: for both a majority of the holders will do, since whoever uses the volume has one of
/// these. `Err`: they were asked in vain for so long that nobody is to attach it.
async fn attachable(task: &mut Task, is_begun: bool) -> Result<Result<Usage, String>, Stop> {
    let (holders, away) = there(task).await?;
    let slots: BTreeSet<usize> = holders.iter().map(|(slot, _)| *slot).collect();
    let why = if slots.len() > task.volume.record.holders.len() / 2 {
        match ask(task, None, holders).await? {
            Ok(usage) => return Ok(Ok(usage)),
            Err(error) => error.to_string(),
        }
    } else {
        away.unwrap_or_else(|| "a majority of its holders is lost: only a delete by force does not need it".to_owned())
    };
    unattached(task, is_begun, &why).await.map(Err)
}

/// The volume can't be attached: that is waited for, and given up if nothing can have been done.
async fn unattached(task: &mut Task, is_begun: bool, why: &str) -> Result<String, Stop> {
    let said = format!("the volume can't be attached yet: {why}");
    // What came of a snapshot is told from those before it; of anything else the outcome would not be known.
    if is_begun && task.operation.record.kind != OperationKind::Snapshot {
        return Err(task.wait(said).await);
    }
    match give_up(task, said).await? {
        Err(why) => Ok(why),
        Ok(()) => Err(Stop::Later(Duration::ZERO)),
    }
}

/// Has it done. `Err`: it can't be done, and nothing was changed.
pub(super) async fn done(task: &mut Task, work: Work) -> Result<Result<Done, String>, Stop> {
    let key = keys::work(task.operation.record.id);
    let Some(asked) = task.provisioner.store.get::<Asked>(key).await? else {
        return Err(begin(task, work).await);
    };
    let work = asked.record.work.clone();
    let outcome = match asked.record.outcome.clone() {
        Some(outcome) => outcome,
        None => match by_a_host(task, &asked).await? {
            Some(why) => Outcome::Refused(why),
            None => by_ourselves(task, asked).await?,
        },
    };
    match outcome.believed(&work, task.volume.record.bytes) {
        Outcome::Refused(why) => Ok(Err(why)),
        Outcome::Done(done) => {
            note_copies(task, &done.snapshots);
            Ok(Ok(done))
        }
    }
}

/// Copies go with the replicas that have them.
pub(super) fn note_copies(task: &mut Task, known: &[Moment]) {
    for snapshot in &mut task.volume.record.snapshots {
        let found = known.iter().find(|found| found.is(&snapshot.moment));
        snapshot.moment.slots = found.map_or(0, |found| found.slots);
    }
}

/// Writes down what is asked.
async fn begin(task: &mut Task, work: Work) -> Stop {
    let key = keys::work(task.operation.record.id);
    let asked = match put(key.clone(), &Asked::new(work)) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let begun = task.record(vec![Condition::absent(key)], vec![asked]).await;
    begun.map_or_else(|stop| stop, |_| Stop::Later(Duration::ZERO))
}

/// Writes down what is asked from now on.
pub(super) async fn goes_on(task: &mut Task, work: Work) -> Stop {
    let id = task.operation.record.id;
    let changed = async {
        let mut asked = task.provisioner.store.need::<Asked>(keys::work(id), id).await?;
        let unchanged = asked.unchanged();
        // What was said before is not an answer to this.
        (asked.record.work, asked.record.heard) = (work, None);
        task.record(vec![unchanged], vec![asked.put()?]).await?;
        task.right.forget(id);
        Ok(Stop::Later(Duration::ZERO))
    };
    changed.await.unwrap_or_else(|stop| stop)
}

/// What whoever has the volume attached says of a replacement, with the snapshots that the replicas know of; asked again and again
/// until it says what is wanted. `Err`: nobody can be asked, and nobody will do anything.
pub(super) async fn progress(
    task: &mut Task,
    replacement: &Replacement,
) -> Result<Result<(Progress, Vec<Moment>), String>, Stop> {
    let id = task.operation.record.id;
    let work = Work::Replace(replacement.clone());
    let Some(asked) = task.provisioner.store.get::<Asked>(keys::work(id)).await? else {
        return Err(begin(task, work).await);
    };
    if asked.record.work != work {
        return Err(goes_on(task, work).await);
    }
    let attachment = task.volume.record.attachment.as_ref().map(|attachment| attachment.id);
    let counts = |heard: &Heard| {
        // What decides whether the former holder may go is to be new.
        let decides = !replacement.go || heard.progress.is_whole(replacement);
        let time = if decides { HOST_TIME } else { WORK_TIME };
        Some(heard.attachment) == attachment && now().saturating_sub(heard.at) < time.as_secs()
    };
    if let Some(heard) = asked.record.heard.clone().filter(counts) {
        task.right.heard(id, heard.attachment);
        return Ok(Ok((heard.progress, heard.snapshots)));
    }
    if let Some(why) = by_a_host(task, &asked).await? {
        return Ok(Err(why));
    }
    if task.volume.record.awaited {
        (task.volume.record.held, task.volume.record.awaited) = (false, false);
        task.record(Vec::new(), Vec::new()).await?;
        return Err(Stop::Later(HOST_TIME));
    }
    match by_ourselves(task, asked).await? {
        Outcome::Done(done) => {
            let silent = || "invariant: it is not said how far the volume is".to_owned();
            Ok(done.progress.map(|progress| (progress, done.snapshots)).ok_or_else(silent))
        }
        Outcome::Refused(why) => Ok(Err(why)),
    }
}

/// Waits for the host that has the volume; none: nobody has it. Otherwise why it was taken back.
async fn by_a_host(task: &mut Task, asked: &Stored<Asked>) -> Result<Option<String>, Stop> {
    if task.volume.record.held {
        return Ok(None);
    }
    let (id, is_begun) = (task.operation.record.id, asked.record.is_begun());
    let attachment = task.volume.record.attachment.clone();
    if let Some(Attachment { id: attachment, host, .. }) = &attachment
        && task.right.waiting_for(id, *attachment) < if is_begun { WORK_TIME } else { HOST_TIME }
    {
        let stop = task.wait(format!("host {host} has the volume attached, and is asked to do it")).await;
        return Err(later(stop, HOST_PAUSE));
    }
    let (why, is_given_up) = match attachable(task, is_begun).await? {
        Ok(Usage::Never | Usage::Before) => return Ok(None),
        Ok(Usage::Now) => (unasked(attachment.as_ref().map(|attachment| &attachment.host)), false),
        Ok(Usage::Another) => (ANOTHERS.to_owned(), false),
        Err(why) => (why, true),
    };
    if is_begun && !is_given_up {
        task.right.forget(id);
        let stop = task.wait(format!("somebody was told to do it, and may be at it: {why}")).await;
        // To ask takes the holders from a host for a moment; one that is known to the catalogue is heard of sooner.
        return Err(if attachment.is_some() { stop } else { later(stop, WORK_TIME) });
    }
    // Told from now on is nobody any more, and if somebody was told just now it goes on.
    let gone = vec![Change::delete(asked.entry.key.clone())];
    if !task.record(vec![asked.unchanged()], gone).await? {
        return Err(Stop::Later(Duration::ZERO));
    }
    Ok(Some(why))
}

/// The same, looked at again after another time.
pub(super) fn later(stop: Stop, pause: Duration) -> Stop {
    if matches!(stop, Stop::Later(_)) { Stop::Later(pause) } else { stop }
}

fn unasked(host: Option<&Nqn>) -> String {
    let Some(host) = host else {
        return "a host that this control plane does not know of has the volume attached: detach it there".to_owned();
    };
    format!(
        "host {host} has the volume attached and does not ask this control plane what to do: see whether it reaches the control \
         plane, or detach the volume there; of a host that is gone say `yagura control detach`"
    )
}

/// Attaches the volume, and does it.
async fn by_ourselves(task: &mut Task, mut asked: Stored<Asked>) -> Result<Outcome, Stop> {
    if !task.volume.record.held {
        task.volume.record.held = true;
        task.record(Vec::new(), Vec::new()).await?;
    }
    let is_replaced = matches!(asked.record.work, Work::Replace(_));
    if !is_replaced && !asked.record.is_begun() {
        let look = match &asked.record.work {
            Work::Restore { moment, .. } => Work::Room { moment: *moment },
            _ => Work::Look,
        };
        let looked = match attached(task, &look, false).await? {
            Ok(done) => done,
            Err(why) => return Ok(Outcome::Refused(why)),
        };
        let before = looked.snapshots.clone();
        // Half way a volume that finds no room is a part of its snapshot, and nobody's to use.
        if let Some(bytes) = looked.room
            && let Some(why) = room::lacks(task, bytes).await?
        {
            task.operation.record.reason = Some(Reason::NoRoom);
            return Ok(Outcome::Refused(why));
        }
        // A snapshot that is not believed would stay, and nobody know of it.
        if let work @ Work::Take { .. } = &asked.record.work
            && let Outcome::Refused(why) = Outcome::Done(looked).believed(work, task.volume.record.bytes)
        {
            return Ok(Outcome::Refused(why));
        }
        let unchanged = asked.unchanged();
        asked.record.before = Some(before);
        if !task.record(vec![unchanged], vec![asked.put()?]).await? {
            return Err(Stop::Lost);
        }
    }
    // What has come of a replacement is seen whenever it is asked for.
    Ok(attached(task, &asked.record.work(), !is_replaced).await?.map_or_else(Outcome::Refused, Outcome::Done))
}

async fn attached(task: &mut Task, work: &Work, is_begun: bool) -> Result<Result<Done, String>, Stop> {
    match over(task, work, None).await? {
        Ok(done) => Ok(Ok(done)),
        Err(DriveError::Refused(why)) => Ok(Err(why)),
        Err(error) => unattached(task, is_begun, &error.to_string()).await.map(Err),
    }
}

/// Attaches the volume over its holders, `instead` of that of a slot one that stands beside them.
pub(super) async fn over(
    task: &Task,
    work: &Work,
    instead: Option<(usize, usize)>,
) -> Result<Result<Done, DriveError>, Stop> {
    let mut holders = Vec::new();
    for slot in 0..task.volume.record.holders.len() {
        let at = instead.filter(|(of, _)| *of == slot).map_or(slot, |(_, at)| at);
        let holder = task.volume.record.holder(at).clone();
        let there = task.place(at).await?.zip(holder.namespace);
        holders.push(there.map(|(place, namespace)| Blank { kind: holder.kind, place, namespace }));
    }
    let (id, drives) = (task.volume.record.id, &task.provisioner.drives);
    let answer = drives.work(id, &holders, work, task.right.moving()).await;
    if matches!(answer, Err(DriveError::Unknown(_))) {
        sleep(drives.late()).await;
    }
    Ok(answer)
}
