//! [`Mapped`]: words of memory that are a file's content (`MAP_SHARED`): what was stored outlives the process however it ends,
//! `kill -9` included; power loss only what was stored before a successful [`Mapped::sync`].
//!
//! All access is by atomic words, so that threads may share it and nothing read from it can be torn. There is no other view of
//! the bytes. In a simulated world, and wherever a test ends a process without ending it, [`Mapped::memory`] stands in for the
//! file: who keeps it over the crash keeps its words, as the page cache does.
//!
//! The claim by `flock` keeps others of our kind away. A foreign program that cuts the file short takes its content away from
//! under us: all words are zero from then on, and no file's ([`Mapped::is_lost`]; `guard`). Its room is reserved when it is opened,
//! so that a full file system is an error there and not a loss later.

mod guard;

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use guard::Guard;
use rustix::fs::{self, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MsyncFlags, ProtFlags};

use crate::runtime::{self, Context};

/// Words of the longest mapping. Derived: two bytes for every page of 4 KiB of 16 TiB, and as much again for what describes them.
pub const MAPPED_WORDS_MAX: usize = 1 << 31;

/// Words shared with a file, or memory that stands in for one. Share it by `Arc`.
pub struct Mapped {
    kind: Kind,
}

enum Kind {
    File(Mapping),
    Memory(StandIn),
}

/// Memory in place of a file. Of what power loss does to a file it shows the worst that is allowed: nothing that was stored after
/// the last sync is there.
struct StandIn {
    words: Box<[AtomicU64]>,
    /// What the last sync has made stable.
    stable: Mutex<Box<[u64]>>,
    on_sync: Mutex<Option<OnSync>>,
}

type OnSync = Box<dyn Fn() + Send>;

struct Mapping {
    /// Dropped first: nothing is put in the place of what is not mapped any more.
    guard: Option<Guard>,
    base: NonNull<AtomicU64>,
    words: usize,
    /// Holds the claim on the file.
    _file: OwnedFd,
}

// SAFETY: the mapping is plain memory without thread affinity, given out as atomics alone.
unsafe impl Send for Mapping {}
// SAFETY: as above: every access through a shared reference is an atomic one.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: mapped by `open` with this length and unmapped nowhere else; borrows of the words have ended with `self`.
        // It cannot fail for a range that is mapped.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
    }
}

impl Mapped {
    /// Maps the first `words` words of the file at `path`, little-endian on every machine we build for. It is created where it does
    /// not exist, and begun anew with zeroes where it has another length: a part of it may be lost. Blocks: for start-up.
    ///
    /// # Errors
    /// What the system says, with the path; `ResourceBusy` where another process has it mapped; `InvalidInput` for no words or
    /// more than [`MAPPED_WORDS_MAX`]; `Unsupported` in a simulated world, and on file systems that cannot reserve room.
    pub fn open(path: &Path, words: usize) -> io::Result<Mapped> {
        map(path, words).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// `words` zeroes that are no file's.
    pub fn memory(words: usize) -> Mapped {
        Mapped::holding(vec![0; words].into())
    }

    fn holding(stable: Box<[u64]>) -> Mapped {
        let words = stable.iter().map(|&word| AtomicU64::new(word)).collect();
        Mapped { kind: Kind::Memory(StandIn { words, stable: Mutex::new(stable), on_sync: Mutex::default() }) }
    }

    /// What power loss may leave of memory that stands in for a file: what was stored before the last sync, and no more. `None` of
    /// a file.
    pub fn after_power_loss(&self) -> Option<Mapped> {
        match &self.kind {
            Kind::Memory(memory) => Some(Mapped::holding(memory.stable().clone())),
            Kind::File(_) => None,
        }
    }

    /// Has `told` be called in the midst of every sync of memory that stands in for a file: what is stored then is not made stable
    /// by that sync any more.
    pub fn on_sync(&self, told: impl Fn() + Send + 'static) {
        if let Kind::Memory(memory) = &self.kind {
            *memory.on_sync.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(told));
        }
    }

    /// The file was cut short while it was mapped: the words are zeroes that are no file's.
    pub fn is_lost(&self) -> bool {
        match &self.kind {
            Kind::File(mapping) => mapping.guard.as_ref().is_some_and(Guard::is_lost),
            Kind::Memory(_) => false,
        }
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        match &self.kind {
            // SAFETY: `words` words from `base` are mapped readable and writable until `self` is dropped, page-aligned, and
            // reached in no other way from this process; zeroes and whatever else the file holds are valid words.
            Kind::File(mapping) => unsafe { std::slice::from_raw_parts(mapping.base.as_ptr(), mapping.words) },
            Kind::Memory(memory) => &memory.words,
        }
    }

    /// Whether the words outlive the process.
    pub fn is_file(&self) -> bool {
        matches!(self.kind, Kind::File(_))
    }

    /// Makes what has been stored survive power loss (`msync`). Blocks: for the beginning and the end of a process's work.
    ///
    /// # Errors
    /// What the system says: some of it may be lost then. `UnexpectedEof` where the file was cut short.
    pub fn sync(&self) -> io::Result<()> {
        match &self.kind {
            // SAFETY: the range is this mapping's, whole.
            Kind::File(mapping) => unsafe {
                let length = mapping.words * size_of::<AtomicU64>();
                mm::msync(mapping.base.as_ptr().cast::<c_void>(), length, MsyncFlags::SYNC)?;
            },
            Kind::Memory(memory) => memory.sync(),
        }
        match self.is_lost() {
            true => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it was cut short while it was mapped")),
            false => Ok(()),
        }
    }
}

