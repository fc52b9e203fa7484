//! Values with expiry, tag and version; conditional operations.

use std::collections::BTreeSet;

use super::tests::{Pool, value};
use super::*;
use crate::table::Content;
use crate::testing::{Counting, run};
use crate::value::Value;
use engine::Buf;
use engine::sync::Notify;
use engine::time;

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

#[test]
fn conditional_operations_say_what_they_did_with_every_replica_count() {
    for replicas in 1..=7 {
        run(30 + u64::from(replicas), async move {
            let pool = Pool::new(7, replicas).await;
            let (store, never) = (&pool.store, PutOptions::default());
            assert_eq!(store.replace(b"k", value(b"no"), never).await, Ok(false));
            assert_eq!(store.add(b"k", value(b"one"), never).await, Ok(true));
            assert_eq!(store.add(b"k", value(b"two"), never).await, Ok(false));
            assert_eq!(pool.host().get(b"k").await, Ok(Some(value(b"one"))));
            let version = store.get_versioned(b"k").await.unwrap().unwrap().version;
            assert_eq!(store.replace(b"k", value(b"two"), never).await, Ok(true));
            let changed = store.compare_and_set(b"k", version, value(b"three"), never).await.unwrap();
            let CasOutcome::Changed(Some(version)) = changed else { panic!("{changed:?}") };
            let stored = pool.host().compare_and_set(b"k", version, value(b"three"), never).await.unwrap();
            let CasOutcome::Stored(version) = stored else { panic!("{stored:?}") };
            assert_eq!(store.get_versioned(b"k").await.unwrap().unwrap().version, version);
            assert_eq!(store.append(b"k", b" and four").await, Ok(14));
            let taken = pool.host().take(b"k").await.unwrap().unwrap();
            assert_eq!(taken.value, value(b"three and four"));
            assert_eq!(store.take(b"k").await.unwrap().map(|found| found.value), None);
            assert_eq!(store.compare_and_set(b"k", version, value(b"x"), never).await, Ok(CasOutcome::Changed(None)));
            assert_eq!(store.get(b"k").await, Ok(None));
            let report = pool.verify().await;
            assert!(report.is_equal(), "{report:?}");
        });
    }
}

#[test]
fn increments_are_redis_own() {
    run(40, async {
        let pool = Pool::new(3, 3).await;
        let store = &pool.store;
        assert_eq!(store.increment(b"n", 1, None).await, Ok(Increment::Missing));
        assert_eq!(store.increment(b"n", -3, Some(0)).await, Ok(Increment::Value(-3)));
        assert_eq!(store.increment(b"n", i64::MAX, None).await, Ok(Increment::Value(i64::MAX - 3)));
        assert_eq!(store.increment(b"n", 4, None).await, Ok(Increment::Overflow));
        for text in ["", " 1", "01", "+1", "-0", "1.0", "9223372036854775808", "x"] {
            store.put(b"n", value(text.as_bytes())).await.unwrap();
            assert_eq!(store.increment(b"n", 1, Some(0)).await, Ok(Increment::NotANumber), "{text:?}");
        }
        let options = PutOptions { expiry: Some(4_000_000_000_000), tag: 0 };
        store.put_with(b"n", value(b"41"), options).await.unwrap();
        assert_eq!(store.increment(b"n", 1, None).await, Ok(Increment::Value(42)));
        assert_eq!(store.get_versioned(b"n").await.unwrap().unwrap().expiry, options.expiry);
    });
}

#[test]
fn values_out_of_line_are_changed_by_condition_too_and_leave_nothing_behind() {
    run(41, async {
        let pool = Pool::sized(3, 3, 64 << 20).await;
        let host = pool.host();
        let piece = vec![7; 50_000];
        for length in 1..=6 {
            assert_eq!(pool.store.append(b"k", &piece).await, Ok(length * piece.len()));
            assert_eq!(host.append(b"other", &piece).await, Ok(length * piece.len()));
        }
        assert!(host.get(b"k").await.unwrap().unwrap().equals(&vec![7; 300_000]));
        assert!(pool.verify().await.is_equal());
        for key in [&b"k"[..], b"other"] {
            assert!(host.take(key).await.unwrap().is_some());
        }
        // A host that ends without it leaves its stock of claimed pages behind.
        pool.store.settle().await;
        host.settle().await;
        assert_eq!(pool.store.usage(0).await.unwrap().heap_pages_used, 0);
    });
}

