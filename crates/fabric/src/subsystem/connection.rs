//! One connection of the target as a state machine without I/O: bytes in, operations and answers out.
//!
//! ```text
//!  Opening ─ICReq─► Connecting ─Connect─► Live ─bad PDU─► Terminating ─► Closed
//! ```
//! Invariants:
//! - A command is executed only when all its data has arrived, and a fused pair only when both halves' has: nothing is
//!   locked while a host can stall us.
//! - Nothing is executed after the association has ended, the controller was reset, or a PDU was bad.
//! - What a connection holds is bounded: slots by the queue's entries, data by its [`DataRoom`]s, answers by the
//!   slots.
//! - Answers leave in the order in which commands end; the SUCCESS flag is used only where the host does without SQHD.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use engine::net::SendBatch;
use engine::time::Instant;
use engine::{Buf, View};
use nvme::tcp::{ADMIN_IN_CAPSULE_BYTES, PduType};
use nvme::{Completion, Status};

use super::abort::Aborts;
use super::attention::Attention;
use super::authentication::Authentication;
use super::balance::Load;
use super::controller::Controller;
use super::end::End;
use super::guests::Place;
use super::io::Plan;
use super::limits::{H2C_DATA_BYTES_MAX, HANDSHAKE_TIME_MAX, SEND_BYTES_MAX, TERM_TIME_MAX};
use super::manage::Request;
use super::newcomers::Connecting;
use super::ports::Origin;
pub(super) use super::queue::{Fusing, HeldConnect, Phase, Queue};
use super::reservation::Rights;
use super::room::DataRoom;
use super::shared::{Attached, Shared};
use super::shutdown::Shutdown;
use super::slots::{Slots, Stage};
use super::transfers::Patience;
use crate::psk::Hold;
use crate::tcp::{
    CapsuleCmd, DataPdu, Decoder, Encoder, Event, FatalError, Header, IcReq, IcResp, Pdu, ReadyToTransfer, Role, Rules,
};

enum Reply {
    IcResp(IcResp),
    R2t(u16),
    Answer(u16),
    Term(Box<Header>),
}

/// See the module.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) origin: Origin,
    /// Its weight on the reactor that serves it; an admin queue gives it up.
    pub(super) load: Option<Load>,
    pub(super) attention: Arc<Attention>,
    pub(super) phase: Phase,
    pub(super) decoder: Decoder,
    encoder: Encoder,
    /// When the handshake, or the host's time to close, is over.
    pub(super) time_limit: Instant,
    /// Its place among the connections that have not got through Connect yet.
    pub(super) connecting: Option<Connecting>,
    /// Its place among the queues of hosts that are let in as anybody is.
    pub(super) guest: Option<Place>,
    pub(super) queue: Queue,
    pub(super) controller: Option<Arc<Controller>>,
    pub(super) authentication: Option<Box<Authentication>>,
    /// The queue is there for the authentication that makes a key for TLS, and for nothing else, also afterwards.
    pub(super) concatenation_required: bool,
    /// A Connect that waits for the end of the queue before it.
    pub(super) held: Option<HeldConnect>,
    /// Keeps the key that authentication has made for this association.
    pub(super) generated: Option<Hold>,
    /// I/O queues: the subsystem's namespaces as of `generation`.
    pub(super) namespaces: Vec<Attached>,
    /// What the host may do with each of them, as last seen.
    pub(super) rights: Vec<Rights>,
    pub(super) generation: u64,
    pub(super) slots: Slots,
    /// The slot that the current PDU's data belongs to; `None`: it is skipped.
    pub(super) current: Option<u16>,
    pub(super) fusing: Fusing,
    /// Room for data buffers, and who waits for it, first come first served.
    pub(super) room: DataRoom,
    pub(super) waiting: VecDeque<u16>,
    /// The same for data in capsules, and the command whose capsule has none: nothing is read until it has.
    pub(super) capsules: DataRoom,
    pub(super) paused: Option<u16>,
    /// Commands to execute.
    pub(super) ready: VecDeque<u16>,
    pub(super) shutdown: Shutdown,
    /// Commands that manage namespaces, and their slots.
    pub(super) requests: VecDeque<(u16, Box<Request>)>,
    outbox: VecDeque<Reply>,
    /// Room of the data that is being sent.
    sending: u32,
    pub(super) patience: Patience,
    /// Asynchronous Event Requests outstanding.
    pub(super) events: VecDeque<u16>,
    pub(super) aborts: Aborts,
    pub(super) end: Option<End>,
}

