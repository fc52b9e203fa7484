//! Making names: files, directories, links.
//!
//! What has a name was whole before: the inode is put first, the entry last. Whoever dies between leaves an inode that nothing
//! names.

use std::time::Duration;

use engine::task::LocalFuture;
use engine::time::{self, Instant};

use super::shown;
use super::told::Attributes;
use crate::access::{Tries, draw};
use crate::data::Charge;
use crate::error::Error;
use crate::fs::{FileSystem, blank, empty_directory};
use crate::name::Step;
use crate::record::inode::{Content, Inode, LINKS_MAX};
use crate::record::node::{Target, check_name};
use crate::record::{Kind, Path, Time};

const SET_GROUP: u16 = 0o2000;
/// How long an inode that nothing names is safe from `fsck`, by the clock of whoever made it. Derived: `fsck` waits an hour.
const SAFE: Duration = Duration::from_secs(600);

/// When something without a name was made, by both clocks: one of them may have stood still.
struct Made {
    at: Instant,
    unix: Duration,
}

impl Made {
    fn now() -> Made {
        Made { at: time::now(), unix: time::unix_time() }
    }

    /// Whether `fsck` may have taken it by now.
    fn is_unsafe(&self) -> bool {
        self.at.elapsed() > SAFE || time::unix_time().abs_diff(self.unix) > SAFE
    }
}

/// What a new inode is to be.
#[derive(Clone, Debug)]
pub struct New {
    /// What it is.
    pub kind: Kind,
    /// The twelve bits of permissions, without those of the caller's mask.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group; in a directory with the bit for it, the directory's.
    pub gid: u32,
    /// Of a device's name.
    pub device: u64,
    /// Of a symbolic link.
    pub path: Vec<u8>,
}

impl New {
    /// A file, directory, pipe or socket.
    pub fn of(kind: Kind, mode: u16, uid: u32, gid: u32) -> New {
        New { kind, mode, uid, gid, device: 0, path: Vec::new() }
    }
}

