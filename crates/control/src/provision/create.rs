//! Volumes that are to be made, empty or of a snapshot: what is wanted, where that goes, and the operation that makes them.

use std::collections::BTreeMap;

use serde::Deserialize;
use tokio::sync::OnceCell;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::catalogue::{Change, Condition, Key};

use super::error::Error;
use super::keys;
use super::level::Level;
use super::moment::{Limits, Moment, Snapshot, Source};
use super::name::Name;
use super::placement::{self, Candidate, Refusal, Wanted};
use super::plan::{Inventory, Owner, PENDING_MAX, admit, begin, beginning, count, operation, promise};
use super::provisioner::Provisioner;
use super::records::{Drive, DriveState, Holder, HolderKind, Operation, OperationKind, Tenant, Volume, VolumeState};
use super::snapshots::{has_room, is_whole};
use super::store::{Plan, Planning, Request, Stored, now, put};
use super::volumes::busy;

/// A volume's size is a multiple of this. Derived: the largest block that drives commonly have.
pub const VOLUME_ALIGN: u64 = 4096;
/// Bytes of a volume, at most. Chosen: the largest for which a region of the mirror's log is still small (4 MiB).
pub const VOLUME_BYTES_MAX: u64 = 64 << 40;
/// Commands, or bytes, a second that a limit may be, at most. Chosen: what no volume comes to.
pub const LIMIT_MAX: u64 = 1 << 40;
/// Bytes a second, at least. Chosen: the largest transfer takes no longer than a command is waited for.
pub const BANDWIDTH_MIN: u64 = 1 << 20;
/// Seconds for which what was not used is saved up, at most. Chosen: an hour, above which a limit is none.
pub const BURST_SECONDS_MAX: u32 = 3600;
/// Replicas of a volume, at most. Derived: the mirror's.
pub const REPLICAS_MAX: u8 = 3;

/// Clones of a snapshot that are being made at a time. Chosen: as many as a tenant may have under way.
const CLONES_MAX: usize = PENDING_MAX as usize;

/// A volume that is to be made.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The name that it gets.
    pub name: Name,
    /// Its size: a multiple of 4,096. Left out of a clone: that of what it is made of, as it is when the request is first heard.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Copies of the data, 1 to 3; beside two there is a witness of a few blocks. Unless said: 3. A clone has as many as what it
    /// is made of.
    #[serde(default)]
    pub replicas: Option<u8>,
    /// How far apart its holders stand. Unless said: on different nodes.
    #[serde(default)]
    pub level: Level,
    /// Whether a narrower level will do where that can't be had.
    #[serde(default)]
    pub relax: bool,
    /// How much it may be used.
    #[serde(default)]
    pub limits: Limits,
    /// The snapshot that it begins as, or the volume; none: it is empty.
    #[serde(default)]
    pub from: Option<Source>,
}

/// What a new volume is made of.
struct Model {
    volume: Stored<Volume>,
    snapshot: Snapshot,
    /// The snapshot is still to be taken.
    is_new: bool,
}

impl Model {
    /// The volume as it is, of which a snapshot is taken for that.
    fn now(volume: Stored<Volume>) -> Result<Model, Error> {
        is_whole(&volume.record)?;
        has_room(&volume.record)?;
        let id = Uuid::new_v4();
        let name = Name::new(format!("clone-{}", id.simple()))?;
        let replicas = volume.record.holders.iter().filter(|holder| holder.kind == HolderKind::Replica).count();
        // Whoever takes it says which replicas have it in truth.
        let moment = Moment { round: 0, host: 0, attempt: 0, slots: (1 << replicas) - 1 };
        let (bytes, created, clones) = (volume.record.bytes, now(), Vec::new());
        let snapshot = Snapshot { id, name, bytes, moment, created, clones, temporary: true, left: None };
        Ok(Model { volume, snapshot, is_new: true })
    }
}

