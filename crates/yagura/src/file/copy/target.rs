//! [`Goal`] and [`Spot`]: where copies go, inside a file system or outside; and [`Writing`], a file that is being copied.

use std::cell::Cell;
use std::fmt;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ::file::data::Rope;
use ::file::record::Kind;
use ::file::{Change, Draft, Error, Files, New, RenameFlags};
use engine::task;

use super::local::{self, LocalDraft};
use super::source::{Source, Trait};
use crate::exit::Failure;
use crate::file::caller::own;
use crate::file::fault::{failure, path_failure};
use crate::file::place::{Inside, Place, shown};
use crate::file::session::Session;

/// Where all of the sources go.
pub enum Goal {
    /// Into a directory that is there, each under its own name.
    Into(Spot),
    /// The one gets this name.
    As(Spot),
}

/// Where one thing goes.
#[derive(Clone)]
pub enum Spot {
    Inside {
        files: Rc<Files>,
        at: At,
        shown: Inside,
    },
    Local {
        path: PathBuf,
        /// It is a directory that is there.
        is_directory: bool,
    },
}

/// A place in a file system.
#[derive(Clone)]
pub enum At {
    /// A directory that is there.
    Directory(u64),
    /// A name in one, whatever it leads to.
    Name(u64, Vec<u8>),
}

/// A file that is being copied, and has not its name yet.
pub enum Writing {
    Inside {
        files: Rc<Files>,
        draft: Draft,
        /// Bytes of the file so far.
        end: Cell<u64>,
        name: Vec<u8>,
    },
    Local {
        draft: LocalDraft,
    },
}

impl Goal {
    /// What the last argument means; `many` need a directory.
    pub async fn find(session: &Session, place: &Place, many: bool) -> Result<Goal, Failure> {
        let must = many || place.last_name().is_empty();
        let no_directory = || Failure::usage(format!("{place}: there is no such directory"));
        match place {
            Place::Inside(shown) => {
                let files = session.files(shown).await?;
                let failed = |error| path_failure(shown, error);
                let must = must || shown.path.ends_with(b"/");
                let spot = |at| Spot::Inside { files: Rc::clone(&files), at, shown: shown.clone() };
                match files.resolve(&shown.path, true).await {
                    Ok(told) if told.kind == Kind::Directory => Ok(Goal::Into(spot(At::Directory(told.ino)))),
                    Ok(_) | Err(Error::NotFound(_)) if must => Err(no_directory()),
                    Ok(_) | Err(Error::NotFound(_)) => {
                        let (dir, name) = files.resolve_parent(&shown.path).await.map_err(failed)?;
                        Ok(Goal::As(spot(At::Name(dir, name.to_vec()))))
                    }
                    Err(error) => Err(failed(error)),
                }
            }
            Place::Local(path) => {
                let must = must || path.as_os_str().as_bytes().ends_with(b"/");
                let is_directory = path.is_dir();
                let spot = Spot::Local { path: path.clone(), is_directory };
                match is_directory {
                    true => Ok(Goal::Into(spot)),
                    false if must => Err(no_directory()),
                    false => Ok(Goal::As(spot)),
                }
            }
            Place::Standard => Err(Failure::usage("standard output takes one file")),
        }
    }

    /// Where the source of this name goes; without a name (a root, `.`) what is in it goes into the directory itself.
    pub fn spot(&self, name: &[u8]) -> Spot {
        match self {
            Goal::Into(spot) if !name.is_empty() => spot.below(name),
            Goal::Into(spot) | Goal::As(spot) => spot.clone(),
        }
    }

    /// Whether it is a directory that is there.
    pub fn is_directory(&self) -> bool {
        matches!(self, Goal::Into(_))
    }
}

fn told_of(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| {
        let failure = if error.kind() == ErrorKind::StorageFull { Failure::from(error) } else { Failure::check(error) };
        failure.during(shown(path.as_os_str().as_bytes()))
    }
}

