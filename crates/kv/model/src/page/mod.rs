//! One member seen from inside: is "store if newer" and "read" of a key atomic, although the entry is spread over pages?
//!
//! The member offers single commands on its namespace and nothing else: read a page, compare-and-write a page, write a
//! data page, read a data page. Hosts build `store` and `read` from them by the rules of `crates/kv/README.md`. Each
//! command may be answered, or its outcome may stay unknown to the host: then it lands at any later time, once, or never.
//! A host may stop at any step for ever; that is the crash.
//!
//! The property ([`member`]): per key, what reads return is what an atomic register that keeps the newest timestamp would
//! return; a place that a home page refers to holds what was put there; no entry is lost; an intact copy is never
//! taken for a corrupt one.
//!
//! - [`member`]: the commands and the invariants.
//! - [`store`]: the writer: plan, place the copy, publish, free.
//! - [`read`]: the reader.
//! - [`steps`]: the transition system.
//! - [`configs`]: what was searched, and the rules broken one by one.

pub mod configs;
pub mod member;
mod read;
mod steps;
mod store;

pub use steps::Search;

/// Keys, table pages and extents of the member: the fewest with which every rule can go wrong.
pub const KEYS: usize = 2;
/// Table pages.
pub const PAGES: usize = 2;
/// Extents described by the one allocation page.
pub const EXTENTS: usize = 2;
/// Guests that fit in a page.
pub const GUESTS: usize = 2;
/// Hosts in a configuration.
pub const HOSTS_MAX: usize = 3;

/// Identity of one copy of a value: unique to the attempt that made it, 0 for none. On a member it is the owner tag of
/// an extent and the copy id of a guest.
pub type Tag = u8;

/// Where the value of a record is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub enum Place {
    /// In the record.
    #[default]
    Inline,
    /// In another table page, under this copy id.
    Guest(u8, Tag),
    /// In the heap, owned under this tag.
    Extent(u8, Tag),
}

/// A key's record in its home page; timestamp 0: absent. A timestamp stands for its value as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Record {
    timestamp: u8,
    place: Place,
}

/// A copy of a value in a page that is not its key's home; tag 0: free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Guest {
    timestamp: u8,
    tag: Tag,
}

/// A table page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Page {
    version: u8,
    records: [Record; KEYS],
    guests: [Guest; GUESTS],
}

/// The allocation page: owner tag of each extent, 0: free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Allocation {
    version: u8,
    owners: [Tag; EXTENTS],
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[v{}", self.version)?;
        self.records.iter().try_for_each(|r| match (r.timestamp, r.place) {
            (0, _) => write!(f, " -"),
            (timestamp, Place::Inline) => write!(f, " {timestamp}"),
            (timestamp, place) => write!(f, " {timestamp}@{place:?}"),
        })?;
        self.guests.iter().filter(|g| g.tag != 0).try_for_each(|g| write!(f, " guest {}#{}", g.timestamp, g.tag))?;
        write!(f, "]")
    }
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "v{} {:?}", self.version, self.owners)
    }
}

/// What an extent holds: a value, and the tag that its checksum is seeded with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Content {
    timestamp: u8,
    tag: Tag,
}

/// A command that changes the member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Command {
    /// Compare-and-write of table page, with expected and new content.
    Table(u8, Page, Page),
    /// Compare-and-write of the allocation page.
    Allocate(Allocation, Allocation),
    /// Plain write of an extent.
    Write(u8, Content),
}

/// What the host learns of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Done,
    Failed,
    Unknown,
}

/// How the value of a store is to be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// In the home page.
    Inline,
    /// In the home page; the other key's inline value makes room for it and becomes a guest.
    Displace,
    /// As a guest: the home page is full.
    Guest,
    /// In the heap.
    Extent,
}

/// What a host does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Store if newer: key, timestamp, form.
    Store(usize, u8, Form),
    /// Read the key.
    Read(usize),
}

/// Where a host stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
enum Step {
    /// To read the home page: the first step of every operation.
    #[default]
    ReadHome,
    /// To read the page that will hold a guest; for the own value, or for the displaced neighbour's.
    ReadGuestPage {
        own: bool,
    },
    InsertGuest {
        own: bool,
    },
    ReadAllocation,
    ClaimExtent,
    WriteExtent,
    Publish,
    /// To read the page that describes the first piece of garbage.
    ReadForFree,
    Free,
    /// (Reader) to read the copy that the home page referred to.
    Follow,
    /// (Reader) the copy did not verify: to read the home page again.
    Recheck,
}

