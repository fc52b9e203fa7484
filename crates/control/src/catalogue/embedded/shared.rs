//! What an open file has in common: the database, the leases' clock, and how work gets to threads that may block.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redb::Database;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::leases::Leases;
use super::medium::{Open, Opening};
use super::tables::{self, Bounds, Fault, Write};
use crate::catalogue::error::Error;

/// Threads that read at once. Chosen: what is asked for beyond that waits in its future, in order.
const READERS_MAX: usize = 8;

/// What a system says where a file can't grow.
const NO_ROOM: [ErrorKind; 3] = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];

/// Whether work may have changed something when no answer comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
}

/// Begins the time of leases that a file has and that are not known yet.
fn find_leases(leases: &mut Leases, opened: &tables::Opened) {
    for (id, seconds) in &opened.leases {
        leases.find(*id, Duration::from_secs(*seconds), Instant::now());
    }
}

/// An open file.
pub struct Shared {
    /// None when the catalogue was closed, or could not be opened anew. It is read within a turn, so that it is free when all turns
    /// have ended.
    database: RwLock<Option<Database>>,
    open: Open,
    /// The medium has failed since it was opened: it is opened anew before anything else is done.
    has_failed: AtomicBool,
    pub place: String,
    pub identity: u128,
    pub bounds: Bounds,
    pub time_limit: Duration,
    /// The revision that was committed last.
    pub committed: watch::Sender<u64>,
    /// A lease was granted.
    pub granted: Arc<Notify>,
    leases: Mutex<Leases>,
    readers: Arc<Semaphore>,
    writer: Arc<Semaphore>,
}

impl Shared {
    pub fn new(
        database: Database,
        open: Open,
        place: String,
        opened: &tables::Opened,
        bounds: Bounds,
        time_limit: Duration,
    ) -> Shared {
        let mut leases = Leases::default();
        find_leases(&mut leases, opened);
        Shared {
            database: RwLock::new(Some(database)),
            open,
            has_failed: AtomicBool::new(false),
            place,
            identity: opened.identity,
            bounds,
            time_limit,
            committed: watch::Sender::new(opened.revision),
            granted: Arc::new(Notify::new()),
            leases: Mutex::new(leases),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            writer: Arc::new(Semaphore::new(1)),
        }
    }

