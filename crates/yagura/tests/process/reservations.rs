//! `yagura nvme reservations`: two operators at one namespace, and a target that is killed.

use std::path::Path;

use crate::support::{Server, kill, run};

const ONE: &str = "--host-id=00000000-0000-0000-0000-000000000001";
const TWO: &str = "--host-id=00000000000000000000000000000002";

fn target(directory: &Path) -> Server {
    let file = directory.join("namespace");
    Server::start(&["target", "--listen=127.0.0.1:0", &format!("--namespace=file={},size=16M", file.display())])
}

/// Runs `yagura nvme reservations`: exit status, report, error.
fn reservations(server: &Server, arguments: &[&str]) -> (i32, serde_json::Value, String) {
    let address = server.address("listening").to_string();
    let (status, stdout, stderr) = run(&[&["nvme", "reservations", &address, "--json"], arguments].concat());
    (status, serde_json::from_str(&stdout).unwrap_or_default(), stderr)
}

fn report(server: &Server, arguments: &[&str]) -> serde_json::Value {
    let (status, report, error) = reservations(server, arguments);
    assert_eq!(status, 0, "{arguments:?}: {error}");
    report
}

fn reads(server: &Server) -> (i32, String) {
    let (status, _, stderr) = run(&["nvme", "read", &server.address("listening").to_string(), "--length=4K"]);
    (status, stderr)
}

#[test]
fn a_reservation_is_taken_preempted_and_given_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = target(directory.path());
    assert_eq!(report(&server, &["report"])["type"], serde_json::Value::Null);
    report(&server, &["register", ONE, "--key=0xa1"]);
    let held = report(&server, &["acquire", ONE, "--key=0xa1", "--type=exclusive-access"]);
    assert_eq!((&held["type"], &held["registrants"][0]["holder"]), (&"exclusive-access".into(), &true.into()));
    let (status, error) = reads(&server);
    assert!(status != 0 && error.contains("Reservation Conflict"), "{error}");

    // Another key than its own gets a host nowhere.
    let (status, _, error) = reservations(&server, &["acquire", TWO, "--key=7", "--type=exclusive-access"]);
    assert!(status != 0 && error.contains("Reservation Conflict"), "{error}");
    report(&server, &["register", TWO, "--key=178"]);
    for abort in [&[][..], &["--abort"]] {
        let preempt = ["preempt", TWO, "--key=178", "--preempt-key=0xa1", "--type=exclusive-access"];
        let taken = report(&server, &[&preempt[..], abort].concat());
        let registrants = taken["registrants"].as_array().expect("a list");
        assert!(registrants.len() == 1 && registrants[0]["key"] == "0xb2", "{taken}");
        report(&server, &["register", ONE, "--key=0xa1"]);
    }
    report(&server, &["register", TWO, "--key=178", "--new-key=179"]);
    report(&server, &["release", TWO, "--key=179", "--type=exclusive-access"]);
    assert_eq!(reads(&server).0, 0);
    report(&server, &["unregister", ONE, "--key=0xa1"]);
    let cleared = report(&server, &["clear", TWO, "--key=179"]);
    assert_eq!(cleared["registrants"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_persistent_reservation_survives_a_killed_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = target(directory.path());
    report(&server, &["register", ONE, "--key=0xa1", "--persist"]);
    report(&server, &["acquire", ONE, "--key=0xa1"]);
    kill(server.id(), "KILL");
    drop(server);
    let server = target(directory.path());
    let kept = report(&server, &["report"]);
    assert_eq!((&kept["type"], &kept["persist"]), (&"write-exclusive".into(), &true.into()));
    assert_eq!(reads(&server).0, 0, "reading is not what this type forbids");
    let (status, _, error) =
        run(&["nvme", "write", &server.address("listening").to_string(), "--pattern=1", "--length=4K"]);
    assert!(status != 0 && error.contains("Reservation Conflict"), "{error}");
}

#[test]
fn wrong_requests_say_what_is_right() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = target(directory.path());
    for (arguments, says) in [
        (&["acquire", "--key=1"][..], "--host-id"),
        (&["register", "--host-id=7", "--key=1"], "32 hexadecimal digits"),
        (&["register", ONE, "--key=x"], "is no key"),
        (&["acquire", ONE, "--key=1", "--type=mine"], "write-exclusive"),
        (&["preempt", ONE, "--key=1"], "--preempt-key"),
    ] {
        let (status, _, error) = reservations(&server, arguments);
        assert!(status == 2 && error.contains(says), "{arguments:?}: {error}");
    }
}