/// Figures of the cost table in `docs/kv.md`: reads and compare-and-writes on each member are its round trips.
#[test]
fn the_first_conditional_operation_is_three_round_trips_and_the_next_of_the_host_two() {
    run(42, async {
        let pool = Pool::new(3, 3).await;
        let other = pool.host();
        for number in 0..20u8 {
            // Superblocks are checked once.
            pool.store.get(&[number]).await.unwrap();
            other.get(&[number]).await.unwrap();
        }
        let taken = async || {
            pool.store.settle().await;
            other.settle().await;
            pool.take()
        };
        // All answer at the same pace: nobody is passed over.
        pool.members.iter().for_each(|member| member.slow.set(Duration::from_micros(100)));
        taken().await;
        pool.store.put(b"n", value(b"0")).await.unwrap();
        assert_eq!(taken().await, [(1, 0, 1); 3], "put: read, store");
        pool.store.increment(b"n", 1, None).await.unwrap();
        assert_eq!(taken().await, [(1, 0, 2); 3], "first: read, prepare, accept");
        for _ in 0..3 {
            pool.store.increment(b"n", 1, None).await.unwrap();
            assert_eq!(taken().await, [(1, 0, 1); 3], "again: read, accept");
        }
        other.increment(b"n", 1, None).await.unwrap();
        assert_eq!(taken().await, [(1, 0, 2); 3], "another host: read, prepare, accept");
        pool.store.increment(b"n", 1, None).await.unwrap();
        assert_eq!(taken().await, [(1, 0, 2); 3], "the reservation is gone: read, prepare, accept");
        assert_eq!(pool.store.add(b"n", value(b"x"), PutOptions::default()).await, Ok(false));
        assert_eq!(taken().await, [(1, 0, 0); 3], "what a majority shows, and is not changed, costs what a get costs");
        pool.store.increment(b"n", 1, None).await.unwrap();
        assert_eq!(taken().await, [(1, 0, 1); 3], "and nothing was sent under the reserved ballot: it is still good");
        assert_eq!(other.add(b"n", value(b"x"), PutOptions::default()).await, Ok(false));
        assert_eq!(taken().await, [(1, 0, 0); 3], "so it is for another host");
        assert_eq!(pool.store.get(b"n").await, Ok(Some(value(b"7"))));
    });
}

#[test]
fn hosts_that_count_together_lose_and_repeat_nothing() {
    for seed in 0..5 {
        run(50 + seed, async move {
            let pool = Pool::new(3, 3).await;
            for (member, micros) in pool.members.iter().zip([100, 130, 170]) {
                member.slow.set(Duration::from_micros(micros));
            }
            let counters: Vec<_> = (0..8)
                .map(|_| {
                    let store = pool.host();
                    engine::task::spawn(async move {
                        let mut seen = Vec::new();
                        for _ in 0..10 {
                            match store.increment(b"n", 1, Some(0)).await.unwrap() {
                                Increment::Value(sum) => seen.push(sum),
                                other => panic!("{other:?}"),
                            }
                        }
                        seen
                    })
                })
                .collect();
            let mut sums = Vec::new();
            for counter in counters {
                sums.extend(counter.await);
            }
            sums.sort_unstable();
            assert_eq!(sums, (1..=80).collect::<Vec<i64>>());
        });
    }
}

/// An attempt whose reply is lost is not made again where it took effect.
#[test]
fn an_operation_whose_replies_are_lost_is_applied_once() {
    run(60, async {
        for before in [0, 1, 2, 3] {
            let pool = Pool::new(3, 3).await;
            pool.store.put(b"n", value(b"0")).await.unwrap();
            pool.store.settle().await;
            for member in &pool.members {
                member.cut.set(Some((before, true)));
            }
            let (members, revived) = (pool.members.clone(), Rc::new(Cell::new(false)));
            let stop = revived.clone();
            let reviver = engine::task::spawn(async move {
                while !stop.get() {
                    time::sleep(Duration::from_millis(5)).await;
                    for member in &members {
                        member.epoch.set(member.epoch.get() + u64::from(member.down.get()));
                        member.down.set(false);
                    }
                }
            });
            let mut expected = 0;
            for _ in 0..3 {
                match pool.store.increment(b"n", 1, None).await {
                    Ok(Increment::Value(sum)) => {
                        expected += 1;
                        assert_eq!(sum, expected);
                    }
                    other => panic!("{other:?}"),
                }
            }
            revived.set(true);
            reviver.await;
        }
    });
}

