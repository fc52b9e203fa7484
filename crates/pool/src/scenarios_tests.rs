use engine::sim::{SimConfig, World};

use super::*;
use crate::geometry::{MAP_OFFSETS, SUPERBLOCK_OFFSETS, TABLE_OFFSET};
use crate::{
    AgreeError, CreateOptions, Domain, Error, Level, Map, NewMember, Presence, Proposer, Superblock, SuperblockError,
    inspect, open,
};

const SIZE: usize = 4 << 20;

async fn create(members: &[NewMember<Plain>], options: &CreateOptions) -> Result<Map, Error> {
    crate::create(members, options, |_| ()).await
}

fn members(namespaces: &[Plain]) -> Vec<NewMember<Plain>> {
    let member = |(index, namespace): (usize, &Plain)| {
        NewMember::at(
            namespace.clone(),
            format!("nqn.2026-01.example:{index}"),
            1,
            vec![format!("127.0.0.1:{}", 4420 + index)],
        )
    };
    namespaces.iter().enumerate().map(member).collect()
}

fn plain(count: u8) -> Vec<Plain> {
    (1..=count).map(|id| Plain::new(id, SIZE, 4096)).collect()
}

fn labelled(namespaces: &[Plain]) -> Vec<(String, Plain)> {
    namespaces.iter().map(|namespace| (format!("m{}", namespace.info().nguid[0]), namespace.clone())).collect()
}

fn made(count: u8) -> (Vec<Plain>, Map) {
    let namespaces = plain(count);
    let options = CreateOptions { replicas: count.min(3), ..CreateOptions::default() };
    let map = ready(create(&members(&namespaces), &options)).unwrap();
    (namespaces, map)
}

/// Damages copy A, B or both.
fn damage(namespace: &Plain, copies: &[usize]) {
    copies.iter().for_each(|&copy| namespace.0.bytes.borrow_mut()[SUPERBLOCK_OFFSETS[copy] as usize + 130] ^= 1);
}

fn put_superblock(namespace: &Plain, change: impl Fn(&mut Superblock)) {
    let mut superblock = ready(inspect(namespace, "it")).unwrap().superblock;
    change(&mut superblock);
    for offset in SUPERBLOCK_OFFSETS {
        namespace.0.bytes.borrow_mut()[offset as usize..][..4096].copy_from_slice(&superblock.encode());
    }
}

#[test]
fn created_is_opened_again_with_every_block_size() {
    for block_size in [512, 4096, 65_536] {
        let namespaces: Vec<_> = (1..=3).map(|id| Plain::new(id, 16 << 20, block_size)).collect();
        namespaces.iter().for_each(|namespace| namespace.0.bytes.borrow_mut()[TABLE_OFFSET as usize..].fill(9));
        let options = CreateOptions { page_size: 4096.max(block_size), ..CreateOptions::default() };
        let map = ready(create(&members(&namespaces), &options)).unwrap();
        let opened = ready(open(&labelled(&namespaces), None)).unwrap();
        assert_eq!(opened.map, map);
        assert_eq!(opened.members, [0, 1, 2].map(Presence::Present));
        let used = map.geometry(0).bytes() as usize;
        let is_new = |page: &[u8]| page.iter().any(|&byte| byte != 9);
        let emptied = |plain: &Plain| plain.0.bytes.borrow()[TABLE_OFFSET as usize..used].chunks(4096).all(is_new);
        assert!(namespaces.iter().all(emptied));
    }
}

#[test]
fn spread_is_the_widest_possible_and_too_few_domains_are_refused() {
    let namespaces = plain(4);
    let mut new = members(&namespaces);
    for (index, member) in new.iter_mut().enumerate() {
        member.domain = Domain { rack: format!("r{}", index % 2), ..Domain::default() };
    }
    let options = CreateOptions { replicas: 2, ..CreateOptions::default() };
    assert_eq!(ready(create(&new, &options)).unwrap().spread, Level::Rack);
    let options = CreateOptions { replicas: 3, force: true, ..CreateOptions::default() };
    assert_eq!(ready(create(&new, &options)).unwrap().spread, Level::Machine);
    let options = CreateOptions { replicas: 3, force: true, spread: Some(Level::Rack), ..CreateOptions::default() };
    let refused = ready(create(&new, &options));
    assert!(matches!(refused, Err(Error::TooFewDomains { level: Level::Rack, domains: 2, replicas: 3 })));
    let options = CreateOptions { replicas: 5, force: true, ..CreateOptions::default() };
    assert!(matches!(ready(create(&new, &options)), Err(Error::TooFewDomains { .. })));
}

