//! What the catalogue holds of volumes and of what they are made of. Each record is JSON with a version; a record of a later
//! version is refused and left as it is, for what it says in fields unknown here would be lost by writing it.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::level::Level;
use super::moment::{Limits, Snapshot, Source};
use super::name::{Address, Name, Nqn};
use super::reason::Reason;

/// A kind of record.
pub trait Record: Serialize + DeserializeOwned {
    /// What it is, for messages.
    const KIND: &'static str;
    /// The version that is written; older ones are read.
    const VERSION: u32;
}

/// Why bytes are not the record that they ought to be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// A later version of the program wrote it.
    #[error("it has version {found}, this program knows {known}: use the version of Yagura that wrote it")]
    Newer {
        /// What it says.
        found: u32,
        /// What is known.
        known: u32,
    },
    /// It is no such record.
    #[error("it is not understood ({0}): restore the catalogue from a dump")]
    Damaged(String),
}

#[derive(Serialize)]
struct Written<'a, T> {
    version: u32,
    #[serde(flatten)]
    record: &'a T,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The record's bytes.
pub fn encode<T: Record>(record: &T) -> Vec<u8> {
    // Every key of a record is a string, and no field fails to be written: what JSON can't have is in no record.
    serde_json::to_vec(&Written { version: T::VERSION, record }).expect("a record is strings and whole numbers")
}

/// The record of these bytes.
pub fn decode<T: Record>(bytes: &[u8]) -> Result<T, RecordError> {
    let damaged = |fault: serde_json::Error| RecordError::Damaged(fault.to_string());
    let Version { version } = serde_json::from_slice(bytes).map_err(damaged)?;
    if version > T::VERSION {
        return Err(RecordError::Newer { found: version, known: T::VERSION });
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

/// What holds for all drives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// How much of a thin drive's room may be promised, in percent of it; 100 promises nothing twice.
    pub overcommit_percent: u32,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { overcommit_percent: 100 }
    }
}

/// A machine with drives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: Name,
    /// The rack that it stands in.
    pub rack: Option<Name>,
    /// The zone that its rack is in.
    pub zone: Option<Name>,
    /// Drives that are registered on it.
    pub drives: u32,
}

/// What an operator wants of a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DriveState {
    /// New holders may be placed on it.
    InUse,
    /// No new holders; those that are there are replaced elsewhere.
    Draining,
    /// Gone for good: nothing is asked of it any more, and its holders are replaced elsewhere.
    Out,
}

/// A namespace as its drive shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Namespace {
    /// Its number, which the drive may use again when the namespace is gone.
    pub nsid: u32,
    /// What tells it from every other: the NGUID, or what the drive has in its place.
    pub uid: Uuid,
    /// Its size in bytes.
    pub bytes: u64,
}

/// An NVMe subsystem in which namespaces are made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Drive {
    /// Its name.
    pub name: Name,
    /// The machine that it is in.
    pub node: Name,
    /// Where its target listens.
    pub address: Address,
    /// The subsystem.
    pub nqn: Nqn,
    /// What is wanted of it.
    pub state: DriveState,
    /// Its bytes.
    pub total: u64,
    /// Whether a namespace takes room only for what is written.
    pub thin: bool,
    /// Namespaces that were there when it was registered. They are left alone.
    pub foreign: Vec<Namespace>,
    /// Bytes that holders of volumes may come to take.
    pub promised: u64,
    /// Holders on it.
    pub holders: u32,
}

/// Whose volumes they are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// What tells the tenant from a later one of the same name.
    pub id: Uuid,
    /// The tenant's name.
    pub name: Name,
    /// Bytes of all volumes together, at most; none: no limit.
    pub quota_bytes: Option<u64>,
    /// Volumes, at most; none: no limit.
    pub quota_volumes: Option<u32>,
    /// Bytes of the volumes.
    pub bytes: u64,
    /// Volumes.
    pub volumes: u32,
    /// Operations that have not ended.
    pub pending: u32,
}

/// What a holder holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HolderKind {
    /// A copy of the data.
    Replica,
    /// The record of who is in sync, and no data.
    Witness,
}

/// One of the namespaces that a volume consists of. Its place among them is its slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// What it holds.
    pub kind: HolderKind,
    /// Where.
    pub drive: Name,
    /// Bytes of the namespace.
    pub bytes: u64,
    /// The namespace, while there is one.
    pub namespace: Option<Namespace>,
    /// The replica of another volume of whose snapshot it is a clone.
    #[serde(default)]
    pub copy_of: Option<Namespace>,
}

