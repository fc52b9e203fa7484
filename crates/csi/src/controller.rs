//! The Controller service: volumes are made, deleted and listed at the control plane.
//!
//! Nothing is kept here: what a call before has done is read from the control plane, so that a call may come twice, at the same
//! time, or after a crash.

use control::provision::{HolderKind, Source, VOLUME_BYTES_MAX, VolumeState, VolumeView};
use serde_json::json;
use tonic::{Code, Status};

use crate::asked::{Size, after, most, required, token};
use crate::capability::{all_understood, understood};
use crate::capacity::{available, narrowed};
use crate::contents::{LOOKS_MAX, content_source, origin, present};
use crate::names::volume_name;
use crate::parameters::Parameters;
use crate::plane::{Plane, is_name};
use crate::wire::{
    Capabilities, CapacityRequest, CapacityResponse, Confirmed, CreateVolumeRequest, ListRequest, ListResponse,
    Nothing, OneVolume, ValidateRequest, ValidateResponse, Volume, VolumeId, controller_rpc,
};

/// The service.
pub struct Controller {
    pub(crate) plane: Plane,
}

impl Controller {
    /// Of that control plane.
    pub fn new(plane: Plane) -> Controller {
        Controller { plane }
    }

    /// `ControllerGetCapabilities`
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(&[
            controller_rpc::CREATE_DELETE_VOLUME,
            controller_rpc::LIST_VOLUMES,
            controller_rpc::GET_CAPACITY,
            controller_rpc::CREATE_DELETE_SNAPSHOT,
            controller_rpc::LIST_SNAPSHOTS,
            controller_rpc::CLONE_VOLUME,
            controller_rpc::EXPAND_VOLUME,
            controller_rpc::SINGLE_NODE_MULTI_WRITER,
        ])
    }

    /// `CreateVolume`
    pub async fn create(&self, request: CreateVolumeRequest) -> Result<OneVolume, Status> {
        let name = required("name", &request.name)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities: say how the volume is to be used"));
        }
        all_understood(&request.volume_capabilities).map_err(Status::invalid_argument)?;
        if !request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("volumes have no parameters that change"));
        }
        let parameters = Parameters::read(&request.parameters).map_err(Status::invalid_argument)?;
        let wanted = Size::of(request.capacity_range)?;
        let volume = volume_name(name);
        let from = origin(request.volume_content_source.as_ref())?;
        for _ in 0..LOOKS_MAX {
            let Some(found) = self.plane.volume(&volume).await? else {
                match self.made(&volume, &wanted, parameters, from.as_ref()).await {
                    // Another call was first, and is looked at as any other.
                    Err(status) if status.code() == Code::AlreadyExists => {}
                    made => made?,
                }
                continue;
            };
            match (found.state, found.operation) {
                (VolumeState::Creating, Some(operation)) => {
                    self.plane.operation(&operation.to_string()).await?.map_err(undone)?;
                }
                (VolumeState::Deleting, _) => {
                    return Err(Status::aborted(format!("volume {volume} is being deleted: call again")));
                }
                _ => return same(&found, &wanted, &parameters, from.as_ref()).map(|()| one(&found)),
            }
        }
        Err(Status::aborted(format!("volume {volume} is made and deleted again and again by others: call again")))
    }

    /// Makes a volume. One that is not made leaves nothing; of an answer that is lost the next call goes on with what there is.
    async fn made(
        &self,
        name: &str,
        wanted: &Size,
        parameters: Parameters,
        from: Option<&Source>,
    ) -> Result<(), Status> {
        let source = match from {
            Some(from) => Some(present(&self.plane, from).await?),
            None => None,
        };
        let bytes = source.map_or(Ok(wanted.bytes), |source| wanted.of_copy(source))?;
        let Parameters { replicas, level, relax } = parameters;
        let new =
            json!({"name": name, "bytes": bytes, "replicas": replicas, "level": level, "relax": relax, "from": from});
        match self.plane.create(&new).await {
            // What it is made of bounds what it can become.
            Err(status) if status.code() == Code::InvalidArgument && source.is_some_and(|source| bytes > source) => {
                Err(Status::out_of_range(status.message()))
            }
            made => made?.map_err(undone),
        }
    }

    /// `DeleteVolume`
    pub async fn delete(&self, request: VolumeId) -> Result<Nothing, Status> {
        let volume = required("volume_id", &request.volume_id)?;
        if !is_name(volume) {
            return Ok(Nothing {});
        }
        let found = self.plane.volume(volume).await?;
        let Some(found) = found else { return Ok(Nothing {}) };
        let ended = match (found.state, found.operation) {
            // Asked for before: the same end is waited for.
            (VolumeState::Deleting, Some(operation)) => self.plane.operation(&operation.to_string()).await?,
            _ => self.plane.delete(volume).await?,
        };
        // What keeps a volume from being deleted is a host that uses it.
        ended.map(|()| Nothing {}).map_err(Status::failed_precondition)
    }

    /// `ValidateVolumeCapabilities`
    pub async fn validate(&self, request: ValidateRequest) -> Result<ValidateResponse, Status> {
        let volume = required("volume_id", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities: say what is to be confirmed"));
        }
        if !is_name(volume) || self.plane.volume(volume).await?.is_none() {
            return Err(Status::not_found(format!("there is no volume {volume}")));
        }
        let ValidateRequest { volume_context, volume_capabilities, parameters, .. } = request;
        let said = all_understood(&volume_capabilities).and_then(|()| Parameters::read(&parameters).map(drop));
        Ok(match said {
            Ok(()) => {
                let confirmed = Some(Confirmed { volume_context, volume_capabilities, parameters });
                ValidateResponse { confirmed, message: String::new() }
            }
            Err(message) => ValidateResponse { confirmed: None, message },
        })
    }

    /// `ListVolumes`
    pub async fn list(&self, request: ListRequest) -> Result<ListResponse, Status> {
        let most = most(request.max_entries)?;
        let mut after = after(&request.starting_token)?.map(|[name]| name);
        let mut found: Vec<VolumeView> = Vec::new();
        loop {
            let page = self.plane.volumes(after.as_deref()).await?;
            found.extend(page.items.into_iter().filter(|volume| volume.state == VolumeState::Ready));
            after = page.next;
            if after.is_none() || found.len() >= most {
                break;
            }
        }
        let next = if found.len() > most { Some(found[most - 1].name.to_string()) } else { after };
        Ok(ListResponse { entries: found.iter().take(most).map(one).collect(), next_token: token(next) })
    }

    /// `GetCapacity`
    pub async fn capacity(&self, request: CapacityRequest) -> Result<CapacityResponse, Status> {
        let parameters = Parameters::read(&request.parameters).map_err(Status::invalid_argument)?;
        if request.volume_capabilities.iter().any(|capability| understood(capability).is_err()) {
            return Ok(CapacityResponse { available_capacity: 0, maximum_volume_size: None });
        }
        let (drives, nodes, pool) = (self.plane.drives().await?, self.plane.nodes().await?, self.plane.pool().await?);
        let seen = match (drives, nodes, pool) {
            (Some(drives), Some(nodes), Some(pool)) => available(&drives, &nodes, &pool, &parameters),
            // A tenant's token shows the quota alone.
            _ => (u64::MAX, VOLUME_BYTES_MAX),
        };
        Ok(narrowed(seen, self.plane.tenant().await?.as_ref()))
    }
}

