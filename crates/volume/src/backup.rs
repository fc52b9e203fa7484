//! What exporting and importing have in common: the pipe that a stream goes through, and why it comes to nothing.
//!
//! How fast an export or import goes, and how far it has come, is its job's: bytes that are read, compared and written count alike;
//! what moves none, as deallocating, has no turn.

use engine::task::LocalFuture;

use crate::error::Error;
use crate::origin::Origin;
use crate::snapshot_name::SnapshotId;
use crate::stream::StreamError;

/// Where a stream is written to.
pub trait Sink {
    /// Writes all of these bytes behind those before, now or soon.
    fn write(&mut self, bytes: Vec<u8>) -> LocalFuture<'_, Result<(), std::io::Error>>;
}

/// Where a stream is read from.
pub trait Source {
    /// The next bytes, as many as there are; none: it has ended.
    fn read(&mut self) -> LocalFuture<'_, Result<Vec<u8>, std::io::Error>>;
}

/// Why an export or an import comes to nothing.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The bytes are no whole stream.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// They can't be read, or written.
    #[error("the stream: {0}")]
    Pipe(std::io::Error),
    /// Something about a volume as a whole could not be done.
    #[error("{0}")]
    Volume(#[from] Error),
    /// A command failed.
    #[error("{of}: {source}")]
    Device {
        /// Of what.
        of: String,
        /// Why.
        source: device::Error,
    },
    /// The two snapshots are not of one volume, one after the other.
    #[error(
        "{from} is not older than {to}, and of the same volume: a difference goes from the older one to the newer one"
    )]
    NotOlder {
        /// The one that was to be the older.
        from: SnapshotId,
        /// The other.
        to: SnapshotId,
    },
    /// It is no snapshot of a whole volume.
    #[error("{of} is of a volume that was {is}: go on with that import, and take another snapshot when it has ended")]
    InPart {
        /// Which snapshot.
        of: SnapshotId,
        /// What the volume was.
        is: Box<Origin>,
    },
    /// The volume has something that the stream would destroy.
    #[error("the volume is not blank, {is}: all of it would be lost (say so by `force`)")]
    NotBlank {
        /// What it is.
        is: String,
    },
    /// The stream is the difference from a snapshot that the volume has not.
    #[error("the stream begins with {needs}, and the volume is {is}: import what lies between first")]
    NotAtBase {
        /// The snapshot.
        needs: SnapshotId,
        /// What the volume is.
        is: String,
    },
    /// The volume was written since it was that snapshot.
    #[error(
        "the volume was written since it was imported from {since}, first at byte {at}: a difference would make of it what never \
         was; import a stream of everything by `force`"
    )]
    Written {
        /// The snapshot.
        since: SnapshotId,
        /// Where.
        at: u64,
    },
    /// The volume's own snapshot of what it was imported from is gone.
    #[error(
        "the volume's own snapshot of what was imported from {of} is gone: whether it was written since can't be told"
    )]
    BaseGone {
        /// What was imported.
        of: SnapshotId,
    },
    /// The volume is too small.
    #[error("the volume has {bytes} bytes, and the snapshot {needed}: grow the volume first")]
    TooSmall {
        /// Its bytes.
        bytes: u64,
        /// Those of the snapshot.
        needed: u64,
    },
    /// The volume has larger blocks.
    #[error(
        "the volume has blocks of {volume} bytes, and the stream of {stream}: it takes one with the same, or smaller ones"
    )]
    BlockSize {
        /// The volume's.
        volume: u32,
        /// The stream's.
        stream: u32,
    },
}
