//! What can go wrong on a member, and whether what was to be done may have been.

use crate::page::PageError;
use crate::types::OpId;

/// Compare-and-writes of one page by one operation before it gives up. Guessed: far beyond any contention that still makes
/// progress, so that a defect shows as an error and not as a hang.
pub const ATTEMPTS_MAX: usize = 256;

/// Why a member did not do what it was asked. It then has no vote on it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TableError {
    /// Its namespace failed.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// A page of its table is damaged.
    #[error("table page {page}: {error}")]
    Page {
        /// Which page.
        page: u32,
        /// What is wrong.
        error: PageError,
    },
    /// An allocation page of its heap is damaged.
    #[error("allocation page of heap group {group}: {error}")]
    Allocation {
        /// Which group.
        group: u32,
        /// What is wrong.
        error: PageError,
    },
    /// The copy its home page refers to does not verify, though the reference is in force.
    #[error("the copy of the value written by {op} is damaged")]
    CopyDamaged {
        /// The operation that wrote it.
        op: OpId,
    },
    /// No place is left.
    #[error("out of space: {0}")]
    OutOfSpace(&'static str),
    /// The page belongs to a later epoch.
    #[error("table page {page} is sealed for epoch {seal}: the pool's map has changed, open the pool again")]
    Sealed {
        /// Which page.
        page: u32,
        /// Epoch of the seal.
        seal: u64,
    },
    /// Other writers were always faster.
    #[error("gave up after {ATTEMPTS_MAX} attempts against other writers of the same page")]
    Contended,
}

impl TableError {
    /// Whether a change may have taken effect, or may yet, although this error came back.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            TableError::Device(error) => uncertain(error),
            _ => false,
        }
    }

    /// Whether the allocation page of a heap group can't be used, which says nothing of the other groups.
    pub(crate) fn group_is_damaged(&self) -> bool {
        matches!(self, TableError::Allocation { .. } | TableError::Device(device::Error::ReadFault(_)))
    }

    /// Whether the same may work once the connection is back.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            TableError::Device(error) => error.outcome_unknown() || matches!(error, device::Error::NotConnected(_)),
            TableError::Contended => true,
            _ => false,
        }
    }
}

/// Whether a write that ended with `error` may be on the medium, now or later. Beyond what the namespace promises, a write
/// fault is taken for one: a medium that failed once is not trusted to have done nothing.
pub(super) fn uncertain(error: &device::Error) -> bool {
    error.outcome_unknown()
        || matches!(error, device::Error::WriteFault(_) | device::Error::Reserved(_) | device::Error::Status(_))
}
