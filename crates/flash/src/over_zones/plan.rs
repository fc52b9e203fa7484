//! Which zone is which chunk, and what a zone is as one.

use device::{Error, Lba, Zone, ZoneState, ZonedInfo};

use crate::address::Chunk;
use crate::device::ChunkState;
use crate::geometry::{Geometry, GeometryError, SECTOR_BYTES};

/// Zones that the media manager holds active on each parallel unit, one for each of its streams, and those beside: four of roots,
/// and one in which a write has failed.
const ACTIVE_PER_UNIT: u32 = 4;
const ACTIVE_FOR_ROOTS: u32 = 4;
const ACTIVE_FAILED: u32 = 1;

/// Why a namespace is no flash device.
#[derive(Debug, thiserror::Error)]
pub enum ZonesError {
    /// It has no zones.
    #[error("it has no zones")]
    NotZoned,
    /// Its blocks are larger than a sector.
    #[error(
        "its blocks have {0} bytes, and those of a media manager {SECTOR_BYTES}: zones of larger ones can't be used"
    )]
    BlockSize(u32),
    /// What its zones give is no device.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The namespace failed.
    #[error("its zones: {0}")]
    Namespace(#[from] Error),
}

/// How zones become parallel units and chunks. It must be the same at every opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneLayout {
    /// Sectors of a write unit.
    pub write_unit: u32,
    /// Parallel units at most.
    pub units_max: u32,
    /// Chunks of a parallel unit at least, where there is more than one.
    pub chunks_min: u32,
}

impl Default for ZoneLayout {
    /// Chosen: 128 KiB, of which tags take 3 %; a usual drive's buses; and so many lines that those in reserve are a sixth.
    fn default() -> ZoneLayout {
        ZoneLayout { write_unit: 32, units_max: 8, chunks_min: 64 }
    }
}

/// A chunk, in sectors.
#[derive(Clone, Copy)]
pub(super) struct Note {
    pub state: ChunkState,
    pub written: u32,
    /// Since the device was opened.
    pub resets: u32,
    /// Writes that have failed in it since then.
    pub failures: u32,
    /// It takes no more, and its zone is active still.
    pub is_held: bool,
}

impl Note {
    /// It was reset.
    pub fn empty(&mut self) {
        let (resets, failures) = (self.resets + 1, self.failures);
        *self = Note { state: ChunkState::Free, written: 0, resets, failures, is_held: false };
    }

    /// It is used no more.
    pub fn offline(&mut self) {
        (self.state, self.written, self.is_held) = (ChunkState::Offline, 0, false);
    }
}

/// Where the zones of a namespace are, and what they are as chunks.
pub(super) struct Plan {
    pub geometry: Geometry,
    /// Blocks of a sector.
    sector_blocks: u64,
    /// First blocks of the zones that are written in order.
    starts: Vec<Lba>,
}

/// Parallel units, so that all that is open at a time may be; and how many zones that is, 0 for any number.
fn units(open_max: Option<u32>, active_max: Option<u32>, zones: u32, layout: ZoneLayout) -> (u32, u32) {
    let least = ACTIVE_PER_UNIT + ACTIVE_FOR_ROOTS;
    let few = open_max.into_iter().chain(active_max).min();
    // Zones that are not open are opened by the next write, which closes others: slow, but it works.
    let most = if few.is_some_and(|few| few < least) { active_max } else { few };
    let by_limit =
        most.map_or(u32::MAX, |most| most.saturating_sub(ACTIVE_FOR_ROOTS + ACTIVE_FAILED) / ACTIVE_PER_UNIT);
    let by_zones = zones / layout.chunks_min.max(1);
    (by_limit.min(by_zones).min(layout.units_max).max(1), most.unwrap_or(0))
}

impl Plan {
    pub fn new(block_size: u32, zoned: ZonedInfo, zones: &[Zone], layout: ZoneLayout) -> Result<Plan, ZonesError> {
        if block_size as usize > SECTOR_BYTES {
            return Err(ZonesError::BlockSize(block_size));
        }
        let sector_blocks = (SECTOR_BYTES / block_size as usize) as u64;
        let in_order: Vec<&Zone> = zones.iter().filter(|zone| zone.state != ZoneState::Conventional).collect();
        // Of a zone that is offline nobody knows what it has been.
        let working = in_order.iter().filter(|zone| zone.state != ZoneState::Offline);
        let capacity = working.map(|zone| zone.capacity / sector_blocks).max().unwrap_or(0);
        let count = u32::try_from(in_order.len()).unwrap_or(u32::MAX);
        let (units, open_max) = units(zoned.open_max, zoned.active_max, count, layout);
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        let geometry = Geometry {
            groups: 1,
            units_per_group: units,
            chunks: count.div_ceil(units),
            sectors: capacity - capacity % layout.write_unit,
            write_unit: layout.write_unit,
            oob_bytes: 0,
            open_max,
        };
        let starts = in_order.iter().map(|zone| zone.start).collect();
        Ok(Plan { geometry: geometry.checked()?, sector_blocks, starts })
    }

    /// Where the chunk's zone begins, if it has one: the last row of chunks may be short of some.
    pub fn start(&self, chunk: Chunk) -> Option<Lba> {
        let (unit, number) = (self.geometry.unit_of(chunk), self.geometry.number_of(chunk));
        self.starts.get((number * self.geometry.units() + unit) as usize).copied()
    }

