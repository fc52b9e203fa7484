//! Ports, and the discovery log that names them (NVMe Base 2.0 §5.16.1.23, §3.1.2.3).
//!
//! A host sees the subsystems that it may use, at the ports where they are to be had; then where this discovery service is,
//! and which others there are.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nvme::fabrics::{AddressFamily, DiscoveryEntry, SubsystemType, TransportType, entry_flags};
use nvme::identify::ascii_field;
use nvme::{CONTROLLER_ID_DYNAMIC, Nqn};
use zerocopy::FromZeros;

use super::config::{ConfigError, PortConfig, PortId};
use super::limits::{ADMIN_QUEUE_ENTRIES_MAX, PORTS_MAX, REFERRALS_MAX};
use super::secure::TlsPolicy;
use crate::psk::TlsPsk;

/// TREQ: a host may do without SQ flow control (NVMe Base 2.0c figure 263, bit 2).
const FLOW_CONTROL_OPTIONAL: u8 = 1 << 2;
/// TREQ bits 1:0: a secure channel is required.
const SECURE_REQUIRED: u8 = 1;
/// TREQ bits 1:0: a secure channel is not required.
const SECURE_NOT_REQUIRED: u8 = 2;
/// TSAS of TCP, SECTYPE (NVMe/TCP 1.0c §3.6.3): TLS 1.3.
const SECTYPE_TLS13: u8 = 2;

/// How a connection has reached us.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub port: PortId,
    /// The key that TLS was begun with; `None`: a plain connection.
    pub psk: Option<Arc<TlsPsk>>,
}

/// A port and where it listens.
pub(super) struct Port {
    pub config: PortConfig,
    pub served: Option<SocketAddr>,
}

