//! The checks that every local kind makes before it touches its medium: a command that passes them lies inside it.

use crate::{Error, Lba, NamespaceInfo};

/// The smallest block there is on any medium.
pub const BLOCK_SIZE_MIN: u32 = 512;
/// The largest block the trait allows.
pub const BLOCK_SIZE_MAX: u32 = 64 << 10;
/// The largest single transfer of a local namespace. Derived: what a pooled buffer holds.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// The largest compare-and-write of a local namespace. Derived: the house's default (ACWU worth 128 KiB).
pub const COMPARE_AND_WRITE_BYTES_MAX: usize = 128 << 10;

const _: () = assert!(COMPARE_AND_WRITE_BYTES_MAX <= TRANSFER_BYTES_MAX);
const _: () = assert!(COMPARE_AND_WRITE_BYTES_MAX.is_multiple_of(BLOCK_SIZE_MAX as usize));
const _: () = assert!(TRANSFER_BYTES_MAX <= engine::buf::BUF_BYTES_MAX, "a transfer must fit one buffer");
const _: () = assert!(TRANSFER_BYTES_MAX.is_multiple_of(BLOCK_SIZE_MAX as usize));

/// `blocks` blocks from `lba` lie within the namespace.
///
/// # Errors
/// [`Error::OutOfRange`] where they don't.
pub fn check_range(info: &NamespaceInfo, lba: Lba, blocks: u64) -> Result<(), Error> {
    match lba.0.checked_add(blocks) {
        Some(end) if end <= info.blocks => Ok(()),
        _ => Err(Error::OutOfRange { lba, blocks, end: info.blocks }),
    }
}

/// A payload of `bytes` at `lba` is whole blocks, at least one and at most `blocks_max`, within the namespace.
/// Returns the number of blocks.
///
/// # Errors
/// [`Error::InvalidLength`] or [`Error::OutOfRange`].
pub fn check_length(info: &NamespaceInfo, lba: Lba, bytes: usize, blocks_max: u32) -> Result<u64, Error> {
    let block_size = info.block_size as usize;
    let bytes_max = blocks_max as usize * block_size;
    if bytes == 0 || !bytes.is_multiple_of(block_size) || bytes > bytes_max {
        return Err(Error::InvalidLength { bytes, block_size: info.block_size, bytes_max });
    }
    let blocks = (bytes / block_size) as u64;
    check_range(info, lba, blocks)?;
    Ok(blocks)
}

/// Both halves of a compare-and-write, likewise.
///
/// # Errors
/// As [`check_length`]; halves of different lengths are [`Error::InvalidLength`].
pub fn check_halves(info: &NamespaceInfo, lba: Lba, expected: usize, new: usize) -> Result<u64, Error> {
    let blocks = check_length(info, lba, expected, info.compare_and_write_blocks_max)?;
    if expected == new {
        return Ok(blocks);
    }
    let bytes_max = info.compare_and_write_blocks_max as usize * info.block_size as usize;
    Err(Error::InvalidLength { bytes: new, block_size: info.block_size, bytes_max })
}
