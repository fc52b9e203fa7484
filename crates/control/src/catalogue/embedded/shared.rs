//! What an open file has in common: the database, the leases' clock, and how work gets to threads that may block.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redb::Database;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::leases::Leases;
use super::tables::{self, Bounds, Fault, Write};
use crate::catalogue::error::Error;

/// Threads that read at once. Chosen: what is asked for beyond that waits in its future, in order.
const READERS_MAX: usize = 8;

/// Whether work may have changed something when no answer comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
}

/// An open file.
pub struct Shared {
    /// None when the catalogue was closed. It is read within a turn, so that it is free when all turns have ended.
    database: RwLock<Option<Database>>,
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
        place: String,
        opened: &tables::Opened,
        bounds: Bounds,
        time_limit: Duration,
    ) -> Shared {
        let mut leases = Leases::default();
        for (id, seconds) in &opened.leases {
            leases.begin(*id, Duration::from_secs(*seconds), Instant::now());
        }
        Shared {
            database: RwLock::new(Some(database)),
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

    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, Error>) -> Result<T, Error> {
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
            let why = |fault: redb::CommitError| Error::OutcomeUnknown { why: format!("{}: {fault}", self.place) };
            transaction.commit().map_err(why)?;
            self.committed.send_if_modified(|newest| std::mem::replace(newest, revision.max(*newest)) < revision);
            Ok(done)
        })
    }

    /// One redb transaction that reads.
    pub fn read<T>(
        &self,
        work: impl FnOnce(&redb::ReadTransaction) -> Result<Result<T, Error>, Fault>,
    ) -> Result<T, Error> {
        self.with(|database| tables::read(database).and_then(|read| work(&read)).map_err(|fault| self.fault(fault))?)
    }

    fn fault(&self, fault: Fault) -> Error {
        match fault {
            Fault::Io(io) if io.kind() == ErrorKind::StorageFull => {
                Error::Full { place: self.place.clone(), why: io.to_string() }
            }
            fault => Error::Storage { place: self.place.clone(), source: Box::new(fault) },
        }
    }
}
