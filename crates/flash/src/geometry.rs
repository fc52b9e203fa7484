//! [`Geometry`]: the parts of a flash device, and what may be done with them.
//!
//! Invariant: a geometry that was made by [`Geometry::checked`] works: every sector has an address of four bytes, every chunk is
//! whole write units, and none of the products below overflows.

use crate::address::{ADDRESSES_MAX, Chunk, Sector};

/// Bytes of a sector, the smallest part that is read.
pub const SECTOR_BYTES: usize = 4096;
/// Bytes of out-of-band area that a sector has to have, where it has any.
pub const OOB_BYTES_MIN: u32 = 16;
/// Bytes of out-of-band area that a sector can have. Chosen: more than any NAND has beside 4 KiB behind its error correction.
pub const OOB_BYTES_MAX: u32 = 256;
/// Sectors of a write unit. Derived: a unit is one buffer of the engine, of one MiB at most.
pub const WRITE_UNIT_MAX: u32 = 256;
/// Parallel units of a device. Chosen: several times what the largest drives have.
pub const UNITS_MAX: u32 = 4096;

/// What a flash device is made of (Open-Channel 2.0's identify; a zoned device has one zone for a chunk).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Groups: channels with a bus of their own.
    pub groups: u32,
    /// Parallel units of a group: what works at the same time as others.
    pub units_per_group: u32,
    /// Chunks of a parallel unit: what is reset as a whole.
    pub chunks: u32,
    /// Sectors of a chunk.
    pub sectors: u32,
    /// Sectors that are written at a time: writes are multiples of this many, at a multiple of it.
    pub write_unit: u32,
    /// Out-of-band bytes of a sector; 0: there are none.
    pub oob_bytes: u32,
    /// Chunks that may be open at a time; 0: all of them.
    pub open_max: u32,
}

/// Why a geometry can't work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GeometryError {
    /// A number is outside of its bounds.
    #[error("{what}: {value}, must be from {min} to {max}")]
    Bounds {
        /// Which number.
        what: &'static str,
        /// What it is.
        value: u32,
        /// The least that works.
        min: u32,
        /// The most that works.
        max: u32,
    },
    /// A chunk is no whole number of write units.
    #[error(
        "chunks of {sectors} sectors can't be written in units of {write_unit} sectors: make one a multiple of the other"
    )]
    Units {
        /// Sectors of a chunk.
        sectors: u32,
        /// Sectors of a write unit.
        write_unit: u32,
    },
    /// Zones are written in blocks of a write unit each.
    #[error(
        "a write unit of {write_unit} sectors is no block of a namespace: it must be a power of two, of at most 16"
    )]
    Block {
        /// Sectors of a write unit.
        write_unit: u32,
    },
    /// There are more sectors than addresses.
    #[error("{sectors} sectors: more than the {ADDRESSES_MAX} that addresses of four bytes tell apart")]
    TooLarge {
        /// Sectors of the device.
        sectors: u64,
    },
}

impl Geometry {
    /// The geometry itself, if it can work.
    ///
    /// # Errors
    /// The first thing that can't.
    pub fn checked(self) -> Result<Geometry, GeometryError> {
        let bounds = [
            ("groups", self.groups, 1, UNITS_MAX),
            ("parallel units of a group", self.units_per_group, 1, UNITS_MAX),
            ("chunks of a parallel unit", self.chunks, 1, u32::MAX),
            ("sectors of a chunk", self.sectors, 1, u32::MAX),
            ("sectors of a write unit", self.write_unit, 1, WRITE_UNIT_MAX),
            ("open chunks", self.open_max, 0, u32::MAX),
        ];
        for (what, value, min, max) in bounds {
            if !(min..=max).contains(&value) {
                return Err(GeometryError::Bounds { what, value, min, max });
            }
        }
        if self.oob_bytes != 0 && !(OOB_BYTES_MIN..=OOB_BYTES_MAX).contains(&self.oob_bytes) {
            let (what, value) = ("out-of-band bytes of a sector", self.oob_bytes);
            return Err(GeometryError::Bounds { what, value, min: OOB_BYTES_MIN, max: OOB_BYTES_MAX });
        }
        let units = u64::from(self.groups) * u64::from(self.units_per_group);
        if units > u64::from(UNITS_MAX) {
            let (what, value) = ("parallel units", u32::try_from(units).unwrap_or(u32::MAX));
            return Err(GeometryError::Bounds { what, value, min: 1, max: UNITS_MAX });
        }
        if !self.sectors.is_multiple_of(self.write_unit) {
            return Err(GeometryError::Units { sectors: self.sectors, write_unit: self.write_unit });
        }
        let sectors = u128::from(units) * u128::from(self.chunks) * u128::from(self.sectors);
        if sectors > u128::from(ADDRESSES_MAX) {
            return Err(GeometryError::TooLarge { sectors: u64::try_from(sectors).unwrap_or(u64::MAX) });
        }
        Ok(self)
    }

