//! Ends leases whose time is over.
//!
//! A lease that has ended is taken out of the leases' clock first, and its keys are deleted then: nobody can keep it alive in
//! between. What could not be deleted is tried again, and again when the file is opened next, since the file still has the lease.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::shared::{Kind, Shared};

/// How long to wait after a failure. Chosen: a medium that failed seldom mends at once.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until the catalogue is closed.
pub async fn run(shared: Weak<Shared>, granted: Arc<Notify>) {
    let mut ended: Vec<u64> = Vec::new();
    loop {
        let Some(open) = shared.upgrade() else { return };
        ended.extend(open.leases().take_ended(Instant::now()));
        let mut failed = Vec::new();
        for id in ended.drain(..) {
            let done =
                open.run(Kind::Write, move |shared| shared.write(|write| write.end_lease(id, shared.bounds).map(Ok)));
            if let Err(fault) = done.await {
                tracing::warn!(%fault, id, "a lease has ended, and its keys are not deleted yet");
                failed.push(id);
            }
        }
        ended = failed;
        let next_end = open.leases().next_end();
        drop(open);
        match next_end {
            _ if !ended.is_empty() => sleep_until(Instant::now() + AGAIN).await,
            // Woken by a new lease, or by the end of the next.
            Some(end) => drop(timeout_at(end, granted.notified()).await),
            None => granted.notified().await,
        }
    }
}
