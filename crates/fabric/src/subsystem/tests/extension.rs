//! Copies, growth and differences of namespaces: every answer, whose they are, and what a reservation has to do with them.

mod turns;
mod whose;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Durability, Lba, Namespace};
use engine::Buf;
use nvme::extension::{
    CopyEntry, CopyKind, CopyRequest, DIFFERENCES_END, DifferenceRange, DifferencesHead, ExtensionCommand,
};
use nvme::identify::{Cns, IdentifyNamespace};
use nvme::opcode::AdminOpcode;
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, ReservationCommand, ReservationType,
};
use nvme::{AnaState, NSID_ALL, SglDescriptor};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::admin::{admin, send_event_request};
use super::management::{Shelf, active, admin_of, attach, create, delete, namespace, target, target_with, wanted};
use super::*;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{HostConfig, NSID_MAX, PortId, Target};

const TAG: [u8; 32] = [5; 32];

/// A target with such a store; host 1 manages, and has made namespace 2 and has it.
fn made() -> (Target, Arc<Shelf>, RawHost) {
    let (target, shelf) = target_with(Shelf::that_copies(true));
    let mut manager = admin_of(&target, 1);
    assert_eq!(create(&mut manager, &wanted(8)), Ok(2));
    let id = manager.controller;
    assert_eq!(attach(&mut manager, 2, &[id]), Ok(()));
    (target, shelf, manager)
}

/// The admin queue of a host that may not manage, with namespace 2.
fn user(target: &Target, manager: &mut RawHost, number: u8) -> RawHost {
    let mut session = RawHost::on(target).by_host(number);
    target.allow_host(&subsystem(), &session.host, HostConfig::default()).expect("room");
    session.open(false, false);
    session.connect_admin();
    session.inbox.clear();
    let id = session.controller;
    assert_eq!(attach(manager, 2, &[id]), Ok(()));
    session
}

fn command_of(asked: ExtensionCommand, nsid: u32) -> Submission {
    let mut command = admin(AdminOpcode::IDENTIFY, 9, nsid, asked.page_bytes());
    asked.fill(&mut command);
    if asked.data_bytes() > 0 {
        command.sgl = SglDescriptor::in_capsule(asked.data_bytes());
    }
    command
}

fn outcome(answer: Option<(Completion, Vec<u8>)>) -> Result<(u32, Vec<u8>), Status> {
    let (completion, data) = answer.expect("answered");
    let status = completion.status();
    if status.is_success() { Ok((completion.result.get() as u32, data)) } else { Err(status.kind()) }
}

fn ask(session: &mut RawHost, asked: ExtensionCommand, nsid: u32) -> Result<Vec<u8>, Status> {
    outcome(session.send(&command_of(asked, nsid), &[])).map(|(_, data)| data)
}

fn request(tag: [u8; 32]) -> Vec<u8> {
    CopyRequest { tag, reserved: [0; 32] }.as_bytes().to_vec()
}

fn copy(session: &mut RawHost, kind: CopyKind, nsid: u32, tag: [u8; 32]) -> Result<u32, Status> {
    let command = command_of(ExtensionCommand::Copy(kind), nsid);
    outcome(session.send(&command, &request(tag))).map(|(made, _)| made)
}

fn snapshot(session: &mut RawHost, nsid: u32, tag: [u8; 32]) -> Result<u32, Status> {
    copy(session, CopyKind::Snapshot, nsid, tag)
}

/// Deletes the one that has the identifier at this moment.
fn delete_copy(session: &mut RawHost, nsid: u32) -> Result<(), Status> {
    let nguid = nguid_of(&session.target, nsid);
    delete_by_nguid(session, nsid, nguid)
}

fn delete_by_nguid(session: &mut RawHost, nsid: u32, nguid: [u8; 16]) -> Result<(), Status> {
    ask(session, ExtensionCommand::DeleteCopy { nguid }, nsid).map(drop)
}

fn nguid_of(target: &Target, nsid: u32) -> [u8; 16] {
    target.namespace(&subsystem(), nsid).map_or([0; 16], |namespace| namespace.info().nguid)
}

