//! Who is let in, where, and what discovery tells whom.

use std::time::Duration;

use nvme::Nqn;
use nvme::fabrics::{DiscoveryEntry, SubsystemType, entry_flags, text_field};
use nvme::feature::{FeatureId, async_event_config};
use nvme::identify::Cns;
use nvme::log::LogId;
use nvme::opcode::AdminOpcode;
use nvme::register::Configuration;
use zerocopy::FromBytes;

use super::admin::{admin, identify, log, send_event_request, set};
use super::*;
use crate::subsystem::end::End;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{ConfigError, HostConfig, NSID_MAX, PortConfig, PortId};

fn guest() -> Nqn {
    "nqn.2026-01.example.yagura:guest".parse().unwrap()
}

fn host() -> Nqn {
    "nqn.2026-01.example.yagura:host".parse().unwrap()
}

/// One more connection of a host to a target, by a port.
fn opened(target: &crate::subsystem::Target, host: &Nqn, port: u16) -> RawHost {
    let mut session = RawHost::at(target, PortId(port));
    if *host != session.host {
        session.name(host.clone());
    }
    session.open(false, false);
    session
}

fn connect(session: &mut RawHost) -> Status {
    session.connect(0, &subsystem(), |_, _| {}).expect("answered").status()
}

/// A discovery controller of a host, which wants to hear of changes.
fn discovery(target: &crate::subsystem::Target, host: &Nqn) -> RawHost {
    let mut session = opened(target, host, 1);
    session.connect(0, &Nqn::discovery(), |fields, _| fields.kato = 60_000.into());
    session.set_configuration(Configuration::ENABLE);
    set(&mut session, FeatureId::ASYNC_EVENT_CONFIG, async_event_config::DISCOVERY_CHANGE).unwrap();
    session
}

/// GENCTR and the entries of the discovery log.
fn read_log(session: &mut RawHost) -> (u64, Vec<DiscoveryEntry>) {
    let page = log(session, LogId::DISCOVERY, 1024 * 20, 0).unwrap();
    let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    let entries = page[1024..].chunks_exact(1024).take(word(8) as usize);
    (word(0), entries.map(|bytes| DiscoveryEntry::read_from_bytes(bytes).unwrap()).collect())
}

/// NQN and port of every NVM subsystem in the log.
fn offered(session: &mut RawHost) -> Vec<(Nqn, u16)> {
    let (_, entries) = read_log(session);
    let entries = entries.iter().filter(|entry| entry.subtype == SubsystemType::NVM.0);
    entries.map(|entry| (Nqn::from_field(&entry.subnqn).unwrap(), entry.portid.get())).collect()
}

#[test]
fn only_hosts_on_the_list_are_let_in() {
    let session = admin_session();
    let target = &session.target;
    let mut stranger = opened(target, &guest(), 1);
    target.allow_any_host(&subsystem(), false).unwrap();
    let refused = stranger.connect(0, &subsystem(), |_, _| {}).expect("answered");
    assert_eq!(refused.status(), Status::CONNECT_INVALID_HOST.do_not_retry());
    target.allow_host(&subsystem(), &guest(), HostConfig::default()).unwrap();
    assert_eq!(connect(&mut stranger), Status::SUCCESS);
    assert_eq!(target.allow_any_host(&Nqn::discovery(), true), Err(ConfigError::NoSubsystem(Nqn::discovery())));
}

#[test]
fn who_is_not_let_in_any_more_is_gone() {
    let mut session = io_session(false, false);
    let target = session.target.clone();
    let mut other = opened(&target, &guest(), 1);
    assert_eq!(connect(&mut other), Status::SUCCESS);
    target.allow_host(&subsystem(), &host(), HostConfig::default()).unwrap();
    target.allow_any_host(&subsystem(), false).unwrap();
    other.turn();
    session.turn();
    assert_eq!(other.core.ended(), Some(&End::AssociationEnded), "a host that is not on the list");
    assert_eq!(session.core.ended(), None, "one that is");
    session.stalled = true;
    session.receive(&session.capsule(&in_capsule(NvmOpcode::WRITE, 1, 0, 1), &pattern(1, 1)));
    target.deny_host(&subsystem(), &host()).unwrap();
    session.core.poll(session.now);
    assert_eq!(session.core.ended(), Some(&End::AssociationEnded));
    assert!(session.core.next_operation().is_none(), "nothing that it has sent is executed any more");
    let mut again = opened(&target, &host(), 1);
    again.controller = session.controller;
    assert_eq!(connect(&mut again).kind(), Status::CONNECT_INVALID_HOST);
    let io = again.connect(1, &subsystem(), |_, _| {}).expect("answered");
    assert_eq!(io.status().kind(), Status::CONNECT_INVALID_HOST, "nor by an I/O queue");
}

