//! One body, two worlds: what code can learn from sockets, files, tasks and timers is the same in the simulation as with the
//! kernel. Each body writes down what it saw; the two accounts must be equal, so that the worlds never drift apart.

use std::fmt::Debug;
use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use engine::file::{File, OpenOptions};
use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::sim::{SimConfig, World};
use engine::sync::{Notify, mailbox};
use engine::{Buf, Reactor, ReactorConfig, View, task, time};

const MS: Duration = Duration::from_millis(1);
/// Long enough for a loopback segment to arrive on a busy machine.
const SETTLE: Duration = Duration::from_millis(60);
const SEEDS: u64 = 20;

/// What was seen, in words.
#[derive(Default)]
struct Account(Vec<String>);

impl Account {
    fn add(&mut self, what: &str, seen: impl Debug) {
        self.0.push(format!("{what}: {seen:?}"));
    }

    /// A result with its error's kind: messages may differ between the worlds.
    fn outcome<T: Debug>(&mut self, what: &str, result: io::Result<T>) {
        self.add(what, result.map_err(|error| error.kind()));
    }
}

/// Runs the body in the kernel's world and in simulated ones, and compares their accounts.
fn compare<F: Future<Output = Account> + 'static>(body: impl Fn(PathBuf) -> F) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let real =
        Reactor::run(ReactorConfig::default(), body(directory.path().join("file"))).expect("the kernel has io_uring");
    for seed in 0..SEEDS {
        let world = World::new(seed, SimConfig::default());
        let node = world.node("n");
        let task = world.spawn_on(node, body("/file".into()));
        let simulated = world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
        assert_eq!(simulated.0, real.0, "seed {seed}: left is simulated, right is real");
    }
}

fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(loopback()).expect("a free port");
    let addr = listener.local_addr();
    let connecting = task::spawn(async move { TcpStream::connect(addr).await.expect("it listens") });
    let (accepted, _) = listener.accept().await.expect("a connection");
    (connecting.await, accepted)
}

async fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut batch = SendBatch::new();
    batch.head(bytes);
    stream.send(batch).await.0
}

async fn recv(stream: &TcpStream) -> io::Result<usize> {
    stream.recv(Buf::with_capacity(4096)).await.0
}

async fn recv_exact(stream: &TcpStream, count: usize) -> Vec<u8> {
    let mut all = vec![];
    while all.len() < count {
        let (result, buf) = stream.recv(Buf::with_capacity((count - all.len()).min(64 * 1024))).await;
        assert_ne!(result.expect("no faults"), 0, "the end after {} of {count}", all.len());
        all.extend_from_slice(&buf);
    }
    all
}

#[test]
fn echo() {
    compare(async |_| {
        let mut account = Account::default();
        let listener = TcpListener::bind(loopback()).expect("a free port");
        let addr = listener.local_addr();
        task::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                task::spawn(async move {
                    let mut batch = SendBatch::new();
                    loop {
                        let (result, buf) = stream.recv(Buf::with_capacity(10_000)).await;
                        if result.expect("no faults") == 0 {
                            return;
                        }
                        batch.view(buf.freeze());
                        let (result, back) = stream.send(batch).await;
                        result.expect("no faults");
                        assert!(back.is_empty());
                        batch = back;
                    }
                })
                .detach();
            }
        })
        .detach();
        for len in [1, 1000, 300_000] {
            let stream = TcpStream::connect(addr).await.expect("it listens");
            account.add("peer", stream.peer_addr() == addr && stream.local_addr() != addr);
            let stream = Rc::new(stream);
            let sender = stream.clone();
            let message: Vec<u8> = (0..len).map(|i: u32| ((i * 7) >> 3) as u8).collect();
            let expected = message.clone();
            let sending = task::spawn(async move {
                for part in message.chunks(50_000) {
                    let mut batch = SendBatch::new();
                    batch.head(&part[..1]);
                    batch.view(Buf::copy_from(&part[1..]).freeze());
                    sender.send(batch).await.0.expect("no faults");
                }
            });
            let echoed = recv_exact(&stream, len as usize).await;
            sending.await;
            account.add("echo", (echoed.len(), echoed == expected));
        }
        account
    });
}

/// A connection that rests waits so, without a buffer.
#[test]
fn what_can_be_received_is_told_without_a_buffer() {
    compare(async |_| {
        let mut account = Account::default();
        let (client, server) = pair().await;
        account.add("nothing has come", time::timeout(MS * 5, server.readable()).await.is_err());
        send(&client, b"a").await.expect("sent");
        account.outcome("something has", server.readable().await);
        account.outcome("it still is there", server.readable().await);
        account.outcome("nothing of it is lost", recv(&server).await);
        account.add("it was all", time::timeout(MS * 5, server.readable()).await.is_err());
        let waiting = task::spawn(async move { (server.readable().await, server) });
        task::yield_now().await;
        client.shutdown();
        let (result, server) = waiting.await;
        account.outcome("the peer's end", result);
        account.outcome("received", recv(&server).await);
        let (_client, server) = pair().await;
        server.shutdown();
        account.outcome("our own end", server.readable().await);
        account
    });
}

