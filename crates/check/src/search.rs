//! The search of Wing and Gong with the memory of Lowe ("Testing for linearizability", 2017): place operations one after
//! the other, earliest first; go back when an operation should have been placed by now and cannot; never visit the same
//! set of placed operations with the same value twice.
//!
//! Operations of unknown outcome would make an honest history exponential: any of them may have taken effect, at any time. So
//! values that nobody could tell apart are one value, operations that nobody could tell apart are placed in the order of their
//! invocations ([`reduce`](crate::reduce)), and one without an answer is not placed where it changes nothing.
//!
//! Invariant: "linearizable" is only said of a history for which an order was found, "not linearizable" only after every
//! order was refuted. A search that hits its bound says so ([`Fault::Undecided`]).

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use crate::fault::Fault;
use crate::{Action, History, Operation, appended, reduce};

/// Steps per key after which the search gives up. Guessed: seconds; an honest history of thousands of operations on a
/// key, of which a dozen overlap, needs a few steps for each.
pub const STEPS_MAX: u64 = 20_000_000;

/// What a good history contained.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Keys.
    pub keys: usize,
    /// Operations, those of unknown outcome included.
    pub operations: usize,
    /// Operations of unknown outcome.
    pub unknown: usize,
    /// Steps of the search.
    pub steps: u64,
}

/// Checks every key, or says what is wrong with the first that fails.
pub fn check(history: &History) -> Result<Summary, Fault> {
    let mut keys: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        if operation.returned.is_some_and(|returned| returned < operation.invoked) {
            return Err(Fault::Malformed(format!("{operation:?} returned before it was invoked")));
        }
        keys.entry(&operation.key).or_default().push(operation);
    }
    let unknown = history.operations.iter().filter(|operation| operation.returned.is_none()).count();
    let mut summary = Summary { keys: keys.len(), operations: history.operations.len(), unknown, steps: 0 };
    for (key, operations) in keys {
        summary.steps += check_key(key, &operations)?;
    }
    Ok(summary)
}

/// Checks one key; the steps it took.
fn check_key(key: &str, operations: &[&Operation]) -> Result<u64, Fault> {
    let relevant = reduce::relevant(operations)?;
    let mut search = Search::new(&relevant);
    match search.run() {
        Some(true) => Ok(search.steps),
        Some(false) => Err(Fault::NotLinearizable { key: key.to_owned(), report: report(&relevant, search.furthest) }),
        None => Err(Fault::Undecided { key: key.to_owned(), steps: search.steps }),
    }
}

/// What the key holds after `operation` took effect on `before`; `None`: its answer says otherwise, or, where there is no
/// answer, it would have no effect, and so need not be placed.
fn apply(operation: &Operation, before: Option<u64>) -> Option<Option<u64>> {
    let answered = operation.returned.is_some();
    // An answer must agree; without one anything does.
    let told = |value: Option<u64>| !answered || operation.value == value;
    let conditional = |holds: bool| match (answered, operation.done, holds) {
        (true, done, holds) if done != holds => None,
        (false, _, false) => None,
        (_, _, true) => Some(operation.value),
        _ => Some(before),
    };
    match operation.action {
        Action::Put => Some(operation.value),
        Action::Delete => Some(None),
        Action::Get => told(before).then_some(before),
        Action::Look => (operation.done == before.is_some()).then_some(before),
        Action::Take => told(before).then_some(None),
        Action::Expire { of } => (before == Some(of)).then_some(None),
        Action::Add => conditional(before.is_none()),
        Action::Replace => conditional(before.is_some()),
        Action::CompareAndSet { expected } => conditional(before == expected),
        Action::Increment { by } => {
            let after = Some(before.unwrap_or(0).wrapping_add(by));
            told(after).then_some(after)
        }
        Action::Append { piece } => {
            let after = Some(appended(before, piece));
            // It leaves a value in any case: with none it was not told which.
            (operation.value.is_none() || told(after)).then_some(after)
        }
    }
}

/// A call or a return in the order of time, linked to its neighbours that are not placed yet.
#[derive(Clone, Copy)]
struct Event {
    operation: usize,
    is_call: bool,
    previous: usize,
    next: usize,
}

struct Search<'a> {
    operations: &'a [Operation],
    /// Of an operation without an answer: the one invoked before it that nobody could tell from it.
    twins: Vec<Option<usize>>,
    /// Index 0 is the head, the last one the end.
    events: Vec<Event>,
    /// Event of each operation's call and, if it returned, of its return.
    places: Vec<(usize, Option<usize>)>,
    placed: Placed,
    value: Option<u64>,
    /// The order so far: operation, and the value before it.
    order: Vec<(usize, Option<u64>)>,
    known: HashSet<(Placed, Option<u64>)>,
    steps: u64,
    /// The operation at which the search had to go back, in the attempt that placed most.
    furthest: (usize, usize),
}

