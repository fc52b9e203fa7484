//! Registrants and the reservation of one namespace: what each command changes, and who may do what (NVMe Base 2.0 §8.19).
//!
//! Pure: a command either leaves the state as it was and is refused, or changes all of it and says what follows.
//!
//! Invariants:
//! - A host is a registrant at most once, and never with key 0 (0 means "everybody" to a preemption).
//! - Where a reservation is held there is a registrant, and but for the all-registrants types its holder is one.
//! - The generation moves with every registration change, clear and preemption, and with nothing else (§7.5).

use std::collections::BTreeSet;

use nvme::reservation::{
    Access, AcquireAction, NotificationType, PersistChange, RegisterAction, ReleaseAction, ReservationType,
};
use nvme::{Nqn, Status};
use openssl::sha::sha256;

/// A host, by the Host Identifier and by the name that it gave in Connect. An identifier is shown by every report and proved by
/// nothing, while a name is what a host is let in by: who has another one is another host, whatever identifier it gives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(in crate::subsystem) struct HostId {
    /// Never zero in Connect.
    pub id: [u8; 16],
    pub name: NameTag,
}

/// Stands for a name: the start of its SHA-256. Derived: as long as the persistent record of [`REGISTRANTS_MAX`] has room for.
pub(in crate::subsystem) type NameTag = [u8; 7];

impl HostId {
    pub fn new(id: [u8; 16], host: &Nqn) -> HostId {
        let mut name = NameTag::default();
        let bytes = name.len();
        name.copy_from_slice(&sha256(host.as_str().as_bytes())[..bytes]);
        HostId { id, name }
    }

    /// Whether two hosts give the same identifier.
    pub fn collides(&self, other: &HostId) -> bool {
        self.id == other.id && self.name != other.name
    }
}

/// Registrants of a namespace. Chosen: more hosts than share one volume, and all of them fit the persistent record.
pub(in crate::subsystem) const REGISTRANTS_MAX: usize = 64;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.do_not_retry();
const INVALID: Status = Status::INVALID_FIELD.do_not_retry();

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Registrant {
    pub host: HostId,
    pub key: u64,
}

/// A reservation that is held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub rtype: ReservationType,
    /// Who acquired it; of the all-registrants types every registrant is a holder, and this says nothing.
    pub holder: HostId,
}

/// A command, its keys with it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in crate::subsystem) enum Change {
    Register {
        action: RegisterAction,
        ignore_key: bool,
        persist: PersistChange,
        current: u64,
        new: u64,
    },
    Acquire {
        action: AcquireAction,
        rtype: ReservationType,
        current: u64,
        preempt: u64,
    },
    Release {
        action: ReleaseAction,
        rtype: Option<ReservationType>,
        current: u64,
    },
    /// The Reservation Persistence feature.
    Persist(bool),
}

/// What follows from a change that was made.
#[derive(Default)]
pub(super) struct Effects {
    /// Whom to tell what.
    pub notices: Vec<(HostId, NotificationType)>,
    /// Hosts whose commands are to be aborted.
    pub aborted: Vec<HostId>,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct State {
    pub registrants: Vec<Registrant>,
    pub held: Option<Held>,
    pub generation: u32,
    /// Persist Through Power Loss.
    pub persist: bool,
}

impl State {
    /// Makes a change for `host`, or refuses it and changes nothing. `can_persist`: the namespace keeps state over power loss.
    pub fn apply(&mut self, host: HostId, change: Change, can_persist: bool) -> Result<Effects, Status> {
        match change {
            Change::Register { action, ignore_key, persist, current, new } => {
                if persist == PersistChange::Set && !can_persist {
                    return Err(INVALID);
                }
                let effects = match action {
                    RegisterAction::Register => self.register(host, new),
                    RegisterAction::Unregister => self.unregister(host, (!ignore_key).then_some(current)),
                    RegisterAction::Replace => self.replace(host, (!ignore_key).then_some(current), new),
                }?;
                match persist {
                    PersistChange::Keep => {}
                    PersistChange::Clear => self.persist = false,
                    PersistChange::Set => self.persist = true,
                }
                self.count();
                Ok(effects)
            }
            Change::Acquire { action, rtype, current, preempt } => {
                self.check_registrant(host, current)?;
                match action {
                    AcquireAction::Acquire => self.acquire(host, rtype),
                    AcquireAction::Preempt => self.preempt(host, rtype, preempt, false),
                    AcquireAction::PreemptAndAbort => self.preempt(host, rtype, preempt, true),
                }
            }
            Change::Release { action, rtype, current } => {
                self.check_registrant(host, current)?;
                match action {
                    ReleaseAction::Release => self.release(host, rtype),
                    ReleaseAction::Clear => Ok(self.clear(host)),
                }
            }
            Change::Persist(true) if !can_persist => Err(INVALID),
            Change::Persist(persist) => {
                self.persist = persist;
                Ok(Effects::default())
            }
        }
    }

