//! Why a media manager could not be made, opened or closed.

use crate::device::FlashError;
use crate::geometry::Geometry;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManagerError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] FlashError),
    /// No root was found.
    #[error("the device is not formatted: no root was found on it")]
    NotFormatted,
    /// What was found is of another device.
    #[error("the root was written for a device of {recorded:?}, and this one is of {found:?}")]
    OtherGeometry {
        /// As the root says.
        recorded: Box<Geometry>,
        /// As the device says.
        found: Box<Geometry>,
    },
    /// What was found is of another device.
    #[error("the root was written for another device: its content was copied, or the table of devices is wrong")]
    OtherDevice,
    /// Metadata is not what was written.
    #[error("the media manager's metadata is damaged: {0}")]
    Damaged(String),
    /// The device is too small, or has too few good chunks.
    #[error(
        "the device is too small: {lines} usable lines with {payload} sectors in all, where {needed} are needed for {capacity}"
    )]
    TooSmall {
        /// Lines with at least one good chunk.
        lines: usize,
        /// Sectors that they hold.
        payload: u64,
        /// Sectors that they must hold.
        needed: u64,
        /// Sectors of the namespace.
        capacity: u64,
    },
    /// Once it is full, hosts could wait for room for ever.
    #[error(
        "{spare} % to spare is too little here: full of {capacity} sectors, the device could have no line that is worth emptying; \
         {least} % is the least that works, for {most} sectors at most"
    )]
    SpareTooSmall {
        /// What is to be spare, in percent.
        spare: u32,
        /// The least that works.
        least: u32,
        /// Sectors of the namespace.
        capacity: u64,
        /// The most that it can have.
        most: u64,
    },
    /// What says where the map is has no room in a chunk.
    #[error(
        "roots would have up to {bytes} bytes, and a chunk has room for {most}: fewer chunks, or larger ones, would do"
    )]
    RootTooLarge {
        /// Bytes of the largest root.
        bytes: usize,
        /// Bytes that a chunk takes of one.
        most: usize,
    },
    /// Write units have no room for tags.
    #[error(
        "write units of one sector have no room for tags: a device without out-of-band area needs units of two sectors or more"
    )]
    NoTags,
    /// The limit of open chunks is too low.
    #[error("{open_max} chunks may be open; {needed} are needed")]
    OpenLimit {
        /// What the device allows.
        open_max: u32,
        /// What the streams and roots need.
        needed: u32,
    },
    /// It has failed while it worked.
    #[error("the media manager has stopped: {0}")]
    Stopped(#[from] device::Error),
}
