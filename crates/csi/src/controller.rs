//! The Controller service: volumes are made, deleted and listed at the control plane.
//!
//! Nothing is kept here: what a call before has done is read from the control plane, so that a call may come twice, at the same
//! time, or after a crash.

use control::provision::{HolderKind, VOLUME_ALIGN, VOLUME_BYTES_MAX, VolumeState, VolumeView};
use serde_json::json;
use tonic::Status;

use crate::capability::{all_understood, understood};
use crate::capacity::{available, narrowed};
use crate::names::volume_name;
use crate::parameters::Parameters;
use crate::plane::{Plane, is_name};
use crate::wire::{
    Capabilities, CapacityRange, CapacityRequest, CapacityResponse, Confirmed, CreateVolumeRequest, ListRequest,
    ListResponse, Nothing, OneVolume, ValidateRequest, ValidateResponse, Volume, VolumeId, controller_rpc,
};

/// Bytes of a name or of a volume's id, at most: the specification's.
pub const NAME_BYTES_MAX: usize = 128;
/// What a volume has of which no size is asked for. Chosen: what the examples of Kubernetes ask for.
const USUAL_BYTES: u64 = 1 << 30;
/// Volumes in one answer, at most; more are behind a token. Chosen: a hundred kilobytes.
const ENTRIES_MAX: usize = 1000;
/// How often a volume is looked at that others make and delete meanwhile. Chosen: who is still as far then calls again.
const LOOKS_MAX: usize = 4;
/// What a token of a list begins with: a volume's name follows.
const AFTER: &str = "after:";

/// The service.
pub struct Controller {
    plane: Plane,
}

impl Controller {
    /// Of that control plane.
    pub fn new(plane: Plane) -> Controller {
        Controller { plane }
    }

    /// `ControllerGetCapabilities`. What the control plane does not do is not told of: snapshots, clones, expansion.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(&[
            controller_rpc::CREATE_DELETE_VOLUME,
            controller_rpc::LIST_VOLUMES,
            controller_rpc::GET_CAPACITY,
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
        if request.volume_content_source.is_some() || !request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("volumes are made empty, and have no parameters that change"));
        }
        let parameters = Parameters::read(&request.parameters).map_err(Status::invalid_argument)?;
        let wanted = Size::of(request.capacity_range)?;
        let volume = volume_name(name);
        for _ in 0..LOOKS_MAX {
            let Some(found) = self.plane.volume(&volume).await? else {
                let Parameters { replicas, level, relax } = parameters;
                let (bytes, name) = (wanted.bytes, &volume);
                let new = json!({"name": name, "bytes": bytes, "replicas": replicas, "level": level, "relax": relax});
                match self.plane.create(&new).await {
                    // Another call was first, and is looked at as any other.
                    Err(status) if status.code() == tonic::Code::AlreadyExists => {}
                    made => made?,
                }
                continue;
            };
            match (found.state, found.operation) {
                (VolumeState::Creating, Some(operation)) => {
                    let undone = |why: &str| Status::unavailable(format!("the volume was not made: {why}"));
                    self.plane.operation(&operation.to_string(), undone).await?;
                }
                (VolumeState::Deleting, _) => {
                    return Err(Status::aborted(format!("volume {volume} is being deleted: call again")));
                }
                _ => return same(&found, &wanted, &parameters).map(|()| one(&found)),
            }
        }
        Err(Status::aborted(format!("volume {volume} is made and deleted again and again by others: call again")))
    }

    /// `DeleteVolume`
    pub async fn delete(&self, request: VolumeId) -> Result<Nothing, Status> {
        let volume = required("volume_id", &request.volume_id)?;
        if !is_name(volume) {
            return Ok(Nothing {});
        }
        let found = self.plane.volume(volume).await?;
        let Some(found) = found else { return Ok(Nothing {}) };
        match (found.state, found.operation) {
            // Asked for before: the same end is waited for.
            (VolumeState::Deleting, Some(operation)) => {
                let kept = |why: &str| Status::failed_precondition(why.to_owned());
                self.plane.operation(&operation.to_string(), kept).await?;
            }
            _ => self.plane.delete(volume).await?,
        }
        Ok(Nothing {})
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
        let most = match usize::try_from(request.max_entries) {
            Ok(0) => ENTRIES_MAX,
            Ok(most) => most.min(ENTRIES_MAX),
            Err(_) => return Err(Status::invalid_argument("max_entries is less than none")),
        };
        let mut after = match request.starting_token.as_str() {
            "" => None,
            token => match token.strip_prefix(AFTER).filter(|name| is_name(name)) {
                Some(name) => Some(name.to_owned()),
                None => return Err(Status::aborted("the token is none of this driver's: begin anew without one")),
            },
        };
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
        let next_token = next.map(|name| format!("{AFTER}{name}")).unwrap_or_default();
        Ok(ListResponse { entries: found.iter().take(most).map(one).collect(), next_token })
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

/// A word that has to be there, and is of a length that the specification allows.
pub fn required<'a>(what: &str, text: &'a str) -> Result<&'a str, Status> {
    match text.len() {
        0 => Err(Status::invalid_argument(format!("{what} is missing"))),
        1..=NAME_BYTES_MAX => Ok(text),
        long => Err(Status::invalid_argument(format!("{what} has {long} bytes: {NAME_BYTES_MAX} are allowed"))),
    }
}

fn one(volume: &VolumeView) -> OneVolume {
    let capacity_bytes = i64::try_from(volume.bytes).unwrap_or(i64::MAX);
    let volume = Volume { capacity_bytes, volume_id: volume.name.to_string(), volume_context: Default::default() };
    OneVolume { volume: Some(volume) }
}

/// What size is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Size {
    /// Of one that is made.
    bytes: u64,
    /// Of one that is there.
    least: u64,
    most: u64,
}

impl Size {
    fn of(range: Option<CapacityRange>) -> Result<Size, Status> {
        let CapacityRange { required_bytes, limit_bytes } = range.unwrap_or_default();
        let (Ok(least), Ok(limit)) = (u64::try_from(required_bytes), u64::try_from(limit_bytes)) else {
            return Err(Status::invalid_argument("capacity_range: a size is less than none"));
        };
        if limit > 0 && limit < least {
            return Err(Status::invalid_argument("capacity_range: less is allowed than is wanted"));
        }
        let most = if limit == 0 { VOLUME_BYTES_MAX } else { limit.min(VOLUME_BYTES_MAX) };
        let wanted = if least == 0 { USUAL_BYTES.min(most) } else { least };
        let rounded = if least == 0 { wanted - wanted % VOLUME_ALIGN } else { wanted.next_multiple_of(VOLUME_ALIGN) };
        if rounded == 0 || rounded > most {
            let allowed = format!("a multiple of {VOLUME_ALIGN}, {VOLUME_BYTES_MAX} at most");
            return Err(Status::out_of_range(format!("capacity_range: no volume has such a size: it is {allowed}")));
        }
        Ok(Size { bytes: rounded, least, most: if limit == 0 { u64::MAX } else { limit } })
    }
}

/// Whether a volume that is there is what is asked for.
fn same(found: &VolumeView, wanted: &Size, parameters: &Parameters) -> Result<(), Status> {
    let differs =
        |what: String| Err(Status::already_exists(format!("there is a volume {} already, and {what}", found.name)));
    if !(wanted.least..=wanted.most).contains(&found.bytes) {
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
