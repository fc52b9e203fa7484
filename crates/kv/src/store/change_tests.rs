//! The pool changes while hosts work on it: they sleep in old epochs, the one that carries the change out dies, two do it
//! at once, members are down. Every history is linearizable, and at the end every key is at home where it should be.

use check::Recorder;
use engine::task::Task;
use engine::time;
use pool::change::{Phase, State};
use pool::plan::Request;
use pool::rebalance::Mover;

use super::actor::{Actor, LENGTHS, value_of};
use super::tests::value;
use super::voters::Voters;
use super::*;
use crate::table::{self, Known, Outcome, Record};
use crate::testing::{Counting, create, memories, run};
use crate::types::{Applied, Ballot, Timestamp};

impl Host {
    /// Carries the change out, as `pool::rebalance` does, with voters that agree at once.
    pub(super) async fn finish(&self) -> Result<(), String> {
        while let Some(change) = self.voters.now().change {
            self.piece(change).await?;
        }
        Ok(())
    }

    /// Whether it sleeps, as far as the map goes.
    pub(super) fn deaf(&self, deaf: bool) {
        self.voters.deaf(deaf);
    }

    /// The next piece of the change under way.
    pub(super) async fn piece(&self, change: pool::Change) -> Result<(), String> {
        let map = self.voters.now();
        let step = self.store.step(&map, change.phase, change.cursor).await?;
        time::sleep(Duration::from_millis(1)).await;
        let now = self.voters.now();
        let voters = self.voters.all();
        let same = |now: &pool::Change| (now.id, now.phase) == (change.id, change.phase);
        if now.epoch == map.epoch && now.change.as_ref().is_some_and(same) {
            let at = |phase, cursor, done| pool::Change { phase, cursor, done, unequal: step.unequal, ..change };
            voters.set(match (step.cursor, change.phase) {
                (Some(cursor), phase) => now.note(map.epoch, &at(phase, cursor, step.done), step.moved_bytes, 0),
                (None, Phase::Seal) => now.note(map.epoch, &at(Phase::Migrate, 0, 0), 0, 0),
                (None, Phase::Migrate) => now.end_joint(),
                (None, Phase::Clean) => Map { unequal: now.unequal | step.unequal, ..now }.end_unclean(),
            });
        }
        Ok(())
    }
}

/// Five members of which some hold keys; any number of hosts.
pub(super) struct Scene {
    pub(super) memories: Vec<Arc<device::Memory>>,
    pub(super) voters: Rc<Voters>,
}

pub(super) struct Host {
    pub(super) voters: Rc<Voters>,
    pub(super) store: Store,
    _follow: Task<()>,
}

impl Scene {
    /// A pool of five members; only those of `weights` above 0 hold keys.
    pub(super) async fn new(weights: [u32; 5]) -> Scene {
        Scene::of(weights, 3).await
    }

    /// The same, with so many replicas of each key.
    pub(super) async fn of(weights: [u32; 5], replicas: u8) -> Scene {
        // Much heap: what hosts that died had claimed is lost to it.
        let memories = memories(5, 32 << 20);
        let mut map = create(&memories, replicas, 50).await;
        map.members.iter_mut().zip(weights).for_each(|(member, weight)| member.weight = weight);
        Scene { memories, voters: Rc::new(Voters::new(map)) }
    }

    /// Two replicas, and a key on both.
    pub(super) async fn two_with_a_key() -> (Scene, Host) {
        let scene = Scene::of([100, 100, 0, 0, 0], 2).await;
        let host = scene.host(SHORT).await;
        host.store.put(b"key", value(b"v")).await.unwrap();
        host.store.settle().await;
        (scene, host)
    }

    pub(super) async fn host(&self, lease: Duration) -> Host {
        let links: Vec<_> = self.memories.iter().cloned().map(Counting::new).collect();
        let voters = Rc::new(Voters::of_host(&self.voters, links));
        let map = self.voters.now();
        let mut members = Vec::new();
        for index in 0..map.members.len() {
            members.push(voters.connect(&map, index).await);
        }
        let store = Store::new(map, members);
        let follow = store.follow(voters.clone(), lease);
        Host { voters, store, _follow: follow }
    }

    pub(super) fn id(&self, index: usize) -> pool::MemberId {
        pool::MemberId(device::Namespace::info(&*self.memories[index]).nguid)
    }

