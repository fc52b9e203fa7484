//! What kinds of namespaces with zones have alike, beside the rules of `zone`.

use crate::lba::Lba;
use crate::limits::check_range;
use crate::namespace::{Error, NamespaceInfo};
use crate::zone::ZonedInfo;

impl ZonedInfo {
    /// The zone that begins at this block.
    ///
    /// # Errors
    /// The block is beyond the end, or within a zone.
    pub fn begins(&self, info: &NamespaceInfo, lba: Lba) -> Result<usize, Error> {
        check_range(info, lba, 1)?;
        match self.locate(lba) {
            (zone, 0) => Ok(zone),
            _ => Err(Error::Unsupported("zones that begin elsewhere than where one begins")),
        }
    }
}

impl NamespaceInfo {
    /// Of a namespace whose blocks are written in order, on a medium that keeps what it has acknowledged: nothing is replaced,
    /// and nothing given back but by resets.
    pub fn in_zones(block_size: u32, blocks: u64, transfer_blocks_max: u32, nguid: [u8; 16]) -> NamespaceInfo {
        NamespaceInfo {
            block_size,
            blocks,
            atomic_blocks: transfer_blocks_max,
            compare_and_write_blocks_max: 0,
            transfer_blocks_max,
            volatile_cache: false,
            volatile_medium: false,
            deallocated_reads_zero: false,
            thin: false,
            preferred_write_blocks: 1,
            preferred_deallocate_blocks: 1,
            write_uncorrectable: false,
            persists_attributes: false,
            nguid,
        }
    }
}
