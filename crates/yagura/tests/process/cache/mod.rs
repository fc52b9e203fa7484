//! `yagura cache` from outside: sockets, exit codes, memory.

mod asking;
mod clients;
mod flash;
mod operation;
mod pressure;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Server, run};

/// A cache server on a free port.
fn serve(arguments: &[&str]) -> Server {
    Server::start(&[&["cache", "serve", "-p", "0"], arguments].concat())
}

/// A connection that speaks the text protocol.
struct Text<S> {
    reader: BufReader<S>,
}

impl Text<TcpStream> {
    fn connect(address: SocketAddr) -> Text<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.set_nodelay(true).expect("set");
        Text { reader: BufReader::new(stream) }
    }
}

impl<S: Read + Write> Text<S> {
    fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("sent");
    }

    /// Sends bytes and gives the lines of the answer, up to one that begins with `last`.
    fn ask(&mut self, bytes: &[u8], last: &str) -> Vec<String> {
        self.send(bytes);
        let mut lines: Vec<String> = Vec::new();
        while !lines.last().is_some_and(|line| line.starts_with(last)) {
            let mut line = Vec::new();
            self.reader.read_until(b'\n', &mut line).expect("an answer in time");
            assert!(!line.is_empty(), "the connection ended after {lines:?}");
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        lines
    }

    /// Sends bytes and compares the answer.
    fn expect(&mut self, bytes: &[u8], answer: &[u8]) {
        self.send(bytes);
        let mut got = vec![0; answer.len()];
        self.reader.read_exact(&mut got).expect("an answer in time");
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(answer));
    }

    /// The server closes the connection, and says nothing more.
    fn ends(mut self) {
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b"", "{:?}", String::from_utf8_lossy(&rest)),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }

    fn figure(&mut self, name: &str) -> u64 {
        let lines = self.ask(b"stats\r\n", "END");
        let prefix = format!("STAT {name} ");
        let value = lines.iter().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_else(|| panic!("no {name}"));
        value.parse().expect("a number")
    }
}

#[test]
fn items_are_shared_by_all_connections_and_told_by_statistics() {
    let server = serve(&["-t", "3"]);
    let address = server.address("listening");
    let mut clients: Vec<_> = (0..6).map(|_| Text::connect(address)).collect();
    clients[0].expect(b"set key 7 0 5\r\nvalue\r\n", b"STORED\r\n");
    for client in &mut clients {
        client.expect(b"get key none\r\n", b"VALUE key 7 5\r\nvalue\r\nEND\r\n");
    }
    clients[3].expect(b"mg key f v\r\n", b"VA 5 f7\r\nvalue\r\n");
    // A value longer than a thread's buffers, in one piece and in many.
    let long = vec![b'x'; 700_000];
    let set = [b"set long 0 0 700000\r\n".as_slice(), &long, b"\r\n"].concat();
    for piece in set.chunks(10_007) {
        clients[1].send(piece);
    }
    clients[1].expect(b"", b"STORED\r\n");
    let got = [b"VALUE long 0 700000\r\n".as_slice(), &long, b"\r\nEND\r\n"].concat();
    clients[2].expect(b"get long\r\n", &got);
    assert_eq!((clients[0].figure("curr_items"), clients[0].figure("curr_connections")), (2, 6));
    assert_eq!((clients[0].figure("get_hits"), clients[0].figure("get_misses")), (8, 6));
    let (status, stdout, stderr) = run(&["cache", "stats", &address.to_string(), "--json"]);
    let document: serde_json::Value =
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout} {stderr}"));
    assert_eq!((status, &document["curr_items"]), (0, &"2".into()));
    let (status, stdout, _) = run(&["cache", "top", &address.to_string(), "-n", "1"]);
    assert!(status == 0 && stdout.contains("gets/s"), "{stdout}");
    let (status, _, stderr) = run(&["cache", "stats", &address.to_string(), "nonsense"]);
    assert!(status != 0 && stderr.contains("no statistics of that name"), "{stderr}");
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn a_path_is_served_with_its_permissions_and_goes_with_the_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cache.sock");
    let text = path.to_str().expect("text");
    let server = serve(&["-s", text, "-a", "770"]);
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o770);
    let stream = UnixStream::connect(&path).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut client = Text { reader: BufReader::new(stream) };
    client.expect(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    let conns = client.ask(b"stats conns\r\n", "END");
    for told in [format!(":addr unix:{text}"), ":addr unix:".into(), format!(":listen_addr unix:{text}")] {
        assert!(conns.iter().any(|line| line.ends_with(&told)), "{told}: {conns:?}");
    }
    let (status, _, stderr) = run(&["cache", "serve", "-s", text]);
    assert!(status != 0 && stderr.contains("another process listens there"), "{stderr}");
    assert_eq!(server.stop("TERM"), 0);
    assert!(!path.exists());
}

