//! Members that are lost for good, in the middle of a change and at rest, and members that come back without what they
//! held. Histories stay linearizable, and at the end every key is on all its homes again.

use check::Recorder;
use device::Namespace;
use engine::{Buf, task::Task, time};
use pool::HalfLeft;
use pool::change::{Phase, State};
use pool::plan::Request;

use super::actor::{Actor, LENGTHS, value_of};
use super::change_tests::{Host, SHORT, Scene, client};
use super::scan::DamagedPage;
use super::tests::value;
use super::*;
use crate::table::TableError;
use crate::testing::run;
use crate::types::Timestamp;
use engine::job::Jobs;

/// Hosts with clients at work, and one that carries changes out.
struct Crowd {
    worker: Host,
    hosts: Vec<Host>,
    clients: Vec<Task<()>>,
    recorder: Recorder,
    stop: Rc<Cell<bool>>,
}

impl Crowd {
    async fn of(scene: &Scene) -> Crowd {
        let (recorder, stop) = (Recorder::new(), Rc::new(Cell::new(false)));
        let (mut hosts, mut clients) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let host = scene.host(Duration::from_millis(200)).await;
            let actor = Actor::new(number, host.store.clone(), recorder.clone());
            clients.push(engine::task::spawn(client(actor, stop.clone())));
            hosts.push(host);
        }
        let worker = scene.host(SHORT).await;
        for number in 0..60u32 {
            let value = value_of(number.into(), LENGTHS[number as usize % 3]);
            worker.store.put(&number.to_le_bytes(), value).await.unwrap();
        }
        worker.store.settle().await;
        Crowd { worker, hosts, clients, recorder, stop }
    }

    fn everywhere(&self, member: usize, change: impl Fn(&super::tests::Member)) {
        self.hosts.iter().chain([&self.worker]).for_each(|host| change(&host.voters.links[member]));
    }

    /// It answers nobody any more.
    fn lose(&self, member: usize) {
        self.everywhere(member, |link| link.down.set(true));
    }

    /// It is back, over other connections.
    fn find(&self, member: usize) {
        self.everywhere(member, |link| {
            link.epoch.set(link.epoch.get() + 1);
            link.down.set(false);
        });
    }

    async fn end(self, scene: &Scene) {
        self.stop.set(true);
        for client in self.clients {
            client.await;
        }
        for host in self.hosts.iter().chain([&self.worker]) {
            host.store.settle().await;
        }
        check::check(&self.recorder.history()).unwrap();
        assert!(scene.audit().await >= 60);
    }
}

/// A pool of four, and the fifth, which is no member yet.
async fn four(replicas: u8) -> (Scene, pool::Member) {
    let scene = Scene::of([100; 5], replicas).await;
    let mut map = scene.voters.now();
    let spare = map.members.pop().unwrap();
    scene.voters.set(map);
    (scene, spare)
}

/// Wherever in the change it dies: the change ends without it, and then it is taken out, or another takes its place.
#[test]
fn a_member_lost_in_the_middle_of_a_change_is_given_up_and_goes() {
    // Of two replicas one is left of some keys: they are served, as the one that was given up is not asked any more.
    let of_two = [(21, 4, Phase::Seal, 2), (22, 0, Phase::Migrate, 2), (23, 4, Phase::Clean, 2)];
    for (seed, lost, phase, replicas) in
        [(1, 4, Phase::Seal, 3), (2, 0, Phase::Migrate, 3), (3, 4, Phase::Clean, 3)].into_iter().chain(of_two)
    {
        run(seed, async {
            let (scene, spare) = four(replicas).await;
            let crowd = Crowd::of(&scene).await;
            scene.begin(&Request::Add(vec![spare.clone()]));
            let worker = crowd.worker.store.clone();
            while let Some(change) = scene.voters.now().change.filter(|change| change.phase < phase) {
                crowd.worker.piece(change).await.unwrap();
            }
            crowd.lose(lost);
            let waits = crowd.worker.finish().await.unwrap_err();
            if replicas == 3 {
                assert!(waits.contains("given up"), "{waits}");
                assert_eq!(scene.voters.now().state, State::Unclean);
            }
            let id = scene.voters.now().members[lost].id;
            scene.voters.set(scene.voters.now().give_up(&[id], HalfLeft::MustKnowAll).unwrap());
            crowd.worker.finish().await.unwrap();
            for number in 0..60u32 {
                assert!(worker.get(&number.to_le_bytes()).await.is_ok(), "{number} is served without it");
            }
            // Back with all it had, it is asked nothing.
            crowd.find(lost);
            assert!(worker.refresh().await.is_ok() && !worker.inner.topology().members[lost].status().votes);
            let refused = worker.inner.topology().members[lost].vote().await.unwrap_err().to_string();
            assert!(refused.contains("given up"), "{refused}");
            scene.begin(&Request::Remove(vec![id]));
            crowd.worker.finish().await.unwrap();
            assert_eq!(scene.voters.now().members.len(), 4);
            crowd.end(&scene).await;
        });
    }
}

