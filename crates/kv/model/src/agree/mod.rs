//! Agreement on the pool's map: one register among voters that its own value names. As `pool::agree` does it.
//!
//! A voter's superblock is one atomic register here: promised and accepted ballot, and the map. Every step of a proposer
//! lands at a member at any time or never; a proposer may stop for ever anywhere, and decides on whatever answers it has. A
//! voter may lose all it had (then it has no vote until it begins anew, in a life that a joint map names) or the body of its
//! map alone. Rounds begin at 1 with every operation, as they do there, so that a ballot may be tried twice.
//!
//! The property: all maps that a proposer was told of, or that somebody has opened the pool with, are one chain, in which no
//! change stands twice; and a proposer is told of nothing that is older than what anybody was told before it began. Where members
//! have gone on without the voters there is a chain before that and one after, and nobody who carries a map of that is handed one
//! of the other any more.
//!
//! - [`map`]: maps, quorums, changes.
//! - [`proposer`]: prepare, decide, accept, open.
//! - [`seize`]: what is done where a majority of the voters is lost for good.
//! - [`steps`]: the transition system, progress.
//! - [`configs`]: what was searched, and the rules broken one by one.

pub mod configs;
mod map;
mod proposer;
mod seize;
mod steps;

pub use map::{Change, Map};
pub use steps::Search;

/// Members that there are.
pub const MEMBERS: usize = 4;
/// How often members go on without the voters.
pub const SEIZED_MAX: usize = 2;
/// Changes that a map tells of, at most.
pub const CHANGES_MAX: usize = 6;

/// Round and host; 0: none.
type Ballot = u8;

/// Hosts that ballots tell apart.
const HOSTS_MAX: u8 = 8;

/// What a member's superblock says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
struct Member {
    /// Its incarnation; 0: it has lost what it had, and has no vote.
    life: u8,
    promised: Ballot,
    accepted: Ballot,
    map: Map,
    /// The body of the map does not verify.
    torn: bool,
    /// The mark that it has been raised to: its generation, as far as it matters.
    mark: u8,
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
enum Reply {
    #[default]
    None,
    /// As it was when it promised, or was read.
    Shown(Member),
    /// It has promised this ballot.
    Refused(Ballot),
    NoVote,
    /// It has accepted.
    Accepted,
}

/// An accept that may land: at the member in this life that has promised this ballot and then accepted nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Accept {
    member: u8,
    life: u8,
    /// And not below this mark.
    mark: u8,
    ballot: Ballot,
    /// What had been accepted when it promised; `None`: it is asked for its promise first.
    before: Option<Ballot>,
    map: Map,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
enum Phase {
    #[default]
    Idle,
    Prepare,
    Accept,
    /// Opens the pool.
    Read,
}

/// A host.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Host {
    next: u8,
    phase: Phase,
    /// A map that was once in force.
    known: Map,
    asked: u8,
    round: u8,
    ballots_used: u8,
    /// Members that the request has not reached (set).
    pending: u8,
    replies: [Reply; MEMBERS],
    base: Map,
    proposed: Map,
    /// The map found is agreed on as it is, before anything is built on it.
    settles: bool,
    /// It has done so once: that ballot is not counted.
    settled: bool,
    /// It has begun again for newer marks or lives once: likewise.
    restarted: bool,
    /// Changes that the newest map had that anybody was told of when the operation began, and how often that was seized.
    floor: (u8, u8),
    /// The life that it has given to a member that begins anew.
    life: u8,
    /// The highest mark of each member that any map names which it has come by.
    marks: [u8; MEMBERS],
}

/// What went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Fault {
    /// Two maps were in force of which neither follows the other.
    Forked([u8; CHANGES_MAX], [u8; CHANGES_MAX]),
    Older([u8; CHANGES_MAX], u8),
    Twice(u8),
}

