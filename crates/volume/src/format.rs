//! Makes a volume of namespaces, or a replacement for one of its holders.
//!
//! Invariants:
//! - What is there is looked at before anything is taken or written; what is in use is left alone but by force.
//! - The first block says that the namespace is being formatted before anything else is changed, by compare-and-write from what was
//!   looked at: the volume that it belonged to sees at once that it lost it, and of two who format at once one fails. The label
//!   comes last. Whoever formats such a namespace again has to say `force`: somebody may be at it.
//! - A log is born clean only where the replicas read as zeroes: otherwise they may differ anywhere.

use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Lba, Namespace};
use engine::task::{self, LocalFuture};
use engine::{Buf, View};
use fabric::host::AnyRemote;

use crate::block::log_entries;
use crate::candidate::{Candidate, look};
use crate::error::Error;
use crate::label::{
    Born, DATA_ALIGN, Kind, LEASE_MS, LOG_BLOCK, Label, Life, RECORD_BLOCK, REGIONS_MAX, REPLICAS_MAX, Shape,
};
use crate::making::Making;
use crate::reach::Reach;
use crate::record::{Ballot, FORMAT_ROUND, HOLDERS_MAX, Record, RecordBlock, Set};

/// Bytes of a region. Chosen: what is settled before a first read waits for one region.
const REGION_BYTES: u64 = 1 << 20;
/// The log has room for so many times the size that a volume is made with.
const GROWTH: u64 = 16;
/// Bytes that are zeroed in one step. Chosen: what is done again where a former host of the namespace came between.
const ZEROED_BYTES: u64 = 1 << 30;
/// Bytes of volume that the log has room for, at least.
const LOG_ROOM_MIN: u64 = 64 << 30;

/// How a volume is made.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Replicas, 1 to 3. With two of them a third holder is the witness.
    pub replicas: u8,
    /// Bytes of the volume; `None`: as many as the smallest replica has room for.
    pub bytes: Option<u64>,
    /// Bytes of a region, a power of two of blocks; `None`: 1 MiB, or more where a volume would have too many.
    pub region_bytes: Option<u64>,
    /// How long a host may read after a majority has confirmed it. A fail-over that can't reach a replica in sync waits as long.
    pub lease: Duration,
    /// Takes namespaces that are in use.
    pub force: bool,
    /// The volume's identifier, other than 0; `None`: a random one. Who gives one makes the volume even where a former try of the
    /// same was cut short: namespaces that are of that volume already count as blank until all of them are, and from then on are
    /// left as they are. Where a host has attached the volume, which it can only when all were, nothing is made anew.
    pub volume: Option<u128>,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        let lease = Duration::from_secs(9);
        FormatOptions { replicas: 3, bytes: None, region_bytes: None, lease, force: false, volume: None }
    }
}

/// Makes a volume of the namespaces, by slot: the replicas, and behind two of them the witness.
///
/// # Errors
/// A namespace is in use, too small, unlike the others, or lacks what a holder needs. After an error in the middle those that were
/// taken keep a reservation, and count as in use.
pub fn format(reaches: Vec<Rc<dyn Reach>>, options: FormatOptions) -> LocalFuture<'static, Result<Shape, Error>> {
    Box::pin(async move {
        let is_counted = (1..=REPLICAS_MAX as u8).contains(&options.replicas);
        if !is_counted || reaches.len() != if options.replicas == 1 { 1 } else { 3 } {
            return Err(Error::Impossible("a volume has one replica, two and a witness, or three"));
        }
        let mut candidates = Vec::new();
        for reach in &reaches {
            candidates.push(look(reach, options.force, options.volume).await?);
        }
        if let Some(shape) = options.volume.and_then(|volume| made(&candidates, volume)) {
            return Ok(shape);
        }
        if let Some(holder) = candidates.iter().find(|candidate| candidate.was_attached && !options.force) {
            let by = "the volume was whole, and a host has attached it: these are not its holders".to_owned();
            return Err(Error::InUse { holder: holder.name.clone(), by });
        }
        let shape = shape(&candidates, &options)?;
        let lives: [Life; HOLDERS_MAX] = std::array::from_fn(|slot| if slot < reaches.len() { uuid() } else { 0 });
        let replicas = &candidates[..usize::from(options.replicas)];
        let is_zeroed = replicas.iter().all(|replica| replica.info.deallocated_reads_zero);
        let born = if is_zeroed { Born::Clean } else { Born::Intent };
        let record = Record {
            ballot: Ballot { round: FORMAT_ROUND, host: task::random_u64() },
            version: 1,
            in_sync: Set::first(options.replicas.into()),
            lives,
            lives_before: lives,
            ..Record::default()
        };
        let mut taken = Vec::new();
        for (slot, candidate) in candidates.iter().enumerate() {
            let label = label(&shape, slot, born, lives[slot]);
            taken.push((prepare(candidate, &label, &record).await?, label));
        }
        // A crash before the last of these leaves a volume that attaches with those that have a label, or none.
        for (making, label) in &mut taken {
            making.turn_into(sealed(&shape, |bytes| label.encode(bytes))).await?;
        }
        Ok(shape)
    })
}

