//! What a host does, step by step.

use crate::explore::Visit;

use super::{
    Command, Copy, Host, LEAVES, Leaf, MARK_STRIDE, MEND_STRIDE, Operation, RAISES_MAX, Search, State, Step, land,
};

impl Search {
    fn operation(&self, state: &State, host: usize) -> Option<Operation> {
        self.0.hosts[host].get(usize::from(state.hosts[host].next)).copied()
    }

    fn end(state: &mut State, host: usize) {
        let next = state.hosts[host].next + 1;
        state.hosts[host] = Host { next, ..Host::default() };
    }

    pub(super) fn host_step(&self, state: &State, host: usize, visit: &mut Visit<'_, State>) {
        let Some(operation) = self.operation(state, host) else { return };
        let step = state.hosts[host].step;
        let words = || format!("host{host} {operation:?} {step:?}");
        let mut next = state.clone();
        let Some(command) = self.command(&next, host, operation) else {
            self.look(&mut next, host, operation);
            return visit(next, &words);
        };
        let done = land(&mut next, &command);
        self.answered(&mut next, host, operation, step, done);
        visit(next, &|| format!("{}: {done}", words()));
        if state.unknowns_left > 0 {
            let mut next = state.clone();
            next.unknowns_left -= 1;
            next.late.push(command);
            let current = &mut next.hosts[host];
            (current.doubt, current.sent, current.step) = (Some(command), step, Step::Doubt);
            visit(next, &|| format!("{}: outcome unknown", words()));
        }
    }

    /// The slot that a map is written to.
    fn target(&self, promise: &Copy) -> usize {
        usize::from(if self.0.rules.same_slot { promise.slot } else { 1 - promise.slot })
    }

    /// The compare-and-write of this step, if it is one.
    fn command(&self, state: &State, host: usize, operation: Operation) -> Option<Command> {
        let current = &state.hosts[host];
        match current.step {
            Step::Bump => Some(Command::Copy(1, current.second, current.new)),
            Step::Mend => Some(Command::Copy(0, current.first, current.new)),
            Step::Replace if self.0.rules.from_any_image && current.accepting => {
                Some(Command::Copy(0, state.copies[0], current.new))
            }
            Step::Replace => Some(Command::Copy(0, current.first, current.new)),
            Step::Follow => Some(Command::Copy(1, current.second, current.new)),
            Step::WriteLeaf => {
                let Operation::Propose(ballot, value) = operation else { return None };
                let ballot = if self.0.rules.leaf_without_ballot { 0 } else { ballot };
                let (slot, leaf) = (self.target(&current.promise), current.leaf);
                Some(Command::Leaf(slot, leaf, current.leaves[leaf], Leaf { ballot, value }))
            }
            _ => None,
        }
    }

    fn answered(&self, state: &mut State, host: usize, operation: Operation, step: Step, done: bool) {
        let current = &mut state.hosts[host];
        current.doubt = None;
        current.step = match (step, done) {
            (Step::Bump, true) => Step::Mend,
            (Step::Mend, true) if current.raising => return self.in_force(state, host, operation),
            (Step::Bump | Step::Mend, _) => Step::ReadFirst,
            (Step::Replace, true) if self.0.rules.first_copy_alone => return self.in_force(state, host, operation),
            (Step::Replace, true) => Step::ReadFollower,
            (Step::Replace, false) if current.accepting => return Self::end(state, host), // the promise is lost
            (Step::Replace, false) => Step::ReadFirst,
            (Step::Follow, true) => return self.in_force(state, host, operation),
            (Step::Follow, false) => Step::ReadFollower,
            (Step::WriteLeaf, true) => return self.leaf_written(state, host, operation),
            (Step::WriteLeaf, false) => {
                current.leaf = 0;
                if self.0.rules.promise_first { Step::LookAtPromise } else { Step::ReadLeaves }
            }
            (step, _) => unreachable!("{step:?} sends nothing"),
        };
    }

    /// The superblock that the host has written is in both copies.
    fn in_force(&self, state: &mut State, host: usize, operation: Operation) {
        let current = &mut state.hosts[host];
        match operation {
            Operation::Propose(ballot, _) if current.accepting => {
                state.counted |= 1 << ballot;
                Self::end(state, host);
            }
            Operation::Propose(..) => {
                (current.promise, current.step, current.leaf) = (current.new, Step::ReadMap, 0);
            }
            Operation::Raise | Operation::Open => Self::end(state, host),
        }
    }

    fn leaf_written(&self, state: &mut State, host: usize, operation: Operation) {
        let Operation::Propose(ballot, value) = operation else { return };
        let current = &mut state.hosts[host];
        current.leaf += 1;
        if current.leaf < LEAVES {
            current.step = Step::WriteLeaf;
            return;
        }
        let slot = if self.0.rules.same_slot { current.promise.slot } else { 1 - current.promise.slot };
        let generation = current.promise.generation + 1;
        current.first = current.promise;
        current.new = Copy { generation, accepted: ballot, slot, value, ..current.promise };
        (current.accepting, current.step) = (true, Step::Replace);
    }

