//! What every kind of zoned namespace must do. The checks reset all zones first; they leave two of them failed where they can.
//!
//! tidy: proof: it runs in the tests of every kind, here and in other crates, and panics to say what it found.

use std::rc::Rc;

use engine::rng::SplitMix;
use engine::{Buf, task};

use super::{pattern, read};
use crate::{Durability, Error, Lba, Namespace, Zone, ZoneAction, ZoneError, ZoneState, ZonedInfo};

/// Lets the zone that begins at a block fail, so that it is in this state.
pub type Failing<'a> = Option<&'a dyn Fn(Lba, ZoneState)>;

const ACTIONS: [ZoneAction; 5] =
    [ZoneAction::Close, ZoneAction::Finish, ZoneAction::Open, ZoneAction::Reset, ZoneAction::Offline];

/// Every check, one after the other. The namespace must have at least 8 zones of at least 8 blocks.
pub async fn check_all<N: Namespace>(namespace: Rc<N>, seed: u64, failing: Failing<'_>) {
    let zoned = namespace.zoned().expect("a zoned namespace says what its zones are");
    all_are_told(&*namespace, &zoned).await;
    reset_all(&*namespace).await;
    writes_go_to_the_write_pointer(&*namespace).await;
    no_more_zones_are_open_or_active_than_may_be(&*namespace, &zoned).await;
    behaves_like_vectors(&*namespace, &zoned, seed, 300).await;
    appends_have_places_of_their_own(Rc::clone(&namespace), &zoned, 6, 20).await;
    every_action_in_every_state(&*namespace, failing).await;
}

async fn zone_at<N: Namespace>(namespace: &N, start: Lba) -> Zone {
    namespace.zones(start, 1).await.expect("zones are told")[0]
}

async fn all<N: Namespace>(namespace: &N) -> Vec<Zone> {
    namespace.zones(Lba(0), usize::MAX).await.expect("zones are told")
}

/// One action for all zones; after it none is active or full but what has failed.
pub async fn reset_all<N: Namespace>(namespace: &N) {
    assert_eq!(namespace.change_zone(None, ZoneAction::Reset).await, Ok(()), "all zones can be reset at once");
    let left = all(namespace).await.into_iter().find(|zone| ZoneAction::Reset.concerns(zone.state));
    assert_eq!(left, None, "a zone that a reset of all has left out");
}

async fn all_are_told<N: Namespace>(namespace: &N, zoned: &ZonedInfo) {
    let info = namespace.info();
    assert_eq!(info.compare_and_write_blocks_max, 0, "nothing is swapped in a zone");
    assert!(info.blocks.is_multiple_of(zoned.zone_blocks), "the last zone is as long as any");
    let zones = all(namespace).await;
    assert_eq!(zones.len() as u64, info.blocks / zoned.zone_blocks, "all zones are told of");
    for (number, zone) in zones.iter().enumerate() {
        assert_eq!(zone.start.0, number as u64 * zoned.zone_blocks, "zones are told in order, and leave no gap");
        assert!((1..=zoned.zone_blocks).contains(&zone.capacity), "a capacity of {}", zone.capacity);
    }
    let some = namespace.zones(Lba(zoned.zone_blocks * 2 + 1), 3).await.expect("zones are told");
    assert_eq!(some, zones[2..5], "from the zone that has the block on");
    let beyond = namespace.zones(Lba(info.blocks), 1).await;
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "zones beyond the end: {beyond:?}");
    let beyond = namespace.change_zone(Some(Lba(info.blocks)), ZoneAction::Reset).await;
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "a reset beyond the end: {beyond:?}");
    assert!(namespace.change_zone(Some(Lba(1)), ZoneAction::Reset).await.is_err(), "no zone begins there");
}

