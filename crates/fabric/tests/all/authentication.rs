//! Our host and our target authenticate to each other over real sockets (NVMe Base 2.0 §8.13).

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use device::{Durability, Lba, Memory, Namespace};
use engine::net::TcpListener;
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::auth::{AuthError, DhchapKey, Group, Hash, HostKeys, Policy};
use fabric::host::{ConnectError, Options, RemoteNamespace};
use fabric::subsystem::{HostConfig, Target, TargetConfig};
use nvme::Nqn;
use nvme::auth::Failure;

use crate::log;

const BLOCK: usize = 4096;

fn nqn() -> Nqn {
    "nqn.2026-01.example.yagura:secret".parse().expect("an NQN")
}

fn host() -> Nqn {
    "nqn.2026-01.example.yagura:host".parse().expect("an NQN")
}

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

fn keys(both: bool) -> HostKeys {
    let key = || Arc::new(DhchapKey::generate(Some(Hash::Sha256), None).expect("random bytes"));
    HostKeys { host: key(), controller: both.then(key) }
}

/// A target that knows the host by `keys`, if any.
fn target(config: TargetConfig, keys: Option<HostKeys>) -> Target {
    let target = Target::new(config);
    let memory = Memory::new(64 * BLOCK as u64, BLOCK as u32, [9; 16]).expect("a size that it takes");
    target.add_subsystem(nqn(), "1").expect("a subsystem");
    target.add_namespace(&nqn(), 1, memory).expect("a namespace");
    target.allow_host(&nqn(), &host(), HostConfig { keys, ..HostConfig::default() }).expect("room");
    target
}

/// Connects to `target` with `keys`, and writes and reads a block if that succeeds.
async fn exchange(target: &Target, keys: Option<HostKeys>) -> Result<(), ConnectError> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let address = listener.local_addr();
    let served = target.clone();
    let _serving = task::spawn(async move { served.serve(listener, Vec::new()).await });
    let mut options = Options::new(address, nqn(), 1);
    options.host.nqn = host();
    options.security.dhchap = keys;
    let remote = RemoteNamespace::connect(options).await?;
    let data = Buf::copy_from(&[0x5A; BLOCK]);
    remote.write(Lba(3), data.freeze(), Durability::Stable).await.expect("written");
    let (result, read) = remote.read(Lba(3), Buf::with_len(BLOCK)).await;
    assert_eq!((result, &read[..]), (Ok(()), &[0x5A; BLOCK][..]));
    remote.disconnect().await;
    Ok(())
}

fn refusal(result: Result<(), ConnectError>) -> AuthError {
    match result {
        Err(ConnectError::Authentication { error, .. }) => error,
        other => panic!("no failed authentication: {other:?}"),
    }
}

#[test]
fn both_queues_authenticate_with_every_hash_and_group() {
    for (hash, group) in Hash::ALL.into_iter().cycle().zip(Group::ALL) {
        for both in [false, true] {
            let keys = keys(both);
            let policy = Policy::new(vec![hash], vec![group]).expect("not empty");
            let target = target(TargetConfig { authentication: policy, ..TargetConfig::default() }, Some(keys.clone()));
            run(async { exchange(&target, Some(keys)).await }).expect("connected");
            assert_eq!(target.stats().authenticated(), 2, "{hash:?} {group:?}");
        }
    }
}

#[test]
fn a_host_says_why_it_could_not_connect() {
    let known = keys(true);
    let target = target(TargetConfig::default(), Some(known.clone()));
    let stranger = keys(true);
    run(async {
        assert_eq!(refusal(exchange(&target, None).await), AuthError::NoKey);
        let wrong_host = HostKeys { host: stranger.host.clone(), ..known.clone() };
        assert_eq!(refusal(exchange(&target, Some(wrong_host)).await), AuthError::Refused(Failure::FAILED));
        let wrong_controller = HostKeys { controller: stranger.controller.clone(), ..known.clone() };
        assert_eq!(refusal(exchange(&target, Some(wrong_controller)).await), AuthError::WrongController);
        exchange(&target, Some(known.clone())).await.expect("the target serves on");
    });
    assert_eq!(target.stats().authentications_failed(), 2);
}

/// Whoever takes the target's place and asks for nothing does not get the data of a host that wants to know whom it talks to.
#[test]
fn a_target_that_does_not_authenticate_is_refused_by_a_host_with_a_controller_key() {
    let open = target(TargetConfig::default(), None);
    run(async {
        assert_eq!(refusal(exchange(&open, Some(keys(true))).await), AuthError::NotOffered);
        exchange(&open, Some(keys(false))).await.expect("a host key alone demands nothing");
    });
}

#[test]
fn no_key_is_ever_logged() {
    let (known, stranger) = (keys(true), keys(true));
    let log = log::of(|| {
        let target = target(TargetConfig::default(), Some(known.clone()));
        run(async {
            exchange(&target, Some(known.clone())).await.expect("connected");
            let failed = exchange(&target, Some(stranger.clone())).await.expect_err("the keys are others");
            let mut options = Options::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), nqn(), 1);
            options.security.dhchap = Some(known.clone());
            tracing::error!(%failed, ?failed, ?options);
            tracing::error!(keys = ?known, config = ?HostConfig { keys: Some(known.clone()), ..HostConfig::default() });
        });
    });
    assert!(log.contains("authenticat"), "the log tells of authentications: {log}");
    for key in [&known, &stranger].into_iter().flat_map(|keys| keys.controller.iter().chain([&keys.host])) {
        let text = key.text();
        let text = std::str::from_utf8(text.expose()).expect("text");
        let base64 = text.split(':').nth(2).expect("the key");
        // The first half of the text: none of its parts is in the log by another way of writing the rest.
        assert!(!log.contains(&base64[..16]) && !log.contains(&base64[16..32]), "a key was logged");
        let bytes = openssl::base64::decode_block(base64).expect("base64");
        log::assert_without(&log, &bytes[..32]);
    }
}
