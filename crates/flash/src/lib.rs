//! Host-managed flash: a flash device as it is, a model of one, and the media manager that makes a namespace of it.
//!
//! | part | what it is |
//! |---|---|
//! | [`FlashDevice`] | the commands of a device whose parts the host sees |
//! | [`nand`] | a model of NAND: rules, timing, wear, failures, loss of power |
//! | [`Manager`] | the log of a device, with map, collection and recovery |
//! | [`FlashNamespace`] | a namespace like any other |
//! | [`Zones`] | the device's chunks as zones, for hosts that bring a media manager of their own |
//! | [`OverZones`] | the zones of a namespace as a flash device |
//! | [`Metered`], [`FlashMetrics`] | a device's commands counted, and what is told of it |
//! | [`experiment`] | what the media manager costs, beside what analysis says |
//! | [`replay`] | block traces ([`trace`]) on a model, in virtual time |
//!
//! The invariants, the format and the argument are in the README of this crate.

mod address;
mod device;
pub mod experiment;
mod figures;
mod geometry;
mod manager;
mod namespace;
pub mod nand;
mod over_zones;
pub mod presets;
pub mod replay;
pub mod trace;
mod zones;

pub use self::address::{ADDRESSES_MAX, Chunk, Sector};
pub use self::device::{ChunkReport, ChunkState, FlashDevice, FlashError, Read};
pub use self::figures::{FlashMetrics, Metered, Seen};
pub use self::geometry::{
    Geometry, GeometryError, OOB_BYTES_MAX, OOB_BYTES_MIN, SECTOR_BYTES, UNITS_MAX, WRITE_UNIT_MAX,
};
#[cfg(any(test, feature = "testing"))]
pub use self::manager::fuzz;
pub use self::manager::{
    CheckReport, Figures, FormatOptions, Heat, Manager, ManagerError, ManagerOptions, Policy, Room,
};
pub use self::namespace::FlashNamespace;
pub use self::over_zones::{OverZones, ZoneLayout, ZonesError, zoned_device};
pub use self::zones::Zones;
