//! What an entry says, bit by bit.
//!
//! ```text
//!  63                      40  39   38  37                                      0
//! | remainder of the hash: 24 | 0 | 1 | position in memory, in 8 bytes: 38       |   an item in memory
//! | remainder of the hash: 24 | 1 | page on flash: 32 | slot: 5 | popularity: 2  |   an item on flash
//! ```
//!
//! No entry is 0, which stands for none. The remainder is on top, so that entries are in its order as numbers.

/// Bits of a position: two tebibytes.
pub const POSITION_BITS: u32 = 38;
const IN_MEMORY: u64 = 1 << POSITION_BITS;
const ON_FLASH: u64 = 1 << 39;
const REMAINDER_SHIFT: u32 = 40;
/// The most popular.
const POPULARITY_MAX: u8 = 3;

/// An entry of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(pub(super) u64);

/// A place of an item in memory, in units of eight bytes from the start of the shard's segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position(pub u64);

/// A place of an item on flash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashPlace {
    /// The page of 4 KiB where it begins.
    pub page: u32,
    /// Which of the page's items it is, or how many pages it takes, as the flash tier counts: below 32.
    pub slot: u8,
}

/// Where an item is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// In memory.
    Memory(Position),
    /// On flash, with how popular it was seen to be there: 0 to 3.
    Flash(FlashPlace, u8),
}

impl Entry {
    /// The entry of an item.
    pub fn new(remainder: u32, location: Location) -> Entry {
        let rest = match location {
            Location::Memory(Position(position)) => {
                debug_assert!(position < IN_MEMORY);
                IN_MEMORY | position
            }
            Location::Flash(FlashPlace { page, slot }, popularity) => {
                debug_assert!(slot < 32);
                ON_FLASH | u64::from(page) << 7 | u64::from(slot) << 2 | u64::from(popularity.min(POPULARITY_MAX))
            }
        };
        Entry(u64::from(remainder) << REMAINDER_SHIFT | rest)
    }

    /// The same entry, whose remainder has lost its top bit and has a 0 at its end.
    pub(super) fn shifted(self) -> Entry {
        Entry(self.0 >> REMAINDER_SHIFT << (REMAINDER_SHIFT + 1) | self.0 & ((1 << REMAINDER_SHIFT) - 1))
    }

    /// The bits of the key's hash that are kept.
    pub fn remainder(self) -> u32 {
        (self.0 >> REMAINDER_SHIFT) as u32
    }

    /// Where the item is.
    pub fn location(self) -> Location {
        if self.0 & ON_FLASH == 0 {
            return Location::Memory(Position(self.0 & (IN_MEMORY - 1)));
        }
        let place = FlashPlace { page: (self.0 >> 7) as u32, slot: (self.0 >> 2) as u8 & 31 };
        Location::Flash(place, self.0 as u8 & POPULARITY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_what_it_was_told() {
        let places = [
            Location::Memory(Position(0)),
            Location::Memory(Position((1 << POSITION_BITS) - 1)),
            Location::Flash(FlashPlace { page: 0, slot: 0 }, 0),
            Location::Flash(FlashPlace { page: u32::MAX, slot: 31 }, 3),
            Location::Flash(FlashPlace { page: 0x1234_5678, slot: 21 }, 2),
        ];
        for remainder in [0, 1, 0x00ab_cdef, 0x00ff_ffff] {
            for location in places {
                let entry = Entry::new(remainder, location);
                assert_ne!(entry.0, 0);
                assert_eq!((entry.remainder(), entry.location()), (remainder, location));
            }
        }
    }
}
