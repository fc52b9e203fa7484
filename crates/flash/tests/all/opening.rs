//! Opening: which root is in force, whatever lies beside the roots and whatever can't be read.

use std::cell::RefCell;
use std::rc::Rc;

use device::{Durability, Error, Lba, Namespace, sealed};
use engine::file::Lifetime;
use engine::rng::SplitMix;
use engine::{Buf, View, task};
use flash::nand::{Fault, Nand};
use flash::presets::Preset;
use flash::{Chunk, FlashDevice, FormatOptions, Geometry, Manager, ManagerError, SECTOR_BYTES, Sector};

use crate::begun::{formatted, opened, small};
use crate::crash::simulated;
use crate::model::{Model, durability};

const ROOT_MAGIC: [u8; 8] = *b"YAGURA-R";

/// The sectors that roots begin with, and the number of each.
pub async fn roots(nand: &Nand) -> Vec<(u64, Sector)> {
    let geometry = nand.config().geometry;
    let mut found = Vec::new();
    for unit in 0..geometry.units() {
        for sector in (0..2).flat_map(|number| {
            let chunk = geometry.chunk(unit, number);
            (0..geometry.sectors).map(move |offset| geometry.sector(chunk, offset))
        }) {
            if let Some((data, _)) = nand.peek(sector).await
                && data[..8] == ROOT_MAGIC
            {
                found.push((u64::from_le_bytes(*data[24..].first_chunk().expect("a sector has more")), sector));
            }
        }
    }
    found.sort_unstable();
    found
}

/// Hosts write what a root looks like, newer than any, where roots are looked for.
#[test]
fn what_hosts_write_is_never_taken_for_a_root() {
    for oob_bytes in [0, 16] {
        simulated(11, async move {
            let nand = formatted(small(11, |geometry| geometry.oob_bytes = oob_bytes)).await;
            let (_, sector) = roots(&nand).await[0];
            let (mut forged, _) = nand.peek(sector).await.expect("it can be read");
            forged[24..32].copy_from_slice(&(1u64 << 40).to_le_bytes());
            let format = sealed::format(&forged);
            sealed::seal(&mut forged, ROOT_MAGIC, format);
            let forged: View = forged.freeze();
            let namespace = opened(&nand).await;
            let blocks = namespace.info().blocks;
            for _ in 0..2 {
                for lba in 0..blocks {
                    namespace.write(Lba(lba), forged.clone(), Durability::Cached).await.expect("written");
                }
                namespace.flush().await.expect("flushed");
            }
            assert!(roots(&nand).await.iter().any(|&(number, _)| number == 1 << 40), "it lies where roots are");
            drop(namespace);
            let namespace = opened(&nand).await;
            assert!(namespace.manager().figures().roots < 1 << 40);
            for lba in 0..blocks {
                let (result, buf) = namespace.read(Lba(lba), Buf::with_len(SECTOR_BYTES)).await;
                assert!(result.is_ok() && *buf == *forged, "sector {lba}: {result:?}");
            }
        });
    }
}

/// Lines alone make the root of this one longer than a buffer.
#[test]
fn a_device_whose_root_is_longer_than_a_buffer_is_opened() {
    simulated(12, async {
        let large = small(12, |geometry| {
            *geometry = Geometry {
                groups: 2,
                units_per_group: 1,
                chunks: 140_000,
                sectors: 512,
                write_unit: 256,
                oob_bytes: 16,
                open_max: 0,
            }
        });
        let nand = Nand::in_memory(large).expect("it works");
        let options = FormatOptions { capacity: Some(4096), ..FormatOptions::default() };
        Manager::format(nand.power_on(), &options).await.expect("formatted");
        let namespace = opened(&nand).await;
        let mut model = Model::default();
        namespace.write(Lba(7), model.write(7, 20), durability(true)).await.expect("written");
        model.stable(7, 20);
        drop(namespace);
        model.verify(&opened(&nand).await, "opened again").await;
    });
}

