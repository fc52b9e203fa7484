//! `yagura flash`: a model of a flash device is made, served, killed, served again, closed and checked, as an operator would.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use device::{Durability, Error, Lba, Namespace};
use engine::{Buf, Reactor, ReactorConfig, View};
use fabric::host::{Options, RemoteNamespace};

use crate::support::{PATIENCE, Server, http_get, run, yagura};

fn done(arguments: &[&str]) -> serde_json::Value {
    let (status, stdout, stderr) = run(&[&["flash"], arguments, &["--json"]].concat());
    assert_eq!(status, 0, "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

fn refused(arguments: &[&str], status: i32) -> String {
    let (found, _, stderr) = run(arguments);
    assert_eq!(found, status, "{arguments:?}: {stderr}");
    stderr
}

fn written(address: &str, file: &str, lba: &str) {
    let (status, _, stderr) = run(&["nvme", "write", address, file, &format!("--lba={lba}"), "--fua"]);
    assert_eq!(status, 0, "{stderr}");
}

fn assert_holds(address: &str, lba: &str, byte: char) {
    let (status, stdout, stderr) = run(&["nvme", "read", address, &format!("--lba={lba}"), "--length=256K"]);
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.len() == 256 << 10 && stdout.chars().all(|found| found == byte), "at {lba}");
}

fn filled(byte: u8) -> View {
    let mut buf = Buf::with_len(4096);
    buf.fill(byte);
    buf.freeze()
}

/// Compares block 300 with one byte, all over, and writes another.
fn swapped(server: &Server, from: u8, to: u8) -> Result<(), Error> {
    let nqn = server.ready["nqn"].as_str().expect("a name").parse().expect("an NQN");
    let options = Options::new(server.address("listening"), nqn, 1);
    let swap = async {
        let namespace = RemoteNamespace::connect(options).await.expect("connected");
        assert!(!namespace.info().persists_attributes, "attributes of another thread are not kept");
        namespace.compare_and_write(Lba(300), filled(from), filled(to), Durability::Stable).await
    };
    Reactor::run(ReactorConfig::default(), swap).expect("a reactor")
}

/// The device at a path, with half a MiB on it, is in the metrics.
fn assert_told(server: &Server, path: &str) {
    let device = std::fs::canonicalize(path).expect("there").display().to_string();
    let figure = |(name, value)| format!("yagura_flash_{name}{{device=\"{device}\"}} {value}\n");
    let figures = [("used_bytes", 512 << 10), ("chunks", 256), ("bad_chunks", 0), ("read_only", 0)].map(figure);
    let begun = Instant::now();
    loop {
        let text = http_get(server.address("metrics"), "/metrics");
        let Some(missing) = figures.iter().find(|figure| !text.contains(*figure)) else {
            assert!(text.contains("# TYPE yagura_flash_host_written_bytes_total counter\n"), "{text}");
            return;
        };
        assert!(begun.elapsed() < PATIENCE, "no {missing}: {text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn flash_is_served_killed_served_again_and_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("flash");
    let path = path.to_str().expect("text");
    let made = done(&["format", path, "--preset=small", "--spare=20", "--size=16M"]);
    assert_eq!(
        (&made["preset"], &made["flash_bytes"], &made["used_bytes"]),
        (&"small".into(), &(16 << 20).into(), &0.into())
    );
    assert!(made["bytes"].as_u64().is_some_and(|bytes| bytes > 8 << 20 && bytes < 13 << 20), "{made}");

    let content = directory.path().join("content");
    let input = format!("--file={}", content.display());
    let namespace = format!("--namespace=flash={path}");
    let serve =
        || Server::start(&["target", "--listen=127.0.0.1:0", "--reactors=2", "--metrics=127.0.0.1:0", &namespace]);
    let server = serve();
    let address = server.address("listening").to_string();
    for byte in [b'a', b'b'] {
        std::fs::write(&content, vec![byte; 256 << 10]).expect("written");
        written(&address, &input, "0");
    }
    assert!(refused(&["flash", "info", path], 4).contains("in use"));
    assert_eq!(swapped(&server, 0, b'x'), Ok(()));
    server.stop("KILL");

    let server = serve();
    let address = server.address("listening").to_string();
    assert_holds(&address, "0", 'b');
    assert_eq!(swapped(&server, 0, b'y'), Err(Error::CompareFailure));
    assert_eq!(swapped(&server, b'x', b'y'), Ok(()));
    std::fs::write(&content, vec![b'c'; 256 << 10]).expect("written");
    written(&address, &input, "256");
    assert_told(&server, path);
    assert_eq!(server.stop("TERM"), 0);

    let checked = done(&["check", path]);
    assert_eq!((&checked["faults"], &checked["sectors"]), (&serde_json::json!([]), &128.into()));
    let info = done(&["info", path]);
    // What a life that was killed has written since its last root is counted nowhere.
    assert!(info["used_bytes"] == 512 << 10 && info["host_sectors"].as_u64() >= Some(65), "{info}");
    let map = done(&["map", path]);
    let units = map["units"].as_array().expect("units");
    let chunks = || units.iter().flat_map(|unit| unit.as_array().expect("chunks"));
    assert_eq!((units.len(), chunks().count()), (4, 256));
    // What hosts have, and the map's own pages.
    let valid: u64 = chunks().map(|chunk| chunk["valid"].as_u64().expect("a number")).sum();
    assert!((128..140).contains(&valid), "{valid}");
    let svg = directory.path().join("picture.svg");
    for verb in ["map", "wear"] {
        let (status, drawn, _) = run(&["flash", verb, path, "--svg", svg.to_str().expect("text")]);
        assert!(status == 0 && drawn.contains("unit    3 "), "{drawn}");
        let picture = std::fs::read_to_string(&svg).expect("a picture");
        assert!(picture.starts_with("<svg ") && picture.matches("<rect ").count() == 256, "{picture}");
    }
    let server = serve();
    let address = server.address("listening").to_string();
    assert_holds(&address, "0", 'b');
    assert_holds(&address, "256", 'c');
}

#[test]
fn what_is_no_flash_or_is_served_already_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let name = |name: &str| directory.path().join(name).display().to_string();
    let (path, other) = (name("flash"), name("other"));
    std::fs::write(&other, vec![1; 8192]).expect("written");
    for arguments in [["flash", "info", &other], ["flash", "map", &other]] {
        assert!(refused(&arguments, 4).contains("yagura flash format"));
    }
    assert!(!std::fs::exists(format!("{other}.yagura")).expect("asked"), "it was opened");
    assert!(refused(&["flash", "check", &name("none")], 4).contains("No such file"));
    assert!(refused(&["flash", "format", &path, "--preset=smal"], 2).contains("did you mean `small`?"));
    assert!(refused(&["flash", "format", &path, "--preset=small", "--size=1M"], 2).contains("larger --size"));
    // A root has no room in a chunk; and the map has none in memory.
    for size in ["4G", "2T"] {
        let stderr = refused(&["flash", "format", &path, "--preset=small", &format!("--size={size}")], 2);
        assert!(stderr.contains("--size"), "{size}: {stderr}");
    }
    assert!(!std::fs::exists(&path).expect("asked"), "a file was left");
    // What belongs to a file that is away for a moment was deleted.
    let beside = format!("{path}.yagura");
    std::fs::write(&beside, vec![1; 8192]).expect("written");
    assert!(refused(&["flash", "format", &path, "--preset=small"], 4).contains("rm "));
    assert_eq!(std::fs::read(&beside).expect("it is there"), vec![1; 8192]);
    std::fs::remove_file(&beside).expect("it is there");
    done(&["format", &path, "--preset=small"]);
    assert!(refused(&["flash", "format", &path, "--preset=small"], 4).contains("rm "));

    let spec = format!("--namespace=flash={path}");
    let target = ["target", "--listen=127.0.0.1:0", &spec];
    assert!(refused(&[&target[..], &[&spec]].concat(), 4).contains("is served already"));
    let server = Server::start(&target);
    assert!(refused(&target, 4).contains("in use"));
    assert_eq!(server.stop("TERM"), 0);
    assert!(
        refused(&["target", "--listen=127.0.0.1:0", &format!("--namespace=flash={other}")], 4)
            .contains("no flash device")
    );
    std::fs::remove_file(format!("{path}.yagura")).expect("removed");
    assert!(refused(&["flash", "info", &path], 4).contains(".yagura"));
}

/// The one that lost removed the file of the one that won.
#[test]
fn of_those_who_format_a_file_at_the_same_time_one_does() {
    let directory = tempfile::tempdir().expect("a directory");
    for round in 0..5 {
        let path = directory.path().join(format!("flash{round}")).display().to_string();
        let format = || {
            let mut command = yagura(&["flash", "format", &path, "--preset=small", "--json"]);
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started")
        };
        let all: Vec<std::process::Output> =
            [format(), format(), format()].map(|child| child.wait_with_output().expect("ended")).into();
        let (made, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(|output| output.status.success());
        assert_eq!(made.len(), 1, "{made:?} {refused:?}");
        for output in refused {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(4) && stderr.contains("exists"), "{stderr}");
        }
        assert_eq!(done(&["check", &path])["faults"], serde_json::json!([]));
    }
}

#[test]
fn who_looks_at_a_device_changes_nothing_in_its_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("flash").display().to_string();
    done(&["format", &path, "--preset=small"]);
    for signal in ["KILL", "TERM"] {
        let server = Server::start(&["target", "--listen=127.0.0.1:0", &format!("--namespace=flash={path}")]);
        let address = server.address("listening").to_string();
        assert_eq!(run(&["nvme", "write", &address, "--pattern=1", "--length=64K", "--fua"]).0, 0);
        server.stop(signal);
        let before = std::fs::read(&path).expect("read");
        for verb in [&["info"][..], &["check"], &["map"], &["wear"], &["bbt", "get"]] {
            done(&[verb, &[&path[..]]].concat());
        }
        assert!(std::fs::read(&path).expect("read") == before, "behind {signal}");
    }
}

/// A copy of the file has the same identity: both were closed when one of them was removed.
#[test]
fn a_copy_is_served_on_when_what_it_was_copied_from_is_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let name = |name: &str| directory.path().join(name).display().to_string();
    let (path, copy) = (name("flash"), name("copy"));
    done(&["format", &path, "--preset=small"]);
    for end in ["", ".yagura"] {
        std::fs::copy(format!("{path}{end}"), format!("{copy}{end}")).expect("copied");
    }
    let control = format!("--control={}", name("control"));
    let first = format!("--namespace=flash={path},nsid=1");
    let second = format!("--namespace=flash={copy},nsid=2");
    let server = Server::start(&["target", "--listen=127.0.0.1:0", &control, &first, &second]);
    let address = server.address("listening").to_string();
    assert_eq!(run(&["target", "remove-namespace", "--nsid=1", &control]).0, 0);
    assert_eq!(run(&["nvme", "write", &address, "--nsid=2", "--pattern=1", "--length=64K", "--fua"]).0, 0);
    done(&["check", &path]);
    assert!(refused(&["flash", "check", &copy], 4).contains("in use"));
}

