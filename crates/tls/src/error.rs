//! Why TLS failed.

use openssl::error::ErrorStack;
use openssl::ssl::Error;

/// Why a connection could not be secured, or is secure no more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlsError {
    /// The client has offered keys that are not known here.
    #[error("TLS: the client offered the PSK identity {0:?}, for which there is no key")]
    UnknownIdentity(String),
    /// The client offers more keys than are looked at.
    #[error("TLS: the client offered more than {0} pre-shared keys")]
    TooManyIdentities(usize),
    /// The client offers no key at all.
    #[error("TLS: the client offered no pre-shared key, and there is no other way in")]
    NoKey,
    /// The peer did not go on with the key that was offered.
    #[error("TLS: the peer did not take the pre-shared key")]
    KeyNotTaken,
    /// Both have a key of this name, but not the same one.
    #[error("TLS: the client's key for {0} is not ours: give both sides the same key")]
    WrongKey(String),
    /// The server did not let this client in by its key.
    #[error("TLS: no secure connection ({0})")]
    Refused(String),
    /// The file of a key is not private, or can't be read.
    #[error("TLS: {0}")]
    KeyFile(String),
    /// A file of certificates or of a key is no good.
    #[error("TLS: {path}: {reason}: it must be a PEM file, and the key the certificate's own", path = path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// What OpenSSL says.
        reason: String,
    },
    /// A server's certificate is not good enough.
    #[error("TLS: the certificate of {name} is not trusted: {reason}")]
    NotTrusted {
        /// Who was asked for.
        name: String,
        /// What OpenSSL says.
        reason: String,
    },
    /// The handshake or a record was refused, here or there.
    #[error("TLS: {0}")]
    Protocol(String),
    /// The stream ended without close_notify: something may be missing (RFC 8446 §6.1).
    #[error("TLS: the connection ended without a close_notify: it may have been cut")]
    Truncated,
    /// More than a handshake needs.
    #[error("TLS: the peer sent more than {0} bytes before the handshake was complete")]
    HandshakeTooLong(usize),
    /// It took too long.
    #[error("TLS: the handshake was not complete in time")]
    Timeout,
    /// The socket failed.
    #[error("TLS: {0}")]
    Socket(String),
    /// OpenSSL can not be set up.
    #[error("TLS can not be used: {0}")]
    Setup(String),
}

impl TlsError {
    /// What OpenSSL says of a failed step, in as few words as tell it.
    pub(crate) fn of(error: &Error) -> TlsError {
        let reason = error.ssl_error().and_then(reason_of);
        TlsError::Protocol(reason.unwrap_or_else(|| error.to_string()))
    }

    /// Whether OpenSSL has found that the client's key is not ours (RFC 8446 §4.2.11.2).
    pub(crate) fn is_wrong_binder(&self) -> bool {
        matches!(self, TlsError::Protocol(reason) if reason.contains("binder does not verify"))
    }
}

fn reason_of(stack: &ErrorStack) -> Option<String> {
    let reasons: Vec<String> = stack.errors().iter().filter_map(|error| error.reason()).map(str::to_owned).collect();
    (!reasons.is_empty()).then(|| reasons.join(", "))
}

impl From<ErrorStack> for TlsError {
    fn from(error: ErrorStack) -> TlsError {
        TlsError::Setup(error.to_string())
    }
}

impl From<TlsError> for std::io::Error {
    fn from(error: TlsError) -> std::io::Error {
        let kind = match error {
            TlsError::Truncated => std::io::ErrorKind::UnexpectedEof,
            TlsError::Timeout => std::io::ErrorKind::TimedOut,
            _ => std::io::ErrorKind::InvalidData,
        };
        std::io::Error::new(kind, error)
    }
}
