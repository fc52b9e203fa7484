//! Conversations with a session: no sockets, no clock; jobs complete in the worst order (last first).

use std::sync::Arc;

use engine::Buf;

use super::command::Command;
use super::execute::Executor;
use super::fuzz::{MemoryBackend, ready, run_session, run_session_of};
use super::memory::Hold;
use super::reply::Reply;
use super::session::Session;
use super::*;

/// What a session answers to these lines, as text.
fn talk(lines: &[&str]) -> String {
    let input = lines.join("\r\n") + "\r\n";
    let whole = run_session(&mut input.as_bytes(), input.len());
    assert_eq!(whole, run_session(&mut input.as_bytes(), 1), "the replies depend on how the input was cut");
    String::from_utf8(whole).expect("text in, text out")
}

pub(super) fn executor() -> Executor<MemoryBackend> {
    Executor { backend: Default::default(), shared: Default::default(), budget: Default::default() }
}

fn session() -> Session {
    Session::new(Arc::new(GatewayState::default()), "peer".into(), "local".into())
}

#[test]
fn strings() {
    assert_eq!(
        talk(&["SET k hello", "GET k", "STRLEN k", "TYPE k", "GET none"]),
        "+OK\r\n$5\r\nhello\r\n:5\r\n+string\r\n$-1\r\n"
    );
    assert_eq!(talk(&["MSET a 1 b 2 a 3", "MGET a none b"]), "+OK\r\n*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n2\r\n");
    assert_eq!(talk(&["MSET a 1 b 2", "DEL a a b c", "EXISTS a b"]), "+OK\r\n:2\r\n:0\r\n");
    assert_eq!(talk(&["SET a 1", "EXISTS a a", "UNLINK a", "TTL a"]), "+OK\r\n:2\r\n:1\r\n:-2\r\n");
}

/// What `docs/resp.md` says of the locks of client libraries.
#[test]
fn a_lock_is_taken_by_one_and_released_by_no_script() {
    let release = "EVALSHA 1b3e 1 lock mine";
    let told = talk(&["SET lock mine NX PX 60000", "SET lock other NX PX 60000", "GET lock", release, "GET lock"]);
    let told: Vec<&str> = told.split("\r\n").collect();
    assert_eq!(told[..4], ["+OK", "$-1", "$4", "mine"]);
    assert!(told[4].starts_with("-ERR unknown command 'EVALSHA'") && told[6] == "mine", "{told:?}");
    assert_eq!(
        talk(&["SET lock mine NX PX 60000", "GETDEL lock", "SET lock other NX"]),
        "+OK\r\n$4\r\nmine\r\n+OK\r\n"
    );
}

#[test]
fn getrange_as_redis_documents_it() {
    let ranges = [
        ("0 3", "This"),
        ("-3 -1", "ing"),
        ("0 -1", "This is a string"),
        ("10 100", "string"),
        ("5 3", ""),
        ("-1 -5", ""),
    ];
    for (range, expected) in ranges {
        let answer = talk(&["SET k \"This is a string\"", &format!("GETRANGE k {range}")]);
        assert_eq!(answer, format!("+OK\r\n${}\r\n{expected}\r\n", expected.len()), "{range}");
    }
    assert_eq!(talk(&["GETRANGE none 0 -1"]), "$0\r\n\r\n");
}

#[test]
fn pipelined_commands_on_one_key_see_each_other_in_order() {
    // The jobs that run at once complete last first; conflicting ones may not run at once.
    let answer = talk(&["SET k 1", "GET k", "SET k 2", "SET other x", "GET k", "DEL k", "GET k"]);
    assert_eq!(answer, "+OK\r\n$1\r\n1\r\n+OK\r\n+OK\r\n$1\r\n2\r\n:1\r\n$-1\r\n");
}

