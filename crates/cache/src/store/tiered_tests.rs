//! The store over a real flash log on a medium in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::Memory;
use engine::sim::{SimConfig, World};
use engine::{Mapped, task};

use super::*;
use crate::flash::admission::AdmitAll;
use crate::flash::{Boot, FlashLog, Options, Origin};
use crate::item::{Meta, NewValue, Value};
use crate::memory::Budget;
use crate::slot::Slot;
use crate::store::StoreOptions;

const NOW: Seconds = Seconds(100);

/// More than fit.
const KEYS: u64 = 60_000;

type Tiered = Store<Tier<Memory>>;

/// What outlives a process: the medium, and the journal's file.
struct Durable {
    memory: Arc<Memory>,
    journal: Arc<Mapped>,
    options: Options,
}

impl Durable {
    fn new(megabytes: u64) -> Durable {
        let memory = Arc::new(Memory::new(megabytes << 20, 4096, [1; 16]).expect("a namespace"));
        let sizes = Options { segment_bytes: 1 << 20, buffer_bytes: 8 << 20, ..Options::new(Origin(0), [1, 2]) };
        let options = Options { boot: Boot([1, 1]), ..sizes };
        let words = options.journal_words(&Namespace::info(&*memory)).expect("it holds a log");
        Durable { memory, journal: Arc::new(Mapped::memory(words)), options }
    }

    async fn open(&self, limit: usize) -> Arc<Tiered> {
        let base = Store::new(Hasher::new([9, 9]), Arc::new(Budget::without_buffers(limit)), StoreOptions::default());
        let restore = |items: &[(u64, Place)], displaced: &mut Vec<Place>| base.restore(items, displaced);
        let opened = FlashLog::open(self.memory.clone(), self.journal.clone(), &self.options, restore).await;
        let (log, recovery) = opened.expect("opened");
        let store = Arc::new(base.over(Tier::new(Arc::new(log), Box::new(AdmitAll)), &recovery));
        task::spawn(store.tier().log().clone().run()).detach();
        let collector = store.clone();
        task::spawn(async move {
            loop {
                collector.tier().log().collection_wanted().await;
                if let Some(collection) = collector.tier().log().collect().await {
                    collector.collect(collection).await;
                }
            }
        })
        .detach();
        store
    }
}

