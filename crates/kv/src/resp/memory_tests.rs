//! What peers can make a gateway hold: jobs of a session that are carried on by hand, in front of a store in memory.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::execute::Executor;
use super::fuzz::{MemoryBackend, ready};
use super::memory::Hold;
use super::reply::Reply;
use super::session::{Job, Session};
use super::tests::executor;
use super::turn::{Order, Turn};
use super::*;
use crate::testing::run;
use crate::value::Value;

const MIB: usize = 1 << 20;

type UnderWay<'a> = Pin<Box<dyn Future<Output = (Job, Reply, Hold)> + 'a>>;

/// A connection whose peer reads nothing, and its jobs.
struct Peer<'a> {
    session: Session,
    jobs: Vec<UnderWay<'a>>,
    executor: &'a Executor<MemoryBackend>,
    gone: &'a Cell<bool>,
    order: Order,
}

impl<'a> Peer<'a> {
    fn new(executor: &'a Executor<MemoryBackend>, gone: &'a Cell<bool>) -> Peer<'a> {
        let session = Session::new(executor.shared.clone(), "peer".into(), "local".into());
        Peer { session, jobs: Vec::new(), executor, gone, order: Order::default() }
    }

    fn says(&mut self, lines: &str) {
        self.session.receive(&mut lines.as_bytes());
        self.carry_on();
    }

    /// Carries all jobs on as far as they go.
    fn carry_on(&mut self) {
        loop {
            while let Some(job) =
                self.executor.budget.lets_begin(&self.order).then(|| self.session.next_job()).flatten()
            {
                let (executor, gone, turn) = (self.executor, self.gone, self.order.turn());
                self.jobs.push(Box::pin(async move {
                    let (reply, hold) = executor.execute(job.request, &job.command, turn, gone).await;
                    (job, reply, hold)
                }));
            }
            let mut context = Context::from_waker(Waker::noop());
            // The last first: that is the worst order.
            let done =
                self.jobs.iter_mut().enumerate().rev().find_map(|(index, job)| match job.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(done) => Some((index, done)),
                    std::task::Poll::Pending => None,
                });
            let Some((index, (job, reply, hold))) = done else { return };
            drop(self.jobs.remove(index));
            self.session.complete(job, reply, hold);
        }
    }

    /// Reads everything that is there; how much, and how the last of it ends.
    fn reads(&mut self) -> (usize, String) {
        let (mut bytes, mut end) = (0, Vec::new());
        loop {
            while let Some(chunk) = self.session.output().pop() {
                bytes += chunk.len();
                end = chunk.iter().rev().take(100).rev().copied().collect();
            }
            self.session.output().sent();
            self.carry_on();
            if self.session.output().is_empty() {
                return (bytes, String::from_utf8_lossy(&end).into_owned());
            }
        }
    }
}

/// A store with a long value under `k`, whose pages are shared by all who read it.
fn with_value(length: usize) -> Executor<MemoryBackend> {
    let executor = executor();
    let zeroes = Value::copy_from(&vec![0; length]);
    let put = ready(executor.backend.put_entry(b"k", Entry { value: zeroes, ..Entry::default() }));
    put.expect("ready").expect("put");
    executor
}

/// A connection's 32 commands of 32 names of a value of 64 MiB asked for 64 GiB.
#[test]
fn a_peer_that_reads_no_long_replies_holds_no_more_than_there_is_room_for() {
    run(8, async {
        let (executor, gone) = (with_value(32 * MIB), Cell::new(false));
        let all = executor.budget.free();
        let mut peers: Vec<_> = (0..4).map(|_| Peer::new(&executor, &gone)).collect();
        for peer in &mut peers {
            peer.says(&"GET k\r\n".repeat(32));
        }
        let held: usize = peers.iter_mut().map(|peer| peer.session.output().len()).sum();
        assert!(held <= LONG_BYTES_MAX && executor.budget.free() <= all - held, "{held} bytes wait to be sent");
        assert!(executor.budget.is_scarce(), "nobody waits for room");
        // A short one is answered meanwhile, and all of them once replies are read.
        let mut other = Peer::new(&executor, &gone);
        other.says("SET short x\r\nGET short\r\n");
        assert_eq!(other.reads().1, "+OK\r\n$1\r\nx\r\n");
        let bytes: usize = (0..128).flat_map(|_| peers.iter_mut().map(|peer| peer.reads().0).collect::<Vec<_>>()).sum();
        assert_eq!(bytes, 4 * 32 * (32 * MIB + "$33554432\r\n\r\n".len()));
        drop(peers);
        assert_eq!(executor.budget.free(), all, "room was lost");
    });
}

