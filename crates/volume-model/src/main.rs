//! Runs the model at a chosen size: `volume-model <group>|broken|all [states_max [part of a name]]`.

use std::process::ExitCode;

use volume_model::config::Config;
use volume_model::{Search, configs};

/// What fits in 8 GiB: measured, the set and the stack need about 100 bytes for each state.
const STATES_MAX: usize = 60_000_000;

const USAGE: &str = "usage: volume-model <group>|broken|all [states_max [part of a name]]
Searches every reachable state of the mirror of a volume. `broken` searches the rules that must fail and prints the
shortest way to the disaster of each. Groups:";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let group = arguments.next().unwrap_or_default();
    let states_max = match arguments.next().map(|text| text.parse::<usize>()) {
        None => STATES_MAX,
        Some(Ok(number)) => number,
        Some(Err(error)) => {
            eprintln!("volume-model: states_max: {error}");
            return ExitCode::from(2);
        }
    };
    let part = arguments.next().unwrap_or_default();
    let failures = |configs: Vec<Config>, must_fail: bool| {
        let failed = |config: &Config| {
            let search = if must_fail { Search::thorough(config.clone()) } else { Search::new(config.clone()) };
            config.name.contains(&part) && !run(config.name, must_fail, &search, states_max)
        };
        configs.iter().filter(|config| failed(config)).count()
    };
    let sound = |group: &str| failures(configs::sound(group), false) == 0;
    let as_promised = match group.as_str() {
        "broken" => failures([configs::broken(), configs::broken_large()].concat(), true) == 0,
        "all" => configs::SOUND.iter().filter(|group| !sound(group)).count() == 0,
        known if configs::SOUND.contains(&known) => sound(known),
        unknown => {
            eprintln!("volume-model: no group {unknown:?}\n{USAGE} {}", configs::SOUND.join(" "));
            return ExitCode::from(2);
        }
    };
    if as_promised { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Searches one configuration and reports; whether it ended as it must.
fn run(name: &str, must_fail: bool, search: &Search, states_max: usize) -> bool {
    let (text, as_promised) = check::explore::run(name, must_fail, search, states_max);
    println!("{text}");
    as_promised
}
