//! The reactor's side: what is open, and each request carried out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::sync::MailReceiver;
use engine::task::{self, LocalFuture};
use file::{Error, Files, OpenFile};
use fuser::{INodeNo, Notifier};

/// What a request does on the reactor. It has its reply with it.
pub type Job = Box<dyn FnOnce(Rc<Served>) -> LocalFuture<'static, ()> + Send>;

/// What is served.
pub struct Served {
    /// The file system.
    pub files: Rc<Files>,
    notifier: Notifier,
    handles: RefCell<BTreeMap<u64, Rc<OpenFile>>>,
    next: Cell<u64>,
}

impl Served {
    pub fn new(files: Rc<Files>, notifier: Notifier) -> Rc<Served> {
        Rc::new(Served { files, notifier, handles: RefCell::default(), next: Cell::new(1) })
    }

    /// A number for a file that is open.
    pub fn hand_out(&self, file: Rc<OpenFile>) -> u64 {
        let handle = self.next.get();
        self.next.set(handle + 1);
        self.handles.borrow_mut().insert(handle, file);
        handle
    }

    /// Opens a file. What the kernel has known of its size and times goes: others may have changed them, and it reads no
    /// further than it thinks that the file goes. (Its pages go with every open by themselves.)
    pub async fn open(&self, ino: u64) -> Result<u64, Error> {
        let file = self.files.open_file(ino).await?;
        // A kernel that knows nothing of the inode says so, and that is as well.
        let _unknown = self.notifier.inval_inode(INodeNo(ino), -1, 0);
        Ok(self.hand_out(file))
    }

    /// The file of a number that was handed out.
    pub fn file(&self, handle: u64) -> Result<Rc<OpenFile>, Error> {
        self.handles.borrow().get(&handle).cloned().ok_or(Error::Stale)
    }

    /// Takes a number back.
    pub async fn take_back(&self, handle: u64) -> Result<(), Error> {
        let file = self.handles.borrow_mut().remove(&handle).ok_or(Error::Stale)?;
        self.files.close_file(&file).await
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
pub async fn serve(files: Rc<Files>, notifier: Notifier, letters: &MailReceiver<Job>) -> Result<(), Error> {
    let served = Served::new(files, notifier);
    while let Some(job) = letters.recv().await {
        task::spawn(job(Rc::clone(&served))).detach();
    }
    served.take_all_back().await
}
