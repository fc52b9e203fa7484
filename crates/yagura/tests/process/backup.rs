//! Backups of volumes from outside: snapshots are written to files and pipes, and read into other volumes.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::control::{Control, HOST, node_of};
use crate::membership::address;
use crate::support::{Server, finished, kill, run, yagura};

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

/// A volume by the addresses of its holders, in a directory of the test's.
struct Volume<'a> {
    holders: Vec<String>,
    directory: &'a Path,
}

impl Volume<'_> {
    fn words<'b>(&'b self, verb: &'static str, more: &[&'b str]) -> Vec<&'b str> {
        ["volume", verb]
            .into_iter()
            .chain(self.holders.iter().map(String::as_str))
            .chain(more.iter().copied())
            .collect()
    }

    fn done(&self, verb: &'static str, more: &[&str]) -> Value {
        json(&self.words(verb, more))
    }

    fn fails(&self, status: i32, verb: &'static str, more: &[&str]) -> String {
        refused(status, &self.words(verb, more))
    }

    fn served(&self) -> Server {
        Server::start(&self.words("attach", &["--listen=127.0.0.1:0"]))
    }

    /// Attached, written by this, and detached.
    fn write(&self, arguments: &[&str]) {
        let served = self.served();
        done(&[&["nvme", "write", &address(&served), "--deadline=20"][..], arguments].concat());
        assert_eq!(served.stop("TERM"), 0);
    }

    /// All bytes.
    fn bytes(&self) -> Vec<u8> {
        let (served, file) = (self.served(), self.directory.join("bytes"));
        done(&["nvme", "read", &address(&served), "--length=8MiB", "--file", &file.display().to_string()]);
        assert_eq!(served.stop("TERM"), 0);
        std::fs::read(file).expect("it was read")
    }

    fn snapshot(&self) -> String {
        self.done("snapshot", &["--take"])["snapshot"].as_str().expect("a name").to_owned()
    }

    fn imports(&self, file: &str) -> Value {
        self.done("import", &["--take", file])
    }

    fn refuses(&self, file: &str, why: &str) {
        let said = self.fails(4, "import", &["--take", file]);
        assert!(said.contains(why), "{said}");
    }
}

/// Where the snapshots of a volume differ, the older one first.
fn tells(source: &Volume<'_>, snapshots: &[String; 3]) {
    let [first, second, _] = snapshots;
    let from = |from: &str| format!("--from={from}");
    let found = source.done("diff", &["--take", &from(first), "--to", second]);
    assert_eq!(found["is_compared"], false, "{found}");
    let extents = found["extents"].as_array().expect("a list");
    let number = |value: &Value| value.as_u64().expect("bytes");
    let is_there = |at: u64| {
        let has = |one: &Value| (number(&one["offset"])..number(&one["offset"]) + number(&one["bytes"])).contains(&at);
        extents.iter().any(has)
    };
    assert!(is_there(200 * 4096) && is_there(215 * 4096) && number(&found["bytes"]) < 1 << 20, "{found}");
    assert!(source.fails(4, "diff", &["--to", second]).contains("--take"));
    assert!(source.fails(2, "diff", &["--take", &from(second), "--to", first]).contains("older"));
    assert!(source.fails(4, "diff", &["--take", "--to=9-0000000000000001-1"]).contains(second.as_str()));
    assert!(source.fails(2, "diff", &["--take", "--to=monday"]).contains("ROUND-HOST-ATTEMPT"));
}

/// In the wrong order, cut off, and damaged: said, and never taken for whole.
fn is_never_taken_for_whole(copy: &Volume<'_>, full: &str, change: &str) {
    copy.refuses(change, "import what lies between first");
    assert!(copy.fails(4, "import", &[full]).contains("--take"));
    let whole = std::fs::read(full).expect("a stream");
    let path = copy.directory.join("damaged").display().to_string();
    std::fs::write(&path, &whole[..whole.len() - 1]).expect("written");
    copy.refuses(&path, "cut off");
    copy.refuses(&path, "in part imported");
    let status = copy.done("status", &["--take"]);
    assert_eq!(status[0]["is_partial"], true, "{status}");
    let mut damaged = whole;
    damaged[1 << 20] ^= 1;
    std::fs::write(&path, &damaged).expect("written");
    copy.refuses(&path, "damaged");
    copy.refuses(change, "in part imported");
}

