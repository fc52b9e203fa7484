//! [`Newcomers`]: what peers may hold before they have shown who they are. What they hold afterwards: [`super::guests`].
//!
//! Invariants:
//! - Of the connections that have not got through Connect yet, one address has a share: whoever opens connections and says
//!   nothing leaves room for the others.
//! - Of the queues that have yet to authenticate, one address has a share, and so has one host. Each costs computations, and
//!   whoever knows a host's name may ask for them; they wait in one line, and all other hosts behind them.
//! - A host has more places than a network, which has more than an address: nobody keeps a host out from one of either that is not
//!   the host's own.

use std::net::IpAddr;
use std::sync::Arc;

use engine::net::peers::{Counted, Counts, NEWCOMERS_SHARE, Peer, Peers, newcomers_share};
use engine::offload::OFFLOADED_MAX;
use nvme::Nqn;

use super::limits::CONNECTIONS_MAX;

/// Connections that one address may have without a Connect, where that leaves half of them to others. Chosen: one for each I/O
/// queue of a controller.
const CONNECTING_MIN: usize = 64;
/// Queues of one address that have yet to authenticate. Chosen: what waits before others is computed in some seconds, even with
/// the largest group; and hosts behind one address that begin at once are done in milliseconds each.
const AUTHENTICATING_OF_ADDRESS_MAX: usize = OFFLOADED_MAX / 16;
/// Queues of one host that have yet to authenticate, from all its addresses. Chosen: see the module.
const AUTHENTICATING_OF_HOST_MAX: usize = OFFLOADED_MAX / 4;

/// A network of IPv6 has as much as so many of its addresses: a machine is often given a whole one, and a whole storage network is
/// often one. Chosen: the others have half of what there is.
const NETWORK_FACTOR: usize = 2;

// A Linux host connects the queues of a controller one after the other: those of all controllers may come through one address.
const _: () = assert!(CONNECTIONS_MAX / NEWCOMERS_SHARE >= super::limits::CONTROLLERS_MAX);
const _: () = assert!(2 * NETWORK_FACTOR * AUTHENTICATING_OF_ADDRESS_MAX <= AUTHENTICATING_OF_HOST_MAX);

/// What an address may have, and a network of such.
pub(super) fn peers(address_max: usize) -> Peers {
    Peers::new(address_max, address_max * NETWORK_FACTOR)
}

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
        let all = connections_max.min(CONNECTIONS_MAX);
        let share = newcomers_share(all, CONNECTING_MIN);
        let of_network = (share * NETWORK_FACTOR).min(all.saturating_sub(share)).max(1);
        Newcomers {
            connecting: Peers::new(share, of_network),
            authenticating: peers(AUTHENTICATING_OF_ADDRESS_MAX),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_has_a_quarter_of_the_connections_or_half_of_few() {
        let shares = |connections_max| {
            let newcomers = Newcomers::new(connections_max);
            let fill = |from: &str| (0..9999).map_while(|_| newcomers.connect(address(from))).collect::<Vec<_>>();
            let networks = [1, 2, 3].map(|host| fill(&format!("2001:db8:0:1::{host}")));
            assert!(newcomers.connect(address("2001:db8:0:2::")).is_some());
            networks.each_ref().map(Vec::len)
        };
        assert_eq!(shares(usize::MAX), [CONNECTIONS_MAX / 4, CONNECTIONS_MAX / 4, 0]);
        assert_eq!(shares(1024), [256, 256, 0]);
        assert_eq!(shares(256), [64, 64, 0]);
        assert_eq!(shares(100), [50, 0, 0], "one address, or one network, had all of few");
        assert_eq!(shares(8), [4, 0, 0]);
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
        assert_eq!(fill("192.0.2.1").len(), AUTHENTICATING_OF_ADDRESS_MAX, "what has gone is given back");
    }
}
