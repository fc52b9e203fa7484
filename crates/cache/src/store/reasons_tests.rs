//! How many items left, and why: the counts are of what happened, and leave none out.

use std::time::Duration;

use device::FaultConfig;

use super::tests::{Durable, NOW, Tiered, get, put, run, visit};
use crate::flash::admission::{Admission, AdmitAll};
use crate::item::{Meta, NewValue, Seconds};
use crate::shard::{Counters, Dropped, FlashExit};
use crate::slot::{Slot, Slots};

/// Nothing goes to flash.
#[derive(Debug)]
struct AdmitNone;

impl Admission for AdmitNone {
    fn note(&self, _: u64) {}

    fn admits(&self, _: u64) -> bool {
        false
    }

    fn note_displaced(&self, _: u64) {}
}

impl Counters {
    fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize]
    }

    fn left(&self, why: FlashExit) -> u64 {
        self.left_flash[why as usize]
    }
}

async fn fill(store: &Tiered, keys: std::ops::Range<u64>, bytes: usize) {
    for key in keys {
        put(store, &key.to_le_bytes(), &vec![key as u8; bytes], true).await;
    }
}

#[test]
fn what_admission_rejects_is_counted() {
    run(async {
        let store = Durable::new(32).open_with(8 << 20, Box::new(AdmitNone)).await;
        fill(&store, 0..20_000, 1000).await;
        let counters = store.usage().counters;
        assert!(counters.evicted > 10_000 && counters.evicted == counters.dropped(Dropped::NotAdmitted));
        assert_eq!(counters.items + counters.evicted, 20_000);
        assert_eq!((counters.lowered, store.lower().log().stats().refused_items), (0, 0));
    });
}

/// Of what came each item is there, or was counted once as it left.
#[test]
fn whatever_leaves_has_one_reason() {
    run(async {
        let store = Durable::new(16).open_with(8 << 20, Box::new(AdmitAll)).await;
        fill(&store, 0..60_000, 1000).await;
        let counters = store.usage().counters;
        let dropped: u64 = counters.dropped.iter().sum();
        let left: u64 = counters.left_flash.iter().sum();
        assert_eq!(counters.evicted, counters.lowered + dropped, "{counters:?}");
        // An item that is stored unseen takes the place of one on flash that the index takes for it: nobody can count these.
        let gone = 60_000 - counters.items;
        assert!(dropped + left <= gone && dropped + left + 30 >= gone, "{gone} gone, {counters:?}");
        assert!(counters.left(FlashExit::Unpopular) > 10_000 && counters.collected <= left, "{counters:?}");
        // Those that were asked for are kept, as far as the device is to bear that.
        for key in 0..60_000_u64 {
            get(&store, &key.to_le_bytes()).await;
        }
        fill(&store, 100_000..160_000, 1000).await;
        let counters = store.usage().counters;
        assert!(counters.left(FlashExit::Worn) > 0, "{counters:?}");
        let reasons = [
            FlashExit::Unpopular,
            FlashExit::CollectedExpired,
            FlashExit::Worn,
            FlashExit::NoRoom,
            FlashExit::Unreadable,
        ];
        assert_eq!(counters.collected, reasons.iter().map(|&why| counters.left(why)).sum::<u64>());
    });
}

#[test]
fn what_is_over_on_flash_and_what_a_flush_takes_is_counted() {
    run(async {
        let store = Durable::new(32).open_with(8 << 20, Box::new(AdmitAll)).await;
        // Who puts the first item makes room for the next.
        put(&store, b"first", b"x", true).await;
        let meta = Meta { expires: Seconds(NOW.0 + 10), ..Meta::default() };
        visit(&store, b"over", NOW, |slot| slot.put(meta, NewValue::Pieces(&[b"x"])).map(drop)).await.expect("room");
        store.lower_all().await;
        let there = |now| visit(&store, b"over", now, |slot| slot.item().is_some());
        assert!(there(NOW).await && !there(Seconds(NOW.0 + 10)).await);
        assert_eq!(store.usage().counters.left(FlashExit::Expired), 1);
        fill(&store, 0..10_000, 1000).await;
        let items = store.usage().counters.items;
        store.flush(Seconds(NOW.0 + 11), Seconds(NOW.0 + 11));
        let counters = store.usage().counters;
        assert!(counters.flushed == items && counters.items == 0, "{items} {counters:?}");
    });
}

#[test]
fn flash_that_ends_and_an_index_that_is_given_up_say_what_is_lost() {
    run(async {
        let store = Durable::new(32).open_with(8 << 20, Box::new(AdmitAll)).await;
        fill(&store, 0..20_000, 1000).await;
        let before = store.usage().counters;
        store.forget_flash().await;
        let after = store.usage().counters;
        assert!(after.left(FlashExit::FlashEnded) > 5000);
        assert_eq!(after.left(FlashExit::FlashEnded), before.items - after.items);

        let store = Durable::new(32).open_with(8 << 20, Box::new(AdmitAll)).await;
        fill(&store, 0..10_000, 1000).await;
        store.set_limit(1 << 10);
        // Tables that are not the index's stay.
        let _ = store.shrink().await;
        let counters = store.usage().counters;
        assert_eq!((counters.items, counters.left(FlashExit::IndexGivenUp) > 3000), (0, true), "{counters:?}");
    });
}

/// A flash whose commands take so long.
fn slow(megabytes: u64, takes: Duration) -> Durable {
    let device = FaultConfig { delay: takes..takes + takes / 2, ..FaultConfig::default() };
    Durable { device, ..Durable::new(megabytes) }
}

/// Of four million items that came faster than flash took them 320,571 were given up, though it had room for all.
#[test]
fn what_comes_faster_than_flash_takes_it_waits() {
    run(async {
        let store = slow(128, Duration::from_millis(40)).open(8 << 20).await;
        fill(&store, 0..50_000, 1000).await;
        let counters = store.usage().counters;
        assert!(counters.lowered > 40_000 && counters.dropped(Dropped::FlashBusy) == 0, "{counters:?}");
        // A few keys are taken for one another by the index.
        assert!(counters.items > 49_950, "{counters:?}");
    });
}

/// Where it does not get on at all the first waits, a second or two; then nobody does for a while.
#[test]
fn a_flash_that_hangs_costs_a_moment() {
    run(async {
        let store = slow(32, Duration::from_secs(1000)).open(8 << 20).await;
        let began = engine::time::now();
        fill(&store, 0..30_000, 1000).await;
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        let counters = store.usage().counters;
        assert!(counters.dropped(Dropped::FlashBusy) > 10_000, "{counters:?}");
    });
}