/// A state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    members: [Member; MEMBERS],
    hosts: Vec<Host>,
    late: Vec<Accept>,
    /// The longest chain that anybody was told of; of maps that were seized as often.
    chains: [[u8; CHANGES_MAX]; SEIZED_MAX + 1],
    losses_left: u8,
    rollbacks_left: u8,
    torn_left: u8,
    /// Lives given so far.
    lives: u8,
    fault: Option<Fault>,
}

/// Departures from the rules; each must lead to a violation.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    /// The proposer builds on the map it knows, not on the one of the highest ballot.
    pub builds_on_known: bool,
    /// It builds on a map that may not be in force.
    pub builds_on_unsettled: bool,
    /// A member accepts although it has promised more.
    pub promise_ignored: bool,
    /// A quorum of the map that the proposer knows is enough to build on another.
    pub quorum_of_known: bool,
    /// A member that has lost what it had votes on.
    pub votes_after_loss: bool,
    /// A voter is judged by the marks of the map that the proposer knew, not by those that the answers name.
    pub marks_of_known: bool,
    /// A member counts by its id, in whatever life.
    pub any_life: bool,
    /// A promise counts although the map accepted before it can't be read.
    pub torn_counts: bool,
    /// A change is not recognised in a map that has it.
    pub not_recognised: bool,
    /// The newest map that is seen is taken for the one in force.
    pub opens_newest: bool,
    /// A map counts as carried by whoever holds an equal one, whatever ballot it was accepted by.
    pub opens_any_ballot: bool,
    /// Of a joint map the new side alone votes.
    pub joint_by_new: bool,
    /// A member that has gone on without the voters is handed a map of before.
    pub seized_handed_over: bool,
    /// Of two maps the one of the higher ballot counts, whether members have gone on without the voters of one or not.
    pub seized_by_ballot: bool,
    /// Who meets a member that has gone on without the voters asks the voters of its map, not the member.
    pub seized_met_by_voters: bool,
    /// Some of the members left go on without the voters, not all.
    pub seized_by_some: bool,
}

/// A configuration.
#[derive(Clone, Default, Debug)]
pub struct Config {
    /// As it is printed.
    pub name: &'static str,
    /// The first map's voters (set).
    pub voters: u8,
    /// Its members without a vote (set).
    pub learners: u8,
    /// What each host asks for.
    pub hosts: Vec<Vec<Change>>,
    /// Ballots of one operation.
    pub ballots_max: u8,
    /// Members that may lose what they had.
    pub losses: u8,
    /// The map in force at first has marks of all members; hosts know the one before it, without.
    pub marked: bool,
    /// Members that may be rolled back to what they were before the marks, while no ballot is under way that was answered by none
    /// who knows them.
    pub rollbacks: u8,
    /// Maps whose body may be damaged.
    pub torn: u8,
    /// The rules.
    pub rules: Rules,
}

impl Config {
    /// Two ballots an operation, nothing lost, all rules kept.
    pub fn new(name: &'static str, voters: u8, hosts: &[&[Change]]) -> Config {
        let hosts = hosts.iter().map(|host| host.to_vec()).collect();
        Config { name, voters, hosts, ballots_max: 2, ..Config::default() }
    }

    /// The same with something changed.
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Config {
        change(&mut self);
        self
    }

    /// The same under other rules.
    pub fn under(self, change: impl FnOnce(&mut Rules)) -> Config {
        self.with(|config| change(&mut config.rules))
    }

    fn first(&self) -> Map {
        Map::first(self.voters, self.learners)
    }

    fn change(&self, state: &State, host: usize) -> Option<Change> {
        self.hosts[host].get(usize::from(state.hosts[host].next)).copied()
    }

    /// The number by which the host's present change is known in maps.
    fn token(&self, state: &State, host: usize) -> u8 {
        let before: usize = self.hosts[..host].iter().map(Vec::len).sum();
        (before + usize::from(state.hosts[host].next)) as u8 + 1
    }
}

fn round_of(ballot: Ballot) -> u8 {
    ballot / HOSTS_MAX
}