/// Identifier, kind, size and first byte of the tag of each on a page.
fn listed(session: &mut RawHost, nsid: u32, after: u32) -> Result<Vec<(u32, u32, u64, u8)>, Status> {
    let page = ask(session, ExtensionCommand::Copies { after }, nsid)?;
    assert_eq!(page.len(), 4096);
    let entries = page.chunks_exact(128).map(|entry| CopyEntry::read_from_bytes(entry).expect("128 bytes"));
    let entries = entries.take_while(|entry| entry.nsid.get() != 0);
    Ok(entries.map(|entry| (entry.nsid.get(), entry.kind.get(), entry.bytes.get(), entry.tag[0])).collect())
}

/// Next LBA, and ranges.
fn differences(session: &mut RawHost, nsid: u32, base: u32, lba: u64) -> Result<(u64, Vec<(u64, u64)>), Status> {
    let page = ask(session, ExtensionCommand::Differences { base, lba }, nsid)?;
    let (head, rest) = DifferencesHead::read_from_prefix(&page).expect("long enough");
    let ranges = rest.chunks_exact(16).take(head.count.get() as usize);
    let ranges = ranges.map(|range| DifferenceRange::read_from_bytes(range).expect("16 bytes"));
    Ok((head.next.get(), ranges.map(|range| (range.slba.get(), range.nlb.get())).collect()))
}

#[test]
fn a_snapshot_is_taken_listed_cloned_and_deleted() {
    let (target, shelf, mut manager) = made();
    let mut user = user(&target, &mut manager, 2);
    let bytes = 8 * BLOCK as u64;
    assert!(send_event_request(&mut manager, 1).is_none());
    assert_eq!(snapshot(&mut user, 2, TAG), Ok(3));
    manager.turn();
    assert!(manager.take_answer(1).is_some(), "the others that have it are told");
    assert_eq!((active(&mut user), active(&mut manager)), (vec![1, 2, 3], vec![1, 2, 3]));
    assert_eq!(active(&mut admin_of(&target, 7)), [1], "only who has its source");
    let (source, taken) = (namespace(&mut user, Cns::NAMESPACE, 2), namespace(&mut user, Cns::NAMESPACE, 3));
    assert_eq!((taken.nsze, taken.nsattr, source.nsattr), (source.nsze, 1, 0), "it is write protected");
    assert_ne!(taken.nguid, source.nguid);
    // Asked again, by whomever: the same one.
    assert_eq!((snapshot(&mut user, 2, TAG), snapshot(&mut manager, 2, TAG)), (Ok(3), Ok(3)));
    assert_eq!(shelf.copied.load(Ordering::Relaxed), 1);
    assert_eq!(copy(&mut manager, CopyKind::Clone, 3, TAG), Ok(4), "the snapshot's tags are its own");
    assert_eq!(active(&mut manager), [1, 2, 3], "a clone is attached to nobody");
    assert_eq!(namespace(&mut manager, Cns::ALLOCATED_NAMESPACE, 4).nsattr, 0, "and writable");
    assert_eq!(snapshot(&mut user, 3, [6; 32]), Err(Status::OPERATION_DENIED));
    assert_eq!(snapshot(&mut manager, 3, [6; 32]), Ok(5), "a snapshot of a snapshot");
    let all = [(3, 0, bytes, 5), (4, 1, bytes, 5), (5, 0, bytes, 6)];
    assert_eq!(listed(&mut user, 2, 0), Ok(vec![all[0]]));
    assert_eq!((listed(&mut user, 3, 0), listed(&mut manager, 3, 0)), (Ok(vec![]), Ok(all[1..].to_vec())));
    assert_eq!(delete_copy(&mut user, 5), Err(Status::INVALID_NAMESPACE), "it has neither the copy nor its source");
    assert_eq!(listed(&mut manager, NSID_ALL, 0), Ok(all.to_vec()));
    assert_eq!(listed(&mut manager, NSID_ALL, 3), Ok(all[1..].to_vec()));
    assert_eq!(listed(&mut manager, NSID_ALL, u32::MAX), Ok(vec![]));
    for (nsid, status) in [(2, Status::INVALID_FIELD), (4, Status::INVALID_FIELD), (9, Status::INVALID_NAMESPACE)] {
        assert_eq!(delete_copy(&mut manager, nsid), Err(status), "{nsid} is no snapshot");
    }
    assert_eq!((delete_copy(&mut user, 3), delete_copy(&mut user, 3)), (Ok(()), Err(Status::INVALID_NAMESPACE)));
    // Its source is gone: nobody has it, and only who manages may delete it.
    assert_eq!(active(&mut manager), [1, 2]);
    let id = user.controller;
    assert_eq!(attach(&mut manager, 5, &[id]), Ok(()));
    assert_eq!(delete_copy(&mut user, 5), Err(Status::OPERATION_DENIED));
    assert_eq!(copy(&mut manager, CopyKind::Clone, 2, TAG), Ok(3), "each kind has tags of its own");
    assert_eq!((snapshot(&mut user, 2, TAG), delete(&mut manager, 3)), (Ok(6), Ok(())));
    assert_eq!(delete_copy(&mut user, 6), Ok(()));
    assert_eq!(delete(&mut manager, 2), Ok(()), "snapshots are independent of their source");
    assert_eq!((delete_copy(&mut manager, 5), delete(&mut manager, 4)), (Ok(()), Ok(())));
    assert_eq!(listed(&mut manager, NSID_ALL, 0), Ok(vec![]));
}

