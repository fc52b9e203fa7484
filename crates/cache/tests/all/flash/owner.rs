//! The plainest possible cache over the log: items in memory and an index in two maps, and beside them the truth. It
//! does what the log's users must do, and judges every answer: the latest acknowledged value, or a miss.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::flash::{
    Boot, FlashLog, HASH_BITS, Lookup, Medium, OpenError, Options, Origin, Place, Reason, Records, Recovery, Refused,
};
use cache::item::{Cas, Meta, Seconds};
use device::Namespace;
use engine::{Mapped, task, time};

pub const SEGMENT_BYTES: usize = 64 << 10;
pub const BOOT: Boot = Boot([1, 2]);
/// When a collection that came to nothing is tried again.
const COLLECT_AGAIN_AFTER: Duration = Duration::from_millis(10);

pub fn options() -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        buffer_bytes: 3 * SEGMENT_BYTES,
        boot: BOOT,
        ..Options::new(Origin(1000), [3, 4])
    }
}

pub fn journal(namespace: &impl Namespace, options: &Options) -> Arc<Mapped> {
    Arc::new(Mapped::memory(options.journal_words(&namespace.info()).expect("it holds a log")))
}

/// What was acknowledged, which outlives every crash: also one of this process, where it is kept in a mapped file.
#[derive(Default)]
pub struct Truth {
    versions: RefCell<BTreeMap<u32, u64>>,
    next: Cell<u64>,
    /// The next version, and for each key its version and one.
    kept: Option<Mapped>,
    pub hits_on_flash: Cell<u64>,
    pub misses: Cell<u64>,
}

impl Truth {
    /// The truth in a file.
    pub fn kept_in(kept: Mapped) -> Truth {
        let words = kept.words().iter().map(|word| word.load(Ordering::SeqCst)).enumerate().skip(1);
        let versions = words.filter_map(|(key, word)| Some((key as u32 - 1, word.checked_sub(1)?))).collect();
        let next = Cell::new(kept.words()[0].load(Ordering::SeqCst));
        Truth { versions: RefCell::new(versions), next, kept: Some(kept), ..Truth::default() }
    }

    fn keep(&self, at: usize, word: u64) {
        if let Some(kept) = &self.kept {
            kept.words()[at].store(word, Ordering::SeqCst);
        }
    }

    /// A version that was never given before.
    fn begin_version(&self) -> u64 {
        self.keep(0, self.next.get() + 1);
        self.next.replace(self.next.get() + 1)
    }

    /// A change is acknowledged.
    fn acknowledge(&self, key: u32, version: Option<u64>) {
        match version {
            Some(version) => self.versions.borrow_mut().insert(key, version),
            None => self.versions.borrow_mut().remove(&key),
        };
        self.keep(key as usize + 1, version.map_or(0, |version| version + 1));
    }

    fn acknowledge_flush(&self) {
        let keys: Vec<u32> = self.versions.borrow().keys().copied().collect();
        keys.into_iter().for_each(|key| self.acknowledge(key, None));
    }
}

/// How keys are hashed: into few hashes, so that keys are taken for one another.
pub type Hashes = u32;

pub struct Owner {
    pub log: Arc<FlashLog>,
    pub truth: Rc<Truth>,
    pub recovery: Recovery,
    index: RefCell<BTreeMap<u64, Place>>,
    memory: RefCell<BTreeMap<u32, u64>>,
    hashes: Hashes,
    _writer: task::Task<()>,
}

pub fn key_of(key: u32) -> Vec<u8> {
    format!("key-{key}-{}", "x".repeat(key as usize % 40)).into_bytes()
}

/// The value of a version, of a length that says which it is: mostly short, some of about a page, few long.
pub fn value_of(key: u32, version: u64) -> Vec<u8> {
    let mixed = version.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(key);
    let len = match mixed >> 56 {
        0..180 => mixed % 400,
        180..230 => 3000 + mixed % 1200,
        230..250 => 4000 + mixed % 9000,
        _ => 10_000 + mixed % 30_000,
    };
    let word = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
    (0..len).map(|at| (word.rotate_left((at % 61) as u32) >> 7) as u8).collect()
}

