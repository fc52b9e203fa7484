//! Several ports and asymmetric access: what the log says, who is told, which commands are served.

use device::Namespace;
use nvme::ana::{AnaGroup, GROUPS_ONLY};
use nvme::feature::{FeatureId, async_event_config, select};
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace};
use nvme::log::{AsyncEvent, LogId, LogRequest};
use nvme::opcode::AdminOpcode;
use nvme::reservation::{
    AcquireAction, PersistChange, RegisterAction, ReleaseAction, ReservationCommand, ReservationType,
};
use nvme::{AnaState, Fuse, NSID_ALL};
use zerocopy::FromBytes;

use super::admin::{admin, get, identify, log, send_event_request, set};
use super::*;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{ANA_GROUPS_MAX, ConfigError, PortConfig, PortId};

/// Admin sessions of one target: by port 1, and by port 2.
fn by_two_ports() -> (RawHost, RawHost) {
    let one = admin_session();
    one.target.add_port(PortConfig::new(PortId(2))).unwrap();
    let mut two = RawHost::at(&one.target, PortId(2));
    two.open(false, false);
    two.connect_admin();
    (one, two)
}

fn set_state(session: &RawHost, port: u16, group: u32, state: AnaState) {
    session.target.set_ana_state(&subsystem(), PortId(port), group, state).unwrap();
}

/// The log page: its change count, and every group.
fn ana(session: &mut RawHost, specific: u8) -> (u64, Vec<(AnaGroup, Vec<u32>)>) {
    let bytes = 4096;
    let log = LogId::ANA;
    let request = LogRequest { log, specific, retain_event: false, bytes, offset: 0, offset_is_index: false, csi: 0 };
    let mut command = admin(AdminOpcode::GET_LOG_PAGE, 1, NSID_ALL, bytes as u32);
    request.fill(&mut command);
    let (completion, page) = session.send(&command, &[]).expect("answered");
    assert_eq!(completion.status(), Status::SUCCESS);
    let count = u64::from_le_bytes(page[..8].try_into().unwrap());
    (count, nvme::ana::groups(&page).collect())
}

/// Group, state and namespaces of each group.
fn groups(session: &mut RawHost) -> Vec<(u32, Option<AnaState>, Vec<u32>)> {
    let told = |(group, nsids): (AnaGroup, Vec<u32>)| (group.id.get(), AnaState::from_code(group.state), nsids);
    ana(session, 0).1.into_iter().map(told).collect()
}

#[test]
fn the_log_tells_groups_and_their_states_at_the_port() {
    let (mut one, mut two) = by_two_ports();
    one.target.add_namespace_to(&subsystem(), 3, 7, memory()).unwrap();
    one.target.add_namespace_to(&subsystem(), 2, 7, memory()).unwrap();
    set_state(&one, 2, 7, AnaState::NonOptimized);
    let optimized = Some(AnaState::Optimized);
    assert_eq!(groups(&mut one), [(1, optimized, vec![1]), (7, optimized, vec![2, 3])]);
    assert_eq!(groups(&mut two), [(1, optimized, vec![1]), (7, Some(AnaState::NonOptimized), vec![2, 3])]);
    let (before, _) = ana(&mut one, 0);
    let (count, bare) = ana(&mut one, GROUPS_ONLY);
    assert_eq!(count, before, "reading changes nothing");
    assert!(bare.iter().all(|(group, nsids)| group.namespaces.get() == 0 && nsids.is_empty()), "{bare:?}");
    assert_eq!(bare.len(), 2);
    one.target.set_ana_group(&subsystem(), 3, 1).unwrap();
    assert_eq!(groups(&mut one), [(1, optimized, vec![1, 3]), (7, optimized, vec![2])]);
    assert!(ana(&mut one, 0).0 > before);
    let whole = log(&mut one, LogId::ANA, 128, 0).unwrap();
    assert_eq!(log(&mut one, LogId::ANA, 40, 16).unwrap(), whole[16..56], "in parts");
    assert_eq!(log(&mut one, LogId::ANA, 4, 4096), Err(Status::INVALID_FIELD), "beyond its end");
}

