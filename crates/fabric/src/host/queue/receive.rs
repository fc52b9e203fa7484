//! What a queue does with bytes that arrive. The bytes are hostile; the invariants are at the top of the queue.

use engine::Buf;
use nvme::Completion;
use nvme::sgl::SglDescriptor;
use nvme::tcp::PduType;

use super::{Outgoing, Payload, Queue, QueueError, R2T_OUTSTANDING_MAX, Receiving};
use crate::host::requested::{RANGES_MAX, Refused};
use crate::host::slot::{Slot, SlotId, Stage};
use crate::tcp::{Encoder, Event, FatalError, IcResp, Pdu, ReadyToTransfer, Rules};

/// Data from this length on is received straight into the reader's buffer; below, a copy costs less than another receive.
/// Guessed: two pages.
const DIRECT_BYTES_MIN: usize = 8 << 10;

impl Queue {
    /// Takes bytes that arrived. After an error the connection must end, with [`Queue::term_req`] where that says so.
    pub fn input(&mut self, mut bytes: &[u8]) -> Result<(), QueueError> {
        loop {
            // Data is copied where it is told, so the event's borrow of `bytes` ends within this turn.
            match self.decoder.next(&mut bytes)? {
                None => return Ok(()),
                Some(Event::Pdu(pdu)) => self.pdu(pdu)?,
                Some(Event::Data(data)) => {
                    if let Some(receiving) = self.receiving {
                        self.slots[receiving.slot.index()].receive(data);
                    }
                }
                Some(Event::DataEnd { digest_ok }) => self.data_end(digest_ok),
            }
        }
    }

    /// A buffer to receive into, if the rest of the data that is arriving is long and exactly fills its reader's buffer:
    /// the bytes then land where they are wanted. It must come back by [`Queue::give_direct`].
    pub fn take_direct(&mut self) -> Option<Buf> {
        let remaining = self.decoder.data_remaining();
        let slot = &mut self.slots[self.receiving?.slot.index()];
        if remaining < DIRECT_BYTES_MIN {
            return None;
        }
        slot.take_tail(remaining)
    }

    /// Gives a buffer of [`Queue::take_direct`] back after a receive, however much that brought.
    pub fn give_direct(&mut self, buf: Buf) -> Result<(), QueueError> {
        if let Some(receiving) = self.receiving {
            let received = self.slots[receiving.slot.index()].transferred as usize;
            self.decoder.data_received(&buf[received..]);
            self.slots[receiving.slot.index()].give_tail(buf);
        }
        self.input(&[])
    }

    fn pdu(&mut self, pdu: Pdu) -> Result<(), QueueError> {
        match pdu {
            Pdu::IcResp(response) => self.initialized(response),
            Pdu::C2hTermReq(request) => Err(QueueError::Terminated(request)),
            Pdu::CapsuleResp(completion) => self.completed(completion),
            Pdu::C2hData(data) => {
                let pdu_type = PduType::C2H_DATA;
                let slot = self.sent(pdu_type, data.cccid)?;
                let Payload::In(buf) = &slot.payload else {
                    return Err(FatalError::field(pdu_type, 8, "data for a command that reads none", data.cccid).into());
                };
                if data.offset != slot.transferred || data.bytes as usize > buf.len() - slot.transferred as usize {
                    return Err(FatalError::out_of_range(pdu_type, "DATAO, DATAL beyond the read", data.offset).into());
                }
                let slot = slot.id();
                self.receiving = Some(Receiving { slot, success: data.success });
                Ok(())
            }
            Pdu::R2t(request) => self.requested(request),
            // The decoder lets only a controller's PDUs through.
            other => Err(FatalError::sequence(PduType::IC_REQ, other_side(&other)).into()),
        }
    }

