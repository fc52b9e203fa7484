//! A server without a program around it.

use std::sync::Arc;

use super::SECRET;
use crate::hash::Hasher;
use crate::server::{Options, Program, Said, Shared};
use crate::session::Rules;

/// Does nothing of what a server asks for.
struct NoProgram;

impl Program for NoProgram {
    fn shut_down(&self, _gracefully: bool) {}

    fn set_verbosity(&self, _level: u32) {}
}

/// What the one thread of such a server serves by, with the hash of [`SECRET`].
pub fn shared(rules: Rules, connections_max: usize) -> Arc<Shared> {
    let options = Options {
        rules: Arc::new(rules),
        connections_max,
        threads: 1,
        idle_timeout: 0,
        tls: None,
        said: Said { evicts: true, ..Said::default() },
        verbosity: 0,
        clock: None,
        program: Box::new(NoProgram),
    };
    Arc::new(Shared::new(options, Hasher::new(SECRET)))
}
