//! DH-HMAC-CHAP from the command line: keys in files, a target that demands them, hosts with and without.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::support::*;

const HOST: &str = "nqn.2026-01.example:host";
const NQN: &str = "nqn.2026-01.example:vault";

/// A new key in a file.
fn key(folder: &Path, name: &str, hash: &str) -> PathBuf {
    let file = folder.join(name);
    let (code, _, error) = run(&["nvme", "gen-dhchap-key", "--hash", hash, "--output", text(&file)]);
    assert_eq!(code, 0, "{error}");
    assert_eq!(fs::metadata(&file).expect("it was made").permissions().mode() & 0o777, 0o600);
    file
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

/// A target that knows the host by two keys, with everything it logs in a file.
fn target(folder: &Path, host: &Path, controller: &Path, more: &[&str]) -> Server {
    let spec = format!("nqn={HOST},dhchap-key-file={},dhchap-ctrl-key-file={}", text(host), text(controller));
    let mut command = yagura(&["target", "--listen", "127.0.0.1:0", "--nqn", NQN, "--namespace", "memory=1MiB"]);
    command.args(["--host", &spec, "--json"]).args(more).env("RUST_LOG", "trace");
    command.stderr(File::create(folder.join("target.log")).expect("a log")).stdout(Stdio::piped());
    Server::of(command)
}

/// `yagura nvme identify` with these flags: exit status and what it says, everything logged.
fn identify(server: &Server, flags: &[&str]) -> (i32, String) {
    let address = server.address("listening").to_string();
    let mut command = yagura(&["nvme", "identify", &address, "--nqn", NQN]);
    command.args(flags).env("RUST_LOG", "trace");
    let (code, output, error) = finished(command);
    (code, output + &error)
}

#[test]
fn only_a_host_with_the_right_key_gets_in_and_no_key_is_logged() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (host, controller) = (key(folder, "host", "sha256"), key(folder, "controller", "sha512"));
    let other = key(folder, "other", "sha256");
    let server = target(folder, &host, &controller, &["--metrics", "127.0.0.1:0"]);
    let as_host = ["--host-nqn", HOST];
    let with = |keys: &[&str]| identify(&server, &[&as_host[..], keys].concat());
    let mut said = String::new();
    let mut check = |(code, text): (i32, String), expected: i32, sentence: &str| {
        assert!(code == expected && text.contains(sentence), "{code}: {text}");
        said += &text;
    };
    check(identify(&server, &[]), 3, "the target does not let this host's NQN in");
    check(with(&[]), 3, "the target demands authentication");
    check(with(&["--dhchap-key-file", text(&other)]), 3, "is the key in --dhchap-key-file the one");
    check(with(&["--dhchap-key-file", text(&host)]), 0, NQN);
    let both = ["--dhchap-key-file", text(&host), "--dhchap-ctrl-key-file"];
    check(with(&[&both[..], &[text(&other)]].concat()), 3, "does not know the controller key");
    check(with(&[&both[..], &[text(&controller)]].concat()), 0, NQN);
    let metrics = http_get(server.address("metrics"), "/metrics");
    assert!(metrics.contains("yagura_target_authenticated_total 4"), "two queues each: {metrics}");
    assert!(metrics.contains("yagura_target_authentications_failed_total 2"), "{metrics}");
    assert_eq!(server.stop("TERM"), 0);
    said += &fs::read_to_string(folder.join("target.log")).expect("the log");
    assert!(said.contains("did not authenticate itself"), "the target tells of it: {said}");
    for file in [host, controller, other] {
        let key = fs::read_to_string(file).expect("ours");
        let base64 = key.split(':').nth(2).expect("the key");
        for at in (0..base64.len() - 12).step_by(12) {
            assert!(!said.contains(&base64[at..at + 12]), "a key was said");
        }
    }
}

#[test]
fn a_key_file_must_be_private_and_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let file = key(folder, "host", "none");
    let spec = format!("nqn={HOST},dhchap-key-file={}", text(&file));
    let refused = |sentence: &str| {
        let serve = run(&["target", "--listen", "127.0.0.1:0", "--namespace", "memory=1MiB", "--host", &spec]);
        let flags = ["--nqn", NQN, "--host-nqn", HOST, "--dhchap-key-file", text(&file)];
        let connect = run(&[&["nvme", "identify", "127.0.0.1:1"], &flags[..]].concat());
        for (code, _, error) in [serve, connect] {
            assert!(code == 2 && error.contains(sentence), "{code}: {error}");
        }
    };
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("ours");
    refused("chmod 600");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    let good = fs::read_to_string(&file).expect("ours");
    fs::write(&file, good.replacen(":00:", ":09:", 1)).expect("ours");
    refused("the hash is not one of 00, 01, 02, 03");
    fs::write(&file, &good[..good.len() - 8]).expect("ours");
    refused("it does not end with a colon");
    let (code, _, error) = run(&["nvme", "gen-dhchap-key", "--output", text(&file)]);
    assert!(code != 0 && error.contains("File exists"), "{code}: {error}");
    let (code, _, error) = run(&["nvme", "gen-dhchap-key", "--hash", "md5", "--output", "/nowhere/key"]);
    assert!(code == 2 && error.contains("must be sha256, sha384, sha512 or none"), "{code}: {error}");
    let flags = ["target", "--namespace", "memory=1MiB", "--dhchap-groups", "modp2048"];
    let (code, _, error) = run(&flags);
    assert!(code == 2 && error.contains("ffdhe2048"), "{code}: {error}");
}

#[test]
fn where_all_must_authenticate_a_host_without_a_key_learns_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (host, controller) = (key(folder, "host", "sha384"), key(folder, "controller", "sha256"));
    let server = target(folder, &host, &controller, &["--require-auth"]);
    let address = server.address("listening").to_string();
    let (code, output, error) = run(&["nvme", "discover", &address]);
    assert!(code == 3 && output.is_empty() && error.contains("does not let this host's NQN in"), "{code}: {error}");
    let flags = ["--host-nqn", HOST, "--dhchap-key-file", text(&host)];
    assert_eq!(identify(&server, &flags).0, 0);
}