/// Two operations under one ballot would be two values under one timestamp: readers would differ, and nobody would notice.
#[test]
fn a_reserved_ballot_is_used_once() {
    run(63, async {
        let pool = Pool::new(3, 3).await;
        assert_eq!(pool.store.increment(b"n", 1, Some(0)).await, Ok(Increment::Value(1)));
        pool.store.settle().await;
        // What the next one asks under its reserved ballot comes to one member alone.
        for member in &pool.members[1..] {
            member.cut.set(Some((0, false)));
        }
        let error = pool.store.increment(b"n", 1, None).await.unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
        pool.store.settle().await;
        for (member, down) in [(0, true), (1, false), (2, false)] {
            pool.down(member, down);
        }
        assert_eq!(pool.store.increment(b"n", 10, None).await, Ok(Increment::Value(11)));
        pool.store.settle().await;
        pool.down(0, false);
        pool.down(2, true);
        assert_eq!(pool.host().get(b"n").await, Ok(Some(value(b"11"))));
    });
}

#[test]
fn a_key_ends_when_a_clock_says_so_and_nobody_sees_it_afterwards() {
    run(61, async {
        let pool = Pool::new(3, 3).await;
        let (fast, slow) = (pool.host(), pool.host());
        fast.inner.clock_error.set(60_000);
        slow.inner.clock_error.set(-60_000);
        let now = pool.store.inner.unix_millis();
        let ends = |after: u64| PutOptions { expiry: Some(now + after), tag: 0 };
        pool.store.put_with(b"k", value(b"v"), ends(30_000)).await.unwrap();
        assert!(slow.get(b"k").await.unwrap().is_some());
        assert_eq!(fast.get(b"k").await, Ok(None), "it has ended by this clock");
        assert_eq!(slow.get(b"k").await, Ok(None), "and so by all");
        // A clock that jumps back brings nothing back; one that jumps forth ends what is due.
        pool.store.inner.clock_error.set(-3_600_000);
        assert_eq!(pool.store.get(b"k").await, Ok(None));
        pool.store.put_with(b"k", value(b"w"), ends(30_000)).await.unwrap();
        assert_eq!(pool.store.add(b"k", value(b"x"), PutOptions::default()).await, Ok(false));
        pool.store.inner.clock_error.set(3_600_000);
        assert!(pool.store.list(b"", 0, 10).await.unwrap().entries.is_empty());
        assert_eq!(pool.store.add(b"k", value(b"x"), PutOptions::default()).await, Ok(true));
        assert_eq!(slow.get(b"k").await, Ok(Some(value(b"x"))));
        for what in ["replace", "take", "delete", "append"] {
            pool.store.put_with(b"k", value(b"w"), PutOptions { expiry: Some(1), tag: 5 }).await.unwrap();
            match what {
                "replace" => {
                    assert_eq!(pool.store.replace(b"k", value(b"x"), PutOptions::default()).await, Ok(false));
                }
                "take" => assert!(pool.store.take(b"k").await.unwrap().is_none()),
                "delete" => assert_eq!(pool.store.delete(b"k").await, Ok(false)),
                _ => assert_eq!(pool.store.append(b"k", b"12").await, Ok(2)),
            }
            let left = slow.get_versioned(b"k").await.unwrap();
            assert_eq!(left.is_some(), what == "append", "{what}");
            assert!(left.is_none_or(|left| left.expiry.is_none() && left.tag == 0));
        }
    });
}

#[test]
fn many_keys_take_little_longer_than_one() {
    run(62, async {
        let pool = Pool::new(3, 3).await;
        pool.members.iter().for_each(|member| member.slow.set(Duration::from_millis(1)));
        let puts: Vec<_> =
            (0..200u32).map(|n| (n.to_le_bytes(), value(&n.to_le_bytes()), PutOptions::default())).collect();
        let start = time::now();
        assert!(pool.store.put_many(&puts).await.iter().all(Result::is_ok));
        let keys: Vec<_> = (0..201u32).map(u32::to_le_bytes).collect();
        let found = pool.store.get_many(&keys).await;
        assert!(start.elapsed() < Duration::from_millis(15), "{:?}", start.elapsed());
        for (key, found) in keys.iter().zip(&found).take(200) {
            assert_eq!(found.as_ref().unwrap().as_ref().unwrap().value, value(key));
        }
        assert!(found[200].as_ref().unwrap().is_none());
        let twice = [(b"k", value(b"1"), PutOptions::default()), (b"k", value(b"2"), PutOptions::default())];
        assert_eq!(pool.store.put_many(&twice).await, [Ok(()), Ok(())]);
        assert_eq!(pool.store.get(b"k").await, Ok(Some(value(b"2"))));
        assert_eq!(pool.store.get_many(&[b""]).await.remove(0).unwrap_err(), StoreError::Key { length: 0 });
    });
}

