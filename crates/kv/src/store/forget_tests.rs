//! Deleted keys are forgotten, and nothing that they hid comes back: under traffic, with hosts that sleep in old epochs.

use check::Recorder;
use device::Namespace;
use engine::job::{Progress, ShowProgress};
use engine::{Buf, time};
use pool::{Request, State};

use super::actor::{Actor, LENGTHS, value_of};
use super::change_tests::{Host, SHORT, Scene, client};
use super::lost_tests::{ACCEPT_STALE, damage};
use super::tests::value;
use super::*;
use crate::table::{self, Record};
use crate::testing::run;
use crate::types::Timestamp;

/// Entries on all members, tombstones or not.
async fn entries(host: &Host) -> usize {
    let mut count = 0;
    for member in &host.store.inner.topology().members {
        let table = member.table().unwrap();
        for page in 0..table.layout().geometry.table_pages {
            count += table.read_page(pool::TablePage(page)).await.unwrap().entries(table).unwrap().len();
        }
    }
    count
}

#[test]
fn what_was_deleted_is_dropped_everywhere_and_may_be_written_again() {
    run(1, async {
        let scene = Scene::new([100; 5]).await;
        let host = scene.host(SHORT).await;
        for number in 0..60u32 {
            let value = value_of(number.into(), LENGTHS[number as usize % 3]);
            host.store.put(&number.to_le_bytes(), value).await.unwrap();
        }
        for number in 0..40u32 {
            match number % 2 {
                0 => assert!(host.store.delete(&number.to_le_bytes()).await.unwrap()),
                // By a ballot: it keeps the counter of the put.
                _ => assert!(host.store.take(&number.to_le_bytes()).await.unwrap().is_some()),
            }
        }
        host.store.settle().await;
        let first = host.store.forget(&ForgetOptions::default()).await;
        assert_eq!((first.dropped, first.swept, first.hindered), (0, true, None), "nothing was swept before");
        assert_eq!(entries(&host).await, 3 * 60);
        let second = host.store.forget(&ForgetOptions::default()).await;
        assert_eq!((second.dropped, second.swept), (3 * 40, true));
        assert_eq!(entries(&host).await, 3 * 20);
        let map = scene.voters.now();
        assert_eq!((map.state, map.epoch, map.floor, map.swept), (State::Stable, 3, 2, 3));
        for number in 0..40u32 {
            assert_eq!(host.store.get(&number.to_le_bytes()).await, Ok(None));
            assert_eq!(host.store.add(&number.to_le_bytes(), value(b"anew"), PutOptions::default()).await, Ok(true));
        }
        assert!(host.store.delete(&7u32.to_le_bytes()).await.unwrap());
        host.store.settle().await;
        let at_once = host.store.forget(&ForgetOptions { at_once: true, ..ForgetOptions::default() }).await;
        assert_eq!((at_once.dropped, at_once.swept, at_once.hindered), (3, true, None));
        assert_eq!(scene.audit().await, 59);
    });
}

/// A promise of the epoch may be of an operation under way, which builds on the tombstone; an older one is shut out.
#[test]
fn a_tombstone_with_a_live_promise_is_kept() {
    use crate::types::{Ballot, Timestamp};
    let forgets = crate::table::Forgets { below: 50, promised_below: 70 };
    let ballot = |round| Ballot { round, ..Ballot::NONE };
    let of = |counter, round| Timestamp { counter, ballot: ballot(round), ..Timestamp::ZERO };
    assert!(forgets.covers(of(49, 49), ballot(69)));
    assert!(!forgets.covers(of(50, 0), Ballot::NONE) && !forgets.covers(of(1, 50), Ballot::NONE), "too young");
    assert!(!forgets.covers(of(49, 49), ballot(70)));
}

