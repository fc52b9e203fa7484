//! Configurations with epochs: changes of membership and the collection of tombstones.

use super::Operation::{
    Clean, CompareAndSet, Delete, Drop, DropHeld, Get, GetExpired, Increment, Migrate, Publish, Put, Rebuild, Seal,
    SealAll, Sweep,
};
use super::{Config, Map, Operation};

const INC: Operation = Increment;

/// Homes before and after the change: members 0 to 2, members 1 to 3.
const OLD: u8 = 0b0111;
const NEW: u8 = 0b1110;

/// The sound groups by name.
pub const SOUND: [&str; 8] = [
    "change-small",
    "change",
    "change-full-small",
    "change-full",
    "change-large",
    "collect-small",
    "collect",
    "collect-large",
];

/// Sound configurations; empty for an unknown name.
pub fn sound(group: &str) -> Vec<Config> {
    match group {
        "change-small" => sound_small(),
        "change" => vec![
            change_of_one("inc|inc + change of 1", &[&[INC], &[INC]]),
            taken_over("inc,get + change of 1 by two", &[&[INC, Get]]),
            there_and_back("put,get|get + there and back", &[&[Put(10), Get], &[Get]]),
            there_and_back("put,del|get + there and back", &[&[Put(10), Delete], &[Get]]),
            there_and_back("del|inc + there and back", &[&[Delete], &[INC]]),
            there_and_back("inc|inc + there and back", &[&[INC], &[INC]]),
            change_of_two("put|get + change of two", &[&[Put(10)], &[Get]]),
            change_of_two("put,get|get + change of two", &[&[Put(10), Get], &[Get]]),
            page_lost_of_two("put,get + change of one of two, a page lost", &[&[Put(10), Get]], ONE, &CHANGE[..4]),
            page_lost_of_two("put,get + change of both of two, a page lost", &[&[Put(10), Get]], BOTH, &CHANGE[..4]),
            page_lost_of_two(
                "put,get + change of both of two taken back, a page lost",
                &[&[Put(10), Get]],
                BOTH,
                &BACK,
            ),
            taken_in("put,get|get + taken in, replaced", &[&[Put(10), Get], &[Get]], REPLACED.unequal(), &TAKEN_IN),
            taken_in_joint(
                "put,get|get + taken in during a change",
                &[&[Put(10), Get], &[Get]],
                REPLACED.unequal(),
                &TAKEN_IN,
            ),
            three_to_one("put,get + three to one", &[&[Put(10), Get]]),
            three_to_one("put,get + three to one, a page lost", &[&[Put(10), Get]]).with(lose_one),
            change("put|get + change", &[&[Put(10)], &[Get]]),
        ],
        "change-full-small" | "change-full" => sound_full(group),
        "change-large" => vec![
            three_to_one("put|inc + three to one", &[&[Put(10)], &[INC]]),
            three_to_one("inc|inc att 1 + three to one", &[&[INC], &[INC]]).with(|c| c.ballots_max = 1),
            change("put,get|get + change", &[&[Put(10), Get], &[Get]]),
            change("put|inc + change", &[&[Put(10)], &[INC]]),
            change("inc|inc att 1 + change", &[&[INC], &[INC]]).with(|c| c.ballots_max = 1),
        ],
        "collect-small" => vec![
            collect("put|del + collection", &[&[Put(10)], &[Delete]]),
            collect("put,del,get + collection", &[&[Put(10), Delete, Get]]),
            collect("del,inc,get + collection", &[&[Delete, INC, Get]]),
            collect("put,expired get + collection", &[&[Put(10), GetExpired(10)]]),
        ],
        "collect" => vec![
            collect("del,get|get + collection", &[&[Delete, Get], &[Get]]),
            collect("del|inc + collection", &[&[Delete], &[INC]]),
            collect("put|expired get,get + collection", &[&[Put(10)], &[GetExpired(10), Get]]),
        ],
        "collect-large" => vec![
            collect("put,del|inc + collection", &[&[Put(10), Delete], &[INC]]),
            collect("del,inc|inc att 1 + collection", &[&[Delete, INC], &[INC]]).with(|c| c.ballots_max = 1),
            collect("put,del|get,get + collection", &[&[Put(10), Delete], &[Get, Get]]),
            collect("put|del,get + collection", &[&[Put(10)], &[Delete, Get]]),
            collect("del|inc,get + collection", &[&[Delete], &[INC, Get]]),
        ],
        _ => Vec::new(),
    }
}

