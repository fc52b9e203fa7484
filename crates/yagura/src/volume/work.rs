//! What the control plane asks of whoever has a volume attached, done by the mirror: by a host that has it, and by the control
//! plane itself.

use std::time::Duration;

use ::control::provision::{Done, Epoch, Moment, Progress, Replacement, Restored, Stopped, Work};
use ::volume::{BackupError, Ballot, Error, Origin, Set, Shape, Snapshot, SnapshotId, SnapshotName, Volume};
use device::{Error as DeviceError, Namespace};

/// How long a volume is put back to a snapshot at a time. Chosen: what an operator waits for to see how far it is, and many times
/// what attaching the volume takes.
const RESTORED_TIME: Duration = Duration::from_secs(10);

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

/// Whether an import has taken the snapshot for itself ([`::volume::import`]): it is nobody else's.
fn is_own(volume: &Volume, moment: &Moment) -> bool {
    volume.origin().and_then(|origin| origin.own()) == Some(name_of(moment))
}

/// Does it. What is done already is left as it is. `gone`: the slots whose holders are given up for good.
pub async fn work(volume: &Volume, work: &Work, gone: Set) -> Result<Done, Undone> {
    let (mut taken, mut progress, mut restored, mut room) = (None, None, None, None);
    match work {
        Work::Look => {}
        Work::Grow { bytes } => {
            if volume.info().bytes() < *bytes {
                volume.grow(*bytes).await.map_err(undone)?;
            }
        }
        Work::Take { before } => {
            let is_new = |moment: &Moment| !before.iter().any(|known| known.is(moment)) && !is_own(volume, moment);
            taken = moments(volume).into_iter().find(is_new);
            if taken.is_none() {
                let name = volume.snapshot().await.map_err(undone)?;
                taken = moments(volume).into_iter().find(|moment| name_of(moment) == name);
            }
        }
        // Whoever has noted that one forgets it; it goes with the next import.
        Work::Forget { moment } if is_own(volume, moment) => {}
        Work::Forget { moment } => volume.delete_snapshot(name_of(moment)).await.map_err(undone)?,
        // The mirror takes the new holder in by itself, once it is reached.
        Work::Replace(replacement) => progress = Some(progress_of(volume, replacement)),
        Work::Room { moment } => room = Some(room_for(volume, moment).await?),
        Work::Restore { moment, at, by } => restored = Some(restore(volume, moment, (*at, *by), gone).await?),
    }
    Ok(Done { bytes: volume.info().bytes(), snapshots: moments(volume), taken, progress, restored, room })
}

fn source_of(volume: &Volume, moment: &Moment) -> SnapshotId {
    SnapshotId { volume: volume.shape().volume, name: name_of(moment) }
}

/// Whether the volume is a part of the snapshot already, also by a record that is not stable yet.
fn is_part_of(volume: &Volume, source: SnapshotId) -> bool {
    volume.record().0.origin == Some(Origin::InPart { source, base: None })
}

/// Bytes of room that are needed at a drive, at most. Of what has begun it is not asked: that goes on.
async fn room_for(volume: &Volume, moment: &Moment) -> Result<u64, Undone> {
    let source = source_of(volume, moment);
    if is_part_of(volume, source) {
        return Ok(0);
    }
    let view = volume.snapshot_view(source.name).await.map_err(unread)?;
    ::volume::room(volume, &view).await.map_err(|error| Undone::Unknown(error.to_string()))
}

/// Nothing is changed before there is a copy that can be read.
fn unread(error: Error) -> Undone {
    Undone::Refused(format!("the snapshot can't be read: {error}"))
}

fn epoch(ballot: Ballot) -> Epoch {
    Epoch { round: ballot.round, host: ballot.host }
}

/// Puts the volume back to a snapshot, for some time. What has begun is refused no more: the volume has a part of the snapshot.
///
/// All before `at` is done by the record `by`. Where that is not the record that this host has gone on from somebody else has had
/// the volume, past the control plane, and may have written there: it is begun anew, which writes nothing twice.
async fn restore(
    volume: &Volume,
    moment: &Moment,
    (at, by): (u64, Option<Epoch>),
    gone: Set,
) -> Result<Restored, Undone> {
    let source = source_of(volume, moment);
    let (record, bytes) = (volume.record().0, volume.info().bytes());
    let is_begun = is_part_of(volume, source);
    // Whoever asks has begun, and may have learnt that from an older copy of the catalogue: what was written since stays.
    if at > 0 && !is_begun {
        return match record.origin {
            Some(Origin::Whole { source: of, .. }) if of == source => {
                Ok(Restored { at: bytes, left: 0, by: None, stopped: None })
            }
            _ => Err(Undone::Refused("the volume is no part of the snapshot any more: ask again".to_owned())),
        };
    }
    let at = if by == Some(epoch(volume.before())) { at } else { 0 };
    let stands = |stopped| Restored { at, left: bytes - at.min(bytes), by: Some(epoch(record.ballot)), stopped };
    let restored = async {
        let view = volume.snapshot_view(source.name).await.map_err(unread)?;
        match ::volume::restore(volume, &view, at, RESTORED_TIME).await {
            Ok(::volume::Restored { at, left }) => Ok(Restored { at, left, ..stands(None) }),
            Err(BackupError::Device { source: DeviceError::OutOfSpace, .. }) => Ok(stands(Some(Stopped::Full))),
            Err(BackupError::Volume(error)) => Err(undone(error)),
            Err(error @ BackupError::InPart { .. }) => Err(Undone::Refused(error.to_string())),
            Err(error) => Err(Undone::Unknown(error.to_string())),
        }
    };
    match restored.await {
        // It goes forward for as long as it can.
        Err(Undone::Refused(_)) if is_begun && volume.has_lost(source.name, gone).await => {
            Ok(stands(Some(Stopped::Lost)))
        }
        Err(Undone::Refused(why)) if is_begun => Err(Undone::Unknown(why)),
        done => done,
    }
}

/// How far the volume is with a new holder.
pub fn progress_of(volume: &Volume, replacement: &Replacement) -> Progress {
    let (record, is_stable) = volume.record();
    let (slot, life) = (replacement.slot, replacement.life.as_u128());
    let has = |lives: &[u128]| lives.get(slot) == Some(&life);
    let is_taken = is_stable && has(&record.lives) && has(&record.lives_before);
    let Shape { region_blocks, block_size, .. } = volume.shape();
    let marked = volume.regions_marked().saturating_mul(u64::from(region_blocks) * u64::from(block_size));
    let (in_sync, holding) = (volume.in_sync().0, volume.holding().0);
    Progress { in_sync, holding, is_taken, left: marked.min(volume.info().bytes()) }
}

/// Waits until there is nothing to wait for: for so long at most.
pub async fn settled(volume: &Volume, replacement: &Replacement, time: Duration) {
    let all = Set::first(usize::from(volume.shape().replicas));
    let is_settled = || {
        let progress = progress_of(volume, replacement);
        // Until the new one is used, those that stay are waited for.
        let without = |all: Set| all.without(Set::one(replacement.slot));
        let (others, replicas) = (without(Set::first(volume.shape().holders())), without(all));
        let lack = others.without(volume.holding()).with(replicas.without(volume.in_sync()));
        if replacement.go { progress.is_whole(replacement) } else { lack.is_empty() }
    };
    let until_settled = async {
        loop {
            let changed = volume.changed();
            if is_settled() || volume.is_superseded() {
                return;
            }
            changed.await;
        }
    };
    // What is not settled by then is asked for again.
    let _ = engine::time::timeout(time, until_settled).await;
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
