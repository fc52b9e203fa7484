//! The configurations of the bundle model.

use super::Begin::{Bundled, BundledFar, Far, Full};
use super::Config;
use super::Operation::{Clean, Collect, Delete, Promise, Put, PutFar, Read, Rebuild};

/// The sound groups by name, in the order of their size.
pub const SOUND: [&str; 2] = ["bundle", "bundle-large"];

/// Sound configurations; empty for an unknown name.
pub fn sound(group: &str) -> Vec<Config> {
    let new = Config::new;
    match group {
        "bundle" => vec![
            new("bundled by a put|put|read", Full, &[&[Put(2, 2)], &[Put(0, 3)], &[Read(0)]]),
            new("bundled by a put|delete,read", Full, &[&[Put(2, 2)], &[Delete(0, 3), Read(0)]]),
            new("back by a put|delete of the other", Bundled, &[&[Put(0, 2)], &[Delete(1, 3), Read(1)]]),
            new("back by a promise|deleted, read", Bundled, &[&[Promise(0, 2)], &[Delete(0, 3), Read(0)]]),
            new("value out of line, bundled|put", Far, &[&[Put(2, 2)], &[PutFar(0, 3)]]).with(two_unknown),
            new("bundled by a put|collector", Full, &[&[Put(2, 2)], &[Collect]]).with(two_unknown),
            new("back by a put|dropped", Bundled, &[&[Put(0, 2)], &[Clean(0)]]).with(two_unknown),
            new("deleted|dropped", BundledFar, &[&[Delete(0, 2)], &[Clean(0)]]).with(two_unknown),
            new("lost, rebuilt|put", Bundled, &[&[Rebuild], &[Put(0, 2)]]).with(lose_one),
            new("bundled by a put|put far|read,read", Far, &[&[Put(2, 2)], &[PutFar(0, 3)], &[Read(0), Read(0)]]),
            new("there and back|delete|read", Bundled, &[&[Put(0, 2), Put(1, 3)], &[Delete(0, 4)], &[Read(0)]]),
            new("bundled by a put|put far|dropped", Far, &[&[Put(2, 2)], &[PutFar(0, 3)], &[Clean(0)]]),
            new("lost, rebuilt|put,delete|read", Bundled, &[&[Rebuild], &[Put(0, 2), Delete(1, 3)], &[Read(1)]])
                .with(lose_one),
            new("two lost, rebuilt|put,delete", Bundled, &[&[Rebuild, Rebuild], &[Put(0, 2), Delete(2, 3)]])
                .with(|c| c.losses = 2),
        ],
        "bundle-large" => vec![
            new("bundled by a put|put|collector", Far, &[&[Put(2, 2)], &[PutFar(0, 3)], &[Collect]]).with(two_unknown),
            new(
                "there and back|delete,read|read",
                Bundled,
                &[&[Put(0, 2), Put(1, 3), Put(2, 4)], &[Delete(0, 5), Read(1)], &[Read(0)]],
            )
            .with(two_unknown),
            new(
                "there and back|put far|dropped",
                BundledFar,
                &[&[Put(1, 2), PutFar(2, 3)], &[PutFar(0, 4)], &[Clean(0)]],
            )
            .with(two_unknown),
            new(
                "lost, rebuilt|put far,delete|collector",
                BundledFar,
                &[&[Rebuild], &[PutFar(1, 2), Delete(0, 3)], &[Collect]],
            )
            .with(lose_one),
            new("two collectors|puts far", BundledFar, &[&[PutFar(0, 2), PutFar(1, 3)], &[Collect], &[Collect]]),
        ],
        _ => Vec::new(),
    }
}

fn two_unknown(config: &mut Config) {
    config.unknowns = 2;
}

fn lose_one(config: &mut Config) {
    config.losses = 1;
}

/// Each rule broken: each must violate.
pub fn broken() -> Vec<Config> {
    let new = Config::new;
    vec![
        new("bundles: a key that came back still counts in its bundle", Bundled, &[&[Put(0, 2), Clean(0)]])
            .under(|r| r.filter_kept = true),
        new("bundles: an entry counts by its byte", Bundled, &[&[Put(0, 2), Clean(0)]])
            .under(|r| r.filter_by_byte = true),
        new("bundles: referred to before it is written", Full, &[&[Put(2, 2)]]).under(|r| r.published_first = true),
        new("bundles: of a page that has changed since", Full, &[&[Put(2, 2)], &[Put(0, 3)]])
            .under(|r| r.stale_bundle = true),
        new("bundles: freed while its publication may land", Full, &[&[Put(2, 2)]])
            .with(|c| c.unknowns = 2)
            .under(|r| r.undecided_freed = true),
        new("bundles: a writer looks for its copy in the page alone", Full, &[&[PutFar(0, 3)], &[Put(2, 2)]])
            .under(|r| r.settled_by_page = true),
        new("bundles: the collector does not look into them", BundledFar, &[&[Collect]])
            .under(|r| r.collector_blind = true),
        new("bundles: collected without a bump", Full, &[&[Put(2, 2)], &[Collect]]).under(|r| r.no_bump = true),
        new(
            "bundles: published on a younger image without a look",
            Full,
            &[&[Put(2, 2)], &[Collect], &[Promise(0, 1)]],
        )
        .under(|r| r.no_look_at_copies = true),
        new("bundles: a key is dropped from the page alone", Bundled, &[&[Clean(0)]]).under(|r| r.clean_blind = true),
        new("bundles: a deletion is dropped and its entry left", Bundled, &[&[Delete(0, 2), Clean(0)]])
            .under(|r| r.deletion_dropped_alone = true),
        new("bundles: a deletion forgets the promise", Full, &[&[Promise(0, 2), Put(2, 2), Delete(0, 3)]])
            .under(|r| r.deletion_forgets_promise = true),
        new("bundles: no room is kept for deletions", Full, &[&[Put(2, 2), Delete(0, 3), Delete(1, 4)]])
            .under(|r| r.no_reserve = true),
        new("bundles: a key in a lost one is absent", Bundled, &[&[Read(0)]])
            .with(|c| c.losses = 1)
            .under(|r| r.lost_is_absent = true),
        new("bundles: a lost one is unlinked before its keys are back", Bundled, &[&[Rebuild]])
            .with(|c| c.losses = 1)
            .under(|r| r.rebuild_in_two = true),
        new("bundles: others are asked before the time is over", Bundled, &[&[Rebuild], &[Delete(0, 3)]])
            .with(|c| c.losses = 1)
            .under(|r| r.gathered_first = true),
        new("bundles: rebuilt while what was answered before may count", Bundled, &[&[Rebuild], &[Delete(0, 3)]])
            .with(lose_one)
            .under(|r| r.rebuild_at_once = true),
        new(
            "bundles: another damage is rebuilt than was waited for",
            Bundled,
            &[&[Rebuild], &[Put(0, 2), Delete(2, 3)]],
        )
        .with(|c| c.losses = 2)
        .under(|r| r.any_damage = true),
        new("bundles: called damaged after one look", Bundled, &[&[Put(0, 2), Put(1, 3)], &[Read(1)]])
            .under(|r| r.no_recheck = true),
        new("bundles: a place is taken for the copy", Bundled, &[&[Put(0, 2), Put(1, 3), PutFar(1, 4)], &[Read(1)]])
            .under(|r| r.no_identity = true),
    ]
}
