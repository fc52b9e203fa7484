//! The rules of a device, by the model.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Memory, Namespace, NamespaceInfo};
use engine::{Buf, View, time};
use flash::nand::{Fault, Nand, NandConfig, NandError, Powered};
use flash::presets::Preset;
use flash::{Chunk, ChunkState, FlashDevice, FlashError, Geometry, SECTOR_BYTES, Sector};

use crate::crash::simulated;

const UNIT: u32 = 4;

fn small() -> NandConfig {
    Preset::Small.config(1)
}

fn unit(byte: u8) -> (View, View) {
    let mut data = Buf::with_len(UNIT as usize * SECTOR_BYTES);
    data.fill(byte);
    let mut oob = Buf::with_len(UNIT as usize * 32);
    oob.fill(!byte);
    (data.freeze(), oob.freeze())
}

async fn write(device: &Powered, sector: u32, byte: u8) -> Result<(), FlashError> {
    let (data, oob) = unit(byte);
    device.write(Sector(sector), data, oob).await
}

async fn read(device: &Powered, sector: u32) -> Result<(u8, u8), FlashError> {
    let (result, data, oob) = device.read(Sector(sector), Buf::with_len(SECTOR_BYTES), Buf::with_len(32)).await;
    result.map(|()| (data[SECTOR_BYTES - 1], oob[15]))
}

async fn state(device: &Powered, chunk: u32) -> (ChunkState, u32, u32) {
    let report = device.report().await.expect("there is power")[chunk as usize];
    (report.state, report.write_pointer, report.wear)
}

async fn rules(device: &Powered, sectors: u32, end: u32) {
    assert_eq!(read(device, 0).await, Err(FlashError::NotWritten(Sector(0))));
    assert_eq!(write(device, UNIT, 1).await, Err(FlashError::OutOfOrder { chunk: Chunk(0), expected: 0, given: UNIT }));
    assert!(matches!(write(device, 1, 1).await, Err(FlashError::Length { .. })), "not at a write unit");
    assert!(matches!(write(device, end, 1).await, Err(FlashError::OutOfRange { .. })));
    assert!(matches!(device.reset(Chunk(end)).await, Err(FlashError::OutOfRange { .. })));
    let (data, _) = unit(1);
    let no_oob = device.write(Sector(0), data, View::default()).await;
    assert!(matches!(no_oob, Err(FlashError::Oob { given: 0, .. })), "{no_oob:?}");
    for (byte, sector) in (1..).zip((0..sectors).step_by(UNIT as usize)) {
        assert_eq!(write(device, sector, byte).await, Ok(()));
        let expected = if sector + UNIT == sectors { ChunkState::Closed } else { ChunkState::Open };
        assert_eq!(state(device, 0).await, (expected, sector + UNIT, 0));
    }
    assert_eq!(read(device, UNIT + 1).await, Ok((2, !2)));
    assert!(matches!(write(device, 0, 9).await, Err(FlashError::State { state: ChunkState::Closed, .. })));
    assert_eq!(device.reset(Chunk(0)).await, Ok(()));
    assert_eq!(state(device, 0).await, (ChunkState::Free, 0, 1));
    assert_eq!(read(device, 0).await, Err(FlashError::NotWritten(Sector(0))));
    assert_eq!(write(device, sectors, 5).await, Ok(()));
    assert_eq!((device.finish(Chunk(1)).await, state(device, 1).await), (Ok(()), (ChunkState::Closed, UNIT, 0)));
    assert_eq!((device.set_bad(Chunk(2)).await, state(device, 2).await.0), (Ok(()), ChunkState::Offline));
    assert!(matches!(device.reset(Chunk(2)).await, Err(FlashError::State { state: ChunkState::Offline, .. })));
}

#[test]
fn chunks_are_written_in_order_and_reset_as_a_whole() {
    simulated(1, async {
        let nand = Nand::in_memory(small()).expect("it works");
        let geometry = small().geometry;
        rules(&nand.power_on(), geometry.sectors, geometry.sectors_total()).await;
    });
}

