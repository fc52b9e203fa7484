//! TLS between our host and our target over loopback, with OpenSSL's own tools at either end, and what keeps strangers out.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use device::{Durability, Lba, Memory, Namespace, conformance};
use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::sim::{SimConfig, World};
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::host::{ConnectError, HostIdentity, Options, RemoteNamespace};
use fabric::psk::{ConfiguredPsk, Derivation, IdentityVersion, PskHash, TlsKey};
use fabric::subsystem::{HostConfig, PortConfig, PortId, Target, TlsPolicy};
use fabric::tcp::{Encoder, IcReq};
use nvme::{Nqn, Status};
use tls::Secret;

use crate::log;
use crate::port::Port;

const TIME_MAX: Duration = Duration::from_secs(60);
const PORT: PortId = PortId(1);

fn nqn(name: &str) -> Nqn {
    format!("nqn.2026-01.example.yagura:{name}").parse().expect("a name")
}

fn random(hash: PskHash) -> ConfiguredPsk {
    ConfiguredPsk::random(Some(hash), hash).expect("random")
}

fn key_of(key: &ConfiguredPsk, host: &str, version: IdentityVersion) -> TlsKey {
    let key = key.clone().retain(&nqn(host), Derivation::Standard).expect("retained");
    TlsKey::Retained { key, version }
}

/// A target with two subsystems, and a memory namespace in each, at one port.
fn target(policy: TlsPolicy) -> Target {
    let target = Target::default();
    for name in ["sub", "other"] {
        target.add_subsystem(nqn(name), "SERIAL").expect("new");
        let memory = Memory::new(16 << 20, 4096, [7; 16]).expect("a good size");
        target.add_namespace(&nqn(name), 1, memory).expect("new");
    }
    target.add_port(PortConfig { tls: policy, ..PortConfig::new(PORT) }).expect("new");
    target
}

/// Lets a host with a key in: into one subsystem, or into both.
fn allow(target: &Target, host: &Nqn, subsystems: &[Nqn], key: &ConfiguredPsk, tls_required: bool) {
    let tls_keys = key.clone().retain_all(host, false).expect("retained");
    for subsystem in subsystems {
        let config = HostConfig { tls_keys: tls_keys.clone(), tls_required, ..HostConfig::default() };
        target.allow_host(subsystem, host, config).expect("room");
    }
}

fn on_reactor(body: impl Future<Output = ()>) {
    let bounded = async { time::timeout(TIME_MAX, body).await.expect("ends in time") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

/// Serves `target` while `body` runs with its address.
fn serving<F: Future<Output = ()>>(target: &Target, body: impl FnOnce(SocketAddr) -> F) {
    on_reactor(async {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr();
        let target = target.clone();
        let served = task::spawn(async move { target.serve_port(PORT, listener, vec![]).await });
        body(address).await;
        drop(served);
    });
}

fn options(address: SocketAddr, host: &str, key: Option<TlsKey>) -> Options {
    let mut options = Options::new(address, nqn("sub"), 1);
    options.host = HostIdentity { nqn: nqn(host), id: [9; 16] };
    options.security.tls = key;
    options
}

async fn refusal(options: Options) -> ConnectError {
    match RemoteNamespace::connect(options).await {
        Ok(_) => panic!("let in"),
        Err(error) => error,
    }
}

#[test]
fn a_namespace_over_tls_is_one_like_any_other() {
    for hash in PskHash::ALL {
        let target = target(TlsPolicy::Required);
        let key = random(hash);
        allow(&target, &nqn("host"), &[nqn("sub"), nqn("other")], &key, false);
        serving(&target, |address| async move {
            for version in [IdentityVersion::Zero, IdentityVersion::One] {
                for digests in [false, true] {
                    let mut options = options(address, "host", Some(key_of(&key, "host", version)));
                    (options.header_digest, options.data_digest) = (digests, digests);
                    let namespace = RemoteNamespace::connect(options).await.expect("connected");
                    let mut data = Buf::with_len(1 << 20);
                    data.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 3) as u8);
                    let data = data.freeze();
                    namespace.write(Lba(3), data.clone(), Durability::Stable).await.expect("written");
                    let (result, read) = namespace.read(Lba(3), Buf::with_len(1 << 20)).await;
                    result.expect("read");
                    assert!(read[..] == data[..]);
                }
            }
            let options = options(address, "host", Some(key_of(&key, "host", IdentityVersion::One)));
            let namespace = RemoteNamespace::connect(options).await.expect("connected");
            conformance::check_all(Rc::new(namespace), 1).await;
        });
        let stats = target.stats();
        assert!(stats.tls_connections() >= 8 && stats.tls_failures() == 0);
    }
}

