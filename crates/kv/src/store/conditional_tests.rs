//! Values with expiry, tag and version; conditional operations.

use std::collections::BTreeSet;

use super::tests::{Pool, value};
use super::*;
use crate::testing::run;

#[test]
fn expiry_and_tag_come_back_with_the_value_and_every_change_has_its_version() {
    run(21, async {
        let pool = Pool::new(3, 3).await;
        let options = PutOptions { expiry: Some(4_000_000_000_000), tag: 7 };
        let mut versions = BTreeSet::new();
        for len in [3, 3900, 9000] {
            pool.store.put_with(b"k", value(&vec![1; len]), options).await.unwrap();
            let found = pool.host().get_versioned(b"k").await.unwrap().unwrap();
            assert_eq!((found.value.len(), found.expiry, found.tag), (len, options.expiry, 7));
            assert!(versions.insert(found.version));
        }
        // A member that has missed it gets all of it.
        pool.down(2, true);
        pool.store.put_with(b"k", value(b"new"), options).await.unwrap();
        pool.store.settle().await;
        pool.down(2, false);
        let report = pool.store.repair(&RepairOptions::default()).await;
        assert!(report.is_complete() && report.stored == 1, "{report:?}");
        pool.down(0, true);
        let found = pool.host().get_versioned(b"k").await.unwrap().unwrap();
        assert_eq!((found.value, found.expiry, found.tag), (value(b"new"), options.expiry, 7));
        pool.store.put(b"k", value(b"plain")).await.unwrap();
        let found = pool.store.get_versioned(b"k").await.unwrap().unwrap();
        assert_eq!((found.expiry, found.tag), (None, 0));
    });
}
