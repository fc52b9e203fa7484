//! Host and target allocate nothing per command in the steady state: an allocator that counts, and a memory namespace.
//!
//! One test in this file: the count is the process's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{Durability, Lba, Memory, Namespace};
use engine::net::TcpListener;
use engine::{Buf, Reactor, ReactorConfig, task};
use fabric::host::{Multipath, MultipathOptions, Options, RemoteNamespace};
use fabric::subsystem::Target;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: passes everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WARM_UP: u64 = 300;
const ROUNDS: u64 = 2_000;
const BLOCK: usize = 4096;

/// One of each: a write, a compare-and-write, a read, a flush; with `blocks` blocks, so in the capsule or by R2T.
async fn round(namespace: &impl Namespace, lba: u64, mut buf: Buf) -> Buf {
    let view = buf.freeze();
    namespace.write(Lba(lba), view.clone(), Durability::Stable).await.expect("written");
    namespace.compare_and_write(Lba(lba), view.clone(), view.clone(), Durability::Stable).await.expect("equal");
    buf = view.try_into_buf().expect("the commands have let go of it");
    let (result, buf) = namespace.read(Lba(lba), buf).await;
    result.expect("read");
    namespace.flush().await.expect("flushed");
    buf
}

/// `lanes` tasks at once, each doing `rounds` rounds with a buffer of its own.
async fn lanes(namespace: &Rc<impl Namespace>, buffers: &Rc<RefCell<Vec<Buf>>>, lanes: u64, rounds: u64) -> u64 {
    let mut tasks = Vec::with_capacity(lanes as usize);
    let gate = engine::sync::Notify::new();
    for lane in 0..lanes {
        let (namespace, gate, buffers) = (Rc::clone(namespace), gate.clone(), Rc::clone(buffers));
        tasks.push(task::spawn(async move {
            let mut buf = buffers.borrow_mut().pop().expect("a buffer for each lane");
            gate.notified().await;
            for _ in 0..rounds {
                buf = round(&namespace, lane * 64, buf).await;
            }
            buffers.borrow_mut().push(buf);
        }));
    }
    task::yield_now().await;
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    gate.notify_all();
    for task in tasks {
        task.await;
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn commands_allocate_nothing_after_the_warm_up() {
    let counted = Reactor::run(ReactorConfig::default(), async {
        let target = Target::default();
        let nqn: nvme::Nqn = "nqn.2026-01.example.yagura:allocation".parse().expect("an NQN");
        target.add_subsystem(nqn.clone(), "1").expect("a subsystem");
        let memory = Memory::new(8 << 20, BLOCK as u32, [7; 16]).expect("a memory namespace");
        target.add_namespace(&nqn, 1, memory).expect("a namespace");
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr();
        let serving = task::spawn(async move { target.serve(listener, Vec::new()).await });
        let options = Options::new(address, nqn, 1);
        let paths =
            Rc::new(Multipath::connect(MultipathOptions::new(options.clone(), &[address])).await.expect("paths"));
        let namespace = Rc::new(RemoteNamespace::connect(options).await.expect("connected"));
        let mut counted = Vec::new();
        // In the capsule; deep; by R2T and straight into the buffer.
        for (lanes_count, blocks) in [(1, 1), (16, 1), (32, 1), (4, 16)] {
            let buffers =
                Rc::new(RefCell::new((0..lanes_count).map(|_| Buf::zeroed(blocks * BLOCK)).collect::<Vec<_>>()));
            // What all lanes hold at once: two buffers each, and two that the target has not let go of when their answer is here
            // already and the lane goes on. A busy machine lets that pile up, and the warm-up may not.
            drop((0..4 * lanes_count).map(|_| Buf::with_len(blocks * BLOCK)).collect::<Vec<_>>());
            lanes(&namespace, &buffers, lanes_count, WARM_UP).await;
            counted.push(lanes(&namespace, &buffers, lanes_count, ROUNDS / lanes_count).await);
            lanes(&paths, &buffers, lanes_count, WARM_UP).await;
            counted.push(lanes(&paths, &buffers, lanes_count, ROUNDS / lanes_count).await);
        }
        drop(paths);
        drop((namespace, serving));
        counted
    });
    let counted = counted.expect("a reactor");
    // A busy machine now and then lets more pile up in one turn than the warm-up did, and a queue grows once; an allocation
    // per command would show as thousands.
    assert!(counted.iter().all(|&count| count < 10), "{counted:?} allocations by {ROUNDS} rounds of 4 commands");
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 1, "the counter works");
}
