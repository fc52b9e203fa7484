//! The agreement under crashes at every step, and under lost, late and repeated proposals by several hosts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::{Fault, FaultConfig, Memory};
use engine::sim::{SimConfig, World};
use engine::time;

use crate::acceptor::Acceptor;
use crate::change::{ChangeKind, Side, State};
use crate::plan::Request;
use crate::superblock::Ballot;
use crate::testing::{Plain, new_member, plain_pool};
use crate::{AgreeError, Error, Map, Member, Proposer, open};

const SIZE: usize = 2 << 20;

async fn pool<N: device::Namespace + Clone>(namespaces: &[N]) -> Map {
    plain_pool(namespaces, 1).await
}

fn labelled<N: Clone>(namespaces: &[N]) -> Vec<(String, N)> {
    namespaces.iter().map(|namespace| ("m".to_owned(), namespace.clone())).collect()
}

/// The map with `token` written on it, once; each time another state, with voters of its own.
fn written(map: &Map, token: &str, dice: u64) -> Map {
    if tokens(map).iter().any(|known| known == token) {
        return map.clone();
    }
    let mut next = match map.state {
        State::Joint => map.end_joint(),
        State::Unclean => map.end_unclean(),
        State::Stable => {
            // A change of weight that also gives the votes to others.
            let weights = vec![(map.members[0].id, 50 + (dice % 100) as u32 + u32::from(map.members[0].weight == 100))];
            let Ok(mut next) = map.begin(&Request::SetWeight(weights), dice) else {
                // The same weight by chance. Voters change by a joint map alone.
                let mut next = map.raise_epoch();
                next.members[0].nqn += &format!(",{token}");
                return next;
            };
            let voters = 1 + dice as usize % next.members.len();
            let count = next.members.len();
            for (index, member) in next.members.iter_mut().enumerate() {
                member.voter = (index + dice as usize / 7) % count < voters;
            }
            next
        }
    };
    next.members[0].nqn += &format!(",{token}");
    next
}

fn tokens(map: &Map) -> Vec<String> {
    map.members[0].nqn.split(',').skip(1).map(str::to_owned).collect()
}

fn run<T>(seed: u64, future: impl Future<Output = T>) -> T {
    match World::new(seed, SimConfig::default()).run_until(future) {
        Ok(output) => output,
        Err(stalled) => panic!("seed {seed}: {stalled:?}"),
    }
}

/// Whoever proposes is stopped after every single write in turn. What it was told is agreed on is in force for good, and
/// what it left half done is finished or forgotten by the next, never both.
#[test]
fn a_proposer_may_crash_after_every_write() {
    for voters in [1, 3, 5] {
        let (mut finished, mut forgotten, mut done) = (0, 0, 0);
        for crash in 0..150 {
            run(crash, async {
                let namespaces: Vec<Plain> = (1..=voters).map(|id| Plain::new(id, SIZE, 4096)).collect();
                let map = pool(&namespaces).await;
                let budget = Rc::new(Cell::new(crash as u32));
                namespaces.iter().for_each(|plain| *plain.0.budget.borrow_mut() = budget.clone());
                let first = Proposer::new(&namespaces).agree(&map, |map| Ok(written(map, "a", 0))).await;
                budget.set(u32::MAX);
                let next = Proposer::new(&namespaces).agree(&map, |map| Ok(written(map, "b", 3))).await.unwrap();
                let known = tokens(&next);
                match (&first, known.len()) {
                    (Ok(_), length) => {
                        assert_eq!(length, 2, "crash {crash}: what was agreed on is lost");
                        done += 1;
                    }
                    (Err(AgreeError::Unavailable { outcome_unknown: false, .. }), 2) => {
                        panic!("crash {crash}: in force, though it was said that it never would be")
                    }
                    (Err(_), 2) => finished += 1,
                    (Err(_), _) => forgotten += 1,
                }
                assert_eq!(known.last().map(String::as_str), Some("b"));
                let opened = open(&labelled(&namespaces), None).await.unwrap();
                assert_eq!((&opened.map, opened.unsettled), (&next, None), "crash {crash}");
                let again = Proposer::new(&namespaces).agree(&map, |map| Ok(map.clone())).await.unwrap();
                assert_eq!(again, next, "crash {crash}");
            });
        }
        assert!(done > 0 && forgotten > 0 && (voters == 1 || finished > 0), "{done} {finished} {forgotten}");
    }
}