pub fn meta_of(version: u64) -> Meta {
    Meta {
        flags: (version % 3) as u32,
        expires: Seconds((version % 5) as u32 * 1000),
        accessed: Seconds(1 + (version % 100) as u32),
        cas: Cas(version + 1),
        fetched: version.is_multiple_of(2),
        ..Meta::default()
    }
}

impl Owner {
    pub async fn open(
        namespace: impl Into<Medium>,
        journal: &Arc<Mapped>,
        options: &Options,
        truth: &Rc<Truth>,
        hashes: Hashes,
    ) -> Result<Owner, OpenError> {
        let index = RefCell::new(BTreeMap::new());
        let found = |items: Records, displaced: &mut Vec<Place>| {
            displaced.extend(items.iter().filter_map(|(hash, place)| index.borrow_mut().insert(hash, place)));
        };
        let (log, recovery) = FlashLog::open(namespace, Arc::clone(journal), options, found).await?;
        let log = Arc::new(log);
        let _writer = task::spawn(Arc::clone(&log).run());
        let truth = Rc::clone(truth);
        Ok(Owner { log, truth, recovery, index, memory: RefCell::default(), hashes, _writer })
    }

    pub fn indexed(&self) -> usize {
        self.index.borrow().len()
    }

    fn hash(&self, key: u32) -> u64 {
        let few = u64::from(key % self.hashes) + 1;
        few.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !((1 << (64 - HASH_BITS)) - 1)
    }

    /// The place leaves the index unseen: of this key or of one that is taken for it.
    fn forget(&self, key: u32) {
        if let Some(place) = self.index.borrow_mut().remove(&self.hash(key)) {
            self.log.invalidate(place);
        }
    }

    pub fn set(&self, key: u32) {
        let version = self.truth.begin_version();
        self.forget(key);
        self.memory.borrow_mut().insert(key, version);
        self.truth.acknowledge(key, Some(version));
    }

    pub fn delete(&self, key: u32) {
        self.forget(key);
        self.memory.borrow_mut().remove(&key);
        self.truth.acknowledge(key, None);
    }

    pub fn flush(&self) {
        self.index.borrow_mut().clear();
        self.memory.borrow_mut().clear();
        self.log.flush(self.truth.next.get() + 1);
        self.truth.acknowledge_flush();
    }

    /// The item leaves memory for flash, or is lost.
    pub fn demote(&self, key: u32) -> Result<Option<Place>, Refused> {
        let Some(version) = self.memory.borrow_mut().remove(&key) else { return Ok(None) };
        let value = value_of(key, version);
        let (first, second) = value.split_at(value.len() / 2);
        let (meta, name) = (meta_of(version), key_of(key));
        let place = self.log.append(self.hash(key), &name, &meta, &[first, second], Reason::Admitted)?;
        if let Some(displaced) = self.index.borrow_mut().insert(self.hash(key), place) {
            self.log.invalidate(displaced);
        }
        Ok(Some(place))
    }

    /// Any item in memory.
    pub fn some_in_memory(&self) -> Option<u32> {
        let memory = self.memory.borrow();
        let index = task::random_u64() as usize % memory.len().max(1);
        memory.keys().nth(index).copied()
    }

