//! Several threads use one store over flash, whose items are collected, moved and promoted meanwhile: no answer is older than what
//! was acknowledged before it was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cache::flash::admission::AdmitAll;
use cache::flash::{Boot, FlashLog, Options, Origin, Tier};
use cache::hash::Hasher;
use cache::item::{Key, Meta, NewValue, Seconds, Value};
use cache::memory::Budget;
use cache::slot::{Look, Slot, Slots};
use cache::store::{Held, Store, StoreOptions};
use device::{Memory, Namespace};
use engine::{Mapped, Reactor, ReactorConfig, task, time};

const NOW: Seconds = Seconds(100);
const MEMORY_BYTES: usize = 4 << 20;
const FLASH_BYTES: u64 = 16 << 20;
/// Of a thousand bytes on the mean: more than memory and flash hold.
const KEYS: u64 = 25_000;
const THREADS: usize = 3;
const COMMANDS: usize = 60_000;

struct Shared {
    store: Store<Tier>,
    /// Of each key the number that was put last, changed while its slot is held: 0 after a removal.
    last: Vec<AtomicU64>,
    drawn: AtomicU64,
    found: AtomicU64,
    is_done: AtomicBool,
}

impl Shared {
    /// As a session does it.
    async fn visit<R>(&self, key: u64, mut step: impl FnMut(&mut Held<'_>) -> R) -> R {
        let bytes = key.to_le_bytes();
        let key = Key::new(&bytes, self.store.hasher().hash(&bytes)).unwrap();
        let mut look = Look::Whole;
        loop {
            match self.store.visit(&key, NOW, look, &mut step) {
                Ok(answer) => return answer,
                Err(place) => look = Look::Fetched(self.store.fetch(place).await),
            }
        }
    }

    async fn put(&self, key: u64, unseen: bool) {
        let filler = vec![key as u8; task::random_u64() as usize % 2000];
        let step = |slot: &mut Held<'_>| {
            let number = self.drawn.fetch_add(1, Ordering::SeqCst);
            let pieces: [&[u8]; 3] = [&key.to_le_bytes(), &number.to_le_bytes(), &filler];
            slot.put(Meta::default(), NewValue::Pieces(&pieces))?;
            self.last[key as usize].store(number, Ordering::SeqCst);
            Ok(())
        };
        loop {
            let stored = if unseen {
                let bytes = key.to_le_bytes();
                let key = Key::new(&bytes, self.store.hasher().hash(&bytes)).unwrap();
                self.store.visit(&key, NOW, Look::Unseen, step).expect("it asks for nothing")
            } else {
                self.visit(key, step).await
            };
            match stored {
                Ok(()) => return,
                Err(no_room) => self.store.make_room(no_room).await.unwrap(),
            }
        }
    }

    async fn remove(&self, key: u64) {
        let step = |slot: &mut Held<'_>| {
            slot.remove();
            self.last[key as usize].store(0, Ordering::SeqCst);
        };
        self.visit(key, step).await;
    }

    async fn get(&self, key: u64) {
        let found = self.visit(key, |slot| {
            slot.note_access();
            let item = slot.item()?;
            let Value::Whole(bytes) = item.value else { panic!("these are short") };
            assert_eq!(bytes[..8], key.to_le_bytes(), "another key's value");
            assert!(bytes[16..].iter().all(|&byte| byte == key as u8));
            let number = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            // With the slot held nobody puts: it is exactly the last one.
            assert_eq!(number, self.last[key as usize].load(Ordering::SeqCst), "key {key}");
            Some(())
        });
        self.found.fetch_add(u64::from(found.await.is_some()), Ordering::Relaxed);
    }

    async fn work(self: Arc<Self>) {
        for _ in 0..COMMANDS {
            // Some keys are asked for more often than others.
            let key = (task::random_u64() % KEYS).min(task::random_u64() % KEYS);
            match task::random_u64() % 10 {
                0..3 => self.put(key, key.is_multiple_of(2)).await,
                3 => self.remove(key).await,
                _ => self.get(key).await,
            }
        }
    }

    /// One thread writes and collects.
    async fn keep(self: Arc<Self>) {
        let log = self.store.lower().log().clone();
        let writer = task::spawn(log.clone().run());
        while !self.is_done.load(Ordering::SeqCst) {
            // Looked at again now and then: whether it is done.
            let _ = time::timeout(Duration::from_millis(10), log.collection_wanted()).await;
            while let Some(collection) = log.collect().await {
                self.store.collect(collection).await;
            }
        }
        log.close().await.expect("closed");
        writer.await;
    }
}

#[test]
fn threads_see_what_was_acknowledged_last_or_nothing() {
    let memory = Arc::new(Memory::new(FLASH_BYTES, 4096, [1; 16]).expect("a namespace"));
    let sizes = Options { segment_bytes: 1 << 20, buffer_bytes: 8 << 20, ..Options::new(Origin(0), [1, 2]) };
    let options = Options { boot: Boot([1, 1]), ..sizes };
    let journal = Arc::new(Mapped::memory(options.journal_words(&memory.info()).expect("it holds a log")));
    let open = async move { FlashLog::open(memory, journal, &options, ()).await.expect("opened") };
    let (log, recovery) = Reactor::run(ReactorConfig::default(), open).expect("a reactor");
    let budget = Arc::new(Budget::without_buffers(MEMORY_BYTES));
    let store_options = StoreOptions { threads: THREADS, ..StoreOptions::default() };
    let store = Store::new(Hasher::new([1, 2]), budget, store_options);
    let shared = Arc::new(Shared {
        store: store.over(Tier::new(Arc::new(log), Box::new(AdmitAll)), &recovery),
        last: std::iter::repeat_with(AtomicU64::default).take(KEYS as usize).collect(),
        drawn: AtomicU64::new(1),
        found: AtomicU64::new(0),
        is_done: AtomicBool::new(false),
    });
    let keeper = {
        let shared = Arc::clone(&shared);
        std::thread::spawn(|| Reactor::run(ReactorConfig::default(), shared.keep()))
    };
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(|| Reactor::run(ReactorConfig::default(), shared.work()))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no assertion failed").expect("a reactor"));
    shared.is_done.store(true, Ordering::SeqCst);
    keeper.join().expect("no assertion failed").expect("a reactor");
    let (found, usage) = (shared.found.load(Ordering::Relaxed), shared.store.usage());
    let stats = shared.store.lower().log().stats();
    println!("{found} found, {usage:?}, {stats:?}");
    assert!(found > 10_000 && usage.counters.promoted > 1000 && stats.kept_items > 10, "{found} {usage:?} {stats:?}");
    assert!(usage.used <= usage.limit, "{usage:?}");
}
