//! The steady state allocates nothing: an allocator that counts, and 10,000 messages after the warm-up.
//!
//! One test in this file: the count is the process's.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use engine::{
    Buf, Reactor, ReactorConfig,
    file::{File, OpenOptions},
    net::{SendBatch, TcpListener, TcpStream},
    sync::{Queue, Semaphore},
    task::{self, TaskSet},
    time,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: passes everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WARM_UP: usize = 500;
const MESSAGES: usize = 10_000;
const REQUEST: usize = 72;
const REPLY: usize = 4120;

async fn fill(stream: &TcpStream, mut buf: Buf, count: usize) -> Option<Buf> {
    buf.set_len(0);
    while buf.len() < count {
        let (result, back) = stream.recv(buf).await;
        buf = back;
        if result.ok()? == 0 {
            return None;
        }
    }
    Some(buf)
}

/// Serves requests through a queue to a second task that sends: the shape of a target's connection.
async fn serve(stream: TcpStream) {
    let stream = Rc::new(stream);
    let replies = Queue::<Buf>::new(4);
    let sender = task::spawn({
        let (stream, replies) = (stream.clone(), replies.clone());
        async move {
            let mut out = SendBatch::new();
            while let Some(payload) = replies.pop().await {
                out.head(&[1; REPLY - 4096]);
                out.view(payload.freeze());
                out = stream.send(out).await.1;
            }
        }
    });
    let mut request = Buf::with_capacity(REQUEST);
    let mut slots = TaskSet::new(4);
    let permits = Semaphore::new(2);
    while let Some(buf) = fill(&stream, request, REQUEST).await {
        request = buf;
        let permits = permits.clone();
        let command = async move {
            let _permit = permits.acquire(1).await;
            Buf::with_len(4096)
        };
        assert!(slots.push(command).is_ok());
        let (_, payload) = slots.next().await.expect("just pushed");
        replies.push(payload).await.expect("the sender lives");
    }
    replies.close();
    sender.await;
}

async fn echo(count: usize, stream: &TcpStream, out: SendBatch, reply: Buf) -> (SendBatch, Buf) {
    let (mut out, mut reply) = (out, reply);
    for _ in 0..count {
        out.head(&[2; REQUEST]);
        // A timeout around each command, as a host has: added and removed, never fired.
        let guarded = time::timeout(Duration::from_secs(30), async {
            let (result, out) = stream.send(out).await;
            result.expect("sent");
            (out, fill(stream, reply, REPLY).await.expect("a reply"))
        });
        (out, reply) = guarded.await.expect("in time");
    }
    (out, reply)
}

async fn store(count: usize, file: &File, mut buf: Buf) -> Buf {
    for index in 0..count {
        let view = buf.freeze();
        file.write_at((index as u64 % 16) * 4096, view.clone(), false).await.expect("written");
        buf = view.try_into_buf().expect("the write has let go of it");
        let (result, back) = file.read_at(0, buf).await;
        result.expect("read");
        buf = back;
    }
    buf
}

fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

#[test]
fn messages_and_blocks_allocate_nothing_after_the_warm_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = OpenOptions { create: Some(1 << 20), ..OpenOptions::default() };
    let file = File::open(&Path::join(directory.path(), "medium"), &options).expect("created");
    let counted = Reactor::run(ReactorConfig::default(), async move {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr();
        let server = task::spawn(async move { serve(listener.accept().await.expect("a client").0).await });
        let stream = TcpStream::connect(address).await.expect("the server listens");

        let (out, reply) = echo(WARM_UP, &stream, SendBatch::new(), Buf::with_capacity(REPLY)).await;
        let before = allocations();
        let (out, _) = echo(MESSAGES, &stream, out, reply).await;
        let messages = allocations() - before;
        drop((stream, out));
        server.await;

        let buf = store(10, &file, Buf::zeroed(4096)).await;
        let before = allocations();
        store(200, &file, buf).await;
        (messages, allocations() - before)
    });
    assert_eq!(counted.expect("a reactor"), (0, 0), "allocations by {MESSAGES} messages and by 200 writes and reads");
    // The counter works.
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations() - before, 1);
}
