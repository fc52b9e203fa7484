//! [`Caller`]: what the requests of locks do not say of who asks, as the library that reads them keeps it to itself: by which call
//! a lock is asked for, and whether a signal waits for whoever waits. `/proc` says both. Where it does not (the caller is in
//! another namespace of processes, or this user may not look), a lock of everything counts as one of both calls, and nothing
//! interrupts.

use std::cell::Cell;
use std::time::Duration;

use engine::time::{self, Instant};
use file::record::lock::LockKind;

/// A caller that has just sent its request is about to sleep, and has no call to look at as long as it runs.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);
/// Of several threads another may be about to take a signal that is for the process. Guessed.
const LEFT_TO_OTHERS: Duration = Duration::from_millis(100);

/// The thread that waits in the kernel for an answer.
pub struct Caller {
    thread: u32,
    /// Since when a signal is there for its process.
    signalled: Cell<Option<Instant>>,
}

/// Signals that wait, as `/proc/…/status` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Waiting {
    thread: u64,
    process: u64,
    threads: u64,
}

impl Caller {
    pub fn new(thread: u32) -> Caller {
        Caller { thread, signalled: Cell::default() }
    }

    fn read(&self, what: &str) -> Option<String> {
        // Numbers of other namespaces are 0 here.
        (self.thread != 0).then(|| std::fs::read_to_string(format!("/proc/{}/{what}", self.thread)).ok()).flatten()
    }

    /// By which call it asks for a lock of everything. (One of less is never `flock`'s.)
    pub fn kind(&self) -> LockKind {
        for _ in 0..LOOKS {
            match self.read("syscall").as_deref().map(kind_of) {
                Some(Some(kind)) => return kind,
                // tidy: thread: the kernel's thread, not a reactor's.
                Some(None) => std::thread::sleep(BETWEEN_LOOKS),
                None => break,
            }
        }
        LockKind::Either
    }

    /// Whether a signal waits for it.
    pub fn is_signalled(&self) -> bool {
        let Some(waiting) = self.read("status").as_deref().and_then(waiting_of) else { return false };
        if waiting.process == 0 {
            self.signalled.set(None);
        } else if self.signalled.get().is_none() {
            self.signalled.set(Some(time::now()));
        }
        let is_left = self.signalled.get().is_some_and(|since| since.elapsed() >= LEFT_TO_OTHERS);
        waiting.thread != 0 || (waiting.process != 0 && (waiting.threads == 1 || is_left))
    }
}

/// The call that `/proc/…/syscall` tells; `None`: none yet.
fn kind_of(told: &str) -> Option<LockKind> {
    let call = told.split_whitespace().next()?;
    match call.parse::<i64>() {
        Ok(libc::SYS_flock) => Some(LockKind::Flock),
        Ok(libc::SYS_fcntl) => Some(LockKind::Posix),
        Ok(_) => Some(LockKind::Either),
        Err(_) => None, // "running"
    }
}

/// Signals that are not blocked.
fn waiting_of(status: &str) -> Option<Waiting> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mask = |name| u64::from_str_radix(field(name)?, 16).ok();
    let open = !mask("SigBlk:")?;
    let threads = field("Threads:")?.parse().ok()?;
    Some(Waiting { thread: mask("SigPnd:")? & open, process: mask("ShdPnd:")? & open, threads })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_tells_calls_and_signals() {
        let told = |call: i64| kind_of(&format!("{call} 0x3 0x2 0x0 0x0 0x0 0x0 0x7ffd 0x7f12\n"));
        assert_eq!(told(libc::SYS_flock), Some(LockKind::Flock));
        assert_eq!(told(libc::SYS_fcntl), Some(LockKind::Posix));
        assert_eq!((told(libc::SYS_close), kind_of("running\n")), (Some(LockKind::Either), None));
        let status = "Name:\tsleep\nThreads:\t2\nSigQ:\t1/7\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000004002\n\
                      SigBlk:\t0000000000004000\n";
        assert_eq!(waiting_of(status), Some(Waiting { thread: 0x100, process: 2, threads: 2 }));
        assert_eq!(waiting_of("Name:\tsleep\n"), None);
    }

    #[test]
    fn a_thread_without_signals_is_not_interrupted() {
        // This one, as long as nobody sends it one.
        assert!(!Caller::new(std::process::id()).is_signalled());
        assert!(!Caller::new(0).is_signalled());
    }
}
