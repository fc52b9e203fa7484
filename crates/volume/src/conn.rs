//! One connection to one holder: every command of ours goes through here.
//!
//! Invariants:
//! - A connection ends, for the mirror, with the first command whose outcome is not known, with the first Reservation Conflict, and
//!   when its link shows another epoch than when it was taken. From then on every command fails, and answers that still come are
//!   ignored: the next connection has preempted this one, and writes again what it was to write.
//! - The link is looked at and the command entered in one step, without a wait between: what the link reconnects to by itself
//!   never gets a command of ours.
//! - One write of a log block at a time.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use device::{Durability, Lba, Namespace};
use engine::sync::Notify;
use engine::time::Instant;
use engine::{Buf, View, task, time};

use crate::block::is_sound;
use crate::blocks::{PIECE_BYTES, read_block, read_blocks, read_label};
use crate::change::Change;
use crate::error::Error;
use crate::figures::{Figures, ReplicaFigures};
use crate::label::{Kind, LOG_BLOCK, Label, RECORD_BLOCK};
use crate::log::{INTENT, Log};
use crate::reach::{Reach, Taken};
use crate::record::{Ballot, Record, RecordBlock};

/// Weight of a new latency in the average, as a power of two. Guessed: the last eight count.
const AVERAGE_SHIFT: u32 = 3;

/// Why a command has no result that counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    /// The connection has ended: whoever still wants it done does it again over the next one.
    Ended,
    /// The holder has answered, and will not do it.
    Refused(device::Error),
}

/// What a holder says to a promise or a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// It is stable there.
    Yes,
    /// A newer host was promised more.
    Higher,
}

/// See the module.
pub(crate) struct Conn {
    pub(crate) slot: usize,
    taken: Taken,
    pub(crate) label: Label,
    /// When the volume got it.
    pub(crate) since: Cell<Instant>,
    name: String,
    /// What the record block holds, as far as this connection knows.
    block: Cell<RecordBlock>,
    /// The bytes of that: what a compare-and-write expects.
    bytes: RefCell<View>,
    log: RefCell<Log>,
    is_ended: Cell<bool>,
    /// Why, in words.
    reason: RefCell<String>,
    /// The medium has refused a write: to connect again does not help.
    is_refused: Cell<bool>,
    /// Writes of log blocks that were refused, and the last one's error.
    log_refused: RefCell<(u64, Option<device::Error>)>,
    /// Nanoseconds; the average.
    latency: Cell<u64>,
    /// Told when the connection ends, and when a log block was written.
    changed: Notify,
    /// Told when the connection ends: that of the volume.
    ended: Notify,
    figures: Figures,
}

impl Conn {
    /// Connects, takes the reservation, and reads what the holder says of itself. `expected`: slot and volume.
    pub(crate) async fn open(
        reach: &Rc<dyn Reach>,
        (slot, volume): (usize, Option<u128>),
        ended: Notify,
        figures: Figures,
    ) -> Result<Rc<Conn>, Error> {
        let taken = reach.take().await?;
        let name = reach.name();
        let label = read_label(&taken.namespace, &name).await?;
        if usize::from(label.slot) != slot || volume.is_some_and(|volume| volume != label.shape.volume) {
            return Err(Error::OtherVolume { holder: name, volume: label.shape.volume, slot: label.slot });
        }
        let failed = |source| Error::Device { holder: name.clone(), source };
        let bytes = read_block(&taken.namespace, RECORD_BLOCK).await.map_err(failed)?;
        let block = RecordBlock::decode(&bytes, label.life);
        let block = block.map_err(|source| Error::Record { holder: name.clone(), source })?;
        let log_blocks = if label.kind == Kind::Witness { 0 } else { Log::blocks(&label) };
        let log = read_blocks(&taken.namespace, LOG_BLOCK, log_blocks).await.map_err(failed)?;
        let log = RefCell::new(Log::decode(&label, &log));
        if !taken.is_up() {
            return Err(failed(device::Error::Disconnected(name.clone())));
        }
        figures.replica(slot).connections.fetch_add(1, Relaxed);
        Ok(Rc::new(Conn {
            slot,
            taken,
            label,
            since: Cell::new(time::now()),
            name,
            block: Cell::new(block),
            bytes: RefCell::new(bytes.freeze()),
            log,
            is_ended: Cell::new(false),
            reason: RefCell::default(),
            is_refused: Cell::new(false),
            log_refused: RefCell::default(),
            latency: Cell::new(0),
            changed: Notify::new(),
            ended,
            figures,
        }))
    }

