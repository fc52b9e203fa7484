//! The explorer: visits every reachable state of a [`Model`].
//!
//! States are told apart by a 64-bit fingerprint of their canonical form: with the 10^8 states that fit in memory the
//! chance that two different states share one, so that part of the space is skipped, is below 10^-3. A model must be
//! finite; `states_max`, or a machine without memory, ends a search that is larger than expected: it says so, and never passes
//! for complete.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::Instant;

/// How a model reports a step: the state it leads to, and words for it (only asked for in counterexamples).
pub type Visit<'a, S> = dyn FnMut(S, &dyn Fn() -> String) + 'a;

/// A transition system with a property to check on each transition.
pub trait Model {
    /// All that determines the future, and nothing else.
    type State: Clone + Eq + Hash;

    /// Where every run begins.
    fn initial(&self) -> Self::State;

    /// Reports each state that one step leads to.
    fn successors(&self, state: &Self::State, visit: &mut Visit<'_, Self::State>);

    /// Replaces the state by the representative of those that behave alike (symmetry, messages without effect).
    fn canonicalise(&self, _state: &mut Self::State) {}

    /// The property: why the step from `before` to `after` must not be, if so.
    fn check(&self, before: &Self::State, after: &Self::State) -> Result<(), String>;

    /// A property of single states that is dear to compute; asked for one visited state in [`SAMPLE_INTERVAL`].
    fn check_sampled(&self, _state: &Self::State) -> Result<(), String> {
        Ok(())
    }

    /// One line that shows the state to a reader of a counterexample.
    fn describe(&self, state: &Self::State) -> String;
}

/// Guessed: progress is checked in so small a share of states that it costs less than the search.
pub const SAMPLE_INTERVAL: usize = 16;

/// How a search ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every reachable state was visited; none violates.
    Exhausted {
        /// Distinct states.
        states: usize,
    },
    /// The bound was reached first; no violation so far, and nothing is proven.
    Capped {
        /// Distinct states so far.
        states: usize,
        /// The bound that it was.
        why: &'static str,
    },
    /// A step that must not be.
    Violation {
        /// Distinct states found before it.
        states: usize,
        /// What is wrong with the last state.
        reason: String,
        /// The steps from the initial state, each with the state it led to; empty from a search without traces.
        trace: Vec<String>,
    },
}

/// Guessed: what a machine must have left for everything else, bytes. A search that took more would be ended by the kernel
/// without a word of what it had found.
const MEMORY_SPARED: u64 = 1 << 30;
/// States between two looks at the memory: some 10 MB.
const LOOK_INTERVAL: usize = 1 << 17;

/// Why a search that has found `states`, and looked at `visited` of them, must end, if so.
fn ended(states: usize, visited: usize, states_max: usize) -> Option<&'static str> {
    if states > states_max {
        return Some("as many as it may be");
    }
    let look = visited.is_multiple_of(LOOK_INTERVAL);
    (look && memory_available().is_some_and(|bytes| bytes < MEMORY_SPARED)).then_some("no memory is left for more")
}

/// What the kernel can give without swapping, bytes, where it says so.
fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Visits all states depth first, without remembering paths: the leanest way to exhaust a large space.
pub fn exhaust<M: Model>(model: &M, states_max: usize) -> Outcome {
    let mut first = model.initial();
    model.canonicalise(&mut first);
    let mut seen = Seen::default();
    seen.insert(fingerprint(&first));
    let mut stack = vec![first];
    let mut visited = 0usize;
    let mut next = Vec::new();
    while let Some(state) = stack.pop() {
        visited += 1;
        if visited.is_multiple_of(SAMPLE_INTERVAL)
            && let Err(reason) = model.check_sampled(&state)
        {
            return Outcome::Violation { states: seen.len(), reason, trace: vec![model.describe(&state)] };
        }
        model.successors(&state, &mut |after, _| next.push(after));
        for mut after in next.drain(..) {
            model.canonicalise(&mut after);
            if let Err(reason) = model.check(&state, &after) {
                return Outcome::Violation { states: seen.len(), reason, trace: Vec::new() };
            }
            if seen.insert(fingerprint(&after)) {
                stack.push(after);
            }
        }
        if let Some(why) = ended(seen.len(), visited, states_max) {
            return Outcome::Capped { states: seen.len(), why };
        }
    }
    Outcome::Exhausted { states: seen.len() }
}

/// Visits states breadth first, so that the first violation found has a trace of the fewest steps. Of a state that was looked
/// at only the way to it is kept, eight bytes: whole states are those still to be looked at.
pub fn shortest_violation<M: Model>(model: &M, states_max: usize) -> Outcome {
    let mut ways = vec![Way { before: 0, step: 0 }];
    let first = model.initial();
    let mut seen = Seen::default();
    seen.insert(canonical_fingerprint(model, &first));
    let mut queue = VecDeque::from([(first, 0u32)]);
    let mut visited = 0usize;
    let mut next = Vec::new();
    while let Some((before, index)) = queue.pop_front() {
        visited += 1;
        model.successors(&before, &mut |after, _| next.push(after));
        for (step, after) in next.drain(..).enumerate() {
            let way = Way { before: index, step: step as u32 };
            if let Err(reason) = model.check(&before, &after) {
                return Outcome::Violation { states: seen.len(), reason, trace: trace(model, &ways, way) };
            }
            if seen.insert(canonical_fingerprint(model, &after)) {
                let last = u32::try_from(ways.len()).expect("fewer states than 2^32 fit in memory");
                ways.push(way);
                queue.push_back((after, last));
            }
        }
        if let Some(why) = ended(seen.len(), visited, states_max) {
            return Outcome::Capped { states: seen.len(), why };
        }
    }
    Outcome::Exhausted { states: seen.len() }
}

