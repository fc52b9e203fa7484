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
//! - How far it is is written down when all before that is stable: whoever goes on begins there.
//!
//! [`VolumeState::Restoring`]: super::records::VolumeState::Restoring

use super::asked::{Done, Restored, Work};
use super::ending::{failed, ready};
use super::records::OperationState;
use super::step::{Stop, Task};
use super::work;

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
    match work::done(task, Work::Restore { moment, at: 0 }).await? {
        Ok(Done { restored: Some(Restored { at, left }), .. }) if left > 0 => {
            task.operation.record.waits = Some(format!("{left} bytes of the snapshot may be left to be written"));
            Err(work::goes_on(task, Work::Restore { moment, at }).await)
        }
        Ok(_) => ready(task, OperationState::Done).await,
        Err(why) => failed(task, why).await,
    }
}