#[test]
fn handshakes() {
    compare(async |_| {
        let mut account = Account::default();
        let listener = TcpListener::bind(loopback()).expect("a free port");
        let addr = listener.local_addr();
        account.outcome("bind a port in use", TcpListener::bind(addr).map(drop));
        account.outcome("bind a foreign address", TcpListener::bind(([203, 0, 113, 9], 0).into()).map(drop));
        let connected = TcpStream::connect(addr).await;
        account.outcome("connect before accept", connected.as_ref().map(|_| ()).map_err(|error| error.kind().into()));
        account.outcome("accept times out once the backlog is empty", {
            listener.accept().await.expect("one waits");
            Ok(time::timeout(MS * 5, listener.accept()).await.is_err())
        });
        let late = TcpStream::connect(addr).await.expect("an accept that was dropped loses nothing");
        account.add("accept after a dropped accept", listener.accept().await.is_ok());
        drop((late, connected));
        drop(listener);
        account.outcome("connect to nobody", TcpStream::connect(addr).await.map(drop));
        account.outcome("bind again", TcpListener::bind(addr).map(drop));
        account
    });
}

#[test]
fn ends_of_streams() {
    compare(async |_| {
        let mut account = Account::default();
        let full = {
            let (a, _b) = pair().await;
            let (result, buf) = a.recv(Buf::default()).await;
            (result.expect_err("no room").kind(), buf.len())
        };
        account.add("receive without room", full);

        let (a, b) = pair().await;
        send(&a, b"last words").await.expect("sent");
        a.shutdown();
        account.outcome("send after shutdown", send(&a, b"x").await);
        account.outcome("receive after shutdown", recv(&a).await);
        account.add("bytes before the end", recv_exact(&b, 10).await);
        account.outcome("the end", recv(&b).await);
        account.outcome("the end again", recv(&b).await);

        let (a, b) = pair().await;
        drop(a);
        account.outcome("the end of a closed peer", recv(&b).await);
        account.outcome("the first send to it", send(&b, b"x").await);
        time::sleep(SETTLE).await;
        account.outcome("the second send to it", send(&b, b"x").await);
        account.outcome("the third send to it", send(&b, b"x").await);
        account.outcome("a receive after that", recv(&b).await);

        let (a, b) = pair().await;
        send(&a, b"never read").await.expect("sent");
        time::sleep(SETTLE).await;
        drop(b);
        time::sleep(SETTLE).await;
        account.outcome("a peer that closed with unread bytes", recv(&a).await);
        account.outcome("a receive after that", recv(&a).await);
        account.outcome("a send after that", send(&a, b"x").await);
        account
    });
}

#[test]
fn pending_operations() {
    compare(async |_| {
        let mut account = Account::default();
        let (a, b) = pair().await;
        let a = Rc::new(a);
        let receiver = a.clone();
        let receiving = task::spawn(async move { recv(&receiver).await });
        let sender = a.clone();
        let sending: task::Task<io::Result<()>> = task::spawn(async move {
            let chunk = Buf::zeroed(1 << 20).freeze();
            loop {
                let mut batch = SendBatch::new();
                batch.view(chunk.clone());
                sender.send(batch).await.0?;
            }
        });
        time::sleep(SETTLE).await;
        account.add("both wait", (receiving.is_finished(), sending.is_finished()));
        a.shutdown();
        account.outcome("a pending receive at shutdown", receiving.await);
        account.outcome("a pending send at shutdown", sending.await);
        drop(b);

        let (a, b) = pair().await;
        account.add("a receive that times out", time::timeout(MS * 5, recv(&a)).await.is_err());
        send(&b, b"later").await.expect("sent");
        account.add("bytes that came after it", recv_exact(&a, 5).await);
        account
    });
}

fn filled(value: u8, len: usize) -> View {
    let mut buf = Buf::with_len(len);
    buf.fill(value);
    buf.freeze()
}

async fn read(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let (result, buf) = file.read_at(offset, Buf::with_len(len)).await;
    assert_eq!(buf.len(), len, "the buffer comes back");
    result.map(|()| buf.to_vec())
}

/// Runs of equal bytes: a readable account of a file.
fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