impl Connection {
    /// A new connection.
    pub fn new(shared: Arc<Shared>, origin: Origin, load: Option<Load>, now: Instant) -> Connection {
        shared.stats.look_at_clock(now);
        let room = DataRoom::new(Arc::clone(&shared.room));
        let capsules = DataRoom::of_capsules(Arc::clone(&shared.room));
        Connection {
            shared,
            origin,
            load,
            attention: Arc::default(),
            phase: Phase::Opening,
            decoder: Decoder::new(Role::Controller),
            encoder: Encoder { header_digest: false, data_digest: false, alignment_code: 0 },
            time_limit: now + HANDSHAKE_TIME_MAX,
            connecting: None,
            guest: None,
            queue: Queue { qid: 0, entries: 1, head: 0, flow_control: true, epoch: 0 },
            controller: None,
            authentication: None,
            concatenation_required: false,
            held: None,
            generated: None,
            namespaces: Vec::new(),
            rights: Vec::new(),
            generation: 0,
            slots: Slots::new(),
            current: None,
            fusing: Fusing::None,
            room,
            waiting: VecDeque::new(),
            capsules,
            paused: None,
            ready: VecDeque::new(),
            shutdown: Shutdown::default(),
            requests: VecDeque::new(),
            outbox: VecDeque::new(),
            sending: 0,
            patience: Patience::default(),
            events: VecDeque::new(),
            aborts: Aborts::default(),
            end: None,
        }
    }

    /// Why the connection must be closed, once it must.
    pub fn ended(&self) -> Option<&End> {
        self.end.as_ref().filter(|end| match end {
            // The last word is sent first; after it the host has a while to close from its side.
            End::Protocol(_) => self.is_closed(),
            End::AuthenticationFailed(_) => self.is_closed() || !self.has_output(),
            End::Disconnected => !self.has_output(),
            _ => true,
        })
    }

    /// The peer has had its time to read the last answers: what it has not read until now it goes without.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// What has condemned the connection, whether or not it is closed yet.
    pub fn reason(&self) -> Option<&End> {
        self.end.as_ref()
    }

    pub fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Who is to be woken when something concerns the connection that did not come through it.
    pub fn set_waker(&self, waker: &Waker) {
        self.attention.set_waker(waker);
    }

    pub(super) fn finish(&mut self, end: End) {
        self.end.get_or_insert(end);
        self.held = None;
        self.ready.clear();
        self.waiting.clear();
        self.shutdown.give_up();
        self.requests.clear();
    }

    // Time.

