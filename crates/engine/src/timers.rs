//! A heap of timers that can be removed from the middle, without an allocation per timer once it has grown.
//!
//! Commands are guarded by timeouts that almost never fire; a heap that only marked removed timers would hold every
//! command of the last seconds.
//!
//! Invariant: `slots[heap[i].key].place == i` for every `i`. Ties fire in the order they were added, so that a run is
//! reproducible.

use std::task::Waker;

use slab::Slab;

use crate::time::Instant;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Timers {
    heap: Vec<Entry>,
    slots: Slab<Slot>,
    sequence: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    deadline: Instant,
    sequence: u64,
    key: usize,
}

struct Slot {
    /// Index in the heap, or [`FIRED`].
    place: usize,
    waker: Waker,
}

const FIRED: usize = usize::MAX;

impl Timers {
    /// Adds a timer and returns its key, valid until [`Timers::remove`], also after it fired.
    pub(crate) fn add(&mut self, deadline: Instant, waker: &Waker) -> usize {
        let key = self.slots.insert(Slot { place: self.heap.len(), waker: waker.clone() });
        self.heap.push(Entry { deadline, sequence: self.sequence, key });
        self.sequence += 1;
        self.sift_up(self.heap.len() - 1);
        key
    }

    /// Changes whom the timer wakes.
    pub(crate) fn rearm(&mut self, key: usize, waker: &Waker) {
        self.slots[key].waker.clone_from(waker);
    }

    /// A timer that has fired is to fire again: the clock that it counts by has stood still meanwhile.
    pub(crate) fn again(&mut self, key: usize, deadline: Instant) {
        if self.slots[key].place == FIRED {
            self.slots[key].place = self.heap.len();
            self.heap.push(Entry { deadline, sequence: self.sequence, key });
            self.sequence += 1;
            self.sift_up(self.heap.len() - 1);
        }
    }

    /// Forgets the timer; it may have fired.
    pub(crate) fn remove(&mut self, key: usize) -> Waker {
        let slot = self.slots.remove(key);
        if slot.place != FIRED {
            self.unlink(slot.place);
        }
        slot.waker
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.deadline)
    }

    /// Takes the first timer that is due out of the heap; the caller wakes it, after releasing its borrow.
    pub(crate) fn fire(&mut self, now: Instant) -> Option<Waker> {
        let first = *self.heap.first()?;
        if first.deadline > now {
            return None;
        }
        self.unlink(0);
        let slot = &mut self.slots[first.key];
        slot.place = FIRED;
        Some(slot.waker.clone())
    }

    fn unlink(&mut self, place: usize) {
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            // The entry that took the place may belong above or below it.
            self.sift_up(place);
            self.sift_down(place);
        }
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place);
            place = (place - 1) / 2;
        }
        self.note(place);
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if self.heap[place] < self.heap[least] {
                break;
            }
            self.heap.swap(place, least);
            self.note(place);
            place = least;
        }
        self.note(place);
    }

    fn note(&mut self, place: usize) {
        self.slots[self.heap[place].key].place = place;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the plainest possible timers: a sorted map.
        #[test]
        fn behaves_as_a_sorted_map(steps in prop::collection::vec((0u8..3, 0u64..50), 1..200)) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<(u64, u64), usize> = BTreeMap::new();
            for (sequence, (kind, value)) in steps.into_iter().enumerate() {
                match kind {
                    0 => {
                        let key = timers.add(Instant::from_nanos(value), Waker::noop());
                        model.insert((value, sequence as u64), key);
                    }
                    1 => {
                        let entry = model.iter().nth(value as usize % model.len().max(1)).map(|(&at, &key)| (at, key));
                        if let Some((at, key)) = entry {
                            model.remove(&at);
                            timers.remove(key);
                        }
                    }
                    _ => {
                        let due = model.first_key_value().filter(|(at, _)| at.0 <= value).map(|(&at, &key)| (at, key));
                        prop_assert_eq!(timers.fire(Instant::from_nanos(value)).is_some(), due.is_some());
                        if let Some((at, key)) = due {
                            model.remove(&at);
                            prop_assert_eq!(timers.slots[key].place, FIRED);
                            timers.remove(key);
                        }
                    }
                }
                prop_assert_eq!(timers.next().map(Instant::as_nanos), model.first_key_value().map(|(at, _)| at.0));
                prop_assert_eq!(timers.slots.len(), model.len());
            }
        }
    }
}
