//! `yagura target --drive`: a drive is served whole, worked on while it is, killed, and served again as it was.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use engine::{Reactor, ReactorConfig};
use fabric::host::{HostIdentity, Options, RemoteNamespace};

use crate::support::{PATIENCE, Server, http_get, run, yagura};

struct Served {
    server: Server,
    control: String,
}

fn serve(directory: &Path, drive: &str) -> Served {
    let control = format!("--control={}", directory.join("control").display());
    let server = Server::start(&["target", "--listen=127.0.0.1:0", &format!("--drive={drive}"), &control]);
    Served { server, control }
}

impl Served {
    /// Runs a verb of `yagura target drive` that must succeed: its JSON document.
    fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        let (status, stdout, stderr) = run(&[&["target", "drive"], arguments, &[&self.control, "--json"]].concat());
        assert_eq!(status, 0, "{arguments:?}: {stderr}");
        serde_json::from_str(&stdout).expect("JSON")
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let (status, _, stderr) = run(&[&["target", "drive"], arguments, &[&self.control]].concat());
        assert_ne!(status, 0, "{arguments:?} is done");
        stderr
    }

    /// Name and place of every namespace.
    fn places(&self) -> Vec<(String, String)> {
        let listed = self.ask(&["list"]);
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let all = listed.as_array().expect("a list");
        all.iter().map(|one| (text(&one["name"]), text(&one["served"]))).collect()
    }

    fn nvme(&self, verb: &str, arguments: &[&str]) {
        let address = self.server.address("listening").to_string();
        let (status, _, stderr) = run(&[&["nvme", verb, &address], arguments].concat());
        assert_eq!(status, 0, "{verb} {arguments:?}: {stderr}");
    }
}

fn formatted(directory: &Path) -> String {
    let path = directory.join("drive").to_str().expect("text").to_owned();
    let (status, _, stderr) = run(&["drive", "format", &path, "--size=64M"]);
    assert_eq!(status, 0, "{stderr}");
    path
}

/// The drive is whole.
fn check(path: &str) {
    let (status, _, stderr) = run(&["drive", "check", path]);
    assert_eq!(status, 0, "{stderr}");
}

/// The right could be given at the start alone.
#[test]
fn a_host_may_manage_from_the_moment_it_is_told_so() {
    const HOST: &str = "nqn.2026-11.io.yagura:some-host";
    let directory = tempfile::tempdir().expect("a directory");
    let path = formatted(directory.path());
    let (status, _, stderr) = run(&["drive", "create", &path, "first", "--size=8M"]);
    assert_eq!(status, 0, "{stderr}");
    let served = serve(directory.path(), &path);
    let address = served.server.address("listening").to_string();
    let manages = || {
        let (status, stdout, stderr) = run(&["nvme", "identify", &address, &format!("--host-nqn={HOST}")]);
        assert_eq!(status, 0, "{stderr}");
        stdout.contains("namespace management")
    };
    let allow = |host: &str, more: &[&str]| run(&[&["target", "allow-host", host, &served.control], more].concat());
    let mut seen = Vec::new();
    for more in [&[][..], &["--manage=yes"], &[], &["--manage=no"]] {
        assert_eq!(allow(HOST, more).0, 0, "{more:?}");
        seen.push(manages());
    }
    assert_eq!(seen, [false, true, true, false], "what is not said stays as it is");
    let (status, _, stderr) = allow("any", &["--manage=yes"]);
    assert!(status == 2 && stderr.contains("a right of hosts by name"), "{stderr}");
}

