//! [`Volume`]: an attached volume, as a [`Namespace`].
//!
//! Invariants:
//! - A command holds the lock of its blocks from before it is sent until its result is given out; a change until it is at all
//!   replicas that need it. A task holds one lock at a time: regions are settled before a command takes its own.
//! - What is acknowledged is stable at every replica of NEED, so a flush has nothing to pass on.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Link, Mode, Namespace, NamespaceInfo, RangeGuard};
use engine::file::Lifetime;
use engine::task::{LocalFuture, Task};
use engine::{Buf, View, time};
use fabric::host::AnyRemote;

use crate::change::{Change, ZERO_REGIONS_MAX};
use crate::clear::clear_idle;
use crate::conn::Lost;
use crate::fan_out::finish;
use crate::figures::Figures;
use crate::grow::grow;
use crate::label::{Life, Shape};
use crate::origin::Origin;
use crate::reach::Reach;
use crate::read;
use crate::record::{Ballot, Record, Set, Snapshot};
use crate::shared::{Phase, Shared};
use crate::snapshot;
use crate::snapshot_name::{SnapshotId, SnapshotName};
use crate::verify::{Report, verify};
use crate::view::{SnapshotView, told, within};

/// How long detaching waits for the logs to be cleared. Guessed: some writes' time; what is not cleared is settled again.
const CLEAR_TIME_MAX: Duration = Duration::from_secs(2);