/// Those of the gate.
fn sound_small() -> Vec<Config> {
    vec![
        change_of_one("put,get|get,get + change of 1", &[&[Put(10), Get], &[Get, Get]]),
        change_of_one("put|inc,get + change of 1", &[&[Put(10)], &[INC, Get]]),
        change_of_one("inc|inc att 1 + change of 1", &[&[INC], &[INC]]).with(|c| c.ballots_max = 1),
        change_of_one("put,del|put,get + change of 1", &[&[Put(10), Delete], &[Put(20), Get]]),
        taken_over("put,get + change of 1 by two", &[&[Put(10), Get]]),
        there_and_back("put,del,get + there and back", &[&[Put(10), Delete, Get]]),
        cleaned_twice("put,get + there and back, cleaned twice", &[&[Put(10), Get]]),
        taken_back("put,get|get,get + taken back", &[&[Put(10), Get], &[Get, Get]]),
        taken_back("put|inc,get + taken back", &[&[Put(10)], &[INC, Get]]),
        change_of_two("put,get + change of two", &[&[Put(10), Get]]),
        back_and_replaced("put,get + taken back, then replaced", &[&[Put(10), Get]], &BACK_AND_REPLACED),
        change_of_two("put,get + change of two, a page lost after the copy", &[&[Put(10), Get]]).with(lose_one),
        page_lost_of_two("put,get + change of one of two taken back, a page lost", &[&[Put(10), Get]], ONE, &BACK),
        half_left("put,get|get + one of two given up", &[&[Put(10), Get], &[Get]], &[]),
        half_left("put|inc,get + one of two given up", &[&[Put(10)], &[INC, Get]], &[]),
        half_left("put,get + one of two given up, replaced", &[&[Put(10), Get]], &CHANGE),
        taken_in("put,get + taken in, replaced", &[&[Put(10), Get]], REPLACED.unequal(), &TAKEN_IN),
        taken_in("put,get + taken in, equal, replaced", &[&[Put(10), Get]], REPLACED, &TAKEN_IN_EQUAL),
        taken_in_joint("put,get + taken in during a change", &[&[Put(10), Get]], REPLACED.unequal(), &TAKEN_IN),
        taken_in_joint("put,get + taken in when all was copied", &[&[Put(10), Get]], REPLACED.unequal(), &COPIED_TWICE),
        taken_in_joint(
            "put,get + given up, taken in during a change",
            &[&[Put(10), Get]],
            REPLACED.unequal(),
            &TAKEN_IN,
        )
        .with(given_up_before),
        forgotten_without("put,del|get,get + forgotten without a lost one", &[&[Put(10), Delete], &[Get, Get]], None),
    ]
}

/// The same with members that may be full.
fn sound_full(group: &str) -> Vec<Config> {
    let configs = match group {
        "change-full-small" => vec![
            change_of_one("put,get|get,get + change of 1, full", &[&[Put(10), Get], &[Get, Get]]),
            change_of_one("put|inc,get + change of 1, full", &[&[Put(10)], &[INC, Get]]),
            taken_back("put,get|get,get + taken back, full", &[&[Put(10), Get], &[Get, Get]]),
            change_of_two("put,get + change of two, full", &[&[Put(10), Get]]),
            collect("put,del,get + collection, full", &[&[Put(10), Delete, Get]]),
        ],
        "change-full" => vec![
            taken_over("put,get + change of 1 by two, full", &[&[Put(10), Get]]),
            there_and_back("put,get|get + there and back, full", &[&[Put(10), Get], &[Get]]),
            change_of_two("put|get,get + change of two, full", &[&[Put(10)], &[Get, Get]]),
            three_to_one("put,get,get + three to one, full", &[&[Put(10), Get, Get]]),
            change("put,get,get + change, full", &[&[Put(10), Get, Get]]),
        ],
        _ => Vec::new(),
    };
    configs.into_iter().map(full).collect()
}

