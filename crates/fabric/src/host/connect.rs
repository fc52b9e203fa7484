//! Making one queue: the connection, ICReq, and the Connect command. What secures a queue has its place between these steps.
//!
//! With secure channel concatenation (NVMe Base 2.0c §8.13.5.9, NVMe/TCP 1.0c §3.6.1.4) the first admin queue is plain and
//! serves to authenticate, which makes a key. That queue is given up, and all queues of the association are made anew over
//! TLS with this key.

use std::sync::Arc;
use std::time::Duration;

use nvme::auth::Concatenation;

use super::admin::{Admin, ConnectQueue};
use super::authentication::authenticate;
use super::error::ConnectError;
use super::link::Link;
use super::options::{Options, Security};
use super::queue::QueueConfig;
use crate::auth::{AuthError, Names};
use crate::psk::TlsKey;

/// Connects a queue of `options`' subsystem; returns it and its controller's identifier. Commands on it may take `patience`.
pub(super) async fn connect_queue(
    options: &Options,
    config: QueueConfig,
    queue: &ConnectQueue,
    patience: Duration,
) -> Result<(Link, u16), ConnectError> {
    let link = open(options, config, patience).await?;
    let controller = enter(&link, options, queue).await?;
    Ok((link, controller))
}

/// The options with which the queues of an association are made: where authentication is to make the key for TLS, with that
/// key. `queue` is the association's admin queue.
pub(super) async fn secured(
    options: &Options,
    config: QueueConfig,
    queue: &ConnectQueue,
    patience: Duration,
) -> Result<Options, ConnectError> {
    if !options.security.concatenation {
        return Ok(options.clone());
    }
    let plain = open(options, config, patience).await?;
    let admin = Admin { link: &plain, address: options.address };
    let (_, asked) = admin.connect(options, queue).await?;
    let psk = authenticate(&admin, options, asked, Concatenation::NEW_TLS_PSK).await?;
    // The queue was for that and goes: at a port that requires TLS it would be of no other use.
    drop(plain);
    let failed = |error| ConnectError::Authentication { address: options.address, error };
    let names = Names { host: options.host.nqn.clone(), subsystem: options.subsystem.clone() };
    let psk = psk.ok_or(failed(AuthError::NotOffered))?.tls_psk(&names)?;
    let security =
        Security { tls: Some(TlsKey::Generated(Arc::new(psk))), concatenation: false, ..options.security.clone() };
    Ok(Options { security, ..options.clone() })
}

/// The connection, TLS where that is asked for, and ICReq.
pub(super) async fn open(options: &Options, config: QueueConfig, patience: Duration) -> Result<Link, ConnectError> {
    let address = options.address;
    let psk = options.security.tls.as_ref().map(|key| key.psk(&options.subsystem)).transpose()?;
    let link = Link::connect(address, psk, config, options.connect_timeout, patience).await;
    link.map_err(|error| ConnectError::Link { address, error })
}

/// The Connect command, and authentication where the controller asks for it; returns the controller's identifier.
pub(super) async fn enter(link: &Link, options: &Options, queue: &ConnectQueue) -> Result<u16, ConnectError> {
    let admin = Admin { link, address: options.address };
    let (controller, asked) = admin.connect(options, queue).await?;
    authenticate(&admin, options, asked, Concatenation::NONE).await?;
    Ok(controller)
}
