//! Nobody waits for who waits for him, nothing outlives its operation uncounted, and no error says less than may happen.

use std::cell::Cell;
use std::rc::Rc;

use engine::sync::{Notify, Permit};
use engine::task::LocalFuture;
use engine::time;
use pool::plan::Request;

use super::change_tests::{SHORT, Scene};
use super::operation::Course;
use super::tests::{Member, Pool, value};
use super::*;
use crate::table;
use crate::testing::{QUEUE_SLOTS, run};
use crate::types::Ballot;

const STEP: Duration = Duration::from_millis(10);

fn slow(members: &[Member], slow: Duration) {
    members.iter().for_each(|member| member.slow.set(slow));
}

/// All slots of a member's queue: whoever asks it now is first in line.
async fn whole_queue(member: &Member) -> Permit {
    member.queue.acquire(QUEUE_SLOTS).await
}

/// Whether the member answers others.
async fn answers(host: &Store, index: usize) -> bool {
    let key = host.inner.key(b"any").unwrap();
    let members = host.inner.topology().members.clone();
    time::timeout(Duration::from_secs(1), members[index].read(&key)).await.is_ok_and(|read| read.is_ok())
}

/// A part of the get stood first in line for a slot of the third member's queue and was not carried on while the value was
/// fetched from another: as long as that took, the host got nothing from that member.
#[test]
fn a_get_that_fetches_keeps_nobody_waiting_in_line() {
    run(70, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(&[1; 9000])).await.unwrap();
        pool.store.settle().await;
        let mut slots = whole_queue(&pool.members[2]).await;
        slow(&pool.members, STEP);
        let store = pool.store.clone();
        let get = engine::task::spawn(async move { store.get(b"k").await });
        // Two have told where it is, and are slow to give it.
        time::sleep(STEP / 2).await;
        slow(&pool.members[..2], Duration::from_secs(5));
        time::sleep(STEP).await;
        // One: who is first in line and is not carried on keeps it.
        drop(slots.split(1));
        assert!(answers(&pool.host(), 2).await);
        assert!(!get.is_finished(), "the value is still being fetched");
        assert_eq!(get.await, Ok(Some(value(&[1; 9000]))));
    });
}

/// The same, of an operation that has met a seal, and waits for the newer map.
#[test]
fn an_operation_that_met_a_seal_keeps_nobody_waiting_in_line() {
    run(71, async {
        let pool = Pool::new(3, 3).await;
        let key = pool.store.inner.key(b"k").unwrap();
        let sealed = pool.map.raise_epoch();
        let newer = Store::new(sealed.clone(), pool.members.iter().cloned().map(Some).collect());
        let topology = newer.inner.topology();
        clean::clean(&newer.inner, &topology, scan::Stretch { from: 0, to: None }).await.unwrap();
        let mut slots = whole_queue(&pool.members[2]).await;
        let (inner, course) = (&pool.store.inner, Course::default());
        let round = course.begin(inner, &inner.topology(), &key);
        let met = round.majority().await;
        assert!(matches!(met, Err(StoreError::MapChanged { epoch: 2, known: 1 })));
        // One: who is first in line and is not carried on keeps it.
        drop(slots.split(1));
        assert!(answers(&newer, 2).await);
        drop(round);
    });
}

/// One member was full when it was asked to promise. Asked to accept it has not answered yet, and the others are full now: that
/// one may store it. What it said to the prepare was taken for its answer, so that the error said "nothing was changed".
#[test]
fn a_member_that_was_full_before_may_not_be_full_now() {
    run(72, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"n", value(b"1")).await.unwrap();
        pool.store.settle().await;
        slow(&pool.members, STEP);
        pool.members[0].full.set(true);
        let store = pool.store.clone();
        let count = engine::task::spawn(async move { store.increment(b"n", 1, None).await });
        // Read at 10 ms, promised at 20; what is to be accepted lands at 30, on the first member much later.
        time::sleep(STEP + STEP / 2).await;
        pool.members[0].slow.set(Duration::from_secs(1));
        time::sleep(STEP).await;
        let full = [false, true, true];
        pool.members.iter().zip(full).for_each(|(member, full)| member.full.set(full));
        let error = count.await.unwrap_err();
        assert!(matches!(error, StoreError::OutOfSpace { .. }) && error.outcome_unknown(), "{error}");
        time::sleep(Duration::from_secs(2)).await;
        pool.members.iter().for_each(|member| member.full.set(false));
        pool.down(2, true);
        assert_eq!(pool.host().get(b"n").await, Ok(Some(value(b"2"))), "so it was");
    });
}