/// What the media manager has left would be read as zones, and overwritten; and the other way.
#[test]
fn zones_are_served_and_no_log_is_taken_for_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let name = |name: &str| directory.path().join(name).display().to_string();
    let (log, zones) = (name("log"), name("zones"));
    done(&["format", &log, "--preset=small"]);
    let made = done(&["format", &zones, "--preset=zoned", "--zones"]);
    let found = (&made["zones"], &made["empty"], &made["zone_bytes"], &made["open_max"]);
    assert_eq!(found, (&128.into(), &128.into(), &(8 << 20).into(), &14.into()));
    let serve = |medium: &str, path: &str| {
        ["target".to_owned(), "--listen=127.0.0.1:0".to_owned(), format!("--namespace={medium}={path}")]
    };
    for (medium, path, there) in [("zones", &log, "a log of our media manager on it"), ("flash", &zones, "zones on it")]
    {
        let arguments = serve(medium, path);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert!(refused(&arguments, 4).contains(there), "{medium}");
    }
    assert!(refused(&["flash", "check", &zones], 4).contains("zones on it"));

    let arguments = serve("zones", &zones);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    for life in 0..2 {
        let server = Server::start(&arguments);
        let nqn = server.ready["nqn"].as_str().expect("a name").parse().expect("an NQN");
        let options = Options::new(server.address("listening"), nqn, 1);
        let used = async {
            let namespace = RemoteNamespace::connect(options).await.expect("connected");
            let zone = Lba(namespace.zoned().expect("zoned").zone_blocks * 5);
            let appended = namespace.append(zone, filled(b'z'), Durability::Stable).await;
            assert_eq!(appended, Ok(Lba(zone.0 + life)), "what was acknowledged is there after kill -9");
        };
        Reactor::run(ReactorConfig::default(), used).expect("a reactor");
        let flash = format!("--flash=nvme={}", server.address("listening"));
        let journal = format!("--flash-journal={}", name("journal"));
        let error = refused(&["cache", "serve", "-p", "0", &flash, &journal], 4);
        assert!(error.contains("written in order"), "{error}");
        if life == 0 {
            server.stop("KILL");
        } else {
            assert_eq!(server.stop("TERM"), 0);
        }
    }
    let info = done(&["info", &zones]);
    assert_eq!((&info["closed"], &info["written_bytes"]), (&1.into(), &8192.into()));
}

