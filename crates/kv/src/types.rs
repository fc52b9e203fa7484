//! The words of the protocol: operation ids, ballots, timestamps, keys.

use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use pool::KeyHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Longest key in bytes. Derived: a page must hold several records whose values lie elsewhere.
pub const KEY_BYTES_MAX: usize = 512;
/// What keys of files in a pool begin with: clients of a gateway neither see nor change these, or whoever removes all keys that it
/// sees would remove the names of all files.
pub const FILES_PREFIX: &[u8] = b"yagura-file:";
/// Longest value in bytes: 512 extents. Chosen: what is longer wants to be an object, in parts that can be read on their own.
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// Bytes that a value's checksum is worked out over at a time, and of the longest extent: what every namespace takes in one
/// command.
pub const VALUE_PART_BYTES: usize = 128 << 10;

/// Names one operation of one life of one host, once and for all. A reused id would put two values under one timestamp.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpId {
    /// The host's incarnation: random at its start.
    pub host: u64,
    /// Counts the host's operations.
    pub sequence: u64,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}", self.host, self.sequence)
    }
}

/// A ballot of a conditional operation; the zero ballot is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ballot {
    /// Grows with every attempt.
    pub round: u64,
    /// Who attempts.
    pub op: OpId,
}

impl Ballot {
    /// No ballot.
    pub const NONE: Ballot = Ballot { round: 0, op: OpId { host: 0, sequence: 0 } };
}

/// A carstamp: the put (counter and operation) that began this era of the register, and the ballot of the last conditional
/// operation on it. Ordered in this order; zero: never written. A flat timestamp cannot tell a put from the conditional
/// operations before and after it (`kv/model`, counterexamples).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// One more than the largest counter a majority showed.
    pub counter: u64,
    /// The put itself.
    pub op: OpId,
    /// [`Ballot::NONE`] right after a put.
    pub ballot: Ballot,
}

impl Timestamp {
    /// Never written.
    pub const ZERO: Timestamp = Timestamp { counter: 0, op: OpId { host: 0, sequence: 0 }, ballot: Ballot::NONE };
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.counter, self.op)?;
        if self.ballot == Ballot::NONE { Ok(()) } else { write!(f, "+{}@{}", self.ballot.round, self.ballot.op) }
    }
}

/// A conditional operation that took effect, as the entry remembers it: so that whoever lost the reply recognises its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Applied {
    /// The operation. The zero id marks a cut: older ones, up to `round`, were forgotten.
    pub op: OpId,
    /// The round of the ballot by which it was applied; the ballot's other half is the operation itself.
    pub round: u64,
}

impl Applied {
    /// The ballot by which it was applied.
    pub fn ballot(&self) -> Ballot {
        Ballot { round: self.round, op: self.op }
    }
}

/// Which change of a key a value came by. Changes with every put, delete and conditional change, and with nothing else.
///
/// It holds the put that began the entry's era and the ballot of the last change since. The entry's own timestamp would not
/// do: a reader that confirms a value under a new ballot raises it and changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(Timestamp);

impl Version {
    /// The version of an entry with this timestamp, to which these conditional operations were applied.
    pub fn new(timestamp: Timestamp, ops: &[Applied]) -> Version {
        Version(Timestamp { ballot: ops.last().map_or(Ballot::NONE, Applied::ballot), ..timestamp })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The text is no version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a version: give one that a get has shown, as it stands")]
pub struct NotAVersion;

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Version, NotAVersion> {
        let numbered_op = |text: &str| -> Option<(u64, OpId)> {
            let (number, op) = text.split_once('@')?;
            let (host, sequence) = op.split_once('.')?;
            let host = u64::from_str_radix(host, 16).ok()?;
            Some((number.parse().ok()?, OpId { host, sequence: sequence.parse().ok()? }))
        };
        let parse = || {
            let (put, change) = text.split_once('+').map_or((text, None), |(put, change)| (put, Some(change)));
            let (counter, op) = numbered_op(put)?;
            let ballot = match change {
                Some(change) => numbered_op(change).map(|(round, op)| Ballot { round, op })?,
                None => Ballot::NONE,
            };
            Some(Version(Timestamp { counter, op, ballot }))
        };
        parse().ok_or(NotAVersion)
    }
}

/// A key of legal length with its hashes. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    bytes: Rc<[u8]>,
    hash: KeyHash,
}

