//! Paths: names one below the other, as people and programs give them, from the root on.

use std::rc::Rc;

use engine::task::LocalFuture;

use crate::error::Error;
use crate::files::Files;
use crate::fs::ROOT;
use crate::name::DirEntry;
use crate::ops::Attributes;
use crate::record::Kind;
use crate::record::node::check_name;

/// Symbolic links on the way to one path. Derived: as many as Linux follows.
const LINKS_FOLLOWED_MAX: usize = 40;
/// Bytes of a path. Derived: as many as Linux takes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Names that are asked for at once.
const NAMES_AT_ONCE: usize = 1024;

/// The names of a path, the last one first. One that ends in `/` is a directory's, as if `.` stood behind it.
fn push_names(path: &[u8], onto: &mut Vec<Vec<u8>>) {
    if path.ends_with(b"/") {
        onto.push(b".".to_vec());
    }
    onto.extend(path.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec));
}

/// The names of a path, each with where it begins.
fn names_of(path: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut next = 0;
    let with_place = move |name: &'_ [u8]| {
        let begin = next;
        next += name.len() + 1;
        begin..begin + name.len()
    };
    let places = path.split(|byte| *byte == b'/').map(with_place);
    places.filter(|place| !place.is_empty()).map(|place| (place.start, &path[place]))
}

fn shown(path: &[u8]) -> String {
    path.escape_ascii().to_string()
}

impl Files {
    /// What a path leads to. It begins at the root, with or without a `/`; `..` of the root is the root; the path of a symbolic
    /// link that begins with `/` begins at this root, too. A link in the last place is followed if `follows`, or where a `/` is
    /// behind it.
    ///
    /// # Errors
    /// What the names on the way say; [`Error::Loop`] where links lead to links without an end.
    pub fn resolve<'a>(&'a self, path: &'a [u8], follows: bool) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move {
            if path.len() > PATH_BYTES_MAX {
                return Err(Error::NameTooLong(PATH_BYTES_MAX));
            }
            let (mut rest, mut links) = (Vec::new(), 0);
            push_names(path, &mut rest);
            let mut at = self.getattr(ROOT).await?;
            while let Some(name) = rest.pop() {
                if at.kind != Kind::Directory {
                    return Err(Error::NotDirectory(format!("what is before {}", shown(&name))));
                }
                if name == b"." {
                    continue;
                }
                let found = self.lookup(at.ino, &name).await?;
                if found.kind != Kind::Symlink || (rest.is_empty() && !follows) {
                    at = found;
                    continue;
                }
                links += 1;
                if links > LINKS_FOLLOWED_MAX {
                    return Err(Error::Loop(shown(path)));
                }
                let target = self.names().readlink(found.ino).await?;
                if target.starts_with(b"/") {
                    at = self.getattr(ROOT).await?;
                }
                push_names(&target, &mut rest);
            }
            Ok(at)
        })
    }

    /// The directory that the last name of a path is in, and that name, which need not be there: for whoever makes or removes it.
    ///
    /// # Errors
    /// The path ends in no name; what the names on the way say.
    pub fn resolve_parent<'a>(&'a self, path: &'a [u8]) -> LocalFuture<'a, Result<(u64, &'a [u8]), Error>> {
        Box::pin(async move {
            let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
            let begin = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
            let (above, name) = (&path[..begin], &path[begin..end]);
            if matches!(name, b"" | b"." | b"..") {
                return Err(Error::Invalid("the path ends in no name that could be made or removed"));
            }
            check_name(name)?;
            let dir = self.resolve(above, true).await?;
            if dir.kind != Kind::Directory {
                return Err(Error::NotDirectory(shown(above)));
            }
            Ok((dir.ino, name))
        })
    }

    /// Makes a directory of this path, and those above it that are not there. What the path leads to then is a directory.
    ///
    /// # Errors
    /// Something else is in the way.
    pub fn make_dirs<'a>(
        &'a self,
        path: &'a [u8],
        mode: u16,
        uid: u32,
        gid: u32,
    ) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move {
            if path.len() > PATH_BYTES_MAX {
                return Err(Error::NameTooLong(PATH_BYTES_MAX));
            }
            let mut at = self.getattr(ROOT).await?;
            for (begin, name) in names_of(path) {
                let so_far = &path[..begin + name.len()];
                let made = match name {
                    b"." | b".." => Err(Error::Exists(shown(name))),
                    name => self.names().mkdir(at.ino, name, mode, uid, gid).await,
                };
                at = match made {
                    Err(Error::Exists(_)) => self.resolve(so_far, true).await?,
                    made => made?,
                };
                if at.kind != Kind::Directory {
                    return Err(Error::NotDirectory(shown(so_far)));
                }
            }
            Ok(at)
        })
    }

    /// Whether a directory is `above`, or below it.
    ///
    /// # Errors
    /// What the directories above it say.
    pub fn is_within(&self, dir: u64, above: u64) -> LocalFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let (mut at, mut left) = (dir, PATH_BYTES_MAX);
            while at != above && at != ROOT && left > 0 {
                at = self.lookup(at, b"..").await?.ino;
                left -= 1;
            }
            Ok(at == above)
        })
    }

    /// The path of a directory, from the root on.
    ///
    /// # Errors
    /// It is gone, or moved just now; what the directories above it say.
    pub fn path_of(&self, dir: u64) -> LocalFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(async move {
            let (mut at, mut path) = (dir, Vec::new());
            while at != ROOT && path.len() <= PATH_BYTES_MAX {
                let above = self.lookup(at, b"..").await?.ino;
                let names = self.list(above).await?;
                let name = names.into_iter().find(|entry| entry.ino == at).map(|entry| entry.name);
                let name = name.ok_or_else(|| Error::NotFound(format!("a name of directory {at}")))?;
                path = [&b"/"[..], &name, &path].concat();
                at = above;
            }
            Ok(if path.is_empty() { b"/".to_vec() } else { path })
        })
    }

    /// All names of a directory but `.` and `..`, by their bytes.
    ///
    /// # Errors
    /// It is none; what the store says.
    pub fn list(&self, dir: u64) -> LocalFuture<'_, Result<Vec<DirEntry>, Error>> {
        Box::pin(async move {
            let (mut cursor, mut names) = (0, Vec::new());
            loop {
                let step = self.names().readdir(dir, cursor, NAMES_AT_ONCE).await?;
                let Some(last) = step.last() else { break };
                cursor = last.cursor;
                names.extend(step.into_iter().filter(|entry| !matches!(&*entry.name, b"." | b"..")));
            }
            names.sort_by(|first, second| first.name.cmp(&second.name));
            // Where two names have one hash, one of them may come twice.
            names.dedup_by(|second, first| second.name == first.name);
            Ok(names)
        })
    }

    /// Goes over a tree; what it begins at need not be a directory.
    pub fn walk(self: &Rc<Self>, start: Attributes) -> crate::walk::Walk {
        crate::walk::Walk::new(Rc::clone(self), start)
    }
}
