//! How a connection takes a namespace's reservation, and makes sure of what it got.
//!
//! Invariants:
//! - Whoever had the reservation has lost it, and the commands under way of that host are over, before this one is used.
//! - What the target says it did is looked at: the holder is this connection, exclusive access is what it holds, and that survives
//!   power loss. A target that took the command for something else would fence nobody.
//! - Nothing is changed where another program has the reservation, or is registered to take it, as its key tells, unless somebody
//!   has said so; and no registration of another program is taken away.
//! - Who fails leaves no registration behind, but where the reservation may be its own: with the registration of its holder the
//!   reservation goes, and anybody's commands pass then. The next one to come preempts it.
//!
//! Two hosts that preempt each other pause by chance between tries, so that one of them gets through.

use std::time::Duration;

use engine::{task, time};
use fabric::host::RemoteNamespace;
use nvme::Status;
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, RegisteredController, ReleaseAction,
    ReservationCommand, ReservationStatus, ReservationType,
};
use zerocopy::IntoBytes;

use crate::error::Error;

/// Tries to preempt over one connection. Guessed: each fails only if another host was quicker.
const TRIES_MAX: u32 = 8;
/// The longest pause between two, by chance. Guessed: some round trips.
const PAUSE: Duration = Duration::from_millis(20);
/// Registrants of connections that are gone, beyond which they are cleared away. Chosen: well below the 64 that targets take.
const STALE_MAX: usize = 8;
const EXCLUSIVE: ReservationType = ReservationType::ExclusiveAccess;
/// What the keys of all hosts of volumes begin with: two letters. Format: what is stored at targets by that is known again.
const KEY_PREFIX: u64 = 0x5947 << 48;
const KEY_PREFIX_MASK: u64 = 0xffff << 48;

type Report = (ReservationStatus, Vec<RegisteredController>);

/// The reservation commands of a namespace.
pub(crate) trait Reservations {
    async fn reserve(&self, command: ReservationCommand, keys: &[u8]) -> Result<(), device::Error>;
    async fn report(&self) -> Result<Report, device::Error>;
}

impl Reservations for RemoteNamespace {
    async fn reserve(&self, command: ReservationCommand, keys: &[u8]) -> Result<(), device::Error> {
        RemoteNamespace::reserve(self, command, keys).await
    }

    async fn report(&self) -> Result<Report, device::Error> {
        self.reservation_report().await
    }
}

/// A key that was never used before, and tells that a host of a volume has it.
pub(crate) fn key() -> u64 {
    KEY_PREFIX | task::random_u64() & !KEY_PREFIX_MASK
}

/// Whether the key is one of those.
fn is_volumes(key: u64) -> bool {
    key & KEY_PREFIX_MASK == KEY_PREFIX
}

/// Takes the reservation of `at`, which is called `holder` in errors, by a key that was never used before; from another program's
/// key by `force`.
pub(crate) async fn take(at: &impl Reservations, key: u64, holder: &str, force: bool) -> Result<(), Error> {
    let of = Of { holder, force };
    // To register is a change, too.
    let found = look(at, of).await?;
    register(at, RegisterAction::Register, key).await.map_err(|error| of.failed(error, PERSISTENT))?;
    let mut may_have_it = false;
    let taken = preempt(at, key, of, (found, &mut may_have_it)).await;
    if taken.is_err() && !may_have_it {
        // The connection may be what has failed: nothing more can be done then.
        let _ = register(at, RegisterAction::Unregister, key).await;
    }
    taken
}

/// Gives up the reservation, and every registration with it.
pub(crate) async fn clear(at: &impl Reservations, key: u64) -> Result<(), device::Error> {
    let command = ReservationCommand::Release { action: ReleaseAction::Clear, rtype: Some(EXCLUSIVE) };
    at.reserve(command, &key.to_le_bytes()).await
}

const PERSISTENT: &str = "reservations that survive power loss";

#[derive(Clone, Copy)]
struct Of<'a> {
    holder: &'a str,
    force: bool,
}

