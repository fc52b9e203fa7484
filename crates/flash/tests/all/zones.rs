//! The chunks of a flash device as zones, through the checks of every kind of zoned namespace, and over a loss of power.

use std::rc::Rc;

use device::{Durability, Error, Lba, Namespace, ZoneAction, ZoneError, ZoneState};
use engine::{Buf, View};
use flash::nand::{Fault, Nand, NandConfig};
use flash::presets::Preset;
use flash::{FlashDevice, Geometry, GeometryError, Zones};

use crate::crash::simulated;

fn config(seed: u64, geometry: impl FnOnce(Geometry) -> Geometry) -> NandConfig {
    let config = Preset::Small.config(seed);
    NandConfig { geometry: geometry(config.geometry), ..config }
}

fn filled(blocks: usize, block: usize, byte: u8) -> View {
    let mut buf = Buf::with_len(blocks * block);
    buf.fill(byte);
    buf.freeze()
}

#[test]
fn chunks_are_zones_that_keep_the_rules() {
    // Blocks of four sectors and of one; capacities that are a power of two, and that are not; limits.
    let kinds: [(u32, u32, u32, u32); 3] = [(4, 64, 0, 32), (1, 12, 5, 0), (2, 24, 0, 16)];
    for (write_unit, sectors, open_max, oob_bytes) in kinds {
        let config = config(3, |small| Geometry { chunks: 4, sectors, write_unit, open_max, oob_bytes, ..small });
        simulated(3, async move {
            let nand = Nand::in_memory(config).expect("a geometry that works");
            let zones = Rc::new(Zones::open(nand.power_on()).await.expect("opened"));
            device::conformance::zones::check_all(zones, 5, None).await;
        });
    }
}

/// What was acknowledged is there, and a zone goes on where it was; which zones were open is forgotten.
#[test]
fn zones_are_what_they_were_when_power_comes_back() {
    let config = config(4, |small| Geometry { chunks: 2, sectors: 12, write_unit: 1, oob_bytes: 0, ..small });
    simulated(4, async move {
        let nand = Nand::in_memory(config).expect("a geometry that works");
        let zones = Zones::open(nand.power_on()).await.expect("opened");
        let size = zones.zoned().expect("zoned").zone_blocks;
        let block = zones.info().block_size as usize;
        let at = |zone: u64| Lba(zone * size);
        let change = async |zones: &Zones, zone: u64, action| zones.change_zone(Some(at(zone)), action).await;
        assert_eq!(zones.append(at(0), filled(3, block, 1), Durability::Stable).await, Ok(at(0)));
        assert_eq!(zones.append(at(1), filled(2, block, 2), Durability::Stable).await, Ok(at(1)));
        assert_eq!(change(&zones, 1, ZoneAction::Finish).await, Ok(()));
        assert_eq!(change(&zones, 2, ZoneAction::Open).await, Ok(()));
        assert_eq!(zones.append(at(3), filled(12, block, 3), Durability::Stable).await, Ok(at(3)));
        assert_eq!(change(&zones, 3, ZoneAction::Reset).await, Ok(()));
        drop(zones);
        let zones = Zones::open(nand.power_on()).await.expect("opened again");
        let states: Vec<ZoneState> =
            zones.zones(Lba(0), 4).await.expect("told").iter().map(|zone| zone.state).collect();
        assert_eq!(states, [ZoneState::Closed, ZoneState::Full, ZoneState::Empty, ZoneState::Empty]);
        assert_eq!(zones.append(at(0), filled(1, block, 9), Durability::Stable).await, Ok(Lba(3)));
        let (read, found) = zones.read(at(0), Buf::with_len(5 * block)).await;
        let expected = [filled(3, block, 1).to_vec(), filled(1, block, 9).to_vec(), vec![0; block]].concat();
        assert_eq!((read, found[..] == expected[..]), (Ok(()), true));
    });
}

