//! Admin commands: identify, logs, features, events, abort.

use std::net::SocketAddr;

use device::Namespace;
use nvme::feature::{FeatureId, async_event_config, select};
use nvme::identify::{
    Cns, IdentifyController, IdentifyNamespace, IdentifyNvmController, descriptor, descriptors, oncs,
};
use nvme::log::{AsyncEvent, ErrorEntry, LogId, LogRequest, SmartLog, effects};
use nvme::opcode::AdminOpcode;
use nvme::register::Configuration;
use nvme::{Nqn, SglDescriptor};
use zerocopy::FromBytes;

use super::*;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{IN_CAPSULE_BYTES_MAX, NSID_MAX, PortConfig, PortId, Profile, Target, TargetConfig};

pub(super) fn admin(opcode: AdminOpcode, id: u16, nsid: u32, bytes: u32) -> Submission {
    let mut command = Submission::admin(opcode, id, nsid);
    command.sgl = SglDescriptor::transport(bytes);
    command
}

pub(super) fn identify(session: &mut RawHost, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
    let mut command = admin(AdminOpcode::IDENTIFY, 1, nsid, 4096);
    command.cdw10 = u32::from(cns.0).into();
    let (completion, data) = session.send(&command, &[]).expect("answered");
    if completion.status().is_success() { Ok(data) } else { Err(completion.status().kind()) }
}

pub(super) fn log(session: &mut RawHost, log: LogId, bytes: u64, offset: u64) -> Result<Vec<u8>, Status> {
    let request = LogRequest { log, specific: 0, retain_event: false, bytes, offset, offset_is_index: false, csi: 0 };
    let mut command = admin(AdminOpcode::GET_LOG_PAGE, 1, u32::MAX, bytes as u32);
    request.fill(&mut command);
    let (completion, data) = session.send(&command, &[]).expect("answered");
    if completion.status().is_success() { Ok(data) } else { Err(completion.status().kind()) }
}

pub(super) fn get(session: &mut RawHost, feature: FeatureId, select: u8, cdw11: u32) -> Result<(u64, Vec<u8>), Status> {
    let mut command = admin(AdminOpcode::GET_FEATURES, 1, 1, 4096);
    command.cdw10 = (u32::from(feature.0) | u32::from(select) << 8).into();
    command.cdw11 = cdw11.into();
    let (completion, data) = session.send(&command, &[]).expect("answered");
    if completion.status().is_success() { Ok((completion.result.get(), data)) } else { Err(completion.status().kind()) }
}

pub(super) fn set(session: &mut RawHost, feature: FeatureId, value: u32) -> Result<u64, Status> {
    // Error Recovery is a namespace's.
    let nsid = u32::from(feature == FeatureId::ERROR_RECOVERY);
    let mut command = admin(AdminOpcode::SET_FEATURES, 1, nsid, 0);
    command.cdw10 = u32::from(feature.0).into();
    command.cdw11 = value.into();
    let (completion, _) = session.send(&command, &[]).expect("answered");
    if completion.status().is_success() { Ok(completion.result.get()) } else { Err(completion.status().kind()) }
}

pub(super) fn send_event_request(session: &mut RawHost, id: u16) -> Option<(Completion, Vec<u8>)> {
    session.send(&admin(AdminOpcode::ASYNC_EVENT_REQUEST, id, 0, 0), &[])
}

