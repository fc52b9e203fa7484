//! `yagura target` with ports, hosts and its control socket, as an operator and as hosts see it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Server, run};

const NQN: &str = "nqn.2026-11.io.yagura:node";
const HOST: &str = "nqn.2026-11.io.yagura:some-host";

/// A target in memory with two ports, and its control socket in `directory`.
fn two_ports(directory: &Path, more: &[&str]) -> (Server, String) {
    let control = format!("--control={}", directory.join("control").display());
    let ports = ["--port=127.0.0.1:0", "--port=127.0.0.1:0,ana=1:non-optimized"];
    let arguments = [&["target", "--namespace=memory=16M", &control], &ports[..], more].concat();
    (Server::start(&arguments), control)
}

fn port(server: &Server, index: usize) -> String {
    server.ready["ports"][index]["listening"].as_str().expect("an address").to_string()
}

/// Runs a verb that must succeed: its JSON document.
fn ask(control: &str, arguments: &[&str]) -> serde_json::Value {
    let (status, stdout, stderr) = run(&[&["target"], arguments, &[control, "--json"]].concat());
    assert_eq!(status, 0, "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// Runs a verb that must be refused: its exit status and sentence.
fn refused(control: &str, arguments: &[&str]) -> (i32, String) {
    let (status, _, stderr) = run(&[&["target"], arguments, &[control]].concat());
    assert_ne!(status, 0, "{arguments:?} is done");
    (status, stderr)
}

fn reads(address: &str) -> bool {
    run(&["nvme", "read", address, "--length=4K"]).0 == 0
}

#[test]
fn a_group_is_switched_from_port_to_port_while_the_target_serves() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, control) = two_ports(directory.path(), &[]);
    let report = ask(&control, &["status"]);
    assert_eq!(report["subsystems"][0]["ana"][0]["state"], "non-optimized");
    assert!(reads(&port(&server, 0)) && reads(&port(&server, 1)));
    ask(&control, &["ana", "--group=1", "--port=1", "--state=inaccessible"]);
    let (status, _, stderr) = run(&["nvme", "read", &port(&server, 0), "--length=4K", "--deadline=1"]);
    assert!(status == 3 && stderr.contains("inaccessible"), "{stderr}");
    assert!(reads(&port(&server, 1)));
    ask(&control, &["ana", "--group=1", "--port=1", "--state=optimized"]);
    assert!(reads(&port(&server, 0)));
    let (status, text, _) = run(&["target", "status", &control]);
    assert!(status == 0 && text.contains("group 1 at port 2: non-optimized"), "{text}");
}

#[test]
fn hosts_are_let_in_and_out_while_the_target_serves() {
    let directory = tempfile::tempdir().expect("a directory");
    let listed = format!("--host=nqn={HOST}");
    let (server, control) = two_ports(directory.path(), &[&listed]);
    let read = || run(&["nvme", "read", &port(&server, 0), &format!("--nqn={NQN}"), "--length=4K"]);
    let (status, _, stderr) = read();
    assert!(status != 0 && stderr.contains("Invalid Host"), "{stderr}");
    let (_, discovered, _) = run(&["nvme", "discover", &port(&server, 0)]);
    assert!(!discovered.contains(NQN), "{discovered}");
    ask(&control, &["allow-host", "any"]);
    assert_eq!(read().0, 0);
    ask(&control, &["deny-host", "any"]);
    assert_ne!(read().0, 0);
    let (status, error) = refused(&control, &["deny-host", "any"]);
    assert!(status == 2 && error.contains("does not let in any host"), "{error}");
    let listed = || ask(&control, &["status"])["subsystems"][0]["hosts"][0].clone();
    assert_eq!((&listed()["nqn"], &listed()["manages"]), (&HOST.into(), &false.into()));
    ask(&control, &["allow-host", HOST, "--manage=yes"]);
    assert_eq!((&listed()["manages"], &listed()["authenticates"]), (&true.into(), &false.into()));
    ask(&control, &["deny-host", HOST]);
    let (status, error) = refused(&control, &["deny-host", HOST]);
    assert!(status == 2 && error.contains("is not on the list"), "{error}");
}

