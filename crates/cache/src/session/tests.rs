//! Sessions over the plainest slots: what the comparison with memcached cannot show, because memcached has it not or never tells.

use std::sync::Arc;

use super::{
    Authentication, Event, FETCHES_MAX, Happening, OUTPUT_BYTES_MAX, Protocols, Rules, Session, Step, USER_BYTES_MAX,
    Users, UsersError, Watch,
};
use crate::hash::Hasher;
use crate::item::Seconds;
use crate::protocol::{GET_BYTES_MAX, Now};
use crate::slot::Slots;
use crate::testing::{PlainServer, PlainSlots, Wire};

const NOW: Now = Now { at: Seconds(1000), began: 1_700_000_000 };

/// Answers to these bytes, on one connection.
pub(super) fn answers(slots: &PlainSlots, rules: Rules, bytes: &[u8]) -> (String, bool) {
    let mut wire = Wire::new(Arc::new(rules));
    let answer = wire.feed(slots, &PlainServer::default(), NOW, bytes);
    (String::from_utf8_lossy(&answer).into_owned(), wire.is_closed)
}

fn told(slots: &PlainSlots, bytes: &[u8]) -> String {
    answers(slots, Rules::default(), bytes).0
}

/// The driver of a session that does one thing at a time.
struct Bare {
    session: Session<PlainSlots>,
    slots: PlainSlots,
    server: PlainServer,
}

impl Bare {
    fn new(slots: PlainSlots) -> Bare {
        let session = Session::new(Arc::new(Rules::default()), Hasher::new([1, 2]), 1);
        Bare { session, slots, server: PlainServer::default() }
    }

    fn step(&mut self) -> Step<<PlainSlots as Slots>::Place> {
        self.session.step(&self.slots, &self.server, NOW)
    }

    fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut buf = self.session.lend(true);
            let count = bytes.len().min(buf.spare_mut().len());
            assert!(count > 0, "a full buffer was lent");
            buf.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            self.session.receive(buf);
        }
    }

    fn sent(&mut self) -> Vec<u8> {
        let mut sent = Vec::new();
        while !self.session.output().is_empty() {
            let mut batch = self.session.output().take();
            sent.extend(batch.slices().flatten());
            batch.clear();
            self.session.output().give_back(batch);
        }
        sent
    }
}

#[test]
fn items_of_one_get_are_fetched_together_and_told_in_order() {
    let mut bare = Bare::new(PlainSlots::with_flash());
    let names: Vec<String> = (0..80).map(|at| format!("key{at}")).collect();
    for name in &names {
        bare.receive(format!("set {name} 0 0 {}\r\n{name}\r\n", name.len()).as_bytes());
        assert!(matches!(bare.step(), Step::Receive));
    }
    bare.sent();
    // Look once, and each is on flash the next time; but for every third, which is looked at again.
    bare.receive(format!("mn\r\nget {}\r\n", names.join(" ")).as_bytes());
    assert!(matches!(bare.step(), Step::Receive));
    bare.sent();
    let thirds: Vec<&str> = names.iter().step_by(3).map(String::as_str).collect();
    for name in thirds {
        bare.receive(format!("get {name}\r\n").as_bytes());
        let Step::Fetch(places) = bare.step() else { panic!("{name} is on flash") };
        bare.session.fetched(places);
        assert!(matches!(bare.step(), Step::Receive));
        bare.sent();
    }
    bare.receive(format!("get {}\r\n", names.join(" ")).as_bytes());
    let mut rounds = Vec::new();
    loop {
        match bare.step() {
            Step::Fetch(places) => {
                rounds.push(places.len());
                bare.session.fetched(places);
            }
            Step::Receive => break,
            step => panic!("{step:?} for a get that is whole"),
        }
    }
    assert_eq!(rounds[0], FETCHES_MAX, "{rounds:?}");
    assert!(rounds.len() <= 4, "{rounds:?}");
    let expected: String = names.iter().map(|name| format!("VALUE {name} 0 {}\r\n{name}\r\n", name.len())).collect();
    assert_eq!(String::from_utf8_lossy(&bare.sent()), expected + "END\r\n");
}