#[test]
fn a_minority_of_voters_may_be_down_and_learns_later() {
    run(1, async {
        let namespaces: Vec<Plain> = (1..=5).map(|id| Plain::new(id, SIZE, 512)).collect();
        let map = pool(&namespaces).await;
        namespaces[..2].iter().for_each(|plain| plain.0.down.set(true));
        let proposer = Proposer::new(&namespaces);
        let next = proposer.agree(&map, |map| Ok(map.raise_epoch())).await.unwrap();
        namespaces[2].0.down.set(true);
        let refused = proposer.agree(&next, |map| Ok(map.raise_epoch())).await;
        assert!(matches!(refused, Err(AgreeError::Unavailable { .. })), "{refused:?}");
        assert!(matches!(open(&labelled(&namespaces), None).await, Err(Error::NoQuorum { .. })));
        namespaces[..3].iter().for_each(|plain| plain.0.down.set(false));
        assert_eq!(open(&labelled(&namespaces), None).await.unwrap().map, next);
        proposer.agree(&map, |map| Ok(map.clone())).await.unwrap();
        namespaces[2..4].iter().for_each(|plain| plain.0.down.set(true));
        assert_eq!(open(&labelled(&namespaces), None).await.unwrap().map, next, "the two that were down have learned");
    });
}

#[test]
fn a_damaged_copy_a_is_mended_from_copy_b_and_keeps_its_promise() {
    run(1, async {
        let namespaces = vec![Plain::new(1, SIZE, 4096)];
        let map = pool(&namespaces).await;
        let proposer = Proposer::new(&namespaces);
        let next = proposer.agree(&map, |map| Ok(map.raise_epoch())).await.unwrap();
        namespaces[0].0.bytes.borrow_mut()[100] ^= 1;
        let refused = Proposer::new(&namespaces).agree(&map, |_| Err(AgreeError::Refused("look only".into()))).await;
        assert_eq!(refused, Err(AgreeError::Refused("look only".into())));
        let after = proposer.agree(&map, |map| Ok(map.raise_epoch())).await.unwrap();
        assert_eq!(after.epoch, next.epoch + 1, "built on what was in force");
    });
}

#[test]
fn members_that_come_are_told_and_those_that_go_know_where_it_went() {
    run(1, async {
        let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, SIZE, 4096)).collect();
        let map = pool(&namespaces[..3]).await;
        // Not a member yet, but of this pool: what `admit` leaves.
        let new = new_member(&namespaces[3]);
        let fourth: Member = crate::candidate(&new, &map, None, false).await.unwrap();
        crate::admit(&new, &map, &fourth, false, async || Ok(map.clone())).await.unwrap();
        // Until a map names it it may be admitted anew; once one does it is in use.
        assert!(crate::candidate(&new, &map, None, false).await.is_ok());
        let proposer = Proposer::new(&namespaces);
        let request = Request::Replace { old: map.members[0].id, new: Box::new(fourth) };
        let begin = |map: &Map| map.begin(&request, 9).map_err(AgreeError::from);
        let joint = proposer.agree(&map, begin).await.unwrap();
        assert_eq!((joint.state, joint.change.as_ref().unwrap().kind), (State::Joint, ChangeKind::Replace));
        proposer.agree(&joint, |map| Ok(map.end_joint())).await.unwrap();
        let stable = proposer.agree(&map, |map| Ok(map.end_unclean())).await.unwrap();
        assert_eq!(stable.voters(), 3);
        assert!(stable.seats(Side::New).all(|(index, _)| stable.members[index].id != map.members[0].id));
        // With the first alone one finds no quorum, but learns whom to ask.
        let Err(Error::NoQuorum { map: named, .. }) = open(&labelled(&namespaces[..1]), None).await else {
            panic!("one that has gone is no quorum")
        };
        assert!(named.epoch > map.epoch && named.index_of(stable.members[2].id).is_some());
        assert_eq!(open(&labelled(&namespaces[1..]), None).await.unwrap().map, stable);
    });
}