/// A put that a host had sent on its way long ago lands when its tombstone is forgotten: the seal keeps it out.
#[test]
fn a_put_that_was_deleted_and_forgotten_does_not_come_back() {
    run(2, async {
        let scene = Scene::new([100; 5]).await;
        let (sleeper, host) = (scene.host(Duration::from_secs(3600)).await, scene.host(SHORT).await);
        sleeper.store.put(b"key", value(b"first")).await.unwrap();
        sleeper.store.settle().await;
        let slow = |slow| sleeper.voters.links.iter().for_each(|link| link.slow.set(slow));
        slow(Duration::from_millis(50));
        let store = sleeper.store.clone();
        let put = engine::task::spawn(async move { store.put(b"key", value(b"late")).await });
        time::sleep(Duration::from_millis(25)).await;
        // It has been read; what it stores comes late.
        slow(Duration::from_secs(4));
        time::sleep(Duration::from_millis(50)).await;
        // Were all to refuse it, it would begin anew.
        let key = host.store.inner.key(b"key").unwrap();
        let away = usize::from(host.store.inner.topology().homes(&key)[0].member);
        sleeper.voters.links[away].down.set(true);
        assert!(host.store.delete(b"key").await.unwrap());
        let forgotten = host.store.forget(&ForgetOptions { at_once: true, ..ForgetOptions::default() }).await;
        assert_eq!((forgotten.dropped, forgotten.hindered), (3, None));
        assert_eq!(entries(&host).await, 0);
        let ended = put.await.unwrap_err();
        assert!(ended.outcome_unknown(), "{ended}");
        assert_eq!((host.store.get(b"key").await, entries(&host).await), (Ok(None), 0));
    });
}

/// A member that does not answer may hold an older value: nothing is noted as swept.
#[test]
fn a_sweep_without_all_members_counts_for_nothing() {
    run(3, async {
        let scene = Scene::new([100; 5]).await;
        let host = scene.host(SHORT).await;
        host.store.put(b"key", value(b"v")).await.unwrap();
        host.store.delete(b"key").await.unwrap();
        host.store.settle().await;
        host.voters.links[2].down.set(true);
        let report = host.store.forget(&ForgetOptions { at_once: true, ..ForgetOptions::default() }).await;
        assert!(!report.swept && report.hindered.is_some(), "{report:?}");
        host.voters.links[2].down.set(false);
        let report = host.store.forget(&ForgetOptions::default()).await;
        assert_eq!((report.dropped, report.swept), (0, true), "{report:?}");
        assert_eq!(scene.voters.now().floor, 0);
    });
}

/// It went over the one member left, noted that as a sweep, and the lost ones were refused when they were back: the key was served
/// to nobody for good.
#[test]
fn nothing_is_swept_while_keys_are_served_to_nobody() {
    run(8, async {
        let scene = Scene::new([100, 100, 100, 0, 0]).await;
        let host = scene.host(SHORT).await;
        host.store.put(b"key", value(b"v")).await.unwrap();
        host.store.put(b"deleted", value(b"v")).await.unwrap();
        host.store.delete(b"deleted").await.unwrap();
        host.store.settle().await;
        let down = |down| host.voters.links[..2].iter().for_each(|link| link.down.set(down));
        down(true);
        let lost: Vec<_> = scene.voters.now().members[..2].iter().map(|member| member.id).collect();
        scene.voters.set(scene.voters.now().seized_without(&lost, pool::HalfLeft::NeedNotBe).unwrap());
        let before = scene.voters.now();
        for at_once in [false, true] {
            let report = host.store.forget(&ForgetOptions { at_once, ..ForgetOptions::default() }).await;
            assert!(
                !report.swept && report.hindered.as_ref().is_some_and(|why| why.contains("--returned")),
                "{report:?}"
            );
            assert_eq!(scene.voters.now(), before, "nobody is passed over, and no epoch raised for it");
        }
        down(false);
        scene.voters.set(before.take_in(&lost).unwrap());
        host.store.refresh().await.unwrap();
        assert_eq!(host.store.get(b"key").await, Ok(Some(value(b"v"))));
        let report = host.store.forget(&ForgetOptions { at_once: true, ..ForgetOptions::default() }).await;
        assert_eq!((report.dropped, report.swept), (3, true), "{report:?}");
    });
}

