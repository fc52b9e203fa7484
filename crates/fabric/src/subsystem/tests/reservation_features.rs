//! Reservations: their notifications, and what survives power loss.

use device::{AnyNamespace, Namespace};
use nvme::NSID_ALL;
use nvme::feature::FeatureId;
use nvme::log::{AsyncEvent, LogId, LogRequest};
use nvme::opcode::AdminOpcode;
use nvme::reservation::{
    AcquireAction, NotificationType, PersistChange, RegisterAction, RegisterKeys, ReleaseAction, ReservationCommand,
    ReservationNotification, ReservationType,
};
use zerocopy::{FromBytes, IntoBytes};

use super::super::raw_host::subsystem;
use super::reservations::{acquire, acquire_command, another, keys, preempt, register, release, report, reserve};
use super::*;

/// Sends an Asynchronous Event Request.
fn ask_for_event(admin: &mut RawHost, id: u16) {
    admin.receive(&admin.capsule(&Submission::admin(AdminOpcode::ASYNC_EVENT_REQUEST, id, 0), &[]));
}

fn notification(admin: &mut RawHost) -> ReservationNotification {
    let request = LogRequest {
        log: LogId::RESERVATION,
        specific: 0,
        retain_event: false,
        bytes: 64,
        offset: 0,
        offset_is_index: false,
        csi: 0,
    };
    let mut command = Submission::admin(AdminOpcode::GET_LOG_PAGE, 0x55, 0);
    request.fill(&mut command);
    command.sgl = SglDescriptor::transport(64);
    let (completion, data) = admin.send(&command, &[]).expect("answered");
    assert_eq!(completion.status(), Status::SUCCESS);
    ReservationNotification::read_from_bytes(&data).expect("64 bytes")
}

#[test]
fn who_is_preempted_is_told() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    assert_eq!((register(&mut first, 1), register(&mut second, 2)), (Status::SUCCESS, Status::SUCCESS));
    let mut admin = second.admin.take().expect("it holds the controller");
    ask_for_event(&mut admin, 1);
    assert_eq!(admin.take_answer(1), None);
    assert_eq!(notification(&mut admin).kind, NotificationType::EMPTY.0);
    assert_eq!(preempt(&mut first, ReservationType::WriteExclusive, 1, 2), Status::SUCCESS);
    admin.turn();
    let (event, _) = admin.take_answer(1).expect("an event");
    assert_eq!(AsyncEvent::from_result(event.result.get()), AsyncEvent::RESERVATION_NOTIFICATION);

    // A second notification before the first is read: no further event until then.
    ask_for_event(&mut admin, 2);
    assert_eq!(register(&mut second, 3), Status::SUCCESS);
    assert_eq!(release(&mut first, ReleaseAction::Clear, ReservationType::WriteExclusive, 1), Status::SUCCESS);
    admin.turn();
    assert_eq!(admin.take_answer(2), None);
    let page = notification(&mut admin);
    assert_eq!((page.count.get(), page.kind, page.available, page.nsid.get()), (1, 1, 1, 1));
    assert!(admin.take_answer(2).is_some(), "one more waits");
    let page = notification(&mut admin);
    assert_eq!((page.count.get(), page.kind, page.available), (2, 3, 0));
    assert_eq!(notification(&mut admin).kind, NotificationType::EMPTY.0);
}

/// Notifications were made when the command that preempts had come to its end, which waits for the commands under way of the
/// host that is preempted. Where its connection went before, that host was never told.
#[test]
fn who_is_preempted_is_told_also_where_the_preemptor_has_gone() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    assert_eq!((register(&mut first, 1), register(&mut second, 2)), (Status::SUCCESS, Status::SUCCESS));
    let rtype = ReservationType::WriteExclusive;
    assert_eq!(acquire(&mut second, &mut [&mut first], rtype, 2), Status::SUCCESS);
    second.stalled = true;
    second.receive(&second.capsule(&in_capsule(NvmOpcode::WRITE, 7, 1, 1), &pattern(1, 7)));
    let _executing = second.core.next_operation().expect("it may begin");
    let command = acquire_command(AcquireAction::Preempt, rtype);
    assert_eq!(first.send(&command, keys(1, 2).as_bytes()), None, "a write is under way");
    drop(first);
    let mut admin = second.admin.take().expect("it holds the controller");
    assert_ne!(notification(&mut admin).kind, NotificationType::EMPTY.0);
}