/// Two operators add one namespace. The second has found it free; by the time that it is admitted it is a member in use. It was
/// formatted: plainly, and without another look at the map.
#[test]
fn who_admits_a_namespace_takes_it_from_no_pool_that_it_has_joined_meanwhile() {
    run(2, async {
        let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, SIZE, 4096)).collect();
        let map = pool(&namespaces[..3]).await;
        let (new, proposer) = (new_member(&namespaces[3]), Proposer::new(&namespaces));
        let newest = async || {
            let agreed = proposer.agree(&map, |map| Ok(map.clone())).await;
            agreed.map_err(|error| Error::Unfit { member: "m".into(), reason: error.to_string() })
        };
        let [first, second] = [(); 2].map(async |()| crate::candidate(&new, &map, None, false).await.unwrap());
        let (first, second) = (first.await, second.await);
        crate::admit(&new, &map, &first, false, newest).await.unwrap();
        let request = Request::Add(vec![first]);
        // It has not heard of the map that names it.
        namespaces[3].0.down.set(true);
        let joint = proposer.agree(&map, |map| Ok(map.begin(&request, 9)?)).await.unwrap();
        namespaces[3].0.down.set(false);
        let index = joint.index_of(second.id).unwrap();
        for (force, writes) in [(false, u32::MAX), (true, u32::MAX), (false, 0), (true, 0)] {
            // Who can't write at all finds it, too: before anything is claimed.
            namespaces[3].0.budget.borrow().set(writes);
            let refused = crate::admit(&new, &map, &second, force, newest).await.unwrap_err();
            assert!(matches!(refused, Error::IsMember { .. }), "{refused}");
            crate::check_member(&namespaces[3], &joint, index).await.unwrap();
        }
    });
}

/// Whoever admits a namespace is stopped after any write: the next one goes on without force. Between the claim and the map's
/// body it was taken for a member in use.
#[test]
fn an_admission_that_was_cut_off_anywhere_is_begun_again() {
    run(3, async {
        let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, SIZE, 4096)).collect();
        let map = pool(&namespaces[..3]).await;
        let (new, plain) = (new_member(&namespaces[3]), &namespaces[3].0);
        let admit = async || {
            let member = crate::candidate(&new, &map, None, false).await?;
            crate::admit(&new, &map, &member, false, async || Ok(map.clone())).await
        };
        let mut writes = 0;
        loop {
            plain.bytes.borrow_mut().fill(0);
            plain.budget.borrow().set(writes);
            let done = admit().await.is_ok();
            plain.budget.borrow().set(u32::MAX);
            if done {
                break;
            }
            admit().await.unwrap_or_else(|error| panic!("after {writes} writes: {error}"));
            writes += 1;
        }
        assert!(writes > 5, "{writes}");
    });
}

/// A joint map that one voter alone carries is found, and to be ended; the other voters of before fail after every write. As
/// soon as any voter has heard of the final map, a majority of the voters before the change knows of the joint one at least:
/// who knows of neither can't find a quorum among them.
#[test]
fn no_final_map_is_made_of_a_joint_one_that_few_carry() {
    let mut ended = 0;
    for crash in 0..80 {
        run(crash, async {
            let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, SIZE, 4096)).collect();
            let map = pool(&namespaces[..3]).await;
            let new = new_member(&namespaces[3]);
            let fourth = crate::candidate(&new, &map, None, false).await.unwrap();
            crate::admit(&new, &map, &fourth, false, async || Ok(map.clone())).await.unwrap();
            let request = Request::Replace { old: map.members[0].id, new: Box::new(fourth) };
            let joint = map.begin(&request, 9).unwrap();
            let acceptor = Acceptor { namespace: &namespaces[1], pool: map.pool, life: None };
            let promise = acceptor.prepare(Ballot { round: 9, host: 9 }).await.unwrap();
            acceptor.accept(&promise, joint.epoch, &joint.encode().unwrap()).await.unwrap();
            let budget = Rc::new(Cell::new(crash as u32));
            // The joint map's carrier and the new voter stay; the others may fail between their promise and the rest.
            [0, 2].into_iter().for_each(|index: usize| *namespaces[index].0.budget.borrow_mut() = budget.clone());
            let _outcome = Proposer::new(&namespaces).agree(&map, |map| Ok(map.end_joint())).await;
            budget.set(u32::MAX);
            let mut states = Vec::new();
            for namespace in &namespaces {
                // A body half written is one of a slot not in force.
                states.push(crate::inspect(namespace, "m").await.unwrap().map.state);
            }
            if states.contains(&State::Unclean) {
                ended += 1;
                let told = states[..3].iter().filter(|&&state| state != State::Stable).count();
                assert!(told >= 2, "crash {crash}: {states:?}");
            }
        });
    }
    assert!(ended > 10, "{ended}");
}

