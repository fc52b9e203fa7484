//! The load's conditional operations, and values that end.

use std::collections::BTreeMap;

use check::{Action, appended};
use engine::time;
use kv::store::{CasOutcome, Change, Increment, PutOptions, Versioned};
use kv::{Value, Version};

use crate::sim::book::{Kind, pieces_of};
use crate::sim::load::Client;
use crate::sim::scenario::Rng;

/// By key: the version that was last seen, and what it is in the history.
pub type Seen = BTreeMap<String, (Version, u64)>;

/// Does one operation of those that a key of this kind knows.
pub async fn act(client: &mut Client, key: &str, kind: Kind) {
    match (kind, client.rng.within(0, 9)) {
        (_, 0) => take(client, key).await,
        (Kind::Number, _) => count(client, key).await,
        (Kind::Pieces, _) => append(client, key).await,
        (Kind::Plain | Kind::Ending, 1..=3) => compare_and_set(client, key, kind).await,
        (Kind::Plain, 4..=6) => add(client, key, PutOptions::default()).await,
        (Kind::Plain, _) => replace(client, key).await,
        (Kind::Ending, 4 | 5) => {
            let options = ending(&mut client.rng);
            add(client, key, options).await;
        }
        (Kind::Ending, _) => put_ending(client, key).await,
        (Kind::Blocks, _) => unreachable!("only hungry clients have such keys"),
    }
}

/// Puts a value that ends: soon, or so late that it does not while the run lasts.
async fn put_ending(client: &mut Client, key: &str) {
    let (id, value) = client.new_value();
    let options = ending(&mut client.rng);
    client.book.may_end(client.number, key, id, options.expiry);
    let token = client.book.invoked(client.number, key, Action::Put, Some(id));
    let result = client.store.put_with(key.as_bytes(), value, options).await;
    client.book.answered(token, result, |recorder, token, ()| recorder.returned(token, None));
}

/// Beyond what the clocks of hosts differ by, the jumps and the length of a run included.
const LATE_MS: u64 = 24 * 3_600_000;

/// When a value is to end: soon, or long after the run.
fn ending(rng: &mut Rng) -> PutOptions {
    let soon = !rng.one_in(4);
    let after = if soon { rng.within(1, 6_000) } else { LATE_MS };
    let expiry = Some(time::unix_time().as_millis() as u64 + after);
    PutOptions { expiry, tag: 0 }
}

async fn add(client: &mut Client, key: &str, options: PutOptions) {
    let (id, value) = client.new_value();
    client.book.may_end(client.number, key, id, options.expiry);
    let token = client.book.invoked(client.number, key, Action::Add, Some(id));
    let result = client.store.add(key.as_bytes(), value, options).await;
    client.book.answered(token, result, |recorder, token, done| recorder.decided(token, done));
}

async fn replace(client: &mut Client, key: &str) {
    let (id, value) = client.new_value();
    let token = client.book.invoked(client.number, key, Action::Replace, Some(id));
    let result = client.store.replace(key.as_bytes(), value, PutOptions::default()).await;
    client.book.answered(token, result, |recorder, token, done| recorder.decided(token, done));
}

async fn compare_and_set(client: &mut Client, key: &str, kind: Kind) {
    let Some(&(version, expected)) = client.seen.get(key) else { return };
    let (id, value) = client.new_value();
    let options = if kind == Kind::Ending { ending(&mut client.rng) } else { PutOptions::default() };
    let action = Action::CompareAndSet { expected: Some(expected) };
    client.book.may_end(client.number, key, id, options.expiry);
    let token = client.book.invoked(client.number, key, action, Some(id));
    let result = client.store.compare_and_set(key.as_bytes(), version, value, options).await;
    if let Ok(CasOutcome::Stored(version)) = result {
        client.seen.insert(key.to_owned(), (version, id));
    }
    let told = |outcome| matches!(outcome, CasOutcome::Stored(_));
    client.book.answered(token, result, |recorder, token, outcome| recorder.decided(token, told(outcome)));
}

async fn take(client: &mut Client, key: &str) {
    let token = client.book.invoked(client.number, key, Action::Take, None);
    let result = client.store.take(key.as_bytes()).await;
    let id = |found: Versioned| client.book.identify(key, &found.value);
    client.book.answered(token, result, |recorder, token, found| recorder.returned(token, found.map(id)));
}

async fn count(client: &mut Client, key: &str) {
    let by = client.rng.within(0, 9);
    let token = client.book.invoked(client.number, key, Action::Increment { by }, None);
    let result = client.store.increment(key.as_bytes(), by as i64, Some(0)).await;
    let sum = |sum| match sum {
        Increment::Value(sum) => sum as u64,
        other => panic!("{key} holds numbers alone, and not large ones: {other:?}"),
    };
    client.book.answered(token, result, |recorder, token, told| recorder.returned(token, Some(sum(told))));
}

async fn append(client: &mut Client, key: &str) {
    let piece = client.rng.next();
    let token = client.book.invoked(client.number, key, Action::Append { piece }, None);
    let append = |found: Option<&Versioned>| {
        let before = found.map(|found| pieces_of(&found.value));
        let mut bytes = found.map_or(Vec::new(), |found| found.value.to_vec());
        bytes.extend(piece.to_le_bytes());
        let (value, options) = (Value::copy_from(&bytes), PutOptions::default());
        Change::Put { value, options, result: appended(before, piece) }
    };
    let result = client.store.update(key.as_bytes(), append).await;
    client.book.answered(token, result, |recorder, token, id| recorder.returned(token, Some(id)));
}