async fn writes_go_to_the_write_pointer<N: Namespace>(namespace: &N) {
    let block = namespace.info().block_size as usize;
    let zone = zone_at(namespace, Lba(0)).await;
    let write = async |at: u64, blocks: u64, stamp: u64| {
        let data = pattern(blocks as usize * block, stamp).freeze();
        namespace.write(Lba(at), data, Durability::Stable).await
    };
    assert_eq!(write(1, 1, 9).await, Err(Error::Zone(ZoneError::InvalidWrite)), "ahead of the write pointer");
    assert_eq!(write(0, 2, 1).await, Ok(()));
    for at in [0, 1, 3] {
        assert_eq!(write(at, 1, 9).await, Err(Error::Zone(ZoneError::InvalidWrite)), "at {at}");
    }
    assert_eq!(write(2, 1, 2).await, Ok(()));
    assert_eq!(namespace.write_zeroes(Lba(3), 1, Durability::Stable).await, Ok(()), "zeroes are written like the rest");
    let now = zone_at(namespace, Lba(0)).await;
    assert_eq!((now.write_pointer, now.state), (Lba(4), ZoneState::ImplicitlyOpen));
    let left = zone.capacity - 4;
    let over = namespace.write_zeroes(Lba(4), left + 1, Durability::Stable).await;
    assert_eq!(over, Err(Error::Zone(ZoneError::Boundary)), "beyond what can be written of a zone");
    let found = read(namespace, 0, 6).await;
    let expected = [pattern(2 * block, 1), pattern(block, 2), pattern(3 * block, 0)].map(|part| part.to_vec()).concat();
    assert!(*found == expected[..], "blocks from the write pointer on read as zeroes");
    assert_eq!(namespace.write_zeroes(Lba(4), left, Durability::Stable).await, Ok(()));
    assert_eq!(zone_at(namespace, Lba(0)).await.state, ZoneState::Full, "written to its end");
    assert_eq!(write(0, 1, 9).await, Err(Error::Zone(ZoneError::Full)));
    let across = read(namespace, namespace.zoned().map_or(0, |zoned| zoned.zone_blocks) - 1, 2).await;
    assert!(across.iter().all(|&byte| byte == 0), "a read across a zone's end");
    assert_eq!(namespace.change_zone(Some(Lba(0)), ZoneAction::Reset).await, Ok(()));
    let found = read(namespace, 0, 3).await;
    assert!(found.iter().all(|&byte| byte == 0), "a zone that was reset reads as zeroes");
    let swap =
        namespace.compare_and_write(Lba(0), pattern(block, 0).freeze(), pattern(block, 1).freeze(), Durability::Stable);
    assert!(matches!(swap.await, Err(Error::Unsupported(_))), "nothing is swapped in a zone");
}

async fn no_more_zones_are_open_or_active_than_may_be<N: Namespace>(namespace: &N, zoned: &ZonedInfo) {
    reset_all(namespace).await;
    let block = namespace.info().block_size as usize;
    let zones = all(namespace).await;
    let most = |limit: Option<u32>| limit.map_or(usize::MAX, |limit| limit as usize);
    let (open_max, active_max) = (most(zoned.open_max), most(zoned.active_max));
    // Opened by name: none of them is closed to make room.
    for (number, zone) in zones.iter().enumerate() {
        let opened = namespace.change_zone(Some(zone.start), ZoneAction::Open).await;
        let expected = match number {
            number if number >= active_max && active_max <= open_max => Err(Error::Zone(ZoneError::TooManyActive)),
            number if number >= open_max => Err(Error::Zone(ZoneError::TooManyOpen)),
            _ => Ok(()),
        };
        assert_eq!(opened, expected, "zone {number} is opened by name");
        let written = namespace.write(zone.start, pattern(block, 3).freeze(), Durability::Stable).await;
        assert_eq!(written, expected, "zone {number} is written");
    }
    reset_all(namespace).await;
    // Opened by writes: as many as may be active are written.
    for (number, zone) in zones.iter().enumerate() {
        let written = namespace.write(zone.start, pattern(block, 3).freeze(), Durability::Stable).await;
        let expected = if number >= active_max { Err(Error::Zone(ZoneError::TooManyActive)) } else { Ok(()) };
        assert_eq!(written, expected, "zone {number} is written");
        let now = all(namespace).await;
        assert!(now.iter().filter(|zone| zone.state.is_open()).count() <= open_max, "more zones are open than may be");
    }
    // A zone that is finished makes room.
    if active_max < zones.len() {
        assert_eq!(namespace.change_zone(Some(zones[0].start), ZoneAction::Finish).await, Ok(()));
        let next = zones[active_max].start;
        assert_eq!(namespace.write(next, pattern(block, 4).freeze(), Durability::Stable).await, Ok(()));
    }
    all_that_are_closed_are_opened_or_none(namespace, zoned).await;
    reset_all(namespace).await;
}