    /// Begins a change.
    pub(super) fn begin(&self, request: &Request) {
        let next = self.voters.now().begin(request, engine::task::random_u64()).unwrap();
        self.voters.set(next);
    }

    /// The end of a history: clients stop, what outlives them is waited for, what they were told is judged, and what is stored.
    pub(super) async fn end(
        &self,
        seed: u64,
        stop: &Cell<bool>,
        clients: Vec<Task<()>>,
        hosts: &[Host],
        recorder: &Recorder,
    ) {
        stop.set(true);
        for client in clients {
            client.await;
        }
        for host in hosts {
            host.store.settle().await;
        }
        if let Err(fault) = check::check(&recorder.history()) {
            panic!("seed {seed}: {fault}");
        }
        time::sleep(Duration::from_secs(1)).await;
        self.audit().await;
    }

    /// Every key on exactly its homes, all alike.
    pub(super) async fn audit(&self) -> u64 {
        let map = self.voters.now();
        assert_eq!(map.state, State::Stable);
        let host = self.host(LEASE_DEFAULT).await;
        let report = host.store.repair(&RepairOptions::default()).await;
        assert!(report.is_complete(), "{report:?}");
        let report = host.store.scrub(&ScrubOptions { check_values: true, ..ScrubOptions::default() }).await;
        assert!(report.is_equal(), "{report:?}");
        let topology = host.store.inner.topology();
        for member in &topology.members {
            let table = member.table().unwrap();
            for page in 0..table.layout().geometry.table_pages {
                let image = table.read_page(pool::TablePage(page)).await.unwrap();
                for (key, _) in image.entries(table).unwrap() {
                    let key = host.store.inner.key(&key).unwrap();
                    assert!(topology.homes(&key).contains(member.index), "{key:?} on member {}", member.index);
                }
            }
        }
        report.keys
    }
}

/// The lease of those that carry changes out: too short for the others to learn of the joint map before the first seal.
pub(super) const SHORT: Duration = Duration::from_millis(20);

fn set_weight(scene: &Scene, index: usize, weight: u32) -> Request {
    Request::SetWeight(vec![(scene.id(index), weight)])
}

/// Works on few keys until told to stop.
pub(super) async fn client(mut actor: Actor, stop: Rc<Cell<bool>>) {
    while !stop.get() {
        actor.act().await;
        time::sleep(Duration::from_micros(engine::task::random_u64() & 0xfff)).await;
    }
}

/// Adds to one side, takes from the other: the share of keys that moves is the new member's, no more.
#[test]
fn a_change_moves_the_least_and_leaves_nothing_behind() {
    run(1, async {
        let scene = Scene::new([100, 100, 100, 100, 0]).await;
        let host = scene.host(LEASE_DEFAULT).await;
        for number in 0..400u32 {
            let length = LENGTHS[number as usize % 3];
            host.store.put(&number.to_le_bytes(), value_of(number.into(), length)).await.unwrap();
        }
        host.store.delete(&7u32.to_le_bytes()).await.unwrap();
        host.store.settle().await;
        for (index, weight) in [(4, 100), (1, 0)] {
            let before = scene.voters.now();
            scene.begin(&set_weight(&scene, index, weight));
            let after = scene.voters.now().placements().new;
            let (old, mut least) = (before.placements().new, 0);
            for number in 0..400u32 {
                let key = host.store.inner.key(&number.to_le_bytes()).unwrap();
                let gained = |home: &&u16| !old.homes(key.hash()).contains(home);
                least += after.homes(key.hash()).iter().filter(gained).count() as u64;
            }
            host.finish().await.unwrap();
            let stats = host.store.stats();
            assert_eq!(
                stats.moved_copies.swap(0, Ordering::Relaxed),
                least,
                "exactly what is new to a member is copied"
            );
            assert_eq!(stats.dropped.swap(0, Ordering::Relaxed), least, "and dropped where it was before");
            assert!(least > 150, "{least}");
            host.store.settle().await;
            assert_eq!(scene.audit().await, 399);
        }
    });
}

