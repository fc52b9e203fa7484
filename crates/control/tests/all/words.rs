//! Short words for what all tests say.

use std::time::Duration;

use control::catalogue::{
    Catalogue, Change, Changed, Commit, Entry, Error, Key, LeaseId, Missed, Outcome, Prefix, Range, Revision,
    Transaction, Ttl, Value, Watch,
};

/// How long an answer is waited for. Chosen: far more than a busy machine takes.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn key(name: impl AsRef<[u8]>) -> Key {
    Key::new(name.as_ref()).expect("a key")
}

pub fn value(text: impl AsRef<[u8]>) -> Value {
    Value::new(text.as_ref()).expect("a value")
}

pub fn prefix(text: &str) -> Prefix {
    Prefix::new(text).expect("a prefix")
}

pub fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).expect("a time")
}

pub fn put(name: impl AsRef<[u8]>, text: impl AsRef<[u8]>) -> Change {
    Change::put(key(name), value(text))
}

pub fn put_leased(name: &str, text: &str, lease: LeaseId) -> Change {
    Change::put_leased(key(name), value(text), lease)
}

pub fn delete(name: impl AsRef<[u8]>) -> Change {
    Change::delete(key(name))
}

/// Changes without conditions.
pub async fn change(catalogue: &dyn Catalogue, changes: Vec<Change>) -> Revision {
    let transaction = Transaction::new(Vec::new(), changes).expect("within the limits");
    match catalogue.commit(transaction).await.expect("an answer") {
        Outcome::Committed(revision) => revision,
        Outcome::Missed(missed) => panic!("nothing was asked: {missed:?}"),
    }
}

/// A transaction that must miss.
pub async fn miss(catalogue: &dyn Catalogue, transaction: Transaction) -> Missed {
    match catalogue.commit(transaction).await.expect("an answer") {
        Outcome::Missed(missed) => missed,
        Outcome::Committed(revision) => panic!("it was committed as {revision}"),
    }
}

pub async fn get(catalogue: &dyn Catalogue, name: impl AsRef<[u8]>) -> Option<Entry> {
    catalogue.get(key(name)).await.expect("an answer").entry
}

/// All entries that a range covers, and as of when; pages must agree on that.
pub async fn read_all(catalogue: &dyn Catalogue, range: Range) -> Result<(Revision, Vec<Entry>), Error> {
    let mut page = catalogue.range(range).await?;
    let (revision, mut entries) = (page.revision, Vec::new());
    loop {
        assert_eq!(page.revision, revision, "a page of another moment");
        entries.append(&mut page.entries);
        match page.next {
            Some(next) => page = catalogue.range(next).await?,
            None => return Ok((revision, entries)),
        }
    }
}

/// Key and value of each entry, as text.
pub fn told(entries: &[Entry]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    entries.iter().map(|entry| (text(entry.key.as_bytes()), text(entry.value.as_bytes()))).collect()
}

pub async fn present(catalogue: &dyn Catalogue) -> Revision {
    catalogue.get(key("nothing")).await.expect("an answer").revision
}

/// The next commit, or what the watch says instead.
pub async fn try_next(watch: &mut Box<dyn Watch>) -> Result<Commit, Error> {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch says something")
}

pub async fn next(watch: &mut Box<dyn Watch>) -> Commit {
    try_next(watch).await.expect("a commit")
}

/// A commit as text: `+key=value` and `-key`.
pub fn changes(commit: &Commit) -> Vec<String> {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let one = |changed: &Changed| match changed {
        Changed::Put(entry) => format!("+{}={}", text(entry.key.as_bytes()), text(entry.value.as_bytes())),
        Changed::Deleted(key) => format!("-{}", text(key.as_bytes())),
    };
    commit.changes.iter().map(one).collect()
}
