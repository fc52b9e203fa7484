//! [`Names`]: all names, read by every directory's trie from its root on.
//!
//! **No name is passed over that was there throughout and whose inode was not changed meanwhile.** A node is read after the one
//! above it, so that a split hides nothing; a name within a leaf is seen with that; one that goes from one leaf to another by an
//! intent changes its inode between, whoever finishes it. So whoever knows an inode's version from before, and finds it unchanged
//! after, knows its names.
//!
//! Memory: 32 bytes a node, a name and 100 bytes a directory.

use std::collections::{BTreeMap, BTreeSet};

use engine::job::Job;

use super::TOGETHER;
use super::listed::Listed;
use super::maps::Inodes;
use super::paths::Paths;
use crate::access::Held;
use crate::data::Few;
use crate::error::Error;
use crate::fs::{FileSystem, ROOT};
use crate::meta::Version;
use crate::record::node::{Entry, Leaf, Node, Shape, Target};
use crate::record::{Kind, Path};

/// Names that seem to be wrong, each of which is looked at again. Chosen: thousands are one fault.
const SUSPECTS_MAX: usize = 4096;

/// A name that seems to be wrong.
#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    pub(crate) dir: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) target: Target,
}

/// A directory that is not reached from the root.
#[derive(Default)]
pub(crate) struct Lone {
    pub(crate) entries: u64,
    /// Of the root of its trie, if that is an empty leaf.
    pub(crate) root: Option<Version>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) paths: Paths,
    pub(crate) count: u64,
    pub(crate) visited: BTreeSet<(u64, Path)>,
    /// Directories that names lead to from the root on.
    reached: BTreeSet<u64>,
    /// Directories that are there and are not reached.
    pub(crate) lone: BTreeMap<u64, Lone>,
    /// Directories with something to finish, and how much.
    pub(crate) untidy: BTreeSet<u64>,
    /// Directories that an intent is about to remove.
    pub(crate) dying: Vec<(u64, u64)>,
    pub(crate) gone: u64,
    pub(crate) splitting: u64,
    /// Names of inodes that seem not to be there, or not to know of them; of directories with another parent, or a second name.
    pub(crate) suspects: Vec<Suspect>,
    pub(crate) damaged: Vec<((u64, Path), String)>,
    /// Inodes that names lead to of which they do not know.
    pub(crate) untold: BTreeSet<u64>,
    /// Nodes that should be there.
    pub(crate) absent: Vec<(u64, Path)>,
    /// Names that an intent holds.
    held: Vec<u64>,
    /// Inodes that an intent gives a name, or takes it from.
    pub(crate) moving: BTreeSet<u64>,
    /// Of some of these names it is not known what they lead to: their intents were gone again, or do not parse.
    pub(crate) is_unsure: bool,
}

impl Names {
    /// Reads all names, and tells inodes of them.
    pub(crate) async fn read(
        names: &FileSystem,
        listed: &Listed,
        inodes: &mut Inodes,
        wanted: impl Iterator<Item = u64>,
        job: &Job,
    ) -> Result<Names, Error> {
        let mut found = Names::default();
        found.paths.wanted = wanted.map(|ino| (ino, None)).collect();
        job.begin("read names");
        let nodes = listed.nodes.len().max(1) as f64;
        found.reached.insert(ROOT);
        found.walk(names, vec![ROOT], inodes, &|done| job.reached((done as f64 / nodes).min(1.0))).await?;
        // Names of directories that nothing leads to are names, too.
        let is_dir = |ino: &u64| inodes.all.get(ino).is_some_and(|seen| seen.kind == Kind::Directory && !seen.is_going);
        let lone: Vec<u64> =
            inodes.all.keys().filter(|ino| is_dir(ino) && !found.reached.contains(ino)).copied().collect();
        found.lone = lone.iter().map(|ino| (*ino, Lone::default())).collect();
        found.walk(names, lone, inodes, &|_| ()).await?;
        found.read_held(names, inodes).await?;
        Ok(found)
    }

