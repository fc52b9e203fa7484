//! The store over a real flash log on a medium in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::{Fault, FaultConfig, Memory};
use engine::rng::SplitMix;
use engine::sim::{SimConfig, World};
use engine::{Mapped, task};

use super::*;
use crate::flash::admission::{Admission, AdmitAll};
use crate::flash::{Boot, FlashLog, Options, Origin};
use crate::item::{Meta, NewValue, Value};
use crate::memory::Budget;
use crate::slot::Slot;
use crate::store::StoreOptions;

pub(super) const NOW: Seconds = Seconds(100);

/// More than fit.
const KEYS: u64 = 60_000;

pub(super) type Tiered = Store<Tier>;

/// What outlives a process: the medium, and the journal's file.
pub(super) struct Durable {
    pub(super) memory: Arc<Memory>,
    pub(super) device: FaultConfig,
    pub(super) journal: Arc<Mapped>,
    pub(super) options: Options,
}

impl Durable {
    pub(super) fn new(megabytes: u64) -> Durable {
        let memory = Arc::new(Memory::new(megabytes << 20, 4096, [1; 16]).expect("a namespace"));
        let sizes = Options { segment_bytes: 1 << 20, buffer_bytes: 4 << 20, ..Options::new(Origin(0), [1, 2]) };
        let options = Options { boot: Boot([1, 1]), ..sizes };
        let words = options.journal_words(&device::Namespace::info(&*memory)).expect("it holds a log");
        Durable { memory, device: FaultConfig::default(), journal: Arc::new(Mapped::memory(words)), options }
    }

    pub(super) async fn open(&self, limit: usize) -> Arc<Tiered> {
        self.open_with(limit, Box::new(AdmitAll)).await
    }

    pub(super) async fn open_with(&self, limit: usize, admission: Box<dyn Admission>) -> Arc<Tiered> {
        let base = Store::new(Hasher::new([9, 9]), Arc::new(Budget::without_buffers(limit)), StoreOptions::default());
        let restore = base.restoring();
        let device = Arc::new(Fault::new(self.memory.clone(), self.device.clone()));
        let opened = FlashLog::open(device, self.journal.clone(), &self.options, restore).await;
        let (log, recovery) = opened.expect("opened");
        let store = Arc::new(base.over(Tier::new(Arc::new(log), admission), &recovery));
        task::spawn(store.lower().log().clone().run()).detach();
        let collector = store.clone();
        task::spawn(async move {
            while collector.lower().log().collection_wanted().await == crate::flash::Wanted::Collection {
                if let Some(collection) = collector.lower().log().collect().await {
                    collector.collect(collection).await;
                }
            }
        })
        .detach();
        store
    }
}

