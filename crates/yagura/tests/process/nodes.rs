//! Storage nodes and pools, from outside: refusals by name, metrics, and blocks through our own host.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use crate::support::{PATIENCE, Server, http_get, http_status, make_tree, run, yagura};

pub fn node(directory: &Path, name: &str, size: &str) -> Server {
    let nqn = format!("--nqn=nqn.2026-11.io.yagura:test-{name}");
    let namespace = format!("--namespace=file={},size={size}", directory.join(name).display());
    Server::start(&["target", "--listen=127.0.0.1:0", &nqn, &namespace])
}

/// Three nodes in files, not yet a pool.
pub fn three(directory: &Path, size: &str) -> Vec<Server> {
    ["a", "b", "c"].into_iter().map(|name| node(directory, name, size)).collect()
}

fn addresses(nodes: &[Server]) -> Vec<String> {
    nodes.iter().map(|node| node.address("listening").to_string()).collect()
}

/// Makes a pool of the nodes; the arguments that name it.
pub fn create(nodes: &[Server], more: &[&str]) -> String {
    let members: Vec<String> = addresses(nodes).iter().map(|address| format!("--member={address}")).collect();
    let mut arguments = vec!["pool", "create"];
    arguments.extend(members.iter().map(String::as_str));
    arguments.extend(more);
    let (status, _, stderr) = run(&arguments);
    assert_eq!(status, 0, "{stderr}");
    format!("--pool={}", addresses(nodes).join(","))
}

/// The store needs no more of a target than fused compare-and-write of one block of 4 KiB.
#[test]
fn a_pool_on_targets_that_offer_the_least() {
    let directory = tempfile::tempdir().expect("a directory");
    let nodes: Vec<Server> = ["a", "b", "c"].iter().map(|name| minimal(directory.path(), name, "block=4096")).collect();
    let pool = create(&nodes, &[]);
    let tree = directory.path().join("tree");
    make_tree(&tree);
    let tree = tree.to_str().expect("text");
    for verb in [&["import", tree][..], &["verify", "--against", tree], &["scrub"]] {
        let (status, _, stderr) = run(&[&["kv"][..], verb, &[&pool]].concat());
        assert_eq!(status, 0, "{verb:?}: {stderr}");
    }
}

#[test]
fn a_target_whose_pairs_are_too_small_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let small = minimal(directory.path(), "a", "block=512");
    let member = format!("--member={}", small.address("listening"));
    let (status, _, stderr) = run(&["pool", "create", &member, "--replicas=1"]);
    assert_eq!(status, 4, "{stderr}");
    assert!(stderr.contains("atomic compare-and-write takes 512 bytes, a page of 4096 bytes"), "{stderr}");
}

fn minimal(directory: &Path, name: &str, more: &str) -> Server {
    let nqn = format!("--nqn=nqn.2026-11.io.yagura:minimal-{name}");
    let namespace = format!("--namespace=file={},size=16MiB,{more}", directory.join(name).display());
    Server::start(&["target", "--profile=minimal", "--listen=127.0.0.1:0", &nqn, &namespace])
}

#[test]
fn a_second_opener_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let _first = node(directory.path(), "a", "16MiB");
    let file = directory.path().join("a");
    let (status, _, stderr) = run(&["target", "--listen=127.0.0.1:0", &format!("--namespace=file={}", file.display())]);
    assert_eq!(status, 4, "{stderr}");
    assert!(stderr.contains(file.to_str().expect("text")) && stderr.contains("in use by another process"), "{stderr}");
}

/// Five seconds of nothing came before "in use".
#[test]
fn what_is_waited_for_is_said_while_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = node(directory.path(), "a", "16MiB");
    let taken = format!("--listen={}", first.address("listening"));
    let medium = format!("--namespace=file={}", directory.path().join("a").display());
    for (arguments, expected) in [
        ([&taken, "--namespace=memory=16MiB"], "the port is in use: waiting up to 5 s for it"),
        (["--listen=127.0.0.1:0", &medium], "another process has it: waiting up to 5 s for the end of that"),
    ] {
        let mut command = yagura(&["target", arguments[0], arguments[1]]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let said = stderr.lines().map_while(Result::ok).find(|line| line.contains(expected));
        let waits = child.try_wait().expect("looked at").is_none();
        // It may have ended by itself.
        let _ = child.kill();
        child.wait().expect("it has ended");
        assert!(said.is_some() && waits, "{said:?}, while it waited: {waits}");
    }
}

