//! A voter seen from inside: are promise, accept and the map one atomic register, although they lie in two copies of the
//! superblock and two slots of leaves? As `pool::acceptor` does it.
//!
//! The copies are replaced one after the other, a map's leaves one by one, all by compare-and-write. Each may end with unknown
//! outcome and land later, once or never; a host may stop for ever at any step; copy A may be lost.
//!
//! The property is what the agreement ([`crate::agree`]) takes for granted: a promise that was granted shows whatever was
//! accepted by a lower ballot and counts, whichever came first; and the map in force is whole.

pub mod configs;
mod steps;

use crate::explore::{Model, Visit};

/// Leaves of a map.
const LEAVES: usize = 2;
/// What stands in the other slot at first, and in the last map of some configurations.
const OTHER: u8 = 9;
/// Steps in which a host that is alone ends its operations, at most.
const STEPS_ALONE_MAX: usize = 300;
/// Times that a host replaces copy B by itself in one operation before it gives up: two hosts may do so again and again, each
/// because the other has done half of it.
const RAISES_MAX: u8 = 3;
/// Generations by which copy B is raised before copy A is mended: more than there are steps at a time.
const MEND_STRIDE: u8 = 4;
/// Generations by which both are raised for a mark: more than a mend makes up for.
const MARK_STRIDE: u8 = 16;

/// A copy of the superblock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
struct Copy {
    lost: bool,
    generation: u8,
    promised: u8,
    accepted: u8,
    /// The slot of the map, and its contents (as a checksum names them).
    slot: u8,
    value: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
struct Leaf {
    ballot: u8,
    value: u8,
}

/// A compare-and-write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Command {
    Copy(usize, Copy, Copy),
    Leaf(usize, usize, Leaf, Leaf),
}

/// What a host does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Prepare by this ballot and accept a map of this value.
    Propose(u8, u8),
    /// Raise the generation.
    Raise,
    /// Read what is in force.
    Open,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
enum Step {
    /// To read copy B, then copy A.
    #[default]
    ReadFirst,
    ReadSecond,
    /// Copy A is lost or has fallen back: to replace copy B by itself under a later generation, then copy A by that. Or the
    /// generation is raised: both by what copy A says.
    Bump,
    Mend,
    /// To replace copy A, to read copy B, to replace that.
    Replace,
    ReadFollower,
    Follow,
    /// To read the map in force, leaf by leaf.
    ReadMap,
    /// To read the leaves that are to be replaced; to look whether the promise stands; to replace them.
    ReadLeaves,
    LookAtPromise,
    WriteLeaf,
    /// After the outcome of a compare-and-write was unknown: to read what is there.
    Doubt,
}

/// A host.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct Host {
    next: u8,
    step: Step,
    /// Copies as last read: A and B.
    first: Copy,
    second: Copy,
    /// What copy A is to be, and was to be when the promise was granted.
    new: Copy,
    promise: Copy,
    accepting: bool,
    /// The copies are replaced to raise the generation, not to mend.
    raising: bool,
    raises: u8,
    leaf: usize,
    leaves: [Leaf; LEAVES],
    /// The command in doubt, and the step that sent it.
    doubt: Option<Command>,
    sent: Step,
}

/// A state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    copies: [Copy; 2],
    slots: [[Leaf; LEAVES]; 2],
    hosts: Vec<Host>,
    late: Vec<Command>,
    unknowns_left: u8,
    losses_left: u8,
    /// Ballots whose accept counts (set).
    counted: u16,
    /// By ballot: what its promise showed, plus one; 0: not granted.
    granted: [u8; 8],
}

/// Departures from the rules; each must lead to a violation.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    /// A step counts before copy B is stable.
    pub first_copy_alone: bool,
    /// Copy B is replaced whatever its generation.
    pub follows_back: bool,
    /// A step counts if copy B is as new, whatever it says.
    pub follows_by_generation: bool,
    /// The map is written over the one in force.
    pub same_slot: bool,
    /// The promise is looked at before the leaves are read.
    pub promise_first: bool,
    /// Accepted from whatever copy A is, not from the image of the promise.
    pub from_any_image: bool,
    /// Leaves do not bear their ballot.
    pub leaf_without_ballot: bool,
    /// The pool is opened with a member whose copies differ.
    pub opens_unfinished: bool,
    /// Who opens the pool reads copy A before copy B.
    pub opens_first_copy_first: bool,
    /// Copy A is mended from copy B as it is.
    pub mends_without_bump: bool,
    /// The generation is raised as any step is done: in copy A, then in copy B.
    pub raises_first_copy_first: bool,
}

