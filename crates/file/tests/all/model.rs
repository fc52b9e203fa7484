//! The plainest file system there can be, to compare with.

use std::collections::BTreeMap;

use file::record::Kind;
use libc::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EPERM};

pub type Id = usize;

#[derive(Clone)]
pub struct Object {
    pub kind: Kind,
    pub names: BTreeMap<String, Id>,
    pub bytes: Vec<u8>,
    pub mode: u16,
}

/// Objects by number; 0 is the root. None ever goes, so that numbers stay.
pub struct Model(pub Vec<Object>);

type Outcome<T> = Result<T, i32>;

impl Model {
    pub fn new() -> Model {
        Model(vec![Model::object(Kind::Directory, 0o755)])
    }

    fn object(kind: Kind, mode: u16) -> Object {
        Object { kind, names: BTreeMap::new(), bytes: Vec::new(), mode }
    }

    fn is_directory(&self, id: Id) -> bool {
        self.0[id].kind == Kind::Directory
    }

    pub fn find(&self, dir: Id, name: &str) -> Outcome<Id> {
        if !self.is_directory(dir) {
            return Err(ENOTDIR);
        }
        self.0[dir].names.get(name).copied().ok_or(ENOENT)
    }

    pub fn make(&mut self, dir: Id, name: &str, kind: Kind, mode: u16) -> Outcome<Id> {
        match self.find(dir, name) {
            Err(ENOENT) => {
                self.0.push(Model::object(kind, mode));
                let id = self.0.len() - 1;
                self.0[dir].names.insert(name.to_owned(), id);
                Ok(id)
            }
            Ok(_) => Err(EEXIST),
            Err(error) => Err(error),
        }
    }

    pub fn link(&mut self, id: Id, dir: Id, name: &str) -> Outcome<()> {
        match self.find(dir, name) {
            Ok(_) => Err(EEXIST),
            Err(ENOENT) if self.is_directory(id) => Err(EPERM),
            Err(ENOENT) => {
                self.0[dir].names.insert(name.to_owned(), id);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub fn unlink(&mut self, dir: Id, name: &str) -> Outcome<()> {
        let id = self.find(dir, name)?;
        if self.is_directory(id) {
            return Err(EISDIR);
        }
        self.0[dir].names.remove(name);
        Ok(())
    }

    pub fn rmdir(&mut self, dir: Id, name: &str) -> Outcome<()> {
        let id = self.find(dir, name)?;
        if !self.is_directory(id) {
            return Err(ENOTDIR);
        }
        if !self.0[id].names.is_empty() {
            return Err(ENOTEMPTY);
        }
        self.0[dir].names.remove(name);
        Ok(())
    }

    fn is_above(&self, above: Id, below: Id) -> bool {
        above == below || self.0[above].names.values().any(|&id| self.is_directory(id) && self.is_above(id, below))
    }

    pub fn rename(&mut self, from: (Id, &str), to: (Id, &str), no_replace: bool, exchange: bool) -> Outcome<()> {
        let id = self.find(from.0, from.1)?;
        let other = match self.find(to.0, to.1) {
            Ok(other) => Some(other),
            Err(ENOENT) if !exchange => None,
            // Which of two reasons is told first is nobody's business.
            Err(ENOENT) if self.is_directory(id) && id == to.0 => return Err(EINVAL),
            Err(error) => return Err(error),
        };
        if self.is_directory(id) && id == to.0 {
            return Err(EINVAL);
        }
        if let Some(other) = other {
            if no_replace {
                return Err(EEXIST);
            }
            if other == id {
                return Ok(());
            }
            if exchange && self.is_directory(other) && self.is_above(other, from.0) {
                return Err(EINVAL);
            }
            if !exchange {
                match (self.is_directory(id), self.is_directory(other)) {
                    (true, false) => return Err(ENOTDIR),
                    (false, true) => return Err(EISDIR),
                    (true, true) if !self.0[other].names.is_empty() => return Err(ENOTEMPTY),
                    _ => {}
                }
            }
        }
        if self.is_directory(id) && self.is_above(id, to.0) {
            return Err(EINVAL);
        }
        self.0[from.0].names.remove(from.1);
        self.0[to.0].names.insert(to.1.to_owned(), id);
        if let Some(other) = other.filter(|_| exchange) {
            self.0[from.0].names.insert(from.1.to_owned(), other);
        }
        Ok(())
    }

    /// Names of an object that can be reached.
    pub fn links(&self, id: Id) -> usize {
        self.reached().iter().map(|&dir| self.0[dir].names.values().filter(|&&of| of == id).count()).sum()
    }

    fn reached(&self) -> Vec<Id> {
        let (mut found, mut at) = (vec![0], 0);
        while at < found.len() {
            found.extend(self.0[found[at]].names.values().filter(|&&id| self.is_directory(id)));
            at += 1;
        }
        found
    }
}
