//! Two tunnels back to back, in memory; then streams over loopback sockets.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::{Buf, Reactor, ReactorConfig, task, time};

use super::tunnel::{Got, RECORD_BYTES, ServerContext, Tunnel};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const IDENTITY: &str = "somebody at something";

fn random(suite: Suite) -> Arc<Psk> {
    let mut key = vec![0; suite.hash_bytes()];
    openssl::rand::rand_priv_bytes(&mut key).expect("random");
    Arc::new(Psk::new(IDENTITY.into(), suite, Secret::new(key)))
}

/// All that a server knows.
struct Known(Vec<Arc<Psk>>);

impl FindPsk for Known {
    fn find_psk(&self, identity: &[u8]) -> Option<Arc<Psk>> {
        self.0.iter().find(|psk| psk.identity() == identity).cloned()
    }
}

fn server_with(key: &Arc<Psk>) -> ServerContext {
    ServerContext::new(Arc::new(Known(vec![key.clone()]))).expect("OpenSSL")
}

fn server_without() -> ServerContext {
    ServerContext::new(Arc::new(Known(Vec::new()))).expect("OpenSSL")
}

/// Both ends of a connection, and what each has said last.
struct Pair {
    client: Tunnel,
    server: Tunnel,
}

impl Pair {
    fn new(psk: &Arc<Psk>, server: &ServerContext) -> Pair {
        Pair {
            client: Tunnel::client(psk.clone()).expect("a client"),
            server: Tunnel::server(server).expect("a server"),
        }
    }

    /// Until both are done, or one fails; the other then learns of it.
    fn handshake(&mut self) -> (Result<bool, TlsError>, Result<bool, TlsError>) {
        loop {
            let client = self.client.handshake();
            carry(&mut self.client, &mut self.server, |bytes| bytes);
            let server = self.server.handshake();
            carry(&mut self.server, &mut self.client, |bytes| bytes);
            match (&client, &server) {
                (Ok(true), Ok(true)) | (Err(_), _) => return (client, server),
                (_, Err(_)) => return (self.client.handshake(), server),
                _ => {}
            }
        }
    }

    fn connected(suite: Suite) -> Pair {
        let key = random(suite);
        let mut pair = Pair::new(&key, &server_with(&key));
        assert_eq!(pair.handshake(), (Ok(true), Ok(true)));
        pair
    }
}

fn carry(from: &mut Tunnel, to: &mut Tunnel, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
    if let Some(output) = from.take_output() {
        drop(to.take_input());
        to.feed(Buf::copy_from(&change(output.to_vec())));
    }
}

fn read(engine: &mut Tunnel) -> Result<Vec<u8>, TlsError> {
    let mut buf = vec![0; RECORD_BYTES];
    match engine.read(&mut buf)? {
        Got::Bytes(bytes) => Ok(buf[..bytes].to_vec()),
        got => panic!("{got:?} instead of data"),
    }
}

#[test]
fn a_key_of_either_suite_makes_a_connection() {
    for suite in Suite::ALL {
        let key = random(suite);
        let mut pair = Pair::new(&key, &server_with(&key));
        assert!(pair.client.psk().is_none() && pair.server.psk().is_none(), "not before the handshake");
        assert_eq!(pair.handshake(), (Ok(true), Ok(true)));
        for tunnel in [&pair.client, &pair.server] {
            assert_eq!(tunnel.psk().as_ref(), Some(&key));
        }
        pair.client.write(b"ping").expect("written");
        carry(&mut pair.client, &mut pair.server, |bytes| bytes);
        assert_eq!(read(&mut pair.server), Ok(b"ping".to_vec()));
        pair.server.write(b"pong").expect("written");
        carry(&mut pair.server, &mut pair.client, |bytes| bytes);
        assert_eq!(read(&mut pair.client), Ok(b"pong".to_vec()));
    }
}

