//! Where the bytes of a model are: in memory, or on a namespace, which keeps the states of the chunks as well.
//!
//! ```text
//!  block 0            head: geometry and identity
//!  behind it          for each chunk its state (32 bytes) and the out-of-band bytes of its sectors, padded to whole blocks
//!  behind that        the sectors of all chunks
//! ```
//! A block is 4 KiB. The state of a chunk is written last, when what it speaks of is stable: a sector behind its write pointer is
//! not written, whatever is there. So who is killed or loses power in a write has written the whole of it or nothing; and the
//! state is stable before the command ends, as a device promises.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use device::{AnyNamespace, Durability, Lba, Mode, Namespace, RangeLocks, sealed};
use engine::Buf;

use super::chunks::FRESH;
use crate::address::Chunk;
use crate::device::{ChunkReport, ChunkState, FlashError};
use crate::geometry::{Geometry, SECTOR_BYTES};

pub(super) const MAGIC: [u8; 8] = *b"YAGURA-N";
const FORMAT: u32 = 1;
/// Bytes of a chunk's state.
const STATE_BYTES: usize = 32;

/// Sectors of a chunk in memory, each with its out-of-band bytes behind it.
type InMemory = RefCell<BTreeMap<u32, Vec<u8>>>;

pub(super) enum Content {
    Memory { stride: usize, chunks: InMemory, unreadable: RefCell<BTreeSet<(u32, u32)>> },
    Kept(Kept),
}

pub(super) struct Kept {
    namespace: AnyNamespace,
    geometry: Geometry,
    /// One chunk's state at a time.
    locks: Arc<RangeLocks>,
}

fn medium(error: device::Error) -> FlashError {
    match error {
        device::Error::OutOfSpace => FlashError::NoRoom,
        error => FlashError::Medium(error.to_string()),
    }
}

impl Content {
    pub(super) fn in_memory(geometry: Geometry) -> Content {
        let stride = SECTOR_BYTES + geometry.oob_bytes as usize;
        Content::Memory { stride, chunks: RefCell::default(), unreadable: RefCell::default() }
    }

    pub(super) async fn read(
        &self,
        chunk: Chunk,
        offset: u32,
        mut data: Buf,
        mut oob: Buf,
    ) -> (Result<(), FlashError>, Buf, Buf) {
        let Content::Memory { stride, chunks, unreadable } = self else {
            let Content::Kept(kept) = self else { unreachable!("there are two kinds, and this is not the other") };
            return kept.read(chunk, offset, data, oob).await;
        };
        let chunks = chunks.borrow();
        let sectors = chunks.get(&chunk.0).map_or(&[][..], |bytes| &bytes[..]);
        let oob_bytes = stride - SECTOR_BYTES;
        for (index, part) in data.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            let at = (offset as usize + index) * stride;
            if unreadable.borrow().contains(&(chunk.0, offset + index as u32)) {
                return (Err(FlashError::Medium("unreadable".into())), data, oob);
            }
            part.copy_from_slice(&sectors[at..at + SECTOR_BYTES]);
            if !oob.is_empty() {
                let area = index * oob_bytes..(index + 1) * oob_bytes;
                oob[area].copy_from_slice(&sectors[at + SECTOR_BYTES..at + stride]);
            }
        }
        (Ok(()), data, oob)
    }

    /// Whether a sector of the range can't be read: which.
    pub(super) fn unreadable(&self, chunk: Chunk, offset: u32, count: u32) -> Option<u32> {
        match self {
            Content::Memory { unreadable, .. } => unreadable
                .borrow()
                .range((chunk.0, offset)..(chunk.0, offset + count))
                .next()
                .map(|&(_, sector)| sector),
            Content::Kept(_) => None,
        }
    }

    pub(super) fn spoil(&self, chunk: Chunk, sector: u32) {
        if let Content::Memory { unreadable, .. } = self {
            unreadable.borrow_mut().insert((chunk.0, sector));
        }
    }

    /// Writes sectors, and behind them the state that the chunk then has.
    pub(super) async fn write(
        &self,
        chunk: Chunk,
        offset: u32,
        data: &[u8],
        oob: &[u8],
        then: ChunkReport,
    ) -> Result<(), FlashError> {
        match self {
            Content::Memory { stride, chunks, .. } => {
                let mut chunks = chunks.borrow_mut();
                let sectors = chunks.entry(chunk.0).or_default();
                let count = data.len() / SECTOR_BYTES;
                sectors.resize(sectors.len().max((offset as usize + count) * stride), 0);
                let oob_bytes = stride - SECTOR_BYTES;
                for (index, part) in data.chunks_exact(SECTOR_BYTES).enumerate() {
                    let at = (offset as usize + index) * stride;
                    sectors[at..at + SECTOR_BYTES].copy_from_slice(part);
                    let area = index * oob_bytes..(index + 1) * oob_bytes;
                    sectors[at + SECTOR_BYTES..at + stride].copy_from_slice(&oob[area]);
                }
                Ok(())
            }
            Content::Kept(kept) => kept.write(chunk, offset, data, oob, then).await,
        }
    }

    /// What was in a chunk is gone, if `is_erased`; its state is another in any case.
    pub(super) async fn set_state(&self, chunk: Chunk, then: ChunkReport, is_erased: bool) -> Result<(), FlashError> {
        match self {
            Content::Memory { chunks, unreadable, .. } => {
                if is_erased {
                    chunks.borrow_mut().remove(&chunk.0);
                    unreadable.borrow_mut().retain(|&(spoilt, _)| spoilt != chunk.0);
                }
                Ok(())
            }
            Content::Kept(kept) => {
                let _lock = kept.locks.lock(u64::from(chunk.0), 1, Mode::Exclusive).await;
                kept.write_state(chunk, then, Durability::Stable).await
            }
        }
    }
}