/// As a session does it.
async fn visit<R>(store: &Tiered, key: &[u8], now: Seconds, mut step: impl FnMut(&mut Held<'_>) -> R) -> R {
    let key = Key::new(key, store.hasher().hash(key)).unwrap();
    let mut look = Look::Whole;
    loop {
        match store.visit(&key, now, look, &mut step) {
            Ok(answer) => return answer,
            Err(place) => look = Look::Fetched(store.fetch(place).await),
        }
    }
}

async fn put(store: &Tiered, key: &[u8], value: &[u8], unseen: bool) {
    loop {
        let mut step = |slot: &mut Held<'_>| slot.put(Meta::default(), NewValue::Pieces(&[value]));
        let hashed = Key::new(key, store.hasher().hash(key)).unwrap();
        let stored = if unseen {
            store.visit(&hashed, NOW, Look::Unseen, step).expect("it asks for nothing")
        } else {
            visit(store, key, NOW, &mut step).await
        };
        match stored {
            Ok(_) => return,
            Err(no_room) => store.make_room(no_room).await.unwrap(),
        }
    }
}

async fn get(store: &Tiered, key: &[u8]) -> Option<Vec<u8>> {
    visit(store, key, NOW, |slot| {
        slot.note_access();
        let Value::Whole(bytes) = slot.item()?.value else { panic!("these are short") };
        Some(bytes.to_vec())
    })
    .await
}

fn run(test: impl Future<Output = ()> + 'static) {
    World::new(1, SimConfig::default()).run_until(test).expect("it ends");
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mixed = (*state ^ (*state >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

/// The version of each key that was acknowledged last, and its flags; none after a removal.
type Model = BTreeMap<u64, Option<(u64, u32)>>;

fn value(key: u64, version: u64, state: &mut u64) -> Vec<u8> {
    let length = (random(state) % 1500) as usize;
    [&key.to_le_bytes()[..], &version.to_le_bytes(), &vec![key as u8; length]].concat()
}

/// Reads a key: what is there has to be what was acknowledged last.
async fn check(store: &Tiered, model: &Model, key: u64) -> bool {
    let there = visit(store, &key.to_le_bytes(), NOW, |slot| {
        slot.note_access();
        let item = slot.item()?;
        let Value::Whole(bytes) = item.value else { panic!("these are short") };
        assert_eq!(bytes[..8], key.to_le_bytes(), "another key's value");
        assert!(bytes[16..].iter().all(|&byte| byte == key as u8));
        Some((u64::from_le_bytes(bytes[8..16].try_into().unwrap()), item.meta.flags))
    })
    .await;
    assert!(there.is_none() || Some(&there) == model.get(&key), "key {key}: {there:?}, not what was acknowledged last");
    there.is_some()
}

async fn work(store: &Tiered, model: &mut Model, state: &mut u64, steps: u64) {
    for _ in 0..steps {
        let key = random(state) % KEYS;
        let name = key.to_le_bytes();
        match random(state) % 10 {
            0..4 => {
                let version = random(state);
                let value = value(key, version, state);
                put(store, &name, &value, version.is_multiple_of(2)).await;
                model.insert(key, Some((version, 0)));
            }
            4 => {
                visit(store, &name, NOW, |slot| slot.remove()).await;
                model.insert(key, None);
            }
            5 => {
                let flags = random(state) as u32;
                let change = |slot: &mut Held<'_>| {
                    slot.set_meta(|meta| meta.flags = flags);
                    slot.item().is_some()
                };
                if visit(store, &name, NOW, change).await
                    && let Some(Some(known)) = model.get_mut(&key)
                {
                    known.1 = flags;
                }
            }
            _ => {
                check(store, model, key).await;
            }
        }
    }
}

#[test]
fn what_leaves_memory_is_found_on_flash() {
    run(async {
        let durable = Durable::new(128);
        let store = durable.open(16 << 20).await;
        for key in 0..50_000_u64 {
            put(&store, &key.to_le_bytes(), &[7; 1000], true).await;
        }
        let mut found = 0;
        for key in 0..50_000_u64 {
            found += u32::from(get(&store, &key.to_le_bytes()).await.is_some_and(|value| value == [7; 1000]));
        }
        let counters = store.usage().counters;
        assert!(found > 45_000, "{found} of 50,000 in 16 MiB of memory and 128 MiB of flash: {counters:?}");
        assert!(counters.lowered > 30_000, "{counters:?}");
        // What is hit twice comes to memory again.
        for _ in 0..3 {
            for key in 0..1000_u64 {
                get(&store, &key.to_le_bytes()).await;
            }
        }
        assert!(store.usage().counters.promoted > 500, "{:?}", store.usage().counters);
        store.flush(NOW, NOW);
        for key in 0..100_u64 {
            assert_eq!(get(&store, &key.to_le_bytes()).await, None);
        }
    });
}

/// Flash has room for more items than memory has for their entries: the index stops short of all of it.
#[test]
fn the_index_leaves_room_for_items() {
    run(async {
        let durable = Durable::new(64);
        let store = durable.open(3 << 20).await;
        for key in 0..400_000_u64 {
            put(&store, &key.to_le_bytes(), b"short", true).await;
        }
        let usage = store.usage();
        assert!(usage.used <= usage.limit, "{usage:?}");
        assert!(usage.counters.items > 150_000 && usage.item_segments >= 2, "{usage:?}");
        assert!(get(&store, &399_999_u64.to_le_bytes()).await.is_some());
    });
}

/// More than memory and flash hold, changed all the time: a get gives what was acknowledged last, or nothing; also after the
/// process was killed and another one has opened the log, and again.
#[test]
fn a_get_gives_what_was_acknowledged_last_or_nothing() {
    let durable = Arc::new(Durable::new(24));
    let (mut model, mut state) = (Model::new(), 11);
    for life in 0..4 {
        let durable = durable.clone();
        // The world's end is the process's: what is not written yet dies with it, and nothing is told to the log.
        let lived = World::new(life, SimConfig::default()).run_until(async move {
            let store = durable.open(6 << 20).await;
            let mut found = 0;
            for key in 0..KEYS {
                found += u32::from(check(&store, &model, key).await);
            }
            assert!(life == 0 || found > 3000, "{found} items outlived the kill");
            work(&store, &mut model, &mut state, 80_000).await;
            let counters = store.usage().counters;
            assert!(counters.lowered > 5000, "{counters:?}");
            assert!(life == 0 || counters.collected > 1000, "{counters:?}");
            (model, state)
        });
        (model, state) = lived.expect("it ends");
    }
}
