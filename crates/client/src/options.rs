//! How a client works.

use std::time::Duration;

use crate::error::Error;
use crate::security::SecurityOptions;

/// Most reactor threads of one client. Derived: more than the cores of any machine; a mistyped number is not obeyed.
pub const REACTORS_MAX: usize = 1024;
/// Most requests that may be under way on one reactor thread. Guessed: what a million callers could want at once.
pub const QUEUE_MAX: usize = 1 << 20;
/// Requests under way on one reactor thread, unless told otherwise. Derived: twice what the store works on at once, so that it
/// never waits for a caller that has more.
pub const QUEUE_DEFAULT: usize = 2 * kv::store::OPERATIONS_MAX;

/// Options of a [`Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct Options {
    /// Reactor threads, each with its own connections to all members. One serves some hundred thousand small operations a
    /// second. A key always goes to the same thread.
    pub reactors: usize,
    /// Requests under way on one reactor thread; who comes then waits for room. A request holds its value meanwhile.
    pub queue: usize,
    /// How long an operation may take from when it begins. `None`: the store's own limit, 10 s. An operation that is given up
    /// goes on by itself, so a change may take effect later: [`Error::outcome_unknown`].
    pub timeout: Option<Duration>,
    /// Whether this client brings members up to date that have missed writes, in the background: after they come back, and once
    /// when it starts. Default: no. Any gateway of the pool does it, and `yagura kv repair` at any time.
    pub repair: bool,
    /// The pool that is meant, as `yagura pool status` shows it; by default the one whose members are at the addresses given. It
    /// has to be said where members of several are.
    pub pool: Option<crate::Uuid>,
    /// Who this host is, and by which keys it shows that.
    pub security: SecurityOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            reactors: 1,
            queue: QUEUE_DEFAULT,
            timeout: None,
            repair: false,
            pool: None,
            security: SecurityOptions::default(),
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |sentence: String| Err(Error::Usage(sentence));
        if !(1..=REACTORS_MAX).contains(&self.reactors) {
            return wrong(format!("{} reactor threads: a client has 1 to {REACTORS_MAX}", self.reactors));
        }
        if !(1..=QUEUE_MAX).contains(&self.queue) {
            return wrong(format!("a queue of {} requests: 1 to {QUEUE_MAX} may be under way", self.queue));
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return wrong("a timeout of zero: no operation could ever end in time".to_owned());
        }
        Ok(())
    }
}
