//! The gateway beside Redis: the same commands to both, the same answers. And several gateways over one pool.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Redis, Reply, Server, finished, pool_of};

/// Commands with random arguments, on top of the ones that are written out.
const RANDOM_COMMANDS: usize = 4_000;
/// Commands that are sent at once.
const BATCH: usize = 64;

fn up(data: &std::path::Path) -> Server {
    let data = format!("--data={}", data.display());
    Server::start(&["up", &data, "--listen=127.0.0.1:0", "--size=64MiB"])
}

/// Redis itself, without a port; `None` where it is not installed.
struct Original {
    child: Child,
    stream: UnixStream,
}

impl Original {
    fn start(directory: &std::path::Path) -> Option<Original> {
        let socket = directory.join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
        let child = command.current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let deadline = Instant::now() + PATIENCE;
        let mut original = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break Original { child, stream },
                Err(error) => assert!(Instant::now() < deadline, "redis-server does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        original.stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let info = original.talk(&[words("INFO server")]).remove(0);
        // What it says changes from release to release; it is compared with the one whose words are ours.
        String::from_utf8_lossy(&info).contains("redis_version:7.0.").then_some(original)
    }

    fn talk(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
        talk(&mut self.stream, commands)
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Sends commands at once and gives the bytes of each reply.
fn talk(stream: &mut (impl Read + Write), commands: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    for command in commands {
        bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for argument in command {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
    }
    stream.write_all(&bytes).expect("sent");
    let (mut received, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let mut replies = Vec::new();
    while replies.len() < commands.len() {
        while let Some(rest) = kv::resp::fuzz::skip_reply(&received, 0).map(<[u8]>::len) {
            let reply = received.drain(..received.len() - rest).collect();
            replies.push(reply);
        }
        if replies.len() < commands.len() {
            let count = stream.read(&mut buffer).expect("a reply in time");
            assert!(count > 0, "the connection ended after {} of {} replies", replies.len(), commands.len());
            received.extend_from_slice(&buffer[..count]);
        }
    }
    replies
}

/// A reply of which only the set of its lines counts: Redis keeps small hashes in the order of their making.
fn sorted(reply: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = reply.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.sort_unstable();
    lines
}

const ANY_ORDER: &[&str] = &["hgetall", "hkeys", "hvals", "hscan", "keys", "command"];
/// What it takes and gives is random, or of this machine.
const NOT_COMPARED: &[&str] = &["object", "memory", "wait"];

const SCRIPT: &[&str] = &[
    "NOSUCH a b c",
    "nosuch",
    "GET",
    "GET a b",
    "SET a",
    "HSET h f",
    "HSET h f v g",
    "MSET a",
    "MSET a 1 b",
    "OBJECT",
    "OBJECT NOSUCH x",
    "OBJECT ENCODING",
    "OBJECT FREQ nokey",
    "CLIENT NOSUCH",
    "CLIENT GETNAME x",
    "CLIENT KILL",
    "CLIENT KILL nobody",
    "CLIENT KILL ID 0",
    "CLIENT KILL FOO bar",
    "CLIENT LIST FOO",
    "CLIENT REPLY maybe",
    "CONFIG NOSUCH",
    "CONFIG GET",
    "COMMAND NOSUCH",
    "COMMAND INFO nosuch",
    "COMMAND GETKEYS",
    "COMMAND GETKEYS get k",
    "COMMAND GETKEYS mset a 1 b 2",
    "COMMAND GETKEYS nosuch x",
    "COMMAND GETKEYS ping",
    "COMMAND GETKEYS get",
    "SELECT 0",
    "SELECT x",
    "SELECT 99",
    "PING",
    "PING x",
    "PING x y",
    "ECHO x",
    "AUTH x",
    "AUTH default x",
    "AUTH nobody x",
    "AUTH a b c",
    "HELLO x",
    "HELLO 4",
    "HELLO 2 FOO",
    "CLIENT SETNAME me",
    "CLIENT GETNAME",
    "CLIENT SETNAME",
    "CLIENT GETREDIR",
    "WAIT x 1",
    "WAIT 1 x",
    "WAIT 1 -1",
    "SET k v EX",
    "SET k v EX 0",
    "SET k v EX x",
    "SET k v PX -1",
    "SET k v EX 9223372036854775807",
    "SET k v NX XX",
    "SET k v KEEPTTL EX 1",
    "SET k v EX 1 EX 2",
    "SET k v GET",
    "SET k w NX GET",
    "SET k w XX GET",
    "GET k",
    "SETEX k 0 v",
    "SETEX k x v",
    "PSETEX k -1 v",
    "EXPIRE k x",
    "EXPIRE k 1 FOO",
    "EXPIRE k 1 NX XX",
    "EXPIRE k 1 GT LT",
    "EXPIRE k 9223372036854775807",
    "EXPIRE nokey 1",
    "EXPIRE k -1",
    "EXISTS k",
    "GETEX nokey EX 0",
    "GETEX nokey EX x",
    "SET k v",
    "GETEX k EX 0",
    "GETEX k EX x",
    "GETEX k PERSIST EX 1",
    "GETEX k EX 100",
    "TTL k",
    "GETEX k PERSIST",
    "TTL k",
    "DECRBY k -9223372036854775808",
    "SETRANGE k -1 x",
    "SETRANGE k x x",
    "SETRANGE k 536870912 x",
    "SETRANGE nokey 5 ",
    "DEL n",
    "INCRBYFLOAT n 0.1",
    "INCRBYFLOAT n 0.2",
    "INCRBYFLOAT n inf",
    "INCRBYFLOAT n x",
    "INCR n",
    "SET n 9223372036854775807",
    "INCR n",
    "INCRBYFLOAT n 1",
    "HINCRBYFLOAT h f inf",
    "HINCRBYFLOAT h f nan",
    "HINCRBY h f x",
    "HSET h f 9223372036854775807",
    "HINCRBY h f 1",
    "HRANDFIELD h 1 FOO",
    "HRANDFIELD h x",
    "HRANDFIELD h 0",
    "HRANDFIELD nokey 3",
    "HRANDFIELD h -9223372036854775808",
    "HRANDFIELD h 1 WITHVALUES x",
    "HRANDFIELD h 9223372036854775807 WITHVALUES",
    "HSCAN nokey 0 FOO",
    "HSCAN nokey x",
    "HSCAN h 0 FOO",
    "HSCAN h 0 COUNT 0",
    "HSCAN h 0 COUNT x",
    "HSCAN h 0 TYPE hash",
    "HSCAN h 0 MATCH g*",
    "SCAN x",
    "SCAN 0 FOO",
    "SCAN 0 COUNT",
    "SCAN 0 COUNT 0",
    "GETRANGE k 0 x",
    "GETRANGE k -3 -1",
    "GETRANGE k -1 -3",
    "RESET",
    "QUIT x",
];

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

const COMMANDS: &[&str] = &[
    "get",
    "set",
    "set",
    "setnx",
    "setex",
    "psetex",
    "getset",
    "getdel",
    "getex",
    "append",
    "strlen",
    "getrange",
    "substr",
    "setrange",
    "incr",
    "decr",
    "incrby",
    "decrby",
    "incrbyfloat",
    "mget",
    "mset",
    "hset",
    "hset",
    "hset",
    "hmset",
    "hsetnx",
    "hget",
    "hmget",
    "hgetall",
    "hdel",
    "hexists",
    "hlen",
    "hkeys",
    "hvals",
    "hstrlen",
    "hincrby",
    "hincrbyfloat",
    "hscan",
    "del",
    "unlink",
    "exists",
    "touch",
    "type",
    "expire",
    "pexpire",
    "expireat",
    "pexpireat",
    "ttl",
    "persist",
    "expiretime",
    "pexpiretime",
    "nosuch",
];
const KEYS: &[&str] = &["a", "b", "c", "d", "e"];
const WORDS: &[&str] = &[
    "a",
    "f",
    "g",
    "0",
    "1",
    "-1",
    "3",
    "10",
    "007",
    " 1",
    "2.5",
    "-0.1",
    "1e3",
    "1e400",
    "inf",
    "9223372036854775807",
    "-9223372036854775808",
    "",
    "hello",
    "NX",
    "xx",
    "GET",
    "EX",
    "px",
    "EXAT",
    "PXAT",
    "KEEPTTL",
    "PERSIST",
    "GT",
    "lt",
    "100",
    "4000000000",
    "4000000000000",
    "MATCH",
    "COUNT",
    "*",
    "line\r\nbreak",
    "\u{1}\u{ff}",
];

fn random_command(chance: &mut Chance) -> Vec<Vec<u8>> {
    let name = chance.of(COMMANDS);
    let mut command = vec![name];
    if chance.below(20) > 0 {
        command.push(chance.of(KEYS));
    }
    // Mostly as many as are taken.
    let wanted = match name {
        "get" | "incr" | "decr" | "type" | "ttl" | "hgetall" | "hkeys" | "hvals" | "hlen" | "getdel" | "persist" => 0,
        "setex" | "psetex" | "getrange" | "setrange" | "hsetnx" | "hincrby" | "hincrbyfloat" | "hset" => 2,
        _ => 1,
    };
    let more = if chance.below(4) == 0 { chance.below(4) } else { 0 };
    for _ in 0..wanted + more {
        command.push(if matches!(name, "mget" | "del" | "exists") { chance.of(KEYS) } else { chance.of(WORDS) });
    }
    command.into_iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Times count from the moment of the command, which is not the same on both sides.
fn is_time_of_now(command: &[Vec<u8>], ours: &[u8], theirs: &[u8]) -> bool {
    let number = |reply: &[u8]| std::str::from_utf8(reply).ok()?.trim().strip_prefix(':')?.parse::<i64>().ok();
    let name = command[0].to_ascii_lowercase();
    let slack = match &name[..] {
        b"ttl" | b"expiretime" => 30,
        b"pttl" | b"pexpiretime" => 30_000,
        _ => return false,
    };
    matches!((number(ours), number(theirs)), (Some(a), Some(b)) if a > 0 && b > 0 && (a - b).abs() <= slack)
}

fn compare(ours: &mut (impl Read + Write), original: &mut Original, commands: &[Vec<Vec<u8>>]) {
    let (a, b) = (talk(ours, commands), original.talk(commands));
    for (command, (ours, theirs)) in commands.iter().zip(a.iter().zip(&b)) {
        let name = String::from_utf8_lossy(&command[0]).to_lowercase();
        let same = ours == theirs
            || (ANY_ORDER.contains(&&name[..]) && sorted(ours) == sorted(theirs))
            || is_time_of_now(command, ours, theirs)
            || (NOT_COMPARED.contains(&&name[..]) && ours[0] != b'-' && theirs[0] != b'-');
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let line: Vec<String> = command.iter().map(|word| shown(word)).collect();
        assert!(same, "{}\n ours:   {}\n Redis's: {}", line.join(" "), shown(ours), shown(theirs));
    }
}

#[test]
fn the_same_commands_get_the_same_answers_as_from_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut original) = Original::start(directory.path()) else {
        eprintln!("skipped: no redis-server 7.0 (scripts/deps.sh test)");
        return;
    };
    let server = up(&directory.path().join("data"));
    let mut ours = std::net::TcpStream::connect(server.address("gateway")).expect("connected");
    ours.set_read_timeout(Some(PATIENCE)).expect("set");
    // In both protocols: a hash is a map in the third.
    for hello in ["HELLO 2", "HELLO 3"] {
        talk(&mut ours, &[words(hello)]);
        original.talk(&[words(hello)]);
        let script: Vec<_> =
            SCRIPT.iter().filter(|line| !line.starts_with("RESET") && !line.starts_with("QUIT")).collect();
        for line in script {
            compare(&mut ours, &mut original, &[words(line)]);
        }
    }
    let seed = 20_260_101;
    let mut chance = Chance(seed);
    let commands: Vec<_> = (0..RANDOM_COMMANDS).map(|_| random_command(&mut chance)).collect();
    for batch in commands.chunks(BATCH) {
        compare(&mut ours, &mut original, batch);
    }
    // The table that clients go by: names, arities, flags, places of keys.
    for spec in kv::resp::commands::served_commands() {
        let asked = words(&format!("COMMAND INFO {}", spec.name));
        let head = |reply: Vec<u8>| -> Vec<Vec<u8>> {
            let text = reply.split(|byte| *byte == b'\n').map(<[u8]>::to_vec);
            let mut lines: Vec<_> = text.take(5 + spec.flags.len() + 4).collect();
            lines.drain(..2);
            // RESP3 has a type for the set of flags.
            lines.iter_mut().filter(|line| line.starts_with(b"~")).for_each(|line| line[0] = b'*');
            lines.sort_unstable();
            lines
        };
        let (a, b) = (talk(&mut ours, std::slice::from_ref(&asked)), original.talk(&[asked]));
        let (a, b) = (head(a.concat()), head(b.concat()));
        let shown = |lines: &[Vec<u8>]| lines.concat().escape_ascii().to_string();
        assert!(a == b, "COMMAND INFO {}\n ours:   {}\n Redis's: {}", spec.name, shown(&a), shown(&b));
    }
}

/// One client of many: what it adds must be in the sums.
fn add(address: SocketAddr, rounds: usize) -> i64 {
    let mut redis = Redis::connect(address);
    let mut won = 0;
    for round in 0..rounds {
        assert!(matches!(redis.call(&[b"INCR", b"sum"]), Reply::Integer(_)));
        assert!(matches!(redis.call(&[b"HINCRBY", b"hash", b"sum", b"2"]), Reply::Integer(_)));
        let key = format!("once{round}");
        match redis.call(&[b"SETNX", key.as_bytes(), b"x"]) {
            Reply::Integer(1) => won += 1,
            Reply::Integer(0) => {}
            other => panic!("SETNX: {other:?}"),
        }
    }
    won
}

#[test]
fn two_gateways_over_one_pool_add_up_exactly() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = up(directory.path());
    let second = Server::start(&["gateway", &pool_of(&server), "--listen=127.0.0.1:0", "--reactors=2"]);
    let addresses = [server.address("gateway"), second.address("listening")];
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 40;
    let won: i64 = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || add(addresses[client % 2], ROUNDS))).collect();
        clients.into_iter().map(|client| client.join().expect("no client met an error")).sum()
    });
    assert_eq!(won, ROUNDS as i64, "each key was set once, by one client");
    for address in addresses {
        let mut redis = Redis::connect(address);
        assert_eq!(redis.get("sum"), Some((CLIENTS * ROUNDS).to_string().into_bytes()));
        let hash = redis.call(&[b"HGET", b"hash", b"sum"]);
        assert_eq!(hash, Reply::Bulk(Some((2 * CLIENTS * ROUNDS).to_string().into_bytes())));
    }
}