    fn initialized(&mut self, response: IcResp) -> Result<(), QueueError> {
        let config = &self.config;
        if (response.header_digest, response.data_digest) != (config.header_digest, config.data_digest) {
            return Err(QueueError::Digests {
                header: response.header_digest,
                data: response.data_digest,
                want_header: config.header_digest,
                want_data: config.data_digest,
            });
        }
        let IcResp { alignment_code, header_digest, data_digest, maxh2cdata } = response;
        self.encoder = Encoder { header_digest, data_digest, alignment_code };
        self.decoder.establish(Rules {
            header_digest,
            data_digest,
            alignment_code: 0,
            capsule_data_bytes_max: 0,
            data_pdu_bytes_max: config.read_bytes_max,
        });
        self.maxh2cdata = maxh2cdata;
        Ok(())
    }

    /// The slot of a command that was sent and has not ended.
    fn sent(&mut self, pdu_type: PduType, command_id: u16) -> Result<&mut Slot, QueueError> {
        let id = SlotId::from_command_id(command_id);
        let slot = self.slots.get_mut(id.index()).and_then(|slot| slot.under_way(id));
        match slot.filter(|slot| slot.stage == Stage::Sent) {
            Some(slot) => Ok(slot),
            None => Err(FatalError::field(pdu_type, 8, "no such command is under way", command_id).into()),
        }
    }

    /// An R2T (NVMe/TCP 1.0 §3.6.2.10): the range must lie in the command's data, and no byte is asked for twice: a target that
    /// counts what it gets would take data that came twice for data that came whole.
    fn requested(&mut self, request: ReadyToTransfer) -> Result<(), QueueError> {
        let pdu_type = PduType::R2T;
        let slot = self.sent(pdu_type, request.cccid)?;
        let in_capsule = slot.command.sgl.identifier == SglDescriptor::IN_CAPSULE;
        let len = match &slot.payload {
            Payload::Out(data) if !in_capsule => data.len() as u64,
            _ => return Err(FatalError::sequence(pdu_type, "the command has no data to be asked for").into()),
        };
        let end = u64::from(request.offset) + u64::from(request.bytes);
        if end > len {
            return Err(FatalError::out_of_range(pdu_type, "R2TO, R2TL beyond the data", request.offset).into());
        }
        if slot.r2t_outstanding == R2T_OUTSTANDING_MAX {
            return Err(FatalError::limit(pdu_type, "more R2Ts than MAXR2T", R2T_OUTSTANDING_MAX).into());
        }
        match slot.requested.add(request.offset, request.bytes) {
            Ok(()) => {}
            Err(Refused::Again) => {
                return Err(
                    FatalError::out_of_range(pdu_type, "R2TO, R2TL overlap an earlier R2T", request.offset).into()
                );
            }
            Err(Refused::Scattered) => {
                return Err(FatalError::limit(pdu_type, "R2Ts leave too many gaps", RANGES_MAX as u16).into());
            }
        }
        slot.r2t_outstanding += 1;
        let slot = slot.id();
        self.outgoing.push_back(Outgoing::Data { slot, request });
        Ok(())
    }

    fn completed(&mut self, completion: Completion) -> Result<(), QueueError> {
        let pdu_type = PduType::CAPSULE_RESP;
        let slot = self.sent(pdu_type, completion.command_id.get())?;
        if completion.status().is_success()
            && let Payload::Out(data) = &slot.payload
            && (slot.transferred as usize) < data.len()
        {
            return Err(FatalError::sequence(pdu_type, "success of a command whose data was not sent yet").into());
        }
        let ended = slot.verdict(completion);
        let id = slot.id();
        self.end(id, ended);
        Ok(())
    }

    fn data_end(&mut self, digest_ok: bool) {
        // No command: the header that came with a TermReq.
        let Some(Receiving { slot: id, success }) = self.receiving.take() else { return };
        let slot = &mut self.slots[id.index()];
        slot.digest_failed |= !digest_ok;
        if success {
            let completion = Completion { command_id: id.command_id().into(), ..Completion::default() };
            let ended = slot.verdict(completion);
            self.end(id, ended);
        }
    }
}

fn other_side(pdu: &Pdu) -> &'static str {
    match pdu {
        Pdu::IcReq(_) => "ICReq from a target",
        Pdu::H2cTermReq(_) => "H2CTermReq from a target",
        Pdu::CapsuleCmd(_) => "CapsuleCmd from a target",
        _ => "H2CData from a target",
    }
}
