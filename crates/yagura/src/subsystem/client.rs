//! `yagura target VERB`: asks a target that serves, by its control socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HOST};
use fabric::subsystem::SubsystemReport;
use serde_json::Value;
use tokio::net::UnixStream;

use super::control::ROUTE;
use super::jobs::StatusReport;
use super::request::{DriveAction, NO_REQUEST, Refusal, Request, not_understood};
use super::scrub::{BYTES_PER_SECOND, ScrubState};
use crate::cli::{
    TargetAllowHostArgs, TargetControl, TargetDriveArgs, TargetDriveScrubArgs, TargetDriveVerb, TargetHostArgs,
    TargetVerb,
};
use crate::drive::{Listed, Scrubbed, Used, describe_list, found_by_scrub};
use crate::exchange::{self, Bounds};
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// What an answer may take. Chosen: opening a large file on a slow disk, and some more. Derived: every subsystem with all its
/// namespaces, hosts and controllers, and room to spare.
const ANSWER_MAX: Bounds = Bounds { time: Duration::from_secs(60), bytes: 64 << 20 };

/// How often a scrub is asked how far it is. Chosen: a bar that moves.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Runs a verb.
pub fn run(verb: &TargetVerb) -> Result<(), Failure> {
    match verb {
        TargetVerb::Status(args) => {
            let answer = ask(&args.control.control, &Request::Status {})?;
            let report: StatusReport = serde_json::from_value(answer).map_err(foreign)?;
            output::report(args.control.common.json, &report, describe)
        }
        TargetVerb::Ana(args) => {
            let (subsystem, group) = (args.subsystem.subsystem.clone(), args.group);
            let request = match (args.port, args.state, args.nsid) {
                (Some(port), Some(state), _) => Request::AnaState { subsystem, port: port.0, group, state },
                (_, _, Some(nsid)) => Request::AnaGroup { subsystem, nsid, group },
                _ => return Err(Failure::usage("say --port and --state, or --nsid")),
            };
            change(&args.control, &request)
        }
        TargetVerb::AddNamespace(args) => {
            change(&args.control, &Request::AddNamespace { spec: args.namespace.clone() })
        }
        TargetVerb::RemoveNamespace(args) => {
            let subsystem = args.subsystem.subsystem.clone();
            change(&args.control, &Request::RemoveNamespace { subsystem, nsid: args.nsid })
        }
        TargetVerb::ResizeNamespace(args) => {
            let (subsystem, bytes) = (args.subsystem.subsystem.clone(), args.size.0);
            change(&args.control, &Request::ResizeNamespace { subsystem, nsid: args.nsid, bytes })
        }
        TargetVerb::Drive(verb) => drive(verb),
        TargetVerb::AllowHost(TargetAllowHostArgs { host: args, manage }) => {
            let (subsystem, host) = host(args);
            change(&args.control, &Request::AllowHost { subsystem, host, manage: *manage })
        }
        TargetVerb::DenyHost(args) => {
            let (subsystem, host) = host(args);
            change(&args.control, &Request::DenyHost { subsystem, host })
        }
        TargetVerb::SetHostKey(args) => {
            let (subsystem, host) = (args.subsystem.subsystem.clone(), args.host.clone());
            let key_file = from_here(&args.dhchap_key_file)?;
            let controller_key_file = args.dhchap_ctrl_key_file.as_deref().map(from_here).transpose()?;
            let request = Request::SetHostKey { subsystem, host, key_file, controller_key_file };
            change(&args.control, &request)
        }
    }
}

/// The target may run in another directory.
fn from_here(file: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(file).map_err(|error| Failure::from(error).during(file.display()))
}

fn host(args: &TargetHostArgs) -> (Option<String>, String) {
    (args.subsystem.subsystem.clone(), args.host.clone())
}