#[test]
fn a_host_that_is_not_there_can_not_be_denied() {
    let session = admin_session();
    let error = session.target.deny_host(&subsystem(), &guest()).expect_err("refused").to_string();
    assert!(error.contains("not on the list") && error.contains("lets in any host"), "{error}");
    session.target.allow_any_host(&subsystem(), false).unwrap();
    let error = session.target.deny_host(&subsystem(), &guest()).expect_err("refused").to_string();
    assert!(!error.contains("any host"), "{error}");
}

#[test]
fn listing_a_host_that_is_in_anyway_does_not_disturb_it() {
    let mut session = admin_session();
    session.target.allow_host(&subsystem(), &host(), HostConfig::default()).unwrap();
    session.target.deny_host(&subsystem(), &host()).unwrap();
    session.turn();
    assert_eq!(session.core.ended(), None);
}

#[test]
fn discovery_tells_a_host_what_it_may_use_and_when_that_changes() {
    let session = admin_session();
    let target = &session.target;
    target.shared.serve_at(Some(PortId(1)), "127.0.0.1:4420".parse().unwrap()).unwrap();
    let (mut ours, mut theirs) = (discovery(target, &host()), discovery(target, &guest()));
    let all = vec![(subsystem(), 1)];
    assert_eq!((offered(&mut ours), offered(&mut theirs)), (all.clone(), all.clone()));
    target.allow_host(&subsystem(), &host(), HostConfig::default()).unwrap();
    target.allow_any_host(&subsystem(), false).unwrap();
    assert_eq!((offered(&mut ours), offered(&mut theirs)), (all.clone(), vec![]));
    let (before, _) = read_log(&mut theirs);
    for session in [&mut ours, &mut theirs] {
        assert!(send_event_request(session, 9).is_some(), "what has changed so far");
        read_log(session);
        assert_eq!(send_event_request(session, 10), None);
    }
    target.allow_host(&subsystem(), &guest(), HostConfig::default()).unwrap();
    ours.turn();
    theirs.turn();
    assert!(ours.take_answer(10).is_none(), "what this host sees is what it saw");
    assert!(theirs.take_answer(10).is_some());
    let (after, _) = read_log(&mut theirs);
    assert!(after > before);
    assert_eq!(offered(&mut theirs), all);
    target.add_namespace(&subsystem(), 5, memory()).unwrap();
    assert_eq!(read_log(&mut theirs).0, after, "namespaces are not in this log");
}

#[test]
fn discovery_names_itself_and_others() {
    let session = admin_session();
    let target = &session.target;
    target.shared.serve_at(Some(PortId(1)), "127.0.0.1:4420".parse().unwrap()).unwrap();
    let advertise = Some("[::1]:8009".parse().unwrap());
    let port = PortConfig { advertise, discovery_only: true, ..PortConfig::new(PortId(7)) };
    target.add_port(port).unwrap();
    target.add_referral("192.0.2.9:8009".parse().unwrap()).unwrap();
    let mut session = discovery(target, &host());
    let (_, entries) = read_log(&mut session);
    let told: Vec<_> = entries
        .iter()
        .map(|entry| {
            let place = format!("{}:{}", text_field(&entry.traddr).unwrap(), text_field(&entry.trsvcid).unwrap());
            let discovery = Nqn::from_field(&entry.subnqn).unwrap().is_discovery();
            (SubsystemType(entry.subtype), discovery, entry.portid.get(), place, entry.eflags.get())
        })
        .collect();
    let own = entry_flags::PERSISTENT | entry_flags::SAME_INFORMATION;
    let expected = [
        (SubsystemType::NVM, false, 1, "127.0.0.1:4420".to_string(), 0),
        (SubsystemType::CURRENT_DISCOVERY, true, 1, "127.0.0.1:4420".to_string(), own),
        (SubsystemType::CURRENT_DISCOVERY, true, 7, "::1:8009".to_string(), own),
        (SubsystemType::REFERRAL, true, 0, "192.0.2.9:8009".to_string(), 0),
    ];
    assert_eq!(told, expected);
    assert!(entries.iter().all(|entry| entry.treq == 0b110 && entry.cntlid.get() == 0xFFFF && entry.trtype == 3));
}

