//! The target allocates nothing per command: an allocator that counts, real sockets, the memory namespace.
//!
//! One test in this file: the count is the process's. The host in it allocates nothing either, so every allocation counts.

#[path = "all/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use common::{Host, subsystem};
use device::Memory;
use engine::net::TcpListener;
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::subsystem::{CommandKind, Target};
use nvme::Status;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: passes everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WARM_UP: u64 = 100;
const ROUNDS: u64 = 500;
/// Commands outstanding at a time in the deep part; above one task set of the target.
const DEPTH: u64 = 40;
const QUEUES: u16 = 32;

/// Short and long writes and reads, one after the other, then a row of reads at once.
async fn work(io: &mut Host, rounds: u64) {
    for round in 0..rounds {
        // The warm-up reaches every block: a memory namespace takes memory for what is written first.
        let lba = round % WARM_UP;
        for bytes in [4096, 64 << 10] {
            let mut data = Buf::with_len(bytes);
            data.fill(round as u8);
            let data = data.freeze();
            assert_eq!(io.write(lba, data.clone()).await.expect("answered"), Status::SUCCESS);
            assert_eq!(io.read(lba, bytes as u32 / 4096).await.expect("answered"), Status::SUCCESS);
            assert!(io.data[..] == data[..]);
        }
        io.read_many(lba, DEPTH as u16).await.expect("answered");
    }
}

#[test]
fn the_steady_state_allocates_nothing_and_an_idle_queue_holds_little() {
    let test = async {
        let target = Target::default();
        target.add_subsystem(subsystem(), "SERIAL").expect("new");
        let memory = Memory::new(16 << 20, 4096, [3; 16]).expect("a good size");
        target.add_namespace(&subsystem(), 1, memory).expect("new");
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr();
        let stats = target.stats();
        let served = task::spawn(async move { target.serve(listener, vec![]).await });
        let admin = Host::admin(address, false, 0).await.expect("connects");
        let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
        work(&mut io, WARM_UP).await;
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        work(&mut io, ROUNDS).await;
        let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(made, 0, "{made} allocations in {ROUNDS} rounds");
        let rounds = WARM_UP + ROUNDS;
        assert_eq!(stats.commands(CommandKind::Read), rounds * (2 + DEPTH));
        assert_eq!(stats.commands(CommandKind::Write), rounds * 2);

        let before = BYTES.load(Ordering::Relaxed);
        let mut idle = Vec::new();
        for qid in 2..2 + QUEUES {
            idle.push(Host::io(address, false, &admin, qid).await.expect("connects"));
        }
        let each = (BYTES.load(Ordering::Relaxed) - before) / i64::from(QUEUES) - common::HOST_BYTES;
        assert!(each < 64 << 10, "an idle queue pair holds {each} bytes");
        println!("an idle queue pair holds {each} bytes");
        drop(served);
    };
    let test = async { time::timeout(Duration::from_secs(60), test).await.expect("ends in time") };
    Reactor::run(ReactorConfig::default(), test).expect("a reactor");
}