/// Clients that delete, take, add and count; hosts that hear of nothing for a while; keys are forgotten all the time.
async fn scenario(seed: u64) -> u64 {
    let scene = Scene::new([100, 100, 100, 0, 0]).await;
    let (recorder, stop) = (Recorder::new(), Rc::new(Cell::new(false)));
    let (mut hosts, mut clients) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let host = scene.host(Duration::from_millis(200)).await;
        let actor = Actor::new(number, host.store.clone(), recorder.clone());
        clients.push(engine::task::spawn(client(actor, stop.clone())));
        hosts.push(host);
    }
    let mut dropped = 0;
    for _ in 0..5 {
        let draw = engine::task::random_u64();
        hosts[0].deaf(draw & 1 == 0);
        for link in &hosts[0].voters.links {
            link.slow.set(Duration::from_micros(draw >> 8 & 0x3fff));
        }
        let one = scene.host(SHORT).await;
        let first = engine::task::spawn(async move { one.store.forget(&ForgetOptions::default()).await });
        if draw & 2 == 0 {
            // Ended anywhere, and another one goes on.
            time::sleep(Duration::from_micros(draw >> 32 & 0xffff)).await;
            drop(first);
        }
        let other = scene.host(SHORT).await;
        dropped += other.store.forget(&ForgetOptions { at_once: true, ..ForgetOptions::default() }).await.dropped;
        hosts[0].deaf(false);
        hosts[0].voters.links.iter().for_each(|link| link.slow.set(Duration::ZERO));
        time::sleep(Duration::from_millis(20)).await;
    }
    scene.end(seed, &stop, clients, &hosts, &recorder).await;
    dropped
}

#[test]
fn histories_are_linearizable_while_deleted_keys_are_forgotten() {
    let dropped: u64 = (0..8).map(|seed| run(seed, scenario(seed))).sum();
    assert!(dropped > 10, "{dropped}: hardly anything was forgotten");
}

/// Members forget one after the other, and a promise of the epoch keeps a tombstone on one of them alone. To readers the key
/// is not there: it was called a difference, and repair brought the tombstone back to where it had been dropped.
#[test]
fn a_tombstone_that_one_promise_keeps_is_no_difference() {
    use crate::types::Ballot;
    run(4, async {
        let scene = Scene::new([100, 100, 100, 0, 0]).await;
        let host = scene.host(SHORT).await;
        host.store.put(b"key", value(b"v")).await.unwrap();
        assert!(host.store.delete(b"key").await.unwrap());
        host.store.settle().await;
        assert!(host.store.forget(&ForgetOptions::default()).await.swept);
        // Of the next epoch, by a host that has learnt of it before the pages are sealed for it.
        let promised = async |key: &[u8]| {
            let key = host.store.inner.key(key).unwrap();
            let round = (scene.voters.now().epoch + 1) << 40 | 1;
            let ballot = Ballot { round, op: OpId { host: 1, sequence: 1 } };
            let member = host.store.inner.topology().members[0].clone();
            let reply = member.apply(&key, &table::Request::Prepare(ballot), table::Known::default()).await.unwrap();
            assert_eq!(reply.outcome, table::Outcome::Promised);
        };
        promised(b"key").await;
        promised(b"never written").await;
        assert_eq!(host.store.forget(&ForgetOptions::default()).await.dropped, 2);
        let report = host.store.scrub(&ScrubOptions::default()).await;
        assert_eq!((report.differing.count, report.keys, report.tombstones), (0, 0, 0), "{report:?}");
        let report = host.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.stored, report.failed), (0, 0), "{report:?}");
        assert_eq!((host.store.get(b"key").await, entries(&host).await), (Ok(None), 2), "nothing was brought back");
        // What is written later is compared as ever.
        host.store.put(b"key", value(b"w")).await.unwrap();
        host.store.settle().await;
        let report = host.store.scrub(&ScrubOptions::default()).await;
        assert_eq!((report.differing.count, report.keys), (0, 1), "{report:?}");
    });
}

