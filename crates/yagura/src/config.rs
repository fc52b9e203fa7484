//! The config file: TOML that says what flags can say.
//!
//! ```toml
//! pool = ["127.0.0.1:4420"]      # at the top: for every verb that has such a flag
//! [gateway]                      # one table per verb; `kv import` is [kv.import]
//! listen = "127.0.0.1:6379"
//! ```
//!
//! A key is the long name of a flag, its value what the flag takes: text, number, `true`, or a list for a flag that may be
//! repeated. A flag on the command line wins over its key. The keys become arguments and go the way of all arguments, so that
//! there is one parser, one set of checks and one set of messages.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ContextKind;
use clap::{Arg, Command};
use toml::{Table, Value};

use crate::exit::Failure;

/// How alike (Jaro-Winkler) a known key must be to be suggested. Chosen: as clap does for flags.
const ALIKE: f64 = 0.7;

/// Puts what `--config FILE` says for the verb in `arguments` behind the verb.
pub fn merge(command: &Command, arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let Some(file) = config_file(&arguments)? else { return Ok(arguments) };
    let named = |sentence: String| Failure::usage(format!("config file {}: {sentence}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|error| named(error.to_string()))?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| named(error.to_string()))?;
    check(command, &table, &mut Vec::new(), true).map_err(named)?;
    let (verb, path) = verb(command, &arguments);
    let mut added = Vec::new();
    for (key, value) in keys_for(&table, &path) {
        if let Some(flag) = flag(verb, key)
            && !is_given(flag, &arguments)
        {
            check_kind(flag, key, value).map_err(named)?;
            added.extend(as_arguments(key, value).map_err(named)?);
        }
    }
    let mut merged = arguments;
    let behind_verb = 1 + path.len();
    merged.splice(behind_verb..behind_verb, added);
    Ok(merged)
}

/// The arguments in front of a `--`.
fn options(arguments: &[OsString]) -> impl Iterator<Item = &OsString> {
    arguments.iter().skip(1).take_while(|argument| *argument != "--")
}

fn config_file(arguments: &[OsString]) -> Result<Option<PathBuf>, Failure> {
    let mut options = options(arguments);
    while let Some(argument) = options.next() {
        if argument == "--config" {
            let file = options.next().ok_or_else(|| Failure::usage("--config needs the name of a file"))?;
            return Ok(Some(PathBuf::from(file)));
        }
        if let Some(file) = argument.to_str().and_then(|text| text.strip_prefix("--config=")) {
            return Ok(Some(PathBuf::from(file)));
        }
    }
    Ok(None)
}

/// The verb that `arguments` name, and its path. Verbs come before all flags.
fn verb<'a>(command: &'a Command, arguments: &[OsString]) -> (&'a Command, Vec<&'a str>) {
    let (mut verb, mut path) = (command, Vec::new());
    for argument in arguments.iter().skip(1) {
        let Some(next) = argument.to_str().and_then(|name| verb.find_subcommand(name)) else { break };
        path.push(next.get_name());
        verb = next;
    }
    (verb, path)
}

fn flag<'a>(verb: &'a Command, key: &str) -> Option<&'a Arg> {
    verb.get_arguments().find(|argument| argument.get_long() == Some(key) && key != "config" && key != "help")
}

fn is_given(flag: &Arg, arguments: &[OsString]) -> bool {
    let long = format!("--{}", flag.get_long().unwrap_or_default());
    let with_value = format!("{long}=");
    let short = flag.get_short().map(|short| format!("-{short}"));
    options(arguments).filter_map(|argument| argument.to_str()).any(|argument| {
        argument == long
            || argument.starts_with(&with_value)
            || short.as_ref().is_some_and(|short| argument.starts_with(short.as_str()))
    })
}

