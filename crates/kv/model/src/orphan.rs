//! Copies that nobody refers to: who frees them, when the host that made them may have crashed or may only be slow?
//!
//! One home page, one allocation page with two places, up to three hosts: writers that place a copy and publish it, and
//! collectors that *condemn* a copy, *bump* the home page's version, *look* whether the page refers to the copy, and *free*
//! it or take the mark off. A host may stop for ever at any step; a compare-and-write may end with unknown outcome and
//! land later, once or never. That a data write does not land late is assumption 4 of `docs/kv.md`, and not modelled.
//!
//! The home page may be damaged, and be rebuilt by one more host. A damaged page refers to nothing and cannot be given a next
//! version: it is bumped by putting other damaged bytes in its place.
//!
//! The property: what the home page refers to is never free nor another's.

use crate::explore::{Model, Visit};

/// Places for copies: one to be freed too early, one for the stranger.
const PLACES: usize = 2;

/// The home page: version, the store that it shows, and its copy (place, tag); tag 0: none. Of one that is damaged the version
/// stands for its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
struct Home {
    version: u8,
    timestamp: u8,
    copy: (u8, u8),
    damaged: bool,
}

impl Home {
    /// Other bytes that are no page.
    fn damaged(self) -> Home {
        Home { version: self.version + 1, damaged: true, ..Home::default() }
    }
}

/// The allocation page: version, and for each place the owner's tag (0: free) and whether it is condemned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
struct Allocation {
    version: u8,
    slots: [(u8, bool); PLACES],
}

/// A compare-and-write: expected and new image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Command {
    Home(Home, Home),
    Allocation(Allocation, Allocation),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
enum Step {
    /// Writer: read the home page; then claim; publish; after a failure or a doubt read again, look at the own copy.
    #[default]
    Read,
    Claim,
    Publish,
    ReadAgain,
    LookAtCopy,
    /// Writer: free the copy that was replaced.
    FreeOld,
    /// Rebuilder: wait for damage; then claim, publish.
    ReadDamaged,
    /// Collector.
    Pick,
    Condemn,
    Bump,
    LookAtHome,
    Free,
    Pardon,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct Host {
    /// Stores, or copies looked at, that are still to come.
    left: u8,
    step: Step,
    home: Home,
    allocation: Allocation,
    /// The writer's own copy, or the one that the collector looks at: place and tag.
    copy: (u8, u8),
    /// The writer's replaced copy.
    old: (u8, u8),
    tags: u8,
}

/// A state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    home: Home,
    allocation: Allocation,
    hosts: Vec<Host>,
    late: Vec<Command>,
    unknowns_left: u8,
    damages_left: u8,
}

/// A configuration, and the rules broken in it.
#[derive(Clone, Default, Debug)]
pub struct Config {
    /// As it is printed.
    pub name: &'static str,
    /// Stores of each writer.
    pub writers: Vec<u8>,
    /// Copies that each collector looks at.
    pub collectors: Vec<u8>,
    /// Pages that each rebuilder rebuilds.
    pub rebuilders: Vec<u8>,
    /// Commands that may end with unknown outcome.
    pub unknowns: u8,
    /// Times that the home page may be damaged.
    pub damages: u8,
    /// The collector does not bump the home page.
    pub no_bump: bool,
    /// The writer publishes on a younger image without a look at its copy.
    pub no_look_at_copy: bool,
    /// The collector does not condemn first.
    pub no_condemn: bool,
    /// The collector looks before it bumps.
    pub look_before_bump: bool,
    /// The collector believes that a damaged page refers to nothing, and leaves its bytes as they are.
    pub damage_not_bumped: bool,
}

impl Config {
    fn new(name: &'static str, writers: &[u8], collectors: &[u8]) -> Config {
        Config { name, writers: writers.to_vec(), collectors: collectors.to_vec(), unknowns: 1, ..Config::default() }
    }

    /// The same where the home page may be damaged, and is rebuilt.
    fn damaged(self, rebuilders: &[u8]) -> Config {
        Config { rebuilders: rebuilders.to_vec(), damages: 1, ..self }
    }

    fn is_rebuilder(&self, host: usize) -> bool {
        host >= self.writers.len() + self.collectors.len()
    }

    fn is_writer(&self, host: usize) -> bool {
        host < self.writers.len()
    }

    /// The timestamp of the writer's present store: later stores are newer, and no two the same.
    fn timestamp(&self, state: &State, host: usize) -> u8 {
        (self.writers[host] - state.hosts[host].left) * 2 + host as u8 + 1
    }
}

/// The name of the sound group.
pub const SOUND: [&str; 1] = ["orphan"];

/// Sound configurations; empty for an unknown name.
pub fn sound(group: &str) -> Vec<Config> {
    if group != "orphan" {
        return Vec::new();
    }
    vec![
        Config::new("writer|collector of orphans", &[2], &[2]),
        Config::new("writer|writer|collector of orphans", &[1, 1], &[2]),
        Config::new("writer|two collectors of orphans", &[2], &[1, 1]),
        Config::new("writer|collector of orphans, a page rebuilt", &[1], &[2]).damaged(&[1]),
        Config::new("collector of orphans, a page rebuilt by two", &[1], &[2]).damaged(&[1, 1]),
    ]
}

