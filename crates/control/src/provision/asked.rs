//! What an operation asks of whoever has its volume attached, and what has come of it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::moment::Moment;
use super::records::Record;

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
}

impl Outcome {
    /// The outcome as far as it is believed, of a volume of so many bytes: a size stands for room that the tenant has to have, so
    /// that it is taken from nobody who has the volume.
    pub fn believed(self, work: &Work, recorded: u64) -> Outcome {
        let expected = match work {
            Work::Grow { bytes } => *bytes,
            Work::Take { .. } => recorded,
            Work::Look | Work::Forget { .. } => return self,
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
    /// Whether somebody may be at it, or have done it.
    pub fn is_begun(&self) -> bool {
        self.before.is_some()
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
    const VERSION: u32 = 1;
}
