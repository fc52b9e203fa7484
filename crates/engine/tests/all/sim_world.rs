//! Time, order, life and death of tasks in the simulated world.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use engine::net::TcpListener;
use engine::sim::{SimConfig, StallReason, World};
use engine::{task, time};

const MS: Duration = Duration::from_millis(1);

/// Runs something when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn timers_fire_in_order_and_time_jumps() {
    let world = World::new(1, SimConfig::default());
    let seen = Rc::new(RefCell::new(vec![]));
    for ms in [30, 10, 3_000_000, 20] {
        let seen = seen.clone();
        let node = world.node("n");
        world
            .spawn_on(node, async move {
                time::sleep(MS * ms).await;
                seen.borrow_mut().push((ms, time::now().as_nanos()));
            })
            .detach();
    }
    world.run_for(Duration::from_secs(3_500)).expect("no stall");
    let expected: Vec<_> = [10, 20, 30, 3_000_000].map(|ms| (ms, u64::from(ms) * 1_000_000)).into();
    assert_eq!(*seen.borrow(), expected);
    assert_eq!(world.now().as_nanos(), 3_500_000_000_000);
}

/// The order in which five tasks of one instant ran.
fn order(seed: u64) -> Vec<u32> {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    let seen = Rc::new(RefCell::new(vec![]));
    for i in 0..5 {
        let seen = seen.clone();
        world.spawn_on(node, async move { seen.borrow_mut().push(i) }).detach();
    }
    world.run_for(MS).expect("no stall");
    seen.take()
}

#[test]
fn the_order_of_runnable_tasks_is_the_seeds() {
    let orders: BTreeSet<Vec<u32>> = (0..50).map(order).collect();
    assert!(orders.len() > 30, "only {} orders in 50 seeds", orders.len());
    for seed in 0..50 {
        assert_eq!(order(seed), order(seed));
    }
}

#[test]
fn random_numbers_and_clocks_are_the_seeds() {
    let draw = |seed| {
        let config = SimConfig { clock_offset_max: MS * 100, clock_drift_ppm_max: 1_000, ..SimConfig::default() };
        let world = World::new(seed, config);
        let nodes = [world.node("a"), world.node("b")];
        let clocks = nodes.map(|node| {
            let task = world.spawn_on(node, async {
                let start = (time::unix_time(), time::now());
                time::sleep(Duration::from_secs(1000)).await;
                (start.0, time::unix_time() - start.0, time::now().duration_since(start.1), task::random_u64())
            });
            world.run_until(task).expect("no stall")
        });
        (clocks, world.run_until(async { task::random_u64() }).expect("no stall"))
    };
    let (clocks, _) = draw(7);
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    for (_, by_calendar, by_clock, _) in clocks {
        assert_eq!(by_clock, Duration::from_secs(1000), "the monotonic clock does not drift");
        assert!(by_calendar.abs_diff(by_clock) <= Duration::from_secs(1), "{by_calendar:?}");
    }
    assert!(clocks[0].0 != clocks[1].0 && clocks[0].1 != clocks[1].1, "two machines' calendars differ");
}

/// A timer ends when its own node's clock says so, neither before nor never.
#[test]
fn monotonic_clocks_drift_and_timers_go_by_them() {
    let config = SimConfig { monotonic_drift_ppm_max: 20_000, ..SimConfig::default() };
    let mut ends = BTreeSet::new();
    for seed in 0..20 {
        let world = World::new(seed, config.clone());
        let node = world.node("a");
        for nanos in [1, 1_000, 999_999_937, 1_800_000_000_001] {
            let wait = Duration::from_nanos(nanos);
            let task = world.spawn_on(node, async move {
                let start = time::now();
                time::sleep(wait).await;
                start.elapsed()
            });
            let before = world.now();
            let by_node = world.run_until(task).expect("no stall");
            let by_world = world.now().duration_since(before);
            assert!(by_node >= wait && by_node - wait <= Duration::from_nanos(2), "{wait:?} {by_node:?}");
            assert!(by_world.abs_diff(wait) <= wait / 50 + Duration::from_nanos(2), "{wait:?} {by_world:?}");
            ends.insert(by_world);
        }
    }
    assert!(ends.len() > 30, "clocks differ: {}", ends.len());
}

