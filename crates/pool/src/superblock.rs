//! The superblock: the block that makes a namespace a member of a pool. Pure bytes, no I/O.
//!
//! ```text
//!   0  magic "YAGURASB"          8 B   with format and checksum the head of a sealed page ([`device::sealed`])
//!   8  format                    u32
//!  12  page size                 u32   bytes of a table page
//!  16  checksum                  u64
//!  24  pool                     16 B   UUID
//!  40  member                   16 B   the namespace's NGUID: a superblock copied to another device is foreign there
//!  56  incarnation               u64   random at format: bytes of an earlier life are never mistaken for this one's
//!  64  generation                u64   grows with every write of the superblock; of two good copies of a life the newer wins
//!  72  epoch                     u64   of the map
//!  80  promised ballot      u64, u64   round, host   (agreement on the next epoch, by ballots among the voters)
//!  96  accepted ballot      u64, u64   round, host
//! 112  map offset                u64   bytes from the namespace's start
//! 120  map length                u32   bytes
//! 124  zero                      u32
//! 128  map checksum              u64   CRC-64/NVME of the body
//! 136  zero                   … 4096
//! ```
//!
//! Two copies lie at fixed places that do not depend on the page size: whoever has lost copy A does not know it. A life begins
//! in copy A, which counts where the copies are of two lives. The body is written, and stable, before a superblock names it: a
//! crash between the two leaves the older map, whole.
//!
//! **What is not ours is somebody's.** A page is damaged, and mended from the other copy, only if it names this namespace and has
//! zeroes behind the fields, as every superblock of this format and every mixture of two has. Anything else but zeroes is foreign,
//! and kept: a disk label leaves the first 446 bytes alone, a file system the first 1024.

use device::sealed;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::id::{Hex, MemberId};

/// Bytes of a superblock, checksummed as a whole.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The format this code writes and the newest it reads.
pub const FORMAT: u32 = 2;
const MAGIC: [u8; 8] = *b"YAGURASB";

/// A ballot of the agreement on the map: ordered by round, then by the host that chose it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ballot {
    /// Grows with every attempt.
    pub round: u64,
    /// The incarnation of the host that chose it.
    pub host: u64,
}

/// What a superblock says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The pool the member belongs to.
    pub pool: uuid::Uuid,
    /// The member itself.
    pub member: MemberId,
    /// This life of the member: random when it was formatted.
    pub incarnation: u64,
    /// Counts the superblock's own writes.
    pub generation: u64,
    /// Epoch of the map it names.
    pub epoch: u64,
    /// Highest ballot promised for the next epoch.
    pub promised: Ballot,
    /// Ballot by which this map was accepted.
    pub accepted: Ballot,
    /// Bytes of a table page.
    pub page_size: u32,
    /// Where the map's body lies, in bytes.
    pub map_offset: u64,
    /// Length of the body in bytes.
    pub map_length: u32,
    /// CRC-64/NVME of the body.
    pub map_checksum: u64,
}

/// Why bytes are not the superblock looked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// All zero: never formatted, or wiped.
    #[error("no superblock: the namespace belongs to no pool")]
    Blank,
    /// Something else lies there, or behind what is left of a superblock.
    #[error("foreign content where the superblock should be ({0})")]
    Foreign(String),
    /// Written by a later version.
    #[error("the superblock has format {found}, this version reads up to {newest}: use a newer version", newest = FORMAT)]
    Newer {
        /// The format found.
        found: u32,
    },
    /// The bytes do not match their checksum, or contradict themselves.
    #[error("the superblock is damaged: {0}")]
    Damaged(String),
    /// A superblock of another namespace, copied here.
    #[error(
        "the superblock belongs to namespace {found}, but this is {expected}: \
         a copied medium must not be used beside its original"
    )]
    OtherMember {
        /// Who it says it is.
        found: MemberId,
        /// Who it is.
        expected: MemberId,
    },
    /// The medium is an older state of itself.
    #[error(
        "the member was rolled back (its superblock has generation {found}, the map knows of {mark}): \
         it has no vote until `yagura kv repair` has begun it anew, or it is replaced (`yagura pool replace`)"
    )]
    RolledBack {
        /// Generation found.
        found: u64,
        /// The smallest that counts.
        mark: u64,
    },
    /// The member was formatted again since the map was written.
    #[error(
        "the member was formatted again (incarnation {found:016x}, the map has {expected:016x}): it has no vote until `yagura kv repair` has begun it anew, or it is replaced (`yagura pool replace`)"
    )]
    OtherIncarnation {
        /// Found in the superblock.
        found: u64,
        /// Written in the map.
        expected: u64,
    },
}

