//! [`Attached`]: a namespace as connections see it, and what becomes of it when its medium fails.

use std::sync::Arc;

use device::{AnyNamespace, Namespace, NamespaceInfo, Writability, ZonedInfo};
use nvme::zns::command_set;
use nvme::{AnaState, Nqn};

use super::connection::Connection;
use super::reservation::Reservations;
use super::shared::{Change, Shared};
use super::slots::Addressed;

/// See the module.
#[derive(Clone)]
pub(super) struct Attached {
    pub nsid: u32,
    /// No two namespaces of a target have the same one, nor has one that was removed and added again: a command that was
    /// meant for the one must not reach the other, whose opener has locks of its own.
    pub life: u64,
    pub info: NamespaceInfo,
    /// What its zones are, if it has zones.
    pub zoned: Option<ZonedInfo>,
    /// Its ANA group, and that group's state at the port of whoever asked.
    pub group: u32,
    pub access: AnaState,
    pub namespace: AnyNamespace,
    /// Its writability when hosts were last told of it.
    pub seen: Writability,
    pub reservations: Arc<Reservations>,
    /// One controller at a time may have it (NMIC bit 0 is clear).
    pub private: bool,
    /// It is a snapshot, of which nothing can be reserved: with a reservation a host that was fenced off the source could keep
    /// the source's owner from reading it.
    pub snapshot: bool,
    /// The block sizes among which a host has chosen; none: the operator has.
    pub formats: &'static [u32],
}

impl Attached {
    /// What a command that is for it keeps of it.
    #[inline]
    pub fn addressed(&self) -> Addressed {
        let (namespace, info) = (self.namespace.clone(), self.info.clone());
        Addressed { namespace, info, zoned: self.zoned, life: self.life }
    }

    /// CSI of its I/O command set.
    pub fn command_set(&self) -> u8 {
        if self.zoned.is_some() { command_set::ZONED } else { command_set::NVM }
    }

    /// Whether it takes writes, at this moment.
    pub fn writability(&self) -> Writability {
        self.namespace.writability()
    }

    /// NSATTR bit 0 of its Identify pages: Linux makes the disk read-only.
    pub fn is_write_protected(&self) -> bool {
        self.writability() != Writability::Writable
    }
}

impl Connection {
    /// A command has not been carried out because its namespace takes no writes, perhaps from now on.
    pub fn look_at_writability(&self, slot: u16) {
        let nsid = self.slots.get(slot).map_or(0, |entry| entry.command.nsid.get());
        let found = self.find_namespace(nsid).map(|found| &self.namespaces[found]);
        // Without this look every command that fails would take the lock of all connections.
        if found.is_some_and(|attached| attached.writability() != attached.seen) {
            self.shared.tell_writability();
        }
    }
}

impl Shared {
    /// Tells hosts of the namespaces that have stopped to take writes since they were last told: with a drive all of its
    /// namespaces have.
    pub fn tell_writability(&self) {
        let mut state = self.lock();
        let mut changed: Vec<(Nqn, u32, Writability)> = Vec::new();
        for (nqn, subsystem) in &mut state.subsystems {
            for (&nsid, attached) in &mut subsystem.namespaces {
                let now = attached.writability();
                if std::mem::replace(&mut attached.seen, now) != now {
                    changed.push((nqn.clone(), nsid, now));
                }
            }
        }
        for (nqn, nsid, now) in &changed {
            self.changed(&mut state, &Change::Namespace(nqn, *nsid));
            if *now == Writability::Failed {
                self.changed(&mut state, &Change::Health(nqn, *nsid));
            }
        }
    }
}