/// Each rule broken: each must violate.
pub fn broken() -> Vec<Config> {
    let new = |name| Config::new(name, &[1, 1], &[2]);
    vec![
        Config { no_bump: true, ..new("orphans: the home page is not bumped") },
        Config { no_look_at_copy: true, ..new("orphans: published on a younger image without a look at the copy") },
        Config { no_condemn: true, ..new("orphans: not condemned first") },
        Config { look_before_bump: true, ..new("orphans: looked for a reference before the bump") },
        Config { damage_not_bumped: true, ..new("orphans: a damaged home page is not bumped").damaged(&[1]) },
    ]
}

/// A configuration to be searched.
pub struct Search(pub Config);

impl Model for Search {
    type State = State;

    fn initial(&self) -> State {
        let writers = self.0.writers.iter().map(|&left| Host { left, ..Host::default() });
        let collectors = self.0.collectors.iter().map(|&left| Host { left, step: Step::Pick, ..Host::default() });
        let rebuilder = |&left: &u8| Host { left, step: Step::ReadDamaged, ..Host::default() };
        State {
            home: Home::default(),
            allocation: Allocation::default(),
            hosts: writers.chain(collectors).chain(self.0.rebuilders.iter().map(rebuilder)).collect(),
            late: Vec::new(),
            unknowns_left: self.0.unknowns,
            damages_left: self.0.damages,
        }
    }

    fn successors(&self, state: &State, visit: &mut Visit<'_, State>) {
        for host in 0..state.hosts.len() {
            if state.hosts[host].left > 0 {
                self.host_step(state, host, visit);
            }
        }
        for position in 0..state.late.len() {
            let mut next = state.clone();
            let command = next.late.remove(position);
            land(&mut next, &command);
            visit(next, &|| format!("LATE {command:?} lands"));
        }
        if state.damages_left > 0 {
            let home = state.home.damaged();
            visit(State { home, damages_left: state.damages_left - 1, ..state.clone() }, &|| "DAMAGE".into());
        }
    }

    fn canonicalise(&self, state: &mut State) {
        let mut late = std::mem::take(&mut state.late);
        late.retain(|command| match command {
            Command::Home(expected, _) => *expected == state.home,
            Command::Allocation(expected, _) => *expected == state.allocation,
        });
        late.sort();
        state.late = late;
    }

    fn check(&self, _: &State, after: &State) -> Result<(), String> {
        let (place, tag) = after.home.copy;
        let owner = after.allocation.slots[usize::from(place)].0;
        match tag == 0 || owner == tag {
            true => Ok(()),
            false => Err(format!("the home page refers to copy {tag} at place {place}, which {owner} owns")),
        }
    }

    fn describe(&self, state: &State) -> String {
        format!("{:?} {:?}", state.home, state.allocation)
    }
}

/// Carries the command out; `false`: the comparison failed.
fn land(state: &mut State, command: &Command) -> bool {
    match *command {
        Command::Home(expected, new) if state.home == expected => state.home = new,
        Command::Allocation(expected, new) if state.allocation == expected => state.allocation = new,
        _ => return false,
    }
    true
}

/// The allocation page with the place given to this owner.
fn with_slot(expected: Allocation, place: u8, slot: (u8, bool)) -> Command {
    let mut new = Allocation { version: expected.version + 1, ..expected };
    new.slots[usize::from(place)] = slot;
    Command::Allocation(expected, new)
}

/// The rebuilder has read the home page.
fn have_read_damaged(current: &mut Host, home: Home) -> Option<Command> {
    if home.damaged {
        (current.home, current.step) = (home, Step::Claim);
    } else {
        *current = Host::default(); // somebody else was faster, or there is nothing to do
    }
    None
}

impl Search {
    fn host_step(&self, state: &State, host: usize, visit: &mut Visit<'_, State>) {
        let current = state.hosts[host];
        let words = || format!("host{host} {:?} copy {:?}", current.step, current.copy);
        if current.step == Step::Pick {
            for (place, slot) in state.allocation.slots.iter().enumerate().filter(|(_, slot)| slot.0 != 0) {
                let mut next = state.clone();
                next.hosts[host].copy = (place as u8, slot.0);
                next.hosts[host].step = if self.0.look_before_bump { Step::LookAtHome } else { Step::Condemn };
                visit(next, &words);
            }
            return;
        }
        let mut next = state.clone();
        match self.command(&mut next, host) {
            None => visit(next, &words),
            Some(command) => {
                if next.unknowns_left > 0 {
                    let mut doubtful = next.clone();
                    doubtful.unknowns_left -= 1;
                    doubtful.late.push(command);
                    self.ended(&mut doubtful, host, false);
                    visit(doubtful, &|| format!("{}: outcome unknown", words()));
                }
                let done = land(&mut next, &command);
                self.ended(&mut next, host, done);
                visit(next, &|| format!("{}: {done}", words()));
            }
        }
    }

