//! Whether what the clients have seen has an explanation.
//!
//! Each block is linearizable, and an operation that has not returned may have taken effect or not. An attach that may go back is
//! an operation, too: after it a block has the value that it had after some of what came before, and that part has all that was
//! answered before the last flush began which was acknowledged before the attach.

use crate::config::{Config, Op};
use crate::snapshot::unpacked;
use crate::state::{CALLS, Call, Called, REGIONS, ROLLBACKS, Set, State, has};

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    /// A block has this value from now on.
    Writes(usize, u8),
    /// A block had this value.
    Saw(usize, u8),
    /// The blocks had these values, all at once.
    SawAll([u8; REGIONS]),
    /// All may go back, with what all these have done.
    GoesBack(Set),
}

/// A way to order some of the operations: which they are, and the values, after each of those that count.
type Path = Vec<(Set, [u8; REGIONS])>;

/// A block and its value.
type Value = (usize, u8);

impl Config {
    pub(crate) fn is_linearizable(&self, calls: &[Call; CALLS], rollbacks: u8) -> bool {
        self.explains(calls, rollbacks, None)
    }

    /// Whether a read after everything that has returned may give `value`.
    pub(crate) fn fits(&self, state: &State, region: usize, value: u8) -> bool {
        self.explains(&state.calls, state.rollbacks, Some((region, value)))
    }

    /// Blocks are looked at one by one; where snapshots are taken, together.
    fn explains(&self, calls: &[Call; CALLS], rollbacks: u8, last: Option<Value>) -> bool {
        if self.takes_snapshots() {
            return self.explains_those(calls, rollbacks, last, |_| true);
        }
        let is_last = |region: usize| last.is_none_or(|(at, _)| at == region);
        let mut regions = (0..self.regions).filter(|&region| is_last(region));
        regions.all(|region| self.explains_those(calls, rollbacks, last, |at| at == region))
    }

    fn explains_those(
        &self,
        calls: &[Call; CALLS],
        rollbacks: u8,
        last: Option<Value>,
        is_asked: impl Fn(usize) -> bool,
    ) -> bool {
        let of_client = |(id, op): (usize, Op)| match op {
            Op::Write(at) if is_asked(at) && calls[id].called != Called::No => {
                Some((id, Effect::Writes(at, 1 + id as u8)))
            }
            _ if calls[id].called != Called::Answered => None,
            Op::Read(at) if is_asked(at) => Some((id, Effect::Saw(at, calls[id].result))),
            Op::Snapshot => Some((id, Effect::SawAll(unpacked(calls[id].result)))),
            _ => None,
        };
        let mut operations: Vec<(usize, Effect)> = self.calls().filter_map(of_client).collect();
        let ours: Set = operations.iter().map(|&(id, _)| 1 << id).sum();
        let rollbacks = (CALLS - usize::from(rollbacks).min(ROLLBACKS)..CALLS).map(|id| 1 << id).sum::<Set>();
        for id in (0..CALLS).filter(|&id| has(rollbacks, id)) {
            let promised = self.promised_before(calls, id) & (ours | rollbacks);
            operations.push((id, Effect::GoesBack(promised)));
        }
        has_order(&operations, calls, &mut vec![(0, [0; REGIONS])], last)
    }
}

/// Whether the operations have an order that begins as `path` and explains what was seen.
fn has_order(operations: &[(usize, Effect)], calls: &[Call; CALLS], path: &mut Path, last: Option<Value>) -> bool {
    let &(done, values) = path.last().unwrap_or(&(0, [0; REGIONS]));
    let is_open = |id: usize| calls[id].called == Called::Answered && !has(done, id);
    if !operations.iter().any(|&(id, _)| is_open(id)) && last.is_none_or(|(region, value)| values[region] == value) {
        return true;
    }
    let ours: Set = operations.iter().map(|&(id, _)| 1 << id).sum();
    let may_be_next = |id: usize| !has(done, id) && calls[id].before & ours & !done == 0;
    operations.iter().filter(|&&(id, _)| may_be_next(id)).any(|&(id, effect)| {
        let done = done | 1 << id;
        match effect {
            Effect::Writes(region, value) => {
                let mut values = values;
                values[region] = value;
                goes_on(operations, calls, path, (done, values), last)
            }
            Effect::Saw(region, value) => {
                values[region] == value && goes_on(operations, calls, path, (done, values), last)
            }
            Effect::SawAll(seen) => seen == values && goes_on(operations, calls, path, (done, values), last),
            Effect::GoesBack(promised) => (0..path.len()).filter(|&k| promised & !path[k].0 == 0).any(|k| {
                let mut kept = path[..=k].to_vec();
                goes_on(operations, calls, &mut kept, (done, path[k].1), last)
            }),
        }
    })
}

fn goes_on(
    operations: &[(usize, Effect)],
    calls: &[Call; CALLS],
    path: &mut Path,
    step: (Set, [u8; REGIONS]),
    last: Option<Value>,
) -> bool {
    path.push(step);
    let explained = has_order(operations, calls, path, last);
    path.pop();
    explained
}
