//! In-band authentication of a queue: what stands between its Connect and its first command (NVMe Base 2.0 §6.1, §6.2,
//! §8.13).
//!
//! Invariants:
//! - Until the host of a queue that must authenticate has done so, nothing but Authentication Send and Receive is executed
//!   on it: everything else gets Authentication Required. That holds for every queue on its own.
//! - A controller has nothing of its host's before its admin queue has authenticated: it is let in by that.
//! - An authentication that fails, or takes too long, ends the connection; also a repeated one on a queue in use.
//! - It counts only if the keys that it was begun with are the host's still when it is over: who has a key that was taken away
//!   gets nothing by a transaction that was begun before, neither a controller nor a key for TLS.
//! - What is computed for an authentication keeps no reactor from its other connections ([`engine::offload`]); a queue has one
//!   computation at a time.
//! - While the word of a failure is held back nothing else is done for its queue: it has an end that no message moves.
//! - Who guesses keys learns the result only after a pause, and then has to connect anew.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::time::Instant;
use engine::{Buf, offload};
use nvme::auth::{Failure, Fields, MESSAGE_BYTES_MAX, required};
use nvme::opcode::FabricsType;
use nvme::{Nqn, Status, Submission};

use super::config::{ConfigError, HostConfig, TargetConfig};
use super::connection::{Connection, Phase};
use super::controller::{Controller, Identity};
use super::end::End;
use super::io::{self, Plan};
use super::limits::{AUTHENTICATION_BEGIN_TIME_MAX, AUTHENTICATION_TIME_MAX, TERM_TIME_MAX};
use super::newcomers::Authenticating;
use super::secure::REFUSED;
use super::shared::{Refused, Shared};
use super::slots::Stage;
use super::terms::Terms;
use crate::auth::{ConcatenationPolicy, ControllerSide, GeneratedPsk, HostKeys, Names, Verdict};
use crate::psk::TlsPsk;

/// How long the word that an authentication failed is held back. Chosen: no host notices it, and a guesser has one try a
/// second for each connection.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// How long a queue may be there whose host does not authenticate. Derived: a failure at the last moment, its pause, and the time
/// that the host has to close.
#[cfg(any(test, feature = "testing"))]
pub(crate) const UNAUTHENTICATED_TIME_MAX: Duration =
    AUTHENTICATION_TIME_MAX.saturating_add(FAILURE_PAUSE).saturating_add(TERM_TIME_MAX);
/// Bytes that an Authentication Receive is answered with at most, padding included. Chosen: what the Linux host asks for.
const RECEIVE_BYTES_MAX: usize = 4096;
const _: () = assert!(MESSAGE_BYTES_MAX <= RECEIVE_BYTES_MAX);

/// See the module.
pub(super) struct Authentication {
    /// `None`: it is at work, see `computing`.
    side: Option<ControllerSide>,
    computing: Option<Computing>,
    /// The host has yet to show that it knows its key: the queue's place among those that wait for that.
    required: Option<Authenticating>,
    /// When the transaction under way must be over.
    time_limit: Option<Instant>,
    /// The same for a queue whose host has sent no message yet: it is over sooner.
    begin_limit: Option<Instant>,
    held: Option<Held>,
}

/// An Authentication Send whose message is looked at beside the reactor: an exchange over the larger groups takes longer than
/// many I/O commands together.
struct Computing {
    slot: u16,
    result: Arc<Mutex<Option<(ControllerSide, Verdict)>>>,
}

/// The answer to an Authentication Receive that tells of a failure, until its pause is over.
struct Held {
    slot: u16,
    until: Instant,
    message: Buf,
    failure: Failure,
}

impl Authentication {
    fn new(
        config: &TargetConfig,
        controller: &Controller,
        keys: Vec<HostKeys>,
        concatenation: ConcatenationPolicy,
    ) -> Authentication {
        let names = Names { host: controller.host().clone(), subsystem: controller.subsystem().clone() };
        let side = ControllerSide::new(names, keys, config.authentication.clone(), concatenation);
        Authentication {
            side: Some(side),
            computing: None,
            required: None,
            time_limit: None,
            begin_limit: None,
            held: None,
        }
    }

    /// When it is late.
    fn limit(&self) -> Option<Instant> {
        self.begin_limit.or(self.time_limit)
    }
}

