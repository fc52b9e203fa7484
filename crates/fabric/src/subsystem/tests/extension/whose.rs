//! Whose copies are, at every moment, and what hosts leave to each other.

use super::super::management::detach;
use super::*;

/// A deletion that was delayed on its way, or is asked for again, arrives when the identifier is another snapshot's.
#[test]
fn a_late_deletion_takes_no_other_snapshot() {
    let (target, _, mut manager) = made();
    assert_eq!(snapshot(&mut manager, 2, TAG), Ok(3));
    let first = nguid_of(&target, 3);
    assert_eq!(delete_by_nguid(&mut manager, 3, first), Ok(()));
    assert_eq!(snapshot(&mut manager, 2, [6; 32]), Ok(3), "its identifier is given again");
    assert_eq!(delete_by_nguid(&mut manager, 3, first), Err(Status::INVALID_NAMESPACE));
    assert_eq!(delete_by_nguid(&mut manager, 2, first), Err(Status::INVALID_NAMESPACE));
    assert_eq!(listed(&mut manager, 2, 0).map(|copies| copies.len()), Ok(1), "it is there still");
}

/// A host that was fenced could take the snapshots of its successor.
#[test]
fn nothing_is_reserved_of_a_snapshot() {
    let (target, _, mut manager) = made();
    let mut holder = registered(&target, &mut manager, 2);
    assert_eq!(snapshot(admin_queue(&mut holder), 2, TAG), Ok(3));
    assert_eq!(namespace(admin_queue(&mut holder), Cns::NAMESPACE, 3).rescap, 0);
    assert_ne!(namespace(admin_queue(&mut holder), Cns::NAMESPACE, 2).rescap, 0);
    let action = RegisterAction::Register;
    let register = ReservationCommand::Register { action, ignore_key: false, persist: PersistChange::Keep };
    let keys = RegisterKeys { current: 0.into(), new: 2.into() };
    let mut command = register.to_submission(3);
    (command.command_id, command.sgl) = (8.into(), SglDescriptor::in_capsule(keys.as_bytes().len() as u32));
    let refused = status(holder.send(&command, keys.as_bytes()));
    assert_eq!(refused, Status::INVALID_FIELD.do_not_retry());
}

/// The operator may put another namespace under the identifier while a store makes one larger.
#[test]
fn growth_is_told_of_no_other_namespace() {
    let (target, _, mut manager) = made();
    let before = nguid_of(&target, 2);
    target.remove_namespace(&subsystem(), 2).expect("it is there");
    let other = device::Memory::new(16 * BLOCK as u64, BLOCK as u32, [77; 16]).expect("a size that can be");
    target.add_namespace(&subsystem(), 2, other).expect("the identifier is free");
    assert!(target.shared.update_namespace(&subsystem(), 2, before).is_err());
    assert!(target.shared.update_namespace(&subsystem(), 2, [77; 16]).is_ok());
    assert_eq!(namespace(&mut manager, Cns::NAMESPACE, 2).nsze.get(), 16);
}

/// Hosts with the right to write could take every identifier of the subsystem, and nobody made a namespace any more.
#[test]
fn snapshots_leave_identifiers_to_managers() {
    let (target, _, mut manager) = made();
    let mut user = user(&target, &mut manager, 2);
    let id = user.controller;
    for source in [3, 4] {
        assert_eq!((create(&mut manager, &wanted(1)), attach(&mut manager, source, &[id])), (Ok(source), Ok(())));
    }
    let mut taken = 0;
    for source in 2..=4 {
        let tags = (0..=u8::MAX).map(|number| [number; 32]);
        taken += tags.take_while(|&tag| snapshot(&mut user, source, tag).is_ok()).count();
    }
    assert_eq!(taken, (NSID_MAX - 256 - 4) as usize, "three quarters, with the namespaces that were there");
    assert_eq!(snapshot(&mut user, 4, TAG), Ok(4 + 2 * 256 + 1 + u32::from(TAG[0])), "this one is there");
    assert_eq!(snapshot(&mut user, 4, [255; 32]), Err(Status::NAMESPACE_ID_UNAVAILABLE));
    assert_eq!(snapshot(&mut manager, 2, [1; 32]), Ok(6));
    assert_eq!(create(&mut manager, &wanted(1)), Ok(NSID_MAX - 256 + 1));
}

