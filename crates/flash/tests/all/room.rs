//! A namespace that is full is written on and on, however little is spare: nobody waits for ever. Devices differ by seed; each is
//! formatted with the least spare that a format takes.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::Buf;
use engine::file::Lifetime;
use engine::rng::SplitMix;
use engine::task;
use engine::time::timeout;
use flash::nand::{Chances, Nand, NandConfig, Timing};
use flash::{FlashNamespace, FormatOptions, Geometry, Manager, ManagerError, ManagerOptions, Policy, SECTOR_BYTES};

use crate::begun::{opened_by, small};
use crate::crash::simulated;
use crate::model::content;

/// Sectors of the largest device: what is filled and written over several times in a fraction of a second.
const SECTORS_MAX: u64 = 3000;
/// Who writes at the same time, each in a part of its own.
const WRITERS: u64 = 3;
/// In the device's own time, far more than any of these lives needs: what is not done by then waits for ever, or gets nowhere.
const LIFE: Duration = Duration::from_secs(400);

/// A device of this seed. Lines are short and there are many, so that little is spare in each.
fn device(seed: u64) -> NandConfig {
    let mut rng = SplitMix(seed ^ 0x5ba7e);
    let write_unit = [1, 2, 4, 8][rng.index(4)];
    let oob_bytes = [0, 16, 24][rng.index(3)];
    let (groups, units_per_group) = (1 + rng.below(2) as u32, 1 + rng.below(2) as u32);
    let sectors = (write_unit * (1 + rng.below(8) as u32)).max(8);
    let most = SECTORS_MAX / u64::from(sectors * groups * units_per_group);
    let chunks = (20 + rng.below(100)).min(most.max(16)) as u32;
    let geometry = Geometry { groups, units_per_group, chunks, sectors, write_unit, oob_bytes, open_max: 0 };
    let micros = Duration::from_micros;
    let timing = Timing { read: micros(100), program: micros(2000), erase: micros(5000), ..Timing::default() };
    let factory_bad_ppm = [0, 0, 30_000][rng.index(3)];
    NandConfig { geometry, timing, endurance: 0, factory_bad_ppm, chances: Chances::default(), seed }
}

fn options(seed: u64) -> ManagerOptions {
    let mut rng = SplitMix(seed ^ 0x0b71);
    let policy = [Policy::Greedy, Policy::CostBenefit][rng.index(2)];
    let interleave = [0, 1, 8][rng.index(3)];
    let lines_per_root = 1 + rng.below(6) as u32;
    ManagerOptions { policy, buffer_units: 1 + rng.below(4) as u32, lines_per_root, wear_spread: 8, interleave }
}

/// The least spare that a format takes, in percent; `None`: the device is too small whatever is spare.
async fn least_spare(nand: &Rc<Nand>) -> Option<u32> {
    let device = nand.power_on();
    for spare_percent in 0..100 {
        match Manager::plan(&*device, &FormatOptions { spare_percent, capacity: None }).await {
            Ok(_) => return Some(spare_percent),
            Err(ManagerError::TooSmall { .. } | ManagerError::RootTooLarge { .. } | ManagerError::NoTags) => {
                return None;
            }
            Err(_) => {}
        }
    }
    None
}

/// What hosts have written last, by sector.
type Versions = Rc<RefCell<Vec<u64>>>;

struct Writer {
    namespace: Rc<FlashNamespace>,
    versions: Versions,
    range: Range<u64>,
    rng: SplitMix,
    /// Commands between two flushes, on average; 0: there are none.
    between_flushes: u64,
}

impl Writer {
    async fn write(&mut self, lba: u64) -> Result<(), Error> {
        let version = {
            let mut versions = self.versions.borrow_mut();
            versions[lba as usize] += 1;
            versions[lba as usize]
        };
        self.namespace.write(Lba(lba), Buf::copy_from(&content(lba, version)).freeze(), Durability::Cached).await
    }

    /// The part is written once in order, and then anywhere.
    async fn run(mut self, times: u64) -> Result<(), Error> {
        for lba in self.range.clone() {
            self.write(lba).await?;
        }
        let sectors = self.range.end - self.range.start;
        for _ in 0..times * sectors {
            let lba = self.range.start + self.rng.below(sectors);
            if self.rng.below(5) == 0 {
                let lifetime = [Lifetime::Short, Lifetime::Long][self.rng.index(2)];
                self.namespace.hint_lifetime(lifetime).await;
            }
            self.write(lba).await?;
            if self.between_flushes > 0 && self.rng.below(self.between_flushes) == 0 {
                self.namespace.flush().await?;
            }
        }
        Ok(())
    }
}

