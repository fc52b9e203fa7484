//! What an operation asks of whoever has its volume attached, and what has come of it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::moment::Moment;
use super::name::{Address, Nqn};
use super::records::{HolderKind, Namespace, Record};

/// What is asked of whoever has a volume attached: a host, or the control plane itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// To say which snapshots there are.
    Look,
    /// To make the volume this large; its namespaces are large enough.
    Grow {
        /// The size.
        bytes: u64,
    },
    /// To take a snapshot, unless there is one that is not among these: an earlier attempt has taken that one.
    Take {
        /// Those that there were before.
        before: Vec<Moment>,
    },
    /// To delete a snapshot; that there is none is no error.
    Forget {
        /// Which.
        moment: Moment,
    },
    /// To say how far the volume is with the new holder of a slot, and to use that one.
    Replace(Replacement),
    /// To say how much room a drive needs, at most, while the volume is put back to a snapshot: asked of no host.
    Room {
        /// Which.
        moment: Moment,
    },
    /// To put the volume back to a snapshot, for some time: asked of no host, for no host has the volume meanwhile.
    Restore {
        /// Which.
        moment: Moment,
        /// The first byte that may differ from it, if nobody has had the volume since.
        at: u64,
        /// By whose record the volume had all bytes before that one; none: that is not known, and it is begun anew.
        #[serde(default)]
        by: Option<Epoch>,
    },
}

/// A new holder of a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Replacement {
    /// The slot.
    pub slot: usize,
    /// What it holds.
    pub kind: HolderKind,
    /// What its label says of it, and of no other.
    pub life: Uuid,
    /// Where its drive's target listens.
    pub address: Address,
    /// Its drive's subsystem.
    pub nqn: Nqn,
    /// The namespace.
    pub namespace: Namespace,
    /// Whether it is to be used. Until then the former holder is.
    pub go: bool,
}

/// How far a volume is with the new holder of a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The slots whose replicas are in sync, a bit each.
    pub in_sync: u8,
    /// The slots whose holders, replicas and the witness, have the volume's record as it is now, a bit each; none while that
    /// changes.
    pub holding: u8,
    /// Whether the new holder has the slot, and the former one has it no more.
    pub is_taken: bool,
    /// Bytes that may still have to be copied.
    pub left: u64,
}

impl Progress {
    /// Whether the replica of a slot is in sync.
    pub fn has(&self, slot: usize) -> bool {
        slot < 8 && self.in_sync >> slot & 1 == 1
    }

    /// Whether the holder of a slot has the volume's record.
    pub fn holds(&self, slot: usize) -> bool {
        slot < 8 && self.holding >> slot & 1 == 1
    }

    /// Whether nothing is left to be done.
    pub fn is_whole(&self, replacement: &Replacement) -> bool {
        self.is_taken && (replacement.kind == HolderKind::Witness || self.has(replacement.slot))
    }
}

/// An attachment as the volume's record on its holders names it: whoever attaches the volume has another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Epoch {
    /// The round of its ballot.
    pub round: u64,
    /// The host's part of that.
    pub host: u64,
}

/// Why a volume is not put back any further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stopped {
    /// No copy of the snapshot is left, also none on a drive that is only away.
    Lost,
    /// The drives have no room left for what is to be written.
    Full,
}

/// How far a volume is put back to a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restored {
    /// The first byte that may differ from the snapshot.
    pub at: u64,
    /// Bytes that may differ from it; 0: the volume is as the snapshot.
    pub left: u64,
    /// By whose record it is so.
    #[serde(default)]
    pub by: Option<Epoch>,
    /// Why it does not go on.
    #[serde(default)]
    pub stopped: Option<Stopped>,
}

/// What has come of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// The volume's size.
    pub bytes: u64,
    /// All snapshots that the replicas know of.
    pub snapshots: Vec<Moment>,
    /// The one that was taken, or had been.
    #[serde(default)]
    pub taken: Option<Moment>,
    /// How far a replacement is. Left out where there is none: older control planes do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How far the volume is put back. Left out where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
    /// Bytes of room that a drive needs, at most, to put it back. Left out where that was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u64>,
}

/// How it has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is done.
    Done(Done),
    /// It can't be done, and nothing was changed.
    Refused(String),
}

/// What a host has said of a replacement while it is at it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heard {
    /// Of which attachment.
    pub attachment: Uuid,
    /// What.
    pub progress: Progress,
    /// All snapshots that the replicas knew of then.
    pub snapshots: Vec<Moment>,
    /// When, in seconds of the Unix epoch.
    pub at: u64,
}

/// What an operation asks of whoever has its volume attached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// What is to be done.
    pub work: Work,
    /// The attachment that was told to.
    pub attachment: Option<Uuid>,
    /// The snapshots that the replicas knew of before anybody was told to do it: none while nobody was.
    pub before: Option<Vec<Moment>>,
    /// How it has ended.
    pub outcome: Option<Outcome>,
    /// What was heard of it last.
    #[serde(default)]
    pub heard: Option<Heard>,
}

impl Outcome {
    /// The outcome as far as it is believed, of a volume of so many bytes: a size stands for room that the tenant has to have, so
    /// that it is taken from nobody who has the volume.
    pub fn believed(self, work: &Work, recorded: u64) -> Outcome {
        let expected = match work {
            Work::Grow { bytes } => *bytes,
            Work::Take { .. } => recorded,
            Work::Look | Work::Forget { .. } | Work::Replace(_) | Work::Room { .. } | Work::Restore { .. } => {
                return self;
            }
        };
        match self {
            Outcome::Done(Done { bytes, .. }) if bytes != expected => Outcome::Refused(format!(
                "whoever has the volume attached says that it has {bytes} bytes, and it should have {expected}: grow it to what it has"
            )),
            outcome => outcome,
        }
    }
}

impl Asked {
    /// For nobody yet.
    pub fn new(work: Work) -> Asked {
        Asked { work, attachment: None, before: None, outcome: None, heard: None }
    }

    /// Whether somebody may be at it, or have done it: who is only to say how the volume is changes nothing.
    pub fn is_begun(&self) -> bool {
        self.before.is_some() && !matches!(&self.work, Work::Replace(replacement) if !replacement.go)
    }

    /// What is to be done, with what was there before.
    pub fn work(&self) -> Work {
        match (&self.work, &self.before) {
            (Work::Take { .. }, Some(before)) => Work::Take { before: before.clone() },
            (work, _) => work.clone(),
        }
    }
}

impl Record for Asked {
    const KIND: &'static str = "work";
    // 2: replacements. 3: volumes that are put back. 4: by whose record.
    const VERSION: u32 = 4;
}