/// Back with all it had before the change has ended, it is a home as before, and sealed and cleaned with the others.
#[test]
fn a_member_given_up_in_the_middle_of_a_change_is_taken_in_again_before_its_end() {
    let of_three = [(31, 4, Phase::Seal, 3), (32, 0, Phase::Migrate, 3), (33, 1, Phase::Clean, 3)];
    for (seed, lost, phase, replicas) in
        of_three.into_iter().chain([(34, 0, Phase::Migrate, 2), (35, 0, Phase::Clean, 2)])
    {
        run(seed, async {
            let (scene, spare) = four(replicas).await;
            let crowd = Crowd::of(&scene).await;
            scene.begin(&Request::Add(vec![spare]));
            while let Some(change) = scene.voters.now().change.filter(|change| change.phase < phase) {
                crowd.worker.piece(change).await.unwrap();
            }
            crowd.lose(lost);
            let id = scene.voters.now().members[lost].id;
            scene.voters.set(scene.voters.now().give_up(&[id], HalfLeft::MustKnowAll).unwrap());
            if let Some(change) = scene.voters.now().change.filter(|change| change.phase < Phase::Clean) {
                crowd.worker.piece(change).await.unwrap();
            }
            time::sleep(Duration::from_secs(1)).await;
            crowd.find(lost);
            scene.voters.set(scene.voters.now().take_in(&[id]).unwrap());
            crowd.worker.finish().await.unwrap();
            assert!(scene.voters.now().members.iter().all(|member| !member.lost));
            assert!(crowd.worker.store.repair(&RepairOptions::default()).await.is_complete());
            crowd.end(&scene).await;
        });
    }
}

/// With one replica there is no majority of the new homes without the one that comes: back to before.
#[test]
fn a_change_that_cannot_be_carried_out_is_taken_back() {
    run(6, async {
        let (scene, spare) = four(1).await;
        let crowd = Crowd::of(&scene).await;
        scene.begin(&Request::Add(vec![spare.clone()]));
        for _ in 0..2 {
            crowd.worker.piece(scene.voters.now().change.unwrap()).await.unwrap();
        }
        crowd.lose(4);
        crowd.worker.finish().await.unwrap_err();
        assert_eq!(scene.voters.now().state, State::Joint);
        scene.voters.set(scene.voters.now().give_up(&[spare.id], HalfLeft::MustKnowAll).unwrap());
        assert!(scene.voters.now().goes_back());
        crowd.worker.finish().await.unwrap();
        let map = scene.voters.now();
        assert_eq!((map.state, map.members.len(), map.epoch), (State::Stable, 4, 3));
        crowd.end(&scene).await;
    });
}

/// Two replicas have no majority without both; the place of the lost one is filled from the other.
#[test]
fn one_of_two_replicas_is_replaced() {
    run(7, async {
        let (scene, spare) = four(2).await;
        let crowd = Crowd::of(&scene).await;
        crowd.lose(1);
        scene.begin(&Request::Replace { old: scene.id(1), new: Box::new(spare) });
        crowd.worker.finish().await.unwrap();
        crowd.end(&scene).await;
    });
}