    /// Parallel units.
    pub fn units(&self) -> u32 {
        self.groups * self.units_per_group
    }

    /// Chunks of the device.
    pub fn chunks_total(&self) -> u32 {
        self.units() * self.chunks
    }

    /// Sectors of the device.
    pub fn sectors_total(&self) -> u32 {
        self.chunks_total() * self.sectors
    }

    /// The chunk with this number in this parallel unit.
    pub fn chunk(&self, unit: u32, number: u32) -> Chunk {
        Chunk(unit * self.chunks + number)
    }

    /// The parallel unit that has a chunk.
    pub fn unit_of(&self, chunk: Chunk) -> u32 {
        chunk.0 / self.chunks
    }

    /// The number of a chunk in its parallel unit.
    pub fn number_of(&self, chunk: Chunk) -> u32 {
        chunk.0 % self.chunks
    }

    /// The group of a parallel unit.
    pub fn group_of(&self, unit: u32) -> u32 {
        unit / self.units_per_group
    }

    /// The sector at this place of a chunk.
    pub fn sector(&self, chunk: Chunk, offset: u32) -> Sector {
        Sector(chunk.0 * self.sectors + offset)
    }

    /// The chunk of a sector, and its place there.
    pub fn locate(&self, sector: Sector) -> (Chunk, u32) {
        (Chunk(sector.0 / self.sectors), sector.0 % self.sectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Geometry =
        Geometry { groups: 2, units_per_group: 2, chunks: 8, sectors: 16, write_unit: 4, oob_bytes: 16, open_max: 0 };

    #[test]
    fn what_can_not_work_is_refused_by_name() {
        assert_eq!(GOOD.checked(), Ok(GOOD));
        let refused = |geometry: Geometry| geometry.checked().expect_err("it can't work").to_string();
        assert!(refused(Geometry { groups: 0, ..GOOD }).contains("groups: 0"));
        assert!(refused(Geometry { oob_bytes: 8, ..GOOD }).contains("out-of-band"));
        assert!(refused(Geometry { write_unit: 5, ..GOOD }).contains("units of 5 sectors"));
        assert!(refused(Geometry { units_per_group: 4096, ..GOOD }).contains("parallel units: 8192"));
        assert!(refused(Geometry { chunks: u32::MAX, sectors: 1 << 30, ..GOOD }).contains("four bytes"));
    }

    #[test]
    fn every_sector_has_one_address() {
        let mut next = 0;
        for unit in 0..GOOD.units() {
            for number in 0..GOOD.chunks {
                let chunk = GOOD.chunk(unit, number);
                assert_eq!((GOOD.unit_of(chunk), GOOD.number_of(chunk)), (unit, number));
                for offset in 0..GOOD.sectors {
                    let sector = GOOD.sector(chunk, offset);
                    assert_eq!((sector, GOOD.locate(sector)), (Sector(next), (chunk, offset)));
                    next += 1;
                }
            }
        }
        assert_eq!(next, GOOD.sectors_total());
    }
}