/// ZNS 1.1 §3.4.3.1.3: where not all can be open no zone changes its state.
async fn all_that_are_closed_are_opened_or_none<N: Namespace>(namespace: &N, zoned: &ZonedInfo) {
    let limit = |limit: Option<u32>| limit.map_or(usize::MAX, |limit| limit as usize);
    reset_all(namespace).await;
    let zones = all(namespace).await;
    let count = zones.len().min(limit(zoned.active_max));
    let block = namespace.info().block_size as usize;
    for zone in &zones[..count] {
        assert_eq!(namespace.write(zone.start, pattern(block, 5).freeze(), Durability::Stable).await, Ok(()));
        assert_eq!(namespace.change_zone(Some(zone.start), ZoneAction::Close).await, Ok(()));
    }
    let before = all(namespace).await;
    let opened = namespace.change_zone(None, ZoneAction::Open).await;
    let now = all(namespace).await;
    if count > limit(zoned.open_max) {
        assert_eq!((opened, now), (Err(Error::Zone(ZoneError::TooManyOpen)), before), "more than may be open");
        return;
    }
    assert_eq!(opened, Ok(()), "all can be open");
    assert_eq!(now.iter().filter(|zone| zone.state == ZoneState::ExplicitlyOpen).count(), count);
}

/// Random commands against the plainest model there is: a vector of bytes for each zone.
pub async fn behaves_like_vectors<N: Namespace>(namespace: &N, zoned: &ZonedInfo, seed: u64, steps: u32) {
    reset_all(namespace).await;
    let info = namespace.info();
    let block = info.block_size as usize;
    let zones = all(namespace).await;
    let mut models: Vec<Vec<u8>> = vec![Vec::new(); zones.len()];
    let mut rng = SplitMix(seed);
    for _ in 0..steps {
        let number = rng.below(zones.len() as u64) as usize;
        let (zone, model) = (zones[number], &mut models[number]);
        let room = zone.capacity - (model.len() / block) as u64;
        let most = room.min(u64::from(zoned.append_blocks_max)).min(u64::from(info.transfer_blocks_max));
        let data = pattern((1 + rng.below(most.max(1))) as usize * block, rng.draw()).freeze();
        // Behind the last block of a zone that has room for all its blocks the next zone begins.
        let pointer = Lba(zone.start.0 + if room == 0 { 0 } else { (model.len() / block) as u64 });
        let done = match rng.below(8) {
            0..=2 => namespace.write(pointer, data.clone(), Durability::Stable).await,
            3..=5 => {
                let appended = namespace.append(zone.start, data.clone(), Durability::Stable).await;
                appended.map(|lba| assert_eq!(lba, pointer, "an append alone goes to the write pointer"))
            }
            6 => {
                assert_eq!(namespace.change_zone(Some(zone.start), ZoneAction::Reset).await, Ok(()));
                model.clear();
                continue;
            }
            _ => {
                let from = rng.below(zone.capacity);
                let length = 1 + rng.below((zone.capacity - from).min(u64::from(info.transfer_blocks_max)));
                let found = read(namespace, zone.start.0 + from, length).await;
                let whole = [&model[..], &vec![0; zone.capacity as usize * block - model.len()]].concat();
                let expected = &whole[from as usize * block..(from + length) as usize * block];
                assert!(*found == *expected, "zone {number}, blocks {from}+{length} differ from the model");
                continue;
            }
        };
        match done {
            Ok(()) => model.extend_from_slice(&data),
            Err(Error::Zone(ZoneError::Full)) => assert_eq!(room, 0, "a zone that has room is full"),
            Err(Error::Zone(ZoneError::TooManyActive)) => {
                let active = all(namespace).await.iter().filter(|zone| zone.state.is_active()).count();
                assert_eq!(Some(active), zoned.active_max.map(|most| most as usize), "fewer are active than may be");
            }
            other => panic!("a write at the write pointer of zone {number}: {other:?}"),
        }
    }
    reset_all(namespace).await;
}

