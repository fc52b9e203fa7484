//! Changing names: one leaf by one compare-and-set, after what is in the way was finished.

use super::find::deeper;
use crate::access::{Held, Tries};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::node::{Entry, LEAF_BYTES_MAX, Leaf, Node, RootPart, Shape};
use crate::record::{DEPTH_MAX, Path, Time};

/// How long the root of a split directory may say an older time than its entries. Chosen: what people and `make` tell apart.
const NOTE_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
/// Bytes of a leaf at the last level, where names collide in all bits of their hashes. Chosen: far below the record's counts.
const DEEPEST_BYTES_MAX: usize = 1 << 20;

/// What is to become of a leaf that was looked at.
pub(crate) enum Step<T> {
    /// It stays as it is.
    Keep(T),
    /// It becomes what was made of it; whether that is a change that the directory's times tell.
    Put(T, bool),
    /// First this intent is resolved, which holds the name.
    Resolve(u64),
}

/// A leaf that may be changed.
pub(crate) struct Spot {
    pub(crate) path: Path,
    pub(crate) held: Held<Node>,
    pub(crate) leaf: Leaf,
}

impl FileSystem {
    /// Changes the leaf where `name` is or would be, by what `decide` makes of it; it is called until what it has seen is what it
    /// replaces.
    pub(crate) async fn change_leaf<T>(
        &self,
        dir: u64,
        name: &[u8],
        mut decide: impl FnMut(&mut Leaf, Path) -> Result<Step<T>, Error>,
    ) -> Result<T, Error> {
        let mut tries = Tries::new();
        let mut guess = self.guess_spot(dir, self.hash(dir, name));
        loop {
            let is_guess = guess.is_some();
            let spot = match guess.take() {
                Some(spot) => spot,
                None => self.spot(dir, self.hash(dir, name)).await?,
            };
            let mut leaf = spot.leaf.clone();
            match decide(&mut leaf, spot.path) {
                Ok(Step::Put(value, tells)) => {
                    if self.put_leaf(dir, spot, leaf, tells).await? {
                        return Ok(value);
                    }
                }
                _ if is_guess => {}
                Ok(Step::Keep(value)) => return Ok(value),
                Ok(Step::Resolve(intent)) => self.resolve_on_name(intent, dir, name).await?,
                Err(error) => return Err(error),
            }
            if !is_guess {
                tries.again("other clients change the directory").await?;
            }
        }
    }

    /// The open leaf for a name, as it was a moment ago, for whoever is to change it.
    pub(crate) fn guess_spot(&self, dir: u64, hash: u64) -> Option<Spot> {
        let path = self.known.borrow().begin(dir, hash);
        let held = self.access.guess::<Node>(&self.access.keys.node(dir, path))?;
        let Shape::Leaf(leaf) = &held.record.shape else { return None };
        let leaf = leaf.clone();
        let is_dying = held.record.root.is_some_and(|root| root.dying.is_some());
        (!is_dying).then_some(Spot { path, held, leaf })
    }

    /// The open leaf for a name. It finishes splits, and tells the root before a closed leaf is opened.
    async fn spot(&self, dir: u64, hash: u64) -> Result<Spot, Error> {
        let mut tries = Tries::new();
        loop {
            let mut path = self.known.borrow().begin(dir, hash);
            let held = loop {
                let Some(held) = self.node(dir, path).await? else { return Err(self.why_absent(dir).await) };
                if held.record.shape != Shape::Split {
                    break held;
                }
                self.known.borrow_mut().learn(dir, path);
                path = deeper(path, hash)?;
            };
            match &held.record.shape {
                Shape::Leaf(leaf) => {
                    let Some(dying) = held.record.root.and_then(|root| root.dying) else {
                        let leaf = leaf.clone();
                        return Ok(Spot { path, held, leaf });
                    };
                    self.resolve_on_root(dying, dir).await?;
                }
                Shape::Dead if path == Path::ROOT => return Err(self.why_absent(dir).await),
                Shape::Dead => {
                    if self.tell_root(dir).await? {
                        return Ok(Spot { path, held, leaf: Leaf::default() });
                    }
                }
                Shape::Splitting(_) | Shape::Split => self.finish_split(dir, path, &held).await?,
            }
            tries.again("other clients change the directory").await?;
        }
    }

    /// Changes the root, so that whoever closes leaves to remove the directory and saw the root before can't. `false`: look again.
    pub(crate) async fn tell_root(&self, dir: u64) -> Result<bool, Error> {
        let Some(held) = self.node(dir, Path::ROOT).await? else { return Err(self.why_absent(dir).await) };
        if held.record.shape == Shape::Dead {
            return Err(self.why_absent(dir).await);
        }
        if let Some(dying) = held.record.root.and_then(|root| root.dying) {
            self.resolve_on_root(dying, dir).await?;
            return Ok(false);
        }
        let same = held.record.clone();
        Ok(self.access.put(&self.access.keys.node(dir, Path::ROOT), Some(&held), same).await?.is_some())
    }