/// The first try is in doubt and the second, of the same image, finds no room: the first may yet land.
#[test]
fn no_room_after_a_doubt_is_no_refusal() {
    run(73, async {
        let pool = Pool::new(1, 1).await;
        slow(&pool.members, STEP);
        let member = &pool.members[0];
        let store = pool.store.clone();
        member.cut.set(Some((0, false)));
        let put = engine::task::spawn(async move { store.put(b"k", value(b"v")).await });
        // Read at 10 ms; the compare-and-write is lost at 20, the page read again, and the next one refused.
        time::sleep(2 * STEP + STEP / 2).await;
        assert!(member.down.replace(false));
        member.full.set(true);
        let error = put.await.unwrap_err();
        assert!(matches!(error, StoreError::OutOfSpace { .. }) && error.outcome_unknown(), "{error}");
    });
}

/// A put held bytes while it waited for its place among the operations, and a get a place while it waited for bytes.
#[test]
fn a_get_and_a_put_at_both_bounds_do_not_wait_for_each_other() {
    run(74, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(&[1; 9000])).await.unwrap();
        pool.store.settle().await;
        slow(&pool.members, STEP);
        let inner = &pool.store.inner;
        let _others = inner.operations.acquire(OPERATIONS_MAX - 1).await;
        let _values = inner.value_bytes.acquire(VALUE_BYTES_AT_ONCE_MAX - 9000).await;
        let store = pool.store.clone();
        let get = engine::task::spawn(async move { store.get(b"k").await });
        time::sleep(STEP / 2).await;
        pool.store.put(b"other", value(&[2; 9000])).await.unwrap();
        assert_eq!(get.await, Ok(Some(value(&[1; 9000]))));
    });
}

/// Room that its caller has none of until told.
#[derive(Default)]
struct NoRoom {
    is_there: Cell<bool>,
    waiting: Cell<usize>,
    freed: Notify,
}

impl Reserve for NoRoom {
    fn reserve(&self, _: usize) -> Option<LocalFuture<'_, ()>> {
        let wait = async {
            self.waiting.set(self.waiting.get() + 1);
            self.freed.notified().await;
        };
        (!self.is_there.get()).then(|| Box::pin(wait) as LocalFuture<'_, ()>)
    }
}

/// 1,024 commands whose replies nobody read kept all others from the store.
#[test]
fn who_waits_for_its_callers_room_has_no_place_among_the_operations() {
    run(82, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"long", value(&[1; 9000])).await.unwrap();
        pool.store.put(b"short", value(b"1")).await.unwrap();
        pool.store.settle().await;
        for changes in [false, true] {
            let room = Rc::new(NoRoom::default());
            let begin = |_| {
                let (store, room) = (pool.store.clone(), Some(room.clone() as Rc<dyn Reserve>));
                engine::task::spawn(async move {
                    match changes {
                        false => store.get_reserving(b"long", room).await.map(|found| found.is_some()),
                        true => {
                            let decide = |found: Option<&Versioned>| Change::Keep(found.is_some());
                            store.update_reserving(b"long", room, |_| 0, decide).await
                        }
                    }
                })
            };
            let waiting: Vec<_> = (0..OPERATIONS_MAX).map(begin).collect();
            time::sleep(STEP).await;
            // One update at a time is at a key; the others have not come so far.
            assert_eq!(room.waiting.get(), if changes { 1 } else { OPERATIONS_MAX });
            let get = time::timeout(STEP, pool.store.get(b"short")).await;
            assert_eq!(get.expect("no place is left"), Ok(Some(value(b"1"))));
            let count = time::timeout(STEP, pool.store.increment(b"short", 0, None)).await;
            assert_eq!(count.expect("no place is left"), Ok(Increment::Value(1)));
            // With room they take places again, of which there are as many as ever.
            room.is_there.set(true);
            let places = pool.store.inner.operations.acquire(OPERATIONS_MAX).await;
            room.freed.notify_all();
            time::sleep(STEP).await;
            assert!(!waiting[0].is_finished());
            drop(places);
            for operation in waiting {
                assert_eq!(operation.await, Ok(true));
            }
            assert_eq!(pool.store.inner.operations.available(), OPERATIONS_MAX);
        }
    });
}