/// Each of several gateways sweeps once a day. One that began while another was at it voided that one's sweep, and was itself
/// voided by the next: with slow sweeps nothing was ever forgotten.
#[test]
fn hosts_that_forget_at_once_do_not_void_each_others_sweeps() {
    run(5, async {
        let scene = Scene::new([100; 5]).await;
        let options = ForgetOptions { bytes_per_second: Some(4 << 20), ..ForgetOptions::default() };
        let (mut hosts, mut sweeps) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            hosts.push(scene.host(SHORT).await);
        }
        hosts[0].store.put(b"key", value(b"v")).await.unwrap();
        assert!(hosts[0].store.delete(b"key").await.unwrap());
        for host in &hosts {
            // The one before is in the middle of it.
            time::sleep(Duration::from_secs(1)).await;
            let (store, options) = (host.store.clone(), options.clone());
            sweeps.push(engine::task::spawn(async move { store.forget(&options).await }));
        }
        time::sleep(Duration::from_secs(1)).await;
        assert!(sweeps.iter().all(|sweep| !sweep.is_finished()), "all are at it together");
        for sweep in sweeps {
            let report = sweep.await;
            assert!(report.swept, "{report:?}");
        }
        assert_eq!((scene.voters.now().epoch, scene.voters.now().swept), (2, 2));
        // Whoever has raised it need not have had them marked, and a mark of before says nothing of what each has read since.
        assert!(hosts.iter().all(|host| host.voters.sweeps_begun.get() == 1), "each by itself");
        assert_eq!(hosts[3].store.forget(&options).await.dropped, 3);
    });
}

/// The home page of `key` on member `index`, as a block of its namespace.
fn block_of(host: &Host, key: &[u8], index: usize) -> device::Lba {
    let table = host.store.table(index).unwrap();
    table.layout().table(table.home(&host.store.inner.key(key).unwrap()))
}

/// A page that was read badly in the walk, and well when it was looked at again, was taken for rebuilt by somebody else, and the
/// sweep noted as complete: nobody had compared it. The tombstone was dropped everywhere else, and the deleted key was back.
#[test]
fn a_page_that_was_misread_once_is_compared_before_the_sweep_is_noted() {
    run(6, async {
        let scene = Scene::new([100, 100, 100, 0, 0]).await;
        let host = scene.host(SHORT).await;
        host.store.put(b"key", value(b"old")).await.unwrap();
        host.store.settle().await;
        host.voters.links[0].down.set(true);
        assert!(host.store.delete(b"key").await.unwrap());
        host.store.settle().await;
        host.voters.links[0].down.set(false);
        let block = block_of(&host, b"key", 0);
        // Once the pages are sealed, which needs them good, and the walk has begun.
        let link = host.voters.links[0].clone();
        let walk: ShowProgress = Rc::new(move |progress: &Progress| {
            if progress.what == "forget deleted keys" && progress.done >= 1.0 {
                link.garbled.set(Some(block));
            }
        });
        let options = ForgetOptions { progress: Some(walk), ..ForgetOptions::default() };
        let report = host.store.forget(&options).await;
        assert!(report.swept && host.voters.links[0].garbled.get().is_none(), "{report:?}");
        assert_eq!(host.store.forget(&ForgetOptions::default()).await.dropped, 3);
        // One that agreed with the member that held the old value.
        host.voters.links[1].down.set(true);
        assert_eq!(host.store.get(b"key").await, Ok(None));
    });
}

