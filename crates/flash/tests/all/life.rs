//! Longer lives: wear, chunks that go bad, sectors that can't be read, and devices that are not what they should be.

use std::rc::Rc;

use device::{Durability, Error, Lba, Namespace, Writability};
use engine::rng::SplitMix;
use engine::{Buf, View};
use flash::nand::{Fault, Nand, NandConfig};
use flash::presets::Preset;
use flash::{
    FlashDevice, FlashError, FormatOptions, Geometry, Manager, ManagerError, ManagerOptions, SECTOR_BYTES, Sector,
};

use crate::begun::{formatted, opened_by};
use crate::crash::simulated;
use crate::model::Model;

fn sector(byte: u8) -> View {
    let mut buf = Buf::with_len(SECTOR_BYTES);
    buf.fill(byte);
    buf.freeze()
}

/// Every sector is written over and over, half of them rarely.
#[test]
fn wear_is_level_and_counts_are_right() {
    let options = ManagerOptions { wear_spread: 10, ..ManagerOptions::default() };
    simulated(3, async move {
        let nand = formatted(Preset::Small.config(3)).await;
        let namespace = opened_by(&nand, options).await;
        let (blocks, mut rng) = (namespace.info().blocks, SplitMix(3));
        for lba in 0..blocks {
            namespace.write(Lba(lba), sector(lba as u8), Durability::Cached).await.expect("written");
        }
        for _ in 0..60 * blocks {
            let lba = rng.below(blocks / 4);
            namespace.write(Lba(lba), sector(lba as u8), Durability::Cached).await.expect("written");
        }
        namespace.flush().await.expect("flushed");
        let figures = namespace.manager().figures();
        assert_eq!(figures.host_sectors, 61 * blocks);
        assert!(figures.write_amplification() > 1.0 && figures.write_amplification() < 4.0, "{figures:?}");
        let [least, most] = figures.wear;
        assert!(most > 20 && most - least <= 3 * options.wear_spread, "{figures:?}");
        assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new());
        for lba in 0..blocks {
            let (result, buf) = namespace.read(Lba(lba), Buf::with_len(SECTOR_BYTES)).await;
            assert_eq!((result, buf[7]), (Ok(()), lba as u8));
        }
    });
}

#[test]
fn past_its_endurance_a_device_is_read_only_and_still_read() {
    simulated(4, async move {
        let nand = formatted(NandConfig { endurance: 6, ..Preset::Small.config(4) }).await;
        let namespace = opened_by(&nand, ManagerOptions::default()).await;
        let (blocks, mut rng) = (namespace.info().blocks, SplitMix(4));
        let mut model = Model::default();
        let error = loop {
            let lba = rng.below(blocks);
            let data = model.write(lba, 1);
            match namespace.write(Lba(lba), data, Durability::Stable).await {
                Ok(()) => model.stable(lba, 1),
                Err(error) => break error,
            }
        };
        // What was under way when the last chunk for roots was worn out was not written.
        assert!(matches!(error, Error::ReadOnly(_) | Error::WriteFault(_)), "{error}");
        assert_eq!(namespace.writability(), Writability::Failed);
        assert!(matches!(namespace.deallocate(Lba(0), 1).await, Err(Error::ReadOnly(_))));
        model.verify(&namespace, "worn out").await;
        drop(namespace);
        let namespace = opened_by(&nand, ManagerOptions::default()).await;
        model.verify(&namespace, "worn out, and opened again").await;
        assert!(matches!(namespace.write(Lba(0), sector(1), Durability::Cached).await, Err(Error::ReadOnly(_))));
    });
}

