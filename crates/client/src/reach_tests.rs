//! Real targets on loopback, which serve members of more than one pool.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use device::Memory;
use engine::{Reactor, ReactorConfig, task};
use fabric::auth::{DhchapKey, Hash, HostKeys};
use fabric::subsystem::{HostConfig, Target, listen};
use pool::{CreateOptions, HalfLeft, NewMember, Request, Word};

use super::*;

/// A namespace, and where a target serves it.
type Place = NewMember<Arc<Memory>>;

/// Serves `count` namespaces by one target, each by a subsystem of its own, as long as the process lives.
async fn target(name: &str, count: u8) -> Vec<Place> {
    let target: Target = Target::default();
    let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a port");
    let address = listener.local_addr().to_string();
    let mut places = Vec::new();
    for index in 0..count {
        let nqn: Nqn = format!("nqn.2026-11.io.yagura:{name}-{index}").parse().expect("a name");
        let mut nguid = [index + 1; 16];
        nguid[..name.len()].copy_from_slice(name.as_bytes());
        let memory = Arc::new(Memory::new(8 << 20, 4096, nguid).expect("memory"));
        target.add_subsystem(nqn.clone(), "memory").expect("a subsystem");
        target.add_namespace(&nqn, 1, memory.clone()).expect("a namespace");
        places.push(NewMember::at(memory, nqn.to_string(), 1, vec![address.clone()]));
    }
    task::spawn(async move { target.serve(listener, Vec::new()).await }).detach();
    places
}

async fn create(members: &[&Place]) -> Map {
    let copy = |place: &&Place| NewMember {
        namespace: place.namespace.clone(),
        nqn: place.nqn.clone(),
        addresses: place.addresses.clone(),
        domain: place.domain.clone(),
        ..**place
    };
    let members: Vec<Place> = members.iter().map(copy).collect();
    let options = CreateOptions { replicas: members.len().min(3) as u8, ..CreateOptions::default() };
    pool::create(&members, &options, |_| ()).await.expect("a pool")
}

/// Has the map agreed on again and again: ballots of this pool are the highest of all.
async fn propose_often(map: &Map, members: &[&Place]) {
    let namespaces: Vec<_> = members.iter().map(|place| place.namespace.clone()).collect();
    for _ in 0..4 {
        let proposer = Proposer::new(&namespaces);
        let agreed = proposer.agree(map, |map| Ok(Map { revision: map.revision + 1, ..map.clone() })).await;
        agreed.expect("agreed");
    }
}

fn run(future: impl Future<Output = ()>) {
    Reactor::run(ReactorConfig::default(), future).expect("a reactor");
}

/// Whichever had seen more ballots was reached, whatever was meant: a `remove` struck the other.
#[test]
fn of_two_pools_on_one_target_none_is_taken_for_the_other() {
    run(async {
        let [both, second, third] = [target("a", 2).await, target("b", 1).await, target("c", 1).await];
        let first = create(&[&both[0], &second[0], &third[0]]).await;
        let other = create(&[&both[1]]).await;
        propose_often(&other, &[&both[1]]).await;
        let (way, shared, alone) = (Way::plain(), &both[0].addresses, &second[0].addresses);
        let Err(Error::Usage(refused)) = reach(&way, shared, None).await.map(|reached| reached.map) else {
            panic!("one of two was taken");
        };
        for pool in [first.pool, other.pool] {
            assert!(refused.contains(&pool.to_string()) && refused.contains("--pool-id"), "{refused}");
            assert_eq!(reach(&way, shared, Some(pool)).await.expect("it is there").map.pool, pool);
        }
        let given = [alone.clone(), shared.clone()].concat();
        assert!(matches!(reach(&way, &given, None).await, Err(Error::Usage(_))), "neither address says more");
        assert_eq!(reach(&way, alone, None).await.expect("one pool alone is there").map.pool, first.pool);
        let Err(Error::Refused(missing)) = reach(&way, alone, Some(other.pool)).await.map(|reached| reached.map) else {
            panic!("another pool was taken");
        };
        assert!(missing.contains(&first.pool.to_string()), "{missing}");
    });
}

