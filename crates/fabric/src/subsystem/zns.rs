//! The Zoned Namespace Command Set (ZNS 1.1): what is checked before a command on zones runs, and how it is executed.
//!
//! - A zoned namespace is there for hosts that have enabled all I/O command sets (CC.CSS 110b). For others it is inactive, since
//!   they would write it as one that takes writes anywhere.
//! - Of the NVM Command Set it has all but Copy, and nothing is fused on it (ZNS 1.1 §2.1.3).
//! - No zone changes by itself but by failing, and that is told by the status of the command that met it: there are no Zone
//!   Descriptor Changed notices, and no Changed Zone List.

use device::{AnyNamespace, Durability, Error, Lba, Namespace, NamespaceInfo, Zone, ZoneAction, ZoneState, ZonedInfo};
use engine::{Buf, View};
use nvme::zns::{
    REPORTED_STATES, WRITE_POINTER_NONE, ZONE_SEQUENTIAL, ZoneDescriptor, ZoneReceive, ZoneReportHead, ZoneSend,
    receive_action, send_action, zone_state,
};
use nvme::{Status, Submission};
use zerocopy::{FromZeros, IntoBytes};

use super::limits::TRANSFER_BYTES_MAX;
use super::stats::CommandKind;

/// Zones that a report asks its namespace for at a time. Chosen: a few pages of memory, and few turns for a large report.
const REPORT_PIECE: usize = 256;

const INVALID: Status = Status::INVALID_FIELD.do_not_retry();
const UNKNOWN: Status = Status::INVALID_OPCODE.do_not_retry();

/// The data of a command on zones.
pub(super) enum Need {
    Nothing,
    FromHost(u32),
    ToHost(u32),
}

/// What is done with zones.
pub(super) enum ZoneWork {
    /// Zone Append.
    Append { zone: Lba, data: View, durability: Durability },
    /// Zone Management Send.
    Change { zone: Option<Lba>, action: ZoneAction },
    /// Zone Management Receive.
    Report { asked: ZoneReceive },
}

// Checks.

/// What a command needs that is on zones, or that zones do not have; `None`: it is as on any namespace.
pub(super) fn plan(
    command: &Submission,
    kind: CommandKind,
    info: &NamespaceInfo,
    zoned: Option<&ZonedInfo>,
) -> Option<Result<Need, Status>> {
    let on_zones = matches!(kind, CommandKind::ZoneAppend | CommandKind::ZoneSend | CommandKind::ZoneReceive);
    match (zoned, kind) {
        (None, _) => on_zones.then_some(Err(UNKNOWN)),
        (Some(zoned), CommandKind::ZoneAppend) => Some(plan_append(command, info, zoned)),
        (Some(zoned), CommandKind::ZoneSend) => Some(check_send(command, info, zoned).map(|()| Need::Nothing)),
        (Some(_), CommandKind::ZoneReceive) => Some(plan_receive(command, info)),
        (Some(_), CommandKind::Copy) => Some(Err(UNKNOWN)),
        (Some(_), _) => None,
    }
}

/// The first block of a zone (ZNS 1.1 §3.4.1, §3.4.3: Invalid Field in Command where it is not).
fn check_zone(lba: u64, info: &NamespaceInfo, zoned: &ZonedInfo) -> Result<(), Status> {
    match lba {
        lba if lba >= info.blocks => Err(Status::LBA_OUT_OF_RANGE.do_not_retry()),
        lba if !lba.is_multiple_of(zoned.zone_blocks) => Err(INVALID),
        _ => Ok(()),
    }
}

/// Zone Append (ZNS 1.1 §3.4.1): within ZASL, which is Invalid Field in Command otherwise.
fn plan_append(command: &Submission, info: &NamespaceInfo, zoned: &ZonedInfo) -> Result<Need, Status> {
    if zoned.append_blocks_max == 0 {
        return Err(UNKNOWN);
    }
    check_zone(command.lba(), info, zoned)?;
    if command.blocks() > zoned.append_blocks_max.min(info.transfer_blocks_max) {
        return Err(INVALID);
    }
    Ok(Need::FromHost(command.blocks() * info.block_size))
}

/// Zone Management Send (ZNS 1.1 §3.4.3). No zone has a descriptor extension, so none can be set.
fn check_send(command: &Submission, info: &NamespaceInfo, zoned: &ZonedInfo) -> Result<(), Status> {
    let asked = ZoneSend::from_submission(command);
    action(asked.action).ok_or(INVALID)?;
    asked.zone.map_or(Ok(()), |zone| check_zone(zone, info, zoned))
}

fn action(code: u8) -> Option<ZoneAction> {
    match code {
        send_action::CLOSE => Some(ZoneAction::Close),
        send_action::FINISH => Some(ZoneAction::Finish),
        send_action::OPEN => Some(ZoneAction::Open),
        send_action::RESET => Some(ZoneAction::Reset),
        send_action::OFFLINE => Some(ZoneAction::Offline),
        _ => None,
    }
}

