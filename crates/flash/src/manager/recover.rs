//! Opening: the newest root, the pages of the map that it names, and the log behind it.
//!
//! Invariants:
//! - What is found behind the root is gone through in the order of sequences; then a root is written whose sequence is above all
//!   that were given, and only then the first answer is given: what a crash left in doubt is decided once.
//! - Nothing is reset before that root but the chunks of the older one. A crash in recovery leaves what recovery had found.
//! - Where no chunk takes a root nothing is programmed: each opening finds the same, and answers reads alone.
//! - Behind recovery no entry of the map names a sector whose content was not written as that logical sector. What the log behind
//!   the root says of a sector is what the sector's tag says. What the root says was so when it was written, and is so still unless
//!   the chunk was reset since: then the sector lies behind the chunk's write pointer, or no tag in the chunk is as old as the
//!   root. In such a chunk only what a tag says counts, and an entry that has none is spoilt.

use std::rc::Rc;

use device::Error;
use engine::task::LocalFuture;

use super::buffer::Stream;
use super::core::{Core, ManagerOptions, Parts, RootArea, SEQUENCES_PER_ROOT, State};
use super::error::ManagerError;
use super::find::{Found, newest_root};
use super::format::check_device;
use super::join::join_all;
use super::lines::{LineState, Lines};
use super::map::{Map, PAGE_ENTRIES, Place, pages_of};
use super::root::{Root, Totals};
use super::scan::Behind;
use super::tag::{Codec, Logical};
use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState, FlashDevice, FlashError};
use crate::geometry::Geometry;

/// Pages of the map that are read at a time. Chosen: enough for all parallel units of most devices.
const PAGES_AT_ONCE: usize = 64;

/// No sequence and no count of a root is as large. Derived: half of the sequences that tags have room for.
const COUNT_END: u64 = 1 << 55;

/// What a device is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Use,
    /// Nothing is written: what was recovered is in memory alone.
    Look,
}

/// Opens a device that was formatted.
pub(super) async fn open(
    device: Rc<dyn FlashDevice>,
    options: ManagerOptions,
    purpose: Purpose,
) -> Result<Rc<Core>, ManagerError> {
    check_device(&*device)?;
    device.claim()?;
    let result = recover(device.clone(), options, purpose).await;
    if result.is_err() {
        device.release();
    }
    result
}

/// What no root says that a media manager has written: numbers are within bounds that leave room to count on.
pub(super) fn check_root(root: &Root, geometry: Geometry) -> Result<Codec, ManagerError> {
    let codec = Codec::new(geometry, root.identity);
    let places = root.directory.iter().map(|&place| Place::decode(place));
    let in_range = places.filter_map(Place::sector).all(|sector| sector.0 < geometry.sectors_total());
    let apart = root.apart.iter().flatten().all(|chunk| chunk.0 < geometry.chunks_total());
    let lengths =
        root.directory.len() == pages_of(root.capacity) as usize && root.lines.len() == geometry.chunks as usize;
    let Totals { host, programmed, moved, padding, unknown: _ } = root.totals;
    let counts = [root.limit, root.number, host, programmed, moved, padding].iter().all(|&count| count < COUNT_END);
    let fits = root.capacity <= geometry.sectors_total() && root.up_to <= root.limit;
    if codec.unit != root.unit || !in_range || !apart || !lengths || !counts || !fits {
        return Err(ManagerError::Damaged("the root contradicts itself".into()));
    }
    Ok(codec)
}

/// Where roots go on. Behind a root that was written in order, and that nothing lies behind, nothing was torn. Otherwise it is as
/// if the slot was full: the other one is begun, and no chunk is gone on with that a crash may have torn.
fn area_of(found: &Found, geometry: Geometry, reports: &[ChunkReport]) -> RootArea {
    let Found { root, slot, end } = found;
    let report = |chunk: &Chunk| reports[chunk.0 as usize];
    let is_good = |chunk: &Chunk| !matches!(report(chunk).state, ChunkState::Offline | ChunkState::ReadOnly);
    let chunks = [0, 1].map(|slot: usize| -> Vec<Chunk> { root.apart[slot].iter().copied().filter(is_good).collect() });
    let ends = |chunk: &Chunk| report(chunk).state == ChunkState::Open && report(chunk).write_pointer == *end;
    let goes_on = root.is_closed && chunks[*slot].iter().all(ends);
    RootArea {
        apart: root.apart.clone(),
        chunks,
        slot: *slot,
        in_force: *slot,
        offset: if goes_on { *end } else { geometry.sectors },
        // A crash may have torn the next one, in a way that makes it whole to whom reads it later: its number is not given again.
        number: root.number + 1,
        up_to: root.up_to,
        limit: root.limit,
        is_ours: false,
    }
}

