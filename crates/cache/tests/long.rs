//! Long values take what they need of a small memory, from short ones and from each other. One test, in a process of its own: what
//! buffers hold is counted for the whole process.

use std::sync::Arc;

use cache::VALUE_BYTES_MAX;
use cache::hash::Hasher;
use cache::item::{Key, Value};
use cache::memory::Budget;
use cache::slot::{Look, Slot, Slots};
use cache::store::{Held, Store, StoreOptions};

mod filling;

use filling::{NOW, put, put_long};

fn visit<R>(store: &Store, number: u64, step: impl FnOnce(&mut Held<'_>) -> R) -> R {
    let bytes = number.to_le_bytes();
    let key = Key::new(&bytes, store.hasher().hash(&bytes)).unwrap();
    let Ok(answer) = store.visit(&key, NOW, Look::Whole, step);
    answer
}

#[test]
fn the_longest_value_is_stored_in_twice_its_memory() {
    let options = StoreOptions { threads: 2, ..StoreOptions::default() };
    let store = Store::new(Hasher::new([1, 2]), Arc::new(Budget::new(2 * VALUE_BYTES_MAX)), options);
    (0..300_000).for_each(|number| put(&store, number, 1000));
    for number in 1_000_000..1_000_003 {
        put_long(&store, number, VALUE_BYTES_MAX);
        assert!(store.budget().used() <= store.budget().limit());
        let right = visit(&store, number, |slot| {
            let Value::Chunks(chunks) = slot.item().unwrap().value else { panic!("long values are chunks") };
            chunks.iter().map(|chunk| chunk.iter().filter(|&&byte| byte == number as u8).count()).sum::<usize>()
        });
        assert_eq!(right, VALUE_BYTES_MAX);
    }
    // Long values alone fill the memory, and push each other out.
    for number in 2_000_000..2_000_200 {
        put_long(&store, number, 10 << 20);
        assert!(store.budget().used() <= store.budget().limit());
    }
    let there = (2_000_000..2_000_200).filter(|&number| visit(&store, number, |slot| slot.item().is_some())).count();
    assert!(there >= 15, "{there} values of 10 MiB in 256 MiB");
}
