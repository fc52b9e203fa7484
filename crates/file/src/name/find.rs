//! Looking up names. A reader changes nothing and waits for nobody: what an entry with an intent leads to, the intent says.

use crate::access::{Held, Tries};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::intent::{Intent, State};
use crate::record::node::{Entry, Leaf, Node, Shape, Target};
use crate::record::{Kind, Path};

/// What a reader sees of the place where a name belongs.
pub(crate) struct Seen {
    pub(crate) path: Path,
    pub(crate) entries: Vec<Entry>,
}

impl FileSystem {
    pub(crate) async fn node(&self, dir: u64, path: Path) -> Result<Option<Held<Node>>, Error> {
        self.access.get(&self.access.keys.node(dir, path)).await
    }

    /// Why a node that should be there is not.
    pub(crate) async fn why_absent(&self, dir: u64) -> Error {
        match self.inode(dir).await {
            Ok(Some(held)) if held.record.kind != Kind::Directory => Error::NotDirectory(format!("inode {dir}")),
            Ok(_) => Error::NotFound(format!("directory {dir}, which is removed")),
            Err(error) => error,
        }
    }

    /// The entries among which a name with this hash is, or would be.
    pub(crate) async fn see(&self, dir: u64, hash: u64) -> Result<Seen, Error> {
        let mut path = self.known.borrow().begin(dir, hash);
        loop {
            let Some(held) = self.node(dir, path).await? else { return Err(self.why_absent(dir).await) };
            match held.record.shape {
                Shape::Leaf(Leaf { entries, .. }) | Shape::Splitting(entries) => return Ok(Seen { path, entries }),
                Shape::Dead => return Ok(Seen { path, entries: Vec::new() }),
                Shape::Split => self.known.borrow_mut().learn(dir, path),
            }
            path = deeper(path, hash)?;
        }
    }

    pub(crate) async fn intent(&self, intent: u64) -> Result<Option<Held<Intent>>, Error> {
        self.access.get(&self.access.keys.intent(intent)).await
    }

    /// Where the name leads, at a moment since this was called.
    pub(crate) async fn find(&self, dir: u64, name: &[u8]) -> Result<Option<Target>, Error> {
        let hash = self.hash(dir, name);
        let mut tries = Tries::new();
        let mut absent = None;
        loop {
            let seen = self.see(dir, hash).await?;
            let Some(entry) = seen.entries.iter().find(|entry| entry.name == name) else { return Ok(None) };
            // Whoever removes an intent has taken its number out of the entries first. A number that is there afterwards came
            // late, by an author whom others took for dead: it says nothing.
            let Some(intent) = entry.intent.filter(|intent| absent != Some(*intent)) else { return Ok(entry.target) };
            match self.intent(intent).await? {
                Some(held) => return self.target_by(&held.record, dir, entry),
                None => absent = Some(intent),
            }
            tries.again("a name has one intent after another").await?;
        }
    }

    /// Where the name led a moment ago (`Some(None)`: nowhere), for whoever is to change that; `None`: it is not remembered, or
    /// an intent is on it.
    pub(crate) fn recall(&self, dir: u64, name: &[u8]) -> Option<Option<Target>> {
        let spot = self.guess_spot(dir, self.hash(dir, name))?;
        match spot.leaf.get(name) {
            Some(entry) if entry.intent.is_some() => None,
            entry => Some(entry.and_then(|entry| entry.target)),
        }
    }

    /// What an entry leads to that has the number of this intent.
    pub(crate) fn target_by(&self, intent: &Intent, dir: u64, entry: &Entry) -> Result<Option<Target>, Error> {
        match intent.state {
            State::Pending | State::Aborted => Ok(entry.target),
            State::Committed => {
                let side = intent.side(dir, &entry.name);
                let side = side.ok_or_else(|| Error::Damaged(format!("an intent on a name in {dir} is of others")))?;
                Ok(side.after)
            }
        }
    }
}

/// One level deeper.
pub(crate) fn deeper(path: Path, hash: u64) -> Result<Path, Error> {
    if path.depth() >= crate::record::DEPTH_MAX {
        return Err(Error::Damaged("a directory's trie is deeper than a hash is long".to_owned()));
    }
    Ok(Path::towards(hash, path.depth() + 1))
}
