//! [`Attributes`]: what is told of inodes.

use crate::record::inode::Inode;
use crate::record::{Kind, Time};

/// Bytes that a directory is said to have. Chosen: what others say of small ones.
const DIRECTORY_BYTES: u64 = 4096;

/// What `stat` tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The inode.
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// The twelve bits of permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; of a directory two and one for each that is in it, or one where they are not counted.
    pub links: u32,
    /// Of a device's name.
    pub device: u64,
    /// Bytes.
    pub size: u64,
    /// As it was set, or when the content changed last.
    pub accessed: Time,
    /// When the content changed.
    pub modified: Time,
    /// When anything changed.
    pub changed: Time,
    /// When it was made.
    pub created: Time,
    /// How many changes the inode has had: of two answers this tells the later one.
    pub changes: u64,
}

/// A directory that is open.
pub(crate) struct OpenDir {
    /// How many times.
    pub(super) count: u64,
    /// As it was seen last.
    pub(super) seen: Attributes,
}

impl Attributes {
    pub(crate) fn of(ino: u64, inode: &Inode) -> Attributes {
        let is_directory = inode.kind == Kind::Directory;
        Attributes {
            ino,
            kind: inode.kind,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            // Of a directory that holds none.
            links: if is_directory { 2 } else { inode.links.len() as u32 },
            device: inode.device,
            size: if is_directory { DIRECTORY_BYTES } else { inode.size },
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
            created: inode.created,
            changes: inode.stamps.changes(),
        }
    }
}
