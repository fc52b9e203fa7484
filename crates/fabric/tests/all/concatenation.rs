//! Secure channel concatenation over loopback (NVMe Base 2.0c §8.13.5.9): authentication makes the key, and the association
//! goes on over TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use device::{Durability, Lba, Memory, Namespace};
use engine::net::TcpListener;
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::auth::{AuthError, DhchapKey, Group, Hash, HostKeys, Policy};
use fabric::host::{ConnectError, Discovery, Options, RemoteNamespace};
use fabric::subsystem::{HostConfig, PortConfig, PortId, Target, TargetConfig, TlsPolicy};
use nvme::auth::Failure;
use nvme::{Nqn, Status};

const BLOCK: usize = 4096;
const PORT: PortId = PortId(1);

fn nqn(name: &str) -> Nqn {
    format!("nqn.2026-01.example.yagura:{name}").parse().expect("a name")
}

fn keys(both: bool) -> HostKeys {
    let key = || Arc::new(DhchapKey::generate(Some(Hash::Sha256), None).expect("random bytes"));
    HostKeys { host: key(), controller: both.then(key) }
}

fn concatenating(keys: &HostKeys) -> HostConfig {
    HostConfig { keys: Some(keys.clone()), concatenation: true, ..HostConfig::default() }
}

/// A target with one subsystem, which knows `host` so.
fn target(tls: TlsPolicy, config: HostConfig, authentication: Policy) -> Target {
    let target = Target::new(TargetConfig { authentication, ..TargetConfig::default() });
    target.add_subsystem(nqn("sub"), "1").expect("new");
    let memory = Memory::new(64 * BLOCK as u64, BLOCK as u32, [9; 16]).expect("a size that it takes");
    target.add_namespace(&nqn("sub"), 1, memory).expect("new");
    target.add_port(PortConfig { tls, ..PortConfig::new(PORT) }).expect("new");
    target.allow_host(&nqn("sub"), &nqn("host"), config).expect("room");
    target
}