#[test]
fn a_gateway_with_password_and_tls_lets_in_who_has_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name).display().to_string();
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
    ]);
    openssl.args([
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        &file("key"),
        "-out",
        &file("cert"),
    ]);
    assert_eq!(finished(openssl).0, 0, "openssl made no certificate");
    std::fs::write(file("password"), "open sesame\n").expect("written");
    let server = up(&directory.path().join("data"));
    let (pool, password) = (pool_of(&server), format!("--password-file={}", file("password")));
    let (cert, key) = (format!("--tls-cert={}", file("cert")), format!("--tls-key={}", file("key")));
    let arguments = ["gateway", &pool, "--listen=127.0.0.1:0", &password, &cert, &key];
    // A password that others may read is none.
    let (status, _, stderr) = crate::support::run(&arguments);
    assert!(status != 0 && stderr.contains("chmod 600"), "{stderr}");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(file("password"), mode).expect("changed");
    let gateway = Server::start(&arguments);
    let port = gateway.address("listening").port().to_string();
    let ask = |more: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &port, "--no-auth-warning"]).args(more).stdin(Stdio::null());
        let (_, stdout, stderr) = finished(command);
        stdout + &stderr
    };
    let certificate = file("cert");
    let tls = ["--tls", "--cacert", &certificate];
    assert_eq!(ask(&[&tls[..], &["-a", "open sesame", "SET", "k", "v"]].concat()), "OK\n");
    assert_eq!(ask(&[&tls[..], &["-a", "open sesame", "GET", "k"]].concat()), "v\n");
    assert!(ask(&[&tls[..], &["GET", "k"]].concat()).contains("NOAUTH Authentication required."));
    assert!(ask(&[&tls[..], &["-a", "wrong", "GET", "k"]].concat()).contains("WRONGPASS"));
    assert!(!ask(&["-a", "open sesame", "GET", "k"]).contains('v'), "without TLS");
}
