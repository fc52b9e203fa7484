//! Data in capsules is bounded, whatever the depth of the queue, and a connection that waits for room goes on by itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use device::{AnyNamespace, Durability, Fault, FaultConfig, Lba, Namespace};
use engine::net::TcpListener;
use engine::{Buf, Reactor, ReactorConfig, task, time};
use nvme::Fuse;

use super::*;
use crate::host::{Options, RemoteNamespace};
use crate::subsystem::Target;
use crate::subsystem::limits::{CONNECTION_CAPSULE_BYTES, SHARED_DATA_BYTES_MAX};
use crate::subsystem::raw_host::subsystem;
use crate::tcp::{DataPdu, Pdu};

const CAPSULE_BLOCKS: u32 = 4;
const OWN: u16 = (CONNECTION_CAPSULE_BYTES / (CAPSULE_BLOCKS * BLOCK as u32)) as u16;

/// A session on a target whose shared room others have taken.
fn crowded() -> RawHost {
    let session = io_session(false, false);
    assert!(session.target.shared.room.take(SHARED_DATA_BYTES_MAX));
    session
}

/// Data in capsules was outside every bound: a queue of 1,024 writes held 16 MiB of it while a slow medium worked, and a
/// thousand such queues took the machine's memory.
#[test]
fn what_has_no_room_is_not_read() {
    let mut session = crowded();
    session.stalled = true;
    let data = pattern(CAPSULE_BLOCKS as usize, 3);
    let writes = (0..2 * OWN).map(|id| in_capsule(NvmOpcode::WRITE, id, u64::from(id) * 4, CAPSULE_BLOCKS));
    let stream: Vec<u8> = writes.flat_map(|write| session.capsule(&write, &data)).collect();
    session.receive(&stream);
    assert!(session.core.is_paused());
    assert_eq!(session.core.slots.iter().map(|(_, slot)| slot.data.capacity()).sum::<usize>(), usize::from(OWN) << 14);
    session.stalled = false;
    session.turn();
    for id in 0..2 * OWN {
        assert_eq!(status(session.take_answer(id)), Status::SUCCESS);
        assert_eq!(read(&mut session, u64::from(id) * 4, CAPSULE_BLOCKS), data);
    }
    session.target.shared.room.give(SHARED_DATA_BYTES_MAX);
    session.stalled = true;
    session.receive(&stream);
    assert!(!session.core.is_paused(), "there is room");
    drop(session.target.shared.clone());
}

/// Halves of pairs wait for data that follows in the stream: to stop reading for them would be for ever.
#[test]
fn nothing_is_waited_for_that_waits_for_the_host() {
    let mut session = crowded();
    let half = |opcode, id: u16, fuse, in_capsule| {
        let mut command = match in_capsule {
            true => super::in_capsule(opcode, id, u64::from(id / 2) * 4, CAPSULE_BLOCKS),
            false => command(opcode, id, u64::from(id / 2) * 4, CAPSULE_BLOCKS),
        };
        command.set_fuse(fuse);
        command
    };
    let zeroes = vec![0; CAPSULE_BLOCKS as usize * BLOCK];
    for id in (0..2 * OWN).step_by(2) {
        session.receive(&session.capsule(&half(NvmOpcode::COMPARE, id, Fuse::First, true), &zeroes));
        session.receive(&session.capsule(&half(NvmOpcode::WRITE, id + 1, Fuse::Second, false), &[]));
    }
    let write = in_capsule(NvmOpcode::WRITE, 0x77, 200, 1);
    assert_eq!(status(session.send(&write, &pattern(1, 1))), Status::INTERRUPTED);
    assert!(!session.core.is_paused());
    for id in (0..2 * OWN).step_by(2) {
        let asked = session.inbox.iter().find_map(|(pdu, ..)| match pdu {
            Pdu::R2t(asked) if asked.cccid == id + 1 => Some(*asked),
            _ => None,
        });
        let ttag = asked.expect("an R2T").ttag;
        let pdu = DataPdu { cccid: id + 1, ttag, offset: 0, bytes: zeroes.len() as u32, last: true, success: false };
        let stream = [&session.encoder.h2c_data(&pdu)[..], &zeroes].concat();
        session.receive(&stream);
        assert_eq!(status(session.take_answer(id)), Status::SUCCESS);
        assert_eq!(status(session.take_answer(id + 1)), Status::SUCCESS);
    }
    assert_eq!(status(session.send(&write, &pattern(1, 1))), Status::SUCCESS);
}

/// Each pause, however short, gave a host another two minutes for all the data that it owed.
#[test]
fn a_pause_gives_a_host_its_own_length_and_no_more() {
    let mut session = crowded();
    session.receive(&session.capsule(&command(NvmOpcode::WRITE, 0x50, 100, 16), &[]));
    let writes = (0..2 * OWN).map(|id| in_capsule(NvmOpcode::WRITE, id, u64::from(id) * 4, CAPSULE_BLOCKS));
    let data = pattern(CAPSULE_BLOCKS as usize, 3);
    let stream: Vec<u8> = writes.flat_map(|write| session.capsule(&write, &data)).collect();
    let second = Duration::from_secs(1);
    for _ in 0..2 {
        session.advance(50 * second);
        session.stalled = true;
        session.receive(&stream);
        assert!(session.core.is_paused());
        session.advance(100 * second);
        session.stalled = false;
        session.turn();
        assert!(!session.core.is_paused() && session.core.ended().is_none(), "its time stood still");
    }
    session.advance(19 * second);
    assert!(session.core.ended().is_none());
    session.advance(2 * second);
    assert_eq!(session.core.ended(), Some(&crate::subsystem::end::End::DataWithheld), "it had two minutes");
}

/// The same over a socket, with a medium that takes its time.
#[test]
fn a_host_whose_capsules_have_to_wait_is_served_all_the_same() {
    let test = async {
        let slow = FaultConfig { delay: Duration::from_millis(1)..Duration::from_millis(2), ..FaultConfig::default() };
        let target = Target::default();
        target.add_subsystem(subsystem(), "SERIAL").unwrap();
        target.add_namespace(&subsystem(), 1, AnyNamespace::other(Fault::new(memory().into(), slow))).unwrap();
        assert!(target.shared.room.take(SHARED_DATA_BYTES_MAX));
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr();
        let served = task::spawn(async move { target.serve(listener, vec![]).await });
        let host = Rc::new(RemoteNamespace::connect(Options::new(address, subsystem(), 1)).await.unwrap());
        let writers: Vec<_> = (0..64u8)
            .map(|number| {
                let host = host.clone();
                task::spawn(async move {
                    let mut data = Buf::with_len(4 * BLOCK);
                    data.fill(number);
                    let data = data.freeze();
                    for _ in 0..20 {
                        host.write(Lba(u64::from(number) * 4), data.clone(), Durability::Cached).await.unwrap();
                    }
                    host.compare(Lba(u64::from(number) * 4), data).await.unwrap();
                })
            })
            .collect();
        for writer in writers {
            writer.await;
        }
        drop(served);
    };
    let bounded = async { time::timeout(Duration::from_secs(60), test).await.expect("a pause that does not end") };
    Reactor::run(ReactorConfig::default(), bounded).unwrap();
}
