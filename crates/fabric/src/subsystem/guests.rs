//! [`Guests`]: what hosts may hold that have shown nothing, for as long as they like.
//!
//! The discovery subsystem is everybody's, and so is a subsystem that lets in any host: to have a controller there nobody shows
//! anything but an address. And whoever knows the name of a listed host that has no keys is that host. Invariants:
//! - Discovery controllers have a pool of their own: however many there are, a host gets its controller. Where connections are
//!   few they have a part of these at most, and an address a part of that.
//! - Of the controllers and queues of subsystems, those of hosts that are on no list are a part. What is left is for hosts that
//!   the operator has named. Of those a name has a share, and an address, unless the host shows a key.
//! - Of either kind an address has a share, a network of IPv6 too, and a host's name. They are held until the connection ends, not
//!   until it has got through Connect: with a share that ended there one machine had all controllers in half a second.

use std::net::IpAddr;
use std::sync::Arc;

use engine::net::peers::{Counted, Counts, Peer, Peers};
use nvme::Nqn;

use super::limits::{
    CONNECTIONS_MAX, CONTROLLERS_MAX, DISCOVERY_CONTROLLERS_MAX, GUEST_KEEP_ALIVE_MS_MAX, KEEP_ALIVE_MS_MAX,
};
use super::newcomers::peers;

/// Of the discovery controllers one address or host name has this part. Chosen: the hosts behind one address that look around at
/// the same moment; whoever finds no place tries again.
const DISCOVERY_SHARE: usize = 8;
/// At least so many, where that leaves half to others. Chosen: a host that stays to hear of changes, and one that looks around
/// meanwhile.
const DISCOVERY_MIN: usize = 2;
/// All discovery controllers have at most this part of few connections. Chosen: whoever only looks around leaves half to those who
/// have come for more.
const DISCOVERY_CONNECTIONS_SHARE: usize = 2;
/// What all guests have of what there is is all but this part. Chosen: the hosts on lists are few, and must not find it taken.
const LISTED_SHARE: usize = 4;
/// What one address or host name has is this part of what there is. Chosen: a machine that tests has hundreds of controllers, and
/// leaves room for another one.
const PEER_SHARE: usize = 2;
/// The same of hosts that are on a list and show nothing. Chosen: a host has one controller for each path and namespace group, and
/// one name that others know leaves half of what guests can't have.
const NAMED_SHARE: usize = 8;
/// Of the queues. Chosen: those of one controller with a queue for each processor are many.
const NAMED_QUEUES_SHARE: usize = 4;
/// Queues of guests where a target has few connections, at least. Chosen: one for each I/O queue of a controller.
const QUEUES_MIN: usize = 64;

/// By what a host is let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It is on the subsystem's list, and shows a key.
    Proven,
    /// It is on the list, and says so.
    Named,
    /// Any host is.
    Guest,
    /// To the discovery subsystem, which is everybody's.
    Discovery,
}

impl Standing {
    /// The longest keep alive timeout that it may ask for.
    pub fn keep_alive_ms_max(self) -> u32 {
        if matches!(self, Standing::Proven | Standing::Named) { KEEP_ALIVE_MS_MAX } else { GUEST_KEEP_ALIVE_MS_MAX }
    }
}

/// See the module.
pub(super) struct Guests {
    discovery: Pool,
    controllers: Pool,
    queues: Pool,
    named_controllers: Pool,
    named_queues: Pool,
}

/// A guest's queue, until it is dropped.
pub(super) struct Place {
    _controller: Option<Taken>,
    _queue: Option<Taken>,
}

impl Guests {
    /// Those of a target with this many connections at most.
    pub fn new(connections_max: usize) -> Guests {
        let part = |all: usize| Pool::new(all - all / LISTED_SHARE, all / PEER_SHARE);
        let queues = |share: usize| connections_max.clamp(share * QUEUES_MIN, CONNECTIONS_MAX);
        let discovery = (connections_max / DISCOVERY_CONNECTIONS_SHARE).clamp(1, DISCOVERY_CONTROLLERS_MAX);
        let least = DISCOVERY_MIN.min(discovery.div_ceil(2));
        Guests {
            discovery: Pool::new(discovery, (discovery / DISCOVERY_SHARE).max(least)),
            controllers: part(CONTROLLERS_MAX),
            queues: part(queues(PEER_SHARE)),
            named_controllers: Pool::new(CONTROLLERS_MAX, CONTROLLERS_MAX / NAMED_SHARE),
            named_queues: Pool::new(CONNECTIONS_MAX, queues(NAMED_QUEUES_SHARE) / NAMED_QUEUES_SHARE),
        }
    }

    /// A place for a queue that is being connected, if there is one. Of a host that shows a key nothing is counted.
    pub fn place(&self, standing: Standing, qid: u16, peer: IpAddr, host: &Nqn) -> Option<Place> {
        let (controllers, queues) = match standing {
            Standing::Proven => return Some(Place { _controller: None, _queue: None }),
            Standing::Named => (&self.named_controllers, Some(&self.named_queues)),
            Standing::Guest => (&self.controllers, Some(&self.queues)),
            // There are no other queues than those of discovery controllers, which are counted.
            Standing::Discovery => (&self.discovery, None),
        };
        let queue = match queues {
            Some(queues) => Some(queues.take(peer, host)?),
            None => None,
        };
        let controller = if qid == 0 { Some(controllers.take(peer, host)?) } else { None };
        Some(Place { _controller: controller, _queue: queue })
    }
}

