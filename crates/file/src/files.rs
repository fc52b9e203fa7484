//! [`Files`]: names and contents as one: what a mount or a program works with.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use engine::sync::Semaphore;
use engine::task::LocalFuture;
use engine::{task, time};

use crate::check::clients::Collector;
use crate::data::{self, Auditor, Contents, Members, Shape, Space, Stripe};
use crate::dirty::BLOCK_BYTES;
use crate::error::Error;
use crate::fs::{FileSystem, Reap};
use crate::meta::Meta;
use crate::opened::{OpenFile, Shared};
use crate::ops::{Attributes, Change, New, Turns};
use crate::record::inode::Inode;
use crate::roster::Roster;
use crate::stored::{Stored, content_of};

/// Bytes that were written and are in no stripe yet, of all files of a client. Chosen: what keeps a fast network busy for some
/// tens of milliseconds, many times over.
pub const DIRTY_BYTES_MAX: usize = 256 << 20;
/// How often a client says that it lives.
const RENEWED_EVERY: Duration = Duration::from_secs(60);
/// How long bytes lie in memory that nobody flushes, at most twice. Chosen: what a crash of the host may lose of a file that is
/// never flushed; local file systems take 5 to 30 seconds.
const LYING_MAX: Duration = Duration::from_secs(5);

/// One client of a file system.
pub struct Files {
    shared: Rc<Shared>,
    roster: Rc<Roster>,
    /// Names of drafts that are neither finished nor given up, each with its directory.
    drafts: RefCell<BTreeSet<(u64, Vec<u8>)>>,
    /// Who changes names of drafts, by their directory.
    naming: Turns,
}

/// Frees stripes of inodes that go.
struct Freeing {
    contents: Rc<Contents>,
    shape: Shape,
}

impl Reap for Freeing {
    fn reap<'a>(&'a self, ino: u64, inode: &'a Inode) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let content = content_of(inode, self.shape)?;
            self.contents.remove(ino, &content).await
        })
    }
}

impl Files {
    /// A new client of the file system of this name. Its members can be reached when [`Members::connect`] has said so.
    ///
    /// # Errors
    /// There is no such file system; the store does not answer.
    pub async fn open(meta: Rc<dyn Meta>, name: &str, host: &str) -> Result<Rc<Files>, Error> {
        let sent = time::now();
        let names = Rc::new(FileSystem::open(Rc::clone(&meta), name, host).await?);
        let roster = Roster::open(Rc::clone(&meta), name).await?;
        let members = Rc::clone(roster.members());
        let shape = members.layout().shape;
        let space = Space::new(Rc::clone(&meta), Rc::clone(&members), names.client());
        space.renewed(sent);
        let contents = Contents::new(meta, Rc::clone(&members), space)?;
        names.set_reap(Rc::new(Freeing { contents: Rc::clone(&contents), shape }));
        let weak = Rc::downgrade(&roster);
        members.set_learn(Rc::new(move || {
            let roster = weak.upgrade();
            Box::pin(async move {
                let Some(roster) = roster else { return };
                if let Err(error) = roster.refresh().await {
                    tracing::warn!(%error, "members that have joined are not known");
                }
            })
        }));
        let room = Semaphore::new(DIRTY_BYTES_MAX / BLOCK_BYTES);
        let shared = Rc::new(Shared { names, contents, opened: RefCell::default(), room });
        Ok(Rc::new(Files { shared, roster, drafts: RefCell::default(), naming: Turns::default() }))
    }

    /// Names, attributes, links.
    pub fn names(&self) -> &Rc<FileSystem> {
        &self.shared.names
    }

    /// Where the bytes are.
    pub fn members(&self) -> &Rc<Members> {
        self.shared.contents.members()
    }

    /// Which members there are, and how that changes.
    pub fn roster(&self) -> &Rc<Roster> {
        &self.roster
    }

