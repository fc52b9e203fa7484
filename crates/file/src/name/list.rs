//! Reading a directory: names in the order of their hashes, which changes of others do not move.

use std::collections::BTreeMap;

use engine::task::LocalFuture;

use super::close::NODES_AT_ONCE;
use super::find::Seen;
use crate::access::Tries;
use crate::data::Few;
use crate::error::Error;
use crate::fs::{FileSystem, ROOT};
use crate::record::Kind;
use crate::record::intent::State;
use crate::record::node::Entry;

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

/// Leaves that were read before it was their turn, by where they begin, and how many names leaves had.
#[derive(Default)]
struct Ahead {
    leaves: BTreeMap<u64, Seen>,
    read: usize,
    names: usize,
}

impl FileSystem {
    /// Names of a directory behind `from`, at least one and about `limit` of them (whole leaves); none: that was all. A name that
    /// is there throughout comes once, whatever else changes; one that is not there throughout may come or not.
    pub fn readdir(&self, dir: u64, from: Cursor, limit: usize) -> LocalFuture<'_, Result<Vec<DirEntry>, Error>> {
        Box::pin(async move {
            let mut found = Vec::new();
            if from < BEHIND_SELF {
                found.push(DirEntry { name: b".".to_vec(), ino: dir, kind: Kind::Directory, cursor: BEHIND_SELF });
            }
            if from < BEHIND_PARENT {
                let parent = self.parent(dir).await?;
                found.push(DirEntry {
                    name: b"..".to_vec(),
                    ino: parent,
                    kind: Kind::Directory,
                    cursor: BEHIND_PARENT,
                });
            }
            // The least hash that has not been seen wholly.
            let mut next = match from {
                ..=BEHIND_PARENT => Some(0),
                _ => from.checked_add(1).filter(|next| next >> 63 == 0).map(|next| next << 1),
            };
            let mut ahead = Ahead::default();
            while let Some(hash) = next.filter(|_| found.len() < limit.max(1)) {
                let seen = match ahead.leaves.remove(&hash) {
                    Some(seen) => seen,
                    None => self.read_ahead(dir, hash, limit.saturating_sub(found.len()), &mut ahead).await?,
                };
                next = seen.path.last().checked_add(1);
                let before = found.len();
                self.add_names(dir, hash, seen, &mut found).await?;
                (ahead.read, ahead.names) = (ahead.read + 1, ahead.names + found.len() - before);
            }
            Ok(found)
        })
    }

    /// The leaf of `hash`; and those behind it at once, as far as they are known: as many as `wanted` names take by what leaves
    /// before had. A directory that was large once has many leaves that are empty.
    async fn read_ahead(&self, dir: u64, hash: u64, wanted: usize, ahead: &mut Ahead) -> Result<Seen, Error> {
        let count = match ahead.read {
            0 => 1,
            read => (wanted.saturating_mul(read) / ahead.names.max(1)).clamp(1, (2 * read).min(NODES_AT_ONCE)),
        };
        let starts: Vec<u64> = {
            let known = self.known.borrow();
            let behind = |hash: &u64| known.begin(dir, *hash).last().checked_add(1);
            std::iter::successors(Some(hash), behind).take(count).collect()
        };
        let mut few = Few::new();
        for start in starts.into_iter().skip(1).filter(|start| !ahead.leaves.contains_key(start)) {
            few.push(start, self.see(dir, start));
        }
        few.push(hash, self.see(dir, hash));
        while let Some((start, seen)) = few.next().await {
            ahead.leaves.insert(start, seen?);
        }
        match ahead.leaves.remove(&hash) {
            Some(seen) => Ok(seen),
            None => self.see(dir, hash).await,
        }
    }

    /// Adds the names of a leaf from `hash` on.
    async fn add_names(&self, dir: u64, hash: u64, seen: Seen, found: &mut Vec<DirEntry>) -> Result<(), Error> {
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
        Ok(())
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
    pub fn tidy(&self, dir: u64) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
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
        })
    }
}

/// Directories that one may be in. Chosen: paths of 4,096 bytes reach no deeper.
const DEPTH_OF_TREE_MAX: u32 = 4096;
