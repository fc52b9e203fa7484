//! The NVMe/TCP target: subsystems of namespaces, served to any host that speaks the standard.
//!
//! ```text
//!   Target ── subsystems, namespaces, controllers (shared, behind a lock off the I/O path)
//!     │ serve: accept ─► here, or handed to another reactor
//!     ▼
//!   one task per connection: socket ◄─► connection core (no I/O) ◄─► command slots ─► device::Namespace
//! ```
//! A connection is one queue. The discovery subsystem is always there and names every subsystem at every address served.
//!
//! Invariants:
//! - A bad PDU, a slow host, an expired keep alive end that connection or association; no other notices.
//! - A command that was answered with success did take effect; a write with FUA, or with the cache switched off, is stable.
//! - After an association has ended none of its commands begins.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use device::{AnyNamespace, Namespace};
use engine::task::LocalFuture;
use nvme::{AnaState, Nqn};

mod abort;
mod access;
mod admin;
mod ana;
mod attached;
mod attachment;
mod attention;
mod authentication;
mod balance;
mod capsules;
mod commands;
mod complaints;
mod config;
mod connection;
mod controller;
mod drain;
mod driver;
mod end;
mod error_log;
mod events;
mod features;
mod figures;
mod guests;
mod identify;
mod io;
mod keep_alive;
mod limits;
mod logs;
mod manage;
mod newcomers;
mod ports;
mod queue;
#[cfg(any(test, feature = "testing"))]
mod raw_host;
mod report;
mod reservation;
mod rights;
mod room;
mod secure;
mod serve;
mod shared;
mod shutdown;
mod slots;
mod stats;
mod store;
mod terms;
mod transfers;
mod turn;
mod zns;

pub use ana::ANA_GROUP_DEFAULT;
#[cfg(any(test, feature = "testing"))]
pub(crate) use authentication::UNAUTHENTICATED_TIME_MAX;
pub use config::{ConfigError, HostConfig, PortConfig, PortId, Profile, TargetConfig};
pub use figures::TargetMetrics;
pub use limits::{
    ANA_GROUPS_MAX, CONNECTIONS_MAX, HOSTS_MAX, IN_CAPSULE_BYTES_MAX, IO_QUEUE_ENTRIES_MAX, IO_QUEUES_MAX, NSID_MAX,
    PORTS_MAX, REACTORS_MAX, SUBSYSTEMS_MAX, TRANSFER_BYTES_MAX,
};
pub use manage::{AdoptError, DeleteError};
#[cfg(any(test, feature = "testing"))]
pub(crate) use raw_host::{RawHost, subsystem as raw_subsystem};
pub use report::{AnaReport, ControllerReport, HostReport, NamespaceReport, PortReport, SubsystemReport, TargetReport};
pub use secure::TlsPolicy;
pub use serve::{Handed, listen};
use shared::Shared;
pub use stats::{CommandKind, Stats};
pub use store::{ATTACHMENT_ATTRIBUTE, CopyStore, NamespaceStore, NewCopy, NewNamespace, Room, StoreError};

/// A target. Clones are the same target; it may be served from several reactors, and changed from any thread.
#[derive(Clone)]
pub struct Target {
    shared: Arc<Shared>,
}

impl Default for Target {
    fn default() -> Target {
        Target::new(TargetConfig::default())
    }
}

impl Target {
    /// A target without subsystems.
    pub fn new(config: TargetConfig) -> Target {
        Target { shared: Arc::new(Shared::new(config)) }
    }

    /// Adds an empty subsystem, for any host and at every port. `serial`: 1 to 20 printable characters, stable over restarts.
    ///
    /// # Errors
    /// The name is taken or reserved, the serial number does not fit, or there are too many.
    pub fn add_subsystem(&self, nqn: Nqn, serial: &str) -> Result<(), ConfigError> {
        self.shared.add_subsystem(nqn, serial.to_owned())
    }