/// Keys of the verb's own table, then those at the top that its table does not have.
fn keys_for<'a>(table: &'a Table, path: &[&str]) -> Vec<(&'a String, &'a Value)> {
    let own = path.iter().try_fold(table, |table, name| table.get(*name).and_then(Value::as_table));
    let own = own.filter(|_| !path.is_empty());
    let has = |key: &str| own.is_some_and(|own| own.contains_key(key));
    let top = table.iter().filter(|(key, value)| !value.is_table() && !has(key));
    own.into_iter().flatten().filter(|(_, value)| !value.is_table()).chain(top).collect()
}

fn as_arguments(key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(OsString::from(format!("--{key}={text}"))),
        Value::Integer(number) => Ok(OsString::from(format!("--{key}={number}"))),
        Value::Float(number) => Ok(OsString::from(format!("--{key}={number}"))),
        other => Err(format!("key `{key}` cannot be a {}", other.type_str())),
    };
    match value {
        Value::Boolean(true) => Ok(vec![OsString::from(format!("--{key}"))]),
        Value::Boolean(false) => Ok(Vec::new()),
        Value::Array(values) => values.iter().map(one).collect(),
        value => one(value).map(|argument| vec![argument]),
    }
}

/// Whether the flag takes such a value at all: a mistake in the file is told as one of the file.
fn check_kind(flag: &Arg, key: &str, value: &Value) -> Result<(), String> {
    let takes_values = flag.get_action().takes_values();
    if takes_values && flag.get_num_args().is_some_and(|count| count.min_values() == 0) {
        return Ok(()); // its value may be left out
    }
    let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    match values.iter().find(|value| value.is_bool() == takes_values) {
        Some(_) if takes_values => Err(format!("key `{key}` needs a value, not true or false")),
        Some(other) => Err(format!("key `{key}` must be true or false, not a {}", other.type_str())),
        None => Ok(()),
    }
}

/// What is wrong with the config file, if an error of the parser is about a flag that was not given but came from there.
pub fn instead(given: &[OsString], error: &clap::Error) -> Option<String> {
    let file = config_file(given).ok().flatten()?;
    let text = |kind| error.get(kind).map(ToString::to_string);
    let named = text(ContextKind::InvalidArg)?;
    let key = named.strip_prefix("--")?.split([' ', '=']).next()?;
    let (long, with_value) = (format!("--{key}"), format!("--{key}="));
    let was_given = |argument: &str| argument == long || argument.starts_with(&with_value);
    if options(given).filter_map(|argument| argument.to_str()).any(was_given) {
        return None;
    }
    let value = text(ContextKind::InvalidValue)?;
    let allowed = || text(ContextKind::ValidValue).map(|values| format!("possible values are {values}"));
    let why = std::error::Error::source(error).map(ToString::to_string).or_else(allowed);
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    Some(format!("config file {}: key `{key}` cannot be `{value}`{why}", file.display()))
}

/// Every key must be a flag of its verb (at the top: of any verb), every table a verb.
fn check(command: &Command, table: &Table, path: &mut Vec<String>, top: bool) -> Result<(), String> {
    let place = if path.is_empty() { String::new() } else { format!(" in [{}]", path.join(".")) };
    for (key, value) in table {
        if let Value::Table(inner) = value {
            let verbs: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let Some(verb) = command.find_subcommand(key) else {
                return Err(format!("unknown table `{key}`{place}{}", nearest(key, &verbs)));
            };
            path.push(key.clone());
            check(verb, inner, path, false)?;
            path.pop();
            continue;
        }
        let known = if top { all_flags(command) } else { own_flags(command) };
        if !known.contains(&key.as_str()) {
            return Err(format!("unknown key `{key}`{place}{}", nearest(key, &known)));
        }
        as_arguments(key, value)?;
    }
    Ok(())
}

fn own_flags(command: &Command) -> Vec<&str> {
    let flags = command.get_arguments().filter_map(Arg::get_long);
    flags.filter(|name| !["config", "help", "version"].contains(name)).collect()
}