async fn recover(
    device: Rc<dyn FlashDevice>,
    options: ManagerOptions,
    purpose: Purpose,
) -> Result<Rc<Core>, ManagerError> {
    let reports = device.report().await?;
    let found = newest_root(&*device, &reports).await?.ok_or(ManagerError::NotFormatted)?;
    let codec = check_root(&found.root, device.geometry())?;
    let area = area_of(&found, codec.geometry, &reports);
    let root = found.root;
    let lines = Lines::new(codec, &reports, &root.apart.concat());
    let mut map = Map::new(root.capacity);
    map.set_directory(root.directory.clone());
    let sequence = if root.is_closed { root.up_to } else { root.limit };
    let parts = Parts { codec, identity: root.identity, map, lines, root: area, sequence };
    let core = Core::new(device, parts, options);
    load_pages(&core).await?;
    let behind = if root.is_closed { None } else { Some(core.scan(&root, &reports).await?) };
    let unfinished = core.take_over(&root, behind, &reports);
    if purpose == Purpose::Look {
        core.state.borrow_mut().failure = Some(Error::ReadOnly("the flash behind it was opened to be looked at alone"));
        return Ok(core);
    }
    match core.begin(unfinished).await {
        Ok(()) | Err(ManagerError::Stopped(Error::ReadOnly(_))) => Ok(core),
        Err(error) => Err(error),
    }
}