#[test]
fn a_member_in_use_is_refused_unless_forced() {
    let (namespaces, map) = made(3);
    let refused = ready(create(&members(&namespaces), &CreateOptions::default()));
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    assert_eq!(ready(open(&labelled(&namespaces), None)).unwrap().map, map, "a refusal changes nothing");
    let force = CreateOptions { force: true, ..CreateOptions::default() };
    let again = ready(create(&members(&namespaces), &force)).unwrap();
    assert_ne!(again.pool, map.pool);

    let foreign = plain(1);
    foreign[0].0.bytes.borrow_mut()[1080] = 0x53;
    let refused = ready(create(&members(&foreign), &CreateOptions { replicas: 1, ..Default::default() }));
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
}

#[test]
fn unfit_namespaces_are_refused_before_anything_is_written() {
    let cases: [fn(&mut NamespaceInfo); 5] = [
        |info| info.compare_and_write_blocks_max = 0,
        |info| info.block_size = 8192,
        |info| info.blocks = 300,
        |info| info.nguid = [0; 16],
        |info| info.atomic_blocks = 0,
    ];
    for change in cases {
        let namespaces = plain(3);
        change(&mut namespaces[2].0.info.borrow_mut());
        let refused = ready(create(&members(&namespaces), &CreateOptions::default()));
        assert!(matches!(refused, Err(Error::Unfit { .. })), "{refused:?}");
        assert!(namespaces.iter().all(|namespace| namespace.0.writes.get() == 0));
    }
    let mut namespaces = plain(3);
    namespaces[2] = namespaces[0].clone();
    let refused = ready(create(&members(&namespaces), &CreateOptions::default()));
    assert!(matches!(refused, Err(Error::Duplicate { .. })));
    let odd = CreateOptions { page_size: 5000, ..CreateOptions::default() };
    assert!(matches!(ready(create(&members(&plain(3)), &odd)), Err(Error::Option { .. })));
}

#[test]
fn second_copy_is_used_when_the_first_is_damaged() {
    for (copy, other) in [(0, 1), (1, 0)] {
        let (namespaces, map) = made(3);
        namespaces.iter().for_each(|namespace| damage(namespace, &[copy]));
        let opened = ready(open(&labelled(&namespaces), None)).unwrap();
        assert_eq!(opened.map, map);
        assert_eq!(opened.members, [0, 1, 2].map(Presence::Present));
        let report = ready(inspect(&namespaces[0], "m")).unwrap();
        assert!(matches!(report.copies[copy], Some(SuperblockError::Damaged(_))));
        assert!(report.copies[other].is_none());
    }
}

#[test]
fn members_of_different_block_sizes_go_together_and_others_join_only_if_they_fit() {
    let namespaces = [(1, 512), (2, 4096), (3, 512)].map(|(id, block_size)| Plain::new(id, SIZE, block_size));
    let map = ready(create(&members(&namespaces), &CreateOptions::default())).unwrap();
    assert_eq!(ready(open(&labelled(&namespaces), None)).unwrap().members, [0, 1, 2].map(Presence::Present));
    let candidate = |namespace: &Plain| ready(crate::candidate(&new_member(namespace), &map, None, false));
    let joining = candidate(&Plain::new(4, SIZE, 512)).unwrap();
    assert_eq!((joining.weight, joining.table_pages), (100, map.members[0].table_pages));
    for unfit in [Plain::new(4, SIZE, 8192), Plain::new(4, 1 << 20, 4096)] {
        assert!(matches!(candidate(&unfit), Err(Error::Unfit { .. })));
    }
    for force in [false, true] {
        let refused = ready(crate::candidate(&new_member(&namespaces[1]), &map, None, force)).unwrap_err();
        assert!(matches!(refused, Error::IsMember { index: 1, .. }), "{refused}");
    }
    let stranger = Plain::new(5, SIZE, 4096);
    ready(create(&members(std::slice::from_ref(&stranger)), &CreateOptions { replicas: 1, ..Default::default() }))
        .unwrap();
    assert!(matches!(candidate(&stranger), Err(Error::InUse { found, .. }) if found.contains("a member of pool")));
}