    /// Puts a leaf in the place of the one that was seen. `false`: look again.
    async fn put_leaf(&self, dir: u64, spot: Spot, mut leaf: Leaf, tells: bool) -> Result<bool, Error> {
        let added: Vec<_> = leaf.gone.iter().copied().filter(|gone| !spot.leaf.gone.contains(gone)).collect();
        let old = self.finish_gone(&spot.leaf.gone).await;
        leaf.gone = old.into_iter().chain(added).collect();
        let grows = leaf.bytes() > spot.leaf.bytes();
        if grows && leaf.bytes() > LEAF_BYTES_MAX {
            if spot.path.depth() < DEPTH_MAX && !spot.leaf.entries.is_empty() {
                self.split(dir, spot).await?;
                return Ok(false);
            }
            if leaf.bytes() > DEEPEST_BYTES_MAX {
                return Err(Error::NoSpace(format!("directory {dir} has too many names of one hash")));
            }
        }
        let now = Time::now();
        let root = match spot.held.record.root {
            Some(root) if tells => Some(RootPart { modified: now, changed: now, ..root }),
            root => root,
        };
        let finished: Vec<_> = spot.leaf.gone.iter().copied().filter(|gone| !leaf.gone.contains(gone)).collect();
        let node = Node { shape: Shape::Leaf(leaf), root, ..spot.held.record.clone() };
        let is_put = self.access.put(&self.access.keys.node(dir, spot.path), Some(&spot.held), node).await?.is_some();
        if is_put {
            finished.iter().for_each(|gone| self.known.borrow_mut().untell(gone.ino, gone.link));
            if tells && spot.path != Path::ROOT {
                self.known.borrow_mut().touch(dir, now);
                self.note_times(dir, NOTE_AFTER).await;
            }
        }
        Ok(is_put)
    }

    /// Clears the leaf of a hash of links that are gone, and its place of splits. Whether there was something.
    pub(crate) async fn tidy_leaf(&self, dir: u64, hash: u64) -> Result<bool, Error> {
        let path = self.see(dir, hash).await?.path;
        let Some(held) = self.node(dir, path).await? else { return Ok(false) };
        match &held.record.shape {
            Shape::Leaf(leaf) if !leaf.gone.is_empty() => {
                let spot = self.spot(dir, hash).await?;
                let leaf = spot.leaf.clone();
                self.put_leaf(dir, spot, leaf, false).await?;
                Ok(true)
            }
            Shape::Splitting(_) => self.finish_split(dir, path, &held).await.map(|()| true),
            Shape::Leaf(_) | Shape::Split | Shape::Dead => Ok(false),
        }
    }

    /// Begins to split a leaf, and does it. Links that are gone are told to their inodes first: children hear of none.
    async fn split(&self, dir: u64, spot: Spot) -> Result<(), Error> {
        if !self.finish_gone(&spot.leaf.gone).await.is_empty() {
            return Err(Error::Unavailable(format!("a link that is gone from directory {dir} can't be taken out")));
        }
        let node = Node { shape: Shape::Splitting(spot.leaf.entries), ..spot.held.record.clone() };
        let key = self.access.keys.node(dir, spot.path);
        match self.access.put(&key, Some(&spot.held), node).await? {
            Some(held) => self.finish_split(dir, spot.path, &held).await,
            None => Ok(()),
        }
    }

    /// Puts the children of a node that splits, and then says that it is split. Others may do the same at once.
    pub(crate) async fn finish_split(&self, dir: u64, path: Path, held: &Held<Node>) -> Result<(), Error> {
        let Shape::Splitting(entries) = &held.record.shape else { return Ok(()) };
        let mut put = Vec::new();
        for child in path.children() {
            let is_its = |entry: &&Entry| {
                let hash = self.hash(dir, &entry.name);
                (child.first()..=child.last()).contains(&hash)
            };
            let leaf = Leaf { entries: entries.iter().filter(is_its).cloned().collect(), gone: Vec::new() };
            // One that is there was put by another who finishes this, and may have changed since.
            let key = self.access.keys.node(dir, child);
            put.extend(self.access.put(&key, None, Node::new(Shape::Leaf(leaf), None)).await?.map(|held| (key, held)));
        }
        let node = Node { shape: Shape::Split, ..held.record.clone() };
        let is_split = self.access.put(&self.access.keys.node(dir, path), Some(held), node).await?.is_some();
        if !is_split && self.node(dir, path).await?.is_none() {
            // Others have finished it, and then removed the directory, before these were put.
            for (key, held) in put {
                self.access.remove(&key, &held).await?;
            }
        }
        Ok(())
    }

    /// Notes in the root of a split directory when its entries changed, if that has waited for `after`. What comes of it is not
    /// asked: it waits on.
    pub(crate) async fn note_times(&self, dir: u64, after: std::time::Duration) {
        let touched = {
            let known = self.known.borrow();
            known.touched.get(&dir).copied().filter(|_| !known.closing.contains(&dir))
        };
        let Some(touched) = touched.filter(|touched| touched.noted.elapsed() >= after) else { return };
        if self.note_time(dir, touched.at).await.unwrap_or(false) {
            self.known.borrow_mut().note(dir, touched.at);
        }
    }

    /// Whether there is nothing to note any more.
    async fn note_time(&self, dir: u64, at: Time) -> Result<bool, Error> {
        let Some(held) = self.node(dir, Path::ROOT).await? else { return Ok(true) };
        // What was set since, by whomever, stays.
        let Some(root) = held.record.root.filter(|root| root.changed < at) else { return Ok(true) };
        if held.record.shape != Shape::Split {
            return Ok(false);
        }
        let node = Node { root: Some(RootPart { modified: at, changed: at, ..root }), ..held.record.clone() };
        Ok(self.access.put(&self.access.keys.node(dir, Path::ROOT), Some(&held), node).await?.is_some())
    }

    /// Notes all times that wait: each second, and at the end.
    pub async fn note_all_times(&self) {
        let waiting: Vec<u64> = self.known.borrow().touched.keys().copied().collect();
        for dir in waiting {
            self.note_times(dir, std::time::Duration::ZERO).await;
        }
    }
}
