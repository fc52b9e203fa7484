//! What time it is by the pool, which no calendar of one host tells.
//!
//! The note goes on by time that has passed. Who has watched since it was made knows by its own clock how much; a host whose
//! processes come and go, as those of a timer's, knows it by its machine's, which goes on between them, suspension included
//! (`CLOCK_BOOTTIME`). So the note has marks: what it was when a machine last noted it, and what that machine's clock showed.

use serde::{Deserialize, Serialize};

use crate::id::hex64;
use crate::map::Map;

/// Machines that have a mark. Of more one is forgotten by chance, so that some get on of any number that take turns. Chosen: voters
/// and a gateway.
pub const MARKS_MAX: usize = 8;

/// What time it was by the pool when that was last noted.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Unix time in ms; 0: never noted.
    pub ms: u64,
    /// Of machines that have noted it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
}

/// That a machine has noted the time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The machine, as long as it runs.
    #[serde(with = "hex64")]
    pub machine: u64,
    /// What its clock showed, in ms.
    pub at_ms: u64,
    /// What it noted.
    pub clock_ms: u64,
}

/// A moment by a machine's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// See [`Mark::machine`].
    pub machine: u64,
    /// What its clock shows, in ms.
    pub ms: u64,
}

impl Clock {
    /// The latest that it can be by what a machine has seen pass since its mark; `None`: it has left none. Twice that where its own
    /// note stands, so that a time that is late comes right; what others have noted since, nobody here knows when.
    pub fn latest(&self, now: Moment) -> Option<u64> {
        let mark = self.marks.iter().find(|mark| mark.machine == now.machine)?;
        let passed = now.ms.saturating_sub(mark.at_ms);
        let passed = if mark.clock_ms == self.ms { passed.saturating_mul(2) } else { passed };
        Some(mark.clock_ms.saturating_add(passed))
    }

    fn noted(&self, ms: u64, by: Option<Moment>) -> Clock {
        let mut marks = self.marks.clone();
        if let Some(Moment { machine, ms: at_ms }) = by {
            marks.retain(|mark| mark.machine != machine);
            if marks.len() >= MARKS_MAX {
                marks.swap_remove((engine::task::random_u64() % marks.len() as u64) as usize);
            }
            marks.push(Mark { machine, at_ms, clock_ms: ms });
        }
        Clock { ms, marks }
    }
}

impl Map {
    /// The map with a note of what time it is, made at this moment, if nobody has noted another time since `before`.
    pub fn note_clock(&self, before: u64, now_ms: u64, by: Option<Moment>) -> Map {
        if self.clock.ms != before {
            return self.clone();
        }
        Map { clock: self.clock.noted(now_ms, by), revision: self.revision + 1, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use engine::sim::{SimConfig, World};

    use super::*;
    use crate::map::tests::sample;

    #[test]
    fn a_machine_knows_the_time_by_its_mark() {
        let world = World::new(1, SimConfig::default()).run_until(async {
            let at = |machine, ms| Moment { machine, ms };
            let map = sample(3, 3).note_clock(0, 1_000_000, Some(at(7, 500)));
            assert_eq!((map.clock.ms, map.revision), (1_000_000, 1));
            assert_eq!((map.clock.latest(at(7, 600)), map.clock.latest(at(7, 0))), (Some(1_000_200), Some(1_000_000)));
            assert_eq!(map.clock.latest(at(8, 600)), None);
            // Nobody goes on from a note that is not what he knows.
            assert_eq!(map.note_clock(999, 2_000_000, Some(at(8, 0))), map);
            let next = map.note_clock(1_000_000, 1_000_050, Some(at(8, 90)));
            assert_eq!(
                next.clock.latest(at(7, 600)),
                Some(1_000_100),
                "as much as has passed, where others have noted it"
            );
            assert_eq!(
                Map::decode(&next.encode().unwrap(), crate::superblock::crc64(&next.encode().unwrap())),
                Ok(next.clone())
            );
            // Of a hundred that take turns some get on.
            let (mut map, mut known) = (next, 0);
            for turn in 0..1000 {
                let now = at(100 + turn % 20, turn);
                known += u32::from(map.clock.latest(now).is_some());
                map = map.note_clock(map.clock.ms, map.clock.ms, Some(now));
                assert!(map.clock.marks.len() <= MARKS_MAX);
            }
            assert!(known > 20, "{known}");
        });
        world.unwrap();
    }
}
