//! The replay of a block trace on a model of a device, in virtual time: what it takes does not depend on this machine.
//!
//! A trace with times is replayed as it was, whatever the device takes: who is slow sees commands pile up, and a command's latency
//! counts from the time that the trace gives. One without times has one command at a time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::histogram::Histogram;
use engine::sim::{SimConfig, Stalled, World};
use engine::task::{self, Task};
use engine::{Buf, time};

use crate::geometry::SECTOR_BYTES;
use crate::manager::{Figures, FormatOptions, Manager, ManagerError, ManagerOptions};
use crate::namespace::FlashNamespace;
use crate::nand::{Counts, Nand, NandConfig, NandError};
use crate::trace::{Command, Kind};

/// Sectors of one command to the namespace: longer ones are several, one behind the other.
const PART_SECTORS: u64 = 256;
/// Commands under way at a time; who comes later waits, and that counts. Chosen: a deep queue of a drive.
const UNDER_WAY_MAX: usize = 1024;

/// Virtual time that a replay may take. Chosen: longer than any trace, and within the nanoseconds of 64 bits.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What a replay has shown.
#[derive(Debug)]
pub struct Replayed {
    /// Latencies in nanoseconds: of reads, writes, deallocations and flushes.
    pub latencies: [Histogram; 4],
    /// Of these, commands that went to another place: the trace's device is larger than the namespace.
    pub wrapped: u64,
    /// From the first command to the end of the last one.
    pub took: Duration,
    /// Figures of the media manager, from the first command on.
    pub figures: Figures,
    /// Commands of the device, from the first command on.
    pub counts: Counts,
    /// Bytes of the namespace.
    pub bytes: u64,
}

/// Why there is nothing to show.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// There is no such device.
    #[error(transparent)]
    Nand(#[from] NandError),
    /// There is no media manager on it.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// A command failed: the device is worn out, say.
    #[error("command {number} of the trace: {error}")]
    Command {
        /// Which one, from 1.
        number: usize,
        /// Why.
        error: Error,
    },
    /// It did not come to an end.
    #[error("the replay stands still: {0}")]
    Stalled(String),
}

/// How a trace is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplayOptions {
    /// How the device is formatted.
    pub format: FormatOptions,
    /// How the media manager works.
    pub manager: ManagerOptions,
    /// Every sector is written once before: collection begins with the trace, not when it has written as much.
    pub is_filled: bool,
}

struct Run {
    namespace: FlashNamespace,
    latencies: [Histogram; 4],
    wrapped: Cell<u64>,
    failed: RefCell<Option<ReplayError>>,
}

/// Replays commands on a fresh device.
///
/// # Errors
/// As the kinds of [`ReplayError`] say.
pub fn replay(config: NandConfig, options: ReplayOptions, trace: Vec<Command>) -> Result<Replayed, ReplayError> {
    // A device without times works at one instant, however much it does; a trace may be days long.
    let sim = SimConfig { polls_per_instant_max: u64::MAX, virtual_time_max: TIME_MAX, ..SimConfig::default() };
    let world = World::new(config.seed, sim);
    let task = world.spawn_on(world.node("host"), on_device(config, options, trace));
    world.run_until(task).map_err(|stalled: Stalled| ReplayError::Stalled(stalled.to_string()))?
}

