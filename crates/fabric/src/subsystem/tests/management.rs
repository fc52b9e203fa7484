//! Namespace Management and Attachment: every answer they can give, and who learns what.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use device::{AnyNamespace, Error, Memory, Namespace};
use engine::task::LocalFuture;
use nvme::feature::{FeatureId, async_event_config};
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace, oacs};
use nvme::log::{AsyncEvent, LogId, effects};
use nvme::management::{ManagementCommand, controller_list, controller_list_bytes};
use nvme::opcode::AdminOpcode;
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, ReservationCommand, ReservationType,
};
use nvme::{NSID_ALL, SglDescriptor};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::admin::{admin, identify, log, send_event_request, set};
use super::changes::{Slow, released};
use super::*;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::store::BLOCK_SIZES;
use crate::subsystem::{
    ATTACHMENT_ATTRIBUTE, CopyStore, HostConfig, NSID_MAX, NamespaceStore, NewNamespace, Room, StoreError, Target,
};

const TOTAL: u64 = 64 << 20;

/// A store in memory. Its faults: it fails all, where told to; deletions, and what its namespaces keep, wait as long as told to.
#[derive(Default)]
pub(super) struct Shelf {
    made: AtomicU8,
    pub(super) namespaces: Mutex<Vec<Arc<Memory>>>,
    pub(super) failing: AtomicBool,
    pub(super) held: Arc<AtomicBool>,
    coarse: bool,
    /// It has the extension (see its tests), and has made so many copies.
    copying: bool,
    pub(super) copied: AtomicU32,
}

impl Shelf {
    /// One that has the extension, or has not.
    pub(super) fn that_copies(copying: bool) -> Shelf {
        Shelf { copying, ..Shelf::default() }
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.failing.load(Ordering::Relaxed) {
            return Err(StoreError::Device(Error::WriteFault("told to fail".into())));
        }
        Ok(())
    }
}

impl NamespaceStore for Shelf {
    fn room(&self) -> Room {
        let taken: u64 = self.namespaces.lock().unwrap().iter().map(|namespace| namespace.info().bytes()).sum();
        Room { total: TOTAL, free: TOTAL.saturating_sub(taken) }
    }

    fn block_sizes(&self) -> &'static [u32] {
        if self.coarse { &BLOCK_SIZES[..1] } else { &BLOCK_SIZES }
    }

    fn create<'a>(&'a self, wanted: NewNamespace<'a>) -> LocalFuture<'a, Result<AnyNamespace, StoreError>> {
        Box::pin(async move {
            self.check()?;
            if wanted.bytes > TOTAL {
                return Err(StoreError::NoRoom("a shelf is no more than it is".into()));
            }
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let made = Memory::new(wanted.bytes, wanted.block_size, [number + 100; 16]).expect("a size that can be");
            let made = Arc::new(made);
            made.set_attribute(ATTACHMENT_ATTRIBUTE, wanted.record).await?;
            self.namespaces.lock().unwrap().push(made.clone());
            Ok(AnyNamespace::other(Arc::new(Slow { memory: made, held: self.held.clone() })))
        })
    }

    fn delete<'a>(&'a self, nguid: [u8; 16]) -> LocalFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            released(&self.held).await;
            self.check()?;
            self.namespaces.lock().unwrap().retain(|namespace| namespace.info().nguid != nguid);
            Ok(())
        })
    }

    fn copying(&self) -> Option<&dyn CopyStore> {
        self.copying.then_some(self as &dyn CopyStore)
    }
}

/// A target whose subsystem has a namespace of the operator's, number 1, and a store.
pub(super) fn target() -> (Target, Arc<Shelf>) {
    target_with(Shelf::default())
}

/// The same with this store.
pub(super) fn target_with(shelf: Shelf) -> (Target, Arc<Shelf>) {
    let session = RawHost::new(memory());
    let shelf = Arc::new(shelf);
    session.target.add_store(&subsystem(), shelf.clone()).expect("the subsystem is there");
    (session.target.clone(), shelf)
}

/// Gives a session's host the right to manage.
pub(super) fn let_manage(session: &RawHost) {
    let config = HostConfig { manage: true, ..HostConfig::default() };
    session.target.allow_host(&subsystem(), &session.host, config).expect("room");
}

