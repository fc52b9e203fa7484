//! `yagura up` from outside: everything a user has, and a storage node killed in the middle of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::rng::SplitMix;

use crate::support::{
    PATIENCE, Redis, Reply, Server, SetAtEnd, finished_within, http_get, kill, make_tree, pool_of, run, yagura,
};

/// Without files, whose names are keys of the store.
fn up(data: &Path, more: &[&str]) -> Server {
    up_with_files(data, &[more, &["--no-files"]].concat())
}

pub fn up_with_files(data: &Path, more: &[&str]) -> Server {
    let data = format!("--data={}", data.display());
    let mut arguments = vec!["up", &data, "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--size=64MiB"];
    arguments.extend(more);
    Server::start(&arguments)
}

fn node_pid(server: &Server, node: usize) -> u32 {
    u32::try_from(server.ready["nodes"][node]["pid"].as_u64().expect("a pid")).expect("a pid")
}

/// Waits until `kv scrub` finds all replicas equal. Returns its report.
fn wait_until_equal(pool: &str) -> serde_json::Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, stdout, stderr) = run(&["kv", "scrub", "--json", pool]);
        if status == 0 {
            return serde_json::from_str(&stdout).expect("JSON");
        }
        assert!(Instant::now() < deadline, "the replicas do not become equal: {stdout}{stderr}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_pool_is_made_reopened_and_keeps_what_was_acknowledged() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path(), &[]);
    assert_eq!(server.ready["created"], true);
    let mut redis = Redis::connect(server.address("gateway"));
    assert_eq!(redis.call(&[b"PING"]), Reply::Status("PONG".into()));
    let large = vec![7; 1 << 20];
    for (key, value) in [("small", &b"v"[..]), ("empty", b""), ("page", &large[..3900]), ("large", &large)] {
        redis.set(key, value);
        assert!(redis.get(key).as_deref() == Some(value), "{key}");
    }
    assert_eq!(redis.call(&[b"DEL", b"small", b"none"]), Reply::Integer(1));
    assert_eq!(redis.call(&[b"DBSIZE"]), Reply::Integer(3));
    let metrics = http_get(server.address("metrics"), "/metrics");
    assert!(metrics.contains("yagura_store_puts_total 4\n"), "{metrics}");
    let pids = [0, 1, 2].map(|node| node_pid(&server, node));
    assert_eq!(server.stop("TERM"), 0);
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "a storage node outlived `up`");
    }

    let server = up(directory.path(), &[]);
    assert_eq!(server.ready["created"], false);
    let mut redis = Redis::connect(server.address("gateway"));
    assert_eq!((redis.get("small"), redis.get("empty")), (None, Some(Vec::new())));
    assert!(redis.get("large").as_deref() == Some(&large[..]));
    assert_eq!(server.stop("INT"), 0);
}