async fn load_pages(core: &Rc<Core>) -> Result<(), ManagerError> {
    let pages: Vec<(u32, Sector)> = core.state.borrow().map.page_places().collect();
    for part in pages.chunks(PAGES_AT_ONCE) {
        let reads = part.iter().map(|&(_, sector)| -> LocalFuture<'_, _> { Box::pin(core.find_tagged(sector)) });
        for (&(page, sector), found) in part.iter().zip(join_all(reads.collect()).await) {
            let found = match found {
                Ok(found) => found,
                Err(FlashError::ReadFailed(_) | FlashError::NotWritten(_) | FlashError::State { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            let sectors = core.codec.geometry.sectors_total();
            let mut state = core.state.borrow_mut();
            let map = &mut state.map;
            let is_page = found
                .is_some_and(|(tag, bytes)| tag.logical == Logical::Page(page) && map.load_page(page, &bytes, sectors));
            if !is_page {
                let first = page * PAGE_ENTRIES;
                let last = (first + PAGE_ENTRIES).min(map.capacity()) - 1;
                tracing::error!(page, %sector, first, last, "a page of the map can't be read: the sectors in it are lost");
                map.lose_page(page);
            }
        }
    }
    Ok(())
}

impl Core {
    /// The state is what the root says, and what was found behind it. Returns the chunks that are to be closed.
    fn take_over(&self, root: &Root, behind: Option<Behind>, reports: &[ChunkReport]) -> Vec<Chunk> {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        state.totals = root.totals;
        if let Some(behind) = &behind {
            state.totals.unknown += behind.unknown;
            self.replay(state, behind);
        }
        self.give_up_lost(state, behind.as_ref(), reports);
        let data: Vec<Sector> = state.map.places().map(|(_, sector)| sector).collect();
        let pages: Vec<Sector> = state.map.page_places().map(|(_, sector)| sector).collect();
        data.into_iter().chain(pages).for_each(|sector| state.lines.add_valid(sector));
        let unfinished = self.settle(state, root, reports);
        state.attributes = root.attributes.clone();
        // The limit of the new root is one for what it gives itself.
        state.root.limit = state.sequence + SEQUENCES_PER_ROOT;
        state.is_read_only = !state.has_spare();
        unfinished
    }

    /// Writes the root that decides what was in doubt. Room for it comes first: without it nothing may be programmed.
    async fn begin(self: &Rc<Core>, unfinished: Vec<Chunk>) -> Result<(), ManagerError> {
        let bytes = self.root(0, false).encode().len();
        if !self.make_room(self.root_sectors(bytes)).await? {
            return Err(ManagerError::Stopped(
                self.end_writing("no chunk for roots is left: what was flushed is read on"),
            ));
        }
        for chunk in unfinished {
            match self.device.finish(chunk).await {
                Ok(()) => {}
                Err(error) if error.is_of_a_chunk() => {
                    tracing::warn!(%chunk, %error, "a chunk can't be finished: it is emptied and given up");
                    let state = &mut *self.state.borrow_mut();
                    state.lines.set_failed(chunk);
                    state.is_read_only |= !state.has_spare();
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.checkpoint(false).await.map_err(ManagerError::Stopped)
    }

    fn replay(&self, state: &mut State, behind: &Behind) {
        for entry in &behind.entries {
            state.sequence = state.sequence.max(entry.sequence);
            let line = state.lines.line_of(entry.sector);
            let last = &mut state.lines.get_mut(line).last;
            *last = entry.sequence.max(*last);
            match entry.logical {
                Logical::Data(logical) if logical < state.map.capacity() => {
                    let place = if entry.is_lost { Place::Spoilt } else { Place::At(entry.sector) };
                    state.map.set(logical, place);
                }
                Logical::Record => {
                    for range in &entry.record {
                        let place = if range.is_spoilt { Place::Spoilt } else { Place::Nothing };
                        for logical in range.first..range.first + range.count {
                            state.map.set(logical, place);
                        }
                    }
                    state.lines.pin(line, entry.sequence);
                }
                Logical::Data(_) | Logical::Page(_) | Logical::Root | Logical::Padding => {}
            }
        }
    }

    /// What the map names in chunks that are offline is lost, and says so; and so is what it names where something else may have
    /// been written since, of which the newer version can't be read. The root that recovery writes is behind it: nothing older
    /// comes back.
    fn give_up_lost(&self, state: &mut State, behind: Option<&Behind>, reports: &[ChunkReport]) {
        let geometry = self.codec.geometry;
        let is_gone = |logical: u32, sector: Sector| {
            let (chunk, offset) = geometry.locate(sector);
            let report = reports[chunk.0 as usize];
            let is_there = report.state != ChunkState::Offline && offset < report.write_pointer;
            !is_there || behind.is_some_and(|behind| behind.may_be_other(geometry, sector, Logical::Data(logical)))
        };
        let lost: Vec<u32> =
            state.map.places().filter(|&(logical, at)| is_gone(logical, at)).map(|(logical, _)| logical).collect();
        if let Some(first) = lost.first() {
            tracing::error!(
                sectors = lost.len(),
                first,
                "sectors were in chunks that are offline or written anew, and are lost"
            );
        }
        lost.into_iter().for_each(|logical| {
            state.map.set(logical, Place::Spoilt);
        });
    }

    /// Lines are free, open or closed again. What was open is gone on with, behind what a crash may have torn: closed early, each
    /// crash would cost the lines that were open, until none was left to write the first page in. Returns the chunks that are to
    /// be closed.
    fn settle(&self, state: &mut State, root: &Root, reports: &[ChunkReport]) -> Vec<Chunk> {
        let mut unfinished = Vec::new();
        let mut partial = Vec::new();
        for number in 0..state.lines.all.len() as u32 {
            let line = state.lines.get_mut(number);
            let note = root.lines[number as usize];
            line.last = line.last.max(note.last);
            if line.slots.iter().all(|slot| slot.written == 0) {
                state.lines.set_free(number);
                continue;
            }
            let mut is_open = false;
            for slot in &mut line.slots {
                let report = reports[slot.chunk.0 as usize];
                is_open |= report.state == ChunkState::Open;
                let goes_on = matches!(report.state, ChunkState::Open | ChunkState::Free);
                if !goes_on || !slot.written.is_multiple_of(self.codec.unit) {
                    unfinished.push(slot.chunk);
                    slot.written = self.codec.geometry.sectors;
                }
            }
            if state.lines.has_room(number) {
                partial.push((note.open.is_none(), !is_open, number));
            }
        }
        partial.sort_unstable();
        for (_, _, number) in partial {
            let noted = root.lines[number as usize]
                .open
                .and_then(|index| Stream::ALL.into_iter().find(|s| s.index() == usize::from(index)));
            let is_unused = |stream: &Stream| state.open[stream.index()].is_none();
            let stream = noted.filter(is_unused).or_else(|| Stream::ALL.into_iter().find(is_unused));
            match stream {
                Some(stream) => {
                    state.open[stream.index()] = Some(number);
                    state.lines.get_mut(number).state = LineState::Open(stream);
                }
                None => unfinished.extend(state.lines.get(number).slots.iter().map(|slot| slot.chunk)),
            }
        }
        unfinished.retain(|chunk| reports[chunk.0 as usize].state == ChunkState::Open);
        unfinished
    }
}
