//! The root: where the pages of the map are, and up to which sequence they have all changes.
//!
//! ```text
//!    0  head of a sealed page over all of the root (`device::sealed`); at 12 its bytes, a multiple of a sector
//!   24  number           u64, counts the roots of this format
//!   32  identity         16 B of the format
//!   48  serial           16 B of the device
//!   64  geometry         7 numbers, u32; the write unit of the format, u32
//!   96  up to            u64: all changes up to this sequence are in the pages
//!  104  limit            u64: no sequence above it was given before the next root
//!  112  capacity         u32, sectors of the namespace
//!  116  flags            u32: 1 for closed in order; above that bit sectors of which older content may have come back
//!  120  counters         4 numbers, u64: sectors of hosts, programmed, moved, padding
//!  152  lengths          3 numbers, u32: directory, lines, attributes
//!  164  chunks set apart for roots: 4 numbers, u32, by slot and copy; all ones for none
//!  180  directory        u32 each: the place of a page
//!       lines            u64 each: the last sequence, and in the lowest four bits 0 for closed, or 1 and the stream
//!       attributes       as in the sidecar of a file
//! ```

use device::{ATTRIBUTES_BYTES_MAX, Attributes, sealed};

use super::map::pages_of;
use super::tag::Codec;
use crate::address::Chunk;
use crate::geometry::{Geometry, SECTOR_BYTES};

const MAGIC: [u8; 8] = *b"YAGURA-R";
const FORMAT: u32 = 1;
const BODY: usize = 180;
/// Bytes of a root. Derived: the directory of the largest device, twice over.
const ROOT_BYTES_MAX: usize = 64 << 20;
/// Sectors that are counted as unknown. Derived: what the flags have room for.
const UNKNOWN_MAX: u64 = (1 << 31) - 1;
/// Lines say in these bits whether they are open.
const OPEN_BITS: u32 = 4;

/// What was counted since the device was formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Totals {
    pub host: u64,
    pub programmed: u64,
    pub moved: u64,
    pub padding: u64,
    /// Sectors that an opening could neither read nor name: older content of them may have come back.
    pub unknown: u64,
}

/// A line, as a root knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LineNote {
    pub last: u64,
    /// The number of its stream, if it is open.
    pub open: Option<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Root {
    pub number: u64,
    pub identity: [u8; 16],
    pub serial: [u8; 16],
    pub geometry: Geometry,
    pub unit: u32,
    pub up_to: u64,
    pub limit: u64,
    pub capacity: u32,
    pub is_closed: bool,
    pub totals: Totals,
    pub directory: Vec<u32>,
    pub lines: Vec<LineNote>,
    pub attributes: Attributes,
    /// Chunks set apart for roots when the device was formatted.
    pub apart: [Vec<Chunk>; 2],
}

/// How roots are written: in units with tags, as the log is. Their tags are of no format: which one it is the root tells.
pub(super) fn codec(geometry: Geometry) -> Codec {
    Codec::new(geometry, [0; 16])
}

/// Bytes of the largest root of a device: with a map of all its sectors, and all attributes that there can be.
pub(super) fn bytes_max(geometry: &Geometry) -> usize {
    let (pages, lines) = (pages_of(geometry.sectors_total()) as usize, geometry.chunks as usize);
    (BODY + 4 * pages + 8 * lines + ATTRIBUTES_BYTES_MAX).next_multiple_of(SECTOR_BYTES)
}

/// Bytes of the largest root that a chunk takes.
pub(super) fn bytes_in_chunk(geometry: Geometry) -> usize {
    let codec = codec(geometry);
    (codec.units_per_chunk() as usize * codec.payload() as usize * SECTOR_BYTES).min(ROOT_BYTES_MAX)
}

