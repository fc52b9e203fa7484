//! The load: clients that put, get, delete and list a few keys, and write down what they asked and were told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use check::{Action, Recorder, Token};
use engine::time;
use kv::{StoreError, Value};
use pool::{KeyHash, Map};

use crate::cluster::HostStore;
use crate::scenario::{Rng, Scenario};

/// What all clients share: the record of what happened, and the lengths of the values written.
#[derive(Clone, Default)]
pub struct Book {
    /// The history.
    pub recorder: Recorder,
    lengths: Rc<RefCell<BTreeMap<u64, usize>>>,
    full: Rc<Cell<u64>>,
    epoch: Rc<Cell<u64>>,
}

/// Keys of which several are at home in the same page.
pub fn keys(scenario: &Scenario, map: &Map) -> Vec<String> {
    let page = |key: &str| map.geometry(0).home(KeyHash::new(key.as_bytes(), map.hash_seed).home).0;
    let mut pages: Vec<u32> = Vec::new();
    let mut keys = Vec::new();
    for index in 0.. {
        let key = format!("key{index}");
        let home = page(&key);
        if pages.contains(&home) {
            keys.push(key);
        } else if pages.len() < scenario.pages {
            pages.push(home);
            keys.push(key);
        }
        if keys.len() == scenario.keys {
            break;
        }
    }
    keys
}

/// Shortest value: its identity.
const LENGTH_MIN: usize = 8;

impl Book {
    /// Operations refused for lack of room.
    pub fn full(&self) -> u64 {
        self.full.get()
    }

    /// Changes of the pool that came to their end.
    pub fn changes(&self) -> u64 {
        self.epoch.get() / 2
    }

    /// The epoch of the pool's last map is this: each change takes two, and the first map is of epoch 1.
    pub fn changed(&self, epoch: u64) {
        self.epoch.set(epoch);
    }

    /// What an error means for the history.
    fn failed(&self, token: Token, error: &StoreError) {
        if matches!(error, StoreError::OutOfSpace { .. }) {
            self.full.set(self.full.get() + 1);
        }
        if !error.outcome_unknown() {
            self.recorder.failed(token);
        }
    }

    /// A value nobody has written before: its identity, then bytes that follow from it.
    fn new_value(&self, rng: &mut Rng, length: usize) -> (u64, Value) {
        let id = rng.next();
        self.lengths.borrow_mut().insert(id, length);
        (id, Value::copy_from(&bytes_of(id, length)))
    }

    /// The identity of a value, all of whose bytes must be those written under it.
    fn identify(&self, value: &Value) -> u64 {
        let bytes = value.to_vec();
        assert!(bytes.len() >= LENGTH_MIN, "a value of {} bytes was never written", bytes.len());
        let id = u64::from_le_bytes(*bytes.first_chunk().expect("checked above"));
        let length = self.lengths.borrow().get(&id).copied();
        assert_eq!(length, Some(bytes.len()), "the value {id:x} was not written with this length");
        assert!(bytes == bytes_of(id, bytes.len()), "the bytes of value {id:x} are not those written");
        id
    }
}

fn bytes_of(id: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = id;
    while bytes.len() < length {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.rotate_left(7) ^ bytes.len() as u64;
    }
    bytes.truncate(length);
    bytes
}

fn length(rng: &mut Rng, sizes: u64) -> usize {
    let small = rng.within(LENGTH_MIN as u64, 200);
    let page_filling = rng.within(900, 3_900);
    let length = match (sizes, rng.within(0, 19)) {
        (1.., 8..=13) => page_filling,
        (2.., 14) => 4096,
        (2.., 15..=17) => rng.within(4_000, 40_000),
        (4, 0..=13) | (3, 18) => rng.within(100_000, 400_000),
        (3, 19) if rng.one_in(3) => 1 << 20,
        _ => small,
    };
    length as usize
}

/// One client: its operations, one after the other.
pub async fn client(store: HostStore, book: Book, scenario: Scenario, keys: Rc<Vec<String>>, number: u32) {
    let rng = &mut Rng::new(scenario.seed, 1000 + u64::from(number));
    for _ in 0..scenario.operations {
        time::sleep(rng.millis(0, scenario.think.as_millis() as u64)).await;
        let key = &keys[rng.within(0, keys.len() as u64 - 1) as usize];
        match rng.within(0, 99) {
            0..=39 => put(&store, &book, rng, &scenario, key, number).await,
            40..=49 => delete(&store, &book, key, number).await,
            50 | 51 => list(&store, &keys).await,
            52 => scan(&store, rng, &keys).await,
            _ => drop(get(&store, &book, key, number).await),
        }
    }
}