#[test]
fn the_controller_says_what_it_can() {
    let mut session = admin_session();
    let page = identify(&mut session, Cns::CONTROLLER, 0).unwrap();
    let page = IdentifyController::read_from_bytes(&page).unwrap();
    assert_eq!((page.cntrltype, page.mdts, page.ver.get()), (1, 8, nvme::VERSION));
    assert_eq!(page.ioccsz.get() * 16, 64 + IN_CAPSULE_BYTES_MAX);
    assert_eq!((page.iorcsz.get() * 16, page.icdoff.get()), (16, 0));
    assert_eq!((page.sqes, page.cqes, page.fuses.get()), (0x66, 0x44, 1));
    assert_eq!((page.acwu.get(), page.awun.get()), (0, 0), "one block, whatever namespace comes");
    assert_eq!(page.oncs.get() & oncs::RESERVATIONS, oncs::RESERVATIONS);
    assert_eq!(Nqn::from_field(&page.subnqn).unwrap(), subsystem());
    assert_eq!(&page.sn, b"SERIAL              ");
    assert!(page.kas.get() > 0);
    assert_eq!(page.rtd3e.get(), 60_000_000, "Linux waits as long for a shutdown, and 5 s where nothing is said");
}

#[test]
fn namespaces_say_what_they_are() {
    let mut session = admin_session();
    let page = identify(&mut session, Cns::NAMESPACE, 1).unwrap();
    let page = IdentifyNamespace::read_from_bytes(&page).unwrap();
    assert_eq!((page.nsze.get(), page.lbaf[0].lbads, page.nguid), (BLOCKS, 12, [7; 16]));
    assert_eq!((page.nsfeat & 2, page.nmic, page.dlfeat & 7), (2, 1, 1));
    let info = memory().info();
    assert_eq!(u32::from(page.nacwu.get()) + 1, info.compare_and_write_blocks_max);
    assert_eq!(u32::from(page.nacwu.get() + 1) * BLOCK as u32, 128 << 10);
    assert_eq!(u32::from(page.nawun.get()) + 1, info.atomic_blocks);
    assert_eq!(identify(&mut session, Cns::NAMESPACE, 2).unwrap(), vec![0; 4096], "inactive: all zero");
    for nsid in [0, NSID_MAX + 1, u32::MAX] {
        assert_eq!(identify(&mut session, Cns::NAMESPACE, nsid), Err(Status::INVALID_NAMESPACE));
    }
    let list = identify(&mut session, Cns::DESCRIPTORS, 1).unwrap();
    let found: Vec<_> = descriptors(&list).collect();
    assert_eq!(found, vec![(descriptor::NGUID, &[7; 16][..]), (descriptor::CSI, &[0][..])]);
    for cns in [Cns::DESCRIPTORS, Cns::CSI_NAMESPACE, Cns::INDEPENDENT_NAMESPACE] {
        assert_eq!(identify(&mut session, cns, 2), Err(Status::INVALID_NAMESPACE));
        assert_eq!(identify(&mut session, cns, 1).map(|page| page.len()), Ok(4096));
    }
    let page = identify(&mut session, Cns::CSI_CONTROLLER, 0).unwrap();
    assert_eq!(IdentifyNvmController::read_from_bytes(&page).unwrap().dmrl, 0);
    assert_eq!(identify(&mut session, Cns(0x7F), 0), Err(Status::INVALID_FIELD));
    let mut other_set = admin(AdminOpcode::IDENTIFY, 1, 0, 4096);
    other_set.cdw10 = u32::from(Cns::CSI_CONTROLLER.0).into();
    other_set.cdw11 = (2 << 24).into();
    assert_eq!(status(session.send(&other_set, &[])).kind(), Status::INVALID_FIELD);
}

#[test]
fn the_active_list_follows_what_is_added_and_removed() {
    let mut session = admin_session();
    let list = |session: &mut RawHost, after| {
        let page = identify(session, Cns::ACTIVE_NAMESPACES, after)?;
        let words = page.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        Ok::<_, Status>(words.take_while(|&nsid| nsid != 0).collect::<Vec<_>>())
    };
    session.target.add_namespace(&subsystem(), 9, memory()).unwrap();
    session.target.add_namespace(&subsystem(), 4, memory()).unwrap();
    assert_eq!(list(&mut session, 0), Ok(vec![1, 4, 9]));
    assert_eq!(list(&mut session, 4), Ok(vec![9]));
    session.target.remove_namespace(&subsystem(), 4).unwrap();
    assert_eq!(list(&mut session, 0), Ok(vec![1, 9]));
    assert_eq!(list(&mut session, 0xFFFF_FFFE), Err(Status::INVALID_NAMESPACE));
    assert!(session.target.add_namespace(&subsystem(), 9, memory()).is_err());
    assert!(session.target.add_namespace(&subsystem(), 0, memory()).is_err());
    assert!(session.target.remove_namespace(&subsystem(), 4).is_err());
}