/// As a session does it.
pub(super) async fn visit<R>(store: &Tiered, key: &[u8], now: Seconds, mut step: impl FnMut(&mut Held<'_>) -> R) -> R {
    let key = Key::new(key, store.hasher().hash(key)).unwrap();
    let mut look = Look::Whole;
    loop {
        match store.visit(&key, now, look, &mut step) {
            Ok(answer) => return answer,
            Err(place) => look = Look::Fetched(store.fetch(place).await),
        }
    }
}

pub(super) async fn put(store: &Tiered, key: &[u8], value: &[u8], unseen: bool) {
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

pub(super) async fn get(store: &Tiered, key: &[u8]) -> Option<Vec<u8>> {
    visit(store, key, NOW, |slot| {
        slot.note_access();
        let Value::Whole(bytes) = slot.item()?.value else { panic!("these are short") };
        Some(bytes.to_vec())
    })
    .await
}

pub(super) fn run(test: impl Future<Output = ()> + 'static) {
    World::new(1, SimConfig::default()).run_until(test).expect("it ends");
}

/// The version of each key that was acknowledged last, and its flags; none after a removal.
type Model = BTreeMap<u64, Option<(u64, u32)>>;

fn value(key: u64, version: u64, random: &mut SplitMix) -> Vec<u8> {
    let length = (random.below(1500)) as usize;
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

async fn work(store: &Tiered, model: &mut Model, random: &mut SplitMix, steps: u64) {
    for _ in 0..steps {
        let key = random.below(KEYS);
        let name = key.to_le_bytes();
        match random.below(10) {
            0..4 => {
                let version = random.draw();
                let value = value(key, version, random);
                put(store, &name, &value, version.is_multiple_of(2)).await;
                model.insert(key, Some((version, 0)));
            }
            4 => {
                visit(store, &name, NOW, |slot| slot.remove()).await;
                model.insert(key, None);
            }
            5 => {
                let flags = random.draw() as u32;
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
    let (mut model, mut random) = (Model::new(), SplitMix(11));
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
            work(&store, &mut model, &mut random, 80_000).await;
            let counters = store.usage().counters;
            assert!(counters.lowered > 5000, "{counters:?}");
            assert!(life == 0 || counters.collected > 1000, "{counters:?}");
            (model, random)
        });
        (model, random) = lived.expect("it ends");
    }
}

/// At a good end what is in memory goes to flash too, short and long, however slowly that is written; also where an admission
/// rule would not have it, and what expires meanwhile not.
#[test]
fn at_the_end_all_that_is_in_memory_goes_to_flash() {
    run(async {
        let [from, to] = [5, 9].map(std::time::Duration::from_millis);
        let durable = Durable { device: FaultConfig { delay: from..to, ..Default::default() }, ..Durable::new(128) };
        let store = durable.open(32 << 20).await;
        // Some of the keys are on flash already, changed or not.
        for key in 0..40_000_u64 {
            put(&store, &key.to_le_bytes(), &[1; 1000], true).await;
        }
        for key in (0..40_000_u64).step_by(3) {
            put(&store, &key.to_le_bytes(), &[2; 500], false).await;
        }
        store.make_room(NoRoom { bytes: 800_000 }).await.expect("made");
        let fill = |mut chunk: Buf| {
            let capacity = chunk.capacity();
            chunk.set_len(capacity);
            chunk.fill(3);
            chunk.freeze()
        };
        let long: Vec<_> = store.chunks(600_000).expect("room").into_iter().map(fill).collect();
        visit(&store, b"long", NOW, |slot| slot.put(Meta::default(), NewValue::Chunks(long.clone())).map(|_| ()))
            .await
            .expect("room");
        let expiring = Meta { expires: Seconds(NOW.0 + 1), ..Meta::default() };
        visit(&store, b"expiring", NOW, |slot| slot.put(expiring, NewValue::Pieces(&[b"x"])).map(|_| ()))
            .await
            .expect("room");
        visit(&store, b"other", Seconds(NOW.0 + 2), |_| ()).await;
        let mut before = BTreeMap::new();
        for key in 0..40_000_u64 {
            before.insert(key, get(&store, &key.to_le_bytes()).await);
        }
        let refused = store.lower().log().stats().refused_items;
        store.lower_all().await;
        assert_eq!((store.usage().item_segments, store.usage().counters.stored), (0, store.usage().counters.stored));
        assert!(store.lower().log().stats().refused_items > refused, "nothing had to wait for the device");
        store.lower().log().close().await.expect("closed");
        drop(store);

        let store = durable.open(32 << 20).await;
        let mut missing = 0;
        for (key, value) in before {
            let again = get(&store, &key.to_le_bytes()).await;
            assert!(again.is_none() || again == value, "key {key}");
            missing += u32::from(again != value);
        }
        // Of two that are one to the index one goes.
        assert!(missing <= 4, "{missing}");
        let is_long = |slot: &mut Held<'_>| {
            let Some(Value::Chunks(chunks)) = slot.item().map(|item| item.value) else { panic!("it is long") };
            chunks.iter().map(|chunk| chunk.len()).sum::<usize>() >= 600_000
                && chunks.iter().all(|chunk| chunk.iter().all(|&byte| byte == 3))
        };
        assert!(visit(&store, b"long", NOW, is_long).await);
        assert_eq!(get(&store, b"expiring").await, None);
    });
}

/// Flash holds more items than the memory of the next start has room for entries: what is not told is a miss, and items have room.
#[test]
fn what_is_restored_leaves_room_for_items() {
    run(async {
        let durable = Durable::new(64);
        // A segment's summary is short beside the memory: what waits must not be what leaves room.
        let value = |key: u64| key.to_le_bytes().repeat(5);
        let store = durable.open(32 << 20).await;
        for key in 0..600_000_u64 {
            put(&store, &key.to_le_bytes(), &value(key), true).await;
        }
        store.lower_all().await;
        store.lower().log().close().await.expect("closed");
        let before = store.usage().counters.items;
        drop(store);

        let store = durable.open(4 << 20).await;
        let usage = store.usage();
        assert!(
            usage.index_segments * crate::memory::SEGMENT_BYTES * 4 <= usage.limit * 3 && before > usage.counters.items,
            "{before} {usage:?}"
        );
        let mut found = 0;
        for key in 0..600_000_u64 {
            let got = get(&store, &key.to_le_bytes()).await.map(|got| assert_eq!(got, value(key)));
            found += u64::from(got.is_some());
        }
        assert!(found > 200_000, "{found}");
        for key in 0..20_000_u64 {
            put(&store, &key.to_le_bytes(), b"new", true).await;
        }
        assert_eq!(get(&store, &19_999_u64.to_le_bytes()).await.as_deref(), Some(b"new".as_slice()));
        let usage = store.usage();
        assert!(usage.used <= usage.limit && usage.item_segments >= 2, "{usage:?}");
    });
}

/// A store with some keys on flash that nothing else is done with.
async fn with_items_on_flash(durable: &Durable, keys: u64) -> Arc<Tiered> {
    let store = durable.open(16 << 20).await;
    for key in 0..keys {
        put(&store, &key.to_le_bytes(), &[1; 1000], true).await;
    }
    store.lower_all().await;
    store
}

fn place_of(store: &Tiered, key: &[u8]) -> Option<FlashPlace> {
    let key = Key::new(key, store.hasher().hash(key)).unwrap();
    let located = store.with_shard(store.cell(key.hash()), |shard| shard.locate(&key, NOW, &store.pool));
    match located {
        Located::Flash(at) => Some(at.place),
        Located::Memory(_) | Located::Nowhere => None,
    }
}

/// What is stored after a read that found something else takes the place of what is there, also where that is this key's: a
/// medium may lie once.
#[test]
fn what_was_not_found_on_flash_does_not_come_back() {
    for lookup in [Lookup::Other, Lookup::Lost, Lookup::Unread] {
        let durable = Arc::new(Durable::new(16));
        let first = durable.clone();
        let ended = World::new(1, SimConfig::default()).run_until(async move {
            let store = with_items_on_flash(&first, 1000).await;
            // The segment is whole when it is full: what is told after a restart is on the medium.
            for key in 1000..3000_u64 {
                put(&store, &key.to_le_bytes(), &[1; 1000], true).await;
            }
            store.lower_all().await;
            engine::time::sleep(std::time::Duration::from_secs(1)).await;
            for (key, removes) in [(1_u64, true), (2, false)] {
                let name = key.to_le_bytes();
                let place = place_of(&store, &name).expect("on flash");
                let read = Read { place, lookup: lookup.clone() };
                let hashed = Key::new(&name, store.hasher().hash(&name)).unwrap();
                let step = |slot: &mut Held<'_>| {
                    assert!(slot.item().is_none());
                    slot.put(Meta::default(), NewValue::Pieces(&[b"new"])).map(|_| ())
                };
                store.visit(&hashed, NOW, Look::Fetched(read), step).expect("not asked again").expect("room");
                if removes {
                    visit(&store, &name, NOW, |slot| slot.remove()).await;
                    assert_eq!(get(&store, &name).await, None, "{lookup:?}");
                } else {
                    assert_eq!(get(&store, &name).await.as_deref(), Some(&b"new"[..]), "{lookup:?}");
                }
            }
            // What was not read is deleted all the same.
            let name = 4_u64.to_le_bytes();
            let read = Read { place: place_of(&store, &name).expect("on flash"), lookup: lookup.clone() };
            let hashed = Key::new(&name, store.hasher().hash(&name)).unwrap();
            let delete = |slot: &mut Held<'_>| crate::commands::delete(slot, None, crate::commands::Delete::Remove);
            store.visit(&hashed, NOW, Look::Fetched(read), delete).expect("not asked again");
            assert_eq!(get(&store, &name).await, None, "{lookup:?}");
        });
        ended.expect("it ends");
        // The process was killed: what was in memory is gone, and what it had replaced does not come back.
        run(async move {
            let store = durable.open(16 << 20).await;
            assert!(get(&store, &3_u64.to_le_bytes()).await.is_some(), "the segment is read again");
            for key in [1_u64, 2, 4] {
                assert_eq!(get(&store, &key.to_le_bytes()).await, None);
            }
        });
    }
}

/// An item is promoted while its segment is collected: it has no copy there from then on, and is written when it leaves again.
#[test]
fn an_item_promoted_while_its_segment_is_collected_has_no_copy() {
    run(async {
        let durable = Durable::new(32);
        let store = with_items_on_flash(&durable, 1000).await;
        let name = 7_u64.to_le_bytes();
        let (hash, place) = (store.hasher().hash(&name), place_of(&store, &name).expect("on flash"));
        get(&store, &name).await;
        let cell = store.cell(hash);
        assert_eq!(store.with_shard(cell, |shard| shard.is_wanted(hash, place)), Fate::Stays);
        get(&store, &name).await;
        assert_eq!((place_of(&store, &name), store.usage().counters.promoted), (None, 1), "it is in memory");
        let never = || unreachable!("it is not at its place any more");
        assert!(!store.with_shard(cell, |shard| shard.rehome(hash, place, never)));
        let before = store.lower().log().stats().admitted_items;
        store.lower_all().await;
        assert_eq!(store.lower().log().stats().admitted_items, before + 1);
        assert_eq!(get(&store, &name).await.as_deref(), Some(&[1; 1000][..]));
    });
}

/// Without memory for a read there is a miss, and the item stays.
#[test]
fn without_memory_nothing_is_read() {
    run(async {
        let durable = Durable::new(32);
        let store = with_items_on_flash(&durable, 1000).await;
        let room = store.budget().room();
        store.budget().take(Kind::Base, room + (64 << 20));
        let reads = store.lower().log().stats();
        // The index is all there is to be given up; that would be too much to ask.
        store.evict.store(false, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(get(&store, &7_u64.to_le_bytes()).await, None);
        assert_eq!(store.lower().log().stats(), reads);
        store.budget().give(Kind::Base, room + (64 << 20));
        assert!(get(&store, &7_u64.to_le_bytes()).await.is_some());
    });
}

/// Whoever decides what goes to flash is told of what leaves it.
#[test]
fn admission_is_told_of_what_is_displaced() {
    #[derive(Debug, Default)]
    struct Counting(std::sync::atomic::AtomicU64);
    impl Admission for Arc<Counting> {
        fn note(&self, _: u64) {}
        fn admits(&self, _: u64) -> bool {
            true
        }
        fn note_displaced(&self, _: u64) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    run(async {
        let counting = Arc::new(Counting::default());
        let durable = Durable::new(16);
        let store = durable.open_with(8 << 20, Box::new(counting.clone())).await;
        for key in 0..60_000_u64 {
            put(&store, &key.to_le_bytes(), &[1; 1000], true).await;
        }
        let collected = store.usage().counters.collected;
        let counted = counting.0.load(std::sync::atomic::Ordering::Relaxed);
        assert!(collected > 10_000 && counted == collected, "{collected}");
    });
}

/// Flash ends: its entries take no memory any more, what is in memory stays.
#[test]
fn what_was_on_flash_is_forgotten_when_it_ends() {
    run(async {
        let durable = Durable::new(64);
        let store = durable.open(8 << 20).await;
        for key in 0..200_000_u64 {
            put(&store, &key.to_le_bytes(), &[key as u8; 100], true).await;
        }
        let before = store.usage();
        let mut in_memory = Vec::new();
        for key in 190_000..200_000_u64 {
            in_memory.extend(place_of(&store, &key.to_le_bytes()).is_none().then_some(key));
        }
        store.forget_flash().await;
        let after = store.usage();
        assert!(after.index_segments * 2 < before.index_segments, "{before:?} {after:?}");
        assert!(after.counters.items < before.counters.items / 2 && in_memory.len() > 5000);
        for key in in_memory {
            assert_eq!(get(&store, &key.to_le_bytes()).await, Some(vec![key as u8; 100]), "key {key}");
        }
    });
}
