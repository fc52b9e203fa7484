//! What can go wrong with an operation, in words for people.

use crate::types::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The key is empty or too long.
    #[error("a key of {length} bytes: keys have 1 to {KEY_BYTES_MAX}")]
    Key {
        /// Its length.
        length: usize,
    },
    /// The value is too long.
    #[error("a value of {length} bytes: at most {VALUE_BYTES_MAX} fit; cut it into parts")]
    Value {
        /// Its length.
        length: usize,
    },
    /// A member's page is sealed for a later epoch than this host's map, and nothing of the operation was stored.
    #[error("the pool's map has changed (epoch {epoch} is in force, this host knows {known}): open the pool again")]
    MapChanged {
        /// The epoch of the seal.
        epoch: u64,
        /// The epoch of the host's map.
        known: u64,
    },
    /// No majority of the key's members answered in time.
    #[error("unavailable: {answered} of {replicas} replicas answered, {needed} are needed{} ({reasons})",
        if *outcome_unknown { "; the write may or may not take effect" } else { "" })]
    Unavailable {
        /// Members that did what was asked.
        answered: usize,
        /// Members that hold the key.
        replicas: usize,
        /// Members needed.
        needed: usize,
        /// Whether a write may have taken effect, or may yet: a later read tells, once it has returned it or something newer.
        outcome_unknown: bool,
        /// What the others said.
        reasons: String,
    },
    /// Too few of the members that agree on the pool's map are connected to know which one is in force.
    #[error("unavailable: {connected} of {voters} voting members are connected, {needed} are needed ({reasons})")]
    OutOfReach {
        /// Voters that are connected.
        connected: usize,
        /// Voters there are.
        voters: usize,
        /// Voters needed.
        needed: usize,
        /// What is with the others.
        reasons: String,
    },
    /// Others changed the key all the time.
    #[error("gave up after {attempts} attempts against other conditional operations on the key{}",
        if *outcome_unknown { "; this one may or may not take effect" } else { "" })]
    Contended {
        /// Attempts made.
        attempts: u32,
        /// Whether one of them may have taken effect, or may yet.
        outcome_unknown: bool,
    },
    /// The key was set anew before it could be seen whether an attempt of this conditional operation had taken effect. To
    /// try it again might apply it twice.
    #[error("the outcome is unknown: the key was set anew meanwhile; read it to learn what it holds")]
    OutcomeUnknown,
    /// The members that hold the key are full.
    #[error("out of space on the members that hold the key{}; delete something or add members ({reasons})",
        if *outcome_unknown { " (a minority has stored it: the write may take effect)" } else { "" })]
    OutOfSpace {
        /// Whether a minority has stored the value, which a later operation on the key may complete.
        outcome_unknown: bool,
        /// What the members said.
        reasons: String,
    },
}

impl StoreError {
    /// The same, with a known or unknown outcome where it has one.
    pub(super) fn with_outcome(mut self, unknown: bool) -> StoreError {
        match &mut self {
            StoreError::Unavailable { outcome_unknown, .. }
            | StoreError::OutOfSpace { outcome_unknown, .. }
            | StoreError::Contended { outcome_unknown, .. } => *outcome_unknown = unknown,
            StoreError::Value { .. } | StoreError::MapChanged { .. } | StoreError::OutOfReach { .. } if unknown => {
                return StoreError::OutcomeUnknown;
            }
            StoreError::Key { .. }
            | StoreError::Value { .. }
            | StoreError::MapChanged { .. }
            | StoreError::OutOfReach { .. }
            | StoreError::OutcomeUnknown => {}
        }
        self
    }

    /// Whether a write may have taken effect, or may yet: this host cannot tell. It takes effect at most once, and a later
    /// read tells, once it has returned it or something newer.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            StoreError::Unavailable { outcome_unknown, .. }
            | StoreError::OutOfSpace { outcome_unknown, .. }
            | StoreError::Contended { outcome_unknown, .. } => *outcome_unknown,
            StoreError::OutcomeUnknown => true,
            StoreError::Key { .. }
            | StoreError::Value { .. }
            | StoreError::MapChanged { .. }
            | StoreError::OutOfReach { .. } => false,
        }
    }
}
