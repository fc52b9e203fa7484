//! What repair finds that one key needs.

use std::rc::Rc;

use engine::time::{self, Instant};

use super::OPERATION_TIME_MAX;
use super::member::Member;
use super::topology::{Topology, forgets};
use crate::table::{Content, Found};
use crate::types::{Key, Timestamp};

/// Whether homes that were first read at `since` may hold less by now than they showed: a page that was damaged after it was read
/// may have been rebuilt from the others, with what these held before they were given what it had shown. Who rebuilds it reads them
/// later than this after the damage, so what they were given by then is in it.
pub(super) fn is_late(since: Instant) -> bool {
    since.elapsed() > OPERATION_TIME_MAX
}

/// What one key may need.
pub(super) struct Work {
    pub(super) key: Key,
    pub(super) timestamp: Timestamp,
    /// Members that show the newest.
    pub(super) holders: Vec<(Rc<Member>, Found)>,
    /// Members that lack it.
    pub(super) lacking: Vec<Rc<Member>>,
    pub(super) check_values: bool,
    /// The newest has ended.
    pub(super) expired: bool,
    /// Homes that did not say what they hold, and why: the key is not done.
    pub(super) silent: Vec<String>,
    /// No home was read before this.
    pub(super) since: Instant,
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

    /// What a key needs now; also where that took so long that it tells nothing.
    pub(super) async fn look(topology: &Rc<Topology>, key: Key, check_values: bool, now: u64) -> Option<Work> {
        let (mut found, mut silent, since) = (Vec::new(), Vec::new(), time::now());
        // Nobody asks what was given up for good.
        let homes = topology.homes(&key);
        let indices = homes.iter().map(|home| usize::from(home.member));
        for index in indices.filter(|&index| !topology.map.members[index].lost) {
            match topology.members[index].read(&key).await {
                Ok((_, seen)) => found.push((index, seen)),
                Err(error) => silent.push(format!("{key:?} on member {index}: {error}")),
            }
        }
        let told = |member: usize| found.iter().any(|(index, _)| *index == member);
        let planned = Work::plan(topology, key.clone(), &found, told, check_values, now, since);
        match planned {
            None if silent.is_empty() && !is_late(since) => None,
            Some(work) => Some(Work { silent, ..work }),
            None => Some(Work { silent, ..Work::nothing(key, since) }),
        }
    }

    /// Nothing that is known of.
    pub(super) fn nothing(key: Key, since: Instant) -> Work {
        let (holders, lacking, silent) = (Vec::new(), Vec::new(), Vec::new());
        Work { key, timestamp: Timestamp::ZERO, holders, lacking, check_values: false, expired: false, silent, since }
    }

    /// What a key needs by what was `found` of it on members that have told all they hold if they are `whole`.
    pub(super) fn plan(
        topology: &Rc<Topology>,
        key: Key,
        found: &[(usize, Found)],
        whole: impl Fn(usize) -> bool,
        check_values: bool,
        now: u64,
        since: Instant,
    ) -> Option<Work> {
        let timestamp = found.iter().map(|(_, found)| found.timestamp).max()?;
        let forgets = forgets(&topology.map);
        if found.iter().all(|(_, found)| found.is_absent(forgets)) {
            // A tombstone that readers do without is not brought back to where it was dropped.
            return None;
        }
        let (mut holders, mut lacking) = (Vec::new(), Vec::new());
        for home in topology.homes(&key).iter() {
            let member = topology.members[usize::from(home.member)].clone();
            match found.iter().find(|(index, _)| *index == member.index) {
                Some((_, found)) if found.timestamp == timestamp => holders.push((member, found.clone())),
                Some(_) => lacking.push(member),
                None if whole(member.index) => lacking.push(member),
                // It may hold it on a page that could not be read.
                None => {}
            }
        }
        let elsewhere = holders.iter().any(|(_, found)| matches!(found.content, Content::Elsewhere(..)));
        let expired = holders.first().is_some_and(|(_, found)| found.is_expired(now));
        let needed = expired || !lacking.is_empty() || (check_values && elsewhere);
        needed.then_some(Work { timestamp, holders, lacking, check_values, expired, ..Work::nothing(key, since) })
    }
}