/// A member comes back as an older copy of itself, or empty: it is not asked, and filled again in its place.
#[test]
fn a_member_that_lost_what_it_held_begins_anew_in_its_place() {
    for (seed, replicas, rolled_back) in [(8, 3, true), (9, 3, false), (10, 2, false)] {
        run(seed, async {
            let scene = Scene::of([100; 5], replicas).await;
            let memory = scene.memories[1].clone();
            let copy = |from: &Arc<device::Memory>, to: &Arc<device::Memory>| copy_all(from.clone(), to.clone());
            let older = crate::testing::memories(1, 32 << 20).remove(0);
            copy(&memory, &older).await;
            let crowd = Crowd::of(&scene).await;
            let mut map = scene.voters.now();
            (map.members[1].mark, map.revision) = (2, 1);
            scene.voters.set(map.clone());
            // Marked while it is well, long before.
            engine::time::sleep(Duration::from_secs(1)).await;
            crowd.lose(1);
            if !rolled_back {
                copy(&crate::testing::memories(1, 32 << 20).remove(0), &older).await;
            }
            copy(&older, &memory).await;
            crowd.find(1);
            let store = &crowd.worker.store;
            store.refresh().await.unwrap();
            let refused = store.inner.topology().members[1].vote().await.unwrap_err().to_string();
            assert!(refused.contains(if rolled_back { "rolled back" } else { "no superblock" }), "{refused}");
            let renewed = pool::renew(&memory, "m", async |_| Ok(map.clone())).await.unwrap().unwrap();
            scene.begin(&Request::Renew(Box::new(renewed)));
            crowd.worker.finish().await.unwrap();
            assert!(store.stats().moved_copies.load(Ordering::Relaxed) > 20, "all its keys came to it");
            crowd.end(&scene).await;
        });
    }
}

/// A member began anew while a host slept that was connected to it all the time: to that host the pages of the new life are a
/// stranger's. It took them for damaged ones, and put pages of the old life in their place.
#[test]
fn a_host_that_slept_through_a_renewal_rebuilds_nothing() {
    run(11, async {
        let scene = Scene::of([100; 5], 3).await;
        let sleeper = scene.host(Duration::from_secs(3600)).await;
        let worker = scene.host(SHORT).await;
        for number in 0..60u32 {
            worker.store.put(&number.to_le_bytes(), value_of(number.into(), 100)).await.unwrap();
            assert!(sleeper.store.get(&number.to_le_bytes()).await.is_ok_and(|value| value.is_some()));
        }
        worker.store.settle().await;
        let (map, memory) = (scene.voters.now(), scene.memories[1].clone());
        copy_all(crate::testing::memories(1, 32 << 20).remove(0), memory.clone()).await;
        let renewed = pool::renew(&memory, "m", async |_| Ok(map.clone())).await.unwrap().unwrap();
        scene.begin(&Request::Renew(Box::new(renewed)));
        worker.store.refresh().await.unwrap();
        let topology = worker.store.inner.topology();
        let mut keys = (0..60u32).map(|number| worker.store.inner.key(&number.to_le_bytes()).unwrap());
        let key = keys.find(|key| topology.homes(key).contains(1)).unwrap();
        worker.store.put(key.bytes(), value_of(100, 100)).await.unwrap();
        worker.store.settle().await;
        let (inner, member) = (&sleeper.store.inner, &map.members[1]);
        let page = map.geometry(1).home(key.hash().home);
        let (life, error) = ((member.id, member.incarnation), TableError::Contended);
        let (damaged, mut report) = (vec![DamagedPage { member: 1, life, page, error }], RepairReport::default());
        rebuild::rebuild_pages(inner, damaged, false, &Jobs::default().begin("test", None, None), &mut report).await;
        let (_, found) = topology.members[1].read(&key).await.unwrap();
        assert!(found.timestamp > Timestamp::ZERO, "its page is as it was");
        assert!(report.pages_rebuilt == 0 && report.failed == 1, "{report:?}");
        assert_eq!(inner.topology().map.epoch, scene.voters.now().epoch, "it has learned what it had slept through");
        worker.finish().await.unwrap();
        assert!(scene.audit().await >= 60);
    });
}

