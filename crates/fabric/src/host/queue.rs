//! The host's end of one queue as a state machine without I/O: commands and bytes in, bytes and outcomes out.
//!
//! Invariants:
//! - A slot belongs to one command from `submit` until its outcome is both known and taken (or known and nobody wants it any
//!   more). The buffer of a read stays in its slot until then: late data can't land in memory that has another owner.
//! - A command identifier carries its slot's generation. An answer to anything but a command that is under way, was sent,
//!   and has all its data where it says it has, ends the connection: with a peer that confuses commands, going on
//!   would hand one reader another's bytes.
//! - Halves of a fused pair are entered, encoded and sent together (NVMe Base 2.0 §3.4.2: adjacent in one queue).
//! - Everything is bounded: slots by the queue's depth, R2Ts by [`R2T_OUTSTANDING_MAX`] per command, so the transmit queue
//!   by their product. It is sized for that when the queue is made; no command allocates.

mod receive;

use std::collections::VecDeque;
use std::task::Waker;

use engine::net::SendBatch;
use engine::sync::Permit;
use engine::{Buf, View};
use nvme::sgl::SglDescriptor;
use nvme::tcp::PduType;
use nvme::{Fuse, Submission};

use super::slot::{Ended, Slot, SlotId, Stage};
use crate::tcp::{Decoder, Encoder, FatalError, IcReq, ReadyToTransfer, Role, TermReq};

/// The most commands under way on one queue. Derived: their slots' indices and generations share 16 bits.
pub const QUEUE_DEPTH_MAX: u16 = (1 << super::slot::INDEX_BITS) - 1;
/// R2Ts of one command that may be unanswered; stated in ICReq (MAXR2T). Guessed: enough to keep a link full.
pub const R2T_OUTSTANDING_MAX: u16 = 4;
/// Payload gathered for one send, so that a small command does not wait behind many large ones. Guessed.
const SEND_BYTES_MAX: usize = 1 << 20;

/// What a queue is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    /// Commands under way at a time, at most [`QUEUE_DEPTH_MAX`].
    pub depth: u16,
    /// Data up to this length travels in the command capsule (§3.3.2: from IOCCSZ; 8 KiB on admin queues).
    pub in_capsule_bytes_max: u32,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// The most data that any read asks for.
    pub read_bytes_max: u32,
}

/// The data of a command.
#[derive(Debug, Default)]
pub enum Payload {
    /// There is none.
    #[default]
    None,
    /// To the controller.
    Out(View),
    /// From the controller: its length is the length asked for.
    In(Buf),
}

/// Why the queue is at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// The controller broke the protocol.
    #[error("the target broke the protocol: {0}")]
    Protocol(#[from] FatalError),
    /// The controller says that we did.
    #[error("the target ended the connection: {}, information {:#x}", .0.status, .0.information)]
    Terminated(TermReq),
    /// The controller agreed to other digests than were asked for.
    #[error("the target answered digests (header {header}, data {data}) to a request for ({want_header}, {want_data})")]
    Digests {
        /// Header digests in the answer.
        header: bool,
        /// Data digests in the answer.
        data: bool,
        /// Header digests asked for.
        want_header: bool,
        /// Data digests asked for.
        want_data: bool,
    },
}

/// What stands in line to be sent. Entries of a command that has ended meanwhile are skipped.
#[derive(Clone, Copy, Debug)]
enum Outgoing {
    IcReq,
    Command(SlotId),
    Pair(SlotId, SlotId),
    Data { slot: SlotId, request: ReadyToTransfer },
}

/// One queue of the host.
pub struct Queue {
    config: QueueConfig,
    decoder: Decoder,
    encoder: Encoder,
    /// From ICResp: the most data of one H2CData PDU; 0 until it came, and nothing but the ICReq is sent until then.
    maxh2cdata: u32,
    slots: Box<[Slot]>,
    /// Indices of free slots; the one freed last is used first, while its memory is warm.
    free: Vec<u16>,
    outgoing: VecDeque<Outgoing>,
    /// The slot whose data is arriving.
    receiving: Option<Receiving>,
    aftermath: Aftermath,
    /// Commands under way that nobody waits for, and whether the last of them has ended since that was asked.
    abandoned: usize,
    abandoned_over: bool,
    closed: bool,
}

