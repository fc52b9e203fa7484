//! Bodies of maps: read as written, and refused by name.

use super::*;
use crate::superblock::crc64;

/// A map of `members` equal members, each a machine of its own.
pub(crate) fn sample(members: usize, replicas: u8) -> Map {
    let member = |index: usize| Member {
        id: MemberId((index as u128 + 1).to_be_bytes()),
        nqn: format!("nqn.2026-01.example:node{index}"),
        nsid: 1,
        addresses: vec!["127.0.0.1:4420".into()],
        size: 1 << 30,
        block_size: 4096,
        weight: 100,
        voter: index < VOTERS_MAX,
        points: None,
        leaving: false,
        incarnation: u64::MAX - index as u64,
        mark: 1,
        table_pages: 1000,
        heap_groups: 10,
        domain: Domain { machine: format!("m{index}"), drive: format!("d{index}"), ..Domain::default() },
        old: None,
        lost: false,
        left_behind: false,
        written_off: false,
        renewed: false,
    };
    Map {
        format: MAP_FORMAT,
        pool: uuid::Uuid::from_u128(1),
        epoch: 1,
        revision: 0,
        state: State::Stable,
        replicas,
        spread: Level::Machine,
        page_size: 4096,
        hash_seed: u64::MAX,
        floor: 0,
        swept: 0,
        clock: Default::default(),
        seized: 0,
        unequal: false,
        change: None,
        members: (0..members).map(member).collect(),
    }
}

#[test]
fn round_trip_also_of_the_largest() {
    for members in [1, 3, MEMBERS_MAX] {
        let map = sample(members, 1);
        let bytes = map.encode().unwrap();
        assert_eq!(Map::decode(&bytes, crc64(&bytes)), Ok(map));
    }
}

#[test]
fn damage_is_noticed_before_it_is_parsed() {
    let mut bytes = sample(3, 3).encode().unwrap();
    let checksum = crc64(&bytes);
    bytes[10] ^= 1;
    assert!(matches!(Map::decode(&bytes, checksum), Err(MapError::Checksum { .. })));
}

#[test]
fn impossible_maps_are_refused() {
    let refused = |change: fn(&mut Map)| {
        let mut map = sample(3, 3);
        change(&mut map);
        let text = toml::to_string(&map).unwrap();
        assert!(matches!(map.encode(), Err(MapError::Invalid(_))));
        assert!(matches!(Map::decode(text.as_bytes(), crc64(text.as_bytes())), Err(MapError::Invalid(_))));
    };
    refused(|map| map.replicas = 0);
    refused(|map| map.replicas = 4);
    refused(|map| map.page_size = 5000);
    refused(|map| map.members[1].id = map.members[0].id);
    refused(|map| map.members[1].weight = 0);
    refused(|map| map.members[1].weight = WEIGHT_MAX + 1);
    refused(|map| map.members[1].leaving = true);
    refused(|map| map.members[1].points = Some(map.members[0].id));
    refused(|map| map.state = State::Joint);
    refused(|map| map.members[1].table_pages = 3);
    refused(|map| map.members[1].size = 4096);
    refused(|map| map.members[1].block_size = 1000);
    refused(|map| map.members[1].block_size = 8192);
    refused(|map| map.members[1].domain = map.members[0].domain.clone());
    refused(|map| map.members.clear());
    refused(|map| map.members.iter_mut().for_each(|member| member.voter = false));
}

#[test]
fn a_map_of_another_format_is_refused_by_name() {
    let mut map = sample(3, 3);
    map.format = MAP_FORMAT + 1;
    // What a newer version added is not looked at, nor called a mistake of the text.
    let text = format!("of_later = 7\n{}", toml::to_string(&map).unwrap());
    let refused = Map::decode(text.as_bytes(), crc64(text.as_bytes()));
    assert_eq!(refused, Err(MapError::Newer { found: MAP_FORMAT + 1 }));
    map.format = MAP_FORMAT - 1;
    let text = toml::to_string(&map).unwrap();
    let refused = Map::decode(text.as_bytes(), crc64(text.as_bytes()));
    assert_eq!(refused, Err(MapError::Older { found: MAP_FORMAT - 1 }));
    let old = text.replace("format = 3", "format = 0");
    assert!(matches!(Map::decode(old.as_bytes(), crc64(old.as_bytes())), Err(MapError::Invalid(_))));
}

#[test]
fn domains_are_told_apart_with_what_contains_them() {
    let mut map = sample(2, 1);
    map.members[0].domain = Domain { zone: "a".into(), rack: "1".into(), ..Domain::default() };
    map.members[1].domain = Domain { zone: "b".into(), rack: "1".into(), ..Domain::default() };
    assert_eq!(map.domains(Level::Rack), 2);
    map.members[1].domain.zone = "a".into();
    assert_eq!(map.domains(Level::Rack), 1);
}
