//! Pre-shared keys for TLS from the command line: made, checked, and read from private files only.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::{Server, run};

const HOST: &str = "nqn.2026-01.example:host";
const NQN: &str = "nqn.2026-01.example:vault";

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

/// A new key in a file.
fn key(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let file = folder.join(name);
    let (code, output, error) = run(&[&["nvme", "gen-tls-key", "--output", text(&file)], flags].concat());
    assert_eq!(code, 0, "{error}");
    assert_eq!(fs::metadata(&file).expect("it was made").permissions().mode() & 0o777, 0o600);
    let made = fs::read_to_string(&file).expect("ours");
    assert!(made.starts_with("NVMeTLSkey-1:0") && !(output + &error).contains(&made[16..32]), "a key was said");
    file
}

#[test]
fn a_key_is_made_in_a_private_file_and_judged() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let check = |file: &Path, flags: &[&str]| run(&[&["nvme", "check-tls-key", text(file)], flags].concat());
    let kinds: [(&[&str], &str, &str); 4] = [
        (&[], "TLS_AES_128_GCM_SHA256, transformed", "NVMe1R01"),
        (&["--hash", "sha384"], "TLS_AES_256_GCM_SHA384, transformed", "NVMe1R02"),
        (&["--no-transform"], "TLS_AES_128_GCM_SHA256, used as it is", "NVMe1R01"),
        (&["--hash", "sha384", "--no-transform"], "TLS_AES_256_GCM_SHA384, used as it is", "NVMe1R02"),
    ];
    for (number, (flags, told, identity)) in kinds.into_iter().enumerate() {
        let file = key(folder, &number.to_string(), flags);
        let (code, output, error) = check(&file, &["--host-nqn", HOST, "--nqn", NQN]);
        let offered = format!("offered as: {identity} {HOST} {NQN} ");
        assert!(code == 0 && output.contains(told) && output.contains(&offered), "{code}: {output} {error}");
    }
    let file = key(folder, "key", &[]);
    let (code, _, error) = run(&["nvme", "gen-tls-key", "--output", text(&file)]);
    assert!(code != 0 && error.contains("File exists"), "a key is not written over: {code}: {error}");
    let (code, _, error) = run(&["nvme", "gen-tls-key", "--hash", "md5", "--output", "/nowhere/key"]);
    assert!(code == 2 && error.contains("must be sha256 or sha384"), "{code}: {error}");

    let good = fs::read_to_string(&file).expect("ours");
    let other = if good.as_bytes()[20] == b'A' { "B" } else { "A" };
    for (damaged, sentence) in [
        (format!("{}{other}{}", &good[..20], &good[21..]), "the key's checksum is wrong"),
        (good.replacen(":01:", ":07:", 1), "the key asks for the hash \"07\""),
        (good.replacen(":01:", ":02:", 1), "it must have 32"),
        (good[..good.len() - 8].to_owned(), "not of the form NVMeTLSkey-1"),
        (good.replacen("TLS", "DHC", 1), "not of the form NVMeTLSkey-1"),
        (String::new(), ""),
    ] {
        fs::write(&file, damaged).expect("ours");
        let (code, output, error) = check(&file, &[]);
        assert!(code == 2 && output.is_empty() && error.contains(sentence), "{sentence}: {code}: {error}");
        assert!(!error.contains(&good[24..36]), "a key was said");
    }
}

#[test]
fn a_port_for_tls_alone_wants_a_key_that_others_can_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let file = key(folder, "key", &[]);
    let spec = format!("nqn={HOST},tls-key-file={}", text(&file));
    let serve = ["target", "--port", "127.0.0.1:0,tls=required", "--nqn", NQN, "--namespace", "memory=1MiB"];
    let serve = [&serve[..], &["--host", &spec]].concat();
    let server = Server::start(&serve);
    let address = server.ready["ports"][0]["listening"].as_str().expect("it listens").to_owned();
    let keys = ["--host-nqn", HOST, "--tls", "--tls-key-file", text(&file)];
    let read = || run(&[&["nvme", "read", &address, "--nqn", NQN][..], &keys].concat());
    let (code, _, error) = read();
    assert_eq!(code, 0, "{error}");
    let (code, output, error) = run(&["nvme", "read", &address, "--nqn", NQN, "--host-nqn", HOST]);
    assert!(code == 3 && output.is_empty() && error.contains("give --tls"), "{code}: {error}");
    for mode in [0o640, 0o604, 0o620] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).expect("ours");
        for (code, output, error) in [read(), run(&serve), run(&["nvme", "check-tls-key", text(&file)])] {
            assert!(code == 2 && output.is_empty() && error.contains("chmod 600"), "{mode:o}: {code}: {error}");
        }
    }
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("ours");
    assert_eq!(read().0, 0);
}
