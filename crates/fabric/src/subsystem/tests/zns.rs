//! Zones on the wire (ZNS 1.1): who sees them, what the pages say, the commands and what they refuse.

use device::{AnyNamespace, ZonedInfo, ZonedMemory};
use nvme::command::{CopyRange, WRITE_ZEROES_DEALLOCATE};
use nvme::feature::FeatureId;
use nvme::identify::{Cns, IdentifyNamespace, descriptor, descriptors};
use nvme::log::{LogId, LogRequest};
use nvme::opcode::AdminOpcode;
use nvme::register::{Capabilities, Configuration};
use nvme::reservation::ReservationType;
use nvme::zns::{
    IdentifyZoned, IdentifyZonedController, ZoneDescriptor, ZoneReceive, ZoneReportHead, ZoneSend, command_set,
    receive_action, send_action, zone_state,
};
use nvme::{AnaState, Fuse};
use zerocopy::{FromBytes, IntoBytes};

use super::admin::{admin, get, identify, log, set};
use super::io::transfer;
use super::reservations::{acquire, register};
use super::*;
use crate::subsystem::raw_host::host;
use crate::subsystem::{HostConfig, PortId, Profile, TargetConfig};

const ZONE: u64 = 16;
const CAPACITY: u64 = 12;
const ZONES: u64 = 8;

fn zoned() -> ZonedMemory {
    let zoned = ZonedInfo { zone_blocks: ZONE, open_max: Some(3), active_max: Some(4), append_blocks_max: 4 };
    ZonedMemory::new(ZONES as usize, CAPACITY, zoned, [8; 16])
}

/// Namespace 1 is zoned, and 2 is not.
fn both() -> RawHost {
    let mut session = RawHost::new(AnyNamespace::other(zoned()));
    session.target.add_namespace(&subsystem(), 2, memory()).expect("free");
    session.command_sets = true;
    session.open(false, false);
    session
}

fn admin_of_both() -> RawHost {
    let mut session = both();
    session.connect_admin();
    session
}

fn io_of_both() -> RawHost {
    let mut session = both();
    session.connect_io();
    session.inbox.clear();
    session
}

fn of_set(session: &mut RawHost, cns: Cns, set: u8, nsid: u32) -> Result<Vec<u8>, Status> {
    let mut command = admin(AdminOpcode::IDENTIFY, 1, nsid, 4096);
    command.cdw10 = u32::from(cns.0).into();
    command.cdw11 = (u32::from(set) << 24).into();
    let (completion, data) = session.send(&command, &[]).expect("answered");
    if completion.status().is_success() { Ok(data) } else { Err(completion.status().kind()) }
}

fn listed(page: &[u8]) -> Vec<u32> {
    let words = page.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    words.take_while(|&nsid| nsid != 0).collect()
}

fn send(session: &mut RawHost, zone: Option<u64>, action: u8) -> Status {
    let mut command = ZoneSend { zone, action }.to_submission(1);
    command.command_id = 0x21.into();
    command.sgl = SglDescriptor::transport(0);
    status(session.send(&command, &[])).kind()
}

fn receive_by(session: &mut RawHost, asked: ZoneReceive) -> Result<Vec<u8>, Status> {
    let mut command = asked.to_submission(1);
    command.command_id = 0x22.into();
    command.sgl = SglDescriptor::transport(asked.bytes as u32);
    let (completion, data) = session.send(&command, &[]).expect("answered");
    if completion.status().is_success() { Ok(data) } else { Err(completion.status().kind()) }
}

const ASKED: ZoneReceive =
    ZoneReceive { lba: 0, bytes: 4096, action: receive_action::REPORT, states: 0, partial: false };

/// What the head counts, and the descriptors that follow it.
fn report(session: &mut RawHost, asked: ZoneReceive) -> (u64, Vec<ZoneDescriptor>) {
    let data = receive_by(session, asked).expect("a report");
    assert_eq!(data.len() as u64, asked.bytes);
    let (head, body) = ZoneReportHead::read_from_prefix(&data).expect("a head");
    let all = body.chunks_exact(64).map(|bytes| ZoneDescriptor::read_from_bytes(bytes).expect("64 bytes"));
    (head.zones.get(), all.take_while(|zone| zone.zt != 0).collect())
}

