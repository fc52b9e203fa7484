//! Files of a pool, by paths, from any thread: [`FileSystem`].
//!
//! A file system is worked with by the first reactor thread of its client: what it has open is there, and is known by numbers here.
//! Paths are bytes, begin at the root, and lead over symbolic links.

pub mod reach;
pub(crate) mod registry;
mod told;
mod work;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::client::Client;
use crate::error::Error;
use crate::pending::Pending;
use crate::worker::Worker;
use registry::SERVED;
pub use told::{FileInfo, Kind, Owner, Time, Wanted};
use work::Served;

/// A file system of a pool. Cheap to clone; it ends with its last clone, or when its client is closed.
///
/// ```no_run
/// # let client = client::Client::connect(["10.0.0.1:4420"], client::Options::default()).wait()?;
/// let tree = client.file_system("tree", client::files::Owner { uid: 0, gid: 0 }).wait()?;
/// tree.write_whole("lamps/first", b"lit".to_vec(), false).wait()?;
/// assert_eq!(tree.info("lamps/first").wait()?.size, 3);
/// # Ok::<(), client::Error>(())
/// ```
#[derive(Clone)]
pub struct FileSystem(Arc<Handle>);

struct Handle {
    /// There until it is dropped.
    worker: Option<Worker>,
    number: u64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        if worker.is_foreign() {
            // A lock of its queue may have been held when the process was copied.
            std::mem::forget(worker);
        } else {
            drop(close(&worker, self.number));
        }
    }
}

/// The next number of a file system of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn close(worker: &Worker, number: u64) -> Pending<()> {
    worker.call(false, move |_| async move {
        let served = SERVED.with_borrow_mut(|all| all.remove(&number));
        match served {
            Some(served) => served.end().await,
            None => Ok(()),
        }
    })
}

impl Client {
    /// A file system of the pool; what is made in it belongs to `owner`. Permissions are not asked: whoever reaches the pool may
    /// do all.
    ///
    /// # Errors
    /// There is no such file system; the pool does not answer.
    pub fn file_system(&self, name: &str, owner: Owner) -> Pending<FileSystem> {
        let (name, security) = (name.to_owned(), Arc::clone(&self.security));
        let (worker, number) = (self.first_worker().clone(), NEXT.fetch_add(1, Ordering::Relaxed));
        let handle = worker.clone();
        worker.call(false, move |store| async move {
            let served = Served::open(store, &security, &name, owner).await?;
            SERVED.with_borrow_mut(|all| all.insert(number, served));
            Ok(FileSystem(Arc::new(Handle { worker: Some(handle), number })))
        })
    }
}

impl FileSystem {
    fn call<T, F, R>(&self, changes: bool, operation: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Served>) -> R + Send + 'static,
        R: Future<Output = Result<T, Error>> + 'static,
    {
        let number = self.0.number;
        let Some(worker) = &self.0.worker else { return Pending::failed(Error::Closed { outcome_unknown: false }) };
        worker.call(changes, move |_| async move {
            let served = SERVED.with_borrow(|all| all.get(&number).cloned());
            operation(served.ok_or(Error::Closed { outcome_unknown: false })?).await
        })
    }

    /// Ends it: what was begun and not finished goes. Closing again does nothing.
    ///
    /// # Errors
    /// The pool does not answer.
    pub fn close(&self) -> Pending<()> {
        match &self.0.worker {
            Some(worker) if !worker.is_foreign() => close(worker, self.0.number),
            _ => Pending::done(Ok(())),
        }
    }

    /// What is told of a file.
    ///
    /// # Errors
    /// As for all of these: [`Error::File`], by which [`Error::errno`] tells what POSIX would say.
    pub fn info(&self, path: impl AsRef<[u8]>) -> Pending<FileInfo> {
        let path = path.as_ref().to_vec();
        self.call(false, move |served| async move { served.info(&path).await })
    }

    /// Names of a directory, by their bytes, with what is told of them.
    ///
    /// # Errors
    /// It is no directory.
    pub fn list(&self, path: impl AsRef<[u8]>) -> Pending<Vec<(Vec<u8>, FileInfo)>> {
        let path = path.as_ref().to_vec();
        self.call(false, move |served| async move { served.list(&path).await })
    }

    /// Bytes of files, several at once; each for itself.
    ///
    /// # Errors
    /// Those of each.
    pub fn read_many(&self, wanted: Vec<Wanted>) -> Pending<Vec<Result<Vec<u8>, Error>>> {
        self.call(false, move |served| async move { Ok(served.read_many(wanted).await) })
    }

