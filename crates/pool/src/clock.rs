//! What time it is by the pool, which no calendar of one host tells.
//!
//! The note goes on by time that has passed. Who has watched since it was made knows by its own clock how much; a host whose
//! processes come and go, as those of a timer's, knows it by its machine's, which goes on between them, suspension included
//! (`CLOCK_BOOTTIME`). So the note has marks: what it was when a machine last noted it, and what that machine's clock showed.
//!
//! A note that is late, since nobody was there to go on with it, comes right by calendars that agree: of all machines with a mark
//! of the last days. One that is ahead beside another that is not moves it by the time that passes and no more. A machine that is
//! alone is believed by and by.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::hex64;

/// Machines that have a mark. Of more one is forgotten by chance, so that some get on of any number that take turns. Chosen: voters
/// and a gateway.
pub const MARKS_MAX: usize = 8;

/// A mark that is older by the pool's time says nothing of who is there. Chosen: longer than any walk's period.
const PRESENT_MS: u64 = 7 * 86_400_000;
/// No calendar before this (2020-01-01) is right, in Unix ms: this program is younger. A machine without a battery begins in 1970.
pub const CALENDAR_MS_MIN: u64 = 1_577_836_800_000;

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
    /// How far its calendar was ahead of that, in ms.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lead_ms: u64,
}

fn is_zero(ms: &u64) -> bool {
    *ms == 0
}

/// A moment by a machine's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// See [`Mark::machine`].
    pub machine: u64,
    /// What its clock shows, in ms.
    pub ms: u64,
    /// What its calendar says, Unix time in ms.
    pub calendar_ms: u64,
}

impl Clock {
    /// That of a new pool, by its maker's calendar.
    pub(crate) fn begun(calendar: Duration) -> Clock {
        let ms = u64::try_from(calendar.as_millis()).unwrap_or(0);
        Clock { ms: if ms < CALENDAR_MS_MIN { 0 } else { ms }, marks: Vec::new() }
    }

    /// The latest that it can be by what a machine has seen pass since its mark, and by how far the calendars of all others that
    /// are there were ahead; `None`: it has left no mark. For one that is alone, twice what has passed.
    pub fn latest(&self, now: Moment) -> Option<u64> {
        let mark = self.mark(now.machine)?;
        let passed = now.ms.saturating_sub(mark.at_ms);
        let is_there = |other: &&Mark| other.machine != now.machine && self.ms.abs_diff(other.clock_ms) < PRESENT_MS;
        let lead = self.marks.iter().filter(is_there).map(|other| other.lead_ms).min();
        Some(mark.clock_ms.saturating_add(passed).saturating_add(lead.unwrap_or(passed)))
    }

    fn mark(&self, machine: u64) -> Option<&Mark> {
        self.marks.iter().find(|mark| mark.machine == machine)
    }

    /// The note that is made of `ms` now, `by` a machine that leaves its mark.
    pub(crate) fn noted(&self, ms: u64, by: Option<Moment>) -> Clock {
        let mut marks = self.marks.clone();
        if let Some(Moment { machine, ms: at_ms, calendar_ms }) = by {
            // What the time leaps by, the others' calendars are ahead of it no more.
            let gone_on = self.mark(machine).map(|mark| mark.clock_ms + at_ms.saturating_sub(mark.at_ms));
            let leap = gone_on.map_or(0, |gone_on| ms.saturating_sub(gone_on));
            marks.iter_mut().for_each(|mark| mark.lead_ms = mark.lead_ms.saturating_sub(leap));
            marks.retain(|mark| mark.machine != machine);
            if marks.len() >= MARKS_MAX {
                marks.swap_remove((engine::task::random_u64() % marks.len() as u64) as usize);
            }
            marks.push(Mark { machine, at_ms, clock_ms: ms, lead_ms: calendar_ms.saturating_sub(ms) });
        }
        Clock { ms, marks }
    }
}

#[cfg(test)]
mod tests {
    use engine::sim::{SimConfig, World};

    use super::*;
    use crate::map::{Map, tests::sample};

    #[test]
    fn a_time_that_is_late_comes_right_by_calendars_that_agree() {
        let at = |machine, ms, calendar_ms| Moment { machine, ms, calendar_ms };
        // Both are ahead, one by an hour, one by a day.
        let map = sample(3, 3).note_clock(0, 1_000_000, Some(at(7, 0, 1_000_000 + 3_600_000)));
        let map = map.note_clock(1_000_000, 1_000_500, Some(at(8, 500, 1_000_500 + 86_400_000)));
        let later = at(8, 1000, 1_001_000 + 86_400_000);
        assert_eq!(map.clock.latest(later), Some(1_001_000 + 3_600_000), "as far as they agree");
        let map = map.note_clock(1_000_500, 1_001_000 + 3_600_000, Some(later));
        assert_eq!(map.clock.latest(at(8, 1100, 0)), Some(1_001_100 + 3_600_000), "once");
        // The time is right, and one calendar is not: it moves the time by what passes, however long the others are silent.
        let right = map.note_clock(map.clock.ms, 1_002_000 + 3_600_000, Some(at(7, 2000, 1_002_000 + 3_600_000)));
        assert_eq!(right.clock.latest(at(8, 43_201_000, 0)), Some(1_001_000 + 3_600_000 + 43_200_000));
        // Who has not been seen for more than a week is not there.
        let noted = right.clock.ms + 8 * 86_400_000;
        let alone = right.note_clock(right.clock.ms, noted, Some(at(8, 43_201_000, 0)));
        assert_eq!(alone.clock.latest(at(8, 43_201_000 + 50, 0)), Some(noted + 100));
        // A machine whose battery is empty.
        assert_eq!(
            (Clock::begun(Duration::from_secs(300)).ms, Clock::begun(Duration::from_secs(1 << 31)).ms),
            (0, 1000 << 31)
        );
    }

    #[test]
    fn a_machine_knows_the_time_by_its_mark() {
        let world = World::new(1, SimConfig::default()).run_until(async {
            let at = |machine, ms| Moment { machine, ms, calendar_ms: 0 };
            let map = sample(3, 3).note_clock(0, 1_000_000, Some(at(7, 500)));
            assert_eq!((map.clock.ms, map.revision), (1_000_000, 1));
            assert_eq!((map.clock.latest(at(7, 600)), map.clock.latest(at(7, 0))), (Some(1_000_200), Some(1_000_000)));
            assert_eq!(map.clock.latest(at(8, 600)), None);
            // Nobody goes on from a note that is not what he knows.
            assert_eq!(map.note_clock(999, 2_000_000, Some(at(8, 0))), map);
            let next = map.note_clock(1_000_000, 1_000_050, Some(at(8, 90)));
            assert_eq!(next.clock.latest(at(7, 600)), Some(1_000_100), "as much as has passed, where others are there");
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
