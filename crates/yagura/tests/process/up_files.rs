//! The files of `yagura up` from outside.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::file::ok;
use crate::support::{Redis, Reply, Server, make_tree, pool_of, run};
use crate::up::{node_address, up_with_files as up};

/// Runs a command that `up` tells, with these words in the place of those that stand for something: what it says.
fn told(server: &Server, command: &str, words: &[(&str, &str)]) -> String {
    let line = server.ready["files"][command].as_str().expect("a command");
    let mut arguments: Vec<&str> = line.split(' ').skip(1).collect();
    for argument in &mut arguments {
        let instead = words.iter().find(|(from, _)| from == argument);
        *argument = instead.map_or(*argument, |(_, to)| to);
    }
    let (status, stdout, stderr) = run(&arguments);
    assert_eq!((status, stderr.as_str()), (0, ""), "{arguments:?}: {stdout}");
    stdout
}

/// Reads all back, whoever is away, and compares it.
fn check(server: &Server, source: &Path, within: &Path) {
    let (out, pool) = (within.join("out"), pool_of(server));
    let (status, stdout, stderr) = run(&["file", "cp", "-r", "files:source", &out.display().to_string(), &pool]);
    assert_eq!(status, 0, "{stdout}{stderr}");
    ok("diff", &["-r", &source.display().to_string(), &out.display().to_string()], within);
    fs::remove_dir_all(out).expect("removed");
}

#[test]
fn files_are_there_by_what_up_tells_and_found_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (data, source) = (directory.path().join("data"), directory.path().join("source"));
    make_tree(&source);
    let server = up(&data, &[]);
    let files = &server.ready["files"];
    assert_eq!((files["data"].as_u64(), files["parity"].as_u64()), (Some(2), Some(1)), "{files}");
    told(&server, "copy", &[("TREE", source.to_str().expect("text"))]);
    assert!(told(&server, "list", &[]).contains("source"));
    // Whoever removes all keys that Redis shows removes none of theirs.
    let mut redis = Redis::connect(server.address("gateway"));
    assert_eq!(redis.call(&[b"DBSIZE"]), Reply::Integer(0));
    assert_eq!(redis.call(&[b"KEYS", b"*"]), Reply::Array(Vec::new()));
    assert!(matches!(redis.call(&[b"DEL", b"yagura-file:=files"]), Reply::Error(told) if told.contains("yagura file")));
    // Whoever looks for the pool at the nodes meets nothing of them.
    let (status, stdout, stderr) = run(&["pool", "status", &pool_of(&server), "--json"]);
    assert_eq!((status, stderr.as_str()), (0, ""));
    let status: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{stdout}");
    let first = node_address(&server, 0);
    assert_eq!(server.stop("TERM"), 0);

    // A node that had to move is done without, and goes back.
    let busy = TcpListener::bind(first).expect("its port");
    let server = up(&data, &[]);
    assert_ne!(node_address(&server, 0), first);
    check(&server, &source, directory.path());
    assert_eq!(server.stop("TERM"), 0);
    drop(busy);
    let lost = data.join("node-2/files.img");
    fs::remove_file(&lost).expect("removed");
    let server = up(&data, &[]);
    assert_eq!(node_address(&server, 0), first);
    // What was there is not made anew: a blank one would have the number of what is lost.
    assert!(!lost.exists() && server.ready["nodes"][1]["pid"].is_u64(), "{}", server.ready);
    check(&server, &source, directory.path());
    assert_eq!(server.stop("TERM"), 0);
    let data = format!("--data={}", data.display());
    let (status, _, stderr) = run(&["up", &data, "--listen=127.0.0.1:0", "--files=2GiB"]);
    assert!(status == 2 && stderr.contains("have 1 GiB; leave it out"), "{status} {stderr}");
}

#[test]
fn a_directory_from_before_there_were_files_gets_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let within = |name: &str| directory.path().join(name);
    let source = within("source");
    make_tree(&source);
    // What is nobody's is left alone, and the store is served.
    fs::create_dir(within("node-1")).expect("made");
    fs::write(within("node-1/files.img"), "somebody's").expect("written");
    let server = up(directory.path(), &["--nodes=2", "--replicas=2"]);
    assert_eq!(server.ready["files"], serde_json::Value::Null);
    Redis::connect(server.address("gateway")).set("k", b"v");
    assert_eq!(server.stop("TERM"), 0);
    assert_eq!(fs::read(within("node-1/files.img")).expect("read"), b"somebody's");
    fs::remove_file(within("node-1/files.img")).expect("removed");
    let state = fs::read_to_string(within("up.toml")).expect("read");
    assert!(!state.contains("[files]"), "{state}");
    fs::write(within("up.toml"), state.replace("version = 3", "version = 2")).expect("written");

    let server = up(directory.path(), &["--replicas=2"]);
    assert_eq!(server.ready["created"], false);
    assert_eq!(Redis::connect(server.address("gateway")).get("k").as_deref(), Some(&b"v"[..]));
    assert_eq!(server.ready["files"]["data"].as_u64(), Some(1), "two nodes have one column of each kind");
    told(&server, "copy", &[("TREE", source.to_str().expect("text"))]);
    check(&server, &source, directory.path());
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn one_node_has_no_files_nor_who_wants_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = ["--nodes=1", "--replicas=1"];
    let server = up(directory.path(), &one);
    assert_eq!(server.ready["files"], serde_json::Value::Null);
    // Nor has anybody who wants none.
    let other = tempfile::tempdir().expect("a directory");
    let none = up(other.path(), &["--no-files"]);
    assert_eq!(none.ready["files"], serde_json::Value::Null);
    assert_eq!(Redis::connect(none.address("gateway")).call(&[b"DBSIZE"]), Reply::Integer(0));
    assert_eq!((server.stop("TERM"), none.stop("TERM")), (0, 0));
    let data = format!("--data={}", directory.path().display());
    for (flag, words) in [("--files=1GiB", "two nodes at least"), ("--files=1MiB", "64 MiB at least")] {
        let (status, _, stderr) = run(&["up", &data, "--listen=127.0.0.1:0", "--replicas=1", flag]);
        assert!(status == 2 && stderr.contains(words), "{status} {stderr}");
    }
}

#[test]
fn files_that_can_not_be_kept_keep_nothing_else_away() {
    let directory = tempfile::tempdir().expect("a directory");
    let hindrance = directory.path().join("node-3/files.fresh");
    fs::create_dir_all(&hindrance).expect("made");
    let data = format!("--data={}", directory.path().display());
    let (status, _, stderr) = run(&["up", &data, "--listen=127.0.0.1:0", "--size=64MiB", "--files=1GiB"]);
    assert!(status != 0 && stderr.contains("--files: ") && stderr.contains("node-3/files.img"), "{status} {stderr}");
    let server = up(directory.path(), &[]);
    assert_eq!(server.ready["files"], serde_json::Value::Null);
    Redis::connect(server.address("gateway")).set("k", b"v");
    assert_eq!(server.stop("TERM"), 0);
    // Nothing is left of it: it may have another size then.
    fs::remove_dir(hindrance).expect("removed");
    let server = up(directory.path(), &["--files=128MiB"]);
    assert_eq!(server.ready["files"]["bytes"].as_u64(), Some(256 << 20), "{}", server.ready);
}