/// Tasks append to one zone at a time: each piece has a place of its own, and between the places there are no gaps.
pub async fn appends_have_places_of_their_own<N: Namespace>(
    namespace: Rc<N>,
    zoned: &ZonedInfo,
    tasks: u64,
    rounds: u64,
) {
    reset_all(&*namespace).await;
    let block = namespace.info().block_size as usize;
    let zone = zone_at(&*namespace, Lba(zoned.zone_blocks)).await;
    let mut running = Vec::new();
    for number in 0..tasks {
        let namespace = Rc::clone(&namespace);
        running.push(task::spawn(async move {
            let mut placed = Vec::new();
            for round in 0..rounds {
                let stamp = number * rounds + round + 1;
                match namespace.append(zone.start, pattern(block, stamp).freeze(), Durability::Cached).await {
                    Ok(lba) => placed.push((lba, stamp)),
                    Err(Error::Zone(ZoneError::Full | ZoneError::Boundary)) => break,
                    Err(error) => panic!("an append: {error}"),
                }
            }
            placed
        }));
    }
    let mut placed = Vec::new();
    for task in running {
        placed.extend(task.await);
    }
    placed.sort();
    let count = (tasks * rounds).min(zone.capacity);
    assert_eq!(placed.len() as u64, count, "as many appends succeed as the zone has room for");
    for (number, (lba, stamp)) in placed.iter().enumerate() {
        assert_eq!(lba.0, zone.start.0 + number as u64, "places follow one another, and none is given twice");
        let found = read(&*namespace, lba.0, 1).await;
        assert!(*found == *pattern(block, *stamp), "block {lba} holds what was appended there");
    }
    reset_all(&*namespace).await;
}

/// What an action makes of a zone in a state, by ZNS 1.1 (§2.1.1.3, §3.4.3.1); `None`: Invalid Zone State Transition.
fn after(state: ZoneState, action: ZoneAction) -> Option<ZoneState> {
    use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen, Offline, ReadOnly};
    match (action, state) {
        (ZoneAction::Open, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed) => Some(ExplicitlyOpen),
        (ZoneAction::Close, ImplicitlyOpen | ExplicitlyOpen | Closed) => Some(Closed),
        (ZoneAction::Finish, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed | Full) => Some(Full),
        (ZoneAction::Reset, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed | Full) => Some(Empty),
        (ZoneAction::Offline, ReadOnly | Offline) => Some(Offline),
        _ => None,
    }
}

