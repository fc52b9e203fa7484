//! [`DataRoom`]: how much data the commands of a connection may hold, of its own and of what all connections share. A connection
//! has one for what it asks for, and one for what comes in capsules; of the latter see [`super::capsules`].
//!
//! Invariants:
//! - A connection has [`CONNECTION_OWN_BYTES`] whatever the others do, which is room for any command and any fused pair. So one
//!   that is refused has commands under way, their end is when it asks again, and no connection ever waits for another one: a
//!   host that never sends what it was asked for holds up nobody else, and there is no circle of waiters.
//! - Room is taken as long as its data is held: that of an answer until it is sent, as its host decides when it reads.
//! - What goes beyond comes out of one pool of [`SHARED_DATA_BYTES_MAX`], and goes back to it at the latest with the connection.
//!   But commands that a medium holds up hold their data when their connection has ended, and their host comes again: the pool is
//!   smaller by that, and who comes is let in no more where it would be used up. (Not counted: what waits on another thread that
//!   has the namespace.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::limits::{CONNECTION_CAPSULE_BYTES, CONNECTION_DATA_BYTES_MAX, CONNECTION_OWN_BYTES, SHARED_DATA_BYTES_MAX};

/// What the connections of a target share.
pub(super) struct SharedRoom {
    left: AtomicU64,
    /// How much is held by what nobody waits for any more.
    left_behind: fn() -> u64,
}

impl Default for SharedRoom {
    fn default() -> SharedRoom {
        SharedRoom::beside(|| engine::buf::left_to_kernel() as u64)
    }
}

impl SharedRoom {
    /// Beside what others hold.
    pub fn beside(left_behind: fn() -> u64) -> SharedRoom {
        SharedRoom { left: AtomicU64::new(SHARED_DATA_BYTES_MAX), left_behind }
    }

    /// Takes all of `bytes`, or nothing and tells so.
    pub fn take(&self, bytes: u64) -> bool {
        let behind = (self.left_behind)();
        // A count and nothing else: no memory is handed over with it.
        let taken = |left: u64| (left >= bytes.saturating_add(behind)).then(|| left - bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// Whether what was left behind is as much as there may be: a connection more would hold more, whatever it is refused.
    pub fn is_left_behind(&self) -> bool {
        (self.left_behind)() >= SHARED_DATA_BYTES_MAX
    }

    pub fn give(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// See the module.
pub(super) struct DataRoom {
    shared: Arc<SharedRoom>,
    own: u32,
    max: u32,
    taken: u32,
}

impl DataRoom {
    /// For data that is asked for.
    pub fn new(shared: Arc<SharedRoom>) -> DataRoom {
        DataRoom { shared, own: CONNECTION_OWN_BYTES, max: CONNECTION_DATA_BYTES_MAX, taken: 0 }
    }

    /// For data in capsules, which the queue's entries bound.
    pub fn of_capsules(shared: Arc<SharedRoom>) -> DataRoom {
        DataRoom { shared, own: CONNECTION_CAPSULE_BYTES, max: u32::MAX, taken: 0 }
    }

    /// How much of what was taken is the pool's.
    fn of_shared(&self, taken: u32) -> u64 {
        u64::from(taken.saturating_sub(self.own))
    }

    /// How much is taken.
    #[cfg(test)]
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes room for `bytes`, or nothing and tells so: there is some when the connection's other commands have ended.
    pub fn take(&mut self, bytes: u32) -> bool {
        let after = self.taken.saturating_add(bytes);
        let more = self.of_shared(after) - self.of_shared(self.taken);
        if after > self.max || more > 0 && !self.shared.take(more) {
            return false;
        }
        self.taken = after;
        true
    }

    /// Gives back what was taken.
    pub fn give(&mut self, bytes: u32) {
        let after = self.taken - bytes;
        let less = self.of_shared(self.taken) - self.of_shared(after);
        if less > 0 {
            self.shared.give(less);
        }
        self.taken = after;
    }
}

impl Drop for DataRoom {
    fn drop(&mut self) {
        self.shared.give(self.of_shared(self.taken));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    #[test]
    fn a_connection_has_its_own_and_the_pool_bounds_the_rest() {
        let shared = Arc::new(SharedRoom { left: AtomicU64::new(u64::from(3 * MIB)), left_behind: || 0 });
        let mut rooms = [(); 2].map(|()| DataRoom::new(Arc::clone(&shared)));
        assert!((0..5).all(|_| rooms[0].take(MIB)), "two of its own, three of the pool");
        assert!(!rooms[0].take(1));
        assert!((0..2).all(|_| rooms[1].take(MIB)), "its own is nobody else's");
        assert!(!rooms[1].take(MIB));
        rooms[0].give(MIB);
        assert!(rooms[1].take(MIB), "what one gives back the other may have");
        let [first, second] = rooms;
        drop(first);
        drop(second);
        assert_eq!(shared.left.load(Ordering::Relaxed), u64::from(3 * MIB), "the pool is whole again");
    }

    /// A host that comes back to a medium that hangs had room anew each time.
    #[test]
    fn what_is_left_behind_is_no_room() {
        let shared = Arc::new(SharedRoom::beside(|| SHARED_DATA_BYTES_MAX - u64::from(MIB)));
        let mut room = DataRoom::new(Arc::clone(&shared));
        assert!(room.take(CONNECTION_OWN_BYTES), "its own, whatever there is");
        assert!(room.take(MIB) && !room.take(1));
        assert!(!shared.is_left_behind() && SharedRoom::beside(|| SHARED_DATA_BYTES_MAX).is_left_behind());
    }

    #[test]
    fn one_connection_has_its_bound_however_much_is_left() {
        let mut room = DataRoom::new(Arc::default());
        assert!(room.take(CONNECTION_DATA_BYTES_MAX));
        assert!(!room.take(1));
        room.give(1);
        assert!(room.take(1));
    }
}
