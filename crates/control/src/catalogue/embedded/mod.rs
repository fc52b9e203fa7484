//! The engine for one machine: a file, by redb, in this process.
//!
//! redb makes a transaction durable or leaves no trace of it; what a transaction writes is in `tables`. One process has the file
//! at a time. The disk is waited for on threads that may block, never on a thread of the runtime.

mod expiry;
mod leases;
mod medium;
mod owner;
mod shared;
mod tables;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redb::{DatabaseError, StorageBackend};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::medium::{Open, Opening};
use self::shared::{Kind, Shared};
use self::tables::Bounds;
use self::watch::HistoryWatch;
use super::contract::{Answer, Catalogue, Watch};
use super::error::Error;
use super::types::{Change, Key, Lease, LeaseId, Outcome, Page, Prefix, Range, Reading, Revision, Transaction, Ttl};

/// Leases at a time. Chosen: several for each host of a large site; all are looked at when one ends.
const LEASES_MAX: usize = 10_000;

/// How a file is kept.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Who to ask while the file is open here: a name and an address, for the message that a second process gets.
    pub owner: String,
    /// Changes that history holds before the oldest revisions are forgotten.
    pub history_changes: u64,
    /// Bytes that history holds before the oldest revisions are forgotten.
    pub history_bytes: u64,
    /// How long an operation may take.
    pub time_limit: Duration,
}

impl Default for EmbeddedOptions {
    /// A history of 10,000 changes or 64 MiB, operations within 20 seconds.
    fn default() -> EmbeddedOptions {
        EmbeddedOptions {
            owner: "Yagura's control plane".into(),
            history_changes: 10_000,
            history_bytes: 64 << 20,
            time_limit: Duration::from_secs(20),
        }
    }
}

/// A catalogue in a file.
pub struct Embedded {
    shared: Arc<Shared>,
    expiry: JoinHandle<()>,
}

impl Embedded {
    /// Opens the file, or makes it. Errors: [`Error::InUse`] where another process has it, [`Error::Foreign`] where it is no
    /// catalogue.
    pub async fn open(path: impl Into<PathBuf>, options: EmbeddedOptions) -> Result<Embedded, Error> {
        let path: PathBuf = path.into();
        blocking(move || {
            let shared = begin(medium::file(&path), &path, &options)?;
            if let Err(fault) = owner::note(&path, &options.owner) {
                tracing::warn!(%fault, "who has the catalogue could not be noted beside its file");
            }
            Ok(shared)
        })
        .await
    }

    /// Opens a catalogue on a medium of the caller's: what fails and stops in tests, say. It is the caller who keeps others out.
    pub async fn on(medium: impl StorageBackend, options: EmbeddedOptions) -> Result<Embedded, Error> {
        let open = medium::of_the_caller(medium);
        blocking(move || begin(open, Path::new("a medium of the caller"), &options)).await
    }

    /// Closes the file when what was begun has ended; watchers get [`Error::Closed`].
    pub async fn close(self) {
        self.shared.clone().finish().await;
    }

