//! What goes on in which regions: writes under way, and when the last one was.

use std::collections::BTreeMap;

use engine::time::Instant;

/// A write's regions, first and last. At most two of usual commands; to zero may cover many.
pub(crate) type Span = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Activity {
    writes: u32,
    last: Instant,
}

/// The regions that are written, or were a short time ago.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    active: BTreeMap<u64, Activity>,
    /// Writes since the count was taken last.
    writes: u64,
}

impl Regions {
    /// A write begins.
    pub(crate) fn begin(&mut self, (first, last): Span, now: Instant) {
        self.writes += 1;
        for region in first..=last {
            let activity = self.active.entry(region).or_insert(Activity { writes: 0, last: now });
            activity.writes += 1;
        }
    }

    /// It has ended.
    pub(crate) fn end(&mut self, (first, last): Span, now: Instant) {
        for region in first..=last {
            if let Some(activity) = self.active.get_mut(&region) {
                activity.writes -= 1;
                activity.last = now;
            }
        }
    }

    /// Whether nothing was written there since `since`, and nothing is under way.
    pub(crate) fn is_idle(&self, region: u64, since: Instant) -> bool {
        self.active.get(&region).is_none_or(|activity| activity.writes == 0 && activity.last <= since)
    }

    /// The regions with a write under way.
    pub(crate) fn busy(&self) -> impl Iterator<Item = u64> {
        self.active.iter().filter(|(_, activity)| activity.writes > 0).map(|(region, _)| *region)
    }

    /// Forgets what has been idle since `since`. Returns how many writes began since this was called last.
    pub(crate) fn tidy(&mut self, since: Instant) -> u64 {
        self.active.retain(|_, activity| activity.writes > 0 || activity.last > since);
        std::mem::take(&mut self.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_idle_when_its_last_write_is_long_over() {
        let at = Instant::from_nanos;
        let mut regions = Regions::default();
        regions.begin((3, 4), at(10));
        regions.begin((4, 4), at(11));
        regions.end((3, 4), at(12));
        assert_eq!(regions.busy().collect::<Vec<_>>(), [4]);
        assert!(regions.is_idle(3, at(12)) && !regions.is_idle(3, at(11)) && !regions.is_idle(4, at(99)));
        assert_eq!(regions.tidy(at(12)), 2);
        assert!(regions.is_idle(3, at(0)) && !regions.is_idle(4, at(99)));
        regions.end((4, 4), at(20));
        assert_eq!((regions.tidy(at(20)), regions.busy().count()), (0, 0));
    }
}
