//! Reading a directory: names in the order of their hashes, which changes of others do not move.

use crate::access::Tries;
use crate::error::Error;
use crate::fs::{FileSystem, ROOT};
use crate::record::intent::State;
use crate::record::node::Entry;
use crate::record::{Kind, Path};

/// Where a reader of a directory goes on: positive as a signed number, for those who have only that. 0 is the start.
pub type Cursor = u64;

const BEHIND_SELF: Cursor = 1;
const BEHIND_PARENT: Cursor = 2;

/// A name that a directory has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Where it leads.
    pub ino: u64,
    /// What that is.
    pub kind: Kind,
    /// Where to go on behind this entry.
    pub cursor: Cursor,
}

/// The cursor behind names with this hash.
fn cursor(hash: u64) -> Cursor {
    (hash >> 1).max(BEHIND_PARENT + 1)
}

impl FileSystem {
    /// Names of a directory behind `from`, at least one and about `limit` of them (whole leaves); none: that was all. A name that
    /// is there throughout comes once, whatever else changes; one that is not there throughout may come or not.
    pub async fn readdir(&self, dir: u64, from: Cursor, limit: usize) -> Result<Vec<DirEntry>, Error> {
        let mut found = Vec::new();
        if from < BEHIND_SELF {
            found.push(DirEntry { name: b".".to_vec(), ino: dir, kind: Kind::Directory, cursor: BEHIND_SELF });
        }
        if from < BEHIND_PARENT {
            let parent = self.parent(dir).await?;
            found.push(DirEntry { name: b"..".to_vec(), ino: parent, kind: Kind::Directory, cursor: BEHIND_PARENT });
        }
        // The least hash that has not been seen wholly.
        let mut next = match from {
            ..=BEHIND_PARENT => Some(0),
            _ => from.checked_add(1).filter(|next| next >> 63 == 0).map(|next| next << 1),
        };
        while let Some(hash) = next.filter(|_| found.len() < limit.max(1)) {
            next = self.read_leaf(dir, hash, &mut found).await?.last().checked_add(1);
        }
        Ok(found)
    }

    /// Adds the names of the leaf of `hash` from that one on.
    async fn read_leaf(&self, dir: u64, hash: u64, found: &mut Vec<DirEntry>) -> Result<Path, Error> {
        let seen = self.see(dir, hash).await?;
        let mut entries: Vec<(u64, Entry)> = seen
            .entries
            .into_iter()
            .map(|entry| (self.hash(dir, &entry.name), entry))
            .filter(|(of, _)| *of >= hash)
            .collect();
        entries.sort_by(|(a, first), (b, second)| a.cmp(b).then_with(|| first.name.cmp(&second.name)));
        // Of names with one cursor all but the last say the one before: rather twice than never.
        let cursors: Vec<Cursor> = entries.iter().map(|(hash, _)| cursor(*hash)).collect();
        for (at, (_, entry)) in entries.into_iter().enumerate() {
            let target = match entry.intent {
                None => entry.target,
                // It may be another leaf by now, so the name is looked up by itself.
                Some(_) => self.find(dir, &entry.name).await?,
            };
            let Some(target) = target else { continue };
            let cursor = cursors[at] - u64::from(cursors.get(at + 1) == Some(&cursors[at]));
            found.push(DirEntry { name: entry.name, ino: target.ino, kind: target.kind, cursor });
        }
        Ok(seen.path)
    }

    /// The directory that a directory is in.
    pub(crate) async fn parent(&self, dir: u64) -> Result<u64, Error> {
        if let Some(moves) = self.moves().await?
            && let Some(current) = moves.record.current
            && let Some(intent) = self.intent(current).await?
            && intent.record.state == State::Committed
            && let Some((.., to)) = intent.record.moved().find(|(ino, ..)| *ino == dir)
        {
            return Ok(to);
        }
        let inode = self.get_inode(dir).await?;
        if inode.kind != Kind::Directory {
            return Err(Error::NotDirectory(format!("inode {dir}")));
        }
        Ok(inode.parent)
    }

    /// Whether `above` is `below` or one of the directories that this is in. For whoever has claimed moves.
    pub(crate) async fn is_above(&self, above: u64, below: u64) -> Result<bool, Error> {
        let (mut at, mut tries) = (below, DEPTH_OF_TREE_MAX);
        while at != above && at != ROOT {
            tries = tries.checked_sub(1).ok_or(Error::Invalid("directories are too deep"))?;
            at = self.get_inode(at).await?.parent;
        }
        Ok(at == above)
    }

    /// Finishes whatever others have left in a directory: intents on names, links that are gone, splits. For checks; nothing
    /// needs it.
    pub async fn tidy(&self, dir: u64) -> Result<(), Error> {
        let (mut next, mut tries) = (Some(0), Tries::new());
        while let Some(hash) = next {
            let seen = self.see(dir, hash).await?;
            if let Some((intent, name)) = seen.entries.iter().find_map(|entry| Some((entry.intent?, &entry.name))) {
                self.resolve_on_name(intent, dir, name).await?;
                tries.again("other clients change the directory").await?;
                continue;
            }
            if self.tidy_leaf(dir, hash).await? {
                tries.again("other clients change the directory").await?;
                continue;
            }
            next = seen.path.last().checked_add(1);
        }
        Ok(())
    }
}

/// Directories that one may be in. Chosen: paths of 4,096 bytes reach no deeper.
const DEPTH_OF_TREE_MAX: u32 = 4096;
