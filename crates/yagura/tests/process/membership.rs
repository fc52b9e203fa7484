//! Members come and go while a pool is in use: from outside, by the command line, with real targets and a real `kill -9`.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::port::Port;
use crate::support::{Redis, Reply, Server, kill, run, yagura};

/// Longest wait for a state that a command brings about.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub fn node(directory: &Path, name: &str) -> Server {
    node_at(directory, name, "127.0.0.1:0")
}

/// The node of this name, which begins with a letter of its own, where it was before.
pub fn node_at(directory: &Path, name: &str, listen: &str) -> Server {
    let nqn = format!("--nqn=nqn.2026-11.io.yagura:member-{name}");
    let nguid = format!("{:02x}", name.as_bytes()[0]).repeat(16);
    let namespace = format!("--namespace=file={},size=16MiB,nguid={nguid}", directory.join(name).display());
    Server::start(&["target", &format!("--listen={listen}"), &nqn, &namespace])
}

pub fn address(node: &Server) -> String {
    node.address("listening").to_string()
}

/// A pool of the nodes; the argument that names it.
fn create(nodes: &[&Server]) -> String {
    let members: Vec<String> = nodes.iter().map(|node| format!("--member={}", address(node))).collect();
    let mut arguments = vec!["pool", "create"];
    arguments.extend(members.iter().map(String::as_str));
    let (status, _, stderr) = run(&arguments);
    assert_eq!(status, 0, "{stderr}");
    format!("--pool={}", address(nodes[0]))
}

/// The status of the pool as JSON.
pub fn status(pool: &str) -> serde_json::Value {
    let (_, stdout, stderr) = run(&["pool", "status", pool, "--json"]);
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout} {stderr}"))
}

pub fn change(arguments: &[&str]) -> serde_json::Value {
    let (status, stdout, stderr) = run(&[&["pool"][..], arguments, &["--json"]].concat());
    assert_eq!(status, 0, "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// Sends a command until it is answered. An operation that meets the seal of a newer map after a part of it was sent ends as
/// UNKNOWN: its caller asks again.
fn insist(redis: &mut Redis, command: &[&[u8]]) -> Reply {
    let begun = Instant::now();
    loop {
        match redis.call(command) {
            Reply::Error(text) if text.starts_with("UNKNOWN") || text.starts_with("TRYAGAIN") => {
                assert!(begun.elapsed() < WAIT_MAX, "{command:?}: {text}");
            }
            reply => return reply,
        }
    }
}

/// Writes and reads through a gateway until told to stop: what was acknowledged must be read back.
fn load(gateway: &Server, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> std::thread::JoinHandle<()> {
    let mut redis = Redis::connect(gateway.address("listening"));
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let number = done.load(Ordering::Relaxed);
            let (key, value) = (format!("key-{}", number % 50), number.to_string());
            let set = insist(&mut redis, &[b"SET", key.as_bytes(), value.as_bytes()]);
            assert_eq!(set, Reply::Status("OK".into()), "{key}");
            let got = insist(&mut redis, &[b"GET", key.as_bytes()]);
            assert_eq!(got, Reply::Bulk(Some(value.into_bytes())), "{key}");
            done.fetch_add(1, Ordering::Relaxed);
        }
    })
}