#[test]
fn nothing_runs_while_the_output_is_full() {
    let mut bare = Bare::new(PlainSlots::default());
    let value = "v".repeat(20_000);
    bare.receive(format!("set a 0 0 20000\r\n{value}\r\n").as_bytes());
    assert!(matches!(bare.step(), Step::Receive));
    bare.sent();
    bare.receive("get a\r\n".repeat(500).as_bytes());
    bare.receive(format!("get {}\r\n", "a ".repeat(500)).as_bytes());
    let mut total = 0;
    loop {
        let step = bare.step();
        assert!(bare.session.output().len() <= OUTPUT_BYTES_MAX + 21_000, "{} wait", bare.session.output().len());
        assert!(!bare.session.output().is_empty() || matches!(step, Step::Receive), "{step:?} with nothing to send");
        total += bare.sent().len();
        if matches!(step, Step::Receive) {
            break;
        }
    }
    assert_eq!(total, 500 * (15 + 20_002 + 5 + 2) + 500 * (15 + 20_002 + 2) + 5);
}

#[test]
fn a_get_of_very_many_keys_lets_others_have_their_turn() {
    let mut bare = Bare::new(PlainSlots::default());
    bare.receive(format!("get{}\r\n", " key".repeat(10_000)).as_bytes());
    let mut turns = 0;
    while matches!(bare.step(), Step::Send) {
        turns += 1;
    }
    assert_eq!((turns, &bare.sent()[..]), (2, &b"END\r\n"[..]));
}

#[test]
fn a_long_value_is_sent_from_its_chunks() {
    let mut bare = Bare::new(PlainSlots::default());
    let value: Vec<u8> = (0..900_000).map(|at| (at % 251) as u8).collect();
    bare.receive(b"set a 0 0 900000\r\n");
    let mut rest = &[&value[..], b"\r\n"].concat()[..];
    while !rest.is_empty() {
        assert!(matches!(bare.step(), Step::Receive));
        let mut buf = bare.session.lend(true);
        let count = rest.len().min(buf.spare_mut().len());
        buf.extend_from_slice(&rest[..count]);
        rest = &rest[count..];
        bare.session.receive(buf);
    }
    assert!(matches!(bare.step(), Step::Receive));
    assert_eq!(bare.sent(), b"STORED\r\n");
    bare.receive(b"get a\r\n");
    assert!(matches!(bare.step(), Step::Send));
    let batch = bare.session.output().take();
    let longest = batch.slices().map(<[u8]>::len).max();
    assert_eq!(longest, Some(crate::CHUNK_BYTES), "the value was copied into other pieces");
    let sent: Vec<u8> = batch.slices().flatten().copied().collect();
    assert_eq!(sent, [&b"VALUE a 0 900000\r\n"[..], &value, b"\r\nEND\r\n"].concat());
}