pub(super) fn admin_of(target: &Target, host: u8) -> RawHost {
    let mut session = RawHost::on(target).by_host(host);
    let_manage(&session);
    session.open(false, false);
    session.connect_admin();
    let wanted = set(&mut session, FeatureId::ASYNC_EVENT_CONFIG, async_event_config::NAMESPACE_ATTRIBUTE);
    assert_eq!(wanted, Ok(0));
    session.inbox.clear();
    session
}

pub(super) fn command_of(asked: ManagementCommand, nsid: u32, data: &[u8]) -> Submission {
    let mut command = admin(AdminOpcode::IDENTIFY, 9, nsid, 0);
    asked.fill(&mut command);
    command.sgl = SglDescriptor::in_capsule(data.len() as u32);
    command
}

/// A Detach as command 9, and its data.
pub(super) fn detach_command(nsid: u32, ids: &[u16]) -> (Submission, Vec<u8>) {
    let data = list(ids);
    (command_of(ManagementCommand::Detach, nsid, &data), data)
}

pub(super) fn send(session: &mut RawHost, asked: ManagementCommand, nsid: u32, data: &[u8]) -> Result<u64, Status> {
    let command = command_of(asked, nsid, data);
    let (completion, _) = session.send(&command, data).expect("answered");
    if completion.status().is_success() { Ok(completion.result.get()) } else { Err(completion.status().kind()) }
}

pub(super) fn wanted(blocks: u64) -> IdentifyNamespace {
    let mut page = IdentifyNamespace::new_zeroed();
    (page.nsze, page.ncap, page.nmic) = (blocks.into(), blocks.into(), 1);
    page
}

pub(super) fn create(session: &mut RawHost, page: &IdentifyNamespace) -> Result<u32, Status> {
    send(session, ManagementCommand::Create { command_set: 0 }, 0, page.as_bytes()).map(|nsid| nsid as u32)
}

pub(super) fn list(ids: &[u16]) -> Vec<u8> {
    let mut page = controller_list_bytes(ids);
    page.resize(4096, 0);
    page
}

pub(super) fn attach(session: &mut RawHost, nsid: u32, ids: &[u16]) -> Result<(), Status> {
    send(session, ManagementCommand::Attach, nsid, &list(ids)).map(drop)
}

pub(super) fn detach(session: &mut RawHost, nsid: u32, ids: &[u16]) -> Result<(), Status> {
    send(session, ManagementCommand::Detach, nsid, &list(ids)).map(drop)
}

pub(super) fn delete(session: &mut RawHost, nsid: u32) -> Result<(), Status> {
    send(session, ManagementCommand::Delete, nsid, &[]).map(drop)
}

pub(super) fn nsids(session: &mut RawHost, cns: Cns) -> Vec<u32> {
    let page = identify(session, cns, 0).expect("a list");
    let words = page.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")));
    words.take_while(|&nsid| nsid != 0).collect()
}

pub(super) fn active(session: &mut RawHost) -> Vec<u32> {
    nsids(session, Cns::ACTIVE_NAMESPACES)
}

pub(super) fn namespace(session: &mut RawHost, cns: Cns, nsid: u32) -> IdentifyNamespace {
    IdentifyNamespace::read_from_bytes(&identify(session, cns, nsid).expect("a page")).expect("a whole page")
}

fn controller(session: &mut RawHost) -> IdentifyController {
    let page = identify(session, Cns::CONTROLLER, 0).expect("a page");
    IdentifyController::read_from_bytes(&page).expect("a whole page")
}