/// Who ends a change dies when the final map has reached one voter of the new side; who takes it back then, among the others,
/// dies after every write in turn. What the next make of either, with those that the first or the second had reached, is one.
#[test]
fn an_end_and_a_taking_back_that_both_stop_half_way_are_never_both_in_force() {
    let (mut ended, mut back) = (0, 0);
    for crash in 0..60 {
        run(crash, async {
            let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, SIZE, 4096)).collect();
            let map = plain_pool(&namespaces[..3], 3).await;
            let new = new_member(&namespaces[3]);
            let fourth = crate::candidate(&new, &map, None, false).await.unwrap();
            crate::admit(&new, &map, &fourth, false, async || Ok(map.clone())).await.unwrap();
            let request = Request::Replace { old: map.members[0].id, new: Box::new(fourth) };
            let proposer = Proposer::new(&namespaces);
            let joint = proposer.agree(&map, |map| Ok(map.begin(&request, 9)?)).await.unwrap();
            let end = joint.end_joint();
            let mut promises = Vec::new();
            for namespace in &namespaces {
                let acceptor = Acceptor { namespace, pool: map.pool, life: None };
                promises.push((acceptor.prepare(Ballot { round: 9, host: 9 }).await.unwrap(), acceptor));
            }
            promises[2].1.accept(&promises[2].0, end.epoch, &end.encode().unwrap()).await.unwrap();
            namespaces[2].0.down.set(true);
            let budget = Rc::new(Cell::new(crash as u32));
            [0, 1, 3].into_iter().for_each(|index: usize| *namespaces[index].0.budget.borrow_mut() = budget.clone());
            if let Ok(decided) = proposer.agree(&joint, |map| Ok(map.take_back()?)).await {
                let _may_have_died = proposer.agree(&decided, |map| Ok(map.end_joint())).await;
            }
            budget.set(u32::MAX);
            let mut final_maps = Vec::new();
            let reach = |reached: [bool; 4]| {
                reached.iter().zip(&namespaces).for_each(|(reached, namespace)| namespace.0.down.set(!reached));
            };
            reach([false, false, true, true]);
            final_maps.extend(proposer.agree(&joint, |map| Ok(map.end_joint())).await.ok());
            reach([true, true, true, true]);
            for seen in [&namespaces[..3], &namespaces[..2], &namespaces[1..], &namespaces[..]] {
                final_maps.extend(open(&labelled(seen), None).await.ok().map(|opened| opened.map));
            }
            final_maps.push(proposer.agree(&joint, |map| Ok(map.end_joint())).await.unwrap());
            final_maps.retain(|map| map.state == State::Unclean);
            assert!(final_maps.iter().all(|map| *map == final_maps[0]), "crash {crash}: {final_maps:?}");
            let taken_back = final_maps[0].change.as_ref().unwrap().taken_back;
            *if taken_back { &mut back } else { &mut ended } += 1;
        });
    }
    assert!(ended > 5 && back > 5, "{ended} {back}");
}

/// Several hosts propose at once over media that lose commands and replies and let writes land late; some are stopped. All
/// maps that anybody was told of are one chain.
async fn contest(seed: u64) {
    let members = 3 + seed % 4;
    let memories: Vec<Arc<Memory>> =
        (0..members).map(|index| Arc::new(Memory::new(SIZE as u64, 4096, [index as u8 + 1; 16]).unwrap())).collect();
    let map = pool(&memories).await;
    let told: Rc<RefCell<Vec<Map>>> = Rc::default();
    let mut hosts = Vec::new();
    for host in 0..3u64 {
        let fault = |(index, memory): (usize, &Arc<Memory>)| {
            let config = FaultConfig {
                seed: seed * 1000 + host * 100 + index as u64,
                lost_command_ppm: 20_000,
                late_command_ppm: 40_000,
                lost_reply_ppm: 20_000,
                delay: Duration::from_micros(10)..Duration::from_millis(4),
                ..FaultConfig::default()
            };
            Arc::new(Fault::new(memory.clone(), config))
        };
        let namespaces: Vec<_> = memories.iter().enumerate().map(fault).collect();
        let (map, told) = (map.clone(), told.clone());
        hosts.push(engine::task::spawn(async move {
            for number in 0..6 {
                let token = format!("{host}.{number}");
                let dice = engine::task::random_u64();
                let proposer = Proposer::new(&namespaces);
                let proposal = proposer.agree(&map, |map| Ok(written(map, &token, dice)));
                // Now and then a host dies in the middle, and another one begins in its place.
                let life =
                    if dice.is_multiple_of(4) { Duration::from_millis(dice % 60) } else { Duration::from_secs(60) };
                if let Ok(Ok(agreed)) = time::timeout(life, proposal).await {
                    assert!(tokens(&agreed).contains(&token));
                    told.borrow_mut().push(agreed);
                }
            }
        }));
    }
    for host in hosts {
        host.await;
    }
    time::sleep(Duration::from_secs(1)).await;
    let last = Proposer::new(&memories).agree(&map, |map| Ok(map.clone())).await.unwrap();
    told.borrow_mut().push(last.clone());
    let mut chain = told.borrow().clone();
    chain.sort_by_key(|map| tokens(map).len());
    for pair in chain.windows(2) {
        assert!(
            tokens(&pair[1]).starts_with(&tokens(&pair[0])),
            "seed {seed}: {:?} {:?}",
            tokens(&pair[0]),
            tokens(&pair[1])
        );
        assert!(pair[0].version() <= pair[1].version(), "seed {seed}");
    }
    assert!(chain.len() > 2, "seed {seed}: hardly anything was agreed on");
    assert_eq!(open(&labelled(&memories), None).await.unwrap().map, last, "seed {seed}");
}

