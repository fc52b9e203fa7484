//! A host that asks to write, is asked for the data, and keeps silent, while its right to write ends: from outside.
//!
//! Rights were looked at when a command's capsule came. Of those that can end meanwhile only the reservation was looked at again
//! when the data came: so a host that was detached wrote under the exclusive reservation of the one that had detached it, a file
//! changed after it was removed, flushed and said to be free, and a path that had been made inaccessible was none.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use device::{AnyNamespace, Drive, FileNamespace, FileOptions, FormatOptions, Memory, Namespace, NamespaceSpec};
use engine::net::TcpListener;
use engine::sim::{SimConfig, World};
use engine::{Buf, Reactor, ReactorConfig, View, task, time};
use fabric::subsystem::{HostConfig, PortConfig, PortId, Target, listen};
use fabric::tcp::{Encoder, ReadyToTransfer};
use nvme::management::{ManagementCommand, controller_list_bytes};
use nvme::opcode::{AdminOpcode, NvmOpcode};
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, ReservationCommand, ReservationType,
};
use nvme::{AnaState, Fuse, SglDescriptor, Status, Submission};
use zerocopy::IntoBytes;

use crate::common::{Host, subsystem};

const TIME_MAX: Duration = Duration::from_secs(30);
const BLOCKS: u32 = 32;

fn filled(byte: u8) -> View {
    let mut buf = Buf::with_len(BLOCKS as usize * 4096);
    buf.fill(byte);
    buf.freeze()
}

fn target() -> Target {
    let target = Target::default();
    target.add_port(PortConfig::new(PortId(1))).expect("new");
    target.add_subsystem(subsystem(), "SERIAL").expect("new");
    target
}

/// Runs `body` beside the target, on loopback.
fn served(body: impl AsyncFnOnce(Target, SocketAddr)) {
    let run = async {
        let target = target();
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr();
        let served = task::spawn({
            let target = target.clone();
            async move { target.serve_port(PortId(1), listener, vec![]).await.map(drop) }
        });
        body(target, address).await;
        drop(served);
    };
    let bounded = async { time::timeout(TIME_MAX, run).await.expect("ends in time") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

/// The queues of two hosts: the admin queue and I/O queue 1 of each.
async fn two_hosts(address: SocketAddr) -> [(Host, Host); 2] {
    let mut hosts = Vec::new();
    for number in [1, 2] {
        let admin = Host::admin_by(address, number).await.expect("connects");
        let io = Host::io(address, false, &admin, 1).await.expect("connects");
        hosts.push((admin, io));
    }
    hosts.try_into().unwrap_or_else(|_| unreachable!("there are two"))
}

/// The data comes at last; how its command ends.
async fn late(host: &mut Host, request: &ReadyToTransfer) -> Status {
    host.send_asked(request, filled(0xBB)).await.expect("sent");
    let completion = host.completion().await.expect("answered");
    assert_eq!(completion.command_id.get(), 70);
    completion.status()
}

async fn reserve(host: &mut Host, what: ReservationCommand, keys: &[u8]) {
    let mut command = what.to_submission(1);
    command.command_id = 8.into();
    command.sgl = SglDescriptor::in_capsule(keys.len() as u32);
    let data = Buf::copy_from(keys).freeze();
    assert_eq!(host.command(&command, data).await.expect("answered").status(), Status::SUCCESS, "{what:?}");
}

async fn detach(admin: &mut Host, controller: u16) -> Status {
    let mut command = Submission::admin(AdminOpcode::IDENTIFY, 9, 1);
    ManagementCommand::Detach.fill(&mut command);
    let mut list = controller_list_bytes(&[controller]);
    list.resize(4096, 0);
    command.sgl = SglDescriptor::in_capsule(list.len() as u32);
    admin.command(&command, Buf::copy_from(&list).freeze()).await.expect("answered").status()
}

#[test]
fn a_detached_host_writes_nothing_under_the_reservation_of_another() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("drive");
    served(async |target, address| {
        let options = FormatOptions { create: Some(24 << 20), extent_bytes: 64 << 10, ..FormatOptions::default() };
        let drive = Drive::format(&path, &options).await.expect("a drive");
        let store = Arc::new(drive.clone());
        target.add_store(&subsystem(), store.clone()).expect("the subsystem is there");
        let spec = NamespaceSpec { name: "a".into(), bytes: 1 << 20, block_size: 4096 };
        let made = drive.create(&spec).await.expect("room");
        target.adopt(&subsystem(), store, AnyNamespace::from(made)).await.expect("taken in");
        let manager = "nqn.2026-01.example.yagura:host1".parse().expect("a name");
        let config = HostConfig { manage: true, ..HostConfig::default() };
        target.allow_host(&subsystem(), &manager, config).expect("room");
        let [(mut first, mut reader), (second, mut writer)] = two_hosts(address).await;
        let request = writer.withhold(BLOCKS).await.expect("asked for");

        assert_eq!(detach(&mut first, second.controller).await, Status::SUCCESS);
        let register = RegisterAction::Register;
        let what = ReservationCommand::Register { action: register, ignore_key: false, persist: PersistChange::Keep };
        reserve(&mut reader, what, RegisterKeys { current: 0.into(), new: 1.into() }.as_bytes()).await;
        let rtype = ReservationType::ExclusiveAccess;
        let what = ReservationCommand::Acquire { action: AcquireAction::Acquire, rtype };
        reserve(&mut reader, what, AcquireKeys { current: 1.into(), preempt: 0.into() }.as_bytes()).await;
        assert_eq!(reader.read(0, BLOCKS).await.expect("answered"), Status::SUCCESS);
        assert_eq!(late(&mut writer, &request).await, Status::INVALID_NAMESPACE.do_not_retry());
        assert_eq!(reader.read(0, BLOCKS).await.expect("answered"), Status::SUCCESS);
        assert!(reader.data.iter().all(|&byte| byte == 0), "the detached host's bytes");
        drop((first, second));
    });
}

#[test]
fn a_namespace_that_was_removed_is_free_and_does_not_change() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    served(async |target, address| {
        let options = FileOptions { create: Some(1 << 20), ..FileOptions::default() };
        let file = FileNamespace::open(&path, &options).await.expect("the file opens");
        target.add_namespace(&subsystem(), 1, file).expect("new");
        let [(_first, mut writer), (_second, mut pair)] = two_hosts(address).await;
        let request = writer.withhold(BLOCKS).await.expect("asked for");
        // Half a capsule, and half a fused pair, hold it no longer either.
        let mut half = Submission::nvm(NvmOpcode::COMPARE, 71, 1);
        half.set_range(0, 1);
        half.set_fuse(Fuse::First);
        half.sgl = SglDescriptor::in_capsule(4096);
        pair.submit(&half, Buf::zeroed(4096).freeze()).await.expect("sent");
        let mut write = half;
        (write.opcode, write.command_id) = (NvmOpcode::WRITE.0, 72.into());
        write.set_fuse(Fuse::Second);
        let plain = Encoder { header_digest: false, data_digest: false, alignment_code: 0 };
        pair.send_bytes(&plain.capsule_cmd(&write, 4096)).await.expect("sent");
        pair.send_bytes(&[0xBB; 1000]).await.expect("sent");
        time::sleep(Duration::from_millis(20)).await; // both are there, as a rule

        let removed = target.remove_namespace(&subsystem(), 1).expect("it is there");
        while removed.holders() > 1 {
            time::sleep(Duration::from_millis(1)).await; // the queues let go when they hear of it
        }
        removed.flush().await.expect("flushed");
        assert_eq!(late(&mut writer, &request).await, Status::INVALID_NAMESPACE.do_not_retry());
        pair.send_bytes(&[0xBB; 3096]).await.expect("sent");
        let mut ends = [pair.completion().await.expect("answered"), pair.completion().await.expect("answered")];
        ends.sort_by_key(|end| end.command_id.get());
        assert_eq!(ends.map(|end| end.status().kind()), [Status::INVALID_NAMESPACE, Status::FAILED_FUSED]);
        let bytes = std::fs::read(&path).expect("the file");
        assert!(bytes.iter().all(|&byte| byte == 0), "the file has changed after its last flush");
    });
}

