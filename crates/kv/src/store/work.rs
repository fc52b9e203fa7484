//! What repair finds that one key needs.

use std::rc::Rc;

use engine::time;

use super::OPERATION_TIME_MAX;
use super::member::{Life, Member};
use super::topology::{Topology, forgets};
use crate::table::{Content, Found};
use crate::types::{Key, Timestamp};

/// What the homes of a key have shown when all were asked at once.
pub(super) struct Look {
    key: Key,
    found: Vec<(usize, Found)>,
    /// Homes that did not say what they hold, and why.
    silent: Vec<String>,
}

impl Look {
    /// Asks the homes of a key, but for these. Nobody asks what was given up for good.
    pub(super) async fn at(topology: &Rc<Topology>, key: Key, but: &[Life]) -> Look {
        let (homes, since) = (topology.homes(&key), time::now());
        let homes = homes.iter().map(|home| usize::from(home.member));
        let asked: Vec<usize> = homes.filter(|&member| !topology.map.members[member].lost).collect();
        let asked: Vec<usize> =
            asked.into_iter().filter(|&member| !but.contains(&topology.members[member].life())).collect();
        let told = pool::together(asked.iter().map(|&member| topology.members[member].read(&key))).await;
        let (mut found, mut silent) = (Vec::new(), Vec::new());
        for (member, told) in asked.into_iter().zip(told) {
            match told {
                Ok((_, seen)) => found.push((member, seen)),
                Err(error) => silent.push(format!("{key:?} on member {member}: {error}")),
            }
        }
        // This host has slept, say: what was read so far apart is no look.
        if since.elapsed() > OPERATION_TIME_MAX {
            silent.push(format!("{key:?}: its replicas did not answer in time"));
        }
        Look { key, found, silent }
    }

    /// Whether every home that was asked held this, or something newer. From then on whoever rebuilds a damaged page of one finds
    /// it at the others, as these are read later than this look after the damage: each told what it held within less time than a
    /// rebuilding waits.
    pub(super) fn is_held(&self, timestamp: Timestamp) -> bool {
        self.silent.is_empty() && self.found.iter().all(|(_, found)| found.timestamp >= timestamp)
    }

    /// What the key needs by that.
    pub(super) fn work(self, topology: &Rc<Topology>, check_values: bool, now: u64) -> Option<Work> {
        let Look { key, found, silent } = self;
        let told = |member: usize| found.iter().any(|(index, _)| *index == member);
        match Work::plan(topology, key.clone(), &found, told, check_values, now) {
            None if silent.is_empty() => None,
            Some(work) => Some(Work { silent, ..work }),
            None => Some(Work { silent, ..Work::nothing(key) }),
        }
    }
}

/// What one key may need.
pub(super) struct Work {
    pub(super) key: Key,
    pub(super) timestamp: Timestamp,
    /// Members that show the newest.
    pub(super) holders: Vec<(Rc<Member>, Found)>,
    /// Members that lack it.
    pub(super) lacking: Vec<Rc<Member>>,
    /// Homes that may hold it and did not say: whoever asked them has noted that, and asks them anew. Not by where they are in the
    /// map of then: one of the next may have others there.
    pub(super) unheard: Vec<Life>,
    pub(super) check_values: bool,
    /// The newest has ended.
    pub(super) expired: bool,
    /// Homes that did not say what they hold, and why: the key is not done.
    pub(super) silent: Vec<String>,
}

impl Work {
    /// Bytes of its value, if that has to be read from elsewhere.
    pub(super) fn length_elsewhere(&self) -> usize {
        let long = |(_, found): &(Rc<Member>, Found)| match &found.content {
            Content::Elsewhere(length, _) => *length as usize,
            Content::Inline(_) | Content::Nothing => 0,
        };
        self.holders.iter().map(long).max().unwrap_or(0)
    }

    /// Nothing that is known of.
    fn nothing(key: Key) -> Work {
        let (holders, lacking, unheard, silent) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Work { key, timestamp: Timestamp::ZERO, holders, lacking, unheard, check_values: false, expired: false, silent }
    }

    /// What a key needs by what was `found` of it on members that have told all they hold if they are `whole`.
    pub(super) fn plan(
        topology: &Rc<Topology>,
        key: Key,
        found: &[(usize, Found)],
        whole: impl Fn(usize) -> bool,
        check_values: bool,
        now: u64,
    ) -> Option<Work> {
        let timestamp = found.iter().map(|(_, found)| found.timestamp).max()?;
        let forgets = forgets(&topology.map);
        if found.iter().all(|(_, found)| found.is_absent(forgets)) {
            // A tombstone that readers do without is not brought back to where it was dropped.
            return None;
        }
        let (mut holders, mut lacking, mut unheard) = (Vec::new(), Vec::new(), Vec::new());
        for home in topology.homes(&key).iter() {
            let member = topology.members[usize::from(home.member)].clone();
            match found.iter().find(|(index, _)| *index == member.index) {
                Some((_, found)) if found.timestamp == timestamp => holders.push((member, found.clone())),
                Some(_) => lacking.push(member),
                None if whole(member.index) => lacking.push(member),
                // It may hold it on a page that could not be read.
                None => unheard.push(member.life()),
            }
        }
        let elsewhere = holders.iter().any(|(_, found)| matches!(found.content, Content::Elsewhere(..)));
        let expired = holders.first().is_some_and(|(_, found)| found.is_expired(now));
        let needed = expired || !lacking.is_empty() || (check_values && elsewhere);
        needed.then_some(Work { timestamp, holders, lacking, unheard, check_values, expired, ..Work::nothing(key) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::{Pool, value};
    use super::*;
    use crate::testing::run;

    /// A member that is removed moves those behind it up. Homes that were not heard were known by their places: another was not
    /// asked whether it still held what repair had stored, and the key was called done.
    #[test]
    fn homes_that_were_not_heard_are_the_same_under_the_next_map() {
        run(51, async {
            let pool = Pool::new(4, 3).await;
            pool.store.put(b"k", value(b"v")).await.unwrap();
            pool.store.settle().await;
            let key = Key::new(b"k", pool.map.hash_seed).unwrap();
            let before = pool.store.inner.topology();
            let mut map = pool.map.clone();
            map.members.rotate_left(1);
            let map = Rc::new(map);
            let successor = |index: usize| Rc::new(before.members[(index + 1) % 4].successor(index, &map));
            let after = Rc::new(Topology::over(Rc::clone(&map), (0..4).map(successor).collect()));
            let life = |index: usize| after.members[index].life();
            let homes: BTreeSet<Life> = after.homes(&key).iter().map(|home| life(home.member.into())).collect();
            for unheard in &homes {
                let look = Look::at(&after, key.clone(), &[*unheard]).await;
                assert_eq!(look.silent, [""; 0]);
                let asked: BTreeSet<Life> = look.found.iter().map(|(index, _)| life(*index)).collect();
                let expected: BTreeSet<Life> = homes.iter().filter(|life| *life != unheard).copied().collect();
                assert_eq!(asked, expected, "but {unheard:?}");
            }
        });
    }
}
