//! Several threads append, read and collect at the same time: no answer is older than what was acknowledged before it
//! was asked for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cache::flash::{FlashLog, Lookup, Place, Reason, Refused};
use cache::item::{Cas, Meta};
use device::Memory;
use engine::{Reactor, ReactorConfig, task, time};

use crate::flash::owner::{SEGMENT_BYTES, journal, key_of, options, value_of};

const KEYS: u32 = 200;
const THREADS: usize = 3;
const COMMANDS: usize = 6000;

/// What a key's slot guards: of all keys at once, to keep it plain.
#[derive(Default)]
struct Slots {
    memory: BTreeMap<u32, u64>,
    index: BTreeMap<u64, Place>,
}

struct Shared {
    log: Arc<FlashLog>,
    slots: Mutex<Slots>,
    versions: Vec<AtomicU64>,
    next: AtomicU64,
    hits: AtomicU64,
    is_done: AtomicBool,
}

fn hash(key: u32) -> u64 {
    (u64::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 << 16
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no assertion fails while it is held")
    }

    fn set(&self, key: u32) {
        let mut slots = self.slots();
        let version = self.next.fetch_add(1, Ordering::SeqCst);
        if let Some(place) = slots.index.remove(&hash(key)) {
            self.log.invalidate(place);
        }
        slots.memory.insert(key, version);
        self.versions[key as usize].store(version, Ordering::SeqCst);
    }

    fn demote(&self, key: u32) -> Result<(), Refused> {
        let mut slots = self.slots();
        let Some(version) = slots.memory.remove(&key) else { return Ok(()) };
        let meta = Meta { cas: Cas(version), ..Meta::default() };
        let place = self.log.append(hash(key), &key_of(key), &meta, &[&value_of(key, version)], Reason::Admitted)?;
        slots.index.insert(hash(key), place);
        Ok(())
    }

    async fn get(&self, key: u32) {
        let acknowledged = self.versions[key as usize].load(Ordering::SeqCst);
        let version = loop {
            let place = {
                let slots = self.slots();
                if let Some(&version) = slots.memory.get(&key) {
                    break version;
                }
                slots.index.get(&hash(key)).copied()
            };
            let Some(place) = place else { return };
            let lookup = self.log.read(place, &key_of(key)).await;
            let slots = self.slots();
            match lookup {
                _ if slots.index.get(&hash(key)) != Some(&place) => {}
                Lookup::Found(fetched) if self.log.is_current(&fetched) => {
                    let version = fetched.meta().cas.0;
                    let value: Vec<u8> = fetched.value().iter().flat_map(|piece| piece.to_vec()).collect();
                    assert!(value == value_of(key, version), "key {key} version {version}: other bytes");
                    self.hits.fetch_add(1, Ordering::Relaxed);
                    break version;
                }
                Lookup::Found(_) => {}
                other => panic!("a sound device and an index that is right: {other:?}"),
            }
        };
        assert!(version >= acknowledged, "key {key}: version {version} after {acknowledged}");
    }

    async fn collect(&self) {
        while !self.is_done.load(Ordering::SeqCst) {
            // Looked at again now and then: whether it is done.
            let _ = time::timeout(Duration::from_millis(10), self.log.collection_wanted()).await;
            while let Some(collection) = self.log.collect().await {
                for item in collection.items().iter() {
                    let fetched = if item.hash >> 20 & 1 == 1 { collection.fetch(*item).await } else { None };
                    let mut slots = self.slots();
                    if slots.index.get(&item.hash) != Some(&item.place) {
                        continue;
                    }
                    let kept = fetched.and_then(|fetched| {
                        let pieces: Vec<&[u8]> = fetched.value().iter().map(|piece| &**piece).collect();
                        self.log.append(item.hash, fetched.key(), &fetched.meta(), &pieces, Reason::Kept).ok()
                    });
                    match kept {
                        Some(place) => slots.index.insert(item.hash, place),
                        None => slots.index.remove(&item.hash),
                    };
                }
            }
        }
    }

    /// One thread writes and collects.
    async fn keep(self: Arc<Self>) {
        let writer = task::spawn(Arc::clone(&self.log).run());
        self.collect().await;
        self.log.close().await.expect("closed");
        writer.await;
    }

    /// The others.
    async fn work(self: Arc<Self>) {
        for _ in 0..COMMANDS {
            self.command().await;
        }
    }

    async fn command(&self) {
        let key = task::random_u64() as u32 % KEYS;
        match task::random_u64() % 10 {
            0..3 => self.set(key),
            3..6 => {
                if self.demote(key) == Err(Refused::Full) {
                    self.log.room(Reason::Admitted).await;
                }
            }
            _ => self.get(key).await,
        }
    }
}

#[test]
fn threads_see_nothing_older_than_what_was_acknowledged() {
    let namespace = Arc::new(Memory::new(12 * SEGMENT_BYTES as u64, 4096, [1; 16]).expect("a namespace"));
    let journal = journal(&*namespace, &options());
    let open = async move { FlashLog::open(namespace, journal, &options(), ()).await.expect("opened").0 };
    let log = Arc::new(Reactor::run(ReactorConfig::default(), open).expect("a reactor"));
    let shared = Arc::new(Shared {
        log: Arc::clone(&log),
        slots: Mutex::default(),
        versions: std::iter::repeat_with(AtomicU64::default).take(KEYS as usize).collect(),
        next: AtomicU64::new(1),
        hits: AtomicU64::new(0),
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
    let stats = log.stats();
    assert!(stats.collected_segments > 12 && shared.hits.load(Ordering::SeqCst) > 100, "{stats:?}");
}
