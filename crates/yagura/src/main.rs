//! `yagura`: the one binary. `yagura <noun> <verb>`; what a verb does is in the library crates, how it is asked for is here.
//!
//! Exit status: see [`exit`].

mod aside;
mod bench;
mod cache;
mod cli;
mod client;
mod config;
mod control;
mod csi;
mod descriptors;
mod drive;
mod exchange;
mod exit;
mod file;
mod flash;
mod gateway;
mod handout;
mod holder;
mod kv;
mod listening;
mod member;
mod metrics;
mod namespaces;
mod nvme;
mod output;
mod pool;
mod race;
mod reactors;
mod runtime;
mod size;
mod spec;
mod stop;
mod subsystem;
mod supervise;
mod tree;
mod up;
mod volume;

use std::process::ExitCode;

use clap::FromArgMatches;

use cli::Verb;
use exit::Failure;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(arguments: Vec<std::ffi::OsString>) -> Result<(), Failure> {
    let given = arguments.clone();
    let arguments = config::merge(&cli::command(), arguments)?;
    let matches = match cli::command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) => {
            let instead = cli::instead_of_memcached(&arguments, &error);
            return exit::usage(&error, instead.or_else(|| config::instead(&given, &error)));
        }
    };
    let cli = cli::Cli::from_arg_matches(&matches).map_err(|error| Failure::usage(error.to_string()))?;
    output::log_to_stderr();
    descriptors::raise();
    match cli.verb {
        Verb::Target(command) => subsystem::run(&command),
        Verb::Drive(verb) => drive::run(&verb),
        Verb::Flash(verb) => flash::run(&verb),
        Verb::Pool(verb) => pool::run(&verb),
        Verb::Kv(verb) => kv::run(&verb),
        Verb::File(verb) => file::run(&verb),
        Verb::Gateway(args) => gateway::run(&args),
        Verb::Cache(verb) => cache::run(&verb),
        Verb::Control(verb) => control::run(&verb),
        Verb::Csi(args) => csi::run(&args),
        Verb::Volume(verb) => volume::run(&verb),
        Verb::Up(args) => up::run(&args),
        Verb::Nvme(verb) => nvme::run(&verb),
        Verb::Bench(verb) => bench::run(&verb),
    }
}
