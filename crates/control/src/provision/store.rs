//! Records read from the catalogue and committed to it. Whoever commits here knows afterwards whether the change was made.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;
use uuid::Uuid;

use crate::catalogue::{self, Catalogue, Change, Condition, Entry, Key, Outcome, Prefix, Range, Transaction, Value};

use super::error::Error;
use super::keys;
use super::name::RequestId;
use super::records::{self, Record, Remembered};

/// How often a change is made anew because others changed what it was made of, or because its outcome is not known. Chosen: with
/// the pauses below a second or two, in which hundreds of others get through.
const ATTEMPTS_MAX: u32 = 24;
/// Pause before the second attempt; each later one is longer by as much. Chosen: the time of a commit.
const PAUSE: Duration = Duration::from_millis(5);

/// A record with the entry that it was read from.
#[derive(Clone, Debug)]
pub struct Stored<T> {
    /// What it says.
    pub record: T,
    pub(super) entry: Entry,
}

impl<T> Stored<T> {
    /// That nobody has changed it since.
    pub(super) fn unchanged(&self) -> Condition {
        Condition::unchanged(&self.entry)
    }
}

impl<T: Record> Stored<T> {
    fn of(entry: Entry) -> Result<Stored<T>, Error> {
        match records::decode(entry.value.as_bytes()) {
            Ok(record) => Ok(Stored { record, entry }),
            Err(source) => Err(Error::Record { kind: T::KIND, key: entry.key.to_string(), source }),
        }
    }

    /// Writes the record as it is now.
    pub(super) fn put(&self) -> Result<Change, Error> {
        put(self.entry.key.clone(), &self.record)
    }
}

/// Writes a record.
pub(super) fn put<T: Record>(key: Key, record: &T) -> Result<Change, Error> {
    Ok(Change::put(key, Value::new(records::encode(record))?))
}

/// A request that is done once, however often it is sent.
#[derive(Clone, Debug)]
pub struct Request {
    key: Key,
    name: String,
    digest: String,
}

impl Request {
    /// The request that the caller (a tenant by its id, or the operator) has named; `asked` is all that it asks for.
    pub fn named(caller: Option<Uuid>, id: &RequestId, asked: &[u8]) -> Request {
        Request { key: keys::request(caller, id), name: id.to_string(), digest: hex(&openssl::sha::sha256(asked)) }
    }

    /// A request that nobody sends again.
    pub fn unnamed() -> Request {
        let id = Uuid::new_v4().to_string();
        // The letters and signs of a UUID are among those of a request id.
        let name = RequestId::new(id).expect("a UUID makes a request id");
        Request { key: keys::unnamed(&name), name: name.to_string(), digest: String::new() }
    }
}

/// Bytes in hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Changes with what makes them right, and what the caller is told when they are made.
pub(super) struct Plan<T> {
    pub(super) conditions: Vec<Condition>,
    pub(super) changes: Vec<Change>,
    pub(super) answer: T,
}

/// A plan, made of the records as they are now.
pub(super) type Planning<'a, T> = Pin<Box<dyn Future<Output = Result<Plan<T>, Error>> + Send + 'a>>;

/// The catalogue as records.
#[derive(Clone)]
pub struct Store {
    pub(super) catalogue: Arc<dyn Catalogue>,
    /// Those of this process that were in each other's way go on one after the other.
    turn: Arc<Mutex<()>>,
}

impl Store {
    pub(super) fn new(catalogue: Arc<dyn Catalogue>) -> Store {
        Store { catalogue, turn: Arc::default() }
    }

    pub(super) async fn get<T: Record>(&self, key: Key) -> Result<Option<Stored<T>>, Error> {
        self.catalogue.get(key).await?.entry.map(Stored::of).transpose()
    }

    /// The record, which ought to be there.
    pub(super) async fn need<T: Record>(&self, key: Key, name: impl ToString) -> Result<Stored<T>, Error> {
        let missing = || Error::NotFound { kind: T::KIND, name: name.to_string() };
        self.get(key).await?.ok_or_else(missing)
    }

    /// All records of a prefix, of one moment.
    pub(super) async fn all<T: Record>(&self, prefix: Prefix) -> Result<Vec<Stored<T>>, Error> {
        let mut found = Vec::new();
        let mut next = Some(Range::of(prefix));
        while let Some(range) = next {
            let page = self.catalogue.range(range).await?;
            for entry in page.entries {
                found.push(Stored::of(entry)?);
            }
            next = page.next;
        }
        Ok(found)
    }

    /// Up to `entries` records of a prefix behind a key, and whether there are more.
    pub(super) async fn page<T: Record>(
        &self,
        prefix: Prefix,
        after: Option<Key>,
        entries: usize,
    ) -> Result<(Vec<Stored<T>>, bool), Error> {
        let page = self.catalogue.range(Range { after, ..Range::of(prefix).entries(entries)? }).await?;
        let records: Result<_, Error> = page.entries.into_iter().map(Stored::of).collect();
        Ok((records?, page.next.is_some()))
    }

    /// Does a request once: what `plan` says is committed together with the request's own key, on the condition that it is absent.
    /// Misses and unknown outcomes lead to another attempt, which finds that key if an earlier one was applied.
    pub(super) async fn once<'a, T: serde::Serialize + serde::de::DeserializeOwned>(
        &self,
        request: &Request,
        plan: impl Fn() -> Planning<'a, T>,
    ) -> Result<T, Error> {
        let (mut lost, mut turn) = (None, None);
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                sleep(PAUSE * attempt).await;
                if turn.is_none() {
                    turn = Some(self.turn.lock().await);
                }
            }
            if let Some(remembered) = self.get::<Remembered>(request.key.clone()).await? {
                return answered(request, &remembered);
            }
            let mut planned = match plan().await {
                Ok(planned) => planned,
                // What is in the way may be this request's own doing: of an earlier attempt, or sent twice at the same time.
                Err(error) => match self.get::<Remembered>(request.key.clone()).await? {
                    Some(remembered) => return answered(request, &remembered),
                    None => return Err(error),
                },
            };
            let answer = serde_json::to_value(&planned.answer).map_err(|fault| Error::Impossible(fault.to_string()))?;
            let remembered = Remembered { digest: request.digest.clone(), answer, at: now() };
            planned.conditions.push(Condition::absent(request.key.clone()));
            planned.changes.push(put(request.key.clone(), &remembered)?);
            match self.catalogue.commit(Transaction::new(planned.conditions, planned.changes)?).await {
                Ok(Outcome::Committed(_)) => return Ok(planned.answer),
                Ok(Outcome::Missed(_)) => {}
                Err(unknown @ catalogue::Error::OutcomeUnknown { .. }) => lost = Some(unknown),
                Err(error) => return Err(error.into()),
            }
        }
        Err(lost.map_or(Error::Contended, Error::Catalogue))
    }
}

fn answered<T: serde::de::DeserializeOwned>(request: &Request, remembered: &Stored<Remembered>) -> Result<T, Error> {
    if remembered.record.digest != request.digest {
        return Err(Error::RequestReused { id: request.name.clone() });
    }
    let damaged = |fault: serde_json::Error| Error::Record {
        kind: Remembered::KIND,
        key: request.key.to_string(),
        source: records::RecordError::Damaged(fault.to_string()),
    };
    serde_json::from_value(remembered.record.answer.clone()).map_err(damaged)
}

/// Seconds of the Unix epoch.
pub(super) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
