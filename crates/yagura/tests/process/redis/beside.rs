//! The same bytes to Redis and to the gateway, the same answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use engine::rng::SplitMix;

use super::random::{Chance, command};
use super::up;
use crate::support::PATIENCE;

/// Commands with random arguments, on top of the ones that are written out.
const RANDOM_COMMANDS: usize = 3_000;
/// Commands that are sent at once.
const BATCH: usize = 64;
/// Differences that are shown before the test gives up.
const SHOWN_MAX: usize = 20;
/// What is tried beside the random commands, line by line: above all what is wrong with a command.
const SCRIPT: &str = include_str!("script.txt");

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
        let info = talk(&mut original.stream, &[words("INFO server")]).remove(0);
        // What it says changes from release to release; it is compared with the one whose words are ours.
        String::from_utf8_lossy(&info).contains("redis_version:7.0.").then_some(original)
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line of the script.
fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| if word == "\"\"" { Vec::new() } else { word.as_bytes().to_vec() }).collect()
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

/// Replies whose order is nobody's promise: Redis keeps small hashes in the order of their making.
const ANY_ORDER: &[&str] = &["hgetall", "hkeys", "hvals", "hscan", "keys"];
/// What these answer is of this process, or random: only that both answer, or both refuse in the same words.
const NOT_COMPARED: &[&str] = &[
    "object",
    "memory",
    "wait",
    "client",
    "command",
    "info",
    "time",
    "randomkey",
    "dbsize",
    "scan",
    "hrandfield",
    "hello",
];

/// The lines of a reply, sorted.
fn sorted(reply: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = reply.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// Times count from the moment of the command, which is not the same on both sides.
fn is_time_of_now(name: &str, ours: &[u8], theirs: &[u8]) -> bool {
    let number = |reply: &[u8]| std::str::from_utf8(reply).ok()?.trim().strip_prefix(':')?.parse::<i64>().ok();
    let slack = match name {
        "ttl" | "expiretime" => 30,
        "pttl" | "pexpiretime" => 30_000,
        _ => return false,
    };
    matches!((number(ours), number(theirs)), (Some(a), Some(b)) if a > 0 && b > 0 && (a - b).abs() <= slack)
}

fn is_same(command: &[Vec<u8>], ours: &[u8], theirs: &[u8]) -> bool {
    let name = &*String::from_utf8_lossy(&command[0]).to_lowercase();
    ours == theirs
        || (ANY_ORDER.contains(&name) && sorted(ours) == sorted(theirs))
        || (NOT_COMPARED.contains(&name) && ours[0] != b'-' && theirs[0] != b'-')
        || is_time_of_now(name, ours, theirs)
}

/// Both, and how they have differed.
struct Pair {
    ours: std::net::TcpStream,
    original: Original,
    differences: Vec<String>,
}

impl Pair {
    fn send(&mut self, commands: &[Vec<Vec<u8>>]) {
        let (a, b) = (talk(&mut self.ours, commands), talk(&mut self.original.stream, commands));
        for (command, (ours, theirs)) in commands.iter().zip(a.iter().zip(&b)) {
            if !is_same(command, ours, theirs) {
                let words: Vec<String> = command.iter().map(|word| shown(word)).collect();
                let line = words.join(" ");
                self.differences.push(format!("{line}\n  ours:    {}\n  Redis's: {}", shown(ours), shown(theirs)));
            }
        }
        assert!(self.differences.len() < SHOWN_MAX, "{}", self.differences.join("\n"));
    }

    /// The table that clients go by: names, arities, flags, places of keys.
    fn compare_table(&mut self) {
        for spec in kv::resp::commands::served_commands() {
            let asked = words(&format!("COMMAND INFO {}", spec.name));
            let head = |reply: Vec<u8>| -> Vec<u8> {
                // An array of one, of ten, the name in two lines, the arity, the flags, the places.
                let lines = reply.split_inclusive(|byte| *byte == b'\n').skip(2).take(4 + spec.flags.len() + 3);
                let mut lines: Vec<&[u8]> = lines.collect();
                lines.sort_unstable();
                lines.concat()
            };
            let (a, b) =
                (talk(&mut self.ours, std::slice::from_ref(&asked)), talk(&mut self.original.stream, &[asked]));
            let (a, b) = (head(a.concat()), head(b.concat()));
            if a != b {
                let (a, b) = (shown(&a), shown(&b));
                self.differences.push(format!("COMMAND INFO {}\n  ours:    {a}\n  Redis's: {b}", spec.name));
            }
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[test]
fn the_same_commands_get_the_same_answers_as_from_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(original) = Original::start(directory.path()) else {
        eprintln!("skipped: no redis-server 7.0 (scripts/deps.sh test)");
        return;
    };
    let server = up(&directory.path().join("data"));
    let ours = std::net::TcpStream::connect(server.address("gateway")).expect("connected");
    ours.set_read_timeout(Some(PATIENCE)).expect("set");
    ours.set_nodelay(true).expect("set");
    let mut pair = Pair { ours, original, differences: Vec::new() };
    let mut chance = Chance(SplitMix(20_260_101));
    // In both protocols: a hash is a map in the third.
    for hello in ["HELLO 2", "HELLO 3"] {
        pair.send(&[words(hello)]);
        for line in SCRIPT.lines().filter(|line| !line.starts_with('#')) {
            pair.send(&[words(line)]);
        }
        // A script may have chosen another protocol.
        pair.send(&[words(hello)]);
        for _ in 0..RANDOM_COMMANDS / BATCH / 2 {
            let commands: Vec<_> = (0..BATCH).map(|_| command(&mut chance)).collect();
            pair.send(&commands);
        }
    }
    pair.compare_table();
    pair.send(&[words("KEYS *"), words("KEYS [a-c]*"), words("EXISTS a b c d e f")]);
    assert!(pair.differences.is_empty(), "{}", pair.differences.join("\n"));
}
