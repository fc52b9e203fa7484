//! Backups of volumes from outside: snapshots are written to files and pipes, and read into other volumes.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::control::{Control, HOST, node_of};
use crate::membership::address;
use crate::support::{Server, finished, run, yagura};

fn done(arguments: &[&str]) -> String {
    let (status, stdout, stderr) = run(arguments);
    assert_eq!(status, 0, "{arguments:?}: {stdout} {stderr}");
    stdout
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(&[arguments, &["--json"]].concat())).expect("JSON")
}

fn refused(status: i32, arguments: &[&str]) -> String {
    let (found, stdout, stderr) = run(arguments);
    assert_eq!(found, status, "{arguments:?}: {stdout} {stderr}");
    stderr
}

/// A target with a drive of one namespace, and how a volume's holder is named that it is.
fn drive(directory: &Path, name: &str) -> (Server, String) {
    let file = directory.join(name).display().to_string();
    done(&["drive", "format", &file, "--size=64MiB"]);
    let control = format!("--control={}", directory.join(name).with_extension("sock").display());
    let nqn = format!("--nqn=nqn.2026-11.io.yagura:backup-{name}");
    let server = Server::start(&["target", "--listen=127.0.0.1:0", &nqn, &format!("--drive={file}"), &control]);
    done(&["target", "drive", "create", "disk", "--size=12MiB", &control]);
    let holder = format!("--replica={}", address(&server));
    (server, holder)
}

/// An attached volume is written by this, then detached.
fn write(holders: &[String], arguments: &[&str]) {
    let holders: Vec<&str> = holders.iter().map(String::as_str).collect();
    let served = Server::start(&[&["volume", "attach", "--listen=127.0.0.1:0"][..], &holders].concat());
    done(&[&["nvme", "write", &address(&served), "--deadline=20"][..], arguments].concat());
    assert_eq!(served.stop("TERM"), 0);
}

/// All bytes of a volume.
fn bytes(holders: &[String], directory: &Path) -> Vec<u8> {
    let holders: Vec<&str> = holders.iter().map(String::as_str).collect();
    let served = Server::start(&[&["volume", "attach", "--listen=127.0.0.1:0"][..], &holders].concat());
    let file = directory.join("bytes");
    done(&["nvme", "read", &address(&served), "--length=8MiB", "--file", &file.display().to_string()]);
    assert_eq!(served.stop("TERM"), 0);
    std::fs::read(file).expect("it was read")
}

