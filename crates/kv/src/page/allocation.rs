//! The allocation page of a heap group: who owns each of its 240 data pages.
//!
//! ```text
//!  slot, 16 bytes
//!   0  tag      u64   0: free; else unique to the claim: only whoever knows it can free the extent
//!   8  home     u32   table page of the key, so that an orphan can be told from an owned extent
//!  12  index    u16   place within the extent
//!  14  pages    u16   length of the extent
//! ```

use engine::Buf;
use pool::geometry::GROUP_DATA_PAGES;

use super::{
    HEADER_BYTES, Header, Identity, Kind, PageError, Trust, decode_header, encode_header, u16_at, u32_at, u64_at,
};

/// Data pages of a group.
pub const SLOTS: usize = GROUP_DATA_PAGES as usize;
const SLOT_BYTES: usize = 16;
const _: () = assert!(HEADER_BYTES + SLOTS * SLOT_BYTES <= pool::geometry::PAGE_SIZE_MIN as usize);

/// Who owns a data page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// The owner's tag; 0: free.
    pub tag: u64,
    /// Home page of the key.
    pub home: u32,
    /// Place within its extent.
    pub index: u16,
    /// Pages of its extent.
    pub pages: u16,
}

/// A decoded allocation page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocationPage {
    identity: Identity,
    header: Header,
    slots: [Claim; SLOTS],
}

impl AllocationPage {
    /// Checks all of `bytes`, read from the allocation page of heap group `group`.
    pub fn decode(bytes: &[u8], group: u32, incarnation: u64) -> Result<AllocationPage, PageError> {
        let identity = Identity { kind: Kind::Allocation, page: group, incarnation };
        let mut page = AllocationPage { identity, header: Header::default(), slots: [Claim::default(); SLOTS] };
        let Some(header) = decode_header(bytes, identity, Trust::Nothing)? else { return Ok(page) };
        if header.used as usize != SLOTS * SLOT_BYTES {
            return Err(PageError::Malformed("length of an allocation page"));
        }
        page.header = header;
        let slots = bytes[HEADER_BYTES..].chunks_exact(SLOT_BYTES);
        for (claim, slot) in page.slots.iter_mut().zip(slots) {
            *claim =
                Claim { tag: u64_at(slot, 0), home: u32_at(slot, 8), index: u16_at(slot, 12), pages: u16_at(slot, 14) };
            if (claim.tag == 0 && *claim != Claim::default()) || (claim.tag != 0 && claim.index >= claim.pages) {
                return Err(PageError::Malformed("a slot of an allocation page"));
            }
        }
        Ok(page)
    }

    /// The owner of each slot.
    pub fn slots(&self) -> &[Claim; SLOTS] {
        &self.slots
    }

    /// Free slots.
    pub fn free(&self) -> usize {
        self.slots.iter().filter(|claim| claim.tag == 0).count()
    }

    /// The version of this image.
    pub fn version(&self) -> u64 {
        self.header.version
    }

    /// First slot of `pages` free ones in a row: the shortest run that is long enough, so that long ones stay whole.
    pub fn find_run(&self, pages: usize) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None;
        let mut start = 0;
        while start < SLOTS {
            let length = self.slots[start..].iter().take_while(|claim| claim.tag == 0).count();
            if length >= pages && best.is_none_or(|(shortest, _)| length < shortest) {
                best = Some((length, start));
            }
            start += length + 1;
        }
        best.map(|(_, start)| start)
    }

    /// Whether `tag` owns an extent that starts at `slot`.
    pub fn owns(&self, slot: usize, tag: u64) -> bool {
        self.slots.get(slot).is_some_and(|claim| tag != 0 && claim.tag == tag && claim.index == 0)
    }

    /// Gives `pages` slots from `slot` on, which are free, to `tag`.
    pub fn claim(&mut self, slot: usize, pages: usize, tag: u64, home: u32) {
        debug_assert!(tag != 0 && self.slots[slot..slot + pages].iter().all(|claim| claim.tag == 0));
        for (index, claim) in self.slots[slot..slot + pages].iter_mut().enumerate() {
            *claim = Claim { tag, home, index: index as u16, pages: pages as u16 };
        }
    }

    /// Frees every slot that `tag` owns; whether there was one. Other owners' slots are untouched whatever the caller
    /// believes: a second free of the same extent may come after it was given to somebody else.
    pub fn release(&mut self, tag: u64) -> bool {
        let owned = self.slots.iter_mut().filter(|claim| tag != 0 && claim.tag == tag);
        owned.map(|claim| *claim = Claim::default()).count() > 0
    }

    /// The bytes of the next version, in a page of `size` bytes.
    pub fn encode_next(&self, size: usize) -> Buf {
        let mut page = Buf::zeroed(size);
        for (claim, slot) in self.slots.iter().zip(page[HEADER_BYTES..].chunks_exact_mut(SLOT_BYTES)) {
            slot[..8].copy_from_slice(&claim.tag.to_le_bytes());
            slot[8..12].copy_from_slice(&claim.home.to_le_bytes());
            slot[12..14].copy_from_slice(&claim.index.to_le_bytes());
            slot[14..].copy_from_slice(&claim.pages.to_le_bytes());
        }
        let header = Header {
            version: self.header.version.wrapping_add(1),
            used: (SLOTS * SLOT_BYTES) as u32,
            entries: (SLOTS - self.free()) as u16,
            ..self.header
        };
        encode_header(&mut page, self.identity, &header);
        page
    }
}