/// A namespace that a pool has let go still names it, and leads to it where nothing else does.
#[test]
fn a_namespace_that_was_let_go_leads_to_its_pool_unless_another_is_there() {
    run(async {
        let [left, stay] = [target("a", 2).await, target("b", 2).await];
        let members = [&left[0], &stay[0], &stay[1]];
        let map = create(&members).await;
        let namespaces: Vec<_> = members.iter().map(|place| place.namespace.clone()).collect();
        let (way, address, proposer) = (Way::plain(), &left[0].addresses, Proposer::new(&namespaces));
        let smaller = Map { replicas: 1, ..map.clone() };
        let remove = Request::Remove(vec![map.members[0].id]);
        let agreed = proposer.agree(&map, |_| Ok(smaller.begin(&remove, 7)?)).await.expect("joint");
        let agreed = proposer.agree(&agreed, |map| Ok(map.end_joint())).await.expect("unclean");
        let agreed = proposer.agree(&agreed, |map| Ok(map.end_unclean())).await.expect("stable");
        assert_eq!(reach(&way, address, None).await.expect("it leads there").map, agreed);
        let other = create(&[&left[1]]).await;
        assert_eq!(reach(&way, address, None).await.expect("it has a member there").map.pool, other.pool);
        assert_eq!(reach(&way, address, Some(map.pool)).await.expect("it was named").map, agreed);
    });
}

/// One name that nobody knew stopped every host, and `pool replace` of that very member.
#[test]
fn a_name_that_does_not_resolve_is_a_member_out_of_reach() {
    run(async {
        let [first, second, third] = [target("a", 1).await, target("b", 1).await, target("c", 1).await];
        let unknown = NewMember {
            addresses: vec!["no-such-name.invalid:4420".to_owned()],
            ..third.into_iter().next().expect("one")
        };
        let map = create(&[&first[0], &second[0], &unknown]).await;
        let given = [unknown.addresses[0].clone(), first[0].addresses[0].clone()];
        let reached = reach(&Way::plain(), &given, None).await.expect("two of three answer");
        assert_eq!(reached.map, map);
        let there: Vec<bool> = reached.members.iter().map(Option::is_some).collect();
        assert_eq!(there, [true, true, false]);
        assert!(reached.troubles.iter().any(|trouble| trouble.contains("can't be resolved")), "{:?}", reached.troubles);
        let store = reached.store();
        store.put(b"key", engine::Buf::zeroed(5).freeze()).await.expect("put");
        assert!(store.get(b"key").await.expect("get").is_some());
        // A change is begun, and goes on, by whoever answers.
        let lost = Request::Drain(vec![map.members[2].id]);
        let begun = reached.source().begin(&lost).await;
        assert!(matches!(begun, Err(Error::Usage(_))), "three replicas need three members: {begun:?}");
    });
}

/// The lost voter of two is back and answers by the map before, by which the other one would not be asked.
#[test]
fn a_map_that_others_have_gone_on_to_is_found_past_a_voter_that_answers() {
    run(async {
        let [first, second] = [target("a", 1).await, target("b", 1).await];
        let map = create(&[&first[0], &second[0]]).await;
        let lost = map.members[map.voter_indices().next().expect("a voter")].id;
        let (voter, left) = match first[0].namespace.info().nguid == lost.0 {
            true => (&first[0], &second[0]),
            false => (&second[0], &first[0]),
        };
        let way = Way::plain();
        let rest = reach_rest(&way, &left.addresses, None).await.expect("one is left");
        let seized = rest.seize(Word::lost(&[lost], HalfLeft::MustKnowAll)).await.expect("an operator's word");
        let source = reach(&way, &voter.addresses, None).await.expect("the voter answers").source();
        assert_eq!(source.map().await.expect("in force as far as the voter knows"), map);
        assert_eq!(source.map_of_all().await.expect("the other one knows better"), seized);
        assert_eq!(source.map().await.expect("and is asked from then on"), seized);
    });
}

