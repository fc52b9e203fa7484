use std::collections::BTreeMap;
use std::sync::Arc;

use engine::rng::SplitMix;
use proptest::prelude::*;

use super::*;
use crate::hash::Hasher;
use crate::memory::Budget;

/// A pool with room for so many segments.
fn pool(segments: usize) -> Pool {
    let pool = Pool::new(Arc::new(Budget::new(1 << 40)), 0);
    while pool.free() < segments {
        assert!(pool.grow());
    }
    pool
}

fn memory(position: u64) -> Location {
    Location::Memory(Position(position))
}

/// Finds by position, which in these tests is told by the model as a key would be by an item.
fn find(index: &Index, hash: u64, position: u64) -> Option<(Spot, Entry)> {
    index.find(hash, |entry| entry.location() == memory(position))
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16),
    Remove(u16),
    Replace(u16),
}

/// Hashes of few different values in each of their parts: equal remainders, crowded places, and whole equal hashes.
fn hash_of(name: u16) -> u64 {
    let (table, place, rest) = (u64::from(name >> 12), u64::from(name >> 4 & 255), u64::from(name & 15));
    table << 59 | place << 40 | place << 33 | (rest & 3) << 25 | rest >> 2
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn finds_what_a_map_finds(steps in prop::collection::vec(
        prop_oneof![
            3 => any::<u16>().prop_map(Step::Insert),
            2 => any::<u16>().prop_map(Step::Remove),
            1 => any::<u16>().prop_map(Step::Replace),
        ],
        1..3000,
    )) {
        let pool = pool(8);
        let mut index = Index::new(1, 1);
        let mut model: BTreeMap<u16, u64> = BTreeMap::new();
        let mut next = 0;
        for step in steps {
            let (Step::Insert(name) | Step::Remove(name) | Step::Replace(name)) = step;
            let name = name & 0xf3ff;
            let known = model.get(&name).copied();
            let found = known.and_then(|position| find(&index, hash_of(name), position));
            prop_assert_eq!(found.is_some(), known.is_some());
            next += 1;
            match (step, found) {
                (Step::Insert(_), None) => {
                    index.insert(hash_of(name), memory(next), &pool).unwrap();
                    model.insert(name, next);
                }
                (Step::Remove(_), Some((spot, _))) => {
                    index.remove(spot);
                    model.remove(&name);
                }
                (Step::Replace(_), Some((spot, _))) => {
                    index.replace(spot, memory(next));
                    model.insert(name, next);
                }
                _ => {}
            }
            prop_assert_eq!(index.len(), model.len());
        }
        for (name, position) in model {
            prop_assert!(find(&index, hash_of(name), position).is_some());
        }
    }
}

#[test]
fn grows_splits_and_shrinks_without_losing_an_entry() {
    const ENTRIES: u64 = 40_000;
    let pool = pool(32);
    let mut index = Index::new(2, 0);
    let hash = |number: u64| SplitMix(number).draw();
    for number in 0..ENTRIES {
        index.insert(hash(number), memory(number), &pool).unwrap();
    }
    assert!(index.level >= 4 && index.tables >= 16, "splits: level {}, {} tables", index.level, index.tables);
    assert!((0..ENTRIES).all(|number| find(&index, hash(number), number).is_some()));
    let full = index.bytes();
    // Every other one goes, and the others are still there.
    for number in (0..ENTRIES).step_by(2) {
        let (spot, _) = find(&index, hash(number), number).unwrap();
        index.remove(spot);
    }
    assert!((0..ENTRIES).all(|number| find(&index, hash(number), number).is_some() == (number % 2 == 1)));
    assert!(index.bytes() < full * 3 / 4, "{} of {full} bytes", index.bytes());
    let segments = index.segments();
    index.clear(&pool);
    assert_eq!((index.len(), index.segments()), (0, 0));
    assert!(segments > 0 && pool.free() == 32, "all memory is back");
    assert!(find(&index, hash(1), 1).is_none());
}

#[test]
fn an_insert_without_memory_changes_nothing() {
    let pool = pool(1);
    let mut index = Index::new(0, 0);
    let mut random = SplitMix(1);
    let mut inserted = Vec::new();
    let refused = loop {
        let hash = random.draw();
        let number = inserted.len() as u64;
        match index.insert(hash, memory(number), &pool) {
            Ok(()) => inserted.push(hash),
            Err(Full) => break hash,
        }
    };
    assert!(inserted.len() > 20_000, "{}", inserted.len());
    assert_eq!(index.len(), inserted.len());
    assert!(find(&index, refused, inserted.len() as u64).is_none());
    for (number, &hash) in inserted.iter().enumerate() {
        assert!(find(&index, hash, number as u64).is_some(), "{number}");
    }
}

#[test]
fn one_insert_moves_no_more_than_two_tables() {
    let pool = pool(64);
    let mut index = Index::new(3, 1);
    let mut random = SplitMix(7);
    for number in 0..200_000 {
        index.insert(random.draw(), memory(number), &pool).unwrap();
    }
    assert!(index.moved_most() > TABLE_ENTRIES_MAX / 2 && index.moved_most() <= MOVED_MAX, "{}", index.moved_most());
}

/// The attacker knows the hash function, but not the secret: keys that would all stand in one place do not.
#[test]
fn keys_chosen_to_collide_under_another_secret_do_not() {
    const KEYS: usize = 1200;
    let known = Hasher::new([1, 2]);
    let own = Hasher::new([0x5eed, 0x0f_cafe]);
    let chosen: Vec<[u8; 8]> =
        (0_u64..).map(u64::to_le_bytes).filter(|key| known.hash(key) >> 52 == 0xabc).take(KEYS).collect();
    let pool = pool(8);
    let fill = |hasher: &Hasher| {
        let mut index = Index::new(0, 6);
        let all =
            chosen.iter().zip(0..).all(|(key, number)| index.insert(hasher.hash(key), memory(number), &pool).is_ok());
        (all, index.moved_most())
    };
    let (all, moved) = fill(&known);
    assert!(!all, "the keys were not chosen well: {moved} moved at most");
    let (all, moved) = fill(&own);
    assert!(all && moved <= 256, "{moved} moved at most");
}