impl Kept {
    /// Where the out-of-band bytes of a sector are, behind the begin of what goes with its chunk.
    fn oob_at(&self, offset: u32) -> usize {
        STATE_BYTES + offset as usize * self.geometry.oob_bytes as usize
    }

    fn side(&self, chunk: Chunk) -> u64 {
        1 + u64::from(chunk.0) * side_blocks(&self.geometry)
    }

    fn data(&self, chunk: Chunk, offset: u32) -> u64 {
        self.side(Chunk(self.geometry.chunks_total()))
            + u64::from(chunk.0) * u64::from(self.geometry.sectors)
            + u64::from(offset)
    }

    fn lba(&self, block: u64) -> Lba {
        Lba(block * (SECTOR_BYTES as u64 / u64::from(self.namespace.info().block_size)))
    }

    async fn get(&self, block: u64, bytes: usize) -> Result<Buf, FlashError> {
        let (result, buf) = self.namespace.read(self.lba(block), Buf::with_len(bytes)).await;
        result.map_err(medium).map(|()| buf)
    }

    async fn put(&self, block: u64, buf: Buf, durability: Durability) -> Result<(), FlashError> {
        self.namespace.write(self.lba(block), buf.freeze(), durability).await.map_err(medium)
    }

    async fn read(&self, chunk: Chunk, offset: u32, data: Buf, mut oob: Buf) -> (Result<(), FlashError>, Buf, Buf) {
        let (result, data) = self.namespace.read(self.lba(self.data(chunk, offset)), data).await;
        if let Err(error) = result {
            return (Err(medium(error)), data, oob);
        }
        let from = self.oob_at(offset);
        let result = async {
            let mut done = 0;
            while done < oob.len() {
                let block = self.get(self.side(chunk) + ((from + done) / SECTOR_BYTES) as u64, SECTOR_BYTES).await?;
                let within = (from + done) % SECTOR_BYTES;
                let take = (SECTOR_BYTES - within).min(oob.len() - done);
                oob[done..done + take].copy_from_slice(&block[within..within + take]);
                done += take;
            }
            Ok(())
        };
        let result = result.await;
        (result, data, oob)
    }

    async fn write(
        &self,
        chunk: Chunk,
        offset: u32,
        data: &[u8],
        oob: &[u8],
        then: ChunkReport,
    ) -> Result<(), FlashError> {
        self.put(self.data(chunk, offset), Buf::copy_from(data), Durability::Cached).await?;
        let _lock = self.locks.lock(u64::from(chunk.0), 1, Mode::Exclusive).await;
        let from = self.oob_at(offset);
        let mut done = 0;
        while done < oob.len() {
            let at = self.side(chunk) + ((from + done) / SECTOR_BYTES) as u64;
            let mut block = self.get(at, SECTOR_BYTES).await?;
            let within = (from + done) % SECTOR_BYTES;
            let take = (SECTOR_BYTES - within).min(oob.len() - done);
            block[within..within + take].copy_from_slice(&oob[done..done + take]);
            self.put(at, block, Durability::Cached).await?;
            done += take;
        }
        self.namespace.flush().await.map_err(medium)?;
        self.write_state(chunk, then, Durability::Stable).await
    }

    /// The caller has the lock of the chunk.
    async fn write_state(&self, chunk: Chunk, report: ChunkReport, durability: Durability) -> Result<(), FlashError> {
        let mut block = self.get(self.side(chunk), SECTOR_BYTES).await?;
        block[0] = match report.state {
            ChunkState::Free => 0,
            ChunkState::Open => 1,
            ChunkState::Closed => 2,
            ChunkState::ReadOnly => 3,
            ChunkState::Offline => 4,
        };
        block[4..8].copy_from_slice(&report.write_pointer.to_le_bytes());
        block[8..12].copy_from_slice(&report.wear.to_le_bytes());
        self.put(self.side(chunk), block, durability).await
    }