impl SuperblockError {
    /// Whether the bytes are somebody else's, who uses the medium by now: they are not to be overwritten.
    pub(crate) fn is_of_others(&self) -> bool {
        matches!(self, SuperblockError::Foreign(_) | SuperblockError::OtherMember { .. })
    }

    /// What to do about it where it stands in a member's place, for people.
    pub(crate) fn way_out(&self) -> &'static str {
        match self {
            SuperblockError::Foreign(_) => {
                "; the pool leaves it alone. Replace the member (`yagura pool replace`), or, if what stands there is not needed, \
                 wipe the first 4096 bytes of its medium (`dd if=/dev/zero of=MEDIUM bs=4096 count=1 conv=notrunc`) and run \
                 `yagura kv repair`"
            }
            _ => "",
        }
    }
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Raw {
    magic: [u8; 8],
    format: U32,
    page_size: U32,
    checksum: U64,
    pool: [u8; 16],
    member: [u8; 16],
    incarnation: U64,
    generation: U64,
    epoch: U64,
    promised_round: U64,
    promised_host: U64,
    accepted_round: U64,
    accepted_host: U64,
    map_offset: U64,
    map_length: U32,
    zero: U32,
    map_checksum: U64,
}
const _: () = assert!(size_of::<Raw>() == 136);

impl Superblock {
    /// The superblock's bytes.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            format: FORMAT.into(),
            page_size: self.page_size.into(),
            checksum: 0.into(),
            pool: self.pool.into_bytes(),
            member: self.member.0,
            incarnation: self.incarnation.into(),
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            promised_round: self.promised.round.into(),
            promised_host: self.promised.host.into(),
            accepted_round: self.accepted.round.into(),
            accepted_host: self.accepted.host.into(),
            map_offset: self.map_offset.into(),
            map_length: self.map_length.into(),
            zero: 0.into(),
            map_checksum: self.map_checksum.into(),
        };
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        sealed::seal(&mut bytes, MAGIC, FORMAT);
        bytes
    }

    /// What is replaced at once: the bytes, and zeroes behind them where a block is longer.
    pub(crate) fn image(&self, unit: usize) -> Vec<u8> {
        let mut image = self.encode().to_vec();
        image.resize(unit.max(SUPERBLOCK_BYTES), 0);
        image
    }

    /// Reads the first [`SUPERBLOCK_BYTES`] of `bytes`, which come from the namespace `member`.
    pub fn decode(bytes: &[u8], member: MemberId) -> Result<Superblock, SuperblockError> {
        let Some(bytes) = bytes.first_chunk::<SUPERBLOCK_BYTES>() else {
            return Err(SuperblockError::Damaged(format!("{} bytes instead of {SUPERBLOCK_BYTES}", bytes.len())));
        };
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(SuperblockError::Blank);
        }
        let (raw, _) = Raw::read_from_prefix(bytes).expect("invariant: 4096 bytes hold the 136 of the fields");
        let expected = sealed::checksum(bytes);
        if raw.magic != MAGIC || raw.checksum.get() != expected {
            return Err(ruin(bytes, &raw, member, expected));
        }
        if raw.format.get() > FORMAT {
            return Err(SuperblockError::Newer { found: raw.format.get() });
        }
        if raw.format.get() != FORMAT {
            return Err(SuperblockError::Damaged(format!("format {} was never written", raw.format.get())));
        }
        if raw.member != member.0 {
            return Err(SuperblockError::OtherMember { found: MemberId(raw.member), expected: member });
        }
        Ok(raw.into())
    }

    /// Whether it is of the life that is expected, and no state of that older than the mark.
    pub(crate) fn is_in_life(&self, (expected, mark): (u64, u64)) -> Result<(), SuperblockError> {
        if self.incarnation != expected {
            return Err(SuperblockError::OtherIncarnation { found: self.incarnation, expected });
        }
        if self.generation < mark {
            return Err(SuperblockError::RolledBack { found: self.generation, mark });
        }
        Ok(())
    }

    /// Whether this, in copy B, is newer than copy A: of the same life, and a later generation. A life begins in copy A; what is in
    /// copy B of another one is what a late write has left of the life before.
    pub(crate) fn is_newer_than(&self, first: &Superblock) -> bool {
        self.incarnation == first.incarnation && self.generation > first.generation
    }

    /// The copy that counts of those that are good.
    pub(crate) fn better(first: Option<Superblock>, second: Option<Superblock>) -> Option<Superblock> {
        match (first, second) {
            (Some(first), Some(second)) if second.is_newer_than(&first) => Some(second),
            (first, second) => first.or(second),
        }
    }
}

