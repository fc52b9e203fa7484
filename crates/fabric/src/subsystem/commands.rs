//! What a queue does with a command: check it when its capsule arrives, run it when its data has.
//!
//! Fused operations (NVMe Base 2.0 §3.4.2): the halves must be adjacent in the queue, first half first. A first half that
//! the next command does not complete, and a second half without a first, is aborted with Missing Fused Command. Where one
//! half fails, the other is aborted with Failed Fused Command.

use std::sync::atomic::Ordering::Relaxed;

use device::{Durability, Error, Lba};
use engine::Buf;
use engine::time::Instant;
use nvme::command::WRITE_ZEROES_DEALLOCATE;
use nvme::opcode::{FabricsType, NvmOpcode};
use nvme::sgl::SglKind;
use nvme::{Fuse, Status, Submission};

use super::authentication;
use super::connection::{Connection, Fusing, Phase};
use super::controller::Controller;
use super::end::End;
use super::io::{self, Operation, Outcome, Plan, Work};
use super::limits::COPY_BUFFER_BYTES;
use super::manage::Request;
use super::slots::{Slot, Stage};
use super::stats::CommandKind;
use super::zns;

impl Connection {
    /// What the command in `slot` needs before it can run, or the status it is refused with. Its capsule brings
    /// `capsule_bytes` of data.
    pub(super) fn plan(&mut self, slot: u16, capsule_bytes: u32) -> Result<Plan, Status> {
        let command = self.slots.at(slot).command;
        let before = std::mem::take(&mut self.fusing);
        let planned = if self.has_used_identifier(slot) {
            Err(Status::COMMAND_ID_CONFLICT.do_not_retry())
        } else if !command.uses_sgl() {
            Err(Status::INVALID_FIELD.do_not_retry())
        } else if self.phase == Phase::Connecting {
            self.plan_connecting(&command, capsule_bytes)
        } else if let Some(planned) = self.plan_authentication(&command, capsule_bytes) {
            planned
        } else if self.queue.qid == 0 {
            self.plan_admin(&command, capsule_bytes)
        } else {
            self.plan_io(slot, &command, capsule_bytes)
        };
        self.fuse(before, slot, &command, planned)
    }

    /// Whether another command that is not answered has the identifier. One that only waits for an event does not count against
    /// a Fabrics command: a host that detaches may have given up its event requests, and then uses their identifiers for the
    /// properties by which it shuts the controller down. Refused, it could not do so in order.
    fn has_used_identifier(&self, slot: u16) -> bool {
        let Some(own) = self.slots.get(slot).filter(|own| !own.owns_id) else { return false };
        let in_the_way = |other: &Slot| other.stage != Stage::Parked || own.command.fabrics_type().is_none();
        let id = own.command.command_id;
        self.slots.iter().any(|(other, entry)| other != slot && entry.command.command_id == id && in_the_way(entry))
    }

    fn plan_io(&mut self, slot: u16, command: &Submission, capsule_bytes: u32) -> Result<Plan, Status> {
        if let Some(fabrics) = command.fabrics_type() {
            let known = fabrics == FabricsType::DISCONNECT;
            return if known { Ok(Plan::Run) } else { Err(Status::INVALID_OPCODE.do_not_retry()) };
        }
        let kind = CommandKind::of(NvmOpcode(command.opcode)).filter(|&kind| self.shared.config.profile.offers(kind));
        let kind = kind.ok_or(Status::INVALID_OPCODE.do_not_retry())?;
        let nsid = command.nsid.get();
        let found = self.find_namespace(nsid).ok_or(Status::INVALID_NAMESPACE.do_not_retry())?;
        let attached = &self.namespaces[found];
        if let Some(status) = attached.access.refusal() {
            return Err(status);
        }
        let entry = self.slots.at(slot);
        entry.kind = Some(kind);
        entry.addressed = Some(attached.addressed());
        if kind == CommandKind::Reservation && attached.snapshot {
            return Err(Status::INVALID_FIELD.do_not_retry()); // as RESCAP says
        }
        let planned = match zns::plan(command, kind, &attached.info, attached.zoned.as_ref()) {
            Some(needs) => needs.and_then(|need| io::plan_on_zones(command, &need, capsule_bytes)),
            None => io::plan(command, kind, &attached.info, capsule_bytes),
        };
        if !self.is_admitted(found, command) {
            return Err(Status::RESERVATION_CONFLICT.do_not_retry());
        }
        planned
    }

