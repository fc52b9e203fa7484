//! What several requests are answered by.

use file::record::lock::Lock;
use file::{Error, Usage};
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyLock, ReplyOpen, ReplyStatfs,
    ReplyXattr,
};

use crate::told::{self, TTL};

/// The unit of sizes of the whole.
const STATFS_BYTES: u64 = 4096;

/// An attribute's answer: its length where that is asked for, or all of it where there is room.
pub fn answer(reply: ReplyXattr, size: u32, found: Result<Vec<u8>, Error>) {
    match found {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(told::errno(&error)),
    }
}

/// Ends a request that has no answer but that it was done.
pub fn done(reply: ReplyEmpty, result: Result<(), Error>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(told::errno(&error)),
    }
}

/// Ends a request for a lock that is in the way of a range, up to its last byte.
pub fn tested(reply: ReplyLock, found: Result<Option<Lock>, Error>, (start, end): (u64, u64)) {
    match found {
        Ok(Some(lock)) => {
            let kind = if lock.is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            reply.locked(lock.start, lock.end - 1, kind, lock.pid);
        }
        Ok(None) => reply.locked(start, end, libc::F_UNLCK, 0),
        Err(error) => reply.error(told::errno(&error)),
    }
}

/// Who appends goes by no pages of the kernel: these would be where the kernel thinks that the file ends.
pub fn how_opened(flags: i32) -> FopenFlags {
    if flags & libc::O_APPEND == 0 { FopenFlags::empty() } else { FopenFlags::FOPEN_DIRECT_IO }
}

/// Ends a request that opens something.
pub fn opened(reply: ReplyOpen, result: Result<u64, Error>, how: FopenFlags) {
    match result {
        Ok(handle) => reply.opened(FileHandle(handle), how),
        Err(error) => reply.error(told::errno(&error)),
    }
}

/// Ends a request for attributes.
pub fn attributes(reply: ReplyAttr, result: Result<file::Attributes, Error>) {
    match result {
        Ok(found) => reply.attr(&TTL, &told::attributes(&found)),
        Err(error) => reply.error(told::errno(&error)),
    }
}

/// Ends a request for room.
pub fn room(reply: ReplyStatfs, result: Result<Usage, Error>) {
    match result {
        Ok(Usage { bytes, free, files }) => {
            let (size, free) = (bytes / STATFS_BYTES, free / STATFS_BYTES);
            let (files, files_free) = files.unwrap_or_default();
            reply.statfs(size, free, free, files, files_free, STATFS_BYTES as u32, 255, STATFS_BYTES as u32);
        }
        Err(error) => reply.error(told::errno(&error)),
    }
}

/// Ends a request for what a name leads to.
pub fn entry(reply: ReplyEntry, result: Result<file::Attributes, Error>) {
    match result {
        Ok(found) => reply.entry(&TTL, &told::attributes(&found), Generation(0)),
        Err(error) => reply.error(told::errno(&error)),
    }
}
