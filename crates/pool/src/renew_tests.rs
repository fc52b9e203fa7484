//! Members without a vote that carry a later map than is in force.

use engine::sim::{SimConfig, World};

use super::*;
use crate::testing::{Plain, plain_pool, renew_under};
use crate::{AgreeError, Presence, Proposer, State, open};

fn run<T>(future: impl Future<Output = T>) -> T {
    World::new(1, SimConfig::default()).run_until(future).expect("the test's tasks are never all asleep for good")
}

/// A pool of three.
async fn pool() -> (Vec<Plain>, Map) {
    let namespaces: Vec<Plain> = (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
    let map = plain_pool(&namespaces, 3).await;
    (namespaces, map)
}

/// What `yagura kv repair` does for the first member.
async fn repair(namespaces: &[Plain], known: &Map) -> Result<Option<Member>, Error> {
    let proposer = Proposer::new(namespaces);
    let settle = async |carried: Option<&Map>| {
        let settled = proposer.settle(known, carried).await;
        settled.map_err(|error| Error::Unfit { member: "m".into(), reason: error.to_string() })
    };
    renew(&namespaces[0], "m", settle).await
}

/// Has `next` agreed on by a proposer that is cut off when all have promised and those of `accepting` have accepted.
async fn stopped(namespaces: &[Plain], map: &Map, next: &Map, accepting: usize) {
    for namespace in &namespaces[accepting..] {
        // A promise is two.
        namespace.0.writes_max.set(namespace.0.writes.get() + 2);
    }
    let stopped = Proposer::new(namespaces).agree(map, |_| Ok(next.clone())).await;
    let unknown = matches!(stopped, Err(AgreeError::Unavailable { outcome_unknown: true, .. }));
    assert!(unknown || accepting > 1, "{stopped:?}");
    namespaces.iter().for_each(|namespace| namespace.0.writes_max.set(u32::MAX));
}

/// Empties the first member, begins it anew, and leaves the joint map that says so with the first `accepting`; that map.
async fn begun_anew(namespaces: &[Plain], map: &Map, accepting: usize) -> Map {
    namespaces[0].0.bytes.borrow_mut().fill(0);
    let fresh = renew_under(&namespaces[0], map).await.unwrap();
    let joint = map.begin(&Request::Renew(Box::new(fresh)), 5).unwrap();
    stopped(namespaces, map, &joint, accepting).await;
    joint
}

fn noted(map: &Map) -> Map {
    Map { revision: map.revision.max(1), ..map.clone() }
}

/// The change is carried out, and all are members with a vote.
async fn is_whole_after(namespaces: &[Plain], map: &Map, member: Option<Member>) {
    let proposer = Proposer::new(namespaces);
    let request = member.map(|member| Request::Renew(Box::new(member)));
    let begin = |map: &Map| Ok(request.as_ref().map_or_else(|| Ok(map.clone()), |request| map.begin(request, 9))?);
    let joint = proposer.agree(map, begin).await.unwrap();
    assert_eq!(joint.state, State::Joint);
    proposer.agree(&joint, |map| Ok(map.end_joint())).await.unwrap();
    let stable = proposer.agree(&joint, |map| Ok(map.end_unclean())).await.unwrap();
    let labelled: Vec<_> = namespaces.iter().map(|namespace| ("m".to_owned(), namespace.clone())).collect();
    let opened = open(&labelled, None).await.unwrap();
    assert_eq!((opened.map, opened.unsettled), (stable.clone(), None));
    assert!(opened.members.iter().all(|member| matches!(member, Presence::Present(_))), "{:?}", opened.members);
    // Its vote is worth as much as any.
    namespaces[1].0.down.set(true);
    assert_eq!(proposer.agree(&stable, |map| Ok(map.raise_epoch())).await.unwrap().version(), (stable.epoch + 1, 0));
}

/// A repair was stopped when the member alone had accepted the map by which it begins anew. It was left alone from then on, for
/// good: a member of a later map (seed 50092 of the simulation).
#[test]
fn what_a_stopped_repair_has_begun_is_gone_on_with() {
    for accepting in 1..=3 {
        run(async {
            let (namespaces, map) = pool().await;
            let joint = begun_anew(&namespaces, &map, accepting).await;
            assert_eq!(repair(&namespaces, &map).await.unwrap(), None, "{accepting} have accepted it");
            assert_eq!(Proposer::new(&namespaces).settle(&map, None).await.unwrap(), joint);
            is_whole_after(&namespaces, &map, None).await;
        });
    }
}

/// The same, and the others have agreed on something else since: what it carries never comes into force.
#[test]
fn a_member_that_alone_carries_a_later_map_begins_anew() {
    run(async {
        let (namespaces, map) = pool().await;
        let joint = begun_anew(&namespaces, &map, 1).await;
        let newest = Proposer::new(&namespaces).agree(&map, |map| Ok(noted(map))).await.unwrap();
        assert!(newest.version() < joint.version());
        let fresh = repair(&namespaces, &map).await.unwrap().expect("it has no vote");
        assert!(!joint.members.iter().any(|member| member.incarnation == fresh.incarnation));
        is_whole_after(&namespaces, &newest, Some(fresh)).await;
    });
}

/// A member is put back to when it alone had accepted a map that was then superseded by one of an earlier epoch.
#[test]
fn a_member_that_is_rolled_back_to_a_later_map_begins_anew() {
    run(async {
        let (namespaces, map) = pool().await;
        stopped(&namespaces, &map, &map.raise_epoch(), 1).await;
        let before = namespaces[0].0.bytes.borrow().clone();
        let proposer = Proposer::new(&namespaces);
        namespaces[0].0.down.set(true);
        proposer.agree(&map, |map| Ok(noted(map))).await.unwrap();
        namespaces[0].0.down.set(false);
        let marked = proposer.roll_call(&map).await.unwrap();
        assert_eq!(marked.epoch, map.epoch);
        *namespaces[0].0.bytes.borrow_mut() = before;
        let refused = crate::check_member(&namespaces[0], &marked, 0).await.unwrap_err().to_string();
        assert!(refused.contains("rolled back"), "{refused}");
        let fresh = repair(&namespaces, &map).await.unwrap().expect("it has no vote");
        is_whole_after(&namespaces, &marked, Some(fresh)).await;
    });
}

/// What it carries is in force, with one other that counts, and whoever repairs knows the map before: it was begun anew a second
/// time, though others may have stored by then what it alone holds beside them.
#[test]
fn a_member_is_not_begun_anew_by_a_map_that_was_followed() {
    run(async {
        let (namespaces, map) = pool().await;
        let joint = begun_anew(&namespaces, &map, 2).await;
        let before = namespaces[0].0.bytes.borrow().clone();
        // Nobody but those two is left who knows it.
        namespaces[1].0.down.set(true);
        let refused = repair(&namespaces, &map).await.unwrap_err().to_string();
        assert!(refused.contains("no majority"), "{refused}");
        namespaces[1].0.down.set(false);
        let found = crate::inspect(&namespaces[0], "m").await.unwrap();
        assert_eq!(found.map, joint, "it is as it was");
        assert_eq!(before[8192..65536], namespaces[0].0.bytes.borrow()[8192..65536]);
    });
}

/// It has gone on by an operator's word, and the voters left behind have made epochs since: its own alone did not tell, and what
/// it holds was destroyed.
#[test]
fn a_member_that_has_gone_on_without_the_voters_is_not_begun_anew_by_them() {
    run(async {
        let (namespaces, map) = pool().await;
        let lost: Vec<MemberId> = map.members[1..].iter().map(|member| member.id).collect();
        let word = crate::Word::lost(&lost, crate::HalfLeft::NeedNotBe);
        let seized = Proposer::new(&namespaces[..1]).seize(&map, word).await.unwrap();
        let mut behind = Map { epoch: seized.epoch - SEIZED_EPOCHS / 2 + 1, ..noted(&map) };
        behind.members[0].lost = true;
        let before = namespaces[0].0.bytes.borrow().clone();
        let refused = renew(&namespaces[0], "m", async |_: Option<&Map>| Ok(behind.clone())).await;
        assert!(matches!(&refused, Err(Error::InUse { found, .. }) if found.contains("gone on")), "{refused:?}");
        // Its epoch tells as well, unless they have made a great many.
        let body = seized.encode().unwrap();
        let bodies = namespaces[0].0.bytes.borrow().windows(body.len()).filter(|found| *found == &body[..]).count();
        assert_eq!(bodies, 1, "the map to damage");
        let at = before.windows(body.len()).position(|found| found == &body[..]).expect("its place");
        namespaces[0].0.bytes.borrow_mut()[at] ^= 1;
        behind.epoch = map.epoch + 5;
        let refused = renew(&namespaces[0], "m", async |_: Option<&Map>| Ok(behind.clone())).await;
        assert!(matches!(&refused, Err(Error::InUse { found, .. }) if found.contains("gone on")), "{refused:?}");
        namespaces[0].0.bytes.borrow_mut()[at] ^= 1;
        assert!(*namespaces[0].0.bytes.borrow() == before, "it is as it was");
    });
}

/// Nothing is formatted for a change that can't be.
#[test]
fn a_member_whose_keys_too_few_others_hold_is_left_as_it_is() {
    run(async {
        let namespaces = vec![Plain::new(1, 2 << 20, 4096)];
        let map = plain_pool(&namespaces, 1).await;
        namespaces[0].0.bytes.borrow_mut().fill(0);
        let refused = renew_under(&namespaces[0], &map).await;
        assert!(matches!(refused, Err(Error::Plan { source: crate::PlanError::TooFewReplicas(1), .. })), "{refused:?}");
        assert!(namespaces[0].0.bytes.borrow().iter().all(|byte| *byte == 0));
    });
}

/// It was given up as lost, and is back in the life that it had: it has no vote, and is handed each map that is agreed on.
#[test]
fn a_member_that_was_given_up_and_is_back_begins_anew() {
    run(async {
        let (namespaces, map) = pool().await;
        let proposer = Proposer::new(&namespaces);
        let given_up = |map: &Map| {
            let mut next = noted(map);
            next.members[0].lost = true;
            Ok(next)
        };
        let given_up = proposer.agree(&map, given_up).await.unwrap();
        let fresh = repair(&namespaces, &map).await.unwrap().expect("it has no vote");
        is_whole_after(&namespaces, &given_up, Some(fresh)).await;
    });
}

/// Another repair has its map agreed on while this one looks at the member, which has its vote from then on.
#[test]
fn a_member_that_another_repair_has_begun_anew_is_left_to_that() {
    run(async {
        let (namespaces, map) = pool().await;
        namespaces[0].0.bytes.borrow_mut().fill(0);
        let fresh = renew_under(&namespaces[0], &map).await.unwrap();
        let (proposer, request) = (Proposer::new(&namespaces), Request::Renew(Box::new(fresh)));
        let settle = async |met: Option<&Map>| {
            let settled = proposer.settle(&map, met).await.unwrap();
            let begun = proposer.agree(&settled, |map| Ok(map.begin(&request, 5)?)).await.unwrap();
            assert_eq!(begun.state, State::Joint);
            Ok(settled)
        };
        assert_eq!(renew(&namespaces[0], "m", settle).await.unwrap(), None);
        is_whole_after(&namespaces, &map, None).await;
    });
}