#[test]
fn several_proposers_over_faulty_members_make_one_chain_of_maps() {
    for seed in 0..24 {
        run(seed, contest(seed));
    }
}

/// Five voters and another member, which alone still carries the second map: the voters are put back to before that was in force.
async fn put_back() -> (Vec<Plain>, Map, Map) {
    let namespaces: Vec<Plain> = (1..=6).map(|id| Plain::new(id, SIZE, 4096)).collect();
    let map = pool(&namespaces).await;
    let voters = &namespaces[..5];
    assert_eq!(map.voter_indices().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let before: Vec<_> = voters.iter().map(|plain| plain.0.bytes.borrow().clone()).collect();
    let carried = Proposer::new(&namespaces).agree(&map, |map| Ok(map.raise_epoch())).await.unwrap();
    voters.iter().zip(before).for_each(|(plain, before)| *plain.0.bytes.borrow_mut() = before);
    assert_eq!(open(&labelled(voters), None).await.unwrap().map, map, "that is all that the voters know");
    (namespaces, map, carried)
}

#[test]
fn a_map_that_a_member_without_a_vote_alone_still_knows_comes_back_into_force() {
    run(1, async {
        let (namespaces, map, carried) = put_back().await;
        let settled = Proposer::new(&namespaces).settle_carried(&map, &carried, map.members[5].id).await.unwrap();
        assert_eq!(settled, carried);
        assert_eq!(open(&labelled(&namespaces[..5]), None).await.unwrap().map, carried);
    });
}

/// Whoever agrees on the next map meanwhile handed that to the member, once their ballots were as high as that of the later one.
#[test]
fn a_member_without_a_vote_is_handed_no_map_before_the_one_that_it_carries() {
    run(1, async {
        let (namespaces, map, carried) = put_back().await;
        let mut known = map.clone();
        for ms in 1..8 {
            let noted = |map: &Map| Ok(map.note_clock(known.clock.ms, known.clock.ms + ms, None));
            known = Proposer::new(&namespaces).agree(&known, noted).await.unwrap();
        }
        assert!(known.version() > map.version() && known.version() < carried.version());
        let carries = crate::open::inspect(&namespaces[5], "m").await.unwrap().map;
        assert_eq!(carries, carried);
        let settled = Proposer::new(&namespaces).settle_carried(&known, &carried, map.members[5].id).await;
        assert!(matches!(&settled, Err(AgreeError::Refused(why)) if why.contains("rolled back")), "{settled:?}");
        assert_eq!(crate::open::inspect(&namespaces[5], "m").await.unwrap().map, carried, "nothing is undone by it");
    });
}

/// The map that is to be settled can't be read when its member is asked: without that one the older map would be agreed on.
#[test]
fn a_carried_map_that_is_not_shown_is_not_settled_without() {
    run(1, async {
        let (namespaces, map, carried) = put_back().await;
        for offset in crate::geometry::MAP_OFFSETS {
            namespaces[5].0.bytes.borrow_mut()[offset as usize + 100] ^= 1;
        }
        let settled = Proposer::new(&namespaces).settle_carried(&map, &carried, map.members[5].id).await;
        assert!(matches!(&settled, Err(AgreeError::Refused(why)) if why.contains("does not show it")), "{settled:?}");
        assert_eq!(open(&labelled(&namespaces[..5]), None).await.unwrap().map, map);
    });
}
