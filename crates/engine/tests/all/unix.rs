//! Unix-domain sockets on the real reactor.

use std::{future::Future, io::ErrorKind, os::unix::fs::PermissionsExt, time::Duration};

use engine::{
    Buf, Reactor, ReactorConfig,
    net::{SendBatch, UnixListener, UnixStream},
    sim, task,
    time::timeout,
};

/// A test that hangs fails after this long.
const TEST_MAX: Duration = Duration::from_secs(20);

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { timeout(TEST_MAX, main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

#[test]
fn what_is_sent_arrives_and_the_end_is_seen() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    run(async {
        let listener = UnixListener::bind(&path, 0o700).expect("bound");
        let permissions = std::fs::metadata(&path).expect("a file").permissions();
        assert_eq!(permissions.mode() & 0o777, 0o700);
        let client = UnixStream::connect(&path).expect("connected");
        let server = listener.accept().await.expect("accepted");
        // More than the socket holds: the send has to wait, and to go on.
        let sent: Vec<u8> = (0..1 << 20).map(|index: u32| (index / 251) as u8).collect();
        let mut batch = SendBatch::new();
        for piece in sent.chunks(64 << 10) {
            let mut buf = Buf::with_capacity(piece.len());
            buf.extend_from_slice(piece);
            batch.view(buf.freeze());
        }
        let sender = task::spawn(async move {
            client.send(batch).await.0.expect("sent");
        });
        let mut received = Vec::new();
        loop {
            let (result, buf) = server.recv(Buf::with_capacity(32 << 10)).await;
            if result.expect("received") == 0 {
                break;
            }
            received.extend_from_slice(&buf);
        }
        sender.await;
        assert!(received == sent, "{} bytes arrived of {}, or others", received.len(), sent.len());
        let (result, _) = server.recv(Buf::default()).await;
        assert_eq!(result.expect_err("no room").kind(), ErrorKind::InvalidInput);
        drop(listener);
        assert!(!path.exists(), "the listener's path goes with it");
    });
}

#[test]
fn a_path_is_taken_over_only_from_a_process_that_has_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, file) = (directory.path().join("socket"), directory.path().join("file"));
    std::fs::write(&file, "kept").expect("written");
    // As a killed process leaves it: the path is there, and nobody listens.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    assert!(path.exists());
    run(async {
        let error = UnixStream::connect(&path).err().expect("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let listener = UnixListener::bind(&path, 0o770).expect("taken over");
        let error = UnixListener::bind(&path, 0o770).err().expect("in use");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let error = UnixListener::bind(&file, 0o770).err().expect("no socket");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        let _client = UnixStream::connect(&path).expect("the listener is as it was");
        listener.accept().await.expect("accepted");
    });
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "kept");
}

#[test]
fn the_simulated_world_has_none() {
    let world = sim::World::new(1, sim::SimConfig::default());
    let bound = world.run_until(async { UnixListener::bind("socket".as_ref(), 0o700).err().map(|error| error.kind()) });
    assert_eq!(bound.expect("no stall"), Some(ErrorKind::Unsupported));
}
