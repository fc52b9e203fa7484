//! Members out of reach: what is known to be in vain is not waited for.

use device::Namespace;
use engine::Buf;
use engine::task::LocalFuture;
use engine::time;

use pool::Request;

use super::change_tests::{Host, SHORT, Scene};
use super::lost_tests::damage;
use super::tests::{Member, Pool, value};
use super::voters::Voters;
use super::*;
use crate::testing::run;

const PATIENCE: Duration = Duration::from_millis(700);

fn lose(members: &[Member]) {
    members.iter().for_each(|member| member.down.set(true));
}

fn find(members: &[Member]) {
    for member in members {
        member.epoch.set(member.epoch.get() + 1);
        member.down.set(false);
    }
}

/// A source of maps that gives no answer: its voters are gone.
struct Silent;

impl MapSource for Silent {
    fn newest(&self) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(std::future::pending())
    }

    fn raise_epoch(&self, _: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(std::future::pending())
    }

    fn settle_carried<'a>(&'a self, _: &'a Map, _: pool::MemberId) -> LocalFuture<'a, Result<Map, String>> {
        Box::pin(std::future::pending())
    }

    fn begin_sweep(&self, _: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(std::future::pending())
    }

    fn note_unequal(&self, _: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(std::future::pending())
    }

    fn note_clock(&self, _: u64, _: u64, _: Option<pool::clock::Moment>) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(std::future::pending())
    }

    fn note_swept(&self, _: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(std::future::pending())
    }

    fn connect<'a>(&'a self, _: &'a Map, _: usize) -> LocalFuture<'a, Option<AnyRemote>> {
        Box::pin(std::future::pending())
    }
}

/// Voters that know nothing of what the others have gone on to.
struct LeftBehind {
    known: Map,
    others: Rc<Voters>,
    ways: Rc<Voters>,
    /// How long all members take to tell, and how often they were asked.
    takes: Duration,
    asked: Cell<u32>,
    /// By whom a map that is only carried is agreed on, and how often they were asked to.
    members: Option<Vec<super::tests::Member>>,
    settled: Cell<u32>,
}

impl LeftBehind {
    fn new(scene: &Scene, host: &Host) -> LeftBehind {
        let (others, ways) = (scene.voters.clone(), host.voters.clone());
        let (asked, settled) = Default::default();
        LeftBehind { known: scene.voters.now(), others, ways, takes: Duration::ZERO, asked, members: None, settled }
    }
}

impl MapSource for LeftBehind {
    fn newest(&self) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async {
            time::sleep(Duration::from_millis(1)).await;
            Ok(self.known.clone())
        })
    }

    fn newest_of_all(&self) -> LocalFuture<'_, Result<Map, String>> {
        self.asked.set(self.asked.get() + 1);
        Box::pin(async {
            time::sleep(self.takes).await;
            self.others.newest().await
        })
    }

    fn settle_carried<'a>(&'a self, carried: &'a Map, by: pool::MemberId) -> LocalFuture<'a, Result<Map, String>> {
        self.settled.set(self.settled.get() + 1);
        Box::pin(async move {
            let Some(members) = &self.members else { return Err("the voters were left behind".into()) };
            let settled = pool::Proposer::new(members).settle_carried(&self.known, carried, by).await;
            let map = settled.map_err(|error| error.to_string())?;
            self.others.set(map.clone());
            Ok(map)
        })
    }

    fn raise_epoch(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        self.others.raise_epoch(epoch)
    }

    fn begin_sweep(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        self.others.begin_sweep(epoch)
    }

    fn note_unequal(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        self.others.note_unequal(epoch)
    }

    fn note_clock(
        &self,
        before: u64,
        now_ms: u64,
        by: Option<pool::clock::Moment>,
    ) -> LocalFuture<'_, Result<Map, String>> {
        self.others.note_clock(before, now_ms, by)
    }

    fn note_swept(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        self.others.note_swept(epoch)
    }

    fn connect<'a>(&'a self, map: &'a Map, index: usize) -> LocalFuture<'a, Option<AnyRemote>> {
        self.ways.connect(map, index)
    }
}

