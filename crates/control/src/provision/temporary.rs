//! Snapshots that were taken to make another volume: they go when that one is made, or is not.
//!
//! Invariant: such a snapshot is deleted sooner or later, whoever dies: that it is temporary stands in the volume's record, as long
//! as the snapshot does. It begins to be deleted in the transaction in which the clone lets go of it, or, where something else is
//! done to the volume then, or the volume was ill, in a later round.
//!
//! To try takes the volume's holders for a moment from a host that has it and does not ask what is wanted of it. So a snapshot that
//! could not be deleted is tried again after pauses that grow, and at once where another host has the volume by now, or none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::backoff::Backoff;
use tokio::time::Instant;
use uuid::Uuid;

use crate::catalogue::{Change, Condition};

use super::error::Error;
use super::keys;
use super::moment::Snapshot;
use super::plan::{Owner, beginning, operation};
use super::provisioner::Provisioner;
use super::records::{Operation, OperationKind, Tenant, Volume, VolumeState};
use super::step::{Stop, Task};
use super::store::{Request, Stored};

/// Between two looks at whether a snapshot is taken, or gone. Chosen: a small part of what either takes.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(300);

/// The pauses between two tries to delete a snapshot. Chosen: what a restart of a host takes, and how often a host may be disturbed
/// that does not ask.
const TRY_PAUSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

/// Temporary snapshots of the volume that nobody needs.
fn spares(volume: &Volume) -> impl Iterator<Item = &Snapshot> {
    volume.snapshots.iter().filter(|snapshot| snapshot.temporary && snapshot.clones.is_empty())
}

/// Whether the volume has nothing else to do.
fn is_idle(volume: &Volume) -> bool {
    volume.state == VolumeState::Ready && volume.operation.is_none()
}

/// When a snapshot is tried again, and who had its volume attached when that was tried last.
struct Try {
    backoff: Backoff,
    again: Instant,
    attachment: Option<Uuid>,
}

/// What was tried, by the snapshots' ids.
#[derive(Default)]
pub(super) struct Tries(BTreeMap<Uuid, Try>);

impl Tries {
    /// Whether the snapshot of a volume that has this attachment is tried now; then it is noted that it was.
    fn is_due(&mut self, snapshot: Uuid, attachment: Option<Uuid>) -> bool {
        let now = Instant::now();
        let first = || Try { backoff: Backoff::new(TRY_PAUSES.0, TRY_PAUSES.1), again: now, attachment };
        let tried = self.0.entry(snapshot).or_insert_with(first);
        if tried.attachment != attachment {
            tried.backoff.reset();
        } else if now < tried.again {
            return false;
        }
        (tried.again, tried.attachment) = (now + tried.backoff.pause(), attachment);
        true
    }
}

/// The snapshot that a clone was made of may be deleted from now on; one that was taken for it is.
pub(super) async fn let_go(
    task: &Task,
    tenant: &mut Stored<Tenant>,
    (conditions, changes): (&mut Vec<Condition>, &mut Vec<Change>),
) -> Result<(), Stop> {
    let Some(mut source) = source(task).await? else { return Ok(()) };
    let id = task.operation.record.id;
    source.record.snapshots.iter_mut().for_each(|snapshot| snapshot.clones.retain(|clone| *clone != id));
    conditions.push(source.unchanged());
    let spare = spares(&source.record).find(|_| is_idle(&source.record)).map(|snapshot| snapshot.name.clone());
    if let Some(snapshot) = spare {
        let forget = operation(OperationKind::Forget, &tenant.record, &source.record.name, 1);
        let forget = Operation { snapshot: Some(snapshot), ..forget };
        // Nobody's own wish: it is counted, and not refused.
        tenant.record.pending += 1;
        source.record.operation = Some(forget.id);
        changes.extend(beginning(&forget)?);
    }
    changes.push(source.put()?);
    Ok(())
}

/// The volume that a clone is made of.
async fn source(task: &Task) -> Result<Option<Stored<Volume>>, Stop> {
    let Operation { from, tenant, .. } = &task.operation.record;
    let Some(from) = from else { return Ok(None) };
    Ok(task.provisioner.store.get::<Volume>(keys::volume(tenant, from)).await?)
}

/// The clone is made, and hosts may have it; what was taken for it is gone, or could not be deleted for so long that the clone ends
/// without that.
pub(super) async fn dropped(task: &mut Task) -> Result<(), Stop> {
    let Some(source) = source(task).await? else { return Ok(()) };
    let (id, name) = (task.operation.record.id, &task.operation.record.snapshot);
    let mut snapshots = source.record.snapshots.iter();
    let Some(snapshot) = snapshots.find(|found| found.temporary && Some(&found.name) == name.as_ref()) else {
        return Ok(());
    };
    if snapshot.clones.contains(&id) {
        let name = &task.operation.record.tenant;
        let mut tenant = task.provisioner.store.need::<Tenant>(keys::tenant(name), name).await?;
        let (mut conditions, mut changes) = (vec![tenant.unchanged()], Vec::new());
        let_go(task, &mut tenant, (&mut conditions, &mut changes)).await?;
        changes.push(tenant.put()?);
        (task.volume.record.state, task.volume.record.held) = (VolumeState::Ready, false);
        if task.record(conditions, changes).await? {
            task.right.forget(id);
            task.provisioner.wake.notify_waiters();
        }
        return Err(Stop::Later(Duration::ZERO));
    }
    if task.right.failing_for(id) >= task.give_up {
        return Ok(());
    }
    let what =
        format!("snapshot {}, which was taken of volume {} for that, is deleted", snapshot.name, source.record.name);
    match task.wait(what).await {
        Stop::Later(_) => Err(Stop::Later(LOOK_PAUSE)),
        stop => Err(stop),
    }
}

/// Begins to delete what could not be deleted before.
pub(super) async fn round(provisioner: &Provisioner, tries: &mut Tries) -> Result<(), Error> {
    let volumes = provisioner.store.all::<Volume>(keys::all("volume")).await?;
    let there: BTreeSet<Uuid> =
        volumes.iter().flat_map(|volume| spares(&volume.record)).map(|snapshot| snapshot.id).collect();
    tries.0.retain(|snapshot, _| there.contains(snapshot));
    for Stored { record: volume, .. } in volumes.into_iter().filter(|volume| is_idle(&volume.record)) {
        let attachment = volume.attachment.as_ref().map(|attachment| attachment.id);
        let due = spares(&volume).find(|snapshot| tries.is_due(snapshot.id, attachment));
        let Some(snapshot) = due else { continue };
        let owner = Owner { name: volume.tenant.clone(), id: None };
        let begun = provisioner.delete_snapshot(&Request::unnamed(), &owner, &volume.name, &snapshot.name).await;
        // Of any other error somebody was quicker, or the tenant has too much under way: it is looked at again.
        if let Err(error @ Error::Catalogue(_)) = begun {
            return Err(error);
        }
    }
    Ok(())
}
