//! [`Served`]: what is done with a file system on its reactor thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::Buf;
use engine::sync::Semaphore;
use file::data::{Rope, SPAN_BYTES};
use file::meta::{Meta, StoreMeta};
use file::record::{Kind, Time};
use file::{Attributes, Change, Draft, Files, New, OpenFile, RenameFlags, Spot};
use kv::resp::execute::together;

use super::reach::{connect_all, host_name};
use super::told::{FileInfo, Owner, Wanted};
use crate::Store;
use crate::error::Error;
use crate::security::SecurityOptions;
use crate::way::Way;

/// Files that are read at once by one request. Chosen: what keeps a fast network busy.
const READ_AT_ONCE: usize = 32;
/// Bytes that are read at once. Derived: one record of the store maps them.
const PIECE_BYTES: u64 = SPAN_BYTES;
/// Bytes of a piece that is written. Derived: buffers of the engine go so far.
const BUF_BYTES: usize = 1 << 20;
const FILE_MODE: u16 = 0o644;
const DIRECTORY_MODE: u16 = 0o755;

/// A file that was begun.
struct Begun {
    draft: Rc<Draft>,
    name: Vec<u8>,
    exclusive: bool,
}

/// See the module.
pub(super) struct Served {
    files: Rc<Files>,
    owner: Owner,
    next: Cell<u64>,
    open: RefCell<BTreeMap<u64, Rc<OpenFile>>>,
    begun: RefCell<BTreeMap<u64, Begun>>,
    reads: Semaphore,
}

/// A number that nothing has.
fn unknown() -> Error {
    Error::Usage("the file was closed".to_owned())
}

impl Served {
    pub async fn open(store: Store, security: &SecurityOptions, name: &str, owner: Owner) -> Result<Rc<Served>, Error> {
        let way = Rc::new(Way::new(security)?);
        let meta: Rc<dyn Meta> = Rc::new(StoreMeta::new(Rc::new(store)));
        let files = Files::open(meta, name, &host_name()).await?;
        // It ends by itself with the files.
        files.keep_alive().detach();
        connect_all(&way, &files).await;
        Ok(Rc::new(Served {
            files,
            owner,
            next: Cell::new(1),
            open: RefCell::default(),
            begun: RefCell::default(),
            reads: Semaphore::new(READ_AT_ONCE),
        }))
    }