/// A new member takes the place of one that is away for good, and another goes: members come to this host and leave it.
#[test]
fn a_member_is_replaced_while_it_is_away_and_another_removed() {
    run(2, async {
        let scene = Scene::new([100; 5]).await;
        let mut map = scene.voters.now();
        let spare = map.members.pop().unwrap();
        scene.voters.set(map);
        let host = scene.host(SHORT).await;
        for number in 0..100u32 {
            host.store.put(&number.to_le_bytes(), value_of(number.into(), LENGTHS[number as usize % 3])).await.unwrap();
        }
        host.store.settle().await;
        host.voters.links[1].down.set(true);
        scene.begin(&Request::Replace { old: scene.id(1), new: Box::new(spare) });
        host.finish().await.unwrap();
        assert_eq!((scene.voters.now().members.len(), scene.audit().await), (4, 100));
        scene.begin(&Request::Remove(vec![scene.id(0)]));
        host.finish().await.unwrap();
        assert_eq!((host.store.map().members.len(), scene.audit().await), (3, 100));
    });
}

/// One host sleeps through the change in an old epoch, with commands that land late; the one that carries it out dies now
/// and then, and two go on; a member is down for a while.
async fn scenario(seed: u64) {
    let scene = Scene::new([[100, 100, 100, 100, 0], [100, 100, 100, 0, 0]][seed as usize % 2]).await;
    let (recorder, stop) = (Recorder::new(), Rc::new(Cell::new(false)));
    let (mut clients, mut hosts) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let host = scene.host(Duration::from_millis(200)).await;
        for task in 0..2 {
            let actor = Actor::new(number * 2 + task, host.store.clone(), recorder.clone());
            clients.push(engine::task::spawn(client(actor, stop.clone())));
        }
        hosts.push(host);
    }
    time::sleep(Duration::from_millis(20)).await;
    for round in 0..3u64 {
        let draw = engine::task::random_u64();
        // The first host hears of nothing until it meets a seal and long after; its commands are slow besides.
        hosts[0].deaf(draw & 1 == 0);
        for link in &hosts[0].voters.links {
            link.slow.set(Duration::from_micros(draw >> 8 & 0x3fff));
        }
        let map = scene.voters.now();
        let index = if round % 2 == 0 { 4 } else { (draw >> 32) as usize % 4 };
        let weight = if map.members[index].weight == 0 { 100 } else { 0 };
        if weight == 0 && map.members.iter().filter(|member| member.weight > 0).count() <= 3 {
            continue;
        }
        scene.begin(&set_weight(&scene, index, weight));
        change_with_accidents(&scene, draw).await;
        hosts[0].deaf(false);
        for link in &hosts[0].voters.links {
            link.slow.set(Duration::ZERO);
        }
        time::sleep(Duration::from_millis(30)).await;
    }
    scene.end(seed, &stop, clients, &hosts, &recorder).await;
}

/// Carries the change out: workers die at any moment, two work at once, one member is away for a while.
async fn change_with_accidents(scene: &Scene, draw: u64) {
    for attempt in 0..3 {
        let worker = scene.host(SHORT).await;
        let task = engine::task::spawn(async move { worker.finish().await });
        time::sleep(Duration::from_micros(draw >> (attempt * 8) & 0xffff)).await;
        if task.is_finished() {
            break;
        }
        drop(task);
    }
    let (one, other) = (scene.host(SHORT).await, scene.host(SHORT).await);
    let away = one.voters.links[draw as usize % 5].clone();
    away.down.set(true);
    let back = engine::task::spawn(async move {
        time::sleep(Duration::from_millis(100)).await;
        away.epoch.set(1);
        away.down.set(false);
    });
    let first = engine::task::spawn(async move { one.finish().await });
    // Of two at once one may be told that the other is further.
    let (second, first) = (other.finish().await, first.await);
    assert!(first.is_ok() || second.is_ok(), "{first:?} {second:?}");
    if scene.voters.now().state != State::Stable {
        other.finish().await.unwrap();
    }
    back.await;
    assert_eq!(scene.voters.now().state, State::Stable);
}

#[test]
fn histories_are_linearizable_through_changes() {
    for seed in 0..12 {
        run(seed, scenario(seed));
    }
}

