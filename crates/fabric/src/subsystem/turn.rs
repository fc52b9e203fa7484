//! The turns of what changes namespaces and reservations.
//!
//! Invariants:
//! - What waits for its turn goes with its connection. A command must take no effect after its association has ended: its host
//!   may have been told since that it was not done, or that it has lost what it would change.
//! - When its turn has come it is looked at once more whether its controller is there still, and has what it needs.
//! - What has begun runs to its end, whatever becomes of its connection: a change that is durable and was not published would come
//!   true when the target starts anew.
//! - A controller waits for a turn with one command at a time: the others wait behind that. Hosts take turns whatever each sends.

use engine::task::{self, LocalFuture};
use nvme::Status;

/// What became of a change: dword 0 of its completion.
pub(super) type Changed = Result<u32, Status>;

/// How a change is run that has begun.
pub(super) type Keep = fn(LocalFuture<'static, Changed>) -> LocalFuture<'static, Changed>;

/// To its end, though nobody waits for it any more.
pub(super) fn to_its_end(change: LocalFuture<'static, Changed>) -> LocalFuture<'static, Changed> {
    Box::pin(async move { task::to_its_end(change).await.unwrap_or(Err(Status::INTERNAL_ERROR)) })
}
