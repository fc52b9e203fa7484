//! The allocation page of a heap group: who owns each of its 240 data pages.
//!
//! ```text
//!  slot, 16 bytes
//!   0  tag      u64   0: free; else unique to the claim: only whoever knows it can free the extent
//!   8  home     u32   table page of the key, so that an orphan can be told from an owned extent; 2^32 - 1: none yet, a page
//!                     of some host's stock that no table page can refer to
//!  12  stamp    u16   when it was claimed or bound to its home, in units of 10 minutes of Unix time, modulo 2^16
//!  14  index    u8    place within the extent
//!  15  pages    u8    length of the extent; 128 more: condemned, a collector looks whether anybody refers to it
//! ```
//!
//! The life of a slot, each step a compare-and-write of this page: free, in a host's stock, bound (only now may a table page
//! refer to it), perhaps condemned (and perhaps not any more), free.

use engine::Buf;
use pool::geometry::GROUP_DATA_PAGES;

use super::{
    HEADER_BYTES, Header, Identity, Kind, PageError, Trust, decode_header, encode_header, u16_at, u32_at, u64_at,
};

/// The home of a page in a host's stock.
pub const UNBOUND: u32 = u32::MAX;
/// Most pages of an extent.
pub const EXTENT_PAGES_MAX: usize = 127;
const CONDEMNED: u8 = 128;

/// Data pages of a group.
pub const SLOTS: usize = GROUP_DATA_PAGES as usize;
const SLOT_BYTES: usize = 16;
const _: () = assert!(HEADER_BYTES + SLOTS * SLOT_BYTES <= pool::geometry::PAGE_SIZE_MIN as usize);

/// The home of a data page that a rebuild of its allocation page has set aside: whether anybody refers to it, or is about
/// to, is not known.
pub const LOST: u32 = u32::MAX - 1;

/// Who owns a data page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// The owner's tag; 0: free.
    pub tag: u64,
    /// Home page of the key, or [`UNBOUND`].
    pub home: u32,
    /// When it was claimed or bound, in units of 10 minutes of Unix time.
    pub stamp: u16,
    /// Place within its extent.
    pub index: u8,
    /// Pages of its extent.
    pub pages: u8,
    /// A collector looks whether anybody refers to it: nobody may begin to.
    pub condemned: bool,
}

impl Claim {
    fn decode(slot: &[u8]) -> Result<Claim, PageError> {
        let (tag, home, stamp, index) = (u64_at(slot, 0), u32_at(slot, 8), u16_at(slot, 12), slot[14]);
        let (pages, condemned) = (slot[15] & !CONDEMNED, slot[15] & CONDEMNED != 0);
        let claim = Claim { tag, home, stamp, index, pages, condemned };
        let shaped = if tag == 0 { claim == Claim::default() } else { index < pages };
        if shaped { Ok(claim) } else { Err(PageError::Malformed("a slot of an allocation page")) }
    }

    fn encode(&self, slot: &mut [u8]) {
        slot[..8].copy_from_slice(&self.tag.to_le_bytes());
        slot[8..12].copy_from_slice(&self.home.to_le_bytes());
        slot[12..14].copy_from_slice(&self.stamp.to_le_bytes());
        slot[14] = self.index;
        slot[15] = self.pages | if self.condemned { CONDEMNED } else { 0 };
    }

