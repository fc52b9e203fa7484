//! Copies that nobody refers to and that could not be freed at once: the connection was lost, or an image that refers to
//! them was in doubt. They are remembered until the member answers again. Without that every lost connection would cost
//! the heap whatever was under way on it, up to a value and its predecessor per writer, until it is collected: half an hour
//! later at the soonest, and only where somebody collects.
//!
//! Rule 3 holds here too:
//! - what was unlinked, or never published, is freed by its tag whenever that works;
//! - a copy for an image in doubt is freed only once the home page is seen to be past the image that the attempt expected
//!   (which then never lands: images do not repeat) and without a reference to it; a page that is not is replaced by itself
//!   under the next version. "Past" is told by version and salt of a page that verifies, so that no older image can be taken for
//!   it. The allocation page of a claim in doubt is replaced in the same way.

use std::rc::Weak;
use std::time::Duration;

use engine::backoff::Backoff;

use super::ledger::Leftover;
use super::slots::Change;
use super::{Table, TableError, bump};
use crate::page::Header;

/// Leftovers that one member's table remembers; more are given up. Guessed: some hundred kilobytes, and more than all
/// operations of a host leave behind when a connection is lost.
pub(super) const LEFTOVERS_MAX: usize = 8192;
/// First pause before they are tried again; doubles. Guessed: a reconnect.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// The longest.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

impl Table {
    /// Remembers a leftover, and sees to it that it is tried again.
    pub(super) fn keep(&self, leftover: Leftover) {
        if self.leftovers.borrow().len() >= LEFTOVERS_MAX {
            return bump(&self.stats.abandoned);
        }
        self.leftovers.borrow_mut().push_back(leftover);
        if !self.sweeping.replace(true) {
            engine::task::spawn(keep_sweeping(self.me.clone())).detach();
        }
    }

    /// Whether anything waits to be freed.
    pub(crate) fn has_leftovers(&self) -> bool {
        !self.leftovers.borrow().is_empty()
    }

    /// Tries each leftover once; stops where the member does not answer.
    pub(super) async fn sweep(&self) {
        let count = self.leftovers.borrow().len();
        for _ in 0..count {
            let Some(leftover) = self.leftovers.borrow_mut().pop_front() else { break };
            match self.retry(&leftover).await {
                Ok(()) => {}
                Err(error) if error.may_pass() => {
                    self.keep(leftover);
                    break;
                }
                // A damaged page: nothing can be freed there.
                Err(_) => bump(&self.stats.abandoned),
            }
        }
    }

    async fn retry(&self, leftover: &Leftover) -> Result<(), TableError> {
        match *leftover {
            Leftover::Garbage(home, (reference, op)) => self.free(home, &reference, op).await?,
            Leftover::Extent(group, tag) => self.release_as(group, tag, true).await?,
            Leftover::Stock(group, slot, pages, tag) => {
                self.change_group(group, Change::ReleaseRun { slot, pages, tag }).await?;
            }
            Leftover::Undecided(home, (reference, op), expected) => {
                let mut image = self.read_page(home).await?;
                let now = *self.decode_again(&image)?.header();
                if expected.is_some_and(|expected| !is_past(&now, &expected)) {
                    // Nobody else need ever write it: else it would be looked at for good.
                    self.bump_home(home).await?;
                    image = self.read_page(home).await?;
                }
                if !self.references(&image)?.iter().any(|(used, _)| *used == reference) {
                    self.free(home, &reference, op).await?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a page of header `now` was written after the one of header `expected`.
fn is_past(now: &Header, expected: &Header) -> bool {
    if now.salt == expected.salt { now.version > expected.version } else { now.salt != 0 }
}

async fn keep_sweeping(table: Weak<Table>) {
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_PAUSE_MAX);
    loop {
        engine::time::sleep(backoff.pause()).await;
        // A store that was dropped leaves them.
        let Some(table) = table.upgrade() else { return };
        table.sweep().await;
        if table.leftovers.borrow().is_empty() {
            table.sweeping.set(false);
            return;
        }
    }
}
