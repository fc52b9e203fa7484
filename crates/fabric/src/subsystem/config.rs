//! What a target is made of, and why it can not be made so.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use device::NamespaceInfo;
use nvme::{AnaState, Nqn};

use super::limits::{
    ANA_GROUPS_MAX, CONNECTIONS_MAX, HOSTS_MAX, IN_CAPSULE_BYTES_MAX, IO_QUEUE_ENTRIES_MAX, IO_QUEUES_MAX, MDTS,
    NSID_MAX, PORTS_MAX, REFERRALS_MAX, SUBSYSTEMS_MAX,
};
use super::secure::TlsPolicy;
use super::stats::CommandKind;
use crate::auth::{HostKeys, Policy};
use crate::psk::RetainedPsk;

/// Options of a target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Connections at a time; more are closed at once. At most [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// Hashes and DH groups that a host may authenticate with, the preferred ones first.
    pub authentication: Policy,
    /// Hosts without keys are not let in, also not by the discovery subsystem.
    pub require_authentication: bool,
    /// What is offered to hosts.
    pub profile: Profile,
}

/// What is offered of all that the specification leaves to a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Entries of an I/O queue (CAP.MQES + 1).
    pub io_queue_entries_max: u16,
    /// I/O queues of a controller.
    pub io_queues_max: u16,
    /// Data in the capsule of an I/O command.
    pub in_capsule_bytes_max: u32,
    /// MDTS: the largest transfer, a power of two of 4 KiB.
    pub mdts: u8,
    /// Blocks of an atomic write, fused ones included, at most (AWUN, ACWU).
    pub atomic_blocks_max: u32,
    /// Commands beyond Read, Write, Flush and Compare, which a fused pair needs.
    pub optional_commands: bool,
}

impl Profile {
    /// All that this target can do.
    pub const FULL: Profile = Profile {
        io_queue_entries_max: IO_QUEUE_ENTRIES_MAX,
        io_queues_max: IO_QUEUES_MAX,
        in_capsule_bytes_max: IN_CAPSULE_BYTES_MAX,
        mdts: MDTS,
        atomic_blocks_max: u32::MAX,
        optional_commands: true,
    };

    /// The least that a controller with fused pairs may offer: hosts that work with it work with any. One I/O queue, with
    /// room for the two halves of a pair; no data in capsules; transfers of 8 KiB; atomic units of one block.
    pub const MINIMAL: Profile = Profile {
        io_queue_entries_max: 3,
        io_queues_max: 1,
        in_capsule_bytes_max: 0,
        mdts: 1,
        atomic_blocks_max: 1,
        optional_commands: false,
    };

    /// What a namespace is to hosts.
    pub(super) fn of(&self, info: NamespaceInfo) -> NamespaceInfo {
        NamespaceInfo {
            atomic_blocks: info.atomic_blocks.min(self.atomic_blocks_max),
            compare_and_write_blocks_max: info.compare_and_write_blocks_max.min(self.atomic_blocks_max),
            transfer_blocks_max: info.transfer_blocks_max.min((4096 << self.mdts) / info.block_size),
            write_uncorrectable: info.write_uncorrectable && self.optional_commands,
            ..info
        }
    }

    /// Whether hosts may enable more than the NVM Command Set.
    pub(super) fn has_command_sets(&self) -> bool {
        self.optional_commands
    }

    /// Whether hosts may use commands of a kind.
    pub(super) fn offers(&self, kind: CommandKind) -> bool {
        use CommandKind::{Compare, CompareAndWrite, Flush, Read, Write};
        self.optional_commands || matches!(kind, Read | Write | Flush | Compare | CompareAndWrite)
    }
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            connections_max: CONNECTIONS_MAX,
            authentication: Policy::default(),
            require_authentication: false,
            profile: Profile::FULL,
        }
    }
}

/// A port of the target, as PORTID in the discovery log names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for PortId {
    type Err = String;

    fn from_str(text: &str) -> Result<PortId, String> {
        let id = text.parse().ok().filter(|&id| id > 0);
        id.map(PortId).ok_or_else(|| format!("port id `{text}`: must be a number from 1 to 65535"))
    }
}

/// How a port presents itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Its name.
    pub id: PortId,
    /// The address in the discovery log, where that is not the one listened at. An unspecified IP address (0.0.0.0) stands
    /// for the one at which the asking host has reached us.
    pub advertise: Option<SocketAddr>,
    /// Only the discovery subsystem is to be had here.
    pub discovery_only: bool,
    /// Whether connections use TLS.
    pub tls: TlsPolicy,
}

