//! Snapshots at the control plane, and what a new volume begins as: nothing, a snapshot, or another volume.
//!
//! Of another volume a snapshot is taken that is the driver's own, the new volume is made of that snapshot, and the snapshot is
//! deleted again. The snapshot's name is made of the new volume's, so that each step may be made again by whoever calls again,
//! after a crash between any two. What a caller has given up goes with either volume.

use control::provision::{Name, SnapshotView, Source, VolumeView};
use tonic::{Code, Status};

use crate::asked::required;
use crate::names::{is_passing, passing_name, snapshot_id, snapshot_of};
use crate::plane::Plane;
use crate::wire::{SnapshotId, SourceType, VolumeContentSource, VolumeId};

/// How often a volume is looked at that others change meanwhile. Chosen: who is still as far then calls again.
pub const LOOKS_MAX: usize = 4;

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

/// The size of the snapshot, which is there. One of the driver's own is taken.
pub async fn present(plane: &Plane, from: &Source) -> Result<u64, Status> {
    let Source { volume, snapshot } = from;
    if is_passing(snapshot.as_str()) {
        return taken(plane, volume.as_str(), snapshot.as_str()).await.map(|found| found.bytes);
    }
    let found = plane.snapshot(volume.as_str(), snapshot.as_str()).await?;
    let missing = || Status::not_found(format!("there is no snapshot {snapshot} of volume {volume}"));
    found.map(|found| found.bytes).ok_or_else(missing)
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

/// No snapshot of the driver's own is left, neither of the volume nor of what it was made of.
pub async fn all_own_dropped(plane: &Plane, volume: &VolumeView) -> Result<(), Status> {
    let of = |snapshot: &Name| Source { volume: volume.name.clone(), snapshot: snapshot.clone() };
    for source in volume.snapshots.iter().map(of).chain(volume.from.clone()) {
        own_dropped(plane, &source).await?;
    }
    Ok(())
}