fn drive(verb: &TargetDriveVerb) -> Result<(), Failure> {
    let request = |at: &TargetDriveArgs, action| Request::Drive { drive: at.drive.clone(), action };
    let changed = |at: &TargetDriveArgs, action| change(&at.control, &request(at, action));
    match verb {
        TargetDriveVerb::List(at) => {
            let answer = ask(&at.control.control, &request(at, DriveAction::List {}))?;
            let listed: Vec<Listed> = serde_json::from_value(answer).map_err(foreign)?;
            output::report(at.control.common.json, &listed, |all| describe_list(all))
        }
        TargetDriveVerb::Usage(at) => {
            let answer = ask(&at.control.control, &request(at, DriveAction::Usage {}))?;
            let used: Used = serde_json::from_value(answer).map_err(foreign)?;
            output::report(at.control.common.json, &used, Used::describe)
        }
        TargetDriveVerb::Create(args) => {
            let (name, subsystem) = (args.name.clone(), args.subsystem.subsystem.clone());
            changed(&args.at, DriveAction::Create { name, bytes: args.size.0, block: args.block, subsystem })
        }
        TargetDriveVerb::Delete(args) => {
            changed(&args.at, DriveAction::Delete { name: args.name.clone(), force: args.force })
        }
        TargetDriveVerb::Grow(args) => {
            changed(&args.at, DriveAction::Grow { name: args.name.clone(), bytes: args.size.0 })
        }
        TargetDriveVerb::Snapshot(args) => {
            changed(&args.at, DriveAction::Snapshot { name: args.name.clone(), new: args.new.clone() })
        }
        TargetDriveVerb::Clone(args) => {
            changed(&args.at, DriveAction::Clone { name: args.name.clone(), new: args.new.clone() })
        }
        TargetDriveVerb::Scrub(args) => scrub(args),
        TargetDriveVerb::StopScrub(at) => {
            let answer = ask(&at.control.control, &request(at, DriveAction::StopScrub {}))?;
            let found: Scrubbed = serde_json::from_value(answer).map_err(foreign)?;
            found_by_scrub(at.control.common.json, &found, None)
        }
    }
}

/// Begins a scrub, or joins the one that runs, and watches it to its end.
fn scrub(TargetDriveScrubArgs { at, rate }: &TargetDriveScrubArgs) -> Result<(), Failure> {
    let json = at.control.common.json;
    let bar = output::progress_share("scrub", json);
    let mut begin = true;
    loop {
        // Who begins one says its rate, also where the operator has not: a target from before scrubs had rates would begin one at
        // full speed that nothing ends, and refuses a request with a field that it does not know.
        let bytes_per_second = begin.then(|| rate.map_or(BYTES_PER_SECOND, |rate| rate.0));
        let action = DriveAction::Scrub { begin, bytes_per_second };
        let request = Request::Drive { drive: at.drive.clone(), action };
        let state: ScrubState = serde_json::from_value(ask(&at.control.control, &request)?).map_err(foreign)?;
        if let Some(job) = &state.job {
            // Of one that was under way already, its own.
            bar.say(format!("scrub, {}", job.rate()));
            bar.show(job.done);
            begin = false;
            std::thread::sleep(WATCH_PAUSE);
            continue;
        }
        bar.finish_and_clear();
        let ScrubState { found, error, .. } = state;
        let found = found.ok_or_else(|| Failure::refused("the target knows of no scrub: it was started anew"))?;
        let stopped = |at: f64| format!("the scrub was told to stop at {}", output::percent(at));
        return found_by_scrub(json, &found, error.or(found.stopped_at.map(stopped)));
    }
}

/// Asks for a change and says what was done.
fn change(control: &TargetControl, request: &Request) -> Result<(), Failure> {
    let answer = ask(&control.control, request)?;
    output::report(control.common.json, &answer, |answer| {
        answer["done"].as_str().map_or_else(|| answer.to_string(), |sentence| format!("{sentence}\n"))
    })
}

fn foreign(error: impl std::fmt::Display) -> Failure {
    let mend = "update the target, or ask it with a yagura of its version";
    Failure::refused(format!(
        "the answer at the control socket is not that of a yagura target of this version: {error} ({mend})"
    ))
}

/// One request, one answer.
fn ask(path: &Path, request: &Request) -> Result<Value, Failure> {
    let body = serde_json::to_string(request).map_err(foreign)?;
    let post = axum::http::Request::post(ROUTE).header(HOST, "target").header(CONTENT_TYPE, "application/json");
    let exchanged = exchange::ask(UnixStream::connect(path), post, body, &ANSWER_MAX);
    let (status, answer) = exchanged.map_err(|error| {
        let mend = "is the target running, with --control and this path?";
        Failure::unavailable(format!("control socket {}: {error} ({mend})", path.display()))
    })?;
    answered(status, &answer)
}

fn answered(status: StatusCode, answer: &[u8]) -> Result<Value, Failure> {
    if status == StatusCode::OK {
        return serde_json::from_slice(answer).map_err(foreign);
    }
    let refusal: Refusal = serde_json::from_slice(answer).map_err(|_| foreign(String::from_utf8_lossy(answer)))?;
    Err(match refusal.error.strip_prefix(NO_REQUEST) {
        Some(why) => not_understood(why),
        None => Failure::with_status(refusal.exit, refusal.error),
    })
}

fn describe(StatusReport { target: report, jobs }: &StatusReport) -> String {
    let mut text = String::new();
    for port in &report.ports {
        let place = port.listening.map_or_else(|| "not listening".to_string(), |address| address.to_string());
        text += &format!("port {}: {place}", port.id);
        if let Some(address) = port.advertise {
            text += &format!(", advertised as {address}");
        }
        text += if port.discovery_only { ", discovery only\n" } else { "\n" };
    }
    for address in &report.referrals {
        text += &format!("referral: {address}\n");
    }
    for (reactor, queues) in report.io_queues_by_reactor.iter().enumerate() {
        text += &format!("reactor {reactor}: {queues} I/O queues\n");
    }
    for subsystem in &report.subsystems {
        text += &describe_subsystem(subsystem);
    }
    jobs.iter().for_each(|job| text += &job.describe());
    text
}