    /// What the host reads, or the compare-and-write that it sends; an allocation page is read just before.
    fn command(&self, state: &mut State, host: usize) -> Option<Command> {
        let (home, allocation) = (state.home, state.allocation);
        let timestamp = if self.0.is_writer(host) { self.0.timestamp(state, host) } else { 0 };
        let current = &mut state.hosts[host];
        let (place, tag) = current.copy;
        let slot = allocation.slots[usize::from(place)];
        match current.step {
            Step::Read | Step::ReadAgain => self.have_read(current, home, timestamp),
            Step::LookAtCopy => {
                let mine = slot == (tag, false);
                current.step = if mine { Step::Publish } else { Step::Read }; // or the value is placed anew
                None
            }
            Step::LookAtHome => {
                let referred = home.copy == current.copy;
                current.step = match referred {
                    true => Step::Pardon,
                    false if self.0.look_before_bump && !slot.1 => Step::Condemn,
                    false => Step::Free,
                };
                None
            }
            Step::Claim => {
                let Some(place) = allocation.slots.iter().position(|slot| slot.0 == 0) else {
                    current.left = 0; // out of space
                    return None;
                };
                current.tags += 1;
                current.copy = (place as u8, 1 + host as u8 * 16 + current.tags);
                Some(with_slot(allocation, place as u8, (current.copy.1, false)))
            }
            Step::Publish => {
                let (version, copy) = (current.home.version + 1, current.copy);
                let new = Home { version, timestamp, copy, damaged: false };
                Some(Command::Home(current.home, new))
            }
            Step::FreeOld => {
                let (place, tag) = current.old;
                let there = tag != 0 && allocation.slots[usize::from(place)].0 == tag;
                if !there {
                    *current = Host { left: current.left - 1, tags: current.tags, ..Host::default() };
                    return None;
                }
                Some(with_slot(allocation, place, (0, false)))
            }
            Step::ReadDamaged => have_read_damaged(current, home),
            Step::Bump if home.damaged && self.0.damage_not_bumped => {
                current.step = Step::LookAtHome;
                None
            }
            Step::Bump if home.damaged => Some(Command::Home(home, home.damaged())),
            Step::Bump => Some(Command::Home(home, Home { version: home.version + 1, ..home })),
            Step::Condemn if slot.0 != tag => self.next_copy(current),
            Step::Condemn if slot.1 || self.0.no_condemn => {
                current.step = Step::Bump;
                None
            }
            Step::Condemn => Some(with_slot(allocation, place, (tag, true))),
            Step::Free | Step::Pardon if slot.0 != tag => self.next_copy(current),
            Step::Free => Some(with_slot(allocation, place, (0, false))),
            Step::Pardon if !slot.1 => self.next_copy(current),
            Step::Pardon => Some(with_slot(allocation, place, (tag, false))),
            Step::Pick => unreachable!("the collector's choice is made before"),
        }
    }

    /// The writer has read the home page.
    fn have_read(&self, current: &mut Host, home: Home, timestamp: u8) -> Option<Command> {
        if home.damaged {
            *current = Host::default(); // it has failed, and what it placed is left
            return None;
        }
        let doubted = current.home;
        current.home = home;
        current.step = match current.step {
            _ if home.timestamp >= timestamp => Step::FreeOld,
            Step::Read => Step::Claim,
            _ if home == doubted || self.0.no_look_at_copy => Step::Publish,
            _ => Step::LookAtCopy,
        };
        None
    }

    /// The collector is done with this copy.
    fn next_copy(&self, current: &mut Host) -> Option<Command> {
        *current = Host { left: current.left - 1, step: Step::Pick, ..Host::default() };
        None
    }

    /// The compare-and-write was carried out, or failed, or its outcome is unknown (then it is as if it had failed).
    fn ended(&self, state: &mut State, host: usize, done: bool) {
        let current = &mut state.hosts[host];
        current.step = match (current.step, done) {
            (Step::Claim, true) => Step::Publish,
            (Step::Claim, false) if self.0.is_rebuilder(host) => Step::Claim,
            (Step::Publish, _) if self.0.is_rebuilder(host) => {
                *current = Host::default(); // done, or somebody else was faster; in doubt, what it placed is left
                return;
            }
            (Step::Claim, false) => Step::Read, // the tag of a claim in doubt is not used again
            (Step::Publish, true) => {
                current.old = current.home.copy;
                Step::FreeOld
            }
            (Step::Publish, false) => Step::ReadAgain,
            (Step::Condemn, true) if self.0.no_bump => Step::LookAtHome,
            (Step::Condemn, true) => Step::Bump,
            (Step::Bump, true) if self.0.look_before_bump => Step::Free,
            (Step::Bump, true) => Step::LookAtHome,
            (Step::Free | Step::Pardon, true) => {
                self.next_copy(current);
                Step::Pick
            }
            (step, _) => step, // tried again on the page as it is then
        };
    }
}
