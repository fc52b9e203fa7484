//! Clears the intents of regions that have not been written for a while.
//!
//! Invariants:
//! - An entry is cleared only while nothing is under way in its region and the region is settled: all of NEED have the same there.
//! - It becomes clean only where everybody is in sync; otherwise behind: who is away lacks it.
//!
//! Each region that is written again costs a write of the log at each replica. So the pause adapts: where marks are more than
//! a fiftieth of the writes it doubles.

use std::rc::Rc;
use std::time::Duration;

use engine::time;

use crate::log;
use crate::resync::cleared;
use crate::shared::Shared;

/// Writes for each mark, at least.
const WRITES_PER_MARK: u64 = 50;
/// The longest pause, as a multiple of the shortest. Chosen: what a host that dies leaves to be compared is what was written in
/// this time.
const LONGER_MAX: u32 = 64;

/// Ends when the volume is over.
pub(crate) async fn clear(shared: Rc<Shared>) {
    let mut after = shared.options.clear_after;
    let mut marks_before = marks(&shared);
    while !shared.is_over() {
        time::sleep(after / 2).await;
        let now = time::now();
        clear_idle(&shared, after);
        let writes = shared.regions.borrow_mut().tidy(now - after);
        let marks_now = marks(&shared);
        let is_dear = (marks_now - marks_before) * WRITES_PER_MARK > writes;
        marks_before = marks_now;
        after = next_pause(after, is_dear && writes > 0, shared.options.clear_after);
    }
}

fn next_pause(after: Duration, is_dear: bool, shortest: Duration) -> Duration {
    let next = if is_dear { after * 2 } else { after - after / 8 };
    next.clamp(shortest, shortest * LONGER_MAX)
}

/// Writes of the log at the replica that had the most.
fn marks(shared: &Shared) -> u64 {
    (0..shared.shape.holders()).map(|slot| shared.figures.replica(slot).log_writes()).max().unwrap_or(0)
}

/// Clears what has been idle for so long.
pub(crate) fn clear_idle(shared: &Rc<Shared>, after: Duration) {
    if !shared.mirror.borrow().is_attached() {
        return;
    }
    let since = time::now() - after;
    let entry = cleared(shared);
    let need = shared.mirror.borrow().need();
    for conn in need.iter().filter_map(|slot| shared.usable(slot)) {
        let mut next = 0;
        while let Some(region) = conn.with_log(|log| log.next_unclean(next)) {
            next = region + 1;
            let known = conn.with_log(|log| log.entry(region));
            let is_due = known.is_some_and(|known| known != entry && known != log::CLEAN);
            let is_idle = shared.regions.borrow().is_idle(region, since);
            if is_due && is_idle && !shared.unsettled.borrow().has(region) {
                conn.set_entry(region, entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_where_marks_are_dear_and_shrinks_again() {
        let second = Duration::from_secs(1);
        assert_eq!(next_pause(second, true, second), 2 * second);
        assert_eq!(next_pause(60 * second, true, second), 64 * second);
        assert_eq!(next_pause(8 * second, false, second), 7 * second);
        assert_eq!(next_pause(second, false, second), second);
    }
}
