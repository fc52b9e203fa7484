//! What a catalogue takes, and the fault of what it does not take.
//!
//! The limits are those of the narrower engine with room to spare (etcd refuses requests above 1.5 MiB and transactions of more
//! than 128 parts), so that what one engine has taken can be moved to the other.

use std::time::Duration;

/// Bytes of a key. Chosen: names and paths of ids, twice over.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of a value. Derived: half of [`TRANSACTION_BYTES_MAX`], so that two values fit in any transaction.
pub const VALUE_BYTES_MAX: usize = 512 * 1024;
/// Conditions, and changes, of a transaction. Derived: etcd's default for either is 128.
pub const TRANSACTION_PARTS_MAX: usize = 100;
/// Bytes of all keys and values of a transaction. Derived: etcd's default for a request is 1.5 MiB; what a miss reads (100 keys
/// once more), 300 namespaces and the framing take less than 0.2 MiB of it.
pub const TRANSACTION_BYTES_MAX: usize = 1024 * 1024;
/// Entries of a page. Derived: a page of entries of the largest size is 50 MiB, which a process can hold.
pub const PAGE_ENTRIES_MAX: usize = 100;
/// Bytes of what all keys begin with in a shared etcd. Chosen: a name, with room; see [`TRANSACTION_BYTES_MAX`].
pub(super) const NAMESPACE_BYTES_MAX: usize = 128;
/// Shortest and longest time of a lease. Chosen: etcd gives two seconds when asked for one; a lease of more than a day bounds
/// nothing.
pub const LEASE_TTL_MIN: Duration = Duration::from_secs(1);
/// See [`LEASE_TTL_MIN`]. Chosen, as said there.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Keys of a lease. Derived: they go in one commit, which with keys of the longest size is no larger than a transaction may be.
pub const LEASE_KEYS_MAX: usize = 1000;

const _: () = assert!(2 * VALUE_BYTES_MAX <= TRANSACTION_BYTES_MAX);
const _: () = assert!(LEASE_KEYS_MAX * KEY_BYTES_MAX <= TRANSACTION_BYTES_MAX);

/// Something is too long, too many or out of range; nothing was asked of the engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A key has no bytes, or too many.
    #[error("a key has {bytes} bytes: 1 to {KEY_BYTES_MAX} are allowed, choose another name")]
    KeyLength {
        /// How many it has.
        bytes: usize,
    },
    /// A key begins with the byte 0, which the catalogue keeps for itself.
    #[error("a key begins with the byte 0: such keys are the catalogue's own, let it begin with a letter")]
    KeyReserved,
    /// A value has too many bytes.
    #[error(
        "a value has {bytes} bytes, {VALUE_BYTES_MAX} at most: the catalogue is for small things, keep the rest in a volume or store"
    )]
    ValueLength {
        /// How many it has.
        bytes: usize,
    },
    /// A transaction has too many conditions or changes.
    #[error(
        "a transaction has {conditions} conditions and {changes} changes, {TRANSACTION_PARTS_MAX} of each at most: split it, with a \
         key that tells how far the work has come"
    )]
    Parts {
        /// Conditions.
        conditions: usize,
        /// Changes.
        changes: usize,
    },
    /// A transaction's keys and values are too long together.
    #[error("the keys and values of a transaction have {bytes} bytes, {TRANSACTION_BYTES_MAX} at most: split it")]
    TransactionBytes {
        /// How many they have.
        bytes: usize,
    },
    /// A transaction changes a key twice: which change counts would be a matter of the engine.
    #[error("a transaction changes the key {key} twice: leave the first change out")]
    KeyTwice {
        /// Which key.
        key: String,
    },
    /// The time of a lease is out of range.
    #[error("a lease of {ttl:?} was asked for: {LEASE_TTL_MIN:?} to {LEASE_TTL_MAX:?} are allowed")]
    Ttl {
        /// What was asked for.
        ttl: Duration,
    },
    /// A page of no entries, or of too many.
    #[error("a page of {entries} entries was asked for: 1 to {PAGE_ENTRIES_MAX} are allowed")]
    Page {
        /// What was asked for.
        entries: usize,
    },
}
