//! A map's body in its slot: cut into *leaves*, each of which is replaced by one compare-and-write.
//!
//! ```text
//!  leaf: 4096 bytes, or a block where that is larger
//!   0  ballot      u64, u64   round, host: by whom this leaf was written
//!  16  index       u32        its own number
//!  20  used        u32        bytes of the body in it
//!  24  bytes of the body, then zeroes
//! ```
//!
//! **No image of a leaf ever returns**, as no ballot is used twice. So a write that was sent long ago, by a host that has lost
//! its promise since, can't land on the map in force: it compares with what was there before that map was written.

use device::{Durability, Lba, Namespace};
use engine::{Buf, View};

use crate::geometry::{MAP_OFFSETS, MAP_SLOT_BYTES};
use crate::superblock::Ballot;

/// Bytes of a leaf of the smallest kind.
pub(crate) const LEAF_BYTES_MIN: usize = 4096;
/// Bytes of a leaf before the body's own.
pub(crate) const LEAF_HEADER_BYTES: usize = 24;
/// The largest map body in bytes: what fills a slot with leaves of the smallest kind, about 1,400 members.
pub const MAP_BYTES_MAX: usize = MAP_SLOT_BYTES / LEAF_BYTES_MIN * (LEAF_BYTES_MIN - LEAF_HEADER_BYTES);
/// Largest single read in bytes; small enough for any namespace.
const READ_BYTES_MAX: usize = 65_536;

/// Bytes that are replaced at once: superblocks and leaves.
pub(crate) fn unit_bytes<N: Namespace>(namespace: &N) -> usize {
    LEAF_BYTES_MIN.max(namespace.info().block_size as usize)
}

/// The leaves of a body, written by `ballot`.
pub(crate) fn leaves(body: &[u8], ballot: Ballot, unit: usize) -> impl Iterator<Item = Vec<u8>> {
    body.chunks(unit - LEAF_HEADER_BYTES).enumerate().map(move |(index, part)| {
        let mut leaf = Vec::with_capacity(unit);
        leaf.extend_from_slice(&ballot.round.to_le_bytes());
        leaf.extend_from_slice(&ballot.host.to_le_bytes());
        leaf.extend_from_slice(&(index as u32).to_le_bytes());
        leaf.extend_from_slice(&(part.len() as u32).to_le_bytes());
        leaf.extend_from_slice(part);
        leaf.resize(unit, 0);
        leaf
    })
}

/// Bytes that the leaves of a body of `length` take.
pub(crate) fn leaves_bytes(length: usize, unit: usize) -> usize {
    length.div_ceil(unit - LEAF_HEADER_BYTES) * unit
}

/// Reads a body of `length` bytes from the slot at `offset`. Whether it is whole, its checksum tells.
pub(crate) async fn read_body<N: Namespace>(
    namespace: &N,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, device::Error> {
    let unit = unit_bytes(namespace);
    let bytes = read(namespace, offset, leaves_bytes(length, unit)).await?;
    let mut body: Vec<u8> = bytes.chunks(unit).flat_map(|leaf| &leaf[LEAF_HEADER_BYTES..]).copied().collect();
    body.truncate(length);
    Ok(body)
}

/// Writes a new member's body, into the first slot; stable when done, with all that was written before.
pub(crate) async fn write_body<N: Namespace>(
    namespace: &N,
    body: &[u8],
    accepted: Ballot,
) -> Result<(), device::Error> {
    let leaves: Vec<u8> = leaves(body, accepted, unit_bytes(namespace)).flatten().collect();
    write(namespace, MAP_OFFSETS[0], &leaves).await?;
    namespace.flush().await
}

/// Reads `length` bytes, whole units, at byte `offset`.
pub(crate) async fn read<N: Namespace>(namespace: &N, offset: u64, length: usize) -> Result<Vec<u8>, device::Error> {
    let info = namespace.info();
    let block = info.block_size as usize;
    let chunk = READ_BYTES_MAX.min((info.transfer_blocks_max as usize).max(1).saturating_mul(block));
    let mut bytes = Vec::with_capacity(length.next_multiple_of(block));
    while bytes.len() < length {
        let part = (length - bytes.len()).next_multiple_of(block).min(chunk);
        let lba = Lba((offset + bytes.len() as u64) / block as u64);
        let (result, buf) = namespace.read(lba, Buf::with_len(part)).await;
        result?;
        bytes.extend_from_slice(&buf);
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Writes `bytes`, padded with zeroes to whole blocks, at byte `offset`; stable when done.
pub(crate) async fn write<N: Namespace>(namespace: &N, offset: u64, bytes: &[u8]) -> Result<(), device::Error> {
    let info = namespace.info();
    let block = info.block_size as usize;
    let chunk = (info.transfer_blocks_max as usize).clamp(1, 64) * block;
    for (index, part) in bytes.chunks(chunk).enumerate() {
        let mut buf = Buf::zeroed(part.len().next_multiple_of(block));
        buf[..part.len()].copy_from_slice(part);
        let lba = Lba((offset + (index * chunk) as u64) / block as u64);
        namespace.write(lba, buf.freeze(), Durability::Stable).await?;
    }
    Ok(())
}

/// Replaces a unit at byte `offset` if it still is `expected`. Whether it did is known, or it is an error.
pub(crate) async fn swap<N: Namespace>(
    namespace: &N,
    offset: u64,
    expected: &[u8],
    new: &[u8],
) -> Result<bool, device::Error> {
    let lba = Lba(offset / u64::from(namespace.info().block_size));
    match namespace.compare_and_write(lba, view(expected), view(new), Durability::Stable).await {
        Ok(()) => Ok(true),
        Err(device::Error::CompareFailure) => Ok(false),
        Err(error) if error.outcome_unknown() => {
            let found = read(namespace, offset, new.len()).await?;
            // What is still as it was may be replaced later: nobody may count on either.
            if found == new {
                Ok(true)
            } else if found == expected {
                Err(error)
            } else {
                Ok(false)
            }
        }
        Err(error) => Err(error),
    }
}

fn view(bytes: &[u8]) -> View {
    let mut buf = Buf::with_len(bytes.len());
    buf.copy_from_slice(bytes);
    buf.freeze()
}
