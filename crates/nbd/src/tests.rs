//! Conversations over real sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Memory, Namespace};
use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::{Buf, Reactor, ReactorConfig, View, task, time};

use crate::wire::{Request, command, command_flag, eight, four, info, option, transmission};
use crate::{CONNECTIONS_MAX, Export, Server};

const BYTES: u64 = 4 << 20;
const BLOCK: u32 = 4096;
const ACK: u32 = 1;

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

/// A server of `a` and the read-only `b`, until the task is dropped; the namespace of `a`.
fn server() -> (SocketAddr, AnyNamespace, Rc<Server>, task::Task<()>) {
    let memory = |id| AnyNamespace::from(Memory::new(BYTES, BLOCK, [id; 16]).expect("a namespace"));
    let (a, b) = (memory(1), memory(2));
    let exports = vec![Export::new("a", "the first", a.clone(), false), Export::new("b", "", b, true)];
    let (address, server, accepting) = serving(exports);
    (address, a, server, accepting)
}

fn serving(exports: Vec<Export>) -> (SocketAddr, Rc<Server>, task::Task<()>) {
    let server = Rc::new(Server::new(exports, None).expect("a server"));
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let (address, serving) = (listener.local_addr(), server.clone());
    let accepting = task::spawn(async move { serving.accept(&listener).await });
    (address, server, accepting)
}

struct Client {
    stream: TcpStream,
    structured: bool,
}

/// What a reply says: its error, and its data or the words for the error.
type Said = (u32, Vec<u8>);

impl Client {
    /// Has said its flags.
    async fn new(address: SocketAddr) -> Client {
        let client = Client { stream: TcpStream::connect(address).await.expect("connected"), structured: false };
        let greeting = client.take(18).await;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(greeting[16..], [0, 3], "fixed newstyle, without zeroes");
        client.say(&3u32.to_be_bytes()).await;
        client
    }

    /// Has chosen an export.
    async fn of(address: SocketAddr, export: &str) -> Client {
        let client = Client::new(address).await;
        let replies = client.option(option::GO, &go(export, &[])).await;
        assert_eq!(replies.last().expect("a reply").0, ACK);
        client
    }

    async fn say(&self, bytes: &[u8]) {
        let mut batch = SendBatch::new();
        batch.head(bytes);
        self.stream.send(batch).await.0.expect("sent");
    }

    async fn take(&self, bytes: usize) -> Vec<u8> {
        self.try_take(bytes).await.expect("received")
    }

