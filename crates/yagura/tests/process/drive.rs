//! `yagura drive`: a drive is made, carved, served, killed, checked and damaged, as an operator would.

use std::os::unix::fs::FileExt;

use crate::support::{Server, http_get, run};

fn done(arguments: &[&str]) -> serde_json::Value {
    let (status, stdout, stderr) = run(&[&["drive"], arguments, &["--json"]].concat());
    assert_eq!(status, 0, "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

fn refused(arguments: &[&str], status: i32) -> String {
    let (found, _, stderr) = run(&[&["drive"], arguments].concat());
    assert_eq!(found, status, "{arguments:?}: {stderr}");
    stderr
}

#[test]
fn a_drive_is_carved_served_killed_and_checked() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("drive");
    let path = path.to_str().expect("text");
    assert!(refused(&["list", path], 4).contains("No such file"));
    assert!(refused(&["format", path], 2).contains("--size"));
    done(&["format", path, "--size=64M"]);
    assert!(refused(&["format", path], 4).contains("--force"));
    done(&["create", path, "vm", "--size=1G"]);
    assert!(refused(&["create", path, "vm", "--size=1G"], 2).contains("already"));
    assert!(refused(&["grow", path, "vm", "--size=1M"], 2).contains("only grows"));
    assert!(refused(&["delete", path, "nobody"], 2).contains("yagura drive list"));
    done(&["create", path, "other", "--size=8M"]);
    done(&["delete", path, "other"]);

    let server = Server::start(&["target", "--listen=127.0.0.1:0", &format!("--namespace=drive={path},name=vm")]);
    let address = server.address("listening").to_string();
    let content = directory.path().join("content");
    std::fs::write(&content, vec![7; 1 << 20]).expect("written");
    let input = format!("--file={}", content.display());
    let (status, _, stderr) = run(&["nvme", "write", &address, &input]);
    assert_eq!(status, 0, "{stderr}");
    assert!(refused(&["check", path], 4).contains("in use"));
    server.stop("KILL");

    assert_eq!(done(&["check", path])["faults"], serde_json::json!([]));
    done(&["snapshot", path, "vm", "before"]);
    done(&["clone", path, "before", "copy"]);
    done(&["grow", path, "copy", "--size=2G"]);
    let listed = done(&["list", path]);
    let names: Vec<_> =
        listed.as_array().expect("a list").iter().map(|one| one["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["vm", "before", "copy"]);
    assert_eq!((&listed[1]["snapshot"], &listed[2]["bytes"]), (&true.into(), &(2_u64 << 30).into()));
    assert_eq!(done(&["usage", path])["used_bytes"], 1 << 20);
    let scrubbed = done(&["scrub", path]);
    assert_eq!((&scrubbed["bytes"], &scrubbed["damaged"]), (&(1 << 20).into(), &0.into()));
    assert!(done(&["dump", path])["dump"].as_str().expect("words").contains("snapshot 3 \"before\""));

    // A byte of the first block that is all sevens.
    let medium = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("opened");
    let bytes = std::fs::read(path).expect("read");
    let at = bytes.chunks_exact(4096).position(|block| block.iter().all(|&byte| byte == 7)).expect("it was written");
    medium.write_all_at(&[8], at as u64 * 4096 + 100).expect("damaged");
    let (status, stdout, _) = run(&["drive", "scrub", path]);
    assert_eq!(status, 1, "{stdout}");
    assert!(stdout.contains("vm: block 0 does not match its checksum"), "{stdout}");
}

/// Two namespaces of one drive in one target share its one opening; each keeps what it is given.
#[test]
fn a_target_serves_several_namespaces_of_one_drive() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("drive");
    let path = path.to_str().expect("text");
    done(&["format", path, "--size=32M"]);
    for name in ["a", "b"] {
        done(&["create", path, name, "--size=16M"]);
    }
    let spec = |name: &str| format!("--namespace=drive={path},name={name}");
    let flags = ["target", "--listen=127.0.0.1:0", "--reactors=2", "--metrics=127.0.0.1:0"];
    let server = Server::start(&[&flags[..], &[&*spec("a"), &*spec("b")]].concat());
    let address = server.address("listening").to_string();
    for (nsid, byte) in [("--nsid=1", b'A'), ("--nsid=2", b'B')] {
        let content = directory.path().join("content");
        std::fs::write(&content, vec![byte; 256 << 10]).expect("written");
        let (status, _, stderr) = run(&["nvme", "write", &address, nsid, &format!("--file={}", content.display())]);
        assert_eq!(status, 0, "{stderr}");
    }
    for (nsid, byte) in [("--nsid=1", 'A'), ("--nsid=2", 'B')] {
        let (status, stdout, stderr) = run(&["nvme", "read", &address, nsid, "--length=256K"]);
        assert_eq!(status, 0, "{stderr}");
        assert!(stdout.len() == 256 << 10 && stdout.chars().all(|found| found == byte), "namespace {nsid}");
    }
    // Both are of one drive, which is told of once.
    let metrics = http_get(server.address("metrics"), "/metrics");
    let drive = std::fs::canonicalize(path).expect("there").display().to_string();
    for (name, value) in [("promised_bytes", 32 << 20), ("failed", 0), ("checksum_failures_total", 0)] {
        let line = format!("yagura_drive_{name}{{drive=\"{drive}\"}} {value}\n");
        assert_eq!(metrics.matches(&line).count(), 1, "{line}{metrics}");
    }
    assert_eq!(server.stop("TERM"), 0);
    let found = run(&["target", "--listen=127.0.0.1:0", &spec("c")]);
    assert!(found.0 == 2 && found.2.contains("\"c\""), "{found:?}");
}