impl PortConfig {
    /// A port for everything, at the address that it listens at.
    pub fn new(id: PortId) -> PortConfig {
        PortConfig { id, advertise: None, discovery_only: false, tls: TlsPolicy::Off }
    }
}

/// What a subsystem knows of a host that it lets in, beyond its name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostConfig {
    /// The keys of a host that must authenticate (NVMe Base 2.0 §8.13); a host without is let in by its name.
    pub keys: Option<HostKeys>,
    /// Its keys for TLS, one or in several derivations ([`crate::psk::ConfiguredPsk::retain_all`]).
    pub tls_keys: Vec<RetainedPsk>,
    /// Only over TLS, also at ports that would take a plain connection.
    pub tls_required: bool,
    /// Where it must use TLS it may come without for as long as it takes to make a key by authentication (secure channel
    /// concatenation, NVMe Base 2.0c §8.13.5.9), for which it needs `keys`.
    pub concatenation: bool,
    /// It may make, delete, attach and detach the namespaces of its subsystem's stores (NVMe Base 2.0c §8.12), also those of other
    /// hosts. Nobody may who was not told so: who may use a namespace must not thereby be able to destroy all.
    pub manage: bool,
    /// The shared namespaces that it makes are for every host that is let in, from each one's next controller on: a control plane
    /// makes them for hosts that are not there yet.
    pub makes_for_all: bool,
}

/// Why a target can not be set up as asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The name is taken, or is the discovery subsystem's.
    #[error("the subsystem {0} exists already; give each subsystem a name of its own")]
    SubsystemExists(Nqn),
    /// The serial number does not fit its field.
    #[error("the serial number {0:?} must have 1 to 20 printable ASCII characters without blanks")]
    Serial(String),
    /// Over the bound.
    #[error("a target has at most {SUBSYSTEMS_MAX} subsystems")]
    TooManySubsystems,
    /// No such subsystem.
    #[error("there is no subsystem {0}")]
    NoSubsystem(Nqn),
    /// Not from 1 to [`NSID_MAX`].
    #[error("the namespace identifier {0} is not from 1 to {NSID_MAX}")]
    NamespaceId(u32),
    /// Taken.
    #[error("the subsystem has a namespace {0} already")]
    NamespaceExists(u32),
    /// What is kept with it of its reservations makes no sense; to serve it without them would let fenced hosts in.
    #[error(
        "the reservations kept with namespace {nsid} can't be read: {reason}; was it served by a newer version? restore its \
             sidecar from a copy, or remove that to give up reservations and identity"
    )]
    Reservations {
        /// The namespace.
        nsid: u32,
        /// What is wrong with them.
        reason: String,
    },
    /// No such namespace.
    #[error("the subsystem has no namespace {0}")]
    NoNamespace(u32),
    /// Taken.
    #[error("there is a port {0} already; give each port an id of its own")]
    PortExists(PortId),
    /// No such port.
    #[error("there is no port {0}")]
    NoPort(PortId),
    /// Over the bound.
    #[error("a target has at most {PORTS_MAX} ports")]
    TooManyPorts,
    /// Over the bound.
    #[error("a target has at most {REFERRALS_MAX} referrals")]
    TooManyReferrals,
    /// Over the bound.
    #[error("a subsystem lists at most {HOSTS_MAX} hosts; let in any host, or deny some first")]
    TooManyHosts,
    /// TLS can't be used, or its keys can't.
    #[error("TLS: {0}")]
    Tls(String),
    /// A host that is not on the list.
    #[error("the host {host} is not on the list of {subsystem}{}", if *.any { "; it lets in any host" } else { "" })]
    NoHost {
        /// The subsystem.
        subsystem: Nqn,
        /// The host.
        host: Nqn,
        /// The subsystem lets in any host.
        any: bool,
    },
    /// Not from 1 to [`ANA_GROUPS_MAX`].
    #[error("the ANA group {0} is not from 1 to {ANA_GROUPS_MAX}")]
    AnaGroup(u32),
    /// There is no way back (NVMe Base 2.0 §8.1.1.7).
    #[error(
        "group {group} at port {port} is in the state persistent-loss, which has no way back to {wanted}; put its \
             namespaces into another group, or start the target anew"
    )]
    PersistentLoss {
        /// The port.
        port: PortId,
        /// The group.
        group: u32,
        /// The state asked for.
        wanted: AnaState,
    },
}
