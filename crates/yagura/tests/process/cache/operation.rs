//! What operators of memcached do: signals, limits changed while it runs, looking at what happens.

use std::fs::{File, Permissions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{Text, serve};
use crate::port::Port;
use crate::support::{PATIENCE, Server, finished, http_get, kill, run, yagura};

/// Waits for what comes true by itself.
pub(super) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn write_users(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("set");
}

#[test]
fn a_hangup_ends_nothing_and_reads_the_users_again() {
    let server = serve(&[]);
    let mut client = Text::connect(server.address("listening"));
    client.expect(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    kill(server.id(), "HUP");
    client.expect(b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
    drop(server);

    let directory = tempfile::tempdir().expect("a directory");
    let (users, log) = (directory.path().join("users"), directory.path().join("log"));
    write_users(&users, "ann:secret\n");
    let mut command = yagura(&["cache", "serve", "-p", "0", "--json", "-Y", users.to_str().expect("text")]);
    command.stdout(Stdio::piped()).stderr(File::create(&log).expect("made"));
    let server = Server::of(command);
    let address = server.address("listening");
    let is_let_in = |user: &str| {
        let answer = Text::connect(address).ask(format!("set u 0 0 {}\r\n{user}\r\n", user.len()).as_bytes(), "");
        answer[0] == "STORED"
    };
    let mut ann = Text::connect(address);
    ann.expect(b"set u 0 0 10\r\nann secret\r\n", b"STORED\r\n");
    assert!(!is_let_in("bob other"));
    write_users(&users, "bob:other\n");
    kill(server.id(), "HUP");
    eventually("the new user is let in", || is_let_in("bob other"));
    assert!(!is_let_in("ann secret"));
    // Who was let in stays.
    ann.expect(b"get a\r\n", b"END\r\n");
    write_users(&users, "eve:hers\nno colon\n");
    kill(server.id(), "HUP");
    let said = || std::fs::read_to_string(&log).expect("read");
    eventually("a warning", || said().contains("line 2 is no name:password; the users stay as they were"));
    assert!(is_let_in("bob other") && !is_let_in("eve hers"), "{}", said());
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn usr1_ends_in_good_order() {
    let server = serve(&[]);
    let idle = Text::connect(server.address("listening"));
    let mut busy = Text::connect(server.address("listening"));
    busy.expect(b"version\r\n", b"VERSION 1.6.18\r\n");
    assert_eq!(server.stop("USR1"), 0);
    idle.ends();
    busy.ends();
}

/// A limit that leaves nothing beside the process would refuse every value and every connection, also that of who would mend it.
#[test]
fn a_memory_limit_that_a_start_refuses_is_refused_later_too() {
    let server = serve(&["-m", "64", "-t", "1"]);
    let mut client = Text::connect(server.address("listening"));
    let mut limit = |mebibytes: u32| client.ask(format!("cache_memlimit {mebibytes}\r\n").as_bytes(), "").remove(0);
    let told = limit(8);
    let least = told.strip_prefix("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than ").expect("refused");
    let least: u32 = least.trim_end_matches('m').parse().expect("a number");
    assert!((9..64).contains(&least), "{told}");
    assert_eq!(limit(least - 1), told);
    assert_eq!(limit(least), "OK");
    let mut other = Text::connect(server.address("listening"));
    other.expect(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(other.figure("limit_maxbytes"), u64::from(least) << 20);
}

#[test]
fn a_reset_of_statistics_is_whole_and_leaves_metrics_as_they_are() {
    let server = serve(&["-t", "2", "--metrics", "127.0.0.1:0"]);
    let mut client = Text::connect(server.address("listening"));
    client.expect(b"stats detail on\r\nset p:a 0 0 1\r\nx\r\nset e 0 -1 1\r\nx\r\n", b"OK\r\nSTORED\r\nSTORED\r\n");
    client.expect(b"get e\r\nget e\r\n", b"END\r\nEND\r\n");
    let counted = ["total_items", "cmd_set", "cmd_get", "get_expired", "reclaimed", "expired_unfetched"];
    assert_eq!(counted.map(|name| client.figure(name)), [2, 2, 2, 1, 1, 1]);
    assert_eq!(client.figure("listen_disabled_num") + client.figure("time_in_listen_disabled_us"), 0);
    client.expect(b"stats reset\r\n", b"RESET\r\n");
    assert_eq!(counted.map(|name| client.figure(name)), [0; 6]);
    assert_eq!(client.figure("curr_items"), 1);
    client.expect(b"stats detail dump\r\n", b"END\r\n");
    client.expect(b"stats items\r\n", b"STAT items:1:number 1\r\n");
    assert!(client.ask(b"", "END").contains(&"STAT items:1:reclaimed 0".to_owned()));
    let metrics = http_get(server.address("metrics"), "/metrics");
    assert!(metrics.contains("yagura_cache_sets_total 2\n") && metrics.contains("yagura_cache_expired_total 1\n"));
}

#[test]
fn a_name_stands_for_its_addresses() {
    let server = serve(&["-l", "localhost"]);
    let addresses = server.ready["addresses"].as_array().expect("addresses").clone();
    assert!(!addresses.is_empty());
    for address in &addresses {
        let address: SocketAddr = address.as_str().expect("text").parse().expect("an address");
        assert!(address.ip().is_loopback(), "{address}");
        Text::connect(address).expect(b"version\r\n", b"VERSION 1.6.18\r\n");
    }
    let settings = Text::connect(server.address("listening")).ask(b"stats settings\r\n", "END");
    assert!(settings.contains(&"STAT inter localhost".to_owned()), "{settings:?}");
}

/// What starts memcached on any port reads there which one it got.
#[test]
fn ports_are_written_to_the_file_that_the_environment_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("ports");
    let start = |path: &Path| {
        let mut command = yagura(&["cache", "serve", "-p", "0", "--json"]);
        command.env("MEMCACHED_PORT_FILENAME", path).stdout(Stdio::piped());
        command
    };
    let server = Server::of(start(&file));
    let port = server.address("listening").port();
    assert_eq!(std::fs::read_to_string(&file).expect("written"), format!("TCP INET: {port}\n"));
    let (status, _, stderr) = finished(start(&directory.path().join("none/ports")));
    assert!(status == 4 && stderr.contains("MEMCACHED_PORT_FILENAME names "), "{status} {stderr}");
}

/// Also of connections that other threads serve.
#[test]
fn statistics_of_connections_tell_who_waits_for_what() {
    let server = serve(&["-t", "2"]);
    let address = server.address("listening");
    let mut asker = Text::connect(address);
    let mut states = |others: &[(&TcpStream, &str)]| {
        let lines = asker.ask(b"stats conns\r\n", "END");
        let has = |id: &str, name: &str, value: &str| lines.contains(&format!("{id}:{name} {value}"));
        let of = |stream: &TcpStream| {
            let peer = format!(":addr tcp:{}", stream.local_addr().expect("bound"));
            lines.iter().find_map(|line| line.strip_suffix(&peer)).map(str::to_owned)
        };
        let listener = lines[0].strip_suffix(&format!(":addr tcp:{address}")).expect("the listener comes first");
        assert!(has(listener, "state", "conn_listening"), "{lines:?}");
        let parses = lines.iter().filter(|line| line.ends_with(":state conn_parse_cmd")).count();
        let is_other = |(stream, state): &(&TcpStream, &str)| of(stream).is_some_and(|id| has(&id, "state", state));
        parses == 1 && others.iter().all(is_other)
    };
    let connect = |bytes: &[u8]| {
        let mut text = Text::connect(address);
        text.send(bytes);
        text.reader.into_inner()
    };
    let (rests, line) = (connect(b"mn\r\n"), connect(b"get a"));
    let (value, long) = (connect(b"set a 0 0 10\r\n12345"), connect(b"set a 0 0 100000\r\n12345"));
    let (passed_over, watches) = (connect(b"set a 0 0 9000000\r\n"), connect(b"watch\r\n"));
    let others = [
        (&rests, "conn_read"),
        (&line, "conn_waiting"),
        (&value, "conn_nread"),
        (&long, "conn_nread"),
        (&passed_over, "conn_swallow"),
        (&watches, "conn_watch"),
    ];
    eventually("all are told", || states(&others));
}

/// What it says on its log, at `level`, of one connection that comes and goes and one that ends by an error.
fn said(level: &str, changed: &[u8]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let mut command = yagura(&["cache", "serve", "-p", "0", "--json", "-t", "1"]);
    command.args((!level.is_empty()).then_some(level));
    command.env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(File::create(&log).expect("made"));
    let server = Server::of(command);
    let mut client = Text::connect(server.address("listening"));
    client.expect(changed, if changed.is_empty() { b"" } else { b"OK\r\n" });
    client.expect(b"set key\x01 0 0 6\r\nsecret\r\n", b"STORED\r\n");
    client.expect(b"get key\x01\r\n", b"VALUE key\x01 0 6\r\nsecret\r\nEND\r\n");
    client.send(b"quit\r\n");
    client.ends();
    let mut wrong = Text::connect(server.address("listening"));
    wrong.send(&[b'x'; 3000]);
    wrong.ends();
    assert_eq!(server.stop("TERM"), 0);
    std::fs::read_to_string(&log).expect("read")
}

#[test]
fn verbosity_tells_connections_and_commands_but_no_values() {
    assert_eq!(said("", b""), "");
    let errors = said("-v", b"");
    assert!(errors.contains("the connection ends by an error") && !errors.contains("begins"), "{errors}");
    assert!(!errors.contains("get key"), "{errors}");
    for all in [said("-vv", b""), said("", b"verbosity 2\r\n"), said("-v", b"verbosity 2\r\n")] {
        for told in ["set key\\x01 0 0 6", " STORED", "get key\\x01", " VALUE key\\x01 0 6", "a connection begins"] {
            assert!(all.contains(told), "{told}: {all}");
        }
        assert!(all.contains("the connection ends origin=") && all.contains("reason=\"normal\""), "{all}");
        assert!(all.contains("the connection ends by an error") && !all.contains("secret"), "{all}");
    }
    let less = said("-vvv", b"verbosity 0\r\n");
    assert!(!less.contains("get key") && !less.contains("error"), "{less}");
}

/// What the kernel still takes down of the one before is waited for.
#[test]
fn a_server_starts_again_at_once_after_a_kill() {
    let kept = Port::keep();
    let address = kept.address;
    let port = address.port().to_string();
    let mut server = Server::start(&["cache", "serve", "-p", &port]);
    for _ in 0..10 {
        let mut client = Text::connect(address);
        client.expect(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
        let _waiting = TcpStream::connect(address).expect("connected");
        // Kills it, and waits no longer than it takes to be gone.
        drop(server);
        server = Server::start(&["cache", "serve", "-p", &port]);
    }
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn an_address_that_is_left_in_a_moment_is_waited_for() {
    let kept = Port::keep();
    let before = std::net::TcpListener::bind(kept.address).expect("it is ours");
    let port = kept.address.port().to_string();
    let leaves = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(before);
    });
    let server = Server::start(&["cache", "serve", "-p", &port]);
    leaves.join().expect("left");
    Text::connect(server.address("listening")).expect(b"mn\r\n", b"MN\r\n");
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn where_it_cannot_listen_it_says_what_mends_that() {
    let refused = |arguments: &[&str]| {
        let (status, _, stderr) = run(&[&["cache", "serve"], arguments].concat());
        assert_eq!(status, 4, "{stderr}");
        stderr
    };
    let server = serve(&[]);
    let port = server.address("listening").port().to_string();
    let taken = refused(&["-p", &port]);
    assert!(taken.contains("does another cache server run there? -p 0 takes a free port"), "{taken}");
    // An address of a network that is for examples alone.
    let elsewhere = refused(&["-p", "0", "-l", "192.0.2.1"]);
    assert!(elsewhere.contains("192.0.2.1") && elsewhere.contains("addresses of this machine"), "{elsewhere}");
    let nowhere = refused(&["-s", "/no/such/dir/x"]);
    assert!(nowhere.contains("make its directory first") && !nowhere.contains("free port"), "{nowhere}");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    std::fs::write(&file, "").expect("written");
    let text = file.to_str().expect("text");
    assert!(refused(&["-s", text]).contains("say another path, or remove it"));
    let long = format!("{text}{}", "x".repeat(120));
    assert!(refused(&["-s", &long]).contains("107 bytes at most"));
}

#[test]
fn flags_of_memcached_that_are_not_there_are_told_what_to_use() {
    for (flags, instead) in [
        (&["-d"][..], "under systemd"),
        (&["-u", "nobody"], "User="),
        (&["-o", "idle_timeout=5"], "--idle-timeout N"),
        (&["-p", "0", "-vR", "20"], "leave it away"),
    ] {
        let (status, _, stderr) = run(&[&["cache", "serve"], flags].concat());
        assert!(status == 2 && stderr.contains("is not there") && stderr.contains(instead), "{flags:?}: {stderr}");
    }
}

/// Answers that the protocol's own tests cannot compare with memcached: they are of what is stored.
#[test]
fn sizes_are_told_once_they_were_asked_for() {
    let server = serve(&[]);
    let mut client = Text::connect(server.address("listening"));
    client.expect(b"set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\nset c 0 0 100\r\n", b"STORED\r\nSTORED\r\n");
    client.expect(format!("{}\r\n", "x".repeat(100)).as_bytes(), b"STORED\r\n");
    client.expect(b"stats sizes\r\n", b"STAT sizes_status disabled\r\nEND\r\n");
    client.expect(b"stats sizes_enable\r\n", b"STAT sizes_status enabled\r\n");
    client.expect(b"stats sizes\r\n", b"STAT 64 2\r\nSTAT 160 1\r\nEND\r\n");
}
