use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use device::{AnyNamespace, Memory, NamespaceInfo, ZonedInfo, ZonedMemory};
use engine::{Reactor, ReactorConfig, View};
use fabric::subsystem::{Target, listen};
use nvme::Nqn;

use super::*;
use crate::testing::MemoryNamespaces;

fn open(place: &str) -> Device {
    let place = place.parse().expect("a place");
    Device::open(place, &SecurityOptions::default()).expect("the targets answer")
}

fn volume(holders: &MemoryNamespaces) -> Device {
    open(&format!("volume {}", holders.addresses().join(" ")))
}

/// Waits for one request, which is the only one.
fn one(queue: &mut Queue) -> Completed {
    let mut taken = Vec::new();
    queue.wait(1, None, 8, &mut taken).expect("the device is there");
    let [completed] = <[Completed; 1]>::try_from(taken).expect("one was under way");
    completed
}

fn block(byte: u8, length: usize) -> Buf {
    let mut buf = Buf::with_len(length);
    buf.fill(byte);
    buf
}

/// Blocks are written, flushed, read and discarded, with as many under way as the queue holds.
fn is_used(device: &Device) {
    let Geometry { bytes, block_size, transfer_bytes_max } = device.geometry();
    assert!(bytes > 1 << 20 && transfer_bytes_max >= 128 << 10, "{bytes} {transfer_bytes_max}");
    let (size, mut taken) = (block_size as usize, Vec::new());
    let mut queue = device.queue(8).expect("a queue");
    for tag in 0..8u8 {
        let data = block(tag + 1, size);
        let write = Operation::Write { data, stable: tag % 2 == 0 };
        queue.submit(tag.into(), u64::from(tag) * size as u64, write).expect("there is room");
    }
    let full = queue.submit(8, 0, Operation::Flush);
    assert!(full.is_err_and(|error| error.to_string().contains("the queue is full")));
    queue.wait(8, None, 3, &mut taken).expect("they end");
    assert_eq!(taken.len(), 3, "no more than asked for");
    queue.wait(9, None, 9, &mut taken).expect("they end");
    assert!(taken.iter().all(|completed| completed.result.is_ok() && completed.buf.is_some()), "{taken:?}");
    let mut tags: Vec<_> = taken.iter().map(|completed| completed.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..8).collect::<Vec<_>>());
    queue.submit(9, 0, Operation::Flush).expect("there is room");
    assert!(one(&mut queue).result.is_ok());
    queue.submit(10, 2 * size as u64, Operation::Read(Buf::with_len(2 * size))).expect("there is room");
    let read = one(&mut queue).buf.expect("the buffer comes back");
    assert!(read[..size].iter().all(|&byte| byte == 3) && read[size..].iter().all(|&byte| byte == 4));
    queue.submit(11, 0, Operation::Discard(8 * size as u64)).expect("there is room");
    assert!(one(&mut queue).result.is_ok());
    queue.wait(1, Some(Duration::ZERO), 1, &mut taken).expect("nothing is under way, so nothing is waited for");
}

#[test]
fn a_namespace_is_used() {
    let targets = MemoryNamespaces::blank(1).expect("a target");
    let device = open(&format!("namespace {}", targets.addresses()[0]));
    is_used(&device);
    device.close().expect("it ends");
}

/// Its writes would fail one after the other.
#[test]
fn a_namespace_with_zones_is_no_block_device() {
    let (told, address) = std::sync::mpsc::channel();
    let serve = move || {
        let zoned = ZonedInfo { zone_blocks: 8, open_max: None, active_max: None, append_blocks_max: 4 };
        let zones = AnyNamespace::other(ZonedMemory::new(8, 8, zoned, [3; 16]));
        let nqn: Nqn = "nqn.2026-11.io.yagura:zones".parse().expect("an NQN");
        let target = Target::default();
        target.add_subsystem(nqn.clone(), "zones").expect("a subsystem");
        target.add_namespace(&nqn, 1, zones).expect("a namespace");
        let serve = async move {
            let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a port");
            told.send(listener.local_addr()).expect("it is waited for");
            target.serve(listener, Vec::new()).await
        };
        let _never = Reactor::run(ReactorConfig::default(), serve);
    };
    // To the end of the process.
    std::thread::spawn(serve);
    let place = format!("namespace {}", address.recv().expect("it listens"));
    let refused = Device::open(place.parse().expect("a place"), &SecurityOptions::default()).err();
    assert!(matches!(&refused, Some(Error::Refused(why)) if why.contains("written in order")), "{refused:?}");
}

#[test]
fn a_volume_is_used_by_two_queues_and_let_go() {
    let targets = MemoryNamespaces::volume().expect("a volume");
    let device = volume(&targets);
    std::thread::scope(|scope| {
        let mut queue = device.queue(1).expect("a queue");
        scope.spawn(move || {
            for _ in 0..100 {
                queue.submit(0, 1 << 20, Operation::Write { data: block(7, 4096), stable: false }).expect("room");
                assert!(one(&mut queue).result.is_ok());
            }
        });
        is_used(&device);
    });
    device.close().expect("it was this host's to the end");
}

