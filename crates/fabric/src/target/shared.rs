//! What all connections of a target share: subsystems with their namespaces, and the controllers alive.
//!
//! Invariants:
//! - Everything here is behind one lock that no I/O command takes: connections keep what they need of it and look again
//!   only when [`Shared::generation`] has moved. With the lock on the data path reactors would wait for each other.
//! - The lock of a controller may be taken while this one is held, never the other way round.
//! - A controller is listed from its Connect until its admin connection ends; whoever still holds it then sees it ended.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::NamespaceInfo;
use nvme::fabrics::{AddressFamily, DiscoveryEntry, SubsystemType, TransportType};
use nvme::{CONTROLLER_ID_DYNAMIC, Nqn};

use super::controller::Controller;
use super::limits::{ADMIN_QUEUE_ENTRIES_MAX, CONTROLLERS_MAX, NSID_MAX, SUBSYSTEMS_MAX};
use super::stats::Stats;
use super::{ConfigError, TargetConfig};

/// A namespace as connections see it.
pub(super) struct Attached<N> {
    pub nsid: u32,
    pub info: NamespaceInfo,
    pub namespace: Arc<N>,
}

// Not derived: `N` itself need not be cloned.
impl<N> Clone for Attached<N> {
    fn clone(&self) -> Attached<N> {
        Attached { nsid: self.nsid, info: self.info.clone(), namespace: self.namespace.clone() }
    }
}

struct Subsystem<N> {
    serial: String,
    namespaces: BTreeMap<u32, Attached<N>>,
}

struct State<N> {
    subsystems: BTreeMap<Nqn, Subsystem<N>>,
    controllers: BTreeMap<u16, Arc<Controller>>,
    last_controller_id: u16,
    /// Where we listen, and what discovery says instead, if anything.
    served: Vec<SocketAddr>,
    advertised: Vec<SocketAddr>,
}

/// See the module.
pub(super) struct Shared<N> {
    pub config: TargetConfig,
    pub stats: Arc<Stats>,
    generation: AtomicU64,
    state: Mutex<State<N>>,
}

impl<N> Shared<N> {
    pub fn new(config: TargetConfig) -> Shared<N> {
        let state = State {
            subsystems: BTreeMap::new(),
            controllers: BTreeMap::new(),
            last_controller_id: 0,
            served: Vec::new(),
            advertised: Vec::new(),
        };
        Shared { config, stats: Arc::default(), generation: AtomicU64::new(1), state: Mutex::new(state) }
    }

