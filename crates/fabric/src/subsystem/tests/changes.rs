//! Changes of namespaces that wait for a medium: what has become otherwise meanwhile counts.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use device::{AnyNamespace, Error, Memory, Namespace};
use nvme::NSID_ALL;
use nvme::identify::{Cns, IdentifyNamespace};
use nvme::management::ManagementCommand;
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, ReservationCommand, ReservationType,
};
use zerocopy::IntoBytes;

use super::management::{
    active, admin_of, attach, command_of, create, delete, let_manage, list, nsids, target, wanted,
};
use super::*;
use crate::subsystem::attachment::Attachment;
use crate::subsystem::raw_host::{RawHost, subsystem};
use crate::subsystem::{HostConfig, Target};

/// Memory that keeps attributes no earlier than it is let to.
pub(super) struct Slow {
    pub memory: Arc<Memory>,
    pub held: Arc<AtomicBool>,
}

/// Ready when nobody holds it any more.
pub(super) async fn released(held: &AtomicBool) {
    poll_fn(|_| if held.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }).await;
}

impl Namespace for Slow {
    device::delegate_namespace!(this => { Slow { memory, .. } => memory };
        info, read, write, flush, compare, compare_and_write, write_zeroes, deallocate, verify, write_uncorrectable,
        hint_lifetime, writability, used_blocks, link, attribute, zones);

    async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        released(&self.held).await;
        self.memory.set_attribute(key, value).await
    }
}

/// A host with an I/O queue.
fn io_of(target: &Target, host: u8) -> RawHost {
    let mut session = RawHost::on(target).by_host(host);
    let_manage(&session);
    session.open(false, false);
    session.connect_io();
    session
}

/// Registers with key 1 and takes the namespace for itself.
fn take(session: &mut RawHost, nsid: u32) {
    let mut reserve = |command: ReservationCommand, keys: &[u8]| {
        let mut command = command.to_submission(nsid);
        command.sgl = SglDescriptor::in_capsule(keys.len() as u32);
        assert_eq!(status(session.send(&command, keys)), Status::SUCCESS);
    };
    let action = RegisterAction::Register;
    let register = ReservationCommand::Register { action, ignore_key: false, persist: PersistChange::Keep };
    reserve(register, RegisterKeys { current: 0.into(), new: 1.into() }.as_bytes());
    let acquire =
        ReservationCommand::Acquire { action: AcquireAction::Acquire, rtype: ReservationType::ExclusiveAccess };
    reserve(acquire, AcquireKeys { current: 1.into(), preempt: 0.into() }.as_bytes());
}

/// Begins a command of management that waits for the store.
fn begin(session: &mut RawHost, asked: ManagementCommand, nsid: u32, data: &[u8]) {
    session.receive(&session.capsule(&command_of(asked, nsid, data), data));
    assert!(session.take_answer(9).is_none(), "it waits for the store");
}

/// What was looked at before the first deletion was not looked at any more before the second.
#[test]
fn deleting_all_spares_what_was_reserved_or_forbidden_meanwhile() {
    for forbidden in [false, true] {
        let (target, shelf) = target();
        target.remove_namespace(&subsystem(), 1).expect("there");
        let (mut admin, mut other) = (admin_of(&target, 1), io_of(&target, 2));
        let [first, second] = [(); 2].map(|()| create(&mut admin, &wanted(8)).expect("made"));
        let of_other = other.controller;
        assert_eq!(attach(&mut admin, second, &[of_other]), Ok(()));
        shelf.held.store(true, Ordering::Relaxed);
        begin(&mut admin, ManagementCommand::Delete, NSID_ALL, &[]);
        if forbidden {
            target.allow_host(&subsystem(), &admin.host, HostConfig::default()).expect("on the list");
        } else {
            take(&mut other, second);
        }
        shelf.held.store(false, Ordering::Relaxed);
        admin.turn();
        if !forbidden {
            assert_eq!(status(admin.take_answer(9)), Status::RESERVATION_CONFLICT.do_not_retry());
        }
        let left = nsids(other.admin.as_mut().expect("an admin queue"), Cns::ALLOCATED_NAMESPACES);
        assert_eq!(left, [second], "{first} was deleted while it was allowed; forbidden: {forbidden}");
    }
}