impl<'a> Search<'a> {
    fn new(operations: &'a [Operation]) -> Search<'a> {
        // At equal stamps calls come first: such operations count as overlapping.
        let calls = operations.iter().enumerate().map(|(index, o)| (o.invoked, 0, index));
        let returns = operations.iter().enumerate().filter_map(|(index, o)| o.returned.map(|at| (at, 1, index)));
        let mut times: Vec<(u64, u8, usize)> = calls.chain(returns).collect();
        times.sort_unstable();
        let mut events = vec![Event { operation: usize::MAX, is_call: false, previous: 0, next: 1 }];
        let mut places = vec![(0, None); operations.len()];
        for (_, kind, operation) in times {
            let at = events.len();
            events.push(Event { operation, is_call: kind == 0, previous: at - 1, next: at + 1 });
            if kind == 0 { places[operation].0 = at } else { places[operation].1 = Some(at) }
        }
        let end = events.len();
        events.push(Event { operation: usize::MAX, is_call: false, previous: end - 1, next: end });
        Search {
            operations,
            twins: reduce::twins(operations),
            events,
            places,
            placed: Placed::new(operations.len()),
            value: None,
            order: Vec::new(),
            known: HashSet::new(),
            steps: 0,
            furthest: (0, 0),
        }
    }

    /// Whether an order exists; `None`: the bound was hit first.
    fn run(&mut self) -> Option<bool> {
        let end = self.events.len() - 1;
        let mut at = self.events[0].next;
        loop {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return None;
            }
            if at == end {
                return Some(true); // what is left never returned
            }
            let Event { operation, is_call, next, .. } = self.events[at];
            if !is_call {
                if self.order.len() >= self.furthest.0 {
                    self.furthest = (self.order.len(), operation);
                }
                let Some((last, value)) = self.order.pop() else { return Some(false) };
                self.value = value;
                self.placed.remove(last);
                self.restore(last);
                at = self.events[self.places[last].0].next;
            } else if self.place(operation) {
                at = self.events[0].next;
            } else {
                at = next;
            }
        }
    }

    /// Puts the operation next in the order, unless its answer contradicts or this was tried before.
    fn place(&mut self, operation: usize) -> bool {
        let Some(after) = apply(&self.operations[operation], self.value) else { return false };
        // In any order with it here, its twin can take its place, and what changes nothing can be left out: it has no answer.
        let needless = self.operations[operation].returned.is_none() && after == self.value;
        if needless || self.twins[operation].is_some_and(|twin| !self.placed.contains(twin)) {
            return false;
        }
        self.placed.insert(operation);
        if !self.known.insert((self.placed.clone(), after)) {
            self.placed.remove(operation);
            return false;
        }
        self.order.push((operation, self.value));
        self.value = after;
        let (call, answer) = self.places[operation];
        self.unlink(call);
        if let Some(answer) = answer {
            self.unlink(answer);
        }
        true
    }

    fn unlink(&mut self, event: usize) {
        let Event { previous, next, .. } = self.events[event];
        self.events[previous].next = next;
        self.events[next].previous = previous;
    }

    /// Undoes [`Search::place`]'s unlinking, in the opposite order.
    fn restore(&mut self, operation: usize) {
        let (call, answer) = self.places[operation];
        for event in answer.into_iter().chain([call]) {
            let Event { previous, next, .. } = self.events[event];
            self.events[previous].next = event;
            self.events[next].previous = event;
        }
    }
}

/// A set of operations.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Placed(Box<[u64]>);

impl Placed {
    fn new(count: usize) -> Placed {
        Placed(vec![0; count.div_ceil(64)].into())
    }
    fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }
    fn contains(&self, index: usize) -> bool {
        self.0[index / 64] & 1 << (index % 64) != 0
    }
    fn remove(&mut self, index: usize) {
        self.0[index / 64] &= !(1 << (index % 64));
    }
}

/// Operations shown on each side of the culprit.
const REPORT_SIDE_MAX: usize = 12;

/// The operations around the one that could not be placed, in order of invocation.
fn report(operations: &[Operation], (_, culprit): (usize, usize)) -> String {
    let mut sorted: Vec<usize> = (0..operations.len()).collect();
    sorted.sort_by_key(|&index| operations[index].invoked);
    let position = sorted.iter().position(|&index| index == culprit).unwrap_or(0);
    let mut text = String::new();
    for &index in &sorted[position.saturating_sub(REPORT_SIDE_MAX)..sorted.len().min(position + REPORT_SIDE_MAX)] {
        let operation = &operations[index];
        let mark = if index == culprit { '>' } else { ' ' };
        let value = operation.value.map_or("-".into(), |value| format!("{value:x}"));
        let returned = operation.returned.map_or("?".into(), |at| at.to_string());
        let refused = if operation.done { "" } else { " refused" };
        let (client, action, invoked) = (operation.client, operation.action, operation.invoked);
        writeln!(text, "{mark} client {client} {action:?} {value}{refused} [{invoked}, {returned}]")
            .expect("writing to a string does not fail");
    }
    text
}
