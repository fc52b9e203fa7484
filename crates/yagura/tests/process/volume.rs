//! Volumes from outside: real targets, the mirror and its target in a process of their own, and a real `kill -9`.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::membership::address;
use crate::support::{Server, http_get, kill, run};

/// Longest wait for a state that the mirror brings about.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// A node whose namespace keeps its reservations beside it, which one that is told its identity does not.
fn node_at(directory: &Path, name: &str, listen: &str) -> Server {
    let nqn = format!("--nqn=nqn.2026-11.io.yagura:node-{name}");
    let namespace = format!("--namespace=file={},size=16MiB", directory.join(name).display());
    Server::start(&["target", &format!("--listen={listen}"), &nqn, &namespace])
}

fn node(directory: &Path, name: &str) -> Server {
    node_at(directory, name, "127.0.0.1:0")
}

/// Nodes `a`, `b`, `c`, and the arguments that name their namespaces.
pub fn three(directory: &Path) -> (Vec<Server>, Vec<String>) {
    let nodes: Vec<Server> = ["a", "b", "c"].iter().map(|name| node(directory, name)).collect();
    let replicas = nodes.iter().map(|node| format!("--replica={}", address(node))).collect();
    (nodes, replicas)
}

fn volume(verb: &str, holders: &[String], more: &[&str]) -> (i32, String, String) {
    let mut arguments = vec!["volume", verb];
    arguments.extend(holders.iter().map(String::as_str));
    arguments.extend(more);
    run(&arguments)
}

pub fn made(holders: &[String]) -> serde_json::Value {
    made_by(holders, &[])
}

fn made_by(holders: &[String], more: &[&str]) -> serde_json::Value {
    let (status, stdout, stderr) = volume("create", holders, &[&["--size=8MiB", "--json"], more].concat());
    assert_eq!(status, 0, "{stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

fn attach(holders: &[String]) -> Server {
    let mut arguments =
        vec!["volume", "attach", "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--give-up-after=200"];
    arguments.extend(holders.iter().map(String::as_str));
    Server::start(&arguments)
}

/// Writes or verifies a pattern all over the served volume.
fn pattern(verb: &str, served: &Server, seed: u32) -> (i32, String, String) {
    let (at, seed) = (address(served), seed.to_string());
    match verb {
        "write" => run(&["nvme", "write", &at, "--pattern", &seed, "--length=8MiB", "--deadline=10"]),
        _ => run(&["nvme", "read", &at, "--length=8MiB", "--verify-pattern", &seed]),
    }
}

pub fn done((status, stdout, stderr): (i32, String, String)) -> String {
    assert_eq!(status, 0, "{stdout} {stderr}");
    stdout
}

/// Waits until the replica in a slot is in the state (3: in sync).
fn await_state(served: &Server, slot: usize, state: u32) {
    let line = format!("yagura_volume_replica_state{{slot=\"{slot}\"}} {state}\n");
    let begun = Instant::now();
    loop {
        let metrics = http_get(served.address("metrics"), "/metrics");
        if metrics.contains(&line) {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "slot {slot} is not in state {state}: {metrics}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_node_is_killed_under_a_volume_and_comes_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut nodes, replicas) = three(directory.path());
    let made = made(&replicas);
    assert_eq!((made["bytes"].as_u64(), made["replicas"].as_u64()), (Some(8 << 20), Some(3)));
    let served = attach(&replicas);
    done(pattern("write", &served, 1));

    // What is attached can't be looked at, nor made anew, nor taken unasked.
    assert_eq!(done(volume("status", &replicas, &[])).matches("has it attached").count(), 3);
    let (status, _, stderr) = volume("create", &replicas, &[]);
    assert!(status == 4 && stderr.contains("another host has its reservation"), "{status} {stderr}");
    let (status, _, stderr) = volume("verify", &replicas, &[]);
    assert!(status == 4 && stderr.contains("--take"), "{status} {stderr}");

    let victim = nodes.remove(1);
    let listen = address(&victim);
    kill(victim.id(), "KILL");
    victim.wait();
    done(pattern("write", &served, 2));
    await_state(&served, 1, 0);
    done(pattern("read", &served, 2));
    let back = node_at(directory.path(), "b", &listen);
    await_state(&served, 1, 3);
    assert_eq!(served.stop("TERM"), 0);

    // Detached: all three say so, and are equal.
    let shown = done(volume("status", &replicas, &["--take"]));
    assert_eq!(shown.matches("in sync 0, 1, 2").count(), 3, "{shown}");
    assert!(done(volume("verify", &replicas, &["--take"])).contains("8 regions compared, 0 differ"));
    // With the one alone that was away, and another: what it was given since is there.
    let first = nodes.remove(0);
    kill(first.id(), "KILL");
    first.wait();
    let served = attach(&replicas);
    done(pattern("read", &served, 2));
    drop((served, back, nodes));
}

#[test]
fn who_attaches_takes_the_volume_and_the_former_host_writes_nothing_more() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_nodes, replicas) = three(directory.path());
    made(&replicas);
    let first = attach(&replicas);
    done(pattern("write", &first, 1));
    let second = attach(&replicas);
    done(pattern("write", &second, 2));
    assert_ne!(pattern("write", &first, 3).0, 0, "the first host is not served any more");
    assert_eq!(first.wait(), 6, "and says so by its status");
    done(pattern("read", &second, 2));
}

#[test]
fn a_holder_that_is_gone_for_good_is_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut nodes, mut replicas) = three(directory.path());
    made(&replicas);
    let served = attach(&replicas);
    done(pattern("write", &served, 1));
    assert_eq!(served.stop("TERM"), 0);
    let gone = nodes.remove(2);
    kill(gone.id(), "KILL");
    gone.wait();
    let new = node(directory.path(), "d");
    let like = format!("--like={}", address(&nodes[0]));
    let with = format!("--with={}", address(&new));
    done(run(&["volume", "replace", "--slot=2", &with, &like]));
    let (status, _, stderr) = run(&["volume", "replace", "--slot=2", &with, &like]);
    assert!(status == 4 && stderr.contains("--force"), "it is in use by now: {status} {stderr}");
    replicas[2] = format!("--replica={}", address(&new));
    let served = attach(&replicas);
    await_state(&served, 2, 3);
    done(pattern("read", &served, 1));
    assert_eq!(served.stop("TERM"), 0);
    assert!(done(volume("verify", &replicas, &["--take"])).contains("0 differ"));
}

