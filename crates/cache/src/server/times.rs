//! How long commands take: from when the last of them was received until their replies were sent.

use std::time::Duration;

use engine::histogram::Histogram;
use engine::time::{self, Instant};

/// Of one thread: what is received together counts once, however many commands it is.
#[derive(Default, Debug)]
pub struct Times {
    /// What memory alone answered.
    pub memory: Histogram,
    /// What something was read from flash for.
    pub flash: Histogram,
}

/// What a connection has begun.
#[derive(Default)]
pub(super) struct Begun {
    at: Option<Instant>,
    from_flash: bool,
}

impl Begun {
    /// Something was received.
    pub(super) fn received(&mut self) {
        // A command that comes in pieces counts from its last one: the time of the peer is not ours.
        self.at = Some(time::now());
    }

    /// Flash is read for it.
    pub(super) fn reads_flash(&mut self) {
        self.from_flash = true;
    }

    /// All that was received is answered.
    pub(super) fn answered(&mut self, times: &Times) {
        let Begun { at, from_flash } = std::mem::take(self);
        if let Some(at) = at {
            let taken: Duration = time::now().duration_since(at);
            if from_flash { times.flash.record(taken) } else { times.memory.record(taken) }
        }
    }
}