#[test]
fn a_calendar_clock_jumps_when_told() {
    let world = World::new(1, SimConfig::default());
    let node = world.node("a");
    let calendar = || world.run_until(world.spawn_on(node, async { time::unix_time() })).expect("no stall");
    let start = calendar();
    world.jump_clock(node, 3_600_000);
    assert_eq!(calendar() - start, Duration::from_secs(3600));
    world.jump_clock(node, -7_200_000);
    assert_eq!(start - calendar(), Duration::from_secs(3600));
}

/// What was to happen at a time of its own clock happens that much later, and what it asks for afterwards too.
#[test]
fn the_monotonic_clock_of_a_suspended_node_stands_still_while_its_calendar_goes_on() {
    for drift in [0, 10_000] {
        let virtual_time_max = Duration::from_secs(10_000);
        let config = SimConfig { monotonic_drift_ppm_max: drift, virtual_time_max, ..SimConfig::default() };
        let world = World::new(3, config);
        let node = world.node("a");
        let slept = world.spawn_on(node, async {
            let (clock, calendar) = (time::now(), time::unix_time());
            time::sleep(Duration::from_secs(10)).await;
            let first = (clock.elapsed(), time::unix_time() - calendar);
            time::sleep(Duration::from_secs(5)).await;
            (first, clock.elapsed(), time::unix_time() - calendar)
        });
        let suspended = async {
            for _ in 0..2 {
                time::sleep(Duration::from_secs(2)).await;
                world.suspend(node);
                time::sleep(Duration::from_secs(3600)).await;
                world.resume(node);
            }
            slept.await
        };
        let (first, all, calendar) = world.run_until(suspended).expect("no stall");
        let near = |time: Duration, seconds: u64| time.abs_diff(Duration::from_secs(seconds)) < Duration::from_secs(1);
        assert!(near(first.0, 10) && near(first.1, 7210) && near(all, 15) && near(calendar, 7215), "{first:?} {all:?}");
    }
}

#[test]
fn a_world_that_cannot_go_on_says_so() {
    let config =
        || SimConfig { virtual_time_max: Duration::from_secs(5), polls_per_instant_max: 1000, ..SimConfig::default() };
    let stalled = World::new(9, config()).run_until(pending::<()>()).expect_err("nothing can happen");
    assert_eq!((stalled.reason, stalled.seed), (StallReason::Deadlock, 9));
    assert!(stalled.to_string().starts_with("seed 9: deadlock"), "{stalled}");

    let world = World::new(9, config());
    let node = world.node("n");
    let ticking = world.spawn_on(node, async {
        loop {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("ports enough");
            time::sleep(MS * 300).await;
        }
    });
    let stalled = world.run_until(ticking).map(|(): ()| ()).expect_err("time is up");
    assert_eq!((stalled.reason, stalled.tasks), (StallReason::TimeLimit, 1));
    assert!(stalled.at <= Duration::from_secs(5) && stalled.trace.contains("listen"), "{stalled}");

    let stalled = World::new(9, config()).run_until(async {
        loop {
            task::yield_now().await;
        }
    });
    assert_eq!(stalled.map(|(): ()| ()).expect_err("it spins").reason, StallReason::Livelock);
}

#[test]
fn a_crash_drops_the_nodes_tasks_and_their_destructors_reach_nobody() {
    let world = World::new(3, SimConfig::default());
    let (node, other) = (world.node("n"), world.node("other"));
    let log = Rc::new(RefCell::new(vec![]));
    let address: SocketAddr = (Ipv4Addr::UNSPECIFIED, 80).into();
    for name in ["sleeping", "runnable"] {
        let log = log.clone();
        world
            .spawn_on(node, async move {
                let log_drop = log.clone();
                let _dying = OnDrop(move || {
                    // The world is there, but the node is dead: nothing can be opened, what is spawned never runs.
                    assert!(time::now().as_nanos() > 0);
                    let bound = TcpListener::bind(address).map(|_| ()).map_err(|error| error.kind());
                    log_drop.borrow_mut().push((name, bound));
                    let log = log_drop.clone();
                    task::spawn(async move { log.borrow_mut().push(("zombie", Ok(()))) }).detach();
                });
                time::sleep(MS).await;
                if name == "sleeping" {
                    pending::<()>().await;
                }
                loop {
                    time::sleep(Duration::from_micros(1)).await;
                }
            })
            .detach();
    }
    let alive = Rc::new(Cell::new(0));
    let counter = alive.clone();
    world
        .spawn_on(other, async move {
            loop {
                counter.set(counter.get() + 1);
                time::sleep(MS).await;
            }
        })
        .detach();
    world.run_for(MS * 2).expect("no stall");
    assert!(log.borrow().is_empty());
    world.crash(node);
    assert!(!world.is_up(node));
    let mut dropped: Vec<_> = log.borrow().iter().map(|(name, bound)| (*name, *bound)).collect();
    dropped.sort_by_key(|(name, _)| *name);
    let refused = Err(std::io::ErrorKind::NotConnected);
    assert_eq!(dropped, [("runnable", refused), ("sleeping", refused)]);
    world.run_for(MS * 5).expect("no stall");
    assert_eq!(log.borrow().len(), 2, "no zombie");
    assert!(alive.get() >= 7, "the other node goes on");

    world.restart(node);
    let bound = world.spawn_on(node, async move { TcpListener::bind(address).is_ok() });
    assert!(world.run_until(bound).expect("no stall"), "a node of its next life can bind again");
}

