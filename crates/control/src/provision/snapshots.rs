//! Snapshots of volumes: taken and deleted by operations.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::error::Error;
use super::moment::{Moment, Snapshot};
use super::name::Name;
use super::plan::{Owner, begin_on, count, operation};
use super::provisioner::Provisioner;
use super::records::{Attachment, OperationKind, Volume, VolumeState};
use super::store::{Planning, Request, Stored};

/// Snapshots of a volume, at most. Derived: as many fit into the mirror's record in blocks of 4 KiB, with some to spare for those
/// that attempts have left.
pub const SNAPSHOTS_MAX: usize = 128;

/// A snapshot that is to be taken.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// The name that it gets.
    pub name: Name,
}

/// A snapshot of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotView {
    /// Its own.
    pub id: Uuid,
    /// The volume that it is of.
    pub volume: Name,
    /// Its name among those of that volume.
    pub name: Name,
    /// The volume's size then.
    pub bytes: u64,
    /// The slots whose replicas have a copy.
    pub copies: Vec<usize>,
    /// What the replicas know it by.
    pub moment: Moment,
    /// When it was there, in seconds of the Unix epoch.
    pub created: u64,
    /// It was taken to make another volume, and is deleted by itself.
    #[serde(default)]
    pub temporary: bool,
    /// Why it is there still, though it was to be deleted: that is tried again.
    #[serde(default)]
    pub waits: Option<String>,
}

/// To what a volume is to be put back.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restoring {
    /// That snapshot of the volume.
    pub snapshot: Name,
}

fn view(volume: &Name, snapshot: &Snapshot) -> SnapshotView {
    let Snapshot { id, name, bytes, moment, created, temporary, left: waits, .. } = snapshot.clone();
    let copies = (0..8).filter(|slot| moment.has(*slot)).collect();
    SnapshotView { id, volume: volume.clone(), name, bytes, copies, moment, created, temporary, waits }
}

fn found(volume: &Volume, name: &Name) -> Result<Snapshot, Error> {
    let missing = || Error::NotFound { kind: "snapshot", name: format!("{name} of volume {}", volume.name) };
    volume.snapshots.iter().find(|snapshot| snapshot.name == *name).cloned().ok_or_else(missing)
}

/// Whether what the volume holds is worth being kept: it is no part of a snapshot that is lost.
pub(super) fn is_whole(volume: &Volume) -> Result<(), Error> {
    match &volume.part {
        Some(snapshot) => Err(Error::Part { volume: volume.name.clone(), snapshot: snapshot.clone() }),
        None => Ok(()),
    }
}

/// Whether the volume can have one more.
pub(super) fn has_room(volume: &Volume) -> Result<(), Error> {
    match volume.snapshots.len() {
        SNAPSHOTS_MAX.. => Err(Error::Limit { kind: "snapshots of the volume", limit: SNAPSHOTS_MAX }),
        _ => Ok(()),
    }
}

impl Provisioner {
    /// Begins to take a snapshot of a volume; the answer is the operation's id. Its moment lies between this request and the
    /// operation's end.
    pub async fn take_snapshot(
        &self,
        request: &Request,
        owner: &Owner,
        volume: &Name,
        new: &NewSnapshot,
    ) -> Result<Uuid, Error> {
        let check = |volume: &Volume| {
            if volume.snapshots.iter().any(|snapshot| snapshot.name == new.name) {
                return Err(Error::Exists {
                    kind: "snapshot",
                    name: format!("{} of volume {}", new.name, volume.name),
                });
            }
            is_whole(volume)?;
            has_room(volume)
        };
        self.about(request, owner, volume, (OperationKind::Snapshot, &new.name), check).await
    }

    /// Begins to delete a snapshot; the answer is the operation's id. Volumes that were made of it stay: on a drive a clone is
    /// independent of what it was made of.
    pub async fn delete_snapshot(
        &self,
        request: &Request,
        owner: &Owner,
        volume: &Name,
        name: &Name,
    ) -> Result<Uuid, Error> {
        let check = |volume: &Volume| match found(volume, name)?.clones.first() {
            Some(clone) => {
                let by = format!("operation {clone}, which makes a volume of it");
                Err(Error::InUse { kind: "snapshot", name: name.clone(), by })
            }
            None => Ok(()),
        };
        self.about(request, owner, volume, (OperationKind::Forget, name), check).await
    }

    /// Begins to put a volume, which no host has attached, back to one of its snapshots; the answer is the operation's id. All
    /// snapshots stay. What the volume has grown by since becomes zeroes.
    pub async fn restore_volume(
        &self,
        request: &Request,
        owner: &Owner,
        volume: &Name,
        snapshot: &Name,
    ) -> Result<Uuid, Error> {
        let check = |volume: &Volume| {
            if let Some(Attachment { host, .. }) = &volume.attachment {
                return Err(Error::AttachedStill { volume: volume.name.clone(), host: host.clone() });
            }
            match found(volume, snapshot)?.moment.slots {
                0 => Err(Error::Impossible(format!(
                    "snapshot {snapshot} of volume {} has no copy any more: choose another one",
                    volume.name
                ))),
                _ => Ok(()),
            }
        };
        self.about(request, owner, volume, (OperationKind::Restore, snapshot), check).await
    }

    /// Begins what is done about one snapshot.
    async fn about(
        &self,
        request: &Request,
        owner: &Owner,
        volume: &Name,
        (kind, snapshot): (OperationKind, &Name),
        check: impl Fn(&Volume) -> Result<(), Error> + Sync,
    ) -> Result<Uuid, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let mut tenant = owner.record(self).await?;
                let mut volume: Stored<Volume> = self.idle(owner, volume).await?;
                check(&volume.record)?;
                count(&mut tenant)?;
                let mut operation = operation(kind, &tenant.record, &volume.record.name, 1);
                operation.snapshot = Some(snapshot.clone());
                volume.record.operation = Some(operation.id);
                if kind == OperationKind::Restore {
                    volume.record.state = VolumeState::Restoring;
                }
                begin_on(&operation, &tenant, &volume)
            })
        };
        self.operate(request, plan).await
    }

    /// All snapshots of a volume, the oldest first.
    pub async fn snapshots(&self, owner: &Owner, volume: &Name) -> Result<Vec<SnapshotView>, Error> {
        owner.record(self).await?;
        let volume = self.known(owner, volume).await?.record;
        Ok(volume.snapshots.iter().map(|snapshot| view(&volume.name, snapshot)).collect())
    }

    /// One of them.
    pub async fn snapshot(&self, owner: &Owner, volume: &Name, name: &Name) -> Result<SnapshotView, Error> {
        owner.record(self).await?;
        let volume = self.known(owner, volume).await?.record;
        Ok(view(&volume.name, &found(&volume, name)?))
    }
}