/// A volume that this host has attached. Dropping it ends all that goes on; [`Volume::detach`] leaves nothing to be settled.
pub struct Volume {
    shared: Rc<Shared>,
    _tasks: Vec<Task<()>>,
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Volume {
    /// As a namespace of any kind: whoever makes it one itself compiles all of a volume's commands.
    #[inline(never)]
    pub fn any(self: &Rc<Self>) -> AnyRemote {
        AnyRemote::from(self.clone())
    }

    pub(crate) fn new(shared: Rc<Shared>, tasks: Vec<Task<()>>) -> Volume {
        Volume { shared, _tasks: tasks }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What the volume was made as: its holders' labels say so. It may have grown since, as [`Namespace::info`] says.
    pub fn shape(&self) -> Shape {
        self.shared.shape
    }

    /// What it tells of itself.
    pub fn figures(&self) -> &Figures {
        &self.shared.figures
    }

    /// Whether another host has attached it since: every command fails from then on.
    pub fn is_superseded(&self) -> bool {
        self.shared.mirror.borrow().is_over()
    }

    /// The record that was proposed last, and whether a majority has it.
    pub fn record(&self) -> (Record, bool) {
        let mirror = self.shared.mirror.borrow();
        (mirror.current().clone(), mirror.is_stable())
    }

    /// The ballot of the record that this host has gone on from: while nobody else has attached the volume in between it is the one
    /// that the volume's record had ([`Volume::record`]) when it was detached.
    pub fn before(&self) -> Ballot {
        self.shared.before
    }

    /// The replicas in sync, as far as that is decided; all of them: nothing is missing.
    pub fn in_sync(&self) -> Set {
        self.shared.mirror.borrow().readable()
    }

    /// The holders that have the record as it is now, replicas and the witness: the volume goes on while these are a majority of
    /// all. None while a record is being written, or a holder is changed for another.
    pub fn holding(&self) -> Set {
        self.shared.mirror.borrow().holding()
    }

    /// Why the holder of a slot was lost last, in words; empty: it was not.
    pub fn reason(&self, slot: usize) -> String {
        self.shared.reason(slot)
    }

    /// Whether every replica is in sync, no region may differ, and no holder is being changed.
    pub fn is_whole(&self) -> bool {
        let mirror = self.shared.mirror.borrow();
        let is_changed = mirror.current().lives != mirror.current().lives_before;
        mirror.is_full() && !is_changed && self.shared.unsettled.borrow().is_empty() && !mirror.is_over()
    }

    /// Regions that are not known to be clean, of the replica that has the most of them.
    pub fn regions_marked(&self) -> u64 {
        let slots = 0..usize::from(self.shared.shape.replicas);
        let conns = slots.filter_map(|slot| self.shared.usable(slot));
        let marked = |region: u64, conn: &Rc<crate::conn::Conn>| conn.with_log(|log| !log.is_clean(region));
        let count = |conn: Rc<crate::conn::Conn>| {
            (0..self.shared.regions_counted()).filter(|&region| marked(region, &conn)).count() as u64
        };
        conns.map(count).max().unwrap_or(0)
    }

    /// Ends when something about the volume has changed. Look at it after making this and before awaiting it.
    pub fn changed(&self) -> engine::sync::Notified {
        self.shared.changed.notified()
    }

    /// From now on the holder of a slot is reached like this: it has moved, or was replaced by one that
    /// [`format_replacement`](crate::format_replacement) has made.
    pub fn set_reach(&self, slot: usize, reach: Rc<dyn Reach>) {
        self.shared.reaches.borrow_mut()[slot] = reach;
        if let Some(conn) = self.shared.conn(slot) {
            conn.end();
        }
        self.shared.sweep();
        self.shared.changed.notify_all();
    }

    /// The lives of the holders: a replacement has a new one.
    pub fn lives(&self) -> [Life; 3] {
        self.shared.mirror.borrow().current().lives
    }

    /// Grows the volume to so many bytes, while it is in use: what it grows by reads as zeroes. Each replica that is needed has to
    /// have the room: as many bytes as [`holder_bytes`](crate::holder_bytes) says of the new size are enough. When this has ended
    /// [`Namespace::info`] has the new size; a target that serves the volume is to be told
    /// (`fabric::subsystem::Target::refresh_namespace`).
    ///
    /// # Errors
    /// [`crate::Error::TooSmall`] names a holder that has not the room; [`crate::Error::LogTooSmall`]: the logs have none for so
    /// many regions. What an error leaves is the volume as it was, or, where another host has attached it, as it was or grown.
    pub fn grow(&self, bytes: u64) -> LocalFuture<'_, Result<(), crate::Error>> {
        Box::pin(grow(&self.shared, bytes))
    }

    /// Takes a snapshot: the bytes of one moment between this call and its end, at one replica in sync or more, whose target
    /// offers that. Writes are held for as long as the replicas take for it.
    ///
    /// # Errors
    /// [`crate::Error::NoCopies`], [`crate::Error::NotTaken`], [`crate::Error::TooManySnapshots`]; superseded, detached, or no
    /// majority answers for `wait_max`: it may be there later, or the next host may find it.
    pub fn snapshot(&self) -> LocalFuture<'_, Result<SnapshotName, crate::Error>> {
        Box::pin(snapshot::take(&self.shared, None))
    }