/// Twelve thousand reads of hashes that waited in the store held a hundred kilobytes each: what they had looked at.
#[test]
fn who_waits_for_room_to_read_waits_outside_the_store() {
    run(8, async {
        let (executor, gone) = (with_value(MIB), Cell::new(false));
        let all = executor.budget.free();
        let room = drain(&executor, 128 << 10);
        let mut peers: Vec<_> = (0..10).map(|_| Peer::new(&executor, &gone)).collect();
        peers.iter_mut().for_each(|peer| peer.says(&"GET k\r\n".repeat(32)));
        let waiting: usize = peers.iter().map(|peer| peer.jobs.len()).sum();
        assert!(
            waiting >= 10 && executor.backend.waiting() == 0,
            "{waiting}, of them in the store {}",
            executor.backend.waiting()
        );
        drop(room);
        let one = "$1048576\r\n\r\n".len() + MIB;
        let bytes: usize = (0..40).flat_map(|_| peers.iter_mut().map(|peer| peer.reads().0).collect::<Vec<_>>()).sum();
        assert_eq!(bytes, 10 * 32 * one);
        drop(peers);
        assert_eq!(executor.budget.free(), all, "room was lost");
    });
}

/// A read of a value that grew each time it was looked at waited for room, and held some, for ten seconds each time.
#[test]
fn a_read_that_is_begun_anew_has_no_more_time_for_that() {
    run(8, async {
        let (executor, gone) = (with_value(MIB), Cell::new(false));
        let all = executor.budget.free();
        let mut others = drain(&executor, MIB);
        let mut peer = Peer::new(&executor, &gone);
        peer.says("GET k\r\n");
        for mebibytes in 2..4 {
            engine::time::sleep(ROOM_TIME_MAX * 2 / 5).await;
            let grown = Entry { value: Value::copy_from(&vec![0; mebibytes * MIB]), ..Entry::default() };
            executor.backend.put_entry(b"k", grown).await.expect("put");
            // Now there is room for what it was.
            others.pop();
            peer.carry_on();
            assert_eq!(peer.jobs.len(), 1, "it is not read anew");
        }
        engine::time::sleep(ROOM_TIME_MAX * 2 / 5).await;
        peer.carry_on();
        let told = peer.reads().1;
        assert!(told.starts_with("-TRYAGAIN the gateway's memory for values is in use"), "{told}");
        drop((peer, others));
        assert_eq!(executor.budget.free(), all, "room was lost");
    });
}

/// Eleven who read a little now and then held all that short replies had.
#[test]
fn who_reads_short_replies_slowly_waits_for_himself_alone() {
    const LENGTH: usize = SHORT_VALUE_BYTES_MAX;
    run(8, async {
        let (executor, gone) = (with_value(LENGTH), Cell::new(false));
        let all = executor.budget.free();
        let mut slow: Vec<_> = (0..100).map(|_| Peer::new(&executor, &gone)).collect();
        for peer in &mut slow {
            peer.says(&"GET k\r\n".repeat(200));
        }
        assert!(all - executor.budget.free() < SHORT_BYTES_MAX - 10 * MIB, "{} are free", executor.budget.free());
        let held = slow[0].session.output().len();
        assert!((LENGTH..=MIB + LENGTH).contains(&held), "one that came when there was much has {held} bytes");
        let mut others: Vec<_> = (0..16).map(|_| Peer::new(&executor, &gone)).collect();
        for other in &mut others {
            other.says("GET k\r\nSET short x\r\nGET short\r\n");
            assert!(other.jobs.is_empty(), "it waits");
        }
        // The slow ones get everything at their own pace, as nobody but they themselves is waited for.
        engine::time::sleep(10 * ROOM_TIME_MAX).await;
        let one = "$65536\r\n\r\n".len() + LENGTH;
        let read = |_| slow.iter_mut().map(|peer| peer.reads().0).sum::<usize>();
        assert_eq!((0..200).map(read).sum::<usize>(), 100 * 200 * one);
        drop((slow, others));
        assert_eq!(executor.budget.free(), all, "room was lost");
    });
}