    async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.shared.run(Kind::Write, work).await
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

async fn blocking(open: impl FnOnce() -> Result<Shared, Error> + Send + 'static) -> Result<Embedded, Error> {
    let opened = tokio::task::spawn_blocking(open).await;
    let shared = Arc::new(opened.map_err(|fault| Error::Options { what: fault.to_string() })??);
    let expiry = tokio::spawn(expiry::run(Arc::downgrade(&shared), shared.granted.clone()));
    Ok(Embedded { shared, expiry })
}

fn begin(open: Open, path: &Path, options: &EmbeddedOptions) -> Result<Shared, Error> {
    let place = path.display().to_string();
    let storage = |fault: redb::Error| Error::Storage { place: place.clone(), source: Box::new(fault) };
    let database = match open(Opening::First) {
        Ok(database) => database,
        Err(DatabaseError::DatabaseAlreadyOpen) => {
            return Err(Error::InUse { path: place, owner: owner::read(path) });
        }
        Err(fault) => return Err(storage(fault.into())),
    };
    let identity = uuid::Uuid::new_v4().as_u128();
    let opened = tables::open(&database, identity).map_err(storage)?;
    let opened = opened.map_err(|what| Error::Foreign { place: place.clone(), what })?;
    let bounds = Bounds { changes: options.history_changes, bytes: options.history_bytes };
    Ok(Shared::new(database, open, place, &opened, bounds, options.time_limit))
}

/// The lease that a change binds a key to and that has ended.
fn ended_lease(shared: &Shared, transaction: &Transaction) -> Option<LeaseId> {
    let (leases, now) = (shared.leases(), Instant::now());
    transaction.changes.iter().find_map(|change| match change {
        Change::Put { lease: Some(id), .. } if !leases.is_alive(id.0, now) => Some(*id),
        _ => None,
    })
}

fn commit(shared: &Shared, transaction: &Transaction) -> Result<Outcome, Error> {
    let outcome = shared.write(|write| {
        if let Some(missed) = write.missed(&transaction.conditions)? {
            return Ok(Ok(Outcome::Missed(missed)));
        }
        // Within the transaction: who ends the lease comes before, and the lease is known as ended, or after, and finds its keys.
        if let Some(id) = ended_lease(shared, transaction) {
            return Ok(Err(Error::LeaseGone { id }));
        }
        let revision = write.apply(&transaction.changes, shared.bounds)?;
        // Looked at as it would be, and not committed then.
        for id in transaction.leases() {
            if write.has_full_lease(id.0)? {
                return Ok(Err(Error::LeaseFull { id }));
            }
        }
        Ok(Ok(Outcome::Committed(revision)))
    });
    if let Err(Error::LeaseGone { id }) = &outcome {
        shared.end_lease(id.0)?;
    }
    outcome
}

fn grant(shared: &Shared, ttl: Ttl) -> Result<Lease, Error> {
    if shared.leases().count() >= LEASES_MAX {
        return Err(Error::Full { place: shared.place.clone(), why: format!("it has {LEASES_MAX} leases") });
    }
    let ttl = ttl.as_duration();
    let id = shared.write(|write| write.grant(ttl.as_secs()).map(Ok))?;
    shared.leases().begin(id, ttl, Instant::now());
    shared.granted.notify_one();
    Ok(Lease { id: LeaseId(id), ttl })
}

impl Catalogue for Embedded {
    fn identity(&self) -> Answer<'_, String> {
        Box::pin(async { Ok(format!("redb {}", uuid::Uuid::from_u128(self.shared.identity))) })
    }

    fn get(&self, key: Key) -> Answer<'_, Reading> {
        Box::pin(self.shared.run(Kind::Read, move |shared| shared.read(|read| tables::get(read, &key).map(Ok))))
    }

    fn range(&self, range: Range) -> Answer<'_, Page> {
        Box::pin(self.shared.run(Kind::Read, move |shared| shared.read(|read| tables::page(read, &range))))
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome> {
        Box::pin(self.change(move |shared| commit(shared, &transaction)))
    }

    fn watch(&self, prefix: Prefix, after: Revision) -> Box<dyn Watch> {
        Box::new(HistoryWatch::new(&self.shared, prefix, after))
    }

    fn compact(&self, through: Revision) -> Answer<'_, ()> {
        Box::pin(self.change(move |shared| {
            shared.write(|write| {
                let is_past = write.compact(through.0)?;
                let present = Revision(write.revision()?);
                Ok(if is_past { Ok(()) } else { Err(Error::NotYet { asked: through, present }) })
            })
        }))
    }

    fn grant(&self, ttl: Ttl) -> Answer<'_, Lease> {
        Box::pin(self.change(move |shared| grant(shared, ttl)))
    }

    fn keep_alive(&self, id: LeaseId) -> Answer<'_, Lease> {
        Box::pin(async move {
            let again = move |shared: &Shared| shared.leases().keep_alive(id.0, Instant::now());
            let kept = match again(&self.shared) {
                Some(ttl) => Some(ttl),
                // In turn, so that a grant that is under way is seen.
                None => {
                    let end = move |shared: &Shared| match again(shared) {
                        Some(ttl) => Ok(Some(ttl)),
                        None => shared.end_lease(id.0).map(|()| None),
                    };
                    self.change(end).await?
                }
            };
            kept.map(|ttl| Lease { id, ttl }).ok_or(Error::LeaseGone { id })
        })
    }

    fn revoke(&self, id: LeaseId) -> Answer<'_, ()> {
        Box::pin(self.change(move |shared| {
            // First: a key that is bound from here on is refused. If the keys can't be deleted now, the lease's end does it.
            shared.leases().begin(id.0, Duration::ZERO, Instant::now());
            shared.end_lease(id.0)
        }))
    }
}
