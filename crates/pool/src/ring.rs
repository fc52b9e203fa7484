//! Consistent hashing: from a key to the N members that hold it, without leaving the host.
//!
//! Every member owns points on a ring of 64 bits, in proportion to its weight; a point depends on nothing but the member's
//! id, the point's number and the pool's seed, so that a member that comes or goes moves only what it gains or loses. A
//! key's members are the first N clockwise from the key's point that lie in N different failure domains; they are worked
//! out once per point, so that a lookup is one search and one slice, with no allocation.
//!
//! A key has two independent hashes of 64 bits. Were its place on the ring also its place in the table, a member's keys
//! would fill only the table pages under its own arcs and leave the others empty.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::change::{Side, State};
use crate::map::Map;

/// Points of a member of weight 100. Derived: the share of a member varies by about 1/sqrt(points), so by 6 % here;
/// 1,000 members then take 256,000 points and about 4 MB.
pub const POINTS_PER_WEIGHT_100: u64 = 256;
/// Most points of one member: its weight cannot make a ring larger than memory.
pub const MEMBER_POINTS_MAX: u64 = 8192;

/// A key's two hashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyHash {
    /// Its place in every member's table, and the order of lists and repair.
    pub home: u64,
    /// Its place on the ring.
    pub ring: u64,
}

impl KeyHash {
    /// Hashes `key` with the pool's seed.
    pub fn new(key: &[u8], seed: u64) -> KeyHash {
        let hash = xxh3_128_with_seed(key, seed);
        KeyHash { home: (hash >> 64) as u64, ring: hash as u64 }
    }
}

/// The placements of one map, over one list of members: two while the map is joint.
#[derive(Clone, Debug)]
pub struct Placements {
    /// The placement that is, or will be, the only one.
    pub new: Ring,
    /// The placement before the change, whose homes must agree as well.
    pub old: Option<Ring>,
}

/// One placement of a map.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Sorted; never empty.
    points: Vec<u64>,
    /// The homes of point `i` are `homes[i × replicas ..][.. replicas]`, indices into the map's members.
    homes: Vec<u16>,
    /// `starts[hash >> shift]`: the first point not before the bucket that the hash lies in.
    starts: Vec<u32>,
    shift: u32,
    replicas: usize,
}

impl Ring {
    /// Builds the ring of a valid map's new placement: the only one, unless the map is joint.
    pub fn new(map: &Map) -> Ring {
        Ring::of(map, Side::New)
    }

    /// Builds the ring of one placement of a valid map.
    pub fn of(map: &Map, side: Side) -> Ring {
        let replicas = usize::from(map.replicas);
        let mut owned = owned_points(map, side);
        owned.sort_unstable();
        // Two members with one point: the lower index, the same on every host. About 2^-30 at 1,000 members.
        owned.dedup_by_key(|(point, _)| *point);
        let domains = domain_numbers(map);
        let mut homes = Vec::with_capacity(owned.len() * replicas);
        for start in 0..owned.len() {
            let before = homes.len();
            for (_, member) in owned[start..].iter().chain(&owned[..start]) {
                let chosen = &homes[before..];
                let domain = domains[usize::from(*member)];
                if !chosen.iter().any(|&home: &u16| domains[usize::from(home)] == domain) {
                    homes.push(*member);
                    if homes.len() - before == replicas {
                        break;
                    }
                }
            }
            assert_eq!(homes.len() - before, replicas, "invariant: a valid map has as many domains as replicas");
        }
        let points: Vec<u64> = owned.into_iter().map(|(point, _)| point).collect();
        let bits = points.len().next_power_of_two().trailing_zeros().max(1);
        let shift = 64 - bits;
        let starts = (0..1u64 << bits).map(|bucket| points.partition_point(|&point| point < bucket << shift) as u32);
        let starts = starts.collect();
        Ring { points, homes, starts, shift, replicas }
    }

    /// The members (indices into the map) that hold a key with this hash, nearest first.
    pub fn homes(&self, hash: KeyHash) -> &[u16] {
        let mut index = self.starts[(hash.ring >> self.shift) as usize] as usize;
        while index < self.points.len() && self.points[index] < hash.ring {
            index += 1;
        }
        let index = if index == self.points.len() { 0 } else { index };
        &self.homes[index * self.replicas..][..self.replicas]
    }

    /// Members that hold each key.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// Replies that make a majority of a key's members.
    pub fn majority(&self) -> usize {
        self.replicas / 2 + 1
    }

    /// The ring's arcs in order: the last hash of each, and the members that hold its keys. What lies behind the last point
    /// belongs to the first arc.
    pub fn arcs(&self) -> impl Iterator<Item = (u64, &[u16])> {
        self.points.iter().copied().zip(self.all_homes())
    }

    /// Bytes it takes in memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.points[..]) + size_of_val(&self.homes[..]) + size_of_val(&self.starts[..])
    }

    /// Every set of homes that a key may have; many times over.
    pub fn all_homes(&self) -> impl Iterator<Item = &[u16]> {
        self.homes.chunks_exact(self.replicas)
    }

    /// Replies that meet every majority of a key's members: as many, or one fewer where the members are even in number.
    pub fn counter_majority(&self) -> usize {
        self.replicas - self.majority() + 1
    }

    /// Whether so many of every key's members as are `needed` of them are among those that `alive` names.
    pub fn everywhere(&self, alive: impl Fn(usize) -> bool, needed: impl Fn(&[u16]) -> usize) -> bool {
        let alive = |homes: &[u16]| homes.iter().filter(|&&home| alive(usize::from(home))).count();
        self.all_homes().all(|homes| alive(homes) >= needed(homes))
    }
}

