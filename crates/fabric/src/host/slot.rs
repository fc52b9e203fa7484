//! One command's place in a queue.

use std::task::Waker;

use engine::Buf;
use engine::sync::Permit;
use nvme::{Completion, Submission};

use super::queue::Payload;
use super::requested::Requested;

/// Bits of a command identifier that name the slot; the rest is the slot's generation.
pub(super) const INDEX_BITS: u32 = 10;

/// A command: its slot and the slot's generation, which together are the command identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotId(u16);

impl SlotId {
    pub(super) fn from_command_id(command_id: u16) -> SlotId {
        SlotId(command_id)
    }

    /// The command identifier on the wire.
    pub fn command_id(self) -> u16 {
        self.0
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0 & ((1 << INDEX_BITS) - 1))
    }
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The controller completed it.
    Completed(Completion),
    /// The controller reported success, but the data's digest was wrong: the bytes are not what was sent.
    WrongDigest,
    /// The controller reported success, but sent less data than was asked for.
    ShortData,
    /// The connection ended first.
    Lost,
    /// Its deadline passed, and the connection was ended for it.
    TimedOut,
}

/// Where a command stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Free,
    /// In line to be sent.
    Queued,
    Sent,
    Ended(Ended),
}

pub(super) struct Slot {
    index: u16,
    generation: u16,
    pub(super) stage: Stage,
    /// Nobody waits: freed as soon as it has ended.
    pub(super) abandoned: bool,
    pub(super) digest_failed: bool,
    pub(super) command: Submission,
    pub(super) payload: Payload,
    /// Bytes of the payload received, or handed to the connection.
    pub(super) transferred: u32,
    /// What R2Ts have asked for.
    pub(super) requested: Requested,
    /// R2Ts that are not answered yet.
    pub(super) r2t_outstanding: u16,
    pub(super) deadline: u64,
    /// Its time is over, and it is being aborted.
    pub(super) overdue: bool,
    pub(super) waker: Option<Waker>,
    /// What the caller acquired for the slot; it goes back when the slot is free.
    pub(super) permit: Option<Permit>,
}

impl Slot {
    pub(super) fn new(index: u16) -> Slot {
        Slot {
            index,
            generation: 0,
            stage: Stage::Free,
            abandoned: false,
            digest_failed: false,
            command: Submission::default(),
            payload: Payload::None,
            transferred: 0,
            requested: Requested::default(),
            r2t_outstanding: 0,
            deadline: 0,
            overdue: false,
            waker: None,
            permit: None,
        }
    }

    pub(super) fn id(&self) -> SlotId {
        SlotId(self.generation << INDEX_BITS | self.index)
    }

    pub(super) fn start(&mut self, command: Submission, payload: Payload, deadline: u64) {
        debug_assert_eq!(self.stage, Stage::Free);
        (self.abandoned, self.digest_failed, self.overdue) = (false, false, false);
        (self.transferred, self.requested, self.r2t_outstanding) = (0, Requested::default(), 0);
        (self.command, self.payload, self.deadline) = (command, payload, deadline);
        self.stage = Stage::Queued;
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Queued | Stage::Sent)
    }

    /// The slot, if `id`'s command is the one in it and has not ended.
    pub(super) fn under_way(&mut self, id: SlotId) -> Option<&mut Slot> {
        (self.id() == id && self.is_under_way()).then_some(self)
    }

    /// Copies the next bytes of a read into place; the header they came with was checked against the buffer.
    pub(super) fn receive(&mut self, data: &[u8]) {
        if let Payload::In(buf) = &mut self.payload {
            let start = self.transferred as usize;
            buf[start..start + data.len()].copy_from_slice(data);
            self.transferred += data.len() as u32;
        }
    }

    /// The read's buffer, cut to what has arrived, if what is missing is `remaining` bytes and all that it has room for.
    pub(super) fn take_tail(&mut self, remaining: usize) -> Option<Buf> {
        let Payload::In(buf) = &mut self.payload else { return None };
        let received = self.transferred as usize;
        if buf.len() != buf.capacity() || buf.len() - received != remaining {
            return None;
        }
        let mut buf = std::mem::take(buf);
        buf.set_len(received);
        Some(buf)
    }

    pub(super) fn give_tail(&mut self, mut buf: Buf) {
        self.transferred = buf.len() as u32;
        buf.set_len(buf.capacity());
        self.payload = Payload::In(buf);
    }

    /// What a completion means for the command, given the data that came with it.
    pub(super) fn verdict(&self, completion: Completion) -> Ended {
        let missing = match &self.payload {
            Payload::In(buf) => (self.transferred as usize) < buf.len(),
            _ => false,
        };
        match completion.status().is_success() {
            true if self.digest_failed => Ended::WrongDigest,
            true if missing => Ended::ShortData,
            _ => Ended::Completed(completion),
        }
    }

    /// Notes the outcome; whether somebody wants to know it.
    pub(super) fn end(&mut self, ended: Ended) -> bool {
        self.stage = Stage::Ended(ended);
        !self.abandoned
    }

    /// Makes the slot free. What answers to the old command no longer answers to this slot.
    pub(super) fn release(&mut self) -> Option<Permit> {
        self.stage = Stage::Free;
        self.payload = Payload::None;
        self.generation = (self.generation + 1) & (u16::MAX >> INDEX_BITS);
        self.permit.take()
    }
}