    /// `None`: the server has closed.
    async fn try_take(&self, bytes: usize) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < bytes {
            let (received, buf) = self.stream.recv(Buf::with_capacity((bytes - all.len()).min(1 << 20))).await;
            match received {
                Ok(0) | Err(_) => return None,
                Ok(_) => all.extend_from_slice(&buf),
            }
        }
        Some(all)
    }

    /// The replies to an option, up to the one that ends them.
    async fn option(&self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let length = (data.len() as u32).to_be_bytes();
        self.say(&[&b"IHAVEOPT"[..], &option.to_be_bytes(), &length, data].concat()).await;
        let mut replies = Vec::new();
        loop {
            let head = self.take(20).await;
            assert_eq!((eight(&head), four(&head[8..])), (0x0003_E889_0455_65A9, option));
            let kind = four(&head[12..]);
            replies.push((kind, self.take(four(&head[16..]) as usize).await));
            if kind == ACK || kind >> 31 != 0 {
                return replies;
            }
        }
    }

    async fn ask(&self, cookie: u64, (flags, command): (u16, u16), (offset, length): (u64, u32), data: &[u8]) {
        let request = Request { flags, command, cookie, offset, length };
        self.say(&[&request.bytes()[..], data].concat()).await;
    }

    /// The next reply; `read` bytes of data where it succeeds.
    async fn reply(&self, read: u32) -> (u64, Said) {
        if !self.structured {
            let head = self.take(16).await;
            assert_eq!(four(&head), 0x6744_6698);
            let error = four(&head[4..]);
            let data = if error == 0 { self.take(read as usize).await } else { Vec::new() };
            return (eight(&head[8..]), (error, data));
        }
        let head = self.take(20).await;
        assert_eq!((four(&head), &head[4..6]), (0x668E_33EF, &[0, 1][..]), "one chunk");
        let content = self.take(four(&head[16..]) as usize).await;
        let said = match head[6..8] {
            [0, 0] => (0, content),
            [0, 1] => (0, content[8..].to_vec()),
            [0x80, 1] => (four(&content), content[6..].to_vec()),
            _ => panic!("chunk of kind {:?}", &head[6..8]),
        };
        (eight(&head[8..]), said)
    }

    async fn run(&self, command: (u16, u16), range: (u64, u32), data: &[u8]) -> Said {
        self.ask(7, command, range, data).await;
        let (cookie, said) = self.reply(if command.1 == command::READ { range.1 } else { 0 }).await;
        assert_eq!(cookie, 7);
        said
    }

    async fn read(&self, offset: u64, bytes: u32) -> Vec<u8> {
        let (error, data) = self.run((0, command::READ), (offset, bytes), &[]).await;
        assert_eq!((error, data.len()), (0, bytes as usize));
        data
    }

    async fn write(&self, offset: u64, data: &[u8]) -> u32 {
        self.run((0, command::WRITE), (offset, data.len() as u32), data).await.0
    }
}

/// The data of INFO and GO.
fn go(name: &str, kinds: &[u16]) -> Vec<u8> {
    let kinds: Vec<u8> =
        std::iter::once(&(kinds.len() as u16)).chain(kinds).flat_map(|kind| kind.to_be_bytes()).collect();
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &kinds].concat()
}

const ERROR: u32 = 1 << 31;

#[test]
fn exports_are_listed_described_and_chosen() {
    run(async {
        let (address, ..) = &server();
        let client = Client::new(*address).await;
        let listed = client.option(option::LIST, &[]).await;
        let names: Vec<&[u8]> = listed.iter().map(|(_, data)| &data[..]).collect();
        assert_eq!(names, [&b"\0\0\0\x01athe first"[..], b"\0\0\0\x01b", b""]);
        // An unknown option, an unknown name, and data that is none leave the client where it is.
        assert_eq!(client.option(99, b"?").await[0].0, ERROR + 1);
        assert_eq!(client.option(option::GO, &go("c", &[])).await[0].0, ERROR + 6);
        for malformed in [&b""[..], b"\0\0\0\x09a", &go("a", &[])[..6], b"\0\0\0\x01\xff\0\0"] {
            assert_eq!(client.option(option::GO, malformed).await[0].0, ERROR + 3, "{malformed:?}");
        }
        assert_eq!(client.option(option::STARTTLS, &[]).await[0].0, ERROR + 2);
        assert_eq!(client.option(option::SET_META_CONTEXT, &[]).await[0].0, ERROR + 3, "replies are not structured");
        assert_eq!(client.option(98, &vec![0; 100_000]).await[0].0, ERROR + 9);
        // The read-only one says so; nothing in it can be trimmed.
        let told = client.option(option::INFO, &go("b", &[info::NAME, info::DESCRIPTION, 77])).await;
        let flags = u16::from_be_bytes([told[0].1[10], told[0].1[11]]);
        assert_eq!(flags & (transmission::READ_ONLY | transmission::SEND_TRIM), transmission::READ_ONLY);
        assert_eq!(eight(&told[0].1[2..]), BYTES);
        assert_eq!(
            told[1].1,
            [&[0, 3][..], &BLOCK.to_be_bytes(), &BLOCK.to_be_bytes(), &(32u32 << 20).to_be_bytes()].concat()
        );
        assert_eq!((&told[2].1[..], &told[3].1[..], told.len()), (&b"\0\x01b"[..], &b"\0\x02"[..], 5));
        // The old way to choose, by which nothing can be refused but by the end.
        client.say(b"IHAVEOPT\0\0\0\x01\0\0\0\x01a").await;
        let chosen = client.take(10).await;
        assert_eq!(eight(&chosen), BYTES);
        assert_eq!(client.read(0, 512).await, [0; 512]);
        let client = Client::new(*address).await;
        client.say(b"IHAVEOPT\0\0\0\x01\0\0\0\x01c").await;
        assert_eq!(client.try_take(1).await, None);
        let client = Client::new(*address).await;
        assert_eq!(client.option(option::ABORT, &[]).await[0].0, ACK);
        assert_eq!(client.try_take(1).await, None);
    });
}

