use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};

use engine::rng::SplitMix;
use proptest::prelude::*;

use super::*;
use crate::item::{Cas, Meta, NewValue, Value};
use crate::slot::{Slot, frozen};
use crate::testing::PlainSlots;

const NOW: Seconds = Seconds(100);

fn store(megabytes: usize, options: StoreOptions) -> Store {
    Store::new(Hasher::new([1, 2]), Arc::new(Budget::without_buffers(megabytes << 20)), options)
}

fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

fn visit<R>(store: &Store, key: &[u8], now: Seconds, step: impl FnOnce(&mut Held<'_>) -> R) -> R {
    let key = Key::new(key, store.hasher().hash(key)).unwrap();
    let Ok(answer) = store.visit(&key, now, Look::Whole, step);
    answer
}

/// Stores, and makes room as a session does.
fn put(store: &Store, key: &[u8], meta: Meta, value: &[u8]) -> Result<Cas, NoRoom> {
    loop {
        match visit(store, key, NOW, |slot| slot.put(meta, NewValue::Pieces(&[value]))) {
            Ok(cas) => return Ok(cas),
            Err(no_room) => wait(store.make_room(no_room))?,
        }
    }
}

/// Items of a thousand bytes.
fn fill(store: &Store, keys: std::ops::Range<u32>, meta: Meta) {
    keys.for_each(|key| assert!(put(store, &key.to_le_bytes(), meta, &[1; 1000]).is_ok()));
}

fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    visit(store, key, NOW, |slot| {
        let value = match slot.item()?.value {
            Value::Whole(bytes) => bytes.to_vec(),
            Value::Chunks(chunks) => chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect(),
        };
        slot.note_access();
        Some(value)
    })
}

#[test]
fn an_item_is_what_was_put_and_what_was_changed() {
    let store = store(16, StoreOptions::default());
    let meta = Meta { flags: 7, expires: Seconds(500), stale: true, ..Meta::default() };
    assert_eq!(put(&store, b"one", meta, b"value"), Ok(Cas(1)));
    visit(&store, b"one", Seconds(101), |slot| {
        let item = slot.item().unwrap();
        assert_eq!(item.meta, Meta { cas: Cas(1), accessed: NOW, ..meta });
        slot.note_access();
        slot.set_meta(|meta| (meta.flags, meta.won, meta.cas) = (8, true, Cas(99)));
        let read = slot.item().unwrap().meta;
        let expected = Meta { flags: 8, won: true, fetched: true, accessed: Seconds(101), cas: Cas(1), ..meta };
        assert_eq!(read, expected);
        assert_eq!(slot.renew_cas(), Cas(2));
        assert_eq!(
            slot.put(Meta { cas: Cas(77), ..Meta::default() }, NewValue::Pieces(&[b"an", b"other"])),
            Ok(Cas(77))
        );
        assert_eq!(slot.item().unwrap().meta.cas, Cas(77));
    });
    assert_eq!(get(&store, b"one").unwrap(), b"another");
    visit(&store, b"one", NOW, |slot| slot.remove());
    assert_eq!(get(&store, b"one"), None);
    visit(&store, b"none", NOW, |slot| {
        slot.note_access();
        slot.set_meta(|_| unreachable!("no item"));
        assert_eq!(slot.renew_cas(), Cas(0));
        slot.remove();
    });
    let counters = store.usage().counters;
    assert_eq!((counters.items, counters.bytes, counters.stored), (0, 0, 2));
}

#[test]
fn an_expired_item_is_not_there() {
    let store = store(16, StoreOptions::default());
    put(&store, b"short", Meta { expires: Seconds(110), ..Meta::default() }, b"x").unwrap();
    assert!(visit(&store, b"short", Seconds(109), |slot| slot.item().is_some()));
    assert!(visit(&store, b"short", Seconds(110), |slot| slot.item().is_none()));
    let counters = store.usage().counters;
    assert_eq!((counters.items, counters.expired, counters.expired_unfetched), (0, 1, 1));
}