/// What an operation came to, and after how many milliseconds.
async fn timed<T>(operation: impl Future<Output = T>) -> (T, u128) {
    let begun = time::now();
    let result = operation.await;
    (result, begun.elapsed().as_millis())
}

/// With two of three members gone each operation took ten seconds, though that was known at once, and said that none of three had
/// answered.
#[test]
fn without_a_majority_operations_end_within_a_second_of_that_being_known() {
    run(90, async {
        let pool = Pool::new(3, 3).await;
        let store = &pool.store;
        store.set_patience(PATIENCE);
        store.put(b"k", value(b"v")).await.unwrap();
        store.settle().await;
        lose(&pool.members[1..]);
        let (got, took) = timed(store.get(b"k")).await;
        let check = |told: Result<(), StoreError>| {
            // In the order of the key's homes.
            let Err(StoreError::Unavailable { answered: 1, replicas: 3, needed: 2, outcome_unknown: false, reasons }) =
                told
            else {
                panic!("{told:?}")
            };
            let mut reasons: Vec<&str> = reasons.split("; ").collect();
            reasons.sort_unstable();
            assert_eq!(reasons, ["member 1: not connected", "member 2: not connected"]);
        };
        check(got.map(|_| ()));
        assert!((600..1000).contains(&took), "after {took} ms");
        // From then on it is known; who is there is heard all the same.
        pool.members[0].slow.set(Duration::from_millis(10));
        for _ in 0..2 {
            let (put, took) = timed(store.put(b"k", value(b"w"))).await;
            check(put);
            assert!(took < 200, "after {took} ms");
            let (added, took) = timed(store.add(b"k", value(b"w"), PutOptions::default())).await;
            check(added.map(|_| ()));
            assert!(took < 200, "after {took} ms");
        }
        // Nor do walks over all keys.
        let (step, took) = timed(store.scan(0, 10)).await;
        let told = step.expect_err("a majority is away").to_string();
        assert!(took < 200 && told.contains("member 1: not connected; member 2: not connected"), "{took} ms: {told}");
        let told = store.out_of_reach().unwrap().to_string();
        assert!(told.starts_with("unavailable: 1 of 3 voting members are connected, 2 are needed"), "{told}");
        find(&pool.members[1..]);
        assert_eq!((store.get(b"k").await, store.out_of_reach()), (Ok(Some(value(b"v"))), None));
    });
}

#[test]
fn a_member_that_comes_back_soon_is_waited_for() {
    run(91, async {
        let pool = Pool::new(3, 3).await;
        pool.store.set_patience(PATIENCE);
        for _ in 0..3 {
            lose(&pool.members[1..]);
            let store = pool.store.clone();
            let put = engine::task::spawn(async move { store.put(b"k", value(b"v")).await });
            time::sleep(PATIENCE / 2).await;
            find(&pool.members[1..2]);
            assert_eq!(put.await, Ok(()));
            find(&pool.members[2..]);
            // It is lost anew, not for longer.
            pool.store.get(b"k").await.unwrap();
        }
    });
}

/// Who waits for the map to be confirmed waits in vain then, too.
#[test]
fn where_no_map_can_be_confirmed_that_is_told_as_soon() {
    run(92, async {
        let pool = Pool::new(3, 3).await;
        let lease = Duration::from_millis(100);
        pool.store.set_patience(PATIENCE);
        let _following = pool.store.follow(Rc::new(Silent), lease);
        lose(&pool.members[1..]);
        let (got, took) = timed(pool.store.get(b"k")).await;
        assert!(matches!(got, Err(StoreError::OutOfReach { connected: 1, voters: 3, needed: 2, .. })), "{got:?}");
        assert!(took < 1000, "after {took} ms");
    });
}