    /// The holder in words.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The connection, for who gives its reservation up.
    pub(crate) fn taken(&self) -> &Taken {
        &self.taken
    }

    /// Whether commands can be sent.
    pub(crate) fn is_up(&self) -> bool {
        if !self.is_ended.get() && !self.taken.is_up() {
            self.end();
        }
        !self.is_ended.get()
    }

    /// It ends: see the module.
    pub(crate) fn end(&self) {
        if !self.is_ended.replace(true) {
            tracing::debug!(holder = self.name, "a connection has ended");
            self.changed.notify_all();
            self.ended.notify_all();
        }
    }

    fn end_by(&self, error: &device::Error) {
        if !self.is_ended.get() {
            *self.reason.borrow_mut() = error.to_string();
            self.end();
        }
    }

    /// Why it has ended, in words.
    pub(crate) fn reason(&self) -> String {
        let reason = self.reason.borrow();
        if reason.is_empty() { format!("the connection to {} was lost", self.name) } else { reason.clone() }
    }

    /// It ends since its medium takes no writes.
    pub(crate) fn refuse(&self, error: &device::Error) {
        if !self.is_ended.get() {
            tracing::warn!(holder = self.name, %error, "a replica takes no writes, and is left behind");
            self.is_refused.set(true);
            self.end_by(error);
        }
    }