#[test]
fn another_key_of_the_same_name_is_refused_on_both_sides() {
    let (ours, theirs) = (random(Suite::Aes128GcmSha256), random(Suite::Aes128GcmSha256));
    let mut pair = Pair::new(&theirs, &server_with(&ours));
    let (client, server) = pair.handshake();
    assert_eq!(server, Err(TlsError::WrongKey(IDENTITY.to_owned())));
    assert!(matches!(client, Err(TlsError::Refused(_))), "{client:?}");
    assert!(pair.server.psk().is_none() && pair.client.psk().is_none());
}

/// A ClientHello, which OpenSSL ends with the extension pre_shared_key, with `count` identities in place of the one it has, the
/// last of which is that one; `cut` makes the list malformed behind them.
fn with_identities(hello: &[u8], count: usize, cut: bool) -> Vec<u8> {
    let word = |at: usize| usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + word(at);
    at += 1 + usize::from(hello[at]);
    let extensions = at;
    at += 2;
    while word(at) != 41 {
        at += 4 + word(at + 2);
    }
    assert_eq!(at + 4 + word(at + 2), hello.len(), "the last one");
    let own = &hello[at + 6..at + 6 + word(at + 4)];
    let binder = &hello[at + 6 + word(at + 4) + 2..];
    let mut identities = b"\x00\x03xyz\x00\x00\x00\x00".repeat(count - 1);
    identities.extend(if cut { &[0xFF, 0xFF] } else { own });
    let binders = binder.repeat(count);
    let prefixed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let extension = [prefixed(&identities), prefixed(&binders)].concat();
    let extension = [&[0, 41][..], &prefixed(&extension)].concat();
    let extensions = [&hello[..extensions], &prefixed(&[&hello[extensions + 2..at], &extension].concat())].concat();
    let body = &extensions[9..];
    let handshake = [&[1, 0][..], &prefixed(body)].concat();
    [&hello[..3], &prefixed(&handshake)].concat()
}

/// Each identity of a ClientHello has the server look for its key, twice, before the client has shown anything: there were two
/// hundred in one.
#[test]
fn so_many_identities_are_looked_at_and_no_more() {
    let key = random(Suite::Aes128GcmSha256);
    let server = server_with(&key);
    let mut client = Tunnel::client(key.clone()).expect("a client");
    assert_eq!(client.handshake(), Ok(false));
    let hello = client.take_output().expect("a ClientHello").to_vec();
    let answered = |count, cut| {
        let mut tunnel = Tunnel::server(&server).expect("a server");
        tunnel.feed(Buf::copy_from(&with_identities(&hello, count, cut)));
        tunnel.handshake()
    };
    assert_eq!(with_identities(&hello, 1, false), hello);
    for count in [2, 8] {
        // It is found, and what the client has shown is for another ClientHello.
        assert!(matches!(answered(count, false), Err(TlsError::WrongKey(_))), "{count}");
    }
    for count in [9, 200] {
        assert_eq!(answered(count, false), Err(TlsError::TooManyIdentities(8)), "{count}");
    }
    assert_eq!(answered(200, true), Err(TlsError::TooManyIdentities(8)), "also where the list is malformed");
}

#[test]
fn an_unknown_identity_is_refused_and_named() {
    let mut pair = Pair::new(&random(Suite::Aes256GcmSha384), &server_without());
    let (client, server) = pair.handshake();
    assert_eq!(server, Err(TlsError::UnknownIdentity(IDENTITY.to_owned())));
    assert!(matches!(client, Err(TlsError::Refused(_))), "{client:?}");
}

#[test]
fn what_is_no_client_hello_is_refused_at_any_length() {
    let key = random(Suite::Aes128GcmSha256);
    let server = server_with(&key);
    let mut client = Tunnel::client(key.clone()).expect("a client");
    assert_eq!(client.handshake(), Ok(false));
    let hello = client.take_output().expect("a ClientHello").to_vec();
    for length in 0..hello.len() {
        let mut cut = Tunnel::server(&server).expect("a server");
        cut.feed(Buf::copy_from(&hello[..length]));
        assert_eq!(cut.handshake(), Ok(false), "waits for the rest of {length}");
    }
    for (place, byte) in hello.iter().enumerate() {
        let mut changed = hello.clone();
        changed[place] = byte ^ 0x5A;
        let mut other = Tunnel::server(&server).expect("a server");
        other.feed(Buf::copy_from(&changed));
        assert_ne!(other.handshake(), Ok(true), "a changed byte {place}");
        assert!(other.psk().is_none());
    }
    for garbage in [&[0x16; 600][..], &[0; 128], b"\x16\x03\x01\xff\xff", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut other = Tunnel::server(&server).expect("a server");
        other.feed(Buf::copy_from(garbage));
        assert_ne!(other.handshake(), Ok(true));
    }
}