/// Later commands hold the share of a connection, and the first has none: it must not wait for what waits for it.
#[test]
fn a_share_is_not_held_against_who_comes_first() {
    let (executor, gone) = (with_value(SHORT_VALUE_BYTES_MAX), Cell::new(false));
    // Two values are a connection's share.
    let rest = 2 * 64 * SHORT_VALUE_BYTES_MAX;
    let part = || executor.budget.try_take(SHORT_VALUE_BYTES_MAX).expect("free");
    let others: Vec<_> = (0..(SHORT_BYTES_MAX - rest) / SHORT_VALUE_BYTES_MAX).map(|_| part()).collect();
    let order = Order::default();
    let (first, second, third) = (order.turn(), order.turn(), order.turn());
    let take = |turn: &Rc<Turn>| ready(Box::pin(executor.budget.take(SHORT_VALUE_BYTES_MAX, turn)));
    let early = take(&second).expect("there is room for one more beside it");
    assert!(take(&third).is_none(), "nothing is left for the first");
    let more = part();
    let late = take(&first).expect("it waits for who waits for it");
    assert!(take(&third).is_none(), "the share is taken");
    drop((late, early, more, others));
    assert!(take(&third).is_some());
    // Of somebody who pipelines the last is carried on first.
    let mut peer = Peer::new(&executor, &gone);
    let _others: Vec<_> = (0..(SHORT_BYTES_MAX - rest) / SHORT_VALUE_BYTES_MAX).map(|_| part()).collect();
    peer.says(&"GET k\r\n".repeat(64));
    let one = "$65536\r\n\r\n".len() + SHORT_VALUE_BYTES_MAX;
    assert_eq!((0..64).map(|_| peer.reads().0).sum::<usize>(), 64 * one);
}

/// So many names of a long value make too long a reply, whatever else is under way; and what only counts reads no value.
#[test]
fn several_values_are_refused_before_they_are_there() {
    run(7, async {
        let (executor, gone) = (with_value(40 * MIB), Cell::new(false));
        let mut peer = Peer::new(&executor, &gone);
        peer.says(&format!("MGET{}\r\n", " k".repeat(32)).repeat(32));
        assert_eq!(peer.jobs.len(), 0);
        let (bytes, end) = peer.reads();
        assert!(end.ends_with("ask for fewer keys\r\n") && bytes < 32 * 200, "{bytes} bytes: {end}");
        let _all = (executor.budget.try_take(LONG_BYTES_MAX), executor.budget.try_take(SHORT_VALUE_BYTES_MAX));
        peer.says("EXISTS k k k\r\nSTRLEN k\r\nTYPE k\r\nTTL k\r\nOBJECT ENCODING k\r\nTOUCH k\r\n");
        assert_eq!(peer.reads().1, ":3\r\n:41943040\r\n+string\r\n:-1\r\n$3\r\nraw\r\n:1\r\n");
        // Where the room is taken by others it waits with nothing in hand.
        peer.says("MGET k none\r\n");
        assert_eq!(peer.jobs.len(), 1);
        drop(_all);
        peer.carry_on();
        assert_eq!(peer.reads().0, "*2\r\n$41943040\r\n\r\n$-1\r\n".len() + 40 * MIB);
    });
}