impl FileSystem {
    /// Makes a file of this name, or finds what has it, unless that is refused (`exclusive`, as O_EXCL). Whether it was there.
    pub fn create<'a>(
        &'a self,
        dir: u64,
        name: &'a [u8],
        new: &'a New,
        exclusive: bool,
    ) -> LocalFuture<'a, Result<(Attributes, bool), Error>> {
        Box::pin(async move {
            match self.make(dir, name, new).await {
                Err(Error::Exists(_)) if !exclusive => {}
                made => return made.map(|told| (told, false)),
            }
            match self.lookup(dir, name).await {
                // Removed meanwhile; one more time is enough to be fair, and has an end.
                Err(Error::NotFound(_)) => self.make(dir, name, new).await.map(|told| (told, false)),
                found => found.map(|told| (told, true)),
            }
        })
    }

    /// Makes a directory.
    pub fn mkdir<'a>(
        &'a self,
        dir: u64,
        name: &'a [u8],
        mode: u16,
        uid: u32,
        gid: u32,
    ) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move { self.make(dir, name, &New::of(Kind::Directory, mode, uid, gid)).await })
    }

    /// Makes a symbolic link that leads to `path`.
    pub fn symlink<'a>(
        &'a self,
        dir: u64,
        name: &'a [u8],
        path: &'a [u8],
        uid: u32,
        gid: u32,
    ) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move {
            let new = New { path: path.to_vec(), ..New::of(Kind::Symlink, 0o777, uid, gid) };
            self.make(dir, name, &new).await
        })
    }

    /// Makes a file, directory, symbolic link, or a device's, pipe's or socket's name. The name must be free.
    pub fn make<'a>(&'a self, dir: u64, name: &'a [u8], new: &'a New) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move {
            check_name(name)?;
            // Of a directory that is gone since its names are gone, too: this one can't be put.
            let parent = match self.guess_inode(dir) {
                Some(held) => held.record,
                None => self.inode(dir).await?.ok_or_else(|| Error::NotFound(format!("directory {dir}")))?.record,
            };
            if parent.kind != Kind::Directory {
                return Err(Error::NotDirectory(format!("inode {dir}")));
            }
            let (inode, link) = inode_of(new, dir, &parent)?;
            // Often it is taken, and then nothing is to be made and removed again.
            if self.recall(dir, name) != Some(None) && self.find(dir, name).await?.is_some() {
                return Err(Error::Exists(shown(name)));
            }
            let mut charge = self.count_file(inode.quota, false).await?;
            let ino = self.next_ino().await?;
            let made = Made::now();
            if new.kind == Kind::Directory {
                self.access.put(&self.access.keys.node(ino, Path::ROOT), None, empty_directory(inode.created)).await?;
            }
            self.put_counted(ino, &inode, &mut charge).await?;
            if made.is_unsafe() && inode.quota != 0 {
                // What it was counted by may be lost, and counted anew without it: rather twice than not at all.
                let mut again = self.count_file(inode.quota, true).await?;
                again.offer();
                again.named();
            }
            let target = Target { ino, kind: new.kind, link };
            self.name_or_unmake(dir, name, target, &made).await?;
            Ok(Attributes::of(ino, &inode))
        })
    }

    /// Puts an inode, and has it count.
    async fn put_counted(&self, ino: u64, inode: &Inode, charge: &mut Charge) -> Result<(), Error> {
        let may = || match inode.quota == 0 || self.is_standing() {
            true => Ok(()),
            false => Err(Error::Unavailable("what a new file counts by may be lost".to_owned())),
        };
        charge.offer();
        match self.access.put_while(&self.access.keys.inode(ino), None, inode.clone(), may).await {
            Ok(Some(_)) => charge.named(),
            Ok(None) => {
                charge.recall();
                return Err(Error::Damaged(format!("inode {ino} is there, and its number was given out as a new one")));
            }
            Err(error) => {
                // Anything else leaves it open.
                if matches!(error, Error::NoSpace(_)) {
                    charge.recall();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// [`FileSystem::put_name_of`]; what was made for a name that is not there, and does not come, goes.
    async fn name_or_unmake(&self, dir: u64, name: &[u8], target: Target, made: &Made) -> Result<(), Error> {
        let named = self.put_name_of(dir, name, target, made).await;
        match &named {
            // Perhaps it is there, or will be: then the inode must be.
            Ok(()) | Err(Error::Unavailable(_) | Error::Damaged(_)) => {}
            Err(_) => self.unmake(target).await,
        }
        named
    }

    /// Gives a free name a target that was made for it. If that was long ago `fsck` may have taken it: then the name is not given,
    /// or, where it leads nowhere, goes again.
    async fn put_name_of(&self, dir: u64, name: &[u8], target: Target, made: &Made) -> Result<(), Error> {
        let late =
            || Error::Unavailable(format!("{} came so late that its inode was taken for left over", shown(name)));
        // Whoever stands still once more would leave a name that leads nowhere for as long.
        if made.is_unsafe() && !self.is_kept(target).await? {
            return Err(late());
        }
        self.put_name(dir, name, target).await?;
        if !made.is_unsafe() || self.is_kept(target).await? {
            return Ok(());
        }
        self.change_leaf(dir, name, |leaf, _| {
            match leaf.get(name).map(|entry| (entry.target, entry.intent)) {
                Some((_, Some(intent))) => return Ok(Step::Resolve(intent)),
                Some((Some(there), None)) if there == target => leaf.set(name, None, None),
                _ => return Ok(Step::Keep(())),
            }
            Ok(Step::Put((), true))
        })
        .await?;
        Err(late())
    }

    /// Whether what was made for a name is there, and stays for now. By a change: whoever was about to remove it finds it as it was
    /// not.
    async fn is_kept(&self, target: Target) -> Result<bool, Error> {
        let there = self.change_inode(target.ino, |inode| {
            inode.changed = Time::now();
            inode.has_link(target.link).then_some(()).ok_or(Error::Stale)
        });
        match there.await {
            Err(Error::Stale) => Ok(false),
            Ok(_) if target.kind == Kind::Directory => match self.touch_root(target.ino).await {
                // It was taken for that of a directory that is not there, before the inode was.
                Err(Error::NotFound(_)) => Ok(false),
                touched => touched.map(|()| true),
            },
            there => there.map(|_| true),
        }
    }

    /// Changes the root of a directory's trie.
    async fn touch_root(&self, dir: u64) -> Result<(), Error> {
        let mut tries = Tries::new();
        while !self.tell_root(dir).await? {
            tries.again("other clients change the directory").await?;
        }
        Ok(())
    }

    /// Gives a free name a target.
    async fn put_name(&self, dir: u64, name: &[u8], target: Target) -> Result<(), Error> {
        self.change_leaf(dir, name, |leaf, _| {
            let entry = leaf.get(name);
            match entry.map(|entry| (entry.target, entry.intent)) {
                Some((_, Some(intent))) => return Ok(Step::Resolve(intent)),
                Some((Some(there), None)) if there == target => return Ok(Step::Keep(())),
                Some(_) => return Err(Error::Exists(shown(name))),
                None => leaf.set(name, Some(target), None),
            }
            Ok(Step::Put((), true))
        })
        .await
    }

    /// Removes what was made for a name that others had first. What can't be removed is left for `fsck`.
    async fn unmake(&self, target: Target) {
        let removed = match target.kind {
            Kind::Directory => self.bury(target.ino).await,
            _ => self.drop_link(target.ino, target.link).await,
        };
        if let Err(error) = removed {
            tracing::debug!(%error, ino = target.ino, "an inode without a name is left");
        }
    }

    /// Gives an inode one more name.
    pub fn link<'a>(&'a self, ino: u64, dir: u64, name: &'a [u8]) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move {
            check_name(name)?;
            if self.recall(dir, name) != Some(None) && self.find(dir, name).await?.is_some() {
                return Err(Error::Exists(shown(name)));
            }
            let (link, made, quota) = (draw(), Made::now(), self.quota_within(dir).await?);
            let (inode, ()) = self
                .change_inode(ino, |inode| {
                    if inode.kind == Kind::Directory {
                        return Err(Error::NotPermitted("a directory has one name"));
                    }
                    if inode.quota != quota {
                        return Err(Error::Across(format!("inode {ino}")));
                    }
                    if inode.links.is_empty() {
                        return Err(Error::NotFound(format!("a name of inode {ino}"))); // it is going, and so would the name
                    }
                    if inode.links.len() >= LINKS_MAX {
                        return Err(Error::TooManyLinks(format!("inode {ino}")));
                    }
                    inode.add_link(link);
                    inode.changed = Time::now();
                    Ok(())
                })
                .await?;
            let target = Target { ino, kind: inode.kind, link };
            self.name_or_unmake(dir, name, target, &made).await?;
            Ok(Attributes::of(ino, &inode))
        })
    }
}