    fn is_free(&self) -> bool {
        self.tag == 0
    }
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
            *claim = Claim::decode(slot)?;
        }
        Ok(page)
    }

    /// An allocation page in which everything is free, in place of one whose bytes are lost. `salt`, random, keeps its
    /// images from ever being equal to those of the lost one.
    pub fn rebuild(group: u32, incarnation: u64, salt: u64) -> AllocationPage {
        let identity = Identity { kind: Kind::Allocation, page: group, incarnation };
        let header = Header { salt: salt.max(1), ..Header::default() };
        AllocationPage { identity, header, slots: [Claim::default(); SLOTS] }
    }

    /// The owner of each slot.
    pub fn slots(&self) -> &[Claim; SLOTS] {
        &self.slots
    }

    /// Free slots.
    pub fn free(&self) -> usize {
        self.slots.iter().filter(|claim| claim.is_free()).count()
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
            let length = self.slots[start..].iter().take_while(|claim| claim.is_free()).count();
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

    /// The slots of `tag` that follow each other: first and count; `None`: it owns none.
    pub fn run_of(&self, tag: u64) -> Option<(usize, usize)> {
        let first = self.slots.iter().position(|claim| tag != 0 && claim.tag == tag)?;
        Some((first, self.slots[first..].iter().take_while(|claim| claim.tag == tag).count()))
    }

    /// Gives `pages` slots from `slot` on, which are free, to `tag`, as one extent of a key at home in `home`.
    pub fn claim(&mut self, slot: usize, pages: usize, tag: u64, home: u32, stamp: u16) {
        debug_assert!(
            tag != 0 && pages <= EXTENT_PAGES_MAX && self.slots[slot..slot + pages].iter().all(Claim::is_free)
        );
        for (index, claim) in self.slots[slot..slot + pages].iter_mut().enumerate() {
            *claim = Claim { tag, home, stamp, index: index as u8, pages: pages as u8, condemned: false };
        }
    }

    /// Gives `pages` slots from `slot` on, which are free, to the stock named `tag`.
    pub fn stock(&mut self, slot: usize, pages: usize, tag: u64, stamp: u16) {
        debug_assert!(tag != 0 && self.slots[slot..slot + pages].iter().all(Claim::is_free));
        self.slots[slot..slot + pages].fill(Claim { tag, home: UNBOUND, stamp, index: 0, pages: 1, condemned: false });
    }

    /// Turns `pages` slots from `slot` on, all in the stock named `stock` and none condemned, into an extent of `tag`;
    /// whether they were.
    pub fn bind(&mut self, slot: usize, pages: usize, stock: u64, tag: u64, home: u32, stamp: u16) -> bool {
        let held = |claim: &Claim| claim.tag == stock && claim.home == UNBOUND && !claim.condemned;
        let bound = stock != 0 && self.slots.get(slot..slot + pages).is_some_and(|slots| slots.iter().all(held));
        if bound {
            self.slots[slot..slot + pages].fill(Claim::default());
            self.claim(slot, pages, tag, home, stamp);
        }
        bound
    }

    /// Frees every slot that `tag` owns; whether there was one. Other owners' slots are untouched whatever the caller
    /// believes: a second free of the same extent may come after it was given to somebody else.
    pub fn release(&mut self, tag: u64) -> bool {
        self.release_run(0, SLOTS, tag)
    }

    /// Frees those of `pages` slots from `slot` on that `tag` owns; whether there was one.
    pub fn release_run(&mut self, slot: usize, pages: usize, tag: u64) -> bool {
        let run = self.slots.iter_mut().skip(slot).take(pages);
        run.filter(|claim| tag != 0 && claim.tag == tag).map(|claim| *claim = Claim::default()).count() > 0
    }

    /// Marks every slot that `tag` owns as condemned, or takes the mark off; whether there was one to change.
    pub fn condemn(&mut self, tag: u64, condemned: bool) -> bool {
        let others = |claim: &&mut Claim| tag != 0 && claim.tag == tag && claim.condemned != condemned;
        self.slots.iter_mut().filter(others).map(|claim| claim.condemned = condemned).count() > 0
    }

    /// The bytes of the next version, in a page of `size` bytes.
    pub fn encode_next(&self, size: usize) -> Buf {
        let mut page = Buf::zeroed(size);
        for (claim, slot) in self.slots.iter().zip(page[HEADER_BYTES..].chunks_exact_mut(SLOT_BYTES)) {
            claim.encode(slot);
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