impl Of<'_> {
    fn conflict(self) -> device::Error {
        device::Error::Reserved(self.holder.to_owned())
    }

    /// What another program has reserved is not taken, nor what nobody has reserved where another program is registered to: with
    /// this host's reservation it would be locked out.
    fn check(self, head: &ReservationStatus, found: &Found) -> Result<(), Error> {
        let by = match found.holder {
            _ if self.force => return Ok(()),
            Some(key) if !is_volumes(key) => {
                let rtype =
                    ReservationType::from_code(head.rtype).map_or("unknown type".into(), |rtype| rtype.to_string());
                format!("{rtype}, key {key:#x}")
            }
            Some(_) => return Ok(()),
            None => match found.keys().find(|key| !is_volumes(*key)) {
                Some(key) => format!("no reservation yet, but key {key:#x} is registered"),
                None => return Ok(()),
            },
        };
        Err(Error::Foreign { holder: self.holder.to_owned(), by })
    }

    fn lacks(self, what: &'static str) -> Error {
        Error::Lacks { holder: self.holder.to_owned(), what }
    }

    /// What a target refuses that does not know `what` (Invalid Field, Invalid Opcode). Any other status may pass.
    fn failed(self, error: device::Error, what: &'static str) -> Error {
        let invalid = Status::INVALID_FIELD.name().unwrap_or_default();
        match error {
            device::Error::Unsupported(_) => self.lacks(what),
            device::Error::Status(status) if status.starts_with(invalid) => self.lacks(what),
            source => Error::Device { holder: self.holder.to_owned(), source },
        }
    }
}

async fn register(at: &impl Reservations, action: RegisterAction, key: u64) -> Result<(), device::Error> {
    let (persist, keys) = match action {
        RegisterAction::Unregister => (PersistChange::Keep, RegisterKeys { current: key.into(), new: 0.into() }),
        _ => (PersistChange::Set, RegisterKeys { current: 0.into(), new: key.into() }),
    };
    at.reserve(ReservationCommand::Register { action, ignore_key: false, persist }, keys.as_bytes()).await
}

/// Who has the reservation, and who is registered, where it may be taken.
struct Found {
    holder: Option<u64>,
    registrants: Vec<RegisteredController>,
}

impl Found {
    fn keys(&self) -> impl Iterator<Item = u64> {
        self.registrants.iter().map(|entry| entry.key.get())
    }
}

async fn look(at: &impl Reservations, of: Of<'_>) -> Result<Found, Error> {
    let (head, registrants) = at.report().await.map_err(|error| of.failed(error, "a report of reservations"))?;
    let found = Found { holder: holder_of(&head, &registrants), registrants };
    of.check(&head, &found)?;
    Ok(found)
}

/// `found`: before this host registered. `may_have_it`: whether the reservation may be ours when it ends.
async fn preempt(
    at: &impl Reservations,
    key: u64,
    of: Of<'_>,
    (mut found, may_have_it): (Found, &mut bool),
) -> Result<(), Error> {
    let mut last = of.conflict();
    for tried in 0..TRIES_MAX {
        if tried > 0 {
            time::sleep_within(PAUSE).await;
            found = look(at, of).await?;
        }
        let holder = found.holder;
        let (action, what) = match holder {
            Some(_) => (AcquireAction::PreemptAndAbort, "Preempt and Abort of reservations"),
            None => (AcquireAction::Acquire, "reservations for exclusive access"),
        };
        let acquired = acquire(at, action, key, holder.unwrap_or(0)).await;
        *may_have_it |= acquired.as_ref().map_or_else(device::Error::outcome_unknown, |()| true);
        match acquired {
            Ok(()) if has(at, key, of).await? => {
                clear_away(at, key, &found).await;
                return Ok(());
            }
            // Another host was quicker.
            Ok(()) => (last, *may_have_it) = (of.conflict(), false),
            Err(error @ device::Error::Reserved(_)) => last = error,
            // There are no holders by 0 any more, if another host has preempted them all; or the target knows none.
            Err(error) if holder == Some(0) => last = error,
            Err(error) => return Err(of.failed(error, what)),
        }
    }
    Err(of.failed(last, "Preempt and Abort of a reservation that all registrants hold"))
}

/// The key by which who holds the reservation is preempted. Where all registrants hold it that is 0 (NVMe Base 2.0 §8.19.7): by
/// any other only who has that key is.
fn holder_of(head: &ReservationStatus, registrants: &[RegisteredController]) -> Option<u64> {
    match ReservationType::from_code(head.rtype) {
        Some(rtype) if rtype.is_all_registrants() => Some(0),
        _ => registrants.iter().find(|entry| entry.status & 1 == 1).map(|entry| entry.key.get()),
    }
}

/// Whether the reservation is ours, and what it is to be. False: another host has it.
async fn has(at: &impl Reservations, key: u64, of: Of<'_>) -> Result<bool, Error> {
    let (head, registrants) = at.report().await.map_err(|error| of.failed(error, "a report of reservations"))?;
    match holder_of(&head, &registrants) {
        Some(holder) if holder == key && head.rtype != EXCLUSIVE.code() => {
            Err(of.lacks("reservations for exclusive access"))
        }
        Some(holder) if holder == key && head.persist != 1 => Err(of.lacks(PERSISTENT)),
        holder => Ok(holder == Some(key)),
    }
}

