//! [`MemoryMeta`]: a map in memory as [`Meta`], for tests and models, and for the row of `yagura bench` that models a node which
//! all hosts want: by it the product has this module. Its faults, all by the seed of the world that it runs in:
//!
//! - every call takes up to a time, so that those of several clients interleave;
//! - a swap may answer "unknown" and have taken effect, or not, or take effect later, as long as nothing else has changed its key;
//! - a swap may be refused for want of room, which has no effect;
//! - a client can be stopped dead at any of its swaps, before it takes effect or after that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use kv::Timestamp;

use super::{KeyPage, Meta, Seen, Swapped, Version};
use crate::error::Error;

/// What goes wrong in a [`MemoryMeta`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The longest time of a call.
    pub delay: Duration,
    /// Of a million swaps, so many answer "unknown".
    pub unknown_ppm: u32,
    /// The longest time after which one of these takes effect that does so later; zero: four times the longest of a call.
    pub late: Duration,
    /// Of a million swaps, so many are refused.
    pub refused_ppm: u32,
}

/// What a client's next death is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// Swaps until then: 0 is the next one.
    pub swaps: u64,
    /// Whether the last one takes effect.
    pub takes_effect: bool,
}

#[derive(Default)]
struct Slot {
    value: Option<Vec<u8>>,
    /// Of the last change, also if that was a removal.
    version: u64,
    /// Where lists have it.
    ordinal: u64,
}

#[derive(Default)]
struct Shared {
    slots: RefCell<BTreeMap<Vec<u8>, Slot>>,
    changes: Cell<u64>,
    faults: Cell<Faults>,
}

/// A map in memory.
#[derive(Clone, Default)]
pub struct MemoryMeta(Rc<Shared>);

/// Chance, which is not asked where nothing can happen.
fn happens(ppm: u32) -> bool {
    ppm > 0 && task::random_u64() % 1_000_000 < u64::from(ppm)
}

fn version(number: u64) -> Version {
    Version::new(Timestamp { counter: number, ..Timestamp::ZERO }, &[])
}

impl MemoryMeta {
    /// An empty map without faults.
    pub fn new() -> MemoryMeta {
        MemoryMeta::default()
    }

    /// From now on these faults happen.
    pub fn set_faults(&self, faults: Faults) {
        self.0.faults.set(faults);
    }

    /// What one client sees of it.
    pub fn client(&self) -> Rc<MemoryClient> {
        let meta = self.clone();
        Rc::new(MemoryClient {
            meta,
            death: Cell::new(None),
            is_dead: Cell::new(false),
            gets: Cell::new(0),
            swaps: Cell::new(0),
        })
    }

    /// All keys that there are with their values, in order.
    pub fn dump(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let slots = self.0.slots.borrow();
        slots.iter().filter_map(|(key, slot)| Some((key.clone(), slot.value.clone()?))).collect()
    }

    fn get(&self, key: &[u8]) -> Option<Seen> {
        let slots = self.0.slots.borrow();
        let slot = slots.get(key)?;
        Some(Seen { value: slot.value.clone()?, version: version(slot.version) })
    }

    /// The number of the key's last change.
    fn last_change(&self, key: &[u8]) -> u64 {
        self.0.slots.borrow().get(key).map_or(0, |slot| slot.version)
    }

    fn swap(&self, key: &[u8], expected: Option<Version>, new: Option<Vec<u8>>) -> Swapped {
        if self.get(key).map(|seen| seen.version) != expected {
            return Swapped::Changed;
        }
        let number = self.0.changes.get() + 1;
        self.0.changes.set(number);
        let mut slots = self.0.slots.borrow_mut();
        let slot = slots.entry(key.to_vec()).or_insert(Slot { ordinal: number, ..Slot::default() });
        (slot.value, slot.version) = (new, number);
        Swapped::Done(version(number))
    }

    /// The outcome is unknown: chance says which.
    fn swap_unknown(&self, key: &[u8], expected: Option<Version>, new: Option<Vec<u8>>, late: Duration) {
        match task::random_u64() % 3 {
            0 => {}
            1 => {
                self.swap(key, expected, new);
            }
            _ => {
                let (meta, key, before) = (self.clone(), key.to_vec(), self.last_change(key));
                let late = async move {
                    time::sleep_within(late).await;
                    if meta.last_change(&key) == before {
                        meta.swap(&key, expected, new);
                    }
                };
                task::spawn(late).detach();
            }
        }
    }
}

/// What one client sees of a [`MemoryMeta`].
pub struct MemoryClient {
    meta: MemoryMeta,
    death: Cell<Option<Death>>,
    is_dead: Cell<bool>,
    gets: Cell<u64>,
    swaps: Cell<u64>,
}

impl MemoryClient {
    /// Stops the client dead at a swap: that call, and every one from then on, never comes back.
    pub fn die_at(&self, death: Option<Death>) {
        self.death.set(death);
    }

    /// Whether it has happened: whoever waits for an operation of this client drops it.
    pub fn is_dead(&self) -> bool {
        self.is_dead.get()
    }

    /// Gets and swaps since the last time that this was asked.
    pub fn take_counts(&self) -> (u64, u64) {
        (self.gets.take(), self.swaps.take())
    }

    async fn pass(&self) {
        if self.is_dead.get() {
            std::future::pending::<()>().await;
        }
        let delay = self.meta.0.faults.get().delay;
        if !delay.is_zero() {
            time::sleep_within(delay).await;
        }
    }
}

impl Meta for MemoryClient {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            self.gets.set(self.gets.get() + 1);
            self.pass().await;
            let seen = self.meta.get(key);
            self.pass().await;
            Ok(seen)
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            self.swaps.set(self.swaps.get() + 1);
            self.pass().await;
            if let Some(death) = self.death.get() {
                self.death.set(Some(Death { swaps: death.swaps.saturating_sub(1), ..death }));
                if death.swaps == 0 {
                    self.is_dead.set(true);
                    if death.takes_effect {
                        self.meta.swap(key, expected, new);
                    }
                    std::future::pending::<()>().await;
                    return Ok(Swapped::Unknown);
                }
            }
            let faults = self.meta.0.faults.get();
            if happens(faults.refused_ppm) {
                return Err(Error::NoSpace("a store in memory that refuses by chance".to_owned()));
            }
            if happens(faults.unknown_ppm) {
                let late = if faults.late.is_zero() { faults.delay * 4 } else { faults.late };
                self.meta.swap_unknown(key, expected, new, late);
                return Ok(Swapped::Unknown);
            }
            let swapped = self.meta.swap(key, expected, new);
            self.pass().await;
            Ok(swapped)
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        Box::pin(async move {
            self.pass().await;
            let slots = self.meta.0.slots.borrow();
            let is_wanted =
                |key: &[u8], slot: &Slot| slot.ordinal > cursor && slot.value.is_some() && key.starts_with(prefix);
            let mut keys: Vec<(u64, &Vec<u8>)> = slots
                .iter()
                .filter(|(key, slot)| is_wanted(key, slot))
                .map(|(key, slot)| (slot.ordinal, key))
                .collect();
            keys.sort_unstable();
            let next = if keys.len() > limit { keys[limit.max(1) - 1].0 } else { 0 };
            keys.truncate(limit.max(1));
            Ok((keys.into_iter().map(|(_, key)| key.clone()).collect(), next))
        })
    }
}
