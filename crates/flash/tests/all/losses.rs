//! What is lost is told, whatever it is: pages of the map, tags, units, chunks for roots. And what an opening costs.

use device::{Durability, Error, Lba, Namespace};
use engine::Buf;
use engine::rng::SplitMix;
use flash::nand::{Fault, Nand};
use flash::presets::Preset;
use flash::{
    Chunk, ChunkState, FlashDevice, FlashNamespace, FormatOptions, Manager, ManagerError, ManagerOptions, SECTOR_BYTES,
    Sector,
};

use crate::begun::{formatted, opened, small};
use crate::crash::{self, Kind, PLAIN, simulated};
use crate::model::{Model, durability};
use crate::opening::roots;

async fn filled(namespace: &FlashNamespace, model: &mut Model) {
    for lba in 0..namespace.info().blocks {
        namespace.write(Lba(lba), model.write(lba, 1), Durability::Cached).await.expect("written");
    }
    namespace.flush().await.expect("flushed");
    model.flushed();
}

/// Pages of the map by the tags beside them: which page, its sequence, and where it is.
async fn pages(nand: &Nand) -> Vec<(u64, u64, Sector)> {
    let mut found = Vec::new();
    for sector in (0..nand.config().geometry.sectors_total()).map(Sector) {
        let Some((_, oob)) = nand.peek(sector).await else { continue };
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let logical = number(&oob[..5]);
        if logical >> 39 == 1 && logical < (1 << 40) - 3 {
            found.push((logical & !(1 << 39), number(&oob[5..12]), sector));
        }
    }
    found.sort_unstable();
    found
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// No version of the page can be read.
    Unreadable,
    /// The chunk that the newest one is in is offline.
    Offline,
}

/// A page of the map that could not be read made the device unopenable.
#[test]
fn a_page_of_the_map_that_can_not_be_read_loses_its_sectors_alone() {
    for loss in [Loss::Unreadable, Loss::Offline] {
        for is_closed in [false, true] {
            simulated(21, async move {
                let story = format!("{loss:?}, closed: {is_closed}");
                let nand = formatted(small(21, |geometry| geometry.chunks = 64)).await;
                let namespace = opened(&nand).await;
                assert!(namespace.info().blocks > 2048, "three pages");
                let mut model = Model::default();
                filled(&namespace, &mut model).await;
                namespace.set_attribute("key", b"a root behind it").await.expect("set");
                if is_closed {
                    namespace.into_manager().close().await.expect("closed");
                } else {
                    drop(namespace);
                }
                let geometry = nand.config().geometry;
                let all = pages(&nand).await;
                let newest = |page: u64| all.iter().rfind(|found| found.0 == page).expect("it is on flash").2;
                let gone = geometry.locate(newest(0)).0;
                let mut lost = vec![0];
                match loss {
                    Loss::Unreadable => all.iter().filter(|found| found.0 == 0).for_each(|&(_, _, sector)| {
                        nand.arm(Fault::Read(sector));
                    }),
                    Loss::Offline => {
                        nand.power_on().set_bad(gone).await.expect("it is bad");
                        lost = (0..3).filter(|&page| geometry.locate(newest(page)).0 == gone).collect();
                    }
                }
                for page in lost {
                    model.spoil(page * 1024, 1024);
                    model.stable(page * 1024, 1024);
                }
                let looked_at = FlashNamespace::new(Manager::look(nand.power_on()).await.expect("looked at"));
                model.verify(&looked_at, &story).await;
                drop(looked_at);
                // Power is lost before the new root is there, which finds the same again.
                nand.cut_at(Some(1));
                assert!(Manager::open(nand.power_on(), ManagerOptions::default()).await.is_err(), "{story}");
                let namespace = opened(&nand).await;
                model.verify(&namespace, &story).await;
                assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new(), "{story}");
                namespace.write(Lba(5), model.write(5, 2), durability(true)).await.expect("written");
                model.stable(5, 2);
                drop(namespace);
                model.verify(&opened(&nand).await, &format!("{story}, opened again")).await;
            });
        }
    }
}

/// What the log has behind the root is newer than the page that was lost.
#[test]
fn what_is_behind_the_root_is_not_lost_with_a_page() {
    simulated(22, async {
        let nand = formatted(Preset::Small.config(22)).await;
        let namespace = opened(&nand).await;
        let mut model = Model::default();
        filled(&namespace, &mut model).await;
        namespace.set_attribute("key", b"a root behind it").await.expect("set");
        for found in pages(&nand).await.into_iter().filter(|found| found.0 == 0) {
            nand.arm(Fault::Read(found.2));
        }
        model.spoil(0, 1024);
        model.stable(0, 1024);
        namespace.write(Lba(7), model.write(7, 3), durability(true)).await.expect("written");
        namespace.write_zeroes(Lba(90), 4, durability(true)).await.expect("written");
        model.deallocate(90, 4);
        model.flushed();
        drop(namespace);
        let namespace = opened(&nand).await;
        model.verify(&namespace, "a page is gone").await;
        assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new());
    });
}

