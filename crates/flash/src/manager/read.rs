//! Reads: from the buffer what is there, from flash the rest, over all parallel units at once.
//!
//! Invariants:
//! - A line that is read is not reset: it counts its readers.
//! - Where there is an out-of-band area, what is read is given out only if its tag says that it is the sector that was asked for.

use device::Error;
use engine::Buf;

use super::core::Core;
use super::join::join_all;
use super::map::Place;
use super::tag::{Codec, Logical, TAG_BYTES, Tag};
use crate::address::Sector;
use crate::device::{FlashDevice, FlashError};
use crate::geometry::SECTOR_BYTES;

/// Tries of a read that fails. Chosen: what failed by chance goes well the second time.
const TRIES: u32 = 3;

/// Neighbours on flash that are neighbours in the namespace.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: u32,
    first: Sector,
    count: u32,
}

/// Reads sectors of one chunk with their out-of-band bytes, several times if it must.
pub(super) async fn read_several_times(
    device: &dyn FlashDevice,
    codec: &Codec,
    first: Sector,
    count: u32,
) -> Result<(Buf, Buf), FlashError> {
    let (mut data, mut oob) = (Buf::with_len(count as usize * SECTOR_BYTES), Buf::with_len(codec.oob_bytes(count)));
    let mut result = Ok(());
    for _ in 0..TRIES {
        (result, data, oob) = device.read(first, data, oob).await;
        if !matches!(result, Err(FlashError::ReadFailed(_))) {
            break;
        }
    }
    result.map(|()| (data, oob))
}

impl Core {
    /// Reads sectors of one chunk with their out-of-band bytes, several times if it must.
    pub async fn read_flash(&self, first: Sector, count: u32) -> Result<(Buf, Buf), FlashError> {
        read_several_times(&*self.device, &self.codec, first, count).await
    }

    /// One sector with what its tag says. `None`: it can't be read, or its tag is of something else.
    pub async fn read_tagged(&self, sector: Sector) -> Option<(Tag, Buf)> {
        self.find_tagged(sector).await.ok().flatten()
    }

    /// The same for whom it matters why it can't be read. `None`: its tag is of something else.
    pub async fn find_tagged(&self, sector: Sector) -> Result<Option<(Tag, Buf)>, FlashError> {
        let (data, oob) = self.read_flash(sector, 1).await?;
        let tag = match self.codec.in_band() {
            false => self.codec.open(&oob[..self.codec.tag_bytes()], &data),
            true => {
                let first = Sector(sector.0 / self.codec.unit * self.codec.unit);
                let Some(index) = (sector.0 - first.0).checked_sub(1) else { return Ok(None) };
                let (tags, _) = self.read_flash(first, 1).await?;
                self.codec.open(&tags[index as usize * TAG_BYTES..][..TAG_BYTES], &data)
            }
        };
        Ok(tag.map(|tag| (tag, data)))
    }

    /// Fills `data` from logical sector `first`. The caller has the range to itself, as far as writers go.
    pub async fn read(&self, first: u32, data: &mut [u8]) -> Result<(), Error> {
        let runs = self.plan(first, data)?;
        let lines: Vec<u32> = {
            let mut state = self.state.borrow_mut();
            let lines: Vec<u32> = runs.iter().map(|run| state.lines.line_of(run.first)).collect();
            lines.iter().for_each(|&line| state.lines.get_mut(line).readers += 1);
            lines
        };
        let _pins = Pins { core: self, lines };
        let reads = runs.iter().map(|&run| -> engine::task::LocalFuture<'_, _> { Box::pin(self.read_run(first, run)) });
        let results = join_all(reads.collect()).await;
        for (run, result) in runs.iter().zip(results) {
            let bytes = result?;
            let at = run.at as usize * SECTOR_BYTES;
            data[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Fills what is in the buffer or nowhere, and says where the rest is.
    fn plan(&self, first: u32, data: &mut [u8]) -> Result<Vec<Run>, Error> {
        let state = self.state.borrow();
        let mut runs: Vec<Run> = Vec::new();
        for (at, part) in (0u32..).zip(data.chunks_exact_mut(SECTOR_BYTES)) {
            let logical = first + at;
            if let Some(newest) = state.buffer.newest(logical) {
                part.copy_from_slice(newest);
                continue;
            }
            let place = match state.buffer.recorded(logical, 1) {
                Some(range) if range.is_spoilt => Place::Spoilt,
                Some(_) => Place::Nothing,
                None => state.map.get(logical),
            };
            match place {
                Place::Nothing => part.fill(0),
                Place::Spoilt => {
                    return Err(Error::ReadFault(format!("sector {logical} was lost, or made unreadable")));
                }
                Place::At(sector) => match runs.last_mut() {
                    Some(run) if self.follows(run, at, sector) => run.count += 1,
                    _ => runs.push(Run { at, first: sector, count: 1 }),
                },
            }
        }
        Ok(runs)
    }

    fn follows(&self, run: &Run, at: u32, sector: Sector) -> bool {
        let geometry = &self.codec.geometry;
        let same_chunk = geometry.locate(run.first).0 == geometry.locate(sector).0;
        run.at + run.count == at && run.first.0 + run.count == sector.0 && same_chunk
    }

    async fn read_run(&self, first: u32, run: Run) -> Result<Buf, Error> {
        let fault = |what: String| Error::ReadFault(what);
        let (data, oob) = self.read_flash(run.first, run.count).await.map_err(|error| fault(error.to_string()))?;
        if !self.codec.in_band() {
            let tags = oob.chunks_exact(self.codec.geometry.oob_bytes as usize);
            for ((index, tag), sector) in (0..).zip(tags).zip(data.chunks_exact(SECTOR_BYTES)) {
                let logical = first + run.at + index;
                let found = self.codec.open(&tag[..self.codec.tag_bytes()], sector).map(|tag| tag.logical);
                if found != Some(Logical::Data(logical)) {
                    return Err(fault(format!(
                        "flash sector {} is not sector {logical}: {found:?}",
                        run.first.0 + index
                    )));
                }
            }
        }
        Ok(data)
    }
}

/// Lines that are being read; a read that is given up gives them free as well.
struct Pins<'a> {
    core: &'a Core,
    lines: Vec<u32>,
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.borrow_mut();
        self.lines.iter().for_each(|&line| state.lines.get_mut(line).readers -= 1);
        let is_emptying = state.is_emptying;
        drop(state);
        if is_emptying {
            self.core.changed.notify_all();
        }
    }
}