#[test]
fn members_come_and_go_while_a_gateway_serves() {
    let directory = tempfile::tempdir().expect("a directory");
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| node(directory.path(), name));
    let pool = create(&[&a, &b, &c]);
    let gateway = Server::start(&["gateway", "--listen=127.0.0.1:0", &pool]);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = [()].iter().map(|()| load(&gateway, stop.clone(), done.clone())).collect();

    let member = format!("--member={}", address(&d));
    let (planned, _, stderr) = run(&["pool", "add", &pool, &member, "--dry-run"]);
    assert_eq!((planned, status(&pool)["epoch"].as_u64()), (0, Some(1)), "a plan changes nothing: {stderr}");
    let added = change(&["add", &pool, &member]);
    assert!(added["done"] == true && added["moves_percent"] == added["least_percent"], "{added}");
    for more in [&[][..], &["--force"]] {
        let (busy, _, stderr) = run(&[&["pool", "add", &pool, &member], more].concat());
        let told = ["is a member of this pool already", "number 3", "left as it is", "set-weight"];
        assert!(busy == 4 && told.iter().all(|told| stderr.contains(told)) && !stderr.contains("--force"), "{stderr}");
    }

    let removed = change(&["remove", &pool, &address(&b)]);
    assert_eq!((removed["done"].as_bool(), removed["epoch"].as_u64()), (Some(true), Some(5)), "{removed}");
    drop(b);
    let before = done.load(Ordering::Relaxed);

    // One dies for good; its replacement takes its place.
    drop(c);
    let dead = status(&pool)["members"].as_array().expect("members").iter().position(|member| member["votes"] == false);
    let dead = status(&pool)["members"][dead.expect("one is down")]["nguid"].as_str().expect("text").to_owned();
    let replaced = change(&["replace", &pool, &dead[..8], &address(&e)]);
    assert_eq!(replaced["done"], true, "{replaced}");
    let report = status(&pool);
    assert!(report["members"].as_array().expect("members").iter().all(|member| member["votes"] == true), "{report}");
    assert_eq!((report["state"].as_str(), report["epoch"].as_u64()), (Some("stable"), Some(7)));

    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().expect("every acknowledged write was read back"));
    assert!(done.load(Ordering::Relaxed) > before, "the gateway served throughout");
    let (verified, _, stderr) = run(&["kv", "scrub", &pool]);
    assert_eq!(verified, 0, "{stderr}");
}

/// Leaves the file of a node that was made a member as a `pool create` does that was killed before: claimed for the pool, no more.
fn unmake(directory: &Path, name: &str) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(directory.join(name)).expect("opened");
    let id = pool::MemberId([name.as_bytes()[0]; 16]);
    for offset in pool::geometry::SUPERBLOCK_OFFSETS {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, offset).expect("read");
        let made = pool::Superblock::decode(&bytes, id).expect("a superblock");
        let claim = pool::Superblock { generation: 0, map_length: 0, map_checksum: 0, ..made };
        file.write_all_at(&claim.encode(), offset).expect("written");
    }
}

/// What was said of it was that a map could not be decoded.
#[test]
fn of_a_pool_that_was_not_made_to_its_end_it_is_said_what_mends_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let names = ["a", "b", "c"];
    let nodes = names.map(|name| node(directory.path(), name));
    create(&nodes.each_ref());
    drop(nodes);
    for unmade in [&names[1..], &names[..1]] {
        unmade.iter().for_each(|name| unmake(directory.path(), name));
        let nodes = names.map(|name| node(directory.path(), name));
        let pool = format!("--pool={}", nodes.each_ref().map(address).join(","));
        let (refused, _, stderr) = run(&["pool", "status", &pool]);
        let told = ["was not made to its end", "`yagura pool create`", "again with --force", &address(&nodes[1])];
        assert!(refused != 0 && told.iter().all(|told| stderr.contains(told)), "{unmade:?}: {stderr}");
        let members = nodes.each_ref().map(|node| format!("--member={}", address(node)));
        let again = [&["pool", "create"][..], &members.each_ref().map(String::as_str)].concat();
        let (refused, _, stderr) = run(&again);
        assert!(refused == 4 && stderr.contains("is in use") && stderr.contains("--force"), "{stderr}");
        if unmade.len() == 1 {
            assert_eq!(run(&[&again[..], &["--force"]].concat()).0, 0);
            assert_eq!(run(&["pool", "status", &pool]).0, 0);
        }
    }
}