/// 40 bytes made 64 MiB, twice, for as many commands as there were.
#[test]
fn what_commands_make_of_values_has_room_first() {
    let (executor, gone) = (executor(), Cell::new(false));
    let mut peers: Vec<_> = (0..2).map(|_| Peer::new(&executor, &gone)).collect();
    // Nobody's turn comes: others hold all.
    let all = executor.budget.try_take(LONG_BYTES_MAX);
    for (number, peer) in peers.iter_mut().enumerate() {
        let lines = (0..32).map(|key| format!("SETRANGE {number}-{key} 67108863 x\r\n"));
        peer.says(&lines.collect::<String>());
        assert_eq!(peer.jobs.len(), 32);
    }
    let count = |backend: &MemoryBackend| ready(backend.estimate_keys()).expect("ready").expect("counted");
    assert_eq!(count(&executor.backend), 0);
    drop(all);
    // One after the other: an answer of a few bytes holds nothing.
    for _ in 0..64 {
        peers.iter_mut().for_each(|peer| peer.says(""));
    }
    assert_eq!(count(&executor.backend), 64);
}

/// 240 kB of lines that were refused pinned 2.8 MiB for whoever did not read that.
#[test]
fn of_a_peer_that_gave_no_password_few_commands_are_answered() {
    let shared = Arc::new(GatewayState::new(Some(tls::Secret::new(b"secret".to_vec()))));
    let mut session = Session::new(shared.clone(), "peer".into(), "local".into());
    let input = b"a\r\n".repeat(80_000);
    let mut rest = &input[..];
    session.receive(&mut rest);
    assert!(session.output().len() < 16 << 10 && !session.accepts(), "{} bytes pinned", session.output().len());
    while session.output().pop().is_some() {}
    assert!(session.is_finished(), "it may go on");
    // One that says who it is in time goes on for ever.
    let mut session = Session::new(shared.clone(), "peer".into(), "local".into());
    session.receive(&mut &b"PING\r\n".repeat(UNTRUSTED_COMMANDS_MAX - 1)[..]);
    session.receive(&mut &[&b"AUTH secret\r\n"[..], &b"PING\r\n".repeat(200)].concat()[..]);
    assert!(session.accepts());
    // Nor has such a peer long commands.
    let mut session = Session::new(shared, "peer".into(), "local".into());
    let long = format!("*10\r\n{}", format!("$16384\r\n{}\r\n", "x".repeat(16384)).repeat(10));
    session.receive(&mut &long.as_bytes()[..long.len() - 2]);
    assert!(session.command_bytes() <= UNTRUSTED_COMMAND_BYTES_MAX + 100, "{}", session.command_bytes());
}

/// One `SCAN` with 64 Mi of `*`, or one `HSCAN` of a long field, stopped its thread for minutes.
#[test]
fn a_pattern_stops_no_thread() {
    run(7, async {
        let (executor, gone) = (executor(), Cell::new(false));
        let mut peer = Peer::new(&executor, &gone);
        let stars = "*".repeat(17 << 10);
        let lines = ["SCAN 0 MATCH", "HSCAN none 0 MATCH", "KEYS", "CONFIG GET", "COMMAND LIST FILTERBY PATTERN"];
        peer.says("HSET none a 1\r\n");
        peer.reads();
        for line in lines {
            peer.says(&format!("{line} {stars}\r\n"));
            assert_eq!(peer.reads().1, "-ERR pattern is too long: at most 16384 bytes are taken\r\n", "{line}");
        }
        peer.says(&format!("HSET h {} 1 {}b 2\r\n", "a".repeat(20_000), "a".repeat(20_000)));
        peer.reads();
        peer.says(&format!("HSCAN h 0 MATCH *{}b\r\n", "a".repeat(100)));
        assert_eq!(peer.jobs.len(), 1, "2 million steps were made at once");
        while !peer.jobs.is_empty() {
            peer.carry_on();
        }
        let (bytes, end) = peer.reads();
        assert!(end.ends_with("ab\r\n$1\r\n2\r\n") && bytes < 20_100, "{bytes}: {end}");
    });
}