/// A gateway or client that runs while the voters' medium dies and the rest goes on without it. It asked the lost voter alone,
/// beside the one that knew better, and served nothing until it was started again.
#[test]
fn whoever_runs_learns_of_a_map_that_was_agreed_on_without_all_its_voters() {
    run(async {
        let [first, second] = [target("a", 1).await, target("b", 1).await];
        let map = create(&[&first[0], &second[0]]).await;
        let (way, addresses) = (Way::plain(), [first[0].addresses[0].clone(), second[0].addresses[0].clone()]);
        let running = reach(&way, &addresses, None).await.expect("both answer");
        let (source, store) = (running.source(), running.store());
        store.put(b"key", engine::Buf::zeroed(5).freeze()).await.expect("put");
        let lost = map.members[map.voter_indices().next().expect("a voter")].id;
        let (voter, left) = match first[0].namespace.info().nguid == lost.0 {
            true => (&first[0], &second[0]),
            false => (&second[0], &first[0]),
        };
        let blocks = voter.namespace.info().blocks;
        voter.namespace.write_zeroes(device::Lba(0), blocks, device::Durability::Stable).await.expect("emptied");
        let alone = source.map().await.expect_err("nobody knows what the voter has agreed on").to_string();
        assert!(alone.contains("--force"), "{alone}");
        let rest = reach_rest(&way, &left.addresses, None).await.expect("one is left");
        let seized = rest.seize(Word::lost(&[lost], HalfLeft::MustKnowAll)).await.expect("an operator's word");
        assert_eq!(source.map().await.expect("the one that is left knows"), seized);
        let mut answered = store.get(b"key").await;
        for _ in 0..600 {
            if answered.is_ok() {
                break;
            }
            engine::time::sleep(Duration::from_millis(100)).await;
            answered = store.get(b"key").await;
        }
        assert!(answered.expect("served by the map of those that are left").is_some());
    });
}

/// A drive's subsystem whose first namespace was deleted, or is another host's: who asked for one number after the other, as far as
/// the first that is not there, found no pool. What did not let this host in hid all else at the address, and each namespace that
/// was looked at cost an association, of which a target has so many for one address.
#[test]
fn a_pool_is_found_behind_a_gap_and_beside_what_refuses() {
    run(async {
        let (way, target) = (Way::plain(), Rc::new(Target::default()));
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a port");
        let address = listener.local_addr().to_string();
        let [drive, strict]: [Nqn; 2] =
            ["drive", "a-strict-one"].map(|name| format!("nqn.2026-11.io.yagura:{name}").parse().expect("a name"));
        let memory = |byte| Arc::new(Memory::new(8 << 20, 4096, [byte; 16]).expect("memory"));
        for nqn in [&drive, &strict] {
            target.add_subsystem(nqn.clone(), "memory").expect("a subsystem");
        }
        let key = Arc::new(DhchapKey::generate(Some(Hash::Sha256), None).expect("random bytes"));
        let keys = Some(HostKeys { host: key, controller: None });
        target.allow_any_host(&strict, false).expect("it is there");
        let config = HostConfig { keys, ..HostConfig::default() };
        target.allow_host(&strict, &way.host.nqn, config).expect("it is there");
        // Of no pool, and nothing that hinders anybody.
        target.add_namespace(&drive, 70, memory(70)).expect("a namespace");
        target.add_namespace(&strict, 1, memory(200)).expect("a namespace");
        let all: Vec<Place> = (1..=40u8)
            .map(|nsid| {
                let place = NewMember::at(memory(nsid), drive.to_string(), nsid.into(), vec![address.clone()]);
                target.add_namespace(&drive, nsid.into(), place.namespace.clone()).expect("a namespace");
                place
            })
            .collect();
        target.remove_namespace(&drive, 1).expect("it was there");
        let serving = Rc::clone(&target);
        task::spawn(async move { serving.serve(listener, Vec::new()).await }).detach();
        let map = create(&[&all[20], &all[39]]).await;
        let reached = reach(&way, &[address], None).await.expect("two members are there");
        assert_eq!(reached.map, map);
        assert!(reached.members.iter().all(Option::is_some), "{:?}", reached.troubles);
        let strict = |trouble: &String| trouble.contains("authenticat");
        assert!(reached.troubles.iter().all(strict) && !reached.troubles.is_empty(), "{:?}", reached.troubles);
        let connections = target.stats().connections();
        assert!(connections <= 6, "{connections} for two members and one look at all");
    });
}