#[test]
fn a_command_killed_in_the_middle_is_gone_on_with_by_rebalance() {
    let directory = tempfile::tempdir().expect("a directory");
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| node(directory.path(), name));
    let pool = create(&[&a, &b, &c]);
    let value = "x".repeat(3000);
    for number in 0..30 {
        assert_eq!(run(&["kv", "put", &pool, &format!("k{number}"), &value]).0, 0);
    }
    let mut command = yagura(&["pool", "add", &pool, &format!("--member={}", address(&d)), "--rate=2KiB"]);
    let mut child =
        command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null()).spawn().expect("begun");
    let begun = Instant::now();
    while status(&pool)["state"] != "joint" {
        assert!(begun.elapsed() < WAIT_MAX, "the change never began");
    }
    let (refused, _, stderr) = run(&["pool", "drain", &pool, &address(&a)]);
    assert!(refused == 4 && stderr.contains("being changed already"), "{stderr}");
    kill(child.id(), "KILL");
    child.wait().expect("it has ended");
    assert_eq!(run(&["kv", "get", &pool, "k7"]).1, value, "the pool serves in the joint state");
    let finished = change(&["rebalance", &pool]);
    assert_eq!((finished["done"].as_bool(), finished["epoch"].as_u64()), (Some(true), Some(3)), "{finished}");
    assert_eq!(change(&["rebalance", &pool])["done"], false, "nothing is left to do");
    let (verified, _, stderr) = run(&["kv", "scrub", &pool]);
    assert_eq!(verified, 0, "{stderr}");
    let report = status(&pool);
    assert!((15.0..35.0).contains(&report["members"][3]["percent"].as_f64().expect("a share")), "{report}");
}

/// Neither the member that was to come nor one that was there may block a change by never coming back.
#[test]
fn a_member_lost_for_good_in_the_middle_of_a_change_is_taken_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let [a, b, c, d, e, f] = ["a", "b", "c", "d", "e", "f"].map(|name| node(directory.path(), name));
    let pool = create(&[&a, &b, &c]);
    let value = "x".repeat(3000);
    let read_all = || {
        for number in 0..20 {
            assert_eq!(run(&["kv", "get", &pool, &format!("k{number}")]).1, value, "k{number}");
        }
    };
    for number in 0..20 {
        assert_eq!(run(&["kv", "put", &pool, &format!("k{number}"), &value]).0, 0);
    }
    let begin = |member: &Server| {
        let mut command = yagura(&["pool", "add", &pool, &format!("--member={}", address(member)), "--rate=1KiB"]);
        let mut child =
            command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null()).spawn().expect("begun");
        let begun = Instant::now();
        while status(&pool)["state"] != "joint" {
            assert!(begun.elapsed() < WAIT_MAX, "the change never began");
        }
        kill(child.id(), "KILL");
        child.wait().expect("it has ended");
    };
    begin(&d);
    drop(d);
    let named = "d".as_bytes()[0];
    let removed = change(&["remove", &pool, &format!("{named:02x}").repeat(4)]);
    assert_eq!((removed["done"].as_bool(), removed["epoch"].as_u64()), (Some(true), Some(5)), "{removed}");
    read_all();

    begin(&e);
    drop(c);
    let named = "c".as_bytes()[0];
    let replaced = change(&["replace", &pool, &format!("{named:02x}").repeat(4), &address(&f)]);
    assert_eq!((replaced["done"].as_bool(), replaced["epoch"].as_u64()), (Some(true), Some(9)), "{replaced}");
    let report = status(&pool);
    assert_eq!((report["state"].as_str(), report["members"].as_array().map(Vec::len)), (Some("stable"), Some(4)));
    read_all();

    // One that is well may be asked to go back.
    let joined = node(directory.path(), "g");
    begin(&joined);
    let back = change(&["rebalance", &pool, "--take-back"]);
    assert_eq!((back["done"].as_bool(), back["epoch"].as_u64()), (Some(true), Some(11)), "{back}");
    assert_eq!(status(&pool)["members"].as_array().map(Vec::len), Some(4));
    let (verified, _, stderr) = run(&["kv", "scrub", &pool]);
    assert_eq!(verified, 0, "{stderr}");
}