fn full(config: Config) -> Config {
    config.under(|r| r.full = true)
}

/// One change of membership from the old homes to the new, carried out by the last host.
fn change(name: &'static str, clients: &[&[Operation]]) -> Config {
    let maps = [Map::stable(OLD), Map::joint(OLD, NEW), Map::stable(NEW)];
    with_upkeep(name, clients, &maps, &CHANGE)
}

const CHANGE: [Operation; 5] = [Publish(1), Seal(1), Migrate(1), Publish(2), Clean(2)];

const BACK: [Operation; 3] = [Publish(1), Publish(2), Clean(2)];
const BACK_REBUILT: [Operation; 3] = [Publish(1), Publish(2), Rebuild];

/// Homes of two replicas after a change of one of them, and of both.
const ONE: u8 = 0b0110;
const BOTH: u8 = 0b1100;

/// The same with one replica.
pub(super) fn change_of_one(name: &'static str, clients: &[&[Operation]]) -> Config {
    with_upkeep(name, clients, &[Map::stable(1), Map::joint(1, 2), Map::stable(2)], &CHANGE)
}

/// The same with two replicas: the one that stays meets every majority of the two before.
fn change_of_two(name: &'static str, clients: &[&[Operation]]) -> Config {
    with_upkeep(name, clients, &[Map::stable(0b011), Map::joint(0b011, 0b110), Map::stable(0b110)], &CHANGE)
}

/// A change that is given up, whatever hosts have done between: the homes before it are the only ones again.
fn taken_back(name: &'static str, clients: &[&[Operation]]) -> Config {
    let maps = [Map::stable(0b01), Map::joint(0b01, 0b10), Map::stable(0b01)];
    with_upkeep(name, clients, &maps, &[Publish(1), Publish(2), Clean(2)])
}

/// One of two replicas is given up, of which hosts hear at any time, and replaced.
fn half_left(name: &'static str, clients: &[&[Operation]], upkeep: &[Operation]) -> Config {
    let maps = [Map::stable(0b011), Map::joint(0b011, 0b101), Map::stable(0b101)];
    let config = match upkeep {
        [] => Config::new(name, clients).with(|config| config.maps = maps.to_vec()),
        upkeep => with_upkeep(name, clients, &maps, upkeep),
    };
    config.with(|config| config.given_up = 0b010)
}

/// One of two replicas is given up, of which hosts hear at any time or never, and taken in again with what it holds, in epoch 1. So
/// the other one may know alone of what was stored meanwhile: the next change asks both, unless they were made equal.
fn taken_in(name: &'static str, clients: &[&[Operation]], joint: Map, upkeep: &[Operation]) -> Config {
    let maps = [Map::stable(0b0011), Map::stable(0b0011), joint, Map::stable(BOTH)];
    with_upkeep(name, clients, &maps, upkeep).with(|c| (c.given_up, c.taken_in) = (0b0010, Some(1)))
}

/// The same, and it is given up in the middle of the change, or before that, and taken in again in epoch 2, still in the middle:
/// what was done for the change until then counts no more.
fn taken_in_joint(name: &'static str, clients: &[&[Operation]], joint: Map, upkeep: &[Operation]) -> Config {
    let maps = [Map::stable(0b0011), REPLACED, joint, Map::stable(BOTH)];
    with_upkeep(name, clients, &maps, upkeep).with(|c| (c.given_up, c.given_up_in, c.taken_in) = (0b0010, 1, Some(2)))
}

/// It is known to all who know of the change.
fn given_up_before(config: &mut Config) {
    (config.given_up_in, config.heard) = (0, Some(1));
}

const REPLACED: Map = Map::joint(0b0011, BOTH);
const TAKEN_IN: [Operation; 6] = [Publish(1), Publish(2), Seal(2), Migrate(2), Publish(3), Clean(3)];
const COPIED_TWICE: [Operation; 8] =
    [Publish(1), Seal(1), Migrate(1), Publish(2), Seal(2), Migrate(2), Publish(3), Clean(3)];
