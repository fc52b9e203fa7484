//! Admin and Fabrics commands (NVMe Base 2.0 §5, §6).

use std::mem::offset_of;
use std::sync::Arc;

use engine::View;
use engine::time::Instant;
use nvme::command::Submission;
use nvme::fabrics::{
    ConnectData, ConnectFields, PropertyFields, connect_attributes, connect_invalid_parameter, connect_result,
};
use nvme::feature::FeatureId;
use nvme::log::{LogId, LogRequest};
use nvme::opcode::{AdminOpcode, FabricsType};
use nvme::register::{Capabilities, Configuration, offset};
use nvme::{CONTROLLER_ID_DYNAMIC, NSID_ALL, Nqn, Status, VERSION};
use zerocopy::{FromBytes, IntoBytes};

use super::commands::align_in_capsule;
use super::connection::{Connection, HeldConnect, Phase};
use super::controller::{ConfigurationChange, Controller, Identity};
use super::guests::Place;
use super::io::{self, Plan};
use super::limits::{ADMIN_QUEUE_ENTRIES_MAX, QUEUE_END_STEP, QUEUE_END_TIME_MAX};
use super::newcomers::Authenticating;
use super::secure::REFUSED;
use super::shared::Refused;
use super::terms::{Entrance, Terms};
use super::{features, identify, logs, manage};

/// CAP.TO: how long a host waits for CSTS.RDY, in units of 500 ms. We are ready at once; chosen generously for a slow link.
const READY_TIMEOUT_500MS: u8 = 15;
/// Byte offset of CDW10, where the fields of a Fabrics command begin.
const FIELDS_AT: usize = offset_of!(Submission, cdw10);

/// The fields of a Fabrics command in CDW10 to CDW15.
pub(super) fn fields<T: FromBytes>(command: &Submission) -> T {
    const { assert!(size_of::<T>() == size_of::<Submission>() - FIELDS_AT) };
    T::read_from_bytes(&command.as_bytes()[FIELDS_AT..]).expect("invariant: the sizes are equal, as asserted above")
}

/// A refused Connect: the status, and where the parameter is that it was refused for.
struct Refusal(Status, u64);

impl Refusal {
    fn of(refused: Refused) -> Refusal {
        match refused {
            Refused::Subsystem => Refusal::in_data(offset_of!(ConnectData, subnqn)),
            Refused::Host | Refused::Insecure => Refusal(Status::CONNECT_INVALID_HOST.do_not_retry(), 0),
            Refused::HostId => Refusal::in_data(offset_of!(ConnectData, hostid)),
            Refused::Busy => Refusal(Status::CONNECT_CONTROLLER_BUSY, 0),
        }
    }

    fn in_command(at: usize) -> Refusal {
        let result = connect_invalid_parameter((FIELDS_AT + at) as u16, false);
        Refusal(Status::CONNECT_INVALID_PARAMETERS.do_not_retry(), result)
    }

    fn in_data(at: usize) -> Refusal {
        Refusal(Status::CONNECT_INVALID_PARAMETERS.do_not_retry(), connect_invalid_parameter(at as u16, true))
    }
}

impl Connection {
    /// Until Connect succeeds nothing else is accepted (NVMe Base 2.0 §6.3).
    pub(super) fn plan_connecting(&self, command: &Submission, capsule_bytes: u32) -> Result<Plan, Status> {
        if command.fabrics_type() != Some(FabricsType::CONNECT) {
            return Err(Status::SEQUENCE_ERROR.do_not_retry());
        }
        io::plan_from_host(command, size_of::<ConnectData>() as u32, capsule_bytes)
    }

    /// Of the admin commands these have data from the host: Set Features for some features, Namespace Management and Attachment,
    /// and Namespace Copy.
    pub(super) fn plan_admin(&self, command: &Submission, capsule_bytes: u32) -> Result<Plan, Status> {
        let ready = self.controller.as_ref().is_some_and(|controller| controller.is_ready());
        if command.fabrics_type().is_none() && !ready {
            return Err(Status::SEQUENCE_ERROR.do_not_retry());
        }
        // Looked at first: a host that asks for what is not served is told so, and not that its data has the wrong length.
        let opcode = AdminOpcode(command.opcode);
        let managed = |controller: &Arc<Controller>| self.shared.manages_by(controller, opcode);
        let of_manage = || manage::data_bytes(command).filter(|_| self.controller.as_ref().is_some_and(managed));
        match features::data_bytes(command).or_else(of_manage) {
            Some(bytes) => io::plan_from_host(command, bytes, capsule_bytes),
            None => Ok(Plan::Run),
        }
    }

    // Connect.