/// One namespace that keeps nothing over power loss stopped the change half way: some had it, and the host was told of none.
#[test]
fn all_namespaces_are_those_that_can_keep_it() {
    let mut session = io_session(false, false);
    keep_attributes(&session);
    for (nsid, nguid) in [(2, [8; 16]), (3, [9; 16])] {
        let other = Memory::new(1 << 20, 4096, nguid).expect("a namespace");
        session.target.add_namespace(&subsystem(), nsid, other).expect("the place is free");
    }
    let third = session.target.namespace(&subsystem(), 3).expect("it is there").info();
    let info = device::NamespaceInfo { persists_attributes: true, ..third };
    pretend(&session.target, 3, info);
    let mut admin = session.admin.take().expect("it holds the controller");
    let (get, set) = (AdminOpcode::GET_FEATURES, AdminOpcode::SET_FEATURES);
    let id = FeatureId::RESERVATION_PERSISTENCE;
    for value in [1, 0] {
        assert_eq!(feature(&mut admin, set, id, NSID_ALL, value).0, Status::SUCCESS);
        let found = [1, 2, 3].map(|nsid| feature(&mut admin, get, id, nsid, 0).1);
        assert_eq!(found, [u64::from(value), 0, u64::from(value)]);
    }
    assert_eq!(feature(&mut admin, set, id, 2, 1).0, Status::INVALID_FIELD.do_not_retry(), "asked for by its name");
}

fn feature(session: &mut RawHost, opcode: AdminOpcode, feature: FeatureId, nsid: u32, value: u32) -> (Status, u64) {
    let mut command = Submission::admin(opcode, 0x66, nsid);
    command.cdw10 = u32::from(feature.0).into();
    command.cdw11 = value.into();
    command.sgl = SglDescriptor::transport(0);
    let (completion, _) = session.send(&command, &[]).expect("answered");
    (completion.status(), completion.result.get())
}

#[test]
fn masked_notifications_are_not_made() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    assert_eq!((register(&mut first, 1), register(&mut second, 2)), (Status::SUCCESS, Status::SUCCESS));
    let mut admin = second.admin.take().expect("it holds the controller");
    let (get, set) = (AdminOpcode::GET_FEATURES, AdminOpcode::SET_FEATURES);
    let id = FeatureId::RESERVATION_NOTIFICATION;
    let mask = NotificationType::REGISTRATION_PREEMPTED.mask_bit();
    assert_eq!(feature(&mut admin, set, id, 1, 1).0, Status::INVALID_FIELD.do_not_retry(), "a reserved bit");
    assert_eq!(feature(&mut admin, set, id, 7, mask).0, Status::INVALID_FIELD.do_not_retry());
    assert_eq!(feature(&mut admin, set, id, 0, mask).0, Status::INVALID_NAMESPACE.do_not_retry());
    for id in [id, FeatureId::RESERVATION_PERSISTENCE] {
        assert_eq!(feature(&mut admin, get, id, NSID_ALL, 0).0, Status::INVALID_FIELD.do_not_retry(), "one of many");
    }
    assert_eq!(feature(&mut admin, set, id, NSID_ALL, mask).0, Status::SUCCESS);
    assert_eq!(feature(&mut admin, get, id, 1, 0), (Status::SUCCESS, mask.into()));
    assert_eq!(preempt(&mut first, ReservationType::WriteExclusive, 1, 2), Status::SUCCESS);
    assert_eq!(notification(&mut admin).kind, NotificationType::EMPTY.0);
}

#[test]
fn notifications_are_bounded_and_the_count_tells_of_lost_ones() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    assert_eq!(register(&mut first, 1), Status::SUCCESS);
    for _ in 0..70 {
        assert_eq!(register(&mut second, 2), Status::SUCCESS);
        assert_eq!(preempt(&mut first, ReservationType::WriteExclusive, 1, 2), Status::SUCCESS);
    }
    let mut admin = second.admin.take().expect("it holds the controller");
    let page = notification(&mut admin);
    assert_eq!((page.count.get(), page.available), (7, 63));
}

/// Lets the memory namespace of a target say that it keeps attributes over power loss.
fn keep_attributes(session: &RawHost) -> AnyNamespace {
    let namespace = session.target.namespace(&subsystem(), 1).expect("it is there");
    let info = device::NamespaceInfo { persists_attributes: true, ..namespace.info() };
    pretend(&session.target, 1, info);
    namespace
}