/// What is to be done outside of any borrow of the queue: waking a task, or giving a permit back, may run the drop of another
/// task, which comes back here.
#[derive(Default)]
pub struct Aftermath {
    wakers: Vec<Waker>,
    permits: Vec<Permit>,
}

impl Aftermath {
    /// Wakes and gives back, keeping the memory for reuse.
    pub fn settle(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
        self.permits.clear();
    }
}

#[derive(Clone, Copy, Debug)]
struct Receiving {
    slot: SlotId,
    /// No CapsuleResp follows: the data's end is the command's.
    success: bool,
}

impl Queue {
    /// A queue at the start of its connection; its first bytes to send are the ICReq.
    pub fn new(config: QueueConfig) -> Queue {
        assert!((1..=QUEUE_DEPTH_MAX).contains(&config.depth), "a queue has 1 to {QUEUE_DEPTH_MAX} slots");
        let depth = usize::from(config.depth);
        let mut outgoing = VecDeque::with_capacity(depth * (1 + usize::from(R2T_OUTSTANDING_MAX)) + 1);
        outgoing.push_back(Outgoing::IcReq);
        Queue {
            config,
            decoder: Decoder::new(Role::Host),
            encoder: Encoder { header_digest: false, data_digest: false, alignment_code: 0 },
            maxh2cdata: 0,
            slots: (0..config.depth).map(Slot::new).collect(),
            free: (0..config.depth).rev().collect(),
            outgoing,
            receiving: None,
            aftermath: Aftermath { wakers: Vec::with_capacity(depth), permits: Vec::with_capacity(depth) },
            abandoned: 0,
            abandoned_over: false,
            closed: false,
        }
    }

    /// Whether the ICReq was answered.
    pub fn is_initialized(&self) -> bool {
        self.maxh2cdata != 0
    }

    /// Whether it takes no commands any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Enters a command; `None` if every slot is taken or the queue is closed (the payload is dropped then).
    /// Command identifier and SGL are filled in here. `deadline` (any unit) is what [`Queue::close`] compares with.
    pub fn submit(&mut self, command: Submission, payload: Payload, deadline: u64) -> Option<SlotId> {
        if self.closed {
            return None;
        }
        let slot = self.enter(command, payload, deadline)?;
        self.outgoing.push_back(Outgoing::Command(slot));
        Some(slot)
    }

    /// Enters both halves of a fused command, adjacent; or none of them.
    pub fn submit_fused(
        &mut self,
        first: (Submission, Payload),
        second: (Submission, Payload),
        deadline: u64,
    ) -> Option<(SlotId, SlotId)> {
        if self.closed || self.free.len() < 2 {
            return None;
        }
        let (mut one, mut two) = (first.0, second.0);
        one.set_fuse(Fuse::First);
        two.set_fuse(Fuse::Second);
        let pair = (self.enter(one, first.1, deadline)?, self.enter(two, second.1, deadline)?);
        self.outgoing.push_back(Outgoing::Pair(pair.0, pair.1));
        Some(pair)
    }