/// The voters of the map that a host knows answer, and others have gone on without them: it asked the same ones until every
/// operation's deadline, beside members that carry the newer map.
#[test]
fn who_meets_a_seal_of_a_later_map_than_the_voters_know_asks_all_members() {
    run(7, async {
        let scene = Scene::new([100; 5]).await;
        let (worker, host) = (scene.host(SHORT).await, scene.host(SHORT).await);
        host.store.put(b"key", value(&[7; 9])).await.unwrap();
        let source = LeftBehind::new(&scene, &host);
        let _follow = host.store.follow(Rc::new(source), LEASE_DEFAULT);
        scene.begin(&Request::SetWeight(vec![(scene.id(4), 0)]));
        worker.finish().await.unwrap();
        let read = time::timeout(Duration::from_secs(5), host.store.get(b"key")).await;
        assert!(matches!(read, Ok(Ok(Some(_)))), "{read:?}");
        assert_eq!(host.store.inner.topology().map.epoch, scene.voters.now().epoch);
    });
}

/// A pool whose voters, as a host knows them, were left behind by others: a page of a member that has gone on is damaged.
async fn left_behind(lease: Duration, takes: Duration) -> (Scene, Host, Rc<LeftBehind>, engine::task::Task<()>) {
    let scene = Scene::new([100, 100, 100, 0, 0]).await;
    let host = scene.host(lease).await;
    host.store.put(b"key", value(b"v")).await.unwrap();
    host.store.put(b"other", value(b"v")).await.unwrap();
    host.store.settle().await;
    let source = Rc::new(LeftBehind { takes, ..LeftBehind::new(&scene, &host) });
    let follow = host.store.follow(source.clone(), lease);
    let raise = |map: &Map| Ok(map.raise_epoch());
    pool::Proposer::new(&scene.memories).agree(&scene.voters.now(), raise).await.unwrap();
    damage(&scene, &host, b"key", 0).await;
    (scene, host, source, follow)
}

/// Others have gone on without the voters that a host knows, which answer, and the homes left behind with them have no seal: a
/// damaged page of a member that went on came back under the map of before, with what those hold. While all are asked, of whom some
/// are silent, operations go by what the voters say.
#[test]
fn a_page_is_rebuilt_by_no_map_that_is_left_behind() {
    run(8, async {
        let (scene, host, source, _follow) = left_behind(SHORT, Duration::from_secs(20)).await;
        scene.voters.set(scene.voters.now().raise_epoch());
        let store = host.store.clone();
        let repair = engine::task::spawn(async move { store.repair(&RepairOptions::default()).await });
        while source.asked.get() == 0 && !repair.is_finished() {
            time::sleep(SHORT).await;
        }
        time::sleep(10 * SHORT).await;
        let (got, took) = timed(host.store.get(b"key")).await;
        assert!(got.is_ok() && took < 100, "{got:?} after {took} ms");
        let report = repair.await;
        assert_eq!((report.pages_rebuilt, report.failed), (1, 0), "{report:?}");
        let table = host.store.table(0).unwrap();
        let page = table.read_page(table.home(&host.store.inner.key(b"key").unwrap())).await.unwrap();
        assert_eq!(page.seal(), scene.voters.now().epoch);
        assert_eq!(source.settled.get(), 0, "it is in force: nobody has to agree on it anew");
        // As any page, by what the voters say: they know what its member carries.
        let asked = source.asked.get();
        damage(&scene, &host, b"key", 1).await;
        let report = host.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.pages_rebuilt, report.failed, source.asked.get()), (1, 0, asked), "{report:?}");
    });
}

/// The same where the page's own member does not answer just when all are asked, and nobody else knows of the later map. All were
/// asked anew for each page, with silent members for half a minute each.
#[test]
fn a_page_of_a_member_with_a_later_map_than_can_be_learnt_stays_as_it_is() {
    run(9, async {
        let (scene, host, source, _follow) = left_behind(SHORT, Duration::from_millis(1)).await;
        damage(&scene, &host, b"other", 0).await;
        let report = host.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.pages_rebuilt, report.pages_failed.len(), source.asked.get()), (0, 2, 1), "{report:?}");
        assert!(report.reasons[0].contains("carries the map of epoch 2"), "{report:?}");
        assert_eq!(source.settled.get(), 1);
    });
}

