//! Failure domains: what fails together, and where a member stands.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What fails together, narrowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// One drive.
    Drive,
    /// One machine.
    Machine,
    /// One rack.
    Rack,
    /// One zone.
    Zone,
}

impl Level {
    /// All levels, widest first.
    pub const WIDEST_FIRST: [Level; 4] = [Level::Zone, Level::Rack, Level::Machine, Level::Drive];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Drive => "drive",
            Level::Machine => "machine",
            Level::Rack => "rack",
            Level::Zone => "zone",
        })
    }
}

/// Where a member stands: labels from the widest to the narrowest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Zone; may be empty if there is but one.
    #[serde(default)]
    pub zone: String,
    /// Rack within the zone; may be empty if there is but one.
    #[serde(default)]
    pub rack: String,
    /// Machine within the rack; at creation an empty one becomes the member's own id.
    #[serde(default)]
    pub machine: String,
    /// Drive within the machine; at creation an empty one becomes the member's own id.
    #[serde(default)]
    pub drive: String,
}

impl Domain {
    /// The labels that name this domain at `level`: equal labels, same domain.
    pub fn at(&self, level: Level) -> [&str; 4] {
        let visible = |at: Level, text| if at >= level { text } else { "" };
        [
            visible(Level::Zone, self.zone.as_str()),
            visible(Level::Rack, self.rack.as_str()),
            visible(Level::Machine, self.machine.as_str()),
            visible(Level::Drive, self.drive.as_str()),
        ]
    }
}