#[test]
fn every_range_of_bytes_reads_as_it_was_written() {
    run(async {
        let (address, ..) = &server();
        let client = Client::of(*address, "").await;
        let mut expected = vec![0u8; BYTES as usize];
        let mut random = 1u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (random >> 33) % below
        };
        for round in 0..200 {
            // Small ones, those of several blocks, and those that no namespace takes in one piece.
            let most = [600, 20_000, 2 << 20][round % 3];
            let bytes = 1 + draw(most);
            let offset = draw(BYTES - bytes);
            let range = offset as usize..(offset + bytes) as usize;
            let fua = if round % 2 == 0 { command_flag::FUA } else { 0 };
            let length = bytes as u32;
            match draw(5) {
                0 => {
                    let no_hole = if round % 4 == 0 { command_flag::NO_HOLE } else { 0 };
                    let zeroed = client.run((fua | no_hole, command::WRITE_ZEROES), (offset, length), &[]).await;
                    assert_eq!(zeroed, (0, vec![]));
                    expected[range].fill(0);
                }
                1 => assert_eq!(client.read(offset, length).await, expected[range]),
                2 => {
                    // In a namespace in memory what is trimmed reads as zeroes.
                    assert_eq!(client.run((fua, command::TRIM), (offset, length), &[]).await, (0, vec![]));
                    let block = BLOCK as usize;
                    let (first, last) = (range.start.next_multiple_of(block), range.end / block * block);
                    expected[first.min(last)..last].fill(0);
                }
                _ => {
                    let data: Vec<u8> = (0..bytes).map(|_| draw(256) as u8).collect();
                    assert_eq!(client.run((fua, command::WRITE), (offset, length), &data).await, (0, vec![]));
                    expected[range].copy_from_slice(&data);
                }
            }
        }
        assert_eq!(client.run((0, command::FLUSH), (0, 0), &[]).await, (0, vec![]));
        assert!(client.read(0, BYTES as u32).await == expected, "what was written differs from what is read");
    });
}