/// The inode, and its first link.
fn inode_of(new: &New, dir: u64, parent: &Inode) -> Result<(Inode, u64), Error> {
    let is_path = (1..=Inode::inline_bytes_max(Kind::Symlink)).contains(&new.path.len());
    match new.kind {
        Kind::Symlink if new.path.len() > Inode::inline_bytes_max(Kind::Symlink) => {
            return Err(Error::NameTooLong(Inode::inline_bytes_max(Kind::Symlink)));
        }
        Kind::Symlink if !is_path || new.path.contains(&0) => {
            return Err(Error::Name("be the path of a link and empty, or contain NUL"));
        }
        Kind::Symlink => {}
        _ if !new.path.is_empty() => return Err(Error::Invalid("only a symbolic link has a path")),
        _ => {}
    }
    let (mut mode, mut gid) = (new.mode & 0o7777, new.gid);
    if parent.mode & SET_GROUP != 0 {
        gid = parent.gid;
        if new.kind == Kind::Directory {
            mode |= SET_GROUP;
        }
    }
    let link = draw();
    let inode = Inode {
        mode,
        uid: new.uid,
        gid,
        device: if matches!(new.kind, Kind::Character | Kind::Block) { new.device } else { 0 },
        parent: if new.kind == Kind::Directory { dir } else { 0 },
        size: new.path.len() as u64,
        links: vec![link],
        quota: parent.quota_within(dir),
        content: Content::Inline(new.path.clone()),
        ..blank(new.kind, Time::now())
    };
    Ok((inode, link))
}
