//! A controller: what one association has agreed and may do (NVMe Base 2.0 §3.1).
//!
//! Invariants:
//! - A controller lives as long as its admin connection. When that ends, [`Controller::end`] wakes every I/O connection of
//!   the association, and each of them closes: a command must not take effect after its association has ended.
//! - A controller reset (CC.EN 1 → 0) moves [`Controller::io_epoch`]; I/O connections of an older epoch close. CSTS.RDY follows
//!   when all of them have gone: what the host sends over its next association must not be followed by an old command.
//! - An event is told at most once until the host has read the log page that belongs to it; what changes meanwhile is in
//!   that page.
//!
//! Its lock is held for a few field accesses only and no other lock is taken under it, save the one of a waker's place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Mode, RangeGuard, RangeLocks};
use engine::time::Instant;
use nvme::log::ErrorEntry;
use nvme::register::{Configuration, status_bits};
use nvme::{Nqn, Status, Submission};

use super::attention::Attention;
use super::config::PortId;
use super::end::End;
use super::error_log::ErrorLog;
use super::features::Features;
use super::guests::Standing;
use super::keep_alive::KeepAlive;
use super::limits::{DISCOVERY_IDLE_TIME_MAX, IO_QUEUES_MAX};
use super::reservation::{HostId, Notifications};

mod notices;

/// CSTS.SHST 01b: shutdown processing occurring.
const SHUTDOWN_PROCESSING: u32 = 1 << 2;

/// What writing CC asks the connection to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConfigurationChange {
    None,
    /// Make everything stable, then call [`Controller::shutdown_complete`].
    Shutdown,
}

struct State {
    configuration: Configuration,
    status: u32,
    keep_alive: KeepAlive,
    features: Features,
    /// An I/O queue was connected since the controller was enabled.
    queues_made: bool,
    queues: BTreeMap<u16, Arc<Attention>>,
    /// I/O queues of before the reset are still there: CSTS.RDY stays 1.
    resetting: bool,
    health_event: Event,
    reliability_event: Event,
    namespace_event: Event,
    ana_event: Event,
    discovery_event: Event,
    reservation_event: Event,
    notifications: Notifications,
    changed: BTreeSet<u32>,
    errors: ErrorLog,
}

/// Whether an event waits to be told, and whether it may be.
#[derive(Clone, Copy, Default)]
struct Event {
    pending: bool,
    masked: bool,
}

impl Event {
    fn raise(&mut self) {
        self.pending |= !self.masked;
    }

    fn tell(&mut self, enabled: bool) -> bool {
        let told = self.pending && enabled;
        if told {
            *self = Event { pending: false, masked: true };
        }
        told
    }
}

/// Whose controller it is, of what, and how it was reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub subsystem: Nqn,
    pub host: Nqn,
    pub host_id: [u8; 16],
    pub port: PortId,
    /// Over TLS. Part of the identity: a plain I/O queue must not join what a secure admin queue has made.
    pub secure: bool,
    /// The key for TLS, if authentication has made it. An I/O queue shows the same: what a key that was replaced since has made
    /// opens no queue of what the new one has.
    pub generated: Option<crate::psk::Identity>,
}

/// See the module.
pub(super) struct Controller {
    id: u16,
    identity: Identity,
    host_id: HostId,
    admin: Arc<Attention>,
    ended: AtomicBool,
    /// See [`Controller::is_let_in`].
    let_in: AtomicBool,
    io_epoch: AtomicU32,
    /// Hosts may enable all I/O command sets, and this one has.
    command_sets: bool,
    all_sets: AtomicBool,
    /// The host has disabled the volatile write cache: every write is made stable.
    write_through: AtomicBool,
    /// Held, by number of namespace, by the command that changes something of it, or waits for its turn to.
    changes: Arc<RangeLocks>,
    state: Mutex<State>,
}

impl Controller {
    pub fn new(
        id: u16,
        identity: Identity,
        standing: Standing,
        admin: Arc<Attention>,
        command_sets: bool,
    ) -> Controller {
        let unused_max = identity.subsystem.is_discovery().then_some(DISCOVERY_IDLE_TIME_MAX);
        let state = State {
            configuration: Configuration::default(),
            status: 0,
            keep_alive: KeepAlive::new(standing.keep_alive_ms_max(), unused_max),
            features: Features::DEFAULT,
            queues_made: false,
            queues: BTreeMap::new(),
            resetting: false,
            health_event: Event::default(),
            reliability_event: Event::default(),
            namespace_event: Event::default(),
            ana_event: Event::default(),
            discovery_event: Event::default(),
            reservation_event: Event::default(),
            notifications: Notifications::default(),
            changed: BTreeSet::new(),
            errors: ErrorLog::default(),
        };
        Controller {
            id,
            host_id: HostId::new(identity.host_id, &identity.host),
            command_sets: command_sets && !identity.subsystem.is_discovery(),
            all_sets: AtomicBool::new(false),
            identity,
            admin,
            ended: AtomicBool::new(false),
            let_in: AtomicBool::new(false),
            io_epoch: AtomicU32::new(0),
            write_through: AtomicBool::new(false),
            changes: Arc::new(RangeLocks::new(0)),
            state: Mutex::new(state),
        }
    }

