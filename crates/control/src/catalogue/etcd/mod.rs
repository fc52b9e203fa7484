//! The engine for several machines: an etcd that runs beside us, version 3.4 or later.
//!
//! Leases, history and agreement are etcd's. What is ours is which member is asked, what is never asked twice (`members`), and
//! watches that outlive members (`watch`). etcd keeps its whole history until somebody compacts it: give its members
//! `--auto-compaction-retention`, or call [`Catalogue::compact`].

mod connection;
mod members;
mod names;
mod options;
mod watch;
mod wire;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

use self::members::{Again, Fault, Members};
use self::names::{Names, revision};
use self::watch::EtcdWatch;
use self::wire::{
    CompactionRequest, Compare, Compared, DeleteRangeRequest, EQUAL, HeaderResponse, LeaseGrantRequest,
    LeaseKeysRequest, LeaseKeysResponse, LeaseRequest, LeaseResponse, MODIFIED, Operation, PutRequest, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, VALUE, path,
};
use super::contract::{Answer, Catalogue, Watch};
use super::error::Error;
use super::limits::LEASE_KEYS_MAX;
use super::types::{
    Change, Condition, Entry, Key, Lease, LeaseId, Missed, Outcome, Page, Prefix, Range, Reading, Revision, Test,
    Transaction, Ttl,
};

pub use self::options::{EtcdOptions, TlsFiles, User};

/// A catalogue in an etcd.
pub struct Etcd {
    members: Arc<Members>,
    names: Names,
}

impl Etcd {
    /// Reaches a member that is well, so that what is wrong with the options is told here. Call it on a runtime.
    pub async fn open(options: EtcdOptions) -> Result<Etcd, Error> {
        let names = Names(options.namespace.clone());
        let etcd = Etcd { members: Arc::new(Members::new(&options, names.full(&probe()))?), names };
        etcd.present(etcd.members.until()).await?;
        Ok(etcd)
    }

    /// Where the catalogue stands.
    async fn present(&self, until: Instant) -> Result<Revision, Error> {
        let key = self.names.full(&probe());
        let read = RangeRequest { key, limit: 1, ..RangeRequest::default() };
        let answer: Result<RangeResponse, Fault> = self.members.ask(path::RANGE, read, Again::Safe, until).await;
        answer.map(|answer| revision(answer.header)).map_err(|fault| self.members.error(fault))
    }

    async fn get(&self, key: Key) -> Result<Reading, Error> {
        let until = self.members.until();
        let read = RangeRequest { key: self.names.full(&key), ..RangeRequest::default() };
        let answer: Result<RangeResponse, Fault> = self.members.ask(path::RANGE, read, Again::Safe, until).await;
        let answer = answer.map_err(|fault| self.members.error(fault))?;
        let entry = answer.kvs.first().and_then(|stored| self.names.entry(stored));
        Ok(Reading { revision: revision(answer.header), entry })
    }