/// A configuration.
#[derive(Clone, Default, Debug)]
pub struct Config {
    /// As it is printed.
    pub name: &'static str,
    /// The operations of each host.
    pub hosts: Vec<Vec<Operation>>,
    /// Commands that may end with unknown outcome.
    pub unknowns: u8,
    /// Whether copy A may be lost.
    pub losses: u8,
    /// The rules.
    pub rules: Rules,
}

impl Config {
    fn new(name: &'static str, hosts: &[&[Operation]]) -> Config {
        Config { name, hosts: hosts.iter().map(|host| host.to_vec()).collect(), unknowns: 1, ..Config::default() }
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> Config {
        change(&mut self);
        self
    }
}

/// A configuration to be searched.
pub struct Search(pub Config);

impl Model for Search {
    type State = State;

    fn initial(&self) -> State {
        let copy = Copy { generation: 1, ..Copy::default() };
        let other = Leaf { ballot: 0, value: OTHER };
        State {
            copies: [copy; 2],
            slots: [[Leaf::default(); LEAVES], [other; LEAVES]],
            hosts: vec![Host::default(); self.0.hosts.len()],
            late: Vec::new(),
            unknowns_left: self.0.unknowns,
            losses_left: self.0.losses,
            counted: 0,
            granted: [0; 8],
        }
    }

    fn successors(&self, state: &State, visit: &mut Visit<'_, State>) {
        for host in 0..state.hosts.len() {
            self.host_step(state, host, visit);
        }
        for position in 0..state.late.len() {
            let mut next = state.clone();
            let command = next.late.remove(position);
            land(&mut next, &command);
            visit(next, &|| format!("LATE {command:?} lands"));
        }
        if state.losses_left > 0 {
            let mut next = state.clone();
            next.losses_left -= 1;
            next.copies[0] = Copy { lost: true, ..Copy::default() };
            visit(next, &|| "copy A is lost".into());
        }
    }

    fn canonicalise(&self, state: &mut State) {
        state.late.sort();
    }

    fn check(&self, _: &State, after: &State) -> Result<(), String> {
        for (ballot, granted) in after.granted.iter().enumerate().filter(|(_, granted)| **granted != 0) {
            let shown = usize::from(granted - 1);
            let hidden = (shown + 1..ballot).find(|lower| after.counted >> lower & 1 == 1);
            if let Some(lower) = hidden {
                return Err(format!("ballot {ballot} was promised and shown {shown}, but {lower} is accepted"));
            }
        }
        let [first, second] = after.copies;
        let in_force = if first.lost || second.generation > first.generation { second } else { first };
        match after.slots[usize::from(in_force.slot)].iter().all(|leaf| leaf.value == in_force.value) {
            true => Ok(()),
            false => Err(format!("the map in force, of ballot {}, is not whole", in_force.accepted)),
        }
    }

    fn check_sampled(&self, state: &State) -> Result<(), String> {
        for host in 0..state.hosts.len() {
            let mut alone = State { unknowns_left: 0, ..state.clone() };
            for step in 0.. {
                let mut first = None;
                self.host_step(&alone, host, &mut |after, _| first = first.take().or(Some(after)));
                match first {
                    None => break,
                    Some(_) if step > STEPS_ALONE_MAX => return Err(format!("host {host} alone does not end")),
                    Some(next) => alone = next,
                }
            }
        }
        Ok(())
    }

    fn describe(&self, state: &State) -> String {
        let copy = |c: &Copy| match c.lost {
            true => "lost".into(),
            false => format!("g{} promised {} accepted {} in {}", c.generation, c.promised, c.accepted, c.slot),
        };
        let slot = |slot: &[Leaf; LEAVES]| slot.map(|leaf| format!("{}:{}", leaf.ballot, leaf.value)).join(" ");
        format!(
            "A {}, B {}; [{}] [{}]",
            copy(&state.copies[0]),
            copy(&state.copies[1]),
            slot(&state.slots[0]),
            slot(&state.slots[1])
        )
    }
}

/// Carries the command out; `false`: the comparison failed.
fn land(state: &mut State, command: &Command) -> bool {
    match *command {
        Command::Copy(copy, expected, new) if state.copies[copy] == expected => state.copies[copy] = new,
        Command::Leaf(slot, leaf, expected, new) if state.slots[slot][leaf] == expected => {
            state.slots[slot][leaf] = new;
        }
        _ => return false,
    }
    true
}