#[test]
fn sigterm_ends_a_node_in_good_order_and_its_port_is_free_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = node(directory.path(), "a", "16MiB");
    let address = first.address("listening");
    let nguid = first.ready["namespaces"][0]["nguid"].clone();
    assert_eq!(first.stop("TERM"), 0);
    let namespace = format!("--namespace=file={}", directory.path().join("a").display());
    let again = Server::start(&["target", &format!("--listen={address}"), &namespace]);
    assert_eq!((again.address("listening"), &again.ready["namespaces"][0]["nguid"]), (address, &nguid));
    assert_eq!(again.stop("INT"), 0);
}

#[test]
fn blocks_through_our_host() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = node(directory.path(), "a", "16MiB");
    let address = server.address("listening").to_string();
    let nqn = server.ready["nqn"].as_str().expect("text");
    let (status, stdout, _) = run(&["nvme", "discover", &address]);
    assert!(status == 0 && stdout.contains(nqn), "{stdout}");
    for digests in [&[][..], &["--header-digest", "--data-digest"]] {
        let call = |arguments: &[&str]| run(&[arguments, digests].concat());
        assert_eq!(call(&["nvme", "write", &address, "--lba=8", "--pattern=7", "--length=1MiB"]).0, 0);
        assert_eq!(call(&["nvme", "read", &address, "--lba=8", "--verify-pattern=7", "--length=1MiB"]).0, 0);
        let (status, _, stderr) = call(&["nvme", "read", &address, "--lba=9", "--verify-pattern=8", "--length=4K"]);
        assert!(status == 1 && stderr.contains("byte 36864"), "{stderr}");
    }
    for lba in ["--lba=1000000", "--lba=18446744073709551615"] {
        for verb in [&["read", "--verify-pattern=7"][..], &["write", "--pattern=7"]] {
            let (status, _, stderr) = run(&[&["nvme", verb[0], &address, lba, "--length=1MiB"], &verb[1..]].concat());
            assert!(status == 2 && stderr.contains("beyond the namespace's end"), "{stderr}");
        }
    }
    let (status, _, stderr) = run(&["nvme", "identify", &address, "--nqn=nqn.2026-11.io.yagura:nobody"]);
    assert!(status == 3, "{stderr}");
}

