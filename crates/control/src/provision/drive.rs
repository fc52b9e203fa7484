//! What a step does to a drive, and says of it.

use tokio::time::sleep;
use uuid::Uuid;

use super::drives::{DriveError, Look, Place};
use super::records::Namespace;
use super::step::{Stop, Task};

/// Whether a step was done, or why the operation is to be undone.
pub(super) type Made = Result<(), String>;

/// A drive was not reached: the create waits for it, or is to be undone because it has waited for long enough.
pub(super) async fn give_up(task: &mut Task, said: String) -> Result<Made, Stop> {
    if task.right.failing_for(task.operation.record.id) >= task.give_up {
        return Ok(Err(said));
    }
    Err(task.wait(said).await)
}

/// A drive shows a namespace that it has deleted by its own word: it is asked again, but not without a pause.
pub(super) async fn still_there(task: &mut Task, slot: usize) -> Stop {
    task.wait(format!("{} still shows a namespace that it was to delete", drive(task, slot))).await
}

/// Another operation has the drive of the slot.
pub(super) fn taken(task: &Task, slot: usize, by: Uuid) -> String {
    format!("{} is taken by operation {by}", drive(task, slot))
}

/// Deletes one namespace. When the answer is lost nothing of it is on its way any more afterwards.
pub(super) async fn delete(task: &Task, place: &Place, namespace: Namespace) -> Result<Result<(), DriveError>, Stop> {
    let answer = task.provisioner.drives.delete(place, namespace, task.until()?).await;
    if matches!(answer, Err(DriveError::Unknown(_))) {
        sleep(task.provisioner.drives.late()).await;
        return Ok(Ok(()));
    }
    Ok(answer)
}

/// What the drive says of itself.
pub(super) async fn look(task: &Task, place: &Place) -> Result<Look, DriveError> {
    task.provisioner.look(place).await
}

/// The drive of a holder, in words.
pub(super) fn drive(task: &Task, slot: usize) -> String {
    format!("drive {}", task.volume.record.holder(slot).drive)
}

/// What a drive said.
pub(super) fn said(task: &Task, slot: usize, error: &DriveError) -> String {
    format!("{}: {error}", drive(task, slot))
}

/// That a drive is gone for good.
pub(super) fn is_out(task: &Task, slot: usize) -> String {
    format!("{} is out", drive(task, slot))
}