/// Takes the reservation, from the holder of this key.
async fn acquire(at: &impl Reservations, action: AcquireAction, key: u64, from: u64) -> Result<(), device::Error> {
    let keys = AcquireKeys { current: key.into(), preempt: from.into() };
    at.reserve(ReservationCommand::Acquire { action, rtype: EXCLUSIVE }, keys.as_bytes()).await
}

/// Connections that registered and never came to hold the reservation leave their keys behind. A host that is just about to take
/// it loses its key, too, and begins anew. What another program has registered is that program's to take back.
async fn clear_away(at: &impl Reservations, key: u64, found: &Found) {
    let is_stale = |other: &u64| *other != key && Some(*other) != found.holder && is_volumes(*other);
    let others: Vec<u64> = found.keys().filter(is_stale).collect();
    if others.len() <= STALE_MAX {
        return;
    }
    for other in others {
        if let Err(error) = acquire(at, AcquireAction::Preempt, key, other).await {
            tracing::debug!(%error, "the key of a connection that is gone stays registered");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use zerocopy::{FromBytes, FromZeros};

    use super::*;

    /// A target of another vendor, with what it does in its own way.
    #[derive(Default)]
    struct Fake {
        registered: RefCell<Vec<u64>>,
        holder: RefCell<Option<u64>>,
        /// What Preempt and Abort is answered with.
        refuses: Option<Status>,
        forgets: bool,
        rtype: u8,
        /// It says Success, and gives the reservation to nobody.
        does_nothing: bool,
        /// Reports that it answers.
        reports: Cell<Option<u32>>,
        /// All registrants hold the reservation, until another host has preempted them: that is when this one tries to.
        is_raced: Cell<bool>,
    }

    impl Reservations for Fake {
        async fn reserve(&self, command: ReservationCommand, keys: &[u8]) -> Result<(), device::Error> {
            match command {
                ReservationCommand::Register { action: RegisterAction::Register, .. } => {
                    let keys = RegisterKeys::read_from_bytes(keys).expect("two keys");
                    self.registered.borrow_mut().push(keys.new.get());
                }
                ReservationCommand::Register { .. } => {
                    let keys = RegisterKeys::read_from_bytes(keys).expect("two keys");
                    self.registered.borrow_mut().retain(|&key| key != keys.current.get());
                    self.holder.borrow_mut().take_if(|holder| *holder == keys.current.get());
                }
                ReservationCommand::Acquire { .. } if self.is_raced.take() => {
                    let invalid = Status::INVALID_FIELD.do_not_retry();
                    return Err(device::Error::Status(invalid.to_string()));
                }
                ReservationCommand::Acquire { action: AcquireAction::PreemptAndAbort, .. }
                    if self.refuses.is_some() =>
                {
                    return Err(device::Error::Status(
                        self.refuses.map_or_else(String::new, |status| status.to_string()),
                    ));
                }
                ReservationCommand::Acquire { action: AcquireAction::Preempt, .. } => {
                    let keys = AcquireKeys::read_from_bytes(keys).expect("two keys");
                    self.registered.borrow_mut().retain(|&key| key != keys.preempt.get());
                }
                ReservationCommand::Acquire { .. } if !self.does_nothing => {
                    let keys = AcquireKeys::read_from_bytes(keys).expect("two keys");
                    self.holder.replace(Some(keys.current.get()));
                }
                _ => {}
            }
            Ok(())
        }

        async fn report(&self) -> Result<Report, device::Error> {
            if let Some(left) = self.reports.get() {
                let fewer = left.checked_sub(1).ok_or_else(|| device::Error::Status("told to fail".into()))?;
                self.reports.set(Some(fewer));
            }
            let holder = *self.holder.borrow();
            let mut head = ReservationStatus::new_zeroed();
            head.rtype = match holder {
                _ if self.is_raced.get() => ReservationType::ExclusiveAccessAll.code(),
                Some(_) => self.rtype,
                None => 0,
            };
            head.persist = u8::from(!self.forgets);
            let entry = |&key: &u64| {
                let mut entry = RegisteredController::new_zeroed();
                (entry.key, entry.status) = (key.into(), u8::from(holder == Some(key)));
                entry
            };
            Ok((head, self.registered.borrow().iter().map(entry).collect()))
        }
    }

    /// Takes a reservation that another host has. What came of it, who is registered then, and who holds it.
    fn taken(fake: Fake) -> (Result<(), String>, Vec<u64>, Option<u64>) {
        let world = engine::sim::World::new(1, engine::sim::SimConfig::default());
        world
            .run_until(async move {
                fake.registered.borrow_mut().push(7);
                fake.holder.replace(Some(7));
                let taken = take(&fake, 9, "it", true).await.map_err(|error| error.to_string());
                (taken, fake.registered.take(), fake.holder.take())
            })
            .unwrap_or_else(|stalled| panic!("{stalled}"))
    }

    fn honest() -> Fake {
        Fake { rtype: EXCLUSIVE.code(), ..Fake::default() }
    }

    #[test]
    fn what_a_target_did_is_looked_at() {
        assert_eq!(taken(honest()), (Ok(()), vec![7, 9], Some(9)));
        let lacks = |fake: Fake, what: &str, holder: u64| {
            let (taken, registered, holds) = taken(fake);
            assert!(taken.as_ref().is_err_and(|error| error.contains(what)), "{what}: {taken:?}");
            let expected = if holder == 7 { vec![7] } else { vec![7, 9] };
            assert_eq!((registered, holds), (expected, Some(holder)), "{what}: who is registered, and who has it");
        };
        let refused = |status| Fake { refuses: Some(status), ..honest() };
        lacks(refused(Status::INVALID_FIELD.do_not_retry()), "does not offer Preempt and Abort", 7);
        lacks(refused(Status::NAMESPACE_NOT_READY), "answered with status Namespace Not Ready", 7);
        lacks(Fake { forgets: true, ..honest() }, "survive power loss", 9);
        lacks(Fake { rtype: ReservationType::WriteExclusive.code(), ..honest() }, "exclusive access", 9);
        lacks(Fake { does_nothing: true, ..honest() }, "Reservation Conflict", 7);
    }

    /// It unregistered, and so gave up what it had got: late commands of hosts before passed.
    #[test]
    fn who_fails_with_the_reservation_keeps_it() {
        let (taken, registered, holds) = taken(Fake { reports: Cell::new(Some(1)), ..honest() });
        assert!(taken.as_ref().is_err_and(|error| error.contains("told to fail")), "{taken:?}");
        assert_eq!((registered, holds), (vec![7, 9], Some(9)));
    }

    /// The keys of connections that are gone went, and with them all that other programs had registered.
    #[test]
    fn what_other_programs_have_registered_stays_and_keeps_an_unreserved_namespace_from_volumes() {
        let own = |number: u64| KEY_PREFIX | number;
        let stale = 1..=STALE_MAX as u64 + 1;
        let take = |holder: Option<u64>, foreign: Vec<u64>, force: bool| {
            let fake = honest();
            fake.registered.borrow_mut().extend(holder.into_iter().chain(foreign).chain(stale.clone().map(own)));
            fake.holder.replace(holder);
            let world = engine::sim::World::new(1, engine::sim::SimConfig::default());
            let taken = world.run_until(async move {
                let taken = super::take(&fake, own(99), "it", force).await;
                (taken, fake.registered.take())
            });
            taken.unwrap_or_else(|stalled| panic!("{stalled}"))
        };
        let all: Vec<u64> = [5].into_iter().chain(stale.clone().map(own)).collect();
        let (refused, left) = take(None, vec![5], false);
        let is_named = matches!(&refused, Err(Error::Foreign { by, .. }) if by.contains("key 0x5 is registered"));
        assert!(is_named && left == all, "{refused:?}, {left:x?}");
        // By force, and beside the reservation of a host of a volume.
        for (holder, force, expected) in [(None, true, vec![5]), (Some(own(50)), false, vec![own(50), 5])] {
            let (taken, mut left) = take(holder, vec![5], force);
            assert!(taken.is_ok(), "{taken:?}");
            assert_eq!(left.pop(), Some(own(99)));
            assert_eq!(left, expected, "the stale ones are gone, and nobody else's");
        }
        let (taken, left) = take(None, vec![], false);
        assert_eq!((taken.is_ok(), left), (true, vec![own(99)]));
    }

    /// The target was said not to offer Preempt and Abort, and was left for a minute.
    #[test]
    fn who_is_quicker_with_what_all_registrants_held_has_won_that_alone() {
        assert_eq!(taken(Fake { is_raced: Cell::new(true), ..honest() }), (Ok(()), vec![7, 9], Some(9)));
    }
}
