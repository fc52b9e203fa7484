//! Secure connections: what a port demands, and that nobody says in Connect who they did not show in TLS to be
//! (NVMe/TCP 1.0c §3.6.1).
//!
//! Invariants:
//! - At a port that requires TLS no byte of a plain connection gets as far as the connection core, unless some host may make
//!   its key by authentication. Such a host gets an admin queue, and on that nothing but the authentication.
//! - A connection's Connect command names the host and the subsystem of the key that the connection was made with. A key that
//!   is good for one host or subsystem would be good for all otherwise.
//! - An I/O queue is as secure as the admin queue of its controller.
//! - A key that authentication has made is forgotten when its host does not come back in time, and when the association that
//!   was made with it has ended.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use engine::Buf;
use engine::net::TcpStream;
use engine::time::{self, Instant};
use nvme::Nqn;
use tls::{ServerContext, TlsError, TlsStream, Transport};

use super::config::{ConfigError, PortId};
use super::connection::Connection;
use super::shared::{Refused, Shared};
use crate::auth::ConcatenationPolicy;
use crate::psk::{Hold, Keyring, Origin, RetainedPsk, TlsPsk, mend};

/// What the first byte of a TLS connection is (RFC 8446 §5.1: a handshake record). A plain one begins with the type of
/// ICReq, 00h (NVMe/TCP 1.0c §3.6.2.2).
const TLS_HANDSHAKE: u8 = 0x16;
/// What is received to tell which of the two it is. Chosen: a ClientHello or an ICReq and the capsule behind it.
const FIRST_BYTES: usize = 4 << 10;

/// What the operator is told where a Connect is refused for want of a secure channel.
pub(super) const REFUSED: &str = "Connect refused";

/// What a port demands of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlsPolicy {
    /// Plain connections only.
    #[default]
    Off,
    /// Either; hosts may be told to use TLS one by one.
    Allowed,
    /// TLS only.
    Required,
}

impl std::fmt::Display for TlsPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TlsPolicy::Off => "off",
            TlsPolicy::Allowed => "allowed",
            TlsPolicy::Required => "required",
        })
    }
}

impl std::str::FromStr for TlsPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<TlsPolicy, String> {
        let all = [TlsPolicy::Off, TlsPolicy::Allowed, TlsPolicy::Required];
        let found = all.into_iter().find(|policy| policy.to_string() == text);
        found.ok_or_else(|| format!("`{text}`: TLS at a port is off, allowed or required"))
    }
}

/// Keys, and OpenSSL, which is set up when the first port wants it.
#[derive(Default)]
pub(super) struct Secure {
    keyring: Arc<Keyring>,
    context: OnceLock<ServerContext>,
}

impl Secure {
    /// Gives a host other keys for a subsystem, beside those that authentication has made or makes meanwhile. Connections that were
    /// made with the old ones go on, if access lets them.
    pub fn replace(&self, host: &Nqn, subsystem: &Nqn, keys: Vec<RetainedPsk>) -> Result<(), ConfigError> {
        self.keyring.remove(host, subsystem);
        self.keyring.add(keys, Some(subsystem)).map_err(|error| ConfigError::Tls(error.to_string()))
    }

    /// Whether a key that TLS was begun with is still one.
    pub fn knows(&self, psk: &TlsPsk) -> bool {
        self.keyring.knows(psk)
    }

    #[cfg(test)]
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// Keeps a key that authentication has made, for the host to come back with.
    pub fn keep_generated(&self, psk: TlsPsk, now: Instant) {
        self.keyring.add_generated(psk, now);
    }

    /// Forgets every key of a host for a subsystem that authentication has made, and those by which no association begins any more.
    pub fn forget_generated(&self, host: &Nqn, subsystem: &Nqn) {
        self.keyring.remove_generated(host, subsystem, true);
    }

    /// The same, but that associations go on, with their keys.
    pub fn forget_unused(&self, host: &Nqn, subsystem: &Nqn) {
        self.keyring.remove_generated(host, subsystem, false);
    }

    pub fn context(&self) -> Result<&ServerContext, TlsError> {
        if let Some(context) = self.context.get() {
            return Ok(context);
        }
        let context = ServerContext::new(self.keyring.clone())?;
        Ok(self.context.get_or_init(|| context))
    }
}

/// A connection that begins.
pub(super) struct Begun {
    pub stream: Transport,
    /// The key that it was made with, if it is secure.
    pub psk: Option<Arc<TlsPsk>>,
    /// What was received already.
    pub first: Buf,
}