/// A million fields that are not there, a million names of a command, an argument of 64 MiB that is sent back: what a peer does not
/// read was held, and nobody counted it.
#[test]
fn long_replies_of_short_things_have_room_too() {
    run(7, async {
        let (executor, gone) = (executor(), Cell::new(false));
        let all = executor.budget.free();
        let mut setup = Peer::new(&executor, &gone);
        setup.says("HSET h a 1\r\n");
        setup.reads();
        let fields = |key: &str| format!("HMGET {key}{}\r\n", " x".repeat(30_000));
        let many = format!("COMMAND INFO{}\r\n", " get".repeat(4_000));
        let (echo, list) = (format!("ECHO {}\r\n", "x".repeat(60_000)), "CLIENT LIST\r\n".to_string());
        for line in [fields("h"), fields("none"), many, echo, list] {
            let mut peer = Peer::new(&executor, &gone);
            peer.says(&line);
            let held = peer.session.output().len();
            assert!(held > 0 && executor.budget.free() + held <= all + 32, "{held} bytes wait, {}", &line[..12]);
            // Nor is there a reply before there is room.
            let _rest = [drain(&executor, SHORT_VALUE_BYTES_MAX + 1), drain(&executor, 1 << 10)];
            let mut other = Peer::new(&executor, &gone);
            other.says(&line);
            assert_eq!(other.session.output().len(), 0, "{}", &line[..12]);
        }
        assert_eq!(executor.budget.free(), all, "room was lost");
        let mut peer = Peer::new(&executor, &gone);
        peer.says(&format!("COMMAND DOCS{}\r\n", " get".repeat(5_000)));
        assert_eq!(peer.reads().1, "-ERR more than 4096 arguments make too long a reply\r\n");
        peer.says(&format!("HELLO 3 {}\r\n", "x".repeat(60_000)));
        assert!(peer.reads().0 < 2000);
    });
}

/// The reply of a GETSET is what was there, which each attempt has read anew: one that was sent keeps it while the next one reads.
#[test]
fn what_an_attempt_keeps_for_its_reply_has_room_too() {
    let (executor, gone) = (with_value(16 * MIB), Cell::new(false));
    let mut others = drain(&executor, 8 * MIB);
    others.truncate(others.len() - 5);
    // It makes no other value.
    let mut peer = Peer::new(&executor, &gone);
    peer.says("GETEX k EX 100\r\n");
    assert_eq!((peer.jobs.len(), peer.reads().0), (0, 16 * MIB + "$16777216\r\n\r\n".len()));
    for line in ["GETSET k x\r\n", "SET k y GET\r\n"] {
        let mut peer = Peer::new(&executor, &gone);
        peer.says(line);
        assert_eq!(peer.jobs.len(), 1, "it waits: {line}");
    }
    drop(others);
    peer.says("GETSET k x\r\nGET k\r\n");
    assert_eq!(peer.reads().1, "$1\r\nx\r\n");
}

/// Takes all room, in pieces of so many bytes.
fn drain(executor: &Executor<MemoryBackend>, bytes: usize) -> Vec<engine::sync::Permit> {
    std::iter::from_fn(|| executor.budget.try_take(bytes)).collect()
}

/// A million replies without a byte behind a slow command: they count too.
#[test]
fn replies_without_bytes_count_where_they_wait() {
    let nulls = Reply::Array(vec![Reply::Null; 1000]);
    assert!(nulls.memory_bytes() >= 1000 * size_of::<Reply>());
    let (executor, gone) = (executor(), Cell::new(false));
    let mut peer = Peer::new(&executor, &gone);
    peer.session.receive(&mut &b"GET slow\r\n".to_vec()[..]);
    let _slow = peer.session.next_job().expect("a job");
    let line = b"COMMAND GETKEYS mget a b c d e f g h\r\n".repeat(PENDING_MAX);
    let mut rest = &line[..];
    peer.session.receive(&mut rest);
    assert!(rest.len() > line.len() / 3, "{} of {} are left", rest.len(), line.len());
}

