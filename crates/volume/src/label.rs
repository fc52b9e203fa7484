//! The label: the first block of a namespace, which makes a holder of a volume of it. Pure bytes, no I/O.
//!
//! ```text
//!   0  magic "YAGURAVL"     8 B
//!   8  format               u32
//!  12  slot                 u8    which of the holders it is
//!  13  replicas             u8    1 to 3
//!  14  kind                 u8    0: replica, 1: witness
//!  15  born                 u8    0: clean, 1: intent; what a log block says that was never written in this life
//!  16  checksum             u64   of the block: `device::sealed`
//!  24  volume              16 B
//!  40  life                16 B   random when it is formatted
//!  56  block size           u32   bytes
//!  60  region blocks        u32   a power of two
//!  64  log blocks           u64   the log begins at block 2
//!  72  data first           u64   where block 0 of the volume lies
//!  80  blocks               u64   size of the volume
//!  88  lease                u32   milliseconds
//!  92  zero
//! ```
//! While it is formatted the block has the magic "YAGURAVF" instead, and of the fields slot, volume and life alone.
//! Of a witness all fields of the log and the data are zero, but those of the volume: block size, region blocks, blocks.

use crate::block::{self, Instead, Reader, Writer, log_entries};

/// Where the record lies.
pub const RECORD_BLOCK: u64 = 1;
/// Where the log begins.
pub const LOG_BLOCK: u64 = 2;
/// Replicas of a volume, at most.
pub const REPLICAS_MAX: usize = 3;
/// The data begins at a multiple of this many bytes.
pub const DATA_ALIGN: u64 = 1 << 20;
/// Regions of a volume, at most. Chosen: their entries are held in memory, a byte each and replica.
pub const REGIONS_MAX: u64 = 16 << 20;
/// Leases, in milliseconds. Chosen: shorter ones are lost to a busy reactor, longer ones keep a fail-over waiting.
pub const LEASE_MS: std::ops::RangeInclusive<u32> = 500..=120_000;

const LABEL: block::Kind = block::Kind { magic: *b"YAGURAVL", format: 1 };

const FORMATTING: block::Kind = block::Kind { magic: *b"YAGURAVF", format: 1 };

/// A life of a namespace: random, new with every format.
pub type Life = u128;

/// What a log block says that was never written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Born {
    /// The replicas were made together, of zeroes: nothing differs.
    Clean,
    /// Any region may differ.
    Intent,
}

/// What a holder is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It has the data.
    Replica,
    /// It has the record alone.
    Witness,
}

/// The shape of a volume: all its holders say the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The volume.
    pub volume: u128,
    /// Replicas, 1 to [`REPLICAS_MAX`].
    pub replicas: u8,
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks of a region, a power of two.
    pub region_blocks: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// How long a host may read after a majority has confirmed it, in milliseconds.
    pub lease_ms: u32,
}

impl Shape {
    /// Regions of the volume.
    pub fn regions(&self) -> u64 {
        self.blocks.div_ceil(u64::from(self.region_blocks))
    }

    /// Holders of the record: the replicas, and a witness where there are two.
    pub fn holders(&self) -> usize {
        if self.replicas == 1 { 1 } else { 3 }
    }

    /// Blocks of region `region`: the first and how many; the last region may be shorter, and behind it there are none.
    pub fn region(&self, region: u64) -> (u64, u64) {
        let first = region * u64::from(self.region_blocks);
        (first, u64::from(self.region_blocks).min(self.blocks.saturating_sub(first)))
    }
}

/// What a label says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The volume.
    pub shape: Shape,
    /// Which of the holders it is.
    pub slot: u8,
    /// What it is for.
    pub kind: Kind,
    /// See [`Born`].
    pub born: Born,
    /// The namespace's life.
    pub life: Life,
    /// Blocks of the log.
    pub log_blocks: u64,
    /// Where the data begins.
    pub data_first: u64,
}

/// Why a block is no label.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LabelError {
    /// All zeroes.
    #[error("no label: the namespace belongs to no volume")]
    Blank,
    /// A format was begun, and has not come to its end.
    #[error("it is being formatted as slot {slot} of volume {volume:032x}, or was and that broke off: format it anew")]
    Unfinished {
        /// The slot.
        slot: u8,
        /// The volume.
        volume: u128,
    },
    /// Something else.
    #[error("foreign or damaged content where the label of a volume should be")]
    Foreign,
    /// Written by a later version.
    #[error("the label has format {0}, this version reads {read}: use a newer version", read = LABEL.format)]
    Newer(u32),
    /// A field that no version writes.
    #[error("the label contradicts itself: {0}")]
    Invalid(&'static str),
}