/// Makes of a connection that was accepted what its port demands. `None`: it is over, and that was said and counted.
pub(super) async fn accept(shared: &Shared, stream: TcpStream, port: PortId, by: Instant) -> Option<Begun> {
    let policy = shared.tls_policy(port);
    if policy == TlsPolicy::Off {
        return Some(Begun { stream: Transport::Plain(stream), psk: None, first: Buf::default() });
    }
    let peer = stream.peer_addr();
    let accepted = match shared.secure.context() {
        Ok(context) => {
            let accepted = begin(stream, context, &shared.secure.keyring);
            time::timeout(by.duration_since(time::now()), accepted).await.unwrap_or(Err(TlsError::Timeout))
        }
        Err(error) => Err(error),
    };
    let stats = &shared.stats;
    match accepted {
        Ok(Some(begun)) if begun.psk.is_some() => {
            stats.tls_connections.fetch_add(1, Relaxed);
            Some(begun)
        }
        Ok(Some(begun)) if policy == TlsPolicy::Allowed || shared.any_may_concatenate() => Some(begun),
        Ok(Some(Begun { stream, .. })) => {
            stats.tls_failures.fetch_add(1, Relaxed);
            let reason = format!("it is plain, and port {port} requires TLS");
            shared.complaints.tell(time::now(), &peer, "connection closed", &reason);
            stream.shutdown();
            None
        }
        Ok(None) => None,
        Err(error) => {
            stats.tls_failures.fetch_add(1, Relaxed);
            let reason = format!("{error}{}", mend(&error));
            shared.complaints.tell(time::now(), &peer, "connection closed", &reason);
            None
        }
    }
}

/// Tells from a connection's first byte what it is, and makes the TLS handshake if it is that, with a key of `keyring`, which
/// `server` has. The caller bounds the time. `None`: the peer has closed it without a word.
async fn begin(stream: TcpStream, server: &ServerContext, keyring: &Keyring) -> Result<Option<Begun>, TlsError> {
    let (result, first) = stream.recv(Buf::with_capacity(FIRST_BYTES)).await;
    match result {
        Ok(0) => Ok(None),
        Ok(_) if first[0] == TLS_HANDSHAKE => {
            keyring.expire(time::now());
            let stream = TlsStream::accept(stream, server, first).await?;
            let psk = stream.psk().and_then(TlsPsk::shown).ok_or(TlsError::KeyNotTaken)?;
            Ok(Some(Begun { stream: Transport::Tls(stream), psk: Some(Arc::new(psk)), first: Buf::default() }))
        }
        Ok(_) => Ok(Some(Begun { stream: Transport::Plain(stream), psk: None, first })),
        Err(error) => Err(TlsError::Socket(error.to_string())),
    }
}

impl Shared {
    /// Whether some host may come in plain, to make its key by authentication.
    fn any_may_concatenate(&self) -> bool {
        self.lock().subsystems.values().any(|subsystem| subsystem.access.any_concatenation())
    }
}

impl Connection {
    /// Whether TLS was begun with a key that authentication has made: its host has authenticated itself by that.
    pub(super) fn is_concatenated(&self) -> bool {
        self.origin.psk.as_ref().is_some_and(|psk| psk.identity().origin == Origin::Generated)
    }

    /// An association that is made with a generated key keeps it. Called when its controller is listed: whoever takes the
    /// key away ends the controllers there are afterwards.
    ///
    /// # Errors
    /// The key was taken away since the handshake.
    pub(super) fn hold_generated(&self) -> Result<Option<Hold>, Refused> {
        let Some(psk) = self.origin.psk.as_ref().filter(|_| self.is_concatenated()) else { return Ok(None) };
        self.shared.secure.keyring.hold(psk.identity()).map(Some).ok_or(Refused::Host)
    }

    /// Whether authentication may, or must, make a key for a secure channel (NVMe Base 2.0c §8.13.5.9): on an admin queue
    /// that is plain, where the host can come back over TLS.
    pub(super) fn concatenation(&self) -> ConcatenationPolicy {
        let plain = self.queue.qid == 0 && self.origin.psk.is_none();
        match plain && self.shared.tls_policy(self.origin.port) != TlsPolicy::Off {
            true if self.concatenation_required => ConcatenationPolicy::Required,
            true => ConcatenationPolicy::Allowed,
            false => ConcatenationPolicy::Refused,
        }
    }

    /// Whether Connect says of the host and the subsystem what TLS has shown.
    pub(super) fn check_secure(&self, host: &Nqn, subsystem: &Nqn, now: Instant) -> Result<(), Refused> {
        let Some(psk) = &self.origin.psk else { return Ok(()) };
        let shown = psk.identity();
        if shown.host != *host {
            let reason = format!("TLS has shown another host, {}", shown.host);
            self.shared.complaints.tell(now, host, REFUSED, &reason);
            return Err(Refused::Host);
        }
        if shown.subsystem != *subsystem {
            let reason = format!("its TLS key is for {}, not for {subsystem}", shown.subsystem);
            self.shared.complaints.tell(now, host, REFUSED, &reason);
            return Err(Refused::Subsystem);
        }
        Ok(())
    }
}