    async fn range(&self, range: Range) -> Result<Page, Error> {
        let until = self.members.until();
        let (key, range_end) = self.names.bounds(&range.prefix, range.after.as_ref());
        let asked = range.at.unwrap_or(Revision::NONE);
        // Revision 0 means "now" to etcd; nothing was ever committed at 1.
        let (limit, at) = (range.entries as i64, range.at.map_or(0, |at| at.0.max(1)) as i64);
        let read = RangeRequest { key, range_end, limit, revision: at, ..RangeRequest::default() };
        let answer: Result<RangeResponse, Fault> = self.members.ask(path::RANGE, read, Again::Safe, until).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(Fault::Told(status)) if is_compacted(&status) => {
                // etcd does not say how far; nothing behind the present state is sure to be there.
                return Err(Error::Compacted { asked, oldest: self.present(until).await? });
            }
            Err(Fault::Told(status)) if is_future(&status) => {
                return Err(Error::NotYet { asked, present: self.present(until).await? });
            }
            Err(fault) => return Err(self.members.error(fault)),
        };
        let present = range.at.unwrap_or(revision(answer.header));
        let entries: Vec<Entry> = answer.kvs.iter().filter_map(|stored| self.names.entry(stored)).collect();
        let next = entries.last().filter(|_| answer.more).map(|last| range.behind(&last.key, present));
        Ok(Page { revision: present, entries, next })
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, Error> {
        let until = self.members.until();
        for id in transaction.leases() {
            self.check_room(id, &transaction, until).await?;
        }
        let request = TxnRequest {
            compare: transaction.conditions.iter().map(|condition| self.compare(condition)).collect(),
            success: transaction.changes.iter().map(|change| self.operation(change)).collect(),
            failure: transaction.conditions.iter().map(|condition| self.look(&condition.key)).collect(),
        };
        // Sent twice, a change may miss what its first copy did, or do it again.
        let again = if transaction.changes.is_empty() { Again::Safe } else { Again::Never };
        let answer: TxnResponse = match self.members.ask(path::TXN, request, again, until).await {
            Ok(answer) => answer,
            Err(Fault::Told(status)) if is_no_lease(&status) => return Err(lease_gone(&transaction)),
            Err(fault) => return Err(self.members.error(fault)),
        };
        let revision = revision(answer.header);
        if answer.succeeded {
            return Ok(Outcome::Committed(revision));
        }
        let entry = |read: RangeResponse| read.kvs.first().and_then(|stored| self.names.entry(stored));
        let seen: Vec<Option<Entry>> = answer.responses.into_iter().map(|one| one.range.and_then(entry)).collect();
        if seen.len() != transaction.conditions.len() {
            let what = format!("{} answers to {} reads", seen.len(), transaction.conditions.len());
            return Err(Error::Foreign { place: self.members.place(), what });
        }
        Ok(Outcome::Missed(Missed { revision, seen }))
    }

    /// The lease has room for the keys. It is looked at before, not in the transaction: what is under way at once is not counted,
    /// and may be as much over the bound.
    async fn check_room(&self, id: LeaseId, transaction: &Transaction, until: Instant) -> Result<(), Error> {
        let request = LeaseKeysRequest { id: id.0 as i64, keys: true };
        let answer: Result<LeaseKeysResponse, Fault> =
            self.members.ask(path::LEASE_TIME_TO_LIVE, request, Again::Safe, until).await;
        let there = match answer {
            Ok(answer) => answer.keys,
            // The transaction tells.
            Err(Fault::Told(status)) if is_no_lease(&status) => return Ok(()),
            Err(fault) => return Err(self.members.error(fault)),
        };
        let changed: BTreeSet<Vec<u8>> =
            transaction.changes.iter().map(|change| self.names.full(change.key())).collect();
        let stay = there.iter().filter(|key| !changed.contains(*key)).count();
        let bound = transaction.changes.iter().filter(|change| change.lease() == Some(id)).count();
        if stay + bound > LEASE_KEYS_MAX { Err(Error::LeaseFull { id }) } else { Ok(()) }
    }

    fn compare(&self, condition: &Condition) -> Compare {
        let (target, compared) = match &condition.test {
            Test::Modified(revision) => (MODIFIED, Compared::ModRevision(revision.0 as i64)),
            Test::Holds(value) => (VALUE, Compared::Value(value.as_bytes().to_vec())),
        };
        Compare { result: EQUAL, target, key: self.names.full(&condition.key), compared: Some(compared) }
    }

    fn operation(&self, change: &Change) -> RequestOp {
        let key = self.names.full(change.key());
        let operation = match change {
            Change::Put { value, lease, .. } => {
                let lease = lease.map_or(0, |id| id.0 as i64);
                Operation::Put(PutRequest { key, value: value.as_bytes().to_vec(), lease })
            }
            Change::Delete { .. } => Operation::Delete(DeleteRangeRequest { key }),
        };
        RequestOp { operation: Some(operation) }
    }

    fn look(&self, key: &Key) -> RequestOp {
        let read = RangeRequest { key: self.names.full(key), ..RangeRequest::default() };
        RequestOp { operation: Some(Operation::Range(read)) }
    }

    async fn compact(&self, through: Revision) -> Result<(), Error> {
        let until = self.members.until();
        let request = CompactionRequest { revision: through.0 as i64 };
        let answer: Result<HeaderResponse, Fault> = self.members.ask(path::COMPACT, request, Again::Safe, until).await;
        match answer {
            Ok(_) => Ok(()),
            Err(Fault::Told(status)) if is_compacted(&status) => Ok(()),
            Err(Fault::Told(status)) if is_future(&status) => {
                Err(Error::NotYet { asked: through, present: self.present(until).await? })
            }
            Err(fault) => Err(self.members.error(fault)),
        }
    }