impl Label {
    /// Regions of a volume of so many blocks; `None`: more than the log has room for.
    pub fn regions_of(&self, blocks: u64) -> Option<u64> {
        let regions = Shape { blocks, ..self.shape }.regions();
        (regions <= self.regions_max()).then_some(regions)
    }

    /// Regions that the log has room for. A witness has none, and takes any number.
    pub fn regions_max(&self) -> u64 {
        if self.kind == Kind::Witness {
            return REGIONS_MAX;
        }
        let entries = log_entries(self.shape.block_size as usize) as u64;
        self.log_blocks.saturating_mul(entries).min(REGIONS_MAX)
    }

    /// The block of a namespace.
    pub fn encode(&self, block: &mut [u8]) {
        let Label { shape, slot, kind, born, life, log_blocks, data_first } = *self;
        Writer::new(block, [slot, shape.replicas, kind as u8, born as u8])
            .bytes(&shape.volume.to_le_bytes())
            .bytes(&life.to_le_bytes())
            .bytes(&shape.block_size.to_le_bytes())
            .bytes(&shape.region_blocks.to_le_bytes())
            .bytes(&log_blocks.to_le_bytes())
            .bytes(&data_first.to_le_bytes())
            .bytes(&shape.blocks.to_le_bytes())
            .bytes(&shape.lease_ms.to_le_bytes())
            .seal(LABEL);
    }

    /// The block of a namespace while it is being formatted: what was there is void, and what is to be is not there yet.
    pub fn encode_unfinished(&self, block: &mut [u8]) {
        Writer::new(block, [self.slot, 0, 0, 0])
            .bytes(&self.shape.volume.to_le_bytes())
            .bytes(&self.life.to_le_bytes())
            .seal(FORMATTING);
    }

    /// Reads block 0 of a namespace.
    ///
    /// # Errors
    /// The block is no label, or none that this version can have written.
    pub fn decode(block: &[u8]) -> Result<Label, LabelError> {
        let (word, mut rest) = block::open(block, LABEL).map_err(|instead| match instead {
            Instead::Blank => LabelError::Blank,
            Instead::Newer(format) => LabelError::Newer(format),
            Instead::Other => unfinished(block).unwrap_or(LabelError::Foreign),
        })?;
        let label = read(word, &mut rest).ok_or(LabelError::Invalid("it is too short"))??;
        label.check(block.len()).map_or(Ok(label), |fault| Err(LabelError::Invalid(fault)))
    }

    /// What no version writes.
    fn check(&self, bytes: usize) -> Option<&'static str> {
        let Label { shape, slot, kind, log_blocks, data_first, .. } = *self;
        let is_block_size = (512..=65_536).contains(&shape.block_size) && shape.block_size.is_power_of_two();
        let faults = [
            (!(1..=REPLICAS_MAX as u8).contains(&shape.replicas), "the number of replicas"),
            (usize::from(slot) >= shape.holders(), "the slot"),
            ((kind == Kind::Witness) != (slot >= shape.replicas), "the kind"),
            (!is_block_size || shape.block_size as usize != bytes, "the block size"),
            (!shape.region_blocks.is_power_of_two(), "the size of a region"),
            (shape.blocks == 0 || shape.regions() > REGIONS_MAX, "the size of the volume"),
            (!LEASE_MS.contains(&shape.lease_ms), "the lease"),
            (self.life == 0 || shape.volume == 0, "an identifier"),
        ];
        let fault = faults.iter().find(|(is_wrong, _)| *is_wrong).map(|(_, fault)| *fault);
        fault.or_else(|| match kind {
            Kind::Witness => (log_blocks != 0 || data_first != 0).then_some("a witness has no data"),
            Kind::Replica => {
                let log_end = log_blocks.checked_add(LOG_BLOCK);
                let end = data_first.checked_add(shape.blocks);
                let is_sound = log_end.is_some_and(|log_end| log_end <= data_first)
                    && end.and_then(|end| end.checked_mul(u64::from(shape.block_size))).is_some()
                    && self.regions_max() >= shape.regions();
                (!is_sound).then_some("the places of log and data")
            }
        })
    }
}

