//! [`Manager`]: a media manager, which makes of a flash device an array of sectors that can be written in place.
//!
//! What it promises, and why that holds, is in the README of this crate; each file has the invariants of its part.

mod buffer;
mod check;
mod checkpoint;
mod collect;
mod core;
mod error;
mod find;
mod format;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod join;
mod lines;
mod map;
mod read;
mod recover;
mod reserve;
mod root;
mod scan;
mod tag;
mod write;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use device::Error;
use engine::View;
use engine::task::{self, LocalFuture, Task};

use self::buffer::{Range, Stream};
use self::core::Core;
use self::lines::LineState;
use self::recover::Purpose;
use crate::address::{Chunk, Sector};
use crate::device::FlashDevice;

pub use self::check::CheckReport;
pub use self::core::{ManagerOptions, Policy};
pub use self::error::ManagerError;
pub use self::format::FormatOptions;
pub(crate) use self::join::join_all;

/// Sectors of one range of a record. Chosen: what is applied to the map without keeping others waiting for long.
const RANGE_SECTORS_MAX: u32 = 1 << 18;

/// What commands are told that come behind the end.
const CLOSED: &str = "the media manager was closed";

/// How long hosts say that content stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Heat {
    /// It is replaced soon.
    #[default]
    Hot,
    /// It stays.
    Cold,
}

/// Figures of a media manager.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Sectors that hosts have written since the device was formatted.
    pub host_sectors: u64,
    /// Sectors that were programmed, tags and padding among them; roots are not.
    pub programmed_sectors: u64,
    /// Sectors that collection has moved.
    pub moved_sectors: u64,
    /// Sectors of padding.
    pub padding_sectors: u64,
    /// Sectors that openings could neither read nor name: older content of them may have come back.
    pub unknown_sectors: u64,
    /// Lines that are free, open, closed, and being emptied.
    pub lines: [usize; 4],
    /// The least and the most resets of a line.
    pub wear: [u32; 2],
    /// The number of the root in force; each opening leaves one number out.
    pub roots: u64,
    /// No more writes are taken.
    pub is_read_only: bool,
}

impl Figures {
    /// Sectors programmed for each one that hosts have written.
    pub fn write_amplification(&self) -> f64 {
        self.programmed_sectors as f64 / self.host_sectors.max(1) as f64
    }
}

/// What the log has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Sectors that all lines hold, tags left out.
    pub payload: u64,
    /// Sectors that a line holds.
    pub line: u64,
    /// Lines that are kept free: collection begins when no more are.
    pub kept_free: u64,
}

impl Room {
    /// Sectors of the lines that are not kept free.
    pub fn for_data(&self) -> u64 {
        self.payload.saturating_sub(self.kept_free * self.line)
    }
}

/// See the module.
pub struct Manager {
    core: Rc<Core>,
    task: RefCell<Option<Task<()>>>,
}