#[test]
fn writers_of_one_block_keep_each_others_bytes() {
    run(async {
        let (noting, _) = noting();
        let (address, _server, _accepting) = &serving(vec![Export::new("a", "", noting, false)]);
        let writers = (0..8u8).map(|number| {
            let address = *address;
            task::spawn(async move {
                let client = Client::of(address, "a").await;
                for round in 0..20 {
                    assert_eq!(client.write(u64::from(number) * 100, &[number + round; 100]).await, 0);
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.outcome().await.expect("it ends");
        }
        let seen = Client::of(*address, "a").await.read(0, 800).await;
        let expected: Vec<u8> = (0..8u8).flat_map(|number| [number + 19; 100]).collect();
        assert_eq!(seen, expected);
    });
}

#[test]
fn what_cannot_be_is_refused_and_the_next_is_understood() {
    run(async {
        let (address, ..) = &server();
        for structured in [false, true] {
            let mut client = Client::new(*address).await;
            if structured {
                assert_eq!(client.option(option::STRUCTURED_REPLY, &[]).await[0].0, ACK);
                client.structured = true;
            }
            client.option(option::GO, &go("a", &[])).await;
            let end = BYTES;
            let cases = [
                ((0, command::READ), (0, (32 << 20) + 1), 22),
                ((0, command::READ), (end - 10, 11), 22),
                ((0, command::READ), (u64::MAX, 11), 22),
                ((0, command::WRITE), (end - 10, 11), 28),
                ((0, command::TRIM), (end, 1), 28),
                ((0, command::WRITE_ZEROES), (u64::MAX, u32::MAX), 28),
                ((1 << 4, command::WRITE_ZEROES), (0, 4096), 22),
                ((0, 99), (0, 0), 22),
            ];
            for (command, range, error) in cases {
                let range: (u64, u32) = range;
                let data = vec![1; if command.1 == command::WRITE { range.1 as usize } else { 0 }];
                let said = client.run(command, range, &data).await;
                assert_eq!(said.0, error, "{command:?} {range:?}");
                assert_eq!(said.1.is_empty(), !structured, "words for those who take them");
            }
            assert_eq!(client.read(end - 16, 16).await, [0; 16], "nothing of it was written");
            assert_eq!(
                client.run((command_flag::DF, command::READ), (0, 1), &[]).await.0 == 0,
                structured,
                "DF was offered"
            );
            for nothing in [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES] {
                assert_eq!(client.run((0, nothing), (end, 0), &[]).await, (0, vec![]), "{nothing}");
            }
            let mut client = Client::new(*address).await;
            client.option(option::STRUCTURED_REPLY, &[]).await;
            client.structured = true;
            client.option(option::GO, &go("b", &[])).await;
            assert_eq!(client.write(0, &[1; 4096]).await, 1, "read-only");
            assert_eq!(client.read(0, 4096).await, [0; 4096]);
        }
    });
}

#[test]
fn what_is_no_request_ends_the_connection_and_no_other() {
    run(async {
        let (address, ..) = &server();
        let other = Client::of(*address, "a").await;
        let oversized = Request { flags: 0, command: command::WRITE, cookie: 1, offset: 0, length: (32 << 20) + 1 };
        for wrong in [&b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"[..], &oversized.bytes()] {
            let client = Client::of(*address, "a").await;
            client.say(wrong).await;
            assert_eq!(client.try_take(1).await, None);
        }
        let client = Client::new(*address).await;
        client.say(b"HAVEOPTI\0\0\0\x01\0\0\0\0").await;
        assert_eq!(client.try_take(1).await, None);
        assert_eq!(other.read(0, 1).await, [0]);
    });
}

#[test]
fn many_requests_at_once_are_all_answered_and_so_are_those_before_a_goodbye() {
    run(async {
        let (address, namespace, ..) = &server();
        let client = Client::of(*address, "a").await;
        for cookie in 0..300u64 {
            client.ask(cookie, (0, command::WRITE), (cookie * 4096, 4096), &[cookie as u8; 4096]).await;
        }
        client.ask(300, (0, command::DISCONNECT), (0, 0), &[]).await;
        let mut answered = Vec::new();
        for _ in 0..300 {
            let (cookie, said) = client.reply(0).await;
            assert_eq!(said.0, 0);
            answered.push(cookie);
        }
        answered.sort_unstable();
        assert_eq!(answered, Vec::from_iter(0..300));
        assert_eq!(client.try_take(1).await, None, "closed after the last answer");
        let (read, buf) = namespace.read(Lba(299), Buf::with_len(4096)).await;
        read.expect("read");
        assert_eq!(buf[0], 299u64 as u8);
    });
}

/// What waited to be sent held its room for ever.
#[test]
fn a_client_that_goes_away_in_the_middle_leaves_nothing_behind() {
    run(async {
        let (address, _, server, _accepting) = server();
        let room = server.common.room.available();
        for _ in 0..3 {
            let client = Client::of(address, "a").await;
            for cookie in 0..64 {
                client.ask(cookie, (0, command::READ), (0, 1 << 20), &[]).await;
            }
            while server.common.room.available() == room {
                time::sleep(Duration::from_millis(1)).await;
            }
            client.stream.abort();
        }
        let connections = || server.figures().connections.load(Ordering::Relaxed);
        while connections() > 0 || server.common.room.available() < room {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(Client::of(address, "a").await.read(0, 1).await, [0]);
    });
}

#[test]
fn who_chooses_nothing_leaves_places_to_those_who_do() {
    run(async {
        let (address, _, server, _accepting) = server();
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.expect("accepted"));
        }
        while server.figures().refused.load(Ordering::Relaxed) == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(server.figures().connections.load(Ordering::Relaxed) <= CONNECTIONS_MAX as u64 / 4);
        drop(silent);
        while server.figures().connections.load(Ordering::Relaxed) > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        // Of those who have chosen one there may be more.
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS_MAX / 2 {
            clients.push(Client::of(address, "a").await);
        }
        assert_eq!(clients[0].read(0, 1).await, [0]);
    });
}

#[test]
fn a_server_that_stops_answers_what_it_has_received() {
    run(async {
        let (address, _, server, _accepting) = server();
        let client = Client::of(address, "a").await;
        assert_eq!(client.write(0, &[5; 4096]).await, 0);
        server.stop().await;
        assert_eq!(client.try_take(1).await, None);
        let late = TcpStream::connect(address).await.expect("the listener is there");
        let (received, _) = late.recv(Buf::with_capacity(1)).await;
        assert!(!matches!(received, Ok(1..)), "a late one is not greeted");
    });
}

fn noting() -> (AnyNamespace, Arc<Mutex<Vec<&'static str>>>) {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let memory = Memory::new(BYTES, BLOCK, [1; 16]).expect("a namespace");
    (AnyNamespace::other(Noting { memory, noted: noted.clone() }), noted)
}

/// A namespace that notes how its commands were to be made stable.
struct Noting {
    memory: Memory,
    noted: Arc<Mutex<Vec<&'static str>>>,
}

impl Noting {
    fn note(&self, what: [&'static str; 2], durability: Durability) {
        self.noted.lock().unwrap().push(what[usize::from(durability == Durability::Stable)]);
    }
}

impl Namespace for Noting {
    device::delegate_namespace!(this => { Noting { memory, .. } => memory };
        info, compare, compare_and_write, deallocate, verify, write_uncorrectable, hint_lifetime, writability,
        used_blocks, link, attribute, set_attribute, zones);

    /// Others get between it and what follows from it.
    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let read = self.memory.read(lba, buf).await;
        time::sleep(Duration::from_millis(1)).await;
        read
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.note(["write", "stable write"], durability);
        self.memory.write(lba, data, durability).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.note(["zero", "stable zero"], durability);
        self.memory.write_zeroes(lba, blocks, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.noted.lock().unwrap().push("flush");
        self.memory.flush().await
    }
}

#[test]
fn what_is_to_be_stable_is_told_to_the_namespace() {
    run(async {
        let (noting, noted) = noting();
        let (address, _server, _accepting) = serving(vec![Export::new("", "", noting, false)]);
        let client = Client::of(address, "").await;
        let whole = (0, BLOCK);
        let fua = command_flag::FUA;
        let block = [1; BLOCK as usize];
        for (command, data, expected) in [
            ((0, command::WRITE), &block[..], "write"),
            ((fua, command::WRITE), &block, "stable write"),
            ((0, command::WRITE_ZEROES), &[], "zero"),
            ((fua, command::WRITE_ZEROES), &[], "stable zero"),
            ((0, command::FLUSH), &[], "flush"),
            ((fua, command::TRIM), &[], "flush"),
        ] {
            assert_eq!(client.run(command, whole, data).await, (0, vec![]));
            assert_eq!(std::mem::take(&mut *noted.lock().unwrap()), [expected]);
        }
    });
}