#[test]
fn a_bad_pdu_ends_its_connection_and_touches_no_other() {
    let server = Server::start(&["target", "--listen=127.0.0.1:0", "--namespace=memory=16M", "--metrics=127.0.0.1:0"]);
    let mut bad = TcpStream::connect(server.address("listening")).expect("connected");
    bad.set_read_timeout(Some(PATIENCE)).expect("set");
    bad.write_all(&[0x77; 128]).expect("sent");
    let mut answer = Vec::new();
    bad.read_to_end(&mut answer).expect("closed in good order");
    // C2HTermReq (NVMe/TCP 1.0 §3.6.2.6).
    assert_eq!(answer.first(), Some(&0x03), "{answer:?}");
    assert_eq!(run(&["nvme", "identify", &server.address("listening").to_string()]).0, 0);
    let metrics = http_get(server.address("metrics"), "/metrics");
    assert!(metrics.contains("yagura_target_protocol_errors_total 1\n"), "{metrics}");
    assert_eq!(http_get(server.address("metrics"), "/healthz"), "ok\n");
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let server = Server::start(&["target", "--listen=127.0.0.1:0", "--namespace=memory=16M", "--metrics=127.0.0.1:0"]);
    let address = server.address("listening").to_string();
    assert_eq!(run(&["nvme", "write", &address, "--pattern=1", "--length=64K"]).0, 0);
    let (_, text) = http_status(server.address("metrics"), "/metrics", "Accept: application/openmetrics-text\r\n");
    let mut last: Option<(String, f64)> = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line:?}"));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number in {line:?}"));
        // The buckets of one histogram are cumulative.
        let series = name.split_once(",le=").or(name.split_once("{le=")).map(|(series, _)| series.to_string());
        if let (Some(series), Some((before, count))) = (&series, &last)
            && series == before
        {
            assert!(value >= *count, "{line}");
        }
        last = series.map(|series| (series, value));
    }
    assert!(text.contains("yagura_target_commands_total{command=\"write\"} 1\n"), "{text}");
    assert!(text.contains("yagura_target_written_bytes_total 65536\n"), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn a_pool_is_made_once_and_members_in_use_are_not_taken() {
    let directory = tempfile::tempdir().expect("a directory");
    let nodes = three(directory.path(), "32MiB");
    let pool = create(&nodes, &[]);
    let (status, stdout, stderr) = run(&["pool", "status", &pool, "--json"]);
    assert_eq!(status, 0, "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert!(report["members"].as_array().expect("members").iter().all(|member| member["votes"] == true), "{report}");
    let member = format!("--member={}", addresses(&nodes)[0]);
    let (status, _, stderr) = run(&["pool", "create", &member, "--replicas=1"]);
    assert!(status == 4 && stderr.contains("is in use"), "{stderr}");
    let (status, _, stderr) = run(&["pool", "create", &member]);
    assert!(status == 2 && stderr.contains("add members or lower the replica count"), "{stderr}");
    // Nor are they given to another pool, and nobody is taken twice.
    let others = ["other", "more"].map(|name| node(directory.path(), name, "32MiB"));
    let [other, more] = others.each_ref().map(|node| node.address("listening").to_string());
    let (status, stdout, stderr) = run(&["pool", "create", &format!("--member={other}"), "--replicas=1"]);
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.contains("room for values") && stdout.contains("--values SIZE"), "{stdout}");
    let (other, more) = (format!("--pool={other}"), format!("--member={more}"));
    let (status, _, stderr) = run(&["pool", "add", &other, &member]);
    let told = ["is in use (a member of pool", "left as it is", "--force"];
    assert!(status == 4 && told.iter().all(|told| stderr.contains(told)), "{stderr}");
    let (status, _, stderr) = run(&["pool", "add", &other, &more, &more]);
    assert!(status == 2 && stderr.contains("was given twice"), "{stderr}");
    // Any one member leads to all of them.
    let one = format!("--pool={}", addresses(&nodes)[2]);
    assert_eq!(run(&["kv", "put", &one, "k", "v"]).0, 0);
    assert_eq!(run(&["kv", "get", &pool, "k"]).1, "v");
    let (status, _, stderr) = run(&["kv", "get", &pool, "nothing"]);
    assert!(status == 1 && stderr.contains("no such key"), "{stderr}");
}

/// Overwrites bytes of a member's file while no node has it open.
fn damage(file: &Path, offset: u64, bytes: &[u8]) {
    let mut file = std::fs::OpenOptions::new().write(true).open(file).expect("opened");
    file.seek(SeekFrom::Start(offset)).expect("sought");
    file.write_all(bytes).expect("written");
    file.sync_all().expect("synced");
}

#[test]
fn damaged_and_foreign_superblocks_are_refused_by_name_and_the_second_copy_is_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let [a, b, c] = ["a", "b", "c"].map(|name| directory.path().join(name));
    let nodes = three(directory.path(), "32MiB");
    let pool = create(&nodes, &[]);
    assert_eq!(run(&["kv", "put", &pool, "k", "v"]).0, 0);
    drop(nodes);
    let copies: [u64; 2] = pool_superblocks();
    // One copy: nobody notices but the status.
    damage(&a, copies[0] + 100, &[0xff; 32]);
    let nodes = three(directory.path(), "32MiB");
    let pool = format!("--pool={}", addresses(&nodes).join(","));
    assert_eq!(run(&["pool", "status", &pool]).0, 0);
    assert_eq!(run(&["kv", "get", &pool, "k"]).1, "v");
    drop(nodes);
    // Both copies: the member is named and has no vote; the others go on.
    damage(&a, copies[1] + 100, &[0xff; 32]);
    let nodes = three(directory.path(), "32MiB");
    let pool = format!("--pool={}", addresses(&nodes).join(","));
    let (status, stdout, _) = run(&["pool", "status", &pool]);
    assert!(status == 1 && stdout.contains(&addresses(&nodes)[0]) && stdout.contains("damaged"), "{stdout}");
    assert_eq!(run(&["kv", "get", &pool, "k"]).1, "v");
    drop(nodes);
    // Two of three: no majority, nothing is served, and it is said why.
    damage(&b, copies[0], &[0; 4096]);
    damage(&b, copies[1], &[0; 4096]);
    let nodes = three(directory.path(), "32MiB");
    let pool = format!("--pool={}", addresses(&nodes).join(","));
    let (status, _, stderr) = run(&["kv", "get", &pool, "k"]);
    assert!(status == 3 && stderr.contains(&addresses(&nodes)[1]), "{status} {stderr}");
    assert!(c.exists());
}

/// Where the two copies of a superblock are: the first block, and the one behind the map.
fn pool_superblocks() -> [u64; 2] {
    pool::geometry::SUPERBLOCK_OFFSETS
}

