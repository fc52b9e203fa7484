//! Sockets over loopback on the real reactor.

use std::{cell::Cell, future::Future, io::ErrorKind, net::SocketAddr, pin::pin, rc::Rc, time::Duration};

use engine::{
    Buf, Reactor, ReactorConfig,
    net::{DetachedStream, SendBatch, TcpListener, TcpStream},
    sync, task,
    time::{self, timeout},
};

const ANY: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0));
/// A test that hangs fails after this long.
const TEST_MAX: Duration = Duration::from_secs(20);

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { timeout(TEST_MAX, main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(ANY).expect("a free port");
    let address = listener.local_addr();
    let client = task::spawn(async move { TcpStream::connect(address).await.expect("connected") });
    let (server, peer) = listener.accept().await.expect("accepted");
    let client = client.await;
    assert_eq!((peer, server.peer_addr()), (client.local_addr(), client.local_addr()));
    assert_eq!((client.peer_addr(), server.local_addr()), (address, address));
    (client, server)
}

async fn recv_exact(stream: &TcpStream, count: usize) -> Vec<u8> {
    let mut buf = Buf::with_capacity(count);
    while buf.len() < count {
        let (result, back) = stream.recv(buf).await;
        buf = back;
        assert_ne!(result.expect("received"), 0, "the peer closed early");
    }
    buf.to_vec()
}

fn batch(bytes: &[u8]) -> SendBatch {
    let mut batch = SendBatch::new();
    batch.head(bytes);
    batch
}

async fn send(stream: &TcpStream, bytes: &[u8]) {
    stream.send(batch(bytes)).await.0.expect("sent");
}

#[test]
fn heads_and_payloads_arrive_in_order() {
    run(async {
        let (client, server) = pair().await;
        let mut out = SendBatch::new();
        let mut expected = vec![];
        for index in 0..100u8 {
            out.head(&[index; 24]);
            expected.extend([index; 24]);
            out.view(Buf::copy_from(&[!index; 1000]).freeze());
            expected.extend([!index; 1000]);
        }
        let (result, out) = client.send(out).await;
        result.expect("sent");
        assert!(out.is_empty());
        assert_eq!(recv_exact(&server, expected.len()).await, expected);
    });
}

#[test]
fn a_receive_appends_and_never_passes_the_capacity() {
    run(async {
        let (client, server) = pair().await;
        send(&client, b"0123456789").await;
        let mut buf = Buf::with_capacity(6);
        buf.extend_from_slice(b"ab");
        let (result, buf) = server.recv(buf).await;
        assert_eq!((result.expect("received"), &*buf), (4, &b"ab0123"[..]));
        let (result, _) = server.recv(buf).await;
        assert_eq!(result.expect_err("no room").kind(), ErrorKind::InvalidInput);
        assert_eq!(recv_exact(&server, 6).await, b"456789");
    });
}

#[test]
fn the_end_of_the_peer_is_a_zero_and_then_an_error_to_senders() {
    run(async {
        let (client, server) = pair().await;
        drop(client);
        let (result, _) = server.recv(Buf::with_capacity(10)).await;
        assert_eq!(result.expect("an orderly end"), 0);
        let error = loop {
            if let Err(error) = server.send(batch(&[0; 1000])).await.0 {
                break error;
            }
        };
        assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
    });
}

#[test]
fn connecting_to_nobody_is_refused() {
    run(async {
        let address = TcpListener::bind(ANY).expect("a free port").local_addr();
        let error = TcpStream::connect(address).await.err().expect("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_port_in_use_is_named() {
    run(async {
        let first = TcpListener::bind(ANY).expect("a free port");
        let error = TcpListener::bind(first.local_addr()).err().expect("taken");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&first.local_addr().to_string()), "{error}");
    });
}

#[test]
fn shutdown_ends_a_pending_receive_and_a_pending_send() {
    run(async {
        let (client, server) = pair().await;
        let client = Rc::new(client);
        let receiver = task::spawn({
            let client = client.clone();
            async move { client.recv(Buf::with_capacity(10)).await.0 }
        });
        let sender = task::spawn({
            let client = client.clone();
            async move {
                let payload = Buf::zeroed(1 << 20).freeze();
                loop {
                    let mut out = SendBatch::new();
                    out.view(payload.clone());
                    if let Err(error) = client.send(out).await.0 {
                        return error;
                    }
                }
            }
        });
        time::sleep(Duration::from_millis(50)).await;
        assert!(!receiver.is_finished() && !sender.is_finished());
        client.shutdown();
        assert!(matches!(receiver.await, Ok(0) | Err(_)));
        assert_eq!(sender.await.kind(), ErrorKind::BrokenPipe);
        drop(server);
    });
}

#[test]
fn a_huge_send_waits_for_a_slow_reader_and_arrives_whole() {
    run(async {
        let (client, server) = pair().await;
        let parts: Vec<_> =
            (0..32u8).map(|index| Buf::copy_from(&vec![index; (1 << 20) - index as usize]).freeze()).collect();
        let expected: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let done = Rc::new(Cell::new(false));
        let sender = task::spawn({
            let done = done.clone();
            async move {
                let mut out = SendBatch::new();
                for part in parts {
                    out.view(part);
                }
                client.send(out).await.0.expect("sent");
                done.set(true);
                client
            }
        });
        time::sleep(Duration::from_millis(50)).await;
        assert!(!done.get(), "32 MiB can not fit the socket's buffers: the sender must be slowed");
        let mut received = Vec::with_capacity(expected.len());
        while received.len() < expected.len() {
            let (result, buf) = server.recv(Buf::with_capacity(100_000)).await;
            assert_ne!(result.expect("received"), 0);
            received.extend_from_slice(&buf);
        }
        assert!(received == expected);
        sender.await;
    });
}

#[test]
fn dropped_receives_and_accepts_disturb_nothing() {
    run(async {
        let listener = TcpListener::bind(ANY).expect("a free port");
        for _ in 0..100 {
            // Dropped unpolled, dropped pending, and dropped together with the socket in the same turn.
            drop(listener.accept());
            let _ = timeout(Duration::ZERO, listener.accept()).await;
            let address = listener.local_addr();
            let client = task::spawn(async move { TcpStream::connect(address).await.expect("connected") });
            let (server, _) = listener.accept().await.expect("accepted");
            let client = client.await;
            let _ = timeout(Duration::ZERO, server.recv(Buf::with_capacity(4096))).await;
            drop(server);
            let (result, _) = client.recv(Buf::with_capacity(10)).await;
            assert_eq!(result.expect("closed, although a receive was outstanding"), 0);
        }
    });
}

#[test]
fn an_accept_that_was_dropped_loses_no_connection() {
    run(async {
        let listener = TcpListener::bind(ANY).expect("a free port");
        let address = listener.local_addr();
        for _ in 0..50 {
            let mut pending = Box::pin(listener.accept());
            std::future::poll_fn(|cx| {
                assert!(pending.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            let client = std::net::TcpStream::connect(address).expect("connected");
            for _ in 0..3 {
                task::yield_now().await; // the accept may end meanwhile, or is cancelled below: both must keep it
            }
            drop(pending);
            let (_, peer) = listener.accept().await.expect("accepted");
            assert_eq!(peer, client.local_addr().expect("connected"));
        }
    });
}

#[test]
fn a_dropped_send_keeps_its_bytes_until_the_kernel_is_done() {
    run(async {
        let (client, server) = pair().await;
        let payload = Buf::copy_from(&[0x5a; 1 << 20]).freeze();
        let mut out = SendBatch::new();
        for _ in 0..16 {
            out.view(payload.clone());
        }
        let _ = timeout(Duration::from_millis(20), client.send(out)).await;
        drop(payload);
        // Recycles the payload's memory at once, if it was given back too early.
        let other = Buf::copy_from(&[0xa5; 1 << 20]);
        drop(client);
        let mut total = 0;
        loop {
            let (result, buf) = server.recv(Buf::with_capacity(1 << 20)).await;
            if result.unwrap_or(0) == 0 {
                break;
            }
            assert!(buf.iter().all(|&byte| byte == 0x5a), "foreign bytes on the wire");
            total += buf.len();
        }
        assert!(total > 0);
        drop(other);
    });
}

#[test]
fn a_connection_moves_to_another_thread_with_its_unread_bytes() {
    let (streams, inbox) = sync::mailbox::<DetachedStream>(1);
    let other = std::thread::spawn(move || {
        run(async move {
            let stream = inbox.recv().await.expect("a stream").attach();
            let bytes = recv_exact(&stream, 5).await;
            send(&stream, &bytes).await;
            assert!(inbox.recv().await.is_none(), "the sender is gone");
        });
    });
    run(async move {
        let (client, server) = pair().await;
        send(&client, b"hello").await;
        streams.send(server.detach()).await.expect("the other thread listens");
        assert_eq!(recv_exact(&client, 5).await, b"hello");
    });
    other.join().expect("the other thread's assertions hold");
}

#[test]
fn receive_and_send_run_at_the_same_time_on_many_connections() {
    run(async {
        let listener = TcpListener::bind(ANY).expect("a free port");
        let address = listener.local_addr();
        let server = task::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accepted");
                task::spawn(async move {
                    let mut out = SendBatch::new();
                    loop {
                        let (result, buf) = stream.recv(Buf::with_capacity(8192)).await;
                        if result.unwrap_or(0) == 0 {
                            return;
                        }
                        out.view(buf.freeze());
                        let (result, back) = stream.send(out).await;
                        result.expect("sent");
                        out = back;
                    }
                })
                .detach();
            }
        });
        let mut clients = task::TaskSet::new(50);
        for index in 0..50u8 {
            let client = async move {
                let stream = Rc::new(TcpStream::connect(address).await.expect("connected"));
                let sender = task::spawn({
                    let stream = stream.clone();
                    async move {
                        for _ in 0..20 {
                            send(&stream, &[index; 5000]).await;
                        }
                    }
                });
                let bytes = recv_exact(&stream, 100_000).await;
                sender.await;
                assert!(bytes.iter().all(|&byte| byte == index));
            };
            assert!(clients.push(client).is_ok());
        }
        while clients.next().await.is_some() {}
        drop(server);
    });
}

#[test]
fn what_is_left_at_the_end_is_dropped_and_closed() {
    let peer = std::net::TcpListener::bind(ANY).expect("a free port");
    let address = peer.local_addr().expect("bound");
    run(async move {
        let stream = TcpStream::connect(address).await.expect("connected");
        task::spawn(async move {
            let _ = stream.recv(Buf::with_capacity(4096)).await;
            unreachable!("nobody sends");
        })
        .detach();
        let mut sleep = pin!(time::sleep(Duration::from_millis(10)));
        sleep.as_mut().await;
    });
    let (mut socket, _) = peer.accept().expect("connected");
    socket.set_read_timeout(Some(TEST_MAX)).expect("a timeout");
    assert_eq!(std::io::Read::read(&mut socket, &mut [0; 10]).expect("closed"), 0);
}

/// A connection that is given up must not go on delivering what its socket holds: the peer sees a reset, whatever was queued, and
/// even while somebody holds the connection still.
#[test]
fn what_is_given_up_is_reset() {
    run(async {
        let (client, server) = pair().await;
        let client = Rc::new(client);
        let (sending, receiving) = (Rc::clone(&client), Rc::clone(&client));
        let sending = task::spawn(async move {
            loop {
                let mut out = SendBatch::new();
                out.view(Buf::zeroed(1 << 20).freeze());
                if let Err(error) = sending.send(out).await.0 {
                    return error;
                }
            }
        });
        let receiving = task::spawn(async move { receiving.recv(Buf::with_capacity(64)).await.0 });
        // The socket is full by then, and both operations wait.
        time::sleep(Duration::from_millis(50)).await;
        client.abort();
        sending.await;
        assert!(receiving.await.is_err(), "nothing was received");
        let end = loop {
            match server.recv(Buf::with_capacity(1 << 20)).await.0 {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!(end, Some(ErrorKind::ConnectionReset));
        drop(client);
    });
}
