//! A watch of the embedded engine: a place in history.
//!
//! Nothing is queued for a watcher. The watcher reads history from where it stands, and is woken when there is more: a slow one
//! costs no memory, and when history has been cut behind which it stands it is told ([`Error::Compacted`]), never led past the
//! gap.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::shared::{Kind, Shared};
use super::tables;
use crate::catalogue::contract::{Answer, Watch};
use crate::catalogue::error::Error;
use crate::catalogue::types::{Commit, Prefix, Revision};

/// How long a watcher waits when a read got no turn. Chosen: nobody waits for a watcher that closely.
const AGAIN: Duration = Duration::from_millis(100);

/// A watcher's place. It does not keep the file open.
pub struct HistoryWatch {
    shared: Weak<Shared>,
    committed: watch::Receiver<u64>,
    prefix: Prefix,
    /// All up to here was read from history.
    through: u64,
    /// What was read and not yet given: one batch.
    ready: VecDeque<Commit>,
    is_over: bool,
}

impl HistoryWatch {
    pub fn new(shared: &Arc<Shared>, prefix: Prefix, after: Revision) -> HistoryWatch {
        HistoryWatch {
            shared: Arc::downgrade(shared),
            committed: shared.committed.subscribe(),
            prefix,
            through: after.0,
            ready: VecDeque::new(),
            is_over: false,
        }
    }

    /// Reads the next batch; false if there is nothing more now.
    async fn fill(&mut self) -> Result<bool, Error> {
        let shared = self.shared.upgrade().ok_or(Error::Closed)?;
        // Before the read: what is committed after it wakes.
        self.committed.borrow_and_update();
        let (prefix, after) = (self.prefix.clone(), self.through);
        let read = shared.run(Kind::Read, move |shared| shared.read(|read| tables::commits(read, &prefix, after)));
        match read.await {
            Ok(batch) => {
                let has_moved = batch.through > self.through;
                self.through = batch.through;
                self.ready.extend(batch.commits);
                Ok(has_moved)
            }
            Err(Error::NoAnswer { why, .. }) => {
                tracing::warn!(why, "a watcher of the catalogue got no turn to read, and waits for the next");
                drop(shared);
                tokio::time::sleep(AGAIN).await;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    async fn wait(&mut self) -> Result<Commit, Error> {
        loop {
            if let Some(commit) = self.ready.pop_front() {
                return Ok(commit);
            }
            if !self.fill().await? {
                self.committed.changed().await.map_err(|_| Error::Closed)?;
            }
        }
    }
}

impl Watch for HistoryWatch {
    fn next(&mut self) -> Answer<'_, Commit> {
        Box::pin(async move {
            if self.is_over {
                return Err(Error::Closed);
            }
            let next = self.wait().await;
            self.is_over = next.is_err();
            next
        })
    }
}