/// Whether a volume can have so many bytes.
pub(super) fn check_bytes(bytes: u64) -> Result<(), Error> {
    if bytes == 0 || bytes > VOLUME_BYTES_MAX {
        return Err(Error::Impossible(format!("a volume of {bytes} bytes: it has 4096 to {VOLUME_BYTES_MAX}")));
    }
    if !bytes.is_multiple_of(VOLUME_ALIGN) {
        let more = bytes.next_multiple_of(VOLUME_ALIGN);
        return Err(Error::Impossible(format!(
            "a volume of {bytes} bytes: the size is a multiple of {VOLUME_ALIGN}, say {more}"
        )));
    }
    Ok(())
}

/// Whether the volume, or what is made of it, can become so large.
pub(super) fn check_most(volume: &Volume, bytes: u64) -> Result<(), Error> {
    match volume.grows_to.filter(|most| bytes > *most) {
        Some(most) => Err(Error::Impossible(format!(
            "volume {} can have {most} bytes at most, by the size that it was made with: make a larger one",
            volume.name
        ))),
        None => Ok(()),
    }
}

/// Whether a volume can have such limits.
pub(super) fn check_limits(limits: &Limits) -> Result<(), Error> {
    let Limits { iops, bandwidth, burst } = *limits;
    let is_out = |limit: Option<u64>, least: u64| limit.is_some_and(|limit| limit < least || limit > LIMIT_MAX);
    if is_out(iops, 1) {
        return Err(Error::Impossible(format!("iops is {iops:?}: it is 1 to {LIMIT_MAX}, or null for no limit")));
    }
    if is_out(bandwidth, BANDWIDTH_MIN) {
        return Err(Error::Impossible(format!(
            "bandwidth is {bandwidth:?}: it is {BANDWIDTH_MIN} to {LIMIT_MAX} bytes a second, or null for no limit"
        )));
    }
    if burst.is_some_and(|burst| burst == 0 || burst > BURST_SECONDS_MAX) {
        return Err(Error::Impossible(format!("burst is {burst:?}: it is 1 to {BURST_SECONDS_MAX} seconds")));
    }
    Ok(())
}

impl NewVolume {
    fn check(&self) -> Result<(), Error> {
        let NewVolume { bytes, replicas, ref from, .. } = *self;
        match bytes {
            Some(bytes) => check_bytes(bytes)?,
            None if from.is_none() => {
                return Err(Error::Impossible("a volume that is made of nothing: say how many bytes it has".into()));
            }
            None => {}
        }
        check_limits(&self.limits)?;
        if let Some(replicas) = replicas.filter(|replicas| !(1..=REPLICAS_MAX).contains(replicas)) {
            return Err(Error::Impossible(format!("a volume of {replicas} replicas: it has 1 to {REPLICAS_MAX}")));
        }
        Ok(())
    }
}

