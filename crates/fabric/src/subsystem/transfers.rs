//! Data from the host: in order, into the buffer of its command, and in time.
//!
//! Invariants:
//! - What was asked for by R2T comes whole: until then its command keeps its slot, whose number is the TTAG.
//! - A command that is not to be executed any more holds neither buffer nor namespace: it only waits for the rest of its data,
//!   which is thrown away, to be answered. Were it to hold them, a host that sends nothing would keep the medium of a namespace
//!   that was taken from it, for as long as it likes.
//! - A host that owes data has [`WITHHELD_TIME_MAX`]. Then its connection ends, and with it what it holds for nothing. While
//!   nothing is read from it, its time stands still, and goes on afterwards: began it anew, a host could owe data for ever by
//!   pauses.

use std::time::Duration;

use engine::Buf;
use engine::time::Instant;
use nvme::Status;
use nvme::tcp::PduType;

use super::connection::{Connection, Phase};
use super::end::End;
use super::limits::{DIRECT_BYTES_MIN, WITHHELD_TIME_MAX};
use super::slots::Stage;
use crate::tcp::{DataPdu, FatalError};

/// When to look whether the host owes data for too long.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Patience {
    pub next_look: Option<Instant>,
    /// How long the host's time has stood still: what it had sent by then may not have been read.
    stood: Duration,
    /// Since when it stands still.
    paused: Option<Instant>,
}

impl Patience {
    /// The host's time.
    pub fn clock(&self, now: Instant) -> Instant {
        let stood = self.stood + self.paused.map_or(Duration::ZERO, |since| now.duration_since(since));
        Instant::from_nanos(now.as_nanos().saturating_sub(stood.as_nanos() as u64))
    }

    /// Notes whether the connection pauses.
    fn note(&mut self, pauses: bool, now: Instant) {
        if pauses {
            self.paused.get_or_insert(now);
        } else if let Some(since) = self.paused.take() {
            self.stood += now.duration_since(since);
            self.next_look = self.next_look.map(|look| look.min(now)); // it was put off
        }
    }
}

impl Connection {
    /// Lends the buffer in which the data to come belongs, where what remains of the PDU fills it exactly and is long
    /// enough to be worth a receive of its own. Give it back by [`Connection::received_directly`].
    pub fn take_direct(&mut self) -> Option<Buf> {
        let remaining = self.decoder.data_remaining();
        let slot = self.slots.get_mut(self.current.filter(|_| remaining >= DIRECT_BYTES_MIN)?)?;
        // Spare capacity beyond the PDU would swallow the start of the next one.
        let fits = slot.data.capacity() - slot.data.len() == remaining;
        slot.lent = fits;
        fits.then(|| std::mem::take(&mut slot.data))
    }

    /// Takes the lent buffer back with `bytes` more in it than it had.
    pub fn received_directly(&mut self, buf: Buf, bytes: usize, now: Instant) {
        let Some(current) = self.current.filter(|_| self.end.is_none()) else { return };
        self.decoder.data_received(&buf[buf.len() - bytes..]);
        let entry = self.slots.at(current);
        entry.lent = false;
        entry.received += bytes as u32;
        entry.data = buf;
        if entry.doomed.is_some() {
            self.let_go(current);
        }
        self.receive(&[], now);
    }

    /// Data for an R2T: in order, within what was asked for (NVMe/TCP 1.0 §3.6.2.8).
    pub(super) fn on_h2c_data(&mut self, pdu: DataPdu) -> Result<(), FatalError> {
        let kind = PduType::H2C_DATA;
        self.current = None;
        let Some(slot) = self.slots.get(pdu.ttag).filter(|slot| slot.stage == Stage::Transfer) else {
            return Err(FatalError::field(kind, 10, "TTAG", pdu.ttag));
        };
        if slot.command.command_id.get() != pdu.cccid {
            return Err(FatalError::field(kind, 8, "CCCID does not belong to TTAG", pdu.cccid));
        }
        if pdu.offset != slot.received {
            return Err(FatalError::out_of_range(kind, "DATAO is not where the data before ended", pdu.offset));
        }
        let left = slot.wanted - pdu.offset;
        if pdu.bytes > left {
            return Err(FatalError::out_of_range(kind, "DATAL goes beyond what the R2T asked for", pdu.bytes));
        }
        if pdu.last != (pdu.bytes == left) {
            return Err(FatalError::field(kind, 1, "LAST_PDU does not tell the end of the R2T's data", pdu.last));
        }
        self.current = Some(pdu.ttag);
        Ok(())
    }

    pub(super) fn on_data(&mut self, data: &[u8]) {
        let Some(current) = self.current else { return };
        let entry = self.slots.at(current);
        entry.received += data.len() as u32;
        if entry.doomed.is_none() {
            entry.data.extend_from_slice(data);
        }
    }

    pub(super) fn on_data_end(&mut self, digest_ok: bool, now: Instant) {
        let Some(current) = self.current.take() else { return };
        if !digest_ok {
            // Not fatal (NVMe/TCP 1.0 §3.5): the command fails once the rest of its data is here.
            self.doom(current, Status::TRANSIENT_TRANSPORT_ERROR);
        }
        let slot = self.slots.at(current);
        if slot.received == slot.wanted {
            self.run(current, now);
        }
    }

    /// A command will not be executed: what it holds goes at once, and its answer goes when its data is here.
    pub(super) fn doom(&mut self, slot: u16, status: Status) {
        let entry = self.slots.at(slot);
        entry.doomed.get_or_insert(status);
        entry.addressed = None;
        self.let_go(slot);
    }

    /// Gives back the buffer of a command that is not executed, with its room. A buffer that is lent to a receive is the
    /// kernel's, and its room is taken, until that has ended.
    fn let_go(&mut self, slot: u16) {
        let entry = self.slots.at(slot);
        if entry.lent {
            return;
        }
        entry.data = Buf::default();
        self.room.give(std::mem::take(&mut entry.charged));
        self.capsules.give(std::mem::take(&mut entry.in_capsule));
        self.grant();
        self.resume();
    }

    // Withheld data.

    /// A command waits for data.
    pub(super) fn expect_data(&mut self, now: Instant) {
        self.patience.next_look.get_or_insert(now + WITHHELD_TIME_MAX);
    }

    /// Ends the connection of a host that owes data for too long.
    pub(super) fn look_for_withheld_data(&mut self, now: Instant) {
        self.patience.note(self.paused.is_some(), now);
        if self.patience.next_look.is_none_or(|look| now < look) || self.phase != Phase::Live {
            return;
        }
        let expecting = self.slots.iter().any(|(_, entry)| entry.stage.is_before_data() || entry.is_lone_half());
        let owed = self.slots.iter().filter_map(|(slot, entry)| match entry.stage {
            Stage::Capsule if self.paused != Some(slot) => Some(entry.expected),
            Stage::Transfer => entry.asked,
            _ => entry.is_lone_half().then_some(entry.expected),
        });
        let clock = self.patience.clock(now);
        let left = (owed.min().unwrap_or(clock) + WITHHELD_TIME_MAX).duration_since(clock);
        let left = if self.paused.is_some() { WITHHELD_TIME_MAX } else { left };
        if left.is_zero() {
            self.finish(End::DataWithheld);
        }
        self.patience.next_look = expecting.then_some(now + left);
    }
}
