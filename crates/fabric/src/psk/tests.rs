//! Keys of NVMe/TCP in handshakes, over loopback sockets.

use std::sync::Arc;
use std::time::Duration;

use engine::net::{TcpListener, TcpStream};
use engine::{Buf, Reactor, ReactorConfig, task, time};
use nvme::Nqn;
use tls::{Secret, ServerContext, TlsError, TlsStream};

use super::*;
use crate::log;

const PATIENCE: Duration = Duration::from_secs(20);

fn nqn(name: &str) -> Nqn {
    format!("nqn.2026-01.org.example:{name}").parse().expect("a name")
}

fn random(transform: Option<PskHash>, hash: PskHash) -> ConfiguredPsk {
    ConfiguredPsk::random(transform, hash).expect("random")
}

fn psk(key: &ConfiguredPsk, version: IdentityVersion) -> TlsPsk {
    let retained = key.clone().retain(&nqn("host"), Derivation::Standard).expect("retained");
    retained.tls_psk(version, &nqn("sub")).expect("derived")
}

fn generated(byte: u8) -> TlsPsk {
    TlsPsk::generated(&nqn("host"), &nqn("sub"), "ZGlnZXN0", &Secret::new(vec![byte; 48])).expect("the right length")
}

fn ring_with(key: &ConfiguredPsk) -> Arc<Keyring> {
    let keyring = Arc::new(Keyring::default());
    keyring.add(key.clone().retain_all(&nqn("host"), false).expect("retained"), None).expect("room");
    keyring
}

fn on_reactor(body: impl Future<Output = ()>) {
    let bounded = async { time::timeout(PATIENCE, body).await.expect("ends in time") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

/// What a host that offers `psk` and a target with these keys have shown each other.
async fn handshake(psk: &TlsPsk, keyring: &Arc<Keyring>) -> [Result<Option<TlsPsk>, TlsError>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let context = ServerContext::new(keyring.clone()).expect("OpenSSL");
    let shown = |stream: TlsStream| stream.psk().and_then(TlsPsk::shown);
    let (address, offered) = (listener.local_addr(), psk.psk().clone());
    let host = task::spawn(async move {
        let stream = TlsStream::connect(TcpStream::connect(address).await.expect("connected"), offered).await?;
        // TLS 1.3 has the host done before the target has looked at its key: the end of the connection says that it has.
        let (result, _) = stream.recv(Buf::with_capacity(1)).await;
        assert!(!matches!(result, Ok(1..)), "{result:?}");
        Ok(shown(stream))
    });
    let (accepted, _) = listener.accept().await.expect("accepted");
    let target = TlsStream::accept(accepted, &context, Buf::default()).await.map(|stream| {
        stream.shutdown();
        shown(stream)
    });
    [host.await, target]
}

#[test]
fn every_key_and_identity_makes_a_connection() {
    on_reactor(async {
        for (transform, hash) in [
            (None, PskHash::Sha256),
            (None, PskHash::Sha384),
            (Some(PskHash::Sha256), PskHash::Sha256),
            (Some(PskHash::Sha384), PskHash::Sha384),
        ] {
            for version in [IdentityVersion::Zero, IdentityVersion::One] {
                let key = random(transform, hash);
                let offered = psk(&key, version);
                for shown in handshake(&offered, &ring_with(&key)).await {
                    let shown = shown.expect("let in").expect("an identity of NVMe/TCP");
                    assert_eq!(shown, offered);
                    let Identity { version: as_version, hash: as_hash, host, subsystem, .. } = shown.identity().clone();
                    assert_eq!((as_version, as_hash, host, subsystem), (version, hash, nqn("host"), nqn("sub")));
                }
            }
        }
    });
}

#[test]
fn a_generated_key_makes_a_connection() {
    on_reactor(async {
        let keyring = Arc::new(Keyring::default());
        keyring.add_generated(generated(9), time::now());
        for shown in handshake(&generated(9), &keyring).await {
            assert_eq!(shown, Ok(Some(generated(9))));
        }
    });
}

#[test]
fn a_key_that_is_shown_has_an_identity_of_nvme() {
    let made = |identity: &str| Arc::new(tls::Psk::new(identity.into(), tls::Suite::ALL[0], Secret::new(vec![7; 48])));
    assert_eq!(TlsPsk::shown(generated(9).psk()), Some(generated(9)));
    assert_eq!(TlsPsk::shown(&made("somebody")), None);
}

#[test]
fn no_key_is_ever_logged() {
    for transform in [None, Some(PskHash::Sha384)] {
        let (ours, theirs) = (random(transform, PskHash::Sha384), random(transform, PskHash::Sha384));
        let log = log::of(|| {
            on_reactor(async {
                let keyring = ring_with(&ours);
                keyring.add_generated(generated(0x9D), time::now());
                for (key, version) in
                    [(&ours, IdentityVersion::Zero), (&ours, IdentityVersion::One), (&theirs, IdentityVersion::Zero)]
                {
                    let outcome = handshake(&psk(key, version), &keyring).await;
                    tracing::error!(?outcome, ?key, psk = ?psk(key, version), ?keyring);
                    let retained = key.clone().retain(&nqn("host"), Derivation::Standard).expect("retained");
                    tracing::error!(key = ?TlsKey::Retained { key: retained, version });
                }
                let outcome = handshake(&generated(0x9D), &keyring).await;
                tracing::error!(?outcome, key = ?TlsKey::Generated(Arc::new(generated(0x9D))));
            });
        });
        assert!(log.contains("WrongKey") && log.contains("Generated"), "the log tells of keys by their names: {log}");
        log::assert_without(&log, generated(0x9D).key().expose());
        for key in [&ours, &theirs] {
            let text = key.to_interchange();
            let base64 = text.expose().split(|&byte| byte == b':').nth(2).expect("the key");
            let configured = openssl::base64::decode_block(str::from_utf8(base64).expect("text")).expect("Base64");
            log::assert_without(&log, &configured);
            for version in [IdentityVersion::Zero, IdentityVersion::One] {
                log::assert_without(&log, psk(key, version).key().expose());
            }
        }
    }
}