#[test]
fn a_flush_takes_what_was_stored_before_its_time_and_nothing_else() {
    let store = store(16, StoreOptions::default());
    put(&store, b"a", Meta::default(), b"1").unwrap();
    store.flush(NOW, NOW);
    assert_eq!(get(&store, b"a"), None);
    put(&store, b"a", Meta::default(), b"2").unwrap();
    store.flush(Seconds(110), NOW);
    put(&store, b"b", Meta::default(), b"3").unwrap();
    assert!(get(&store, b"a").is_some() && get(&store, b"b").is_some(), "it is still to come");
    store.flush(Seconds(120), NOW);
    assert!(visit(&store, b"a", Seconds(119), |slot| slot.item().is_some()), "the earlier one was replaced");
    assert!(visit(&store, b"a", Seconds(120), |slot| slot.item().is_none()));
    assert!(visit(&store, b"b", Seconds(120), |slot| slot.put(Meta::default(), NewValue::Pieces(&[b"4"])).is_ok()));
    assert!(visit(&store, b"b", Seconds(121), |slot| slot.item().is_some()), "it comes once");
    assert_eq!(store.usage().counters.items, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, length: usize, expires: u8 },
    Long { key: u8, length: usize },
    Get { key: u8 },
    Remove { key: u8 },
    Later,
    Flush { delay: u8 },
}

fn steps() -> impl Strategy<Value = Step> {
    let lengths = prop_oneof![4 => 0_usize..300, 1 => 0_usize..65_536];
    prop_oneof![
        8 => (0_u8..40, lengths, 0_u8..6).prop_map(|(key, length, expires)| Step::Put { key, length, expires }),
        1 => (0_u8..40, 65_537_usize..600_000).prop_map(|(key, length)| Step::Long { key, length }),
        8 => (0_u8..40).prop_map(|key| Step::Get { key }),
        3 => (0_u8..40).prop_map(|key| Step::Remove { key }),
        1 => Just(Step::Later),
        1 => (0_u8..4).prop_map(|delay| Step::Flush { delay }),
    ]
}

/// What a visit shows of an item: its meta, its length, and the one byte that all of it is.
type Seen = Option<(Meta, usize, Option<u8>)>;

fn seen(slot: &impl Slot) -> Seen {
    let item = slot.item()?;
    let mut bytes: Vec<u8> = match item.value {
        Value::Whole(bytes) => bytes.to_vec(),
        Value::Chunks(chunks) => chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect(),
    };
    bytes.dedup();
    Some((item.meta, item.value.len(), if bytes.len() == 1 { bytes.pop() } else { None }))
}