    pub async fn end(&self) -> Result<(), Error> {
        self.begun.borrow_mut().clear();
        self.open.borrow_mut().clear();
        Ok(self.files.close().await?)
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    async fn told(&self, told: Attributes, target: Option<Vec<u8>>) -> FileInfo {
        let Attributes { ino, kind, mode, uid, gid, links, size, modified, created, .. } = told;
        FileInfo { ino, kind, mode, uid, gid, links, size, modified, created, target }
    }

    /// Of a link: what it leads to, and where that is; of one that leads nowhere, itself.
    async fn follow(&self, path: &[u8], told: Attributes) -> Result<FileInfo, Error> {
        if told.kind != Kind::Symlink {
            return Ok(self.told(told, None).await);
        }
        let target = Some(self.files.names().readlink(told.ino).await?);
        match self.files.resolve(path, true).await {
            Ok(followed) => Ok(self.told(followed, target).await),
            Err(_) => Ok(self.told(told, target).await),
        }
    }

    pub async fn info(&self, path: &[u8]) -> Result<FileInfo, Error> {
        let told = self.files.resolve(path, false).await?;
        self.follow(path, told).await
    }

    pub async fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, FileInfo)>, Error> {
        let dir = self.files.resolve(path, true).await?;
        let entries = self.files.list(dir.ino).await?;
        let inodes: Vec<u64> = entries.iter().map(|entry| entry.ino).collect();
        let mut all = Vec::with_capacity(entries.len());
        for (entry, told) in entries.into_iter().zip(self.files.getattr_all(&inodes).await) {
            match told {
                Ok(told) => {
                    let below = [path, b"/", &entry.name].concat();
                    all.push((entry.name, self.follow(&below, told).await?));
                }
                // Removed since its name was read.
                Err(file::Error::Stale | file::Error::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    pub async fn read_many(&self, wanted: Vec<Wanted>) -> Vec<Result<Vec<u8>, Error>> {
        together(wanted.iter().map(async |wanted| {
            let _turn = self.reads.acquire(1).await;
            let told = self.files.resolve(&wanted.path, true).await?;
            let size = told.size;
            let place = |at: Option<i64>, absent: u64| match at {
                None => absent,
                Some(at @ 0..) => at.unsigned_abs().min(size),
                Some(at) => size.saturating_sub(at.unsigned_abs()),
            };
            let (from, to) = (place(wanted.from, 0), place(wanted.to, size));
            let file = self.files.open_file(told.ino).await?;
            let read = read(&file, from, to).await;
            self.files.close_file(&file).await?;
            read
        }))
        .await
    }

    pub async fn open_file(&self, path: &[u8]) -> Result<u64, Error> {
        let told = self.files.resolve(path, true).await?;
        let (file, number) = (self.files.open_file(told.ino).await?, self.number());
        self.open.borrow_mut().insert(number, file);
        Ok(number)
    }

    pub async fn read_at(&self, open: u64, from: u64, to: u64) -> Result<Vec<u8>, Error> {
        let file = self.open.borrow().get(&open).cloned().ok_or_else(unknown)?;
        read(&file, from, to).await
    }

    pub async fn close_file(&self, open: u64) -> Result<(), Error> {
        let file = self.open.borrow_mut().remove(&open);
        match file {
            Some(file) => Ok(self.files.close_file(&file).await?),
            None => Ok(()),
        }
    }

    fn new_file(&self) -> New {
        New::of(Kind::File, FILE_MODE, self.owner.uid, self.owner.gid)
    }

    async fn draft(&self, path: &[u8], exclusive: bool) -> Result<(Draft, Vec<u8>), Error> {
        let (dir, name) = self.files.resolve_parent(path).await?;
        // What would be refused at the end is refused before its bytes come.
        match self.files.lookup(dir, name).await {
            Ok(there) if there.kind == Kind::Directory => {
                return Err(file::Error::IsDirectory(name.escape_ascii().to_string()).into());
            }
            Ok(_) if exclusive => return Err(file::Error::Exists(name.escape_ascii().to_string()).into()),
            Ok(_) | Err(file::Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok((self.files.draft(dir, &self.new_file()).await?, name.to_vec()))
    }

    pub async fn begin(&self, path: &[u8], exclusive: bool) -> Result<u64, Error> {
        let ((draft, name), number) = (self.draft(path, exclusive).await?, self.number());
        self.begun.borrow_mut().insert(number, Begun { draft: Rc::new(draft), name, exclusive });
        Ok(number)
    }

    pub async fn write_at(&self, begun: u64, at: u64, bytes: Vec<u8>) -> Result<(), Error> {
        let draft = self.begun.borrow().get(&begun).map(|begun| Rc::clone(&begun.draft)).ok_or_else(unknown)?;
        Ok(write(draft.file(), at, &bytes).await?)
    }

    /// Takes a file that was begun, of which nothing is under way.
    fn take(&self, begun: u64) -> Result<(Draft, Vec<u8>, bool), Error> {
        let Begun { draft, name, exclusive } = self.begun.borrow_mut().remove(&begun).ok_or_else(unknown)?;
        let busy = |_| Error::Usage("the file is being written: wait for that first".to_owned());
        Ok((Rc::try_unwrap(draft).map_err(busy)?, name, exclusive))
    }

    pub async fn finish(&self, begun: u64) -> Result<(), Error> {
        let (draft, name, exclusive) = self.take(begun)?;
        name_it(draft, &name, exclusive).await
    }

    pub async fn give_up(&self, begun: u64) -> Result<(), Error> {
        let (draft, ..) = self.take(begun)?;
        draft.give_up().await;
        Ok(())
    }

    pub async fn write_whole(&self, path: &[u8], bytes: Vec<u8>, exclusive: bool) -> Result<(), Error> {
        let (draft, name) = self.draft(path, exclusive).await?;
        match write(draft.file(), 0, &bytes).await {
            Ok(()) => name_it(draft, &name, exclusive).await,
            Err(error) => {
                draft.give_up().await;
                Err(error.into())
            }
        }
    }

    pub async fn append(&self, path: &[u8], bytes: Vec<u8>) -> Result<(), Error> {
        let told = match self.files.resolve(path, true).await {
            Err(file::Error::NotFound(_)) => {
                let (dir, name) = self.files.resolve_parent(path).await?;
                self.files.names().create(dir, name, &self.new_file(), false).await?.0
            }
            told => told?,
        };
        let file = self.files.open_file(told.ino).await?;
        let mut appended = Ok(());
        for part in bytes.chunks(BUF_BYTES) {
            appended = file.append(part).await.map(drop);
            if appended.is_err() {
                break;
            }
        }
        Ok(self.files.close_file(&file).await.and(appended)?)
    }

    pub async fn copy(&self, from: &[u8], to: &[u8]) -> Result<(), Error> {
        let told = self.files.resolve(from, true).await?;
        let source = self.files.open_file(told.ino).await?;
        let copied = async {
            let (draft, name) = self.draft(to, false).await?;
            match copy(&source, told.size, draft.file()).await {
                Ok(()) => name_it(draft, &name, false).await,
                Err(error) => {
                    draft.give_up().await;
                    Err(error)
                }
            }
        };
        let copied = copied.await;
        self.files.close_file(&source).await?;
        copied
    }

    pub async fn mkdir(&self, path: &[u8], parents: bool) -> Result<(), Error> {
        let Owner { uid, gid } = self.owner;
        if parents {
            self.files.make_dirs(path, DIRECTORY_MODE, uid, gid).await?;
        } else {
            let (dir, name) = self.files.resolve_parent(path).await?;
            self.files.names().mkdir(dir, name, DIRECTORY_MODE, uid, gid).await?;
        }
        Ok(())
    }

    pub async fn unlink(&self, path: &[u8]) -> Result<(), Error> {
        let (dir, name) = self.files.resolve_parent(path).await?;
        Ok(self.files.names().unlink(dir, name).await?)
    }

    pub async fn rmdir(&self, path: &[u8]) -> Result<(), Error> {
        let (dir, name) = self.files.resolve_parent(path).await?;
        Ok(self.files.names().rmdir(dir, name).await?)
    }

    pub async fn remove_all(&self, path: &[u8]) -> Result<(), Error> {
        let (dir, name) = self.files.resolve_parent(path).await?;
        let told = self.files.lookup(dir, name).await?;
        if told.kind != Kind::Directory {
            return Ok(self.files.names().unlink(dir, name).await?);
        }
        let mut fault = None;
        self.files.remove_below(told, |_, error| fault = fault.take().or(Some(error))).await;
        match fault {
            Some(error) => Err(error.into()),
            None => Ok(self.files.names().rmdir(dir, name).await?),
        }
    }

    pub async fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Error> {
        let (from, to) = (self.files.resolve_parent(from).await?, self.files.resolve_parent(to).await?);
        Ok(self.files.names().rename(from, to, RenameFlags::default()).await?)
    }

    pub async fn touch(&self, path: &[u8]) -> Result<(), Error> {
        let told = self.files.resolve(path, true).await?;
        let now = Some(Time::now());
        self.files.setattr(told.ino, &Change { accessed: now, modified: now, ..Change::default() }).await?;
        Ok(())
    }

    pub async fn usage(&self) -> Result<(u64, u64), Error> {
        Ok(self.files.usage().await?)
    }
}

async fn name_it(draft: Draft, name: &[u8], exclusive: bool) -> Result<(), Error> {
    let flags = RenameFlags { no_replace: exclusive, exchange: false };
    draft.finish(name, &Change::default(), flags).await?;
    Ok(())
}

async fn read(file: &OpenFile, from: u64, to: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut at = from;
    while at < to {
        let length = PIECE_BYTES.min(to - at);
        let rope = file.read(at, length as usize).await?;
        rope.parts().iter().for_each(|part| bytes.extend_from_slice(part));
        at += length;
        if (rope.len() as u64) < length {
            break; // it goes no further
        }
    }
    Ok(bytes)
}

async fn write(file: &Rc<OpenFile>, at: u64, bytes: &[u8]) -> Result<(), file::Error> {
    let mut rope = Rope::default();
    bytes.chunks(BUF_BYTES).for_each(|part| rope.push(Buf::copy_from(part).freeze()));
    if rope.is_empty() { Ok(()) } else { file.write_through(at, rope).await }
}

async fn copy(from: &Rc<OpenFile>, size: u64, to: &Rc<OpenFile>) -> Result<(), Error> {
    let mut lying = from.lying(0..size).await?;
    let mut end = 0;
    while let Some(parts) = lying.next().await? {
        for part in parts.into_iter().filter(|part| part.spot != Spot::Hole) {
            // Small parts are not worth a write of their own; those of a stripe are no longer than that.
            let rope = from.read(part.range.start, (part.range.end - part.range.start) as usize).await?;
            to.write_through(part.range.start, rope).await?;
            end = part.range.end;
        }
    }
    if end < size {
        to.truncate(size).await?;
    }
    Ok(())
}
