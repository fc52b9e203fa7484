//! The reactor's side: what is open, and each request carried out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use engine::sync::{MailReceiver, Semaphore, mailbox};
use engine::task::{self, LocalFuture};
use file::{DirEntry, Error, Files, Handle, LockRequest, OpenFile};
use fuser::{FopenFlags, INodeNo, Notifier};

use crate::figures::FuseMetrics;
use crate::lockers::Lockers;
use crate::told::Allocation;

/// What a request does on the reactor. It has its reply with it.
pub type Job = Box<dyn FnOnce(Rc<Served>) -> LocalFuture<'static, ()> + Send>;

/// Threads by which the kernel forgets pages, at most: each waits for as long as the kernel does. Chosen: who takes many locks of
/// many files at once is not held up by one that is slow.
const FORGETTING_MAX: usize = 8;

/// Names that are read at a time for one request.
const NAMES_AT_ONCE: usize = 64;

/// A file that is open, and what this one that has it open was told.
#[derive(Clone)]
struct Opened {
    file: Rc<OpenFile>,
    told: Rc<Handle>,
    /// It was opened to go by none of the kernel's pages.
    is_past_pages: bool,
    /// Where a write past them was refused, which is told by the next one.
    refused: Rc<Cell<Option<u64>>>,
}

/// What a write is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// At its place. Its caller is told how much of it is written.
    Place,
    /// At the file's end.
    Append,
    /// Pages that a mapping has changed: the kernel looks at errors, and not at how much is written.
    Pages,
}

/// A write.
pub struct Write<'a> {
    /// Its place, as the kernel has it.
    pub at: u64,
    pub bytes: &'a [u8],
    pub way: Way,
    /// Past the kernel's pages, as its user wishes.
    pub is_direct: bool,
    /// It is stable when it is told.
    pub is_stable: bool,
    /// What a program gains by its owner goes.
    pub drops_rights: bool,
}

/// What is served.
pub struct Served {
    /// The file system.
    pub files: Rc<Files>,
    pub metrics: FuseMetrics,
    notifier: Notifier,
    handles: RefCell<BTreeMap<u64, Opened>>,
    lockers: RefCell<Lockers>,
    next: Cell<u64>,
    forgetting: Semaphore,
    /// The same of files whose locks were lost: they do not wait for those.
    losing: Semaphore,
}

impl Served {
    pub fn new(files: Rc<Files>, notifier: Notifier, metrics: FuseMetrics) -> Rc<Served> {
        let (handles, lockers) = (RefCell::default(), RefCell::default());
        let [forgetting, losing] = [0; 2].map(|_| Semaphore::new(FORGETTING_MAX));
        Rc::new(Served { files, metrics, notifier, handles, lockers, next: Cell::new(1), forgetting, losing })
    }

    /// A number for a file that is open.
    pub fn hand_out(&self, file: Rc<OpenFile>, how: FopenFlags) -> u64 {
        let handle = self.next.get();
        self.next.set(handle + 1);
        let told = Rc::new(file.handle());
        let is_past_pages = how.contains(FopenFlags::FOPEN_DIRECT_IO);
        self.handles.borrow_mut().insert(handle, Opened { file, told, is_past_pages, refused: Rc::default() });
        handle
    }

    /// Opens a file. What the kernel has known of its size and times goes: others may have changed them, and it reads no
    /// further than it thinks that the file goes. (Its pages go with every open by themselves.)
    pub async fn open(&self, ino: u64, how: FopenFlags) -> Result<u64, Error> {
        let file = self.files.open_file(ino).await?;
        // A kernel that knows nothing of the inode says so, and that is as well.
        let _unknown = self.notifier.inval_inode(INodeNo(ino), -1, 0);
        Ok(self.hand_out(file, how))
    }

    /// The file of a number that was handed out.
    pub fn file(&self, handle: u64) -> Result<Rc<OpenFile>, Error> {
        self.opened(handle).map(|opened| opened.file)
    }

    fn opened(&self, handle: u64) -> Result<Opened, Error> {
        self.handles.borrow().get(&handle).cloned().ok_or(Error::Stale)
    }

