//! Who holds how much, and what a change moves: worked out on the rings themselves, exactly, not by sampling.

use std::collections::BTreeSet;

use crate::change::{Seat, Side};
use crate::map::Map;
use crate::ring::Ring;

/// What a change moves, in shares of all that the pool holds (all replicas: 1).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Moved {
    /// What is stored on members that did not hold it before.
    pub share: f64,
    /// What any placement with the same loads must move: the sum of what members gain.
    pub least: f64,
}

/// The share of all replicas that each member holds, by index in the map.
pub fn loads(map: &Map, ring: &Ring) -> Vec<f64> {
    let mut loads = vec![0.0; map.members.len()];
    for (length, homes) in arcs(&[ring]) {
        homes[0].iter().for_each(|&home| loads[usize::from(home)] += length / ring.replicas() as f64);
    }
    loads
}

/// What moving from `old` to `new` moves; both rings name members by their index in `map`.
pub fn moved(map: &Map, old: &Ring, new: &Ring) -> Moved {
    let mut share = 0.0;
    for (length, homes) in arcs(&[old, new]) {
        let gained = homes[1].iter().filter(|home| !homes[0].contains(home)).count();
        share += length * gained as f64 / new.replicas() as f64;
    }
    let gains = loads(map, old).into_iter().zip(loads(map, new)).map(|(before, after)| (after - before).max(0.0));
    Moved { share, least: gains.sum() }
}

/// The largest share over what the weights say, among members that hold keys.
pub fn imbalance(map: &Map, ring: &Ring, side: Side) -> f64 {
    let total: f64 = map.seats(side).map(|(_, seat)| f64::from(seat.weight)).sum();
    let loads = loads(map, ring);
    let over = |(index, seat): (usize, Seat)| loads[index] * total / f64::from(seat.weight);
    map.seats(side).filter(|(_, seat)| seat.weight > 0).map(over).fold(0.0, f64::max)
}

/// The arcs on which none of the rings has a point inside: their share of the whole, and each ring's homes.
fn arcs<'a>(rings: &[&'a Ring]) -> Vec<(f64, Vec<&'a [u16]>)> {
    let ends: BTreeSet<u64> = rings.iter().flat_map(|ring| ring.arcs().map(|(point, _)| point)).collect();
    let mut previous = ends.last().copied().unwrap_or(0);
    let homes_at = |point: u64| {
        let hash = crate::KeyHash { home: 0, ring: point };
        rings.iter().map(|ring| ring.homes(hash)).collect()
    };
    let whole = 2f64.powi(64);
    let mut arcs = Vec::with_capacity(ends.len());
    let alone = ends.len() == 1;
    for &end in &ends {
        let length = if alone { whole } else { end.wrapping_sub(previous) as f64 };
        arcs.push((length / whole, homes_at(end)));
        previous = end;
    }
    arcs
}
