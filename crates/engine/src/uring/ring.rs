//! The ring itself: entries go in, completions come out, and `io_uring_enter` is its only system call.
//!
//! Invariant: entries are handed over in the order they were pushed; what finds the submission queue full waits in `backlog` and
//! everything after it queues behind. So a cancellation can not overtake the operation it cancels.

use std::{cell::RefCell, collections::VecDeque, io, time::Duration};

use io_uring::{EnterFlags, IoUring, squeue, types};

/// Completions that fit the ring per submission entry; more are kept by the kernel (IORING_FEAT_NODROP) and cost a system call.
const COMPLETIONS_PER_ENTRY: u32 = 4;

pub(super) struct Ring {
    state: RefCell<State>,
}

struct State {
    ring: IoUring,
    backlog: VecDeque<squeue::Entry>,
}

/// How long [`Ring::enter`] waits for a completion.
#[derive(Clone, Copy)]
pub(super) enum Wait {
    /// Not at all.
    No,
    /// Until one comes.
    Forever,
    /// Until one comes or the time has passed.
    For(Duration),
}

impl Ring {
    pub(super) fn new(entries: u32) -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(entries.max(1).next_power_of_two().saturating_mul(COMPLETIONS_PER_ENTRY))
            .dontfork()
            .build(entries.max(1))
            .map_err(explain)?;
        let parameters = ring.params();
        if !parameters.is_feature_nodrop() || !parameters.is_feature_ext_arg() || !parameters.is_feature_fast_poll() {
            let text = "the kernel's io_uring lacks NODROP, EXT_ARG or FAST_POLL; Linux 6.1 or newer is needed";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(Ring { state: RefCell::new(State { ring, backlog: VecDeque::new() }) })
    }

    /// Queues an entry for the next [`Ring::enter`].
    ///
    /// # Safety
    /// What the entry points to stays valid, and is not touched by anybody else, until its completion was taken.
    pub(super) unsafe fn push(&self, entry: squeue::Entry) {
        let mut state = self.state.borrow_mut();
        // SAFETY: the caller's promise is the one that `SubmissionQueue::push` asks for.
        if !state.backlog.is_empty() || unsafe { state.ring.submission().push(&entry) }.is_err() {
            state.backlog.push_back(entry);
        }
    }

    /// Whether entries wait to be handed over.
    pub(super) fn has_entries(&self) -> bool {
        let mut state = self.state.borrow_mut();
        !state.backlog.is_empty() || !state.ring.submission().is_empty()
    }

    /// Entries that can be handed over now.
    pub(super) fn entries(&self) -> usize {
        self.state.borrow_mut().ring.submission().len()
    }

    /// Hands over what was pushed, and nothing else. What the kernel does not take now, and why, is the next
    /// [`Ring::enter`]'s business.
    pub(super) fn submit(&self) {
        let mut state = self.state.borrow_mut();
        let count = state.ring.submission().len() as u32;
        // SAFETY: no argument is passed; the count is that of the submission queue.
        let _later = unsafe { state.ring.submitter().enter::<libc::sigset_t>(count, 0, 0, None) };
    }

    /// Whether completions can be taken without a system call.
    pub(super) fn has_completions(&self) -> bool {
        !self.state.borrow_mut().ring.completion().is_empty()
    }

    /// Whether the kernel has something for us that needs an [`Ring::enter`] first. A read of shared memory.
    pub(super) fn needs_enter(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let queue = state.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Hands over what was pushed, lets the kernel do its deferred work for us, and waits as asked.
    pub(super) fn enter(&self, wait: Wait) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        let State { ring, backlog, .. } = state;
        let mut queue = ring.submission();
        while let Some(entry) = backlog.front() {
            // SAFETY: promised by the caller of `push` when the entry was put into the backlog.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            backlog.pop_front();
        }
        drop(queue);
        // With entries left over there is more to hand over right away.
        let wait = if backlog.is_empty() { wait } else { Wait::No };
        let count = ring.submission().len() as u32;
        let submitter = ring.submitter();
        let result = match wait {
            Wait::No => {
                // SAFETY: no argument is passed; the count is that of the submission queue.
                unsafe { submitter.enter::<libc::sigset_t>(count, 0, EnterFlags::GETEVENTS.bits(), None) }
            }
            Wait::Forever => {
                // SAFETY: as above.
                unsafe { submitter.enter::<libc::sigset_t>(count, 1, EnterFlags::GETEVENTS.bits(), None) }
            }
            Wait::For(duration) => {
                let time = types::Timespec::from(duration);
                let arguments = types::SubmitArgs::new().timespec(&time);
                let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
                // SAFETY: EXT_ARG says that the argument is a `SubmitArgs`; it and the time it refers to outlive the call.
                unsafe { submitter.enter(count, 1, flags.bits(), Some(&arguments)) }
            }
        };
        match result {
            Ok(_) => Ok(()),
            // The time has passed; a signal came; the kernel is short of memory or wants completions taken first: look again.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)) =>
            {
                Ok(())
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("io_uring_enter: {error}"))),
        }
    }

    /// Takes one completion: its user data and result.
    pub(super) fn take(&self) -> Option<(u64, i32, u32)> {
        let mut state = self.state.borrow_mut();
        let entry = state.ring.completion().next()?;
        Some((entry.user_data(), entry.result(), entry.flags()))
    }
}

fn explain(error: io::Error) -> io::Error {
    let cause = match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring; Linux 6.1 or newer is needed",
        Some(libc::EPERM) => {
            "io_uring is forbidden here: see `sysctl kernel.io_uring_disabled`, and the container's seccomp profile"
        }
        Some(libc::EINVAL) => {
            "the kernel's io_uring lacks SINGLE_ISSUER or DEFER_TASKRUN; Linux 6.1 or newer is needed"
        }
        Some(libc::ENOMEM) => "no memory may be locked for the ring: raise `ulimit -l` or lower the ring's size",
        Some(libc::EMFILE | libc::ENFILE) => "no file descriptor is left for the ring: raise `ulimit -n`",
        _ => "the ring could not be set up",
    };
    io::Error::new(error.kind(), format!("io_uring_setup: {error}: {cause}"))
}
