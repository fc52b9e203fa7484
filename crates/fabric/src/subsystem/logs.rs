//! Log pages (NVMe Base 2.0 §5.16.1).

use std::net::SocketAddr;

use device::Writability;
use engine::{Buf, View};
use nvme::ana::GROUPS_ONLY;
use nvme::extension::ExtensionCommand;
use nvme::feature::FeatureId;
use nvme::identify::ascii_field;
use nvme::log::{ChangedNamespaces, EffectsLog, FirmwareLog, LogId, LogRequest, SmartLog, effects};
use nvme::opcode::{AdminOpcode, NvmOpcode};
use nvme::reservation::ReservationNotification;
use nvme::zns::command_set;
use nvme::{Status, U32};
use zerocopy::{FromZeros, IntoBytes};

use super::controller::Controller;
use super::features::{TEMPERATURE_KELVIN, is_of_namespaces};
use super::limits::{ERROR_ENTRIES_MAX, LOG_BYTES_MAX};
use super::shared::{Attached, Shared};
use super::stats::CommandKind;

/// Log page attributes of an entry in the Supported Log Pages log: supported.
const SUPPORTED: u32 = 1;
/// FID Scope, of which one bit is set: a value for each namespace, or one for the controller.
const SCOPE_NAMESPACE: u32 = 1 << 20;
const SCOPE_CONTROLLER: u32 = 1 << 21;

/// What is wrong with a request as far as that can be known without its page; else the bytes asked for.
pub(super) fn check(request: &LogRequest) -> Result<u32, Status> {
    let invalid = Status::INVALID_FIELD.do_not_retry();
    // The end of the pages that forget what was read.
    let end = match request.log {
        LogId::CHANGED_NAMESPACES => size_of::<ChangedNamespaces>() as u64,
        LogId::RESERVATION => size_of::<ReservationNotification>() as u64,
        _ => u64::MAX,
    };
    if request.offset_is_index || !request.offset.is_multiple_of(4) || request.offset > end {
        return Err(invalid);
    }
    u32::try_from(request.bytes).ok().filter(|&bytes| bytes <= LOG_BYTES_MAX).ok_or(invalid)
}

/// Answers a Get Log Page command that [`check`] has passed with the bytes asked for. Beyond a page's end there are zeroes.
pub(super) fn log_page(
    shared: &Shared,
    controller: &Controller,
    local: SocketAddr,
    request: &LogRequest,
) -> Result<View, Status> {
    let invalid = Status::INVALID_FIELD.do_not_retry();
    let whole = whole_page(shared, controller, local, request)?;
    let start = usize::try_from(request.offset).ok().filter(|&start| start <= whole.len()).ok_or(invalid)?;
    let rest = &whole[start..];
    let mut answer = Buf::zeroed(request.bytes as usize);
    let taken = rest.len().min(answer.len());
    answer[..taken].copy_from_slice(&rest[..taken]);
    Ok(answer.freeze())
}

fn whole_page(
    shared: &Shared,
    controller: &Controller,
    local: SocketAddr,
    request: &LogRequest,
) -> Result<Vec<u8>, Status> {
    let clear = !request.retain_event;
    let unknown = Status::INVALID_LOG_PAGE.do_not_retry();
    match (request.log, controller.is_discovery()) {
        (LogId::SUPPORTED, discovery) => Ok(supported(discovery)),
        (LogId::ERROR, _) => {
            let (mut entries, _) = controller.errors();
            entries.resize(ERROR_ENTRIES_MAX, FromZeros::new_zeroed());
            Ok(entries.as_bytes().to_vec())
        }
        (LogId::DISCOVERY, true) => {
            controller.discovery_read(clear);
            Ok(discovery(shared, controller, local))
        }
        (_, true) => Err(unknown),
        (LogId::SMART, _) => {
            controller.health_read(clear);
            Ok(smart(shared, controller).as_bytes().to_vec())
        }
        (LogId::FIRMWARE, _) => Ok(firmware().as_bytes().to_vec()),
        (LogId::CHANGED_NAMESPACES, _) => {
            let mut page = ChangedNamespaces::new_zeroed();
            for (place, nsid) in page.nsids.iter_mut().zip(controller.changed_namespaces(clear)) {
                *place = nsid.into();
            }
            Ok(page.as_bytes().to_vec())
        }
        (LogId::RESERVATION, _) => Ok(controller.reservation_log(clear).as_bytes().to_vec()),
        (LogId::ANA, _) => {
            controller.ana_read(clear);
            Ok(shared.ana_page(controller, request.specific & GROUPS_ONLY != 0))
        }
        (LogId::EFFECTS, _) => {
            // Until a host enables more than one there is one I/O command set (NVMe Base 2.0 §5.16.1.6).
            let zoned = match request.csi {
                _ if !controller.has_all_sets() => false,
                command_set::NVM => false,
                command_set::ZONED => true,
                _ => return Err(Status::INVALID_FIELD.do_not_retry()),
            };
            Ok(commands_and_effects(shared, controller, zoned).as_bytes().to_vec())
        }
        (LogId::FEATURES, _) => Ok(features_and_effects(shared.config.profile.optional_commands)),
        _ => Err(unknown),
    }
}