    /// A panic elsewhere while the lock was held leaves maps that are still valid: each change is one insertion or removal.
    fn lock(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves with every change of a subsystem's namespaces or of what discovery says.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn add_subsystem(&self, nqn: Nqn, serial: String) -> Result<(), ConfigError> {
        let mut state = self.lock();
        if nqn.is_discovery() || state.subsystems.contains_key(&nqn) {
            return Err(ConfigError::SubsystemExists(nqn));
        }
        if serial.is_empty() || serial.len() > 20 || !serial.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(ConfigError::Serial(serial));
        }
        if state.subsystems.len() == SUBSYSTEMS_MAX {
            return Err(ConfigError::TooManySubsystems);
        }
        state.subsystems.insert(nqn, Subsystem { serial, namespaces: BTreeMap::new() });
        self.changed(&state, None);
        Ok(())
    }

    /// Adds a namespace, or replaces what is known of one with the same identifier when `replace` is set.
    pub fn put_namespace(&self, nqn: &Nqn, attached: Attached<N>, replace: bool) -> Result<(), ConfigError> {
        let nsid = attached.nsid;
        if nsid == 0 || nsid > NSID_MAX {
            return Err(ConfigError::NamespaceId(nsid));
        }
        let mut state = self.lock();
        let subsystem = state.subsystems.get_mut(nqn).ok_or_else(|| ConfigError::NoSubsystem(nqn.clone()))?;
        if subsystem.namespaces.contains_key(&nsid) != replace {
            return Err(if replace { ConfigError::NoNamespace(nsid) } else { ConfigError::NamespaceExists(nsid) });
        }
        subsystem.namespaces.insert(nsid, attached);
        self.changed(&state, Some((nqn, nsid)));
        Ok(())
    }

    pub fn namespace(&self, nqn: &Nqn, nsid: u32) -> Option<Arc<N>> {
        self.lock().subsystems.get(nqn)?.namespaces.get(&nsid).map(|attached| attached.namespace.clone())
    }

    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<Arc<N>, ConfigError> {
        let mut state = self.lock();
        let subsystem = state.subsystems.get_mut(nqn).ok_or_else(|| ConfigError::NoSubsystem(nqn.clone()))?;
        let removed = subsystem.namespaces.remove(&nsid).ok_or(ConfigError::NoNamespace(nsid))?;
        self.changed(&state, Some((nqn, nsid)));
        Ok(removed.namespace)
    }

    /// Tells connections to look again, and the controllers concerned to tell their hosts.
    fn changed(&self, state: &State<N>, namespace: Option<(&Nqn, u32)>) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        for controller in state.controllers.values() {
            match namespace {
                Some((nqn, nsid)) if controller.subsystem() == nqn => controller.namespace_changed(nsid),
                None if controller.is_discovery() => controller.discovery_changed(),
                _ => {}
            }
        }
    }

    pub fn add_served(&self, address: SocketAddr) {
        let mut state = self.lock();
        if !state.served.contains(&address) {
            state.served.push(address);
            self.changed(&state, None);
        }
    }

    pub fn add_advertised(&self, address: SocketAddr) {
        let mut state = self.lock();
        if !state.advertised.contains(&address) {
            state.advertised.push(address);
            self.changed(&state, None);
        }
    }

    pub fn has_subsystem(&self, nqn: &Nqn) -> bool {
        nqn.is_discovery() || self.lock().subsystems.contains_key(nqn)
    }

    pub fn serial(&self, nqn: &Nqn) -> String {
        self.lock().subsystems.get(nqn).map_or_else(|| "discovery".into(), |subsystem| subsystem.serial.clone())
    }

    /// The subsystem's namespaces, ascending by identifier.
    pub fn namespaces(&self, nqn: &Nqn) -> Vec<Attached<N>> {
        let state = self.lock();
        state.subsystems.get(nqn).map_or_else(Vec::new, |found| found.namespaces.values().cloned().collect())
    }

    /// Lists a new controller; `None` when there are too many.
    pub fn add_controller(&self, make: impl FnOnce(u16) -> Controller) -> Option<Arc<Controller>> {
        let mut state = self.lock();
        if state.controllers.len() >= CONTROLLERS_MAX {
            return None;
        }
        // Identifiers go round before one is used again: a host's late command for an old one must not meet a new one.
        let mut id = state.last_controller_id;
        loop {
            id = if id >= CONTROLLER_ID_DYNAMIC - 0x10 { 1 } else { id + 1 };
            if !state.controllers.contains_key(&id) {
                break;
            }
        }
        state.last_controller_id = id;
        let controller = Arc::new(make(id));
        state.controllers.insert(id, controller.clone());
        Some(controller)
    }

    pub fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.lock().controllers.get(&id).cloned()
    }

    pub fn remove_controller(&self, id: u16) {
        self.lock().controllers.remove(&id);
    }

    /// The discovery log's entries as a host sees them that reached us at `local`.
    pub fn discovery_entries(&self, local: SocketAddr) -> Vec<DiscoveryEntry> {
        let state = self.lock();
        let addresses = if state.advertised.is_empty() { &state.served } else { &state.advertised };
        let mut entries = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let reachable = if address.ip().is_unspecified() { local.ip() } else { address.ip() };
            let reachable = reachable.to_canonical(); // an IPv4 address in IPv6 clothes is an IPv4 address
            let port = index as u16 + 1;
            entries.extend(
                state.subsystems.keys().map(|nqn| entry(nqn, port, SocketAddr::new(reachable, address.port()))),
            );
        }
        entries
    }
}

fn entry(nqn: &Nqn, port: u16, address: SocketAddr) -> DiscoveryEntry {
    let family = match address.ip() {
        IpAddr::V4(_) => AddressFamily::IPV4,
        IpAddr::V6(_) => AddressFamily::IPV6,
    };
    DiscoveryEntry {
        trtype: TransportType::TCP.0,
        adrfam: family.0,
        subtype: SubsystemType::NVM.0,
        // Secure channel not required; SQ flow control may be disabled.
        treq: 2 | 1 << 2,
        portid: port.into(),
        cntlid: CONTROLLER_ID_DYNAMIC.into(),
        asqsz: ADMIN_QUEUE_ENTRIES_MAX.into(),
        eflags: 0.into(),
        reserved1: [0; 20],
        trsvcid: nvme::identify::ascii_field(&address.port().to_string()),
        reserved2: [0; 192],
        subnqn: nqn.to_field(),
        traddr: nvme::identify::ascii_field(&address.ip().to_string()),
        tsas: [0; 256],
    }
}