    /// A panic while the lock was held leaves single fields that are each valid.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn id(&self) -> u16 {
        self.id
    }

    pub fn subsystem(&self) -> &Nqn {
        &self.identity.subsystem
    }

    pub fn host(&self) -> &Nqn {
        &self.identity.host
    }

    pub fn port(&self) -> PortId {
        self.identity.port
    }

    /// Whether it was reached over TLS.
    pub fn is_secure(&self) -> bool {
        self.identity.secure
    }

    pub fn is_discovery(&self) -> bool {
        self.identity.subsystem.is_discovery()
    }

    /// Its host as reservations know it.
    pub fn host_id(&self) -> HostId {
        self.host_id
    }

    /// Whether hosts may enable all I/O command sets (CAP.CSS bit 6).
    pub fn offers_all_sets(&self) -> bool {
        self.command_sets
    }

    /// Whether its host has enabled them (CC.CSS 110b).
    pub fn has_all_sets(&self) -> bool {
        self.all_sets.load(Ordering::Acquire)
    }

    /// Whether an I/O queue's Connect comes from the host that made the controller, over the same port.
    pub fn belongs_to(&self, identity: &Identity) -> bool {
        self.identity == *identity
    }

    /// Ends the association: every connection of it closes.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        for queue in self.lock().queues.values() {
            queue.raise();
        }
        self.admin.raise();
    }

    /// Lets every I/O queue look at what others have changed.
    pub fn wake_queues(&self) {
        for queue in self.lock().queues.values() {
            queue.raise();
        }
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Lets the one command of this controller wait for a turn of this namespace, 0 being all.
    pub async fn may_wait(&self, nsid: u32) -> RangeGuard {
        self.changes.lock(nsid.into(), 1, Mode::Exclusive).await
    }

    /// # Errors
    /// Its association has ended.
    pub fn check_there(&self) -> Result<(), Status> {
        if self.is_ended() { Err(Status::ABORTED_SQ_DELETION) } else { Ok(()) }
    }

    /// Whether its host has shown whatever it must. Until then the controller is nobody's: whoever has made it may only have
    /// named the host, and must neither get nor keep from it what is the host's.
    pub fn is_let_in(&self) -> bool {
        self.let_in.load(Ordering::Acquire)
    }

    /// Lets it in; false if it was before.
    pub fn let_in(&self) -> bool {
        !self.let_in.swap(true, Ordering::AcqRel)
    }

    pub fn io_epoch(&self) -> u32 {
        self.io_epoch.load(Ordering::Acquire)
    }

    // Queues.

    /// Takes an I/O queue's identifier for a connection; false if it is in use.
    pub fn add_queue(&self, qid: u16, attention: &Arc<Attention>) -> bool {
        debug_assert!((1..=IO_QUEUES_MAX).contains(&qid));
        let mut state = self.lock();
        if state.queues.contains_key(&qid) {
            return false;
        }
        state.queues.insert(qid, attention.clone());
        state.queues_made = true;
        true
    }

    /// The connection of an I/O queue.
    pub fn queue(&self, qid: u16) -> Option<Arc<Attention>> {
        self.lock().queues.get(&qid).cloned()
    }

    pub fn io_queues(&self) -> usize {
        self.lock().queues.len()
    }

    pub fn remove_queue(&self, qid: u16) {
        let mut state = self.lock();
        state.queues.remove(&qid);
        state.resetting &= !state.queues.is_empty();
    }

    // Properties (NVMe Base 2.0 §3.1.3).

    pub fn configuration(&self) -> Configuration {
        self.lock().configuration
    }

    /// CSTS. After a reset RDY is 1 until nothing of before the reset can begin any more (NVMe Base 2.0c §3.1.3.6, §3.7.2).
    pub fn status(&self) -> u32 {
        let state = self.lock();
        state.status | if state.resetting { status_bits::READY } else { 0 }
    }

    /// Whether commands and queues are accepted.
    pub fn is_ready(&self) -> bool {
        self.lock().status & status_bits::READY != 0
    }

    /// Writes CC (NVMe Base 2.0 §3.1.3.5, §3.5.1, §3.6.2).
    pub fn set_configuration(&self, new: Configuration, now: Instant) -> ConfigurationChange {
        let mut state = self.lock();
        let change = self.configure(&mut state, new, now);
        let shut_down = new.shutdown() != 0 || state.status & status_bits::SHUTDOWN_MASK != 0;
        let running = new.enabled() && state.status & status_bits::READY != 0 && !shut_down;
        state.keep_alive.run(running, now);
        change
    }

    fn configure(&self, state: &mut State, new: Configuration, now: Instant) -> ConfigurationChange {
        let old = std::mem::replace(&mut state.configuration, new);
        if new.enabled() && !old.enabled() {
            state.features.timestamp.reset(now);
            state.resetting = false;
            let entries = self.is_discovery() || (new.sq_entry_size() == 6 && new.cq_entry_size() == 4);
            let all_sets = new.command_set() == Configuration::ALL_COMMAND_SETS && self.command_sets;
            let sets = all_sets || new.command_set() == 0;
            let served = sets && new.memory_page_size() == 0 && new.arbitration() == 0;
            self.all_sets.store(all_sets, Ordering::Release);
            state.status = if entries && served { status_bits::READY } else { status_bits::FATAL };
        }
        if !new.enabled() && old.enabled() {
            state.status = 0;
            state.features = Features::DEFAULT;
            state.queues_made = false;
            // Nothing of before may mask an event: the host that starts anew has no reason to read the log first.
            state.health_event = Event::default();
            state.reliability_event = Event::default();
            state.namespace_event = Event::default();
            state.ana_event = Event::default();
            state.discovery_event = Event::default();
            state.reservation_event = Event { pending: !state.notifications.is_empty(), masked: false };
            self.write_through.store(false, Ordering::Release);
            self.io_epoch.fetch_add(1, Ordering::AcqRel);
            state.resetting = !state.queues.is_empty();
            for queue in state.queues.values() {
                queue.raise();
            }
        }
        if new.shutdown() != 0 && old.shutdown() == 0 {
            state.status = state.status & !status_bits::SHUTDOWN_MASK | SHUTDOWN_PROCESSING;
            return ConfigurationChange::Shutdown;
        }
        if new.shutdown() == 0 && old.shutdown() != 0 {
            state.status &= !status_bits::SHUTDOWN_MASK;
        }
        ConfigurationChange::None
    }

    /// Everything is stable: the host may cut the power. It may also have taken the shutdown back while caches were
    /// flushed; then there is nothing to complete, and the controller goes on.
    pub fn shutdown_complete(&self) {
        let mut state = self.lock();
        if state.status & status_bits::SHUTDOWN_MASK == SHUTDOWN_PROCESSING {
            state.status = state.status & !status_bits::SHUTDOWN_MASK | status_bits::SHUTDOWN_COMPLETE;
        }
    }

    // Keep alive (NVMe Base 2.0 §3.9).

    /// False if the timeout is over the bound.
    pub fn set_keep_alive(&self, timeout_ms: u32, now: Instant) -> bool {
        self.lock().keep_alive.set(timeout_ms, now)
    }

    pub fn keep_alive_ms(&self) -> u32 {
        self.lock().keep_alive.timeout_ms()
    }

    pub fn kept_alive(&self, now: Instant) {
        self.lock().keep_alive.heard(now);
    }

    /// A command has come. Without a keep alive timeout a discovery controller stays for as long as it is used: who wants it
    /// to stay, and to hear of changes, asks for a timeout (NVMe Base 2.0 §3.1.2.3, explicit persistent connection).
    pub fn used(&self, now: Instant) {
        self.lock().keep_alive.used(now);
    }

    pub fn keep_alive_deadline(&self) -> Option<Instant> {
        self.lock().keep_alive.deadline()
    }

    /// Whether the time has come, and what for.
    pub fn keep_alive_end(&self, now: Instant) -> Option<End> {
        let state = self.lock();
        let over = state.keep_alive.deadline().is_some_and(|deadline| now >= deadline);
        let reason = if state.keep_alive.is_running() { End::KeepAliveExpired } else { End::NotEnabled };
        over.then_some(reason)
    }

    // Features.

    pub fn features(&self) -> Features {
        self.lock().features.clone()
    }

    /// Whether an I/O queue was connected since the controller was enabled.
    pub fn queues_made(&self) -> bool {
        self.lock().queues_made
    }

    pub fn update_features(&self, update: impl FnOnce(&mut Features)) {
        update(&mut self.lock().features);
    }

    /// Sets the threshold over which, or under which, the temperature is critical; crossing it is an event.
    pub fn set_temperature_threshold(&self, over: bool, kelvin: u16) {
        let mut state = self.lock();
        let before = state.features.is_temperature_critical();
        match over {
            true => state.features.temperature_over = kelvin,
            false => state.features.temperature_under = kelvin,
        }
        if state.features.is_temperature_critical() && !before {
            state.health_event.raise();
        }
    }

    pub fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Acquire)
    }

    pub fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Release);
    }

    // Error log (NVMe Base 2.0 §5.16.1.2).

    /// Notes a command that failed.
    pub fn note_error(&self, qid: u16, command: &Submission, status: Status) {
        self.lock().errors.note(qid, command, status);
    }

    /// The latest errors first, and how many there were.
    pub fn errors(&self) -> (Vec<ErrorEntry>, u64) {
        self.lock().errors.read()
    }
}
