//! Volumes by name: nodes, drives and tenants, placement, and the operations that make and delete volumes.
//!
//! Use: a [`Provisioner`] answers callers, a [`Worker`] goes on with operations. The page of this crate (`README.md`) says what
//! holds.

mod asked;
mod copy;
mod create;
mod drive;
mod drives;
mod emptying;
mod ending;
mod error;
mod former;
mod growth;
mod hosts;
mod inventory;
mod keys;
mod level;
mod moment;
mod name;
mod namespace;
mod placement;
mod plan;
mod provisioner;
mod reason;
mod records;
mod replace;
mod replacement;
mod restore;
mod restored;
mod room;
mod saga;
mod snapshots;
mod step;
mod store;
mod sweep;
mod take;
mod temporary;
mod tenants;
mod tokens;
mod volumes;
mod widen;
mod work;
mod worker;

pub use asked::{Asked, Done, Epoch, Heard, Outcome, Progress, Replacement, Restored, Stopped, Work};
pub use create::{BANDWIDTH_MIN, LIMIT_MAX, NewVolume, REPLICAS_MAX, VOLUME_ALIGN, VOLUME_BYTES_MAX};
pub use drives::{Blank, DriveError, Drives, Look, NAMESPACES_MAX, Place, Replica, Reply, Until, Usage};
pub use emptying::HolderOn;
pub use error::Error;
pub use hosts::{Assigned, Ended, Noted, Report, Wish, Working};
pub use inventory::{DRIVES_MAX, DriveStatus, NODES_MAX, NewDrive, NodePlace, OVERCOMMIT_PERCENT_MAX};
pub use level::Level;
pub use moment::{Limits, Moment, Snapshot, Source};
pub use name::{Address, Malformed, Name, Nqn, RequestId};
pub use placement::{Candidate, Placement, Refusal, Rule, Wanted, place, room};
pub use plan::{Owner, PENDING_MAX};
pub use provisioner::{List, PAGE_RECORDS_MAX, Provisioner};
pub use reason::Reason;
pub use records::{
    At, Attachment, Beside, Drive, DriveState, Holder, HolderKind, Namespace, Node, Operation, OperationKind,
    OperationState, Pool, RecordError, Role, Tenant, Token, Volume, VolumeState,
};
pub use restored::restored;
pub use snapshots::{NewSnapshot, Restoring, SNAPSHOTS_MAX, SnapshotView};
pub use store::{Request, Store, Stored};
pub use tenants::{Quota, TENANTS_MAX};
pub use tokens::{TOKENS_MAX, Whom};
pub use volumes::{HolderView, VolumeView};
pub use worker::{Worker, WorkerOptions};
