//! Features: scope, data, what may be set when; and what the controller says of time, readiness and health.

use std::time::Duration;

use nvme::SglDescriptor;
use nvme::feature::{FeatureId, select};
use nvme::identify::{Cns, IdentifyNamespace};
use nvme::log::{AsyncEvent, ErrorEntry, LogId, LogRequest, SmartLog};
use nvme::opcode::{AdminOpcode, FabricsType};
use nvme::register::Configuration;
use nvme::{NSID_ALL, Nqn};
use zerocopy::FromBytes;

use super::admin::log;
use super::*;
use crate::subsystem::HostConfig;
use crate::subsystem::end::End;
use crate::subsystem::limits::{CONTROLLERS_MAX, IDLE_TIME_MAX, NSID_MAX};
use crate::subsystem::raw_host::subsystem;

fn feature(opcode: AdminOpcode, feature: FeatureId, nsid: u32, cdw11: u32) -> Submission {
    let mut command = Submission::admin(opcode, 1, nsid);
    command.sgl = SglDescriptor::transport(4096);
    command.cdw10 = u32::from(feature.0).into();
    command.cdw11 = cdw11.into();
    command
}

fn set(session: &mut RawHost, id: FeatureId, nsid: u32, value: u32) -> Status {
    status(session.send(&feature(AdminOpcode::SET_FEATURES, id, nsid, value), &[])).kind()
}

fn get(session: &mut RawHost, id: FeatureId, nsid: u32, cdw11: u32) -> Result<u64, Status> {
    let (completion, _) = session.send(&feature(AdminOpcode::GET_FEATURES, id, nsid, cdw11), &[]).expect("answered");
    if completion.status().is_success() { Ok(completion.result.get()) } else { Err(completion.status().kind()) }
}

fn set_data(session: &mut RawHost, id: FeatureId, data: &[u8]) -> Status {
    let mut command = feature(AdminOpcode::SET_FEATURES, id, 0, 0);
    command.sgl = SglDescriptor::in_capsule(data.len() as u32);
    status(session.send(&command, data)).kind()
}

fn get_data(session: &mut RawHost, id: FeatureId) -> Vec<u8> {
    let (completion, data) = session.send(&feature(AdminOpcode::GET_FEATURES, id, 0, 0), &[]).expect("answered");
    assert_eq!(completion.status(), Status::SUCCESS);
    data
}

#[test]
fn a_feature_of_the_controller_belongs_to_no_namespace() {
    let mut session = admin_session();
    for nsid in [0, NSID_ALL] {
        assert_eq!(set(&mut session, FeatureId::ARBITRATION, nsid, 3), Status::SUCCESS);
    }
    assert_eq!(set(&mut session, FeatureId::ARBITRATION, 1, 3), Status::FEATURE_NOT_NAMESPACE);
    assert_eq!(set(&mut session, FeatureId::ARBITRATION, NSID_MAX + 1, 3), Status::INVALID_NAMESPACE);
    assert_eq!(get(&mut session, FeatureId::ARBITRATION, 1, 0), Ok(3), "reading it is another matter");
}

#[test]
fn error_recovery_is_kept_for_each_namespace() {
    let mut session = admin_session();
    session.target.add_namespace(&subsystem(), 2, memory()).unwrap();
    let id = FeatureId::ERROR_RECOVERY;
    assert_eq!(set(&mut session, id, NSID_ALL, 5), Status::SUCCESS);
    assert_eq!(set(&mut session, id, 2, 9), Status::SUCCESS);
    assert_eq!((get(&mut session, id, 1, 0), get(&mut session, id, 2, 0)), (Ok(5), Ok(9)));
    assert_eq!(set(&mut session, id, NSID_ALL, 7), Status::SUCCESS);
    assert_eq!((get(&mut session, id, 1, 0), get(&mut session, id, 2, 0)), (Ok(7), Ok(7)));
    assert_eq!(set(&mut session, id, 1, 1 << 16), Status::INVALID_FIELD, "deallocated blocks never fail to be read");
    for nsid in [0, NSID_MAX + 1] {
        assert_eq!(set(&mut session, id, nsid, 1), Status::INVALID_NAMESPACE);
        assert_eq!(get(&mut session, id, nsid, 0), Err(Status::INVALID_NAMESPACE));
    }
    assert_eq!(get(&mut session, id, NSID_ALL, 0), Err(Status::INVALID_NAMESPACE), "one value of many");
    assert_eq!(set(&mut session, id, 3, 1), Status::INVALID_FIELD, "not attached");
    let mut capabilities = feature(AdminOpcode::GET_FEATURES, id, 1, 0);
    capabilities.cdw10 = (capabilities.cdw10.get() | u32::from(select::CAPABILITIES) << 8).into();
    let (completion, _) = session.send(&capabilities, &[]).unwrap();
    assert_eq!(completion.result.get(), 0b110, "changeable, namespace specific, not saveable");
}

