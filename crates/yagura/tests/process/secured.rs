//! Pools whose members let nobody in without authentication and TLS; keys that are changed while a target serves.

use std::path::{Path, PathBuf};

use crate::support::{Server, run};

const HOST: &str = "nqn.2026-01.example:host";

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

/// A new key in a file.
fn key(folder: &Path, name: &str) -> PathBuf {
    let file = folder.join(name);
    let (code, _, error) = run(&["nvme", "gen-dhchap-key", "--output", text(&file)]);
    assert_eq!(code, 0, "{error}");
    file
}

/// A target that lets in the host alone, when it has shown the key.
fn node(number: usize, port: &str, host: &str, more: &[&str]) -> Server {
    let nqn = format!("nqn.2026-01.example:node-{number}");
    let line = ["target", "--port", port, "--subsystem", &format!("nqn={nqn}"), "--require-auth", "--host", host];
    Server::start(&[&line[..], &["--namespace", "memory=64MiB"], more].concat())
}

fn address(node: &Server) -> String {
    node.ready["ports"][0]["listening"].as_str().or(node.ready["listening"].as_str()).expect("it listens").to_owned()
}

#[test]
fn a_pool_of_members_that_require_authentication_and_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (host, controller) = (key(folder, "host"), key(folder, "controller"));
    let spec =
        format!("nqn={HOST},dhchap-key-file={},dhchap-ctrl-key-file={},concat=yes", text(&host), text(&controller));
    let nodes: Vec<Server> = (0..3).map(|number| node(number, "127.0.0.1:0,tls=required", &spec, &[])).collect();
    let addresses: Vec<String> = nodes.iter().map(address).collect();
    let keys = ["--dhchap-key-file", text(&host), "--dhchap-ctrl-key-file", text(&controller)];
    let secure = [&["--host-nqn", HOST, "--concat"][..], &keys].concat();
    let members: Vec<&str> = addresses.iter().flat_map(|address| ["--member", address]).collect();
    let create = [&["pool", "create"], &members[..]].concat();
    // Without keys, and with keys but without TLS: not even what there is.
    assert_eq!(run(&create).0, 3);
    let (code, _, error) = run(&[&create[..], &["--host-nqn", HOST], &keys].concat());
    assert!(code == 3 && error.contains("--concat"), "{code}: {error}");
    let (code, output, _) = run(&[&["nvme", "discover", &addresses[0]][..], &["--host-nqn", HOST], &keys].concat());
    assert!(code == 3 && output.is_empty(), "{code}: {output}");
    let (code, output, error) = run(&[&["nvme", "discover", &addresses[0]], &secure[..]].concat());
    assert!(code == 0 && output.contains("node-0"), "{code}: {output} {error}");
    let (code, _, error) = run(&[&create[..], &secure].concat());
    assert_eq!(code, 0, "{error}");
    let pool = ["--pool", &addresses[0]];
    let kv = |arguments: &[&str]| run(&[&["kv"], arguments, &pool, &secure[..]].concat());
    assert_eq!(kv(&["put", "lantern", "lit"]).0, 0);
    let (code, output, error) = kv(&["get", "lantern"]);
    assert!(code == 0 && output == "lit", "{code}: {output} {error}");
    let (code, output, error) = run(&[&["pool", "status"], &pool[..], &secure].concat());
    assert!(code == 0 && output.matches("in use").count() == 3, "{code}: {output} {error}");
    assert_eq!(run(&["kv", "get", "lantern", "--pool", &addresses[0]]).0, 3, "and nobody else reads it");
}

#[test]
fn a_host_gets_another_key_while_the_target_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (old, new) = (key(folder, "old"), key(folder, "new"));
    let control = folder.join("control");
    let spec = format!("nqn={HOST},dhchap-key-file={}", text(&old));
    let server = node(0, "127.0.0.1:0", &spec, &["--control", text(&control)]);
    let address = address(&server);
    let identify = |key: &Path| {
        let namespace = ["nvme", "identify", &address, "--nqn", "nqn.2026-01.example:node-0"];
        run(&[&namespace[..], &["--host-nqn", HOST, "--dhchap-key-file", text(key)]].concat()).0
    };
    let change = |host: &str, key: &Path| {
        let line = ["target", "set-host-key", host, "--control", text(&control), "--dhchap-key-file", text(key)];
        run(&line)
    };
    assert_eq!((identify(&old), identify(&new)), (0, 3));
    let (code, output, error) = change(HOST, &new);
    assert!(code == 0 && output.contains("by its new key from now on"), "{code}: {output} {error}");
    assert_eq!((identify(&old), identify(&new)), (3, 0));
    let (code, _, error) = change("nqn.2026-01.example:nobody", &new);
    assert!(code == 2 && error.contains("is not on the list"), "{code}: {error}");
    let (code, _, error) = change(HOST, &folder.join("missing"));
    assert!(code == 2 && error.contains("missing"), "{code}: {error}");
    assert_eq!(identify(&new), 0);
}