impl Holder {
    /// One that is still to be made.
    pub fn new(kind: HolderKind, drive: Name, bytes: u64) -> Holder {
        Holder { kind, drive, bytes, namespace: None, copy_of: None }
    }
}

/// A namespace beside the holders of a volume, while a holder is replaced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Beside {
    /// The slot that it is of.
    pub slot: usize,
    /// Whether it is to take the holder's place. Otherwise it had that place, and goes when the slot is in sync again.
    pub is_new: bool,
    /// It.
    pub holder: Holder,
}

/// How far a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// Its namespaces are being made.
    Creating,
    /// A host can attach it.
    Ready,
    /// Its namespaces are being deleted.
    Deleting,
    /// It is being put back to a snapshot, and has a part of that.
    Restoring,
}

impl fmt::Display for VolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeState::Creating => "being created",
            VolumeState::Ready => "ready",
            VolumeState::Deleting => "being deleted",
            VolumeState::Restoring => "being put back to a snapshot",
        })
    }
}

/// Who is meant to use a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Attachment {
    /// Its own: who ends it names it, so that nobody ends one that came later.
    #[serde(default)]
    pub id: Uuid,
    /// The host.
    pub host: Nqn,
    /// Since when, in seconds of the Unix epoch.
    pub since: u64,
    /// Whose attachment it took the place of, which may have been the same host's: none, if nobody's.
    #[serde(default)]
    pub instead_of: Option<Nqn>,
    /// The id of the attachment with which the host began to have the volume: the same for every attachment that takes the place of
    /// that host's own. While the tenure is the same, no other host has had the volume.
    #[serde(default)]
    pub tenure: Uuid,
}

/// A volume. While an operation on it is under way that operation changes the record, and beside it only who attaches and detaches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// What its holders know it by.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: Name,
    /// Its name among the tenant's.
    pub name: Name,
    /// Its size in bytes.
    pub bytes: u64,
    /// How far it is.
    pub state: VolumeState,
    /// How far apart its holders stand.
    pub level: Level,
    /// The namespaces, by slot.
    pub holders: Vec<Holder>,
    /// What is to take the place of a holder, or had it.
    #[serde(default)]
    pub beside: Vec<Beside>,
    /// Who is meant to use it.
    pub attachment: Option<Attachment>,
    /// What is under way.
    pub operation: Option<Uuid>,
    /// The control plane has it attached itself, for the operation that is under way.
    #[serde(default)]
    pub held: bool,
    /// A host waits until it is not held any more.
    #[serde(default)]
    pub awaited: bool,
    /// The snapshot of which it has a part, and no copy is left; none: it is whole. Nobody gets it then but by force.
    #[serde(default)]
    pub part: Option<Name>,
    /// Its snapshots, in the order in which they were taken.
    #[serde(default)]
    pub snapshots: Vec<Snapshot>,
    /// How much it may be used.
    #[serde(default)]
    pub limits: Limits,
    /// How large it can become, at most; none: its replicas say.
    #[serde(default)]
    pub grows_to: Option<u64>,
    /// The snapshot that it was made of, which may be gone; none: it was made empty, or that is unknown, since records of versions
    /// before 4 did not say so.
    #[serde(default)]
    pub from: Option<Source>,
    /// Since when it is there, in seconds of the Unix epoch.
    pub created: u64,
}

impl Volume {
    /// The holder at that place: by slot, and behind the holders those that are beside them.
    pub fn holder(&self, at: usize) -> &Holder {
        match at.checked_sub(self.holders.len()) {
            None => &self.holders[at],
            Some(behind) => &self.beside[behind].holder,
        }
    }

    /// The same, to be changed.
    pub fn holder_mut(&mut self, at: usize) -> &mut Holder {
        match at.checked_sub(self.holders.len()) {
            None => &mut self.holders[at],
            Some(behind) => &mut self.beside[behind].holder,
        }
    }

    /// All that is known of it on drives.
    pub fn everywhere(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter().chain(self.beside.iter().map(|beside| &beside.holder))
    }
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationKind {
    /// Makes a volume.
    Create,
    /// Deletes one.
    Delete,
    /// Makes one larger.
    Grow,
    /// Takes a snapshot of one.
    Snapshot,
    /// Deletes a snapshot.
    Forget,
    /// Makes one of a snapshot.
    Clone,
    /// Replaces a holder by a new one on another drive.
    Replace,
    /// Puts one back to a snapshot.
    Restore,
}

/// How far an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    /// It is under way, or waits for somebody to go on with it.
    Pending,
    /// What was asked for is done.
    Done,
    /// It is undone: all is as it was before, unless the reason says otherwise.
    Failed,
}

