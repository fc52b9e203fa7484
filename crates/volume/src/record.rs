//! The record: which replicas are in sync, and who may say so. Pure bytes, no I/O.
//!
//! ```text
//!   0  magic "YAGURAVR"     8 B
//!   8  format               u32   1; 2 where there are blocks or snapshots below, 3 where there is an origin, which older versions
//!                                 would lose
//!  12  zero                 u32
//!  16  checksum             u64   of the block: `device::sealed`
//!  24  life                16 B   of the holder: what an earlier life has left says nothing
//!  40  promised             u64, u64   round, host: nothing below counts any more
//!  56  accepted             u64, u64   the ballot of the record; round 0: none
//!  72  version              u64   within the ballot
//!  80  in sync              u8    a bit for each slot
//!  81  zero                 7 B
//!  88  lives            3 × 16 B  of the holders
//! 136  lives before     3 × 16 B  the same as the lives, but where a change of holders is not finished
//! 184  blocks              u64   size of the volume since it has grown; 0: what the label says
//! 192  origin              112 B  format 3 alone: `origin.rs`
//! then snapshots        n × 24 B  as many as there are, by name; then zero
//! ```
//! A snapshot, of which a block has [`snapshots_max`]:
//! ```text
//!   0  round, host         u64, u64   of the ballot of the attachment that took it
//!  16  attempt             u32   of that attachment
//!  20  slots               u8    who has it: a bit for each slot
//!  21  zero                 3 B
//! ```
//! The block is changed by compare-and-write alone, from what was read or written last over the same connection.

pub use crate::ballot::Ballot;
use crate::block::{self, Instead, Reader, Writer};
use crate::label::{Life, REPLICAS_MAX};
use crate::origin::{ORIGIN_BYTES, Origin};
use crate::snapshot_name::SnapshotName;

const RECORD: block::Kind = block::Kind { magic: *b"YAGURAVR", format: 1 };
const EXTENDED: block::Kind = block::Kind { format: 2, ..RECORD };
const IMPORTED: block::Kind = block::Kind { format: 3, ..RECORD };
/// Holders, at most.
pub const HOLDERS_MAX: usize = REPLICAS_MAX;

/// The round of the ballot that a format leaves on its holders: whoever attaches the volume goes above it.
pub const FORMAT_ROUND: u64 = 1;

/// A set of slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Set(pub u8);

impl Set {
    /// Slots `0..count`.
    pub fn first(count: usize) -> Set {
        Set(((1u32 << count) - 1) as u8)
    }

    /// That slot alone.
    pub fn one(slot: usize) -> Set {
        Set(1 << slot)
    }

    /// Whether it has the slot.
    pub fn has(self, slot: usize) -> bool {
        self.0 >> slot & 1 == 1
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many it has.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// With those of the other.
    pub fn with(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    /// Without those of the other.
    pub fn without(self, other: Set) -> Set {
        Set(self.0 & !other.0)
    }

    /// Those of both.
    pub fn and(self, other: Set) -> Set {
        Set(self.0 & other.0)
    }

    /// The slots, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..HOLDERS_MAX).filter(move |&slot| self.has(slot))
    }

    /// The slots of which something is true.
    pub fn of(count: usize, is: impl Fn(usize) -> bool) -> Set {
        (0..count).filter(|&slot| is(slot)).fold(Set(0), |set, slot| set.with(Set::one(slot)))
    }
}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A snapshot, and who has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Which it is.
    pub name: SnapshotName,
    /// The replicas that have it, in the lives that the record says: at least one.
    pub slots: Set,
}

/// Where the snapshots begin, or the origin where there is one.
const SNAPSHOTS_AT: usize = 192;
const SNAPSHOT_BYTES: usize = 24;

/// Snapshots that a record without an origin has room for in blocks of that many bytes.
pub const fn snapshots_max(block_bytes: u32) -> usize {
    (block_bytes as usize).saturating_sub(SNAPSHOTS_AT) / SNAPSHOT_BYTES
}

/// What hosts agree on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Whose record it is; round 0: there is none.
    pub ballot: Ballot,
    /// Counts the records of an attachment.
    pub version: u64,
    /// The replicas that have every acknowledged write.
    pub in_sync: Set,
    /// The life of each holder.
    pub lives: [Life; HOLDERS_MAX],
    /// Those before a change of holders that is not finished.
    pub lives_before: [Life; HOLDERS_MAX],
    /// Blocks of the volume since it has grown; 0: it has as many as the label says.
    pub blocks: u64,
    /// The snapshots, by name.
    pub snapshots: Vec<Snapshot>,
    /// Of what the volume is a copy, if it was imported.
    pub origin: Option<Origin>,
}

