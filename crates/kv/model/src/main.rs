//! Runs the models at a chosen size: `kv-model <group>|broken|all|=<text> [states_max]`.

use std::process::ExitCode;

use check::explore::Model;
use kv_model::{agree, bundle, orphan, page, quorum, superblock};

/// What fits in 8 GiB: measured, the quorum model's set and stack need about 100 bytes for each state.
const STATES_MAX: usize = 80_000_000;

const USAGE: &str = "usage: kv-model <group>|broken|all|=<text> [states_max]
Searches every reachable state of the protocol's models. `broken` searches the variants that must fail and prints the
shortest way to the disaster of each; `=<text>` searches the configurations, sound and broken, with this in their name.
Groups:";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let group = arguments.next().unwrap_or_default();
    let states_max = match arguments.next().map(|text| text.parse::<usize>()) {
        None => STATES_MAX,
        Some(Ok(number)) => number,
        Some(Err(error)) => {
            eprintln!("kv-model: states_max: {error}");
            return ExitCode::from(2);
        }
    };
    let groups = groups();
    let any = |_: &str| true;
    let as_promised = match group.as_str() {
        "broken" => broken(any, states_max),
        "all" => groups.iter().filter(|group| !sound(group, any, states_max)).count() == 0,
        known if groups.contains(&known) => sound(known, any, states_max),
        named if named.starts_with('=') => {
            let has = |name: &str| name.contains(&named[1..]);
            let failed = groups.iter().filter(|group| !sound(group, has, states_max)).count();
            broken(has, states_max) && failed == 0
        }
        unknown => {
            eprintln!("kv-model: no group {unknown:?}\n{USAGE} {}", groups.join(" "));
            return ExitCode::from(2);
        }
    };
    if as_promised { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn groups() -> Vec<&'static str> {
    let quorum = quorum::configs::SOUND.into_iter().chain(quorum::change_configs::SOUND);
    quorum
        .chain(page::configs::SOUND)
        .chain(orphan::SOUND)
        .chain(bundle::configs::SOUND)
        .chain(agree::configs::SOUND)
        .chain(superblock::configs::SOUND)
        .collect()
}

/// Exhausts a group, or those of it that are wanted; whether none of it violates.
fn sound(group: &str, wanted: impl Fn(&str) -> bool, states_max: usize) -> bool {
    let mut fine = true;
    let quorum = quorum::configs::sound(group).into_iter().chain(quorum::change_configs::sound(group));
    for config in quorum.filter(|config| wanted(config.name)) {
        fine &= run(config.name, false, &quorum::Search::new(config), states_max);
    }
    for config in page::configs::sound(group).into_iter().filter(|config| wanted(config.name)) {
        fine &= run(config.name, false, &page::Search(config), states_max);
    }
    for config in orphan::sound(group).into_iter().filter(|config| wanted(config.name)) {
        fine &= run(config.name, false, &orphan::Search(config), states_max);
    }
    for config in bundle::configs::sound(group).into_iter().filter(|config| wanted(config.name)) {
        fine &= run(config.name, false, &bundle::Search(config), states_max);
    }
    for config in agree::configs::sound(group).into_iter().filter(|config| wanted(config.name)) {
        fine &= run(config.name, false, &agree::Search(config), states_max);
    }
    for config in superblock::configs::sound(group).into_iter().filter(|config| wanted(config.name)) {
        fine &= run(config.name, false, &superblock::Search(config), states_max);
    }
    fine
}

/// Searches the broken variants, or those that are wanted; whether every one was caught.
fn broken(wanted: impl Fn(&str) -> bool, states_max: usize) -> bool {
    let mut caught = true;
    let quorum = quorum::configs::broken().into_iter().chain(quorum::change_configs::broken());
    let large = quorum::configs::broken_large().into_iter().chain(quorum::change_configs::broken_large());
    for config in quorum.chain(large).filter(|config| wanted(config.name)) {
        caught &= run(config.name, true, &quorum::Search::new(config), states_max);
    }
    for config in page::configs::broken().into_iter().filter(|config| wanted(config.name)) {
        caught &= run(config.name, true, &page::Search(config), states_max);
    }
    for config in orphan::broken().into_iter().filter(|config| wanted(config.name)) {
        caught &= run(config.name, true, &orphan::Search(config), states_max);
    }
    for config in bundle::configs::broken().into_iter().filter(|config| wanted(config.name)) {
        caught &= run(config.name, true, &bundle::Search(config), states_max);
    }
    for config in
        agree::configs::broken().into_iter().chain(agree::configs::broken_large()).filter(|config| wanted(config.name))
    {
        caught &= run(config.name, true, &agree::Search(config), states_max);
    }
    for config in superblock::configs::broken().into_iter().filter(|config| wanted(config.name)) {
        caught &= run(config.name, true, &superblock::Search(config), states_max);
    }
    caught
}

/// Searches one configuration and reports; whether it ended as it must.
fn run<M: Model>(name: &str, must_fail: bool, model: &M, states_max: usize) -> bool {
    let (text, as_promised) = check::explore::run(name, must_fail, model, states_max);
    println!("{text}");
    as_promised
}
