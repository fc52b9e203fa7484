//! Finding the root in force.
//!
//! Invariants:
//! - A root is known by the tags of its sectors, which are of a kind that nothing in the log has. What hosts write is never beside
//!   such a tag, whatever it looks like.
//! - Any root of this device tells which chunks are set apart; of these every unit is looked at, so that one that can't be read
//!   hides nothing that lies behind it.

use super::error::ManagerError;
use super::read::read_several_times;
use super::root::{self, Root, length};
use super::tag::{Codec, Logical, Tag};
use crate::address::Chunk;
use crate::device::{ChunkReport, ChunkState, FlashDevice, FlashError};
use crate::geometry::SECTOR_BYTES;

/// What begins at a unit.
enum Beginning {
    /// A root of so many units that is whole.
    Root(Box<Root>, u32),
    /// It can't be read, or the root that begins there is not whole.
    Damage,
    /// No root.
    Other,
}

struct Finder<'a> {
    device: &'a dyn FlashDevice,
    reports: &'a [ChunkReport],
    codec: Codec,
}

/// The root in force.
pub(super) struct Found {
    pub root: Root,
    pub slot: usize,
    /// Sectors of its chunk up to its end.
    pub end: u32,
}

/// The newest root that is whole. `None`: the device was not formatted.
pub(super) async fn newest_root(
    device: &dyn FlashDevice,
    reports: &[ChunkReport],
) -> Result<Option<Found>, ManagerError> {
    let finder = Finder { device, reports, codec: root::codec(device.geometry()) };
    let Some(any) = finder.any().await? else { return Ok(None) };
    let mut newest: Option<Found> = None;
    for (slot, chunks) in any.apart.iter().enumerate() {
        for &chunk in chunks {
            if let Some((root, end)) = finder.newest_in(chunk, true).await?
                && root.identity == any.identity
                && newest.as_ref().is_none_or(|before| before.root.number < root.number)
            {
                newest = Some(Found { root, slot, end });
            }
        }
    }
    Ok(newest)
}

impl Finder<'_> {
    /// Some root of this device, in a chunk that the root itself has set apart.
    async fn any(&self) -> Result<Option<Root>, ManagerError> {
        let geometry = self.codec.geometry;
        let mut other = None;
        for chunk in (0..geometry.units())
            .flat_map(|unit| (0..geometry.chunks.min(2)).map(move |number| geometry.chunk(unit, number)))
        {
            let Some((root, _)) = self.newest_in(chunk, false).await? else { continue };
            if root.geometry != geometry {
                let (recorded, found) = (Box::new(root.geometry), Box::new(geometry));
                other = Some(ManagerError::OtherGeometry { recorded, found });
            } else if root.serial != self.device.serial() {
                other = Some(ManagerError::OtherDevice);
            } else if root.apart.iter().flatten().any(|&apart| apart == chunk) {
                return Ok(Some(root));
            }
        }
        other.map_or(Ok(None), Err)
    }

    /// The newest root in a chunk, and where it ends; one that is not known to be set apart is of the log if it begins with
    /// something else.
    async fn newest_in(&self, chunk: Chunk, is_apart: bool) -> Result<Option<(Root, u32)>, ManagerError> {
        let report = self.reports[chunk.0 as usize];
        let written = if report.state == ChunkState::Offline { 0 } else { report.write_pointer };
        let mut newest: Option<(Root, u32)> = None;
        let mut offset = 0;
        while offset + self.codec.unit <= written {
            offset += match self.at(chunk, offset, written).await? {
                Beginning::Root(root, units) => {
                    let units = units * self.codec.unit;
                    if newest.as_ref().is_none_or(|(before, _)| before.number < root.number) {
                        newest = Some((*root, offset + units));
                    }
                    units
                }
                Beginning::Other if offset == 0 && !is_apart => break,
                Beginning::Other | Beginning::Damage => self.codec.unit,
            };
        }
        Ok(newest)
    }

    async fn at(&self, chunk: Chunk, offset: u32, written: u32) -> Result<Beginning, ManagerError> {
        let (mut bytes, mut wanted, mut units) = (Vec::new(), SECTOR_BYTES, 0);
        // By write unit: a root may be longer than a buffer.
        while bytes.len() < wanted {
            let at = offset + units * self.codec.unit;
            if at + self.codec.unit > written {
                return Ok(Beginning::Damage);
            }
            let first = self.codec.geometry.sector(chunk, at);
            let (data, oob) = match read_several_times(self.device, &self.codec, first, self.codec.unit).await {
                Ok(found) => found,
                Err(FlashError::ReadFailed(_) | FlashError::NotWritten(_)) => return Ok(Beginning::Damage),
                Err(error) => return Err(error.into()),
            };
            let sectors = data[usize::from(self.codec.in_band()) * SECTOR_BYTES..].chunks_exact(SECTOR_BYTES);
            for (tag, sector) in self.codec.tags(&data, &oob).into_iter().zip(sectors) {
                let expected = Tag { logical: Logical::Root, sequence: (bytes.len() / SECTOR_BYTES) as u64 };
                match (bytes.is_empty(), tag == Some(expected)) {
                    (true, false) => return Ok(Beginning::Other),
                    (true, true) => wanted = length(sector).unwrap_or(SECTOR_BYTES),
                    (false, true) => {}
                    (false, false) if bytes.len() >= wanted => break,
                    (false, false) => return Ok(Beginning::Damage),
                }
                bytes.extend_from_slice(sector);
            }
            units += 1;
        }
        let root = bytes.get(..wanted).and_then(Root::decode);
        Ok(root.map_or(Beginning::Damage, |root| Beginning::Root(Box::new(root), units)))
    }
}