impl Shared {
    /// Gives a host other keys: who authenticates from now on does so by these. What has authenticated goes on. Where the host had
    /// none, nothing has: what it is connected by was had by whoever gave its name, and ends.
    pub fn set_host_keys(&self, subsystem: &Nqn, host: &Nqn, keys: HostKeys) -> Result<(), ConfigError> {
        let mut state = self.lock();
        let found = state.subsystems.get_mut(subsystem).ok_or_else(|| ConfigError::NoSubsystem(subsystem.clone()))?;
        let had_keys = found.access.config(host).keys.is_some();
        if !found.access.set_keys(host, keys) {
            let (subsystem, host) = (subsystem.clone(), host.clone());
            return Err(ConfigError::NoHost { subsystem, host, any: found.access.any() });
        }
        if !had_keys {
            let own = state.controllers.values().filter(|own| own.subsystem() == subsystem && own.host() == host);
            own.for_each(|controller| controller.end());
        }
        // A key for TLS that the old ones have made and nobody uses yet would begin an association all the same. Under the lock, so
        // that none is put in afterwards, nor a controller listed by one in between. They may have made some for discovery, too.
        for subsystem in [subsystem, &Nqn::discovery()] {
            self.secure.forget_unused(host, subsystem);
        }
        Ok(())
    }

    /// Whether the keys that a controller's host has shown are its keys still; if so, the key for TLS that was made by them is
    /// kept. One step, under the lock under which keys are changed: whoever changes them forgets what the old ones have made, and
    /// must not find it put in afterwards.
    fn accept(&self, controller: &Controller, shown: Option<&HostKeys>, made: Option<TlsPsk>, now: Instant) -> bool {
        let state = self.lock();
        let keys = state.host_keys(controller.subsystem(), controller.host());
        let accepted = !controller.is_ended() && shown.is_some_and(|shown| keys.contains(shown));
        if let Some(made) = made.filter(|_| accepted) {
            self.secure.keep_generated(made, now);
        }
        accepted
    }

    pub fn host_config(&self, subsystem: &Nqn, host: &Nqn) -> HostConfig {
        self.lock().subsystems.get(subsystem).map_or_else(HostConfig::default, |found| found.access.config(host))
    }
}

impl Connection {
    /// Whether the host of a queue that is being connected has to authenticate: its place among those that have to.
    ///
    /// # Errors
    /// There is none at the moment.
    pub(super) fn place_to_authenticate(
        &self,
        terms: &Terms,
        identity: &Identity,
        now: Instant,
    ) -> Result<Option<Authenticating>, Refused> {
        if !terms.authenticate {
            return Ok(None);
        }
        let place = self.shared.newcomers.authenticate(self.origin.peer.ip(), &identity.host);
        if place.is_none() {
            let reason = format!("too many queues of {} or of this address have yet to authenticate", identity.host);
            self.shared.complaints.tell(now, &self.origin.peer, "Connect refused", &reason);
        }
        place.map(Some).ok_or(Refused::Busy)
    }

    /// A queue is connected: AUTHREQ of the answer says whether its host must authenticate. If not, its controller is let in.
    pub(super) fn begin_authentication(&mut self, place: Option<Authenticating>, now: Instant) -> u16 {
        let Some(controller) = &self.controller else { return 0 };
        if place.is_none() {
            self.let_in(now);
            return 0;
        }
        let keys = self.shared.lock().host_keys(controller.subsystem(), controller.host());
        let mut authentication = Authentication::new(&self.shared.config, controller, keys, self.concatenation());
        authentication.required = place;
        authentication.time_limit = Some(now + AUTHENTICATION_TIME_MAX);
        authentication.begin_limit = Some(now + AUTHENTICATION_BEGIN_TIME_MAX);
        self.authentication = Some(Box::new(authentication));
        required::AUTHENTICATION | if self.concatenation_required { required::SECURE_CHANNEL } else { 0 }
    }

    /// Lets the controller in, if no other host has come with its host's identifier meanwhile.
    fn let_in(&self, now: Instant) {
        let Some(controller) = &self.controller else { return };
        if self.shared.let_in(controller).is_err() {
            self.complain_of_identifier(controller.host(), now);
        }
    }

    /// A host has given the identifier of another one.
    pub(super) fn complain_of_identifier(&self, host: &Nqn, now: Instant) {
        let reason = "another host uses its host identifier (HOSTID), or has registered a reservation key with it";
        self.shared.complaints.tell(now, host, REFUSED, &reason);
    }

