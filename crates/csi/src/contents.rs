//! Snapshots at the control plane, and what a new volume begins as: nothing, a snapshot, or another volume.
//!
//! A copy of a volume as it is is one request: the control plane takes the snapshot that it needs for that, and deletes it.

use control::provision::{Name, SnapshotView, Source, VolumeView};
use tonic::{Code, Status};

use crate::asked::required;
use crate::names::{snapshot_id, snapshot_of};
use crate::plane::{Page, Plane};
use crate::wire::{SnapshotId, SourceType, VolumeContentSource, VolumeId};

/// How often a volume is looked at that others change meanwhile. Chosen: who is still as far then calls again.
pub const LOOKS_MAX: usize = 4;

/// What a new volume is to begin as; none: it is to be empty.
pub fn origin(asked: Option<&VolumeContentSource>) -> Result<Option<Source>, Status> {
    let Some(asked) = asked else { return Ok(None) };
    match &asked.source {
        None => Err(Status::invalid_argument("volume_content_source says neither a snapshot nor a volume")),
        Some(SourceType::Snapshot(SnapshotId { snapshot_id: id })) => {
            let missing = || Status::not_found(format!("there is no snapshot {id}"));
            let (volume, snapshot) = snapshot_of(required("snapshot_id", id)?).ok_or_else(missing)?;
            Ok(Some(Source { volume, snapshot: Some(snapshot) }))
        }
        Some(SourceType::Volume(VolumeId { volume_id: id })) => {
            let volume = Name::new(required("volume_id", id)?);
            let volume = volume.map_err(|_| Status::not_found(format!("there is no volume {id}")))?;
            Ok(Some(Source { volume, snapshot: None }))
        }
    }
}

/// What a volume was made of, as it was asked for.
pub fn content_source(volume: &VolumeView) -> Option<VolumeContentSource> {
    let Source { volume, snapshot } = volume.from.as_ref()?;
    let source = match snapshot {
        None => SourceType::Volume(VolumeId { volume_id: volume.to_string() }),
        Some(snapshot) => {
            SourceType::Snapshot(SnapshotId { snapshot_id: snapshot_id(volume.as_str(), snapshot.as_str()) })
        }
    };
    Some(VolumeContentSource { source: Some(source) })
}

/// The size of what a volume is to be made of: of the snapshot, which is there and has a copy, or of the volume, on which nothing
/// is under way.
pub async fn present(plane: &Plane, from: &Source) -> Result<u64, Status> {
    let Source { volume, snapshot } = from;
    let Some(snapshot) = snapshot else { return Ok(settled(plane, volume.as_str()).await?.bytes) };
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
pub async fn dropped(plane: &Plane, volume: &Name, snapshot: &Name) -> Result<(), Status> {
    match settled(plane, volume.as_str()).await {
        Err(status) if status.code() == Code::NotFound => return Ok(()),
        Err(status) => return Err(status),
        Ok(found) if !found.snapshots.contains(snapshot) => return Ok(()),
        Ok(_) => {}
    }
    let kept = |why: String| Status::unavailable(format!("the snapshot was not deleted: {why}"));
    plane.forget(volume.as_str(), snapshot.as_str()).await?.map_err(kept)
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