#[test]
fn a_stop_answers_what_was_received_and_closes_the_rest() {
    let server = serve(&["-A"]);
    let address = server.address("listening");
    let idle = Text::connect(address);
    let mut busy = Text::connect(address);
    busy.send(b"set half 0 0 10\r\n12345");
    busy.send(b"67890\r\n");
    busy.expect(b"", b"STORED\r\n");
    let mut asker = Text::connect(address);
    asker.send(b"shutdown graceful\r\n");
    asker.ends();
    idle.ends();
    busy.ends();
    assert_eq!(server.wait(), 0);
}

#[test]
fn connections_are_bounded_in_number_and_in_rest() {
    let server = serve(&["-c", "2", "--idle-timeout", "1"]);
    let address = server.address("listening");
    let (mut first, second) = (Text::connect(address), Text::connect(address));
    first.expect(b"version\r\n", b"VERSION 1.6.18\r\n");
    let mut third = Text::connect(address);
    third.expect(b"", b"ERROR Too many open connections\r\n");
    third.ends();
    // What is in the midst of a command does not rest.
    first.send(b"set a 0 0 1\r\n");
    second.ends();
    first.expect(b"x\r\n", b"STORED\r\n");
    first.ends();
    let mut last = Text::connect(address);
    assert_eq!((last.figure("idle_kicks"), last.figure("rejected_connections")), (2, 1));
}

#[test]
fn passwords_are_asked_for_and_their_file_has_to_be_private() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("users");
    std::fs::write(&path, "ann:secret\nbob:other\n").expect("written");
    let text = path.to_str().expect("text");
    let permit = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
    permit(0o644);
    let (status, _, stderr) = run(&["cache", "serve", "-p", "0", "-Y", text]);
    assert!(status != 0 && stderr.contains("--auth-file"), "{stderr}");
    permit(0o600);
    let server = serve(&["-Y", text]);
    let mut client = Text::connect(server.address("listening"));
    client.expect(b"get a\r\n", b"CLIENT_ERROR unauthenticated\r\n");
    client.expect(b"set a 0 0 9\r\nann wrong\r\n", b"CLIENT_ERROR authentication failure\r\n");
    client.expect(b"set a 0 0 10\r\nann secret\r\n", b"STORED\r\n");
    client.expect(b"get a\r\n", b"END\r\n");
    let settings = client.ask(b"stats settings\r\n", "END");
    assert!(settings.contains(&"STAT binding_protocol ascii".to_owned()), "{settings:?}");
    // What is implied may be said.
    drop(serve(&["-Y", text, "-B", "ascii"]));
    drop(serve(&["-Y", text, "-S", "-B", "binary"]));
}

