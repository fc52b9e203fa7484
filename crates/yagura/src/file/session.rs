//! [`Session`]: the file systems that a verb uses, reached when they are first named, and left in good order: also where a signal
//! ends the verb, so that nothing half-done stays behind.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ::file::Files;
use ::file::meta::{Meta, StoreMeta};
use engine::task::{LocalFuture, Task};
use engine::time;
use indicatif::ProgressBar;
use kv::store::Store;

use super::fault::failure;
use super::place::Inside;
use super::reach;
use crate::cli::PoolAddress;
use crate::client;
use crate::client::Way;
use crate::exit::Failure;
use crate::race::{First, first_of};
use crate::{reactors, stop};

/// A file system, and the task that says that its client lives.
type Opened = (Rc<Files>, Task<()>);

/// Exit status after SIGINT, as a shell has it.
const INTERRUPTED: u8 = 130;
/// How long a verb that was ended may take to tell what it has found.
const ENDED_WITHIN: Duration = Duration::from_secs(20);

/// Which members of a file system a verb reaches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// None: it has nothing to do with bytes.
    Nobody,
    /// Those that are to be reached.
    Members,
    /// Also those that are said to be lost, if they answer: what they have is read all the same.
    LostToo,
}

/// See the module.
pub struct Session {
    way: Rc<Way>,
    store: Store,
    meta: Rc<dyn Meta>,
    opened: RefCell<BTreeMap<String, Opened>>,
    /// What a failure is said beside.
    bar: RefCell<ProgressBar>,
    failed: Cell<u64>,
    status: Cell<u8>,
    /// What is to be done, before what the client had goes back, where a signal ends the work.
    ended: RefCell<Option<LocalFuture<'static, ()>>>,
}

impl Session {
    /// Works until that is done, or a signal comes, of which `interrupted` is said: what the client had is given back then, too.
    pub fn run(
        address: &PoolAddress,
        interrupted: &str,
        work: impl AsyncFnOnce(&Session) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let letters = stop::letters(1, false)?;
        reactors::run_one(async {
            let session = Session::reach(address).await?;
            let done = match first_of(work(&session), letters[0].recv()).await {
                First::A(done) => done,
                First::B(_) => {
                    let ended = session.ended.take();
                    if let Some(ended) = ended {
                        // Whoever ends it does not wait for a store that is away.
                        let _late = time::timeout(ENDED_WITHIN, ended).await;
                    }
                    Err(Failure::with_status(INTERRUPTED, interrupted.to_owned()))
                }
            };
            let closed = session.close().await;
            done.and(closed)
        })
    }

    /// Reaches the pool.
    async fn reach(address: &PoolAddress) -> Result<Session, Failure> {
        let way = Rc::new(client::way(&address.host)?);
        let store = client::open(address).await?;
        let meta: Rc<dyn Meta> = Rc::new(StoreMeta::new(Rc::new(store.clone())));
        Ok(Session {
            way,
            store,
            meta,
            opened: RefCell::default(),
            bar: RefCell::new(ProgressBar::hidden()),
            failed: Cell::new(0),
            status: Cell::new(0),
            ended: RefCell::default(),
        })
    }

    /// How members are reached.
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// From now on this is done where a signal ends the work.
    pub fn when_ended(&self, ended: impl Future<Output = ()> + 'static) {
        *self.ended.borrow_mut() = Some(Box::pin(ended));
    }

    /// The work that was to be ended so is done.
    pub fn is_over(&self) {
        *self.ended.borrow_mut() = None;
    }

    /// The file system that a path is in.
    pub async fn files(&self, place: &Inside) -> Result<Rc<Files>, Failure> {
        self.files_of(&place.name).await
    }

    /// The file system of this name.
    pub async fn files_of(&self, name: &str) -> Result<Rc<Files>, Failure> {
        self.open(name, Reach::Members).await
    }

    /// The same, with these of its members, if it is the first time.
    pub async fn open(&self, name: &str, reach: Reach) -> Result<Rc<Files>, Failure> {
        let known = self.opened.borrow().get(name).map(|(files, _)| Rc::clone(files));
        if let Some(files) = known {
            return Ok(files);
        }
        let files = Files::open(Rc::clone(&self.meta), name, &reach::host_name()).await.map_err(failure)?;
        // What has nothing to do with bytes looks, and changes only what it is told to.
        let alive = if reach == Reach::Nobody { files.keep_itself_alive() } else { files.keep_alive() };
        self.opened.borrow_mut().insert(name.to_owned(), (Rc::clone(&files), alive));
        if reach == Reach::LostToo {
            files.roster().reach_lost();
        }
        if reach != Reach::Nobody {
            reach::connect_all(&self.way, &files).await;
        }
        Ok(files)
    }

    /// From now on failures are said beside this.
    pub fn show(&self, bar: &ProgressBar) {
        *self.bar.borrow_mut() = bar.clone();
    }

    /// Says what failed; the rest goes on.
    pub fn fail(&self, failure: &Failure) {
        self.failed.set(self.failed.get() + 1);
        if self.status.get() == 0 {
            self.status.set(failure.status());
        }
        self.bar.borrow().suspend(|| eprintln!("yagura: {}", failure.sentence()));
    }

    /// How often something has failed.
    pub fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// The end of a verb that went on behind failures.
    pub fn outcome(&self) -> Result<(), Failure> {
        match self.failed.get() {
            0 => Ok(()),
            failed => Err(Failure::with_status(self.status.get(), format!("{failed} failed, as said above"))),
        }
    }

    /// Does something with each of these: a failure is said, and the others are done. Of one alone it is the verb's.
    pub async fn each<T>(
        &self,
        all: &[T],
        mut work: impl AsyncFnMut(&T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let [only] = all {
            work(only).await?;
            return self.outcome();
        }
        for one in all {
            if let Err(failure) = work(one).await {
                self.fail(&failure);
            }
        }
        self.outcome()
    }

    /// Leaves all file systems in good order.
    async fn close(&self) -> Result<(), Failure> {
        let opened = std::mem::take(&mut *self.opened.borrow_mut());
        let mut result = Ok(());
        for (name, (files, _alive)) in opened {
            result = result.and(files.close().await.map_err(|error| failure(error).during(name)));
        }
        crate::kv::settle(&self.store).await;
        result
    }
}
