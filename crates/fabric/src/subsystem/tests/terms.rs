//! On which terms a host is let in: looked up before, and held to when its controller is listed.

use std::sync::Arc;

use nvme::Nqn;
use nvme::identify::{Cns, IdentifyController, oacs};
use nvme::log::LogId;
use nvme::opcode::AdminOpcode;
use nvme::register::Configuration;
use zerocopy::FromBytes;

use super::admin::{admin, identify, log};
use super::authentication::{allow, keys, login_to_discovery};
use super::management::{Shelf, create, wanted};
use super::*;
use crate::auth::AuthError;
use crate::psk::{ConfiguredPsk, IdentityVersion, PskHash};
use crate::subsystem::controller::Identity;
use crate::subsystem::raw_host::{host, subsystem};
use crate::subsystem::shared::Refused;
use crate::subsystem::terms::Entrance;
use crate::subsystem::{HostConfig, PortConfig, PortId, Target, TargetConfig};

fn identity(secure: bool) -> Identity {
    Identity { subsystem: subsystem(), host: host(), host_id: [1; 16], port: PortId(1), secure, generated: None }
}

/// Changes a host's configuration between the two steps of its Connect.
fn listed_after(change: impl FnOnce(&Target)) -> Result<(), Refused> {
    let target = RawHost::new(memory()).target;
    let entrance = Entrance { qid: 0, psk: None };
    let looked_up = target.shared.look_up(&identity(false), &entrance).expect("let in");
    change(&target);
    target.shared.add_controller(identity(false), Arc::default(), &entrance, &looked_up).map(drop)
}

/// Whether a host must authenticate, and must use TLS, was looked up, and its controller listed a moment later: a host that was
/// given keys in between was in without having shown one, for as long as it liked.
#[test]
fn terms_that_change_while_a_host_connects_are_held_to() {
    let configured =
        |config: HostConfig| listed_after(|target| target.allow_host(&subsystem(), &host(), config).expect("room"));
    assert_eq!(listed_after(|_| {}), Ok(()));
    let with_keys = HostConfig { keys: Some(keys(false)), ..HostConfig::default() };
    assert_eq!(configured(with_keys), Err(Refused::Busy), "it may try again, and is asked then");
    let with_tls = HostConfig { tls_required: true, ..HostConfig::default() };
    assert_eq!(configured(with_tls), Err(Refused::Insecure));
    let denied = listed_after(|target| target.allow_any_host(&subsystem(), false).expect("it is there"));
    assert_eq!(denied, Err(Refused::Host));
}

/// A key for TLS opens no controller once its host has another one, though the handshake was made with it before.
#[test]
fn a_key_that_was_replaced_since_the_handshake_lists_nobody() {
    let target = RawHost::new(memory()).target;
    let make = || {
        let key = ConfiguredPsk::random(Some(PskHash::Sha256), PskHash::Sha256).expect("random");
        key.retain_all(&host(), false).expect("retained")
    };
    let give = |tls_keys| {
        let config = HostConfig { tls_keys, ..HostConfig::default() };
        target.allow_host(&subsystem(), &host(), config).expect("room");
    };
    let old = make();
    let psk = old[0].tls_psk(IdentityVersion::Zero, &subsystem()).expect("derived");
    give(old);
    let entrance = Entrance { qid: 0, psk: Some(&psk) };
    let looked_up = target.shared.look_up(&identity(true), &entrance).expect("let in");
    let listed = |terms| target.shared.add_controller(identity(true), Arc::default(), &entrance, terms);
    let before = listed(&looked_up).map_err(|_| ()).expect("listed");
    give(make());
    assert!(before.is_ended());
    assert_eq!(listed(&looked_up).err(), Some(Refused::Host));
}

/// The discovery subsystem took the keys of the first subsystem that had some for the host: a host with another key for each could
/// ask for what there is only by the one of the subsystem that came first by its name.
#[test]
fn any_key_of_a_host_opens_discovery() {
    let target = Target::new(TargetConfig { require_authentication: true, ..TargetConfig::default() });
    target.add_port(PortConfig::new(PortId(1))).expect("new");
    let other: Nqn = "nqn.2026-01.example.yagura:another".parse().expect("a name");
    for nqn in [subsystem(), other.clone()] {
        target.add_subsystem(nqn, "SERIAL").expect("new");
    }
    let (first, second) = (keys(true), keys(true));
    allow(&target, &first);
    let config = HostConfig { keys: Some(second.clone()), ..HostConfig::default() };
    target.allow_host(&other, &host(), config).expect("room");
    let login = |keys| {
        let mut session = RawHost::on(&target);
        session.open(false, false);
        session.connect(0, &Nqn::discovery(), |_, _| {}).expect("answered");
        login_to_discovery(&mut session, keys)
    };
    assert_eq!((login(&first), login(&second)), (Ok(()), Ok(())), "both ends have shown the key of the same pair");
    assert!(matches!(login(&keys(true)), Err(AuthError::Refused(_))));
}