#[test]
fn who_opens_a_volume_takes_it_and_the_former_one_is_told() {
    let targets = MemoryNamespaces::volume().expect("a volume");
    let (former, later) = (volume(&targets), volume(&targets));
    let mut queue = former.queue(1).expect("a queue");
    let mut write = || {
        queue.submit(0, 0, Operation::Write { data: block(1, 4096), stable: true }).expect("there is room");
        one(&mut queue).result.expect_err("it is another's")
    };
    // What is under way when the former device learns of it is aborted.
    while !matches!(write(), Error::Refused(_)) {}
    is_used(&later);
    assert!(former.close().is_err());
    later.close().expect("it was this one's to the end");
}

#[test]
fn what_no_device_can_do_is_refused() {
    let targets = MemoryNamespaces::blank(1).expect("a target");
    let device = open(&format!("namespace {}", targets.addresses()[0]));
    assert!(device.queue(0).is_err() && device.queue(DEPTH_MAX + 1).is_err());
    let Geometry { bytes, block_size, transfer_bytes_max } = device.geometry();
    let block = block_size as usize;
    let mut queue = device.queue(1).expect("a queue");
    let cases = [(1, block), (0, block - 1), (0, 0), (0, transfer_bytes_max as usize + block)];
    for (offset, length) in cases {
        let refused = queue.submit(0, offset, Operation::Read(Buf::with_len(length)));
        assert!(matches!(refused, Err(Error::Usage(_))), "{length} bytes at {offset}: {refused:?}");
    }
    queue.submit(0, bytes, Operation::Read(Buf::with_len(block))).expect("the end is the target's to know");
    let completed = one(&mut queue);
    assert!(matches!(completed.result, Err(Error::Usage(_))) && !completed.outcome_unknown, "{completed:?}");
}

#[test]
fn who_waits_is_told_that_the_device_has_ended() {
    let (requests, receiver) = mailbox(1);
    let completions = Arc::new(Completions::default());
    let joining = Joining { requests: receiver, completions: completions.clone() };
    let geometry = Geometry { bytes: 1 << 20, block_size: 4096, transfer_bytes_max: 4096 };
    let mut queue = Queue { requests, completions, geometry, depth: 1, under_way: 0 };
    queue.submit(7, 0, Operation::Flush).expect("there is room");
    drop(joining);
    let told = queue.wait(1, Some(Duration::from_secs(5)), 1, &mut Vec::new());
    assert!(matches!(told, Err(Error::Closed { outcome_unknown: true })), "{told:?}");
    assert!(matches!(queue.submit(8, 0, Operation::Flush), Err(Error::Closed { outcome_unknown: false })));
}

#[test]
fn a_device_ends_under_its_queues_and_one_that_is_not_there_is_not_opened() {
    let targets = MemoryNamespaces::blank(1).expect("a target");
    let device = open(&format!("namespace {}", targets.addresses()[0]));
    let mut queue = device.queue(4).expect("a queue");
    for tag in 0..3 {
        queue.submit(tag, 0, Operation::Write { data: block(1, 4096), stable: true }).expect("there is room");
    }
    device.close().expect("it ends");
    assert!(matches!(queue.submit(3, 0, Operation::Flush), Err(Error::Closed { .. })));
    let nobody = Device::open("namespace 127.0.0.1:1".parse().expect("a place"), &SecurityOptions::default());
    assert!(matches!(nobody, Err(Error::Unavailable(_))));
}

/// Keeps how the last write was asked for, and does not say what became of it.
struct Silent {
    memory: Memory,
    asked: Cell<Option<Durability>>,
}

impl Namespace for Silent {
    device::delegate_namespace!(this => { Silent { memory, .. } => memory };
        flush, compare, compare_and_write, write_zeroes, verify, write_uncorrectable, hint_lifetime, writability, used_blocks,
        link, attribute, set_attribute, zones);

    fn info(&self) -> NamespaceInfo {
        self.memory.info()
    }

    async fn read(&self, _lba: Lba, buf: Buf) -> (Result<(), device::Error>, Buf) {
        (Err(device::Error::Aborted), buf)
    }

    async fn write(&self, _lba: Lba, _data: View, durability: Durability) -> Result<(), device::Error> {
        self.asked.set(Some(durability));
        Err(device::Error::Aborted)
    }

    async fn deallocate(&self, _lba: Lba, _blocks: u64) -> Result<(), device::Error> {
        Err(device::Error::Aborted)
    }
}

#[test]
fn a_write_is_as_stable_as_asked_for_and_its_outcome_as_open_as_it_is() {
    let ran = Reactor::run(ReactorConfig::default(), async {
        let memory = Memory::new(1 << 20, 4096, [1; 16]).expect("it fits");
        let silent = Rc::new(Silent { memory, asked: Cell::default() });
        let namespace = AnyRemote::from(silent.clone());
        let mut cases = vec![(Operation::Read(block(0, 4096)), None, false), (Operation::Discard(4096), None, true)];
        for (stable, asked) in [(true, Durability::Stable), (false, Durability::Cached)] {
            cases.push((Operation::Write { data: block(0, 4096), stable }, Some(asked), true));
        }
        for (operation, asked, outcome_unknown) in cases {
            let what = format!("{operation:?}");
            let request = Request { tag: 7, lba: Lba(1), blocks: 1, operation };
            let completed = carry_out(&namespace, request).await;
            assert!(completed.result.is_err(), "{what}");
            assert_eq!((silent.asked.take(), completed.outcome_unknown), (asked, outcome_unknown), "{what}");
        }
    });
    ran.expect("this machine gives a reactor");
}
