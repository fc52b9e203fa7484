//! What hosts learn of a medium: what is stable on it, and how it fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use device::{AnyNamespace, Durability, Error, Lba, Namespace, NamespaceInfo, Writability};
use engine::{Buf, View};
use nvme::feature::{FeatureId, async_event_config};
use nvme::identify::Cns;
use nvme::log::{AsyncEvent, LogId, LogRequest};
use nvme::opcode::AdminOpcode;

use super::*;

/// Memory that passes for a medium with a volatile cache, and notes what it is asked to do.
///
/// Its faults: what changes it, a flush too, fails with the error that was told, every time until told otherwise; a write
/// fault latches it, as it does files and drives.
struct Medium {
    memory: Memory,
    cached: bool,
    done: Mutex<Vec<&'static str>>,
    fault: Mutex<Option<Error>>,
    latched: AtomicBool,
}

impl Medium {
    fn new(cached: bool) -> Medium {
        Medium {
            memory: memory(),
            cached,
            done: Mutex::default(),
            fault: Mutex::default(),
            latched: AtomicBool::new(false),
        }
    }

    fn note(&self, what: &'static str) {
        self.done.lock().unwrap().push(what);
    }

    fn done(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.done.lock().unwrap())
    }

    fn tell_to_fail(&self, fault: Option<Error>) {
        *self.fault.lock().unwrap() = fault;
    }

    fn change(&self, what: &'static str) -> Result<(), Error> {
        self.note(what);
        if self.latched.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly("latched"));
        }
        let fault = self.fault.lock().unwrap().clone();
        self.latched.store(matches!(fault, Some(Error::WriteFault(_))), Ordering::Relaxed);
        fault.map_or(Ok(()), Err)
    }
}

impl Namespace for Medium {
    device::delegate_namespace!(this => { Medium { memory, .. } => memory };
        write_uncorrectable, hint_lifetime, used_blocks, link, attribute, set_attribute, zones);

    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { volatile_cache: self.cached, ..self.memory.info() }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        self.note("read");
        self.memory.read(lba, buf).await
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.change("write")?;
        self.memory.write(lba, data, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.change("flush")
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.note("compare");
        self.memory.compare(lba, expected).await
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        self.change("compare and write")?;
        self.memory.compare_and_write(lba, expected, new, how).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.change("write zeroes")?;
        self.memory.write_zeroes(lba, blocks, durability).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.change("deallocate")?;
        self.memory.deallocate(lba, blocks).await
    }

    fn writability(&self) -> Writability {
        if self.latched.load(Ordering::Relaxed) { Writability::Failed } else { Writability::Writable }
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.note("verify");
        self.memory.verify(lba, blocks).await
    }
}

/// An I/O queue of a target that serves the medium.
fn session(cached: bool) -> (RawHost, Arc<Medium>) {
    let medium = Arc::new(Medium::new(cached));
    let mut session = RawHost::new(AnyNamespace::other(medium.clone()));
    session.open(false, false);
    session.connect_io();
    session.inbox.clear();
    (session, medium)
}

/// FUA on commands that read was passed over: a host that had read with it took for durable what another one's write had
/// left in the cache, and lost it with the power.
#[test]
fn what_is_read_with_force_unit_access_is_stable_first() {
    let with_fua = |command: Submission| {
        let cdw12 = command.cdw12.get() | 1 << 30;
        Submission { cdw12: cdw12.into(), ..command }
    };
    let reading = [
        ("read", command(NvmOpcode::READ, 1, 0, 1), vec![]),
        ("compare", in_capsule(NvmOpcode::COMPARE, 2, 0, 1), vec![0; BLOCK]),
        ("verify", command(NvmOpcode::VERIFY, 3, 0, 1), vec![]),
    ];
    let (mut session, medium) = session(true);
    for (what, command, data) in &reading {
        assert_eq!(status(session.send(command, data)), Status::SUCCESS);
        assert_eq!(medium.done(), [*what], "nothing is flushed that nobody has asked for");
        assert_eq!(status(session.send(&with_fua(*command), data)), Status::SUCCESS);
        assert_eq!(medium.done(), ["flush", what]);
        medium.tell_to_fail(Some(Error::OutOfSpace));
        let (completion, read) = session.send(&with_fua(*command), data).expect("answered");
        assert_eq!(
            (completion.status().kind(), read.len()),
            (Status::CAPACITY_EXCEEDED, 0),
            "it could not be made stable"
        );
        assert_eq!(medium.done(), ["flush"]);
        medium.tell_to_fail(None);
    }
    let (mut session, medium) = self::session(false);
    assert_eq!(status(session.send(&with_fua(reading[0].1), &[])), Status::SUCCESS);
    assert_eq!(medium.done(), ["read"], "there is no cache");
}

