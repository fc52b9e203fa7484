//! [`Error`]: why an operation on files failed, in words that whoever mounts or calls can act on.

/// Why an operation failed. Those that POSIX has a number for have it by [`Error::errno`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file or directory.
    #[error("no such file or directory: {0}")]
    NotFound(String),
    /// The name is taken.
    #[error("{0} exists")]
    Exists(String),
    /// A directory was expected.
    #[error("{0} is not a directory")]
    NotDirectory(String),
    /// A directory was not expected.
    #[error("{0} is a directory")]
    IsDirectory(String),
    /// The directory has entries.
    #[error("directory {0} is not empty")]
    NotEmpty(String),
    /// A name is too long, empty, or holds what a name can't.
    #[error("a name may not {0}")]
    Name(&'static str),
    /// A directory would come below itself, or another argument makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// The inode has as many links as there may be.
    #[error("{0} has as many links as a file may have")]
    TooManyLinks(String),
    /// A file would be longer than one may be.
    #[error("a file may not be longer than {0} bytes")]
    TooLong(u64),
    /// No room on the members, or in the store.
    #[error("out of space: {0}")]
    NoSpace(String),
    /// A handle's file is gone, removed by another client.
    #[error("the file is gone: another client has removed it")]
    Stale,
    /// Bytes that can't be had: more columns are lost than there is parity.
    #[error("bytes {from} to {to} of inode {inode} can't be read: {reason}")]
    Lost {
        /// The file.
        inode: u64,
        /// First byte.
        from: u64,
        /// Behind the last.
        to: u64,
        /// Which columns failed, and how.
        reason: String,
    },
    /// Something that others wrote does not parse, or contradicts itself.
    #[error("damaged metadata: {0}; `yagura file fsck` says what it touches")]
    Damaged(String),
    /// The store or members do not answer: whether a change took effect may be unknown.
    #[error("the pool does not answer: {0}")]
    Unavailable(String),
}
