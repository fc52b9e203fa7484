//! The product from outside: the built binary, sockets, exit codes. Everything ends in bounded time and with its test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::rng::SplitMix;

/// How long anything may take before the test fails. Generous: the machine may be busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The built binary with these arguments.
pub fn yagura(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yagura"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs it to its end: exit status, standard output, standard error.
pub fn run(arguments: &[&str]) -> (i32, String, String) {
    finished(yagura(arguments))
}

/// Runs a command to its end, which must come within [`PATIENCE`].
pub fn finished(command: Command) -> (i32, String, String) {
    finished_within(PATIENCE, command)
}

/// The same within another time.
pub fn finished_within(patience: Duration, mut command: Command) -> (i32, String, String) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let pid = child.id();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if waiting.recv_timeout(patience).is_err() {
            kill(pid, "KILL");
            return true;
        }
        false
    });
    let Output { status, stdout, stderr } = child.wait_with_output().expect("ended");
    // The watcher may have given up already.
    let _ = done.send(());
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(!watch.join().expect("watched"), "killed after {patience:?}: {command:?}\n{stdout}\n{stderr}");
    (status.code().unwrap_or(-1), stdout.into_owned(), stderr.into_owned())
}

/// Sends a signal to one process by its id.
pub fn kill(pid: u32, signal: &str) {
    // The shell's own `kill`: the program of that name is not on every machine.
    let status = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().expect("a shell");
    assert!(status.success(), "kill -{signal} {pid}: {status}");
}

/// A process that serves until it is dropped, which kills it.
pub struct Server {
    child: Child,
    /// The document it printed when it was ready.
    pub ready: serde_json::Value,
}

impl Server {
    /// Starts `yagura` with these arguments and `--json`, and waits for its ready document.
    pub fn start(arguments: &[&str]) -> Server {
        let mut command = yagura(arguments);
        command.arg("--json").stdout(Stdio::piped());
        Server::of(command)
    }

