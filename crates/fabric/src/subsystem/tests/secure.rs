//! Keys that authentication makes for a secure channel (NVMe Base 2.0c §8.13.5.9), on the target's side.

use std::sync::Arc;

use nvme::auth::{Concatenation, Failure};

use super::*;
use crate::auth::{AuthError, DhchapKey, GeneratedPsk, Group, Hash, HostKeys, HostSide, Names, Policy, Step};
use crate::log;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{HostConfig, PortConfig, PortId, RawHost, TlsPolicy};

fn host() -> nvme::Nqn {
    "nqn.2026-01.example.yagura:host".parse().expect("a name")
}

/// An admin queue at a port that allows TLS, or does not, whose host asks for a secure channel.
fn concatenate(tls: TlsPolicy) -> (RawHost, Result<Option<GeneratedPsk>, AuthError>) {
    let first = RawHost::new(memory());
    let key = Arc::new(DhchapKey::generate(Some(Hash::Sha256), None).expect("random bytes"));
    let keys = HostKeys { host: key, controller: None };
    let config = HostConfig { keys: Some(keys.clone()), ..HostConfig::default() };
    first.target.allow_host(&subsystem(), &host(), config).expect("room");
    first.target.add_port(PortConfig { tls, ..PortConfig::new(PortId(2)) }).expect("room");
    let mut session = RawHost::at(&first.target, PortId(2));
    session.open(false, false);
    let connected = session.connect(0, &subsystem(), |_, _| {}).expect("answered");
    assert!(connected.status().is_success());
    let names = Names { host: host(), subsystem: subsystem() };
    let suite = Policy::new(vec![Hash::Sha384], vec![Group::Ffdhe2048]).expect("not empty");
    let mut side = HostSide::new(names, keys, suite, 7, Concatenation::NEW_TLS_PSK);
    let outcome = loop {
        match side.step() {
            Step::Send(message) => {
                session.send_authentication(&message).expect("answered");
            }
            Step::Receive => {
                let answer = session.receive_authentication(4096).or_else(|| {
                    session.advance(std::time::Duration::from_secs(2));
                    session.take_answer(0xC003)
                });
                side.received(&answer.expect("answered").1);
            }
            Step::Done(psk) => break Ok(psk),
            Step::Failed(error) => break Err(error),
        }
    };
    (session, outcome)
}

#[test]
fn a_key_that_authentication_made_begins_tls() {
    let (session, outcome) = concatenate(TlsPolicy::Allowed);
    let psk = outcome.expect("authenticated").expect("a key was asked for");
    let names = Names { host: host(), subsystem: subsystem() };
    let ours = psk.tls_psk(&names).expect("derived");
    assert!(ours.identity().to_string().starts_with("NVMe1G02 nqn.2026-01.example.yagura:host nqn."));
    let kept = session.target.shared.secure.keyring().find(ours.identity().to_string().as_bytes());
    assert!(*kept.expect("kept") == ours, "the target has derived another key");
}

#[test]
fn no_key_that_authentication_made_is_ever_logged() {
    let mut made = None;
    let log = log::of(|| {
        let (session, outcome) = concatenate(TlsPolicy::Allowed);
        let psk = outcome.expect("authenticated").expect("a key was asked for");
        let names = Names { host: host(), subsystem: subsystem() };
        let ours = psk.tls_psk(&names).expect("derived");
        tracing::error!(?psk, ?ours, keyring = ?session.target.shared.secure.keyring());
        made = Some(psk.key);
    });
    assert!(log.contains("the host has authenticated itself") && log.contains("Generated"), "{log}");
    log::assert_without(&log, made.expect("made").expose());
}

#[test]
fn a_port_without_tls_makes_no_key_for_it() {
    let (session, outcome) = concatenate(TlsPolicy::Off);
    assert!(matches!(outcome, Err(AuthError::Refused(Failure::CONCATENATION_MISMATCH))), "{outcome:?}");
    assert!(!session.target.shared.secure.keyring().has_key(&host(), &subsystem()));
}
