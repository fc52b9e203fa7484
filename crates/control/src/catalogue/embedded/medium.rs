//! What a catalogue's file lies on, and how it is opened: once when the catalogue is, and anew after the medium has failed.
//!
//! redb refuses all that follows on a failed read, write or sync, and on a file that could not grow, until the file is opened anew:
//! what is in its memory may not be what is on the medium. A disk that was full for a moment would end the catalogue otherwise.

use std::fs::OpenOptions;
use std::io::Result;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, StorageBackend, StorageError};

/// Memory for pages of the file. Chosen: a catalogue of some ten thousand entries fits whole.
const CACHE_BYTES: usize = 16 * 1024 * 1024;

/// Opens the medium; the one before must have been closed.
pub type Open = Box<dyn Fn(Opening) -> std::result::Result<Database, DatabaseError> + Send + Sync>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// What is not there is made.
    First,
    /// What is not there was taken away.
    Anew,
}

/// A file, which is its owner's alone: a catalogue may name secrets.
pub fn file(path: &Path) -> Open {
    let path = path.to_owned();
    Box::new(move |opening| {
        let is_made = opening == Opening::First;
        let file = OpenOptions::new().read(true).write(true).create(is_made).truncate(false).mode(0o600).open(&path);
        open(FileBackend::new(file.map_err(StorageError::Io)?)?)
    })
}

/// A medium of the caller's.
pub fn of_the_caller(medium: impl StorageBackend) -> Open {
    let medium: Arc<dyn StorageBackend> = Arc::new(medium);
    Box::new(move |_| open(Lent(medium.clone())))
}

fn open(medium: impl StorageBackend) -> std::result::Result<Database, DatabaseError> {
    Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(medium)
}

/// A medium that outlives the database on it, without its locks.
#[derive(Debug)]
struct Lent(Arc<dyn StorageBackend>);

impl StorageBackend for Lent {
    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write(offset, data)
    }
}
