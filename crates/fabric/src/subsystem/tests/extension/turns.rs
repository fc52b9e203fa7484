//! What waits for its turn while its host loses what it would change.

use nvme::management::ManagementCommand;
use nvme::reservation::ReservationStatus;

use super::super::management::{command_of as managing, nsids};
use super::*;

/// Registers, so that it is kept; `None`: that is not done yet.
fn register(session: &mut RawHost, id: u16, key: u64) -> Option<Status> {
    let action = RegisterAction::Register;
    let asked = ReservationCommand::Register { action, ignore_key: true, persist: PersistChange::Set };
    let keys = RegisterKeys { current: 0.into(), new: key.into() };
    let mut command = asked.to_submission(2);
    (command.command_id, command.sgl) = (id.into(), SglDescriptor::in_capsule(16));
    session.send(&command, keys.as_bytes()).map(|(completion, _)| completion.status())
}

fn registrants(session: &mut RawHost) -> u16 {
    let mut command = ReservationCommand::Report { bytes: 4096, extended: true }.to_submission(2);
    (command.command_id, command.sgl) = (99.into(), SglDescriptor::transport(4096));
    let (_, page) = session.send(&command, &[]).expect("answered");
    ReservationStatus::read_from_prefix(&page).expect("long enough").0.controllers.get()
}

fn answer(session: &mut RawHost, id: u16) -> Option<Status> {
    session.take_answer(id).map(|(completion, _)| completion.status())
}

/// The association ends, as by keep alive; its connections have not heard of it yet.
fn end(target: &Target, session: &RawHost) {
    target.shared.controller(session.controller).expect("it is there").end();
}

/// As [`made`], with a medium that keeps what is reserved.
fn that_keeps() -> (Target, Arc<Shelf>, RawHost) {
    let (target, shelf, manager) = made();
    let info = target.namespace(&subsystem(), 2).expect("it is there").info();
    pretend(&target, 2, device::NamespaceInfo { persists_attributes: true, ..info });
    (target, shelf, manager)
}

/// It was done when the turn came, though its host had been shut out.
#[test]
fn a_snapshot_that_waits_when_its_association_ends_is_never_taken() {
    let (target, shelf, mut manager) = made();
    let (mut first, mut second) = (user(&target, &mut manager, 2), user(&target, &mut manager, 3));
    shelf.held.store(true, Ordering::Relaxed);
    for (session, number) in [(&mut first, 20), (&mut second, 30)] {
        let command = command_of(ExtensionCommand::Copy(CopyKind::Snapshot), 2);
        let command = Submission { command_id: u16::from(number).into(), ..command };
        assert_eq!(session.send(&command, &request([number; 32])), None);
    }
    end(&target, &second);
    shelf.held.store(false, Ordering::Relaxed);
    for _ in 0..2 {
        first.turn();
        second.turn();
    }
    assert_eq!(outcome(first.take_answer(20)).map(|(made, _)| made), Ok(3));
    assert_eq!(listed(&mut manager, 2, 0).map(|copies| copies.len()), Ok(1));
}

/// It was made, and nobody knew of it: its host had been told that it was not, and asked for another.
#[test]
fn a_namespace_that_waits_to_be_made_when_its_association_ends_never_is() {
    let (target, shelf, mut manager) = made();
    let mut twin = admin_of(&target, 1);
    assert_eq!(create(&mut manager, &wanted(8)), Ok(3));
    shelf.held.store(true, Ordering::Relaxed);
    let deletion = managing(ManagementCommand::Delete, 3, &[]);
    assert_eq!(manager.send(&deletion, &[]), None);
    let page = wanted(8);
    let data = page.as_bytes();
    let creation = managing(ManagementCommand::Create { command_set: 0 }, 0, data);
    assert_eq!(twin.send(&creation, data), None);
    end(&target, &twin);
    shelf.held.store(false, Ordering::Relaxed);
    for _ in 0..2 {
        manager.turn();
        twin.turn();
    }
    assert_eq!(nsids(&mut manager, Cns::ALLOCATED_NAMESPACES), [1, 2]);
}

/// A host that had been shut out, or had lost the path, came to hold the namespace when its turn came.
#[test]
fn a_registration_that_waits_when_its_right_ends_is_never_made() {
    for is_ended in [true, false] {
        let (target, shelf, mut manager) = that_keeps();
        let (mut first, mut second) = (io_of(&target, &mut manager, 2), io_of(&target, &mut manager, 3));
        shelf.held.store(true, Ordering::Relaxed);
        assert_eq!((register(&mut first, 20, 7), register(&mut second, 30, 8)), (None, None));
        let state = |state| target.set_ana_state(&subsystem(), PortId(1), 1, state).expect("it can be");
        if is_ended {
            end(&target, &second);
        } else {
            state(AnaState::Inaccessible);
        }
        shelf.held.store(false, Ordering::Relaxed);
        for _ in 0..2 {
            first.turn();
            second.turn();
        }
        assert_eq!(answer(&mut first, 20), Some(Status::SUCCESS), "it had begun");
        let refused = if is_ended { Status::ABORTED_SQ_DELETION } else { Status::ANA_INACCESSIBLE };
        assert_eq!(answer(&mut second, 30).map(Status::kind), Some(refused));
        state(AnaState::Optimized);
        first.turn();
        assert_eq!(registrants(&mut first), 1);
    }
}

/// One that sends many kept all the others from fencing it.
#[test]
fn a_controller_waits_with_one_registration_at_a_time() {
    let (target, shelf, mut manager) = that_keeps();
    let mut hosts = [2, 3, 4].map(|number| io_of(&target, &mut manager, number));
    shelf.held.store(true, Ordering::Relaxed);
    let [first, many, other] = &mut hosts;
    assert_eq!(register(first, 20, 7), None);
    for id in 30..33 {
        assert_eq!(register(many, id, 8), None);
    }
    assert_eq!(register(other, 40, 9), None);
    shelf.held.store(false, Ordering::Relaxed);
    first.turn();
    many.turn();
    assert_eq!((answer(many, 30), answer(many, 31)), (Some(Status::SUCCESS), None), "the other's turn is before it");
    other.turn();
    assert_eq!(answer(other, 40), Some(Status::SUCCESS));
    many.turn();
    assert_eq!((answer(many, 31), answer(many, 32)), (Some(Status::SUCCESS), Some(Status::SUCCESS)));
}