/// What an update of a key comes to that another host changes time after time between the promise and what was promised for, up to
/// ten times, and how many results of earlier attempts were kept at each look. `in_doubt`: what then becomes of the attempt on the
/// last member nobody knows.
async fn update_against_another(
    pool: &Pool,
    length: usize,
    in_doubt: bool,
) -> (Result<Rc<()>, StoreError>, Vec<usize>) {
    let links = pool.members.iter().map(|member| Some(Counting::new(member.inner.clone())));
    let other = Store::new(pool.map.clone(), links.collect());
    let (comes, result) = (Rc::new(Notify::new()), Rc::new(()));
    let (comes_between, kept) = (comes.clone(), RefCell::new(Vec::new()));
    let (store, last) = (pool.store.clone(), pool.members[2].clone());
    let _other: engine::task::Task<()> = engine::task::spawn(async move {
        loop {
            comes_between.notified().await;
            let conflicts = store.stats().conflicts.load(Ordering::Relaxed);
            last.hold_swaps.set(in_doubt);
            other.append(b"k", b"x").await.unwrap();
            while store.stats().conflicts.load(Ordering::Relaxed) == conflicts {
                time::sleep(Duration::from_millis(1)).await;
            }
            last.hold_swaps.set(false);
        }
    });
    let decide = |_: Option<&Versioned>| {
        kept.borrow_mut().push(Rc::strong_count(&result) - 1);
        if kept.borrow().len() < 10 {
            comes.notify_one();
        }
        Change::Put { value: value(&vec![2; length]), options: PutOptions::default(), result: result.clone() }
    };
    let updated = pool.store.update(b"k", decide).await;
    (updated, kept.take())
}

/// The result of every attempt was kept to the end, and with it, where it was the value that had been there, all of a copy that the
/// attempt had read: of one of 64 MiB two even where nobody else was at the key, and else up to 128. So it was, later, where a
/// member was away, as it had refused nothing.
#[test]
fn results_of_attempts_that_do_not_count_are_not_kept() {
    run(46, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(&[1; 100_000])).await.unwrap();
        pool.store.settle().await;
        pool.members.iter().for_each(|member| member.slow.set(Duration::from_millis(10)));
        for away in [false, true] {
            pool.down(2, away);
            let (updated, kept) = update_against_another(&pool, 100_000, false).await;
            assert!(updated.is_ok(), "{updated:?}");
            assert!(kept.len() >= 10 && kept.iter().all(|&kept| kept <= 1), "{kept:?}");
        }
        pool.down(2, false);
        pool.store.settle().await;
        let (result, kept) = (Rc::new(()), RefCell::new(Vec::new()));
        let update = pool.store.update(b"k", |_: Option<&Versioned>| {
            kept.borrow_mut().push(Rc::strong_count(&result) - 1);
            Change::Put { value: value(b"v"), options: PutOptions::default(), result: result.clone() }
        });
        assert!(Rc::ptr_eq(&update.await.unwrap(), &result));
        assert!(kept.take().iter().all(|&kept| kept == 0), "it looks, and is promised");
    });
}

