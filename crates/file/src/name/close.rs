//! Removing a directory's trie. **Who removes one sees the root, closes every leaf by a change of each, and then changes the
//! root that it saw.** Who opens a closed leaf changes the root first. So either the remover finds the root changed, or the
//! other finds its leaf closed anew: a name never comes to be in a directory that is removed.

use std::future::Future;

use super::gone::spared;
use crate::access::{Held, Tries};
use crate::amount::Amount;
use crate::data::Few;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::Path;
use crate::record::inode::Inode;
use crate::record::node::{Leaf, Node, RootPart, Shape};

/// Nodes of one directory that are read or changed at once. Chosen: the children of one; a client has more under way than that.
pub(super) const NODES_AT_ONCE: usize = 16;

/// What became of a node that something was to be done with.
enum Met {
    Done,
    /// It is split: first its children.
    Split,
    /// Something was in the way, or has changed: begin anew.
    Again,
}

impl FileSystem {
    /// Makes a directory one that is to be removed if `intent` is committed. Fails if it has names.
    pub(crate) async fn make_dying(&self, dir: u64, intent: u64) -> Result<(), Error> {
        let key = self.access.keys.node(dir, Path::ROOT);
        let mut tries = Tries::new();
        loop {
            let Some(held) = self.node(dir, Path::ROOT).await? else { return Err(self.why_absent(dir).await) };
            let Some(root) = held.record.root else {
                return Err(Error::Damaged(format!("the root of directory {dir} is none")));
            };
            match root.dying {
                Some(dying) if dying == intent => return Ok(()),
                Some(other) => self.resolve_on_root(other, dir).await?,
                None => {
                    let dying = Some(RootPart { dying: Some(intent), ..root });
                    let shape = match &held.record.shape {
                        Shape::Leaf(leaf) => self.emptied(dir, leaf).await?.map(Shape::Leaf),
                        Shape::Split => self.close_below(dir).await?.then_some(Shape::Split),
                        Shape::Splitting(_) => {
                            self.finish_split(dir, Path::ROOT, &held).await?;
                            None
                        }
                        Shape::Dead => return Err(self.why_absent(dir).await),
                    };
                    if let Some(shape) = shape {
                        let node = Node { shape, root: dying, ..held.record.clone() };
                        if self.access.put(&key, Some(&held), node).await?.is_some() {
                            return Ok(());
                        }
                    }
                }
            }
            tries.again("other clients change the directory").await?;
        }
    }

    /// An empty leaf in the place of one without names; `None`: an intent was in the way.
    async fn emptied(&self, dir: u64, leaf: &Leaf) -> Result<Option<Leaf>, Error> {
        let held = leaf.entries.iter().find_map(|entry| Some((entry.intent?, &entry.name)));
        if leaf.entries.iter().any(|entry| entry.intent.is_none()) {
            return Err(Error::NotEmpty(dir.to_string()));
        }
        if let Some((intent, name)) = held {
            self.resolve_on_name(intent, dir, name).await?;
            return Ok(None);
        }
        if !self.finish_gone(&leaf.gone).await.is_empty() {
            return Err(Error::Unavailable(format!("a link that is gone from directory {dir} can't be taken out")));
        }
        Ok(Some(Leaf::default()))
    }

    /// Closes all leaves of a directory whose root is split; `false`: begin anew.
    async fn close_below(&self, dir: u64) -> Result<bool, Error> {
        // A time that is noted in the root would be a change of it, and all this would begin anew.
        self.known.borrow_mut().closing.insert(dir);
        let closed = self.each_node(Path::ROOT.children().collect(), |path| self.close_node(dir, path)).await;
        self.known.borrow_mut().closing.remove(&dir);
        closed.map(|split| split.is_some())
    }

    /// Does something with these nodes and all below them, some at once. The split ones, each before those below it; `None`: begin
    /// anew. All that was begun is brought to its end.
    async fn each_node<F: Future<Output = Result<Met, Error>>>(
        &self,
        mut waiting: Vec<Path>,
        act: impl Fn(Path) -> F,
    ) -> Result<Option<Vec<Path>>, Error> {
        let (mut few, mut split, mut ended) = (Few::new(), Vec::new(), Ok(true));
        loop {
            while ended == Ok(true)
                && few.keys().count() < NODES_AT_ONCE
                && let Some(path) = waiting.pop()
            {
                few.push(path, act(path));
            }
            let Some((path, met)) = few.next().await else { break };
            match met {
                Ok(Met::Done) => {}
                Ok(Met::Split) => {
                    split.push(path);
                    waiting.extend(path.children());
                }
                Ok(Met::Again) => ended = ended.map(|_| false),
                Err(error) => ended = Err(error),
            }
        }
        ended.map(|is_done| is_done.then_some(split))
    }