/// Zone Management Receive (ZNS 1.1 §3.4.2). Without descriptor extensions there is no extended report.
fn plan_receive(command: &Submission, info: &NamespaceInfo) -> Result<Need, Status> {
    let asked = ZoneReceive::from_submission(command);
    let bytes = u32::try_from(asked.bytes).ok().filter(|&bytes| bytes <= TRANSFER_BYTES_MAX).ok_or(INVALID)?;
    let whole = asked.bytes >= size_of::<ZoneReportHead>() as u64;
    if asked.action != receive_action::REPORT || usize::from(asked.states) >= REPORTED_STATES.len() || !whole {
        return Err(INVALID);
    }
    if asked.lba >= info.blocks {
        return Err(Status::LBA_OUT_OF_RANGE.do_not_retry());
    }
    Ok(Need::ToHost(bytes))
}

// Execution.

/// What a command that [`plan`] has passed does.
pub(super) fn work(command: &Submission, kind: CommandKind, data: View, durability: Durability) -> ZoneWork {
    match kind {
        CommandKind::ZoneAppend => ZoneWork::Append { zone: Lba(command.lba()), data, durability },
        CommandKind::ZoneSend => {
            let asked = ZoneSend::from_submission(command);
            let action = action(asked.action).expect("invariant: what has no action was refused when it was planned");
            ZoneWork::Change { zone: asked.zone.map(Lba), action }
        }
        _ => ZoneWork::Report { asked: ZoneReceive::from_submission(command) },
    }
}

/// Carries it out; with what goes to the host, and dwords 0 and 1 of the completion.
pub(super) async fn execute(namespace: &AnyNamespace, work: ZoneWork) -> (Result<(), Error>, Buf, u64) {
    match work {
        ZoneWork::Append { zone, data, durability } => match namespace.append(zone, data, durability).await {
            Ok(lba) => (Ok(()), Buf::default(), lba.0),
            Err(error) => (Err(error), Buf::default(), 0),
        },
        ZoneWork::Change { zone, action } => (namespace.change_zone(zone, action).await, Buf::default(), 0),
        ZoneWork::Report { asked } => match report(namespace, &asked).await {
            Ok(report) => (Ok(()), report, 0),
            Err(error) => (Err(error), Buf::default(), 0),
        },
    }
}

/// The report (ZNS 1.1 §3.4.2.2): descriptors as far as they fit, and in the head how many zones it is about.
async fn report(namespace: &AnyNamespace, asked: &ZoneReceive) -> Result<Buf, Error> {
    let mut page = Buf::zeroed(asked.bytes as usize);
    let (head, body) = page.split_at_mut(size_of::<ZoneReportHead>());
    let mut places = body.chunks_exact_mut(size_of::<ZoneDescriptor>());
    let wanted = REPORTED_STATES[usize::from(asked.states)];
    let (zoned, end) = (namespace.zoned().ok_or(Error::Unsupported("zones"))?, namespace.info().blocks);
    let (mut from, mut count) = (asked.lba, 0u64);
    'zones: while from < end {
        let zones = namespace.zones(Lba(from), REPORT_PIECE).await?;
        let Some(last) = zones.last() else { break };
        from = last.start.0 + zoned.zone_blocks;
        for zone in &zones {
            let descriptor = describe(zone)?;
            if wanted.is_some_and(|state| state << 4 != descriptor.zs) {
                continue;
            }
            match places.next() {
                Some(place) => place.copy_from_slice(descriptor.as_bytes()),
                None if asked.partial => break 'zones,
                None => {}
            }
            count += 1;
        }
    }
    let mut counted = ZoneReportHead::new_zeroed();
    counted.zones = count.into();
    head.copy_from_slice(counted.as_bytes());
    Ok(page)
}

fn describe(zone: &Zone) -> Result<ZoneDescriptor, Error> {
    let state = match zone.state {
        ZoneState::Empty => zone_state::EMPTY,
        ZoneState::ImplicitlyOpen => zone_state::IMPLICITLY_OPEN,
        ZoneState::ExplicitlyOpen => zone_state::EXPLICITLY_OPEN,
        ZoneState::Closed => zone_state::CLOSED,
        ZoneState::Full => zone_state::FULL,
        ZoneState::ReadOnly => zone_state::READ_ONLY,
        ZoneState::Offline => zone_state::OFFLINE,
        ZoneState::Conventional => return Err(Error::Unsupported("conventional zones, for which NVMe has no words")),
    };
    let has_pointer = zone.state == ZoneState::Empty || zone.state.is_active();
    Ok(ZoneDescriptor {
        zt: ZONE_SEQUENTIAL,
        zs: state << 4,
        zcap: zone.capacity.into(),
        zslba: zone.start.0.into(),
        wp: if has_pointer { zone.write_pointer.0 } else { WRITE_POINTER_NONE }.into(),
        ..ZoneDescriptor::default()
    })
}
