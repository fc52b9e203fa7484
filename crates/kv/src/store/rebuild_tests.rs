//! Pages of one member that are damaged and rebuilt from the others, step by step.

use device::{Durability, Namespace};

use super::scan::DamagedPage;
use super::tests::{Pool, value};
use super::*;
use crate::table::{self, DamageMark, Known, Outcome, Record, TableError};
use crate::testing::run;
use crate::types::{Applied, Ballot, OpId, Timestamp};

/// A damaged page of a member, for which the time has come.
struct Rebuilt {
    seen: DamagedPage,
    mark: DamageMark,
}

impl Rebuilt {
    async fn of(pool: &Pool, member: usize, key: &[u8]) -> Rebuilt {
        let (page, of) = (pool.page_of(member, key), &pool.map.members[member]);
        let seen = DamagedPage { member, life: (of.id, of.incarnation), page, error: TableError::Contended };
        let mark = rebuild::mark_of(&pool.store.inner, &seen).await.unwrap().expect("it is damaged");
        Rebuilt { seen, mark }
    }

    async fn rebuild(&self, host: &Store) -> Result<Option<bool>, rebuild::Unable> {
        let terms = rebuild::Terms { since: 0, accept_stale: false };
        let job = Jobs::default().begin("test", None, None);
        rebuild::rebuild_page(&host.inner, &self.seen, &self.mark, terms, &job).await
    }
}

fn ballot(number: u64) -> Ballot {
    Ballot { round: (1 << 40) + number, op: OpId { host: number, sequence: 1 } }
}

/// What the conditional operation of ballot `number` writes on top of `base`.
fn accept(base: Timestamp, number: u64, text: &[u8]) -> table::Request {
    let (ballot, timestamp) = (ballot(number), Timestamp { ballot: ballot(number), ..base });
    let ops = vec![Applied { op: ballot.op, round: ballot.round }];
    table::Request::Accept {
        ballot,
        next: ballot,
        record: Record { timestamp, value: Some(value(text)), ops, ..Record::default() },
    }
}

/// Two conditional operations on one entry: of the first one member has heard, and the second, by a higher ballot, was told by the
/// two others that nothing is there. One of these two loses its page. Brought back with the first one's entry, under its promise
/// to the second, it was read; and then the second one's, which knew nothing of it.
#[test]
fn what_a_promise_forbids_is_not_brought_back_past_it() {
    run(1, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(b"before")).await.unwrap();
        pool.store.settle().await;
        let key = pool.store.inner.key(b"k").unwrap();
        let members = pool.store.inner.topology().members.clone();
        let base = members[0].read(&key).await.unwrap().1.timestamp;
        let prepare = |number: u64| table::Request::Prepare(ballot(number));
        let ask = async |member: usize, request: &table::Request| {
            members[member].apply(&key, request, Known::default()).await.unwrap().outcome
        };
        for (member, request) in [(0, prepare(1)), (1, prepare(1)), (0, prepare(2)), (2, prepare(2))] {
            assert_eq!(ask(member, &request).await, Outcome::Promised);
        }
        pool.damage(0, pool.store.table(0).unwrap().layout().table(pool.page_of(0, b"k"))).await;
        let page = Rebuilt::of(&pool, 0, b"k").await;
        assert_eq!(ask(1, &accept(base, 1, b"first")).await, Outcome::Stored);
        assert_eq!(page.rebuild(&pool.store).await.unwrap(), Some(false));
        pool.down(2, true);
        let read = pool.host().get(b"k").await.unwrap().unwrap().to_vec();
        pool.down(2, false);
        // The second goes on: it has a majority's promises.
        for member in [2, 0] {
            let _either_way = ask(member, &accept(base, 2, b"second")).await;
        }
        pool.down(1, true);
        assert_eq!(pool.host().get(b"k").await.unwrap(), Some(value(&read)), "neither knows of the other");
    });
}