    /// All stripes of a file, each with the first place of the file that lies in it: where its bytes are.
    ///
    /// # Errors
    /// It is gone; what the store says.
    pub async fn stripes_of(&self, ino: u64) -> Result<Vec<(u64, Rc<Stripe>)>, Error> {
        let held = self.shared.names.inode(ino).await?.ok_or(Error::Stale)?;
        let inode = Stored::new(Rc::clone(&self.shared.names), ino, self.members().layout().shape, held)?;
        self.shared.contents.stripes_of(&inode).await
    }

    /// What has become of members since counts from now on, and what this client has of those that are to be empty goes back.
    pub async fn refresh_members(&self) -> Result<(), Error> {
        self.roster.refresh().await?;
        self.shared.contents.space().leave().await;
        self.shared.contents.space().tend().await;
        Ok(())
    }

    /// Contents of its files.
    pub(crate) fn contents(&self) -> &Rc<Contents> {
        &self.shared.contents
    }

    pub(crate) fn naming(&self) -> &Turns {
        &self.naming
    }

    pub(crate) fn drafts(&self) -> &RefCell<BTreeSet<(u64, Vec<u8>)>> {
        &self.drafts
    }

    /// Bytes of each member that hold columns, and those of them that are free, about: what it has of whole regions.
    pub async fn room(&self) -> Result<Vec<(u64, u64)>, Error> {
        self.shared.contents.space().room().await
    }

    /// Bytes that fit, and that fit besides what is there, about.
    pub async fn usage(&self) -> Result<(u64, u64), Error> {
        self.shared.contents.space().usage().await
    }

    /// The same, and collects clients that are no more.
    pub fn keep_alive(self: &Rc<Self>) -> task::Task<()> {
        let collector = Collector::new(
            Rc::clone(self.names()),
            Auditor::new(Rc::clone(self.names().meta()), Rc::clone(self.members())),
        );
        let alive = self.keep_itself_alive();
        task::spawn(async move {
            let _collecting = task::spawn(collector.run());
            alive.await;
        })
    }

    /// Says that this client lives, and has what nobody flushes go out, until it is dropped.
    pub fn keep_itself_alive(self: &Rc<Self>) -> task::Task<()> {
        let files = Rc::downgrade(self);
        task::spawn(async move {
            let mut renewed = time::now();
            let mut refreshing: Option<task::Task<()>> = None;
            loop {
                time::sleep(LYING_MAX).await;
                let Some(files) = files.upgrade() else { return };
                files.shared.dirty_files().iter().for_each(OpenFile::go_on);
                if renewed.elapsed() < RENEWED_EVERY {
                    continue;
                }
                let sent = time::now();
                renewed = sent;
                match files.shared.names.renew().await {
                    Ok(()) => files.shared.contents.space().renewed(sent),
                    Err(error) => tracing::warn!(%error, "this client could not say that it lives"),
                }
                // Beside it: who gives back much, and is late with saying that it lives, writes no more.
                if refreshing.as_ref().is_none_or(task::Task::is_finished) {
                    refreshing = Some(task::spawn(async move {
                        if let Err(error) = files.refresh_members().await {
                            tracing::warn!(%error, "what has become of members is not known");
                            files.shared.contents.space().tend().await;
                        }
                    }));
                }
            }
        })
    }

    /// Opens a file for reading and writing of its bytes: what others have written and closed before is seen. All that have it
    /// open here share what is not in stripes yet.
    ///
    /// # Errors
    /// It is no file; it is gone.
    pub async fn open_file(self: &Rc<Self>, ino: u64) -> Result<Rc<OpenFile>, Error> {
        self.open_as(ino, false).await
    }

    /// Makes a file of a free name, and opens it.
    ///
    /// # Errors
    /// The name is taken, and whatever making and opening say.
    pub async fn create_file(
        self: &Rc<Self>,
        dir: u64,
        name: &[u8],
        new: &New,
    ) -> Result<(Attributes, Rc<OpenFile>), Error> {
        let told = self.shared.names.make(dir, name, new).await?;
        let file = self.open_as(told.ino, true).await?;
        Ok((told, file))
    }