async fn on_device(config: NandConfig, options: ReplayOptions, trace: Vec<Command>) -> Result<Replayed, ReplayError> {
    let nand = Nand::in_memory(config)?;
    Manager::format(nand.power_on(), &options.format).await?;
    let namespace = FlashNamespace::new(Manager::open(nand.power_on(), options.manager).await?);
    if options.is_filled {
        fill(&namespace).await.map_err(|error| ReplayError::Command { number: 0, error })?;
    }
    let (before, counts_before, begin) = (namespace.manager().figures(), nand.counts(), time::now());
    let run =
        Rc::new(Run { namespace, latencies: Default::default(), wrapped: Cell::new(0), failed: RefCell::default() });
    let mut under_way: VecDeque<Task<()>> = VecDeque::new();
    let mut last_wait = Duration::ZERO;
    for (number, command) in (1..).zip(trace) {
        if run.failed.borrow().is_some() {
            break;
        }
        match (command.kind, command.at) {
            (Kind::Wait, _) => {
                last_wait = last_wait.saturating_add(Duration::from_micros(command.offset));
                time::sleep_until(begin + last_wait).await;
            }
            (_, None) => run.clone().command(number, command, time::now()).await,
            (_, Some(at)) => {
                time::sleep_until(begin + at).await;
                while under_way.len() >= UNDER_WAY_MAX {
                    if let Some(oldest) = under_way.pop_front() {
                        oldest.await;
                    }
                }
                under_way.push_back(task::spawn(run.clone().command(number, command, begin + at)));
            }
        }
    }
    for task in under_way {
        task.await;
    }
    let took = time::now() - begin;
    if let Some(error) = run.failed.borrow_mut().take() {
        return Err(error);
    }
    let Ok(Run { namespace, latencies, wrapped, .. }) = Rc::try_unwrap(run).map_err(|_| ()) else {
        return Err(ReplayError::Stalled("a command has not ended".into()));
    };
    let bytes = namespace.info().bytes();
    let (after, now) = (namespace.manager().figures(), nand.counts());
    let figures = Figures {
        host_sectors: after.host_sectors - before.host_sectors,
        programmed_sectors: after.programmed_sectors - before.programmed_sectors,
        moved_sectors: after.moved_sectors - before.moved_sectors,
        padding_sectors: after.padding_sectors - before.padding_sectors,
        ..after
    };
    let counts = Counts {
        reads: now.reads - counts_before.reads,
        programs: now.programs - counts_before.programs,
        erases: now.erases - counts_before.erases,
    };
    Ok(Replayed { latencies, wrapped: wrapped.get(), took, figures, counts, bytes })
}

async fn fill(namespace: &FlashNamespace) -> Result<(), Error> {
    let blocks = namespace.info().blocks;
    let content = Buf::zeroed(PART_SECTORS as usize * SECTOR_BYTES).freeze();
    for lba in (0..blocks).step_by(PART_SECTORS as usize) {
        let count = (blocks - lba).min(PART_SECTORS) as usize;
        namespace.write(Lba(lba), content.slice(0..count * SECTOR_BYTES), Durability::Cached).await?;
    }
    namespace.flush().await
}

impl Run {
    async fn command(self: Rc<Run>, number: usize, command: Command, due: time::Instant) {
        let result = self.execute(&command).await;
        match (result, command.kind) {
            (Ok(()), kind) => {
                let kinds = [Kind::Read, Kind::Write, Kind::Trim, Kind::Flush];
                if let Some(at) = kinds.iter().position(|&known| known == kind) {
                    self.latencies[at].record(time::now() - due);
                }
            }
            (Err(error), _) => {
                self.failed.borrow_mut().get_or_insert(ReplayError::Command { number, error });
            }
        }
    }