#[test]
fn a_full_pool_says_so_and_stays_readable() {
    let directory = tempfile::tempdir().expect("a directory");
    let nodes = three(directory.path(), "8MiB");
    let pool = create(&nodes, &[]);
    let value = directory.path().join("value");
    std::fs::write(&value, vec![7; 300_000]).expect("written");
    let mut stored = 0;
    let stderr = loop {
        let file = format!("--file={}", value.display());
        let (status, _, stderr) = run(&["kv", "put", &pool, &file, &format!("k{stored}")]);
        match status {
            0 => stored += 1,
            5 => break stderr,
            other => panic!("status {other}: {stderr}"),
        }
        assert!(stored < 100, "30 MB in a pool of 8 MiB");
    };
    assert!(stored > 3 && stderr.contains("out of space"), "{stored} {stderr}");
    for key in 0..stored {
        let output = directory.path().join("got");
        let (status, _, stderr) = run(&["kv", "get", &pool, &format!("k{key}"), "-o", output.to_str().expect("text")]);
        assert_eq!(status, 0, "{stderr}");
        assert!(std::fs::read(&output).expect("read") == vec![7; 300_000]);
    }
    // What is deleted makes room.
    assert_eq!(run(&["kv", "delete", &pool, "k0", "k1"]).0, 0);
    let mut again = yagura(&["kv", "put", &pool, "again", "--file", value.to_str().expect("text")]);
    assert!(again.stdout(std::process::Stdio::null()).status().expect("ran").success());
}

/// What scripts need of the conditional verbs: they change a key only if their condition holds, and the exit status says so.
#[test]
fn a_key_is_changed_by_what_is_there_from_the_command_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let nodes = three(directory.path(), "16MiB");
    let pool = create(&nodes, &[]);
    let kv = |arguments: &[&str]| run(&[&["kv"], arguments, &[pool.as_str()]].concat());
    let json = |arguments: &[&str]| -> (i32, serde_json::Value) {
        let (status, stdout, stderr) = kv(&[arguments, &["--json"]].concat());
        (status, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {stderr}")))
    };
    assert_eq!(kv(&["replace", "k", "no"]).0, 1);
    assert_eq!(kv(&["add", "k", "one"]).0, 0);
    let (status, _, stderr) = kv(&["add", "k", "two"]);
    assert!(status == 1 && stderr.contains("there is one already"), "{stderr}");
    let (_, got) = json(&["get", "k"]);
    let version = got["version"].as_str().expect("text").to_owned();
    assert_eq!((got["value"].as_str(), got["bytes"].as_u64(), &got["expiry"]), (Some("one"), Some(3), &().into()));
    let (status, stored) = json(&["cas", "k", &version, "two"]);
    assert_eq!((status, stored["done"].as_bool(), stored["bytes"].as_u64()), (0, Some(true), Some(3)));
    let (status, refused) = json(&["cas", "k", &version, "three"]);
    assert_eq!((status, &refused["done"], &refused["version"]), (1, &false.into(), &stored["version"]));
    assert_eq!(kv(&["append", "k", " and more"]).0, 0);
    assert_eq!(kv(&["get", "k"]).1, "two and more");
    assert_eq!(kv(&["incr", "k"]).0, 1, "no number");
    assert_eq!(json(&["incr", "n"]).1["value"], 1);
    assert_eq!(kv(&["incr", "n", "-5"]).1.trim(), "-4");
    assert_eq!(kv(&["incr", "m", "2", "--initial=40"]).1.trim(), "42");
    let (status, ends) = json(&["expire", "n", "1000"]);
    assert_eq!((status, &ends["expiry"]), (0, &json(&["get", "n"]).1["expiry"]));
    assert_eq!(kv(&["incr", "n", "4"]).0, 0);
    assert_eq!(json(&["get", "n"]).1["expiry"], ends["expiry"], "an increment leaves it as it is");
    assert_eq!(kv(&["expire", "n", "--never"]).0, 0);
    assert!(json(&["get", "n"]).1["expiry"].is_null());
    assert_eq!(kv(&["expire", "nothing", "5"]).0, 1);
    assert_eq!((kv(&["expire", "n"]).0, kv(&["expire", "n", "0"]).0, kv(&["cas", "n", "7", "x"]).0), (2, 2, 2));

    // An object in parts is one value to all: it is replaced whole, with its parts, and not changed in part.
    let file = directory.path().join("long");
    std::fs::write(&file, vec![b'x'; 3 << 20]).expect("written");
    let file = file.to_str().expect("text");
    assert_eq!(kv(&["put", "long", "--file", file]).0, 0);
    let parts = || kv(&["list", "--parts"]).1.lines().count();
    assert_eq!(parts(), 3 + 1 + 3);
    for refused in [&["append", "long", "x"][..], &["expire", "long", "5"]] {
        let (status, _, stderr) = kv(refused);
        assert!(status == 1 && stderr.contains("in parts"), "{stderr}");
    }
    assert_eq!(kv(&["get", "long", "--json"]).0, 2, "no text for a report");
    assert_eq!(kv(&["replace", "long", "short"]).0, 0);
    assert_eq!((parts(), kv(&["get", "long"]).1.as_str()), (4, "short"));
}