    pub(super) fn connect(&mut self, slot: u16, now: Instant) {
        match self.try_connect(slot, now) {
            Ok((controller, authenticating)) => {
                self.held = None;
                self.phase = Phase::Live;
                self.connecting = None;
                let authentication = self.begin_authentication(authenticating, now);
                self.answer(slot, Status::SUCCESS, connect_result(controller, authentication));
            }
            Err(_) if self.held.is_some_and(|held| held.next > now) => {} // it is asked again then
            Err(Refusal(status, result)) => {
                self.held = None;
                self.answer(slot, status, result);
            }
        }
    }

    /// Lets a Connect wait for the end of the queue that has its number, as long as there is hope.
    fn hold(&mut self, slot: u16, now: Instant) {
        let until = self.held.map_or(now + QUEUE_END_TIME_MAX, |held| held.until);
        self.held = (now < until).then_some(HeldConnect { slot, next: now + QUEUE_END_STEP, until });
    }

    /// The controller, and the place among the queues that have yet to authenticate, if this one has to.
    fn try_connect(&mut self, slot: u16, now: Instant) -> Result<(u16, Option<Authenticating>), Refusal> {
        let entry = self.slots.at(slot);
        let fields: ConnectFields = fields(&entry.command);
        let start = match entry.command.sgl.kind() {
            nvme::sgl::SglKind::InCapsule { offset } => offset as usize, // within the capsule, as planned
            _ => 0,
        };
        let Ok((data, _)) = ConnectData::read_from_prefix(&entry.data[start..]) else {
            return Err(Refusal(Status::DATA_SGL_LENGTH_INVALID.do_not_retry(), 0));
        };
        if fields.recfmt.get() != 0 {
            return Err(Refusal(Status::CONNECT_INCOMPATIBLE_FORMAT.do_not_retry(), 0));
        }
        if data.hostid == [0; 16] {
            return Err(Refusal::in_data(offset_of!(ConnectData, hostid)));
        }
        let host = Nqn::host_field(&data.hostnqn);
        let host = host.map_err(|_| Refusal::in_data(offset_of!(ConnectData, hostnqn)))?;
        let subsystem = Nqn::from_field(&data.subnqn);
        let subsystem = subsystem.map_err(|_| Refusal::in_data(offset_of!(ConnectData, subnqn)))?;
        self.check_secure(&host, &subsystem, now).map_err(Refusal::of)?;
        let qid = fields.qid.get();
        let psk = self.origin.psk.clone();
        let entrance = Entrance { qid, psk: psk.as_deref() };
        let identity = Identity {
            subsystem,
            host,
            host_id: data.hostid,
            port: self.origin.port,
            secure: psk.is_some(),
            generated: entrance.generated().cloned(),
        };
        let terms = self.shared.look_up(&identity, &entrance).map_err(|refused| {
            if refused == Refused::Insecure {
                self.shared.complaints.tell(now, &identity.host, REFUSED, &"this host must use TLS here");
            }
            Refusal::of(refused)
        })?;
        self.concatenation_required = terms.concatenate;
        let profile = self.shared.config.profile;
        let entries_max = if qid == 0 { ADMIN_QUEUE_ENTRIES_MAX } else { profile.io_queue_entries_max };
        let sqsize = fields.sqsize.get();
        if sqsize == 0 || sqsize >= entries_max {
            return Err(Refusal::in_command(offset_of!(ConnectFields, sqsize)));
        }
        let guest = self.place_of_guest(&terms, qid, &identity.host, now)?;
        let authenticating = self.place_to_authenticate(&terms, &identity, now).map_err(Refusal::of)?;
        let controller = if qid == 0 {
            self.make_controller(&fields, &data, identity, (&entrance, &terms), now)?
        } else {
            let joined = self.join_controller(qid, &data, &identity, now)?;
            joined.ok_or_else(|| {
                self.hold(slot, now);
                // It exists (NVMe Base 2.0c §6.3). It may be about to go: the same command may succeed later.
                Refusal(Status::SEQUENCE_ERROR, 0)
            })?
        };
        self.guest = Some(guest);
        self.queue.qid = qid;
        self.queue.entries = sqsize + 1;
        self.queue.head = 0;
        self.queue.flow_control = fields.cattr & connect_attributes::DISABLE_SQ_FLOW_CONTROL == 0;
        Ok((controller, authenticating))
    }

    fn place_of_guest(&self, terms: &Terms, qid: u16, host: &Nqn, now: Instant) -> Result<Place, Refusal> {
        let peer = self.origin.peer;
        self.shared.guests.place(terms.standing, qid, peer.ip(), host).ok_or_else(|| {
            let reason = format!("hosts that show no key, {host} or this address have all that they may have");
            self.shared.complaints.tell(now, &peer, REFUSED, &reason);
            Refusal::of(Refused::Busy)
        })
    }

