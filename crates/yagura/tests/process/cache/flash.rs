//! The flash tier from outside: what is found after the server has ended, however it did.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use engine::rng::SplitMix;

use super::{Text, serve};
use crate::port::Port;
use crate::support::{PATIENCE, Server, http_get, kill, run};

const MIB: usize = 1 << 20;

fn file(directory: &Path, mebibytes: usize) -> String {
    format!("file={},size={mebibytes}MiB", directory.join("flash").display())
}

/// Values of a kilobyte that have their key and version in them.
fn value(key: usize, version: u64) -> Vec<u8> {
    value_of(600 + key % 800, key, version)
}

fn value_of(bytes: usize, key: usize, version: u64) -> Vec<u8> {
    let mut value = format!("{key} {version} ").into_bytes();
    value.resize(bytes, b'x');
    value
}

fn version(key: usize, value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).expect("text");
    let mut parts = text.split(' ');
    assert_eq!(parts.next(), Some(&*key.to_string()), "another key's value");
    parts.next().and_then(|version| version.parse().ok()).expect("a version")
}

fn fill(address: SocketAddr, keys: std::ops::Range<usize>, version: u64) {
    let mut client = Text::connect(address);
    for key in keys {
        let value = value(key, version);
        let head = format!("set k{key} 0 0 {} noreply\r\n", value.len());
        client.send(&[head.as_bytes(), &value, b"\r\n"].concat());
    }
    client.expect(b"mn\r\n", b"MN\r\n");
}

/// How many of the keys are there; each has to be of this version.
fn count(address: SocketAddr, keys: std::ops::Range<usize>, expected: u64) -> usize {
    let mut found = 0;
    Text::connect(address).get_all(keys, |key, version| {
        assert!(version.is_none_or(|version| version == expected), "key {key}: {version:?}");
        found += usize::from(version.is_some());
    });
    found
}