    /// Brings the halves of a fused pair together. `before` is what the command before left.
    fn fuse(
        &mut self,
        before: Fusing,
        slot: u16,
        command: &Submission,
        planned: Result<Plan, Status>,
    ) -> Result<Plan, Status> {
        let fuse = command.fuse();
        if let (Fusing::First(first), Fuse::None | Fuse::First | Fuse::Reserved) = (before, fuse) {
            self.fail(first, Status::MISSING_FUSED);
        }
        match fuse {
            Fuse::None => planned,
            _ if self.queue.qid == 0 => Err(Status::INVALID_FIELD.do_not_retry()),
            Fuse::Reserved => Err(Status::INVALID_FIELD.do_not_retry()),
            Fuse::First => {
                let planned = planned.and_then(|plan| self.check_first(slot, command).map(|()| plan));
                self.fusing = if planned.is_ok() { Fusing::First(slot) } else { Fusing::Failed };
                planned
            }
            Fuse::Second => match before {
                Fusing::None => Err(Status::MISSING_FUSED),
                Fusing::Failed => Err(Status::FAILED_FUSED),
                Fusing::First(first) => self.pair(first, slot, command, planned),
            },
        }
    }

    fn check_first(&mut self, slot: u16, command: &Submission) -> Result<(), Status> {
        if command.opcode != NvmOpcode::COMPARE.0 {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        match &self.slots.at(slot).addressed {
            // Whatever the namespace could do: what is written in a zone stays until the zone is reset.
            Some(addressed) if addressed.zoned.is_some() => Err(Status::INVALID_FIELD.do_not_retry()),
            Some(addressed) => io::check_fused_size(command, &addressed.info),
            None => Err(Status::INVALID_NAMESPACE.do_not_retry()),
        }
    }

    fn pair(
        &mut self,
        first: u16,
        second: u16,
        command: &Submission,
        planned: Result<Plan, Status>,
    ) -> Result<Plan, Status> {
        if !io::is_pair(&self.slots.at(first).command, command) {
            self.fail(first, Status::INVALID_FIELD.do_not_retry());
            return Err(Status::FAILED_FUSED);
        }
        match planned {
            Ok(plan) => {
                self.slots.at(first).partner = Some(second);
                self.slots.at(second).partner = Some(first);
                Ok(plan)
            }
            Err(status) => {
                self.fail(first, Status::FAILED_FUSED);
                Err(status)
            }
        }
    }

    /// Lets a command fail that has not been executed: at once, or where its data is on its way, when that has arrived. What it
    /// holds goes at once in any case.
    pub(super) fn fail(&mut self, slot: u16, status: Status) {
        let entry = self.slots.at(slot);
        match entry.stage {
            Stage::Capsule | Stage::Transfer => self.doom(slot, status),
            Stage::Waiting => {
                self.waiting.retain(|&waiting| waiting != slot);
                self.answer(slot, status, 0);
            }
            Stage::Ready => {
                self.ready.retain(|&ready| ready != slot);
                self.answer(slot, status, 0);
            }
            Stage::Executing | Stage::Parked | Stage::Answered => {}
        }
    }

    /// All of the command's data is here.
    pub(super) fn run(&mut self, slot: u16, now: Instant) {
        let entry = self.slots.at(slot);
        entry.stage = Stage::Ready;
        if let Some(status) = entry.doomed {
            self.run_doomed(slot, status);
        } else if self.phase == Phase::Connecting {
            self.connect(slot, now);
        } else if let Some(kind) = authentication::kind(&entry.command) {
            self.authenticate(slot, kind, now);
        } else if self.queue.qid == 0 {
            self.run_admin(slot, now);
        } else {
            self.run_io(slot);
        }
    }

    pub(super) fn run_doomed(&mut self, slot: u16, status: Status) {
        if self.fusing == Fusing::First(slot) {
            self.fusing = Fusing::Failed;
        }
        let partner = self.part(slot);
        self.answer(slot, status, 0);
        if let Some(partner) = partner {
            self.fail(partner, Status::FAILED_FUSED);
        }
    }

    fn run_io(&mut self, slot: u16) {
        let entry = self.slots.at(slot);
        if entry.command.fabrics_type().is_some() {
            return self.disconnect(slot);
        }
        align_in_capsule(entry);
        if entry.kind == Some(CommandKind::Deallocate) {
            entry.data.set_len(io::ranges_bytes(&entry.command) as usize);
            let checked = entry.addressed.as_ref().map(|addressed| io::check_ranges(&entry.data, &addressed.info));
            if let Some(Err(status)) = checked {
                return self.answer(slot, status, 0);
            }
            if !io::is_deallocate(&entry.command) {
                return self.answer(slot, Status::SUCCESS, 0); // hints, of which we make no use
            }
        }
        if entry.kind == Some(CommandKind::Copy) {
            return self.run_copy(slot);
        }
        if !entry.is_fused() {
            return self.ready.push_back(slot);
        }
        let second = entry.command.fuse() == Fuse::Second;
        let Some(partner) = entry.partner else { return };
        // A fused pair is executed as one, and not before the data of both halves is here.
        if self.slots.at(partner).stage == Stage::Ready {
            self.ready.push_back(if second { partner } else { slot });
        }
    }

    /// A Copy whose source ranges are here. Where they came in its capsule it waits, in order with everybody, for room for the data
    /// that it will hold; where they were asked for it has that already.
    fn run_copy(&mut self, slot: u16) {
        let entry = self.slots.at(slot);
        let checked = entry
            .addressed
            .as_ref()
            .map(|addressed| io::check_copy_ranges(&entry.command, &entry.data, &addressed.info));
        if let Some(Err(status)) = checked {
            return self.answer(slot, status, 0);
        }
        if entry.charged > 0 {
            return self.ready.push_back(slot);
        }
        entry.stage = Stage::Waiting;
        entry.wanted = COPY_BUFFER_BYTES;
        self.waiting.push_back(slot);
        self.grant();
    }

    /// Disconnect of an I/O queue (NVMe Base 2.0 §6.4): commands that are not done are given up with the queue.
    fn disconnect(&mut self, slot: u16) {
        let recfmt = self.slots.at(slot).command.cdw10.get() & 0xFFFF;
        if recfmt != 0 {
            return self.answer(slot, Status::CONNECT_INCOMPATIBLE_FORMAT.do_not_retry(), 0);
        }
        self.answer(slot, Status::SUCCESS, 0);
        self.finish(End::Disconnected);
    }

    // Execution.

    /// The next operation to execute. Its outcome must come back by [`Connection::complete`].
    pub fn next_operation(&mut self) -> Option<Operation> {
        if let Some(flush) = self.shutdown.next_flush() {
            return Some(flush);
        }
        // Looked at for each (two loads): a turn with many commands is long, and its end need not be waited for.
        if !self.ready.is_empty()
            && let Some(end) = self.controller_end()
        {
            self.finish(end);
        }
        let slot = loop {
            self.look_again();
            let slot = self.ready.pop_front()?;
            if self.may_begin(slot) {
                break slot;
            }
        };
        let write_through = self.controller.as_ref().is_some_and(|controller| controller.write_through());
        let entry = self.slots.at(slot);
        entry.stage = Stage::Executing;
        let command = entry.command;
        let addressed = entry.addressed.take().expect("invariant: plan_io addresses every command that gets ready");
        let data = std::mem::take(&mut entry.data).freeze();
        let (wanted, partner) = (entry.wanted, entry.partner);
        let lba = Lba(command.lba());
        let blocks = u64::from(command.blocks());
        let durability_of = |command: &Submission| {
            if write_through || command.force_unit_access() { Durability::Stable } else { Durability::Cached }
        };
        let durability = durability_of(&command);
        let kind = entry.kind.expect("invariant: plan_io gives every command that gets ready a kind");
        let commit = io::commits_first(&command, kind, &addressed.info);
        let work = match kind {
            CommandKind::Read => Work::Read { lba, buf: Buf::with_len(wanted as usize) },
            CommandKind::Write => Work::Write { lba, data, durability },
            CommandKind::Flush => Work::Flush,
            CommandKind::WriteZeroes => {
                let deallocates = command.cdw12.get() & WRITE_ZEROES_DEALLOCATE != 0;
                // In a zone zeroes are written as anything else is, and move the write pointer.
                let deallocates = deallocates && addressed.info.deallocated_reads_zero && addressed.zoned.is_none();
                Work::WriteZeroes { lba, blocks, durability, deallocates }
            }
            CommandKind::Deallocate => Work::Deallocate { ranges: data },
            CommandKind::ZoneAppend | CommandKind::ZoneSend | CommandKind::ZoneReceive => {
                Work::Zones(zns::work(&command, kind, data, durability))
            }
            CommandKind::Reservation => Work::Reserve(self.reserve(&command, &data)),
            CommandKind::Verify => Work::Verify { lba, blocks },
            CommandKind::WriteUncorrectable => Work::WriteUncorrectable { lba, blocks },
            CommandKind::Copy => {
                let block_size = addressed.info.block_size;
                Work::Copy { lba, ranges: data, block_size, durability }
            }
            CommandKind::Compare | CommandKind::CompareAndWrite => match partner {
                None => Work::Compare { lba, expected: data },
                Some(partner) => {
                    let second = self.slots.at(partner);
                    second.stage = Stage::Executing;
                    second.kind = Some(CommandKind::CompareAndWrite);
                    let durability = durability_of(&second.command);
                    let new = std::mem::take(&mut second.data).freeze();
                    Work::CompareAndWrite { lba, expected: data, new, durability }
                }
            },
        };
        Some(Operation { slot: Some(slot), namespace: addressed.namespace, commit, work })
    }

    /// The next Namespace Management or Attachment to carry out, and its slot; its outcome comes back likewise.
    pub fn next_request(&mut self) -> Option<(u16, Box<Request>)> {
        let (slot, request) = self.requests.pop_front()?;
        self.slots.at(slot).stage = Stage::Executing;
        Some((slot, request))
    }

    /// Takes an operation's outcome.
    pub fn complete(&mut self, outcome: Outcome) {
        let Some(slot) = outcome.slot else { return self.flushed() };
        if let Err(Error::ReadOnly(_) | Error::WriteFault(_)) = outcome.result {
            self.look_at_writability(slot);
        }
        let entry = self.slots.at(slot);
        match entry.partner.take() {
            Some(partner) => {
                entry.kind = None; // the pair counts once, as the second half
                let (first, second) = io::fused_statuses(&outcome.result);
                self.answer(slot, first, 0);
                self.answer(partner, second, 0);
            }
            None => {
                let of_result = || outcome.result.map_or_else(|error| io::status_of(&error), |()| Status::SUCCESS);
                let status = outcome.status.unwrap_or_else(of_result);
                if status.is_success() && !outcome.data.is_empty() {
                    return self.answer_data(slot, outcome.data.freeze(), 0);
                }
                // Of a Copy that failed: the first range that was not copied (NVM Command Set 1.0c §3.2.2).
                self.answer(slot, status, outcome.dwords);
            }
        }
    }

    /// Counts an answered command.
    pub(super) fn count(&self, slot: &Slot, now: Instant) {
        let stats = &self.shared.stats;
        stats.count_status(slot.status);
        match slot.kind {
            Some(kind) => stats.count(kind, now.duration_since(slot.arrived)),
            None if self.queue.qid == 0 => {
                stats.admin_commands.fetch_add(1, Relaxed);
            }
            None => {}
        }
        if slot.status.is_success() {
            match slot.kind {
                Some(CommandKind::Read | CommandKind::Compare) => {
                    stats.read_bytes.fetch_add(u64::from(slot.wanted), Relaxed)
                }
                Some(CommandKind::Write | CommandKind::ZoneAppend) => {
                    stats.written_bytes.fetch_add(u64::from(slot.wanted), Relaxed)
                }
                Some(CommandKind::CompareAndWrite) => {
                    stats.read_bytes.fetch_add(u64::from(slot.wanted), Relaxed);
                    stats.written_bytes.fetch_add(u64::from(slot.wanted), Relaxed)
                }
                _ => 0,
            };
        } else if let Some(controller) = &self.controller {
            self.note_error(controller, slot);
        }
    }

    /// Puts a failed command into the error log. A compare that fails is how the store above works, not an error: it would
    /// push everything else out of the log.
    fn note_error(&self, controller: &Controller, slot: &Slot) {
        let usual = [Status::COMPARE_FAILURE, Status::FAILED_FUSED].contains(&slot.status.kind());
        if !usual {
            controller.note_error(self.queue.qid, &slot.command, slot.status);
        }
    }

    /// Whether operations wait to be executed.
    pub fn has_operations(&self) -> bool {
        !self.ready.is_empty() || self.shutdown.has_flushes() || !self.requests.is_empty()
    }

    /// Gives back what a burst has made the connection take.
    pub fn shrink(&mut self) {
        self.slots.shrink();
    }
}

/// Data at an offset in the capsule is copied to the start of a buffer: media want it aligned. A command without data has a
/// data pointer all the same; nobody has checked what it says, and it must not be followed.
pub(super) fn align_in_capsule(slot: &mut Slot) {
    if slot.data.is_empty() {
        return;
    }
    let SglKind::InCapsule { offset } = slot.command.sgl.kind() else { return };
    let (start, length) = (offset as usize, slot.command.sgl.length.get() as usize);
    if start != 0 || length != slot.data.len() {
        slot.data = Buf::copy_from(&slot.data[start..start + length]);
    }
    slot.wanted = length as u32;
}
