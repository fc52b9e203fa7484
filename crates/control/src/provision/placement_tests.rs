//! Placements on small pools, and against a search of all placements.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::provision::name::{Address, Nqn};
use crate::provision::records::Namespace;

const GIB: u64 = 1 << 30;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// A thin drive of 100 GiB that answers.
fn candidate(drive: &str, node: &str, rack: Option<&str>, zone: Option<&str>) -> Candidate {
    let look = Look { total: 100 * GIB, free: 100 * GIB, thin: true, namespaces_max: 100, namespaces: Vec::new() };
    let drive = Drive {
        name: name(drive),
        node: name(node),
        address: Address::new("127.0.0.1:1").expect("an address"),
        nqn: Nqn::new(format!("nqn.x:{drive}")).expect("an NQN"),
        state: DriveState::InUse,
        total: look.total,
        thin: true,
        foreign: Vec::new(),
        promised: 0,
        holders: 0,
    };
    let node = Node { name: name(node), rack: rack.map(name), zone: zone.map(name), drives: 1 };
    Candidate { drive, node, look: Ok(look) }
}

fn wanted(replicas: usize, gib: u64, level: Level) -> Wanted {
    let mut holders = vec![(HolderKind::Replica, gib * GIB); replicas];
    if replicas == 2 {
        holders.push((HolderKind::Witness, 4096));
    }
    let (beside, without) = (Vec::new(), Vec::new());
    Wanted { holders, beside, without, level, relax: false, overcommit_percent: 100 }
}

fn words(placement: &Placement) -> Vec<&str> {
    placement.drives.iter().map(Name::as_str).collect()
}

#[test]
fn the_emptiest_drives_of_different_nodes_are_taken() {
    let mut pool: Vec<_> = ["a", "b", "c", "d"].map(|node| candidate(&format!("{node}1"), node, None, None)).into();
    pool.push(candidate("d2", "d", None, None));
    pool[0].drive.promised = 50 * GIB;
    pool[3].drive.promised = GIB;
    let placement = place(&pool, &wanted(3, 10, Level::Node)).expect("there is room");
    assert_eq!(words(&placement), ["b1", "c1", "d2"]);
    // Of two that are equally free the one with fewer holders.
    pool[1].drive.holders = 5;
    pool[2].drive.holders = 4;
    pool[4].drive.holders = 6;
    assert_eq!(words(&place(&pool, &wanted(1, 10, Level::Node)).expect("there is room")), ["c1"]);
}

#[test]
fn a_witness_stands_on_a_third_node_with_little_room() {
    let mut pool: Vec<_> = ["a", "b", "c"].map(|node| candidate(node, node, None, None)).into();
    pool[0].drive.promised = 100 * GIB - 4096;
    assert_eq!(words(&place(&pool, &wanted(2, 10, Level::Node)).expect("there is room")), ["b", "c", "a"]);
    pool[0].drive.promised += 1;
    let refusal = place(&pool, &wanted(2, 10, Level::Node)).expect_err("no room for the witness");
    assert_eq!(refusal.placed, 2);
    assert_eq!(refusal.drives, [(name("a"), Rule::Promised { wanted: 4096, left: 4095, room: 100 * GIB })]);
}

#[test]
fn a_refusal_says_what_each_drive_lacks() {
    let rack = Some("r");
    let mut pool: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|node| candidate(node, node, rack, None)).into();
    pool[0].drive.state = DriveState::Draining;
    pool[1].drive.state = DriveState::Out;
    pool[2].look = Err("it can't be reached (refused)".into());
    pool[3].drive.promised = 95 * GIB;
    pool[4].drive.thin = false;
    pool[4].look = pool[4].look.clone().map(|look| Look { free: GIB, ..look });
    pool.push(candidate("g", "g", None, None));
    pool.push(candidate("h", "h", rack, None));
    pool.push(candidate("i", "i", rack, None));
    pool[8].look = pool[8].look.clone().map(|look| Look { free: 4 * GIB, ..look });
    pool.push(candidate("j", "j", rack, None));
    pool[9].drive.holders = 100;
    let refusal = place(&pool, &wanted(3, 10, Level::Rack)).expect_err("one rack is not three");
    let rules: Vec<_> = refusal.drives.iter().map(|(name, rule)| (name.as_str(), rule.word())).collect();
    let expected = [
        ("a", "draining"),
        ("b", "out"),
        ("c", "unreachable"),
        ("d", "promised"),
        ("e", "free"),
        ("g", "nowhere"),
        ("h", "together"),
        ("i", "low"),
        ("j", "namespaces"),
    ];
    assert_eq!(rules, expected);
    let said = refusal.to_string();
    for part in [
        "3 holders are wanted, each in a rack of its own, and there is room for 1 of them",
        "drive a: it is draining",
        "drive c: it can't be used now: it can't be reached (refused)",
        "drive d: 10737418240 bytes are wanted and 5368709120 of 107374182400 are not promised yet",
        "drive g: its node g names no rack",
        "drive h: it is in the same rack as drive f, which has another holder",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    assert!(place(&[], &wanted(1, 1, Level::Node)).expect_err("nothing").to_string().contains("no other drive"));
}