/// Each action on a zone in each state, and the writes that this state takes.
async fn every_action_in_every_state<N: Namespace>(namespace: &N, failing: Failing<'_>) {
    use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen, Offline, ReadOnly};
    let zones = all(namespace).await;
    for state in [Empty, ImplicitlyOpen, ExplicitlyOpen, Closed, Full] {
        for action in ACTIONS {
            for written in [false, true] {
                if written == (state == Empty) || !written && state == ImplicitlyOpen {
                    continue;
                }
                bring(namespace, zones[1].start, state, written).await;
                act(namespace, zones[1].start, state, action).await;
            }
        }
        bring(namespace, zones[1].start, state, state != Empty).await;
        takes_writes(namespace, zones[1].start, state).await;
    }
    reset_all(namespace).await;
    let Some(fail) = failing else { return };
    for (number, state) in [(3, ReadOnly), (4, Offline)] {
        for action in ACTIONS {
            fail(zones[number].start, state);
            act(namespace, zones[number].start, state, action).await;
        }
        fail(zones[number].start, state);
        takes_writes(namespace, zones[number].start, state).await;
    }
    let (offline, _) = namespace.read(zones[4].start, Buf::with_len(namespace.info().block_size as usize)).await;
    assert_eq!(offline, Err(Error::Zone(ZoneError::Offline)), "nothing is read from a zone that is offline");
    let offline = namespace.deallocate(zones[4].start, 1).await;
    assert_eq!(offline, Err(Error::Zone(ZoneError::Offline)), "nor is anything deallocated there");
    reset_all(namespace).await;
    assert_eq!(zone_at(namespace, zones[3].start).await.state, ReadOnly, "a reset of all leaves it");
    assert_eq!(namespace.change_zone(None, ZoneAction::Offline).await, Ok(()), "all that have failed are given up");
    assert_eq!(zone_at(namespace, zones[3].start).await.state, Offline);
}

async fn bring<N: Namespace>(namespace: &N, zone: Lba, state: ZoneState, written: bool) {
    let change = async |action| {
        assert_eq!(namespace.change_zone(Some(zone), action).await, Ok(()), "{action:?} on the way to {state}");
    };
    change(ZoneAction::Reset).await;
    if matches!(state, ZoneState::ExplicitlyOpen | ZoneState::Closed) {
        change(ZoneAction::Open).await;
    }
    if written {
        let data = pattern(namespace.info().block_size as usize, 6).freeze();
        assert_eq!(namespace.write(zone, data, Durability::Stable).await, Ok(()), "a write on the way to {state}");
    }
    match state {
        ZoneState::Closed => change(ZoneAction::Close).await,
        ZoneState::Full => change(ZoneAction::Finish).await,
        _ => {}
    }
    assert_eq!(zone_at(namespace, zone).await.state, state);
}

async fn act<N: Namespace>(namespace: &N, zone: Lba, state: ZoneState, action: ZoneAction) {
    let before = zone_at(namespace, zone).await;
    let done = namespace.change_zone(Some(zone), action).await;
    let now = zone_at(namespace, zone).await;
    match after(state, action) {
        Some(expected) => assert_eq!((done, now.state), (Ok(()), expected), "{action:?} of a zone that is {state}"),
        None => {
            let refused = Err(Error::Zone(ZoneError::InvalidTransition));
            assert_eq!((done, now), (refused, before), "{action:?} of a zone that is {state}");
        }
    }
}

/// Whether a write at the write pointer, and an append, go through.
async fn takes_writes<N: Namespace>(namespace: &N, zone: Lba, state: ZoneState) {
    let told = zone_at(namespace, zone).await;
    let data = || pattern(namespace.info().block_size as usize, 8).freeze();
    let pointer = if state == ZoneState::Empty || state.is_active() { told.write_pointer } else { zone };
    let written = namespace.write(pointer, data(), Durability::Stable).await;
    let appended = namespace.append(zone, data(), Durability::Stable).await.map(|_| ());
    let expected = match state {
        ZoneState::Full => Err(Error::Zone(ZoneError::Full)),
        ZoneState::ReadOnly => Err(Error::Zone(ZoneError::ReadOnly)),
        ZoneState::Offline => Err(Error::Zone(ZoneError::Offline)),
        _ => Ok(()),
    };
    assert_eq!((written, appended), (expected.clone(), expected.clone()), "a write and an append where it is {state}");
    if expected.is_ok() {
        let by_name = state == ZoneState::ExplicitlyOpen;
        let open = if by_name { ZoneState::ExplicitlyOpen } else { ZoneState::ImplicitlyOpen };
        assert_eq!(zone_at(namespace, zone).await.state, open, "writes open it, and leave it as it was opened");
    }
}