#[test]
fn a_member_that_comes_back_older_or_empty_is_begun_anew_by_repair() {
    let directory = tempfile::tempdir().expect("a directory");
    let [a, c] = ["a", "c"].map(|name| node(directory.path(), name));
    let kept = Port::keep();
    let at = kept.address.to_string();
    let b = node_at(directory.path(), "b", &at);
    let pool = create(&[&a, &c, &b]);
    let put = |from: u32, to: u32| {
        for number in from..to {
            assert_eq!(run(&["kv", "put", &pool, &format!("k{number}"), &"y".repeat(2500)]).0, 0);
        }
    };
    let (file, copy) = (directory.path().join("b"), directory.path().join("copy"));
    put(0, 5);
    drop(b);
    std::fs::copy(&file, &copy).expect("copied");
    let b = node_at(directory.path(), "b", &at);
    // A repair that has nothing to do marks every member: what is rolled back from here on is known by it.
    assert_eq!(run(&["kv", "repair", &pool]).0, 0);
    put(5, 10);
    let mut b = Some(b);
    for (older, reason) in [(true, "rolled back"), (false, "no superblock")] {
        drop(b.take());
        if older {
            std::fs::copy(&copy, &file).expect("copied");
        } else {
            std::fs::write(&file, []).expect("emptied");
        }
        b = Some(node_at(directory.path(), "b", &at));
        let report = status(&pool);
        assert_eq!(report["members"][2]["votes"], false, "{report}");
        assert!(report["troubles"].to_string().contains(reason), "{report}");
        let (repaired, stdout, stderr) = run(&["kv", "repair", &pool, "--json"]);
        assert_eq!(repaired, 0, "{stdout} {stderr}");
        let repaired: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
        assert_eq!(repaired["renewed"], serde_json::json!(["62".repeat(16)]), "{repaired}");
        assert_eq!(status(&pool)["members"][2]["votes"], true);
        let (verified, stdout, stderr) = run(&["kv", "scrub", &pool]);
        assert_eq!(verified, 0, "{stdout} {stderr}");
    }
    // It counts: with another one down it makes the majority.
    drop(c);
    for number in 0..10 {
        assert_eq!(run(&["kv", "get", &pool, &format!("k{number}")]).1, "y".repeat(2500), "k{number}");
    }
}