    fn enter(&mut self, mut command: Submission, payload: Payload, deadline: u64) -> Option<SlotId> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        let id = slot.id();
        command.command_id = id.command_id().into();
        command.sgl = match &payload {
            Payload::None => SglDescriptor::default(),
            Payload::Out(data) if data.len() as u64 <= u64::from(self.config.in_capsule_bytes_max) => {
                SglDescriptor::in_capsule(data.len() as u32)
            }
            Payload::Out(data) => SglDescriptor::transport(data.len() as u32),
            Payload::In(buf) => SglDescriptor::transport(buf.len() as u32),
        };
        slot.start(command, payload, deadline);
        Some(id)
    }

    /// Lets the permit travel with the slot: it goes back when the slot is free again.
    pub fn attach_permit(&mut self, slot: SlotId, permit: Permit) {
        self.slots[slot.index()].permit = Some(permit);
    }

    /// Whether there is something to send now.
    pub fn has_outgoing(&self) -> bool {
        match self.outgoing.front() {
            None => false,
            Some(Outgoing::IcReq) => true,
            Some(_) => self.is_initialized(),
        }
    }

    /// Moves what is to be sent into `batch`, as much as it takes.
    pub fn fill(&mut self, batch: &mut SendBatch) {
        while self.has_outgoing() && !batch.is_full() && batch.len() < SEND_BYTES_MAX {
            let Some(outgoing) = self.outgoing.pop_front() else { return };
            match outgoing {
                Outgoing::IcReq => batch.head(&Encoder::ic_req(&IcReq {
                    alignment_code: 0,
                    header_digest: self.config.header_digest,
                    data_digest: self.config.data_digest,
                    maxr2t: u32::from(R2T_OUTSTANDING_MAX) - 1,
                })),
                Outgoing::Command(slot) => self.fill_command(slot, batch),
                Outgoing::Pair(first, second) => {
                    self.fill_command(first, batch);
                    self.fill_command(second, batch);
                }
                Outgoing::Data { slot, request } => self.fill_data(slot, request, batch),
            }
        }
    }

    fn fill_command(&mut self, id: SlotId, batch: &mut SendBatch) {
        let encoder = self.encoder;
        let Some(slot) = self.slots[id.index()].under_way(id) else { return };
        slot.stage = Stage::Sent;
        let in_capsule = slot.command.sgl.identifier == SglDescriptor::IN_CAPSULE;
        match &slot.payload {
            Payload::Out(data) if in_capsule => {
                batch.head(&encoder.capsule_cmd(&slot.command, data.len() as u32));
                fill_payload(&encoder, data.clone(), batch);
                slot.transferred = data.len() as u32;
            }
            _ => batch.head(&encoder.capsule_cmd(&slot.command, 0)),
        }
    }

    /// One H2CData PDU of what an R2T asked for; the rest goes back to the head of the line (NVMe/TCP 1.0 §3.3.2.2).
    fn fill_data(&mut self, id: SlotId, request: ReadyToTransfer, batch: &mut SendBatch) {
        let (encoder, maxh2cdata) = (self.encoder, self.maxh2cdata);
        let Some(slot) = self.slots[id.index()].under_way(id) else { return };
        let Payload::Out(data) = &slot.payload else { return };
        let bytes = request.bytes.min(maxh2cdata);
        let last = bytes == request.bytes;
        let (start, end) = (request.offset as usize, request.offset as usize + bytes as usize);
        let pdu = crate::tcp::DataPdu {
            cccid: request.cccid,
            ttag: request.ttag,
            offset: request.offset,
            bytes,
            last,
            success: false,
        };
        batch.head(&encoder.h2c_data(&pdu));
        fill_payload(&encoder, data.slice(start..end), batch);
        slot.transferred += bytes;
        if last {
            slot.r2t_outstanding -= 1;
        } else {
            let rest = ReadyToTransfer { offset: request.offset + bytes, bytes: request.bytes - bytes, ..request };
            self.outgoing.push_front(Outgoing::Data { slot: id, request: rest });
        }
    }

    fn end(&mut self, id: SlotId, ended: Ended) {
        let slot = &mut self.slots[id.index()];
        let wanted = slot.end(ended);
        self.aftermath.wakers.extend(slot.waker.take());
        if !wanted {
            self.abandoned -= 1;
            self.abandoned_over |= self.abandoned == 0;
            self.release(id);
        }
    }

    fn release(&mut self, id: SlotId) {
        let slot = &mut self.slots[id.index()];
        let late = slot.overdue;
        self.aftermath.permits.extend(slot.release());
        // An Abort that is on its way names the old command. Used last, the slot doesn't come round to that identifier soon.
        match late {
            true => self.free.insert(0, id.index() as u16),
            false => self.free.push(id.index() as u16),
        }
    }

    /// The outcome of a command and its payload, which frees its slot. `None`: it is under way, and `waker` is told at the
    /// end.
    pub fn poll_outcome(&mut self, id: SlotId, waker: &Waker) -> Option<(Ended, Payload)> {
        let slot = &mut self.slots[id.index()];
        let Stage::Ended(ended) = slot.stage else {
            match &mut slot.waker {
                Some(known) => known.clone_from(waker),
                None => slot.waker = Some(waker.clone()),
            }
            return None;
        };
        let payload = std::mem::take(&mut slot.payload);
        self.release(id);
        Some((ended, payload))
    }

    /// Nobody waits for this command any more. Its slot is free once it has ended. The waker must be dropped outside.
    pub fn abandon(&mut self, id: SlotId) -> Option<Waker> {
        let slot = &mut self.slots[id.index()];
        slot.abandoned = true;
        let waker = slot.waker.take();
        if matches!(slot.stage, Stage::Ended(_)) {
            self.release(id);
        } else {
            self.abandoned += 1;
        }
        waker
    }

    /// Commands under way that nobody waits for.
    pub fn abandoned(&self) -> usize {
        self.abandoned
    }

    /// Whether the last of them has ended since this was last asked.
    pub fn take_abandoned_over(&mut self) -> bool {
        std::mem::take(&mut self.abandoned_over)
    }

    /// Whether this command is under way still and past its time.
    pub fn is_overdue(&self, command_id: u16) -> bool {
        let id = SlotId::from_command_id(command_id);
        let slot = self.slots.get(id.index());
        slot.is_some_and(|slot| slot.id() == id && slot.is_under_way() && slot.overdue)
    }

    /// Looks for commands whose deadline lies at or before `now`. With a `grace`, each that was sent is told to `overdue` once and
    /// has that much longer. Returns whether one has used up what it had.
    pub fn check_deadlines(&mut self, now: u64, grace: u64, overdue: &mut VecDeque<u16>) -> bool {
        let mut expired = false;
        for slot in self.slots.iter_mut().filter(|slot| slot.is_under_way() && slot.deadline <= now) {
            if grace == 0 || slot.overdue || slot.stage != Stage::Sent {
                expired = true;
                continue;
            }
            slot.overdue = true;
            slot.deadline = now + grace;
            overdue.push_back(slot.id().command_id());
        }
        expired
    }

    /// Ends every command: those whose deadline has passed as timed out, the others as lost. Nothing more is taken or sent.
    pub fn close(&mut self, now: u64) {
        self.closed = true;
        self.outgoing.clear();
        self.receiving = None;
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.is_under_way() {
                let late = slot.overdue || slot.deadline <= now;
                let ended = if late { Ended::TimedOut } else { Ended::Lost };
                let id = slot.id();
                self.end(id, ended);
            }
        }
    }

    /// Swaps out what is to be done outside of any borrow of the queue; `settled` should be.
    pub fn take_aftermath(&mut self, settled: &mut Aftermath) {
        std::mem::swap(&mut self.aftermath, settled);
    }

    /// The H2CTermReq that tells the controller of an error of its own, where the specification wants one
    /// (NVMe/TCP 1.0 §3.5: not in answer to a TermReq).
    pub fn term_req(&self, error: &QueueError) -> Option<crate::tcp::Header> {
        match error {
            QueueError::Protocol(fatal) => Some(Encoder::term_req(PduType::H2C_TERM_REQ, fatal, self.decoder.header())),
            QueueError::Terminated(_) | QueueError::Digests { .. } => None,
        }
    }
}

fn fill_payload(encoder: &Encoder, data: View, batch: &mut SendBatch) {
    let digest = encoder.data_digest_of(&data);
    batch.view(data);
    if let Some(digest) = digest {
        batch.head(&digest);
    }
}

#[cfg(test)]
mod tests;