    /// The same for a command whose standard output is a pipe and whose ready document is in JSON.
    pub fn of(mut command: Command) -> Server {
        let mut child = command.spawn().expect("started");
        let stdout = child.stdout.take().expect("piped");
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let document = serde_json::Deserializer::from_reader(&mut reader).into_iter::<serde_json::Value>().next();
            // The test may have ended already; what else comes is read, so that the child never blocks on a full pipe.
            let _ = send.send(document);
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
        });
        match receive.recv_timeout(PATIENCE) {
            Ok(Some(Ok(ready))) => Server { child, ready },
            other => {
                // It may have ended by itself.
                let _ = child.kill();
                let status = child.wait();
                panic!("{command:?} was not ready ({other:?}); it ended with {status:?}");
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// An address in the ready document.
    pub fn address(&self, field: &str) -> SocketAddr {
        let text = self.ready[field].as_str().unwrap_or_else(|| panic!("no {field} in {}", self.ready));
        text.parse().expect("an address")
    }

    /// Sends a signal and waits for the end: the exit status.
    pub fn stop(self, signal: &str) -> i32 {
        kill(self.child.id(), signal);
        self.wait()
    }

    /// Waits for the end: the exit status.
    pub fn wait(mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("waited") {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `scripts/deps.sh test` has put into its folder under this name.
pub fn cached(path: &str) -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    let found = cache.join("yagura").join(path);
    found.exists().then_some(found)
}

/// The interpreter of an environment with client libraries of Redis and memcached in it.
pub fn clients_python() -> Option<PathBuf> {
    cached("clients-py/bin/python")
}

/// A certificate for this host and its key: their files.
pub fn certificate(directory: &Path) -> [String; 2] {
    let [cert, key] = ["cert", "key"].map(|name| directory.join(name).display().to_string());
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", &key, "-out", &cert]);
    assert_eq!(finished(openssl).0, 0, "openssl made no certificate");
    [cert, key]
}

/// The members of a pool that `up` serves, as a flag.
pub fn pool_of(server: &Server) -> String {
    let nodes = server.ready["nodes"].as_array().expect("nodes");
    let addresses: Vec<&str> = nodes.iter().map(|node| node["address"].as_str().expect("text")).collect();
    format!("--pool={}", addresses.join(","))
}

/// Sets what tells the threads of a scope to stop, also where the test fails: they would be waited for without an end.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects from this address, which is one of this machine's.
pub fn connect_from(source: Ipv4Addr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((source, 0))).expect("an address of this machine");
    connect(&socket, &to).expect("connected");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
}

/// Connections of another address of this machine that say nothing: as many as there are places, and half as many again. With
/// `words` one of them is told that there is no place.
pub fn strangers(to: SocketAddr, places: usize, words: Option<&str>) -> Vec<TcpStream> {
    let source = Ipv4Addr::new(127, 0, 0, 2);
    let all = (0..places * 3 / 2).map(|_| connect_from(source, to)).collect();
    if let Some(words) = words {
        // Of many at a time some are just closed.
        let deadline = Instant::now() + PATIENCE;
        let mut told = String::new();
        while told != words {
            assert!(Instant::now() < deadline && told.is_empty(), "{told}");
            // A reset counts as an end.
            drop(connect_from(source, to).read_to_string(&mut told));
        }
    }
    all
}

/// A connection that speaks RESP2, as plain as can be.
pub struct Redis {
    reader: BufReader<TcpStream>,
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Redis {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Redis {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.set_nodelay(true).expect("set");
        Redis { reader: BufReader::new(stream) }
    }

    /// Sends one command and gives its reply.
    pub fn call(&mut self, arguments: &[&[u8]]) -> Reply {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        self.reader.get_mut().write_all(&bytes).expect("sent");
        self.reply()
    }

    /// `SET`; panics unless it is acknowledged.
    pub fn set(&mut self, key: &str, value: &[u8]) {
        assert_eq!(self.call(&[b"SET", key.as_bytes(), value]), Reply::Status("OK".into()), "SET {key}");
    }

    /// `GET`; panics on an error.
    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        match self.call(&[b"GET", key.as_bytes()]) {
            Reply::Bulk(value) => value,
            other => panic!("GET {key}: {other:?}"),
        }
    }

    fn reply(&mut self) -> Reply {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).expect("a reply in time");
        assert!(line.ends_with(b"\r\n"), "the connection ended: {line:?}");
        let text = String::from_utf8_lossy(&line[1..line.len() - 2]).into_owned();
        let number = || text.parse::<i64>().expect("a number");
        match line[0] {
            b'+' => Reply::Status(text),
            b'-' => Reply::Error(text),
            b':' => Reply::Integer(number()),
            b'$' if text == "-1" => Reply::Bulk(None),
            b'$' => {
                let mut value = vec![0; number() as usize + 2];
                self.reader.read_exact(&mut value).expect("the value");
                value.truncate(value.len() - 2);
                Reply::Bulk(Some(value))
            }
            b'*' => Reply::Array((0..number()).map(|_| self.reply()).collect()),
            other => panic!("a reply of type {other}"),
        }
    }
}

/// The body of `http://address/path`.
pub fn http_get(address: SocketAddr, path: &str) -> String {
    let (status, body) = http_status(address, path, "");
    assert_eq!(status, 200, "{body}");
    body
}

/// The same with these headers, whatever the status.
pub fn http_status(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.write_all(format!("GET {path} HTTP/1.0\r\n{headers}\r\n").as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("received");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.strip_prefix("HTTP/1.0 ").and_then(|rest| rest.get(..3)?.parse().ok());
    (status.unwrap_or_else(|| panic!("{head}")), body.to_string())
}

/// A small tree of files of all kinds of lengths, the same every time. Returns how many files and bytes.
pub fn make_tree(root: &Path) -> (u64, u64) {
    let lengths = [0, 1, 100, 3_900, 4_096, 10_000, 70_000, 131_072, 131_073, 1 << 20, (1 << 20) + 1, 2_500_000];
    let mut total = 0;
    for (index, length) in lengths.into_iter().enumerate() {
        let directory = root.join(format!("d{}", index % 3));
        std::fs::create_dir_all(&directory).expect("made");
        let mut random = SplitMix(index as u64);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.draw() as u8).take(length).collect();
        std::fs::write(directory.join(format!("f{length}")), &bytes).expect("written");
        total += length as u64;
    }
    (lengths.len() as u64, total)
}
