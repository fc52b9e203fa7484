//! One connection to one holder: every command of ours goes through here.
//!
//! Invariants:
//! - A connection ends, for the mirror, with the first command whose outcome is not known, with the first Reservation Conflict, and
//!   when its link shows another epoch than when it was taken. From then on every command fails, and answers that still come are
//!   ignored: the next connection has preempted this one, and writes again what it was to write.
//! - The link is looked at and the command entered in one step, without a wait between: what the link reconnects to by itself
//!   never gets a command of ours.
//! - One write of a log block at a time.

mod data;

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
use fabric::host::{CopyTag, NamespaceCopy};

use crate::block::is_sound;
use crate::blocks::{read_block, read_blocks, read_label};
use crate::error::Error;
use crate::figures::{Figures, ReplicaFigures};
use crate::label::{Kind, LOG_BLOCK, Label, RECORD_BLOCK};
use crate::log::{INTENT, Log};
use crate::reach::{Copies, Reach, Taken, Takes};
use crate::record::{Ballot, Record, RecordBlock, RecordError};

/// Weight of a new latency in the average, as a power of two. Guessed: the last eight count.
const AVERAGE_SHIFT: u32 = 3;

/// What a connection is to lead to.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) slot: usize,
    /// `None`: any.
    pub(crate) volume: Option<u128>,
    /// Regions that count, as far as that is known.
    pub(crate) regions: u64,
}

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
    block: RefCell<RecordBlock>,
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
    /// Connects, takes the reservation, and reads what the holder says of itself: of its log what has entries of so many regions,
    /// and of as many as its own record knows of.
    pub(crate) async fn open(
        reach: &Rc<dyn Reach>,
        Expected { slot, volume, regions }: Expected,
        ended: Notify,
        figures: Figures,
    ) -> Result<Rc<Conn>, Error> {
        let taken = reach.take(Takes::Holder).await?;
        let name = reach.name();
        let label = read_label(&taken.namespace, &name).await?;
        if usize::from(label.slot) != slot || volume.is_some_and(|volume| volume != label.shape.volume) {
            return Err(Error::OtherVolume { holder: name, volume: label.shape.volume, slot: label.slot });
        }
        let failed = |source| Error::Device { holder: name.clone(), source };
        let bytes = read_block(&taken.namespace, RECORD_BLOCK).await.map_err(failed)?;
        let block = RecordBlock::decode(&bytes, label.life);
        let block = block.map_err(|source| Error::Record { holder: name.clone(), source })?;
        let damaged = Error::Record { holder: name.clone(), source: RecordError::SIZE };
        let own = label.regions_of(block.accepted.size(label.shape.blocks)).ok_or(damaged)?;
        let regions = regions.max(own).min(label.regions_max());
        let log_blocks = if label.kind == Kind::Witness { 0 } else { Log::blocks(&label, regions) };
        let log = read_blocks(&taken.namespace, LOG_BLOCK, log_blocks).await.map_err(failed)?;
        let log = RefCell::new(Log::decode(&label, regions, &log));
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
            block: RefCell::new(block),
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
        self.block.borrow().clone()
    }

    /// Asks for a promise that nothing below `ballot` is accepted any more.
    pub(crate) async fn promise(&self, ballot: Ballot) -> Result<Said, Lost> {
        let old = self.block();
        if old.promised >= ballot {
            return Ok(Said::Higher);
        }
        self.swap(RecordBlock { promised: ballot, ..old }).await
    }

    /// Makes a record stable.
    pub(crate) async fn accept(&self, record: &Record) -> Result<Said, Lost> {
        let RecordBlock { life, promised, mut accepted } = self.block();
        if promised > record.ballot {
            return Ok(Said::Higher);
        }
        if record.order() > accepted.order() {
            accepted = record.clone();
        }
        self.swap(RecordBlock { life, promised: record.ballot, accepted }).await
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
        self.block.replace(new);
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
        let log_blocks = self.log.borrow().blocks_known();
        let blocks = self.run(read_blocks(namespace, 0, LOG_BLOCK + log_blocks)).await?;
        let blocks = match blocks {
            Ok(blocks) => blocks,
            Err(error) => return self.judge(Err(error)).map(|()| false),
        };
        Ok(blocks.chunks_exact(block_size).all(is_sound))
    }

    // Snapshots.

    /// Whether the target offers snapshots.
    pub(crate) fn offers_snapshots(&self) -> bool {
        self.taken.copies.is_some()
    }

    /// Has the replica take a snapshot.
    pub(crate) async fn snapshot(&self, tag: CopyTag) -> Result<(), Lost> {
        let copies = self.copies_offered()?;
        let taken = self.run(copies.snapshot(tag)).await?;
        self.judge(taken.map(drop))
    }

    /// The snapshots and clones of the replica.
    pub(crate) async fn copies(&self) -> Result<Vec<NamespaceCopy>, Lost> {
        let copies = self.copies_offered()?;
        match self.run(copies.copies()).await? {
            Ok(copies) => self.judge(Ok(())).map(|()| copies),
            Err(error) => self.judge(Err(error)).map(|()| Vec::new()),
        }
    }

    /// Deletes a snapshot of the replica.
    pub(crate) async fn delete_copy(&self, copy: &NamespaceCopy) -> Result<(), Lost> {
        let copies = self.copies_offered()?;
        let deleted = self.run(copies.delete_copy(copy.nsid, copy.nguid)).await?;
        self.judge(deleted)
    }

    fn copies_offered(&self) -> Result<&Rc<dyn Copies>, Lost> {
        let copies = self.taken.copies.as_ref();
        copies.ok_or(Lost::Refused(device::Error::Unsupported("snapshots")))
    }

    // The log.

    /// Looks at the log.
    pub(crate) fn with_log<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&self.log.borrow())
    }

    /// Whether the log's entries of so many regions are known; those of a witness count as known.
    pub(crate) fn is_covered(&self, regions: u64) -> bool {
        self.label.kind == Kind::Witness || self.log.borrow().blocks_known() >= Log::blocks(&self.label, regions)
    }

    /// So many regions count from now on: those that are not known yet are read. Refused where the log has not the room: the data
    /// begins behind it.
    pub(crate) async fn cover(&self, regions: u64) -> Result<(), Lost> {
        if self.label.kind == Kind::Witness {
            return Ok(());
        }
        if regions > self.label.regions_max() {
            return Err(Lost::Refused(device::Error::OutOfSpace));
        }
        let first = self.log.borrow().blocks_known();
        let count = Log::blocks(&self.label, regions).saturating_sub(first);
        let bytes = match self.run(read_blocks(&self.taken.namespace, LOG_BLOCK + first, count)).await? {
            Ok(bytes) => bytes,
            Err(error) => return self.judge(Err(error)),
        };
        // Another one may have done it meanwhile.
        if self.log.borrow().blocks_known() == first {
            self.log.borrow_mut().cover(regions, &bytes);
        }
        Ok(())
    }

    /// So many regions count: they are known ([`Conn::is_covered`]).
    pub(crate) fn count_regions(&self, regions: u64) {
        if self.is_covered(regions) && self.label.kind == Kind::Replica {
            self.log.borrow_mut().cover(regions, &[]);
        }
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
}
