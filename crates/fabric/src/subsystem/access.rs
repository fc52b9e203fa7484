//! Which hosts a subsystem lets in, and at which ports (NVMe Base 2.0 §6.3: Connect Invalid Host).

use std::collections::{BTreeMap, BTreeSet};

use nvme::Nqn;

use super::config::{ConfigError, HostConfig, PortId};
use super::limits::HOSTS_MAX;
use super::shared::{Change, Shared};
use crate::auth::HostKeys;
use crate::psk::RetainedPsk;

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
        self.any || self.lists(host)
    }

    /// Whether the operator has named the host.
    pub fn lists(&self, host: &Nqn) -> bool {
        self.hosts.contains_key(host)
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
    pub fn hosts(&self) -> impl Iterator<Item = (&Nqn, &HostConfig)> {
        self.hosts.iter()
    }

    /// Puts a host on the list, or gives it another configuration.
    pub fn allow(&mut self, host: Nqn, config: HostConfig) -> Result<(), ConfigError> {
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&host) {
            return Err(ConfigError::TooManyHosts);
        }
        self.hosts.insert(host, config);
        Ok(())
    }

    /// Gives a host other keys to authenticate with; false if it is not on the list.
    pub fn set_keys(&mut self, host: &Nqn, keys: HostKeys) -> bool {
        self.hosts.get_mut(host).map(|config| config.keys = Some(keys)).is_some()
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

impl Shared {
    /// Changes who is let in, and ends the controllers of those who are not any more, and of `host` if its configuration is
    /// another now: what it was let in by may be what was taken from it. What authentication has made for `host` is forgotten then.
    fn change_access(
        &self,
        nqn: &Nqn,
        host: Option<&Nqn>,
        change: impl FnOnce(&mut Access) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let mut state = self.lock();
        let access = &mut state.subsystem(nqn)?.access;
        let listed = host.filter(|host| access.lists(host));
        let before = host.map(|host| access.config(host));
        change(access)?;
        let after = host.map(|host| access.config(host));
        let reconfigured = after != before;
        let gone = listed.filter(|host| !access.lists(host));
        // Under the lock under which controllers are listed and such keys are put in: nobody comes in by one of them who is
        // overlooked below, and none is made by what was taken away. Of a host whose configuration is what it was the controllers
        // stay, and their further queues need the key.
        if let Some(host) = host.filter(|_| reconfigured) {
            let keys = |config: Option<HostConfig>| config.and_then(|config| config.keys);
            if keys(before) != keys(after) {
                self.secure.forget_unused(host, &Nqn::discovery());
            }
            self.secure.forget_generated(host, nqn);
        }
        if let Some(host) = gone {
            self.secure.forget_generated(host, &Nqn::discovery());
        }
        self.changed(&mut state, &Change::Discovery(host));
        let Some(subsystem) = state.subsystems.get(nqn) else { return Ok(()) };
        for controller in state.controllers.values().filter(|controller| controller.subsystem() == nqn) {
            let host_changed = reconfigured && Some(controller.host()) == host;
            let allowed = subsystem.access.allows(controller.host()) && subsystem.access.is_at(controller.port());
            if host_changed || !allowed {
                controller.end();
            }
        }
        Ok(())
    }

    pub fn restrict_ports(&self, nqn: &Nqn, ports: BTreeSet<PortId>) -> Result<(), ConfigError> {
        if let Some(&missing) = ports.iter().find(|&&port| self.lock().ports.get(port).is_none()) {
            return Err(ConfigError::NoPort(missing));
        }
        self.change_access(nqn, None, |access| {
            access.restrict(ports);
            Ok(())
        })
    }

    pub fn allow_any_host(&self, nqn: &Nqn, any: bool) -> Result<(), ConfigError> {
        self.change_access(nqn, None, |access| {
            access.set_any(any);
            Ok(())
        })
    }

    pub fn allow_host(&self, nqn: &Nqn, host: &Nqn, config: HostConfig) -> Result<(), ConfigError> {
        let keys = config.tls_keys.clone();
        let others = self.host_config(nqn, host).tls_keys != keys;
        self.change_access(nqn, Some(host), |access| access.allow(host.clone(), config))?;
        if others { self.replace_tls_keys(nqn, host, keys) } else { Ok(()) }
    }

    /// Gives a host other keys for TLS. Whoever has come by one of the old ones since its controllers were ended goes, too; who
    /// comes by one later is not listed.
    fn replace_tls_keys(&self, nqn: &Nqn, host: &Nqn, keys: Vec<RetainedPsk>) -> Result<(), ConfigError> {
        self.secure.replace(host, nqn, keys)?;
        let state = self.lock();
        let own = state.controllers.values().filter(|found| found.subsystem() == nqn && found.host() == host);
        own.filter(|controller| controller.is_secure()).for_each(|controller| controller.end());
        Ok(())
    }

    pub fn deny_host(&self, nqn: &Nqn, host: &Nqn) -> Result<(), ConfigError> {
        self.change_access(nqn, Some(host), |access| {
            let listed = access.deny(host);
            let missing = || ConfigError::NoHost { subsystem: nqn.clone(), host: host.clone(), any: access.any() };
            listed.then_some(()).ok_or_else(missing)
        })?;
        self.replace_tls_keys(nqn, host, Vec::new())?;
        // Last, as nobody comes to the discovery subsystem by what was taken from it any more; who may all the same comes again.
        let state = self.lock();
        let discovery = state.controllers.values().filter(|own| own.is_discovery() && own.host() == host);
        discovery.for_each(|own| own.end());
        Ok(())
    }
}