    /// Reads a key and judges the answer; whether it was there.
    pub async fn get(&self, key: u32) -> bool {
        loop {
            if let Some(&version) = self.memory.borrow().get(&key) {
                self.judge(key, version);
                return true;
            }
            let Some(place) = self.index.borrow().get(&self.hash(key)).copied() else { break };
            let lookup = self.log.read(place, &key_of(key)).await;
            if self.index.borrow().get(&self.hash(key)) != Some(&place) {
                continue;
            }
            match lookup {
                Lookup::Found(fetched) if !self.log.is_current(&fetched) => {}
                Lookup::Found(fetched) => {
                    let version = fetched.meta().cas.0 - 1;
                    assert_eq!(fetched.key(), key_of(key));
                    assert_eq!(fetched.meta(), meta_of(version), "key {key}");
                    let value: Vec<u8> = fetched.value().iter().flat_map(|piece| piece.to_vec()).collect();
                    assert!(value == value_of(key, version), "key {key} version {version}: other bytes");
                    self.judge(key, version);
                    self.truth.hits_on_flash.set(self.truth.hits_on_flash.get() + 1);
                    return true;
                }
                Lookup::Other | Lookup::Unread => break,
                Lookup::Lost => {
                    self.index.borrow_mut().remove(&self.hash(key));
                    break;
                }
            }
        }
        self.truth.misses.set(self.truth.misses.get() + 1);
        false
    }

    fn judge(&self, key: u32, version: u64) {
        let truth = self.truth.versions.borrow().get(&key).copied();
        assert_eq!(Some(version), truth, "key {key}: version {version} was served");
    }

    /// Collects while that is wanted; every `keep`th item that still counts is kept.
    pub async fn collect(&self, keep: usize) {
        while let Some(collection) = self.log.collect().await {
            for (number, item) in collection.items().to_vec().into_iter().enumerate() {
                if self.index.borrow().get(&item.hash) != Some(&item.place) {
                    continue;
                }
                let fetched = if number.is_multiple_of(keep) { collection.fetch(item).await } else { None };
                // Others may have come while it was read.
                if self.index.borrow().get(&item.hash) != Some(&item.place) {
                    continue;
                }
                let kept = fetched.and_then(|fetched| {
                    let pieces: Vec<&[u8]> = fetched.value().iter().map(|piece| &**piece).collect();
                    self.log.append(item.hash, fetched.key(), &fetched.meta(), &pieces, Reason::Kept).ok()
                });
                match kept {
                    Some(place) => self.index.borrow_mut().insert(item.hash, place),
                    None => self.index.borrow_mut().remove(&item.hash),
                };
            }
            collection.finish();
        }
    }

    /// `count` random commands on `keys` keys.
    pub async fn live(&self, count: u32, keys: u32) {
        for _ in 0..count {
            let key = task::random_u64() as u32 % keys;
            match task::random_u64() % 100 {
                0..35 => self.set(key),
                35..40 => self.delete(key),
                40..75 => {
                    if let Some(key) = self.some_in_memory() {
                        match self.demote(key) {
                            // The log has failed: a smaller cache goes on.
                            Ok(_) | Err(Refused::Ended) => {}
                            Err(Refused::Full) => {
                                self.collect(4).await;
                                // Not for ever: the device may have been away, and then this is to be tried again.
                                let _ = time::timeout(COLLECT_AGAIN_AFTER, self.log.room(Reason::Admitted)).await;
                            }
                            Err(refused) => panic!("{refused}"),
                        }
                    }
                }
                75..98 => {
                    self.get(key).await;
                }
                98 => self.collect(4).await,
                _ => time::sleep(Duration::from_micros(task::random_u64() % 300)).await,
            }
        }
    }

    /// [`Owner::live`] of several tasks at once.
    pub async fn live_together(self: &Rc<Self>, tasks: u32, count: u32, keys: u32) {
        let live = |owner: Rc<Self>| async move { owner.live(count, keys).await };
        let tasks: Vec<_> = (0..tasks).map(|_| task::spawn(live(Rc::clone(self)))).collect();
        for task in tasks {
            task.await;
        }
    }

    /// Reads every key.
    pub async fn verify(&self, keys: u32) -> u32 {
        let mut found = 0;
        for key in 0..keys {
            found += u32::from(self.get(key).await);
        }
        found
    }
}