#[test]
fn the_newer_of_two_good_copies_wins() {
    let (namespaces, _) = made(1);
    let mut superblock = ready(inspect(&namespaces[0], "m")).unwrap().superblock;
    superblock.generation += 1;
    let at = SUPERBLOCK_OFFSETS[1] as usize;
    namespaces[0].0.bytes.borrow_mut()[at..at + 4096].copy_from_slice(&superblock.encode());
    assert_eq!(ready(inspect(&namespaces[0], "m")).unwrap().superblock, superblock);
}

#[test]
fn damaged_foreign_and_blank_members_are_named_and_a_majority_suffices() {
    let ruin: [fn(&Plain); 4] = [
        |plain| damage(plain, &[0, 1]),
        |plain| plain.0.bytes.borrow_mut().fill(0),
        |plain| plain.0.bytes.borrow_mut().fill(7),
        |plain| plain.0.bytes.borrow_mut()[MAP_OFFSETS[0] as usize + 30] ^= 1,
    ];
    let words = ["damaged", "no superblock", "foreign", "map is damaged"];
    for (ruin, word) in ruin.into_iter().zip(words) {
        let (namespaces, map) = made(3);
        ruin(&namespaces[1]);
        let opened = ready(open(&labelled(&namespaces), None)).unwrap();
        assert_eq!(opened.map, map);
        let is_refused = |presence: &Presence| match presence {
            Presence::Refused(_, reason) => reason.contains(word),
            _ => false,
        };
        // A blank member is recognised as the map's by its id, and has no vote.
        assert!(is_refused(&opened.members[1]), "{word}: {:?}", opened.members[1]);
        ruin(&namespaces[2]);
        let refused = ready(open(&labelled(&namespaces), None));
        let Err(Error::NoQuorum { agreeing: 1, needed: 2, reasons, .. }) = refused else { panic!("{refused:?}") };
        assert!(reasons.contains("m2") && reasons.contains(word), "{reasons}");
        ruin(&namespaces[0]);
        assert!(matches!(ready(open(&labelled(&namespaces), None)), Err(Error::NoMembers { .. })));
    }
}

#[test]
fn another_pools_member_is_refused_by_name() {
    let (mut namespaces, map) = made(3);
    let stranger = Plain::new(9, SIZE, 4096);
    let options = CreateOptions { replicas: 1, ..CreateOptions::default() };
    let other = ready(create(&members(std::slice::from_ref(&stranger)), &options)).unwrap();
    namespaces.push(stranger.clone());
    let refused = ready(open(&labelled(&namespaces), None));
    assert!(matches!(&refused, Err(Error::OtherPool { member, found, expected })
        if member == "m9" && *found == other.pool && *expected == map.pool));
    let refused = ready(open(&labelled(&[stranger]), Some(map.pool)));
    assert!(matches!(refused, Err(Error::OtherPool { .. })));
}

#[test]
fn a_newer_versions_superblock_is_refused_by_name() {
    let (namespaces, _) = made(1);
    let mut bytes = ready(inspect(&namespaces[0], "m")).unwrap().superblock.encode();
    bytes[8] = crate::superblock::FORMAT as u8 + 1;
    bytes[16..24].fill(0);
    let sum = crate::superblock::crc64(&bytes);
    bytes[16..24].copy_from_slice(&sum.to_le_bytes());
    namespaces[0].0.bytes.borrow_mut()[..4096].copy_from_slice(&bytes);
    let refused = ready(inspect(&namespaces[0], "m"));
    assert!(matches!(refused, Err(Error::Superblock { source: SuperblockError::Newer { .. }, .. })));
    let refused = ready(create(&members(&namespaces), &CreateOptions { replicas: 1, ..Default::default() }));
    assert!(matches!(refused, Err(Error::InUse { .. })));
}