impl Map {
    /// The rings in force: the new placement, and in a joint map the old one too.
    pub fn placements(&self) -> Placements {
        let old = (self.state == State::Joint).then(|| Ring::of(self, Side::Old));
        Placements { new: Ring::of(self, Side::New), old }
    }
}

fn owned_points(map: &Map, side: Side) -> Vec<(u64, u16)> {
    let mut owned = Vec::new();
    for (index, seat) in map.seats(side) {
        let count = (u64::from(seat.weight) * POINTS_PER_WEIGHT_100).div_ceil(100).min(MEMBER_POINTS_MAX);
        let id = seat.points.unwrap_or(map.members[index].id);
        for number in 0..count {
            let mut bytes = [0; 24];
            bytes[..16].copy_from_slice(&id.0);
            bytes[16..].copy_from_slice(&number.to_le_bytes());
            owned.push((xxh3_64_with_seed(&bytes, map.hash_seed), index as u16));
        }
    }
    owned
}

fn domain_numbers(map: &Map) -> Vec<usize> {
    let labels: Vec<_> = map.members.iter().map(|member| member.domain.at(map.spread)).collect();
    let number = |label| labels.iter().position(|other| other == label).unwrap_or_default();
    labels.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::map::{Map, MemberId, tests::sample};

    /// The plainest ring there is: walk the sorted points from the key on.
    fn homes_plainly(map: &Map, hash: KeyHash) -> Vec<u16> {
        let mut points = owned_points(map, Side::New);
        points.sort_unstable();
        let mut homes: Vec<u16> = Vec::new();
        let after = points.iter().filter(|(point, _)| *point >= hash.ring);
        for (_, member) in after.chain(&points) {
            let domain = |index: u16| map.members[usize::from(index)].domain.at(map.spread);
            if homes.len() < usize::from(map.replicas) && homes.iter().all(|home| domain(*home) != domain(*member)) {
                homes.push(*member);
            }
        }
        homes
    }

    fn keys(count: u64) -> impl Iterator<Item = KeyHash> {
        (0..count).map(|number| KeyHash::new(&number.to_le_bytes(), 77))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn fast_ring_equals_plain_ring(
            members in 3usize..12, replicas in 1u8..=3, weights in proptest::collection::vec(1u32..300, 12),
            machines in 3usize..6, hashes in proptest::collection::vec(any::<u64>(), 50)
        ) {
            let mut map = sample(members, replicas);
            for (index, member) in map.members.iter_mut().enumerate() {
                member.weight = weights[index];
                member.domain.machine = format!("m{}", index % machines);
            }
            let ring = Ring::new(&map);
            for hash in hashes.into_iter().chain([0, u64::MAX]) {
                let hash = KeyHash { home: 0, ring: hash };
                let homes = ring.homes(hash);
                prop_assert_eq!(homes, homes_plainly(&map, hash));
                let machines: BTreeSet<_> =
                    homes.iter().map(|&home| &map.members[usize::from(home)].domain.machine).collect();
                prop_assert_eq!(machines.len(), usize::from(replicas));
            }
        }
    }

    #[test]
    fn load_follows_weight() {
        let mut map = sample(10, 3);
        map.members[4].weight = 200;
        let ring = Ring::new(&map);
        let mut load = [0u32; 10];
        keys(40_000).for_each(|key| ring.homes(key).iter().for_each(|&home| load[usize::from(home)] += 1));
        let light: u32 = load.iter().sum::<u32>() - load[4];
        let mean = f64::from(light) / 9.0;
        for (index, &count) in load.iter().enumerate().filter(|(index, _)| *index != 4) {
            assert!((f64::from(count) / mean - 1.0).abs() < 0.25, "member {index}: {count} of a mean of {mean}");
        }
        assert!((1.5..2.3).contains(&(f64::from(load[4]) / mean)), "{load:?}");
    }

    #[test]
    fn a_new_member_moves_only_what_it_takes() {
        let old = Ring::new(&sample(9, 3));
        let new = Ring::new(&sample(10, 3));
        let (mut moved, mut total) = (0u32, 0u32);
        for key in keys(20_000) {
            let before: BTreeSet<_> = old.homes(key).iter().copied().collect();
            let after: BTreeSet<_> = new.homes(key).iter().copied().collect();
            let gained: Vec<_> = after.difference(&before).collect();
            assert!(gained.is_empty() || gained == [&9], "only the new member gains keys");
            moved += gained.len() as u32;
            total += 3;
        }
        let share = f64::from(moved) / f64::from(total);
        assert!((0.07..0.13).contains(&share), "a tenth of the replicas should move, {share} did");
    }

    #[test]
    fn order_of_the_members_does_not_matter() {
        let map = sample(6, 3);
        let mut turned = map.clone();
        turned.members.reverse();
        let (ring, turned_ring) = (Ring::new(&map), Ring::new(&turned));
        let ids = |map: &Map, homes: &[u16]| -> Vec<MemberId> {
            homes.iter().map(|&home| map.members[usize::from(home)].id).collect()
        };
        keys(1000).for_each(|key| assert_eq!(ids(&map, ring.homes(key)), ids(&turned, turned_ring.homes(key))));
    }

    #[test]
    fn everywhere_counts_every_arc() {
        let ring = Ring::new(&sample(5, 3));
        let majority = |_: &[u16]| ring.majority();
        assert!(ring.everywhere(|_| true, majority));
        assert!(ring.everywhere(|member| member != 2, majority));
        assert!(!ring.everywhere(|member| member > 1, majority));
        assert_eq!((ring.majority(), ring.replicas()), (2, 3));
    }
}