fn metric(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

/// Of two keys that are one to the index one goes when both come to flash.
fn is_about(found: usize, before: usize) -> bool {
    found <= before && found + 8 >= before
}

impl Text<TcpStream> {
    /// The version of a key.
    fn get(&mut self, key: usize) -> Option<u64> {
        self.try_get(key).expect("an answer")
    }

    /// The versions of keys, asked for many at once.
    fn get_all(&mut self, mut keys: std::ops::Range<usize>, mut found: impl FnMut(usize, Option<u64>)) {
        const AT_ONCE: usize = 64;
        while !keys.is_empty() {
            let some: Vec<usize> = keys.by_ref().take(AT_ONCE).collect();
            self.send(some.iter().map(|key| format!("get k{key}\r\n")).collect::<String>().as_bytes());
            some.into_iter().for_each(|key| found(key, self.answer(key).expect("an answer")));
        }
    }

    fn try_get(&mut self, key: usize) -> std::io::Result<Option<u64>> {
        self.reader.get_mut().write_all(format!("get k{key}\r\n").as_bytes())?;
        self.answer(key)
    }

    /// The answer to a `get` of one key that was sent.
    fn answer(&mut self, key: usize) -> std::io::Result<Option<u64>> {
        let line = self.try_line()?;
        if line == "END" {
            return Ok(None);
        }
        let length = line.rsplit(' ').next().and_then(|length| length.parse::<usize>().ok());
        let length = length.unwrap_or_else(|| panic!("{line}"));
        let mut bytes = vec![0; length + b"\r\nEND\r\n".len()];
        self.reader.read_exact(&mut bytes)?;
        assert!(bytes.ends_with(b"\r\nEND\r\n"), "{:?}", String::from_utf8_lossy(&bytes));
        Ok(Some(version(key, &bytes[..length])))
    }

    fn try_ask(&mut self, bytes: &[u8]) -> std::io::Result<String> {
        self.reader.get_mut().write_all(bytes)?;
        self.try_line()
    }

    fn try_line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[test]
fn after_a_good_end_all_is_there_again_and_after_a_flush_nothing() {
    const KEYS: usize = 60_000; // of a kilobyte: more than memory
    let directory = tempfile::tempdir().expect("a directory");
    let flash = file(directory.path(), 256);
    let arguments = ["-m", "64", "-t", "2", "--flash", &flash, "--flash-admission", "all"];
    let server = serve(&[&arguments[..], &["--metrics", "127.0.0.1:0"]].concat());
    assert_eq!(server.ready["flash"]["begun_anew"], "begun anew");
    fill(server.address("listening"), 0..KEYS, 1);
    let before = count(server.address("listening"), 0..KEYS, 1);
    let mut client = Text::connect(server.address("listening"));
    assert!(client.figure("get_extstore") > 10_000 && before > KEYS / 2, "{before}");
    let text = http_get(server.address("metrics"), "/metrics");
    let to_flash = format!("yagura_cache_evictions_total{{reason=\"to_flash\"}} {}", client.figure("evicted_to_flash"));
    let lost = "yagura_cache_flash_evictions_total{reason=\"lost\"} 0";
    for line in ["yagura_cache_flash_up 1", "yagura_cache_flash_read_errors_total 0", lost, &to_flash] {
        assert!(text.contains(&format!("{line}\n")), "{line} is missing in\n{text}");
    }
    let hits = metric(&text, "yagura_cache_flash_hits_total");
    assert!(hits > 10_000, "{hits}");
    // What is received together is timed once, so these are asked for one by one.
    let timed =
        |text: &str| ["flash", "memory"].map(|tier| metric(text, &format!("yagura_cache_{tier}_seconds_count")));
    let earlier = timed(&text);
    (0..KEYS).step_by(20).for_each(|key| assert!(client.get(key).is_none_or(|version| version == 1)));
    let later = timed(&http_get(server.address("metrics"), "/metrics"));
    let [flash, memory] = [later[0] - earlier[0], later[1] - earlier[1]];
    assert!(flash > 500 && memory > 500 && flash + memory >= KEYS as u64 / 20, "{flash} of flash, {memory} of memory");
    client.expect(b"set over 0 1 1\r\nx\r\nset counter 7 0 2\r\n41\r\n", b"STORED\r\nSTORED\r\n");
    client.expect(b"incr counter 1\r\n", b"42\r\n");
    let cas = client.ask(b"gets counter\r\n", "END")[0].clone();
    assert_eq!(server.stop("TERM"), 0);
    std::thread::sleep(Duration::from_secs(1));

    // Also what was in memory, with flags and cas.
    let server = serve(&arguments);
    assert_eq!(server.ready["flash"]["begun_anew"], serde_json::Value::Null);
    assert!(is_about(count(server.address("listening"), 0..KEYS, 1), before));
    let mut client = Text::connect(server.address("listening"));
    assert_eq!(client.ask(b"gets counter\r\n", "END")[0], cas);
    client.expect(b"get over\r\n", b"END\r\n");
    client.expect(b"flush_all\r\n", b"OK\r\n");
    assert_eq!(count(server.address("listening"), 0..1000, 1), 0);
    client.expect(b"set new 0 0 3\r\nnew\r\n", b"STORED\r\n");
    assert_eq!(server.stop("TERM"), 0);

    let server = serve(&arguments);
    assert_eq!((&server.ready["flash"]["items"], count(server.address("listening"), 0..KEYS, 1)), (&1.into(), 0));
    Text::connect(server.address("listening")).expect(b"get new\r\n", b"VALUE new 0 3\r\nnew\r\nEND\r\n");
    assert_eq!(server.stop("TERM"), 0);
}

/// What one client knows: of each of its keys the version that was acknowledged last (0: none is there), and one whose outcome it
/// was not told.
#[derive(Default)]
struct Truth {
    acknowledged: BTreeMap<usize, u64>,
    unknown: Option<(usize, u64)>,
    hits: usize,
}

/// What the clients of one server share.
#[derive(Default)]
struct Life {
    /// Clients that have looked at all their keys.
    checked: AtomicUsize,
    commands: AtomicUsize,
    is_over: AtomicBool,
}

const CLIENTS: usize = 3;
/// Of all clients until the server is killed: half of them store more than memory holds.
const COMMANDS: usize = 100_000;
const KEYS_EACH: usize = 12_000;

impl Truth {
    fn check(&mut self, key: usize, found: Option<u64>) {
        let Some(found) = found else { return };
        let last = self.acknowledged.get(&key).copied().unwrap_or(0);
        let in_doubt = self.unknown.filter(|&(other, _)| other == key).map(|(_, version)| version);
        assert!(
            found == last || in_doubt == Some(found),
            "key {key}: {found}, acknowledged {last}, unknown {in_doubt:?}"
        );
        self.hits += 1;
    }

    /// Commands until the server is gone.
    fn live(&mut self, client: &mut Text<TcpStream>, first: usize, random: &mut SplitMix, life: &Life) {
        loop {
            life.commands.fetch_add(1, Ordering::SeqCst);
            let key = first + random.index(KEYS_EACH);
            let new = self.acknowledged.get(&key).copied().unwrap_or(0) + 1;
            let (version, answered) = match random.index(10) {
                0..5 => {
                    let value = value_of(1200 + key % 1600, key, new);
                    let set = [format!("set k{key} 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
                    (new, client.try_ask(&set).map(|line| assert_eq!(line, "STORED")))
                }
                5 => (0, client.try_ask(format!("delete k{key}\r\n").as_bytes()).map(|_| ())),
                _ => match client.try_get(key) {
                    Ok(found) => {
                        self.check(key, found);
                        continue;
                    }
                    Err(error) => (self.acknowledged.get(&key).copied().unwrap_or(0), Err(error)),
                },
            };
            if let Err(error) = answered {
                assert!(life.is_over.load(Ordering::SeqCst), "{error}");
                self.unknown = Some((key, version));
                return;
            }
            // A version is never given twice: what was deleted must not come back.
            let seen = if version == 0 { new } else { version };
            self.acknowledged.insert(key, seen);
        }
    }
}

/// Killed under load again and again: each time a get gives what was acknowledged last, or nothing.
#[test]
fn killed_under_load_it_serves_the_latest_or_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let flash = file(directory.path(), 64);
    let arguments = ["-m", "64", "-t", "2", "--flash", &flash, "--flash-admission", "all"];
    let mut truths: Vec<(Truth, SplitMix)> =
        (0..CLIENTS).map(|client| (Truth::default(), SplitMix(client as u64))).collect();
    let mut found_after_kills = 0;
    for life in 0..5 {
        let server = serve(&arguments);
        let address = server.address("listening");
        let lived = Life::default();
        std::thread::scope(|scope| {
            let clients: Vec<_> = truths
                .iter_mut()
                .enumerate()
                .map(|(index, (truth, random))| {
                    let lived = &lived;
                    scope.spawn(move || {
                        let mut client = Text::connect(address);
                        let first = index * KEYS_EACH;
                        let hits = truth.hits;
                        client.get_all(first..first + KEYS_EACH, |key, found| truth.check(key, found));
                        let found = truth.hits - hits;
                        // What was in doubt is not any more, once something else is acknowledged of it.
                        if let Some((key, _)) = truth.unknown.take() {
                            let line = client.try_ask(format!("delete k{key}\r\n").as_bytes());
                            assert!(line.is_ok_and(|line| line == "DELETED" || line == "NOT_FOUND"));
                            *truth.acknowledged.entry(key).or_default() += 2;
                        }
                        lived.checked.fetch_add(1, Ordering::SeqCst);
                        truth.live(&mut client, first, random, lived);
                        found
                    })
                })
                .collect();
            let is_enough =
                || lived.commands.load(Ordering::SeqCst) >= COMMANDS && lived.checked.load(Ordering::SeqCst) == CLIENTS;
            while !is_enough() && !clients.iter().any(|client| client.is_finished()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            lived.is_over.store(true, Ordering::SeqCst);
            kill(server.id(), "KILL");
            let found: usize = clients.into_iter().map(|client| client.join().expect("no assertion failed")).sum();
            found_after_kills += if life > 0 { found } else { 0 };
        });
        assert_eq!(server.wait(), -1, "killed");
    }
    println!("{found_after_kills} items found after kills");
    assert!(found_after_kills > 2000, "only {found_after_kills} items were found after kills");
}

/// `truncate -s 0` on the journal ended the server by SIGBUS.
#[test]
fn a_journal_that_is_cut_short_ends_flash_and_not_the_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let flash = file(directory.path(), 64);
    let arguments = ["-m", "64", "-t", "2", "--flash", &flash, "--flash-admission", "all"];
    let server = serve(&arguments);
    let address = server.address("listening");
    fill(address, 0..90_000, 1);
    let mut client = Text::connect(address);
    assert!(client.figure("extstore_objects_written") > 0);
    let journal = directory.path().join("flash.journal");
    std::fs::File::options().write(true).open(&journal).and_then(|file| file.set_len(100)).expect("cut");
    fill(address, 0..90_000, 2);
    let failure = client.ask(b"stats\r\n", "END").into_iter().find(|line| line.starts_with("STAT flash_failure "));
    assert!(failure.as_ref().is_some_and(|line| line.contains("journal was cut short")), "{failure:?}");
    assert!(count(address, 0..90_000, 2) > 10_000, "memory serves on");
    assert_eq!(server.stop("TERM"), 0);
    let server = serve(&arguments);
    assert_eq!(server.ready["flash"]["items"], 0);
}

/// Where there was less room, all went well until the file system was full.
#[test]
fn a_flash_file_that_its_file_system_has_no_room_for_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let system = rustix::fs::statvfs(directory.path()).expect("a file system");
    let bytes = (system.f_blocks * system.f_frsize * 2).next_multiple_of(4096);
    let path = directory.path().join("flash");
    let flash = format!("file={},size={bytes}", path.display());
    let (status, _, stderr) = run(&["cache", "serve", "-p", "0", "-m", "65536", "--flash", &flash]);
    assert!(status == 5 && stderr.contains(" more of its file system, which has "), "{status} {stderr}");
    assert!(!path.exists());
}

/// On a namespace of a target: it is found again, a target may be away for a moment, and when it is gone the cache goes on in
/// memory.
#[test]
fn on_a_namespace_of_a_target_which_goes_away() {
    const KEYS: usize = 45_000;
    let directory = tempfile::tempdir().expect("a directory");
    let journal = directory.path().join("journal").display().to_string();
    let medium = format!("file={},size=128MiB", directory.path().join("medium").display());
    let target = |listen: &str| Server::start(&["target", "--listen", listen, "--namespace", &medium]);
    let kept = Port::keep();
    let listening = kept.address.to_string();
    let first = target(&listening);
    let flash = format!("nvme={listening}");
    let arguments = ["-m", "64", "-t", "2", "--flash", &flash, "--flash-journal", &journal, "--flash-admission", "all"];
    let server = serve(&arguments);
    fill(server.address("listening"), 0..KEYS, 1);
    let before = count(server.address("listening"), 0..KEYS, 1);
    assert!(before > KEYS / 2, "{before}");
    assert_eq!(server.stop("TERM"), 0);

    let server = serve(&arguments);
    let address = server.address("listening");
    assert!(is_about(count(address, 0..KEYS, 1), before));
    first.stop("KILL");
    fill(address, 0..KEYS, 2);
    let second = target(&listening);
    let mut client = Text::connect(address);
    let written = client.figure("extstore_bytes_written");
    let deadline = std::time::Instant::now() + PATIENCE;
    while client.figure("extstore_bytes_written") <= written {
        assert!(std::time::Instant::now() < deadline, "nothing is written to the target that is back");
        fill(address, 0..KEYS, 3);
    }
    assert!(count(address, 0..KEYS, 3) > 0);
    assert!(client.ask(b"stats\r\n", "END").contains(&"STAT flash_failure none".to_owned()), "given up too early");
    second.stop("KILL");
    fill(address, 0..1000, 4);
    // Every answer is right, and it says by and by that it has given flash up.
    let deadline = std::time::Instant::now() + 3 * PATIENCE;
    let mut version = 4;
    while client.ask(b"stats\r\n", "END").contains(&"STAT flash_failure none".to_owned()) {
        assert!(std::time::Instant::now() < deadline, "flash is not given up");
        for key in 0..1000 {
            assert!(client.get(key).is_none_or(|found| found == version), "key {key}");
        }
        std::thread::sleep(Duration::from_millis(200));
        version += 1;
        fill(address, 0..KEYS, version);
    }
    client.expect(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    let found = count(address, 0..KEYS, version);
    // What was on flash takes no memory any more.
    let items = client.figure("curr_items");
    assert!(found > 0 && items < 2 * found as u64, "{found} found of {items} items");
    assert_eq!(server.stop("TERM"), 0);
}

/// One that hangs is worse than one that is away: nothing says so.
#[test]
fn a_target_that_hangs_delays_nothing_but_what_is_there() {
    const KEYS: usize = 45_000;
    let directory = tempfile::tempdir().expect("a directory");
    let journal = directory.path().join("journal").display().to_string();
    let medium = format!("file={},size=128MiB", directory.path().join("medium").display());
    let target = Server::start(&["target", "--listen=127.0.0.1:0", "--namespace", &medium]);
    let flash = format!("nvme={}", target.address("listening"));
    let arguments = ["-m", "64", "-t", "1", "--flash", &flash, "--flash-journal", &journal, "--flash-admission", "all"];
    let server = serve(&arguments);
    let address = server.address("listening");
    fill(address, 0..KEYS, 1);
    let mut client = Text::connect(address);
    client.expect(b"set hot 0 0 1\r\nx\r\n", b"STORED\r\n");
    kill(target.id(), "STOP");
    // The oldest keys are on flash: who asks for them waits, and more than that wait in line.
    let mut waiting: Vec<_> = (0..50).map(|_| Text::connect(address)).collect();
    for (key, one) in waiting.iter_mut().enumerate() {
        one.send(format!("get k{key}\r\n").as_bytes());
    }
    let before = client.figure("get_hits");
    for number in 0..2000 {
        client.expect(b"get hot\r\n", b"VALUE hot 0 1\r\nx\r\nEND\r\n");
        client.expect(format!("set new{number} 0 0 1\r\ny\r\n").as_bytes(), b"STORED\r\n");
    }
    assert!(client.figure("get_hits") >= before + 2000);
    kill(target.id(), "CONT");
    for (key, one) in waiting.iter_mut().enumerate() {
        let lines = one.ask(b"", "END");
        assert!(lines.len() == 1 || lines[0].starts_with(&format!("VALUE k{key} ")), "{lines:?}");
    }
    let found = count(address, 0..5000, 1);
    assert!(found > 4000, "{found} of the 5,000 oldest are there");
    assert!(client.ask(b"stats\r\n", "END").contains(&"STAT flash_failure none".to_owned()));
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn memory_with_flash_stays_within_the_limit() {
    const LIMIT: usize = 96;
    let directory = tempfile::tempdir().expect("a directory");
    let flash = file(directory.path(), 512);
    let limit = LIMIT.to_string();
    let server = serve(&["-m", &limit, "-t", "2", "--flash", &flash]);
    let address = server.address("listening");
    for round in 1..4 {
        fill(address, 0..150_000, round);
        count(address, 100_000..150_000, round);
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident");
        let kibibytes: usize = resident.trim().trim_end_matches(" kB").parse().expect("a number");
        assert!(kibibytes * 1024 <= LIMIT * MIB * 105 / 100, "round {round}: {kibibytes} KiB of {LIMIT} MiB");
    }
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn what_cannot_be_a_flash_tier_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let flash = file(directory.path(), 64);
    let refused = |arguments: &[&str]| {
        let (status, _, stderr) = run(&[&["cache", "serve", "-p", "0"], arguments].concat());
        assert!(matches!(status, 2..=5), "{status}: {stderr}");
        stderr
    };
    assert!(refused(&["--flash", "nvme=127.0.0.1:1"]).contains("--flash-journal FILE"));
    let tiny = format!("file={},size=256KiB", directory.path().join("tiny").display());
    assert!(refused(&["--flash", &tiny]).contains("use a larger one"));
    // Of a size whose tables alone are a good part of the memory, however much of it the program itself has resident.
    // It is there already: a new one is refused first where the file system has no room for it.
    let large = directory.path().join("large");
    std::fs::File::create(&large).and_then(|file| file.set_len(16 << 30)).expect("a sparse file");
    let told = refused(&["-m", "32", "--flash", &format!("file={}", large.display())]);
    assert!(told.contains("or more"), "{told}");
    let other = directory.path().join("other");
    let text = other.display().to_string();
    std::fs::File::create(&other)
        .and_then(|mut file| file.write_all(b"somebody's data").and(file.set_len(64 * MIB as u64)))
        .expect("written");
    let foreign = format!("file={text}");
    assert!(refused(&["--flash", &foreign]).contains("--flash-overwrite"));
    assert_eq!(serve(&["--flash", &foreign, "--flash-overwrite"]).stop("TERM"), 0);
    let server = serve(&["--flash", &flash]);
    let stderr = refused(&["--flash", &flash]);
    assert!(stderr.contains("in use") || stderr.contains("another"), "{stderr}");
    assert_eq!(server.stop("TERM"), 0);
    let mut reader = BufReader::new(std::fs::File::open(other).expect("there"));
    let mut magic = [0; 8];
    reader.read_exact(&mut magic).expect("read");
    assert_eq!(&magic, b"YAGURAFC");
}
