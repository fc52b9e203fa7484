//! What a target is at the moment, for its operator.

use std::net::SocketAddr;

use nvme::Nqn;
use serde::{Deserialize, Serialize};

use super::Target;
use super::config::HostConfig;
use super::shared::{State, Subsystem};

/// A target: ports, subsystems, hosts, controllers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetReport {
    /// Its ports, ascending.
    pub ports: Vec<PortReport>,
    /// Its subsystems by name.
    pub subsystems: Vec<SubsystemReport>,
    /// Other discovery services that its log refers to.
    pub referrals: Vec<SocketAddr>,
    /// I/O queues by the reactor that serves them, the one that accepts first.
    pub io_queues_by_reactor: Vec<usize>,
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortReport {
    /// PORTID.
    pub id: u16,
    /// Where it listens, once it does.
    pub listening: Option<SocketAddr>,
    /// Where hosts are sent instead.
    pub advertise: Option<SocketAddr>,
    /// Only the discovery subsystem is to be had here.
    pub discovery_only: bool,
}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SubsystemReport {
    /// Its name.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// The ports it is restricted to.
    pub ports: Option<Vec<u16>>,
    /// Hosts that are not listed are let in.
    pub any_host: bool,
    /// The hosts on its list.
    pub hosts: Vec<HostReport>,
    /// Its namespaces, ascending.
    pub namespaces: Vec<NamespaceReport>,
    /// ANA states that were set; all others are optimized.
    pub ana: Vec<AnaReport>,
    /// Its controllers, ascending.
    pub controllers: Vec<ControllerReport>,
}

/// A host that is let in by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostReport {
    /// Its name.
    pub nqn: String,
    /// It may make, attach and delete namespaces.
    pub manages: bool,
    /// It has to show a key (DH-HMAC-CHAP).
    pub authenticates: bool,
    /// It has a key for TLS, or makes one by authentication.
    pub tls: bool,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamespaceReport {
    /// Its identifier.
    pub nsid: u32,
    /// Its ANA group.
    pub group: u32,
    /// Its size.
    pub bytes: u64,
    /// Bytes per block.
    pub block_size: u32,
    /// Its globally unique identifier, 32 hexadecimal digits.
    pub nguid: String,
}

/// The state of a group at a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AnaReport {
    /// PORTID.
    pub port: u16,
    /// ANAGRPID.
    pub group: u32,
    /// As [`nvme::AnaState`] is written.
    pub state: String,
}

/// A controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ControllerReport {
    /// CNTLID.
    pub id: u16,
    /// The host that has made it.
    pub host: String,
    /// The port by which it was reached.
    pub port: u16,
    /// Its I/O queues.
    pub io_queues: usize,
}

impl Target {
    /// What the target is at the moment.
    pub fn report(&self) -> TargetReport {
        let state = self.shared.lock();
        let ports = state.ports.iter().map(|port| PortReport {
            id: port.config.id.0,
            listening: port.served,
            advertise: port.config.advertise,
            discovery_only: port.config.discovery_only,
        });
        let subsystems = state.subsystems.iter().map(|(nqn, found)| subsystem(&state, nqn, found));
        TargetReport {
            ports: ports.collect(),
            subsystems: subsystems.collect(),
            referrals: state.ports.referrals().to_vec(),
            io_queues_by_reactor: self.shared.loads.counts(),
        }
    }
}

fn subsystem(state: &State, nqn: &Nqn, found: &Subsystem) -> SubsystemReport {
    let namespaces = found.namespaces.values().map(|attached| NamespaceReport {
        nsid: attached.nsid,
        group: attached.group,
        bytes: attached.info.bytes(),
        block_size: attached.info.block_size,
        nguid: format!("{:032x}", u128::from_be_bytes(attached.info.nguid)),
    });
    let controllers = state.controllers.values().filter(|controller| controller.subsystem() == nqn);
    let controllers = controllers.map(|controller| ControllerReport {
        id: controller.id(),
        host: controller.host().to_string(),
        port: controller.port().0,
        io_queues: controller.io_queues(),
    });
    let ana = found.groups.states();
    SubsystemReport {
        nqn: nqn.to_string(),
        serial: found.serial.clone(),
        ports: found.access.ports().map(|ports| ports.iter().map(|port| port.0).collect()),
        any_host: found.access.any(),
        hosts: found.access.hosts().map(report_host).collect(),
        namespaces: namespaces.collect(),
        ana: ana.map(|(port, group, state)| AnaReport { port: port.0, group, state: state.to_string() }).collect(),
        controllers: controllers.collect(),
    }
}

fn report_host((nqn, config): (&Nqn, &HostConfig)) -> HostReport {
    HostReport {
        nqn: nqn.to_string(),
        manages: config.manage,
        authenticates: config.keys.is_some(),
        tls: !config.tls_keys.is_empty() || config.concatenation,
    }
}