/// Chunks that are bad are zones that are given up; the others are as good as ever.
#[test]
fn bad_chunks_are_zones_that_are_offline() {
    let config = config(6, |small| Geometry { chunks: 2, sectors: 12, write_unit: 1, oob_bytes: 0, ..small });
    simulated(6, async move {
        let nand = Nand::in_memory(config).expect("a geometry that works");
        let device = nand.power_on();
        let geometry = device.geometry();
        device.set_bad(geometry.chunk(1, 0)).await.expect("it was good");
        let zones = Zones::open(device).await.expect("opened");
        let size = zones.zoned().expect("zoned").zone_blocks;
        let block = zones.info().block_size as usize;
        let states = zones.zones(Lba(0), 3).await.expect("told").into_iter().map(|zone| zone.state);
        assert_eq!(states.collect::<Vec<_>>(), [ZoneState::Empty, ZoneState::Offline, ZoneState::Empty]);
        let offline = Err(Error::Zone(ZoneError::Offline));
        let (read, _) = zones.read(Lba(size - 1), Buf::with_len(2 * block)).await;
        assert_eq!(read, offline, "also of a part");
        assert_eq!(zones.append(Lba(size), filled(1, block, 1), Durability::Stable).await.map(|_| ()), offline);
        for (lba, blocks) in [(size, 1), (size - 1, 2), (2 * size - 1, 1), (0, 3 * size)] {
            assert_eq!(zones.deallocate(Lba(lba), blocks).await, offline, "{lba} {blocks}");
        }
        for (lba, blocks) in [(0, size), (2 * size, 1), (size, 0)] {
            assert_eq!(zones.deallocate(Lba(lba), blocks).await, Ok(()), "{lba} {blocks}");
        }
        let reset = zones.change_zone(Some(Lba(size)), ZoneAction::Reset).await;
        assert_eq!(reset, Err(Error::Zone(ZoneError::InvalidTransition)));
        assert_eq!(zones.change_zone(None, ZoneAction::Reset).await, Ok(()), "it is left out");
    });
}

#[test]
fn a_zone_fails_as_its_chunk_does() {
    let config = config(7, |small| Geometry { chunks: 2, sectors: 12, write_unit: 1, oob_bytes: 0, ..small });
    simulated(7, async move {
        let nand = Nand::in_memory(config).expect("a geometry that works");
        let device = nand.power_on();
        let geometry = device.geometry();
        let zones = Zones::open(device).await.expect("opened");
        let size = zones.zoned().expect("zoned").zone_blocks;
        let block = zones.info().block_size as usize;
        let append =
            async |zone: u64, byte| zones.append(Lba(zone * size), filled(1, block, byte), Durability::Stable).await;
        for zone in 0..2 {
            assert_eq!(append(zone, 5).await, Ok(Lba(zone * size)));
        }
        nand.arm(Fault::Program(geometry.chunk(0, 0)));
        nand.arm(Fault::Erase(geometry.chunk(1, 0)));
        let (failed, reset) = (append(0, 6).await, zones.change_zone(Some(Lba(size)), ZoneAction::Reset).await);
        assert!(
            matches!(failed, Err(Error::WriteFault(_))) && matches!(reset, Err(Error::WriteFault(_))),
            "{failed:?} {reset:?}"
        );
        let states = async |zones: &Zones| {
            let told = zones.zones(Lba(0), 3).await.expect("told");
            told.into_iter().map(|zone| zone.state).collect::<Vec<_>>()
        };
        let expected = [ZoneState::ReadOnly, ZoneState::Offline, ZoneState::Empty];
        assert_eq!(states(&zones).await, expected);
        assert_eq!(append(0, 7).await, Err(Error::Zone(ZoneError::ReadOnly)));
        let (read, found) = zones.read(Lba(0), Buf::with_len(block)).await;
        assert_eq!((read, found[..] == filled(1, block, 5)[..]), (Ok(()), true), "what was there before");
        drop(zones);
        let zones = Zones::open(nand.power_on()).await.expect("opened again");
        assert_eq!(states(&zones).await, expected);
        assert_eq!(zones.change_zone(None, ZoneAction::Offline).await, Ok(()), "it is given up");
        assert_eq!(states(&zones).await, [ZoneState::Offline, ZoneState::Offline, ZoneState::Empty]);
    });
}

/// A write unit that no block can have is refused by name, and the device is anybody's again.
#[test]
fn units_that_are_no_blocks_are_refused() {
    for write_unit in [3, 24, 32] {
        let config = config(5, |small| Geometry { sectors: write_unit * 2, write_unit, ..small });
        simulated(5, async move {
            let device = Nand::in_memory(config).expect("a geometry that works").power_on();
            let refused = Zones::open(device).await.err().expect("refused");
            assert_eq!(refused, GeometryError::Block { write_unit }.into());
        });
    }
}
