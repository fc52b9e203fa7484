//! Format and opening: the newest root, the pages of the map that it names, and the log behind it.
//!
//! Invariants:
//! - What is found behind the root is gone through in the order of sequences; then a root is written whose sequence is above all
//!   that were given, and only then the first answer is given: what a crash left in doubt is decided once.
//! - Nothing is reset before that root but the chunks of the older one. A crash in recovery leaves what recovery had found.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::task::LocalFuture;

use super::buffer::{STREAMS, Stream};
use super::core::{Core, ManagerOptions, Parts, Reserve, RootArea, SEQUENCES_PER_ROOT, State};
use super::error::ManagerError;
use super::find::newest_root;
use super::join::join_all;
use super::lines::{LineState, Lines};
use super::map::{Map, Place, pages_of};
use super::root::{Root, Totals};
use super::scan::Entry;
use super::tag::{Codec, Logical};
use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState, FlashDevice, FlashError};
use crate::geometry::Geometry;

/// Pages of the map that are read at a time. Chosen: enough for all parallel units of most devices.
const PAGES_AT_ONCE: usize = 64;

/// No sequence and no count of a root is as large. Derived: half of the sequences that tags have room for.
const COUNT_END: u64 = 1 << 55;

/// What a device is formatted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Of the room for the namespace, what is kept for collection and for chunks that go bad, in percent.
    pub spare_percent: u32,
    /// Sectors of the namespace; `None`: as many as there is room for.
    pub capacity: Option<u32>,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions { spare_percent: 12, capacity: None }
    }
}

fn check_device(device: &dyn FlashDevice) -> Result<(), ManagerError> {
    let geometry = device.geometry();
    geometry.checked().map_err(|error| FlashError::Medium(error.to_string()))?;
    // A line for each stream, and both slots of roots with two copies each.
    let needed = STREAMS as u32 * geometry.units() + 4;
    if geometry.open_max > 0 && geometry.open_max < needed {
        return Err(ManagerError::OpenLimit { open_max: geometry.open_max, needed });
    }
    let codec = Codec::new(geometry, [0; 16]);
    if codec.payload() == 0 { Err(ManagerError::NoTags) } else { Ok(()) }
}

/// Two chunks of each of two parallel units, where there are such that are good.
fn chunks_for_roots(device: &dyn FlashDevice, reports: &[ChunkReport]) -> [Vec<Chunk>; 2] {
    let geometry = device.geometry();
    let is_good = |chunk: Chunk| reports[chunk.0 as usize].state != ChunkState::Offline;
    let both = |unit: u32| [geometry.chunk(unit, 0), geometry.chunk(unit, 1)];
    let units = (0..geometry.units())
        .map(both)
        .filter(|chunks| geometry.chunks > 2 && chunks.iter().all(|&chunk| is_good(chunk)));
    let chosen: Vec<[Chunk; 2]> = units.take(2).collect();
    [0, 1].map(|slot| chosen.iter().map(|chunks| chunks[slot]).collect())
}

/// Makes every chunk free, or bad: those first that a root may be in.
async fn reset_all(device: &dyn FlashDevice) -> Result<Vec<ChunkReport>, FlashError> {
    let geometry = device.geometry();
    let reports = device.report().await?;
    for number in 0..geometry.chunks {
        let chunks = (0..geometry.units()).map(|unit| geometry.chunk(unit, number));
        let resets = chunks.map(|chunk| -> LocalFuture<'_, Result<(), FlashError>> {
            let state = reports[chunk.0 as usize].state;
            Box::pin(async move {
                match state {
                    ChunkState::Free | ChunkState::Offline => Ok(()),
                    ChunkState::ReadOnly => device.set_bad(chunk).await,
                    ChunkState::Open | ChunkState::Closed => match device.reset(chunk).await {
                        Err(error) if error.is_of_a_chunk() => Ok(()),
                        other => other,
                    },
                }
            })
        });
        join_all(resets.collect()).await.into_iter().collect::<Result<(), _>>()?;
    }
    device.report().await
}