/// Whoever a drive's subsystem let in could delete every namespace on it, also those of other hosts.
#[test]
fn only_who_may_manage_is_offered_management() {
    let target = RawHost::new(memory()).target;
    target.add_store(&subsystem(), Arc::new(Shelf::default())).expect("the subsystem is there");
    let of = |number: u8, config: Option<HostConfig>| {
        let mut session = RawHost::on(&target).by_host(number);
        if let Some(config) = config {
            target.allow_host(&subsystem(), &session.host, config).expect("room");
        }
        session.open(false, false);
        session.connect_admin();
        session
    };
    let manage = HostConfig { manage: true, ..HostConfig::default() };
    let hosts = [(of(1, None), false), (of(2, Some(HostConfig::default())), false), (of(3, Some(manage)), true)];
    for (mut session, may) in hosts {
        let page = identify(&mut session, Cns::CONTROLLER, 0).expect("a page");
        let page = IdentifyController::read_from_bytes(&page).expect("a whole page");
        assert_eq!(page.oacs.get() & oacs::NAMESPACE_MANAGEMENT != 0, may);
        assert_eq!(page.tnvmcap.get() != 0, may);
        let effects = log(&mut session, LogId::EFFECTS, 4096, 0).expect("a page");
        for opcode in [AdminOpcode::NAMESPACE_MANAGEMENT, AdminOpcode::NAMESPACE_ATTACHMENT] {
            assert_eq!(effects[4 * usize::from(opcode.0)] & 1 == 1, may);
        }
        assert_eq!(identify(&mut session, Cns::ALLOCATED_NAMESPACES, 0).is_ok(), may);
        let made = create(&mut session, &wanted(8));
        assert_eq!(made, if may { Ok(2) } else { Err(Status::INVALID_OPCODE) });
        let denied = target.allow_host(&subsystem(), &session.host, HostConfig::default());
        assert_eq!(denied, Ok(()));
        assert_eq!(session.target.report().subsystems[0].namespaces.len(), 1 + usize::from(may));
    }
}

/// Some initiators give no name unless they are told one. Where any host may come that is one, too.
#[test]
fn a_host_without_a_name_comes_where_any_may() {
    let (target, _) = super::management::target();
    let unnamed = |target: &Target| {
        let mut session = RawHost::on(target);
        session.name(Nqn::unnamed());
        session.open(false, false);
        session
    };
    let mut session = unnamed(&target);
    session.connect_admin();
    assert!(identify(&mut session, Cns::CONTROLLER, 0).is_ok());
    let mut discovery = unnamed(&target);
    assert!(discovery.connect(0, &Nqn::discovery(), |_, _| {}).expect("answered").status().is_success());
    assert_eq!(target.report().subsystems[0].controllers[0].host, "(unnamed)");
    // It can be given a namespace, and is not remembered: the next one without a name may be another.
    let mut manager = super::management::admin_of(&target, 1);
    let nsid = create(&mut manager, &wanted(8)).expect("made");
    assert_eq!(super::management::attach(&mut manager, nsid, &[session.controller]), Ok(()));
    assert_eq!(super::management::active(&mut session), [1, nsid]);
    let namespace = target.namespace(&subsystem(), nsid).expect("it is there");
    assert!(Target::place_of(&namespace).expect("it can be read").is_some());
    let mut again = unnamed(&target);
    again.connect_admin();
    assert_eq!(super::management::active(&mut again), [1]);
    target.allow_any_host(&subsystem(), false).expect("it is there");
    let refused = unnamed(&target).connect(0, &subsystem(), |_, _| {}).expect("answered").status();
    assert_eq!(refused, Status::CONNECT_INVALID_HOST.do_not_retry());
}

/// An initiator that gives up its event requests when it detaches uses their identifiers again, for the properties by which it
/// shuts the controller down. It got Command ID Conflict, and left without a shutdown.
#[test]
fn an_identifier_that_only_waits_for_an_event_is_free_for_fabrics_commands() {
    let mut session = admin_session();
    for id in [0xC001, 5] {
        assert_eq!(super::admin::send_event_request(&mut session, id), None);
    }
    let shutdown = Configuration(Configuration::ENABLE.0 | 1 << 14);
    let set = session.set_configuration(shutdown).expect("answered");
    assert_eq!(set.status(), Status::SUCCESS, "Property Set has the identifier C001h here");
    let again = session.set_configuration(shutdown).expect("answered");
    assert_eq!(again.status(), Status::SUCCESS);
    let admin = admin(AdminOpcode::KEEP_ALIVE, 5, 0, 0);
    assert_eq!(status(session.send(&admin, &[])).kind(), Status::COMMAND_ID_CONFLICT);
}