impl StandIn {
    fn stable(&self) -> std::sync::MutexGuard<'_, Box<[u64]>> {
        self.stable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync(&self) {
        let stored = self.words.iter().map(|word| word.load(Ordering::SeqCst)).collect();
        *self.stable() = stored;
        if let Some(told) = &*self.on_sync.lock().unwrap_or_else(PoisonError::into_inner) {
            told();
        }
    }
}

fn map(path: &Path, words: usize) -> io::Result<Mapped> {
    if runtime::with_current(|current| matches!(current, Some(Context::Sim(_)))) {
        let message = "a simulated world maps no files: Mapped::memory stands in for them";
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    if words == 0 || words > MAPPED_WORDS_MAX {
        let message = format!("{words} words cannot be mapped: 1 to {MAPPED_WORDS_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let message = "in use by another process (one process owns it); stop that one first";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
        }
        Err(error) => return Err(error.into()),
    }
    let length = words * size_of::<AtomicU64>();
    if fs::fstat(&file)?.st_size != length as i64 {
        // What is left of a file that was cut short, and grew again, must not be taken for all of it.
        fs::ftruncate(&file, 0)?;
    }
    fs::ftruncate(&file, length as u64)?;
    fs::fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the system's choice touches no memory of this process.
    let base = unsafe { mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0) }?;
    let base = NonNull::new(base.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut mapping = Mapping { guard: None, base, words, _file: file };
    mapping.guard = Some(Guard::new(mapping.base.as_ptr().cast(), length)?);
    Ok(Mapped { kind: Kind::File(mapping) })
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_file() { "a file" } else { "memory" };
        write!(f, "Mapped({} words of {kind})", self.words().len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::sim::{SimConfig, World};

    #[test]
    fn what_was_stored_is_in_the_file_without_a_sync_and_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("words");
        let mapped = Mapped::open(&path, 1000).expect("mapped");
        assert!(mapped.is_file() && mapped.words().iter().all(|word| word.load(Relaxed) == 0));
        mapped.words()[999].store(0x0807_0605_0403_0201, Relaxed);
        let bytes = std::fs::read(&path).expect("the file");
        assert_eq!((bytes.len(), &bytes[7992..]), (8000, [1, 2, 3, 4, 5, 6, 7, 8].as_slice()));
        mapped.sync().expect("synced");
        drop(mapped);
        let again = Mapped::open(&path, 1000).expect("mapped again");
        assert_eq!(again.words()[999].load(Relaxed), 0x0807_0605_0403_0201);
        drop(again);
        // Marks behind a place where it was cut would be missing.
        std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(7999)).expect("cut");
        let anew = Mapped::open(&path, 1000).expect("mapped again");
        anew.words()[0].store(7, Relaxed);
        assert_eq!(anew.words()[999].load(Relaxed), 0);
        drop(anew);
        let longer = Mapped::open(&path, 2000).expect("mapped again");
        assert_eq!((longer.words()[0].load(Relaxed), longer.words()[1999].load(Relaxed)), (0, 0));
    }

    /// `truncate -s 0` on the journal of a cache that ran ended it by SIGBUS.
    #[test]
    fn a_file_that_is_cut_short_is_lost_and_ends_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("words");
        let (mapped, other) = (Mapped::open(&path, 100_000), Mapped::open(&directory.path().join("other"), 1000));
        let (mapped, other) = (mapped.expect("mapped"), other.expect("mapped"));
        mapped.words().iter().chain(other.words()).for_each(|word| word.store(7, Relaxed));
        std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(4096)).expect("cut");
        assert!(!mapped.is_lost(), "nobody has noticed");
        mapped.words()[99_999].store(8, Relaxed);
        assert!(mapped.is_lost() && !other.is_lost());
        assert_eq!(mapped.words().iter().map(|word| word.load(Relaxed)).sum::<u64>(), 8);
        assert_eq!(mapped.sync().expect_err("lost").kind(), io::ErrorKind::UnexpectedEof);
        other.sync().expect("synced");
        assert_eq!(other.words()[999].load(Relaxed), 7);
    }

    #[test]
    fn one_owner_at_a_time_and_sensible_sizes() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("words");
        let _first = Mapped::open(&path, 1).expect("mapped");
        let second = Mapped::open(&path, 1).expect_err("claimed");
        assert_eq!(second.kind(), io::ErrorKind::ResourceBusy, "{second}");
        assert!(second.to_string().contains("words: in use"), "{second}");
        let none = Mapped::open(&directory.path().join("none"), 0).expect_err("nothing to map");
        assert_eq!(none.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_simulated_world_has_memory_instead() {
        let world = World::new(1, SimConfig::default());
        let opened = world.run_until(async { Mapped::open(Path::new("words"), 1).map_err(|error| error.kind()) });
        assert_eq!(opened.expect("it ends").map(|_| ()), Err(io::ErrorKind::Unsupported));
        let memory = Mapped::memory(2);
        memory.words()[1].store(5, Relaxed);
        memory.sync().expect("nothing to do");
        assert_eq!((memory.words().len(), memory.is_file(), memory.words()[1].load(Relaxed)), (2, false, 5));
        memory.words()[0].store(6, Relaxed);
        let left = memory.after_power_loss().expect("no file");
        assert_eq!((left.words()[0].load(Relaxed), left.words()[1].load(Relaxed)), (0, 5));
    }
}