    /// What was written before is stable, by whatever handle; also what was dropped since this one was told.
    pub async fn flush(&self, handle: u64) -> Result<(), Error> {
        let Opened { file, told, .. } = self.opened(handle)?;
        told.flush(&file).await
    }

    /// Writes bytes at a place, or, where it appends, at the file's end; returns how many.
    pub async fn write(&self, handle: u64, write: &Write<'_>) -> Result<usize, Error> {
        let opened = self.opened(handle)?;
        let written = self.write_to(&opened, write).await;
        let refused = written.is_err().then_some(write.at);
        // The kernel would cut the file to the length that it has seen last, and with that what others have written since. Told
        // that nothing was written, it writes once more by way of its pages, and is told of the fault then.
        if write.is_direct && write.way != Way::Pages && refused.is_some() && opened.refused.take() != refused {
            opened.refused.set(refused);
            return Ok(0);
        }
        opened.refused.set(None);
        written
    }

    async fn write_to(&self, opened: &Opened, write: &Write<'_>) -> Result<usize, Error> {
        let (file, bytes) = (&opened.file, write.bytes);
        if write.drops_rights {
            self.files.names().drop_rights(file.ino()).await?;
        }
        match write.way {
            // Where it ends is what the file says, and not what the kernel has seen last.
            Way::Append => file.append(bytes).await.map(|_at| bytes.len()),
            Way::Place => {
                let written = file.write(write.at, bytes).await?;
                // Of what was opened to append the kernel asks for nothing behind a write, also where it places by now.
                if write.is_stable && opened.is_past_pages {
                    file.flush().await?;
                }
                Ok(written)
            }
            Way::Pages => file.write_all(write.at, bytes).await.map(|()| bytes.len()),
        }
    }

    /// Tells names of a directory from a cursor on until `add` says that there is no room for more.
    pub async fn tell_names(&self, dir: u64, cursor: u64, mut add: impl FnMut(&DirEntry) -> bool) -> Result<(), Error> {
        let mut from = cursor;
        loop {
            let names = match self.files.names().readdir(dir, from, NAMES_AT_ONCE).await {
                // What is read already is told first; the next request meets the error again.
                Err(_) if from != cursor => return Ok(()),
                names => names?,
            };
            let Some(last) = names.last() else { return Ok(()) };
            from = last.cursor;
            if names.iter().any(&mut add) {
                return Ok(());
            }
        }
    }

    /// Makes room for a range, as far as that can be done: none is set aside, but there has to be so much now. What is there is
    /// cleared, or stays; the file gets that long, or not.
    pub async fn allocate(&self, handle: u64, range: Range<u64>, how: Allocation) -> Result<(), Error> {
        let Allocation { clears, grows } = how;
        let file = self.file(handle)?;
        if !clears {
            let size = self.files.getattr(file.ino()).await?.size;
            if self.files.usage_at(file.ino()).await?.free < range.end.saturating_sub(size.max(range.start)) {
                return Err(Error::NoSpace("less is free than is to be set aside".to_owned()));
            }
        }
        // First: where it can't be as long, what is there stays.
        if grows {
            file.grow(range.end).await?;
        }
        if clears { file.punch(range.start, range.end).await } else { Ok(()) }
    }

    /// Where the next data is, or the next hole. What a mapping has changed is data.
    pub async fn seek(&self, handle: u64, at: u64, wants_data: bool) -> Result<Option<u64>, Error> {
        let file = self.file(handle)?;
        self.drop_pages(file.ino(), &self.forgetting).await?;
        file.seek(at, wants_data).await
    }

    /// Takes a lock by a handle. What the kernel has of the file is of before, and goes.
    pub async fn lock(
        &self,
        handle: u64,
        wanted: &LockRequest,
        goes_on: Option<&dyn Fn() -> bool>,
    ) -> Result<(), Error> {
        let file = self.file(handle)?;
        // First: from now on there may be one.
        self.lockers.borrow_mut().ask(file.ino(), wanted.owner, handle);
        // What a mapping has changed has to be out before another may have a lock, and it may be less than what there was.
        self.drop_pages(file.ino(), &self.forgetting).await?;
        self.files.lock(&file, wanted, goes_on).await?;
        // Again: while it waited the owner may have given back all that it had.
        self.lockers.borrow_mut().ask(file.ino(), wanted.owner, handle);
        self.drop_pages(file.ino(), &self.forgetting).await
    }