/// Does a step with slots of any kind, and tells what is there then.
fn apply<S: Slots>(slots: &S, step: &Step, byte: u8, now: Seconds) -> Seen
where
    S::Place: std::fmt::Debug,
{
    let visit = |key: u8, step: &mut dyn FnMut(&mut S::Slot<'_>) -> Result<Cas, NoRoom>| {
        loop {
            let bytes = [key];
            let key = Key::new(&bytes, Hasher::new([1, 2]).hash(&bytes)).unwrap();
            let answer = slots.visit(&key, now, Look::Whole, |slot| step(slot).map(|cas| (cas, seen(slot)))).unwrap();
            match answer {
                Ok((_, seen)) => return seen,
                Err(no_room) => wait(slots.make_room(no_room)).unwrap(),
            }
        }
    };
    match *step {
        Step::Put { key, length, expires } => {
            let expires = if expires == 0 { NEVER } else { Seconds(now.0 + u32::from(expires)) };
            let value = vec![byte; length];
            visit(key, &mut |slot| slot.put(Meta { expires, ..Meta::default() }, NewValue::Pieces(&[&value])))
        }
        Step::Long { key, length } => {
            let mut chunks = slots.chunks(length).unwrap();
            for chunk in &mut chunks {
                chunk.set_len(chunk.capacity());
                chunk.fill(byte);
            }
            let views = frozen(chunks);
            visit(key, &mut |slot| slot.put(Meta::default(), NewValue::Chunks(views.clone())))
        }
        Step::Get { key } => visit(key, &mut |slot| {
            slot.note_access();
            Ok(Cas(0))
        }),
        Step::Remove { key } => visit(key, &mut |slot| {
            slot.remove();
            Ok(Cas(0))
        }),
        Step::Later => None,
        Step::Flush { delay } => {
            // The plain slots let an earlier one that is due, but that nobody has seen, be replaced like one that is to come.
            visit(u8::MAX, &mut |_| Ok(Cas(0)));
            slots.flush(Seconds(now.0 + u32::from(delay)), now);
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// Few items in much memory: what is there is exactly what the plainest slots have, whatever the policy.
    #[test]
    fn holds_what_a_map_holds(steps in prop::collection::vec(steps(), 1..400), lru: bool) {
        let policy = if lru { PolicyKind::Lru } else { PolicyKind::S3Fifo };
        let store = store(64, StoreOptions { policy, ..StoreOptions::default() });
        let plain = PlainSlots::default();
        let mut now = NOW;
        for (number, step) in steps.iter().enumerate() {
            now = Seconds(now.0 + u32::from(matches!(step, Step::Later)));
            prop_assert_eq!(apply(&store, step, number as u8, now), apply(&plain, step, number as u8, now), "{:?}", step);
        }
        // Each key is looked at once more, so that what has expired is gone from the counts too.
        let there = (0..40).filter_map(|key| apply(&plain, &Step::Get { key }, 0, now));
        let lengths: Vec<usize> = there.map(|(_, length, _)| length).collect();
        let seen = (0..40).filter_map(|key| apply(&store, &Step::Get { key }, 0, now)).count();
        prop_assert_eq!(seen, lengths.len());
        let counters = store.usage().counters;
        prop_assert_eq!(counters.items, lengths.len() as u64);
        // Header and one byte of key; a long value has a handle besides.
        let bytes = |&length: &usize| 33 + length + if length > crate::WHOLE_BYTES_MAX { 8 } else { 0 };
        prop_assert_eq!(counters.bytes, lengths.iter().map(bytes).sum::<usize>() as u64);
        // All of it goes, and all memory with it.
        store.flush(now, now);
        let usage = store.usage();
        let left = (usage.counters.items, usage.counters.bytes, usage.item_segments, usage.index_segments);
        prop_assert_eq!(left, (0, 0, 0, 0));
    }
}

/// Far more than fits, of all lengths: the limit holds, what is there is right, and memory is used.
#[test]
fn a_full_store_holds_right_items_within_its_limit() {
    for policy in [PolicyKind::S3Fifo, PolicyKind::Lru] {
        let store = store(24, StoreOptions { threads: 2, policy, ..StoreOptions::default() });
        let mut random = SplitMix(5);
        for round in 0..60_000_u64 {
            let key = (random.below(60_000)).to_le_bytes();
            if random.draw().is_multiple_of(2) {
                let length = (random.below(2000)) as usize;
                put(&store, &key, Meta::default(), &[&round.to_le_bytes()[..], &vec![key[0]; length]].concat())
                    .unwrap();
            } else if let Some(value) = get(&store, &key) {
                assert!(value[8..].iter().all(|&byte| byte == key[0]), "another key's value");
            }
            assert!(store.budget().used() <= store.budget().limit());
        }
        let usage = store.usage();
        assert!(usage.counters.evicted > 1000 && usage.counters.reclaimed > 10, "{usage:?}");
        assert!(usage.counters.bytes > (usage.limit / 2) as u64, "{usage:?}");
        // What is counted is what is there.
        let (mut items, mut bytes) = (0, 0);
        let mut at = Some(Scan::default());
        while let Some(scan) = at {
            at = store.scan(scan, NOW, |key, item| {
                items += 1;
                bytes += (32 + key.len() + item.value.len()) as u64;
            });
        }
        assert_eq!((usage.counters.items, usage.counters.bytes), (items, bytes));
        assert!(usage.free_segments <= 3, "{usage:?}");
    }
}

#[test]
fn without_eviction_a_full_store_refuses_and_loses_nothing() {
    let store = store(16, StoreOptions { evict: false, ..StoreOptions::default() });
    let mut stored = 0_u32;
    while put(&store, &stored.to_le_bytes(), Meta::default(), &[7; 1000]).is_ok() {
        stored += 1;
    }
    assert!(stored > 11_000, "{stored}");
    // Full is full: what other shards have left would go to some keys and not to others.
    let more =
        (stored..stored + 3000).filter(|key| put(&store, &key.to_le_bytes(), Meta::default(), &[7; 1000]).is_ok());
    assert_eq!(more.count(), 0, "stored after a refusal");
    assert!((0..stored).all(|key| get(&store, &key.to_le_bytes()).is_some()));
    // What is overwritten and removed leaves holes, which are used again.
    (0..stored).step_by(4).for_each(|key| visit(&store, &key.to_le_bytes(), NOW, |slot| slot.remove()));
    let more =
        (0..stored).step_by(4).take_while(|key| put(&store, &key.to_le_bytes(), Meta::default(), &[8; 1000]).is_ok());
    let more = more.count() as u32;
    assert!(more > stored / 8, "{more} of {}", stored / 4);
    assert_eq!(store.usage().counters.evicted, 0);
    assert!((0..stored).filter(|key| key % 4 != 0).all(|key| get(&store, &key.to_le_bytes()).unwrap() == [7; 1000]));
    store.flush(NOW, NOW);
    assert!(put(&store, b"again", Meta::default(), b"room").is_ok());
}

/// What has expired goes before anything that lives has to.
#[test]
fn expired_items_make_room_first() {
    let store = store(16, StoreOptions::default());
    let mortal = Meta { expires: Seconds(110), ..Meta::default() };
    fill(&store, 0..6000, mortal);
    fill(&store, 6000..11_000, Meta::default());
    assert_eq!(store.usage().counters.evicted, 0);
    assert!(visit(&store, b"none", Seconds(120), |slot| slot.item().is_none()));
    fill(&store, 11_000..19_000, Meta::default());
    let counters = store.usage().counters;
    assert!(counters.expired > 3500 && counters.expired == counters.expired_unfetched, "{counters:?}");
    assert_eq!(counters.evicted, 0);
}

#[test]
fn a_scan_tells_all_items_and_takes_the_expired_ones() {
    let store = store(32, StoreOptions { threads: 2, ..StoreOptions::default() });
    for key in 0..3000_u32 {
        let expires = if key % 3 == 0 { Seconds(110) } else { NEVER };
        put(&store, &key.to_le_bytes(), Meta { expires, flags: key, ..Meta::default() }, &[1; 500]).unwrap();
    }
    (0..3000_u32).step_by(5).for_each(|key| visit(&store, &key.to_le_bytes(), NOW, |slot| slot.remove()));
    let mut told = Vec::new();
    let mut at = Some(Scan::default());
    while let Some(scan) = at {
        at = store.scan(scan, Seconds(110), |key, item| {
            assert_eq!((key, item.value.len()), (&item.meta.flags.to_le_bytes()[..], 500));
            told.push(item.meta.flags);
        });
    }
    told.sort_unstable();
    let expected: Vec<u32> = (0..3000).filter(|key| key % 3 != 0 && key % 5 != 0).collect();
    assert_eq!(told, expected);
    let counters = store.usage().counters;
    assert_eq!((counters.items, counters.expired), (expected.len() as u64, 800));
}

#[test]
fn a_lower_limit_is_kept_and_a_higher_one_used() {
    let store = store(32, StoreOptions::default());
    fill(&store, 0..40_000, Meta::default());
    let before = store.usage();
    store.set_limit(16 << 20);
    wait(store.shrink()).unwrap();
    let after = store.usage();
    assert!(after.used <= 16 << 20 && before.used > 30 << 20, "{before:?} {after:?}");
    assert!(after.counters.items > 8000);
    store.set_limit(48 << 20);
    fill(&store, 0..40_000, Meta::default());
    assert!(store.usage().used > 40 << 20);
}

/// Every value tells its key and a number that was drawn while the slot was held: no thread ever sees another key's, or an older
/// one than it has seen or put, whatever is evicted and moved meanwhile.
#[test]
fn threads_see_what_was_put_last() {
    for policy in [PolicyKind::S3Fifo, PolicyKind::Lru] {
        let store = Arc::new(store(16, StoreOptions { threads: 4, policy, ..StoreOptions::default() }));
        let drawn = Arc::new(AtomicU64::new(1));
        let threads: Vec<_> = (1..=4)
            .map(|seed| {
                let (store, drawn) = (store.clone(), drawn.clone());
                std::thread::spawn(move || watch(&store, &drawn, seed))
            })
            .collect();
        let seen: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        let usage = store.usage();
        assert!(seen > 10_000 && usage.counters.evicted > 10_000, "{seen} seen, {usage:?}");
        assert!(usage.used <= usage.limit);
    }
}

/// Reads and writes few keys, beside many others that fill the memory. The answer is how often something was seen.
fn watch(store: &Store, drawn: &AtomicU64, seed: u64) -> u64 {
    const KEYS: u64 = 64;
    let mut random = SplitMix(seed);
    let mut last = [0_u64; KEYS as usize];
    let mut count = 0;
    for _ in 0..20_000 {
        let number = random.below(KEYS);
        let key = number.to_le_bytes();
        let last = &mut last[number as usize];
        if random.draw().is_multiple_of(4) {
            let filler = vec![key[0]; (random.below(3000)) as usize];
            let put = |slot: &mut Held<'_>| {
                let number = drawn.fetch_add(1, Ordering::Relaxed);
                slot.put(Meta::default(), NewValue::Pieces(&[&key, &number.to_le_bytes(), &filler])).map(|_| number)
            };
            match visit(store, &key, NOW, put) {
                Ok(number) => *last = number,
                Err(no_room) => wait(store.make_room(no_room)).unwrap(),
            }
        } else {
            let seen = visit(store, &key, NOW, |slot| {
                slot.note_access();
                slot.item().map(|item| number_in(item.value, &key))
            });
            if let Some(seen) = seen {
                assert!(seen >= *last, "{seen} after {last}");
                *last = seen;
                count += 1;
            }
        }
        put(store, &random.draw().to_le_bytes(), Meta::default(), &[0; 500]).unwrap();
    }
    count
}

/// The number in a value, which has to be whole and the key's.
fn number_in(value: Value<'_>, key: &[u8; 8]) -> u64 {
    let Value::Whole(bytes) = value else { panic!("these are short") };
    assert_eq!(&bytes[..8], key);
    assert!(bytes[16..].iter().all(|&byte| byte == key[0]));
    u64::from_le_bytes(bytes[8..16].try_into().unwrap())
}

/// The limit is set to less than what the index takes: items go, the index goes, and what comes next has room.
#[test]
fn a_limit_below_the_index_is_kept() {
    let store = store(32, StoreOptions::default());
    for key in 0..600_000_u32 {
        put(&store, &key.to_le_bytes(), Meta::default(), b"").unwrap();
    }
    let index = store.usage().index_segments * SEGMENT_BYTES;
    let limit = 2 << 20;
    assert!(index > 2 * limit, "{:?}", store.usage());
    store.set_limit(limit);
    assert_eq!(wait(store.shrink()), Ok(()));
    assert!(store.usage().used <= limit, "{:?}", store.usage());
    fill(&store, 0..5000, Meta::default());
    assert!(get(&store, &4999_u32.to_le_bytes()).is_some() && store.usage().used <= limit);
}

/// Where nothing is let go holes are won, also while others put between two pieces of that work.
#[test]
fn holes_are_won_while_others_put() {
    let options = StoreOptions { evict: false, threads: 2, ..StoreOptions::default() };
    let store = store(16, options);
    let mut keys = 0_u32;
    while put(&store, &keys.to_le_bytes(), Meta::default(), &[1; 1000]).is_ok() {
        keys += 1;
    }
    let full = store.usage().counters.items;
    let mut random = SplitMix(5);
    for key in 0..keys {
        if random.below(10) < 3 {
            visit(&store, &key.to_le_bytes(), NOW, |slot| slot.remove());
        }
    }
    let once = |key: u32| {
        visit(&store, &key.to_le_bytes(), NOW, |slot| slot.put(Meta::default(), NewValue::Pieces(&[&[2; 1000]])))
    };
    let (mut new, mut refused) = (keys, 0);
    while refused < 100 {
        // A piece for one connection, a put of another.
        let won = store.reclaim_piece(false);
        match once(new) {
            Ok(_) => (new, refused) = (new + 1, 0),
            Err(_) => refused += u32::from(won == Progress::Nothing),
        }
    }
    let again = store.usage().counters.items;
    assert!(again * 100 >= full * 95, "{again} of {full} items have room: {:?}", store.usage());
}