/// Formats a device: what is on it is lost.
pub(super) async fn format(device: Rc<dyn FlashDevice>, options: &FormatOptions) -> Result<(), ManagerError> {
    check_device(&*device)?;
    device.claim()?;
    let result = lay_out(device.clone(), options).await;
    device.release(); // as the log's state does where it came so far
    result
}

async fn lay_out(device: Rc<dyn FlashDevice>, options: &FormatOptions) -> Result<(), ManagerError> {
    let reports = reset_all(&*device).await?;
    let identity = device::random_nguid();
    let codec = Codec::new(device.geometry(), identity);
    let apart = chunks_for_roots(&*device, &reports);
    let mut lines = Lines::new(codec, &reports, &apart.concat());
    for line in 0..lines.all.len() as u32 {
        lines.set_free(line);
    }
    let (payload, line) = (lines.payload(), lines.payload_max());
    // The pages of the map depend on the capacity, and the capacity on what is left beside them.
    let reserve = Reserve::of(pages_of(u32::try_from(payload).unwrap_or(u32::MAX)), line);
    let pages = pages_of(u32::try_from(payload).unwrap_or(u32::MAX));
    let room = payload.saturating_sub(reserve.payload_needed(0, pages, line));
    let most = room * u64::from(100 - options.spare_percent.min(99)) / 100;
    let capacity = options.capacity.map_or(most, u64::from);
    if capacity == 0 || capacity > most || apart[0].is_empty() {
        let needed = reserve.payload_needed(0, pages, line)
            + capacity.max(1) * 100 / u64::from(100 - options.spare_percent.min(99));
        return Err(ManagerError::TooSmall { lines: lines.free(), payload, needed, capacity });
    }
    let root = RootArea {
        chunks: apart.clone(),
        apart,
        slot: 0,
        offset: 0,
        number: 0,
        up_to: 0,
        limit: SEQUENCES_PER_ROOT,
        is_ours: false,
    };
    let map = Map::new(u32::try_from(capacity).unwrap_or(u32::MAX));
    let parts = Parts { codec, identity, map, lines, root, sequence: 0 };
    let core = Core::new(device, parts, ManagerOptions::default());
    core.checkpoint(true).await.map_err(ManagerError::Stopped)
}

/// Opens a device that was formatted.
pub(super) async fn open(device: Rc<dyn FlashDevice>, options: ManagerOptions) -> Result<Rc<Core>, ManagerError> {
    check_device(&*device)?;
    device.claim()?;
    let result = recover(device.clone(), options).await;
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
    let Totals { host, programmed, moved, padding } = root.totals;
    let counts = [root.limit, root.number, host, programmed, moved, padding].iter().all(|&count| count < COUNT_END);
    let fits = root.capacity <= geometry.sectors_total() && root.up_to <= root.limit;
    if codec.unit != root.unit || !in_range || !apart || !lengths || !counts || !fits {
        return Err(ManagerError::Damaged("the root contradicts itself".into()));
    }
    Ok(codec)
}

