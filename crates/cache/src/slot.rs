//! The place of one key: what a command sees and changes, as one step towards every other command on that key.
//!
//! The commands' meaning is written against these two traits alone, so that it runs over the plainest possible store in tests
//! and over the real one unchanged.

use engine::View;

use crate::CHUNK_BYTES;
use crate::item::{Cas, Item, Key, Meta, NewValue, Seconds};

/// A rest of a long value that is not divided further. Chosen: each buffer costs a page beside its bytes.
const CHUNK_BYTES_MIN: usize = 16 << 10;

/// Room for buffers, as it is asked for: much at once, so that who comes next finds some. More than a segment's: what is made is
/// given back to the system, for buffers do not come from segments.
pub const ROOM_FOR_BUFFERS: NoRoom = NoRoom { bytes: 2 * crate::memory::SEGMENT_BYTES };

/// There is no room for an item, and none was made: nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("out of memory storing an item of {bytes} bytes")]
pub struct NoRoom {
    /// What was asked for, with all that goes with it.
    pub bytes: usize,
}

/// The slot of one key while it is held. Items that have expired or were flushed are not there.
pub trait Slot {
    /// The item.
    fn item(&self) -> Option<Item<'_>>;

    /// There was one that has expired: this visit is the first to meet it since.
    fn had_expired(&self) -> bool;

    /// Notes that the item was read or touched: it is told by `fetched` and `accessed`, and counts for what is kept longest.
    fn note_access(&mut self);

    /// Changes what is kept with the value, but for `cas` and `accessed`. Nothing happens without an item.
    fn set_meta(&mut self, change: impl FnOnce(&mut Meta));

    /// Gives the item the next cas, which is the answer; `Cas(0)`, and nothing happens, without an item.
    fn renew_cas(&mut self) -> Cas;

    /// Takes the item away.
    fn remove(&mut self);

    /// Stores an item in place of the one that is there. Of `meta` are taken: flags, expires, fetched, stale, won, binary_key,
    /// and cas where it is not 0 (else the next one is given).
    ///
    /// # Errors
    /// There is no room; the item that was there is untouched.
    fn put(&mut self, meta: Meta, value: NewValue<'_>) -> Result<Cas, NoRoom>;
}

/// All slots.
pub trait Slots {
    /// Where on flash an item is to be read.
    type Place;
    /// What was read there.
    type Fetched;
    /// A slot that is held.
    type Slot<'a>: Slot
    where
        Self: 'a;

    /// Runs `visit` with the slot of `key` held, at the time `now`. `visit` is short and does no I/O: who wants the slot, or one of
    /// its neighbours, waits meanwhile.
    ///
    /// # Errors
    /// `visit` was not run: the item has to be fetched first.
    fn visit<R>(
        &self,
        key: &Key<'_>,
        now: Seconds,
        look: Look<Self::Fetched>,
        visit: impl FnOnce(&mut Self::Slot<'_>) -> R,
    ) -> Result<R, Self::Place>;

    /// Reads an item from flash. To be given to [`Slots::visit`], which may ask for another fetch if the item has moved since.
    fn fetch(&self, place: Self::Place) -> impl Future<Output = Self::Fetched>;

    /// Makes room by letting other items go, as far as that is allowed.
    ///
    /// # Errors
    /// There is none to be made.
    fn make_room(&self, no_room: NoRoom) -> impl Future<Output = Result<(), NoRoom>>;

    /// Memory for a value of `bytes`, over [`crate::WHOLE_BYTES_MAX`], that is there: empty buffers whose capacities are together
    /// `bytes`, for [`NewValue::Chunks`] when they are full.
    ///
    /// # Errors
    /// There is no room; see [`Slots::make_room`].
    fn chunks(&self, bytes: usize) -> Result<Vec<engine::Buf>, NoRoom>;

    /// Memory for the next `bytes` of a value of `of`, which is received: one of its [`chunk_lengths`].
    ///
    /// # Errors
    /// There is no room for so much, or can never be for the whole; see [`Slots::make_room`].
    fn chunk(&self, bytes: usize, of: usize) -> Result<engine::Buf, NoRoom>;

    /// Whether a connection may take so many bytes for what it receives or sends. Else it asks for [`ROOM_FOR_BUFFERS`] first.
    fn may_hold(&self, bytes: usize) -> bool;

    /// From the time `at` on whatever was stored before it is gone. One that is still to come is replaced by the next call; where
    /// `at` is not after `now` all that is stored is gone at once.
    fn flush(&self, at: Seconds, now: Seconds);
}

/// What a visitor needs to see.
#[derive(Debug)]
pub enum Look<F> {
    /// The item, wherever it is.
    Whole,
    /// The item, which was fetched.
    Fetched(F),
    /// Nothing: it will be replaced or removed unseen. What is on flash is not read, and [`Slot::item`] may be `None` although
    /// there is an item.
    Unseen,
}

/// The lengths of the chunks of a long value: full ones, then powers of two, then what is left. Buffers are made in powers of two,
/// so that a last one for all the rest would waste up to half of itself.
pub fn chunk_lengths(bytes: usize) -> impl Iterator<Item = usize> + Clone {
    let next = |rest: usize| match rest {
        0..=CHUNK_BYTES_MIN => rest,
        _ => (1 << rest.ilog2()).min(CHUNK_BYTES),
    };
    let rests = std::iter::successors(Some(bytes), move |&rest| Some(rest - next(rest)));
    rests.take_while(|&rest| rest > 0).map(next)
}

/// Full chunks of a value that was received, as [`NewValue::Chunks`] wants them.
pub fn frozen(chunks: Vec<engine::Buf>) -> Vec<View> {
    chunks.into_iter().map(engine::Buf::freeze).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_full_then_powers_of_two_then_the_rest() {
        let lengths = |bytes| chunk_lengths(bytes).collect::<Vec<_>>();
        assert_eq!(lengths(90_000), [65_536, 16_384, 8_080]);
        assert_eq!(lengths(2 * CHUNK_BYTES + 1), [CHUNK_BYTES, CHUNK_BYTES, 1]);
        assert_eq!((lengths(0), lengths(CHUNK_BYTES_MIN + 1)), (vec![], vec![CHUNK_BYTES_MIN, 1]));
        for bytes in (1..4 * CHUNK_BYTES).step_by(4099) {
            let held: usize = chunk_lengths(bytes).map(engine::Buf::system_size).sum();
            assert_eq!(chunk_lengths(bytes).sum::<usize>(), bytes);
            assert!(bytes < 64 << 10 || held * 100 <= bytes * 125, "{held} bytes are held for {bytes}");
        }
    }
}
