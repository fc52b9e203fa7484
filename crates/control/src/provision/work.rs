//! What only somebody can do who has the volume attached: the host that has it, or this control plane where nobody has.
//!
//! Invariants:
//! - This control plane attaches a volume only when it is written down that it does (`held`), which keeps hosts from attaching it,
//!   and only where the catalogue names no host, or the holders' reservations show that the host is gone.
//! - What a host may be at is not taken back: its outcome is waited for, or its end.

use std::time::Duration;

use tokio::time::sleep;

use crate::catalogue::{Change, Condition};

use super::asked::{Asked, Done, Outcome, Work};
use super::drive::give_up;
use super::drives::{Blank, DriveError, Usage};
use super::keys;
use super::name::Nqn;
use super::records::OperationKind;
use super::step::{Stop, Task};
use super::store::{Stored, put};

/// How long a host is waited for that has the volume attached by the catalogue's word and does not ask. Chosen: a few times what
/// lies between two questions.
const HOST_TIME: Duration = Duration::from_secs(10);
/// After how long it is looked whether a host lives that is to be at it. Chosen: many times what it takes, for the host loses its
/// connections for a moment.
const WORK_TIME: Duration = Duration::from_secs(120);
/// Between two looks at what a host has done.
const HOST_PAUSE: Duration = Duration::from_millis(300);

/// Whether hosts use the volume, or have used it, by those of its holders that are there.
pub(super) async fn usage(task: &mut Task) -> Result<Usage, Stop> {
    let mut holders = Vec::new();
    for (slot, holder) in task.volume.record.holders.clone().into_iter().enumerate() {
        if let (Some(namespace), Some(place)) = (holder.namespace, task.place(slot).await?) {
            holders.push(Blank { kind: holder.kind, place, namespace });
        }
    }
    if holders.is_empty() {
        return Ok(Usage::Never);
    }
    match task.provisioner.drives.usage(task.volume.record.id, &holders, task.until()?).await {
        Ok(usage) => Ok(usage),
        Err(error) => Err(task.wait(format!("whether a host uses the volume is not known: {error}")).await),
    }
}

/// Has it done. `Err`: it can't be done, and nothing was changed.
pub(super) async fn done(task: &mut Task, work: Work) -> Result<Result<Done, String>, Stop> {
    let key = keys::work(task.operation.record.id);
    let Some(asked) = task.provisioner.store.get::<Asked>(key.clone()).await? else {
        let asked = Asked { work, attachment: None, before: None, outcome: None };
        task.record(vec![Condition::absent(key.clone())], vec![put(key, &asked)?]).await?;
        return Err(Stop::Later(Duration::ZERO));
    };
    let outcome = match asked.record.outcome.clone() {
        Some(outcome) => outcome,
        None => match by_a_host(task, &asked).await? {
            Some(why) => Outcome::Refused(why),
            None => by_ourselves(task, asked).await?,
        },
    };
    match outcome {
        Outcome::Refused(why) => Ok(Err(why)),
        Outcome::Done(done) => {
            // Copies go with the replicas that have them.
            for snapshot in &mut task.volume.record.snapshots {
                let found = done.snapshots.iter().find(|found| found.is(&snapshot.moment));
                snapshot.moment.slots = found.map_or(0, |found| found.slots);
            }
            Ok(Ok(done))
        }
    }
}

/// Waits for the host that has the volume; none: nobody has it. Otherwise why it was taken back.
async fn by_a_host(task: &mut Task, asked: &Stored<Asked>) -> Result<Option<String>, Stop> {
    let Some(attachment) = task.volume.record.attachment.clone().filter(|_| !task.volume.record.held) else {
        return Ok(None);
    };
    let is_told = asked.record.attachment == Some(attachment.id);
    let waited = task.right.failing_for(task.operation.record.id);
    let host = &attachment.host;
    if waited < if is_told { WORK_TIME } else { HOST_TIME } {
        let stop = task.wait(format!("host {host} has the volume attached, and is asked to do it")).await;
        return Err(if matches!(stop, Stop::Later(_)) { Stop::Later(HOST_PAUSE) } else { stop });
    }
    if usage(task).await? != Usage::Now {
        return Ok(None);
    }
    if is_told {
        task.right.forget(task.operation.record.id);
        return Err(task.wait(format!("host {host} has the volume attached, and is at it")).await);
    }
    // Told from now on is nobody any more, and if somebody was told just now it goes on.
    let gone = vec![Change::delete(asked.entry.key.clone())];
    if !task.record(vec![asked.unchanged()], gone).await? {
        return Err(Stop::Later(Duration::ZERO));
    }
    Ok(Some(unasked(host)))
}

fn unasked(host: &Nqn) -> String {
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
    if matches!(asked.record.work, Work::Take { .. }) && asked.record.before.is_none() {
        let before = match attached(task, &Work::Look).await? {
            Ok(done) => done.snapshots,
            Err(why) => return Ok(Outcome::Refused(why)),
        };
        let unchanged = asked.unchanged();
        asked.record.before = Some(before);
        if !task.record(vec![unchanged], vec![asked.put()?]).await? {
            return Err(Stop::Lost);
        }
    }
    Ok(attached(task, &asked.record.work()).await?.map_or_else(Outcome::Refused, Outcome::Done))
}

async fn attached(task: &mut Task, work: &Work) -> Result<Result<Done, String>, Stop> {
    let mut holders = Vec::new();
    for (slot, holder) in task.volume.record.holders.clone().into_iter().enumerate() {
        let place = task.place(slot).await?;
        let there = place.zip(holder.namespace);
        holders.push(there.map(|(place, namespace)| Blank { kind: holder.kind, place, namespace }));
    }
    let (id, drives) = (task.volume.record.id, &task.provisioner.drives);
    match drives.work(id, &holders, work, task.right.moving()).await {
        Ok(done) => Ok(Ok(done)),
        Err(DriveError::Refused(why)) => Ok(Err(why)),
        Err(error) => {
            if matches!(error, DriveError::Unknown(_)) {
                sleep(task.provisioner.drives.late()).await;
            }
            let said = format!("the volume can't be attached yet: {error}");
            // Whatever came of a snapshot is told from those before it; of anything else the outcome would not be known.
            if task.operation.record.kind != OperationKind::Snapshot {
                return Err(task.wait(said).await);
            }
            match give_up(task, said).await? {
                Err(why) => Ok(Err(why)),
                Ok(()) => Err(Stop::Later(Duration::ZERO)),
            }
        }
    }
}