    async fn open_as(self: &Rc<Self>, ino: u64, is_new: bool) -> Result<Rc<OpenFile>, Error> {
        let held = self.shared.names.open_held(ino, is_new).await?;
        let known = self.shared.opened.borrow().get(&ino).cloned();
        if let Some(file) = known {
            file.add_handle();
            // What names count goes with the last handle.
            let released = self.shared.names.release(ino).await;
            return match released.and_then(|()| file.look_again(held)) {
                Ok(()) => Ok(file),
                Err(error) => {
                    self.close_file(&file).await?;
                    Err(error)
                }
            };
        }
        self.shared.contents.forget(ino);
        let file = match OpenFile::new(&self.shared, ino, held) {
            Ok(file) => Rc::new(file),
            Err(error) => {
                self.shared.names.release(ino).await?;
                return Err(error);
            }
        };
        self.shared.opened.borrow_mut().insert(ino, Rc::clone(&file));
        Ok(file)
    }

    /// Gives back what [`Files::open_file`] gave. With the last handle the file is closed.
    ///
    /// # Errors
    /// Bytes that could not be stored, also by the flushes before, are lost.
    pub async fn close_file(&self, file: &Rc<OpenFile>) -> Result<(), Error> {
        if !file.take_handle() {
            return Ok(());
        }
        // A fault of before was told, or is by this; what it left is tried once more before it is given up.
        let flushed = match file.flush().await {
            Err(Error::Stale) => Err(Error::Stale),
            Err(_) => file.flush().await,
            done => done,
        };
        let is_ours = self.shared.opened.borrow().get(&file.ino()).is_some_and(|known| Rc::ptr_eq(known, file));
        if !file.is_closed() || !is_ours {
            return flushed; // opened again meanwhile, or closed by another who has opened it meanwhile
        }
        self.shared.opened.borrow_mut().remove(&file.ino());
        flushed.and(self.shared.names.release(file.ino()).await)
    }

    /// What `stat` tells, with what this client has written and is not in stripes yet.
    pub async fn getattr(&self, ino: u64) -> Result<Attributes, Error> {
        self.shared.names.getattr(ino).await.map(|told| self.overlaid(told))
    }

    /// What a name leads to, likewise.
    pub async fn lookup(&self, dir: u64, name: &[u8]) -> Result<Attributes, Error> {
        self.shared.names.lookup(dir, name).await.map(|told| self.overlaid(told))
    }

    /// Gives an inode one more name.
    pub async fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Attributes, Error> {
        self.shared.names.link(ino, dir, name).await.map(|told| self.overlaid(told))
    }

    fn overlaid(&self, mut told: Attributes) -> Attributes {
        if let Some(file) = self.shared.opened.borrow().get(&told.ino) {
            file.overlay(&mut told);
        }
        told
    }

    /// Changes attributes, and the size of a file.
    pub async fn setattr(self: &Rc<Self>, ino: u64, change: &Change) -> Result<Attributes, Error> {
        let open = self.shared.opened.borrow().get(&ino).filter(|_| change.modified.is_some()).cloned();
        if let Some(file) = open {
            // What goes out later would bring its own time.
            file.flush().await?;
        }
        if let Some(size) = change.size {
            let file = self.open_file(ino).await?;
            let truncated = file.truncate(size).await;
            self.close_file(&file).await.and(truncated)?;
        }
        let told = self.shared.names.setattr(ino, &Change { size: None, ..change.clone() }).await?;
        Ok(self.overlaid(told))
    }

    /// Has everything go out that is dirty: the first fault.
    pub async fn flush_all(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for file in self.shared.dirty_files() {
            result = result.and(file.flush().await);
        }
        result
    }

    /// Ends this client: what is dirty goes out, and what it had is given back.
    pub async fn close(&self) -> Result<(), Error> {
        let result = self.flush_all().await;
        self.discard_drafts().await;
        self.shared.contents.space().settle().await;
        self.shared.contents.space().close().await;
        result.and(self.shared.names.close().await)
    }
}

impl From<&data::Content> for crate::record::inode::Content {
    fn from(content: &data::Content) -> Self {
        match content {
            data::Content::Inline(bytes) => Self::Inline(bytes.clone()),
            other => Self::Stripes(other.encode()),
        }
    }
}