const TAKEN_IN_EQUAL: [Operation; 8] =
    [Publish(1), SealAll(1), Sweep(1), Publish(2), Seal(2), Migrate(2), Publish(3), Clean(3)];

/// One of two replicas is given up, and deleted keys are forgotten without it. Then it is taken in again, if `taken_in`: which is
/// refused, as it may hold what the other has forgotten.
fn forgotten_without(name: &'static str, clients: &[&[Operation]], taken_in: Option<u8>) -> Config {
    let two = Map::stable(0b011);
    let maps = [two, two, two.floor(1), two.floor(1)];
    let upkeep = [&COLLECTION[..], &[Publish(3)]].concat();
    let upkeep = if taken_in.is_some() { &upkeep } else { &COLLECTION[..] };
    with_upkeep(name, clients, &maps, upkeep).with(|c| (c.given_up, c.heard, c.taken_in) = (0b010, Some(1), taken_in))
}

/// A change of two replicas that is taken back, and then begun again. An operation of the first joint epoch needs one of the two
/// old homes, and so does the copy of the second: the two are made equal in between.
fn back_and_replaced(name: &'static str, clients: &[&[Operation]], upkeep: &[Operation]) -> Config {
    const OTHERS: u8 = 0b1100;
    let (two, joint) = (Map::stable(0b0011), Map::joint(0b0011, OTHERS));
    with_upkeep(name, clients, &[two, joint, two, joint, Map::stable(OTHERS)], upkeep)
}

const BACK_AND_REPLACED: [Operation; 9] =
    [Publish(1), Publish(2), Clean(2), Sweep(2), Publish(3), Seal(3), Migrate(3), Publish(4), Clean(4)];

/// The same by two hosts at once: the second takes over from the first, which may be slow and not dead.
fn taken_over(name: &'static str, clients: &[&[Operation]]) -> Config {
    let hosts = [clients, &[&CHANGE]].concat();
    with_upkeep(name, &hosts, &[Map::stable(1), Map::joint(1, 2), Map::stable(2)], &CHANGE)
}

/// Two replicas of which both move, or `one` does: the change is carried out, or taken back, while a page is lost at any time and
/// rebuilt, by another host unless the one has it to do.
fn page_lost_of_two(name: &'static str, clients: &[&[Operation]], new: u8, upkeep: &[Operation]) -> Config {
    let ends = if upkeep.contains(&Migrate(1)) { new } else { 0b0011 };
    let maps = [Map::stable(0b0011), Map::joint(0b0011, new), Map::stable(ends)];
    let config = match upkeep.contains(&Rebuild) {
        true => with_upkeep(name, clients, &maps, upkeep),
        false => with_upkeep(name, &[clients, &[upkeep]].concat(), &maps, &[Rebuild]),
    };
    config.with(|c| c.losses = 1)
}

/// Three replicas become one.
fn three_to_one(name: &'static str, clients: &[&[Operation]]) -> Config {
    let maps = [Map::stable(OLD), Map::joint(OLD, 0b1000), Map::stable(0b1000)];
    with_upkeep(name, clients, &maps, &CHANGE)
}

/// A page is lost and rebuilt while the key has been copied and the change is not final.
fn lose_one(config: &mut Config) {
    config.losses = 1;
    if let Some(upkeep) = config.hosts.last_mut() {
        *upkeep = vec![Publish(1), Seal(1), Migrate(1), Rebuild, Publish(2)];
    }
}

/// One replica moves, tombstones are collected, the replica moves back.
fn there_and_back(name: &'static str, clients: &[&[Operation]]) -> Config {
    let maps = [
        Map::stable(1),
        Map::joint(1, 2),
        Map::stable(2),
        Map::stable(2).floor(2),
        Map::joint(2, 1).floor(2),
        Map::stable(1).floor(2),
    ];
    with_upkeep(name, clients, &maps, &THERE_AND_BACK)
}

const THERE_AND_BACK: [Operation; 14] = [
    Publish(1),
    Seal(1),
    Migrate(1),
    Publish(2),
    Clean(2),
    SealAll(2),
    Sweep(2),
    Publish(3),
    Drop(3),
    Publish(4),
    Seal(4),
    Migrate(4),
    Publish(5),
    Clean(5),
];