/// Bytes of a file changed at a place, for as long as something is done.
fn while_damaged<T>(path: &str, at: usize, bytes: &[u8], does: impl FnOnce() -> T) -> T {
    let sound = std::fs::read(path).expect("read");
    let mut damaged = sound.clone();
    damaged[at..at + bytes.len()].copy_from_slice(bytes);
    std::fs::write(path, damaged).expect("written");
    let result = does();
    std::fs::write(path, sound).expect("written");
    result
}

#[test]
fn damage_and_another_geometry_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let name = |name: &str| directory.path().join(name).display().to_string();
    let (path, olive) = (name("flash"), name("olive"));
    done(&["format", &path, "--preset=small"]);
    let target = format!("--namespace=flash={path}");
    let asked = || {
        let said = refused(&["flash", "check", &path], 4);
        let served = refused(&["target", "--listen=127.0.0.1:0", &target], 4).replace("namespace 1: ", "");
        assert_eq!(served, said, "a target says the same");
        said
    };
    assert!(while_damaged(&path, 30, &[9], asked).contains("its head is damaged"));
    assert!(while_damaged(&path, 4096, &[9], asked).contains("chunk 0 has state 9"));
    assert!(while_damaged(&path, 4096 + 4, &[200], asked).contains("200 sectors of it are written"));
    // Chunks 0 and 1 of the first two parallel units have all roots: the device says that nothing is in them.
    let emptied: Vec<u8> = vec![0; 4096 * 128];
    assert!(while_damaged(&path, 4096, &emptied, asked).contains("not formatted"));
    let bytes = std::fs::metadata(&path).expect("a file").len();
    std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(bytes - 4096).expect("cut");
    assert!(asked().contains("the device needs"));
    std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(bytes).expect("as it was");
    done(&["check", &path]);

    done(&["format", &olive, "--preset=olive", "--size=256M"]);
    std::fs::copy(format!("{olive}.yagura"), format!("{path}.yagura")).expect("copied");
    assert!(asked().contains("that of the preset olive is"));
}

