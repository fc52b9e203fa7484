//! Attributes as the kernel wants them, and times both ways.

use std::time::Duration;

use file::record::lock::{LOCK_END, LockKind};
use file::record::{Kind, Time};
use file::{Attributes, Error, LockRequest};
use fuser::{Errno, FileAttr, FileType, INodeNo, LockOwner};

/// A moment as the kernel has it.
// tidy: clock: the type of times in what the kernel asks and is told; no clock is read.
pub type Moment = std::time::SystemTime;
// tidy: clock: likewise.
const EPOCH: Moment = Moment::UNIX_EPOCH;

/// How long the kernel may take names and attributes for true that another host may change. Chosen: what NFS takes at least.
pub const TTL: Duration = Duration::from_secs(1);
/// Bytes that reads and writes are best done by.
const BLOCK_BYTES: u32 = 1 << 20;

/// The kernel's word for a kind.
pub fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::Character => FileType::CharDevice,
        Kind::Block => FileType::BlockDevice,
    }
}

/// The kind that a mode says.
pub fn kind_of_mode(mode: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(Kind::File),
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFCHR => Some(Kind::Character),
        libc::S_IFBLK => Some(Kind::Block),
        _ => None,
    }
}

/// A moment as the kernel has it.
pub fn system_time(time: Time) -> Moment {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let nanos = Duration::from_nanos(time.nanos.into());
    let base = if time.seconds < 0 { EPOCH.checked_sub(whole) } else { EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(nanos)).unwrap_or(EPOCH)
}

/// A moment as files have it.
pub fn file_time(time: Moment) -> Time {
    match time.duration_since(EPOCH) {
        Ok(since) => Time { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            // Seconds are rounded down, so that nanoseconds count upwards.
            let (whole, part) = (i64::try_from(before.as_secs()).unwrap_or(i64::MAX - 1), before.subsec_nanos());
            match part {
                0 => Time { seconds: -whole, nanos: 0 },
                part => Time { seconds: -whole - 1, nanos: 1_000_000_000 - part },
            }
        }
    }
}

/// A moment as it comes from the kernel. What reads its requests takes the nanoseconds of those before 1970 away, which count
/// upwards.
pub fn asked_time(time: Moment) -> Time {
    match EPOCH.duration_since(time) {
        Ok(before) if !before.is_zero() => {
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            Time { seconds: -seconds, nanos: before.subsec_nanos() }
        }
        _ => file_time(time),
    }
}

/// What `stat` tells.
pub fn attributes(told: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(told.ino),
        size: told.size,
        blocks: told.size.div_ceil(512),
        atime: system_time(told.accessed),
        mtime: system_time(told.modified),
        ctime: system_time(told.changed),
        crtime: system_time(told.created),
        kind: kind(told.kind),
        perm: told.mode,
        nlink: told.links,
        uid: told.uid,
        gid: told.gid,
        // The kernel's own coding of device numbers fits 32 bits here.
        rdev: told.device as u32,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// What becomes of a range for which room is to be set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// It is zeroes.
    pub clears: bool,
    /// The file gets as long.
    pub grows: bool,
}

/// What a mode of `fallocate` asks for; `None`: what there is not.
pub fn allocation(mode: i32) -> Option<Allocation> {
    let grows = mode & libc::FALLOC_FL_KEEP_SIZE == 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(Allocation { clears: false, grows }),
        libc::FALLOC_FL_ZERO_RANGE => Some(Allocation { clears: true, grows }),
        libc::FALLOC_FL_PUNCH_HOLE if !grows => Some(Allocation { clears: true, grows }),
        _ => None,
    }
}

/// Whether a lock's range is all bytes that there may be: the only one that `flock` has.
pub fn is_everything(start: u64, end: u64) -> bool {
    start == 0 && end >= LOCK_END - 1
}

/// What the kernel asks for: `end` is the last byte, and `kind` one of `fcntl`'s.
pub fn lock_request(owner: LockOwner, call: LockKind, (start, end): (u64, u64), kind: i32, pid: u32) -> LockRequest {
    let (start, end) = (start.min(LOCK_END - 1), end.min(LOCK_END - 1).max(start.min(LOCK_END - 1)) + 1);
    LockRequest { owner: owner.0, kind: call, start, end, is_exclusive: kind != libc::F_RDLCK, pid }
}

/// The number of an error; what goes wrong with pool or members is also told to whoever reads the log.
pub fn errno(error: &Error) -> Errno {
    if matches!(error, Error::Lost { .. } | Error::LostLock | Error::Damaged(_) | Error::Unavailable(_)) {
        tracing::warn!(%error, "a request fails");
    }
    Errno::from_i32(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_same_both_ways() {
        for (seconds, nanos) in [(0, 0), (1, 999_999_999), (-1, 0), (-1, 500_000_000), (-2, 1), (4_000_000_000, 7)] {
            let time = Time { seconds, nanos };
            assert_eq!(file_time(system_time(time)), time);
        }
    }

    /// Three quarters of a second before 1970 became five.
    #[test]
    fn times_before_1970_are_what_was_asked_for() {
        for (seconds, nanos) in [(-1, 250_000_000), (-1, 0), (-7, 1), (0, 0), (0, 5), (3, 999_999_999)] {
            // As the kernel's words are read.
            let read = match u64::try_from(seconds) {
                Ok(since) => EPOCH + Duration::new(since, nanos),
                Err(_) => EPOCH - Duration::new(i64::unsigned_abs(seconds), nanos),
            };
            assert_eq!(asked_time(read), Time { seconds, nanos });
        }
    }

    #[test]
    fn modes_say_kinds() {
        assert_eq!(kind_of_mode(0o100_644), Some(Kind::File));
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(0o010_644), Some(Kind::Fifo));
        assert_eq!(kind_of_mode(0o040_755), None, "directories have a request of their own");
    }
}
