//! Keys of names' and inodes' records. Integers in them are big endian.

use super::Path;

/// What all keys begin with.
const PREFIX: &[u8] = kv::FILES_PREFIX;

/// The key of the root record of the file system `name`.
pub(crate) fn root(name: &str) -> Vec<u8> {
    [PREFIX, b"=", name.as_bytes()].concat()
}

/// Keys of one file system.
#[derive(Clone, Copy)]
pub(crate) struct Keys(pub(crate) [u8; 16]);

impl Keys {
    pub(crate) fn of(self, kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut key = [PREFIX, &self.0, &[kind]].concat();
        parts.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    /// What all of them begin with.
    pub(crate) fn all(self) -> Vec<u8> {
        [PREFIX, &self.0].concat()
    }

    pub(crate) fn inode(self, ino: u64) -> Vec<u8> {
        self.of(b'i', &[&ino.to_be_bytes()])
    }

    pub(crate) fn node(self, dir: u64, path: Path) -> Vec<u8> {
        self.of(b'd', &[&dir.to_be_bytes(), &path.nibbles()])
    }

    pub(crate) fn intent(self, intent: u64) -> Vec<u8> {
        self.of(b'x', &[&intent.to_be_bytes()])
    }

    pub(crate) fn moves(self) -> Vec<u8> {
        self.of(b'v', &[])
    }

    /// What the keys of all inodes begin with.
    pub(crate) fn inodes(self) -> Vec<u8> {
        self.of(b'i', &[])
    }

    /// How far a scrub has come.
    pub(crate) fn scrub(self) -> Vec<u8> {
        self.of(b's', &[])
    }

    pub(crate) fn next_inode(self) -> Vec<u8> {
        self.of(b'n', &[])
    }

    /// The quota of a directory.
    pub(crate) fn quota(self, dir: u64) -> Vec<u8> {
        self.of(b'q', &[&dir.to_be_bytes()])
    }

    /// What the keys of all quotas begin with.
    pub(crate) fn quotas(self) -> Vec<u8> {
        self.of(b'q', &[])
    }

    pub(crate) fn locks(self, ino: u64) -> Vec<u8> {
        self.of(b'l', &[&ino.to_be_bytes()])
    }

    pub(crate) fn client(self, client: u64) -> Vec<u8> {
        self.of(b'c', &[&client.to_be_bytes()])
    }
}
