//! The slot of a key, while its shard is held.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::item::{Cas, Item, Key, Meta, NewValue, Seconds};
use crate::memory::Pool;
use crate::shard::{Found, New, Shard};
use crate::slot::{NoRoom, Slot};

/// A slot that is held.
#[derive(Debug)]
pub struct Held<'a> {
    shard: &'a mut Shard,
    key: Key<'a>,
    now: Seconds,
    pool: &'a Pool,
    cas: &'a AtomicU64,
    found: Option<Found>,
}

impl<'a> Held<'a> {
    pub(super) fn find(
        shard: &'a mut Shard,
        key: Key<'a>,
        now: Seconds,
        pool: &'a Pool,
        cas: &'a AtomicU64,
    ) -> Held<'a> {
        let found = shard.find(&key, now, pool);
        Held { shard, key, now, pool, cas, found }
    }
}

fn next(cas: &AtomicU64) -> Cas {
    Cas(cas.fetch_add(1, Ordering::Relaxed) + 1)
}

impl Slot for Held<'_> {
    fn item(&self) -> Option<Item<'_>> {
        self.found.map(|found| self.shard.item(found))
    }

    fn note_access(&mut self) {
        if let Some(found) = self.found {
            self.found = Some(self.shard.note_access(found, self.now, self.pool));
        }
    }

    fn set_meta(&mut self, change: impl FnOnce(&mut Meta)) {
        if let Some(found) = self.found {
            self.shard.set_meta(found, change);
        }
    }

    fn renew_cas(&mut self) -> Cas {
        let Some(found) = self.found else { return Cas(0) };
        let cas = next(self.cas);
        self.shard.set_cas(found, cas);
        cas
    }

    fn remove(&mut self) {
        if let Some(found) = self.found.take() {
            self.shard.remove(found, self.pool);
        }
    }

    fn put(&mut self, meta: Meta, value: NewValue<'_>) -> Result<Cas, NoRoom> {
        let given = meta.cas;
        let cas = || if given == Cas(0) { next(self.cas) } else { given };
        let new = New { meta: Meta { accessed: self.now, ..meta }, value };
        let (found, cas) = self.shard.put(&self.key, self.found, new, self.pool, cas)?;
        self.found = Some(found);
        Ok(cas)
    }
}
