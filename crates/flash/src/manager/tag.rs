//! Tags: what is known of a sector from the 16 bytes beside it, and units: how tags and sectors lie on flash.
//!
//! ```text
//!  40 bits  which logical sector it is; the highest values are padding, records, roots and pages of the map
//!  56 bits  its sequence: when it was programmed, of all sectors ever; of a root which part of it this is
//!  32 bits  CRC-32C over the format's identity, the 96 bits before and the sector
//! ```
//! A tag that matches its sector was written with it, by this format of the device. Where the device has no out-of-band area the
//! first sector of each write unit has the tags of the others.

use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};
use engine::{Buf, View};

use crate::address::Sector;
use crate::geometry::{Geometry, SECTOR_BYTES};

/// Bytes of a tag.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes of a write unit without an out-of-band area, where chunks have room. Chosen: a sector of tags then costs 3 %.
const IN_BAND_UNIT_SECTORS: u32 = 32;

const PAGES: u64 = 1 << 39;
const ROOT: u64 = (1 << 40) - 3;
const RECORD: u64 = (1 << 40) - 2;
const PADDING: u64 = (1 << 40) - 1;

/// What a sector of the log is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Logical {
    /// A sector of the namespace.
    Data(u32),
    /// A page of the map.
    Page(u32),
    /// What was deallocated or made unreadable.
    Record,
    /// A part of a root, which part the sequence says: none is in the log.
    Root,
    /// Nothing: the rest of a write unit.
    Padding,
}

impl Logical {
    fn encode(self) -> u64 {
        match self {
            Logical::Data(sector) => u64::from(sector),
            Logical::Page(page) => PAGES | u64::from(page),
            Logical::Record => RECORD,
            Logical::Root => ROOT,
            Logical::Padding => PADDING,
        }
    }

    fn decode(bits: u64) -> Option<Logical> {
        match bits {
            ROOT => Some(Logical::Root),
            RECORD => Some(Logical::Record),
            PADDING => Some(Logical::Padding),
            _ => match (bits & PAGES != 0, u32::try_from(bits & !PAGES)) {
                (true, Ok(page)) => Some(Logical::Page(page)),
                (false, Ok(sector)) => Some(Logical::Data(sector)),
                (_, Err(_)) => None,
            },
        }
    }
}

/// What a tag says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag {
    pub logical: Logical,
    pub sequence: u64,
}

/// How sectors are written to this device by this format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codec {
    pub geometry: Geometry,
    /// Of the format.
    identity: [u8; 16],
    /// Sectors of a write unit.
    pub unit: u32,
}

impl Codec {
    pub fn new(geometry: Geometry, identity: [u8; 16]) -> Codec {
        Codec { geometry, identity, unit: unit_of(&geometry) }
    }

    /// Whether the first sector of a unit has the tags of the others.
    pub fn in_band(&self) -> bool {
        self.geometry.oob_bytes == 0
    }

    /// Sectors of a unit that are not tags.
    pub fn payload(&self) -> u32 {
        self.unit - u32::from(self.in_band())
    }

    /// Units of a chunk.
    pub fn units_per_chunk(&self) -> u32 {
        self.geometry.sectors / self.unit
    }

    /// The unit that a sector is in, counted over the device.
    pub fn unit_index(&self, sector: Sector) -> usize {
        (sector.0 / self.unit) as usize
    }

    /// The sector that has the n-th of a unit's payload.
    pub fn payload_sector(&self, first: Sector, index: u32) -> Sector {
        Sector(first.0 + u32::from(self.in_band()) + index)
    }

    /// Out-of-band bytes of so many sectors.
    pub fn oob_bytes(&self, sectors: u32) -> usize {
        (sectors * self.geometry.oob_bytes) as usize
    }

    pub fn seal(&self, tag: Tag, sector: &[u8]) -> [u8; TAG_BYTES] {
        let mut bytes = [0; TAG_BYTES];
        bytes[..5].copy_from_slice(&tag.logical.encode().to_le_bytes()[..5]);
        bytes[5..12].copy_from_slice(&tag.sequence.to_le_bytes()[..7]);
        let check = self.check(&bytes[..12], sector);
        bytes[12..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// What the tag of a sector says, if it is one of this sector.
    pub fn open(&self, tag: &[u8], sector: &[u8]) -> Option<Tag> {
        let number = |range: std::ops::Range<usize>| {
            let mut word = [0; 8];
            word[..range.len()].copy_from_slice(&tag[range]);
            u64::from_le_bytes(word)
        };
        if number(12..16) != u64::from(self.check(&tag[..12], sector)) {
            return None;
        }
        Some(Tag { logical: Logical::decode(number(0..5))?, sequence: number(5..12) })
    }

    fn check(&self, head: &[u8], sector: &[u8]) -> u32 {
        let mut sum = Digest::new(Crc32Iscsi);
        sum.update(&self.identity);
        sum.update(head);
        sum.update(sector);
        sum.finalize() as u32
    }

    /// A unit of these sectors: its bytes, and its out-of-band bytes. What is missing is padding.
    pub fn build<'a>(&self, sectors: impl Iterator<Item = (Tag, &'a [u8])>) -> (View, View) {
        let mut data = Buf::zeroed(self.unit as usize * SECTOR_BYTES);
        let mut oob = Buf::zeroed(self.oob_bytes(self.unit));
        let mut sectors = sectors.fuse();
        let first = usize::from(self.in_band());
        for index in 0..self.payload() as usize {
            let at = (first + index) * SECTOR_BYTES;
            let mut tag = Tag { logical: Logical::Padding, sequence: 0 };
            if let Some((given, bytes)) = sectors.next() {
                data[at..at + SECTOR_BYTES].copy_from_slice(bytes);
                tag = given;
            }
            let sealed = self.seal(tag, &data[at..at + SECTOR_BYTES]);
            match self.in_band() {
                true => data[index * TAG_BYTES..(index + 1) * TAG_BYTES].copy_from_slice(&sealed),
                false => {
                    let side = index * self.geometry.oob_bytes as usize;
                    oob[side..side + TAG_BYTES].copy_from_slice(&sealed);
                }
            }
        }
        (data.freeze(), oob.freeze())
    }