fn supported(discovery: bool) -> Vec<u8> {
    let logs: &[LogId] = if discovery {
        &[LogId::SUPPORTED, LogId::ERROR, LogId::DISCOVERY]
    } else {
        &[
            LogId::SUPPORTED,
            LogId::ERROR,
            LogId::SMART,
            LogId::FIRMWARE,
            LogId::CHANGED_NAMESPACES,
            LogId::EFFECTS,
            LogId::ANA,
            LogId::FEATURES,
            LogId::RESERVATION,
        ]
    };
    let mut page = [U32::ZERO; 256];
    for log in logs {
        page[usize::from(log.0)] = SUPPORTED.into();
    }
    page.as_bytes().to_vec()
}

fn smart(shared: &Shared, controller: &Controller) -> SmartLog {
    /// Data units are thousands of 512 bytes, rounded up (NVMe Base 2.0 figure 207).
    fn units(bytes: u64) -> u128 {
        u128::from(bytes.div_ceil(512_000))
    }
    let stats = &shared.stats;
    let reads = [CommandKind::Read, CommandKind::Compare, CommandKind::CompareAndWrite];
    // What changes blocks without data of the host's, as Write Zeroes, is not among the User Data Out Commands.
    let writes = [CommandKind::Write, CommandKind::CompareAndWrite, CommandKind::Copy, CommandKind::ZoneAppend];
    let sum = |kinds: &[CommandKind]| kinds.iter().map(|&kind| u128::from(stats.commands(kind))).sum::<u128>();
    let mut page = SmartLog::new_zeroed();
    page.critical_warning =
        u8::from(controller.features().is_temperature_critical()) << 1 | media_warnings(&shared.namespaces(controller));
    page.temperature = TEMPERATURE_KELVIN.into();
    page.available_spare = 100;
    page.spare_threshold = 10;
    page.data_units_read = units(stats.read_bytes()).into();
    page.data_units_written = units(stats.written_bytes()).into();
    page.host_reads = sum(&reads).into();
    page.host_writes = sum(&writes).into();
    page.power_cycles = 1.into(); // this process's
    page.power_on_hours = u128::from(stats.time_served().as_secs() / 3600).into();
    page.media_errors = u128::from(stats.media_errors()).into();
    page.error_entries = u128::from(controller.errors().1).into();
    page
}

/// Critical warnings: the subsystem is not reliable any more where a medium has failed (bit 2), and read-only where no other
/// one takes writes (bit 3).
fn media_warnings(namespaces: &[Attached]) -> u8 {
    let states = || namespaces.iter().map(Attached::writability);
    let failed = states().any(|state| state == Writability::Failed);
    let all = states().all(|state| state != Writability::Writable);
    u8::from(failed) << 2 | u8::from(failed && all) << 3
}

fn firmware() -> FirmwareLog {
    let mut page = FirmwareLog::new_zeroed();
    page.active = 1;
    page.revisions[0] = ascii_field(env!("CARGO_PKG_VERSION"));
    page
}

