//! Reservations of one namespace among all connections of the process (NVMe Base 2.0 §8.19).
//!
//! ```text
//!  Reservation Register, Acquire, Release, or the persistence feature
//!    └─ change: one at a time per namespace
//!         1 new state  ─►  2 made durable (PTPL)  ─►  3 published  ─►  4 notices  ─►  5 drained, answer
//!  every other command: looks at what is published when its capsule arrives, and again when it begins
//! ```
//! Invariants:
//! - A command begins only if what is published at that moment admits it. While no reservation is held, looking costs one
//!   load; while one is held, one load and a comparison: each connection keeps what it may do until something changes.
//! - Drained: when a change is answered, no command is executing that began under rights which the change has taken away.
//!   So what a host reads after it has fenced another is what stays. The specification asks for less (only of Preempt and
//!   Abort that commands under way are dealt with): with it, a late write of the fenced host could follow the answer.
//! - Of the commands of a preempted host that had not begun, Preempt and Abort ends each with Command Aborted due to Preempt
//!   and Abort; those that had begun run to their end (a medium can't be told to stop) before the answer leaves.
//! - With PTPL set, a state is durable before it is published, so no host ever acts on one that a crash undoes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{AnyNamespace, Mode, Namespace, RangeGuard, RangeLocks};
use engine::Buf;
use nvme::Status;
use nvme::reservation::{
    Access, AcquireKeys, NOTIFICATION_MASK, NotificationType, RegisterKeys, RegisteredController, ReleaseKey,
    ReservationCommand, ReservationNotification, ReservationStatus,
};
use nvme::{CONTROLLER_ID_DYNAMIC, NSID_ALL, Submission};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::controller::Controller;
use super::drain::{Drain, drain};
use super::io::{self, Plan};
use super::limits::TRANSFER_BYTES_MAX;
use super::shared::{Attached, Shared};
use super::turn::Keep;

mod queue;
mod record;
mod state;

use state::State;
pub(super) use state::{Change, HostId};

/// Notifications that wait on a controller to be read. Chosen as the Linux target has it; beyond it the oldest is lost, which
/// the gap in the count tells (NVMe Base 2.0 §5.16.1.24).
const NOTIFICATIONS_MAX: usize = 64;
/// The attribute of a namespace in which its reservations are kept.
const ATTRIBUTE: &str = "reservations";
/// Data that a command with keys may bring. Chosen: a page.
const KEYS_ROOM_MAX: u32 = 4096;

/// The reservation state of a namespace, shared by everybody who uses it.
pub(super) struct Reservations {
    /// 0: no reservation is held. Else it moves with every change.
    version: AtomicU64,
    published: Mutex<Published>,
    /// Held while a change is made, across its waits.
    turn: Arc<RangeLocks>,
    /// The Reservation Notification Mask feature.
    mask: AtomicU32,
}

struct Published {
    state: State,
    changes: u64,
    /// The record that is kept with the namespace; `None`: not known, a write of it has failed.
    kept: Option<Vec<u8>>,
}

/// What a connection may do with a namespace, as of a version.
#[derive(Clone, Copy, Default)]
pub(super) struct Rights {
    version: u64,
    access: Access,
}

impl Reservations {
    /// Those that were kept with a namespace; the error says why they can't be read.
    pub fn kept_with(namespace: &AnyNamespace) -> Result<Reservations, String> {
        let kept = namespace.attribute(ATTRIBUTE).map_err(|error| error.to_string())?.unwrap_or_default();
        let state = record::decode(&kept)?;
        let changes = u64::from(state.held.is_some());
        Ok(Reservations {
            version: AtomicU64::new(changes),
            published: Mutex::new(Published { state, changes, kept: Some(kept) }),
            turn: Arc::new(RangeLocks::new(0)),
            mask: AtomicU32::new(0),
        })
    }