/// A put that was read before the seal, sent after it, and lands later still: refused, and the operation starts anew.
#[test]
fn a_host_that_slept_in_an_old_epoch_is_refused_and_goes_on_in_the_new_one() {
    run(5, async {
        let scene = Scene::new([100, 100, 100, 100, 0]).await;
        let (sleeper, worker) = (scene.host(Duration::from_secs(3600)).await, scene.host(LEASE_DEFAULT).await);
        for number in 0..50u32 {
            sleeper.store.put(&number.to_le_bytes(), value(b"old")).await.unwrap();
        }
        sleeper.store.settle().await;
        scene.begin(&set_weight(&scene, 4, 100));
        worker.finish().await.unwrap();
        for number in 0..50u32 {
            worker.store.put(&number.to_le_bytes(), value(b"new")).await.unwrap();
        }
        assert_eq!(sleeper.store.map().epoch, 1);
        for number in 0..50u32 {
            assert_eq!(sleeper.store.get(&number.to_le_bytes()).await, Ok(Some(value(b"new"))));
            sleeper.store.put(&number.to_le_bytes(), value(b"last")).await.unwrap();
        }
        assert_eq!(sleeper.store.map().epoch, 3);
        sleeper.store.settle().await;
        assert_eq!(scene.audit().await, 50);
    });
}

/// The put is stored on x, and on z long after; between the two the key is carried over without x. Were z not sealed before
/// it was read, the put would be acknowledged, and nobody would know of it.
#[test]
fn a_put_that_lands_behind_the_migrator_is_not_acknowledged() {
    run(7, async {
        let scene = Scene::new([100, 100, 100, 100, 0]).await;
        let (sleeper, worker) = (scene.host(Duration::from_secs(3600)).await, scene.host(SHORT).await);
        sleeper.store.put(b"warm up", value(b"v")).await.unwrap();
        sleeper.store.settle().await;
        let old = scene.voters.now().placements().new;
        scene.begin(&set_weight(&scene, 4, 100));
        let new = scene.voters.now().placements().new;
        let keys = (0..1000u32).map(|number| sleeper.store.inner.key(&number.to_le_bytes()).unwrap());
        let key = keys.into_iter().find(|key| new.homes(key.hash()).contains(&4)).unwrap();
        let [x, y, z] = *old.homes(key.hash()).first_chunk().unwrap();
        let link = |host: &Host, index: u16| host.voters.links[usize::from(index)].clone();
        link(&sleeper, y).down.set(true);
        link(&sleeper, z).slow.set(Duration::from_secs(3));
        let (store, bytes) = (sleeper.store.clone(), key.bytes().to_vec());
        let put = engine::task::spawn(async move { store.put(&bytes, value(b"late")).await });
        time::sleep(Duration::from_millis(3500)).await;
        link(&worker, x).down.set(true);
        carry_out_joint(&scene, &worker).await;
        let error = put.await.unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
    });
}

/// Two conditional operations on one entry end half way: x on member 0, and on member 2, by a higher ballot, y, of which only
/// member 1's promise tells the migrator. Were x carried over by its own ballot, it would be seen, and then y in its place.
#[test]
fn what_was_left_half_done_before_a_change_is_decided_before_it_is_carried_over() {
    run(8, async {
        let scene = Scene::new([100, 100, 100, 0, 0]).await;
        let (old, worker) = (scene.host(LEASE_DEFAULT).await, scene.host(SHORT).await);
        old.store.put(b"k", value(b"v")).await.unwrap();
        old.store.settle().await;
        let key = old.store.inner.key(b"k").unwrap();
        let members = old.store.inner.topology().members.clone();
        let (_, base) = members[0].read(&key).await.unwrap();
        let ballot = |number: u64| Ballot { round: (1 << 40) + number, op: OpId { host: number, sequence: 1 } };
        let accept = |number: u64, text: &[u8]| {
            let timestamp = Timestamp { ballot: ballot(number), ..base.timestamp };
            let ops = vec![Applied { op: ballot(number).op, round: ballot(number).round }];
            let record = Record { timestamp, value: Some(value(text)), ops, ..Record::default() };
            table::Request::Accept { ballot: ballot(number), next: ballot(number), record }
        };
        let prepare = |number: u64| table::Request::Prepare(ballot(number));
        let requests = [
            (0, prepare(1)),
            (1, prepare(1)),
            (0, accept(1, b"x")),
            (1, prepare(2)),
            (2, prepare(2)),
            (2, accept(2, b"y")),
        ];
        for (member, request) in requests {
            let reply = members[member].apply(&key, &request, Known::default()).await.unwrap();
            assert!(!matches!(reply.outcome, Outcome::Refused(_)));
        }
        worker.voters.links[2].down.set(true);
        let weights = [(0, 0), (1, 0), (3, 100), (4, 100)].map(|(index, weight)| (scene.id(index), weight));
        scene.begin(&Request::SetWeight(weights.to_vec()));
        carry_out_joint(&scene, &worker).await;
        // Of the final epoch, both: neither has seen the old homes.
        for away in [2, 4] {
            let reader = scene.host(LEASE_DEFAULT).await;
            reader.voters.links[away].down.set(true);
            assert_eq!(reader.store.get(b"k").await, Ok(Some(value(b"x"))), "member {away} is away");
        }
    });
}

