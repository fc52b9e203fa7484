//! Whether the medium of a namespace takes writes; after one that failed it takes none any more.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Writability};

/// Whether writes are taken, and why not.
#[derive(Debug)]
pub(crate) struct Latch {
    path: PathBuf,
    read_only: bool,
    latched: AtomicBool,
    /// The failure that latched it.
    fault: OnceLock<String>,
}

impl Latch {
    pub fn new(path: &Path, read_only: bool) -> Latch {
        Latch { path: path.to_owned(), read_only, latched: AtomicBool::new(false), fault: OnceLock::new() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It was opened so.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// A write or a flush has failed.
    pub fn has_fallen(&self) -> bool {
        self.latched.load(Ordering::Acquire)
    }

    /// What has failed first.
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// What a namespace on this medium says of itself.
    pub fn writability(&self) -> Writability {
        match self.read_only {
            true => Writability::ReadOnly,
            false if self.has_fallen() => Writability::Failed,
            false => Writability::Writable,
        }
    }

    pub fn writable(&self) -> Result<(), Error> {
        if self.read_only {
            return Err(Error::ReadOnly("it was opened read-only"));
        }
        if self.has_fallen() {
            return Err(Error::ReadOnly("latched after a write error on its medium; see the log of its server"));
        }
        Ok(())
    }

    pub fn write_failed(&self, what: &'static str, error: &io::Error) -> Error {
        // A full file system lost nothing: the namespace stays writable where it has room.
        if error.kind() == io::ErrorKind::StorageFull || error.kind() == io::ErrorKind::QuotaExceeded {
            return Error::OutOfSpace;
        }
        // Nor did a medium that does not know the command.
        if error.kind() == io::ErrorKind::Unsupported {
            return Error::Unsupported(what);
        }
        self.fall(what, error)
    }

    /// How a flush has ended. A full medium is no excuse here: what it had accepted may be gone.
    pub fn flushed(&self, result: io::Result<()>) -> Result<(), Error> {
        result.map_err(|error| self.fall("flush", &error))?;
        self.still("flush")
    }

    /// What has just become stable is, unless something failed meanwhile: of two flushes at the same time the kernel may tell
    /// only one that bytes were lost.
    pub fn still(&self, what: &str) -> Result<(), Error> {
        if self.has_fallen() {
            return Err(Error::WriteFault(format!("{what} on {}: another one failed meanwhile", self.path.display())));
        }
        Ok(())
    }

    pub fn fall(&self, what: &str, error: &io::Error) -> Error {
        let sentence = format!("{what} on {}: {error}", self.path.display());
        if !self.latched.swap(true, Ordering::AcqRel) {
            tracing::error!(path = %self.path.display(), %error, "{what} failed: the namespace is read-only from now on");
        }
        // Only the first failure is kept; a later one follows from it.
        let _ = self.fault.set(sentence.clone());
        Error::WriteFault(sentence)
    }
}
