//! [`Newcomers`]: what peers may hold before they have shown who they are. What they hold afterwards: [`super::guests`].
//!
//! Invariants:
//! - Of the connections that have not got through Connect yet, one address has a share: whoever opens connections and says
//!   nothing leaves room for the others.
//! - Of the queues that have yet to authenticate, one address has a share, and so has one host. Each costs computations, and
//!   whoever knows a host's name may ask for them; they wait in one line, and all other hosts behind them.
//! - A host has more places than a network, which has more than an address: nobody keeps a host out from one of either that is not
//!   the host's own.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::offload::OFFLOADED_MAX;
use nvme::Nqn;

use super::limits::CONNECTIONS_MAX;

/// The share of a target's connections that one address may have without a Connect. Derived: a Linux host connects the queues
/// of a controller one after the other, so that those of all controllers there can be come to as many; of a target with few
/// connections no less than [`CONNECTING_MIN`].
const CONNECTING_SHARE: usize = 4;
/// Chosen: one for each I/O queue of a controller.
const CONNECTING_MIN: usize = 64;
/// Queues of one address that have yet to authenticate. Chosen: what waits before others is computed in some seconds, even with
/// the largest group; and hosts behind one address that begin at once are done in milliseconds each.
const AUTHENTICATING_OF_ADDRESS_MAX: usize = OFFLOADED_MAX / 16;
/// Queues of one host that have yet to authenticate, from all its addresses. Chosen: see the module.
const AUTHENTICATING_OF_HOST_MAX: usize = OFFLOADED_MAX / 4;

/// A network of IPv6 has as much as so many of its addresses: a machine is often given a whole one, and a whole storage network is
/// often one. Chosen: the others have half of what there is.
const NETWORK_FACTOR: usize = 2;

const _: () = assert!(CONNECTIONS_MAX / CONNECTING_SHARE >= super::limits::CONTROLLERS_MAX);
const _: () = assert!(2 * NETWORK_FACTOR * AUTHENTICATING_OF_ADDRESS_MAX <= AUTHENTICATING_OF_HOST_MAX);

/// See the module.
pub(super) struct Newcomers {
    connecting: Peers,
    authenticating: Peers,
    hosts: Arc<Counts<Nqn>>,
}

/// A connection that has not got through Connect yet.
pub(super) type Connecting = Peer;

/// A queue that has yet to authenticate.
pub(super) struct Authenticating {
    _peer: Peer,
    _host: Counted<Nqn>,
}

impl Newcomers {
    /// Those of a target with this many connections at most.
    pub fn new(connections_max: usize) -> Newcomers {
        let connecting_max = (connections_max.min(CONNECTIONS_MAX) / CONNECTING_SHARE).max(CONNECTING_MIN);
        Newcomers {
            connecting: Peers::new(connecting_max),
            authenticating: Peers::new(AUTHENTICATING_OF_ADDRESS_MAX),
            hosts: Counts::new(AUTHENTICATING_OF_HOST_MAX),
        }
    }

    /// A place for a new connection, if its address has not all of its own.
    pub fn connect(&self, peer: IpAddr) -> Option<Connecting> {
        self.connecting.count(peer)
    }

    /// A place for a queue whose host has to authenticate, if the address and the host have not all of theirs.
    pub fn authenticate(&self, peer: IpAddr, host: &Nqn) -> Option<Authenticating> {
        let peer = self.authenticating.count(peer)?;
        self.hosts.count(host.clone()).map(|host| Authenticating { _peer: peer, _host: host })
    }
}

/// What each address has, and each network of IPv6.
pub(super) struct Peers {
    addresses: Arc<Counts<IpAddr>>,
    networks: Arc<Counts<IpAddr>>,
}

/// One of what an address and its network have.
pub(super) struct Peer {
    _address: Counted<IpAddr>,
    _network: Counted<IpAddr>,
}

impl Peers {
    pub fn new(of_address_max: usize) -> Peers {
        Peers { addresses: Counts::new(of_address_max), networks: Counts::new(of_address_max * NETWORK_FACTOR) }
    }

    pub fn count(&self, peer: IpAddr) -> Option<Peer> {
        let address = self.addresses.count(peer.to_canonical())?;
        self.networks.count(network(peer)).map(|network| Peer { _address: address, _network: network })
    }
}

/// Of IPv6 the network that an address belongs to; an address of IPv4 stands for itself.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// How many there are of each, up to a bound.
pub(super) struct Counts<K> {
    most: usize,
    counts: Mutex<BTreeMap<K, usize>>,
}