/// Room for a file that is sparse runs out; unmounted when dropped.
struct Mount<'a>(&'a Path);

impl Mount<'_> {
    fn set(at: &Path, options: &str) -> bool {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(at).output();
        mount.is_ok_and(|mount| mount.status.success())
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

#[test]
fn a_file_system_without_room_is_named_and_loses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    if !Mount::set(directory.path(), "size=4m") {
        eprintln!("skipped: no file system can be mounted here (root is needed)");
        return;
    }
    let _mount = Mount(directory.path());
    let name = |name: &str| directory.path().join(name).display().to_string();
    let (path, large) = (name("flash"), name("large"));
    assert!(refused(&["flash", "format", &large, "--preset=small", "--size=128M"], 5).contains("no room"));
    assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0, "half a device was left");

    done(&["format", &path, "--preset=small", "--spare=20"]);
    let spec = format!("--namespace=flash={path}");
    let sockets = tempfile::tempdir().expect("a directory");
    let control = format!("--control={}", sockets.path().join("control").display());
    let serve = || Server::start(&["target", "--listen=127.0.0.1:0", &control, &spec]);
    let server = serve();
    let address = server.address("listening").to_string();
    let pattern = |seed: &str, lba: &str| {
        run(&["nvme", "write", &address, "--pattern", seed, "--length=512K", &format!("--lba={lba}"), "--fua"])
    };
    let verified = |address: &str, seed: &str, lba: &str| {
        let arguments = ["nvme", "read", address, "--verify-pattern", seed, "--length=512K", &format!("--lba={lba}")];
        assert_eq!(run(&arguments).0, 0, "{arguments:?}");
    };
    assert_eq!(pattern("1", "0").0, 0);
    let mut seeds = 2..30;
    let full = seeds.find(|seed| pattern(&seed.to_string(), "128").0 != 0);
    assert!(full.is_some(), "14 MiB fit 4 MiB");
    verified(&address, "1", "0");
    // What can't be flushed is let go all the same: somebody may want to bring it back when there is room.
    let stderr = refused(&["target", "remove-namespace", "--nsid=1", &control], 4);
    assert!(stderr.contains("its last flush"), "{stderr}");
    let stderr = refused(&["target", "add-namespace", &format!("flash={path}"), &control], 5);
    assert!(stderr.contains("make room there"), "{stderr}");
    server.stop("KILL");
    // It takes no room to look.
    done(&["info", &path]);
    assert!(refused(&["target", "--listen=127.0.0.1:0", &spec], 5).contains("make room there"));
    assert!(Mount::set(directory.path(), "remount,size=32m"));
    assert_eq!(done(&["check", &path])["faults"], serde_json::json!([]));
    let server = serve();
    verified(&server.address("listening").to_string(), "1", "0");
}

