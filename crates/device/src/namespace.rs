//! [`Namespace`]: what everything below offers and everything above uses.
//!
//! Invariants every kind keeps:
//! - A command is atomic towards every other command on the namespace, from any thread or connection, up to
//!   [`NamespaceInfo::atomic_blocks`]; a compare-and-write may not be larger than [`NamespaceInfo::compare_and_write_blocks_max`].
//! - What was acknowledged with [`Durability::Stable`], or before an acknowledged [`Namespace::flush`], survives power loss.
//! - An error says what is known: [`Error::Disconnected`] and [`Error::Aborted`] leave open whether the command took effect, or
//!   may yet; after [`Error::WriteFault`] the range holds old bytes, new bytes or both. So it does after [`Error::OutOfSpace`]
//!   where it is longer than what the medium makes room for at once (one block of its file system), but the command has ended
//!   and not as a whole taken effect. Any other error: nothing was written.
//! - Dropping a command's future leaves its outcome open likewise; it never makes a later command less atomic.

use engine::file::Lifetime;
use engine::{Buf, View};

use crate::lba::Lba;
use crate::zone::{Zone, ZoneAction, ZoneError, ZonedInfo};

/// Bytes of one attribute's value. Chosen: what the most registrants of a reservation need, and few enough that a write of
/// all attributes is one small write.
pub const ATTRIBUTE_BYTES_MAX: usize = 2048;
/// Attributes of one namespace. Chosen: twice the users there are.
pub const ATTRIBUTES_MAX: usize = 7;
/// Bytes of an attribute's key. Chosen: a word.
pub const ATTRIBUTE_KEY_BYTES_MAX: usize = 32;
/// Bytes that [`Namespace::verify`] reads at a time where a kind has no better way. Guessed: long enough for streaming.
pub const VERIFY_BYTES_MAX: usize = 256 << 10;

/// When a write may be acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// As soon as the medium has it, even in a volatile cache.
    Cached,
    /// Only when it would survive power loss (NVMe: force unit access).
    Stable,
}

/// Whether a namespace takes writes, at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Writability {
    /// It does.
    #[default]
    Writable,
    /// It was opened so that it takes none.
    ReadOnly,
    /// Its medium has failed, and it takes none until it is opened anew.
    Failed,
}

/// The connection by which a namespace is reached, at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Commands can be sent now.
    pub is_up: bool,
    /// Changes with every new connection: what answers now may not be what answered before.
    pub epoch: u64,
}

impl Link {
    /// Of what is in this machine.
    pub const LASTING: Link = Link { is_up: true, epoch: 0 };
}

/// What a namespace is; constant while it is open, except that it may grow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceInfo {
    /// Bytes per block, a power of two from 512 to 65,536.
    pub block_size: u32,
    /// Size in blocks.
    pub blocks: u64,
    /// Reads and writes up to this many blocks are atomic.
    pub atomic_blocks: u32,
    /// The largest compare-and-write, in blocks; 0: not supported.
    pub compare_and_write_blocks_max: u32,
    /// The largest single transfer, in blocks.
    pub transfer_blocks_max: u32,
    /// A write without [`Durability::Stable`] may be lost until the next flush.
    pub volatile_cache: bool,
    /// Nothing survives the end of the serving process (a memory namespace).
    pub volatile_medium: bool,
    /// Every block that [`Namespace::deallocate`] was told of reads as zeroes. Otherwise any may be left as it was.
    pub deallocated_reads_zero: bool,
    /// The medium may hold less than all blocks: room is taken when they are written (NVMe: NSFEAT.THINP).
    pub thin: bool,
    /// Writes of a multiple of this many blocks at a multiple of it are cheapest (NVMe: NPWG, NPWA); at least 1.
    pub preferred_write_blocks: u32,
    /// Deallocation gives room back in units of this many blocks at a multiple of it (NVMe: NPDG, NPDA); at least 1.
    pub preferred_deallocate_blocks: u32,
    /// [`Namespace::write_uncorrectable`] is offered.
    pub write_uncorrectable: bool,
    /// What [`Namespace::set_attribute`] keeps outlives the process and power loss.
    pub persists_attributes: bool,
    /// Globally unique, stable over restarts (NVMe: NGUID).
    pub nguid: [u8; 16],
}

impl NamespaceInfo {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }
}

/// Why a command failed, in words the caller can act on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The comparison found other bytes; nothing was written.
    #[error("compare failure: the blocks no longer hold the expected bytes")]
    CompareFailure,
    /// Part of the range lies beyond the end.
    #[error("blocks {lba}+{blocks} lie beyond the namespace's end at {end}")]
    OutOfRange {
        /// First block asked for.
        lba: Lba,
        /// Blocks asked for.
        blocks: u64,
        /// Size of the namespace in blocks.
        end: u64,
    },
    /// The length is zero, no multiple of the block size, over a limit, or the halves differ.
    #[error("invalid length: {bytes} bytes (block size {block_size}, at most {bytes_max} bytes)")]
    InvalidLength {
        /// Bytes given.
        bytes: usize,
        /// The namespace's block size.
        block_size: u32,
        /// The limit that applies.
        bytes_max: usize,
    },
    /// The namespace takes no writes (any more).
    #[error("the namespace is read-only: {0}")]
    ReadOnly(&'static str),
    /// The command is not offered by this namespace.
    #[error("the namespace does not support {0}")]
    Unsupported(&'static str),
    /// The medium could not give the data back.
    #[error("unrecovered read error: {0}")]
    ReadFault(String),
    /// The medium did not take the data.
    #[error("write fault: {0}")]
    WriteFault(String),
    /// No room is left behind a thin namespace.
    #[error("out of space: the medium behind the namespace is full")]
    OutOfSpace,
    /// There is no connection at the moment; the command was not sent.
    #[error("not connected to {0}")]
    NotConnected(String),
    /// The connection ended while the command was under way: whether it took effect is not known.
    #[error("the connection to {0} was lost; the outcome of the command is unknown")]
    Disconnected(String),
    /// The command was aborted or timed out: whether it took effect is not known.
    #[error("the command was aborted; its outcome is unknown")]
    Aborted,
    /// Another host has the namespace, by a reservation or because it attached a volume since (NVMe: Reservation Conflict).
    #[error("Reservation Conflict: another host has {0}")]
    Reserved(String),
    /// A zone does not take the command; nothing was written.
    #[error("{0}")]
    Zone(ZoneError),
    /// The remote side answered with a status that has no kind of its own here.
    #[error("the target answered with status {0}")]
    Status(String),
}

impl Error {
    /// Whether the command may have taken effect (wholly or in part), or may yet.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Error::Disconnected(_) | Error::Aborted | Error::WriteFault(_))
    }
}

