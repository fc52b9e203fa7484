//! Which controllers begin with which namespaces, and get them from each other.

use nvme::identify::{Cns, IdentifyNamespace};
use nvme::log::{AsyncEvent, LogId};
use nvme::management::controller_list;
use nvme::register::Configuration;

use super::admin::{identify, log, send_event_request};
use super::authentication::{keys, login};
use super::management::{active, admin_of, attach, create, detach, namespace, target, wanted};
use super::*;
use crate::subsystem::HostConfig;
use crate::subsystem::raw_host::subsystem;

#[test]
fn a_private_namespace_is_one_controllers() {
    let (target, _) = target();
    let (mut session, mut other) = (admin_of(&target, 1), admin_of(&target, 2));
    let nsid = create(&mut session, &IdentifyNamespace { nmic: 0, ..wanted(8) }).expect("made");
    let (id, other_id) = (session.controller, other.controller);
    assert_eq!(attach(&mut session, nsid, &[id, other_id]), Err(Status::NAMESPACE_PRIVATE));
    assert_eq!(attach(&mut session, nsid, &[id]), Ok(()));
    assert_eq!(namespace(&mut session, Cns::NAMESPACE, nsid).nmic, 0);
    assert_eq!(attach(&mut other, nsid, &[other_id]), Err(Status::NAMESPACE_PRIVATE));
    // The same host comes back before its old controller has gone: it gets the namespace as soon as that goes.
    let mut again = admin_of(&target, 1);
    assert_eq!(active(&mut again), [1]);
    assert!(send_event_request(&mut again, 1).is_none());
    drop(session);
    again.turn();
    let (told, _) = again.take_answer(1).expect("told");
    assert_eq!(AsyncEvent::from_result(told.result.get()), AsyncEvent::NAMESPACE_CHANGED);
    assert_eq!((active(&mut again), active(&mut other)), (vec![1, nsid], vec![1]));
}

/// A controller got its host's namespaces by its Connect, before the host had shown its key: whoever knew a host's name could
/// take its private namespaces, and the host itself came back to find them gone.
#[test]
fn who_only_names_a_host_gets_none_of_its_namespaces() {
    let (target, _) = target();
    let (mut first, mut neighbour) = (admin_of(&target, 1), admin_of(&target, 2));
    let nsid = create(&mut first, &IdentifyNamespace { nmic: 0, ..wanted(8) }).expect("made");
    let id = first.controller;
    assert_eq!(attach(&mut first, nsid, &[id]), Ok(()));
    let keys = keys(false);
    let config = HostConfig { keys: Some(keys.clone()), ..HostConfig::default() };
    target.allow_host(&subsystem(), &first.host, config).expect("room");
    let connected = || {
        let mut session = RawHost::on(&target).by_host(1);
        session.open(false, false);
        session.connect_admin();
        session
    };
    let before = connected();
    drop(first);
    let after = connected();
    for impostor in [&before, &after] {
        let listed = identify(&mut neighbour, Cns::CONTROLLERS, 0).expect("a list");
        assert_eq!(controller_list(&listed), Some(vec![neighbour.controller]));
        assert_eq!(attach(&mut neighbour, nsid, &[impostor.controller]), Err(Status::INVALID_CONTROLLER_LIST));
    }
    for _ in 0..2 {
        let mut host = connected();
        assert_eq!(login(&mut host, &keys), Ok(()));
        host.set_configuration(Configuration::ENABLE);
        assert_eq!(active(&mut host), [1, nsid], "nobody has taken it");
    }
}

/// The ANA log names what is attached to the controller that gives it. It changed under one change count, by which a host
/// that reads it in parts is to see that it has parts of two pages.
#[test]
fn the_ana_change_count_moves_with_what_is_attached() {
    let (target, _) = target();
    let (mut session, mut again) = (admin_of(&target, 1), admin_of(&target, 1));
    let mut seen = Vec::new();
    let mut moves = |session: &mut RawHost| {
        let page = log(session, LogId::ANA, 64, 0).expect("a page");
        let [count, of_group] = [&page[..8], &page[24..32]].map(|at| u64::from_le_bytes(at.try_into().unwrap()));
        seen.push((count, of_group));
        seen.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1)
    };
    let nsid = create(&mut session, &IdentifyNamespace { nmic: 0, ..wanted(8) }).expect("made");
    let id = session.controller;
    assert!(moves(&mut session));
    assert_eq!(attach(&mut session, nsid, &[id]), Ok(()));
    assert!(moves(&mut session), "attached");
    assert_eq!(detach(&mut session, nsid, &[id]), Ok(()));
    assert!(moves(&mut session), "detached");
    assert_eq!(attach(&mut session, nsid, &[id]), Ok(()));
    assert!(moves(&mut again), "attached to another");
    drop(session);
    assert_eq!(active(&mut again), [1, nsid]);
    assert!(moves(&mut again), "inherited");
}

#[test]
fn a_hosts_next_controller_begins_with_what_its_controllers_have() {
    let (target, _) = target();
    let (mut first, second) = (admin_of(&target, 1), admin_of(&target, 1));
    let mut stranger = admin_of(&target, 2);
    let nsid = create(&mut first, &wanted(8)).expect("made");
    let (a, b) = (first.controller, second.controller);
    assert_eq!(attach(&mut first, nsid, &[a, b]), Ok(()));
    let begins_with = |host| active(&mut admin_of(&target, host));
    assert_eq!((begins_with(1), begins_with(2), active(&mut stranger)), (vec![1, nsid], vec![1], vec![1]));
    assert_eq!(detach(&mut first, nsid, &[a]), Ok(()));
    assert_eq!(begins_with(1), [1, nsid], "its other controller has it");
    assert_eq!(detach(&mut stranger, nsid, &[b]), Ok(()), "any controller may say so");
    assert_eq!(begins_with(1), [1]);
}