/// Searches one configuration; says what came of it, and whether it ended as it must.
pub fn run<M: Model>(name: &str, must_fail: bool, model: &M, states_max: usize) -> (String, bool) {
    let begun = Instant::now();
    let mut outcome = exhaust(model, states_max);
    // One of a single state has been shown already, and is not looked for on the way there.
    if matches!(&outcome, Outcome::Violation { trace, .. } if trace.is_empty())
        && let shortest @ Outcome::Violation { .. } = shortest_violation(model, states_max)
    {
        outcome = shortest; // with the way there
    }
    let seconds = begun.elapsed().as_secs_f32();
    match outcome {
        Outcome::Exhausted { states } => {
            (format!("passed    {name}: all of {states} states, {seconds:.1} s"), !must_fail)
        }
        // Nothing is proven.
        Outcome::Capped { states, why } => {
            (format!("undecided {name}: stopped at {states} states, {why}, {seconds:.1} s"), false)
        }
        Outcome::Violation { states, reason, trace } => {
            let mut text = format!("VIOLATED  {name}: {reason} ({states} states, {seconds:.1} s)");
            let steps = trace.iter().enumerate().map(|(index, step)| format!("\n  {:2} {step}", index + 1));
            text.extend(steps);
            (text, must_fail)
        }
    }
}

/// How a state was come by: which successor of which state before it.
#[derive(Clone, Copy)]
struct Way {
    before: u32,
    step: u32,
}

/// Goes the way back from the violation, then takes the same steps again and asks the model to describe each.
fn trace<M: Model>(model: &M, ways: &[Way], last: Way) -> Vec<String> {
    let mut steps = vec![last.step];
    let mut index = last.before;
    while index != 0 {
        let way = ways[index as usize];
        steps.push(way.step);
        index = way.before;
    }
    let mut state = model.initial();
    let mut told = Vec::new();
    for step in steps.into_iter().rev() {
        let mut taken = None;
        let mut nth = 0;
        model.successors(&state, &mut |after, describe| {
            if nth == step {
                taken = Some((after, describe()));
            }
            nth += 1;
        });
        let (after, words) = taken.expect("a model's successors are the same each time");
        told.push(format!("{words}\n        => {}", model.describe(&after)));
        state = after;
    }
    told
}

fn canonical_fingerprint<M: Model>(model: &M, state: &M::State) -> u64 {
    let mut canonical = state.clone();
    model.canonicalise(&mut canonical);
    fingerprint(&canonical)
}

fn fingerprint<S: Hash>(state: &S) -> u64 {
    let mut hasher = Mixer(0x1234567);
    state.hash(&mut hasher);
    hasher.finish()
}

/// A multiplicative hash over machine words: states are small and numerous, and nobody attacks them.
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let mut x = self.0;
        for _ in 0..2 {
            x ^= x >> 32;
            x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
        }
        x ^ x >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }
    fn write_u8(&mut self, x: u8) {
        self.write_u64(u64::from(x));
    }
    fn write_u64(&mut self, x: u64) {
        self.0 = (self.0.rotate_left(5) ^ x).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn write_usize(&mut self, x: usize) {
        self.write_u64(x as u64);
    }
    fn write_isize(&mut self, x: isize) {
        self.write_u64(x as u64);
    }
}

/// Fingerprints are hashes already: the set takes them as they are.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("the set of fingerprints holds u64 only")
    }
    fn write_u64(&mut self, x: u64) {
        self.0 = x;
    }
}

type Seen = HashSet<u64, BuildHasherDefault<AsIs>>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts to a limit in steps of one or two.
    struct Counter {
        limit: u8,
        forbidden: u8,
    }

    impl Model for Counter {
        type State = u8;
        fn initial(&self) -> u8 {
            0
        }
        fn successors(&self, state: &u8, visit: &mut Visit<'_, u8>) {
            for step in [1, 2] {
                if state + step <= self.limit {
                    visit(state + step, &|| format!("add {step}"));
                }
            }
        }
        fn check(&self, _: &u8, after: &u8) -> Result<(), String> {
            if *after == self.forbidden { Err("forbidden".into()) } else { Ok(()) }
        }
        fn describe(&self, state: &u8) -> String {
            state.to_string()
        }
    }

    #[test]
    fn exhausts_finds_the_shortest_and_admits_a_cap() {
        let fine = Counter { limit: 9, forbidden: 99 };
        assert_eq!(exhaust(&fine, 100), Outcome::Exhausted { states: 10 });
        assert_eq!(shortest_violation(&fine, 100), Outcome::Exhausted { states: 10 });
        assert!(matches!(exhaust(&fine, 5), Outcome::Capped { .. }));
        let bad = Counter { limit: 9, forbidden: 4 };
        assert!(matches!(exhaust(&bad, 100), Outcome::Violation { .. }));
        let Outcome::Violation { trace, .. } = shortest_violation(&bad, 100) else { panic!("4 is reachable") };
        assert_eq!(trace, ["add 2\n        => 2", "add 2\n        => 4"]);
    }
}
