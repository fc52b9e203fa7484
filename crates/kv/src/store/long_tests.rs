//! Values that lie outside their home pages.

use std::time::Duration;

use engine::time;

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

/// The value is placed while the home page is read; what publishes it is the second round trip.
#[test]
fn a_put_out_of_line_is_two_round_trips() {
    run(6, async {
        let pool = Pool::sized(3, 3, 64 << 20).await;
        // The first ones find nothing in stock.
        for number in 0..8u8 {
            pool.store.put(&[number], value(&[number; 9000])).await.unwrap();
            time::sleep(Duration::from_secs(1)).await;
        }
        pool.take();
        pool.members.iter().for_each(|member| member.slow.set(Duration::from_millis(1)));
        let start = time::now();
        pool.store.put(b"k", value(&[9; 9000])).await.unwrap();
        assert_eq!(start.elapsed().as_millis(), 2);
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(pool.take(), [(1, 1, 2); 3], "home page; value; binding and home page");
        assert_eq!(pool.host().get(b"k").await, Ok(Some(value(&[9; 9000]))));
    });
}

/// What was placed early for a put that found no majority, or something newer, is freed.
#[test]
fn a_put_that_does_not_come_leaves_nothing_of_what_was_placed_early() {
    run(7, async {
        let pool = Pool::sized(3, 3, 64 << 20).await;
        for member in 1..3 {
            pool.down(member, true);
        }
        let error = pool.store.put(b"k", value(&[9; 9000])).await.unwrap_err();
        assert!(!error.outcome_unknown(), "{error}");
        for member in 1..3 {
            pool.down(member, false);
        }
        pool.store.settle().await;
        for member in 0..3 {
            assert_eq!(pool.store.usage(member).await.unwrap().heap_pages_used, 0);
        }
    });
}
