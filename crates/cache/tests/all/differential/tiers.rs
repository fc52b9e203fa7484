//! The store with flash behind it, and memory for a part of its items only.

use std::sync::Arc;

use cache::flash::admission::AdmitAll;
use cache::flash::{FlashLog, Options, Origin, Tier};
use cache::hash::Hasher;
use cache::memory::Budget;
use cache::session::Rules;
use cache::store::{Store, StoreOptions};
use cache::testing::SECRET;
use device::{Memory, Namespace};
use engine::sim::{SimConfig, World};
use engine::{Mapped, task};

use super::generator::Generator;
use super::memcached::Pair;
use super::text::{SENTINEL, SENTINEL_ANSWER};

/// A small part of what is stored.
const MEMORY_BYTES: usize = 16 << 20;
/// Enough for all of it, every version.
const FLASH_BYTES: u64 = 512 << 20;
/// Keys of 2 KiB or so each.
const KEYS: u64 = 20_000;

async fn store() -> (Store<Tier>, task::Task<()>) {
    let flash = Arc::new(Memory::new(FLASH_BYTES, 4096, [1; 16]).expect("a namespace"));
    let options = Options { segment_bytes: 1 << 20, buffer_bytes: 16 << 20, ..Options::new(Origin(0), SECRET) };
    let words = options.journal_words(&flash.info()).expect("it holds a log");
    let (log, recovery) = FlashLog::open(flash, Arc::new(Mapped::memory(words)), &options, ()).await.expect("opened");
    let log = Arc::new(log);
    let writer = task::spawn(Arc::clone(&log).run());
    let tier = Tier::new(log, Box::new(AdmitAll));
    let budget = Arc::new(Budget::without_buffers(MEMORY_BYTES));
    (Store::new(Hasher::new(SECRET), budget, StoreOptions::default()).over(tier, &recovery), writer)
}

/// Nothing is lost where flash has room and is given the time: then every answer is memcached's.
#[test]
fn what_is_on_flash_is_answered_as_what_is_in_memory() {
    let world = World::new(1, SimConfig::default());
    let node = world.node("n");
    let tested = world.spawn_on(node, async {
        let (store, _writer) = store().await;
        let arguments = ["-m", "1024", "-o", "no_lru_maintainer,no_lru_crawler"];
        let mut pair = Pair::new(&arguments, Rules::default(), store);
        let mut connection = pair.connect();
        let mut generator = Generator::new(7);
        let mut filled = 0;
        for round in 0..1600 {
            let mut bytes = Vec::new();
            while filled < KEYS && bytes.len() < 60_000 {
                bytes.extend(generator.wide_set(filled));
                filled += 1;
            }
            if filled == KEYS {
                bytes.extend(generator.wide_batch(KEYS));
            }
            bytes.extend_from_slice(SENTINEL);
            let answers = pair.exchange(&mut connection, &bytes, SENTINEL_ANSWER).await;
            answers.check(&format!("round {round}"), &bytes);
            // What was left behind is written meanwhile.
            engine::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let stats = pair.slots.lower().log().stats();
        assert!(stats.device_reads > 10_000 && stats.admitted_items > 10_000, "flash was hardly used: {stats:?}");
        assert_eq!(stats.refused_items, 0, "flash was not given the time");
    });
    world.run_until(tested).unwrap_or_else(|stalled| panic!("{stalled}"));
}
