//! Tags: what is known of a sector from the 16 bytes beside it, and units: how tags and sectors lie on flash.
//!
//! ```text
//!  40 bits  which logical sector it is; the highest values are padding, records, roots and pages of the map
//!  56 bits  its sequence: when it was programmed, of all sectors ever; of a root which part of it this is
//!  32 bits  CRC-32C over the format's identity, the 96 bits before and the sector
//! ```
//! A tag that matches its sector was written with it, by this format of the device. Where the device has no out-of-band area the
//! first sector of each write unit has the tags of the others.
//!
//! Where a sector has room for it a *note* stands behind its tag, so that a sector that goes bad is known by the one before it:
//!
//! ```text
//!  40 bits  which logical sector the next one of the unit is; behind the last one comes the first
//!  24 bits  how far before the unit's first sequence programs had all ended when the unit was made; all ones: not told
//! ```
//! The tag's check covers it. Without an out-of-band area the tags themselves are elsewhere than what goes bad, and the last 16
//! bytes of their sector are a tag of nothing, whose sequence is the one up to which programs had ended.

use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};
use engine::{Buf, View};

use crate::address::Sector;
use crate::geometry::{Geometry, SECTOR_BYTES};

/// Bytes of a tag.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes of a note.
const NOTE_BYTES: usize = 8;
/// What a note says where it does not tell which programs had ended.
const NOT_TOLD: u64 = (1 << 24) - 1;
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