/// Serves `target` while `body` runs with the options to reach it by `keys`.
fn serving<F: Future<Output = ()>>(target: &Target, keys: &HostKeys, body: impl FnOnce(Options) -> F) {
    let all = async {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let mut options = Options::new(listener.local_addr(), nqn("sub"), 1);
        options.host.nqn = nqn("host");
        options.security.dhchap = Some(keys.clone());
        options.security.concatenation = true;
        let target = target.clone();
        let served = task::spawn(async move { target.serve_port(PORT, listener, vec![]).await });
        body(options).await;
        drop(served);
    };
    let bounded = async { time::timeout(Duration::from_secs(60), all).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

async fn refusal(options: Options) -> ConnectError {
    match RemoteNamespace::connect(options).await {
        Ok(_) => panic!("let in"),
        Err(error) => error,
    }
}

async fn works(remote: &RemoteNamespace) {
    let data = Buf::copy_from(&[0x5A; BLOCK]).freeze();
    remote.write(Lba(3), data, Durability::Stable).await.expect("written");
    let (result, read) = remote.read(Lba(3), Buf::with_len(BLOCK)).await;
    assert_eq!((result, &read[..]), (Ok(()), &[0x5A; BLOCK][..]));
}

#[test]
fn authentication_makes_the_key_for_an_association_over_tls() {
    for (tls, hash, both) in [
        (TlsPolicy::Required, Hash::Sha256, false),
        (TlsPolicy::Required, Hash::Sha384, true),
        (TlsPolicy::Allowed, Hash::Sha256, true),
    ] {
        let keys = keys(both);
        let policy = Policy::new(vec![hash], vec![Group::Ffdhe2048]).expect("not empty");
        let target = target(tls, concatenating(&keys), policy);
        serving(&target, &keys, |mut options| async move {
            options.queues = 3;
            let remote = RemoteNamespace::connect(options).await.expect("connected");
            assert_eq!(remote.queues(), 3);
            works(&remote).await;
            remote.disconnect().await;
        });
        let stats = target.stats();
        // One authentication, on the plain queue; the four queues over TLS show that they have the key it made.
        assert_eq!((stats.authenticated(), stats.tls_connections(), stats.tls_failures()), (1, 4, 0), "{tls} {hash:?}");
    }
}

#[test]
fn a_plain_queue_is_good_for_the_authentication_and_nothing_else() {
    let keys = keys(false);
    let target = target(TlsPolicy::Required, concatenating(&keys), Policy::default());
    serving(&target, &keys, |options| async move {
        let plain = |options: &Options| {
            let mut options = options.clone();
            options.security.concatenation = false;
            options
        };
        // It says so, and a host that goes on all the same is told that its authentication was of the wrong kind.
        let error = refusal(plain(&options)).await;
        let demanded = matches!(&error, ConnectError::Authentication { error: AuthError::SecureChannelRequired, .. });
        assert!(demanded && error.to_string().contains("--concat"), "{error}");
        // Others do not get that far.
        let mut stranger = plain(&options);
        stranger.host.nqn = nqn("stranger");
        let ConnectError::Refused { status, .. } = refusal(stranger).await else { panic!("not refused") };
        assert_eq!(status.kind(), Status::CONNECT_INVALID_HOST);
        let mut wrong = options.clone();
        wrong.security.dhchap = Some(self::keys(false));
        let error = refusal(wrong).await;
        let told = matches!(&error, ConnectError::Authentication { error: AuthError::Refused(Failure::FAILED), .. });
        assert!(told, "{error}");
        let remote = RemoteNamespace::connect(options).await.expect("the right one is let in");
        works(&remote).await;
    });
}

#[test]
fn where_there_is_no_tls_there_is_nothing_to_concatenate() {
    let keys = keys(false);
    let target = target(TlsPolicy::Off, concatenating(&keys), Policy::default());
    serving(&target, &keys, |options| async move {
        let error = refusal(options).await;
        let mismatch = AuthError::Refused(Failure::CONCATENATION_MISMATCH);
        assert!(matches!(&error, ConnectError::Authentication { error, .. } if *error == mismatch), "{error}");
    });
}

#[test]
fn a_host_without_leave_to_concatenate_gets_no_plain_queue_at_a_port_that_requires_tls() {
    let keys = keys(false);
    let config = HostConfig { keys: Some(keys.clone()), ..HostConfig::default() };
    let target = target(TlsPolicy::Required, config, Policy::default());
    let other = concatenating(&keys);
    serving(&target, &keys, |options| async move {
        assert!(matches!(refusal(options).await, ConnectError::Link { .. }), "not even an answer");
    });
    // Now that another host has leave, the port listens to plain connections, and refuses this one by name.
    target.allow_host(&nqn("sub"), &nqn("other"), other).expect("room");
    serving(&target, &keys, |options| async move {
        let ConnectError::Refused { status, .. } = refusal(options).await else { panic!("not refused") };
        assert_eq!(status.kind(), Status::CONNECT_INVALID_HOST);
    });
}

#[test]
fn each_association_has_its_own_key_and_a_reset_makes_a_new_one() {
    let keys = keys(true);
    let target = target(TlsPolicy::Required, concatenating(&keys), Policy::default());
    serving(&target, &keys, |options| {
        let (target, keys) = (target.clone(), keys.clone());
        async move {
            let one = RemoteNamespace::connect(options.clone()).await.expect("connected");
            let two = RemoteNamespace::connect(options).await.expect("connected");
            works(&one).await;
            works(&two).await;
            // New keys for the host end what the old ones have begun; what comes back has to make a new one, and can't.
            let epoch = one.epoch();
            target.allow_host(&nqn("sub"), &nqn("host"), concatenating(&self::keys(true))).expect("room");
            while one.is_connected() || two.is_connected() {
                time::sleep(Duration::from_millis(5)).await;
            }
            target.allow_host(&nqn("sub"), &nqn("host"), concatenating(&keys)).expect("room");
            one.connected().await;
            assert!(one.epoch() > epoch);
            works(&one).await;
        }
    });
    assert!(target.stats().authenticated() >= 3);
}

#[test]
fn the_discovery_service_is_asked_over_a_channel_of_its_own() {
    let keys = keys(true);
    let target = target(TlsPolicy::Required, concatenating(&keys), Policy::default());
    serving(&target, &keys, |options| async move {
        let mut asking = Options { subsystem: Nqn::discovery(), ..options.clone() };
        let discovery = Discovery::connect(&asking).await.expect("connected");
        let log = discovery.log().await.expect("the log");
        assert!(log.entries.iter().any(|entry| entry.subsystem == nqn("sub") && entry.secure_channel_required));
        asking.security.concatenation = false;
        let error = Discovery::connect(&asking).await.err().expect("refused");
        assert!(matches!(error, ConnectError::Authentication { .. }), "{error}");
    });
}
