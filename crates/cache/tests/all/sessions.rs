//! Many connections over the same keys, and little memory before little flash, which is collected all the time: whatever a
//! command finds is what was acknowledged last, or nothing. What was deleted or flushed does not come back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use cache::flash::admission::AdmitAll;
use cache::flash::{FlashLog, Options, Origin, Tier, Wanted};
use cache::hash::Hasher;
use cache::item::Seconds;
use cache::memory::Budget;
use cache::protocol::Now;
use cache::session::Rules;
use cache::store::{Store, StoreOptions};
use cache::testing::{PlainServer, SECRET, Wire};
use device::{Memory, Namespace};
use engine::rng::SplitMix;
use engine::sim::{SimConfig, World};
use engine::{Mapped, task};

type Tiered = Store<Tier>;

const CONNECTIONS: u64 = 6;
/// Keys; a third of them are counters.
const KEYS: u64 = 9000;
const COMMANDS: u64 = 8000;
const NOW: Now = Now { at: Seconds(1000), began: 1_700_000_000 };

/// All values that a key has had, the last one being what was acknowledged last; `None`: it was deleted.
#[derive(Default)]
struct Truth {
    histories: RefCell<BTreeMap<u64, Vec<Option<Vec<u8>>>>>,
    hits: RefCell<u64>,
}

impl Truth {
    fn last(&self, key: u64) -> Option<Vec<u8>> {
        self.histories.borrow().get(&key).and_then(|history| history.last().cloned().flatten())
    }

    fn acknowledge(&self, key: u64, value: Option<Vec<u8>>) {
        self.histories.borrow_mut().entry(key).or_default().push(value);
    }

    fn acknowledge_flush(&self) {
        self.histories.borrow_mut().values_mut().for_each(|history| history.push(None));
    }

    fn changes(&self, key: u64) -> usize {
        self.histories.borrow().get(&key).map_or(0, Vec::len)
    }

    /// Some value was the last one at a moment since there were so many changes.
    fn was_last(&self, key: u64, since: usize, value: &[u8]) -> bool {
        *self.hits.borrow_mut() += 1;
        let histories = self.histories.borrow();
        let history = histories.get(&key).map(Vec::as_slice).unwrap_or_default();
        history[since.saturating_sub(1)..].iter().any(|known| known.as_deref() == Some(value))
    }
}

async fn open() -> Rc<Tiered> {
    let flash = Arc::new(Memory::new(14 << 20, 4096, [1; 16]).expect("a namespace"));
    let options = Options { segment_bytes: 1 << 20, buffer_bytes: 4 << 20, ..Options::new(Origin(0), SECRET) };
    let words = options.journal_words(&flash.info()).expect("it holds a log");
    let journal = Arc::new(Mapped::memory(words));
    let (log, recovery) = FlashLog::open(flash, journal, &options, ()).await.expect("opened");
    let log = Arc::new(log);
    task::spawn(Arc::clone(&log).run()).detach();
    let base = Store::new(Hasher::new(SECRET), Arc::new(Budget::without_buffers(9 << 20)), StoreOptions::default());
    let store = Rc::new(base.over(Tier::new(log, Box::new(AdmitAll)), &recovery));
    let collector = Rc::clone(&store);
    task::spawn(async move {
        while collector.lower().log().collection_wanted().await == Wanted::Collection {
            if let Some(collection) = collector.lower().log().collect().await {
                collector.collect(collection).await;
            }
        }
    })
    .detach();
    store
}

/// A connection with its source of chance.
struct Client {
    store: Rc<Tiered>,
    truth: Rc<Truth>,
    server: PlainServer,
    wire: Wire<Tiered>,
    random: SplitMix,
    /// Once, when much is on flash.
    flushes: bool,
}

impl Client {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Now and then what was fetched comes late: the key has changed meanwhile, and its new item may be on flash too.
    async fn ask(&mut self, command: &[u8]) -> Vec<u8> {
        self.wire.turns = if self.below(100) == 0 { 800 } else { 0 };
        self.wire.talk(&self.store, &self.server, NOW, command).await
    }

    /// Nobody else runs between the end of a command and what follows it here.
    async fn live(&mut self) {
        for at in 0..COMMANDS {
            let key = self.below(KEYS);
            if self.flushes && at == COMMANDS * 3 / 4 {
                assert_eq!(self.ask(b"flush_all\r\n").await, b"OK\r\n");
                self.truth.acknowledge_flush();
            }
            match (key % 3, self.below(10)) {
                (_, 0..3) => self.get().await,
                (_, 3) => {
                    let answer = self.ask(format!("delete key{key}\r\n").as_bytes()).await;
                    assert!(matches!(&answer[..], b"DELETED\r\n" | b"NOT_FOUND\r\n"));
                    self.truth.acknowledge(key, None);
                }
                (0, 4..8) => self.count(key).await,
                (0, _) => {
                    let number = self.below(1_000_000).to_string().into_bytes();
                    self.store("set", key, number).await;
                }
                (_, 4..6) => self.append(key).await,
                (_, 6) => {
                    let value = self.value(key);
                    self.store("add", key, value).await;
                }
                _ => {
                    let value = self.value(key);
                    self.store("set", key, value).await;
                }
            }
            task::yield_now().await;
        }
    }

