//! [`Locks`]: what this client has of files' locks, what it has lost of them, and which clients were in its way. No I/O.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use engine::sync::{Notify, Semaphore};
use engine::time::{self, Instant};

use crate::access::Held;
use crate::meta::Version;
use crate::record::lock::{LOCK_END, Lock, LockKind, LockRecord};

/// Whoever is in the way is asked for no more often than that.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// How long a claim keeps others out that nothing keeps from being a lock. Chosen: who waits looks ten times a second, and is
/// answered within ten seconds by a store that is there.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Silent clients that are remembered.
const SILENT_KEPT: usize = 1024;

/// A lock that a user of this client asks for, or gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// Which of this client's users.
    pub owner: u64,
    /// By which call.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
    /// Nobody else is to have one there.
    pub is_exclusive: bool,
    /// The process, for people.
    pub pid: u32,
}

impl LockRequest {
    /// All that an owner has by calls of a kind.
    pub fn all(owner: u64, kind: LockKind) -> LockRequest {
        LockRequest { owner, kind, start: 0, end: LOCK_END, is_exclusive: true, pid: 0 }
    }
}

/// How much an owner gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Back {
    /// All that it has, and waits for.
    All,
    /// A range.
    Range,
    /// A place among those who wait.
    Claim,
}

/// What an owner gives back of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Debt {
    pub(super) what: LockRequest,
    pub(super) back: Back,
}

impl Debt {
    /// Takes it out of the record, where `lock` is what it is about.
    pub(super) fn pay(&self, record: &mut LockRecord, lock: &Lock) {
        match self.back {
            Back::All => {
                let _any = record.drop_holders(|holder| *holder == lock.holder);
            }
            Back::Range => record.clear(lock),
            Back::Claim => record.give_up(lock),
        }
    }
}

/// What this client has, or may have, of a file's locks.
pub(super) struct Stake {
    /// One of this client's changes at a time.
    pub(super) turn: Semaphore,
    /// Something was given back here, or is another than it was; how often.
    pub(super) freed: Notify,
    pub(super) changes: Cell<u64>,
    /// Who of those that wait here looks at the record.
    pub(super) looking: Semaphore,
    /// As it was seen last.
    pub(super) version: Cell<Option<Version>>,
    /// Each that is about to give something back has one, too.
    giving: Rc<()>,
    /// Claims that nothing was in the way of, and since when.
    idle: RefCell<BTreeMap<Lock, Instant>>,
    /// Who has, or may have, a lock or a claim.
    pub(super) owners: RefCell<BTreeSet<u64>>,
    /// What they have and do not want, and could not give back yet.
    pub(super) debts: RefCell<Vec<Debt>>,
    /// When bytes of the file could last not be stored that were written under its locks.
    pub(super) failed: Cell<Option<Instant>>,
    /// The record as this client has left it.
    pub(super) known: RefCell<Option<Held<LockRecord>>>,
    /// What became of the last change is unknown: it may come late, unless another change comes before it.
    pub(super) is_in_doubt: Cell<bool>,
}

impl Stake {
    /// Tells those that wait here to look.
    pub(super) fn tell(&self) {
        self.changes.set(self.changes.get().wrapping_add(1));
        self.freed.notify_all();
    }

    /// Whether somebody has, or may have, a lock or a claim.
    fn is_wanted(&self) -> bool {
        !self.owners.borrow().is_empty()
    }

    /// As long as it is held, somebody is about to give something back.
    pub(super) fn giving(&self) -> Rc<()> {
        Rc::clone(&self.giving)
    }

    pub(super) fn is_giving(&self) -> bool {
        Rc::strong_count(&self.giving) > 1
    }

    /// Takes claims out of a record whose owners could have had the lock for long: nobody seems to ask for it. Who does comes back
    /// behind all others.
    pub(super) fn drop_idle(&self, record: &mut LockRecord, in_the_way: &[Lock]) {
        let mut idle = self.idle.borrow_mut();
        let is_free = |claim: &Lock| record.claims.contains(claim) && record.in_the_way(claim).is_empty();
        let free: Vec<Lock> = in_the_way.iter().filter(|claim| is_free(claim)).copied().collect();
        idle.retain(|claim, _| free.contains(claim));
        for claim in free {
            if idle.entry(claim).or_insert_with(time::now).elapsed() >= IDLE_MAX {
                record.give_up(&claim);
            }
        }
    }

    /// What an owner could not give back yet.
    pub(super) fn debts_of(&self, owner: u64) -> Vec<Debt> {
        self.debts.borrow().iter().filter(|debt| debt.what.owner == owner).copied().collect()
    }

    /// What could not be given back is tried again.
    pub(super) fn owe(&self, debt: Debt) {
        let mut debts = self.debts.borrow_mut();
        if !debts.contains(&debt) {
            debts.push(debt);
        }
    }

    /// What was given back.
    pub(super) fn strike(&self, paid: &[Debt]) {
        self.debts.borrow_mut().retain(|debt| !paid.contains(debt));
    }
}

