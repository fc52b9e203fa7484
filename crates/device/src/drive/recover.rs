//! Opening a drive: the newest checkpoint, the journal behind it, and what became of the writes that were under way.
//!
//! What is found (by `resolve`, for units that were being written over) is made definite by a checkpoint before anybody writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::Buf;
use engine::file::File;

use super::DriveError;
use super::bytes::value;
use super::checkpoint::{self, Header};
use super::core::{Core, Inner, Journal, seed_of};
use super::frame::{self, FRAME_BYTES_MAX, Found};
use super::layout::{JOURNAL_BYTES_MAX, Layout, PAGE};
use super::pages::{Pages, UNWRITTEN, page_entry};
use super::record::{Record, transactions};
use super::registry::Registry;
use super::resolve::{Candidates, resolve};
use super::state::State;

/// The largest number of a frame, a transaction or a checkpoint that is believed: each is one more than the one before it, and
/// none is ever reached. Derived: half of what the fields hold, so that counting on from there can't overflow.
pub(super) const NUMBER_MAX: u64 = 1 << 63;
/// Bytes read in one command.
const PART: usize = 1 << 20;

/// A frame of the journal: its place in the ring, up to where it knew data stable, and its transactions.
type Frame = (std::ops::Range<usize>, u64, Vec<u8>);

/// The outcome of the journal.
pub(super) struct Replay {
    pub(super) state: State,
    units: BTreeMap<u64, Candidates>,
    sequence: u64,
    /// The data of intents up to this one was stable.
    stable: u64,
    frame: u64,
    head: u64,
    /// Bytes of the ring with frames behind the checkpoint.
    used: u64,
}

fn damaged(path: &Path, what: impl Into<String>) -> DriveError {
    DriveError::Damaged { path: path.to_owned(), what: what.into() }
}

async fn read(path: &Path, file: &File, at: u64, bytes: u64) -> Result<Vec<u8>, DriveError> {
    let mut all = Vec::with_capacity(bytes as usize);
    while (all.len() as u64) < bytes {
        let len = (bytes - all.len() as u64).min(PART as u64) as usize;
        let (result, part) = file.read_at(at + all.len() as u64, Buf::with_len(len)).await;
        result.map_err(|source| DriveError::Io { path: path.to_owned(), source })?;
        all.extend_from_slice(&part);
    }
    Ok(all)
}

/// The superblock: either copy will do.
pub(super) async fn superblock(path: &Path, file: &File) -> Result<Layout, DriveError> {
    let not_a_drive = || DriveError::NotADrive { path: path.to_owned() };
    let last = (file.size() / PAGE as u64).checked_sub(1).ok_or_else(not_a_drive)? * PAGE as u64;
    let (mut reason, mut unreadable) = (None, None);
    for at in [0, last] {
        let page = match read(path, file, at, PAGE as u64).await {
            Ok(page) => page,
            Err(error) => {
                unreadable = Some(error); // its twin may do
                continue;
            }
        };
        match Layout::decode(&page) {
            Ok(Some(layout)) if layout.bytes <= file.size() => return Ok(layout),
            Ok(Some(layout)) => {
                reason =
                    Some(format!("the superblock speaks of {} bytes; the medium has {}", layout.bytes, file.size()));
            }
            Ok(None) => {}
            Err(why) => reason = Some(format!("the superblock at {at} {why}; it")),
        }
    }
    Err(match (reason, unreadable) {
        (Some(reason), _) => damaged(path, reason),
        (None, Some(error)) => error,
        (None, None) => not_a_drive(),
    })
}

/// There is a drive, or what is left of one: its journal or a checkpoint, behind superblocks that are gone.
pub(super) async fn holds_a_drive(path: &Path, file: &File) -> bool {
    match superblock(path, file).await {
        Err(DriveError::NotADrive { .. }) => !matches!(has_traces(path, file).await, Ok(false)),
        _ => true,
    }
}

