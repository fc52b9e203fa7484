//! Accesses to a store in closed loops, in virtual time, as fio has them: sequential or at random places, of one length.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use device::Error;
use engine::rng::SplitMix;
use engine::{Buf, task, time};

use super::block::{BlockDevice, Cache, Store};
use super::{ExperimentError, in_world};
use crate::geometry::SECTOR_BYTES;
use crate::manager::ManagerOptions;
use crate::nand::NandConfig;

/// Sectors of an access by which a store is filled.
const FILL_SECTORS: u64 = 32;

/// Who serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Our media manager.
    Managed(ManagerOptions),
    /// The plain block device.
    Plain(Cache),
}

/// What is accessed, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Writes, in place of reads.
    pub is_write: bool,
    /// At random places, in place of one behind the other.
    pub is_random: bool,
    /// Bytes of an access, whole sectors.
    pub bytes: usize,
    /// Accesses under way at a time.
    pub depth: usize,
    /// Bytes that are filled before, and accessed; no more than there are.
    pub span: u64,
    /// How long it goes on. What is written is flushed then, and that takes its time as well.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// Of each access.
    pub latencies: Vec<Duration>,
    /// From the first access to the end, the flush behind writes included.
    pub took: Duration,
    /// Bytes of an access.
    pub bytes: usize,
}

impl Served {
    /// Bytes a second, in millions.
    pub fn megabytes(&self) -> f64 {
        (self.latencies.len() * self.bytes) as f64 / self.took.as_secs_f64() / 1e6
    }

    /// Accesses a second.
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    /// The latency that this share of the accesses does not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
    }
}

/// The places of accesses, one behind the other or at random.
struct Places {
    random: Option<SplitMix>,
    next: u64,
    count: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        match &mut self.random {
            Some(random) => random.below(self.count),
            None => {
                self.next += 1;
                (self.next - 1) % self.count
            }
        }
    }
}

/// A store with a loop on it.
struct Bench {
    store: Store,
    ends: Cell<bool>,
    failed: RefCell<Option<Error>>,
}

async fn store(config: &NandConfig, side: Side) -> Result<Store, ExperimentError> {
    match side {
        Side::Managed(options) => Store::managed(config.clone(), options).await,
        Side::Plain(cache) => Ok(Store::Plain(Box::new(BlockDevice::new(config, cache).await?))),
    }
}

async fn fill(store: &Store, sectors: u64) -> Result<(), Error> {
    let data = Buf::zeroed(FILL_SECTORS as usize * SECTOR_BYTES).freeze();
    for lba in (0..sectors).step_by(FILL_SECTORS as usize) {
        let count = (sectors - lba).min(FILL_SECTORS) as usize;
        store.write(lba, &data.slice(0..count * SECTOR_BYTES)).await?;
    }
    store.flush().await
}

impl Bench {
    /// One access behind the other, until it is over.
    async fn run(self: Rc<Bench>, access: Access, places: Rc<RefCell<Places>>) -> Vec<Duration> {
        let data = Buf::zeroed(access.bytes).freeze();
        let sectors = access.bytes / SECTOR_BYTES;
        let mut latencies = Vec::new();
        while !self.ends.get() && self.failed.borrow().is_none() {
            let lba = places.borrow_mut().next() * sectors as u64;
            let begun = time::now();
            let result = match access.is_write {
                true => self.store.write(lba, &data).await,
                false => self.store.read(lba, sectors).await,
            };
            if let Err(error) = result {
                self.failed.borrow_mut().get_or_insert(error);
                break;
            }
            latencies.push(time::now() - begun);
            // One that takes no time would never let it pass.
            task::yield_now().await;
        }
        latencies
    }

    /// Loops of one kind, which begin now.
    fn loops(self: &Rc<Bench>, access: Access, seed: u64) -> Vec<task::Task<Vec<Duration>>> {
        let random = access.is_random.then_some(SplitMix(seed));
        let count = (access.span.min(self.store.blocks() * SECTOR_BYTES as u64) / access.bytes as u64).max(1);
        let places = Rc::new(RefCell::new(Places { random, next: 0, count }));
        (0..access.depth).map(|_| task::spawn(self.clone().run(access, places.clone()))).collect()
    }
}

/// Serves accesses on a fresh store; beside them others, whose latencies do not count. What `beside` accesses is filled, too.
///
/// # Errors
/// As the kinds of [`ExperimentError`] say.
pub fn serve(
    config: NandConfig,
    side: Side,
    access: Access,
    beside: Option<Access>,
) -> Result<Served, ExperimentError> {
    let seed = config.seed;
    in_world(seed, async move {
        let store = store(&config, side).await?;
        let span = beside.map_or(access.span, |beside| beside.span.max(access.span)) / SECTOR_BYTES as u64;
        fill(&store, span.min(store.blocks())).await?;
        let bench = Rc::new(Bench { store, ends: Cell::new(false), failed: RefCell::default() });
        let others = beside.map(|beside| bench.loops(beside, seed + 1)).unwrap_or_default();
        if let Some(beside) = beside {
            time::sleep(beside.time).await; // they have gone on for a while when it begins
        }
        let begin = time::now();
        let loops = bench.loops(access, seed);
        time::sleep(access.time).await;
        bench.ends.set(true);
        let mut latencies = Vec::new();
        for task in loops {
            latencies.extend(task.await);
        }
        if access.is_write {
            bench.store.flush().await?;
        }
        let took = time::now() - begin;
        for task in others {
            task.await;
        }
        let failed = bench.failed.borrow_mut().take();
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(Served { latencies, took, bytes: access.bytes }),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::Preset;

    fn access(bytes: usize) -> Access {
        let time = Duration::from_millis(100);
        Access { is_write: false, is_random: false, bytes, depth: 1, span: 4 << 20, time }
    }

    fn served(side: Side, access: Access) -> Served {
        serve(Preset::Olive.config(1), side, access, None).expect("it runs")
    }

    fn interleaved(interleave: u32) -> Side {
        Side::Managed(ManagerOptions { interleave, ..ManagerOptions::default() })
    }

    /// At depth 1 one access of the length of all parts has all parallel units work for it, and of a run of 2 MiB one does.
    #[test]
    fn reads_are_served_by_as_many_units_as_the_interleave_allows() {
        let of = |interleave| served(interleaved(interleave), access(128 << 10)).megabytes();
        let (dealt, run) = (of(8), of(512));
        assert!(dealt > 1.5 * run, "{dealt} MB/s interleaved by 32 KiB, {run} by 2 MiB");
        assert!(dealt < 4.0 * 52.0 && run < 52.0 * 1.3, "no faster than the buses: {dealt}, {run}");
    }

    #[test]
    fn writes_in_units_of_the_host_are_faster_than_each_by_its_own() {
        let write = Access { is_write: true, ..access(4 << 10) };
        let (managed, plain) = (served(interleaved(0), write), served(Side::Plain(Cache::Off), write));
        assert!(managed.megabytes() > 1.5 * plain.megabytes(), "{} and {}", managed.megabytes(), plain.megabytes());
        // A page of 16 KiB is programmed for each.
        assert!(plain.quantile(0.5) > Duration::from_micros(1300), "{:?}", plain.quantile(0.5));
        assert_eq!(served(Side::Plain(Cache::Off), write), plain, "one seed is one run");
    }
}
