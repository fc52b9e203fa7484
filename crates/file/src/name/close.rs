//! Removing a directory's trie. **Who removes one sees the root, closes every leaf by a change of each, and then changes the
//! root that it saw.** Who opens a closed leaf changes the root first. So either the remover finds the root changed, or the
//! other finds its leaf closed anew: a name never comes to be in a directory that is removed.

use engine::task::LocalFuture;

use crate::access::Tries;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::Path;
use crate::record::node::{Leaf, Node, RootPart, Shape};

/// What became of closing a node.
enum Closed {
    Yes,
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
                        Shape::Split => match self.close_below(dir, Path::ROOT).await? {
                            Closed::Yes => Some(Shape::Split),
                            Closed::Again => None,
                        },
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

    fn close_below(&self, dir: u64, path: Path) -> LocalFuture<'_, Result<Closed, Error>> {
        Box::pin(async move {
            for child in path.children() {
                let Some(held) = self.node(dir, child).await? else { return Err(self.why_absent(dir).await) };
                match &held.record.shape {
                    Shape::Leaf(leaf) if self.emptied(dir, leaf).await?.is_none() => return Ok(Closed::Again),
                    // Also one that is closed: who is about to open it must find it changed.
                    Shape::Leaf(_) | Shape::Dead => {
                        let node = Node { shape: Shape::Dead, ..held.record.clone() };
                        let key = self.access.keys.node(dir, child);
                        if self.access.put(&key, Some(&held), node).await?.is_none() {
                            return Ok(Closed::Again);
                        }
                    }
                    Shape::Splitting(_) => {
                        self.finish_split(dir, child, &held).await?;
                        return Ok(Closed::Again);
                    }
                    Shape::Split => {
                        if let Closed::Again = self.close_below(dir, child).await? {
                            return Ok(Closed::Again);
                        }
                    }
                }
            }
            Ok(Closed::Yes)
        })
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
        self.bury_below(dir, Path::ROOT).await?;
        let key = self.access.keys.inode(dir);
        let mut tries = Tries::new();
        while let Some(held) = self.inode(dir).await? {
            if self.access.remove(&key, &held).await? {
                break;
            }
            tries.again("other clients change the inode").await?;
        }
        self.known.borrow_mut().forget(dir);
        Ok(())
    }

    fn bury_below(&self, dir: u64, path: Path) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let mut tries = Tries::new();
            while let Some(held) = self.node(dir, path).await? {
                if held.record.shape == Shape::Split {
                    for child in path.children() {
                        self.bury_below(dir, child).await?;
                    }
                }
                if self.access.remove(&self.access.keys.node(dir, path), &held).await? {
                    break;
                }
                tries.again("other clients change the directory").await?;
            }
            Ok(())
        })
    }
}
