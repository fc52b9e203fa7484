//! [`Source`]: what is copied, inside a file system or outside; and [`Walking`], which goes over it.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ::file::record::{Kind, Time};
use ::file::{Attributes, Files, Pass, Walk};
use walkdir::WalkDir;

use crate::exit::Failure;
use crate::file::caller::{own, umask};
use crate::file::fault::{failure, path_failure};
use crate::file::place::{Inside, Place, shown};
use crate::file::session::Session;

/// What is kept of an inode besides its bytes.
#[derive(Clone, Debug)]
pub struct Trait {
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// `None`: whatever time it is made at.
    pub times: Option<Times>,
    /// Of a symbolic link.
    pub target: Vec<u8>,
}

/// Times that can be set.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub accessed: Time,
    pub modified: Time,
}

/// See the module.
#[derive(Clone)]
pub enum Source {
    Inside {
        files: Rc<Files>,
        at: Inside,
        told: Attributes,
    },
    /// `follows`: a symbolic link there is what it leads to.
    Local {
        path: PathBuf,
        follows: bool,
    },
}

/// What a walk comes by.
pub struct Found {
    /// Its names below the start; empty: it is the start.
    pub path: Vec<u8>,
    pub source: Source,
    pub told: Result<Trait, Failure>,
}

/// Everything of a source, a directory before what is in it.
pub enum Walking {
    Inside { walk: Walk, files: Rc<Files>, at: Inside },
    Local { walk: walkdir::IntoIter, root: PathBuf },
    One(Option<Source>),
}

impl Source {
    /// What an argument leads to; a link itself unless it `follows`.
    pub async fn find(session: &Session, place: &Place, follows: bool) -> Result<Source, Failure> {
        match place {
            Place::Inside(at) => {
                let files = session.files(at).await?;
                let told = files.resolve(&at.path, follows).await.map_err(|error| path_failure(at, error))?;
                Ok(Source::Inside { files, at: at.clone(), told })
            }
            Place::Local(path) => Ok(Source::Local { path: path.clone(), follows }),
            Place::Standard => Err(Failure::usage("standard input is copied alone")),
        }
    }

    /// Goes over it, and over what is in it.
    pub fn walk(&self) -> Walking {
        match self {
            Source::Inside { files, at, told } => {
                Walking::Inside { walk: files.walk(told.clone()), files: Rc::clone(files), at: at.clone() }
            }
            Source::Local { follows: true, .. } => Walking::One(Some(self.clone())),
            Source::Local { path, .. } => {
                let walk = WalkDir::new(path).follow_root_links(false).sort_by_file_name().into_iter();
                Walking::Local { walk, root: path.clone() }
            }
        }
    }

    async fn traits(&self) -> Result<Trait, Failure> {
        match self {
            Source::Inside { files, told, .. } => of_inside(files, told).await,
            Source::Local { path, follows } => {
                let metadata = if *follows { path.metadata() } else { path.symlink_metadata() };
                of_local(path, &metadata.map_err(Failure::check)?)
            }
        }
    }
}

impl Walking {
    /// What is in the directory that came last does not come.
    pub fn skip(&mut self) {
        match self {
            Walking::Inside { walk, .. } => walk.skip(),
            Walking::Local { walk, .. } => walk.skip_current_dir(),
            Walking::One(_) => {}
        }
    }

    /// What comes next.
    pub async fn next(&mut self) -> Option<Found> {
        match self {
            Walking::One(one) => {
                let source = one.take()?;
                Some(Found { path: Vec::new(), told: source.traits().await, source })
            }
            Walking::Local { walk, root } => {
                let entry = walk.next()?;
                let path = match &entry {
                    Ok(entry) => entry.path().to_owned(),
                    Err(error) => error.path().map_or_else(|| root.clone(), Path::to_owned),
                };
                let below = path.strip_prefix(&*root).unwrap_or(&path).as_os_str().as_bytes().to_vec();
                let told = match entry {
                    Ok(entry) => entry.metadata().map_err(Failure::check).and_then(|told| of_local(&path, &told)),
                    Err(error) => Err(Failure::check(error.io_error().map_or(error.to_string(), ToString::to_string))),
                };
                Some(Found { path: below, source: Source::Local { path, follows: false }, told })
            }
            Walking::Inside { walk, files, at } => loop {
                let visit = walk.next().await?;
                let fault = match visit.pass {
                    Pass::Leave => continue,
                    Pass::Enter | Pass::Leaf => None,
                    Pass::Fault(error) => Some(failure(error)),
                };
                let told = match fault {
                    Some(failure) => Err(failure),
                    None => of_inside(files, &visit.told).await,
                };
                let (files, at) = (Rc::clone(files), at.below(&visit.path));
                return Some(Found { path: visit.path, source: Source::Inside { files, at, told: visit.told }, told });
            },
        }
    }
}

async fn of_inside(files: &Files, told: &Attributes) -> Result<Trait, Failure> {
    let target = match told.kind {
        Kind::Symlink => files.names().readlink(told.ino).await.map_err(failure)?,
        _ => Vec::new(),
    };
    let Attributes { kind, mode, uid, gid, size, accessed, modified, .. } = *told;
    Ok(Trait { kind, mode, uid, gid, size, times: Some(Times { accessed, modified }), target })
}

fn of_local(path: &Path, metadata: &Metadata) -> Result<Trait, Failure> {
    let file_type = metadata.file_type();
    let kind = match () {
        () if file_type.is_file() => Kind::File,
        () if file_type.is_dir() => Kind::Directory,
        () if file_type.is_symlink() => Kind::Symlink,
        () if file_type.is_fifo() => Kind::Fifo,
        () if file_type.is_socket() => Kind::Socket,
        () if file_type.is_char_device() => Kind::Character,
        () => Kind::Block,
    };
    let target = match kind {
        Kind::Symlink => path.read_link().map_err(Failure::check)?.as_os_str().as_bytes().to_vec(),
        _ => Vec::new(),
    };
    let time = |seconds, nanos: i64| Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
    let accessed = time(metadata.atime(), metadata.atime_nsec());
    let modified = time(metadata.mtime(), metadata.mtime_nsec());
    let mode = (metadata.mode() & 0o7777) as u16;
    let (uid, gid, size) = (metadata.uid(), metadata.gid(), metadata.len());
    Ok(Trait { kind, mode, uid, gid, size, times: Some(Times { accessed, modified }), target })
}

impl Trait {
    /// Of a file that comes from a stream.
    pub fn of_stream() -> Trait {
        let mode = 0o666 & !umask();
        let (uid, gid) = own();
        Trait { kind: Kind::File, mode, uid, gid, size: 0, times: None, target: Vec::new() }
    }

    /// Owner, group and permissions of the copy: those of the original where root copies. Else it is the caller's, whom nobody
    /// may be run as for having read a file of another.
    pub fn rights(&self) -> (u32, u32, u16) {
        if rustix::process::geteuid().is_root() {
            return (self.uid, self.gid, self.mode);
        }
        let (uid, gid) = own();
        (uid, gid, if self.kind == Kind::Directory { self.mode } else { self.mode & 0o1777 })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Inside { at, .. } => at.fmt(f),
            Source::Local { path, .. } => f.write_str(&shown(path.as_os_str().as_bytes())),
        }
    }
}
