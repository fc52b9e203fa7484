//! Compare-and-swap values: each is given once, also over restarts where there is something that outlives them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Lower;
use crate::item::Cas;

/// Values that are reserved at once. Chosen: a second's worth of puts, so that a restart skips what nobody misses.
const RESERVED: u64 = 1 << 20;

/// The value given last.
#[derive(Debug, Default)]
pub(super) struct CasValues {
    last: AtomicU64,
}

impl CasValues {
    /// No value up to `last` is given any more.
    pub(super) fn new(last: u64, lower: &dyn Lower) -> CasValues {
        lower.reserve_cas(last + RESERVED);
        CasValues { last: AtomicU64::new(last) }
    }

    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    pub(super) fn next(&self, lower: &dyn Lower) -> Cas {
        let cas = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        // Long before those that were reserved have been given, more are.
        if cas.is_multiple_of(RESERVED / 2) {
            lower.reserve_cas(cas + RESERVED);
        }
        Cas(cas)
    }
}
