//! `yagura nvme` as an operator uses it: discovery, a trial, identify pages, several paths.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Server, run, yagura};

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