/// The same sleeper's pages that were never written: were they zeroes again, it would count what the new life has never been
/// asked as "never written" in the old one, and its own write of such a page would succeed.
#[test]
fn a_host_that_slept_through_a_renewal_counts_no_empty_page() {
    run(12, async {
        let scene = Scene::of([100; 5], 3).await;
        let sleeper = scene.host(Duration::from_secs(3600)).await;
        let (map, memory) = (scene.voters.now(), scene.memories[1].clone());
        let topology = sleeper.store.inner.topology();
        let mut keys = (0..60u32).map(|number| sleeper.store.inner.key(&number.to_le_bytes()).unwrap());
        let key = keys.find(|key| topology.homes(key).contains(1)).unwrap();
        let (_, found) = topology.members[1].read(&key).await.unwrap();
        assert_eq!(found.timestamp, Timestamp::ZERO, "its page was never written");
        copy_all(crate::testing::memories(1, 32 << 20).remove(0), memory.clone()).await;
        pool::renew(&memory, "m", async |_| Ok(map.clone())).await.unwrap().unwrap();
        let refused = topology.members[1].read(&key).await.map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("incarnation"), "{refused}");
    });
}

async fn copy_all(from: Arc<device::Memory>, to: Arc<device::Memory>) {
    use device::Namespace;
    for lba in (0..from.info().blocks).step_by(256) {
        let (read, bytes) = from.read(device::Lba(lba), engine::Buf::with_len(256 * 4096)).await;
        read.unwrap();
        to.write(device::Lba(lba), bytes.freeze(), device::Durability::Stable).await.unwrap();
    }
}

/// Members 0 and 1 hold everything, 2 and 3 are to.
fn both_move(scene: &Scene) -> Request {
    let weights = [(2, 100), (3, 100), (0, 0), (1, 0)];
    Request::SetWeight(weights.map(|(index, weight)| (scene.id(index), weight)).to_vec())
}

/// Carries a change out until the new placement alone is in force.
async fn end_joint(scene: &Scene, mover: &Host) {
    while scene.voters.now().state == State::Joint {
        mover.piece(scene.voters.now().change.unwrap()).await.unwrap();
    }
}

/// Of two homes one was sealed for the change that moves the key, and its page damaged after that. A host that has slept since
/// before rebuilt it from the other home, which had no seal, under the epoch that it knew: both took a put of its, which nobody
/// with the newer map ever saw.
#[test]
fn a_page_comes_back_sealed_where_no_other_home_knows_of_the_seal() {
    run(6, async {
        let scene = Scene::of([100, 100, 0, 0, 0], 2).await;
        let (sleeper, mover) = (scene.host(Duration::from_secs(3600)).await, scene.host(SHORT).await);
        sleeper.store.put(b"key", value(b"before")).await.unwrap();
        sleeper.store.settle().await;
        // All are connected: the first look at a member asks for the newest map.
        assert!(sleeper.store.repair(&RepairOptions::default()).await.is_complete());
        mover.voters.links[1].down.set(true);
        scene.begin(&both_move(&scene));
        end_joint(&scene, &mover).await;
        let table = sleeper.store.table(0).unwrap();
        let lba = table.layout().table(table.home(&sleeper.store.inner.key(b"key").unwrap()));
        let mut damaged = Buf::zeroed(4096);
        damaged.fill(7);
        scene.memories[0].write(lba, damaged.freeze(), device::Durability::Stable).await.unwrap();
        assert_eq!(sleeper.store.map().epoch, 1, "it sleeps");
        let map = sleeper.store.map();
        let (life, error) = ((map.members[0].id, map.members[0].incarnation), TableError::Contended);
        let page = table.home(&sleeper.store.inner.key(b"key").unwrap());
        let (job, mut report) = (Jobs::default().begin("test", None, None), RepairReport::default());
        let damaged = vec![DamagedPage { member: 0, life, page, error }];
        super::rebuild::rebuild_pages(&sleeper.store.inner, damaged, false, &job, &mut report).await;
        assert_eq!((report.pages_rebuilt, report.failed), (1, 0), "{report:?}");
        sleeper.store.put(b"key", value(b"after")).await.unwrap();
        assert_eq!(mover.store.get(b"key").await, Ok(Some(value(b"after"))));
    });
}