/// 1,024 conditional writes of 64 MiB were written at once.
#[test]
fn a_conditional_write_waits_for_bytes_as_a_put_does() {
    run(79, async {
        let pool = Pool::new(3, 3).await;
        let inner = &pool.store.inner;
        let values = inner.value_bytes.acquire(VALUE_BYTES_AT_ONCE_MAX - 8999).await;
        let store = pool.store.clone();
        let add = engine::task::spawn(async move { store.add(b"k", value(&[1; 9000]), PutOptions::default()).await });
        time::sleep(STEP).await;
        assert_eq!(pool.store.get(b"k").await, Ok(None));
        drop(values);
        assert_eq!(add.await, Ok(true));
    });
}

/// What is only looked at is not read.
#[test]
fn a_look_reads_no_value() {
    run(80, async {
        let pool = Pool::new(3, 3).await;
        let options = PutOptions { expiry: None, tag: 7 };
        pool.store.put_with(b"k", value(&[1; 9000]), options).await.unwrap();
        pool.store.settle().await;
        let _values = pool.store.inner.value_bytes.acquire(VALUE_BYTES_AT_ONCE_MAX).await;
        let shown = Shown { length: 9000, expiry: None, tag: 7 };
        assert_eq!(pool.host().look(b"k").await, Ok(Some(shown)));
        assert_eq!(pool.store.look(b"none").await, Ok(None));
    });
}

/// Where replicas differ the value is read and stored first: 1,024 looks at values of 64 MiB, whose bytes were given back as soon
/// as they were there, held all of them. Where a conditional operation is in the way it is read twice, with the bytes of one.
#[test]
fn a_look_has_bytes_for_as_long_as_it_has_the_value() {
    for is_refused in [false, true] {
        run(83, async move {
            let pool = Pool::new(3, 3).await;
            let (store, inner) = (&pool.store, &pool.store.inner);
            let key = inner.key(b"k").unwrap();
            let homes: Vec<_> = inner.topology().homes(&key).iter().map(|home| usize::from(home.member)).collect();
            pool.down(homes[1], true);
            assert_eq!(store.add(b"k", value(&[1; 9000]), PutOptions::default()).await, Ok(true));
            store.settle().await;
            pool.down(homes[1], false);
            for home in homes[1..].iter().filter(|_| is_refused) {
                let ballot = Ballot { round: u64::MAX >> 1, op: inner.next_op() };
                let prepare = table::Request::Prepare(ballot);
                store.table(*home).unwrap().apply(&key, &prepare, table::Known::default()).await.unwrap();
            }
            // The first two that answer differ.
            slow(&pool.members, STEP);
            pool.members[homes[2]].slow.set(20 * STEP);
            let _others = inner.value_bytes.acquire(VALUE_BYTES_AT_ONCE_MAX - 9000).await;
            let looking = store.clone();
            let look = engine::task::spawn(async move { looking.look(b"k").await });
            let tick = async || time::sleep(Duration::from_millis(1)).await;
            let is_at_hand = || inner.value_bytes.available() == 0;
            while !is_at_hand() {
                tick().await;
            }
            while is_at_hand() {
                tick().await;
            }
            assert_eq!(look.is_finished(), !is_refused, "the value is there still");
            if is_refused {
                // It is read anew, and there until all hold it.
                while !is_at_hand() {
                    tick().await;
                }
                while is_at_hand() {
                    tick().await;
                }
                assert!(look.is_finished(), "the value is there still");
            }
            assert_eq!(look.await, Ok(Some(Shown { length: 9000, expiry: None, tag: 0 })));
            assert_eq!(inner.value_bytes.available(), 9000);
        });
    }
}

/// Else a member that never answers would be asked for ever more, by gets that another served.
#[test]
fn a_fetch_that_outlives_its_get_is_counted() {
    run(75, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(&[1; 9000])).await.unwrap();
        pool.store.settle().await;
        let stragglers = || pool.store.members().iter().map(|member| member.stragglers).collect::<Vec<_>>();
        let first = usize::from(pool.store.inner.topology().homes(&pool.store.inner.key(b"k").unwrap())[0].member);
        slow(&pool.members, STEP);
        let store = pool.store.clone();
        let get = engine::task::spawn(async move { store.get(b"k").await });
        time::sleep(STEP / 2).await;
        pool.members[first].slow.set(Duration::from_secs(60));
        assert!(get.await.unwrap().is_some(), "the second one asked has answered");
        assert_eq!((stragglers()[first], stragglers().iter().sum::<usize>()), (1, 1));
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(stragglers(), [0; 3]);
    });
}

