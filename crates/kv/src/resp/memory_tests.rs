//! What peers can make a gateway hold: jobs of a session that are carried on by hand, in front of a store in memory.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

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
    let shared = Arc::new(Shared::new(Some(fabric::secret::Secret::new(b"secret".to_vec()))));
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