impl Record {
    /// What decides which of two is newer.
    pub fn order(&self) -> (Ballot, u64) {
        (self.ballot, self.version)
    }

    /// How the block is written.
    fn kind(&self) -> block::Kind {
        match self.origin {
            Some(_) => IMPORTED,
            None if self.blocks == 0 && self.snapshots.is_empty() => RECORD,
            None => EXTENDED,
        }
    }

    /// Snapshots that it has room for in blocks of that many bytes.
    pub fn snapshots_max(&self, block_bytes: u32) -> usize {
        snapshots_max(block_bytes - if self.origin.is_some() { ORIGIN_BYTES as u32 } else { 0 })
    }

    /// Whether there is one.
    pub fn exists(&self) -> bool {
        self.ballot.round > 0
    }

    /// Blocks of a volume whose label says `made`.
    pub fn size(&self, made: u64) -> u64 {
        if self.blocks > 0 { self.blocks } else { made }
    }

    /// Who has the snapshot of a name.
    pub fn snapshot(&self, name: SnapshotName) -> Set {
        let found = self.snapshots.iter().find(|snapshot| snapshot.name == name);
        found.map_or(Set::default(), |snapshot| snapshot.slots)
    }
}

/// What the block of a holder says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordBlock {
    /// The holder's life.
    pub life: Life,
    /// Nothing below is accepted.
    pub promised: Ballot,
    /// What was accepted last.
    pub accepted: Record,
}

