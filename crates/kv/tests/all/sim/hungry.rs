//! Hungry clients: long values through a gateway that has little room for them, over its sockets, while members fail.
//!
//! Each host has a gateway and clients of its own; they read several values at once, put pieces behind values and over them, read
//! their replies slowly, or go in the middle of a command. Judged besides: whatever is refused is refused by name, and what was
//! refused as not done was not; the room that is held is never more than there is, and none is when all have gone.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use check::{Action, Token, appended};
use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::{Buf, task, time};
use kv::Value;
use kv::resp::GatewayState;
use kv::resp::memory::Budget;

use crate::sim::book::{BLOCK_BYTES, Book, Kind};
use crate::sim::cluster::HostStore;
use crate::sim::scenario::{Rng, Scenario};

/// Room of a gateway: of short values, long ones, commands. Chosen: the dearest of the commands below fits, and two do not.
const SHORT_BYTES: usize = 128 << 10;
const LONG_BYTES: usize = 320 << 10;
const COMMANDS_BYTES: usize = 512 << 10;
/// Connections of a gateway.
const CONNECTIONS_MAX: usize = 64;
/// Every value of a key that is written over.
const RANGE_BYTES: usize = 96 << 10;
/// The longest value of blocks; the longest of others.
const BLOCKS_BYTES_MAX: usize = 6 * BLOCK_BYTES;
const VALUE_BYTES_MAX: u64 = 140_000;
/// Values that are read at once.
const SEVERAL_MAX: u64 = 3;
/// The longest that a client lingers before it reads a reply or goes on with a command, in milliseconds. Chosen: beyond what the
/// gateway bears where others wait.
const SLOW_MS_MAX: u64 = 6_000;
/// How long room may be held by what has been begun, once all clients have gone. Chosen: several times an operation's time.
const REST_MAX: Duration = Duration::from_secs(60);

/// The keys whose values grow, or are written over.
pub const KEYS: [&str; 4] = ["range0", "range1", "blocks0", "blocks1"];

/// Serves the clients of a host to their end.
pub async fn serve(store: HostStore, book: Book, scenario: Scenario, keys: Rc<Vec<String>>, first: u32) {
    let budget = Budget::new(SHORT_BYTES, LONG_BYTES, COMMANDS_BYTES);
    let all = budget.free();
    let gateway =
        Rc::new(store.gateway(Arc::new(GatewayState::default()), CONNECTIONS_MAX).with_budget(budget.clone()));
    let listener = TcpListener::bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let address = listener.local_addr();
    let accepting = gateway.clone();
    let _accepting = task::spawn(async move { accepting.accept(&listener, &[]).await });
    let client = |number: u32| {
        let rng = Rng::new(scenario.seed, 1000 + u64::from(number));
        let (book, keys, budget) = (book.clone(), keys.clone(), budget.clone());
        let client = Client { book, number, rng, keys, address, stream: None, budget, all };
        task::spawn(client.work(scenario.operations, scenario.think))
    };
    let clients: Vec<_> = (first..first + scenario.clients as u32).map(client).collect();
    for client in clients {
        client.await;
    }
    gateway.stop().await;
    let resting = async {
        while budget.free() < all {
            time::sleep(Duration::from_millis(100)).await;
        }
    };
    let rested = time::timeout(REST_MAX, resting).await;
    assert!(
        rested.is_ok() && budget.free() == all,
        "of {all} bytes of room {} are there when all have gone",
        budget.free()
    );
}

struct Client {
    book: Book,
    number: u32,
    rng: Rng,
    keys: Rc<Vec<String>>,
    address: SocketAddr,
    stream: Option<TcpStream>,
    budget: Budget,
    all: usize,
}

/// A reply, as far as these clients know any.
#[derive(Debug)]
enum Reply {
    Ok,
    Error(String),
    Integer(u64),
    Bulk(Option<Value>),
    Array(Vec<Option<Value>>),
}