/// A namespace whose medium had failed looked like any other: its host went on to send writes, and whoever watched the
/// health log saw nothing.
#[test]
fn a_medium_that_takes_no_writes_any_more_is_told_to_its_hosts() {
    let (mut session, medium) = session(true);
    let nqn = crate::subsystem::raw_host::subsystem();
    session.target.add_namespace(&nqn, 2, AnyNamespace::other(Medium::new(false))).unwrap();
    let mut admin = session.admin.take().expect("it holds the controller");
    let wanted = async_event_config::HEALTH_RELIABILITY | async_event_config::NAMESPACE_ATTRIBUTE;
    set(&mut admin, wanted);
    assert!(admin.send(&Submission::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 9, 0), &[]).is_some(), "of namespace 2");
    log(&mut admin, LogId::CHANGED_NAMESPACES);
    let told = |admin: &mut RawHost| -> Vec<AsyncEvent> {
        let of = |(completion, _): (Completion, Vec<u8>)| AsyncEvent::from_result(completion.result.get());
        (10..13).filter_map(|id| admin.take_answer(id).map(of)).collect()
    };
    (10..13)
        .for_each(|id| assert_eq!(admin.send(&Submission::admin(AdminOpcode::ASYNC_EVENT_REQUEST, id, 0), &[]), None));
    assert_eq!((attributes(&mut admin, 1), warnings(&mut admin)), ([0, 0], 0));

    medium.tell_to_fail(Some(Error::OutOfSpace));
    assert_eq!(write_block(&mut session), Status::CAPACITY_EXCEEDED);
    admin.turn();
    assert_eq!((told(&mut admin), attributes(&mut admin, 1)), (vec![], [0, 0]), "a full medium takes writes again");
    medium.tell_to_fail(Some(Error::WriteFault("told to".into())));
    assert_eq!(write_block(&mut session), Status::WRITE_FAULT);
    admin.turn();
    assert_eq!(told(&mut admin), [AsyncEvent::RELIABILITY, AsyncEvent::NAMESPACE_CHANGED]);
    assert_eq!(attributes(&mut admin, 1), [1, 1]);
    assert_eq!(log(&mut admin, LogId::CHANGED_NAMESPACES)[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((attributes(&mut admin, 2), warnings(&mut admin)), ([0, 0], 0b100), "the other one is well");
    assert_eq!(write_block(&mut session), Status::WRITE_PROTECTED);
    admin.turn();
    assert_eq!(told(&mut admin), [], "it is told once");
    session.target.remove_namespace(&nqn, 2).unwrap();
    assert_eq!(warnings(&mut admin), 0b1100, "there is no other one");
}

fn write_block(session: &mut RawHost) -> Status {
    status(session.send(&in_capsule(NvmOpcode::WRITE, 1, 0, 1), &pattern(1, 1))).kind()
}

fn set(admin: &mut RawHost, events: u32) {
    let mut command = Submission::admin(AdminOpcode::SET_FEATURES, 1, 0);
    command.cdw10 = u32::from(FeatureId::ASYNC_EVENT_CONFIG.0).into();
    command.cdw11 = events.into();
    assert_eq!(status(admin.send(&command, &[])), Status::SUCCESS);
}

fn log(admin: &mut RawHost, log: LogId) -> Vec<u8> {
    let request =
        LogRequest { log, specific: 0, retain_event: false, bytes: 512, offset: 0, offset_is_index: false, csi: 0 };
    let mut command = Submission::admin(AdminOpcode::GET_LOG_PAGE, 1, u32::MAX);
    request.fill(&mut command);
    command.sgl = SglDescriptor::transport(512);
    admin.send(&command, &[]).expect("answered").1
}

fn warnings(admin: &mut RawHost) -> u8 {
    log(admin, LogId::SMART)[0]
}

/// NSATTR, of CNS 00h and 08h.
fn attributes(admin: &mut RawHost, nsid: u32) -> [u8; 2] {
    [(Cns::NAMESPACE, 99), (Cns::INDEPENDENT_NAMESPACE, 8)].map(|(cns, at)| {
        let mut command = Submission::admin(AdminOpcode::IDENTIFY, 1, nsid);
        command.cdw10 = u32::from(cns.0).into();
        command.sgl = SglDescriptor::transport(4096);
        admin.send(&command, &[]).expect("answered").1[at]
    })
}

/// Each error of a medium by its status, as the host of the command reads it.
#[test]
fn what_a_medium_answers_is_what_its_host_gets() {
    for (error, expected) in [
        (Error::WriteFault("told to".into()), Status::WRITE_FAULT),
        (Error::OutOfSpace, Status::CAPACITY_EXCEEDED),
        (Error::ReadOnly("told to"), Status::WRITE_PROTECTED),
        (Error::Status("told to".into()), Status::INTERNAL_ERROR),
    ] {
        let changing = [
            (in_capsule(NvmOpcode::WRITE, 1, 0, 1), pattern(1, 1)),
            (command(NvmOpcode::WRITE_ZEROES, 2, 0, 1), vec![]),
            (command(NvmOpcode::FLUSH, 3, 0, 1), vec![]),
        ];
        for (command, data) in changing {
            let (mut session, medium) = session(true);
            medium.tell_to_fail(Some(error.clone()));
            assert_eq!(status(session.send(&command, &data)).kind(), expected, "{command:?}");
            medium.tell_to_fail(None);
            let after = if expected == Status::WRITE_FAULT { Status::WRITE_PROTECTED } else { Status::SUCCESS };
            assert_eq!(write_block(&mut session), after);
        }
    }
}
