//! Snapshots at the control plane, and what a new volume begins as: nothing, a snapshot, or another volume.
//!
//! Of another volume a snapshot is taken that is the driver's own, the new volume is made of that snapshot, and the snapshot is
//! deleted again. The snapshot's name is made of the new volume's, so that each step may be made again by whoever calls again,
//! after a crash between any two. What a caller has given up goes with either volume, is looked for when a volume is deleted that
//! is not there, and is not used when it has become old: a copy would be of an earlier day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use control::provision::{Name, SnapshotView, Source, VolumeView};
use tonic::{Code, Status};

use crate::asked::required;
use crate::names::{is_passing, passing_name, snapshot_id, snapshot_of};
use crate::plane::{Page, Plane};
use crate::wire::{SnapshotId, SourceType, VolumeContentSource, VolumeId};

/// How often a volume is looked at that others change meanwhile. Chosen: who is still as far then calls again.
pub const LOOKS_MAX: usize = 4;
/// How old a snapshot of the driver's own is at most of which a volume is made. Chosen: a few calls of somebody who waits a minute
/// for each; the clocks of the control plane and of this machine may differ by less.
const OWN_AGE_MAX: Duration = Duration::from_secs(300);

/// What a new volume of that name is to begin as; none: it is to be empty.
pub fn origin(asked: Option<&VolumeContentSource>, new: &str) -> Result<Option<Source>, Status> {
    let Some(asked) = asked else { return Ok(None) };
    match &asked.source {
        None => Err(Status::invalid_argument("volume_content_source says neither a snapshot nor a volume")),
        Some(SourceType::Snapshot(SnapshotId { snapshot_id: id })) => {
            let missing = || Status::not_found(format!("there is no snapshot {id}"));
            snapshot_of(required("snapshot_id", id)?).map(Some).ok_or_else(missing)
        }
        Some(SourceType::Volume(VolumeId { volume_id: id })) => {
            let volume = Name::new(required("volume_id", id)?);
            let volume = volume.map_err(|_| Status::not_found(format!("there is no volume {id}")))?;
            Ok(Some(Source { volume, snapshot: passing_name(new) }))
        }
    }
}

/// What a volume was made of, as it was asked for.
pub fn content_source(volume: &VolumeView) -> Option<VolumeContentSource> {
    let Source { volume, snapshot } = volume.from.as_ref()?;
    let source = match is_passing(snapshot.as_str()) {
        true => SourceType::Volume(VolumeId { volume_id: volume.to_string() }),
        false => SourceType::Snapshot(SnapshotId { snapshot_id: snapshot_id(volume.as_str(), snapshot.as_str()) }),
    };
    Some(VolumeContentSource { source: Some(source) })
}

/// The size of the snapshot, which is there and has a copy. One of the driver's own is taken, anew where an old one was left.
pub async fn present(plane: &Plane, from: &Source) -> Result<u64, Status> {
    let Source { volume, snapshot } = from;
    if is_passing(snapshot.as_str()) {
        let mut found = taken(plane, volume.as_str(), snapshot.as_str()).await?;
        if found.copies.is_empty() || is_old(&found) {
            dropped(plane, from).await?;
            found = taken(plane, volume.as_str(), snapshot.as_str()).await?;
        }
        return Ok(found.bytes);
    }
    match plane.snapshot(volume.as_str(), snapshot.as_str()).await? {
        Some(found) if found.copies.is_empty() => {
            let why =
                format!("snapshot {snapshot} of volume {volume} has no copy any more: no volume can be made of it");
            Err(Status::failed_precondition(why))
        }
        Some(found) => Ok(found.bytes),
        None => Err(Status::not_found(format!("there is no snapshot {snapshot} of volume {volume}"))),
    }
}

/// Whether the snapshot may be of another call's time. One of the future is of a clock that says nothing.
fn is_old(snapshot: &SnapshotView) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    now.abs_diff(snapshot.created) > OWN_AGE_MAX.as_secs()
}