#[test]
fn a_directory_is_imported_verified_and_given_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let tree = directory.path().join("tree");
    let (files, bytes) = make_tree(&tree);
    let server = up(&directory.path().join("data"), &[]);
    let (pool, tree) = (pool_of(&server), tree.to_str().expect("text"));
    let (status, stdout, stderr) = run(&["kv", "import", tree, "--part-size=64K", "--json", &pool]);
    assert_eq!(status, 0, "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((report["files"].as_u64(), report["bytes"].as_u64()), (Some(files), Some(bytes)));
    let (status, stdout, stderr) = run(&["kv", "verify", "--against", tree, &pool]);
    assert!(status == 0 && stdout.contains("every byte is right"), "{stdout}{stderr}");
    let (status, stdout, stderr) = run(&["kv", "scrub", "--collect", &pool]);
    assert!(status == 0 && stdout.contains("all replicas are equal"), "{stdout}{stderr}");
    let (status, stdout, stderr) = run(&["kv", "repair", "--rate=1GiB", "--json", &pool]);
    assert_eq!(status, 0, "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((report["stored"].as_u64(), report["failed"].as_u64()), (Some(0), Some(0)), "nothing to do");
    let listed = run(&["kv", "list", &pool]).1;
    assert_eq!(listed.lines().count() as u64, files, "parts are not listed:\n{listed}");
    let output = directory.path().join("out");
    assert_eq!(run(&["kv", "get", &pool, "d2/f2500000", "-o", output.to_str().expect("text")]).0, 0);
    let original = std::fs::read(format!("{tree}/d2/f2500000")).expect("read");
    assert!(std::fs::read(&output).expect("read") == original);

    // A byte that changes on either side is found and named.
    std::fs::write(format!("{tree}/d0/f0"), "not empty any more").expect("written");
    let mut redis = Redis::connect(server.address("gateway"));
    redis.set("d1/f1", b"?");
    let (status, stdout, _) = run(&["kv", "verify", "--against", tree, &pool]);
    assert!(status == 1 && stdout.contains("d0/f0: only the first 0 bytes are stored"), "{stdout}");
    assert!(stdout.contains("d1/f1: differs from byte 0 on"), "{stdout}");
    assert_eq!(run(&["kv", "delete", &pool, "d2/f2500000"]).0, 0);
    let parts = run(&["kv", "list", "--parts", &pool, "d2/f2500000"]).1;
    assert_eq!(parts, "", "parts were left behind");
}

/// One client that writes and reads its own keys and checks each answer. An error, or an answer that is not the last value that
/// was acknowledged, panics. Returns what must be there at the end.
fn check_traffic(address: SocketAddr, client: u32, done: &AtomicU64, stop: &AtomicBool) -> BTreeMap<String, Vec<u8>> {
    let mut redis = Redis::connect(address);
    let (mut acknowledged, mut count) = (BTreeMap::new(), 0u64);
    while !stop.load(Ordering::Relaxed) {
        let key = format!("client{client}/{}", count % 50);
        let length = if count % 17 == 0 { 20_000 } else { (count * 37 % 3000) as usize };
        let mut value = count.to_le_bytes().to_vec();
        value.resize(8 + length, client as u8);
        redis.set(&key, &value);
        acknowledged.insert(key, value);
        let key = format!("client{client}/{}", count * 7 % 50);
        assert_eq!(redis.get(&key), acknowledged.get(&key).cloned(), "{key}: not what was acknowledged last");
        count += 1;
        done.store(count, Ordering::Relaxed);
    }
    acknowledged
}

/// Waits until each of the clients has done so many operations more.
fn wait_for_traffic(done: &[AtomicU64], more: u64) {
    let deadline = Instant::now() + PATIENCE;
    let counts = || done.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = counts();
    while counts().iter().zip(&before).any(|(now, before)| *now < before + more) {
        assert!(Instant::now() < deadline, "no traffic to speak of: {before:?}, then {:?}", counts());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_node_killed_amid_traffic_costs_no_error_and_is_repaired() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path(), &[]);
    let (address, pool) = (server.address("gateway"), pool_of(&server));
    let stop = AtomicBool::new(false);
    let done = [const { AtomicU64::new(0) }; 3];
    let clients: Vec<_> = std::thread::scope(|scope| {
        let (stop, ended) = (&stop, SetAtEnd(&stop));
        let client = |(client, done)| scope.spawn(move || check_traffic(address, client, done, stop));
        let clients: Vec<_> = (0..).zip(&done).map(client).collect();
        wait_for_traffic(&done, 10);
        // The supervisor starts it again by itself, a moment later.
        kill(node_pid(&server, 1), "KILL");
        std::thread::sleep(Duration::from_secs(2));
        wait_for_traffic(&done, 10);
        drop(ended);
        clients.into_iter().map(|client| client.join().expect("a client met an error")).collect()
    });
    let report = wait_until_equal(&pool);
    let keys: u64 = clients.iter().map(|acknowledged| acknowledged.len() as u64).sum();
    assert_eq!(report["keys"].as_u64(), Some(keys));
    let mut redis = Redis::connect(address);
    for acknowledged in clients {
        for (key, value) in acknowledged {
            assert!(redis.get(&key).as_deref() == Some(&value[..]), "{key} was lost");
        }
    }
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn the_drill_passes_and_says_what_it_did() {
    let directory = tempfile::tempdir().expect("a directory");
    let tree = directory.path().join("tree");
    let (files, bytes) = make_tree(&tree);
    let data = format!("--data={}", directory.path().join("data").display());
    let drill = format!("--drill={}", tree.display());
    let arguments = ["up", &data, &drill, "--once", "--listen=127.0.0.1:0", "--size=64MiB", "--json"];
    let (status, stdout, stderr) = finished_within(PATIENCE * 3, yagura(&arguments));
    assert_eq!(status, 0, "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    let drill = &report["drill"];
    assert_eq!((drill["import"]["files"].as_u64(), drill["import"]["bytes"].as_u64()), (Some(files), Some(bytes)));
    for read in ["read_during_kill", "read_without_node"] {
        assert_eq!((drill[read]["different"].as_u64(), drill[read]["bytes"].as_u64()), (Some(0), Some(bytes)));
    }
    assert_eq!(drill["replicas"]["equal"], true);
    assert!(drill["repaired_replicas"].as_u64() > Some(0), "{drill}");
    assert!(drill["import"]["put"]["p999_us"].as_u64() >= drill["import"]["put"]["p50_us"].as_u64(), "{drill}");
    let volume = &drill["volume"];
    assert_eq!((volume["files"].as_u64(), volume["different_bytes"].as_u64()), (Some(files), Some(0)), "{volume}");
    let image = volume["write"]["bytes"].as_u64();
    assert!(image > Some(bytes) && volume["read"]["bytes"].as_u64() == image, "{volume}");
    assert!(volume["resynced_bytes"].as_u64() > Some(0), "{volume}");
    assert_eq!(volume["equal_regions"].as_u64(), image.map(|image| image >> 20), "{volume}");
    let copied = &drill["files"];
    assert_eq!((copied["files"].as_u64(), copied["different"].as_u64()), (Some(files + 1), Some(0)), "{copied}");
    assert!(copied["reads"].as_u64() > Some(0) && copied["rebuilt_stripes"].as_u64() > Some(0), "{copied}");
}

/// The commands that `up` tells, with this name in the place of theirs, and more.
fn told(server: &Server, command: &str, name: &str, more: &[&str]) -> Vec<String> {
    let line = server.ready["volumes"][command].as_str().expect("a command");
    line.split(' ')
        .skip(1)
        .map(|word| if word == "db" { name } else { word })
        .chain(more.iter().copied())
        .map(str::to_owned)
        .collect()
}

fn attached(server: &Server, name: &str) -> Server {
    let words = told(server, "attach", name, &["--listen=127.0.0.1:0"]);
    Server::start(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn made(server: &Server, name: &str) {
    let words = told(server, "create", name, &[]);
    let words: Vec<&str> = words.iter().map(|word| if word == "256MiB" { "8MiB" } else { word }).collect();
    let (status, stdout, stderr) = run(&words);
    assert_eq!(status, 0, "{words:?}: {stdout} {stderr}");
}

/// Writes or verifies a pattern all over a volume that is attached.
fn pattern(served: &Server, verb: &str) {
    let at = served.address("listening").to_string();
    let flag = if verb == "write" { "--pattern=7" } else { "--verify-pattern=7" };
    let (status, _, stderr) = run(&["nvme", verb, &at, flag, "--length=8MiB"]);
    assert_eq!(status, 0, "{verb}: {stderr}");
}

#[test]
fn volumes_are_made_by_what_it_tells_and_found_again_also_by_nodes_that_moved() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path(), &[]);
    made(&server, "db");
    let served = attached(&server, "db");
    pattern(&served, "write");
    // Whoever looks for the pool at the nodes meets nothing of the volumes, in use as they are.
    let pool = pool_of(&server);
    assert_eq!(run(&["kv", "put", "k", "v", &pool]).0, 0);
    let (status, stdout, stderr) = run(&["pool", "status", &pool]);
    assert!(status == 0 && !stdout.contains("drive-") && !stderr.contains("drive-"), "{stdout}{stderr}");
    let (first, control) = (node_address(&server, 0), server.ready["volumes"]["control"].clone());
    assert_eq!((served.stop("TERM"), server.stop("TERM")), (0, 0));

    let _busy = std::net::TcpListener::bind(first).expect("its port");
    let server = up(directory.path(), &[]);
    assert_ne!(node_address(&server, 0), first);
    assert_eq!(server.ready["volumes"]["control"], control);
    let served = attached(&server, "db");
    assert_eq!(served.ready["in_sync"], serde_json::json!([0, 1, 2]), "the drive that moved is found");
    pattern(&served, "read");
    made(&server, "another");
    assert_eq!(Redis::connect(server.address("gateway")).get("k").as_deref(), Some(&b"v"[..]));
    assert_eq!((served.stop("TERM"), server.stop("TERM")), (0, 0));
    let data = format!("--data={}", directory.path().display());
    let (status, _, stderr) = run(&["up", &data, "--listen=127.0.0.1:0", "--volumes=2GiB"]);
    assert!(status == 2 && stderr.contains("have 1 GiB; leave it out"), "{status} {stderr}");
}

pub fn node_address(server: &Server, node: usize) -> SocketAddr {
    server.ready["nodes"][node]["address"].as_str().and_then(|text| text.parse().ok()).expect("an address")
}

#[test]
fn a_directory_from_before_there_were_volumes_gets_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path(), &[]);
    Redis::connect(server.address("gateway")).set("k", b"v");
    assert_eq!(server.stop("TERM"), 0);
    let within = |name: &str| directory.path().join(name);
    let state = std::fs::read_to_string(within("up.toml")).expect("read");
    let (before, _) = state.split_once("[volumes]").expect("volumes");
    std::fs::write(within("up.toml"), before.replace("version = 2", "version = 1")).expect("written");
    for gone in ["node-1/drive.img", "node-2/drive.img", "node-3/drive.img", "catalogue", "token"] {
        std::fs::remove_file(within(gone)).expect(gone);
    }
    // What a crash in the middle of a format leaves behind.
    std::fs::write(within("node-1/drive.new"), "half").expect("written");
    let server = up(directory.path(), &[]);
    assert_eq!(server.ready["created"], false);
    assert_eq!(Redis::connect(server.address("gateway")).get("k").as_deref(), Some(&b"v"[..]));
    made(&server, "db");
    pattern(&attached(&server, "db"), "write");
}

#[test]
fn the_store_is_served_without_a_control_plane_and_without_a_drive() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("catalogue")).expect("what is no catalogue");
    let server = up(directory.path(), &[]);
    assert_eq!(server.ready["volumes"], serde_json::Value::Null);
    Redis::connect(server.address("gateway")).set("k", b"v");
    assert_eq!(server.stop("TERM"), 0);
    std::fs::remove_dir(directory.path().join("catalogue")).expect("removed");
    // A drive that was there is not made anew: its name would be that of what is lost.
    let drive = directory.path().join("node-2/drive.img");
    std::fs::remove_file(&drive).expect("removed");
    let server = up(directory.path(), &[]);
    assert!(!drive.exists() && server.ready["nodes"][1]["pid"].is_u64(), "{}", server.ready);
    assert_eq!(Redis::connect(server.address("gateway")).get("k").as_deref(), Some(&b"v"[..]));
    let words = told(&server, "create", "db", &[]);
    let (status, _, stderr) = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(status != 0 && stderr.contains("no other drive"), "{status} {stderr}");
}