/// All of the namespace is written, and written over so many times; the first error of a writer.
async fn written_over(namespace: &Rc<FlashNamespace>, versions: &Versions, seed: u64, times: u64) -> Result<(), Error> {
    let part = namespace.info().blocks / WRITERS;
    let between_flushes = [0, 40, 3][SplitMix(seed ^ 0xf1).index(3)];
    let writers = (0..WRITERS).map(|number| {
        let end = if number + 1 == WRITERS { namespace.info().blocks } else { (number + 1) * part };
        let range = number * part..end;
        let (namespace, versions, rng) = (namespace.clone(), versions.clone(), SplitMix(seed << 8 | number));
        task::spawn(Writer { namespace, versions, range, rng, between_flushes }.run(times))
    });
    let writers: Vec<_> = writers.collect();
    let mut result = Ok(());
    for writer in writers {
        result = result.and(writer.await);
    }
    result
}

/// Whether the device was one that a format takes.
fn is_written_on_and_on(seed: u64) -> bool {
    let story = format!("seed {seed}, {:?}, {:?}", device(seed).geometry, options(seed));
    simulated(seed, async move {
        let nand = Nand::in_memory(device(seed)).expect("it works");
        let Some(spare_percent) = least_spare(&nand).await else { return false };
        let format = FormatOptions { spare_percent, capacity: None };
        Manager::format(nand.power_on(), &format).await.expect("as it was planned");
        let namespace = Rc::new(opened_by(&nand, options(seed)).await);
        let versions: Versions = Rc::new(RefCell::new(vec![0; namespace.info().blocks as usize]));
        let life = async {
            written_over(&namespace, &versions, seed, 2).await?;
            namespace.flush().await
        };
        let result = timeout(LIFE, life).await;
        assert_eq!(result, Ok(Ok(())), "{story}, spare {spare_percent} %: {:?}", namespace.manager());
        let written = versions.borrow().clone();
        for (lba, version) in (0..).zip(written) {
            let (result, buf) = namespace.read(Lba(lba), Buf::with_len(SECTOR_BYTES)).await;
            assert!(result == Ok(()) && *buf == *content(lba, version), "{story}: sector {lba}: {result:?}");
        }
        assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new(), "{story}");
        assert_eq!(timeout(LIFE, namespace.close()).await, Ok(Ok(())), "{story}");
        true
    })
}

/// Lives of these seeds, of which more than half have to be lived. `SEED=s` runs that one.
fn lived(seeds: Range<u64>, live: fn(u64) -> bool) {
    let one = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = one.map_or(seeds, |seed| seed..seed + 1);
    let (lived, all) = (seeds.clone().filter(|&seed| live(seed)).count(), seeds.count());
    assert!(lived > all / 2, "{lived} of {all} devices were formatted");
}

#[test]
fn with_the_least_spare_nobody_waits_for_ever() {
    lived(12..28, is_written_on_and_on);
}

/// Lines of one unit and a map of several pages: lines of pages may hold more beside them than is kept whatever is spare.
#[test]
fn a_format_with_too_little_to_spare_is_refused_and_names_what_would_do() {
    simulated(1, async {
        let one = |geometry: &mut Geometry| {
            let (groups, units_per_group, chunks) = (1, 1, 400);
            *geometry = Geometry { groups, units_per_group, chunks, sectors: 8, write_unit: 8, ..*geometry };
        };
        let nand = Nand::in_memory(small(1, one)).expect("it works");
        let device = nand.power_on();
        let plan =
            async |spare_percent, capacity| Manager::plan(&*device, &FormatOptions { spare_percent, capacity }).await;
        let refused = plan(0, None).await;
        let Err(ManagerError::SpareTooSmall { spare: 0, least: 1, capacity, most }) = refused else {
            panic!("{refused:?}")
        };
        assert!(plan(1, None).await.is_ok_and(|planned| u64::from(planned) <= most && most < capacity));
        let (most, beyond) = (most as u32, plan(0, Some(most as u32 + 1)).await);
        assert!(matches!(beyond, Err(ManagerError::SpareTooSmall { .. })), "{beyond:?}");
        drop(device);
        let format = FormatOptions { spare_percent: 0, capacity: Some(most) };
        Manager::format(nand.power_on(), &format).await.expect("as it was planned");
        let namespace = Rc::new(opened_by(&nand, ManagerOptions::default()).await);
        let versions: Versions = Rc::new(RefCell::new(vec![0; most as usize]));
        let result = written_over(&namespace, &versions, 1, 1).await;
        assert_eq!(result, Ok(()), "{:?}", namespace.manager());
    });
}