#[test]
fn a_drive_is_worked_on_while_it_is_served() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = formatted(directory.path());
    let (status, _, stderr) = run(&["drive", "create", &path, "first", "--size=8M"]);
    assert_eq!(status, 0, "{stderr}");
    let served = serve(directory.path(), &path);
    assert!(served.server.ready["namespaces"][0]["medium"].as_str().expect("words").starts_with("first of drive"));
    assert_eq!(served.ask(&["create", "second", "--size=1G"])["nsid"], 2);
    served.nvme("write", &["--nsid=2", "--pattern=7", "--length=1M"]);
    served.ask(&["snapshot", "second", "before"]);
    served.nvme("write", &["--nsid=2", "--pattern=8", "--length=1M"]);
    assert_eq!(served.ask(&["clone", "before", "copy"])["nsid"], 3);
    served.nvme("read", &["--nsid=3", "--length=1M", "--verify-pattern=7"]);
    served.nvme("read", &["--nsid=2", "--length=1M", "--verify-pattern=8"]);
    served.ask(&["grow", "first", "--size=16M"]);
    served.nvme("write", &["--nsid=1", "--lba=2048", "--pattern=9", "--length=4K"]);
    let scrubbed = served.ask(&["scrub"]);
    assert_eq!((&scrubbed["bytes"], &scrubbed["damaged"]), (&((2 << 20) + 4096).into(), &0.into()));
    assert!(served.ask(&["usage"])["used_bytes"].as_u64().expect("a number") >= 2 << 20);
    served.ask(&["delete", "second", "--force"]); // the last of its hosts may be on its way out still
    let names: Vec<String> = served.places().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["first", "before", "copy"]);

    assert!(served.refused(&["delete", "second"]).contains("no namespace"));
    assert!(served.refused(&["create", "first", "--size=1M"]).contains("already"));
    assert!(served.refused(&["grow", "first", "--size=1M"]).contains("only grows"));
    assert!(served.refused(&["list", "--drive=/no/drive"]).contains("serves no drive /no/drive; it has"));
    // The offline verbs name who has it, and what to ask instead.
    let (status, _, stderr) = run(&["drive", "list", &path]);
    let id = served.server.id().to_string();
    assert!(status == 4 && stderr.contains(&id) && stderr.contains("yagura target drive VERB --control"), "{stderr}");
    assert_eq!(served.server.stop("TERM"), 0);
    check(&path);
}