#[test]
fn a_member_formatted_again_has_no_vote() {
    let (namespaces, map) = made(3);
    put_superblock(&namespaces[0], |superblock| superblock.incarnation ^= 1);
    let opened = ready(open(&labelled(&namespaces), None)).unwrap();
    assert!(matches!(&opened.members[0], Presence::Refused(0, reason) if reason.contains("formatted again")));
    assert!(ready(crate::check_member(&namespaces[0], &map, 0)).is_err());
    assert!(ready(crate::check_member(&namespaces[1], &map, 1)).is_ok());
}

#[test]
fn a_member_that_was_rolled_back_has_no_vote_until_it_begins_anew() {
    World::new(1, SimConfig::default())
        .run_until(async {
            let (namespaces, map) = made(3);
            let before = namespaces[0].0.bytes.borrow().clone();
            let proposer = Proposer::new(&namespaces);
            let called = proposer.roll_call(&map).await.unwrap();
            assert!(called.members.iter().all(|member| member.mark > 1), "{called:?}");
            assert!(crate::check_member(&namespaces[0], &called, 0).await.is_ok());
            *namespaces[0].0.bytes.borrow_mut() = before;
            let opened = open(&labelled(&namespaces), None).await.unwrap();
            assert_eq!(opened.map, called);
            assert!(
                matches!(&opened.members[0], Presence::Refused(0, reason) if reason.contains("yagura pool replace"))
            );
            // It promises and accepts nothing: with it there is no majority.
            namespaces[1].0.down.set(true);
            let refused = proposer.roll_call(&called).await.unwrap_err();
            assert!(matches!(&refused, AgreeError::Unavailable { reasons, .. } if reasons.contains("rolled back")));
            namespaces[1].0.down.set(false);
            let renewed = crate::testing::renew_under(&namespaces[0], &called).await.unwrap();
            assert!(crate::check_member(&namespaces[0], &called, 0).await.is_err(), "no map names its life yet");
            let request = crate::Request::Renew(Box::new(renewed));
            let begun = proposer.agree(&called, |map| Ok(map.begin(&request, 7)?)).await.unwrap();
            assert!(crate::check_member(&namespaces[0], &begun, 0).await.is_ok());
            let again = crate::renew(&namespaces[0], "m", async |_| Ok(begun.clone())).await.unwrap();
            assert_eq!(again, None, "it has a vote");
        })
        .unwrap();
}

#[test]
fn an_epoch_that_only_a_minority_carries_is_not_opened() {
    let (namespaces, _) = made(3);
    let mut report = ready(inspect(&namespaces[0], "m")).unwrap();
    report.map.epoch = 2;
    let body = report.map.encode().unwrap();
    let at = MAP_OFFSETS[1] as usize;
    let leaf = crate::slot::leaves(&body, crate::Ballot::default(), 4096).next().unwrap();
    namespaces[0].0.bytes.borrow_mut()[at..at + leaf.len()].copy_from_slice(&leaf);
    put_superblock(&namespaces[0], |superblock| {
        superblock.epoch = 2;
        superblock.accepted.round = 2;
        superblock.map_offset = MAP_OFFSETS[1];
        superblock.map_length = body.len() as u32;
        superblock.map_checksum = crate::superblock::crc64(&body);
    });
    let opened = ready(open(&labelled(&namespaces), None)).unwrap();
    assert_eq!((opened.map.epoch, opened.unsettled), (1, Some(report.map)));
    // Without the third there is no quorum for either.
    let refused = ready(open(&labelled(&namespaces[..2]), None));
    assert!(matches!(refused, Err(Error::NoQuorum { agreeing: 1, needed: 2, epoch: 2, .. })), "{refused:?}");
}

