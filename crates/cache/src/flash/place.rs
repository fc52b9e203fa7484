//! Where an item lies on flash: what the index has room for, and just enough to read it at once.

/// Bytes of a page: what a read of a small item costs.
pub const PAGE_BYTES: usize = 4096;
/// Bits of [`Place::kind`], as the index keeps it.
pub const KIND_BITS: u32 = 5;
/// Kinds below this are slots of a page that items share, counted round.
pub const SLOT_KINDS: u8 = 16;

/// Pages of the size classes of longer items, from kind [`SLOT_KINDS`] on. An item is read with its class's length;
/// what is longer than one transfer is read in pieces anyway, the first of which tells the exact length.
const CLASS_PAGES: [u32; 16] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 128, 256, SEGMENT_PAGES_MAX];

/// Pages of the longest segment. Derived: the bits that a summary's record has for a page.
pub const SEGMENT_PAGES_MAX: u32 = 2048;

const _: () = assert!(SLOT_KINDS as usize + CLASS_PAGES.len() == 1 << KIND_BITS);

/// A place on flash: 37 bits. It means one item only together with the life of its segment (see [`crate::flash`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    page: u32,
    kind: u8,
}

impl Place {
    /// The slot `slot` of the page `page`, which other items share.
    pub(crate) fn shared(page: u32, slot: u32) -> Place {
        Place { page, kind: (slot % u32::from(SLOT_KINDS)) as u8 }
    }

    /// `pages` pages from `page` on, for one item alone.
    pub(crate) fn alone(page: u32, pages: u32) -> Place {
        let class = CLASS_PAGES.partition_point(|&class| class < pages).min(CLASS_PAGES.len() - 1);
        Place { page, kind: SLOT_KINDS + class as u8 }
    }

    /// The place of these parts, as the index has kept them. Any parts make a place; what is not there is not found.
    pub fn from_parts(page: u32, kind: u8) -> Place {
        Place { page, kind: kind % (1 << KIND_BITS) }
    }

    /// The number of its (first) page, in pages of 4 KiB from the namespace's start.
    pub fn page(self) -> u32 {
        self.page
    }

    /// Slot or size class, [`KIND_BITS`] bits.
    pub fn kind(self) -> u8 {
        self.kind
    }

    /// Whether other items share its page.
    pub fn is_shared(self) -> bool {
        self.kind < SLOT_KINDS
    }

    /// The pages to read for it.
    pub fn pages(self) -> u32 {
        if self.is_shared() { 1 } else { CLASS_PAGES[usize::from(self.kind - SLOT_KINDS)] }
    }

    /// Its bit in its page's marks in the journal.
    pub(crate) fn journal_bit(self) -> u16 {
        if self.is_shared() { 1 << self.kind } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_long_enough_and_parts_make_the_place_again() {
        for pages in 1..=SEGMENT_PAGES_MAX {
            let place = Place::alone(7, pages);
            assert!(place.pages() >= pages && !place.is_shared());
            assert!(pages > 256 || place.pages() < pages * 2, "{pages} pages are read as {}", place.pages());
            assert_eq!(Place::from_parts(place.page(), place.kind()), place);
        }
        for slot in 0..40 {
            let place = Place::shared(9, slot);
            assert_eq!((place.pages(), place.is_shared(), place.journal_bit()), (1, true, 1 << (slot % 16)));
            assert_eq!(Place::from_parts(9, place.kind()), place);
        }
    }
}