/// `redis-py`'s pipeline is a transaction unless it is told otherwise: the error came, and both keys were set.
#[test]
fn nothing_of_a_refused_transaction_is_done() {
    let answers = |lines: &[&str]| -> Vec<String> { talk(lines).lines().map(str::to_owned).collect() };
    let transaction = ["MULTI", "SET a 1", "GET b", "PING", "NOSUCH", "EXEC"];
    let told = answers(&[&["SET b 2"], &transaction[..], &["GET a", "GET b"]].concat());
    assert_eq!(told[0], "+OK");
    assert!(told[1].starts_with("-ERR MULTI needs transactions"), "{}", told[1]);
    assert!(told[2..5].iter().all(|line| line.starts_with("-ERR not done: it follows a MULTI")), "{told:?}");
    assert!(told[5].starts_with("-ERR unknown command"), "{}", told[5]);
    assert!(told[6].starts_with("-EXECABORT nothing was done"), "{}", told[6]);
    assert_eq!(told[7..], ["$-1", "$1", "2"]);
    // What else ends it; and a second MULTI does not.
    for end in ["DISCARD", "RESET"] {
        let told = answers(&["MULTI", "MULTI", "SET a 1", end, "GET a", "SET a 3", "GET a"]);
        assert_eq!(told[4..], ["$-1", "+OK", "$1", "3"], "{end}");
    }
    // One that is not a MULTI, as it has an argument, begins nothing; and EXEC alone is only refused.
    assert_eq!(answers(&["MULTI now", "SET a 1"])[1], "+OK");
    assert!(answers(&["EXEC"])[0].starts_with("-ERR EXEC needs transactions"));
}

/// What a session answers, and whose keys it has jobs for, if there is no memory for commands between these.
fn refused_between(before: &[u8], after: &[u8]) -> (Vec<String>, Vec<Vec<u8>>) {
    let mut session = session();
    session.receive(&mut &before[..]);
    session.refuse_command();
    session.receive(&mut &after[..]);
    let mut told = Vec::new();
    while let Some(chunk) = session.output().pop() {
        told.extend_from_slice(&chunk);
    }
    let jobs = std::iter::from_fn(|| session.next_job()).map(|job| job.command.arg(1).to_vec()).collect();
    (String::from_utf8(told).expect("text").lines().map(str::to_owned).collect(), jobs)
}

/// A MULTI of which a part had come when there was no memory for commands was refused without a name, and what followed was done;
/// and behind an EXEC of which that was so nothing was done any more.
#[test]
fn no_command_is_refused_in_part_that_is_as_short_as_those_that_need_no_room() {
    let whole = ["*1\r\n$5\r\nMULTI\r\n", "MULTI\r\n"];
    for (whole, cut) in whole.iter().flat_map(|whole| (1..whole.len()).map(move |cut| (whole, cut))) {
        let after = [&whole.as_bytes()[cut..], b"SET a 1\r\nEXEC\r\nSET b 2\r\n"].concat();
        let (told, jobs) = refused_between(&whole.as_bytes()[..cut], &after);
        assert!(told[0].starts_with("-ERR MULTI needs") && told[1].starts_with("-ERR not done"), "{cut}: {told:?}");
        assert!(told[2].starts_with("-EXECABORT") && jobs == [b"b"], "{cut} of {whole}: {told:?}");
    }
    for end in ["EXEC", "DISCARD", "RESET"] {
        let before = format!("MULTI\r\nSET a 1\r\n{}", &end[..2]);
        let (told, jobs) = refused_between(before.as_bytes(), format!("{}\r\nSET b 2\r\n", &end[2..]).as_bytes());
        assert!(told.len() == 3 && jobs == [b"b"], "{end}: {told:?}");
    }
    // It has an argument too many, and begins nothing.
    let (told, jobs) = refused_between(b"*2\r\n$5\r\nMULTI\r\n$3\r\nn", b"ow\r\nSET b 2\r\n");
    assert!(told[0].starts_with("-ERR wrong number") && jobs == [b"b"], "{told:?}");
    // A line is kept anyhow.
    let blanks = vec![b' '; COMMAND_BYTES_FREE + 1];
    let (told, jobs) = refused_between(&[b"MULTI", &blanks[..]].concat(), b"\r\nSET b 2\r\n");
    assert!(told[0].starts_with("-ERR MULTI needs") && jobs.is_empty(), "{told:?}");
    // One that is longer is refused, and nothing is kept of it.
    let mut session = session();
    session.receive(&mut format!("*2\r\n$3\r\nGET\r\n${}\r\n", COMMAND_BYTES_FREE + 1).as_bytes());
    session.refuse_command();
    assert_eq!((session.command_bytes(), session.expected_bytes()), (0, 0));
    session.receive(&mut [&blanks[..], b"\r\n"].concat().as_slice());
    assert!(session.output().pop().is_some_and(|told| told.starts_with(b"-TRYAGAIN")));
}