#[test]
fn what_can_not_be_set_is_refused() {
    let (one, _two) = by_two_ports();
    let target = &one.target;
    let nobody: nvme::Nqn = "nqn.2026-01.example.yagura:nobody".parse().unwrap();
    let set = |nqn: &nvme::Nqn, port, group| target.set_ana_state(nqn, PortId(port), group, AnaState::Inaccessible);
    assert_eq!(set(&nobody, 1, 1), Err(ConfigError::NoSubsystem(nobody.clone())));
    assert_eq!(set(&subsystem(), 9, 1), Err(ConfigError::NoPort(PortId(9))));
    assert_eq!(set(&subsystem(), 1, 0), Err(ConfigError::AnaGroup(0)));
    assert_eq!(target.set_ana_group(&subsystem(), 9, 1), Err(ConfigError::NoNamespace(9)));
    assert_eq!(target.set_ana_group(&subsystem(), 1, 129), Err(ConfigError::AnaGroup(129)));
    assert_eq!(target.add_namespace_to(&subsystem(), 2, 0, memory()), Err(ConfigError::AnaGroup(0)));
    assert_eq!(target.add_port(PortConfig::new(PortId(2))), Err(ConfigError::PortExists(PortId(2))));
}

#[test]
fn hosts_are_told_where_a_state_has_changed() {
    let (mut one, mut two) = by_two_ports();
    for session in [&mut one, &mut two] {
        set(session, FeatureId::ASYNC_EVENT_CONFIG, async_event_config::ANA_CHANGE).unwrap();
        assert_eq!(get(session, FeatureId::ASYNC_EVENT_CONFIG, select::CURRENT, 0).unwrap().0, 1 << 11);
        assert_eq!(send_event_request(session, 10), None);
    }
    let told = |one: &mut RawHost, two: &mut RawHost| {
        one.turn();
        two.turn();
        let event = |answer: (Completion, _)| AsyncEvent::from_result(answer.0.result.get());
        (one.take_answer(10).map(event), two.take_answer(10).map(event))
    };
    set_state(&one, 1, 1, AnaState::Change);
    assert_eq!(told(&mut one, &mut two), (None, None), "what comes of the change is told");
    set_state(&one, 1, 1, AnaState::Inaccessible);
    assert_eq!(told(&mut one, &mut two), (Some(AsyncEvent::ANA_CHANGED), None));
    assert_eq!(send_event_request(&mut one, 10), None);
    set_state(&one, 1, 1, AnaState::NonOptimized);
    assert_eq!(told(&mut one, &mut two), (None, None), "masked until the log is read");
    ana(&mut one, 0);
    set_state(&one, 1, 1, AnaState::NonOptimized);
    assert_eq!(told(&mut one, &mut two), (None, None), "nothing has changed");
    one.target.add_namespace_to(&subsystem(), 2, 5, memory()).unwrap();
    assert_eq!(told(&mut one, &mut two), (None, None), "a namespace that comes is told as that");
    one.target.set_ana_group(&subsystem(), 2, 6).unwrap();
    assert_eq!(told(&mut one, &mut two), (Some(AsyncEvent::ANA_CHANGED), Some(AsyncEvent::ANA_CHANGED)));
}

