//! Partitions: what is held, for how long, and who gives up.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use engine::net::TcpStream;
use engine::{task, time};

use super::{ErrorKind, MS, config, pair, recv, send};

#[test]
fn a_partition_holds_the_bytes_of_both_sides_until_it_heals() {
    /// Sends numbers, and notes when which came in.
    async fn exchange(stream: TcpStream, seen: Rc<RefCell<Vec<(u64, u8)>>>) {
        let stream = Rc::new(stream);
        let receiver = stream.clone();
        let receiving = task::spawn(async move {
            loop {
                let bytes = recv(&receiver).await.expect("held, not broken");
                let at = time::now().as_nanos() / 1_000_000;
                seen.borrow_mut().extend(bytes.into_iter().map(|byte| (at, byte)));
            }
        });
        for i in 0..50 {
            send(&stream, &[i]).await.expect("the window takes them all");
            time::sleep(MS * 2).await;
        }
        receiving.await
    }
    let pair = pair(1, config());
    let (by_server, by_client) = (Rc::new(RefCell::new(vec![])), Rc::new(RefCell::new(vec![])));
    let seen = by_server.clone();
    pair.serve(|stream| exchange(stream, seen));
    let (addr, world, seen) = (pair.addr, &pair.world, by_client.clone());
    let client = async move { exchange(TcpStream::connect(addr).await.expect("listening"), seen).await };
    world.spawn_on(pair.client, client).detach();
    world.run_for(MS * 20).expect("no stall");
    world.partition(pair.client, pair.server);
    world.run_for(MS * 300).expect("no stall");
    world.heal(pair.client, pair.server);
    world.run_for(MS * 300).expect("no stall");
    for seen in [by_server.take(), by_client.take()] {
        assert!(seen.iter().map(|(_, byte)| *byte).eq(0..50), "all of them, in order: {seen:?}");
        assert!(seen.iter().all(|(at, _)| *at <= 20 || *at >= 320), "none during the partition: {seen:?}");
        assert!(seen[0].0 < 20 && seen[49].0 >= 320, "{seen:?}");
    }
}

#[test]
fn a_long_partition_breaks_who_sends_and_not_who_waits() {
    let pair = pair(1, config());
    pair.serve(|stream| async move {
        assert!(time::timeout(Duration::from_secs(5), recv(&stream)).await.is_err(), "it waits for ever");
        send(&stream, b"are you there?").await.expect("taken");
        assert_eq!(recv(&stream).await.expect_err("gone").kind(), ErrorKind::ConnectionReset);
    });
    let (addr, world) = (pair.addr, &pair.world);
    let client = world.spawn_on(pair.client, async move {
        let stream = TcpStream::connect(addr).await.expect("listening");
        time::sleep(MS * 20).await;
        send(&stream, b"hello?").await.expect("taken");
        let start = time::now();
        let error = recv(&stream).await.expect_err("nothing acknowledges it");
        (error.kind(), start.elapsed())
    });
    let (kind, after) = world
        .run_until(async {
            time::sleep(MS * 10).await;
            world.partition(pair.client, pair.server);
            let refused = world.spawn_on(pair.client, async move { TcpStream::connect(addr).await.map(|_| ()) });
            let outcome = client.await;
            assert_eq!(refused.await.expect_err("no handshake").kind(), ErrorKind::TimedOut);
            world.heal_all();
            outcome
        })
        .expect("no stall");
    assert_eq!(kind, ErrorKind::TimedOut);
    assert!((MS * 500..MS * 510).contains(&after), "{after:?}");
    world.run_for(Duration::from_secs(10)).expect("the server meets its assertions");
}

/// One way is cut: what goes the other way still arrives, and a handshake needs both.
#[test]
fn a_way_that_is_cut_holds_what_goes_there_and_nothing_else() {
    let pair = pair(1, config());
    let heard = Rc::new(RefCell::new(Vec::new()));
    let log = heard.clone();
    pair.serve(move |stream| async move {
        send(&stream, b"first").await.expect("taken");
        while let Ok(bytes) = recv(&stream).await {
            log.borrow_mut().push((time::now().as_nanos() / 1_000_000, bytes));
            send(&stream, b"answer").await.expect("taken");
        }
    });
    let (addr, world) = (pair.addr, &pair.world);
    let client = world.spawn_on(pair.client, async move {
        let stream = TcpStream::connect(addr).await.expect("listening");
        assert_eq!(recv(&stream).await.expect("before the cut"), b"first");
        time::sleep(MS * 50).await;
        send(&stream, b"question").await.expect("taken");
        let answer = recv(&stream).await.expect("held, not broken");
        (answer, time::now().as_nanos() / 1_000_000)
    });
    world.run_for(MS * 20).expect("no stall");
    world.partition_one_way(pair.server, pair.client);
    let late = world.spawn_on(pair.client, async move { TcpStream::connect(addr).await.map(|_| time::now()) });
    world.run_for(MS * 200).expect("no stall");
    let early = heard.borrow().first().map(|(at, _)| *at);
    assert!(early.is_some_and(|at| at < 100), "the question came through: {early:?}");
    world.heal(pair.client, pair.server);
    let (answer, at) = world.run_until(client).expect("no stall");
    assert!(answer == b"answer" && at >= 220, "the answer was held: {at}");
    let at = world.run_until(late).expect("no stall").expect("connected");
    assert!(at.as_nanos() > 220_000_000, "the handshake's answer was held: {at:?}");
}

#[test]
fn a_handshake_is_held_by_a_partition_and_completes_after_it() {
    let pair = pair(1, config());
    pair.serve(|stream| async move { drop(recv(&stream).await) });
    let (addr, world) = (pair.addr, &pair.world);
    world.partition(pair.client, pair.server);
    let client = world.spawn_on(pair.client, async move { TcpStream::connect(addr).await.map(|_| time::now()) });
    let at = world.run_until(async {
        time::sleep(MS * 100).await;
        world.heal_all();
        client.await
    });
    assert!(at.expect("no stall").expect("connected").as_nanos() > 100_000_000);
}

/// A stopped process learns of its connect's end only when it goes on. Meanwhile the partition healed and the handshake came
/// through: an answer that was taken then would name a connection that its kernel had given up, and may have forgotten.
#[test]
fn a_late_answer_does_not_revive_a_connect_that_timed_out() {
    for held_after in [Duration::ZERO, MS * 3 / 2] {
        let pair = pair(1, config());
        let (addr, world) = (pair.addr, &pair.world);
        let served = Rc::new(RefCell::new(0));
        let count = served.clone();
        pair.serve(|stream| async move {
            assert!(!recv(&stream).await.is_ok_and(|bytes| !bytes.is_empty()), "nobody sends");
            *count.borrow_mut() += 1;
        });
        world.run_for(MS).expect("no stall");
        let client = world.spawn_on(pair.client, async move { TcpStream::connect(addr).await.map(|_| ()) });
        world.run_for(held_after).expect("no stall");
        world.partition(pair.client, pair.server);
        world.run_for(MS * 10).expect("no stall");
        world.pause(pair.client);
        world.run_for(MS * 600).expect("no stall");
        world.heal(pair.client, pair.server);
        world.run_for(MS * 100).expect("no stall");
        world.resume(pair.client);
        let result = world.run_until(client).unwrap_or_else(|stalled| panic!("{stalled}"));
        assert_eq!(result.expect_err("it timed out").kind(), ErrorKind::TimedOut, "held after {held_after:?}");
        // A connection that the server had already accepted ends; one that was never asked for in time never comes to be.
        assert_eq!(*served.borrow(), u32::from(!held_after.is_zero()));
    }
}