impl<K: Ord + Clone> Counts<K> {
    pub fn new(most: usize) -> Arc<Counts<K>> {
        Arc::new(Counts { most, counts: Mutex::default() })
    }

    /// One more of `key`; `None`: there are all that there may be.
    pub fn count(self: &Arc<Counts<K>>, key: K) -> Option<Counted<K>> {
        let mut counts = lock(&self.counts);
        let count = counts.entry(key.clone()).or_default();
        if *count == self.most {
            return None;
        }
        *count += 1;
        Some(Counted { counts: self.clone(), key })
    }
}

/// One that was counted, until it is dropped.
pub(super) struct Counted<K: Ord> {
    counts: Arc<Counts<K>>,
    key: K,
}

impl<K: Ord> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts.counts);
        let Some(count) = counts.get_mut(&self.key) else { return };
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.key);
        }
    }
}

/// A panic while the lock was held leaves counts that are still valid: each change is one.
fn lock<T>(counts: &Mutex<T>) -> MutexGuard<'_, T> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Peers {
        fn is_empty(&self) -> bool {
            lock(&self.addresses.counts).is_empty() && lock(&self.networks.counts).is_empty()
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_has_its_share_and_gets_it_back() {
        let newcomers = Newcomers::new(1024);
        let mut all: Vec<_> = (0..256).map(|_| newcomers.connect(address("192.0.2.1")).expect("its share")).collect();
        for same in ["192.0.2.1", "::ffff:192.0.2.1"] {
            assert!(newcomers.connect(address(same)).is_none());
        }
        assert!(newcomers.connect(address("192.0.2.2")).is_some());
        all.pop();
        assert!(newcomers.connect(address("192.0.2.1")).is_some());
        drop(all);
        assert!(newcomers.connecting.is_empty(), "nothing is kept of those who have gone");
        let few = Newcomers::new(8);
        assert_eq!((0..100).map_while(|_| few.connect(address("2001:db8::1"))).collect::<Vec<_>>().len(), 64);
    }

    #[test]
    fn an_ipv6_network_has_as_much_as_two_of_its_addresses() {
        let newcomers = Newcomers::new(8);
        let fill = |host: u16| -> Vec<_> {
            let from = address(&format!("2001:db8:0:1::{host:x}"));
            (0..1000).map_while(|_| newcomers.connect(from)).collect()
        };
        let all: Vec<_> = (1..=3).map(fill).collect();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 0]);
        assert!(newcomers.connect(address("2001:db8:0:2::")).is_some());
    }

    /// A network had exactly a host's places: two addresses of one that anybody is given kept a host out by its name.
    #[test]
    fn a_network_leaves_a_host_half_of_its_places() {
        let newcomers = Newcomers::new(1024);
        let host: Nqn = "nqn.2026-01.example:a".parse().expect("a name");
        let fill =
            |from: &str| -> Vec<_> { (0..1000).map_while(|_| newcomers.authenticate(address(from), &host)).collect() };
        let of_network: Vec<_> = (1..9).flat_map(|at| fill(&format!("2001:db8::{at}"))).collect();
        assert_eq!(of_network.len(), AUTHENTICATING_OF_HOST_MAX / 2);
        assert_eq!(fill("192.0.2.1").len(), AUTHENTICATING_OF_ADDRESS_MAX, "the host itself");
    }

    #[test]
    fn a_host_is_not_kept_out_from_one_address_nor_by_its_name_all_others() {
        let newcomers = Newcomers::new(1024);
        let host = |name: &str| -> Nqn { format!("nqn.2026-01.example:{name}").parse().expect("a name") };
        let fill = |from: &str| -> Vec<_> {
            (0..1000).map_while(|_| newcomers.authenticate(address(from), &host("a"))).collect()
        };
        let first = fill("192.0.2.1");
        assert_eq!(first.len(), AUTHENTICATING_OF_ADDRESS_MAX);
        assert!(newcomers.authenticate(address("192.0.2.1"), &host("b")).is_none());
        let others: Vec<_> = (2..20).map(|at| fill(&format!("192.0.2.{at}"))).collect();
        let all: usize = others.iter().map(Vec::len).sum();
        assert_eq!(first.len() + all, AUTHENTICATING_OF_HOST_MAX);
        assert!(newcomers.authenticate(address("192.0.2.99"), &host("b")).is_some());
        drop((first, others));
        assert!(lock(&newcomers.hosts.counts).is_empty() && newcomers.authenticating.is_empty());
    }
}
