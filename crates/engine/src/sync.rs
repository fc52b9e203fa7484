//! Waiting for one another: between tasks of one thread, and (the mailbox) between threads.
//!
//! Every waiter is served in the order it came. A waiter that is dropped after it was served but before it noticed hands
//! what it was given to the next: nothing is lost when a future is cancelled.

mod mailbox;
mod notify;
mod oneshot;
mod queue;
mod semaphore;
mod waiters;

pub use mailbox::{MailReceiver, MailSender, TrySendError, mailbox};
pub use notify::{Notified, Notify};
pub use oneshot::{OneReceiver, OneSender, oneshot};
pub use queue::Queue;
pub use semaphore::{Permit, Semaphore};

/// The other side is gone, or the queue was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("closed: the other side is gone")]
pub struct Closed;
