//! Why a link has ended.

use std::io;
use std::time::Duration;

use tls::TlsError;

use crate::host::queue::QueueError;
use crate::psk::mend;

/// Why a connection could not be made, or ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection was not made, or was lost.
    #[error("{0}")]
    Io(String),
    /// The target closed the connection.
    #[error("the target closed the connection")]
    Closed,
    /// It did so before it had answered anything.
    #[error("the target closed the connection without an answer; where it wants TLS, give --tls and --tls-key-file")]
    ClosedUnanswered,
    /// The connection could not be secured.
    #[error("{0}{mend}", mend = mend(.0))]
    Tls(#[from] TlsError),
    /// One side broke the protocol.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A command had no answer in time.
    #[error("a command was not answered within {0:?}")]
    CommandTimeout(Duration),
    /// Not even Keep Alive was answered.
    #[error("the target was silent for {0:?}")]
    Silent(Duration),
    /// Keep Alive failed.
    #[error("the target answered Keep Alive with an error")]
    KeepAlive,
    /// The target did not finish the connection's set-up in time.
    #[error("the target did not answer within {0:?}")]
    ConnectTimeout(Duration),
    /// Another queue of its association has ended.
    #[error("the association has ended")]
    AssociationEnded,
    /// This side ended it.
    #[error("the connection was shut down")]
    Shutdown,
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        LinkError::Io(error.to_string())
    }
}
