//! `yagura nvme` as an operator uses it: discovery, a trial, identify pages, several paths.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::port::Port;
use crate::support::{PATIENCE, Server, finished, http_get, run, yagura};

const NQN: &str = "nqn.2026-11.io.yagura:node";

fn two_ports(more: &[&str]) -> (Server, [String; 2]) {
    let ports = ["--port=127.0.0.1:0", "--port=127.0.0.1:0,ana=1:non-optimized"];
    let server = Server::start(&[&["target", "--namespace=memory=16M"], &ports[..], more].concat());
    let address = |index: usize| server.ready["ports"][index]["listening"].as_str().expect("an address").to_owned();
    let addresses = [address(0), address(1)];
    (server, addresses)
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let (status, stdout, stderr) = run(&[arguments, &["--json"]].concat());
    assert_eq!(status, 0, "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

#[test]
fn a_trial_tells_each_step_and_a_verdict() {
    let (_server, [address, _]) = two_ports(&[]);
    for digests in [&[][..], &["--header-digest", "--data-digest"]] {
        let report = json(&[&["nvme", "connect-test", &address][..], digests].concat());
        let steps: Vec<_> =
            report["steps"].as_array().expect("steps").iter().map(|step| step["step"].as_str()).collect();
        assert!(steps.len() >= 9 && steps[0] == Some("TCP connection"), "{steps:?}");
        assert_eq!(report["data_digest"], !digests.is_empty());
        assert_eq!(report["good_for_the_store"], true, "{report}");
        assert!(report["round_trip_microseconds_p50"].as_f64().is_some_and(|p50| p50 > 0.0));
        assert_eq!(report["ana"], "optimized");
    }
    let (status, text, _) = run(&["nvme", "connect-test", &address]);
    assert!(status == 0 && text.contains("good for the store") && text.contains("round trip"), "{text}");
    let (status, text, stderr) = run(&["nvme", "connect-test", &address, "--nqn", NQN, "--nsid=9"]);
    assert!(status == 3 && text.contains("NOT good") && text.contains("FAILED"), "{text}");
    assert!(stderr.contains("Identify Namespace") && stderr.contains("no namespace 9"), "{stderr}");
    let (status, text, _) = run(&["nvme", "connect-test", "127.0.0.1:1", "--nqn", NQN]);
    assert!(status == 3 && text.contains("TCP connection"), "{text}");
}

#[test]
fn pages_are_shown_field_by_field() {
    let (_server, [address, _]) = two_ports(&[]);
    let controller = json(&["nvme", "identify", &address]);
    assert_eq!(controller["controller"]["subnqn"], NQN);
    assert_eq!(controller["namespaces"], serde_json::json!([1]));
    let (_, text, _) = run(&["nvme", "identify", &address]);
    assert!(
        text.contains("fuses") && text.contains("Compare and Write") && text.contains("keep alive in steps"),
        "{text}"
    );
    let namespace = json(&["nvme", "id-ns", &address]);
    assert_eq!(namespace["nsze"], 4096);
    assert_eq!(namespace["nguid"], controller["nguid"]);
    let (_, text, _) = run(&["nvme", "id-ns", &address]);
    assert!(text.contains("blocks of 4096 bytes") && text.contains("this path is optimized"), "{text}");
}

#[test]
fn several_paths_are_one_namespace() {
    let (_server, [first, second]) = two_ports(&[]);
    let path = format!("--path={second}");
    let write = ["nvme", "write", &first, &path, "--pattern=3", "--length=2M"];
    assert_eq!(run(&write).0, 0);
    let verify = ["--verify-pattern=3", "--length=2M"];
    assert_eq!(run(&[&["nvme", "read", &second][..], &verify].concat()).0, 0);
    // A path that nobody serves is no harm beside one that works.
    let dead = ["nvme", "read", &first, "--nqn", NQN, "--path=127.0.0.1:1"];
    assert_eq!(run(&[&dead[..], &verify].concat()).0, 0);
    let (status, _, stderr) = run(&["nvme", "read", "127.0.0.1:1", "--nqn", NQN, "--path=127.0.0.1:2"]);
    assert!(status == 3 && stderr.contains("no path could be connected"), "{stderr}");
}

#[test]
fn discovery_is_followed_and_watched() {
    let (server, [address, second]) = two_ports(&[]);
    let services = json(&["nvme", "discover", &address, "--follow"]);
    assert_eq!(services[0]["service"], address.as_str());
    let entries = services[0]["entries"].as_array().expect("entries");
    assert!(entries.iter().any(|entry| entry["address"] == second.as_str() && entry["nqn"] == NQN), "{entries:?}");
    let mut watching =
        yagura(&["nvme", "discover", &address, "--watch", "--json"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut next = || -> serde_json::Value {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).expect("JSON")
    };
    let first = next();
    assert!(
        first["error"].is_null() && first["entries"].as_array().is_some_and(|entries| !entries.is_empty()),
        "{first}"
    );
    assert_eq!(server.stop("INT"), 0);
    let then = next();
    assert!(then["error"].as_str().is_some_and(|error| error.contains(&address)), "{then}");
    watching.kill().expect("it runs");
    watching.wait().expect("it ends");
}

/// A pipe that stalls once stalled the reactor, and with it the signs of life: the target dropped the association, and the write
/// (or read) was in vain. The target drops a host that is silent for two seconds; the pipes stall for six.
#[test]
fn a_pipe_that_stalls_costs_no_association() {
    let (server, [address, _]) = two_ports(&["--metrics=127.0.0.1:0"]);
    let binary = env!("CARGO_BIN_EXE_yagura");
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, binary, &address, NQN]);
        finished(command)
    };
    let script = "(printf head; sleep 6; head -c 1000000 /dev/zero) | \"$0\" nvme write \"$1\" --keep-alive 2 --nqn \"$2\" --stdin --lba 3";
    let (status, text, stderr) = shell(script);
    assert!(status == 0 && !stderr.contains("connection lost"), "{text}{stderr}");
    let script = "\"$0\" nvme read \"$1\" --keep-alive 2 --nqn \"$2\" --lba 3 --length 1M | (sleep 6; head -c 4)";
    let (status, text, stderr) = shell(script);
    assert!(status == 0 && text == "head" && !stderr.contains("connection lost"), "{text}{stderr}");
    let metrics = http_get(server.address("metrics"), "/metrics");
    let expired = metrics.lines().find(|line| line.starts_with("yagura_target_keep_alive_expired"));
    assert!(expired.is_some_and(|line| line.ends_with(" 0")), "{expired:?}");
}

