//! Locks of one file, and who waits for some: ranges of bytes, each an owner's of a client's.
//!
//! Invariants:
//! - Of two locks of different owners that share a byte and of which one is exclusive, one at most is there.
//! - What an owner has of a kind neither overlaps nor could be one range.
//! - **Who waits has a claim, in the order of arrival, and nobody gets what an earlier claim waits for**, but who holds what that
//!   claim waits for already: so that nobody starves, and none waits for one who waits for it.

use super::stamps::Stamps;
use super::{Record, stamped};
use crate::bytes::{Reader, Writer};
use crate::error::Error;

/// Locks and claims of one file. Chosen: the record stays within the store's shorter values.
pub const LOCKS_MAX: usize = 512;
/// Behind the last byte that can be locked: what Linux takes for "to the end of the file, however far it goes".
pub const LOCK_END: u64 = 1 << 63;

/// Which call a lock is of: those of `fcntl` and of `flock` do not see one another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum LockKind {
    /// `fcntl`: of a process, or of an open file (OFD).
    Posix = 1,
    /// `flock`: of an open file.
    Flock = 2,
    /// One of both, of which nobody knows which: it counts as each.
    Either = 3,
}

impl LockKind {
    /// Whether the two see one another.
    pub fn meets(self, other: LockKind) -> bool {
        self as u8 & other as u8 != 0
    }

    fn read(from: &mut Reader<'_>) -> Result<LockKind, Error> {
        match from.u8()? {
            1 => Ok(LockKind::Posix),
            2 => Ok(LockKind::Flock),
            3 => Ok(LockKind::Either),
            _ => Err(from.damaged("a lock of no kind")),
        }
    }
}

/// Whose a lock is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder {
    /// The client.
    pub client: u64,
    /// The client's term: its locks of others do not count.
    pub term: u32,
    /// Who of the client's, as it numbers them.
    pub owner: u64,
}

/// A range that is locked, or that somebody waits for. Ordered so that what could be one range is side by side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lock {
    /// Whose.
    pub holder: Holder,
    /// By which call.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
    /// Nobody else has one there.
    pub is_exclusive: bool,
    /// The process, for people.
    pub pid: u32,
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether only one of both can be.
    pub fn clashes(&self, other: &Lock) -> bool {
        self.holder != other.holder
            && self.kind.meets(other.kind)
            && self.overlaps(other)
            && (self.is_exclusive || other.is_exclusive)
    }

    /// Whether it is the same claim.
    fn is_claim(&self, other: &Lock) -> bool {
        (self.holder, self.kind, self.start, self.end, self.is_exclusive)
            == (other.holder, other.kind, other.start, other.end, other.is_exclusive)
    }

    fn write(&self, to: &mut Writer) {
        to.u64(self.holder.client).u32(self.holder.term).u64(self.holder.owner);
        to.u8(self.kind as u8).u64(self.start).u64(self.end).u8(self.is_exclusive.into()).u32(self.pid);
    }

    fn read(from: &mut Reader<'_>) -> Result<Lock, Error> {
        let holder = Holder { client: from.number()?, term: from.u32()?, owner: from.u64()? };
        let (kind, start, end) = (LockKind::read(from)?, from.u64()?, from.u64()?);
        from.check(start < end && end <= LOCK_END, "a lock of no range")?;
        Ok(Lock { holder, kind, start, end, is_exclusive: from.flag()?, pid: from.u32()? })
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LockRecord {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// Those that are held: ascending.
    pub locks: Vec<Lock>,
    /// Those that somebody waits for: the first has waited longest.
    pub claims: Vec<Lock>,
}

impl LockRecord {
    /// What keeps a lock out: others' locks, and claims that come before it.
    pub fn in_the_way(&self, wanted: &Lock) -> Vec<Lock> {
        let gives_way =
            |claim: &Lock| self.locks.iter().any(|lock| lock.holder == wanted.holder && lock.clashes(claim));
        let earlier = self.claims.iter().take_while(|claim| !claim.is_claim(wanted));
        let claims = earlier.filter(|claim| claim.clashes(wanted) && !gives_way(claim));
        self.locks.iter().filter(|lock| lock.clashes(wanted)).chain(claims).copied().collect()
    }

    /// A lock that would keep this one out, if one is held.
    pub fn held_against(&self, wanted: &Lock) -> Option<&Lock> {
        self.locks.iter().find(|lock| lock.clashes(wanted))
    }

    /// Gives a lock that nothing is in the way of, in the place of what its holder has there.
    pub fn grant(&mut self, wanted: Lock) {
        self.claims.retain(|claim| !claim.is_claim(&wanted));
        self.clear(&wanted);
        self.locks.push(wanted);
        self.locks.sort_unstable();
        self.locks.dedup_by(|next, last| {
            let is_one = (next.holder, next.kind, next.is_exclusive, next.start)
                == (last.holder, last.kind, last.is_exclusive, last.end);
            if is_one {
                (last.end, last.pid) = (next.end, wanted.pid);
            }
            is_one
        });
    }

    /// Takes what a holder has of a range, and of kinds that meet this one, away.
    pub fn clear(&mut self, freed: &Lock) {
        let is_freed = |lock: &Lock| lock.holder == freed.holder && lock.kind.meets(freed.kind) && lock.overlaps(freed);
        let parts: Vec<Lock> = self.locks.extract_if(.., |lock| is_freed(lock)).collect();
        for lock in parts {
            let (before, after) = (Lock { end: freed.start, ..lock }, Lock { start: freed.end, ..lock });
            self.locks.extend([before, after].into_iter().filter(|part| part.start < part.end));
        }
        self.locks.sort_unstable();
    }

    /// Notes that somebody waits; whoever does already keeps its place.
    pub fn claim(&mut self, wanted: Lock) {
        if !self.claims.iter().any(|claim| claim.is_claim(&wanted)) {
            self.claims.push(wanted);
        }
    }

    /// Somebody waits no more.
    pub fn give_up(&mut self, wanted: &Lock) {
        self.claims.retain(|claim| !claim.is_claim(wanted));
    }

    /// Takes out everything whose holder is such. Whether there was anything.
    pub fn drop_holders(&mut self, is_such: impl Fn(&Holder) -> bool) -> bool {
        let count = self.count();
        self.locks.retain(|lock| !is_such(&lock.holder));
        self.claims.retain(|claim| !is_such(&claim.holder));
        self.count() < count
    }

    /// Whether a holder has or waits for something.
    pub fn knows(&self, holder: &Holder) -> bool {
        self.locks.iter().chain(&self.claims).any(|lock| lock.holder == *holder)
    }

    /// Locks and claims.
    pub fn count(&self) -> usize {
        self.locks.len() + self.claims.len()
    }
}

impl Record for LockRecord {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        for locks in [&self.locks, &self.claims] {
            to.u16(locks.len() as u16);
            locks.iter().for_each(|lock| lock.write(&mut to));
        }
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<LockRecord, Error> {
        let mut from = Reader::new("locks of a file", bytes);
        let stamps = Stamps::read(&mut from)?;
        let mut read = || {
            let count = from.u16()?;
            from.check(usize::from(count) <= LOCKS_MAX, "too many locks")?;
            (0..count).map(|_| Lock::read(&mut from)).collect::<Result<Vec<Lock>, Error>>()
        };
        let (locks, claims) = (read()?, read()?);
        from.check(locks.is_sorted_by(|a, b| a < b), "locks out of order")?;
        from.end()?;
        Ok(LockRecord { stamps, locks, claims })
    }

    stamped!(LockRecord);
}
