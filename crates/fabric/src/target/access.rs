//! Which hosts a subsystem lets in, and at which ports (NVMe Base 2.0 §6.3: Connect Invalid Host).

use std::collections::{BTreeMap, BTreeSet};

use nvme::Nqn;

use super::config::{ConfigError, HostConfig, PortId};
use super::limits::HOSTS_MAX;

/// See the module. A new subsystem lets in any host, at every port.
pub(super) struct Access {
    any: bool,
    hosts: BTreeMap<Nqn, HostConfig>,
    /// `None`: all.
    ports: Option<BTreeSet<PortId>>,
}

impl Default for Access {
    fn default() -> Access {
        Access { any: true, hosts: BTreeMap::new(), ports: None }
    }
}

impl Access {
    /// Whether hosts that are not on the list are let in.
    pub fn any(&self) -> bool {
        self.any
    }

    pub fn set_any(&mut self, any: bool) {
        self.any = any;
    }

    pub fn allows(&self, host: &Nqn) -> bool {
        self.any || self.hosts.contains_key(host)
    }

    /// What is known of a host that is let in: nothing, where it is not on the list.
    pub fn config(&self, host: &Nqn) -> HostConfig {
        self.hosts.get(host).cloned().unwrap_or_default()
    }

    /// Whether some host may make its key for TLS by authentication.
    pub fn any_concatenation(&self) -> bool {
        self.hosts.values().any(|config| config.concatenation && config.keys.is_some())
    }

    /// The hosts on the list.
    pub fn hosts(&self) -> impl Iterator<Item = &Nqn> {
        self.hosts.keys()
    }

    /// Puts a host on the list, or gives it another configuration.
    pub fn allow(&mut self, host: Nqn, config: HostConfig) -> Result<(), ConfigError> {
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&host) {
            return Err(ConfigError::TooManyHosts);
        }
        self.hosts.insert(host, config);
        Ok(())
    }

    /// Takes a host off the list; false if it was not there.
    pub fn deny(&mut self, host: &Nqn) -> bool {
        self.hosts.remove(host).is_some()
    }

    pub fn is_at(&self, port: PortId) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }

    /// The ports it is restricted to, if it is.
    pub fn ports(&self) -> Option<&BTreeSet<PortId>> {
        self.ports.as_ref()
    }

    pub fn restrict(&mut self, ports: BTreeSet<PortId>) {
        self.ports = Some(ports);
    }
}