    /// Mostly of some kilobytes; some are long.
    fn value(&mut self, key: u64) -> Vec<u8> {
        let length = if self.below(300) == 0 { 60_000 + self.below(20_000) } else { self.below(6000) };
        let version = self.random.draw();
        [format!("{key}/{version}/").as_bytes(), &vec![b'a' + (version % 26) as u8; length as usize]].concat()
    }

    async fn store(&mut self, how: &str, key: u64, value: Vec<u8>) {
        let command = [format!("{how} key{key} 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        match &self.ask(&command).await[..] {
            b"STORED\r\n" => self.truth.acknowledge(key, Some(value)),
            b"NOT_STORED\r\n" if how == "add" => assert!(self.truth.last(key).is_some(), "key{key} was deleted"),
            other => panic!("{how} key{key}: {}", other.escape_ascii()),
        }
    }

    async fn append(&mut self, key: u64) {
        let piece = format!("+{}", self.random.draw()).into_bytes();
        let command = [format!("append key{key} 0 0 {}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
        match &self.ask(&command).await[..] {
            b"STORED\r\n" => {
                let old = self.truth.last(key).unwrap_or_else(|| panic!("appended to key{key}, which was deleted"));
                self.truth.acknowledge(key, Some([old, piece].concat()));
            }
            b"NOT_STORED\r\n" => {}
            other => panic!("append key{key}: {}", other.escape_ascii()),
        }
    }

    /// Numbers grow by one each time, whoever counts.
    async fn count(&mut self, key: u64) {
        let answer = self.ask(format!("incr key{key} 1\r\n").as_bytes()).await;
        if answer == b"NOT_FOUND\r\n" {
            return;
        }
        let old = self.truth.last(key).unwrap_or_else(|| panic!("key{key} was counted, and was deleted"));
        let old: u64 = String::from_utf8_lossy(&old).trim().parse().expect("a counter");
        let new = (old + 1).to_string().into_bytes();
        assert_eq!(String::from_utf8_lossy(&answer), format!("{}\r\n", old + 1), "key{key}");
        self.truth.acknowledge(key, Some(new));
    }

    async fn get(&mut self) {
        let keys: Vec<u64> = (0..1 + self.below(40)).map(|_| self.below(KEYS)).collect();
        let since: Vec<usize> = keys.iter().map(|&key| self.truth.changes(key)).collect();
        let names: Vec<String> = keys.iter().map(|key| format!(" key{key}")).collect();
        let answer = self.ask(format!("get{}\r\n", names.concat()).as_bytes()).await;
        let mut rest = &answer[..];
        for (&key, &since) in keys.iter().zip(&since) {
            let head = format!("VALUE key{key} 0 ");
            let Some(behind) = rest.strip_prefix(head.as_bytes()) else { continue };
            let line = behind.iter().position(|&byte| byte == b'\r').expect("a line ends");
            let length: usize = String::from_utf8_lossy(&behind[..line]).parse().expect("a length");
            let (value, after) = behind[line + 2..].split_at(length);
            assert!(
                self.truth.was_last(key, since, value),
                "key{key}: {} was not acknowledged last",
                value.escape_ascii()
            );
            rest = &after[2..];
        }
        assert_eq!(rest, b"END\r\n", "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn what_is_found_is_what_was_acknowledged_last() {
    for seed in 1..3 {
        let world = World::new(seed, SimConfig::default());
        let node = world.node("n");
        let tested = world.spawn_on(node, async move {
            let (store, truth) = (open().await, Rc::new(Truth::default()));
            let clients: Vec<_> = (0..CONNECTIONS)
                .map(|number| {
                    let mut client = Client {
                        store: Rc::clone(&store),
                        truth: Rc::clone(&truth),
                        server: PlainServer::default(),
                        wire: Wire::new(Arc::new(Rules::default())),
                        flushes: number == 0,
                        random: SplitMix(seed * 100 + number),
                    };
                    task::spawn(async move { client.live().await })
                })
                .collect();
            for client in clients {
                client.await;
            }
            let (stats, counters) = (store.lower().log().stats(), store.usage().counters);
            assert!(stats.device_reads > 3000 && stats.collected_segments > 3, "{stats:?}");
            assert!(counters.lowered > 3000 && *truth.hits.borrow() > 30_000, "{counters:?} {}", truth.hits.borrow());
        });
        world.run_until(tested).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
    }
}
