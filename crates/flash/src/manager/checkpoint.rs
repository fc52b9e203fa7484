//! Roots: the pages of the map that have changed are written, then a root that names them.
//!
//! Invariants:
//! - A root is up to sequence C: every program up to C had ended, and had changed the map, before the first page was made. So all
//!   changes up to C are in the pages, and what may be missing has a higher sequence, and is in the log.
//! - A line is gone on with only by the root in force: pages that it names stay valid, and records behind it stay, until the next
//!   root is on flash.
//! - No sequence above a root's limit is given before the next root is on flash. So a crash leaves no sector, not even a torn one
//!   that can be read only later, with a sequence that is given once more.

use std::rc::Rc;

use device::Error;

use super::buffer::{Content, Stream};
use super::core::{Core, RootArea, SEQUENCES_PER_ROOT};
use super::root;
use super::tag::{Logical, Tag};
use crate::address::Chunk;
use crate::device::FlashError;
use crate::geometry::SECTOR_BYTES;

impl Core {
    /// Writes a root. One at a time: the task that maintains the log, or whoever opens or closes it.
    pub async fn checkpoint(self: &Rc<Core>, is_closed: bool) -> Result<(), Error> {
        let up_to = self.state.borrow().sequence;
        self.state.borrow_mut().wants_root = false;
        while self.state.borrow().settled() < up_to {
            self.wait().await?;
        }
        let pages = self.state.borrow().map.dirty();
        if !pages.is_empty() {
            let mut state = self.state.borrow_mut();
            for page in pages {
                state.buffer.enter(Logical::Page(page), Stream::Map, false, Content::Page);
            }
            let ticket = state.buffer.last_ticket();
            state.force(Stream::Map, ticket);
            drop(state);
            self.pump();
        }
        while self.state.borrow().buffer.pages() > 0 {
            if self.state.borrow().programs.is_empty() {
                self.state.borrow().check()?;
                // Lines become free by the task that waits here, or by none.
                return Err(self.end_writing("no line is left for pages of the map: what was flushed is read on"));
            }
            self.wait().await?;
        }
        // A page of the map is the last thing that was programmed when nothing else was since.
        let up_to = if is_closed { self.state.borrow().sequence } else { up_to };
        let root = self.root(up_to, is_closed);
        // Before it is on flash nobody goes by it, and behind it the next one is as good: pages that come meanwhile are in none.
        // Those that it replaces are held until then: where no chunk takes it the root in force names them still.
        let held = self.state.borrow().held.len();
        let attribute_changes = self.state.borrow().attribute_changes;
        let result = self.write_root(&root.encode()).await;
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        match result {
            Ok(true) => {}
            Ok(false) => {
                drop(guard);
                return Err(self.end_writing("no chunk for roots is left: what was flushed is read on"));
            }
            Err(error) => {
                drop(guard);
                self.judge(&error);
                self.fail(format!("no root could be written: {error}")); // where nothing was the matter yet
                return self.state.borrow().check();
            }
        }
        state.root.number = root.number;
        state.root.up_to = up_to;
        state.root.is_ours = true;
        state.root.limit = root.limit;
        state.held.drain(..held).for_each(|sector| state.lines.remove_valid(sector));
        state.failed = state.failed.split_off(&(up_to + 1));
        state.lines.unpin(up_to);
        state.since_root = 0;
        if attribute_changes == state.attribute_changes {
            state.attributes_next = None;
        }
        state.attributes = root.attributes;
        state.attribute_changes_kept = attribute_changes;
        drop(guard);
        self.changed.notify_all();
        Ok(())
    }

    /// No root can be written any more: what is flushed can be read, and nothing changes.
    pub fn end_writing(&self, why: &str) -> Error {
        self.state.borrow_mut().is_read_only = true;
        self.fail(why);
        Error::ReadOnly("no chunk of the flash behind it takes a root, or a page of the map")
    }

    /// Sectors that a root of so many bytes takes.
    pub fn root_sectors(&self, bytes: usize) -> u32 {
        bytes.div_ceil(self.codec.payload() as usize * SECTOR_BYTES) as u32 * self.codec.unit
    }

    /// Appends a root where there is room; both copies, of which one must be whole. False: no chunk takes it.
    async fn write_root(&self, bytes: &[u8]) -> Result<bool, FlashError> {
        let sectors = self.root_sectors(bytes.len());
        while self.make_room(sectors).await? {
            let area = self.state.borrow().root.clone();
            if self.append_root(&area, bytes).await? {
                let root = &mut self.state.borrow_mut().root;
                (root.offset, root.in_force) = (area.offset + sectors, area.slot);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sees to it that a root of so many sectors has room, in the other slot if it must. False: no chunk takes it.
    pub async fn make_room(&self, sectors: u32) -> Result<bool, FlashError> {
        let has_room = || {
            let root = &self.state.borrow().root;
            !root.chunks[root.slot].is_empty() && root.offset + sectors <= self.codec.geometry.sectors
        };
        let other_is_older = {
            let root = &self.state.borrow().root;
            root.slot == root.in_force
        };
        if !has_room() && other_is_older {
            self.turn_over().await?;
        }
        Ok(has_room())
    }

    /// False: neither copy was written, and the chunks are given up.
    async fn append_root(&self, area: &RootArea, bytes: &[u8]) -> Result<bool, FlashError> {
        let mut is_written = false;
        for &chunk in &area.chunks[area.slot] {
            match self.append_copy(chunk, area.offset, bytes).await {
                Ok(()) => is_written = true,
                Err(error) if error.is_of_a_chunk() => {
                    tracing::warn!(%chunk, %error, "a copy of the root was not written, and its chunk is given up");
                    self.state.borrow_mut().root.chunks[area.slot].retain(|&good| good != chunk);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(is_written)
    }

    async fn append_copy(&self, chunk: Chunk, offset: u32, bytes: &[u8]) -> Result<(), FlashError> {
        let codec = root::codec(self.codec.geometry);
        let tag = |sequence| Tag { logical: Logical::Root, sequence };
        let mut sectors = (0..).map(tag).zip(bytes.chunks(SECTOR_BYTES)).peekable();
        let mut at = offset;
        while sectors.peek().is_some() {
            let (data, oob) = codec.build(sectors.by_ref().take(codec.payload() as usize), 0);
            self.device.write(codec.geometry.sector(chunk, at), data, oob).await?;
            at += codec.unit;
        }
        Ok(())
    }

    /// Goes on in the other slot: what is there is older than what is here.
    async fn turn_over(&self) -> Result<(), FlashError> {
        let slot = 1 - self.state.borrow().root.slot;
        let chunks = self.state.borrow().root.chunks[slot].clone();
        for chunk in chunks {
            match self.device.reset(chunk).await {
                Ok(()) => {}
                Err(error) if !error.is_of_a_chunk() => return Err(error),
                Err(_) => self.state.borrow_mut().root.chunks[slot].retain(|&good| good != chunk),
            }
        }
        let mut state = self.state.borrow_mut();
        state.root.slot = slot;
        state.root.offset = 0;
        Ok(())
    }

    /// Whether a root should be written before long.
    pub fn is_root_due(&self) -> bool {
        let state = self.state.borrow();
        let line = state.lines.payload_max();
        let is_long = state.since_root >= line * u64::from(self.options.lines_per_root.max(1));
        let is_low = state.sequence + SEQUENCES_PER_ROOT / 2 > state.root.limit;
        state.wants_root || is_long || is_low
    }
}
