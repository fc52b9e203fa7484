//! What a collector has seen of one member that nobody referred to, and for how long.
//!
//! How old a copy is it tells by its own clock alone, from when it first saw the copy: the clocks of hosts are never compared. (A
//! calendar that was two hours ahead took all that others were just placing for left behind, and gave their places away.)

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::{self, Instant};
use pool::HeapGroup;

/// Copies of one member that are remembered; further ones are seen to when there is room. Chosen: some MiB.
const ORPHANS_MAX: usize = 65_536;

/// See the module.
#[derive(Default)]
pub struct Orphans {
    /// By group and tag: when it was first seen, and in which walk it was last.
    seen: RefCell<BTreeMap<(u32, u64), (Instant, u64)>>,
    walk: Cell<u64>,
}

impl Orphans {
    /// Nobody refers to the extent, or the run of a stock, of this tag. How long that has been known: zero if there is no room to
    /// remember it.
    pub(super) fn note(&self, group: HeapGroup, tag: u64) -> Duration {
        let mut seen = self.seen.borrow_mut();
        let has_room = seen.len() < ORPHANS_MAX;
        match seen.get_mut(&(group.0, tag)) {
            Some((first, walk)) => {
                *walk = self.walk.get();
                first.elapsed()
            }
            None => {
                if has_room {
                    seen.insert((group.0, tag), (time::now(), self.walk.get()));
                }
                Duration::ZERO
            }
        }
    }

    /// It is referred to, or gone.
    pub(super) fn forget(&self, group: HeapGroup, tag: u64) {
        self.seen.borrow_mut().remove(&(group.0, tag));
    }

    /// A walk over all of the heap begins. What neither of the two before it has met goes: where none ever ends, as a group can't
    /// be read, say, copies that are long gone would leave no room for others.
    pub(crate) fn begin(&self) {
        let before = self.walk.get();
        self.seen.borrow_mut().retain(|_, (_, walk)| *walk + 1 >= before);
        self.walk.set(before + 1);
    }

    /// It has ended: what it did not meet is gone.
    pub(crate) fn end(&self) {
        self.seen.borrow_mut().retain(|_, (_, walk)| *walk == self.walk.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    /// Its collector never came to the end of a walk, and remembered what was gone for ever.
    #[test]
    fn what_two_walks_have_not_met_goes_though_neither_has_ended() {
        run(1, async {
            let orphans = Orphans::default();
            orphans.begin();
            orphans.note(HeapGroup(1), 7);
            orphans.note(HeapGroup(2), 8);
            for _ in 0..3 {
                time::sleep(Duration::from_secs(60)).await;
                orphans.begin();
                // It is cut off before it comes to the second group.
                orphans.note(HeapGroup(1), 7);
            }
            assert_eq!(orphans.seen.borrow().keys().collect::<Vec<_>>(), [&(1, 7)]);
            assert_eq!(orphans.note(HeapGroup(1), 7), Duration::from_secs(180), "what is there stays known");
        });
    }
}