    /// The snapshots that there are, and who has them; by age.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.shared.mirror.borrow().stable().map_or_else(Vec::new, |record| record.snapshots.clone())
    }

    /// Deletes a snapshot: when this has ended it is there no more, and the replicas give its room back soon. One that is not there
    /// is no error.
    ///
    /// # Errors
    /// The volume is superseded or detached, or no majority answers for `wait_max`: the next host may find it still.
    pub fn delete_snapshot(&self, name: SnapshotName) -> LocalFuture<'_, Result<(), crate::Error>> {
        Box::pin(snapshot::delete(&self.shared, name))
    }

    /// Ends when the replicas that are reached have given back the room of snapshots that were deleted, as far as they do.
    pub fn collected(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let changed = self.shared.changed.notified();
                if self.shared.is_collected() || self.shared.is_over() {
                    return;
                }
                changed.await;
            }
        })
    }

    /// Of what the volume is a copy, if it was imported: see [`crate::import`].
    pub fn origin(&self) -> Option<Origin> {
        self.shared.mirror.borrow().stable().and_then(|record| record.origin)
    }

    /// The volume has all bytes of `source` and no others: takes a snapshot, with which the record says so.
    pub(crate) fn snapshot_of(&self, source: SnapshotId) -> LocalFuture<'_, Result<SnapshotName, crate::Error>> {
        Box::pin(snapshot::take(&self.shared, Some(source)))
    }

    /// Says of what the volume is a copy.
    pub(crate) fn set_origin(&self, origin: Origin) -> LocalFuture<'_, Result<(), crate::Error>> {
        Box::pin(snapshot::set_origin(&self.shared, origin))
    }

    /// Ranges of blocks in which the volume may differ from a snapshot of its own (`None`: from zeroes), ascending, as a target
    /// says that has a replica in sync; elsewhere they are the same. `None`: no such target can tell. Nobody may write meanwhile.
    ///
    /// # Errors
    /// Regions that may differ between replicas are not settled in time.
    pub(crate) fn differences<'a>(
        &'a self,
        base: Option<&'a SnapshotView>,
    ) -> LocalFuture<'a, Result<Option<Vec<Range<u64>>>, crate::Error>> {
        Box::pin(async move {
            // What is settled from another replica is not known to the one that is asked.
            snapshot::settled(&self.shared).await?;
            // A change whose caller has gone goes on: it is to be seen, and not to come after what is told.
            let locked = self.shared.lock(0, u64::MAX, Mode::Shared).await;
            drop(locked.map_err(|source| crate::Error::Device { holder: self.shared.name(), source })?);
            let readable = self.shared.mirror.borrow().readable();
            for conn in readable.iter().filter_map(|slot| self.shared.usable(slot)) {
                let data_first = conn.label.data_first;
                match told(&conn.taken().namespace, data_first, base, conn.slot).await {
                    Ok(found) if conn.is_up() => return Ok(Some(within(found, data_first, self.shared.blocks()))),
                    Ok(_) => {}
                    Err(error) => tracing::debug!(holder = conn.name(), %error, "where it differs can't be told"),
                }
            }
            Ok(None)
        })
    }

    /// Reads a snapshot, over connections of its own.
    ///
    /// # Errors
    /// As [`SnapshotView::open`].
    pub fn snapshot_view(&self, name: SnapshotName) -> LocalFuture<'_, Result<SnapshotView, crate::Error>> {
        let record = self.shared.mirror.borrow().stable().cloned().unwrap_or_default();
        let reaches = self.shared.reaches.borrow().clone();
        SnapshotView::open(reaches, self.shared.shape.volume, &record, name)
    }

    /// Whether no copy of a snapshot is left that could be read ever again: of the holders that have one by the record each is
    /// `gone` for good, or says itself that it has none. One that does not answer may come back with its copy.
    pub fn has_lost(&self, name: SnapshotName, gone: Set) -> LocalFuture<'_, bool> {
        let record = self.shared.mirror.borrow().stable().cloned();
        let reaches = self.shared.reaches.borrow().clone();
        Box::pin(async move {
            let Some(record) = record else { return false };
            SnapshotView::is_lost(reaches, self.shared.shape.volume, &record, (name, gone)).await
        })
    }

    /// Compares the replicas in sync, block by block, while the volume is in use.
    ///
    /// # Errors
    /// The volume is superseded, detached, or its replicas can't be reached.
    pub fn verify(&self, bytes_per_second: Option<u64>) -> LocalFuture<'_, Result<Report, Error>> {
        Box::pin(verify(&self.shared, bytes_per_second))
    }

    /// Ends the attachment in order: takes no more commands, waits for those under way, and clears the logs. Who attaches next has
    /// nothing to settle. The reservations stay, for the next to take over: without them late commands of a host from before
    /// this one would be let through.
    ///
    /// # Errors
    /// The volume was superseded. What can't be cleared in time is left, which is safe.
    pub fn detach(&self) -> LocalFuture<'_, Result<(), crate::Error>> {
        Box::pin(async move {
            if self.is_superseded() {
                return Err(crate::Error::Superseded);
            }
            if self.shared.phase.get() != Phase::Serving {
                return Err(crate::Error::Detached);
            }
            self.shared.phase.set(Phase::Quiescing);
            self.shared.changed.notify_all();
            // What is under way holds its locks. What does not end is settled by the next host, and so is what is not cleared.
            let all = self.shared.locks.lock(0, u64::MAX, Mode::Exclusive);
            let all = time::timeout(self.shared.options.wait_max, all).await;
            let cleared = time::timeout(CLEAR_TIME_MAX, self.cleared()).await;
            if cleared.is_err() {
                tracing::debug!(volume = self.shared.name(), "some regions are left to be settled");
            }
            drop(all);
            self.shared.close();
            (0..self.shared.shape.holders()).filter_map(|slot| self.shared.conn(slot)).for_each(|conn| conn.end());
            Ok(())
        })
    }

    /// Hands the volume over: detaches it, and waits for `other`, by which another host attaches it.
    ///
    /// # Errors
    /// As [`Volume::detach`], or the other host's. The volume is detached in any case but the first.
    pub fn hand_over<'a, T>(
        &'a self,
        other: LocalFuture<'a, Result<T, crate::Error>>,
    ) -> LocalFuture<'a, Result<T, crate::Error>>
    where
        T: 'a,
    {
        Box::pin(async move {
            self.detach().await?;
            other.await
        })
    }

    /// Waits until the logs say nothing of what is settled.
    async fn cleared(&self) {
        loop {
            clear_idle(&self.shared, Duration::ZERO);
            let need = self.shared.mirror.borrow().need();
            let entry = crate::resync::cleared(&self.shared);
            let is_done = |slot: usize| {
                let Some(conn) = self.shared.usable(slot) else { return true };
                let unsettled = self.shared.unsettled.borrow();
                let said = |region| conn.with_log(|log| log.entry(region));
                (0..self.shared.regions_counted())
                    .filter(|&region| !unsettled.has(region))
                    .all(|region| said(region) == Some(entry) || said(region) == Some(crate::log::CLEAN))
            };
            if self.shared.is_over() || need.iter().all(is_done) {
                return;
            }
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    // Commands.

    fn check_range(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let end = self.shared.blocks();
        match lba.0.checked_add(blocks) {
            Some(last) if last <= end => Ok(()),
            _ => Err(Error::OutOfRange { lba, blocks, end }),
        }
    }

    /// Whole blocks, at least one and at most `blocks_max`, within the volume. Returns how many.
    fn check_length(&self, lba: Lba, bytes: usize, blocks_max: u32) -> Result<u64, Error> {
        let block_size = self.shared.shape.block_size;
        let bytes_max = blocks_max as usize * block_size as usize;
        if bytes == 0 || !bytes.is_multiple_of(block_size as usize) || bytes > bytes_max {
            return Err(Error::InvalidLength { bytes, block_size, bytes_max });
        }
        let blocks = (bytes / block_size as usize) as u64;
        self.check_range(lba, blocks).map(|()| blocks)
    }

    /// Waits until the blocks may be used, and takes their lock.
    async fn enter(&self, lba: Lba, blocks: u64, mode: Mode) -> Result<RangeGuard, Error> {
        self.shared.check()?;
        self.shared.settled(self.shared.span(lba.0, blocks)).await?;
        let guard = self.shared.lock(lba.0, blocks, mode).await?;
        self.shared.check()?;
        Ok(guard)
    }

    async fn change(&self, lba: Lba, blocks: u64, change: Change) -> Result<(), Error> {
        let guard = self.enter(lba, blocks, Mode::Exclusive).await?;
        finish(&self.shared, guard, lba.0, change, self.shared.span(lba.0, blocks)).await
    }

    async fn zero(&self, lba: Lba, blocks: u64, gives_back: bool) -> Result<(), Error> {
        self.check_range(lba, blocks)?;
        let most = ZERO_REGIONS_MAX * u64::from(self.shared.shape.region_blocks);
        let mut done = 0;
        while done < blocks {
            // Up to the end of a region, so that what follows begins with one.
            let at = Lba(lba.0 + done);
            let now = (most - at.0 % most).min(blocks - done);
            let changed = self.change(at, now, Change::Zero { blocks: now, gives_back }).await;
            // Where a part was done no error may say that nothing was.
            changed.map_err(|error| if done > 0 { Error::Disconnected(self.shared.name()) } else { error })?;
            done += now;
        }
        Ok(())
    }
}

impl Namespace for Volume {
    device::namespace_without!(used_blocks, attributes, zones);

    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { blocks: self.shared.blocks(), ..self.shared.info.clone() }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let entered = match self.check_length(lba, buf.len(), self.shared.info.transfer_blocks_max) {
            Ok(blocks) => self.enter(lba, blocks, Mode::Shared).await,
            Err(error) => Err(error),
        };
        match entered {
            Ok(_guard) => read::read(&self.shared, lba.0, buf).await,
            Err(error) => (Err(error), buf),
        }
    }

    async fn write(&self, lba: Lba, data: View, _durability: Durability) -> Result<(), Error> {
        let blocks = self.check_length(lba, data.len(), self.shared.info.transfer_blocks_max)?;
        self.change(lba, blocks, Change::Write(data)).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.shared.check()
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let blocks = self.check_length(lba, expected.len(), self.shared.info.transfer_blocks_max)?;
        let _guard = self.enter(lba, blocks, Mode::Shared).await?;
        let (read, found) = read::read(&self.shared, lba.0, Buf::with_len(expected.len())).await;
        read?;
        if found[..] == expected[..] { Ok(()) } else { Err(Error::CompareFailure) }
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, _how: Durability) -> Result<(), Error> {
        let most = self.shared.info.compare_and_write_blocks_max;
        let blocks = self.check_length(lba, expected.len(), most)?;
        if expected.len() != new.len() {
            self.check_length(lba, new.len(), 0)?;
        }
        let guard = self.enter(lba, blocks, Mode::Exclusive).await?;
        let (read, found) = read::read(&self.shared, lba.0, Buf::with_len(expected.len())).await;
        read?;
        if found[..] != expected[..] {
            return Err(Error::CompareFailure);
        }
        finish(&self.shared, guard, lba.0, Change::Write(new), self.shared.span(lba.0, blocks)).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, _durability: Durability) -> Result<(), Error> {
        self.zero(lba, blocks, false).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.zero(lba, blocks, true).await
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.check_range(lba, blocks)?;
        if blocks == 0 {
            return Ok(());
        }
        let _guard = self.enter(lba, blocks, Mode::Shared).await?;
        let mut since = None;
        loop {
            read::leased(&self.shared).await?;
            let changed = self.shared.changed.notified();
            let Some(conn) = self.shared.best(Set::default()) else {
                self.shared.wait(&mut since, changed).await?;
                continue;
            };
            match conn.verify(lba.0, blocks).await {
                Ok(()) => return Ok(()),
                Err(Lost::Ended) => self.shared.sweep(),
                Err(Lost::Refused(error)) => return Err(error),
            }
        }
    }

    async fn write_uncorrectable(&self, _lba: Lba, _blocks: u64) -> Result<(), Error> {
        Err(Error::Unsupported("write uncorrectable"))
    }

    async fn hint_lifetime(&self, _lifetime: Lifetime) -> bool {
        false
    }

    fn writability(&self) -> device::Writability {
        if self.is_superseded() { device::Writability::Failed } else { device::Writability::Writable }
    }

    fn link(&self) -> Link {
        Link { is_up: self.shared.check().is_ok(), epoch: 0 }
    }
}