#[test]
fn room_is_made_or_the_value_refused() {
    let slots = PlainSlots::with_limit(100_000);
    let set = |name: &str, bytes: usize| format!("set {name} 0 0 {bytes}\r\n{}\r\n", "v".repeat(bytes));
    assert_eq!(told(&slots, (set("a", 40_000) + &set("b", 40_000)).as_bytes()), "STORED\r\nSTORED\r\n");
    assert_eq!(told(&slots, set("c", 40_000).as_bytes()), "STORED\r\n");
    assert_eq!(slots.len(), 2, "one had to go");
    // Longer than all there is: the old item is gone, and no other.
    let no_memory = "SERVER_ERROR out of memory storing object\r\n";
    assert_eq!(
        told(&slots, (set("d", 1) + &set("d", 500_000) + "get d\r\n").as_bytes()),
        format!("STORED\r\n{no_memory}END\r\n")
    );
    let slots = PlainSlots::with_limit(50_000);
    assert_eq!(
        told(&slots, (set("a", 10) + &set("a", 60_000) + "get a\r\n").as_bytes()),
        format!("STORED\r\n{no_memory}END\r\n")
    );
    assert_eq!(
        told(&slots, format!("ms a 60000 q\r\n{}\r\nmg a\r\n", "v".repeat(60_000)).as_bytes()),
        format!("{no_memory}EN\r\n")
    );
    let add = set("x", 60_000).replace("set", "add").replace("\r\nv", " noreply\r\nv");
    assert_eq!(told(&slots, (add + "mn\r\n").as_bytes()), "MN\r\n");
    // Joining needs room for both; that it fails is told as memcached tells it, and nothing is lost but what made room.
    let join = set("j", 40_000) + &set("j", 20_000).replace("set", "append") + "mg j s\r\n";
    assert!(matches!(
        &told(&slots, join.as_bytes())[..],
        "STORED\r\nNOT_STORED\r\nEN\r\n" | "STORED\r\nNOT_STORED\r\nHD s40000\r\n"
    ));
    let numbers = PlainSlots::with_limit(1);
    let counted = told(&numbers, b"set n 0 0 1\r\n9\r\nincr n 1\r\nget n\r\nma m N0 J100\r\nmg v N0\r\n");
    assert_eq!(counted, "STORED\r\nNOT_FOUND\r\nEND\r\nSERVER_ERROR out of memory\r\nHD W\r\n");
}

/// memcached reads on behind such a value, and adds to what its memory happened to hold there.
#[test]
fn a_value_of_nothing_but_spaces_is_no_number() {
    let refused = "STORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    for value in ["set n 0 0 0\r\n\r\n", "set n 0 0 1\r\n \r\n"] {
        let counted = told(&PlainSlots::default(), format!("{value}incr n 1\r\n").as_bytes());
        assert_eq!(counted, refused, "{value:?}");
    }
}

#[test]
fn a_line_has_a_bound_but_for_a_get() {
    let slots = PlainSlots::default();
    let (text, is_closed) = answers(&slots, Rules::default(), &[b'x'; 5000]);
    assert_eq!((&text[..], is_closed), ("", true));
    // What filled a buffer may go on with what is already there.
    let in_two = [&[b'x'; 9000][..], b"\r\n"].concat();
    assert_eq!(answers(&slots, Rules::default(), &in_two), ("ERROR\r\n".into(), false));
    assert_eq!(answers(&slots, Rules::default(), &[b'x'; 20_000]), (String::new(), true));
    let many = format!("get{}\r\nversion\r\n", " key".repeat(100_000));
    assert_eq!(answers(&slots, Rules::default(), many.as_bytes()), ("END\r\nVERSION 1.6.18\r\n".into(), false));
    let endless = [&b"get "[..], &b"key ".repeat(GET_BYTES_MAX / 4 + 1000)].concat();
    assert_eq!(answers(&slots, Rules::default(), &endless), (String::new(), false));
    // Who has not said who he is has no long lines.
    let users = Users::parse("user:pass").expect("a colon");
    let rules = Rules { authentication: Authentication::Text(users), ..Rules::default() };
    assert_eq!(answers(&slots, rules, &endless[..4000]), (String::new(), true));
}

#[test]
fn what_was_asked_for_before_a_request_of_http_is_answered() {
    let (text, is_closed) =
        answers(&PlainSlots::default(), Rules::default(), b"version\r\nGET / HTTP/1.0\r\nversion\r\n");
    assert_eq!((&text[..], is_closed), ("VERSION 1.6.18\r\n", true));
}