    /// The block of a sector of a chunk.
    pub fn block(&self, start: Lba, offset: u32) -> Lba {
        Lba(start.0 + u64::from(offset) * self.sector_blocks)
    }

    /// What a zone is as a chunk.
    pub fn note(&self, zone: &Zone) -> Note {
        let sectors = self.geometry.sectors;
        let (state, written) = match zone.state {
            _ if zone.capacity < u64::from(sectors) * self.sector_blocks => (ChunkState::Offline, 0),
            ZoneState::Empty => (ChunkState::Free, 0),
            ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen | ZoneState::Closed => {
                match self.written(zone.write_pointer.0 - zone.start.0) {
                    0 => (ChunkState::Free, 0),
                    written if written < sectors => (ChunkState::Open, written),
                    _ => (ChunkState::Closed, sectors),
                }
            }
            // Where it ended nobody knows; what is not written reads as zeroes.
            ZoneState::Full => (ChunkState::Closed, sectors),
            ZoneState::ReadOnly => (ChunkState::ReadOnly, sectors),
            ZoneState::Offline | ZoneState::Conventional => (ChunkState::Offline, 0),
        };
        let is_held = state == ChunkState::Closed && zone.state.is_active();
        Note { state, written, resets: 0, failures: 0, is_held }
    }

    /// Sectors up to a write pointer. One that is within a unit stays within it, also where it is within a sector.
    fn written(&self, blocks: u64) -> u32 {
        let sectors = blocks.div_ceil(self.sector_blocks).min(u64::from(u32::MAX)) as u32;
        let is_torn = !blocks.is_multiple_of(self.sector_blocks);
        if is_torn && sectors.is_multiple_of(self.geometry.write_unit) { sectors - 1 } else { sectors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(number: u64, written: u64, state: ZoneState) -> Zone {
        let start = Lba(number * 512);
        Zone { start, capacity: 400, write_pointer: Lba(start.0 + written), state }
    }

    fn plan(zones: &[Zone]) -> Plan {
        let zoned = ZonedInfo { zone_blocks: 512, open_max: Some(14), active_max: Some(14), append_blocks_max: 0 };
        let layout = ZoneLayout { write_unit: 4, chunks_min: 2, ..ZoneLayout::default() };
        Plan::new(512, zoned, zones, layout).expect("it works")
    }

    #[test]
    fn zones_written_anywhere_are_left_out_and_no_others() {
        let state = |number: u64| match number {
            0..3 => ZoneState::Conventional,
            5 => ZoneState::Offline,
            _ => ZoneState::Empty,
        };
        let mut zones: Vec<Zone> = (0..12).map(|number| zone(number, 0, state(number))).collect();
        zones[11].capacity = 399;
        let plan = plan(&zones);
        // 400 blocks are 50 sectors, and 48 of them whole units.
        let Geometry { units_per_group, chunks, sectors, open_max, .. } = plan.geometry;
        assert_eq!((units_per_group, chunks, sectors, open_max), (2, 5, 48, 14));
        let starts = [0, 5, 1, 6].map(|chunk| plan.start(Chunk(chunk)));
        assert_eq!(starts, [3, 4, 5, 6].map(|number| Some(Lba(number * 512))));
        assert_eq!(plan.start(Chunk(9)), None, "nine zones on two units");
        assert_eq!(plan.note(&zones[5]).state, ChunkState::Offline);
        assert_eq!(plan.note(&zones[11]).state, ChunkState::Free, "a chunk fits still");
        zones[11].capacity = 383;
        assert_eq!(plan.note(&zones[11]).state, ChunkState::Offline);
    }

    #[test]
    fn a_pointer_within_a_unit_stays_within_it() {
        let found = |written: u64| {
            let zones = [0, 1, 2, 3].map(|number| zone(number, written, ZoneState::Closed));
            let Note { state, written, .. } = plan(&zones).note(&zones[1]);
            (state, written)
        };
        // A unit is 32 blocks.
        assert_eq!(found(0), (ChunkState::Free, 0));
        assert_eq!([1, 8, 24, 25, 31].map(found), [1, 1, 3, 3, 3].map(|written| (ChunkState::Open, written)));
        assert_eq!(found(32), (ChunkState::Open, 4));
        assert_eq!(found(33), (ChunkState::Open, 5));
        assert_eq!(
            [383, 384, 399].map(found),
            [47, 48, 48]
                .map(|written| { (if written == 48 { ChunkState::Closed } else { ChunkState::Open }, written) })
        );
    }

    #[test]
    fn no_more_zones_are_used_at_a_time_than_may_be() {
        let of = |open_max, active_max| units(open_max, active_max, 10_000, ZoneLayout::default());
        assert_eq!(of(None, None), (8, 0));
        assert_eq!(of(Some(14), Some(14)), (2, 14));
        assert_eq!(of(Some(12), Some(32)), (1, 12));
        assert_eq!(of(None, Some(128)), (8, 128));
        assert_eq!(of(Some(4), Some(32)), (6, 32), "open ones are closed again and again");
        assert_eq!(of(Some(4), Some(6)), (1, 6), "which the media manager refuses");
        assert_eq!(units(None, None, 100, ZoneLayout::default()), (1, 0), "few zones");
    }
}