#[test]
fn a_port_that_requires_tls_serves_nothing_plain() {
    let target = target(TlsPolicy::Required);
    serving(&target, |address| async move {
        let error = refusal(options(address, "host", None)).await;
        assert!(matches!(error, ConnectError::Link { .. }), "{error}");
        // Not even ICResp.
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut batch = SendBatch::new();
        let request = IcReq { alignment_code: 0, header_digest: false, data_digest: false, maxr2t: 0 };
        batch.head(&Encoder::ic_req(&request));
        stream.send(batch).await.0.expect("sent");
        let (result, _) = stream.recv(Buf::with_capacity(100)).await;
        assert!(!matches!(result, Ok(1..)), "{result:?}");
    });
    assert_eq!((target.stats().tls_failures(), target.stats().tls_connections()), (2, 0));
}

#[test]
fn a_plain_port_does_not_speak_tls() {
    let target = target(TlsPolicy::Off);
    let key = random(PskHash::Sha256);
    allow(&target, &nqn("host"), &[nqn("sub"), nqn("other")], &key, false);
    serving(&target, |address| async move {
        let error = refusal(options(address, "host", Some(key_of(&key, "host", IdentityVersion::One)))).await;
        assert!(error.to_string().contains("does its port do TLS?"), "{error}");
        RemoteNamespace::connect(options(address, "host", None)).await.expect("plain");
    });
}

#[test]
fn where_both_are_allowed_a_host_may_be_held_to_tls() {
    let target = target(TlsPolicy::Allowed);
    let key = random(PskHash::Sha384);
    allow(&target, &nqn("host"), &[nqn("sub")], &key, true);
    serving(&target, |address| async move {
        let secure = options(address, "host", Some(key_of(&key, "host", IdentityVersion::One)));
        RemoteNamespace::connect(secure).await.expect("secure");
        RemoteNamespace::connect(options(address, "guest", None)).await.expect("plain");
        let error = refusal(options(address, "host", None)).await;
        let ConnectError::Refused { status, .. } = error else { panic!("{error}") };
        assert_eq!(status.kind(), Status::CONNECT_INVALID_HOST);
    });
}

/// A host with a good key of its own must not come in under another's name, nor into a subsystem that its key is not for.
#[test]
fn connect_says_who_tls_has_shown() {
    let target = target(TlsPolicy::Allowed);
    let key = random(PskHash::Sha256);
    allow(&target, &nqn("host"), &[nqn("other")], &key, false);
    serving(&target, |address| async move {
        let TlsKey::Retained { key: retained, version } = key_of(&key, "host", IdentityVersion::One) else { return };
        let for_other = Arc::new(retained.tls_psk(version, &nqn("other")).expect("derived"));
        for (host, subsystem, expected) in [
            ("host", "other", Status::SUCCESS),
            ("guest", "other", Status::CONNECT_INVALID_HOST),
            ("host", "sub", Status::CONNECT_INVALID_PARAMETERS),
        ] {
            let mut options = options(address, host, Some(TlsKey::Generated(for_other.clone())));
            options.subsystem = nqn(subsystem);
            let status = match RemoteNamespace::connect(options).await {
                Ok(_) => Status::SUCCESS,
                Err(ConnectError::Refused { status, .. }) => status.kind(),
                Err(error) => panic!("{error}"),
            };
            assert_eq!(status, expected, "{host} {subsystem}");
        }
    });
}

