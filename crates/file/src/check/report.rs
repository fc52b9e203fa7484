//! [`Report`]: what was found, what of it was mended, and what waits.

use std::collections::BTreeMap;

/// What the dead leave: nothing of it is damage, and nothing of it is lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Left {
    /// A client that is no more.
    Client,
    /// A keeper of an inode that does not list it, or is not there.
    Keeper,
    /// Locks of a file that is not there.
    Locks,
    /// An inode that no name leads to.
    Inode,
    /// A link of an inode that no name has.
    Link,
    /// An inode that goes, and whose remover may be gone.
    Going,
    /// A link that is gone, and that its inode may have.
    Gone,
    /// What spans two names, and is not finished.
    Intent,
    /// The claim of moves by an intent that is not there.
    Claim,
    /// A leaf that splits.
    Splitting,
    /// A node of a directory that is not there.
    Node,
    /// A span of a map that no inode names.
    Span,
    /// A chunk with rows that are marked, and that no map names.
    Rows,
    /// A region of a chunk that is not there.
    Region,
    /// A chunk that gives its regions back.
    Dying,
    /// A share of a quota of a client that is not there.
    Share,
    /// A quota that says another use than what counts for it.
    Used,
    /// A quota of no directory.
    Quota,
    /// A chunk without an owner that is not listed as such, or one that is and is not there.
    Unlisted,
}

impl Left {
    /// In words, of one.
    pub fn words(self) -> &'static str {
        match self {
            Left::Client => "client that is no more",
            Left::Keeper => "keeper that has nothing open",
            Left::Locks => "file that is not there, and has locks",
            Left::Inode => "inode that no name leads to",
            Left::Link => "link that no name has",
            Left::Going => "inode that is about to go",
            Left::Gone => "link whose name is gone",
            Left::Intent => "change of names that is not finished",
            Left::Claim => "claim of moves without a move",
            Left::Splitting => "node that splits",
            Left::Node => "node of a directory that is not there",
            Left::Span => "part of a map that no file has",
            Left::Rows => "chunk with rows that no file has",
            Left::Region => "region of no chunk",
            Left::Dying => "chunk that gives its regions back",
            Left::Share => "share of a quota of a client that is no more",
            Left::Used => "quota that counts what is not there",
            Left::Quota => "quota of no directory",
            Left::Unlisted => "chunk that is wrongly listed as free",
        }
    }
}

/// How many of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Mended since the check began.
    pub mended: u64,
    /// Found, and left as they are.
    pub left: u64,
    /// Of these, those that are left until they have been so for an hour: they may be in the making.
    pub waiting: u64,
}

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Damage {
    /// What it is, and what it touches.
    pub what: String,
    /// It was mended.
    pub is_mended: bool,
}

/// What a check has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Inodes.
    pub inodes: u64,
    /// Names.
    pub names: u64,
    /// Chunks.
    pub chunks: u64,
    /// Clients, this one not counted.
    pub clients: u64,
    /// Shares of quotas were taken for used in this look.
    has_folded: bool,
    /// Quotas that clients used meanwhile: whether they count what is there is not known.
    pub uncounted: u64,
    /// What must not be.
    pub damage: Vec<Damage>,
    /// Damage beyond what is told.
    pub damage_untold: u64,
    /// What the dead have left.
    pub left: BTreeMap<Left, Tally>,
}

/// What is told of damage, one by one. Chosen: nobody reads more, and a mended cause mends many.
const DAMAGE_TOLD: usize = 1000;

impl Report {
    /// Something is damaged.
    pub(crate) fn damage(&mut self, what: String, is_mended: bool) {
        match self.damage.len() < DAMAGE_TOLD {
            true => self.damage.push(Damage { what, is_mended }),
            false => self.damage_untold += 1,
        }
    }

    /// Something is left over: it was mended, or not, and then it may be for want of an hour.
    pub(crate) fn leave(&mut self, kind: Left, is_mended: bool, waits: bool) {
        self.has_folded |= is_mended && matches!(kind, Left::Client | Left::Share);
        let tally = self.left.entry(kind).or_default();
        match is_mended {
            true => tally.mended += 1,
            false => {
                tally.left += 1;
                tally.waiting += u64::from(waits);
            }
        }
    }

    /// Whether something is damaged that was not mended.
    pub fn is_damaged(&self) -> bool {
        self.damage_untold > 0 || self.damage.iter().any(|damage| !damage.is_mended)
    }

    /// How much waits for an hour to pass.
    pub fn waiting(&self) -> u64 {
        self.left.values().map(|tally| tally.waiting).sum()
    }

    /// Whether shares of quotas were taken for used.
    pub(crate) fn has_folded(&self) -> bool {
        self.has_folded
    }

    /// How much is left over, for whatever reason.
    pub fn left(&self) -> u64 {
        self.left.values().map(|tally| tally.left).sum()
    }

    /// What a look before this one has mended counts, too.
    pub(crate) fn add_mended(&mut self, before: &Report) {
        for (kind, tally) in before.left.iter().filter(|(_, tally)| tally.mended > 0) {
            self.left.entry(*kind).or_default().mended += tally.mended;
        }
        let mended = before.damage.iter().filter(|damage| damage.is_mended).cloned();
        self.damage.splice(..0, mended);
    }
}
