//! The configurations: groups that must be exhausted without a violation, and broken variants that must not.

use super::Config;
use super::Operation::{CompareAndSet, Delete, Get, Increment, Put, Rebuild};

const INC: super::Operation = Increment;
const CAS1: super::Operation = CompareAndSet(0, 1);
const CAS2: super::Operation = CompareAndSet(0, 2);

/// The sound groups by name, in the order of their size.
pub const SOUND: [&str; 14] = [
    "small",
    "main",
    "delete",
    "loss",
    "loss-cas",
    "cas",
    "reserve",
    "struck",
    "full-small",
    "full",
    "full-large",
    "one-attempt",
    "fast",
    "large",
];

/// Sound configurations; empty for an unknown name.
pub fn sound(group: &str) -> Vec<Config> {
    let new = Config::new;
    match group {
        "small" => vec![
            new("put|get,get", &[&[Put(10)], &[Get, Get]]),
            new("put|put|get", &[&[Put(10)], &[Put(20)], &[Get]]),
            new("put|inc", &[&[Put(10)], &[INC]]),
            new("inc|inc", &[&[INC], &[INC]]),
            new("put,get|inc", &[&[Put(10), Get], &[INC]]),
            new("put|inc,get", &[&[Put(10)], &[INC, Get]]),
            new("inc|get,get", &[&[INC], &[Get, Get]]),
            new("put|put,get", &[&[Put(10)], &[Put(20), Get]]),
        ],
        "main" => vec![
            new("put|inc|get", &[&[Put(10)], &[INC], &[Get]]),
            new("put|put|get,get", &[&[Put(10)], &[Put(20)], &[Get, Get]]),
            new("put|inc,get|get", &[&[Put(10)], &[INC, Get], &[Get]]),
            new("put,get|inc|get", &[&[Put(10), Get], &[INC], &[Get]]),
            new("put|put,get|inc", &[&[Put(10)], &[Put(20), Get], &[INC]]),
            new("put,put|inc|get", &[&[Put(10), Put(20)], &[INC], &[Get]]),
            new("inc|inc att 3", &[&[INC], &[INC]]).with(|c| c.ballots_max = 3),
        ],
        "delete" => delete(),
        "full-small" | "full" | "full-large" => super::room::sound(group),
        "loss" => loss(),
        "loss-cas" => loss_cas(),
        "struck" => super::struck::sound(),
        "cas" => vec![
            new("cas|cas", &[&[CAS1], &[CAS2]]),
            new("cas|put,get", &[&[CAS1], &[Put(10), Get]]),
            new("cas,get|cas", &[&[CAS1, Get], &[CAS2]]),
        ],
        "reserve" => vec![
            new("inc,inc|get,get", &[&[INC, INC], &[Get, Get]]).under(|r| r.reserve = true),
            new("inc,inc|put", &[&[INC, INC], &[Put(10)]]).under(|r| r.reserve = true),
            new("inc,inc|put,get", &[&[INC, INC], &[Put(10), Get]]).under(|r| r.reserve = true),
            new("inc,inc|inc", &[&[INC, INC], &[INC]]).under(|r| r.reserve = true),
        ],
        _ => variants(group),
    }
}

/// The groups that depart from the default protocol, or are too large for every day.
fn variants(group: &str) -> Vec<Config> {
    let new = Config::new;
    match group {
        "one-attempt" => vec![
            new("inc|inc|inc att 1", &[&[INC], &[INC], &[INC]]),
            new("cas|cas|get,get att 1", &[&[CAS1], &[CAS2], &[Get, Get]]),
            new("put|cas,get|cas att 1", &[&[Put(10)], &[CAS1, Get], &[CAS2]]),
        ]
        .into_iter()
        .map(|config| config.with(|c| c.ballots_max = 1))
        .collect(),
        "fast" => vec![
            new("inc|inc", &[&[INC], &[INC]]),
            new("put|inc,get", &[&[Put(10)], &[INC, Get]]),
            new("inc|get,get", &[&[INC], &[Get, Get]]),
            new("inc,get|inc", &[&[INC, Get], &[INC]]),
            new("put|inc|get", &[&[Put(10)], &[INC], &[Get]]),
        ]
        .into_iter()
        .map(|config| config.under(|r| r.fast = true))
        .collect(),
        "large" => vec![
            new("cas|cas|put", &[&[CAS1], &[CAS2], &[Put(10)]]),
            new("put|inc|inc", &[&[Put(10)], &[INC], &[INC]]),
            new("inc|inc|get", &[&[INC], &[INC], &[Get]]),
            new("put,get + 2 losses", &[&[Put(10), Get], &[Rebuild, Rebuild]]).with(|c| {
                c.losses = 2;
                c.rules.give_up = true;
            }),
        ],
        _ => Vec::new(),
    }
}

/// Puts of tombstones, among hosts that crash or give up in the middle and go on.
fn delete() -> Vec<Config> {
    let new = Config::new;
    vec![
        new("put|del|get,get", &[&[Put(10)], &[Delete], &[Get, Get]]),
        new("put,del|get,get", &[&[Put(10), Delete], &[Get, Get]]),
        new("put,del|put,get", &[&[Put(10), Delete], &[Put(20), Get]]),
        new("put|del,get|inc", &[&[Put(10)], &[Delete, Get], &[INC]]),
        new("put,get|del give up", &[&[Put(10), Get], &[Delete]]).under(|r| r.give_up = true),
        new("put,del|get,get give up", &[&[Put(10), Delete], &[Get, Get]]).under(|r| r.give_up = true),
        new("put|del|get,get give up", &[&[Put(10)], &[Delete], &[Get, Get]]).under(|r| r.give_up = true),
    ]
}

