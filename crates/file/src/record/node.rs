//! [`Node`]: a node of a directory's trie.
//!
//! ```text
//!   stamps                33 B   `stamps.rs`
//!   shape                 u8     1 leaf, 2 splitting, 3 split, 4 dead
//!   is root               u8     0, or 1 and then:
//!     modified, changed   2 × 12 B   the directory's times, as far as entries make them
//!     dying               u64    the intent that removes the directory; 0: none
//!   entries               u16, then each   (leaf, splitting), by name's bytes
//!   gone                  u16, then each   (leaf)
//! ```
//! An entry is its name (8 bits of length), a byte (low: kind, 0: the place is only held; bit 7: an intent), then inode and
//! link, then the intent. A gone link is inode and link.

use super::stamps::Stamps;
use super::{Kind, Record, Time, stamped};
use crate::bytes::{Reader, Writer};
use crate::error::Error;

/// Bytes of entries above which a leaf splits. Chosen: with its head the value stays within a page of the store.
pub const LEAF_BYTES_MAX: usize = 3400;
/// Bytes of a name, as POSIX's NAME_MAX.
pub const NAME_BYTES_MAX: usize = 255;

/// What a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Target {
    /// The inode.
    pub ino: u64,
    /// What that is.
    pub kind: Kind,
    /// Which of the inode's links this name is: moves with it.
    pub link: u64,
}

/// A name, or a place that an intent holds for one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its bytes.
    pub name: Vec<u8>,
    /// Where it leads; `None`: the place is held.
    pub target: Option<Target>,
    /// What says what it leads to: the intent with this number.
    pub intent: Option<u64>,
}

/// A link whose name is gone, and that its inode may still have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// The inode.
    pub ino: u64,
    /// The link.
    pub link: u64,
}

/// Names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Leaf {
    /// By name's bytes.
    pub entries: Vec<Entry>,
    /// What inodes still have to hear of.
    pub gone: Vec<Gone>,
}

impl Leaf {
    fn place(&self, name: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.name.as_slice().cmp(name))
    }

    /// The entry of a name.
    pub fn get(&self, name: &[u8]) -> Option<&Entry> {
        self.place(name).ok().map(|at| &self.entries[at])
    }

    /// How many names lead to directories.
    pub fn directories(&self) -> u32 {
        let targets = self.entries.iter().filter_map(|entry| entry.target);
        targets.filter(|target| target.kind == Kind::Directory).count() as u32
    }

    /// Sets the entry of a name; without target and intent there is none.
    pub fn set(&mut self, name: &[u8], target: Option<Target>, intent: Option<u64>) {
        let entry = (target.is_some() || intent.is_some()).then(|| Entry { name: name.to_vec(), target, intent });
        match (self.place(name), entry) {
            (Ok(at), Some(entry)) => self.entries[at] = entry,
            (Ok(at), None) => drop(self.entries.remove(at)),
            (Err(at), Some(entry)) => self.entries.insert(at, entry),
            (Err(_), None) => {}
        }
    }

    /// Bytes that decide whether it splits.
    pub fn bytes(&self) -> usize {
        self.entries.iter().map(Entry::bytes).sum::<usize>() + self.gone.len() * GONE_BYTES
    }
}

const GONE_BYTES: usize = 16;
const HELD: u8 = 0x80;

impl Entry {
    fn bytes(&self) -> usize {
        2 + self.name.len() + self.target.map_or(0, |_| 16) + self.intent.map_or(0, |_| 8)
    }

    fn write(&self, to: &mut Writer) {
        let kind = self.target.map_or(0, |target| target.kind as u8);
        to.short(&self.name).u8(kind | if self.intent.is_some() { HELD } else { 0 });
        if let Some(target) = self.target {
            to.u64(target.ino).u64(target.link);
        }
        if let Some(intent) = self.intent {
            to.u64(intent);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Entry, Error> {
        let name = from.short()?.to_vec();
        from.check(check_name(&name).is_ok(), "a name that can't be one")?;
        let flags = from.u8()?;
        let target = read_target(from, flags & !HELD)?;
        let intent = if flags & HELD != 0 { Some(from.number()?) } else { None };
        from.check(target.is_some() || intent.is_some(), "a name that leads nowhere")?;
        Ok(Entry { name, target, intent })
    }
}

/// The target whose kind is this byte (0: none) and whose numbers come next.
pub(super) fn read_target(from: &mut Reader<'_>, kind: u8) -> Result<Option<Target>, Error> {
    if kind == 0 {
        return Ok(None);
    }
    let kind = Kind::from_byte(kind).ok_or_else(|| from.damaged("a kind that is none"))?;
    Ok(Some(Target { kind, ino: from.number()?, link: from.number()? }))
}

/// Whether a name may stand in a directory: 1 to 255 bytes, any but `/` and NUL, and not `.` or `..`.
pub fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong(NAME_BYTES_MAX));
    }
    match name {
        b"" => Err(Error::Name("be empty")),
        b"." | b".." => Err(Error::Name("be . or ..")),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(Error::Name("contain / or NUL")),
        _ => Ok(()),
    }
}