#[test]
fn data_needs_room_of_the_right_kind() {
    let mut session = admin_session();
    let mut command = admin(AdminOpcode::IDENTIFY, 1, 0, 4095);
    command.cdw10 = 1.into();
    assert_eq!(status(session.send(&command, &[])).kind(), Status::DATA_SGL_LENGTH_INVALID);
    command.sgl = SglDescriptor::in_capsule(4096);
    assert_eq!(status(session.send(&command, &[0; 4096])).kind(), Status::SGL_TYPE_INVALID);
    let fused = Submission { flags: 0x41, ..admin(AdminOpcode::KEEP_ALIVE, 1, 0, 0) };
    assert_eq!(status(session.send(&fused, &[])).kind(), Status::INVALID_FIELD);
    for opcode in [0x00, 0x01, 0x10, 0x80, 0xC0] {
        assert_eq!(status(session.send(&admin(AdminOpcode(opcode), 1, 0, 0), &[])).kind(), Status::INVALID_OPCODE);
    }
}

#[test]
fn every_log_page_is_there_and_can_be_read_in_parts() {
    let mut session = admin_session();
    let smart = log(&mut session, LogId::SMART, 512, 0).unwrap();
    let page = SmartLog::read_from_bytes(&smart).unwrap();
    assert_eq!((page.available_spare, page.critical_warning), (100, 0));
    assert_eq!(log(&mut session, LogId::SMART, 256, 256).unwrap(), smart[256..]);
    assert_eq!(log(&mut session, LogId::SMART, 8, 512).unwrap(), vec![0; 8], "beyond the end there are zeroes");
    assert_eq!(log(&mut session, LogId::SMART, 8, 516), Err(Status::INVALID_FIELD));
    assert_eq!(log(&mut session, LogId::SMART, 8, 2), Err(Status::INVALID_FIELD));
    assert_eq!(log(&mut session, LogId::SMART, 8 << 20, 0), Err(Status::INVALID_FIELD));
    let firmware = log(&mut session, LogId::FIRMWARE, 512, 0).unwrap();
    assert_eq!((firmware[0], &firmware[8..13]), (1, &env!("CARGO_PKG_VERSION").as_bytes()[..5]));
    let commands = log(&mut session, LogId::EFFECTS, 4096, 0).unwrap();
    assert_eq!(u32::from(commands[4 * usize::from(AdminOpcode::IDENTIFY.0)]), effects::SUPPORTED);
    assert_eq!(commands[4 * usize::from(AdminOpcode::FORMAT_NVM.0)], 0);
    assert_eq!(commands[1024 + 4 * usize::from(NvmOpcode::WRITE.0)], 3);
    let supported = log(&mut session, LogId::SUPPORTED, 1024, 0).unwrap();
    for id in 0..=255u8 {
        let listed = supported[4 * usize::from(id)] & 1 == 1;
        assert_eq!(log(&mut session, LogId(id), 4, 0).is_ok(), listed, "log page {id:#x}");
    }
    let features = log(&mut session, LogId::FEATURES, 1024, 0).unwrap();
    for id in 0..=255u8 {
        let listed = features[4 * usize::from(id)] & 1 == 1;
        assert_eq!(get(&mut session, FeatureId(id), 0, 1).is_ok(), listed, "feature {id:#x}");
        // Scope: bit 20 where each namespace has a value of its own, as the capabilities say, bit 21 the controller.
        let of_namespaces =
            get(&mut session, FeatureId(id), select::CAPABILITIES, 1).is_ok_and(|(bits, _)| bits & 2 != 0);
        let entry = u32::from_le_bytes(features[4 * usize::from(id)..][..4].try_into().unwrap());
        let scope = if of_namespaces { 1 << 20 } else { 1 << 21 };
        assert_eq!(entry, if listed { 1 | scope } else { 0 }, "feature {id:#x}");
    }
}