#[test]
fn deleted_keys_are_forgotten_by_scrub() {
    let directory = tempfile::tempdir().expect("a directory");
    let [a, b, c] = ["a", "b", "c"].map(|name| node(directory.path(), name));
    let pool = create(&[&a, &b, &c]);
    for key in ["one", "two"] {
        assert_eq!(run(&["kv", "put", &pool, key, "value"]).0, 0);
    }
    assert_eq!(run(&["kv", "delete", &pool, "one"]).0, 0);
    let (status, stdout, stderr) = run(&["kv", "scrub", &pool, "--collect", "--json"]);
    assert_eq!(status, 0, "{stdout} {stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(
        (report["tombstones"].as_u64(), report["forgotten"]["dropped"].as_u64()),
        (Some(1), Some(3)),
        "{report}"
    );
    let (_, stdout, _) = run(&["kv", "scrub", &pool, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((report["tombstones"].as_u64(), report["keys"].as_u64()), (Some(0), Some(1)), "{report}");
    assert_eq!(run(&["kv", "put", &pool, "one", "anew"]).0, 0);
    assert_eq!(run(&["kv", "get", &pool, "one"]).1, "anew");
}

/// A member that was given up as lost and is back: all that the pool held is served again, or it is told why not.
#[test]
fn members_that_were_given_up_are_members_again_when_they_are_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let kept = [Port::keep(), Port::keep()];
    let at = |index: usize| kept[index].address.to_string();
    let start = || [("b", 0), ("c", 1)].map(|(name, index)| node_at(directory.path(), name, &at(index)));
    let (a, [b, c]) = (node(directory.path(), "a"), start());
    let pool = create(&[&a, &b, &c]);
    assert_eq!(run(&["kv", "put", &pool, "k", "value"]).0, 0);
    let [b_id, c_id] = ["b", "c"].map(|name| format!("{:02x}", name.as_bytes()[0]).repeat(16));
    let (lost, returned) = (format!("--lost={b_id},{c_id}"), format!("--returned={b_id},{c_id}"));
    drop([b, c]);
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &lost, "--force"]);
    assert!(refused != 0 && stderr.contains("say so by `--accept-unserved`"), "{stderr}");
    let (seized, _, stderr) = run(&["pool", "rebalance", &pool, &lost, "--force", "--accept-unserved"]);
    assert_eq!(seized, 0, "{stderr}");
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &returned]);
    assert!(refused != 0 && stderr.contains("not connected"), "{stderr}");

    // What a gateway does once a day. It passed them over for good.
    run(&["kv", "scrub", &pool, "--collect"]);
    let back = start();
    assert_ne!(run(&["kv", "get", &pool, "k"]).0, 0, "they have no vote yet");
    let epoch = status(&pool)["epoch"].as_u64().expect("a number");
    let (_, stdout, stderr) = run(&["pool", "status", &pool]);
    assert!(stdout.contains("--returned") && stderr.contains("--returned"), "what to do first: {stdout} {stderr}");
    let taken = change(&["rebalance", &pool, &returned]);
    assert_eq!(taken["epoch"], epoch + 1, "{taken}");
    assert_eq!(taken["returned"], serde_json::json!([b_id, c_id]), "{taken}");
    let report = status(&pool);
    assert!(report["members"].as_array().expect("members").iter().all(|member| member["votes"] == true), "{report}");
    assert_eq!(run(&["kv", "get", &pool, "k"]).1, "value");
    let (verified, _, stderr) = run(&["kv", "scrub", &pool]);
    assert_eq!(verified, 0, "{stderr}");

    // One whose medium is not what it was. It is begun anew instead, from the two that know all.
    let [b, c] = back;
    drop([b, c]);
    let (seized, _, stderr) = run(&["pool", "rebalance", &pool, &lost, "--force", "--accept-unserved"]);
    assert_eq!(seized, 0, "{stderr}");
    std::fs::write(directory.path().join("c"), []).expect("emptied");
    let _back = start();
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &returned]);
    assert!(refused != 0 && stderr.contains("no superblock"), "{stderr}");
    change(&["rebalance", &pool, &format!("--returned={b_id}")]);
    let (repaired, stdout, stderr) = run(&["kv", "repair", &pool, "--json"]);
    assert_eq!(repaired, 0, "{stdout} {stderr}");
    let report = status(&pool);
    assert!(report["members"].as_array().expect("members").iter().all(|member| member["votes"] == true), "{report}");
    assert_eq!(run(&["kv", "get", &pool, "k"]).1, "value");
}

/// The pool was swept without it, and has forgotten what was deleted: it might bring that back.
#[test]
fn a_member_that_a_sweep_has_passed_over_does_not_come_back_with_what_it_held() {
    let directory = tempfile::tempdir().expect("a directory");
    let kept = Port::keep();
    let at = kept.address.to_string();
    let (a, b) = (node_at(directory.path(), "a", &at), node(directory.path(), "b"));
    let members = [&a, &b].map(|node| format!("--member={}", address(node)));
    let (created, _, stderr) = run(&["pool", "create", "--replicas=2", &members[0], &members[1]]);
    assert_eq!(created, 0, "{stderr}");
    let pool = format!("--pool={}", address(&b));
    assert_eq!(run(&["kv", "put", &pool, "deleted", "value"]).0, 0);
    drop(a);
    let id = "61".repeat(16);
    let (seized, _, stderr) = run(&["pool", "rebalance", &pool, &format!("--lost={id}"), "--force"]);
    assert_eq!(seized, 0, "{stderr}");
    assert_eq!(run(&["kv", "delete", &pool, "deleted"]).0, 0);
    run(&["kv", "scrub", &pool, "--collect"]);
    let _back = node_at(directory.path(), "a", &at);
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &format!("--returned={id}")]);
    assert!(refused != 0 && stderr.contains("`yagura kv repair` begins it anew"), "{stderr}");
    let (repaired, stdout, stderr) = run(&["kv", "repair", &pool, "--json"]);
    assert_eq!(repaired, 0, "{stdout} {stderr}");
    let report = status(&pool);
    assert!(report["members"].as_array().expect("members").iter().all(|member| member["votes"] == true), "{report}");
    assert_ne!(run(&["kv", "get", &pool, "deleted"]).0, 0, "it is deleted");
}