#[test]
fn queues_are_counted_before_the_first_is_made() {
    let mut session = io_session(false, false);
    let admin = session.admin.as_mut().unwrap();
    assert_eq!(set(admin, FeatureId::NUMBER_OF_QUEUES, 0, 0x0001_0001), Status::SEQUENCE_ERROR);
    admin.set_configuration(Configuration(0));
    admin.set_configuration(Configuration::ENABLE);
    assert_eq!(set(admin, FeatureId::NUMBER_OF_QUEUES, 0, 0x0001_0001), Status::SUCCESS);
}

#[test]
fn one_threshold_is_set_for_all_sensors() {
    let mut session = admin_session();
    let id = FeatureId::TEMPERATURE_THRESHOLD;
    assert_eq!(set(&mut session, id, 0, 0xF << 16 | 333), Status::SUCCESS);
    assert_eq!(get(&mut session, id, 0, 0), Ok(333));
    assert_eq!(get(&mut session, id, 0, 0xF << 16), Err(Status::INVALID_FIELD), "all sensors have no one value");
    assert_eq!(set(&mut session, id, 0, 1 << 16 | 333), Status::INVALID_FIELD, "there is no such sensor");
    assert_eq!(set(&mut session, id, 0, 1 << 20 | 200), Status::SUCCESS);
    assert_eq!((get(&mut session, id, 0, 1 << 20), get(&mut session, id, 0, 0)), (Ok(200), Ok(333)));
}

/// A host that sets a threshold which the temperature is beyond hears of it, and reads it in the health log.
#[test]
fn a_crossed_temperature_threshold_is_a_critical_warning_and_an_event() {
    let mut session = admin_session();
    let id = FeatureId::TEMPERATURE_THRESHOLD;
    let request = |id| Submission::admin(AdminOpcode::ASYNC_EVENT_REQUEST, id, 0);
    let warning = |session: &mut RawHost| {
        let page = log(session, LogId::SMART, 512, 0).expect("the health log");
        let page = SmartLog::read_from_bytes(&page).unwrap();
        (page.critical_warning, page.temperature.get())
    };
    assert_eq!(session.send(&request(10), &[]), None);
    assert_eq!(warning(&mut session), (0, 298));
    assert_eq!(set(&mut session, FeatureId::ASYNC_EVENT_CONFIG, 0, 1 << 1), Status::SUCCESS);
    assert_eq!(session.take_answer(10), None, "nothing is crossed");
    assert_eq!(set(&mut session, id, 0, 298), Status::SUCCESS);
    let (event, _) = session.take_answer(10).expect("an event");
    assert_eq!(AsyncEvent::from_result(event.result.get()), AsyncEvent::TEMPERATURE);
    assert_eq!((event.result.get(), warning(&mut session)), (0x02_0101, (2, 298)));
    assert_eq!(session.send(&request(11), &[]), None, "told once");
    assert_eq!((set(&mut session, id, 0, 333), warning(&mut session).0), (Status::SUCCESS, 0));
    assert_eq!(set(&mut session, id, 0, 1 << 20 | 300), Status::SUCCESS);
    assert!(session.take_answer(11).is_some(), "under the lower one");
}

#[test]
fn the_timestamp_goes_on_from_what_the_host_has_set() {
    let mut session = admin_session();
    session.advance(Duration::from_millis(2500));
    let data = get_data(&mut session, FeatureId::TIMESTAMP);
    assert_eq!(data, [0xC4, 0x09, 0, 0, 0, 0, 0, 0], "2500 ms since the reset");
    let now = 0x0123_4567_89ABu64;
    assert_eq!(set_data(&mut session, FeatureId::TIMESTAMP, &now.to_le_bytes()), Status::SUCCESS);
    session.advance(Duration::from_millis(16));
    let data = get_data(&mut session, FeatureId::TIMESTAMP);
    assert_eq!((&data[..6], data[6]), (&(now + 16).to_le_bytes()[..6], 2), "origin 1: set by a host");
    assert_eq!(set_data(&mut session, FeatureId::TIMESTAMP, &[0; 16]), Status::DATA_SGL_LENGTH_INVALID);
    session.set_configuration(Configuration(0));
    session.set_configuration(Configuration::ENABLE);
    assert_eq!(get_data(&mut session, FeatureId::TIMESTAMP), [0; 8], "a reset takes it back");
}

