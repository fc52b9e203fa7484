//! Values that lie outside their home pages.

use super::tests::{Pool, value};
use crate::testing::run;
use crate::types::VALUE_BYTES_MAX;

/// The longest value goes through three members and comes back, in parts that are under way together.
#[test]
fn longest_value_is_stored_and_read() {
    run(5, async {
        let pool = Pool::sized(3, 3, 400 << 20).await;
        let bytes: Vec<u8> = (0..VALUE_BYTES_MAX).map(|at| (at / 4096) as u8).collect();
        for turn in 0..2 {
            pool.store.put(b"long", value(&bytes[turn..])).await.unwrap();
            pool.store.settle().await;
        }
        assert!(pool.host().get(b"long").await.unwrap().is_some_and(|read| read.equals(&bytes[1..])));
        assert!(pool.verify().await.is_equal());
        let used = pool.store.usage(0).await.unwrap().heap_pages_used;
        assert_eq!(used, (VALUE_BYTES_MAX as u64 >> 12) + 5, "the replaced value's extents are free");
    });
}
