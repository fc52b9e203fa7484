//! Why an operation has failed, in a word for programs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// No copy is left of the snapshot that a volume was being put back to: the volume has a part of it, and says so.
    SnapshotLost,
    /// Drives have not the room. Nothing was changed.
    NoRoom,
    /// Another program has reserved a namespace of the volume, which was left alone.
    Foreign,
}