#[test]
fn a_connection_at_rest_holds_no_buffer() {
    let mut bare = Bare::new(PlainSlots::default());
    assert!(bare.session.rest());
    bare.receive(b"get a\r\nget ");
    assert!(matches!(bare.step(), Step::Receive));
    assert!(!bare.session.rest(), "a command has begun");
    bare.receive(b"a\r\n");
    assert!(matches!(bare.step(), Step::Receive));
    assert!(bare.session.rest());
    assert_eq!(bare.sent(), b"END\r\nEND\r\n");
    assert_eq!(bare.session.lend(true).capacity(), 4096);
}

#[test]
fn a_connection_amid_a_long_line_does_not_rest() {
    let mut bare = Bare::new(PlainSlots::default());
    bare.receive(&[b"get ", &b"k ".repeat(GET_BYTES_MAX / 2)[..]].concat()[..GET_BYTES_MAX]);
    while !matches!(bare.step(), Step::Receive) {}
    assert!(!bare.session.rest(), "its end has not come");
    bare.receive(b"\n");
    assert!(matches!(bare.step(), Step::Receive));
    assert!(bare.session.rest());
    assert_eq!(bare.sent(), b"END\r\n");
}

#[test]
fn what_memory_has_no_buffer_for_is_refused_and_the_connection_survives_where_it_can() {
    let slots = PlainSlots::with_buffers(8 << 10);
    let value = "v".repeat(20_000);
    let little = "set a 0 0 1\r\nx\r\n";
    let text = told(&slots, format!("{little}set a 0 0 20000\r\n{value}\r\nget a\r\n").as_bytes());
    assert_eq!(text, "STORED\r\nSERVER_ERROR out of memory storing object\r\nEND\r\n");
    let meta = told(&slots, format!("{little}ms a 20000\r\n{value}\r\nmg a v\r\n").as_bytes());
    assert_eq!(meta, "STORED\r\nSERVER_ERROR out of memory storing object\r\nEN\r\n");
    let mut set = vec![0x80, 1, 0, 1, 8, 0, 0, 0];
    set.extend((8 + 1 + 20_000u32).to_be_bytes());
    set.extend([0; 20]);
    set.push(b'a');
    set.extend(value.as_bytes());
    set.extend([0x80, 0x0b].iter().chain(&[0; 22]));
    let mut wire = Wire::new(Arc::new(Rules::default()));
    let binary = wire.feed(&slots, &PlainServer::default(), NOW, &set);
    // Status 0x82, out of memory; then the version.
    assert_eq!((&binary[..8], wire.is_closed), (&[0x81, 1, 0, 0, 0, 0, 0, 0x82][..], false));
    assert!(binary.ends_with(b"1.6.18"));
    // A line without an end cannot be passed over.
    let line = answers(&slots, Rules::default(), format!("get a {}", "key ".repeat(5000)).as_bytes());
    assert_eq!(line, ("SERVER_ERROR out of memory reading request\r\n".into(), true));
}