/// What is made durable in vain is not what the next start finds.
#[test]
fn a_private_namespace_is_not_attached_to_another_while_its_host_comes_back() {
    let (target, shelf) = target();
    let (mut first, mut other) = (admin_of(&target, 1), admin_of(&target, 2));
    let nsid = create(&mut first, &IdentifyNamespace { nmic: 0, ..wanted(8) }).expect("made");
    let (id, of_other) = (first.controller, other.controller);
    assert_eq!(attach(&mut first, nsid, &[id]), Ok(()));
    drop(first);
    shelf.held.store(true, Ordering::Relaxed);
    begin(&mut other, ManagementCommand::Attach, nsid, &list(&[of_other]));
    let mut again = admin_of(&target, 1);
    assert_eq!(active(&mut again), [1, nsid], "its host is back");
    shelf.held.store(false, Ordering::Relaxed);
    other.turn();
    assert_eq!(status(other.take_answer(9)), Status::NAMESPACE_PRIVATE.do_not_retry());
    assert_eq!((active(&mut again), active(&mut other)), (vec![1, nsid], vec![1]));
    let kept: AnyNamespace = shelf.namespaces.lock().unwrap()[0].clone().into();
    let hosts = Attachment::of(&kept).expect("readable").expect("kept").hosts;
    assert!(hosts.include(&again.host) && !hosts.include(&other.host), "as it is for the hosts that are here");
}

#[test]
fn the_right_to_manage_may_end_while_an_attachment_is_written() {
    let (target, shelf) = target();
    let (mut admin, mut other) = (admin_of(&target, 1), admin_of(&target, 2));
    let nsid = create(&mut admin, &wanted(8)).expect("made");
    let of_other = other.controller;
    shelf.held.store(true, Ordering::Relaxed);
    begin(&mut admin, ManagementCommand::Attach, nsid, &list(&[of_other]));
    target.allow_host(&subsystem(), &admin.host, HostConfig::default()).expect("on the list");
    shelf.held.store(false, Ordering::Relaxed);
    admin.turn();
    assert_eq!(active(&mut other), [1]);
    assert_eq!(active(&mut admin_of(&target, 2)), [1], "nor does its next controller begin with it");
}

/// The reservations of a namespace that the store could not delete were gone where they do not outlive power loss, and a
/// controller that had left meanwhile kept its private namespace for ever.
#[test]
fn a_namespace_that_is_not_deleted_is_there_again_with_its_reservations() {
    let (target, shelf) = target();
    let mut holder = io_of(&target, 1);
    let (mut host, mut stays) = (admin_of(&target, 2), admin_of(&target, 3));
    let [shared, private] =
        [1, 0].map(|nmic| create(&mut stays, &IdentifyNamespace { nmic, ..wanted(8) }).expect("made"));
    let [of_holder, of_host] = [holder.controller, host.controller];
    assert_eq!(attach(&mut stays, shared, &[of_holder, of_host]), Ok(()));
    assert_eq!(attach(&mut host, private, &[of_host]), Ok(()));
    take(&mut holder, shared);
    for (nsid, by) in [(shared, holder.admin.as_mut().expect("an admin queue").as_mut()), (private, &mut stays)] {
        shelf.held.store(true, Ordering::Relaxed);
        begin(by, ManagementCommand::Delete, nsid, &[]);
        host = admin_of(&target, 2); // the one before has lost its connection
        shelf.failing.store(true, Ordering::Relaxed);
        shelf.held.store(false, Ordering::Relaxed);
        by.turn();
        assert!(!status(by.take_answer(9)).is_success());
        shelf.failing.store(false, Ordering::Relaxed);
    }
    assert_eq!(delete(&mut stays, shared), Err(Status::RESERVATION_CONFLICT), "it is its holder's still");
    assert_eq!(active(&mut host), [1, shared, private], "its host's next controller has both");
}