#[test]
fn a_task_that_crashes_its_own_node_is_never_polled_again() {
    let world = Rc::new(World::new(3, SimConfig::default()));
    let node = world.node("n");
    let steps = Rc::new(Cell::new(0));
    let (weak, counter) = (Rc::downgrade(&world), steps.clone());
    world
        .spawn_on(node, async move {
            counter.set(1);
            weak.upgrade().expect("the world drives this task").crash(node);
            counter.set(2); // a poll is not cut in the middle
            task::yield_now().await;
            counter.set(3);
        })
        .detach();
    world.run_for(MS).expect("no stall");
    assert_eq!(steps.get(), 2);
}

#[test]
fn who_waits_for_a_crashed_task_is_told() {
    let world = World::new(3, SimConfig::default());
    let node = world.node("n");
    let (ends, hangs) = (world.spawn_on(node, async { 7 }), world.spawn_on(node, pending::<u32>()));
    let outcomes = world.run_until(async {
        time::sleep(MS).await;
        world.crash(node);
        (ends.outcome().await, hangs.outcome().await)
    });
    assert_eq!(outcomes.expect("no stall"), (Some(7), None));
}

#[test]
fn a_paused_node_stands_still_and_catches_up() {
    let world = World::new(4, SimConfig::default());
    let node = world.node("n");
    let ticks = Rc::new(RefCell::new(vec![]));
    let seen = ticks.clone();
    world
        .spawn_on(node, async move {
            loop {
                time::sleep(MS * 10).await;
                seen.borrow_mut().push(time::now().as_nanos() / 1_000_000);
            }
        })
        .detach();
    world.run_for(MS * 25).expect("no stall");
    world.pause(node);
    world.run_for(MS * 100).expect("no stall");
    assert_eq!(*ticks.borrow(), [10, 20]);
    world.resume(node);
    world.run_for(MS * 25).expect("no stall");
    assert_eq!(*ticks.borrow(), [10, 20, 125, 135, 145], "the timer of 30 fires when the node goes on");
    world.pause(node);
    world.crash(node);
    world.restart(node);
    let task = world.spawn_on(node, async { time::sleep(MS).await });
    world.run_until(task).expect("a pause does not outlive a crash");
}

#[test]
fn dropping_the_world_drops_its_tasks() {
    let world = World::new(5, SimConfig::default());
    let node = world.node("n");
    let token = Rc::new(());
    for paused in [false, true] {
        let token = token.clone();
        let node = if paused { world.node("paused") } else { node };
        world.spawn_on(node, async move { pending::<Rc<()>>().await.clone_from(&token) }).detach();
        if paused {
            world.pause(node);
        }
    }
    world.run_for(MS).expect("no stall");
    assert_eq!(Rc::strong_count(&token), 3);
    drop(world);
    assert_eq!(Rc::strong_count(&token), 1);
}

#[test]
fn a_dropped_task_is_cancelled() {
    let world = World::new(6, SimConfig::default());
    let node = world.node("n");
    let token = Rc::new(());
    let held = token.clone();
    let task = world.spawn_on(node, async move {
        let _held = held;
        pending::<()>().await;
    });
    world.run_for(MS).expect("no stall");
    drop(task);
    world.run_for(MS).expect("no stall");
    assert_eq!(Rc::strong_count(&token), 1);
}

#[test]
#[should_panic(expected = "a task's own panic")]
fn a_panic_ends_the_world() {
    let world = World::new(6, SimConfig::default());
    let node = world.node("n");
    world.spawn_on(node, async { panic!("a task's own panic") }).detach();
    world.run_for(MS).expect("no stall");
}
