//! What can go wrong, for a program that decides by the kind and shows the sentence.

use std::time::Duration;

use kv::StoreError;

/// Why the pool was not reached, or an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument, an address or a key file is wrong.
    #[error("{0}")]
    Usage(String),
    /// Nothing answers, or too few do.
    #[error("{0}")]
    Unavailable(String),
    /// What answers is damaged, foreign, in use or of another version.
    #[error("{0}")]
    Refused(String),
    /// No room left.
    #[error("{0}")]
    OutOfSpace(String),
    /// The store could not do what was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was asked of a file could not be done.
    #[error(transparent)]
    File(#[from] file::Error),
    /// The client's own time limit has passed.
    #[error("not done within {} s{}", limit.as_secs_f64(), unknown(*outcome_unknown))]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// Whether a change may yet take effect.
        outcome_unknown: bool,
    },
    /// The client was closed, or its thread has ended.
    #[error("the client is closed{}", unknown(*outcome_unknown))]
    Closed {
        /// Whether a change may have taken effect, or may yet.
        outcome_unknown: bool,
    },
}

fn unknown(outcome_unknown: bool) -> &'static str {
    if outcome_unknown { "; the change may or may not take effect" } else { "" }
}

/// The kinds of errors that programs tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's mistake: an argument, an address, a key file, a key or value over the limits. It will not work again.
    Usage,
    /// Nothing answers, or no majority does. It may work later.
    Unavailable,
    /// Damaged, foreign, in use or of another version. An operator has to look.
    Refused,
    /// No room on the members that hold the key.
    OutOfSpace,
    /// The client's own time limit has passed.
    TimedOut,
    /// The client was closed.
    Closed,
}

impl Error {
    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Usage(_) => ErrorKind::Usage,
            Error::Unavailable(_) => ErrorKind::Unavailable,
            Error::Refused(_) => ErrorKind::Refused,
            Error::OutOfSpace(_) => ErrorKind::OutOfSpace,
            Error::TimedOut { .. } => ErrorKind::TimedOut,
            Error::Closed { .. } => ErrorKind::Closed,
            Error::File(error) => match error {
                file::Error::Unavailable(_) | file::Error::Lost { .. } => ErrorKind::Unavailable,
                file::Error::NoSpace(_) | file::Error::Quota(_) => ErrorKind::OutOfSpace,
                file::Error::Damaged(_) => ErrorKind::Refused,
                _ => ErrorKind::Usage,
            },
            Error::Store(error) => match error {
                StoreError::Key { .. } | StoreError::Value { .. } => ErrorKind::Usage,
                StoreError::Unavailable { .. }
                | StoreError::MapChanged { .. }
                | StoreError::Contended { .. }
                | StoreError::OutOfReach { .. }
                | StoreError::OutcomeUnknown => ErrorKind::Unavailable,
                StoreError::OutOfSpace { .. } => ErrorKind::OutOfSpace,
            },
        }
    }

    /// The number that a system call returns for it, where files have one.
    pub fn errno(&self) -> Option<i32> {
        if let Error::File(error) = self { Some(error.errno()) } else { None }
    }

    /// Whether a change may have taken effect, or may yet: it was sent, and nobody could say what became of it.
    ///
    /// A later read tells, once it has returned the change or something newer. To try a change again that is not idempotent
    /// (an increment) is to risk doing it twice.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Error::Store(error) => error.outcome_unknown(),
            Error::File(error) => matches!(error, file::Error::Unavailable(_)),
            Error::TimedOut { outcome_unknown, .. } | Error::Closed { outcome_unknown } => *outcome_unknown,
            Error::Usage(_) | Error::Unavailable(_) | Error::Refused(_) | Error::OutOfSpace(_) => false,
        }
    }

    /// The same with what was being done in front; an error of the store stays as it is.
    pub(crate) fn during(self, what: &str) -> Error {
        match self {
            Error::Usage(sentence) => Error::Usage(format!("{what}: {sentence}")),
            Error::Unavailable(sentence) => Error::Unavailable(format!("{what}: {sentence}")),
            Error::Refused(sentence) => Error::Refused(format!("{what}: {sentence}")),
            Error::OutOfSpace(sentence) => Error::OutOfSpace(format!("{what}: {sentence}")),
            other => other,
        }
    }
}

impl From<device::Error> for Error {
    fn from(error: device::Error) -> Error {
        let sentence = error.to_string();
        match error {
            device::Error::OutOfSpace => Error::OutOfSpace(sentence),
            device::Error::NotConnected(_) | device::Error::Disconnected(_) | device::Error::Aborted => {
                Error::Unavailable(sentence)
            }
            device::Error::OutOfRange { .. } | device::Error::InvalidLength { .. } => Error::Usage(sentence),
            _ => Error::Refused(sentence),
        }
    }
}

impl From<pool::AgreeError> for Error {
    fn from(error: pool::AgreeError) -> Error {
        match error {
            pool::AgreeError::Unavailable { .. } | pool::AgreeError::Contended => Error::Unavailable(error.to_string()),
            pool::AgreeError::Plan(pool::PlanError::UnderWay { .. }) => Error::Refused(error.to_string()),
            pool::AgreeError::Plan(plan) => Error::Usage(plan.to_string()),
            pool::AgreeError::Refused(_) | pool::AgreeError::Map(_) => Error::Refused(error.to_string()),
        }
    }
}

impl From<pool::RebalanceError> for Error {
    fn from(error: pool::RebalanceError) -> Error {
        match error {
            pool::RebalanceError::Agree(error) => error.into(),
            pool::RebalanceError::Piece { .. } | pool::RebalanceError::Unserved { .. } => {
                Error::Unavailable(error.to_string())
            }
            pool::RebalanceError::Busy { .. } => Error::Refused(error.to_string()),
        }
    }
}

impl From<pool::Error> for Error {
    fn from(error: pool::Error) -> Error {
        match error {
            pool::Error::NoQuorum { .. } => Error::Unavailable(error.to_string()),
            pool::Error::Device { member, source } => Error::from(source).during(&member.to_string()),
            pool::Error::Option { .. } | pool::Error::TooFewDomains { .. } => Error::Usage(error.to_string()),
            other => Error::Refused(other.to_string()),
        }
    }
}
