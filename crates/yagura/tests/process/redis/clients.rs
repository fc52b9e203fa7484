//! Clients of the gateway: several gateways at once, Redis's own tools, a client library; a password and TLS.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::up;
use crate::support::{PATIENCE, Redis, Reply, Server, certificate, clients_python, finished, pool_of, strangers};

/// What one client of many has had acknowledged, and what may have happened beside.
#[derive(Clone, Copy, Default)]
struct Tally {
    known: i64,
    unknown: i64,
}

impl Tally {
    /// Sends a command that adds `share` if it answers a number above zero. Refused it is sent again; with an unknown outcome not.
    fn send(&mut self, redis: &mut Redis, command: &[&[u8]], share: i64) {
        let begun = Instant::now();
        loop {
            match redis.call(command) {
                Reply::Integer(0) => return,
                Reply::Integer(_) => return self.known += share,
                Reply::Error(text) if text.starts_with("UNKNOWN") => return self.unknown += share,
                // Another client was always faster. Nothing was changed.
                Reply::Error(text) if text.starts_with("TRYAGAIN") && begun.elapsed() < PATIENCE => {}
                other => panic!("{command:?}: {other:?}"),
            }
        }
    }

    fn plus(self, other: Tally) -> Tally {
        Tally { known: self.known + other.known, unknown: self.unknown + other.unknown }
    }

    fn explains(self, sum: i64) -> bool {
        (self.known..=self.known + self.unknown).contains(&sum)
    }
}

/// One client of many: what it has added to the counter, to the field, and how many keys it was the first to set.
fn add(address: SocketAddr, rounds: usize) -> [Tally; 3] {
    let mut redis = Redis::connect(address);
    let mut tallies = [Tally::default(); 3];
    for round in 0..rounds {
        tallies[0].send(&mut redis, &[b"INCR", b"sum"], 1);
        tallies[1].send(&mut redis, &[b"HINCRBY", b"hash", b"sum", b"2"], 2);
        tallies[2].send(&mut redis, &[b"SETNX", format!("once{round}").as_bytes(), b"x"], 1);
    }
    tallies
}

#[test]
fn two_gateways_over_one_pool_add_up_exactly() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path());
    let second = Server::start(&["gateway", &pool_of(&server), "--listen=127.0.0.1:0", "--reactors=2"]);
    let addresses = [server.address("gateway"), second.address("listening")];
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 40;
    let [counter, field, first] = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || add(addresses[client % 2], ROUNDS))).collect();
        let tallies = clients.into_iter().map(|client| client.join().expect("no client met an error"));
        tallies.reduce(|a, b| std::array::from_fn(|index| a[index].plus(b[index]))).expect("clients")
    });
    assert!(first.explains(ROUNDS as i64), "each key was set once, by one client: {}", first.known);
    let asked = (CLIENTS * ROUNDS) as i64;
    assert!(counter.unknown < asked / 10 && field.unknown < 2 * asked / 10, "most outcomes are known");
    for address in addresses {
        let mut redis = Redis::connect(address);
        let number = |reply: Reply| match reply {
            Reply::Bulk(Some(text)) => String::from_utf8_lossy(&text).parse::<i64>().expect("a number"),
            other => panic!("{other:?}"),
        };
        let (sum, hash) = (number(redis.call(&[b"GET", b"sum"])), number(redis.call(&[b"HGET", b"hash", b"sum"])));
        assert!(counter.explains(sum), "{sum}: {} and perhaps {}", counter.known, counter.unknown);
        assert!(field.explains(hash), "{hash}: {} and perhaps {}", field.known, field.unknown);
    }
}