/// A put of the joint epoch is acknowledged by one of two old homes, beside the new ones; the change is taken back; and the next
/// one carries over what the other old home holds. The put was lost.
#[test]
fn what_half_of_the_old_homes_took_outlives_a_change_that_is_taken_back() {
    run(7, async {
        let scene = Scene::of([100, 100, 0, 0, 0], 2).await;
        let (client, mover) = (scene.host(SHORT).await, scene.host(SHORT).await);
        scene.begin(&both_move(&scene));
        time::sleep(Duration::from_millis(100)).await;
        client.voters.links[1].down.set(true);
        client.store.put(b"key", value(b"v")).await.unwrap();
        scene.voters.set(scene.voters.now().take_back().unwrap());
        mover.finish().await.unwrap();
        scene.begin(&both_move(&scene));
        mover.voters.links[0].down.set(true);
        end_joint(&scene, &mover).await;
        mover.voters.links[0].down.set(false);
        mover.finish().await.unwrap();
        assert_eq!(mover.store.get(b"key").await, Ok(Some(value(b"v"))));
    });
}

/// As above, and the value is damaged where it is: the two old homes can't be made equal. The change never ended, and no other
/// could begin.
#[test]
fn homes_that_cannot_be_made_equal_are_both_asked_by_the_next_change() {
    run(8, async {
        let scene = Scene::of([100, 100, 0, 0, 0], 2).await;
        let (client, mover) = (scene.host(SHORT).await, scene.host(SHORT).await);
        scene.begin(&both_move(&scene));
        time::sleep(Duration::from_millis(100)).await;
        client.voters.links[1].down.set(true);
        client.store.put(b"key", value(&[7; 20_000])).await.unwrap();
        client.store.put(b"other", value(b"v")).await.unwrap();
        client.store.settle().await;
        let memory = &scene.memories[0];
        for lba in 0..memory.info().blocks {
            let (read, mut bytes) = memory.read(device::Lba(lba), Buf::with_len(4096)).await;
            read.unwrap();
            if bytes.iter().all(|&byte| byte == 7) {
                bytes.fill(8);
                memory.write(device::Lba(lba), bytes.freeze(), device::Durability::Stable).await.unwrap();
            }
        }
        client.voters.links[1].down.set(false);
        scene.voters.set(scene.voters.now().take_back().unwrap());
        mover.finish().await.unwrap();
        let map = scene.voters.now();
        assert_eq!((map.state, map.unequal), (State::Stable, true));
        scene.begin(&both_move(&scene));
        mover.voters.links[0].down.set(true);
        mover.piece(scene.voters.now().change.unwrap()).await.unwrap();
        let waits = mover.piece(scene.voters.now().change.unwrap()).await.unwrap_err();
        assert!(waits.contains("does not answer"), "{waits}");
        mover.voters.links[0].down.set(false);
        // What has no good copy is put anew.
        mover.store.put(b"key", value(b"w")).await.unwrap();
        mover.finish().await.unwrap();
        assert_eq!(mover.store.get(b"other").await, Ok(Some(value(b"v"))));
        assert!(scene.voters.now().unequal, "keys that have not moved are as they were");
        let swept = mover.store.forget(&ForgetOptions::default()).await;
        assert_eq!((swept.swept, swept.hindered), (true, None));
        assert!(!scene.voters.now().unequal);
    });
}

