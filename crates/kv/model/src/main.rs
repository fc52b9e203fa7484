//! Runs the models at a chosen size: `kv-model <group>|broken|all [states_max]`.

use std::process::ExitCode;
use std::time::Instant;

use kv_model::explore::{Model, Outcome, exhaust, shortest_violation};
use kv_model::{page, quorum};

/// What fits in 8 GiB: measured, the quorum model's set and stack need about 100 bytes for each state.
const STATES_MAX: usize = 80_000_000;

const USAGE: &str = "usage: kv-model <group>|broken|all [states_max]
Searches every reachable state of the protocol's models. `broken` searches the variants that must fail and prints the
shortest way to the disaster of each. Groups:";

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
    let groups: Vec<&str> = quorum::configs::SOUND.into_iter().chain(page::configs::SOUND).collect();
    let as_promised = match group.as_str() {
        "broken" => broken(states_max),
        "all" => groups.iter().filter(|group| !sound(group, states_max)).count() == 0,
        known if groups.contains(&known) => sound(known, states_max),
        unknown => {
            eprintln!("kv-model: no group {unknown:?}\n{USAGE} {}", groups.join(" "));
            return ExitCode::from(2);
        }
    };
    if as_promised { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Exhausts a group; whether none of it violates.
fn sound(group: &str, states_max: usize) -> bool {
    let mut fine = true;
    for config in quorum::configs::sound(group) {
        fine &= run(config.name, false, &quorum::Search::new(config), states_max);
    }
    for config in page::configs::sound(group) {
        fine &= run(config.name, false, &page::Search(config), states_max);
    }
    fine
}

/// Searches the broken variants; whether every one was caught.
fn broken(states_max: usize) -> bool {
    let mut caught = true;
    for config in quorum::configs::broken().into_iter().chain(quorum::configs::broken_large()) {
        caught &= run(config.name, true, &quorum::Search::new(config), states_max);
    }
    for config in page::configs::broken() {
        caught &= run(config.name, true, &page::Search(config), states_max);
    }
    caught
}

/// Searches one configuration and reports; whether it ended as it must.
fn run<M: Model>(name: &str, must_fail: bool, model: &M, states_max: usize) -> bool {
    let begun = Instant::now();
    let mut outcome = if must_fail { shortest_violation(model, states_max) } else { exhaust(model, states_max) };
    if !must_fail && matches!(outcome, Outcome::Violation { .. }) {
        outcome = shortest_violation(model, states_max); // whoever broke it will want the way there
    }
    let seconds = begun.elapsed().as_secs_f32();
    match &outcome {
        Outcome::Exhausted { states } => println!("passed    {name}: all of {states} states, {seconds:.1} s"),
        Outcome::Capped { states } => println!("undecided {name}: stopped at {states} states, {seconds:.1} s"),
        Outcome::Violation { states, reason, trace } => {
            println!("VIOLATED  {name}: {reason} ({states} states, {seconds:.1} s)");
            trace.iter().enumerate().for_each(|(index, step)| println!("  {:2} {step}", index + 1));
        }
    }
    matches!(outcome, Outcome::Violation { .. }) == must_fail
}
