//! Volumes by name: nodes, drives and tenants, placement, and the operations that make and delete volumes.
//!
//! Use: a [`Provisioner`] answers callers, a [`Worker`] goes on with operations. The page of this crate (`README.md`) says what
//! holds.

mod drives;
mod error;
mod inventory;
mod keys;
mod name;
mod placement;
mod provisioner;
mod records;
mod saga;
mod step;
mod store;
mod sweep;
mod tenants;
mod tokens;
mod volumes;
mod worker;

pub use drives::{Blank, DriveError, Drives, Look, NAMESPACES_MAX, Place, Reply, Until, Usage};
pub use error::Error;
pub use inventory::{DRIVES_MAX, DriveStatus, NODES_MAX, NewDrive, NodePlace, OVERCOMMIT_PERCENT_MAX};
pub use name::{Address, Malformed, Name, Nqn, RequestId};
pub use placement::{Candidate, Placement, Refusal, Rule, Wanted, place, room};
pub use provisioner::{List, PAGE_RECORDS_MAX, Provisioner};
pub use records::{
    At, Attachment, Drive, DriveState, Holder, HolderKind, Level, Namespace, Node, Operation, OperationKind,
    OperationState, Pool, RecordError, Role, Tenant, Token, Volume, VolumeState,
};
pub use store::{Request, Store, Stored};
pub use tenants::{Quota, TENANTS_MAX};
pub use tokens::TOKENS_MAX;
pub use volumes::{
    HolderView, NewVolume, Owner, PENDING_MAX, REPLICAS_MAX, VOLUME_ALIGN, VOLUME_BYTES_MAX, VolumeView,
};
pub use worker::{Worker, WorkerOptions};
