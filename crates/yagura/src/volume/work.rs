//! What the control plane asks of whoever has a volume attached, done by the mirror: by a host that has it, and by the control
//! plane itself.

use ::control::provision::{Done, Moment, Work};
use ::volume::{Ballot, Error, Set, Snapshot, SnapshotName, Volume};
use device::Namespace;

/// Why it was not done.
#[derive(Debug)]
pub enum Undone {
    /// It can't be, and nothing was changed.
    Refused(String),
    /// It may be done, or not; asked again it is found out.
    Unknown(String),
}

/// A snapshot's name in the mirror.
pub fn name_of(moment: &Moment) -> SnapshotName {
    SnapshotName { ballot: Ballot { round: moment.round, host: moment.host }, attempt: moment.attempt }
}

/// A snapshot as the control plane has noted it.
pub fn snapshot_of(moment: &Moment) -> Snapshot {
    Snapshot { name: name_of(moment), slots: Set(moment.slots) }
}

fn moment_of(snapshot: &Snapshot) -> Moment {
    let Snapshot { name: SnapshotName { ballot, attempt }, slots: Set(slots) } = *snapshot;
    Moment { round: ballot.round, host: ballot.host, attempt, slots }
}

/// The snapshots that the replicas know of.
pub fn moments(volume: &Volume) -> Vec<Moment> {
    volume.snapshots().iter().map(moment_of).collect()
}

/// Does it. What is done already is left as it is.
pub async fn work(volume: &Volume, work: &Work) -> Result<Done, Undone> {
    let mut taken = None;
    match work {
        Work::Look => {}
        Work::Grow { bytes } => {
            if volume.info().bytes() < *bytes {
                volume.grow(*bytes).await.map_err(undone)?;
            }
        }
        Work::Take { before } => {
            let is_new = |moment: &Moment| !before.iter().any(|known| known.is(moment));
            taken = moments(volume).into_iter().find(is_new);
            if taken.is_none() {
                let name = volume.snapshot().await.map_err(undone)?;
                taken = moments(volume).into_iter().find(|moment| name_of(moment) == name);
            }
        }
        Work::Forget { moment } => volume.delete_snapshot(name_of(moment)).await.map_err(undone)?,
    }
    Ok(Done { bytes: volume.info().bytes(), snapshots: moments(volume), taken })
}

fn undone(error: Error) -> Undone {
    match error {
        Error::Impossible(_)
        | Error::TooSmall { .. }
        | Error::LogTooSmall { .. }
        | Error::NoCopies
        | Error::NotTaken { .. }
        | Error::TooManySnapshots { .. } => Undone::Refused(error.to_string()),
        _ => Undone::Unknown(error.to_string()),
    }
}
