//! Tasks, timers, threads and idleness on the real reactor.

use std::{
    cell::{Cell, RefCell},
    future::{Future, pending},
    io::ErrorKind,
    rc::Rc,
    sync::mpsc,
    time::Duration,
};

use engine::{
    Reactor, ReactorConfig,
    net::TcpListener,
    sync::{self, Queue},
    task,
    time::{self, timeout},
};

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { timeout(Duration::from_secs(20), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn timers_fire_in_order_and_never_early() {
    run(async {
        let fired = Rc::new(RefCell::new(vec![]));
        let begin = time::now();
        let sleepers: Vec<_> = [30u64, 10, 20, 0, 10]
            .into_iter()
            .enumerate()
            .map(|(index, millis)| {
                let fired = fired.clone();
                task::spawn(async move {
                    time::sleep(Duration::from_millis(millis)).await;
                    assert!(begin.elapsed() >= Duration::from_millis(millis));
                    fired.borrow_mut().push(index);
                })
            })
            .collect();
        for sleeper in sleepers {
            sleeper.await;
        }
        assert_eq!(*fired.borrow(), [3, 1, 4, 2, 0]);
    });
}

#[test]
fn a_timeout_drops_what_it_gave_up_and_lets_through_what_is_ready() {
    run(async {
        let alive = Rc::new(());
        let held = alive.clone();
        let given_up = timeout(Duration::from_millis(5), async move {
            let _held = held;
            pending::<()>().await
        });
        assert_eq!(given_up.await, Err(time::Elapsed));
        assert_eq!(Rc::strong_count(&alive), 1);
        assert_eq!(timeout(Duration::ZERO, async { 7 }).await, Ok(7));
    });
}

#[test]
fn dropping_a_task_cancels_it_and_detaching_does_not() {
    run(async {
        let (cancelled, detached) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let set = |flag: &Rc<Cell<bool>>| {
            let flag = flag.clone();
            async move {
                time::sleep(Duration::from_millis(5)).await;
                flag.set(true);
            }
        };
        drop(task::spawn(set(&cancelled)));
        task::spawn(set(&detached)).detach();
        time::sleep(Duration::from_millis(30)).await;
        assert!(!cancelled.get() && detached.get());
        assert_eq!(Rc::strong_count(&cancelled), 1, "the cancelled task's future is gone");
    });
}

#[test]
fn tasks_that_never_rest_starve_neither_timers_nor_each_other() {
    run(async {
        for _ in 0..2 {
            task::spawn(async {
                loop {
                    task::yield_now().await;
                }
            })
            .detach();
        }
        time::sleep(Duration::from_millis(10)).await;
    });
}

#[test]
fn what_is_still_running_at_the_end_is_dropped_on_this_thread() {
    struct Noted(Rc<Cell<u32>>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            task::spawn(async {}).detach(); // must not keep the end from coming
        }
    }
    let drops = Rc::new(Cell::new(0));
    let counted = drops.clone();
    run(async move {
        for _ in 0..10 {
            let noted = Noted(counted.clone());
            task::spawn(async move {
                let _noted = noted;
                pending::<()>().await;
            })
            .detach();
        }
        task::yield_now().await;
    });
    assert_eq!(drops.get(), 10);
}

/// Needs the world when it is dropped.
struct Late(Rc<()>);

impl Drop for Late {
    fn drop(&mut self) {
        let held = self.0.clone();
        task::spawn(async move {
            let _held = held;
            pending::<()>().await;
        })
        .detach();
    }
}

#[test]
fn a_panic_of_a_task_ends_the_reactor_and_drops_the_rest() {
    let alive = Rc::new(());
    let (held, late) = (alive.clone(), Late(alive.clone()));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(async move {
            let _late = late;
            task::spawn(async move {
                let _held = held;
                pending::<()>().await;
            })
            .detach();
            task::spawn(async { panic!("as the test wants it") }).detach();
            time::sleep(Duration::from_secs(10)).await;
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(Rc::strong_count(&alive), 1);
    run(async {}); // the thread can have another reactor
}

#[test]
fn letters_cross_threads_both_ways_and_wake_sleepers() {
    const LETTERS: u32 = 2_000;
    let (to_other, other_inbox) = sync::mailbox::<u32>(4);
    let (to_us, our_inbox) = sync::mailbox::<u32>(4);
    let other = std::thread::spawn(move || {
        run(async move {
            while let Some(letter) = other_inbox.recv().await {
                to_us.send(letter + 1).await.expect("we listen");
            }
        });
    });
    run(async move {
        let sender = task::spawn(async move {
            for letter in 0..LETTERS {
                to_other.send(letter).await.expect("the other side listens");
                if letter % 500 == 0 {
                    time::sleep(Duration::from_millis(5)).await; // both sides fall asleep
                }
            }
        });
        for letter in 0..LETTERS {
            assert_eq!(our_inbox.recv().await, Some(letter + 1));
        }
        sender.await;
        assert_eq!(our_inbox.recv().await, None);
    });
    other.join().expect("the other side's assertions hold");
}

#[test]
fn a_thread_without_a_reactor_can_stop_one() {
    let (stop, stopped) = sync::mailbox::<()>(1);
    let (tell, ready) = mpsc::channel();
    let reactor = std::thread::spawn(move || {
        run(async move {
            tell.send(()).expect("the test waits");
            assert_eq!(stopped.recv().await, Some(()));
        });
    });
    ready.recv().expect("the reactor runs");
    std::thread::sleep(Duration::from_millis(20));
    let begin = time::now();
    stop.try_send(()).expect("room for one");
    reactor.join().expect("the reactor's assertions hold");
    // Not only once the timeout of the test wakes it.
    assert!(begin.elapsed() < Duration::from_secs(10), "the wake was lost");
}

#[test]
fn an_idle_reactor_uses_no_cpu() {
    run(async {
        let listener = engine::net::TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let stream = engine::net::TcpStream::connect(listener.local_addr()).await.expect("connected");
        let reader = task::spawn(async move { stream.recv(engine::Buf::with_capacity(4096)).await.0 });
        let (_peer, _) = listener.accept().await.expect("accepted");
        time::sleep(Duration::from_millis(50)).await;
        let (begin, cpu) = (time::now(), cpu_time());
        for _ in 0..10 {
            time::sleep(Duration::from_millis(50)).await; // a busy timer is no reason to spin either
        }
        let share = (cpu_time() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
        assert!(share < 0.01, "{:.2} % of a core with a receive outstanding and nothing arriving", share * 100.0);
        assert!(!reader.is_finished());
    });
}

#[test]
fn a_core_that_does_not_exist_is_an_error() {
    for core in [1000, 100_000] {
        let config = ReactorConfig { core: Some(core), ..ReactorConfig::default() };
        let error = Reactor::run(config, async {}).expect_err("no such core");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&core.to_string()), "{error}");
    }
}

#[test]
fn more_operations_than_the_ring_has_entries() {
    let config = ReactorConfig { ring_entries: 2, ..ReactorConfig::default() };
    let directory = tempfile::tempdir().expect("a directory");
    let options = engine::file::OpenOptions { create: Some(1 << 20), ..Default::default() };
    let file = engine::file::File::open(&directory.path().join("medium"), &options).expect("created");
    let all = async move {
        let tasks: Vec<_> = (0..200u64)
            .map(|index| {
                let file = file.clone();
                task::spawn(async move { file.read_at(index * 4096, engine::Buf::with_len(4096)).await.0 })
            })
            .collect();
        for task in tasks {
            task.await.expect("read");
        }
    };
    let bounded = timeout(Duration::from_secs(20), all);
    Reactor::run(config, bounded).expect("a reactor").expect("no operation was forgotten");
}

#[test]
fn a_bounded_queue_slows_its_producer_and_passes_on_everything() {
    run(async {
        let queue = Queue::new(3);
        let producer = task::spawn({
            let queue = queue.clone();
            async move {
                for item in 0..1_000 {
                    queue.push(item).await.expect("open");
                    assert!(queue.len() <= 3);
                }
                queue.close();
            }
        });
        let consumers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                task::spawn(async move {
                    let mut items = vec![];
                    while let Some(item) = queue.pop().await {
                        items.push(item);
                        task::yield_now().await;
                    }
                    items
                })
            })
            .collect();
        producer.await;
        let mut all = vec![];
        for consumer in consumers {
            all.extend(consumer.await);
        }
        all.sort_unstable();
        assert_eq!(all, (0..1_000).collect::<Vec<_>>());
    });
}

/// A listener handed out of the reactor keeps its accept, whose end nobody takes: the reactor waited for it in vain.
#[test]
fn what_outlives_the_reactor_does_not_delay_its_end() {
    let began = std::time::Instant::now();
    let listener = run(async {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        assert!(timeout(Duration::from_millis(1), listener.accept()).await.is_err());
        listener
    });
    assert!(began.elapsed() < Duration::from_secs(2), "the end took {:?}", began.elapsed());
    drop(listener);
}