/// A client that was in the way.
struct Silent {
    version: Version,
    /// When it was first seen so, and when it was last asked for.
    since: Instant,
    looked: Instant,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    stakes: RefCell<BTreeMap<u64, Rc<Stake>>>,
    silent: RefCell<BTreeMap<u64, Silent>>,
    /// Files whose locks were lost, as long as they are open here.
    pub(super) lost: RefCell<BTreeSet<u64>>,
    /// Those of which nobody has been told yet.
    pub(super) untold: RefCell<VecDeque<u64>>,
    pub(super) told: Notify,
}

impl Locks {
    pub(super) fn stake(&self, ino: u64) -> Rc<Stake> {
        let fresh = || {
            Rc::new(Stake {
                turn: Semaphore::new(1),
                freed: Notify::new(),
                changes: Cell::default(),
                looking: Semaphore::new(1),
                version: Cell::default(),
                giving: Rc::default(),
                idle: RefCell::default(),
                owners: RefCell::default(),
                debts: RefCell::default(),
                failed: Cell::default(),
                known: RefCell::default(),
                is_in_doubt: Cell::default(),
            })
        };
        Rc::clone(self.stakes.borrow_mut().entry(ino).or_insert_with(fresh))
    }

    /// Nothing is kept of files of which this client has nothing.
    pub(super) fn settle(&self, ino: u64, stake: &Rc<Stake>) {
        // This one's and the map's: nobody waits.
        if !stake.is_wanted() && Rc::strong_count(stake) == 2 {
            self.stakes.borrow_mut().remove(&ino);
        }
    }

    /// Whether an owner has, or may have, something of a file.
    pub(crate) fn has(&self, ino: u64, owner: u64) -> bool {
        self.stakes.borrow().get(&ino).is_some_and(|stake| stake.owners.borrow().contains(&owner))
    }

    /// Whether anybody here has, or may have, something of a file.
    pub(super) fn has_any(&self, ino: u64) -> bool {
        self.stakes.borrow().get(&ino).is_some_and(|stake| stake.is_wanted())
    }

    /// Whether bytes of a file could not be stored, and may yet come.
    pub(crate) fn has_failed(&self, ino: u64) -> bool {
        self.stakes.borrow().get(&ino).is_some_and(|stake| stake.failed.get().is_some())
    }

    /// Whether those of any file with locks may.
    pub(super) fn has_any_failed(&self) -> bool {
        self.stakes.borrow().values().any(|stake| stake.failed.get().is_some() && stake.is_wanted())
    }

    /// Whether this client has, or may have, a lock.
    pub(crate) fn is_holding(&self) -> bool {
        self.stakes.borrow().values().any(|stake| stake.is_wanted())
    }

    /// Files of which this client has, or may have, locks, and files that are open here whose locks were lost.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let held = self.stakes.borrow().values().filter(|stake| stake.is_wanted()).count();
        (held, self.lost.borrow().len())
    }

    /// A file is open here no more.
    pub(crate) fn forgive(&self, ino: u64) {
        self.lost.borrow_mut().remove(&ino);
    }

    /// Whether this client has nothing to lose.
    pub(super) fn is_empty(&self) -> bool {
        self.stakes.borrow().is_empty()
    }

    /// What could not be given back yet, of each file.
    pub(super) fn debts(&self) -> Vec<(u64, Rc<Stake>, Debt)> {
        let stakes = self.stakes.borrow();
        let each = stakes.iter().flat_map(|(ino, stake)| {
            let debts = stake.debts.borrow().clone();
            debts.into_iter().map(|debt| (*ino, Rc::clone(stake), debt))
        });
        each.collect()
    }

    /// Everything is lost: of files that are open so that it is told. Whether there was anything.
    pub(super) fn lose(&self, is_open: impl Fn(u64) -> bool) -> bool {
        let mut is_any = false;
        for (ino, stake) in &*self.stakes.borrow() {
            if stake.owners.take().is_empty() {
                continue;
            }
            is_any = true;
            stake.debts.take();
            stake.known.take();
            stake.failed.set(None);
            if is_open(*ino) && self.lost.borrow_mut().insert(*ino) {
                self.untold.borrow_mut().push_back(*ino);
            }
        }
        is_any
    }

    /// Whether a client was asked for just now.
    pub(super) fn was_looked_at(&self, client: u64, now: Instant) -> bool {
        let looked = self.silent.borrow().get(&client).map(|silent| silent.looked);
        looked.is_some_and(|looked| now.duration_since(looked) < LOOKED_AT_EVERY)
    }

    /// For how long a client's record, which was asked for then and is this version now, was seen to be no other.
    pub(super) fn silence(&self, client: u64, version: Version, asked: Instant) -> Duration {
        let mut silent = self.silent.borrow_mut();
        if let Some(known) = silent.get_mut(&client).filter(|known| known.version == version) {
            known.looked = asked;
            // It was so when this was asked; it is seen so since an answer of before.
            return asked.duration_since(known.since);
        }
        if silent.len() >= SILENT_KEPT {
            silent.clear();
        }
        silent.insert(client, Silent { version, since: time::now(), looked: asked });
        Duration::ZERO
    }
}
