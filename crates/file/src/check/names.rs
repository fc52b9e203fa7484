//! What names, inodes and nodes say of each other, looked at a second time before it is told, as all of it may have changed.

use std::collections::BTreeSet;

use super::listed::Listed;
use super::maps::Inodes;
use super::report::Report;
use super::tries::{Lone, Names, Suspect};
use super::unless_damaged;
use crate::access::Held;
use crate::error::Error;
use crate::fs::{FileSystem, ROOT};
use crate::meta::Version;
use crate::name::Step;
use crate::record::inode::Inode;
use crate::record::node::{Leaf, Node, Shape, Target};
use crate::record::{Kind, Path};

/// Names that are told of one node. Chosen: so that people know which.
const NAMES_TOLD: usize = 3;

/// A node of a directory that is not there.
pub(crate) struct Loose {
    pub(crate) place: (u64, Path),
    pub(crate) version: Version,
}

/// See the module.
pub(crate) struct Judge<'a> {
    pub(crate) names: &'a FileSystem,
    pub(crate) inodes: &'a Inodes,
    pub(crate) found: &'a Names,
    pub(crate) repairs: bool,
    pub(crate) report: &'a mut Report,
}

impl Judge<'_> {
    /// Tells of nodes that can't be read. Whether all names were: else nothing is taken for nameless.
    pub(crate) async fn is_whole(&mut self) -> Result<bool, Error> {
        let mut is_whole = self.found.damaged.is_empty() && !self.found.is_unsure;
        for ((dir, path), why) in &self.found.damaged {
            let (node, dir) = (node_of(*path), self.found.paths.of(*dir));
            self.report.damage(format!("{node} of directory {dir} can't be read, nor the names in it: {why}"), false);
        }
        for &(dir, path) in &self.found.absent {
            // A directory without a name may never have had a root.
            let was_never = path == Path::ROOT && self.found.lone.contains_key(&dir);
            if !was_never && self.is_missing(dir, path).await? {
                is_whole = false;
                let (node, dir) = (node_of(path), self.found.paths.of(dir));
                self.report.damage(format!("{node} of directory {dir} is not there, nor are the names in it"), false);
            }
        }
        Ok(is_whole)
    }

    /// A node is missing of a directory that is there, and nobody removes it.
    async fn is_missing(&self, dir: u64, path: Path) -> Result<bool, Error> {
        for _ in 0..2 {
            // What does not parse is there.
            if matches!(unless_damaged(self.names.inode(dir).await)?, Some(None)) {
                return Ok(false);
            }
            if let Some(above) = path.parent() {
                let root = unless_damaged(self.names.node(dir, Path::ROOT).await)?;
                let is_removed = |held: Option<Held<Node>>| {
                    held.and_then(|held| held.record.root).is_none_or(|root| root.dying.is_some())
                };
                let above = unless_damaged(self.names.node(dir, above).await)?;
                let is_split = |held: Held<Node>| held.record.shape == Shape::Split;
                if root.is_some_and(is_removed) || above.is_some_and(|held| !held.is_some_and(is_split)) {
                    return Ok(false);
                }
            }
            if unless_damaged(self.names.node(dir, path).await)?.flatten().is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Names that seem to be wrong.
    pub(crate) async fn suspects(&mut self) -> Result<(), Error> {
        for suspect in &self.found.suspects {
            let Some(wrong) = self.wrong(suspect).await? else { continue };
            let is_mended = self.repairs && self.mend(suspect).await?;
            let path = self.found.paths.of_name(suspect.dir, &suspect.name);
            self.report.damage(format!("{path} {wrong}"), is_mended);
        }
        Ok(())
    }

    async fn is_there(&self, suspect: &Suspect) -> Result<bool, Error> {
        match self.names.find(suspect.dir, &suspect.name).await {
            Ok(found) => Ok(found == Some(suspect.target)),
            Err(Error::NotFound(_) | Error::NotDirectory(_) | Error::Damaged(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What is wrong with a name, if it is there before that was seen and after.
    async fn wrong(&self, suspect: &Suspect) -> Result<Option<String>, Error> {
        let target = suspect.target;
        if !self.is_there(suspect).await? {
            return Ok(None);
        }
        let wrong = match self.names.access.get::<Inode>(&self.names.access.keys.inode(target.ino)).await {
            Err(Error::Damaged(_)) => None, // it is told as such
            Err(error) => return Err(error),
            Ok(held) => match held.map(|held| held.record).filter(|inode| !inode.links.is_empty()) {
                None => Some(format!("leads to inode {}, which is not there", target.ino)),
                Some(inode) if inode.kind != target.kind => {
                    Some(format!("leads to a {:?} and is told to be a {:?}", inode.kind, target.kind))
                }
                Some(inode) if !inode.has_link(target.link) => {
                    Some(format!("leads to inode {}, which does not know of it", target.ino))
                }
                Some(_) if target.kind == Kind::Directory => self.wrong_directory(suspect).await?,
                Some(_) => None,
            },
        };
        if wrong.is_some() && self.is_there(suspect).await? { Ok(wrong) } else { Ok(None) }
    }

    async fn wrong_directory(&self, suspect: &Suspect) -> Result<Option<String>, Error> {
        let ino = suspect.target.ino;
        let parent = match self.names.parent(ino).await {
            Ok(parent) => parent,
            Err(Error::Stale | Error::NotDirectory(_) | Error::Damaged(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if parent != suspect.dir {
            return Ok(Some(format!("has {} as its parent", self.found.paths.of(parent))));
        }
        let Some((dir, name)) = self.found.paths.dirs.get(&ino) else { return Ok(None) };
        let other = Suspect { dir: *dir, name: name.to_vec(), target: suspect.target };
        let is_other = (other.dir, &other.name) != (suspect.dir, &suspect.name);
        let is_there = is_other && self.is_there(&other).await?;
        Ok(is_there.then(|| format!("is a directory that has another name, {}", self.found.paths.of_name(*dir, name))))
    }

    /// Takes out a name that leads to nothing; tells a directory where it is. Whether it was that.
    async fn mend(&self, suspect: &Suspect) -> Result<bool, Error> {
        let Target { ino, kind, .. } = suspect.target;
        let key = self.names.access.keys.inode(ino);
        let mended = match self.names.access.get::<Inode>(&key).await? {
            // Numbers are never given out again, and an inode is put before its name: it comes no more.
            None => {
                // What is left of a directory is found by its name alone.
                let is_bare = kind != Kind::Directory || self.names.node(ino, Path::ROOT).await?.is_none();
                if !is_bare {
                    return Ok(false);
                }
                self.names
                    .change_leaf(suspect.dir, &suspect.name, |leaf, _| {
                        match leaf.get(&suspect.name).map(|entry| (entry.target, entry.intent)) {
                            Some((Some(target), None)) if target == suspect.target => {
                                leaf.set(&suspect.name, None, None)
                            }
                            _ => return Ok(Step::Keep(false)),
                        }
                        Ok(Step::Put(true, true))
                    })
                    .await
            }
            Some(held) if kind == Kind::Directory && held.record.has_link(suspect.target.link) => {
                // A move between changes the inode, too.
                if held.record.parent == suspect.dir || !self.is_there(suspect).await? {
                    return Ok(false);
                }
                let new = Inode { parent: suspect.dir, ..held.record.clone() };
                self.names.access.put(&key, Some(&held), new).await.map(|put| put.is_some())
            }
            Some(_) => Ok(false),
        };
        match mended {
            Err(Error::Damaged(_) | Error::NotFound(_)) => Ok(false),
            mended => mended,
        }
    }

    /// Directories with names that can't be reached. For when all names were read.
    pub(crate) async fn lone(&mut self) -> Result<(), Error> {
        for (&ino, Lone { entries, .. }) in self.found.lone.iter().filter(|(_, lone)| lone.entries > 0) {
            if self.is_cut_off(ino).await? {
                let names = if *entries == 1 { "a name".to_owned() } else { format!("{entries} names") };
                self.report.damage(format!("directory {ino} has {names}, and can't be reached"), false);
            }
        }
        Ok(())
    }

    /// Whether it is so for sure: none of the directories above it was changed since all names were read.
    async fn is_cut_off(&self, ino: u64) -> Result<bool, Error> {
        let (mut at, mut passed) = (ino, BTreeSet::new());
        while at != ROOT && passed.insert(at) {
            // Its name was taken from one place and is not at the other yet.
            if self.found.moving.contains(&at) {
                return Ok(false);
            }
            let Some(seen) = self.inodes.all.get(&at) else { return Ok(true) };
            let held = unless_damaged(self.names.inode(at).await)?.flatten();
            if held.is_none_or(|held| held.version() != seen.version) {
                return Ok(false);
            }
            if !self.found.lone.contains_key(&seen.parent) {
                return Ok(true); // its parent was reached, and does not have it
            }
            at = seen.parent;
        }
        Ok(true)
    }

    /// Nodes that were not met below their directories' roots: what is left of directories that are gone. An inode that one of
    /// them names is left alone (`spared`).
    pub(crate) async fn loose(&mut self, listed: &Listed, spared: &mut BTreeSet<u64>) -> Result<Vec<Loose>, Error> {
        let mut loose = Vec::new();
        for &place in listed.nodes.iter().filter(|place| !self.found.visited.contains(*place)) {
            let (dir, path) = place;
            let Some(found) = unless_damaged(self.names.node(dir, path).await)? else {
                self.report.damage(format!("{} of directory {dir} can't be read", node_of(path)), false);
                continue;
            };
            let Some(held) = found else { continue };
            let entries = match &held.record.shape {
                Shape::Leaf(Leaf { entries, .. }) | Shape::Splitting(entries) => &entries[..],
                Shape::Split | Shape::Dead => &[],
            };
            let targets = entries.iter().filter_map(|entry| entry.target);
            spared.extend(targets.clone().map(|target| target.ino));
            let Some(inode) = unless_damaged(self.names.inode(dir).await)? else { continue };
            if inode.is_some() {
                let is_lone = self.inodes.all.contains_key(&dir);
                if is_lone && self.is_apart(dir, path).await? {
                    self.report.damage(format!("{} of directory {dir} is below no other", node_of(path)), false);
                }
                continue;
            }
            let is_held = |target: &Target| {
                self.inodes.all.get(&target.ino).is_some_and(|seen| !seen.is_going) && !self.is_named(*target)
            };
            if targets.clone().any(|target| is_held(&target)) {
                let told: Vec<String> =
                    entries.iter().take(NAMES_TOLD).map(|entry| entry.name.escape_ascii().to_string()).collect();
                let count = entries.len();
                let told = told.join(", ");
                self.report.damage(format!("directory {dir} is not there, and has {count} names: {told} …"), false);
                continue;
            }
            loose.push(Loose { place, version: held.version() });
        }
        Ok(loose)
    }

    /// Whether another name has the link.
    fn is_named(&self, target: Target) -> bool {
        let seen = self.inodes.all.get(&target.ino);
        seen.is_some_and(|seen| seen.links.iter().any(|(link, is_named)| *link == target.link && *is_named))
    }

    /// Whether a node of a directory that is there is not below a split one.
    async fn is_apart(&self, dir: u64, path: Path) -> Result<bool, Error> {
        let Some(above) = path.parent() else { return Ok(false) };
        let above = unless_damaged(self.names.node(dir, above).await)?.flatten();
        let is_below = above.is_some_and(|held| matches!(held.record.shape, Shape::Split | Shape::Splitting(_)));
        Ok(!is_below && unless_damaged(self.names.node(dir, path).await)?.flatten().is_some())
    }
}

fn node_of(path: Path) -> String {
    match path {
        Path::ROOT => "the root node".to_owned(),
        path => format!("node {}", path.nibbles().iter().map(|nibble| format!("{nibble:x}")).collect::<String>()),
    }
}