    async fn report(&self, chunk: Chunk) -> Result<ChunkReport, FlashError> {
        let block = self.get(self.side(chunk), SECTOR_BYTES).await?;
        let word = |at: usize| block[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let state = match block[0] {
            0 => ChunkState::Free,
            1 => ChunkState::Open,
            2 => ChunkState::Closed,
            3 => ChunkState::ReadOnly,
            4 => ChunkState::Offline,
            other => return Err(FlashError::Medium(format!("chunk {chunk} has state {other}, which there is not"))),
        };
        if word(4) > self.geometry.sectors {
            return Err(FlashError::Medium(format!("chunk {chunk} says that {} sectors of it are written", word(4))));
        }
        Ok(ChunkReport { state, write_pointer: word(4), wear: word(8) })
    }
}

/// The head of a device, as it is decoded.
pub(crate) fn encode_head(geometry: &Geometry, serial: [u8; 16]) -> Buf {
    let mut page = Buf::zeroed(SECTOR_BYTES);
    for (at, number) in (24..).step_by(4).zip(numbers(geometry)) {
        page[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    page[64..80].copy_from_slice(&serial);
    sealed::seal(&mut page, MAGIC, FORMAT);
    page
}

fn numbers(geometry: &Geometry) -> [u32; 7] {
    let Geometry { groups, units_per_group, chunks, sectors, write_unit, oob_bytes, open_max } = *geometry;
    [groups, units_per_group, chunks, sectors, write_unit, oob_bytes, open_max]
}

fn kept(namespace: AnyNamespace, geometry: Geometry) -> Result<Kept, FlashError> {
    let kept = Kept { namespace, geometry, locks: Arc::new(RangeLocks::new(0)) };
    let (info, needs) = (kept.namespace.info(), bytes_on_namespace(geometry));
    if info.bytes() < needs || info.block_size as usize > SECTOR_BYTES {
        let has = info.bytes();
        let text = format!(
            "it has {has} bytes in blocks of {}; the device needs {needs}, in blocks of 4096 or less",
            info.block_size
        );
        return Err(FlashError::Medium(text));
    }
    Ok(kept)
}

/// Blocks of what goes with a chunk. In 64 bits: a geometry that works has up to 2^40 out-of-band bytes in one.
fn side_blocks(geometry: &Geometry) -> u64 {
    let oob_bytes = u64::from(geometry.sectors) * u64::from(geometry.oob_bytes);
    (STATE_BYTES as u64 + oob_bytes).div_ceil(SECTOR_BYTES as u64)
}

/// Bytes that a namespace must have to keep a device of this geometry.
pub(crate) fn bytes_on_namespace(geometry: Geometry) -> u64 {
    let blocks = side_blocks(&geometry) + u64::from(geometry.sectors);
    (1 + u64::from(geometry.chunks_total()) * blocks) * SECTOR_BYTES as u64
}

/// Lays a fresh device out; the head comes last.
pub(super) async fn lay_out(
    namespace: AnyNamespace,
    geometry: Geometry,
    serial: [u8; 16],
    bad: &[Chunk],
) -> Result<(Content, Vec<ChunkReport>), FlashError> {
    let kept = kept(namespace, geometry)?;
    let mut reports = Vec::new();
    for chunk in (0..geometry.chunks_total()).map(Chunk) {
        let state = if bad.contains(&chunk) { ChunkState::Offline } else { ChunkState::Free };
        let report = ChunkReport { state, ..FRESH };
        kept.write_state(chunk, report, Durability::Cached).await?;
        reports.push(report);
    }
    kept.put(0, encode_head(&geometry, serial), Durability::Cached).await?;
    kept.namespace.flush().await.map_err(medium)?;
    Ok((Content::Kept(kept), reports))
}

/// A device that was laid out: its geometry, identity, bytes and chunks. `None`: there is none.
pub(super) async fn open(
    namespace: AnyNamespace,
) -> Result<Option<(Geometry, [u8; 16], Content, Vec<ChunkReport>)>, FlashError> {
    let (result, page) = namespace.read(Lba(0), Buf::with_len(SECTOR_BYTES)).await;
    result.map_err(medium)?;
    let Some((geometry, serial)) = decode_head(&page)? else { return Ok(None) };
    let kept = kept(namespace, geometry)?;
    let mut reports = Vec::new();
    for chunk in (0..geometry.chunks_total()).map(Chunk) {
        reports.push(kept.report(chunk).await?);
    }
    Ok(Some((geometry, serial, Content::Kept(kept), reports)))
}

/// What a head says: geometry and identity. `None`: it is none.
pub(crate) fn decode_head(page: &[u8]) -> Result<Option<(Geometry, [u8; 16])>, FlashError> {
    if !page.starts_with(&MAGIC) {
        return Ok(None);
    }
    if !sealed::is_whole(page) || sealed::format(page) != FORMAT {
        return Err(FlashError::Medium(format!("its head is damaged, or of a format other than {FORMAT}")));
    }
    let word = |at: usize| page[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let geometry = Geometry {
        groups: word(24),
        units_per_group: word(28),
        chunks: word(32),
        sectors: word(36),
        write_unit: word(40),
        oob_bytes: word(44),
        open_max: word(48),
    };
    let geometry = geometry.checked().map_err(|error| FlashError::Medium(error.to_string()))?;
    let mut serial = [0; 16];
    serial.copy_from_slice(&page[64..80]);
    Ok(Some((geometry, serial)))
}