/// The drive that an operation has to itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct At {
    /// The place of the holder that is on it ([`Volume::holder`]).
    pub slot: usize,
    /// Namespaces that were there before one was created; none: nothing was created yet.
    pub before: Option<Vec<Uuid>>,
}

/// A long operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Its own.
    pub id: Uuid,
    /// What it does.
    pub kind: OperationKind,
    /// Whose volume.
    pub tenant: Name,
    /// The tenant's own.
    pub tenant_id: Uuid,
    /// Which volume.
    pub volume: Name,
    /// How far it is.
    pub state: OperationState,
    /// Who went on with it last: none has begun.
    pub worker: Option<Uuid>,
    /// The drive that it has to itself.
    pub at: Option<At>,
    /// Why it is being undone, or was.
    pub undo: Option<String>,
    /// The same in a word, where there is one for it.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// What it waits for.
    pub waits: Option<String>,
    /// Of a delete: also while a host has the volume attached.
    #[serde(default)]
    pub force: bool,
    /// Of a delete by force: the operation that was under way, which ends first.
    #[serde(default)]
    pub instead_of: Option<Uuid>,
    /// Of a growth, and of a clone: the size that the volume is to have.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Of what is done about a snapshot: which.
    #[serde(default)]
    pub snapshot: Option<Name>,
    /// Of a clone: the volume that the snapshot is of.
    #[serde(default)]
    pub from: Option<Name>,
    /// Of a clone of a volume as it is now: the operation that takes the snapshot; and of that one: the clone.
    #[serde(default)]
    pub with: Option<Uuid>,
    /// Of a replacement: the slot.
    #[serde(default)]
    pub slot: Option<usize>,
    /// Of a replacement: it is for a drive that is to be empty, and is called off when the drive is in use again.
    #[serde(default)]
    pub drains: bool,
    /// Of a replacement: what its labels say of the new holder (the life), once it is formatted.
    #[serde(default)]
    pub life: Option<Uuid>,
    /// Steps that are done.
    pub done: u32,
    /// Steps that there are.
    pub steps: u32,
    /// When it was asked for, in seconds of the Unix epoch.
    pub began: u64,
    /// When it ended.
    pub ended: Option<u64>,
}

/// Whom a token lets in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Who may do everything.
    Operator,
    /// Who may read figures, and nothing else.
    Metrics,
    /// A tenant, who has volumes.
    Tenant {
        /// Its name.
        name: Name,
        /// What tells it from a later one of that name.
        id: Uuid,
    },
}

/// What is known of a token, which is not the token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Token {
    /// Its name, the part of it that is no secret.
    pub id: Uuid,
    /// Whom it lets in.
    pub role: Role,
    /// SHA-256 of its secret, in hex.
    pub digest: String,
    /// Since when, in seconds of the Unix epoch.
    pub created: u64,
    /// Until when it lets in; none: until it is revoked.
    #[serde(default)]
    pub ends: Option<u64>,
}

/// A request that was done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Remembered {
    /// SHA-256 of what was asked, in hex.
    pub digest: String,
    /// What was answered.
    pub answer: serde_json::Value,
    /// When, in seconds of the Unix epoch.
    pub at: u64,
}

/// Names the kinds.
macro_rules! kinds {
    ($($record:ident: $kind:literal $version:literal),*) => {
        $(impl Record for $record {
            const KIND: &'static str = $kind;
            const VERSION: u32 = $version;
        })*
    };
}
// Version 2 of a volume and of an operation: growing, snapshots, clones, limits. Version 3 of an operation: one in the place of
// another; of a volume: its tenure. Version 4 of a volume: what it was made of, and holders that are replaced; of an operation: the
// latter. Version 5 of both: put back to a snapshot, and made of a volume as it is. Version 6 of both: volumes that are a part of a
// snapshot, and reasons. Version 2 of a token: an end, metrics alone.
kinds!(Pool: "pool" 1, Node: "node" 1, Drive: "drive" 1, Tenant: "tenant" 1, Volume: "volume" 6, Operation: "operation" 6,
    Token: "token" 2, Remembered: "request" 1);

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