impl Spot {
    /// A name in it, which is a directory.
    pub fn below(&self, name: &[u8]) -> Spot {
        match self {
            Spot::Inside { files, at, shown } => {
                let (At::Directory(dir) | At::Name(dir, _)) = at;
                let at = At::Name(*dir, name.to_vec());
                Spot::Inside { files: Rc::clone(files), at, shown: shown.below(name) }
            }
            Spot::Local { path, .. } => {
                Spot::Local { path: path.join(std::ffi::OsStr::from_bytes(name)), is_directory: false }
            }
        }
    }

    /// Whether a source can be copied there without being read and written at once.
    pub async fn check_apart(&self, source: &Source) -> Result<(), Failure> {
        let (Spot::Inside { files, at, .. }, Source::Inside { files: theirs, told, .. }) = (self, source) else {
            return Ok(());
        };
        if !Rc::ptr_eq(files, theirs) {
            return Ok(());
        }
        let (At::Directory(dir) | At::Name(dir, _)) = at;
        if told.kind == Kind::Directory && files.is_within(*dir, told.ino).await.map_err(failure)? {
            return Err(Failure::usage(format!("{source}: it would be copied into itself")));
        }
        match at {
            At::Name(dir, name) if files.lookup(*dir, name).await.is_ok_and(|there| there.ino == told.ino) => {
                Err(Failure::usage(format!("{source} and {self} are the same")))
            }
            _ => Ok(()),
        }
    }

    /// Makes a directory, or finds one there.
    pub async fn make_directory(&self, told: &Trait) -> Result<Spot, Failure> {
        match self {
            Spot::Inside { at: At::Directory(_), .. } | Spot::Local { is_directory: true, .. } => Ok(self.clone()),
            Spot::Inside { files, at: At::Name(dir, name), shown } => {
                let ((uid, gid, mode), failed) = (told.rights(), |error| path_failure(shown, error));
                let made = match files.names().mkdir(*dir, name, mode, uid, gid).await {
                    Err(Error::Exists(_)) => files.lookup(*dir, name).await,
                    made => made,
                };
                let made = made.map_err(failed)?;
                if made.kind != Kind::Directory {
                    return Err(failed(Error::NotDirectory("what has this name".into())));
                }
                Ok(Spot::Inside { files: Rc::clone(files), at: At::Directory(made.ino), shown: shown.clone() })
            }
            Spot::Local { path, .. } => {
                // Of the caller alone, and open to him, until all is in it.
                match DirBuilder::new().mode(0o700).create(path) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        // Not through a link: it leads to where nobody asked this to go.
                        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
                            return Err(told_of(path)(std::io::Error::new(
                                ErrorKind::NotADirectory,
                                "it is in the way",
                            )));
                        }
                    }
                    made => made.map_err(told_of(path))?,
                }
                Ok(Spot::Local { path: path.clone(), is_directory: true })
            }
        }
    }

    /// Attributes of a directory, when all is in it.
    pub async fn settle_directory(&self, told: &Trait) -> Result<(), Failure> {
        match self {
            Spot::Inside { files, at: At::Directory(ino), shown } => {
                files.setattr(*ino, &change_of(told)).await.map_err(|error| path_failure(shown, error))?;
                Ok(())
            }
            Spot::Inside { .. } => Ok(()),
            Spot::Local { path, .. } => local::settle(path, told).map_err(told_of(path)),
        }
    }

    /// Makes a symbolic link, in place of what has its name, unless that is a directory.
    pub async fn make_link(&self, told: &Trait) -> Result<(), Failure> {
        match self {
            Spot::Local { path, .. } => local::make_link(path, told).map_err(told_of(path)),
            Spot::Inside { at: At::Directory(_), shown, .. } => Err(is_directory(shown)),
            Spot::Inside { files, at: At::Name(dir, name), shown } => {
                link_inside(files, *dir, name, told).await.map_err(|error| path_failure(shown, error))
            }
        }
    }

    /// Begins a file.
    pub async fn begin(&self) -> Result<Writing, Failure> {
        match self {
            Spot::Local { path, .. } => Ok(Writing::Local { draft: LocalDraft::begin(path).map_err(told_of(path))? }),
            Spot::Inside { at: At::Directory(_), shown, .. } => Err(is_directory(shown)),
            Spot::Inside { files, at: At::Name(dir, name), shown } => {
                let failed = |error| path_failure(shown, error);
                ::file::record::node::check_name(name).map_err(failed)?;
                // What would be refused at the end is refused before its bytes are copied.
                if files.lookup(*dir, name).await.is_ok_and(|there| there.kind == Kind::Directory) {
                    return Err(is_directory(shown));
                }
                let (uid, gid) = own();
                let draft = files.draft(*dir, &New::of(Kind::File, 0o600, uid, gid)).await.map_err(failed)?;
                Ok(Writing::Inside { files: Rc::clone(files), draft, end: Cell::new(0), name: name.clone() })
            }
        }
    }
}