/// Who was agreeing on a map was gone when one member had it: pages of that member stayed damaged until somebody happened to agree
/// on a map, minutes later.
#[test]
fn a_page_of_a_member_whose_map_never_came_into_force_is_rebuilt() {
    run(12, async {
        let scene = Scene::new([100, 100, 100, 0, 0]).await;
        let host = scene.host(SHORT).await;
        for key in [b"key".as_slice(), b"other"] {
            host.store.put(key, value(b"v")).await.unwrap();
        }
        host.store.settle().await;
        let members = host.voters.links.clone();
        let source = Rc::new(LeftBehind { members: Some(members), ..LeftBehind::new(&scene, &host) });
        let _follow = host.store.follow(source.clone(), SHORT);
        // What lies before the tables.
        let heads = [(0, 1 << 20), (256, 128 << 10)].map(|(lba, length)| (device::Lba(lba), length));
        let mut before = Vec::new();
        for (memory, (lba, length)) in scene.memories[1..].iter().flat_map(|memory| heads.map(|head| (memory, head))) {
            before.push((memory, lba, memory.read(lba, Buf::with_len(length)).await.1));
        }
        let raise = |map: &Map| Ok(map.raise_epoch());
        let carried = pool::Proposer::new(&scene.memories).agree(&scene.voters.now(), raise).await.unwrap();
        for (memory, lba, before) in before {
            memory.write(lba, before.freeze(), device::Durability::Stable).await.unwrap();
        }
        for key in [b"key".as_slice(), b"other"] {
            damage(&scene, &host, key, 0).await;
        }
        let report = host.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.pages_rebuilt, report.failed), (2, 0), "{report:?}");
        assert_eq!((source.settled.get(), scene.voters.now().epoch), (1, carried.epoch), "for both pages");
    });
}

/// An answer that comes late, of whoever is asked longest, is of the moment when it was asked for.
#[test]
fn a_later_question_that_was_answered_before_stays_the_confirmation() {
    run(10, async {
        let (scene, host, source, _follow) = left_behind(Duration::from_secs(3600), Duration::from_secs(20)).await;
        let noted = scene.voters.now().clock.ms;
        scene.voters.set(scene.voters.now().note_clock(noted, noted + 7, None));
        let inner = host.store.inner.clone();
        let asking = inner.clone();
        let all = engine::task::spawn(async move { asking.refresh_of_all().await });
        time::sleep(Duration::from_secs(5)).await;
        let since = time::now();
        inner.refresh(|_| false).await.unwrap();
        assert_eq!(all.await, Ok(()));
        assert!(inner.is_confirmed_since(since));
        let known = inner.follow.clock.borrow().as_ref().map(|(clock, _)| clock.ms);
        assert_eq!((known, noted), (Some(noted), source.known.clock.ms), "by what was asked last");
    });
}

/// Nobody asks a home that was given up for good: a key whose other homes are equal is done.
#[test]
fn a_key_is_repaired_without_a_home_that_was_given_up() {
    run(11, async {
        let scene = Scene::new([100, 100, 100, 0, 0]).await;
        let host = scene.host(SHORT).await;
        host.store.put(b"key", value(b"v")).await.unwrap();
        host.store.settle().await;
        let mut map = scene.voters.now();
        map.epoch += 1;
        (map.members[2].lost, map.members[2].voter) = (true, false);
        scene.voters.set(map);
        host.store.refresh().await.unwrap();
        let inner = &host.store.inner;
        inner.repair.note(&inner.key(b"key").unwrap());
        let report = host.store.repair_noted(&RepairOptions::default()).await.unwrap();
        assert!(report.is_complete(), "{report:?}");
    });
}

/// After members were given up so that no key had enough homes left the gateway said that it was ready.
#[test]
fn where_no_key_has_enough_homes_left_the_store_says_so() {
    run(41, async {
        let scene = Scene::of([100, 100, 100, 0, 0], 3).await;
        let host = scene.host(SHORT).await;
        assert_eq!(host.store.out_of_reach(), None);
        let mut map = scene.voters.now();
        map.epoch += 1;
        for index in 1..3 {
            (map.members[index].lost, map.members[index].voter) = (true, false);
        }
        scene.voters.set(map);
        assert!(host.store.refresh().await.is_ok());
        let told = host.store.out_of_reach().expect("nothing is served").to_string();
        assert!(told.contains("member 1: given up as lost; member 2: given up as lost"), "{told}");
    });
}
