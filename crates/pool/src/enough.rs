//! How many of a key's homes know all that was acknowledged.
//!
//! So many as meet every majority: of an even number half will do. But half of them may be all that know of an operation
//! ([`Map::half_may_know`]); then a majority does, or what is left where an operator has said that what the other half alone
//! knew may be gone: of those keys, and of no others.

use crate::change::Side;
use crate::map::{Map, Member};

/// How many homes of each key know all, on one side of a map.
#[derive(Clone, Debug)]
pub struct Enough {
    half_may_know: bool,
    /// Members that say nothing that counts.
    missing: Vec<u16>,
    /// Those of them that may take with them what they alone knew.
    written_off: Vec<u16>,
}

impl Enough {
    /// So many of these homes.
    pub fn of(&self, homes: &[u16]) -> usize {
        let majority = homes.len() / 2 + 1;
        let half = homes.len() - majority + 1;
        if !self.half_may_know {
            return half;
        }
        let missing = || homes.iter().filter(|home| self.missing.contains(home));
        let is_half_written_off =
            missing().count() == homes.len() - half && missing().all(|home| self.written_off.contains(home));
        if is_half_written_off { half } else { majority }
    }
}

impl Map {
    /// How many homes know all that was acknowledged, for the keys of one side.
    pub fn enough(&self, side: Side) -> Enough {
        let which = |is: &dyn Fn(&Member) -> bool| {
            (0u16..).zip(&self.members).filter(|(_, member)| is(member)).map(|(index, _)| index).collect()
        };
        Enough {
            half_may_know: self.half_may_know(side),
            missing: which(&|member| !member.counts(side)),
            written_off: which(&|member| member.written_off),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::tests::sample;

    #[test]
    fn half_of_the_homes_will_do_only_where_the_other_half_was_written_off() {
        let mut map = Map { unequal: true, ..sample(6, 4) };
        for index in [0, 1, 2] {
            map.members[index].lost = true;
        }
        for index in [0, 1] {
            map.members[index].written_off = true;
        }
        let enough = map.enough(Side::New);
        assert_eq!(enough.of(&[3, 0, 4, 1]), 2, "the other half is written off");
        assert_eq!(enough.of(&[0, 2, 3, 4]), 3, "one of the other half is not");
        assert_eq!(enough.of(&[0, 3, 4, 5]), 3, "more than half is left");
        map.unequal = false;
        assert_eq!(map.enough(Side::New).of(&[0, 3, 4, 5]), 2, "any half knows all");
        let odd = Map { unequal: true, ..sample(5, 3) };
        assert_eq!(odd.enough(Side::New).of(&[0, 3, 4]), 2);
    }
}