    /// What is not whole sectors touches those that it lies in; what lies beyond the end goes on at the begin.
    async fn execute(&self, command: &Command) -> Result<(), Error> {
        if command.kind == Kind::Flush {
            return self.namespace.flush().await;
        }
        let (sector, blocks) = (SECTOR_BYTES as u64, self.namespace.info().blocks);
        let (first, end) = (command.offset / sector, (command.offset + command.length).div_ceil(sector));
        if end > blocks {
            self.wrapped.set(self.wrapped.get() + 1);
        }
        // Once around is all that there is, whatever length a line says.
        let end = end.min(first + blocks);
        let mut at = first;
        while at < end {
            let lba = at % blocks;
            let count = (end - at).min(blocks - lba).min(PART_SECTORS);
            let bytes = count as usize * SECTOR_BYTES;
            match command.kind {
                Kind::Read => self.namespace.read(Lba(lba), Buf::with_len(bytes)).await.0?,
                Kind::Write => {
                    self.namespace.write(Lba(lba), Buf::zeroed(bytes).freeze(), Durability::Cached).await?;
                }
                Kind::Trim => self.namespace.deallocate(Lba(lba), count).await?,
                Kind::Flush | Kind::Wait => {}
            }
            at += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::Preset;
    use crate::trace::parse;

    /// 30 writes of 16 KiB one behind the other, over and over the same, with a flush after each.
    #[test]
    fn a_trace_takes_the_time_of_the_device_and_not_of_this_machine() {
        let line = "x write 0 16384\nx sync 0 0\n".repeat(30);
        let trace = || parse(&format!("fio version 2 iolog\n{line}x read 0 4096\n")).expect("a trace");
        let run = || replay(Preset::Tlc.config(1), ReplayOptions::default(), trace()).expect("it runs");
        let (first, second) = (run(), run());
        assert_eq!((first.took, first.counts), (second.took, second.counts), "one seed is one run");
        let [reads, writes, trims, flushes] = &first.latencies;
        assert_eq!([reads.count(), writes.count(), trims.count(), flushes.count()], [1, 30, 0, 30]);
        // A word line takes 1.8 ms to be programmed, and each flush programs one; a page takes 60 us to be read.
        assert!(first.took > Duration::from_micros(30 * 1800 + 60) && first.took < Duration::from_millis(70));
        assert_eq!(first.figures.host_sectors, 120);
        assert!(first.figures.write_amplification() > 5.9, "flushes pad units of 24 sectors: {:?}", first.figures);
    }

    #[test]
    fn a_trace_with_times_piles_up_and_a_larger_one_goes_round() {
        let line = |index: u64| format!("{} x write {} 98304\n", index, index * 98304 + (1 << 40));
        let text: String = (0..200).map(line).collect();
        let trace = parse(&format!("fio version 3 iolog\n{text}")).expect("a trace");
        let config = crate::nand::NandConfig { factory_bad_ppm: 0, ..Preset::Olive.config(1) };
        let replayed = replay(config, ReplayOptions::default(), trace).expect("it runs");
        assert_eq!(replayed.wrapped, 200);
        // 19 MB through four buses of 52 MB/s: what came last, 200 us behind the first, has waited for the others.
        let slowest = replayed.latencies[1].buckets().last().expect("there are some").0;
        assert!(slowest > 20_000_000 && replayed.took > Duration::from_millis(20), "{slowest} ns, {replayed:?}");
    }

    /// It went round for ever.
    #[test]
    fn a_length_of_nearly_all_there_is_goes_round_once() {
        let trace = parse("fio version 2 iolog\nx trim 4096 18446744073709539328\n").expect("a trace");
        let replayed = replay(Preset::Small.config(1), ReplayOptions::default(), trace).expect("it runs");
        assert_eq!((replayed.wrapped, replayed.latencies[2].count()), (1, 1));
    }

    #[test]
    fn a_device_that_is_full_at_the_begin_collects() {
        let mut rng = engine::rng::SplitMix(4);
        let text: String = (0..4000).map(|_| format!("x write {} 4096\n", rng.below(1500) * 4096)).collect();
        let trace = || parse(&format!("fio version 2 iolog\n{text}")).expect("a trace");
        let run = |is_filled| {
            let options = ReplayOptions { is_filled, ..ReplayOptions::default() };
            replay(Preset::Small.config(1), options, trace()).expect("it runs").figures
        };
        let (empty, full) = (run(false), run(true));
        assert!(full.moved_sectors > empty.moved_sectors && full.wear[1] > 0, "{empty:?} {full:?}");
        assert!(full.write_amplification() > empty.write_amplification());
    }
}