/// What a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Names.
    Leaf(Leaf),
    /// Names that go to sixteen children: nothing changes here any more.
    Splitting(Vec<Entry>),
    /// The children have them.
    Split,
    /// Of the root: the directory is removed. Of another: it is empty, and whoever puts a name here changes the root first.
    Dead,
}

/// What the root of a trie has beside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RootPart {
    /// When entries changed, or what was set instead.
    pub modified: Time,
    /// When entries changed.
    pub changed: Time,
    /// The intent that removes the directory if it is committed: there are no names, and there come none before that is known
    /// not to be.
    pub dying: Option<u64>,
}

/// A node of a trie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// What it is.
    pub shape: Shape,
    /// Of the root alone.
    pub root: Option<RootPart>,
}

impl Node {
    /// A node that is none yet.
    pub fn new(shape: Shape, root: Option<RootPart>) -> Node {
        Node { stamps: Stamps::default(), shape, root }
    }
}

impl Record for Node {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        let shape = match &self.shape {
            Shape::Leaf(_) => 1,
            Shape::Splitting(_) => 2,
            Shape::Split => 3,
            Shape::Dead => 4,
        };
        to.u8(shape).u8(self.root.is_some().into());
        if let Some(root) = &self.root {
            root.modified.write(&mut to);
            root.changed.write(&mut to);
            to.u64(root.dying.unwrap_or(0));
        }
        if let Shape::Leaf(Leaf { entries, .. }) | Shape::Splitting(entries) = &self.shape {
            to.u16(entries.len() as u16);
            entries.iter().for_each(|entry| entry.write(&mut to));
        }
        if let Shape::Leaf(Leaf { gone, .. }) = &self.shape {
            to.u16(gone.len() as u16);
            gone.iter().for_each(|gone| {
                to.u64(gone.ino).u64(gone.link);
            });
        }
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<Node, Error> {
        let mut from = Reader::new("a directory's node", bytes);
        let stamps = Stamps::read(&mut from)?;
        let shape = from.u8()?;
        let root = match from.flag()? {
            true => Some(RootPart {
                modified: Time::read(&mut from)?,
                changed: Time::read(&mut from)?,
                dying: Some(from.u64()?).filter(|&dying| dying != 0),
            }),
            false => None,
        };
        let shape = match shape {
            1 => Shape::Leaf(Leaf { entries: read_entries(&mut from)?, gone: read_gone(&mut from)? }),
            2 => Shape::Splitting(read_entries(&mut from)?),
            3 => Shape::Split,
            4 => Shape::Dead,
            _ => return Err(from.damaged("a shape that is none")),
        };
        if root.is_some_and(|root| root.dying.is_some()) {
            let is_empty = match &shape {
                Shape::Leaf(leaf) => leaf.entries.is_empty(),
                Shape::Splitting(_) => false,
                Shape::Split | Shape::Dead => true,
            };
            from.check(is_empty, "it has names and is to be removed")?;
        }
        from.end()?;
        Ok(Node { stamps, shape, root })
    }

    stamped!(Node);
}

fn read_entries(from: &mut Reader<'_>) -> Result<Vec<Entry>, Error> {
    let count = from.u16()?;
    let entries = (0..count).map(|_| Entry::read(from)).collect::<Result<Vec<Entry>, Error>>()?;
    from.check(entries.is_sorted_by(|a, b| a.name < b.name), "names out of order")?;
    Ok(entries)
}

fn read_gone(from: &mut Reader<'_>) -> Result<Vec<Gone>, Error> {
    let count = from.u16()?;
    (0..count).map(|_| Ok(Gone { ino: from.number()?, link: from.number()? })).collect()
}