    /// Connect of an admin queue: a new controller (the dynamic model only).
    fn make_controller(
        &mut self,
        fields: &ConnectFields,
        data: &ConnectData,
        identity: Identity,
        (entrance, terms): (&Entrance<'_>, &Terms),
        now: Instant,
    ) -> Result<u16, Refusal> {
        if data.cntlid.get() != CONTROLLER_ID_DYNAMIC {
            return Err(Refusal::in_data(offset_of!(ConnectData, cntlid)));
        }
        let attention = self.attention.clone();
        let host = identity.host.clone();
        let added = self.shared.add_controller(identity, attention, entrance, terms);
        let controller = added.map_err(|refused| {
            if refused == Refused::HostId {
                self.complain_of_identifier(&host, now);
            }
            Refusal::of(refused)
        })?;
        let id = controller.id();
        if !controller.set_keep_alive(fields.kato.get(), now) {
            self.shared.remove_controller(id);
            return Err(Refusal::in_command(offset_of!(ConnectFields, kato)));
        }
        match self.hold_generated() {
            Ok(hold) => self.generated = hold,
            Err(refused) => {
                self.shared.remove_controller(id);
                return Err(Refusal::of(refused));
            }
        }
        self.controller = Some(controller);
        self.load = None;
        Ok(id)
    }

    /// Connect of an I/O queue to a controller that the same host has made and enabled; `None` where it has such a queue.
    fn join_controller(
        &mut self,
        qid: u16,
        data: &ConnectData,
        identity: &Identity,
        now: Instant,
    ) -> Result<Option<u16>, Refusal> {
        let controller = self.shared.controller(data.cntlid.get());
        let controller = controller.filter(|found| found.belongs_to(identity));
        let controller = controller.ok_or(Refusal::in_data(offset_of!(ConnectData, cntlid)))?;
        if self.shared.room.is_left_behind() {
            let reason = "media that hang hold all the data that there may be";
            self.shared.complaints.tell(now, &self.origin.peer, REFUSED, &reason);
            return Err(Refusal::of(Refused::Busy));
        }
        let profile = self.shared.config.profile;
        if qid > profile.io_queues_max || controller.is_discovery() {
            return Err(Refusal::in_command(offset_of!(ConnectFields, qid)));
        }
        // Read before the check: a reset in between moves it, and the queue closes at its next look.
        self.queue.epoch = controller.io_epoch();
        if !controller.is_ready() || controller.is_ended() {
            return Err(Refusal(Status::SEQUENCE_ERROR.do_not_retry(), 0));
        }
        if !controller.add_queue(qid, &self.attention) {
            return Ok(None);
        }
        let id = controller.id();
        self.controller = Some(controller);
        self.set_capsule_bytes_max(profile.in_capsule_bytes_max);
        // It may have ended between the check and the entry of the queue, and then woke everybody but us.
        self.attention.raise();
        Ok(Some(id))
    }

    /// When the host's keep alive is late; none on I/O queues.
    pub(super) fn keep_alive_deadline(&self) -> Option<Instant> {
        self.controller.as_ref().filter(|_| self.queue.qid == 0)?.keep_alive_deadline()
    }

    // Commands.

    pub(super) fn run_admin(&mut self, slot: u16, now: Instant) {
        let Some(controller) = self.controller.clone() else { return };
        controller.used(now);
        let command = self.slots.at(slot).command;
        if let Some(fabrics) = command.fabrics_type() {
            return self.run_fabrics(slot, fabrics, &command, &controller, now);
        }
        let opcode = AdminOpcode(command.opcode);
        let data = match opcode {
            AdminOpcode::IDENTIFY => {
                identify::identify(&self.shared, &controller, &command).map(|page| (Some(page), 0))
            }
            AdminOpcode::GET_LOG_PAGE => {
                self.get_log_page(slot, &command, &controller, now).map(|page| (Some(page), 0))
            }
            AdminOpcode::GET_FEATURES => {
                features::get(&self.shared, &controller, &command, now).map(|value| (value.data, value.result))
            }
            AdminOpcode::SET_FEATURES => {
                let entry = self.slots.at(slot);
                align_in_capsule(entry);
                match features::set(&self.shared, &controller, &command, &entry.data, now) {
                    Ok(_) if FeatureId(command.cdw10.get() as u8) == FeatureId::RESERVATION_PERSISTENCE => {
                        return self.set_persistence(slot, &controller);
                    }
                    set => set.map(|result| (None, result)),
                }
            }
            AdminOpcode::KEEP_ALIVE => {
                controller.kept_alive(now);
                Ok((None, 0))
            }
            _ if manage::is_one(opcode) && !controller.is_discovery() => {
                return self.manage(slot, &command, &controller);
            }
            AdminOpcode::ABORT if !controller.is_discovery() => return self.abort(slot, &command, &controller),
            AdminOpcode::ASYNC_EVENT_REQUEST => return self.park_event(slot, &controller),
            _ => Err(Status::INVALID_OPCODE.do_not_retry()),
        };
        match data {
            Ok((Some(data), result)) => match io::check_to_host(&command, data.len() as u32) {
                Ok(()) => self.answer_data(slot, data, result.into()),
                Err(status) => self.answer(slot, status, 0),
            },
            Ok((None, result)) => self.answer(slot, Status::SUCCESS, result.into()),
            Err(status) => self.answer(slot, status, 0),
        }
        // A feature or a log page may have let an event through.
        self.tell_events(&controller);
    }

    /// Get Log Page. Everything that can be wrong is found before the page is read: reading it lets go of its events, and a
    /// host that gets an error has not seen them.
    fn get_log_page(
        &mut self,
        slot: u16,
        command: &Submission,
        controller: &Controller,
        now: Instant,
    ) -> Result<View, Status> {
        let request = LogRequest::from_submission(command);
        // LPA bit 0 is clear: health is that of the controller (NVMe Base 2.0c §5.16.1.3).
        if request.log == LogId::SMART && ![0, NSID_ALL].contains(&command.nsid.get()) {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let bytes = logs::check(&request)?;
        io::check_to_host(command, bytes)?;
        self.shared.stats.look_at_clock(now);
        // Bounded like everybody's data: a queue full of the longest requests must not take what it asks for at once.
        if !self.charge(slot, bytes) {
            return Err(Status::INTERRUPTED);
        }
        logs::log_page(&self.shared, controller, self.origin.local, &request)
    }

    // Fabrics commands on a connected admin queue.

    /// Property Get: the value where offset and size name a property.
    fn property_get(&self, fields: &PropertyFields, controller: &Controller) -> Option<u64> {
        let eight_bytes = match fields.attrib & 7 {
            0 => false,
            1 => true,
            _ => return None,
        };
        match (fields.offset.get(), eight_bytes) {
            (offset::CAP, true) => {
                let entries_max = self.shared.config.profile.io_queue_entries_max;
                let capabilities = Capabilities::fabrics(entries_max, READY_TIMEOUT_500MS);
                let all = controller.offers_all_sets();
                Some(if all { capabilities.with_command_sets() } else { capabilities }.0)
            }
            (offset::VS, false) => Some(VERSION.into()),
            (offset::CC, false) => Some(controller.configuration().0.into()),
            (offset::CSTS, false) => Some(controller.status().into()),
            (offset::NSSR, false) => Some(0),
            (offset::CRTO, false) => Some(READY_TIMEOUT_500MS.into()), // with media; ready without them is not offered
            _ => None,
        }
    }

    fn run_fabrics(
        &mut self,
        slot: u16,
        kind: FabricsType,
        command: &Submission,
        controller: &Controller,
        now: Instant,
    ) {
        match kind {
            FabricsType::PROPERTY_GET => match self.property_get(&fields(command), controller) {
                Some(value) => self.answer(slot, Status::SUCCESS, value),
                None => self.answer(slot, Status::INVALID_FIELD.do_not_retry(), 0),
            },
            FabricsType::PROPERTY_SET => self.property_set(slot, &fields(command), controller, now),
            // A second Connect on a connected queue (NVMe Base 2.0 §6.3).
            FabricsType::CONNECT => self.answer(slot, Status::SEQUENCE_ERROR.do_not_retry(), 0),
            // The admin queue ends by a shutdown (NVMe Base 2.0 §6.4).
            FabricsType::DISCONNECT => self.answer(slot, Status::INVALID_QUEUE_TYPE.do_not_retry(), 0),
            _ => self.answer(slot, Status::INVALID_OPCODE.do_not_retry(), 0),
        }
    }

    /// Of the properties only CC can be written (NVMe Base 2.0 §6.6; NSSR needs NVM Subsystem Reset, which CAP denies).
    fn property_set(&mut self, slot: u16, fields: &PropertyFields, controller: &Controller, now: Instant) {
        if fields.offset.get() != offset::CC || fields.attrib & 7 != 0 {
            return self.answer(slot, Status::INVALID_FIELD.do_not_retry(), 0);
        }
        let was_enabled = controller.configuration().enabled();
        let change = controller.set_configuration(Configuration(fields.value.get() as u32), now);
        if was_enabled && !controller.configuration().enabled() {
            // Before the answer: once the host has that, it may use their identifiers for the commands of a new start.
            while let Some(parked) = self.events.pop_front() {
                self.answer(parked, Status::ABORT_REQUESTED, 0);
            }
            self.give_up_aborts();
        }
        self.answer(slot, Status::SUCCESS, 0);
        if change == ConfigurationChange::Shutdown {
            self.shut_down(controller);
        }
    }
}