#[test]
fn wrong_flags_say_what_is_right() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_nodes, replicas) = three(directory.path());
    let error = |verb: &str, holders: &[String], more: &[&str], expected: i32| -> String {
        let (status, _, stderr) = volume(verb, holders, more);
        assert_eq!(status, expected, "{stderr}");
        stderr
    };
    let (status, shown, _) = volume("status", &replicas, &[]);
    assert!(status == 4 && shown.lines().all(|line| line.matches("namespace 1").count() == 1), "{status} {shown}");
    assert!(error("create", &replicas[..2], &[], 2).contains("needs --witness"));
    assert!(error("create", &replicas, &["--size=1"], 2).contains("size of the volume"));
    assert!(error("create", &replicas, &["--size=1GiB"], 2).contains("blocks"));
    let twice = [replicas[0].clone(), replicas[0].clone(), replicas[1].clone()];
    assert_ne!(volume("create", &twice, &[]).0, 0, "one namespace is not two replicas");
    assert!(error("attach", &replicas, &["--listen=127.0.0.1:0"], 3).contains("no label"));
    assert!(error("attach", &replicas, &["--listen=0.0.0.0:0"], 2).contains("--allow-host"));
    // Who was refused in the middle has taken some of them.
    assert!(error("create", &replicas, &[], 4).contains("--force"));
    made_by(&replicas, &["--force"]);
    let swapped = [replicas[1].clone(), replicas[0].clone(), replicas[2].clone()];
    assert!(error("attach", &swapped, &["--listen=127.0.0.1:0"], 3).contains("given in another's place"));
}

#[test]
fn a_volume_goes_on_with_the_copy_that_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut nodes, mut replicas) = three(directory.path());
    let made = made(&replicas);
    let served = attach(&replicas);
    done(pattern("write", &served, 1));
    assert_eq!(served.stop("TERM"), 0);
    for gone in nodes.drain(1..) {
        kill(gone.id(), "KILL");
        gone.wait();
    }
    let new = [node(directory.path(), "d"), node(directory.path(), "e")];
    for (replica, new) in replicas[1..].iter_mut().zip(&new) {
        *replica = format!("--replica={}", address(new));
    }
    let (status, _, stderr) = volume("recover", &replicas, &["--from=0"]);
    assert!(
        status == 4 && stderr.contains("in sync by its own record") && stderr.contains("--force"),
        "{status} {stderr}"
    );
    let recovered = done(volume("recover", &replicas, &["--from=0", "--force", "--json"]));
    let recovered: serde_json::Value = serde_json::from_str(&recovered).expect("JSON");
    assert_ne!(recovered["volume"], made["volume"]);
    let served = attach(&replicas);
    await_state(&served, 1, 3);
    await_state(&served, 2, 3);
    done(pattern("read", &served, 1));
    assert_eq!(served.stop("TERM"), 0);
    let verified = done(volume("verify", &replicas, &["--take"]));
    assert!(verified.contains("0 differ") && verified.contains("slot 2: 8 regions read as a whole"), "{verified}");
}