    /// Looks at the time and at what others have changed. To be called when [`Connection::deadline`] is reached, and after
    /// every wake.
    pub fn poll(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Opening | Phase::Connecting) && now >= self.time_limit {
            self.finish(End::HandshakeTimeout);
        }
        if self.phase == Phase::Terminating && now >= self.time_limit {
            self.phase = Phase::Closed;
        }
        if let Some(held) = self.held.filter(|held| now >= held.next) {
            self.connect(held.slot, now);
        }
        self.poll_authentication(now);
        if self.attention.take() {
            self.attend();
        }
        self.look_for_withheld_data(now);
        if self.keep_alive_deadline().is_some_and(|deadline| now >= deadline)
            && let Some(controller) = &self.controller
            && let Some(end) = controller.keep_alive_end(now)
        {
            if end == End::KeepAliveExpired {
                self.shared.stats.keep_alive_expired.fetch_add(1, Relaxed);
            }
            controller.end();
            self.finish(end);
        }
    }

    /// When [`Connection::poll`] must be called at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Live => {
                let deadlines = [self.keep_alive_deadline(), self.authentication_deadline(), self.patience.next_look];
                deadlines.into_iter().flatten().min()
            }
            Phase::Closed => None,
            _ => Some(self.held.map_or(self.time_limit, |held| held.next.min(self.time_limit))),
        }
    }

    // Bytes in.

    /// Takes bytes from the connection, and says how many: fewer than there are where it pauses.
    pub fn receive(&mut self, input: &[u8], now: Instant) -> usize {
        let mut left = input;
        while self.end.is_none() && self.paused.is_none() {
            match self.decoder.next(&mut left) {
                Ok(Some(event)) => self.on_event(event, now),
                Ok(None) => break,
                Err(error) => self.terminate(error, now),
            }
        }
        // Of a connection that has come to its end nobody wants the rest.
        if self.end.is_some() { input.len() } else { input.len() - left.len() }
    }

    fn on_event(&mut self, event: Event<'_>, now: Instant) {
        let handled = match event {
            Event::Pdu(pdu) => self.on_pdu(pdu, now),
            Event::Data(data) => {
                self.on_data(data);
                Ok(())
            }
            Event::DataEnd { digest_ok } => {
                self.on_data_end(digest_ok, now);
                Ok(())
            }
        };
        if let Err(error) = handled {
            self.terminate(error, now);
        }
    }

    fn on_pdu(&mut self, pdu: Pdu, now: Instant) -> Result<(), FatalError> {
        match pdu {
            Pdu::IcReq(request) => self.on_ic_req(request),
            Pdu::CapsuleCmd(capsule) => self.on_command(capsule, now)?,
            Pdu::H2cData(data) => self.on_h2c_data(data)?,
            Pdu::H2cTermReq(term) => self.finish(End::HostTerminated(term)),
            // The decoder refuses what only a controller may send.
            Pdu::IcResp(_) | Pdu::C2hTermReq(_) | Pdu::CapsuleResp(_) | Pdu::C2hData(_) | Pdu::R2t(_) => {}
        }
        Ok(())
    }

    fn on_ic_req(&mut self, request: IcReq) {
        let (header_digest, data_digest) = (request.header_digest, request.data_digest);
        self.encoder = Encoder { header_digest, data_digest, alignment_code: request.alignment_code };
        self.set_capsule_bytes_max(ADMIN_IN_CAPSULE_BYTES);
        self.phase = Phase::Connecting;
        let response = IcResp { alignment_code: 0, header_digest, data_digest, maxh2cdata: H2C_DATA_BYTES_MAX };
        self.outbox.push_back(Reply::IcResp(response));
    }

    pub(super) fn set_capsule_bytes_max(&mut self, bytes_max: u32) {
        self.decoder.establish(Rules {
            header_digest: self.encoder.header_digest,
            data_digest: self.encoder.data_digest,
            alignment_code: 0,
            capsule_data_bytes_max: bytes_max,
            data_pdu_bytes_max: H2C_DATA_BYTES_MAX,
        });
    }

    fn on_command(&mut self, capsule: CapsuleCmd, now: Instant) -> Result<(), FatalError> {
        self.current = None;
        self.look_again();
        if self.slots.len() >= usize::from(self.queue.entries) {
            let what = "more commands than the queue has entries";
            return Err(FatalError::limit(PduType::CAPSULE_CMD, what, self.queue.entries));
        }
        let slot = self.slots.insert(capsule.command, now);
        self.slots.at(slot).expected = self.patience.clock(now);
        match self.plan(slot, capsule.data_bytes) {
            Err(status) => self.answer(slot, status, 0),
            Ok(Plan::Run) => self.run(slot, now),
            Ok(Plan::Capsule) => self.expect_capsule(slot, capsule.data_bytes),
            Ok(Plan::Read(bytes) | Plan::Transfer(bytes)) => {
                let entry = self.slots.at(slot);
                entry.stage = Stage::Waiting;
                entry.wanted = bytes;
                self.waiting.push_back(slot);
                self.grant();
            }
        }
        if matches!(self.slots.get(slot), Some(entry) if entry.stage.is_before_data()) {
            self.expect_data(now);
        }
        Ok(())
    }

    /// Gives data buffers to those who wait, in order, as far as there is room.
    pub(super) fn grant(&mut self) {
        while let Some(&slot) = self.waiting.front() {
            let entry = self.slots.at(slot);
            let bytes = entry.room_wanted();
            if !self.room.take(bytes) {
                return;
            }
            self.waiting.pop_front();
            entry.charged = bytes;
            // A read needs no data from the host; a copy has its ranges already.
            if entry.is_to_host() || !entry.data.is_empty() {
                entry.stage = Stage::Ready;
                self.ready.push_back(slot);
            } else {
                entry.stage = Stage::Transfer;
                entry.data = Buf::with_capacity(entry.wanted as usize);
                self.outbox.push_back(Reply::R2t(slot));
            }
        }
    }

    /// Takes room for an answer's data, until the answer is sent; false if there is none at the moment.
    pub(super) fn charge(&mut self, slot: u16, bytes: u32) -> bool {
        if !self.room.take(bytes) {
            return false;
        }
        self.slots.at(slot).charged = bytes;
        true
    }

    /// Ends the connection for a bad PDU: a C2HTermReq with the field, then nothing more.
    fn terminate(&mut self, error: FatalError, now: Instant) {
        self.shared.stats.protocol_errors.fetch_add(1, Relaxed);
        self.finish(End::Protocol(error));
        self.phase = Phase::Terminating;
        self.time_limit = now + TERM_TIME_MAX;
        let header = Encoder::term_req(PduType::C2H_TERM_REQ, &error, self.decoder.header());
        self.outbox.push_back(Reply::Term(Box::new(header)));
    }

    // Answers.

    pub(super) fn answer(&mut self, slot: u16, status: Status, result: u64) {
        let entry = self.slots.at(slot);
        debug_assert_ne!(entry.stage, Stage::Answered, "a command was answered twice");
        entry.stage = Stage::Answered;
        entry.status = status;
        entry.result = result;
        entry.hold = None;
        entry.data = Buf::default();
        entry.addressed = None;
        // The C2HTermReq is the last word (NVMe/TCP 1.0 §3.5): a command that ends after it stays unanswered.
        if !matches!(self.phase, Phase::Terminating | Phase::Closed) {
            self.outbox.push_back(Reply::Answer(slot));
        }
    }

    pub(super) fn answer_data(&mut self, slot: u16, data: View, result: u64) {
        self.slots.at(slot).reply = data;
        self.answer(slot, Status::SUCCESS, result);
    }

    /// Encodes what there is to say, as much as one send should take. [`Connection::sent`] is to be called when it is.
    pub fn transmit(&mut self, batch: &mut SendBatch, now: Instant) {
        while !batch.is_full() && batch.len() < SEND_BYTES_MAX {
            match self.outbox.pop_front() {
                None => return,
                Some(Reply::IcResp(response)) => batch.head(&Encoder::ic_resp(&response)),
                Some(Reply::R2t(slot)) => {
                    let entry = self.slots.at(slot);
                    entry.asked = Some(self.patience.clock(now));
                    let cccid = entry.command.command_id.get();
                    let request = ReadyToTransfer { cccid, ttag: slot, offset: 0, bytes: entry.wanted };
                    batch.head(&self.encoder.r2t(&request));
                }
                Some(Reply::Answer(slot)) => self.transmit_answer(slot, batch, now),
                Some(Reply::Term(header)) => batch.head(&header),
            }
        }
    }

    /// What was encoded has left, and its data is held no more.
    pub fn sent(&mut self) {
        self.room.give(std::mem::take(&mut self.sending));
        self.grant();
    }

    fn transmit_answer(&mut self, slot: u16, batch: &mut SendBatch, now: Instant) {
        let slot = self.slots.remove(slot);
        // A host that reads nothing keeps its data with us until it does: so long it is paid for.
        if slot.reply.is_empty() {
            self.room.give(slot.charged);
        } else {
            self.sending += slot.charged;
        }
        self.capsules.give(slot.in_capsule);
        self.queue.head = (self.queue.head + 1) % self.queue.entries.max(1);
        self.count(&slot, now);
        if let Some(abort) = slot.abort {
            abort.settle(slot.status);
        }
        let cccid = slot.command.command_id.get();
        let mut told = false;
        if !slot.reply.is_empty() {
            told = !self.queue.flow_control && slot.result == 0;
            let bytes = slot.reply.len() as u32;
            let pdu = DataPdu { cccid, ttag: 0, offset: 0, bytes, last: true, success: told };
            batch.head(&self.encoder.c2h_data(&pdu));
            let digest = self.encoder.data_digest_of(&slot.reply);
            batch.view(slot.reply);
            batch.head(digest.as_ref().map_or(&[], |digest| digest));
        }
        if !told {
            let head = if self.queue.flow_control { self.queue.head } else { 0xFFFF };
            batch.head(&self.encoder.capsule_resp(&Completion::new(cccid, slot.status, slot.result, head)));
        }
        if !self.waiting.is_empty() {
            self.grant();
        }
        self.resume();
    }
}