impl Provisioner {
    /// Begins to make a volume, which is empty or as a snapshot is; the answer is the operation's id. The volume is there at once,
    /// and its room is promised.
    pub async fn create_volume(&self, request: &Request, owner: &Owner, new: &NewVolume) -> Result<Uuid, Error> {
        new.check()?;
        let looks = OnceCell::new();
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let mut tenant = owner.record(self).await?;
                let key = keys::volume(&owner.name, &new.name);
                if self.store.get::<Volume>(key.clone()).await?.is_some() {
                    return Err(Error::Exists { kind: "volume", name: new.name.to_string() });
                }
                let model = self.model(owner, new).await?;
                // Not the caller decides: what it is made of may have grown since the caller looked.
                let bytes = new.bytes.or(model.as_ref().map(|model| model.snapshot.bytes)).unwrap_or_default();
                admit(&mut tenant, bytes, 1)?;
                let inventory = self.inventory().await?;
                let in_use = |drive: &&Stored<Drive>| drive.record.state == DriveState::InUse;
                let looks = looks.get_or_init(|| self.look_at(inventory.drives.iter().filter(in_use))).await;
                if model.as_ref().is_some_and(|model| model.is_new) {
                    count(&mut tenant)?;
                }
                let replicas = replicas(new, model.as_ref().map(|model| &model.volume.record))?;
                let wanted = self.wanted(new, bytes, replicas, inventory.overcommit_percent());
                let copied = model.as_ref().map(|model| (&model.volume.record, &model.snapshot));
                let placed = placed(&inventory.candidates(looks), wanted, copied)?;
                self.planned((new, bytes), key, &tenant, &inventory, placed, model)
            })
        };
        self.operate(request, plan).await
    }

    /// What the new one is a clone of.
    async fn model(&self, owner: &Owner, new: &NewVolume) -> Result<Option<Model>, Error> {
        let Some(Source { volume, snapshot }) = &new.from else { return Ok(None) };
        let model = match snapshot {
            None => Model::now(self.idle(owner, volume).await?)?,
            Some(snapshot) => self.taken(owner, volume, snapshot).await?,
        };
        let Model { volume, snapshot: Snapshot { bytes, clones, .. }, is_new } = &model;
        let wanted = new.bytes.unwrap_or(*bytes);
        if wanted < *bytes {
            let what = if *is_new { "volume" } else { "snapshot" };
            let why = format!("a volume of {wanted} bytes of a {what} of {bytes}: it can't be smaller");
            return Err(Error::Impossible(why));
        }
        check_most(&volume.record, wanted)?;
        if clones.len() >= CLONES_MAX {
            return Err(Error::Limit { kind: "clones under way of this snapshot", limit: CLONES_MAX });
        }
        Ok(Some(model))
    }

    /// A snapshot that there is.
    async fn taken(&self, owner: &Owner, volume: &Name, snapshot: &Name) -> Result<Model, Error> {
        let source = self.known(owner, volume).await?;
        if let Some(id) = source.record.operation {
            let pending = self.store.need::<Operation>(keys::operation(id), id).await?.record;
            let is_going = pending.kind == OperationKind::Forget && pending.snapshot.as_ref() == Some(snapshot);
            if is_going || source.record.state == VolumeState::Deleting {
                return Err(busy(&source.record, id));
            }
        }
        let missing = || Error::NotFound { kind: "snapshot", name: format!("{snapshot} of volume {volume}") };
        let found = source.record.snapshots.iter().find(|found| found.name == *snapshot);
        let snapshot = found.cloned().ok_or_else(missing)?;
        Ok(Model { volume: source, snapshot, is_new: false })
    }

    fn planned(
        &self,
        (new, bytes): (&NewVolume, u64),
        key: Key,
        tenant: &Stored<Tenant>,
        inventory: &Inventory,
        (holders, level): (Vec<Holder>, Level),
        model: Option<Model>,
    ) -> Result<Plan<Uuid>, Error> {
        let kind = if model.is_some() { OperationKind::Clone } else { OperationKind::Create };
        // Beside the namespaces: to format them.
        let mut operation = operation(kind, &tenant.record, &new.name, holders.len() as u32 + 1);
        let mut volume = Volume {
            id: Uuid::new_v4(),
            tenant: tenant.record.name.clone(),
            name: new.name.clone(),
            bytes,
            state: VolumeState::Creating,
            level,
            holders,
            beside: Vec::new(),
            attachment: None,
            operation: Some(operation.id),
            held: false,
            awaited: false,
            part: None,
            snapshots: Vec::new(),
            limits: new.limits,
            grows_to: Some(self.drives.grows_to(bytes)),
            from: new.from.clone(),
            created: now(),
        };
        let (mut pinned, mut conditions) = (Vec::new(), Vec::new());
        if let Some(Model { volume: mut source, snapshot, is_new }) = model {
            (volume.grows_to, operation.bytes) = (source.record.grows_to, Some(bytes));
            operation.from = Some(source.record.name.clone());
            (volume.bytes, operation.snapshot) = (snapshot.bytes, Some(snapshot.name.clone()));
            if is_new {
                pinned.extend(taking(&mut operation, &tenant.record, &mut source, snapshot.name)?);
            } else if let Some(found) = source.record.snapshots.iter_mut().find(|found| found.id == snapshot.id) {
                found.clones.push(operation.id);
            }
            pinned.push(source.put()?);
            conditions.push(source.unchanged());
        }
        let mut plan = begin(&operation, tenant)?;
        conditions.push(Condition::absent(key.clone()));
        plan.conditions.extend(conditions);
        plan.changes.push(put(key, &volume)?);
        plan.changes.extend(pinned);
        let wanted = volume.holders.iter().map(|holder| (holder.drive.clone(), holder.bytes));
        promise(&mut plan, inventory, wanted, 1)?;
        Ok(plan)
    }

    fn wanted(&self, new: &NewVolume, bytes: u64, replicas: usize, overcommit_percent: u32) -> Wanted {
        let of = |kind| (kind, self.drives.holder_bytes(kind, bytes));
        let mut holders = vec![of(HolderKind::Replica); replicas];
        // Of two neither could say alone that the other is behind.
        if replicas == 2 {
            holders.push(of(HolderKind::Witness));
        }
        let (beside, without) = (Vec::new(), Vec::new());
        Wanted { holders, beside, without, level: new.level, relax: new.relax, overcommit_percent }
    }
}