    /// A panic while the lock was held leaves a state that is whole: it is replaced in one assignment.
    fn lock(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `host` may do what is wanted. `rights` is what the caller knew last, and is brought up to date.
    pub fn admits(&self, rights: &mut Rights, host: &HostId, wanted: Access) -> bool {
        // Acquire: pairs with the release in `publish`; see `drain` for what is under way at that moment.
        let version = self.version.load(Ordering::Acquire);
        if version == 0 {
            return true;
        }
        if rights.version != version {
            let published = self.lock();
            *rights = Rights { version: self.version.load(Ordering::Relaxed), access: published.state.access(host) };
        }
        rights.access.covers(wanted)
    }

    /// While this is held the reservation stays as it is: whoever changes it waits. Nothing that a change waits for, as commands
    /// on the namespace that execute, may wait for who holds it.
    pub async fn hold(&self) -> RangeGuard {
        self.turn.lock(0, 1, Mode::Shared).await
    }

    /// Whether a host of another name has registered with this one's identifier.
    pub fn collide(&self, host: &HostId) -> bool {
        self.lock().state.registrants.iter().any(|registrant| registrant.host.collides(host))
    }

    /// Reservation Report, extended (NVMe Base 2.0 §7.5): a host has one entry, as all our controllers are dynamic.
    pub fn report(&self) -> Vec<u8> {
        let published = self.lock();
        let state = &published.state;
        let mut head = ReservationStatus::new_zeroed();
        head.generation = state.generation.into();
        head.rtype = state.held.map_or(0, |held| held.rtype.code());
        head.controllers = (state.registrants.len() as u16).into();
        head.persist = state.persist.into();
        let mut page = head.as_bytes().to_vec();
        for registrant in &state.registrants {
            let mut entry = RegisteredController::new_zeroed();
            entry.cntlid = CONTROLLER_ID_DYNAMIC.into();
            entry.status = state.is_holder(&registrant.host).into();
            entry.key = registrant.key.into();
            entry.host_id = registrant.host.id;
            page.extend_from_slice(entry.as_bytes());
        }
        page
    }

    /// The Reservation Notification Mask feature (NVMe Base 2.0 §5.27.1.26).
    pub fn mask(&self) -> u32 {
        self.mask.load(Ordering::Relaxed)
    }

    /// Sets it; false where a bit means nothing.
    pub fn set_mask(&self, mask: u32) -> bool {
        let known = mask & !NOTIFICATION_MASK == 0;
        if known {
            self.mask.store(mask, Ordering::Relaxed);
        }
        known
    }

    /// The Persist Through Power Loss state (NVMe Base 2.0 §5.27.1.27).
    pub fn persists(&self) -> bool {
        self.lock().state.persist
    }

    fn publish(&self, state: State) {
        let mut published = self.lock();
        published.changes += 1;
        let version = if state.held.is_some() { published.changes } else { 0 };
        published.state = state;
        self.version.store(version, Ordering::Release);
    }
}

/// What a reservation command needs before it can run (NVMe Base 2.0 §7.2 to §7.5).
pub(super) fn plan(command: &Submission, capsule_bytes: u32) -> Result<Plan, Status> {
    let asked = ReservationCommand::from_submission(command).ok_or(Status::INVALID_FIELD.do_not_retry())?;
    if let ReservationCommand::Report { bytes, extended } = asked {
        if !extended {
            // Over fabrics a Host Identifier has 128 bits, for which the short structures have no room.
            return Err(Status::HOST_ID_INCONSISTENT.do_not_retry());
        }
        let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes <= TRANSFER_BYTES_MAX);
        let bytes = bytes.ok_or(Status::INVALID_FIELD.do_not_retry())?;
        return io::check_to_host(command, bytes).map(|()| Plan::Read(bytes));
    }
    // Hosts may send more than the keys: older Linux has one buffer of 16 bytes for all three commands.
    let room = command.sgl.length.get();
    if !(asked.data_bytes()..=KEYS_ROOM_MAX).contains(&room) {
        return Err(Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
    }
    io::plan_from_host(command, room, capsule_bytes)
}

/// What a command asks for; its data is complete, as [`plan`] has seen to.
pub(super) enum Asked {
    /// A report of this many bytes.
    Report(usize),
    /// A change.
    Change(Change),
}

/// Reads a command that [`plan`] has accepted.
pub(super) fn asked(command: &Submission, data: &[u8]) -> Result<Asked, Status> {
    let short = Status::DATA_SGL_LENGTH_INVALID.do_not_retry();
    let asked = ReservationCommand::from_submission(command).ok_or(Status::INVALID_FIELD.do_not_retry())?;
    Ok(Asked::Change(match asked {
        ReservationCommand::Register { action, ignore_key, persist } => {
            let (keys, _) = RegisterKeys::read_from_prefix(data).map_err(|_| short)?;
            Change::Register { action, ignore_key, persist, current: keys.current.get(), new: keys.new.get() }
        }
        ReservationCommand::Acquire { action, rtype } => {
            let (keys, _) = AcquireKeys::read_from_prefix(data).map_err(|_| short)?;
            Change::Acquire { action, rtype, current: keys.current.get(), preempt: keys.preempt.get() }
        }
        ReservationCommand::Release { action, rtype } => {
            let (key, _) = ReleaseKey::read_from_prefix(data).map_err(|_| short)?;
            Change::Release { action, rtype, current: key.current.get() }
        }
        ReservationCommand::Report { bytes, .. } => return Ok(Asked::Report(bytes as usize)),
    }))
}

/// A reservation command, or a change of the persistence feature, on its way.
pub(super) struct Request {
    pub shared: Arc<Shared>,
    /// Whose it is, and of what: of one, or of the feature there may be more.
    pub found: Result<(Arc<Controller>, Vec<Attached>), Status>,
    /// The command is for all namespaces (NSID FFFFFFFFh).
    pub of_all: bool,
    pub asked: Result<Asked, Status>,
}

impl Request {
    /// Carries it out; the status and the data for the host that asked.
    pub async fn execute(self, keep: Keep) -> (Status, Buf) {
        match self.run(keep).await {
            Ok(data) => (Status::SUCCESS, data),
            Err(status) => (status, Buf::default()),
        }
    }