    async fn close_node(&self, dir: u64, path: Path) -> Result<Met, Error> {
        let Some(held) = self.node(dir, path).await? else { return Err(self.why_absent(dir).await) };
        match &held.record.shape {
            Shape::Leaf(leaf) if self.emptied(dir, leaf).await?.is_none() => Ok(Met::Again),
            // Also one that is closed: who is about to open it must find it changed.
            Shape::Leaf(_) | Shape::Dead => {
                let node = Node { shape: Shape::Dead, ..held.record.clone() };
                let key = self.access.keys.node(dir, path);
                let is_put = self.access.put(&key, Some(&held), node).await?.is_some();
                Ok(if is_put { Met::Done } else { Met::Again })
            }
            Shape::Splitting(_) => {
                self.finish_split(dir, path, &held).await?;
                Ok(Met::Again)
            }
            Shape::Split => Ok(Met::Split),
        }
    }

    /// Takes the number of an intent that did not come to pass out of a directory's root.
    pub(crate) async fn revive(&self, dir: u64, intent: u64) -> Result<(), Error> {
        let key = self.access.keys.node(dir, Path::ROOT);
        let mut tries = Tries::new();
        loop {
            let Some(held) = self.node(dir, Path::ROOT).await? else { return Ok(()) };
            let Some(root) = held.record.root.filter(|root| root.dying == Some(intent)) else { return Ok(()) };
            let node = Node { root: Some(RootPart { dying: None, ..root }), ..held.record.clone() };
            if self.access.put(&key, Some(&held), node).await?.is_some() {
                return Ok(());
            }
            tries.again("other clients change the directory").await?;
        }
    }

    /// Removes a directory whose removal is committed: nodes, the root last of them, then the inode. May be done again.
    pub(crate) async fn bury(&self, dir: u64) -> Result<(), Error> {
        let split = self.each_node(vec![Path::ROOT], |path| self.bury_node(dir, path, false)).await?;
        for path in split.into_iter().flatten().rev() {
            self.bury_node(dir, path, true).await?;
        }
        let key = self.access.keys.inode(dir);
        let mut tries = Tries::new();
        while let Some(held) = spared(self.inode(dir).await, dir)?.flatten() {
            let is_gone = match held.record.quota {
                0 => self.access.remove(&key, &held).await?,
                _ => self.bury_counted(dir, &held).await?,
            };
            if is_gone {
                break;
            }
            tries.again("other clients change the inode").await?;
        }
        self.known.borrow_mut().forget(dir);
        Ok(())
    }

    /// Removes the inode of a directory that counts for a quota, first by a change that says whose it is to say that it does not
    /// any more. False: others have changed it.
    async fn bury_counted(&self, dir: u64, held: &Held<Inode>) -> Result<bool, Error> {
        let key = self.access.keys.inode(dir);
        let hold = self.quotas.hold(held.record.quota).await?;
        let going = Inode { links: Vec::new(), keepers: Vec::new(), ..held.record.clone() };
        let Some(going) = self.access.put(&key, Some(held), going).await? else { return Ok(false) };
        hold.refund(Amount::FILE);
        self.access.remove(&key, &going).await
    }

    /// Removes a node; one that is split only if nothing is below it any more.
    async fn bury_node(&self, dir: u64, path: Path, is_bare: bool) -> Result<Met, Error> {
        let mut tries = Tries::new();
        while let Some(held) = spared(self.node(dir, path).await, dir)?.flatten() {
            if held.record.shape == Shape::Split && !is_bare {
                return Ok(Met::Split);
            }
            if self.access.remove(&self.access.keys.node(dir, path), &held).await? {
                break;
            }
            tries.again("other clients change the directory").await?;
        }
        Ok(Met::Done)
    }
}