/// A snapshot is whose source it is of, at every moment: it was whose source it had been of when it was taken.
#[test]
fn a_snapshot_is_attached_as_its_source_is() {
    let (target, _, mut manager) = made();
    let mut user = user(&target, &mut manager, 2);
    let (mut twin, id) = (admin_of(&target, 3), user.controller);
    assert_eq!(snapshot(&mut user, 2, TAG), Ok(3));
    assert_eq!((active(&mut user), active(&mut twin)), (vec![1, 2, 3], vec![1]));
    twin.turn();
    assert!(send_event_request(&mut twin, 1).is_none());
    let twin_id = twin.controller;
    assert_eq!(attach(&mut manager, 2, &[twin_id]), Ok(()));
    twin.turn();
    assert!(twin.take_answer(1).is_some() && active(&mut twin) == [1, 2, 3], "whoever gets the source gets both");
    assert_eq!(attach(&mut manager, 3, &[twin_id]), Err(Status::NAMESPACE_ALREADY_ATTACHED));
    assert_eq!(detach(&mut manager, 2, &[id]), Ok(()));
    assert_eq!(active(&mut user), [1], "and whoever loses it loses both");
    assert_eq!(differences(&mut user, 3, 0, 0), Err(Status::INVALID_NAMESPACE));
    assert_eq!(attach(&mut manager, 3, &[id]), Ok(()));
    assert_eq!(active(&mut user), [1, 3], "a manager may name others for the snapshot");
    assert_eq!(delete(&mut manager, 2), Ok(()));
    assert_eq!((active(&mut user), active(&mut twin)), (vec![1, 3], vec![1]));
    assert_eq!((create(&mut manager, &wanted(8)), attach(&mut manager, 2, &[twin_id])), (Ok(2), Ok(())));
    assert_eq!(active(&mut twin), [1, 2], "another namespace has the identifier of the source");
}

/// It gave every controller back what had been detached from it, where its host had that by another controller.
#[test]
fn a_snapshot_attaches_nothing_else() {
    let (target, _, mut manager) = made();
    assert_eq!(create(&mut manager, &wanted(8)), Ok(3));
    let (mut first, second) = (admin_of(&target, 2), admin_of(&target, 2));
    let id = first.controller;
    assert_eq!(attach(&mut manager, 3, &[id, second.controller]), Ok(()));
    assert_eq!(detach(&mut manager, 3, &[id]), Ok(()));
    assert_eq!(snapshot(&mut manager, 2, TAG), Ok(4));
    assert_eq!(active(&mut first), [1]);
}

/// Whatever is refused waited its turn, behind what stores were at for others.
#[test]
fn what_is_refused_takes_no_turn() {
    let (target, shelf, mut manager) = made();
    let mut user = user(&target, &mut manager, 2);
    let mut other = RawHost::on(&target).by_host(3);
    target.allow_host(&subsystem(), &other.host, HostConfig::default()).expect("room");
    other.open(false, false);
    other.connect_admin();
    assert_eq!(create(&mut manager, &wanted(8)), Ok(3));
    shelf.held.store(true, Ordering::Relaxed);
    let deletion = super::management::command_of(nvme::management::ManagementCommand::Delete, 3, &[]);
    assert_eq!(manager.send(&deletion, &[]), None);
    assert_eq!(snapshot(&mut other, 2, TAG), Err(Status::INVALID_NAMESPACE));
    assert_eq!(delete_copy(&mut other, 2), Err(Status::INVALID_NAMESPACE));
    assert_eq!(copy(&mut user, CopyKind::Clone, 2, TAG), Err(Status::OPERATION_DENIED));
    shelf.held.store(false, Ordering::Relaxed);
    manager.turn();
}

/// One that sends many commands kept all the others waiting.
#[test]
fn a_controller_waits_with_one_command_at_a_time() {
    let (target, shelf, mut manager) = made();
    let (mut first, mut second) = (user(&target, &mut manager, 2), user(&target, &mut manager, 3));
    shelf.held.store(true, Ordering::Relaxed);
    let send = |session: &mut RawHost, id: u16| {
        let command = command_of(ExtensionCommand::Copy(CopyKind::Snapshot), 2);
        session.send(&Submission { command_id: id.into(), ..command }, &request([id as u8; 32]))
    };
    for id in 20..23 {
        assert_eq!(send(&mut first, id), None);
    }
    assert_eq!(send(&mut second, 30), None);
    shelf.held.store(false, Ordering::Relaxed);
    for _ in 0..4 {
        first.turn();
        second.turn();
    }
    assert_eq!(outcome(second.take_answer(30)).map(|(made, _)| made), Ok(4), "it is next after the one under way");
    let made = [20, 21, 22].map(|id| outcome(first.take_answer(id)).map(|(made, _)| made));
    assert_eq!(made, [Ok(3), Ok(5), Ok(6)]);
}