fn is_directory(shown: &Inside) -> Failure {
    path_failure(shown, Error::IsDirectory("what has this name".into()))
}

fn change_of(told: &Trait) -> Change {
    let (uid, gid, mode) = told.rights();
    let accessed = told.times.map(|times| times.accessed);
    let modified = told.times.map(|times| times.modified);
    Change { mode: Some(mode), uid: Some(uid), gid: Some(gid), size: None, accessed, modified }
}

async fn link_inside(files: &Rc<Files>, dir: u64, name: &[u8], told: &Trait) -> Result<(), Error> {
    let (uid, gid, _) = told.rights();
    let own = [::file::DRAFT_PREFIX, format!("{:016x}", task::random_u64()).as_bytes()].concat();
    let made = match files.names().symlink(dir, name, &told.target, uid, gid).await {
        Err(Error::Exists(_)) => {
            let made = files.names().symlink(dir, &own, &told.target, uid, gid).await?;
            if let Err(error) = files.names().rename((dir, &own), (dir, name), RenameFlags::default()).await {
                files.names().unlink(dir, &own).await?;
                return Err(error);
            }
            Ok(made)
        }
        made => made,
    };
    let change = Change { mode: None, uid: None, gid: None, ..change_of(told) };
    files.setattr(made?.ino, &change).await?;
    Ok(())
}

impl Writing {
    /// Writes bytes.
    pub async fn write(&self, at: u64, bytes: Rope) -> Result<(), Failure> {
        match self {
            Writing::Inside { draft, end, .. } => {
                end.set(end.get().max(at + bytes.len() as u64));
                draft.file().write_through(at, bytes).await.map_err(failure)
            }
            Writing::Local { draft } => {
                let mut at = at;
                for part in bytes.parts() {
                    draft.file().write_at(at, part.clone(), false).await?;
                    at += part.len() as u64;
                }
                Ok(())
            }
        }
    }

    /// The file is so long: what was not written of it is a hole.
    pub async fn set_size(&self, size: u64) -> Result<(), Failure> {
        match self {
            Writing::Inside { draft, end, .. } if size > end.get() => {
                end.set(size);
                draft.file().truncate(size).await.map_err(failure)
            }
            Writing::Inside { .. } => Ok(()),
            Writing::Local { draft } => Ok(draft.set_len(size)?),
        }
    }

    /// The whole file gets its attributes, and its name.
    pub async fn finish(self, told: &Trait) -> Result<(), Failure> {
        match self {
            Writing::Inside { draft, name, .. } => {
                draft.finish(&name, &change_of(told), RenameFlags::default()).await.map_err(failure)?;
                Ok(())
            }
            Writing::Local { draft } => Ok(draft.finish(told)?),
        }
    }

    /// It goes.
    pub async fn give_up(self) {
        match self {
            Writing::Inside { draft, .. } => draft.give_up().await,
            Writing::Local { draft } => drop(draft),
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spot::Inside { shown, .. } => shown.fmt(f),
            Spot::Local { path, .. } => f.write_str(&shown(path.as_os_str().as_bytes())),
        }
    }
}