    /// Which invariant a state that comes from outside breaks.
    pub fn fault(&self) -> Option<&'static str> {
        let hosts: BTreeSet<_> = self.registrants.iter().map(|registrant| registrant.host).collect();
        if hosts.len() != self.registrants.len() {
            return Some("a host is a registrant twice");
        }
        if self.registrants.iter().any(|registrant| registrant.key == 0) {
            return Some("a registrant has key 0");
        }
        let lost = self.held.is_some_and(|held| match held.rtype.is_all_registrants() {
            true => self.registrants.is_empty(),
            false => !hosts.contains(&held.holder),
        });
        lost.then_some("the reservation's holder is no registrant")
    }

    /// What a host may do.
    pub fn access(&self, host: &HostId) -> Access {
        let Some(held) = &self.held else { return Access::ALL };
        let admitted = held.rtype.admits_registrants() && self.is_registrant(host);
        if admitted || self.is_holder(host) {
            return Access::ALL;
        }
        if held.rtype.admits_readers() { Access::READ } else { Access::NONE }
    }

    pub fn is_holder(&self, host: &HostId) -> bool {
        let holds = |held: Held| match held.rtype.is_all_registrants() {
            true => self.is_registrant(host),
            false => held.holder == *host,
        };
        self.held.is_some_and(holds)
    }

    fn is_registrant(&self, host: &HostId) -> bool {
        self.registrants.iter().any(|registrant| registrant.host == *host)
    }

    fn key_of(&self, host: &HostId) -> Option<u64> {
        self.registrants.iter().find(|registrant| registrant.host == *host).map(|registrant| registrant.key)
    }

