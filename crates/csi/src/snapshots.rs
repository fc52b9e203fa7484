//! Snapshots as the Controller service has them: taken, deleted and listed.

use control::provision::SnapshotView;
use tonic::Status;

use crate::asked::{after, most, required, token};
use crate::contents::{dropped, taken, volumes_with};
use crate::controller::Controller;
use crate::names::{snapshot_id, snapshot_of, volume_name};
use crate::plane::{Page, is_name};
use crate::wire::{
    CreateSnapshotRequest, Nothing, OneSnapshot, Snapshot, SnapshotId, SnapshotsRequest, SnapshotsResponse, Timestamp,
};

impl Controller {
    /// `CreateSnapshot`: what was taken now is ready to be used; what was there may have lost its copies.
    pub async fn take(&self, request: CreateSnapshotRequest) -> Result<OneSnapshot, Status> {
        let name = volume_name(required("name", &request.name)?);
        let volume = required("source_volume_id", &request.source_volume_id)?;
        // A word that nobody understands is refused: what was meant by it would not be had.
        if let Some(word) = request.parameters.keys().find(|word| !word.starts_with("csi.storage.k8s.io/")) {
            return Err(Status::invalid_argument(format!("parameter {word:?} is unknown: snapshots have none")));
        }
        if !is_name(volume) {
            return Err(Status::not_found(format!("there is no volume {volume}")));
        }
        if let Some(found) = self.plane.snapshot(volume, &name).await? {
            return Ok(one(&found));
        }
        if let Some(other) = volumes_with(&self.plane, &name).await?.iter().find(|other| other.as_str() != volume) {
            let why = format!("there is a snapshot of that name already, of volume {other}");
            return Err(Status::already_exists(why));
        }
        taken(&self.plane, volume, &name).await.map(|found| one(&found))
    }

    /// `DeleteSnapshot`
    pub async fn forget(&self, request: SnapshotId) -> Result<Nothing, Status> {
        // Of an id that no snapshot has there is none.
        if let Some((volume, snapshot)) = snapshot_of(required("snapshot_id", &request.snapshot_id)?) {
            dropped(&self.plane, &volume, &snapshot).await?;
        }
        Ok(Nothing {})
    }

    /// `ListSnapshots`: by the names of volumes and snapshots, so that a token holds when what it names is gone.
    pub async fn snapshots(&self, request: SnapshotsRequest) -> Result<SnapshotsResponse, Status> {
        let most = most(request.max_entries)?;
        let after = after::<2>(&request.starting_token)?;
        let mut found = match request.snapshot_id.as_str() {
            "" => self.listed(&request.source_volume_id, after.as_ref(), most).await?,
            id => self.known(id, &request.source_volume_id).await?.into_iter().collect(),
        };
        let has_more = found.len() > most;
        found.truncate(most);
        let last = found.last().filter(|_| has_more).map(id);
        Ok(SnapshotsResponse { entries: found.iter().map(one).collect(), next_token: token(last) })
    }

    async fn known(&self, id: &str, volume: &str) -> Result<Option<SnapshotView>, Status> {
        match snapshot_of(id).filter(|(of, _)| volume.is_empty() || of.as_str() == volume) {
            Some((volume, snapshot)) => self.plane.snapshot(volume.as_str(), snapshot.as_str()).await,
            None => Ok(None),
        }
    }

    /// The snapshots of one volume, or of all, behind those that were listed before: more than are wanted where there are more.
    async fn listed(
        &self,
        volume: &str,
        after: Option<&[String; 2]>,
        most: usize,
    ) -> Result<Vec<SnapshotView>, Status> {
        let begin = after.map(|[volume, _]| volume.as_str());
        if !volume.is_empty() {
            return if is_name(volume) { self.of_volume(volume, after).await } else { Ok(Vec::new()) };
        }
        let mut found = match begin {
            Some(begin) => self.of_volume(begin, after).await?,
            None => Vec::new(),
        };
        let mut page_after = begin.map(str::to_owned);
        while found.len() <= most {
            let Page { items, next } = self.plane.volumes(page_after.as_deref()).await?;
            for volume in items.iter().filter(|volume| !volume.snapshots.is_empty()) {
                found.extend(self.of_volume(volume.name.as_str(), None).await?);
                if found.len() > most {
                    break;
                }
            }
            if next.is_none() {
                break;
            }
            page_after = next;
        }
        Ok(found)
    }

    /// A volume's snapshots but for those that the control plane has taken for itself, by name, behind the one listed last.
    async fn of_volume(&self, volume: &str, after: Option<&[String; 2]>) -> Result<Vec<SnapshotView>, Status> {
        let mut found = self.plane.snapshots(volume).await?.unwrap_or_default();
        let is_new = |name: &str| after.is_none_or(|[of, last]| of != volume || name > last.as_str());
        found.retain(|snapshot| !snapshot.temporary && is_new(snapshot.name.as_str()));
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

fn id(snapshot: &SnapshotView) -> String {
    snapshot_id(snapshot.volume.as_str(), snapshot.name.as_str())
}

fn one(snapshot: &SnapshotView) -> OneSnapshot {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let creation_time = Some(Timestamp { seconds: number(snapshot.created) });
    let (snapshot_id, source_volume_id) = (id(snapshot), snapshot.volume.to_string());
    let size_bytes = number(snapshot.bytes);
    let ready_to_use = !snapshot.copies.is_empty();
    let snapshot = Snapshot { size_bytes, snapshot_id, source_volume_id, creation_time, ready_to_use };
    OneSnapshot { snapshot: Some(snapshot) }
}
