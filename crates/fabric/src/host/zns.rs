//! Remote zones (ZNS 1.1): the commands on them.
//!
//! Invariants:
//! - An append is sent at most once, over however many paths: the second copy would write its data a second time.
//! - A report is believed as far as it can be: zones in order, each where one begins, with a capacity and a write pointer within
//!   it.

use device::{Durability, Error, Lba, Zone, ZoneState, ZonedInfo};
use engine::{Buf, View};
use nvme::command::FORCE_UNIT_ACCESS;
use nvme::opcode::NvmOpcode;
use nvme::zns::{ZONE_SEQUENTIAL, ZoneDescriptor, ZoneReceive, ZoneReportHead, receive_action, zone_state};
use nvme::{Status, Submission};
use zerocopy::FromBytes;

use super::error::{CommandError, Fate};
use super::io::{Io, check_length, check_range};
use super::queue::Payload;
use super::session;
use super::slot::Ended;

/// Reads a report of zones from the block `from` on; `end` is the namespace's. What is cut off is left out.
pub(super) fn parse_report(bytes: &[u8], zoned: &ZonedInfo, from: u64, end: u64) -> Result<Vec<Zone>, &'static str> {
    let (head, body) = ZoneReportHead::read_from_prefix(bytes).map_err(|_| "a report without its head")?;
    let descriptors = body.chunks_exact(size_of::<ZoneDescriptor>());
    let count = usize::try_from(head.zones.get()).unwrap_or(usize::MAX).min(descriptors.len());
    let mut zones = Vec::with_capacity(count);
    let mut expected = from - from % zoned.zone_blocks;
    for bytes in descriptors.take(count) {
        let found = ZoneDescriptor::read_from_bytes(bytes).map_err(|_| "half a descriptor")?;
        let zone = read_zone(&found)?;
        if zone.start.0 != expected || expected >= end {
            return Err("zones that are not in order");
        }
        let pointer = zone.start.0..=zone.start.0 + zone.capacity;
        if zone.capacity > zoned.zone_blocks || !pointer.contains(&zone.write_pointer.0) {
            return Err("a zone whose capacity or write pointer lies beyond it");
        }
        expected += zoned.zone_blocks;
        zones.push(zone);
    }
    Ok(zones)
}

fn read_zone(found: &ZoneDescriptor) -> Result<Zone, &'static str> {
    if found.zt & 0xF != ZONE_SEQUENTIAL {
        return Err("a zone of an unknown type");
    }
    let state = match found.zs >> 4 {
        zone_state::EMPTY => ZoneState::Empty,
        zone_state::IMPLICITLY_OPEN => ZoneState::ImplicitlyOpen,
        zone_state::EXPLICITLY_OPEN => ZoneState::ExplicitlyOpen,
        zone_state::CLOSED => ZoneState::Closed,
        zone_state::READ_ONLY => ZoneState::ReadOnly,
        zone_state::FULL => ZoneState::Full,
        zone_state::OFFLINE => ZoneState::Offline,
        _ => return Err("a zone in an unknown state"),
    };
    let (start, capacity) = (found.zslba.get(), found.zcap.get());
    let end = start.checked_add(capacity).ok_or("a zone beyond all blocks")?;
    let write_pointer = match state {
        ZoneState::Full => end,
        ZoneState::ReadOnly | ZoneState::Offline => start,
        _ => found.wp.get(),
    };
    Ok(Zone { start: Lba(start), capacity, write_pointer: Lba(write_pointer), state })
}

impl session::Attached {
    /// What its zones are.
    pub(super) fn zones(&self) -> Result<ZonedInfo, Error> {
        self.zoned.get().ok_or(Error::Unsupported("zones"))
    }

    /// A zone begins at this block.
    pub(super) fn check_zone(&self, zone: Lba) -> Result<(), Error> {
        check_range(self, zone, 1)?;
        let begins = zone.0.is_multiple_of(self.zones()?.zone_blocks);
        if begins { Ok(()) } else { Err(Error::Unsupported("zones that begin elsewhere than where one begins")) }
    }
}

