//! The chunks of a flash device as zones, through the checks of every kind of zoned namespace, and over a loss of power.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Memory, Namespace, ZoneAction, ZoneError, ZoneState};
use engine::{Buf, View, task};
use flash::nand::{Fault, Nand, NandConfig, Timing};
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

/// One whose commands take their time.
fn slow(seed: u64) -> NandConfig {
    let config = config(seed, |small| Geometry { chunks: 2, sectors: 12, write_unit: 1, oob_bytes: 0, ..small });
    let (program, erase) = (Duration::from_micros(40), Duration::from_micros(100));
    NandConfig { timing: Timing { program, erase, ..Timing::default() }, ..config }
}

/// Begins a command that nobody then waits for.
async fn given_up<T>(command: impl Future<Output = T>) {
    let mut command = pin!(command);
    let is_under_way = poll_fn(|cx| Poll::Ready(command.as_mut().poll(cx).is_pending())).await;
    assert!(is_under_way, "it takes time");
}

/// A connection that ended while its host wrote left a write pointer that was not the device's: every later write in the zone
/// failed, and a reset was acknowledged that had reset nothing.
#[test]
fn a_command_that_is_given_up_leaves_its_zone_usable() {
    simulated(8, async {
        let nand = Nand::in_memory(slow(8)).expect("a geometry that works");
        let zones = Zones::open(nand.power_on()).await.expect("opened");
        let size = zones.zoned().expect("zoned").zone_blocks;
        let block = zones.info().block_size as usize;
        let at = |zone: u64| Lba(zone * size);
        let data = |blocks: usize, byte: u8| filled(blocks, block, byte);
        let append = async |zone: u64, byte| zones.append(at(zone), data(1, byte), Durability::Stable).await;
        given_up(zones.write(at(0), data(1, 1), Durability::Stable)).await;
        assert_eq!(append(0, 2).await, Ok(Lba(1)), "behind the write that was given up");
        given_up(append(1, 3)).await;
        assert_eq!(zones.change_zone(Some(at(1)), ZoneAction::Reset).await, Ok(()));
        given_up(zones.write_zeroes(at(2), 2, Durability::Stable)).await;
        assert_eq!(append(2, 4).await, Ok(Lba(at(2).0 + 2)));
        assert_eq!(zones.append(at(3), data(12, 5), Durability::Stable).await, Ok(at(3)));
        given_up(zones.change_zone(Some(at(3)), ZoneAction::Reset)).await;
        assert_eq!(append(3, 6).await, Ok(at(3)));
        drop(zones);
        let zones = Zones::open(nand.power_on()).await.expect("opened again");
        let states = zones.zones(Lba(0), 4).await.expect("told").into_iter().map(|zone| zone.state);
        let expected = [ZoneState::Closed, ZoneState::Empty, ZoneState::Closed, ZoneState::Closed];
        assert_eq!(states.collect::<Vec<_>>(), expected, "what was reset stays so");
        let (read, found) = zones.read(at(0), Buf::with_len(2 * block)).await;
        assert_eq!((read, found[..] == [&data(1, 1)[..], &data(1, 2)[..]].concat()), (Ok(()), true));
    });
}

/// A zone that was full when it came to its turn was refused a close, and those behind it were left open.
#[test]
fn all_zones_means_those_it_concerns_when_it_comes_to_them() {
    simulated(9, async {
        let nand = Nand::in_memory(slow(9)).expect("a geometry that works");
        let zones = Rc::new(Zones::open(nand.power_on()).await.expect("opened"));
        let size = zones.zoned().expect("zoned").zone_blocks;
        let block = zones.info().block_size as usize;
        for (zone, blocks) in [(0, 11), (1, 1)] {
            let start = Lba(zone * size);
            assert_eq!(zones.append(start, filled(blocks, block, 1), Durability::Stable).await, Ok(start));
        }
        let filling = zones.clone();
        let last = filled(1, block, 2);
        let filling = task::spawn(async move { filling.append(Lba(0), last, Durability::Stable).await });
        task::yield_now().await;
        assert_eq!(zones.change_zone(None, ZoneAction::Close).await, Ok(()));
        assert_eq!(filling.await, Ok(Lba(11)));
        let states = zones.zones(Lba(0), 2).await.expect("told").into_iter().map(|zone| zone.state);
        assert_eq!(states.collect::<Vec<_>>(), [ZoneState::Full, ZoneState::Closed]);
    });
}

/// A medium that may have no room.
struct Tight {
    memory: Memory,
    is_full: Arc<AtomicBool>,
}

impl Namespace for Tight {
    device::delegate_namespace!(this => { _ => this.memory }; info, read, flush, compare, compare_and_write, write_zeroes,
        deallocate, verify, write_uncorrectable, hint_lifetime, writability, used_blocks, link, attribute, set_attribute, zones);

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Err(Error::OutOfSpace),
            false => self.memory.write(lba, data, durability).await,
        }
    }
}

/// What a full file system had refused the device took for written: nothing could be written in that zone any more.
#[test]
fn a_zone_goes_on_when_there_is_room_again() {
    let config = config(10, |small| Geometry { chunks: 2, sectors: 12, write_unit: 1, oob_bytes: 0, ..small });
    simulated(10, async move {
        let is_full = Arc::new(AtomicBool::new(false));
        let memory = Memory::new(Nand::bytes_on_namespace(config.geometry), 4096, [1; 16]).expect("it fits");
        let medium = AnyNamespace::other(Tight { memory, is_full: is_full.clone() });
        let nand = Nand::create(medium, config).await.expect("laid out");
        let zones = Zones::open(nand.power_on()).await.expect("opened");
        let size = zones.zoned().expect("zoned").zone_blocks;
        let block = zones.info().block_size as usize;
        let append =
            async |zone: u64, byte| zones.append(Lba(zone * size), filled(1, block, byte), Durability::Stable).await;
        assert_eq!(append(0, 1).await, Ok(Lba(0)));
        is_full.store(true, Ordering::Relaxed);
        for zone in 0..2 {
            assert_eq!(append(zone, 9).await, Err(Error::OutOfSpace));
            let finished = zones.change_zone(Some(Lba(zone * size)), ZoneAction::Finish).await;
            assert_eq!(finished, Err(Error::OutOfSpace));
        }
        let states = zones.zones(Lba(0), 2).await.expect("told").into_iter().map(|zone| zone.state);
        assert_eq!(states.collect::<Vec<_>>(), [ZoneState::ImplicitlyOpen, ZoneState::Empty]);
        is_full.store(false, Ordering::Relaxed);
        assert_eq!((append(0, 2).await, append(1, 3).await), (Ok(Lba(1)), Ok(Lba(size))));
        let (read, found) = zones.read(Lba(0), Buf::with_len(2 * block)).await;
        assert_eq!((read, found[..] == [&filled(1, block, 1)[..], &filled(1, block, 2)].concat()), (Ok(()), true));
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
