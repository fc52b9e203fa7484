//! [`Intent`]: what becomes of two names, or of a name and a directory, at once.
//!
//! ```text
//!   stamps   33 B   `stamps.rs`
//!   state    u8     1 pending, 2 committed, 3 aborted
//!   move     u64    committed moves of directories: their number
//!   sides    u8     1 or 2, and of each:
//!     directory u64, name (8 bits of length), before, after   (a kind, 0: nothing, then inode and link)
//! ```

use super::node::{Target, check_name, read_target};
use super::stamps::Stamps;
use super::{Kind, Record, stamped};
use crate::bytes::{Reader, Writer};
use crate::error::Error;

/// What is true of an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// All is as before.
    Pending,
    /// All is as it is to be.
    Committed,
    /// All stays as before.
    Aborted,
}

/// What becomes of one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// The directory.
    pub dir: u64,
    /// The name.
    pub name: Vec<u8>,
    /// Where it leads until the intent is committed.
    pub before: Option<Target>,
    /// Where it leads from then on.
    pub after: Option<Target>,
}

/// What becomes of one or two names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Intent {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// What is true.
    pub state: State,
    /// The number of a committed move of directories: an inode that has heard of a later one stays as it is.
    pub number: u64,
    /// One or two.
    pub sides: Vec<Side>,
}

impl Intent {
    /// An intent that nobody has heard of.
    pub fn new(sides: Vec<Side>) -> Intent {
        Intent { stamps: Stamps::default(), state: State::Pending, number: 0, sides }
    }

    /// What no name leads to afterwards.
    pub fn replaced(&self) -> Option<Target> {
        let is_kept = |target: &Target| self.sides.iter().any(|side| side.after == Some(*target));
        self.sides.iter().filter_map(|side| side.before).find(|target| !is_kept(target))
    }

    /// Directories that come below another one: inode, the directory they were in, and the new one.
    pub fn moved(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.sides.iter().filter_map(|side| {
            let target = side.after.filter(|target| target.kind == Kind::Directory)?;
            let source = self.sides.iter().find(|source| source.before == Some(target))?;
            (source.dir != side.dir).then_some((target.ino, source.dir, side.dir))
        })
    }

    /// The side of a name.
    pub fn side(&self, dir: u64, name: &[u8]) -> Option<&Side> {
        self.sides.iter().find(|side| side.dir == dir && side.name == name)
    }
}

fn write_target(target: Option<Target>, to: &mut Writer) {
    to.u8(target.map_or(0, |target| target.kind as u8));
    if let Some(target) = target {
        to.u64(target.ino).u64(target.link);
    }
}

impl Record for Intent {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        let state = match self.state {
            State::Pending => 1,
            State::Committed => 2,
            State::Aborted => 3,
        };
        to.u8(state).u64(self.number).u8(self.sides.len() as u8);
        for side in &self.sides {
            to.u64(side.dir).short(&side.name);
            write_target(side.before, &mut to);
            write_target(side.after, &mut to);
        }
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<Intent, Error> {
        let mut from = Reader::new("an intent", bytes);
        let stamps = Stamps::read(&mut from)?;
        let state = match from.u8()? {
            1 => State::Pending,
            2 => State::Committed,
            3 => State::Aborted,
            _ => return Err(from.damaged("a state that is none")),
        };
        let (number, count) = (from.u64()?, from.u8()?);
        from.check(matches!(count, 1 | 2), "it has neither one side nor two")?;
        let mut sides = Vec::new();
        for _ in 0..count {
            let (dir, name) = (from.number()?, from.short()?.to_vec());
            from.check(check_name(&name).is_ok(), "a name that can't be one")?;
            let mut target = || from.u8().and_then(|kind| read_target(&mut from, kind));
            let (before, after) = (target()?, target()?);
            sides.push(Side { dir, name, before, after });
        }
        from.end()?;
        Ok(Intent { stamps, state, number, sides })
    }

    stamped!(Intent);
}