#[test]
fn nothing_goes_by_a_path_that_was_made_inaccessible() {
    served(async |target, address| {
        target.add_namespace(&subsystem(), 1, memory()).expect("new");
        let admin = Host::admin(address, false, 0).await.expect("connects");
        let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
        let request = io.withhold(BLOCKS).await.expect("asked for");
        target.set_ana_state(&subsystem(), PortId(1), 1, AnaState::Inaccessible).expect("it can be");
        assert_eq!(late(&mut io, &request).await, Status::ANA_INACCESSIBLE);
        target.set_ana_state(&subsystem(), PortId(1), 1, AnaState::Optimized).expect("it can be");
        assert_eq!(io.read(0, BLOCKS).await.expect("answered"), Status::SUCCESS);
        assert!(io.data.iter().all(|&byte| byte == 0), "written by a path that was closed");
    });
}

fn memory() -> Memory {
    Memory::new(1 << 20, 4096, [3; 16]).expect("a good size")
}

/// What a silent host holds it does not hold for ever.
#[test]
fn data_that_does_not_come_ends_the_connection_in_the_end() {
    let world = World::new(1, SimConfig::default());
    let node = world.node("target");
    let address = SocketAddr::new(world.addr(node), 4420);
    let served = world.spawn_on(node, async move {
        let target = target();
        target.add_namespace(&subsystem(), 1, memory()).expect("new");
        target.serve_port(PortId(1), listen(address).await.expect("free"), vec![]).await.map(drop)
    });
    let client = async {
        time::sleep(Duration::from_millis(10)).await;
        let admin = Host::admin(address, false, 0).await.expect("connects");
        let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
        let mut slow = Host::io(address, false, &admin, 2).await.expect("connects");
        let requests = [io.withhold(BLOCKS).await, slow.withhold(BLOCKS).await].map(|asked| asked.expect("asked for"));
        let began = time::now();
        // One that is slow, and is never late for two minutes, goes on.
        time::sleep(Duration::from_secs(100)).await;
        assert_eq!(late(&mut slow, &requests[1]).await, Status::SUCCESS);
        let again = slow.withhold(BLOCKS).await.expect("asked for");
        assert!(io.next_pdu().await.is_err());
        let waited = began.elapsed();
        assert!(waited > Duration::from_secs(119) && waited < Duration::from_secs(122), "{waited:?}");
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(late(&mut slow, &again).await, Status::SUCCESS);
        assert_eq!(slow.read(0, 1).await.expect("answered"), Status::SUCCESS);
        drop(admin);
    };
    world.run_until(client).expect("no stall");
    drop(served);
}