async fn contents(file: &File, account: &mut Account) {
    const KIB: u64 = 1024;
    account.add("size", (file.size(), file.is_block_device()));
    account.add("new", read(file, 0, 16 * 1024).await.map(|bytes| runs(&bytes)).expect("read"));
    file.write_at(0, filled(1, 16 * 1024), false).await.expect("written");
    file.write_at(4 * KIB, filled(2, 4096), true).await.expect("written");
    file.sync_data().await.expect("flushed");
    account.add("written", read(file, 0, 16 * 1024).await.map(|bytes| runs(&bytes)).expect("read"));
    file.punch_hole(4 * KIB, 4 * KIB).await.expect("punched");
    file.write_zeroes(12 * KIB, 4 * KIB).await.expect("zeroed");
    account.add("with holes", read(file, 0, 16 * 1024).await.map(|bytes| runs(&bytes)).expect("read"));
    account.outcome("a read over the end", read(file, 60 * KIB, 8192).await.map(drop));
    account.outcome("a read beyond the end", read(file, 64 * KIB, 4096).await.map(drop));
    let writes: Vec<_> = (0..8_u8)
        .map(|i| {
            let file = file.clone();
            task::spawn(async move { file.write_at(u64::from(i) * 4 * KIB, filled(i, 4096), i % 2 == 0).await })
        })
        .collect();
    for write in writes {
        write.await.expect("written");
    }
    account.add("many at once", read(file, 0, 32 * 1024).await.map(|bytes| runs(&bytes)).expect("read"));
    let dropped = file.write_at(32 * KIB, filled(9, 4096), true);
    drop(time::timeout(Duration::ZERO, dropped).await);
    time::sleep(SETTLE).await;
    account.add("a dropped write lands", read(file, 32 * KIB, 4096).await.map(|bytes| runs(&bytes)).expect("read"));
}

#[test]
fn files() {
    compare(async |path| {
        let mut account = Account::default();
        let direct = OpenOptions::default();
        account.outcome("open what is missing", File::open(&path, &direct).map(drop));
        let create = OpenOptions { create: Some(64 * 1024), ..direct };
        let file = File::open(&path, &create).expect("created");
        contents(&file, &mut account).await;
        account.outcome("a misaligned write", file.write_at(100, filled(1, 4096), false).await);
        account.outcome("a misaligned read", read(&file, 0, 100).await.map(drop));
        account.outcome("a second opener", File::open(&path, &direct).map(drop));
        let clone = file.clone();
        drop(file);
        account.outcome("a second opener beside a clone", File::open(&path, &direct).map(drop));
        drop(clone);
        let larger = OpenOptions { create: Some(1 << 20), ..direct };
        account.outcome("create what exists", File::open(&path, &larger).map(|file| file.size()));
        let buffered = OpenOptions { direct: false, read_only: true, ..direct };
        let file = File::open(&path, &buffered).expect("there");
        account.outcome("a misaligned buffered read", read(&file, 4090, 10).await);
        let refused = file.write_at(0, filled(1, 4096), false).await.expect_err("read-only");
        account.add("a write when read-only", refused.raw_os_error());
        drop(file);
        let file = File::open(&path, &OpenOptions { direct: false, ..direct }).expect("there");
        file.write_at(5, filled(7, 3), false).await.expect("written");
        account.outcome("a misaligned buffered write", read(&file, 0, 10).await);
        account
    });
}

#[test]
fn zeroing_over_the_end() {
    compare(async |path: PathBuf| {
        let mut account = Account::default();
        let path: &Path = &path;
        let file = File::open(path, &OpenOptions { create: Some(8192), ..OpenOptions::default() }).expect("created");
        file.write_at(0, filled(1, 8192), true).await.expect("written");
        account.outcome("a hole over the end", file.punch_hole(4096, 8192).await);
        account.outcome("the rest", read(&file, 0, 8192).await.map(|bytes| runs(&bytes)));
        account.outcome("beyond the end", read(&file, 8192, 4096).await.map(drop));
        account
    });
}

#[test]
fn tasks_and_timers() {
    compare(async |_| {
        let mut account = Account::default();
        let (sender, receiver) = mailbox::<u64>(16);
        for ms in [60, 20, 40] {
            let sender = sender.clone();
            task::spawn(async move {
                time::sleep(MS * ms).await;
                sender.try_send(u64::from(ms)).expect("room");
            })
            .detach();
        }
        drop(sender);
        let mut order = vec![];
        while let Some(ms) = receiver.recv().await {
            order.push(ms);
        }
        account.add("timers", order);
        let start = time::now();
        account.add("timeout of what never ends", time::timeout(MS * 10, pending::<()>()).await);
        account.add("it took its time", start.elapsed() >= MS * 10);
        account.add("timeout of what is ready", time::timeout(Duration::ZERO, async { 7 }).await);
        time::sleep_until(start).await;
        let cancelled = task::spawn(pending::<()>());
        task::yield_now().await;
        account.add("cancel what waits", cancelled.cancel().await);
        let ended = task::spawn(async { 5 });
        time::sleep(MS).await;
        account.add("ended", (ended.is_finished(), ended.cancel().await));
        let notify = Rc::new(Notify::new());
        let waiting = notify.clone();
        let woken = task::spawn(async move { waiting.notified().await });
        time::sleep(MS).await;
        notify.notify_one();
        account.add("woken", time::timeout(MS * 500, woken).await.is_ok());
        account.add("random numbers differ", task::random_u64() != task::random_u64());
        account.add("the calendar is this century's", time::unix_time().as_secs() > 1_700_000_000);
        account
    });
}