/// Sectors that can be read: each is itself, in whatever version.
async fn count_own(namespace: &FlashNamespace, story: &str) -> u64 {
    let mut count = 0;
    for lba in 0..namespace.info().blocks {
        let (result, buf) = namespace.read(Lba(lba), Buf::with_len(SECTOR_BYTES)).await;
        match result {
            Ok(()) => {
                let found = u64::from_le_bytes(*buf[..8].first_chunk().expect("a sector has more"));
                assert_eq!(found, lba, "{story}");
                count += 1;
            }
            Err(Error::ReadFault(_)) => {}
            Err(error) => panic!("{story}: sector {lba}: {error}"),
        }
    }
    count
}

/// The sector that was asked for was moved or written anew, its old chunk reset, and the tags of its new place went bad: the map of
/// the root went on naming the old place, which others were written to.
#[test]
fn no_sector_becomes_another_one_when_tags_are_lost() {
    let kind = Kind { oob_bytes: 0, ..PLAIN };
    for seed in 0..6 {
        simulated(seed, async move {
            let nand = formatted(crash::config(kind, seed)).await;
            let options = ManagerOptions { lines_per_root: 1000, ..ManagerOptions::default() };
            let device = nand.power_on();
            let namespace = FlashNamespace::new(Manager::open(device.clone(), options).await.expect("opened"));
            let (mut model, mut rng, geometry) = (Model::default(), SplitMix(seed), nand.config().geometry);
            filled(&namespace, &mut model).await;
            // From now on zeroes are no older content of anything, but padding.
            namespace.set_attribute("key", b"a root behind it").await.expect("set");
            let blocks = namespace.info().blocks;
            let places =
                || -> Vec<Option<Sector>> { (0..blocks as u32).map(|lba| namespace.manager().place_of(lba)).collect() };
            let (mut at_root, mut roots) = (places(), namespace.manager().figures().roots);
            let mut gone: Vec<Sector> = Vec::new();
            for step in 0..40 * blocks {
                let lba = rng.below(blocks);
                namespace.write(Lba(lba), model.write(lba, 1), Durability::Cached).await.expect("written");
                if step % 16 == 0 {
                    namespace.flush().await.expect("flushed");
                    model.flushed();
                }
                if namespace.manager().figures().roots != roots {
                    (at_root, roots) = (places(), namespace.manager().figures().roots);
                    continue;
                }
                if step % 16 != 0 {
                    continue;
                }
                let reports = device.report().await.expect("told");
                let is_reset = |sector: &Sector| {
                    let (chunk, offset) = geometry.locate(*sector);
                    reports[chunk.0 as usize].write_pointer <= offset
                };
                let moved = at_root.iter().zip(places()).filter(|(was, _)| was.as_ref().is_some_and(is_reset));
                gone = moved.filter_map(|(_, now)| now).collect();
                if gone.len() > 3 {
                    break;
                }
            }
            assert!(gone.len() > 3, "seed {seed}: nothing was moved");
            drop(namespace);
            // Units of four sectors, the first of which has the tags.
            gone.iter().for_each(|&Sector(sector)| nand.arm(Fault::Read(Sector(sector / 4 * 4))));
            let namespace = opened(&nand).await;
            let mut can_be_read = 0;
            for round in 0..3 {
                let named: Vec<_> = namespace
                    .manager()
                    .check()
                    .await
                    .faults
                    .into_iter()
                    .filter(|why| why.contains("named for"))
                    .collect();
                assert_eq!(named, Vec::<String>::new(), "seed {seed}, round {round}");
                can_be_read += count_own(&namespace, &format!("seed {seed}, round {round}")).await;
                // Others are written where the chunks were reset.
                for _ in 0..blocks {
                    let lba = blocks / 2 + rng.below(blocks / 2);
                    namespace.write(Lba(lba), model.write(lba, 1), Durability::Cached).await.expect("written");
                }
                namespace.flush().await.expect("flushed");
            }
            assert!(can_be_read > 2 * blocks, "most of it is there");
        });
    }
}

