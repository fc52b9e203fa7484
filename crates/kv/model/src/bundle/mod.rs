//! Bundles: entries that leave a full home page together, as one immutable copy with one forward record behind. Is each key
//! still an atomic register, and is nothing freed that somebody may yet read?
//!
//! One home page of three keys, one other page with places for copies (bundles, and values that are out of line). The page
//! has room for seven units, an entry takes three, so that two entries fill it. What is written next is planned as
//! `kv::table::plan` plans it: the rest of a sparse bundle comes back with a key, an entry that does not fit goes with others
//! into the next bundle, and a delete that finds no room is noted in the forward record.
//!
//! Every compare-and-write may end with unknown outcome and land later, once or never; a host may stop at any step for ever;
//! a bundle may be lost on the medium.
//!
//! - [`page`]: the page's image: what it says of a key, and what the next one is.
//! - [`writer`]: puts, deletes, promises, and the freeing of what they leave.
//! - [`upkeep`]: readers, cleaning, the collector of orphans, the rebuild of a lost bundle.
//! - [`steps`]: the transition system, what must hold in every state, progress.
//! - [`configs`]: what was searched, and the rules broken one by one.

pub mod configs;
mod page;
mod steps;
mod upkeep;
mod writer;

pub use steps::Search;

/// Keys at home in the page: two that fill it, one that needs the room.
pub const KEYS: usize = 3;
/// Places for copies.
pub const SLOTS: usize = 3;
/// Forward records of a page.
pub const FORWARDS: usize = 2;
/// Units of room in the page.
const ROOM: usize = 7;
/// Units of an entry, a tombstone too: what a delete needs is then more than its key's return gives back.
const ENTRY_ROOM: usize = 3;

/// A copy outside the page: where, and whose; tag 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
struct Copy {
    place: u8,
    tag: u8,
}

/// A key's entry. A timestamp stands for its value as well; no two stores have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Entry {
    timestamp: u8,
    promise: u8,
    dead: bool,
    /// Where the value is, if out of line.
    copy: Copy,
}

/// A forward record: the bundle, the keys that count in it (set), and the timestamps of those deleted there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Forward {
    copy: Copy,
    counts: u8,
    deletions: [u8; KEYS],
}

/// The entries of a bundle, by key.
type Contents = [Entry; KEYS];

/// The home page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Home {
    version: u8,
    sealed: bool,
    entries: Contents,
    forwards: [Forward; FORWARDS],
}

/// A place: its owner's tag (0: free), what is there, whether a collector has condemned it, whether the medium has lost it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Slot {
    tag: u8,
    condemned: bool,
    lost: bool,
    contents: Contents,
}

/// The page of places.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Area {
    version: u8,
    slots: [Slot; SLOTS],
}

/// A compare-and-write: expected and new image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Command {
    Home(Home, Home),
    Area(Area, Area),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Done,
    Failed,
    Unknown,
}

/// What a host does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Store this timestamp under the key, if newer.
    Put(usize, u8),
    /// The same, with the value out of line.
    PutFar(usize, u8),
    /// Store a tombstone.
    Delete(usize, u8),
    /// Raise the key's promise.
    Promise(usize, u8),
    /// Read the key.
    Read(usize),
    /// Close the page to all the others, and drop the key in the same stroke.
    Clean(usize),
    /// Look at a copy, and free it if it is an orphan.
    Collect,
    /// Bring back from other members what was in a lost bundle.
    Rebuild,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
enum Step {
    /// The first step of every operation but [`Operation::Collect`].
    #[default]
    Begin,
    /// To read a bundle that the page named.
    Fetch,
    /// It was not there: to read the page again.
    Recheck,
    /// To look whether the own copies are still there: the page was read after they were placed.
    LookAtCopies,
    Place,
    /// ([`Rules::published_first`]) to write the bundle that the page refers to already.
    PlaceLate,
    Publish,
    /// (Reader) to read the value out of line.
    Follow,
    /// (Rebuild) to ask the other members.
    Gather,
    Condemn,
    Bump,
    LookAtHome,
    Free,
    Pardon,
}

/// A copy placed by an operation that is under way: a bundle, or a value of `key`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Placed {
    copy: Copy,
    key: Option<u8>,
    contents: Contents,
}

/// An attempt that may yet land: what it expected, and what it would unlink.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Doubt {
    expected: Home,
    unlinks: Vec<Copy>,
}

/// A copy to be freed, by a host that has gone on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Leftover {
    /// Nobody refers to it.
    Garbage(Copy),
    /// Once the page is past this version, and does not refer to it.
    Undecided(Copy, Option<u8>),
}