impl Client {
    async fn work(mut self, operations: u64, think: Duration) {
        for _ in 0..operations {
            let pause = self.rng.millis(0, think.as_millis() as u64);
            time::sleep(pause).await;
            let key = self.keys[self.rng.within(0, self.keys.len() as u64 - 1) as usize].clone();
            match (self.rng.within(0, 99), Kind::of(&key)) {
                (0..=14, _) => self.get(&key).await,
                (15..=54, _) => self.get_several().await,
                (55..=59, _) => self.delete(&key).await,
                (_, Kind::Blocks) => self.append(&key).await,
                _ if key.starts_with("range") => self.put(&key, RANGE_BYTES, &["SETRANGE", &key, "0"]).await,
                _ => {
                    let length = self.length();
                    self.put(&key, length, &["SET", &key]).await;
                }
            }
            let free = self.budget.free();
            assert!(free <= self.all, "{free} bytes of room are free, of {}", self.all);
            self.book.saw_room(false, self.budget.is_scarce());
        }
    }

    fn length(&mut self) -> usize {
        let length = match self.rng.within(0, 2) {
            0 => self.rng.within(8, 4_000),
            1 => self.rng.within(10_000, 60_000),
            _ => self.rng.within(70_000, VALUE_BYTES_MAX),
        };
        length as usize
    }

    async fn get(&mut self, key: &str) {
        let token = self.book.invoked(self.number, key, Action::Get, None);
        match self.call(&[b"GET", key.as_bytes()]).await {
            Ok(Reply::Bulk(value)) => self.returned(key, token, value),
            other => self.not_done(vec![token], other),
        }
    }

    async fn get_several(&mut self) {
        let (mut wanted, count) = (BTreeSet::new(), self.rng.within(2, SEVERAL_MAX));
        for _ in 0..count {
            wanted.insert(self.keys[self.rng.within(0, self.keys.len() as u64 - 1) as usize].clone());
        }
        let get = |key: &String| self.book.invoked(self.number, key, Action::Get, None);
        let tokens: Vec<Token> = wanted.iter().map(get).collect();
        let command: Vec<&[u8]> = [&b"MGET"[..]].into_iter().chain(wanted.iter().map(|key| key.as_bytes())).collect();
        match self.call(&command).await {
            Ok(Reply::Array(values)) => {
                assert_eq!(values.len(), wanted.len());
                let answers = wanted.iter().zip(tokens).zip(values);
                answers.for_each(|((key, token), value)| self.returned(key, token, value));
            }
            other => self.not_done(tokens, other),
        }
    }

    fn returned(&self, key: &str, token: Token, value: Option<Value>) {
        self.book.returned(token, value.map(|value| self.book.identify(key, &value)));
    }

    async fn delete(&mut self, key: &str) {
        let look = self.book.invoked(self.number, key, Action::Look, None);
        let token = self.book.invoked(self.number, key, Action::Delete, None);
        match self.call(&[b"DEL", key.as_bytes()]).await {
            Ok(Reply::Integer(count)) => {
                self.book.recorder.decided(look, count > 0);
                self.book.returned(token, None);
            }
            other => self.not_done(vec![look, token], other),
        }
    }