/// Nothing of the unit could be read, and nobody was told that older content came back.
#[test]
fn a_unit_that_is_lost_as_a_whole_is_counted() {
    for oob_bytes in [0, 16, 24] {
        for is_last in [false, true] {
            simulated(23, async move {
                let nand = formatted(small(23, |geometry| geometry.oob_bytes = oob_bytes)).await;
                let namespace = opened(&nand).await;
                let mut model = Model::default();
                namespace.write(Lba(0), model.write(0, 40), durability(true)).await.expect("written");
                namespace.set_attribute("key", b"a root behind it").await.expect("set");
                namespace.write(Lba(7), model.write(7, 2), durability(true)).await.expect("written");
                let Sector(newest) = namespace.manager().place_of(8).expect("it is on flash");
                if !is_last {
                    namespace.write(Lba(20), model.write(20, 1), durability(true)).await.expect("written");
                }
                let (unit, payload) = if oob_bytes == 0 { (16, 15) } else { (4, 4) };
                let first = newest / unit * unit;
                (first..first + unit).for_each(|sector| nand.arm(Fault::Read(Sector(sector))));
                drop(namespace);
                // Of what was programmed last of all nobody knows whether it was torn; and notes tell what had ended.
                let expected = if is_last || oob_bytes == 16 { 0 } else { payload };
                let looked_at = Manager::look(nand.power_on()).await.expect("looked at");
                assert_eq!(looked_at.figures().unknown_sectors, expected, "{oob_bytes}, last: {is_last}");
                drop(looked_at);
                drop(opened(&nand).await);
                // It stays so, and is counted once.
                let namespace = opened(&nand).await;
                assert_eq!(namespace.manager().figures().unknown_sectors, expected, "{oob_bytes}, last: {is_last}");
                let (older, _) = namespace.read(Lba(8), Buf::with_len(SECTOR_BYTES)).await;
                assert_eq!(older, Ok(()));
            });
        }
    }
}

/// Each opening began the chunks for roots anew.
#[test]
fn an_opening_behind_an_orderly_end_wears_nothing_out() {
    simulated(24, async {
        let nand = formatted(Preset::Small.config(24)).await;
        let erases = nand.counts().erases;
        opened(&nand).await.into_manager().close().await.expect("closed");
        assert_eq!(nand.counts().erases, erases, "there was room behind the root");
        for _ in 0..7 {
            opened(&nand).await.into_manager().close().await.expect("closed");
        }
        // Two roots each time, of which four fit a chunk; and there are two copies.
        assert!(nand.counts().erases - erases <= 8, "{:?}", nand.counts());
        drop(opened(&nand).await);
        let erases = nand.counts().erases;
        drop(opened(&nand).await);
        assert_eq!(nand.counts().erases, erases + 2, "a crash may have torn what is behind the root");
    });
}

#[test]
fn a_device_that_is_looked_at_is_as_before() {
    for is_closed in [false, true] {
        simulated(25, async move {
            let nand = formatted(Preset::Small.config(25)).await;
            let namespace = opened(&nand).await;
            let mut model = Model::default();
            filled(&namespace, &mut model).await;
            if is_closed {
                namespace.into_manager().close().await.expect("closed");
            } else {
                drop(namespace);
            }
            let before = (nand.counts().programs, nand.counts().erases, nand.power_on().report().await);
            for _ in 0..2 {
                let namespace = FlashNamespace::new(Manager::look(nand.power_on()).await.expect("looked at"));
                model.verify(&namespace, "looked at").await;
                assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new());
                assert!(!namespace.manager().figures().is_read_only, "it takes writes where it is opened for them");
                let refused = namespace.write(Lba(1), Model::default().write(1, 1), Durability::Cached).await;
                assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
                let refused = namespace.set_attribute("key", b"value").await;
                assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
                assert_eq!(namespace.close().await, Ok(()), "there is nothing to be kept");
                drop(namespace);
                let after = (nand.counts().programs, nand.counts().erases, nand.power_on().report().await);
                assert_eq!(after, before);
            }
            model.verify(&opened(&nand).await, "opened").await;
        });
    }
}

