//! What goes in and comes out.

pub use file::record::{Kind, Time};

/// What is told of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// Its inode's number.
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// The twelve bits of permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// When its content changed.
    pub modified: Time,
    /// When it was made.
    pub created: Time,
    /// Where the symbolic link leads that was followed, or is told of itself as it leads nowhere.
    pub target: Option<Vec<u8>>,
}

/// Bytes of a file; numbers below 0 count from its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Which file.
    pub path: Vec<u8>,
    /// The first; none: from the begin.
    pub from: Option<i64>,
    /// Behind the last; none: to the end.
    pub to: Option<i64>,
}

/// Whose new files are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}