/// The same without a collection, and somebody else cleans as well, who may be slow: it goes on when the replica has moved back.
fn cleaned_twice(name: &'static str, clients: &[&[Operation]]) -> Config {
    let maps = [Map::stable(1), Map::joint(1, 2), Map::stable(2), Map::joint(2, 1), Map::stable(1)];
    let there = [Publish(1), Seal(1), Migrate(1), Publish(2), Clean(2)];
    let back = [Publish(3), Seal(3), Migrate(3), Publish(4)];
    let hosts = [clients, &[&[Clean(2)]]].concat();
    with_upkeep(name, &hosts, &maps, &[&there[..], &back].concat())
}

/// One collection of tombstones in three homes, carried out by the last host.
fn collect(name: &'static str, clients: &[&[Operation]]) -> Config {
    let maps = [Map::stable(OLD), Map::stable(OLD), Map::stable(OLD).floor(1)];
    with_upkeep(name, clients, &maps, &COLLECTION)
}

const COLLECTION: [Operation; 5] = [Publish(1), SealAll(1), Sweep(1), Publish(2), Drop(2)];

/// More of the kind of [`broken`], in spaces too large for the gate.
pub fn broken_large() -> Vec<Config> {
    let three = Map::stable(OLD);
    vec![
        with_upkeep(
            "tombstone of an older epoch dropped once all sealed homes hold it",
            &[&[Put(10), Delete], &[Get, Get]],
            &[three, three],
            &[Publish(1), SealAll(1), DropHeld(1)],
        ),
        with_upkeep(
            "a put starts again after its stores were sent",
            &[&[Put(10)], &[INC, Get]],
            &[three, three],
            &[Publish(1), SealAll(1)],
        )
        .with(|c| {
            c.ballots_max = 1;
            c.rules.put_restarts_after_stores = true;
        }),
        with_upkeep(
            "sweep of pages that are not sealed",
            &[&[Put(10)], &[INC, Get]],
            &[three, three, three.floor(1)],
            &[Publish(1), Sweep(1), Publish(2)],
        ),
        Config::new("a lost page is rebuilt without its promises", &[&[INC], &[INC], &[Rebuild]]).with(|c| {
            c.losses = 1;
            c.ballots_max = 1;
            c.rules.rebuild_forgets_promises = true;
        }),
        Config::new(
            "a lost page is rebuilt past a promise",
            &[&[CompareAndSet(0, 1)], &[CompareAndSet(0, 2)], &[Rebuild]],
        )
        .with(|c| {
            c.losses = 1;
            c.ballots_max = 1;
            c.rules.rebuild_past_promise = true;
        }),
        three_to_one("a lost page is rebuilt without its seal", &[&[Put(10), Get]])
            .with(lose_one)
            .under(|r| r.rebuild_unsealed = true),
    ]
}

/// A configuration with these maps, and upkeep by the last host.
fn with_upkeep(name: &'static str, clients: &[&[Operation]], maps: &[Map], upkeep: &[Operation]) -> Config {
    Config::new(name, &[clients, &[upkeep]].concat()).with(|c| {
        c.maps = maps.to_vec();
        c.ballots_as_met = true;
    })
}

/// Each rule broken: each must violate.
pub fn broken() -> Vec<Config> {
    let mut all = broken_changes();
    all.extend(broken_collections());
    all
}

