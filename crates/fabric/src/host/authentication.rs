//! In-band authentication of a queue that was just connected (NVMe Base 2.0 §8.13).

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use engine::offload;
use nvme::auth::{Concatenation, required};

use super::admin::Admin;
use super::error::ConnectError;
use super::options::Options;
use crate::auth::{AuthError, GeneratedPsk, HostSide, Names, Policy, Step};
use crate::psk::TlsKey;

/// Does what the controller asks for in its Connect completion: `asked` is AUTHREQ. With `concatenation` it authenticates in
/// any case; returns the key for TLS that this makes.
///
/// # Errors
/// It asks for what there is no key for, or does not offer what is demanded of it; either end finds fault with the other.
pub(super) async fn authenticate(
    admin: &Admin<'_>,
    options: &Options,
    asked: u16,
    concatenation: Concatenation,
) -> Result<Option<GeneratedPsk>, ConnectError> {
    let failed = |error| ConnectError::Authentication { address: options.address, error };
    let plain = concatenation == Concatenation::NONE;
    if asked & required::SECURE_CHANNEL != 0 && plain {
        return Err(failed(AuthError::SecureChannelRequired));
    }
    let keys = options.security.dhchap.as_ref();
    if asked & required::AUTHENTICATION == 0 && plain {
        // Going on without would hand the data to anybody who answers at the address. Who has the key for TLS that a first
        // authentication has made has shown what it was to show.
        let shown = matches!(options.security.tls, Some(TlsKey::Generated(_))) || options.subsystem.is_discovery();
        let demanded = keys.is_some_and(|keys| keys.controller.is_some()) && !shown;
        return if demanded { Err(failed(AuthError::NotOffered)) } else { Ok(None) };
    }
    let keys = keys.ok_or(failed(AuthError::NoKey))?;
    let names = Names { host: options.host.nqn.clone(), subsystem: options.subsystem.clone() };
    let mut side = HostSide::new(names, keys.clone(), Policy::default(), next_transaction(), concatenation);
    let mut told = Ok(());
    loop {
        match side.step() {
            // What a controller answers to our telling it of its fault does not matter any more.
            Step::Send(message) => told = admin.authentication_send(&message).await,
            Step::Receive => {
                told?;
                let message = admin.authentication_receive().await?;
                // Both our value and the shared one are computed here, which other connections must not wait for.
                let received = move || {
                    side.received(&message);
                    side
                };
                let lost = ConnectError::NoAnswer { step: "authentication", ended: "it could not be computed" };
                side = offload::compute(received).await.map_err(|_| lost)?;
                told = Ok(());
            }
            Step::Done(psk) => return told.map(|()| psk),
            Step::Failed(error) => return Err(failed(error)),
        }
    }
}

/// The number of a transaction: another one for each, so that those of several queues are told apart.
fn next_transaction() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Relaxed)
}