#[test]
fn namespaces_come_grow_and_go_while_the_target_serves() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, control) = two_ports(directory.path(), &[]);
    let file = directory.path().join("disk");
    let spec = format!("file={},size=8MiB,nsid=3,group=2", file.display());
    assert_eq!(ask(&control, &["add-namespace", &spec])["nsid"], 3);
    let third = |verb: &str, more: &[&str]| run(&[&["nvme", verb, &port(&server, 0), "--nsid=3"], more].concat());
    assert_eq!(third("write", &["--pattern=3", "--length=8MiB"]).0, 0);
    let (status, error) = refused(&control, &["add-namespace", &spec]);
    assert!(status == 2 && error.contains("has a namespace 3 already"), "{error}");
    ask(&control, &["resize-namespace", "--nsid=3", "--size=16MiB"]);
    assert_eq!(third("read", &["--lba=2048", "--length=8MiB"]).0, 0, "the new blocks");
    assert_eq!(third("read", &["--verify-pattern=3", "--length=8MiB"]).0, 0, "the old ones");
    let shrink = refused(&control, &["resize-namespace", "--nsid=3", "--size=8MiB"]);
    assert!(shrink.0 == 2 && shrink.1.contains("can only grow"), "{}", shrink.1);
    assert!(refused(&control, &["resize-namespace", "--nsid=1", "--size=32MiB"]).1.contains("memory"));
    let done = ask(&control, &["remove-namespace", "--nsid=3"]);
    assert!(done["done"].as_str().expect("text").contains("its medium is free"), "{done}");
    assert_ne!(third("read", &["--length=4K"]).0, 0);
    let again = Server::start(&["target", "--listen=127.0.0.1:0", &format!("--namespace=file={}", file.display())]);
    let address = again.address("listening").to_string();
    assert_eq!(run(&["nvme", "read", &address, "--verify-pattern=3", "--length=8MiB"]).0, 0, "nothing was lost");
    let (status, error) = refused(&control, &["add-namespace", &format!("file={}", file.display())]);
    assert!(status == 4 && error.contains("in use by another process"), "{error}");
}

#[test]
fn unknown_names_are_refused_and_the_socket_is_the_owners() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_server, control) = two_ports(directory.path(), &[]);
    let path = directory.path().join("control");
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let cases: [(&[&str], &str); 7] = [
        (&["ana", "--group=1", "--port=9", "--state=change"], "there is no port 9"),
        (&["ana", "--group=1", "--nsid=9"], "no namespace 9"),
        (&["ana", "--group=1", "--port=1", "--state=good"], "no ANA state"),
        (&["ana", "--group=129", "--nsid=1"], "from 1 to 128"),
        (&["remove-namespace", "--nsid=7"], "no namespace 7"),
        (&["remove-namespace", "--nsid=1", "--subsystem=nqn.2026-11.io.yagura:nod"], "did you mean"),
        (&["allow-host", "somebody"], "is no NQN"),
    ];
    for (arguments, expected) in cases {
        let (status, error) = refused(&control, arguments);
        assert!(status == 2 && error.contains(expected), "{arguments:?}: {status} {error}");
    }
    let (status, error) = refused("--control=/nonexistent/control", &["status"]);
    assert!(status == 3 && error.contains("is the target running"), "{error}");
    let (status, error) = refused(&control, &["--namespace=memory=1M"]);
    assert!(status == 4 && error.contains("in use by another process"), "a second target: {error}");
}

#[test]
fn a_socket_left_behind_is_replaced_and_one_of_an_orderly_end_is_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("control");
    let (killed, _) = two_ports(directory.path(), &[]);
    drop(killed);
    assert!(path.exists(), "a killed process leaves its socket");
    let (server, control) = two_ports(directory.path(), &[]);
    ask(&control, &["status"]);
    assert_eq!(server.stop("TERM"), 0);
    assert!(!path.exists());
}

#[test]
fn all_of_it_can_stand_in_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("yagura.toml");
    let text = format!(
        "[target]
         port = ['127.0.0.1:0,id=5,ana=2:inaccessible', '127.0.0.1:0,id=6']
         subsystem = ['nqn={NQN}:a', 'nqn={NQN}:b,allow=listed,port=6']
         host = ['nqn={HOST},subsystem={NQN}:b']
         referral = ['192.0.2.1:8009']
         namespace = ['memory=16M,subsystem={NQN}:a,group=2', 'memory=16M,subsystem={NQN}:b,nsid=4']
         control = '{}'",
        directory.path().join("control").display()
    );
    std::fs::write(&file, text).expect("written");
    let server = Server::start(&["target", "--config", file.to_str().expect("text")]);
    let control = format!("--control={}", directory.path().join("control").display());
    let report = ask(&control, &["status"]);
    assert_eq!((&report["ports"][0]["id"], &report["referrals"][0]), (&5.into(), &"192.0.2.1:8009".into()));
    let second = &report["subsystems"][1];
    assert_eq!((&second["ports"][0], &second["namespaces"][0]["nsid"]), (&6.into(), &4.into()));
    assert_eq!((&second["any_host"], &second["hosts"][0]["nqn"]), (&false.into(), &HOST.into()));
    let a = format!("--nqn={NQN}:a");
    let read = |index| run(&["nvme", "read", &port(&server, index), &a, "--length=4K", "--deadline=1"]).0;
    assert!(read(0) != 0 && read(1) == 0, "group 2 is inaccessible at port 5 alone");
    let (_, discovered, _) = run(&["nvme", "discover", &port(&server, 1)]);
    assert!(discovered.contains(&format!("{NQN}:a")) && !discovered.contains(&format!("{NQN}:b")), "{discovered}");
    assert!(discovered.contains("192.0.2.1:8009"), "{discovered}");
}
