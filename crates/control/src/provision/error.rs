//! Why provisioning did not do what was asked, in words that say what to do.

use uuid::Uuid;

use crate::catalogue;

use super::drives::DriveError;
use super::name::{Malformed, Name, Nqn};
use super::placement::{Refusal, Rule};
use super::records::{RecordError, VolumeState};

/// Nothing was changed, unless a variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A word is not of its form.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A number or a combination that can't be.
    #[error("{0}")]
    Impossible(String),
    /// There is none of this name.
    #[error("there is no {kind} {name}: `yagura control show {kind}s` lists what there is")]
    NotFound {
        /// What was looked for.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// There is one already.
    #[error("there is a {kind} {name} already: choose another name, or delete that one")]
    Exists {
        /// What was to be made.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The subsystem is registered as another drive.
    #[error("the subsystem {nqn} is drive {drive} already: a subsystem is one drive")]
    Registered {
        /// The subsystem.
        nqn: Nqn,
        /// The drive that it is.
        drive: Name,
    },
    /// The drive has namespaces that nobody here made.
    #[error(
        "the subsystem {nqn} has {namespaces} namespaces already: delete them, or register it with keep_foreign, and they are left \
         alone"
    )]
    HasNamespaces {
        /// The subsystem.
        nqn: Nqn,
        /// How many.
        namespaces: usize,
    },
    /// A drive does not do what it is asked.
    #[error("the drive at {address}: {source}")]
    Drive {
        /// Where.
        address: String,
        /// What it says.
        source: DriveError,
    },
    /// What is to go is in use.
    #[error("{kind} {name} is in use ({by}): remove these first")]
    InUse {
        /// What was to go.
        kind: &'static str,
        /// Its name.
        name: Name,
        /// What uses it.
        by: String,
    },
    /// A host is meant to use the volume.
    #[error("volume {volume} is attached to {host}: detach it there, or say force (--force, `volume attach` --take)")]
    Attached {
        /// Which volume.
        volume: Name,
        /// The host.
        host: Nqn,
    },
    /// What is asked for needs a volume that no host is meant to use.
    #[error(
        "volume {volume} is attached to {host}, and is put back while no host has it: detach it there; of a host that is gone say \
         `yagura control detach {volume}`"
    )]
    AttachedStill {
        /// Which volume.
        volume: Name,
        /// The host.
        host: Nqn,
    },
    /// What a volume holds is a part of a snapshot that is lost.
    #[error(
        "volume {volume} has a part of its snapshot {snapshot}, of which no copy is left: put it back to another snapshot \
         (`yagura control restore-volume`), or delete it; to save what is there say force (`yagura volume attach` --take)"
    )]
    Part {
        /// Which volume.
        volume: Name,
        /// Of which snapshot.
        snapshot: Name,
    },
    /// The attachment that was named is not there any more.
    #[error("volume {volume} has another attachment by now, or none: see who has it")]
    NotAttached {
        /// Which volume.
        volume: Name,
    },
    /// Drives of the volume have not the room.
    #[error("volume {volume} can't grow: {}", lacks(drives))]
    NoRoomToGrow {
        /// Which volume.
        volume: Name,
        /// Each drive that lacks something, with the rule that it fails.
        drives: Vec<(Name, Rule)>,
    },
    /// Something else is done to the volume.
    #[error("volume {volume} is {state}, and operation {operation} is under way on it: wait until that has ended")]
    Busy {
        /// Which volume.
        volume: Name,
        /// What is done.
        state: VolumeState,
        /// By which operation.
        operation: Uuid,
    },
    /// No drives for it.
    #[error("the volume can't be placed: {0}")]
    NoRoom(#[from] Refusal),
    /// The tenant's limit.
    #[error(
        "tenant {tenant} may have {limit} {unit} and would have {wanted}: delete volumes, or ask the operator for more"
    )]
    Quota {
        /// Whose.
        tenant: Name,
        /// Bytes, or volumes.
        unit: &'static str,
        /// How many are allowed.
        limit: u64,
        /// How many it would be.
        wanted: u64,
    },
    /// Too much at a time.
    #[error("tenant {tenant} has {pending} operations under way: wait until some have ended")]
    TooMany {
        /// Whose.
        tenant: Name,
        /// How many.
        pending: u32,
    },
    /// As many as there may be.
    #[error("there are {limit} {kind} already, which is the limit: remove some")]
    Limit {
        /// Of what.
        kind: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The request id stands for another request.
    #[error("request id {id} was used for another request: use an id once, or send the same request")]
    RequestReused {
        /// Which id.
        id: String,
    },
    /// No token that is known.
    #[error("the token is not known: ask the operator for one")]
    Unauthenticated,
    /// The token lets nobody do that.
    #[error("the token does not allow {what}: ask the operator")]
    Forbidden {
        /// What was asked for.
        what: String,
    },
    /// Others change the same records all the time.
    #[error("others changed the same records again and again: ask again, with the same request id")]
    Contended,
    /// A record can't be read.
    #[error("the {kind} at {key} can't be read: {source}")]
    Record {
        /// What it should be.
        kind: &'static str,
        /// Where it is.
        key: String,
        /// What is wrong.
        source: RecordError,
    },
    /// The catalogue failed; after an unknown outcome the change may have been made.
    #[error(transparent)]
    Catalogue(#[from] catalogue::Error),
}

fn lacks(drives: &[(Name, Rule)]) -> String {
    let each: Vec<_> = drives.iter().map(|(drive, rule)| format!("drive {drive}: {rule}")).collect();
    each.join("; ")
}

impl From<catalogue::LimitError> for Error {
    fn from(error: catalogue::LimitError) -> Error {
        Error::Catalogue(error.into())
    }
}
