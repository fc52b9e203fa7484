//! What keeps a file that is cut short under its mapping from ending the process.
//!
//! Behind the file's end there are no pages: who touches one there gets a SIGBUS. The handler puts zeroes of no file in the place
//! of the whole mapping and notes that it is lost; whoever faulted goes on with zeroes, and its owner finds the note.
//!
//! Assumption about the machine: a SIGBUS of a memory access comes to the thread that made it, with its address (POSIX). Any other
//! SIGBUS is left to who handled it before.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings at once. Chosen: a process has one or two.
const GUARDED_MAX: usize = 64;

/// A range of memory that is guarded, where `bytes` is not 0. The handler reads it, and takes no lock.
struct Range {
    is_taken: AtomicBool,
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_lost: AtomicBool,
}

static RANGES: [Range; GUARDED_MAX] = [const {
    Range {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; GUARDED_MAX];

/// What handled the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A range is guarded until this is dropped, which has to be before it is unmapped.
pub(super) struct Guard(&'static Range);

impl Guard {
    /// Guards a mapping.
    ///
    /// # Errors
    /// The handler cannot be installed, or more than [`GUARDED_MAX`] are guarded already.
    pub(super) fn new(start: *const c_void, bytes: usize) -> io::Result<Guard> {
        install()?;
        let free = RANGES.iter().find(|range| !range.is_taken.swap(true, Ordering::AcqRel));
        let range = free.ok_or_else(|| {
            io::Error::new(io::ErrorKind::QuotaExceeded, format!("more than {GUARDED_MAX} files are mapped"))
        })?;
        range.is_lost.store(false, Ordering::Relaxed);
        range.start.store(start.expose_provenance(), Ordering::Relaxed);
        range.bytes.store(bytes, Ordering::Release);
        Ok(Guard(range))
    }

    /// The file was cut short: the memory is not its content any more.
    pub(super) fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.bytes.store(0, Ordering::Release);
        self.0.is_taken.store(false, Ordering::Release);
    }
}

fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid sigaction: no flags, nothing blocked, the default action.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: both live through the call; the handler does only what is allowed in one.
        let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
        if result != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        BEFORE.get_or_init(|| before);
        Ok(())
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Touches atomics and makes two kinds of system calls: nothing else is allowed in a handler.
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a siginfo of this signal, which has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    for range in &RANGES {
        let bytes = range.bytes.load(Ordering::Acquire);
        let start = range.start.load(Ordering::Relaxed);
        if bytes == 0 || address.wrapping_sub(start) >= bytes {
            continue;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // Noted first: whoever sees a zero that was not stored finds why.
        range.is_lost.store(true, Ordering::Release);
        // SAFETY: the range is one mapping of ours, whose owner gives out its bytes as atomics alone: zeroes are valid ones.
        let mapped =
            unsafe { libc::mmap(std::ptr::with_exposed_provenance_mut(start), bytes, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // Not ours, or not to be mended: the access is made again, and who handled it before is asked then.
    let before = BEFORE.get().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: it is an action that the kernel gave, or null, which changes nothing.
    if before.is_null() || unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) } != 0 {
        // SAFETY: ends the process, which could only fault again for ever.
        unsafe { libc::abort() };
    }
}