fn broken_changes() -> Vec<Config> {
    let change = [Map::stable(OLD), Map::joint(OLD, NEW), Map::stable(NEW)];
    let put_get: [&[Operation]; 1] = [&[Put(10), Get]];
    vec![
        full(change_of_one("full: old homes are believed though they are sealed", &[&[Put(10)], &[Get, Get]]))
            .under(|r| r.full_sealed = true),
        taken_back("taken back, and the old homes were not asked", &[&[Put(10), Get]])
            .under(|r| r.old_quorum_too_small = true),
        back_and_replaced(
            "taken back and replaced, and the old homes not made equal",
            &[&[Put(10), Get]],
            &[Publish(1), Publish(2), Clean(2), Publish(3), Seal(3), Migrate(3), Publish(4)],
        ),
        page_lost_of_two(
            "rebuilt by the map of before",
            &put_get,
            BOTH,
            &[Publish(1), Seal(1), Migrate(1), Rebuild, Publish(2)],
        )
        .under(|r| r.rebuild_by_older_map = true),
        page_lost_of_two("rebuilt from the old homes alone", &put_get, ONE, &[Publish(1), Rebuild, Publish(2)])
            .under(|r| r.rebuild_asks_old_alone = true),
        page_lost_of_two("rebuilt from the new homes alone", &put_get, ONE, &[Publish(1), Rebuild])
            .under(|r| r.rebuild_asks_new_alone = true),
        page_lost_of_two("rebuilt from half behind a change taken back", &put_get, BOTH, &BACK_REBUILT)
            .under(|r| r.rebuild_from_half_taken_back = true),
        half_left("any half is enough where one was given up", &[&[Put(10), Get], &[Get]], &[])
            .under(|r| r.any_half = true),
        taken_in("taken in, and not known to be unequal", &put_get, REPLACED, &TAKEN_IN),
        taken_in_joint("taken in during a change, and not known to be unequal", &put_get, REPLACED, &TAKEN_IN)
            .with(given_up_before),
        forgotten_without("taken in though others have forgotten", &[&[Put(10), Delete, Get]], Some(3)),
        with_upkeep("final before the key is copied", &put_get, &change, &[Publish(1), Seal(1), Publish(2)]),
        with_upkeep("pages are not sealed", &put_get, &change, &[Publish(1), Migrate(1), Publish(2)])
            .under(|r| r.migrate_unsealed = true),
        with_upkeep(
            "the migrator believes an unsealed old home",
            &put_get,
            &change,
            &[Publish(1), Seal(1), Migrate(1), Publish(2)],
        )
        .under(|r| r.migrate_unsealed = true),
        with_upkeep(
            "a compare-and-write of an older epoch lands behind the seal",
            &put_get,
            &change,
            &[Publish(1), Seal(1), Migrate(1), Publish(2)],
        )
        .under(|r| r.seal_ignored = true),
        cleaned_twice("what came behind the seal is dropped", &put_get).under(|r| r.clean_behind_seal = true),
        there_and_back("homes come back that were not cleaned", &[&[Put(10), Delete, Get]]).with(|c| {
            c.hosts[1].retain(|operation| !matches!(operation, Clean(_)));
        }),
    ]
}

fn broken_collections() -> Vec<Config> {
    let three = Map::stable(OLD);
    let (raise, swept) = ([three, three], [three, three, three.floor(1)]);
    let (cycle, until_floor) = (COLLECTION, &COLLECTION[..4]);
    vec![
        with_upkeep(
            "floor without a sweep",
            &[&[Put(10), Delete, Get]],
            &swept,
            &[Publish(1), SealAll(1), Publish(2), Drop(2)],
        ),
        with_upkeep("sweep at a majority", &[&[Put(10), Delete, Get]], &swept, &cycle)
            .under(|r| r.sweep_at_majority = true),
        with_upkeep("absent counts as newer than older epochs", &[&[Put(10), Get]], &raise, &[Publish(1)])
            .under(|r| r.absent_sorts_as_epoch = true),
        with_upkeep("absent key based on the own epoch", &[&[Put(10)], &[INC, Get]], &raise, &[Publish(1)])
            .under(|r| r.absent_based_on_epoch = true),
        with_upkeep("absent key based on zero", &[&[Delete, INC, Get]], &swept, &cycle)
            .under(|r| r.absent_based_on_zero = true),
        with_upkeep("counters without epoch", &[&[Put(20), Delete, Put(10), Get]], &swept, &cycle)
            .under(|r| r.counter_without_epoch = true),
        with_upkeep("a conditional delete as old as its put", &[&[Put(10), GetExpired(10), Get]], &swept, until_floor)
            .under(|r| r.age_of_put = true),
        with_upkeep(
            "dropped with a promise that may be accepted",
            &[&[Delete, INC], &[INC]],
            &[Map::stable(1), Map::stable(1), Map::stable(1).floor(1)],
            &cycle,
        )
        .under(|r| r.drop_forgets_promises = true),
    ]
}
