//! How long a command is sent again to a replica whose connections end under it.
//!
//! A connection that comes back says that the target is there, not that it is of use: one whose medium answers with Internal Error,
//! or never, ends each connection with the next command. So what counts is since when the command itself was not done.

use std::time::Duration;

use engine::time::{self, Instant};

use crate::record::HOLDERS_MAX;

/// Of one command.
#[derive(Default)]
pub(crate) struct Patience([Option<Instant>; HOLDERS_MAX]);

impl Patience {
    /// A connection of the slot has ended under the command. Whether the first one that did is so long ago.
    pub(crate) fn is_over(&mut self, slot: usize, give_up_after: Duration) -> bool {
        self.0[slot].get_or_insert_with(time::now).elapsed() >= give_up_after
    }
}