/// An I/O session by port 2, and commands of every kind that addresses a namespace.
fn commands_by_port_two() -> (RawHost, Vec<(Submission, Vec<u8>)>) {
    let admin = admin_session();
    admin.target.add_port(PortConfig::new(PortId(2))).unwrap();
    let mut session = RawHost::at(&admin.target, PortId(2));
    session.open(false, false);
    session.connect_io();
    let ranges = Submission { sgl: SglDescriptor::in_capsule(16), ..command(NvmOpcode::DATASET_MANAGEMENT, 6, 0, 1) };
    // A Copy of block 1 to block 0.
    let copy = Submission { sgl: SglDescriptor::in_capsule(32), ..command(NvmOpcode::COPY, 8, 0, 1) };
    let source = [&[0; 8][..], &1u64.to_le_bytes(), &[0; 16]].concat();
    let bare = |opcode, id| Submission { sgl: SglDescriptor::transport(0), ..command(opcode, id, 0, 1) };
    let (persist, rtype) = (PersistChange::Keep, ReservationType::WriteExclusive);
    let reservation = |asked: ReservationCommand| {
        let command_id = (20 + u16::from(asked.to_submission(1).opcode)).into();
        let sgl = SglDescriptor::in_capsule(16);
        (Submission { command_id, sgl, ..asked.to_submission(1) }, vec![1; 16])
    };
    let report = ReservationCommand::Report { bytes: 64, extended: true }.to_submission(1);
    let report = Submission { sgl: SglDescriptor::transport(64), ..report };
    let commands = vec![
        (command(NvmOpcode::READ, 1, 0, 1), vec![]),
        (in_capsule(NvmOpcode::WRITE, 2, 0, 1), pattern(1, 1)),
        (in_capsule(NvmOpcode::COMPARE, 3, 0, 1), pattern(1, 1)),
        (bare(NvmOpcode::FLUSH, 4), vec![]),
        (bare(NvmOpcode::WRITE_ZEROES, 5), vec![]),
        (ranges, vec![0; 16]),
        (bare(NvmOpcode::VERIFY, 7), vec![]),
        (copy, source),
        (bare(NvmOpcode::WRITE_UNCORRECTABLE, 9), vec![]),
        reservation(ReservationCommand::Register { action: RegisterAction::Replace, ignore_key: true, persist }),
        reservation(ReservationCommand::Acquire { action: AcquireAction::Acquire, rtype }),
        reservation(ReservationCommand::Release { action: ReleaseAction::Release, rtype: Some(rtype) }),
        (report, vec![]),
    ];
    (session, commands)
}

/// The status code type of paths.
const PATH_RELATED: u8 = 3;

#[test]
fn every_command_gets_the_status_of_its_path() {
    let (mut session, commands) = commands_by_port_two();
    let mut other = RawHost::on(&session.target);
    other.open(false, false);
    other.connect_io();
    for (state, refused) in [
        (AnaState::Optimized, None),
        (AnaState::NonOptimized, None),
        (AnaState::Inaccessible, Some(Status::ANA_INACCESSIBLE)),
        (AnaState::Change, Some(Status::ANA_TRANSITION)),
        (AnaState::PersistentLoss, Some(Status::ANA_PERSISTENT_LOSS)),
    ] {
        set_state(&session, 2, 1, state);
        for (command, data) in &commands {
            let got = status(session.send(command, data));
            match refused {
                Some(refused) => assert_eq!(got, refused, "{command:?} in {state}"),
                // Blocks may not compare, or be marked: what matters is that the namespace was asked.
                None => assert_ne!(got.code_type(), PATH_RELATED, "{command:?} in {state}: {got}"),
            }
            let other = status(other.send(command, data));
            assert_ne!(other.code_type(), PATH_RELATED, "the other port's path is good: {other}");
        }
    }
}

#[test]
fn a_fused_pair_over_a_bad_path_fails_whole() {
    let (mut session, _) = commands_by_port_two();
    set_state(&session, 2, 1, AnaState::Inaccessible);
    let half = |opcode, id, fuse| {
        let mut command = in_capsule(opcode, id, 0, 1);
        command.set_fuse(fuse);
        command
    };
    let mut stream = session.capsule(&half(NvmOpcode::COMPARE, 1, Fuse::First), &pattern(1, 0));
    stream.extend(session.capsule(&half(NvmOpcode::WRITE, 2, Fuse::Second), &pattern(1, 1)));
    session.receive(&stream);
    assert_eq!(status(session.take_answer(1)), Status::ANA_INACCESSIBLE);
    assert_eq!(status(session.take_answer(2)), Status::FAILED_FUSED);
}

#[test]
fn a_command_that_executes_runs_to_its_end_and_no_other_begins() {
    let (mut session, commands) = commands_by_port_two();
    session.stalled = true;
    session.receive(&session.capsule(&commands[1].0, &commands[1].1));
    let executing = session.core.next_operation().expect("a write");
    session.receive(&session.capsule(&command(NvmOpcode::READ, 9, 0, 1), &[]));
    set_state(&session, 2, 1, AnaState::Inaccessible);
    let outcome = executed(executing);
    session.core.complete(outcome);
    session.stalled = false;
    session.turn();
    assert_eq!(status(session.take_answer(2)), Status::SUCCESS);
    assert_eq!(status(session.take_answer(9)), Status::ANA_INACCESSIBLE, "it had not begun");
    assert_eq!(status(session.send(&commands[0].0, &[])), Status::ANA_INACCESSIBLE);
    set_state(&session, 2, 1, AnaState::Optimized);
    assert_eq!(read(&mut session, 0, 1), pattern(1, 1));
}