impl Io<'_> {
    /// The zones from the one that has the block `from` on, in as many commands as it takes.
    pub(super) async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, CommandError> {
        let zoned = self.attached.zones()?;
        check_range(self.attached, from, 1)?;
        let (block_size, end) = {
            let info = self.attached.info.borrow();
            (u64::from(info.block_size), info.blocks)
        };
        let bytes_max = u64::from(self.up.limits.command_blocks_max) * block_size;
        let piece = bytes_max / size_of::<ZoneDescriptor>() as u64 - 1;
        let (mut zones, mut next) = (Vec::new(), from.0 - from.0 % zoned.zone_blocks);
        while zones.len() < max && next < end {
            let wanted = piece.min((max - zones.len()) as u64).min((end - next) / zoned.zone_blocks);
            let bytes = (wanted + 1) * size_of::<ZoneDescriptor>() as u64;
            let asked = ZoneReceive { lba: next, bytes, action: receive_action::REPORT, states: 0, partial: true };
            let payload = Payload::In(Buf::zeroed(bytes as usize));
            let (result, payload) = self.command(asked.to_submission(self.attached.nsid), payload).await;
            result?;
            let Payload::In(report) = payload else { break };
            let found = parse_report(&report, &zoned, next, end).map_err(|what| self.strange(what))?;
            // Less than was asked for may be told, and never nothing.
            let last = found.last().ok_or_else(|| self.strange("no zone where there is one"))?;
            next = last.start.0 + zoned.zone_blocks;
            zones.extend(found);
        }
        Ok(zones)
    }

    /// What was answered makes no sense; nothing is sent again for it.
    fn strange(&self, what: &str) -> CommandError {
        let error = Error::ReadFault(format!("{} told of {what}", self.attached.name));
        CommandError { error, fate: Fate::Answered }
    }

    /// Zone Append: one command, sent once.
    pub(super) async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, CommandError> {
        let zoned = self.attached.zones()?;
        self.attached.check_zone(zone)?;
        let blocks = check_length(self.attached, zone, data.len(), zoned.append_blocks_max)?;
        let mut command = Submission::nvm(NvmOpcode::ZONE_APPEND, 0, self.attached.nsid);
        if durability == Durability::Stable {
            command.cdw12 = FORCE_UNIT_ACCESS.into();
        }
        command.set_range(zone.0, blocks);
        let ended = self.ended(command, Payload::Out(data)).await?;
        match ended {
            Ended::Completed(completion) if completion.status() == Status::SUCCESS => {
                let lba = completion.result.get();
                let room = zone.0..=zone.0 + zoned.zone_blocks - u64::from(blocks);
                // The data is somewhere: an error that says so, and not that nothing was written.
                let lost = || CommandError { error: Error::Aborted, fate: Fate::Answered };
                room.contains(&lba).then_some(Lba(lba)).ok_or_else(lost)
            }
            // `ended` has told of every other end.
            _ => Err(self.strange("an end that is none")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    const ZONED: ZonedInfo = ZonedInfo { zone_blocks: 8, open_max: None, active_max: None, append_blocks_max: 4 };

    fn report(count: u64, zones: &[ZoneDescriptor]) -> Vec<u8> {
        let mut head = ZoneReportHead::new_zeroed();
        head.zones = count.into();
        [head.as_bytes(), zones.as_bytes()].concat()
    }

    fn told(start: u64, state: u8, pointer: u64) -> ZoneDescriptor {
        let (zcap, zslba, wp) = (6.into(), start.into(), pointer.into());
        ZoneDescriptor { zt: ZONE_SEQUENTIAL, zs: state << 4, zcap, zslba, wp, ..ZoneDescriptor::default() }
    }

    #[test]
    fn a_report_is_believed_as_far_as_it_can_be() {
        let good = [told(8, zone_state::CLOSED, 10), told(16, zone_state::FULL, u64::MAX)];
        let zones = parse_report(&report(2, &good), &ZONED, 9, 24).expect("a report");
        assert_eq!(zones.iter().map(|zone| zone.start.0).collect::<Vec<_>>(), [8, 16]);
        assert_eq!((zones[0].write_pointer, zones[1].write_pointer), (Lba(10), Lba(22)));
        // The head may count more than there is room for.
        assert_eq!(parse_report(&report(900, &good), &ZONED, 8, 24).map(|zones| zones.len()), Ok(2));
        assert_eq!(parse_report(&report(1, &good), &ZONED, 8, 24).map(|zones| zones.len()), Ok(1));
        let bad = [
            (vec![told(16, zone_state::EMPTY, 16)], "in order"),
            (vec![told(8, zone_state::EMPTY, 8), told(24, zone_state::EMPTY, 24)], "in order"),
            (vec![told(8, zone_state::CLOSED, 15)], "beyond it"),
            (vec![told(8, zone_state::CLOSED, 7)], "beyond it"),
            (vec![told(8, 9, 8)], "unknown state"),
            (vec![ZoneDescriptor { zt: 1, ..told(8, zone_state::EMPTY, 8) }], "unknown type"),
            (vec![ZoneDescriptor { zcap: 9.into(), ..told(8, zone_state::EMPTY, 8) }], "beyond it"),
            (vec![ZoneDescriptor { zcap: u64::MAX.into(), ..told(8, zone_state::EMPTY, 8) }], "beyond all"),
        ];
        for (zones, why) in bad {
            let found = parse_report(&report(zones.len() as u64, &zones), &ZONED, 8, 24);
            assert!(found.as_ref().is_err_and(|error| error.contains(why)), "{zones:?}: {found:?}");
        }
        assert!(parse_report(&[0; 63], &ZONED, 8, 24).is_err());
    }
}