#[test]
fn a_snapshot_takes_no_writes() {
    let (target, _, _manager) = made();
    let mut io = RawHost::on(&target).by_host(1);
    io.open(false, false);
    io.connect_io();
    let of = |command: Submission, nsid: u32| Submission { nsid: nsid.into(), ..command };
    let data = pattern(1, 3);
    assert_eq!(status(io.send(&of(in_capsule(NvmOpcode::WRITE, 1, 2, 1), 2), &data)), Status::SUCCESS);
    assert_eq!(snapshot(io.admin.as_mut().expect("an admin queue"), 2, TAG), Ok(3));
    assert_eq!(status(io.send(&of(in_capsule(NvmOpcode::WRITE, 1, 2, 1), 2), &pattern(1, 4))), Status::SUCCESS);
    let refused = status(io.send(&of(in_capsule(NvmOpcode::WRITE, 1, 2, 1), 3), &data));
    assert_eq!(refused, Status::WRITE_PROTECTED.do_not_retry());
    let (_, kept) = io.send(&of(command(NvmOpcode::READ, 1, 2, 1), 3), &[]).expect("answered");
    assert!(kept == data, "what its source held then");
}

#[test]
fn who_may_not_is_refused_with_the_reason() {
    let (target, shelf, mut manager) = made();
    let mut user = user(&target, &mut manager, 2);
    let mut other = RawHost::on(&target).by_host(3);
    other.open(false, false);
    other.connect_admin();
    // Not attached; of no store; not there.
    assert_eq!(create(&mut manager, &wanted(8)), Ok(3));
    assert_eq!(snapshot(&mut manager, 3, TAG), Err(Status::OPERATION_DENIED), "a manager that does not have it");
    for (nsid, status) in [
        (1, Status::INVALID_FIELD),
        (2, Status::INVALID_NAMESPACE),
        (3, Status::INVALID_NAMESPACE),
        (77, Status::INVALID_NAMESPACE),
        (0, Status::INVALID_NAMESPACE),
        (NSID_MAX + 1, Status::INVALID_NAMESPACE),
        (NSID_ALL, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(snapshot(&mut other, nsid, TAG), Err(status), "{nsid}");
        assert_eq!(differences(&mut other, nsid, 0, 0), Err(status), "{nsid}");
        let all = if nsid == NSID_ALL { Status::OPERATION_DENIED } else { status };
        assert_eq!(listed(&mut other, nsid, 0), Err(all), "{nsid}");
    }
    // Only who manages.
    assert_eq!(copy(&mut user, CopyKind::Clone, 2, TAG), Err(Status::OPERATION_DENIED));
    assert_eq!(ask(&mut user, ExtensionCommand::Grow { blocks: 9 }, 2), Err(Status::INVALID_OPCODE));
    assert_eq!(listed(&mut user, NSID_ALL, 0), Err(Status::OPERATION_DENIED));
    // What is malformed.
    let taken = ExtensionCommand::Copy(CopyKind::Snapshot);
    let mut request = request(TAG);
    request[63] = 1;
    assert_eq!(outcome(user.send(&command_of(taken, 2), &request)), Err(Status::INVALID_FIELD));
    let short = Submission { sgl: SglDescriptor::in_capsule(32), ..command_of(taken, 2) };
    assert_eq!(outcome(user.send(&short, &request[..32])), Err(Status::DATA_SGL_LENGTH_INVALID));
    let unknown = Submission { cdw10: 2.into(), ..command_of(taken, 2) };
    assert_eq!(outcome(user.send(&unknown, &request)), Err(Status::INVALID_FIELD));
    for asked in [ExtensionCommand::Copies { after: 0 }, ExtensionCommand::Differences { base: 0, lba: 0 }] {
        let short = Submission { sgl: SglDescriptor::transport(2048), ..command_of(asked, 2) };
        assert_eq!(outcome(user.send(&short, &[])), Err(Status::DATA_SGL_LENGTH_INVALID));
    }
    // By a port that does not lead there.
    target.set_ana_state(&subsystem(), PortId(1), 1, AnaState::Inaccessible).expect("it can be");
    assert_eq!(snapshot(&mut user, 2, TAG), Err(Status::ANA_INACCESSIBLE));
    target.set_ana_state(&subsystem(), PortId(1), 1, AnaState::Optimized).expect("it can be");
    shelf.failing.store(true, Ordering::Relaxed);
    assert_eq!(snapshot(&mut user, 2, TAG), Err(Status::WRITE_FAULT));
    shelf.failing.store(false, Ordering::Relaxed);
    assert_eq!(listed(&mut manager, NSID_ALL, 0), Ok(vec![]), "nothing was made");
    // A subsystem whose stores can't.
    let mut plain = admin_of(&self::target().0, 1);
    assert_eq!(create(&mut plain, &wanted(8)), Ok(2));
    assert_eq!(snapshot(&mut plain, 2, TAG), Err(Status::INVALID_OPCODE));
}

#[test]
fn growth_is_refused_with_its_reason() {
    let (target, _, mut manager) = made();
    let grow = |session: &mut RawHost, nsid, blocks| ask(session, ExtensionCommand::Grow { blocks }, nsid).map(drop);
    assert_eq!(grow(&mut manager, 2, 8), Ok(()), "it has that size");
    for (nsid, blocks, status) in [
        (2, 7, Status::INVALID_FIELD),
        (2, 0, Status::INVALID_FIELD),
        (2, 16, Status::INSUFFICIENT_CAPACITY),
        (2, u64::MAX, Status::INSUFFICIENT_CAPACITY),
        (1, 300, Status::INVALID_FIELD),
        (77, 300, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(grow(&mut manager, nsid, blocks), Err(status), "{nsid} to {blocks}");
    }
    assert_eq!(snapshot(&mut manager, 2, TAG), Ok(3));
    assert_eq!(grow(&mut manager, 3, 9), Err(Status::WRITE_PROTECTED), "a snapshot keeps its size");
    target.allow_host(&subsystem(), &manager.host, HostConfig::default()).expect("on the list");
    assert_eq!(grow(&mut manager, 2, 8), Err(Status::INVALID_OPCODE), "it manages no more");
}

#[test]
fn differences_come_page_by_page_and_only_to_who_has_both() {
    let (target, shelf, mut manager) = made();
    let mut user = user(&target, &mut manager, 2);
    assert_eq!(copy(&mut manager, CopyKind::Clone, 2, TAG), Ok(3));
    let newer = shelf.namespaces.lock().unwrap()[0].clone();
    for lba in [1, 4, 7] {
        let written = newer.write(Lba(lba), Buf::copy_from(&pattern(1, 1)).freeze(), Durability::Stable);
        crate::fuzz::poll_once(written).expect("memory never waits").expect("written");
    }
    for base in [0, 3] {
        assert_eq!(differences(&mut manager, 2, base, 0), Ok((7, vec![(1, 1), (4, 1)])));
        assert_eq!(differences(&mut manager, 2, base, 7), Ok((DIFFERENCES_END, vec![(7, 1)])));
    }
    assert_eq!(differences(&mut user, 2, 0, 2), Ok((DIFFERENCES_END, vec![(4, 1), (7, 1)])));
    assert_eq!(differences(&mut user, 2, 3, 0), Err(Status::INVALID_NAMESPACE), "a clone that it does not have");
    assert_eq!(differences(&mut manager, 2, 1, 0), Err(Status::INVALID_FIELD), "of no store");
    assert_eq!(differences(&mut manager, 2, 0, 8), Err(Status::LBA_OUT_OF_RANGE));
    let fine = IdentifyNamespace { flbas: 1, ..wanted(8) };
    assert_eq!(create(&mut manager, &fine), Ok(4));
    assert_eq!(differences(&mut manager, 2, 4, 0), Err(Status::INVALID_FIELD), "other blocks");
}

/// A host with an I/O queue and namespace 2.
fn io_of(target: &Target, manager: &mut RawHost, number: u8) -> RawHost {
    let mut session = RawHost::on(target).by_host(number);
    target.allow_host(&subsystem(), &session.host, HostConfig::default()).expect("room");
    session.open(false, false);
    session.connect_io();
    let id = session.controller;
    assert_eq!(attach(manager, 2, &[id]), Ok(()));
    session
}

/// The same, registered with its number as key.
fn registered(target: &Target, manager: &mut RawHost, number: u8) -> RawHost {
    let mut session = io_of(target, manager, number);
    let action = RegisterAction::Register;
    let register = ReservationCommand::Register { action, ignore_key: false, persist: PersistChange::Keep };
    let keys = RegisterKeys { current: 0.into(), new: u64::from(number).into() };
    assert_eq!(reserve(&mut session, register, keys.as_bytes()), Some(Status::SUCCESS));
    session
}

fn reserve(session: &mut RawHost, asked: ReservationCommand, keys: &[u8]) -> Option<Status> {
    let mut command = asked.to_submission(2);
    command.command_id = 8.into();
    command.sgl = SglDescriptor::in_capsule(keys.len() as u32);
    session.send(&command, keys).map(|(completion, _)| completion.status())
}

/// Acquires or preempts by its key; the other's queue lets go of what it has under way.
fn acquire(session: &mut RawHost, other: &mut RawHost, action: AcquireAction, preempted: u64) -> Option<Status> {
    let asked = ReservationCommand::Acquire { action, rtype: ReservationType::WriteExclusive };
    let key = session.host.as_str().bytes().last().map_or(0, |digit| u64::from(digit - b'0'));
    let answered = reserve(session, asked, AcquireKeys { current: key.into(), preempt: preempted.into() }.as_bytes());
    answered.or_else(|| settled(session, other))
}

/// The answer that waited for another host's commands.
fn settled(session: &mut RawHost, other: &mut RawHost) -> Option<Status> {
    session.turn();
    other.turn();
    session.turn();
    session.take_answer(8).map(|(completion, _)| completion.status())
}

fn admin_queue(session: &mut RawHost) -> &mut RawHost {
    session.admin.as_mut().expect("an admin queue")
}

#[test]
fn a_reservation_keeps_other_hosts_from_snapshots() {
    let (target, _, mut manager) = made();
    let (mut holder, mut other) = (registered(&target, &mut manager, 2), registered(&target, &mut manager, 3));
    assert_eq!(acquire(&mut holder, &mut other, AcquireAction::Acquire, 0), Some(Status::SUCCESS));
    assert_eq!(snapshot(admin_queue(&mut holder), 2, TAG), Ok(3));
    for session in [admin_queue(&mut other), &mut manager] {
        assert_eq!(snapshot(session, 2, TAG), Err(Status::RESERVATION_CONFLICT), "not even the one that is there");
        assert_eq!(snapshot(session, 2, [6; 32]), Err(Status::RESERVATION_CONFLICT));
        assert_eq!(differences(session, 2, 3, 0), Ok((DIFFERENCES_END, vec![])), "it may read");
    }
    assert_eq!(delete_copy(admin_queue(&mut other), 3), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(copy(&mut manager, CopyKind::Clone, 2, [7; 32]), Ok(4), "a clone is read from it");
    assert_eq!(delete_copy(&mut manager, 3), Ok(()), "whoever manages may");
}

/// What a host has begun may land while it is fenced; what is read after that is answered is what stays.
#[test]
fn a_preempt_waits_for_a_snapshot_that_has_begun() {
    let (target, shelf, mut manager) = made();
    let (mut first, mut second) = (registered(&target, &mut manager, 2), registered(&target, &mut manager, 3));
    assert_eq!(acquire(&mut first, &mut second, AcquireAction::Acquire, 0), Some(Status::SUCCESS));
    shelf.held.store(true, Ordering::Relaxed);
    assert_eq!(
        admin_queue(&mut first).send(&command_of(ExtensionCommand::Copy(CopyKind::Snapshot), 2), &request(TAG)),
        None
    );
    assert_eq!(acquire(&mut second, &mut first, AcquireAction::Preempt, 2), None, "a snapshot is under way");
    shelf.held.store(false, Ordering::Relaxed);
    admin_queue(&mut first).turn();
    assert_eq!(outcome(admin_queue(&mut first).take_answer(9)).map(|(made, _)| made), Ok(3));
    assert_eq!(settled(&mut second, &mut first), Some(Status::SUCCESS));
    assert_eq!(snapshot(admin_queue(&mut first), 2, [6; 32]), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(listed(admin_queue(&mut second), 2, 0).map(|copies| copies.len()), Ok(1));
}

/// A snapshot that waits for its turn when its host is preempted was sent by a host that was admitted.
#[test]
fn a_snapshot_that_has_not_begun_when_its_host_is_preempted_never_does() {
    let (target, shelf, mut manager) = made();
    let (mut first, mut second) = (registered(&target, &mut manager, 2), registered(&target, &mut manager, 3));
    assert_eq!(acquire(&mut first, &mut second, AcquireAction::Acquire, 0), Some(Status::SUCCESS));
    assert_eq!(create(&mut manager, &wanted(8)), Ok(3));
    shelf.held.store(true, Ordering::Relaxed);
    let deletion = super::management::command_of(nvme::management::ManagementCommand::Delete, 3, &[]);
    assert_eq!(manager.send(&deletion, &[]), None);
    assert_eq!(
        admin_queue(&mut first).send(&command_of(ExtensionCommand::Copy(CopyKind::Snapshot), 2), &request(TAG)),
        None
    );
    assert_eq!(acquire(&mut second, &mut first, AcquireAction::Preempt, 2), Some(Status::SUCCESS));
    shelf.held.store(false, Ordering::Relaxed);
    manager.turn();
    admin_queue(&mut first).turn();
    assert_eq!(outcome(admin_queue(&mut first).take_answer(9)), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(shelf.copied.load(Ordering::Relaxed), 0);
}

#[test]
fn a_namespace_has_so_many_snapshots_and_no_more() {
    let (_, _, mut manager) = made();
    let tag = |number: u32| {
        let mut tag = TAG;
        tag[..4].copy_from_slice(&number.to_le_bytes());
        tag
    };
    for number in 0..256 {
        assert_eq!(snapshot(&mut manager, 2, tag(number)), Ok(3 + number));
    }
    assert_eq!(snapshot(&mut manager, 2, tag(256)), Err(Status::NAMESPACE_ID_UNAVAILABLE));
    assert_eq!(snapshot(&mut manager, 2, tag(255)), Ok(258), "this one is there");
    assert_eq!(copy(&mut manager, CopyKind::Clone, 2, tag(256)), Ok(259), "a clone is none");
    assert_eq!(snapshot(&mut manager, 3, tag(1)), Ok(260), "nor is another's");
    let mut found: Vec<u32> = Vec::new();
    loop {
        let after = found.last().copied().unwrap_or(0);
        let page = listed(&mut manager, 2, after).expect("a page");
        assert!(page.len() <= 32);
        found.extend(page.iter().map(|entry| entry.0));
        if page.is_empty() {
            break;
        }
    }
    assert!(found.into_iter().eq(3..260));
    assert_eq!(delete_copy(&mut manager, 100), Ok(()));
    assert_eq!(snapshot(&mut manager, 2, tag(257)), Ok(100));
}

/// Tags and sources are kept with the copies.
#[test]
fn a_target_that_starts_anew_knows_its_copies() {
    let (_, shelf, mut manager) = made();
    assert_eq!((snapshot(&mut manager, 2, TAG), copy(&mut manager, CopyKind::Clone, 3, [6; 32])), (Ok(3), Ok(4)));
    let before = listed(&mut manager, NSID_ALL, 0);
    assert_eq!(before.as_ref().map(Vec::len), Ok(2));
    let (anew, _) = target_with(Shelf::that_copies(true));
    let nqn = subsystem();
    for kept in shelf.namespaces.lock().unwrap().iter() {
        let adopted = anew.adopt(&nqn, shelf.clone(), kept.clone().into());
        crate::fuzz::poll_once(adopted).expect("memory does not wait").expect("taken in");
    }
    let mut again = admin_of(&anew, 1);
    assert_eq!((active(&mut again), listed(&mut again, NSID_ALL, 0)), (vec![1, 2, 3], before));
    assert_eq!((snapshot(&mut again, 2, TAG), copy(&mut again, CopyKind::Clone, 3, [6; 32])), (Ok(3), Ok(4)));
    assert_eq!(shelf.copied.load(Ordering::Relaxed), 2, "nothing was made twice");
    assert_eq!(delete_copy(&mut again, 3), Ok(()));
}

/// A snapshot of a private namespace is for the controller that has the namespace, not for another one of its host.
#[test]
fn the_snapshot_of_a_private_namespace_is_where_its_source_is() {
    let (target, _, mut first) = made();
    let mut second = admin_of(&target, 1);
    assert_eq!(create(&mut second, &IdentifyNamespace { nmic: 0, ..wanted(8) }), Ok(3));
    let id = second.controller;
    assert_eq!(attach(&mut second, 3, &[id]), Ok(()));
    assert_eq!(snapshot(&mut second, 3, TAG), Ok(4));
    assert_eq!((active(&mut first), active(&mut second)), (vec![1, 2], vec![1, 2, 3, 4]));
}

#[test]
fn the_right_to_manage_may_end_while_a_clone_is_made() {
    let (target, shelf, mut manager) = made();
    shelf.held.store(true, Ordering::Relaxed);
    assert_eq!(manager.send(&command_of(ExtensionCommand::Copy(CopyKind::Clone), 2), &request(TAG)), None);
    target.allow_host(&subsystem(), &manager.host, HostConfig::default()).expect("on the list");
    shelf.held.store(false, Ordering::Relaxed);
    manager.turn();
    assert_eq!(outcome(manager.take_answer(9)), Err(Status::OPERATION_DENIED));
    assert_eq!(shelf.namespaces.lock().unwrap().len(), 1, "what was made in vain is gone");
    assert_eq!(listed(&mut admin_of(&target, 1), NSID_ALL, 0), Ok(vec![]), "and nobody sees it");
}

proptest! {
    /// Whatever stands in the fields and in the data: an answer, and no change but the one asked for.
    #[test]
    fn no_command_of_ours_minds_any_fields(
        which in 0..5_usize, named in any::<bool>(), nsid in prop_oneof![4 => 0..5_u32, 1 => any::<u32>()],
        fields in proptest::array::uniform4(prop_oneof![3 => 0..9_u32, 1 => any::<u32>()]),
        bytes in prop_oneof![3 => Just(64_usize), 1 => 0..200_usize], byte in 0..3_u8,
    ) {
        let (_, shelf, mut manager) = made();
        prop_assert_eq!(snapshot(&mut manager, 2, TAG), Ok(3));
        let opcode = ExtensionCommand::OPCODES[which];
        let mut command = admin(opcode, 9, nsid, 4096);
        [command.cdw10, command.cdw11, command.cdw12, command.cdw13] = fields.map(Into::into);
        if named && opcode == AdminOpcode::DELETE_COPY {
            ExtensionCommand::DeleteCopy { nguid: nguid_of(&manager.target, nsid) }.fill(&mut command);
        }
        let data = if opcode == AdminOpcode::NAMESPACE_COPY { vec![byte; bytes] } else { Vec::new() };
        if opcode == AdminOpcode::NAMESPACE_COPY {
            command.sgl = SglDescriptor::in_capsule(bytes as u32);
        }
        let succeeded = outcome(manager.send(&command, &data)).is_ok();
        let left = shelf.namespaces.lock().unwrap().len();
        let expected = match opcode {
            AdminOpcode::NAMESPACE_COPY if succeeded => 3,
            AdminOpcode::DELETE_COPY if succeeded => 1,
            _ => 2,
        };
        prop_assert_eq!(left, expected);
    }
}