    /// Opens a file for [`FileSystem::read_at`]: its number, which takes a [`FileSystem::close_file`].
    ///
    /// # Errors
    /// There is no such file.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Pending<u64> {
        let path = path.as_ref().to_vec();
        self.call(false, move |served| async move { served.open_file(&path).await })
    }

    /// Bytes of an open file, as far as it goes.
    ///
    /// # Errors
    /// Too many members are lost.
    pub fn read_at(&self, open: u64, from: u64, to: u64) -> Pending<Vec<u8>> {
        self.call(false, move |served| async move { served.read_at(open, from, to).await })
    }

    /// Closes an open file.
    ///
    /// # Errors
    /// None that are known.
    pub fn close_file(&self, open: u64) -> Pending<()> {
        self.call(false, move |served| async move { served.close_file(open).await })
    }

    /// Begins a file that gets its name by [`FileSystem::finish`], when it is whole: its number. With `exclusive` it replaces
    /// nothing.
    ///
    /// # Errors
    /// The directory is not there; a directory has the name.
    pub fn begin(&self, path: impl AsRef<[u8]>, exclusive: bool) -> Pending<u64> {
        let path = path.as_ref().to_vec();
        self.call(true, move |served| async move { served.begin(&path, exclusive).await })
    }

    /// Writes bytes of a file that was begun.
    ///
    /// # Errors
    /// There is no room.
    pub fn write_at(&self, begun: u64, at: u64, bytes: Vec<u8>) -> Pending<()> {
        self.call(true, move |served| async move { served.write_at(begun, at, bytes).await })
    }

    /// A file that was begun is whole, and gets its name. Where this fails it goes.
    ///
    /// # Errors
    /// What the name says.
    pub fn finish(&self, begun: u64) -> Pending<()> {
        self.call(true, move |served| async move { served.finish(begun).await })
    }

    /// A file that was begun goes.
    ///
    /// # Errors
    /// None that are known.
    pub fn give_up(&self, begun: u64) -> Pending<()> {
        self.call(true, move |served| async move { served.give_up(begun).await })
    }

    /// A file of these bytes, in place of what has its name, or, with `exclusive`, of nothing.
    ///
    /// # Errors
    /// As [`FileSystem::begin`], [`FileSystem::write_at`] and [`FileSystem::finish`].
    pub fn write_whole(&self, path: impl AsRef<[u8]>, bytes: Vec<u8>, exclusive: bool) -> Pending<()> {
        let path = path.as_ref().to_vec();
        self.call(true, move |served| async move { served.write_whole(&path, bytes, exclusive).await })
    }

    /// Puts bytes behind the others of a file, wherever those of others end; a file that is not there is made.
    ///
    /// # Errors
    /// There is no room.
    pub fn append(&self, path: impl AsRef<[u8]>, bytes: Vec<u8>) -> Pending<()> {
        let path = path.as_ref().to_vec();
        self.call(true, move |served| async move { served.append(&path, bytes).await })
    }

    /// Copies a file within the file system, holes as holes.
    ///
    /// # Errors
    /// As a read, and as [`FileSystem::write_whole`].
    pub fn copy(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Pending<()> {
        let (from, to) = (from.as_ref().to_vec(), to.as_ref().to_vec());
        self.call(true, move |served| async move { served.copy(&from, &to).await })
    }

    /// Makes a directory; with `parents` those above it, too, and what is there already is no fault.
    ///
    /// # Errors
    /// Something has the name.
    pub fn mkdir(&self, path: impl AsRef<[u8]>, parents: bool) -> Pending<()> {
        let path = path.as_ref().to_vec();
        self.call(true, move |served| async move { served.mkdir(&path, parents).await })
    }

    /// Removes a name that is no directory's.
    ///
    /// # Errors
    /// It is not there.
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Pending<()> {
        let path = path.as_ref().to_vec();
        self.call(true, move |served| async move { served.unlink(&path).await })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// It is not empty.
    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> Pending<()> {
        let path = path.as_ref().to_vec();
        self.call(true, move |served| async move { served.rmdir(&path).await })
    }

    /// Removes a name, and, of a directory, all that is below it; symbolic links go themselves.
    ///
    /// # Errors
    /// The first thing that could not be removed; others are gone.
    pub fn remove_all(&self, path: impl AsRef<[u8]>) -> Pending<()> {
        let path = path.as_ref().to_vec();
        self.call(true, move |served| async move { served.remove_all(&path).await })
    }

    /// Gives what has a name another one, at once.
    ///
    /// # Errors
    /// A directory that is not empty has the other name.
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Pending<()> {
        let (from, to) = (from.as_ref().to_vec(), to.as_ref().to_vec());
        self.call(true, move |served| async move { served.rename(&from, &to).await })
    }

    /// A file was changed now.
    ///
    /// # Errors
    /// It is not there.
    pub fn touch(&self, path: impl AsRef<[u8]>) -> Pending<()> {
        let path = path.as_ref().to_vec();
        self.call(true, move |served| async move { served.touch(&path).await })
    }

    /// Bytes that fit, and that fit besides what is there, about.
    ///
    /// # Errors
    /// The pool does not answer.
    pub fn usage(&self) -> Pending<(u64, u64)> {
        self.call(false, move |served| async move { served.usage().await })
    }
}