/// Asks until the answer is this one, which must come in bounded time.
fn wait_for(redis: &mut Redis, command: &[&[u8]], wanted: &Reply) {
    let begun = Instant::now();
    loop {
        let reply = redis.call(command);
        if reply == *wanted {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{command:?}: {reply:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Both gateways run on one clock here; whatever they are asked first, what has ended for one has ended for the other.
#[test]
fn what_has_ended_is_gone_through_every_gateway() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path());
    let second = Server::start(&["gateway", &pool_of(&server), "--listen=127.0.0.1:0"]);
    let [mut a, mut b] = [server.address("gateway"), second.address("listening")].map(Redis::connect);
    let set = |redis: &mut Redis, key: &[u8]| {
        assert_eq!(redis.call(&[b"SET", key, b"v", b"PX", b"300"]), Reply::Status("OK".into()));
    };
    set(&mut a, b"read");
    wait_for(&mut b, &[b"GET", b"read"], &Reply::Bulk(None));
    assert_eq!((a.get("read"), a.call(&[b"TTL", b"read"])), (None, Reply::Integer(-2)));
    // One that nobody has read since: the first conditional command finds nothing there.
    set(&mut a, b"set");
    wait_for(&mut b, &[b"SETNX", b"set", b"w"], &Reply::Integer(1));
    assert_eq!((a.get("set"), a.call(&[b"TTL", b"set"])), (Some(b"w".to_vec()), Reply::Integer(-1)));
    assert_eq!(a.call(&[b"HSET", b"hash", b"f", b"1"]), Reply::Integer(1));
    assert_eq!(a.call(&[b"PEXPIRE", b"hash", b"300"]), Reply::Integer(1));
    wait_for(&mut b, &[b"EXISTS", b"hash"], &Reply::Integer(0));
    assert_eq!(a.call(&[b"HINCRBY", b"hash", b"f", b"5"]), Reply::Integer(5));
    set(&mut a, b"scanned");
    let ends = [b"set".to_vec(), b"hash".to_vec()].map(|key| Reply::Bulk(Some(key)));
    let begun = Instant::now();
    while let Reply::Array(keys) = b.call(&[b"KEYS", b"*"]) {
        if keys.len() == 2 && ends.iter().all(|key| keys.contains(key)) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{keys:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(a.call(&[b"DEL", b"scanned", b"read", b"set"]), Reply::Integer(1));
}

#[test]
fn a_client_library_finds_what_it_is_used_to() {
    let Some(python) = clients_python() else {
        eprintln!("skipped: no redis-py (scripts/deps.sh test)");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/redis/client.py");
    let mut command = Command::new(python);
    command.args([script, &format!("redis://{}", server.address("gateway"))]).stdin(Stdio::null());
    let (status, stdout, stderr) = finished(command);
    assert_eq!((status, stdout.as_str()), (0, "done\n"), "{stderr}");
}

#[test]
fn redis_benchmark_meets_no_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path());
    let port = server.address("gateway").port().to_string();
    let tests = ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "HSET", "MSET (10 keys)"];
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", "127.0.0.1", "-p", &port, "-t", "ping,set,get,incr,hset,mset", "-n", "300", "-c", "10"]);
    command.args(["-P", "4", "-r", "100", "-q"]).stdin(Stdio::null());
    let (status, stdout, stderr) = finished(command);
    assert!(status == 0 && stderr.is_empty() && !stdout.contains("rror"), "{stdout}\n{stderr}");
    for test in tests {
        assert!(stdout.contains(&format!("{test}: ")), "{test}: {stdout}");
    }
}

/// What `redis-cli` says.
fn ask(port: &str, more: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", port, "--no-auth-warning"]).args(more).stdin(Stdio::null());
    let (_, stdout, stderr) = finished(command);
    stdout + &stderr
}

/// A file with a password, as a flag.
fn password(directory: &Path, mode: u32) -> String {
    let file = directory.join("password");
    std::fs::write(&file, "open sesame\n").expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
    format!("--password-file={}", file.display())
}

#[test]
fn a_gateway_with_password_and_tls_lets_in_who_has_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let [cert, key] = certificate(directory.path());
    let (server, password) = (up(&directory.path().join("data")), password(directory.path(), 0o644));
    let pool = pool_of(&server);
    let (chain, private) = (format!("--tls-cert={cert}"), format!("--tls-key={key}"));
    let arguments = ["gateway", &pool, "--listen=127.0.0.1:0", &password, &chain, &private];
    // A password that others may read is none.
    let (status, _, stderr) = crate::support::run(&arguments);
    assert!(status != 0 && stderr.contains("chmod 600"), "{stderr}");
    assert_eq!(self::password(directory.path(), 0o600), password);
    let gateway = Server::start(&arguments);
    let port = gateway.address("listening").port().to_string();
    let tls = ["--tls", "--cacert", &cert];
    let secret = ["-a", "open sesame"];
    assert_eq!(ask(&port, &[&tls[..], &secret, &["SET", "k", "treasure"]].concat()), "OK\n");
    assert_eq!(ask(&port, &[&tls[..], &secret, &["GET", "k"]].concat()), "treasure\n");
    assert!(ask(&port, &[&tls[..], &["GET", "k"]].concat()).contains("NOAUTH Authentication required."));
    assert!(ask(&port, &[&tls[..], &["-a", "wrong", "GET", "k"]].concat()).contains("WRONGPASS"));
    assert!(!ask(&port, &[&secret[..], &["GET", "k"]].concat()).contains("treasure"), "without TLS");
}

#[test]
fn a_gateway_with_authorities_lets_in_who_shows_a_certificate() {
    let directory = tempfile::tempdir().expect("a directory");
    let [cert, key] = certificate(directory.path());
    let server = up(&directory.path().join("data"));
    let flags = [format!("--tls-cert={cert}"), format!("--tls-key={key}"), format!("--tls-ca={cert}")];
    let gateway =
        Server::start(&["gateway", &pool_of(&server), "--listen=127.0.0.1:0", &flags[0], &flags[1], &flags[2]]);
    let port = gateway.address("listening").port().to_string();
    let tls = ["--tls", "--cacert", &cert];
    assert_eq!(ask(&port, &[&tls[..], &["--cert", &cert, "--key", &key, "SET", "k", "treasure"]].concat()), "OK\n");
    assert!(!ask(&port, &[&tls[..], &["GET", "k"]].concat()).contains("treasure"), "without a certificate");
}

/// Forty silent connections had all forty places, and when they were ended after ten seconds forty others had them.
#[test]
fn who_says_nothing_leaves_places_to_other_addresses() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, password) = (up(&directory.path().join("data")), password(directory.path(), 0o600));
    let gateway = ["gateway", &pool_of(&server), "--listen=127.0.0.1:0", "--connections-max=40"];
    let running = Server::start(&[&gateway[..], &[&password]].concat());
    let address = running.address("listening");
    let silent = strangers(address, 40, Some("-ERR max number of clients reached\r\n"));
    // More than may be unauthenticated at a time: who has said who it is counts no longer.
    let ok = Reply::Status("OK".into());
    let mut clients: Vec<Redis> = (0..20)
        .map(|_| {
            let mut client = Redis::connect(address);
            assert_eq!(client.call(&[b"AUTH", b"open sesame"]), ok);
            client
        })
        .collect();
    clients[0].set("k", b"treasure");
    assert_eq!(clients[19].get("k"), Some(b"treasure".to_vec()));
    let Reply::Bulk(Some(stats)) = clients[19].call(&[b"INFO", b"stats"]) else { panic!("no statistics") };
    let stats = String::from_utf8_lossy(&stats).into_owned();
    let of =
        |name: &str| stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse::<u32>().ok());
    assert!(of("rejected_unauthenticated") > Some(0), "{stats}");
    assert_eq!(of("rejected_unauthenticated"), of("rejected_connections"), "{stats}");
    drop((silent, clients, running));

    // The same before a handshake.
    let [cert, key] = certificate(directory.path());
    let (chain, private) = (format!("--tls-cert={cert}"), format!("--tls-key={key}"));
    let running = Server::start(&[&gateway[..], &[&chain, &private]].concat());
    let address = running.address("listening");
    let _silent = strangers(address, 40, None);
    let client = ["--tls", "--cacert", &cert];
    let port = address.port().to_string();
    assert_eq!(ask(&port, &[&client[..], &["GET", "k"]].concat()), "treasure\n");
    assert!(!ask(&port, &[&client[..], &["INFO", "stats"]].concat()).contains("rejected_unauthenticated:0"));
}
