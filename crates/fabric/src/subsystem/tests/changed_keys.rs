//! Keys that are changed while a host authenticates by them.

use nvme::Status;
use nvme::auth::Failure;

use super::super::end::End;
use super::super::raw_host::{host, subsystem};
use super::RawHost;
use super::authentication::{
    concatenating, connect, host_side, io_queue, keys, run_login, session, side_for_a_channel,
};
use crate::auth::{HostKeys, HostSide, Step};

/// Whoever had the old key, and had begun a transaction before it was changed, was let in by it when it was over; with a secure
/// channel he had a key for TLS besides, by which he could connect anew for as long as he stayed.
#[test]
fn a_transaction_that_was_begun_by_a_key_is_worth_nothing_after_its_change() {
    let failed = Some(&End::AuthenticationFailed(Failure::FAILED));
    for both in [false, true] {
        let (old, new) = (keys(both), keys(both));
        let change = |session: &RawHost, keys: &HostKeys| {
            session.target.set_host_keys(&subsystem(), &host(), keys.clone()).expect("it is on the list");
        };
        // Of an admin queue and of an I/O queue, whose controller goes on.
        for mut session in [session(&old), io_queue(&old)] {
            if session.admin.is_none() {
                connect(&mut session, 0);
            }
            let mut side = host_side(&old);
            challenge(&mut session, &mut side);
            change(&session, &new);
            assert_eq!(run_login(&mut session, side), Ok(()), "the host can't tell yet");
            assert_eq!((session.core.ended(), session.target.stats().authentications_failed()), (failed, 1));
            assert!(session.core.controller.as_ref().is_some_and(|own| own.is_let_in() == session.admin.is_some()));
        }
        let mut session = concatenating(&old);
        connect(&mut session, 0);
        let mut side = side_for_a_channel(&old);
        challenge(&mut session, &mut side);
        change(&session, &new);
        assert_eq!(run_login(&mut session, side), Ok(()));
        assert_eq!(session.core.ended(), failed);
        assert!(!session.target.shared.secure.keyring().has_key(&host(), &subsystem()), "a key for TLS was made");
        // A change back is none.
        let mut session = self::session(&old);
        connect(&mut session, 0);
        let mut side = host_side(&old);
        challenge(&mut session, &mut side);
        change(&session, &new);
        change(&session, &old);
        assert_eq!((run_login(&mut session, side), session.core.ended()), (Ok(()), None));
    }
}

/// Begins a transaction, up to the challenge.
fn challenge(session: &mut RawHost, side: &mut HostSide) {
    let Step::Send(message) = side.step() else { panic!("the host begins") };
    assert_eq!(session.send_authentication(&message).expect("answered").status(), Status::SUCCESS);
    assert_eq!(side.step(), Step::Receive);
    side.received(&session.receive_authentication(4096).expect("the challenge").1);
}