/// Of two replicas one has lost a page: nothing of its keys is read, so nothing is ever stored that the page could miss; and it was
/// rebuilt by the next scrub, within a day, or never.
#[test]
fn a_damaged_page_that_a_read_meets_is_rebuilt_by_itself() {
    run(2, async {
        let pool = Pool::new(2, 2).await;
        pool.store.put(b"k", value(b"v")).await.unwrap();
        pool.store.settle().await;
        let repairer = pool.store.start_repairer(RepairerOptions { at_start: false, ..RepairerOptions::default() });
        engine::time::sleep(Duration::from_secs(1)).await;
        pool.damage(0, pool.store.table(0).unwrap().layout().table(pool.page_of(0, b"k"))).await;
        assert!(pool.store.get(b"k").await.is_err(), "one of two is no majority");
        engine::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(pool.store.get(b"k").await, Ok(Some(value(b"v"))));
        assert!(pool.store.is_repaired());
        drop(repairer);
    });
}

/// A page is lost as zeroes twice, and each time rebuilt by another host. What the first of them was to put in the place of zeroes
/// was on its way until the second loss: back came what the page had held before the first, beside a put that counted on it since.
#[test]
fn a_page_that_is_lost_as_zeroes_twice_is_not_rebuilt_by_who_saw_it_once() {
    run(3, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(b"before")).await.unwrap();
        pool.store.settle().await;
        let place = pool.store.table(0).unwrap().layout().table(pool.page_of(0, b"k"));
        let lose = async || pool.members[0].inner.write_zeroes(place, 1, Durability::Stable).await.unwrap();
        let (first, second) = (pool.host(), pool.host());
        lose().await;
        let page = Rebuilt::of(&pool, 0, b"k").await;
        pool.members[0].hold_swaps.set(true);
        page.rebuild(&first).await.unwrap_err();
        pool.members[0].hold_swaps.set(false);
        let again = Rebuilt::of(&pool, 0, b"k").await;
        assert_eq!(again.rebuild(&second).await.unwrap(), Some(false));
        pool.down(1, true);
        pool.store.put(b"k", value(b"after")).await.unwrap();
        pool.store.settle().await;
        lose().await;
        pool.members[0].land().await;
        pool.down(1, false);
        pool.down(2, true);
        let read = pool.host().get(b"k").await;
        assert!(!matches!(&read, Ok(Some(read)) if *read == value(b"before")), "it was replaced");
        pool.down(2, false);
        let anew = again.rebuild(&second).await;
        assert!(anew.is_err(), "it has not been waited for: {anew:?}");
        Rebuilt::of(&pool, 0, b"k").await.rebuild(&second).await.unwrap();
        pool.down(2, true);
        assert_eq!(pool.host().get(b"k").await, Ok(Some(value(b"after"))));
    });
}

/// The same of an allocation page: what one has gathered for the first loss must not land on the second.
#[test]
fn an_allocation_page_that_is_lost_as_zeroes_twice_is_not_the_same_twice() {
    run(4, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(&[7; 20_000])).await.unwrap();
        pool.store.settle().await;
        let (table, group) = (pool.store.table(0).unwrap(), pool::HeapGroup(0));
        let mut seen = Vec::new();
        for _ in 0..2 {
            let place = table.layout().allocation(group);
            pool.members[0].inner.write_zeroes(place, 1, Durability::Stable).await.unwrap();
            let damaged = table.damaged_allocation(group).await.unwrap().expect("zeroes");
            table.clear_allocation(group, damaged).await.unwrap();
            let cleared = table.damaged_allocation(group).await.unwrap().expect("it is damaged still");
            assert_eq!(
                table.clear_allocation(group, cleared.clone()).await.unwrap()[..],
                cleared[..],
                "it is known now"
            );
            seen.push(cleared.to_vec());
            let repaired = pool.store.repair(&RepairOptions { check_heap: true, ..RepairOptions::default() }).await;
            assert!(repaired.is_complete() && repaired.groups_rebuilt == 1, "{repaired:?}");
        }
        assert!(seen[0] != seen[1], "what waits for the first would take the second for it");
        assert!(pool.verify().await.is_clean());
    });
}
