//! Which reactor serves the next connection: the one with the fewest I/O queues.
//!
//! A connection weighs as an I/O queue from its accept on, until it turns out to be an admin queue or ends: of several that
//! are accepted before any of them has said what it is, each goes elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::limits::REACTORS_MAX;

/// The I/O queues served by each reactor: 0 is the one that accepts, 1 the first that connections are handed to.
pub(super) struct Loads([AtomicUsize; REACTORS_MAX]);

impl Default for Loads {
    fn default() -> Loads {
        Loads(std::array::from_fn(|_| AtomicUsize::new(0)))
    }
}

impl Loads {
    /// The I/O queues of each reactor, up to the last that has any.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts: Vec<usize> = self.0.iter().map(|count| count.load(Relaxed)).collect();
        counts.truncate(counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
        counts
    }
}

/// A connection's weight on a reactor, until dropped.
pub(super) struct Load {
    loads: Arc<Loads>,
    reactor: usize,
}

impl Load {
    /// Picks one of `reactors` reactors: the least loaded; of equals the first behind the one picked `last`.
    pub fn place(loads: &Arc<Loads>, reactors: usize, last: usize) -> Load {
        let reactors = reactors.clamp(1, REACTORS_MAX);
        let turns = (1..=reactors).map(|step| (last + step) % reactors);
        let reactor = turns.min_by_key(|&reactor| loads.0[reactor].load(Relaxed)).unwrap_or(0);
        Load::on(loads, reactor)
    }

    /// A weight on a certain reactor.
    pub fn on(loads: &Arc<Loads>, reactor: usize) -> Load {
        loads.0[reactor].fetch_add(1, Relaxed);
        Load { loads: loads.clone(), reactor }
    }

    pub fn reactor(&self) -> usize {
        self.reactor
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.loads.0[self.reactor].fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An admin queue, then I/O queues, as hosts connect; each told where the last one went.
    fn host(loads: &Arc<Loads>, reactors: usize, last: &mut usize, queues: usize) -> Vec<Load> {
        let admin = Load::place(loads, reactors, *last);
        *last = admin.reactor();
        drop(admin);
        let mut placed = Vec::new();
        for _ in 0..queues {
            let load = Load::place(loads, reactors, *last);
            *last = load.reactor();
            placed.push(load);
        }
        placed
    }

    #[test]
    fn queues_of_one_controller_land_on_different_reactors() {
        let (loads, mut last) = (Arc::new(Loads::default()), 0);
        for reactors in [2, 3, 4, 7] {
            let queues = host(&loads, reactors, &mut last, reactors);
            let mut used: Vec<_> = queues.iter().map(Load::reactor).collect();
            used.sort_unstable();
            assert_eq!(used, (0..reactors).collect::<Vec<_>>(), "{reactors} queues on {reactors} reactors");
        }
    }

    /// By turns alone the queues that stay could all be on one reactor.
    #[test]
    fn queues_that_have_ended_make_room() {
        let (loads, mut last) = (Arc::new(Loads::default()), 0);
        let mut queues = host(&loads, 2, &mut last, 8);
        queues.retain(|load| load.reactor() == 0);
        assert_eq!(queues.len(), 4);
        let more = host(&loads, 2, &mut last, 4);
        assert!(more.iter().all(|load| load.reactor() == 1), "the other reactor has the queues that stayed");
    }
}