/// Longer for a target that computes for long while a host authenticates, and none for one that is only looked at.
#[test]
fn the_keep_alive_timeout_is_the_operators_to_say() {
    let (_server, [address, second]) = two_ports(&[]);
    assert_eq!(run(&["nvme", "identify", &address, "--keep-alive=0"]).0, 0);
    assert_eq!(run(&["nvme", "read", &address, "--keep-alive=60", "--length=4K"]).0, 0);
    // Whoever writes must know when a lost association has ended.
    let path = format!("--path={second}");
    let (status, _, stderr) = run(&["nvme", "read", &address, &path, "--keep-alive=0", "--length=4K"]);
    assert!(status == 2 && stderr.contains("keep alive timeout") && stderr.contains("is zero"), "{status}: {stderr}");
    // More than the target grants.
    let (status, _, stderr) = run(&["nvme", "identify", &address, "--keep-alive=4294967"]);
    assert!(status == 3 && stderr.contains("Invalid Parameters"), "{status}: {stderr}");
}

/// With one path a command failed as soon as that was lost, whatever `--deadline` said.
#[test]
fn a_command_outlives_its_only_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("medium");
    let namespace = format!("--namespace=file={}", file.display());
    let kept = Port::keep();
    let port = kept.address;
    let serve = || Server::start(&["target", &namespace, &format!("--port={port}")]);
    std::fs::File::create(&file).and_then(|file| file.set_len(16 << 20)).expect("a file");
    let server = serve();
    let mut command = yagura(&["nvme", "write", &port.to_string(), "--nqn", NQN, "--stdin", "--deadline=40"]);
    let mut writing = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started");
    let mut input = writing.stdin.take().expect("piped");
    input.write_all(&vec![7; 512 << 10]).expect("taken");
    // It is connected once something has arrived.
    let medium = std::fs::File::open(&file).expect("it is there");
    let has_arrived = || {
        let mut first = [0];
        medium.read_at(&mut first, 0).expect("read");
        first == [7]
    };
    let begun = Instant::now();
    while !has_arrived() {
        assert!(begun.elapsed() < PATIENCE, "nothing is written");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.stop("INT"), 0);
    // As much as a pipe holds: nobody reads while the command waits for its path.
    input.write_all(&[7; 32 << 10]).expect("taken");
    drop(input);
    std::thread::sleep(Duration::from_secs(1));
    let _server = serve();
    assert_eq!(writing.wait().expect("it ends").code(), Some(0));
}

/// A discovery service that is told of in a log is no second subsystem to choose from.
#[test]
fn the_only_subsystem_is_found_among_discovery_services() {
    let (_other, [elsewhere, _]) = two_ports(&[]);
    let (_server, [address, _]) = two_ports(&[&format!("--referral={elsewhere}")]);
    assert_eq!(json(&["nvme", "id-ns", &address])["nsze"], 4096);
}

/// `--follow` and `--watch` once excluded each other: a change behind a referral was told to nobody.
#[test]
fn services_that_are_referred_to_are_watched_too() {
    let (_other, [elsewhere, _]) = two_ports(&[]);
    let (_server, [address, _]) = two_ports(&[&format!("--referral={elsewhere}")]);
    let mut command = yagura(&["nvme", "discover", &address, "--watch", "--follow", "--json"]);
    let mut watching = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let told: Vec<serde_json::Value> =
        lines.take(2).map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")).collect();
    watching.kill().expect("it runs");
    watching.wait().expect("it ends");
    let services: Vec<_> = told.iter().map(|log| log["service"].as_str().expect("an address")).collect();
    assert_eq!(services, [address.as_str(), &elsewhere]);
}