/// What bytes are that are no superblock.
fn ruin(bytes: &[u8; SUPERBLOCK_BYTES], raw: &Raw, member: MemberId, checksum: u64) -> SuperblockError {
    let behind = bytes[size_of::<Raw>()..].iter().position(|&byte| byte != 0).map(|at| at + size_of::<Raw>());
    match behind {
        _ if raw.member != member.0 => SuperblockError::Foreign(format!("it starts with {}", Hex(&bytes[..8]))),
        Some(at) => {
            let some = &bytes[at..SUPERBLOCK_BYTES.min(at + 8)];
            SuperblockError::Foreign(format!("behind what is left of one, at byte {at}, {}", Hex(some)))
        }
        None if raw.magic != MAGIC => SuperblockError::Damaged(format!("it starts with {}", Hex(&raw.magic))),
        None => {
            let found = raw.checksum.get();
            SuperblockError::Damaged(format!("checksum {found:016x}, its bytes have {checksum:016x}"))
        }
    }
}

impl From<Raw> for Superblock {
    fn from(raw: Raw) -> Superblock {
        Superblock {
            pool: uuid::Uuid::from_bytes(raw.pool),
            member: MemberId(raw.member),
            incarnation: raw.incarnation.get(),
            generation: raw.generation.get(),
            epoch: raw.epoch.get(),
            promised: Ballot { round: raw.promised_round.get(), host: raw.promised_host.get() },
            accepted: Ballot { round: raw.accepted_round.get(), host: raw.accepted_host.get() },
            page_size: raw.page_size.get(),
            map_offset: raw.map_offset.get(),
            map_length: raw.map_length.get(),
            map_checksum: raw.map_checksum.get(),
        }
    }
}

/// The checksum of everything the pool itself writes: CRC-64/NVME.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Superblock {
        Superblock {
            pool: uuid::Uuid::from_u128(7),
            member: MemberId([3; 16]),
            incarnation: 0xabcd,
            generation: 4,
            epoch: 1,
            promised: Ballot { round: 2, host: 9 },
            accepted: Ballot { round: 1, host: 8 },
            page_size: 4096,
            map_offset: 65_536,
            map_length: 700,
            map_checksum: 5,
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Superblock::decode(&sample().encode(), MemberId([3; 16])), Ok(sample()));
    }

    #[test]
    fn every_single_damaged_byte_is_noticed() {
        let good = sample().encode();
        for at in 0..SUPERBLOCK_BYTES {
            let mut bytes = good;
            bytes[at] ^= 0x10;
            assert!(Superblock::decode(&bytes, MemberId([3; 16])).is_err(), "byte {at}");
        }
    }

    #[test]
    fn refused_by_name() {
        let member = MemberId([3; 16]);
        assert_eq!(Superblock::decode(&[0; 4096], member), Err(SuperblockError::Blank));
        assert!(matches!(Superblock::decode(&[7; 4096], member), Err(SuperblockError::Foreign(_))));
        assert!(matches!(Superblock::decode(&[0; 12], member), Err(SuperblockError::Damaged(_))));
        // What is mixed of two of our own writes, or has lost some of one, is damaged; with anything behind it, it is foreign.
        let other = Superblock { generation: 5, map_offset: 0, ..sample() }.encode();
        for cut in 1..136 {
            let mixed = [&sample().encode()[..cut], &other[cut..]].concat();
            let decoded = Superblock::decode(&mixed, member);
            assert!(matches!(decoded, Ok(_) | Err(SuperblockError::Damaged(_))), "{cut}: {decoded:?}");
            let labelled = [&mixed[..510], &[0x55, 0xaa], &mixed[512..]].concat();
            assert!(matches!(Superblock::decode(&labelled, member), Err(SuperblockError::Foreign(_))), "{cut}");
        }
        let mut newer = sample().encode();
        newer[8] = FORMAT as u8 + 1;
        newer[16..24].fill(0);
        let sum = crc64(&newer);
        newer[16..24].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Superblock::decode(&newer, member), Err(SuperblockError::Newer { found: FORMAT + 1 }));
        let copied = Superblock::decode(&sample().encode(), MemberId([4; 16]));
        assert_eq!(copied, Err(SuperblockError::OtherMember { found: MemberId([3; 16]), expected: MemberId([4; 16]) }));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = Superblock::decode(&bytes, MemberId([0; 16]));
        }
    }
}
