//! What all connections of a target share: subsystems with their namespaces, and the controllers alive.
//!
//! Invariants:
//! - Everything here is behind one lock that no I/O command takes: connections keep what they need of it and look again
//!   only when [`Shared::generation`] has moved. With the lock on the data path reactors would wait for each other.
//! - The lock of a controller may be taken while this one is held, never the other way round.
//! - A controller is listed from its Connect until its admin connection ends; whoever still holds it then sees it ended.
//! - Whether a host is let in is decided under the same lock under which its controller is listed, and a host that is let in
//!   no longer has none: were these two steps, a controller could slip in between a check and a denial.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{AnyNamespace, Namespace, RangeLocks};
use nvme::fabrics::DiscoveryEntry;
use nvme::{AnaState, CONTROLLER_ID_DYNAMIC, Nqn};

use super::access::Access;
use super::ana::{self, AnaGroups};
pub(super) use super::attached::Attached;
use super::attachment::Managed;
use super::attention::Attention;
use super::balance::Loads;
use super::complaints::Complaints;
use super::config::{ConfigError, PortConfig, PortId, TargetConfig};
use super::controller::{Controller, Identity};
use super::guests::{Guests, Standing};
use super::limits::{CONTROLLERS_MAX, NSID_MAX, SUBSYSTEMS_MAX};
use super::newcomers::Newcomers;
use super::ports::Ports;
use super::reservation::{HostId, Reservations};
use super::room::SharedRoom;
use super::secure::{Secure, TlsPolicy};
use super::stats::Stats;
use super::store::NamespaceStore;
use super::terms::{Entrance, Terms};

pub(super) struct Subsystem {
    pub serial: String,
    pub namespaces: BTreeMap<u32, Attached>,
    pub access: Access,
    pub groups: AnaGroups,
    /// Where its hosts may make namespaces.
    pub stores: Vec<Arc<dyn NamespaceStore>>,
    /// Of the namespaces those of the stores.
    pub managed: BTreeMap<u32, Managed>,
}

pub(super) struct State {
    pub subsystems: BTreeMap<Nqn, Subsystem>,
    pub controllers: BTreeMap<u16, Arc<Controller>>,
    last_controller_id: u16,
    last_life: u64,
    pub ports: Ports,
}