#[test]
fn errors_are_logged_latest_first() {
    let mut session = admin_session();
    assert!(identify(&mut session, Cns(0x7F), 0).is_err());
    assert!(identify(&mut session, Cns::NAMESPACE, 0).is_err());
    let page = log(&mut session, LogId::ERROR, 128, 0).unwrap();
    let first = ErrorEntry::read_from_bytes(&page[..64]).unwrap();
    let second = ErrorEntry::read_from_bytes(&page[64..]).unwrap();
    assert_eq!((first.error_count.get(), second.error_count.get()), (2, 1));
    assert_eq!(Status::from_field(first.status.get()).kind(), Status::INVALID_NAMESPACE);
    assert_eq!(Status::from_field(second.status.get()).kind(), Status::INVALID_FIELD);
    for _ in 0..100 {
        assert!(identify(&mut session, Cns(0x7F), 0).is_err());
    }
    let page = log(&mut session, LogId::ERROR, 64 * 65, 0).unwrap();
    assert_eq!(page[64 * 63], 39, "the oldest kept is number 39 of 102");
    assert_eq!(page[64 * 64..], [0; 64]);
}

#[test]
fn features_are_set_and_read_back() {
    let mut session = admin_session();
    let counts = set(&mut session, FeatureId::NUMBER_OF_QUEUES, 0x0003_0003).unwrap();
    assert_eq!(counts, 63 << 16 | 63);
    assert_eq!(get(&mut session, FeatureId::NUMBER_OF_QUEUES, 0, 0).unwrap().0, counts);
    assert_eq!(set(&mut session, FeatureId::NUMBER_OF_QUEUES, 0xFFFF), Err(Status::INVALID_FIELD));
    for (feature, value, expected) in [
        (FeatureId::ARBITRATION, 0x0102_0304, 0x0102_0304),
        (FeatureId::ERROR_RECOVERY, 50, 50),
        (FeatureId::WRITE_ATOMICITY, 1, 1),
        (FeatureId::KEEP_ALIVE_TIMER, 1950, 2000),
        (FeatureId::TEMPERATURE_THRESHOLD, 350, 350),
        (FeatureId::ASYNC_EVENT_CONFIG, async_event_config::NAMESPACE_ATTRIBUTE, 0x100),
        (FeatureId::POWER_MANAGEMENT, 0, 0),
    ] {
        assert_eq!(set(&mut session, feature, value), Ok(0), "{feature}");
        assert_eq!(get(&mut session, feature, select::CURRENT, 0).unwrap().0, expected, "{feature}");
        let capabilities = if feature == FeatureId::ERROR_RECOVERY { 6 } else { 4 };
        assert_eq!(get(&mut session, feature, select::CAPABILITIES, 0).unwrap().0, capabilities, "{feature}");
    }
    assert_eq!(get(&mut session, FeatureId::ERROR_RECOVERY, select::DEFAULT, 0).unwrap().0, 0);
    assert_eq!(get(&mut session, FeatureId::ERROR_RECOVERY, 4, 0), Err(Status::INVALID_FIELD));
    assert_eq!(get(&mut session, FeatureId::TEMPERATURE_THRESHOLD, 0, 1 << 16), Err(Status::INVALID_FIELD));
    assert_eq!(set(&mut session, FeatureId::ERROR_RECOVERY, 1 << 16), Err(Status::INVALID_FIELD));
    assert_eq!(set(&mut session, FeatureId::POWER_MANAGEMENT, 1), Err(Status::INVALID_FIELD));
    assert_eq!(set(&mut session, FeatureId::KEEP_ALIVE_TIMER, u32::MAX), Err(Status::KEEP_ALIVE_INVALID));
    assert_eq!(set(&mut session, FeatureId(0xD0), 0), Err(Status::INVALID_FIELD));
    assert_eq!(get(&mut session, FeatureId::HOST_ID, 0, 1).unwrap().1, [1; 16]);
    assert_eq!(get(&mut session, FeatureId::HOST_ID, 0, 0), Err(Status::INVALID_FIELD));
    assert_eq!(set(&mut session, FeatureId::HOST_ID, 1), Err(Status::SEQUENCE_ERROR));
    let mut save = admin(AdminOpcode::SET_FEATURES, 1, 0, 0);
    save.cdw10 = (1 << 31 | u32::from(FeatureId::ARBITRATION.0)).into();
    assert_eq!(status(session.send(&save, &[])).kind(), Status::FEATURE_NOT_SAVEABLE);
}