#[test]
fn a_namespace_is_made_attached_detached_and_deleted() {
    let (target, _) = target();
    let mut session = admin_of(&target, 1);
    let id = session.controller;
    let page = controller(&mut session);
    assert_eq!(page.oacs.get(), oacs::NAMESPACE_MANAGEMENT);
    assert_eq!((page.tnvmcap.get(), page.unvmcap.get()), (TOTAL.into(), TOTAL.into()));
    let nsid = create(&mut session, &wanted(256)).expect("made");
    assert_eq!((nsid, active(&mut session)), (2, vec![1]));
    for cns in [Cns::ALLOCATED_NAMESPACES, Cns::CSI_ALLOCATED_NAMESPACES] {
        assert_eq!(nsids(&mut session, cns), [1, 2]);
    }
    assert_eq!(namespace(&mut session, Cns::NAMESPACE, nsid).nsze.get(), 0, "it is not active");
    let allocated = namespace(&mut session, Cns::ALLOCATED_NAMESPACE, nsid);
    assert_eq!((allocated.nsze.get(), allocated.ncap.get(), allocated.nmic, allocated.flbas), (256, 256, 1, 0));
    assert_eq!((allocated.nlbaf, allocated.lbaf[0].lbads, allocated.lbaf[1].lbads), (1, 12, 9));
    assert_eq!(identify(&mut session, Cns::CSI_ALLOCATED_NAMESPACE, nsid), Ok(vec![0; 4096]));
    assert_eq!(controller(&mut session).unvmcap.get(), u128::from(TOTAL - 256 * BLOCK as u64));

    assert_eq!(attach(&mut session, nsid, &[id]), Ok(()));
    assert_eq!(active(&mut session), [1, 2]);
    assert_eq!(namespace(&mut session, Cns::NAMESPACE, nsid), allocated);
    let having = identify(&mut session, Cns::NAMESPACE_CONTROLLERS, nsid).expect("a list");
    assert_eq!(controller_list(&having), Some(vec![id]));
    assert_eq!(detach(&mut session, nsid, &[id]), Ok(()));
    assert_eq!(active(&mut session), [1]);
    assert_eq!(delete(&mut session, nsid), Ok(()));
    assert_eq!(nsids(&mut session, Cns::ALLOCATED_NAMESPACES), [1]);
    assert_eq!(controller(&mut session).unvmcap.get(), u128::from(TOTAL));
}

#[test]
fn a_subsystem_without_a_store_offers_none_of_it() {
    let mut session = admin_session();
    assert_eq!(controller(&mut session).oacs.get(), 0);
    assert_eq!(create(&mut session, &wanted(1)), Err(Status::INVALID_OPCODE));
    assert_eq!(delete(&mut session, 1), Err(Status::INVALID_OPCODE));
    assert_eq!(identify(&mut session, Cns::ALLOCATED_NAMESPACES, 0), Err(Status::INVALID_FIELD));
    assert_eq!(identify(&mut session, Cns::NAMESPACE, NSID_ALL), Err(Status::INVALID_NAMESPACE));
}