/// What has changed, so that the controllers concerned tell their hosts.
pub(super) enum Change<'a> {
    /// A namespace of a subsystem, for the controllers that have it.
    Namespace(&'a Nqn, u32),
    /// Namespaces that were attached to these controllers, or detached from them.
    Attachment(&'a Nqn, &'a [u32], &'a [u16]),
    /// The discovery log, of one host or of all.
    Discovery(Option<&'a Nqn>),
    /// ANA groups of a subsystem, at one port or at all; hosts are told, or only held to it.
    Ana { nqn: &'a Nqn, port: Option<PortId>, told: bool },
    /// A namespace of a subsystem whose medium has failed, for the controllers that have it.
    Health(&'a Nqn, u32),
}

/// Why a Connect is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// No such subsystem at this port.
    Subsystem,
    /// The subsystem does not let the host in.
    Host,
    /// The host must use TLS, and has not.
    Insecure,
    /// Another host has the identifier that it gives.
    HostId,
    /// There are too many controllers.
    Busy,
}

/// See the module.
pub(super) struct Shared {
    pub config: TargetConfig,
    pub stats: Arc<Stats>,
    pub secure: Secure,
    pub loads: Arc<Loads>,
    pub complaints: Complaints,
    pub room: Arc<SharedRoom>,
    pub newcomers: Newcomers,
    pub guests: Guests,
    /// Held while namespaces are made, deleted, attached or detached, across its waits.
    pub management: Arc<RangeLocks>,
    generation: AtomicU64,
    state: Mutex<State>,
}

impl State {
    pub fn subsystem(&mut self, nqn: &Nqn) -> Result<&mut Subsystem, ConfigError> {
        self.subsystems.get_mut(nqn).ok_or_else(|| ConfigError::NoSubsystem(nqn.clone()))
    }

    /// Whether a namespace is active for a controller: see [`Subsystem::has`].
    fn is_active(&self, nqn: &Nqn, nsid: u32, controller: &Controller) -> bool {
        self.subsystems.get(nqn).is_some_and(|found| found.has(nsid, controller))
    }

    /// Of a namespace that comes into sight: see [`Attached::life`].
    pub fn next_life(&mut self) -> u64 {
        self.last_life += 1;
        self.last_life
    }

    /// Whether a host of another name uses this one's identifier: by a controller of the subsystem, or by a registration on one of
    /// its namespaces. Discovery has no reservations. (Only who is let in counts: to name a host and an identifier proves nothing.)
    pub fn has_another(&self, subsystem: &Nqn, host: &HostId) -> bool {
        let Some(found) = self.subsystems.get(subsystem) else { return false };
        let here = self.controllers.values().filter(|other| other.subsystem() == subsystem);
        here.filter(|other| other.is_let_in() && !other.is_ended()).any(|other| other.host_id().collides(host))
            || found.namespaces.values().any(|attached| attached.reservations.collide(host))
    }

    /// Whether a host may make a controller of a subsystem at a port. The discovery subsystem is everybody's, everywhere.
    pub fn admit(&self, identity: &Identity) -> Result<(), Refused> {
        if identity.subsystem.is_discovery() {
            return Ok(());
        }
        let subsystem = self.subsystems.get(&identity.subsystem).filter(|found| found.access.is_at(identity.port));
        let closed = self.ports.get(identity.port).is_some_and(|port| port.config.discovery_only);
        let subsystem = subsystem.filter(|_| !closed).ok_or(Refused::Subsystem)?;
        if !subsystem.access.allows(&identity.host) {
            return Err(Refused::Host);
        }
        Ok(())
    }
}

impl Shared {
    pub fn new(config: TargetConfig) -> Shared {
        let state = State {
            subsystems: BTreeMap::new(),
            controllers: BTreeMap::new(),
            last_controller_id: 0,
            last_life: 0,
            ports: Ports::default(),
        };
        let newcomers = Newcomers::new(config.connections_max);
        let guests = Guests::new(config.connections_max);
        Shared {
            config,
            stats: Arc::default(),
            secure: Secure::default(),
            loads: Arc::default(),
            complaints: Complaints::default(),
            room: Arc::default(),
            newcomers,
            guests,
            management: Arc::new(RangeLocks::new(0)),
            generation: AtomicU64::new(1),
            state: Mutex::new(state),
        }
    }

    /// A panic elsewhere while the lock was held leaves maps that are still valid: each change is one insertion or removal.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves with every change that connections of I/O queues must know of.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Tells connections to look again, and the controllers concerned to tell their hosts.
    pub fn changed(&self, state: &mut State, change: &Change<'_>) {
        if let Change::Discovery(_) = change {
            state.ports.log_changed();
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        for controller in state.controllers.values() {
            match *change {
                Change::Namespace(nqn, nsid) if controller.subsystem() == nqn => {
                    if state.is_active(nqn, nsid, controller) {
                        controller.namespace_changed(nsid);
                    }
                    // An idle queue that kept what it knew would hold a removed namespace's medium.
                    controller.wake_queues();
                }
                Change::Health(nqn, nsid)
                    if controller.subsystem() == nqn && state.is_active(nqn, nsid, controller) =>
                {
                    controller.medium_failed();
                }
                Change::Attachment(nqn, nsids, told) if controller.subsystem() == nqn => {
                    if told.contains(&controller.id()) {
                        nsids.iter().for_each(|&nsid| controller.namespace_changed(nsid));
                    }
                    controller.wake_queues();
                }
                Change::Discovery(host)
                    if controller.is_discovery() && host.is_none_or(|host| controller.host() == host) =>
                {
                    controller.discovery_changed();
                }
                Change::Ana { nqn, port, told }
                    if controller.subsystem() == nqn && port.is_none_or(|port| controller.port() == port) =>
                {
                    if told {
                        controller.ana_changed();
                    }
                    controller.wake_queues();
                }
                _ => {}
            }
        }
    }

    // Subsystems and their namespaces.

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
        let (access, groups) = (Access::default(), AnaGroups::default());
        let (namespaces, managed, stores) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        state.subsystems.insert(nqn, Subsystem { serial, namespaces, access, groups, stores, managed });
        self.changed(&mut state, &Change::Discovery(None));
        Ok(())
    }

    pub fn add_namespace(&self, nqn: &Nqn, nsid: u32, group: u32, namespace: AnyNamespace) -> Result<(), ConfigError> {
        self.insert(nqn, nsid, group, namespace, None)
    }

    /// Adds a namespace: the operator's, or one of a store.
    pub fn insert(
        &self,
        nqn: &Nqn,
        nsid: u32,
        group: u32,
        namespace: AnyNamespace,
        managed: Option<Managed>,
    ) -> Result<(), ConfigError> {
        if nsid == 0 || nsid > NSID_MAX {
            return Err(ConfigError::NamespaceId(nsid));
        }
        ana::check(group)?;
        let mut state = self.lock();
        let (info, access) = (self.config.profile.of(namespace.info()), AnaState::default());
        // In another subsystem it is the same namespace, and so are its reservations.
        let mut all = state.subsystems.values().flat_map(|subsystem| subsystem.namespaces.values());
        let same = all.find(|other| other.info.nguid == info.nguid).map(|other| other.reservations.clone());
        let reservations = match same {
            Some(same) => same,
            None => Arc::new(
                Reservations::kept_with(&namespace).map_err(|reason| ConfigError::Reservations { nsid, reason })?,
            ),
        };
        let life = state.next_life();
        let subsystem = state.subsystem(nqn)?;
        if subsystem.namespaces.contains_key(&nsid) {
            return Err(ConfigError::NamespaceExists(nsid));
        }
        let seen = namespace.writability();
        let private = managed.as_ref().is_some_and(|managed| !managed.attachment.shared);
        let formats = managed.as_ref().map_or(&[][..], |managed| managed.store.block_sizes());
        let snapshot = managed.as_ref().is_some_and(|managed| managed.attachment.is_snapshot());
        let zoned = namespace.zoned();
        let told = Attached {
            nsid,
            life,
            info,
            zoned,
            group,
            access,
            namespace,
            seen,
            reservations,
            private,
            snapshot,
            formats,
        };
        subsystem.namespaces.insert(nsid, told);
        if let Some(managed) = managed {
            subsystem.managed.insert(nsid, managed);
        }
        // The ANA log changes too, but the host learns that with the namespace: a notice of its own is not due where a
        // group is met by attachment (NVMe Base 2.0 §8.1.1.9).
        subsystem.groups.members_changed(group);
        self.changed(&mut state, &Change::Namespace(nqn, nsid));
        Ok(())
    }

    /// Notes what a namespace has become, if the one with this NGUID is the one with the identifier still: hosts would read and
    /// write another one by sizes that it has not.
    pub fn update_namespace(&self, nqn: &Nqn, nsid: u32, nguid: [u8; 16]) -> Result<(), ConfigError> {
        let mut state = self.lock();
        let found = state.subsystem(nqn)?.namespaces.get_mut(&nsid).filter(|found| found.info.nguid == nguid);
        let found = found.ok_or(ConfigError::NoNamespace(nsid))?;
        found.info = self.config.profile.of(found.namespace.info());
        self.changed(&mut state, &Change::Namespace(nqn, nsid));
        Ok(())
    }

    pub fn namespace(&self, nqn: &Nqn, nsid: u32) -> Option<AnyNamespace> {
        self.lock().subsystems.get(nqn)?.namespaces.get(&nsid).map(|attached| attached.namespace.clone())
    }

    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<AnyNamespace, ConfigError> {
        let mut state = self.lock();
        let subsystem = state.subsystem(nqn)?;
        let concerned = subsystem.with_followers(nsid);
        let removed = subsystem.namespaces.remove(&nsid).ok_or(ConfigError::NoNamespace(nsid))?;
        subsystem.groups.members_changed(removed.group);
        match subsystem.managed.remove(&nsid) {
            Some(managed) => {
                let told: Vec<u16> = managed.controllers.into_iter().collect();
                self.changed(&mut state, &Change::Attachment(nqn, &concerned, &told));
            }
            None => self.changed(&mut state, &Change::Namespace(nqn, nsid)),
        }
        Ok(removed.namespace)
    }

    pub fn serial(&self, nqn: &Nqn) -> String {
        self.lock().subsystems.get(nqn).map_or_else(|| "discovery".into(), |subsystem| subsystem.serial.clone())
    }

    /// The namespaces active for a controller, ascending by identifier, with their ANA state at its port.
    pub fn namespaces(&self, controller: &Controller) -> Vec<Attached> {
        self.allocated(controller, |subsystem, nsid| subsystem.has(nsid, controller))
    }

    /// The same of those of its subsystem for which `wanted` holds.
    pub fn allocated(&self, controller: &Controller, wanted: impl Fn(&Subsystem, u32) -> bool) -> Vec<Attached> {
        let state = self.lock();
        let Some(subsystem) = state.subsystems.get(controller.subsystem()) else { return Vec::new() };
        let seen = |attached: &Attached| {
            let access = subsystem.groups.state(controller.port(), attached.group);
            Attached { access, ..attached.clone() }
        };
        subsystem.namespaces.values().filter(|attached| wanted(subsystem, attached.nsid)).map(seen).collect()
    }

    /// The controllers through which a namespace is seen, and its identifier there.
    pub fn watchers(&self, reservations: &Arc<Reservations>) -> Vec<(Arc<Controller>, u32)> {
        let state = self.lock();
        let seen = |controller: &Arc<Controller>| {
            let subsystem = state.subsystems.get(controller.subsystem())?;
            // Also of one whose host has enabled fewer I/O command sets since: what it sent before may still execute.
            let attached =
                subsystem.namespaces.values().filter(|found| subsystem.is_attached(found.nsid, controller.id()));
            let mut same = attached.filter(|attached| Arc::ptr_eq(&attached.reservations, reservations));
            same.next().map(|attached| (controller.clone(), attached.nsid))
        };
        state.controllers.values().filter_map(seen).collect()
    }

    // Ports and discovery.

    pub fn add_port(&self, config: PortConfig) -> Result<(), ConfigError> {
        if config.tls != TlsPolicy::Off {
            // Better now than at the first host.
            self.secure.context().map_err(|error| ConfigError::Tls(error.to_string()))?;
        }
        let mut state = self.lock();
        state.ports.add(config)?;
        self.changed(&mut state, &Change::Discovery(None));
        Ok(())
    }

    /// What a port demands of connections.
    pub fn tls_policy(&self, port: PortId) -> TlsPolicy {
        self.lock().ports.get(port).map_or(TlsPolicy::Off, |port| port.config.tls)
    }

    /// A listener at `address` serves `port`; without one, the port that was served there, or a new one.
    pub fn serve_at(&self, port: Option<PortId>, address: SocketAddr) -> Result<PortId, ConfigError> {
        let mut state = self.lock();
        let id = match port {
            Some(id) if state.ports.get(id).is_none() => return Err(ConfigError::NoPort(id)),
            Some(id) => id,
            None => state.ports.at(address).ok_or(ConfigError::TooManyPorts)?,
        };
        if state.ports.serve(id, address) {
            self.changed(&mut state, &Change::Discovery(None));
        }
        Ok(id)
    }

    pub fn refer(&self, address: SocketAddr) -> Result<(), ConfigError> {
        let mut state = self.lock();
        if state.ports.refer(address)? {
            self.changed(&mut state, &Change::Discovery(None));
        }
        Ok(())
    }

    /// The discovery log as a discovery controller gives it to a host that has reached us at `local`: GENCTR and entries.
    pub fn discovery_log(&self, controller: &Controller, local: SocketAddr) -> (u64, Vec<DiscoveryEntry>) {
        let state = self.lock();
        let host = controller.host();
        let visible = |port| {
            let found = state.subsystems.iter();
            let found =
                found.filter(move |(_, subsystem)| subsystem.access.is_at(port) && subsystem.access.allows(host));
            found.map(|(nqn, _)| nqn)
        };
        (state.ports.generation(), state.ports.entries(local, visible))
    }

    // Controllers.

    /// Lists a new controller on the terms that were looked up for it. It begins with its host's namespaces when it is
    /// [let in](Shared::let_in).
    ///
    /// # Errors
    /// The terms are others by now: busy, as they may be met the next time.
    pub fn add_controller(
        &self,
        identity: Identity,
        admin: Arc<Attention>,
        entrance: &Entrance<'_>,
        looked_up: &Terms,
    ) -> Result<Arc<Controller>, Refused> {
        let mut state = self.lock();
        if self.terms(&state, &identity, entrance)? != *looked_up {
            return Err(Refused::Busy);
        }
        if state.has_another(&identity.subsystem, &HostId::new(identity.host_id, &identity.host)) {
            return Err(Refused::HostId);
        }
        let discovery = looked_up.standing == Standing::Discovery; // these are counted where they get their place
        if !discovery && state.controllers.values().filter(|found| !found.is_discovery()).count() >= CONTROLLERS_MAX {
            return Err(Refused::Busy);
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
        let command_sets = self.config.profile.has_command_sets();
        let controller = Arc::new(Controller::new(id, identity, looked_up.standing, admin, command_sets));
        state.controllers.insert(id, controller.clone());
        Ok(controller)
    }

    pub fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.lock().controllers.get(&id).cloned()
    }

    pub fn remove_controller(&self, id: u16) {
        let mut state = self.lock();
        let Some(gone) = state.controllers.remove(&id) else { return };
        for (nsid, heir) in state.part(&gone) {
            let Some(subsystem) = state.subsystems.get_mut(gone.subsystem()) else { return };
            let concerned = subsystem.attachment_changed(nsid);
            self.changed(&mut state, &Change::Attachment(gone.subsystem(), &concerned, &[heir]));
        }
    }

    /// Identifiers of a subsystem's controllers that were let in, ascending, from `first` on: all, or those that a namespace
    /// is attached to.
    pub fn controllers(&self, nqn: &Nqn, nsid: Option<u32>, first: u16) -> Vec<u16> {
        let state = self.lock();
        let Some(subsystem) = state.subsystems.get(nqn) else { return Vec::new() };
        let found = state.controllers.range(first..);
        let found = found.filter(|(_, controller)| controller.subsystem() == nqn && controller.is_let_in());
        let found = found.filter(|(_, controller)| nsid.is_none_or(|nsid| subsystem.has(nsid, controller)));
        found.map(|(&id, _)| id).collect()
    }
}
