//! What a flash device and its media manager tell of themselves, for Prometheus. Both belong to one thread, which says each second
//! what it sees: whoever scrapes is told what was seen last.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use engine::figures::{by_labels, gauges};
use engine::task::LocalFuture;
use engine::{Buf, View};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState, FlashDevice, FlashError, Read};
use crate::geometry::{Geometry, SECTOR_BYTES};
use crate::manager::{Figures, Manager};

/// A device whose commands are counted.
pub struct Metered {
    device: Rc<dyn FlashDevice>,
    counts: Cell<Counts>,
    /// Chunks that are offline, by the device's last report and what became of chunks since.
    bad: RefCell<BTreeSet<Chunk>>,
}

/// What was done since the device was powered on.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    read_bytes: u64,
    programmed_bytes: u64,
    erases: u64,
    reads_failed: u64,
    programs_failed: u64,
    erases_failed: u64,
}

impl Metered {
    /// Counts the commands of a device.
    pub fn new(device: Rc<dyn FlashDevice>) -> Metered {
        Metered { device, counts: Cell::default(), bad: RefCell::default() }
    }

    /// As a device of any kind. Whoever makes it one itself compiles all of its commands.
    #[inline(never)]
    pub fn device(self: &Rc<Self>) -> Rc<dyn FlashDevice> {
        self.clone()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    fn ended<T>(&self, result: &Result<T, FlashError>, change: impl FnOnce(&mut Counts)) {
        self.count(|counts| match result {
            Ok(_) => change(counts),
            Err(FlashError::ReadFailed(_)) => counts.reads_failed += 1,
            Err(FlashError::ProgramFailed(_)) => counts.programs_failed += 1,
            Err(FlashError::EraseFailed(chunk)) => {
                counts.erases_failed += 1;
                self.bad.borrow_mut().insert(*chunk);
            }
            // No fault of the flash.
            Err(_) => {}
        });
    }
}

impl FlashDevice for Metered {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn serial(&self) -> [u8; 16] {
        self.device.serial()
    }

    fn claim(&self) -> Result<(), FlashError> {
        self.device.claim()
    }

    fn release(&self) {
        self.device.release();
    }

    fn report(&self) -> LocalFuture<'_, Result<Vec<ChunkReport>, FlashError>> {
        Box::pin(async {
            let reports = self.device.report().await?;
            let offline = (0..).map(Chunk).zip(&reports).filter(|(_, report)| report.state == ChunkState::Offline);
            *self.bad.borrow_mut() = offline.map(|(chunk, _)| chunk).collect();
            Ok(reports)
        })
    }

    fn read(&self, first: Sector, data: Buf, oob: Buf) -> LocalFuture<'_, Read> {
        Box::pin(async move {
            let bytes = data.len() as u64;
            let (result, data, oob) = self.device.read(first, data, oob).await;
            self.ended(&result, |counts| counts.read_bytes += bytes);
            (result, data, oob)
        })
    }

    fn write(&self, first: Sector, data: View, oob: View) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(async move {
            let bytes = data.len() as u64;
            let result = self.device.write(first, data, oob).await;
            self.ended(&result, |counts| counts.programmed_bytes += bytes);
            result
        })
    }

    fn reset(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(async move {
            let result = self.device.reset(chunk).await;
            self.ended(&result, |counts| counts.erases += 1);
            result
        })
    }

    fn finish(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        self.device.finish(chunk)
    }

    fn set_bad(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(async move {
            self.device.set_bad(chunk).await?;
            self.bad.borrow_mut().insert(chunk);
            Ok(())
        })
    }

    fn give_up(&self, chunk: Chunk) -> LocalFuture<'_, Result<bool, FlashError>> {
        Box::pin(async move {
            let is_good = self.device.give_up(chunk).await?;
            if !is_good {
                self.bad.borrow_mut().insert(chunk);
            }
            Ok(is_good)
        })
    }
}

/// What is seen of a device.
#[derive(Debug)]
pub struct Seen {
    device: String,
    counts: Counts,
    chunks: u64,
    bad: u64,
    log: Option<Log>,
}

/// What is seen of its media manager, if it has ours.
#[derive(Debug)]
struct Log {
    figures: Figures,
    kept_free: u64,
    capacity: u64,
    used: u64,
    has_failed: bool,
}