#[test]
fn bad_chunks_are_shown_and_set_where_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("flash").display().to_string();
    done(&["format", &path, "--preset=small"]);
    assert_eq!(done(&["bbt", "get", &path]), serde_json::json!({ "chunks": 128, "bad": [] }));
    let table = done(&["bbt", "set", &path, "3:31", "2:9"]);
    let bad = serde_json::json!([{ "unit": 2, "chunk": 9 }, { "unit": 3, "chunk": 31 }]);
    assert_eq!(table["bad"], bad);
    assert!(refused(&["flash", "bbt", "set", &path, "4:0"], 2).contains("from 0:0 to 3:31"));
    assert!(refused(&["flash", "bbt", "set", &path, "0:1"], 4).contains("set apart for roots"));

    let server = Server::start(&["target", "--listen=127.0.0.1:0", &format!("--namespace=flash={path}")]);
    let address = server.address("listening").to_string();
    assert_eq!(run(&["nvme", "write", &address, "--pattern=1", "--length=64K"]).0, 0);
    assert_eq!(server.stop("TERM"), 0);
    let map = done(&["map", &path]);
    let used = (0..4).flat_map(|unit| (0..32).map(move |chunk| (unit, chunk))).find(|&(unit, chunk)| {
        let drawn: &serde_json::Value = &map["units"][unit][chunk];
        drawn["valid"].as_u64() > Some(0)
    });
    let (unit, chunk) = used.expect("64 KiB are somewhere");
    let name = format!("{unit}:{chunk}");
    assert!(refused(&["flash", "bbt", "set", &path, &name], 4).contains("in use; say --force"));
    assert_eq!(done(&["bbt", "get", &path])["bad"], bad);
    done(&["bbt", "set", &path, &name, "--force"]);
    assert_eq!(done(&["check", &path])["faults"], serde_json::json!([]));
    assert_eq!(done(&["bbt", "get", &path])["bad"].as_array().map(Vec::len), Some(3));
}

#[test]
fn traces_are_replayed_and_bad_lines_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = |text: &str| {
        let path = directory.path().join("trace");
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let path = trace("fio version 2 iolog\nx add\nx write 0 65536\nx sync 0 0\nx read 4096 4096\nx close\n");
    let replay = |path: &str| done(&["replay", path, "--preset=olive", "--size=256M"]);
    let (first, second) = (replay(&path), replay(&path));
    assert_eq!(first, second, "one seed is one run");
    let kinds: Vec<&str> =
        first["latencies"].as_array().expect("a list").iter().filter_map(|found| found["kind"].as_str()).collect();
    assert_eq!(kinds, ["read", "write", "flush"]);
    assert_eq!((&first["host_sectors"], &first["wrapped_commands"]), (&16.into(), &0.into()));
    assert!(first["seconds"].as_f64() > Some(0.0013), "{first}");
    let (status, text, _) = run(&["flash", "replay", &path, "--preset=small", "--fill"]);
    assert!(status == 0 && text.contains("write amplification"), "{text}");
    let path = trace("  8,0    3        1     0.000000000   697  Q   W 8 + 8 [a]\n  8,0 oh\n");
    assert!(refused(&["flash", "replay", &path, "--preset=small"], 2).contains("line 2: no event"));
    assert!(refused(&["flash", "replay", &trace("\n"), "--preset=small"], 2).contains("no commands"));
}