/// An array of blocks. Futures are local to their thread; implementations that are `Send + Sync` may be used from many.
///
/// No method has a default: what wraps a namespace would lose one without a word. Wrappers hand on by
/// [`delegate_namespace!`](crate::delegate_namespace), kinds say what they do not have by
/// [`namespace_without!`](crate::namespace_without).
#[allow(async_fn_in_trait)] // local futures by design: one reactor per thread
pub trait Namespace: 'static {
    /// Geometry, limits and identity.
    fn info(&self) -> NamespaceInfo;

    /// Fills all of `buf` (a multiple of the block size) from `lba`. The buffer comes back in every case.
    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf);

    /// Writes `data` (a multiple of the block size) at `lba`.
    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error>;

    /// Makes every write that was acknowledged before this call stable.
    async fn flush(&self) -> Result<(), Error>;

    /// Compares `expected` with the blocks at `lba`; [`Error::CompareFailure`] where they differ.
    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error>;

    /// Replaces `expected` by `new` (equal lengths) at `lba` in one atomic step, or fails with [`Error::CompareFailure`].
    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, durability: Durability)
    -> Result<(), Error>;

    /// Makes the range read as zeroes.
    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error>;

    /// Says that the range's content is no longer needed.
    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error>;

    /// Checks that every block of the range can be read, and transfers nothing; [`Error::ReadFault`] where one can't.
    /// A kind that has no better way reads it ([`verify_by_reading`]).
    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error>;

    /// Makes the range (at most [`NamespaceInfo::transfer_blocks_max`] blocks) unreadable: reads, compares and verifies of
    /// any of it fail with [`Error::ReadFault`] until it is written, zeroed or deallocated (NVMe: Write Uncorrectable).
    /// Stable when acknowledged. [`Error::OutOfSpace`] where no more such ranges can be noted.
    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error>;

    /// Says how long what is written from now on stays, beside what else is on the medium, so that the medium can keep it apart; it
    /// changes nothing else. False: this one makes nothing of it.
    async fn hint_lifetime(&self, lifetime: Lifetime) -> bool;

    /// Whether it takes writes; a medium that fails changes it.
    fn writability(&self) -> Writability;

    /// Blocks that take room on the medium (NVMe: NUSE); all of them, where the medium is not thin.
    fn used_blocks(&self) -> u64;

    /// The connection behind it.
    fn link(&self) -> Link;

    // Attributes: small named records of whoever serves the namespace (its reservations, where it is attached). They belong
    // to the namespace as its blocks do, and go with it. Keys are few and known when the program is built.

    /// The value of an attribute; `None` where it was never set, or was removed. It does not wait: attributes are held in
    /// memory while the namespace is open, so that whoever serves it can know them before its first command.
    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error>;

    /// Sets an attribute: all of `value` or, where this fails or power is lost before it is acknowledged, the value before
    /// (after [`Error::WriteFault`] either). An empty value removes it. Where [`NamespaceInfo::persists_attributes`] it is
    /// durable on return, otherwise it lives as long as this object. At most [`ATTRIBUTE_BYTES_MAX`] bytes, and
    /// [`ATTRIBUTES_MAX`] attributes; beyond that [`Error::OutOfSpace`], and the old value stays.
    async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error>;

    // Zones, where blocks are written in order; see `zone` for what holds then.

    /// What its zones are; `None`: it has none, and its blocks are written in any order.
    fn zoned(&self) -> Option<ZonedInfo>;

    /// The zones from the one that has the block `from` on, `max` of them or as many as there are.
    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error>;

    /// Changes the zone that begins at this block; `None`: all that it concerns ([`ZoneAction::concerns`]).
    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error>;

    /// Writes `data` at the write pointer of the zone that begins at this block, wherever that is by then; where it was written.
    async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, Error>;
}

/// [`Namespace::verify`] for a kind that has no better way: it reads the range in pieces and drops what it has read. It is atomic
/// towards writers piece by piece.
pub async fn verify_by_reading<N: Namespace>(namespace: &N, lba: Lba, blocks: u64) -> Result<(), Error> {
    let info = namespace.info();
    crate::limits::check_range(&info, lba, blocks)?;
    let piece_blocks = (VERIFY_BYTES_MAX as u32 / info.block_size).clamp(1, info.transfer_blocks_max);
    let mut buf = Buf::default();
    let mut done = 0;
    while done < blocks {
        let now = (blocks - done).min(u64::from(piece_blocks));
        let bytes = now as usize * info.block_size as usize;
        if buf.len() != bytes {
            buf = Buf::with_len(bytes);
        }
        let result;
        (result, buf) = namespace.read(Lba(lba.0 + done), buf).await;
        result?;
        done += now;
    }
    Ok(())
}