#[test]
fn a_wrong_or_missing_key_lets_nobody_in() {
    let target = target(TlsPolicy::Required);
    let (ours, theirs) = (random(PskHash::Sha256), random(PskHash::Sha256));
    allow(&target, &nqn("host"), &[nqn("sub"), nqn("other")], &ours, false);
    serving(&target, |address| async move {
        for version in [IdentityVersion::Zero, IdentityVersion::One] {
            for (key, host) in [(&theirs, "host"), (&ours, "guest")] {
                let error = refusal(options(address, host, Some(key_of(key, host, version)))).await;
                assert!(error.to_string().contains("has the target the same key"), "{error}");
            }
        }
        RemoteNamespace::connect(options(address, "host", Some(key_of(&ours, "host", IdentityVersion::One))))
            .await
            .expect("the neighbour with the right key is served");
    });
    assert_eq!(target.stats().tls_failures(), 4);
}

#[test]
fn no_pre_shared_key_is_ever_logged() {
    let (ours, theirs) = (&random(PskHash::Sha256), &random(PskHash::Sha256));
    let log = log::of(|| {
        let target = target(TlsPolicy::Required);
        allow(&target, &nqn("host"), &[nqn("sub")], ours, true);
        serving(&target, |address| async move {
            let wrong = options(address, "host", Some(key_of(theirs, "host", IdentityVersion::Zero)));
            let failed = refusal(wrong.clone()).await;
            refusal(options(address, "stranger", Some(key_of(ours, "stranger", IdentityVersion::One)))).await;
            let right = options(address, "host", Some(key_of(ours, "host", IdentityVersion::One)));
            RemoteNamespace::connect(right.clone()).await.expect("connected").disconnect().await;
            tracing::error!(%failed, ?failed, ?wrong, ?right, ?ours, ?theirs);
        });
        tracing::error!(config = ?target.host_config(&nqn("sub"), &nqn("host")));
    });
    assert!(log.contains("is not ours: give both sides the same key"), "the log tells of keys by their names: {log}");
    assert!(log.contains("for which there is no key; give the target"), "and what mends an unknown one: {log}");
    for key in [ours, theirs] {
        let text = key.to_interchange();
        let base64 = str::from_utf8(text.expose()).expect("text").split(':').nth(2).expect("the key");
        assert!(!log.contains(&base64[..16]) && !log.contains(&base64[16..32]), "a key was logged");
        let bytes = openssl::base64::decode_block(base64).expect("base64");
        log::assert_without(&log, &bytes[..32]);
    }
}

/// In the simulated world, where ten seconds pass at once.
#[test]
fn a_handshake_that_does_not_come_to_an_end_is_ended() {
    for first in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"] {
        let world = World::new(1, SimConfig::default());
        let node = world.node("target");
        let address = SocketAddr::new(world.addr(node), 4420);
        let target = target(TlsPolicy::Allowed);
        let served = world.spawn_on(node, {
            let target = target.clone();
            async move {
                let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4420)));
                target.serve_port(PORT, listener.expect("a free port"), vec![]).await
            }
        });
        let client = async {
            time::sleep(Duration::from_millis(10)).await;
            let stream = TcpStream::connect(address).await.expect("connected");
            let mut batch = SendBatch::new();
            batch.head(first);
            stream.send(batch).await.0.expect("sent");
            let started = time::now();
            let (result, _) = stream.recv(Buf::with_capacity(100)).await;
            assert!(!matches!(result, Ok(1..)), "{result:?}");
            let took = time::now().duration_since(started);
            assert!((Duration::from_secs(9)..Duration::from_secs(11)).contains(&took), "{took:?}");
        };
        world.run_until(client).unwrap_or_else(|stalled| panic!("{stalled:?}"));
        assert_eq!((target.stats().tls_failures(), target.stats().connections()), (1, 0));
        drop(served);
    }
}

// OpenSSL's tools: TLS that is not ours.

/// A child that is not left behind.
struct Tool(Child);