async fn put(store: &HostStore, book: &Book, rng: &mut Rng, scenario: &Scenario, key: &str, number: u32) {
    let length = length(rng, scenario.sizes);
    let (id, value) = book.new_value(rng, length);
    let token = book.recorder.invoked(number, key, Action::Put, Some(id));
    match store.put(key.as_bytes(), value).await {
        Ok(()) => book.recorder.returned(token, None),
        Err(error) => book.failed(token, &error),
    }
}

async fn delete(store: &HostStore, book: &Book, key: &str, number: u32) {
    let token = book.recorder.invoked(number, key, Action::Delete, None);
    match store.delete(key.as_bytes()).await {
        Ok(_) => book.recorder.returned(token, None),
        Err(error) => book.failed(token, &error),
    }
}

/// Reads a key and writes the answer down; whether there was one.
pub async fn get(store: &HostStore, book: &Book, key: &str, number: u32) -> bool {
    let token = book.recorder.invoked(number, key, Action::Get, None);
    let answer = store.get(key.as_bytes()).await;
    let answered = answer.is_ok();
    match answer {
        Ok(value) => book.recorder.returned(token, value.map(|value| book.identify(&value))),
        Err(_) => book.recorder.failed(token),
    }
    answered
}

/// Keys that are there from the first moment to the last.
const FIXED: usize = 4;

/// The keys that are there from the first moment to the last.
pub fn fixed_keys() -> Vec<String> {
    (0..FIXED).map(|index| format!("fixed{index}")).collect()
}

/// Writes them, before anything fails.
pub async fn put_fixed(store: &HostStore) {
    for key in fixed_keys() {
        while store.put(key.as_bytes(), Value::copy_from(key.as_bytes())).await.is_err() {
            time::sleep(Duration::from_millis(50)).await; // connections are being made
        }
    }
    store.settle().await;
}

/// Deletes everything.
pub async fn delete_all(store: &HostStore, book: &Book, keys: &[String]) {
    for key in keys {
        let token = book.recorder.invoked(u32::MAX, key, Action::Delete, None);
        let deleted = store.delete(key.as_bytes()).await;
        assert!(deleted.is_ok(), "{key} cannot be deleted though all is well again: {deleted:?}");
        book.recorder.returned(token, None);
    }
    for key in fixed_keys() {
        let value = store.get(key.as_bytes()).await;
        assert!(value.is_ok_and(|value| value.is_some_and(|value| value.equals(key.as_bytes()))), "{key} is gone");
        assert_eq!(store.delete(key.as_bytes()).await, Ok(true));
    }
}

/// A list is no snapshot, but it never invents or repeats a key, and has every one that is there throughout.
async fn list(store: &HostStore, keys: &[String]) {
    if let Some(listed) = list_all(store).await {
        let mut sorted = listed.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), listed.len(), "a key was listed twice: {listed:?}");
        judge_list(&sorted, keys);
    }
}

/// A scan in small steps, which may repeat keys.
async fn scan(store: &HostStore, rng: &mut Rng, keys: &[String]) {
    let (mut scanned, mut cursor) = (Vec::new(), 0);
    loop {
        let Ok(step) = store.scan(cursor, rng.within(1, 8) as usize).await else { return };
        scanned.extend(step.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()));
        cursor = step.next;
        if cursor == 0 {
            return judge_list(&scanned, keys);
        }
    }
}

fn judge_list(listed: &[String], keys: &[String]) {
    let fixed = fixed_keys();
    let written = |key: &String| keys.contains(key) || fixed.contains(key);
    assert!(listed.iter().all(written), "a key was listed that nobody wrote: {listed:?}");
    assert!(fixed.iter().all(|key| listed.contains(key)), "a key that is there throughout was not listed: {listed:?}");
}

/// All keys; `None` if the list failed.
pub async fn list_all(store: &HostStore) -> Option<Vec<String>> {
    let (mut listed, mut cursor) = (Vec::new(), 0);
    loop {
        let page = store.list(b"", cursor, 1000).await.ok()?;
        listed.extend(page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()));
        match page.next {
            Some(next) => cursor = next,
            None => return Some(listed),
        }
    }
}