/// With pauses shorter than an attempt takes, hosts on slow members refuse each other until they have used up their attempts.
#[test]
fn hosts_on_slow_members_count_together() {
    run(76, async {
        let pool = Pool::new(3, 3).await;
        for (member, millis) in pool.members.iter().zip([20, 26, 34]) {
            member.slow.set(Duration::from_millis(millis));
        }
        let hosts: Vec<_> = (0..8).map(|_| pool.host()).collect();
        let counters: Vec<_> = hosts
            .iter()
            .map(|host| {
                let store = host.clone();
                engine::task::spawn(async move {
                    for _ in 0..3 {
                        let sum = store.increment(b"n", 1, Some(0)).await;
                        assert!(matches!(sum, Ok(Increment::Value(_))), "{sum:?}");
                    }
                })
            })
            .collect();
        for counter in counters {
            counter.await;
        }
        assert_eq!(pool.host().get(b"n").await, Ok(Some(value(b"24"))));
        let conflicts: u64 = hosts.iter().map(|host| host.inner.stats.conflicts.load(Ordering::Relaxed)).sum();
        // 42 on this seed; 565 where the longest pause is shorter than an attempt.
        assert!(conflicts < 150, "{conflicts} attempts in vain");
    });
}

/// An operation of a joint epoch is content with one answer of the two old homes: what it has stored there may be on the
/// damaged page alone, and the other old home does not make up for that. But the new homes do, as a majority of them has it.
#[test]
fn a_page_of_one_of_two_is_not_rebuilt_from_the_other_alone_while_the_pool_changes() {
    run(77, async {
        let scene = Scene::of([100, 100, 0, 0, 0], 2).await;
        let host = scene.host(SHORT).await;
        host.store.put(b"k", value(b"old")).await.unwrap();
        host.store.settle().await;
        let weights = [(0, 0), (1, 0), (3, 100), (4, 100)].map(|(index, weight)| (scene.id(index), weight));
        scene.begin(&Request::SetWeight(weights.to_vec()));
        time::sleep(10 * SHORT).await;
        host.voters.links[1].down.set(true);
        host.store.put(b"k", value(b"joint")).await.unwrap();
        host.store.settle().await;
        host.voters.links[1].epoch.set(1);
        host.voters.links[1].down.set(false);
        let table = host.store.table(0).unwrap();
        let page = table.home(&host.store.inner.key(b"k").unwrap());
        let damaged = engine::Buf::with_len(4096);
        let lba = table.layout().table(page);
        let (_, mut image) = device::Namespace::read(&*scene.memories[0], lba, damaged).await;
        image[20] ^= 1;
        device::Namespace::write(&*scene.memories[0], lba, image.freeze(), device::Durability::Stable).await.unwrap();
        for member in [3, 4] {
            host.voters.links[member].down.set(true);
        }
        let accept_stale = RepairOptions { accept_stale: true, ..RepairOptions::default() };
        for options in [RepairOptions::default(), accept_stale] {
            let report = host.store.repair(&options).await;
            assert_eq!(report.pages_rebuilt, 0, "{report:?}");
            assert!(
                report.reasons.iter().any(|reason| reason.contains("1 other good replicas are needed")),
                "{report:?}"
            );
        }
        host.voters.links[3].epoch.set(1);
        host.voters.links[3].down.set(false);
        let report = host.store.repair(&RepairOptions::default()).await;
        assert_eq!(report.pages_rebuilt, 1, "{report:?}");
        host.voters.links[4].epoch.set(1);
        host.voters.links[4].down.set(false);
        // The placement before, with what the page has from a new home.
        host.voters.links[1].down.set(true);
        assert_eq!(host.store.get(b"k").await, Ok(Some(value(b"joint"))));
        let (_, found) =
            host.store.inner.topology().members[0].read(&host.store.inner.key(b"k").unwrap()).await.unwrap();
        assert!(found.content.value_len() == Some(5), "{found:?}");
    });
}

/// An operation ends with a majority: `pool status` took a member that was only slower than the others for one without a vote.
#[test]
fn a_member_slower_than_the_others_has_its_vote_and_one_that_is_silent_has_none() {
    run(78, async {
        let pool = Pool::new(3, 3).await;
        pool.members[2].slow.set(STEP);
        let host = pool.host();
        host.list(b"", 0, 1).await.unwrap();
        assert!(!host.members()[2].votes, "two have answered");
        assert!(host.ask_members(3 * STEP).await.iter().all(|member| member.votes));
        pool.members[2].slow.set(Duration::from_secs(3600));
        let votes: Vec<bool> = pool.host().ask_members(STEP).await.iter().map(|member| member.votes).collect();
        assert_eq!(votes, [true, true, false]);
    });
}