#[test]
fn a_model_on_a_namespace_is_the_same_when_it_is_opened_again() {
    simulated(1, async {
        let geometry = small().geometry;
        let bytes = Nand::bytes_on_namespace(geometry);
        let medium = AnyNamespace::from(Memory::new(bytes, 512, [1; 16]).expect("it fits"));
        assert!(matches!(Nand::open(medium.clone(), small()).await, Err(NandError::NoDevice)));
        let nand = Nand::create(medium.clone(), small()).await.expect("laid out");
        let device = nand.power_on();
        rules(&device, geometry.sectors, geometry.sectors_total()).await;
        let (serial, before) = (device.serial(), device.report().await);
        drop((device, nand));
        let nand =
            Nand::open(medium.clone(), NandConfig { geometry: Geometry { chunks: 5, ..geometry }, ..small() }).await;
        let nand = nand.expect("it is there");
        let device = nand.power_on();
        assert_eq!((device.serial(), device.geometry(), device.report().await), (serial, geometry, before));
        assert_eq!(read(&device, geometry.sectors + 1).await, Ok((5, !5)));
        let tight = AnyNamespace::from(Memory::new(bytes - 512, 512, [1; 16]).expect("it fits"));
        assert!(matches!(Nand::create(tight, small()).await, Err(NandError::Medium(_))));
    });
}

#[test]
fn no_more_chunks_are_open_than_may_be() {
    simulated(1, async {
        let geometry = Geometry { open_max: 2, ..small().geometry };
        let device = Nand::in_memory(NandConfig { geometry, ..small() }).expect("it works").power_on();
        let first = |chunk: u32| chunk * geometry.sectors;
        assert_eq!((write(&device, first(0), 1).await, write(&device, first(1), 1).await), (Ok(()), Ok(())));
        let third = FlashError::OpenLimit { chunk: Chunk(2), open_max: 2 };
        assert_eq!(write(&device, first(2), 1).await, Err(third));
        assert_eq!(device.finish(Chunk(0)).await, Ok(()));
        assert_eq!(write(&device, first(2), 1).await, Ok(()));
    });
}

#[test]
fn what_fails_is_as_the_rules_say() {
    simulated(1, async {
        let nand = Nand::in_memory(NandConfig { endurance: 2, ..small() }).expect("it works");
        let device = nand.power_on();
        assert_eq!((device.claim(), device.claim()), (Ok(()), Err(FlashError::InUse)));
        assert_eq!(write(&device, 0, 1).await, Ok(()));
        nand.arm(Fault::Program(Chunk(0)));
        assert_eq!(write(&device, UNIT, 2).await, Err(FlashError::ProgramFailed(Chunk(0))));
        assert_eq!((state(&device, 0).await.0, read(&device, 1).await), (ChunkState::ReadOnly, Ok((1, !1))));
        assert!(matches!(write(&device, 2 * UNIT, 3).await, Err(FlashError::State { .. })));
        let sectors = small().geometry.sectors;
        assert_eq!(write(&device, sectors, 1).await, Ok(()));
        nand.arm(Fault::Read(Sector(sectors + 2)));
        assert_eq!(
            (read(&device, sectors + 1).await, read(&device, sectors + 2).await),
            (Ok((1, !1)), Err(FlashError::ReadFailed(Sector(sectors + 2))))
        );
        assert_eq!((device.reset(Chunk(1)).await, device.reset(Chunk(1)).await), (Ok(()), Ok(())));
        assert_eq!(device.reset(Chunk(1)).await, Err(FlashError::EraseFailed(Chunk(1))), "worn out");
        assert_eq!(state(&device, 1).await.0, ChunkState::Offline);
        nand.cut_at(Some(2));
        assert_eq!(write(&device, 2 * sectors, 1).await, Ok(()));
        assert_eq!(write(&device, 2 * sectors + UNIT, 1).await, Err(FlashError::PowerLost));
        assert_eq!(read(&device, 2 * sectors).await, Err(FlashError::PowerLost), "until power comes");
        let again = nand.power_on();
        assert_eq!(
            (read(&device, 2 * sectors).await, read(&again, 2 * sectors).await),
            (Err(FlashError::PowerLost), Ok((1, !1)))
        );
    });
}