/// It programmed pages of the map that no root would ever name, at each opening, until there was no room and it hung.
#[test]
fn without_a_chunk_for_roots_an_opening_reads_and_programs_nothing() {
    simulated(26, async {
        let nand = formatted(Preset::Small.config(26)).await;
        let namespace = opened(&nand).await;
        let mut model = Model::default();
        filled(&namespace, &mut model).await;
        // Behind the root in force: its page of the map is to be programmed, and named by the next.
        namespace.write(Lba(7), model.write(7, 1), durability(true)).await.expect("written");
        model.stable(7, 1);
        let before = roots(&nand).await;
        namespace.manager().chunks_of_roots().into_iter().for_each(|chunk| nand.arm(Fault::Program(chunk)));
        assert!(namespace.set_attribute("key", b"no chunk takes it").await.is_err());
        drop(namespace);
        // What was not programmed well may be read well all the same, and would be in force.
        let of_the_failed = roots(&nand).await.into_iter().filter(|root| !before.contains(root));
        of_the_failed.for_each(|(_, sector)| nand.arm(Fault::Read(sector)));
        for _ in 0..40 {
            let programs = nand.counts().programs;
            let namespace = opened(&nand).await;
            assert!(namespace.manager().figures().is_read_only);
            assert!(matches!(
                namespace.write(Lba(1), Model::default().write(1, 1), Durability::Cached).await,
                Err(Error::ReadOnly(_))
            ));
            model.verify(&namespace, "no chunk for roots").await;
            assert_eq!(namespace.close().await, Ok(()), "nothing was taken");
            assert_eq!(nand.counts().programs, programs);
        }
    });
}

/// Pages of the map that were replaced were forgotten with the root that was to name their successors, and stayed counted as valid:
/// that root was never written.
#[test]
fn what_the_root_in_force_names_is_counted_when_the_next_one_is_not_written() {
    simulated(29, async {
        let nand = formatted(Preset::Small.config(29)).await;
        let namespace = opened(&nand).await;
        let mut model = Model::default();
        filled(&namespace, &mut model).await;
        namespace.set_attribute("key", b"a root that names pages").await.expect("set");
        namespace.write(Lba(7), model.write(7, 1), durability(true)).await.expect("written");
        model.stable(7, 1);
        let fail = |namespace: &FlashNamespace| {
            namespace.manager().chunks_of_roots().into_iter().for_each(|chunk| nand.arm(Fault::Program(chunk)));
        };
        let mut checked = async |namespace: &FlashNamespace, story: &str| {
            assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new(), "{story}");
            model.verify(namespace, story).await;
        };
        fail(&namespace);
        assert!(namespace.set_attribute("key", b"no chunk takes it").await.is_err());
        checked(&namespace, "while it is used").await;
        drop(namespace);
        checked(&opened(&nand).await, "opened, with a page of the map to be written").await;
    });
}

#[test]
fn without_a_line_for_pages_an_opening_reads_and_does_not_hang() {
    simulated(27, async {
        let nand = formatted(Preset::Small.config(27)).await;
        let namespace = opened(&nand).await;
        filled(&namespace, &mut Model::default()).await;
        let roots = namespace.manager().chunks_of_roots();
        drop(namespace);
        let device = nand.power_on();
        let reports = device.report().await.expect("told");
        for (chunk, report) in (0..).map(Chunk).zip(&reports) {
            if matches!(report.state, ChunkState::Free | ChunkState::Open) && !roots.contains(&chunk) {
                device.set_bad(chunk).await.expect("it is bad");
            }
        }
        drop(device);
        let programs = nand.counts().programs;
        let namespace = opened(&nand).await;
        // With the open chunks pages of the map may have gone.
        let mut can_be_read = 0;
        for lba in 0..namespace.info().blocks {
            match namespace.read(Lba(lba), Buf::with_len(SECTOR_BYTES)).await.0 {
                Ok(()) => can_be_read += 1,
                Err(Error::ReadFault(_)) => {}
                Err(error) => panic!("sector {lba}: {error}"),
            }
        }
        assert!(can_be_read > 100, "{can_be_read} can be read");
        assert!(namespace.manager().figures().is_read_only);
        assert_eq!((namespace.close().await, nand.counts().programs), (Ok(()), programs));
    });
}

/// A root that no chunk takes was noticed when it was to be written, on a device of which everything was lost by then.
#[test]
fn a_device_whose_root_fits_no_chunk_is_refused_before_it_is_touched() {
    simulated(28, async {
        let nand = formatted(Preset::Small.config(28)).await;
        let before = (nand.counts(), nand.power_on().report().await);
        let refused = Manager::format(nand.power_on(), &FormatOptions { spare_percent: 12, capacity: Some(1 << 20) });
        assert!(matches!(refused.await, Err(ManagerError::TooSmall { .. })));
        assert_eq!((nand.counts(), nand.power_on().report().await), before, "it is as it was");
        let many = Nand::in_memory(small(28, |geometry| geometry.chunks = 8192)).expect("it works");
        let refused = Manager::format(many.power_on(), &FormatOptions::default()).await;
        assert!(matches!(refused, Err(ManagerError::RootTooLarge { .. })), "{refused:?}");
        assert_eq!((many.counts().programs, many.counts().erases), (0, 0));
    });
}