impl Seen {
    /// Looks at a device, which is told of by this name, and at its media manager.
    pub fn of(device: String, metered: &Metered, manager: Option<&Manager>) -> Seen {
        let log = manager.map(|manager| Log {
            figures: manager.figures(),
            kept_free: manager.room().kept_free,
            capacity: manager.capacity().into(),
            used: manager.used(),
            has_failed: manager.failure().is_some(),
        });
        let (chunks, bad) = (metered.geometry().chunks_total().into(), metered.bad.borrow().len() as u64);
        Seen { device, counts: metered.counts.get(), chunks, bad, log }
    }
}

/// The figures of all devices of a process; a clone is the same ones, on any thread.
#[derive(Clone, Default, Debug)]
pub struct FlashMetrics(Arc<Mutex<Vec<Seen>>>);

impl FlashMetrics {
    /// What is told from now on.
    pub fn set(&self, seen: Vec<Seen>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

type Value = fn(&Seen) -> Option<u64>;

const COUNTERS: [(&str, &str, Value); 9] = [
    ("read_bytes", "Bytes read from flash.", |seen| Some(seen.counts.read_bytes)),
    ("programmed_bytes", "Bytes programmed, by whomever.", |seen| Some(seen.counts.programmed_bytes)),
    ("erases", "Chunks erased.", |seen| Some(seen.counts.erases)),
    ("reads_failed", "Reads that the flash could not answer.", |seen| Some(seen.counts.reads_failed)),
    ("programs_failed", "Programs that have failed.", |seen| Some(seen.counts.programs_failed)),
    ("erases_failed", "Erases that have failed.", |seen| Some(seen.counts.erases_failed)),
    ("host_written_bytes", "Bytes that hosts have written since the format.", |seen| {
        sectors(seen, |log| log.figures.host_sectors)
    }),
    ("moved_bytes", "Bytes that collection has moved since the format.", |seen| {
        sectors(seen, |log| log.figures.moved_sectors)
    }),
    ("padding_bytes", "Bytes of padding programmed since the format.", |seen| {
        sectors(seen, |log| log.figures.padding_sectors)
    }),
];

const GAUGES: [(&str, &str, Value); 13] = [
    ("chunks", "Chunks of the device.", |seen| Some(seen.chunks)),
    ("bad_chunks", "Those of them that can't be used.", |seen| Some(seen.bad)),
    ("bytes", "Bytes of the namespace.", |seen| sectors(seen, |log| log.capacity)),
    ("used_bytes", "Those of them that take room.", |seen| sectors(seen, |log| log.used)),
    ("unknown_bytes", "Bytes of which older content may have come back after a crash.", |seen| {
        sectors(seen, |log| log.figures.unknown_sectors)
    }),
    ("lines", "Lines of the log: one chunk of each parallel unit.", |seen| {
        of_log(seen, |log| log.figures.lines.iter().sum::<usize>() as u64)
    }),
    ("lines_free", "Those of them that are free.", |seen| of_log(seen, |log| log.figures.lines[0] as u64)),
    ("lines_kept_free", "Collection begins when no more are free.", |seen| of_log(seen, |log| log.kept_free)),
    ("lines_collected", "Lines that collection empties now.", |seen| of_log(seen, |log| log.figures.lines[3] as u64)),
    ("wear_least_erases", "Erases of the least worn line.", |seen| of_log(seen, |log| log.figures.wear[0].into())),
    ("wear_most_erases", "Erases of the most worn line.", |seen| of_log(seen, |log| log.figures.wear[1].into())),
    ("read_only", "1: too few good chunks are left for writes.", |seen| {
        of_log(seen, |log| log.figures.is_read_only.into())
    }),
    ("failed", "1: the device has failed, and nothing goes on.", |seen| of_log(seen, |log| log.has_failed.into())),
];

fn of_log(seen: &Seen, value: fn(&Log) -> u64) -> Option<u64> {
    seen.log.as_ref().map(value)
}

fn sectors(seen: &Seen, value: fn(&Log) -> u64) -> Option<u64> {
    of_log(seen, value).map(|sectors| sectors * SECTOR_BYTES as u64)
}

impl Collector for FlashMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |value: Value| seen.iter().filter_map(move |one| Some(([("device", &*one.device)], value(one)?)));
        // What no device has is not told of.
        let has = |value: &Value| told(*value).next().is_some();
        for (name, help, value) in COUNTERS.iter().filter(|(_, _, value)| has(value)) {
            by_labels(&mut encoder, (&format!("yagura_flash_{name}"), help), told(*value))?;
        }
        for (name, help, value) in GAUGES.iter().filter(|(_, _, value)| has(value)) {
            gauges(&mut encoder, (&format!("yagura_flash_{name}"), help), told(*value))?;
        }
        Ok(())
    }
}