#[test]
fn a_scan_sees_every_key_and_dbsize_counts_them() {
    assert_eq!(talk(&["MSET a 1 b 2 c 3", "SCAN 0 COUNT 2"]), "+OK\r\n*2\r\n$1\r\n2\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    assert_eq!(talk(&["MSET a 1 b 2", "SCAN 0 MATCH b", "DBSIZE"]), "+OK\r\n*2\r\n$1\r\n0\r\n*1\r\n$1\r\nb\r\n:2\r\n");
    assert_eq!(talk(&["SET a 1", "SCAN 0 TYPE list"]), "+OK\r\n*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(talk(&["MSET ab 1 b 2", "KEYS a*"]), "+OK\r\n*1\r\n$2\r\nab\r\n");
}

#[test]
fn hello_changes_the_protocol_of_later_replies_only() {
    let answer = talk(&["GET none", "HELLO 3 SETNAME me", "GET none", "CLIENT GETNAME", "RESET", "GET none"]);
    assert!(answer.starts_with("$-1\r\n%7\r\n$6\r\nserver\r\n"), "{answer}");
    assert!(answer.ends_with("_\r\n$2\r\nme\r\n+RESET\r\n$-1\r\n"), "{answer}");
    assert_eq!(talk(&["HELLO 4"]), "-NOPROTO unsupported protocol version\r\n");
    assert_eq!(talk(&["HELLO 3 FOO"]), "-ERR Syntax error in HELLO option 'FOO'\r\n");
    assert!(talk(&["HELLO 2 AUTH default any"]).starts_with("*14\r\n"));
}

#[test]
fn wrong_input_gets_redis_own_words_and_the_connection_goes_on() {
    let cases = [
        ("NOSUCH a b", "unknown command 'NOSUCH', with args beginning with: 'a' 'b' "),
        ("GET", "wrong number of arguments for 'get' command"),
        ("MSET a", "wrong number of arguments for 'mset' command"),
        ("MSET a 1 b", "wrong number of arguments for 'mset' command"),
        ("SET k v FOO", "syntax error"),
        ("HSET h f", "wrong number of arguments for 'hset' command"),
        ("HSET h f v g", "wrong number of arguments for 'hset' command"),
        ("SETEX k 0 v", "invalid expire time in 'setex' command"),
        ("OBJECT NOSUCH", "unknown subcommand 'NOSUCH'. Try OBJECT HELP."),
        ("OBJECT ENCODING", "wrong number of arguments for 'object|encoding' command"),
        ("SELECT 1", "DB index is out of range"),
        ("SELECT x", "value is not an integer or out of range"),
        ("CLIENT NOSUCH", "unknown subcommand 'NOSUCH'. Try CLIENT HELP."),
        ("CLIENT SETNAME \"a b\"", "Client names cannot contain spaces, newlines or special characters."),
        ("CLIENT SETINFO foo bar", "Unrecognized option 'foo'"),
        ("PING a b", "wrong number of arguments for 'ping' command"),
    ];
    for (line, sentence) in cases {
        assert_eq!(talk(&[line, "PING"]), format!("-ERR {sentence}\r\n+PONG\r\n"));
    }
}

#[test]
fn a_protocol_error_is_answered_and_ends_the_connection() {
    assert_eq!(talk(&["PING", "*1", ":1", "PING"]), "+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n");
    assert_eq!(talk(&["QUIT", "PING"]), "+OK\r\n");
    assert_eq!(talk(&["POST / HTTP/1.1", "Host: x", "SET k v"]), "-ERR this is no HTTP server\r\n");
}

#[test]
fn what_redis_benchmark_and_client_libraries_ask_at_the_start() {
    assert_eq!(talk(&["CONFIG GET save"]), "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
    assert_eq!(talk(&["CONFIG GET appendonly"]), "*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n");
    assert_eq!(talk(&["CLIENT SETINFO LIB-NAME redis-py", "CLIENT ID", "SELECT 0"]), "+OK\r\n:1\r\n+OK\r\n");
    assert!(talk(&["COMMAND INFO get nosuch"]).starts_with("*2\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n"));
    assert!(talk(&["COMMAND DOCS get"]).starts_with("*2\r\n$3\r\nget\r\n*4\r\n$7\r\nsummary\r\n"));
    assert!(talk(&["INFO server"]).contains("redis_version:7."));
    let input = "PING\r\nPING\r\nINFO commandstats\r\n";
    let stats = run_session(&mut input.as_bytes(), 7);
    assert!(String::from_utf8_lossy(&stats).contains("cmdstat_ping:calls=2,"));
    let input = "SET k v\r\nGET k\r\nINFO keyspace\r\n";
    let keyspace = run_session(&mut input.as_bytes(), 7);
    assert!(String::from_utf8_lossy(&keyspace).contains("db0:keys=1,"));
    assert!(!talk(&["INFO server"]).contains("# Stats") && talk(&["INFO"]).contains("# Pool\r\nkeys:0"));
}

#[test]
fn too_many_pending_commands_stop_the_decoding_until_some_are_answered() {
    let mut session = session();
    let input = b"GET k\r\n".repeat(PENDING_MAX + 10);
    let mut rest = &input[..];
    session.receive(&mut rest);
    assert_eq!(rest.len(), 7 * 10, "decoded past the bound");
    let jobs: Vec<_> = std::iter::from_fn(|| session.next_job()).collect();
    assert_eq!(jobs.len(), RUNNING_MAX);
    jobs.into_iter().for_each(|job| session.complete(job, Reply::Null, Hold::default()));
    session.receive(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn a_peer_that_reads_no_replies_gets_no_more_work_done() {
    let mut session = session();
    let mut input = &b"GET a\r\n".repeat(20)[..];
    session.receive(&mut input);
    let value = crate::value::Value::from(engine::View::from(Buf::zeroed(1 << 20)));
    let mut started = 0;
    while let Some(job) = session.next_job() {
        started += 1;
        session.complete(job, Reply::Value(value.clone()), Hold::default());
    }
    assert_eq!(started, OUTPUT_BYTES_MAX >> 20);
    while session.output().pop().is_some() {}
    assert!(session.next_job().is_some(), "no work although the replies were read");
}

/// Also where the connection itself answers: a short command may have a long reply.
#[test]
fn a_peer_that_reads_no_replies_is_read_no_further() {
    let mut session = session();
    let input = b"COMMAND DOCS\r\n".repeat(10_000);
    let mut rest = &input[..];
    session.receive(&mut rest);
    assert!(!rest.is_empty() && session.output().len() < OUTPUT_BYTES_MAX + (64 << 10), "{}", session.output().len());
    while !rest.is_empty() {
        while session.output().pop().is_some() {}
        session.receive(&mut rest);
    }
}

/// A short value is a slice of the page it was read with: a million of them in one reply would hold a million pages.
#[test]
fn mget_does_not_hold_a_page_for_each_short_value() {
    let (executor, gone) = (executor(), std::cell::Cell::new(false));
    let slice = Buf::zeroed(4096).freeze().slice(100..110);
    for key in [b"a", b"b"] {
        let entry = Entry { value: slice.clone().into(), ..Entry::default() };
        ready(executor.backend.put_entry(key, entry)).expect("ready").expect("put");
    }
    let command = Command::new(&[b"MGET", b"a", b"b"]);
    let reply = ready(executor.execute(super::request::Request::MGet, &command, turn::Order::default().turn(), &gone));
    let Some((Reply::Array(values), _)) = reply else { panic!("{reply:?}") };
    assert!(values.iter().all(|value| matches!(value, Reply::Bulk(bytes) if bytes == &[0; 10])), "{values:?}");
}

#[test]
fn jobs_may_complete_in_any_order() {
    let mut session = session();
    session.receive(&mut &b"GET a\r\nGET b\r\nPING\r\n"[..]);
    let (a, b) = (session.next_job().expect("a job"), session.next_job().expect("a job"));
    assert_eq!((a.sequence, b.sequence, b.command.clone()), (0, 1, Command::new(&[b"GET", b"b"])));
    session.complete(b, Reply::Integer(2), Hold::default());
    assert!(session.output().is_empty(), "a reply left before its turn");
    session.complete(a, Reply::Integer(1), Hold::default());
    let sent: Vec<u8> = std::iter::from_fn(|| session.output().pop()).flat_map(|view| view.to_vec()).collect();
    assert_eq!(sent, b":1\r\n:2\r\n+PONG\r\n");
}

#[test]
fn hashes() {
    assert_eq!(talk(&["HSET h b 2 a 1 b 3", "HGETALL h"]), ":2\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n3\r\n");
    assert_eq!(talk(&["HSET h a 1", "HINCRBY h a 41", "HGET h a", "TYPE h"]), ":1\r\n:42\r\n$2\r\n42\r\n+hash\r\n");
    assert_eq!(talk(&["HSET h a 1 b 2", "HDEL h a b c", "EXISTS h", "HLEN h"]), ":2\r\n:2\r\n:0\r\n:0\r\n");
    assert_eq!(talk(&["HSETNX h a 1", "HSETNX h a 2", "HMGET h a b"]), ":1\r\n:0\r\n*2\r\n$1\r\n1\r\n$-1\r\n");
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    assert_eq!(talk(&["HSET k a 1", "GET k", "INCR k", "MGET k"]), format!(":1\r\n{wrong}{wrong}*1\r\n$-1\r\n"));
    assert_eq!(talk(&["SET k v", "HGET k a", "HSET k a 1"]), format!("+OK\r\n{wrong}{wrong}"));
    assert_eq!(talk(&["HSET k a 1", "SET k v", "TYPE k"]), ":1\r\n+OK\r\n+string\r\n");
}

/// A field that is there throughout keeps its place in a scan, whatever is deleted in front of it.
#[test]
fn a_scan_of_a_hash_meets_every_field() {
    let fields: Vec<String> = (0..100).map(|index| format!("f{index} {index}")).collect();
    let (backend, shared) = (MemoryBackend::default(), Arc::new(GatewayState::default()));
    let say = |line: &str| {
        let input = format!("{line}\r\n");
        String::from_utf8(run_session_of(&backend, &shared, &mut input.as_bytes(), 64)).expect("text")
    };
    say(&format!("HSET h {}", fields.join(" ")));
    let (mut cursor, mut met) = ("0".to_string(), std::collections::BTreeSet::new());
    loop {
        let reply = say(&format!("HSCAN h {cursor} COUNT 7"));
        let words: Vec<&str> = reply.split("\r\n").collect();
        cursor = words[2].to_string();
        for field in words.iter().filter(|word| word.starts_with('f')) {
            met.insert(field.to_string());
            if field.ends_with('3') {
                say(&format!("HDEL h {field}"));
            }
        }
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(met.len(), 100);
}

#[test]
fn expiry() {
    assert_eq!(talk(&["SET k v EX 100", "TTL k", "PERSIST k", "TTL k"]), "+OK\r\n:100\r\n:1\r\n:-1\r\n");
    assert_eq!(
        talk(&["SET k v EX 100", "APPEND k w", "TTL k", "SET k x KEEPTTL", "TTL k"]),
        "+OK\r\n:2\r\n:100\r\n+OK\r\n:100\r\n"
    );
    assert_eq!(talk(&["SET k v EX 100", "SET k w", "TTL k"]), "+OK\r\n+OK\r\n:-1\r\n");
    assert_eq!(talk(&["SET k v", "EXPIRE k -1", "GET k", "TTL k"]), "+OK\r\n:1\r\n$-1\r\n:-2\r\n");
    assert_eq!(talk(&["SET k v PXAT 1", "GET k"]), "+OK\r\n$-1\r\n");
    assert_eq!(
        talk(&["SET k v", "EXPIRE k 10 XX", "EXPIRE k 10 NX", "EXPIRE k 5 GT", "EXPIRE k 5 LT", "TTL k"]),
        "+OK\r\n:0\r\n:1\r\n:0\r\n:1\r\n:5\r\n"
    );
    assert_eq!(talk(&["SET k v PXAT 99999999999999", "PEXPIRETIME k"]), "+OK\r\n:99999999999999\r\n");
    let hash = talk(&["HSET h a 1", "EXPIRE h 100", "HSET h b 2", "HINCRBY h a 1", "TTL h", "HDEL h a", "TTL h"]);
    assert_eq!(hash, ":1\r\n:1\r\n:1\r\n:2\r\n:100\r\n:1\r\n:100\r\n", "a change of a field keeps the expiry");
}

#[test]
fn a_password_is_asked_for_before_anything_else() {
    let backend = MemoryBackend::default();
    let shared = Arc::new(GatewayState::new(Some(tls::Secret::new(b"secret".to_vec()))));
    let say = |lines: &[&str]| {
        let input = lines.join("\r\n") + "\r\n";
        String::from_utf8(run_session_of(&backend, &shared, &mut input.as_bytes(), 64)).expect("text")
    };
    let no_auth = "-NOAUTH Authentication required.\r\n";
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    assert_eq!(say(&["GET k", "PING", "AUTH x", "GET k"]), format!("{no_auth}{no_auth}{wrong}{no_auth}"));
    assert_eq!(say(&["AUTH secret", "PING", "RESET", "PING"]), format!("+OK\r\n+PONG\r\n+RESET\r\n{no_auth}"));
    assert_eq!(say(&["AUTH default secret", "PING"]), "+OK\r\n+PONG\r\n");
    assert_eq!(say(&["AUTH other secret", "PING"]), format!("{wrong}{no_auth}"));
    assert!(say(&["HELLO 3"]).starts_with("-NOAUTH HELLO must be called"));
    assert!(say(&["HELLO 3 AUTH default secret"]).starts_with("%7\r\n"));
    assert_eq!(say(&["*11"]), "-ERR Protocol error: unauthenticated multibulk length\r\n");
    assert_eq!(say(&["*2", "$4", "AUTH", "$16385"]), "-ERR Protocol error: unauthenticated bulk length\r\n");
}

#[test]
fn replies_are_left_out_as_the_client_wishes() {
    assert_eq!(talk(&["CLIENT REPLY SKIP", "SET k v", "GET k"]), "$1\r\nv\r\n");
    assert_eq!(talk(&["CLIENT REPLY OFF", "SET k v", "PING", "CLIENT REPLY ON", "GET k"]), "+OK\r\n$1\r\nv\r\n");
}

#[test]
fn a_client_finds_and_ends_others() {
    let shared = Arc::new(GatewayState::default());
    let thread = shared.add_thread();
    let executor = Executor { shared: shared.clone(), ..executor() };
    let (mut a, b) =
        (Session::new(shared.clone(), "1.2.3.4:5".into(), "l".into()), Session::new(shared, "p".into(), "l".into()));
    let mut say = |line: &str| {
        a.receive(&mut format!("{line}\r\n").as_bytes());
        while let Some(job) = a.next_job() {
            let (turn, gone) = (turn::Order::default().turn(), std::cell::Cell::new(false));
            let (reply, hold) = ready(executor.execute(job.request, &job.command, turn, &gone)).expect("room");
            a.complete(job, reply, hold);
        }
        String::from_utf8(std::iter::from_fn(|| a.output().pop()).flat_map(|view| view.to_vec()).collect())
            .expect("text")
    };
    assert!(say(&format!("CLIENT LIST ID {}", b.id())).contains("addr=p "));
    assert_eq!(say("CLIENT KILL nobody"), "-ERR No such client\r\n");
    assert!(!b.is_killed() && thread.try_recv().is_none());
    assert_eq!(say("CLIENT KILL p"), "+OK\r\n");
    assert!(b.is_killed() && thread.try_recv().is_some());
    assert_eq!(say(&format!("CLIENT KILL ID 999 ID {}", b.id())), ":1\r\n");
    assert_eq!(say("CLIENT KILL TYPE normal SKIPME no"), ":2\r\n");
    assert!(a.is_finished(), "it ended itself and was told");
}