impl Key {
    /// `None` unless `bytes` has 1 to [`KEY_BYTES_MAX`] bytes. `seed` is the pool's.
    pub fn new(bytes: &[u8], seed: u64) -> Option<Key> {
        let legal = (1..=KEY_BYTES_MAX).contains(&bytes.len());
        legal.then(|| Key { bytes: bytes.into(), hash: KeyHash::new(bytes, seed) })
    }

    /// The key itself.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its places on the ring and in the tables.
    pub fn hash(&self) -> KeyHash {
        self.hash
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.bytes.escape_ascii().to_string())
    }
}

/// What makes the checksums of values a pool's own. Nobody who chooses bytes, and is told operations by the versions of values, can
/// find some that verify as those of another operation: that takes the pool's seed, which only hosts of the pool know.
#[derive(Clone, Copy)]
pub struct ChecksumKey(u64);

impl ChecksumKey {
    /// Of the pool that has this seed.
    pub fn new(hash_seed: u64) -> ChecksumKey {
        ChecksumKey(xxh3_64_with_seed(b"checksums of values", hash_seed))
    }

    /// For what this operation writes.
    pub fn of(self, op: OpId) -> ChecksumSeed {
        let [mut bytes, sequence] = [op.host, op.sequence].map(|part| u128::from(part).to_le_bytes());
        bytes[8..].copy_from_slice(&sequence[..8]);
        ChecksumSeed(xxh3_64_with_seed(&bytes, self.0))
    }
}

/// What makes checksums of values an operation's own: equal bytes of another operation do not verify, so that a stale reference
/// to a place that was given to somebody else is never taken for good.
#[derive(Clone, Copy)]
pub struct ChecksumSeed(pub(crate) u64);

/// The checksum of a value, for values of one part and parts of longer ones.
pub fn value_checksum(seed: ChecksumSeed, value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, seed.0)
}

/// The checksum of a value longer than [`VALUE_PART_BYTES`], from those of its parts: whoever has verified the parts need not
/// go over the value again.
pub fn checksum_of_parts(seed: ChecksumSeed, parts: impl Iterator<Item = u64>) -> u64 {
    value_checksum(seed, &parts.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_counter_then_operation_then_ballot() {
        let op = |sequence| OpId { host: 1, sequence };
        let put = |counter, sequence| Timestamp { counter, op: op(sequence), ballot: Ballot::NONE };
        let conditional = Timestamp { ballot: Ballot { round: 9, op: op(9) }, ..put(1, 1) };
        let order = [Timestamp::ZERO, put(1, 1), conditional, put(1, 2), put(2, 0)];
        assert!(order.is_sorted());
    }

    #[test]
    fn a_version_is_read_back_from_its_text_and_survives_a_confirmation() {
        let op = |sequence| OpId { host: 0xab, sequence };
        let put = Timestamp { counter: 3, op: op(1), ballot: Ballot { round: 9, op: op(9) } };
        let confirmed = Timestamp { ballot: Ballot { round: 12, op: op(12) }, ..put };
        let applied = [Applied { op: op(4), round: 7 }, Applied { op: op(9), round: 9 }];
        let version = Version::new(put, &applied);
        assert_eq!(version, Version::new(confirmed, &applied));
        assert_ne!(version, Version::new(put, &applied[..1]));
        for version in [version, Version::new(put, &[])] {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        for text in ["", "3", "3@", "3@ab", "3@zz.1", "3@ab.1+", "x@ab.1", "3@ab.1+4"] {
            assert_eq!(text.parse::<Version>(), Err(NotAVersion), "{text}");
        }
    }

    #[test]
    fn checksum_depends_on_the_operation() {
        let seed = |pool, sequence| ChecksumKey::new(pool).of(OpId { host: 1, sequence });
        assert_ne!(value_checksum(seed(1, 1), b"same"), value_checksum(seed(1, 2), b"same"));
        assert_ne!(value_checksum(seed(1, 1), b"same"), value_checksum(seed(2, 1), b"same"));
        assert_eq!(Key::new(b"", 0), None);
        assert_eq!(Key::new(&[0; 513], 0), None);
        assert!(Key::new(&[0; 512], 0).is_some());
    }
}