#[test]
fn a_level_is_relaxed_only_if_asked_and_no_further_than_needed() {
    let pool = [
        candidate("a1", "a", Some("r1"), Some("z")),
        candidate("a2", "a", Some("r1"), Some("z")),
        candidate("b1", "b", Some("r2"), Some("z")),
    ];
    let mut want = wanted(1, 1, Level::Zone);
    want.holders.push((HolderKind::Replica, GIB));
    assert_eq!(place(&pool, &want).expect_err("one zone").level, Level::Zone);
    want.relax = true;
    let placement = place(&pool, &want).expect("two racks");
    assert_eq!((placement.level, words(&placement)), (Level::Rack, vec!["a1", "b1"]));
    let want = Wanted { relax: true, ..wanted(3, 1, Level::Node) };
    assert_eq!(place(&pool, &want).expect("three drives").level, Level::Drive);
    // Never two on one drive.
    let refusal = place(&pool[..2], &want).expect_err("two drives are not three");
    assert_eq!(refusal.level, Level::Node, "what was asked for is what is refused");
}

#[test]
fn racks_of_one_name_in_two_zones_are_two() {
    let pool = [candidate("a", "a", Some("r"), Some("x")), candidate("b", "b", Some("r"), Some("y"))];
    let mut want = wanted(1, 1, Level::Rack);
    want.holders.push((HolderKind::Replica, GIB));
    assert!(place(&pool, &want).is_ok());
}

#[test]
fn overcommit_is_for_thin_drives_and_foreign_namespaces_take_room() {
    let mut drive = candidate("a", "a", None, None);
    let promise = |drive: &Candidate, gib, percent| {
        place(std::slice::from_ref(drive), &Wanted { overcommit_percent: percent, ..wanted(1, gib, Level::Node) })
            .is_ok()
    };
    assert!(promise(&drive, 100, 100) && !promise(&drive, 101, 100) && promise(&drive, 250, 250));
    drive.drive.foreign = vec![Namespace { nsid: 1, uid: Uuid::from_u128(1), bytes: 60 * GIB }];
    assert!(promise(&drive, 40, 100) && !promise(&drive, 41, 100) && promise(&drive, 80, 200));
    drive.drive.thin = false;
    assert!(promise(&drive, 40, 200) && !promise(&drive, 41, 200));
}

/// Whether there is any placement, by trying all.
fn exists(pool: &[Candidate], want: &Wanted, taken: &mut BTreeMap<Domain, Name>, slot: usize) -> bool {
    let Some((_, bytes)) = want.holders.get(slot) else { return true };
    pool.iter().any(|candidate| {
        let is_used = taken.values().any(|name| *name == candidate.drive.name);
        match check(candidate, *bytes, want.level, want, taken) {
            Ok(domain) if !is_used => {
                taken.insert(domain.clone(), candidate.drive.name.clone());
                let found = exists(pool, want, taken, slot + 1);
                taken.remove(&domain);
                found
            }
            _ => false,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_placement_is_found_wherever_there_is_one_and_keeps_the_rules(
        drives in prop::collection::vec((0..4u8, 0..3u8, 0..2u8, 0..110u64, 0..4u8), 0..7),
        replicas in 1..4usize, gib in 1..60u64, level in 0..4usize,
    ) {
        let level = [Level::Drive, Level::Node, Level::Rack, Level::Zone][level];
        let pool: Vec<_> = drives.iter().enumerate().map(|(index, &(node, rack, zone, promised, state))| {
            // A node's rack and zone follow from its name, as in a real pool.
            let (rack, zone) = ((node + rack) % 3, zone % 2);
            let node = format!("n{node}-{rack}-{zone}");
            let (rack, zone) = (format!("r{rack}"), format!("z{zone}"));
            let rack = (rack != "r2").then_some(rack.as_str());
            let mut made = candidate(&format!("d{index}"), &node, rack, Some(&zone));
            made.drive.promised = promised * GIB;
            if state == 0 { made.drive.state = DriveState::Draining; }
            made
        }).collect();
        let want = wanted(replicas, gib, level);
        match place(&pool, &want) {
            Err(_) => prop_assert!(!exists(&pool, &want, &mut BTreeMap::new(), 0)),
            Ok(placement) => {
                let mut taken = BTreeMap::new();
                prop_assert_eq!(placement.drives.len(), want.holders.len());
                for (name, (_, bytes)) in placement.drives.iter().zip(&want.holders) {
                    let found = pool.iter().find(|candidate| candidate.drive.name == *name).expect("one of the pool");
                    let domain = check(found, *bytes, level, &want, &taken).expect("every rule is kept");
                    prop_assert!(!taken.values().any(|taken| taken == name));
                    taken.insert(domain, name.clone());
                }
            }
        }
    }
}

#[test]
fn a_replacement_stands_apart_from_the_other_holders_and_may_stand_where_the_former_one_did() {
    let mut pool: Vec<_> = [("a1", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c"), ("c2", "c")]
        .map(|(drive, node)| candidate(drive, node, None, None))
        .into();
    // The holder on c1 is to go; the others are on a1 and b1.
    let one = Wanted {
        holders: vec![(HolderKind::Replica, 10 * GIB)],
        beside: vec![name("a1"), name("b1")],
        without: vec![name("c1")],
        ..wanted(1, 10, Level::Node)
    };
    assert_eq!(words(&place(&pool, &one).expect("there is room")), ["c2"]);
    pool.pop();
    let refusal = place(&pool, &one).expect_err("b2 is beside b1");
    let rules: Vec<_> = refusal.drives.iter().map(|(drive, rule)| (drive.as_str(), rule.word())).collect();
    assert_eq!(rules, [("b2", "together"), ("c1", "replaced")]);
    pool[3].drive.state = DriveState::Out;
    let refusal = place(&pool, &one).expect_err("it is out").to_string();
    assert!(refusal.contains("drive c1: it is out") && refusal.contains("same node as drive b1"), "{refusal}");
}