/// A host.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Host {
    next: u8,
    step: Step,
    /// The page as last read.
    home: Home,
    /// The image is older than all copies that were placed for it.
    older: bool,
    /// Bundles that were read.
    held: Vec<(u8, Contents)>,
    placed: Vec<Placed>,
    /// To be placed next: for a key, or a bundle.
    to_place: (Option<u8>, Contents),
    /// To be published next, and what that unlinks.
    planned: Home,
    unlinks: Vec<Copy>,
    doubt: Option<Doubt>,
    garbage: Vec<Copy>,
    /// The page as last seen by a store that is done has bundles.
    bundled: bool,
    /// (Reader) the oldest that may be returned; the entry whose value is read.
    floor: u8,
    found: Entry,
    /// (Rebuild) what other members hold.
    gathered: Contents,
    /// (Collector) the copy it looks at.
    picked: Copy,
    /// (Rebuild) the bundles that it saw lost, before it waited.
    lost: Vec<Copy>,
    /// Under way when a rebuild saw the damage.
    in_flight: bool,
    /// Too late for what it does to be acknowledged.
    expired: bool,
    left: Vec<Leftover>,
    claims: u8,
}

/// What went wrong in a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    StaleRead { returned: u8, floor: u8 },
    WrongValue { returned: u8, timestamp: u8 },
    CalledDamaged { tag: u8 },
    DeleteRefused { key: usize },
}

/// A state.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    home: Home,
    area: Area,
    hosts: Vec<Host>,
    late: Vec<Command>,
    unknowns_left: u8,
    losses_left: u8,
    /// What the member has acknowledged of each key, by ended stores and reads: other members hold as much.
    ended: Contents,
    /// Keys that were dropped for good (set).
    gone: u8,
    fault: Option<Fault>,
}

/// Departures from the rules; each must lead to a violation.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    /// A key that comes back keeps its byte in the filter.
    pub filter_kept: bool,
    /// An entry counts if any of its byte does.
    pub filter_by_byte: bool,
    /// The page refers to a bundle before it is written.
    pub published_first: bool,
    /// A bundle is used although the page no longer holds what is in it.
    pub stale_bundle: bool,
    /// A copy is freed although its publication may yet land.
    pub undecided_freed: bool,
    /// A store that is done looks for its copy in the page alone, not in its bundles.
    pub settled_by_page: bool,
    /// The collector does not look into bundles.
    pub collector_blind: bool,
    /// The collector does not bump the page.
    pub no_bump: bool,
    /// Copies are not looked at again before they are published on a younger image.
    pub no_look_at_copies: bool,
    /// Cleaning does not look into bundles.
    pub clean_blind: bool,
    /// Cleaning takes the deletion away and leaves the byte.
    pub deletion_dropped_alone: bool,
    /// A deletion noted in the forward record forgets the promise.
    pub deletion_forgets_promise: bool,
    /// A page keeps no room for deletions.
    pub no_reserve: bool,
    /// A key in a lost bundle counts as absent.
    pub lost_is_absent: bool,
    /// A lost bundle is unlinked first and what was in it stored later.
    pub rebuild_in_two: bool,
    /// The rebuild does not wait until operations from before the damage are over.
    pub rebuild_at_once: bool,
    /// The rebuild waits for one damage and puts right whatever is lost by then.
    pub any_damage: bool,
    /// The rebuild asks the other members before it reads the page that it replaces.
    pub gathered_first: bool,
    /// A bundle that is not where the page said is called damaged after one look.
    pub no_recheck: bool,
    /// What stands at a place is taken whoever owns it.
    pub no_identity: bool,
}

/// What stands in the page to begin with.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Begin {
    /// Keys 0 and 1, which fill it.
    #[default]
    Full,
    /// The same; the value of key 0 is out of line.
    Far,
    /// Key 2, and keys 0 and 1 in a bundle.
    Bundled,
    /// The same; the value of key 0 is out of line.
    BundledFar,
}

/// A configuration.
#[derive(Clone, Default, Debug)]
pub struct Config {
    /// As it is printed.
    pub name: &'static str,
    /// The operations of each host.
    pub hosts: Vec<Vec<Operation>>,
    /// What is there first.
    pub begin: Begin,
    /// Compare-and-writes that may end with unknown outcome.
    pub unknowns: u8,
    /// Bundles that may be lost.
    pub losses: u8,
    /// Places for copies.
    pub slots: usize,
    /// The rules.
    pub rules: Rules,
}

impl Config {
    /// One unknown outcome, all rules kept.
    pub fn new(name: &'static str, begin: Begin, hosts: &[&[Operation]]) -> Config {
        let hosts = hosts.iter().map(|host| host.to_vec()).collect();
        Config { name, hosts, begin, unknowns: 1, slots: SLOTS, ..Config::default() }
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

    fn operation(&self, state: &State, host: usize) -> Option<Operation> {
        self.hosts[host].get(usize::from(state.hosts[host].next)).copied()
    }
}