/// Whether a root may begin with this sector, and how many bytes it then has.
pub(super) fn length(sector: &[u8]) -> Option<usize> {
    let bytes = number(sector, 12)? as usize;
    let is_sound = sector[..8] == MAGIC && (SECTOR_BYTES..=ROOT_BYTES_MAX).contains(&bytes);
    (is_sound && bytes.is_multiple_of(SECTOR_BYTES)).then_some(bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn numbers(geometry: &Geometry, unit: u32) -> [u32; 8] {
    let Geometry { groups, units_per_group, chunks, sectors, write_unit, oob_bytes, open_max } = *geometry;
    [groups, units_per_group, chunks, sectors, write_unit, oob_bytes, open_max, unit]
}

impl Root {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BODY];
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.identity);
        bytes[48..64].copy_from_slice(&self.serial);
        for (at, number) in (64..).step_by(4).zip(numbers(&self.geometry, self.unit)) {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        let Totals { host, programmed, moved, padding, unknown } = self.totals;
        let flags = u32::from(self.is_closed) | (unknown.min(UNKNOWN_MAX) as u32) << 1;
        bytes[96..104].copy_from_slice(&self.up_to.to_le_bytes());
        bytes[104..112].copy_from_slice(&self.limit.to_le_bytes());
        bytes[112..116].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[116..120].copy_from_slice(&flags.to_le_bytes());
        for (at, total) in (120..).step_by(8).zip([host, programmed, moved, padding]) {
            bytes[at..at + 8].copy_from_slice(&total.to_le_bytes());
        }
        let copy = self.attributes.encode(self.number);
        let attributes = &copy[..Attributes::encoded_bytes(&copy)];
        for (at, len) in (152..).step_by(4).zip([self.directory.len(), self.lines.len(), attributes.len()]) {
            bytes[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        }
        for (slot, at) in self.apart.iter().zip([164, 172]) {
            bytes[at..at + 8].fill(0xff);
            for (chunk, at) in slot.iter().zip([at, at + 4]) {
                bytes[at..at + 4].copy_from_slice(&chunk.0.to_le_bytes());
            }
        }
        bytes.extend(self.directory.iter().flat_map(|place| place.to_le_bytes()));
        for note in &self.lines {
            let open = note.open.map_or(0, |stream| 1 + u64::from(stream));
            bytes.extend((note.last << OPEN_BITS | open).to_le_bytes());
        }
        bytes.extend_from_slice(attributes);
        bytes.resize(bytes.len().next_multiple_of(SECTOR_BYTES), 0);
        let len = bytes.len() as u32;
        bytes[12..16].copy_from_slice(&len.to_le_bytes());
        sealed::seal(&mut bytes, MAGIC, FORMAT);
        bytes
    }

    /// The root in these bytes; `None` where there is none that is whole.
    pub fn decode(bytes: &[u8]) -> Option<Root> {
        if length(bytes)? != bytes.len() || !sealed::is_whole(bytes) || sealed::format(bytes) != FORMAT {
            return None;
        }
        let at = |index: usize| number(bytes, 64 + 4 * index);
        let geometry = Geometry {
            groups: at(0)?,
            units_per_group: at(1)?,
            chunks: at(2)?,
            sectors: at(3)?,
            write_unit: at(4)?,
            oob_bytes: at(5)?,
            open_max: at(6)?,
        };
        let length = |index: usize| number(bytes, 152 + 4 * index).map(|length| length as usize);
        let body = bytes.get(BODY..)?;
        let (directory, rest) = body.split_at_checked(4 * length(0)?)?;
        let (lines, rest) = rest.split_at_checked(8 * length(1)?)?;
        let (_, attributes) = Attributes::decode(rest.get(..length(2)?)?)?;
        let note = |bits: u64| {
            let open = (bits & ((1 << OPEN_BITS) - 1)).checked_sub(1).map(|stream| stream as u8);
            LineNote { last: bits >> OPEN_BITS, open }
        };
        let apart = |at: usize| -> Option<Vec<Chunk>> {
            let both = [number(bytes, at)?, number(bytes, at + 4)?];
            Some(both.into_iter().filter(|&chunk| chunk != u32::MAX).map(Chunk).collect())
        };
        Some(Root {
            apart: [apart(164)?, apart(172)?],
            number: word(bytes, 24)?,
            identity: *bytes.get(32..48)?.first_chunk()?,
            serial: *bytes.get(48..64)?.first_chunk()?,
            geometry,
            unit: at(7)?,
            up_to: word(bytes, 96)?,
            limit: word(bytes, 104)?,
            capacity: number(bytes, 112)?,
            is_closed: number(bytes, 116)? & 1 == 1,
            totals: Totals {
                host: word(bytes, 120)?,
                programmed: word(bytes, 128)?,
                moved: word(bytes, 136)?,
                padding: word(bytes, 144)?,
                unknown: u64::from(number(bytes, 116)? >> 1),
            },
            directory: directory.chunks_exact(4).map(|place| number(place, 0)).collect::<Option<_>>()?,
            lines: lines.chunks_exact(8).map(|bits| word(bits, 0).map(note)).collect::<Option<_>>()?,
            attributes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_reads_back_and_any_damage_is_seen() {
        let geometry = Geometry {
            groups: 2,
            units_per_group: 3,
            chunks: 9,
            sectors: 16,
            write_unit: 4,
            oob_bytes: 16,
            open_max: 0,
        };
        let root = Root {
            number: 77,
            identity: [1; 16],
            serial: [2; 16],
            geometry,
            unit: 4,
            up_to: 12345,
            limit: 99999,
            capacity: 500,
            is_closed: true,
            totals: Totals { host: 1, programmed: 2, moved: 3, padding: 4, unknown: 5 },
            directory: vec![5, u32::MAX],
            lines: vec![LineNote { last: 9, open: None }, LineNote { last: (1 << 56) - 1, open: Some(3) }],
            attributes: Attributes::default().with("key", b"value").expect("it fits"),
            apart: [vec![Chunk(0), Chunk(9)], vec![Chunk(1)]],
        };
        let bytes = root.encode();
        assert_eq!(Root::decode(&bytes), Some(root));
        for at in (0..bytes.len()).step_by(61) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(Root::decode(&damaged), None, "byte {at}");
        }
        assert_eq!(Root::decode(&bytes[..100]), None);
        assert_eq!(length(&[0; SECTOR_BYTES]), None);
    }
}