fn commands_and_effects(shared: &Shared, controller: &Controller, zoned: bool) -> EffectsLog {
    let mut page = EffectsLog::new_zeroed();
    let admin = [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
    ];
    for opcode in admin {
        page.admin[usize::from(opcode.0)] = effects::SUPPORTED.into();
    }
    if shared.may_manage(controller) {
        for opcode in [AdminOpcode::NAMESPACE_MANAGEMENT, AdminOpcode::NAMESPACE_ATTACHMENT] {
            // After it a host looks again at what namespaces there are: the controller that it asks tells it of no event.
            let inventory = effects::SUPPORTED | effects::NAMESPACE_INVENTORY_CHANGE;
            page.admin[usize::from(opcode.0)] = inventory.into();
        }
    }
    let extension = shared.extension(controller);
    for opcode in ExtensionCommand::OPCODES.into_iter().filter(|&opcode| extension.has(opcode)) {
        let changes = match opcode {
            AdminOpcode::NAMESPACE_COPY | AdminOpcode::DELETE_COPY => effects::NAMESPACE_INVENTORY_CHANGE,
            AdminOpcode::GROW_NAMESPACE => effects::NAMESPACE_CAPABILITY_CHANGE,
            _ => 0,
        };
        page.admin[usize::from(opcode.0)] = (effects::SUPPORTED | changes).into();
    }
    for opcode in [NvmOpcode::READ, NvmOpcode::COMPARE, NvmOpcode::FLUSH, NvmOpcode::VERIFY] {
        page.io[usize::from(opcode.0)] = effects::SUPPORTED.into();
    }
    let reservations = [
        NvmOpcode::RESERVATION_REGISTER,
        NvmOpcode::RESERVATION_REPORT,
        NvmOpcode::RESERVATION_ACQUIRE,
        NvmOpcode::RESERVATION_RELEASE,
    ];
    for opcode in reservations {
        page.io[usize::from(opcode.0)] = effects::SUPPORTED.into();
    }
    let changing = [
        NvmOpcode::WRITE,
        NvmOpcode::WRITE_UNCORRECTABLE,
        NvmOpcode::WRITE_ZEROES,
        NvmOpcode::DATASET_MANAGEMENT,
        NvmOpcode::COPY,
    ];
    for opcode in changing {
        page.io[usize::from(opcode.0)] = (effects::SUPPORTED | effects::CONTENT_CHANGE).into();
    }
    if zoned {
        add_zones(&mut page);
    }
    let offered =
        |opcode: u8| CommandKind::of(NvmOpcode(opcode)).is_some_and(|kind| shared.config.profile.offers(kind));
    for opcode in (0..=u8::MAX).filter(|&opcode| !offered(opcode)) {
        page.io[usize::from(opcode)] = 0.into();
    }
    // As ONCS has it: with no namespace that can keep the marks there is no such command.
    let marks = |attached: &Attached| attached.zoned.is_some() == zoned && attached.info.write_uncorrectable;
    if !shared.namespaces(controller).iter().any(marks) {
        page.io[usize::from(NvmOpcode::WRITE_UNCORRECTABLE.0)] = 0.into();
    }
    page
}

/// What the Zoned Namespace Command Set has beyond the NVM Command Set, and has not.
fn add_zones(page: &mut EffectsLog) {
    page.io[usize::from(NvmOpcode::COPY.0)] = 0.into();
    page.io[usize::from(NvmOpcode::ZONE_MANAGEMENT_RECEIVE.0)] = effects::SUPPORTED.into();
    for opcode in [NvmOpcode::ZONE_MANAGEMENT_SEND, NvmOpcode::ZONE_APPEND] {
        page.io[usize::from(opcode.0)] = (effects::SUPPORTED | effects::CONTENT_CHANGE).into();
    }
}

/// Feature Identifiers Supported and Effects (NVMe Base 2.0 §5.16.1.19): what there is, and what a value is for.
fn features_and_effects(optional: bool) -> Vec<u8> {
    let mut page = [U32::ZERO; 256];
    let left_out = if optional { &[][..] } else { &super::features::OPTIONAL };
    for feature in super::features::SUPPORTED.iter().filter(|feature| !left_out.contains(feature)) {
        let scope = if is_of_namespaces(*feature) { SCOPE_NAMESPACE } else { SCOPE_CONTROLLER };
        page[usize::from(feature.0)] = (SUPPORTED | scope).into();
    }
    // User data content change: switching the cache changes when writes are stable, not their content; so no other bit.
    debug_assert!(super::features::SUPPORTED.contains(&FeatureId::VOLATILE_WRITE_CACHE));
    page.as_bytes().to_vec()
}

/// Header and entries (NVMe Base 2.0 §5.16.1.23).
fn discovery(shared: &Shared, controller: &Controller, local: SocketAddr) -> Vec<u8> {
    let (generation, entries) = shared.discovery_log(controller, local);
    let mut header = nvme::fabrics::DiscoveryHeader::new_zeroed();
    header.genctr = generation.into();
    header.numrec = (entries.len() as u64).into();
    let mut page = header.as_bytes().to_vec();
    page.extend_from_slice(entries.as_bytes());
    page
}