#[test]
fn a_record_that_was_changed_ends_the_connection() {
    for suite in Suite::ALL {
        let mut pair = Pair::connected(suite);
        pair.client.write(&[7; 1000]).expect("written");
        carry(&mut pair.client, &mut pair.server, |mut bytes| {
            bytes[500] ^= 1;
            bytes
        });
        let error = pair.server.read(&mut [0; 2000]).expect_err("the tag does not fit");
        assert!(matches!(error, TlsError::Protocol(_)), "{error}");
        assert!(pair.server.take_output().is_some(), "an alert says so");
    }
}

#[test]
fn an_end_is_an_end_only_after_close_notify() {
    let mut pair = Pair::connected(Suite::Aes256GcmSha384);
    assert_eq!(pair.client.read(&mut [0; 10]), Ok(Got::Nothing));
    pair.server.write(b"last").expect("written");
    pair.server.close();
    carry(&mut pair.server, &mut pair.client, |bytes| bytes);
    assert_eq!(read(&mut pair.client), Ok(b"last".to_vec()));
    assert_eq!(pair.client.read(&mut [0; 10]), Ok(Got::Closed));
}

#[test]
fn a_server_without_keys_offers_no_other_way_in() {
    // A client without a key: what any browser would send.
    let server = server_without();
    let mut builder = openssl::ssl::SslConnector::builder(openssl::ssl::SslMethod::tls_client()).expect("OpenSSL");
    builder.set_verify(openssl::ssl::SslVerifyMode::NONE);
    let ssl = builder.build().configure().expect("OpenSSL").verify_hostname(false).into_ssl("x").expect("OpenSSL");
    let mut stream = openssl::ssl::SslStream::new(ssl, Hello::default()).expect("OpenSSL");
    assert!(stream.connect().is_err());
    let mut engine = Tunnel::server(&server).expect("a server");
    engine.feed(Buf::copy_from(&stream.get_ref().0));
    assert_eq!(engine.handshake(), Err(TlsError::NoKey));
}

/// Keeps what is written, gives nothing to read.
#[derive(Default)]
struct Hello(Vec<u8>);

impl std::io::Read for Hello {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::WouldBlock.into())
    }
}

impl std::io::Write for Hello {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// Over sockets.

fn on_reactor(body: impl Future<Output = ()>) {
    let bounded = async { time::timeout(PATIENCE, body).await.expect("ends in time") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let connect = task::spawn(TcpStream::connect(listener.local_addr()));
    let (accepted, _) = listener.accept().await.expect("accepted");
    (connect.await.expect("connected"), accepted)
}

async fn streams(suite: Suite) -> (TlsStream, TlsStream) {
    let key = random(suite);
    let (client, server) = sockets().await;
    let context = server_with(&key);
    let accept = task::spawn(async move { TlsStream::accept(server, &context, Buf::default()).await });
    let client = TlsStream::connect(client, key).await.expect("connected");
    (client, accept.await.expect("accepted"))
}

fn pattern(bytes: usize) -> Buf {
    let mut buf = Buf::with_len(bytes);
    buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7 + at / 4096) as u8);
    buf
}

