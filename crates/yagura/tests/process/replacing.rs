//! Holders that are replaced from outside: a storage node that is lost for good is rebuilt elsewhere, and drives are emptied, under
//! load and without a host.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::control::{Control, HOST, node_of};
use crate::membership::address;
use crate::support::{Server, SetAtEnd, kill, run};

/// For a volume to be whole again. Chosen: many times what it takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn done(arguments: &[&str]) -> String {
    let (status, stdout, stderr) = run(arguments);
    assert_eq!(status, 0, "{arguments:?}: {stdout} {stderr}");
    stdout
}

/// The drives that the volume's holders are on.
fn drives_of(control: &Control) -> Vec<String> {
    let volume = control.done("show", &["volumes", "db", "--tenant=a"]);
    let holders = volume["holders"].as_array().expect("holders").iter();
    holders.map(|holder| holder["drive"].as_str().expect("a drive").to_owned()).collect()
}

/// Writes the whole volume again and again, each time another pattern, until it is told to stop; says which was acknowledged last.
fn load(at: &str, stop: &AtomicBool, written: &AtomicU64) {
    let mut pattern = 1;
    while !stop.load(Ordering::Relaxed) {
        let of = pattern.to_string();
        done(&["nvme", "write", at, "--pattern", &of, "--length=16MiB", "--deadline=20"]);
        written.store(pattern, Ordering::Relaxed);
        pattern += 1;
    }
}

/// Runs `work` while the volume is written to; afterwards every acknowledged byte is there.
fn under_load(at: &str, work: impl FnOnce()) {
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| load(at, &stop, &written));
        let _stop = SetAtEnd(&stop);
        while written.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        work();
    });
    let pattern = written.load(Ordering::Relaxed).to_string();
    done(&["nvme", "read", at, "--length=16MiB", "--verify-pattern", &pattern]);
}

fn emptied(control: &Control, drive: &str) {
    let begun = Instant::now();
    loop {
        let shown = control.done("show", &["drives", drive]);
        if shown["holders"] == 0 {
            return;
        }
        let left = control.done("show", &["holders", drive]);
        assert!(begun.elapsed() < PATIENCE, "{shown} {left} {}", control.done("show", &["operations"]));
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn what_is_lost_is_rebuilt_elsewhere_and_drives_are_emptied_under_load() {
    let directory = tempfile::tempdir().expect("a directory");
    let names = ["a", "b", "c", "d", "e"];
    let mut nodes: Vec<(&str, Server)> =
        names.iter().map(|name| (*name, node_of("96MiB", directory.path(), name, "127.0.0.1:0"))).collect();
    let control = Control::start(directory.path());
    let known: Vec<(&str, &Server)> = nodes.iter().map(|(name, server)| (*name, server)).collect();
    control.register(&known);
    control.done("tenant", &["a"]);
    control.done("create", &["db", "--tenant=a", "--size=16MiB"]);
    let served = control.attach("db", HOST, &[]);
    let at = address(&served);

    // A storage node is lost for good, with its drive.
    let lost = drives_of(&control)[1].clone();
    under_load(&at, || {
        let index = nodes.iter().position(|(name, _)| *name == lost).expect("a node");
        let (_, server) = nodes.remove(index);
        kill(server.id(), "KILL");
        drop(server);
        std::fs::remove_file(directory.path().join(&lost)).expect("its drive");
        control.done("set-drive", &[&lost, "out"]);
        emptied(&control, &lost);
    });
    let told = ["--control", &control.url, "--token-file", &control.token];
    let (status, _, stderr) = run(&[&["control", "drain", &lost][..], &told].concat());
    assert!(status == 4 && stderr.contains("is out"), "{status}: {stderr}");
    assert_eq!(control.done("show", &["drives", &lost])["state"], "out");
    let now = drives_of(&control);
    assert!(!now.contains(&lost), "{now:?}");

    // A drive is emptied under load.
    under_load(&at, || {
        control.done("drain", &[&now[0], "--wait"]);
    });
    let drained = control.done("show", &["drives", &now[0]]);
    assert_eq!((&drained["holders"], &drained["unrecorded"]), (&0.into(), &Value::Array(Vec::new())), "{drained}");
    done(&["nvme", "write", &at, "--pattern", "77", "--length=16MiB", "--deadline=20"]);
    assert_eq!(served.stop("TERM"), 0);

    // And one that nobody uses, beside the drive that was emptied.
    control.done("set-drive", &[&now[0], "in-use"]);
    let idle = drives_of(&control)[2].clone();
    control.done("drain", &[&idle, "--wait"]);
    assert_eq!(drives_of(&control)[2], now[0]);
    let access = ["--name=db", "--tenant=a", "--control", &control.url, "--token-file", &control.token];
    let verify = [&["volume", "verify", "--take", "--json", "--host-nqn", HOST][..], &access].concat();
    let said: Value = serde_json::from_str(&done(&verify)).expect("a report");
    assert_eq!(said["in_sync"], serde_json::json!([0, 1, 2]), "{said}");
    let served = control.attach("db", HOST, &[]);
    done(&["nvme", "read", &address(&served), "--length=16MiB", "--verify-pattern", "77"]);
    assert_eq!(served.stop("TERM"), 0);

    // All of it was promised once, and is given back.
    control.done("delete", &["db", "--tenant=a"]);
    assert!(control.promised().iter().all(|bytes| *bytes == 0), "{:?}", control.promised());
}
