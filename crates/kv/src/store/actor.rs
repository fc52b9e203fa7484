//! A client of the tests: does every kind of operation on a few keys, and records what it was told, so that `check` can judge
//! the history. What may be known of a value stands in its bytes.

use std::collections::BTreeMap;

use check::{Action, Recorder, Token, appended};

use super::*;
use crate::types::Version;
use crate::value::Value;

/// Lengths of values: short, in the page, almost a page, a guest or an extent, several parts.
pub(super) const LENGTHS: [usize; 5] = [12, 700, 3800, 6000, 200_000];
/// Keys of values, and as many of numbers.
const KEYS: u64 = 3;
/// Marks a piece, which may be the first of a value.
const PIECE: u64 = 1 << 63;

/// A value that operation `id` writes.
pub(super) fn value_of(id: u64, len: usize) -> Value {
    let mut bytes = vec![id as u8; len];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    Value::copy_from(&bytes)
}

/// Which operations wrote a value.
fn id_of(value: &Value) -> u64 {
    let bytes = value.to_vec();
    let first = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let (base, pieces) = match first & PIECE {
        0 => {
            let len = u32::from_le_bytes(*bytes[8..].first_chunk().unwrap()) as usize;
            assert!(bytes[12..len].iter().all(|&byte| byte == first as u8), "a value of two operations");
            (Some(first), &bytes[len..])
        }
        _ => (None, &bytes[..]),
    };
    let (pieces, rest) = pieces.as_chunks::<8>();
    assert!(rest.is_empty(), "half a piece");
    pieces.iter().fold(base, |before, piece| Some(appended(before, u64::from_le_bytes(*piece)))).unwrap()
}

fn number_of(value: &Value) -> u64 {
    String::from_utf8(value.to_vec()).unwrap().parse().unwrap()
}

/// One client.
pub(super) struct Actor {
    number: u32,
    store: Store,
    recorder: Recorder,
    steps: u64,
    /// What it has last seen of keys, for compare-and-set.
    seen: BTreeMap<String, (Version, u64)>,
}

impl Actor {
    pub(super) fn new(number: u32, store: Store, recorder: Recorder) -> Actor {
        Actor { number, store, recorder, steps: 0, seen: BTreeMap::new() }
    }

    /// Does one operation.
    pub(super) async fn act(&mut self) {
        let draw = engine::task::random_u64();
        self.steps += 1;
        let id = (u64::from(self.number) << 32) + self.steps;
        match (draw >> 8) & 3 {
            0 => self.count(draw >> 16, &format!("number {}", draw % KEYS)).await,
            1 => self.change(draw >> 16, &format!("key {}", draw % KEYS), id).await,
            _ => self.put_or_get(draw >> 16, &format!("key {}", draw % KEYS), id).await,
        }
    }

    fn invoked(&self, key: &str, action: Action, value: Option<u64>) -> Token {
        self.recorder.invoked(self.number, key, action, value)
    }

    /// Records the answer; an error leaves the outcome open unless it says otherwise.
    fn answered<T>(&self, token: Token, result: Result<T, StoreError>, record: impl FnOnce(Token, T)) {
        match result {
            Ok(answer) => record(token, answer),
            Err(error) if error.outcome_unknown() => {}
            Err(_) => self.recorder.failed(token),
        }
    }

    async fn put_or_get(&mut self, draw: u64, key: &str, id: u64) {
        let (store, recorder) = (self.store.clone(), self.recorder.clone());
        match draw % 10 {
            0..4 => {
                let token = self.invoked(key, Action::Put, Some(id));
                let result = store.put(key.as_bytes(), value_of(id, LENGTHS[(draw >> 8) as usize % 5])).await;
                self.answered(token, result, |token, ()| recorder.returned(token, None));
            }
            4 => {
                let token = self.invoked(key, Action::Delete, None);
                let result = store.delete(key.as_bytes()).await;
                self.answered(token, result, |token, _| recorder.returned(token, None));
            }
            _ => {
                let token = self.invoked(key, Action::Get, None);
                if let Ok(found) = store.get_versioned(key.as_bytes()).await {
                    let id = found.as_ref().map(|found| id_of(&found.value));
                    recorder.returned(token, id);
                    if let (Some(found), Some(id)) = (found, id) {
                        self.seen.insert(key.to_owned(), (found.version, id));
                    }
                }
            }
        }
    }

    async fn change(&mut self, draw: u64, key: &str, id: u64) {
        let (store, recorder, never) = (self.store.clone(), self.recorder.clone(), PutOptions::default());
        let value = value_of(id, LENGTHS[(draw >> 8) as usize % 5]);
        match draw % 6 {
            0 => {
                let token = self.invoked(key, Action::Add, Some(id));
                let result = store.add(key.as_bytes(), value, never).await;
                self.answered(token, result, |token, done| recorder.decided(token, done));
            }
            1 => {
                let token = self.invoked(key, Action::Replace, Some(id));
                let result = store.replace(key.as_bytes(), value, never).await;
                self.answered(token, result, |token, done| recorder.decided(token, done));
            }
            2 => {
                let token = self.invoked(key, Action::Take, None);
                let result = store.take(key.as_bytes()).await;
                let record = |token, found: Option<Versioned>| {
                    recorder.returned(token, found.map(|found| id_of(&found.value)));
                };
                self.answered(token, result, record);
            }
            3 => {
                let piece = id | PIECE;
                let token = self.invoked(key, Action::Append { piece }, None);
                let append = |found: Option<&Versioned>| {
                    let before = found.map(|found| id_of(&found.value));
                    let mut bytes = found.map_or(Vec::new(), |found| found.value.to_vec());
                    bytes.extend(piece.to_le_bytes());
                    Change::Put { value: Value::copy_from(&bytes), options: never, result: appended(before, piece) }
                };
                let result = store.update(key.as_bytes(), append).await;
                self.answered(token, result, |token, id| recorder.returned(token, Some(id)));
            }
            _ => {
                let Some(&(version, expected)) = self.seen.get(key) else { return };
                let token = self.invoked(key, Action::CompareAndSet { expected: Some(expected) }, Some(id));
                let result = store.compare_and_set(key.as_bytes(), version, value, never).await;
                if let Ok(CasOutcome::Stored(version)) = result {
                    self.seen.insert(key.to_owned(), (version, id));
                }
                let record = |token, outcome| recorder.decided(token, matches!(outcome, CasOutcome::Stored(_)));
                self.answered(token, result, record);
            }
        }
    }

    async fn count(&mut self, draw: u64, key: &str) {
        let (store, recorder) = (self.store.clone(), self.recorder.clone());
        match draw % 10 {
            0 => {
                let token = self.invoked(key, Action::Take, None);
                let result = store.take(key.as_bytes()).await;
                let record = |token, found: Option<Versioned>| {
                    recorder.returned(token, found.map(|found| number_of(&found.value)));
                };
                self.answered(token, result, record);
            }
            1..3 => {
                let token = self.invoked(key, Action::Get, None);
                if let Ok(found) = store.get(key.as_bytes()).await {
                    recorder.returned(token, found.as_ref().map(number_of));
                }
            }
            _ => {
                let by = draw >> 8 & 7;
                let token = self.invoked(key, Action::Increment { by }, None);
                let result = store.increment(key.as_bytes(), by as i64, Some(0)).await;
                let record = |token, sum| match sum {
                    Increment::Value(sum) => recorder.returned(token, Some(sum as u64)),
                    other => panic!("{other:?}"),
                };
                self.answered(token, result, record);
            }
        }
    }
}