fn undone(why: String) -> Status {
    Status::unavailable(format!("the volume was not made: {why}"))
}

fn one(volume: &VolumeView) -> OneVolume {
    let capacity_bytes = i64::try_from(volume.bytes).unwrap_or(i64::MAX);
    let (volume_id, content_source) = (volume.name.to_string(), content_source(volume));
    let volume = Volume { capacity_bytes, volume_id, volume_context: Default::default(), content_source };
    OneVolume { volume: Some(volume) }
}

/// Whether a volume that is there is what is asked for.
fn same(found: &VolumeView, wanted: &Size, parameters: &Parameters, from: Option<&Source>) -> Result<(), Status> {
    let differs =
        |what: String| Err(Status::already_exists(format!("there is a volume {} already, and {what}", found.name)));
    // Whoever is given a volume of other contents takes them for what was asked for. A record that does not say what
    // the volume was made of is taken for that of an empty one.
    if found.from.as_ref() != from {
        let made = |Source { volume, snapshot }: &Source| {
            let of = snapshot.as_ref().map(|snapshot| format!("snapshot {snapshot} of ")).unwrap_or_default();
            format!("it was made of {of}volume {volume}")
        };
        return differs(found.from.as_ref().map_or_else(|| "it was made empty".into(), made));
    }
    if !wanted.allows(found.bytes) {
        return differs(format!("it has {} bytes", found.bytes));
    }
    let replicas = found.holders.iter().filter(|holder| holder.kind == HolderKind::Replica).count();
    if replicas != usize::from(parameters.replicas) {
        return differs(format!("it has {replicas} replicas"));
    }
    if found.level != parameters.level && !(parameters.relax && found.level < parameters.level) {
        return differs(format!("its replicas stand apart by {}", found.level));
    }
    Ok(())
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