/// The block is no record of this life.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the record block is damaged: {0}; replace the holder")]
pub struct RecordError(&'static str);

impl RecordError {
    /// What the holder's label leaves no room for.
    pub(crate) const SIZE: RecordError = RecordError("the volume can not be as large as it says");
}

impl RecordBlock {
    /// The bytes of the block, which has room for the snapshots ([`Record::snapshots_max`]).
    pub fn encode(&self, block: &mut [u8]) {
        let RecordBlock { life, promised, accepted } = self;
        let mut writer = Writer::new(block, [0; 4]);
        writer.bytes(&life.to_le_bytes());
        for ballot in [*promised, accepted.ballot] {
            writer.bytes(&ballot.round.to_le_bytes()).bytes(&ballot.host.to_le_bytes());
        }
        writer.bytes(&accepted.version.to_le_bytes()).bytes(&[accepted.in_sync.0]).bytes(&[0; 7]);
        for life in accepted.lives.into_iter().chain(accepted.lives_before) {
            writer.bytes(&life.to_le_bytes());
        }
        writer.bytes(&accepted.blocks.to_le_bytes());
        if let Some(origin) = &accepted.origin {
            origin.encode(&mut writer);
        }
        for Snapshot { name, slots } in &accepted.snapshots {
            writer.bytes(&name.ballot.round.to_le_bytes()).bytes(&name.ballot.host.to_le_bytes());
            writer.bytes(&name.attempt.to_le_bytes()).bytes(&[slots.0, 0, 0, 0]);
        }
        writer.seal(accepted.kind());
    }

    /// What the block says of a holder that is in this life. What was never written, and what is of another life, says nothing.
    ///
    /// # Errors
    /// The block is damaged. It has no vote then: what it had promised is not known.
    pub fn decode(block: &[u8], life: Life) -> Result<RecordBlock, RecordError> {
        let opened = [IMPORTED, EXTENDED, RECORD].map(|kind| (kind, block::open(block, kind)));
        let (kind, opened) = opened
            .into_iter()
            .find(|(_, opened)| !matches!(opened, Err(Instead::Other)))
            .unwrap_or((RECORD, Err(Instead::Other)));
        let (word, mut rest) = match opened {
            Ok(opened) => opened,
            Err(Instead::Blank) => return Ok(RecordBlock { life, ..RecordBlock::default() }),
            Err(Instead::Newer(_)) => return Err(RecordError("a later version has written it")),
            Err(Instead::Other) => return Err(RecordError("its checksum is wrong")),
        };
        let found = read(word, &mut rest, kind.format == IMPORTED.format)
            .filter(|found| found.accepted.kind().format == kind.format);
        let found = found.ok_or(RecordError("a field is out of bounds"))?;
        Ok(if found.life == life { found } else { RecordBlock { life, ..RecordBlock::default() } })
    }
}

fn read(word: [u8; 4], reader: &mut Reader<'_>, has_origin: bool) -> Option<RecordBlock> {
    let life = reader.u128()?;
    let mut ballot = || Some(Ballot { round: reader.u64()?, host: reader.u64()? });
    let (promised, accepted) = (ballot()?, ballot()?);
    let version = reader.u64()?;
    let in_sync = Set(reader.u8()?);
    let is_padded = reader.bytes::<7>()? == [0; 7];
    let mut lives = || Some([reader.u128()?, reader.u128()?, reader.u128()?]);
    let (lives, lives_before) = (lives()?, lives()?);
    let blocks = reader.u64()?;
    let origin = if has_origin { Some(Origin::read(reader)?) } else { None };
    let snapshots = snapshots(reader)?;
    let own = origin.and_then(|origin| origin.own());
    let are_older = snapshots.iter().map(|snapshot| snapshot.name).chain(own).all(|name| name.ballot <= accepted);
    let record = Record { ballot: accepted, version, in_sync, lives, lives_before, blocks, snapshots, origin };
    let is_sound = accepted <= promised && in_sync.without(Set::first(HOLDERS_MAX)).is_empty() && are_older;
    let is_whole = if record.exists() { !in_sync.is_empty() } else { record == Record::default() };
    let is_ours = word == [0; 4] && is_padded && is_sound && is_whole && reader.is_rest_zero();
    is_ours.then_some(RecordBlock { life, promised, accepted: record })
}

/// Up to the first that is zero, or to the end of the block; `None`: one that no version writes, or in another order.
fn snapshots(reader: &mut Reader<'_>) -> Option<Vec<Snapshot>> {
    let mut all: Vec<Snapshot> = Vec::new();
    while reader.0.len() >= SNAPSHOT_BYTES && reader.0[..8] != [0; 8] {
        let ballot = Ballot { round: reader.u64()?, host: reader.u64()? };
        let name = SnapshotName { ballot, attempt: reader.u32()? };
        let [slots, zeroes @ ..] = reader.bytes::<4>()?;
        let slots = Set(slots);
        let is_after = all.last().is_none_or(|last| last.name < name);
        let is_sound = zeroes == [0; 3] && !slots.is_empty() && slots.without(Set::first(HOLDERS_MAX)).is_empty();
        all.push((is_after && is_sound).then_some(Snapshot { name, slots })?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot_name::SnapshotId;

    fn sample() -> RecordBlock {
        let ballot = Ballot { round: 3, host: 4 };
        let (lives, lives_before) = ([6, 7, 8], [6, 9, 8]);
        let accepted = Record { ballot, version: 5, in_sync: Set(0b101), lives, lives_before, ..Record::default() };
        RecordBlock { life: 7, promised: Ballot { round: 3, host: 5 }, accepted }
    }

    fn encoded(block: &RecordBlock) -> Vec<u8> {
        let mut bytes = vec![0xAA; 512];
        block.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_record_is_what_was_written() {
        let blank = RecordBlock { life: 7, ..RecordBlock::default() };
        assert_eq!(RecordBlock::decode(&[0; 512], 7), Ok(blank.clone()));
        let imported = origins().map(|origin| {
            let mut block = full();
            block.accepted.snapshots.truncate(8);
            assert_eq!(Record { origin: Some(origin), ..Record::default() }.snapshots_max(512), 8);
            block.accepted.origin = Some(origin);
            block
        });
        for block in imported {
            assert_eq!(RecordBlock::decode(&encoded(&block), 7), Ok(block.clone()));
            assert_eq!(encoded(&block)[8], 3, "older versions refuse what they would lose");
        }
        for block in [sample(), full(), RecordBlock { promised: Ballot { round: 9, host: 1 }, ..blank.clone() }] {
            assert_eq!(RecordBlock::decode(&encoded(&block), 7), Ok(block.clone()));
            assert_eq!(
                RecordBlock::decode(&encoded(&block), 8),
                Ok(RecordBlock { life: 8, ..blank.clone() }),
                "another life"
            );
        }
        let bytes = encoded(&sample());
        assert_eq!(
            (&bytes[..8], bytes[40], bytes[56], bytes[80]),
            (&b"YAGURAVR"[..], 3, 3, 0b101),
            "the picture at the top"
        );
        assert_eq!(bytes[136..152], 6u128.to_le_bytes());
        assert_eq!(bytes[184..], [0; 328], "as what was written before there were sizes and snapshots");
        assert_eq!((encoded(&sample())[8], encoded(&full())[8]), (1, 2), "older versions refuse what they would lose");
        let bytes = encoded(&full());
        assert_eq!(
            (&bytes[184..192], &bytes[192..200], bytes[208], bytes[212]),
            (&[9, 0, 0, 0, 0, 0, 0, 0][..], &[3, 0, 0, 0, 0, 0, 0, 0][..], 1, 1)
        );
        assert_eq!((snapshots_max(512), snapshots_max(4096)), (13, 162));
    }

    /// Grown, and with as many snapshots as there is room for.
    fn full() -> RecordBlock {
        let mut block = sample();
        block.accepted.blocks = 9;
        let name = |attempt| SnapshotName { ballot: block.accepted.ballot, attempt };
        let count = snapshots_max(512) as u32;
        let snapshots = (1..=count).map(|attempt| Snapshot { name: name(attempt), slots: Set(1 + attempt as u8 % 7) });
        let snapshots = snapshots.collect::<Vec<_>>();
        block.accepted.snapshots = snapshots;
        block.accepted.snapshots[0].slots = Set(1);
        block
    }

    fn origins() -> [Origin; 4] {
        let name = |attempt| SnapshotName { ballot: Ballot { round: 3, host: 1 }, attempt };
        let id = |attempt| SnapshotId { volume: 99, name: name(attempt) };
        [
            Origin::Whole { source: id(1), own: Some(name(2)) },
            Origin::Whole { source: id(1), own: None },
            Origin::InPart { source: id(1), base: None },
            Origin::InPart { source: id(3), base: Some((id(1), name(2))) },
        ]
    }

    #[test]
    fn an_origin_that_no_version_writes_is_damage() {
        let with = |origin: Origin, change: fn(&mut [u8])| {
            let mut block = sample();
            block.accepted.origin = Some(origin);
            let mut bytes = encoded(&block);
            change(&mut bytes);
            crate::block::tests::reseal(&mut bytes);
            RecordBlock::decode(&bytes, 7).is_ok()
        };
        let [whole, _, blank, in_part] = origins();
        assert!(with(whole, |_| {}) && with(blank, |_| {}) && with(in_part, |_| {}));
        assert!(!with(whole, |bytes| bytes[192] = 3), "another state");
        assert!(!with(whole, |bytes| bytes[193] = 1), "what is zero");
        assert!(!with(whole, |bytes| bytes[200..240].fill(0)), "of nothing");
        assert!(!with(whole, |bytes| bytes[280] = 9), "an own snapshot of a later host");
        assert!(!with(whole, |bytes| bytes[192] = 2), "in part, with an own snapshot of no base");
        assert!(!with(in_part, |bytes| bytes[192] = 1), "whole, with a base");
        assert!(!with(in_part, |bytes| bytes[280..304].fill(0)), "a base of which there is no snapshot");
        assert!(!with(blank, |bytes| bytes[240] = 1), "a volume without a snapshot");
    }

    #[test]
    fn snapshots_that_no_version_writes_are_damage() {
        let changed = |change: fn(&mut Vec<Snapshot>)| {
            let mut block = full();
            change(&mut block.accepted.snapshots);
            RecordBlock::decode(&encoded(&block), 7)
        };
        assert!(changed(|_| {}).is_ok());
        let wrong: [fn(&mut Vec<Snapshot>); 5] = [
            |all| all.swap(0, 1),
            |all| all[1] = all[0],
            |all| all[0].slots = Set(0),
            |all| all[0].slots = Set(8),
            |all| all[12].name.ballot.host += 1,
        ];
        for change in wrong {
            assert!(changed(change).is_err());
        }
        for at in [213, 192 + 20 + 24 + 1, 505] {
            let mut bytes = encoded(&full());
            bytes[at] = 1;
            crate::block::tests::reseal(&mut bytes);
            assert!(RecordBlock::decode(&bytes, 7).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_is_damaged_has_no_vote() {
        assert!(RecordBlock::decode(&[3; 512], 7).is_err());
        let below = RecordBlock { promised: Ballot { round: 3, host: 3 }, ..sample() };
        let nobody = RecordBlock { accepted: Record { in_sync: Set(0), ..sample().accepted }, ..sample() };
        let too_many = RecordBlock { accepted: Record { in_sync: Set(0b1001), ..sample().accepted }, ..sample() };
        for block in [below, nobody, too_many] {
            assert!(RecordBlock::decode(&encoded(&block), 7).is_err(), "{block:?}");
        }
        for at in [8, 12, 81, 200, 500] {
            let mut bytes = encoded(&sample());
            bytes[at] ^= 0x40;
            crate::block::tests::reseal(&mut bytes);
            assert!(RecordBlock::decode(&bytes, 7).is_err(), "byte {at}");
        }
    }

    #[test]
    fn sets_are_small_numbers() {
        let set = Set::one(0).with(Set::one(2));
        assert_eq!((set, format!("{set:?}")), (Set(5), "{0, 2}".to_owned()));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 2]);
        assert_eq!((set.without(Set::one(0)), set.and(Set::first(2))), (Set(4), Set(1)));
        assert_eq!(Set::of(3, |slot| slot != 1), set);
    }
}
