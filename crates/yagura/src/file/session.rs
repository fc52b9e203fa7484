//! A command that works on a file system as a client of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ::file::Files;
use ::file::meta::{Meta, StoreMeta};
use engine::task::LocalFuture;
use engine::time;
use kv::store::Store;

use super::{failure, reach};
use crate::cli::PoolAddress;
use crate::client::{self, Way};
use crate::exit::Failure;
use crate::race::{First, first_of};
use crate::{reactors, stop};

/// See the module.
pub struct Session {
    pub files: Rc<Files>,
    pub way: Rc<Way>,
    store: Store,
    /// What is to be done, before what the client had goes back, where a signal ends the work.
    ended: RefCell<Option<LocalFuture<'static, ()>>>,
    _alive: engine::task::Task<()>,
}

/// The status of a command that a signal has ended, as shells show it (that of SIGINT).
const INTERRUPTED: u8 = 128 + 2;
/// How long a command that was ended may take to tell what it has found.
const ENDED_WITHIN: Duration = Duration::from_secs(20);

impl Session {
    /// Works as a client of the file system until that is done, or a signal comes: what the client had is given back then, too.
    pub fn run(
        address: &PoolAddress,
        name: &str,
        work: impl AsyncFnOnce(&Session) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let letters = stop::letters(1, false)?;
        reactors::run_one(async {
            let session = Session::open(address, name).await?;
            let done = match first_of(work(&session), letters[0].recv()).await {
                First::A(done) => done,
                First::B(_) => {
                    let ended = session.ended.take();
                    if let Some(ended) = ended {
                        // Whoever ends it does not wait for a store that is away.
                        let _late = time::timeout(ENDED_WITHIN, ended).await;
                    }
                    let told = "ended by a signal: what is done is done, and the same command goes on with the rest";
                    Err(Failure::with_status(INTERRUPTED, told.into()))
                }
            };
            session.end(done).await
        })
    }

    /// A new client, with all members that answer.
    async fn open(address: &PoolAddress, name: &str) -> Result<Session, Failure> {
        let way = Rc::new(client::way(&address.host)?);
        let store = client::open(address).await?;
        let meta: Rc<dyn Meta> = Rc::new(StoreMeta::new(Rc::new(store.clone())));
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "a host".into());
        let files = Files::open(meta, name, host.trim()).await.map_err(failure)?;
        // What a member has that is said to be lost is read all the same, if it answers.
        files.roster().reach_lost();
        reach::connect_all(&way, &files).await;
        let _alive = files.keep_alive();
        Ok(Session { files, way, store, ended: RefCell::default(), _alive })
    }

    /// From now on this is done where a signal ends the work.
    pub fn when_ended(&self, ended: impl Future<Output = ()> + 'static) {
        *self.ended.borrow_mut() = Some(Box::pin(ended));
    }

    /// Gives back what the client had; what `done` says counts first.
    async fn end<T>(self, done: Result<T, Failure>) -> Result<T, Failure> {
        let closed = self.files.close().await.map_err(failure);
        crate::kv::settle(&self.store).await;
        done.and_then(|done| closed.map(|()| done))
    }
}