#[test]
fn what_is_sent_arrives_whatever_its_pieces() {
    on_reactor(async {
        for suite in Suite::ALL {
            let (client, server) = streams(suite).await;
            for sizes in [&[1][..], &[8, 4096, 4], &[24, 1 << 20, 4], &[RECORD_BYTES, RECORD_BYTES + 1], &[100; 90]] {
                let mut batch = SendBatch::new();
                let mut expected = Vec::new();
                for &bytes in sizes {
                    let part = pattern(bytes);
                    expected.extend_from_slice(&part);
                    if bytes < 100 { batch.head(&part) } else { batch.view(part.freeze()) }
                }
                let total = expected.len();
                let receive = task::spawn({
                    let server = server.clone();
                    async move {
                        let mut all = Vec::new();
                        while all.len() < total {
                            let (result, buf) = server.recv(Buf::with_capacity(50_000.min(total - all.len()))).await;
                            assert_eq!(result.expect("received"), buf.len());
                            all.extend_from_slice(&buf);
                        }
                        all
                    }
                });
                let (sent, batch) = client.send(batch).await;
                sent.expect("sent");
                assert!(batch.is_empty());
                assert!(receive.await == expected, "{sizes:?}");
            }
        }
    });
}

#[test]
fn both_directions_go_at_once() {
    on_reactor(async {
        let (client, server) = streams(Suite::Aes128GcmSha256).await;
        let done = std::rc::Rc::new(Cell::new(0));
        let mut tasks = Vec::new();
        for stream in [client, server] {
            let (sender, receiver) = (stream.clone(), stream);
            tasks.push(task::spawn(async move {
                for _ in 0..20 {
                    let mut batch = SendBatch::new();
                    batch.view(pattern(100_000).freeze());
                    sender.send(batch).await.0.expect("sent");
                }
            }));
            let done = done.clone();
            tasks.push(task::spawn(async move {
                let mut bytes = 0;
                while bytes < 2_000_000 {
                    bytes += receiver.recv(Buf::with_capacity(30_000)).await.0.expect("received");
                }
                done.set(done.get() + bytes);
            }));
        }
        for task in tasks {
            task.await;
        }
        assert_eq!(done.get(), 4_000_000);
    });
}

#[test]
fn an_orderly_end_is_told_from_a_cut() {
    on_reactor(async {
        let (client, server) = streams(Suite::Aes256GcmSha384).await;
        client.shutdown();
        assert_eq!(server.recv(Buf::with_capacity(10)).await.0.expect("an orderly end"), 0);
        let (client, server) = streams(Suite::Aes256GcmSha384).await;
        client.socket().shutdown();
        let error = server.recv(Buf::with_capacity(10)).await.0.expect_err("a cut");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_client_that_says_too_much_before_its_handshake_is_done_is_cut_off() {
    on_reactor(async {
        let (client, server) = sockets().await;
        let context = server_with(&random(Suite::Aes128GcmSha256));
        let accept = task::spawn(async move { TlsStream::accept(server, &context, Buf::default()).await.map(|_| ()) });
        // The first part of a ClientHello of 60,000 bytes: well-formed as far as it goes.
        let mut batch = SendBatch::new();
        let mut hello = vec![0x16, 3, 1, 0x3F, 0xFF, 1, 0, 0xEA, 0x60, 3, 3];
        hello.resize(5 + 0x3FFF, 0);
        hello.extend([0x16, 3, 1, 0x3F, 0xFF]);
        hello.resize(hello.len() + 0x1000, 0);
        batch.head(&hello);
        let _ = client.send(batch).await;
        assert_eq!(accept.await, Err(TlsError::HandshakeTooLong(HANDSHAKE_BYTES_MAX)));
    });
}

/// A key that everybody could read was taken, where a password in such a file is refused.
#[test]
fn a_private_key_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key.pem");
    let key = openssl::pkey::PKey::generate_ed25519().expect("a key");
    std::fs::write(&path, key.private_key_to_pem_pkcs8().expect("text")).expect("written");
    let with_mode = |mode: u32| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("changed");
        super::certificate::private_key(&path)
    };
    for mode in [0o644, 0o640, 0o602] {
        let error = with_mode(mode).expect_err("refused").to_string();
        assert!(error.contains("chmod 600"), "{mode:o}: {error}");
    }
    assert!(with_mode(0o600).expect("private").public_eq(&key));
    std::fs::write(&path, "no key").expect("written");
    assert!(with_mode(0o400).expect_err("no PEM").to_string().contains("it must be a PEM file"));
}