/// The volume, when what was under way on it has ended, whatever came of that.
pub async fn settled(plane: &Plane, volume: &str) -> Result<VolumeView, Status> {
    for _ in 0..LOOKS_MAX {
        let found = plane.volume(volume).await?;
        let found = found.ok_or_else(|| Status::not_found(format!("there is no volume {volume}")))?;
        match found.operation {
            Some(operation) => drop(plane.operation(&operation.to_string()).await?),
            None => return Ok(found),
        }
    }
    Err(Status::aborted(format!("volume {volume} is changed again and again by others: call again")))
}

/// The snapshot of that name, which is taken unless it is there.
pub async fn taken(plane: &Plane, volume: &str, name: &str) -> Result<SnapshotView, Status> {
    for _ in 0..LOOKS_MAX {
        settled(plane, volume).await?;
        if let Some(found) = plane.snapshot(volume, name).await? {
            return Ok(found);
        }
        match plane.take(volume, name).await {
            // Another call was first.
            Err(status) if status.code() == Code::AlreadyExists => {}
            taken => taken?.map_err(|why| Status::unavailable(format!("the snapshot was not taken: {why}")))?,
        }
    }
    Err(Status::aborted(format!("snapshot {name} is taken and deleted again and again by others: call again")))
}

/// The snapshot is not there any more.
pub async fn dropped(plane: &Plane, from: &Source) -> Result<(), Status> {
    let Source { volume, snapshot } = from;
    match settled(plane, volume.as_str()).await {
        Err(status) if status.code() == Code::NotFound => return Ok(()),
        Err(status) => return Err(status),
        Ok(found) if !found.snapshots.contains(snapshot) => return Ok(()),
        Ok(_) => {}
    }
    let kept = |why: String| Status::unavailable(format!("the snapshot was not deleted: {why}"));
    plane.forget(volume.as_str(), snapshot.as_str()).await?.map_err(kept)
}

/// The same of what a volume was made of, if that is the driver's own snapshot. Its volume is not waited for where it is gone.
pub async fn own_dropped(plane: &Plane, from: &Source) -> Result<(), Status> {
    let Source { volume, snapshot } = from;
    if is_passing(snapshot.as_str()) && plane.snapshot(volume.as_str(), snapshot.as_str()).await?.is_some() {
        return dropped(plane, from).await;
    }
    Ok(())
}

/// The same where it keeps nobody from what was asked for: the volume that it is of may be ill.
pub async fn own_dropped_or_left(plane: &Plane, from: &Source) {
    if let Err(status) = own_dropped(plane, from).await {
        let Source { volume, snapshot } = from;
        tracing::warn!(%volume, %snapshot, why = status.message(), "a snapshot of the driver's own is left");
    }
}

/// No snapshot of the driver's own is left that keeps the volume; what it was made of may keep one.
pub async fn all_own_dropped(plane: &Plane, volume: &VolumeView) -> Result<(), Status> {
    for snapshot in &volume.snapshots {
        own_dropped(plane, &Source { volume: volume.name.clone(), snapshot: snapshot.clone() }).await?;
    }
    if let Some(from) = &volume.from {
        own_dropped_or_left(plane, from).await;
    }
    Ok(())
}

/// No snapshot is left that was taken to make the volume of that name, of which there is none: a later volume of the name would
/// begin as what it was taken for.
pub async fn given_up(plane: &Plane, volume: &str) -> Result<(), Status> {
    let snapshot = passing_name(volume);
    for volume in volumes_with(plane, snapshot.as_str()).await? {
        dropped(plane, &Source { volume, snapshot: snapshot.clone() }).await?;
    }
    Ok(())
}

/// The volumes that have a snapshot of that name.
pub async fn volumes_with(plane: &Plane, snapshot: &str) -> Result<Vec<Name>, Status> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let Page { items, next } = plane.volumes(after.as_deref()).await?;
        let has = |volume: &VolumeView| volume.snapshots.iter().any(|name| name.as_str() == snapshot);
        found.extend(items.into_iter().filter(has).map(|volume| volume.name));
        if next.is_none() {
            return Ok(found);
        }
        after = next;
    }
}