/// Carries the change out until the map is final.
async fn carry_out_joint(scene: &Scene, worker: &Host) {
    while scene.voters.now().state == State::Joint {
        worker.piece(scene.voters.now().change.unwrap()).await.unwrap();
    }
}

/// A member that is away for good: its keys are carried over from the others, but cleaning waits for it.
#[test]
fn cleaning_waits_for_every_member() {
    run(6, async {
        let scene = Scene::new([100, 100, 100, 100, 0]).await;
        let worker = scene.host(LEASE_DEFAULT).await;
        for number in 0..50u32 {
            worker.store.put(&number.to_le_bytes(), value(b"old")).await.unwrap();
        }
        worker.store.settle().await;
        worker.voters.links[2].down.set(true);
        scene.begin(&set_weight(&scene, 4, 100));
        let error = worker.finish().await.unwrap_err();
        assert!(error.contains("member 2 does not answer"), "{error}");
        assert_eq!(scene.voters.now().state, State::Unclean);
        for number in 0..50u32 {
            assert_eq!(worker.store.get(&number.to_le_bytes()).await, Ok(Some(value(b"old"))));
        }
        worker.voters.links[2].epoch.set(1);
        worker.voters.links[2].down.set(false);
        worker.finish().await.unwrap();
        assert_eq!(scene.audit().await, 50);
    });
}

/// Somebody cleans still when the next change has brought a key to the very member: a delete that this one knew with one other was
/// not seen by a majority any more, the value was back, and gone again later. So it was where a sweep is late, before which
/// pages need not be sealed when a change begins.
#[test]
fn a_late_cleaner_drops_nothing_of_the_next_change() {
    for before in [State::Unclean, State::Stable] {
        run(7, async move {
            let scene = Scene::new([0, 100, 100, 100, 0]).await;
            let (worker, late, host) = (scene.host(SHORT).await, scene.host(SHORT).await, scene.host(SHORT).await);
            host.store.put(b"key", value(b"v")).await.unwrap();
            host.store.settle().await;
            match before {
                State::Stable => scene.voters.set(scene.voters.now().raise_epoch()),
                _ => {
                    scene.begin(&set_weight(&scene, 3, 200));
                    carry_out_joint(&scene, &worker).await;
                }
            }
            late.store.refresh().await.unwrap();
            let slow = late.store.inner.topology();
            assert_eq!(slow.map.state, before);
            worker.finish().await.unwrap();

            scene.begin(&Request::SetWeight(vec![(scene.id(0), 100), (scene.id(3), 0)]));
            // As migration may pass over a new home, which is not sealed then.
            worker.voters.links[0].down.set(true);
            carry_out_joint(&scene, &worker).await;
            host.store.refresh().await.unwrap();
            host.voters.links[2].down.set(true);
            assert!(host.store.delete(b"key").await.unwrap());
            host.store.settle().await;
            let overtaken = clean::clean(&late.store.inner, &slow, scan::Stretch { from: 0, to: None }).await;
            assert!(overtaken.is_err(), "others are further");
            host.voters.links[2].down.set(false);
            host.voters.links[1].down.set(true);
            assert_eq!(host.store.get(b"key").await.unwrap(), None, "deleted behind a {before} map");
            host.voters.links[1].down.set(false);
            worker.voters.links[0].down.set(false);
            worker.finish().await.unwrap();
            scene.audit().await;
        });
    }
}
