//! How far apart the holders of a volume stand.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How far apart the holders of a volume stand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// On different drives.
    Drive,
    /// On different machines.
    #[default]
    Node,
    /// In different racks.
    Rack,
    /// In different zones.
    Zone,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Drive => "drive",
            Level::Node => "node",
            Level::Rack => "rack",
            Level::Zone => "zone",
        })
    }
}