fn describe_subsystem(subsystem: &SubsystemReport) -> String {
    let mut text = format!("subsystem {}, serial {}", subsystem.nqn, subsystem.serial);
    if let Some(ports) = &subsystem.ports {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        text += &format!(", at port {} only", ports.join(", "));
    }
    text += if subsystem.any_host { ", for any host\n" } else { ", for listed hosts\n" };
    for host in &subsystem.hosts {
        let rights = [(host.authenticates, "shows a key"), (host.tls, "TLS"), (host.manages, "manages namespaces")];
        let rights: Vec<&str> = rights.into_iter().filter_map(|(has, right)| has.then_some(right)).collect();
        let open = if rights.is_empty() { "" } else { ": " };
        text += &format!("  host {}{open}{}\n", host.nqn, rights.join(", "));
    }
    for namespace in &subsystem.namespaces {
        let (nsid, bytes, group) = (namespace.nsid, Size(namespace.bytes), namespace.group);
        text += &format!(
            "  namespace {nsid}: {bytes}, blocks of {}, group {group}, {}\n",
            namespace.block_size, namespace.nguid
        );
    }
    for ana in &subsystem.ana {
        text += &format!("  group {} at port {}: {}\n", ana.group, ana.port, ana.state);
    }
    for controller in &subsystem.controllers {
        let (id, host, port, queues) = (controller.id, &controller.host, controller.port, controller.io_queues);
        text += &format!("  controller {id}: {host}, by port {port}, {queues} I/O queues\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixListener;

    use clap::Parser;
    use fabric::subsystem::{
        AnaReport, ControllerReport, HostReport, NamespaceReport, PortReport, SubsystemReport, TargetReport,
    };
    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::super::jobs::JobReport;
    use super::*;
    use crate::cli::{Cli, Verb};

    /// Puts a field that this version does not know into every object.
    fn put_later_fields(value: &mut Value) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(put_later_fields),
            Value::Object(fields) => {
                fields.values_mut().for_each(put_later_fields);
                fields.insert("later".into(), json!({ "than": "this" }));
            }
            _ => {}
        }
    }

    fn is_read_from_a_newer_target<T: Serialize + DeserializeOwned>(answer: &T) {
        let before = serde_json::to_value(answer).expect("written");
        let mut later = before.clone();
        put_later_fields(&mut later);
        assert_ne!(later, before);
        let read: T = serde_json::from_value(later).unwrap_or_else(|error| panic!("{before}: {error}"));
        assert_eq!(serde_json::to_value(read).expect("written"), before);
    }

    fn job() -> JobReport {
        JobReport {
            kind: "scrub".into(),
            of: "/a".into(),
            done: 0.5,
            bytes: 1,
            bytes_per_second: None,
            begun_seconds_ago: 1,
        }
    }

    fn report() -> TargetReport {
        let (name, address) = (|| "a".to_owned(), "127.0.0.1:4420".parse().expect("an address"));
        let subsystem = SubsystemReport {
            nqn: name(),
            serial: name(),
            ports: None,
            any_host: true,
            hosts: vec![HostReport { nqn: name(), manages: true, authenticates: false, tls: false }],
            namespaces: vec![NamespaceReport { nsid: 1, group: 1, bytes: 4096, block_size: 4096, nguid: name() }],
            ana: vec![AnaReport { port: 1, group: 1, state: name() }],
            controllers: vec![ControllerReport { id: 1, host: name(), port: 1, io_queues: 1 }],
        };
        let port = PortReport { id: 1, listening: Some(address), advertise: None, discovery_only: false };
        TargetReport {
            ports: vec![port],
            subsystems: vec![subsystem],
            referrals: vec![address],
            io_queues_by_reactor: vec![1],
        }
    }

    #[test]
    fn what_a_newer_target_tells_besides_is_overlooked() {
        let damage = vec![("a".to_owned(), 1, "torn".to_owned())];
        let found = Scrubbed { bytes: 1, damaged: 1, uncorrectable: 0, damage, stopped_at: Some(0.5) };
        is_read_from_a_newer_target(&StatusReport { target: report(), jobs: vec![job()] });
        is_read_from_a_newer_target(&ScrubState { job: Some(job()), found: Some(found.clone()), error: None });
        is_read_from_a_newer_target(&found);
        is_read_from_a_newer_target(&Used { bytes: 2, used_bytes: 1, promised_bytes: 3, extent_bytes: 4, unit: 512 });
        is_read_from_a_newer_target(&Refusal { error: "no".into(), exit: 2 });
        let listed = json!([{ "number": 1, "name": "a", "nguid": "00", "block_size": 512, "bytes": 1, "allocated_bytes": 1,
            "own_bytes": 1, "snapshot": false, "source": null, "served": "here" }]);
        is_read_from_a_newer_target::<Vec<Listed>>(&serde_json::from_value(listed).expect("a list"));
    }

    /// An older target said what it did not know, and not what to do about it: who watches it knows.
    #[test]
    fn what_an_older_target_refuses_is_told_with_what_mends_it() {
        let refused = |error: &str| {
            let refusal = Refusal { error: error.into(), exit: 2 };
            let answer = serde_json::to_vec(&refusal).expect("written");
            answered(StatusCode::CONFLICT, &answer).expect_err("refused")
        };
        let older = refused("no request: unknown field `bytes_per_second`, expected `begin` at line 1 column 71");
        let words = older.sentence();
        assert!(older.status() == 4 && words.contains("unknown field `bytes_per_second`"), "{words}");
        assert!(words.contains("update the target, or use a program of its version"), "{words}");
        let other = refused("there is no subsystem a");
        assert_eq!((other.status(), other.sentence()), (2, "there is no subsystem a"));
    }

    /// What a target of before scrubs were jobs, with a rate and an end, is asked.
    #[derive(serde::Deserialize)]
    #[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
    enum AskedOfOlder {
        Drive { drive: Option<PathBuf>, action: ActionOfOlder },
    }

    #[derive(serde::Deserialize)]
    #[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
    enum ActionOfOlder {
        Scrub { begin: bool },
    }

    /// How such a target tells of a scrub that is under way.
    fn state_of_older() -> Value {
        json!({ "running": true, "done": 1, "total": 2, "found": null, "error": null })
    }

    /// Such a target answers one request. True: it has begun a scrub.
    fn answer_as_older(listener: &UnixListener) -> bool {
        let mut stream = listener.accept().expect("asked").0;
        let mut reader = BufReader::new(&stream);
        let head = reader.by_ref().lines().map(|line| line.expect("a line")).take_while(|line| !line.is_empty());
        let lengths = head.filter_map(|line| line.strip_prefix("content-length: ").map(str::to_owned));
        let mut body = vec![0; lengths.last().expect("a length").parse().expect("a length")];
        reader.read_exact(&mut body).expect("a body");
        let (status, answer, begun) = match serde_json::from_slice(&body) {
            Ok(AskedOfOlder::Drive { drive: None, action: ActionOfOlder::Scrub { begin } }) => {
                ("200 OK", state_of_older(), begin)
            }
            Ok(AskedOfOlder::Drive { drive: Some(drive), .. }) => panic!("nobody has said {}", drive.display()),
            Err(error) => ("409 Conflict", json!({ "error": format!("{NO_REQUEST}{error}"), "exit": 2 }), false),
        };
        let answer = answer.to_string();
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len()).expect("answered");
        begun
    }

    /// A scrub of no rate is what such a target began, as fast as its medium gave, beside the hosts and with no way to end it; and
    /// who had begun it was told that it was refused. The words in which it tells of one say here: there is none.
    #[test]
    fn a_scrub_of_which_an_older_target_tells_otherwise_is_neither_begun_there_nor_taken_for_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        let control = format!("--control={}", path.display());
        let listener = UnixListener::bind(&path).expect("bound");
        for rate in [&[][..], &["--rate=1M"]] {
            let words = [&["yagura", "target", "drive", "scrub", &control], rate].concat();
            let Verb::Target(command) = Cli::try_parse_from(words).expect("accepted").verb else { panic!("no target") };
            let (begun, asked) = std::thread::scope(|scope| {
                let answering = scope.spawn(|| answer_as_older(&listener));
                let asked = run(command.verb.as_ref().expect("a verb"));
                (answering.join().expect("answered"), asked)
            });
            let refused = asked.expect_err("refused");
            let words = refused.sentence();
            assert!(!begun, "{rate:?}: it scrubs, and the operator is told: {words}");
            assert!(refused.status() == 4 && words.contains("unknown field `bytes_per_second`"), "{words}");
            assert!(words.contains("update the target"), "{words}");
        }
        let older = state_of_older();
        let error = serde_json::from_value::<ScrubState>(older).map(drop).map_err(foreign).expect_err("not understood");
        let words = error.sentence();
        assert!(
            words.contains("missing field `job`") && words.contains("ask it with a yagura of its version"),
            "{words}"
        );
        let none = serde_json::to_value(ScrubState::default()).expect("written");
        assert!(serde_json::from_value::<ScrubState>(none).is_ok_and(|state| state.job.is_none()));
    }
}