/// Two programs on one bus: the second is transferred while the first is in the array.
#[test]
fn time_passes_as_the_parts_of_the_device_allow() {
    let config = Preset::Olive.config(1);
    simulated(1, async move {
        let timing = config.timing.clone();
        let geometry = Geometry { groups: 1, units_per_group: 2, oob_bytes: 32, ..config.geometry };
        let nand = Nand::in_memory(NandConfig { geometry, ..config }).expect("it works");
        let device = Rc::new(nand.power_on());
        let began = time::now();
        let other = device.clone();
        let second = geometry.chunks * geometry.sectors;
        let task = engine::task::spawn(async move { write(&other, second, 2).await });
        assert_eq!((write(&device, 0, 1).await, task.await), (Ok(()), Ok(())));
        let bytes = (UNIT as usize * (SECTOR_BYTES + 32)) as u64;
        let bus = Duration::from_nanos(bytes * 1_000_000_000 / timing.bus_bytes_per_second);
        let took = began.elapsed();
        let (least, most) = (bus * 2 + timing.program, bus * 2 + timing.program + Duration::from_micros(100));
        assert!((least..most).contains(&took), "{took:?} is not within {least:?} and {most:?}");
    });
}

/// A namespace with a cache that a loss of power empties.
struct Cached {
    medium: Memory,
    cache: Arc<Mutex<BTreeMap<u64, Vec<u8>>>>,
}

impl Cached {
    fn block(&self) -> usize {
        self.medium.info().block_size as usize
    }
}

impl Namespace for Cached {
    device::namespace_without!(
        verify,
        write_uncorrectable,
        hint_lifetime,
        writability,
        used_blocks,
        link,
        attributes,
        zones
    );

    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { volatile_cache: true, ..self.medium.info() }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let (result, mut buf) = self.medium.read(lba, buf).await;
        for (lba, part) in (lba.0..).zip(buf.chunks_exact_mut(self.block())) {
            if let Some(bytes) = self.cache.lock().expect("no test panics in it").get(&lba) {
                part.copy_from_slice(bytes);
            }
        }
        (result, buf)
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        for (lba, part) in (lba.0..).zip(data.chunks_exact(self.block())) {
            match durability {
                Durability::Cached => {
                    self.cache.lock().expect("no test panics in it").insert(lba, part.to_vec());
                }
                Durability::Stable => {
                    self.cache.lock().expect("no test panics in it").remove(&lba);
                    self.medium.write(Lba(lba), Buf::copy_from(part).freeze(), durability).await?;
                }
            }
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), Error> {
        let cached = std::mem::take(&mut *self.cache.lock().expect("no test panics in it"));
        for (lba, bytes) in cached {
            self.medium.write(Lba(lba), Buf::copy_from(&bytes).freeze(), Durability::Stable).await?;
        }
        Ok(())
    }

    async fn compare(&self, _lba: Lba, _expected: View) -> Result<(), Error> {
        Err(Error::Unsupported("Compare"))
    }

    async fn compare_and_write(&self, _lba: Lba, _old: View, _new: View, _: Durability) -> Result<(), Error> {
        Err(Error::Unsupported("Compare and Write"))
    }

    async fn write_zeroes(&self, _lba: Lba, _blocks: u64, _: Durability) -> Result<(), Error> {
        Err(Error::Unsupported("Write Zeroes"))
    }

    async fn deallocate(&self, _lba: Lba, _blocks: u64) -> Result<(), Error> {
        Err(Error::Unsupported("Deallocate"))
    }
}

/// The promise of a device: a write that has ended is stable, and so is a reset.
#[test]
fn a_model_on_a_namespace_keeps_what_it_has_acknowledged_when_the_namespace_loses_its_cache() {
    simulated(1, async {
        let geometry = small().geometry;
        let medium = Memory::new(Nand::bytes_on_namespace(geometry), 512, [1; 16]).expect("it fits");
        let cache = Arc::new(Mutex::new(BTreeMap::new()));
        let namespace = AnyNamespace::other(Cached { medium, cache: cache.clone() });
        let device = Nand::create(namespace.clone(), small()).await.expect("laid out").power_on();
        assert_eq!((write(&device, 0, 1).await, write(&device, UNIT, 2).await), (Ok(()), Ok(())));
        assert_eq!(write(&device, geometry.sectors, 3).await, Ok(()));
        assert_eq!(device.reset(Chunk(1)).await, Ok(()));
        assert_eq!((write(&device, 2 * geometry.sectors, 4).await, device.finish(Chunk(2)).await), (Ok(()), Ok(())));
        let before = device.report().await;
        drop(device);
        cache.lock().expect("no test panics in it").clear();
        let device = Nand::open(namespace, small()).await.expect("it is there").power_on();
        assert_eq!(device.report().await, before);
        assert_eq!((read(&device, 0).await, read(&device, UNIT + 1).await), (Ok((1, !1)), Ok((2, !2))));
        assert_eq!(read(&device, 2 * geometry.sectors).await, Ok((4, !4)));
    });
}
