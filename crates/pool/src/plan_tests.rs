//! What changes move, and what is refused.

use super::*;
use crate::balance::{Moved, imbalance, loads, moved};
use crate::map::tests::sample;
use crate::ring::Ring;

fn newcomer(number: u8, domain: &str) -> Member {
    let mut member = sample(1, 1).members.remove(0);
    member.id = MemberId([100 + number; 16]);
    member.domain = Domain { machine: domain.into(), drive: domain.into(), ..Domain::default() };
    member
}

/// What a request moves, and what it must.
fn cost(map: &Map, request: &Request) -> (Map, Moved) {
    let joint = map.begin(request, 7).unwrap();
    let placements = joint.placements();
    let moved = moved(&joint, placements.old.as_ref().unwrap(), &placements.new);
    (joint, moved)
}

/// `members` machines in racks of `rack`, replicas in different racks.
fn racks(members: usize, rack: usize) -> Map {
    let mut map = sample(members, 3);
    map.spread = Level::Rack;
    for (index, member) in map.members.iter_mut().enumerate() {
        member.domain.rack = format!("r{}", index / rack);
    }
    map
}

#[test]
fn a_change_moves_no_more_than_it_must() {
    for members in [3, 4, 5, 10, 30, 100, 300] {
        for map in [sample(members, 3), sample(members, 1)] {
            let one = map.members[members / 2].id;
            let mut requests = vec![
                Request::Add(vec![newcomer(1, "new")]),
                Request::Replace { old: one, new: Box::new(newcomer(1, "new")) },
            ];
            if members > 3 {
                requests.push(Request::Remove(vec![one]));
                requests.push(Request::Drain(vec![one]));
                requests.push(Request::SetWeight(vec![(one, 60)]));
                requests.push(Request::SetWeight(vec![(one, 170)]));
            }
            for request in requests {
                let (_, moved) = cost(&map, &request);
                assert!(moved.least > 0.0 && moved.share <= moved.least * 1.000_001, "{members} {request:?} {moved:?}");
            }
        }
    }
}

#[test]
fn a_change_among_racks_moves_at_most_a_tenth_more_than_it_must() {
    for (members, rack) in [(12, 3), (40, 8), (200, 20)] {
        let map = racks(members, rack);
        let mut same_rack = newcomer(1, "new");
        same_rack.domain.rack = "r1".into();
        let mut other_rack = newcomer(2, "other");
        other_rack.domain.rack = "r-new".into();
        let one = map.members[members / 2].id;
        let requests = [
            Request::Add(vec![same_rack.clone()]),
            Request::Add(vec![other_rack]),
            Request::Remove(vec![one]),
            Request::Replace {
                old: one,
                new: Box::new(Member { domain: map.members[members / 2].domain.clone(), ..same_rack }),
            },
            Request::SetWeight(vec![(one, 200)]),
        ];
        for request in requests {
            let (_, moved) = cost(&map, &request);
            assert!(moved.share <= moved.least * 1.1, "{members} {request:?} {moved:?}");
        }
    }
}

#[test]
fn a_replacement_takes_the_place_and_nothing_else_moves() {
    let map = sample(10, 3);
    let old = map.members[3].id;
    let (joint, moved) = cost(&map, &Request::Replace { old, new: Box::new(newcomer(1, "new")) });
    let placements = joint.placements();
    let held = loads(&joint, placements.old.as_ref().unwrap())[3];
    assert!((moved.share - held).abs() < 1e-9, "exactly what the old one held");
    assert!(joint.members[3].leaving && joint.members[3].old.is_some_and(|seat| seat.voter));
    assert!(joint.members[10].voter && joint.members[10].old.is_none());
    // And again: the points are handed on.
    let stable = joint.end_joint().end_unclean();
    assert_eq!((stable.state, stable.members.len(), stable.epoch), (State::Stable, 10, 3));
    let (again, _) = cost(&stable, &Request::Replace { old: MemberId([101; 16]), new: Box::new(newcomer(2, "x")) });
    assert_eq!(again.members.last().unwrap().points, Some(old));
    // The one that went may come back, beside the one that has its points.
    let back = Member { leaving: false, ..map.members[3].clone() };
    let (joint, _) = cost(&stable, &Request::Add(vec![back]));
    assert!(joint.encode().is_ok() && joint.members.last().unwrap().points.is_some());
}

fn at(id: u64, phase: Phase, cursor: u64, done: u16) -> Change {
    Change { phase, cursor, done, ..Change::new(ChangeKind::Drain, id) }
}

