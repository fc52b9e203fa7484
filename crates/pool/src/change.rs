//! How one map becomes the next: states, sides and the change under way.
//!
//! ```text
//!  stable e ──► joint e+1 ──────────────► unclean e+2 ──► stable e+2
//!               old and new placement,     the new one     the same, and no member
//!               majorities of both         alone           holds what is not at home there
//! ```
//!
//! A change may be taken back while its map is joint: the joint map says so first, then the old placement alone is unclean.
//!
//! Within a state the map changes by *revision* alone: the work notes how far it has come, so that anybody can go on with it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{MemberId, hex64};

/// Counts the changes of who holds what.
pub type Epoch = u64;

/// Which placements are in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// One placement, and no member holds anything else.
    Stable,
    /// The old and the new one: every phase of an operation needs a majority of a key's homes in both.
    Joint,
    /// The new one alone; members may still hold keys that are no longer at home there.
    Unclean,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Stable => "stable",
            State::Joint => "joint",
            State::Unclean => "unclean",
        })
    }
}

/// A side of a joint map. A map that is not joint has the new side alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Before the change.
    Old,
    /// After it.
    New,
}

/// A member's part in a placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seat {
    /// Its share of the keys; 0: none.
    pub weight: u32,
    /// Whether it votes on the map.
    pub voter: bool,
    /// The id whose points on the ring it owns, if not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<MemberId>,
}

/// What an operator asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// New members.
    Add,
    /// Members go.
    Remove,
    /// New members take the places of others.
    Replace,
    /// Members stay but hold nothing.
    Drain,
    /// Members hold more or less.
    SetWeight,
    /// A member that has lost what it held begins anew.
    Renew,
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChangeKind::Add => "add",
            ChangeKind::Remove => "remove",
            ChangeKind::Replace => "replace",
            ChangeKind::Drain => "drain",
            ChangeKind::SetWeight => "set-weight",
            ChangeKind::Renew => "repair",
        })
    }
}

/// What is being done for a change. The first two belong to the joint state, the last to the unclean one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// One lease is waited for, so that hosts learn of the joint map by themselves. Pages are sealed in [`Phase::Migrate`].
    Seal,
    /// Keys are stored on the members that are new to them. Nothing is, once the change is taken back.
    Migrate,
    /// Members drop what is no longer at home there.
    Clean,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Seal => "seal",
            Phase::Migrate => "migrate",
            Phase::Clean => "clean",
        })
    }
}

/// A change under way and how far it has come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Drawn at random when it was asked for: by it whoever began a change knows it again.
    #[serde(with = "hex64")]
    pub id: u64,
    /// What was asked for.
    pub kind: ChangeKind,
    /// What is being done.
    pub phase: Phase,
    /// Where the phase goes on: a place whose meaning is the phase's own (`kv::store::migrate`); 0: at its start.
    #[serde(with = "hex64")]
    pub cursor: u64,
    /// Thousandths of the phase that are done.
    pub done: u16,
    /// Bytes of entries and values stored on members that are new to them.
    pub moved_bytes: u64,
    /// It is taken back: a joint map that says so is followed by the placement before the change, never by the new one; what
    /// is being done after that restores it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_back: bool,
    /// Homes of some keys could not be made equal after it was taken back ([`crate::Map::unequal`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unequal: bool,
    /// Unix time in ms of the last note of progress: a change whose time stands still is one that nobody works on.
    pub noted_ms: u64,
}

impl Change {
    /// A change that begins.
    pub fn new(kind: ChangeKind, id: u64) -> Change {
        let (phase, cursor, done, moved_bytes, noted_ms) = (Phase::Seal, 0, 0, 0, 0);
        Change { id, kind, phase, cursor, done, moved_bytes, taken_back: false, unequal: false, noted_ms }
    }
}
