//! A bounded number of commands on the medium at a time, for the work of checkpoints and openings.

use engine::task::TaskSet;

/// Commands on the medium at a time. Guessed: enough to keep flash busy, few enough to leave room for the callers' own.
pub(super) const IN_FLIGHT_MAX: usize = 32;

/// Starts `future`; where there is no room it waits for another one, whose output it returns.
pub(super) async fn push<F: Future>(set: &mut TaskSet<F>, future: F) -> Option<F::Output> {
    let ended = if set.is_full() { set.next().await.map(|(_, output)| output) } else { None };
    assert!(set.push(future).is_ok(), "a full set has just lost one");
    ended
}