    async fn walk(
        &mut self,
        names: &FileSystem,
        dirs: Vec<u64>,
        inodes: &mut Inodes,
        reached: &dyn Fn(usize),
    ) -> Result<(), Error> {
        let mut waiting: Vec<(u64, Path)> = dirs.into_iter().map(|dir| (dir, Path::ROOT)).collect();
        let mut few = Few::new();
        loop {
            while few.keys().count() < TOGETHER
                && let Some(place) = waiting.pop()
            {
                if self.visited.insert(place) {
                    few.push(place, names.node(place.0, place.1));
                }
            }
            let Some((place, met)) = few.next().await else { return Ok(()) };
            match met {
                Ok(Some(held)) => self.meet(place, held, inodes, &mut waiting),
                Ok(None) => self.absent.push(place),
                Err(Error::Damaged(why)) => self.damaged.push((place, why)),
                Err(error) => return Err(error),
            }
            reached(self.visited.len());
        }
    }

    fn meet(
        &mut self,
        (dir, path): (u64, Path),
        held: Held<Node>,
        inodes: &mut Inodes,
        waiting: &mut Vec<(u64, Path)>,
    ) {
        let version = held.version();
        self.dying.extend(held.record.root.and_then(|root| root.dying).map(|number| (dir, number)));
        let entries = match held.record.shape {
            Shape::Leaf(Leaf { entries, gone }) => {
                if !gone.is_empty() {
                    self.gone += gone.len() as u64;
                    self.untidy.insert(dir);
                }
                entries
            }
            Shape::Splitting(entries) => {
                self.splitting += 1;
                self.untidy.insert(dir);
                // Whatever is there of them is put in its place by whoever finishes this.
                self.visited.extend(path.children().map(|child| (dir, child)));
                entries
            }
            Shape::Split => {
                waiting.extend(path.children().map(|child| (dir, child)));
                Vec::new()
            }
            Shape::Dead => Vec::new(),
        };
        if let Some(lone) = self.lone.get_mut(&dir) {
            lone.entries += entries.len() as u64;
            if path == Path::ROOT && entries.is_empty() {
                lone.root = Some(version);
            }
        }
        for entry in entries {
            self.meet_entry(dir, entry, inodes, waiting);
        }
    }

    fn meet_entry(&mut self, dir: u64, entry: Entry, inodes: &mut Inodes, waiting: &mut Vec<(u64, Path)>) {
        if let Some(intent) = entry.intent {
            self.untidy.insert(dir);
            self.held.push(intent);
        }
        let Some(target) = entry.target else { return };
        self.count += 1;
        if let Some(place) = self.paths.wanted.get_mut(&target.ino) {
            place.get_or_insert_with(|| (dir, entry.name.clone()));
        }
        let mut is_right = inodes.name(target.ino, target.link) || inodes.damaged.contains_key(&target.ino);
        if !is_right {
            self.untold.insert(target.ino);
        }
        is_right &= inodes.all.get(&target.ino).is_none_or(|seen| seen.kind == target.kind);
        if target.kind == Kind::Directory {
            let parent = inodes.all.get(&target.ino).map(|seen| seen.parent);
            let known = self.paths.dirs.entry(target.ino).or_insert((dir, entry.name.clone().into()));
            is_right &= parent.is_none_or(|parent| parent == dir) && *known.1 == *entry.name && known.0 == dir;
            if !self.lone.contains_key(&dir) && self.reached.insert(target.ino) {
                waiting.push((target.ino, Path::ROOT));
            }
        }
        if !is_right && self.suspects.len() < SUSPECTS_MAX {
            self.suspects.push(Suspect { dir, name: entry.name, target });
        }
    }

    /// What a name leads to that an intent holds is what one of its sides says.
    async fn read_held(&mut self, names: &FileSystem, inodes: &mut Inodes) -> Result<(), Error> {
        self.held.sort_unstable();
        self.held.dedup();
        for number in &self.held {
            let intent = match names.intent(*number).await {
                Ok(Some(held)) => held.record,
                Ok(None) | Err(Error::Damaged(_)) => {
                    self.is_unsure = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for target in intent.sides.iter().flat_map(|side| [side.before, side.after]).flatten() {
                inodes.name(target.ino, target.link);
                self.moving.insert(target.ino);
            }
        }
        Ok(())
    }
}
