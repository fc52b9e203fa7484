//! What an operation takes as given from its start to its end: the map, where keys live, and a connection to each member.

use std::rc::Rc;

use pool::Map;

use super::member::Member;
use super::quorum::{Homes, Placement};
use crate::table::Forgets;
use crate::types::Key;
use fabric::host::AnyRemote;

/// The pool as one map has it.
pub(super) struct Topology {
    pub(super) map: Rc<Map>,
    pub(super) placement: Placement,
    /// In the map's order.
    pub(super) members: Vec<Rc<Member>>,
}

/// Bits of a counter, and of a ballot's round, that count within an epoch: 2^40 operations on one key and 2^24 epochs are out
/// of reach.
const EPOCH_SHIFT: u32 = 40;

/// Counters and ballots' rounds that an epoch makes are above this, those of older epochs below: a number tells how old an
/// entry is, and what a host of an older epoch has left half done never outranks what is decided after the change.
pub(super) fn epoch_start(map: &Map) -> u64 {
    map.epoch << EPOCH_SHIFT
}

/// Which deleted keys a map lets be forgotten.
pub(super) fn forgets(map: &Map) -> Forgets {
    Forgets { below: map.floor << EPOCH_SHIFT, promised_below: epoch_start(map) }
}

impl Topology {
    /// The pool of `map`, over namespaces in its order.
    pub(super) fn new(map: Map, namespaces: Vec<Option<AnyRemote>>) -> Topology {
        let map = Rc::new(map);
        debug_assert_eq!(map.members.len(), namespaces.len());
        let member = |(index, namespace): (usize, Option<AnyRemote>)| Rc::new(Member::new(index, namespace, &map));
        let members = namespaces.into_iter().enumerate().map(member).collect();
        Topology::over(map, members)
    }

    /// Why a member answers nothing, if that is known.
    pub(super) fn why_without(&self, member: usize) -> Option<&'static str> {
        match self.map.members[member].lost {
            true => Some("given up as lost"),
            false => self.members[member].away_for().map(|_| "not connected"),
        }
    }

    /// The pool of `map`, with its members in its order.
    pub(super) fn over(map: Rc<Map>, members: Vec<Rc<Member>>) -> Topology {
        Topology { placement: Placement::of(&map), members, map }
    }

    /// The members that hold a key.
    pub(super) fn homes(&self, key: &Key) -> Homes {
        self.placement.homes(key.hash())
    }
}