#[test]
fn identify_tells_groups_and_no_capacity_over_a_bad_path() {
    let namespace = memory();
    let data = engine::Buf::zeroed(BLOCK).freeze();
    let written = crate::fuzz::poll_once(namespace.write(device::Lba(0), data, device::Durability::Cached));
    assert_eq!(written, Some(Ok(())));
    let used = namespace.used_blocks();
    assert!(used > 0);
    let mut session = RawHost::new(namespace);
    session.open(false, false);
    session.connect_admin();
    let page = identify(&mut session, Cns::CONTROLLER, 0).unwrap();
    let page = IdentifyController::read_from_bytes(&page).unwrap();
    assert_eq!((page.cmic, page.anacap, page.oaes.get() >> 11 & 1), (0b1011, 0x1F, 1));
    assert_eq!((page.anagrpmax.get(), page.nanagrpid.get()), (ANA_GROUPS_MAX, ANA_GROUPS_MAX));
    assert!(page.anatt > 0);
    session.target.set_ana_group(&subsystem(), 1, 9).unwrap();
    let mut capacities = |state| {
        set_state(&session, 1, 9, state);
        let page = identify(&mut session, Cns::NAMESPACE, 1).unwrap();
        let page = IdentifyNamespace::read_from_bytes(&page).unwrap();
        assert_eq!((page.nsze.get(), page.anagrpid.get(), page.nmic), (BLOCKS, 9, 1));
        let independent = identify(&mut session, Cns::INDEPENDENT_NAMESPACE, 1).unwrap();
        assert_eq!((&independent[4..8], independent[1]), (&[9, 0, 0, 0][..], 1));
        (page.nuse.get(), page.nvmcap.get())
    };
    let whole = (used, u128::from(BLOCKS) * BLOCK as u128);
    assert_eq!(capacities(AnaState::NonOptimized), whole);
    assert_eq!(capacities(AnaState::Change), whole);
    assert_eq!(capacities(AnaState::Inaccessible), (0, 0));
    assert_eq!(capacities(AnaState::PersistentLoss), (0, 0));
}

fn feature(session: &mut RawHost, opcode: AdminOpcode, feature: FeatureId, nsid: u32) -> Status {
    let mut command = admin(opcode, 1, nsid, 0);
    command.cdw10 = u32::from(feature.0).into();
    status(session.send(&command, &[]))
}

#[test]
fn features_of_a_namespace_follow_its_path() {
    let mut session = admin_session();
    let (get, set) = (AdminOpcode::GET_FEATURES, AdminOpcode::SET_FEATURES);
    for state in [AnaState::Inaccessible, AnaState::Change, AnaState::PersistentLoss] {
        set_state(&session, 1, 1, state);
        let refusal = state.refusal().unwrap();
        assert_eq!(feature(&mut session, get, FeatureId::ERROR_RECOVERY, 1), refusal);
        assert_eq!(feature(&mut session, set, FeatureId::ERROR_RECOVERY, 1), refusal);
        assert_eq!(feature(&mut session, set, FeatureId::ARBITRATION, NSID_ALL), refusal, "of all namespaces");
        assert_eq!(feature(&mut session, get, FeatureId::ARBITRATION, NSID_ALL), Status::SUCCESS);
        assert_eq!(feature(&mut session, get, FeatureId::ARBITRATION, 0), Status::SUCCESS, "of the controller");
        assert_eq!(feature(&mut session, set, FeatureId::ARBITRATION, 0), Status::SUCCESS);
        let of_one = feature(&mut session, set, FeatureId::ARBITRATION, 1).kind();
        assert_eq!(of_one, Status::FEATURE_NOT_NAMESPACE, "on no path");
    }
}