    /// What a command needs where authentication has a say in it; `None` where it has none.
    pub(super) fn plan_authentication(&self, command: &Submission, capsule_bytes: u32) -> Option<Result<Plan, Status>> {
        match kind(command) {
            Some(FabricsType::AUTHENTICATION_SEND) => Some(plan_send(command, capsule_bytes)),
            Some(_) => Some(Ok(Plan::Run)),
            None if self.authentication.as_ref().is_some_and(|authentication| authentication.required.is_some()) => {
                Some(Err(Status::AUTHENTICATION_REQUIRED.do_not_retry()))
            }
            None => None,
        }
    }

    /// Executes Authentication Send or Receive.
    pub(super) fn authenticate(&mut self, slot: u16, kind: FabricsType, now: Instant) {
        let Some(controller) = &self.controller else { return };
        if self.authentication.is_none() {
            let keys = self.shared.lock().host_keys(controller.subsystem(), controller.host());
            let authentication = Authentication::new(&self.shared.config, controller, keys, self.concatenation());
            self.authentication = Some(Box::new(authentication));
        }
        if self.authentication.as_ref().is_some_and(|authentication| authentication.held.is_some()) {
            return self.answer(slot, Status::SEQUENCE_ERROR.do_not_retry(), 0);
        }
        if kind == FabricsType::AUTHENTICATION_SEND {
            self.authentication_send(slot, now);
        } else {
            self.authentication_receive(slot, now);
        }
    }

    fn authentication_send(&mut self, slot: u16, now: Instant) {
        let entry = self.slots.at(slot);
        super::commands::align_in_capsule(entry);
        let payload = entry.data.to_vec();
        let Some(controller) = &self.controller else { return };
        let keys = || self.shared.lock().host_keys(controller.subsystem(), controller.host());
        let Some(authentication) = &mut self.authentication else { return };
        let Some(mut side) = authentication.side.take() else {
            // The one before it is not answered yet: no host sends so.
            return self.answer(slot, Status::SEQUENCE_ERROR.do_not_retry(), 0);
        };
        if !side.is_under_way() {
            side.set_keys(keys());
        }
        authentication.begin_limit = None;
        // It is the host that waits for our message from here on, and may do so once.
        authentication.time_limit.get_or_insert(now + AUTHENTICATION_TIME_MAX);
        let result = Arc::default();
        authentication.computing = Some(Computing { slot, result: Arc::clone(&result) });
        let attention = self.attention.clone();
        let offloaded = offload::offload(move || {
            // Whose connection has ended meanwhile has nothing to wait for.
            if Arc::strong_count(&result) > 1 {
                let verdict = side.send(&payload);
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some((side, verdict));
                attention.raise();
            }
        });
        self.slots.at(slot).stage = Stage::Executing;
        match offloaded {
            Ok(()) => self.poll_computing(now),
            Err(error) => {
                // The operator is told of the connection's end, within the bounds for that.
                tracing::debug!(%error, "an authentication is given up");
                self.fail_authentication(End::AuthenticationsBusy, now);
            }
        }
    }

    /// Takes the result of what was computed, if it is there.
    fn poll_computing(&mut self, now: Instant) {
        let Some(authentication) = &mut self.authentication else { return };
        let Some(computing) = &authentication.computing else { return };
        let slot = computing.slot;
        let result = computing.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((side, verdict)) = result else { return };
        authentication.computing = None;
        authentication.side = Some(side);
        self.answer(slot, Status::SUCCESS, 0);
        self.conclude(verdict, now);
    }

    fn authentication_receive(&mut self, slot: u16, now: Instant) {
        let command = self.slots.at(slot).command;
        let room = command.sgl.length.get() as usize;
        let fields = fields(&command);
        let asked = fields.length.get() as usize;
        if !fields.is_authentication() || asked == 0 {
            return self.answer(slot, Status::INVALID_FIELD.do_not_retry(), 0);
        }
        if let Err(status) = io::check_to_host(&command, asked.min(RECEIVE_BYTES_MAX) as u32) {
            return self.answer(slot, status, 0);
        }
        let Some(authentication) = &mut self.authentication else { return };
        authentication.time_limit.get_or_insert(now + AUTHENTICATION_TIME_MAX);
        let Some(side) = &mut authentication.side else {
            return self.answer(slot, Status::SEQUENCE_ERROR.do_not_retry(), 0);
        };
        let Ok((message, verdict)) = side.receive(asked.min(room)) else {
            return self.answer(slot, Status::INVALID_FIELD.do_not_retry(), 0);
        };
        // The whole of what was asked for: hosts take less for a fault of the transport.
        let mut padded = Buf::zeroed(asked.min(RECEIVE_BYTES_MAX));
        padded[..message.len()].copy_from_slice(&message);
        if let Verdict::Failed(failure) = verdict {
            authentication.held = Some(Held { slot, until: now + FAILURE_PAUSE, message: padded, failure });
            self.slots.at(slot).stage = Stage::Executing;
            return;
        }
        self.answer_data(slot, padded.freeze(), 0);
        self.conclude(verdict, now);
    }

