//! What an operation takes as given from its start to its end: the map, where keys live, and a connection to each member.

use std::rc::Rc;

use pool::Map;

use super::link::Link;
use super::member::Member;
use super::quorum::{Homes, Placement};
use crate::types::Key;

/// The pool as one map has it.
pub(super) struct Topology<N: Link> {
    pub(super) map: Rc<Map>,
    pub(super) placement: Placement,
    /// In the map's order.
    pub(super) members: Vec<Rc<Member<N>>>,
}

impl<N: Link> Topology<N> {
    /// The pool of `map`, over namespaces in its order.
    pub(super) fn new(map: Map, namespaces: Vec<Option<N>>) -> Topology<N> {
        let map = Rc::new(map);
        debug_assert_eq!(map.members.len(), namespaces.len());
        let member = |(index, namespace): (usize, Option<N>)| Rc::new(Member::new(index, namespace, &map));
        let members = namespaces.into_iter().enumerate().map(member).collect();
        Topology::over(map, members)
    }

    /// The pool of `map`, with its members in its order.
    pub(super) fn over(map: Rc<Map>, members: Vec<Rc<Member<N>>>) -> Topology<N> {
        Topology { placement: Placement::of(&map), members, map }
    }

    /// The members that hold a key.
    pub(super) fn homes(&self, key: &Key) -> Homes {
        self.placement.homes(key.hash())
    }
}