impl Manager {
    /// Formats a device: what is on it is lost.
    ///
    /// # Errors
    /// A device that can't be used, or fails.
    pub fn format<'a>(
        device: Rc<dyn FlashDevice>,
        options: &'a FormatOptions,
    ) -> LocalFuture<'a, Result<(), ManagerError>> {
        Box::pin(async move { format::format(device, options).await })
    }

    /// Sectors of the namespace that a format would make of a device, which is left as it is.
    ///
    /// # Errors
    /// A device that can't be used.
    pub fn plan<'a>(
        device: &'a dyn FlashDevice,
        options: &'a FormatOptions,
    ) -> LocalFuture<'a, Result<u32, ManagerError>> {
        Box::pin(async move { format::plan(device, options).await })
    }

    /// Opens a device that was formatted, after a crash as well as after a close.
    ///
    /// # Errors
    /// A device that was not formatted, is another one than what is on it says, is damaged or fails.
    pub fn open(
        device: Rc<dyn FlashDevice>,
        options: ManagerOptions,
    ) -> LocalFuture<'static, Result<Manager, ManagerError>> {
        Box::pin(async move {
            let core = recover::open(device, options, Purpose::Use).await?;
            let task = task::spawn(core.clone().maintain());
            Ok(Manager { core, task: RefCell::new(Some(task)) })
        })
    }

    /// Opens a device to be looked at: nothing is written to it, and no write is taken. After a crash, what recovery finds is in
    /// memory alone, and the next one finds it again.
    ///
    /// # Errors
    /// As [`Manager::open`].
    pub fn look(device: Rc<dyn FlashDevice>) -> LocalFuture<'static, Result<Manager, ManagerError>> {
        Box::pin(async move {
            let core = recover::open(device, ManagerOptions::default(), Purpose::Look).await?;
            Ok(Manager { core, task: RefCell::new(None) })
        })
    }

    /// Sectors of the namespace.
    pub fn capacity(&self) -> u32 {
        self.core.state.borrow().map.capacity()
    }

    /// Identity of the format.
    pub fn identity(&self) -> [u8; 16] {
        self.core.identity
    }

    /// Sectors of the namespace that take room.
    pub fn used(&self) -> u64 {
        self.core.state.borrow().map.used()
    }

    /// Sectors that are written together at no cost of padding.
    pub fn unit_sectors(&self) -> u32 {
        self.core.codec.payload()
    }

    /// Sectors that are programmed together, tags among them.
    pub fn unit_sectors_on_flash(&self) -> u32 {
        self.core.codec.unit
    }

    /// What the log has room for.
    pub fn room(&self) -> Room {
        let state = self.core.state.borrow();
        let (payload, line) = (state.lines.payload(), state.lines.payload_max());
        Room { payload, line, kept_free: state.reserve().soft as u64 }
    }

    /// Why nothing goes on any more.
    pub fn failure(&self) -> Option<String> {
        self.core.state.borrow().failure.as_ref().map(Error::to_string)
    }

    /// Fills `data`, whole sectors, from `first`.
    ///
    /// # Errors
    /// [`Error::ReadFault`] where a sector was lost or made unreadable.
    pub async fn read(&self, first: u32, data: &mut [u8]) -> Result<(), Error> {
        self.core.read(first, data).await
    }

    /// Writes whole sectors, and returns the ticket that [`Manager::flush_to`] makes them stable by. The caller sees to it that
    /// nobody else writes there meanwhile.
    ///
    /// # Errors
    /// The device has failed, or takes no more writes.
    pub async fn write(&self, first: u32, data: View, heat: Heat) -> Result<u64, Error> {
        let stream = if heat == Heat::Hot { Stream::Hot } else { Stream::Cold };
        self.core.write(first, data, stream).await
    }

    /// Makes sectors read as zeroes, or not at all if they are to be spoilt; returns the ticket as [`Manager::write`] does.
    ///
    /// # Errors
    /// As [`Manager::write`].
    pub fn deallocate(&self, first: u32, count: u32, is_spoilt: bool) -> LocalFuture<'_, Result<u64, Error>> {
        Box::pin(async move {
            let mut ticket = 0;
            for at in (0..count).step_by(RANGE_SECTORS_MAX as usize) {
                let range = Range { first: first + at, count: (count - at).min(RANGE_SECTORS_MAX), is_spoilt };
                ticket = self.core.record(range).await?;
            }
            Ok(ticket)
        })
    }

    /// Ends when what entered up to a ticket is stable.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn flush_to(&self, ticket: u64) -> Result<(), Error> {
        self.core.flush(ticket).await
    }

    /// Ends when all that has entered is stable.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn flush(&self) -> Result<(), Error> {
        let last = self.core.state.borrow().buffer.last_ticket();
        self.core.flush(last).await
    }

    /// An attribute of the namespace.
    pub fn attribute(&self, key: &str) -> Option<Vec<u8>> {
        self.core.state.borrow().attributes.get(key).cloned()
    }

    /// Sets an attribute, with the next root.
    ///
    /// # Errors
    /// Its bounds, or the device has failed.
    pub async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        let change = {
            let mut state = self.core.state.borrow_mut();
            state.check()?;
            let wanted = state.attributes_next.as_ref().unwrap_or(&state.attributes).with(key, value)?;
            state.attributes_next = Some(wanted);
            state.wants_root = true;
            state.attribute_changes += 1;
            state.attribute_changes
        };
        self.core.changed.notify_all();
        // Counted, not compared: another setter may have brought back the value that was there, or set one that no root ever has.
        while self.core.state.borrow().attribute_changes_kept < change {
            self.core.wait().await?;
        }
        Ok(())
    }

    /// Holds the map against the tags on flash. To be called while nobody writes.
    pub fn check(&self) -> LocalFuture<'_, CheckReport> {
        Box::pin(async move { self.core.check_log().await })
    }

    /// Figures, at the moment.
    pub fn figures(&self) -> Figures {
        let state = self.core.state.borrow();
        let wear = || state.lines.all.iter().filter(|line| !line.slots.is_empty()).map(lines::Line::wear);
        Figures {
            host_sectors: state.totals.host,
            programmed_sectors: state.totals.programmed,
            moved_sectors: state.totals.moved,
            padding_sectors: state.totals.padding,
            unknown_sectors: state.totals.unknown,
            lines: [
                state.lines.free_lines(),
                state.lines_in(|state| matches!(state, LineState::Open(_))),
                state.lines_in(|state| state == LineState::Closed),
                state.lines_in(|state| state == LineState::Emptying),
            ],
            wear: [wear().min().unwrap_or(0), wear().max().unwrap_or(0)],
            roots: state.root.number,
            is_read_only: state.is_read_only,
        }
    }

    /// Where a sector of the namespace is on flash, if it is there and stable.
    pub fn place_of(&self, logical: u32) -> Option<Sector> {
        self.core.state.borrow().map.get(logical).sector()
    }

    /// Valid sectors of each chunk of the device.
    pub fn valid_by_chunk(&self) -> Vec<u32> {
        let state = self.core.state.borrow();
        let counts = state.lines.valid_counts().chunks(self.core.codec.units_per_chunk() as usize);
        counts.map(|units| units.iter().map(|&count| u32::from(count)).sum()).collect()
    }

    /// Chunks that are set apart for roots.
    pub fn chunks_of_roots(&self) -> Vec<Chunk> {
        self.core.state.borrow().root.apart.concat()
    }

    /// Makes everything stable and writes a root that says so: nothing has to be looked for at the next opening.
    ///
    /// # Errors
    /// The device has failed. It is given up in any case.
    pub fn close(self) -> LocalFuture<'static, Result<(), Error>> {
        Box::pin(async move { self.end().await })
    }

    /// The same where others have the media manager too. The caller sees to it that no command changes anything meanwhile; what
    /// comes later fails.
    ///
    /// # Errors
    /// As [`Manager::close`].
    pub fn end(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.settle().await;
            self.core.state.borrow_mut().failure.get_or_insert_with(|| Error::WriteFault(CLOSED.into()));
            result
        })
    }

    async fn settle(&self) -> Result<(), Error> {
        if !self.core.state.borrow().root.is_ours {
            return Ok(()); // without a root of this opening nothing was taken
        }
        self.flush().await?;
        self.core.state.borrow_mut().is_stopping = true;
        self.core.changed.notify_all();
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
        self.flush().await?;
        while self.core.state.borrow().buffer.moved_entries() > 0 {
            self.core.force_moved();
            if self.core.has_no_room() {
                break; // nobody waits for it, and the map names it where it was
            }
            self.core.wait().await?;
        }
        self.core.checkpoint(true).await
    }
}

/// What waits for what, and which lines there are.
impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.core.state.borrow();
        let queued = Stream::ALL.map(|stream| (stream, state.buffer.queued(stream), state.open[stream.index()]));
        let lines = state.lines.all.iter().map(|line| (line.state, line.valid, line.slots.len(), line.pinned));
        f.debug_struct("Manager")
            .field("reserve", &state.reserve())
            .field("queued and open", &queued)
            .field("entries", &[state.buffer.host_entries(), state.buffer.moved_entries(), state.buffer.pages()])
            .field("programs", &state.programs)
            .field("sequence", &state.sequence)
            .field("root", &state.root)
            .field("is_read_only", &state.is_read_only)
            .field("failure", &state.failure)
            .field("lines: state, valid, chunks, pinned", &lines.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Tasks that are left end by it; what they have begun is found when the device is opened anew.
        let mut state = self.core.state.borrow_mut();
        state.failure.get_or_insert_with(|| Error::WriteFault(CLOSED.into()));
        drop(state);
        self.core.changed.notify_all();
    }
}