fn unfinished(block: &[u8]) -> Option<LabelError> {
    let ([slot, ..], mut rest) = block::open(block, FORMATTING).ok()?;
    Some(LabelError::Unfinished { slot, volume: rest.u128()? })
}

/// `None`: too short.
fn read([slot, replicas, kind, born]: [u8; 4], reader: &mut Reader<'_>) -> Option<Result<Label, LabelError>> {
    let (volume, life) = (reader.u128()?, reader.u128()?);
    let (block_size, region_blocks) = (reader.u32()?, reader.u32()?);
    let (log_blocks, data_first, blocks) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let lease_ms = reader.u32()?;
    let kind = match kind {
        0 => Kind::Replica,
        1 => Kind::Witness,
        _ => return Some(Err(LabelError::Invalid("the kind"))),
    };
    let born = match born {
        0 => Born::Clean,
        1 => Born::Intent,
        _ => return Some(Err(LabelError::Invalid("what its log was born as"))),
    };
    if !reader.is_rest_zero() {
        return Some(Err(LabelError::Invalid("bytes behind the fields")));
    }
    if region_blocks == 0 {
        return Some(Err(LabelError::Invalid("the size of a region")));
    }
    let shape = Shape { volume, replicas, block_size, region_blocks, blocks, lease_ms };
    Some(Ok(Label { shape, slot, kind, born, life, log_blocks, data_first }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Label {
        let shape = Shape { volume: 7, replicas: 3, block_size: 512, region_blocks: 128, blocks: 4096, lease_ms: 9000 };
        Label { shape, slot: 1, kind: Kind::Replica, born: Born::Intent, life: 9, log_blocks: 4, data_first: 2048 }
    }

    fn encoded(label: &Label) -> Vec<u8> {
        let mut block = vec![0xAA; 512];
        label.encode(&mut block);
        block
    }

    #[test]
    fn a_label_is_what_was_written() {
        let witness = Label {
            shape: Shape { replicas: 2, ..sample().shape },
            slot: 2,
            kind: Kind::Witness,
            log_blocks: 0,
            data_first: 0,
            ..sample()
        };
        for label in [sample(), witness] {
            assert_eq!(Label::decode(&encoded(&label)), Ok(label));
        }
        let bytes = encoded(&sample());
        assert_eq!(&bytes[..16], b"YAGURAVL\x01\0\0\0\x01\x03\0\x01", "the picture at the top");
        assert_eq!(bytes[88..92], 9000u32.to_le_bytes());
        assert_eq!(Label::decode(&[0; 512]), Err(LabelError::Blank));
        assert_eq!(Label::decode(&[1; 512]), Err(LabelError::Foreign));
        let mut block = [0xAA; 512];
        sample().encode_unfinished(&mut block);
        assert_eq!(Label::decode(&block), Err(LabelError::Unfinished { slot: 1, volume: 7 }));
    }

    #[test]
    fn what_no_version_writes_is_refused() {
        let shape = sample().shape;
        let wrong = [
            Label { slot: 3, ..sample() },
            Label { kind: Kind::Witness, ..sample() },
            Label { life: 0, ..sample() },
            Label { log_blocks: u64::MAX, ..sample() },
            Label { log_blocks: 0, ..sample() },
            Label { data_first: 5, ..sample() },
            Label { data_first: u64::MAX, ..sample() },
            Label { shape: Shape { replicas: 0, ..shape }, ..sample() },
            Label { shape: Shape { replicas: 4, ..shape }, ..sample() },
            Label { shape: Shape { block_size: 1024, ..shape }, ..sample() },
            Label { shape: Shape { region_blocks: 3, ..shape }, ..sample() },
            Label { shape: Shape { region_blocks: 0, ..shape }, ..sample() },
            Label { shape: Shape { blocks: 0, ..shape }, ..sample() },
            Label { shape: Shape { blocks: u64::MAX, ..shape }, ..sample() },
            Label { shape: Shape { lease_ms: 0, ..shape }, ..sample() },
            Label { shape: Shape { volume: 0, ..shape }, ..sample() },
        ];
        for label in wrong {
            assert!(matches!(Label::decode(&encoded(&label)), Err(LabelError::Invalid(_))), "{label:?}");
        }
        for (at, byte) in [(8, 2), (14, 2), (15, 2), (92, 1), (500, 1)] {
            let mut block = encoded(&sample());
            block[at] = byte;
            crate::block::tests::reseal(&mut block);
            assert!(Label::decode(&block).is_err(), "byte {at} = {byte}");
        }
    }
}