#[test]
fn what_all_namespaces_have_in_common_is_told_before_there_is_one() {
    let (target, _) = target();
    let mut session = admin_of(&target, 1);
    let common = namespace(&mut session, Cns::NAMESPACE, NSID_ALL);
    assert_eq!((common.nsze.get(), common.nlbaf, common.lbaf[0].lbads, common.lbaf[1].lbads), (0, 1, 12, 9));
    assert_eq!((common.nsfeat & 1, common.nmic), (1, 1));
    for cns in [Cns::CSI_NAMESPACE, Cns::INDEPENDENT_NAMESPACE] {
        assert!(identify(&mut session, cns, NSID_ALL).is_ok(), "{cns:?}");
    }
    let page = log(&mut session, LogId::EFFECTS, 4096, 0).expect("the log");
    for opcode in [AdminOpcode::NAMESPACE_MANAGEMENT, AdminOpcode::NAMESPACE_ATTACHMENT] {
        let at = usize::from(opcode.0) * 4;
        let told = u32::from_le_bytes(page[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(told, effects::SUPPORTED | effects::NAMESPACE_INVENTORY_CHANGE);
    }
}

#[test]
fn what_cannot_be_made_is_refused_with_its_reason() {
    let (target, shelf) = target();
    let mut session = admin_of(&target, 1);
    type Change = fn(&mut IdentifyNamespace);
    let cases: [(&str, Change, Status); 13] = [
        ("no size", |page| page.nsze = 0.into(), Status::INVALID_FIELD),
        ("no capacity", |page| page.ncap = 0.into(), Status::INVALID_FIELD),
        ("more capacity than size", |page| page.ncap = 9.into(), Status::INVALID_FIELD),
        ("an unknown sharing", |page| page.nmic = 2, Status::INVALID_FIELD),
        ("an unknown format", |page| page.flbas = 2, Status::INVALID_FORMAT),
        ("a format by its upper bits", |page| page.flbas = 0x20, Status::INVALID_FORMAT),
        ("protection", |page| page.dps = 1, Status::INVALID_FORMAT),
        ("an NVM set", |page| page.nvmsetid = 1.into(), Status::INVALID_FIELD),
        ("an endurance group", |page| page.endgid = 1.into(), Status::INVALID_FIELD),
        ("no ANA group", |page| page.anagrpid = 129.into(), Status::INVALID_ANA_GROUP),
        ("beyond all numbers", |page| page.nsze = u64::MAX.into(), Status::INSUFFICIENT_CAPACITY),
        ("more than there is", |page| *page = wanted(1 << 20), Status::INSUFFICIENT_CAPACITY),
        ("a size that the store has not", |page| page.nsze = (1 << 20).into(), Status::INSUFFICIENT_CAPACITY),
    ];
    for (what, change, expected) in cases {
        let mut page = wanted(8);
        change(&mut page);
        assert_eq!(create(&mut session, &page), Err(expected), "{what}");
    }
    let page = wanted(8);
    let other_set = ManagementCommand::Create { command_set: 2 };
    assert_eq!(send(&mut session, other_set, 0, page.as_bytes()), Err(Status::COMMAND_SET_NOT_SUPPORTED));
    let at_one = ManagementCommand::Create { command_set: 0 };
    assert_eq!(send(&mut session, at_one, 1, page.as_bytes()), Err(Status::INVALID_FIELD));
    assert_eq!(send(&mut session, at_one, 0, &page.as_bytes()[..64]), Err(Status::DATA_SGL_LENGTH_INVALID));
    let mut unknown = admin(AdminOpcode::NAMESPACE_MANAGEMENT, 9, 1, 0);
    unknown.cdw10 = 2.into();
    assert_eq!(status(session.send(&unknown, &[])).kind(), Status::INVALID_FIELD);
    shelf.failing.store(true, Ordering::Relaxed);
    assert_eq!(create(&mut session, &page), Err(Status::WRITE_FAULT));
    shelf.failing.store(false, Ordering::Relaxed);
    assert_eq!(nsids(&mut session, Cns::ALLOCATED_NAMESPACES), [1], "nothing was made");
    for nsid in 2..=NSID_MAX {
        target.add_namespace(&subsystem(), nsid, memory()).expect("free");
    }
    assert_eq!(create(&mut session, &page), Err(Status::NAMESPACE_ID_UNAVAILABLE));
}

/// NCAP is the room that a host wants to be free now, NSZE what the namespace may grow to.
#[test]
fn a_namespace_may_promise_more_than_there_is() {
    let (target, _) = target();
    let mut session = admin_of(&target, 1);
    let all = TOTAL / BLOCK as u64;
    assert_eq!(create(&mut session, &wanted(all / 2)), Ok(2));
    assert_eq!(create(&mut session, &wanted(all)), Err(Status::INSUFFICIENT_CAPACITY));
    let thin = IdentifyNamespace { ncap: 8.into(), nsfeat: 1, ..wanted(all) };
    assert_eq!(create(&mut session, &thin), Ok(3));
    let made = namespace(&mut session, Cns::ALLOCATED_NAMESPACE, 3);
    assert_eq!((made.nsze.get(), made.ncap.get(), made.nsfeat & 1), (all, all, 1), "all of it may be written");
    assert_eq!(controller(&mut session).unvmcap.get(), 0);
    assert_eq!(create(&mut session, &thin), Err(Status::INSUFFICIENT_CAPACITY), "nothing is free any more");
}

#[test]
fn a_store_offers_the_formats_it_has() {
    let session = RawHost::new(memory());
    let coarse = Arc::new(Shelf { coarse: true, ..Shelf::default() });
    session.target.add_store(&subsystem(), coarse).expect("the subsystem is there");
    let mut session = admin_of(&session.target, 1);
    let fine = IdentifyNamespace { flbas: 1, ..wanted(8) };
    assert_eq!(create(&mut session, &fine), Err(Status::INVALID_FORMAT));
    session.target.add_store(&subsystem(), Arc::new(Shelf::default())).expect("the subsystem is there");
    let nsid = create(&mut session, &fine).expect("made");
    let page = namespace(&mut session, Cns::ALLOCATED_NAMESPACE, nsid);
    assert_eq!((page.flbas, page.lbaf[1].lbads, page.nsze.get()), (1, 9, 8));
}

#[test]
fn attaching_names_what_is_wrong() {
    let (target, shelf) = target();
    let (mut session, other) = (admin_of(&target, 1), admin_of(&target, 2));
    let (id, other) = (session.controller, other.controller);
    let nsid = create(&mut session, &wanted(8)).expect("made");
    for ids in [&[][..], &[id, id], &[other, id], &[id + 100]] {
        assert_eq!(attach(&mut session, nsid, ids), Err(Status::INVALID_CONTROLLER_LIST), "{ids:?}");
    }
    for (nsid, expected) in [
        (0, Status::INVALID_NAMESPACE),
        (NSID_MAX + 1, Status::INVALID_NAMESPACE),
        (NSID_ALL, Status::INVALID_NAMESPACE),
        (77, Status::INVALID_FIELD),
    ] {
        assert_eq!(attach(&mut session, nsid, &[id]), Err(expected));
        assert_eq!(detach(&mut session, nsid, &[id]), Err(expected));
    }
    assert_eq!(delete(&mut session, 0), Err(Status::INVALID_NAMESPACE));
    assert_eq!(delete(&mut session, 77), Err(Status::INVALID_FIELD));
    assert_eq!(detach(&mut session, nsid, &[id]), Err(Status::NAMESPACE_NOT_ATTACHED));
    assert_eq!(attach(&mut session, nsid, &[id]), Ok(()));
    assert_eq!(attach(&mut session, nsid, &[id, other]), Err(Status::NAMESPACE_ALREADY_ATTACHED));
    assert_eq!(detach(&mut session, nsid, &[id, other]), Err(Status::NAMESPACE_NOT_ATTACHED));
    assert_eq!(active(&mut session), [1, nsid], "what failed has changed nothing");
    // The operator's own are attached to all, and no host's to change.
    assert_eq!(attach(&mut session, 1, &[id]), Err(Status::NAMESPACE_ALREADY_ATTACHED));
    for refused in [detach(&mut session, 1, &[id]), delete(&mut session, 1), delete(&mut session, NSID_ALL)] {
        assert_eq!(refused, Err(Status::OPERATION_DENIED));
    }
    shelf.failing.store(true, Ordering::Relaxed);
    assert_eq!(delete(&mut session, nsid), Err(Status::WRITE_FAULT));
    assert_eq!(active(&mut session), [1, nsid], "it is there as before");
    shelf.failing.store(false, Ordering::Relaxed);
    target.remove_namespace(&subsystem(), 1).expect("there");
    assert_eq!(delete(&mut session, NSID_ALL), Ok(()));
    assert!(nsids(&mut session, Cns::ALLOCATED_NAMESPACES).is_empty());
    assert_eq!(delete(&mut session, NSID_ALL), Ok(()), "all of none");
}

#[test]
fn the_controllers_concerned_are_told_and_the_one_that_asked_is_not() {
    let (target, _) = target();
    let (mut asking, mut other, mut third) = (admin_of(&target, 1), admin_of(&target, 2), admin_of(&target, 3));
    let nsid = create(&mut asking, &wanted(8)).expect("made");
    let both = [asking.controller, other.controller];
    for session in [&mut asking, &mut other, &mut third] {
        assert!(send_event_request(session, 1).is_none());
    }
    let mut told = |asking: &mut RawHost, other: &mut RawHost| {
        asking.turn();
        third.turn();
        assert!(asking.take_answer(1).is_none() && third.take_answer(1).is_none());
        other.turn();
        let (completion, _) = other.take_answer(1).expect("the other is told");
        assert_eq!(AsyncEvent::from_result(completion.result.get()), AsyncEvent::NAMESPACE_CHANGED);
        let page = log(other, LogId::CHANGED_NAMESPACES, 4096, 0).expect("the log");
        assert_eq!(&page[..8], &[nsid as u8, 0, 0, 0, 0, 0, 0, 0]);
        assert!(send_event_request(other, 1).is_none());
    };
    assert_eq!(attach(&mut asking, nsid, &both), Ok(()));
    told(&mut asking, &mut other);
    assert_eq!(detach(&mut asking, nsid, &both), Ok(()));
    told(&mut asking, &mut other);
    assert_eq!(attach(&mut asking, nsid, &both), Ok(()));
    told(&mut asking, &mut other);
    assert_eq!(delete(&mut asking, nsid), Ok(()));
    told(&mut asking, &mut other);
}

#[test]
fn a_reservation_keeps_its_namespace_from_other_hosts() {
    let (target, _) = target();
    let mut holder = RawHost::on(&target).by_host(1);
    let_manage(&holder);
    holder.open(false, false);
    holder.connect_io();
    let mut other = admin_of(&target, 2);
    let nsid = create(&mut other, &wanted(8)).expect("made");
    let (of_holder, of_other) = (holder.controller, other.controller);
    assert_eq!(attach(&mut other, nsid, &[of_holder, of_other]), Ok(()));
    let mut reserve = |command: ReservationCommand, keys: &[u8]| {
        let mut command = command.to_submission(nsid);
        command.sgl = SglDescriptor::in_capsule(keys.len() as u32);
        status(holder.send(&command, keys))
    };
    let register = ReservationCommand::Register {
        action: RegisterAction::Register,
        ignore_key: false,
        persist: PersistChange::Keep,
    };
    let keys = RegisterKeys { current: 0.into(), new: 1.into() };
    assert_eq!(reserve(register, keys.as_bytes()), Status::SUCCESS);
    let acquire =
        ReservationCommand::Acquire { action: AcquireAction::Acquire, rtype: ReservationType::WriteExclusive };
    let keys = AcquireKeys { current: 1.into(), preempt: 0.into() };
    assert_eq!(reserve(acquire, keys.as_bytes()), Status::SUCCESS);
    for refused in [delete(&mut other, nsid), detach(&mut other, nsid, &[of_other])] {
        assert_eq!(refused, Err(Status::RESERVATION_CONFLICT));
    }
    let admin = holder.admin.as_mut().expect("an admin queue");
    assert_eq!(delete(admin, nsid), Ok(()));
}

#[test]
fn more_hosts_than_can_be_kept_are_refused() {
    let (target, _) = target();
    let mut session = admin_of(&target, 200);
    let nsid = create(&mut session, &wanted(8)).expect("made");
    let others: Vec<RawHost> = (1..=100).map(|host| admin_of(&target, host)).collect();
    let ids: Vec<u16> = others.iter().map(|other| other.controller).collect();
    assert_eq!(attach(&mut session, nsid, &ids), Err(Status::ATTACHMENT_LIMIT_EXCEEDED));
    assert_eq!(attach(&mut session, nsid, &ids[..20]), Ok(()));
}

#[test]
fn a_namespace_is_taken_in_as_it_was_left() {
    let (target, shelf) = target();
    let mut session = admin_of(&target, 1);
    let id = session.controller;
    let group = IdentifyNamespace { anagrpid: 5.into(), ..wanted(8) };
    let nsid = create(&mut session, &group).expect("made");
    assert_eq!(attach(&mut session, nsid, &[id]), Ok(()));
    let kept = shelf.namespaces.lock().unwrap()[0].clone();
    assert_eq!(Target::place_of(&kept.clone().into()).expect("readable"), Some((subsystem(), nsid)));
    // A target that starts anew, with nothing of its own.
    let (anew, store) = self::target();
    let taken =
        crate::fuzz::poll_once(anew.adopt(&subsystem(), store.clone(), kept.into())).expect("memory does not wait");
    assert_eq!(taken.expect("taken in"), nsid);
    let (mut again, mut stranger) = (admin_of(&anew, 1), admin_of(&anew, 2));
    assert_eq!((active(&mut again), active(&mut stranger)), (vec![1, nsid], vec![1]));
    assert_eq!(namespace(&mut again, Cns::NAMESPACE, nsid).anagrpid.get(), 5);
    // One that was never served is for every host, also for those that are here.
    let fresh = Memory::new(1 << 20, 4096, [200; 16]).expect("a size that can be");
    let taken = crate::fuzz::poll_once(anew.adopt(&subsystem(), store, fresh.into())).expect("memory does not wait");
    assert_eq!(taken.expect("taken in"), 3);
    assert_eq!((active(&mut again), active(&mut stranger)), (vec![1, nsid, 3], vec![1, 3]));
    let of_stranger = stranger.controller;
    assert_eq!(detach(&mut again, 3, &[of_stranger]), Ok(()));
    assert_eq!(active(&mut admin_of(&anew, 2)), [1], "all hosts but this one");
    assert_eq!(active(&mut admin_of(&anew, 3)), [1, 3]);
}