/// What the sectors of a unit that can be read tell of the others, and of the time when it was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Notes {
    /// The sequence of the first of the unit's payload; `None`: nothing of it is known.
    pub first: Option<u64>,
    /// Programs up to this sequence had ended.
    pub ended: u64,
    /// Of the n-th of the unit's payload, whose tag does not match, its sequence, and which logical sector it is, if known.
    pub missing: Vec<(u32, u64, Option<Logical>)>,
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

    /// Bytes of a tag with the note behind it, if there is room for one.
    pub fn tag_bytes(&self) -> usize {
        let has_note = self.geometry.oob_bytes as usize >= TAG_BYTES + NOTE_BYTES;
        TAG_BYTES + if has_note { NOTE_BYTES } else { 0 }
    }

    fn seal(&self, tag: Tag, note: &[u8], sector: &[u8]) -> [u8; TAG_BYTES] {
        let mut bytes = [0; TAG_BYTES];
        bytes[..5].copy_from_slice(&tag.logical.encode().to_le_bytes()[..5]);
        bytes[5..12].copy_from_slice(&tag.sequence.to_le_bytes()[..7]);
        let check = self.check(&bytes[..12], note, sector);
        bytes[12..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// What the tag of a sector says, if it is one of this sector; a note behind it belongs to it.
    pub fn open(&self, tag: &[u8], sector: &[u8]) -> Option<Tag> {
        let (head, note) = (&tag[..12], &tag[TAG_BYTES..]);
        (number(&tag[12..TAG_BYTES]) == u64::from(self.check(head, note, sector))).then(|| decode(head))?
    }

    fn check(&self, head: &[u8], note: &[u8], sector: &[u8]) -> u32 {
        let mut sum = Digest::new(Crc32Iscsi);
        sum.update(&self.identity);
        sum.update(head);
        sum.update(note);
        sum.update(sector);
        sum.finalize() as u32
    }

    /// A unit of these sectors, made when all programs up to `ended` had ended: its bytes, and its out-of-band bytes. What is
    /// missing is padding.
    pub fn build<'a>(&self, sectors: impl Iterator<Item = (Tag, &'a [u8])>, ended: u64) -> (View, View) {
        let mut data = Buf::zeroed(self.unit as usize * SECTOR_BYTES);
        let mut oob = Buf::zeroed(self.oob_bytes(self.unit));
        let payload = self.payload() as usize;
        let sectors: Vec<(Tag, &[u8])> = sectors.take(payload).collect();
        let first = sectors.first().map_or(0, |(tag, _)| tag.sequence);
        let tag = |index: usize| {
            let padding = Tag { logical: Logical::Padding, sequence: first + index as u64 };
            sectors.get(index).map_or(padding, |&(tag, _)| tag)
        };
        let behind = first.saturating_sub(1).saturating_sub(ended).min(NOT_TOLD);
        for index in 0..payload {
            let at = (usize::from(self.in_band()) + index) * SECTOR_BYTES;
            if let Some((_, bytes)) = sectors.get(index) {
                data[at..at + SECTOR_BYTES].copy_from_slice(bytes);
            }
            let mut note = [0; NOTE_BYTES];
            note[..5].copy_from_slice(&tag((index + 1) % payload).logical.encode().to_le_bytes()[..5]);
            note[5..].copy_from_slice(&behind.to_le_bytes()[..3]);
            let note = &note[..self.tag_bytes() - TAG_BYTES];
            let sealed = self.seal(tag(index), note, &data[at..at + SECTOR_BYTES]);
            match self.in_band() {
                true => data[index * TAG_BYTES..(index + 1) * TAG_BYTES].copy_from_slice(&sealed),
                false => {
                    let side = index * self.geometry.oob_bytes as usize;
                    oob[side..side + TAG_BYTES].copy_from_slice(&sealed);
                    oob[side + TAG_BYTES..side + self.tag_bytes()].copy_from_slice(note);
                }
            }
        }
        if self.in_band() {
            let sealed = self.seal(Tag { logical: Logical::Padding, sequence: ended }, &[], &[]);
            data[SECTOR_BYTES - TAG_BYTES..SECTOR_BYTES].copy_from_slice(&sealed);
        }
        (data.freeze(), oob.freeze())
    }

    /// The tag beside the n-th sector of a unit's payload, with its note.
    fn tag_of<'a>(&self, index: usize, data: &'a [u8], oob: &'a [u8]) -> &'a [u8] {
        if self.in_band() {
            return &data[index * TAG_BYTES..(index + 1) * TAG_BYTES];
        }
        let side = index * self.geometry.oob_bytes as usize;
        &oob[side..side + self.tag_bytes()]
    }

    /// Makes the checks of all tags right, whatever they say: for what looks at them behind the check.
    #[cfg(any(test, feature = "testing"))]
    pub fn match_tags(&self, data: &mut [u8], oob: &mut [u8]) {
        for index in 0..self.payload() as usize {
            let at = (usize::from(self.in_band()) + index) * SECTOR_BYTES;
            let tag = self.tag_of(index, data, oob);
            let check = self.check(&tag[..12], &tag[TAG_BYTES..], &data[at..at + SECTOR_BYTES]).to_le_bytes();
            match self.in_band() {
                true => data[index * TAG_BYTES + 12..(index + 1) * TAG_BYTES].copy_from_slice(&check),
                false => {
                    let side = index * self.geometry.oob_bytes as usize;
                    oob[side + 12..side + TAG_BYTES].copy_from_slice(&check);
                }
            }
        }
    }

    /// What is known of the sectors of a unit whose tags do not match. Nothing, where all of them do not.
    pub fn notes(&self, tags: &[Option<Tag>], data: &[u8], oob: &[u8]) -> Notes {
        let known = (0u32..).zip(tags).filter_map(|(index, tag)| Some((index, (*tag)?)));
        let Some((index, first)) =
            known.clone().next().and_then(|(index, tag)| Some((index, tag.sequence.checked_sub(u64::from(index))?)))
        else {
            return Notes::default();
        };
        let note_of =
            |index: u32| self.tag_of(index as usize, data, oob).get(TAG_BYTES..).filter(|note| !note.is_empty());
        let ended = match self.in_band() {
            true => self.open(&data[SECTOR_BYTES - TAG_BYTES..SECTOR_BYTES], &[]).map(|tag| tag.sequence),
            false => note_of(index).and_then(|note| {
                let behind = Some(number(&note[5..])).filter(|&behind| behind != NOT_TOLD);
                first.checked_sub(1 + behind?)
            }),
        };
        let named = |index: u32| {
            if self.in_band() {
                // What can't be read has not damaged its tag: the tag belongs to the unit, or it has a sequence of another one.
                let tag = decode(self.tag_of(index as usize, data, oob))?;
                return (tag.sequence == first + u64::from(index)).then_some(tag.logical);
            }
            let before = (index + self.payload() - 1) % self.payload();
            tags[before as usize]?;
            Logical::decode(number(&note_of(before)?[..5]))
        };
        let missing = (0u32..).zip(tags).filter(|(_, tag)| tag.is_none());
        let missing = missing.map(|(index, _)| (index, first + u64::from(index), named(index))).collect();
        Notes { first: Some(first), ended: ended.unwrap_or(0), missing }
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

fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// What the first twelve bytes of a tag say, whether it is one or not.
fn decode(head: &[u8]) -> Option<Tag> {
    Some(Tag { logical: Logical::decode(number(&head[..5]))?, sequence: number(&head[5..12]) })
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
            let (data, oob) = codec.build(tags.into_iter().zip(sectors.iter().map(|sector| &sector[..])), 0);
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
    fn what_is_missing_in_a_unit_is_known_by_what_is_left() {
        for oob_bytes in [0, 16, 24, 64] {
            let codec = codec(oob_bytes, 7);
            let sectors = [[1; SECTOR_BYTES], [2; SECTOR_BYTES]];
            let tag = |index: u64| Tag { logical: Logical::Data(40 + index as u32), sequence: 1000 + index };
            let (data, oob) = codec.build((0..).map(tag).zip(sectors.iter().map(|sector| &sector[..])), 990);
            let after = |lost: &[usize]| {
                let (mut data, mut oob) = (data.to_vec(), oob.to_vec());
                for index in lost {
                    data[(usize::from(codec.in_band()) + index) * SECTOR_BYTES..][..SECTOR_BYTES].fill(9);
                    oob.chunks_mut(oob_bytes.max(1) as usize).skip(*index).take(1).for_each(|side| side.fill(0));
                }
                codec.notes(&codec.tags(&data, &oob), &data, &oob)
            };
            let (has_notes, named) = (oob_bytes != 16, |index: u64| (oob_bytes != 16).then_some(tag(index).logical));
            let ended = if has_notes { 990 } else { 0 };
            assert_eq!(after(&[]), Notes { first: Some(1000), ended, missing: vec![] }, "{oob_bytes}");
            assert_eq!(after(&[0]).missing, [(0, 1000, named(0))]);
            let both = after(&[0, 1]);
            assert_eq!((both.missing[0], both.missing[1].1), ((0, 1000, named(0)), 1001));
            assert_eq!(both.missing[1].2, if oob_bytes == 0 { named(1) } else { None }, "its neighbour is lost, too");
            let all: Vec<usize> = (0..codec.payload() as usize).collect();
            assert_eq!(after(&all), Notes::default());
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
