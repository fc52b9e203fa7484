//! The slot of a key, while its shard is held.

use super::cas::CasValues;
use super::{Lower, Store};
use crate::item::{Cas, Item, Key, Meta, NewValue, Seconds};
use crate::memory::Pool;
use crate::shard::{FlashExit, New, OnFlash, Shard, Target};
use crate::slot::{NoRoom, Slot};

/// A slot that is held.
pub struct Held<'a> {
    shard: &'a mut Shard,
    key: Key<'a>,
    now: Seconds,
    pool: &'a Pool,
    cas: &'a CasValues,
    lower: &'a dyn Lower,
    target: Target,
    /// What was fetched, of an item on flash.
    fetched: Option<Item<'a>>,
}

impl<'a> Held<'a> {
    pub(super) fn new<L: Lower>(
        store: &'a Store<L>,
        shard: &'a mut Shard,
        key: Key<'a>,
        now: Seconds,
        target: Target,
        fetched: Option<Item<'a>>,
    ) -> Held<'a> {
        Held { shard, key, now, pool: &store.pool, cas: &store.cas.0, lower: &store.lower, target, fetched }
    }

    /// Has an item that is on flash in memory, to be changed there; without room it goes.
    fn bring(&mut self) {
        let (Target::Flash(at), Some(item)) = (&self.target, self.fetched.take()) else { return };
        let at = *at;
        self.target = match self.shard.promote(&self.key, at, item, self.pool) {
            Ok(found) => Target::Memory(found),
            Err(_) => {
                self.shard.lose_on_flash(at, FlashExit::NoMemory);
                Target::Nothing
            }
        };
    }

    /// An item on flash was hit. The second time it comes to memory, if there is room.
    fn note_hit(&mut self, mut at: OnFlash, item: Item<'a>) {
        let again = self.shard.raise(&mut at);
        self.target = Target::Flash(at);
        let noted = Meta { fetched: true, accessed: self.now, ..item.meta };
        self.fetched = Some(Item { meta: noted, ..item });
        if again && let Ok(found) = self.shard.promote(&self.key, at, Item { meta: noted, ..item }, self.pool) {
            self.target = Target::Memory(found);
            self.fetched = None;
        }
    }
}

impl Slot for Held<'_> {
    fn item(&self) -> Option<Item<'_>> {
        match self.target {
            Target::Memory(found) => Some(self.shard.item(found)),
            Target::Flash(_) => self.fetched,
            Target::Nothing => None,
        }
    }

    fn had_expired(&self) -> bool {
        self.shard.had_expired()
    }

    fn note_access(&mut self) {
        match (&self.target, self.fetched) {
            (&Target::Memory(found), _) => {
                self.target = Target::Memory(self.shard.note_access(found, self.now, self.pool));
            }
            (&Target::Flash(at), Some(item)) => self.note_hit(at, item),
            _ => {}
        }
    }

    fn set_meta(&mut self, change: impl FnOnce(&mut Meta)) {
        self.bring();
        if let Target::Memory(found) = self.target {
            self.shard.set_meta(found, change);
        }
    }

    fn renew_cas(&mut self) -> Cas {
        self.bring();
        let Target::Memory(found) = self.target else { return Cas(0) };
        let cas = self.cas.next(self.lower);
        self.shard.set_cas(found, cas);
        cas
    }

    fn remove(&mut self) {
        match std::mem::replace(&mut self.target, Target::Nothing) {
            Target::Memory(found) => self.shard.remove(found, self.pool),
            Target::Flash(at) => self.shard.drop_on_flash(at),
            Target::Nothing => {}
        }
        self.fetched = None;
    }

    fn put(&mut self, meta: Meta, value: NewValue<'_>) -> Result<Cas, NoRoom> {
        let given = meta.cas;
        let cas = || if given == Cas(0) { self.cas.next(self.lower) } else { given };
        let new = New { meta: Meta { accessed: self.now, ..meta }, value, copy: None };
        let (found, cas) = self.shard.put(&self.key, self.target, new, self.pool, cas)?;
        self.target = Target::Memory(found);
        self.fetched = None;
        Ok(cas)
    }
}

impl std::fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("key", &self.key).field("target", &self.target).finish_non_exhaustive()
    }
}
