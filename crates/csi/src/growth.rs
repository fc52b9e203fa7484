//! Volumes become larger: at the control plane first, then the device and the filesystem on the node that has the volume.

use control::provision::VolumeView;
use tonic::{Code, Status};

use crate::asked::{Size, required};
use crate::contents::settled;
use crate::controller::Controller;
use crate::plane::is_name;
use crate::wire::{CapacityRange, ExpandRequest, ExpandResponse};

impl Controller {
    /// `ControllerExpandVolume`, also while a node has the volume. The node is called in any case: it waits for the device.
    pub async fn expand(&self, request: ExpandRequest) -> Result<ExpandResponse, Status> {
        let volume = required("volume_id", &request.volume_id)?;
        let range = request.capacity_range;
        let wanted = Size::of(Some(range.ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?))?;
        let found = if is_name(volume) { self.plane.volume(volume).await? } else { None };
        let mut found = found.ok_or_else(|| Status::not_found(format!("there is no volume {volume}")))?;
        if found.bytes < wanted.least {
            // It may be growing already.
            found = settled(&self.plane, volume).await?;
        }
        if found.bytes < wanted.least {
            match self.plane.grow(volume, wanted.bytes).await {
                // The size that the volume was made with bounds what it can become.
                Err(status) if status.code() == Code::InvalidArgument => {
                    return Err(Status::out_of_range(status.message()));
                }
                grown => grown?.map_err(|why| Status::unavailable(format!("the volume does not grow: {why}")))?,
            }
            found.bytes = wanted.bytes;
        }
        within(&found, &wanted).map(|bytes| answer(bytes, true))
    }
}

/// `NodeExpandVolume`: the size that the node waits for.
pub fn grown(volume: &VolumeView, range: Option<CapacityRange>) -> Result<u64, Status> {
    within(volume, &Size::of(range)?)
}

/// The size of a volume that is there, which the range allows.
fn within(volume: &VolumeView, wanted: &Size) -> Result<u64, Status> {
    let (name, bytes) = (&volume.name, volume.bytes);
    if wanted.allows(bytes) {
        return Ok(bytes);
    }
    let why = if bytes > wanted.most { "does not shrink" } else { "is made larger by the controller first" };
    Err(Status::out_of_range(format!("capacity_range: volume {name} has {bytes} bytes, and {why}")))
}

/// So many bytes, and whether the node has something to do.
pub fn answer(bytes: u64, node_expansion_required: bool) -> ExpandResponse {
    ExpandResponse { capacity_bytes: i64::try_from(bytes).unwrap_or(i64::MAX), node_expansion_required }
}
