//! Keys of the records of content and space.

use crate::record::Keys;

/// A file system.
pub type FsId = [u8; 16];

fn key(fs: &FsId, kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    Keys(*fs).of(kind, parts)
}

/// A span of the map of a long file.
pub(crate) fn span(fs: &FsId, inode: u64, map: u64, span: u64) -> Vec<u8> {
    key(fs, b'b', &[&inode.to_be_bytes(), &map.to_be_bytes(), &span.to_be_bytes()])
}

/// What the keys of all spans of a map begin with.
pub(crate) fn spans(fs: &FsId, inode: u64, map: u64) -> Vec<u8> {
    key(fs, b'b', &[&inode.to_be_bytes(), &map.to_be_bytes()])
}

/// What the keys of all chunks begin with.
pub(crate) fn chunks(fs: &FsId) -> Vec<u8> {
    key(fs, b'k', &[])
}

/// A chunk.
pub(crate) fn chunk(fs: &FsId, chunk: u32) -> Vec<u8> {
    key(fs, b'k', &[&chunk.to_be_bytes()])
}

/// A page of a member's regions.
pub(crate) fn regions(fs: &FsId, member: u16, page: u32) -> Vec<u8> {
    key(fs, b'm', &[&member.to_be_bytes(), &page.to_be_bytes()])
}

/// The chunks without an owner.
pub(crate) fn unowned(fs: &FsId) -> Vec<u8> {
    key(fs, b'a', &[])
}