/// A host.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Host {
    next: u8,
    step: Step,
    /// The home page as last read, also what the next publication expects.
    home: Page,
    /// The guest page as last read.
    guest_page: Page,
    allocation: Allocation,
    /// The copy made for this operation.
    own: Option<Place>,
    /// The copy made of the neighbour's value, with its timestamp.
    neighbour: Option<(u8, Place)>,
    /// The tag to be used next, while a claim or an insertion is under way.
    tag: Tag,
    /// A publication of unknown outcome expected this page.
    doubt: Option<Page>,
    /// Such a publication may still land.
    undecided: bool,
    /// Places to free.
    garbage: Vec<Place>,
    /// The store is over, only garbage is left.
    completed: bool,
    /// Copies made so far by this host: makes tags unique.
    claims: u8,
    /// (Reader) oldest timestamp that may be returned.
    floor: u8,
    /// ([`Rules::free_before_unlink`]) freed already.
    freed_early: Option<Place>,
}

/// What went wrong in a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    StaleRead { returned: u8, floor: u8 },
    WrongValue { returned: u8, timestamp: u8 },
    CalledCorrupt(Place),
}

/// A state of the member and its hosts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pages: [Page; PAGES],
    allocation: Allocation,
    data: [Content; EXTENTS],
    /// ([`Rules::data_write_cached`]) what a crash of the member would bring back.
    stable: [Content; EXTENTS],
    hosts: Vec<Host>,
    /// Commands whose outcome their host does not know.
    late: Vec<Command>,
    unknowns_left: u8,
    /// Newest timestamp per key that an ended operation stored or returned.
    ended: [u8; KEYS],
    fault: Option<Fault>,
}

/// Departures from the rules of `crates/kv/README.md`; each must lead to a violation.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    /// Rule 1: a page's version stays as it is.
    pub version_repeats: bool,
    /// Rule 2: a data write of unknown outcome is sent again.
    pub write_resent: bool,
    /// Rule 2: an abandoned extent is freed by its writer.
    pub abandoned_freed: bool,
    /// Rule 3: the old place is freed before the home page ceases to refer to it.
    pub free_before_unlink: bool,
    /// Rule 3: a publication of unknown outcome is taken for done, and the old place freed.
    pub free_on_doubt: bool,
    /// Rule 3: a copy is freed although its publication may still land.
    pub undecided_freed: bool,
    /// Rule 3: a place is freed whoever owns it.
    pub owner_ignored: bool,
    /// Rule 3: tags are the entry's operation id, shared by all who write the entry back.
    pub tag_per_entry: bool,
    /// Rule 4: the reader takes what stands at the place.
    pub no_identity: bool,
    /// Rule 4: the reader judges after one look.
    pub no_recheck: bool,
    /// Rule 5: data pages are acknowledged from a volatile cache.
    pub data_write_cached: bool,
}

/// A configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// As it is printed.
    pub name: &'static str,
    /// The operations of each host. Timestamps 1.. for key 0, 11.. for key 1, so that a stranger's value shows.
    pub hosts: Vec<Vec<Operation>>,
    /// Home page of each key.
    pub homes: [usize; KEYS],
    /// Commands that may end with unknown outcome.
    pub unknowns: u8,
    /// The rules.
    pub rules: Rules,
}

impl Config {
    /// Both keys at home in page 0, one unknown outcome, all rules kept.
    pub fn new(name: &'static str, hosts: &[&[Operation]]) -> Config {
        assert!(hosts.len() <= HOSTS_MAX);
        let hosts = hosts.iter().map(|host| host.to_vec()).collect();
        Config { name, hosts, homes: [0, 0], unknowns: 1, rules: Rules::default() }
    }

    /// The same with more unknown outcomes.
    pub fn unknowns(self, unknowns: u8) -> Config {
        Config { unknowns, ..self }
    }

    /// The same with each key at home in a page of its own, so that a home page also holds guests.
    pub fn separate_homes(self) -> Config {
        Config { homes: [0, 1], ..self }
    }

    /// The same under other rules.
    pub fn under(mut self, change: impl FnOnce(&mut Rules)) -> Config {
        change(&mut self.rules);
        self
    }

    fn operation(&self, state: &State, host: usize) -> Option<Operation> {
        self.hosts[host].get(usize::from(state.hosts[host].next)).copied()
    }
}

impl Page {
    /// Whether a record of this home page refers to the place.
    fn refers_to(&self, place: Place) -> bool {
        self.records.iter().any(|record| record.timestamp != 0 && record.place == place)
    }
}
