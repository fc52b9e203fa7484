//! Why something about a volume as a whole could not be done. Commands fail with [`device::Error`].

use crate::label::{Label, LabelError};
use crate::record::RecordError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A holder can't be reached.
    #[error("{holder} can't be reached: {reason}")]
    Unreachable {
        /// The holder.
        holder: String,
        /// What its target or the network says.
        reason: String,
    },
    /// A holder's command failed.
    #[error("{holder}: {source}")]
    Device {
        /// The holder.
        holder: String,
        /// What happened.
        source: device::Error,
    },
    /// A holder's namespace has no label.
    #[error("{holder}: {source}")]
    Label {
        /// The holder.
        holder: String,
        /// What stands there instead.
        source: LabelError,
    },
    /// A holder's record is damaged.
    #[error("{holder}: {source}")]
    Record {
        /// The holder.
        holder: String,
        /// What is wrong with it.
        source: RecordError,
    },
    /// It is a holder of another volume, or in another slot.
    #[error("{holder} belongs to slot {slot} of volume {volume:032x}: it was given in another's place")]
    OtherVolume {
        /// The holder.
        holder: String,
        /// The volume it belongs to.
        volume: u128,
        /// Its slot.
        slot: u8,
    },
    /// Too few holders were reached, or too few of those that count.
    #[error("no majority of the volume's holders can be counted: {reasons}")]
    NoMajority {
        /// What each of the others says.
        reasons: String,
    },
    /// No holder has a record.
    #[error("no holder of the volume has a record: it was never formatted to its end; format it again")]
    NoRecord,
    /// None of the replicas that have every acknowledged write was reached.
    #[error("no replica in sync was reached: those are slots {slots}; bring one of them back ({reasons})")]
    NoneInSync {
        /// The slots.
        slots: String,
        /// What those that were not reached say.
        reasons: String,
    },
    /// Another host attached the volume at the same time, or has since.
    #[error("another host has attached the volume")]
    Superseded,
    /// The volume was detached, or handed over, by this host.
    #[error("the volume is detached")]
    Detached,
    /// A namespace is too small.
    #[error("{holder} has {blocks} blocks, {needed} are needed")]
    TooSmall {
        /// The holder.
        holder: String,
        /// Its blocks.
        blocks: u64,
        /// Blocks that the volume needs there.
        needed: u64,
    },
    /// A volume can't grow so much.
    #[error("the volume can have {bytes_max} bytes at most: its logs have no room for more than it was made for")]
    LogTooSmall {
        /// How large it can be.
        bytes_max: u64,
    },
    /// Nobody who is in sync can take a snapshot.
    #[error("no replica in sync that answers is on a target that offers snapshots of its namespaces")]
    NoCopies,
    /// Nobody has taken a snapshot who was asked.
    #[error("no replica has taken the snapshot: {reasons}")]
    NotTaken {
        /// What they say.
        reasons: String,
    },
    /// The record is full.
    #[error("the volume has {max} snapshots, and its record has room for no more: delete one")]
    TooManySnapshots {
        /// As many as there is room for.
        max: usize,
    },
    /// A snapshot is not there.
    #[error("{holder} has no such snapshot")]
    NoSuchSnapshot {
        /// The holder, or the volume.
        holder: String,
    },
    /// Block sizes differ.
    #[error("{holder} has blocks of {found} bytes, the others have {expected}: replicas must be alike")]
    BlockSize {
        /// The holder.
        holder: String,
        /// Its block size.
        found: u32,
        /// That of the volume.
        expected: u32,
    },
    /// A namespace is in use.
    #[error("{holder} is in use: {by}; what is there would be lost (say so by `force`)")]
    InUse {
        /// The holder.
        holder: String,
        /// By what.
        by: String,
    },
    /// Another program has reserved the namespace.
    #[error(
        "{holder} is reserved by another program, or by a host of a volume of an earlier version ({by}): have that release it, or \
         look by `yagura nvme reservations report` whose it is and end it by `register`, `preempt` and then `clear` of the same"
    )]
    Foreign {
        /// The holder.
        holder: String,
        /// What the reservation is.
        by: String,
    },
    /// What was asked for may lose what was acknowledged.
    #[error("{holder}: writes that were acknowledged may be lost, since {what} (say so by `force`)")]
    Loses {
        /// Whose copy it would go on with.
        holder: String,
        /// Why.
        what: String,
    },
    /// A target lacks something.
    #[error("{holder} does not offer {what}, which a holder of a volume needs")]
    Lacks {
        /// The holder.
        holder: String,
        /// What it lacks.
        what: &'static str,
    },
    /// What was asked for can't be made.
    #[error("{0}")]
    Impossible(&'static str),
}

impl Error {
    /// The volume has, or would have, more regions than the holder's log has room for.
    pub(crate) fn log_too_small(label: &Label) -> Error {
        let region_bytes = u64::from(label.shape.region_blocks) * u64::from(label.shape.block_size);
        Error::LogTooSmall { bytes_max: label.regions_max() * region_bytes }
    }

    /// Whether to try again may help.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Error::Unreachable { .. }
                | Error::Device { .. }
                | Error::NoMajority { .. }
                | Error::NoneInSync { .. }
                | Error::Superseded
        )
    }
}