/// Makes a namespace a replacement for the holder of a slot: with a new life, and a log that says intent everywhere. Give it to the
/// attached volume by [`Volume::set_reach`](crate::Volume::set_reach), or attach with it in the slot. It is taken in when it has
/// room for the volume as that is by then: `shape` says what it was made with.
///
/// # Errors
/// As [`format()`].
pub fn format_replacement(
    reach: Rc<dyn Reach>,
    shape: Shape,
    slot: usize,
    force: bool,
) -> LocalFuture<'static, Result<Life, Error>> {
    Box::pin(async move {
        let candidate = look(&reach, force, None).await?;
        if slot >= shape.holders() {
            return Err(Error::Impossible("the volume has no such slot"));
        }
        let life = uuid();
        let label = label(&shape, slot, Born::Intent, life);
        check(&candidate, &shape, label.kind)?;
        let mut making = prepare(&candidate, &label, &Record::default()).await?;
        making.turn_into(sealed(&shape, |bytes| label.encode(bytes))).await?;
        Ok(life)
    })
}

pub(crate) fn uuid() -> u128 {
    u128::from(task::random_u64()) << 64 | u128::from(task::random_u64() | 1)
}

/// The shape of the volume, where all of these are its holders already, by slot.
fn made(candidates: &[Candidate], volume: u128) -> Option<Shape> {
    let labels = candidates.iter().map(|candidate| Label::decode(&candidate.first).ok());
    let labels = labels.collect::<Option<Vec<Label>>>()?;
    let shape = labels.first()?.shape;
    let is_slot = |(slot, label): (usize, &Label)| label.shape == shape && usize::from(label.slot) == slot;
    let is_made = shape.volume == volume && shape.holders() == labels.len() && labels.iter().enumerate().all(is_slot);
    is_made.then_some(shape)
}

/// Bytes that a namespace with blocks of `block_size` bytes needs to be a holder of a volume of `bytes` with the usual regions.
pub fn holder_bytes(kind: Kind, bytes: u64, block_size: u32) -> u64 {
    if kind == Kind::Witness {
        return LOG_BLOCK * u64::from(block_size);
    }
    let blocks = bytes.div_ceil(block_size.into());
    let region_blocks = (usual_region(bytes, block_size) / u64::from(block_size)) as u32;
    // Of the others nothing counts.
    let shape = Shape { volume: 0, replicas: 3, block_size, region_blocks, blocks, lease_ms: 0 };
    (places(&shape).1 + blocks) * u64::from(block_size)
}

/// Bytes of a region where nothing else is asked for.
fn usual_region(bytes: u64, block_size: u32) -> u64 {
    REGION_BYTES.max(bytes.div_ceil(REGIONS_MAX).next_power_of_two()).max(block_size.into())
}

/// The places of log and data on a replica: log blocks, and where the data begins.
fn places(shape: &Shape) -> (u64, u64) {
    let block_size = u64::from(shape.block_size);
    let region_bytes = u64::from(shape.region_blocks) * block_size;
    let bytes = (shape.blocks * block_size).saturating_mul(GROWTH).max(LOG_ROOM_MIN);
    let regions = bytes.div_ceil(region_bytes).clamp(shape.regions(), REGIONS_MAX);
    let log_blocks = regions.div_ceil(log_entries(shape.block_size as usize) as u64);
    let head_bytes = (LOG_BLOCK + log_blocks) * block_size;
    (log_blocks, head_bytes.next_multiple_of(DATA_ALIGN) / block_size)
}

pub(crate) fn label(shape: &Shape, slot: usize, born: Born, life: Life) -> Label {
    let is_witness = slot >= usize::from(shape.replicas);
    let kind = if is_witness { Kind::Witness } else { Kind::Replica };
    let (log_blocks, data_first) = if is_witness { (0, 0) } else { places(shape) };
    Label { shape: *shape, slot: slot as u8, kind, born, life, log_blocks, data_first }
}

pub(crate) fn check(candidate: &Candidate, shape: &Shape, kind: Kind) -> Result<(), Error> {
    let holder = candidate.name.clone();
    let (found, blocks) = (candidate.info.block_size, candidate.info.blocks);
    if found != shape.block_size {
        return Err(Error::BlockSize { holder, found, expected: shape.block_size });
    }
    let needed = if kind == Kind::Witness { LOG_BLOCK } else { places(shape).1 + shape.blocks };
    if blocks < needed { Err(Error::TooSmall { holder, blocks, needed }) } else { Ok(()) }
}