    /// Whether the medium has refused a write.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.get()
    }

    pub(crate) fn figures(&self) -> &ReplicaFigures {
        self.figures.replica(self.slot)
    }

    /// How good it is to read from: the average latency by the length of the queue.
    pub(crate) fn cost(&self) -> u64 {
        self.latency.get().saturating_mul(self.figures().queue() + 1)
    }

    /// The result of a command, if it counts.
    fn judge(&self, result: Result<(), device::Error>) -> Result<(), Lost> {
        if !self.is_up() {
            return Err(Lost::Ended);
        }
        match result {
            Ok(()) => Ok(()),
            Err(
                error @ (device::Error::NotConnected(_)
                | device::Error::Disconnected(_)
                | device::Error::Aborted
                | device::Error::Reserved(_)),
            ) => {
                self.end_by(&error);
                Err(Lost::Ended)
            }
            Err(error) => Err(Lost::Refused(error)),
        }
    }

    /// Waits for a command, at most until the connection ends.
    async fn run<T>(&self, command: impl Future<Output = T>) -> Result<T, Lost> {
        if !self.is_up() {
            return Err(Lost::Ended);
        }
        let mut command = pin!(command);
        let mut changed = pin!(self.changed.notified());
        poll_fn(|cx| {
            if let Poll::Ready(output) = command.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            while changed.as_mut().poll(cx).is_ready() {
                if !self.is_up() {
                    return Poll::Ready(Err(Lost::Ended));
                }
                changed.set(self.changed.notified());
            }
            Poll::Pending
        })
        .await
    }

    /// How long a data command took.
    async fn timed<T>(&self, (is_read, bytes): (bool, u64), command: impl Future<Output = T>) -> Result<T, Lost> {
        /// Also when the command is dropped.
        struct Queued<'a>(&'a ReplicaFigures);
        impl Drop for Queued<'_> {
            fn drop(&mut self) {
                self.0.queue.fetch_sub(1, Relaxed);
            }
        }
        let figures = self.figures();
        figures.queue.fetch_add(1, Relaxed);
        let queued = Queued(figures);
        let begin = time::now();
        let output = self.run(command).await?;
        let took = begin.elapsed();
        drop(queued);
        figures.answered(is_read, bytes, took);
        self.note(took);
        Ok(output)
    }

    fn note(&self, took: Duration) {
        let (old, new) = (self.latency.get(), u64::try_from(took.as_nanos()).unwrap_or(u64::MAX >> AVERAGE_SHIFT));
        let average = if old == 0 { new } else { old - (old >> AVERAGE_SHIFT) + (new >> AVERAGE_SHIFT) };
        self.latency.set(average.max(1));
    }

    // The record.

    /// What the record block holds.
    pub(crate) fn block(&self) -> RecordBlock {
        self.block.get()
    }

    /// Asks for a promise that nothing below `ballot` is accepted any more.
    pub(crate) async fn promise(&self, ballot: Ballot) -> Result<Said, Lost> {
        let old = self.block.get();
        if old.promised >= ballot {
            return Ok(Said::Higher);
        }
        self.swap(RecordBlock { promised: ballot, ..old }).await
    }

    /// Makes a record stable.
    pub(crate) async fn accept(&self, record: &Record) -> Result<Said, Lost> {
        let old = self.block.get();
        if old.promised > record.ballot {
            return Ok(Said::Higher);
        }
        let accepted = if record.order() > old.accepted.order() { *record } else { old.accepted };
        self.swap(RecordBlock { promised: record.ballot, accepted, ..old }).await
    }

    async fn swap(&self, new: RecordBlock) -> Result<Said, Lost> {
        let mut bytes = Buf::with_len(self.label.shape.block_size as usize);
        new.encode(&mut bytes);
        let (expected, bytes) = (self.bytes.borrow().clone(), bytes.freeze());
        let lba = Lba(RECORD_BLOCK);
        let swap = self.taken.namespace.compare_and_write(lba, expected, bytes.clone(), Durability::Stable);
        let swapped = self.run(swap).await?;
        if let Err(Lost::Refused(error)) = self.judge(swapped) {
            // Of an unequal compare: nobody else may write it while the reservation is ours, so it is not.
            self.end_by(&error);
        }
        if !self.is_up() {
            return Err(Lost::Ended);
        }
        self.block.set(new);
        *self.bytes.borrow_mut() = bytes;
        Ok(Said::Yes)
    }

    /// Reads the promise of the holder: whether it is above `ballot`.
    pub(crate) async fn confirm(&self, ballot: Ballot) -> Result<Said, Lost> {
        let bytes = self.run(read_block(&self.taken.namespace, RECORD_BLOCK)).await?;
        match bytes {
            Ok(bytes) => match RecordBlock::decode(&bytes, self.label.life) {
                Ok(found) if found.promised > ballot => Ok(Said::Higher),
                Ok(_) if self.is_up() => Ok(Said::Yes),
                _ => Err(Lost::Ended),
            },
            Err(error) => self.judge(Err(error)).map(|()| Said::Yes),
        }
    }

    /// Whether label, record and log have the right checksums on the medium.
    pub(crate) async fn is_sound(&self) -> Result<bool, Lost> {
        let (namespace, block_size) = (&self.taken.namespace, self.label.shape.block_size as usize);
        let log_blocks = if self.label.kind == Kind::Witness { 0 } else { Log::blocks(&self.label) };
        let blocks = self.run(read_blocks(namespace, 0, LOG_BLOCK + log_blocks)).await?;
        let blocks = match blocks {
            Ok(blocks) => blocks,
            Err(error) => return self.judge(Err(error)).map(|()| false),
        };
        Ok(blocks.chunks_exact(block_size).all(is_sound))
    }

    // The log.

    /// Looks at the log.
    pub(crate) fn with_log<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&self.log.borrow())
    }

    /// Waits until the intent of regions `first..=last` is stable.
    pub(crate) async fn mark(self: &Rc<Self>, (first, last): (u64, u64)) -> Result<(), Lost> {
        if (first..=last).all(|region| self.log.borrow().is_marked(region)) {
            return Ok(());
        }
        let refused = self.log_refused.borrow().0;
        for region in (first..=last).filter(|&region| !self.log.borrow().is_marked(region)) {
            self.set_entry(region, INTENT);
        }
        loop {
            let changed = self.changed.notified();
            if !self.is_up() {
                return Err(Lost::Ended);
            }
            if (first..=last).all(|region| self.log.borrow().is_marked(region)) {
                return Ok(());
            }
            if let (count, Some(error)) = &*self.log_refused.borrow()
                && *count > refused
            {
                return Err(Lost::Refused(error.clone()));
            }
            changed.await;
        }
    }

    /// The entry of a region is to be that. It is written soon, with what else changes in its block until then.
    pub(crate) fn set_entry(self: &Rc<Self>, region: u64, entry: u8) {
        let block = self.log.borrow_mut().want(region, entry);
        let Some(bytes) = self.log.borrow_mut().next_write(block) else { return };
        task::spawn(Rc::clone(self).write_log(block, bytes)).detach();
    }

    /// Writes a log block until there is nothing new in it.
    async fn write_log(self: Rc<Self>, block: usize, mut bytes: Buf) {
        loop {
            let view = bytes.freeze();
            let lba = Lba(LOG_BLOCK + block as u64);
            let write = self.taken.namespace.write(lba, view.clone(), self.durability());
            self.figures().log_writes.fetch_add(1, Relaxed);
            let written = self.run(write).await;
            match written.and_then(|written| self.judge(written)) {
                Ok(()) => {}
                Err(Lost::Ended) => return,
                Err(Lost::Refused(error)) if error.outcome_unknown() => return self.refuse(&error),
                // Whoever waits for a mark sends no data. A mark that was to be taken away stays.
                Err(Lost::Refused(error)) => {
                    self.log.borrow_mut().failed(block);
                    let count = self.log_refused.borrow().0 + 1;
                    self.log_refused.replace((count, Some(error)));
                    return self.changed.notify_all();
                }
            }
            self.log.borrow_mut().written(block, &view);
            self.changed.notify_all();
            let next = self.log.borrow_mut().next_write(block);
            match next {
                Some(next) => bytes = next,
                None => return,
            }
        }
    }

    // Data.

    /// Where the volume's blocks lie.
    fn place(&self, lba: u64) -> Lba {
        Lba(self.label.data_first + lba)
    }

    /// What is acknowledged must survive a power loss of the replica: it stays in sync if it is back soon.
    fn durability(&self) -> Durability {
        if self.taken.namespace.info().volatile_cache { Durability::Stable } else { Durability::Cached }
    }

    /// Reads blocks of the volume. The buffer is lost where the connection ends.
    pub(crate) async fn read(&self, lba: u64, buf: Buf) -> Result<Buf, Lost> {
        let bytes = buf.len() as u64;
        let read = self.taken.namespace.read(self.place(lba), buf);
        let (result, buf) = self.timed((true, bytes), read).await?;
        self.judge(result).map(|()| buf)
    }

    /// Checks that blocks can be read.
    pub(crate) async fn verify(&self, lba: u64, blocks: u64) -> Result<(), Lost> {
        let verified = self.run(self.taken.namespace.verify(self.place(lba), blocks)).await?;
        self.judge(verified)
    }

    /// Makes a change of blocks in regions that are marked first.
    pub(crate) async fn put(self: Rc<Self>, lba: u64, change: Change, regions: (u64, u64)) -> Result<(), Lost> {
        self.mark(regions).await?;
        match change {
            Change::Write(data) => self.write(lba, data).await,
            Change::Zero { blocks, gives_back } => self.zero(lba, blocks, gives_back).await,
        }
    }

    /// Makes a block unreadable, which nobody whose copy counts can read.
    pub(crate) async fn spoil(self: &Rc<Self>, lba: u64, region: u64) -> Result<(), Lost> {
        self.mark((region, region)).await?;
        let spoilt = self.run(self.taken.namespace.write_uncorrectable(self.place(lba), 1)).await?;
        self.judge(spoilt)
    }

    async fn write(&self, lba: u64, data: View) -> Result<(), Lost> {
        let bytes = data.len() as u64;
        let write = self.taken.namespace.write(self.place(lba), data, self.durability());
        let written = self.timed((false, bytes), write).await?;
        self.judge(written)
    }

    /// Zeroes, in the best way that the target has.
    async fn zero(&self, lba: u64, blocks: u64, gives_back: bool) -> Result<(), Lost> {
        let (namespace, info) = (&self.taken.namespace, self.taken.namespace.info());
        if gives_back && info.deallocated_reads_zero {
            let given = self.timed((false, 0), namespace.deallocate(self.place(lba), blocks)).await?;
            match self.judge(given) {
                Err(Lost::Refused(device::Error::Unsupported(_))) => {}
                // To deallocate is not stable by itself.
                Ok(()) if info.volatile_cache => {
                    return self.judge(self.run(namespace.flush()).await?).map_err(in_part);
                }
                result => return result,
            }
        }
        let zeroes = namespace.write_zeroes(self.place(lba), blocks, self.durability());
        let zeroed = self.timed((false, 0), zeroes).await?;
        match self.judge(zeroed) {
            Err(Lost::Refused(device::Error::Unsupported(_))) => {}
            result => return result,
        }
        let block_size = u64::from(info.block_size);
        let most = (PIECE_BYTES as u64 / block_size).min(u64::from(info.transfer_blocks_max)).min(blocks).max(1);
        let zeroes = Buf::zeroed((most * block_size) as usize).freeze();
        for first in (0..blocks).step_by(most as usize) {
            let now = most.min(blocks - first) * block_size;
            let written = self.write(lba + first, zeroes.slice(..now as usize)).await;
            written.map_err(|lost| if first > 0 { in_part(lost) } else { lost })?;
        }
        Ok(())
    }
}

/// A refusal behind a part that was done says that nothing more was.
fn in_part(lost: Lost) -> Lost {
    match lost {
        Lost::Refused(error) if !error.outcome_unknown() => Lost::Refused(device::Error::WriteFault(error.to_string())),
        lost => lost,
    }
}