/// A page read well in the walk, damaged, and rebuilt by another host from fewer than all others, with what they held before
/// the walk made them equal: the sweep counted on what it had held. The home that is silent meanwhile can't be marked, and need not
/// be: a sweep of the new epoch begins with marks of all.
#[test]
fn a_page_rebuilt_from_some_others_voids_the_sweep_that_may_have_read_it_before() {
    run(7, async {
        let scene = Scene::of([100, 100, 100, 100, 0], 4).await;
        let (sweeper, other) = (scene.host(SHORT).await, scene.host(SHORT).await);
        let epoch = scene.voters.now().epoch;
        sweeper.store.put(b"key", value(b"v")).await.unwrap();
        sweeper.store.settle().await;
        let damage = |host: &Host| {
            let block = block_of(host, b"key", 0);
            let mut page = Buf::zeroed(4096);
            page.fill(7);
            let memory = scene.memories[0].clone();
            async move { memory.write(block, page.freeze(), device::Durability::Stable).await.unwrap() }
        };
        // All three others are heard: nothing is counted on that they did not say.
        damage(&sweeper).await;
        let report = other.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.pages_rebuilt, report.failed, scene.voters.now().epoch), (1, 0, epoch), "{report:?}");
        other.voters.links[3].down.set(true);
        damage(&sweeper).await;
        let report = other.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.pages_rebuilt, report.failed, scene.voters.now().epoch), (1, 0, epoch + 1), "{report:?}");
        let noted = scene.voters.note_swept(epoch).await.unwrap();
        assert_eq!(noted.swept, 0, "a sweep of the epoch before counts for nothing");
        let report = other.store.forget(&ForgetOptions::default()).await;
        assert!(report.hindered.as_ref().is_some_and(|reason| reason.contains("marked")), "{report:?}");
        assert_eq!(sweeper.store.get(b"key").await, Ok(Some(value(b"v"))));
    });
}

/// A page that was read in the walk, damaged, and rebuilt by another host from all others before these were given what it had
/// shown: that had waited for its turn for longer than a rebuilding waits. The sweep was noted, the tombstone dropped where it had
/// brought it to, and the deleted key was back.
#[test]
fn a_page_rebuilt_from_all_others_within_a_sweep_is_compared_anew() {
    run(14, async {
        let scene = Scene::new([100, 100, 100, 0, 0]).await;
        let (sweeper, other) = (scene.host(SHORT).await, scene.host(SHORT).await);
        sweeper.store.put(b"key", value(b"old")).await.unwrap();
        sweeper.store.settle().await;
        // A delete that was never acknowledged, on one home alone.
        let inner = sweeper.store.inner.clone();
        let (key, table) = (inner.key(b"key").unwrap(), sweeper.store.table(0).unwrap());
        let put = table.read(&key).await.unwrap().timestamp;
        let timestamp = Timestamp { counter: put.counter + 1, ..put };
        let deleted = Record { timestamp, ..Record::default() };
        table.store_if_newer(&key, &deleted, None, None).await.unwrap();
        let others = inner.background_bytes.acquire(BACKGROUND_BYTES_MAX).await;
        let in_front = engine::task::spawn(async move { inner.background_bytes.acquire(1).await });
        let store = sweeper.store.clone();
        let sweep = engine::task::spawn(async move { store.forget(&ForgetOptions::default()).await });
        time::sleep(Duration::from_secs(1)).await;
        let epoch = scene.voters.now().epoch;
        damage(&scene, &sweeper, b"key", 0).await;
        let report = other.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.pages_rebuilt, report.failed, scene.voters.now().epoch), (1, 0, epoch), "{report:?}");
        assert!(!sweep.is_finished(), "it waits");
        drop((others, in_front));
        let report = sweep.await;
        assert!(report.swept, "{report:?}");
        assert_eq!(other.store.forget(&ForgetOptions::default()).await.dropped, 3);
        other.voters.links[1].down.set(true);
        assert_eq!(other.store.get(b"key").await, Ok(None));
    });
}

