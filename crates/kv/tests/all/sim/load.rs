//! The load: clients that put, get, delete and list a few keys, and write down what they asked and were told.

use std::rc::Rc;
use std::time::Duration;

use check::{Action, appended};
use engine::time;
use kv::Value;
use kv::store::PutOptions;
use pool::{KeyHash, Map};

use crate::sim::book::{Book, Kind, LENGTH_MIN};
use crate::sim::cluster::HostStore;
use crate::sim::conditional::{self, Seen};
use crate::sim::hungry;
use crate::sim::scenario::{Rng, Scenario};

/// The keys of the load: those of plain values, and in scenarios with conditional operations some of every other kind.
pub fn keys(scenario: &Scenario, map: &Map) -> Vec<String> {
    let mut keys = plain_keys(scenario, map);
    if scenario.conditional {
        keys.extend(["number0", "number1", "pieces0", "ending0", "ending1"].map(String::from));
    }
    if scenario.hungry {
        keys.extend(hungry::KEYS.map(String::from));
    }
    keys
}

/// Keys of which several are at home in the same page.
fn plain_keys(scenario: &Scenario, map: &Map) -> Vec<String> {
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

/// Who asks.
pub struct Client {
    /// The host's store.
    pub store: HostStore,
    /// Where it is written down.
    pub book: Book,
    /// Who this is, for the history.
    pub number: u32,
    /// What is drawn.
    pub rng: Rng,
    /// Longest values ([`Scenario::sizes`]).
    pub sizes: u64,
    /// Deadlines can be told from the clock: no clock jumps.
    pub clocks_go_on: bool,
    /// What was last seen.
    pub seen: Seen,
}

/// One client: its operations, one after the other.
pub async fn client(store: HostStore, book: Book, scenario: Scenario, keys: Rc<Vec<String>>, number: u32) {
    let rng = Rng::new(scenario.seed, 1000 + u64::from(number));
    let (sizes, clocks_go_on, seen) = (scenario.sizes, !scenario.faults.clock_jumps, Seen::new());
    let mut client = Client { store, book, number, rng, sizes, clocks_go_on, seen };
    for _ in 0..scenario.operations {
        let pause = client.rng.millis(0, scenario.think.as_millis() as u64);
        time::sleep(pause).await;
        let key = &keys[client.rng.within(0, keys.len() as u64 - 1) as usize];
        let draw = client.rng.within(0, 99);
        match (draw, Kind::of(key)) {
            (0 | 1, _) => list(&client.store, &keys).await,
            (2, _) => scan(&client.store, &mut client.rng, &keys).await,
            (3..=42, _) => client.get(key).await,
            (43..=50, _) => client.delete(key).await,
            (_, Kind::Plain) if !scenario.conditional || draw < 75 => client.put(key).await,
            (_, kind) => conditional::act(&mut client, key, kind).await,
        }
    }
}

impl Client {
    /// A value of its own that nobody has written before.
    pub fn new_value(&mut self) -> (u64, Value) {
        let length = length(&mut self.rng, self.sizes);
        self.book.new_value(&mut self.rng, length)
    }

    async fn put(&mut self, key: &str) {
        let (id, value) = self.new_value();
        let token = self.book.invoked(self.number, key, Action::Put, Some(id));
        let result = self.store.put_with(key.as_bytes(), value, PutOptions::default()).await;
        self.book.answered(token, result, |recorder, token, ()| recorder.returned(token, None));
    }

    async fn delete(&mut self, key: &str) {
        // It tells what it saw when it looked, which may have been another's by the time it took effect.
        let look = self.book.invoked(self.number, key, Action::Look, None);
        let token = self.book.invoked(self.number, key, Action::Delete, None);
        let result = self.store.delete(key.as_bytes()).await;
        self.book.answered(token, result, |recorder, token, was_there| {
            recorder.decided(look, was_there);
            recorder.returned(token, None);
        });
    }

    async fn get(&mut self, key: &str) {
        let token = self.book.invoked(self.number, key, Action::Get, None);
        let asked = time::unix_time();
        let result = self.store.get_versioned(key.as_bytes()).await;
        if let Ok(Some(found)) = &result {
            let ended = found.expiry.is_some_and(|expiry| u128::from(expiry) <= asked.as_millis());
            assert!(!(ended && self.clocks_go_on), "{key} has ended at {:?}, and it was {asked:?}", found.expiry);
            let id = self.book.identify(key, &found.value);
            self.seen.insert(key.to_owned(), (found.version, id));
        }
        let id = |found: kv::store::Versioned| self.book.identify(key, &found.value);
        self.book.answered(token, result, |recorder, token, found| recorder.returned(token, found.map(id)));
    }
}

/// Reads a key and writes the answer down; whether there was one.
pub async fn get(store: &HostStore, book: &Book, key: &str, number: u32) -> bool {
    let token = book.invoked(number, key, Action::Get, None);
    let answer = store.get(key.as_bytes()).await;
    let answered = answer.is_ok();
    let id = |value: Value| book.identify(key, &value);
    book.answered(token, answer, |recorder, token, value| recorder.returned(token, value.map(id)));
    answered
}

/// Bytes of a value that is put to end what is amiss. Chosen: short enough for any page.
const PUT_BYTES: usize = 64;
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

/// Puts a value under each of the keys whose values may lie out of line.
pub async fn put_keys(store: &HostStore, book: &Book, rng: &mut Rng, keys: &[String]) {
    for key in keys.iter().filter(|key| matches!(Kind::of(key), Kind::Plain | Kind::Ending | Kind::Blocks)) {
        let (id, value) = match Kind::of(key) {
            Kind::Blocks => {
                let (piece, value) = book.new_block(rng);
                (appended(None, piece), value)
            }
            _ => book.new_value(rng, PUT_BYTES),
        };
        let token = book.invoked(u32::MAX, key, Action::Put, Some(id));
        let put = store.put(key.as_bytes(), value).await;
        assert!(put.is_ok(), "{key} cannot be put though all is well again: {put:?}");
        book.returned(token, None);
    }
}

/// Deletes the keys of the load.
pub async fn delete_keys(store: &HostStore, book: &Book, keys: &[String]) {
    for key in keys {
        let token = book.invoked(u32::MAX, key, Action::Delete, None);
        let deleted = store.delete(key.as_bytes()).await;
        assert!(deleted.is_ok(), "{key} cannot be deleted though all is well again: {deleted:?}");
        book.returned(token, None);
    }
}

/// Deletes the keys that are there from the first moment to the last, and which are there.
pub async fn delete_fixed(store: &HostStore) {
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