    /// A step that only reads.
    fn look(&self, state: &mut State, host: usize, operation: Operation) {
        let (copies, slots) = (state.copies, state.slots);
        let current = &mut state.hosts[host];
        match current.step {
            // Copy A is written first: if it is still what copy B was before, both are.
            Step::ReadFirst if self.second_first(operation) => {
                (current.second, current.step) = (copies[1], Step::ReadSecond)
            }
            Step::ReadFirst => (current.first, current.step) = (copies[0], Step::ReadSecond),
            Step::ReadSecond => {
                match self.second_first(operation) {
                    true => current.first = copies[0],
                    false => current.second = copies[1],
                }
                self.have_copies(state, host, operation);
            }
            Step::ReadFollower => {
                current.second = copies[1];
                let (second, new) = (current.second, current.new);
                let contains = match operation {
                    Operation::Propose(ballot, _) if current.accepting => second.accepted == ballot,
                    Operation::Propose(ballot, _) => second.promised == ballot,
                    Operation::Raise | Operation::Open => second.generation >= new.generation,
                };
                let as_new = second.generation >= new.generation && !self.0.rules.follows_back;
                match contains || as_new && self.0.rules.follows_by_generation {
                    true => self.in_force(state, host, operation),
                    false if as_new => Self::end(state, host), // copy A was lost meanwhile, or somebody is further
                    false => current.step = Step::Follow,
                }
            }
            Step::ReadMap => {
                let slot = usize::from(current.promise.slot);
                current.leaves[current.leaf] = slots[slot][current.leaf];
                current.leaf += 1;
                if current.leaf == LEAVES {
                    self.map_read(state, host, operation);
                }
            }
            Step::ReadLeaves => {
                let slot = self.target(&current.promise);
                current.leaves[current.leaf] = slots[slot][current.leaf];
                current.leaf += 1;
                if current.leaf == LEAVES {
                    current.leaf = 0;
                    current.step = if self.0.rules.promise_first { Step::WriteLeaf } else { Step::LookAtPromise };
                }
            }
            Step::LookAtPromise if copies[0] != current.promise => Self::end(state, host),
            Step::LookAtPromise => {
                current.step = if self.0.rules.promise_first { Step::ReadLeaves } else { Step::WriteLeaf };
            }
            Step::Doubt => self.doubted(state, host, operation),
            step => unreachable!("{step:?} does not only read"),
        }
    }

    /// Whether copy B is read first.
    fn second_first(&self, operation: Operation) -> bool {
        operation != Operation::Open || !self.0.rules.opens_first_copy_first
    }

    fn have_copies(&self, state: &mut State, host: usize, operation: Operation) {
        self.go_on(state, host, operation);
        let current = &mut state.hosts[host];
        if current.step == Step::Bump {
            current.raises += 1;
            if current.raises > RAISES_MAX {
                Self::end(state, host);
            }
        }
    }

    fn go_on(&self, state: &mut State, host: usize, operation: Operation) {
        let current = &mut state.hosts[host];
        let (first, second) = (current.first, current.second);
        if operation == Operation::Open {
            let finished = first.lost || first == second || self.0.rules.opens_unfinished;
            let best = if first.lost || second.generation > first.generation { second } else { first };
            (current.promise, current.leaf, current.step) = (best, 0, Step::ReadMap);
            return if finished {
            } else {
                Self::end(state, host)
            };
        }
        current.raising = false;
        if first.lost || second.generation > first.generation {
            let (stride, step) =
                if self.0.rules.mends_without_bump { (1, Step::Mend) } else { (MEND_STRIDE, Step::Bump) };
            (current.new, current.step) = (Copy { generation: second.generation + stride, ..second }, step);
            return;
        }
        current.step = Step::Replace;
        match operation {
            Operation::Propose(ballot, _) if first.promised >= ballot => Self::end(state, host),
            Operation::Propose(ballot, _) => {
                current.new = Copy { promised: ballot, generation: first.generation + 1, ..first };
            }
            _ => {
                current.new = Copy { generation: first.generation + MARK_STRIDE, ..first };
                if !self.0.rules.raises_first_copy_first {
                    (current.raising, current.step) = (true, Step::Bump);
                }
            }
        }
    }

    /// The map that the superblock names was read: a promise is granted with it, or it is opened.
    fn map_read(&self, state: &mut State, host: usize, operation: Operation) {
        let current = &mut state.hosts[host];
        let shown = current.promise;
        let whole = current.leaves.iter().all(|leaf| leaf.value == shown.value);
        current.leaf = 0;
        match operation {
            Operation::Propose(ballot, _) if whole => {
                current.step = if self.0.rules.promise_first { Step::LookAtPromise } else { Step::ReadLeaves };
                state.granted[usize::from(ballot)] = shown.accepted + 1;
            }
            _ => {
                if whole && shown.accepted != 0 {
                    state.counted |= 1 << shown.accepted;
                }
                Self::end(state, host);
            }
        }
    }

    /// What is there tells how the command in doubt has ended, unless it is what was expected: then nobody may count on it.
    fn doubted(&self, state: &mut State, host: usize, operation: Operation) {
        let current = &state.hosts[host];
        let (sent, Some(command)) = (current.sent, current.doubt) else { return Self::end(state, host) };
        let (is_new, is_old) = match command {
            Command::Copy(copy, expected, new) => (state.copies[copy] == new, state.copies[copy] == expected),
            Command::Leaf(slot, leaf, expected, new) => {
                (state.slots[slot][leaf] == new, state.slots[slot][leaf] == expected)
            }
        };
        match is_old && !is_new {
            true => Self::end(state, host),
            false => self.answered(state, host, operation, sent, is_new),
        }
    }
}