#[test]
fn a_volume_is_backed_up_and_its_changes_after_it() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path();
    let (_drives, holders): (Vec<_>, Vec<_>) = ["a", "b", "c", "d"].iter().map(|name| drive(directory, name)).unzip();
    let source = Volume { holders: holders[..3].to_vec(), directory };
    let copy = Volume { holders: holders[3..].to_vec(), directory };
    for volume in [&source, &copy] {
        volume.done("create", &["--size=8MiB"]);
    }
    let [full, change, next] = ["full", "change", "next"].map(|name| directory.join(name).display().to_string());
    source.write(&["--pattern=1", "--length=3MiB"]);
    let first = source.snapshot();
    source.write(&["--pattern=2", "--length=64KiB", "--lba=200"]);
    let (second, of_second) = (source.snapshot(), source.bytes());
    source.write(&["--pattern=3", "--length=4KiB"]);
    let snapshots = [first, second, source.snapshot()];
    tells(&source, &snapshots);

    let [first, second, third] = &snapshots;
    let said = source.done("export", &["--take", "--snapshot", first, &full]);
    assert_eq!((&said["bytes"], &said["size"]), (&(3 << 20).into(), &(8 << 20).into()), "{said}");
    source.done("export", &["--take", "--snapshot", second, "--from", first, &change]);
    source.done("export", &["--take", "--snapshot", third, "--from", second, &next]);
    assert!(source.fails(4, "export", &["--take", "--snapshot", first, &full]).contains("exists"));
    is_never_taken_for_whole(&copy, &full, &change);
    // Through a pipe.
    let mut import = yagura(&copy.words("import", &["--take"]));
    import.stdin(Stdio::from(std::fs::File::open(&full).expect("a stream")));
    let (status, _, stderr) = finished(import);
    assert_eq!(status, 0, "{stderr}");
    copy.imports(&change);
    assert!(copy.bytes() == of_second, "the copy has other bytes than the snapshot");
    assert_eq!(copy.imports(&change)["is_known"], true, "who did not hear of it asks again");
    copy.refuses(&full, "--force");

    // Written since: a difference would make of it what never was.
    copy.write(&["--pattern=9", "--length=4KiB", "--lba=300"]);
    copy.refuses(&next, "was written since");
    copy.done("import", &["--take", "--force", &full]);
    copy.imports(&change);
    copy.imports(&next);
    assert!(copy.bytes() == source.bytes(), "the copy has other bytes than the volume");
    source.done("snapshot", &["--take", "--delete", first]);
    assert!(source.fails(4, "snapshot", &["--take", "--delete", first]).contains("no such snapshot"));
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

/// A file that is no whole stream is gone, and the volume is a part, which is let go.
#[test]
fn a_signal_ends_an_export_and_an_import_in_good_order() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path();
    let (_drives, holders): (Vec<_>, Vec<_>) = ["a", "b"].iter().map(|name| drive(directory, name)).unzip();
    let volume = |holder: &String| Volume { holders: vec![holder.clone()], directory };
    let (source, copy) = (volume(&holders[0]), volume(&holders[1]));
    for volume in [&source, &copy] {
        volume.done("create", &["--size=8MiB"]);
    }
    source.write(&["--pattern=1", "--length=8MiB"]);
    let snapshot = source.snapshot();
    let [full, part] = ["full", "part"].map(|name| directory.join(name));
    let (full_name, part_name) = (full.display().to_string(), part.display().to_string());
    source.done("export", &["--take", "--snapshot", &snapshot, &full_name]);
    let stopped = |arguments: &[&str], is_begun: &dyn Fn() -> bool| {
        let child = yagura(arguments).stderr(Stdio::piped()).spawn().expect("started");
        while !is_begun() {
            std::thread::sleep(Duration::from_millis(10));
        }
        // A moment later it is in the middle.
        std::thread::sleep(Duration::from_millis(500));
        kill(child.id(), "INT");
        let ended = child.wait_with_output().expect("it ends");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let words = source.words("export", &["--take", "--rate=1MiB", "--snapshot", &snapshot, &part_name]);
    let (status, said) = stopped(&words, &|| part.exists());
    assert!(status == Some(4) && said.contains("signal") && !part.exists(), "{status:?}: {said}");
    let began = std::time::Instant::now();
    let words = copy.words("import", &["--take", "--rate=1MiB", &full_name]);
    let (status, said) = stopped(&words, &|| began.elapsed() > Duration::from_secs(3));
    assert!(status == Some(4) && said.contains("signal") && said.contains("in part imported"), "{status:?}: {said}");
    copy.imports(&full_name);
    assert!(copy.bytes() == source.bytes(), "the copy has other bytes than the volume");
}