/// An `MGET` that had taken a little let the commands behind it take all, and then waited for what they held.
#[test]
fn commands_behind_one_of_several_values_leave_it_room() {
    run(8, async {
        let (executor, gone) = (with_value(32 * MIB), Cell::new(false));
        let mut peer = Peer::new(&executor, &gone);
        let turn = peer.order.turn();
        let several = super::memory::Several::new(&executor.budget, &turn, REPLY_BYTES_MAX);
        several.grow(1).expect("there is room");
        peer.says(&"GET k\r\n".repeat(32));
        assert!(executor.budget.try_take(REPLY_BYTES_MAX).is_some(), "those behind it have all");
        drop((several.take(), turn));
        peer.carry_on();
        assert!(peer.reads().0 > 32 * 32 * MIB);
    });
}

/// Eight deletions of a million names held all room, and waited for some.
#[test]
fn a_deletion_holds_no_room_while_it_waits_for_some() {
    let (executor, gone) = (with_value(8 * MIB), Cell::new(false));
    let all = executor.budget.free();
    let rest = drain(&executor, 3 * MIB);
    let mut peer = Peer::new(&executor, &gone);
    let before = executor.budget.free();
    peer.says(&format!("DEL k{}\r\n", " x".repeat(30_000)));
    assert_eq!((peer.jobs.len(), executor.budget.free()), (1, before));
    drop(rest);
    peer.carry_on();
    assert_eq!((peer.reads().1, executor.budget.free()), (":1\r\n".to_string(), all));
}

/// A range held its bytes, and kept the two extents that it began and ended in.
#[test]
fn a_range_keeps_no_more_than_it_is_taken_to_hold() {
    let extents = [0, 1].map(|_| engine::View::from(engine::Buf::zeroed(128 << 10)));
    let entry = Entry { value: Value::new(extents.to_vec()), ..Entry::default() };
    let whole = |segment: &engine::View| extents.iter().any(|extent| extent.as_ptr_range().contains(&segment.as_ptr()));
    let kept = |start, end| match (strings::Read::GetRange { start, end }).reply(Some(&entry)) {
        Reply::Value(value) => (value.len(), value.segments().iter().filter(|segment| whole(segment)).count()),
        other => panic!("{other:?}"),
    };
    assert_eq!(kept(96 << 10, (192 << 10) - 1), (96 << 10, 0));
    assert_eq!(kept(0, (192 << 10) - 1), (192 << 10, 1));
    assert_eq!(kept(0, -1), (256 << 10, 2));
}

/// Each held 128 MiB from its beginning on: with four under way nobody else had any.
#[test]
fn a_listing_of_keys_holds_what_it_has_found() {
    let (executor, gone) = (executor(), Cell::new(false));
    let mut peer = Peer::new(&executor, &gone);
    peer.says("MSET a 1 b 2\r\n");
    peer.reads();
    let _others = drain(&executor, 100 * MIB);
    peer.says(&"KEYS *\r\n".repeat(RUNNING_MAX));
    assert_eq!(peer.jobs.len(), 0, "two keys wait for room");
    assert_eq!(peer.reads().0, RUNNING_MAX * "*2\r\n$1\r\na\r\n$1\r\nb\r\n".len());
}

/// Where the walk over a large table took too long, what it had met was forgotten: a key, and a size of 0.
#[test]
fn a_count_that_is_broken_off_tells_of_what_it_has_met() {
    run(8, async {
        let (executor, gone) = (executor(), Cell::new(true));
        for key in 0..SCAN_COUNT_MAX + 1 {
            let end = Entry { expiry: Some(u64::MAX), ..Entry::default() };
            executor.backend.put_entry(format!("{key:08}").as_bytes(), end).await.expect("put");
        }
        executor.backend.estimates(0);
        let count = super::execute::count_keys(&*executor.backend, &executor.shared, &gone, Duration::ZERO).await;
        assert_eq!(count.map_err(|failure| failure.to_string()), Ok(SCAN_COUNT_MAX as u64));
    });
}