    pub fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on a thread that may block, in turn, within the time limit.
    pub async fn run<T, W>(self: &Arc<Shared>, kind: Kind, work: W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: FnOnce(&Shared) -> Result<T, Error> + Send + 'static,
    {
        let until = Instant::now() + self.time_limit;
        let permit = self.turn(kind, until).await?;
        let shared = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _turn = permit;
            work(&shared)
        });
        match timeout_at(until, task).await {
            Ok(Ok(done)) => done,
            Ok(Err(panicked)) => Err(self.unanswered(kind, panicked.to_string())),
            Err(_) => Err(self.unanswered(kind, format!("it takes longer than {:?}", self.time_limit))),
        }
    }

    async fn turn(&self, kind: Kind, until: Instant) -> Result<OwnedSemaphorePermit, Error> {
        let turns = if kind == Kind::Read { &self.readers } else { &self.writer };
        match timeout_at(until, turns.clone().acquire_owned()).await {
            Ok(permit) => permit.map_err(|_| Error::Closed),
            Err(_) => Err(self.unanswered(Kind::Read, "others are in turn for longer than the time limit".into())),
        }
    }

    fn unanswered(&self, kind: Kind, why: String) -> Error {
        match kind {
            Kind::Read => Error::NoAnswer { place: self.place.clone(), why },
            Kind::Write => Error::OutcomeUnknown { why },
        }
    }

    /// Waits until nobody is at work any more, lets nobody begin, and closes the file.
    pub async fn finish(self: Arc<Shared>) {
        // Nobody closes the semaphores but this, so that the turns come; if not, there is nothing to wait for.
        let _readers = self.readers.acquire_many(READERS_MAX as u32).await;
        let _writer = self.writer.acquire().await;
        self.readers.close();
        self.writer.close();
        let database = self.database.write().unwrap_or_else(PoisonError::into_inner).take();
        // What is closed is written out. A panic there leaves what a crash leaves.
        let _closed = tokio::task::spawn_blocking(move || drop(database)).await;
    }

    /// Opens the medium after it has failed. What it has is what counts, also of changes whose outcome was not known.
    fn open_anew(&self) -> Result<(), Error> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if !self.has_failed.load(Ordering::SeqCst) {
            // Another turn has done it.
            return Ok(());
        }
        drop(database.take());
        let opened = (self.open)(Opening::Anew).map_err(|fault| self.fault(fault.into()))?;
        let found = tables::look(&opened).map_err(|fault| self.fault(fault))?;
        if found.identity != self.identity {
            let what = format!("another catalogue, {}, in the place of {}", found.identity, self.identity);
            return Err(Error::Foreign { place: self.place.clone(), what });
        }
        *database = Some(opened);
        self.has_failed.store(false, Ordering::SeqCst);
        find_leases(&mut self.leases(), &found);
        self.granted.notify_one();
        self.publish(found.revision);
        tracing::warn!(place = self.place, "the catalogue's medium had failed, and was opened anew");
        Ok(())
    }

    /// Wakes watchers if that revision is new.
    fn publish(&self, revision: u64) {
        self.committed.send_if_modified(|newest| std::mem::replace(newest, revision.max(*newest)) < revision);
    }

    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, Error>) -> Result<T, Error> {
        if self.has_failed.load(Ordering::SeqCst) {
            self.open_anew()?;
        }
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        work(database.as_ref().ok_or(Error::Closed)?)
    }

    /// One redb transaction that writes: `work` tells whether it is to be committed.
    pub fn write<T>(&self, work: impl FnOnce(&mut Write) -> Result<Result<T, Error>, Fault>) -> Result<T, Error> {
        self.with(|database| {
            let transaction = database.begin_write().map_err(|fault| self.fault(fault.into()))?;
            let (done, revision) = {
                let mut write = Write::open(&transaction).map_err(|fault| self.fault(fault))?;
                let done = work(&mut write).map_err(|fault| self.fault(fault))??;
                (done, write.revision().map_err(|fault| self.fault(fault))?)
            };
            // From here on the medium may have taken it, whatever it says.
            transaction.commit().map_err(|fault| {
                self.has_failed.store(true, Ordering::SeqCst);
                Error::OutcomeUnknown { why: format!("{}: {fault}", self.place) }
            })?;
            self.publish(revision);
            Ok(done)
        })
    }

    /// Ends a lease whose time is over, or that was revoked: when it is stable that its keys are gone, the lease is forgotten. Of a
    /// lease that the file does not have nothing is written.
    pub fn end_lease(&self, id: u64) -> Result<(), Error> {
        if self.read(|read| tables::has_lease(read, id).map(Ok))? {
            self.write(|write| write.end_lease(id, self.bounds).map(|_| Ok(())))?;
        }
        self.leases().forget(id);
        Ok(())
    }

    /// One redb transaction that reads.
    pub fn read<T>(
        &self,
        work: impl FnOnce(&redb::ReadTransaction) -> Result<Result<T, Error>, Fault>,
    ) -> Result<T, Error> {
        self.with(|database| tables::read(database).and_then(|read| work(&read)).map_err(|fault| self.fault(fault))?)
    }

    fn fault(&self, fault: Fault) -> Error {
        // Of a kind that passes or not: to open it anew costs little, and nobody meets what was left of the failure.
        self.has_failed.store(true, Ordering::SeqCst);
        match fault {
            Fault::Io(io) if NO_ROOM.contains(&io.kind()) => {
                Error::Full { place: self.place.clone(), why: io.to_string() }
            }
            fault => Error::Storage { place: self.place.clone(), source: Box::new(fault) },
        }
    }
}