#[test]
fn a_sector_that_is_lost_is_told_and_nothing_else_is() {
    for oob_bytes in [0, 16] {
        simulated(5, async move {
            let mut config = Preset::Small.config(5);
            config.geometry = Geometry { oob_bytes, ..config.geometry };
            let nand = formatted(config).await;
            let namespace = opened_by(&nand, ManagerOptions::default()).await;
            let blocks = namespace.info().blocks;
            for lba in 0..blocks {
                namespace.write(Lba(lba), sector(1), Durability::Cached).await.expect("written");
            }
            namespace.flush().await.expect("flushed");
            let lost = namespace.manager().place_of(77).expect("it is on flash");
            nand.arm(Fault::Read(lost));
            let is_lost = async |lba: u64| {
                let (result, _) = namespace.read(Lba(lba), Buf::with_len(SECTOR_BYTES)).await;
                matches!(result, Err(Error::ReadFault(_)))
            };
            // Until its line was emptied, and after.
            let mut rng = SplitMix(5);
            for _ in 0..6 * blocks {
                let lba = (78 + rng.below(blocks - 78)).min(blocks - 1);
                namespace.write(Lba(lba), sector(2), Durability::Cached).await.expect("written");
            }
            for lba in 0..blocks {
                assert_eq!(is_lost(lba).await, lba == 77, "sector {lba}, oob {oob_bytes}");
            }
            namespace.write(Lba(77), sector(3), Durability::Stable).await.expect("written");
            assert!(!is_lost(77).await, "what is written again can be read");
        });
    }
}

/// A device that is opened with a root of another one, and one with room for none.
#[test]
fn devices_that_can_not_be_used_are_refused_by_name() {
    simulated(6, async {
        let open = async |nand: &Rc<Nand>| Manager::open(nand.power_on(), ManagerOptions::default()).await.map(drop);
        let blank = Nand::in_memory(Preset::Small.config(6)).expect("it works");
        assert_eq!(open(&blank).await, Err(ManagerError::NotFormatted));
        let config = Preset::Small.config(6);
        let format = async |geometry: Geometry, options: FormatOptions| {
            let nand = Nand::in_memory(NandConfig { geometry, ..Preset::Small.config(6) }).expect("it works");
            Manager::format(nand.power_on(), &options).await
        };
        let few = format(Geometry { chunks: 6, ..config.geometry }, FormatOptions::default()).await;
        assert!(matches!(few, Err(ManagerError::TooSmall { .. })), "{few:?}");
        let large = FormatOptions { capacity: Some(1 << 20), ..FormatOptions::default() };
        assert!(matches!(format(config.geometry, large).await, Err(ManagerError::TooSmall { .. })));
        let limited = format(Geometry { open_max: 4, ..config.geometry }, FormatOptions::default()).await;
        assert_eq!(limited, Err(ManagerError::OpenLimit { open_max: 4, needed: 20 }));
        let narrow = Geometry { oob_bytes: 0, write_unit: 1, sectors: 1, ..config.geometry };
        assert_eq!(format(narrow, FormatOptions::default()).await, Err(ManagerError::NoTags));
        let nand = formatted(config).await;
        let device = nand.power_on();
        let first = Manager::open(device.clone(), ManagerOptions::default()).await.expect("opened");
        let second = Manager::open(device.clone(), ManagerOptions::default()).await.map(drop);
        assert_eq!(second, Err(ManagerError::Device(FlashError::InUse)));
        assert_eq!(first.close().await, Ok(()));
        Manager::open(device.clone(), ManagerOptions::default()).await.map(drop).expect("given up by the first");
        assert_eq!(device.geometry(), nand.config().geometry);
    });
}

#[test]
fn hot_and_cold_content_lie_apart() {
    simulated(7, async {
        let nand = formatted(Preset::Small.config(7)).await;
        let namespace = opened_by(&nand, ManagerOptions::default()).await;
        for lba in 0..64 {
            let lifetime = if lba % 2 == 0 { engine::file::Lifetime::Short } else { engine::file::Lifetime::Long };
            assert!(namespace.hint_lifetime(lifetime).await);
            namespace.write(Lba(lba), sector(1), Durability::Cached).await.expect("written");
        }
        namespace.flush().await.expect("flushed");
        let geometry = nand.config().geometry;
        let line = |lba: u32| {
            let Sector(sector) = namespace.manager().place_of(lba).expect("it is on flash");
            geometry.number_of(geometry.locate(Sector(sector)).0)
        };
        assert!(
            (0..64).step_by(2).all(|lba| line(lba) == line(0)) && (1..64).step_by(2).all(|lba| line(lba) == line(1))
        );
        assert_ne!(line(0), line(1));
    });
}