#[test]
fn host_behavior_is_kept_where_it_means_something() {
    let mut session = admin_session();
    let mut data = [0; 512];
    data[0] = 1;
    assert_eq!(set_data(&mut session, FeatureId::HOST_BEHAVIOR, &data), Status::SUCCESS);
    assert_eq!(get_data(&mut session, FeatureId::HOST_BEHAVIOR), data);
    data[2] = 1; // LBAFEE: no such formats here
    assert_eq!(set_data(&mut session, FeatureId::HOST_BEHAVIOR, &data), Status::INVALID_FIELD);
    assert_eq!(set_data(&mut session, FeatureId::HOST_BEHAVIOR, &data[..511]), Status::DATA_SGL_LENGTH_INVALID);
    let by_request = Submission {
        sgl: SglDescriptor::transport(512),
        ..feature(AdminOpcode::SET_FEATURES, FeatureId::HOST_BEHAVIOR, 0, 0)
    };
    assert_eq!(session.send(&by_request, &[]), None, "it is asked for by R2T");
    super::io::transfer(&mut session, 1, &[0; 512], 100);
    assert_eq!(status(session.take_answer(1)), Status::SUCCESS);
    assert_eq!(get_data(&mut session, FeatureId::HOST_BEHAVIOR), [0; 512]);
}

/// The host owes no keep alive while its controller is disabled or shut down; but it has to do something about it in time.
#[test]
fn the_keep_alive_timer_rests_while_the_controller_does() {
    let mut session = RawHost::new(memory());
    session.open(false, false);
    session.connect(0, &subsystem(), |fields, _| fields.kato = 1000.into());
    session.advance(Duration::from_secs(60));
    assert!(session.core.ended().is_none(), "not enabled yet");
    session.set_configuration(Configuration::ENABLE);
    session.advance(Duration::from_millis(900));
    assert!(session.core.ended().is_none());
    session.set_configuration(Configuration::ENABLE.with_normal_shutdown());
    session.advance(Duration::from_secs(60));
    assert!(session.core.ended().is_none(), "shut down");
    session.set_configuration(Configuration(0));
    session.set_configuration(Configuration::ENABLE);
    session.advance(Duration::from_millis(1000));
    assert_eq!(session.core.ended(), Some(&End::KeepAliveExpired));
    assert_eq!(session.target.stats().keep_alive_expired(), 1);
}

#[test]
fn a_controller_that_is_never_enabled_is_let_go() {
    for kato in [0, 1000] {
        let mut session = RawHost::new(memory());
        session.open(false, false);
        session.connect(0, &subsystem(), |fields, _| fields.kato = kato.into());
        session.advance(IDLE_TIME_MAX - Duration::from_secs(1));
        assert!(session.core.ended().is_none());
        session.advance(Duration::from_secs(1));
        assert_eq!(session.core.ended(), Some(&End::NotEnabled));
    }
    let mut session = admin_session();
    session.set_configuration(Configuration(0));
    session.advance(IDLE_TIME_MAX);
    assert_eq!(session.core.ended(), Some(&End::NotEnabled), "after a reset, too");
}

#[test]
fn health_is_the_controllers_and_counts_what_happened() {
    let mut session = io_session(false, false);
    let mut mark = Submission::nvm(NvmOpcode::WRITE_UNCORRECTABLE, 1, 1);
    mark.set_range(0, 1);
    assert_eq!(status(session.send(&mark, &[])), Status::SUCCESS);
    assert!(!status(session.send(&command(NvmOpcode::READ, 1, 0, 1), &[])).is_success());
    let admin = session.admin.as_mut().unwrap();
    admin.advance(Duration::from_secs(7205));
    let smart = |admin: &mut RawHost, nsid| {
        let bytes = 512;
        let (log, specific, retain_event) = (LogId::SMART, 0, false);
        let mut command = Submission::admin(AdminOpcode::GET_LOG_PAGE, 1, nsid);
        LogRequest { log, specific, retain_event, bytes, offset: 0, offset_is_index: false, csi: 0 }.fill(&mut command);
        command.sgl = SglDescriptor::transport(512);
        admin.send(&command, &[]).expect("answered")
    };
    for nsid in [0, NSID_ALL] {
        let page = SmartLog::read_from_bytes(&smart(admin, nsid).1).unwrap();
        assert_eq!((page.media_errors.get(), page.power_on_hours.get(), page.power_cycles.get()), (1, 2, 1));
    }
    assert_eq!(smart(admin, 1).0.status().kind(), Status::INVALID_FIELD, "LPA bit 0 is clear");
}

/// NUSE is what is in use now, not what could be.
#[test]
fn a_thin_namespace_says_what_it_uses() {
    let mut session = io_session(false, false);
    let used = |session: &mut RawHost| {
        let mut command = Submission::admin(AdminOpcode::IDENTIFY, 1, 1);
        command.sgl = SglDescriptor::transport(4096);
        command.cdw10 = u32::from(Cns::NAMESPACE.0).into();
        let (_, page) = session.admin.as_mut().unwrap().send(&command, &[]).expect("answered");
        let page = IdentifyNamespace::read_from_bytes(&page).unwrap();
        assert_eq!(page.nsfeat & 1, 1, "thin");
        page.nuse.get()
    };
    assert_eq!(used(&mut session), 0);
    assert_eq!(write(&mut session, 100, &pattern(1, 1)), Status::SUCCESS);
    assert_eq!(used(&mut session), 64, "one stripe of 256 KiB");
}