/// One client of a history: gets, puts and deletes on keys that all clients share, until told to stop.
fn record(
    address: SocketAddr,
    client: u32,
    clock: &AtomicU64,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Vec<check::Operation> {
    const KEYS: u64 = 6;
    let mut redis = Redis::connect(address);
    let mut operations = Vec::new();
    let mut random = SplitMix(client.into());
    while !stop.load(Ordering::Relaxed) {
        let (key, choice) = (format!("shared{}", random.below(KEYS)), random.below(20));
        // The stamp of the invocation makes a value that no other put writes.
        let invoked = clock.fetch_add(1, Ordering::SeqCst);
        let mut known = true;
        let (action, value) = match choice {
            0 => {
                match redis.call(&[b"DEL", key.as_bytes()]) {
                    Reply::Integer(_) => {}
                    // Whether it came before the put that has replaced what it saw can't be told.
                    Reply::Error(text) if text.starts_with("UNKNOWN") => known = false,
                    other => panic!("DEL {key}: {other:?}"),
                }
                (check::Action::Delete, None)
            }
            1..10 => {
                let mut value = invoked.to_le_bytes().to_vec();
                // Within the page, filling one, and out of line.
                value.resize([8, 500, 3800, 9000][random.index(4)], 0);
                redis.set(&key, &value);
                (check::Action::Put, Some(invoked))
            }
            _ => {
                let value = redis.get(&key);
                let id = value.map(|value| u64::from_le_bytes(value[..8].try_into().expect("at least 8 bytes")));
                (check::Action::Get, id)
            }
        };
        let now = clock.fetch_add(1, Ordering::SeqCst);
        let returned = known.then_some(now);
        operations.push(check::Operation { client, key, action, value, done: true, invoked, returned });
        done.store(operations.len() as u64, Ordering::Relaxed);
    }
    operations
}

#[test]
fn two_gateways_and_a_killed_node_make_a_linearizable_history() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path(), &[]);
    let pool = pool_of(&server);
    let second = Server::start(&["gateway", &pool, "--listen=127.0.0.1:0", "--reactors=2"]);
    let gateways = [server.address("gateway"), second.address("listening")];
    let (clock, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    let done = [const { AtomicU64::new(0) }; 4];
    let operations = std::thread::scope(|scope| {
        let (clock, stop, ended) = (&clock, &stop, SetAtEnd(&stop));
        let client =
            |(client, done)| scope.spawn(move || record(gateways[client as usize % 2], client, clock, done, stop));
        let clients: Vec<_> = (0..4u32).zip(&done).map(client).collect();
        wait_for_traffic(&done, 15);
        kill(node_pid(&server, 2), "KILL");
        std::thread::sleep(Duration::from_secs(2));
        wait_for_traffic(&done, 15);
        drop(ended);
        clients.into_iter().flat_map(|client| client.join().expect("a client met an error")).collect::<Vec<_>>()
    });
    let summary = check::check(&check::History { operations });
    summary.unwrap_or_else(|fault| panic!("not linearizable: {fault}"));
    wait_until_equal(&pool);
    assert_eq!((second.stop("TERM"), server.stop("TERM")), (0, 0));
}