    /// The tag beside the n-th sector of a unit's payload.
    fn tag_of<'a>(&self, index: usize, data: &'a [u8], oob: &'a [u8]) -> &'a [u8] {
        if self.in_band() {
            return &data[index * TAG_BYTES..(index + 1) * TAG_BYTES];
        }
        let side = index * self.geometry.oob_bytes as usize;
        &oob[side..side + TAG_BYTES]
    }

    /// Of each sector of a unit's payload what its tag says, where it matches.
    pub fn tags(&self, data: &[u8], oob: &[u8]) -> Vec<Option<Tag>> {
        let sector = |index: usize| &data[(usize::from(self.in_band()) + index) * SECTOR_BYTES..][..SECTOR_BYTES];
        (0..self.payload() as usize).map(|index| self.open(self.tag_of(index, data, oob), sector(index))).collect()
    }

    /// The sectors of a unit's payload whose tags match, each with its place and its bytes. The unit begins at `first`.
    pub fn tagged(&self, first: Sector, data: Buf, oob: &[u8]) -> impl Iterator<Item = (Sector, Tag, View)> + use<> {
        let (codec, tags, data) = (*self, self.tags(&data, oob), data.freeze());
        (0..).zip(tags).filter_map(move |(index, tag)| {
            let sector = codec.payload_sector(first, index);
            let at = (sector.0 - first.0) as usize * SECTOR_BYTES;
            tag.map(|tag| (sector, tag, data.slice(at..at + SECTOR_BYTES)))
        })
    }
}

/// Sectors of a write unit: what the device asks for, or more where tags would cost too much.
fn unit_of(geometry: &Geometry) -> u32 {
    if geometry.oob_bytes > 0 {
        return geometry.write_unit;
    }
    let fits = |unit: &u32| geometry.sectors.is_multiple_of(*unit) && *unit >= 2;
    let multiples = (1..=geometry.sectors / geometry.write_unit).map(|times| times * geometry.write_unit);
    let chosen =
        multiples.take_while(|&unit| unit <= IN_BAND_UNIT_SECTORS.max(geometry.write_unit)).filter(fits).last();
    chosen.unwrap_or(geometry.write_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sequences that there are end here.
    const SEQUENCE_END: u64 = 1 << 56;

    fn codec(oob_bytes: u32, identity: u8) -> Codec {
        let geometry =
            Geometry { groups: 1, units_per_group: 1, chunks: 4, sectors: 64, write_unit: 4, oob_bytes, open_max: 0 };
        Codec::new(geometry.checked().expect("it works"), [identity; 16])
    }

    #[test]
    fn a_unit_tells_what_is_in_it_and_damage_is_seen() {
        for oob_bytes in [0, 16, 20] {
            let codec = codec(oob_bytes, 7);
            assert_eq!(codec.unit, if oob_bytes == 0 { 32 } else { 4 });
            let sectors = [[1; SECTOR_BYTES], [2; SECTOR_BYTES]];
            let tags = [Logical::Data(u32::MAX - 2), Logical::Page(9)];
            let tags = [0, 1].map(|index| Tag { logical: tags[index], sequence: SEQUENCE_END - 1 - index as u64 });
            let (data, oob) = codec.build(tags.into_iter().zip(sectors.iter().map(|sector| &sector[..])));
            let found = codec.tags(&data, &oob);
            assert_eq!(found[..2], tags.map(Some));
            assert!(found[2..].iter().all(|tag| tag.is_some_and(|tag| tag.logical == Logical::Padding)));
            let mut damaged = data.to_vec();
            damaged[usize::from(codec.in_band()) * SECTOR_BYTES + 5] ^= 1;
            assert_eq!(codec.tags(&damaged, &oob)[..2], [None, Some(tags[1])]);
            let other = Codec { identity: [8; 16], ..codec };
            assert!(other.tags(&data, &oob).iter().all(Option::is_none), "of another format");
        }
    }

    #[test]
    fn every_kind_of_sector_has_a_number_of_its_own() {
        for logical in [
            Logical::Data(0),
            Logical::Data(u32::MAX),
            Logical::Page(0),
            Logical::Root,
            Logical::Record,
            Logical::Padding,
        ] {
            assert_eq!(Logical::decode(logical.encode()), Some(logical));
        }
        assert_eq!(Logical::decode(1 << 38), None);
    }
}