/// A key that is put all the time, where one home is out of its host's reach: repair found it lacking there at each look, which
/// at a low rate were more than ten seconds apart, and gave up after five; so the sweep was not noted.
#[test]
fn a_key_that_is_put_all_the_time_is_done_once_all_homes_hold_what_was_stored() {
    run(15, async {
        let scene = Scene::new([100, 100, 100, 0, 0]).await;
        let (sweeper, writer) = (scene.host(SHORT).await, scene.host(SHORT).await);
        writer.store.put(b"key", value(b"v")).await.unwrap();
        writer.voters.links[2].down.set(true);
        let store = writer.store.clone();
        let _writing: engine::task::Task<()> = engine::task::spawn(async move {
            loop {
                store.put(b"key", value(b"w")).await.unwrap();
                time::sleep(Duration::from_millis(100)).await;
            }
        });
        let inner = sweeper.store.inner.clone();
        inner.repair.note(&inner.key(b"key").unwrap());
        // It waits behind others first, and between its looks for its turn.
        let others = inner.background_bytes.acquire(BACKGROUND_BYTES_MAX).await;
        let in_front = engine::task::spawn(async move { inner.background_bytes.acquire(1).await });
        let store = sweeper.store.clone();
        let repair = engine::task::spawn(async move {
            let options = RepairOptions { bytes_per_second: Some(1000), ..RepairOptions::default() };
            store.repair_noted(&options).await.unwrap()
        });
        time::sleep(Duration::from_secs(11)).await;
        drop((others, in_front));
        let report = repair.await;
        assert!(report.is_complete() && report.stored == 1, "{report:?}");
    });
}

/// A sweep may have read the page before it was damaged; what is in it now, by an operator's word, is older.
#[test]
fn a_page_rebuilt_by_an_operators_word_voids_the_sweep_that_may_have_read_it() {
    run(12, async {
        let (scene, host) = Scene::two_with_a_key().await;
        let mut map = scene.voters.now();
        (map.unequal, map.epoch) = (true, map.epoch + 1);
        scene.voters.set(map);
        assert!(host.store.refresh().await.is_ok());
        damage(&scene, &host, b"key", 0).await;
        let before = scene.voters.now().epoch;
        let report = host.store.repair(&ACCEPT_STALE).await;
        assert_eq!((report.pages_rebuilt, report.pages_stale), (1, 1), "{report:?}");
        assert!(scene.voters.now().epoch > before, "the sweep of that epoch counts");
    });
}

/// The same of whoever makes homes equal, behind a change that was taken back: one that had read the page made the other home
/// equal to what it had held, and the pool was `equal` at the end.
#[test]
fn a_page_rebuilt_by_an_operators_word_behind_its_equalising_leaves_the_pool_unequal() {
    run(13, async {
        let (scene, host) = Scene::two_with_a_key().await;
        let weights = [(2, 100), (3, 100), (0, 0), (1, 0)].map(|(index, weight)| (scene.id(index), weight));
        scene.begin(&Request::SetWeight(weights.to_vec()));
        scene.voters.set(scene.voters.now().take_back().unwrap());
        while scene.voters.now().state == State::Joint {
            host.piece(scene.voters.now().change.unwrap()).await.unwrap();
        }
        let home = host.store.inner.key(b"key").unwrap().hash().home;
        while scene.voters.now().change.is_some_and(|change| change.cursor <= home) {
            host.piece(scene.voters.now().change.unwrap()).await.unwrap();
        }
        assert_eq!(scene.voters.now().state, State::Unclean, "the key is not of the last stretch");
        damage(&scene, &host, b"key", 0).await;
        let report = host.store.repair(&ACCEPT_STALE).await;
        assert_eq!((report.pages_rebuilt, report.pages_stale), (1, 1), "{report:?}");
        host.finish().await.unwrap();
        assert!(scene.voters.now().unequal, "the next change asks one home alone");
        let report = host.store.forget(&ForgetOptions::default()).await;
        assert!(report.swept && !scene.voters.now().unequal, "{report:?}");
    });
}