#[test]
fn a_volume_is_backed_up_and_its_changes_after_it() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path();
    let drives: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| drive(directory, name)).collect();
    let source: Vec<String> = drives[..3].iter().map(|(_, holder)| holder.clone()).collect();
    let copy: Vec<String> = drives[3..].iter().map(|(_, holder)| holder.clone()).collect();
    let volume = |verb: &'static str, holders: &[String], more: &[&str]| -> Vec<String> {
        let words = ["volume", verb].into_iter().map(str::to_owned).chain(holders.iter().cloned());
        words.chain(more.iter().map(|word| (*word).to_owned())).collect()
    };
    let run_it = |words: Vec<String>| -> Value { json(&words.iter().map(String::as_str).collect::<Vec<_>>()) };
    let fails = |status: i32, words: Vec<String>| -> String {
        refused(status, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for holders in [&source, &copy] {
        run_it(volume("create", holders, &["--size=8MiB"]));
    }
    let path = |name: &str| directory.join(name).display().to_string();
    let (full, change, next) = (path("full"), path("change"), path("next"));
    write(&source, &["--pattern=1", "--length=3MiB"]);
    let snapshot = || run_it(volume("snapshot", &source, &["--take"]))["snapshot"].as_str().expect("a name").to_owned();
    let first = snapshot();
    write(&source, &["--pattern=2", "--length=64KiB", "--lba=200"]);
    let second = snapshot();
    let of_second = bytes(&source, directory);
    write(&source, &["--pattern=3", "--length=4KiB"]);
    let third = snapshot();

    // Where they differ, and what is said of each.
    let from = |from: &str| format!("--from={from}");
    let found = run_it(volume("diff", &source, &["--take", &from(&first), "--to", &second]));
    assert_eq!(found["is_compared"], false, "{found}");
    let (block, extents) = (512, found["extents"].as_array().expect("a list"));
    let is_there = |at: u64| extents.iter().any(|one| (one["offset"].as_u64().expect("bytes")..).contains(&at));
    assert!(is_there(200 * block) || is_there(200 * 4096), "{found}");
    assert!(found["bytes"].as_u64().expect("bytes") < 1 << 20, "{found}");
    assert!(fails(4, volume("diff", &source, &["--to", &second])).contains("--take"));
    assert!(fails(2, volume("diff", &source, &["--take", &from(&second), "--to", &first])).contains("older"));
    assert!(fails(4, volume("diff", &source, &["--take", "--to=9-0000000000000001-1"])).contains(&second));
    assert!(fails(2, volume("diff", &source, &["--take", "--to=monday"])).contains("ROUND-HOST-ATTEMPT"));

    let said = run_it(volume("export", &source, &["--take", "--snapshot", &first, &full]));
    assert_eq!((&said["bytes"], &said["size"]), (&(3 << 20).into(), &(8 << 20).into()), "{said}");
    run_it(volume("export", &source, &["--take", "--snapshot", &second, &from(&first), &change]));
    run_it(volume("export", &source, &["--take", "--snapshot", &third, &from(&second), &next]));
    assert!(fails(4, volume("export", &source, &["--take", "--snapshot", &first, &full])).contains("exists"));

    // In the wrong order, cut off, and damaged: said, and never taken for whole.
    assert!(fails(4, volume("import", &copy, &["--take", &change])).contains("import what lies between first"));
    assert!(fails(4, volume("import", &copy, &[&full])).contains("--take"));
    let whole = std::fs::read(&full).expect("a stream");
    std::fs::write(path("cut"), &whole[..whole.len() - 1]).expect("written");
    let said = fails(4, volume("import", &copy, &["--take", &path("cut")]));
    assert!(said.contains("cut off") && said.contains("in part imported"), "{said}");
    let status = run_it(volume("status", &copy, &["--take"]));
    assert_eq!(status[0]["is_partial"], true, "{status}");
    let mut damaged = whole.clone();
    damaged[1 << 20] ^= 1;
    std::fs::write(path("damaged"), &damaged).expect("written");
    assert!(fails(4, volume("import", &copy, &["--take", &path("damaged")])).contains("damaged"));
    assert!(fails(4, volume("import", &copy, &["--take", &change])).contains("in part imported"));
    // Through a pipe.
    let words = volume("import", &copy, &["--take", "--json"]);
    let mut import = yagura(&words.iter().map(String::as_str).collect::<Vec<_>>());
    import.stdin(Stdio::from(std::fs::File::open(&full).expect("a stream")));
    let (status, _, stderr) = finished(import);
    assert_eq!(status, 0, "{stderr}");
    run_it(volume("import", &copy, &["--take", &change]));
    assert!(bytes(&copy, directory) == of_second, "the copy has other bytes than the snapshot");
    let again = run_it(volume("import", &copy, &["--take", &change]));
    assert_eq!(again["is_known"], true, "{again}");
    assert!(fails(4, volume("import", &copy, &["--take", &full])).contains("--force"));

    // Written since: a difference would make of it what never was.
    write(&copy, &["--pattern=9", "--length=4KiB", "--lba=300"]);
    assert!(fails(4, volume("import", &copy, &["--take", &next])).contains("was written since"));
    run_it(volume("import", &copy, &["--take", "--force", &full]));
    run_it(volume("import", &copy, &["--take", &change]));
    run_it(volume("import", &copy, &["--take", &next]));
    assert!(bytes(&copy, directory) == bytes(&source, directory), "the copy has other bytes than the volume");
    run_it(volume("snapshot", &source, &["--take", "--delete", &first]));
    assert!(fails(4, volume("snapshot", &source, &["--take", "--delete", &first])).contains("no such snapshot"));
}

#[test]
fn a_volume_in_use_is_backed_up_by_its_name() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path();
    let nodes: Vec<Server> =
        ["a", "b", "c"].iter().map(|name| node_of("96MiB", directory, name, "127.0.0.1:0")).collect();
    let control = Control::start(directory);
    control.register(&[("a", &nodes[0]), ("b", &nodes[1]), ("c", &nodes[2])]);
    control.done("tenant", &["a"]);
    for name in ["db", "copy"] {
        control.done("create", &[name, "--tenant=a", "--size=8MiB"]);
    }
    let volume = |verb: &'static str, name: &str, more: &[&str]| -> Vec<String> {
        let who =
            ["volume", verb, "--name", name, "--tenant=a", "--control", &control.url, "--token-file", &control.token];
        who.iter().chain(&["--host-nqn", HOST]).chain(more).map(|word| (*word).to_owned()).collect()
    };
    let run_it = |words: Vec<String>| -> Value { json(&words.iter().map(String::as_str).collect::<Vec<_>>()) };
    let served = control.attach("db", HOST, &[]);
    let write = |pattern: &str, length: &str| {
        done(&["nvme", "write", &address(&served), "--pattern", pattern, "--length", length, "--deadline=20"]);
    };
    write("1", "8MiB");
    control.done("snapshot", &["db", "monday", "--tenant=a"]);
    write("2", "1MiB");
    control.done("snapshot", &["db", "tuesday", "--tenant=a"]);
    write("3", "8MiB");
    // While it is used, and nothing is taken from whoever uses it.
    let (full, change) = (directory.join("full").display().to_string(), directory.join("change").display().to_string());
    run_it(volume("export", "db", &["--snapshot=monday", &full]));
    let said = run_it(volume("export", "db", &["--snapshot=tuesday", "--from=monday", &change]));
    assert_eq!((&said["is_compared"], &said["bytes"]), (&false.into(), &(1 << 20).into()), "{said}");
    let words = volume("diff", "db", &["--from=sunday", "--to=monday"]);
    assert!(refused(4, &words.iter().map(String::as_str).collect::<Vec<_>>()).contains("monday, tuesday"));
    done(&["nvme", "read", &address(&served), "--length=8MiB", "--verify-pattern=3"]);

    let words = volume("import", "db", &[&full]);
    assert!(refused(4, &words.iter().map(String::as_str).collect::<Vec<_>>()).contains("--take"));
    done(&["nvme", "read", &address(&served), "--length=8MiB", "--verify-pattern=3"]);
    let words = volume("import", "db", &["--take", &full]);
    assert!(refused(4, &words.iter().map(String::as_str).collect::<Vec<_>>()).contains("not blank"));
    assert_eq!(served.wait(), 6, "a host that imports has the volume");
    run_it(volume("import", "copy", &[&full]));
    run_it(volume("import", "copy", &[&change]));
    let copy = control.attach("copy", HOST, &[]);
    done(&["nvme", "read", &address(&copy), "--length=1MiB", "--verify-pattern=2"]);
    done(&["nvme", "read", &address(&copy), "--lba=1024", "--length=1MiB", "--verify-pattern=1"]);
    assert_eq!(copy.stop("TERM"), 0);
    // The snapshot that the import has taken goes with the volume.
    control.done("delete", &["copy", "--tenant=a"]);
    for name in ["a", "b", "c"] {
        let drive = control.done("show", &["drives", name]);
        assert_eq!(drive["unrecorded"], Value::Array(vec![]), "{drive}");
    }
}