/// A read that fails once puts no older root in force; and the number of a root that a crash may have torn is not given again.
#[test]
fn the_newest_root_is_in_force_though_a_read_fails_once() {
    for oob_bytes in [0, 16] {
        simulated(13, async move {
            let nand = formatted(small(13, |geometry| geometry.oob_bytes = oob_bytes)).await;
            let namespace = opened(&nand).await;
            // Until it is not in the chunk that is looked at first: that is read a second time, and the fault would be over.
            let newest = async || {
                let roots = roots(&nand).await;
                let (newest, _) = *roots.last().expect("there are roots");
                let chunk = |sector| nand.config().geometry.locate(sector).0;
                let first = roots.iter().map(|&(_, sector)| chunk(sector)).min();
                let places: Vec<Sector> =
                    roots.into_iter().filter(|&(number, _)| number == newest).map(|(_, sector)| sector).collect();
                (newest, places.iter().all(|place| Some(chunk(*place)) != first), places)
            };
            let (number, places) = loop {
                namespace.set_attribute("key", format!("{}", newest().await.0).as_bytes()).await.expect("set");
                let (number, is_elsewhere, places) = newest().await;
                if is_elsewhere {
                    break (number, places);
                }
                assert!(number < 1000);
            };
            drop(namespace);
            places.into_iter().for_each(|place| nand.arm(Fault::ReadOnce(place)));
            let namespace = opened(&nand).await;
            assert_eq!(namespace.attribute("key"), Ok(Some((number - 1).to_string().into_bytes())));
            assert_eq!(namespace.manager().figures().roots, number + 2, "the next one may have been torn");
        });
    }
}

#[test]
fn a_root_is_found_behind_one_that_can_not_be_read() {
    for oob_bytes in [0, 16] {
        simulated(14, async move {
            let nand = formatted(small(14, |geometry| {
                geometry.oob_bytes = oob_bytes;
                geometry.sectors = 64;
            }))
            .await;
            let namespace = opened(&nand).await;
            for value in ["older", "newest"] {
                namespace.set_attribute("key", value.as_bytes()).await.expect("set");
            }
            drop(namespace);
            let geometry = nand.config().geometry;
            let (newest, _) = *roots(&nand).await.last().expect("there are roots");
            for (_, sector) in roots(&nand).await.into_iter().filter(|&(number, _)| number == newest) {
                let (chunk, offset) = geometry.locate(sector);
                assert!(offset > 1, "another one lies before it");
                nand.arm(Fault::Read(geometry.sector(chunk, 0)));
            }
            let namespace = opened(&nand).await;
            assert_eq!(namespace.attribute("key"), Ok(Some(b"newest".to_vec())));
        });
    }
}

/// A chunk is offline when the device is opened, and had content.
#[test]
fn what_was_in_a_chunk_that_is_gone_is_told_and_life_goes_on() {
    simulated(15, async {
        let nand = formatted(Preset::Small.config(15)).await;
        let namespace = opened(&nand).await;
        let (blocks, mut rng) = (namespace.info().blocks, SplitMix(15));
        let mut model = Model::default();
        for lba in 0..blocks {
            namespace.write(Lba(lba), model.write(lba, 1), Durability::Cached).await.expect("written");
        }
        namespace.flush().await.expect("flushed");
        model.flushed();
        let geometry = nand.config().geometry;
        let chunk_of = |sector: Sector| geometry.locate(sector).0;
        let gone: Chunk = chunk_of(namespace.manager().place_of(99).expect("it is on flash"));
        let lost: Vec<u64> = (0..blocks)
            .filter(|&lba| namespace.manager().place_of(lba as u32).is_some_and(|sector| chunk_of(sector) == gone))
            .collect();
        namespace.into_manager().close().await.expect("closed");
        nand.power_on().set_bad(gone).await.expect("it is bad");
        for lba in lost {
            model.spoil(lba, 1);
            model.stable(lba, 1);
        }
        let namespace = opened(&nand).await;
        model.verify(&namespace, "a chunk is gone").await;
        assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new());
        for _ in 0..10 * blocks {
            let lba = rng.below(blocks);
            namespace.write(Lba(lba), model.write(lba, 1), Durability::Cached).await.expect("written");
        }
        namespace.flush().await.expect("flushed");
        model.flushed();
        drop(namespace);
        model.verify(&opened(&nand).await, "and it went on").await;
    });
}

