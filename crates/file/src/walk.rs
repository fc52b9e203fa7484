//! [`Walk`]: everything below a directory, one after the other, by names in their order: a directory before what is in it, and
//! again behind that.

use std::collections::VecDeque;
use std::rc::Rc;
use std::vec;

use engine::task::LocalFuture;

use crate::data::Few;
use crate::error::Error;
use crate::files::Files;
use crate::name::DirEntry;
use crate::ops::Attributes;
use crate::record::Kind;

/// Inodes that are read at once. Chosen: a directory of many small files is told about at the pace of the network.
const INODES_AT_ONCE: usize = 32;
/// Names that are removed at once. Chosen: those of one directory are changes of few records, and would be in each other's way.
const REMOVED_AT_ONCE: usize = 4;

/// How a walk comes by something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pass {
    /// A directory; what is in it comes next.
    Enter,
    /// A directory; what is in it has come.
    Leave,
    /// Something else.
    Leaf,
    /// It can't be told about, or its names can't: what is beside it comes next.
    Fault(Error),
}

/// What a walk comes by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visit {
    /// How.
    pub pass: Pass,
    /// Its names below the start, with `/` between them; empty: it is the start.
    pub path: Vec<u8>,
    /// The directory that it is in; the start's own number of the start.
    pub dir: u64,
    /// Its attributes; where they could not be read, those of the directory that it is in.
    pub told: Attributes,
}

impl Visit {
    /// Its own name; empty: it is the start.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// A directory whose names come.
struct Level {
    told: Attributes,
    dir: u64,
    /// Bytes of its path.
    path_len: usize,
    names: vec::IntoIter<DirEntry>,
    ready: VecDeque<(Vec<u8>, Result<Attributes, Error>)>,
    fault: Option<Error>,
}

/// See the module. What comes or goes meanwhile is met or not.
pub struct Walk {
    files: Rc<Files>,
    start: Option<Attributes>,
    levels: Vec<Level>,
    path: Vec<u8>,
}

impl Walk {
    pub(crate) fn new(files: Rc<Files>, start: Attributes) -> Walk {
        Walk { files, start: Some(start), levels: Vec::new(), path: Vec::new() }
    }

    /// What is in the directory that was entered last does not come, nor that directory again.
    pub fn skip(&mut self) {
        if self.levels.pop().is_some() {
            self.path.truncate(self.levels.last().map_or(0, |level| level.path_len));
        }
    }

    /// What comes next; `None`: that was all.
    #[allow(clippy::should_implement_trait)] // that one does not wait
    pub fn next(&mut self) -> LocalFuture<'_, Option<Visit>> {
        Box::pin(async move {
            if let Some(start) = self.start.take() {
                let dir = start.ino;
                return Some(self.pass(dir, start).await);
            }
            loop {
                let level = self.levels.last_mut()?;
                self.path.truncate(level.path_len);
                if let Some(error) = level.fault.take() {
                    let (dir, told) = (level.dir, level.told.clone());
                    return Some(Visit { pass: Pass::Fault(error), path: self.path.clone(), dir, told });
                }
                if level.ready.is_empty() {
                    level.ready = read(&self.files, level.names.by_ref().take(INODES_AT_ONCE)).await;
                }
                let Some((name, told)) = level.ready.pop_front() else {
                    let Level { told, dir, .. } = self.levels.pop()?;
                    let path = self.path.clone();
                    self.path.truncate(self.levels.last().map_or(0, |level| level.path_len));
                    return Some(Visit { pass: Pass::Leave, path, dir, told });
                };
                let (dir, above) = (level.told.ino, level.told.clone());
                if !self.path.is_empty() {
                    self.path.push(b'/');
                }
                self.path.extend(name);
                match told {
                    Ok(told) => return Some(self.pass(dir, told).await),
                    // Removed since its name was read.
                    Err(Error::Stale | Error::NotFound(_)) => {}
                    Err(error) => {
                        return Some(Visit { pass: Pass::Fault(error), path: self.path.clone(), dir, told: above });
                    }
                }
            }
        })
    }

    async fn pass(&mut self, dir: u64, told: Attributes) -> Visit {
        let path = self.path.clone();
        if told.kind != Kind::Directory {
            return Visit { pass: Pass::Leaf, path, dir, told };
        }
        let (names, fault) = match self.files.list(told.ino).await {
            Ok(names) => (names, None),
            Err(Error::Stale) => (Vec::new(), None), // removed meanwhile
            Err(error) => (Vec::new(), Some(error)),
        };
        let (names, ready) = (names.into_iter(), VecDeque::new());
        self.levels.push(Level { told: told.clone(), dir, path_len: path.len(), names, ready, fault });
        Visit { pass: Pass::Enter, path, dir, told }
    }
}

/// These names with their attributes, in their order.
async fn read(files: &Files, names: impl Iterator<Item = DirEntry>) -> VecDeque<(Vec<u8>, Result<Attributes, Error>)> {
    let names: Vec<DirEntry> = names.collect();
    let inodes: Vec<u64> = names.iter().map(|entry| entry.ino).collect();
    let told = files.getattr_all(&inodes).await;
    names.into_iter().map(|entry| entry.name).zip(told).collect()
}

impl Files {
    /// Removes all that is below a directory, and not that itself. What can't be is told to `fault`, by its path below the
    /// directory, and the rest goes on. Symbolic links go themselves.
    pub async fn remove_below(self: &Rc<Self>, dir: Attributes, mut fault: impl FnMut(&[u8], Error)) {
        let mut done = |(path, result): (Vec<u8>, Result<(), Error>)| match result {
            // Another was faster.
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => fault(&path, error),
        };
        let (mut walk, mut few) = (self.walk(dir), Few::new());
        while let Some(visit) = walk.next().await {
            match visit.pass {
                Pass::Enter => continue,
                Pass::Fault(error) => done((visit.path, Err(error))),
                Pass::Leaf => {
                    let path = visit.path.clone();
                    few.push(path, async move { self.names().unlink(visit.dir, visit.name()).await });
                    if few.keys().count() < REMOVED_AT_ONCE {
                        continue;
                    }
                    few.next().await.map(&mut done);
                }
                Pass::Leave => {
                    while let Some(removed) = few.next().await {
                        done(removed);
                    }
                    if !visit.path.is_empty() {
                        let removed = self.names().rmdir(visit.dir, visit.name()).await;
                        done((visit.path, removed));
                    }
                }
            }
        }
    }

    /// What `stat` tells of these inodes, in their order; [`INODES_AT_ONCE`] are read at a time.
    pub fn getattr_all<'a>(&'a self, inodes: &'a [u64]) -> LocalFuture<'a, Vec<Result<Attributes, Error>>> {
        Box::pin(async move {
            let mut told = Vec::with_capacity(inodes.len());
            for some in inodes.chunks(INODES_AT_ONCE) {
                let mut few = Few::new();
                some.iter().enumerate().for_each(|(at, ino)| few.push(at, self.getattr(*ino)));
                let first = told.len();
                told.resize(first + some.len(), Err(Error::Stale));
                while let Some((at, result)) = few.next().await {
                    told[first + at] = result;
                }
            }
            told
        })
    }
}