    async fn grant(&self, ttl: Ttl) -> Result<Lease, Error> {
        let until = self.members.until();
        let request = LeaseGrantRequest { ttl: ttl.as_duration().as_secs() as i64 };
        // A lease that is granted twice leaves one that nobody knows, which ends by itself.
        let answer: Result<LeaseResponse, Fault> =
            self.members.ask(path::LEASE_GRANT, request, Again::Safe, until).await;
        answer.map(|answer| lease(&answer)).map_err(|fault| self.members.error(fault))
    }

    async fn keep_alive(&self, id: LeaseId) -> Result<Lease, Error> {
        let until = self.members.until();
        let request = LeaseRequest { id: id.0 as i64 };
        let answer: Result<LeaseResponse, Fault> =
            self.members.ask_first(path::LEASE_KEEP_ALIVE, request, Again::Safe, until).await;
        match answer {
            Ok(answer) if answer.ttl > 0 => Ok(lease(&answer)),
            Ok(_) => Err(Error::LeaseGone { id }),
            Err(Fault::Told(status)) if is_no_lease(&status) => Err(Error::LeaseGone { id }),
            Err(fault) => Err(self.members.error(fault)),
        }
    }

    async fn revoke(&self, id: LeaseId) -> Result<(), Error> {
        let until = self.members.until();
        let request = LeaseRequest { id: id.0 as i64 };
        let answer: Result<HeaderResponse, Fault> =
            self.members.ask(path::LEASE_REVOKE, request, Again::Safe, until).await;
        match answer {
            Ok(_) => Ok(()),
            Err(Fault::Told(status)) if is_no_lease(&status) => Ok(()),
            Err(fault) => Err(self.members.error(fault)),
        }
    }
}

/// A key that is never there.
fn probe() -> Key {
    Key::reserved("probe")
}

fn lease(answer: &LeaseResponse) -> Lease {
    Lease { id: LeaseId(answer.id as u64), ttl: Duration::from_secs(answer.ttl.max(0) as u64) }
}

/// etcd does not say which lease has ended: the first that is named stands for all.
fn lease_gone(transaction: &Transaction) -> Error {
    let named = transaction.changes.iter().find_map(Change::lease);
    Error::LeaseGone { id: named.unwrap_or(LeaseId(0)) }
}

fn is_compacted(status: &Status) -> bool {
    status.message().contains("required revision has been compacted")
}

fn is_future(status: &Status) -> bool {
    status.message().contains("required revision is a future revision")
}

fn is_no_lease(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

impl Catalogue for Etcd {
    fn identity(&self) -> Answer<'_, String> {
        Box::pin(async {
            if self.members.cluster().is_none() {
                self.present(self.members.until()).await?;
            }
            let cluster = self.members.cluster().unwrap_or_default();
            Ok(format!("etcd {cluster:016x} {}", self.names.0.escape_ascii()))
        })
    }

    fn get(&self, key: Key) -> Answer<'_, Reading> {
        Box::pin(self.get(key))
    }

    fn range(&self, range: Range) -> Answer<'_, Page> {
        Box::pin(self.range(range))
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome> {
        Box::pin(self.commit(transaction))
    }

    fn watch(&self, prefix: Prefix, after: Revision) -> Box<dyn Watch> {
        Box::new(EtcdWatch::new(self.members.clone(), self.names.clone(), prefix, after))
    }

    fn compact(&self, through: Revision) -> Answer<'_, ()> {
        Box::pin(self.compact(through))
    }

    fn grant(&self, ttl: Ttl) -> Answer<'_, Lease> {
        Box::pin(self.grant(ttl))
    }

    fn keep_alive(&self, id: LeaseId) -> Answer<'_, Lease> {
        Box::pin(self.keep_alive(id))
    }

    fn revoke(&self, id: LeaseId) -> Answer<'_, ()> {
        Box::pin(self.revoke(id))
    }
}
