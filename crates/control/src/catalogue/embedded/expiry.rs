//! Ends leases whose time is over.
//!
//! Nobody can keep such a lease alive any more. What could not be deleted is tried again; if the process dies before, nobody was
//! told of the end, and the lease lasts its time anew.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::shared::{Kind, Shared};

/// How long to wait after a failure. Chosen: a medium that failed seldom mends at once.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until the catalogue is closed.
pub async fn run(shared: Weak<Shared>, granted: Arc<Notify>) {
    loop {
        let Some(open) = shared.upgrade() else { return };
        let ended = open.leases().ended(Instant::now());
        let mut has_failed = false;
        for id in ended {
            if let Err(fault) = open.run(Kind::Write, move |shared| shared.end_lease(id)).await {
                tracing::warn!(%fault, id, "a lease has ended, and its keys are not deleted yet");
                has_failed = true;
            }
        }
        let next_end = open.leases().next_end();
        drop(open);
        match next_end {
            _ if has_failed => sleep_until(Instant::now() + AGAIN).await,
            // Woken by a new lease, or by the end of the next.
            Some(end) => drop(timeout_at(end, granted.notified()).await),
            None => granted.notified().await,
        }
    }
}