/// The target ends and another one serves the namespace.
fn restart(session: &RawHost) {
    let namespace = session.target.remove_namespace(&subsystem(), 1).expect("it is there");
    session.target.add_namespace(&subsystem(), 1, namespace).expect("what is kept can be read");
}

fn register_persistent(session: &mut RawHost, persist: PersistChange, key: u64) -> Status {
    let what = ReservationCommand::Register { action: RegisterAction::Replace, ignore_key: true, persist };
    reserve(session, what, RegisterKeys { current: 0.into(), new: key.into() }.as_bytes())
}

#[test]
fn what_is_to_survive_power_loss_is_kept_before_it_is_answered() {
    let rtype = ReservationType::WriteExclusive;
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    keep_attributes(&first);
    let mut admin = first.admin.take().expect("it holds the controller");
    let (get, set) = (AdminOpcode::GET_FEATURES, AdminOpcode::SET_FEATURES);
    let persistence = FeatureId::RESERVATION_PERSISTENCE;
    assert_eq!(feature(&mut admin, get, persistence, 1, 0), (Status::SUCCESS, 0));
    assert_eq!(register_persistent(&mut first, PersistChange::Set, 1), Status::SUCCESS);
    assert_eq!(feature(&mut admin, get, persistence, 1, 0), (Status::SUCCESS, 1));
    assert_eq!(acquire(&mut first, &mut [&mut second], rtype, 1), Status::SUCCESS);
    restart(&first);
    let (head, entries) = report(&mut first);
    assert_eq!((head.persist, head.rtype, head.generation.get(), entries.len()), (1, 1, 1, 1));
    assert_eq!(write(&mut second, 0, &pattern(1, 1)), Status::RESERVATION_CONFLICT.do_not_retry());

    // Without PTPL nothing survives, by either way to switch it off.
    for by_feature in [false, true] {
        keep_attributes(&first);
        assert_eq!(register_persistent(&mut first, PersistChange::Set, 1), Status::SUCCESS);
        assert_eq!(acquire(&mut first, &mut [&mut second], rtype, 1), Status::SUCCESS);
        let cleared = match by_feature {
            false => register_persistent(&mut first, PersistChange::Clear, 1),
            true => feature(&mut admin, set, persistence, NSID_ALL, 0).0,
        };
        assert_eq!(cleared, Status::SUCCESS);
        assert_eq!(report(&mut first).0.rtype, 1, "it is held until then");
        restart(&first);
        assert_eq!((report(&mut first).0.rtype, report(&mut first).1.len()), (0, 0));
    }
    assert_eq!(
        feature(&mut admin, set, persistence, 1, 1).0,
        Status::INVALID_FIELD.do_not_retry(),
        "not kept any more"
    );
    assert_eq!(feature(&mut admin, set, persistence, 9, 1).0, Status::INVALID_FIELD.do_not_retry());
}

#[test]
fn a_change_that_can_not_be_kept_is_not_made() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    let namespace = keep_attributes(&first);
    // No room for one more attribute.
    for key in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"] {
        let _full_by_then = crate::fuzz::poll_once(namespace.set_attribute(key, &[1; 64]));
    }
    let refused = register_persistent(&mut first, PersistChange::Set, 1);
    assert_eq!(refused, Status::CAPACITY_EXCEEDED.do_not_retry());
    assert_eq!(report(&mut first).1.len(), 0);
    assert_eq!(register(&mut second, 2), Status::SUCCESS, "what need not be kept goes on");
    assert_eq!(crate::fuzz::poll_once(namespace.set_attribute("a", &[])), Some(Ok(())));
    assert_eq!(register_persistent(&mut first, PersistChange::Set, 1), Status::SUCCESS);
    restart(&first);
    assert_eq!(report(&mut first).1.len(), 2);
}

#[test]
fn a_record_that_makes_no_sense_keeps_the_namespace_away() {
    let session = io_session(false, false);
    let namespace = session.target.remove_namespace(&subsystem(), 1).expect("it is there");
    assert_eq!(crate::fuzz::poll_once(namespace.set_attribute("reservations", &[1; 40])), Some(Ok(())));
    let error = session.target.add_namespace(&subsystem(), 1, namespace).expect_err("fenced hosts must stay out");
    assert!(error.to_string().contains("the reservations kept with namespace 1 can't be read"), "{error}");
}