#[test]
fn a_node_that_cannot_start_is_named_and_the_pool_serves_without_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path(), &[]);
    Redis::connect(server.address("gateway")).set("k", b"v");
    assert_eq!(server.stop("TERM"), 0);
    // The identity of its member: without it nobody knows what the bytes are.
    let sidecar = directory.path().join("node-2/member.img.yagura");
    let good = std::fs::read(&sidecar).expect("a sidecar");
    std::fs::write(&sidecar, [b"x".repeat(100), good[100..].to_vec()].concat()).expect("written");
    let server = up(directory.path(), &[]);
    assert_eq!(server.ready["nodes"][1]["pid"], serde_json::Value::Null);
    let mut redis = Redis::connect(server.address("gateway"));
    assert_eq!(redis.get("k").as_deref(), Some(&b"v"[..]));
    redis.set("k", b"w");
    // Once it is mended, the supervisor's next try succeeds and the repair brings what was missed.
    std::fs::write(&sidecar, good).expect("written");
    wait_until_equal(&pool_of(&server));
}

/// That it had ended was said, and never that it was back.
#[test]
fn a_node_that_is_started_again_is_told_of_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let data = format!("--data={}", directory.path().join("data").display());
    let mut command = yagura(&["up", &data, "--listen=127.0.0.1:0", "--size=64MiB", "--json"]);
    command.stdout(Stdio::piped()).stderr(File::create(&log).expect("a file"));
    let server = Server::of(command);
    let told = || std::fs::read_to_string(&log).expect("read").matches("serves again").count();
    assert_eq!(told(), 0, "the first start is none");
    for times in 1..3 {
        let pid = match times {
            1 => node_pid(&server, 1),
            _ => last_pid(&std::fs::read_to_string(&log).expect("read")),
        };
        kill(pid, "KILL");
        let deadline = Instant::now() + PATIENCE;
        while told() < times {
            assert!(Instant::now() < deadline, "nobody says that it is back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(server.stop("TERM"), 0);
    assert_eq!(told(), 2);
}

/// The process of the node that was started again last.
fn last_pid(log: &str) -> u32 {
    let line = log.lines().rfind(|line| line.contains("serves again")).expect("a restart");
    let (_, pid) = line.split_once("pid=").expect("a process");
    pid.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a number")
}

#[test]
fn a_killed_supervisor_leaves_no_node_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path(), &[]);
    let pids = [0, 1, 2].map(|node| node_pid(&server, node));
    let control = server.ready["volumes"]["control"].as_str().expect("a control plane").replace("http://", "");
    server.stop("KILL");
    let deadline = Instant::now() + PATIENCE;
    // Gone, or a zombie that its new parent has yet to reap.
    let gone =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    let control = control.parse::<SocketAddr>().expect("an address");
    while !pids.iter().all(gone) || std::net::TcpStream::connect(control).is_ok() {
        assert!(Instant::now() < deadline, "what has no supervisor keeps members and catalogue locked");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A size that was too small was kept in the data directory, and a better one ignored from then on.
#[test]
fn a_size_that_cannot_be_is_refused_before_anything_is_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = format!("--data={}", directory.path().display());
    let (status, _, stderr) = run(&["up", &data, "--listen=127.0.0.1:0", "--size=1MiB"]);
    assert!(status == 2 && stderr.contains("a member has at least 1.4 MiB"), "{status} {stderr}");
    let server = up(directory.path(), &[]);
    assert_eq!(server.stop("TERM"), 0);
    let (status, _, stderr) = run(&["up", &data, "--listen=127.0.0.1:0", "--size=128MiB"]);
    assert!(status == 2 && stderr.contains("have 64 MiB; leave it out"), "{status} {stderr}");
}