/// Between the two ballots of the one map another may have been built on what was there before, and be in force by now.
#[test]
fn equal_maps_of_several_ballots_are_not_in_force() {
    let (namespaces, _) = made(3);
    let first = ready(inspect(&namespaces[0], "m")).unwrap().map;
    let carry = |index: usize, epoch: u64, round: u64| {
        let mut map = first.clone();
        map.epoch = epoch;
        let body = map.encode().unwrap();
        let at = MAP_OFFSETS[1] as usize;
        let leaf = crate::slot::leaves(&body, crate::Ballot::default(), 4096).next().unwrap();
        namespaces[index].0.bytes.borrow_mut()[at..at + leaf.len()].copy_from_slice(&leaf);
        put_superblock(&namespaces[index], |superblock| {
            (superblock.epoch, superblock.accepted.round) = (epoch, round);
            superblock.map_offset = MAP_OFFSETS[1];
            superblock.map_length = body.len() as u32;
            superblock.map_checksum = crate::superblock::crc64(&body);
        });
    };
    (0..3).for_each(|index| carry(index, [2, 2, 3][index], [1, 3, 2][index]));
    let refused = ready(open(&labelled(&namespaces), None));
    assert!(matches!(refused, Err(Error::NoQuorum { agreeing: 1, needed: 2, epoch: 2, .. })), "{refused:?}");
    carry(0, 2, 3);
    assert_eq!(ready(open(&labelled(&namespaces), None)).unwrap().map.epoch, 2);
}

#[test]
fn members_that_are_down_are_absent_but_do_not_stop_a_majority() {
    let (namespaces, map) = made(5);
    assert_eq!(ready(open(&labelled(&namespaces[2..]), None)).unwrap().members[0], Presence::Absent);
    namespaces[0].0.down.set(true);
    let opened = ready(open(&labelled(&namespaces), None)).unwrap();
    assert_eq!(opened.map, map);
    assert!(matches!(&opened.members[0], Presence::Refused(0, reason) if reason.contains("not connected")));
}

/// Every write of `create` is a place to crash: what is left is the old pool with all it held, blank members, or the
/// new pool; never an old superblock over a table that is gone.
#[test]
fn crash_at_every_write_leaves_no_half_pool() {
    let mut left_whole = 0;
    for crash in 0..40 {
        let (namespaces, old) = made(3);
        let marker = TABLE_OFFSET as usize + 77;
        namespaces.iter().for_each(|namespace| namespace.0.bytes.borrow_mut()[marker] = 1);
        namespaces.iter().for_each(|namespace| namespace.0.writes_max.set(namespace.0.writes.get() + crash));
        let force = CreateOptions { force: true, ..CreateOptions::default() };
        let done = ready(create(&members(&namespaces), &force));
        match ready(open(&labelled(&namespaces), None)) {
            Ok(opened) if opened.map.pool == old.pool => {
                assert!(done.is_err());
                assert!(namespaces.iter().all(|namespace| namespace.0.bytes.borrow()[marker] == 1));
            }
            Ok(_) => left_whole += 1,
            Err(error) => assert!(done.is_err(), "created, yet not opened: {error}"),
        }
    }
    assert!(left_whole > 0);
}

/// Two steps of the agreement between the read of the superblock and that of its map: `pool status` beside a change that went
/// quickly said that no member answered, as the map was damaged.
#[test]
fn a_map_that_is_written_while_it_is_read_is_read_again() {
    let test = async {
        let namespaces = [Plain::new(1, 4 << 20, 4096)];
        let map = plain_pool(&namespaces, 1).await;
        let before = namespaces[0].0.bytes.borrow().clone();
        let place = inspect(&namespaces[0], "m").await.unwrap().superblock.map_offset as usize;
        let mut newest = map;
        for _ in 0..2 {
            let later = newest.clock.ms + 1;
            let note = |map: &Map| Ok(map.note_clock(map.clock.ms, later, None));
            newest = Proposer::new(&namespaces).agree(&newest, note).await.unwrap();
        }
        let after = namespaces[0].0.bytes.replace(before);
        namespaces[0].0.overtaken.replace(Some((place, after)));
        let report = inspect(&namespaces[0], "m").await.unwrap();
        assert_eq!(report.map, newest);
        // One that is damaged stays so.
        namespaces[0].0.bytes.borrow_mut()[report.superblock.map_offset as usize + 100] ^= 1;
        assert!(matches!(inspect(&namespaces[0], "m").await, Err(Error::Map { .. })));
    };
    World::new(1, SimConfig::default()).run_until(test).expect("it ends");
}