/// A request of the binary protocol.
pub(super) fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], announced: usize) -> Vec<u8> {
    let body = (extras.len() + key.len() + announced) as u32;
    let head = [0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    [&head[..], &body.to_be_bytes(), &[0; 12], extras, key, value].concat()
}

/// 900 heads of 29 bytes that announced 60,005 emptied a cache of 64 MiB.
#[test]
fn what_is_announced_takes_no_memory_before_it_comes() {
    for length in [20_000, 60_000, 65_000, 70_000, 1_000_000] {
        let text = format!("set a 0 0 {length}\r\n").into_bytes();
        let meta = format!("ms a {length}\r\n").into_bytes();
        for head in [text, meta, request(1, &[0; 8], b"a", b"", length)] {
            let mut bare = Bare::new(PlainSlots::default());
            bare.receive(&head);
            let mut come = head.len();
            while matches!(bare.step(), Step::Receive) && come < head.len() + length {
                let mut buf = bare.session.lend(true);
                let most = (4 * come).next_power_of_two().max(4096);
                assert!(buf.capacity() <= most, "{} bytes are held when {come} of {length} have come", buf.capacity());
                let count = buf.spare_mut().len().min(head.len() + length - come);
                buf.extend_from_slice(&vec![b'v'; count]);
                come += count;
                bare.session.receive(buf);
            }
            bare.receive(if head[0] == 0x80 { b"" } else { b"\r\n" });
            assert!(matches!(bare.step(), Step::Receive));
            assert_eq!(bare.slots.len(), 1, "{length}: {}", bare.sent().escape_ascii());
        }
    }
}

#[test]
fn one_protocol_alone() {
    let slots = PlainSlots::default();
    let version = [&[0x80u8, 0x0b][..], &[0; 22]].concat();
    let only = |protocols| Rules { protocols, ..Rules::default() };
    assert_eq!(answers(&slots, only(Protocols::Binary), b"version\r\n"), (String::new(), false));
    assert_eq!(answers(&slots, only(Protocols::Binary), b"version and more than 24 bytes\r\n"), (String::new(), true));
    assert_eq!(answers(&slots, only(Protocols::Text), &version), (String::new(), false));
    assert!(answers(&slots, only(Protocols::Text), &[&version[..], b"\r\n"].concat()).0.starts_with("ERROR"));
    assert!(answers(&slots, only(Protocols::Both), &version).0.ends_with("1.6.18"));
}

#[test]
fn sasl_plain_opens_the_binary_protocol() {
    let slots = PlainSlots::default();
    let rules = || Rules {
        authentication: Authentication::Sasl(Users::parse("user:pass\n\nother:a:b").expect("colons")),
        ..Rules::default()
    };
    let request = |opcode: u8, key: &str, value: &str| {
        let body = key.len() + value.len();
        let header = [0x80, opcode, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, body as u8];
        [&header[..], &[0; 12], key.as_bytes(), value.as_bytes()].concat()
    };
    let (answer, is_closed) = answers(&slots, rules(), &request(0x00, "a", ""));
    assert!(answer.ends_with("Auth failure.") && is_closed);
    assert!(answers(&slots, rules(), &request(0x20, "", "")).0.ends_with("PLAIN"));
    assert!(answers(&slots, rules(), &request(0x0b, "", "")).0.ends_with("1.6.18"));
    for (mechanism, text) in
        [("PLAIN", "\0user\0pas"), ("PLAIN", "user\0pass"), ("LOGIN", "\0user\0pass"), ("PLAIN", "someone\0other\0a:b")]
    {
        let (answer, is_closed) = answers(&slots, rules(), &request(0x21, mechanism, text));
        assert!(answer.ends_with("Auth failure.") && !is_closed, "{mechanism} {text:?}: {answer:?}");
    }
    assert!(answers(&slots, rules(), &request(0x22, "PLAIN", "\0user\0pass")).0.ends_with("Auth failure."));
    for text in ["\0user\0pass", "other\0other\0a:b"] {
        let asked = [request(0x21, "PLAIN", text), request(0x00, "a", "")].concat();
        let (answer, is_closed) = answers(&slots, rules(), &asked);
        assert!(answer.contains("Authenticated") && answer.ends_with("Not found") && !is_closed);
    }
}

/// As in memcached it counts, and whoever was let in has to begin anew.
#[test]
fn a_second_step_of_sasl_is_a_wrong_password() {
    let users = Users::parse("user:pass").expect("a colon");
    let rules = Rules { authentication: Authentication::Sasl(users), ..Rules::default() };
    let (slots, server, mut wire) = (PlainSlots::default(), PlainServer::default(), Wire::new(Arc::new(rules)));
    let mut ask = |opcode: u8, body: &[u8]| {
        let header = [&[0x80, opcode, 0, 5, 0, 0, 0, 0, 0, 0, 0, body.len() as u8][..], &[0; 12]].concat();
        let answer = wire.feed(&slots, &server, NOW, &[&header[..], body].concat());
        (answer[7], server.counted(Event::Authentication(false)))
    };
    assert_eq!(ask(0x21, b"PLAIN\0user\0pass"), (0, 0));
    assert_eq!(ask(0x00, b"a key"), (1, 0));
    assert_eq!(ask(0x22, b"PLAIN\0user\0pass"), (0x20, 1));
    assert_eq!(ask(0x00, b"a key"), (0x20, 1));
    assert!(wire.is_closed);
}

#[test]
fn passwords_are_read_as_memcached_reads_them() {
    let users = Users::parse("a:b\nc:d:e\n").expect("colons");
    assert!(users.accepts(b"a", b"b") && users.accepts(b"c", b"d:e"));
    assert!(!users.accepts(b"a", b"") && !users.accepts(b"", b"b") && !users.accepts(b"c", b"d"));
    assert_eq!(Users::parse("a:b\nno colon\n").err(), Some(UsersError::NoColon(2)));
    let long = |bytes: usize| Users::parse(&format!("a:b\nc:{}", "d".repeat(bytes - 2))).err();
    assert_eq!((long(USER_BYTES_MAX), long(USER_BYTES_MAX + 1)), (None, Some(UsersError::TooLong(2))));
    assert_eq!(format!("{users:?}"), "Users(2)");
}

#[test]
fn users_change_while_the_server_runs() {
    let slots = PlainSlots::default();
    let users = Users::parse("ann:old").expect("a colon");
    let rules = Arc::new(Rules { authentication: Authentication::Text(users), ..Rules::default() });
    let (mut before, mut after) = (Wire::new(rules.clone()), Wire::new(rules.clone()));
    let server = PlainServer::default();
    let ask = |wire: &mut Wire<PlainSlots>, bytes: &[u8]| {
        String::from_utf8_lossy(&wire.feed(&slots, &server, NOW, bytes)).into_owned()
    };
    assert_eq!(ask(&mut before, b"set u 0 0 7\r\nann old\r\n"), "STORED\r\n");
    let users = rules.authentication.users().expect("there are users");
    users.replace(Users::parse("ann:new").expect("a colon"));
    assert_eq!(ask(&mut after, b"set u 0 0 7\r\nann old\r\n"), "CLIENT_ERROR authentication failure\r\n");
    assert_eq!(ask(&mut after, b"set u 0 0 7\r\nann new\r\n"), "STORED\r\n");
    assert_eq!(ask(&mut before, b"get a\r\n"), "END\r\n", "who was let in stays");
}

#[test]
fn watching_and_dumping_are_the_drivers() {
    let mut bare = Bare::new(PlainSlots::default());
    bare.receive(b"lru_crawler metadump 1,2\r\nwatch evictions mutations\r\nget a\r\n");
    let Step::Dump(dump) = bare.step() else { panic!("items are told by the driver") };
    assert!(dump.has_items);
    let Step::Watch(watch) = bare.step() else { panic!("what happens is told by the driver") };
    assert!(watch.wants(Watch::EVICTIONS) && watch.wants(Watch::MUTATIONS) && !watch.wants(Watch::FETCHERS));
    assert!(matches!(bare.step(), Step::Receive));
    assert_eq!(bare.sent(), b"OK\r\n", "a watcher's commands are not run");
}

#[test]
fn watchers_are_told_of_every_key_that_a_command_meets() {
    let (plenty, little) = (PlainSlots::default(), PlainSlots::with_limit(10));
    let (server, mut wire) = (PlainServer::default(), Wire::new(Arc::default()));
    let mut happened = |slots: &PlainSlots, command: &str| {
        wire.feed(slots, &server, NOW, command.as_bytes());
        let happenings = std::mem::take(&mut *server.happenings.borrow_mut());
        let told = happenings.iter().map(|(key, what)| {
            let key = String::from_utf8_lossy(key);
            match what {
                Happening::Fetch { bytes: Some(bytes), .. } => format!("{key} found {bytes}"),
                Happening::Fetch { had_expired, .. } => {
                    format!("{key} {}", if *had_expired { "expired" } else { "none" })
                }
                Happening::Store { status, command, ttl, bytes } => format!("{key} {status} {command} {ttl} {bytes}"),
            }
        });
        told.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(happened(&plenty, "set a 0 0 1\r\nx\r\nget a\r\n"), "", "nobody watches");
    server.is_watched.set(true);
    let too_large = format!("set a 0 5 2000000\r\n{}\r\n", "x".repeat(2_000_000));
    for (command, told) in [
        ("set b 0 100 1\r\nx\r\n", "b none, b stored set 100 1"),
        ("append b 0 0 2\r\nyz\r\n", "b found 1, b stored append 0 3"),
        ("add b 0 0 2\r\nyz\r\n", "b found 3, b not_stored add 0 2"),
        ("cas b 0 0 1 99\r\nx\r\n", "b found 3, b exists cas 0 1"),
        ("cas no 0 0 1 99\r\nx\r\n", "no none, no not_found cas 0 1"),
        ("ms b 2 MR T7\r\nyz\r\n", "b found 3, b stored replace 7 2"),
        (&too_large, "a too_large set 0 0"),
        ("get a b\r\ngat 0 b\r\ntouch b 0\r\n", "a none, b found 2, b found 2, b found 2"),
        ("incr n 1\r\nma n N9 J42\r\nma n\r\ndecr n 1\r\n", "n none, n none, n stored add 9 2, n found 2, n found 2"),
        ("mg b\r\nme b\r\nmg no\r\nmd b\r\ndelete b\r\n", "b found 2, b found 2, no none, b found 2, b none"),
        ("set e 0 -1 1\r\nx\r\nget e\r\nget e\r\n", "e none, e stored set 0 1, e expired, e none"),
        ("set b 0 0 1\r\nxy\r\nversion\r\n", ""),
    ] {
        assert_eq!(happened(&plenty, command), told, "{}", &command[..command.len().min(60)]);
    }
    // Once, although it comes again when there is room.
    let told = happened(&little, "set a 0 0 8\r\n12345678\r\nset b 0 0 8\r\n12345678\r\n");
    assert_eq!(told, "a none, a stored set 0 8, b none, b stored set 0 8");
    assert_eq!(little.len(), 1);
}

/// Joined values are made outside of the slot. Were one stored over a change that came meanwhile, that change would be undone
/// after it was acknowledged.
#[test]
fn a_joined_value_does_not_undo_what_came_meanwhile() {
    let mut bare = Bare::new(PlainSlots::with_flash());
    bare.receive(
        format!("set a 0 0 60000\r\n{}\r\nappend a 0 0 6000\r\n{}\r\n", "1".repeat(60_000), "2".repeat(6000))
            .as_bytes(),
    );
    // The first look finds the item, whose value is joined with the other; by the second it is on flash.
    let Step::Fetch(places) = bare.step() else { panic!("the second look needs a fetch") };
    assert_eq!(bare.sent(), b"STORED\r\n");
    let mut other = Wire::new(Arc::new(Rules::default()));
    let answer = other.feed(&bare.slots, &bare.server, NOW, b"set a 7 0 3\r\nnew\r\n");
    assert_eq!(answer, b"STORED\r\n");
    bare.session.fetched(places);
    loop {
        match bare.step() {
            Step::Fetch(places) => bare.session.fetched(places),
            Step::Receive => break,
            step => panic!("{step:?} for an append that is whole"),
        }
    }
    assert_eq!(bare.sent(), b"STORED\r\n");
    let answer = other.feed(&bare.slots, &bare.server, NOW, b"get a\r\n");
    assert!(answer.starts_with(b"VALUE a 7 6003\r\nnew222"), "{}", answer[..30].escape_ascii());
}