#[test]
fn a_changed_namespace_is_told_once_until_its_log_is_read() {
    let mut session = admin_session();
    assert_eq!(send_event_request(&mut session, 10), None);
    session.target.add_namespace(&subsystem(), 2, memory()).unwrap();
    session.turn();
    assert_eq!(session.take_answer(10), None, "the host has not asked for such events yet");
    set(&mut session, FeatureId::ASYNC_EVENT_CONFIG, async_event_config::NAMESPACE_ATTRIBUTE).unwrap();
    let (completion, _) = session.take_answer(10).expect("the event that waited");
    assert_eq!(AsyncEvent::from_result(completion.result.get()), AsyncEvent::NAMESPACE_CHANGED);
    assert_eq!(send_event_request(&mut session, 11), None);
    session.target.remove_namespace(&subsystem(), 1).unwrap();
    session.turn();
    assert_eq!(session.take_answer(11), None, "masked until the log is read");
    let page = log(&mut session, LogId::CHANGED_NAMESPACES, 16, 0).unwrap();
    assert_eq!(page, [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(log(&mut session, LogId::CHANGED_NAMESPACES, 4, 0).unwrap(), [0; 4], "read once");
    session.target.refresh_namespace(&subsystem(), 2).unwrap();
    session.turn();
    assert!(session.take_answer(11).is_some());
}

#[test]
fn event_requests_are_bounded_and_can_be_aborted() {
    let mut session = admin_session();
    for id in 10..14 {
        assert_eq!(send_event_request(&mut session, id), None);
    }
    assert_eq!(status(send_event_request(&mut session, 14)).kind(), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    let mut abort = admin(AdminOpcode::ABORT, 20, 0, 0);
    abort.cdw10 = (12 << 16).into();
    let (completion, _) = session.send(&abort, &[]).unwrap();
    assert_eq!(completion.result.get() & 1, 0, "it was aborted");
    assert_eq!(status(session.take_answer(12)), Status::ABORT_REQUESTED);
    let (completion, _) = session.send(&abort, &[]).unwrap();
    assert_eq!(completion.result.get() & 1, 1, "there is nothing left to abort");
    assert_eq!(send_event_request(&mut session, 15), None);
}

#[test]
fn discovery_names_every_subsystem_at_every_address() {
    let mut session = RawHost::new(memory());
    session.target.add_subsystem("nqn.2026-01.example.yagura:other".parse().unwrap(), "S2").unwrap();
    for (id, address) in [(2, "0.0.0.0:4420"), (3, "[::1]:8009")] {
        let advertise = Some(address.parse().unwrap());
        session.target.add_port(PortConfig { advertise, ..PortConfig::new(PortId(id)) }).unwrap();
        let elsewhere = SocketAddr::from(([0, 0, 0, 0], id));
        session.target.shared.serve_at(Some(PortId(id)), elsewhere).unwrap();
    }
    session.open(false, false);
    session.connect(0, &Nqn::discovery(), |_, _| {});
    session.set_configuration(Configuration(1));
    let page = log(&mut session, LogId::DISCOVERY, 1024 * 7, 0).unwrap();
    assert_eq!(page[8], 6, "two subsystems and the discovery subsystem, at two addresses");
    let entry = nvme::fabrics::DiscoveryEntry::read_from_bytes(&page[2 * 1024..3 * 1024]).unwrap();
    assert_eq!((entry.trtype, entry.adrfam, entry.subtype), (3, 1, 2));
    assert_eq!(Nqn::from_field(&entry.subnqn).unwrap(), subsystem());
    assert_eq!(nvme::fabrics::text_field(&entry.traddr), Some("127.0.0.1"), "where this host has reached us");
    assert_eq!(nvme::fabrics::text_field(&entry.trsvcid), Some("4420"));
    assert_eq!(log(&mut session, LogId::DISCOVERY, 1024, 1024).unwrap(), page[1024..2048]);

    let page = identify(&mut session, Cns::CONTROLLER, 0).unwrap();
    assert_eq!(IdentifyController::read_from_bytes(&page).unwrap().cntrltype, 2);
    assert_eq!(identify(&mut session, Cns::ACTIVE_NAMESPACES, 0), Err(Status::INVALID_FIELD));
    assert_eq!(log(&mut session, LogId::SMART, 512, 0), Err(Status::INVALID_LOG_PAGE));
    assert_eq!(get(&mut session, FeatureId::NUMBER_OF_QUEUES, 0, 0), Err(Status::INVALID_FIELD));
    set(&mut session, FeatureId::ASYNC_EVENT_CONFIG, async_event_config::DISCOVERY_CHANGE).unwrap();
    assert_eq!(send_event_request(&mut session, 10), None);
    session.target.add_subsystem("nqn.2026-01.example.yagura:third".parse().unwrap(), "S3").unwrap();
    session.turn();
    let (completion, _) = session.take_answer(10).expect("a new subsystem is told");
    assert_eq!(AsyncEvent::from_result(completion.result.get()), AsyncEvent::DISCOVERY_CHANGED);
}

/// Without the bound an admin queue of 128 entries could make the target hold 128 MiB for a host that does not read.
#[test]
fn log_pages_under_way_are_bounded() {
    let mut session = admin_session();
    let mib = |id| {
        let (log, bytes) = (LogId::SMART, 1 << 20);
        let request =
            LogRequest { log, specific: 0, retain_event: false, bytes, offset: 0, offset_is_index: false, csi: 0 };
        let mut command = admin(AdminOpcode::GET_LOG_PAGE, id, u32::MAX, bytes as u32);
        request.fill(&mut command);
        command
    };
    let stream: Vec<u8> = (0..20).flat_map(|id| session.capsule(&mib(id), &[])).collect();
    session.receive(&stream);
    let statuses: Vec<_> = (0..20).map(|id| status(session.take_answer(id))).collect();
    assert_eq!(statuses.iter().filter(|status| status.is_success()).count(), 16);
    assert!(statuses[16..].iter().all(|&status| status == Status::INTERRUPTED && !status.is_do_not_retry()));
    assert_eq!(status(session.send(&mib(30), &[])), Status::SUCCESS, "the room comes back");
}

/// The cache's bit once followed the namespaces of the moment. A host that had connected before one with a cache was added
/// had read that there is none: it sent neither Flush nor FUA, and what was acknowledged to it was lost with the power.
#[test]
fn what_a_host_reads_when_it_connects_stays_true_of_namespaces_that_come_later() {
    for profile in [Profile::FULL, Profile::MINIMAL] {
        let target = Target::new(TargetConfig { profile, ..TargetConfig::default() });
        target.add_port(PortConfig::new(PortId(1))).unwrap();
        target.add_subsystem(subsystem(), "SERIAL").unwrap();
        let mut session = RawHost::on(&target);
        session.open(false, false);
        session.connect_admin();
        let read = |session: &mut RawHost| {
            let page = identify(session, Cns::CONTROLLER, 0).unwrap();
            let page = IdentifyController::read_from_bytes(&page).unwrap();
            assert_eq!(get(session, FeatureId::VOLATILE_WRITE_CACHE, 0, 0).unwrap().0, 1);
            (page.vwc, page.awun.get(), page.acwu.get())
        };
        let before = read(&mut session);
        assert_eq!(before.0, 1 | 2 << 1);
        target.add_namespace(&subsystem(), 1, memory()).unwrap();
        let coarse = Memory::new(1 << 20, 65_536, [8; 16]).unwrap();
        target.add_namespace(&subsystem(), 2, coarse).unwrap();
        add_cache(&session);
        assert_eq!(read(&mut session), before);
    }
}

/// Namespace 1 of the session's target gets a volatile write cache.
fn add_cache(session: &RawHost) {
    let info = session.target.namespace(&subsystem(), 1).unwrap().info();
    let info = device::NamespaceInfo { volatile_cache: true, ..info };
    pretend(&session.target, 1, info);
}

#[test]
fn with_the_cache_switched_off_every_write_is_stable() {
    use crate::subsystem::io::Work;
    use device::Durability;

    let mut session = io_session(false, false);
    add_cache(&session);
    session.stalled = true;
    let mut durability = |on: u32| {
        let admin = session.admin.as_mut().unwrap();
        assert_eq!(set(admin, FeatureId::VOLATILE_WRITE_CACHE, on), Ok(0));
        assert_eq!(get(admin, FeatureId::VOLATILE_WRITE_CACHE, 0, 0).unwrap().0, u64::from(on));
        session.receive(&session.capsule(&in_capsule(NvmOpcode::WRITE, on as u16, 0, 1), &pattern(1, 1)));
        match session.core.next_operation().expect("a write is ready").work {
            Work::Write { durability, .. } => durability,
            _ => panic!("a write makes a write"),
        }
    };
    assert_eq!((durability(1), durability(0)), (Durability::Cached, Durability::Stable));
    let page = identify(session.admin.as_mut().unwrap(), Cns::CONTROLLER, 0).unwrap();
    assert_eq!(IdentifyController::read_from_bytes(&page).unwrap().vwc & 1, 1);
}

/// A host may cut the power once CSTS says that the shutdown is complete: not before the caches are flushed.
#[test]
fn a_shutdown_is_complete_when_the_caches_are_flushed() {
    use crate::subsystem::io::{Outcome, Work};
    use nvme::register::status_bits;

    let mut session = admin_session();
    add_cache(&session);
    session.stalled = true;
    let controller = session.core.controller.clone().unwrap();
    session.set_configuration(Configuration::ENABLE.with_normal_shutdown());
    assert_eq!(controller.status() & status_bits::SHUTDOWN_MASK, 1 << 2, "shutdown is being processed");
    let operation = session.core.next_operation().expect("a flush");
    assert!(operation.slot.is_none() && matches!(operation.work, Work::Flush));
    session.core.complete(Outcome { slot: None, result: Ok(()), status: None, data: Default::default(), dwords: 0 });
    assert_eq!(controller.status() & status_bits::SHUTDOWN_MASK, status_bits::SHUTDOWN_COMPLETE);
}

/// A host may change its mind while caches are flushed; each flush counts for what was asked before and since.
#[test]
fn a_shutdown_asked_for_twice_waits_for_every_flush_and_a_reset_takes_it_back() {
    use crate::subsystem::io::Outcome;
    use nvme::register::status_bits;

    let mut session = admin_session();
    add_cache(&session);
    session.stalled = true;
    let controller = session.core.controller.clone().unwrap();
    let flush = |session: &mut RawHost| session.core.next_operation().expect("a flush").slot;
    let flushed = |session: &mut RawHost, slot| {
        session.core.complete(Outcome { slot, result: Ok(()), status: None, data: Default::default(), dwords: 0 });
        controller.status() & status_bits::SHUTDOWN_MASK
    };
    session.set_configuration(Configuration::ENABLE.with_normal_shutdown());
    let first = flush(&mut session);
    session.set_configuration(Configuration::ENABLE);
    session.set_configuration(Configuration::ENABLE.with_normal_shutdown());
    assert_eq!(flushed(&mut session, first), 1 << 2, "what was written before the second one may not be stable");
    let second = flush(&mut session);
    assert_eq!(flushed(&mut session, second), status_bits::SHUTDOWN_COMPLETE);

    session.set_configuration(Configuration(0));
    session.set_configuration(Configuration::ENABLE);
    session.set_configuration(Configuration::ENABLE.with_normal_shutdown());
    let third = flush(&mut session);
    session.set_configuration(Configuration(0));
    session.set_configuration(Configuration::ENABLE);
    assert_eq!(flushed(&mut session, third), 0, "the reset has taken the shutdown back");
}

/// Property Set is answered at once, and a flush has no slot: nothing else bounds what a host gets by asking, taking back, asking.
#[test]
fn however_often_a_shutdown_is_asked_for_a_namespace_has_one_flush() {
    let mut session = admin_session();
    add_cache(&session);
    session.stalled = true;
    for _ in 0..1000 {
        session.set_configuration(Configuration::ENABLE.with_normal_shutdown());
        session.set_configuration(Configuration::ENABLE);
    }
    let begun = std::iter::from_fn(|| session.core.next_operation()).count();
    assert_eq!(begun, 1);
}

/// After a reset the host starts anew on the same queue: with the same identifiers and all the event requests it may have.
#[test]
fn a_reset_aborts_event_requests() {
    let mut session = admin_session();
    for id in 10..14 {
        assert_eq!(send_event_request(&mut session, id), None);
    }
    session.set_configuration(Configuration(0));
    for id in 10..14 {
        assert_eq!(status(session.take_answer(id)).kind(), Status::ABORT_REQUESTED);
    }
    session.set_configuration(Configuration::ENABLE);
    for id in 10..14 {
        assert_eq!(send_event_request(&mut session, id), None);
    }

    // An event whose log page the host had not read before the reset masks none after it.
    let controller = session.core.controller.clone().unwrap();
    let told = |session: &mut RawHost, id| {
        set(session, FeatureId::ASYNC_EVENT_CONFIG, async_event_config::NAMESPACE_ATTRIBUTE).unwrap();
        controller.namespace_changed(1);
        session.turn();
        session.take_answer(id).map(|(completion, _)| completion.result.get())
    };
    let event = Some(AsyncEvent::NAMESPACE_CHANGED.to_result());
    assert_eq!(told(&mut session, 10), event);
    assert_eq!(told(&mut session, 11), None, "masked");
    session.set_configuration(Configuration(0));
    session.set_configuration(Configuration::ENABLE);
    session.inbox.clear();
    assert_eq!(send_event_request(&mut session, 10), None);
    assert_eq!(told(&mut session, 10), event);
}

/// Every log page that Identify promises can be read: a Linux host reads the effects log of who promises one.
#[test]
fn a_discovery_controller_promises_no_effects_log() {
    let mut session = RawHost::new(memory());
    session.open(false, false);
    session.connect(0, &Nqn::discovery(), |_, _| {});
    session.set_configuration(Configuration::ENABLE);
    session.inbox.clear();
    let page = identify(&mut session, Cns::CONTROLLER, 0).unwrap();
    let lpa = IdentifyController::read_from_bytes(&page).unwrap().lpa;
    assert_eq!((lpa & 2 != 0, lpa & 4 != 0), (false, true));
    assert_eq!(log(&mut session, LogId::EFFECTS, 4096, 0), Err(Status::INVALID_LOG_PAGE));
}
