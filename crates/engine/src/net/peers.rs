//! [`Peers`]: what one address has of something that there is a bounded number of.
//!
//! Servers count by it those who have not said who they are: whoever opens connections and says nothing, and opens others when
//! these are ended, leaves room for those of other addresses.
//!
//! Invariant: what is counted is counted until it is dropped, and nothing is kept of those who have gone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The share of its connections that a server leaves to one address that has not said who it is. Chosen: three such addresses leave
/// as much for all others, and one has far more than come at a time, as each says it in milliseconds.
pub const NEWCOMERS_SHARE: usize = 4;
/// No less than so many of few. Guessed: what one machine's clients begin at once.
const NEWCOMERS_MIN: usize = 8;

/// What one address may have of so many connections before it has said who it is: a quarter, and `least`, as far as that leaves
/// half of them to others.
pub fn newcomers_share(connections: usize, least: usize) -> usize {
    (connections / NEWCOMERS_SHARE).max(least.min(connections / 2)).max(1)
}

/// What each address has, and each network of IPv6.
#[derive(Debug)]
pub struct Peers {
    addresses: Arc<Counts<IpAddr>>,
    networks: Arc<Counts<IpAddr>>,
}

/// One of what an address and its network have.
#[derive(Debug)]
pub struct Peer {
    _address: Counted<IpAddr>,
    _network: Counted<IpAddr>,
}

impl Peers {
    /// So many of one address, and of one network of IPv6.
    pub fn new(of_address_max: usize, of_network_max: usize) -> Peers {
        Peers { addresses: Counts::new(of_address_max), networks: Counts::new(of_network_max) }
    }

    /// Those who have not said who they are, at a server with so many connections. A network of IPv6 counts as one address: a
    /// machine is often given a whole one.
    pub fn newcomers(connections: usize) -> Peers {
        let share = newcomers_share(connections, NEWCOMERS_MIN);
        Peers::new(share, share)
    }

    /// Any number of each: nobody is asked who he is.
    pub fn unbounded() -> Peers {
        Peers::new(usize::MAX, usize::MAX)
    }

    /// One more of `peer`; `None`: it has all that it may.
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
#[derive(Debug)]
pub struct Counts<K> {
    most: usize,
    counts: Mutex<BTreeMap<K, usize>>,
}

impl<K: Ord + Clone> Counts<K> {
    /// So many of each at most.
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
#[derive(Debug)]
pub struct Counted<K: Ord> {
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

    fn fill(peers: &Peers, from: &str) -> Vec<Peer> {
        let from = from.parse().expect("an address");
        (0..10_000).map_while(|_| peers.count(from)).collect()
    }

    #[test]
    fn an_address_has_its_share_and_gets_it_back() {
        let peers = Peers::newcomers(1024);
        let mut all = fill(&peers, "192.0.2.1");
        assert_eq!(all.len(), 256);
        assert!(fill(&peers, "::ffff:192.0.2.1").is_empty(), "the same address");
        assert_eq!(fill(&peers, "192.0.2.2").len(), 256);
        all.pop();
        assert_eq!(fill(&peers, "192.0.2.1").len(), 1);
        drop(all);
        assert!(peers.is_empty(), "nothing is kept of those who have gone");
        assert_eq!(fill(&Peers::unbounded(), "192.0.2.1").len(), 10_000);
    }

    #[test]
    fn a_network_of_ipv6_has_what_it_is_given() {
        let lengths = |peers: Peers, addresses: [&str; 3]| {
            let held = addresses.map(|from| fill(&peers, from));
            held.each_ref().map(Vec::len)
        };
        let one_network = ["2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1:ffff::"];
        assert_eq!(lengths(Peers::new(64, 128), one_network), [64, 64, 0]);
        assert_eq!(lengths(Peers::newcomers(1024), one_network), [256, 0, 0]);
        assert_eq!(lengths(Peers::newcomers(1024), ["2001:db8::1", "2001:db8:0:1::1", "192.0.2.1"]), [256; 3]);
    }

    #[test]
    fn a_share_of_few_leaves_half() {
        let of = |connections| newcomers_share(connections, 8);
        assert_eq!([4096, 100, 32, 20, 16, 4, 2, 1, 0].map(of), [1024, 25, 8, 8, 8, 2, 1, 1, 1]);
    }
}