/// Of two homes one may be all that knows of a put: what is left of its page is not taken from the other one.
#[test]
fn a_page_is_not_rebuilt_from_a_home_that_may_not_know() {
    for unequal in [false, true] {
        run(9, async {
            let scene = Scene::of([100, 100, 0, 0, 0], 2).await;
            let host = scene.host(SHORT).await;
            host.store.put(b"key", value(b"v")).await.unwrap();
            host.store.settle().await;
            scene.voters.set(Map { unequal, revision: 1, ..scene.voters.now() });
            host.store.refresh().await.unwrap();
            let table = host.store.table(0).unwrap();
            let page = table.home(&host.store.inner.key(b"key").unwrap());
            let mut damaged = Buf::zeroed(4096);
            damaged.fill(7);
            let lba = table.layout().table(page);
            scene.memories[0].write(lba, damaged.freeze(), device::Durability::Stable).await.unwrap();
            let report = host.store.repair(&RepairOptions::default()).await;
            assert_eq!(report.pages_rebuilt, u64::from(!unequal), "{report:?}");
            if unequal {
                assert!(report.reasons[0].contains("--accept-stale"), "{report:?}");
                // By an operator's word; and then the homes can be made equal at last.
                let report = host.store.repair(&ACCEPT_STALE).await;
                assert_eq!((report.pages_rebuilt, report.pages_stale, report.failed), (1, 1, 0), "{report:?}");
                let report = host.store.forget(&ForgetOptions::default()).await;
                assert!(report.swept && !scene.voters.now().unequal, "{report:?}");
            }
            assert_eq!(host.store.get(b"key").await, Ok(Some(value(b"v"))));
        });
    }
}

pub(super) const ACCEPT_STALE: RepairOptions = RepairOptions {
    check_values: false,
    check_heap: false,
    accept_stale: true,
    bytes_per_second: None,
    progress: None,
};

/// Writes over the home page of `key` on a member.
pub(super) async fn damage(scene: &Scene, host: &Host, key: &[u8], member: usize) {
    let table = host.store.table(member).unwrap();
    let lba = table.layout().table(table.home(&host.store.inner.key(key).unwrap()));
    let mut damaged = Buf::zeroed(4096);
    damaged.fill(7);
    scene.memories[member].write(lba, damaged.freeze(), device::Durability::Stable).await.unwrap();
}

/// Two replicas, and a third member is added: a key moves from one of the two, and the other one's page of it is damaged. The
/// change waited for the page, and the page for a second old home that there is not.
#[test]
fn a_page_of_one_of_two_that_a_change_waits_for_is_rebuilt_from_both_sets_of_homes() {
    run(10, async {
        let (scene, host) = Scene::two_with_a_key().await;
        let weights = [(1, 0), (2, 100)].map(|(index, weight)| (scene.id(index), weight));
        scene.begin(&Request::SetWeight(weights.to_vec()));
        damage(&scene, &host, b"key", 0).await;
        let waits = host.finish().await.unwrap_err();
        assert!(waits.contains("key"), "{waits}");
        let report = host.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.pages_rebuilt, report.pages_stale, report.failed), (1, 0, 0), "{report:?}");
        host.finish().await.unwrap();
        assert_eq!(host.store.get(b"key").await, Ok(Some(value(b"v"))));
        assert_eq!(scene.audit().await, 1);
    });
}

/// A change of two replicas is taken back, and then a page of one is damaged, which may be all that knows: the cleaning waits for
/// the page, and no other change can begin. Whoever says that what it alone knew may be gone goes on with the other.
#[test]
fn a_change_taken_back_goes_on_from_one_of_two_by_an_operators_word() {
    run(11, async {
        let (scene, host) = Scene::two_with_a_key().await;
        scene.begin(&both_move(&scene));
        scene.voters.set(scene.voters.now().take_back().unwrap());
        end_joint(&scene, &host).await;
        damage(&scene, &host, b"key", 0).await;
        let waits = host.finish().await.unwrap_err();
        assert!(waits.contains("damaged pages are repaired"), "{waits}");
        let report = host.store.repair(&RepairOptions::default()).await;
        assert!(report.pages_rebuilt == 0 && report.reasons[0].contains("--accept-stale"), "{report:?}");
        let report = host.store.repair(&ACCEPT_STALE).await;
        assert_eq!((report.pages_rebuilt, report.pages_stale, report.failed), (1, 1, 0), "{report:?}");
        host.finish().await.unwrap();
        assert!(scene.voters.now().unequal, "what the page held before may have been read already");
        let report = host.store.forget(&ForgetOptions::default()).await;
        assert!(report.swept && !scene.voters.now().unequal, "{report:?}");
        assert_eq!(host.store.get(b"key").await, Ok(Some(value(b"v"))));
    });
}