fn all_flags(command: &Command) -> Vec<&str> {
    command.get_subcommands().flat_map(all_flags).chain(own_flags(command)).collect()
}

/// `: did you mean …?`, if a known name is near.
pub fn nearest(name: &str, known: &[&str]) -> String {
    let likeness = |known: &&&str| strsim::jaro_winkler(name, known);
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match best.filter(|best| likeness(best) > ALIKE) {
        Some(best) => format!(": did you mean `{best}`?"),
        None if known.is_empty() => String::new(),
        None => {
            let mut known = known.to_vec();
            known.sort_unstable();
            known.dedup();
            format!(": known are {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn merged(config: &str, line: &str) -> Result<String, String> {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(config.as_bytes()).expect("write");
        let mut arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        arguments.push(format!("--config={}", file.path().display()).into());
        let merged = merge(&crate::cli::command(), arguments).map_err(|failure| failure.sentence().to_string())?;
        let words: Vec<_> = merged.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(words[..words.len() - 1].join(" "))
    }

    #[test]
    fn keys_become_flags_of_their_verb_and_flags_win() {
        let config = "pool = ['a:1', 'b:2']\n[gateway]\nlisten = 'x:1'\nreactors = 2\n[kv.import]\njson = true\n";
        let expected = "yagura gateway --listen=x:1 --reactors=2 --pool=a:1 --pool=b:2";
        assert_eq!(merged(config, "yagura gateway"), Ok(expected.into()));
        let expected = "yagura gateway --reactors=2 --pool=a:1 --pool=b:2 --listen y:2";
        assert_eq!(merged(config, "yagura gateway --listen y:2"), Ok(expected.into()));
        let expected = "yagura kv import --json --pool=a:1 --pool=b:2 DIR";
        assert_eq!(merged(config, "yagura kv import DIR"), Ok(expected.into()));
        for (value, argument) in [("true", "--device"), ("'ublk'", "--device=ublk")] {
            let expected = format!("yagura volume attach {argument} --name a");
            let config = format!("[volume.attach]\ndevice = {value}\n");
            assert_eq!(merged(&config, "yagura volume attach --name a"), Ok(expected), "its value may be left out");
        }
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_a_mistake_of_the_file() {
        let error = |config| merged(config, "yagura gateway").expect_err("refused");
        assert!(error("[gateway]\njson = 'yes'").ends_with("key `json` must be true or false, not a string"));
        assert!(error("[gateway]\nlisten = true").ends_with("key `listen` needs a value, not true or false"));
        assert!(error("pool = ['a:1', false]").ends_with("key `pool` cannot be a boolean"));
        let parse = |given: &[&str], merged: &[&str]| {
            let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
            let error = crate::cli::command().try_get_matches_from(words(merged)).expect_err("refused");
            instead(&words(given), &error)
        };
        let config = ["yagura", "gateway", "--config=f.toml"];
        let wrong = ["yagura", "gateway", "--connections-max=abc", "--config=f.toml"];
        let said = parse(&config, &wrong).expect("it is the file's");
        assert_eq!(said, "config file f.toml: key `connections-max` cannot be `abc`: invalid digit found in string");
        assert_eq!(parse(&wrong, &wrong), None, "it was given as a flag");
    }

    #[test]
    fn unknown_keys_are_named_with_the_nearest_right_one() {
        let error = |config| merged(config, "yagura gateway").expect_err("refused");
        assert!(
            error("[gateway]\nlisten-on = 'x'")
                .ends_with("unknown key `listen-on` in [gateway]: did you mean `listen`?")
        );
        assert!(error("[gatway]\n").ends_with("unknown table `gatway`: did you mean `gateway`?"));
        assert!(error("pol = 'x'").contains("unknown key `pol`: did you mean `pool`?"));
        assert!(error("[gateway]\nlisten = { a = 1 }").contains("unknown table `listen`"));
        assert!(error("x = ").contains("TOML") || error("x = ").contains("line 1") || error("x = ").contains('^'));
    }
}