    fn count(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// The keys of Acquire and Release must be the host's own (§7.2, §7.4).
    fn check_registrant(&self, host: HostId, current: u64) -> Result<(), Status> {
        if self.key_of(&host) == Some(current) { Ok(()) } else { Err(CONFLICT) }
    }

    // Registration (§8.19.3 to §8.19.5).

    /// A registrant may register again with the key it has, and only with that.
    fn register(&mut self, host: HostId, new: u64) -> Result<Effects, Status> {
        match self.key_of(&host) {
            _ if new == 0 => Err(INVALID),
            Some(key) if key == new => Ok(Effects::default()),
            Some(_) => Err(CONFLICT),
            None => self.add(host, new),
        }
    }

    fn add(&mut self, host: HostId, key: u64) -> Result<Effects, Status> {
        if self.registrants.len() == REGISTRANTS_MAX {
            tracing::warn!("a reservation key was not registered: {REGISTRANTS_MAX} hosts are registrants already");
            // No status says "too many"; a retry succeeds once another host has unregistered.
            return Err(Status::INTERNAL_ERROR);
        }
        self.registrants.push(Registrant { host, key });
        Ok(Effects::default())
    }

    /// With its key left out of account (IEKEY) a host that is no registrant becomes one.
    fn replace(&mut self, host: HostId, current: Option<u64>, new: u64) -> Result<Effects, Status> {
        if new == 0 {
            return Err(INVALID);
        }
        match self.registrants.iter_mut().find(|registrant| registrant.host == host) {
            Some(registrant) if current.is_none_or(|current| current == registrant.key) => {
                registrant.key = new;
                Ok(Effects::default())
            }
            None if current.is_none() => self.add(host, new),
            _ => Err(CONFLICT),
        }
    }

    fn unregister(&mut self, host: HostId, current: Option<u64>) -> Result<Effects, Status> {
        let key = self.key_of(&host).ok_or(CONFLICT)?;
        if current.is_some_and(|current| current != key) {
            return Err(CONFLICT);
        }
        let before = self.held;
        self.remove(|registrant| registrant.host == host);
        let mut effects = Effects::default();
        if self.held.is_none() {
            self.tell_released(before, host, &mut effects);
        }
        Ok(effects)
    }

    /// Removes registrants, and the reservation with its holder: the one, or the last of all registrants. Returns who went.
    fn remove(&mut self, goes: impl Fn(&Registrant) -> bool) -> Vec<HostId> {
        let gone = self.registrants.extract_if(.., |registrant| goes(registrant)).map(|registrant| registrant.host);
        let gone: Vec<_> = gone.collect();
        let holds = |held: Held| match held.rtype.is_all_registrants() {
            true => !self.registrants.is_empty(),
            false => !gone.contains(&held.holder),
        };
        self.held = self.held.filter(|held| holds(*held));
        gone
    }

    /// Registrants but `host` learn that the reservation is gone, where they had a share in it (§8.19.6).
    fn tell_released(&self, before: Option<Held>, host: HostId, effects: &mut Effects) {
        if before.is_some_and(|held| held.rtype.admits_registrants()) {
            let others = self.registrants.iter().filter(|registrant| registrant.host != host);
            effects.notices.extend(others.map(|other| (other.host, NotificationType::RESERVATION_RELEASED)));
        }
    }

    // Reservation (§8.19.2, §8.19.6 to §8.19.8).

    fn acquire(&mut self, host: HostId, rtype: ReservationType) -> Result<Effects, Status> {
        match self.held {
            None => self.held = Some(Held { rtype, holder: host }),
            Some(held) if held.rtype == rtype && self.is_holder(&host) => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Effects::default())
    }

    fn release(&mut self, host: HostId, rtype: Option<ReservationType>) -> Result<Effects, Status> {
        let Some(held) = self.held.filter(|_| self.is_holder(&host)) else {
            return Ok(Effects::default()); // not an error, and without effect
        };
        if rtype != Some(held.rtype) {
            return Err(INVALID);
        }
        self.held = None;
        let mut effects = Effects::default();
        self.tell_released(Some(held), host, &mut effects);
        Ok(effects)
    }

    fn clear(&mut self, host: HostId) -> Effects {
        self.held = None;
        let gone = self.remove(|_| true).into_iter().filter(|gone| *gone != host);
        let notices = gone.map(|gone| (gone, NotificationType::RESERVATION_PREEMPTED)).collect();
        self.count();
        Effects { notices, aborted: Vec::new() }
    }

    /// Preempts the reservation where `key` is its holder's (0: that of all registrants), else registrations only.
    fn preempt(&mut self, host: HostId, rtype: ReservationType, key: u64, abort: bool) -> Result<Effects, Status> {
        let before = self.held;
        let takes_over = match before {
            Some(held) if held.rtype.is_all_registrants() => key == 0,
            Some(held) => self.key_of(&held.holder) == Some(key),
            None => false,
        };
        let gone = if takes_over {
            let all = before.is_some_and(|held| held.rtype.is_all_registrants());
            self.held = Some(Held { rtype, holder: host });
            self.remove(|registrant| registrant.host != host && (all || registrant.key == key))
        } else if key == 0 {
            return Err(INVALID);
        } else if !self.registrants.iter().any(|registrant| registrant.key == key) {
            return Err(CONFLICT);
        } else {
            self.remove(|registrant| registrant.key == key)
        };
        let mut effects = Effects::default();
        let others = gone.iter().filter(|gone| **gone != host);
        effects.notices.extend(others.map(|gone| (*gone, NotificationType::REGISTRATION_PREEMPTED)));
        if self.held.map(|held| held.rtype) != before.map(|held| held.rtype) {
            self.tell_released(before, host, &mut effects);
        }
        if abort {
            effects.aborted = gone;
        }
        self.count();
        Ok(effects)
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