/// A member loses the page that held the key (torn by a crash) and is rebuilt from the others.
fn loss() -> Vec<Config> {
    let new = Config::new;
    vec![
        new("put|get,get + loss", &[&[Put(10)], &[Get, Get], &[Rebuild]]),
        new("put,get|get + loss", &[&[Put(10), Get], &[Get], &[Rebuild]]),
        new("put,del|get + loss", &[&[Put(10), Delete], &[Get], &[Rebuild]]),
        new("put|put,get + loss", &[&[Put(10)], &[Put(20), Get], &[Rebuild]]),
    ]
    .into_iter()
    .map(|config| {
        config.with(|c| {
            c.losses = 1;
            c.rules.give_up = true;
        })
    })
    .collect()
}

/// The same among conditional operations.
fn loss_cas() -> Vec<Config> {
    let new = Config::new;
    vec![
        new("cas|cas + loss", &[&[CAS1], &[CAS2], &[Rebuild]]),
        new("inc|put,get + loss", &[&[INC], &[Put(10), Get], &[Rebuild]]),
        new("cas,get,get + loss", &[&[CAS1, Get, Get], &[Rebuild]]).under(|r| r.give_up = true),
    ]
    .into_iter()
    .map(|config| config.with(|c| (c.losses, c.ballots_max) = (1, 1)))
    .collect()
}

/// Variants that look right and are not: each must violate. Those of [`broken_large`] do so too.
pub fn broken() -> Vec<Config> {
    let mut all = broken_puts();
    all.extend(broken_conditionals());
    all.extend(broken_losses());
    all.extend(super::struck::broken());
    all.extend(super::room::broken());
    all
}

fn broken_puts() -> Vec<Config> {
    let new = Config::new;
    vec![
        new("flat timestamp: puts ignore promises", &[&[Put(10), Get], &[INC]]).under(|r| {
            r.flat = true;
            r.flat_put_ignores_promise = true;
        }),
        new("flat timestamp: superseded by a conditional operation counts as done", &[&[Put(10), Get], &[INC]]).under(
            |r| {
                r.flat = true;
                r.flat_superseded_first = true;
            },
        ),
        new("get without write-back", &[&[Put(10)], &[Get, Get]]).under(|r| r.no_write_back = true),
        new("superseded at one member counts as done", &[&[Put(10), Get], &[Put(20)]])
            .under(|r| r.superseded_once_is_done = true),
        new("operation id reused after a restart", &[&[Put(10)], &[Put(20), Get, Get]])
            .under(|r| r.reuse_operation_id = true),
        new("delete forgets the timestamp", &[&[Put(10), Delete], &[Get, Get]]).under(|r| r.delete_forgets = true),
    ]
}

fn broken_conditionals() -> Vec<Config> {
    let new = Config::new;
    vec![
        new("conditional retry without operation id", &[&[INC], &[INC]]).under(|r| r.no_operation_id = true),
        new("write-back of a conditional value ignores promises", &[&[CAS1], &[CAS2], &[Get]])
            .under(|r| r.write_back_ignores_promise = true),
        new("condition fails on a minority's value", &[&[Put(10)], &[CAS1, Get]])
            .under(|r| r.fail_without_write_back = true),
        new("accept looks at the timestamp before the promise", &[&[INC], &[INC], &[Put(10)]])
            .under(|r| r.superseded_before_promise = true),
        new("two round trips at a majority", &[&[INC], &[INC]]).under(|r| {
            r.fast = true;
            r.fast_majority = true;
        }),
    ]
}

fn broken_losses() -> Vec<Config> {
    let with_loss = |name, hosts: &[&[super::Operation]]| Config::new(name, hosts).with(|c| c.losses = 1);
    vec![
        with_loss("a member that lost its data keeps its vote", &[&[Put(10), Get]])
            .under(|r| r.lost_member_votes = true),
        with_loss("a lost member is rebuilt from one other", &[&[Put(10), Get], &[Rebuild]])
            .under(|r| r.rebuild_from_one = true),
        with_loss("a lost member is rebuilt while older acknowledgements count", &[&[Put(10), Get], &[Rebuild]])
            .under(|r| r.rebuild_at_once = true),
    ]
}

/// More variants that must violate, in spaces too large for the gate.
pub fn broken_large() -> Vec<Config> {
    let new = Config::new;
    vec![
        new("flat timestamp: a refused put takes a new one", &[&[Put(10)], &[Put(20), Get], &[INC]]).under(|r| {
            r.flat = true;
            r.flat_put_retries = true;
        }),
        new("conditional retry although a put came between", &[&[INC], &[INC], &[Put(10)]])
            .under(|r| r.retry_across_era = true),
        new("two round trips, read from a majority", &[&[CAS1], &[CAS2, Get]]).under(|r| {
            r.fast = true;
            r.fast_majority_read = true;
        }),
    ]
}