/// Begins to take the snapshot of which the volume of the operation is made, in the same transaction.
fn taking(
    clone: &mut Operation,
    tenant: &Tenant,
    source: &mut Stored<Volume>,
    snapshot: Name,
) -> Result<[Change; 2], Error> {
    let take = operation(OperationKind::Snapshot, tenant, &source.record.name, 1);
    let take = Operation { snapshot: Some(snapshot), with: Some(clone.id), ..take };
    (clone.with, source.record.operation) = (Some(take.id), Some(take.id));
    beginning(&take)
}

/// How many replicas the volume is to have. A clone keeps the shape that stands on what it is made of.
fn replicas(new: &NewVolume, source: Option<&Volume>) -> Result<usize, Error> {
    let Some(source) = source else { return Ok(new.replicas.unwrap_or(REPLICAS_MAX).into()) };
    let has = source.holders.iter().filter(|holder| holder.kind == HolderKind::Replica).count();
    match new.replicas {
        Some(wanted) if usize::from(wanted) != has => Err(Error::Impossible(format!(
            "a clone of {wanted} replicas of volume {}, which has {has}: it has as many",
            source.name
        ))),
        _ => Ok(has),
    }
}

/// The holders by slot. Where a replica of the source has a copy of the snapshot the slot's holder is a clone of that, beside it on
/// its drive; the others are placed as those of any volume.
fn placed(
    candidates: &[Candidate],
    mut wanted: Wanted,
    source: Option<(&Volume, &Snapshot)>,
) -> Result<(Vec<Holder>, Level), Error> {
    let mut copies: BTreeMap<usize, Holder> = BTreeMap::new();
    let mut lacks = Vec::new();
    if let Some((volume, snapshot)) = source {
        for (slot, &(kind, bytes)) in wanted.holders.iter().enumerate() {
            let holder = volume.holders.get(slot).filter(|_| kind == HolderKind::Replica && snapshot.moment.has(slot));
            let Some(Holder { drive, namespace: Some(namespace), .. }) = holder else { continue };
            let Some(candidate) = candidates.iter().find(|candidate| candidate.drive.name == *drive) else { continue };
            let bytes = bytes.max(namespace.bytes);
            match placement::check_holder(candidate, bytes, wanted.overcommit_percent) {
                Ok(()) => {
                    let holder = Holder::new(kind, drive.clone(), bytes);
                    copies.insert(slot, Holder { copy_of: Some(*namespace), ..holder });
                }
                Err(rule) => lacks.push((drive.clone(), rule)),
            }
        }
        if copies.is_empty() {
            let level = wanted.level;
            return Err(Refusal { wanted: wanted.holders.len(), placed: 0, level, drives: lacks }.into());
        }
        wanted.beside = copies.values().map(|holder| holder.drive.clone()).collect();
    }
    let all = std::mem::take(&mut wanted.holders);
    let is_new = |(slot, _): &(usize, &(HolderKind, u64))| !copies.contains_key(slot);
    wanted.holders = all.iter().enumerate().filter(is_new).map(|(_, holder)| *holder).collect();
    let placement = placement::place(candidates, &wanted)?;
    let mut drives = placement.drives.into_iter();
    let mut holders = Vec::new();
    for (slot, (kind, bytes)) in all.into_iter().enumerate() {
        let placed = copies.remove(&slot).or_else(|| Some(Holder::new(kind, drives.next()?, bytes)));
        holders.extend(placed);
    }
    Ok((holders, placement.level))
}