fn shape(candidates: &[Candidate], options: &FormatOptions) -> Result<Shape, Error> {
    let replicas = &candidates[..usize::from(options.replicas)];
    let smallest = replicas.iter().map(|replica| replica.info.bytes()).min().unwrap_or(0);
    let block_size = u64::from(candidates[0].info.block_size);
    let lease_ms = u32::try_from(options.lease.as_millis()).unwrap_or(u32::MAX);
    if !LEASE_MS.contains(&lease_ms) {
        return Err(Error::Impossible("the lease is to be half a second to two minutes"));
    }
    let of = |bytes: u64| {
        let usual = usual_region(bytes, block_size as u32);
        let region_blocks = options.region_bytes.unwrap_or(usual) / block_size;
        let region_blocks = u32::try_from(region_blocks).ok().filter(|blocks| blocks.is_power_of_two())?;
        let (replicas, blocks) = (options.replicas, bytes / block_size);
        let block_size = block_size as u32;
        let volume = options.volume.unwrap_or_else(uuid);
        let shape = Shape { volume, replicas, block_size, region_blocks, blocks, lease_ms };
        (blocks > 0 && shape.regions() <= REGIONS_MAX).then_some(shape)
    };
    let impossible = Error::Impossible("the size of the volume, or of its regions, can't be had");
    let shape = match options.bytes {
        Some(bytes) => of(bytes),
        // The log of a volume as large as the namespace has room for that of what is left.
        None => of(smallest).and_then(|whole| of(smallest.saturating_sub(places(&whole).1 * block_size))),
    };
    let shape = shape.ok_or(impossible)?;
    for (slot, candidate) in candidates.iter().enumerate() {
        check(candidate, &shape, label(&shape, slot, Born::Intent, 1).kind)?;
    }
    Ok(shape)
}

/// Takes the namespace, says that it is being formatted, and does all but the label: zeroes, where that costs nothing, and the
/// record.
pub(crate) async fn prepare<'a>(candidate: &'a Candidate, label: &Label, record: &Record) -> Result<Making<'a>, Error> {
    let mut making = Making::begin(candidate, sealed(&label.shape, |bytes| label.encode_unfinished(bytes))).await?;
    if label.kind == Kind::Replica && label.born == Born::Clean {
        let (end, most) = (label.data_first + label.shape.blocks, ZEROED_BYTES / u64::from(label.shape.block_size));
        for first in (LOG_BLOCK..end).step_by(most as usize) {
            let blocks = most.min(end - first);
            let zero = async |namespace: &AnyRemote| {
                namespace.deallocate(Lba(first), blocks).await?;
                // Over the same connection: a target that went down in between may have lost it.
                namespace.flush().await
            };
            making.step(zero).await?;
        }
    }
    record_block(&mut making, label, record).await?;
    Ok(making)
}

/// Writes the record, which may be none.
pub(crate) async fn record_block(making: &mut Making<'_>, label: &Label, record: &Record) -> Result<(), Error> {
    let block = RecordBlock { life: label.life, promised: record.ballot, accepted: record.clone() };
    let bytes = sealed(&label.shape, |bytes| block.encode(bytes));
    let write =
        async |namespace: &AnyRemote| namespace.write(Lba(RECORD_BLOCK), bytes.clone(), Durability::Stable).await;
    making.step(write).await
}

/// A block of a holder.
pub(crate) fn sealed(shape: &Shape, encode: impl FnOnce(&mut [u8])) -> View {
    let mut bytes = Buf::with_len(shape.block_size as usize);
    encode(&mut bytes);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_the_bytes_that_its_volume_needs_and_no_fewer() {
        for (bytes, block_size) in
            [(4096, 4096), (8 << 20, 512), (1 << 30, 4096), (20 << 40, 4096), ((1 << 40) + 512, 512)]
        {
            let region_blocks = (usual_region(bytes, block_size) / u64::from(block_size)) as u32;
            let blocks = bytes.div_ceil(block_size.into());
            let shape = Shape { volume: 1, replicas: 2, block_size, region_blocks, blocks, lease_ms: 9000 };
            for (slot, kind) in [(0, Kind::Replica), (2, Kind::Witness)] {
                let made = label(&shape, slot, Born::Clean, 1);
                assert_eq!(made.kind, kind);
                let needed = if kind == Kind::Witness { LOG_BLOCK } else { made.data_first + blocks };
                assert_eq!(holder_bytes(kind, bytes, block_size), needed * u64::from(block_size), "{bytes} {kind:?}");
            }
        }
    }

    #[test]
    fn a_holder_with_the_bytes_for_the_new_size_has_the_room_to_grow() {
        for (bytes, block_size) in [(4096, 4096), (8 << 20, 512), (1 << 30, 4096), (3 << 40, 4096), (17 << 40, 512)] {
            let region_blocks = (usual_region(bytes, block_size) / u64::from(block_size)) as u32;
            let blocks = bytes / u64::from(block_size);
            let shape = Shape { volume: 1, replicas: 3, block_size, region_blocks, blocks, lease_ms: 9000 };
            let made = label(&shape, 0, Born::Clean, 1);
            let mut grown = 0;
            for times in [1, 2, 3, 5, 8, 16] {
                let blocks = blocks * times;
                if made.regions_of(blocks).is_some() {
                    let needed = (made.data_first + blocks) * u64::from(block_size);
                    assert!(holder_bytes(Kind::Replica, bytes * times, block_size) >= needed, "{bytes} {times}");
                    grown = times;
                }
            }
            assert!(grown == 16 || bytes * grown <= 32 << 40, "{bytes}: as large as a log can be");
        }
    }
}