async fn recover(device: Rc<dyn FlashDevice>, options: ManagerOptions) -> Result<Rc<Core>, ManagerError> {
    let reports = device.report().await?;
    let (root, slot) = newest_root(&*device, &reports).await?.ok_or(ManagerError::NotFormatted)?;
    let codec = check_root(&root, device.geometry())?;
    let lines = Lines::new(codec, &reports, &root.apart.concat());
    let is_good =
        |chunk: &Chunk| !matches!(reports[chunk.0 as usize].state, ChunkState::Offline | ChunkState::ReadOnly);
    let chunks = [0, 1].map(|slot: usize| root.apart[slot].iter().copied().filter(is_good).collect());
    // As if the slot was full: the other one is begun, and no chunk is gone on with that a crash may have torn.
    let offset = codec.geometry.sectors;
    let area = RootArea {
        apart: root.apart.clone(),
        chunks,
        slot,
        offset,
        // A crash may have torn the next one, in a way that makes it whole to whom reads it later: its number is not given again.
        number: root.number + 1,
        up_to: root.up_to,
        limit: root.limit,
        is_ours: false,
    };
    let mut map = Map::new(root.capacity);
    map.set_directory(root.directory.clone());
    let sequence = if root.is_closed { root.up_to } else { root.limit };
    let parts = Parts { codec, identity: root.identity, map, lines, root: area, sequence };
    let core = Core::new(device, parts, options);
    load_pages(&core).await?;
    let entries = if root.is_closed { Vec::new() } else { core.scan(&root, &reports).await? };
    core.replay(entries, &reports);
    core.settle(&root, &reports).await?;
    {
        let mut state = core.state.borrow_mut();
        state.totals = root.totals;
        state.attributes = root.attributes.clone();
        // The limit of the new root is one for what it gives itself.
        state.root.limit = state.sequence + SEQUENCES_PER_ROOT;
        state.is_read_only = !state.has_spare();
    }
    match core.checkpoint(false).await {
        // Without a root nothing is decided, but nothing is written either: each opening finds the same.
        Ok(()) | Err(device::Error::ReadOnly(_)) => Ok(core),
        Err(error) => Err(ManagerError::Stopped(error)),
    }
}

async fn load_pages(core: &Rc<Core>) -> Result<(), ManagerError> {
    let pages: Vec<(u32, Sector)> = core.state.borrow().map.page_places().collect();
    for part in pages.chunks(PAGES_AT_ONCE) {
        let reads = part.iter().map(|&(_, sector)| -> LocalFuture<'_, _> { Box::pin(core.read_tagged(sector)) });
        for (&(page, sector), found) in part.iter().zip(join_all(reads.collect()).await) {
            let damaged =
                |what: &str| ManagerError::Damaged(format!("page {page} of the map, in sector {sector}, {what}"));
            let (tag, bytes) = found.ok_or_else(|| damaged("can't be read"))?;
            let sectors = core.codec.geometry.sectors_total();
            if tag.logical != Logical::Page(page) || !core.state.borrow_mut().map.load_page(page, &bytes, sectors) {
                return Err(damaged("is none"));
            }
        }
    }
    Ok(())
}

impl Core {
    fn replay(&self, entries: Vec<Entry>, reports: &[ChunkReport]) {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let mut found: BTreeMap<Sector, Logical> = BTreeMap::new();
        for entry in entries {
            if !entry.is_lost {
                found.insert(entry.sector, entry.logical);
            }
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
        self.give_up_lost(state, &found, reports);
        let data: Vec<Sector> = state.map.places().map(|(_, sector)| sector).collect();
        let pages: Vec<Sector> = state.map.page_places().map(|(_, sector)| sector).collect();
        data.into_iter().chain(pages).for_each(|sector| state.lines.add_valid(sector));
    }

    /// What the map names in chunks that are offline is lost, and says so; and so is what it names where something else was written
    /// since, of which the newer version can't be read. The root that recovery writes is behind it: nothing older comes back.
    fn give_up_lost(&self, state: &mut State, found: &BTreeMap<Sector, Logical>, reports: &[ChunkReport]) {
        let geometry = self.codec.geometry;
        let is_gone = |logical: u32, sector: Sector| {
            let is_offline = reports[geometry.locate(sector).0.0 as usize].state == ChunkState::Offline;
            is_offline || found.get(&sector).is_some_and(|&other| other != Logical::Data(logical))
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
    /// crash would cost the lines that were open, until none was left to write the first page in.
    async fn settle(&self, root: &Root, reports: &[ChunkReport]) -> Result<(), ManagerError> {
        let mut unfinished = Vec::new();
        {
            let mut guard = self.state.borrow_mut();
            let state = &mut *guard;
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
        }
        for chunk in unfinished.into_iter().filter(|chunk| reports[chunk.0 as usize].state == ChunkState::Open) {
            self.device.finish(chunk).await?;
        }
        Ok(())
    }
}