#[test]
fn a_subsystem_is_had_at_its_ports_only() {
    let session = admin_session();
    let target = &session.target;
    target.add_port(PortConfig::new(PortId(2))).unwrap();
    target.add_port(PortConfig { discovery_only: true, ..PortConfig::new(PortId(3)) }).unwrap();
    let mut by_one = opened(target, &host(), 1);
    assert_eq!(connect(&mut by_one), Status::SUCCESS);
    assert_eq!(connect(&mut opened(target, &host(), 3)).kind(), Status::CONNECT_INVALID_PARAMETERS);
    target.restrict_ports(&subsystem(), [PortId(2)]).unwrap();
    by_one.turn();
    assert_eq!(by_one.core.ended(), Some(&End::AssociationEnded));
    let mut by_one = opened(target, &host(), 1);
    assert_eq!(connect(&mut by_one).kind(), Status::CONNECT_INVALID_PARAMETERS);
    let discovery = by_one.connect(0, &Nqn::discovery(), |_, _| {}).expect("answered");
    assert_eq!(discovery.status(), Status::SUCCESS, "discovery is everywhere");
    let mut by_two = opened(target, &host(), 2);
    assert_eq!(connect(&mut by_two), Status::SUCCESS);
    assert_eq!(target.restrict_ports(&subsystem(), [PortId(9)]), Err(ConfigError::NoPort(PortId(9))));
}

/// Hosts that read the log once and never close would otherwise take all the controllers there are.
#[test]
fn a_discovery_controller_stays_while_it_is_used_or_for_as_long_as_was_asked() {
    let session = admin_session();
    let mut idle = opened(&session.target, &host(), 1);
    idle.connect(0, &Nqn::discovery(), |_, _| {});
    idle.set_configuration(Configuration::ENABLE);
    for _ in 0..3 {
        idle.advance(Duration::from_secs(119));
        read_log(&mut idle);
    }
    idle.advance(Duration::from_secs(120));
    assert_eq!(idle.core.ended(), Some(&End::KeepAliveExpired));
    let mut persistent = opened(&session.target, &host(), 1);
    persistent.connect(0, &Nqn::discovery(), |fields, _| fields.kato = 600_000.into());
    persistent.set_configuration(Configuration::ENABLE);
    persistent.advance(Duration::from_secs(599));
    assert_eq!(persistent.core.ended(), None);
    persistent.advance(Duration::from_secs(1));
    assert_eq!(persistent.core.ended(), Some(&End::KeepAliveExpired));
}

/// An association is over one port (NVMe Base 2.0 §6.3): its ANA states are those of that port.
#[test]
fn an_io_queue_comes_by_the_port_of_its_controller() {
    let mut session = admin_session();
    session.target.add_port(PortConfig::new(PortId(2))).unwrap();
    let mut other = opened(&session.target, &host(), 2);
    other.controller = session.controller;
    let refused = other.connect(1, &subsystem(), |_, _| {}).expect("answered");
    assert_eq!(refused.status().kind(), Status::CONNECT_INVALID_PARAMETERS);
    session.turn();
}

/// A controller list as numbers.
fn controllers(session: &mut RawHost, cns: Cns, first: u16, nsid: u32) -> Result<Vec<u16>, Status> {
    let mut command = admin(AdminOpcode::IDENTIFY, 1, nsid, 4096);
    command.cdw10 = (u32::from(cns.0) | u32::from(first) << 16).into();
    let (completion, page) = session.send(&command, &[]).expect("answered");
    if !completion.status().is_success() {
        return Err(completion.status().kind());
    }
    let mut words = page.chunks_exact(2).map(|word| u16::from_le_bytes(word.try_into().unwrap()));
    let count = usize::from(words.next().unwrap());
    Ok(words.take(count).collect())
}

#[test]
fn controllers_are_listed() {
    let mut session = admin_session();
    let mut second = opened(&session.target, &guest(), 1);
    assert_eq!(connect(&mut second), Status::SUCCESS);
    let _elsewhere = discovery(&session.target, &guest());
    let (one, two) = (session.controller, second.controller);
    assert_eq!(controllers(&mut session, Cns::CONTROLLERS, 0, 0), Ok(vec![one, two]));
    assert_eq!(controllers(&mut session, Cns::CONTROLLERS, two, 0), Ok(vec![two]));
    assert_eq!(controllers(&mut session, Cns::NAMESPACE_CONTROLLERS, 0, 1), Ok(vec![one, two]));
    let all = controllers(&mut session, Cns::NAMESPACE_CONTROLLERS, 0, u32::MAX);
    assert_eq!(all, Err(Status::INVALID_FIELD));
    for nsid in [0, 2, NSID_MAX + 1] {
        let refused = controllers(&mut session, Cns::NAMESPACE_CONTROLLERS, 0, nsid);
        assert_eq!(refused, Err(Status::INVALID_NAMESPACE));
    }
    let sets = |session: &mut RawHost, controller| controllers(session, Cns::COMMAND_SETS, controller, 0);
    assert_eq!(
        sets(&mut session, 0xFFFF),
        Ok(vec![0; 5]),
        "the first vector has bits 0 and 2: NVM and Zoned Namespace"
    );
    assert_eq!(sets(&mut session, 999), Err(Status::INVALID_FIELD));
    drop(second);
    assert_eq!(controllers(&mut session, Cns::CONTROLLERS, 0, 0), Ok(vec![one]));
    assert!(identify(&mut session, Cns::CONTROLLER, 0).is_ok());
}