/// Waits until this many jobs that have read something are told of: what `yagura target status` tells then.
fn jobs_under_way(control: &str, count: usize) -> serde_json::Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, stdout, stderr) = run(&["target", "status", control, "--json"]);
        assert_eq!(status, 0, "{stderr}");
        let told: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
        let has_read = |job: &&serde_json::Value| job["done"].as_f64().is_some_and(|done| done > 0.0);
        if told["jobs"].as_array().is_some_and(|jobs| jobs.iter().filter(has_read).count() == count) {
            return told;
        }
        assert!(Instant::now() < deadline, "{told}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Begins a scrub, slow enough to outlast the test, and watches it.
fn watched_scrub(arguments: &[&str]) -> Child {
    let mut command = yagura(&[&["target", "drive", "scrub"], arguments].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
}

/// Exit status, standard output and standard error of a watcher.
fn ended(watcher: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = watcher.wait_with_output().expect("ended");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

/// A scrub read as fast as the medium gave beside the hosts, was told of to its watcher alone, and nothing ended it.
#[test]
fn scrubs_are_told_of_and_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let control = format!("--control={}", path("control"));
    let mut arguments = vec!["target".to_owned(), "--listen=127.0.0.1:0".into(), "--metrics=127.0.0.1:0".into()];
    arguments.push(control.clone());
    for drive in ["a", "b"] {
        let at = path(drive);
        for words in [&["format", &at, "--size=64M"][..], &["create", &at, "disk", "--size=8M"]] {
            let (status, _, stderr) = run(&[&["drive"], words].concat());
            assert_eq!(status, 0, "{stderr}");
        }
        arguments.push(format!("--drive={at}"));
    }
    let server = Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    for nsid in ["--nsid=1", "--nsid=2"] {
        let address = server.address("listening").to_string();
        let (status, _, stderr) = run(&["nvme", "write", &address, nsid, "--pattern=7", "--length=4M"]);
        assert_eq!(status, 0, "{stderr}");
    }
    let of = |drive: &str| format!("--drive={}", path(drive));
    let (status, _, stderr) = run(&["target", "drive", "stop-scrub", &control, &of("a")]);
    assert!(status == 2 && stderr.contains("no scrub of"), "{stderr}");
    let watchers = [("a", "--rate=1K"), ("b", "--rate=2K")].map(|(at, rate)| watched_scrub(&[&control, &of(at), rate]));
    let status = jobs_under_way(&control, 2);
    assert_eq!(status["subsystems"].as_array().map(Vec::len), Some(1), "what else a target tells is there");
    let metrics = http_get(server.address("metrics"), "/metrics");
    let (_, words, _) = run(&["target", "status", &control]);
    for (drive, rate) in [("a", 1 << 10), ("b", 2 << 10)] {
        let at = path(drive);
        let jobs = status["jobs"].as_array().expect("a list");
        let job = jobs.iter().find(|job| job["of"] == *at).unwrap_or_else(|| panic!("{at} is not among {jobs:?}"));
        assert_eq!((&job["kind"], &job["bytes_per_second"]), (&"scrub".into(), &rate.into()));
        assert!(words.contains(&format!("scrub of {at}: ")), "{words}");
        assert!(metrics.contains(&format!("yagura_job_done_ratio{{job=\"scrub\",of=\"{at}\"}}")), "{metrics}");
        let (status, stdout, stderr) = run(&["target", "drive", "stop-scrub", &control, &of(drive)]);
        assert!(status == 0 && stdout.contains("256 KiB verified, 0 blocks damaged"), "{stdout}{stderr}");
        assert!(stdout.contains("; stopped at 6 %"), "{stdout}");
    }
    for watcher in watchers {
        let (status, stdout, stderr) = ended(watcher);
        assert!(stdout.contains("256 KiB verified, 0 blocks damaged"), "{stdout}");
        assert!(status == Some(4) && stderr.contains("was told to stop at 6 %"), "{stderr}");
    }
    assert!(!http_get(server.address("metrics"), "/metrics").contains("job=\"scrub\""));
    assert_eq!(server.stop("TERM"), 0);
}

/// A scrub that had found damage did not say that it had been ended: what lay behind was taken for whole. And one that is under way
/// holds up no target that is to end.
#[test]
fn a_scrub_that_was_ended_says_so_beside_the_damage() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = formatted(directory.path());
    let served = serve(directory.path(), &path);
    served.ask(&["create", "disk", "--size=8M"]);
    let content = directory.path().join("content");
    std::fs::write(&content, vec![7; 4 << 20]).expect("written");
    served.nvme("write", &["--nsid=1", &format!("--file={}", content.display())]);
    let unlimited = served.ask(&["scrub", "--rate=0"]);
    assert_eq!((&unlimited["bytes"], &unlimited["stopped_at"]), (&(4 << 20).into(), &serde_json::Value::Null));
    assert_eq!(served.server.stop("TERM"), 0);
    let medium = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    let bytes = std::fs::read(&path).expect("read");
    let at = bytes.chunks_exact(4096).position(|block| block.iter().all(|&byte| byte == 7)).expect("it was written");
    medium.write_all_at(&[8], at as u64 * 4096 + 100).expect("damaged");
    let served = serve(directory.path(), &path);
    let scrub = || watched_scrub(&[&served.control, "--rate=1K", "--json"]);
    let watcher = scrub();
    jobs_under_way(&served.control, 1);
    let (status, stdout, stderr) = run(&["target", "drive", "stop-scrub", &served.control]);
    assert!(status == 1 && stderr.contains("1 damaged block:"), "{stderr}");
    assert!(stdout.contains("disk: block 0 does not match") && stdout.contains("; stopped at 6 %"), "{stdout}");
    let (status, stdout, stderr) = ended(watcher);
    assert!(status == Some(1) && stderr.contains("1 damaged block:"), "{stderr}");
    assert!(stderr.contains("was told to stop at 6 %"), "{stderr}");
    let found: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&found["stopped_at"], &found["damaged"]), (&0.0625.into(), &1.into()));
    let watcher = scrub();
    jobs_under_way(&served.control, 1);
    assert_eq!(served.server.stop("TERM"), 0);
    assert_ne!(ended(watcher).0, Some(0), "its scrub is not through");
    check(&path);
}