    /// Gives a range back, after what was written under its lock is stable, also by a mapping.
    pub async fn unlock(&self, handle: u64, freed: &LockRequest) -> Result<(), Error> {
        let file = self.file(handle)?;
        if self.files.has_locked(&file, freed.owner) {
            self.drop_pages(file.ino(), &self.forgetting).await?;
        }
        self.files.unlock(&file, freed).await
    }

    /// Each close of a descriptor: with it go the locks by `fcntl` of the process (its table of files is the owner).
    pub async fn leave(&self, handle: u64, owner: u64) -> Result<(), Error> {
        let Opened { file, told, .. } = self.opened(handle)?;
        // First: what it gets from now on is not of before.
        self.lockers.borrow_mut().flush(file.ino(), owner);
        let left = self.files.leave(&file, owner).await;
        left.and(told.told(&file))
    }

    /// Has the kernel write out what a mapping has changed of a file, and forget its bytes and size. In a thread of its own, as the
    /// kernel waits there for pages that it reads or writes just now, by requests that this one has to answer.
    async fn drop_pages(&self, ino: u64, few: &Semaphore) -> Result<(), Error> {
        let _one = few.acquire(1).await;
        let (sender, done) = mailbox::<()>(1);
        let notifier = self.notifier.clone();
        // tidy: thread: it waits in the kernel for what this thread does.
        let spawned = std::thread::Builder::new().name("fuse-forget".into()).spawn(move || {
            // A kernel that knows nothing of the inode says so, and that is as well.
            let _unknown = notifier.inval_inode(INodeNo(ino), 0, 0);
            drop(sender);
        });
        spawned.map_err(|error| Error::Unavailable(format!("no thread by which the kernel forgets pages: {error}")))?;
        done.recv().await;
        Ok(())
    }

    /// Takes a number back.
    pub async fn take_back(&self, handle: u64) -> Result<(), Error> {
        let Opened { file, .. } = self.handles.borrow_mut().remove(&handle).ok_or(Error::Stale)?;
        let owners = self.lockers.borrow_mut().release(file.ino(), handle);
        let mut left = Ok(());
        // Those of this open file; and a process that has locked by it, and by none since, is gone.
        for owner in owners {
            let is_back = || self.lockers.borrow().knows(file.ino(), owner);
            left = left.and(self.files.leave_unless(&file, owner, &is_back).await);
        }
        let closed = self.files.close_file(&file).await;
        left.and(closed)
    }

    /// Takes all numbers back, at the end: the first fault.
    async fn take_all_back(&self) -> Result<(), Error> {
        let left: Vec<u64> = self.handles.borrow().keys().copied().collect();
        let mut result = Ok(());
        for handle in left {
            result = result.and(self.take_back(handle).await);
        }
        result
    }
}

/// Carries requests out until there are no more to come: the kernel bounds how many are under way.
///
/// # Errors
/// Bytes of files that were open to the end are lost.
pub async fn serve(
    files: Rc<Files>,
    notifier: Notifier,
    metrics: FuseMetrics,
    letters: &MailReceiver<Job>,
) -> Result<(), Error> {
    let served = Served::new(files, notifier, metrics);
    let losses = Rc::clone(&served);
    // What it has of a file whose locks are lost it would go on to give out.
    let _losses = task::spawn(async move {
        loop {
            let ino = losses.files.next_lost().await;
            let losses = Rc::clone(&losses);
            // The kernel may keep one waiting; others are as urgent.
            let drop_pages = async move {
                if let Err(error) = losses.drop_pages(ino, &losses.losing).await {
                    tracing::warn!(%error, ino, "the kernel keeps pages of a file whose locks are lost");
                }
            };
            task::spawn(drop_pages).detach();
        }
    });
    while let Some(job) = letters.recv().await {
        task::spawn(job(Rc::clone(&served))).detach();
    }
    served.take_all_back().await
}