/// Where what a member has done is not known each attempt may yet take effect there, and its result is needed then: of long
/// values one is kept, and the operation ends before it reads a third. Of short ones all are.
#[test]
fn results_of_attempts_that_may_count_are_kept_up_to_a_bound() {
    run(48, async {
        for (length, is_long) in [(600_000, true), (100, false)] {
            let pool = Pool::new(3, 3).await;
            pool.store.put(b"k", value(&vec![1; length])).await.unwrap();
            pool.store.settle().await;
            pool.members.iter().for_each(|member| member.slow.set(Duration::from_millis(10)));
            pool.members[2].slow.set(Duration::ZERO);
            let (updated, kept) = update_against_another(&pool, length, true).await;
            match updated {
                Err(StoreError::Contended { outcome_unknown: true, .. }) if is_long => {
                    assert!(kept.iter().all(|&kept| kept <= 1), "{kept:?}");
                }
                Ok(_) if !is_long => assert!(kept.len() >= 10 && kept.iter().any(|&kept| kept > 1), "{kept:?}"),
                other => panic!("{length}: {other:?}, {kept:?}"),
            }
        }
    });
}

/// An operation that was refused kept the bytes of its value while it paused: with four of the longest all others of the thread
/// waited for as long.
#[test]
fn an_operation_that_pauses_behind_a_refusal_holds_no_bytes() {
    run(47, async {
        let pool = Pool::new(3, 3).await;
        for key in [b"k", b"o"] {
            pool.store.put(key, value(&[1; 9000])).await.unwrap();
        }
        pool.store.settle().await;
        let inner = &pool.store.inner;
        let _others = inner.value_bytes.acquire(VALUE_BYTES_AT_ONCE_MAX - 20_000).await;
        let links = pool.members.iter().map(|member| Some(Counting::new(member.inner.clone())));
        let other = Store::new(pool.map.clone(), links.collect());
        pool.members.iter().for_each(|member| member.slow.set(Duration::from_millis(10)));
        let (store, comes) = (pool.store.clone(), Rc::new(Notify::new()));
        let (promised, mut looks) = (comes.clone(), 0);
        let made = Rc::new(RefCell::new(None));
        let makes = made.clone();
        let update = engine::task::spawn(async move {
            let decide = |_: Option<&Versioned>| {
                looks += 1;
                if looks == 2 {
                    promised.notify_one();
                }
                let new = Buf::copy_from(&[2; 9000]).freeze();
                *makes.borrow_mut() = Some(new.clone());
                Change::Put { value: Value::new(vec![new]), options: PutOptions::default(), result: () }
            };
            store.update(b"k", decide).await
        });
        // Between the promise and what was promised for.
        comes.notified().await;
        assert_eq!(other.append(b"k", b"x").await, Ok(9001));
        while pool.store.stats().conflicts.load(Ordering::Relaxed) == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!update.is_finished() && inner.value_bytes.available() == 20_000);
        // Nor its value, as soon as nobody is at it.
        time::sleep(Duration::from_millis(15)).await;
        assert!(!update.is_finished());
        assert!(made.take().unwrap().try_into_buf().is_ok(), "nobody else has it");
        assert_eq!(pool.store.get(b"o").await, Ok(Some(value(&[1; 9000]))));
        assert_eq!(update.await, Ok(()));
    });
}

/// A member that was away throughout gets the last attempt yet, also when the operation has ended. (All before it were refused
/// by both others, and it got none of them.)
#[test]
fn the_last_of_all_attempts_may_yet_be_taken_by_a_member_that_was_away() {
    run(49, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(b"v")).await.unwrap();
        pool.store.settle().await;
        pool.members.iter().for_each(|member| member.slow.set(Duration::from_micros(100)));
        pool.down(2, true);
        let links: Vec<_> = pool.members.iter().map(|member| Counting::new(member.inner.clone())).collect();
        links[2].down.set(true);
        let other = Store::new(pool.map.clone(), links.into_iter().map(Some).collect());
        let comes = Rc::new(Notify::new());
        let comes_between = comes.clone();
        let _other: engine::task::Task<()> = engine::task::spawn(async move {
            loop {
                comes_between.notified().await;
                other.append(b"k", b"x").await.unwrap();
            }
        });
        let decide = |_: Option<&Versioned>| {
            comes.notify_one();
            Change::Put { value: value(b"w"), options: PutOptions::default(), result: () }
        };
        let updated = pool.store.update(b"k", decide).await;
        pool.down(2, false);
        assert_eq!(updated, Err(StoreError::Contended { attempts: ATTEMPTS_MAX, outcome_unknown: true }));
        pool.store.settle().await;
        let key = Key::new(b"k", pool.map.hash_seed).unwrap();
        let held = pool.store.table(2).unwrap().read(&key).await.unwrap();
        assert!(matches!(&held.content, Content::Inline(held) if held[..] == *b"w"), "{held:?}");
    });
}