#[test]
fn watchers_are_told_what_others_do() {
    let server = serve(&[]);
    let address = server.address("listening");
    let mut watcher = Text::connect(address);
    watcher.expect(b"watch fetchers mutations\r\n", b"OK\r\n");
    let mut client = Text::connect(address);
    client.expect(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    client.expect(b"get none\r\n", b"END\r\n");
    // The connection has the number that `stats conns` tells.
    let conns = client.ask(b"stats conns\r\n", "END");
    let local = format!(":addr tcp:{}", client.reader.get_ref().local_addr().expect("bound"));
    let id = conns.iter().find_map(|line| line.strip_prefix("STAT ")?.strip_suffix(&local)).expect("it is there");
    for told in [
        format!("type=item_get key=a status=not_found clsid=0 cfd={id} size=0"),
        format!("type=item_store key=a status=stored cmd=set ttl=0 clsid=1 cfd={id} size=1"),
        format!("type=item_get key=a status=found clsid=1 cfd={id} size=1"),
        format!("type=item_get key=none status=not_found clsid=0 cfd={id} size=0"),
    ] {
        let line = watcher.ask(b"", "ts=").pop().expect("a line");
        assert!(line.ends_with(&told), "{line}, expected {told}");
    }
}

#[test]
fn watchers_are_told_of_connections_and_of_what_is_let_go() {
    let server = serve(&["-m", "64", "--idle-timeout", "1"]);
    let address = server.address("listening");
    let mut watcher = Text::connect(address);
    watcher.expect(b"watch connevents\r\n", b"OK\r\n");
    let mut told = |what: &str| {
        let line = watcher.ask(b"", "ts=").pop().expect("a line");
        assert!(line.contains(what), "{line}, expected {what}");
        line
    };
    let port = || {
        let mut client = Text::connect(address);
        let port = client.reader.get_ref().local_addr().expect("bound").port();
        (move |bytes: &[u8]| client.send(bytes), port)
    };
    for (bytes, reason) in [(&b"quit\r\n"[..], "normal"), (b"GET / HTTP/1.1\r\n", "error"), (b"mn\r\n", "idle_timeout")]
    {
        let (mut send, port) = port();
        let line = told(&format!("type=conn_new rip=127.0.0.1 rport={port} transport=tcp cfd="));
        send(bytes);
        let id = line.split("cfd=").nth(1).expect("a number").to_owned();
        told(&format!("type=conn_close rip=127.0.0.1 rport={port} transport=tcp reason={reason} cfd={id}"));
    }
    let (send, port) = port();
    told(&format!("type=conn_new rip=127.0.0.1 rport={port}"));
    drop(send);
    told(&format!("type=conn_close rip=127.0.0.1 rport={port} transport=tcp reason=normal"));

    let server = serve(&["-m", "64"]);
    let mut watcher = Text::connect(server.address("listening"));
    watcher.expect(b"watch evictions\r\n", b"OK\r\n");
    let mut client = Text::connect(server.address("listening"));
    for number in 0..3000 {
        client.send(format!("set key{number} 0 0 60000 noreply\r\n{}\r\n", "v".repeat(60_000)).as_bytes());
    }
    let line = watcher.ask(b"", "ts=").pop().expect("a line");
    assert!(line.contains(" type=eviction key=key") && line.contains(" fetch=no ttl=-1 la="), "{line}");
    assert!(line.ends_with(" clsid=1 size=60000"), "{line}");
    assert!(client.figure("evictions") > 0);
}

#[test]
fn memory_stays_within_its_limit_while_twice_as_much_is_stored() {
    let server = serve(&["-m", "96", "-t", "2"]);
    let mut client = Text::connect(server.address("listening"));
    let limit = 96 << 20;
    let mut most = 0;
    for length in [1000, 200, 90_000] {
        let value = vec![b'v'; length];
        let count = 2 * limit / length;
        for number in 0..count {
            let noreply = if number % 1000 == 999 || number == count - 1 { "" } else { " noreply" };
            client.send(format!("set {length}-{number} 0 0 {length}{noreply}\r\n").as_bytes());
            client.send(&value);
            client.send(b"\r\n");
            if noreply.is_empty() {
                client.expect(b"", b"STORED\r\n");
                most = most.max(resident(server.id()));
            }
        }
        let last = format!("get {length}-{}\r\n", count - 1);
        assert_eq!(client.ask(last.as_bytes(), "END").len(), 3, "the last one stored is there");
        let now = resident(server.id());
        assert!(now * 100 >= limit * 90, "{now} bytes are resident, of {limit}, with values of {length}");
    }
    assert!(most * 100 <= limit * 105, "{most} bytes were resident, {limit} allowed");
    assert!(client.figure("evictions") > 0);
}

#[test]
fn without_evictions_a_full_memory_refuses() {
    let server = serve(&["-m", "64", "-M"]);
    let mut client = Text::connect(server.address("listening"));
    let value = vec![b'v'; 60_000];
    let mut refused = false;
    for number in 0..2 * (64 << 20) / 60_000 {
        client.send(format!("set {number} 0 0 60000\r\n").as_bytes());
        client.send(&value);
        let answer = client.ask(b"\r\n", "S").pop().expect("a line");
        let refuses = answer == "SERVER_ERROR out of memory storing object";
        assert!(refuses || !refused && answer == "STORED", "{answer} after a refusal: {refused}");
        refused |= refuses;
    }
    assert!(refused);
    assert_eq!(client.ask(b"get 0\r\n", "END").len(), 3, "what was stored first is there");
    // Connections have room of their own, since no item leaves for them.
    let mut others: Vec<_> = (0..400).map(|_| Text::connect(server.address("listening"))).collect();
    others.iter_mut().for_each(|other| other.expect(b"get none\r\n", b"END\r\n"));
    let now = resident(server.id());
    assert!(now <= (64 << 20) * 105 / 100, "{now} bytes are resident");
}

#[test]
fn flags_that_cannot_be_are_refused_with_what_to_do() {
    for (arguments, told) in [
        (&["-U", "11211"][..], "UDP is not served"),
        (&["-I", "1g"], "-I"),
        (&["-m", "32", "-I", "64m"], "-m"),
        (&["-S"], "--auth-file"),
        (&["-Y", "x", "-S", "-B", "ascii"], "-B binary"),
        (&["-Y", "x", "-S", "-B", "auto"], "-B binary"),
        (&["-Y", "x", "-B", "binary"], "add -S"),
        (&["-Y", "x", "-B", "auto"], "-B ascii"),
        (&["-l", "no..name"], "-l no..name: "),
        (&["-l", "notls:127.0.0.1"], "`notls:127.0.0.1` is no address"),
        (&["-a", "999", "-s", "x"], "octal"),
    ] {
        let (status, _, stderr) = run(&[&["cache", "serve", "-p", "0"], arguments].concat());
        assert!(status == 2 && stderr.contains(told), "{arguments:?}: {status} {stderr}");
    }
}

#[test]
fn half_open_and_slow_clients_delay_nobody() {
    let server = serve(&["-t", "1", "-m", "64"]);
    let address = server.address("listening");
    let mut client = Text::connect(address);
    client.expect(b"set long 0 0 1000000\r\n", b"");
    client.send(&vec![b'x'; 1_000_000]);
    client.expect(b"\r\n", b"STORED\r\n");
    // None of them reads, and each asks for a gigabyte.
    let mut greedy: Vec<_> = (0..32).map(|_| Text::connect(address)).collect();
    for one in &mut greedy {
        one.send("get long\r\n".repeat(1000).as_bytes());
    }
    let half = |number| {
        let mut half = Text::connect(address);
        half.send(format!("set half{number} 0 0 900000\r\nabc").as_bytes());
        half
    };
    let halves: Vec<_> = (0..32).map(half).collect();
    for number in 0..100 {
        client.expect(format!("set k{number} 0 0 1\r\nx\r\n").as_bytes(), b"STORED\r\n");
    }
    assert!(resident(server.id()) <= (64 << 20) * 105 / 100, "{} bytes resident", resident(server.id()));
    // One that stops to send, but reads, gets its answers.
    let mut closing = Text::connect(address);
    closing.send(b"get k1\r\n");
    closing.reader.get_ref().shutdown(std::net::Shutdown::Write).expect("shut");
    closing.expect(b"", b"VALUE k1 0 1\r\nx\r\nEND\r\n");
    closing.ends();
    drop((greedy, halves));
    let begin = Instant::now();
    while client.figure("curr_connections") > 1 {
        assert!(begin.elapsed() < PATIENCE, "connections that ended are still counted");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What connections take counts, whatever they do with it; items leave for them.
#[test]
fn memory_stays_within_its_limit_with_many_connections() {
    const CONNECTIONS: u64 = 600;
    let limit: usize = 64 << 20;
    let server = serve(&["-m", "64", "-t", "2", "-c", "700"]);
    let address = server.address("listening");
    let mut client = Text::connect(address);
    let value = vec![b'v'; 3000];
    for number in 0..limit * 5 / 4 / 3000 {
        let noreply = if number % 1000 == 999 { "" } else { " noreply" };
        client.send(format!("set {number} 0 0 3000{noreply}\r\n").as_bytes());
        client.send(&value);
        client.send(b"\r\n");
        if noreply.is_empty() {
            client.expect(b"", b"STORED\r\n");
        }
    }
    let settled = |phase: &str| {
        // What cannot be foreseen is made up for a little later; then it stays so.
        let (begin, mut good) = (Instant::now(), 0);
        while good < 20 {
            std::thread::sleep(Duration::from_millis(50));
            let now = resident(server.id());
            good = if now * 100 <= limit * 105 { good + 1 } else { 0 };
            assert!(begin.elapsed() < PATIENCE, "{phase}: {now} bytes are resident, {limit} allowed");
        }
    };
    let mut others: Vec<_> = (0..CONNECTIONS).map(|_| Text::connect(address)).collect();
    others.iter_mut().for_each(|other| other.send(b"get none\r\n"));
    others.iter_mut().for_each(|other| other.expect(b"", b"END\r\n"));
    settled("at rest");
    assert_eq!(client.figure("curr_connections"), CONNECTIONS + 1);
    // Each sends half of a value. Together they want buffers of 40 MiB.
    others.iter_mut().for_each(|other| other.send(&[&b"set half 0 0 60000\r\n"[..], &[b'h'; 30_000]].concat()));
    settled("half a value each");
    others.retain_mut(|other| {
        let rest = [&[b'h'; 30_000][..], b"\r\n"].concat();
        let mut told = String::new();
        match other.reader.get_mut().write_all(&rest).and_then(|()| other.reader.read_line(&mut told)) {
            // Where no item was left some were closed.
            Err(_) | Ok(0) => return false,
            Ok(_) => {}
        }
        assert!(["STORED\r\n", "SERVER_ERROR out of memory storing object\r\n"].contains(&&told[..]), "{told}");
        true
    });
    assert!(others.len() > 100, "{} connections are left", others.len());
    // Nobody reads what it asked for.
    let insist = |client: &mut Text<TcpStream>, length: usize| {
        let set = [format!("set long 0 0 {length}\r\n").as_bytes(), &vec![b'l'; length], b"\r\n"].concat();
        let begin = Instant::now();
        while client.ask(&set, "S") != ["STORED"] {
            assert!(begin.elapsed() < PATIENCE, "no room comes back");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    insist(&mut client, 60_000);
    for other in &mut others {
        // The first of them may have been closed already.
        let _ = other.reader.get_mut().write_all("get long\r\n".repeat(50).as_bytes());
    }
    settled("unread replies");
    drop(others);
    settled("closed");
    insist(&mut client, 50_000);
}

/// As many as there may be, which read nothing, of keys that are told in three times their length.
#[test]
fn watchers_that_do_not_read_take_no_more_than_is_counted() {
    let limit = 64 << 20;
    let server = serve(&["-m", "64", "-t", "1"]);
    let mut client = Text::connect(server.address("listening"));
    let value = "v".repeat(1000);
    (0..80_000).for_each(|number| client.send(format!("set {number} 0 0 1000 noreply\r\n{value}\r\n").as_bytes()));
    client.expect(b"mn\r\n", b"MN\r\n");
    let items = client.figure("curr_items");
    // What the program itself has touched meanwhile is found by the next look at what is resident.
    operation::eventually("the program's own memory is counted", || resident(server.id()) <= limit * 102 / 100);
    let mut watchers: Vec<_> = (0..20).map(|_| Text::connect(server.address("listening"))).collect();
    watchers.iter_mut().for_each(|watcher| watcher.expect(b"watch fetchers mutations evictions\r\n", b"OK\r\n"));
    for number in 0..200 {
        let key = |at: usize| [&[0xff; 240][..], format!("{number:03}{at:03}").as_bytes()].concat();
        client.send(&(0..100).flat_map(|at| [b"mg ", &key(at)[..], b"\r\n"].concat()).collect::<Vec<_>>());
        client.expect(b"mn\r\n", &[&b"EN\r\n".repeat(100)[..], b"MN\r\n"].concat());
        assert!(resident(server.id()) <= limit * 105 / 100, "{} bytes are resident", resident(server.id()));
    }
    assert!(client.figure("log_watcher_skipped") > 0);
    // A quarter of a mebibyte each was taken from items.
    assert!(client.figure("curr_items") > items * 3 / 4, "{} of {items} items", client.figure("curr_items"));
}

/// Resident bytes of a process.
fn resident(pid: u32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("a running process");
    let pages: usize = text.split_ascii_whitespace().nth(1).expect("a field").parse().expect("a number");
    pages * 4096
}
