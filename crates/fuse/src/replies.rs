//! What several requests are answered by.

use file::data::Rope;
use file::record::lock::Lock;
use file::{Error, Usage};
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyXattr,
};

use crate::figures::Outcome;
use crate::told::{self, TTL};

/// The unit of sizes of the whole.
const STATFS_BYTES: u64 = 4096;

/// An attribute's answer: its length where that is asked for, or all of it where there is room.
pub fn answer(reply: ReplyXattr, size: u32, found: Result<Vec<u8>, Error>) -> Outcome {
    match &found {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value),
        Err(error) => reply.error(told::errno(error)),
    }
    found.map(drop)
}

/// Names of attributes one after the other, with an end each; those of the trusted only where they are to be told.
pub fn joined(names: Vec<Vec<u8>>, trusted: bool) -> Vec<u8> {
    let is_told = |name: &Vec<u8>| trusted || !name.starts_with(b"trusted.");
    names.into_iter().filter(is_told).flat_map(|name| [name, vec![0]].concat()).collect()
}

/// Ends a request for a place of data or of a hole.
pub fn sought(reply: ReplyLseek, found: Result<Option<u64>, Error>) -> Outcome {
    match &found {
        Ok(Some(at)) => reply.offset(*at as i64),
        Ok(None) => reply.error(Errno::ENXIO),
        Err(error) => reply.error(told::errno(error)),
    }
    found.map(drop)
}

/// Ends a request that has no answer but that it was done.
pub fn done(reply: ReplyEmpty, result: Result<(), Error>) -> Outcome {
    match &result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(told::errno(error)),
    }
    result
}

/// Ends a request for a lock that is in the way of a range, up to its last byte.
pub fn tested(reply: ReplyLock, found: Result<Option<Lock>, Error>, (start, end): (u64, u64)) -> Outcome {
    match &found {
        Ok(Some(lock)) => {
            let kind = if lock.is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            reply.locked(lock.start, lock.end - 1, kind, lock.pid);
        }
        Ok(None) => reply.locked(start, end, libc::F_UNLCK, 0),
        Err(error) => reply.error(told::errno(error)),
    }
    found.map(drop)
}

/// Who appends goes by no pages of the kernel: these would be where the kernel thinks that the file ends. Who asks for that goes
/// past them by himself: opened so, a write by AIO that fails would have the kernel cut the file.
pub fn how_opened(flags: i32) -> FopenFlags {
    match flags & (libc::O_APPEND | libc::O_DIRECT) {
        libc::O_APPEND => FopenFlags::FOPEN_DIRECT_IO,
        _ => FopenFlags::empty(),
    }
}

/// Ends a request that opens something.
pub fn opened(reply: ReplyOpen, result: Result<u64, Error>, how: FopenFlags) -> Outcome {
    match &result {
        Ok(handle) => reply.opened(FileHandle(*handle), how),
        Err(error) => reply.error(told::errno(error)),
    }
    result.map(drop)
}

/// Ends a request for bytes of a file.
pub fn bytes(reply: ReplyData, result: Result<Rope, Error>) -> Outcome {
    match &result {
        Ok(rope) => match rope.parts() {
            [only] => reply.data(only),
            _ => reply.data(&rope.to_vec()),
        },
        Err(error) => reply.error(told::errno(error)),
    }
    result.map(drop)
}

/// Ends a request for other bytes.
pub fn data(reply: ReplyData, result: Result<Vec<u8>, Error>) -> Outcome {
    match &result {
        Ok(data) => reply.data(data),
        Err(error) => reply.error(told::errno(error)),
    }
    result.map(drop)
}

/// Ends a request for attributes.
pub fn attributes(reply: ReplyAttr, result: Result<file::Attributes, Error>) -> Outcome {
    match &result {
        Ok(found) => reply.attr(&TTL, &told::attributes(found)),
        Err(error) => reply.error(told::errno(error)),
    }
    result.map(drop)
}

/// Ends a request for room.
pub fn room(reply: ReplyStatfs, result: Result<Usage, Error>) -> Outcome {
    match &result {
        Ok(Usage { bytes, free, files }) => {
            let (size, free) = (bytes / STATFS_BYTES, free / STATFS_BYTES);
            let (files, files_free) = files.unwrap_or_default();
            reply.statfs(size, free, free, files, files_free, STATFS_BYTES as u32, 255, STATFS_BYTES as u32);
        }
        Err(error) => reply.error(told::errno(error)),
    }
    result.map(drop)
}

/// Ends a request for what a name leads to.
pub fn entry(reply: ReplyEntry, result: Result<file::Attributes, Error>) -> Outcome {
    match &result {
        Ok(found) => reply.entry(&TTL, &told::attributes(found), Generation(0)),
        Err(error) => reply.error(told::errno(error)),
    }
    result.map(drop)
}