/// A namespace that hosts had mounted was deleted under them by one command that asked nothing.
#[test]
fn a_namespace_that_hosts_have_is_deleted_by_force_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = formatted(directory.path());
    let served = serve(directory.path(), &path);
    served.ask(&["create", "used", "--size=8M"]);
    let nqn = served.server.ready["nqn"].as_str().expect("a name").parse().expect("an NQN");
    let mut options = Options::new(served.server.address("listening"), nqn, 1);
    options.host = HostIdentity { nqn: "nqn.2026-01.example:the-host".parse().expect("an NQN"), id: [7; 16] };
    let using = async {
        let host = RemoteNamespace::connect(options).await.expect("connected");
        let refused = served.refused(&["delete", "used"]);
        assert!(refused.contains("nqn.2026-01.example:the-host") && refused.contains("--force"), "{refused}");
        assert_eq!(served.places().len(), 1, "it is there still");
        served.ask(&["delete", "used", "--force"]);
        assert!(served.places().is_empty());
        drop(host);
    };
    Reactor::run(ReactorConfig::default(), using).expect("a reactor");
    served.ask(&["create", "idle", "--size=8M"]);
    served.ask(&["delete", "idle"]);
}

#[test]
fn identifiers_and_what_was_answered_survive_a_kill() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = formatted(directory.path());
    let served = serve(directory.path(), &path);
    for name in ["a", "b", "c"] {
        served.ask(&["create", name, "--size=8M"]);
    }
    served.ask(&["delete", "b"]);
    served.nvme("write", &["--nsid=3", "--pattern=7", "--length=1M", "--fua"]);
    let before = served.places();
    served.server.stop("KILL");
    check(&path);
    let served = serve(directory.path(), &path);
    assert_eq!(served.places(), before);
    served.nvme("read", &["--nsid=3", "--length=1M", "--verify-pattern=7"]);
    assert_eq!(served.ask(&["create", "d", "--size=8M"])["nsid"], 2, "the lowest that is free");
    // Killed while namespaces come and go: what is there afterwards is whole, and each is served once.
    let control = served.control.clone();
    let busy = std::thread::spawn(move || {
        for number in 0.. {
            let name = format!("n{number}");
            let made = run(&["target", "drive", "create", &name, "--size=1M", &control]).0 == 0;
            let deleted = made && (number % 2 == 1 || run(&["target", "drive", "delete", &name, &control]).0 == 0);
            if !deleted {
                return number;
            }
        }
        0
    });
    std::thread::sleep(Duration::from_millis(700));
    served.server.stop("KILL");
    let last = busy.join().expect("it ends with the target");
    check(&path);
    let served = serve(directory.path(), &path);
    let places = served.places();
    let mut unique: Vec<&String> = places.iter().map(|(_, place)| place).collect();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), places.len(), "{places:?}");
    for number in 0..last {
        let there = places.iter().any(|(name, _)| *name == format!("n{number}"));
        assert_eq!(there, number % 2 == 1, "n{number}: {places:?}");
    }
}

#[test]
fn wrong_places_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = formatted(directory.path());
    let a = "--subsystem=nqn=nqn.2026-01.example:a";
    let b = "--subsystem=nqn=nqn.2026-01.example:b";
    let refused = |arguments: &[&str]| {
        let (status, _, stderr) = run(&[&["target", "--listen=127.0.0.1:0"], arguments].concat());
        assert_ne!(status, 0, "{arguments:?} serves");
        stderr
    };
    assert!(refused(&[a, b, &format!("--drive={path}")]).contains("say where it belongs by subsystem=NQN"));
    let elsewhere = format!("--drive={path},subsystem=nqn.2026-01.example:c");
    assert!(refused(&[a, &elsewhere]).contains("there is no subsystem"));
    let missing = directory.path().join("missing").display().to_string();
    assert!(refused(&[&format!("--drive={missing}")]).contains("No such file"));
    let file = directory.path().join("file");
    std::fs::write(&file, vec![0; 1 << 20]).expect("written");
    assert!(refused(&[&format!("--drive={}", file.display())]).contains("yagura drive format"));
}