impl Port {
    /// Where hosts are sent, if anywhere.
    pub fn address(&self) -> Option<SocketAddr> {
        self.config.advertise.or(self.served)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Ports {
    ports: BTreeMap<PortId, Port>,
    referrals: Vec<SocketAddr>,
    /// GENCTR of the discovery log.
    generation: u64,
}

impl Ports {
    /// Something in the discovery log of some host has changed.
    pub fn log_changed(&mut self) {
        self.generation += 1;
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn get(&self, id: PortId) -> Option<&Port> {
        self.ports.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Port> {
        self.ports.values()
    }

    pub fn referrals(&self) -> &[SocketAddr] {
        &self.referrals
    }

    pub fn add(&mut self, config: PortConfig) -> Result<(), ConfigError> {
        if self.ports.contains_key(&config.id) {
            return Err(ConfigError::PortExists(config.id));
        }
        if self.ports.len() >= PORTS_MAX {
            return Err(ConfigError::TooManyPorts);
        }
        self.ports.insert(config.id, Port { config, served: None });
        Ok(())
    }

    /// The port that listens at `address`, made if there is none; `None` when there are too many.
    pub fn at(&mut self, address: SocketAddr) -> Option<PortId> {
        if let Some(port) = self.ports.values().find(|port| port.served == Some(address)) {
            return Some(port.config.id);
        }
        let id = (1..=u16::MAX).map(PortId).find(|id| !self.ports.contains_key(id))?;
        self.add(PortConfig::new(id)).ok().map(|()| id)
    }

    /// Notes where a port listens; whether that is news.
    pub fn serve(&mut self, id: PortId, address: SocketAddr) -> bool {
        let port = self.ports.get_mut(&id).filter(|port| port.served != Some(address));
        port.map(|port| port.served = Some(address)).is_some()
    }

    /// Names another discovery service; whether that is news.
    pub fn refer(&mut self, address: SocketAddr) -> Result<bool, ConfigError> {
        if self.referrals.contains(&address) {
            return Ok(false);
        }
        if self.referrals.len() >= REFERRALS_MAX {
            return Err(ConfigError::TooManyReferrals);
        }
        self.referrals.push(address);
        Ok(true)
    }

    /// The log's entries for a host that has reached us at `local`; `visible`: the subsystems it may use at a port.
    pub fn entries<'a, I>(&self, local: SocketAddr, visible: impl Fn(PortId) -> I) -> Vec<DiscoveryEntry>
    where
        I: Iterator<Item = &'a Nqn>,
    {
        let reached = |address: SocketAddr| {
            let ip = if address.ip().is_unspecified() { local.ip() } else { address.ip() };
            // An IPv4 address in IPv6 clothes is an IPv4 address.
            SocketAddr::new(ip.to_canonical(), address.port())
        };
        let addresses = || self.ports.values().filter_map(|port| Some((port, port.address()?)));
        let mut entries = Vec::new();
        for (port, address) in addresses().filter(|(port, _)| !port.config.discovery_only) {
            let kind = SubsystemType::NVM;
            let subsystems = visible(port.config.id);
            entries.extend(subsystems.map(|nqn| entry(kind, nqn, Some(&port.config), reached(address))));
        }
        // What ports at unspecified addresses return depends on the way the host came.
        let same = addresses().all(|(_, address)| !address.ip().is_unspecified());
        let flags = entry_flags::PERSISTENT | if same { entry_flags::SAME_INFORMATION } else { 0 };
        for (port, address) in addresses() {
            let (kind, nqn) = (SubsystemType::CURRENT_DISCOVERY, Nqn::discovery());
            let mut own = entry(kind, &nqn, Some(&port.config), reached(address));
            own.eflags = flags.into();
            entries.push(own);
        }
        let referral = |&address| entry(SubsystemType::REFERRAL, &Nqn::discovery(), None, reached(address));
        entries.extend(self.referrals.iter().map(referral));
        entries
    }
}

fn entry(kind: SubsystemType, nqn: &Nqn, port: Option<&PortConfig>, address: SocketAddr) -> DiscoveryEntry {
    let family = match address.ip() {
        IpAddr::V4(_) => AddressFamily::IPV4,
        IpAddr::V6(_) => AddressFamily::IPV6,
    };
    let mut entry = DiscoveryEntry::new_zeroed();
    entry.trtype = TransportType::TCP.0;
    entry.adrfam = family.0;
    entry.subtype = kind.0;
    let tls = port.map_or(TlsPolicy::Off, |port| port.tls);
    let secure = if tls == TlsPolicy::Required { SECURE_REQUIRED } else { SECURE_NOT_REQUIRED };
    entry.treq = secure | FLOW_CONTROL_OPTIONAL;
    entry.tsas[0] = if tls == TlsPolicy::Off { 0 } else { SECTYPE_TLS13 };
    entry.portid = port.map_or(0, |port| port.id.0).into();
    entry.cntlid = CONTROLLER_ID_DYNAMIC.into();
    entry.asqsz = ADMIN_QUEUE_ENTRIES_MAX.into();
    entry.trsvcid = ascii_field(&address.port().to_string());
    entry.subnqn = nqn.to_field();
    entry.traddr = ascii_field(&address.ip().to_string());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::fabrics::text_field;

    fn served_at(address: &str) -> Ports {
        let mut ports = Ports::default();
        let address = address.parse().expect("an address");
        assert_eq!(ports.at(address), Some(PortId(1)));
        assert!(ports.serve(PortId(1), address));
        assert_eq!(ports.at(address), Some(PortId(1)), "the same place is the same port");
        ports
    }

    fn names<'a>(nqn: &'a Nqn) -> impl Fn(PortId) -> std::iter::Once<&'a Nqn> {
        move |_| std::iter::once(nqn)
    }

    /// Behind a socket of both families an IPv4 host shows as a mapped IPv6 address; it asks for, and knows, its own family's.
    #[test]
    fn discovery_gives_an_ipv4_host_an_ipv4_address() {
        let nqn = "nqn.2026-01.example.yagura:test".parse().expect("an NQN");
        let entries = served_at("[::]:4420").entries("[::ffff:192.0.2.7]:4420".parse().expect("one"), names(&nqn));
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].adrfam, text_field(&entries[0].traddr)), (1, Some("192.0.2.7")));
    }

    #[test]
    fn ports_say_that_they_return_the_same_where_they_do() {
        let nqn = "nqn.2026-01.example.yagura:test".parse().expect("an NQN");
        let own_flags = |address: &str| {
            let entries = served_at(address).entries("192.0.2.7:4420".parse().expect("one"), names(&nqn));
            let own = entries.iter().find(|entry| entry.subtype == SubsystemType::CURRENT_DISCOVERY.0).expect("there");
            assert!(entries.iter().all(|entry| entry.subtype == own.subtype || entry.eflags.get() == 0));
            own.eflags.get()
        };
        assert_eq!(own_flags("192.0.2.7:4420"), entry_flags::PERSISTENT | entry_flags::SAME_INFORMATION);
        assert_eq!(own_flags("0.0.0.0:4420"), entry_flags::PERSISTENT, "its address is another for every network");
    }

    #[test]
    fn the_log_says_what_tls_a_port_does() {
        let nqn = "nqn.2026-01.example.yagura:test".parse().expect("an NQN");
        let address = "192.0.2.7:4420".parse().expect("one");
        for (tls, treq, tsas) in [(TlsPolicy::Off, 6, 0), (TlsPolicy::Allowed, 6, 2), (TlsPolicy::Required, 5, 2)] {
            let mut ports = Ports::default();
            ports.add(PortConfig { tls, ..PortConfig::new(PortId(1)) }).expect("room");
            assert!(ports.serve(PortId(1), address));
            for entry in ports.entries(address, names(&nqn)) {
                assert_eq!((entry.treq, entry.tsas[0]), (treq, tsas), "{tls}");
                assert!(entry.tsas[1..].iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn ports_and_referrals_are_bounded() {
        let mut ports = Ports::default();
        for id in 1..=PORTS_MAX as u16 {
            ports.add(PortConfig::new(PortId(id))).expect("room");
        }
        assert_eq!(ports.add(PortConfig::new(PortId(9999))), Err(ConfigError::TooManyPorts));
        assert_eq!(ports.add(PortConfig::new(PortId(1))), Err(ConfigError::PortExists(PortId(1))));
        assert_eq!(ports.at("192.0.2.7:1".parse().expect("one")), None);
        let address = |port: usize| SocketAddr::from(([192, 0, 2, 1], port as u16));
        for port in 1..=REFERRALS_MAX {
            assert_eq!(ports.refer(address(port)), Ok(true));
        }
        assert_eq!(ports.refer(address(1)), Ok(false));
        assert_eq!(ports.refer(address(REFERRALS_MAX + 1)), Err(ConfigError::TooManyReferrals));
    }
}