impl Drop for Tool {
    fn drop(&mut self) {
        // Ended already, or ended by this: either way it is gone afterwards.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn openssl(arguments: &[&str], psk: &str, identity: &str) -> Tool {
    let mut command = Command::new("openssl");
    command.args(arguments).args(["-tls1_3", "-quiet", "-psk", psk, "-psk_identity", identity]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Tool(command.spawn().expect("openssl is installed: scripts/deps.sh"))
}

/// A key of which everything is known: the first of `psk::keys`' tests, with other names.
fn known() -> (ConfiguredPsk, String, String) {
    let text = "NVMeTLSkey-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
    let key = ConfiguredPsk::parse(&Secret::new(text.into())).expect("a key");
    let psk = "d6132fe0153d2e44d7bf8e89159f24cc3c950f038f59613bc1577fddf3674e3e";
    (key, psk.to_owned(), "NVMe0R01 nqn.2026-01.org.example:host nqn.2026-01.org.example:sub".to_owned())
}

/// Reads from a tool's output until there are `bytes`, or the time is up.
fn read_from(tool: &mut Tool, bytes: usize) -> Vec<u8> {
    let mut output = tool.0.stdout.take().expect("piped");
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut all = vec![0; bytes];
        if output.read_exact(&mut all).is_ok() {
            let _ = sender.send(all);
        }
    });
    receiver.recv_timeout(Duration::from_secs(20)).expect("the tool gave what was expected")
}

#[test]
fn openssl_as_the_client_is_let_in() {
    let (key, psk, identity) = known();
    let target = target(TlsPolicy::Required);
    let host: Nqn = "nqn.2026-01.org.example:host".parse().expect("a name");
    let subsystem: Nqn = "nqn.2026-01.org.example:sub".parse().expect("a name");
    target.add_subsystem(subsystem.clone(), "SERIAL").expect("new");
    allow(&target, &host, &[subsystem], &key, false);
    serving(&target, |address| async move {
        let client = thread::spawn(move || {
            let place = address.to_string();
            let mut tool = openssl(&["s_client", "-connect", &place], &psk, &identity);
            let request = IcReq { alignment_code: 0, header_digest: true, data_digest: false, maxr2t: 0 };
            let input = tool.0.stdin.as_mut().expect("piped");
            input.write_all(&Encoder::ic_req(&request)).expect("written");
            input.flush().expect("written");
            read_from(&mut tool, 128)
        });
        while !client.is_finished() {
            time::sleep(Duration::from_millis(5)).await;
        }
        let response = client.join().expect("no panic");
        assert_eq!(response[0], 1, "ICResp");
    });
    assert_eq!(target.stats().tls_connections(), 1);
}

#[test]
fn openssl_as_the_server_lets_our_host_in() {
    let (key, psk, identity) = known();
    let kept = Port::keep();
    let address = kept.address;
    let place = address.to_string();
    let mut tool = openssl(&["s_server", "-nocert", "-accept", &place], &psk, &identity);
    let started = Instant::now();
    while std::net::TcpStream::connect(address).is_err() {
        assert!(started.elapsed() < TIME_MAX, "s_server does not listen");
        thread::sleep(Duration::from_millis(10));
    }
    on_reactor(async move {
        let host: Nqn = "nqn.2026-01.org.example:host".parse().expect("a name");
        let retained = key.retain(&host, Derivation::Standard).expect("retained");
        let mut options = Options::new(address, "nqn.2026-01.org.example:sub".parse().expect("a name"), 1);
        options.host.nqn = host;
        options.security.tls = Some(TlsKey::Retained { key: retained, version: IdentityVersion::Zero });
        options.connect_timeout = TIME_MAX;
        let connecting = task::spawn(RemoteNamespace::connect(options));
        let reading = thread::spawn(move || read_from(&mut tool, 128));
        while !reading.is_finished() {
            time::sleep(Duration::from_millis(5)).await;
        }
        let request = reading.join().expect("no panic");
        assert_eq!((request[0], request[2]), (0, 128), "ICReq, decrypted by another's TLS");
        drop(connecting);
    });
}
