//! Making one queue: the connection, ICReq, and the Connect command. What secures a queue has its place between these steps.

use std::time::Duration;

use super::admin::{Admin, ConnectQueue};
use super::authentication::authenticate;
use super::error::ConnectError;
use super::link::Link;
use super::options::Options;
use super::queue::QueueConfig;

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
    authenticate(&admin, options, asked).await?;
    Ok(controller)
}