/// The content is what was written last, or what was before where the last write has failed.
async fn assert_read(namespace: &FlashNamespace, versions: &Versions, story: &str) {
    let written = versions.borrow().clone();
    for (lba, version) in (0..).zip(written) {
        let (result, buf) = namespace.read(Lba(lba), Buf::with_len(SECTOR_BYTES)).await;
        let found = [version, version.saturating_sub(1)].iter().any(|&version| *buf == *content(lba, version));
        assert!(result == Ok(()) && found, "{story}: sector {lba}: {result:?}");
    }
}

/// Chunks go bad until there are too few.
fn wears_out(seed: u64) -> bool {
    let story = format!("seed {seed}, {:?}, {:?}", device(seed).geometry, options(seed));
    simulated(seed, async move {
        let ppm = [1000, 4000, 20_000][SplitMix(seed ^ 0xbad).index(3)];
        let chances = Chances { program_ppm: ppm, erase_ppm: ppm, read_ppm: 0 };
        let nand = Nand::in_memory(NandConfig { chances, ..device(seed) }).expect("it works");
        let Some(spare_percent) = least_spare(&nand).await else { return false };
        let format = FormatOptions { spare_percent: spare_percent + 4, capacity: None };
        if Manager::format(nand.power_on(), &format).await.is_err() {
            return false; // more chunks have gone bad
        }
        let namespace = Rc::new(opened_by(&nand, options(seed)).await);
        let versions: Versions = Rc::new(RefCell::new(vec![0; namespace.info().blocks as usize]));
        let result = timeout(LIFE, written_over(&namespace, &versions, seed, 60)).await;
        let shown = format!("{story}: {:?}", namespace.manager());
        assert!(matches!(result, Ok(Err(Error::ReadOnly(_) | Error::WriteFault(_)))), "{result:?} {shown}");
        assert_read(&namespace, &versions, &shown).await;
        let flushed = timeout(LIFE, namespace.flush()).await;
        assert!(matches!(flushed, Ok(Ok(()) | Err(Error::ReadOnly(_) | Error::WriteFault(_)))), "{flushed:?} {shown}");
        let closed = timeout(LIFE, namespace.close()).await;
        assert!(closed.is_ok(), "{shown}");
        if flushed == Ok(Ok(())) {
            drop(namespace);
            let namespace = timeout(LIFE, opened_by(&nand, options(seed))).await.expect("in time");
            assert_read(&namespace, &versions, &format!("{story}, opened again")).await;
        }
        true
    })
}

#[test]
fn when_too_many_chunks_are_bad_who_waits_is_told() {
    lived(5..17, wears_out);
}

/// Power is lost again and again while hosts wait for room.
fn is_cut_again_and_again(seed: u64) -> bool {
    let story = format!("seed {seed}, {:?}, {:?}", device(seed).geometry, options(seed));
    simulated(seed, async move {
        let nand = Nand::in_memory(device(seed)).expect("it works");
        let Some(spare_percent) = least_spare(&nand).await else { return false };
        let format = FormatOptions { spare_percent, capacity: None };
        Manager::format(nand.power_on(), &format).await.expect("as it was planned");
        let mut rng = SplitMix(seed ^ 0xc07);
        for round in 0..16 {
            let namespace = Rc::new(timeout(LIFE, opened_by(&nand, options(seed))).await.expect("in time"));
            let versions: Versions = Rc::new(RefCell::new(vec![0; namespace.info().blocks as usize]));
            if round > 0 {
                nand.cut_at(Some(1 + rng.below(400)));
            }
            let result = timeout(LIFE, written_over(&namespace, &versions, seed, 1)).await;
            nand.cut_at(None);
            let shown = format!("{story}, round {round}: {:?}", namespace.manager());
            // What one loss of power leaves unused is kept twice, and emptying lines brings it back.
            let is_lost = round > 0 && matches!(result, Ok(Err(Error::WriteFault(_))));
            assert!(result == Ok(Ok(())) || is_lost, "{result:?} {shown}");
        }
        true
    })
}

#[test]
fn when_power_is_lost_again_and_again_nobody_waits_for_ever() {
    lived(0..8, is_cut_again_and_again);
}