/// All streams and both slots of roots are open at a time, again and again.
#[test]
fn a_device_with_just_the_open_chunks_that_are_needed_lives() {
    simulated(16, async {
        let limited = |open_max: u32| small(16, |geometry| geometry.open_max = open_max);
        let few = Nand::in_memory(limited(1)).expect("it works");
        let refused = Manager::format(few.power_on(), &FormatOptions::default()).await;
        let Err(ManagerError::OpenLimit { needed, .. }) = refused else { panic!("it was taken: {refused:?}") };
        let nand = formatted(limited(needed)).await;
        let mut rng = SplitMix(16);
        let mut model = Model::default();
        for round in 0..40 {
            let namespace = opened(&nand).await;
            model.verify(&namespace, &format!("round {round}")).await;
            let blocks = namespace.info().blocks;
            for step in 0..blocks {
                let lifetime = [Lifetime::Short, Lifetime::Long][rng.index(2)];
                namespace.hint_lifetime(lifetime).await;
                let lba = rng.below(blocks);
                let data = model.write(lba, 1);
                namespace.write(Lba(lba), data, Durability::Cached).await.expect("written");
                if step % 50 == 0 {
                    namespace.set_attribute("step", &step.to_le_bytes()).await.expect("set");
                }
            }
            namespace.flush().await.expect("flushed");
            model.flushed();
        }
    });
}

/// Each setter ends, and what was set last is there.
#[test]
fn attributes_that_are_set_at_the_same_time_are_all_acknowledged() {
    simulated(17, async {
        let nand = formatted(Preset::Small.config(17)).await;
        let namespace = Rc::new(opened(&nand).await);
        let order = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..3 {
            let set = |value: &'static [u8]| {
                let (namespace, order) = (namespace.clone(), order.clone());
                task::spawn(async move {
                    order.borrow_mut().push(value.to_vec());
                    namespace.set_attribute("key", value).await
                })
            };
            let setters: Vec<task::Task<Result<(), Error>>> = [b"1", b"2", b"1", b"3"].map(|value| set(value)).into();
            for setter in setters {
                assert_eq!(setter.await, Ok(()));
            }
            assert_eq!(namespace.attribute("key"), Ok(order.borrow().last().cloned()));
        }
        drop(namespace);
        assert_eq!(opened(&nand).await.attribute("key"), Ok(order.borrow().last().cloned()));
    });
}

/// The newest version of a sector went bad behind the root, power was lost, and the version before it came back without a word.
#[test]
fn what_goes_bad_behind_the_root_is_lost_and_not_older() {
    for oob_bytes in [0, 24] {
        for is_last in [false, true] {
            simulated(18, async move {
                let nand = formatted(small(18, |geometry| geometry.oob_bytes = oob_bytes)).await;
                let namespace = opened(&nand).await;
                let mut model = Model::default();
                namespace.write(Lba(0), model.write(0, 40), durability(true)).await.expect("written");
                namespace.set_attribute("key", b"a root behind it").await.expect("set");
                namespace.write(Lba(7), model.write(7, 2), durability(true)).await.expect("written");
                model.stable(0, 40);
                let newest = namespace.manager().place_of(8).expect("it is on flash");
                if !is_last {
                    namespace.write(Lba(20), model.write(20, 1), durability(true)).await.expect("written");
                    model.stable(20, 1);
                }
                nand.arm(Fault::Read(newest));
                drop(namespace);
                match is_last {
                    // As far as anybody can know it was being programmed when power was lost.
                    true => {
                        let older = opened(&nand).await.read(Lba(8), Buf::with_len(SECTOR_BYTES)).await;
                        assert_eq!(older.0, Ok(()));
                    }
                    false => {
                        model.spoil(8, 1);
                        model.stable(8, 1);
                        let namespace = opened(&nand).await;
                        model.verify(&namespace, "a sector is bad").await;
                        namespace.write(Lba(8), model.write(8, 1), durability(true)).await.expect("written");
                        model.stable(8, 1);
                        drop(namespace);
                        let namespace = opened(&nand).await;
                        model.verify(&namespace, "and was written again").await;
                        assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new());
                    }
                }
            });
        }
    }
}