#[test]
fn states_follow_each_other_and_a_change_is_begun_once() {
    let map = sample(4, 3);
    let request = Request::Drain(vec![map.members[0].id]);
    let joint = map.begin(&request, 7).unwrap();
    assert_eq!((joint.state, joint.epoch, joint.begin(&request, 7)), (State::Joint, 2, Ok(joint.clone())));
    assert!(matches!(joint.begin(&request, 8), Err(PlanError::UnderWay { kind: ChangeKind::Drain, .. })));
    let noted = joint.note(joint.epoch, &at(7, Phase::Migrate, 5, 300), 1000, 1);
    assert_eq!((noted.revision, noted.change.as_ref().unwrap().done), (1, 300));
    assert_eq!(noted.note(noted.epoch, &at(7, Phase::Seal, 9, 900), 1, 2), noted, "progress never goes back");
    assert_eq!(noted.note(noted.epoch, &at(8, Phase::Migrate, 9, 900), 1, 2), noted, "nor is another change's noted");
    let unclean = noted.end_joint();
    assert_eq!((unclean.state, unclean.epoch, unclean.end_joint()), (State::Unclean, 3, unclean.clone()));
    assert!(unclean.encode().is_ok() && unclean.members[0].weight == 0);
    let stable = unclean.end_unclean();
    assert_eq!((stable.state, stable.epoch, stable.raise_epoch().epoch), (State::Stable, 3, 4));
    assert!(Ring::new(&stable).all_homes().all(|homes| !homes.contains(&0)), "a drained member holds nothing");
}

#[test]
fn a_floor_is_an_epoch_that_was_swept_and_holds_as_long_as_the_next() {
    let map = sample(4, 3);
    assert_eq!((map.raise_epoch().floor, map.note_swept(2)), (0, map.clone()), "another epoch was swept");
    let swept = map.note_swept(1);
    assert_eq!((swept.swept, swept.floor, swept.revision, swept.note_swept(1)), (1, 0, 1, swept.clone()));
    let raised = swept.raise_epoch();
    assert_eq!((raised.epoch, raised.floor, raised.encode().is_ok()), (2, 1, true));
    assert_eq!(raised.raise_epoch().floor, 1);
    // Members that come have not been seen to hold the newest.
    let joint = raised.note_swept(2).begin(&Request::Drain(vec![map.members[0].id]), 7).unwrap();
    assert_eq!((joint.floor, joint.swept, joint.note_swept(3).swept), (1, 0, 0));
    assert_eq!(joint.end_joint().end_unclean().raise_epoch().floor, 1);
    let wrong = Map { floor: 2, ..raised };
    assert!(wrong.encode().is_err());
}

#[test]
fn what_cannot_be_is_refused_with_the_way_out() {
    let map = sample(3, 3);
    let refused = |request: Request| map.begin(&request, 1).unwrap_err();
    assert!(matches!(refused(Request::Remove(vec![map.members[0].id])), PlanError::TooFewDomains { domains: 2, .. }));
    assert!(matches!(refused(Request::Drain(vec![MemberId([9; 16])])), PlanError::NoMember(_)));
    assert!(matches!(refused(Request::Add(vec![map.members[0].clone()])), PlanError::IsMember(_)));
    assert_eq!(refused(Request::SetWeight(vec![(map.members[0].id, 100)])), PlanError::Nothing);
    assert_eq!(refused(Request::SetWeight(vec![(map.members[0].id, 10_001)])), PlanError::Weight(10_001));
}

#[test]
fn voters_are_odd_in_number_spread_and_replaced_when_they_go() {
    let mut map = racks(12, 3);
    map.members.iter_mut().for_each(|member| member.voter = false);
    choose_voters(&mut map, Side::New);
    let per_rack = |map: &Map| {
        let mut racks = [0; 4];
        map.seats(Side::New).filter(|(_, seat)| seat.voter).for_each(|(index, _)| racks[index / 3] += 1);
        racks
    };
    assert_eq!(per_rack(&map).iter().sum::<i32>(), 7);
    assert!(per_rack(&map).iter().all(|&count| (1..=2).contains(&count)), "{:?}", per_rack(&map));
    let gone = map.members.iter().find(|member| member.voter).unwrap().id;
    let joint = map.begin(&Request::Remove(vec![gone]), 1).unwrap();
    assert_eq!(joint.seats(Side::New).filter(|(_, seat)| seat.voter).count(), 7);
    assert_eq!([1, 2, 3, 4, 5, 6, 7, 8, 1000].map(voters_wanted), [1, 1, 3, 3, 5, 5, 7, 7, 7]);
}

#[test]
fn loads_add_up_and_follow_weights() {
    let mut map = sample(20, 3);
    map.members[4].weight = 200;
    let ring = Ring::new(&map);
    let loads = loads(&map, &ring);
    assert!((loads.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    assert!((1.0..1.3).contains(&imbalance(&map, &ring, Side::New)));
    assert!(loads[4] > 1.5 / 21.0);
}