fn states(session: &mut RawHost) -> Vec<u8> {
    report(session, ASKED).1.iter().map(|zone| zone.zs >> 4).collect()
}

fn append_command(zone: u64, blocks: u32) -> Submission {
    in_capsule(NvmOpcode::ZONE_APPEND, 0x23, zone, blocks)
}

fn append(session: &mut RawHost, zone: u64, data: &[u8]) -> (Status, u64) {
    let command = append_command(zone, (data.len() / BLOCK) as u32);
    let (completion, _) = session.send(&command, data).expect("answered");
    (completion.status().kind(), completion.result.get())
}

/// A host that enables the NVM Command Set alone would write a zoned namespace anywhere.
#[test]
fn zones_are_there_for_who_has_enabled_all_command_sets() {
    let mut session = admin_of_both();
    assert_eq!(listed(&identify(&mut session, Cns::ACTIVE_NAMESPACES, 0).unwrap()), [1, 2]);
    for (set, expected) in [(command_set::NVM, [2]), (command_set::ZONED, [1])] {
        assert_eq!(listed(&of_set(&mut session, Cns::CSI_ACTIVE_NAMESPACES, set, 0).unwrap()), expected);
    }
    assert_eq!(identify(&mut session, Cns::COMMAND_SETS, 0).map(|page| page[0]), Err(Status::INVALID_FIELD));
    let mut sets = admin(AdminOpcode::IDENTIFY, 1, 0, 4096);
    sets.cdw10 = (u32::from(Cns::COMMAND_SETS.0) | 0xFFFF_0000).into();
    let (_, page) = session.send(&sets, &[]).expect("answered");
    assert_eq!(page[..16], [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "NVM and Zoned Namespace together");
    // The one combination there is.
    assert_eq!(set(&mut session, FeatureId::COMMAND_SET_PROFILE, 0), Ok(0));
    assert_eq!(get(&mut session, FeatureId::COMMAND_SET_PROFILE, 0, 0).map(|(value, _)| value), Ok(0));
    let rejected = set(&mut session, FeatureId::COMMAND_SET_PROFILE, 1);
    assert_eq!(rejected, Err(Status::COMMAND_SET_COMBINATION_REJECTED));

    session.set_configuration(Configuration(0));
    session.set_configuration(Configuration::ENABLE);
    assert_eq!(listed(&identify(&mut session, Cns::ACTIVE_NAMESPACES, 0).unwrap()), [2]);
    assert_eq!(identify(&mut session, Cns::NAMESPACE, 1).unwrap(), vec![0; 4096], "inactive");
    assert_eq!(identify(&mut session, Cns::DESCRIPTORS, 1), Err(Status::INVALID_NAMESPACE));
    assert_eq!(of_set(&mut session, Cns::CSI_NAMESPACE, command_set::ZONED, 1), Err(Status::INVALID_FIELD));
    let mut plain = RawHost::on(&session.target);
    plain.open(false, false);
    plain.connect_io();
    assert_eq!(write(&mut plain, 0, &pattern(1, 1)).kind(), Status::INVALID_NAMESPACE);
    let mut other = in_capsule(NvmOpcode::WRITE, 1, 0, 1);
    other.nsid = 2.into();
    assert_eq!(status(plain.send(&other, &pattern(1, 1))), Status::SUCCESS);
    // Nor is it told of what becomes of it.
    session.target.refresh_namespace(&subsystem(), 1).expect("it is there");
    let changed = log(&mut session, LogId::CHANGED_NAMESPACES, 4096, 0).unwrap();
    assert_eq!(listed(&changed), Vec::<u32>::new());
}

/// A command set that CAP does not offer can't be enabled, and where there is none the namespace is nobody's.
#[test]
fn a_target_without_command_sets_has_no_zones() {
    let target = Target::new(TargetConfig { profile: Profile::MINIMAL, ..TargetConfig::default() });
    target.add_port(crate::subsystem::PortConfig::new(PortId(1))).unwrap();
    target.add_subsystem(subsystem(), "SERIAL").unwrap();
    target.add_namespace(&subsystem(), 1, AnyNamespace::other(zoned())).unwrap();
    let mut session = RawHost::on(&target);
    session.open(false, false);
    session.connect_admin();
    assert_eq!(listed(&identify(&mut session, Cns::ACTIVE_NAMESPACES, 0).unwrap()), Vec::<u32>::new());
    assert_eq!(set(&mut session, FeatureId::COMMAND_SET_PROFILE, 0), Err(Status::INVALID_FIELD));
    let controller = session.core.controller.clone().expect("connected");
    session.set_configuration(Configuration(0));
    let all = Capabilities::fabrics(2, 1).with_command_sets();
    session.set_configuration(Configuration::enable_all(all));
    assert_eq!(controller.status() & 3, nvme::register::status_bits::FATAL);
}

#[test]
fn the_pages_say_what_zones_there_are() {
    let mut session = admin_of_both();
    let page = IdentifyNamespace::read_from_bytes(&identify(&mut session, Cns::NAMESPACE, 1).unwrap()).unwrap();
    assert_eq!((page.nsze.get(), page.nacwu.get(), page.mssrl.get(), page.mcl.get()), (ZONES * ZONE, 0, 0, 0));
    assert_eq!(page.dlfeat & 1 << 3, 0, "zeroes do not deallocate");
    let list = identify(&mut session, Cns::DESCRIPTORS, 1).unwrap();
    let set = descriptors(&list).find(|(kind, _)| *kind == descriptor::CSI);
    assert_eq!(set, Some((descriptor::CSI, &[command_set::ZONED][..])));
    let page = of_set(&mut session, Cns::CSI_NAMESPACE, command_set::ZONED, 1).unwrap();
    let page = IdentifyZoned::read_from_bytes(&page).unwrap();
    assert_eq!((page.zoc.get(), page.ozcs.get(), page.mar.get(), page.mor.get()), (0, 1, 3, 2));
    assert_eq!((page.lbafe[0].zsze.get(), page.lbafe[0].zdes), (ZONE, 0));
    assert_eq!(of_set(&mut session, Cns::CSI_NAMESPACE, command_set::NVM, 1), Ok(vec![0; 4096]));
    assert_eq!(of_set(&mut session, Cns::CSI_NAMESPACE, command_set::ZONED, 2), Err(Status::INVALID_FIELD));
    assert_eq!(of_set(&mut session, Cns::CSI_NAMESPACE, command_set::ZONED, 3), Err(Status::INVALID_NAMESPACE));
    assert_eq!(of_set(&mut session, Cns::CSI_NAMESPACE, 1, 1), Err(Status::INVALID_FIELD), "Key Value");
    assert_eq!(of_set(&mut session, Cns::CSI_ALLOCATED_NAMESPACES, command_set::ZONED, 0), Err(Status::INVALID_FIELD));
    let page = of_set(&mut session, Cns::CSI_CONTROLLER, command_set::ZONED, 0).unwrap();
    assert_eq!(IdentifyZonedController::read_from_bytes(&page).unwrap().zasl, 2, "four blocks of 4 KiB");
    // Who manages sees all there are, by command set.
    let config = HostConfig { manage: true, ..HostConfig::default() };
    session.target.add_store(&subsystem(), std::sync::Arc::new(super::management::Shelf::that_copies(false))).unwrap();
    session.target.allow_host(&subsystem(), &host(), config).unwrap();
    let mut session = RawHost::on(&session.target);
    session.command_sets = true;
    session.open(false, false);
    session.connect_admin();
    let all = of_set(&mut session, Cns::CSI_ALLOCATED_NAMESPACES, command_set::ZONED, 0).unwrap();
    assert_eq!(listed(&all), [1]);
    let page = of_set(&mut session, Cns::CSI_ALLOCATED_NAMESPACE, command_set::ZONED, 1).unwrap();
    assert_eq!(IdentifyZoned::read_from_bytes(&page).unwrap().lbafe[0].zsze.get(), ZONE);
}

#[test]
fn the_effects_log_of_zones_names_what_is_served_on_them() {
    let mut io = io_of_both();
    let mut admin = io.admin.take().expect("it holds the controller");
    let page = |admin: &mut RawHost, csi: u8| {
        let (log, bytes) = (LogId::EFFECTS, 4096);
        let request =
            LogRequest { log, specific: 0, retain_event: false, bytes, offset: 0, offset_is_index: false, csi };
        let mut command = super::admin::admin(AdminOpcode::GET_LOG_PAGE, 1, u32::MAX, 4096);
        request.fill(&mut command);
        let (completion, data) = admin.send(&command, &[]).expect("answered");
        if completion.status().is_success() { Ok(data) } else { Err(completion.status().kind()) }
    };
    for (nsid, csi) in [(1, command_set::ZONED), (2, command_set::NVM)] {
        let page = page(&mut admin, csi).expect("a page");
        let listed: Vec<u8> = (0..=u8::MAX).filter(|&opcode| page[1024 + 4 * usize::from(opcode)] & 1 == 1).collect();
        let is_served = |opcode: &u8| {
            let command = Submission::admin(AdminOpcode(*opcode), (*opcode).into(), nsid);
            let command = Submission { sgl: SglDescriptor::transport(0), ..command };
            status(io.send(&command, &[])).kind() != Status::INVALID_OPCODE
        };
        let served: Vec<u8> = (0..=u8::MAX).filter(|&opcode| opcode != 0x7F).filter(is_served).collect();
        assert_eq!(listed, served, "I/O command set {csi}");
        let on_zones = [0x79, 0x7A, 0x7D].map(|opcode| listed.contains(&opcode));
        assert_eq!(on_zones, [csi == command_set::ZONED; 3]);
    }
    assert_eq!(page(&mut admin, 1), Err(Status::INVALID_FIELD), "Key Value");
}

#[test]
fn zones_are_written_at_their_write_pointers_and_reported() {
    let mut session = io_of_both();
    assert_eq!(write(&mut session, 0, &pattern(2, 1)), Status::SUCCESS);
    assert_eq!(write(&mut session, 1, &pattern(1, 1)), Status::ZONE_INVALID_WRITE.do_not_retry());
    assert_eq!(append(&mut session, 0, &pattern(1, 2)), (Status::SUCCESS, 2));
    assert_eq!(append(&mut session, ZONE, &pattern(1, 3)), (Status::SUCCESS, ZONE));
    assert_eq!(append(&mut session, ZONE, &pattern(1, 4)), (Status::SUCCESS, ZONE + 1));
    assert_eq!(read(&mut session, 0, 3), [pattern(2, 1), pattern(1, 2)].concat());
    let both = [vec![0; (ZONE - CAPACITY + 1) as usize * BLOCK], pattern(1, 3)].concat();
    assert_eq!(read(&mut session, CAPACITY - 1, (ZONE - CAPACITY) as u32 + 2), both, "across a zone's end");
    // By R2T, with a large place in the completion.
    let last = (ZONES - 1) * ZONE;
    let by_r2t = Submission { sgl: SglDescriptor::transport(2 * BLOCK as u32), ..append_command(last, 2) };
    assert_eq!(session.send(&by_r2t, &[]), None, "the data is asked for");
    transfer(&mut session, 0x23, &pattern(2, 5), 4096);
    let (completion, _) = session.take_answer(0x23).expect("answered");
    assert_eq!((completion.status(), completion.result.get()), (Status::SUCCESS, last));
    assert_eq!(read(&mut session, last, 2), pattern(2, 5));

    let (count, zones) = report(&mut session, ASKED);
    assert_eq!((count, zones.len() as u64), (ZONES, ZONES));
    let first = zones[0];
    assert_eq!((first.zt, first.zs, first.zcap.get(), first.zslba.get(), first.wp.get()), (2, 0x20, CAPACITY, 0, 3));
    // From the zone that has the block on; as many as there is room for; those of one state.
    let some = ZoneReceive { lba: ZONE + 3, bytes: 64 * 3 + 32, ..ASKED };
    let (count, zones) = report(&mut session, some);
    assert_eq!((count, zones.iter().map(|zone| zone.zslba.get()).collect::<Vec<_>>()), (7, vec![16, 32]));
    assert_eq!(report(&mut session, ZoneReceive { partial: true, ..some }).0, 2, "those that follow");
    assert_eq!(send(&mut session, Some(ZONE), send_action::CLOSE), Status::SUCCESS);
    assert_eq!(send(&mut session, Some(2 * ZONE), send_action::OPEN), Status::SUCCESS);
    assert_eq!(send(&mut session, Some(3 * ZONE), send_action::FINISH), Status::SUCCESS);
    let expected: [(u8, &[u64]); 8] = [
        (0, &[0, 16, 32, 48, 64, 80, 96, 112]),
        (1, &[64, 80, 96]),
        (2, &[0, 112]),
        (3, &[32]),
        (4, &[16]),
        (5, &[48]),
        (6, &[]),
        (7, &[]),
    ];
    for (states, expected) in expected {
        for partial in [false, true] {
            let (count, zones) = report(&mut session, ZoneReceive { states, partial, ..ASKED });
            let starts: Vec<u64> = zones.iter().map(|zone| zone.zslba.get()).collect();
            assert_eq!((count, &starts[..]), (expected.len() as u64, expected), "state {states}");
        }
    }
    let full = report(&mut session, ZoneReceive { states: 5, ..ASKED }).1[0];
    assert_eq!(full.wp.get(), u64::MAX, "a zone that is full has no write pointer");
    assert_eq!(send(&mut session, None, send_action::RESET), Status::SUCCESS);
    assert_eq!(states(&mut session), [zone_state::EMPTY; ZONES as usize]);
    assert_eq!(session.target.stats().commands(crate::subsystem::CommandKind::ZoneAppend), 4);
}

#[test]
fn commands_on_zones_refuse_what_they_can_not_do() {
    let mut session = io_of_both();
    let invalid = Status::INVALID_FIELD;
    for action in [0, 6, send_action::SET_EXTENSION, 0x11, 0xFF] {
        assert_eq!(send(&mut session, Some(0), action), invalid, "action {action:#x}");
        assert_eq!(send(&mut session, None, action), invalid, "action {action:#x} of all zones");
    }
    assert_eq!(send(&mut session, Some(1), send_action::RESET), invalid, "not where a zone begins");
    for lba in [ZONES * ZONE, !(ZONE - 1)] {
        assert_eq!(send(&mut session, Some(lba), send_action::RESET), Status::LBA_OUT_OF_RANGE);
        assert_eq!(append(&mut session, lba, &pattern(1, 1)).0, Status::LBA_OUT_OF_RANGE);
        assert_eq!(receive_by(&mut session, ZoneReceive { lba, ..ASKED }), Err(Status::LBA_OUT_OF_RANGE));
    }
    assert_eq!(send(&mut session, Some(0), send_action::OFFLINE), Status::INVALID_ZONE_TRANSITION);
    assert_eq!(append(&mut session, 1, &pattern(1, 1)).0, invalid, "not where a zone begins");
    // ZASL: four blocks.
    let long = Submission { sgl: SglDescriptor::transport(5 * BLOCK as u32), ..append_command(0, 5) };
    assert_eq!(status(session.send(&long, &[])).kind(), invalid);
    let short = Submission { sgl: SglDescriptor::transport(BLOCK as u32), ..append_command(0, 2) };
    assert_eq!(status(session.send(&short, &[])).kind(), Status::DATA_SGL_LENGTH_INVALID);
    for asked in [
        ZoneReceive { action: receive_action::EXTENDED_REPORT, ..ASKED },
        ZoneReceive { action: 2, ..ASKED },
        ZoneReceive { states: 8, ..ASKED },
        ZoneReceive { bytes: 60, ..ASKED },
        ZoneReceive { bytes: (1 << 20) + 4, ..ASKED },
    ] {
        assert_eq!(receive_by(&mut session, asked), Err(invalid), "{asked:?}");
    }
    let mut without_room = ASKED.to_submission(1);
    without_room.sgl = SglDescriptor::transport(64);
    assert_eq!(status(session.send(&without_room, &[])).kind(), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(states(&mut session), [zone_state::EMPTY; ZONES as usize], "nothing was changed");
}

/// Zones that fail, and limits that are reached, tell so by statuses of their own.
#[test]
fn every_reason_of_a_zone_has_a_status_of_its_own() {
    let zones = std::sync::Arc::new(zoned());
    let mut session = RawHost::new(AnyNamespace::other(Shared(zones.clone())));
    session.command_sets = true;
    session.open(false, false);
    session.connect_io();
    session.inbox.clear();
    for number in 0..3 {
        assert_eq!(send(&mut session, Some(number * ZONE), send_action::OPEN), Status::SUCCESS);
    }
    assert_eq!(send(&mut session, Some(3 * ZONE), send_action::OPEN), Status::TOO_MANY_OPEN_ZONES);
    assert_eq!(append(&mut session, 3 * ZONE, &pattern(1, 1)).0, Status::TOO_MANY_OPEN_ZONES);
    assert_eq!(send(&mut session, Some(0), send_action::CLOSE), Status::SUCCESS);
    assert_eq!(append(&mut session, 3 * ZONE, &pattern(1, 1)).0, Status::SUCCESS);
    assert_eq!(append(&mut session, 4 * ZONE, &pattern(1, 1)).0, Status::TOO_MANY_ACTIVE_ZONES);
    assert_eq!(append(&mut session, 3 * ZONE, &pattern(4, 1)).0, Status::SUCCESS);
    assert_eq!(append(&mut session, 3 * ZONE, &pattern(4, 1)).0, Status::SUCCESS);
    assert_eq!(append(&mut session, 3 * ZONE, &pattern(4, 1)).0, Status::ZONE_BOUNDARY_ERROR);
    assert_eq!(append(&mut session, 3 * ZONE, &pattern(3, 1)).0, Status::SUCCESS);
    assert_eq!(append(&mut session, 3 * ZONE, &pattern(1, 1)).0, Status::ZONE_IS_FULL);
    zones.fail_zone(device::Lba(5 * ZONE), device::ZoneState::ReadOnly);
    zones.fail_zone(device::Lba(6 * ZONE), device::ZoneState::Offline);
    assert_eq!(append(&mut session, 5 * ZONE, &pattern(1, 1)).0, Status::ZONE_IS_READ_ONLY);
    assert_eq!(append(&mut session, 6 * ZONE, &pattern(1, 1)).0, Status::ZONE_IS_OFFLINE);
    let read = session.send(&command(NvmOpcode::READ, 9, 6 * ZONE, 1), &[]);
    assert_eq!(status(read).kind(), Status::ZONE_IS_OFFLINE);
    assert_eq!(send(&mut session, Some(5 * ZONE), send_action::RESET), Status::INVALID_ZONE_TRANSITION);
    assert_eq!(send(&mut session, None, send_action::OFFLINE), Status::SUCCESS);
    assert_eq!(states(&mut session)[5..7], [zone_state::OFFLINE; 2]);
}

/// The test's own hold on the zones that are served.
struct Shared(std::sync::Arc<ZonedMemory>);

impl device::Namespace for Shared {
    device::delegate_namespace!(this => { this => this.0 });
}

/// A swap would write in place, and a copy is not offered; Write Zeroes writes, whatever it is told of deallocation.
#[test]
fn nothing_is_fused_or_copied_in_zones() {
    let mut session = io_of_both();
    // Also where the namespace would take it.
    let info = device::Namespace::info(&session.target.namespace(&subsystem(), 1).expect("it is there"));
    let swaps = device::NamespaceInfo { compare_and_write_blocks_max: 8, deallocated_reads_zero: true, ..info };
    pretend(&session.target, 1, swaps);
    for second in [NvmOpcode::WRITE, NvmOpcode::ZONE_APPEND] {
        let mut first = in_capsule(NvmOpcode::COMPARE, 1, 0, 1);
        first.set_fuse(Fuse::First);
        let mut second = in_capsule(second, 2, 0, 1);
        second.set_fuse(Fuse::Second);
        assert_eq!(status(session.send(&first, &vec![0; BLOCK])).kind(), Status::INVALID_FIELD);
        assert_eq!(status(session.send(&second, &pattern(1, 1))).kind(), Status::FAILED_FUSED);
    }
    let mut alone = append_command(0, 1);
    alone.set_fuse(Fuse::First);
    assert_eq!(status(session.send(&alone, &pattern(1, 1))).kind(), Status::INVALID_FIELD);
    let ranges = [CopyRange { lba: 0.into(), ..CopyRange::default() }];
    let mut copy = Submission::nvm(NvmOpcode::COPY, 1, 1);
    copy.cdw10 = 0x10.into();
    copy.sgl = SglDescriptor::in_capsule(32);
    assert_eq!(status(session.send(&copy, ranges.as_bytes())).kind(), Status::INVALID_OPCODE);
    assert_eq!(states(&mut session), [zone_state::EMPTY; ZONES as usize], "nothing was written");
    let mut zeroes = Submission::nvm(NvmOpcode::WRITE_ZEROES, 3, 1);
    zeroes.set_range(0, 2);
    zeroes.cdw12 = (zeroes.cdw12.get() | WRITE_ZEROES_DEALLOCATE).into();
    assert_eq!(status(session.send(&zeroes, &[])), Status::SUCCESS);
    assert_eq!(report(&mut session, ASKED).1[0].wp.get(), 2);
}

/// Commands on zones are stopped by a reservation as reads and writes are (ZNS 1.1 §5.1), and by the state of a path.
#[test]
fn the_rights_that_hold_for_writes_hold_for_zones() {
    let mut session = io_of_both();
    let mut other = RawHost::on(&session.target).by_host(2);
    other.command_sets = true;
    other.open(false, false);
    other.connect_io();
    other.inbox.clear();
    assert_eq!(register(&mut session, 7), Status::SUCCESS);
    let exclusive = ReservationType::WriteExclusive;
    assert_eq!(acquire(&mut session, &mut [&mut other], exclusive, 7), Status::SUCCESS);
    assert_eq!(append(&mut other, 0, &pattern(1, 1)).0, Status::RESERVATION_CONFLICT);
    for action in [send_action::OPEN, send_action::RESET, send_action::FINISH, send_action::CLOSE] {
        for zone in [Some(0), None] {
            assert_eq!(send(&mut other, zone, action), Status::RESERVATION_CONFLICT);
        }
    }
    assert_eq!(states(&mut other), [zone_state::EMPTY; ZONES as usize], "a report reads");
    assert_eq!(append(&mut session, 0, &pattern(1, 1)), (Status::SUCCESS, 0));
    let release = super::reservations::release(&mut session, nvme::reservation::ReleaseAction::Release, exclusive, 7);
    assert_eq!(release, Status::SUCCESS);
    let exclusive = ReservationType::ExclusiveAccess;
    assert_eq!(acquire(&mut session, &mut [&mut other], exclusive, 7), Status::SUCCESS);
    assert_eq!(receive_by(&mut other, ASKED), Err(Status::RESERVATION_CONFLICT));

    // The data of an append is owed while its path is taken away: it never begins.
    let by_r2t = Submission { sgl: SglDescriptor::transport(BLOCK as u32), ..append_command(0, 1) };
    assert_eq!(session.send(&by_r2t, &[]), None);
    session.target.set_ana_state(&subsystem(), PortId(1), 1, AnaState::Inaccessible).expect("it can be");
    session.turn();
    transfer(&mut session, 0x23, &pattern(1, 5), 4096);
    assert_eq!(status(session.take_answer(0x23)), Status::ANA_INACCESSIBLE);
    assert_eq!(send(&mut session, Some(0), send_action::RESET), Status::ANA_INACCESSIBLE);
    assert_eq!(receive_by(&mut session, ASKED), Err(Status::ANA_INACCESSIBLE));
    session.target.set_ana_state(&subsystem(), PortId(1), 1, AnaState::Optimized).expect("it can be");
    session.turn();
    assert_eq!(report(&mut session, ASKED).1[0].wp.get(), 1, "one append alone was executed");
}
