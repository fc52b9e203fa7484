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
    /// A name is longer than names are.
    #[error("a name may not have more than {0} bytes")]
    NameTooLong(usize),
    /// A directory would come below itself, or another argument makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// A path leads over too many symbolic links.
    #[error("{0} leads over more symbolic links than are followed")]
    Loop(String),
    /// The inode has as many links as there may be.
    #[error("{0} has as many links as a file may have")]
    TooManyLinks(String),
    /// A file would be longer than one may be.
    #[error("a file may not be longer than {0} bytes")]
    TooLong(u64),
    /// There is no such extended attribute.
    #[error("there is no attribute {0}")]
    NoAttribute(String),
    /// The name of an attribute is empty or too long, or its value does not fit what the caller has for it.
    #[error("an attribute's name or value has a length that does not do: {0}")]
    Range(&'static str),
    /// What this file system does not have.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// What nobody may do.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// No room on the members, or in the store.
    #[error("out of space: {0}")]
    NoSpace(String),
    /// A quota is used up.
    #[error("over quota: {0}")]
    Quota(String),
    /// A name would come to count for another quota than what it leads to.
    #[error("{0} counts for another quota than that directory: copy it, and remove it here")]
    Across(String),
    /// A directory that is to have a quota has names.
    #[error(
        "{0} has names already, which would not count: make another directory, give it the quota, and copy what is in this one \
         into it by `yagura file cp --recursive`"
    )]
    HasNames(String),
    /// Another has a lock that is in the way.
    #[error("another has a lock on it")]
    Locked,
    /// Whoever waited for a lock waits no more.
    #[error("a signal came while a lock was waited for")]
    Interrupted,
    /// A file has as many locks as it may have.
    #[error("the file has as many locks, and as many who wait for one, as a file may have")]
    NoLocks,
    /// What others may have locked and changed by now.
    #[error("locks on the file are lost, as the pool did not answer for too long: close it, and open it again")]
    LostLock,
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

impl Error {
    /// The number that a system call returns for it.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound(_) => libc::ENOENT,
            Error::Exists(_) => libc::EEXIST,
            Error::NotDirectory(_) => libc::ENOTDIR,
            Error::IsDirectory(_) => libc::EISDIR,
            Error::NotEmpty(_) | Error::HasNames(_) => libc::ENOTEMPTY,
            Error::NameTooLong(_) => libc::ENAMETOOLONG,
            Error::Name(_) | Error::Invalid(_) => libc::EINVAL,
            Error::Loop(_) => libc::ELOOP,
            Error::TooManyLinks(_) => libc::EMLINK,
            Error::TooLong(_) => libc::EFBIG,
            Error::NoAttribute(_) => libc::ENODATA,
            Error::Range(_) => libc::ERANGE,
            Error::NotSupported(_) => libc::EOPNOTSUPP,
            Error::NotPermitted(_) => libc::EPERM,
            Error::NoSpace(_) => libc::ENOSPC,
            Error::Quota(_) => libc::EDQUOT,
            Error::Across(_) => libc::EXDEV,
            Error::Locked => libc::EAGAIN,
            Error::Interrupted => libc::EINTR,
            Error::NoLocks => libc::ENOLCK,
            Error::Stale => libc::ESTALE,
            Error::LostLock | Error::Lost { .. } | Error::Damaged(_) | Error::Unavailable(_) => libc::EIO,
        }
    }
}