#[test]
fn controllers_are_bounded() {
    let first = RawHost::new(memory());
    // A host that shows no key has 128, and so has an address.
    let by = |number: usize| RawHost::on(&first.target).by_host(number as u8 + 1).at_address(number as u8);
    for number in 0..=CONTROLLERS_MAX / 128 {
        first.target.allow_host(&subsystem(), &by(number).host, HostConfig::default()).expect("room");
    }
    let mut sessions = Vec::new();
    for number in 0..CONTROLLERS_MAX {
        let mut session = by(number / 128);
        session.open(false, false);
        let subsystem: &Nqn = &subsystem();
        assert!(session.connect(0, subsystem, |_, _| {}).unwrap().status().is_success());
        sessions.push(session);
    }
    let mut late = by(CONTROLLERS_MAX / 128);
    late.open(false, false);
    let refused = late.connect(0, &subsystem(), |_, _| {}).unwrap().status();
    assert_eq!(refused, Status::CONNECT_CONTROLLER_BUSY, "and it may try again");
    sessions.pop();
    assert!(late.connect(0, &subsystem(), |_, _| {}).unwrap().status().is_success());
}

/// A log page that is refused has not been read: what it would have let go of is still there.
#[test]
fn a_refused_log_page_lets_go_of_nothing() {
    let mut session = admin_session();
    session.target.add_namespace(&subsystem(), 2, memory()).unwrap();
    let changed = |room: u32, offset: u64| {
        let mut command = feature(AdminOpcode::GET_LOG_PAGE, FeatureId(0), 0, 0);
        command.sgl = SglDescriptor::transport(room);
        let log = LogId::CHANGED_NAMESPACES;
        LogRequest { log, specific: 0, retain_event: false, bytes: 8, offset, offset_is_index: false, csi: 0 }
            .fill(&mut command);
        command
    };
    let too_short = status(session.send(&changed(4, 0), &[]));
    assert_eq!(too_short.kind(), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(status(session.send(&changed(8, 4100), &[])).kind(), Status::INVALID_FIELD, "beyond the page's end");
    let (_, page) = session.send(&changed(8, 0), &[]).expect("answered");
    assert_eq!(page, [2, 0, 0, 0, 0, 0, 0, 0], "namespace 2 has come");
}

/// The entry of a command without blocks or namespace names none: the same bytes of it mean other things.
#[test]
fn the_error_log_names_blocks_of_commands_that_have_some() {
    let mut session = io_session(false, false);
    let mut trim = command(NvmOpcode::DATASET_MANAGEMENT, 2, 0, 1);
    (trim.cdw10, trim.cdw11) = (7.into(), 4.into()); // eight ranges, and room for none
    trim.sgl = SglDescriptor::transport(16);
    let mut goodbye = Submission::fabrics(FabricsType::DISCONNECT, 3);
    goodbye.cdw10 = 1.into();
    for refused in [command(NvmOpcode::READ, 1, BLOCKS + 5, 1), trim, goodbye] {
        assert!(!status(session.send(&refused, &[])).is_success());
    }
    let page = log(session.admin.as_mut().unwrap(), LogId::ERROR, 192, 0).expect("the error log");
    let entry = |at: usize| ErrorEntry::read_from_bytes(&page[at * 64..][..64]).unwrap();
    let named: Vec<_> = (0..3).map(|at| (entry(at).lba.get(), entry(at).nsid.get())).collect();
    assert_eq!(named, [(0, 0), (0, 1), (BLOCKS + 5, 1)]);
}

/// A compare reads, a swap does both, a copy writes, and zeroes are no data of a host's.
#[test]
fn health_counts_commands_and_data_as_they_are_defined() {
    let mut session = io_session(false, false);
    let data = pattern(1, 1);
    for opcode in [NvmOpcode::WRITE, NvmOpcode::COMPARE] {
        assert_eq!(status(session.send(&in_capsule(opcode, 1, 0, 1), &data)), Status::SUCCESS);
    }
    assert_eq!(status(session.send(&command(NvmOpcode::WRITE_ZEROES, 1, 8, 1), &[])), Status::SUCCESS);
    let page = log(session.admin.as_mut().unwrap(), LogId::SMART, 512, 0).expect("the health log");
    let page = SmartLog::read_from_bytes(&page).unwrap();
    assert_eq!((page.host_reads.get(), page.host_writes.get()), (1, 1));
    assert_eq!((page.data_units_read.get(), page.data_units_written.get()), (1, 1));
}