    // Namespaces.

    /// Adds a namespace to a subsystem, under `nsid` from 1 to [`NSID_MAX`], in the default ANA group. Connected hosts are
    /// told.
    ///
    /// # Errors
    /// No such subsystem; the identifier is taken or out of range.
    pub fn add_namespace(&self, nqn: &Nqn, nsid: u32, namespace: impl Into<AnyNamespace>) -> Result<(), ConfigError> {
        self.add_namespace_to(nqn, nsid, ANA_GROUP_DEFAULT, namespace)
    }

    /// The same in a certain ANA group, from 1 to [`ANA_GROUPS_MAX`].
    ///
    /// # Errors
    /// As [`Target::add_namespace`]; the group is out of range.
    pub fn add_namespace_to(
        &self,
        nqn: &Nqn,
        nsid: u32,
        group: u32,
        namespace: impl Into<AnyNamespace>,
    ) -> Result<(), ConfigError> {
        self.shared.add_namespace(nqn, nsid, group, namespace.into())
    }

    /// Looks again at a namespace that has changed (grown). Connected hosts are told.
    ///
    /// # Errors
    /// No such subsystem or namespace.
    pub fn refresh_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let namespace = self.namespace(nqn, nsid)?;
        self.shared.update_namespace(nqn, nsid, namespace.info().nguid)
    }

    /// A namespace.
    ///
    /// # Errors
    /// No such subsystem or namespace.
    pub fn namespace(&self, nqn: &Nqn, nsid: u32) -> Result<AnyNamespace, ConfigError> {
        self.shared.namespace(nqn, nsid).ok_or(ConfigError::NoNamespace(nsid))
    }

    /// Takes a namespace away; commands already under way run to their end. Connected hosts are told.
    ///
    /// # Errors
    /// No such subsystem or namespace.
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<AnyNamespace, ConfigError> {
        self.shared.remove_namespace(nqn, nsid)
    }

    /// Lets those hosts of a subsystem that may manage ([`HostConfig::manage`]) make namespaces in a store, and delete and attach
    /// those of the store (NVMe Base 2.0 §8.12). Connected controllers do not say so until they are made anew.
    ///
    /// # Errors
    /// No such subsystem.
    pub fn add_store(&self, nqn: &Nqn, store: Arc<dyn NamespaceStore>) -> Result<(), ConfigError> {
        self.shared.add_store(nqn, store)
    }

    /// Takes in a namespace of a store: under the identifier and for the hosts that are kept with it, or under a free one
    /// and for every host, which is then kept with it. Connected hosts are told.
    ///
    /// # Errors
    /// No such subsystem; the identifier is taken; what is kept with it can't be read or written.
    pub fn adopt<'a>(
        &'a self,
        nqn: &'a Nqn,
        store: Arc<dyn NamespaceStore>,
        namespace: AnyNamespace,
    ) -> LocalFuture<'a, Result<u32, AdoptError>> {
        Box::pin(self.shared.adopt(nqn, store, namespace))
    }

    /// Deletes a namespace that was taken in from a store, or made there by a host; with `attached` also one that hosts have at
    /// the moment, which are told.
    ///
    /// # Errors
    /// No such subsystem or namespace; hosts have it; the store could not.
    pub fn delete_namespace<'a>(
        &'a self,
        nqn: &'a Nqn,
        nsid: u32,
        attached: bool,
    ) -> LocalFuture<'a, Result<(), DeleteError>> {
        Box::pin(async move { self.shared.delete_managed(nqn, nsid, attached).await })
    }

    /// The subsystem and the identifier that are kept with a namespace of a store; `None` where it was never served.
    ///
    /// # Errors
    /// What is kept can't be read.
    pub fn place_of(namespace: &AnyNamespace) -> Result<Option<(Nqn, u32)>, AdoptError> {
        let kept = attachment::Attachment::of(namespace).map_err(AdoptError::Record)?;
        Ok(kept.map(|kept| (kept.subsystem, kept.nsid)))
    }

    // Paths.

    /// Adds a port. It is in the discovery log from when [`Target::serve_port`] serves it, or at once at the address that
    /// it advertises.
    ///
    /// # Errors
    /// The id is taken, or there are too many.
    pub fn add_port(&self, config: PortConfig) -> Result<(), ConfigError> {
        self.shared.add_port(config)
    }

    /// Lets a subsystem be had at these ports only; controllers at others end.
    ///
    /// # Errors
    /// No such subsystem or port.
    pub fn restrict_ports(&self, nqn: &Nqn, ports: impl IntoIterator<Item = PortId>) -> Result<(), ConfigError> {
        self.shared.restrict_ports(nqn, ports.into_iter().collect::<BTreeSet<_>>())
    }

    /// Adds another discovery service to the discovery log, as a referral. Hosts are told.
    ///
    /// # Errors
    /// There are too many.
    pub fn add_referral(&self, address: SocketAddr) -> Result<(), ConfigError> {
        self.shared.refer(address)
    }

    /// Sets the state of an ANA group at a port: the hosts there are told (NVMe Base 2.0 §8.1), and commands that arrive from
    /// now on get what the state says. Those that have arrived run to their end.
    ///
    /// # Errors
    /// No such subsystem or port, a group out of range, or a way back from persistent loss.
    pub fn set_ana_state(&self, nqn: &Nqn, port: PortId, group: u32, state: AnaState) -> Result<(), ConfigError> {
        self.shared.set_ana_state(nqn, port, group, state)
    }

    /// Moves a namespace to another ANA group. Connected hosts are told.
    ///
    /// # Errors
    /// No such subsystem or namespace, or a group out of range.
    pub fn set_ana_group(&self, nqn: &Nqn, nsid: u32, group: u32) -> Result<(), ConfigError> {
        self.shared.set_ana_group(nqn, nsid, group)
    }

    // Hosts.

    /// Whether a subsystem lets in hosts that are not on its list. Controllers of those that it does not any more end.
    ///
    /// # Errors
    /// No such subsystem.
    pub fn allow_any_host(&self, nqn: &Nqn, any: bool) -> Result<(), ConfigError> {
        self.shared.allow_any_host(nqn, any)
    }

    /// Puts a host on a subsystem's list. If it was let in with another configuration, its controllers end.
    ///
    /// # Errors
    /// No such subsystem, or too many hosts.
    pub fn allow_host(&self, nqn: &Nqn, host: &Nqn, config: HostConfig) -> Result<(), ConfigError> {
        self.shared.allow_host(nqn, host, config)
    }

    /// Gives a host on a subsystem's list other keys to authenticate with. Queues that have authenticated go on, and need the
    /// new keys when they authenticate again.
    ///
    /// # Errors
    /// There is no such subsystem, or the host is not on its list.
    pub fn set_host_keys(&self, nqn: &Nqn, host: &Nqn, keys: crate::auth::HostKeys) -> Result<(), ConfigError> {
        self.shared.set_host_keys(nqn, host, keys)
    }

    /// What a subsystem knows of a host: nothing, where it is not on its list.
    pub fn host_config(&self, nqn: &Nqn, host: &Nqn) -> HostConfig {
        self.shared.host_config(nqn, host)
    }

    /// Takes a host off a subsystem's list; its controllers end, unless it is let in all the same.
    ///
    /// # Errors
    /// No such subsystem, or the host is not on the list.
    pub fn deny_host(&self, nqn: &Nqn, host: &Nqn) -> Result<(), ConfigError> {
        self.shared.deny_host(nqn, host)
    }

    /// What was counted since the start; may be read on any thread.
    pub fn stats(&self) -> Arc<Stats> {
        self.shared.stats.clone()
    }
}

#[cfg(test)]
mod tests;