/// Whether something else than zeroes stands in the first or the last MiB. Chosen: partition tables, file systems, md, LVM, members
/// of a pool and holders of a volume have something in the one or in the other.
pub(super) async fn is_in_use(path: &Path, file: &File) -> Result<bool, DriveError> {
    let end = file.size() / PAGE as u64 * PAGE as u64;
    let most = end.min(PART as u64);
    for at in [0, end - most] {
        if read(path, file, at, most).await?.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where a journal may be there is one, or there is a checkpoint where one may be. A medium that begins with zeroes has neither:
/// what erased a journal's first page was meant to erase.
async fn has_traces(path: &Path, file: &File) -> Result<bool, DriveError> {
    let end = file.size().min(2 * PAGE as u64 + JOURNAL_BYTES_MAX) / PAGE as u64 * PAGE as u64;
    let front = read(path, file, 0, end.min(2 * PAGE as u64)).await?;
    if front.iter().all(|&byte| byte == 0) {
        return Ok(false);
    }
    if front.len() == 2 * PAGE && frame::newest(&front[PAGE..]).1 > 0 {
        return Ok(true);
    }
    for at in (PAGE as u64..end).step_by(PART) {
        let part = read(path, file, at, (end - at).min(PART as u64)).await?;
        if part.chunks_exact(PAGE).any(Header::is_any) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The second superblock of a drive whose medium has grown since: it is where the medium ended then, and only the first one says
/// where that is. All of the medium is read, which takes its time, and there is no other way.
async fn twin_within(path: &Path, file: &File) -> Result<Option<Layout>, DriveError> {
    if !has_traces(path, file).await? {
        return Ok(None);
    }
    let end = file.size() / PAGE as u64 * PAGE as u64;
    tracing::warn!(path = %path.display(), bytes = end, "no superblock at either end: all of the medium is searched for one");
    for at in (PAGE as u64..end).step_by(PART) {
        let part = read(path, file, at, (end - at).min(PART as u64)).await?;
        for (page, behind) in part.chunks_exact(PAGE).zip((at + PAGE as u64..).step_by(PAGE)) {
            // Data may look like a superblock; one that is one lies at the end of what it speaks of.
            if let Ok(Some(layout)) = Layout::decode(page)
                && layout.bytes == behind
            {
                return Ok(Some(layout));
            }
        }
    }
    Ok(None)
}

/// A checkpoint as it was read.
struct Checkpoint {
    header: Header,
    state: State,
    table: Vec<u64>,
    /// What is the matter with one that may have been newer. Then the journal has to prove that nothing came behind it.
    lost: Option<DriveError>,
}

/// The newest checkpoint that is whole.
///
/// Falling back to the one before is safe where no frame names the lost one: nothing was recorded after it, so nothing was
/// written over the journal that it had made dispensable, and replaying that gives the state that was lost. The replay
/// refuses if a frame does. The next checkpoint may have begun to replace checksum pages all the same: they are verified.
async fn newest_checkpoint(path: &Path, file: &File, layout: &Layout) -> Result<Checkpoint, DriveError> {
    let (mut headers, mut lost) = (Vec::new(), None);
    for slot in 0..2 {
        let pages = read(path, file, layout.slot_at(slot), 2 * PAGE as u64).await;
        match pages.ok().and_then(|pages| Header::decode(&pages, &layout.id)) {
            Some(header) if header.generation % 2 == slot => headers.push(header),
            // No crash does that: a header is one sector, and there are two.
            _ => {
                lost = Some(damaged(path, format!("both headers of checkpoint slot {slot} are unreadable; the drive")))
            }
        }
    }
    headers.sort_by_key(|header| std::cmp::Reverse(header.generation));
    for header in headers {
        match body(path, file, layout, &header).await {
            Ok((state, table)) => {
                if let Some(lost) = &lost {
                    tracing::warn!(%lost, generation = header.generation, "a checkpoint is lost; trying the other one");
                    verify_pages(path, file, layout, &table).await?;
                }
                return Ok(Checkpoint { header, state, table, lost });
            }
            Err(error) => lost = lost.or(Some(error)),
        }
    }
    Err(lost.unwrap_or_else(|| damaged(path, "every checkpoint")))
}

/// Every checksum page that a checkpoint refers to is there.
async fn verify_pages(path: &Path, file: &File, layout: &Layout, table: &[u64]) -> Result<(), DriveError> {
    for (page, &entry) in (0..).zip(table).filter(|(_, entry)| **entry != 0) {
        let content = read(path, file, layout.page_at(page, entry & 1), PAGE as u64).await?;
        if page_entry(seed_of(layout), page, &content, entry & 1) != entry {
            return Err(damaged(path, format!("the newest checkpoint is lost, and checksum page {page} of the other")));
        }
    }
    Ok(())
}

async fn body(path: &Path, file: &File, layout: &Layout, header: &Header) -> Result<(State, Vec<u64>), DriveError> {
    let generation = header.generation;
    if header.body_bytes > layout.body_bytes_max() || header.head > layout.journal_bytes {
        return Err(damaged(path, format!("checkpoint {generation} names places that the drive does not have; it")));
    }
    if !believable(header) {
        return Err(damaged(path, format!("checkpoint {generation} has numbers that no drive comes to; it")));
    }
    let at = layout.slot_at(generation) + 2 * PAGE as u64;
    let body = read(path, file, at, layout_round(header.body_bytes)).await?;
    let body = &body[..header.body_bytes as usize];
    if xxhash_rust::xxh3::xxh3_64(body) != header.body_sum {
        return Err(damaged(path, format!("the body of checkpoint {generation}")));
    }
    checkpoint::decode(body, layout).map_err(|reason| damaged(path, format!("checkpoint {generation} {reason}; it")))
}

fn believable(header: &Header) -> bool {
    header.generation.max(header.sequence).max(header.frame) <= NUMBER_MAX
}

/// Both headers of a slot, those that are good.
pub(super) fn headers(pages: &[u8], drive: &[u8; 16]) -> [Option<Header>; 2] {
    [0, PAGE].map(|at| Header::copy(&pages[at..], drive))
}

fn layout_round(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64) * PAGE as u64
}

impl Replay {
    /// Applies every frame behind the checkpoint.
    pub(super) fn run(
        path: &Path,
        ring: &[u8],
        header: &Header,
        state: State,
        layout: &Layout,
    ) -> Result<Replay, DriveError> {
        let mut replay = Replay {
            state,
            units: BTreeMap::new(),
            sequence: header.sequence,
            stable: 0,
            frame: header.frame,
            head: header.head,
            used: 0,
        };
        while let Some((at, stable, records)) = replay.next(path, ring, header)? {
            let wasted = if at.start == 0 && replay.head > 0 { ring.len() as u64 - replay.head } else { 0 };
            replay.used += wasted + at.len() as u64;
            (replay.head, replay.stable) = (at.end as u64, replay.stable.max(stable));
            replay
                .apply(&records, header.sequence, layout)
                .map_err(|what| damaged(path, format!("journal frame {}: {what}; it", replay.frame)))?;
            replay.frame += 1;
        }
        let (generation, newest) = frame::newest(ring);
        if generation > header.generation || newest > replay.frame {
            let text = format!("the journal goes on with frame {newest} behind a gap at {}; it", replay.frame);
            return Err(damaged(path, text));
        }
        Ok(replay)
    }

    /// The next frame, where the last one ended or at the ring's start.
    fn next(&self, path: &Path, ring: &[u8], header: &Header) -> Result<Option<Frame>, DriveError> {
        let may_wrap = self.head + FRAME_BYTES_MAX as u64 > ring.len() as u64;
        let places = [Some(self.head as usize), may_wrap.then_some(0)];
        for at in places.into_iter().flatten() {
            match frame::find(ring, at, self.frame) {
                Found::Frame(range, head, records) if head.generation <= header.generation => {
                    return Ok(Some((range, head.stable, records)));
                }
                Found::Frame(_, head, _) => {
                    let text = format!("checkpoint {}, which the journal refers to,", head.generation);
                    return Err(damaged(path, text));
                }
                Found::Damaged(place) => {
                    return Err(damaged(path, format!("the journal at byte {place} of its ring")));
                }
                Found::Nothing => {}
            }
        }
        Ok(None)
    }

    fn apply(&mut self, records: &[u8], after: u64, layout: &Layout) -> Result<(), &'static str> {
        for transaction in transactions(records) {
            let (sequence, mut records) = transaction?;
            if sequence <= after {
                continue; // entered before the checkpoint, which holds it
            }
            if sequence <= self.sequence {
                return Err("its transactions are out of order");
            }
            if sequence > NUMBER_MAX {
                return Err("a transaction has a number that no drive comes to");
            }
            self.sequence = sequence;
            while !records.is_empty() {
                let record = Record::decode(&mut records)?;
                self.state.apply(&record, sequence)?;
                self.note(&record, sequence, layout)?;
            }
            self.state.settle(sequence);
        }
        Ok(())
    }

    /// What the record says of checksums.
    fn note(&mut self, record: &Record<'_>, sequence: u64, layout: &Layout) -> Result<(), &'static str> {
        let units = layout.extent_units();
        let (extent, first, count) = match *record {
            Record::Map { extent, .. } => (extent, 0, units),
            Record::Move { extent, values, .. } => (extent, 0, values.len() as u32 / 8),
            Record::Intent { extent, first, values } | Record::Set { extent, first, values } => {
                (extent, first, values.len() as u32 / 8)
            }
            Record::Fill { extent, first, count, .. } => (extent, first, count),
            _ => return Ok(()),
        };
        if u64::from(extent) >= layout.extents || first.checked_add(count).is_none_or(|end| end > units) {
            return Err("a record names units that are not there");
        }
        let base = u64::from(extent) * u64::from(units) + u64::from(first);
        for step in 0..count {
            let unit = base + u64::from(step);
            let (said, open) = match *record {
                Record::Intent { values, .. } => (value(values, step as usize), true),
                Record::Set { values, .. } | Record::Move { values, .. } => (value(values, step as usize), false),
                Record::Fill { value, .. } => (value, false),
                _ => (UNWRITTEN, false),
            };
            let candidates = self.units.entry(unit).or_default();
            if !open {
                candidates.clear();
            } else if candidates.is_empty() {
                candidates.push((0, UNWRITTEN)); // to be replaced by what its page says
            }
            candidates.push((sequence, said));
        }
        Ok(())
    }
}

/// What is wanted of an open drive.
pub(super) struct Opening<'a> {
    pub(super) path: &'a Path,
    pub(super) read_only: bool,
    pub(super) pages_max: usize,
}

/// A medium reads and writes whole blocks of its own: smaller units can't be had from it one by one, and every read of one
/// would fail, also where recovery looks what became of it.
pub(super) fn check_medium(medium: u32, unit: u32) -> Result<(), DriveError> {
    if medium <= unit {
        return Ok(());
    }
    Err(DriveError::Options(format!(
        "the medium has blocks of {medium} bytes, and the drive has checksums over {unit}; use checksums over {medium}, or copy \
         the drive to a medium with blocks of {unit}"
    )))
}

/// Opens the drive in `file`.
pub(super) async fn open(opening: Opening<'_>, file: File) -> Result<Arc<Inner>, DriveError> {
    let Opening { path, read_only, pages_max } = opening;
    let layout = match superblock(path, &file).await {
        Ok(layout) => layout,
        Err(error) => twin_within(path, &file).await.ok().flatten().ok_or(error)?,
    };
    check_medium(file.logical_block_size(), layout.unit)?;
    let Checkpoint { header, state, table, lost } = newest_checkpoint(path, &file, &layout).await?;
    let ring = read(path, &file, layout.journal_at, layout.journal_bytes).await?;
    let replay = Replay::run(path, &ring, &header, state, &layout).map_err(|error| lost.unwrap_or(error))?;
    let pages = Pages::new(table, pages_max);
    // A frame that power loss cut short had this number: it is not given again.
    let mut journal = Journal::new(replay.sequence, replay.frame + 1, replay.head);
    journal.used = replay.used;
    let mut core = Core::new(&layout, replay.state, pages, journal, header.generation);
    core.data.stable = replay.stable.min(replay.sequence);
    core.read_only = true;
    let registry = Registry::of(&core.state.namespaces);
    let inner = Inner::new(path.to_owned(), file, layout, core, registry);
    resolve(&inner, replay.units, replay.stable, read_only).await?;
    if !read_only {
        mend_superblocks(&inner).await?;
        inner.with(|core| core.read_only = false);
        inner.checkpoint().await?;
    }
    Ok(inner)
}

/// Writes a superblock that is missing or damaged anew from the good one: a crash of `format` leaves one, and so may the years.
async fn mend_superblocks(inner: &Inner) -> Result<(), DriveError> {
    let io = |source| DriveError::Io { path: inner.path.clone(), source };
    for at in inner.layout.superblocks() {
        let page = read(&inner.path, &inner.file, at, PAGE as u64).await?;
        if Layout::decode(&page) != Ok(Some(inner.layout.clone())) {
            tracing::warn!(at, "a superblock is mended from its twin");
            inner.file.write_at(at, Buf::copy_from(&inner.layout.encode()).freeze(), true).await.map_err(io)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive with checksums over 512 bytes was copied to a medium with blocks of 4096: it opened, every unit in doubt could
    /// not be read, and what the journal said last was made definite.
    #[test]
    fn a_medium_with_larger_blocks_is_refused() {
        assert!(check_medium(512, 512).is_ok() && check_medium(512, 4096).is_ok() && check_medium(4096, 4096).is_ok());
        let refused = check_medium(4096, 512).expect_err("too coarse").to_string();
        assert!(refused.contains("blocks of 4096 bytes"), "{refused}");
    }
    /// Whoever writes a checksum himself may write any number beside it: one near the end made counting on overflow.
    #[test]
    fn numbers_near_the_end_are_refused() {
        let layout = Layout::new([1; 16], 8 << 20, 4096, 64 << 10, None).expect("room for some extents");
        let header = |sequence| Header { generation: 1, sequence, frame: 1, head: 0, body_bytes: 0, body_sum: 0 };
        assert!(believable(&header(NUMBER_MAX)) && !believable(&header(NUMBER_MAX + 1)));
        assert!(!believable(&Header { frame: u64::MAX, ..header(0) }));
        assert!(!believable(&Header { generation: u64::MAX, ..header(0) }));
        for (sequence, good) in [(NUMBER_MAX, true), (NUMBER_MAX + 1, false), (u64::MAX, false)] {
            let transaction = [&[0; 4][..], &sequence.to_le_bytes()].concat();
            let mut ring = vec![0; 2 * PAGE];
            frame::seal(&mut ring[..PAGE], frame::FrameHead { number: 1, generation: 1, stable: 0 }, &transaction);
            let replay = Replay::run(Path::new("medium"), &ring, &header(0), State::new(&layout), &layout);
            assert_eq!(replay.is_ok(), good, "transaction {sequence}");
        }
    }
}
