//! What is wrong with a history.

/// Why a history is not accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// No order explains the answers.
    #[error("key {key:?} is not linearizable; no order explains:\n{report}")]
    NotLinearizable {
        /// The key.
        key: String,
        /// The operations around the one that no order could place.
        report: String,
    },
    /// Neither an order nor its impossibility was found.
    #[error("key {key:?}: undecided after {steps} steps; record fewer overlapping operations per key")]
    Undecided {
        /// The key.
        key: String,
        /// Steps taken.
        steps: u64,
    },
    /// An operation returned before it was invoked, or two writes have the same identity: a mistake of the recording.
    #[error("the history is malformed: {0}")]
    Malformed(String),
}