    fn conclude(&mut self, verdict: Verdict, now: Instant) {
        let Some(authentication) = &mut self.authentication else { return };
        match verdict {
            Verdict::Pending => {}
            Verdict::Authenticated { bidirectional, psk } => {
                let Some(controller) = &self.controller else { return };
                let shown = authentication.side.as_ref().and_then(ControllerSide::shown);
                let made = psk.and_then(|psk| psk_for_tls(&psk, controller));
                if !self.shared.accept(controller, shown, made, now) {
                    if controller.is_ended() {
                        // That is the end, which is seen to as everybody's: no wrong key was shown.
                        return;
                    }
                    return self.fail_authentication(End::AuthenticationFailed(Failure::FAILED), now);
                }
                // Where there must be a secure channel this queue is of no more use: its host has the time that is left.
                if !self.concatenation_required {
                    authentication.required = None;
                    authentication.time_limit = None;
                    self.let_in(now);
                }
                self.shared.stats.authenticated.fetch_add(1, Relaxed);
                tracing::debug!(qid = self.queue.qid, bidirectional, "the host has authenticated itself");
            }
            Verdict::Failed(failure) => self.fail_authentication(End::AuthenticationFailed(failure), now),
        }
    }

    /// Ends the connection once the answers given so far are sent, or the host had the time to take them.
    fn fail_authentication(&mut self, end: End, now: Instant) {
        self.shared.stats.authentications_failed.fetch_add(1, Relaxed);
        self.finish(end);
        self.phase = Phase::Terminating;
        self.time_limit = now + TERM_TIME_MAX;
    }

    /// Looks at the time.
    pub(super) fn poll_authentication(&mut self, now: Instant) {
        self.poll_computing(now);
        let Some(authentication) = &mut self.authentication else { return };
        if let Some(held) = authentication.held.take_if(|held| now >= held.until) {
            self.answer_data(held.slot, held.message.freeze(), 0);
            return self.fail_authentication(End::AuthenticationFailed(held.failure), now);
        }
        let late = authentication.held.is_none() && authentication.limit().is_some_and(|limit| now >= limit);
        if late && self.phase == Phase::Live {
            (authentication.time_limit, authentication.begin_limit) = (None, None);
            self.fail_authentication(End::AuthenticationTimeout, now);
        }
    }

    /// When [`Connection::poll_authentication`] must be called at the latest.
    pub(super) fn authentication_deadline(&self) -> Option<Instant> {
        let authentication = self.authentication.as_ref()?;
        authentication.held.as_ref().map(|held| held.until).or(authentication.limit())
    }
}

/// Which authentication command it is, if it is one.
pub(super) fn kind(command: &Submission) -> Option<FabricsType> {
    let authentication = [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE];
    command.fabrics_type().filter(|kind| authentication.contains(kind))
}

/// A key that authentication has made, as the host comes back with it.
fn psk_for_tls(made: &GeneratedPsk, controller: &Controller) -> Option<TlsPsk> {
    let names = Names { host: controller.host().clone(), subsystem: controller.subsystem().clone() };
    // The host finds no key when it comes back, and says so.
    made.tls_psk(&names).inspect_err(|error| tracing::warn!(%error, "no key for the secure channel")).ok()
}

fn fields(command: &Submission) -> Fields {
    super::admin::fields(command)
}

fn plan_send(command: &Submission, capsule_bytes: u32) -> Result<Plan, Status> {
    let fields = fields(command);
    let length = fields.length.get();
    if !fields.is_authentication() || length == 0 || length as usize > MESSAGE_BYTES_MAX {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    io::plan_from_host(command, length, capsule_bytes)
}
