//! Snapshots of a volume, and how much the volume may be used: parts of the volume's record.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::name::Name;

/// A snapshot as the replicas know it: by the attachment that took it. Where its copies are is part of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// The round of the ballot under which it was taken.
    pub round: u64,
    /// The host's part of that ballot.
    pub host: u64,
    /// Which attempt of that host it was.
    pub attempt: u32,
    /// The slots whose replicas have a copy, a bit each.
    pub slots: u8,
}

impl Moment {
    /// Whether both are the same snapshot. Copies may go with the replicas that have them.
    pub fn is(&self, other: &Moment) -> bool {
        (self.round, self.host, self.attempt) == (other.round, other.host, other.attempt)
    }

    /// Whether the replica of a slot has a copy.
    pub fn has(&self, slot: usize) -> bool {
        slot < 8 && self.slots >> slot & 1 == 1
    }
}

/// A volume as it was at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its own.
    pub id: Uuid,
    /// Its name among the volume's.
    pub name: Name,
    /// The volume's size then.
    pub bytes: u64,
    /// What the replicas know it by.
    pub moment: Moment,
    /// When it was there, in seconds of the Unix epoch.
    pub created: u64,
    /// Operations that are making volumes of it.
    pub clones: Vec<Uuid>,
    /// It was taken for these alone, and is deleted when they have ended.
    #[serde(default)]
    pub temporary: bool,
    /// Why it could not be deleted when that was tried last.
    #[serde(default)]
    pub left: Option<String>,
}

/// What a volume of the same tenant is made of, by names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The volume.
    pub volume: Name,
    /// The snapshot's name; none: the volume as it is when the new one is asked for.
    #[serde(default)]
    pub snapshot: Option<Name>,
}

/// How much a volume may be used, by the host that has it attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Commands a second; none: no limit.
    #[serde(default)]
    pub iops: Option<u64>,
    /// Bytes a second that are read and written; none: no limit.
    #[serde(default)]
    pub bandwidth: Option<u64>,
    /// For how many seconds what was not used is saved up; none: one.
    #[serde(default)]
    pub burst: Option<u32>,
}
