//! `yagura`: the one binary. `yagura <noun> <verb>`; what a verb does is in the library crates, how it is asked for is here.
//!
//! Exit status: see [`exit`].

#![allow(dead_code, reason = "shared by verbs, some of which come with the store")]

mod cli;
mod config;
mod exit;
mod metrics;
mod namespaces;
mod output;
mod reactors;
mod size;
mod stop;
mod target;

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
    let arguments = config::merge(&cli::command(), arguments)?;
    let matches = match cli::command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return exit::usage(&error),
    };
    let cli = cli::Cli::from_arg_matches(&matches).map_err(|error| Failure::usage(error.to_string()))?;
    output::log_to_stderr();
    match cli.verb {
        Verb::Target(args) => target::run(&args),
    }
}