    async fn run(self, keep: Keep) -> Result<Buf, Status> {
        let (controller, namespaces) = self.found?;
        match self.asked? {
            Asked::Change(change) => {
                // All namespaces means those that can (NVMe Base 2.0c §5.27.1.27): one that keeps nothing over power loss must
                // not stop the change half way through the others.
                let of_all = change == Change::Persist(true) && self.of_all;
                for attached in namespaces.into_iter().filter(|found| !of_all || found.info.persists_attributes) {
                    let _own = controller.may_wait(attached.nsid).await;
                    let turn = attached.reservations.turn.lock(0, 1, Mode::Exclusive).await;
                    check(&self.shared, &controller, &attached, change)?;
                    let (shared, host) = (self.shared.clone(), controller.host_id());
                    keep(Box::pin(async move {
                        let _turn = turn;
                        make(&shared, &attached, host, change).await.map(|()| 0)
                    }))
                    .await?;
                }
                Ok(Buf::default())
            }
            Asked::Report(bytes) => {
                // Beyond the report's end there are zeroes, as in a log page.
                let mut data = Buf::zeroed(bytes);
                for attached in &namespaces {
                    let report = attached.reservations.report();
                    let taken = bytes.min(report.len());
                    data[..taken].copy_from_slice(&report[..taken]);
                }
                Ok(data)
            }
        }
    }
}

/// Whether a change may begin whose turn has come: that may have taken long, and a host that has lost the namespace, or is let in
/// no more, must not come to hold it.
fn check(shared: &Shared, controller: &Controller, attached: &Attached, change: Change) -> Result<(), Status> {
    controller.check_there()?;
    let now =
        shared.namespaces(controller).into_iter().find(|now| (now.nsid, now.life) == (attached.nsid, attached.life));
    let now = now.ok_or(Status::INVALID_NAMESPACE.do_not_retry())?;
    // Features are no namespace's commands.
    let refusal = now.access.refusal().filter(|_| !matches!(change, Change::Persist(_)));
    refusal.map_or(Ok(()), Err)
}

/// Makes one change, alone on its namespace.
async fn make(shared: &Shared, attached: &Attached, host: HostId, change: Change) -> Result<(), Status> {
    let reservations = &attached.reservations;
    let before = reservations.lock().state.clone();
    let mut after = before.clone();
    let effects = after.apply(host, change, attached.info.persists_attributes)?;
    keep(&attached.namespace, reservations, &after).await?;
    reservations.publish(after.clone());
    let watchers = shared.watchers(reservations);
    let how = |host: &HostId| {
        let lost = !after.access(host).covers(before.access(host));
        if effects.aborted.contains(host) { Some(Drain::Abort) } else { lost.then_some(Drain::Finish) }
    };
    // Before the wait, which the connection of the host that asks may not survive: what is published is a fact, and whoever
    // has lost by it must not depend on somebody else's connection to hear of it.
    let mask = reservations.mask();
    for (told, kind) in effects.notices.iter().filter(|(_, kind)| mask & kind.mask_bit() == 0) {
        for (controller, nsid) in watchers.iter().filter(|(controller, _)| controller.host_id() == *told) {
            controller.reservation_notice(*nsid, *kind);
        }
    }
    drain(&watchers, how).await;
    Ok(())
}

/// Makes durable what is to survive power loss. After a failure the old state goes on, and what is kept is not known: the next
/// change writes in any case. (A target that starts anew before that may find the new state: its outcome was never told.)
async fn keep(namespace: &AnyNamespace, reservations: &Reservations, state: &State) -> Result<(), Status> {
    let record = record::encode(state);
    let kept = reservations.lock().kept.take();
    if kept.as_ref() != Some(&record) {
        let stored = namespace.set_attribute(ATTRIBUTE, &record).await;
        stored.map_err(|error| {
            tracing::error!(%error, "a reservation could not be made durable, and so was not made");
            io::status_of(&error)
        })?;
    }
    reservations.lock().kept = Some(record);
    Ok(())
}

// The features (NVMe Base 2.0 §5.27.1.26, §5.27.1.27): each namespace has a value of its own.

/// The namespaces that a command is for: one, or all.
fn of_command(shared: &Shared, controller: &Controller, command: &Submission) -> Result<Vec<Attached>, Status> {
    let nsid = command.nsid.get();
    let mut found = shared.namespaces(controller);
    found.retain(|attached| nsid == NSID_ALL || attached.nsid == nsid);
    if found.is_empty() { Err(Status::INVALID_NAMESPACE.do_not_retry()) } else { Ok(found) }
}

/// The one that a Get Features command is for.
pub(super) fn of_namespace(
    shared: &Shared,
    controller: &Controller,
    command: &Submission,
) -> Result<Arc<Reservations>, Status> {
    let invalid = Status::INVALID_NAMESPACE.do_not_retry();
    of_command(shared, controller, command)?.into_iter().next().map(|attached| attached.reservations).ok_or(invalid)
}

/// Set Features, Reservation Notification Mask.
pub(super) fn set_notification_mask(
    shared: &Shared,
    controller: &Controller,
    command: &Submission,
) -> Result<(), Status> {
    let found = of_command(shared, controller, command)?;
    let set = found.iter().all(|attached| attached.reservations.set_mask(command.cdw11.get()));
    if set { Ok(()) } else { Err(Status::INVALID_FIELD.do_not_retry()) }
}

/// The notifications of one controller that its host has not read (NVMe Base 2.0 §5.16.1.24).
#[derive(Default)]
pub(super) struct Notifications {
    queue: VecDeque<ReservationNotification>,
    count: u64,
}

impl Notifications {
    pub fn push(&mut self, nsid: u32, kind: NotificationType) {
        self.count = self.count.wrapping_add(1).max(1); // 0 marks the empty page
        let mut page = ReservationNotification::new_zeroed();
        page.count = self.count.into();
        page.kind = kind.0;
        page.nsid = nsid.into();
        if self.queue.len() == NOTIFICATIONS_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back(page);
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The oldest, which is forgotten if `clear`; the empty page where there is none.
    pub fn read(&mut self, clear: bool) -> ReservationNotification {
        let Some(mut page) = self.queue.front().copied() else { return ReservationNotification::new_zeroed() };
        page.available = (self.queue.len() - 1).min(0xFF) as u8;
        if clear {
            self.queue.pop_front();
        }
        page
    }
}