    /// Writes a whole value, by a command that ends with it.
    async fn put(&mut self, key: &str, length: usize, command: &[&str]) {
        let (id, value) = self.book.new_value(&mut self.rng, length);
        let token = self.book.invoked(self.number, key, Action::Put, Some(id));
        let value = value.to_vec();
        let command: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).chain([&value[..]]).collect();
        match self.call(&command).await {
            Ok(Reply::Ok) => self.book.returned(token, None),
            Ok(Reply::Integer(told)) => {
                assert_eq!(told, length as u64, "{key} is longer than any value that was written");
                self.book.returned(token, None);
            }
            other => self.not_done(vec![token], other),
        }
    }

    async fn append(&mut self, key: &str) {
        let (piece, block) = self.book.new_block(&mut self.rng);
        let token = self.book.invoked(self.number, key, Action::Append { piece }, None);
        let block = block.to_vec();
        match self.call(&[b"APPEND", key.as_bytes(), &block]).await {
            Ok(Reply::Integer(length)) => {
                self.book.returned(token, (length == BLOCK_BYTES as u64).then(|| appended(None, piece)));
                if length as usize >= BLOCKS_BYTES_MAX {
                    self.delete(key).await;
                }
            }
            other => self.not_done(vec![token], other),
        }
    }

    /// It was refused, or nobody knows.
    fn not_done(&mut self, tokens: Vec<Token>, reply: io::Result<Reply>) {
        let error = match reply {
            Err(_) => return,
            Ok(Reply::Error(error)) => error,
            Ok(other) => panic!("no reply to that command: {other:?}"),
        };
        let code = error.split(' ').next().unwrap_or_default();
        match code {
            "TRYAGAIN" | "OOM" => tokens.into_iter().for_each(|token| self.book.recorder.failed(token)),
            "ERR" if error.ends_with("ask for fewer keys") => {
                tokens.into_iter().for_each(|token| self.book.recorder.failed(token));
            }
            "UNKNOWN" => {}
            _ => panic!("refused by no name that says whether it was done: {error}"),
        }
        if error.contains("memory for") {
            self.book.saw_room(true, false);
        }
    }

    /// Sends a command and reads its reply, at once or slowly. An error: the connection has ended, or was.
    async fn call(&mut self, command: &[&[u8]]) -> io::Result<Reply> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => TcpStream::connect(self.address).await?,
        };
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        // Some stop in the middle of a command, and some of them for ever.
        let stops = self.rng.one_in(6).then(|| self.rng.within(1, bytes.len() as u64) as usize);
        let (first, rest) = bytes.split_at(stops.unwrap_or(bytes.len()));
        send(&stream, first).await?;
        if stops.is_some() {
            if self.rng.one_in(4) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.linger().await;
            send(&stream, rest).await?;
        }
        if self.rng.one_in(2) {
            self.linger().await;
        }
        let reply = Reader { stream: &stream, bytes: Vec::new(), used: 0 }.reply().await?;
        self.stream = Some(stream);
        Ok(reply)
    }

    async fn linger(&mut self) {
        let slow = self.rng.millis(0, SLOW_MS_MAX);
        time::sleep(slow).await;
    }
}

async fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut batch = SendBatch::new();
    batch.view(Buf::copy_from(bytes).freeze());
    stream.send(batch).await.0
}

/// Reads one reply.
struct Reader<'a> {
    stream: &'a TcpStream,
    bytes: Vec<u8>,
    used: usize,
}

impl Reader<'_> {
    async fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line().await?;
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<u64>().expect("a number");
        Ok(match kind {
            "+" => Reply::Ok,
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()),
            "$" => Reply::Bulk(self.bulk(rest).await?),
            "*" => {
                let mut values = Vec::new();
                for _ in 0..number() {
                    let head = self.line().await?;
                    values.push(self.bulk(&head[1..]).await?);
                }
                Reply::Array(values)
            }
            _ => panic!("no reply: {line}"),
        })
    }

    async fn bulk(&mut self, length: &str) -> io::Result<Option<Value>> {
        let Ok(length) = length.parse::<usize>() else { return Ok(None) };
        while self.bytes.len() < self.used + length + 2 {
            self.more().await?;
        }
        let value = Value::copy_from(&self.bytes[self.used..self.used + length]);
        self.used += length + 2;
        Ok(Some(value))
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.bytes[self.used..].windows(2).position(|end| end == b"\r\n") {
                let line = String::from_utf8_lossy(&self.bytes[self.used..self.used + end]).into_owned();
                self.used += end + 2;
                return Ok(line);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        let (result, buf) = self.stream.recv(Buf::with_capacity(64 << 10)).await;
        if result? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes.extend_from_slice(&buf);
        Ok(())
    }
}
