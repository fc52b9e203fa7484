//! Attributes: what `stat` tells and `chmod`, `chown`, `utimes` and `truncate` change.
//!
//! A directory's times are in the root of its trie, so that a change of an entry costs no change of the inode. Of a directory
//! with a split root, other clients see them late by about a second. A directory whose names are all in the root has two links, and
//! one more for each directory in it. One of more names has one: what counts subdirectories by links (`find`, `fts`) takes one for
//! "not counted".

use engine::task::LocalFuture;

use super::extended::CAPABILITY;
use super::told::Attributes;
use crate::access::{Held, Tries};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::inode::{Content, Inode};
use crate::record::node::{Node, RootPart, Shape};
use crate::record::{Kind, Path, Time};

const SET_USER: u16 = 0o4000;
const SET_GROUP: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o0010;

/// What is to be changed; `None`: stays.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// The twelve bits of permissions.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes: of inline content, to what fits inline. Other sizes are refused as not supported: content outside is not changed
    /// here.
    pub size: Option<u64>,
    /// Time of last access.
    pub accessed: Option<Time>,
    /// Time of the last change of content.
    pub modified: Option<Time>,
}

impl FileSystem {
    /// Before bytes of a file are written by somebody who may not keep what it gains by its owner.
    pub fn drop_rights(&self, ino: u64) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let drop = |inode: &mut Inode| {
                drop_set_ids(inode);
                inode.attributes.remove(CAPABILITY);
                Ok(())
            };
            // Each write asks for it; what was seen a moment ago is as young as what the kernel goes by.
            let has_none = |held: &Held<Inode>| {
                let mut dropped = held.record.clone();
                drop(&mut dropped).is_ok() && dropped == held.record
            };
            if self.guess_inode(ino).as_ref().is_some_and(has_none) {
                return Ok(());
            }
            self.change_inode(ino, drop).await?;
            Ok(())
        })
    }

    /// What `stat` tells.
    pub fn getattr(&self, ino: u64) -> LocalFuture<'_, Result<Attributes, Error>> {
        Box::pin(async move {
            let told = match self.get_inode(ino).await {
                Ok(inode) => self.attributes_of(ino, &inode).await,
                Err(error) => Err(error),
            };
            match told {
                Err(Error::Stale) => self.attributes_of_removed(ino),
                told => told,
            }
        })
    }

    pub(super) async fn attributes_of(&self, ino: u64, inode: &Inode) -> Result<Attributes, Error> {
        let mut told = Attributes::of(ino, inode);
        if inode.kind == Kind::Directory {
            let Node { root, shape, .. } = self.node(ino, Path::ROOT).await?.ok_or(Error::Stale)?.record;
            told.links = match shape {
                Shape::Leaf(leaf) => 2 + leaf.directories(),
                _ => 1,
            };
            let root = root.ok_or_else(|| Error::Damaged(format!("the root of directory {ino} is none")))?;
            (told.modified, told.changed) = (root.modified, told.changed.max(root.changed));
            // What was set since is newer, though it may be an older time.
            let touched = self.known.borrow().touched.get(&ino).map(|touched| touched.at);
            if let Some(touched) = touched.filter(|touched| *touched > root.changed) {
                (told.modified, told.changed) = (touched, told.changed.max(touched));
            }
            self.see_open_dir(&told);
        }
        Ok(told)
    }

    /// Changes attributes. Of a file, owner and group without a mode take the bits away that would run it as them.
    pub fn setattr<'a>(&'a self, ino: u64, change: &'a Change) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move {
            let now = Time::now();
            let (inode, ()) = self.change_inode(ino, |inode| apply(inode, change, now)).await?;
            if inode.kind == Kind::Directory
                && let Some(modified) = change.modified
            {
                self.set_directory_time(ino, modified, now).await?;
            }
            self.attributes_of(ino, &inode).await
        })
    }

    async fn set_directory_time(&self, dir: u64, modified: Time, now: Time) -> Result<(), Error> {
        let mut tries = Tries::new();
        loop {
            let held = self.node(dir, Path::ROOT).await?.ok_or(Error::Stale)?;
            let Some(root) = held.record.root else {
                return Err(Error::Damaged(format!("the root of directory {dir} is none")));
            };
            if let Shape::Splitting(_) = held.record.shape {
                self.finish_split(dir, Path::ROOT, &held).await?;
            } else {
                let node = Node { root: Some(RootPart { modified, changed: now, ..root }), ..held.record.clone() };
                if self.access.put(&self.access.keys.node(dir, Path::ROOT), Some(&held), node).await?.is_some() {
                    return Ok(());
                }
            }
            tries.again("other clients change the directory").await?;
        }
    }
}

/// What a program gains by who owns its file goes when another writes it, or its owner changes.
fn drop_set_ids(inode: &mut Inode) {
    inode.mode &= !SET_USER;
    if inode.mode & GROUP_EXECUTE != 0 {
        inode.mode &= !SET_GROUP; // without it the bit means locks, not a group to run as
    }
}

fn apply(inode: &mut Inode, change: &Change, now: Time) -> Result<(), Error> {
    let owner_changes = change.uid.is_some() || change.gid.is_some();
    if let Some(size) = change.size {
        resize(inode, size)?;
        (inode.accessed, inode.modified) = (now, now);
    }
    inode.uid = change.uid.unwrap_or(inode.uid);
    inode.gid = change.gid.unwrap_or(inode.gid);
    if let Some(mode) = change.mode {
        inode.mode = mode & 0o7777;
    } else if owner_changes && inode.kind == Kind::File {
        drop_set_ids(inode);
    }
    inode.accessed = change.accessed.unwrap_or(inode.accessed);
    inode.modified = change.modified.unwrap_or(inode.modified);
    inode.changed = now;
    Ok(())
}

fn resize(inode: &mut Inode, size: u64) -> Result<(), Error> {
    match (&mut inode.content, inode.kind) {
        (_, Kind::Directory) => return Err(Error::IsDirectory("what was to be cut".to_owned())),
        (Content::Inline(bytes), Kind::File) if size <= Inode::inline_bytes_max(Kind::File) as u64 => {
            bytes.resize(size as usize, 0);
        }
        (_, Kind::File) => return Err(Error::NotSupported("a size that content in the inode can't have")),
        _ => return Err(Error::Invalid("only files have a size that can be set")),
    }
    inode.size = size;
    Ok(())
}
