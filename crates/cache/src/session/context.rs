//! What commands work with, and what is told of each key that they meet.

use super::{Event, Happening, Server};
use crate::commands::Mode;
use crate::item::{Key, NEVER, Seconds};
use crate::protocol::Now;
use crate::slot::{Look, NoRoom, Slot, Slots};

/// What commands work with.
#[derive(Debug)]
pub(super) struct Context<'a, S, V> {
    pub slots: &'a S,
    pub server: &'a V,
    pub now: Now,
    /// The connection's number.
    pub connection: u64,
}

impl<S, V> Clone for Context<'_, S, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, V> Copy for Context<'_, S, V> {}

impl<S: Slots, V: Server> Context<'_, S, V> {
    /// Visits the slot of a key; statistics and watchers are told what is met there.
    pub fn visit<R>(
        self,
        key: &Key<'_>,
        look: Look<S::Fetched>,
        visit: impl FnOnce(&mut S::Slot<'_>) -> R,
    ) -> Result<R, S::Place> {
        let (result, met) = self.meet(key, look, visit)?;
        self.tell_met(key, met);
        Ok(result)
    }

    /// The same where room may be wanted. Watchers are not told of a visit that found none: the command comes again.
    pub fn try_visit<R>(
        self,
        key: &Key<'_>,
        look: Look<S::Fetched>,
        visit: impl FnOnce(&mut S::Slot<'_>) -> Result<R, NoRoom>,
    ) -> Result<Result<R, NoRoom>, S::Place> {
        let (result, met) = self.meet(key, look, visit)?;
        if result.is_ok() {
            self.tell_met(key, met);
        }
        Ok(result)
    }

    /// Also tells what was met, if somebody watches.
    fn meet<R>(
        self,
        key: &Key<'_>,
        look: Look<S::Fetched>,
        visit: impl FnOnce(&mut S::Slot<'_>) -> R,
    ) -> Result<(R, Option<Happening>), S::Place> {
        let is_watched = self.server.is_watched();
        let (mut had_expired, mut met) = (false, None);
        let result = self.slots.visit(key, self.now.at, look, |slot| {
            had_expired = slot.had_expired();
            if is_watched {
                met = Some(Happening::Fetch { bytes: slot.item().map(|item| item.value.len()), had_expired });
            }
            visit(slot)
        })?;
        if had_expired {
            self.server.count(Event::Expired);
        }
        Ok((result, met))
    }

    fn tell_met(self, key: &Key<'_>, met: Option<Happening>) {
        if let Some(met) = met {
            self.server.happened(self.connection, key.bytes(), met);
        }
    }

    /// Tells watchers what became of a value.
    pub fn tell_store(self, key: &Key<'_>, status: &'static str, mode: Mode, expires: Seconds, bytes: usize) {
        if self.server.is_watched() {
            let ttl = expires.0.saturating_sub(self.now.at.0);
            let store = Happening::Store { status, command: mode.name(), ttl, bytes };
            self.server.happened(self.connection, key.bytes(), store);
        }
    }

    /// Counts a value that was not even looked at, and tells watchers of it.
    pub fn refused(self, key: &Key<'_>, refusal: Event, mode: Mode) {
        self.server.count(refusal);
        let status = if refusal == Event::TooLarge { "too_large" } else { "no_memory" };
        self.tell_store(key, status, mode, NEVER, 0);
    }

    /// Counts by the prefix of the key.
    pub fn count_prefix(self, key: &[u8], event: Event) {
        if self.server.counts_prefixes() {
            self.server.count_prefix(key, event);
        }
    }
}