/// So many of one kind, and what each address and each host has of them.
struct Pool {
    all: Arc<Counts<()>>,
    peers: Peers,
    hosts: Arc<Counts<Nqn>>,
}

struct Taken {
    _all: Counted<()>,
    _peer: Peer,
    _host: Counted<Nqn>,
}

impl Pool {
    fn new(all: usize, of_peer: usize) -> Pool {
        Pool { all: Counts::new(all), peers: peers(of_peer), hosts: Counts::new(of_peer) }
    }

    fn take(&self, peer: IpAddr, host: &Nqn) -> Option<Taken> {
        let peer = self.peers.count(peer)?;
        let host = self.hosts.count(host.clone())?;
        self.all.count(()).map(|all| Taken { _all: all, _peer: peer, _host: host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: usize) -> Nqn {
        format!("nqn.2026-01.example:{number}").parse().expect("a name")
    }

    fn fill(guests: &Guests, standing: Standing, network: u8, host: impl Fn(usize) -> Nqn) -> Vec<Place> {
        let from = |number: usize| IpAddr::from([192, 0, network, (number / 8 % 250) as u8]);
        (0..5000)
            .map_while(|number| guests.place(standing, 0, from(number * usize::from(network)), &host(number)))
            .collect()
    }

    #[test]
    fn an_address_and_a_name_have_a_share_and_all_guests_a_part() {
        for (standing, share, all) in [
            (Standing::Discovery, DISCOVERY_CONTROLLERS_MAX / 8, DISCOVERY_CONTROLLERS_MAX),
            (Standing::Guest, CONTROLLERS_MAX / 2, CONTROLLERS_MAX * 3 / 4),
        ] {
            let guests = Guests::new(CONNECTIONS_MAX);
            let one_address = fill(&guests, standing, 0, host);
            assert_eq!(one_address.len(), share, "{standing:?}");
            let one_name = fill(&guests, standing, 8, |_| host(9999));
            assert_eq!(one_name.len(), share.min(all - share), "{standing:?}");
            let others = fill(&guests, standing, 8, |number| host(number + 5000));
            assert_eq!(one_address.len() + one_name.len() + others.len(), all, "{standing:?}");
            let address = IpAddr::from([198, 51, 100, 1]);
            assert!(guests.place(standing, 0, address, &host(7)).is_none());
            assert!(guests.place(Standing::Named, 0, address, &host(7)).is_some());
            drop((one_name, others));
            assert!(guests.place(standing, 0, address, &host(7)).is_some(), "what has gone is given back");
        }
    }

    /// Whoever knew the name of a listed host without keys had all controllers for a day.
    #[test]
    fn a_name_that_anybody_may_say_has_a_share_and_a_key_has_none() {
        let guests = Guests::new(CONNECTIONS_MAX);
        let share = CONTROLLERS_MAX / NAMED_SHARE;
        let one_name = fill(&guests, Standing::Named, 8, |_| host(1));
        assert_eq!(one_name.len(), share);
        let one_address = fill(&guests, Standing::Named, 0, |number| host(number + 2));
        assert_eq!(one_address.len(), share);
        let all_guests = fill(&guests, Standing::Guest, 8, |number| host(number + 5000));
        assert!(one_name.len() + all_guests.len() < CONTROLLERS_MAX, "nothing is left for the other hosts on the list");
        let (address, other) = (IpAddr::from([192, 0, 0, 0]), IpAddr::from([198, 51, 100, 1]));
        assert!(guests.place(Standing::Named, 0, other, &host(1)).is_none());
        assert!(guests.place(Standing::Named, 0, other, &host(0)).is_some());
        assert!((0..2000).all(|_| guests.place(Standing::Proven, 0, address, &host(1)).is_some()));
    }

    /// They did not scale: where the limit of descriptors leaves few connections, one address had them all by looking around.
    #[test]
    fn discovery_leaves_half_of_few_connections() {
        let of_address = [(CONNECTIONS_MAX, 64), (1024, 64), (512, 32), (64, 4), (16, 2), (4, 1), (2, 1)];
        for (connections, share) in of_address {
            let guests = Guests::new(connections);
            let one_address = fill(&guests, Standing::Discovery, 0, host);
            assert_eq!(one_address.len(), share, "of {connections}");
            let others = fill(&guests, Standing::Discovery, 8, |number| host(number + 5000));
            let all = one_address.len() + others.len();
            assert_eq!(all, (connections / 2).min(DISCOVERY_CONTROLLERS_MAX), "of {connections}");
            // A disk is an admin queue and an I/O queue.
            let address = IpAddr::from([198, 51, 100, 1]);
            let disk = [0, 1].map(|qid| guests.place(Standing::Guest, qid, address, &host(1)));
            assert!(disk.iter().all(Option::is_some), "of {connections}");
        }
    }

    #[test]
    fn queues_of_guests_leave_connections_for_others() {
        let guests = Guests::new(400);
        let place = |peer: u8| guests.place(Standing::Guest, 1, IpAddr::from([192, 0, 2, peer]), &host(peer.into()));
        let of_one: Vec<_> = (0..1000).map_while(|_| place(1)).collect();
        let of_another: Vec<_> = (0..1000).map_while(|_| place(2)).collect();
        assert_eq!((of_one.len(), of_another.len()), (200, 100));
    }
}
