//! A volume is put back to one of its snapshots, in place: its holders stay, and get the bytes of the snapshot where they have
//! others. So all of its snapshots stay, too, older ones and newer ones.
//!
//! Invariants:
//! - No host gets the volume from when the operation is asked for until it has ended ([`VolumeState::Restoring`]), and none that
//!   has the volume past the catalogue loses it.
//! - What the volume had before is nowhere, once something was changed: from then on the operation goes forward until the volume
//!   is as the snapshot. Whether something was changed stands on the replicas (`volume::Origin`), by which who has the volume
//!   attached tells a failure from a refusal.
//! - What was begun by an older copy of the catalogue is not gone on with: hosts may have written since ([`super::restored`]).
//! - How far it is is written down when all before that is stable, with the attachment by which it was: whoever goes on begins
//!   there, or anew where somebody else has had the volume in between.
//! - It ends before the volume is whole only where no copy of the snapshot is left, also none on a drive that is only away. Then
//!   the volume's record says that it is a part, and no host gets it but by force.
//!
//! [`VolumeState::Restoring`]: super::records::VolumeState::Restoring

use std::time::Duration;

use super::asked::{Done, Restored, Stopped, Work};
use super::ending::{failed, ready};
use super::reason::Reason;
use super::records::OperationState;
use super::room;
use super::step::{Stop, Task};
use super::work;

/// Before it is tried again where no room was left. Chosen: to try attaches the volume, and room is made by people.
const FULL_PAUSE: Duration = Duration::from_secs(10);

/// Goes on until the volume is as the snapshot.
pub(super) async fn advance(task: &mut Task) -> Result<(), Stop> {
    if let Some(why) = task.operation.record.undo.clone() {
        return failed(task, why).await;
    }
    let name = task.operation.record.snapshot.as_ref();
    let found = task.volume.record.snapshots.iter().find(|snapshot| Some(&snapshot.name) == name);
    let Some(moment) = found.map(|snapshot| snapshot.moment) else {
        return failed(task, "invariant: the operation names a snapshot of the volume".to_owned()).await;
    };
    match work::done(task, Work::Restore { moment, at: 0, by: None }).await? {
        Ok(Done { restored: Some(Restored { stopped: Some(Stopped::Lost), .. }), .. }) => lost(task).await,
        Ok(Done { restored: Some(Restored { at, left, by, stopped }), .. }) if left > 0 => {
            let (mut waits, mut pause) =
                (format!("{left} bytes of the snapshot may be left to be written"), Duration::ZERO);
            if stopped == Some(Stopped::Full) {
                let free = room::free(task).await?;
                waits = format!("no room is left on a drive ({free}), and {waits}: delete something there");
                pause = FULL_PAUSE;
            }
            task.operation.record.waits = Some(waits);
            Err(work::later(work::goes_on(task, Work::Restore { moment, at, by }).await, pause))
        }
        Ok(_) => {
            task.volume.record.part = None;
            ready(task, OperationState::Done).await
        }
        Err(why) => failed(task, why).await,
    }
}

/// No copy of the snapshot is left, and something was written.
async fn lost(task: &mut Task) -> Result<(), Stop> {
    let Some(snapshot) = task.operation.record.snapshot.clone() else { return Ok(()) };
    let why = format!(
        "no copy of snapshot {snapshot} is left, and the volume has a part of it: put it back to another snapshot, or delete it"
    );
    (task.volume.record.part, task.operation.record.reason) = (Some(snapshot), Some(Reason::SnapshotLost));
    failed(task, why).await
}
